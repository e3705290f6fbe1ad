"""Takes a snapshot of a folder, and a copy of it in the same pass."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from stream.errors import InputError, os_reason
from stream.workspace.copying import Copy
from stream.workspace.descent import FILE, Descent, Entry, entries, identity_of, visit
from stream.workspace.holes import filled, holds_more, pieces_of
from stream.workspace.snapshot import (
    LARGEST,
    NOWHERE,
    Folder,
    Reason,
    Skipped,
    Snapshot,
    kind_of,
)
from stream.workspace.store import Cancelled, IsCancelled, Store, never

_TRIES = 2  #: of a file that changes while it is read
_OURS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  #: a failure that says nothing about the file


def take_snapshot(
    root: Path, store: Store, leave_out: Iterable[Path] = (), is_cancelled: IsCancelled = never
) -> Snapshot:
    """Of a folder that the agent will work in itself; what lies in `leave_out` is not looked at."""
    return _take(root, None, store, leave_out, is_cancelled)


def take_copy(
    source: Path,
    target: Path,
    store: Store,
    leave_out: Iterable[Path] = (),
    is_cancelled: IsCancelled = never,
) -> Snapshot:
    """Makes `target`, a copy without sockets, fifos and devices; the snapshot is that of the copy.

    What could not be had is in `Snapshot.skipped`. On any exception a part of the copy is there:
    `remove_tree` knows how to remove it.
    """
    with Copy(target) as copy:
        return _take(source, copy, store, [*leave_out, target], is_cancelled)


def _take(
    root: Path,
    copy: Copy | None,
    store: Store,
    leave_out: Iterable[Path],
    is_cancelled: IsCancelled,
) -> Snapshot:
    descent = Descent(root)
    try:
        taker = _Taker(descent, copy, store, set(_identities(leave_out)), is_cancelled)
        taker.begin(root)
        visit(taker)
        taker.snapshot.identity = identity_of(copy.fd if copy else descent.fd)
        if copy:
            copy.finish()
    finally:
        descent.close()
    taker.snapshot.ended = time.time_ns()
    return taker.snapshot


class _Taker:
    def __init__(
        self,
        descent: Descent,
        copy: Copy | None,
        store: Store,
        leave_out: set[tuple[int, int]],
        is_cancelled: IsCancelled,
    ) -> None:
        self.snapshot = Snapshot()
        self._descent = descent
        self._copy = copy
        self._store = store
        self._leave_out = leave_out
        self._is_cancelled = is_cancelled
        self._nodes = [self.snapshot.root]
        self._path: list[bytes] = []
        self._found: tuple[list[Entry], list[Entry]] = ([], [])
        self._linked: dict[tuple[int, ...], tuple[bytes, int]] = {}  #: (first name, content)

    def begin(self, root: Path) -> None:
        self._root = f"{root.absolute()}/"
        status = os.fstat(self._descent.fd)
        self.snapshot.root.mode = status.st_mode
        try:
            self._found = entries(self._descent.fd)
        except OSError as error:
            raise InputError(f"{root}: {os_reason(error)}") from None
        if self._copy:
            self._copy.begin(status)

    def look(self) -> Iterator[bytes]:
        files, folders = self._found
        kept: list[Entry] = []
        places: list[int] = []
        for name, status in files:
            if self._is_cancelled():
                raise Cancelled
            taken = self._take(name, status)
            if taken:
                kept.append((name, taken[0]))
                places.append(taken[1])
        self._nodes[-1].fill(kept, places)
        return iter([name for name, _ in folders])

    def enter(self, name: bytes) -> bool:
        """What may not be read is not in a copy; in a snapshot it is there without contents."""
        status: os.stat_result | None = None
        try:
            self._descent.enter(name)
            try:
                status = os.fstat(self._descent.fd)
                if (status.st_dev, status.st_ino) in self._leave_out:
                    self._skip(name, "left out")
                else:
                    self._found = entries(self._descent.fd)
                    self._go_in(name, status)
                    return True
            except OSError:
                self._descent.leave()
                raise
            self._descent.leave()
        except OSError as error:
            self._skip(name, _reason(error))
        if not self._copy and self.snapshot.skipped[-1].reason != "vanished":
            self._leave_unknown(name, status)
        return False

    def leave(self) -> None:
        self._descent.leave()
        self._path.pop()
        self._nodes.pop()
        if self._copy:
            self._copy.leave()

    def _go_in(self, name: bytes, status: os.stat_result) -> None:
        mode = status.st_mode
        if self._copy:
            mode = self._copy.enter(name, status)
        folder = self._nodes[-1].folders[name] = Folder(mode)
        self._nodes.append(folder)
        self._path.append(name)

    def _leave_unknown(self, name: bytes, status: os.stat_result | None) -> None:
        if status is None:
            try:
                status = os.stat(name, dir_fd=self._descent.fd, follow_symlinks=False)
            except OSError:
                return
        folder = self._nodes[-1].folders[name] = Folder(status.st_mode)
        folder.is_known = False

    def _take(self, name: bytes, status: os.stat_result) -> tuple[os.stat_result, int] | None:
        """(the status that the snapshot has, where its content is), of what is no folder."""
        try:
            if stat.S_ISREG(status.st_mode):
                return self._take_file(name)
            if stat.S_ISLNK(status.st_mode):
                return self._take_link(name, status)
        except OSError as error:
            self._skip(name, _reason(error))
        else:
            kind = kind_of(status.st_mode)
            self._skip(name, kind if kind in ("fifo", "socket") else "device")
        if self._copy or self.snapshot.skipped[-1].reason == "vanished":
            return None
        return status, NOWHERE

    def _take_link(self, name: bytes, status: os.stat_result) -> tuple[os.stat_result, int]:
        link = os.readlink(name, dir_fd=self._descent.fd)
        place = self._store.end
        self._store.add(link)
        if self._copy:
            status = self._copy.link(name, link, status)
            if f"{os.fsdecode(link)}/".startswith(self._root):
                self.snapshot.leading_back.append(b"/".join([*self._path, name]))
        return status, place

    def _take_file(self, name: bytes) -> tuple[os.stat_result, int]:
        for attempt in range(_TRIES):
            begin = self._store.end
            fd = os.open(name, FILE, dir_fd=self._descent.fd)
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise FileNotFoundError(errno.ENOENT, "it is something else by now")
                if linked := self._take_link_to(name, status):
                    return linked
                taken, place = self._read(fd, name, status)
                now = os.fstat(fd)
            finally:
                os.close(fd)
            if (now.st_size, now.st_mtime_ns) == (status.st_size, status.st_mtime_ns):
                if self._copy and status.st_nlink > 1:
                    path = b"/".join([*self._path, name])
                    self._linked[_inode(status)] = (path, place)
                break
            if attempt + 1 < _TRIES:
                self._store.forget(begin)
                if self._copy:
                    self._copy.remove(name)
        else:
            self._skip(name, "unsteady")
            if taken.st_size != self._store.end - begin:  # it became shorter: nothing is for sure
                place = NOWHERE
        return taken, place

    def _take_link_to(
        self, name: bytes, status: os.stat_result
    ) -> tuple[os.stat_result, int] | None:
        """Of another name of a file that was taken before, as long as that is what it was."""
        known = self._linked.get(_inode(status)) if status.st_nlink > 1 else None
        if known is None or self._copy is None:
            return None
        taken = self._copy.link_to(known[0], name)
        return None if taken is None else (taken, known[1])

    def _read(self, fd: int, name: bytes, status: os.stat_result) -> tuple[os.stat_result, int]:
        """What is kept and what is copied is the same bytes, whoever writes meanwhile."""
        place, hashed = self._store.end, None
        if holds_more(fd, status, LARGEST):
            from hashlib import sha256

            hashed = sha256()
        if self._copy:
            fd = self._copy.open(name, status, fd)
        for piece in pieces_of(fd, status):
            if self._copy:
                self._copy.write(piece)
            if hashed:
                for data in filled((piece,)):
                    hashed.update(data)
            else:
                self._store.add(piece)
            if self._is_cancelled():
                raise Cancelled
        if self._copy:
            status = self._copy.close(status)
        return status, self.snapshot.keep_digest(hashed.digest()) if hashed else place

    def _skip(self, name: bytes, reason: Reason) -> None:
        self.snapshot.skipped.append(Skipped(b"/".join([*self._path, name]), reason))


def _inode(status: os.stat_result) -> tuple[int, ...]:
    """A file that has changed meanwhile is another one."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _reason(error: OSError) -> Reason:
    if error.errno in _OURS:
        raise InputError(f"{os_reason(error)}: the workspace could not be read") from None
    return "unreadable" if error.errno in (errno.EACCES, errno.EPERM, errno.EIO) else "vanished"


def _identities(paths: Iterable[Path]) -> Iterator[tuple[int, int]]:
    """Of those that exist: by what they are, however they are spelled."""
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue
        yield status.st_dev, status.st_ino
