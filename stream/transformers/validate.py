"""validate: every line is held against the contract that it names.

Good lines pass on unchanged. A bad one becomes a finding, which says what is wrong, and a
reject, which accounts for it. A line of a contract that stream does not know passes, is
counted, and is a finding only where nothing follows that could know it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from stream.boundary.descriptors import Boundaries
from stream.codec import (
    DECODE_ERRORS,
    BrokenDocument,
    Lines,
    contract_of,
    decode_fault,
    is_blank,
    make_reject,
    repeated_key,
)
from stream.pipeline import Batch, Counts, Transformer, batches_by_kind
from stream.records.control import LINES, PATTERN_VERSION, Control, Fault, Finding, kind_of_item

if TYPE_CHECKING:
    from stream.contracts import Contracts

UNKNOWN = "(unknown)"  #: what lines of other contracts are counted as
EVENT = "DecisionEvent"  #: names itself by its fields


class Validate(Transformer):
    """Lines in; good lines, findings and rejects out."""

    name = "validate"
    kinds = (LINES,)

    def __init__(self, boundaries: Boundaries, *, is_last: bool) -> None:
        self.counts = Counts()
        self.findings = 0
        self.contracts: Counter[str] = Counter()  #: lines that keep their contract, by contract
        self._boundaries = boundaries
        self._is_last = is_last

    @property
    def unknown(self) -> int:
        """Count the lines of contracts that stream does not know."""
        return self.contracts[UNKNOWN]

    def feed(self, batch: Batch[bytes], /) -> list[Batch[Any]]:
        """Pass on good lines; make a finding and a reject of each bad one."""
        lines = batch.items
        self.counts.received += len(lines)
        # Nearly every line of nearly every stream is a good boundary object: one call each.
        if not self._boundaries.are_canonical(lines):
            return batches_by_kind(self._feed_line_by_line(lines), kind_of_item)
        self.counts.passed += len(lines)
        self.contracts[PATTERN_VERSION] += len(lines)
        return [batch]

    def _feed_line_by_line(self, batch: Sequence[bytes]) -> list[bytes | Control]:
        """Hold each line against its contract; make a finding and a reject of a bad one."""
        out: list[bytes | Control] = []
        for index, line in enumerate(batch):
            if is_blank(line):
                self.counts.filtered += 1
                continue
            source = batch.source if isinstance(batch, Lines) else "(pipeline)"
            rule, fault = self._check_line_by_contract(line, source)
            if fault is None:
                self.counts.passed += 1
                out.append(line)
                continue
            bad = make_reject(self.name, batch, index, fault)
            self.findings += 1
            self.counts.rejected += 1
            finding = Finding(
                rule=rule,
                severity="error",
                message=bad.reason,
                source=bad.source,
                line=UNSET if isinstance(line, BrokenDocument) else bad.line,
                path=bad.path,
            )
            out += (finding, bad)
        return out

    @cached_property
    def _known_contracts(self) -> Contracts:
        """Load the contracts that the lines of a stream may name."""
        # All contracts, which nearly every stream does without, are an eighth of the start.
        from stream.contracts import Contracts

        return Contracts(self._boundaries)

    def _check_line_by_contract(self, line: bytes, source: str) -> tuple[str, Fault | None]:
        """Return the contract or rule of a line, and what breaks it."""
        if isinstance(line, BrokenDocument):
            return "json", line.fault
        try:
            contract = contract_of(line)
        except DECODE_ERRORS as error:
            return "json", decode_fault(error)
        if contract is None:
            contract = self._known_contracts.contract_of_document(source)
        if contract is None or not self._known_contracts.knows_contract(contract):
            from stream.transformers.event_rules import read_event

            try:
                read = read_event(line, "agents")
            except DECODE_ERRORS as error:  # what names no contract holds a number beyond all
                return "json", decode_fault(error)
            if read is not None:
                return EVENT, self._check_event_alone(read[1])
            if repeated := repeated_key(line):
                return "json", repeated
            if not self._is_last:
                self.contracts[UNKNOWN] += 1
                return "contract", None
            return "contract", _unknown_contract(contract)
        fault = self._known_contracts.check_record(contract, line, source)
        if fault is None:
            self.contracts[contract] += 1
        return contract, fault

    def _check_event_alone(self, faults: list[Fault]) -> Fault | None:
        """Judge an event by itself: `check` holds a run together, and tells of what is only
        recommended."""
        from stream.transformers.event_rules import event_rules

        for fault in faults:
            if event_rules()[fault.rule].severity == "error":
                return fault
        self.contracts[EVENT] += 1
        return None


def _unknown_contract(contract: str | None) -> Fault:
    """Say that a line names no contract, or none that is known."""
    if contract is None:
        return Fault("names no contract: neither schema nor schema_version is there")
    hint = "; --boundary names a pattern of your own" if contract.startswith("boundary_") else ""
    return Fault(f"{contract!r} is no contract that stream knows: nothing was checked{hint}")
