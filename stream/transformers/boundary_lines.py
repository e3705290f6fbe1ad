"""Read the boundary objects among the lines of a stream, of the pattern in force and of modes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import cast

import msgspec

from stream.boundary.descriptors import Descriptor
from stream.codec import DECODE_ERRORS, contract_of, decode_fault, is_blank, make_reject
from stream.errors import number, printable
from stream.pipeline import Counts
from stream.records.boundary import Boundary, decode_boundary, decode_shared
from stream.records.control import GAP, PATTERN_VERSION, Control, Gap
from stream.records.modes import MODE_PATTERN, decode_mode_boundary

MOST_CONTRACTS = 1000  #: that are told apart; memory must not grow with the input
OTHERS = "(others)"

_decode_gap = msgspec.json.Decoder(Gap).decode
Decode = Callable[[bytes], Boundary]


class BoundaryReader:
    """Decodes boundary objects for one stage, and counts every line that is none."""

    def __init__(self, stage: str, descriptor: Descriptor) -> None:
        self.counts = Counts()
        self.others: Counter[str] = Counter()  #: records that are not shown, by contract
        self.lost = 0  #: what gap records tell of
        self._stage = stage
        self._decoders: dict[str, Decode] = {MODE_PATTERN: decode_mode_boundary}
        if (
            descriptor.canonical or descriptor.schema is None
        ):  # one of the patterns that are bundled
            self._pattern: str = PATTERN_VERSION
            self._decoders[PATTERN_VERSION] = decode_boundary
        else:
            self._pattern = descriptor.pattern_version
            self._decoders[self._pattern] = _decoder_of_pattern(descriptor)

    def read_records(
        self, batch: Sequence[bytes], bad: list[Control]
    ) -> Iterator[tuple[Boundary, bytes]]:
        """Yield the boundary objects of a batch with their lines; rejects go to `bad`."""
        self.counts.received += len(batch)
        passed = 0
        decode = self._decoders[self._pattern]
        for index, line in enumerate(batch):
            try:
                record = decode(line)
            except DECODE_ERRORS as error:
                other = self._read_other_line(batch, index, error, bad)
                if other is None:
                    continue
                record = other
            passed += 1
            yield record, line
        self.counts.passed += passed

    def _read_other_line(
        self, batch: Sequence[bytes], index: int, error: Exception, bad: list[Control]
    ) -> Boundary | None:
        """Read a line that is no record of the pattern in force: a record of a mode, or one that is
        counted because it is blank, of another contract, or bad."""
        line = batch[index]
        if is_blank(line):
            self.counts.filtered += 1
            return None
        try:
            contract = contract_of(line)
        except DECODE_ERRORS:
            contract = self._pattern  # no JSON at all: the first error tells why
        if contract != self._pattern and contract in self._decoders:
            try:
                return self._decoders[contract](line)
            except DECODE_ERRORS as problem:
                error, contract = problem, self._pattern
        if contract == self._pattern:
            self.counts.rejected += 1
            bad.append(make_reject(self._stage, batch, index, decode_fault(error)))
        else:
            self.counts.filtered += 1
            self._count_other_contract(contract or "(none)", line)
        return None

    def _count_other_contract(self, contract: str, line: bytes) -> None:
        """Count a record of another contract than a boundary's, and what a gap record lost."""
        if contract not in self.others and len(self.others) >= MOST_CONTRACTS:
            contract = OTHERS
        self.others[contract] += 1
        if contract == GAP:
            with suppress(*DECODE_ERRORS):
                self.lost += int(_decode_gap(line).lost)

    def remarks(self) -> list[str]:
        """Say what else came: other records, losses, bad lines."""
        return [
            *(f"{n} {printable(name)} not shown" for name, n in sorted(self.others.items())),
            *([f"{self.lost} lost, as gap records tell"] if self.lost else []),
            *([number(bad, "bad line")] if (bad := self.counts.rejected) else []),
        ]


def _decoder_of_pattern(descriptor: Descriptor) -> Decode:
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
