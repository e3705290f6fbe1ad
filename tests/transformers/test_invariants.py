"""check: each rule broken alone is found alone; good runs, torn runs, mixed streams."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stream.codec import LineSplitter, TornLine
from stream.records.control import Control, Finding, Reject
from stream.records.decision import SLOTS, is_event
from stream.records.run import Profile
from stream.transformers.event_rules import MOST_EVIDENCE, event_rules, read_event
from stream.transformers.invariants import Invariants
from tests.core.properties import check_batch_independence
from tests.sweeping import thorough
from tests.transformers.cells import PLAIN
from tests.transformers.runs import (
    NAMES,
    Event,
    Run,
    as_published,
    changed_events,
    encode_run,
    event,
    good_run,
    make_artifact,
)
from tests.transformers.samples import lines, run_transformer, split_lines

GOOD = encode_run(good_run())
DATA = b"\n".join([*GOOD, b""])


def check_lines(
    items: list[bytes], profile: Profile = "poc", *, is_alone: bool = True
) -> tuple[list[bytes], list[Control]]:
    transformer = Invariants(profile, is_alone=is_alone, source="empty")
    return run_transformer(transformer, [lines(*items, source="events.jsonl")])


def find_findings(
    items: list[bytes], profile: Profile = "poc", *, is_alone: bool = True
) -> list[Finding]:
    _, out = check_lines(items, profile, is_alone=is_alone)
    return [record for record in out if isinstance(record, Finding)]


def find_rules(items: list[bytes], profile: Profile = "poc", *, is_alone: bool = True) -> list[str]:
    return [finding.rule for finding in find_findings(items, profile, is_alone=is_alone)]


def locate_value(run: Run, number: int, path: str) -> tuple[Any, Any]:
    """What holds the value at a path of an event, and its key there."""
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    holder: Any = run[number - 1]
    for step in steps:
        holder = holder[step]
    return holder, last


Change = Callable[[Run], "list[bytes] | None"]


def put_value(path: str, value: Any, number: int = 5) -> Change:
    def change(run: Run) -> None:
        holder, key = locate_value(run, number, path)
        holder[key] = value

    return change


def drop_value(path: str, number: int = 5) -> Change:
    def change(run: Run) -> None:
        holder, key = locate_value(run, number, path)
        del holder[key]

    return change


def _each_line(edit: Callable[[list[bytes]], list[bytes]]) -> Change:
    return lambda run: edit(encode_run(run))


def _swap_last_two(run: Run) -> None:
    """The evaluation after the end; nobody's parent, no time is touched."""
    run[7], run[8] = run[8], run[7]
    run[7]["timestamp"], run[8]["timestamp"] = run[8]["timestamp"], run[7]["timestamp"]


def _remove_event(number: int) -> Change:
    def change(run: Run) -> None:
        del run[number - 1]

    return change


def _repeat_seventh(run: Run) -> None:
    """commands_observation_unavailable as well: a second form of the seventh."""
    more = copy.deepcopy(run[6])
    name = "commands_observation_unavailable"
    more["event_type"], more["event_id"], more["span_id"] = name, "another", "another"
    more["agent_action"]["action_summary"] = f"[{name}] wrappers disabled"
    run.insert(7, more)


def _append_event(run: Run) -> None:
    more = copy.deepcopy(run[7])
    more["event_id"] = more["span_id"] = "another"
    more["timestamp"] = run[8]["timestamp"]
    run.append(more)


def _lose_bytes(run: Run) -> None:
    run[4]["agent_action"]["artifacts"][0]["metadata"]["lost_bytes"] = 4096


def _change_check(**changes: Any) -> Change:
    def change(run: Run) -> None:
        run[7]["evaluation"]["quality"]["checks"][0].update(changes)

    return change


def _remove_violations(run: Run) -> None:
    run[7]["evaluation"]["alignment"] = {"status": "warn", "score": 1, "violations": []}


def _change_last_status(part: str) -> Change:
    """The last event has another status than the evaluation had, and states it."""

    def change(run: Run) -> None:
        run[8]["evaluation"][part] = {"status": "unknown", "score": None, "checks": []}
        summary = run[8]["agent_action"]["action_summary"]
        new = summary.replace(f"{part} pass", f"{part} unknown")
        run[8]["agent_action"]["action_summary"] = new

    return change


def _contradict_status(number: int) -> Change:
    def change(run: Run) -> None:
        action = run[number - 1]["agent_action"]
        action["action_summary"] = action["action_summary"].replace("policy pass", "policy=fail")

    return change


def _respell(old: bytes, new: bytes) -> Change:
    return _each_line(lambda good: [*good[:4], good[4].replace(old, new, 1), *good[5:]])


_FAILED = {"id": "a", "status": "fail", "evidence": "diff"}
_WARNED = {"id": "a", "severity": "warn", "message": "", "evidence": "diff"}
_ARTIFACT = "agent_action.artifacts.0"
_VIOLATION = "evaluation.alignment.violations.0"
_CHECK = "evaluation.quality.checks.0"
_CONSTRAINT = "request.constraints.0"

#: (rule, what is done to a good run)
CASES: list[tuple[str, Change]] = [
    ("line.utf8", _each_line(lambda good: [*good[:4], b'{"a":"\xff"}', *good[4:]])),
    ("line.utf8", _each_line(lambda good: [*good, good[8].replace(b"alignment", b"\xff")])),
    ("line.utf8", _each_line(lambda good: [*good, good[1].replace(b'"pytest"', b'"\xff"')])),
    ("line.json_object", _each_line(lambda good: [*good[:4], b"junk", *good[4:]])),
    ("line.json_object", _each_line(lambda good: [*good, b"[1]"])),
    ("line.json_object", _each_line(lambda good: [*good, b""])),
    ("line.json_object", _each_line(lambda good: [*good, b'{"a":' + b"[" * 10_000])),
    ("line.json_object", _each_line(lambda good: [*good, TornLine(good[3][:200])])),
    ("line.decision_event", _each_line(lambda good: [*good, PLAIN])),
    ("line.decision_event", _each_line(lambda good: [b"{}", *good])),
    ("timestamp.order", put_value("timestamp", "2026-03-04T05:06:03.999999Z")),
    ("timestamp.order", put_value("timestamp", "2026-03-04T05:06:07.123457Z", 6)),
    ("run.one", lambda run: encode_run([*run, *good_run(7)])),
    ("run.incomplete", lambda run: encode_run(run[:6])),
    ("run.incomplete", lambda run: []),
    ("run.incomplete", lambda run: [*encode_run(run[:3]), TornLine(GOOD[3][:700])]),
    ("run.incomplete", lambda run: [TornLine(GOOD[0][:70])]),
    ("run.incomplete", _lose_bytes),
    ("run.incomplete", put_value(f"{_ARTIFACT}.metadata.lost_bytes", 7.0)),
    ("run.missing", _remove_event(8)),
    ("run.twice", _repeat_seventh),
    ("run.order", _swap_last_two),
    ("run.order", _append_event),
    ("event.name", put_value("event_type", "agent_thought")),
    ("event.name", put_value("event_type", 5)),
    (
        "event.name",
        lambda run: encode_run([*as_published(run)[:4], _remove_name(run[4]), *run[5:]]),
    ),
    ("event.names_agree", put_value("agent_action.action_summary", "[run_started] logs are there")),
    ("schema_version", put_value("schema_version", 0.2)),
    ("schema_version", drop_value("schema_version")),
    ("event_id", put_value("event_id", 5)),
    ("event_id.unique", put_value("event_id", event(4)["event_id"])),
    ("timestamp", put_value("timestamp", 1772600765)),
    ("timestamp.rfc3339", put_value("timestamp", "2026-03-04 05:06:05")),
    ("timestamp.rfc3339", put_value("timestamp", "2026-03-04T06:06:05+01:00")),
    ("timestamp", put_value("timestamp", "Wed Mar  4 05:06:05 2026")),
    ("timestamp", put_value("timestamp", "yesterday")),
    ("timestamp", put_value("timestamp", "2026-02-30T05:06:05Z")),
    ("timestamp", put_value("timestamp", "2026-03-04T25:06:05Z")),
    ("trace_id", put_value("trace_id", 5)),
    ("trace_id.constant", put_value("trace_id", "other")),
    ("span_id", put_value("span_id", [])),
    ("span_id", put_value("span_id", 5, 4)),
    ("span_id.unique", put_value("span_id", event(4)["span_id"], 8)),
    ("parent_span_id", drop_value("parent_span_id")),
    ("parent_span_id", put_value("parent_span_id", 5)),
    ("parent_span_id.earlier", put_value("parent_span_id", event(6)["span_id"])),
    ("parent_span_id.earlier", put_value("parent_span_id", event(5)["span_id"])),
    ("parent_span_id.earlier", put_value("parent_span_id", "before all", 1)),
    ("parent_span_id.root", put_value("parent_span_id", None)),
    ("observability_mode", put_value("observability_mode", "white_box")),
    ("observability_mode", drop_value("observability_mode")),
    ("session", put_value("session", "run")),
    ("session", drop_value("session")),
    ("request", put_value("request", [])),
    ("prompt_provenance", put_value("prompt_provenance", 1)),
    ("model_output", drop_value("model_output")),
    ("agent_action", drop_value("agent_action", 8)),
    ("evaluation", put_value("evaluation", True)),
    ("session.session_id", put_value("session.session_id", 5)),
    ("session.run_id", put_value("session.run_id", 5)),
    ("session.run_id", put_value("session.run_id", 5, 1)),
    ("session.run_id", drop_value("session.run_id")),
    ("run.constant", put_value("schema_version", "0.3")),
    ("run.constant", put_value("session.session_id", "other", 7)),
    ("run.constant", put_value("session.agent_version", "2.1.327", 9)),
    ("run.constant", put_value("session.environment", "prod", 2)),
    ("run.constant", put_value("prompt_provenance.capture_mode", "hashed")),
    ("run.evaluation", _change_last_status("policy")),
    ("run.evaluation", _change_last_status("quality")),
    ("evaluation.told", _contradict_status(8)),
    ("evaluation.told", _contradict_status(9)),
    ("evaluation.contradiction", put_value("evaluation.policy.checks.0.status", "fail", 8)),
    ("evaluation.contradiction", put_value("evaluation.policy.checks.1", _FAILED, 8)),
    ("evaluation.contradiction", put_value("evaluation.quality.violations", [_WARNED], 8)),
    ("evaluation.contradiction", put_value(f"{_VIOLATION}.severity", "fail", 8)),
    ("prompt.visible", put_value("prompt_provenance.system_prompt", "You are")),
    ("prompt.visible", put_value("prompt_provenance.parameters.prompt_visible", True)),
    ("prompt.visible", put_value("systemPrompt", ["You", "are"])),
    ("prompt.visible", put_value("model_output.output_structured", {"a": [{"PROMPT": {"b": 1}}]})),
    ("prompt.visible", put_value(f"{_ARTIFACT}.metadata.prompts", "seen")),
    ("line.duplicate_key", _respell(b'"trace_id":', b'"trace_id":"x","trace_id":')),
    ("line.duplicate_key", _respell(b'"status":', b'"status":"pass","status":')),
    ("line.duplicate_key", _respell(b'"context":{', b'"context":{"a":1,"a":1,')),
    ("line.duplicate_key", _respell(b'"metadata":{', b'"metadata":{"a":{"b":1,"b":1},')),
    ("line.duplicate_key", _respell(b'"session":{', b'"session":{"run_i\\u0064":"x",')),
    ("session.agent_version", put_value("session.agent_version", 2.1)),
    ("session.environment", put_value("session.environment", "laptop")),
    ("session.environment", drop_value("session.environment")),
    ("request.request_id", put_value("request.request_id", 5)),
    ("request.user_request_raw", put_value("request.user_request_raw", ["add", "tests"])),
    ("request.constraints", put_value("request.constraints", {})),
    ("request.constraints", put_value("request.constraints", ["output.json_only"])),
    ("request.context", put_value("request.context", "python")),
    ("constraint.id", put_value(f"{_CONSTRAINT}.id", 5, 2)),
    ("constraint.type", put_value(f"{_CONSTRAINT}.type", "taste", 2)),
    ("constraint.rule", drop_value(f"{_CONSTRAINT}.rule", 2)),
    ("constraint.canonical", put_value(f"{_CONSTRAINT}.type", "style", 2)),
    ("prompt_provenance.provider", put_value("prompt_provenance.provider", 5)),
    ("prompt_provenance.model", drop_value("prompt_provenance.model")),
    ("prompt_provenance.capture_mode", put_value("prompt_provenance.capture_mode", "partial")),
    ("prompt_provenance.prompt_bundle", put_value("prompt_provenance.prompt_bundle", {})),
    (
        "prompt_provenance.prompt_bundle_hash",
        put_value("prompt_provenance.prompt_bundle_hash", "ab"),
    ),
    ("prompt_provenance.parameters", put_value("prompt_provenance.parameters", [])),
    ("prompt_provenance.parameters", put_value("prompt_provenance.parameters.top_p", "unknown")),
    ("model_output.completion_id", put_value("model_output.completion_id", 5)),
    ("model_output.completion_id.null", put_value("model_output.completion_id", "msg_01")),
    ("model_output.output_raw", put_value("model_output.output_raw", {})),
    ("model_output.output_raw", put_value("model_output.output_raw", "It is done.")),
    ("model_output.output_structured", put_value("model_output.output_structured", "{}")),
    ("model_output.tool_calls", put_value("model_output.tool_calls", [{"name": "Bash"}])),
    ("model_output.usage", put_value("model_output.usage", 5)),
    ("model_output.usage", put_value("model_output.usage.latency_ms", True)),
    ("agent_action.action_type", put_value("agent_action.action_type", "think")),
    ("agent_action.action_summary", put_value("agent_action.action_summary", 5)),
    ("agent_action.artifacts", put_value("agent_action.artifacts", "none", 8)),
    ("agent_action.artifacts", put_value("agent_action.artifacts", [[]], 8)),
    ("agent_action.tool_results", put_value("agent_action.tool_results", [1])),
    ("artifact.type", put_value(f"{_ARTIFACT}.type", 5, 3)),
    ("artifact.id", put_value(f"{_ARTIFACT}.id", 5, 3)),
    ("artifact.summary", drop_value(f"{_ARTIFACT}.summary")),
    ("artifact.content_ref", put_value(f"{_ARTIFACT}.content_ref", 5)),
    ("artifact.hash", put_value(f"{_ARTIFACT}.hash", 5)),
    ("artifact.metadata", put_value(f"{_ARTIFACT}.metadata", [])),
    ("run.stdout_log", drop_value("agent_action.artifacts.0")),
    (
        "run.stdout_log",
        put_value("agent_action.artifacts.0", make_artifact("stdout_log", "out.txt")),
    ),
    ("run.stderr_log", drop_value("agent_action.artifacts.1")),
    ("run.diff", drop_value("agent_action.artifacts.0", 6)),
    ("run.command_log", drop_value("agent_action.artifacts.0", 7)),
    ("evaluation.alignment", drop_value("evaluation.alignment")),
    ("evaluation.quality", put_value("evaluation.quality", [])),
    ("evaluation.policy", put_value("evaluation.policy", "pass")),
    ("evaluation.status", put_value("evaluation.policy.status", "good")),
    ("evaluation.status", drop_value("evaluation.alignment.status")),
    ("evaluation.score", drop_value("evaluation.alignment.score")),
    ("evaluation.score", put_value("evaluation.quality.score", "high")),
    ("evaluation.violations", drop_value("evaluation.alignment.violations")),
    ("evaluation.violations", put_value("evaluation.policy.violations", [5])),
    ("evaluation.checks", drop_value("evaluation.policy.checks")),
    ("evaluation.checks", put_value("evaluation.alignment.checks", {})),
    ("violation.id", drop_value(f"{_VIOLATION}.id", 8)),
    ("violation.severity", put_value(f"{_VIOLATION}.severity", "pass", 8)),
    ("violation.message", put_value(f"{_VIOLATION}.message", 5, 8)),
    ("violation.evidence", put_value(f"{_VIOLATION}.evidence", 5, 8)),
    ("check.id", _change_check(id=5)),
    ("check.status", _change_check(status="skipped")),
    ("check.evidence", _change_check(evidence=[])),
    ("unknown.null", put_value("session.agent_version", None)),
    ("unknown.null", put_value("model_output.tool_calls", None)),
    ("unknown.null", put_value("prompt_provenance.prompt_bundle_hash", None)),
    ("unknown.null", put_value("event_type", None)),
    ("unknown.empty", put_value("session.agent_version", "")),
    ("unknown.empty", put_value("session.agent_id", "")),
    (
        "action_summary.reasoning",
        put_value("agent_action.action_summary", "[artifacts_captured] the agent then wanted more"),
    ),
    ("evaluation.outcome", _remove_violations),
    ("evaluation.outcome", put_value("evaluation.quality.checks", [], 8)),
    ("evidence.given", _change_check(evidence="")),
    ("evidence.given", put_value(f"{_VIOLATION}.evidence", "  ", 8)),
    ("evidence.source", _change_check(evidence="there are different tests")),
    ("evidence.source", put_value(f"{_VIOLATION}.evidence", "{'a': 1}", 8)),
    ("evidence.bounded", _change_check(evidence="stdout: " + "x" * (MOST_EVIDENCE - 7))),
    (
        "evidence.bounded",
        put_value("evaluation.policy.checks.1.evidence", "x" * (MOST_EVIDENCE + 1), 8),
    ),
]
BROKEN_HERE = {rule for rule, _ in CASES} | {"line.length", "session.agent_id"}


def _change_run(change: Change) -> list[bytes]:
    run = good_run()
    items = change(run)
    return encode_run(run) if items is None else items


def _remove_name(one: Event) -> Event:
    action = {**one["agent_action"], "action_summary": "the logs are there"}
    return {**{k: v for k, v in one.items() if k != "event_type"}, "agent_action": action}


@pytest.mark.parametrize(("rule", "change"), CASES, ids=[rule for rule, _ in CASES])
def test_a_rule_that_alone_is_broken_is_found_alone(rule: str, change: Change) -> None:
    run = good_run()
    items = change(run)
    (finding,) = find_findings(encode_run(run) if items is None else items)
    assert (finding.rule, finding.severity) == (rule, event_rules()[rule].severity)
    assert finding.message
    assert finding.source == ("empty" if items == [] else "events.jsonl")


def test_a_good_run_has_no_finding() -> None:
    assert check_lines(GOOD) == (GOOD, [])
    assert check_lines(GOOD, is_alone=False) == (GOOD, [])
    other = good_run()
    put_value("event_type", "commands_observation_unavailable", 7)(other)
    text = "[commands_observation_unavailable] wrappers disabled"
    put_value("agent_action.action_summary", text, 7)(other)
    drop_value("agent_action.artifacts.0", 7)(other)
    assert find_rules(encode_run(other)) == []


def test_the_published_form_has_no_finding() -> None:
    run = as_published(good_run())
    assert all("event_type" not in one and one["schema_version"] == "0.2" for one in run)
    assert check_lines(encode_run(run)) == (encode_run(run), [])


def test_a_finding_has_its_place() -> None:
    run = good_run()
    put_value("session.environment", "laptop")(run)
    (finding,) = find_findings(encode_run(run))
    assert finding == Finding(
        rule="session.environment",
        severity="error",
        message='expected one of ci, local, prod, staging, unknown, got "laptop"',
        source="events.jsonl",
        line=5,
        path="$.session.environment",
        event_id=run[4]["event_id"],
    )


def test_an_event_that_breaks_many_rules_passes_with_all_of_them() -> None:
    run = good_run()
    for path in ("trace_id", "request", "evaluation.policy.checks"):
        drop_value(path)(run)
    items = encode_run(run)
    out, control = check_lines(items)
    assert out == items
    paths = [one.path for one in control if isinstance(one, Finding)]
    assert paths == ["$.trace_id", "$.request", "$.evaluation.policy.checks"]


def test_profile_agents_takes_any_agent() -> None:
    run = good_run()
    for one in run:
        one["session"]["agent_id"] = "codex"
    poc = find_findings(encode_run(run))
    assert [finding.rule for finding in poc] == ["session.agent_id"] * 9
    assert "--profile agents" in poc[0].message
    assert find_rules(encode_run(run), "agents") == []
    put_value("session.agent_id", "")(run)
    put_value("session.environment", "x", 6)(run)
    assert find_rules(encode_run(run), "agents") == ["unknown.empty", "session.environment"]


def test_an_overlong_line_has_a_rule_of_its_own() -> None:
    splitter = LineSplitter("events.jsonl", limit=3000)
    batch = splitter.feed(b"\n".join([*GOOD[:4], b"x" * 9000, *GOOD[4:], b""]))
    assert batch is not None
    out, (finding, reject) = run_transformer(Invariants(is_alone=True), [batch])
    assert out == GOOD
    assert isinstance(finding, Finding)
    assert isinstance(reject, Reject)
    assert (finding.rule, finding.line, reject.line) == ("line.length", 5, 5)


@pytest.mark.parametrize("is_alone", [True, False])
def test_every_prefix_is_one_finding(is_alone: bool) -> None:
    """However many bytes of a run there are: it is incomplete, and nothing else is wrong."""
    for size in (*range(1, len(DATA) - 1, 97), len(DATA) - 2):
        transformer = Invariants(is_alone=is_alone, source="empty")
        out, control = run_transformer(transformer, split_lines(DATA[:size], [size // 2]))
        findings = [one for one in control if isinstance(one, Finding)]
        if not is_alone and not out:  # a torn line of anything
            assert [one.rule for one in findings] == ["line.json_object"]
            continue
        (finding,) = findings
        assert finding.rule == "run.incomplete"
        rejected = [one for one in control if isinstance(one, Reject)]
        assert len(rejected) == transformer.counts.rejected <= 1
        assert ("torn" in finding.message) == bool(rejected)
        assert NAMES[len(out)] in finding.message


def test_a_last_line_without_newline_is_whole() -> None:
    assert run_transformer(Invariants(is_alone=True), split_lines(DATA[:-1], [])) == (GOOD, [])


def test_runs_in_one_pipe_are_checked_for_themselves() -> None:
    one, other = encode_run(good_run(1)), encode_run(good_run(2))
    mixed = [line for pair in zip(one, other, strict=True) for line in pair]
    assert find_rules(mixed, is_alone=False) == []
    assert find_rules([*one, *other], is_alone=False) == []
    (finding,) = find_findings([*one[:4], *other, b"  "], is_alone=False)
    assert (finding.rule, finding.line) == ("run.incomplete", 4)
    again = find_findings([*one, *one], is_alone=False)
    assert {finding.rule for finding in again} == {"event_id.unique", "run.order"}


@pytest.mark.parametrize(
    "foreign",
    [
        PLAIN,
        b'{"schema":"stream.gap.v1","source":"s","lost":1,"reason":"r","event_type":"run_started"}',
        b'{"event_type":"click","x":1}',
        b'{"trace_id":"a","span_id":"b","name":"GET /"}',
        b'{"schema_version":"boundary_event_v1","observability_mode":"x"}',
        b"{}",
    ],
    ids=range(6),
)
def test_lines_of_other_contracts_pass_unchecked(foreign: bytes) -> None:
    assert not is_event(json.loads(foreign))
    items = [foreign, *GOOD, foreign]
    assert check_lines(items, is_alone=False) == (items, [])


def test_a_broken_event_is_still_taken_for_one() -> None:
    """Two of the fields that identify an event may be gone; with three gone it is any object."""
    fields = ("observability_mode", "event_type", "schema_version", "trace_id", "span_id")
    for lost in combinations(fields, 2):
        one = event(4)
        for path in lost:
            del one[path]
        assert is_event(one), lost
    one = event(4)
    for path in ("observability_mode", "event_type", "trace_id"):
        del one[path]
    assert not is_event(one)


def test_control_records_in_memory_pass() -> None:
    finding = Finding(rule="r", severity="error", message="m")
    transformer = Invariants(is_alone=True)
    out, control = run_transformer(transformer, [[finding, *GOOD]])
    assert (out, control, transformer.findings) == (GOOD, [finding], 0)


def test_how_much_was_lost_is_reported() -> None:
    run = good_run()
    _lose_bytes(run)
    (finding,) = find_findings(encode_run(run))
    assert "4096 bytes of artifacts/claude_stdout.txt" in finding.message


# ------------------------------------------------------------------- properties

_BROKEN = [line for _, change in CASES[24::7] for line in _change_run(change)[4:6]]
POOL = [*GOOD, *encode_run(good_run(3))[:4], *_BROKEN, PLAIN, b"junk", b"", b" ", b'{"a":"\xff"}']


@settings(max_examples=100)
@given(
    st.lists(st.sampled_from(POOL), max_size=14),
    st.lists(st.integers(0, 50), max_size=5),
    st.booleans(),
)
def test_check_does_not_depend_on_batches(
    items: list[bytes], cuts: list[int], is_alone: bool
) -> None:
    batch = lines(*items, *([TornLine(GOOD[8][:300])] if len(items) % 3 else []))
    out, counts = check_batch_independence(
        lambda: Invariants(is_alone=is_alone, source="empty"), batch, cuts
    )
    assert [item for item in out if isinstance(item, bytes)] == [
        line for line in batch if _is_object(line)
    ]
    assert sum(isinstance(item, Reject) for item in out) == counts.rejected


@settings(max_examples=40)
@given(st.lists(st.integers(0, len(DATA)), max_size=9), st.integers(0, len(DATA)))
def test_places_do_not_depend_on_reads(cuts: list[int], end: int) -> None:
    whole = run_transformer(Invariants(is_alone=True, source="empty"), split_lines(DATA[:end], []))
    assert (
        run_transformer(Invariants(is_alone=True, source="empty"), split_lines(DATA[:end], cuts))
        == whole
    )


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


@thorough(1500)
@given(changed_events(), st.sampled_from(["poc", "agents"]))
def test_the_way_in_which_an_event_is_written_changes_nothing(one: Event, profile: Profile) -> None:
    """A line as the recorder writes it is read by its types, one with spaces member by member."""
    (line,) = encode_run([one])
    read = read_event(line, profile)
    assert read == read_event(json.dumps(one).encode(), profile)
    assert (read is not None) == is_event(one)


@thorough(500)
@given(changed_events())
def test_what_cannot_be_used_is_false(one: Event) -> None:
    """No rule and no run looks at a value that is not of its shape."""
    read = read_event(json.dumps(one).encode(), "poc")
    assume(read is not None)
    assert read is not None
    event, faults = read
    assert not event.event_type or event.event_type in SLOTS
    for value in (event.event_id, event.trace_id, event.span_id, event.session.run_id):
        assert not value or isinstance(value, str)
    assert all(isinstance(one.metadata, dict) for one in event.agent_action.artifacts)
    assert all(fault.rule in event_rules() for fault in faults)
