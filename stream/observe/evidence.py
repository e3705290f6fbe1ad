"""The evidence of a run that is over: its last layers, and the artifacts that follow from them."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from msgspec import UNSET, Struct, field

from stream.archive.chain import LAYERS, LayerFiles, chain_of, encode_lines
from stream.archive.manifest import names_of
from stream.codec import convert, read_document
from stream.errors import InputError, number, os_reason
from stream.evidence.derive import derive
from stream.evidence.markers import (
    COMMANDS,
    HOOKS,
    POLICY,
    TOOL_EVENTS,
    UNSEEN,
    ChannelWrites,
    DroppedInput,
    Writes,
    build_markers,
    conflicting_repeats,
)
from stream.files.append import NOT_OURS, RecordedFile, create
from stream.observe.settings import RunSettings
from stream.records.artifacts import (
    CHAIN_FILE,
    DETAIL_FILE,
    KERNEL_FILE,
    MARKERS_FILE,
    NOT_ASKED,
    POLICY_FILE,
    RUNNER_FILE,
    SDK_FILE,
    CorrelationReport,
    Marker,
    ObservationHealth,
    RunnerFinished,
    RunnerStarted,
)
from stream.records.kernel import (
    LINK,
    RENAME,
    SYMLINK,
    TRUNCATE,
    UNLINK,
    KernelDetail,
    KernelEvent,
    RawCapture,
    taint,
)
from stream.records.run import LAYERS as LAYERS_FOLDER
from stream.records.run import (
    METADATA_FILE,
    STDOUT_FILE,
    SUMMARY_FILE,
    RunMetadata,
    RunSummary,
)
from stream.redaction.policy import CapturePolicy
from stream.sources.agent import CommandEnding
from stream.sources.wrappers import ObservedCommands, WrapperOutput
from stream.transformers.tool_events import EventTimeIndex, ToolCallCollector
from stream.verify.replay import LayerReplay, replay_layers

_encode = msgspec.json.Encoder().encode
_decode_event = msgspec.json.Decoder(KernelEvent).decode
_decode_detail = msgspec.json.Decoder(KernelDetail).decode
_BLOCK = 1 << 20
_KERNEL_LAYERS = {KERNEL_FILE, DETAIL_FILE}
#: By these a file comes to another name, or another file to its name, or what was in it goes.
_MOVES = {LINK, RENAME, SYMLINK, UNLINK, TRUNCATE}
_MEMORY = re.compile(r"/proc/([0-9]+)(?:/task/[0-9]+)?")  #: where it lies
STDOUT = "stdout"


class CaptureResult(Struct, kw_only=True):
    """What was captured beside the layers that the feed wrote."""

    capture: RawCapture
    filtered: Mapping[str, int]
    aside: Mapping[str, int]
    written: Mapping[str, Writes]  #: to each channel that was watched
    times: EventTimeIndex | None = None  #: None: there was no feed
    home: str | None = None  #: where the recorder's own programs lie
    helpers: Sequence[str] = ()
    wrapper_output: WrapperOutput = field(default_factory=WrapperOutput)
    policy_log: str | None = None  #: by the path that a kernel has for it

    def add_unknown_loss(self, reasons: Iterable[str]) -> None:
        """Add reasons why the layers lack something that was seen."""
        known = [self.capture.unknown_loss] if self.capture.unknown_loss else []
        self.capture.unknown_loss = "; ".join([*known, *reasons])


class RecordedEvidence(Struct):
    """What became of the evidence of a run."""

    health: ObservationHealth
    correlation: CorrelationReport
    kept: dict[str, RecordedFile]  #: the files that were written
    commands: ObservedCommands
    troubles: list[str] = field(default_factory=list)


class CommandResult(Struct, kw_only=True):
    """How the command went: the content of the runner layer."""

    agent: str
    command: list[str]
    env_keys: list[str]
    exit_code: int
    signal: str | None
    not_started: str
    duration_ms: int

    @classmethod
    def of(
        cls, recording: RunSettings, ending: CommandEnding, given: Iterable[bytes]
    ) -> CommandResult:
        """Describe a command that has ended."""
        return cls(
            agent=recording.capture_policy.value(recording.agent.id),
            command=recording.capture_policy.words(recording.argv),
            env_keys=sorted(name.decode() for name in given),
            exit_code=ending.exit_code,
            signal=ending.signal,
            not_started=ending.not_started,
            duration_ms=ending.duration_ms,
        )

    def events(self, run_id: str) -> list[RunnerStarted | RunnerFinished]:
        """The two lines of the runner itself."""
        is_signal = self.signal is not None
        return [
            RunnerStarted(
                run_id=run_id,
                seq=0,
                agent_shim=self.agent,
                command=self.command,
                env_keys=self.env_keys,
                window_elapsed_ms=0,
            ),
            RunnerFinished(
                run_id=run_id,
                seq=1,
                exit_code=None if is_signal or self.not_started else self.exit_code,
                signal=self.exit_code - 128 if is_signal else None,
                success=not self.exit_code and not self.not_started,
                window_elapsed_ms=self.duration_ms,
            ),
        ]


def record_evidence(
    folder: Path,
    files: LayerFiles,
    collector: ToolCallCollector,
    result: CaptureResult,
    command: CommandResult,
) -> RecordedEvidence:
    """Write the last layers of a run and the artifacts that follow from all of them."""
    run_id = collector.run_id
    collector.finish()
    total = files.lines(KERNEL_FILE)
    layers = _last_layers(collector, result, command, total, _writers_of(result.policy_log, files))
    troubles = [one.sentence for one in collector.unused]
    if result.times is not None:
        result.times.close()
    for name, records in layers.items():
        files.append(name, encode_lines(records), len(records))
    unreadable = _find_meddling(files, result, troubles)
    if files.trouble and not result.capture.unknown_loss:
        result.add_unknown_loss(["layers are incomplete"])
    with closing(replay_layers(lambda name: _blocks(files, name, unreadable))) as replay:
        result.add_unknown_loss(_memory_of_others(replay))
        taint(result.capture)
        content = replay.content()
        content.kernel_events, content.has_kernel = total, not _KERNEL_LAYERS & unreadable
        derived = derive(
            run_id, content, result.capture, filtered=result.filtered, aside=result.aside
        )
    files.close()
    kept = files.kept()
    for name, document in derived.documents().items():
        try:
            kept[name] = _write(folder / name, document.encoded())
        except OSError as error:
            troubles.append(f"{name}: {os_reason(error)}")
    if files.trouble:
        lost = sum(files.lost.values())
        troubles.append(f"{f'{lost} lines of the layers: ' if lost else ''}{files.trouble}")
    correlation = derived.correlation
    commands = ObservedCommands(
        derived.health.kernel_layer == "complete",
        correlation.verified_commands,
        correlation.wrappers,
        correlation.programs,
        correlation.tests,
    )
    return RecordedEvidence(derived.health, correlation.report, kept, commands, troubles)


def _find_meddling(files: LayerFiles, result: CaptureResult, troubles: list[str]) -> set[str]:
    """Report the files that somebody else changed, and return those whose content is not what
    was written: nothing follows from it."""
    changed = files.disturbed()
    troubles += [f"{name} {NOT_OURS}" for name in changed]
    result.add_unknown_loss(f"{name} {NOT_OURS}" for name in changed if name in _KERNEL_LAYERS)
    if result.times is not None and result.times.trouble:
        troubles.append(result.times.trouble)
        result.add_unknown_loss([result.times.trouble])
    suspects = LAYERS if files.trouble else changed
    unreadable = {name for name in suspects if not files.is_readable(name)}
    return unreadable | (_KERNEL_LAYERS if _KERNEL_LAYERS & unreadable else set())


def _blocks(files: LayerFiles, name: str, unreadable: Collection[str]) -> Iterator[bytes]:
    if name not in unreadable:
        with files.read(name) as file:
            while block := file.read(_BLOCK):
                yield block


def _writers_of(path: str | None, files: LayerFiles) -> Iterator[tuple[int, int]]:
    """Which events of the kernel layer opened a file to write, or came to a name of it or of a
    folder above it, by which it may be written, and who did. Of what nobody knows the name of, it
    may have been that. An open that failed is none, nor is a failure to give another file such a
    name."""
    if path is None or not all(map(files.is_readable, (KERNEL_FILE, DETAIL_FILE))):
        return
    names = b"|".join(re.escape(_encode(str(one))) for one in (path, *PurePosixPath(path).parents))
    with files.read(DETAIL_FILE) as details:
        moved = re.compile(b'"to_path":(?:%s)' % names).search
        told = map(_decode_detail, filter(moved, details))
        to_there = {one.seq for one in told if one.status != "error"}
    with files.read(KERNEL_FILE) as lines:
        named = re.compile(b'"value":(?:null|%s)' % names).search
        for number, line in enumerate(lines):
            if number in to_there or named(line):
                event = _decode_event(line)
                is_opened = event.access_mode not in (UNSET, "read") and event.status != "error"
                if is_opened or event.event_type in _MOVES:
                    yield event.seq, event.pid


def _memory_of_others(replay: LayerReplay) -> Iterator[str]:
    """Say whether the run opened the memory of a process that is none of its own: what it does
    there, no call shows."""
    found = map(_MEMORY.fullmatch, replay.surface.folders_with("mem"))
    pids = {int(one[1]) for one in found if one is not None}
    if pids and not pids <= replay.pids():
        yield "the run opened the memory of a process that is none of its own"


def _last_layers(
    collector: ToolCallCollector,
    result: CaptureResult,
    command: CommandResult,
    total: int,
    writers: Iterable[tuple[int, int]] = (),
) -> dict[str, Sequence[Any]]:
    """Return the records of the layers that are written when a run is over, by file."""
    return {
        SDK_FILE: collector.sdk,
        POLICY_FILE: collector.policy,
        MARKERS_FILE: _markers(collector, result, total, writers),
        RUNNER_FILE: command.events(collector.run_id),
    }


def _markers(
    collector: ToolCallCollector,
    account: CaptureResult,
    total: int,
    named: Iterable[tuple[int, int]],
) -> list[Marker]:
    """`named`: who came to the policy log by its name, as `_writers_of` gives it."""
    received = {**collector.received, COMMANDS: account.wrapper_output.received}
    written = {
        channel: ChannelWrites(writes, received.get(channel, 0))
        for channel, writes in account.written.items()
    }
    for channel, one in written.items():
        if channel == POLICY or (channel == STDOUT and channel not in received):
            continue  # it is read by itself; somebody else was asked to tell
        size = one.writes.size - one.received if one.writes.sizes else 0
        if size > 0:
            sentence = f"the {channel}: {size} bytes that were written there did not arrive"
            collector.record_drop(DroppedInput(channel, "unread", size, sentence))
    _miss_unseen(collector, account, written)
    unused = conflicting_repeats(collector.moments, collector.again, written)
    counts = Counter({f"{channel}:told_again": count for channel, count in unused.items()})
    if collector.unknown_form and not any(e.event_type in TOOL_EVENTS for e in collector.sdk):
        counts[f"{STDOUT}:unknown_form"] = sum(collector.unknown_form.values())
    for lost in collector.unused:
        counts[f"{lost.channel}:{lost.why}"] += lost.count
    return build_markers(
        collector.run_id,
        collector.moments,
        written=written,
        times=(lambda ts: 0) if account.times is None else account.times.until(),
        total=total,
        home=account.home,
        helpers=account.helpers,
        unused=counts,
        commands=account.wrapper_output.lines,
        decided=named,
    )


def _miss_unseen(
    collector: ToolCallCollector, account: CaptureResult, written: Mapping[str, ChannelWrites]
) -> None:
    """What the feed did not lose, and was not seen to be written to the hooks' log, came there in a
    way that no hook of the recorder's goes: by another name, or in memory."""
    if account.capture.feed == "absent" or account.capture.dropped or account.capture.unparsed:
        return
    seen = written[HOOKS].writes.size if HOOKS in written else 0
    if (size := collector.received.get(HOOKS, 0) - seen) > 0:
        sentence = (
            f"the {HOOKS}: nobody was seen to write {number(size, 'byte')} of what came there"
        )
        collector.record_drop(DroppedInput(HOOKS, UNSEEN, size, sentence))


def _write(path: Path, pieces: Iterable[bytes]) -> RecordedFile:
    """Raises OSError."""
    digest = hashlib.sha256()
    with create(path) as file:
        for piece in chain(pieces, (b"\n",)):
            file.write(piece)
            digest.update(piece)
        size = file.tell()
    return RecordedFile(digest.hexdigest(), size, size)


# ------------------------------------------------------------ of a run without any


def missing_evidence(folder: Path) -> dict[str, bytes]:
    """Make, by file, what stands for the evidence of a run that had no kernel feed.

    Raises InputError where it was not recorded to its end.
    """
    if any(name.startswith(f"{LAYERS_FOLDER}/") for name in names_of(folder)):
        raise InputError(f"{folder}: it was not recorded to its end: see `stream verify`")
    metadata = convert(read_document(folder / METADATA_FILE), RunMetadata, folder / METADATA_FILE)
    summary = convert(read_document(folder / SUMMARY_FILE), RunSummary, folder / SUMMARY_FILE)
    # What is in the run folder was redacted when it was written.
    collector = ToolCallCollector(metadata.run_id, CapturePolicy("full", None))
    if metadata.capture_mode != "hashed":
        with (folder / STDOUT_FILE).open("rb") as file:
            while block := file.read(_BLOCK):
                collector.feed_stdout(block, 0)
    collector.finish()
    capture = RawCapture(feed="absent", reason=NOT_ASKED)
    result = CaptureResult(capture=capture, filtered={}, aside={}, written={})
    command = CommandResult(
        agent=metadata.agent_id,
        command=metadata.argv,
        env_keys=[],
        exit_code=summary.exit_code,
        signal=summary.signal,
        not_started=summary.not_started,
        duration_ms=summary.duration_ms,
    )
    layers = _last_layers(collector, result, command, 0)
    made = dict.fromkeys(LAYERS, b"") | {name: encode_lines(one) for name, one in layers.items()}
    with closing(replay_layers(lambda name: (made[name],))) as replay:
        derived = derive(metadata.run_id, replay.content(), capture, filtered={}, aside={})
    artifacts = {name: one.line() for name, one in derived.documents().items()}
    return {**made, CHAIN_FILE: chain_of(made), **artifacts}
