"""Whose each kernel event is: read once, in order, with nothing held but the living processes.

A call is told of by the process that wrote that it starts, or that started the hook that wrote
it. Its own are what that process does meanwhile, and what was started by it meanwhile. What others
do is nobody's, also if they descend from it: an agent whose words go through another program,
beside it or above it, told nothing itself.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Literal

from msgspec import Struct

from stream.evidence.calls import Call, Tally, code, in_order
from stream.evidence.lineage import Lineage, Process
from stream.evidence.own import Own, Told
from stream.evidence.ownership import Ownership, Suspects
from stream.evidence.steps import KernelStep
from stream.evidence.surface import NEAR, Claim
from stream.records.kernel import EXEC, EXIT, FORK, OPEN

OTHERS = "kernel_events_of_other_processes"
OVERLAP = "kernel_events_in_overlapping_windows"
POLICY = -1
_Edge = Literal["opens", "closes", "passes"]
_ENDS: dict[_Edge, tuple[int, ...]] = {"opens": (0,), "closes": (1,), "passes": (0, 1)}
_NAMED = 16  #: calls in one name; `\+` stands for more
_MORE = r"\+"


class _Open(Struct, eq=False):
    """Calls that are open, of one who tells of them."""

    calls: dict[Call, int] = {}  #: and since which turn
    doubted: int = 0  #: the last turn in which something may have been for any of them


class _Doubt(Struct):
    """Events of which it cannot be said whose they are."""

    why: str
    groups: list[_Open | Suspects[Call]]  #: of those that they may belong to
    tally: Tally

    @property
    def calls(self) -> Iterator[Call]:
        return chain.from_iterable(group.calls for group in self.groups)


class Attribution:
    def __init__(
        self,
        calls: Iterable[Call],
        own: Own,
        told: Iterable[tuple[int, int, int]] = (),
        *,
        unseen: bool = False,
    ) -> None:
        """`told`: of lines of the command log, after how many events each was written, its number
        and by whom; and with POLICY for a number, who opened the policy log to write, or wrote
        there. `unseen`: some of what hooks told, nobody was seen to write."""
        self.vouched: set[int] = set()  #: lines that a wrapper wrote
        self.is_policy_forged = False  #: who is decided about may have written decisions
        self._told = sorted(told)
        self._unseen = unseen
        self.unbound: Tally = defaultdict(int)
        self.undecided: Tally = defaultdict(int)
        self.total = 0
        self.near: set[Claim] = set()  #: what others did with the recorder's own files
        self._calls = list(calls)
        self._names: set[str] = set()
        #: Something was done for one of them after they had ended.
        self._late: dict[tuple[Call, ...], None] = {}
        #: Who was there to tell, and had not yet, while somebody else was at work outside of every
        #: window: should all of them be hooks, it was the agent.
        self._awaited: set[Process] = set()
        self._own = own
        self._tree: Ownership[Call] = Ownership()
        self._lineage = Lineage({pid for call in self._calls for pid in call.pids if pid})
        self._tellers: dict[Call, Process | None] = {}
        #: By who told of them. Of some, nobody knows.
        self._open: dict[Process | None, _Open] = {}
        self._turns = 0
        self._doubts: dict[tuple[str | int, ...], _Doubt] = {}
        #: While the same calls are open:
        self._rows: dict[int, Tally] = {}  # by pid
        self._suspected: dict[tuple[int, ...], Suspects[Call]] = {}  # by who tells of them

    def run(self, events: Iterable[KernelStep]) -> None:
        steps = iter(events)
        lines = iter([*self._told, (sys.maxsize, 0, 0)])
        line = next(lines)
        for at, what, call in _edges(self._calls):
            while line[0] < at:
                if not self._vouch(steps, *line):
                    return
                line = next(lines)
            if not self._advance(steps, at - self.total):
                return
            self._turn(what, call)
        while line[0] < sys.maxsize:
            if not self._vouch(steps, *line):
                return
            line = next(lines)
        self._advance(steps, None)

    def _vouch(self, steps: Iterator[KernelStep], at: int, number: int, pid: int) -> bool:
        if not self._advance(steps, at - self.total):
            return False
        if number == POLICY:
            self.is_policy_forged |= self._is_decided_about(pid)
        elif self._own.is_telling(pid, "wrapper"):
            self.vouched.add(number)
        return True

    def _is_decided_about(self, pid: int) -> bool:
        """Whether it tells of calls itself, or was started after the first one, by who tells or for
        a call."""
        one = self._lineage.of(pid)
        has_told = any(teller.has_told for teller in self._lineage.acting(one))
        return has_told or one.is_late or pid in self._tree.owners

    def finish(self) -> Iterator[str]:
        """What is not certain."""
        if not all(one.is_hook for one in self._awaited):
            self._names.add(OTHERS)
        for group in self._open.values():
            for call in group.calls:
                _look_back(group, call)
        yield from self._names
        yield from (code("told_and_not_used", one, "replaced") for one in self._own.replaced)
        for calls in self._late:
            yield _code_of("kernel_events_after_call", calls)

    def _turn(self, what: _Edge, call: Call) -> None:
        start, end = call.pids
        if any(self._is_forged(call, told) for told in _ENDS[what]):
            self._names.add(code("sdk_tool_call_not_told_by_hook", call.id))
            call.is_forged = True
        if what == "passes" or (call.is_forged and call not in self._tellers):
            return
        self._turns += 1
        self._suspected.clear()
        if what == "opens":
            teller = self._tellers[call] = None if start is None else self._teller(start)
            self._open.setdefault(teller, _Open()).calls[call] = self._turns
            if call.command is not None:
                self._tree.expect(call, call.command)
        else:
            teller = self._tellers.pop(call)
            group = self._open[teller]
            _look_back(group, call)
            del group.calls[call]
            if not group.calls:
                del self._open[teller]
            if call.command is not None:
                self._tree.forget(call, call.command)
            if teller is not None and end is not None and self._teller(end) is not teller:
                self._names.add(code("sdk_tool_call_told_by_several_processes", call.id))
                call.is_doubted |= bool(call.tally)
                _add(call.tally, self.undecided)
                call.tally.clear()
            if call.is_forged:
                call.is_doubted |= bool(call.tally)
                _add(call.tally, self.undecided)
                call.tally.clear()
        if teller is None or (call.end is not None and end is None):
            self._names.add(code("sdk_tool_call_told_by_unknown_process", call.id))

    def _is_forged(self, call: Call, end: int) -> bool:
        """Whether somebody else wrote where the recorder's hook writes what it was told."""
        pid = call.pids[end]
        is_known = self._unseen if pid is None else not self._own.is_telling(pid, "hook")
        return call.hooked[end] and is_known

    def _teller(self, pid: int) -> Process:
        """Of a hook, the program that started it."""
        one = self._lineage.of(pid)
        if self._own.is_hook(pid):
            while one.parent is not None and (one.is_hook or not one.has_executed):
                one = one.parent
        self._lineage.tells(one)
        return one

    def _advance(self, steps: Iterator[KernelStep], count: int | None) -> bool:
        """With the same calls open. Whether there were that many."""
        if count is not None and count <= 0:
            return True
        rows = self._rows
        rows.clear()
        number = 0
        for pid, kind, told, times in steps:
            if told is not None or kind == EXIT:
                row = self._learn(pid, kind, told)
            else:
                known = rows.get(pid)
                row = self._row_of(pid) if known is None else known
                rows[pid] = row
            row[kind] += times
            number += times
            if number == count:
                break
        self.total += number
        self._settle()
        return number == count

    def _learn(self, pid: int, kind: int, told: Told | None) -> Tally:
        is_own = self._own.has(pid, kind, told)
        if kind == EXEC and told is not None:
            is_own = self._executes(pid, told, is_own=is_own)
        if not is_own and told is not None and NEAR in (told.path or ""):
            self._claim(kind, told)
        row = self.unbound if is_own else self._rows.get(pid) or self._row_of(pid)
        if kind == FORK and told is not None:
            self._forks(pid, told.child)
        elif kind == EXIT:
            self._forget(pid)
            self._lineage.gone(pid)
            self._tree.gone(pid)
        return row

    def _forks(self, pid: int, child: int) -> None:
        self._lineage.forked(pid, child)
        self._tree.forked(pid, child, self._suspects(pid))
        self._forget(child)

    def _forget(self, pid: int) -> None:
        if self._lineage.of(pid).is_teller:
            self._rows.clear()  # who is a stranger depends on who is there to tell
        else:
            self._rows.pop(pid, None)

    def _executes(self, pid: int, told: Told, *, is_own: bool) -> bool:
        calls = [group.calls for group in self._candidates(pid)]  # as what it was until now
        process = self._lineage.executed(pid)
        if self._tree.is_sure(pid) and self._own.is_hook(pid):
            self._own.a_call_runs(pid)
            is_own = False
        process.is_hook = self._own.is_hook(pid)
        if process.is_hook:
            self._tree.gone(pid)
        else:
            self._tree.executed(pid, told.asked, lambda call: any(call in one for one in calls))
        self._rows.pop(pid, None)
        return is_own

    def _claim(self, kind: int, told: Told) -> None:
        if kind in (EXEC, OPEN) and told.path is not None:
            self.near.add((kind, told.path, told.ways, told.result))

    # --- where an event goes --------------------------------------------------------------------

    def _candidates(self, pid: int) -> Iterator[_Open]:
        """Of calls that are open, and that the process can be at work for by itself."""
        if not self._open:
            return
        if None in self._open:
            yield self._open[None]
        for teller in self._lineage.acting(self._lineage.of(pid)):
            if teller in self._open:
                yield self._open[teller]

    def _suspects(self, pid: int) -> Suspects[Call] | None:
        """What it starts now is started for one of these."""
        groups = list(self._candidates(pid))
        if not groups:
            return None
        key = tuple(map(id, groups))
        known = self._suspected.get(key)
        if known is None:
            calls = tuple(islice(chain.from_iterable(one.calls for one in groups), _NAMED + 1))
            known = self._suspected[key] = Suspects(calls, len(calls) <= _NAMED)
        return known

    def _row_of(self, pid: int) -> Tally:
        suspects = self._tree.owners.get(pid)
        if suspects is not None:
            return self._row_of_started(suspects)
        groups = list(self._candidates(pid))
        some = list(islice(chain.from_iterable(one.calls for one in groups), 2))
        if len(some) == 1:
            return some[0].tally
        if some:
            return self._doubt(OVERLAP, groups)
        if self._open:
            return self._doubt(OTHERS, self._open.values())
        return self._row_of_nobody(pid)

    def _row_of_started(self, suspects: Suspects[Call]) -> Tally:
        owner = suspects.owner
        if owner is not None and owner in self._tellers:
            return owner.tally
        if owner is None and any(call in self._tellers for call in suspects.calls):
            return self._doubt(OVERLAP, [suspects])
        self._late[suspects.calls] = None
        for call in suspects.calls:
            call.is_doubted = True
        return self.undecided if self._open else self.unbound

    def _row_of_nobody(self, pid: int) -> Tally:
        """While there is somebody to tell what is done, and it is none of them who does it, it
        is a stranger."""
        telling = self._lineage.telling
        if telling and not any(self._lineage.tellers_of(self._lineage.of(pid))):
            if any(one.has_told for one in telling):
                self._names.add(OTHERS)
            else:
                self._awaited |= telling
        return self.unbound

    def _doubt(self, why: str, groups: Iterable[_Open | Suspects[Call]]) -> Tally:
        key: tuple[str | int, ...] = (why, *map(id, groups))
        return self._doubts.setdefault(key, _Doubt(why, [*groups], defaultdict(int))).tally

    def _settle(self) -> None:
        for doubt in self._doubts.values():
            if doubt.tally:
                _add(doubt.tally, self.undecided)
                self._names.add(_code_of(doubt.why, doubt.calls))
                for group in doubt.groups:
                    if isinstance(group, _Open):
                        group.doubted = self._turns
                    else:
                        for call in group.calls:
                            call.is_doubted = True
        self._doubts.clear()


def _code_of(why: str, calls: Iterable[Call]) -> str:
    ids = [call.id for call in islice(calls, _NAMED + 1)]
    name = code(why, *sorted(ids[:_NAMED]))
    return f"{name},{_MORE}" if len(ids) > _NAMED else name


def _look_back(group: _Open, call: Call) -> None:
    call.is_doubted |= group.doubted >= group.calls[call]


def _add(some: Tally, to: Tally) -> None:
    for kind, count in some.items():
        to[kind] += count


def _edges(calls: Iterable[Call]) -> list[tuple[int, _Edge, Call]]:
    """In order. At the same number, no event lies between: which comes first is all one."""
    edges: list[tuple[int, _Edge, Call]] = []
    for call in in_order(calls):
        begin = call.end if call.begin is None else call.begin
        if begin is None:
            continue
        if call.end is not None and call.end <= begin:
            edges.append((begin, "passes", call))
            continue
        edges.append((begin, "opens", call))
        if call.end is not None:
            edges.append((call.end, "closes", call))
    return sorted(edges, key=lambda edge: edge[0])
