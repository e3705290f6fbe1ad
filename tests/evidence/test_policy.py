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
from stream.records.channels import OTEL, POLICY, STDOUT
from stream.records.control import has_text
from stream.transformers.tool_events import DENIAL, EXPORTED, PERMISSION
from tests.evidence.collected import collect_events, feed_channel, list_problems, make_collector

DATA = Path(__file__).parent.parent / "data"
VECTORS = DATA / "assay/vectors"


def read_decisions(data: bytes, channel: str = POLICY) -> list[PolicyEvent]:
    return collect_events(data, channel).policy


def read_printed(data: bytes) -> list[PolicyEvent]:
    return collect_events(data).policy


def encode_event(**data: Any) -> bytes:
    return json.dumps({"type": DECISION, "source": "s", "data": data}).encode() + b"\n"


def test_the_references_vector() -> None:
    data = (VECTORS / "policy-decision-log.one.ndjson").read_bytes()
    found = collect_events(data, POLICY, run_id="run_001").policy
    expected = (VECTORS / "expected.policy-layer.one.ndjson").read_bytes()
    assert b"".join(msgspec.json.encode(one) + b"\n" for one in found) == expected


@given(st.lists(st.integers(0, 400), max_size=6))
def test_it_does_not_matter_where_the_log_is_cut(cuts: list[int]) -> None:
    data = (VECTORS / "policy-decision-log.two.ndjson").read_bytes()
    found = make_collector()
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        feed_channel(found, data[start:end], POLICY)
    found.finish()
    assert [(one.seq, one.tool_call_id, one.tool, one.decision) for one in found.policy] == [
        (0, "tc_runner_policy_001", "read_file", "allow"),
        (1, "tc_runner_policy_002", "write_file", "deny"),
    ]
    assert not found.dropped


def test_a_decision_without_an_id_is_given_none() -> None:
    found = read_decisions(
        encode_event(tool="t", decision="allow") + encode_event(tool="t", decision="x") * 2
    )
    assert [one.tool_call_id for one in found] == [None] * 3
    assert [one.seq for one in found] == [0, 1, 2]
    for blank in ("", " "):
        found = read_decisions(encode_event(tool="t", decision="x", tool_call_id=blank))
        assert found[0].tool_call_id is None


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"no\n", "not_a_record"),
        (b"\xff\n", "not_a_record"),
        (b"[]\n", "not_a_record"),
        (encode_event(tool="t"), "no_decision"),
        (encode_event(decision="allow"), "no_decision"),
        (encode_event(tool=" ", decision="allow"), "no_decision"),
        (encode_event(tool="t", decision=""), "no_decision"),
        (encode_event(tool="t", decision="allow", tool_call_id=3), "no_decision"),
        (b'{"type":"assay.tool.decision"}\n', "no_decision"),
        (b"x" * (9 << 20) + b"\n", "overlong"),
        (b'{"type":', "torn"),
        (encode_event(tool="t\ud800", decision="allow"), "not_a_record"),
    ],
)
def test_bad_lines_are_counted(line: bytes, problem: str) -> None:
    found = collect_events(encode_event(tool="t", decision="allow") + line, POLICY)
    assert len(found.policy) == 1
    assert list_problems(found) == {("policy", problem): 1}


def test_events_of_other_types_are_not_decisions() -> None:
    found = collect_events(b'{"type":"assay.tool.call","data":{}}\n \n', POLICY)
    assert (found.policy, found.dropped) == ([], [])


def test_refusals_of_a_real_run_are_reported_once() -> None:
    found = read_printed((DATA / "claude/refused.stream.jsonl").read_bytes())
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
    found = read_printed(data[-1])
    assert [one.tool for one in found] == ["Write", "Write", "Bash"]


def test_a_refusal_without_a_tool_is_a_problem() -> None:
    denials = [{"tool_use_id": "a"}, 7, {"tool_name": "T"}]
    line = {"type": "result", "session_id": "s", "permission_denials": denials}
    found = collect_events(json.dumps(line).encode() + b"\n")
    assert [(one.tool_call_id, one.tool) for one in found.policy] == [(None, "T")]
    assert list_problems(found) == {("policy", "unnamed_tool"): 2}


def test_a_permission_that_cannot_be_reported_is_a_problem() -> None:
    meta = [
        {"id": "a", "permission_decision": {"decision": "accept"}},
        {"id": "a", "permission_decision": {"decision": "perhaps"}},
        {"id": [], "permission_decision": {"decision": []}},
    ]
    line = {"type": "user", "session_id": "s", "tool_result_meta": meta}
    found = collect_events(json.dumps(line).encode() + b"\n")
    assert found.policy == []
    assert list_problems(found) == {("policy", "unnamed_tool"): 1, ("policy", "no_decision"): 1}
    named = {"type": "tool_use", "id": "a", "name": "T"}
    use = {"type": "assistant", "session_id": "s", "message": {"content": [named]}}
    found = collect_events(b"".join(json.dumps(one).encode() + b"\n" for one in (use, line)))
    assert [(one.tool, one.decision) for one in found.policy] == [("T", "allow")]
    assert list_problems(found) == {("policy", "no_decision"): 1}, "and nothing that was not there"


#: A real run whose permissions were all bypassed, and the same with a mode that decides.
BYPASSED = (DATA / "claude/parallel.stream.jsonl").read_bytes()
DECIDED = BYPASSED.replace(b'"bypassPermissions"', b'"acceptEdits"')


def test_what_nobody_decided_is_no_decision() -> None:
    """However it is reported; what a rule or a person decided meanwhile is one."""
    found = make_collector()
    feed_channel(found, BYPASSED)
    feed_channel(found, TELEMETRY, OTEL)
    found.finish()
    assert (found.policy, found.dropped) == ([], [])
    by_rule = BYPASSED.replace(b'"reason_type":"mode"', b'"reason_type":"rule"', 1)
    assert [one.decision for one in read_printed(by_rule)] == ["allow"]
    refused = BYPASSED.replace(b'"decision":"accept"', b'"decision":"reject"', 1)
    assert [one.decision for one in read_printed(refused)] == ["deny"]


@pytest.mark.parametrize(
    ("version", "name"),
    [("claude_code_version", "claude-code"), ("qwen_code_version", "qwen-code"), ("v", "unknown")],
)
def test_a_decision_is_taken_from_who_names_its_source(version: str, name: str) -> None:
    init = {"type": "system", "subtype": "init", "session_id": "s", version: "1.2"}
    denials = [{"tool_use_id": "a", "tool_name": "T"}]
    end = {"type": "result", "session_id": "s", "permission_denials": denials}
    found = read_printed(b"".join(json.dumps(one).encode() + b"\n" for one in (init, end)))
    kind = DENIAL if name == "claude-code" else f"{name}.permission_denial"
    assert [(one.source_event_type, one.source) for one in found] == [(kind, name)]


def test_what_was_permitted_is_reported_with_the_results() -> None:
    data = DECIDED
    found = read_printed(data)
    calls = {one.tool_call_id for one in found}
    assert {(one.source_event_type, one.decision, one.tool) for one in found} == {
        (PERMISSION, "allow", "Bash"),
        (PERMISSION, "allow", "Read"),
    }
    assert len(calls) == len(found) == 6


def test_a_run_that_asked_for_nothing() -> None:
    data = (DATA / "claude/st401.stream.jsonl").read_bytes()
    assert read_printed(data) == []


TEXTS = st.text().filter(has_text)


@given(TEXTS, TEXTS, TEXTS)
def test_ids_and_names_may_be_anything(call: str, tool: str, decision: str) -> None:
    found = read_decisions(encode_event(tool=tool, decision=decision, tool_call_id=call))
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

TELEMETRY = (DATA / "claude/parallel.otel.ndjson").read_bytes()


def encode_export(*records: dict[str, str]) -> bytes:
    """A body with a record of each."""
    logs = [
        {"attributes": [{"key": k, "value": {"stringValue": v}} for k, v in one.items()]}
        for one in records
    ]
    return json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": logs}]}]}).encode() + b"\n"


def decision_attributes(found: str, call: str = "a", tool: str = "Bash") -> dict[str, str]:
    return {
        "event.name": "tool_decision",
        "decision": found,
        "tool_use_id": call,
        "tool_name": tool,
    }


def test_decisions_of_a_real_run_that_came_late() -> None:
    found = read_decisions(TELEMETRY, OTEL)
    assert {(one.source_event_type, one.source, one.decision) for one in found} == {
        (EXPORTED, "claude-code-otel", "allow")
    }
    assert len({one.tool_call_id for one in found}) == len(found) == 6
    assert [one.seq for one in found] == list(range(6))


def test_what_stdout_reported_is_reported_once_whenever_it_came() -> None:
    for blocks in ([(TELEMETRY, OTEL), (DECIDED, STDOUT)], [(DECIDED, STDOUT), (TELEMETRY, OTEL)]):
        found = make_collector()
        for data, channel in blocks:
            feed_channel(found, data, channel)
        early = [*found.policy]
        found.finish()
        late = found.policy[len(early) :]
        assert {one.source_event_type for one in early} == {PERMISSION}
        assert not {one.tool_call_id for one in early} & {one.tool_call_id for one in late}


def test_another_tool_of_the_same_call_is_reported() -> None:
    early = {"tool_use_id": "c", "tool_name": "Read"}
    denied = {"type": "system", "subtype": "permission_denied", "session_id": "s", **early}
    late = [{**early, "tool_name": name} for name in ("Read", "Bash", "Bash")]
    result = {"type": "result", "session_id": "s", "permission_denials": late}
    lines = b"".join(json.dumps(line).encode() + b"\n" for line in (denied, result))
    assert [event.tool for event in read_printed(lines)] == ["Read", "Bash"]


def test_another_decision_of_the_same_call_is_reported() -> None:
    data = encode_export(
        decision_attributes("accept"), decision_attributes("accept"), decision_attributes("reject")
    )
    assert [one.decision for one in read_decisions(data, OTEL)] == ["allow", "deny"]


@given(st.lists(st.integers(0, len(TELEMETRY)), max_size=6))
def test_it_does_not_matter_where_bodies_are_cut(cuts: list[int]) -> None:
    found = make_collector()
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(TELEMETRY)], strict=True):
        feed_channel(found, TELEMETRY[start:end], OTEL)
    found.finish()
    assert found.policy == read_decisions(TELEMETRY, OTEL)


@pytest.mark.parametrize(
    "body",
    [
        b"tool_decision\n",
        b'["tool_decision"]\n',
        b'{"resourceLogs":"tool_decision"}\n',
        encode_export({"event.name": "tool_decision"}),
        encode_export(decision_attributes("perhaps")),
        encode_export({**decision_attributes("accept"), "event.name": "tool_result"}),
        encode_export(decision_attributes("accept", tool="")),
        encode_export(decision_attributes("accept", tool="\ud800")),
    ],
)
def test_what_decides_nothing(body: bytes) -> None:
    assert read_decisions(body, OTEL) == []


def test_half_a_character_hides_no_decision() -> None:
    """No layer can hold half a character: a decision about a call of such an id has none."""
    denied = {"type": "system", "subtype": "permission_denied", "session_id": "\ud800"}
    line = json.dumps({**denied, "tool_use_id": "\udc00", "tool_name": "T"}).encode() + b"\n"
    assert [(one.tool_call_id, one.tool) for one in read_printed(line)] == [(None, "T")]
    named = read_decisions(encode_export(decision_attributes("accept", call="\ud800")), OTEL)
    assert [(one.tool_call_id, one.tool) for one in named] == [(None, "Bash")]
    assert msgspec.json.encode(named)
