"""The files of a run's record: made new, private to their owner, and only ever appended to.

What `append` reports as written is in the file when it returns, whatever happens to this process
next. A full disk never leaves half of what was to stay whole: it is cut off again, and counted.
"""

from __future__ import annotations

import io
import os
import select
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, Self

from msgspec import Struct

from stream.errors import os_reason

if TYPE_CHECKING:
    import hashlib
    from concurrent.futures import Future, ThreadPoolExecutor

BLOCK = 1 << 20  #: bytes that are read at once
LARGE = 1 << 16  #: bytes whose hashing is worth a thread
PART = 64 << 20  #: bytes, at least, of a file that are compared by themselves
RESERVED = 128 << 10  #: bytes: the documents of a run, unless it reached very much
NOT_OURS = "was removed, replaced or written to by somebody else"
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Unit = Literal["bytes", "lines", "all"]


class RecordedFile(Struct):
    """The size and digest of a file of the record, and what was lost of it."""

    sha256: str  #: of the file
    bytes: int  #: in the file
    total: int  #: that came
    lost: int = 0
    why: str = ""
    is_ours: bool = True  #: nobody else removed, replaced or wrote into it

    @property
    def hash(self) -> str:
        """The digest as events and manifests state it."""
        return f"sha256:{self.sha256}"


class GrowingDigest:
    """The SHA-256 of what is written to a file. It loads OpenSSL once there is something to hash.

    Large data is hashed in a thread, while its giver writes on. The states on the way are kept:
    from each of them on, a part of the file can be compared by itself.
    """

    def __init__(self) -> None:
        self._size = 0
        self._digest: hashlib._Hash | None = None
        self._states: list[tuple[int, hashlib._Hash]] = []  # and the bytes before them
        self._thread: ThreadPoolExecutor | None = None
        self._hashing: Future[None] | None = None

    def update(self, data: bytes) -> None:
        """Add data to what is hashed."""
        if self._hashing is not None:
            self._hashing.result()
            self._hashing = None
        if len(data) < LARGE:
            self._hash(data)
            return
        if self._thread is None:
            from concurrent.futures import ThreadPoolExecutor

            self._thread = ThreadPoolExecutor(1)
        self._hashing = self._thread.submit(self._hash, data)

    def hexdigest(self) -> str:
        """Return the digest of all data so far, in 64 digits."""
        self.update(b"")
        assert self._digest is not None
        return self._digest.hexdigest()

    def is_of(self, fd: int) -> bool:
        """Tell whether an open file holds what was hashed. Its size has to be that already."""
        self.update(b"")
        assert self._digest is not None
        ends = [*self._states[1:], (self._size, self._digest)]

        def is_as_hashed(start: tuple[int, hashlib._Hash], end: tuple[int, hashlib._Hash]) -> bool:
            """Hash on from one state over the file, and compare with the next state."""
            (at, state), (until, expected) = start, end
            digest = state.copy()
            while at < until and (data := os.pread(fd, min(BLOCK, until - at), at)):
                digest.update(data)
                at += len(data)
            return digest.digest() == expected.digest()

        if len(ends) == 1:
            return is_as_hashed(self._states[0], ends[0])
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(2) as threads:
            return all(threads.map(is_as_hashed, self._states, ends))

    def _hash(self, data: bytes) -> None:
        """Hash data, and keep the state before it where a part begins."""
        if self._digest is None:
            import hashlib

            self._digest = hashlib.sha256()
        if not self._states or self._size - self._states[-1][0] >= PART:
            self._states.append((self._size, self._digest.copy()))
        self._digest.update(data)
        self._size += len(data)


class AppendFile:
    """A new file that grows at its end. It is made by `open`, or by the first `append`.

    After a failure it takes nothing until `retry_append`: a beginning that is whole is worth more
    than a middle that is missing. Lines that must not be lost go through `append_lines`.
    """

    def __init__(self, path: Path, *, is_hashed: bool = True) -> None:
        self.path = path
        self.size = 0
        self.lost = 0  #: bytes that were not taken
        self.trouble = ""  #: why nothing more is taken
        self.waiting: list[bytes] = []  #: lines that there was no room for, in their order
        self.is_made = False
        self._fd = -1
        self._is_torn = False
        self._digest = GrowingDigest() if is_hashed else None

    def open(self, fd: int | None = None) -> Self:
        """Make the file, or take over one that was just made. Raise OSError where something has
        its name already."""
        if self._fd < 0:
            self._fd = open_new(self.path, os.O_APPEND) if fd is None else fd
            self.is_made = True
        return self

    @property
    def sha256(self) -> str:
        """The digest of what was written, whatever the file holds by now."""
        assert self._digest is not None
        return self._digest.hexdigest()

    @property
    def changed_at(self) -> int:
        """The time of the last change of the file, in ns, by the clock of files."""
        return os.fstat(self._fd).st_ctime_ns

    def append(self, data: bytes, whole: Unit = "lines") -> int:
        """Append data and return how many of its bytes are there. What there is no room for is
        lost, and so is what was written of the line, or of all the data, that it was a part of."""
        if self.trouble:
            self.lost += len(data)
            return 0
        done = 0
        try:
            self.open()
            while done < len(data):
                done += os.write(self._fd, data[done:] if done else data)
        except OSError as error:
            self.trouble = os_reason(error)
            written = done
            if whole != "bytes":
                done = data.rfind(b"\n", 0, written) + 1 if whole == "lines" else 0
            self._is_torn = done < written
            self.lost += len(data) - done
            data = data[:done]
        self.size += done
        if self._is_torn:
            self._cut_unfinished_data()
        if self._digest is not None:
            self._digest.update(data)
        return done

    def append_lines(self, *lines: bytes) -> bool:
        """Append lines, given without their newlines, after all that still wait for room. Return
        whether all of them are there."""
        self.waiting += lines
        if self.waiting and self.retry_append():
            data = b"\n".join([*self.waiting, b""])
            done = self.append(data)
            del self.waiting[: data.count(b"\n", 0, done)]
        return not self.waiting

    def retry_append(self) -> bool:
        """Take data again after a failure, if the end of the file can be made whole. Whoever has
        kept what was lost can append it then."""
        if self._is_torn and not self._cut_unfinished_data():
            return False
        self.trouble, self.lost = "", 0
        return True

    def is_as_written(self) -> bool:
        """Tell whether the file still has its name, and nobody else has written into it."""
        assert self._digest is not None
        return self.is_in_place() and self._digest.is_of(self._fd)

    def is_in_place(self) -> bool:
        """Tell whether the file still has its name and its size. One that was never made has:
        where somebody has taken its name, opening it fails."""
        if self._fd < 0:
            return True
        opened = os.fstat(self._fd)
        try:
            named = self.path.lstat()
        except OSError:
            return False
        return os.path.samestat(opened, named) and opened.st_size == self.size

    def holds_what_was_written(self, sha256: str) -> bool:
        """Tell whether the file has this digest, whatever has its name by now."""
        import hashlib

        with self.read() as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256

    def read(self) -> io.BufferedReader:
        """Open what was written for reading, by no name: the program that is recorded may have
        put another file there."""
        return io.BufferedReader(_ReadableFile(self._fd), BLOCK)

    def recorded(self) -> RecordedFile:
        """Return size and digest of what was written."""
        return RecordedFile(self.sha256, self.size, self.size)

    def close(self) -> None:
        """Close the file; it can be closed again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _cut_unfinished_data(self) -> bool:
        """Cut off what was written of something that is not whole."""
        try:
            os.ftruncate(self._fd, self.size)
        except OSError as error:  # a torn line stays: readers know those
            if not self.trouble.endswith(os_reason(error)):
                self.trouble = f"{self.trouble}; {os_reason(error)}"
            return False
        self._is_torn = False
        return True


class _ReadableFile(io.RawIOBase):
    """An open file from its beginning, wherever it is written to."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._at = 0

    def readable(self) -> bool:
        """Return that the open file can be read."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Read on into a buffer, and return how many bytes there were."""
        length = os.preadv(self._fd, [buffer], self._at) if self._fd >= 0 else 0
        self._at += length
        return length


class DiskReserve:
    """Room on the disk that is given back for what is written last, so that a full disk does not
    keep a run from recording its result. The file has no name: a recorder that is killed leaves
    none."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        with suppress(OSError):  # there is no room for it, or none can be kept on this disk
            os.posix_fallocate(self._file.fileno(), 0, RESERVED)

    def release(self) -> None:
        """Give the reserved room of the disk back."""
        self._file.close()


def open_new(path: Path, more: int = 0) -> int:
    """Make a file that only its owner may read and write, whatever the umask allows, and never
    through a name that is there. Raise OSError."""
    return os.open(path, _NEW | more, 0o600)


def create_private_file(path: Path) -> IO[bytes]:
    """Make such a file, and open it for writing. Raise OSError."""
    return os.fdopen(open_new(path), "wb")


def write_all(fd: int, data: bytes) -> None:
    """Write data, however much of it is taken at a time."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # a program that shares the pipe with us has made it so
            select.select((), (fd,), ())


def recorded_file(path: Path) -> RecordedFile:
    """Return size and digest of a finished file. Raise OSError."""
    import hashlib

    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        size = file.tell()
    return RecordedFile(digest.hexdigest(), size, size)


def is_file_unchanged(path: Path, recorded: RecordedFile) -> bool:
    """Tell whether a file that was recorded is there, as it was."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return False
        found = recorded_file(path)
    except OSError:
        return False
    return (found.bytes, found.sha256) == (recorded.bytes, recorded.sha256)
