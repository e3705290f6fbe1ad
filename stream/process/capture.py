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
from stream.process.table import signal_name
from stream.process.tree import KILL_AFTER, PAUSE, Containment, Reaper, Tree, start_tree

SETTLE = 0.25  #: seconds that a finished leader's children have to end by themselves
READ = 1 << 16
REST = 64  #: reads at most of what a tree left in a pipe: more than a pipe can hold


class StreamHead(Struct):
    """The head of what a stream carried, and how much it was in all."""

    limit: int
    head: bytearray = field(default_factory=bytearray)
    total: int = 0

    def add_data(self, data: bytes) -> None:
        """Count data of the stream, and keep of it what there is room for."""
        self.total += len(data)
        room = self.limit - len(self.head)
        if room > 0:
            self.head += data[:room]


class Captured(Struct):
    """The end of a process tree, and the output that was captured."""

    stdout: StreamHead
    stderr: StreamHead
    exit_code: int | None = None
    signal: str | None = None
    timed_out: bool = False
    spawn_error: str | None = None
    stragglers: list[str] = field(default_factory=list)  #: left behind by the leader, and ended


def not_started(reason: str) -> Captured:
    """Return the result for a program that could not be started."""
    return Captured(StreamHead(0), StreamHead(0), spawn_error=reason)


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
        tree = start_tree(argv, env=env, cwd=cwd)
    except SpawnError as error:
        return not_started(str(error))
    return await follow_program(
        tree, timeout=timeout, stdout_limit=stdout_limit, stderr_limit=stderr_limit
    )


async def follow_program(
    tree: Tree, *, timeout: float, stdout_limit: int, stderr_limit: int
) -> Captured:
    """Follow a program that was started to its end, and to that of all that descends from it."""
    captured = Captured(StreamHead(stdout_limit), StreamHead(stderr_limit))
    watch = _TreeWatch(tree, captured.stdout, captured.stderr)
    try:
        with move_on_after(max(0, timeout - tree.age)):
            await watch.wait_until(watch.has_ended)
        if not tree.is_over:
            captured.timed_out = True
            await _stop_tree(watch)
        else:
            captured.stragglers = await _end_rest_of_tree(watch)
        watch.read_remaining_output()
    finally:
        try:
            if not tree.is_clean:
                with CancelScope(shield=True):
                    await _stop_tree(watch)
        finally:
            watch.close()
            Reaper.get().drop_tree(tree)
    code = tree.leader.returncode
    if code is not None and code < 0:
        captured.signal = signal_name(-code)
    else:
        captured.exit_code = code
    return captured


class _TreeWatch:
    """Waits for the end of a leader, and reads what its tree writes until then and after it. One
    descriptor is waited for, whichever of the three is ready: a wait is what costs."""

    def __init__(self, tree: Tree, *tails: StreamHead) -> None:
        self.tree = tree
        self._selector = DefaultSelector()
        self._selector.register(tree.exit_fd, EVENT_READ)
        self._open = dict(zip(tree.pipes, tails, strict=True))  # somebody holds their other end
        for pipe in self._open:
            self._selector.register(pipe, EVENT_READ)

    def has_ended(self) -> bool:
        """Tell whether the leader has ended, and is reaped."""
        return self.tree.leader.returncode is not None

    def is_drained(self) -> bool:
        """Tell whether nobody holds a pipe any more."""
        return not self._open

    async def wait_until(self, is_done: Callable[[], bool]) -> None:
        """Read the output of the program until the condition holds."""
        while not is_done():
            await wait_readable(self._selector)
            for key, _ in self._selector.select(0):
                tail = self._open.get(key.fd)
                if tail is None:
                    if self.tree.is_over:
                        self._selector.unregister(key.fd)
                    else:  # its tracer still holds it: to wait for that could take forever
                        await anyio.sleep(0.001)
                elif (data := _read_output(key.fd)) is not None:
                    tail.add_data(data)
                    if not data:
                        self._selector.unregister(key.fd)
                        del self._open[key.fd]

    def read_remaining_output(self) -> None:
        """Read what is left in a pipe that a process beyond our reach still holds, or that was
        filled while nobody looked."""
        for pipe, tail in self._open.items():
            for _ in range(REST):
                data = _read_output(pipe)
                if not data:
                    break
                tail.add_data(data)

    def close(self) -> None:
        """Stop waiting for the descriptors of the process tree, which stay open."""
        self._selector.close()


async def _end_rest_of_tree(watch: _TreeWatch) -> list[str]:
    """Give the children of a leader that has ended a moment, end the rest, and name it."""
    reaper, pause = Reaper.get(), PAUSE
    with move_on_after(SETTLE):
        await watch.wait_until(watch.is_drained)
        while reaper.has_left_processes(watch.tree):
            await anyio.sleep(pause)
            pause = min(pause * 2, 0.02)
        watch.tree.is_clean = True
        return []
    return await _end_tree(watch.tree)


async def _stop_tree(watch: _TreeWatch) -> None:
    """End a process tree, but let its traps clean up first."""
    if not watch.tree.is_over:
        Reaper.get().signal_tree(watch.tree, signal.SIGTERM)
        with move_on_after(KILL_AFTER):
            await watch.wait_until(watch.has_ended)
    await _end_tree(watch.tree)


async def _end_tree(tree: Tree) -> list[str]:
    """Kill a tree until nothing of it is left, and name it. Bounded; safe to call again."""
    if tree.is_clean:
        return []
    containment = Containment([tree])
    is_done = containment.kill()
    while not is_done:
        await anyio.sleep(PAUSE)
        is_done = containment.kill()
    found = containment.killed
    if not found and not containment.is_empty():  # nobody caught is not nobody left
        found = Reaper.get().living_of_tree(tree)
    return list(found.values())


def _read_output(pipe: int) -> bytes | None:
    """Read, or return None where there is nothing, also if there just was: `cat /dev/stdout` in a
    program takes away what it wrote, and must not hold us."""
    try:
        return os.read(pipe, READ)
    except BlockingIOError:
        return None
