"""One HTML page of what modes let through: it needs no network, and shows what records say as text
alone.

The map is in the page as a table, so that it can be read and printed without scripts. The records
are in it as they came, deflated, and a script shows them. What a record says gets into the page
either through the template, which escapes it, or as base64.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, groupby, product
from operator import attrgetter
from pathlib import Path
from typing import Any

from stream.boundary.outcomes import (
    CHANGES,
    LETS_THROUGH,
    LOUDEST,
    CapabilityRow,
    Changed,
    OutcomeSide,
    Tally,
    Verdict,
    loudest,
    outcome_change,
)
from stream.errors import printable
from stream.records.modes import BASELINE

_FOLDER = Path(__file__).parent
MEANINGS: dict[Verdict, str] = {
    "open": "It got through: its effect was seen on the host, or, where none could be looked for,"
    " the probe reports success.",
    "partial": "The probe saw a part of it succeed.",
    "untold": "The probe could not try, or nobody knows what happened.",
    "not-measured": "There is no record of this probe in this mode.",
    "no-control": "It did not get through, but without the sandbox it does not either: this proves"
    " nothing.",
    "diverted": "The probe was told yes, and nothing of it reached the host.",
    "closed": "It did not get through, and without the sandbox it does. In the mode baseline: it"
    " was refused.",
}
CHANGE_WORDS: dict[Changed, str] = {
    "opened": "opened",
    "unmeasured": "no longer measured",
    "measured": "measured now",
    "closed": "closed",
}


def render_report(sides: Sequence[OutcomeSide]) -> bytes:
    """Render the page of one side, or of two: before and after."""
    import minijinja  # 11 ms, for this page alone

    style, script = ((_FOLDER / f"report.{kind}").read_text() for kind in ("css", "js"))
    environment = minijinja.Environment(
        templates={"report": (_FOLDER / "report.html.j2").read_text()},
        auto_escape_callback=lambda _: True,
        undefined_behavior="strict",
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page: str = environment.render_template(
        "report",
        style=style,
        script=script,
        style_digest=_csp_digest(style),
        script_digest=_csp_digest(script),
        **_OutcomeMap(sides).view(),
    )
    return page.encode()


def _csp_digest(text: str) -> str:
    """Return the digest by which a Content-Security-Policy allows one inline element."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


class _OutcomeMap:
    """The cells of all sides by the same rows and modes."""

    def __init__(self, sides: Sequence[OutcomeSide]) -> None:
        self.sides = sides
        known = [side.table.modes for side in sides]
        names = dict.fromkeys(chain.from_iterable(known))
        self.modes = sorted(names, key=lambda mode: mode != BASELINE)
        self._columns = {mode: index for index, mode in enumerate(self.modes)}
        self._compared = set[str].intersection(*map(set, known))
        self.capabilities = _merged_rows([side.table.capabilities for side in sides])
        places = ((row.id, probe) for row in self.capabilities for probe in row.probes)
        self._rows = {place: index for index, place in enumerate(places)}
        self._changes = dict(self._find_changes())

    def view(self) -> dict[str, Any]:
        """Return all that the template shows."""
        changes = self._change_views()
        return {
            "sides": [self._side_view(index) for index in range(len(self.sides))],
            "modes": [self._mode_view(mode) for mode in self.modes],
            "groups": [*self._groups()],
            "one_sided": [
                {"side": printable(side.name), "modes": [*map(printable, modes)]}
                for side in self.sides
                if (modes := [mode for mode in side.table.modes if mode not in self._compared])
            ],
            "changes": [
                {
                    "kind": kind,
                    "word": CHANGE_WORDS[kind],
                    "cells": [cell for cell in changes if cell["change"] == kind],
                }
                for kind in CHANGES
            ],
            "outcomes": [
                {"name": name, "word": _word(name), "meaning": MEANINGS[name]} for name in LOUDEST
            ],
        }

    def _side_view(self, index: int) -> dict[str, Any]:
        """Return where a side comes from, and its records, deflated."""
        side = self.sides[index]
        lines = b"\n".join(
            b"%d %d %s %s"
            % (
                self._rows[record.capability, record.probe],
                self._columns[record.mode],
                record.outcome.encode(),
                record.line,
            )
            for record in side.records
        )
        return {
            "name": printable(side.name),
            "records": side.table.records,
            "sha256": side.sha256,
            "remarks": side.remarks,
            "data": base64.b64encode(zlib.compress(lines)).decode(),
        }

    def _mode_view(self, mode: str) -> dict[str, Any]:
        """Return the setups of a mode, and how often each outcome is there."""
        tallies = [
            sum((side.table.tally(row, mode) for row in self.capabilities), Counter[Verdict]())
            for side in self.sides
        ]
        setups = dict.fromkeys(one for side in self.sides for one in side.setups.get(mode, ()))
        return {
            "name": printable(mode),
            "is_control": mode == BASELINE,
            "setups": [
                {
                    name: None if value is None else printable(value)
                    for name, value in setup._asdict().items()
                }
                for setup in setups
            ],
            "counts": [
                {"name": name, "counts": list(dict.fromkeys(tally[name] for tally in tallies))}
                for name in LOUDEST
            ],
        }

    def _groups(self) -> Iterator[dict[str, Any]]:
        """Yield the capabilities by category."""
        for category, rows in groupby(self.capabilities, attrgetter("category")):
            yield {
                "category": printable(category),
                "capabilities": [self._capability_view(row) for row in rows],
            }

    def _capability_view(self, row: CapabilityRow) -> dict[str, Any]:
        """Return a capability with its cells and its probes."""
        probes = [
            {
                "id": printable(probe),
                "row": self._rows[row.id, probe],
                "cells": [self._cell(CapabilityRow(row.id, "", (probe,)), m) for m in self.modes],
            }
            for probe in row.probes
        ]
        cells = [self._cell(row, mode) for mode in self.modes]
        return {
            "id": printable(row.id),
            "rows": " ".join(str(probe["row"]) for probe in probes),
            "cells": cells,
            "probes": probes,
            "differs": len(probes) > 1 and any(cell["is_mixed"] for cell in cells),
        }

    def _cell(self, row: CapabilityRow, mode: str) -> dict[str, Any]:
        """Return a cell: its loudest outcome, that of the side before, and the loudest change."""
        tallies = [side.table.tally(row, mode) for side in self.sides]
        before, after = loudest(tallies[0]), loudest(tallies[-1])
        changes = Counter(self._changes.get((row.id, probe, mode)) for probe in row.probes)
        change = next((one for one in CHANGES if changes[one]), None)
        return {
            "outcome": after,
            "word": _word(after),
            "count": _count(tallies[-1]),
            "before": _word(before) if before != after else "",
            "change": change or "",
            "change_word": f"{changes[change]} {CHANGE_WORDS[change]}" if change else "",
            "is_mixed": any(len(tally) > 1 for tally in tallies),
            "is_control": mode == BASELINE,
        }

    def _find_changes(self) -> Iterator[tuple[tuple[str, str, str], Changed]]:
        """Yield the cells that changed, of the modes that all sides have."""
        for row in self.capabilities:
            for probe, mode in product(row.probes, self.modes):
                place = row.id, probe, mode
                before, after = self._tallies(*place)
                change = outcome_change(before, after, LETS_THROUGH)
                if change and mode in self._compared:
                    yield place, change

    def _tallies(self, capability: str, probe: str, mode: str) -> tuple[Tally, Tally]:
        """Return what a cell came to before and after: the same, where there is one side."""
        before, after = self.sides[0].table, self.sides[-1].table
        place = capability, probe, mode
        return before.probe_tally(*place), after.probe_tally(*place)

    def _change_views(self) -> list[dict[str, Any]]:
        """Return the cells that changed, the loudest end first."""
        cells = []
        for (capability, probe, mode), change in self._changes.items():
            before, after = map(loudest, self._tallies(capability, probe, mode))
            cells.append(
                {
                    "change": change,
                    "capability": printable(capability),
                    "probe": printable(probe),
                    "row": self._rows[capability, probe],
                    "mode": self._columns[mode],
                    "mode_name": printable(mode),
                    "before": before,
                    "after": after,
                }
            )
        return sorted(cells, key=lambda cell: LOUDEST.index(cell["after"]))


def _merged_rows(sides: Sequence[Sequence[CapabilityRow]]) -> list[CapabilityRow]:
    """Return the capabilities of all sides, each once, with the probes of all sides."""
    rows: dict[str, CapabilityRow] = {}
    for row in (row for side in sides for row in side):
        known = rows.get(row.id, row)
        probes = tuple(sorted({*known.probes, *row.probes}))
        rows[row.id] = CapabilityRow(row.id, known.category, probes)
    return sorted(rows.values(), key=lambda row: (row.category, row.id))


def _word(verdict: Verdict) -> str:
    return verdict.replace("-", " ")


def _count(tally: Tally) -> str:
    """Return how many records came to the loudest outcome, where they differ."""
    return f"{tally[loudest(tally)]} of {sum(tally.values())}" if len(tally) > 1 else ""
