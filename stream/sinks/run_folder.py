"""Files of a run as sinks, and the copy of its raw telemetry: a failure costs only its own file."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from array import array
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
from anyio import CancelScope, to_thread
from msgspec import Struct

from stream.archive.chain import LayerFiles
from stream.codec import join_lines
from stream.errors import OutputError, os_reason, reporting
from stream.files.append import AppendFile, RecordedFile, open_new, write_all
from stream.pipeline import Batch, Write
from stream.records.artifacts import DETAIL_FILE, KERNEL_FILE
from stream.records.control import BOUNDARY, DETAILS, GAPS, KERNEL, RAW, TIMES
from stream.records.kernel import Telemetry

SLOW = 0.1  #: seconds that no write to memory takes
_PIECE = 250  #: times that are looked through one by one
_encode_lines = msgspec.json.Encoder().encode_lines


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


class EventTimeIndex:
    """Keeps the time of each event of the kernel layer in a file without a name: millions of them
    take no memory."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._count = 0
        self.trouble = ""

    def add_times(self, times: Sequence[int]) -> None:
        """Append the times of further events."""
        if times and not self.trouble:
            try:
                write_all(self._file.fileno(), array("Q", times).tobytes())
            except OSError as error:
                self.trouble = f"when events happened: {os_reason(error)}"
                return
            self._count += len(times)

    def counter_until(self) -> Callable[[int], int]:
        """Return a function that counts the events until a time. Two processors disagree by a
        little: what stands later did not happen before."""
        if not self._count:
            return lambda ts: 0
        size = self._count * 8  # what follows belongs to a batch that was not written to its end
        words = memoryview(mmap.mmap(self._file.fileno(), size, prot=mmap.PROT_READ)).cast("Q")
        pieces = [words[start : start + _PIECE] for start in range(0, len(words), _PIECE)]
        latest = array("Q", accumulate(map(max, pieces), max))

        def count(ts: int) -> int:
            """Count the events until a time."""
            whole = bisect_right(latest, ts)
            later = (place for place, time in enumerate(pieces[whole]) if time > ts)
            return whole * _PIECE + next(later)

        return lambda ts: count(ts) if ts < latest[-1] else len(words)

    def close(self) -> None:
        """Remove the file."""
        self._file.close()


class LayerSink(Struct):
    """Append the records of the kernel layer to its files, each batch with one write.

    Writes go to memory, with the feed's own urgency: a thread would have to wait for a processor
    while the ring fills up (430,000 events a second, 360,000 with a thread). Once a disk has made a
    write wait, a thread waits for the others, so that signals and time limits still work.
    """

    kinds = (KERNEL, DETAILS, GAPS, TIMES)

    files: LayerFiles
    times: EventTimeIndex

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Write]:
        """Give a writer that appends lines to the layers."""
        is_slow = False

        async def write(batch: Batch[Any]) -> None:
            """Append the lines of a batch to their layer."""
            nonlocal is_slow
            if is_slow:
                await to_thread.run_sync(self._append_batch, batch)
            else:
                start = monotonic()
                self._append_batch(batch)
                is_slow = monotonic() - start > SLOW

        yield write

    def _append_batch(self, batch: Batch[Any]) -> None:
        """Append the records of a batch to the file of their kind."""
        if batch.kind == TIMES:
            self.times.add_times(batch.items)
            return
        name = KERNEL_FILE if batch.kind == KERNEL else DETAIL_FILE
        self.files.append(name, _encode_lines(batch.items), len(batch.items))


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
