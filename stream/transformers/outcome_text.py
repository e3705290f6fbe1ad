"""listen --matrix: what each mode lets through, as one table that reads without colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from stream.boundary.descriptors import Descriptor
from stream.boundary.outcomes import OutcomeTable, Tally, Verdict, loudest
from stream.errors import number, shorten_text
from stream.pipeline import Batch, batches_by_kind
from stream.records.control import LINES, Control, kind_of_item
from stream.transformers.boundary_lines import BoundaryReader

WIDTH = 80
_LONGEST_LABEL = 32  #: a longer one has a line of its own
_LONGEST_NAME = 200

_WORDS: dict[Verdict, str] = {
    "open": "open",
    "partial": "part",
    "untold": "?",
    "not-measured": "-",
    "no-control": "n/c",
    "diverted": "div",
    "closed": "closed",
}
_COLOURS: dict[Verdict, int] = {"open": 31, "partial": 35, "diverted": 36, "closed": 32}
_UNKNOWN = 33
LEGEND = (
    "open    it got through               div  diverted: the probe was told yes, but",
    "part    some of it got through            nothing of it reached the host",
    "closed  it did not get through       ?    untold: the probe could not try",
    "n/c     no control: without the      -    not measured: there is no record",
    "        sandbox it does not either",
    "open 2  two of several records; the others got less far, or tell less",
)


class OutcomeText:
    """Lines in; at the end one table of what each mode lets through, as text."""

    name = "listen"
    kinds = (LINES,)

    def __init__(self, descriptor: Descriptor, *, width: int = WIDTH, colour: bool = False) -> None:
        self.table = OutcomeTable()
        self._reader = BoundaryReader(self.name, descriptor)
        self.counts = self._reader.counts
        self._width = width
        self._colour = colour

    def feed(self, batch: Batch[bytes], /) -> list[Batch[Any]]:
        """Add the records of a batch to the table."""
        bad: list[Control] = []
        for record, _ in self._reader.read_records(batch.items, bad):
            self.table.add(record)
        return batches_by_kind(bad, kind_of_item)

    def finish(self) -> list[Batch[bytes]]:
        """Give the table, its legend, and what else came."""
        table = self.table
        lines = ["; ".join([_summary(table), *self._reader.remarks()])]
        if table.records:
            shown = table_lines(table, self._width, colour=self._colour)
            lines = [*shown, "", *LEGEND, "", *lines]
        return [Batch(LINES, ["\n".join(lines).encode()])]


def _summary(table: OutcomeTable) -> str:
    """Say how much the table shows."""
    rows, modes = table.capabilities, table.modes
    probes = sum(len(row.probes) for row in rows)
    missing = sum(table.tally(row, mode)["not-measured"] for row in rows for mode in modes)
    return (
        f"{number(table.records, 'record')} of {number(probes, 'probe')} in"
        f" {number(len(modes), 'mode')}"
        + (f"; {number(missing, 'cell')} not measured" if missing else "")
        + (f"; {number(table.left_out, 'record')} found no room" if table.left_out else "")
    )


def table_lines(table: OutcomeTable, width: int = WIDTH, *, colour: bool = False) -> Iterator[str]:
    """Yield the lines of the table: a block for as many modes as the width has room for."""
    modes = table.modes
    rows = [*_rows(table)]
    label_width = min(_LONGEST_LABEL, max(len(label) for label, _ in rows))
    step = 1 + max(len(_cell_text(tally)) for _, tallies in rows for tally in tallies)
    fitting = max(1, (width - label_width) // step)
    for first in range(0, len(modes), fitting):
        if first:
            yield ""
        yield from _header_lines(modes[first : first + fitting], label_width, step)
        for label, tallies in rows:
            if len(label) > label_width:
                yield label
            cells = [_cell(one, step, colour) for one in tallies[first : first + fitting]]
            shown = label if len(label) <= label_width else ""
            yield f"{shown:{label_width}}{''.join(cells)}".rstrip()


def _rows(table: OutcomeTable) -> Iterator[tuple[str, list[Tally]]]:
    """Yield each capability with its cells, and below it its probes where they differ."""
    modes = table.modes
    for row in table.capabilities:
        tallies = [table.tally(row, mode) for mode in modes]
        yield shorten_text(row.id, _LONGEST_NAME), tallies
        if len(row.probes) > 1 and any(len(tally) > 1 for tally in tallies):
            for probe in row.probes:
                cells = [table.probe_tally(row.id, probe, mode) for mode in modes]
                yield shorten_text(f"  {probe}", _LONGEST_NAME), cells


def _header_lines(modes: Sequence[str], label_width: int, step: int) -> Iterator[str]:
    """Yield a line for each mode, the last one first: its name, and the lines down to the cells of
    those that follow."""
    places = [label_width + 1 + index * step for index in range(len(modes))]
    for index in reversed(range(len(modes))):
        name = shorten_text(modes[index], places[index] - 1)
        bars = "".join(f"{'|':>{step}}" for _ in places[index + 1 :])
        yield f"{name:>{places[index] - 1}} |{bars}"


def _cell_text(tally: Tally) -> str:
    """Return the word of the loudest outcome, with its count where others differ."""
    verdict = loudest(tally)
    return f"{_WORDS[verdict]} {tally[verdict]}" if len(tally) > 1 else _WORDS[verdict]


def _cell(tally: Tally, step: int, colour: bool) -> str:
    text = f" {_cell_text(tally):{step - 1}}"
    if not colour:
        return text
    return f"\x1b[{_COLOURS.get(loudest(tally), _UNKNOWN)}m{text}\x1b[0m"
