"""The composition behind `stream archive`: a run folder, or a mixed stream of records."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

from anyio import from_thread, to_thread
from msgspec import UNSET, Struct, field
from msgspec.structs import replace

from stream.archive.manifest import archive_run, missing_from, names_of
from stream.archive.tar import ArchiveSize, Entry, Measure, write_archive
from stream.boundary.descriptors import find_boundaries
from stream.errors import InputError, UnfinishedError, UsageError, number
from stream.evidence.derive import derive
from stream.files.append import RecordedFile
from stream.files.targets import check_free
from stream.observe.evidence import missing_evidence
from stream.pipeline import Counts, Pipeline, Sink
from stream.records.artifacts import (
    DETAIL_FILE,
    HEALTH_FILE,
    KERNEL_FILE,
    MARKERS_FILE,
    POLICY_FILE,
    RUNNER_FILE,
    SDK_FILE,
)
from stream.records.kernel import RawCapture, taint
from stream.records.run import DESCRIPTOR_FILE, check_run_id
from stream.sinks.archive import Assort, FeedCounts, Spools
from stream.sources.ndjson import STDIN, NdjsonSource
from stream.verify.replay import LayerReplay, replay_layers
from stream.verify.report import VerifyReport
from stream.verify.run_folder import check_folder, is_finished, losses_of
from stream.verify.session import verify

_EMPTY = (KERNEL_FILE, POLICY_FILE, SDK_FILE, RUNNER_FILE, DETAIL_FILE, MARKERS_FILE)
NO_BOOKS = "the books of the feed are not in the stream"
NO_EVENTS = "there are no events of a kernel feed in the stream"


class Archived(Struct):
    """What was packed, and, of a stream, what became of its records."""

    written: ArchiveSize
    counts: Counts | None = None  #: of a stream
    losses: list[str] = field(default_factory=list)  #: of a run, as its recorder told them


async def archive_folder(
    folder: Path,
    target: Path,
    *,
    recorded: Mapping[str, RecordedFile] | None = None,
    force: bool = False,
) -> Archived:
    """Archive a run folder. `recorded` says what was written to it, where that is known: then its
    layers are read once, to be packed. Raise StreamError."""
    files = (recorded or {}).items()
    known = {name: Measure(file.bytes, file.sha256) for name, file in files}

    def work() -> ArchiveSize:
        """Check the folder and write the archive."""
        check_folder(folder)
        _check_outside(folder, target)
        _check_whole(folder)
        missing = {} if HEALTH_FILE in names_of(folder) else missing_evidence(folder)
        return archive_run(
            folder,
            target,
            missing=missing,
            known=known,
            force=force,
            look=from_thread.check_cancelled,
        )

    written = await to_thread.run_sync(work)
    return Archived(written, losses=losses_of(folder))


def _check_outside(folder: Path, target: Path) -> None:
    """What is put into a run is a file that its manifest does not know. Raises UsageError."""
    place = Path(os.path.realpath(target))
    if place.is_relative_to(os.path.realpath(folder)):
        raise UsageError(f"{target}: it would lie inside of the run that it is made of")


def _check_whole(folder: Path) -> None:
    """Raises UnfinishedError where the recorder did not come to its end: nobody could verify it."""
    if missing_from([*names_of(folder)]) or not is_finished(folder):
        raise UnfinishedError(f"{folder}: it was not recorded to its end: see `stream verify`")


async def archive_stream(
    target: Path,
    *sinks: Sink,
    run_id: str | None = None,
    boundary: str | None = None,
    force: bool = False,
) -> Archived:
    """Archive the records that come on stdin. Raise StreamError."""
    check_free(str(target), force=force)
    if run_id is not None:
        check_run_id(run_id, "--run-id")
    boundaries = find_boundaries(boundary)
    stage, spools = Assort(boundaries), Spools(target)
    try:
        source = NdjsonSource(STDIN)
        await Pipeline((source,)).through(stage).into(spools, *sinks)
        if not stage.counts.passed + stage.counts.rejected:
            raise InputError("(stdin): nothing came: there is nothing to archive")
        agreed = _agreed(stage, run_id)

        def work() -> ArchiveSize:
            """Complete what came, and write the archive."""
            missing = {**dict.fromkeys(_EMPTY, b""), **_implied(agreed, stage, spools)}
            entries = spools.entries()
            if carried := boundaries.carried(stage.boundary_keys):
                missing[DESCRIPTOR_FILE] = carried
            there = spools.names()
            entries += [
                Entry.of_bytes(name, data) for name, data in missing.items() if name not in there
            ]
            look = from_thread.check_cancelled

            def check(made: Path) -> None:
                """Verify the archive before it gets its name."""
                _check_verified(verify(made, boundary=boundary, look=look), stage.counts.rejected)

            return write_archive(target, entries, agreed, force=force, look=look, check=check)

        return Archived(await to_thread.run_sync(work), stage.counts)
    finally:
        spools.close()


def _check_verified(book: VerifyReport, rejected: int) -> None:
    """Raises InputError where what came does not hold together, as without lines that were
    rejected."""
    errors = [finding for finding in book.findings if finding.severity == "error"]
    if not errors:
        return
    first = errors[0]
    place = str(first.source).removeprefix(f"{book.place}/")
    line = "" if first.line is UNSET else f":{first.line}"
    path = "" if first.path is UNSET else f"{first.path}: "
    more = f"; and {number(book.errors - 1, 'other finding')}" if book.errors > 1 else ""
    without = f" without {number(rejected, 'rejected line')}" if rejected else ""
    said = f"it would not verify{without}: {place}{line}: {path}{first.message}{more}"
    raise InputError(f"(stdin): nothing was written, for {said}")


def _implied(run_id: str, stage: Assort, spools: Spools) -> dict[str, bytes]:
    """The artifacts that the stream lacks, from its layers. Without the feed's books nobody
    knows what is missing."""
    with closing(replay_layers(spools.read)) as replay:
        books = _books(stage, replay)
        derived = derive(
            run_id,
            replay.content(),
            books.capture,
            filtered=books.filtered,
            aside=books.aside,
        )
        return {name: document.line() for name, document in derived.documents().items()}


def _books(stage: Assort, replay: LayerReplay) -> FeedCounts:
    """The feed's books, which know of no fewer losses than the stream has."""
    if stage.books is None and not replay.events and not replay.has_gaps:
        return FeedCounts(RawCapture(feed="absent", reason=NO_EVENTS), None, None)
    books = stage.books
    if books is None:
        books = FeedCounts(RawCapture(feed="ebpf", dropped=replay.lost), None, None)
    capture = books.capture
    if capture.feed == "absent":
        return books
    doubts = list(_doubts(stage, books, replay))
    if not doubts:  # then what is here, and what was left out, is all that there was
        return FeedCounts(capture, books.filtered or {}, books.aside or {})
    dropped = max(capture.dropped, replay.lost - capture.unparsed)
    doubted = replace(capture, dropped=dropped, unknown_loss="; ".join(doubts))
    taint(doubted)
    return FeedCounts(doubted, books.filtered, books.aside)


def _doubts(stage: Assort, books: FeedCounts, replay: LayerReplay) -> Iterator[str]:
    """Say why nobody knows how much is missing of what the feed saw."""
    capture, lost = books.capture, replay.lost
    if capture.unknown_loss:
        yield capture.unknown_loss
    if stage.books is None:
        yield NO_BOOKS
    if stage.counts.rejected:
        were = "was" if stage.counts.rejected == 1 else "were"
        yield f"{number(stage.counts.rejected, 'line')} of the stream {were} rejected"
    counted = capture.dropped + capture.unparsed
    if lost != counted:
        yield f"the books count {number(counted, 'lost event')}, and the gaps {lost}"
    if replay.missing_details:
        yield f"the details of {number(replay.missing_details, 'event')} are not in the stream"
    seen = sum(capture.scopes.values())
    left_out = sum((books.filtered or {}).values()) + sum((books.aside or {}).values())
    if stage.books is not None and seen != replay.events + left_out:
        what = f"{replay.events} are in the stream and {left_out} are known to be left out"
        yield f"the books count {number(seen, 'event')}, of which {what}"


def _agreed(stage: Assort, run_id: str | None) -> str:
    """Raises InputError where the records are of several runs, or nobody says of which."""
    found = dict(stage.run_ids)
    if run_id is not None:
        found.pop(run_id, None)
        for other, place in found.items():
            raise InputError(f"{place}: of the run {other!r}, not of {run_id!r}")
        return run_id
    if not found:
        raise InputError("(stdin): no usable record names its run: name it with --run-id")
    (first, place), *others = found.items()
    for other, where in others:
        raise InputError(f"{where}: of the run {other!r}, but {place} is of {first!r}")
    return check_run_id(first, place)
