"""Put the outcomes of many cells into one table: modes by capabilities and their probes. Pure.

Where several records share a place of the table, the loudest outcome decides. What is not known is
louder than what is known to be closed, since it may be open.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Literal

from msgspec import Struct

from stream.boundary.measured import Outcome, outcome_of
from stream.records.boundary import Boundary
from stream.records.modes import BASELINE, ModeBoundary

#: The outcome of a place in the table; `not-measured`: no record of that probe in that mode.
Verdict = Outcome | Literal["not-measured"]
LOUDEST: tuple[Verdict, ...] = (
    *("open", "partial", "untold", "not-measured", "no-control", "diverted", "closed"),
)
Tally = Counter[Verdict]
MOST_CELLS = 100_000  #: memory must not grow with the input

_REPORTED: dict[str, Outcome] = {"success": "open", "partial": "partial", "denied": "closed"}


def outcome_of_any(record: Boundary) -> Outcome:
    """Return what a cell came to; of a record without an outside view, by its report alone."""
    if isinstance(record, ModeBoundary):
        return outcome_of(record)
    return _REPORTED.get(record.result.observed_result, "untold")


def loudest(tally: Tally) -> Verdict:
    """Return the outcome that decides."""
    return next((one for one in LOUDEST if tally[one]), "not-measured")


class CapabilityRow(Struct, frozen=True):
    """A capability of the table, with the probes that any mode has a record of."""

    id: str
    category: str
    probes: tuple[str, ...]


class OutcomeTable:
    """Counts the outcomes of records by capability, probe and mode."""

    def __init__(self) -> None:
        self.records = 0
        self.left_out = 0  #: records of cells for which there was no room
        self._modes: dict[str, None] = {}
        self._categories: dict[str, str] = {}
        self._probes: defaultdict[str, set[str]] = defaultdict(set)
        self._cells: dict[tuple[str, str, str], Tally] = {}

    def add(self, record: Boundary) -> None:
        """Count the outcome of a record in its cell."""
        primary, mode, probe = record.capability_context.primary, record.run.mode, record.probe.id
        key = (primary.id, probe, mode)
        cell = self._cells.get(key)
        if cell is None:
            if len(self._cells) >= MOST_CELLS:
                self.left_out += 1
                return
            cell = self._cells[key] = Counter()
            self._modes[mode] = None
            self._categories.setdefault(primary.id, primary.category)
            self._probes[primary.id].add(probe)
        cell[outcome_of_any(record)] += 1
        self.records += 1

    @property
    def modes(self) -> list[str]:
        """List the modes as they came, but the one without a sandbox first."""
        return sorted(self._modes, key=lambda mode: mode != BASELINE)

    @property
    def capabilities(self) -> list[CapabilityRow]:
        """List the capabilities, by category and id."""
        rows = [
            CapabilityRow(name, category, tuple(sorted(self._probes[name])))
            for name, category in self._categories.items()
        ]
        return sorted(rows, key=lambda row: (row.category, row.id))

    def probe_tally(self, capability: str, probe: str, mode: str) -> Tally:
        """Count the outcomes of a probe in a mode, by record."""
        return self._cells.get((capability, probe, mode)) or Counter({"not-measured": 1})

    def tally(self, row: CapabilityRow, mode: str) -> Tally:
        """Count the outcomes of all probes of a capability in a mode, by record."""
        return sum((self.probe_tally(row.id, probe, mode) for probe in row.probes), Counter())
