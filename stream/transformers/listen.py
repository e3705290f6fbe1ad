"""listen: boundary objects as text for people, record by record, and a summary at the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec

from stream.boundary.descriptors import Descriptor
from stream.errors import number, printable
from stream.pipeline import Batch, batches_by_kind
from stream.records.boundary import STATUSES, Boundary
from stream.records.control import LINES, Control, kind_of_item
from stream.records.modes import ModeBoundary
from stream.transformers.boundary_lines import OTHERS, BoundaryReader

SNIPPET_LINES = 3
SNIPPET_WIDTH = 160
MOST_PROBES = 100_000  #: ids that are told apart; memory must not grow with the input
MOST_CATEGORIES = 1000  #: and modes

_COLOURS = {"success": "32", "denied": "33", "partial": "36", "error": "31"}


class Listen:
    """Lines in; one piece of text for each batch out, as bytes."""

    name = "listen"
    kinds = (LINES,)

    def __init__(
        self, descriptor: Descriptor, *, as_json: bool = False, colour: bool = False
    ) -> None:
        self._reader = BoundaryReader(self.name, descriptor)
        self.counts = self._reader.counts
        self.results: Counter[str] = Counter()
        self.modes: Counter[str] = Counter()
        self.probes: set[str] = set()
        self.categories: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._as_json = as_json
        self._labels: dict[str, str] = {
            status: f"\x1b[{_COLOURS[status]}m{status:<8}\x1b[0m" if colour else f"{status:<8}"
            for status in STATUSES
        }

    def feed(self, given: Batch[bytes], /) -> list[Batch[Any]]:
        """Describe the records of a batch as one text; other records pass or are counted."""
        text: list[str] = []
        bad: list[Control] = []
        tally: Counter[tuple[str, str, str]] = Counter()
        for record, _ in self._reader.read_records(given.items, bad):
            result = record.result.observed_result
            if len(self.probes) < MOST_PROBES:
                self.probes.add(record.probe.id)
            tally[result, record.run.mode, record.capability_context.primary.category] += 1
            if not self._as_json:
                text.append(self._describe_boundary(record, result))
        for (status, mode, category), count in tally.items():
            self.results[status] += count
            if mode not in self.modes and len(self.modes) >= MOST_CATEGORIES:
                mode = OTHERS
            self.modes[mode] += count
            if category not in self.categories and len(self.categories) >= MOST_CATEGORIES:
                category = OTHERS
            self.categories[category][status] += count
        return batches_by_kind([*bad, "\n".join(text).encode()] if text else bad, kind_of_item)

    def finish(self) -> list[Batch[bytes]]:
        """Give the summary, as a table or as JSON."""
        if self._as_json:
            return [Batch(LINES, [msgspec.json.encode(self.summary(), order="sorted")])]
        return [Batch(LINES, ["\n".join(self._summary_table()).encode()])]

    def summary(self) -> dict[str, Any]:
        """Sum up what came by result, mode and category."""
        return {
            "records": self.counts.passed,
            "probes": len(self.probes),
            "results": {status: self.results[status] for status in STATUSES},
            "modes": dict(self.modes),
            "categories": {name: dict(counts) for name, counts in self.categories.items()},
            "other_records": dict(self._reader.others),
            "lost": self._reader.lost,
            "rejected": self.counts.rejected,
        }

    def _describe_boundary(self, record: Boundary, result: str) -> str:
        """Describe a boundary object to people: its result, its probe and its capability."""
        outcome, operation = record.result, record.operation
        capability = record.capability_context.primary
        head = f"{record.probe.id} ({record.run.mode})  {operation.verb} {operation.target}"
        tail = f"{capability.id} ({capability.category}, {capability.layer})"
        if outcome.errno:
            tail = f"{tail}  {outcome.errno}"
        if outcome.message:
            tail = f"{tail}  {outcome.message}"
        if not head.isprintable():
            head = printable(head)
        if not tail.isprintable():
            tail = printable(tail)
        text = f"{self._labels.get(result) or printable(result)} {head}\n         {tail}"
        if isinstance(record, ModeBoundary):
            for line in _outside_lines(record):
                text += f"\n         {printable(line)}"
        if result != "success":
            for snippet in (record.payload.stderr_snippet, record.payload.stdout_snippet):
                if snippet:
                    text += _quote_snippet(snippet)
        return text

    def _summary_table(self) -> list[str]:
        """Make the table of the summary: how many boundary objects had which result."""
        width = max(len(printable(name)) for name in (*self.categories, "all"))
        head = "".join(f"{status:>9}" for status in STATUSES)
        rows = [f"{'':{width}}{head}"]
        for name, counts in [*sorted(self.categories.items()), ("all", self.results)]:
            cells = "".join(f"{counts[status]:>9}" for status in STATUSES)
            rows.append(f"{printable(name):{width}}{cells}")
        modes = ", ".join(
            f"{printable(mode)} {count}" for mode, count in sorted(self.modes.items())
        )
        many = "at least " if len(self.probes) == MOST_PROBES else ""
        count = number(self.counts.passed, "record")
        rows.append(
            f"{count} of {many}{number(len(self.probes), 'probe')}"
            + (f"; modes: {modes}" if modes else "")
            + "".join(f"; {remark}" for remark in self._reader.remarks())
        )
        return ["", *rows] if self.counts.passed else rows[-1:]


def _outside_lines(record: ModeBoundary) -> Iterator[str]:
    """Yield what was seen from outside, where that says something: the control, the effect, and
    what the kernel saw."""
    control, effect, kernel = record.control, record.effect, record.corroboration
    if control.state == "succeeded":
        yield "control  without the sandbox it gets through"
    elif control.state == "no-control":
        result = " ".join(filter(None, (control.observed_result, control.errno)))
        yield f"control  without the sandbox not either: {result or 'there is no record of it'}"
    others = ", ".join(one for one in effect.seen if one != effect.expected)
    also = f"; seen: {others}" if others else ""
    if effect.expected and effect.state == "not-checked":
        yield f"effect   {effect.expected} was not looked for{also}"
    elif effect.expected:
        state = "seen on the host" if effect.state == "seen" else "not to be seen on the host"
        claim = "" if effect.claimed == record.result.observed_result else effect.claimed
        yield f"effect   {effect.expected} {state}{claim and f'; the probe reports {claim}'}{also}"
    elif others:
        yield f"effect   none was expected{also}"
    if kernel.state != "not-observed" or kernel.closed_by or kernel.detail:
        closed = f", closed by {kernel.closed_by}" if kernel.closed_by else ""
        yield f"kernel   {kernel.state}{closed}" + (f": {kernel.detail}" if kernel.detail else "")


def _quote_snippet(snippet: str) -> str:
    """Quote the first lines of a probe's output below the text of its boundary object."""
    lines = snippet.splitlines()
    quoted = [_shorten_snippet_line(line) for line in lines[:SNIPPET_LINES]]
    if len(lines) > SNIPPET_LINES:
        quoted.append("…")
    return "".join(f"\n         | {line}" for line in quoted)


def _shorten_snippet_line(line: str) -> str:
    """Shorten a line of a probe's output in the middle: its place comes first, the reason last."""
    if len(line) > SNIPPET_WIDTH:
        half = SNIPPET_WIDTH // 2
        line = f"{line[:half]}…{line[1 - half :]}"
    return printable(line)
