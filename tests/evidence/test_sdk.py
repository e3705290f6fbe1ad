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
from stream.evidence.claude_formats import MOST_NAME, AgentRecords
from stream.records.artifacts import SDK_EVENT, SdkEvent
from stream.records.channels import HOOKS, LOG, OTEL, STDOUT, ChannelBlock
from stream.transformers.sdk_events import log_environment
from stream.transformers.tool_events import ToolCallCollector
from tests.evidence.collected import collect_events, feed_channel, list_problems, make_collector

DATA = Path(__file__).parent.parent / "data"
CLAUDE = DATA / "claude"
STREAMS = sorted(path.name for path in CLAUDE.glob("*.stream.jsonl"))


def collect_file(name: str) -> ToolCallCollector:
    return collect_events((CLAUDE / name).read_bytes())


def events_of(found: ToolCallCollector) -> list[tuple[str, str | None, str | None]]:
    return [(event.event_type, event.tool_call_id, event.tool) for event in found.sdk]


def encode_record(kind: str, **fields: Any) -> bytes:
    return json.dumps({"type": kind, "session_id": "s", **fields}).encode() + b"\n"


def tool_use(call: Any = "a", tool: Any = "Bash", given: Any = None) -> bytes:
    block = {"type": "tool_use", "id": call, "name": tool, "input": given}
    return encode_record("assistant", message={"content": [block]})


def tool_result(call: Any = "a") -> bytes:
    block = {"type": "tool_result", "tool_use_id": call, "content": "x"}
    return encode_record("user", message={"content": [block]})


# --- stream-json --------------------------------------------------------------------------------


def test_calls_of_a_real_run() -> None:
    found = collect_file("success.stream.jsonl")
    assert events_of(found) == [
        ("tool_call_started", "toolu_stub_00_01", "Write"),
        ("tool_call_started", "toolu_stub_00_02", "Write"),
        ("tool_call_completed", "toolu_stub_00_01", "Write"),
        ("tool_call_completed", "toolu_stub_00_02", "Write"),
        ("tool_call_started", "toolu_stub_01_00", "Bash"),
        ("tool_call_completed", "toolu_stub_01_00", "Bash"),
        ("run_finished", None, None),
    ]
    assert [event.seq for event in found.sdk] == list(range(7))
    assert {(e.source, e.sdk_name, e.sdk_version) for e in found.sdk} == {
        ("claude-code", "claude-code", "2.1.327")
    }
    commands = [one.command for one in found.boundaries]
    assert [c for c in commands if c] == ["python3 -m pytest -q 2>&1 | tail -3"]


def test_a_boundary_is_the_end_of_its_line() -> None:
    data = (CLAUDE / "success.stream.jsonl").read_bytes()
    found = collect_file("success.stream.jsonl")
    assert len(found.boundaries) == 6
    for one in found.boundaries:
        line = data[: one.offset_end].splitlines(keepends=True)[-1]
        assert line.endswith(b"\n")
        assert one.tool_call_id is not None
        assert one.tool_call_id.encode() in line
        assert found.sdk[one.sdk_seq].tool_call_id == one.tool_call_id


def test_partial_messages_report_no_call_twice() -> None:
    found = events_of(collect_file("parallel.stream.jsonl"))
    assert len(found) == len(set(found)) == 13
    assert b"stream_event" in (CLAUDE / "parallel.stream.jsonl").read_bytes()


def test_a_run_that_failed() -> None:
    assert events_of(collect_file("st529.stream.jsonl")) == [("run_failed", None, None)]


def test_work_in_the_background_has_two_results() -> None:
    assert [kind for kind, _, _ in events_of(collect_file("background.stream.jsonl"))] == [
        *("tool_call_started", "tool_call_completed", "run_finished", "run_finished")
    ]


@pytest.mark.parametrize("name", STREAMS)
@given(cuts=st.lists(st.integers(0, 25_000), max_size=12))
def test_it_does_not_matter_where_the_output_is_cut(name: str, cuts: list[int]) -> None:
    data = (CLAUDE / name).read_bytes()
    found, whole = make_collector(), collect_file(name)
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        feed_channel(found, data[start:end])
    found.finish()
    assert (found.sdk, found.boundaries) == (whole.sdk, whole.boundaries)
    assert found.policy == whole.policy
    assert found.received == {"stdout": len(data)}
    assert not found.dropped


@given(
    st.lists(
        st.sampled_from(
            [b"plain text\n", b"\n", tool_use(), tool_result(), b"}}\n", b'x "session_id"\n', b"{"]
        )
    ),
    st.lists(st.integers(0, 2000), max_size=12),
)
def test_text_hides_no_record_wherever_the_output_is_cut(
    lines: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(lines)
    found, by_bytes = make_collector(), make_collector()
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        feed_channel(found, data[start:end])
    for at in range(len(data)):
        feed_channel(by_bytes, data[at : at + 1])
    for one in (found, by_bytes):
        one.finish()
    assert (found.sdk, found.boundaries) == (by_bytes.sdk, by_bytes.boundaries)
    assert (found.dropped, found.unknown_form) == (by_bytes.dropped, by_bytes.unknown_form)


def test_a_call_without_an_id_is_given_none() -> None:
    found = collect_events(tool_use(None) + tool_use("") + tool_use(" ") + tool_result(None))
    assert events_of(found) == [
        *[("tool_call_started", None, "Bash")] * 3,
        ("tool_call_completed", None, None),
    ]
    assert not found.dropped
    found = collect_events(tool_use(7) + tool_use("x" * (MOST_NAME + 1)) + tool_use("a", {}))
    assert events_of(found)[:2] == [("tool_call_started", None, "Bash")] * 2
    assert events_of(found)[2] == ("tool_call_started", "a", None)
    assert list_problems(found) == {("stdout", "unusable_name"): 3}


def test_what_is_reported_twice_is_recorded_twice() -> None:
    found = collect_events(tool_use() + tool_use() + tool_result() + tool_result())
    assert [kind for kind, _, _ in events_of(found)] == ["tool_call_started"] * 2 + [
        "tool_call_completed"
    ] * 2


def test_a_result_of_an_unknown_call() -> None:
    assert events_of(collect_events(tool_result("z"))) == [("tool_call_completed", "z", None)]


def test_calls_of_subagents_are_calls() -> None:
    line = encode_record(
        "assistant",
        parent_tool_use_id="task",
        message={"content": [{"type": "tool_use", "id": "b", "name": "Read", "input": {}}]},
    )
    assert events_of(collect_events(line)) == [("tool_call_started", "b", "Read")]


def test_a_result_in_an_answer_and_a_call_in_a_question_are_none() -> None:
    uses = {"type": "tool_use", "id": "a", "name": "Bash"}
    results = {"type": "tool_result", "tool_use_id": "a"}
    lines = encode_record("user", message={"content": [uses]}) + encode_record(
        "assistant", message={"content": [results]}
    )
    assert collect_events(lines).sdk == []


def test_a_command_is_that_of_bash_and_a_text() -> None:
    cases = [("Bash", {"command": "ls"}), ("Other", {"command": "ls"}), ("Bash", {"command": 1})]
    found = collect_events(b"".join(tool_use("a", tool, given) for tool, given in cases))
    assert [one.command for one in found.boundaries] == ["ls", None, None]


def test_half_a_character_hides_no_call() -> None:
    line = tool_use("a", "Bash", {"command": "echo \ud800"})
    assert rb"\ud800" in line
    found = collect_events(line + tool_use("\udc00"))
    assert events_of(found) == [
        ("tool_call_started", "a", "Bash"),
        ("tool_call_started", None, "Bash"),
    ]
    assert found.boundaries[0].command == "echo \\ud800"
    msgspec.json.encode(found.sdk)


def test_lines_that_may_have_been_records_are_counted() -> None:
    """Where there are any: what another program prints there is no problem."""
    lines = b"All tests pass.\n\n{\n[]\n" + b'{"type":"result"}\n' + b"\xff\n" + b"50%" + tool_use()
    for is_claude in (True, False):
        found = collect_events(lines + (tool_result() if is_claude else b"") + b'{"type":"resu')
        expected = {("stdout", "not_a_record"): 1, ("stdout", "torn"): 1}
        assert list_problems(found) == (expected if is_claude else {})


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
    found = collect_events(tool_result() + line + b"\n")
    assert list_problems(found) == ({("stdout", "not_a_record"): 1} if is_meant else {})


def encode_typed(kind: str, **fields: Any) -> bytes:
    return json.dumps({"type": kind, **fields}).encode() + b"\n"


def test_lines_of_another_form_are_counted_by_their_type() -> None:
    """A session's other lines are its own where it names its program."""
    others = encode_typed("tool_use", sessionID="s") + encode_typed("tool.execution_start", data={})
    own = encode_record("stream_event") + encode_record("tool_call", call_id="a")
    for version, more in (("claude_code_version", {}), ("v", {"stream_event": 1, "tool_call": 1})):
        found = collect_events(
            encode_record("system", subtype="init", **{version: "1"}) + others + own
        )
        assert found.unknown_form == {"tool_use": 1, "tool.execution_start": 1, **more}
        assert not found.dropped


def test_types_without_end_take_no_memory() -> None:
    lines, records = b"".join(encode_typed(f"{n}" + "x" * 200) for n in range(3000)), AgentRecords()
    assert not list(records.read_block(ChannelBlock(STDOUT, lines)))
    assert len(records.foreign_types) == 1001
    assert records.foreign_types.total() == 3000
    assert max(map(len, records.foreign_types)) == 80
    found = collect_events(lines).unknown_form
    assert (len(found), sum(found.values())) == (20, 3000)


def test_a_whole_line_of_another_agent_was_not_torn() -> None:
    gemini = (DATA / "agents/gemini.stream.jsonl").read_bytes()
    found = collect_events(gemini.rstrip(b"\n"))
    assert not found.sdk
    assert not found.dropped


def test_what_follows_the_last_newline_was_not_finished() -> None:
    found = collect_events(tool_result() + tool_use().rstrip(b"\n"))
    assert len(found.sdk) == 1
    assert list_problems(found) == {("stdout", "torn"): 1}


def test_an_endless_line_is_not_held() -> None:
    found, piece = make_collector(), b"x" * (1 << 20)
    tracemalloc.start()
    try:
        for _ in range(3 * MAX_LINE >> 20):
            feed_channel(found, piece)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * MAX_LINE
    feed_channel(found, b"\n" + tool_use())
    found.finish()
    assert list_problems(found) == {("stdout", "overlong"): 1}
    assert [one.offset_end for one in found.boundaries] == [3 * MAX_LINE + 1 + len(tool_use())]


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
    for line in (encode_record(kind, **fields), encode_record(kind, message={"content": blocks})):
        for event in collect_events(line).sdk:
            assert msgspec.json.decode(msgspec.json.encode(event), type=SdkEvent) == event


# --- the event log ------------------------------------------------------------------------------

VECTOR = (DATA / "assay/vectors/sdk-events.two.ndjson").read_bytes()


def test_the_references_events_go_through_unchanged() -> None:
    found = make_collector("run_001")
    feed_channel(found, VECTOR, LOG, arrived=5)
    assert b"".join(msgspec.json.encode(event) + b"\n" for event in found.sdk) == VECTOR
    assert [one.arrived_ns for one in found.boundaries] == [5, 5]
    lines = VECTOR.splitlines(keepends=True)
    assert [one.offset_end for one in found.boundaries] == [len(lines[0]), len(VECTOR)]
    assert {one.channel for one in found.boundaries} == {"log"}


def test_lines_of_the_log_are_numbered_anew() -> None:
    found = collect_events(VECTOR.replace(b'"seq":1', b'"seq":-7') * 2, LOG, run_id="run_001")
    assert [event.seq for event in found.sdk] == [0, 1, 2, 3]


def test_what_another_run_wrote_is_not_used() -> None:
    found = collect_events(VECTOR + b"{}\n", LOG, run_id="run_002")
    assert found.sdk == []
    assert list_problems(found) == {("log", "foreign_run"): 2, ("log", "not_a_record"): 1}


def test_the_log_is_named_as_the_reference_does() -> None:
    assert log_environment("r", "f") == {
        "ASSAY_RUNNER_SDK_EVENT_LOG": "f",
        "ASSAY_RUNNER_RUN_ID": "r",
        "ASSAY_RUNNER_SDK_EVENT_SCHEMA": SDK_EVENT,
    }


# --- hooks and telemetry ------------------------------------------------------------------------


def test_hooks_report_the_same_calls() -> None:
    hooks = (CLAUDE / "parallel.hooks.ndjson").read_bytes()
    found = collect_events(hooks, HOOKS)
    calls = {line for line in events_of(collect_file("parallel.stream.jsonl")) if line[1]}
    assert set(events_of(found)) == calls
    assert {event.source for event in found.sdk} == {"claude-code-hooks"}
    assert len([one.command for one in found.boundaries if one.command]) == 5


def test_a_refused_call_has_a_beginning_only() -> None:
    hook = {"hook_event_name": "PreToolUse", "session_id": "s", "tool_name": "Write"}
    stop = {"hook_event_name": "Stop", "session_id": "s"}
    lines = b"".join(json.dumps(one).encode() + b"\n" for one in (hook, stop))
    found = collect_events(lines, HOOKS)
    assert events_of(found) == [("tool_call_started", None, "Write")]
    assert not found.dropped


def test_telemetry_reports_the_same_calls_and_nobody_knows_when() -> None:
    bodies = (CLAUDE / "parallel.otel.ndjson").read_bytes()
    found = collect_events(bodies, OTEL)
    calls = {line for line in events_of(collect_file("parallel.stream.jsonl")) if line[1]}
    assert set(events_of(found)) == calls
    assert not found.boundaries
    assert {event.sdk_version for event in found.sdk} == {"2.1.327"}


def test_telemetry_without_ids_stays_without() -> None:
    bodies = (CLAUDE / "parallel.otel.ndjson").read_bytes().replace(b'"tool_use_id"', b'"other"')
    found = collect_events(bodies, OTEL)
    assert len(found.sdk) == 12
    assert {event.tool_call_id for event in found.sdk} == {None}


@given(json_values)
def test_telemetry_of_any_shape_breaks_nothing(body: Any) -> None:
    for export in (body, {"resourceLogs": body}, {"resourceLogs": [{"scopeLogs": body}]}):
        msgspec.json.encode(collect_events(json.dumps(export).encode() + b"\n", OTEL).sdk)


def test_what_two_channels_report_is_recorded_once() -> None:
    found = make_collector()
    feed_channel(found, (CLAUDE / "parallel.hooks.ndjson").read_bytes(), HOOKS)
    feed_channel(found, (CLAUDE / "parallel.stream.jsonl").read_bytes())
    found.finish()
    assert [event.source for event in found.sdk[:12]] == ["claude-code-hooks"] * 12
    assert events_of(found)[12:] == [("run_finished", None, None)]
    assert len(found.repeats) == 12
    assert {one.channel for one in found.repeats} == {"stdout"}
    assert found.sdk[12].seq == 12


def log_line(event: str, call: str = "a", tool: str | None = "Bash") -> bytes:
    names = {"schema": SDK_EVENT, "run_id": "r", "source": "t", "tool_call_id": call}
    line = {**names, "event_type": f"tool_call_{event}", "tool": tool}
    return json.dumps(line).encode() + b"\n"


def test_what_another_channel_reports_otherwise_is_recorded() -> None:
    found = make_collector()
    feed_channel(found, log_line("started", tool=None) + log_line("started", "b"), LOG)
    feed_channel(found, tool_use("a", "Read") + tool_use("b", "Read"))
    found.finish()
    assert events_of(found)[2:] == [("tool_call_started", "b", "Read")]
    assert len(found.boundaries) == 2, "the first one has the time"
    assert [one.tool_call_id for one in found.repeats] == ["a"]


def test_of_refused_calls_stdout_reports_the_end_where_hooks_report_the_rest() -> None:
    found = collect_events((CLAUDE / "refused.stream.jsonl").read_bytes(), sdk="hooks")
    assert [(kind, call) for kind, call, _ in events_of(found)] == [
        ("tool_call_completed", call)
        for call in ("toolu_stub_00_01", "toolu_stub_00_02", "toolu_stub_01_00")
    ]
    assert not collect_events((CLAUDE / "parallel.stream.jsonl").read_bytes(), sdk="hooks").sdk


def test_where_telemetry_has_the_calls_stdout_has_decisions_only() -> None:
    lines = (CLAUDE / "refused.stream.jsonl").read_bytes() + encode_typed("log") + b'50%{"type":'
    found = collect_events(lines, sdk="otel")
    assert not found.sdk
    assert len(found.policy) == 3
    assert not found.dropped
    assert not found.unknown_form
    assert not found.received
