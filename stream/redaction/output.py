"""What an agent writes, kept in a file as it comes, with its digest and with what was lost of it.

A full disk ends the file at a whole beginning; the agent does not notice.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from stream.errors import os_reason
from stream.files.append import is_as_written, open_new
from stream.redaction.policy import CapturePolicy

if TYPE_CHECKING:
    import hashlib


NOT_OURS = "was removed, replaced or written to by somebody else"


class RecordedFile(Struct):
    """What became of a file."""

    sha256: str  #: of the file
    bytes: int  #: in the file
    total: int  #: that came
    lost: int
    why: str = ""
    is_ours: bool = True  #: nobody else removed, replaced or wrote into it

    @property
    def hash(self) -> str:
        return f"sha256:{self.sha256}"


class OutputFile:
    """Not for two threads at a time."""

    def __init__(self, path: Path, disclosure: CapturePolicy) -> None:
        self._path = path
        self._fd = open_new(path)
        self._hashed = disclosure.mode == "hashed"
        self._filter = (
            disclosure.censor.stream()
            if disclosure.censor is not None and not self._hashed
            else None
        )
        self._digest: hashlib._Hash | None = None
        self._total = self._size = self._lost = 0
        self._why = ""

    def write(self, chunk: bytes) -> None:
        self._total += len(chunk)
        if self._hashed:
            self._update(chunk)
        elif self._filter is not None:
            self._keep(self._filter.feed(chunk))
        else:
            self._keep(chunk)

    def finish(self) -> RecordedFile:
        try:
            if self._filter is not None:
                self._keep(self._filter.finish())
            if self._hashed:
                own = self._hexdigest()
                self._digest = None
                self._keep(f"sha256:{own} bytes:{self._total}\n".encode())
            is_ours = is_as_written(self._path, self._fd, self._size, self._hexdigest())
        finally:
            os.close(self._fd)
        return RecordedFile(
            self._hexdigest(), self._size, self._total, self._lost, self._why, is_ours
        )

    def _keep(self, data: bytes) -> None:
        if self._why:
            self._lost += len(data)
            return
        done = 0
        try:
            while done < len(data):
                done += os.write(self._fd, data[done:] if done else data)
        except OSError as error:
            self._why = os_reason(error)
            self._lost += len(data) - done
        self._size += done
        self._update(data[:done] if done < len(data) else data)

    def _update(self, data: bytes) -> None:
        if self._digest is None:
            import hashlib  # and with it OpenSSL, while the agent runs

            self._digest = hashlib.sha256()
        self._digest.update(data)

    def _hexdigest(self) -> str:
        self._update(b"")
        assert self._digest is not None
        return self._digest.hexdigest()


def is_still(path: Path, kept: RecordedFile) -> bool:
    """Whether a file that was written is there, as it was."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return False
        found = recorded_file(path)
    except OSError:
        return False
    return (found.bytes, found.sha256) == (kept.bytes, kept.sha256)


def recorded_file(path: Path) -> RecordedFile:
    """Of a file that is finished."""
    import hashlib

    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        size = file.tell()
    return RecordedFile(digest.hexdigest(), size, size, 0)
