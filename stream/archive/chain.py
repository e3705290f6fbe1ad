"""A running hash chain over the layers of a run: any beginning of a killed run can be verified.

A link says which beginning of a layer has which digest. Where links stand depends on nothing
but the layer's own bytes: at the first end of a line after each STEP, and at the end. So who
reads a layer once knows every link that its chain must have.
"""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import msgspec

from stream.errors import os_reason
from stream.files.append import is_whole, open_new, write_all
from stream.records.artifacts import (
    CHAIN_FILE,
    DETAIL_FILE,
    KERNEL_FILE,
    MARKERS_FILE,
    POLICY_FILE,
    SDK_FILE,
    ChainLink,
)
from stream.redaction.output import RecordedFile

STEP = 256 << 10
_BLOCK = 1 << 20
LAYERS = (KERNEL_FILE, DETAIL_FILE, POLICY_FILE, SDK_FILE, MARKERS_FILE)
_TOGETHER = {KERNEL_FILE: (DETAIL_FILE,), DETAIL_FILE: (KERNEL_FILE,)}
_encode = msgspec.json.Encoder().encode


class Tally:
    """The digest of what went by, and the links that are due in it."""

    def __init__(self, layer: str) -> None:
        self.layer = layer
        self.bytes = 0
        self.lines = 0
        self.links: list[ChainLink] = []
        self._digest = hashlib.sha256()
        self._due = STEP

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def feed(self, data: bytes, lines: int | None = None) -> None:
        """`lines`: as many as it has, where somebody knows: to count them takes as long as the
        digest of them does."""
        start, before = 0, self.lines
        while self.bytes + len(data) - start >= self._due:
            end = data.find(b"\n", start + max(0, self._due - self.bytes - 1)) + 1
            if not end:
                break
            self._add(data, start, end, None if lines is None else before + lines)
            self.links.append(self.link())
            self._due = self.bytes + STEP
            start = end
        self._add(data, start, len(data), None if lines is None else before + lines)

    def link(self) -> ChainLink:
        return ChainLink(layer=self.layer, lines=self.lines, bytes=self.bytes, sha256=self.sha256)

    def _add(self, data: bytes, start: int, end: int, total: int | None) -> None:
        """`total`: the lines that there will be once all of the data has been added."""
        self._digest.update(memoryview(data)[start:end])
        self.bytes += end - start
        if total is not None and len(data) - end < end - start:  # what is left is counted faster
            self.lines = total - data.count(b"\n", end)
        else:
            self.lines += data.count(b"\n", start, end)


class ChainedFile:
    """A file that only grows, by whole lines. What there is no room for is counted as lost."""

    def __init__(self, folder: Path, name: str) -> None:
        self.tally = Tally(name)
        self.lost = 0
        self.trouble = ""
        self.is_made = False
        self._path = folder / name
        self._fd = -1

    def append(self, data: bytes, lines: int) -> list[ChainLink]:
        """The links that are due now. After a loss nothing more is taken: a beginning that is
        whole is worth more than a middle that is missing."""
        if self.trouble:
            self.lost += lines
            return []
        kept = data
        try:
            self._open()
            write_all(self._fd, data)
        except OSError as error:
            self.trouble = f"{self._path}: {os_reason(error)}"
            kept = self._keep_whole_lines(data)
            kept_lines = kept.count(b"\n")
            self.lost += lines - kept_lines
            lines = kept_lines
        known = len(self.tally.links)
        self.tally.feed(kept, lines)
        return self.tally.links[known:]

    def make(self) -> None:
        """It is there, if only empty, whatever was in the way of its first line."""
        try:
            self._open()
        except OSError as error:
            self.trouble = self.trouble or f"{self._path}: {os_reason(error)}"

    def forgive(self) -> None:
        """Whatever was in the way may be gone: whoever has kept what was lost can add it now, to
        nothing but whole lines."""
        try:
            if self.trouble and self._fd >= 0:
                os.ftruncate(self._fd, self.tally.bytes)
                os.lseek(self._fd, self.tally.bytes, os.SEEK_SET)
        except OSError:
            return
        self.trouble, self.lost = "", 0

    def is_ours(self) -> bool:
        """Still there, and nobody else has written into it."""
        if self._fd < 0:
            return True  # where somebody has taken its name, opening it will fail
        if not is_whole(self._path, self._fd, self.tally.bytes):
            return False
        return self.holds_what_was_written()

    def holds_what_was_written(self) -> bool:
        """Whatever has its name by now."""
        with self.read() as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == self.tally.sha256

    def read(self) -> io.BufferedReader:
        """From its beginning, by no name: who is recorded may have put something else there."""
        return io.BufferedReader(_Held(self._fd), _BLOCK)

    def close(self) -> list[ChainLink]:
        """The link of its end, if it has none."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        links, last = self.tally.links, self.tally.link()
        if links and links[-1] == last:
            return []
        links.append(last)
        return [last]

    def _open(self) -> None:
        """A file that is there already is somebody else's."""
        if self._fd >= 0:
            return
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        self._fd = open_new(self._path)
        self.is_made = True

    def _keep_whole_lines(self, data: bytes) -> bytes:
        if self._fd < 0:
            return b""
        written = os.lseek(self._fd, 0, os.SEEK_CUR) - self.tally.bytes
        kept = data[: data.rfind(b"\n", 0, written) + 1]
        end = self.tally.bytes + len(kept)
        try:
            os.ftruncate(self._fd, end)
        except OSError as error:  # a torn line stays: readers know those
            self.trouble = f"{self.trouble}; {os_reason(error)}"
        return kept


class _Held(io.RawIOBase):
    """An open file from its beginning, wherever it is written to."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        length = os.preadv(self._fd, [buffer], self._at) if self._fd >= 0 else 0
        self._at += length
        return length


class LayerFiles:
    """The layers of a run and their chain. Nothing waits; it may be called from one thread at a
    time. The data of a link is written before the link."""

    def __init__(self, folder: Path, names: tuple[str, ...] = LAYERS) -> None:
        self._folder = folder
        self._files: dict[str, ChainedFile] = {}
        self._names = names  #: there in the end, if only empty
        self._chain = ChainedFile(folder, CHAIN_FILE)
        self._unlinked: list[bytes] = []  #: links that there was no room for

    def append(self, name: str, data: bytes, lines: int) -> None:
        """Whole lines. What belongs together stops together: a detail without its event, and an
        event whose detail is missing, would say something that is not so."""
        file = self._file(name)
        for other in _TOGETHER.get(name, ()):
            file.trouble = file.trouble or self._file(other).trouble
        self._link(file.append(data, lines))

    def disturbed(self) -> list[str]:
        """Those that somebody else removed, replaced or wrote into."""
        return sorted(name for name, file in self._all() if not file.trouble and not file.is_ours())

    def read(self, name: str) -> io.BufferedReader:
        """What was written so far. Nobody else must have written into it."""
        return self._file(name).read()

    def is_readable(self, name: str) -> bool:
        return self._file(name).holds_what_was_written()

    def close(self) -> None:
        for name in self._names:
            self._file(name).make()
        for _, file in sorted(self._files.items()):
            self._link(file.close())
        self._chain.forgive()
        self._link([])
        self._chain.close()

    @property
    def lost(self) -> dict[str, int]:
        return {name: file.lost for name, file in self._files.items() if file.lost}

    @property
    def trouble(self) -> str:
        """Of the first that had any."""
        found = (file.trouble for _, file in self._all())
        return next(filter(None, found), "")

    def lines(self, name: str) -> int:
        return self._file(name).tally.lines

    def bytes(self, name: str) -> int:
        return self._file(name).tally.bytes

    def sha256(self, name: str) -> str:
        return self._file(name).tally.sha256

    def kept(self) -> dict[str, RecordedFile]:
        """Each of its files, as it was written."""
        return {
            name: RecordedFile(file.tally.sha256, file.tally.bytes, file.tally.bytes, 0)
            for name, file in self._all()
            if file.is_made
        }

    def _all(self) -> list[tuple[str, ChainedFile]]:
        return [*self._files.items(), (CHAIN_FILE, self._chain)]

    def _file(self, name: str) -> ChainedFile:
        return self._files.setdefault(name, ChainedFile(self._folder, name))

    def _link(self, links: list[ChainLink]) -> None:
        """Where there is no room for them they wait, in their order: what was written without its
        links would look as if somebody else had written it."""
        self._unlinked += (_encode(link) + b"\n" for link in links)
        if self._unlinked and not self._chain.trouble:
            known = self._chain.tally.lines
            self._chain.append(b"".join(self._unlinked), len(self._unlinked))
            del self._unlinked[: self._chain.tally.lines - known]
