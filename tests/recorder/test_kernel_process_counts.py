"""Processes without number, and such as leave: each fork and each end is seen, and none is left."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from stream.process.cgroup import current_cgroup
from stream.records.kernel import EXIT, FORK
from tests.cli.command import Place
from tests.feeds import FEEDS, needs_ebpf
from tests.recorder.runs import Run, observe, read_records
from tests.recorder.test_kernel import read_artifact, read_health, read_kernel_layer
from tests.recorder.test_kernel_attacks import find_error_rules

SOURCES = Path(__file__).parents[1] / "kernel" / "programs"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    for name in ("bomb", "forks"):
        options = ["-O1", "-static", "-o", str(folder / name)]
        subprocess.run(["gcc", *options, SOURCES / f"{name}.c"], check=True)
    return folder


def count_forks(run: Run) -> int:
    """How many forks there were. Whoever was forked ended, once, and so did the first one; and such
    whose making is reported as unknown."""
    counts = Counter(line["event_type"] for line in read_kernel_layer(run))
    details = read_records(run.folder / "layers/kernel-ext.ndjson")
    forked = Counter(line["child"] for line in details if line.get("call") == "fork")
    ended = Counter(line["pid"] for line in details if line.get("call") == "exit")
    capture = read_artifact(run, "companion.json")["capture"]
    assert not forked - ended
    assert [*(ended - forked).values()] == [1] * (1 + capture["lost_forks"])
    assert (counts[FORK], counts[EXIT]) == (forked.total(), ended.total())
    assert capture["got"] + capture["dropped"] == capture["seen"] >= len(read_kernel_layer(run))
    return counts[FORK]


def check_health(run: Run, feed: str) -> None:
    """Nothing is missing, and nothing is reported as missing."""
    found = read_health(run)
    assert (found["kernel_layer"], found["ringbuf_drops"]) == ("complete", 0)
    if feed == "ebpf" and current_cgroup() is not None:
        assert found["cgroup_correlation"] == "clean"


@pytest.mark.parametrize("feed", FEEDS)
def test_many_processes(place: Place, programs: Path, feed: str) -> None:
    """10,000 processes, and not so many with strace, which is slow."""
    each = {"ebpf": 2500, "strace": 100}[feed]
    command = (programs / "forks", "4", str(each))
    run = observe(place, "--kernel", feed, "--workspace", "empty", "--", *command)
    assert run.done.code == 0, run.done.err
    assert count_forks(run) == 4 + 4 * each
    check_health(run, feed)


@pytest.mark.parametrize("feed", FEEDS)
def test_a_fork_bomb_inside_limits(place: Place, programs: Path, feed: str) -> None:
    """It prints how many forks were refused: those are none. Those that stay are ended."""
    forks = {"ebpf": 3000, "strace": 300}[feed]
    script = 'cat /proc/self/cgroup; exec "$@"'
    words = ("--kernel", feed, "--grace", "0.1", "--timeout", "30", "--workspace", "empty")
    bomb = (programs / "bomb", str(forks), "50", place.root)
    run = observe(place, *words, "--", "sh", "-c", script, "sh", *bomb)
    assert run.done.code == 0, run.done.err
    *groups, refused = run.stdout.decode().splitlines()
    assert int(refused) > 0 or os.geteuid()
    assert count_forks(run) == forks + 1  # and cat
    check_health(run, feed)
    assert len(run.summary["stopped"]) == 5
    (group,) = (line.rpartition("/")[2] for line in groups if line.startswith("0::"))
    assert not list(Path("/sys/fs/cgroup").glob(f"**/{group}"))


@pytest.mark.parametrize("feed", FEEDS)
def test_a_fork_bomb_that_is_ended(place: Place, programs: Path, feed: str) -> None:
    """Who is killed in the middle of a fork cannot be seen by strace: that is reported."""
    words = ("--kernel", feed, "--grace", "0.1", "--timeout", "0.3", "--workspace", "empty")
    run = observe(place, *words, "--", programs / "bomb", "1000000000", "50", place.root)
    assert (run.done.code, run.summary["timed_out"]) == (128 + 15, True), run.done.err
    assert count_forks(run) > 100
    lost = read_artifact(run, "companion.json")["capture"]["lost_forks"]
    if feed == "ebpf" or not lost:
        check_health(run, feed)
    else:
        assert read_health(run)["kernel_layer"] == "partial_ringbuf_drops"
        assert f"stream_kernel_lost_forks: lost_forks={lost}" in read_health(run)["notes"]
    assert not find_error_rules(place, run)


LEAVES = """
: >inside
echo 0 >"$1/cgroup.procs"
: >outside
setsid sh -c ': >beyond; exec perl -e "sleep 1000" "$0"' "$2" &
until [ -e beyond ]; do :; done
exit 3
"""


@needs_ebpf
def test_processes_that_leave_the_group(place: Place) -> None:
    """They are still of the tree: seen, and ended. That they left is reported."""
    home = current_cgroup()
    if home is None or not os.access(home / "cgroup.procs", os.W_OK):
        pytest.skip("needs a control group of version 2")
    words = ("--kernel", "ebpf", "--grace", "0.1", "--workspace", "empty")
    run = observe(place, *words, "--", "sh", "-c", LEAVES, "sh", home, place.root)
    assert run.done.code == 3, run.done.err
    assert len(run.summary["stopped"]) == 1
    details = {one["seq"]: one for one in read_records(run.folder / "layers/kernel-ext.ndjson")}
    scopes = {
        Path(line["value"]).name: details.get(line["seq"], {}).get("scope", "both")
        for line in read_kernel_layer(run)
        if (line["value"] or "").startswith(f"{run.folder}/workspace/")
    }
    assert scopes == {"inside": "both", "outside": "tree", "beyond": "tree"}
    found = read_health(run)
    layer = (found["kernel_layer"], found["cgroup_correlation"])
    assert layer == ("partial_ringbuf_drops", "partial")
    left = read_artifact(run, "companion.json")["capture"]["scopes"]["tree"]
    why = "a process of the run left its control group"
    reason = f"stream_cgroup_partial: {left} events of descendants that had left it; {why}"
    assert reason in found["notes"]
    assert f"stream_kernel_unknown_loss: {why}" in found["notes"]
    assert not find_error_rules(place, run)
