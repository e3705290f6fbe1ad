"""Whose events they are: by control group, by descent, and never those of the guard."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from anyio import create_task_group, to_thread

from stream.sources.kernel.ebpf import URGENT, EbpfFeed, urgent_thread
from tests.kernel.rig import (
    Items,
    collect_batches,
    record_program,
    run_guard,
    run_program,
    sort_batches,
)

pytestmark = pytest.mark.usefixtures("kernel_feed")


@pytest.fixture(autouse=True, scope="module")
def needs_groups() -> None:
    with run_guard() as guard:
        if guard.cgroup is None:
            pytest.skip("needs a control group of version 2")


def test_nothing_of_the_guard_is_recorded(calls: Path, place: Path) -> None:
    """It reads a file, starts the program and waits for it."""
    recorded = run_program(place, calls, "nothing")
    assert [event.call for event in recorded.events] == ["exec", "exit"]
    assert recorded.capture.scopes == {"both": 2}
    assert recorded.capture.before_exec == 0


def test_what_the_child_does_before_it_executes_is_not_the_programs(
    calls: Path, place: Path
) -> None:
    recorded = run_program(place, calls, "nothing", prepares=True)
    assert [event.call for event in recorded.events] == ["exec", "exit"]
    assert recorded.capture.before_exec >= 3  # it opened a file; its child came and went
    assert recorded.is_balanced
    assert recorded.capture.scopes == {"both": 2}
    assert recorded.capture.cgroup == "clean"


@pytest.mark.parametrize("prepares", [False, True])
def test_a_program_that_cannot_be_started_did_nothing(place: Path, prepares: bool) -> None:
    """That it was tried, and how that ended, was before there was a command."""
    recorded = run_program(place, place / "missing", prepares=prepares)
    assert recorded.code == -2
    assert recorded.events == []
    assert recorded.capture.before_exec >= 2
    assert recorded.capture.got == recorded.capture.before_exec
    assert recorded.is_balanced


async def test_the_guard_may_start_several(anyio_backend: object, calls: Path, place: Path) -> None:
    batches: Items = []
    with run_guard() as guard:
        feed = EbpfFeed.open(guard=guard.pid, cgroup=guard.cgroup)
        try:
            for word in ("first", "second"):
                guard.start(place, str(calls), word)
                assert guard.wait() == 0
            feed.end()
            await collect_batches(feed, batches)
        finally:
            feed.close()
    recorded = sort_batches(batches, 0)
    assert [event.argv[-1] for event in recorded.events_of("exec") if event.argv] == [
        "first",
        "second",
    ]
    assert recorded.capture.scopes == {"both": 4}


LEAVES = """
import os, sys
os.close(os.open("inside", os.O_CREAT | os.O_WRONLY))
open(sys.argv[1], "w").write("0")
os.close(os.open("outside", os.O_CREAT | os.O_WRONLY))
if os.fork() == 0:
    os.close(os.open("child", os.O_CREAT | os.O_WRONLY))
    os._exit(0)
os.wait()
"""


def test_a_process_that_leaves_the_group_stays_in_the_tree(place: Path) -> None:
    with run_guard() as guard:
        assert guard.cgroup
        members = guard.cgroup.parent / "cgroup.procs"
    recorded = run_program(place, sys.executable, "-Ic", LEAVES, members)
    assert recorded.code == 0
    assert recorded.event_at("inside").scope == "both"
    assert recorded.event_at("outside").scope == recorded.event_at("child").scope == "tree"
    number = recorded.capture.scopes["tree"]
    assert recorded.capture.cgroup == "partial"
    left = "a process of the run left its control group"
    assert recorded.capture.unknown_loss == left
    assert recorded.capture.cgroup_reasons == [
        f"{number} events of descendants that had left it",
        left,
    ]
    assert recorded.is_balanced


OUTSIDER = "input(); open('moved-in', 'w').close(); print(flush=True); input()"


def start_outsider(folder: Path) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-Ic", OUTSIDER]
    return subprocess.Popen(argv, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.parametrize("nested", [False, True])
async def test_a_process_that_is_moved_in_is_not_of_the_tree(
    anyio_backend: object, calls: Path, place: Path, nested: bool
) -> None:
    batches: Items = []
    with run_guard() as guard:
        assert guard.cgroup
        group = guard.cgroup / "inner" if nested else guard.cgroup
        group.mkdir(exist_ok=True)
        feed = EbpfFeed.open(guard=guard.pid, cgroup=guard.cgroup)
        with start_outsider(place) as outsider:
            assert outsider.stdin
            assert outsider.stdout
            (group / "cgroup.procs").write_text(str(outsider.pid))
            outsider.stdin.write(b"\n")
            outsider.stdin.flush()
            outsider.stdout.readline()
            guard.start(place, str(calls), "nothing")
            assert guard.wait() == 0
            feed.end()
            await collect_batches(feed, batches)
            feed.close()
            outsider.communicate(b"\n")
        if nested:
            group.rmdir()
    recorded = sort_batches(batches, 0)
    assert recorded.event_at("moved-in").scope == "cgroup"
    assert recorded.event_at(calls).scope == "both"
    assert recorded.capture.cgroup == "partial"
    assert recorded.capture.cgroup_reasons == [
        f"{recorded.capture.scopes['cgroup']} events of others that were in it",
        "processes were still in it at the end",
    ]


def test_without_a_group_the_tree_is_all_there_is(calls: Path, place: Path) -> None:
    recorded = run_program(place, calls, "families", cgroup=False)
    assert recorded.capture.scopes == {"tree": len(recorded.events)}
    assert len(recorded.events_of("exit")) == 4
    assert recorded.capture.cgroup == "failed"
    assert recorded.capture.cgroup_reasons == ["no control group of version 2"]


def test_more_processes_than_the_tree_has_room_for(place: Path) -> None:
    """What is outside of the group as well is not seen: the capture counts that there were some."""
    script = 'for i in 1 2 3 4 5 6 7 8; do sleep 9 & all="$all $!"; done; kill $all; wait'
    recorded = run_program(place, "/bin/sh", "-c", script, tree_size=4, cgroup=False)
    assert recorded.capture.lost_forks > 0
    assert recorded.is_balanced
    again = run_program(place, "/bin/sh", "-c", script, tree_size=4)
    assert again.capture.cgroup == "partial"
    assert "processes that could not be followed" in again.capture.cgroup_reasons


def test_who_has_ended_takes_no_room_in_the_tree(programs: Path, place: Path) -> None:
    recorded = run_program(place, programs / "forks", 4, 1000, tree_size=256, cgroup=False)
    assert len(recorded.events_of("fork")) == 4004
    assert len(recorded.events_of("exit")) == 4005
    assert recorded.capture.lost_forks == 0
    assert recorded.is_balanced


async def test_from_within_a_namespace_of_pids(
    anyio_backend: object, calls: Path, place: Path
) -> None:
    """The guard is known by the number that it has where the feed is opened."""
    program = (
        "import anyio, sys\n"
        "from pathlib import Path\n"
        "from tests.kernel.rig import run_program\n"
        "recorded = run_program(Path(sys.argv[1]), sys.argv[2], 'families')\n"
        "forks, exits = (len(recorded.events_of(call)) for call in ('fork', 'exit'))\n"
        "print(forks, exits, recorded.capture.cgroup)\n"
    )
    argv = ["unshare", "--pid", "--fork", "--mount-proc"]
    argv += [sys.executable, "-c", program, str(place), str(calls)]
    done = await to_thread.run_sync(
        lambda: subprocess.run(argv, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    )
    assert (done.stdout, done.stderr) == ("3 4 clean\n", "")


async def test_two_feeds_do_not_see_each_other(
    anyio_backend: object, calls: Path, place: Path
) -> None:
    both: list[list[str]] = [[], []]

    async def record_in_folder(number: int) -> None:
        folder = place / str(number)
        folder.mkdir()
        (folder / "sub").mkdir()
        recorded = await record_program(folder, calls, "opens")
        both[number] = [str(event.path) for event in recorded.events]
        assert recorded.capture.cgroup == "clean"

    async with create_task_group() as tasks:
        tasks.start_soon(record_in_folder, 0)
        tasks.start_soon(record_in_folder, 1)
    assert len(both[0]) == len(both[1])
    assert os.path.exists(place / "0" / "two")  # noqa: PTH110


def test_processes_that_outlive_the_watch_are_counted(place: Path) -> None:
    """Whatever they do then is seen by nobody."""
    begun, wrote = os.pipe()
    batches: Items = []

    async def end_and_collect(feed: EbpfFeed) -> None:
        await to_thread.run_sync(os.read, begun, 1)
        feed.end()
        await collect_batches(feed, batches)

    with run_guard(wrote) as guard:
        feed = EbpfFeed.open(guard=guard.pid, cgroup=guard.cgroup)
        try:
            guard.start(place, "sh", "-c", "sleep 1000 & echo; exec sleep 1000")
            anyio.run(end_and_collect, feed)
        finally:
            feed.close()
            events = sort_batches(batches, 0).events
            for pid in {event.pid for event in events} | {event.child for event in events} - {0}:
                os.kill(pid, signal.SIGKILL)
            guard.wait()
            for end in (begun, wrote):
                os.close(end)
    capture = sort_batches(batches, 0).capture
    assert capture.unknown_loss == "processes that lived on, unwatched: 2"


def test_the_recorder_goes_before_others_and_what_it_starts_does_not(needs_root: None) -> None:
    nice = ["python3", "-c", "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"]

    def read_priorities() -> tuple[int, int]:
        child = subprocess.run(nice, capture_output=True, check=True).stdout
        return os.getpriority(os.PRIO_PROCESS, 0), int(child)

    before = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
        with urgent_thread():
            assert read_priorities() == (URGENT, 0)
        assert read_priorities() == (0, 0)
        os.setpriority(os.PRIO_PROCESS, 0, 1)
        with urgent_thread():
            assert read_priorities() == (1, 1)  # as somebody wants it to be
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)
