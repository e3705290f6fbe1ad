"""Which calls each process may have been started for, as forks and execs are met in order.

A process that the agent forks while calls are open was started for one of them: for the one that
is open alone, unless it turns out to run the command of another; for the one whose command it
runs; else nobody knows for which. So were its children, also when the call is long over. What is
left is the agent itself, and what was there before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Generic, TypeVar

from msgspec import Struct

from stream.evidence.commands import known_by

CallT = TypeVar("CallT")


class Suspects(Struct, Generic[CallT], eq=False):
    """The calls that one process may have been started for: one at least."""

    calls: tuple[CallT, ...]
    are_all: bool = True  #: else there were more of them than anybody would name

    @property
    def owner(self) -> CallT | None:
        return self.calls[0] if len(self.calls) == 1 and self.are_all else None


class Ownership(Generic[CallT]):
    def __init__(self) -> None:
        self.owners: dict[int, Suspects[CallT]] = {}  #: by pid; the agent's own are not in it
        self._unsure: set[int] = set()  # forked by the agent itself, and nothing executed yet
        self._commands: defaultdict[str, dict[CallT, None]] = defaultdict(dict)

    def expect(self, call: CallT, command: str) -> None:
        """While the call is open, who runs this is its own."""
        if known := known_by(command):
            self._commands[known][call] = None

    def forget(self, call: CallT, command: str) -> None:
        known = known_by(command)
        if known in self._commands:
            self._commands[known].pop(call, None)
            if not self._commands[known]:
                del self._commands[known]

    def is_sure(self, pid: int) -> bool:
        """That it was started for a call, whichever that is."""
        return pid in self.owners and pid not in self._unsure

    def forked(self, parent: int, child: int, some: Suspects[CallT] | None) -> None:
        """`some`: the calls that the parent can be at work for."""
        self.gone(child)  # its number may have been another's
        suspects = self.owners.get(parent)
        if suspects is not None:
            self.owners[child] = suspects
            if parent in self._unsure:
                self._unsure.add(child)
        elif some is not None:
            self.owners[child] = some
            self._unsure.add(child)

    def executed(self, pid: int, asked: Iterable[str], may_be: Callable[[CallT], bool]) -> None:
        """`may_be`: of calls that are open, whether the process can be at work for one."""
        suspects = self.owners.get(pid)
        if suspects is not None and self.is_sure(pid):
            if suspects.owner is not None:
                return  # what a call's own process runs is the call's, whatever it is called
            if suspects.are_all:
                may_be = suspects.calls.__contains__
        self._unsure.discard(pid)
        for text in asked:
            those = filter(may_be, self._commands.get(known_by(text), ()))
            found = tuple(islice(those, 2))
            if found:
                if len(found) == 1:
                    self.owners[pid] = Suspects(found)
                return

    def gone(self, pid: int) -> None:
        self.owners.pop(pid, None)
        self._unsure.discard(pid)
