"""Read an archive as a stream of entries: nothing is trusted, and memory is flat.

The limits are far above an honest run (five million kernel events are 1.3 GB of lines, and a fifth
of that in a companion layer), and far below what a bomb of the size of the file could hold.
An archive of ours has one form of gzip and of tar. Where another program packed the same files,
they are the same evidence, which is remarked; bytes that no reader shows are always a fault.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO

from msgspec import Struct

from stream.archive.gzip import GzipReader
from stream.archive.manifest import archive_order_key, is_archive_file
from stream.archive.tar import (
    BLOCK,
    EXTENSIONS,
    FOLDER,
    MOST_EXTENDED,
    PACKING,
    ZEROS,
    BrokenArchive,
    Header,
    NoArchive,
    decode_extended,
    decode_header,
    decode_long_name,
    entry_kind_fault,
    entry_name_fault,
    extended_name_faults,
    is_of_another_tar,
    may_begin_tar,
)
from stream.codec import MAX_LINE
from stream.evidence.consistency import LONGEST_NAME, unsafe_name_fault
from stream.records.artifacts import ARCHIVE_MANIFEST
from stream.records.control import Fault
from stream.records.run import ARTIFACTS, LAYERS


class Limits(Struct, frozen=True, kw_only=True):
    """How much a reader takes of an archive before it refuses it."""

    archive: int = 2 << 30  #: bytes of the file
    decoded: int = 8 << 30
    entries: int = 10_000
    lines: int = 50_000_000  #: of all layers
    #: of each layer that is held as a whole, which tell of an agent's calls: a recorder keeps no
    #: more, and a marker more at the start and at the end of a run
    held: int = 100_002
    line: int = MAX_LINE  #: bytes: no part of the recorder writes a longer one
    document: int = 64 << 20  #: bytes of a JSON artifact, which is held as a whole
    depth: int = 64
    #: 0: none. A gigabyte of one byte is an honest output of an agent, and packs 1000 to 1.
    ratio: int = 0


def leading_folder(name: bytes, kind: bytes) -> bytes:
    """Return the folder in which everything lies, by the first entry; empty if there is none."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return b""
    if kind == FOLDER:
        folder = "" if is_run_folder_name(name) else text.rstrip("/")
    else:
        steps = text.split("/")
        rests = ("/".join(steps[at:]) for at in range(len(steps)))
        folder = next(
            (text[: -len(rest) - 1] for rest in rests if rest and is_archive_file(rest)), ""
        )
    return f"{folder}/".encode() if folder and unsafe_name_fault(folder) is None else b""


def is_run_folder_name(name: bytes) -> bool:
    """Tell whether files of a run lie in a folder of this name."""
    path, artifacts = name.rstrip(b"/"), ARTIFACTS.encode()
    return path in (b"", b".", LAYERS.encode(), artifacts) or path.startswith(artifacts + b"/")


_AHEAD = 3
_ENOUGH = 1 << 18
_MOST_HEADERS = 4  #: before an entry, its own with them
_HERE = b"./"


class EntryStart(Struct):
    """An entry begins; its content follows as bytes."""

    name: str
    size: int
    faults: list[Fault]
    is_sealed: bool = False  #: of an archive whose header has the digest of its bytes


class EntryEnd(Struct):
    """An entry ends."""


Part = EntryStart | bytes | EntryEnd | Fault


class _PartBatch(Struct):
    """Parts that are handed over together, and the error that ended them, if one did."""

    parts: list[Part]
    has_ended: bool = False
    error: Exception | None = None


def read_parts_ahead(parts: Iterator[Part]) -> Iterator[Part]:
    """Yield the same parts, made in a thread meanwhile: reading and inflating need no interpreter.

    What is short is not worth a thread.
    """
    batch = _next_part_batch(parts)
    yield from _parts_in(batch)
    if batch.has_ended:
        return
    pending: deque[Future[_PartBatch]] = deque()
    with ThreadPoolExecutor(1) as other:
        try:
            while not batch.has_ended:
                while len(pending) < _AHEAD:
                    pending.append(other.submit(_next_part_batch, parts))
                batch = pending.popleft().result()
                yield from _parts_in(batch)
        finally:
            other.shutdown(cancel_futures=True)


def _parts_in(batch: _PartBatch) -> Iterator[Part]:
    yield from batch.parts
    if batch.error:
        raise batch.error


def _next_part_batch(parts: Iterator[Part]) -> _PartBatch:
    """Collect the next parts of an archive until they are worth handing to another thread."""
    found: list[Part] = []
    length = 0
    try:
        for part in parts:
            found.append(part)
            length += len(part) if isinstance(part, bytes) else 1
            if length >= _ENOUGH:
                return _PartBatch(found)
    except Exception as error:
        return _PartBatch(found, error=error)
    return _PartBatch(found, has_ended=True)


def parts_of(file: BinaryIO, limits: Limits) -> Iterator[Part]:
    """Read the parts of an archive. Raise BrokenArchive where nothing that follows can be read."""
    gzip = GzipReader(file, limits.archive, limits.decoded, limits.ratio)
    reader = _BlockReader(gzip.decoded_blocks())
    first = reader.preview_bytes(BLOCK)
    if not may_begin_tar(first):
        raise NoArchive("not an archive: what is compressed in it is no tar")
    if gzip.oddity:
        yield Fault(gzip.oddity, rule="packing.gzip")
    parts = _TarEntries(reader, limits, is_sealed=gzip.is_sealed).all_parts()
    # Whatever order they came in: a file is checked after those that it is compared with.
    yield from _parts_in_order(parts) if not gzip.is_sealed and is_of_another_tar(first) else parts


def contents_of(parts: Iterator[Part], name: str) -> Iterator[bytes]:
    """Read the parts of one file of an archive, and nothing after it."""
    is_wanted = False
    for part in parts:
        if isinstance(part, EntryStart):
            is_wanted = part.name == name
        elif isinstance(part, EntryEnd) and is_wanted:
            return
        elif isinstance(part, bytes) and is_wanted:
            yield part


class _TarEntries:
    """The files in a tar. Under a seal it has our form; else another program may have packed the
    same files, which is remarked once."""

    def __init__(self, reader: _BlockReader, limits: Limits, *, is_sealed: bool) -> None:
        self._reader = reader
        self._limits = limits
        self._is_sealed = is_sealed
        self._is_reported = False
        self._folder: bytes | None = None  #: in which all of it lies; None: not known yet

    def all_parts(self) -> Iterator[Part]:
        """Yield the parts of all entries, in their order."""
        reader, count = self._reader, 0
        while (block := reader.read_exactly(BLOCK)) != ZEROS:
            count += 1
            if count > self._limits.entries:
                raise BrokenArchive("limit.entries", f"more than {self._limits.entries} entries")
            header, faults = self._read_header(block)
            if self._is_folder(header):
                faults.append(Fault("it has entries for folders", rule=PACKING))
                yield from self._faults_to_report(faults)
            else:
                yield from self._entry_parts(header, faults)
        if reader.read_exactly(BLOCK) != ZEROS:
            raise BrokenArchive("security.hidden_bytes", "something follows the end of the archive")
        while more := reader.read_up_to(_ENOUGH):
            if self._is_sealed or more.strip(b"\0"):
                raise BrokenArchive("security.hidden_bytes", "bytes follow the end of the archive")
            oddity = Fault("made by another tar: it goes on after its end", rule=PACKING)
            yield from self._faults_to_report([oddity])

    def _faults_to_report(self, faults: list[Fault]) -> list[Fault]:
        """Select which faults of a tar header to report: another tar's form only once."""
        found = []
        for fault in faults:
            if fault.rule != PACKING:
                found.append(fault)
            elif self._is_sealed:
                found.append(Fault(fault.reason, rule="security.header"))
            elif not self._is_reported:
                self._is_reported = True
                found.append(fault)
        return found

    def _read_header(self, block: bytes) -> tuple[Header, list[Fault]]:
        """Return the header of the entry, and the faults of it and of those before it."""
        faults: list[Fault] = []
        long_name: bytes | None = None
        given: bytes | None = None
        for _ in range(_MOST_HEADERS):
            header = decode_header(block, long_name)
            faults += header.faults
            if header.is_long_name:
                if long_name is not None:
                    raise BrokenArchive("security.renaming", "a long name of a long name")
                long_name = self._read_long_name(header, faults)
            elif header.kind in EXTENSIONS and not self._is_sealed:
                data = self._read_name_data(header, MOST_EXTENDED)
                name, more = decode_extended(data, header.kind)
                given = given if name is None else name
                faults += more
            else:
                break
            block = self._reader.read_exactly(BLOCK)
        else:
            raise BrokenArchive("security.renaming", "header upon header, and no entry")
        if given is not None:
            faults += extended_name_faults(header.name, given)
            header.name = given
        if not self._is_sealed and header.name.startswith(_HERE):
            header.name = header.name.removeprefix(_HERE)
            faults.append(Fault("made by another tar: its names begin with `./`", rule=PACKING))
        if not self._is_sealed:
            self._strip_folder(header, faults)
        return header, faults

    def _strip_folder(self, header: Header, faults: list[Fault]) -> None:
        """Remove the folder in which all of a foreign archive lies from the name of an entry."""
        if self._folder is None:
            self._folder = leading_folder(header.name, header.kind)
        if self._folder and header.name.rstrip(b"/") + b"/" == self._folder:
            header.name = b""
        elif self._folder and header.name.startswith(self._folder):
            header.name = header.name.removeprefix(self._folder)
            faults.append(Fault("made by another tar: all of it lies in one folder", rule=PACKING))

    def _read_long_name(self, header: Header, faults: list[Fault]) -> bytes:
        """Read the name that a long-name header of the archive announces."""
        name = decode_long_name(self._read_name_data(header, LONGEST_NAME + len(_HERE) + 1))
        if len(name) + 1 != header.size:
            faults.append(
                Fault("a long name is not as long as it says", rule="security.hidden_bytes")
            )
        return name

    def _read_name_data(self, header: Header, most: int) -> bytes:
        """Read the data of a header that names the next entry, with its padding."""
        if header.size > most:
            raise BrokenArchive("limit.path", f"a name has {header.size} bytes")
        data = self._reader.read_exactly(header.size + -header.size % BLOCK)
        if data[header.size :].strip(b"\0"):
            raise BrokenArchive("security.hidden_bytes", "a name does not end where it should")
        return data[: header.size]

    def _is_folder(self, header: Header) -> bool:
        if self._is_sealed or header.kind != FOLDER or header.size:
            return False
        return is_run_folder_name(header.name)

    def _entry_parts(self, header: Header, faults: list[Fault]) -> Iterator[Part]:
        """Yield the parts of one archive entry: its start, its bytes, its faults and its end."""
        faults += filter(None, (entry_kind_fault(header.kind), entry_name_fault(header.name)))
        name = header.name.decode("utf-8", "backslashreplace")
        yield EntryStart(name, header.size, self._faults_to_report(faults), self._is_sealed)
        left = header.size
        while left:
            chunk = self._reader.read_up_to(left)
            if not chunk:
                raise BrokenArchive("integrity.truncated", f"it ends inside of {name}")
            left -= len(chunk)
            yield chunk
        if self._reader.read_exactly(-header.size % BLOCK).strip(b"\0"):
            yield Fault(f"the padding after {name} is not empty", rule="security.hidden_bytes")
        yield EntryEnd()


class _WaitingFile(Struct):
    """A file that waits until those before it were read."""

    start: EntryStart
    at: int
    faults: list[Fault]


def _parts_in_order(parts: Iterator[Part]) -> Iterator[Part]:
    """Yield the same files in the order of an archive of ours; until then they wait in a file that
    nobody else can see. Raise BrokenArchive where they are no archive."""
    kept: list[_WaitingFile] = []
    with tempfile.TemporaryFile() as file:
        for part in parts:
            if isinstance(part, bytes):
                file.write(part)
            elif isinstance(part, EntryStart):
                kept.append(_WaitingFile(part, file.tell(), []))
            elif isinstance(part, Fault):
                if kept:
                    kept[-1].faults.append(part)
                else:
                    yield part
        if kept and not any(one.start.name == ARCHIVE_MANIFEST for one in kept):
            message = f"there is no {ARCHIVE_MANIFEST}: `stream archive RUN -o F` packs a run"
            raise BrokenArchive("integrity.missing", message)
        for one in sorted(kept, key=lambda one: archive_order_key(one.start.name)):
            yield one.start
            file.seek(one.at)
            left = one.start.size
            while left:
                block = file.read(min(left, _ENOUGH))
                left -= len(block)
                yield block
            yield from one.faults
            yield EntryEnd()


class _BlockReader:
    """Reads pieces of a wanted length from blocks of any length."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._block = b""
        self._at = 0

    def read_up_to(self, most: int) -> bytes:
        """Return the next bytes of the archive, at most so many; none only at the end."""
        if self._at == len(self._block):
            self._block, self._at = next(self._blocks, b""), 0
        if not self._at and len(self._block) <= most:
            self._at = len(self._block)
            return self._block
        piece = self._block[self._at : self._at + most]
        self._at += len(piece)
        return piece

    def preview_bytes(self, length: int) -> bytes:
        """Return the next bytes of the archive without taking them; fewer at the end."""
        while len(self._block) - self._at < length and (more := next(self._blocks, b"")):
            self._block, self._at = self._block[self._at :] + more, 0
        return self._block[self._at : self._at + length]

    def read_exactly(self, length: int) -> bytes:
        """Return so many bytes. Raise BrokenArchive where they are not there."""
        pieces = []
        while length:
            piece = self.read_up_to(length)
            if not piece:
                raise BrokenArchive("integrity.truncated", "it ends too early")
            pieces.append(piece)
            length -= len(piece)
        return b"".join(pieces)
