"""`--policy FILE`: what is written there while a run lasts is of it, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import Place
from tests.recorder.runs import Run, observe, records

SAID = "told_and_not_used:policy,"


def line(call: str) -> str:
    data = {"tool": "t", "tool_call_id": call, "decision": "allow"}
    return json.dumps({"type": "assay.tool.decision", "source": "s", "data": data}) + "\n"


def decided(place: Place, log: Path, script: str) -> Run:
    """What the engine of the script has written. There need be no feed."""
    (place.root / "new").write_text(line("new"))
    (place.root / "old").write_text(line("old"))
    words = ("--policy", log, "--run-id", "run", "--", "sh", "-c", f"cd {place.root}; {script}")
    return observe(place, "--kernel", "auto", *words, check=False)


def calls(run: Run) -> list[str]:
    return [one["tool_call_id"] for one in records(run.folder / "layers/policy.ndjson")]


def unused(run: Run) -> list[str]:
    report = json.loads((run.folder / "correlation-report.json").read_bytes())
    return [one for one in report["ambiguities"] if one.startswith(SAID)]


@pytest.fixture
def log(place: Place) -> Path:
    return place.root / "policy.ndjson"


def test_what_is_added_during_the_run_is_of_it(place: Place, log: Path) -> None:
    log.write_text(line("old"))
    run = decided(place, log, f"cat new >>{log}")
    assert (calls(run), unused(run)) == (["new"], [])
    assert "--policy" not in run.done.err


def test_a_log_that_the_run_begins_with_is_whole(place: Place, log: Path) -> None:
    run = decided(place, log, f"cat old new >{log}")
    assert (calls(run), unused(run)) == (["old", "new"], [])


def test_what_was_there_before_is_not_of_the_run(place: Place, log: Path) -> None:
    log.write_text(line("old"))
    run = decided(place, log, "true")
    assert (calls(run), unused(run)) == ([], [])
    assert "nothing was written there during the run" in run.done.err


def test_a_decision_that_was_begun_before_the_run_cannot_be_used(place: Place, log: Path) -> None:
    log.write_text(line("old")[:20])
    run = decided(place, log, f"echo rest >>{log}; cat new >>{log}")
    assert calls(run) == ["new"]
    assert "1 line of the policy layer could not be used: no JSON" in run.done.err


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("cat new new >other; mv other {log}", "another file took its place"),
        ("rm {log}; cat new new >{log}", "another file took its place"),
        ("cat new >{log}", "what was in it before was taken away"),
        ("cat new new new >{log}", "what was in it before was taken away"),
    ],
)
def test_a_log_that_is_another_one_is_read_whole(
    place: Place, log: Path, script: str, why: str
) -> None:
    log.write_text(line("old") * 2)
    run = decided(place, log, script.format(log=log))
    assert set(calls(run)) == {"new"}
    assert why in run.done.err
    assert any(why in one for one in run.summary["incomplete"])


def test_a_log_that_never_comes(place: Place, log: Path) -> None:
    run = decided(place, log, "true")
    assert f"--policy {log}: no such file or directory" in run.done.err


def test_a_pipe_is_read_when_the_run_is_over(place: Place, log: Path) -> None:
    run = decided(place, Path("/dev/stdin"), "true")
    assert calls(run) == []
