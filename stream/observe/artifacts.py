"""The artifacts of a run, where they are made for the first time: when it ends, and when an archive
is made of a run that had no feed, or of a stream.

`derive_artifacts` makes them of the layers. What is missing from the layers is found out here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from stream.archive.chain import LAYERS, LayerFiles, chain_of, encode_lines
from stream.errors import number, os_reason
from stream.evidence.derive import derive_artifacts
from stream.files.append import NOT_OURS, RecordedFile, create_private_file
from stream.observe.layers import CaptureResult, last_layers, layers_without_feed
from stream.records.artifacts import (
    CHAIN_FILE,
    DETAIL_FILE,
    KERNEL_FILE,
    NOT_ASKED,
    RUNNER_FILE,
    CorrelationReport,
    ObservationHealth,
    RunnerFinished,
    RunnerStarted,
)
from stream.records.kernel import RawCapture, mark_cgroup_partial
from stream.records.run import RunSummary
from stream.sources.wrappers import ObservedCommands
from stream.transformers.route import FeedCounts
from stream.transformers.tool_events import ToolCallCollector
from stream.verify.replay import LayerReplay, replay_layers
from stream.verify.run_folder import RunFolder

_KERNEL_LAYERS = {KERNEL_FILE, DETAIL_FILE}
_MEMORY_FOLDER = re.compile(r"/proc/([0-9]+)(?:/task/[0-9]+)?")


class RecordedArtifacts(Struct):
    """What was written when a run ended, and what of it the summary of the run states."""

    health: ObservationHealth
    correlation: CorrelationReport
    kept: dict[str, RecordedFile]  #: the files that were written
    commands: ObservedCommands
    kernel_events: int
    troubles: list[str] = field(default_factory=list)

    def state_in_summary(self, summary: RunSummary) -> None:
        """Write into the summary of the run what the artifacts say."""
        summary.kernel_layer = self.health.kernel_layer
        summary.kernel_events = self.kernel_events
        summary.kernel_lost = self.health.ringbuf_drops
        summary.cgroup_correlation = self.health.cgroup_correlation
        summary.tool_calls = len(self.correlation.bindings)
        summary.correlation = self.correlation.status


def record_artifacts(
    folder: Path,
    files: LayerFiles,
    collector: ToolCallCollector,
    result: CaptureResult,
    runner: Sequence[RunnerStarted | RunnerFinished],
) -> RecordedArtifacts:
    """Write the last layers of a run and the artifacts that follow from all of them.

    The kernel layer is read once, for its digest and for the artifacts; with a policy log, twice
    more for who wrote that. An archive reads it once again: the artifacts stand before it there,
    and its compressed bytes depend on theirs. To read a gigabyte again, from memory, takes 0.04 s
    of processor time; to derive and to pack it takes 9 s.
    """
    layers = last_layers(collector, result, runner, files)
    troubles = [one.sentence for one in collector.dropped]
    if result.times is not None:
        result.times.close()
    for name, records in layers.items():
        files.append(name, encode_lines(records), len(records))
    replayed, changed = _replay_written(files)
    with closing(replayed) as replay:
        _report_changed_files(files, changed, result, troubles)
        result.add_unknown_loss(_memory_of_others(replay))
        mark_cgroup_partial(result.capture)
        content = replay.layer_content()
        content.kernel_events = files.lines(KERNEL_FILE)
        content.has_kernel = not _KERNEL_LAYERS & changed
        derived = derive_artifacts(
            collector.run_id,
            content,
            result.capture,
            filtered=result.filtered,
            aside=result.aside,
        )
    files.close()
    kept = files.kept()
    for name, document in derived.documents().items():
        try:
            kept[name] = _write_artifact(folder / name, document.encoded_record())
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
    total = files.lines(KERNEL_FILE)
    return RecordedArtifacts(derived.health, correlation.report, kept, commands, total, troubles)


def _replay_written(files: LayerFiles) -> tuple[LayerReplay, set[str]]:
    """Replay the layers of a run, and name those whose content is not what was written: they are
    left out, for nothing follows from it."""
    try:
        return replay_layers(files.blocks), set()
    except Exception:  # of whatever kind: somebody else may have written anything there
        changed = {name for name in LAYERS if not files.is_readable(name)}
        if not changed:
            raise
    unused = changed | (_KERNEL_LAYERS if _KERNEL_LAYERS & changed else set())
    return replay_layers(lambda name: () if name in unused else files.blocks(name)), changed


def _report_changed_files(
    files: LayerFiles, changed: set[str], result: CaptureResult, troubles: list[str]
) -> None:
    """Report the files that somebody else changed, and what else the layers lack."""
    for name in files.disturbed(changed):
        troubles.append(f"{name} {NOT_OURS}")
        if name in _KERNEL_LAYERS:
            result.add_unknown_loss([f"{name} {NOT_OURS}"])
    if result.times is not None and result.times.trouble:
        troubles.append(result.times.trouble)
        result.add_unknown_loss([result.times.trouble])
    if files.trouble and not result.capture.unknown_loss:
        result.add_unknown_loss(["layers are incomplete"])


def _memory_of_others(replay: LayerReplay) -> Iterator[str]:
    """Say whether the run opened the memory of a process that is none of its own: what it does
    there, no call shows."""
    found = map(_MEMORY_FOLDER.fullmatch, replay.surface.folders_with("mem"))
    pids = {int(one[1]) for one in found if one is not None}
    if pids and not pids <= replay.pids():
        yield "the run opened the memory of a process that is none of its own"


def _write_artifact(path: Path, pieces: Iterable[bytes]) -> RecordedFile:
    """Write a new file of these pieces and a newline. Raise OSError."""
    digest = hashlib.sha256()
    with create_private_file(path) as file:
        for piece in chain(pieces, (b"\n",)):
            file.write(piece)
            digest.update(piece)
        size = file.tell()
    return RecordedFile(digest.hexdigest(), size, size)


# ------------------------------------------------------------ of a run that had no feed


def files_without_feed(run_id: str, run: RunFolder) -> dict[str, bytes]:
    """Make, by file, the layers and artifacts of a run that was recorded without a kernel feed.
    Raise InputError where its documents cannot be read."""
    layers = layers_without_feed(run_id, run)
    capture = RawCapture(feed="absent", reason=NOT_ASKED)
    with closing(replay_layers(lambda name: (layers[name],))) as replay:
        artifacts = _artifacts(run_id, replay, FeedCounts(capture, {}, {}))
    return {**layers, CHAIN_FILE: chain_of(layers), **artifacts}


# ------------------------------------------------------------ of a stream


def files_of_stream(
    run_id: str,
    read: Callable[[str], Iterable[bytes]],
    stated: FeedCounts | None,
    rejected: int,
) -> dict[str, bytes]:
    """Make, by file, the artifacts that follow from layers which came as a stream, and each layer
    as it is when nothing of it came. `stated`: the counters of the feed, if they came as well;
    without them nobody knows what is missing."""
    with closing(replay_layers(read)) as replay:
        artifacts = _artifacts(run_id, replay, _feed_counts(stated, rejected, replay))
    return {**dict.fromkeys((*LAYERS, RUNNER_FILE), b""), **artifacts}


def _artifacts(run_id: str, replay: LayerReplay, counts: FeedCounts) -> dict[str, bytes]:
    content = replay.layer_content()
    derived = derive_artifacts(
        run_id, content, counts.capture, filtered=counts.filtered, aside=counts.aside
    )
    return {name: document.encoded_line() for name, document in derived.documents().items()}


def _feed_counts(stated: FeedCounts | None, rejected: int, replay: LayerReplay) -> FeedCounts:
    """Return the counters of the feed, which know of no fewer losses than the stream has."""
    if stated is None and not replay.events and not replay.has_gaps:
        reason = "there are no events of a kernel feed in the stream"
        return FeedCounts(RawCapture(feed="absent", reason=reason))
    counts = stated or FeedCounts(RawCapture(feed="ebpf", dropped=replay.lost))
    capture = counts.capture
    if capture.feed == "absent":
        return counts
    reasons = list(_loss_reasons(counts, rejected, replay, is_stated=stated is not None))
    if not reasons:  # then what is here, and what was left out, is all that there was
        return FeedCounts(capture, counts.filtered or {}, counts.aside or {})
    dropped = max(capture.dropped, replay.lost - capture.unparsed)
    lossy = replace(capture, dropped=dropped, unknown_loss="; ".join(reasons))
    mark_cgroup_partial(lossy)
    return FeedCounts(lossy, counts.filtered, counts.aside)


def _loss_reasons(
    counts: FeedCounts, rejected: int, replay: LayerReplay, *, is_stated: bool
) -> Iterator[str]:
    """Say why nobody knows how much is missing of what the feed saw."""
    capture = counts.capture
    if capture.unknown_loss:
        yield capture.unknown_loss
    if not is_stated:
        yield "the counters of the feed are not in the stream"
    if rejected:
        were = "was" if rejected == 1 else "were"
        yield f"{number(rejected, 'line')} of the stream {were} rejected"
    counted = capture.dropped + capture.unparsed
    if replay.lost != counted:
        yield f"the feed counts {number(counted, 'lost event')}, and the gaps {replay.lost}"
    if replay.missing_details:
        yield f"the details of {number(replay.missing_details, 'event')} are not in the stream"
    seen = sum(capture.scopes.values())
    left_out = sum((counts.filtered or {}).values()) + sum((counts.aside or {}).values())
    if is_stated and seen != replay.events + left_out:
        what = f"{replay.events} are in the stream and {left_out} are known to be left out"
        yield f"the feed counts {number(seen, 'event')}, of which {what}"
