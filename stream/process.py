"""Start a program, contain its whole process tree, capture what it writes, end it.

What it promises: when `capture` returns or is cancelled, no process of the tree runs any
more and no descriptor is open, however the tree tried to escape: background children,
sessions of their own, ignored signals. On Linux this process becomes the subreaper of
everything it starts, so that an orphan comes back to it instead of to init; elsewhere the
process group is all that there is. What it cannot keep: an orphan that nothing ties to one
of several trees is ended at the end of the run, as a stray; a process of another user, or
one stuck in the kernel, is waited for no longer than GIVE_UP.

A child that it does not know, in a session of its own, is an orphan: every program that
gets one is started through this module.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import anyio
from anyio import (
    CancelScope,
    CapacityLimiter,
    create_task_group,
    move_on_after,
    to_thread,
    wait_readable,
)

from stream.errors import os_reason
from stream.proctable import (
    ON_LINUX,
    Process,
    become_subreaper,
    descendants,
    open_files,
    open_pidfd,
    own_children,
    read_file,
    read_process,
    reap,
    send,
    ticks_now,
)

SETTLE = 0.25  #: seconds that a finished leader's children have to end by themselves
KILL_AFTER = 1.0  #: seconds between SIGTERM and SIGKILL
GIVE_UP = 2.0  #: seconds to wait for a killed process: only one stuck in the kernel needs it
READ = 1 << 16
ROOM = 12  #: descriptors that are free when a program is started; it takes three for good
REST = 64  #: reads at most of what a tree left in a pipe: more than a pipe can hold

_MARK = "STREAM_TREE"  # in the environment of every process of a tree
_serial = count(1)


@dataclass
class Tail:
    """The head of what a stream carried, and how much it was in all."""

    limit: int
    head: bytearray = field(default_factory=bytearray)
    total: int = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self.limit - len(self.head)
        if room > 0:
            self.head += data[:room]


@dataclass
class Captured:
    """How a tree ended, and what it wrote."""

    stdout: Tail
    stderr: Tail
    exit_code: int | None = None
    signal: str | None = None
    timed_out: bool = False
    spawn_error: str | None = None
    stragglers: list[str] = field(default_factory=list)  #: left behind by the leader, and ended


async def capture(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    timeout: float,
    stdout_limit: int,
    stderr_limit: int,
) -> Captured:
    """Run one program in a session of its own, with stdin from /dev/null."""
    captured = Captured(Tail(stdout_limit), Tail(stderr_limit))
    mark = f"{os.getpid()}.{next(_serial)}"
    reaper = Reaper.get()
    alone, start = reaper.is_idle(), ticks_now()
    try:
        _check_room()
        leader = subprocess.Popen(  # noqa: ASYNC220 - it waits for the exec, half a millisecond
            argv,
            env={**env, _MARK: mark},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
    except OSError as error:
        place = f"{cwd}: " if error.filename == cwd else ""
        captured.spawn_error = f"{place}{os_reason(error)}"
        return captured
    tree = _Tree(leader, mark, alone, start)
    reaper.add(tree)
    outlets = list(zip(tree.pipes, (captured.stdout, captured.stderr), strict=True))
    try:
        async with create_task_group() as readers:
            for pipe, tail in outlets:
                readers.start_soon(_drain, tree, pipe, tail)
            with move_on_after(timeout) as limit:
                await tree.wait()
            if limit.cancelled_caught:
                captured.timed_out = True
                await reaper.stop(tree)
            else:
                captured.stragglers = await reaper.settle(tree)
            readers.cancel_scope.cancel()  # only a process beyond our reach still holds a pipe
        for pipe, tail in outlets:
            _drain_now(pipe, tail)
    finally:
        try:
            with CancelScope(shield=True):
                await reaper.stop(tree)
        finally:
            reaper.trees.remove(tree)
            tree.close()
    code = leader.returncode
    if code is not None and code < 0:
        captured.signal = _signal_name(-code)
    else:
        captured.exit_code = code
    return captured


def _check_room() -> None:
    """To look at processes takes descriptors: who starts one leaves enough to find its children."""
    opened: list[int] = []
    try:
        for _ in range(ROOM):
            opened += [os.dup(2)]
    finally:
        for fd in opened:
            os.close(fd)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


async def _drain(tree: _Tree, pipe: int, tail: Tail) -> None:
    while True:
        await wait_readable(pipe)
        data = _read_some(pipe)
        if data:
            tail.add(data)
        elif data is not None:
            tree.close_one()
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


class _Tree:
    """A leader and what descends from it."""

    def __init__(self, leader: subprocess.Popen[bytes], mark: str, alone: bool, start: int) -> None:
        assert leader.stdout is not None
        assert leader.stderr is not None
        self.leader = leader
        self.mark = f"{_MARK}={mark}".encode()
        self.alone = alone  # nobody else's orphan can come to us at any time of its life
        self.pipes = (leader.stdout.fileno(), leader.stderr.fileno())
        for pipe in self.pipes:
            os.set_blocking(pipe, False)
        self.drained = anyio.Event()  # nobody holds a pipe any more
        self._open_pipes = len(self.pipes)
        self.claimed: set[tuple[int, int]] = set()  # (pid, start time) of known members
        self.start = start
        self._pidfd = open_pidfd(leader.pid)
        self.is_clean = False  # it was looked, and nobody is left

    @property
    def is_over(self) -> bool:
        """The leader has ended, and is reaped."""
        return self.leader.poll() is not None

    async def wait(self) -> None:
        """Until it is over."""
        if self._pidfd is None:
            # A limiter of its own: to wait takes no thread away from those who work.
            await to_thread.run_sync(
                self.leader.wait, abandon_on_cancel=True, limiter=CapacityLimiter(1)
            )
            return
        await wait_readable(self._pidfd)
        self.leader.wait()

    def pipe_names(self) -> set[str]:
        return {name for fd in self.pipes for name in open_files("self", fd)}

    def close_one(self) -> None:
        self._open_pipes -= 1
        if not self._open_pipes:
            self.drained.set()

    def close(self) -> None:
        assert self.leader.stdout is not None
        assert self.leader.stderr is not None
        self.leader.stdout.close()
        self.leader.stderr.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


class Reaper:
    """Adopts the orphans of every tree, and says whose they are."""

    _instance: Reaper | None = None

    def __init__(self) -> None:
        self.trees: list[_Tree] = []
        self.contained = ON_LINUX and bool(read_file(os.getpid(), "stat")) and become_subreaper()
        # Inherited from whoever started us. The processes of a tree are never in our session.
        self._before = {p.key for p in map(read_process, own_children()) if p}
        self._session = os.getsid(0)
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
            # Inherited as well: the kernel would forget how our children end.
            with contextlib.suppress(ValueError):  # not in the main thread
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    @classmethod
    def get(cls) -> Reaper:
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    def is_idle(self) -> bool:
        """Nothing runs that could leave an orphan to us."""
        return not self.trees and not self._orphans(lambda orphan: True)

    def add(self, tree: _Tree) -> None:
        for other in self.trees:
            other.alone = False
        self.trees.append(tree)

    async def settle(self, tree: _Tree) -> list[str]:
        """After the leader's end: give its children a moment, end the rest, name them."""
        pause = 0.001
        with move_on_after(SETTLE):
            await tree.drained.wait()
            while self._is_left(tree):
                await anyio.sleep(pause)
                pause = min(pause * 2, 0.02)
            tree.is_clean = True
            return []
        return await self.end(tree)

    def signal(self, tree: _Tree, number: signal.Signals) -> None:
        """To every living member."""
        if not self.contained:
            _send_group(tree, number)
            return
        for process in self._members(tree, self._roots(tree)):
            send(process, number)

    async def stop(self, tree: _Tree) -> None:
        """End it, but let its traps clean up first."""
        if not tree.is_over:
            self.signal(tree, signal.SIGTERM)
            with move_on_after(KILL_AFTER):
                await tree.wait()
        await self.end(tree)

    async def end(self, tree: _Tree) -> list[str]:
        """Kill the tree until nothing of it is left, and name it. Bounded; safe to call again."""
        found: dict[tuple[int, int], str] = {}
        if tree.is_clean:
            return []
        with move_on_after(GIVE_UP) as patience:
            while self._is_left(tree) or not tree.is_over:
                if self.contained:
                    killed = self._kill(self._roots(tree), tree)
                    found |= {process.key: str(process) for process in killed}
                elif _send_group(tree, signal.SIGKILL):
                    found[tree.leader.pid, 0] = f"process group {tree.leader.pid}"
                await anyio.sleep(0.001)
        if patience.cancelled_caught and not found:  # nobody caught is not nobody left
            found = {process.key: str(process) for process in self._roots(tree)}
        return list(found.values())

    def strays(self) -> list[str]:
        """Orphans that no tree could be found for: named, and ended. For the end of a run:
        it does not give way to other tasks, for GIVE_UP at most."""
        found: dict[tuple[int, int], str] = {}
        deadline = time.monotonic() + GIVE_UP
        while strays := self._orphans(self._is_stray):
            found |= {process.key: str(process) for process in self._kill(strays)}
            if time.monotonic() > deadline:
                break
            time.sleep(0.001)
        return list(found.values())

    def _kill(self, roots: Sequence[Process], tree: _Tree | None = None) -> list[Process]:
        """The roots, stopped so that they do not fork away meanwhile, and all below them."""
        for process in roots:
            send(process, signal.SIGSTOP)
        members = self._members(tree, roots)
        for process in members:
            send(process, signal.SIGKILL)
        return members

    def _is_left(self, tree: _Tree) -> bool:
        """Whether the leader, once it is over, left anyone behind. Costs one small read."""
        if self.contained:
            return bool(self._roots(tree))
        return tree.is_over and _send_group(tree, 0)

    def _orphans(self, is_wanted: Callable[[Process], bool]) -> list[Process]:
        """Our living children that are no leader, and were not there before us."""
        leaders = {tree.leader.pid for tree in self.trees if tree.leader.returncode is None}
        while True:
            wanted: list[Process] = []
            reaped = False
            for process in map(read_process, set(own_children()) - leaders):
                if process is None or process.session == self._session:
                    continue
                if process.key in self._before:
                    continue
                if process.ended:
                    reaped |= reap(process.pid)
                elif is_wanted(process):
                    wanted.append(process)
            # Who ended while we looked may have left us a child that we did not see.
            if wanted or not reaped:
                return wanted

    def _roots(self, tree: _Tree) -> list[Process]:
        """Where a tree hangs on us: its orphans, and its leader."""
        roots = self._orphans(lambda orphan: self._belongs(orphan, tree))
        if not tree.is_over:
            leader = read_process(tree.leader.pid)
            roots += [leader] if leader else []
        return roots

    def _members(self, tree: _Tree | None, roots: Sequence[Process]) -> list[Process]:
        members = list(descendants(roots)) if roots else []
        if tree is not None:
            tree.claimed.update(process.key for process in members)
        return members

    def _is_stray(self, orphan: Process) -> bool:
        return not any(self._belongs(orphan, tree) for tree in self.trees)

    def _belongs(self, orphan: Process, tree: _Tree) -> bool:
        if orphan.key in tree.claimed or orphan.session == tree.leader.pid:
            return True
        if tree.alone and orphan.start >= tree.start:  # whose else could it be
            return True
        if tree.mark in read_file(orphan.pid, "environ").split(b"\0"):
            return True
        if tree.pipe_names() & set(open_files(orphan.pid)):
            return True
        # One that is about to end has nothing to show any more, but perhaps a child for us.
        now = read_process(orphan.pid)
        return now is None or now.leaving


def _send_group(tree: _Tree, number: int) -> bool:
    """Whether there is anyone in the leader's group."""
    try:
        os.killpg(tree.leader.pid, number)
    except (ProcessLookupError, PermissionError):  # macOS: permission, where all are zombies
        return False
    return True
