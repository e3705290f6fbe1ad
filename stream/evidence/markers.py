"""The markers of a run: where in the kernel layer each tool call starts and ends.

The agent's own clock is never used. A line was reported when the kernel saw it written, where all
writes to its channel were seen; else when the recorder received it. `calls_of_run` puts together
what the agent, the decisions and the markers state about each call.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct, field

from stream.errors import printable
from stream.records.artifacts import Marker, PolicyEvent, SdkEvent
from stream.records.channels import COMMANDS, POLICY

TOOL_EVENTS = ("tool_call_started", "tool_call_completed")
HOOK_SOURCE = "claude-code-hooks"  #: the source of what was reported to the recorder's hook
_MOST_WRITERS = 10_000  #: of the policy log
MarkerName = Literal["tool_call_started", "tool_call_completed"]
EventCounts: TypeAlias = defaultdict[int, int]  #: events by event_type


class CallBoundary(Struct, frozen=True):
    """The start or the end of a tool call, as it was reported."""

    sdk_seq: int  #: of the SDK event that it belongs to
    name: MarkerName
    tool_call_id: str | None
    channel: str  #: where it was reported
    offset_end: int  #: so many bytes came there, with its line
    arrived_ns: int
    command: str | None = None


def _empty_numbers() -> array[int]:
    return array("q")


class Writes(Struct, frozen=True):
    """All writes to a channel, in their order: an agent may write each line by itself."""

    sizes: array[int] = field(default_factory=_empty_numbers)  #: so many bytes by then
    times: array[int] = field(default_factory=_empty_numbers)  #: ns
    pids: array[int] = field(default_factory=_empty_numbers)

    @property
    def size(self) -> int:
        """Return how many bytes were written."""
        return self.sizes[-1] if self.sizes else 0

    def add_write(self, size: int, ts: int, pid: int) -> None:
        """Append a write of so many bytes."""
        self.sizes.append(self.size + size)
        self.times.append(ts)
        self.pids.append(pid)


class ChannelWrites(Struct, frozen=True):
    """A channel, as the kernel saw it written and as the recorder received it."""

    writes: Writes
    received: int

    @property
    def is_whole(self) -> bool:
        """Return whether every write was seen; else all that follow would be taken for others."""
        orders = (self.writes.sizes, self.writes.times)
        in_order = all(one <= other for order in orders for one, other in pairwise(order))
        return in_order and bool(self.writes.sizes) and self.writes.size == self.received


class ChannelClock:
    """The time and writer of each byte of the channels that the kernel saw written to the end."""

    def __init__(self, written: Mapping[str, ChannelWrites]) -> None:
        self._whole = {channel: one for channel, one in written.items() if one.is_whole}

    def written_at(self, channel: str, offset_end: int) -> tuple[int, int] | None:
        """Return when, and by which process, a channel was written up to an offset."""
        if channel not in self._whole:
            return None
        writes = self._whole[channel].writes
        number = bisect_left(writes.sizes, offset_end)
        if number >= len(writes.sizes):
            return None
        return writes.times[number], writes.pids[number]


# --- building the markers -------------------------------------------------------------------------


def build_markers(
    run_id: str,
    boundaries: Sequence[CallBoundary],
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
    """Return the markers of a run with `total` kernel events.

    `written`: each channel that the kernel saw written. `times`: how many kernel events had
    happened by then. `home`: the folder of the recorder's own programs, and `helpers`: what these
    run. `unused`: what was reported and could not be used. `commands`: for each line of the
    command log, how many bytes had come with each of its pieces. `decided`: which events reached
    the policy log by its name, and their processes; who wrote there is in `written`.
    """
    builder = _MarkerBuilder(run_id, ChannelClock(written), times, total)
    not_used = Counter(unused or {})
    markers = [builder.marker_of_boundary(boundary) for boundary in boundaries]
    markers += builder.markers_of_commands(commands)
    if builder.starts:  # before any call was reported, no decision was made about one
        writes = written[POLICY].writes if POLICY in written else Writes()
        writers, left_out = builder.writers_of_policy_log(writes, decided)
        markers += (builder.marker("policy_opened", at, pid=pid) for at, pid in sorted(writers))
        if left_out:
            not_used[f"{POLICY}:left_out"] += left_out
    markers.sort(key=lambda one: one.at)  # stable: what was reported first comes first
    markers.insert(0, builder.marker("run_started", 0, home=home, helpers=list(helpers)))
    markers.append(builder.marker("run_finished", total, unused=dict(sorted(not_used.items()))))
    return [msgspec.structs.replace(one, seq=seq) for seq, one in enumerate(markers)]


class _MarkerBuilder:
    def __init__(
        self, run_id: str, clock: ChannelClock, times: Callable[[int], int], total: int
    ) -> None:
        self._run_id = run_id
        self._clock = clock
        self._times = times
        self._total = total
        self.starts: dict[str | None, int] = {}  #: of each call: after how many events
        self._first_start_ns = sys.maxsize

    def marker(self, name: Any, at: int, **fields: Any) -> Marker:
        """Make a marker, which gets its number when all are in order."""
        fields = {"clock": "kernel", **fields}
        return Marker(run_id=self._run_id, seq=0, name=name, at=at, **fields)

    def marker_of_boundary(self, boundary: CallBoundary) -> Marker:
        """Make the marker of the beginning or end of a tool call."""
        call, clock, pid, ts = boundary.tool_call_id, "arrival", None, boundary.arrived_ns
        if seen := self._clock.written_at(boundary.channel, boundary.offset_end):
            (ts, pid), clock = seen, "kernel"
        at = self._events_until(ts)
        if boundary.name == "tool_call_started":
            self.starts.setdefault(call, at)
            self._first_start_ns = min(self._first_start_ns, ts)
        elif call is not None:  # two clocks may disagree by a little
            at = max(at, self.starts.get(call, 0))
        seq, command = boundary.sdk_seq, boundary.command
        return self.marker(
            boundary.name, at, clock=clock, tool_call_id=call, sdk_seq=seq, command=command, pid=pid
        )

    def markers_of_commands(self, commands: Sequence[Sequence[int]]) -> Iterator[Marker]:
        """Yield a marker for each line of the command log that one process was seen to write."""
        for number, ends in enumerate(commands):
            seen = [self._clock.written_at(COMMANDS, end) for end in ends]
            whole = [one for one in seen if one is not None]
            if whole and len(whole) == len(seen) and len({pid for _, pid in whole}) == 1:
                ts, pid = whole[-1]
                at = self._events_until(ts)
                yield self.marker("wrapper_told", at, command_seq=number, pid=pid)

    def writers_of_policy_log(
        self, writes: Writes, decided: Iterable[tuple[int, int]]
    ) -> tuple[set[tuple[int, int]], int]:
        """Return who wrote to the policy log after the first start and when, and how many of them
        there was no room for."""
        first = min(self.starts.values())
        later = (
            (self._events_until(ts), pid)
            for ts, pid in zip(writes.times, writes.pids, strict=True)
            if ts > self._first_start_ns
        )
        writers: set[tuple[int, int]] = set()
        left_out = 0
        for one in chain(later, (one for one in decided if one[0] >= first)):
            if len(writers) < _MOST_WRITERS:
                writers.add(one)
            else:
                left_out += one not in writers
        return writers, left_out

    def _events_until(self, ts: int) -> int:
        return min(max(self._times(ts), 0), self._total)


def conflicting_repeats(
    boundaries: Sequence[CallBoundary],
    repeats: Sequence[CallBoundary],
    written: Mapping[str, ChannelWrites],
) -> Counter[str]:
    """Count by channel the repeated reports of a call that cannot be about the same call.

    One channel reported its end before another reported its start. In what order the recorder
    received them does not matter.
    """
    if not repeats:
        return Counter()
    clock = ChannelClock(written)
    starts: dict[str | None, dict[str, int]] = {}  # of each call, by channel
    ends: dict[str | None, dict[str, int]] = {}
    for boundary in (*boundaries, *repeats):
        if (seen := clock.written_at(boundary.channel, boundary.offset_end)) is not None:
            found = starts if boundary.name == "tool_call_started" else ends
            found.setdefault(boundary.tool_call_id, {}).setdefault(boundary.channel, seen[0])
    return Counter(
        boundary.channel
        for boundary in repeats
        if (started := starts.get(boundary.tool_call_id))
        and (ended := ends.get(boundary.tool_call_id))
        and max(started.values()) > min(ended.values())
    )


# --- the calls of a run ---------------------------------------------------------------------------


class Call(Struct, eq=False):
    """All that is reported of one tool call id."""

    id: str
    order: tuple[int, int]  #: by its first marker, else by where it is met first
    started: int = 0
    completed: int = 0
    begin: int | None = None  #: half-open, in numbers of kernel events
    end: int | None = None
    command: str | None = None
    pids: tuple[int | None, int | None] = (None, None)  #: which reported its start, and its end
    hooked: tuple[bool, bool] = (False, False)  #: the same: was it reported to the recorder's hook
    is_forged: bool = False  #: and somebody else wrote that
    tools: set[str] = field(default_factory=set)
    decisions: list[PolicyEvent] = field(default_factory=list)
    counts: EventCounts = field(default_factory=lambda: defaultdict(int))
    is_doubted: bool = False  #: something was done of which nobody knows whether it was for it

    @property
    def is_reported(self) -> bool:
        """Return whether the agent reported the call; else a decision alone is known."""
        return bool(self.started or self.completed)

    @property
    def never_ends(self) -> bool:
        """Return whether the end of the call was reported before its start, if at all."""
        return self.begin is not None and self.end is None

    @property
    def event_count(self) -> int:
        """The kernel events that belong to it."""
        return sum(self.counts.values())


def calls_of_run(
    sdk: Sequence[SdkEvent], policy: Sequence[PolicyEvent], markers: Sequence[Marker]
) -> dict[str, Call]:
    """Return the calls of a run by their id."""
    calls: dict[str, Call] = {}
    for event in sdk:
        if event.event_type in TOOL_EVENTS and event.tool_call_id is not None:
            call = _call_by_id(calls, event.tool_call_id, event.tool)
            call.started += event.event_type == "tool_call_started"
            call.completed += event.event_type == "tool_call_completed"
    for decision in policy:
        if decision.tool_call_id is not None:
            _call_by_id(calls, decision.tool_call_id, decision.tool).decisions.append(decision)
    for number, marker in enumerate(markers):
        if marker.tool_call_id in calls and marker.name in TOOL_EVENTS:
            at = marker.sdk_seq
            by_hook = at is not None and 0 <= at < len(sdk) and sdk[at].source == HOOK_SOURCE
            _mark_call(calls[marker.tool_call_id], marker, number, by_hook=by_hook)
    return calls


def calls_in_marker_order(calls: Iterable[Call]) -> list[Call]:
    """Return calls in the order of their first markers."""
    return sorted(calls, key=lambda call: call.order)


def uncertainty_code(name: str, *ids: str) -> str:
    r"""Return one line, whatever the ids hold: a backslash is doubled, a comma is `\x2c`."""
    return f"{name}:{','.join(map(_escaped_id, ids))}" if ids else name


def _escaped_id(text: str) -> str:
    return printable(text.replace("\\", "\\\\").replace(",", "\\x2c"))


def _call_by_id(calls: dict[str, Call], name: str, tool: str | None) -> Call:
    """Return the call of an id among those of a run, add it if it is new, and note its tool."""
    call = calls.get(name)
    if call is None:
        call = calls[name] = Call(name, (1, len(calls)))
    if tool is not None:
        call.tools.add(tool)
    return call


def _mark_call(call: Call, marker: Marker, number: int, *, by_hook: bool) -> None:
    """Take the first start, and the first end after it: what comes again is a duplicate."""
    call.order = min(call.order, (0, number))
    if marker.name == "tool_call_started" and call.begin is None:
        call.begin, call.end, call.command = marker.at, None, marker.command
        call.pids, call.hooked = (marker.pid, None), (by_hook, False)
    elif marker.name == "tool_call_completed" and call.end is None:
        call.end = marker.at
        call.pids, call.hooked = (call.pids[0], marker.pid), (call.hooked[0], by_hook)
