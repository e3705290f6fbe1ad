"""`--kernel` together with the other ways to run a command: the run and its archive hold."""

from __future__ import annotations

from typing import Any

import pytest

from stream.records.kernel import EXEC, EXEC_FAILED, EXIT
from tests.cli.command import Place
from tests.feeds import FEEDS
from tests.recorder.runs import Run, observe, read_records
from tests.recorder.test_kernel import read_artifact, read_health, read_kernel_layer

pytestmark = pytest.mark.parametrize("feed", FEEDS)


def record_and_archive(place: Place, feed: str, *words: Any, is_started: bool = True) -> Run:
    """Recorded and put away: the folder and the archive are verified."""
    archive = place.root / "run.tar.gz"
    run = observe(place, "--kernel", feed, "--archive", archive, *words)
    for target in (run.folder, archive):
        done = place.stream("verify", target)
        assert (done.code, done.out) == (0, b""), done.err
    found = read_health(run)
    assert (found["kernel_layer"], found["ringbuf_drops"]) == ("complete", 0)
    does_agree = feed == "ebpf" and is_started
    assert found["cgroup_correlation"] == ("clean" if does_agree else "failed")
    assert (
        read_artifact(run, "correlation-report.json")["status"] == "partial"
    )  # nothing was reported
    return run


def list_values(run: Run, event_type: int) -> list[str]:
    return [line["value"] for line in read_kernel_layer(run) if line["event_type"] == event_type]


def has_opened(run: Run, name: str) -> bool:
    paths: list[str] = read_artifact(run, "capability-surface.json")["filesystem_paths"]
    return name in paths


def test_the_matrix(place: Place, feed: str) -> None:
    """The probes are no part of the command, nor of what the kernel records of it."""
    words = ("--matrix", "--cap", "cap_fs_write_workspace_tree")
    run = record_and_archive(place, feed, *words, "--", "/bin/sh", "-c", ": >made; exit 4")
    assert run.done.code == 4
    assert read_records(run.folder / "boundary.ndjson")
    assert has_opened(run, f"{run.folder}/workspace/made")
    assert (list_values(run, EXEC), len(list_values(run, EXIT))) == (["/bin/sh"], 1)


def test_a_time_limit(place: Place, feed: str) -> None:
    script = "echo ready; : >made; perl -e 'sleep 1000' $0 & exec perl -e 'sleep 1000' $0"
    words = ("--timeout", "0.5", "--workspace", "empty")
    run = record_and_archive(place, feed, *words, "--", "sh", "-c", script, place.root)
    assert run.done.code == 128 + 15
    assert run.summary["timed_out"]
    assert has_opened(run, f"{run.folder}/workspace/made") == ("made" in run.changes)
    details = read_records(run.folder / "layers/kernel-ext.ndjson")
    assert {one["exit_status"] for one in details if one["call"] == "exit"} == {15}


def test_in_place(place: Place, feed: str) -> None:
    (place.workspace / "old").write_text("old")
    script = ": >new; cat <old"
    run = record_and_archive(place, feed, "--workspace", "here", "--", "sh", "-c", script)
    assert run.stdout == b"old"
    assert has_opened(run, f"{place.workspace}/new")
    assert has_opened(run, f"{place.workspace}/old")


def test_what_cannot_be_started(place: Place, feed: str) -> None:
    """There is nothing to see, and that is reported."""
    words = ("--workspace", "empty", "--", "/no/such", "word")
    run = record_and_archive(place, feed, *words, is_started=False)
    assert run.done.code == 127
    assert run.summary["not_started"]
    assert list_values(run, EXEC_FAILED) == list_values(run, EXEC) == []
