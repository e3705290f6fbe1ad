"""The time of events, by a clock that is not the wall's."""

from __future__ import annotations

from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from stream.process.machine import Clock

START = 1_800_000_000_000_000_000
TIMES = st.integers(0, 10**18)


@given(TIMES, TIMES, TIMES)
def test_time_never_steps_back(begun: int, one: int, other: int) -> None:
    """The wall clock is not read again, so that nobody who sets it can change the order."""
    clock = Clock(START, begun)
    early, late = sorted((begun + one, begun + other))
    assert clock.timestamp(early) <= clock.timestamp(late)
    between = datetime.fromisoformat(clock.timestamp(late)) - datetime.fromisoformat(
        clock.timestamp(early)
    )
    assert abs(between - timedelta(microseconds=(late - early) // 1000)) <= timedelta(
        microseconds=1
    )
