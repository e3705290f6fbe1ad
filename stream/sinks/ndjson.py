"""Where records go: stdout, or a file that has its name only when it is whole."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiofiles
import msgspec
from anyio import CancelScope, to_thread

from stream.codec import join_lines
from stream.errors import OutputError, os_reason
from stream.pipeline import Batch, Write
from stream.records.control import Control, sentence

WriteBytes = Callable[[bytes], Awaitable[None]]
Item = bytes | Control
encode_control = msgspec.json.Encoder().encode


@dataclass
class Records:
    """NDJSON of the items of some types, to `-` (stdout) or to a file."""

    target: str
    kinds: type | tuple[type, ...] = bytes

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Write[Item]]:
        async with _writer(self.target) as write_bytes:

            async def write(batch: Batch[Item]) -> None:
                lines = [
                    item if isinstance(item, bytes) else encode_control(item)
                    for item in batch
                    if isinstance(item, self.kinds)
                ]
                if lines:
                    await write_bytes(join_lines(lines))

            yield write


@dataclass
class People:
    """The control records of some types as sentences on stderr, the first ones in full."""

    kinds: tuple[type, ...]
    most: int = 20
    seen: int = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Write[Item]]:
        async def write(batch: Batch[Item]) -> None:
            for item in batch:
                if isinstance(item, self.kinds) and not isinstance(item, bytes):
                    self.seen += 1
                    if self.seen <= self.most:
                        print(sentence(item), file=sys.stderr)  # noqa: T201

        yield write
        if self.seen > self.most:
            print(f"… and {self.seen - self.most} more", file=sys.stderr)  # noqa: T201


def partial(target: str) -> Path:
    """Where a file lies until it is whole."""
    return Path(f"{target}.partial")


def _writer(target: str) -> AbstractAsyncContextManager[WriteBytes]:
    return _stdout() if target == "-" else _file(target)


@asynccontextmanager
async def _stdout() -> AsyncIterator[WriteBytes]:
    async def write(data: bytes) -> None:
        with _named("stdout"):
            # Left behind on cancellation: a reader that never reads must not hold us.
            await to_thread.run_sync(_write_all, 1, data, abandon_on_cancel=True)

    yield write


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


@asynccontextmanager
async def _file(target: str) -> AsyncIterator[WriteBytes]:
    """Grows as `target.partial`; a clean end gives it its name, anything else leaves it so."""
    path = Path(target)
    direct = path.exists() and not path.is_file()  # /dev/null, a fifo
    growing = path if direct else partial(target)
    with _named(target):
        file = await aiofiles.open(growing, "wb", buffering=0)

    async def write(data: bytes) -> None:
        view = memoryview(data)
        with _named(target):
            while view:
                view = view[await file.write(view) :]

    try:
        yield write
    finally:
        with CancelScope(shield=True), _named(target):
            await file.close()
    if not direct:
        with _named(target):
            growing.replace(path)


@contextmanager
def _named(target: str) -> Iterator[None]:
    """A failure to write is said with its place; a reader that went away is no failure."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"{target}: {os_reason(error)}") from None
