"""JSON artifacts against their schemas: each held as a whole, up to a limit, and no further."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec

from stream.archive.book import Book
from stream.codec import DECODE_ERRORS, contract_of, explain
from stream.document import parse_document, parted
from stream.records.run import (
    MANIFEST_FILE,
    METADATA_FILE,
    SUMMARY_FILE,
    Manifest,
    RunMetadata,
    RunSummary,
)
from stream.records.runner import (
    COMPANION_FILE,
    CORRELATION_FILE,
    HEALTH_FILE,
    SURFACE_FILE,
    SURFACE_SETS,
    CapabilitySurface,
    Companion,
    CorrelationReport,
    ObservationHealth,
)

DOCUMENTS: dict[str, type[Any]] = {
    SURFACE_FILE: CapabilitySurface,
    CORRELATION_FILE: CorrelationReport,
    HEALTH_FILE: ObservationHealth,
    COMPANION_FILE: Companion,
    METADATA_FILE: RunMetadata,
    SUMMARY_FILE: RunSummary,
    MANIFEST_FILE: Manifest,
}
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


class Document:
    """The judge of one artifact. What could be read is kept."""

    def __init__(self, book: Book, name: str, kept: dict[str, Any]) -> None:
        self._book = book
        self._name = name
        self._kept = kept
        self._held: list[bytes] = []
        self._length = 0

    def feed(self, data: bytes) -> None:
        self._length += len(data)
        if self._length <= self._book.limits.document:
            self._held.append(data)

    def finish(self) -> None:
        limit = self._book.limits.document
        if self._length > limit:
            self._book.find("limit.document", f"more than {limit} bytes", self._name)
            return
        data = b"".join(self._held)
        record = self._decoded(data)
        if record is None:
            return
        self._book.hold_run_id(record.run_id, self._name)
        for rule, message, path in _problems(record):
            self._book.find(rule, message, self._name, path=path)
        self._kept[self._name] = record

    def _decoded(self, data: bytes) -> Any:
        depth = self._book.limits.depth
        if is_too_deep(data, depth):
            self._book.find("limit.depth", f"nested deeper than {depth}", self._name)
            return None
        try:
            record = msgspec.json.decode(data, type=DOCUMENTS[self._name])
        except DECODE_ERRORS as error:
            reason, path = explain(error)
            self._book.find("contract.document", reason, self._name, path=path)
            return None
        for rule, reason, path in oddities(data, record, "contract.document"):
            self._book.find(rule, reason, self._name, path=path)
        return record


def oddities(data: bytes, record: object, rule: str) -> Iterator[tuple[str, str, str]]:
    """(rule, reason, JSON path), looked for only where the record is not written as we would."""
    if msgspec.json.encode(record) == data:
        return
    if contract_of(data) is None:  # a decoder takes a record without its schema
        yield rule, "it names no schema", "$.schema"
    try:
        parse_document(data)
    except ValueError as error:
        yield "contract.duplicate_key", *parted(str(error))


def is_too_deep(data: bytes, limit: int) -> bool:
    if data.count(b"{") + data.count(b"[") <= limit:
        return False
    depth = 0
    for byte in _STRINGS.sub(b"", data):
        if byte in b"{[":
            depth += 1
            if depth > limit:
                return True
        elif byte in b"}]":
            depth -= 1
    return False


def _problems(record: object) -> Iterator[tuple[str, str, str]]:
    if isinstance(record, CapabilitySurface):
        for name in SURFACE_SETS:
            if not _is_sorted(getattr(record, name)):
                yield "contract.surface", "not sorted, or something stands twice", f"$.{name}"
    if isinstance(record, CorrelationReport) and record.status == "clean" and not record.bindings:
        message = "called clean, but nothing is bound: nothing was correlated"
        yield "contract.unbound", message, "$.bindings"
    if isinstance(record, ObservationHealth):
        yield from _health_problems(record)


def _is_sorted(items: list[str]) -> bool:
    return all(one.encode() < other.encode() for one, other in pairwise(items))


def _health_problems(health: ObservationHealth) -> Iterator[tuple[str, str, str]]:
    """What the contract says of the fields among themselves."""
    rule = "contract.health"
    if health.ringbuf_drops and health.kernel_layer != "partial_ringbuf_drops":
        message = f"{health.kernel_layer!r}, but {health.ringbuf_drops} events were dropped"
        yield rule, message, "$.kernel_layer"
    if health.platform != "linux" and health.kernel_layer != "absent":
        yield rule, f"{health.kernel_layer!r} on {health.platform!r}", "$.kernel_layer"
