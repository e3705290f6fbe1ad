"""How a run ends that does not end well, and that the record of it is whole all the same."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stream.process.cgroup import current_cgroup
from tests.cli.command import LANDLOCK, PATIENCE, SLEEP, STREAM, Place
from tests.recorder.runs import Run, observe, only_run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="containment needs Linux")

A_TICK = 0.05  #: seconds: more than one of the clock of files
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def record_interrupted(place: Place, agent: str, *numbers: int, words: tuple[str, ...] = ()) -> Run:
    """The agent gets the fifo into which it writes that it is ready; then the signals come, one by
    one, each when the agent has reported the one before."""
    fifo = place.make_fifo("ready")
    process = place.start("observe", *words, "--", "sh", "-c", agent, "agent", fifo, place.root)
    for number in numbers:
        assert fifo.read_bytes() == b"ready\n"
        process.send_signal(number)
    run = only_run(place, place.finish(process))
    checked = place.stream("check", run.folder)
    assert (checked.code, checked.out) == (0, b""), checked.err
    return run


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_reaches_the_agent(place: Place, number: signal.Signals) -> None:
    agent = (
        'trap "echo ended; exit 7" INT TERM HUP; echo begun; echo ready >"$1";'
        f" while :; do {SLEEP.strip()} & wait; done"
    )
    run = record_interrupted(place, agent, number)
    assert run.done.code == 7
    assert run.stdout == b"begun\nended\n"
    assert len(run.events) == 9
    assert run.facts_of("agent_completed")["signals_passed_on"] == [number.name]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_ends_the_agent(place: Place, number: signal.Signals) -> None:
    run = record_interrupted(place, 'echo ready >"$1"; exec perl -e "sleep 1000" "$2"', number)
    assert run.done.code == 128 + number
    assert run.summary["signal"] == number.name


def test_an_agent_that_does_not_heed_it_has_its_grace(place: Place) -> None:
    agent = 'trap "" TERM; echo ready >"$1"; perl -e "sleep 1000" "$2"'
    run = record_interrupted(place, agent, signal.SIGTERM, words=("--grace", "0.1"))
    assert run.done.code == 128 + signal.SIGKILL
    assert run.summary["timed_out"] is False


def test_the_third_one_ends_everything(place: Place) -> None:
    agent = 'trap \'echo ready >"$1"\' INT; echo ready >"$1"; while :; do :; done'
    run = record_interrupted(place, agent, *[signal.SIGINT] * 3, words=("--grace", "1000"))
    assert run.done.code in (128 + signal.SIGTERM, 128 + signal.SIGKILL)
    assert len(run.events) == 9


def test_a_signal_before_there_is_an_agent(place: Place) -> None:
    """While the workspace is copied: a fifo as the scenario shows when we are that far."""
    fifo = place.make_fifo("scenario.md")
    process = place.start("observe", "--scenario", fifo, "--", "touch", "ran")
    with fifo.open("w") as writer:
        process.send_signal(signal.SIGTERM)
        writer.write("# Request\n\nx\n")
    run = only_run(place, place.finish(process))
    assert run.done.code == 128 + signal.SIGTERM
    assert "not started: SIGTERM came before it was started" in run.summary_of("agent_completed")
    assert run.changes == {}
    assert place.stream("check", run.folder).code == 0


@pytest.mark.parametrize("mode", ["copy", "here"])
def test_a_signal_while_the_workspace_is_read(place: Place, mode: str) -> None:
    """The record of it is in order, and claims no change: the agent was never there."""
    for number in range(8000):
        (place.workspace / f"file{number}").write_text("x")
    archive = place.root / "run.tar.gz"
    words = ("--workspace", mode, "--archive", archive, "--run-id", "one", "--", "touch", "ran")
    process = place.start("observe", *words)
    folder = place.workspace / "runs" / "one"
    while not (folder / "events.jsonl").exists():  # what comes next is the workspace
        assert process.poll() is None
    process.send_signal(signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    run = Run(folder, place.finish(process))
    assert run.done.code == 128 + signal.SIGTERM
    assert "interrupted" in run.summary_of("workspace_prepared")
    assert run.changes == {}
    for target in (folder, archive):
        assert place.stream("verify", target).code == 0
    assert place.stream("check", folder).code == 0


@pytest.mark.parametrize(
    "then",
    ["head -c 1000000 /dev/zero", ":"],  # which needs somebody who reads it; and at once the end
)
def test_a_recorder_that_is_stopped_is_woken(place: Place, then: str) -> None:
    """The run goes on to its end, and reports that."""
    agent = f"""
read _ _ _ guard _ </proc/self/stat; read _ _ _ recorder _ <"/proc/$guard/stat"
kill -STOP "$recorder"; {then}"""
    run = only_run(place, place.stream("observe", "--", "sh", "-c", agent))
    assert run.done.code == 0
    (trouble,) = run.summary["incomplete"]
    assert trouble.startswith("the recorder was stopped 1 time, for ")
    assert place.stream("verify", run.folder).code == 0


@pytest.mark.parametrize("who", ["guard", "recorder"])
def test_who_is_frozen_goes_on(place: Place, needs_root: None, who: str) -> None:
    """The agent, as root, puts it into a control group that it has frozen."""
    home = current_cgroup()
    if home is None:
        pytest.skip("there are no control groups of version 2")
    frozen = home / f"frozen-{os.getpid()}-{who}"
    agent = f"""
read _ _ _ guard _ </proc/self/stat; read _ _ _ recorder _ <"/proc/$guard/stat"
mkdir "$1"; echo "${who}" >"$1/cgroup.procs"; echo 1 >"$1/cgroup.freeze"; exit 5"""
    try:
        run = only_run(place, place.stream("observe", "--", "sh", "-c", agent, "agent", frozen))
    finally:
        (frozen / "cgroup.kill").write_text("1")
        frozen.rmdir()
    assert run.done.code == 5
    stops = [one for one in run.summary["incomplete"] if "the recorder was stopped 1 time" in one]
    assert len(stops) == (who == "recorder")


def test_a_time_limit_of_who_has_frozen_itself(place: Place, needs_root: None) -> None:
    home = current_cgroup()
    if home is None:
        pytest.skip("there are no control groups of version 2")
    agent = """
for group in "$1"/stream-*; do
    while read -r pid; do
        [ "$pid" != $$ ] || echo 1 >"$group/cgroup.freeze"
    done <"$group/cgroup.procs"
done
exit 5"""
    run = observe(place, "--timeout", "0.5", "--", "sh", "-c", agent, "agent", home)
    assert run.done.code == 128 + signal.SIGTERM


def test_a_time_limit(place: Place) -> None:
    agent = "echo begun; echo kept >kept.txt; exec perl -e 'sleep 1000'"
    run = observe(place, "--timeout", "1", "--", "sh", "-c", agent)
    assert run.done.code == 128 + signal.SIGTERM
    assert run.stdout == b"begun\n"
    assert list(run.changes) == ["kept.txt"]
    assert run.summary["timed_out"]
    assert "at its time limit" in run.done.err


def test_a_time_limit_that_is_not_heeded(place: Place) -> None:
    agent = "trap '' TERM INT HUP; echo begun; while :; do perl -e 'sleep 1000'; done"
    run = observe(place, "--timeout", "0.5", "--", "sh", "-c", agent)
    assert run.done.code == 128 + signal.SIGKILL
    assert run.stdout == b"begun\n"


def test_the_tree_decides_when_it_is_over(place: Place) -> None:
    """A child in a session of its own writes when the recorder knows that the agent has ended."""
    # A pattern that does not match itself: the command is in an event as well.
    known = "until grep -q agent_complete[d] ../events.jsonl; do sleep 0.01; done"
    child = f"{known}; sleep {A_TICK}; echo late >late.txt; git --version"
    agent = f"setsid sh -c '{child}' & echo early >early.txt; sleep {A_TICK}; exit 4"
    run = observe(place, "--grace", str(PATIENCE), "--", "sh", "-c", agent)
    assert run.done.code == 4
    assert {path: one["after_exit"] for path, one in run.changes.items()} == {
        "early.txt": False,
        "late.txt": True,
    }
    assert run.summary["changed_after_exit"]
    assert [call["after_exit"] for call in run.commands] == [True]
    assert run.summary["outlived"]
    assert run.summary["stopped"] == []


def test_who_does_not_end_is_ended_and_named(place: Place) -> None:
    agent = (
        f"setsid perl -e 'sleep 1000' {place.root} & (setsid perl -e 'sleep 1000' {place.root} &)"
    )
    run = observe(place, "--grace", "0.1", "--", "sh", "-c", agent)
    assert run.done.code == 0
    assert len(run.summary["stopped"]) == 2
    assert all(name.startswith("perl (pid ") for name in run.summary["stopped"])
    assert "processes that outlived it were ended: perl (pid " in run.done.err


def test_of_many_that_are_ended_all_are_counted(place: Place) -> None:
    agent = f"for i in $(seq 60); do perl -e 'sleep 1000' {place.root} & done"
    run = observe(place, "--grace", "0.1", "--", "sh", "-c", agent)
    assert "outlived the command: 60, ended: 60" in run.summary_of("artifacts_captured")
    for names in (run.summary["outlived"], run.summary["stopped"]):
        assert (len(names), names[-1]) == (51, "10 more")
    assert "and 55 more" in run.done.err


def test_who_does_not_end_is_a_group_where_nobody_can_be_seen(place: Place) -> None:
    """Without /proc and a control group, also where SIGTERM is enough."""
    blind = (*LANDLOCK, "--rw", str(place.root), "--hide", "/proc", "--", STREAM)
    agent = f"perl -e 'sleep 1000' {place.root} & exit 3"
    words = ("--grace", "0.1", "--", "sh", "-c", agent)
    run = observe(place, *words, check=False, argv0=blind)  # it reports that it was blind
    assert (run.done.code, run.summary["containment"]) == (3, "process group")
    (group,) = run.summary["outlived"]
    assert group.startswith("process group ")
    assert run.summary["stopped"] == [group]
    assert f"processes that outlived it were ended: {group}" in run.done.err


def test_without_grace(place: Place) -> None:
    agent = f"(trap '' TERM HUP; exec perl -e 'sleep 1000' {place.root}) & exit 2"
    run = observe(place, "--grace", "0", "--", "sh", "-c", agent)
    assert run.done.code == 2
    assert len(run.summary["stopped"]) == 1


ORPHANS = """
import os, time
for _ in range(20):
    if not os.fork():
        os.fork()
        os._exit(0)
    os.wait()
deadline = time.monotonic() + 20
children = f"/proc/{os.getppid()}/task/{os.getppid()}/children"
while open(children).read().split() != [str(os.getpid())]:
    if time.monotonic() > deadline:
        os._exit(1)
"""


def test_orphans_that_have_ended_are_let_go(place: Place) -> None:
    """As init would, while the agent lives: each counts for what a user may have."""
    assert observe(place, "--", "/usr/bin/python3", "-ISc", ORPHANS).done.code == 0


def test_a_daemon_that_closes_everything(place: Place) -> None:
    """No pipe, no environment, no parent, no session of ours."""
    code = (
        "import os,time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "os.closerange(0, 100)\n"
        f"os.execve('/usr/bin/perl', ['perl', '-e', 'sleep 1000', {str(place.root)!r}], {{}})\n"
    )
    run = observe(place, "--grace", "0.3", "--", sys.executable, "-c", code)
    assert run.done.code == 0
    assert len(run.summary["stopped"]) == 1


def test_the_guard_is_killed(place: Place) -> None:
    """What it watched is ended, and the run reports that it was not seen to its end."""
    fifo = place.make_fifo("ready")
    agent = 'echo $PPID >"$1"; exec perl -e "sleep 1000" "$2"'
    process = place.start("observe", "--", "sh", "-c", agent, "agent", fifo, place.root)
    os.kill(int(fifo.read_bytes()), signal.SIGKILL)
    run = only_run(place, place.finish(process))
    assert run.done.code == 128 + signal.SIGKILL
    assert "the process that watched the agent was killed" in run.done.err
    assert len(run.events) == 9


@pytest.fixture
def disk_of_1m(small_disk: Callable[[str], Path]) -> Path:
    return small_disk("1m")


def record_on(disk: Path, place: Place, *words: str) -> Run:
    done = place.stream("observe", "--runs", disk / "runs", "--run-id", "one", *words)
    return Run(disk / "runs" / "one", done)


def test_no_room_for_the_output(place: Place, disk_of_1m: Path) -> None:
    """All of it is passed on, its beginning is kept, and how much is missing is reported."""
    agent = "head -c 3000000 /dev/zero; exit 5"
    run = record_on(disk_of_1m, place, "--workspace", "empty", "--", "sh", "-c", agent)
    assert run.done.code == 5
    assert len(run.done.out) == 3_000_000
    kept = len(run.stdout)
    assert f"{3_000_000 - kept} bytes of artifacts/claude_stdout.txt" in run.done.err
    checked = place.stream("check", run.folder)
    assert {json.loads(line)["rule"] for line in checked.out.splitlines()} == {"run.incomplete"}


def test_no_room_for_anything(place: Place, disk_of_1m: Path) -> None:
    """The agent itself fills the disk: its exit code is its own, and the beginning stands."""
    agent = "cat /dev/zero >big 2>/dev/null; exit 5"
    run = record_on(disk_of_1m, place, "--workspace", "empty", "--", "sh", "-c", agent)
    assert run.done.code == 5
    assert "the record is incomplete" in run.done.err
    assert run.names[:3] == ["run_started", "workspace_prepared", "agent_invoked"]
    checked = place.stream("check", run.folder)
    assert {json.loads(line)["rule"] for line in checked.out.splitlines()} == {"run.incomplete"}


def test_no_room_for_the_copy(place: Place, disk_of_1m: Path) -> None:
    (place.workspace / "big").write_bytes(bytes(2_000_000))
    run = record_on(disk_of_1m, place, "--", "touch", "ran")
    assert run.done.code == 2
    assert "no space left on device" in run.done.err
    assert not (run.folder / "workspace").exists()
    shutil.rmtree(run.folder)


def test_the_guard_is_stopped(place: Place) -> None:
    run = observe(place, "--", "sh", "-c", "kill -STOP $PPID; exit 5")
    assert run.done.code == 5


def test_a_stopped_guard_outlives_nobody(place: Place) -> None:
    fifo = place.make_fifo("ready")
    agent = 'kill -STOP $PPID; echo ready >"$1"; exec perl -e "sleep 1000" "$2"'
    process = place.start("observe", "--", "sh", "-c", agent, "agent", fifo, place.root)
    assert fifo.read_bytes() == b"ready\n"
    process.kill()
    place.finish(process)
    deadline = time.monotonic() + PATIENCE
    while place.find_left() and time.monotonic() < deadline:
        pass  # the fixture names who is left


@pytest.mark.parametrize("attempt", range(5))
def test_the_guard_is_killed_before_it_has_reported_anything(place: Place, attempt: int) -> None:
    agent = 'kill -9 $PPID; exec perl -e "sleep 1000" "$1"'
    done = place.stream("observe", "--", "sh", "-c", agent, "agent", place.root)
    assert done.code == 128 + signal.SIGKILL
    assert "the process that watched the agent was killed" in done.err


def test_a_signal_when_the_agent_has_ended_ends_the_waiting(place: Place) -> None:
    fifo = place.make_fifo("ready")
    waited = f"while kill -0 $0 2>/dev/null; do :; done; echo ready >{fifo}"
    child = f'{waited}; exec perl -e "sleep 1000"'
    agent = f"setsid sh -c '{child}' $$ {place.root} & exit 4"
    process = place.start("observe", "--grace", "1000", "--", "sh", "-c", agent)
    assert fifo.read_bytes() == b"ready\n"
    process.send_signal(signal.SIGINT)
    run = only_run(place, place.finish(process))
    assert run.done.code == 4
    assert len(run.summary["stopped"]) == 1
    assert "SIGINT is passed on" in run.done.err


_MADE = """
import os, signal
from stream.process.cgroup import current_cgroup
from stream.process.guard import fork_guard

home = current_cgroup()
guard = fork_guard()
while not (made := list(home.glob(f"stream-{guard.pid}-*"))):
    pass
print(*made, flush=True)
"""


@pytest.mark.parametrize(
    "ending",
    [
        "guard.close()",
        # It had not reported it to the recorder yet.
        "os.kill(guard.pid, signal.SIGKILL); guard.close()",
        "os.kill(os.getpid(), signal.SIGKILL)",
    ],
)
def test_no_control_group_stays_whoever_is_killed(needs_root: None, ending: str) -> None:
    if current_cgroup() is None:
        pytest.skip("there are no control groups of version 2")
    # Its stdout is the guard's as well: what is waited for is the end of both.
    done = subprocess.run(
        [sys.executable, "-c", _MADE + ending], capture_output=True, text=True, timeout=180
    )
    assert done.stderr == ""
    assert [place for place in done.stdout.split() if Path(place).exists()] == []
    assert done.stdout
