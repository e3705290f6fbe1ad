"""Which call each process was started for, as forks and execs are met in order.

A process that the agent forks while one call alone is open is that call's, unless it turns out
to run the command of another; so is one that runs an open call's command; so are their children,
also when the call is long over. What is left is the agent itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Generic, TypeVar

from stream.evidence.commands import known_by

CallT = TypeVar("CallT")


class Ownership(Generic[CallT]):
    def __init__(self) -> None:
        self.owners: dict[int, CallT] = {}  #: by pid; the agent's own are not in it
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
        return pid in self.owners and pid not in self._unsure

    def forked(self, parent: int, child: int, only: CallT | None) -> None:
        """`only`: the one call that the parent can be at work for."""
        self.gone(child)  # its number may have been another's
        owner = self.owners.get(parent)
        if owner is not None:
            self.owners[child] = owner
            if parent in self._unsure:
                self._unsure.add(child)
        elif only is not None:
            self.owners[child] = only
            self._unsure.add(child)

    def executed(self, pid: int, asked: Iterable[str], may_be: Callable[[CallT], bool]) -> None:
        if self.is_sure(pid):
            return  # what a call's own process runs is the call's, whatever it is called
        self._unsure.discard(pid)
        for text in asked:
            those = filter(may_be, self._commands.get(known_by(text), ()))
            found = list(islice(those, 2))
            if found:
                if len(found) == 1:
                    self.owners[pid] = found[0]
                return

    def gone(self, pid: int) -> None:
        self.owners.pop(pid, None)
        self._unsure.discard(pid)
