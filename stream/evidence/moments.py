"""When an agent said something, and where in the kernel layer that is.

The agent's own clock is never asked. A line of its standard output was said when the kernel saw
it written, where all of its writes were seen; else when the recorder read it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

from msgspec import Struct

from stream.records.runner import Marker

MarkerName = Literal["tool_call_started", "tool_call_completed"]


class Moment(Struct, frozen=True):
    """One end of a tool call, as it was told."""

    sdk_seq: int  #: of the SDK event that it belongs to
    name: MarkerName
    tool_call_id: str | None
    offset_end: int | None  #: bytes of stdout with its line. None: it was told elsewhere
    arrived_ns: int
    command: str | None = None


class _Placed(Struct):
    at: int
    clock: Literal["kernel", "arrival"]
    moment: Moment


def place(
    run_id: str,
    moments: Sequence[Moment],
    *,
    written: Sequence[tuple[int, int]] | None,
    received: int,
    times: Callable[[int], int],
    total: int,
) -> list[Marker]:
    """The markers of a run with `total` kernel events.

    `written`: after each write to stdout, how many bytes it had and the kernel's time. It is
    used only where it ends with the `received` bytes: else some write was not seen, and all that
    come after it would be taken for others. `times`: how many kernel events had happened by then.
    """
    writes = written if written and _is_whole(written, received) else ()
    sizes = [size for size, _ in writes]
    begun: dict[str | None, int] = {}
    placed: list[_Placed] = []
    for moment in moments:
        ts, clock = _when(moment, sizes, writes)
        at = min(max(times(ts), 0), total)
        if moment.name == "tool_call_started":
            begun.setdefault(moment.tool_call_id, at)
        elif moment.tool_call_id is not None:  # two clocks may disagree by a little
            at = max(at, begun.get(moment.tool_call_id, 0))
        placed.append(_Placed(at, clock, moment))
    placed.sort(key=lambda one: one.at)  # stable: what was told first comes first
    return [
        Marker(run_id=run_id, seq=0, name="run_started", at=0, clock="kernel"),
        *(_marker(run_id, seq, one) for seq, one in enumerate(placed, 1)),
        Marker(run_id=run_id, seq=len(placed) + 1, name="run_finished", at=total, clock="kernel"),
    ]


def _is_whole(written: Sequence[tuple[int, int]], received: int) -> bool:
    in_order = all(one[0] <= other[0] and one[1] <= other[1] for one, other in pairwise(written))
    return in_order and written[-1][0] == received


def _when(
    moment: Moment, sizes: list[int], writes: Sequence[tuple[int, int]]
) -> tuple[int, Literal["kernel", "arrival"]]:
    if moment.offset_end is not None and sizes and moment.offset_end <= sizes[-1]:
        return writes[bisect_left(sizes, moment.offset_end)][1], "kernel"
    return moment.arrived_ns, "arrival"


def _marker(run_id: str, seq: int, one: _Placed) -> Marker:
    return Marker(
        run_id=run_id,
        seq=seq,
        name=one.moment.name,
        at=one.at,
        clock=one.clock,
        tool_call_id=one.moment.tool_call_id,
        sdk_seq=one.moment.sdk_seq,
        command=one.moment.command,
    )
