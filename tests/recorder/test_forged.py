"""A hostile agent that forges what is told of its run, or switches off who tells it: nothing of
that turns a check to the better, and nothing is stated that nobody saw."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Place, write_script
from tests.recorder.runs import Run, observe, only_run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="wrappers need a fifo of Linux")

CODE = "echo 'x = 1' >code.py"
#: What a hostile agent can do, by its first word.
HOSTILE = """
home=$(dirname "$(dirname "$(command -v git)")")
tell() {  # as a wrapper would: a process, and what it was called with
  line="$1 1 "; shift
  for word; do line=$(printf '%s%s\\037' "$line" "$word"); done
  printf '%s\\n' "$line" >"$home/commands"
}
case $1 in
forge) git --version; tell $$ pytest 1 "$PWD" -q ;;
forge-only) tell $$ pytest 1 "$PWD" -q ;;
forge-as-git) sh -c 'echo $$ >pid; exec git --version'; tell "$(cat pid)" pytest 1 "$PWD" -q ;;
junk) git --version; printf 'junk\\n' >"$home/commands" ;;
remove) rm -rf "$home" ;;
remove-after) git --version; until [ -s ../artifacts/command_logs.jsonl ]; do :; done
  rm -rf "$home/bin" ;;
hide-a-while) mv "$home/bin" "$home/away"; git --version; mv "$home/away" "$home/bin" ;;
replace) rm "$home/wrapper"; ln -s /bin/true "$home/wrapper"; git --version ;;
shut) chmod 0 "$home/commands" ;;
own-bin) mkdir bin; printf '#!/bin/sh\\n' >bin/git; chmod +x bin/git; PATH=$PWD/bin:$PATH; git ;;
full-path) PATH=${PATH#*:}; git --version ;;
esac
exit 3
"""


@pytest.fixture
def hostile(place: Place) -> Path:
    return write_script(place.root / "hostile.sh", f"#!/bin/sh\n{CODE}\n{HOSTILE}")


def attacked(place: Place, hostile: Path, how: str, *words: str) -> Run:
    asked = ("--workspace", "empty", "--constraint", "quality.tests_required", *words)
    run = only_run(place, place.stream("observe", *asked, "--", hostile, how))
    assert run.done.code == 3, run.done.err
    verified = place.stream("verify", run.folder)
    assert verified.code == 0, verified.out
    return run


def check_of(run: Run) -> Any:
    (check,) = run.event("evaluation_performed")["evaluation"]["quality"]["checks"]
    return check


@pytest.mark.parametrize("how", ["forge", "forge-as-git", "junk"])
def test_a_forged_line_turns_nothing_to_the_better(place: Place, hostile: Path, how: str) -> None:
    run = attacked(place, hostile, how)
    check = check_of(run)
    assert check["status"] == "fail"
    assert "no run of tests among 1 commands" in check["evidence"]
    facts = run.facts_of("commands_observed", "command_log")
    assert facts["vouched_count"] == 0


def test_a_log_of_nothing_but_a_forged_line(place: Place, hostile: Path) -> None:
    """It is no run of tests, and without it nothing would have been seen."""
    check = check_of(attacked(place, hostile, "forge-only"))
    assert check["status"] == "warn"
    assert "and 1 that nobody vouches for" in check["evidence"]


@pytest.mark.parametrize("how", ["remove", "hide-a-while", "replace", "shut"])
def test_wrappers_that_were_taken_away_are_not_called_unused(
    place: Place, hostile: Path, how: str
) -> None:
    run = attacked(place, hostile, how)
    said = run.summary_of("commands_observation_unavailable")
    assert "unknown: the wrappers were taken away or changed" in said
    assert run.summary["commands"] is None
    assert run.summary["incomplete"] == [
        "calls of wrapped programs: the wrappers were taken away or changed"
    ]
    assert check_of(run)["status"] == "warn"


def test_wrappers_that_were_taken_away_later(place: Place, hostile: Path) -> None:
    run = attacked(place, hostile, "remove-after")
    assert run.facts_of("commands_observed", "command_log")["observed_count"] == 1
    assert "taken away" in run.summary["incomplete"][0]
    check = check_of(run)
    assert check["status"] == "warn"
    assert "the wrappers were taken away or changed" in check["evidence"]


@pytest.mark.parametrize("how", ["own-bin", "full-path"])
def test_without_a_feed_nobody_says_that_nothing_was_called(
    place: Place, hostile: Path, how: str
) -> None:
    run = attacked(place, hostile, how)
    said = run.summary_of("commands_observation_unavailable")
    assert "unknown: no wrapper was called, and without a kernel feed nobody saw" in said


def test_an_honest_run(place: Place, hostile: Path) -> None:
    """So that the others can fail."""
    run = observe(place, "--workspace", "empty", "--", "sh", "-c", f"{CODE}; git --version")
    assert run.summary["incomplete"] == []
    assert run.summary["commands"] == 1
