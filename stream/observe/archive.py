"""The composition of `stream archive` and `observe --archive`: what goes into the one sink.

A run has its files on the disk: the sink takes them by name. A stream is sorted into files, and
what it lacks is derived from them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from anyio import from_thread, to_thread
from msgspec import UNSET, Struct, field

from stream.archive.manifest import archived_names_of, missing_files_of, run_id_of
from stream.archive.writer import ENTRIES, ArchiveSize, Entry, entries_of_run
from stream.boundary.descriptors import find_boundaries
from stream.errors import InputError, UnfinishedError, UsageError, number
from stream.files.append import RecordedFile
from stream.observe.artifacts import files_of_stream, files_without_feed
from stream.pipeline import Batch, Counts, Pipeline, Sink
from stream.records.artifacts import HEALTH_FILE
from stream.records.run import DESCRIPTOR_FILE, check_run_id
from stream.sinks.archive import Archive
from stream.sources.ndjson import STDIN, NdjsonSource
from stream.transformers.route import Route
from stream.verify.report import VerifyReport
from stream.verify.run_folder import RunFolder
from stream.verify.session import verify


class Archived(Struct):
    """What was packed, and, of a stream, what became of its records."""

    written: ArchiveSize
    counts: Counts | None = None  #: of a stream
    losses: list[str] = field(default_factory=list)  #: of a run, as its recorder reported them


async def archive_run(
    folder: Path,
    target: Path,
    *,
    recorded: Mapping[str, RecordedFile] | None = None,
    force: bool = False,
) -> Archived:
    """Archive the folder of a run. Raise StreamError.

    `recorded` says what was written to its files, where that is known: then they are read once, to
    be packed, and must still be the same.
    """
    run = RunFolder(folder)

    def find_entries() -> tuple[str, list[Entry], dict[str, bytes]]:
        """Check the run, and return its id, its files and those to be made for the archive."""
        run.require_run_folder()
        _check_archive_outside_run(folder, target)
        _check_run_finished(run)
        run_id = run_id_of(folder)
        missing = (
            {} if HEALTH_FILE in archived_names_of(folder) else files_without_feed(run_id, run)
        )
        return run_id, entries_of_run(folder, recorded or {}), missing

    run_id, entries, missing = await to_thread.run_sync(find_entries)
    sink = Archive(target, lambda _: (run_id, missing), force=force)
    async with sink.open() as write:
        await write(Batch(ENTRIES, entries))
    return Archived(sink.written, losses=run.recorded_losses)


async def archive_stream(
    target: Path,
    *sinks: Sink,
    run_id: str | None = None,
    boundary: str | None = None,
    force: bool = False,
) -> Archived:
    """Archive the records that come on stdin; rejects go to the other sinks. Raise StreamError."""
    if run_id is not None:
        check_run_id(run_id, "--run-id")
    boundaries = find_boundaries(boundary)
    route = Route(boundaries)

    def complete(archive: Archive) -> tuple[str, dict[str, bytes]]:
        """Return the run, and the files that the stream lacks."""
        if not route.counts.passed + route.counts.rejected:
            raise InputError("(stdin): nothing came: there is nothing to archive")
        run = _run_of_records(route.run_ids, run_id)
        missing = files_of_stream(run, archive.read, route.feed_counts, route.counts.rejected)
        if carried := boundaries.carried_descriptor(route.boundary_keys):
            missing[DESCRIPTOR_FILE] = carried
        return run, missing

    def check(made: Path) -> None:
        """Verify the archive before it gets its name."""
        report = verify(made, boundary=boundary, checkpoint=from_thread.check_cancelled)
        _check_stream_archive_verified(report, route.counts.rejected)

    sink = Archive(target, complete, check=check, force=force)
    await Pipeline((NdjsonSource(STDIN),)).through(route).into(sink, *sinks)
    return Archived(sink.written, route.counts)


def _check_archive_outside_run(folder: Path, target: Path) -> None:
    """Raise UsageError where the archive would lie in the run: the run's manifest does not list
    it."""
    archive = Path(os.path.realpath(target))
    if archive.is_relative_to(os.path.realpath(folder)):
        raise UsageError(f"{target}: it would lie inside of the run that it is made of")


def _check_run_finished(run: RunFolder) -> None:
    """Raise UnfinishedError where the recorder did not come to its end: nobody could verify it."""
    if missing_files_of([*archived_names_of(run.root)]) or not run.event_statements.is_finished:
        raise UnfinishedError(f"{run.root}: it was not recorded to its end: see `stream verify`")


def _check_stream_archive_verified(report: VerifyReport, rejected: int) -> None:
    """Raise InputError where the files of a stream contradict each other, as they may without
    lines that were rejected."""
    first = next((one for one in report.findings if one.severity == "error"), None)
    if first is None:
        return
    location = str(first.source).removeprefix(f"{report.target}/")
    line = "" if first.line is UNSET else f":{first.line}"
    path = "" if first.path is UNSET else f"{first.path}: "
    more = f"; and {number(report.errors - 1, 'other finding')}" if report.errors > 1 else ""
    without = f" without {number(rejected, 'rejected line')}" if rejected else ""
    why = f"it would not verify{without}: {location}{line}: {path}{first.message}{more}"
    raise InputError(f"(stdin): nothing was written, for {why}")


def _run_of_records(locations: Mapping[str, str], run_id: str | None) -> str:
    """Return the run that the records are of. `locations`: where each id that they name stood.

    Raise InputError where they are of several runs, or nobody says of which.
    """
    if run_id is not None:
        for other, location in locations.items():
            if other != run_id:
                raise InputError(f"{location}: of the run {other!r}, not of {run_id!r}")
        return run_id
    if not locations:
        raise InputError("(stdin): no usable record names its run: name it with --run-id")
    (first, location), *others = locations.items()
    for other, where in others:
        raise InputError(f"{where}: of the run {other!r}, but {location} is of {first!r}")
    return check_run_id(first, location)
