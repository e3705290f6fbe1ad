"""An archive as a stream of entries, trusting nothing: memory is flat whatever it decodes to.

Only one form of gzip and of tar is taken for an archive: where another would hold the same
files there is room for what no reader shows.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO

from msgspec import Struct

from stream.archive.gzip import (
    KNOWN,
    LENGTH,
    MAGIC,
    NO_SEAL,
    SEALED,
    beginning,
    is_seal,
    seal,
    told,
    what_is_in,
)
from stream.archive.header import (
    BLOCK,
    ZEROS,
    BrokenArchive,
    Fault,
    Header,
    decode_header,
    decode_long_name,
    may_begin,
    name_fault,
)
from stream.archive.limits import Limits
from stream.evidence.consistency import LONGEST_NAME

_READ = 1 << 18
_CHUNK = 1 << 20
_TRAILER = 8
_AHEAD = 3
_ENOUGH = 1 << 18
_NO_TAR = "not an archive: what is compressed in it is no tar"


class NoArchive(Exception):  # noqa: N818  # said as the answer that there is none
    """Not even the beginning of one."""


class Start(Struct):
    """An entry begins; its contents follow as bytes."""

    name: str
    size: int
    faults: list[Fault]


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
    return _entries(_Tape(_inflated(file, limits)), limits)


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


def _entries(tape: _Tape, limits: Limits) -> Iterator[Part]:
    count = 0
    if not may_begin(tape.next_to(BLOCK)):
        raise NoArchive(_NO_TAR)
    while (block := tape.exactly(BLOCK)) != ZEROS:
        count += 1
        if count > limits.entries:
            raise BrokenArchive("limit.entries", f"more than {limits.entries} entries")
        yield from _entry(tape, *_header(tape, block))
    if tape.exactly(BLOCK) != ZEROS:
        raise BrokenArchive("security.hidden_bytes", "something follows the end of the archive")
    if tape.some(1):
        raise BrokenArchive("security.hidden_bytes", "bytes follow the end of the archive")


def _header(tape: _Tape, block: bytes) -> tuple[Header, list[Fault]]:
    header = decode_header(block)
    if not header.is_long_name:
        return header, header.faults
    if header.size > LONGEST_NAME + 1:
        raise BrokenArchive("limit.path", f"a name has {header.size} bytes")
    length = header.size + -header.size % BLOCK
    name = decode_long_name(tape.exactly(length))
    faults = header.faults
    if len(name) + 1 != header.size:
        faults.append(Fault("security.hidden_bytes", "a long name is not as long as it says"))
    header = decode_header(tape.exactly(BLOCK), name)
    if header.is_long_name:
        raise BrokenArchive("security.renaming", "a long name of a long name")
    return header, faults + header.faults


def _entry(tape: _Tape, header: Header, faults: list[Fault]) -> Iterator[Part]:
    if fault := name_fault(header.name):
        faults.append(fault)
    name = header.name.decode("utf-8", "backslashreplace")
    yield Start(name, header.size, faults)
    left = header.size
    while left:
        chunk = tape.some(left)
        if not chunk:
            raise BrokenArchive("integrity.truncated", f"it ends inside of {name}")
        left -= len(chunk)
        yield chunk
    padding = tape.exactly(-header.size % BLOCK)
    if padding.strip(b"\0"):
        yield Fault("security.hidden_bytes", f"the padding after {name} is not empty")
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


class _Counter:
    """What was decoded so far, and whether that is too much."""

    def __init__(self, limits: Limits) -> None:
        self.sum = 0
        self.bytes = 0
        self.read = 0
        self._limits = limits

    def take(self, block: bytes) -> None:
        self.read += len(block)
        if self.read > self._limits.archive:
            raise BrokenArchive("limit.archive", f"more than {self._limits.archive} bytes")

    def give(self, data: bytes) -> bytes:
        self.bytes += len(data)
        self.sum = zlib.crc32(data, self.sum)
        if self.bytes > self._limits.decoded:
            raise BrokenArchive("limit.decoded", f"more than {self._limits.decoded} bytes decoded")
        most = self._limits.ratio
        if most and self.bytes > most * self.read + _CHUNK:
            raise BrokenArchive("limit.ratio", f"decodes to more than {most} times its size")
        return data


def _inflated(file: BinaryIO, limits: Limits) -> Iterator[bytes]:
    counter = _Counter(limits)
    head = file.read(LENGTH)
    comment = file.read(len(NO_SEAL)) if head == SEALED else b""
    counter.take(head + comment)
    if head[:2] != MAGIC:
        raise NoArchive("not an archive: it does not begin as gzip does")
    if head[2:] not in KNOWN and not is_seal(comment):
        raise _odd_header(head, comment + file.read(_READ))
    digest = hashlib.sha256()
    engine = zlib.decompressobj(-zlib.MAX_WBITS)
    held = b""
    while block := file.read(_READ):
        counter.take(block)
        digest.update(block)
        block = held + block
        held = block[-_TRAILER:]
        yield from _decoded(engine, block[:-_TRAILER], counter)
    if not engine.eof:
        raise BrokenArchive("integrity.truncated", "the gzip data ends too early")
    if held != struct.pack("<II", counter.sum, counter.bytes & 0xFFFFFFFF):
        raise BrokenArchive("integrity.gzip", "the gzip checksum or length is wrong")
    if comment and comment != seal(digest.hexdigest()):
        message = "the compressed bytes are not those that its header names, by their SHA-256"
        raise BrokenArchive("integrity.gzip", message)


def _odd_header(head: bytes, rest: bytes) -> Exception:
    found, deflated = what_is_in(head.ljust(LENGTH, b"\0"), rest)
    first = beginning(deflated, BLOCK)
    if first is not None and not may_begin(first):
        return NoArchive(_NO_TAR)
    return BrokenArchive("security.gzip_header", told(found))


def _decoded(engine: zlib._Decompress, data: bytes, counter: _Counter) -> Iterator[bytes]:
    if engine.eof and data:
        raise BrokenArchive("security.hidden_bytes", "bytes follow the end of the gzip member")
    more = bool(data)
    while more:
        try:
            piece = engine.decompress(data, _CHUNK)
        except zlib.error as error:
            raise BrokenArchive("integrity.gzip", f"not deflated: {error}") from None
        data = engine.unconsumed_tail
        more = not engine.eof and (len(piece) == _CHUNK or bool(data))
        if piece:
            yield counter.give(piece)
    if engine.unused_data:
        raise BrokenArchive("security.hidden_bytes", "bytes follow the end of the gzip member")
