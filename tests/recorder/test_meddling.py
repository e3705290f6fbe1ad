"""An agent that reaches into the folder of its own run: its exit code stays its own,
nothing outside is written to, and the record says that it is not whole."""

from __future__ import annotations

import json
import sys

import pytest

from stream.recorder.wrappers import MOST_BEGUN, MOST_HELD, MOST_IN_ALL, CallReader
from tests.cli.command import Place
from tests.recorder.runs import LOG, LOGGED, Run, observe, only_run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="containment needs Linux")

OUTPUT = "artifacts/claude_stdout.txt"
NOT_OURS = "was removed, replaced or written to by somebody else"


def meddled(place: Place, agent: str) -> Run:
    script = f"echo said; {agent}; exit 3"
    words = ("--workspace", "empty", "--constraint", "output.json_only")
    run = only_run(place, place.stream("observe", *words, "--", "sh", "-c", script))
    assert run.done.code == 3
    assert run.done.out.startswith(b"said\n")
    return run


@pytest.mark.parametrize(
    ("agent", "trouble"),
    [
        ("rm ../events.jsonl", f"events.jsonl {NOT_OURS}"),
        ("rm ../events.jsonl; mkfifo ../events.jsonl", f"events.jsonl {NOT_OURS}"),
        ("echo '{}' >>../events.jsonl", f"events.jsonl {NOT_OURS}"),
        ("rm -rf ../*", f"events.jsonl {NOT_OURS}"),
        ("rm -rf ../artifacts", "no such file or directory"),
        (f"rm ../{OUTPUT}; mkfifo ../{OUTPUT}", f"{OUTPUT} {NOT_OURS}"),
        (f"echo '[1,2,3,4,5]' >../{OUTPUT}", f"{OUTPUT} {NOT_OURS}"),
        (f"{LOGGED}; echo junk >>../{LOG}", f"{LOG} {NOT_OURS}"),
        (f"{LOGGED}; rm ../{LOG}; mkfifo ../{LOG}", f"{LOG} {NOT_OURS}"),
        (f"mkdir ../{LOG}; git --version", f"1 calls of {LOG}: file exists"),
        ("mkfifo ../artifacts/fs_changes.jsonl", "fs_changes.jsonl: file exists"),
        ("mkdir ../artifacts/summary.json", "summary.json: file exists"),
    ],
)
def test_what_is_taken_away_or_replaced(place: Place, agent: str, trouble: str) -> None:
    run = meddled(place, agent)
    lines = [line for line in run.done.err.splitlines() if trouble in line]
    assert lines
    assert all(line.startswith("stream: the record is incomplete: ") for line in lines)


def test_an_answer_that_was_not_printed_is_not_judged(place: Place) -> None:
    run = meddled(place, f"echo '[1,2,3,4,5]' >../{OUTPUT}")
    (check,) = run.event("evaluation_performed")["evaluation"]["alignment"]["checks"]
    assert check["status"] == "unknown"
    assert NOT_OURS in check["evidence"]


def test_where_changes_go_is_not_the_agents_to_say(place: Place) -> None:
    """It names another folder in the description of its run."""
    victim = place.root / "victim"
    victim.mkdir()
    agent = f"""sed -i 's|"source": .*|"source": "{victim}",|' ../metadata.json; touch new"""
    run = only_run(place, place.stream("observe", "--", "sh", "-c", agent))
    assert str(victim) in (run.folder / "metadata.json").read_text()
    done = place.stream("apply", run.folder)
    assert done.code == 2
    assert "metadata.json: is not what the run recorded" in done.err
    assert not list(victim.iterdir())


def test_what_is_taken_over_cannot_be_changed_afterwards(place: Place) -> None:
    run = only_run(place, place.stream("observe", "--", "touch", "new"))
    listing = run.folder / "artifacts" / "fs_changes.jsonl"
    listing.write_bytes(listing.read_bytes().replace(b'"0644"', b'"0755"'))
    done = place.stream("apply", run.folder)
    assert done.code == 2
    assert "fs_changes.jsonl: is not what the run recorded" in done.err


@pytest.mark.parametrize("name", ["fs_diff.patch", "fs_changes.jsonl", "command_logs.jsonl"])
def test_no_link_is_written_through(place: Place, name: str) -> None:
    victim = place.root / "victim"
    victim.write_text("mine")
    run = meddled(place, f"ln -s {victim} ../artifacts/{name}; git --version; touch made")
    assert victim.read_text() == "mine"
    assert "file exists" in run.done.err


def test_a_file_among_the_artifacts_whose_name_is_no_text(place: Place) -> None:
    run = meddled(place, r'touch "../artifacts/$(printf "\377")"')
    checked = place.stream("check", run.folder)
    rules = {json.loads(line)["rule"] for line in checked.out.splitlines()}
    assert rules == {"manifest.present", "manifest.unlisted"}


@pytest.mark.parametrize(
    "line",
    [r"1 1 \377\0371\037/\037", "1 1 git\\037%05000d\\037/\\037", r"99999999999 1 x", r"1 1 \037"],
)
def test_lines_that_no_wrapper_wrote(place: Place, line: str) -> None:
    run = meddled(place, f"printf '{line}\\n' 1 >../.wrappers/commands; git --version")
    assert run.commands[-1]["name"] == "git"
    assert len(run.events) == 9


def test_who_floods_the_log_does_not_fill_our_memory() -> None:
    reader = CallReader()
    for pid in range(2 * MOST_BEGUN):
        assert not list(reader.feed(b"%d 0 x\n" % pid))
    assert reader.lost == MOST_BEGUN
    piece = b"x" * (MOST_HELD - 1)
    for pid in range(20):
        assert not list(reader.feed(b"%d 0 %s\n" % (pid, piece)))
    held = sum(map(len, reader._begun.values()))
    assert MOST_IN_ALL - MOST_HELD < held <= MOST_IN_ALL
    before = reader.lost
    assert not list(reader.feed(b"7777 0 %s\n7777 0 xx\n" % piece))
    assert reader.lost > before
    assert [one.name for one in reader.feed(b"99999 1 git\x1f1\x1f/\x1f\n")] == ["git"]


def test_the_log_of_an_honest_agent_is_whole(place: Place) -> None:
    run = observe(place, "--", "sh", "-c", "git --version; git --version")
    assert len(run.commands) == 2
    assert run.summary["incomplete"] == []
