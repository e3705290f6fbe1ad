"""An agent that works against what records it, and a recorder that is ended in the middle."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stream.sources.kernel.ebpf import probe_ebpf
from stream.sources.kernel.strace import probe_strace
from tests.cli.command import Place
from tests.recorder.runs import Run, only_run

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
    """It is the agent's own word: whoever takes it away has said nothing."""
    log = '"$ASSAY_RUNNER_SDK_EVENT_LOG"'
    run = recorded(place, "ebpf", f"rm {log}; {made} {log}")
    health = document(run, "observation-health.json")
    assert (health["kernel_layer"], health["sdk_layer"]) == ("complete", "absent")
    assert not rules(place, run)
    assert not (run.folder / ".wrappers").exists()


@needs_ebpf
def test_the_event_log_never_ends(place: Place) -> None:
    """A line without an end, and then one that is cut off by cutting the file."""
    log = '"$ASSAY_RUNNER_SDK_EVENT_LOG"'
    script = f"head -c 100000000 /dev/zero | tr '\\0' x >{log}; : >{log}; echo >{log}"
    run = recorded(place, "ebpf", script)
    assert "the log: what was told there was made shorter" in run.done.err
    assert not (run.folder / ".wrappers").exists()
    assert not rules(place, run)
