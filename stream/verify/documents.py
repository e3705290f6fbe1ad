"""JSON artifacts against their schemas: each held as a whole, up to a limit, and no further.

Those that are as long as what a run touched follow from its layers, which are read later. They
wait: whoever finds one to be what follows, byte for byte, has no need to decode it.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from stream.codec import DECODE_ERRORS, contract_of, explain
from stream.contracts import decoder_of
from stream.documents import repeated_key
from stream.evidence.consistency import emptiness_faults, report_faults, surface_faults
from stream.evidence.health import age_faults, claim_faults
from stream.evidence.surface import StreamedRecord
from stream.records.artifacts import (
    COMPANION_FILE,
    CORRELATION_FILE,
    HEALTH_FILE,
    SURFACE_FILE,
    CapabilitySurface,
    Companion,
    CorrelationReport,
    ObservationHealth,
)
from stream.records.control import Fault
from stream.records.run import (
    MANIFEST_FILE,
    METADATA_FILE,
    SUMMARY_FILE,
    Manifest,
    RunMetadata,
    RunSummary,
)
from stream.verify.report import VerifyReport

DOCUMENTS: dict[str, type[Any]] = {
    SURFACE_FILE: CapabilitySurface,
    CORRELATION_FILE: CorrelationReport,
    HEALTH_FILE: ObservationHealth,
    COMPANION_FILE: Companion,
    METADATA_FILE: RunMetadata,
    SUMMARY_FILE: RunSummary,
    MANIFEST_FILE: Manifest,
}
_FOR_PEOPLE = (METADATA_FILE, SUMMARY_FILE, MANIFEST_FILE)  #: on several lines
_LONG = (SURFACE_FILE, COMPANION_FILE)
_DEEPEST = 3  #: nothing that follows from layers is nested deeper
_IN_MEMORY = 1 << 20
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))  #: all but those

T = TypeVar("T")


class Documents:
    """The artifacts of a run that could be read, by file. Asking for one decodes it."""

    def __init__(self, report: VerifyReport) -> None:
        self._report = report
        self._read: dict[str, Any] = {}
        self._waiting: dict[str, Document] = {}
        self._all: list[Document] = []

    def checker_of(self, name: str) -> Document:
        self.get(name)  # a second one of that name
        document = Document(self._report, name, self)
        self._all.append(document)
        return document

    @property
    def run_id(self) -> str:
        """The run that everything has to be of."""
        return self._report.run_id or ""

    def take(self, document: Document) -> None:
        """One whose end was read."""
        # Whose run it is of must be known: the first one to say so is the one that counts.
        can_wait = self._report.run_id is not None and self._report.limits.depth >= _DEEPEST
        if document.name in _LONG and can_wait:
            self._waiting[document.name] = document
        else:
            self._check(document)

    def get(self, name: str) -> Any:
        """None: it was not there, or none."""
        if name in self._waiting:
            self._check(self._waiting.pop(name))
        return self._read.get(name)

    def fields(self, name: str, kind: type[T]) -> T | None:
        """Decode only some fields of an artifact. None: it is not there, or none."""
        if name in self._waiting:
            try:
                return msgspec.json.decode(self._waiting[name].read(), type=kind)
            except DECODE_ERRORS:
                pass  # what is wrong with it is reported below
        record = self.get(name)
        return None if record is None else msgspec.convert(record, kind, from_attributes=True)

    def confirm(self, name: str, made: StreamedRecord[Any]) -> bool:
        """Whether one that waits is just this. Then there is nothing else to find."""
        if name not in self._waiting or made.outline.run_id != self._report.run_id:
            return False
        if not self._waiting[name].is_as(made.encoded()):
            return False
        self._waiting.pop(name).close()
        return True

    def settle(self) -> None:
        """What still waits is judged by itself."""
        for name in list(self._waiting):
            self.get(name)

    def close(self) -> None:
        for document in self._all:
            document.close()

    def _check(self, document: Document) -> None:
        try:
            record = _checked(self._report, document.name, document.read())
        finally:
            document.close()
        if record is not None:
            self._read[document.name] = record


class Document:
    """The judge of one artifact."""

    def __init__(self, report: VerifyReport, name: str, documents: Documents) -> None:
        self.name = name
        self._report = report
        self._documents = documents
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115
        self._length = 0

    def feed(self, data: bytes) -> None:
        self._length += len(data)
        if self._length <= self._report.limits.document:
            self._file.write(data)

    def finish(self) -> None:
        limit = self._report.limits.document
        if self._length > limit:
            self._report.find("limit.document", f"more than {limit} bytes", self.name)
            self.close()
        else:
            self._documents.take(self)

    def read(self, most: int = -1) -> bytes:
        self._file.seek(0)
        return self._file.read(most)

    def is_as(self, pieces: Iterable[bytes]) -> bool:
        self._file.seek(0)
        is_same = all(self._file.read(len(piece)) == piece for piece in pieces)
        return is_same and self._file.read(2) in (b"\n", b"")

    def close(self) -> None:
        self._file.close()


def _checked(report: VerifyReport, name: str, data: bytes) -> Any:
    record = _decoded(report, name, data)
    if record is None:
        return None
    report.add_faults(report.check_run_id(record.run_id), name)
    report.add_faults(_faults_of(record), name)
    return record


def _decoded(report: VerifyReport, name: str, data: bytes) -> Any:
    if is_too_deep(data, report.limits.depth):
        report.find("limit.depth", f"nested deeper than {report.limits.depth}", name)
        return None
    try:
        record = decoder_of(DOCUMENTS[name])(data)
    except DECODE_ERRORS as error:
        report.add_faults([explain(error)._replace(rule="contract.document")], name)
        return None
    text = msgspec.json.encode(record)
    if name in _FOR_PEOPLE:
        is_as_ours = data == msgspec.json.format(text) + b"\n"
    else:
        is_as_ours = data in (text + b"\n", text)  # it had no newline before
    if not is_as_ours:
        faults = form_faults_of(data, "contract.document", is_ours=report.is_recorded)
        report.add_faults(faults, name)
    return record


def form_faults_of(data: bytes, rule: str, *, is_ours: bool) -> Iterator[Fault]:
    """Say what is wrong with a record that is not written as the recorder writes it."""
    if is_ours:
        yield Fault("it is not written as the recorder writes it", rule=rule)
    if contract_of(data) is None:  # a decoder takes a record without its schema
        yield Fault("it names no schema", "$.schema", rule)
    if repeated := repeated_key(data):
        yield repeated._replace(rule="contract.duplicate_key")


def is_too_deep(data: bytes, limit: int) -> bool:
    if data.count(b"{") + data.count(b"[") <= limit:
        return False
    depth = 0
    for byte in _STRINGS.sub(b"", data).translate(None, _BRACKETS):
        if byte in b"{[":
            depth += 1
            if depth > limit:
                return True
        else:
            depth -= 1
    return False


def _faults_of(record: object) -> Iterator[Fault]:
    for rule, faults in _RULES.get(type(record), {}).items():
        yield from (fault._replace(rule=rule) for fault in faults(record))


#: What a document can break by itself. Two of them the reference's own archives break as well.
_RULES: dict[type, dict[str, Callable[[Any], Iterator[Fault]]]] = {
    CapabilitySurface: {"contract.surface": surface_faults},
    CorrelationReport: {
        "contract.correlation": report_faults,
        "contract.unbound": emptiness_faults,
    },
    ObservationHealth: {"contract.health": claim_faults, "contract.age": age_faults},
}
