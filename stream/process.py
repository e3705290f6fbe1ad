"""Start a program, contain its whole process tree, capture what it writes, end it.

What it promises: when `capture` returns or is cancelled, no process of the tree runs any
more and no descriptor is open, however the tree tried to escape: background children,
sessions of their own, ignored signals. On Linux this process becomes the subreaper of
everything it starts, so that an orphan comes back to it instead of to init; elsewhere the
process group is all that there is.

Every program is started through this module: a child that it does not know is an orphan.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import anyio
from anyio import CancelScope, create_task_group, move_on_after, to_thread, wait_readable

from stream.errors import os_reason

SETTLE = 0.25  #: seconds that a finished leader's children have to end by themselves
KILL_AFTER = 1.0  #: seconds between SIGTERM and SIGKILL
GIVE_UP = 2.0  #: seconds to wait for a killed process: only one stuck in the kernel needs it
READ = 1 << 16

_MARK = "STREAM_TREE"  # in the environment of every process of a tree
_ON_LINUX = sys.platform == "linux"
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
    try:
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
        captured.spawn_error = os_reason(error)
        return captured
    tree = _Tree(leader, mark)
    reaper.add(tree)
    try:
        async with create_task_group() as readers:
            for pipe, tail in zip(tree.pipes, (captured.stdout, captured.stderr), strict=True):
                readers.start_soon(_drain, tree, pipe, tail)
            with move_on_after(timeout) as limit:
                await tree.wait()
            if limit.cancelled_caught:
                captured.timed_out = True
                reaper.signal(tree, signal.SIGTERM)
                with move_on_after(KILL_AFTER):
                    await tree.wait()
                await reaper.end(tree)
            else:
                captured.stragglers = await reaper.settle(tree)
            readers.cancel_scope.cancel()  # only a process beyond our reach still holds a pipe
    finally:
        with CancelScope(shield=True):
            await reaper.end(tree)
        del reaper.trees[leader.pid]
        tree.close()
    code = leader.returncode
    if code is not None and code < 0:
        captured.signal = _signal_name(-code)
    else:
        captured.exit_code = code
    return captured


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


async def _drain(tree: _Tree, pipe: int, tail: Tail) -> None:
    while True:
        await wait_readable(pipe)
        data = os.read(pipe, READ)
        if not data:
            tree.open_pipes -= 1
            return
        tail.add(data)


class _Tree:
    """A leader and what descends from it."""

    def __init__(self, leader: subprocess.Popen[bytes], mark: str) -> None:
        assert leader.stdout is not None
        assert leader.stderr is not None
        self.leader = leader
        self.mark = f"{_MARK}={mark}".encode()
        self.pipes = (leader.stdout.fileno(), leader.stderr.fileno())
        self.open_pipes = len(self.pipes)
        self.pipe_names = {name for fd in self.pipes for name in _open_files("self", fd)}
        self.alone = True  # no other tree ran at any time of its life
        self.claimed: set[tuple[int, int]] = set()  # (pid, start time) of known members
        self._pidfd = _pidfd(leader.pid)
        process = _read_process(leader.pid)
        self.start = process.start if process else 0

    async def wait(self) -> None:
        """Until the leader has ended, and is reaped."""
        if self.leader.returncode is not None:
            return
        if self._pidfd is None:
            await to_thread.run_sync(self.leader.wait, abandon_on_cancel=True)
            return
        await wait_readable(self._pidfd)
        self.leader.wait()

    def close(self) -> None:
        assert self.leader.stdout is not None
        assert self.leader.stderr is not None
        self.leader.stdout.close()
        self.leader.stderr.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int
    session: int
    start: int
    state: str
    name: str

    @property
    def key(self) -> tuple[int, int]:
        return self.pid, self.start


class Reaper:
    """Adopts the orphans of every tree, and says whose they are."""

    _instance: Reaper | None = None

    def __init__(self) -> None:
        self.trees: dict[int, _Tree] = {}
        self.contained = _ON_LINUX and _become_subreaper()
        self._before = set(_children())  # inherited from whoever started us

    @classmethod
    def get(cls) -> Reaper:
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    def add(self, tree: _Tree) -> None:
        tree.alone = not self.trees
        for other in self.trees.values():
            other.alone = False
        self.trees[tree.leader.pid] = tree

    async def settle(self, tree: _Tree) -> list[str]:
        """After the leader's end: give its children a moment, end the rest, name them."""
        pause = 0.001
        with move_on_after(SETTLE):
            while tree.open_pipes or self._members(tree):
                await anyio.sleep(pause)
                pause = min(pause * 2, 0.02)
        # Also in the moment after the pipes are closed a process may still be ending.
        left = self._members(tree)
        if left or tree.open_pipes:
            await self.end(tree)
        return [f"{process.name} (pid {process.pid})" for process in left]

    def signal(self, tree: _Tree, number: signal.Signals) -> None:
        """To every living member."""
        if not self.contained:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(tree.leader.pid, number)
            return
        for process in self._members(tree, leader=True):
            _send(process, number)

    async def end(self, tree: _Tree) -> None:
        """Kill the tree until nothing of it is left. Bounded; safe to call again."""
        with move_on_after(GIVE_UP):
            if tree.leader.poll() is None:
                self.signal(tree, signal.SIGKILL)
                await tree.wait()
            while self._members(tree):
                self.signal(tree, signal.SIGKILL)
                await anyio.sleep(0.001)

    def strays(self) -> list[str]:
        """Orphans that no tree could be found for: named, and ended. For the end of a run."""
        names = []
        for process in self._orphans():
            names.append(f"{process.name} (pid {process.pid})")
            _send(process, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, 0)
        return names

    def _orphans(self) -> list[_Process]:
        """Our children that are no leader and were not there before us; zombies are reaped."""
        orphans = []
        for pid in _children():
            if pid in self.trees or pid in self._before:
                continue
            process = _read_process(pid)
            if process is None or process.state == "Z":
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
                continue
            orphans.append(process)
        return orphans

    def _members(self, tree: _Tree, *, leader: bool = False) -> list[_Process]:
        """The living processes of a tree: its orphans, what descends from them, its leader.

        The common case, a leader that left nobody behind, costs one small read.
        """
        if not self.contained:
            return []
        roots = [orphan for orphan in self._orphans() if self._belongs(orphan, tree)]
        if leader and tree.leader.poll() is None:
            process = _read_process(tree.leader.pid)
            roots += [process] if process else []
        if not roots:
            return []
        members = list(_descendants(roots))
        tree.claimed.update(process.key for process in members)
        return members

    def _belongs(self, orphan: _Process, tree: _Tree) -> bool:
        if orphan.key in tree.claimed or orphan.session == tree.leader.pid:
            return True
        if tree.mark in _read(orphan.pid, "environ").split(b"\0"):
            return True
        if tree.alone and orphan.start >= tree.start:  # whose else could it be
            return True
        return any(name in tree.pipe_names for name in _open_files(orphan.pid))


def _become_subreaper() -> bool:
    import ctypes

    pr_set_child_subreaper = 36
    try:
        return bool(ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid) if _ON_LINUX else None
    except OSError:  # an old kernel, or a sandbox that refuses it
        return None


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _read_process(pid: int) -> _Process | None:
    head, _, rest = _read(pid, "stat").rpartition(b")")
    if not head:
        return None
    # after the name: state, parent, group, session, … start time is the twentieth
    words = rest.split()
    return _Process(
        pid=pid,
        parent=int(words[1]),
        session=int(words[3]),
        start=int(words[19]),
        state=words[0].decode(),
        name=head.partition(b"(")[2].decode(errors="replace"),
    )


def _children() -> list[int]:
    """Of this process, whichever of its threads they belong to."""
    if not _ON_LINUX:
        return []
    found: list[int] = []
    try:
        for thread in os.listdir("/proc/self/task"):  # noqa: PTH208 - this is the fast path
            with open(f"/proc/self/task/{thread}/children", "rb") as file:  # noqa: PTH123
                found += map(int, file.read().split())
    except OSError:  # a thread that just ended, or a kernel without this file
        own = os.getpid()
        return [process.pid for process in _all_processes() if process.parent == own]
    return found


def _all_processes() -> Iterator[_Process]:
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            process = _read_process(int(name))
            if process is not None:
                yield process


def _descendants(roots: Sequence[_Process]) -> Iterator[_Process]:
    """The roots and all below them, without zombies."""
    below: dict[int, list[_Process]] = {}
    for process in _all_processes():
        below.setdefault(process.parent, []).append(process)
    todo, seen = list(roots), set()
    while todo:
        process = todo.pop()
        if process.pid not in seen:
            seen.add(process.pid)
            if process.state != "Z":
                yield process
            todo += below.get(process.pid, ())


def _open_files(pid: int | str, *numbers: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in numbers or os.listdir(folder):  # noqa: PTH208
            with contextlib.suppress(OSError):
                yield os.readlink(f"{folder}/{name}")  # noqa: PTH115


def _send(process: _Process, number: signal.Signals) -> None:
    """Through a pidfd where there is one, so that a reused number is never hit."""
    pidfd = _pidfd(process.pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        try:
            now = _read_process(process.pid)
            if now is None or now.key != process.key:
                return
            if pidfd is None:
                os.kill(process.pid, number)
            else:
                signal.pidfd_send_signal(pidfd, number)
        finally:
            if pidfd is not None:
                os.close(pidfd)
