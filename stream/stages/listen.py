"""listen: boundary objects as text for people, record by record, and a summary at the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import msgspec

from stream.codec import DECODE_ERRORS, contract_of, explain, is_blank, reject
from stream.errors import visible
from stream.pipeline import Batch, Counts
from stream.records.boundary import PATTERN_VERSION, STATUSES, Boundary, Status, decode_boundary
from stream.records.control import Control

SNIPPET_LINES = 3
SNIPPET_WIDTH = 160
MOST_PROBES = 100_000  #: ids that are told apart; memory must not grow with the input
MOST_CATEGORIES = 1000
OTHERS = "(others)"

_COLOURS = {"success": "32", "denied": "33", "partial": "36", "error": "31"}


class Listen:
    """Lines in; one piece of text for each batch out, as bytes."""

    name = "listen"

    def __init__(self, *, as_json: bool = False, colour: bool = False) -> None:
        self.counts = Counts()
        self.records = 0
        self.others = 0
        self.results: Counter[str] = Counter()
        self.modes: Counter[str] = Counter()
        self.probes: set[str] = set()
        self.categories: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._as_json = as_json
        self._labels = {
            status: f"\x1b[{_COLOURS[status]}m{status:<8}\x1b[0m" if colour else f"{status:<8}"
            for status in STATUSES
        }

    def feed(self, batch: Batch[bytes | Control], /) -> Batch[bytes | Control]:
        self.counts.received += len(batch)
        text: list[str] = []
        bad: list[Control] = []
        tally: Counter[tuple[str, str, str]] = Counter()
        passed = 0
        for index, line in enumerate(batch):
            try:
                record = decode_boundary(line)  # type: ignore[arg-type]
            except (*DECODE_ERRORS, TypeError) as error:
                self._other(batch, index, error, bad)
                continue
            passed += 1
            result = record.result.observed_result
            self.probes.add(record.probe.id)
            tally[result, record.run.mode, record.capability_context.primary.category] += 1
            if not self._as_json:
                text.append(self._describe(record, result))
        self.counts.passed += passed
        self.records += passed
        for (status, mode, category), count in tally.items():
            self.results[status] += count
            self.modes[mode] += count
            if category not in self.categories and len(self.categories) >= MOST_CATEGORIES:
                category = OTHERS
            self.categories[category][status] += count
        if len(self.probes) > MOST_PROBES:
            self.probes = set(sorted(self.probes)[:MOST_PROBES])
        return [*bad, "\n".join(text).encode()] if text else bad

    def finish(self) -> Batch[bytes | Control]:
        if self._as_json:
            return [msgspec.json.encode(self.summary(), order="sorted")]
        return ["\n".join(self._table()).encode()]

    def summary(self) -> dict[str, Any]:
        return {
            "records": self.records,
            "probes": len(self.probes),
            "results": {status: self.results[status] for status in STATUSES},
            "modes": dict(self.modes),
            "categories": {name: dict(counts) for name, counts in self.categories.items()},
            "other_records": self.others,
            "rejected": self.counts.rejected,
        }

    def _other(
        self,
        batch: Batch[bytes | Control],
        index: int,
        error: Exception,
        bad: list[Control],
    ) -> None:
        """A line that is no boundary object: blank, of another contract, or bad."""
        line = batch[index]
        if not isinstance(line, bytes):
            self.counts.passed += 1
            bad.append(line)
            return
        if is_blank(line):
            self.counts.filtered += 1
            return
        try:
            contract = contract_of(line)
        except DECODE_ERRORS:
            contract = PATTERN_VERSION  # no JSON at all: the first error tells why
        if contract == PATTERN_VERSION:
            self.counts.rejected += 1
            bad.append(reject(self.name, batch, index, *explain(error)))
        else:
            self.counts.filtered += 1
            self.others += 1

    def _describe(self, record: Boundary, result: Status) -> str:
        outcome, operation = record.result, record.operation
        capability = record.capability_context.primary
        head = f"{record.probe.id} ({record.run.mode})  {operation.verb} {operation.target}"
        tail = f"{capability.id} ({capability.category}, {capability.layer})"
        if outcome.errno:
            tail = f"{tail}  {outcome.errno}"
        if outcome.message:
            tail = f"{tail}  {outcome.message}"
        if not head.isprintable():
            head = visible(head)
        if not tail.isprintable():
            tail = visible(tail)
        text = f"{self._labels[result]} {head}\n         {tail}"
        if result != "success":
            for snippet in (record.payload.stderr_snippet, record.payload.stdout_snippet):
                if snippet:
                    text += _quote(snippet)
        return text

    def _table(self) -> list[str]:
        width = max(len(visible(name)) for name in (*self.categories, "all"))
        head = "".join(f"{status:>9}" for status in STATUSES)
        rows = [f"{'':{width}}{head}"]
        for name, counts in [*sorted(self.categories.items()), ("all", self.results)]:
            cells = "".join(f"{counts[status]:>9}" for status in STATUSES)
            rows.append(f"{visible(name):{width}}{cells}")
        modes = ", ".join(f"{visible(mode)} {count}" for mode, count in sorted(self.modes.items()))
        many = "at least " if len(self.probes) == MOST_PROBES else ""
        rows.append(
            f"{self.records} records of {many}{len(self.probes)} probes"
            + (f"; modes: {modes}" if modes else "")
            + (f"; {self.others} records of other contracts" if self.others else "")
            + (f"; {self.counts.rejected} bad lines" if self.counts.rejected else "")
        )
        return ["", *rows] if self.records else rows[-1:]


def _quote(snippet: str) -> str:
    lines = snippet.splitlines()[:SNIPPET_LINES]
    return "".join(f"\n         | {visible(line[:SNIPPET_WIDTH])}" for line in lines)
