"""Whose each kernel event is: read once, in order, with nothing held but the living processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Literal

from stream.evidence.calls import Call, Tally, code, in_order
from stream.evidence.ownership import Ownership
from stream.evidence.steps import KernelStep
from stream.records.kernel import EXEC, EXIT, FORK
from stream.records.runner import HOOK_PROGRAM

OUTSIDE = "kernel_events_outside_every_window"  #: the one ambiguity that a clean report may have
_NAMED = 16  #: calls in the name of one overlap; `\+` stands for more
_MORE = r"\+"


class Attribution:
    def __init__(self, run_id: str) -> None:
        self.unbound: Tally = defaultdict(int)
        self.undecided: Tally = defaultdict(int)
        self.total = 0
        self._overlaps: set[str] = set()
        self._late: dict[Call, None] = {}  # something was done for them after their end
        recorder = Call("", (0, 0))
        self._tree = Ownership(f"/{run_id}/{HOOK_PROGRAM}", recorder)
        self._open: dict[Call, None] = {}
        # Where an event goes: by the call that its process was started for, None for the agent.
        self._rows: dict[Call | None, Tally] = {None: self.unbound, recorder: self.unbound}

    def run(self, calls: Iterable[Call], events: Iterable[KernelStep]) -> None:
        steps = iter(events)
        for at, what, call in _edges(calls):
            if not self._advance(steps, at - self.total):
                return
            self._turn(what, call)
        self._advance(steps, None)

    def named(self) -> Iterator[str]:
        yield from self._overlaps
        yield from (code("kernel_events_after_call", call.id) for call in self._late)
        if self.unbound:
            yield OUTSIDE

    def _turn(self, what: Literal["opens", "closes"], call: Call) -> None:
        if what == "opens":
            self._open[call] = None
            self._rows[call] = call.tally
            if call.command is not None:
                self._tree.expect(call, call.command)
        else:
            del self._open[call], self._rows[call]
            self._tree.forget(call)

    def _advance(self, steps: Iterator[KernelStep], count: int | None) -> bool:
        """With the same calls open. Whether there were that many."""
        if count is not None and count <= 0:
            return True
        own, doubtful = self._of_the_agent()
        rows, owners = self._rows, self._tree.owners
        rows[None] = own
        number = 0
        for pid, kind, detail, times in steps:
            if detail is not None:
                self._learn(pid, kind, detail)
            row = rows.get(owners.get(pid))
            if row is None:
                row = self._after_its_call(pid)
            row[kind] += times
            if kind == EXIT:
                self._tree.gone(pid)
            number += times
            if number == count:
                break
        self.total += number
        if doubtful and own:
            self._overlap(own)
        return number == count

    def _of_the_agent(self) -> tuple[Tally, bool]:
        """Where that goes which no process tree decides, and whether it is decided at all."""
        if len(self._open) == 1:
            return next(iter(self._open)).tally, False
        return (defaultdict(int), True) if self._open else (self.unbound, False)

    def _learn(self, pid: int, kind: int, detail: int | list[str]) -> None:
        if kind == FORK and isinstance(detail, int):
            self._tree.forked(pid, detail, self._open)
        elif kind == EXEC and isinstance(detail, list):
            self._tree.executed(pid, detail)

    def _after_its_call(self, pid: int) -> Tally:
        self._late[self._tree.owners[pid]] = None
        return self.undecided if self._open else self.unbound

    def _overlap(self, own: Tally) -> None:
        for kind, count in own.items():
            self.undecided[kind] += count
        some = sorted(call.id for call in islice(self._open, _NAMED))
        name = code("kernel_events_in_overlapping_windows", *some)
        self._overlaps.add(f"{name},{_MORE}" if len(self._open) > _NAMED else name)


def _edges(calls: Iterable[Call]) -> list[tuple[int, Literal["opens", "closes"], Call]]:
    """In order. At the same number, no event lies between: which comes first is all one."""
    edges: list[tuple[int, Literal["opens", "closes"], Call]] = []
    for call in in_order(calls):
        if call.begin is None or (call.end is not None and call.end <= call.begin):
            continue
        edges.append((call.begin, "opens", call))
        if call.end is not None:
            edges.append((call.end, "closes", call))
    return sorted(edges, key=lambda edge: edge[0])
