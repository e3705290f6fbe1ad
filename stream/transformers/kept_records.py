"""report: keep the boundary objects of one side, each with its place in the table of outcomes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from stream.boundary.descriptors import Descriptor
from stream.boundary.outcomes import KeptRecord, ModeSetup, OutcomeSide, OutcomeTable
from stream.codec import OverlongLine, TornLine
from stream.errors import number
from stream.pipeline import Batch, batches_by_kind
from stream.records.boundary import Boundary
from stream.records.control import LINES, Control, kind_of_item
from stream.records.modes import ModeBoundary
from stream.transformers.boundary_lines import BoundaryReader

MOST_RECORDS = 100_000  #: that are kept: a page has to hold them
_MOST_SETUPS = 20  #: of a mode


class KeptRecords:
    """Lines in; nothing but problems out. What it kept is its side of a report."""

    name = "report"
    kinds = (LINES,)

    def __init__(self, name: str, descriptor: Descriptor) -> None:
        self._side = OutcomeSide(name, OutcomeTable())
        self._reader = BoundaryReader(self.name, descriptor)
        self.counts = self._reader.counts
        self._digest = hashlib.sha256()
        self._is_whole = True  #: no line was too long to be digested
        self._not_kept = 0

    def feed(self, batch: Batch[bytes], /) -> list[Batch[Any]]:
        """Keep the records of a batch."""
        bad: list[Control] = []
        self._digest_lines(batch.items)
        for record, line in self._reader.read_records(batch.items, bad):
            self._keep(record, line)
        return batches_by_kind(bad, kind_of_item)

    def finish(self) -> list[Batch[bytes]]:
        """Give nothing: the side is read off when the pipeline has ended."""
        return []

    def _keep(self, record: Boundary, line: bytes) -> None:
        """Keep a record, if there is room for it."""
        side = self._side
        outcome = side.table.add(record)
        if outcome is None or len(side.records) >= MOST_RECORDS:
            self._not_kept += 1
            return
        capability, mode = record.capability_context.primary.id, record.run.mode
        side.records.append(KeptRecord(capability, record.probe.id, mode, outcome, bytes(line)))
        setup, setups = _setup_of(record), side.setups.setdefault(mode, [])
        if setup not in setups and len(setups) < _MOST_SETUPS:
            setups.append(setup)

    def _digest_lines(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self._is_whole = self._is_whole and not isinstance(line, OverlongLine)
            self._digest.update(line if isinstance(line, TornLine) else line + b"\n")

    def side(self) -> OutcomeSide:
        """Return what was kept, with what was not."""
        side = self._side
        side.sha256 = self._digest.hexdigest() if self._is_whole else None
        lost = number(self._not_kept, "record")
        side.remarks = [
            *self._reader.remarks(),
            *([f"{lost} found no room in the page"] if self._not_kept else []),
        ]
        return side


def _setup_of(record: Boundary) -> ModeSetup:
    """Return the sandbox, user and system that a record names."""
    if isinstance(record, ModeBoundary):
        sandbox = record.sandbox
        return ModeSetup(
            sandbox.name,
            sandbox.version,
            sandbox.settings_sha256,
            record.run.user,
            record.stack.os,
        )
    return ModeSetup(None, None, None, None, record.stack.os)
