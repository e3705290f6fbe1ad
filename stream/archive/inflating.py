"""A gzip file as blocks of what it decodes to, which is not held, and not trusted.

Whoever compressed it may have said more in its header: that is told, and is no fault. A header of
ours names all bytes after it, and nothing of those may be otherwise.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from stream.archive.gzip import (
    KNOWN,
    LENGTH,
    MAGIC,
    NO_SEAL,
    SEALED,
    is_seal,
    seal,
    told,
    what_is_in,
)
from stream.archive.header import BrokenArchive
from stream.archive.limits import Limits

_READ = 1 << 18
_CHUNK = 1 << 20
_TRAILER = 8


class NoArchive(Exception):  # noqa: N818  # said as the answer that there is none
    """Not even the beginning of one."""


class Inflated:
    def __init__(self, file: BinaryIO, limits: Limits) -> None:
        """Reads the header. Raises NoArchive, or BrokenArchive where nothing behind it can be
        read."""
        self.oddity = ""  #: what another compressor said; empty: nothing
        self._file = file
        self._counter = _Counter(limits)
        self._begun = b""
        head = file.read(LENGTH)
        self._seal = file.read(len(NO_SEAL)) if head == SEALED else b""
        if head[:2] != MAGIC:
            raise NoArchive("not an archive: it does not begin as gzip does")
        if not self.is_sealed:
            self._begun, self._seal = self._seal, b""
            if head[2:] not in KNOWN:
                self._read_odd(head.ljust(LENGTH, b"\0"))
        self._counter.take(head + self._seal)

    @property
    def is_sealed(self) -> bool:
        return is_seal(self._seal) is not None

    def _read_odd(self, head: bytes) -> None:
        rest = self._begun + self._file.read(_READ)
        packing = what_is_in(head, rest)
        if packing.is_seal_changed:
            message = "the header is not as it was written: it names what follows it, changed"
            raise BrokenArchive("integrity.gzip", message)
        if packing.start < 0:
            raise BrokenArchive("security.gzip_header", told(packing.found))
        self.oddity, self._begun = told(packing.found), rest[packing.start :]

    def blocks(self) -> Iterator[bytes]:
        digest = hashlib.sha256()
        engine = zlib.decompressobj(-zlib.MAX_WBITS)
        held = b""
        block = self._begun or self._file.read(_READ)
        while block:
            self._counter.take(block)
            digest.update(block)
            block = held + block
            held = block[-_TRAILER:]
            yield from _decoded(engine, block[:-_TRAILER], self._counter)
            block = self._file.read(_READ)
        if not engine.eof:
            raise BrokenArchive("integrity.truncated", "the gzip data ends too early")
        counter = self._counter
        if held != struct.pack("<II", counter.sum, counter.bytes & 0xFFFFFFFF):
            raise BrokenArchive("integrity.gzip", "the gzip checksum or length is wrong")
        if self._seal and self._seal != seal(digest.hexdigest()):
            message = "the compressed bytes are not those that its header names, by their SHA-256"
            raise BrokenArchive("integrity.gzip", message)


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
