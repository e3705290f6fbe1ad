"""validate: every line is held against the contract that it names.

Good lines pass on unchanged. A bad one becomes a finding, which says what is wrong, and a
reject, which accounts for it. A line of a contract that stream does not know passes, is
counted, and is a finding only where nothing follows that could know it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from stream.catalog import make_catalog, make_defaults
from stream.codec import (
    DECODE_ERRORS,
    BrokenDocument,
    Lines,
    contract_of,
    explain,
    is_blank,
    reject,
)
from stream.document import parse_document, parted
from stream.errors import InputError
from stream.evidence.contracts import ARTIFACTS, LINES
from stream.pattern import Descriptor, Fault, make_descriptor
from stream.pipeline import Batch, Counts
from stream.records.boundary import PATTERN_VERSION, decode_boundary
from stream.records.boundary_diff import BOUNDARY_DIFF, BoundaryDiff
from stream.records.catalog import CATALOG, DESCRIPTOR
from stream.records.change import FS_CHANGE, decode_change
from stream.records.command import COMMAND, CommandRecord
from stream.records.control import CONTROL_SCHEMAS, Control, Finding
from stream.records.emission import RAW_EMISSION, decode_raw
from stream.records.run import MANIFEST, RUN, RUN_SUMMARY, Manifest, RunMetadata, RunSummary
from stream.stages.invariants import is_event
from stream.stages.shape import faults_of

EVENT = "DecisionEvent"  #: names itself by its fields
_decode_control = msgspec.json.Decoder(Control).decode


DEFAULTS = "defaults.json"  #: names no contract: it is known by its file name

_DOCUMENTS: dict[str, Callable[[Any, Path], object]] = {
    CATALOG: make_catalog,
    DESCRIPTOR: make_descriptor,
    DEFAULTS: make_defaults,
}


def check_document(contract: str, line: bytes, source: str) -> Fault | None:
    path = Path(source)
    try:
        _DOCUMENTS[contract](parse_document(line), path)
    except (InputError, ValueError) as error:
        return parted(str(error).removeprefix(f"{path}: "))
    return None


class Validate:
    """Lines in; good lines, findings and rejects out."""

    name = "validate"

    def __init__(self, descriptor: Descriptor, *, is_last: bool) -> None:
        self.counts = Counts()
        self.findings = 0
        self.contracts: Counter[str] = Counter()  #: lines that keep their contract, by contract
        self._descriptor = descriptor
        self._is_last = is_last

    def feed(self, batch: Batch[bytes | Control], /) -> Batch[bytes | Control]:
        self.counts.received += len(batch)
        if not self._descriptor.canonical:
            return self._feed_slowly(batch)
        # Nearly every line of nearly every stream is a good boundary object: one call each.
        try:
            for line in batch:
                decode_boundary(line)  # type: ignore[arg-type]
        except (*DECODE_ERRORS, TypeError):
            return self._feed_slowly(batch)
        self.counts.passed += len(batch)
        self.contracts[PATTERN_VERSION] += len(batch)
        return batch

    def finish(self) -> Batch[bytes | Control]:
        return ()

    def _feed_slowly(self, batch: Batch[bytes | Control]) -> list[bytes | Control]:
        out: list[bytes | Control] = []
        for index, line in enumerate(batch):
            if isinstance(line, bytes) and is_blank(line):
                self.counts.filtered += 1
                continue
            source = batch.source if isinstance(batch, Lines) else "(pipeline)"
            rule, fault = self._judge(line, source)
            if fault is None:
                self.counts.passed += 1
                out.append(line)
                continue
            bad = reject(self.name, batch, index, *fault)
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

    def _judge(self, line: bytes | Control, source: str) -> tuple[str, Fault | None]:
        """(the contract or rule, what breaks it)."""
        if not isinstance(line, bytes):
            return "control", None
        if isinstance(line, BrokenDocument):
            return "json", (line.reason, line.path)
        try:
            contract = contract_of(line)
        except DECODE_ERRORS as error:
            return "json", explain(error)
        if contract is None and Path(source).name == DEFAULTS:
            contract = DEFAULTS
        if contract is None or not self._knows(contract):
            if is_event(msgspec.json.decode(line)):
                return EVENT, self._judge_event(line)
            if not self._is_last:
                self.contracts["(unknown)"] += 1
                return "contract", None
            return "contract", _unknown(contract)
        fault = self.check(contract, line, source)
        if fault is None:
            self.contracts[contract] += 1
        return contract, fault

    def _judge_event(self, line: bytes) -> Fault | None:
        """By itself: `check` holds a run together."""
        fault = next(iter(faults_of(msgspec.json.decode(line), "agents")), None)
        if fault is None:
            self.contracts[EVENT] += 1
            return None
        return fault.message, fault.path

    def _knows(self, contract: str) -> bool:
        return (
            contract in _KNOWN
            or contract in _DOCUMENTS
            or contract == self._descriptor.pattern_version
        )

    def check(self, contract: str, line: bytes, source: str) -> Fault | None:
        """Raises nothing: a line that cannot be decoded is a fault as well."""
        try:
            if contract == self._descriptor.pattern_version:
                return self._descriptor.check(line)
            if contract in _DOCUMENTS:
                return check_document(contract, line, source)
            if contract == PATTERN_VERSION:
                decode_boundary(line)
            elif contract == RAW_EMISSION:
                decode_raw(line)
            elif contract in _DECODED:
                _DECODED[contract](line)
            else:
                _decode_control(line)
        except DECODE_ERRORS as error:
            return explain(error)
        return None


_decode_document = msgspec.json.Decoder(RunMetadata | RunSummary | Manifest | CommandRecord).decode
_DECODED: dict[str, Callable[[bytes], object]] = {
    **dict.fromkeys((RUN, RUN_SUMMARY, MANIFEST, COMMAND), _decode_document),
    FS_CHANGE: decode_change,
    BOUNDARY_DIFF: msgspec.json.Decoder(BoundaryDiff).decode,
    **LINES,
    **ARTIFACTS,
}
_KNOWN = {PATTERN_VERSION, RAW_EMISSION, *CONTROL_SCHEMAS, *_DECODED}


def _unknown(contract: str | None) -> Fault:
    if contract is None:
        return "names no contract: neither schema nor schema_version is there", ""
    return f"{contract!r} is no contract that stream knows: nothing was checked", ""
