"""Reads and writes contents without filling their holes: what no disk holds is not read either."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator

from stream.system import write_all

CHUNK = 1 << 20  #: bytes that are read or written at once
_ZEROS = bytes(CHUNK)

#: Of a hole as well, so that between two pieces somebody can be asked whether to stop.
_LONGEST = 64 * CHUNK

Piece = bytes | int  #: data, or the length of a hole


def pieces_of(fd: int, status: os.stat_result) -> Iterator[Piece]:
    """Read a file up to the size that the status has; less, where it has become shorter."""
    read = pieces if is_sparse(status) else _chunks
    return read(fd, 0, status.st_size)


def is_sparse(status: os.stat_result) -> bool:
    """Tell whether a file can have holes: it has more bytes than its blocks have."""
    return status.st_blocks * 512 < status.st_size


def holds_more(fd: int, status: os.stat_result, limit: int) -> bool:
    """Tell whether there is more data in a file than that."""
    if status.st_size <= limit or not is_sparse(status):
        return status.st_size > limit
    for begin, end in _extents(fd, 0, status.st_size):
        limit -= end - begin
        if limit < 0:
            return True
    return False


def pieces(fd: int, begin: int, end: int) -> Iterator[Piece]:
    """Yield what lies between two places of a file."""
    for start, stop in _extents(fd, begin, end):
        yield from _parts(start - begin)
        yield from _chunks(fd, start, stop)
        begin = stop
    yield from _parts(end - begin)


def filled(found: Iterable[Piece]) -> Iterator[bytes]:
    """Yield the same as data, as whoever reads the file sees it."""
    for piece in found:
        if isinstance(piece, bytes):
            yield piece
        else:
            for begin in range(0, piece, CHUNK):
                yield _ZEROS[: piece - begin]


def put(fd: int, piece: Piece) -> None:
    """Write a piece where the last one ended. `end` is to follow the last."""
    if isinstance(piece, bytes):
        write_all(fd, piece)
    else:
        os.lseek(fd, piece, os.SEEK_CUR)


def end(fd: int) -> None:
    """Let a file that was `put` end where the last piece did, also where that was a hole."""
    os.ftruncate(fd, os.lseek(fd, 0, os.SEEK_CUR))


def _parts(hole: int) -> Iterator[int]:
    while hole > 0:
        yield min(hole, _LONGEST)
        hole -= _LONGEST


def _chunks(fd: int, begin: int, end: int) -> Iterator[bytes]:
    while begin < end:
        data = os.pread(fd, min(end - begin, CHUNK), begin)
        if not data:
            return
        begin += len(data)
        yield data


def _extents(fd: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield where there is data. A file system that knows no holes has data everywhere."""
    while begin < end:
        try:
            start = os.lseek(fd, begin, os.SEEK_DATA)
            stop = os.lseek(fd, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: nothing but a hole until the end
                yield begin, end
            return
        if start < end:
            yield start, min(stop, end)
        begin = stop
