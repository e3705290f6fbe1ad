"""An agent that works against what records it, and a recorder that is ended in the middle."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from stream.sources.kernel.ebpf import probe_ebpf
from stream.sources.kernel.strace import probe_strace
from tests.cli.command import Place
from tests.recorder.runs import Run, only_run, records

needs_ebpf = pytest.mark.skipif(bool(probe_ebpf()), reason=probe_ebpf() or "it loads")
needs_strace = pytest.mark.skipif(bool(probe_strace()), reason=probe_strace() or "it traces")
FEEDS = [
    pytest.param("ebpf", marks=needs_ebpf),
    pytest.param("strace", marks=needs_strace),
]
KERNEL = "layers/kernel.ndjson"
NOT_OURS = "was removed, replaced or written to by somebody else"
BEGUN = f"until [ -s ../{KERNEL} ]; do :; done"


def recorded(place: Place, feed: str, script: str, *words: str) -> Run:
    """Whatever its agent does, the run ends, and no link out of it was followed."""
    victim = place.root / "victim"
    victim.write_text("mine\n")
    how = ("--kernel", feed, "--run-id", "run", "--workspace", "empty", *words)
    done = place.stream("observe", *how, "--", "bash", "-c", f"{script}\nexit 3")
    assert done.code == 3, done.err
    assert victim.read_text() == "mine\n"
    return only_run(place, done)


def document(run: Run, name: str) -> Any:
    return json.loads((run.folder / name).read_bytes())


def rules(place: Place, run: Run) -> set[str]:
    done = place.stream("verify", "--json", run.folder)
    assert done.code == (1 if done.out else 0), done.err
    return {record["rule"] for record in done.records}


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize(
    "meddling",
    [
        f": >../{KERNEL}",
        f"rm ../{KERNEL}",
        f"rm ../{KERNEL}; mkfifo ../{KERNEL}",
        f"rm ../{KERNEL}; mkdir ../{KERNEL}",
        f"ln -sf ../../../../victim ../{KERNEL}",
        f"cp ../{KERNEL} copy; mv copy ../{KERNEL}",
        "mv ../layers layers",
        "rm -r ../layers",
    ],
)
def test_the_layer_is_taken_away(place: Place, feed: str, meddling: str) -> None:
    run = recorded(place, feed, f"{BEGUN}; {meddling}; /bin/true")
    assert f"stream: the record is incomplete: {KERNEL} {NOT_OURS}" in run.done.err
    assert document(run, "observation-health.json")["kernel_layer"] != "complete"
    assert document(run, "correlation-report.json")["status"] != "clean"
    assert run.names[-1] == "run_finished"
    assert place.stream("check", run.folder).code == 1
    assert any(rule.startswith(("integrity.", "security.")) for rule in rules(place, run))


@needs_ebpf
@pytest.mark.parametrize("name", ["chain.ndjson", "companion.json", "layers/sdk.ndjson"])
@pytest.mark.parametrize("made", ["mkfifo", "mkdir", "ln -s ../../../victim"])
def test_a_name_is_taken_beforehand(place: Place, name: str, made: str) -> None:
    run = recorded(place, "ebpf", f"{BEGUN}; {made} ../{name}")
    assert f"{name}: file exists" in run.done.err
    assert run.names[-1] == "run_finished"
    assert place.stream("check", run.folder).code == 1
    assert rules(place, run)


@needs_ebpf
@pytest.mark.parametrize("made", ["mkfifo", "mkdir", "ln -s ../../../victim", "touch", ":"])
def test_the_event_log_is_replaced(place: Place, made: str) -> None:
    run = recorded(place, "ebpf", f'rm "$ASSAY_RUNNER_SDK_EVENT_LOG"; {made} ../.sdk-events.ndjson')
    assert f".sdk-events.ndjson {NOT_OURS}" in run.done.err
    assert document(run, "observation-health.json")["kernel_layer"] == "complete"
    assert not rules(place, run)
    assert place.stream("check", run.folder).code == 1


@needs_ebpf
def test_the_event_log_never_ends(place: Place) -> None:
    """A line without an end, and then one that is cut off by cutting the file."""
    log = '"$ASSAY_RUNNER_SDK_EVENT_LOG"'
    script = f"head -c 100000000 /dev/zero | tr '\\0' x >{log}; : >{log}; echo >{log}"
    run = recorded(place, "ebpf", script)
    assert f".sdk-events.ndjson {NOT_OURS}" in run.done.err
    assert not (run.folder / ".sdk-events.ndjson").exists()
    assert not rules(place, run)


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize("way", ["", "unshare -m"])
def test_what_is_mounted_over_a_folder_of_libraries_is_seen(
    place: Place, feed: str, way: str
) -> None:
    if os.geteuid():
        pytest.skip("mounting takes root")
    secret = place.root / "secret"
    secret.mkdir()
    (secret / "key").write_text("key")
    cover = Path("/usr/lib") / f"stream-test-{os.getpid()}"
    cover.mkdir()
    steps = f"mount --bind {secret} {cover}; cat {cover}/key; umount {cover}"
    try:
        run = recorded(place, feed, f"{way} bash -c '{steps}'")
    finally:
        cover.rmdir()
    (seen,) = [
        line
        for line in records(run.folder / KERNEL)
        if line["value"] == f"{cover}/key" and line["return_value"] >= 0
    ]
    details = {line["seq"]: line for line in records(run.folder / "layers/kernel-ext.ndjson")}
    assert "other_mounts" in details[seen["seq"]]["marks"]
    assert document(run, "companion.json")["filtered"]["loader"] > 0, "what came before it"
    assert not rules(place, run)


@needs_ebpf
def test_forged_words_of_an_agent(place: Place) -> None:
    """Ids that are doubled, huge, of another run, with newlines in them; ends before beginnings."""
    said = {
        "schema": "assay.runner.sdk_event.v0",
        "run_id": "run",
        "seq": 0,
        "source": "x",
        "sdk_name": "x",
        "sdk_version": None,
    }
    lines = [
        {**said, "event_type": kind, "tool_call_id": id_, "tool": tool, **others}
        for kind, id_, tool, others in (
            ("tool_call_completed", "a", "Bash", {}),
            ("tool_call_started", "a", "Bash", {}),
            ("tool_call_started", "a", "Read\nWrite\u202e\u0000", {}),
            ("tool_call_started", "x" * 1_000_000, "Bash", {}),
            ("tool_call_started", "other", "Bash", {"run_id": "another"}),
            ("tool_call_started", "", "", {}),
            ("run_finished", None, None, {}),
            ("run_started", None, None, {}),
        )
    ]
    log = place.root / "forged"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"torn')
    block = {"type": "tool_use", "id": "b\n{}", "name": "c\n\u2028", "input": {"command": "\x00"}}
    stdout = place.root / "stdout"
    stdout.write_text(
        json.dumps({"type": "assistant", "message": {"content": [block, block, 7, None]}}) + "\n"
    )
    run = recorded(place, "ebpf", f'cat {log} >"$ASSAY_RUNNER_SDK_EVENT_LOG"; cat {stdout}')
    assert run.names[-1] == "run_finished"
    assert document(run, "correlation-report.json")["status"] == "partial"
    assert not rules(place, run)
