"""Runs of agents to check: a good one as a recorder writes it, and what may happen to it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from stream.records.decision import CONSTRAINTS

Event = dict[str, Any]
Run = list[Event]

NAMES = (
    "run_started",
    "workspace_prepared",
    "agent_invoked",
    "agent_completed",
    "artifacts_captured",
    "fs_diff_captured",
    "commands_observed",
    "evaluation_performed",
    "run_finished",
)
#: the span that each has as its parent
_PARENTS = (None, 1, 1, 3, 4, 4, 6, 7, 1)
_ACTIONS = ("other", "other", "plan", "other", "other", "edit", "run_tests", "other", "other")
_SUMMARIES = (
    "run {run} of scenario add_tests",
    "workspace copied from /srv/project: 214 files, 1830442 bytes",
    "claude -p, verbose yes, cwd /srv/runs/{run}/workspace",
    "exit_code 0, duration_ms 48211, no signal, 0 processes outlived the agent",
    "claude_stdout.txt 18211 bytes, claude_stderr.txt 0 bytes; declared, not observed",
    "3 paths changed: src/parse.py, tests/test_parse.py, README.md",
    "4 commands of wrapped programs: pytest 2, git 1, python 1; others are not seen",
    "alignment warn, quality pass, policy pass",
    "alignment warn, quality pass, policy pass; blocked no, nothing changed no",
)
_DIGEST = "sha256:" + "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945"
_EVIDENCE = "fs_diff.patch: +++ b/tests/test_parse.py, 14 lines added; " + _DIGEST


def make_artifact(kind: str, name: str, **metadata: Any) -> Event:
    return {
        "type": kind,
        "id": name,
        "summary": f"{name} of the run, 18211 bytes",
        "content_ref": f"artifacts/{name}",
        "hash": _DIGEST,
        "metadata": {"bytes": 18211, **metadata},
    }


def _process(run: str) -> Event:
    argv = ["claude", "-p", "add tests for the parser", "--output-format", "stream-json"]
    metadata = {"cwd": f"/srv/runs/{run}/workspace", "argv": argv, "pid": 4711}
    item = {"type": "process", "id": "agent", "summary": "the agent", "content_ref": None}
    return {**item, "hash": "unknown", "metadata": metadata}


def _artifacts(number: int, run: str) -> list[Event]:
    if number in (3, 4):
        return [_process(run)]
    if number == 5:
        return [
            make_artifact("stdout_log", "claude_stdout.txt", non_normative=True),
            make_artifact("stderr_log", "claude_stderr.txt", non_normative=True),
        ]
    if number == 6:
        paths = ["src/parse.py", "tests/test_parse.py", "README.md"]
        return [make_artifact("diff", "fs_diff.patch", method="git_diff", changed_paths=paths)]
    if number == 7:
        counts = {"pytest": 2, "git": 1, "python": 1}
        return [make_artifact("command_log", "command_logs.jsonl", observed_count=4, seen=counts)]
    return []


def _evaluation(number: int) -> Event:
    if number < 8:
        return {
            "alignment": {"status": "unknown", "score": None, "violations": []},
            "quality": {"status": "unknown", "checks": [], "score": None},
            "policy": {"status": "unknown", "checks": [], "score": None},
        }
    seen = f"claude_stdout.txt (stdout): {_DIGEST}"
    return {
        "alignment": {
            "status": "warn",
            "score": None,
            "violations": [
                {
                    "id": "output.json_only",
                    "severity": "warn",
                    "message": "The answer is JSON with a line before it.",
                    "evidence": seen,
                }
            ],
        },
        "quality": {
            "status": "pass",
            "checks": [
                {"id": "quality.tests_required", "status": "pass", "evidence": _EVIDENCE},
            ],
            "score": None,
        },
        "policy": {
            "status": "pass",
            "checks": [
                {"id": "scope.no_ci_changes", "status": "pass", "evidence": _EVIDENCE},
                {"id": "style.no_emojis", "status": "unknown", "evidence": ""},
            ],
            "score": None,
        },
    }


def event(number: int, *, key: int = 0) -> Event:
    """One of the nine, counted from 1, of a run with a key of its own."""
    run = f"20260304T05{key:08d}Z-add_tests"
    name = NAMES[number - 1]
    parent = _PARENTS[number - 1]
    constraints = [
        {"id": known.id, "type": known.type, "rule": known.rule} for known in CONSTRAINTS.values()
    ]
    return {
        "schema_version": "0.2",
        "event_type": name,
        "event_id": f"0195a1b2-0000-7000-{number:04x}-{key:012x}",
        "timestamp": f"2026-03-04T05:06:{number:02d}.123456Z",
        "trace_id": f"{key:032x}",
        "span_id": f"{key:08x}{number:08x}",
        "parent_span_id": f"{key:08x}{parent:08x}" if parent else None,
        "observability_mode": "black_box",
        "session": {
            "session_id": "add_tests",
            "run_id": run,
            "agent_id": "claude-code",
            "agent_version": "2.1.326",
            "environment": "local",
        },
        "request": {
            "request_id": f"{run}-request",
            "user_request_raw": "Add tests for the parser; change nothing else.",
            "constraints": constraints if number == 2 else [],
            "context": {"language": "python", "test_framework": "pytest", "package_manager": "pip"},
        },
        "prompt_provenance": {
            "provider": "anthropic",
            "model": "unknown",
            "capture_mode": "full",
            "prompt_bundle": None,
            "prompt_bundle_hash": "unknown",
            "parameters": {"temperature": None, "top_p": None, "max_tokens": None},
        },
        "model_output": {
            "completion_id": None,
            "output_raw": "captured_as_artifact" if number == 5 else None,
            "output_structured": None,
            "tool_calls": [],
            "usage": {"input_tokens": None, "output_tokens": None, "latency_ms": 48211},
        },
        "agent_action": {
            "action_type": _ACTIONS[number - 1],
            "action_summary": f"[{name}] {_SUMMARIES[number - 1].format(run=run)}",
            "artifacts": _artifacts(number, run),
            "tool_results": [],
        },
        "evaluation": _evaluation(number),
    }


def good_run(key: int = 0) -> Run:
    return [event(number, key=key) for number in range(1, 10)]


def as_published(run: Run) -> Run:
    """As the published runner writes it: an event's name is in its summary only."""
    return [{k: v for k, v in one.items() if k != "event_type"} for one in run]


def encode_run(run: Run) -> list[bytes]:
    return [json.dumps(one, ensure_ascii=False, separators=(",", ":")).encode() for one in run]


def many_runs(count: int) -> Iterator[bytes]:
    """Lines of that many good runs, cheaply: one run as a template."""
    template = "\n".join(line.decode() for line in encode_run(good_run(0xABCDEF)))
    for key in range(count):
        text = template.replace(f"{0xABCDEF:08x}", f"{key:08x}").replace(
            f"{0xABCDEF:08d}", f"{key:08d}"
        )
        yield from text.encode().split(b"\n")


POOL: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 2**70, 1e300, "", " ", "unknown", "pass", "fail", "warn"),
    *(
        "null",
        "codex",
        "claude-code",
        "black_box",
        "full",
        "style",
        "safety",
        "x" * 513,
        "stdout: é",
    ),
    *("sha256:0123abcd", "[run_started] x", "[run_started", "[x] y", "run_finished"),
    *("the agent thought", "2026-03-04T05:06:07Z", "2026-03-04T05:06:07.1234567+00:00"),
    *("2026-03-04T05:06:07+02:00", "2026-02-30T00:00:00Z", "2026-03-04", "0001-01-01T00:00:00"),
    *([], {}, [None], [{}], {"a": 1}, [[]], ["x"], {"lost_bytes": 5}, {"lost_bytes": "5"}),
    {"id": "a", "status": "pass", "evidence": "diff"},
    [{"id": "a", "status": "unknown", "evidence": ""}],
    [{"id": "a", "status": "pass", "evidence": "stdout, 5 lines"}],
    [{"id": "a", "severity": "warn", "message": "", "evidence": "fs_diff.patch"}],
    [{"id": "style.no_emojis", "type": "style", "rule": ""}],
    [{"id": "style.no_emojis", "type": "safety", "rule": ""}],
    {"status": "unknown", "checks": [], "violations": [], "score": None},
    {"status": "pass", "checks": [], "violations": [], "score": 1},
    {"status": "pass", "checks": [{"id": "a", "status": "fail", "evidence": "stderr"}]},
)
VALUES: st.SearchStrategy[Any] = st.sampled_from(POOL)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    steps = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    inner = [found for key, item in steps for found in _paths(item, (*path, key))]
    return [path, *inner] if path else inner


def changed_once(one: Event) -> Iterator[Event]:
    """Every value of an event replaced by every other one, and left out."""
    for *steps, last in _paths(one):
        for value in (*POOL, ...):
            other: Event = copy.deepcopy(one)
            holder: Any = other
            for step in steps:
                holder = holder[step]
            if value is ...:
                del holder[last]
            else:
                holder[last] = value
            yield other


@st.composite
def changed_events(draw: st.DrawFn) -> Event:
    """One of the nine, with up to three of its values replaced, left out or added."""
    one: Event = copy.deepcopy(draw(st.sampled_from([*good_run(), *as_published(good_run()[6:])])))
    for _ in range(draw(st.integers(0, 3))):
        *steps, last = draw(st.sampled_from(_paths(one)))
        holder: Any = one
        for step in steps:
            holder = holder[step]
        kind = draw(st.integers(0, 9))
        if kind == 0:
            del holder[last]
        elif kind == 1 and isinstance(holder, dict):
            holder[
                draw(st.sampled_from(["x", "checks", "violations", "score", "system_prompt"]))
            ] = copy.deepcopy(draw(VALUES))
        else:
            holder[last] = copy.deepcopy(draw(VALUES))
    return one
