"""A program that was started as the leader of a tree, and what there is to know the tree by.

Nothing here waits, and nothing heavy is imported: a program may be started before there is a loop
to watch it (`process` does).

Start programs, and find what descends from them, however it tried to escape.

On Linux this process becomes the subreaper of everything it starts, so that an orphan comes
back to it instead of to init; elsewhere the process group is all that there is.

A child that it does not know, in a session of its own, is an orphan: every program that
gets one is started through this module."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from threading import Thread

from msgspec import Struct

from stream.errors import SpawnError, os_reason
from stream.process.table import (
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
    shows_us,
    ticks_now,
)

ROOM = 12  #: descriptors that are free when a program is started; it takes five for good

_MARK = b"STREAM_TREE"  # in the environment of every process of a tree
_serial = count(1)


class Files(Struct, frozen=True):
    """What a program reads and writes, where that is given."""

    stdin: int = subprocess.DEVNULL
    stdout: int = subprocess.PIPE
    stderr: int = subprocess.PIPE


PIPES = Files()


def launch(
    argv: Sequence[str | bytes],
    *,
    env: Mapping[str, str] | Mapping[bytes, bytes],  # the system's words need not be text
    cwd: str | bytes,
    executable: str | bytes | None,
    files: Files,
    alone: bool,
) -> Tree:
    """In a session of its own. Raises SpawnError."""
    mark = f"{os.getpid()}.{next(_serial)}"
    moment = ticks_now()
    own_env = {os.fsencode(key): os.fsencode(value) for key, value in env.items()}
    own_env[_MARK] = mark.encode()  # also where a tree is inside of another one
    try:
        _check_room()
        leader = subprocess.Popen(  # it waits for the exec, half a millisecond
            argv,
            executable=executable,
            env=own_env,
            cwd=cwd,
            stdin=files.stdin,
            stdout=files.stdout,
            stderr=files.stderr,
            bufsize=0,
            start_new_session=True,
        )
    except OSError as error:
        raise spawn_error(error, cwd) from None
    return Tree(leader, mark, alone, moment)


def spawn_error(error: OSError, cwd: str | bytes) -> SpawnError:
    """What could not be started is known: only what else is in the way is named."""
    place = f"{os.fsdecode(error.filename)}: " if error.filename in (cwd, os.devnull) else ""
    return SpawnError(f"{place}{os_reason(error)}", error.errno or 0)


def _check_room() -> None:
    """To look at processes takes descriptors: who starts one leaves enough to find its children."""
    opened: list[int] = []
    try:
        for _ in range(ROOM):
            opened += [os.dup(2)]
    finally:
        for fd in opened:
            os.close(fd)


class Tree:
    """A leader and what descends from it."""

    def __init__(self, leader: subprocess.Popen[bytes], mark: str, alone: bool, start: int) -> None:
        self.leader = leader
        self.mark = _MARK + b"=" + mark.encode()
        self.alone = alone  # nobody else's orphan can come to us at any time of its life
        self._outputs = [pipe for pipe in (leader.stdout, leader.stderr) if pipe is not None]
        self.pipes = tuple(pipe.fileno() for pipe in self._outputs)
        for pipe in self.pipes:
            os.set_blocking(pipe, False)
        self._began = time.monotonic()
        self.claimed: set[tuple[int, int]] = set()  # (pid, start time) of known members
        self.start = start
        self.exit_fd = _exit_fd(leader)  #: readable once the leader has ended
        self.tracer: tuple[int, int] | None = None  # follows the tree, and is not of it
        self.is_clean = False  # it was looked, and nobody is left

    @property
    def age(self) -> float:
        return time.monotonic() - self._began

    @property
    def is_over(self) -> bool:
        """The leader has ended, and is reaped."""
        return self.leader.poll() is not None

    def pipe_names(self) -> set[str]:
        return {name for fd in self.pipes for name in open_files("self", fd)}

    def close(self) -> None:
        for pipe in self._outputs:
            pipe.close()
        os.close(self.exit_fd)


def _exit_fd(leader: subprocess.Popen[bytes]) -> int:
    pidfd = open_pidfd(leader.pid)
    if pidfd is not None:
        return pidfd
    # Where there are none, a thread waits, and lets go of a pipe.
    read, write = os.pipe()

    def wait() -> None:
        leader.wait()
        os.close(write)

    Thread(target=wait, daemon=True).start()
    return read


def send_group(tree: Tree, number: int) -> bool:
    """To the leader's process group, as a terminal would. Whether anyone is in it."""
    try:
        os.killpg(tree.leader.pid, number)
    except (ProcessLookupError, PermissionError):  # macOS: permission, where all are zombies
        return False
    return True


KILL_AFTER = 1.0  #: seconds between SIGTERM and SIGKILL
GIVE_UP = 2.0  #: seconds to wait for a killed process: only one stuck in the kernel needs it
AT_ONCE = 0.05  #: seconds that orphans which end all the time may keep everyone else waiting

_MOST_LET_GO = 1000  # at a time: somebody may have orphans without end


def start(
    argv: Sequence[str | bytes],
    *,
    env: Mapping[str, str] | Mapping[bytes, bytes],
    cwd: str | bytes,
    executable: str | bytes | None = None,
    files: Files = PIPES,
) -> Tree:
    """Unless told otherwise with stdin from /dev/null and pipes for what it writes. Raises
    SpawnError."""
    reaper = Reaper.get()
    alone = reaper.is_idle()
    tree = launch(argv, env=env, cwd=cwd, executable=executable, files=files, alone=alone)
    reaper.add(tree)
    return tree


class Reaper:
    """Adopts the orphans of every tree, and says whose they are."""

    _instance: Reaper | None = None

    def __init__(self) -> None:
        self.trees: list[Tree] = []
        self._is_flooded = False  # more orphans ended than could be reaped at once
        self.adopts = ON_LINUX and become_subreaper()
        self.contained = self.adopts and shows_us()
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
        return not (self.trees or self._orphans(lambda orphan: True) or self._is_flooded)

    def add(self, tree: Tree) -> None:
        for other in self.trees:
            other.alone = False
        self.trees.append(tree)

    def signal(self, tree: Tree, number: signal.Signals) -> None:
        """To every living member."""
        # The group first, at once: one that forks without end is stopped best at its root.
        send_group(tree, number)
        if not self.contained:
            return
        for process in self._members(tree, self._roots(tree)):
            if process.group != tree.leader.pid:
                send(process, number)

    def end_all(self, trees: Sequence[Tree]) -> None:
        """Trees that nobody watches: as `process` ends one, all at a time. For the end of a run:
        it does not give way to other tasks, for KILL_AFTER + GIVE_UP at most."""
        for tree in trees:
            if not tree.is_over:
                self.signal(tree, signal.SIGTERM)
        _wait(KILL_AFTER, lambda: all(tree.is_over for tree in trees))
        left = list(trees)

        def ended() -> bool:
            left[:] = [tree for tree in left if self.is_left(tree) or not tree.is_over]
            for tree in left:
                self.kill(tree)
            return not left

        _wait(GIVE_UP, ended)
        for tree in trees:
            self.drop(tree)

    def strays(self) -> list[str]:
        """Orphans that no tree could be found for: named, and ended. For the end of a run:
        it does not give way to other tasks, for GIVE_UP at most."""
        found: dict[tuple[int, int], str] = {}

        def ended() -> bool:
            strays = self._orphans(self._is_stray)
            found.update((process.key, str(process)) for process in self._kill(strays))
            return not strays and not self._is_flooded

        _wait(GIVE_UP, ended)
        return list(found.values())

    def kill(self, tree: Tree) -> dict[tuple[int, int], str]:
        """Whom of the tree it caught: again and again until nobody is left."""
        if self.contained:
            if not tree.is_over:
                send_group(tree, signal.SIGKILL)
            return {process.key: str(process) for process in self._kill(self._roots(tree), tree)}
        return _group(tree, signal.SIGKILL)

    def living(self, tree: Tree) -> dict[tuple[int, int], str]:
        """Where the tree hangs on us, by name."""
        if not self.contained:
            return _group(tree, 0)
        return {process.key: str(process) for process in self._roots(tree)}

    def drop(self, tree: Tree) -> None:
        """Nothing of it is left, or all was tried."""
        self.trees.remove(tree)
        tree.close()

    def _kill(self, roots: Sequence[Process], tree: Tree | None = None) -> list[Process]:
        """The roots, stopped so that they do not fork away meanwhile, and all below them."""
        for process in roots:
            send(process, signal.SIGSTOP)
        members = self._members(tree, roots)
        for process in members:
            send(process, signal.SIGKILL)
        return members

    def is_left(self, tree: Tree) -> bool:
        """Whether the leader, once it is over, left anyone behind. Costs one small read."""
        if self.contained:
            return bool(self._roots(tree)) or self._is_flooded
        if not tree.is_over:
            return False
        self.let_go(tree)  # a zombie counts for the group
        self.let_go()
        return send_group(tree, 0)

    def let_go(self, tree: Tree | None = None) -> None:
        """Of orphans that have ended, or those in the process group of a tree: they count for what
        it may have. Not of programs that others wait for, and of what is behind these not yet."""
        whose = (os.P_ALL, 0) if tree is None else (os.P_PGID, tree.leader.pid)
        leaders = {tree.leader.pid for tree in self.trees}
        for _ in range(_MOST_LET_GO if self.adopts else 0):
            try:
                ended = os.waitid(*whose, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is None or ended.si_pid in leaders:
                    return
                if os.getsid(ended.si_pid) == self._session or not reap(ended.si_pid):
                    return
            except (ChildProcessError, ProcessLookupError):  # or another thread was faster
                return

    def _orphans(self, is_wanted: Callable[[Process], bool]) -> list[Process]:
        """Our living children that are no leader, and were not there before us."""
        self._is_flooded = False
        if not self.contained:  # what there is of /proc tells of other processes, or of none
            return []
        deadline = time.monotonic() + AT_ONCE
        tracers = {tree.tracer for tree in self.trees}
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
                elif process.key not in tracers and is_wanted(process):
                    wanted.append(process)
            # Who ended while we looked may have left us a child that we did not see.
            if wanted or not reaped:
                return wanted
            if time.monotonic() > deadline:
                self._is_flooded = True
                return []

    def _roots(self, tree: Tree) -> list[Process]:
        """Where a tree hangs on us: its orphans, and its leader."""
        roots = self._orphans(lambda orphan: self._belongs(orphan, tree))
        if not tree.is_over:
            leader = read_process(tree.leader.pid)
            roots += [leader] if leader else []
        return roots

    def _members(self, tree: Tree | None, roots: Sequence[Process]) -> list[Process]:
        members = list(descendants(roots)) if roots else []
        if tree is not None:
            tree.claimed.update(process.key for process in members)
        return members

    def _is_stray(self, orphan: Process) -> bool:
        return not any(self._belongs(orphan, tree) for tree in self.trees)

    def _belongs(self, orphan: Process, tree: Tree) -> bool:
        if orphan.key in tree.claimed or orphan.session == tree.leader.pid:
            return True
        if tree.alone and orphan.start >= tree.start:  # whose else could it be
            return True
        if self._is_marked(orphan, tree):
            return True
        if tree.pipe_names() & set(open_files(orphan.pid)):
            return True
        # One that is about to end has nothing to show any more, but perhaps a child for us.
        now = read_process(orphan.pid)
        return now is None or now.leaving

    def _is_marked(self, orphan: Process, tree: Tree) -> bool:
        environment = read_file(orphan.pid, "environ")
        if not environment:
            # In the middle of an exec there is none to be read, nor a command line: wait and see.
            if not read_file(orphan.pid, "cmdline"):
                return True
            environment = read_file(orphan.pid, "environ")
        return tree.mark in environment.split(b"\0")


def _group(tree: Tree, number: int) -> dict[tuple[int, int], str]:
    """The process group by name, where the signal reached anyone: all that can be known of it."""
    leader = tree.leader.pid
    return {(leader, 0): f"process group {leader}"} if send_group(tree, number) else {}


def _wait(seconds: float, is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not is_done() and time.monotonic() < deadline:
        time.sleep(0.001)
