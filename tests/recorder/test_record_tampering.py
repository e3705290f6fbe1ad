"""An agent that reaches into its own record: its exit code stays its own, nothing is written
elsewhere or waited for, and what is no longer as it was written is reported."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from stream.files.append import NOT_OURS
from tests.cli.command import Place
from tests.recorder.runs import LOG, LOGGED, Run, only_run

_WRITE_TO_FIFO = """
import os, sys
fd = os.open(os.environ["PATH"].split(":")[0] + "/../commands", os.O_WRONLY)
os.write(fd, eval(sys.argv[1]))
"""


def record_tampered(place: Place, agent: str, *words: str | Path) -> Run:
    done = place.stream("observe", "--run-id", "one", "--", "sh", "-c", agent, "agent", *words)
    run = Run(place.workspace / "runs" / "one", done)
    assert done.code == 5
    return run


def find_rules(place: Place, run: Run) -> set[str]:
    return {finding["rule"] for finding in place.stream("check", run.folder).records}


@pytest.mark.parametrize(
    "line",
    [
        rb"1 1 g\xff\x1f9\x1f/\x1f",
        b"1 1 git\\x1f" + b"9" * 5000 + rb"\x1f/\x1f",
        b"1 1 git\\x1f" + b"9" * 30 + rb"\x1f/\x1f",
    ],
    ids=["name", "longest number", "long number"],
)
def test_junk_for_the_command_log(place: Place, line: bytes) -> None:
    junk = f'b"{line.decode()}\\n"'
    agent = f"{sys.executable} -c \"$1\" '{junk}'; git --version; exit 5"
    run = record_tampered(place, agent, _WRITE_TO_FIFO)
    assert "git" in [call["name"] for call in run.commands]
    assert run.names[-1] == "run_finished"


@pytest.mark.parametrize("name", ["fs_diff.patch", "fs_changes.jsonl", "summary.json"])
def test_nothing_is_written_through_a_link(place: Place, name: str) -> None:
    elsewhere = place.root / "elsewhere"
    run = record_tampered(
        place, f'ln -s "$1" ../artifacts/{name}; echo new >new; exit 5', elsewhere
    )
    assert not elsewhere.exists()
    assert f"{name}: file exists" in run.done.err
    assert run.summary_of("run_finished").endswith("incomplete: 1")


@pytest.mark.parametrize(
    "name", ["fs_diff.patch", "fs_changes.jsonl", "claude_stdout.txt", "command_logs.jsonl"]
)
def test_no_fifo_is_waited_for(place: Place, name: str) -> None:
    file = f"../artifacts/{name}"
    run = record_tampered(place, f"{LOGGED}; rm -f {file}; mkfifo {file}; exit 5")
    assert f"artifacts/{name}" in run.done.err
    assert find_rules(place, run)


@pytest.mark.parametrize(
    ("change", "more"), [("echo junk >>", {"folder.record"}), ("sed -i s/git/svn/", set())]
)
def test_the_command_log_is_changed(place: Place, change: str, more: set[str]) -> None:
    """A line that is no call at all is reported as such, too; one that is another call is not."""
    run = record_tampered(place, f"{LOGGED}; {change} ../{LOG}; exit 5")
    assert f"artifacts/command_logs.jsonl {NOT_OURS}" in run.done.err
    assert run.summary["incomplete"]
    assert find_rules(place, run) == {"run.incomplete", "manifest.digest"} | more


@pytest.mark.parametrize(
    "change",
    [
        "rm ../events.jsonl",
        ": >../events.jsonl",
        "cp ../events.jsonl ../copy; mv ../copy ../events.jsonl",
        "sed s/other/merge/ ../events.jsonl >new; cat new >../events.jsonl",
    ],
    ids=["removed", "emptied", "replaced", "edited"],
)
def test_the_events_are_changed(place: Place, change: str) -> None:
    run = record_tampered(place, f"{change}; exit 5")
    assert f"events.jsonl {NOT_OURS}" in run.done.err
    assert run.summary["incomplete"] == [f"events.jsonl {NOT_OURS}"]


@pytest.mark.parametrize("what", ["mv ../../one ../../two", "rm -r ../artifacts"])
def test_the_record_is_taken_away(place: Place, what: str) -> None:
    run = record_tampered(place, f"{what}; git --version; exit 5")
    assert "the record is incomplete" in run.done.err


def test_in_the_folder_itself(place: Place) -> None:
    """Where the runs lie in it: `git clean -fdx` is all that it takes."""
    done = place.stream("observe", "--workspace", "here", "--", "sh", "-c", "rm -rf runs; exit 5")
    assert done.code == 5
    assert f"events.jsonl {NOT_OURS}" in done.err


def test_untouched(place: Place) -> None:
    """So that the others can fail."""
    done = place.stream("observe", "--", "sh", "-c", "git --version; exit 5")
    run = only_run(place, done)
    assert json.loads((run.folder / "artifacts/summary.json").read_bytes())["incomplete"] == []
