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
from stream.transformers.event_rules import MOST_EVIDENCE, RULES, read_event
from stream.transformers.invariants import Invariants
from tests.core.properties import check_batch_independence
from tests.sweeping import thorough
from tests.transformers.cells import PLAIN
from tests.transformers.runs import (
    NAMES,
    Event,
    Run,
    artifact,
    changed_events,
    encoded,
    event,
    good_run,
    published,
)
from tests.transformers.samples import lines, run_transformer, split

GOOD = encoded(good_run())
DATA = b"\n".join([*GOOD, b""])


def judged(
    items: list[bytes], profile: Profile = "poc", *, is_alone: bool = True
) -> tuple[list[bytes], list[Control]]:
    transformer = Invariants(profile, is_alone=is_alone, source="empty")
    return run_transformer(transformer, [lines(*items, source="events.jsonl")])


def found(items: list[bytes], profile: Profile = "poc", *, is_alone: bool = True) -> list[Finding]:
    _, said = judged(items, profile, is_alone=is_alone)
    return [record for record in said if isinstance(record, Finding)]


def rules(items: list[bytes], profile: Profile = "poc", *, is_alone: bool = True) -> list[str]:
    return [finding.rule for finding in found(items, profile, is_alone=is_alone)]


def at(run: Run, number: int, path: str) -> tuple[Any, Any]:
    """What holds the value at a path of an event, and its key there."""
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    holder: Any = run[number - 1]
    for step in steps:
        holder = holder[step]
    return holder, last


Change = Callable[[Run], "list[bytes] | None"]


def put(path: str, value: Any, number: int = 5) -> Change:
    def change(run: Run) -> None:
        holder, key = at(run, number, path)
        holder[key] = value

    return change


def drop(path: str, number: int = 5) -> Change:
    def change(run: Run) -> None:
        holder, key = at(run, number, path)
        del holder[key]

    return change


def _each_line(edit: Callable[[list[bytes]], list[bytes]]) -> Change:
    return lambda run: edit(encoded(run))


def _moved(run: Run) -> None:
    """The evaluation after the end; nobody's parent, no time is touched."""
    run[7], run[8] = run[8], run[7]
    run[7]["timestamp"], run[8]["timestamp"] = run[8]["timestamp"], run[7]["timestamp"]


def _without(number: int) -> Change:
    def change(run: Run) -> None:
        del run[number - 1]

    return change


def _again(run: Run) -> None:
    """commands_observation_unavailable as well: a second form of the seventh."""
    more = copy.deepcopy(run[6])
    name = "commands_observation_unavailable"
    more["event_type"], more["event_id"], more["span_id"] = name, "another", "another"
    more["agent_action"]["action_summary"] = f"[{name}] wrappers disabled"
    run.insert(7, more)


def _after_the_end(run: Run) -> None:
    more = copy.deepcopy(run[7])
    more["event_id"] = more["span_id"] = "another"
    more["timestamp"] = run[8]["timestamp"]
    run.append(more)


def _lost(run: Run) -> None:
    run[4]["agent_action"]["artifacts"][0]["metadata"]["lost_bytes"] = 4096


def _check(**changes: Any) -> Change:
    def change(run: Run) -> None:
        run[7]["evaluation"]["quality"]["checks"][0].update(changes)

    return change


def _unfounded(run: Run) -> None:
    run[7]["evaluation"]["alignment"] = {"status": "warn", "score": 1, "violations": []}


def _finished(part: str) -> Change:
    """The last event has another status than the evaluation had, and says so."""

    def change(run: Run) -> None:
        run[8]["evaluation"][part] = {"status": "unknown", "score": None, "checks": []}
        summary = run[8]["agent_action"]["action_summary"]
        new = summary.replace(f"{part} pass", f"{part} unknown")
        run[8]["agent_action"]["action_summary"] = new

    return change


def _told(number: int) -> Change:
    def change(run: Run) -> None:
        action = run[number - 1]["agent_action"]
        action["action_summary"] = action["action_summary"].replace("policy pass", "policy=fail")

    return change


def _spelled(old: bytes, new: bytes) -> Change:
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
    ("timestamp.order", put("timestamp", "2026-03-04T05:06:03.999999Z")),
    ("timestamp.order", put("timestamp", "2026-03-04T05:06:07.123457Z", 6)),
    ("run.one", lambda run: encoded([*run, *good_run(7)])),
    ("run.incomplete", lambda run: encoded(run[:6])),
    ("run.incomplete", lambda run: []),
    ("run.incomplete", lambda run: [*encoded(run[:3]), TornLine(GOOD[3][:700])]),
    ("run.incomplete", lambda run: [TornLine(GOOD[0][:70])]),
    ("run.incomplete", _lost),
    ("run.incomplete", put(f"{_ARTIFACT}.metadata.lost_bytes", 7.0)),
    ("run.missing", _without(8)),
    ("run.twice", _again),
    ("run.order", _moved),
    ("run.order", _after_the_end),
    ("event.name", put("event_type", "agent_thought")),
    ("event.name", put("event_type", 5)),
    ("event.name", lambda run: encoded([*published(run)[:4], _nameless(run[4]), *run[5:]])),
    ("event.names_agree", put("agent_action.action_summary", "[run_started] logs are there")),
    ("schema_version", put("schema_version", 0.2)),
    ("schema_version", drop("schema_version")),
    ("event_id", put("event_id", 5)),
    ("event_id.unique", put("event_id", event(4)["event_id"])),
    ("timestamp", put("timestamp", 1772600765)),
    ("timestamp.rfc3339", put("timestamp", "2026-03-04 05:06:05")),
    ("timestamp.rfc3339", put("timestamp", "2026-03-04T06:06:05+01:00")),
    ("timestamp", put("timestamp", "Wed Mar  4 05:06:05 2026")),
    ("timestamp", put("timestamp", "yesterday")),
    ("timestamp", put("timestamp", "2026-02-30T05:06:05Z")),
    ("timestamp", put("timestamp", "2026-03-04T25:06:05Z")),
    ("trace_id", put("trace_id", 5)),
    ("trace_id.constant", put("trace_id", "other")),
    ("span_id", put("span_id", [])),
    ("span_id", put("span_id", 5, 4)),
    ("span_id.unique", put("span_id", event(4)["span_id"], 8)),
    ("parent_span_id", drop("parent_span_id")),
    ("parent_span_id", put("parent_span_id", 5)),
    ("parent_span_id.earlier", put("parent_span_id", event(6)["span_id"])),
    ("parent_span_id.earlier", put("parent_span_id", event(5)["span_id"])),
    ("parent_span_id.earlier", put("parent_span_id", "before all", 1)),
    ("parent_span_id.root", put("parent_span_id", None)),
    ("observability_mode", put("observability_mode", "white_box")),
    ("observability_mode", drop("observability_mode")),
    ("session", put("session", "run")),
    ("session", drop("session")),
    ("request", put("request", [])),
    ("prompt_provenance", put("prompt_provenance", 1)),
    ("model_output", drop("model_output")),
    ("agent_action", drop("agent_action", 8)),
    ("evaluation", put("evaluation", True)),
    ("session.session_id", put("session.session_id", 5)),
    ("session.run_id", put("session.run_id", 5)),
    ("session.run_id", put("session.run_id", 5, 1)),
    ("session.run_id", drop("session.run_id")),
    ("run.constant", put("schema_version", "0.3")),
    ("run.constant", put("session.session_id", "other", 7)),
    ("run.constant", put("session.agent_version", "2.1.327", 9)),
    ("run.constant", put("session.environment", "prod", 2)),
    ("run.constant", put("prompt_provenance.capture_mode", "hashed")),
    ("run.evaluation", _finished("policy")),
    ("run.evaluation", _finished("quality")),
    ("evaluation.told", _told(8)),
    ("evaluation.told", _told(9)),
    ("evaluation.contradiction", put("evaluation.policy.checks.0.status", "fail", 8)),
    ("evaluation.contradiction", put("evaluation.policy.checks.1", _FAILED, 8)),
    ("evaluation.contradiction", put("evaluation.quality.violations", [_WARNED], 8)),
    ("evaluation.contradiction", put(f"{_VIOLATION}.severity", "fail", 8)),
    ("prompt.visible", put("prompt_provenance.system_prompt", "You are")),
    ("prompt.visible", put("prompt_provenance.parameters.prompt_visible", True)),
    ("prompt.visible", put("systemPrompt", ["You", "are"])),
    ("prompt.visible", put("model_output.output_structured", {"a": [{"PROMPT": {"b": 1}}]})),
    ("prompt.visible", put(f"{_ARTIFACT}.metadata.prompts", "seen")),
    ("line.duplicate_key", _spelled(b'"trace_id":', b'"trace_id":"x","trace_id":')),
    ("line.duplicate_key", _spelled(b'"status":', b'"status":"pass","status":')),
    ("line.duplicate_key", _spelled(b'"context":{', b'"context":{"a":1,"a":1,')),
    ("line.duplicate_key", _spelled(b'"metadata":{', b'"metadata":{"a":{"b":1,"b":1},')),
    ("line.duplicate_key", _spelled(b'"session":{', b'"session":{"run_i\\u0064":"x",')),
    ("session.agent_version", put("session.agent_version", 2.1)),
    ("session.environment", put("session.environment", "laptop")),
    ("session.environment", drop("session.environment")),
    ("request.request_id", put("request.request_id", 5)),
    ("request.user_request_raw", put("request.user_request_raw", ["add", "tests"])),
    ("request.constraints", put("request.constraints", {})),
    ("request.constraints", put("request.constraints", ["output.json_only"])),
    ("request.context", put("request.context", "python")),
    ("constraint.id", put(f"{_CONSTRAINT}.id", 5, 2)),
    ("constraint.type", put(f"{_CONSTRAINT}.type", "taste", 2)),
    ("constraint.rule", drop(f"{_CONSTRAINT}.rule", 2)),
    ("constraint.canonical", put(f"{_CONSTRAINT}.type", "style", 2)),
    ("prompt_provenance.provider", put("prompt_provenance.provider", 5)),
    ("prompt_provenance.model", drop("prompt_provenance.model")),
    ("prompt_provenance.capture_mode", put("prompt_provenance.capture_mode", "partial")),
    ("prompt_provenance.prompt_bundle", put("prompt_provenance.prompt_bundle", {})),
    ("prompt_provenance.prompt_bundle_hash", put("prompt_provenance.prompt_bundle_hash", "ab")),
    ("prompt_provenance.parameters", put("prompt_provenance.parameters", [])),
    ("prompt_provenance.parameters", put("prompt_provenance.parameters.top_p", "unknown")),
    ("model_output.completion_id", put("model_output.completion_id", 5)),
    ("model_output.completion_id.null", put("model_output.completion_id", "msg_01")),
    ("model_output.output_raw", put("model_output.output_raw", {})),
    ("model_output.output_raw", put("model_output.output_raw", "It is done.")),
    ("model_output.output_structured", put("model_output.output_structured", "{}")),
    ("model_output.tool_calls", put("model_output.tool_calls", [{"name": "Bash"}])),
    ("model_output.usage", put("model_output.usage", 5)),
    ("model_output.usage", put("model_output.usage.latency_ms", True)),
    ("agent_action.action_type", put("agent_action.action_type", "think")),
    ("agent_action.action_summary", put("agent_action.action_summary", 5)),
    ("agent_action.artifacts", put("agent_action.artifacts", "none", 8)),
    ("agent_action.artifacts", put("agent_action.artifacts", [[]], 8)),
    ("agent_action.tool_results", put("agent_action.tool_results", [1])),
    ("artifact.type", put(f"{_ARTIFACT}.type", 5, 3)),
    ("artifact.id", put(f"{_ARTIFACT}.id", 5, 3)),
    ("artifact.summary", drop(f"{_ARTIFACT}.summary")),
    ("artifact.content_ref", put(f"{_ARTIFACT}.content_ref", 5)),
    ("artifact.hash", put(f"{_ARTIFACT}.hash", 5)),
    ("artifact.metadata", put(f"{_ARTIFACT}.metadata", [])),
    ("run.stdout_log", drop("agent_action.artifacts.0")),
    ("run.stdout_log", put("agent_action.artifacts.0", artifact("stdout_log", "out.txt"))),
    ("run.stderr_log", drop("agent_action.artifacts.1")),
    ("run.diff", drop("agent_action.artifacts.0", 6)),
    ("run.command_log", drop("agent_action.artifacts.0", 7)),
    ("evaluation.alignment", drop("evaluation.alignment")),
    ("evaluation.quality", put("evaluation.quality", [])),
    ("evaluation.policy", put("evaluation.policy", "pass")),
    ("evaluation.status", put("evaluation.policy.status", "good")),
    ("evaluation.status", drop("evaluation.alignment.status")),
    ("evaluation.score", drop("evaluation.alignment.score")),
    ("evaluation.score", put("evaluation.quality.score", "high")),
    ("evaluation.violations", drop("evaluation.alignment.violations")),
    ("evaluation.violations", put("evaluation.policy.violations", [5])),
    ("evaluation.checks", drop("evaluation.policy.checks")),
    ("evaluation.checks", put("evaluation.alignment.checks", {})),
    ("violation.id", drop(f"{_VIOLATION}.id", 8)),
    ("violation.severity", put(f"{_VIOLATION}.severity", "pass", 8)),
    ("violation.message", put(f"{_VIOLATION}.message", 5, 8)),
    ("violation.evidence", put(f"{_VIOLATION}.evidence", 5, 8)),
    ("check.id", _check(id=5)),
    ("check.status", _check(status="skipped")),
    ("check.evidence", _check(evidence=[])),
    ("unknown.null", put("session.agent_version", None)),
    ("unknown.null", put("model_output.tool_calls", None)),
    ("unknown.null", put("prompt_provenance.prompt_bundle_hash", None)),
    ("unknown.null", put("event_type", None)),
    ("unknown.empty", put("session.agent_version", "")),
    ("unknown.empty", put("session.agent_id", "")),
    (
        "action_summary.reasoning",
        put("agent_action.action_summary", "[artifacts_captured] the agent then wanted more"),
    ),
    ("evaluation.outcome", _unfounded),
    ("evaluation.outcome", put("evaluation.quality.checks", [], 8)),
    ("evidence.given", _check(evidence="")),
    ("evidence.given", put(f"{_VIOLATION}.evidence", "  ", 8)),
    ("evidence.source", _check(evidence="there are different tests")),
    ("evidence.source", put(f"{_VIOLATION}.evidence", "{'a': 1}", 8)),
    ("evidence.bounded", _check(evidence="stdout: " + "x" * (MOST_EVIDENCE - 7))),
    ("evidence.bounded", put("evaluation.policy.checks.1.evidence", "x" * (MOST_EVIDENCE + 1), 8)),
]
BROKEN_HERE = {rule for rule, _ in CASES} | {"line.length", "session.agent_id"}


def _lines(change: Change) -> list[bytes]:
    run = good_run()
    items = change(run)
    return encoded(run) if items is None else items


def _nameless(one: Event) -> Event:
    action = {**one["agent_action"], "action_summary": "the logs are there"}
    return {**{k: v for k, v in one.items() if k != "event_type"}, "agent_action": action}


@pytest.mark.parametrize(("rule", "change"), CASES, ids=[rule for rule, _ in CASES])
def test_a_rule_that_alone_is_broken_is_found_alone(rule: str, change: Change) -> None:
    run = good_run()
    items = change(run)
    (finding,) = found(encoded(run) if items is None else items)
    assert (finding.rule, finding.severity) == (rule, RULES[rule].severity)
    assert finding.message
    assert finding.source == ("empty" if items == [] else "events.jsonl")


def test_a_good_run_has_no_finding() -> None:
    assert judged(GOOD) == (GOOD, [])
    assert judged(GOOD, is_alone=False) == (GOOD, [])
    other = good_run()
    put("event_type", "commands_observation_unavailable", 7)(other)
    text = "[commands_observation_unavailable] wrappers disabled"
    put("agent_action.action_summary", text, 7)(other)
    drop("agent_action.artifacts.0", 7)(other)
    assert rules(encoded(other)) == []


def test_the_published_form_has_no_finding() -> None:
    run = published(good_run())
    assert all("event_type" not in one and one["schema_version"] == "0.2" for one in run)
    assert judged(encoded(run)) == (encoded(run), [])


def test_a_finding_says_where() -> None:
    run = good_run()
    put("session.environment", "laptop")(run)
    (finding,) = found(encoded(run))
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
        drop(path)(run)
    items = encoded(run)
    said, control = judged(items)
    assert said == items
    paths = [one.path for one in control if isinstance(one, Finding)]
    assert paths == ["$.trace_id", "$.request", "$.evaluation.policy.checks"]


def test_profile_agents_takes_any_agent() -> None:
    run = good_run()
    for one in run:
        one["session"]["agent_id"] = "codex"
    poc = found(encoded(run))
    assert [finding.rule for finding in poc] == ["session.agent_id"] * 9
    assert "--profile agents" in poc[0].message
    assert rules(encoded(run), "agents") == []
    put("session.agent_id", "")(run)
    put("session.environment", "x", 6)(run)
    assert rules(encoded(run), "agents") == ["unknown.empty", "session.environment"]


def test_an_overlong_line_has_a_rule_of_its_own() -> None:
    splitter = LineSplitter("events.jsonl", limit=3000)
    batch = splitter.feed(b"\n".join([*GOOD[:4], b"x" * 9000, *GOOD[4:], b""]))
    assert batch is not None
    said, (finding, reject) = run_transformer(Invariants(is_alone=True), [batch])
    assert said == GOOD
    assert isinstance(finding, Finding)
    assert isinstance(reject, Reject)
    assert (finding.rule, finding.line, reject.line) == ("line.length", 5, 5)


@pytest.mark.parametrize("is_alone", [True, False])
def test_every_prefix_is_one_finding(is_alone: bool) -> None:
    """However many bytes of a run there are: it is incomplete, and nothing else is wrong."""
    for size in (*range(1, len(DATA) - 1, 97), len(DATA) - 2):
        transformer = Invariants(is_alone=is_alone, source="empty")
        said, control = run_transformer(transformer, split(DATA[:size], [size // 2]))
        findings = [one for one in control if isinstance(one, Finding)]
        if not is_alone and not said:  # a torn line of anything
            assert [one.rule for one in findings] == ["line.json_object"]
            continue
        (finding,) = findings
        assert finding.rule == "run.incomplete"
        rejected = [one for one in control if isinstance(one, Reject)]
        assert len(rejected) == transformer.counts.rejected <= 1
        assert ("torn" in finding.message) == bool(rejected)
        assert NAMES[len(said)] in finding.message


def test_a_last_line_without_newline_is_whole() -> None:
    assert run_transformer(Invariants(is_alone=True), split(DATA[:-1], [])) == (GOOD, [])


def test_runs_in_one_pipe_are_judged_for_themselves() -> None:
    one, other = encoded(good_run(1)), encoded(good_run(2))
    mixed = [line for pair in zip(one, other, strict=True) for line in pair]
    assert rules(mixed, is_alone=False) == []
    assert rules([*one, *other], is_alone=False) == []
    (finding,) = found([*one[:4], *other, b"  "], is_alone=False)
    assert (finding.rule, finding.line) == ("run.incomplete", 4)
    again = found([*one, *one], is_alone=False)
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
    assert judged(items, is_alone=False) == (items, [])


def test_a_broken_event_is_still_taken_for_one() -> None:
    """Two of the fields that tell an event may be gone; with three gone it is any object."""
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
    said, control = run_transformer(transformer, [[finding, *GOOD]])
    assert (said, control, transformer.findings) == (GOOD, [finding], 0)


def test_how_much_of_what_was_lost_is_said() -> None:
    run = good_run()
    _lost(run)
    (finding,) = found(encoded(run))
    assert "4096 bytes of artifacts/claude_stdout.txt" in finding.message


# ------------------------------------------------------------------- properties

_BROKEN = [line for _, change in CASES[24::7] for line in _lines(change)[4:6]]
POOL = [*GOOD, *encoded(good_run(3))[:4], *_BROKEN, PLAIN, b"junk", b"", b" ", b'{"a":"\xff"}']


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
    whole = run_transformer(Invariants(is_alone=True, source="empty"), split(DATA[:end], []))
    assert (
        run_transformer(Invariants(is_alone=True, source="empty"), split(DATA[:end], cuts)) == whole
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
    (line,) = encoded([one])
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
    assert all(fault.rule in RULES for fault in faults)
