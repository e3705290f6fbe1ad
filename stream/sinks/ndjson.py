"""Where records go: stdout, or a file that has its name only when it is whole."""

from __future__ import annotations

import fcntl
import os
import select
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import aiofiles
import msgspec
from anyio import CancelScope, to_thread

from stream.codec import Lines, join_lines
from stream.errors import OutputError, UsageError, os_reason
from stream.pipeline import Batch, Write
from stream.records.control import Control, sentence

WriteBytes = Callable[[bytes], Awaitable[None]]
Item = bytes | Control
STDOUT = "-"
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
                    for item in _picked(batch, self.kinds)
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
            for item in _picked(batch, self.kinds):
                self.seen += 1
                if self.seen <= self.most and not isinstance(item, bytes):
                    print(sentence(item), file=sys.stderr)  # noqa: T201

        yield write
        if self.seen > self.most:
            print(f"… and {self.seen - self.most} more", file=sys.stderr)  # noqa: T201


def check_apart(outputs: Sequence[str | None], inputs: Sequence[str] = ()) -> None:
    """No output may take the place of an input, or of another output."""
    taken = {os.path.realpath(name): name for name in inputs if name != STDOUT}
    for name in outputs:
        if name is None or name == STDOUT or not _is_regular(name):
            continue
        place = os.path.realpath(name)
        if place in taken:
            raise UsageError(f"{name}: the same file as {taken[place]}, which it would replace")
        taken[place] = name


def _is_regular(target: str) -> bool:
    """Or nothing yet."""
    with _named(target):
        try:
            return stat.S_ISREG(Path(target).stat().st_mode)
        except FileNotFoundError:
            return True


def _picked(batch: Batch[Item], kinds: type | tuple[type, ...]) -> Sequence[Item]:
    """The items of some types. Lines are bytes throughout."""
    if isinstance(batch, Lines):
        return batch.items if issubclass(bytes, kinds) else ()
    return [item for item in batch if isinstance(item, kinds)]


def partial(target: str) -> Path:
    """Where a file lies until it is whole: beside it, also where `target` is a link to it."""
    return Path(f"{os.path.realpath(target) if Path(target).is_symlink() else target}.partial")


def _writer(target: str) -> AbstractAsyncContextManager[WriteBytes]:
    if target == STDOUT:
        return _device(STDOUT)
    return _file(target) if _is_regular(target) else _device(target)


@asynccontextmanager
async def _device(target: str) -> AsyncIterator[WriteBytes]:
    """stdout, a fifo, /dev/null: written as it comes.

    A reader that never reads, or never opens, must not hold us: on cancellation the thread
    that waits for it is left behind.
    """

    async def write(data: bytes) -> None:
        with _named(target):
            await to_thread.run_sync(_write_all, fd, data, abandon_on_cancel=True)

    fd = 1
    if target != STDOUT:
        with _named(target):
            fd = await to_thread.run_sync(_open, target, abandon_on_cancel=True)
    try:
        yield write
    finally:
        if fd != 1:
            os.close(fd)


def _open(name: str) -> int:
    return os.open(name, os.O_WRONLY | os.O_CLOEXEC)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # whoever shares the pipe with us has made it so
            select.select((), (fd,), ())


@asynccontextmanager
async def _file(target: str) -> AsyncIterator[WriteBytes]:
    """Grows as `target.partial`; a clean end gives it its name, anything else leaves it so."""
    growing = partial(target)
    with _named(target):
        fd = _open_alone(growing)
        file = await aiofiles.open(fd, "wb", buffering=0)
    size = 0

    async def write(data: bytes) -> None:
        nonlocal size
        done = 0
        with CancelScope(shield=True), _named(target):
            try:
                while done < len(data):
                    done += await file.write(memoryview(data)[done:])
            except OSError:  # a full disk: what stays are whole lines
                with suppress(OSError):
                    await file.truncate(size + data.rfind(b"\n", 0, done) + 1)
                raise
        size += done

    try:
        yield write
        with _named(target):
            growing.replace(growing.with_suffix(""))
    finally:
        with CancelScope(shield=True), _named(target):
            await file.close()


def _open_alone(path: Path) -> int:
    """Emptied, and locked until it is closed: two runs into one file would both look whole."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(fd), path.stat()):  # its writer has just finished
            raise BlockingIOError
        os.ftruncate(fd, 0)
    except BlockingIOError:
        os.close(fd)
        raise OutputError(f"{path}: another run is writing it") from None
    except OSError:
        os.close(fd)
        raise
    return fd


@contextmanager
def _named(target: str) -> Iterator[None]:
    """A failure to write is said with its place; a reader that went away is no failure."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        place = "stdout" if target == STDOUT else target or "(a file without a name)"
        raise OutputError(f"{place}: {os_reason(error)}") from None
