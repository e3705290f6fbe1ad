"""Which call each process was started for, as forks and execs are met in order.

A process that the agent forks while one call alone is open is that call's, unless it turns out
to run the command of another; so is one that runs an open call's command; so are their children,
also when the call is long over. What is left is the agent itself; and the recorder's own hooks,
which the agent starts, and which do nothing for a call.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection
from typing import Generic, TypeVar

from stream.evidence.commands import Command, asked_for, command_of

CallT = TypeVar("CallT")


class Ownership(Generic[CallT]):
    def __init__(self, hook: str, recorder: CallT) -> None:
        """`hook`: how the path of a hook ends. `recorder`: whose they are."""
        self._hook, self._recorder = hook, recorder
        self.owners: dict[int, CallT] = {}  #: by pid; the agent's own are not in it
        self._unsure: set[int] = set()  # forked by the agent itself, and nothing executed yet
        self._commands: dict[CallT, Command] = {}

    def expect(self, call: CallT, command: str) -> None:
        """While the call is open, who runs this is its own."""
        known = command_of(command)
        if known is not None:
            self._commands[call] = known

    def forget(self, call: CallT) -> None:
        self._commands.pop(call, None)

    def forked(self, parent: int, child: int, open_calls: Collection[CallT]) -> None:
        self.gone(child)  # its number may have been another's
        owner = self.owners.get(parent)
        if owner is not None:
            self.owners[child] = owner
            if parent in self._unsure:
                self._unsure.add(child)
        elif len(open_calls) == 1:
            self.owners[child] = next(iter(open_calls))
            self._unsure.add(child)

    def executed(self, pid: int, argv: list[str]) -> None:
        if pid in self.owners and pid not in self._unsure:
            return  # what a call's own process runs is the call's, whatever it is called
        self._unsure.discard(pid)
        if _runs(argv, self._hook):
            self.owners[pid] = self._recorder
            return
        found = asked_for(argv, self._commands.values()) if self._commands else None
        for call, command in self._commands.items():
            if command is found:
                self.owners[pid] = call

    def gone(self, pid: int) -> None:
        self.owners.pop(pid, None)
        self._unsure.discard(pid)


def _runs(argv: list[str], hook: str) -> bool:
    """It itself, or the shell that is to run it: nothing else, that would hide behind its name."""
    if len(argv) == 1:
        return argv[0].endswith(hook)
    if len(argv) != 3 or argv[1] != "-c" or not argv[2].rstrip("'").endswith(hook):
        return False
    try:
        words = shlex.split(argv[2])
    except ValueError:
        return False
    return len(words) == 1 and shlex.quote(words[0]) == argv[2]
