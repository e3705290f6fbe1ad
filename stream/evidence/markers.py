"""All that is said of each tool call: by the agent, by who decides, and by the markers.

When an agent said something, and where in the kernel layer that is.

The agent's own clock is never asked. A line of its standard output was said when the kernel saw
it written, where all of its writes were seen; else when the recorder read it.

What was told of a run's calls or decisions, by whomever, and is not in its layers."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, pairwise
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct, field

from stream.errors import visible
from stream.records.artifacts import Marker, PolicyEvent, SdkEvent

TOOL_EVENTS = ("tool_call_started", "tool_call_completed")
HOOK_SOURCE = "claude-code-hooks"  #: the source of what the recorder's hook was told
EventCounts: TypeAlias = defaultdict[int, int]  #: events by event_type


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
    tally: EventCounts = defaultdict(int)
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
            by_hook = at is not None and 0 <= at < len(sdk) and sdk[at].source == HOOK_SOURCE
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


MarkerName = Literal["tool_call_started", "tool_call_completed"]
MarkerClock = Literal["kernel", "arrival"]
COMMANDS = "commands"  #: the channel of the wrappers
POLICY, HOOKS = "policy", "hooks"
UNSEEN = "unseen"  #: why what came on a channel is not used: nobody was seen to write it
_MOST_WRITERS = 10_000  #: of the policy log
_KERNEL: MarkerClock = "kernel"
_ARRIVAL: MarkerClock = "arrival"


class CallBoundary(Struct, frozen=True):
    """One end of a tool call, as it was told."""

    sdk_seq: int  #: of the SDK event that it belongs to
    name: MarkerName
    tool_call_id: str | None
    channel: str  #: where it was told
    offset_end: int  #: so many bytes came there, with its line
    arrived_ns: int
    command: str | None = None


def _numbers() -> array[int]:
    return array("q")


class Writes(Struct, frozen=True):
    """All writes to a channel, in their order: an agent may write each line by itself."""

    sizes: array[int] = field(default_factory=_numbers)  #: so many bytes by then
    times: array[int] = field(default_factory=_numbers)  #: ns
    pids: array[int] = field(default_factory=_numbers)

    @property
    def size(self) -> int:
        return self.sizes[-1] if self.sizes else 0

    def add(self, size: int, ts: int, pid: int) -> None:
        self.sizes.append(self.size + size)
        self.times.append(ts)
        self.pids.append(pid)


class ChannelWrites(Struct, frozen=True):
    """A channel, as the kernel saw it written and as the recorder received it."""

    writes: Writes
    received: int

    @property
    def is_whole(self) -> bool:
        """Else some write was not seen, and all that come after it would be taken for others."""
        orders = (self.writes.sizes, self.writes.times)
        in_order = all(one <= other for order in orders for one, other in pairwise(order))
        return in_order and bool(self.writes.sizes) and self.writes.size == self.received


class ChannelClock:
    """Of the channels that the kernel saw written to their end."""

    def __init__(self, written: Mapping[str, ChannelWrites]) -> None:
        self._whole = {channel: one for channel, one in written.items() if one.is_whole}

    def said(self, channel: str, offset_end: int) -> tuple[int, int] | None:
        """When, and by whom."""
        if channel not in self._whole:
            return None
        writes = self._whole[channel].writes
        number = bisect_left(writes.sizes, offset_end)
        if number >= len(writes.sizes):
            return None
        return writes.times[number], writes.pids[number]


def build_markers(
    run_id: str,
    moments: Sequence[CallBoundary],
    *,
    written: Mapping[str, ChannelWrites],
    times: Callable[[int], int],
    total: int,
    home: str | None = None,
    helpers: Sequence[str] = (),
    unused: Mapping[str, int] | None = None,
    commands: Sequence[Sequence[int]] = (),
    decided: Iterable[tuple[int, int]] = (),
) -> list[Marker]:
    """The markers of a run with `total` kernel events.

    `written`: of each channel that the kernel saw written. `times`: how many kernel events had
    happened by then. `home`: the folder of the recorder's own programs, and `helpers`: what
    these run. `unused`: what was told and could not be used. `commands`: of each line of the
    command log, how many bytes had come with each of its pieces. `decided`: which events came to
    the policy log by its name, and whose they are; who wrote there is in `written`.
    """
    kernels = ChannelClock(written)
    begun: dict[str | None, int] = {}
    began = sys.maxsize
    not_used = Counter(unused or {})
    placed: list[Marker] = []
    for moment in moments:
        ts, clock, pid = moment.arrived_ns, _ARRIVAL, None
        if (said := kernels.said(moment.channel, moment.offset_end)) is not None:
            (ts, pid), clock = said, _KERNEL
        at = min(max(times(ts), 0), total)
        if moment.name == "tool_call_started":
            begun.setdefault(moment.tool_call_id, at)
            began = min(began, ts)
        elif moment.tool_call_id is not None:  # two clocks may disagree by a little
            at = max(at, begun.get(moment.tool_call_id, 0))
        placed.append(_marker(run_id, at, clock, moment, pid))
    for number, ends in enumerate(commands):
        told = [kernels.said(COMMANDS, end) for end in ends]
        known = [one for one in told if one is not None]
        if known and len(known) == len(told) and len({pid for _, pid in known}) == 1:
            ts, pid = known[-1]
            at = min(max(times(ts), 0), total)
            placed.append(
                Marker(
                    run_id=run_id,
                    seq=0,
                    name="wrapper_told",
                    at=at,
                    clock=_KERNEL,
                    command_seq=number,
                    pid=pid,
                )
            )
    if begun:  # before anything was told, nobody was decided about
        first = min(begun.values())
        writes = written[POLICY].writes if POLICY in written else Writes()
        writers: set[tuple[int, int]] = set()
        for one in chain(
            (
                (min(times(ts), total), pid)
                for ts, pid in zip(writes.times, writes.pids, strict=True)
                if ts > began
            ),
            (one for one in decided if one[0] >= first),
        ):
            if len(writers) < _MOST_WRITERS:
                writers.add(one)
            elif one not in writers:
                not_used[f"{POLICY}:left_out"] += 1
        placed += [
            Marker(run_id=run_id, seq=0, name="policy_opened", at=at, clock=_KERNEL, pid=pid)
            for at, pid in sorted(writers)
        ]
    placed.sort(key=lambda one: one.at)  # stable: what was told first comes first
    return [
        Marker(
            run_id=run_id,
            seq=0,
            name="run_started",
            at=0,
            clock="kernel",
            home=home,
            helpers=list(helpers),
        ),
        *(msgspec.structs.replace(one, seq=seq) for seq, one in enumerate(placed, 1)),
        Marker(
            run_id=run_id,
            seq=len(placed) + 1,
            name="run_finished",
            at=total,
            clock="kernel",
            unused=dict(sorted(not_used.items())),
        ),
    ]


def conflicting_repeats(
    moments: Sequence[CallBoundary],
    again: Sequence[CallBoundary],
    written: Mapping[str, ChannelWrites],
) -> Counter[str]:
    """By channel: what one told again of a call, and cannot be the same. Somebody told its end
    before another told its beginning. In what order the recorder read it says nothing."""
    if not again:
        return Counter()
    kernels = ChannelClock(written)
    begun: dict[str | None, dict[str, int]] = {}  # of each call, by channel
    ended: dict[str | None, dict[str, int]] = {}
    for moment in (*moments, *again):
        if (said := kernels.said(moment.channel, moment.offset_end)) is not None:
            told = begun if moment.name == "tool_call_started" else ended
            told.setdefault(moment.tool_call_id, {}).setdefault(moment.channel, said[0])
    return Counter(
        moment.channel
        for moment in again
        if (starts := begun.get(moment.tool_call_id))
        and (ends := ended.get(moment.tool_call_id))
        and max(starts.values()) > min(ends.values())
    )


def _marker(
    run_id: str, at: int, clock: MarkerClock, moment: CallBoundary, pid: int | None
) -> Marker:
    return Marker(
        run_id=run_id,
        seq=0,
        name=moment.name,
        at=at,
        clock=clock,
        tool_call_id=moment.tool_call_id,
        sdk_seq=moment.sdk_seq,
        command=moment.command,
        pid=pid,
    )


class DroppedInput(Struct, frozen=True):
    """What was told somewhere, and could not be used."""

    channel: str
    why: str
    count: int
    sentence: str
