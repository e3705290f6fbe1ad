"""A mixed stream of records, each line to the file of an archive that it belongs to.

Lines keep their bytes. What names no contract with a place in an archive, and what breaks its
contract, is a reject. Links of a chain are left out: an archive made from a pipe has none, for
where they stand is a matter of how a run went.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from stream.archive.laws import RunnerDecoder
from stream.codec import DECODE_ERRORS, Lines, contract_of, explain, is_blank, join_lines, reject
from stream.pattern import Boundaries, key_of
from stream.pipeline import Batch, Counts
from stream.records.control import GAP, Gap, Reject
from stream.records.kernel import (
    KERNEL_DETAIL,
    KERNEL_EVENT,
    RAW_CAPTURE,
    KernelDetail,
    KernelEvent,
    RawCapture,
)
from stream.records.run import BOUNDARY_FILE, EVENTS_FILE
from stream.records.runner import (
    CHAIN,
    COMPANION,
    COMPANION_FILE,
    CORRELATION,
    CORRELATION_FILE,
    DETAIL_FILE,
    HEALTH,
    HEALTH_FILE,
    KERNEL_FILE,
    MARKER,
    MARKERS_FILE,
    POLICY_EVENT,
    POLICY_FILE,
    RUNNER_EVENT,
    RUNNER_FILE,
    SDK_EVENT,
    SDK_FILE,
    SURFACE,
    SURFACE_FILE,
    CapabilitySurface,
    ChainLink,
    Companion,
    CorrelationReport,
    Marker,
    ObservationHealth,
    PolicyEvent,
    SdkEvent,
)
from stream.stages.invariants import is_event

Decode = Callable[[bytes], Any]


def _decoder(kind: type[Any]) -> Decode:
    return msgspec.json.Decoder(kind).decode


#: by contract: where its lines go, and what they are
_LINES: dict[str, tuple[str, Decode]] = {
    KERNEL_EVENT: (KERNEL_FILE, _decoder(KernelEvent)),
    KERNEL_DETAIL: (DETAIL_FILE, _decoder(KernelDetail)),
    GAP: (DETAIL_FILE, _decoder(Gap)),
    SDK_EVENT: (SDK_FILE, _decoder(SdkEvent)),
    POLICY_EVENT: (POLICY_FILE, _decoder(PolicyEvent)),
    MARKER: (MARKERS_FILE, _decoder(Marker)),
    RUNNER_EVENT: (RUNNER_FILE, RunnerDecoder().decode),
}
_DOCUMENTS: dict[str, tuple[str, Decode]] = {
    HEALTH: (HEALTH_FILE, _decoder(ObservationHealth)),
    SURFACE: (SURFACE_FILE, _decoder(CapabilitySurface)),
    CORRELATION: (CORRELATION_FILE, _decoder(CorrelationReport)),
    COMPANION: (COMPANION_FILE, _decoder(Companion)),
}
_decode_capture = _decoder(RawCapture)
_decode_link = _decoder(ChainLink)
_decode_object = _decoder(dict[str, Any])


class Piece(Struct):
    """Bytes that go to the end of a file."""

    name: str
    data: bytes


class Books(Struct):
    """Of the feed, as the stream has them."""

    capture: RawCapture
    #: None: what was left out before is not known.
    filtered: Mapping[str, int] | None
    aside: Mapping[str, int] | None


class _Unfit(Exception):  # noqa: N818  # it becomes a reject
    pass


class Assort:
    """Lines in; pieces and rejects out."""

    name = "archive"

    def __init__(self, boundaries: Boundaries) -> None:
        self.boundary_keys: set[object] = set()  #: of the boundary objects that came
        self._boundaries = boundaries
        self.counts = Counts()
        self.run_ids: dict[str, str] = {}  #: and the place of the first record of each
        self.documents: set[str] = set()
        self.books: Books | None = None  #: a companion's before any others

    def feed(self, batch: Batch[bytes], /) -> Batch[Piece | Reject]:
        self.counts.received += len(batch)
        lines: dict[str, list[bytes]] = {}
        out: list[Piece | Reject] = []
        for index, line in enumerate(batch):
            if is_blank(line):
                self.counts.filtered += 1
                continue
            try:
                name = self._place_of(line, batch, index)
            except (*DECODE_ERRORS, _Unfit) as error:
                reason, path = explain(error)
                self.counts.rejected += 1
                out.append(reject(self.name, batch, index, reason, path))
                continue
            if name is None:
                self.counts.filtered += 1
                continue
            self.counts.passed += 1
            if name in self.documents:
                out.append(Piece(name, line + b"\n"))
            else:
                lines.setdefault(name, []).append(line)
        return [*(Piece(name, join_lines(items)) for name, items in lines.items()), *out]

    def finish(self) -> Batch[Piece | Reject]:
        return ()

    def _place_of(self, line: bytes, batch: Batch[bytes], index: int) -> str | None:
        """Raises _Unfit or one of DECODE_ERRORS. None: it is left out."""
        contract = contract_of(line)
        if contract in _LINES:
            name, decode = _LINES[contract]
            self._note_run(getattr(decode(line), "run_id", None), batch, index)
            return name
        if contract is not None and self._boundaries.knows(contract):
            if fault := self._boundaries.check(line, contract):
                raise _Unfit(" - at `".join(filter(None, fault)))
            self.boundary_keys.add(key_of(line))
            return BOUNDARY_FILE
        if contract in _DOCUMENTS:
            name, decode = _DOCUMENTS[contract]
            record = decode(line)
            stated = _stated(record) if isinstance(record, Companion) else None
            if name in self.documents:
                raise _Unfit(f"a second {contract}: an archive has one")
            self._note_run(record.run_id, batch, index)
            self.documents.add(name)
            self.books = stated or self.books
            return name
        if contract == RAW_CAPTURE:
            capture = _decode_capture(line)
            if COMPANION_FILE not in self.documents:
                self.books = _told(capture)
            return None
        if contract == CHAIN:
            _decode_link(line)
            return None
        event = _decode_object(line)
        if not is_event(event):
            said = "no contract" if contract is None else repr(contract)
            raise _Unfit(f"names {said}: it has no place in an archive")
        session = event.get("session")
        self._note_run(session.get("run_id") if isinstance(session, dict) else None, batch, index)
        return EVENTS_FILE

    def _note_run(self, run_id: Any, batch: Batch[bytes], index: int) -> None:
        if isinstance(run_id, str) and run_id not in self.run_ids:
            place = "(pipeline)"
            if isinstance(batch, Lines):
                place = f"{batch.source}:{batch.number + index}"
            self.run_ids[run_id] = place


def _told(capture: RawCapture) -> Books:
    filtered = None if capture.filtered is UNSET else capture.filtered
    aside = None if capture.aside is UNSET else capture.aside
    return Books(replace(capture, filtered=UNSET, aside=UNSET), filtered, aside)


def _stated(companion: Companion) -> Books:
    capture = msgspec.convert(companion.capture, RawCapture)
    return Books(capture, companion.filtered, companion.aside)
