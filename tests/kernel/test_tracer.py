"""A guard and a program that is started by its tracer: one that is slow to go, or never does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cli.command import Place
from tests.cli.test_ordinary_user import open_place, ordinary_user_words
from tests.kernel.straced import Run, run

__all__ = ["open_place", "run"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="containment needs Linux")

# As strace does it: a grandchild in a group of its own lets go of its parents, and the program
# begins after that. It goes some time after the program has ended, and leaves a file then.
TRACER = """
import os, sys, time
held, end = os.pipe()
os.set_inheritable(end, True)
if not os.fork():
    if not os.fork():
        os.setpgid(0, 0)
        os.close(end)
        os.write(2, b"%d" % os.getpid())
        os.closerange(0, held)
        os.read(held, 1)
        time.sleep(float(sys.argv[1]))
        os.close(os.open("gone", os.O_CREAT))
    os._exit(0)
os.wait()
os.execv(sys.argv[2], sys.argv[2:])
"""


def tracer_command(lingers: float) -> list[str]:
    return ["/usr/bin/python3", "-ISc", TRACER, str(lingers)]


@pytest.mark.parametrize("is_ordinary", [False, True])
def test_one_that_has_more_to_write(run: Run, open_place: Place, is_ordinary: bool) -> None:
    """It is waited for, and nobody learns of it."""
    runner = ordinary_user_words(open_place) if is_ordinary else ()
    job = {"tracer": tracer_command(0.4), "cwd": open_place.tmp, "runner": runner}
    traced = run("/bin/sh", "-c", "exit 3", **job)
    assert traced.code == 3
    over = traced.report("TreeEnded")
    assert (over["outlived"], over["ended"]) == ([], [])
    assert (open_place.tmp / "gone").exists()
    (open_place.tmp / "gone").unlink()


@pytest.mark.parametrize("is_ordinary", [False, True])
def test_one_that_does_not_go(run: Run, open_place: Place, is_ordinary: bool) -> None:
    """It is ended."""
    runner = ordinary_user_words(open_place) if is_ordinary else ()
    job = {"tracer": tracer_command(1000), "cwd": open_place.tmp, "runner": runner}
    traced = run("/bin/sh", "-c", "exit 3", **job)
    assert traced.code == 3
    over = traced.report("TreeEnded")
    assert (over["outlived"], over["ended"]) == ([], [])
    assert not Path(f"/proc/{traced.seen['err']}").exists()


def test_it_is_distinguished_from_what_the_program_leaves(run: Run, tmp_path: Path) -> None:
    script = "setsid sleep 1000 7>&- 6>&- 5>&- 4>&- 3>&- & exit 0"
    traced = run("/bin/sh", "-c", script, tracer=tracer_command(0.1), grace=0.2)
    over = traced.report("TreeEnded")
    assert [len(over[which]) for which in ("outlived", "ended")] == [1, 1]
    assert "python3" not in str(over)  # which is what the tracer is
