"""Which kernel events belong to which tool call, and everything about that which is not certain.

An event belongs to a call if it lies in that call's window and in no other's, or if the process
that did it was started for that call. It depends on nothing but the layers, and holds nothing of
the kernel layer but the living processes: who has the layers comes to the same report.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Literal

from msgspec import Struct

from stream.errors import visible
from stream.evidence.ownership import Ownership
from stream.evidence.policy import DENIAL
from stream.evidence.steps import KernelStep
from stream.records.kernel import EXEC, EXIT, FORK, kind_of
from stream.records.runner import (
    Binding,
    CorrelationReport,
    Marker,
    PolicyEvent,
    SdkEvent,
    State,
    Window,
)

OUTSIDE = "kernel_events_outside_every_window"  #: the one ambiguity that a clean report may have
_NAMED = 16  #: calls in the name of one overlap; `\+` stands for more
_MORE = r"\+"

Tally = defaultdict[int, int]  #: events by event_type


class Correlation(Struct, frozen=True):
    """Every kernel event is counted once: for a call, as unbound, or as undecided."""

    report: CorrelationReport
    calls: dict[str, dict[str, int]]  #: by call: events of each kind
    unbound: dict[str, int]  #: outside of every window
    undecided: dict[str, int]  #: inside of windows, and it cannot be said whose


def correlate(
    run_id: str,
    *,
    markers: Sequence[Marker],
    sdk: Sequence[SdkEvent],
    policy: Sequence[PolicyEvent],
    events: Iterable[KernelStep],
    gaps: Sequence[tuple[int, int]],
    has_kernel: bool,
) -> Correlation:
    """`events` is read once. A gap is the numbers between which the lost events would stand."""
    calls = _calls_of(sdk, policy, markers)
    named = set(_named_of_calls(calls, policy))
    attribution = _Attribution()
    attribution.run(calls.values(), events)
    named |= set(attribution.named())
    named |= set(_named_of_evidence(calls, attribution, policy, has_kernel=has_kernel))
    named |= {code("kernel_events_lost_in_window", c.id) for c in _tainted(calls.values(), gaps)}
    if any(e.event_type in _TOOL_EVENTS and e.tool_call_id is None for e in sdk):
        named.add("sdk_event_without_tool_call_id")
    if not (attribution.total or sdk or policy):
        named.add("nothing_observed")
    bindings = [_binding(call) for call in _in_order(calls.values())]
    report = CorrelationReport(
        run_id=run_id,
        status=_status(bindings, named, has_kernel=has_kernel),
        bindings=bindings,
        ambiguities=sorted(named),
    )
    return Correlation(
        report=report,
        calls={call.id: _by_kind(call.tally) for call in _in_order(calls.values())},
        unbound=_by_kind(attribution.unbound),
        undecided=_by_kind(attribution.undecided),
    )


def code(name: str, *ids: str) -> str:
    r"""One line, whatever the ids hold: a backslash is doubled, a comma is `\x2c`."""
    return f"{name}:{','.join(map(_escaped, ids))}" if ids else name


def _escaped(text: str) -> str:
    return visible(text.replace("\\", "\\\\").replace(",", "\\x2c"))


def _status(bindings: Sequence[Binding], named: set[str], *, has_kernel: bool) -> State:
    if not has_kernel:
        return "failed"
    return "clean" if bindings and not named - {OUTSIDE} else "partial"


# --- calls --------------------------------------------------------------------------------------

_TOOL_EVENTS = ("tool_call_started", "tool_call_completed")


class _Call(Struct, eq=False):
    """All that is said of one id."""

    id: str
    order: tuple[int, int]  #: by its first marker, else by where it is met first
    started: int = 0
    completed: int = 0
    begin: int | None = None  #: half-open, in numbers of kernel events
    end: int | None = None
    command: str | None = None
    tools: set[str] = set()
    decisions: list[str] = []
    tally: Tally = defaultdict(int)

    @property
    def is_told(self) -> bool:
        """By the agent; else a decision alone is known."""
        return bool(self.started or self.completed)

    @property
    def never_ends(self) -> bool:
        """Its end was told before its start, if at all."""
        return self.begin is not None and self.end is None

    @property
    def count(self) -> int:
        return sum(self.tally.values())


def _calls_of(
    sdk: Sequence[SdkEvent], policy: Sequence[PolicyEvent], markers: Sequence[Marker]
) -> dict[str, _Call]:
    calls: dict[str, _Call] = {}
    for event in sdk:
        if event.event_type in _TOOL_EVENTS and event.tool_call_id is not None:
            call = _met(calls, event.tool_call_id, event.tool)
            call.started += event.event_type == "tool_call_started"
            call.completed += event.event_type == "tool_call_completed"
    for decision in policy:
        if decision.tool_call_id is not None:
            _met(calls, decision.tool_call_id, decision.tool).decisions.append(decision.decision)
    for number, marker in enumerate(markers):
        if marker.tool_call_id in calls and marker.name in _TOOL_EVENTS:
            _mark(calls[marker.tool_call_id], marker, number)
    return calls


def _met(calls: dict[str, _Call], name: str, tool: str | None) -> _Call:
    call = calls.get(name)
    if call is None:
        call = calls[name] = _Call(name, (1, len(calls)))
        call.tools, call.decisions, call.tally = set(), [], defaultdict(int)
    if tool is not None:
        call.tools.add(tool)
    return call


def _mark(call: _Call, marker: Marker, number: int) -> None:
    """The first start, and the first end after it: what comes again is a duplicate."""
    call.order = min(call.order, (0, number))
    if marker.name == "tool_call_started" and call.begin is None:
        call.begin, call.end, call.command = marker.at, None, marker.command
    elif marker.name == "tool_call_completed" and call.end is None:
        call.end = marker.at


def _in_order(calls: Iterable[_Call]) -> list[_Call]:
    return sorted(calls, key=lambda call: call.order)


def _binding(call: _Call) -> Binding:
    """Where an end is not known, nothing narrower than the run's own can be named."""
    decisions = set(call.decisions)
    return Binding(
        tool_call_id=call.id,
        policy_decision=decisions.pop() if len(decisions) == 1 else None,
        kernel_event_count=call.count,
        window=Window(
            start="run_started" if call.begin is None else f"tool_call_started:{call.id}",
            end="run_finished" if call.end is None else f"tool_call_completed:{call.id}",
        ),
    )


def _by_kind(tally: Tally) -> dict[str, int]:
    return {kind_of(number): tally[number] for number in sorted(tally)}


# --- what is not certain ------------------------------------------------------------------------


def _named_of_calls(calls: dict[str, _Call], policy: Sequence[PolicyEvent]) -> Iterator[str]:
    """What the agent and the decisions say, held against each other."""
    # A list of refusals names no call that was let through: its silence says nothing.
    is_complete = any(event.source_event_type != DENIAL for event in policy)
    if any(event.tool_call_id is None for event in policy):
        yield "policy_event_without_tool_call_id"
    for call in calls.values():
        if call.started > 1 or call.completed > 1:
            yield code("sdk_tool_call_duplicate", call.id)
        if call.started and (not call.completed or call.never_ends):
            yield code("sdk_tool_call_started_without_completed", call.id)
        if call.completed and not call.started:
            yield code("sdk_tool_call_completed_without_started", call.id)
        if len(call.tools) > 1:
            yield code("tool_name_mismatch", call.id)
        if len(set(call.decisions)) > 1:
            yield code("policy_decision_conflict", call.id)
        if not call.is_told:
            yield code("policy_decision_without_sdk_tool_call", call.id)
        elif is_complete and not call.decisions:
            yield code("sdk_tool_call_without_policy_binding", call.id)


def _named_of_evidence(
    calls: dict[str, _Call],
    attribution: _Attribution,
    policy: Sequence[PolicyEvent],
    *,
    has_kernel: bool,
) -> Iterator[str]:
    if not has_kernel:
        yield "kernel_layer_absent"
    if policy and not attribution.total:
        yield "policy_events_without_kernel_events"
    for call in calls.values():
        if has_kernel and call.is_told and not call.count:
            yield code("sdk_tool_call_without_kernel_events", call.id)


def _tainted(calls: Iterable[_Call], gaps: Sequence[tuple[int, int]]) -> Iterator[_Call]:
    """Those in whose windows something may be missing. A loss at a window's edge may be in it."""
    firsts: list[int] = []
    lasts: list[int] = []
    for first, last in sorted(gaps):
        firsts.append(first)
        lasts.append(max(last, lasts[-1] if lasts else last))
    for call in calls:
        if call.begin is None:
            continue
        before_end = len(firsts) if call.end is None else bisect_right(firsts, call.end)
        if before_end and lasts[before_end - 1] >= call.begin:
            yield call


# --- whose event --------------------------------------------------------------------------------


class _Attribution:
    def __init__(self) -> None:
        self.unbound: Tally = defaultdict(int)
        self.undecided: Tally = defaultdict(int)
        self.total = 0
        self._overlaps: set[str] = set()
        self._late: dict[_Call, None] = {}  # something was done for them after their end
        self._tree: Ownership[_Call] = Ownership()
        self._open: dict[_Call, None] = {}
        # Where an event goes: by the call that its process was started for, None for the agent.
        self._rows: dict[_Call | None, Tally] = {None: self.unbound}

    def run(self, calls: Iterable[_Call], events: Iterable[KernelStep]) -> None:
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

    def _turn(self, what: Literal["opens", "closes"], call: _Call) -> None:
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
        for number, (pid, kind, detail) in enumerate(islice(steps, count), 1):  # noqa: B007
            if detail is not None:
                self._learn(pid, kind, detail)
            row = rows.get(owners.get(pid))
            if row is None:
                row = self._after_its_call(pid)
            row[kind] += 1
            if kind == EXIT:
                self._tree.gone(pid)
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


def _edges(calls: Iterable[_Call]) -> list[tuple[int, Literal["opens", "closes"], _Call]]:
    """In order. At the same number, no event lies between: which comes first is all one."""
    edges: list[tuple[int, Literal["opens", "closes"], _Call]] = []
    for call in _in_order(calls):
        if call.begin is None or (call.end is not None and call.end <= call.begin):
            continue
        edges.append((call.begin, "opens", call))
        if call.end is not None:
            edges.append((call.end, "closes", call))
    return sorted(edges, key=lambda edge: edge[0])
