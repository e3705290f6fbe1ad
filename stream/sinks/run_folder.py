"""Files of a run as sinks, and the copy of its raw telemetry: a failure costs only its own file."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from anyio import CancelScope, to_thread
from msgspec import Struct

from stream.codec import join_lines
from stream.errors import OutputError, number, os_reason, reporting
from stream.files.append import AppendFile, RecordedFile, open_new, write_all
from stream.pipeline import Batch, Sink, Write
from stream.records.control import BOUNDARY, RAW
from stream.records.kernel import Telemetry


class BoundaryFile(Struct):
    """Append the records of probes to a file of the run folder, by whole lines."""

    kinds = (BOUNDARY,)

    file: AppendFile
    see: Callable[[bytes], bytes]  #: what of a line may be written down
    lines: int = 0  #: that are in it

    @property
    def recorded(self) -> RecordedFile | None:
        """The file as it was written; None where there is none."""
        return self.file.recorded() if self.file.is_made else None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Write]:
        """Make the file and give a writer for it."""
        from aiofiles.os import wrap

        with reporting(self.file.path, OutputError):
            self.file.open()
        append = wrap(self.file.append)

        async def write(batch: Batch[bytes]) -> None:
            """Append the records of a batch."""
            data = join_lines([self.see(line) for line in batch.items])
            with CancelScope(shield=True):
                await append(data, "all")
            if self.file.trouble:
                raise OutputError(f"{self.file.path}: {self.file.trouble}")
            self.lines += len(batch.items)

        try:
            yield write
        finally:
            self.file.close()


class Lenient(Struct):
    """Write to a sink as long as that works. What could not be written is counted in `troubles`:
    nobody who reads a copy of the record may end the recording."""

    sink: Sink
    name: str
    troubles: list[str]

    @property
    def kinds(self) -> Collection[str]:
        """The kinds of the sink that is not to fail."""
        return self.sink.kinds

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Write]:
        """Give a writer that counts what the sink cannot take."""
        lost = 0
        reason = ""

        async def write(batch: Batch[Any]) -> None:
            """Write a batch, or count it after the first failure."""
            nonlocal lost, reason
            if not reason:
                try:
                    await inner(batch)
                    return
                except BrokenPipeError:
                    reason = "the reader went away"
                except OutputError as error:
                    reason = str(error)
            lost += len(batch.items)

        def report() -> None:
            """Note how many records were lost, and why."""
            nonlocal lost
            if lost:
                self.troubles.append(f"{self.name}: {reason}: {number(lost, 'record')} lost")
                lost = 0

        stack = AsyncExitStack()
        try:
            inner = await stack.enter_async_context(self.sink.open())
        except OutputError as error:
            reason = str(error)
        try:
            yield write
        finally:
            # What is not whole does not get the name of what is.
            failure = OutputError(reason) if reason else sys.exception()
            with suppress(OutputError):
                await stack.__aexit__(type(failure) if failure else None, failure, None)
            report()


_encode = msgspec.json.Encoder().encode


class RawCopy(Struct):
    """Write a copy that costs nothing but itself: why it failed is noted in `troubles`."""

    path: Path
    troubles: list[str]
    kinds = (RAW,)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Write]:
        """Open the target and give a writer for it."""
        fd = -1

        async def write(batch: Batch[Telemetry]) -> None:
            """Write the telemetry of a batch, until that fails."""
            nonlocal fd
            if fd < 0:
                return
            try:  # a reader of a fifo may take its time
                await to_thread.run_sync(_write, fd, batch, abandon_on_cancel=True)
            except OSError as error:
                os.close(fd)
                fd = -1
                self.troubles.append(f"--raw-kernel {self.path}: {os_reason(error)}")

        try:
            fd = _open_fifo(self.path) if self.path.is_fifo() else open_new(self.path)
        except OSError as error:
            why = "nobody reads it" if error.errno == errno.ENXIO else os_reason(error)
            self.troubles.append(f"--raw-kernel {self.path}: {why}")
        try:
            yield write
        finally:
            if fd >= 0:
                os.close(fd)


def _open_fifo(path: Path) -> int:
    """Open a fifo that somebody reads: to wait for a reader would hold up the feed."""
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(fd, True)
    return fd


def _write(fd: int, batch: Batch[Telemetry]) -> None:
    write_all(fd, join_lines(map(_encode, batch.items)))
