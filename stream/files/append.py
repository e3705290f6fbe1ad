"""Files of a run's record: made anew, and for nobody else to read.

A file to which lines are appended, each with one write, and which is never written anew.

What was said to be there is there when `append` returns, whatever happens to us next. Where the
disk is full, lines wait in their order for room: the file stays a whole beginning.

Room on the disk that is kept for what is written last."""

from __future__ import annotations

import os
import select
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from stream.errors import os_reason

if TYPE_CHECKING:
    import hashlib

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def open_new(path: Path, more: int = 0) -> int:
    """Make a file that only its owner may read and write, whatever the umask allows, and never
    through a name that is there. Raises OSError."""
    return os.open(path, _NEW | more, 0o600)


def create(path: Path) -> IO[bytes]:
    """Make such a file, to be written. Raises OSError."""
    return os.fdopen(open_new(path), "wb")


BLOCK = 1 << 18


class AppendFile:
    """Raises OSError where something has its name already."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.trouble = ""  #: why lines are waiting
        self.waiting: list[bytes] = []
        self._fd = open_new(path, os.O_APPEND)
        self._size = 0
        self._digest: hashlib._Hash | None = None

    @property
    def is_ours(self) -> bool:
        """Still there, and nobody else has written into it."""
        return is_as_written(self._path, self._fd, self._size, self.sha256)

    @property
    def sha256(self) -> str:
        """Of what was written, whatever the file holds by now."""
        return self._hashed(b"").hexdigest()

    @property
    def size(self) -> int:
        return self._size

    @property
    def changed_at(self) -> int:
        """ns, by the clock of files."""
        return os.fstat(self._fd).st_ctime_ns

    def append(self, line: bytes) -> bool:
        """Whether it is there, without its newline given."""
        self.waiting.append(line)
        while self.waiting:
            if not self._write(self.waiting[0] + b"\n"):
                return False
            del self.waiting[0]
        return True

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, data: bytes) -> bool:
        done = 0
        try:
            while done < len(data):
                done += os.write(self._fd, data[done:])
        except OSError as error:
            self.trouble = os_reason(error)
            if done:
                with suppress(OSError):
                    os.ftruncate(self._fd, self._size)
            return False
        self._size += len(data)
        self._hashed(data)
        return True

    def _hashed(self, data: bytes) -> hashlib._Hash:
        if self._digest is None:
            import hashlib  # and with it OpenSSL: when something is written for the first time

            self._digest = hashlib.sha256()
        self._digest.update(data)
        return self._digest


def is_as_written(path: Path, fd: int, size: int, sha256: str) -> bool:
    """Whether what was opened there has that name still, and holds those bytes."""
    if not is_whole(path, fd, size):
        return False
    import hashlib

    found, place = hashlib.sha256(), 0
    while block := os.pread(fd, BLOCK, place):
        found.update(block)
        place += len(block)
    return found.hexdigest() == sha256


def is_whole(path: Path, fd: int, size: int) -> bool:
    """Whether what was opened there has that name still, and so many bytes. Who is recorded may
    be able to write where the record is."""
    opened = os.fstat(fd)
    try:
        named = path.lstat()
    except OSError:
        return False
    return os.path.samestat(opened, named) and opened.st_size == size


def write_all(fd: int, data: bytes) -> None:
    """However much of it is taken at a time."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # whoever shares the pipe with us has made it so
            select.select((), (fd,), ())


SIZE = 128 << 10  #: bytes: the documents of a run, unless it reached very much


class Reserve:
    """Whoever fills the disk does not keep a run from saying what it came to. The file has no
    name: a recorder that is killed leaves none."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        with suppress(OSError):  # there is no room for it, or nobody can keep any here
            os.posix_fallocate(self._file.fileno(), 0, SIZE)

    def release(self) -> None:
        self._file.close()
