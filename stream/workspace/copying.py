"""The target side of a copy; and how a tree is removed that nobody may write into."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from stream.errors import OutputError, os_reason
from stream.workspace.descent import Descent, entries, visit
from stream.workspace.holes import CHUNK, Piece, end, is_sparse, put

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
