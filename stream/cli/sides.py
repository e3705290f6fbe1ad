"""The sides of a report: records of a matrix, or a lockfile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stream.cli.lock import is_lockfile, read_lockfile
from stream.cli.runner import problem_sink

if TYPE_CHECKING:
    from stream.boundary.outcomes import OutcomeSide
    from stream.pipeline import Counts


async def read_side(name: str) -> tuple[OutcomeSide, Counts]:
    """Read the records of one side, or a lockfile. Raise InputError for one that cannot be used."""
    if is_lockfile(name):
        return _locked_side(name)
    from stream.boundary.descriptors import mode_descriptor
    from stream.errors import InputError
    from stream.pipeline import Pipeline
    from stream.sources.ndjson import NdjsonSource
    from stream.transformers.kept_records import KeptRecords

    stage = KeptRecords(name, mode_descriptor())
    await Pipeline((NdjsonSource(name),)).through(stage).into(problem_sink(None))
    if not stage.counts.passed:
        raise InputError(f"{name}: it has no boundary objects")
    return stage.side(), stage.counts


def _locked_side(name: str) -> tuple[OutcomeSide, Counts]:
    """Read the outcomes of a lockfile as a side. Raise InputError for one that was edited."""
    from stream.compare.drift import side_of_lock
    from stream.errors import InputError
    from stream.pipeline import Counts

    locked = read_lockfile(name)
    if locked.faults:
        raise InputError(locked.faults[0])
    count = len(locked.lock.cells)
    return side_of_lock(locked, name), Counts(received=count, passed=count)
