"""The sinks of records: stdout, or a file that has its name only when it is whole."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import msgspec
from aiofiles.os import wrap
from anyio import CancelScope, to_thread
from msgspec import Struct

from stream.codec import join_lines
from stream.errors import OutputError, reporting
from stream.files.append import AppendFile, write_all
from stream.files.targets import (
    STDOUT_TARGET,
    descriptor_by_name,
    is_regular_target,
    open_locked,
    partial_path,
)
from stream.pipeline import Batch, Write
from stream.records.control import BOUNDARY, LINES, Control, sentence_for_people

WriteBytes = Callable[[bytes], Awaitable[None]]
encode_lines = msgspec.json.Encoder().encode_lines


class Ndjson(Struct):
    """Write records as NDJSON to `-` (stdout) or to a file."""

    target: str
    kinds: Collection[str] = (LINES, BOUNDARY)
    is_whole: Callable[[], bool] = lambda: True  #: asked at the end: else a file stays partial

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Write]:
        """Open the target and give a writer for it."""
        async with _writer(self.target, self.is_whole) as write_bytes:

            async def write(batch: Batch[bytes | Struct]) -> None:
                """Write the lines of a batch."""
                items = batch.items
                is_encoded = isinstance(items[0], bytes)
                await write_bytes(join_lines(items) if is_encoded else encode_lines(items))  # type: ignore[arg-type]

            yield write


class Text(Struct):
    """Write control records as sentences to stderr, the first ones in full."""

    kinds: Collection[str]
    most: int = 20
    seen: int = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Write]:
        """Give a writer that prints sentences on stderr."""

        async def write(batch: Batch[Control]) -> None:
            """Print the sentences of a batch."""
            for item in batch.items:
                self.seen += 1
                if self.seen <= self.most:
                    _tell(sentence_for_people(item))

        yield write
        if self.seen > self.most:
            _tell(f"… and {self.seen - self.most} more")


def _tell(text: str) -> None:
    """Write a message to stderr. A stderr that nobody reads costs the records nothing."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)  # noqa: T201


def _writer(target: str, is_whole: Callable[[], bool]) -> AbstractAsyncContextManager[WriteBytes]:
    if target == STDOUT_TARGET or not is_regular_target(target):
        return _device_writer(target)
    return _file_writer(target, is_whole)


@asynccontextmanager
async def _device_writer(target: str) -> AsyncIterator[WriteBytes]:
    """stdout, a fifo, /dev/null: written as it comes.

    A reader that never reads, or never opens, must not hold us: on cancellation the thread
    that waits for it is left behind.
    """

    name = "stdout" if target == STDOUT_TARGET else target

    async def write(data: bytes) -> None:
        """Write data in a thread, which an interrupt leaves behind."""
        with reporting(name, OutputError):
            await to_thread.run_sync(write_all, fd, data, abandon_on_cancel=True)

    fd = 1
    if target != STDOUT_TARGET:
        with reporting(name, OutputError):
            fd = await to_thread.run_sync(_open_device, target, abandon_on_cancel=True)
    try:
        yield write
    finally:
        if fd != 1:
            os.close(fd)


def _open_device(name: str) -> int:
    """What is open already has its place in its file: to open it again would begin at the top."""
    if (known := descriptor_by_name(name)) is not None:
        return os.dup(known)
    return os.open(name, os.O_WRONLY | os.O_CLOEXEC)


@asynccontextmanager
async def _file_writer(target: str, is_whole: Callable[[], bool]) -> AsyncIterator[WriteBytes]:
    """Write a file that grows as `target.partial`. A clean end gives it its name; anything else
    leaves it so, and a full disk leaves whole lines."""
    growing = partial_path(target)
    with reporting(target, OutputError):
        file = AppendFile(growing, is_hashed=False).open(open_locked(growing, more=os.O_APPEND))
    append = wrap(file.append)

    async def write(data: bytes) -> None:
        """Append data to the file. Raise OutputError where there is no room."""
        with CancelScope(shield=True):
            await append(data)
        if file.trouble:
            raise OutputError(f"{target}: {file.trouble}")

    try:
        yield write
        if is_whole():
            with reporting(target, OutputError):
                growing.replace(growing.with_suffix(""))
    finally:
        file.close()
