"""The same task again: the real agent names much otherwise in each run, and did the same."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import pytest

from tests.e2e.rig import ALLOWED, STREAM_JSON, Rig, Turn, bash_turn, text_turn, write_turn
from tests.sweeping import first_of

SCRIPT = [
    write_turn("alpha.txt", "alpha\n"),
    bash_turn("echo beta >beta.txt; wc *.txt"),
    text_turn("Done."),
]
SETS = ("paths", "execs", "tools", "decisions")
WORDS = ",".join(f"{how}-{what}" for what in SETS for how in ("added", "removed"))


#: Process numbers that `diff` takes for years, and before them as many as a run may need.
LIKE_YEARS = range(1000, 2100)


def record_task(rig: Rig, name: str, script: Sequence[Turn], feed: str) -> Path:
    """Record a run of which no process has a number that looks like a year."""
    while (pid := os.posix_spawn("/bin/true", ["true"], {})) in LIKE_YEARS:
        os.waitpid(pid, 0)
    os.waitpid(pid, 0)
    return rig.record(name, script, *STREAM_JSON, ALLOWED, options=kernel_options(feed)).folder


def kernel_options(feed: str) -> tuple[str, ...]:
    return ("--kernel", feed, "--require", "kernel")


@pytest.fixture(scope="module", params=first_of("ebpf", "strace"))
def feed(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def runs(rig: Rig, feed: str) -> list[Path]:
    """The first one finds an empty home, and leaves its own in it: it is of another kind."""
    return [record_task(rig, f"again-{feed}-{number}", SCRIPT, feed) for number in range(3)][1:]


def test_identical_runs_add_and_remove_nothing(rig: Rig, runs: list[Path]) -> None:
    for base, head in permutations(runs, 2):
        done = rig.place.stream("diff", base, head, "--fail-on", WORDS)
        assert (done.code, done.err) == (0, ""), done.out
        (record,) = done.records
        (note,) = (n for n in record["notes"] if n.startswith("capability_diff_names: "))
        assert all(f" {rule}=" in note for rule in ("pid", "random", "run", "time", "uuid"))
    surfaces = [json.loads((run / "capability-surface.json").read_bytes()) for run in runs]
    first, *others = (set(surface["filesystem_paths"]) for surface in surfaces)
    assert all(len(first - other) > 10 for other in others), "by their own names, they differ"


def test_what_the_task_adds_is_all_that_is_added(rig: Rig, runs: list[Path], feed: str) -> None:
    outside = rig.place.root / f"report-{feed}.md"
    script = [
        *SCRIPT[:-1],
        bash_turn(f"echo new >new.txt; echo out >{outside}"),
        text_turn("Done."),
    ]
    more = record_task(rig, f"again-{feed}-more", script, feed)
    done = rig.place.stream("diff", runs[0], more, "--fail-on", WORDS)
    (record,) = done.records
    paths = record["surface"]["filesystem_paths"]
    assert set(paths["added"]) >= {"(run)/workspace/new.txt", str(outside)}
    assert paths["removed"] == []
    assert (done.code, "added-paths" in done.err) == (1, True)
