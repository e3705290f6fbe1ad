"""The composition behind `stream archive`: a run folder, or a mixed stream of records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from anyio import from_thread, to_thread
from msgspec import Struct

from stream.archive.assorting import Assort
from stream.archive.entries import Entry
from stream.archive.packing import archive_run, checked_run_id
from stream.archive.spools import Spools
from stream.archive.writing import Written, check_free, write_archive
from stream.errors import InputError
from stream.pipeline import Counts, Pipeline, Sink
from stream.records.runner import KERNEL_FILE, POLICY_FILE, RUNNER_FILE, SDK_FILE
from stream.runfolder import check_folder
from stream.sources.ndjson import STDIN, NdjsonSource

#: What a run or a stream lacks, made from what it has: by file.
FromRun = Callable[[Path], Mapping[str, bytes]]
FromStream = Callable[[str, Assort, Spools], Mapping[str, bytes]]
_EMPTY = (KERNEL_FILE, POLICY_FILE, SDK_FILE, RUNNER_FILE)


class Archived(Struct):
    written: Written
    counts: Counts | None = None  #: of a stream


def _nothing(*_: object) -> Mapping[str, bytes]:
    return {}


async def archive_folder(
    folder: Path, target: Path, *, force: bool = False, make: FromRun = _nothing
) -> Archived:
    """Raises StreamError."""

    def work() -> Written:
        check_folder(folder)
        missing = make(folder)
        return archive_run(
            folder, target, missing=missing, force=force, look=from_thread.check_cancelled
        )

    return Archived(await to_thread.run_sync(work))


async def archive_stream(
    target: Path,
    *sinks: Sink[Any],
    run_id: str | None = None,
    force: bool = False,
    make: FromStream = _nothing,
) -> Archived:
    """Of stdin. Raises StreamError."""
    check_free(target, force=force)
    stage, spools = Assort(), Spools(target)
    try:
        source = NdjsonSource(STDIN)
        await Pipeline[Any]((source,)).through(lambda: stage).into(spools, *sinks)
        agreed = _agreed(stage, run_id)

        def work() -> Written:
            missing = {**dict.fromkeys(_EMPTY, b""), **make(agreed, stage, spools)}
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


def _agreed(stage: Assort, run_id: str | None) -> str:
    """Raises InputError where the records are of several runs, or nobody says of which."""
    found = dict(stage.run_ids)
    if run_id is not None:
        found.pop(run_id, None)
        for other, place in found.items():
            raise InputError(f"{place}: of the run {other!r}, not of {run_id!r}")
        return checked_run_id(run_id, "--run-id")
    if not found:
        raise InputError("(stdin): no record names its run: --run-id does")
    (first, place), *others = found.items()
    for other, where in others:
        raise InputError(f"{where}: of the run {other!r}, but {place} is of {first!r}")
    return checked_run_id(first, place)
