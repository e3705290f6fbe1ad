"""What a run came to, from its layers: markers, correlation, surface, health, companion.

The recorder comes to it with what it has in hand; `stream verify` comes to the same from the
files alone.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import msgspec
from msgspec import UNSET, Struct, field

from stream.archive.chain import LayerFiles
from stream.archive.manifest import names_of
from stream.documents import convert, read_document
from stream.errors import InputError, number, os_reason
from stream.evidence.attribution import attribution_events, lost_between
from stream.evidence.correlation import Correlation, correlate
from stream.evidence.health import make_health
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
    calls_started,
    conflicting_repeats,
)
from stream.evidence.surface import Surface, make_companion
from stream.files.append import NOT_OURS, RecordedFile, create
from stream.observe.settings import RunSettings
from stream.records.artifacts import (
    COMPANION_FILE,
    CORRELATION_FILE,
    DETAIL_FILE,
    HEALTH_FILE,
    KERNEL_FILE,
    MARKERS_FILE,
    NOT_ASKED,
    POLICY_FILE,
    RUNNER_FILE,
    SDK_FILE,
    SURFACE_FILE,
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
from stream.records.run import (
    LAYERS,
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
from stream.verify.replay import DECODERS, LayerReplay, whole_lines

_encode = msgspec.json.Encoder().encode
_decode_event = msgspec.json.Decoder(KernelEvent).decode
_decode_detail = msgspec.json.Decoder(KernelDetail).decode
_BLOCK = 1 << 20
#: By these a file comes to another name, or another file to its name, or what was in it goes.
_MOVES = {LINK, RENAME, SYMLINK, UNLINK, TRUNCATE}
_MEMORY = re.compile(r"/proc/([0-9]+)(?:/task/[0-9]+)?")  #: where it lies
STDOUT = "stdout"


class CaptureResult(Struct, kw_only=True):
    """What the kernel's side of it comes to."""

    capture: RawCapture
    filtered: Mapping[str, int]
    aside: Mapping[str, int]
    surface: Surface
    written: Mapping[str, Writes]  #: to each channel that was watched
    times: EventTimeIndex
    home: str | None = None  #: where the recorder's own programs lie
    helpers: Sequence[str] = ()
    heard: WrapperOutput = field(default_factory=WrapperOutput)  #: of the wrappers
    policy: str | None = None  #: the policy log, by the path that a kernel has for it

    def doubt(self, reasons: Iterable[str]) -> None:
        """Who reads the layers does not see all that was seen."""
        known = [self.capture.unknown_loss] if self.capture.unknown_loss else []
        self.capture.unknown_loss = "; ".join([*known, *reasons])


class Derived(Struct):
    health: ObservationHealth
    correlation: CorrelationReport
    kept: dict[str, RecordedFile]  #: the files that were written
    commands: ObservedCommands
    troubles: list[str] = field(default_factory=list)


class CommandResult(Struct, kw_only=True):
    """How the run went, as its runner tells it."""

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
        return cls(
            agent=recording.disclosure.value(recording.agent.id),
            command=recording.disclosure.words(recording.argv),
            env_keys=sorted(name.decode() for name in given),
            exit_code=ending.exit_code,
            signal=ending.signal,
            not_started=ending.not_started,
            duration_ms=ending.duration_ms,
        )

    def events(self, run_id: str) -> list[RunnerStarted | RunnerFinished]:
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


def derive_artifacts(
    folder: Path,
    files: LayerFiles,
    testimony: ToolCallCollector,
    account: CaptureResult,
    course: CommandResult,
) -> Derived:
    """Writes all that is made of the layers into the folder."""
    run_id = testimony.run_id
    testimony.finish()
    total = files.lines(KERNEL_FILE)
    markers = _markers(testimony, account, total, _writers_of(account.policy, files))
    troubles = [one.sentence for one in testimony.unused]
    account.times.close()
    for name, lines in (
        (SDK_FILE, testimony.sdk),
        (POLICY_FILE, testimony.policy),
        (MARKERS_FILE, markers),
        (RUNNER_FILE, course.events(run_id)),
    ):
        files.append(name, b"".join(_encode(line) + b"\n" for line in lines), len(lines))
    disturbed = files.disturbed()
    troubles += [f"{name} {NOT_OURS}" for name in disturbed]
    account.doubt(f"{name} {NOT_OURS}" for name in disturbed if name in (KERNEL_FILE, DETAIL_FILE))
    if account.times.trouble:
        troubles.append(account.times.trouble)
        account.doubt([account.times.trouble])
    surface = account.surface
    for event in testimony.sdk:
        surface.add_sdk(event)
    for decision in testimony.policy:
        surface.add_policy(decision)
    if files.trouble:  # what could not be written down is claimed by nothing
        surface = _surface_of(files)
        if not account.capture.unknown_loss:
            account.doubt(["layers are incomplete"])
    account.doubt(_memory_of_others(surface, files))
    taint(account.capture)
    correlation = _correlation(files, {*disturbed}, testimony, markers, total, account.capture)
    surface.admit(correlation.recorder_file_uses)
    files.close()
    health = make_health(
        run_id,
        account.capture,
        monitor_events=total,
        has_connect=surface.has_connect,
        has_datagram=surface.has_datagram,
        policy_events=len(testimony.policy),
        sdk_events=len(testimony.sdk),
        sdk_tool_calls=calls_started(testimony.sdk),
        unnamed=surface.unnamed.total(),
    )
    companion = make_companion(
        run_id,
        surface,
        capture=account.capture,
        filtered=account.filtered,
        aside=account.aside,
        calls=correlation.calls,
        unbound=correlation.unbound,
    )
    documents: dict[str, Iterable[bytes]] = {
        SURFACE_FILE: surface.long_surface(run_id).encoded(),
        CORRELATION_FILE: [_encode(correlation.report)],
        HEALTH_FILE: [_encode(health)],
        COMPANION_FILE: companion.encoded(),
    }
    kept = files.kept()
    for name, pieces in documents.items():
        try:
            kept[name] = _write(folder / name, pieces)
        except OSError as error:
            troubles.append(f"{name}: {os_reason(error)}")
    if files.trouble:
        lost = sum(files.lost.values())
        troubles.append(f"{f'{lost} lines of the layers: ' if lost else ''}{files.trouble}")
    commands = ObservedCommands(
        health.kernel_layer == "complete",
        correlation.verified_commands,
        correlation.wrappers,
        correlation.programs,
        correlation.tests,
    )
    return Derived(health, correlation.report, kept, commands, troubles)


def _surface_of(files: LayerFiles) -> Surface:
    with closing(LayerReplay()) as gathering:
        for name, decoder in DECODERS.items():
            with files.read(name) as file:
                for block in whole_lines(_blocks(file)):
                    gathering.take(name, decoder.decode_lines(block))
        gathering.finish()
        return gathering.surface


def _blocks(file: BinaryIO) -> Iterator[bytes]:
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


def _memory_of_others(surface: Surface, files: LayerFiles) -> Iterator[str]:
    """What a run does through another's memory, no call shows: as with ptrace and its like."""
    found = map(_MEMORY.fullmatch, surface.folders_with("mem"))
    pids = {int(one[1]) for one in found if one is not None}
    if pids and files.is_readable(KERNEL_FILE):
        with files.read(KERNEL_FILE) as lines:
            pids -= {_decode_event(line).pid for line in lines}
    if pids:
        yield "the run opened the memory of a process that is none of its own"


def _markers(
    testimony: ToolCallCollector,
    account: CaptureResult,
    total: int,
    named: Iterable[tuple[int, int]],
) -> list[Marker]:
    """`named`: who came to the policy log by its name, as `_writers_of` gives it."""
    received = {**testimony.received, COMMANDS: account.heard.received}
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
            testimony.miss(DroppedInput(channel, "unread", size, sentence))
    _miss_unseen(testimony, account, written)
    unused = conflicting_repeats(testimony.moments, testimony.again, written)
    counts = Counter({f"{channel}:told_again": count for channel, count in unused.items()})
    if testimony.unknown_form and not any(e.event_type in TOOL_EVENTS for e in testimony.sdk):
        counts[f"{STDOUT}:unknown_form"] = sum(testimony.unknown_form.values())
    for lost in testimony.unused:
        counts[f"{lost.channel}:{lost.why}"] += lost.count
    return build_markers(
        testimony.run_id,
        testimony.moments,
        written=written,
        times=account.times.until(),
        total=total,
        home=account.home,
        helpers=account.helpers,
        unused=counts,
        commands=account.heard.lines,
        decided=named,
    )


def _miss_unseen(
    testimony: ToolCallCollector, account: CaptureResult, written: Mapping[str, ChannelWrites]
) -> None:
    """What the feed did not lose, and was not seen to be written to the hooks' log, came there in a
    way that no hook of the recorder's goes: by another name, or in memory."""
    if account.capture.feed == "absent" or account.capture.dropped or account.capture.unparsed:
        return
    seen = written[HOOKS].writes.size if HOOKS in written else 0
    if (size := testimony.received.get(HOOKS, 0) - seen) > 0:
        sentence = (
            f"the {HOOKS}: nobody was seen to write {number(size, 'byte')} of what came there"
        )
        testimony.miss(DroppedInput(HOOKS, UNSEEN, size, sentence))


def _correlation(
    files: LayerFiles,
    disturbed: set[str],
    testimony: ToolCallCollector,
    markers: Sequence[Marker],
    total: int,
    capture: RawCapture,
) -> Correlation:
    layers = disturbed & {KERNEL_FILE, DETAIL_FILE}
    is_readable = all(map(files.is_readable, layers))
    with (
        files.read(KERNEL_FILE) as kernel,
        files.read(DETAIL_FILE) as details,
        files.read(DETAIL_FILE) as again,
    ):
        return correlate(
            testimony.run_id,
            markers=markers,
            sdk=testimony.sdk,
            policy=testimony.policy,
            events=attribution_events(kernel, details) if is_readable else (),
            gaps=lost_between(again, total) if is_readable else (),
            has_kernel=is_readable and capture.feed != "absent",
            capture=capture,
        )


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
    """By file: what a run that was recorded without a kernel feed has to show for one.

    Raises InputError where it was not recorded to its end.
    """
    if any(name.startswith(f"{LAYERS}/") for name in names_of(folder)):
        raise InputError(f"{folder}: it was not recorded to its end: see `stream verify`")
    metadata = convert(read_document(folder / METADATA_FILE), RunMetadata, folder / METADATA_FILE)
    summary = convert(read_document(folder / SUMMARY_FILE), RunSummary, folder / SUMMARY_FILE)
    # What is in the run folder was censored when it was written.
    testimony = ToolCallCollector(metadata.run_id, CapturePolicy("full", None))
    if metadata.capture_mode != "hashed":
        with (folder / STDOUT_FILE).open("rb") as file:
            while block := file.read(_BLOCK):
                testimony.hear(block, 0)
    with tempfile.TemporaryDirectory(prefix="stream-") as name:
        place = Path(name)
        account = CaptureResult(
            capture=RawCapture(feed="absent", reason=NOT_ASKED),
            filtered={},
            aside={},
            surface=Surface(),
            written={},
            times=EventTimeIndex(place),
        )
        course = CommandResult(
            agent=metadata.agent_id,
            command=metadata.argv,
            env_keys=[],
            exit_code=summary.exit_code,
            signal=summary.signal,
            not_started=summary.not_started,
            duration_ms=summary.duration_ms,
        )
        derive_artifacts(place, LayerFiles(place), testimony, account, course)
        made = (file for file in place.rglob("*") if file.is_file())
        return {str(file.relative_to(place)): file.read_bytes() for file in made}
