"""The layers that are written when a run is over: the runner's, tool calls, decisions, markers.

The kernel layer is on the disk by then. What was reported to the recorder is joined with what the
feed saw of the same channels: a report that nobody was seen to write is none of the run's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import msgspec
from msgspec import UNSET, Struct, field

from stream.archive.chain import LAYERS, LayerFiles, encode_lines
from stream.errors import number
from stream.evidence.markers import (
    TOOL_EVENTS,
    ChannelWrites,
    Writes,
    build_markers,
    conflicting_repeats,
)
from stream.pipeline import Batch
from stream.records.artifacts import (
    DETAIL_FILE,
    KERNEL_FILE,
    MARKERS_FILE,
    NOT_ASKED,
    POLICY_FILE,
    RUNNER_FILE,
    SDK_FILE,
    Marker,
    RunnerFinished,
    RunnerStarted,
)
from stream.records.channels import (
    COMMANDS,
    HOOKS,
    POLICY,
    STDOUT,
    UNSEEN,
    ChannelBlock,
    DroppedInput,
)
from stream.records.control import CHANNELS
from stream.records.kernel import (
    LINK,
    RENAME,
    SYMLINK,
    TRUNCATE,
    UNLINK,
    KernelDetail,
    KernelEvent,
    RawCapture,
)
from stream.records.run import METADATA_FILE, STDOUT_FILE, SUMMARY_FILE, RunMetadata, RunSummary
from stream.redaction.policy import CapturePolicy
from stream.sinks.run_folder import EventTimeIndex
from stream.sources.wrappers import WrapperOutput
from stream.transformers.tool_events import ToolCallCollector
from stream.verify.run_folder import RunFolder

_encode = msgspec.json.Encoder().encode
_decode_event = msgspec.json.Decoder(KernelEvent).decode
_decode_detail = msgspec.json.Decoder(KernelDetail).decode
#: By these a file comes to another name, or another file to its name, or what was in it goes.
_MOVES = {LINK, RENAME, SYMLINK, UNLINK, TRUNCATE}


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


def runner_events(
    summary: RunSummary, agent: str, command: list[str], env_names: Iterable[bytes] = ()
) -> list[RunnerStarted | RunnerFinished]:
    """Return the two lines of the runner itself, about a command that has ended. `env_names`: what
    the recorder added to its environment."""
    is_signal = summary.signal is not None
    has_exit_code = not is_signal and not summary.not_started
    return [
        RunnerStarted(
            run_id=summary.run_id,
            seq=0,
            agent_shim=agent,
            command=command,
            env_keys=sorted(name.decode() for name in env_names),
            window_elapsed_ms=0,
        ),
        RunnerFinished(
            run_id=summary.run_id,
            seq=1,
            exit_code=summary.exit_code if has_exit_code else None,
            signal=summary.exit_code - 128 if is_signal else None,
            success=not summary.exit_code and not summary.not_started,
            window_elapsed_ms=summary.duration_ms,
        ),
    ]


def last_layers(
    collector: ToolCallCollector,
    result: CaptureResult,
    runner: Sequence[RunnerStarted | RunnerFinished],
    files: LayerFiles | None = None,
) -> dict[str, Sequence[Any]]:
    """Return, by file, the records of the layers that are written when a run is over. `files`: the
    layers that are written already; None: there was no feed."""
    return {
        SDK_FILE: collector.sdk,
        POLICY_FILE: collector.policy,
        MARKERS_FILE: _build_run_markers(collector, result, files),
        RUNNER_FILE: runner,
    }


def layers_without_feed(run_id: str, run: RunFolder) -> dict[str, bytes]:
    """Make, by file, the layers of a run that was recorded without a kernel feed. Raise InputError
    where its documents cannot be read."""
    metadata = run.read_document(METADATA_FILE, RunMetadata)
    summary = run.read_document(SUMMARY_FILE, RunSummary)
    # What is in the run folder was redacted when it was written.
    collector = ToolCallCollector(run_id, CapturePolicy("full", None))
    if metadata.capture_mode != "hashed":
        for block in run.file_blocks(STDOUT_FILE):
            collector.feed(Batch(CHANNELS, [ChannelBlock(STDOUT, block)]))
    collector.finish()
    capture = RawCapture(feed="absent", reason=NOT_ASKED)
    result = CaptureResult(capture=capture, filtered={}, aside={}, written={})
    runner = runner_events(summary, metadata.agent_id, metadata.argv)
    layers = last_layers(collector, result, runner)
    made = {name: encode_lines(records) for name, records in layers.items()}
    return {**dict.fromkeys(LAYERS, b""), **made}


def _policy_log_writers(path: str, files: LayerFiles) -> Iterator[tuple[int, int]]:
    """Yield number and process of each event by which the policy log may have been written.

    Such an event opened a file to write, or moved or removed one, by the name of the log or of a
    folder above it, or by a name that nobody knows. An open that failed is none, nor is a failure
    to give another file such a name.
    """
    if not all(map(files.is_readable, (KERNEL_FILE, DETAIL_FILE))):
        return
    names = b"|".join(re.escape(_encode(str(one))) for one in (path, *PurePosixPath(path).parents))
    with files.read(DETAIL_FILE) as details:
        moved = re.compile(b'"to_path":(?:%s)' % names).search
        moves = map(_decode_detail, filter(moved, details))
        to_there = {one.seq for one in moves if one.status != "error"}
    with files.read(KERNEL_FILE) as lines:
        named = re.compile(b'"value":(?:null|%s)' % names).search
        for number, line in enumerate(lines):
            if number in to_there or named(line):
                event = _decode_event(line)
                is_opened = event.access_mode not in (UNSET, "read") and event.status != "error"
                if is_opened or event.event_type in _MOVES:
                    yield event.seq, event.pid


def _build_run_markers(
    collector: ToolCallCollector, result: CaptureResult, files: LayerFiles | None
) -> list[Marker]:
    """Make the markers of the tool calls of a run, and note what did not arrive on its channels."""
    received = {**collector.received, COMMANDS: result.wrapper_output.received}
    written = {
        channel: ChannelWrites(writes, received.get(channel, 0))
        for channel, writes in result.written.items()
    }
    known = [*collector.dropped]
    for channel, one in written.items():
        if channel == POLICY or (channel == STDOUT and channel not in received):
            continue  # the log is read by itself; another channel was asked for
        size = one.writes.size - one.received if one.writes.sizes else 0
        if size > 0 and not any((lost.channel, lost.why) == (channel, "unread") for lost in known):
            sentence = f"the {channel}: {size} bytes that were written there did not arrive"
            collector.dropped.append(DroppedInput(channel, "unread", size, sentence))
    _drop_unseen_hook_writes(collector, result, written)
    unused = conflicting_repeats(collector.boundaries, collector.repeats, written)
    counts = Counter({f"{channel}:told_again": count for channel, count in unused.items()})
    if collector.unknown_form and not any(e.event_type in TOOL_EVENTS for e in collector.sdk):
        counts[f"{STDOUT}:unknown_form"] = sum(collector.unknown_form.values())
    for lost in collector.dropped:
        counts[f"{lost.channel}:{lost.why}"] += lost.count
    decided: Iterable[tuple[int, int]] = ()
    if files is not None and result.policy_log is not None:
        decided = _policy_log_writers(result.policy_log, files)
    return build_markers(
        collector.run_id,
        collector.boundaries,
        written=written,
        times=(lambda ts: 0) if result.times is None else result.times.counter_until(),
        total=0 if files is None else files.lines(KERNEL_FILE),
        home=result.home,
        helpers=result.helpers,
        unused=counts,
        commands=result.wrapper_output.lines,
        decided=decided,
    )


def _drop_unseen_hook_writes(
    collector: ToolCallCollector, result: CaptureResult, written: Mapping[str, ChannelWrites]
) -> None:
    """Record as unusable what came to the hooks' log though a feed without losses saw nobody write
    it: it came in a way that no hook of the recorder's goes, by another name or in memory."""
    if result.capture.feed == "absent" or result.capture.dropped or result.capture.unparsed:
        return
    seen = written[HOOKS].writes.size if HOOKS in written else 0
    if (size := collector.received.get(HOOKS, 0) - seen) > 0:
        sentence = (
            f"the {HOOKS}: nobody was seen to write {number(size, 'byte')} of what came there"
        )
        collector.dropped.append(DroppedInput(HOOKS, UNSEEN, size, sentence))
