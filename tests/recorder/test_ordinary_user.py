"""An ordinary user, for whom no control group can be made: a subreaper holds the tree."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.cli.command import PATIENCE, Place, processes_naming
from tests.cli.test_ordinary_user import Run, open_place, run
from tests.recorder.runs import Run as Recorded

__all__ = ["open_place", "run"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="containment needs Linux")

DAEMON = """
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.closerange(0, 100)
os.execve('/usr/bin/perl', ['perl', '-e', 'sleep 1000', sys.argv[1]], {})
"""


@pytest.fixture
def runs(open_place: Place) -> Path:
    folder = open_place.root / "runs"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def daemon_command(place: Place) -> list[str]:
    return ["/usr/bin/python3", "-c", f"import os, sys\n{DAEMON}", str(place.root)]


def test_a_run(open_place: Place, run: Run, runs: Path) -> None:
    (open_place.workspace / "old").write_text("old")
    agent = "echo text; git --version; echo new >new; rm old; exit 3"
    done = run("observe", "--runs", runs, "--run-id", "one", "--", "sh", "-c", agent)
    recorded = Recorded(runs / "one", done)
    assert done.code == 3
    assert done.out.startswith(b"text\ngit version")
    assert sorted(recorded.changes) == ["new", "old"]
    assert recorded.summary["containment"] == "subreaper"
    checked = run("check", runs / "one")
    assert (checked.code, checked.out) == (0, b""), checked.err


def test_a_daemon_that_closes_everything(open_place: Place, run: Run, runs: Path) -> None:
    words = ["observe", "--runs", runs, "--run-id", "one", "--grace", "0.2"]
    done = run(*words, "--", *daemon_command(open_place))
    recorded = Recorded(runs / "one", done)
    assert done.code == 0
    assert len(recorded.summary["stopped"]) == 1
    assert recorded.summary["stopped"][0].startswith("perl (pid ")


@pytest.mark.parametrize("who", ["recorder", "guard"])
def test_who_is_killed(open_place: Place, run: Run, runs: Path, who: str) -> None:
    """The agent prints its parent, which is the guard, and the guard's."""
    code = (
        "import os\nguard = os.getppid()\n"
        "stat = open(f'/proc/{guard}/stat').read()\n"
        "recorder = stat.rpartition(')')[2].split()[1]\n"
        f"os.kill(guard if {who!r} == 'guard' else int(recorder), {int(signal.SIGKILL)})\n"
    )
    script = f"{code}import sys, time\nif os.fork(): time.sleep(1000)\n{DAEMON}"
    words = ["observe", "--runs", runs, "--run-id", "one"]
    done = run(*words, "--", "/usr/bin/python3", "-c", script, open_place.root)
    assert done.code in (128 + signal.SIGKILL, -signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while processes_naming(str(open_place.root)) and time.monotonic() < deadline:
        os.sched_yield()
    rules = [json.loads(line)["rule"] for line in run("check", runs / "one").out.splitlines()]
    assert rules == ["run.incomplete"]


def test_a_folder_of_path_that_nobody_may_look_into(
    open_place: Place, run: Run, runs: Path
) -> None:
    """The system reports that permission was denied, as it may be there."""
    closed = open_place.root / "closed"
    closed.mkdir()
    (closed / "here").mkdir()
    closed.chmod(0o700)
    path = f"{closed / 'here'}:{open_place.env['PATH']}"
    done = run("observe", "-q", "--runs", runs, "--", "nosuch", env={"PATH": path})
    assert done.code == 126
    why = "permission denied; there is no such program on PATH"
    assert done.err == f"stream: nosuch: not started: {why}\n"
