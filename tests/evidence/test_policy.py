"""Decisions about calls, from logs and refusals: byte for byte where the reference has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.evidence.claude_formats import DECISION
from stream.records.artifacts import PolicyEvent
from stream.records.control import is_told
from stream.transformers.tool_events import DENIAL, EXPORTED, PERMISSION, PolicyLayer

DATA = Path(__file__).parent.parent / "data"
VECTORS = DATA / "assay/vectors"


def event(**data: Any) -> bytes:
    return json.dumps({"type": DECISION, "source": "s", "data": data}).encode() + b"\n"


def test_the_references_vector() -> None:
    found = PolicyLayer("run_001").feed((VECTORS / "policy-decision-log.one.ndjson").read_bytes())
    expected = (VECTORS / "expected.policy-layer.one.ndjson").read_bytes()
    assert b"".join(msgspec.json.encode(one) + b"\n" for one in found) == expected


@given(st.lists(st.integers(0, 400), max_size=6))
def test_it_does_not_matter_where_the_log_is_cut(cuts: list[int]) -> None:
    data = (VECTORS / "policy-decision-log.two.ndjson").read_bytes()
    layer, found = PolicyLayer("r"), []
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        found += layer.feed(data[start:end])
    assert [(one.seq, one.tool_call_id, one.tool, one.decision) for one in found] == [
        (0, "tc_runner_policy_001", "read_file", "allow"),
        (1, "tc_runner_policy_002", "write_file", "deny"),
    ]
    assert not layer.problems


def test_a_decision_without_an_id_is_given_none() -> None:
    layer = PolicyLayer("r")
    found = layer.feed(event(tool="t", decision="allow") + event(tool="t", decision="x") * 2)
    assert [one.tool_call_id for one in found] == [None] * 3
    assert [one.seq for one in found] == [0, 1, 2]
    for blank in ("", " "):
        found = layer.feed(event(tool="t", decision="x", tool_call_id=blank))
        assert found[0].tool_call_id is None


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"no\n", "not_a_record"),
        (b"\xff\n", "not_a_record"),
        (b"[]\n", "not_a_record"),
        (event(tool="t"), "no_decision"),
        (event(decision="allow"), "no_decision"),
        (event(tool=" ", decision="allow"), "no_decision"),
        (event(tool="t", decision=""), "no_decision"),
        (event(tool="t", decision="allow", tool_call_id=3), "no_decision"),
        (b'{"type":"assay.tool.decision"}\n', "no_decision"),
        (b"x" * (9 << 20) + b"\n", "overlong"),
        (b'{"type":', "torn"),
    ],
)
def test_bad_lines_are_counted(line: bytes, problem: str) -> None:
    layer = PolicyLayer("r")
    good = event(tool="t", decision="allow")
    assert len(layer.feed(good + line)) == 1
    layer.finish()
    assert layer.problems == {problem: 1}


def test_events_of_other_types_are_not_decisions() -> None:
    layer = PolicyLayer("r")
    assert layer.feed(b'{"type":"assay.tool.call","data":{}}\n \n') == []
    assert (layer.ignored, dict(layer.problems)) == (1, {})


def test_refusals_of_a_real_run_are_reported_once() -> None:
    layer = PolicyLayer("r")
    found = layer.feed_stdout((DATA / "claude/refused.stream.jsonl").read_bytes())
    assert [(one.tool_call_id, one.tool) for one in found] == [
        ("toolu_stub_00_01", "Write"),
        ("toolu_stub_00_02", "Write"),
        ("toolu_stub_01_00", "Bash"),
    ]
    assert {(one.source_event_type, one.source, one.decision) for one in found} == {
        ("claude.permission_denial", "claude-code", "deny")
    }


def test_refusals_that_only_the_result_reports() -> None:
    data = (DATA / "claude/refused.stream.jsonl").read_bytes().splitlines(keepends=True)
    found = PolicyLayer("r").feed_stdout(data[-1])
    assert [one.tool for one in found] == ["Write", "Write", "Bash"]


def test_a_refusal_without_a_tool_is_a_problem() -> None:
    layer = PolicyLayer("r")
    denials = [{"tool_use_id": "a"}, 7, {"tool_name": "T"}]
    line = {"type": "result", "session_id": "s", "permission_denials": denials}
    found = layer.feed_stdout(json.dumps(line).encode() + b"\n")
    assert [(one.tool_call_id, one.tool) for one in found] == [(None, "T")]
    assert layer.problems == {"unnamed_tool": 2}


def test_a_permission_that_cannot_be_reported_is_a_problem() -> None:
    layer = PolicyLayer("r")
    meta = [
        {"id": "a", "permission_decision": {"decision": "accept"}},
        {"id": "a", "permission_decision": {"decision": "perhaps"}},
        {"id": [], "permission_decision": {"decision": []}},
    ]
    line = {"type": "user", "session_id": "s", "tool_result_meta": meta}
    assert layer.feed_stdout(json.dumps(line).encode() + b"\n") == []
    assert layer.problems == {"unnamed_tool": 1, "no_decision": 1}
    named = {"type": "tool_use", "id": "a", "name": "T"}
    use = {"type": "assistant", "session_id": "s", "message": {"content": [named]}}
    layer = PolicyLayer("r")
    found = layer.feed_stdout(b"".join(json.dumps(one).encode() + b"\n" for one in (use, line)))
    assert [(one.tool, one.decision) for one in found] == [("T", "allow")]
    assert layer.problems == {"no_decision": 1}, "and nothing that was not there"


#: A real run whose permissions were all bypassed, and the same with a mode that decides.
BYPASSED = (DATA / "claude/parallel.stream.jsonl").read_bytes()
DECIDED = BYPASSED.replace(b'"bypassPermissions"', b'"acceptEdits"')


def test_what_nobody_decided_is_no_decision() -> None:
    """However it is reported; what a rule or a person decided meanwhile is one."""
    layer = PolicyLayer("r")
    assert layer.feed_stdout(BYPASSED) == []
    layer.feed_otel(OTEL)
    assert (layer.finish(), dict(layer.problems)) == ([], {})
    by_rule = BYPASSED.replace(b'"reason_type":"mode"', b'"reason_type":"rule"', 1)
    assert [one.decision for one in PolicyLayer("r").feed_stdout(by_rule)] == ["allow"]
    refused = BYPASSED.replace(b'"decision":"accept"', b'"decision":"reject"', 1)
    assert [one.decision for one in PolicyLayer("r").feed_stdout(refused)] == ["deny"]


@pytest.mark.parametrize(
    ("version", "name"),
    [("claude_code_version", "claude-code"), ("qwen_code_version", "qwen-code"), ("v", "unknown")],
)
def test_a_decision_is_told_by_who_says_who_speaks(version: str, name: str) -> None:
    init = {"type": "system", "subtype": "init", "session_id": "s", version: "1.2"}
    denials = [{"tool_use_id": "a", "tool_name": "T"}]
    end = {"type": "result", "session_id": "s", "permission_denials": denials}
    layer = PolicyLayer("r")
    found = layer.feed_stdout(b"".join(json.dumps(one).encode() + b"\n" for one in (init, end)))
    kind = DENIAL if name == "claude-code" else f"{name}.permission_denial"
    assert [(one.source_event_type, one.source) for one in found] == [(kind, name)]


def test_what_was_permitted_is_reported_with_the_results() -> None:
    data = DECIDED
    found = PolicyLayer("r").feed_stdout(data)
    calls = {one.tool_call_id for one in found}
    assert {(one.source_event_type, one.decision, one.tool) for one in found} == {
        (PERMISSION, "allow", "Bash"),
        (PERMISSION, "allow", "Read"),
    }
    assert len(calls) == len(found) == 6


def test_a_run_that_asked_for_nothing() -> None:
    data = (DATA / "claude/st401.stream.jsonl").read_bytes()
    assert PolicyLayer("r").feed_stdout(data) == []


TOLD = st.text().filter(is_told)


@given(TOLD, TOLD, TOLD)
def test_ids_and_names_may_be_anything(call: str, tool: str, decision: str) -> None:
    found = PolicyLayer("r").feed(event(tool=tool, decision=decision, tool_call_id=call))
    expected = PolicyEvent(
        run_id="r",
        seq=0,
        source_event_type=DECISION,
        source="s",
        tool_call_id=call,
        tool=tool,
        decision=decision,
    )
    assert found == [expected]


# --- OpenTelemetry ------------------------------------------------------------------------------

OTEL = (DATA / "claude/parallel.otel.ndjson").read_bytes()


def exported(*records: dict[str, str]) -> bytes:
    """A body with a record of each."""
    logs = [
        {"attributes": [{"key": k, "value": {"stringValue": v}} for k, v in one.items()]}
        for one in records
    ]
    return json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": logs}]}]}).encode() + b"\n"


def decision(found: str, call: str = "a", tool: str = "Bash") -> dict[str, str]:
    return {
        "event.name": "tool_decision",
        "decision": found,
        "tool_use_id": call,
        "tool_name": tool,
    }


def test_decisions_of_a_real_run_that_came_late() -> None:
    layer = PolicyLayer("r")
    layer.feed_otel(OTEL)
    found = layer.finish()
    assert {(one.source_event_type, one.source, one.decision) for one in found} == {
        (EXPORTED, "claude-code-otel", "allow")
    }
    assert len({one.tool_call_id for one in found}) == len(found) == 6
    assert [one.seq for one in found] == list(range(6))
    assert layer.finish() == []


def test_what_stdout_reported_is_reported_once_whenever_it_came() -> None:
    data = DECIDED
    for is_early in (True, False):
        layer = PolicyLayer("r")
        if is_early:
            layer.feed_otel(OTEL)
        early = layer.feed_stdout(data)
        if not is_early:
            layer.feed_otel(OTEL)
        late = layer.finish()
        assert {one.source_event_type for one in early} == {PERMISSION}
        assert not {one.tool_call_id for one in early} & {one.tool_call_id for one in late}


def test_another_tool_of_the_same_call_is_reported() -> None:
    layer = PolicyLayer("r")
    early = {"tool_use_id": "c", "tool_name": "Read"}
    denied = {"type": "system", "subtype": "permission_denied", "session_id": "s", **early}
    late = [{**early, "tool_name": name} for name in ("Read", "Bash", "Bash")]
    result = {"type": "result", "session_id": "s", "permission_denials": late}
    lines = b"".join(json.dumps(line).encode() + b"\n" for line in (denied, result))
    assert [event.tool for event in layer.feed_stdout(lines)] == ["Read", "Bash"]


def test_another_decision_of_the_same_call_is_reported() -> None:
    layer = PolicyLayer("r")
    layer.feed_otel(exported(decision("accept"), decision("accept"), decision("reject")))
    assert [one.decision for one in layer.finish()] == ["allow", "deny"]


@given(st.lists(st.integers(0, len(OTEL)), max_size=6))
def test_it_does_not_matter_where_bodies_are_cut(cuts: list[int]) -> None:
    layer, whole = PolicyLayer("r"), PolicyLayer("r")
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(OTEL)], strict=True):
        layer.feed_otel(OTEL[start:end])
    whole.feed_otel(OTEL)
    assert layer.finish() == whole.finish()


@pytest.mark.parametrize(
    "body",
    [
        b"tool_decision\n",
        b'["tool_decision"]\n',
        b'{"resourceLogs":"tool_decision"}\n',
        exported({"event.name": "tool_decision"}),
        exported(decision("perhaps")),
        exported({**decision("accept"), "event.name": "tool_result"}),
        exported(decision("accept", tool="")),
    ],
)
def test_what_decides_nothing(body: bytes) -> None:
    layer = PolicyLayer("r")
    layer.feed_otel(body)
    assert layer.finish() == []
