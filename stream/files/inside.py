"""Open what lies inside a folder, and nowhere else: no link leads out, no fifo is waited for."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal

from stream.errors import InputError, os_reason
from stream.files.append import BLOCK

#: A folder that is a link by now is not entered.
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: A fifo that took the place of a file does not hang, a terminal is not taken over.
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

Kind = Literal["file", "dir", "symlink", "fifo", "socket", "device"]
_KINDS: dict[int, tuple[Kind, str]] = {
    stat.S_IFREG: ("file", "a file"),
    stat.S_IFDIR: ("dir", "a folder"),
    stat.S_IFLNK: ("symlink", "a link"),
    stat.S_IFIFO: ("fifo", "a fifo"),
    stat.S_IFSOCK: ("socket", "a socket"),
}


class UnusableFileError(Exception):  # it is no failure: it becomes a finding
    """A file that a run names cannot be read."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.rule = rule


class Digests:
    """Sizes and digests of files inside a folder, each read once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._real = os.path.realpath(root)
        self._known: dict[str, tuple[int, str]] = {}

    def digest_of_file(self, ref: str, rules: str) -> tuple[int, str]:
        """Return (bytes, sha256). Raise UnusableFileError with a rule of this family."""
        path = self._path_inside(ref, rules)
        if path not in self._known:
            try:
                self._known[path] = _digest_file(path)
            except InputError as error:
                raise UnusableFileError(f"{rules}.present", f"{ref}: {error}") from None
            except OSError as error:
                raise UnusableFileError(f"{rules}.present", f"{ref}: {os_reason(error)}") from None
        return self._known[path]

    def digest_of_beginning(self, ref: str, length: int) -> str:
        """Return the sha256 of so many bytes, or of fewer where there are fewer. Raise
        UnusableFileError."""
        try:
            return _digest_file(self._path_inside(ref, "folder"), length)[1]
        except InputError as error:
            raise UnusableFileError("", str(error)) from None
        except OSError as error:
            raise UnusableFileError("folder", os_reason(error)) from None

    def _path_inside(self, ref: str, rules: str) -> str:
        """Return the real path of a file that a run names. Raise UnusableFileError where it leads
        out of the folder."""
        if not ref or "\0" in ref:
            raise UnusableFileError(f"{rules}.present", "no name of a file")
        path = PurePosixPath(ref)
        if path.is_absolute():
            raise UnusableFileError(f"{rules}.inside", f"{ref} is absolute")
        if ".." in path.parts:
            raise UnusableFileError(f"{rules}.inside", f"{ref} leads out of the folder by `..`")
        real = os.path.realpath(self._root / ref)
        if real != self._real and not real.startswith(f"{self._real}/"):
            raise UnusableFileError(f"{rules}.inside", f"{ref} is a link out of the folder")
        return real


def _digest_file(path: str, length: int | None = None) -> tuple[int, str]:
    """Return size and digest of a file. Raise OSError, or InputError where it is no regular
    file."""
    import hashlib

    with _open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if length is None:
            return size, hashlib.file_digest(file, "sha256").hexdigest()
        digest = hashlib.sha256()
        while length > 0 and (block := file.read(min(length, BLOCK))):
            digest.update(block)
            length -= len(block)
        return size, digest.hexdigest()


@contextmanager
def opened_folder(root: Path | int, names: Iterable[str | bytes] = ()) -> Iterator[int]:
    """Open a folder by the names that lead to it from a root. The root itself may be named by a
    link; none of the others may be one. Raise OSError."""
    fd = os.dup(root) if isinstance(root, int) else os.open(root, FOLDER & ~os.O_NOFOLLOW)
    try:
        for name in names:
            inner = os.open(name, FOLDER, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)


def open_beneath(root: Path, name: str) -> BinaryIO:
    """Open a file of a folder, where no part of its name is a link. Raise OSError, or InputError
    with the place."""
    *folders, last = name.split("/")
    try:
        with opened_folder(root, folders) as folder:
            return _open_file(last, folder)
    except NotADirectoryError:
        raise InputError(f"{root / name}: it lies behind a link, or not in a folder") from None
    except InputError as error:
        raise InputError(f"{root / name}: {error}") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InputError(f"{root / name}: a link, not a regular file") from None
        raise


def _open_file(path: str | Path, folder: int | None = None) -> FileIO:
    """Open a regular file. Raise OSError, or InputError with nothing but the kind of what is
    none."""
    fd = os.open(path, FILE, dir_fd=folder)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        raise InputError(f"{describe_kind(mode)}, not a regular file")
    return FileIO(fd)


def files_below(root: Path, name: str) -> Iterator[str]:
    """Yield everything but folders, in order, by paths relative to the root."""
    for folder, folders, files in os.walk(root / name):
        folders.sort()
        links = [item for item in folders if Path(folder, item).is_symlink()]
        for item in sorted((*files, *links)):
            yield os.path.relpath(f"{folder}/{item}", root)


def kind_of_entry(mode: int) -> Kind:
    """Return the kind of a directory entry, in the words of a run's change list."""
    return _KINDS.get(stat.S_IFMT(mode), ("device", ""))[0]


def describe_kind(mode: int) -> str:
    """Name the kind of a directory entry in a sentence."""
    return _KINDS.get(stat.S_IFMT(mode), ("", "a device"))[1]
