"""Open folders, one inside the other: no path is ever too long, and no link leads out."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from stream.errors import InputError, os_reason

#: A folder that is a link by now is not entered.
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: A fifo that took the place of a file does not hang, a terminal is not taken over.
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_OPEN = 64  #: folders that are held open; the others are found again from inside

Entry = tuple[bytes, os.stat_result]


class Descent:
    """The innermost of the folders is `fd`."""

    def __init__(self, root: Path) -> None:
        try:
            self._fds = [os.open(root, FOLDER & ~os.O_NOFOLLOW)]
        except OSError as error:
            raise InputError(f"{root}: {os_reason(error)}") from None
        self._seen: list[tuple[int, int]] = []

    @property
    def fd(self) -> int:
        return self._fds[-1]

    def enter(self, name: bytes) -> None:
        """Raises OSError, and stays where it is."""
        self._fds.append(os.open(name, FOLDER, dir_fd=self.fd))
        if len(self._fds) > _OPEN:
            far = len(self._fds) - _OPEN
            if self._fds[far] >= 0:  # the root itself stays open
                del self._seen[far - 1 :]
                self._seen.append(identity_of(self._fds[far]))
                os.close(self._fds[far])
                self._fds[far] = -1

    def leave(self) -> None:
        inner = self._fds.pop()
        try:
            if self._fds and self.fd < 0:
                self._fds[-1] = os.open("..", FOLDER, dir_fd=inner)
                if identity_of(self.fd) != self._seen[len(self._fds) - 2]:
                    raise InputError("a folder was moved away while it was read")
        finally:
            os.close(inner)

    def close(self) -> None:
        for fd in self._fds:
            if fd >= 0:
                os.close(fd)
        self._fds = []


class Visitor(Protocol):
    def look(self) -> Iterable[bytes]:
        """Deals with the folder that was entered, and says which of its folders are to follow."""

    def enter(self, name: bytes) -> bool: ...

    def leave(self) -> None: ...


def visit(visitor: Visitor) -> None:
    """A folder, then one by one what lies in it; without recursion, however deep."""
    stack: list[Iterator[bytes]] = [iter(visitor.look())]
    while stack:
        for name in stack[-1]:
            if visitor.enter(name):
                stack.append(iter(visitor.look()))
                break
        else:
            stack.pop()
            if stack:
                visitor.leave()


def entries(fd: int) -> tuple[list[Entry], list[Entry]]:
    """(what is no folder, folders), by the bytes of their names."""
    files: list[Entry] = []
    folders: list[Entry] = []
    with os.scandir(fd) as found:
        for entry in found:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            kind = folders if stat.S_ISDIR(status.st_mode) else files
            kind.append((os.fsencode(entry.name), status))
    files.sort(key=_name)
    folders.sort(key=_name)
    return files, folders


def _name(entry: Entry) -> bytes:
    return entry[0]


def identity_of(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
