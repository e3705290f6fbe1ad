"""Watch a program: capture what it writes, contain its whole process tree, end it.

What it promises: when `capture` returns or is cancelled, no process of the tree runs any
more and no descriptor is open, however the tree tried to escape: background children,
sessions of their own, ignored signals. What it cannot keep: an orphan that nothing ties to
one of several trees is ended at the end of the run, as a stray; a process of another user,
or one stuck in the kernel, is waited for no longer than GIVE_UP.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence

import anyio
from anyio import (
    CancelScope,
    CapacityLimiter,
    Event,
    create_task_group,
    move_on_after,
    to_thread,
    wait_readable,
)
from msgspec import Struct, field

from stream.errors import SpawnError
from stream.tree import GIVE_UP, KILL_AFTER, Reaper, Tree, start

SETTLE = 0.25  #: seconds that a finished leader's children have to end by themselves
READ = 1 << 16
REST = 64  #: reads at most of what a tree left in a pipe: more than a pipe can hold


class Tail(Struct):
    """The head of what a stream carried, and how much it was in all."""

    limit: int
    head: bytearray = field(default_factory=bytearray)
    total: int = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self.limit - len(self.head)
        if room > 0:
            self.head += data[:room]


class Captured(Struct):
    """How a tree ended, and what it wrote."""

    stdout: Tail
    stderr: Tail
    exit_code: int | None = None
    signal: str | None = None
    timed_out: bool = False
    spawn_error: str | None = None
    stragglers: list[str] = field(default_factory=list)  #: left behind by the leader, and ended


def not_started(reason: str) -> Captured:
    return Captured(Tail(0), Tail(0), spawn_error=reason)


async def capture(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    timeout: float,
    stdout_limit: int,
    stderr_limit: int,
) -> Captured:
    """Run one program to its end."""
    try:
        tree = start(argv, env=env, cwd=cwd)
    except SpawnError as error:
        return not_started(str(error))
    return await follow(tree, timeout=timeout, stdout_limit=stdout_limit, stderr_limit=stderr_limit)


async def follow(tree: Tree, *, timeout: float, stdout_limit: int, stderr_limit: int) -> Captured:
    """One that was started, to its end and that of all that descends from it."""
    captured = Captured(Tail(stdout_limit), Tail(stderr_limit))
    outlets = list(zip(tree.pipes, (captured.stdout, captured.stderr), strict=True))
    drained, undrained = Event(), len(outlets)  # nobody holds a pipe any more

    async def drain(pipe: int, tail: Tail) -> None:
        nonlocal undrained
        await _read_all(pipe, tail)
        undrained -= 1
        if not undrained:
            drained.set()

    try:
        async with create_task_group() as readers:
            for pipe, tail in outlets:
                readers.start_soon(drain, pipe, tail)
            with move_on_after(max(0, timeout - tree.age)):
                await _ended(tree)
            if not tree.is_over:
                captured.timed_out = True
                await _stop(tree)
            else:
                captured.stragglers = await _settle(tree, drained)
            readers.cancel_scope.cancel()  # only a process beyond our reach still holds a pipe
        for pipe, tail in outlets:
            _drain_now(pipe, tail)
    finally:
        await finish(tree)
    code = tree.leader.returncode
    if code is not None and code < 0:
        captured.signal = _signal_name(-code)
    else:
        captured.exit_code = code
    return captured


async def finish(tree: Tree) -> None:
    """Whatever is left of it ends now, and its descriptors are closed."""
    try:
        if not tree.is_clean:
            with CancelScope(shield=True):
                await _stop(tree)
    finally:
        Reaper.get().drop(tree)


async def _ended(tree: Tree) -> None:
    """Until the leader has ended, and is reaped."""
    if tree.pidfd is None:
        # A limiter of its own: to wait takes no thread away from those who work.
        await to_thread.run_sync(
            tree.leader.wait, abandon_on_cancel=True, limiter=CapacityLimiter(1)
        )
        return
    await wait_readable(tree.pidfd)
    tree.leader.wait()


async def _settle(tree: Tree, drained: Event) -> list[str]:
    """After the leader's end: give its children a moment, end the rest, name them."""
    reaper, pause = Reaper.get(), 0.001
    with move_on_after(SETTLE):
        await drained.wait()
        while reaper.is_left(tree):
            await anyio.sleep(pause)
            pause = min(pause * 2, 0.02)
        tree.is_clean = True
        return []
    return await _end(tree)


async def _stop(tree: Tree) -> None:
    """End it, but let its traps clean up first."""
    if not tree.is_over:
        Reaper.get().signal(tree, signal.SIGTERM)
        with move_on_after(KILL_AFTER):
            await _ended(tree)
    await _end(tree)


async def _end(tree: Tree) -> list[str]:
    """Kill the tree until nothing of it is left, and name it. Bounded; safe to call again."""
    if tree.is_clean:
        return []
    reaper = Reaper.get()
    found: dict[tuple[int, int], str] = {}
    with move_on_after(GIVE_UP) as patience:
        while reaper.is_left(tree) or not tree.is_over:
            found |= reaper.kill(tree)
            await anyio.sleep(0.001)
    if patience.cancelled_caught and not found:  # nobody caught is not nobody left
        return reaper.living(tree)
    return list(found.values())


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


async def _read_all(pipe: int, tail: Tail) -> None:
    while True:
        await wait_readable(pipe)
        data = _read_some(pipe)
        if data:
            tail.add(data)
        elif data is not None:
            return


def _drain_now(pipe: int, tail: Tail) -> None:
    """What is left in a pipe when its readers were stopped: last words, or ours to catch up."""
    for _ in range(REST):
        data = _read_some(pipe)
        if not data:
            return
        tail.add(data)


def _read_some(pipe: int) -> bytes | None:
    """None where there is nothing, also if there just was: `cat /dev/stdout` in a program
    takes away what it wrote, and must not hold us."""
    try:
        return os.read(pipe, READ)
    except BlockingIOError:
        return None
