"""Contents of files, one after the other in a file that has no name: no death leaves it behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from stream.errors import OutputError, os_reason
from stream.workspace.holes import CHUNK, Piece, filled, pieces

_PARTS = 1000  #: a write takes 1,024 at most

IsCancelled = Callable[[], bool]


class Cancelled(Exception):  # noqa: N818 - no error: it was asked for
    """Somebody asked for an end, and got it."""


def never() -> bool:
    return False


def _open_nameless(folder: Path) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC
    if hasattr(os, "O_TMPFILE"):
        with suppress(OSError):  # not on every file system
            return os.open(folder, flags | os.O_TMPFILE, 0o600)
    place = folder / f".store-{os.urandom(8).hex()}"
    fd = os.open(place, flags | os.O_CREAT | os.O_EXCL, 0o600)
    place.unlink()
    return fd


class Store:
    """Append-only but for `forget`. `folder`: on a file system with room for what is kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parts: list[bytes] = []
        self._waiting = 0  #: bytes in the parts
        self._written = 0
        try:
            self._fd = _open_nameless(folder)
        except OSError as error:
            raise OutputError(f"{folder}: {os_reason(error)}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    @property
    def end(self) -> int:
        """Where the next content will begin."""
        return self._written + self._waiting

    def add(self, data: Piece) -> None:
        if isinstance(data, int):
            self._flush()
            self._end_at(self._written + data)
            return
        self._parts.append(data)
        self._waiting += len(data)
        if self._waiting >= CHUNK or len(self._parts) >= _PARTS:
            self._flush()

    def forget(self, end: int) -> None:
        """Everything from there on."""
        self._flush()
        self._end_at(end)

    def read(self, offset: int, size: int) -> Iterator[bytes]:
        """In chunks: a content may be larger than what should be in memory."""
        self._flush()
        if os.fstat(self._fd).st_size < offset + size:
            raise OutputError(f"{self._folder}: what was kept there has become shorter")
        yield from filled(pieces(self._fd, offset, offset + size))

    def holds(self, offset: int, size: int, found: Iterable[Piece]) -> bool:
        """Whether a content that is kept is made of these pieces, wherever its own holes are."""
        self._flush()
        place = offset
        for piece in found:
            begin = place
            place += piece if isinstance(piece, int) else len(piece)
            if isinstance(piece, bytes):
                if os.pread(self._fd, len(piece), begin) != piece:
                    return False
            elif any(map(_is_data, pieces(self._fd, begin, place))):
                return False
        return place == offset + size

    def _end_at(self, end: int) -> None:
        try:
            os.ftruncate(self._fd, end)
        except OSError as error:
            raise OutputError(f"{self._folder}: {os_reason(error)}") from None
        self._written = end

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        try:
            done = os.pwritev(self._fd, parts, self._written) if parts else 0
            while done < self._waiting:  # a signal, or the last free bytes
                rest = b"".join(parts)[done:]
                done += os.pwrite(self._fd, rest, self._written + done)
        except OSError as error:
            raise OutputError(f"{self._folder}: {os_reason(error)}") from None
        self._written += self._waiting
        self._waiting = 0


def _is_data(piece: Piece) -> bool:
    return isinstance(piece, bytes) and piece != bytes(len(piece))
