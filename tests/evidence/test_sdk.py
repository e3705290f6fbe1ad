"""What an agent reports about its calls: recorded as it is, nothing added, however it arrives."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.codec import MAX_LINE
from stream.evidence.claude_formats import MOST_NAME
from stream.records.artifacts import SDK_EVENT, SdkEvent
from stream.transformers.sdk_events import SdkLayer, SdkObservation, log_environment

DATA = Path(__file__).parent.parent / "data"
CLAUDE = DATA / "claude"
STREAMS = sorted(path.name for path in CLAUDE.glob("*.stream.jsonl"))


def observed(name: str) -> list[SdkObservation]:
    return SdkLayer("r").feed((CLAUDE / name).read_bytes(), 1)


def events_of(observations: list[SdkObservation]) -> list[tuple[str, str | None, str | None]]:
    return [(one.event.event_type, one.event.tool_call_id, one.event.tool) for one in observations]


def record(kind: str, **fields: Any) -> bytes:
    return json.dumps({"type": kind, "session_id": "s", **fields}).encode() + b"\n"


def use(call: Any = "a", tool: Any = "Bash", given: Any = None) -> bytes:
    block = {"type": "tool_use", "id": call, "name": tool, "input": given}
    return record("assistant", message={"content": [block]})


def result(call: Any = "a") -> bytes:
    block = {"type": "tool_result", "tool_use_id": call, "content": "x"}
    return record("user", message={"content": [block]})


# --- stream-json --------------------------------------------------------------------------------


def test_calls_of_a_real_run() -> None:
    found = observed("success.stream.jsonl")
    assert events_of(found) == [
        ("tool_call_started", "toolu_stub_00_01", "Write"),
        ("tool_call_started", "toolu_stub_00_02", "Write"),
        ("tool_call_completed", "toolu_stub_00_01", "Write"),
        ("tool_call_completed", "toolu_stub_00_02", "Write"),
        ("tool_call_started", "toolu_stub_01_00", "Bash"),
        ("tool_call_completed", "toolu_stub_01_00", "Bash"),
        ("run_finished", None, None),
    ]
    events = [one.event for one in found]
    assert [event.seq for event in events] == list(range(7))
    assert {(e.source, e.sdk_name, e.sdk_version) for e in events} == {
        ("claude-code", "claude-code", "2.1.327")
    }
    commands = [one.boundary.command for one in found if one.boundary]
    assert [c for c in commands if c] == ["python3 -m pytest -q 2>&1 | tail -3"]


def test_a_boundary_is_the_end_of_its_line() -> None:
    data = (CLAUDE / "success.stream.jsonl").read_bytes()
    for one in observed("success.stream.jsonl"):
        if one.boundary:
            assert one.boundary.offset_end is not None
            line = data[: one.boundary.offset_end].splitlines(keepends=True)[-1]
            assert line.endswith(b"\n")
            assert one.boundary.tool_call_id is not None
            assert one.boundary.tool_call_id.encode() in line
            assert one.boundary.sdk_seq == one.event.seq


def test_partial_messages_report_no_call_twice() -> None:
    found = events_of(observed("parallel.stream.jsonl"))
    assert len(found) == len(set(found)) == 13
    assert b"stream_event" in (CLAUDE / "parallel.stream.jsonl").read_bytes()


def test_a_run_that_failed() -> None:
    assert events_of(observed("st529.stream.jsonl")) == [("run_failed", None, None)]


def test_work_in_the_background_has_two_results() -> None:
    assert [kind for kind, _, _ in events_of(observed("background.stream.jsonl"))] == [
        *("tool_call_started", "tool_call_completed", "run_finished", "run_finished")
    ]


@pytest.mark.parametrize("name", STREAMS)
@given(cuts=st.lists(st.integers(0, 25_000), max_size=12))
def test_it_does_not_matter_where_the_output_is_cut(name: str, cuts: list[int]) -> None:
    data = (CLAUDE / name).read_bytes()
    layer, pieces = SdkLayer("r"), []
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        pieces += layer.feed(data[start:end], 1)
    assert pieces == observed(name)
    assert layer.received == {"stdout": len(data)}
    assert not layer.problems


def test_a_call_without_an_id_is_given_none() -> None:
    layer = SdkLayer("r")
    found = layer.feed(use(None) + use("") + use(" ") + result(None), 1)
    assert events_of(found) == [
        *[("tool_call_started", None, "Bash")] * 3,
        ("tool_call_completed", None, None),
    ]
    assert not layer.problems
    found = layer.feed(use(7) + use("x" * (MOST_NAME + 1)) + use("a", {}), 1)
    assert events_of(found)[:2] == [("tool_call_started", None, "Bash")] * 2
    assert events_of(found)[2] == ("tool_call_started", "a", None)
    assert layer.problems == {("stdout", "unusable_name"): 3}


def test_what_is_reported_twice_is_recorded_twice() -> None:
    found = SdkLayer("r").feed(use() + use() + result() + result(), 1)
    assert [kind for kind, _, _ in events_of(found)] == ["tool_call_started"] * 2 + [
        "tool_call_completed"
    ] * 2


def test_a_result_of_an_unknown_call() -> None:
    assert events_of(SdkLayer("r").feed(result("z"), 1)) == [("tool_call_completed", "z", None)]


def test_calls_of_subagents_are_calls() -> None:
    line = record(
        "assistant",
        parent_tool_use_id="task",
        message={"content": [{"type": "tool_use", "id": "b", "name": "Read", "input": {}}]},
    )
    assert events_of(SdkLayer("r").feed(line, 1)) == [("tool_call_started", "b", "Read")]


def test_a_result_in_an_answer_and_a_call_in_a_question_are_none() -> None:
    uses = {"type": "tool_use", "id": "a", "name": "Bash"}
    results = {"type": "tool_result", "tool_use_id": "a"}
    lines = record("user", message={"content": [uses]}) + record(
        "assistant", message={"content": [results]}
    )
    assert SdkLayer("r").feed(lines, 1) == []


def test_a_command_is_that_of_bash_and_a_text() -> None:
    cases = [("Bash", {"command": "ls"}), ("Other", {"command": "ls"}), ("Bash", {"command": 1})]
    layer = SdkLayer("r")
    found = [one for tool, given in cases for one in layer.feed(use("a", tool, given), 1)]
    assert [one.boundary.command for one in found if one.boundary] == ["ls", None, None]


def test_half_a_character_hides_no_call() -> None:
    line = use("a", "Bash", {"command": "echo \ud800"})
    assert rb"\ud800" in line
    found = SdkLayer("r").feed(line + use("\udc00"), 1)
    assert events_of(found) == [
        ("tool_call_started", "a", "Bash"),
        ("tool_call_started", None, "Bash"),
    ]
    assert found[0].boundary is not None
    assert found[0].boundary.command == "echo \\ud800"
    msgspec.json.encode([one.event for one in found])


def test_lines_that_may_have_been_records_are_counted() -> None:
    """Where there are any: what another program prints there is no problem."""
    lines = b"All tests pass.\n\n{\n[]\n" + b'{"type":"result"}\n' + b"\xff\n" + b"50%" + use()
    for is_claude in (True, False):
        layer = SdkLayer("r")
        layer.feed(lines, 1)
        layer.feed((result() if is_claude else b"") + b'{"type":"resu', 1)
        layer.finish()
        expected = {("stdout", "not_a_record"): 1, ("stdout", "torn"): 1}
        assert layer.problems == (expected if is_claude else {})


@pytest.mark.parametrize(
    ("line", "is_meant"),
    [
        (b'{"type":"control_response","response":{"subtype":"success"}}', False),
        (b'{"type":"log","session_id":7,"tool_use_id":"a"}', False),
        (b'{"level":"info","session_id":"s"}', False),
        (b'{"type":["user"]}', False),
        (b'[{"type":"user"}]', False),
        (b'50%{"type":"user"}', True),
        # Whole objects that name no session: other agents print such lines.
        *((b'{"type":"%b"}' % one, False) for one in (b"assistant", b"user", b"result", b"system")),
        (b'{"type":"user","session_id":1}', False),
        (b'{"type":"user","session_id":"\\ud800","message":', True),  # cut
        (b'{"type":"log","n":1{"type":"user","session_id":"s"}', True),  # glued
        (b'{"type":"log"}{"type":"log"}', True),
    ],
)
def test_what_others_print_in_json_is_no_record_that_was_lost(line: bytes, is_meant: bool) -> None:
    layer = SdkLayer("r")
    layer.feed(result() + line + b"\n", 1)
    layer.finish()
    assert layer.problems == ({("stdout", "not_a_record"): 1} if is_meant else {})


def typed(kind: str, **fields: Any) -> bytes:
    return json.dumps({"type": kind, **fields}).encode() + b"\n"


def test_lines_of_another_form_are_counted_by_their_type() -> None:
    """A session's other lines are its own where it names its program."""
    others = typed("tool_use", sessionID="s") + typed("tool.execution_start", data={})
    own = record("stream_event") + record("tool_call", call_id="a")
    for version, more in (("claude_code_version", {}), ("v", {"stream_event": 1, "tool_call": 1})):
        layer = SdkLayer("r")
        layer.feed(record("system", subtype="init", **{version: "1"}) + others + own, 1)
        layer.finish()
        assert layer.unknown_form == {"tool_use": 1, "tool.execution_start": 1, **more}
        assert not layer.problems


def test_types_without_end_take_no_memory() -> None:
    layer = SdkLayer("r")
    layer.feed(b"".join(typed(f"{n}" + "x" * 200) for n in range(3000)), 1)
    assert len(layer.unknown_form) == 1001
    assert layer.unknown_form.total() == 3000
    assert max(map(len, layer.unknown_form)) == 80


def test_a_whole_line_of_another_agent_was_not_torn() -> None:
    gemini = (DATA / "agents/gemini.stream.jsonl").read_bytes()
    layer = SdkLayer("r")
    assert layer.feed(gemini.rstrip(b"\n"), 1) == []
    layer.finish()
    assert not layer.problems


def test_what_follows_the_last_newline_was_not_finished() -> None:
    layer = SdkLayer("r")
    assert len(layer.feed(result() + use().rstrip(b"\n"), 1)) == 1
    layer.finish()
    assert layer.problems == {("stdout", "torn"): 1}


def test_an_endless_line_is_not_held() -> None:
    layer, piece = SdkLayer("r"), b"x" * (1 << 20)
    tracemalloc.start()
    try:
        for _ in range(3 * MAX_LINE >> 20):
            assert layer.feed(piece, 1) == []
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * MAX_LINE
    found = layer.feed(b"\n" + use(), 2)
    assert layer.problems == {("stdout", "overlong"): 1}
    assert found[0].boundary is not None
    assert found[0].boundary.offset_end == 3 * MAX_LINE + 1 + len(use())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(
    st.sampled_from(["assistant", "user", "result", "system"]),
    st.dictionaries(
        st.sampled_from(["message", "subtype", "is_error", "claude_code_version"]), json_values
    ),
    st.lists(
        st.dictionaries(
            st.sampled_from(["type", "id", "name", "input", "tool_use_id"]),
            json_values | st.sampled_from(["tool_use", "tool_result"]),
        )
    ),
)
def test_records_of_any_shape_break_nothing(kind: str, fields: Any, blocks: Any) -> None:
    for line in (record(kind, **fields), record(kind, message={"content": blocks})):
        for one in SdkLayer("r").feed(line, 1):
            encoded = msgspec.json.encode(one.event)
            assert msgspec.json.decode(encoded, type=SdkEvent) == one.event


# --- the event log ------------------------------------------------------------------------------

VECTOR = (DATA / "assay/vectors/sdk-events.two.ndjson").read_bytes()


def test_the_references_events_go_through_unchanged() -> None:
    found = SdkLayer("run_001").feed_log(VECTOR, 5)
    assert b"".join(msgspec.json.encode(one.event) + b"\n" for one in found) == VECTOR
    assert [one.boundary.arrived_ns for one in found if one.boundary] == [5, 5]
    lines = VECTOR.splitlines(keepends=True)
    ends = [len(lines[0]), len(VECTOR)]
    assert [one.boundary.offset_end for one in found if one.boundary] == ends
    assert {one.boundary.channel for one in found if one.boundary} == {"log"}


def test_lines_of_the_log_are_numbered_anew() -> None:
    layer = SdkLayer("run_001")
    found = layer.feed_log(VECTOR.replace(b'"seq":1', b'"seq":-7') * 2, 5)
    assert [one.event.seq for one in found] == [0, 1, 2, 3]


def test_what_another_run_wrote_is_not_used() -> None:
    layer = SdkLayer("run_002")
    assert layer.feed_log(VECTOR + b"{}\n", 5) == []
    assert layer.problems == {("log", "foreign_run"): 2, ("log", "not_a_record"): 1}


def test_the_log_is_named_as_the_reference_does() -> None:
    assert log_environment("r", "f") == {
        "ASSAY_RUNNER_SDK_EVENT_LOG": "f",
        "ASSAY_RUNNER_RUN_ID": "r",
        "ASSAY_RUNNER_SDK_EVENT_SCHEMA": SDK_EVENT,
    }


# --- hooks and telemetry ------------------------------------------------------------------------


def test_hooks_report_the_same_calls() -> None:
    hooks = (CLAUDE / "parallel.hooks.ndjson").read_bytes()
    found = SdkLayer("r").feed_hooks(hooks, 7)
    calls = {line for line in events_of(observed("parallel.stream.jsonl")) if line[1]}
    assert set(events_of(found)) == calls
    assert {one.event.source for one in found} == {"claude-code-hooks"}
    commands = [one.boundary.command for one in found if one.boundary and one.boundary.command]
    assert len(commands) == 5


def test_a_refused_call_has_a_beginning_only() -> None:
    hook = {"hook_event_name": "PreToolUse", "session_id": "s", "tool_name": "Write"}
    stop = {"hook_event_name": "Stop", "session_id": "s"}
    lines = b"".join(json.dumps(one).encode() + b"\n" for one in (hook, stop))
    layer = SdkLayer("r")
    assert events_of(layer.feed_hooks(lines, 7)) == [("tool_call_started", None, "Write")]
    assert not layer.problems


def test_telemetry_reports_the_same_calls_and_nobody_knows_when() -> None:
    bodies = (CLAUDE / "parallel.otel.ndjson").read_bytes()
    found = SdkLayer("r").feed_otel(bodies, 7)
    calls = {line for line in events_of(observed("parallel.stream.jsonl")) if line[1]}
    assert set(events_of(found)) == calls
    assert {one.boundary for one in found} == {None}
    assert {one.event.sdk_version for one in found} == {"2.1.327"}


def test_telemetry_without_ids_stays_without() -> None:
    bodies = (CLAUDE / "parallel.otel.ndjson").read_bytes().replace(b'"tool_use_id"', b'"other"')
    found = SdkLayer("r").feed_otel(bodies, 7)
    assert len(found) == 12
    assert {one.event.tool_call_id for one in found} == {None}


@given(json_values)
def test_telemetry_of_any_shape_breaks_nothing(body: Any) -> None:
    for export in (body, {"resourceLogs": body}, {"resourceLogs": [{"scopeLogs": body}]}):
        SdkLayer("r").feed_otel(json.dumps(export).encode() + b"\n", 1)


def test_what_two_channels_report_is_recorded_once() -> None:
    layer = SdkLayer("r")
    first = layer.feed_hooks((CLAUDE / "parallel.hooks.ndjson").read_bytes(), 1)
    second = layer.feed((CLAUDE / "parallel.stream.jsonl").read_bytes(), 2)
    assert len(first) == 12
    assert events_of(second) == [("run_finished", None, None)]
    assert len(layer.repeats) == 12
    assert {one.channel for one in layer.repeats} == {"stdout"}
    assert second[0].event.seq == 12


def logged(event: str, call: str = "a", tool: str | None = "Bash") -> bytes:
    names = {"schema": SDK_EVENT, "run_id": "r", "source": "t", "tool_call_id": call}
    line = {**names, "event_type": f"tool_call_{event}", "tool": tool}
    return json.dumps(line).encode() + b"\n"


def test_what_another_channel_reports_otherwise_is_recorded() -> None:
    layer = SdkLayer("r")
    layer.feed_log(logged("started", tool=None) + logged("started", "b"), 1)
    again = layer.feed(use("a", "Read") + use("b", "Read"), 2)
    assert events_of(again) == [("tool_call_started", "b", "Read")]
    assert [one.boundary for one in again] == [None], "the first one has the time"
    assert [one.tool_call_id for one in layer.repeats] == ["a"]


def test_of_refused_calls_stdout_reports_the_end_where_hooks_report_the_rest() -> None:
    layer = SdkLayer("r")
    found = layer.feed_refusals((CLAUDE / "refused.stream.jsonl").read_bytes(), 1)
    assert [(kind, call) for kind, call, _ in events_of(found)] == [
        ("tool_call_completed", call)
        for call in ("toolu_stub_00_01", "toolu_stub_00_02", "toolu_stub_01_00")
    ]
    assert layer.feed_refusals((CLAUDE / "parallel.stream.jsonl").read_bytes(), 1) == []
