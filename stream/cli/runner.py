"""Run what a command composed and map its end to an exit code: the one place where exceptions are
caught. Progress is one live line on a terminal, and nothing elsewhere."""

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
from stream.errors import resource_shortage

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from stream.boundary.scripts import Cell
    from stream.pipeline import Counts
    from stream.sinks.ndjson import Ndjson, Text

T = TypeVar("T")
READER_GONE = 141
PATIENCE = 4.0  #: seconds for an orderly end: longer than ending a process that ignores SIGTERM
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def print_note(text: str) -> None:
    """Write a line for people to stderr. Control characters are escaped, newlines too: a name must
    not make lines of its own. A failure to write is ignored: it changes neither records nor the
    exit code."""
    from stream.errors import printable

    with suppress(OSError):
        typer.echo(printable(text), err=True)


def report_unchecked(command: str, unknown: int, counts: Counts, *, as_filter: bool) -> bool:
    """Report lines that were not checked, and return whether nothing was. An empty file that the
    user named is fine; an empty pipe may be all that is left of a command that failed."""
    if as_filter and counts.received == counts.filtered:
        print_note(f"{command}: no records arrived")
        return True
    if unknown:
        print_note(f"{command}: not checked: {number(unknown, 'line')} of unknown contracts")
    return 0 < unknown == counts.passed


def problem_sink(reject: str | None, is_whole: Callable[[], bool] = lambda: True) -> Ndjson | Text:
    """Return where a stream tells of its problems: in the file of --reject, or on stderr."""
    from stream.records.control import FINDINGS, GAPS, REJECTS
    from stream.sinks.ndjson import Ndjson, Text

    control = (FINDINGS, GAPS, REJECTS)
    return Ndjson(reject, control, is_whole) if reject else Text(control)


def print_answer(text: str | bytes) -> None:
    """Print the answer of a command that writes no stream of records to stdout."""
    from stream.errors import OutputError, reporting

    with reporting("stdout", OutputError):
        typer.echo(text)


def start_app(app: Callable[[], None]) -> None:
    """Run the command line, whatever state the process was started in."""
    _open_standard_streams()
    try:
        try:
            app()
        except SystemExit as ending:
            sys.stdout.flush()
            # Everything is released by now: taking the interpreter apart would cost more
            # than a probe does.
            _exit_at_once(ending.code if isinstance(ending.code, int) else 0)
    except BrokenPipeError:
        _exit_at_once(READER_GONE)
    except Exception as error:
        code = error.errno if isinstance(error, OSError) else 0
        if code in (errno.ENOSPC, errno.EBADF, errno.EIO):  # help that has no place to go
            sentence = f"stdout: {os.strerror(code).lower()}"
        elif (short := resource_shortage(error)) is not None:
            sentence = short
        else:
            raise
        print_note(f"stream: {sentence}")
        _exit_at_once(2)


def run_to_exit(work: Callable[[], Awaitable[int]]) -> None:
    """Run a command to its end or to a signal, and leave with the exit code."""
    run_prepared(nullcontext, lambda _: work())


def run_filter(sources: Sequence[str], work: Callable[[], Awaitable[int]]) -> None:
    """Run a command that reads records. Ctrl-C reaches every process of a pipe: what the writer
    still sends before it ends is read and counted, for at most PATIENCE."""
    is_piped = "-" in sources and stat.S_ISFIFO(os.fstat(0).st_mode)
    run_prepared(nullcontext, lambda _: work(), (lambda: None) if is_piped else None)


def run_prepared(
    prepare: Callable[[], AbstractContextManager[T]],
    work: Callable[[T], Awaitable[int]],
    stop: Callable[[], None] | None = None,
    pass_on: Callable[[int], None] | None = None,
) -> None:
    """Run `work` on what `prepare` has made ready, and leave with the exit code.

    What `prepare` starts runs while the rest is imported; on exit, `prepare` ends what is left of
    it. The first signal calls `stop` and allows PATIENCE for an orderly end; without `stop`, or on
    a second signal, `work` is cancelled. With `pass_on`, each signal is passed on instead, and
    `work` goes on to its own end and exit code.
    """
    from stream.errors import StreamError

    early: list[int] = []
    handled = _handled_signals()

    def handle(number: int, frame: object) -> None:
        """Take a signal that comes before there is an event loop."""
        if pass_on:
            pass_on(number)
            return
        early.append(number)
        if stop:
            stop()

    try:
        for number in handled:
            signal.signal(number, handle)
        with prepare() as prepared:
            import anyio

            # What the imports made stays; what a stream makes is rarely cyclic.
            gc.freeze()
            gc.enable()
            gc.set_threshold(50_000)
            code = anyio.run(_work_until_signal, lambda: work(prepared), stop, early, pass_on)
            for number in handled:
                signal.signal(number, signal.SIG_IGN)
        for number in handled:  # nothing is left that a signal could spoil
            signal.signal(number, signal.SIG_DFL)
    except* StreamError as group:
        error = _first_error(group)
        print_note(f"stream: {error}")
        _exit_at_once(error.exit_code if isinstance(error, StreamError) else 1)
    except* BrokenPipeError:
        _exit_at_once(READER_GONE)
    if code > 128 and pass_on is None:
        print_note("stream: interrupted")
    raise typer.Exit(code)


def run_now(work: Callable[[], int]) -> None:
    """Run a command that never waits: a signal ends it wherever it is."""
    from stream.errors import StreamError

    def handle(number: int, frame: object) -> None:
        """End the work at once."""
        raise _Interrupted(number)

    handled = _handled_signals()
    before = {number: signal.signal(number, handle) for number in handled}
    try:
        code = work()
        for number in handled:
            signal.signal(number, before[number])
    except _Interrupted as error:
        for number in handled:
            signal.signal(number, signal.SIG_IGN)
        print_note("stream: interrupted")
        _exit_at_once(128 + error.number)
    except StreamError as error:
        print_note(f"stream: {error}")
        _exit_at_once(error.exit_code)
    except BrokenPipeError:
        _exit_at_once(READER_GONE)
    raise typer.Exit(code)


class _Interrupted(KeyboardInterrupt):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _handled_signals() -> list[signal.Signals]:
    """Return the signals to handle: not those that nohup, or a shell that starts a job in the
    background, has set to be ignored."""
    return [number for number in INTERRUPTS if signal.getsignal(number) != signal.SIG_IGN]


async def _work_until_signal(
    work: Callable[[], Awaitable[int]],
    stop: Callable[[], None] | None,
    early: Sequence[int],
    pass_on: Callable[[int], None] | None,
) -> int:
    """Run a command's work until it ends, or until signals stop or cancel it."""
    from asyncio import get_running_loop

    from anyio import create_task_group, open_signal_receiver, sleep

    caught = 0
    # Held until all is cleaned up: a second signal must not cut that short.
    with open_signal_receiver(*_handled_signals()) as signals:
        async with create_task_group() as tasks:

            async def give_up() -> None:
                """Cancel the work when PATIENCE is over."""
                await sleep(PATIENCE)
                tasks.cancel_scope.cancel()

            def interrupt(number: int) -> None:
                """Pass a signal on, ask the work to stop, or cancel it."""
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
                """Take every signal that comes."""
                async for number in signals:
                    interrupt(number)

            tasks.start_soon(watch)
            if not _may_use_send():
                _poll_threads(get_running_loop())
            if early:
                caught = early[0]
            else:
                code = await work()
            tasks.cancel_scope.cancel()
    return 128 + caught if caught else code


def _may_use_send() -> bool:
    """Return whether send(2) is allowed. asyncio uses it to wake its loop when a thread is done;
    where a sandbox refuses it, asyncio would wait forever."""
    import socket

    one, other = socket.socketpair()
    with one, other:
        try:
            one.send(b"x")
        except OSError:
            return False
    return True


def _poll_threads(loop: AbstractEventLoop) -> None:
    """Wake the loop every 5 ms, so that it sees what threads have finished."""
    loop.call_later(0.005, _poll_threads, loop)


def _first_error(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


def _exit_at_once(code: int) -> NoReturn:
    """Exit at once: a thread may hang in a write that nobody reads, and stdout may be gone."""
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(code)


def _open_standard_streams() -> None:
    """Reopen what the parent closed, so that no other file gets its number: stdin for writing and
    stdout for reading, so that using them is an error, and stderr on /dev/null."""
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


class _LiveLine:
    """One line on a terminal, written over again and again; elsewhere, nothing."""

    def __init__(self, *, is_shown: bool, every: float, after: float = 0.0) -> None:
        self._is_shown = is_shown and sys.stderr.isatty()
        self._every = every
        self._next = time.monotonic() + after
        self._has_written = False

    def show_text(self, text: Callable[[], str]) -> None:
        """Write the live line on the terminal, unless that was just done."""
        now = time.monotonic()
        if self._is_shown and now >= self._next:
            self._next = now + self._every
            self._has_written = True
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{text()[:width]}", end="", file=sys.stderr, flush=True)  # noqa: T201

    def clear_line(self) -> None:
        """Remove the live line from the terminal."""
        if self._has_written:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)  # noqa: T201


class MatrixProgress(_LiveLine):
    """The live line of a matrix: cells done, and the probe that runs."""

    def __init__(self, total: int, *, is_shown: bool) -> None:
        super().__init__(is_shown=is_shown, every=0.05)
        self._total = total
        self._running = ""

    def __call__(self, done: int, started: Cell | None) -> None:
        if started:
            self._running = started.script.id
        self.show_text(lambda: f"{done}/{self._total} cells, running {self._running}")


class CopyProgress(_LiveLine):
    """The live line while a workspace is copied, shown after half a second."""

    def __init__(self) -> None:
        super().__init__(is_shown=True, every=0.1, after=0.5)

    def __call__(self, size: int) -> None:
        self.show_text(lambda: f"{size >> 20} MB copied")
