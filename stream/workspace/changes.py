"""The differences between a folder and its snapshot. New contents go into the store as well, so
that nothing is read twice, and all that is stated later is about the same bytes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from msgspec import Struct

from stream.errors import InputError
from stream.files.inside import FILE, Kind, kind_of_entry
from stream.files.trees import (
    Entry,
    Piece,
    TreeWalk,
    device_and_inode,
    fill_holes,
    holds_more,
    pieces_of,
)
from stream.workspace.snapshot import (
    LARGEST,
    NOWHERE,
    EntryRecord,
    FolderRecords,
    Reason,
    Skipped,
    Snapshot,
    Store,
    pack_status,
)

_MOST = 40  #: links on one way; then a system gives up


#: A clock of files may tick as slowly as this: a file can change and keep its ctime.
TICK = 20_000_000  #: ns


class State(Struct):
    """The state of a path: what stood there."""

    kind: Kind
    mode: int  #: with the kind
    size: int = 0
    ctime: int = 0
    store_offset: int = NOWHERE  #: of the content, or of a link's target, in the store
    digest: bytes | None = None  #: SHA-256 of a content that is too large to be kept
    goes_round: bool = False  #: a link that leads to itself, and was replaced by a folder

    @property
    def is_kept(self) -> bool:
        """Tell whether its content is in the store."""
        return self.store_offset >= 0

    def has_same_content(self, other: State | EntryRecord) -> bool:
        """Tell whether two contents are the same: what is the same is kept once. What is empty has
        no offset of its own."""
        return self.is_kept and (self.store_offset, self.size) == (other.store_offset, other.size)


class Change(Struct):
    """A path at which something else stands than before."""

    path: bytes
    before: State | None
    after: State | None

    @property
    def what(self) -> Literal["added", "removed", "changed"]:
        """Name the change."""
        return "added" if not self.before else "changed" if self.after else "removed"


class ChangeSet(Struct):
    """The changes of a folder since its snapshot."""

    items: list[Change]  #: sorted by the bytes of the path
    unknown: list[Skipped]  #: what cannot be said, because it could not be read
    is_of_another: bool = False  #: the folder that was looked at before has lost its name


def find_changes(before: Snapshot, root: Path, store: Store) -> ChangeSet:
    """Compare a folder with its snapshot. Nothing may write into it any longer. Raise
    InputError."""
    walk = TreeWalk(root)
    try:
        is_of_another = before.identity not in (None, device_and_inode(walk.fd))
        if root.is_symlink() and device_and_inode(walk.fd) != before.identity:
            raise InputError(f"{root}: has become a link to another folder")
        finder = _ChangeFinder(before, walk, store)
        walk.visit_tree(finder)
        store.flush()
    finally:
        walk.close()
    finder.found.sort(key=lambda change: change.path)
    return ChangeSet(finder.found, finder.unknown, is_of_another)


class _ChangeFinder:
    """Visits a folder and compares what it holds with a snapshot."""

    def __init__(self, before: Snapshot, walk: TreeWalk, store: Store) -> None:
        self.found: list[Change] = []
        self.unknown: list[Skipped] = []
        self._before = before
        self._walk = walk
        self._store = store
        self._folders: list[FolderRecords | None] = [before.root]
        # Whichever clock is behind, ours or that of the files: what is as late as this may have
        # changed afterwards within one tick.
        self._late = min(before.ended, max(one.latest for one in before.root.walk_folders())) - TICK

    def admits_folder(self, name: bytes, status: os.stat_result) -> bool:
        """Go into every folder of the workspace."""
        return True

    def enter_folder(self, name: bytes, status: os.stat_result) -> None:
        """Go on with what the snapshot has of a folder, if it has one."""
        parent = self._folders[-1]
        self._folders.append(parent.folders.get(name) if parent else None)

    def visit_folder(self, files: list[Entry], folders: list[Entry]) -> Iterator[bytes]:
        """Compare a folder with its snapshot, and return the folders in it."""
        node = self._folders[-1] or FolderRecords(0)
        if not self._is_folder_unchanged(node, files, folders):
            old: dict[bytes, EntryRecord | FolderRecords] = {**node.entry_records(), **node.folders}
            now = dict(files + folders)
            for name in sorted(old.keys() | now.keys()):
                self._compare_entry(name, old.get(name), now.get(name))
        unknown = {name for name, folder in node.folders.items() if not folder.is_known}
        return iter([name for name, _ in folders if name not in unknown])

    def leave_folder(self, name: bytes) -> None:
        """Go back to the folder above in the workspace."""
        self._folders.pop()

    def note_failure(self, name: bytes, error: OSError) -> None:
        """Note a path of the workspace that could not be read."""
        self._add_unknown_path(name, "unreadable")

    def _is_folder_unchanged(
        self, node: FolderRecords, files: list[Entry], folders: list[Entry]
    ) -> bool:
        """Compare the status of all that lies in a folder; its folders are visited one by one."""
        return (
            node.latest < self._late
            and node.names == b"\0".join([name for name, _ in files])
            and node.statuses == b"".join([pack_status(status) for _, status in files])
            and [(name, status.st_mode) for name, status in folders]
            == [(name, folder.mode) for name, folder in sorted(node.folders.items())]
        )

    def _compare_entry(
        self, name: bytes, was: EntryRecord | FolderRecords | None, status: os.stat_result | None
    ) -> None:
        """Compare an entry of the workspace with its record in the snapshot, and add the change."""
        after: State | None = None
        if status and stat.S_ISDIR(status.st_mode):
            if isinstance(was, FolderRecords) and was.mode == status.st_mode:
                return
            after = State("dir", status.st_mode, ctime=status.st_ctime_ns)
        elif status:
            record = was if isinstance(was, EntryRecord) else None
            if record and self._is_untouched(record, status):
                return
            after = self._read_entry(name, status, record)
            if record and after and self._is_same_state(record, after, status):
                return
        before = self._state_before(was)
        if not before and not after:
            return
        if before and before.kind == "symlink" and after and after.kind == "dir":
            path = self._walk.entry_path(name)
            before.goes_round = _link_goes_round(self._before, self._store, path)
        self._add_change(self._walk.entry_path(name), before, after)
        if isinstance(was, FolderRecords) and not (after and after.kind == "dir"):
            self._add_removals_below(name, was)

    def _is_untouched(self, record: EntryRecord, status: os.stat_result) -> bool:
        return record.ctime < self._late and record.has_status(status)

    def _is_same_state(self, record: EntryRecord, after: State, status: os.stat_result) -> bool:
        """Tell whether nothing was changed: neither touching a file, nor writing into it what it
        held, changes it."""
        if record.mode != after.mode:
            return False
        if after.kind in ("fifo", "socket"):
            return True
        if after.is_kept:
            return after.has_same_content(record)
        if after.digest:
            return after.digest == self._before.digest_at(record.store_offset)
        return record.has_status(status)  # of what cannot be read there is nothing but its status

    def _read_entry(
        self, name: bytes, status: os.stat_result, record: EntryRecord | None
    ) -> State | None:
        """Return the state of an entry of the workspace now. None: it is gone."""
        state = State(
            kind_of_entry(status.st_mode), status.st_mode, status.st_size, status.st_ctime_ns
        )
        try:
            if state.kind == "symlink":
                self._keep_link(state, os.readlink(name, dir_fd=self._walk.fd), record)
            elif state.kind == "file":
                fd = os.open(name, FILE, dir_fd=self._walk.fd)
                try:
                    self._keep_file(state, fd, name, record)
                finally:
                    os.close(fd)
        except FileNotFoundError:
            return None
        except OSError:
            self._add_unknown_path(name, "unreadable")
        return state

    def _keep_link(self, state: State, link: bytes, record: EntryRecord | None) -> None:
        """Keep the target of a symbolic link in the store, if the snapshot has not got it."""
        state.size = len(link)
        if record and self._holds_content(record, [link], len(link)):
            state.store_offset = record.store_offset
        else:
            state.store_offset = self._store.end
            self._store.add_piece(link)

    def _keep_file(self, state: State, fd: int, name: bytes, record: EntryRecord | None) -> None:
        """Keep the content of a file in the store, if the snapshot has not got it; of a large one
        its digest only."""
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is something else by now")
        state.mode, state.size, state.ctime = status.st_mode, status.st_size, status.st_ctime_ns
        if record and self._holds_content(record, pieces_of(fd, status), state.size):
            state.store_offset = record.store_offset
        elif holds_more(fd, status, LARGEST) or (
            record and self._before.digest_at(record.store_offset)
        ):
            from hashlib import sha256

            hashed = sha256()
            for chunk in fill_holes(pieces_of(fd, status)):
                hashed.update(chunk)
            state.digest = hashed.digest()
        else:
            offset = self._store.end
            for piece in pieces_of(fd, status):
                self._store.add_piece(piece)
            state.size, state.store_offset = self._store.end - offset, offset
        if os.fstat(fd).st_mtime_ns != status.st_mtime_ns or state.size != status.st_size:
            self._add_unknown_path(name, "unsteady")

    def _holds_content(self, record: EntryRecord, found: Iterable[Piece], size: int) -> bool:
        """Tell whether the snapshot's content of an entry was this."""
        if record.size != size or record.store_offset < 0:
            return False
        return self._store.holds_content(record.store_offset, size, found)

    def _state_before(self, was: EntryRecord | FolderRecords | None) -> State | None:
        """Return the state that an entry of the snapshot had before the run."""
        if was is None:
            return None
        if isinstance(was, FolderRecords):
            return State("dir", was.mode)
        digest = self._before.digest_at(was.store_offset)
        return State(
            kind_of_entry(was.mode), was.mode, was.size, was.ctime, was.store_offset, digest
        )

    def _add_removals_below(self, name: bytes, folder: FolderRecords) -> None:
        """Add the removal of all that the snapshot has below a folder."""
        todo = [(self._walk.entry_path(name), folder)]
        while todo:
            path, node = todo.pop()
            for inner, record in node.entry_records().items():
                self._add_change(b"%s/%s" % (path, inner), self._state_before(record), None)
            for inner, deeper in node.folders.items():
                self._add_change(b"%s/%s" % (path, inner), self._state_before(deeper), None)
                todo.append((b"%s/%s" % (path, inner), deeper))

    def _add_change(self, path: bytes, before: State | None, after: State | None) -> None:
        self.found.append(Change(path, before, after))

    def _add_unknown_path(self, name: bytes, reason: Reason) -> None:
        self.unknown.append(Skipped(self._walk.entry_path(name), reason))


def _link_goes_round(snapshot: Snapshot, store: Store, path: bytes) -> bool:
    """Tell whether a link of a snapshot leads to itself, so that nothing can be looked up through
    it. Of a way that leads out of the snapshot that is not known, and not claimed."""
    todo = path.split(b"/")[::-1]
    way: list[FolderRecords] = [snapshot.root]
    passed = 0
    while todo:
        name = todo.pop()
        if name in (b"", b"."):
            continue
        if name == b"..":
            way.pop()
            if not way:
                return False
            continue
        inner = way[-1].folders.get(name)
        if inner:
            way.append(inner)
            continue
        record = way[-1].entry_records().get(name)
        if not record or not stat.S_ISLNK(record.mode) or record.store_offset < 0:
            return False
        passed += 1
        if passed > _MOST:
            return True
        target = b"".join(store.read_content(record.store_offset, record.size))
        if target.startswith(b"/"):
            return False
        todo.extend(target.split(b"/")[::-1])
    return False
