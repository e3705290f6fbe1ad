"""Whose thread is whose: strace names threads, and records name processes and their folders.

A child often speaks before the call that made it returns: it is then known by the calls that
are still under way.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct, field

from stream.sources.kernel.strace_calls import CLONE_FILES, CLONE_FS, CLONE_THREAD, CLONE_UNTRACED


class Folder(Struct):
    """Where paths start from. Threads share one."""

    path: str | None  #: None: not known
    is_told: bool = False  #: by the text of a chdir, which may go through links
    is_rooted: bool = False  #: its process has another root than the run began with


class Descriptors(Struct):
    """Of one process, or of several threads."""

    users: int = 1


class Task(Struct):
    group: int
    folder: Folder
    descriptors: Descriptors = field(default_factory=Descriptors)


class Fork(Struct):
    """A call under way that makes a process or a thread."""

    caller: Task
    flags: int
    child: int = 0  #: who is taken to be its child already

    @property
    def makes_thread(self) -> bool:
        return bool(self.flags & CLONE_THREAD)

    def task(self, child: int) -> Task:
        folder = self.caller.folder
        group = self.caller.group if self.makes_thread else child
        task = Task(group, folder if self.flags & CLONE_FS else msgspec.structs.replace(folder))
        if self.flags & CLONE_FILES:
            task.descriptors = self.caller.descriptors
            task.descriptors.users += 1
        return task


Ask = Callable[[int], tuple[int, int] | None]  #: of a thread: its process, and that one's parent


def ask_proc(tid: int) -> tuple[int, int] | None:
    """None: it is over."""
    from pathlib import Path

    try:
        lines = Path(f"/proc/{tid}/status").read_text(errors="replace").splitlines()
        found = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        return int(found["Tgid"]), int(found["PPid"])
    except (OSError, KeyError, ValueError):
        return None


class Tasks:
    def __init__(self, cwd: str, ask: Ask = ask_proc) -> None:
        self.living: dict[int, Task] = {}
        #: came from nowhere that is known: whoever made them has not returned from it, or never did
        self.uncertain: set[int] = set()
        self.untraced = 0  #: made so that no tracer can follow
        self._cwd = cwd
        self._ask = ask
        self._forks: dict[int, Fork] = {}  # by who calls
        self._early: set[int] = set()  # announced before the call that made them was over
        self._has_begun = False

    @property
    def unannounced(self) -> int:
        """Those that nobody was seen to make."""
        return self.untraced + len(self.uncertain)

    def find(self, tid: int) -> tuple[Task, Task | None]:
        """And the parent, where this is a process that has not been announced yet."""
        task = self.living.get(tid)
        if task is not None:
            return task, None
        return self._arrive(tid)

    def fork_begins(self, tid: int, caller: Task, flags: int) -> None:
        self._forks[tid] = Fork(caller, flags)

    def fork_ends(self, tid: int, child: int | None) -> Task | None:
        """The parent, where the child is a process that has not been announced yet."""
        fork = self._forks.pop(tid)
        if not child:
            return None
        if child in self._early:
            self._early.discard(child)
            return None
        if child in self.uncertain:
            self.uncertain.discard(child)
            if child in self.living and fork.makes_thread:
                self.living[child].group = fork.caller.group
                self.living[child].descriptors = fork.caller.descriptors
                fork.caller.descriptors.users += 1
        elif fork.flags & CLONE_UNTRACED:
            self.untraced += 1
        else:
            self.living[child] = fork.task(child)
        return None if fork.makes_thread else fork.caller

    def end(self, tid: int) -> None:
        if task := self.living.pop(tid, None):
            task.descriptors.users -= 1
        self._forks.pop(tid, None)

    def _arrive(self, tid: int) -> tuple[Task, Task | None]:
        fork = self._find_fork(tid)
        if fork is None:
            if self._has_begun:
                self.uncertain.add(tid)
            self._has_begun = True
            task = self.living[tid] = Task(tid, Folder(self._cwd))
            return task, None
        fork.child = tid
        self._early.add(tid)
        task = self.living[tid] = fork.task(tid)
        return task, None if fork.makes_thread else fork.caller

    def _find_fork(self, tid: int) -> Fork | None:
        forks = [fork for fork in self._forks.values() if not fork.child]
        if len({(fork.caller.group, fork.makes_thread) for fork in forks}) > 1:
            answer = self._ask(tid)
            if answer is None:
                return None
            group, parent = answer
            forks = [
                fork
                for fork in forks
                if fork.makes_thread == (group != tid)
                and fork.caller.group == (group if fork.makes_thread else parent)
            ]
        return forks[0] if forks else None
