"""Files that lie inside a folder, and nowhere else: no link leads out, no fifo is waited for."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from stream.errors import os_reason

BLOCK = 1 << 20


class UnusableFileError(Exception):  # it is no failure: it becomes a finding
    """Something that a run names cannot be looked into."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(reason)
        self.rule = rule


class Digests:
    """Sizes and digests of files inside a folder, each read once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._real = os.path.realpath(root)
        self._known: dict[str, tuple[int, str]] = {}

    def of(self, ref: str, rules: str) -> tuple[int, str]:
        """(bytes, sha256). Raises Unfit with a rule of this family."""
        path = self._inside(ref, rules)
        if path not in self._known:
            try:
                self._known[path] = _digest(path)
            except UnusableFileError as fault:
                raise UnusableFileError(f"{rules}.present", f"{ref}: {fault}") from None
            except OSError as error:
                raise UnusableFileError(f"{rules}.present", f"{ref}: {os_reason(error)}") from None
        return self._known[path]

    def of_beginning(self, ref: str, length: int) -> str:
        """sha256 of so many bytes, or of fewer where there are fewer. Raises Unfit."""
        try:
            return _digest(self._inside(ref, "folder"), length)[1]
        except OSError as error:
            raise UnusableFileError("folder", os_reason(error)) from None

    def _inside(self, ref: str, rules: str) -> str:
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


def _digest(path: str, length: int | None = None) -> tuple[int, str]:
    """Raises OSError, or Unfit where it is no regular file; opening a fifo would wait."""
    import hashlib

    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(fd, "rb") as file:  # noqa: PTH123
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise UnusableFileError("", f"{kind_of(status.st_mode)}, not a regular file")
        if length is None:
            return status.st_size, hashlib.file_digest(file, "sha256").hexdigest()
        digest = hashlib.sha256()
        while length > 0 and (block := file.read(min(length, BLOCK))):
            digest.update(block)
            length -= len(block)
        return status.st_size, digest.hexdigest()


def files_below(root: Path, name: str) -> Iterator[str]:
    """Relative to the root, in order: everything but folders."""
    for folder, folders, files in os.walk(root / name):
        folders.sort()
        links = [item for item in folders if Path(folder, item).is_symlink()]
        for item in sorted((*files, *links)):
            yield os.path.relpath(f"{folder}/{item}", root)


def kind_of(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFLNK: "a link",
        stat.S_IFIFO: "a fifo",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")
