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
from collections.abc import Callable, Mapping, Sequence
from selectors import EVENT_READ, DefaultSelector

import anyio
from anyio import CancelScope, move_on_after, wait_readable
from msgspec import Struct, field

from stream.errors import SpawnError
from stream.process.tree import GIVE_UP, KILL_AFTER, Reaper, Tree, start

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
    watch = _TreeWatch(tree, captured.stdout, captured.stderr)
    try:
        with move_on_after(max(0, timeout - tree.age)):
            await watch.until(watch.has_ended)
        if not tree.is_over:
            captured.timed_out = True
            await _stop(watch)
        else:
            captured.stragglers = await _settle(watch)
        watch.read_rest()
    finally:
        try:
            if not tree.is_clean:
                with CancelScope(shield=True):
                    await _stop(watch)
        finally:
            watch.close()
            Reaper.get().drop(tree)
    code = tree.leader.returncode
    if code is not None and code < 0:
        captured.signal = _signal_name(-code)
    else:
        captured.exit_code = code
    return captured


class _TreeWatch:
    """The end of a leader, and what its tree writes until then and after it. One descriptor is
    waited for, whichever of the three has something to tell: a wait is what costs."""

    def __init__(self, tree: Tree, *tails: Tail) -> None:
        self.tree = tree
        self._selector = DefaultSelector()
        self._selector.register(tree.exit_fd, EVENT_READ)
        self._open = dict(zip(tree.pipes, tails, strict=True))  # somebody holds their other end
        for pipe in self._open:
            self._selector.register(pipe, EVENT_READ)

    def has_ended(self) -> bool:
        """The leader, and it is reaped."""
        return self.tree.leader.returncode is not None

    def is_drained(self) -> bool:
        """Nobody holds a pipe any more."""
        return not self._open

    async def until(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            await wait_readable(self._selector)
            for key, _ in self._selector.select(0):
                tail = self._open.get(key.fd)
                if tail is None:
                    if self.tree.is_over:
                        self._selector.unregister(key.fd)
                    else:  # its tracer has not let go of it: to wait for that could take forever
                        await anyio.sleep(0.001)
                elif (data := _read_some(key.fd)) is not None:
                    tail.add(data)
                    if not data:
                        self._selector.unregister(key.fd)
                        del self._open[key.fd]

    def read_rest(self) -> None:
        """What is left in a pipe that a process beyond our reach still holds, or that was filled
        while nobody looked."""
        for pipe, tail in self._open.items():
            for _ in range(REST):
                data = _read_some(pipe)
                if not data:
                    break
                tail.add(data)

    def close(self) -> None:
        self._selector.close()


async def _settle(watch: _TreeWatch) -> list[str]:
    """After the leader's end: give its children a moment, end the rest, name them."""
    reaper, pause = Reaper.get(), 0.001
    with move_on_after(SETTLE):
        await watch.until(watch.is_drained)
        while reaper.is_left(watch.tree):
            await anyio.sleep(pause)
            pause = min(pause * 2, 0.02)
        watch.tree.is_clean = True
        return []
    return await _end(watch.tree)


async def _stop(watch: _TreeWatch) -> None:
    """End it, but let its traps clean up first."""
    if not watch.tree.is_over:
        Reaper.get().signal(watch.tree, signal.SIGTERM)
        with move_on_after(KILL_AFTER):
            await watch.until(watch.has_ended)
    await _end(watch.tree)


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
        return list(reaper.living(tree).values())
    return list(found.values())


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def _read_some(pipe: int) -> bytes | None:
    """None where there is nothing, also if there just was: `cat /dev/stdout` in a program
    takes away what it wrote, and must not hold us."""
    try:
        return os.read(pipe, READ)
    except BlockingIOError:
        return None
