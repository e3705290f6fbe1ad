"""Lines from a file or from stdin: what one read delivers is one batch."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

import aiofiles
from anyio import to_thread, wait_readable
from msgspec import Struct

from stream.codec import LineSplitter
from stream.errors import InputError, os_reason
from stream.pipeline import Batch, Out
from stream.records.control import LINES

FILE_BLOCK = 1 << 20  #: a hand-off to a thread costs as much as decoding fifty records
PIPE_BLOCK = 1 << 16
STDIN = "-"


class NdjsonSource(Struct):
    """`-` is stdin. Raises InputError where it cannot be read."""

    name: str

    async def run(self, out: Out, /) -> None:
        """Send the lines of the file, a read at a time."""
        name = "(stdin)" if self.name == STDIN else os.fsencode(self.name).decode(errors="replace")
        splitter = LineSplitter(name)
        try:
            status = os.fstat(0) if self.name == STDIN else Path(self.name).stat()
            if stat.S_ISREG(status.st_mode):
                await _send_file_lines(self.name, splitter, out)
            else:
                await _read_pipe(self.name, splitter, out)
        except OSError as error:
            raise InputError(f"{name}: {os_reason(error)}") from None
        rest = splitter.finish()
        if rest:
            await out.send(Batch(LINES, rest))


def check_readable(names: Iterable[str]) -> None:
    """Raise InputError unless every file is there and may be read, before anything is written."""
    for name in names:
        try:
            if name != STDIN and stat.S_ISREG(Path(name).stat().st_mode):
                os.close(_open(name))
        except OSError as error:
            raise InputError(f"{name}: {os_reason(error)}") from None


async def _send_file_lines(name: str, splitter: LineSplitter, out: Out) -> None:
    """Send the lines of a regular file, a block at a time."""
    target = 0 if name == STDIN else name
    async with aiofiles.open(target, "rb", buffering=0, closefd=name != STDIN) as file:
        while chunk := await file.read(FILE_BLOCK):
            batch = splitter.feed(chunk)
            for part in batch.bounded_parts() if batch else ():
                await out.send(Batch(LINES, part))


async def _read_pipe(name: str, splitter: LineSplitter, out: Out) -> None:
    """Read a pipe, a terminal or a device: what there is now, without waiting for more."""
    # A fifo without a writer holds open(): in a thread that cancellation leaves behind.
    fd = 0 if name == STDIN else await to_thread.run_sync(_open, name, abandon_on_cancel=True)
    try:
        while chunk := await _read_pipe_block(fd):
            batch = splitter.feed(chunk)
            for part in batch.bounded_parts() if batch else ():
                await out.send(Batch(LINES, part))
    finally:
        if fd != 0:
            os.close(fd)


def _open(name: str) -> int:
    return os.open(name, os.O_RDONLY | os.O_CLOEXEC)


async def _read_pipe_block(fd: int) -> bytes:
    """Wait until a pipe has something, and return what is there."""
    try:
        await wait_readable(fd)
    except PermissionError:  # what cannot be polled, /dev/null for one, never blocks for long
        return await to_thread.run_sync(os.read, fd, PIPE_BLOCK, abandon_on_cancel=True)
    return os.read(fd, PIPE_BLOCK)
