"""When an agent said something, and where in the kernel layer that is.

The agent's own clock is never asked. A line of its standard output was said when the kernel saw
it written, where all of its writes were seen; else when the recorder read it.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, pairwise
from typing import Literal

import msgspec
from msgspec import Struct, field

from stream.records.runner import Marker

MarkerName = Literal["tool_call_started", "tool_call_completed"]
Clock = Literal["kernel", "arrival"]
COMMANDS = "commands"  #: the channel of the wrappers
POLICY, HOOKS = "policy", "hooks"
UNSEEN = "unseen"  #: why what came on a channel is not used: nobody was seen to write it
_MOST_WRITERS = 10_000  #: of the policy log
_KERNEL: Clock = "kernel"
_ARRIVAL: Clock = "arrival"


class Moment(Struct, frozen=True):
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


class Written(Struct, frozen=True):
    """A channel, as the kernel saw it written and as the recorder received it."""

    writes: Writes
    received: int

    @property
    def is_whole(self) -> bool:
        """Else some write was not seen, and all that come after it would be taken for others."""
        orders = (self.writes.sizes, self.writes.times)
        in_order = all(one <= other for order in orders for one, other in pairwise(order))
        return in_order and bool(self.writes.sizes) and self.writes.size == self.received


class _Clock:
    """Of the channels that the kernel saw written to their end."""

    def __init__(self, written: Mapping[str, Written]) -> None:
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


def place(
    run_id: str,
    moments: Sequence[Moment],
    *,
    written: Mapping[str, Written],
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
    kernels = _Clock(written)
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


def told_apart(
    moments: Sequence[Moment], again: Sequence[Moment], written: Mapping[str, Written]
) -> Counter[str]:
    """By channel: what one told again of a call, and cannot be the same. Somebody told its end
    before another told its beginning. In what order the recorder read it says nothing."""
    if not again:
        return Counter()
    kernels = _Clock(written)
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


def _marker(run_id: str, at: int, clock: Clock, moment: Moment, pid: int | None) -> Marker:
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
