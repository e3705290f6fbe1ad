"""`stream observe --sdk`: what an agent reports by its hooks or by OpenTelemetry, all of it."""

from __future__ import annotations

import json
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from anyio import create_memory_object_stream, create_task_group, fail_after, run

from stream.pipeline import Batch
from stream.sources.tool_calls import ToolCallChannels
from tests.cli.command import PATIENCE, Place
from tests.feeds import FEEDS
from tests.recorder.runs import Run, observe, read_records

EXPORT = Path(__file__).parents[1] / "data/claude/parallel.otel.ndjson"
SECRET = "ghp_0Aa1Bb2Cc30Aa1Bb2Cc30Aa1Bb2Cc30Aa1Bb2"
NO_RECORD = "no JSON of the form that is expected there (not_a_record)"
HOOKS = ("--kernel", "auto", "--sdk", "hooks")
OTEL = ("--kernel", "auto", "--sdk", "otel")
#: What an exporter does, for as many files as it is given.
SEND = """
import os, sys, urllib.request
for path in sys.argv[1:]:
    for body in open(path, "rb"):
        place = os.environ["OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"]
        urllib.request.urlopen(urllib.request.Request(place, body))
"""


def hook_command(event: str, call: str = "a", tool: str = "Bash", **given: str) -> str:
    """Return the line of a shell that calls the hook."""
    given_input = {
        "session_id": "s",
        "hook_event_name": event,
        "tool_name": tool,
        "tool_use_id": call,
        "tool_input": given,
    }
    return f"echo '{json.dumps(given_input)}' | \"$STREAM_HOOK\"\n"


def verify_run(place: Place, run: Run) -> None:
    done = place.stream("verify", run.folder)
    assert done.code == 0, done.out.decode() + done.err


def read_layer(run: Run, name: str) -> list[Any]:
    return read_records(run.folder / f"layers/{name}.ndjson")


def wait_until_gone(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while path.exists():
        assert time.monotonic() < deadline, f"{path} is still there"


@pytest.mark.parametrize("kernel", FEEDS)
def test_hooks_of_any_agent(place: Place, kernel: str) -> None:
    agent = hook_command("PreToolUse") + "echo hello > made\n" + hook_command("PostToolUseFailure")
    run = observe(place, "--kernel", kernel, "--sdk", "hooks", "--", "sh", "-c", agent)
    verify_run(place, run)
    assert [one["event_type"] for one in read_layer(run, "sdk")] == [
        *("tool_call_started", "tool_call_completed")
    ]
    clocks = [one["clock"] for one in read_layer(run, "markers")[1:-1]]
    assert clocks == ["kernel"] * 2


def test_stdout_reports_no_calls_where_hooks_do(place: Place) -> None:
    recorded_stream = Path(__file__).parents[1] / "data/claude/parallel.stream.jsonl"
    decides = f"sed s/bypassPermissions/acceptEdits/ {recorded_stream}"
    agent = f"{decides}\n{hook_command('PreToolUse')}"
    run = observe(place, *HOOKS, "--", "sh", "-c", agent)
    verify_run(place, run)
    assert [one["source"] for one in read_layer(run, "sdk")] == ["claude-code-hooks"]
    assert len(read_layer(run, "policy")) == 6


@pytest.mark.parametrize("kernel", FEEDS)
@pytest.mark.parametrize(("use", "is_own"), [("cat", True), ("echo >>", False)])
def test_the_settings_are_the_recorders_as_long_as_they_are_read(
    place: Place, kernel: str, use: str, *, is_own: bool
) -> None:
    agent = f'{use} "$STREAM_HOOK_SETTINGS"'
    run = observe(place, "--kernel", kernel, "--sdk", "hooks", "--", "sh", "-c", agent)
    verify_run(place, run)
    surface = json.loads((run.folder / "capability-surface.json").read_bytes())
    found = [path for path in surface["filesystem_paths"] if path.endswith("/hooks.json")]
    assert bool(found) == (not is_own)


FORMS = Path(__file__).parents[1] / "data/agents"


@pytest.mark.parametrize(
    ("agent", "types"),
    [
        (
            "codex",
            {
                "item.completed": 3,
                "item.started": 1,
                "thread.started": 1,
                "turn.completed": 1,
                "turn.started": 1,
            },
        ),
        ("opencode", {"step_finish": 2, "step_start": 2, "text": 1, "tool_use": 1}),
        ("gemini", {"init": 1, "message": 2, "result": 1, "tool_result": 1, "tool_use": 1}),
    ],
)
def test_calls_in_a_form_that_is_not_known_are_no_silence(
    place: Place, agent: str, types: dict[str, int]
) -> None:
    """And the run is whole: a line is stream-json only where it has that form."""
    run = observe(place, *HOOKS[:2], "--", "cat", FORMS / f"{agent}.stream.jsonl")
    verify_run(place, run)
    assert run.summary["incomplete"] == []
    assert run.summary["unknown_form"] == types
    assert read_layer(run, "sdk") == read_layer(run, "policy") == []
    assert place.stream("check", run.folder, "--profile", "agents").code == 0
    lines = f"no tool calls were reported in a known format: {sum(types.values())} lines"
    assert lines in run.done.err
    assert all(f"{count} {kind}" in run.done.err for kind, count in types.items())
    report = json.loads((run.folder / "correlation-report.json").read_bytes())
    assert report["status"] == "partial"
    assert "told_and_not_used:stdout,unknown_form" in report["ambiguities"]


@pytest.mark.parametrize(
    ("key", "reported_by"),
    [
        ("qwen_code_version", ("qwen-code", "qwen-code", "0.15.10")),
        ("some_version", ("unknown", None, None)),
    ],
)
def test_who_speaks_is_what_the_stream_reports(
    place: Place, key: str, reported_by: tuple[str, str | None, str | None]
) -> None:
    path = place.root / "sent.jsonl"
    lines = (FORMS / "qwen.stream.jsonl").read_bytes()
    path.write_bytes(lines.replace(b"qwen_code_version", key.encode()))
    run = observe(place, *HOOKS[:2], "--", "cat", path)
    verify_run(place, run)
    events = read_layer(run, "sdk")
    assert {(e["source"], e["sdk_name"], e["sdk_version"]) for e in events} == {reported_by}
    assert len(events) == 3
    assert run.summary["unknown_form"] == {}


def test_what_reports_no_calls_is_no_other_form(place: Place) -> None:
    lines = ('{"level":"info"}', '[{"type":"a"}]', 'a {"type":"b"}', '{"type":7}')
    run = observe(place, *HOOKS[:2], "--", "printf", r"%s\n", *lines)
    assert run.summary["unknown_form"] == {}
    assert "no tool calls were reported\n" in run.done.err


@pytest.mark.parametrize("how", [HOOKS, OTEL], ids=["hooks", "otel"])
def test_nobody_reported_anything(place: Place, how: tuple[str, ...]) -> None:
    run = observe(place, *how, "--", "true")
    verify_run(place, run)
    assert f"--sdk {how[-1]}: nothing was told" in run.done.err
    assert run.summary["incomplete"] == []


def test_what_is_put_down_meanwhile_is_nobody_elses(place: Place) -> None:
    agent = f'umask 0\n{hook_command("PreToolUse")}stat -c %a "$STREAM_HOOK"s.ndjson'
    run = observe(place, *HOOKS, "--", "sh", "-c", agent)
    assert run.stdout.split() == [b"600"]
    assert list(run.folder.glob(".*")) == []
    assert stat.S_IMODE(run.folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", ["redacted", "hashed"])
def test_no_secret_stays(place: Place, mode: str) -> None:
    agent = hook_command("PreToolUse", command=f"use {SECRET}") + hook_command(
        "PostToolUse", call=SECRET
    )
    path = place.root / "agent.sh"  # its own words are not what is asked about
    path.write_text(agent)
    run = observe(place, *HOOKS, "--capture", mode, "--", "sh", path)
    assert len(read_layer(run, "sdk")) == 2
    for file in run.folder.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file


def test_nothing_in_the_clear_outlives_a_recorder_that_was_killed(place: Place) -> None:
    agent = f"{hook_command('PreToolUse', command=SECRET)}echo sent\nexec sleep 1000\n"
    words = ("--run-id", "killed", "--grace", "0", "--", "sh", "-c", agent)
    process = place.start("observe", *HOOKS, *words)
    assert process.stdout is not None
    assert process.stdout.readline() == b"sent\n"
    folder = place.workspace / "runs/killed"
    assert SECRET in (folder / ".wrappers/hooks.ndjson").read_text()
    process.kill()
    place.finish(process)
    wait_until_gone(folder / ".wrappers")


def test_a_log_that_is_made_shorter_is_reported(tmp_path: Path) -> None:
    """Whoever can write there can do that, but not in silence."""

    async def receive_blocks() -> list[Any]:
        channels = ToolCallChannels(tmp_path / "home", "hooks")
        channels.open()
        channels.log.write_bytes(b"text\n")
        out, batches = create_memory_object_stream[Batch[Any]](8)
        with fail_after(PATIENCE), out, batches:
            async with create_task_group() as tasks:
                tasks.start_soon(channels.run, out)
                first = await batches.receive()
                channels.log.write_bytes(b"no\n")
                channels.end()
            channels.close()
            out.close()
            return [*first.items, *[item async for batch in batches for item in batch.items]]

    block, dropped = run(receive_blocks)
    assert (block.channel, block.data) == ("log", b"text\n")
    assert (dropped.channel, dropped.why) == ("log", "shortened")


def test_lines_of_hooks_that_are_none_are_counted(place: Place) -> None:
    agent = 'echo nothing | "$STREAM_HOOK"; printf torn >>"$STREAM_HOOK"s.ndjson'
    run = observe(place, *HOOKS, "--", "sh", "-c", agent, check=False)
    verify_run(place, run)
    assert run.summary["incomplete"] == [
        f"1 line of the hooks could not be used: {NO_RECORD}",
        "1 line of the hooks could not be used: cut off before its end (torn)",
    ]


def test_a_hook_that_does_not_come_to_its_line_is_counted(place: Place) -> None:
    """It finds no log to write to."""
    log = '"$STREAM_HOOK"s.ndjson'
    agent = f"rm {log}; mkdir {log}; {hook_command('PreToolUse')}"
    run = observe(place, *HOOKS, "--", "sh", "-c", agent, check=False)
    verify_run(place, run)
    assert read_layer(run, "sdk") == []
    assert run.summary["incomplete"] == [
        "1 hook invocation did not record its input",
        "calls of wrapped programs: the wrappers were taken away or changed",
    ]
    report = json.loads((run.folder / "correlation-report.json").read_bytes())
    assert "told_and_not_used:hooks,missed" in report["ambiguities"]


def test_a_refused_call_ends_with_its_refusal(place: Place) -> None:
    """Hooks report its beginning only."""
    result = {"type": "tool_result", "tool_use_id": "a", "is_error": True}
    use = {"type": "tool_use", "id": "a", "name": "Bash"}
    meta = [{"id": "a", "permission_decision": {"decision": "reject"}}]
    call, refused = (
        json.dumps({"type": speaker, "session_id": "s", "message": {"content": [block]}, **more})
        for speaker, block, more in (
            ("assistant", use, {}),
            ("user", result, {"tool_result_meta": meta}),
        )
    )
    agent = f"echo '{call}'\n{hook_command('PreToolUse')}: >before\necho '{refused}'\n: >after\n"
    run = observe(place, *HOOKS, "--", "sh", "-c", agent)
    verify_run(place, run)
    source_of = {one["event_type"]: one["source"] for one in read_layer(run, "sdk")}
    assert source_of == {
        "tool_call_started": "claude-code-hooks",
        "tool_call_completed": "unknown",  # its stdout does not show who wrote it
    }
    begun, ended = (one["at"] for one in read_layer(run, "markers")[1:-1])
    opened = {Path(str(one["value"])).name: one["seq"] for one in read_layer(run, "kernel")}
    assert begun <= opened["before"] < ended <= opened["after"]


def test_otel_of_any_agent(place: Place) -> None:
    run = observe(place, *OTEL, "--", sys.executable, "-c", SEND, EXPORT)
    verify_run(place, run)
    assert {one["source"] for one in read_layer(run, "sdk")} == {"claude-code-otel"}
    assert len(read_layer(run, "sdk")) == 12
    decided = read_layer(run, "policy")
    assert {one["source_event_type"] for one in decided} == {"claude_code.tool_decision"}
    assert {one["decision"] for one in decided} == {"allow"}
    assert len(decided) == 6


def test_bodies_that_are_none_are_counted(place: Place) -> None:
    path = place.root / "bodies"
    path.write_bytes(b"nothing\n" + EXPORT.read_bytes())
    run = observe(place, *OTEL, "--", sys.executable, "-c", SEND, path, check=False)
    verify_run(place, run)
    assert run.summary["incomplete"] == [f"1 line of the otel could not be used: {NO_RECORD}"]
    assert len(read_layer(run, "sdk")) == 12


def test_the_names_of_what_was_given_are_on_record(place: Place) -> None:
    hooks = observe(place, *HOOKS, "--", "true")
    (started, _) = read_records(hooks.folder / "events.ndjson")
    assert {"STREAM_HOOK", "STREAM_HOOK_SETTINGS"} <= set(started["env_keys"])
