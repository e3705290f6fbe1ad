"""Put the outcomes of many cells into one table: modes by capabilities and their probes. Pure.

Where several records share a place of the table, the loudest outcome decides. What is not known is
louder than what is known to be closed, since it may be open.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

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
MOST_CELLS = 100_000  #: probes times modes: neither memory nor time must grow with the input

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
        self._count = 0  #: of all probes
        self._cells: dict[tuple[str, str, str], Tally] = {}

    def add(self, record: Boundary) -> Outcome | None:
        """Count the outcome of a record in its cell; None: there is no room for another cell."""
        row, outcome = record.capability_context.primary, outcome_of_any(record)
        has_room = self.add_outcome(row.id, row.category, record.probe.id, record.run.mode, outcome)
        return outcome if has_room else None

    def add_outcome(
        self, capability: str, category: str, probe: str, mode: str, outcome: Outcome
    ) -> bool:
        """Count an outcome in its cell, if there is room for the cell."""
        key = (capability, probe, mode)
        cell = self._cells.get(key)
        if cell is None:
            modes = len(self._modes) + (mode not in self._modes)
            probes = self._count + (probe not in self._probes.get(capability, ()))
            if modes * probes > MOST_CELLS:
                self.left_out += 1
                return False
            cell = self._cells[key] = Counter()
            self._count = probes
            self._modes[mode] = None
            self._categories.setdefault(capability, category)
            self._probes[capability].add(probe)
        cell[outcome] += 1
        self.records += 1
        return True

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


class KeptRecord(NamedTuple):
    """A record with its place in the table."""

    capability: str
    probe: str
    mode: str
    outcome: Outcome
    line: bytes


class ModeSetup(NamedTuple):
    """The sandbox, user and system that records of a mode name."""

    sandbox: str | None
    version: str | None
    settings_sha256: str | None
    user: str | None
    os: str


class OutcomeSide(Struct):
    """One side of a report: what is known of its cells, and the records that say so."""

    name: str
    table: OutcomeTable
    records: list[KeptRecord] = []
    setups: dict[str, list[ModeSetup]] = {}  #: by mode
    sha256: str | None = None  #: of the input
    remarks: list[str] = []  #: what else came, and what is not in the records


#: From the loudest to the quietest.
Changed = Literal["opened", "unmeasured", "measured", "closed"]
CHANGES: tuple[Changed, ...] = ("opened", "unmeasured", "measured", "closed")
#: how much gets through, by outcome; the others tell nothing
LETS_THROUGH = {"closed": 0, "diverted": 1, "partial": 2, "open": 3}


def outcome_change(
    base: Collection[str], head: Collection[str], more: Mapping[str, int]
) -> Changed | None:
    """Return how a cell changed: by the outcomes in `head` that it did not have in `base`. `more`
    ranks the outcomes that tell something. None: it has no new one that tells anything."""
    new = {*head} - {*base}
    known = [more[outcome] for outcome in base if outcome in more]
    ranks = [more[outcome] for outcome in new if outcome in more]
    if ranks and known:
        return "opened" if max(ranks) > max(known) else "closed"
    if ranks:
        return "measured"
    return "unmeasured" if new and known else None
