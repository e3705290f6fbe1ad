"""Open folders, one inside the other: no path is ever too long, and no link leads out.

Reads and writes contents without filling their holes: what no disk holds is not read either.

The target side of a copy; and how a tree is removed that nobody may write into."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from stream.errors import InputError, OutputError, os_reason
from stream.files.append import write_all

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


_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CLONE = 0x40049409  #: FICLONE of Linux
_PERMISSIONS = 0o7777
_SPECIAL = stat.S_ISUID | stat.S_ISGID


class Copy:
    """Follows a traversal of the source. Every failure is the target's: OutputError."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._path: list[bytes] = []
        self._sources: list[os.stat_result] = []
        self._file = -1
        self._name = b""
        self._is_clone = False
        self._can_clone = sys.platform == "linux"
        with self._blaming():
            target.mkdir(mode=0o700)
            self._descent = Descent(target)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close_file()
        self._descent.close()

    def begin(self, source: os.stat_result) -> None:
        self._sources.append(source)

    @property
    def fd(self) -> int:
        return self._descent.fd

    def finish(self) -> None:
        with self._blaming():
            self._dress_folder()

    def enter(self, name: bytes, source: os.stat_result) -> int:
        """The mode that the folder will have; until it is left it is open to us."""
        with self._blaming(name):
            os.mkdir(name, 0o700, dir_fd=self._descent.fd)
            self._descent.enter(name)
            self._path.append(name)
            self._sources.append(source)
            return stat.S_IFDIR | _mode(source, os.fstat(self._descent.fd))

    def leave(self) -> None:
        with self._blaming():
            self._dress_folder()
            self._descent.leave()
            self._path.pop()

    def _dress_folder(self) -> None:
        fd, source = self._descent.fd, self._sources.pop()
        os.fchmod(fd, _mode(source, os.fstat(fd)))
        os.utime(fd, ns=(source.st_atime_ns, source.st_mtime_ns))

    def link(self, name: bytes, link: bytes, source: os.stat_result) -> os.stat_result:
        times = (source.st_atime_ns, source.st_mtime_ns)
        with self._blaming(name):
            os.symlink(link, name, dir_fd=self._descent.fd)
            os.utime(name, ns=times, dir_fd=self._descent.fd, follow_symlinks=False)
            return os.stat(name, dir_fd=self._descent.fd, follow_symlinks=False)

    def remove(self, name: bytes) -> None:
        with self._blaming(name):
            os.unlink(name, dir_fd=self._descent.fd)

    def open(self, name: bytes, source: os.stat_result, fd: int) -> int:
        """What is to be read instead of the source: where blocks are shared, the copy itself."""
        self._name = name
        try:
            self._file = os.open(name, _NEW, source.st_mode & 0o777, dir_fd=self._descent.fd)
        except OSError as error:
            raise self._failure(error, name) from None
        self._is_clone = source.st_size > CHUNK and self._can_clone and self._clone(self._file, fd)
        return self._file if self._is_clone else fd

    def _clone(self, file: int, source: int) -> bool:
        from fcntl import ioctl

        try:
            ioctl(file, _CLONE, source)
        except OSError:
            self._can_clone = False  # another file will fare no better
        return self._can_clone

    def write(self, piece: Piece) -> None:
        if self._is_clone:
            return
        try:
            put(self._file, piece)
        except OSError as error:
            raise self._failure(error, self._name) from None

    def link_to(self, first: bytes, name: bytes) -> os.stat_result | None:
        """Another name of a file that was copied before. None: there can be no such link."""
        try:
            os.link(
                b"%s/%s" % (os.fsencode(self._target), first),
                name,
                dst_dir_fd=self._descent.fd,
                follow_symlinks=False,
            )
            return os.stat(name, dir_fd=self._descent.fd, follow_symlinks=False)
        except OSError:  # too long a path, a folder that is closed to us, too many links
            return None

    def close(self, source: os.stat_result) -> os.stat_result:
        """The status that the copy has from now on."""
        try:
            if is_sparse(source) and not self._is_clone:
                end(self._file)
            os.utime(self._file, ns=(source.st_atime_ns, source.st_mtime_ns))
            status = os.fstat(self._file)
            if status.st_mode != source.st_mode:  # the umask; or bits that a write takes away
                os.fchmod(self._file, _mode(source, status))
                status = os.fstat(self._file)
        except OSError as error:
            raise self._failure(error, self._name) from None
        self._close_file()
        return status

    def _close_file(self) -> None:
        if self._file >= 0:
            file, self._file = self._file, -1
            os.close(file)

    @contextmanager
    def _blaming(self, name: bytes = b"") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._failure(error, name) from None

    def _failure(self, error: OSError, name: bytes) -> OutputError:
        inner = "/".join(map(os.fsdecode, [*self._path, name]))
        return OutputError(f"{self._target / inner}: {os_reason(error)}")


def _mode(source: os.stat_result, copy: os.stat_result) -> int:
    """Somebody else's file must not become one that runs as whoever copies it."""
    mode = source.st_mode & _PERMISSIONS
    is_same = (source.st_uid, source.st_gid) == (copy.st_uid, copy.st_gid)
    return mode if is_same else mode & ~_SPECIAL


def remove_tree(path: Path) -> None:
    """Also folders that are closed to us, as long as they are ours. Raises OutputError."""
    try:
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            return
        path.chmod(0o700)
        descent = Descent(path)
        try:
            visit(_Remover(descent))
        finally:
            descent.close()
        path.rmdir()
    except OSError as error:
        raise OutputError(f"{path}: {os_reason(error)}") from None


class _Remover:
    def __init__(self, descent: Descent) -> None:
        self._descent = descent
        self._names: list[bytes] = []

    def look(self) -> Iterator[bytes]:
        files, folders = entries(self._descent.fd)
        for name, _ in files:
            os.unlink(name, dir_fd=self._descent.fd)
        return iter([name for name, _ in folders])

    def enter(self, name: bytes) -> bool:
        with suppress(OSError):  # what follows says so
            os.chmod(name, 0o700, dir_fd=self._descent.fd)
        self._descent.enter(name)
        self._names.append(name)
        return True

    def leave(self) -> None:
        self._descent.leave()
        os.rmdir(self._names.pop(), dir_fd=self._descent.fd)
