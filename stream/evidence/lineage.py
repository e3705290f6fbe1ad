"""Which process descends from which, and which of them tell of the tool calls.

Held are the living, and of the dead those that the living descend from and that told something.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec import Struct


class Process(Struct, eq=False):
    parent: Process | None
    is_teller: bool = False
    has_executed: bool = False  #: else it is a copy of who forked it
    is_hook: bool = False  #: of the recorder's
    is_over: bool = False


class Lineage:
    """`tellers`: the numbers of those that are known to tell."""

    def __init__(self, tellers: Collection[int]) -> None:
        self.telling: set[Process] = set()  #: who is there to tell
        self._tellers = tellers
        self._living: dict[int, Process] = {}

    def of(self, pid: int) -> Process:
        """Of one whose fork was not seen, nobody knows where it comes from."""
        return self._living.get(pid) or self._enter(pid, None)

    def forked(self, parent: int, child: int) -> None:
        self.gone(child)  # its number may have been another's
        self._enter(child, self.of(parent))

    def gone(self, pid: int) -> None:
        one = self._living.pop(pid, None)
        if one is not None:
            one.is_over = True
            self.telling.discard(one)

    def tells(self, one: Process) -> None:
        one.is_teller = True
        if not one.is_over:
            self.telling.add(one)

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

    def _enter(self, pid: int, parent: Process | None) -> Process:
        one = self._living[pid] = Process(parent)
        if pid in self._tellers:
            self.tells(one)
        return one
