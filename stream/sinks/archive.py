"""The archive as a sink: a clean exit packs what was written, any other leaves nothing behind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from anyio import from_thread, to_thread

from stream.archive.tar import READ
from stream.archive.writer import (
    ENTRIES,
    FILE_PARTS,
    ArchiveSize,
    Entry,
    FilePart,
    accept_archive,
    write_archive,
)
from stream.errors import OutputError, reporting
from stream.files.append import AppendFile
from stream.files.targets import check_target_free
from stream.pipeline import Batch, Write

#: Called before the archive is packed: returns the id of the run and, by name, the files that the
#: archive has unless they were written to it.
Complete = Callable[["Archive"], tuple[str, Mapping[str, bytes]]]


class Archive:
    """A sink of the files of an archive, as parts that are appended and as entries.

    Parts wait beside the archive, in files without a name: whatever ends the process, they are
    gone. An entry is a file that is on the disk already: it is read once it is packed, and needs
    no other reading where it says what its writer wrote.
    """

    kinds = (FILE_PARTS, ENTRIES)

    def __init__(
        self,
        target: Path,
        complete: Complete,
        *,
        check: Callable[[Path], None] = accept_archive,
        force: bool = False,
    ) -> None:
        self.written = ArchiveSize(0, 0, 0)
        self._target = target
        self._complete = complete
        self._check = check  # called with the whole file before it has its name
        self._force = force
        self._spools: dict[str, AppendFile] = {}
        self._entries: list[Entry] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Write]:
        """Give a writer that takes files and parts of files. Raise StreamError."""
        check_target_free(str(self._target), force=self._force)

        async def write(batch: Batch[Any]) -> None:
            """Keep the files of a batch, or append its parts in a thread."""
            if batch.kind == ENTRIES:
                self._entries += batch.items
            else:
                await to_thread.run_sync(self._append_parts, batch.items)

        try:
            yield write
            await to_thread.run_sync(self._pack_archive)
        finally:
            for file in self._spools.values():
                file.close()

    def read(self, name: str) -> Iterator[bytes]:
        """Yield the parts of a file, joined and cut into blocks; of one without any, nothing."""
        if name in self._spools:
            with self._spools[name].read() as file:
                while block := file.read(READ):
                    yield block

    def _append_parts(self, parts: Sequence[FilePart]) -> None:
        """Append parts of files of the archive to their spools. Raise OutputError."""
        for part in parts:
            file = self._spools.get(part.name) or self._spools.setdefault(
                part.name, self._make_spool()
            )
            file.append(part.data, "all")
            if file.trouble:
                raise OutputError(f"{self._target}: {file.trouble}")

    def _make_spool(self) -> AppendFile:
        """Make a file without a name where the archive will be, for there has to be room."""
        folder = self._target.absolute().parent
        with (
            reporting(self._target, OutputError),
            tempfile.TemporaryFile(dir=folder, buffering=0) as file,
        ):
            return AppendFile(self._target).open(os.dup(file.fileno()))

    def _pack_archive(self) -> None:
        """Pack the spooled and the given files into the archive under its name."""
        run_id, missing = self._complete(self)
        entries = [Entry(name, one.read, one.recorded()) for name, one in self._spools.items()]
        entries += self._entries
        names = {entry.name for entry in entries}
        entries += [
            Entry.of_bytes(name, data) for name, data in missing.items() if name not in names
        ]
        self.written = write_archive(
            self._target,
            entries,
            run_id,
            force=self._force,
            checkpoint=from_thread.check_cancelled,
            check=self._check,
        )
