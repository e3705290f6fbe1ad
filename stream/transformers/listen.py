"""listen: boundary objects as text for people, record by record, and a summary at the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

import msgspec

from stream.boundary.descriptors import Descriptor
from stream.codec import DECODE_ERRORS, contract_of, decode_fault, is_blank, make_reject
from stream.errors import number, printable
from stream.pipeline import Batch, Counts, batches_by_kind
from stream.records.boundary import STATUSES, Boundary, decode_boundary, decode_shared
from stream.records.control import GAP, LINES, Control, Gap, kind_of_item

SNIPPET_LINES = 3
SNIPPET_WIDTH = 160
MOST_PROBES = 100_000  #: ids that are told apart; memory must not grow with the input
MOST_CATEGORIES = 1000
OTHERS = "(others)"

_decode_gap = msgspec.json.Decoder(Gap).decode
_COLOURS = {"success": "32", "denied": "33", "partial": "36", "error": "31"}


class Listen:
    """Lines in; one piece of text for each batch out, as bytes."""

    name = "listen"
    kinds = (LINES,)

    def __init__(
        self, descriptor: Descriptor, *, as_json: bool = False, colour: bool = False
    ) -> None:
        self.counts = Counts()
        self.records = 0
        self.others: Counter[str] = Counter()  #: records that are not shown, by contract
        self.lost = 0  #: what gap records tell of
        self._pattern = descriptor.pattern_version
        self._decode: Callable[[bytes], Boundary] = (
            decode_boundary if descriptor.canonical else _decoder_of_pattern(descriptor)
        )
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
        batch = given.items
        self.counts.received += len(batch)
        text: list[str] = []
        bad: list[Control] = []
        tally: Counter[tuple[str, str, str]] = Counter()
        passed = 0
        decode = self._decode
        for index, line in enumerate(batch):
            try:
                record = decode(line)
            except DECODE_ERRORS as error:
                self._count_other_line(batch, index, error, bad)
                continue
            passed += 1
            result = record.result.observed_result
            if len(self.probes) < MOST_PROBES:
                self.probes.add(record.probe.id)
            tally[result, record.run.mode, record.capability_context.primary.category] += 1
            if not self._as_json:
                text.append(self._describe_boundary(record, result))
        self.counts.passed += passed
        self.records += passed
        for (status, mode, category), count in tally.items():
            self.results[status] += count
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
            "records": self.records,
            "probes": len(self.probes),
            "results": {status: self.results[status] for status in STATUSES},
            "modes": dict(self.modes),
            "categories": {name: dict(counts) for name, counts in self.categories.items()},
            "other_records": dict(self.others),
            "lost": self.lost,
            "rejected": self.counts.rejected,
        }

    def _count_other_line(
        self,
        batch: Sequence[bytes],
        index: int,
        error: Exception,
        bad: list[Control],
    ) -> None:
        """Count a line that is no boundary object: blank, of another contract, or bad."""
        line = batch[index]
        if is_blank(line):
            self.counts.filtered += 1
            return
        try:
            contract = contract_of(line)
        except DECODE_ERRORS:
            contract = self._pattern  # no JSON at all: the first error tells why
        if contract == self._pattern:
            self.counts.rejected += 1
            bad.append(make_reject(self.name, batch, index, decode_fault(error)))
        else:
            self.counts.filtered += 1
            self._count_other_contract(contract or "(none)", line)

    def _count_other_contract(self, contract: str, line: bytes) -> None:
        """Count a record of another contract than a boundary's, and what a gap record lost."""
        if contract not in self.others and len(self.others) >= MOST_CATEGORIES:
            contract = OTHERS
        self.others[contract] += 1
        if contract == GAP:
            with suppress(*DECODE_ERRORS):
                self.lost += int(_decode_gap(line).lost)

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
        rows.append(
            f"{number(self.records, 'record')} of {many}{number(len(self.probes), 'probe')}"
            + (f"; modes: {modes}" if modes else "")
            + "".join(
                f"; {n} {printable(name)} not shown" for name, n in sorted(self.others.items())
            )
            + (f"; {self.lost} lost, as gap records tell" if self.lost else "")
            + (f"; {number(bad, 'bad line')}" if (bad := self.counts.rejected) else "")
        )
        return ["", *rows] if self.records else rows[-1:]


def _decoder_of_pattern(descriptor: Descriptor) -> Callable[[bytes], Boundary]:
    """Decode records of a pattern of the user's own, as far as they are like a canonical one."""

    def decode(line: bytes) -> Boundary:
        """Decode a record. Raise ValidationError where it breaks the pattern in force."""
        if contract_of(line) != descriptor.pattern_version:
            raise msgspec.ValidationError("not a record of the pattern in force")
        fault = descriptor.check(line)
        if fault:
            at = f" - at `{fault.path}`" if fault.path else ""
            raise msgspec.ValidationError(fault.reason + at)
        record = decode_shared(line)
        sections = (record.probe, record.run, record.operation, record.result, record.payload)
        for section in (*sections, record.capability_context.primary):
            for name in section.__struct_fields__:
                if getattr(section, name) == "":
                    setattr(section, name, "?")
        return cast("Boundary", record)  # it has whatever is shown of one

    return decode


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
