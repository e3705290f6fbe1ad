"""All that is said of each tool call: by the agent, by who decides, and by the markers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from msgspec import Struct

from stream.errors import visible
from stream.records.runner import Marker, PolicyEvent, SdkEvent

TOOL_EVENTS = ("tool_call_started", "tool_call_completed")
HOOKS = "claude-code-hooks"  #: the source of what the recorder's hook was told
Tally: TypeAlias = defaultdict[int, int]  #: events by event_type


class Call(Struct, eq=False):
    """All that is said of one id."""

    id: str
    order: tuple[int, int]  #: by its first marker, else by where it is met first
    started: int = 0
    completed: int = 0
    begin: int | None = None  #: half-open, in numbers of kernel events
    end: int | None = None
    command: str | None = None
    pids: tuple[int | None, int | None] = (None, None)  #: who told its start, and its end
    hooked: tuple[bool, bool] = (False, False)  #: the same: as what the recorder's hook was told
    is_forged: bool = False  #: and somebody else wrote that
    tools: set[str] = set()
    decisions: list[PolicyEvent] = []
    tally: Tally = defaultdict(int)
    is_doubted: bool = False  #: something was done of which nobody knows whether it was for it

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


def calls_of(
    sdk: Sequence[SdkEvent], policy: Sequence[PolicyEvent], markers: Sequence[Marker]
) -> dict[str, Call]:
    calls: dict[str, Call] = {}
    for event in sdk:
        if event.event_type in TOOL_EVENTS and event.tool_call_id is not None:
            call = _met(calls, event.tool_call_id, event.tool)
            call.started += event.event_type == "tool_call_started"
            call.completed += event.event_type == "tool_call_completed"
    for decision in policy:
        if decision.tool_call_id is not None:
            _met(calls, decision.tool_call_id, decision.tool).decisions.append(decision)
    for number, marker in enumerate(markers):
        if marker.tool_call_id in calls and marker.name in TOOL_EVENTS:
            at = marker.sdk_seq
            by_hook = at is not None and 0 <= at < len(sdk) and sdk[at].source == HOOKS
            _mark(calls[marker.tool_call_id], marker, number, by_hook=by_hook)
    return calls


def calls_started(sdk: Iterable[SdkEvent]) -> int:
    return sum(event.event_type == "tool_call_started" for event in sdk)


def _met(calls: dict[str, Call], name: str, tool: str | None) -> Call:
    call = calls.get(name)
    if call is None:
        call = calls[name] = Call(name, (1, len(calls)))
        call.tools, call.decisions, call.tally = set(), [], defaultdict(int)
    if tool is not None:
        call.tools.add(tool)
    return call


def _mark(call: Call, marker: Marker, number: int, *, by_hook: bool) -> None:
    """The first start, and the first end after it: what comes again is a duplicate."""
    call.order = min(call.order, (0, number))
    if marker.name == "tool_call_started" and call.begin is None:
        call.begin, call.end, call.command = marker.at, None, marker.command
        call.pids, call.hooked = (marker.pid, None), (by_hook, False)
    elif marker.name == "tool_call_completed" and call.end is None:
        call.end = marker.at
        call.pids, call.hooked = (call.pids[0], marker.pid), (call.hooked[0], by_hook)


def in_order(calls: Iterable[Call]) -> list[Call]:
    return sorted(calls, key=lambda call: call.order)


def code(name: str, *ids: str) -> str:
    r"""One line, whatever the ids hold: a backslash is doubled, a comma is `\x2c`."""
    return f"{name}:{','.join(map(_escaped, ids))}" if ids else name


def _escaped(text: str) -> str:
    return visible(text.replace("\\", "\\\\").replace(",", "\\x2c"))
