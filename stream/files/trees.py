"""Walk, copy and remove trees of files, through open folders: no path is ever too long, and no link
leads out. Contents are read and written without filling their holes."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from typing import Protocol, Self

from stream.errors import InputError, OutputError, os_reason, reporting
from stream.files.append import write_all
from stream.files.inside import FOLDER

CHUNK = 1 << 20  #: bytes that are read or written at once
_ZEROS = bytes(CHUNK)
#: Of a hole as well, so that between two pieces somebody can be asked whether to stop.
_LONGEST = 64 * CHUNK
_OPEN = 64  #: folders that are held open; the others are found again from inside
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CLONE = 0x40049409  #: FICLONE of Linux
_PERMISSIONS = 0o7777
_SPECIAL = stat.S_ISUID | stat.S_ISGID

Entry = tuple[bytes, os.stat_result]
Piece = bytes | int  #: data, or the length of a hole


class Visitor(Protocol):
    """A visitor says what is done in each folder of a tree."""

    def admits_folder(self, name: bytes, status: os.stat_result) -> bool:
        """Return whether a folder that was opened is to be visited."""

    def enter_folder(self, name: bytes, status: os.stat_result) -> None:
        """Enter a folder, which could be listed."""

    def visit_folder(self, files: list[Entry], folders: list[Entry]) -> Iterable[bytes]:
        """Deal with what the folder holds, and name those of its folders that are to follow."""

    def leave_folder(self, name: bytes) -> None:
        """Leave the folder that was entered last; the one around it is open."""

    def note_failure(self, name: bytes, error: OSError) -> None:
        """Deal with a folder that cannot be opened or listed."""


class TreeWalk:
    """A walk through a tree by open folders, one inside the other. The innermost is `fd`, and
    `path` leads to it.

    `is_forced`: those that are closed to us, but are ours, are opened all the same.
    """

    def __init__(self, root: Path, *, is_forced: bool = False) -> None:
        self.root = root
        self.path: list[bytes] = []
        self._is_forced = is_forced
        with reporting(root):
            self._fds = [os.open(root, FOLDER & ~os.O_NOFOLLOW)]
        self._seen: list[tuple[int, int]] = []

    @property
    def fd(self) -> int:
        """The descriptor of the innermost folder."""
        return self._fds[-1]

    def entry_path(self, name: bytes) -> bytes:
        """Return the path of what lies in the innermost folder."""
        return b"/".join([*self.path, name])

    def enter_folder(self, name: bytes) -> None:
        """Open a folder inside the innermost one. Raise OSError, and stay there."""
        self._fds.append(self._open_folder(name))
        self.path.append(name)
        if len(self._fds) > _OPEN:
            far = len(self._fds) - _OPEN
            if self._fds[far] >= 0:  # the root itself stays open
                del self._seen[far - 1 :]
                self._seen.append(device_and_inode(self._fds[far]))
                os.close(self._fds[far])
                self._fds[far] = -1

    def leave_folder(self) -> bytes:
        """Close the innermost folder, and return its name. Raise InputError where it was moved away
        meanwhile."""
        inner = self._fds.pop()
        try:
            if self.fd < 0:
                self._fds[-1] = os.open("..", FOLDER, dir_fd=inner)
                if device_and_inode(self.fd) != self._seen[len(self._fds) - 2]:
                    raise InputError("a folder was moved away while it was read")
        finally:
            os.close(inner)
        return self.path.pop()

    def close(self) -> None:
        """Close all folders that are open."""
        for fd in self._fds:
            if fd >= 0:
                os.close(fd)
        self._fds = []

    def visit_tree(self, visitor: Visitor) -> None:
        """Visit the root, then one by one the folders in it; without recursion, however deep.
        Raise InputError where the root cannot be listed."""
        with reporting(self.root):
            found = list_folder(self.fd)
        stack: list[Iterator[bytes]] = [iter(visitor.visit_folder(*found))]
        while stack:
            for name in stack[-1]:
                inner = self._enter_for_visitor(name, visitor)
                if inner is not None:
                    stack.append(iter(visitor.visit_folder(*inner)))
                    break
            else:
                stack.pop()
                if stack:
                    visitor.leave_folder(self.leave_folder())

    def _enter_for_visitor(
        self, name: bytes, visitor: Visitor
    ) -> tuple[list[Entry], list[Entry]] | None:
        """List a folder that the visitor enters. Return None where it is passed over."""
        found = None
        try:
            self.enter_folder(name)
            try:
                status = os.fstat(self.fd)
                if visitor.admits_folder(name, status):
                    found = list_folder(self.fd)
            finally:
                if found is None:
                    self.leave_folder()
        except OSError as error:
            visitor.note_failure(name, error)
        if found is not None:
            visitor.enter_folder(name, status)
        return found

    def _open_folder(self, name: bytes) -> int:
        """Open a folder inside the innermost one; make it readable first, if forced to."""
        if not self._is_forced:
            return os.open(name, FOLDER, dir_fd=self.fd)
        try:
            fd = os.open(name, FOLDER, dir_fd=self.fd)
        except PermissionError:
            os.chmod(name, 0o700, dir_fd=self.fd)
            fd = os.open(name, FOLDER, dir_fd=self.fd)
        with suppress(OSError):  # what follows shows whether it is open now
            os.fchmod(fd, 0o700)
        return fd


def list_folder(fd: int) -> tuple[list[Entry], list[Entry]]:
    """List a folder: (what is no folder, folders), by the bytes of their names."""
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
    files.sort(key=itemgetter(0))
    folders.sort(key=itemgetter(0))
    return files, folders


def device_and_inode(fd: int) -> tuple[int, int]:
    """Return device and inode of what is open."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def pieces_of(fd: int, status: os.stat_result) -> Iterator[Piece]:
    """Read a file up to the size that the status has; less, where it has become shorter."""
    read = file_pieces if is_sparse(status) else _read_chunks
    return read(fd, 0, status.st_size)


def is_sparse(status: os.stat_result) -> bool:
    """Tell whether a file can have holes: it has more bytes than its blocks have."""
    return status.st_blocks * 512 < status.st_size


def holds_more(fd: int, status: os.stat_result, limit: int) -> bool:
    """Tell whether there is more data in a file than that."""
    if status.st_size <= limit or not is_sparse(status):
        return status.st_size > limit
    for begin, end in _data_extents(fd, 0, status.st_size):
        limit -= end - begin
        if limit < 0:
            return True
    return False


def file_pieces(fd: int, begin: int, end: int) -> Iterator[Piece]:
    """Yield the data and holes that lie between two offsets of a file."""
    for start, stop in _data_extents(fd, begin, end):
        yield from _parts_of_hole(start - begin)
        yield from _read_chunks(fd, start, stop)
        begin = stop
    yield from _parts_of_hole(end - begin)


def fill_holes(found: Iterable[Piece]) -> Iterator[bytes]:
    """Yield the same as data, as whoever reads the file sees it."""
    for piece in found:
        if isinstance(piece, bytes):
            yield piece
        else:
            for begin in range(0, piece, CHUNK):
                yield _ZEROS[: piece - begin]


def write_piece(fd: int, piece: Piece) -> None:
    """Write a piece where the last one ended. `end_file` must follow the last."""
    if isinstance(piece, bytes):
        write_all(fd, piece)
    else:
        os.lseek(fd, piece, os.SEEK_CUR)


def end_file(fd: int) -> None:
    """Let a file end where the last piece that was written did, also where that was a hole."""
    os.ftruncate(fd, os.lseek(fd, 0, os.SEEK_CUR))


def _parts_of_hole(hole: int) -> Iterator[int]:
    while hole > 0:
        yield min(hole, _LONGEST)
        hole -= _LONGEST


def _read_chunks(fd: int, begin: int, end: int) -> Iterator[bytes]:
    """Yield the data between two offsets of a file in chunks."""
    while begin < end:
        data = os.pread(fd, min(end - begin, CHUNK), begin)
        if not data:
            return
        begin += len(data)
        yield data


def _data_extents(fd: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
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


class TreeCopy:
    """The target side of a copy, which follows a walk through the source. Every failure is the
    target's: OutputError."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._sources: list[os.stat_result] = []
        self._file = -1
        self._name = b""
        self._is_clone = False
        self._can_clone = sys.platform == "linux"
        with reporting(target, OutputError):
            target.mkdir(mode=0o700)
        self._walk = TreeWalk(target)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_file()
        self._walk.close()

    def begin_copy(self, source: os.stat_result) -> None:
        """Take the status of the folder that is copied, before anything in it is."""
        self._sources.append(source)

    @property
    def fd(self) -> int:
        """The descriptor of the innermost folder."""
        return self._walk.fd

    def finish_copy(self) -> None:
        """Give the outermost folder its mode and times."""
        with self._named_failure():
            self._finish_folder()

    def enter_folder(self, name: bytes, source: os.stat_result) -> int:
        """Make a folder, and return the mode that it will have; until it is left we may write
        there."""
        with self._named_failure(name):
            os.mkdir(name, 0o700, dir_fd=self._walk.fd)
            self._walk.enter_folder(name)
            self._sources.append(source)
            return stat.S_IFDIR | _harmless_mode(source, os.fstat(self._walk.fd))

    def leave_folder(self) -> None:
        """Leave a folder of the copy, and give it its mode and times."""
        with self._named_failure():
            self._finish_folder()
            self._walk.leave_folder()

    def _finish_folder(self) -> None:
        fd, source = self._walk.fd, self._sources.pop()
        os.fchmod(fd, _harmless_mode(source, os.fstat(fd)))
        os.utime(fd, ns=(source.st_atime_ns, source.st_mtime_ns))

    def make_link(self, name: bytes, link: bytes, source: os.stat_result) -> os.stat_result:
        """Make a symbolic link in the copy, and return its status."""
        times = (source.st_atime_ns, source.st_mtime_ns)
        with self._named_failure(name):
            os.symlink(link, name, dir_fd=self._walk.fd)
            os.utime(name, ns=times, dir_fd=self._walk.fd, follow_symlinks=False)
            return os.stat(name, dir_fd=self._walk.fd, follow_symlinks=False)

    def remove_file(self, name: bytes) -> None:
        """Remove a file that was copied."""
        with self._named_failure(name):
            os.unlink(name, dir_fd=self._walk.fd)

    def open_file(self, name: bytes, source: os.stat_result, fd: int) -> int:
        """Make a file, and return what is to be read instead of the source: the copy itself, where
        blocks are shared."""
        self._name = name
        try:
            self._file = os.open(name, _NEW, source.st_mode & 0o777, dir_fd=self._walk.fd)
        except OSError as error:
            raise self._output_error(error, name) from None
        self._is_clone = (
            source.st_size > CHUNK and self._can_clone and self._clone_content(self._file, fd)
        )
        return self._file if self._is_clone else fd

    def _clone_content(self, file: int, source: int) -> bool:
        """Let a copied file share the source's blocks, where the file system can do that."""
        from fcntl import ioctl

        try:
            ioctl(file, _CLONE, source)
        except OSError:
            self._can_clone = False  # another file will fare no better
        return self._can_clone

    def write_content(self, piece: Piece) -> None:
        """Write a piece, data or a hole, to the open file of the copy."""
        if self._is_clone:
            return
        try:
            write_piece(self._file, piece)
        except OSError as error:
            raise self._output_error(error, self._name) from None

    def link_to(self, first: bytes, name: bytes) -> os.stat_result | None:
        """Give a file that was copied before another name. Return None where that cannot be."""
        try:
            os.link(
                b"%s/%s" % (os.fsencode(self._target), first),
                name,
                dst_dir_fd=self._walk.fd,
                follow_symlinks=False,
            )
            return os.stat(name, dir_fd=self._walk.fd, follow_symlinks=False)
        except OSError:  # too long a path, a folder that is closed to us, too many links
            return None

    def finish_file(self, source: os.stat_result) -> os.stat_result:
        """Close the open file, and return the status that it has from now on."""
        try:
            if is_sparse(source) and not self._is_clone:
                end_file(self._file)
            os.utime(self._file, ns=(source.st_atime_ns, source.st_mtime_ns))
            status = os.fstat(self._file)
            if status.st_mode != source.st_mode:  # the umask; or bits that a write takes away
                os.fchmod(self._file, _harmless_mode(source, status))
                status = os.fstat(self._file)
        except OSError as error:
            raise self._output_error(error, self._name) from None
        self._close_file()
        return status

    def _close_file(self) -> None:
        if self._file >= 0:
            file, self._file = self._file, -1
            os.close(file)

    @contextmanager
    def _named_failure(self, name: bytes = b"") -> Iterator[None]:
        """Turn a failure of the target side of a copy into one that names the path."""
        try:
            yield
        except OSError as error:
            raise self._output_error(error, name) from None

    def _output_error(self, error: OSError, name: bytes) -> OutputError:
        inner = self._target / os.fsdecode(self._walk.entry_path(name))
        return OutputError(f"{inner}: {os_reason(error)}")


def _harmless_mode(source: os.stat_result, copy: os.stat_result) -> int:
    """Leave out of a mode what would let somebody else's file run as the user who copies it."""
    mode = source.st_mode & _PERMISSIONS
    is_same = (source.st_uid, source.st_gid) == (copy.st_uid, copy.st_gid)
    return mode if is_same else mode & ~_SPECIAL


def remove_tree(path: Path) -> None:
    """Remove whatever has this name: also folders that are closed to us, and however deep they
    are. What can be removed is, also after a failure; raise OutputError with the first one."""
    try:
        with reporting(path, OutputError):
            if path.is_symlink() or not path.is_dir():
                path.unlink(missing_ok=True)
                return
            path.chmod(0o700)
            failures = _remove_tree_below(path)
            if failures:
                _remove_by_paths(path)
            try:
                path.rmdir()
            except OSError as error:
                raise (*failures, error)[0] from None
    except InputError as error:
        raise OutputError(str(error)) from None


def _remove_tree_below(root: Path) -> list[OSError | InputError]:
    """Remove a tree of folders through open folders, and return what failed."""
    try:
        walk = TreeWalk(root, is_forced=True)
    except InputError as error:
        return [error]
    remover = _TreeRemover(walk)
    try:
        walk.visit_tree(remover)
    except (OSError, InputError) as error:
        remover.failures.append(error)
    finally:
        walk.close()
    return remover.failures


def _remove_by_paths(root: Path) -> None:
    """Remove what is left with one descriptor at a time: there may have been too few."""
    for folder, folders, files in os.walk(root, topdown=False):
        for name in (*files, *folders):
            path = Path(folder, name)
            with suppress(OSError):
                if name in files or path.is_symlink():
                    path.unlink()
                else:
                    path.rmdir()


class _TreeRemover:
    """Visits a tree and removes what is in it."""

    def __init__(self, walk: TreeWalk) -> None:
        self.failures: list[OSError | InputError] = []
        self._walk = walk

    def admits_folder(self, name: bytes, status: os.stat_result) -> bool:
        """Go into every folder of the tree that is removed."""
        return True

    def enter_folder(self, name: bytes, status: os.stat_result) -> None:
        """Do nothing: what is inside is removed next."""

    def visit_folder(self, files: list[Entry], folders: list[Entry]) -> Iterator[bytes]:
        """Remove what is no folder, and return the folders."""
        for name, _ in files:
            try:
                os.unlink(name, dir_fd=self._walk.fd)
            except OSError as error:
                self.note_failure(name, error)
        return iter([name for name, _ in folders])

    def leave_folder(self, name: bytes) -> None:
        """Remove a folder of the tree that is empty by now."""
        try:
            os.rmdir(name, dir_fd=self._walk.fd)
        except OSError as error:
            self.note_failure(name, error)

    def note_failure(self, name: bytes, error: OSError) -> None:
        """Keep a failure, unless the file is gone anyway."""
        if not isinstance(error, FileNotFoundError):  # it is gone already
            self.failures.append(error)
