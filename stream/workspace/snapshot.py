"""The state of a folder at one moment, compact, with the contents in a store; and, in the same
pass, a copy of it."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import stat
import struct
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal, Self

from msgspec import Struct, field

from stream.errors import InputError, OutputError, os_reason, reporting
from stream.files.inside import FILE, kind_of_entry
from stream.files.trees import (
    CHUNK,
    Entry,
    Piece,
    TreeCopy,
    TreeWalk,
    device_and_inode,
    file_pieces,
    fill_holes,
    holds_more,
    pieces_of,
)

LARGEST = 128 << 20  #: bytes, holes aside; of a larger file the digest is kept, not the content

Reason = Literal["fifo", "socket", "device", "unreadable", "vanished", "unsteady", "left out"]

_STATUS = struct.Struct("=IQqqQ")
NOWHERE = -1  #: instead of an offset: the content is not known


IsCancelled = Callable[[], bool]
_TRIES = 2  #: of a file that changes while it is read
_OURS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  #: a failure that says nothing about the file


class Skipped(Struct):
    """A path that the snapshot does not have, or not for sure."""

    path: bytes
    reason: Reason


class EntryRecord(Struct):
    """A file, a link, or whatever else is no folder."""

    mode: int  #: with the kind
    size: int
    mtime: int
    ctime: int
    ino: int
    store_offset: int  #: offset in the store, or NOWHERE, or further below: see Snapshot.digest_at

    def has_status(self, status: os.stat_result) -> bool:
        """Tell whether this is the status of the snapshot's entry."""
        return (self.mode, self.size, self.mtime, self.ctime, self.ino) == (
            status.st_mode,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_ino,
        )


class FolderRecords:
    """A folder, with its entries in a few large objects instead of many small ones."""

    __slots__ = ("folders", "is_known", "latest", "mode", "names", "offsets", "statuses")

    def __init__(self, mode: int) -> None:
        self.mode = mode
        self.names = b""  #: with a NUL between them, sorted
        self.statuses = b""
        self.offsets = array("q")
        self.latest = 0  #: the latest ctime
        self.folders: dict[bytes, FolderRecords] = {}
        self.is_known = True  #: whether it could be read, and was to be

    def set_entries(self, files: list[Entry], offsets: Iterable[int] = ()) -> None:
        """Take the entries that are no folders, and where their contents are in the store."""
        self.names = b"\0".join([name for name, _ in files])
        self.statuses = b"".join([pack_status(status) for _, status in files])
        self.offsets = array("q", offsets)
        self.latest = max([status.st_ctime_ns for _, status in files], default=0)

    def entry_records(self) -> dict[bytes, EntryRecord]:
        """Return the entries that are no folders, by their names."""
        if not self.names:
            return {}
        values = zip(_STATUS.iter_unpack(self.statuses), self.offsets, strict=True)
        records = [
            EntryRecord(mode, size, mtime, ctime, ino, offset)
            for (mode, size, mtime, ctime, ino), offset in values
        ]
        return dict(zip(self.names.split(b"\0"), records, strict=True))

    def walk_folders(self) -> Iterator[FolderRecords]:
        """Yield the records of the folder and of all below it in the snapshot."""
        todo = [self]
        while todo:
            folder = todo.pop()
            yield folder
            todo.extend(folder.folders.values())


class Snapshot:
    """The state of a folder: see `take_snapshot`, `copy_folder` and `empty_snapshot`."""

    def __init__(self) -> None:
        self.root = FolderRecords(stat.S_IFDIR | 0o755)
        self.skipped: list[Skipped] = []
        self.leading_back: list[bytes] = []  #: paths in a copy that lead into its source
        self.ended = 0  #: wall-clock ns
        self.identity: tuple[int, int] | None = None  #: device and inode of the folder itself
        self._digests: list[bytes] = []

    def add_digest(self, digest: bytes) -> int:
        """Keep the digest of a content that is too large, and return a number below NOWHERE that
        stands for it."""
        self._digests.append(digest)
        return NOWHERE - len(self._digests)

    def digest_at(self, offset: int) -> bytes | None:
        """Return the digest that such a number stands for, if it does."""
        return self._digests[NOWHERE - 1 - offset] if offset < NOWHERE else None

    def count_entries(self) -> int:
        """Count all entries of the snapshot."""
        return sum(len(one.offsets) + len(one.folders) for one in self.root.walk_folders())


def pack_status(status: os.stat_result) -> bytes:
    """Return a status in the bytes in which it is kept."""
    return _STATUS.pack(
        status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
    )


def empty_snapshot(root: Path | None = None) -> Snapshot:
    """Return the snapshot of a folder that was made for the run."""
    snapshot = Snapshot()
    if root is not None:
        status = root.stat()
        snapshot.identity = status.st_dev, status.st_ino
    snapshot.ended = time.time_ns()
    return snapshot


class SnapshotCancelled(Exception):  # noqa: N818 - no error: it was asked for
    """The user interrupted what was being done."""


def never_cancelled() -> bool:
    """Return False: the snapshot is never cancelled."""
    return False


class Store:
    """Contents, one after the other in a file that has no name: no death leaves it behind. It is
    append-only but for `forget`. `folder` is on a file system with room for what is kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.end = 0  #: the offset at which the next content will begin
        with reporting(folder, OutputError):
            file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._fd = file.fileno()
        # At its end, wherever somebody has just read.
        fcntl.fcntl(self._fd, fcntl.F_SETFL, os.O_APPEND)
        self._file = io.BufferedWriter(file, CHUNK)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget the contents."""
        with suppress(OSError):  # there is no room for what was to be kept
            self._file.close()

    def add_piece(self, data: Piece) -> None:
        """Append a piece of a content to the store of the snapshot. Raise OutputError."""
        if isinstance(data, int):
            self.forget_contents(self.end + data)
            return
        with reporting(self._folder, OutputError):
            self._file.write(data)
        self.end += len(data)

    def forget_contents(self, end: int) -> None:
        """Remove every content of the store from this offset on. Raise OutputError."""
        self.flush()
        with reporting(self._folder, OutputError):
            os.ftruncate(self._fd, end)
        self.end = end

    def read_content(self, offset: int, size: int) -> Iterator[bytes]:
        """Yield a content of the store in chunks: it may be larger than what should be in
        memory."""
        self.flush()
        if os.fstat(self._fd).st_size < offset + size:
            raise OutputError(f"{self._folder}: what was kept there has become shorter")
        yield from fill_holes(file_pieces(self._fd, offset, offset + size))

    def holds_content(self, offset: int, size: int, found: Iterable[Piece]) -> bool:
        """Tell whether a content is made of these pieces, wherever its own holes are."""
        self.flush()
        position = offset
        for piece in found:
            begin = position
            position += piece if isinstance(piece, int) else len(piece)
            if isinstance(piece, bytes):
                if os.pread(self._fd, len(piece), begin) != piece:
                    return False
            elif any(map(_is_data, file_pieces(self._fd, begin, position))):
                return False
        return position == offset + size

    def flush(self) -> None:
        """Write what was added. Raise OutputError."""
        with reporting(self._folder, OutputError):
            self._file.flush()


def _is_data(piece: Piece) -> bool:
    return isinstance(piece, bytes) and piece != bytes(len(piece))


def take_snapshot(
    root: Path,
    store: Store,
    leave_out: Iterable[Path] = (),
    is_cancelled: IsCancelled = never_cancelled,
    copy: TreeCopy | None = None,
) -> Snapshot:
    """Take the snapshot of a folder, and copy it meanwhile if asked to. What lies in `leave_out` is
    not looked at."""
    walk = TreeWalk(root)
    try:
        builder = _SnapshotBuilder(walk, copy, store, set(_identities(leave_out)), is_cancelled)
        builder.begin_root(root)
        walk.visit_tree(builder)
        store.flush()
        builder.snapshot.identity = device_and_inode(copy.fd if copy else walk.fd)
        if copy:
            copy.finish_copy()
    finally:
        walk.close()
    builder.snapshot.ended = time.time_ns()
    return builder.snapshot


def copy_folder(
    source: Path,
    target: Path,
    store: Store,
    leave_out: Iterable[Path] = (),
    is_cancelled: IsCancelled = never_cancelled,
) -> Snapshot:
    """Make `target`, a copy without sockets, fifos and devices, and take the snapshot of the copy.

    What could not be read is in `Snapshot.skipped`. On any exception a part of the copy is there,
    for `remove_tree` to remove.
    """
    with TreeCopy(target) as copy:
        return take_snapshot(source, store, [*leave_out, target], is_cancelled, copy)


class _SnapshotBuilder(Struct):
    """Visits a folder and puts what it holds into a snapshot, and into a copy if there is one."""

    _walk: TreeWalk
    _copy: TreeCopy | None
    _store: Store
    _leave_out: set[tuple[int, int]]
    _is_cancelled: IsCancelled
    snapshot: Snapshot = field(default_factory=Snapshot)
    _root: str = ""  #: the topmost folder, with a slash
    _folders: list[FolderRecords] = field(default_factory=list)
    #: (first name, content)
    _linked: dict[tuple[int, ...], tuple[bytes, int]] = field(default_factory=dict)

    def begin_root(self, root: Path) -> None:
        """Begin the snapshot with its topmost folder."""
        self._root, self._folders = f"{root.absolute()}/", [self.snapshot.root]
        status = os.fstat(self._walk.fd)
        self.snapshot.root.mode = status.st_mode
        if self._copy:
            self._copy.begin_copy(status)

    def visit_folder(self, files: list[Entry], folders: list[Entry]) -> Iterator[bytes]:
        """Take the entries of a folder that are no folders into the snapshot, and return the
        folders."""
        kept: list[Entry] = []
        offsets: list[int] = []
        for name, status in files:
            if self._is_cancelled():
                raise SnapshotCancelled
            taken = self._add_entry(name, status)
            if taken:
                kept.append((name, taken[0]))
                offsets.append(taken[1])
        self._folders[-1].set_entries(kept, offsets)
        return iter([name for name, _ in folders])

    def admits_folder(self, name: bytes, status: os.stat_result) -> bool:
        """Tell whether a folder is to be looked into, and note one that is left out."""
        if (status.st_dev, status.st_ino) not in self._leave_out:
            return True
        self._add_skipped_path(b"/".join(self._walk.path), "left out")
        self._add_unknown(name, status)
        return False

    def enter_folder(self, name: bytes, status: os.stat_result) -> None:
        """Add a folder to the snapshot, which what follows lies in."""
        mode = self._copy.enter_folder(name, status) if self._copy else status.st_mode
        folder = self._folders[-1].folders[name] = FolderRecords(mode)
        self._folders.append(folder)

    def leave_folder(self, name: bytes) -> None:
        """Go back to the folder above in the snapshot, and in the copy."""
        self._folders.pop()
        if self._copy:
            self._copy.leave_folder()

    def note_failure(self, name: bytes, error: OSError) -> None:
        """Note a path that could not be read into the snapshot."""
        self._add_skipped_path(self._walk.entry_path(name), _skip_reason(error))
        if self.snapshot.skipped[-1].reason != "vanished":
            with suppress(OSError):
                self._add_unknown(name, os.stat(name, dir_fd=self._walk.fd, follow_symlinks=False))

    def _add_unknown(self, name: bytes, status: os.stat_result) -> None:
        """Add a folder whose contents are not known. In a copy there is none."""
        if not self._copy:
            folder = self._folders[-1].folders[name] = FolderRecords(status.st_mode)
            folder.is_known = False

    def _add_entry(self, name: bytes, status: os.stat_result) -> tuple[os.stat_result, int] | None:
        """Add what is no folder: (the status that the snapshot has, where its content is)."""
        try:
            if stat.S_ISREG(status.st_mode):
                return self._add_file(name)
            if stat.S_ISLNK(status.st_mode):
                return self._add_link(name, status)
        except OSError as error:
            self._add_skipped_path(self._walk.entry_path(name), _skip_reason(error))
        else:
            kind = kind_of_entry(status.st_mode)
            self._add_skipped_path(
                self._walk.entry_path(name), kind if kind in ("fifo", "socket") else "device"
            )
        if self._copy or self.snapshot.skipped[-1].reason == "vanished":
            return None
        return status, NOWHERE

    def _add_link(self, name: bytes, status: os.stat_result) -> tuple[os.stat_result, int]:
        """Add a symbolic link to the snapshot, and to the copy."""
        link = os.readlink(name, dir_fd=self._walk.fd)
        offset = self._store.end
        self._store.add_piece(link)
        if self._copy:
            status = self._copy.make_link(name, link, status)
            if f"{os.fsdecode(link)}/".startswith(self._root):
                self.snapshot.leading_back.append(self._walk.entry_path(name))
        return status, offset

    def _add_file(self, name: bytes) -> tuple[os.stat_result, int]:
        """Add a file to the snapshot and the copy, again where it was written to meanwhile."""
        for attempt in range(_TRIES):
            begin = self._store.end
            fd = os.open(name, FILE, dir_fd=self._walk.fd)
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise FileNotFoundError(errno.ENOENT, "it is something else by now")
                if linked := self._add_hard_link(name, status):
                    return linked
                taken, offset = self._add_content(fd, name, status)
                now = os.fstat(fd)
            finally:
                os.close(fd)
            if (now.st_size, now.st_mtime_ns) == (status.st_size, status.st_mtime_ns):
                if self._copy and status.st_nlink > 1:
                    self._linked[_file_identity(status)] = (self._walk.entry_path(name), offset)
                break
            if attempt + 1 < _TRIES:
                self._store.forget_contents(begin)
                if self._copy:
                    self._copy.remove_file(name)
        else:
            self._add_skipped_path(self._walk.entry_path(name), "unsteady")
            if taken.st_size != self._store.end - begin:  # it became shorter: nothing is for sure
                offset = NOWHERE
        return taken, offset

    def _add_hard_link(
        self, name: bytes, status: os.stat_result
    ) -> tuple[os.stat_result, int] | None:
        """Add another name of a file that was added before, as long as that is as it was."""
        known = self._linked.get(_file_identity(status)) if status.st_nlink > 1 else None
        if known is None or self._copy is None:
            return None
        taken = self._copy.link_to(known[0], name)
        return None if taken is None else (taken, known[1])

    def _add_content(
        self, fd: int, name: bytes, status: os.stat_result
    ) -> tuple[os.stat_result, int]:
        """Keep and copy a file: the same bytes, whoever writes meanwhile."""
        offset, hashed = self._store.end, None
        if holds_more(fd, status, LARGEST):
            from hashlib import sha256

            hashed = sha256()
        if self._copy:
            fd = self._copy.open_file(name, status, fd)
        for piece in pieces_of(fd, status):
            if self._copy:
                self._copy.write_content(piece)
            if hashed:
                for data in fill_holes((piece,)):
                    hashed.update(data)
            else:
                self._store.add_piece(piece)
            if self._is_cancelled():
                raise SnapshotCancelled
        if self._copy:
            status = self._copy.finish_file(status)
        return status, self.snapshot.add_digest(hashed.digest()) if hashed else offset

    def _add_skipped_path(self, path: bytes, reason: Reason) -> None:
        self.snapshot.skipped.append(Skipped(path, reason))


def _file_identity(status: os.stat_result) -> tuple[int, ...]:
    """Identify a file. One that has changed meanwhile is another one."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _skip_reason(error: OSError) -> Reason:
    if error.errno in _OURS:
        raise InputError(f"{os_reason(error)}: the workspace could not be read") from None
    return "unreadable" if error.errno in (errno.EACCES, errno.EPERM, errno.EIO) else "vanished"


def _identities(paths: Iterable[Path]) -> Iterator[tuple[int, int]]:
    """Identify those paths that exist, however they are spelled."""
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue
        yield status.st_dev, status.st_ino
