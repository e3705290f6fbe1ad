"""An archive as a stream of entries, trusting nothing: memory is flat whatever it decodes to.

What one of ours is has one form of gzip and of tar. Where another program packed the same files,
they are the same evidence; what no reader shows is a fault wherever it stands.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO

from msgspec import Struct

from stream.archive.foreign import (
    EXTENSIONS,
    FOLDER,
    MOST,
    extended,
    is_folder,
    leading_folder,
    renamed,
)
from stream.archive.header import (
    BLOCK,
    PACKING,
    ZEROS,
    BrokenArchive,
    Fault,
    Header,
    decode_header,
    decode_long_name,
    is_foreign,
    kind_fault,
    may_begin,
    name_fault,
)
from stream.archive.inflating import Inflated, NoArchive
from stream.archive.limits import Limits
from stream.archive.places import place_of
from stream.evidence.consistency import LONGEST_NAME
from stream.records.runner import ARCHIVE_MANIFEST

_AHEAD = 3
_ENOUGH = 1 << 18
_MOST_HEADERS = 4  #: before an entry, its own with them
_HERE = b"./"


class Start(Struct):
    """An entry begins; its contents follow as bytes."""

    name: str
    size: int
    faults: list[Fault]
    is_sealed: bool = False  #: of an archive whose header vouches for its bytes


class End(Struct):
    """Of an entry."""


Part = Start | bytes | End | Fault


class _Stretch(Struct):
    """Parts that are handed over together, and how they ended, where they did."""

    parts: list[Part]
    has_ended: bool = False
    error: Exception | None = None


def ahead(parts: Iterator[Part]) -> Iterator[Part]:
    """The same, made in a thread meanwhile: to read and to inflate needs no interpreter. What is
    short is not worth a thread."""
    stretch = _stretch(parts)
    yield from _parts_in(stretch)
    if stretch.has_ended:
        return
    pending: deque[Future[_Stretch]] = deque()
    with ThreadPoolExecutor(1) as other:
        try:
            while not stretch.has_ended:
                while len(pending) < _AHEAD:
                    pending.append(other.submit(_stretch, parts))
                stretch = pending.popleft().result()
                yield from _parts_in(stretch)
        finally:
            other.shutdown(cancel_futures=True)


def _parts_in(stretch: _Stretch) -> Iterator[Part]:
    yield from stretch.parts
    if stretch.error:
        raise stretch.error


def _stretch(parts: Iterator[Part]) -> _Stretch:
    found: list[Part] = []
    length = 0
    try:
        for part in parts:
            found.append(part)
            length += len(part) if isinstance(part, bytes) else 1
            if length >= _ENOUGH:
                return _Stretch(found)
    except Exception as error:
        return _Stretch(found, error=error)
    return _Stretch(found, has_ended=True)


def parts_of(file: BinaryIO, limits: Limits) -> Iterator[Part]:
    """Raises BrokenArchive where nothing after it can be read."""
    inflated = Inflated(file, limits)
    tape = _Tape(inflated.blocks())
    first = tape.next_to(BLOCK)
    if not may_begin(first):
        raise NoArchive("not an archive: what is compressed in it is no tar")
    if inflated.oddity:
        yield Fault("packing.gzip", inflated.oddity)
    parts = _Entries(tape, limits, is_sealed=inflated.is_sealed).parts()
    # In whatever order they came: nothing can be judged before what it is held against.
    yield from _in_order(parts) if not inflated.is_sealed and is_foreign(first) else parts


def contents_of(parts: Iterator[Part], name: str) -> Iterator[bytes]:
    """Of one file. What comes after it is not read."""
    is_wanted = False
    for part in parts:
        if isinstance(part, Start):
            is_wanted = part.name == name
        elif isinstance(part, End) and is_wanted:
            return
        elif isinstance(part, bytes) and is_wanted:
            yield part


class _Entries:
    """The files in a tar. Where the gzip header vouches for it, it is one of ours, in our form;
    else another may have packed the same files, which is said once."""

    def __init__(self, tape: _Tape, limits: Limits, *, is_sealed: bool) -> None:
        self._tape = tape
        self._limits = limits
        self._is_sealed = is_sealed
        self._is_told = False
        self._folder: bytes | None = None  #: in which all of it lies; None: not known yet

    def parts(self) -> Iterator[Part]:
        tape, count = self._tape, 0
        while (block := tape.exactly(BLOCK)) != ZEROS:
            count += 1
            if count > self._limits.entries:
                raise BrokenArchive("limit.entries", f"more than {self._limits.entries} entries")
            header, faults = self._header(block)
            if self._is_folder(header):
                yield from self._weighed([*faults, Fault(PACKING, "it has entries for folders")])
            else:
                yield from self._entry(header, faults)
        if tape.exactly(BLOCK) != ZEROS:
            raise BrokenArchive("security.hidden_bytes", "something follows the end of the archive")
        while more := tape.some(_ENOUGH):
            if self._is_sealed or more.strip(b"\0"):
                message = "bytes follow the end of the archive"
                raise BrokenArchive("security.hidden_bytes", message)
            yield from self._weighed(
                [Fault(PACKING, "made by another tar: it goes on after its end")]
            )

    def _weighed(self, faults: list[Fault]) -> list[Fault]:
        found = []
        for fault in faults:
            if fault.rule != PACKING:
                found.append(fault)
            elif self._is_sealed:
                found.append(Fault("security.header", fault.message))
            elif not self._is_told:
                self._is_told = True
                found.append(fault)
        return found

    def _header(self, block: bytes) -> tuple[Header, list[Fault]]:
        """The one that is of the entry, and all that is odd about it and those before it."""
        faults: list[Fault] = []
        long_name: bytes | None = None
        given: bytes | None = None
        for _ in range(_MOST_HEADERS):
            header = decode_header(block, long_name)
            faults += header.faults
            if header.is_long_name:
                if long_name is not None:
                    raise BrokenArchive("security.renaming", "a long name of a long name")
                long_name = self._long_name(header, faults)
            elif header.kind in EXTENSIONS and not self._is_sealed:
                data = self._data(header, MOST)
                name, more = extended(data, header.kind)
                given = given if name is None else name
                faults += more
            else:
                break
            block = self._tape.exactly(BLOCK)
        else:
            raise BrokenArchive("security.renaming", "header upon header, and no entry")
        if given is not None:
            faults += renamed(header.name, given)
            header.name = given
        if not self._is_sealed and header.name.startswith(_HERE):
            header.name = header.name.removeprefix(_HERE)
            faults.append(Fault(PACKING, "made by another tar: its names begin with `./`"))
        if not self._is_sealed:
            self._leave_folder(header, faults)
        return header, faults

    def _leave_folder(self, header: Header, faults: list[Fault]) -> None:
        if self._folder is None:
            self._folder = leading_folder(header.name, header.kind)
        if self._folder and header.name.rstrip(b"/") + b"/" == self._folder:
            header.name = b""
        elif self._folder and header.name.startswith(self._folder):
            header.name = header.name.removeprefix(self._folder)
            faults.append(Fault(PACKING, "made by another tar: all of it lies in one folder"))

    def _long_name(self, header: Header, faults: list[Fault]) -> bytes:
        name = decode_long_name(self._data(header, LONGEST_NAME + len(_HERE) + 1))
        if len(name) + 1 != header.size:
            faults.append(Fault("security.hidden_bytes", "a long name is not as long as it says"))
        return name

    def _data(self, header: Header, most: int) -> bytes:
        if header.size > most:
            raise BrokenArchive("limit.path", f"a name has {header.size} bytes")
        data = self._tape.exactly(header.size + -header.size % BLOCK)
        if data[header.size :].strip(b"\0"):
            raise BrokenArchive("security.hidden_bytes", "a name does not end where it should")
        return data[: header.size]

    def _is_folder(self, header: Header) -> bool:
        if self._is_sealed or header.kind != FOLDER or header.size:
            return False
        return is_folder(header.name)

    def _entry(self, header: Header, faults: list[Fault]) -> Iterator[Part]:
        if fault := kind_fault(header.kind):
            faults.append(fault)
        if fault := name_fault(header.name):
            faults.append(fault)
        name = header.name.decode("utf-8", "backslashreplace")
        yield Start(name, header.size, self._weighed(faults), self._is_sealed)
        left = header.size
        while left:
            chunk = self._tape.some(left)
            if not chunk:
                raise BrokenArchive("integrity.truncated", f"it ends inside of {name}")
            left -= len(chunk)
            yield chunk
        padding = self._tape.exactly(-header.size % BLOCK)
        if padding.strip(b"\0"):
            yield Fault("security.hidden_bytes", f"the padding after {name} is not empty")
        yield End()


class _Kept(Struct):
    """A file that waits for those before it."""

    start: Start
    at: int
    faults: list[Fault]


def _in_order(parts: Iterator[Part]) -> Iterator[Part]:
    """The same, in the order in which an archive of ours has them. Meanwhile they are in a file
    that nobody else can see. Raises BrokenArchive where they are no archive."""
    kept: list[_Kept] = []
    with tempfile.TemporaryFile() as file:
        for part in parts:
            if isinstance(part, bytes):
                file.write(part)
            elif isinstance(part, Start):
                kept.append(_Kept(part, file.tell(), []))
            elif isinstance(part, Fault):
                if kept:
                    kept[-1].faults.append(part)
                else:
                    yield part
        if kept and not any(one.start.name == ARCHIVE_MANIFEST for one in kept):
            message = f"there is no {ARCHIVE_MANIFEST}: `stream archive RUN -o F` packs a run"
            raise BrokenArchive("integrity.missing", message)
        for one in sorted(kept, key=lambda one: place_of(one.start.name)):
            yield one.start
            file.seek(one.at)
            left = one.start.size
            while left:
                block = file.read(min(left, _ENOUGH))
                left -= len(block)
                yield block
            yield from one.faults
            yield End()


class _Tape:
    """Blocks of any length as pieces of the wanted length."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._block = b""
        self._at = 0

    def some(self, most: int) -> bytes:
        """Empty only at the end."""
        if self._at == len(self._block):
            self._block, self._at = next(self._blocks, b""), 0
        if not self._at and len(self._block) <= most:
            self._at = len(self._block)
            return self._block
        piece = self._block[self._at : self._at + most]
        self._at += len(piece)
        return piece

    def next_to(self, length: int) -> bytes:
        """What comes next stays where it is; at the end there is less of it."""
        while len(self._block) - self._at < length and (more := next(self._blocks, b"")):
            self._block, self._at = self._block[self._at :] + more, 0
        return self._block[self._at : self._at + length]

    def exactly(self, length: int) -> bytes:
        pieces = []
        while length:
            piece = self.some(length)
            if not piece:
                raise BrokenArchive("integrity.truncated", "it ends too early")
            pieces.append(piece)
            length -= len(piece)
        return b"".join(pieces)
