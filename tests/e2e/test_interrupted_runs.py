"""Runs that are ended from outside, and processes that live on when the agent has ended."""

from __future__ import annotations

import json
import shlex
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import find_living
from tests.e2e.rig import (
    ALLOWED,
    STREAM_JSON,
    Recorded,
    Rig,
    Turn,
    bash_turn,
    check_summary,
    read_fifo,
    text_turn,
)
from tests.sweeping import first_of

#: what this agent makes of them in the midst of a tool
CODES = {"SIGINT": 0, "SIGTERM": 143, "SIGHUP": 129}


def stuck_turns(started: Path) -> list[Turn]:
    """A tool that reports when it has begun, and never ends."""
    at = shlex.quote(str(started))
    return [bash_turn(f"echo begun >{at}; exec perl -e 'sleep 1000' {at}"), text_turn("over")]


def make_fifo(rig: Rig, name: str) -> Path:
    return rig.place.make_fifo(f"{name}.fifo")


def assert_nobody_lives(rig: Rig) -> None:
    assert find_living(rig.place.root) == []


@pytest.mark.parametrize("name", first_of(*CODES))
def test_a_signal_in_the_midst_of_a_tool(rig: Rig, name: str) -> None:
    started = make_fifo(rig, name)
    session = rig.start(name, stuck_turns(started), ALLOWED, *STREAM_JSON, options=("--grace", "2"))
    assert read_fifo(started) == "begun\n"
    session.process.send_signal(signal.Signals[name])
    recorded = session.finish()
    assert_nobody_lives(rig)
    assert recorded.done.code == CODES[name]
    assert recorded.summary["signals_passed_on"] == [name]
    assert recorded.summary["signal"] is None  # it heeded it, and ended by itself
    assert not recorded.summary["timed_out"]
    assert recorded.summary["stopped"] == []
    assert recorded.summary_of(9).startswith("[run_finished]")
    check_summary(recorded, declared_error=True if name == "SIGINT" else None)


def test_a_time_limit_in_the_midst_of_a_tool(rig: Rig) -> None:
    started = make_fifo(rig, "limit")
    options = ("--timeout", "4", "--grace", "2")
    session = rig.start("limit", stuck_turns(started), ALLOWED, *STREAM_JSON, options=options)
    assert read_fifo(started) == "begun\n"
    recorded = session.finish()
    assert_nobody_lives(rig)
    assert recorded.done.code == CODES["SIGTERM"]
    assert recorded.summary["timed_out"]
    assert recorded.summary["signals_passed_on"] == []
    assert recorded.summary["duration_ms"] >= 4000
    assert recorded.summary_of(4).endswith(" timed out")
    assert "at its time limit" in recorded.done.err


@pytest.fixture(scope="module")
def detached(rig: Rig) -> Recorded:
    """What a tool left behind writes a file when the agent has ended."""
    gate = make_fifo(rig, "gate")
    late = (
        f"setsid nohup sh -c {shlex.quote(f'read x <{gate}; echo late >late.txt; git --version')}"
    )
    session = rig.start(
        "detached",
        [bash_turn(f"echo early >early.txt; ({late} >/dev/null 2>&1 &)"), text_turn("Done.")],
        ALLOWED,
        options=("--events", "-", "--grace", "30"),
    )
    session.read_until(b"[agent_completed]")
    wait_for_a_tick(rig.place.root / "tick")
    gate.write_text("go\n")
    return session.finish()


def wait_for_a_tick(file: Path) -> None:
    """The clock of files is coarser than ours: until it is later than now."""
    now = time.time_ns()
    while True:
        file.write_text("tick\n")
        if file.stat().st_ctime_ns > now:
            return


def test_what_was_left_behind_is_waited_for(rig: Rig, detached: Recorded) -> None:
    assert_nobody_lives(rig)
    assert detached.done.code == 0
    [name] = detached.summary["outlived"]
    assert name.startswith("sh ")
    assert detached.summary["stopped"] == []
    assert "outlived the command: 1, ended: 0" in detached.summary_of(5)


def test_its_file_is_in_the_diff_and_marked(detached: Recorded) -> None:
    assert "+late" in detached.patch
    marks = {path: change["after_exit"] for path, change in detached.changes.items()}
    assert marks == {"early.txt": False, "late.txt": True}
    assert detached.summary["changed_after_exit"] is True
    [diff, _] = detached.events[5]["agent_action"]["artifacts"]
    assert diff["metadata"]["has_after_exit"] is True


def test_a_file_of_the_same_tick_is_not_reported_as_older(rig: Rig) -> None:
    gate = make_fifo(rig, "tick")
    late = f"setsid nohup sh -c {shlex.quote(f'read x <{gate}; echo late >late.txt')}"
    script = [bash_turn(f"({late} >/dev/null 2>&1 &)"), text_turn("Done.")]
    session = rig.start("tick", script, ALLOWED, options=("--events", "-", "--grace", "30"))
    session.read_until(b"[agent_completed]")
    gate.write_text("go\n")
    assert session.finish().changes["late.txt"]["after_exit"] is not False


def test_its_calls_are_marked(detached: Recorded) -> None:
    """This far into a script that was started by nobody."""
    late = [call["argv"] for call in detached.commands if call["after_exit"]]
    assert late == [["git", "--version"]]


def test_what_does_not_end_is_ended(rig: Rig) -> None:
    root = shlex.quote(str(rig.place.root))
    command = f"(setsid nohup perl -e 'sleep 1000' {root} >/dev/null 2>&1 &)"
    script = [bash_turn(command), text_turn("Done.")]
    recorded = rig.record("left", script, ALLOWED, options=("--grace", "0.3"))
    assert_nobody_lives(rig)
    assert recorded.done.code == 0
    [name] = recorded.summary["stopped"]
    assert name.startswith("perl ")
    assert recorded.summary["outlived"] == [name]
    assert "processes that outlived it were ended: perl" in recorded.done.err


def test_a_command_in_the_background(rig: Rig) -> None:
    """The agent waits for it, and answers a second time."""
    gate = make_fifo(rig, "background")
    command = f"read x <{shlex.quote(str(gate))}; echo late >late.txt"
    script = [
        bash_turn(command, run_in_background=True),
        text_turn("It runs."),
        text_turn("It is done."),
    ]
    session = rig.start("background", script, ALLOWED, *STREAM_JSON)
    session.read_until(b'"type":"result"')
    gate.write_text("go\n")
    recorded = session.finish()
    assert [result["result"] for result in recorded.results] == ["It runs.", "It is done."]
    lines = [json.loads(line) for line in recorded.stdout.splitlines()]
    assert sum(line.get("subtype") == "init" for line in lines) == 2
    assert recorded.changes["late.txt"]["after_exit"] is False
    assert recorded.summary["outlived"] == []


def test_the_run_folder_is_closed_to_others(detached: Recorded) -> None:
    assert detached.folder.stat().st_mode & 0o077 == 0
