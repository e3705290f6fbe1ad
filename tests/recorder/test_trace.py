"""Time and spans of a run's events."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from stream.observe.settings import EventTrace
from stream.process.machine import Clock, utc_timestamp
from stream.records.decision import ORDER, ModelParameters, PromptProvenance, Request, Session


def make_trace(write: Any = lambda line: None, clock: Clock | None = None) -> EventTrace:
    return EventTrace(
        Session("s", "r", "claude-code", "unknown", "unknown"),
        Request("q", "unknown", [], {}),
        PromptProvenance("unknown", "unknown", "full", None, "unknown", ModelParameters()),
        clock=clock or Clock.now(),
        write=write,
    )


def test_a_time() -> None:
    assert utc_timestamp(1_700_000_000_123_456_789) == "2023-11-14T22:13:20.123456Z"
    assert utc_timestamp(0) == "1970-01-01T00:00:00.000000Z"


def test_a_wall_clock_that_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[bytes] = []
    events = make_trace(lines.append)
    events.add_event("run_started", "other", "x")
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    events.add_event("workspace_prepared", "other", "x")
    first, second = (json.loads(line)["timestamp"] for line in lines)
    assert first <= second


@pytest.mark.parametrize("form", [0, 1])
def test_every_parent_is_an_earlier_event(form: int) -> None:
    lines: list[bytes] = []
    events = make_trace(lines.append)
    for forms in ORDER:
        events.add_event(forms[min(form, len(forms) - 1)], "other", "x")
    found = [json.loads(line) for line in lines]
    for index, event in enumerate(found):
        earlier = [one["span_id"] for one in found[:index]]
        assert event["parent_span_id"] in (earlier if index else [None])
    assert len({event["event_id"] for event in found}) == len(found)
    assert len({event["trace_id"] for event in found}) == 1
