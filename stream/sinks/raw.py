"""The raw telemetry of a kernel feed, to a file or a fifo, as long as it can be written."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from anyio import to_thread
from msgspec import Struct

from stream.codec import join_lines
from stream.errors import os_reason
from stream.files.append import open_new, write_all
from stream.pipeline import Batch, Write
from stream.records.control import RAW
from stream.records.kernel import Telemetry

_encode = msgspec.json.Encoder().encode


class RawCopy(Struct):
    """Write a copy that costs nothing but itself: why it failed is noted in `troubles`."""

    path: Path
    troubles: list[str]
    kinds = (RAW,)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Write]:
        fd = -1

        async def write(batch: Batch[Telemetry]) -> None:
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
