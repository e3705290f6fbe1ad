"""A running hash chain over the layers of a run: any beginning of a killed run can be verified.

A link says which beginning of a layer has which digest. Where links stand depends on nothing
but the layer's own bytes: at the first end of a line after each STEP, and at the end. So who
reads a layer once knows every link that its chain must have.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec

from stream.errors import os_reason
from stream.files.append import BLOCK, AppendFile, RecordedFile
from stream.records.artifacts import (
    CHAIN_FILE,
    DETAIL_FILE,
    KERNEL_FILE,
    MARKERS_FILE,
    POLICY_FILE,
    SDK_FILE,
    ChainLink,
)
from stream.records.control import Gap

STEP = 256 << 10
LAYERS = (KERNEL_FILE, DETAIL_FILE, POLICY_FILE, SDK_FILE, MARKERS_FILE)
_TOGETHER = {KERNEL_FILE: (DETAIL_FILE,), DETAIL_FILE: (KERNEL_FILE,)}
_encode = msgspec.json.Encoder().encode
encode_lines = msgspec.json.Encoder().encode_lines


class ChangedLayerError(Exception):
    """Somebody else has written into a layer: nothing follows from what was read of it."""


class Tally:
    """A tally counts and digests the bytes of a layer, and notes its links."""

    def __init__(self, layer: str) -> None:
        self.layer = layer
        self.bytes = 0
        self.lines = 0
        self.links: list[ChainLink] = []
        self._digest = hashlib.sha256()
        self._next = STEP

    @property
    def sha256(self) -> str:
        """Return the digest of all bytes so far."""
        return self._digest.hexdigest()

    def feed(self, data: bytes, lines: int | None = None) -> None:
        """Take more bytes of a layer. `lines` says how many lines they have, where that is known:
        to count them takes as long as to digest them."""
        start, before = 0, self.lines
        while self.bytes + len(data) - start >= self._next:
            end = data.find(b"\n", start + max(0, self._next - self.bytes - 1)) + 1
            if not end:
                break
            self._add_bytes(data, start, end, None if lines is None else before + lines)
            self.links.append(self.link())
            self._next = self.bytes + STEP
            start = end
        self._add_bytes(data, start, len(data), None if lines is None else before + lines)

    def link(self) -> ChainLink:
        """Return the link of all bytes so far."""
        return ChainLink(layer=self.layer, lines=self.lines, bytes=self.bytes, sha256=self.sha256)

    def end(self) -> list[ChainLink]:
        """Return the link of the end, unless there is one already, and keep it."""
        last = self.link()
        if self.links and self.links[-1] == last:
            return []
        self.links.append(last)
        return [last]

    def _add_bytes(self, data: bytes, start: int, end: int, total: int | None) -> None:
        """Add bytes of a layer. `total`: the lines of it once all of the data has been added."""
        self._digest.update(memoryview(data)[start:end])
        self.bytes += end - start
        if total is not None and len(data) - end < end - start:  # what is left is counted faster
            self.lines = total - data.count(b"\n", end)
        else:
            self.lines += data.count(b"\n", start, end)


def chain_of(files: Mapping[str, bytes]) -> bytes:
    """Return the chain of layers that are whole, as if they had been written one by one."""
    tallies = {name: Tally(name) for name in files}
    for name, data in files.items():
        tallies[name].feed(data)
    links = [link for tally in tallies.values() for link in tally.links]
    links += [link for _, tally in sorted(tallies.items()) for link in tally.end()]
    return encode_lines(links)


class ChainedFile:
    """The file of a layer, whose tally notes the links of its chain. Lines that there is no room
    for are counted as lost."""

    def __init__(self, path: Path, name: str) -> None:
        self.tally = Tally(name)
        self.lost = 0  #: lines
        self.trouble = ""
        self.file = AppendFile(path, is_hashed=False)

    def append(self, data: bytes, lines: int) -> list[ChainLink]:
        """Append whole lines, and return the links that they complete."""
        if not (self.file.is_made or self.trouble):
            self.make()
        done = self.file.append(data) if not self.trouble else 0
        if done < len(data):
            self.trouble = self.trouble or f"{self.file.path}: {self.file.trouble}"
            kept = data.count(b"\n", 0, done)
            self.lost += lines - kept
            data, lines = data[:done], kept
        known = len(self.tally.links)
        self.tally.feed(data, lines)
        return self.tally.links[known:]

    def make(self) -> None:
        """Make the file of the layer, if only an empty one."""
        try:
            self.file.path.parent.mkdir(mode=0o700, exist_ok=True)
            self.file.open()
        except OSError as error:
            self.trouble = self.trouble or f"{self.file.path}: {os_reason(error)}"

    def close(self) -> list[ChainLink]:
        """Close the file, and return the link of its end, if it has none."""
        self.file.close()
        return self.tally.end()


class LayerFiles:
    """The layers of a run and their chain. Nothing waits; it may be called from one thread at a
    time. The data of a link is written before the link."""

    def __init__(self, folder: Path, names: tuple[str, ...] = LAYERS) -> None:
        self._folder = folder
        self._files: dict[str, ChainedFile] = {}
        self._names = names  #: there in the end, if only empty
        self._chain = AppendFile(folder / CHAIN_FILE)

    def append(self, name: str, data: bytes, lines: int) -> None:
        """Append whole lines to a layer. What belongs together stops together: a detail without
        its event, or an event whose detail is missing, would state what is not so."""
        file = self._file(name)
        for other in _TOGETHER.get(name, ()):
            file.trouble = file.trouble or self._file(other).trouble
        self._link(file.append(data, lines))

    def append_gap(self, source: str, reason: str) -> None:
        """Say in the layers of a feed that nobody knows what it still saw."""
        self.append(DETAIL_FILE, _encode(Gap(source=source, lost=0, reason=reason)) + b"\n", 1)

    def disturbed(self, changed: Collection[str]) -> list[str]:
        """Name the files that somebody else removed, replaced or wrote into. `changed`: the layers
        whose content is not what was written, which a full disk may have done as well."""
        whole = {name: file.file for name, file in self._files.items() if not file.trouble}
        found = [name for name, file in whole.items() if name in changed or not file.is_in_place()]
        if not self._chain.trouble and not self._chain.is_as_written():
            found.append(CHAIN_FILE)
        return sorted(found)

    def read(self, name: str) -> io.BufferedReader:
        """Open what was written so far. Somebody else may have written into it."""
        return self._file(name).file.read()

    def blocks(self, name: str) -> Iterator[bytes]:
        """Yield what was written so far. Raise ChangedLayerError behind the last block where
        somebody else has written into it."""
        digest = hashlib.sha256()
        with self.read(name) as file:
            while block := file.read(BLOCK):
                digest.update(block)
                yield block
        if digest.hexdigest() != self._file(name).tally.sha256:
            raise ChangedLayerError(name)

    def is_readable(self, name: str) -> bool:
        """Tell whether a layer holds what was written into it."""
        file = self._file(name)
        return file.file.holds_what_was_written(file.tally.sha256)

    def close(self) -> None:
        """Make the layers that are missing, complete the chain, and close all files."""
        for name in self._names:
            self._file(name).make()
        for _, file in sorted(self._files.items()):
            self._link(file.close())
        self._chain.close()

    @property
    def lost(self) -> dict[str, int]:
        """Return how many lines each layer lost."""
        return {name: file.lost for name, file in self._files.items() if file.lost}

    @property
    def trouble(self) -> str:
        """Return why a file could not be written; of several, why the first could not."""
        chain = f"{self._chain.path}: {self._chain.trouble}" if self._chain.trouble else ""
        return next((file.trouble for file in self._files.values() if file.trouble), chain)

    def lines(self, name: str) -> int:
        """Return how many lines a layer has."""
        return self._file(name).tally.lines

    def kept(self) -> dict[str, RecordedFile]:
        """Return what became of each file that was made."""
        made = {name: file.tally for name, file in self._files.items() if file.file.is_made}
        kept = {name: RecordedFile(t.sha256, t.bytes, t.bytes) for name, t in made.items()}
        if self._chain.is_made:
            kept[CHAIN_FILE] = self._chain.recorded()
        return kept

    def _file(self, name: str) -> ChainedFile:
        if name not in self._files:
            self._files[name] = ChainedFile(self._folder / name, name)
        return self._files[name]

    def _link(self, links: list[ChainLink]) -> None:
        """Append links to the chain. Where there is no room for them they wait: a layer without
        its links would look as if somebody else had written it."""
        self._chain.append_lines(*map(_encode, links))
