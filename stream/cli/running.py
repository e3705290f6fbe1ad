"""Runs what a command composed, and maps how it ended to an exit code. The one place
where exceptions are caught."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable

import typer

READER_GONE = 141
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def say(text: str) -> None:
    """To people: stderr."""
    typer.echo(text, err=True)


def run(work: Callable[[], Awaitable[int]]) -> None:
    """Run to the end or to a signal, and leave with the exit code."""
    import anyio

    from stream.errors import StreamError

    try:
        code = anyio.run(_until_signal, work)
    except* StreamError as group:
        error = _first(group)
        say(f"stream: {error}")
        code = error.exit_code if isinstance(error, StreamError) else 1
    except* BrokenPipeError:
        _silence_stdout()
        code = READER_GONE
    raise typer.Exit(code)


def run_now(work: Callable[[], int]) -> None:
    """The same for a command that waits for nothing."""
    from stream.errors import StreamError

    try:
        code = work()
        sys.stdout.flush()
    except StreamError as error:
        say(f"stream: {error}")
        code = error.exit_code
    except BrokenPipeError:
        _silence_stdout()
        code = READER_GONE
    raise typer.Exit(code)


async def _until_signal(work: Callable[[], Awaitable[int]]) -> int:
    from anyio import create_task_group, open_signal_receiver

    caught = 0

    async def watch() -> None:
        nonlocal caught
        with open_signal_receiver(*INTERRUPTS) as signals:
            async for number in signals:
                caught = number
                tasks.cancel_scope.cancel()
                return

    code = 0
    async with create_task_group() as tasks:
        tasks.start_soon(watch)
        code = await work()
        tasks.cancel_scope.cancel()
    if caught:
        say("stream: interrupted")
        return 128 + caught
    return code


def _first(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


def _silence_stdout() -> None:
    """So that the interpreter does not complain about it again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
