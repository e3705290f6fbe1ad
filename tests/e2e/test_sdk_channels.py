"""The real agent, whose calls come from its hooks or from OpenTelemetry."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.e2e.rig import ALLOWED, STREAM_JSON, Recorded, Rig, bash_turn, text_turn, write_turn
from tests.e2e.test_kernel import KERNEL, find_windows, written_in
from tests.sweeping import first_of

SCRIPT = [
    write_turn("alpha.txt", "alpha\n"),
    bash_turn("echo beta > beta.txt && mkdir deep && mv beta.txt deep/"),
    write_turn("gamma.txt", "gamma\n"),
    text_turn("Done."),
]
CALLS = ["toolu_stub_0_0", "toolu_stub_1_0", "toolu_stub_2_0"]
TOOLS = ["Write", "Bash", "Write"]
CLAUDE = 'exec claude --settings "$STREAM_HOOK_SETTINGS" -p "$@"'


def record_with_hooks(
    rig: Rig, name: str, *words: str, before: str = "", missing: Sequence[str] = ()
) -> Recorded:
    command = ("sh", "-c", f"{before}{CLAUDE}", "sh")
    options = (*KERNEL, "--sdk", "hooks")
    how: dict[str, Any] = {
        "options": options,
        "command": command,
        "agent": "claude-code",
        "is_whole": not missing,
    }
    recorded = rig.record(name, SCRIPT, *words, ALLOWED, **how)
    return verify_whole(rig, recorded, missing)


def record_with_otel(rig: Rig, name: str, *words: str) -> Recorded:
    recorded = rig.record(name, SCRIPT, *words, ALLOWED, options=(*KERNEL, "--sdk", "otel"))
    return verify_whole(rig, recorded)


def verify_whole(rig: Rig, recorded: Recorded, missing: Sequence[str] = ()) -> Recorded:
    """Whole, and nothing is left of what was in the clear while it lasted."""
    done = rig.place.stream("verify", recorded.folder)
    assert done.code == 0, done.out.decode() + done.err
    assert sorted(path.name for path in recorded.folder.glob(".*")) == []
    assert sorted(recorded.summary["incomplete"]) == sorted(missing)
    assert "".join((recorded.workspace / "alpha.txt").read_text()) == "alpha\n"
    assert (recorded.workspace / "deep/beta.txt").exists()
    return recorded


def read_report(recorded: Recorded) -> Any:
    return json.loads((recorded.folder / "correlation-report.json").read_bytes())


def list_sdk_events(recorded: Recorded) -> list[tuple[str, str, str, str]]:
    return [
        (one["event_type"], one["tool_call_id"], one["tool"], one["source"])
        for one in recorded.lines("layers/sdk.ndjson")
    ]


def expected_events(source: str) -> list[tuple[str, str, str, str]]:
    return [
        (f"tool_call_{what}", call, tool, source)
        for call, tool in zip(CALLS, TOOLS, strict=True)
        for what in ("started", "completed")
    ]


def list_decisions(recorded: Recorded) -> list[tuple[str, str, str]]:
    return [
        (one["tool_call_id"], one["decision"], one["source_event_type"])
        for one in recorded.lines("layers/policy.ndjson")
    ]


@pytest.mark.parametrize(
    "words", first_of(pytest.param(STREAM_JSON, id="stream-json"), pytest.param((), id="text"))
)
def test_hooks_report_when_each_call_began_and_ended(rig: Rig, words: tuple[str, ...]) -> None:
    recorded = record_with_hooks(rig, f"hooks{len(words)}", *words)
    assert list_sdk_events(recorded) == expected_events("claude-code-hooks")
    markers = recorded.lines("layers/markers.ndjson")
    assert {marker["clock"] for marker in markers} == {"kernel"}
    found = find_windows(recorded)
    assert list(found) == CALLS
    for call, name in zip(CALLS, ("alpha.txt", "beta.txt", "gamma.txt"), strict=True):
        wrote = {path.rpartition("/")[2] for path in written_in(recorded, found[call])}
        assert any(path.startswith(name) for path in wrote)
        others = {"alpha.txt", "beta.txt", "gamma.txt"} - {name}
        assert not any(path.startswith(other) for path in wrote for other in others)
    bound = {one["tool_call_id"]: one for one in read_report(recorded)["bindings"]}
    assert list(bound) == CALLS
    assert all(one["kernel_event_count"] for one in bound.values())
    assert list_decisions(recorded) == []  # with all permissions bypassed, nobody decides
    assert read_report(recorded)["status"] == "clean"


def test_what_the_hooks_do_is_no_calls(rig: Rig) -> None:
    """They run inside of the windows: what Claude Code does in a window, but not what they do."""
    recorded = record_with_hooks(rig, "own", *STREAM_JSON)
    events = recorded.lines("layers/kernel.ndjson")
    hooks = [one for one in events if (one["value"] or "").endswith(".wrappers/hook")]
    runs = [one["seq"] for one in hooks if one["kind"] == "exec"]
    assert len(runs) == 6
    found = find_windows(recorded)
    assert sum(seq in window for seq in runs for window in found.values()) == 3
    for binding in read_report(recorded)["bindings"]:
        assert binding["kernel_event_count"] < len(found[binding["tool_call_id"]])


#: Who changes anything in the recorder's folder may have changed more: nothing is vouched for then.
TAKEN = "calls of wrapped programs: the wrappers were taken away or changed"
UNSEEN = "1 line of artifacts/command_logs.jsonl: no wrapper was seen to write that"
MISSED = "6 hook invocations did not record their input"


@pytest.mark.parametrize(
    ("harm", "missing"),
    first_of(
        pytest.param('rm "$STREAM_HOOK"; ', [TAKEN, UNSEEN], id="gone"),
        pytest.param(
            "printf '#!/bin/sh\\nkill -9 $$\\n' >\"$STREAM_HOOK\"; ", [UNSEEN], id="killed"
        ),
        pytest.param(
            'log=${STREAM_HOOK}s.ndjson; rm "$log"; mkdir "$log"; ', [MISSED, TAKEN], id="no log"
        ),
    ),
)
def test_hooks_that_fail_do_not_break_the_agent(
    rig: Rig, harm: str, missing: list[str], request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id.replace(" ", "-")
    recorded = record_with_hooks(rig, name, *STREAM_JSON, before=harm, missing=missing)
    assert recorded.done.code == 0
    assert list_sdk_events(recorded) == []
    assert "--sdk hooks: nothing was told" in recorded.done.err
    assert read_report(recorded)["status"] == "partial"


def test_a_refused_call_ends_with_its_refusal(rig: Rig) -> None:
    """Claude Code runs no hook after it; its stdout shows it."""
    script = [write_turn("alpha.txt", "alpha\n"), bash_turn("true"), text_turn("Done.")]
    options, command = (*KERNEL, "--sdk", "hooks"), ("sh", "-c", CLAUDE, "sh")
    recorded = rig.record(
        "refused", script, *STREAM_JSON, options=options, command=command, agent="claude-code"
    )
    assert rig.place.stream("verify", recorded.folder).code == 0
    bound = read_report(recorded)["bindings"]
    assert [(one["tool_call_id"], one["policy_decision"]) for one in bound] == [
        (CALLS[0], "deny"),
        (CALLS[1], "allow"),
    ]
    assert [one["window"]["end"] for one in bound] == [
        f"tool_call_completed:{call}" for call in CALLS[:2]
    ]


def test_otel_reports_the_calls_but_not_when(rig: Rig) -> None:
    recorded = record_with_otel(rig, "otel", *STREAM_JSON)
    assert list_sdk_events(recorded) == expected_events("claude-code-otel")
    marked = [one["name"] for one in recorded.lines("layers/markers.ndjson")]
    assert [name for name in marked if name != "wrapper_told"] == ["run_started", "run_finished"]
    assert list_decisions(recorded) == []
    found = read_report(recorded)
    assert found["status"] == "partial"
    total = len(recorded.lines("layers/kernel.ndjson"))
    assert [one["kernel_event_count"] for one in found["bindings"]] == [total] * 3
    without = [f"sdk_tool_call_without_window:{call}" for call in CALLS]
    assert found["ambiguities"] == without


def test_otel_reports_what_was_decided_where_stdout_does_not(rig: Rig) -> None:
    recorded = record_with_otel(rig, "otel-text")
    assert list_sdk_events(recorded) == expected_events("claude-code-otel")
    assert list_decisions(recorded) == [
        (call, "allow", "claude_code.tool_decision") for call in CALLS
    ]
    health = json.loads((recorded.folder / "observation-health.json").read_bytes())
    assert (health["sdk_layer"], health["policy_layer"]) == ("self_reported", "present")
