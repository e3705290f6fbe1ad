"""Where a call's ends stand among the kernel's events, and by which clock."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.evidence.markers import (
    CallBoundary,
    ChannelWrites,
    MarkerName,
    Writes,
    build_markers,
    conflicting_repeats,
)
from stream.records.artifacts import Marker

EVENTS = [10, 20, 30, 40, 50]  #: when the kernel saw them


def events_until(ts: int) -> int:
    return bisect_right(EVENTS, ts)


def make_channel(writes: Sequence[tuple[int, int, int]], received: int) -> ChannelWrites:
    """`writes`: so many bytes by then, when, and by whom."""
    seen = Writes()
    for size, ts, pid in writes:
        seen.add_write(size - seen.size, ts, pid)
    return ChannelWrites(seen, received)


def place_boundaries(
    boundaries: Sequence[CallBoundary],
    written: Sequence[tuple[int, int]] | None = None,
    received: int = 0,
) -> list[Marker]:
    writes = [(size, ts, number) for number, (size, ts) in enumerate(written or ())]
    seen = {} if written is None else {"stdout": make_channel(writes, received)}
    return build_markers("r", boundaries, written=seen, times=events_until, total=len(EVENTS))


def make_boundary(
    sdk_seq: int,
    name: MarkerName,
    call: str | None,
    end: int | None,
    arrived: int,
    command: str | None = None,
) -> CallBoundary:
    """Return a boundary; without an end, it was reported by way of the hooks."""
    return CallBoundary(
        sdk_seq=sdk_seq,
        name=name,
        tool_call_id=call,
        channel="hooks" if end is None else "stdout",
        offset_end=end or 0,
        arrived_ns=arrived,
        command=command,
    )


def call_start(
    call: str, end: int | None, arrived: int, command: str | None = None
) -> CallBoundary:
    return make_boundary(0, "tool_call_started", call, end, arrived, command)


def call_end(call: str, end: int | None, arrived: int) -> CallBoundary:
    return make_boundary(1, "tool_call_completed", call, end, arrived)


def test_a_run_without_calls_has_two_markers() -> None:
    markers = place_boundaries([])
    assert [(m.seq, m.name, m.at) for m in markers] == [
        (0, "run_started", 0),
        (1, "run_finished", 5),
    ]


def test_a_line_was_reported_when_the_kernel_saw_it_written() -> None:
    boundaries = [call_start("a", 100, 55, "ls"), call_end("a", 150, 55)]
    markers = place_boundaries(boundaries, [(60, 15), (120, 25), (150, 45)], 150)
    assert [(m.name, m.at, m.clock) for m in markers[1:-1]] == [
        ("tool_call_started", 2, "kernel"),
        ("tool_call_completed", 4, "kernel"),
    ]
    assert (markers[1].tool_call_id, markers[1].sdk_seq, markers[1].command) == ("a", 0, "ls")
    assert [m.pid for m in markers] == [None, 1, 2, None], "who wrote the last of it"


@pytest.mark.parametrize(
    "written",
    [
        None,
        [],
        [(60, 15), (120, 25)],  # a write was not seen
        [(60, 15), (120, 25), (160, 45)],  # somebody else wrote as well
        [(120, 15), (60, 25), (150, 45)],
        [(60, 25), (120, 15), (150, 45)],
    ],
)
def test_otherwise_it_was_reported_when_it_arrived(written: list[tuple[int, int]] | None) -> None:
    markers = place_boundaries([call_start("a", 100, 35)], written, 150)
    assert (markers[1].at, markers[1].clock, markers[1].pid) == (3, "arrival", None)


def test_each_channel_has_writes_of_its_own() -> None:
    by_log = CallBoundary(
        sdk_seq=1,
        name="tool_call_completed",
        tool_call_id="a",
        channel="log",
        offset_end=10,
        arrived_ns=99,
    )
    seen = {"stdout": make_channel([(100, 15, 7)], 100), "log": make_channel([(10, 45, 7)], 10)}
    boundaries = [call_start("a", 100, 99), by_log]
    markers = build_markers("r", boundaries, written=seen, times=events_until, total=len(EVENTS))
    assert [(m.at, m.clock) for m in markers[1:-1]] == [(1, "kernel"), (4, "kernel")]


@pytest.mark.parametrize(
    ("times_of_log", "apart"), [((12, 34), 0), ((16, 40), 0), ((31, 34), 2), ((5, 9), 2)]
)
@pytest.mark.parametrize("is_log_first", [True, False])
def test_what_two_channels_report_is_the_same_or_not(
    times_of_log: tuple[int, int], apart: int, is_log_first: bool
) -> None:
    """By when it was reported; in whatever order it was received."""

    def boundaries(channel: str) -> list[CallBoundary]:
        names: list[MarkerName] = ["tool_call_started", "tool_call_completed"]
        return [
            CallBoundary(
                sdk_seq=-1,
                name=name,
                tool_call_id="a",
                channel=channel,
                offset_end=10 * number,
                arrived_ns=99,
            )
            for number, name in enumerate(names, 1)
        ]

    first, second = boundaries("stdout"), boundaries("log")
    if is_log_first:
        first, second = second, first
    begun, ended = times_of_log
    written = {
        "stdout": make_channel([(10, 15, 7), (20, 30, 7)], 20),
        "log": make_channel([(10, begun, 7), (20, ended, 7)], 20),
    }
    assert conflicting_repeats(first, second, written).total() == apart
    assert conflicting_repeats(first, second, {**written, "log": make_channel([], 20)}).total() == 0


def test_what_did_not_come_on_stdout_is_placed_by_its_arrival() -> None:
    markers = place_boundaries([call_start("a", None, 35)], [(150, 15)], 150)
    assert (markers[1].at, markers[1].clock) == (3, "arrival")


def test_a_call_does_not_end_before_it_starts() -> None:
    markers = place_boundaries(
        [call_start("a", None, 45), call_end("a", 150, 99)], [(150, 15)], 150
    )
    assert [m.at for m in markers[1:-1]] == [4, 4]


def test_no_marker_stands_outside_of_the_run() -> None:
    for count, expected in ((-1, 0), (99, 5)):
        markers = build_markers(
            "r",
            [call_start("a", None, 1)],
            written={},
            times=lambda _, count=count: count,  # type: ignore[misc]
            total=5,
        )
        assert markers[1].at == expected


def test_markers_stand_in_order() -> None:
    boundaries = [call_start("a", None, 45), call_start("b", None, 15), call_start("c", None, 45)]
    assert [m.tool_call_id for m in place_boundaries(boundaries)[1:-1]] == ["b", "a", "c"]


names: st.SearchStrategy[MarkerName] = st.sampled_from(("tool_call_started", "tool_call_completed"))


@given(
    st.lists(
        st.builds(
            lambda name, call, end, arrived: make_boundary(0, name, call, end, arrived),
            names,
            st.sampled_from(["a", "b", None]),
            st.none() | st.integers(0, 200),
            st.integers(-5, 100),
        )
    ),
    st.none() | st.lists(st.tuples(st.integers(0, 200), st.integers(-5, 100))).map(sorted),
    st.integers(0, 200),
)
def test_markers_are_a_run(
    boundaries: list[CallBoundary], written: list[tuple[int, int]] | None, received: int
) -> None:
    markers = place_boundaries(boundaries, written, received)
    assert [m.seq for m in markers] == list(range(len(boundaries) + 2))
    places = [m.at for m in markers]
    assert places == sorted(places)
    assert (places[0], places[-1]) == (0, 5)
    started: set[str | None] = set()
    first: dict[tuple[MarkerName, str | None], int] = {}
    for boundary in boundaries:
        first.setdefault((boundary.name, boundary.tool_call_id), len(first))
        started.add(boundary.tool_call_id)
    for call in started - {None}:
        begun = first.get(("tool_call_started", call))
        ended = first.get(("tool_call_completed", call))
        if begun is None or ended is None or begun > ended:
            continue
        ours = [m for m in markers if m.tool_call_id == call]
        assert ours[0].name == "tool_call_started"


def test_more_who_wrote_to_the_policy_log_than_are_kept_are_counted() -> None:
    """One of them may be the agent."""
    engine = [(5, pid) for pid in range(10_000)]
    for others, unused in (([(5, 7)], {}), ([(5, 10_001)], {"policy:left_out": 1})):
        found = build_markers(
            "r",
            [call_start("a", 100, 15)],
            written={},
            times=events_until,
            total=len(EVENTS),
            decided=[*engine, *others],
        )
        assert found[-1].unused == unused
