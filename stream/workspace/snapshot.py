"""The state of a folder at one moment, compact, with the contents in a store."""

from __future__ import annotations

import os
import stat
import struct
import time
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from msgspec import Struct

from stream.workspace.descent import Entry

LARGEST = 128 << 20  #: bytes, holes aside; of a larger file the digest is kept, not the content

Kind = Literal["file", "dir", "symlink", "fifo", "socket", "device"]
_KINDS: dict[int, Kind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "dir",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}
Reason = Literal["fifo", "socket", "device", "unreadable", "vanished", "unsteady", "left out"]

_STATUS = struct.Struct("=IQqqQ")
NOWHERE = -1  #: instead of an offset: the content is not known


class Skipped(Struct):
    """What the snapshot does not have, or not for sure."""

    path: bytes
    reason: Reason


class Record(Struct):
    """One entry that is no folder."""

    mode: int  #: with the kind
    size: int
    mtime: int
    ctime: int
    ino: int
    place: int  #: offset in the store, or NOWHERE, or further below: see Snapshot.digest

    def is_of(self, status: os.stat_result) -> bool:
        return (self.mode, self.size, self.mtime, self.ctime, self.ino) == (
            status.st_mode,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_ino,
        )


class Folder:
    """Its entries in a few large objects instead of many small ones."""

    __slots__ = ("folders", "is_known", "latest", "mode", "names", "places", "statuses")

    def __init__(self, mode: int) -> None:
        self.mode = mode
        self.names = b""  #: with a NUL between them, sorted
        self.statuses = b""
        self.places = array("q")
        self.latest = 0  #: the latest ctime
        self.folders: dict[bytes, Folder] = {}
        self.is_known = True  #: whether it could be read, and was to be

    def fill(self, files: list[Entry], places: Iterable[int] = ()) -> None:
        self.names = b"\0".join([name for name, _ in files])
        self.statuses = b"".join([pack(status) for _, status in files])
        self.places = array("q", places)
        self.latest = max([status.st_ctime_ns for _, status in files], default=0)

    def records(self) -> dict[bytes, Record]:
        if not self.names:
            return {}
        values = zip(_STATUS.iter_unpack(self.statuses), self.places, strict=True)
        records = [
            Record(mode, size, mtime, ctime, ino, place)
            for (mode, size, mtime, ctime, ino), place in values
        ]
        return dict(zip(self.names.split(b"\0"), records, strict=True))


class Snapshot:
    """Made by `take_snapshot`, `take_copy` or `empty_snapshot`."""

    def __init__(self) -> None:
        self.root = Folder(stat.S_IFDIR | 0o755)
        self.skipped: list[Skipped] = []
        self.leading_back: list[bytes] = []  #: paths in a copy that lead into its source
        self.ended = 0  #: wall-clock ns
        self.identity: tuple[int, int] | None = None  #: device and inode of the folder itself
        self._digests: list[bytes] = []

    def keep_digest(self, digest: bytes) -> int:
        """The place that stands for it."""
        self._digests.append(digest)
        return NOWHERE - len(self._digests)

    def digest(self, place: int) -> bytes | None:
        return self._digests[NOWHERE - 1 - place] if place < NOWHERE else None

    def count(self) -> int:
        """Of all entries."""
        total, todo = 0, [self.root]
        while todo:
            folder = todo.pop()
            total += len(folder.places) + len(folder.folders)
            todo.extend(folder.folders.values())
        return total


def kind_of(mode: int) -> Kind:
    return _KINDS.get(stat.S_IFMT(mode), "device")


def pack(status: os.stat_result) -> bytes:
    return _STATUS.pack(
        status.st_mode,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_ino,
    )


def empty_snapshot(root: Path | None = None) -> Snapshot:
    """Of a folder that was made for the run."""
    snapshot = Snapshot()
    if root is not None:
        status = root.stat()
        snapshot.identity = status.st_dev, status.st_ino
    snapshot.ended = time.time_ns()
    return snapshot
