"""A mixed stream of records, each line to the file of an archive that it belongs to.

Lines keep their bytes. What names no contract with a place in an archive, and what breaks its
contract, is a reject. Links of a chain are left out: an archive made from a pipe has none, for
where they stand is a matter of how a run went.

Where the pieces of a mixed stream wait until all is there: files that nobody else can see."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import msgspec
from anyio import to_thread
from msgspec import UNSET, Struct
from msgspec.structs import replace

from stream.archive.chain import Tally
from stream.archive.tar import READ, Entry, Measure
from stream.boundary.descriptors import Boundaries, key_of
from stream.codec import DECODE_ERRORS, Lines, contract_of, explain, is_blank, join_lines, reject
from stream.contracts import decode_runner_event
from stream.errors import OutputError, reporting
from stream.pipeline import Batch, Counts, Write, by_kind
from stream.records.artifacts import (
    CHAIN,
    COMPANION_FILE,
    CONTRACTS,
    DETAIL_FILE,
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
from stream.records.control import GAP, LINES, REJECTS, Gap, Reject
from stream.records.decision import is_event
from stream.records.kernel import (
    KERNEL_DETAIL,
    RAW_CAPTURE,
    KernelDetail,
    KernelEvent,
    RawCapture,
)
from stream.records.run import BOUNDARY_FILE, EVENTS_FILE

Decode = Callable[[bytes], Any]
PIECES = "pieces"  #: a kind: bytes for a file of the archive


def _decoder(kind: type[Any]) -> Decode:
    return msgspec.json.Decoder(kind).decode


def _routes(*kinds: type[Struct]) -> dict[str, tuple[str, Decode]]:
    """Give, by contract, the file that holds its records and what decodes them."""
    files = {contract: file for file, contract in CONTRACTS.items()}
    tagged = [(str(kind.__struct_config__.tag), kind) for kind in kinds]
    return {contract: (files[contract], _decoder(kind)) for contract, kind in tagged}


_LINES = _routes(KernelEvent, SdkEvent, PolicyEvent, Marker)
_LINES |= {
    KERNEL_DETAIL: (DETAIL_FILE, _decoder(KernelDetail)),
    GAP: (DETAIL_FILE, _decoder(Gap)),
    RUNNER_EVENT: (RUNNER_FILE, decode_runner_event),
}
_DOCUMENTS = _routes(ObservationHealth, CapabilitySurface, CorrelationReport, Companion)
_decode_capture = _decoder(RawCapture)
_decode_link = _decoder(ChainLink)
_decode_object = _decoder(dict[str, Any])


class Piece(Struct):
    """Bytes that go to the end of a file."""

    name: str
    data: bytes


class FeedCounts(Struct):
    """The counters of the feed, as the stream has them."""

    capture: RawCapture
    #: None: what was left out before is not known.
    filtered: Mapping[str, int] | None
    aside: Mapping[str, int] | None


class _UnroutableError(Exception):  # it becomes a reject
    pass


class Assort:
    """Lines in; pieces and rejects out."""

    name = "archive"
    kinds = (LINES,)

    def __init__(self, boundaries: Boundaries) -> None:
        self.boundary_keys: set[object] = set()  #: of the boundary objects that came
        self._boundaries = boundaries
        self.counts = Counts()
        self.run_ids: dict[str, str] = {}  #: and the place of the first record of each
        self.documents: set[str] = set()
        self.books: FeedCounts | None = None  #: a companion's before any others

    def feed(self, given: Batch[bytes], /) -> list[Batch[Any]]:
        """Sort the lines of a batch by the file of the archive that they belong to."""
        batch = given.items
        self.counts.received += len(batch)
        lines: dict[str, list[bytes]] = {}
        out: list[Piece | Reject] = []
        for index, line in enumerate(batch):
            if is_blank(line):
                self.counts.filtered += 1
                continue
            try:
                name = self._place_of(line, batch, index)
            except (*DECODE_ERRORS, _UnroutableError) as error:
                self.counts.rejected += 1
                out.append(reject(self.name, batch, index, explain(error)))
                continue
            if name is None:
                self.counts.filtered += 1
                continue
            self.counts.passed += 1
            if name in self.documents:
                out.append(Piece(name, line + b"\n"))
            else:
                lines.setdefault(name, []).append(line)
        pieces = [*(Piece(name, join_lines(items)) for name, items in lines.items()), *out]
        return by_kind(pieces, lambda item: PIECES if isinstance(item, Piece) else REJECTS)

    def finish(self) -> tuple[()]:
        """Nothing is left at the end."""
        return ()

    def _place_of(self, line: bytes, batch: Sequence[bytes], index: int) -> str | None:
        """Raises _Unfit or one of DECODE_ERRORS. None: it is left out."""
        contract = contract_of(line)
        if contract in _LINES:
            name, decode = _LINES[contract]
            self._note_run(getattr(decode(line), "run_id", None), batch, index)
            return name
        if contract is not None and self._boundaries.knows(contract):
            if fault := self._boundaries.check(line, contract):
                raise _UnroutableError(" - at `".join(filter(None, (fault.reason, fault.path))))
            self.boundary_keys.add(key_of(line))
            return BOUNDARY_FILE
        if contract in _DOCUMENTS:
            name, decode = _DOCUMENTS[contract]
            record = decode(line)
            stated = _stated(record) if isinstance(record, Companion) else None
            if name in self.documents:
                raise _UnroutableError(f"a second {contract}: an archive has one")
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
            raise _UnroutableError(f"names {said}: it has no place in an archive")
        session = event.get("session")
        self._note_run(session.get("run_id") if isinstance(session, dict) else None, batch, index)
        return EVENTS_FILE

    def _note_run(self, run_id: Any, batch: Sequence[bytes], index: int) -> None:
        if isinstance(run_id, str) and run_id not in self.run_ids:
            place = "(pipeline)"
            if isinstance(batch, Lines):
                place = f"{batch.source}:{batch.number + index}"
            self.run_ids[run_id] = place


def _told(capture: RawCapture) -> FeedCounts:
    filtered = None if capture.filtered is UNSET else capture.filtered
    aside = None if capture.aside is UNSET else capture.aside
    return FeedCounts(replace(capture, filtered=UNSET, aside=UNSET), filtered, aside)


def _stated(companion: Companion) -> FeedCounts:
    capture = msgspec.convert(companion.capture, RawCapture)
    return FeedCounts(capture, companion.filtered, companion.aside)


class Spools:
    """A sink. The files have no names: whatever ends the process, they are gone."""

    kinds = (PIECES,)

    def __init__(self, target: Path) -> None:
        self._target = target  # beside it: where the archive has room, they have
        self._files: dict[str, IO[bytes]] = {}
        self._tallies: dict[str, Tally] = {}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Write]:
        """Give a writer that adds pieces to the spools."""

        async def write(batch: Batch[Piece]) -> None:
            """Add the pieces of a batch, in a thread."""
            with reporting(self._target, OutputError):
                await to_thread.run_sync(self._add, batch.items)

        yield write

    def close(self) -> None:
        """Close the files, which removes them."""
        for file in self._files.values():
            with suppress(OSError):  # what it still had to write is wanted by nobody
                file.close()

    def names(self) -> set[str]:
        """The files of which there is a piece."""
        return {*self._files}

    def entries(self) -> list[Entry]:
        """To be read before `close`, one after the other."""
        return [self._entry(name) for name in self._files]

    def read(self, name: str) -> Iterator[bytes]:
        """What a file holds, in blocks; of one that is not there, nothing."""
        if name in self._files:
            with self._opened(name) as file:
                while block := file.read(READ):
                    yield block

    def _add(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            if piece.name not in self._files:
                folder = self._target.absolute().parent
                self._files[piece.name] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
                self._tallies[piece.name] = Tally(piece.name)
            self._files[piece.name].write(piece.data)
            self._tallies[piece.name].feed(piece.data)

    def _entry(self, name: str) -> Entry:
        tally = self._tallies[name]
        return Entry(name, lambda: self._opened(name), Measure(tally.bytes, tally.sha256))

    def _opened(self, name: str) -> BinaryIO:
        file = self._files[name]
        with reporting(self._target, OutputError):
            file.flush()
            again = open(os.dup(file.fileno()), "rb", buffering=0)  # noqa: PTH123, SIM115
            again.seek(0)
        return cast("BinaryIO", again)
