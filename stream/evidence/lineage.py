"""Which process descends from which, and which of them tell of the tool calls.

Held are the living, and of the dead those that the living descend from and that told something.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import count

from msgspec import Struct


class Process(Struct, eq=False):
    parent: Process | None
    program: int  #: of its own from an exec on; until then it is a copy of who forked it
    is_teller: bool = False
    has_told: bool = False  #: else it is only known that it will
    has_executed: bool = False
    is_hook: bool = False  #: of the recorder's
    is_over: bool = False
    is_late: bool = False  #: started by one that had told, or by such a one


class Lineage:
    """`tellers`: the numbers of those that are known to tell."""

    def __init__(self, tellers: Collection[int]) -> None:
        self.telling: set[Process] = set()  #: who is there to tell
        self._tellers = tellers
        self._living: dict[int, Process] = {}
        self._programs = count()

    def of(self, pid: int) -> Process:
        """Of one whose fork was not seen, nobody knows where it comes from."""
        return self._living.get(pid) or self._enter(pid, None)

    def forked(self, parent: int, child: int) -> None:
        self.gone(child)  # its number may have been another's
        self._enter(child, self.of(parent))

    def executed(self, pid: int) -> Process:
        one = self.of(pid)
        one.has_executed, one.program = True, next(self._programs)
        return one

    def gone(self, pid: int) -> None:
        one = self._living.pop(pid, None)
        if one is not None:
            one.is_over = True
            self.telling.discard(one)

    def tells(self, one: Process) -> None:
        one.has_told = True
        self._expect(one)

    def tellers_of(self, one: Process) -> Iterator[Process]:
        """Itself and those that it descends from, as far as they tell of tool calls."""
        at: Process | None = one
        while at is not None:
            if at.is_teller:
                yield at
            above = at.parent
            while above is not None and above.is_over and not above.is_teller:
                above = above.parent
            at.parent = above  # a long row of the dead is walked along once
            at = above

    def acting(self, one: Process) -> Iterator[Process]:
        """Those that tell, and whose own program it is that the process runs: a hook is run by
        who started it."""
        while one.is_hook and one.parent is not None:
            one = one.parent
        return (teller for teller in self.tellers_of(one) if teller.program == one.program)

    def _enter(self, pid: int, parent: Process | None) -> Process:
        program = next(self._programs) if parent is None else parent.program
        one = self._living[pid] = Process(parent, program)
        if parent is not None:
            one.is_hook = parent.is_hook
            one.is_late = parent.is_late or parent.has_told
        if pid in self._tellers:
            self._expect(one)
        return one

    def _expect(self, one: Process) -> None:
        one.is_teller = True
        if not one.is_over:
            self.telling.add(one)
