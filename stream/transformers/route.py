"""route: each line of a mixed stream to the file of an archive that its contract belongs to.

Lines keep their bytes. What names no contract with a place in an archive, and what breaks its
contract, is a reject. Links of a chain are left out: an archive made from a pipe has none, for
where they stand is a matter of how a run went. The feed's counters are kept for who derives the
artifacts that the stream lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from stream.archive.writer import FILE_PARTS, FilePart
from stream.boundary.descriptors import Boundaries, descriptor_key_of
from stream.codec import (
    DECODE_ERRORS,
    Lines,
    contract_of,
    decode_fault,
    is_blank,
    join_lines,
    make_reject,
)
from stream.contracts import FILES, contract_name, decode_runner_event
from stream.pipeline import Batch, Counts, Transformer, batches_by_kind
from stream.records.artifacts import (
    CHAIN,
    COMPANION_FILE,
    RUNNER_EVENT,
    RUNNER_FILE,
    CapabilitySurface,
    ChainLink,
    Companion,
    CorrelationReport,
    Marker,
    ObservationHealth,
    PolicyEvent,
    SdkEvent,
)
from stream.records.control import LINES, REJECTS, Gap, Reject
from stream.records.decision import is_event
from stream.records.kernel import RAW_CAPTURE, KernelDetail, KernelEvent, RawCapture
from stream.records.run import BOUNDARY_FILE, EVENTS_FILE

Decode = Callable[[bytes], Any]


def _decoder(kind: type[Any]) -> Decode:
    return msgspec.json.Decoder(kind).decode


def _routes(*kinds: type[Struct]) -> dict[str, tuple[str, Decode]]:
    """Give, by contract, the file that holds its records and what decodes them."""
    files = {kind: file for file, known in FILES.items() for kind in known}
    return {contract_name(kind): (files[kind], _decoder(kind)) for kind in kinds}


_LINES = _routes(KernelEvent, KernelDetail, Gap, SdkEvent, PolicyEvent, Marker)
_LINES[RUNNER_EVENT] = (RUNNER_FILE, decode_runner_event)
_DOCUMENTS = _routes(ObservationHealth, CapabilitySurface, CorrelationReport, Companion)
_decode_capture = _decoder(RawCapture)
_decode_link = _decoder(ChainLink)
_decode_object = _decoder(dict[str, Any])


class FeedCounts(Struct):
    """The counters of the feed, as a stream states them."""

    capture: RawCapture
    #: By rule: events that were left out before; None: how many is not known.
    filtered: Mapping[str, int] | None = None
    aside: Mapping[str, int] | None = None

    @classmethod
    def of_capture(cls, capture: RawCapture) -> FeedCounts:
        """Take the counters from the feed's own record, as a normalizer passes it on."""
        filtered = None if capture.filtered is UNSET else capture.filtered
        aside = None if capture.aside is UNSET else capture.aside
        return cls(replace(capture, filtered=UNSET, aside=UNSET), filtered, aside)

    @classmethod
    def of_companion(cls, companion: Companion) -> FeedCounts:
        """Take the counters from a companion. Raise one of codec's DECODE_ERRORS."""
        capture = msgspec.convert(companion.capture, RawCapture)
        return cls(capture, companion.filtered, companion.aside)


class _UnroutableError(Exception):  # it becomes a reject
    pass


class Route(Transformer):
    """Sort the lines of a stream into the files of an archive: lines in, parts of files and rejects
    out."""

    name = "archive"
    kinds = (LINES,)

    def __init__(self, boundaries: Boundaries) -> None:
        self.counts = Counts()
        self.boundary_keys: set[object] = set()  #: of the boundary objects that came
        self.run_ids: dict[str, str] = {}  #: and the place of the first record of each
        self.documents: set[str] = set()
        self.feed_counts: FeedCounts | None = None  #: a companion's before any others
        self._boundaries = boundaries

    def feed(self, given: Batch[bytes], /) -> list[Batch[Any]]:
        """Pass each line of a batch on as a part of the file that it belongs to."""
        batch = given.items
        self.counts.received += len(batch)
        lines: dict[str, list[bytes]] = {}
        out: list[FilePart | Reject] = []
        for index, line in enumerate(batch):
            if is_blank(line):
                self.counts.filtered += 1
                continue
            try:
                name = self._archive_file_of(line, batch, index)
            except (*DECODE_ERRORS, _UnroutableError) as error:
                self.counts.rejected += 1
                out.append(make_reject(self.name, batch, index, decode_fault(error)))
                continue
            if name is None:
                self.counts.filtered += 1
                continue
            self.counts.passed += 1
            if name in self.documents:
                out.append(FilePart(name, line + b"\n"))
            else:
                lines.setdefault(name, []).append(line)
        parts = [*(FilePart(name, join_lines(items)) for name, items in lines.items()), *out]
        return batches_by_kind(
            parts, lambda item: FILE_PARTS if isinstance(item, FilePart) else REJECTS
        )

    def _archive_file_of(self, line: bytes, batch: Sequence[bytes], index: int) -> str | None:
        """Return the file that a line belongs to; None: it is left out.

        Raise _UnroutableError or one of DECODE_ERRORS.
        """
        contract = contract_of(line)
        if contract in _LINES:
            name, decode = _LINES[contract]
            self._note_run_id(getattr(decode(line), "run_id", None), batch, index)
            return name
        if contract is not None and self._boundaries.knows_pattern(contract):
            if fault := self._boundaries.check_boundary(line, contract):
                raise _UnroutableError(" - at `".join(filter(None, (fault.reason, fault.path))))
            self.boundary_keys.add(descriptor_key_of(line))
            return BOUNDARY_FILE
        if contract in _DOCUMENTS:
            name, decode = _DOCUMENTS[contract]
            record = decode(line)
            counts = FeedCounts.of_companion(record) if isinstance(record, Companion) else None
            if name in self.documents:
                raise _UnroutableError(f"a second {contract}: an archive has one")
            self._note_run_id(record.run_id, batch, index)
            self.documents.add(name)
            self.feed_counts = counts or self.feed_counts
            return name
        if contract == RAW_CAPTURE:
            capture = _decode_capture(line)
            if COMPANION_FILE not in self.documents:
                self.feed_counts = FeedCounts.of_capture(capture)
            return None
        if contract == CHAIN:
            _decode_link(line)
            return None
        event = _decode_object(line)
        if not is_event(event):
            named = "no contract" if contract is None else repr(contract)
            raise _UnroutableError(f"names {named}: it has no place in an archive")
        session = event.get("session")
        self._note_run_id(
            session.get("run_id") if isinstance(session, dict) else None, batch, index
        )
        return EVENTS_FILE

    def _note_run_id(self, run_id: Any, batch: Sequence[bytes], index: int) -> None:
        """Note a run id that a line names for the first time, and the place of that line."""
        if isinstance(run_id, str) and run_id not in self.run_ids:
            location = "(pipeline)"
            if isinstance(batch, Lines):
                location = f"{batch.source}:{batch.number + index}"
            self.run_ids[run_id] = location
