"""The gzip around the tar of an archive: how it is written, and how it is read and checked.

What is compressed to which bytes depends on the library. The header has a seal, the SHA-256 of all
that follows: with it, each byte counts. Where another program compressed a tar, that is remarked.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import BinaryIO

from msgspec import Struct

from stream.archive.tar import BrokenArchive, NoArchive
from stream.errors import printable
from stream.files.append import write_all

LEVEL = 6
_MAGIC = b"\x1f\x8b"
LENGTH = 10  #: bytes, of a header that has no more than it must
SEALED = _MAGIC + b"\x08\x10\0\0\0\0\0\x03"  #: the header's beginning, where a seal follows
#: of who says no more than it must: `gzip -n`, and the reference
_KNOWN = (b"\x08\0\0\0\0\0\0\x03", b"\x08\0\0\0\0\0\x02\xff")
_DEFLATE = 8
_CHECKSUM, _EXTRA, _NAME, _COMMENT, _RESERVED = 0x02, 0x04, 0x08, 0x10, 0xE0


def seal_comment(digest: str) -> bytes:
    """Return the comment in the gzip header that names what follows it."""
    return b"sha256:%s\0" % digest.encode()


_NO_SEAL = seal_comment("0" * 64)  #: as long as any
_SEAL_WORD, _FEW, _DIGITS = len("sha256:"), 8, frozenset(b"0123456789abcdef")
_is_seal = re.compile(rb"sha256:[0-9a-f]{64}\0").fullmatch


class GzipWriter:
    """A writer compresses into a file, whose header gets its seal at the end."""

    def __init__(self, fd: int) -> None:
        self.taken = 0
        self._fd = fd
        self._sum = 0
        self._digest = hashlib.sha256()
        self._engine = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        write_all(fd, SEALED + _NO_SEAL)

    def compress(self, data: bytes) -> None:
        """Compress data of the archive and write what comes of it."""
        self._sum = zlib.crc32(data, self._sum)
        self.taken += len(data)
        self._write(self._engine.compress(data))

    def finish(self) -> None:
        """Write the end of the stream, and the seal into its header."""
        self._write(self._engine.flush() + struct.pack("<II", self._sum, self.taken & 0xFFFFFFFF))
        os.lseek(self._fd, len(SEALED), os.SEEK_SET)
        write_all(self._fd, seal_comment(self._digest.hexdigest()))
        os.lseek(self._fd, 0, os.SEEK_END)

    def _write(self, data: bytes) -> None:
        self._digest.update(data)
        write_all(self._fd, data)


_READ = 1 << 18
_CHUNK = 1 << 20
_TRAILER = 8


class GzipReader:
    """A reader decompresses an archive and checks what gzip itself states of it.

    It raises BrokenArchive before it reads or gives more than it may: bytes of the file, bytes
    that they decode to, and how many times their number those may be (0: any).
    """

    def __init__(self, file: BinaryIO, most_read: int, most_decoded: int, most_ratio: int) -> None:
        """Read the header. Raise NoArchive, or BrokenArchive where nothing after it can be read."""
        self.oddity = ""  #: what another compressor said; empty: nothing
        self._file = file
        self._most_read, self._most_decoded, self._most_ratio = most_read, most_decoded, most_ratio
        self._read = self._decoded = self._sum = 0
        self._begun = b""
        head = file.read(LENGTH)
        self._seal = file.read(len(_NO_SEAL)) if head == SEALED else b""
        if head[:2] != _MAGIC:
            raise NoArchive("not an archive: it does not begin as gzip does")
        if not self.is_sealed:
            self._begun, self._seal = self._seal, b""
            if head[2:] not in _KNOWN:
                self._read_foreign_header(head.ljust(LENGTH, b"\0"))
        self._count_compressed(head + self._seal)

    @property
    def is_sealed(self) -> bool:
        """Tell whether the header bears the seal that the writer sets last."""
        return _is_seal(self._seal) is not None

    def decoded_blocks(self) -> Iterator[bytes]:
        """Yield the decompressed archive in blocks. Raise BrokenArchive where it is damaged."""
        digest = hashlib.sha256()
        engine = zlib.decompressobj(-zlib.MAX_WBITS)
        held = b""
        block = self._begun or self._file.read(_READ)
        while block:
            self._count_compressed(block)
            digest.update(block)
            block = held + block
            held = block[-_TRAILER:]
            yield from self._inflate(engine, block[:-_TRAILER])
            block = self._file.read(_READ)
        if not engine.eof:
            raise BrokenArchive("integrity.truncated", "the gzip data ends too early")
        if held != struct.pack("<II", self._sum, self._decoded & 0xFFFFFFFF):
            raise BrokenArchive("integrity.gzip", "the gzip checksum or length is wrong")
        if self._seal and self._seal != seal_comment(digest.hexdigest()):
            message = "the compressed bytes are not those that its header names, by their SHA-256"
            raise BrokenArchive("integrity.gzip", message)

    def _read_foreign_header(self, head: bytes) -> None:
        """Skip a gzip header of another writer, and note what is odd about it."""
        rest = self._begun + self._file.read(_READ)
        header = _examine_gzip_header(head, rest)
        if header.is_seal_changed:
            message = "the header is not as it was written: it names what follows it, changed"
            raise BrokenArchive("integrity.gzip", message)
        if header.start < 0:
            raise BrokenArchive("security.gzip_header", _describe_oddities(header.found))
        self.oddity, self._begun = _describe_oddities(header.found), rest[header.start :]

    def _inflate(self, engine: zlib._Decompress, data: bytes) -> Iterator[bytes]:
        """Decompress the next bytes of a gzip file. Raise BrokenArchive for bytes after its end."""
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
                self._count_decompressed(piece)
                yield piece
        if engine.unused_data:
            raise BrokenArchive("security.hidden_bytes", "bytes follow the end of the gzip member")

    def _count_compressed(self, block: bytes) -> None:
        """Count compressed bytes that were read."""
        self._read += len(block)
        if self._read > self._most_read:
            raise BrokenArchive("limit.archive", f"more than {self._most_read} bytes")

    def _count_decompressed(self, data: bytes) -> None:
        """Count decompressed bytes."""
        self._decoded += len(data)
        self._sum = zlib.crc32(data, self._sum)
        if self._decoded > self._most_decoded:
            raise BrokenArchive("limit.decoded", f"more than {self._most_decoded} bytes decoded")
        most = self._most_ratio
        if most and self._decoded > most * self._read + _CHUNK:
            raise BrokenArchive("limit.ratio", f"decodes to more than {most} times its size")


class _ForeignHeader(Struct):
    """What a gzip header has that is not written here, and where the deflated data begins after
    it: -1 where nobody can read the header."""

    found: list[str]
    start: int = -1
    is_seal_changed: bool = False


def _examine_gzip_header(head: bytes, rest: bytes) -> _ForeignHeader:
    """Find what a gzip header holds that our own does not."""
    method, flags = head[2], head[3]
    if method != _DEFLATE or flags & _RESERVED:
        return _ForeignHeader([])
    header = _ForeignHeader([], 0)
    if time := int.from_bytes(head[4:8], "little"):
        when = f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S}"
        header.found.append(f"a time ({when} UTC)")
    if flags & _EXTRA:
        header.found.append("extra fields")
        header.start = 2 + int.from_bytes(rest[:2], "little")
    for flag, what in ((_NAME, "a file name"), (_COMMENT, "a comment")):
        if flags & flag:
            end = rest.find(b"\0", header.start)
            if end < 0:
                return _ForeignHeader([])
            text = rest[header.start : end]
            header.is_seal_changed |= _resembles_seal(rest[header.start :])
            shown = printable(text[:100].decode("utf-8", "backslashreplace"))
            header.found.append(f"{what} ({shown!r})")
            header.start = end + 1
    if flags & _CHECKSUM:
        header.found.append("a checksum of its own")
        header.start += 2
    if not header.found:
        header.found.append(f"marks of another compressor ({head[8]}, {head[9]})")
    return header


def _resembles_seal(text: bytes) -> bool:
    """Tell whether a seal is one of ours but for a few characters: nobody else writes such."""
    pairs = zip(text, _NO_SEAL[:_SEAL_WORD], strict=False)
    digits = text[_SEAL_WORD : len(_NO_SEAL) - 1]
    right = sum(one == other for one, other in pairs) + sum(map(_DIGITS.__contains__, digits))
    return right > len(_NO_SEAL) - _FEW


def _describe_oddities(found: list[str]) -> str:
    """Say in a sentence what was found in a gzip header."""
    if not found:
        return "the gzip header is none that can be read"
    return f"the gzip header has {' and '.join(found)}: another program compressed it"
