"""Start programs as leaders of process trees, find what descends from them however it tried to
escape, and end it.

On Linux this process becomes the subreaper of everything it starts: an orphan comes back to it
instead of to init. A child in a session of its own that it does not know is an orphan, because
every program that gets such a session is started here. Elsewhere, the process group of the leader
is all that can be known. Nothing here waits for an event loop, nor loads one: a program may be
started before there is one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from threading import Thread

from msgspec import Struct

from stream.errors import SpawnError, os_reason
from stream.process.cgroup import Cgroup
from stream.process.table import (
    ON_LINUX,
    Process,
    become_subreaper,
    list_children,
    list_descendants,
    open_file_names,
    open_pidfd,
    proc_shows_us,
    read_process,
    read_process_file,
    reap_child,
    send_signal,
    ticks_now,
)

KILL_AFTER = 1.0  #: seconds between SIGTERM and SIGKILL
GIVE_UP = 2.0  #: seconds to wait for a killed process: only one stuck in the kernel needs it
PAUSE = 0.001  #: seconds between two looks at what is left
ROOM = 12  #: descriptors that are free when a program is started; it takes five for good
_AT_ONCE = 0.05  #: seconds that orphans which end all the time may keep everyone else waiting
_MOST_REAPED = 1000  #: at a time: somebody may have orphans without end
_MARK = b"STREAM_TREE"  #: in the environment of every process of a tree
_serial = count(1)

Names = dict[tuple[int, int], str]  #: of processes, by pid and start time: an exec renames one


class Files(Struct, frozen=True):
    """The files that a program reads and writes, where they are given."""

    stdin: int = subprocess.DEVNULL
    stdout: int = subprocess.PIPE
    stderr: int = subprocess.PIPE


PIPES = Files()


def start_tree(
    argv: Sequence[str | bytes],
    *,
    env: Mapping[str, str] | Mapping[bytes, bytes],  # the system's words need not be text
    cwd: str | bytes,
    executable: str | bytes | None = None,
    files: Files = PIPES,
) -> Tree:
    """Start a program in a session of its own. Raise SpawnError."""
    reaper = Reaper.get()
    is_alone = reaper.is_idle()
    mark = f"{os.getpid()}.{next(_serial)}"
    started = ticks_now()
    own_env = {os.fsencode(key): os.fsencode(value) for key, value in env.items()}
    own_env[_MARK] = mark.encode()  # also where a tree is inside of another one
    try:
        _check_descriptor_room()
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
    tree = Tree(leader, mark, is_alone, started)
    reaper.add_tree(tree)
    return tree


def spawn_error(error: OSError, cwd: str | bytes) -> SpawnError:
    """Put a failure to start a program in words. Whoever reads it knows the program: only what
    else is in the way is named."""
    prefix = f"{os.fsdecode(error.filename)}: " if error.filename in (cwd, os.devnull) else ""
    return SpawnError(f"{prefix}{os_reason(error)}", error.errno or 0)


def _check_descriptor_room() -> None:
    """Raise OSError where there are too few descriptors left to find the program's children."""
    opened: list[int] = []
    try:
        for _ in range(ROOM):
            opened += [os.dup(2)]
    finally:
        for fd in opened:
            os.close(fd)


class Tree:
    """A program that was started, and what descends from it."""

    def __init__(
        self, leader: subprocess.Popen[bytes], mark: str, is_alone: bool, started: int
    ) -> None:
        self.leader = leader
        self.mark = _MARK + b"=" + mark.encode()
        self.is_alone = is_alone  # as long as it lives, any orphan that comes to us is its own
        self.started = started  # in the unit of Process.start
        self.known: set[tuple[int, int]] = set()  # (pid, start time) of members
        self.exit_fd = _leader_exit_fd(leader)  #: readable once the leader has ended
        self.tracer: tuple[int, int] | None = None  # follows the tree, and is not of it
        self.is_clean = False  # it was looked, and nobody is left
        self._began = time.monotonic()
        self._outputs = [pipe for pipe in (leader.stdout, leader.stderr) if pipe is not None]
        self.pipes = tuple(pipe.fileno() for pipe in self._outputs)
        for pipe in self.pipes:
            os.set_blocking(pipe, False)

    @property
    def age(self) -> float:
        """The seconds since it was started."""
        return time.monotonic() - self._began

    @property
    def is_over(self) -> bool:
        """Tell whether the leader has ended, and reap it."""
        return self.leader.poll() is not None

    def pipe_names(self) -> set[str]:
        """Name its pipes as /proc does."""
        return {name for fd in self.pipes for name in open_file_names("self", fd)}

    def signal_group(self, number: int) -> bool:
        """Send a signal to the leader's process group, as a terminal would. Return whether anyone
        is in it."""
        try:
            os.killpg(self.leader.pid, number)
        except (ProcessLookupError, PermissionError):  # macOS: permission, where all are zombies
            return False
        return True

    def has_tracer(self) -> bool:
        """Tell whether its tracer lives, and reap one that has ended."""
        if self.tracer is None:
            return False
        process = read_process(self.tracer[0])
        if process is None or process.key != self.tracer:
            return False
        return not process.ended or not reap_child(process.pid)

    def end_tracer(self) -> None:
        """Kill the tracer of the process tree, if it has one."""
        if self.tracer is not None and self.has_tracer():
            with suppress(ProcessLookupError):
                os.kill(self.tracer[0], signal.SIGKILL)  # our own child: its number is not reused

    def close(self) -> None:
        """Close the descriptors of the process tree that are open."""
        for pipe in self._outputs:
            pipe.close()
        os.close(self.exit_fd)


def _leader_exit_fd(leader: subprocess.Popen[bytes]) -> int:
    """Return a descriptor that becomes readable when the leader of a process tree ends."""
    pidfd = open_pidfd(leader.pid)
    if pidfd is not None:
        return pidfd
    # Where there are none, a thread waits, and closes its end of a pipe.
    read, write = os.pipe()

    def wait() -> None:
        """Wait for the leader, and then close the pipe."""
        leader.wait()
        os.close(write)

    Thread(target=wait, daemon=True).start()
    return read


class Containment:
    """What holds processes that are to end: their trees, and a control group if there is one.

    `kill` is one step, and whoever calls it chooses how to wait until the next one; `end` takes
    all of them at once.
    """

    def __init__(self, trees: Sequence[Tree] = (), cgroup: Cgroup | None = None) -> None:
        self.killed: Names = {}
        self._trees = list(trees)
        self._cgroup = cgroup
        self._tracers = [tree.tracer[0] for tree in trees if tree.tracer is not None]
        self._began: float | None = None  # when it was first killed

    def is_empty(self) -> bool:
        """Tell whether nobody of the trees is left but tracers."""
        return not self._trees_left() and not self._holds_others()

    def kill(self) -> bool:
        """Kill who is left of the trees. Return whether that was the last step: nobody is left, or
        GIVE_UP is over and what lives is stuck in the kernel."""
        left = self._trees_left()
        if not left and not self._holds_others():
            return True
        now = time.monotonic()
        self._began = began = self._began or now
        if now > began + GIVE_UP:
            return True
        reaper = Reaper.get()
        # A tracer is to report how they end; unless it is what holds them.
        if self._cgroup is not None and (not self._tracers or now > began + GIVE_UP / 2):
            self._cgroup.kill_members()
            reaper.reap_orphans()  # one that has ended is a member until it is reaped
        for tree in left:
            if now > began + GIVE_UP / 2:
                tree.end_tracer()
            self.killed = reaper.kill_tree(tree) | self.killed
        return False

    def end(self) -> Names:
        """Kill the trees until nobody is left, for GIVE_UP at most, and name who was killed.
        Nothing else runs meanwhile."""
        while not self.kill():
            time.sleep(PAUSE)
        return self.killed

    def _trees_left(self) -> list[Tree]:
        reaper = Reaper.get()
        return [tree for tree in self._trees if not tree.is_over or reaper.has_left_processes(tree)]

    def _holds_others(self) -> bool:
        return self._cgroup is not None and self._cgroup.holds_others(self._tracers)


class Reaper:
    """Adopts the orphans of every tree, and knows whose they are."""

    _instance: Reaper | None = None

    def __init__(self) -> None:
        self.trees: list[Tree] = []
        self._is_flooded = False  # more orphans ended than could be reaped at once
        self.is_subreaper = ON_LINUX and become_subreaper()
        self.can_contain = self.is_subreaper and proc_shows_us()
        # Inherited from whoever started us. The processes of a tree are never in our session.
        self._before = {p.key for p in map(read_process, list_children()) if p}
        self._session = os.getsid(0)
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
            # Inherited as well: the kernel would forget how our children end.
            with suppress(ValueError):  # not in the main thread
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    @classmethod
    def get(cls) -> Reaper:
        """Return the one reaper of this process."""
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    def is_idle(self) -> bool:
        """Tell whether nothing runs that could leave an orphan to us."""
        return not (self.trees or self._living_orphans(lambda orphan: True) or self._is_flooded)

    def add_tree(self, tree: Tree) -> None:
        """Take a process tree whose orphans will come."""
        for other in self.trees:
            other.is_alone = False
        self.trees.append(tree)

    def drop_tree(self, tree: Tree) -> None:
        """Close a tree of which nothing is left, or for which all was tried."""
        self.trees.remove(tree)
        tree.close()

    def signal_tree(self, tree: Tree, number: signal.Signals) -> None:
        """Send a signal to every living member of a process tree."""
        # The group first, at once: one that forks without end is stopped best at its root.
        tree.signal_group(number)
        if not self.can_contain:
            return
        for process in self._list_members(tree, self._roots_of_tree(tree)):
            if process.group != tree.leader.pid:
                send_signal(process, number)

    def kill_tree(self, tree: Tree) -> Names:
        """Kill who is found of a tree, and name them. Others may come while they are looked for:
        Containment kills again until nobody is left."""
        if not self.can_contain:
            return _name_group(tree, signal.SIGKILL)
        if not tree.is_over:
            tree.signal_group(signal.SIGKILL)
        return self._kill_roots(self._roots_of_tree(tree), tree)

    def living_of_tree(self, tree: Tree) -> Names:
        """Name the leader and the orphans of a tree that live."""
        if not self.can_contain:
            return _name_group(tree, 0)
        return {process.key: str(process) for process in self._roots_of_tree(tree)}

    def has_left_processes(self, tree: Tree) -> bool:
        """Tell whether the leader, once it is over, left anyone behind. Costs one small read."""
        if self.can_contain:
            return bool(self._roots_of_tree(tree)) or self._is_flooded
        if not tree.is_over:
            return False
        self.reap_orphans(tree)  # a zombie counts for the group
        self.reap_orphans()
        return tree.signal_group(0)

    def end_all_trees(self, trees: Sequence[Tree]) -> None:
        """End trees that nobody watches, all at a time, for KILL_AFTER + GIVE_UP at most. Nothing
        else runs meanwhile."""
        for tree in trees:
            if not tree.is_over:
                self.signal_tree(tree, signal.SIGTERM)
        wait_until_done(KILL_AFTER, lambda: all(tree.is_over for tree in trees))
        Containment(trees).end()
        for tree in trees:
            self.drop_tree(tree)

    def end_strays(self) -> list[str]:
        """Kill and name the orphans that no tree could be found for, for GIVE_UP at most. Nothing
        else runs meanwhile: it is for the end of a run."""
        killed: Names = {}

        def has_ended() -> bool:
            """Kill the strays that there are, and tell whether there were none."""
            strays = self._living_orphans(self._is_stray)
            killed.update(self._kill_roots(strays))
            return not strays and not self._is_flooded

        wait_until_done(GIVE_UP, has_ended)
        return list(killed.values())

    def reap_orphans(self, tree: Tree | None = None) -> None:
        """Reap orphans that have ended, or only those in the process group of a tree, so that they
        free their place in the process table. Leaders, and children that others wait for, are left
        alone, and so is what is behind these in the queue of the system."""
        whose = (os.P_ALL, 0) if tree is None else (os.P_PGID, tree.leader.pid)
        leaders = {tree.leader.pid for tree in self.trees}
        for _ in range(_MOST_REAPED if self.is_subreaper else 0):
            try:
                ended = os.waitid(*whose, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is None or ended.si_pid in leaders:
                    return
                if os.getsid(ended.si_pid) == self._session or not reap_child(ended.si_pid):
                    return
            except (ChildProcessError, ProcessLookupError):  # or another thread was faster
                return

    def _kill_roots(self, roots: Sequence[Process], tree: Tree | None = None) -> Names:
        """Stop the roots, so that they do not fork away meanwhile, and kill all below them."""
        for process in roots:
            send_signal(process, signal.SIGSTOP)
        members = self._list_members(tree, roots)
        for process in members:
            send_signal(process, signal.SIGKILL)
        return {process.key: str(process) for process in members}

    def _living_orphans(self, is_wanted: Callable[[Process], bool]) -> list[Process]:
        """List our living children that are no leader, and were not there before us."""
        self._is_flooded = False
        if not self.can_contain:  # /proc shows other processes, or none
            return []
        deadline = time.monotonic() + _AT_ONCE
        tracers = {tree.tracer for tree in self.trees}
        leaders = {tree.leader.pid for tree in self.trees if tree.leader.returncode is None}
        while True:
            wanted: list[Process] = []
            has_reaped = False
            for process in map(read_process, set(list_children()) - leaders):
                if process is None or process.session == self._session:
                    continue
                if process.key in self._before:
                    continue
                if process.ended:
                    has_reaped |= reap_child(process.pid)
                elif process.key not in tracers and is_wanted(process):
                    wanted.append(process)
            # Who ended while we looked may have left us a child that we did not see.
            if wanted or not has_reaped:
                return wanted
            if time.monotonic() > deadline:
                self._is_flooded = True
                return []

    def _roots_of_tree(self, tree: Tree) -> list[Process]:
        """Give the processes by which a tree hangs on us: its orphans, and its leader."""
        roots = self._living_orphans(lambda orphan: self._belongs_to_tree(orphan, tree))
        if not tree.is_over:
            leader = read_process(tree.leader.pid)
            roots += [leader] if leader else []
        return roots

    def _list_members(self, tree: Tree | None, roots: Sequence[Process]) -> list[Process]:
        """List the processes below the roots of a tree, which from now on are known as its own."""
        members = list(list_descendants(roots)) if roots else []
        if tree is not None:
            tree.known.update(process.key for process in members)
        return members

    def _is_stray(self, orphan: Process) -> bool:
        return not any(self._belongs_to_tree(orphan, tree) for tree in self.trees)

    def _belongs_to_tree(self, orphan: Process, tree: Tree) -> bool:
        """Tell whether an orphan descends from a process tree, or may do so."""
        if orphan.key in tree.known or orphan.session == tree.leader.pid:
            return True
        if tree.is_alone and orphan.start >= tree.started:
            return True
        if self._has_mark_of_tree(orphan, tree):
            return True
        if tree.pipe_names() & set(open_file_names(orphan.pid)):
            return True
        # One that is about to end shows nothing any more, but may leave us a child.
        now = read_process(orphan.pid)
        return now is None or now.leaving

    def _has_mark_of_tree(self, orphan: Process, tree: Tree) -> bool:
        """Tell whether an orphan has the mark of a process tree in its environment."""
        environment = read_process_file(orphan.pid, "environ")
        if not environment:
            # In the middle of an exec there is none to be read, nor a command line: wait and see.
            if not read_process_file(orphan.pid, "cmdline"):
                return True
            environment = read_process_file(orphan.pid, "environ")
        return tree.mark in environment.split(b"\0")


def _name_group(tree: Tree, number: int) -> Names:
    """Name the process group, where a signal reached anyone: all that can be known of it."""
    leader = tree.leader.pid
    return {(leader, 0): f"process group {leader}"} if tree.signal_group(number) else {}


def wait_until_done(seconds: float, is_done: Callable[[], bool]) -> None:
    """Look again and again whether something is done, for so many seconds at most."""
    deadline = time.monotonic() + seconds
    while not is_done() and time.monotonic() < deadline:
        time.sleep(PAUSE)
