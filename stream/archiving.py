"""The composition behind `stream archive`: a run folder, or a mixed stream of records."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from anyio import from_thread, to_thread
from msgspec import Struct
from msgspec.structs import replace

from stream.archive.assorting import Assort
from stream.archive.entries import Entry
from stream.archive.gathering import DECODERS, Gathering, whole_lines
from stream.archive.implied import imply
from stream.archive.packing import archive_run, checked_run_id
from stream.archive.spools import Spools
from stream.archive.writing import Written, check_free, write_archive
from stream.conclusion import missing_evidence
from stream.errors import InputError
from stream.pipeline import Counts, Pipeline, Sink
from stream.records.kernel import RawCapture
from stream.records.runner import (
    DETAIL_FILE,
    HEALTH_FILE,
    KERNEL_FILE,
    MARKERS_FILE,
    POLICY_FILE,
    RUNNER_FILE,
    SDK_FILE,
)
from stream.runfolder import check_folder
from stream.sources.ndjson import STDIN, NdjsonSource

_EMPTY = (KERNEL_FILE, POLICY_FILE, SDK_FILE, RUNNER_FILE, DETAIL_FILE, MARKERS_FILE)
NO_BOOKS = "the books of the feed are not in the stream"
NO_EVENTS = "there are no events of a kernel feed in the stream"


class Archived(Struct):
    written: Written
    counts: Counts | None = None  #: of a stream


async def archive_folder(folder: Path, target: Path, *, force: bool = False) -> Archived:
    """Raises StreamError."""

    def work() -> Written:
        check_folder(folder)
        missing = {} if (folder / HEALTH_FILE).exists() else missing_evidence(folder)
        return archive_run(
            folder, target, missing=missing, force=force, look=from_thread.check_cancelled
        )

    return Archived(await to_thread.run_sync(work))


async def archive_stream(
    target: Path,
    *sinks: Sink[Any],
    run_id: str | None = None,
    force: bool = False,
) -> Archived:
    """Of stdin. Raises StreamError."""
    check_free(target, force=force)
    stage, spools = Assort(), Spools(target)
    try:
        source = NdjsonSource(STDIN)
        await Pipeline[Any]((source,)).through(lambda: stage).into(spools, *sinks)
        agreed = _agreed(stage, run_id)

        def work() -> Written:
            missing = {**dict.fromkeys(_EMPTY, b""), **_implied(agreed, stage, spools)}
            entries = spools.entries()
            there = spools.names()
            entries += [
                Entry.of_bytes(name, data) for name, data in missing.items() if name not in there
            ]
            look = from_thread.check_cancelled
            return write_archive(target, entries, agreed, force=force, look=look)

        return Archived(await to_thread.run_sync(work), stage.counts)
    finally:
        spools.close()


def _implied(run_id: str, stage: Assort, spools: Spools) -> dict[str, bytes]:
    """The artifacts that the stream lacks, from its layers. Without the feed's books nobody
    knows what is missing."""
    with closing(Gathering()) as gathering:
        for name, decoder in DECODERS.items():
            for block in whole_lines(spools.read(name)):
                gathering.take(name, decoder.decode_lines(block))
        gathering.finish()
        made = imply(run_id, gathering, _capture(stage, gathering))
    return {name: b"".join(document.encoded()) for name, document in made.items()}


def _capture(stage: Assort, gathering: Gathering) -> RawCapture:
    """The feed's books, which know of no fewer losses than there are gaps."""
    capture, lost = stage.capture, gathering.lost
    if capture is None and not gathering.events and not gathering.has_gaps:
        return RawCapture(feed="absent", reason=NO_EVENTS)
    if capture is None:
        return RawCapture(feed="ebpf", dropped=lost, unknown_loss=NO_BOOKS)
    counted = capture.dropped + capture.unparsed
    if lost == counted:
        return capture
    reasons = [capture.unknown_loss] if capture.unknown_loss else []
    reasons.append(f"the books count {counted} lost events, and the gaps {lost}")
    return replace(
        capture,
        dropped=max(capture.dropped, lost - capture.unparsed),
        unknown_loss="; ".join(reasons),
    )


def _agreed(stage: Assort, run_id: str | None) -> str:
    """Raises InputError where the records are of several runs, or nobody says of which."""
    found = dict(stage.run_ids)
    if run_id is not None:
        found.pop(run_id, None)
        for other, place in found.items():
            raise InputError(f"{place}: of the run {other!r}, not of {run_id!r}")
        return checked_run_id(run_id, "--run-id")
    if not found:
        raise InputError("(stdin): no usable record names its run: name it with --run-id")
    (first, place), *others = found.items()
    for other, where in others:
        raise InputError(f"{where}: of the run {other!r}, but {place} is of {first!r}")
    return checked_run_id(first, place)
