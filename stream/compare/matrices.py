"""Compare two matrices cell by cell: what opened, what closed, what is no longer measured."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct

from stream.codec import DECODE_ERRORS, explain, is_blank
from stream.errors import InputError, number, reporting
from stream.records.boundary import BoundaryDiff, CellChange, CellOutcome, CellSide, Status

WORDS = ("opened", "closed", "unmeasured", "measured", "any")
_LISTS = WORDS[:-1]
_MORE = {"denied": 0, "partial": 1, "success": 2}  #: how much was possible
_MOST_LINE = 16 << 20
_ABSENT = CellSide("absent")
Key = tuple[str, str]  #: probe, mode


class _ComparedProbe(Struct):
    id: str
    version: str
    primary_capability_id: str


class _ComparedRun(Struct):
    mode: str


class _ComparedResult(Struct):
    observed_result: Status
    errno: str | None = None
    message: str | None = None


class _ComparedRecord(Struct):
    """The fields of a boundary object that every pattern has."""

    schema_version: str
    probe: _ComparedProbe
    run: _ComparedRun
    result: _ComparedResult


class _CellRecords(Struct):
    capability: str
    versions: set[str]
    side: CellSide


_decode = msgspec.json.Decoder(_ComparedRecord).decode


def diff_matrices(base: str, head: str) -> BoundaryDiff:
    """Compare the records of two files, or raise InputError for a line that is not one."""
    sides = (_cells_of(base), _cells_of(head))
    found = BoundaryDiff(base, head, [], [], [], [], 0, [])
    for key in sorted({*sides[0], *sides[1]}):
        before, after = sides[0].get(key), sides[1].get(key)
        one = after or before
        assert one is not None
        change = CellChange(
            *key,
            one.capability,
            _ABSENT if before is None else before.side,
            _ABSENT if after is None else after.side,
        )
        kind = _kind(change.base.outcome, change.head.outcome)
        if kind is None:
            found.unchanged += 1
        else:
            getattr(found, kind).append(change)
        if before is not None and after is not None and before.versions != after.versions:
            versions = " and ".join(", ".join(sorted(one.versions)) for one in (before, after))
            found.notes.append(f"{key[0]} ({key[1]}): versions {versions} of the probe")
    return found


def reason(word: str, found: BoundaryDiff) -> str:
    """Return why a word of --fail-on applies, or an empty string."""
    words = _LISTS if word == "any" else (word,)
    counts = ((name, len(getattr(found, name))) for name in words)
    return ", ".join(f"{number(count, 'cell')} {name}" for name, count in counts if count)


def _kind(base: CellOutcome, head: CellOutcome) -> str | None:
    if base in _MORE and head in _MORE:
        if base == head:
            return None
        return "opened" if _MORE[head] > _MORE[base] else "closed"
    if base in _MORE:
        return "unmeasured"
    return "measured" if head in _MORE else None


def _cells_of(path: str) -> dict[Key, _CellRecords]:
    cells: dict[Key, _CellRecords] = {}
    for record in _records(path):
        result = record.result
        side = CellSide(result.observed_result, result.errno, result.message)
        key = (record.probe.id, record.run.mode)
        cell = cells.get(key)
        if cell is None:
            cells[key] = _CellRecords(
                record.probe.primary_capability_id, {record.probe.version}, side
            )
            continue
        cell.versions.add(record.probe.version)
        cell.side = side if cell.side.outcome == side.outcome else CellSide("mixed")
    if not cells:
        raise InputError(f"{path}: it has no boundary objects")
    return cells


def _records(path: str) -> Iterator[_ComparedRecord]:
    with reporting(path), Path(path).open("rb") as file:
        for index, line in enumerate(iter(partial(file.readline, _MOST_LINE), b""), 1):
            if is_blank(line):
                continue
            try:
                yield _decode(line)
            except DECODE_ERRORS as error:
                place = f"{path}:{index}"
                raise InputError(f"{place}: {explain(error)}: not a boundary object") from None
