"""`--policy FILE`: what is written there while a run lasts is of it, and nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.command import Place
from tests.recorder.runs import Run, observe, read_records

SENTENCE = "told_and_not_used:policy,"


def format_decision(call: str) -> str:
    data = {"tool": "t", "tool_call_id": call, "decision": "allow"}
    return json.dumps({"type": "assay.tool.decision", "source": "s", "data": data}) + "\n"


def record_decisions(place: Place, log: Path, script: str) -> Run:
    """What the engine of the script has written. There need be no feed."""
    (place.root / "new").write_text(format_decision("new"))
    (place.root / "old").write_text(format_decision("old"))
    words = ("--policy", log, "--run-id", "run", "--", "sh", "-c", f"cd {place.root}; {script}")
    return observe(place, "--kernel", "auto", *words, check=False)


def list_calls(run: Run) -> list[str]:
    return [one["tool_call_id"] for one in read_records(run.folder / "layers/policy.ndjson")]


def list_unused(run: Run) -> list[str]:
    report = json.loads((run.folder / "correlation-report.json").read_bytes())
    return [one for one in report["ambiguities"] if one.startswith(SENTENCE)]


@pytest.fixture
def log(place: Place) -> Path:
    return place.root / "policy.ndjson"


def test_what_is_added_during_the_run_is_of_it(place: Place, log: Path) -> None:
    log.write_text(format_decision("old"))
    run = record_decisions(place, log, f"cat new >>{log}")
    assert (list_calls(run), list_unused(run)) == (["new"], [])
    assert "--policy" not in run.done.err


def test_a_log_that_the_run_begins_with_is_whole(place: Place, log: Path) -> None:
    run = record_decisions(place, log, f"cat old new >{log}")
    assert (list_calls(run), list_unused(run)) == (["old", "new"], [])


def test_what_was_there_before_is_not_of_the_run(place: Place, log: Path) -> None:
    log.write_text(format_decision("old"))
    run = record_decisions(place, log, "true")
    assert (list_calls(run), list_unused(run)) == ([], [])
    assert "no decisions were written during the run (earlier lines are ignored)" in run.done.err


def test_a_decision_that_was_begun_before_the_run_cannot_be_used(place: Place, log: Path) -> None:
    log.write_text(format_decision("old")[:20])
    run = record_decisions(place, log, f"echo rest >>{log}; cat new >>{log}")
    assert list_calls(run) == ["new"]
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
    log.write_text(format_decision("old") * 2)
    run = record_decisions(place, log, script.format(log=log))
    assert set(list_calls(run)) == {"new"}
    assert why in run.done.err
    assert any(why in one for one in run.summary["incomplete"])


def test_a_log_that_never_comes(place: Place, log: Path) -> None:
    run = record_decisions(place, log, "true")
    assert f"--policy {log}: no such file or directory" in run.done.err


def test_a_pipe_is_read_when_the_run_is_over(place: Place, log: Path) -> None:
    run = record_decisions(place, Path("/dev/stdin"), "true")
    assert list_calls(run) == []


def test_a_pipe_whose_writer_waits_for_its_reader(place: Place, log: Path) -> None:
    os.mkfifo(log)
    (place.root / "new").write_text(format_decision("new"))
    writer = place.start("-c", f"cat {place.root}/new >{log}", argv0=("sh",))
    run = record_decisions(place, log, "true")
    assert (list_calls(run), list_unused(run)) == (["new"], [])
    assert place.finish(writer).code == 0


def test_a_log_of_gigabytes_does_not_hold_up_the_run(place: Place, log: Path) -> None:
    run = record_decisions(place, log, f"cat new >{log}; truncate -s 8G {log}")
    assert list_calls(run) == ["new"]
    assert f"--policy {log}: more than 64 MB came out" in run.done.err


@pytest.mark.parametrize("put", ["ln -s /dev/zero", "mkfifo", "mkdir"])
def test_whatever_lies_there_at_the_end_is_read_to_an_end(
    place: Place, log: Path, put: str
) -> None:
    run = record_decisions(place, log, f"{put} {log}")
    assert (run.done.code, list_calls(run)) == (0, [])
    assert bool(list_unused(run)) == (put != "mkfifo")  # nothing was in the pipe


def test_a_pipe_whose_writer_goes_on_does_not_hold_up_the_run(place: Place, log: Path) -> None:
    os.mkfifo(log)
    endless = place.start("-c", f"exec cat /dev/zero >{log}", argv0=("sh",))
    try:
        run = record_decisions(place, log, "true")
    finally:
        endless.kill()
        endless.communicate()
    assert run.done.code == 0
    assert "64 MB came out" in run.done.err


@pytest.mark.parametrize("has_reader", [True, False])
def test_the_raw_telemetry_goes_to_a_fifo(place: Place, has_reader: bool) -> None:
    fifo = place.make_fifo("raw")
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    if not has_reader:
        os.close(reader)
    run = observe(place, "--kernel", "auto", "--raw-kernel", fifo, "--", "true", check=has_reader)
    assert run.done.code == 0
    if has_reader:
        seen = [json.loads(line) for line in os.read(reader, 1 << 20).splitlines()]
        os.close(reader)
        assert {one["schema"] for one in seen} == {"stream.raw_kernel.v1", "stream.raw_capture.v1"}
    else:
        assert f"--raw-kernel {fifo}: nobody reads it" in run.done.err
