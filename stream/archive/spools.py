"""Where the pieces of a mixed stream wait until all is there: files that nobody else can see."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO, cast

from anyio import to_thread

from stream.archive.assorting import Piece
from stream.archive.chain import Tally
from stream.archive.entries import READ, Entry, Measure
from stream.pipeline import Batch, Write
from stream.sinks.places import named


class Spools:
    """A sink. The files have no names: whatever ends the process, they are gone."""

    def __init__(self, target: Path) -> None:
        self._target = target  # beside it: where the archive has room, they have
        self._files: dict[str, IO[bytes]] = {}
        self._tallies: dict[str, Tally] = {}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Write[object]]:
        async def write(batch: Batch[object]) -> None:
            with named(str(self._target)):
                await to_thread.run_sync(self._add, batch)

        yield write

    def close(self) -> None:
        for file in self._files.values():
            with suppress(OSError):  # what it still had to write is wanted by nobody
                file.close()

    def names(self) -> set[str]:
        return {*self._files}

    def entries(self) -> list[Entry]:
        """To be read before `close`, one after the other."""
        return [self._entry(name) for name in self._files]

    def read(self, name: str) -> Iterator[bytes]:
        """What a file holds, in blocks; of one that is not there, nothing."""
        if name in self._files:
            with self._opened(name) as file:
                while block := file.read(READ):
                    yield block

    def _add(self, batch: Batch[object]) -> None:
        for piece in batch:
            if isinstance(piece, Piece):
                if piece.name not in self._files:
                    folder = self._target.absolute().parent
                    self._files[piece.name] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
                    self._tallies[piece.name] = Tally(piece.name)
                self._files[piece.name].write(piece.data)
                self._tallies[piece.name].feed(piece.data)

    def _entry(self, name: str) -> Entry:
        tally = self._tallies[name]
        return Entry(name, lambda: self._opened(name), Measure(tally.bytes, tally.sha256))

    def _opened(self, name: str) -> BinaryIO:
        file = self._files[name]
        with named(str(self._target)):
            file.flush()
            again = open(os.dup(file.fileno()), "rb", buffering=0)  # noqa: PTH123, SIM115
            again.seek(0)
        return cast("BinaryIO", again)
