"""The archive as a sink: a clean exit packs what was written, any other leaves nothing behind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from anyio import from_thread, to_thread
from msgspec import Struct, field

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


class Archive(Struct):
    """A sink of the files of an archive, as parts that are appended and as entries.

    Parts wait beside the archive, in files without a name: whatever ends the process, they are
    gone. An entry is a file that is on the disk already: it is read once it is packed, and needs
    no other reading where it says what its writer wrote.
    """

    kinds = (FILE_PARTS, ENTRIES)

    target: Path
    complete: Complete
    check: Callable[[Path], None] = accept_archive  #: called with the file before it has its name
    force: bool = False
    written: ArchiveSize = field(default_factory=lambda: ArchiveSize(0, 0, 0))
    spools: dict[str, AppendFile] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Write]:
        """Give a writer that takes files and parts of files. Raise StreamError."""
        check_target_free(str(self.target), force=self.force)

        async def write(batch: Batch[Any]) -> None:
            """Keep the files of a batch, or append its parts in a thread."""
            if batch.kind == ENTRIES:
                self.entries += batch.items
            else:
                await to_thread.run_sync(self._append_parts, batch.items)

        try:
            yield write
            await to_thread.run_sync(self._pack_archive)
        finally:
            for file in self.spools.values():
                file.close()

    def read(self, name: str) -> Iterator[bytes]:
        """Yield the parts of a file, joined and cut into blocks; of one without any, nothing."""
        if name in self.spools:
            with self.spools[name].read() as file:
                while block := file.read(READ):
                    yield block

    def _append_parts(self, parts: Sequence[FilePart]) -> None:
        """Append parts of files of the archive to their spools. Raise OutputError."""
        for part in parts:
            file = self.spools.get(part.name) or self.spools.setdefault(
                part.name, self._make_spool()
            )
            file.append(part.data, "all")
            if file.trouble:
                raise OutputError(f"{self.target}: {file.trouble}")

    def _make_spool(self) -> AppendFile:
        """Make a file without a name where the archive will be, for there has to be room."""
        folder = self.target.absolute().parent
        with (
            reporting(self.target, OutputError),
            tempfile.TemporaryFile(dir=folder, buffering=0) as file,
        ):
            return AppendFile(self.target).open(os.dup(file.fileno()))

    def _pack_archive(self) -> None:
        """Pack the spooled and the given files into the archive under its name."""
        run_id, missing = self.complete(self)
        entries = [Entry(name, one.read, one.recorded()) for name, one in self.spools.items()]
        entries += self.entries
        names = {entry.name for entry in entries}
        entries += [
            Entry.of_bytes(name, data) for name, data in missing.items() if name not in names
        ]
        self.written = write_archive(
            self.target,
            entries,
            run_id,
            force=self.force,
            checkpoint=from_thread.check_cancelled,
            check=self.check,
        )
