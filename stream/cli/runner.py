"""Runs what a command composed, and maps how it ended to an exit code. The one place
where exceptions are caught.

One live line on a terminal's stderr; nothing anywhere else."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import signal
import stat
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, NoReturn, TypeVar

import typer

from stream.errors import number as number
from stream.errors import shortage

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from stream.boundary.cells import Cell
    from stream.pipeline import Counts

T = TypeVar("T")
READER_GONE = 141
PATIENCE = 4.0  #: seconds for an end in order: longer than to end what ignores SIGTERM takes
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def note(text: str) -> None:
    """To people: stderr, without anything that a terminal would obey. That nobody can be told
    changes no record and no answer."""
    from stream.errors import visible

    with suppress(OSError):
        typer.echo("\n".join(map(visible, text.split("\n"))), err=True)


def tell_unchecked(command: str, unknown: int, counts: Counts, *, as_filter: bool) -> bool:
    """What went through unchecked. True: that is all that came, and no yes. An empty file is what
    somebody named; nothing in a pipe may be what is left of a command that failed."""
    if as_filter and counts.received == counts.filtered:
        note(f"{command}: no records came")
        return True
    if unknown:
        lines = number(unknown, "line")
        note(f"{command}: not checked: {lines} of contracts that stream does not know")
    return 0 < unknown == counts.passed


def echo(text: str | bytes) -> None:
    """The answer of a command that writes no stream of records: stdout."""
    from stream.errors import OutputError, os_reason

    try:
        typer.echo(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"stdout: {os_reason(error)}") from None


def start(app: Callable[[], None]) -> None:
    """The command line, whatever state the process was started in."""
    _open_standard_streams()
    try:
        try:
            app()
        except SystemExit as ending:
            sys.stdout.flush()
            # Everything is released by now: taking the interpreter apart would cost more
            # than a probe does.
            _leave(ending.code if isinstance(ending.code, int) else 0)
    except BrokenPipeError:
        _leave(READER_GONE)
    except Exception as error:
        code = error.errno if isinstance(error, OSError) else 0
        if code in (errno.ENOSPC, errno.EBADF, errno.EIO):  # help that has no place to go
            sentence = f"stdout: {os.strerror(code).lower()}"
        elif (short := shortage(error)) is not None:
            sentence = short
        else:
            raise
        note(f"stream: {sentence}")
        _leave(2)


def run(work: Callable[[], Awaitable[int]]) -> None:
    """Run to the end or to a signal, and leave with the exit code."""
    run_prepared(nullcontext, lambda _: work())


def run_filter(sources: Sequence[str], work: Callable[[], Awaitable[int]]) -> None:
    """The same for a command that reads records. Ctrl-C goes to all of a pipe: what the writer
    still says before it ends is taken, and told of, as PATIENCE allows."""
    is_piped = "-" in sources and stat.S_ISFIFO(os.fstat(0).st_mode)
    run_prepared(nullcontext, lambda _: work(), (lambda: None) if is_piped else None)


def run_prepared(
    prepare: Callable[[], AbstractContextManager[T]],
    work: Callable[[T], Awaitable[int]],
    stop: Callable[[], None] | None = None,
    pass_on: Callable[[int], None] | None = None,
) -> None:
    """The same, of what `prepare` has made ready.

    What it starts runs while the rest is imported, and it ends what is left of that. The first
    signal asks `stop` for an end in order, which has PATIENCE for it; where there is no `stop`,
    and for whoever signals again, `work` is cancelled. With `pass_on`, signals are somebody
    else's: each is passed on, and `work` goes on to its own end and exit code.
    """
    from stream.errors import StreamError

    early: list[int] = []
    heeded = _heeded()

    def hear(number: int, frame: object) -> None:
        if pass_on:
            pass_on(number)
            return
        early.append(number)
        if stop:
            stop()

    try:
        for number in heeded:
            signal.signal(number, hear)
        with prepare() as prepared:
            import anyio

            # What the imports made stays; what a stream makes is rarely cyclic.
            gc.freeze()
            gc.enable()
            gc.set_threshold(50_000)
            code = anyio.run(_until_signal, lambda: work(prepared), stop, early, pass_on)
            for number in heeded:
                signal.signal(number, signal.SIG_IGN)
        for number in heeded:  # nothing is left that a signal could spoil
            signal.signal(number, signal.SIG_DFL)
    except* StreamError as group:
        error = _first(group)
        note(f"stream: {error}")
        _leave(error.exit_code if isinstance(error, StreamError) else 1)
    except* BrokenPipeError:
        _leave(READER_GONE)
    if code > 128 and pass_on is None:
        note("stream: interrupted")
    raise typer.Exit(code)


def run_now(work: Callable[[], int]) -> None:
    """The same for a command that waits for nothing: a signal ends it wherever it is."""
    from stream.errors import StreamError

    def hear(number: int, frame: object) -> None:
        raise _Interrupted(number)

    heeded = _heeded()
    before = {number: signal.signal(number, hear) for number in heeded}
    try:
        code = work()
        for number in heeded:
            signal.signal(number, before[number])
    except _Interrupted as error:
        for number in heeded:
            signal.signal(number, signal.SIG_IGN)
        note("stream: interrupted")
        _leave(128 + error.number)
    except StreamError as error:
        note(f"stream: {error}")
        _leave(error.exit_code)
    except BrokenPipeError:
        _leave(READER_GONE)
    raise typer.Exit(code)


class _Interrupted(KeyboardInterrupt):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _heeded() -> list[signal.Signals]:
    """nohup, and a shell that starts a job in the background, have signals ignored: so do we."""
    return [number for number in INTERRUPTS if signal.getsignal(number) != signal.SIG_IGN]


async def _until_signal(
    work: Callable[[], Awaitable[int]],
    stop: Callable[[], None] | None,
    early: Sequence[int],
    pass_on: Callable[[int], None] | None,
) -> int:
    from asyncio import get_running_loop

    from anyio import create_task_group, open_signal_receiver, sleep

    caught = 0
    # Held until all is cleaned up: a second signal must not cut that short.
    with open_signal_receiver(*_heeded()) as signals:
        async with create_task_group() as tasks:

            async def give_up() -> None:
                await sleep(PATIENCE)
                tasks.cancel_scope.cancel()

            def interrupt(number: int) -> None:
                nonlocal caught
                if pass_on is not None:
                    pass_on(number)
                    return
                if stop is None or caught:
                    tasks.cancel_scope.cancel()
                else:
                    stop()
                    tasks.start_soon(give_up)
                caught = number

            async def watch() -> None:
                async for number in signals:
                    interrupt(number)

            tasks.start_soon(watch)
            if not _can_send():
                _beat(get_running_loop())
            if early:
                caught = early[0]
            else:
                code = await work()
            tasks.cancel_scope.cancel()
    return 128 + caught if caught else code


def _can_send() -> bool:
    """Whether send(2) is allowed, by which asyncio tells its loop that a thread is done. Some
    sandboxes refuse it, and asyncio would wait forever without a word."""
    import socket

    one, other = socket.socketpair()
    with one, other:
        try:
            one.send(b"x")
        except OSError:
            return False
    return True


def _beat(loop: AbstractEventLoop) -> None:
    """Looks often enough for what threads have finished, until the loop is closed."""
    loop.call_later(0.005, _beat, loop)


def _first(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


def _leave(code: int) -> NoReturn:
    """At once: a thread may hang in a write that no reader takes, and stdout may be gone."""
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(code)


def _open_standard_streams() -> None:
    """What the parent closed is opened again, so that no file of ours gets its number: stdin
    and stdout the wrong way round, so that using them is an error, and stderr for nobody."""
    for fd, flags in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, flags)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
    if hasattr(sys.stdout, "reconfigure"):  # a name that is not UTF-8 is shown, never fatal
        sys.stdout.reconfigure(errors="backslashreplace")


class Progress:
    def __init__(self, total: int, *, is_shown: bool) -> None:
        """Records on the same terminal show progress enough."""
        self._total = total
        self._shown = is_shown and sys.stderr.isatty()
        self._next = 0.0
        self._running = ""

    def __call__(self, done: int, started: Cell | None) -> None:
        if not self._shown:
            return
        if started:
            self._running = started.script.id
        now = time.monotonic()
        if now >= self._next:
            self._next = now + 0.05
            width = shutil.get_terminal_size().columns - 1
            text = f"{done}/{self._total} cells, running {self._running}"
            print(f"\r\x1b[K{text[:width]}", end="", file=sys.stderr, flush=True)  # noqa: T201

    def clear(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)  # noqa: T201


class Copying:
    """While a workspace is copied, and only where that takes long enough to be seen."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._next = time.monotonic() + 0.5
        self._has_written = False

    def __call__(self, size: int) -> None:
        now = time.monotonic()
        if self._shown and now >= self._next:
            self._next = now + 0.1
            self._has_written = True
            print(f"\r\x1b[K{size >> 20} MB copied", end="", file=sys.stderr, flush=True)  # noqa: T201

    def clear(self) -> None:
        if self._has_written:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)  # noqa: T201
