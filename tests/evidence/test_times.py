"""When events happened: how many had, by any time."""

from __future__ import annotations

from array import array
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.sinks import run_folder
from stream.sinks.run_folder import EventTimeIndex

TIMES = st.integers(0, 60)


@given(st.lists(st.lists(TIMES, max_size=12)), TIMES, st.integers(1, 5))
def test_what_stands_later_did_not_happen_before(
    batches: list[list[int]], end: int, size: int
) -> None:
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr(run_folder, "_PIECE", size)
        times = EventTimeIndex(Path(folder))
        for batch in batches:
            times.add_times(array("Q", batch))
        rising = list(accumulate((time for batch in batches for time in batch), max))
        assert times.counter_until()(end) == sum(time <= end for time in rising)
        times.close()
