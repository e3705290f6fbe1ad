"""What the recorder itself does inside of a run: its hooks, and the wrappers on the PATH.

They are known by the file that was executed, never by what a process calls itself. Nothing else
hides behind them: of a process that runs one, only the calls that it cannot do without are the
recorder's, each by its own path, and a wrapper's only until the next program. From the first
call that could have changed one of these files on, nothing is the recorder's any more.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from stream.evidence.commands import digest_of
from stream.records.command import category_of
from stream.records.kernel import (
    ACCOUNT,
    EXEC,
    EXIT,
    FORK,
    LINK,
    MKNOD,
    OPEN,
    RENAME,
    SOCKET_FILE,
    SYMLINK,
    UNLINK,
)
from stream.records.runner import HOME

_EVENT_LOG = "sdk-events.ndjson"  #: whoever opens it tells something, or reads what was told
_SETTINGS = "hooks.json"  #: the agent reads it, as it is told to
_CHANNELS = {_EVENT_LOG: "log", "hooks.ndjson": "hooks"}
_LOGS = ("commands", "hooks.missed", *_CHANNELS)  #: which others may write to
_REPLACES = {UNLINK, RENAME, LINK, SYMLINK, MKNOD}  #: a name may mean another file after it
_SHELLS = ("/bin/sh", "/bin/bash", "/usr/bin/sh", "/usr/bin/bash")
_CHANGES = {OPEN, *range(UNLINK, MKNOD + 1), ACCOUNT, SOCKET_FILE}
_MOST_PROGRAMS = 10_000  #: whose names are kept
_Doing = Literal["shell", "hook", "helper", "wrapper"]
#: What each of them opens, and whether it writes.
_OPENED: dict[_Doing, set[tuple[str, bool]]] = {
    "shell": set(),
    "hook": {("hook", False), ("hooks.ndjson", True), ("hooks.missed", True)},
    "helper": set(),
    "wrapper": {("wrapper", False), ("commands", True)},
}


class Told(Struct, omit_defaults=True):
    """What a step is, beyond who did what kind of thing."""

    child: int = 0
    path: str | None = None
    to_path: str | None = None  #: of a symlink its text
    asked: list[str] = []  #: what a shell was asked to run
    words: list[bytes] = []  #: of a program, without its name
    ways: int = 0  #: of an open: how the surface says it, and
    is_reading: bool = False  #: whether it could change nothing
    result: int | None = None
    is_plain: bool = True  #: the path means there what it means everywhere
    is_whole: bool = True  #: and all of it is known


class Own:
    """Fed with a run's steps in their order. Without a home there is nothing of the recorder's."""

    def __init__(self, home: str | None, helpers: Sequence[str]) -> None:
        self._home = home
        self.replaced: set[str] = set()  #: channels that may lead to other files than at first
        self._helpers = frozenset(helpers)
        used = {"log", "hooks"} if helpers else {"log"}
        self._channels = {name: one for name, one in _CHANNELS.items() if one in used}
        self._place = home or ""
        #: A link may be on the way to a run: it is known by its own name.
        self._tail = f"/{'/'.join(self._place.split('/')[-2:])}"
        self._doing: dict[int, _Doing] = {}
        self.wrappers = 0  #: that ran
        self.programs: Counter[str] = Counter()  #: by name: those that no wrapper became
        self.tests: Counter[str] = Counter()  #: by name: runs of tests among those
        self._has_begun = False
        hook = f"{home}/hook"
        self._calls_of_hook = {shlex.quote(hook), digest_of(shlex.quote(hook))}

    def is_hook(self, pid: int) -> bool:
        return self._doing.get(pid, "wrapper") != "wrapper"

    def is_telling(self, pid: int, program: Literal["hook", "wrapper"]) -> bool:
        """Whether it is the program itself: not who starts it, and not what it starts."""
        return self._doing.get(pid) == program

    def has(self, pid: int, kind: int, told: Told | None) -> bool:
        """Whether the step is the recorder's."""
        if told is not None and kind in _REPLACES:
            self._replaces(kind, told)
        if self._home is None:
            if kind == EXEC and told is not None:
                self._count(told, None, None)
            return False
        if kind == EXIT:
            return self._doing.pop(pid, "wrapper") != "wrapper"
        if told is None:
            return False
        if kind == FORK:
            return self._forks(pid, told.child)
        if kind == EXEC:
            return self._executes(pid, told)
        if kind == OPEN and self._opens(pid, told):
            return True
        if kind in _CHANGES and not told.is_reading and self._is_touched(kind, told):
            self._home = None
            self._doing.clear()
        return False

    def a_call_runs(self, pid: int) -> None:
        """What a tool call starts is no hook of the recorder's, whatever it is."""
        if self.is_hook(pid):
            del self._doing[pid]

    def _forks(self, pid: int, child: int) -> bool:
        self._doing.pop(child, None)
        if not self.is_hook(pid):
            return False
        self._doing[child] = self._doing[pid]
        return True

    def _executes(self, pid: int, told: Told) -> bool:
        before = self._doing.pop(pid, None)
        doing = self._doing_of(told, before) if told.is_plain else None
        if doing is not None:
            self._doing[pid] = doing
        self._count(told, before, doing)
        return doing is not None

    def _count(self, told: Told, before: _Doing | None, doing: _Doing | None) -> None:
        if doing == "wrapper":
            self.wrappers += 1
        elif before != "wrapper":
            name = (told.path or "").rpartition("/")[2]
            if category_of(name, told.words) == "test":
                _add(self.tests, name)
            # The command itself has no wrapper; after the first change nobody knows who has one.
            if self._has_begun and self._home is not None:
                _add(self.programs, name)
        self._has_begun = True

    def _doing_of(self, told: Told, before: _Doing | None) -> _Doing | None:
        path = told.path or ""
        if path == f"{self._home}/hook":
            return "hook"
        folder, _, name = path.rpartition("/")
        if name and folder == f"{self._home}/bin":
            return "wrapper"
        if before == "hook" and path in self._helpers:
            return "helper"
        if path in _SHELLS and told.asked and told.asked[0] in self._calls_of_hook:
            return "shell"
        return None

    def _opens(self, pid: int, told: Told) -> bool:
        doing = self._doing.get(pid)
        folder, _, name = (told.path or "").rpartition("/")
        if folder != self._home:
            return False
        is_known = doing is not None and (name, not told.is_reading) in _OPENED[doing]
        return is_known or name == _EVENT_LOG or (name == _SETTINGS and told.is_reading)

    def _replaces(self, kind: int, told: Told) -> None:
        for path in filter(None, (told.path, told.to_path)):
            folder, _, name = path.rpartition("/")
            is_sure = told.is_plain and told.is_whole and _is_straight(path)
            if name in self._channels and folder.endswith(self._tail if is_sure else f"/{HOME}"):
                self.replaced.add(self._channels[name])
            elif kind == RENAME and self._is_above(path, is_sure=is_sure):
                self.replaced |= {*self._channels.values()}

    def _is_above(self, path: str, *, is_sure: bool) -> bool:
        if not is_sure:
            return path.rpartition("/")[2] in self._place.split("/")[1:]
        is_run = f"{path}/{HOME}".endswith(self._tail) or path.endswith(self._tail)
        return is_run or self._place.startswith(f"{path}/")

    def _is_touched(self, kind: int, told: Told) -> bool:
        """Where a path goes through links, its text does not say what it leads to: whatever is
        called as these files are, or as a folder above them, is taken for it."""
        folders = (self._home or "").split("/")
        for path in (told.path, told.to_path):
            folder, _, name = (path or "").rpartition("/")
            if kind == RENAME and name in folders:
                return True
            if HOME in (path or "") and not (folder == self._home and name in _LOGS):
                return True
        return False


def _add(names: Counter[str], name: str) -> None:
    if name in names or len(names) < _MOST_PROGRAMS:
        names[name] += 1


def _is_straight(path: str) -> bool:
    """Whether a path leads where its text says, as far as no link is on the way."""
    return path.startswith("/") and not path.startswith("/proc/") and "/../" not in f"{path}/"
