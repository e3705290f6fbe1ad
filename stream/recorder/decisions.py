"""A log in which somebody else writes down decisions while a run lasts.

What was in it before is of other runs: it is told apart by where the log ended when the run began.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path

from stream.errors import os_reason
from stream.evidence.moments import POLICY
from stream.evidence.unused import Unused

_BLOCK = 1 << 20
_MOST = 64 << 20  #: bytes: whoever writes without end does not keep a run from its end
_SILENCE = 2.0  #: seconds that a pipe may say nothing while it has a writer
_TAIL = 1 << 12  #: bytes before the end by which it is known again


class DecisionLog:
    """Made when the run begins, and read when it is over."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1  # held, so that no other file can get its number
        self._size = 0
        self._tail = b""
        self.unused: list[Unused] = []
        self.warnings: list[str] = []
        try:
            # A pipe is not opened before it is read: that would take its writer's reader away.
            if stat.S_ISREG(path.stat().st_mode):
                self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                self._size = os.fstat(self._fd).st_size
                self._tail = self._tail_in(self._fd)
        except FileNotFoundError:
            pass  # the first decision makes it
        except OSError as error:
            self._miss("unread", os_reason(error))
        except ValueError as error:  # a NUL in the path
            self._miss("unread", str(error))

    def files(self) -> dict[str, int]:
        """Its descriptor, by channel, where a file was there when the run began."""
        return {POLICY: self._fd} if self._fd >= 0 else {}

    def read(self) -> Iterator[bytes]:
        """Give what was written there since, in blocks."""
        if self.unused:
            return
        try:
            # Whatever lies there by now, nothing of it can keep the run from its end.
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(fd, "rb", buffering=0) as file:
                beginning = self._beginning(fd)
                yield from self._since(file, beginning)
        except OSError as error:
            self._miss("unread", os_reason(error))

    def _since(self, file: FileIO, beginning: int) -> Iterator[bytes]:
        """Give what a file holds behind `beginning` at this moment, or what comes out of a pipe."""
        found = os.fstat(file.fileno())
        is_file = stat.S_ISREG(found.st_mode)
        rest, is_more = _MOST, True  # what is no file may have no end
        if is_file:
            file.seek(beginning)
            written = found.st_size - beginning
            rest, is_more = min(written, _MOST), written > _MOST
            if beginning and not written:
                what = f"--policy {self._path}: nothing was written there during the run"
                self.warnings.append(f"{what}, and what was there before it does not count")
        while rest > 0:
            if not is_file and not select.select([file], [], [], _SILENCE)[0]:
                break  # nobody writes
            block = file.read(min(rest, _BLOCK))
            if not block:
                break
            rest -= len(block)
            yield block
        if not rest and is_more:
            self._miss("unread", f"more than {_MOST >> 20} MB came out")

    def close(self) -> None:
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def _beginning(self, fd: int) -> int:
        """Where what was written since begins: 0 where that cannot be told."""
        if self._fd < 0:
            return 0
        whole = "all of it is taken for decisions of this run"
        if not os.path.samestat(os.fstat(fd), os.fstat(self._fd)):
            self._miss("replaced", f"another file took its place meanwhile, and {whole}")
            return 0
        if os.fstat(fd).st_size < self._size or self._tail_in(fd) != self._tail:
            self._miss("shortened", f"what was in it before was taken away, and {whole}")
            return 0
        return self._size

    def _tail_in(self, fd: int) -> bytes:
        start = max(0, self._size - _TAIL)
        return os.pread(fd, self._size - start, start)

    def _miss(self, why: str, sentence: str) -> None:
        self.unused.append(Unused(POLICY, why, 1, f"--policy {self._path}: {sentence}"))
