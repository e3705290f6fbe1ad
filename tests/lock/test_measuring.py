"""`stream lock` that measures itself: real sandboxes, and modes that change or cannot be run."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from stream.compare.lockfile import parse_lock
from tests.cli.command import Place, write_script
from tests.cli.test_modes import write_mode
from tests.lock.records import lock_text, measure, mode_record

PROBES = ("fs_outside_workspace", "fs_workspace_write_create", "fs_sentinel_delete")
CLOSED = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--die-with-parent", "{probe}"]
OPEN = ["bwrap", "--bind", "/", "/", "--dev", "/dev", "--die-with-parent", "{probe}"]


def read_records(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def outcomes_in(path: Path) -> dict[tuple[str, str], str]:
    parsed = parse_lock(path.read_bytes(), path.name)
    assert parsed.faults == []
    return {(cell.mode, cell.probe): cell.state.outcome for cell in parsed.lock.cells}


def test_what_is_locked_is_measured_again(place: Place) -> None:
    words = ("--mode", "bwrap-ro", "bwrap-workspace", "--probe", *PROBES)
    lock = place.workspace / "boundary.lock"
    done = place.stream("lock", "-o", lock, *words)
    assert (done.code, done.out) == (0, b""), done.err
    assert done.err == "lock: 6 cells in 2 modes\n"
    assert outcomes_in(lock) == {
        ("bwrap-ro", "fs_outside_workspace"): "closed",
        ("bwrap-ro", "fs_sentinel_delete"): "closed",
        ("bwrap-ro", "fs_workspace_write_create"): "closed",
        ("bwrap-workspace", "fs_outside_workspace"): "closed",
        ("bwrap-workspace", "fs_sentinel_delete"): "open",
        ("bwrap-workspace", "fs_workspace_write_create"): "open",
    }
    # The same bytes on stdout; the same modes by default; and no drift.
    assert place.stream("lock", *words).out == lock.read_bytes()
    before = lock.read_bytes()
    assert place.stream("lock", "-o", lock, "--probe", *PROBES).code == 0
    assert lock.read_bytes() == before
    for more in ((), ("--probe", *PROBES)):  # what is locked is measured, and nothing else
        done = place.stream("lock", "--check", *more)
        assert (done.code, done.err) == (0, "")
        assert done.out == b"boundary.lock: no difference; 6 cells as locked\n"


def test_a_sandbox_that_opens_and_closes(place: Place) -> None:
    lock, words = place.workspace / "boundary.lock", ("--probe", "fs_sentinel_delete")
    mode = write_mode(place, "mine", CLOSED, sandbox="bubblewrap", version=["bwrap", "--version"])
    assert place.stream("lock", "-o", lock, "--mode", mode, *words).code == 0
    write_mode(place, "mine", OPEN, sandbox="bubblewrap", version=["bwrap", "--version"])
    done = place.stream("lock", "--check", "--mode", mode, *words)
    lines = done.out.decode().splitlines()
    assert done.code == 1, done.err
    assert lines[0] == "OPENED: 1 cell: more gets through than is locked"
    assert lines[1].startswith("  boundary.lock:8: fs_sentinel_delete (mine): locked as closed")
    assert lines[1].endswith("; now open")
    assert lines[2].startswith("note: mine: digest of the settings: locked ")
    assert place.stream("lock", "-o", lock, "--mode", mode, *words).code == 0
    write_mode(place, "mine", CLOSED, sandbox="bubblewrap", version=["bwrap", "--version"])
    done = place.stream("lock", "--check", "--mode", mode, *words)
    assert (done.code, done.out.startswith(b"closed: 1 cell: ")) == (1, True)


def test_a_cell_that_flaps(place: Place) -> None:
    """Each second start of it has no sandbox."""
    count = place.root / "count"
    script = write_script(
        place.root / "flip.sh",
        f'#!/bin/sh\necho >>{count}\n[ $(($(wc -l <{count}) % 2)) = 0 ] || exec "$@"\n'
        f'exec {" ".join(CLOSED[:-1])} "$@"\n',
    )
    mode = write_mode(place, "flip", [str(script), "{probe}"], sandbox="flip")
    lock = place.workspace / "boundary.lock"
    words = ("--mode", mode, "--probe", "fs_sentinel_delete", "--jobs", "1")
    done = place.stream("lock", "-o", lock, *words, "--repeat", "4")
    assert (done.code, done.err) == (0, "lock: 1 cell in 1 mode, 1 flaky\n")
    assert outcomes_in(lock) == {("flip", "fs_sentinel_delete"): "flaky(open:2/4,closed:2/4)"}
    for _ in range(2):
        assert place.stream("lock", "--check", *words).code == 0


def test_a_mode_that_cannot_be_run_here(place: Place) -> None:
    """It is not measured, with its reason, and so is each of its cells: none passes."""
    lock = place.workspace / "boundary.lock"
    cells = [mode_record("a", mode="sandbox-exec"), mode_record("a", mode="nosuch")]
    lock.write_text(lock_text(measure(*cells)))
    done = place.stream("lock", "--check")
    text = done.out.decode()
    assert (done.code, done.err) == (1, "")
    assert text.startswith("unmeasured: 2 cells: what is locked can no longer be measured")
    assert "a (sandbox-exec): locked as closed (permission); not measured now: it is for " in text
    assert "not measured now: there is no such mode: --mode names its file" in text
    done = place.stream("lock", "--check", "--format", "junit")
    cases = [*ET.fromstring(done.out).iter("testcase")]
    verdicts = sorted(child.tag for case in cases for child in case)
    assert (done.code, verdicts) == (1, ["failure", "failure", "skipped", "skipped"])
    assert len(cases) == 4


def test_a_mode_that_has_to_be_locked(place: Place) -> None:
    lock = place.workspace / "boundary.lock"
    for words in (["--mode", "bwrap-ro", "sandbox-exec"], ["-o", lock]):
        if lock in words:
            lock.write_text(lock_text(measure(mode_record("a", mode="sandbox-exec"))))
        done = place.stream("lock", *words)
        assert (done.code, done.out) == (40, b"")
        assert "mode sandbox-exec cannot be run here: it is for " in done.err
    assert b"sandbox-exec" in lock.read_bytes()


def test_a_conflict_is_resolved_by_measuring_again(place: Place) -> None:
    lock, words = place.workspace / "boundary.lock", ("--probe", "fs_sentinel_delete")
    assert place.stream("lock", "-o", lock, "--mode", "bwrap-ro", *words).code == 0
    whole = lock.read_bytes()
    cell = next(line for line in whole.splitlines() if line.startswith(b"closed"))
    conflict = b"<<<<<<< mine\n" + cell + b"\n=======\n" + cell + b"\n>>>>>>> theirs"
    lock.write_bytes(whole.replace(cell, conflict))
    assert place.stream("lock", "--check", *words).code == 2
    assert place.stream("lock", "-o", lock, *words).code == 0
    assert lock.read_bytes() == whole


def test_only_what_was_asked_for_is_compared(place: Place) -> None:
    lock, probe = place.workspace / "boundary.lock", "fs_sentinel_delete"
    others = [mode_record("other"), mode_record(probe, mode="bwrap-workspace")]
    closed = mode_record(
        probe, errno="EROFS", capability="cap_fs_write_workspace_tree", version="1"
    )
    lock.write_text(lock_text(measure(closed, *others)))
    done = place.stream(
        "lock", "--check", "--mode", "bwrap-ro", "--probe", probe, "--format", "json"
    )
    (found,) = done.records
    assert (done.code, found["unchanged"]) == (0, 1), done.err
    assert found["notes"][-1] == "2 cells not compared: --mode, --probe and --cap leave them out"
    done = place.stream("lock", "--check", "--mode", "baseline")
    assert (done.code, done.out) == (2, b"")
    assert "there is nothing to compare" in done.err
    done = place.stream("lock", "--mode", "baseline")
    assert (done.code, "there is nothing to lock" in done.err) == (2, True)


def test_a_probe_that_breaks_is_told(place: Place) -> None:
    """It is locked as not measured: a later measurement that tells something is a drift."""
    lock, words = place.workspace / "boundary.lock", ("--probe", *PROBES[1:])
    silent = 'case "$*" in *fs_sentinel*) exit 0;; esac; exec "$@"'
    mode = write_mode(place, "mine", ["sh", "-c", silent, "-", *OPEN], sandbox="mine")
    done = place.stream("lock", "-o", lock, "--mode", mode, *words)
    assert done.code == 0
    assert "fs_sentinel_delete (mine): " in done.err
    assert done.err.endswith("lock: 2 cells in 1 mode, 1 not measured, 1 broken\n")
    assert outcomes_in(lock)["mine", "fs_sentinel_delete"] == "untold"
    write_mode(place, "mine", OPEN, sandbox="mine")
    done = place.stream("lock", "--check", "--mode", mode, *words)
    assert (done.code, done.out.startswith(b"measured: 1 cell")) == (1, True)


def test_a_sandbox_that_never_starts_is_not_locked(place: Place) -> None:
    lock = place.workspace / "boundary.lock"
    mode = write_mode(place, "mine", ["sh", "-c", "exit 3", "{probe}"], sandbox="mine")
    done = place.stream("lock", "-o", lock, "--mode", mode, "bwrap-ro", "--probe", *PROBES)
    assert (done.code, done.out) == (40, b"")
    assert "mode mine: nothing could be measured in it: the probe failed" in done.err
    assert not lock.exists()


def test_a_changed_copy_of_a_mode_keeps_its_name(place: Place) -> None:
    words = ("--probe", "fs_outside_workspace")
    assert place.stream("lock", "-o", "boundary.lock", "--mode", "bwrap-ro", *words).code == 0
    other = write_mode(place, "mine", OPEN, sandbox="bubblewrap")
    done = place.stream("lock", "--check", "--mode", other)
    assert (done.code, done.out) == (2, b"")
    assert "mode mine is not locked" in done.err
    assert "--mode changed/bwrap-ro.toml" in done.err
    changed = place.root / "changed" / "bwrap-ro.toml"
    changed.parent.mkdir()
    other.rename(changed)
    done = place.stream("lock", "--check", "--mode", changed)
    assert (done.code, done.out.startswith(b"OPENED: 1 cell")) == (1, True)


def test_another_user_is_a_note(place: Place, needs_root: None) -> None:
    words = ("--mode", "bwrap-ro", "--probe", PROBES[0])
    assert place.stream("lock", "-o", "boundary.lock", *words).code == 0
    done = place.stream("lock", "--check", "--as", "nobody")
    assert done.code == 0, done.err
    assert b"bwrap-ro: user that the probes run as: locked root, now ordinary" in done.out


def test_an_interrupt_leaves_no_lockfile(place: Place) -> None:
    fifo = place.make_fifo("started")
    mode = write_mode(place, "slow", ["sh", "-c", f"echo >{fifo}; sleep 1000", "{probe}"])
    lock = place.workspace / "boundary.lock"
    process = place.start("lock", "-o", lock, "--mode", mode, "--probe", "fs_sentinel_delete")
    with fifo.open() as started:
        assert started.readline() == "\n"
    process.send_signal(signal.SIGINT)
    done = place.finish(process)
    assert (done.code, done.out) == (130, b"")
    assert not [*place.workspace.iterdir()]


@pytest.mark.parametrize("more", [["--probe", "nosuch"], ["--mode", "nosuch"], ["--cap", "nosuch"]])
def test_unknown_names(place: Place, more: list[str]) -> None:
    done = place.stream("lock", *more)
    assert (done.code, done.out) == (2, b"")
    assert "nosuch" in done.err


@pytest.mark.writes_tmp
def test_all_modes_that_can_be_run_here(place: Place) -> None:
    """Without a lockfile and without --mode. Here that is one: PATH has what it needs alone."""
    names = ("bwrap", "bash", "sh", "perl", "env", "cat", "id", "rm", "mkdir", "git", "uname")
    folder = place.root / "bin"
    folder.mkdir()
    for name in names:
        paths = (Path(one, name) for one in os.environ["PATH"].split(":"))
        if found := next((path for path in paths if path.exists()), None):
            (folder / name).symlink_to(found)
    modes = [json.loads(line) for line in place.stream("modes", "--json").out.splitlines()]
    assert len(modes) > 3
    done = place.stream("lock", "--probe", "fs_sentinel_delete", env={"PATH": str(folder)})
    assert done.code == 0, done.err
    listed = [line.split()[1] for line in done.out.decode().splitlines() if line[:4] == "mode"]
    usable = place.stream("modes", "--json", env={"PATH": str(folder)}).out.splitlines()
    expected = [one["mode"] for one in map(json.loads, usable) if one["state"] == "ok"]
    assert listed == [name for name in expected if name != "baseline"]
    assert "bwrap-ro" in listed
    assert "unshare-net" not in listed


# --- in parts ---------------------------------------------------------------------------------


def test_a_matrix_in_parts_is_the_whole(place: Place) -> None:
    """Of three shards by a plan, merged: the same cells in the same order, and the same lock."""
    words = ("--mode", "bwrap-ro", "landlock-ro", "--probe", *PROBES, "--repeat", "2")
    done = place.stream("matrix", *words, "--make-plan", "-o", "plan.json")
    assert (done.code, done.out, done.err) == (0, b"", "")
    assert place.stream("validate", "plan.json").code == 0
    plan = json.loads((place.workspace / "plan.json").read_bytes())
    assert plan["modes"] == ["baseline", "bwrap-ro", "landlock-ro"]
    assert [probe["id"] for probe in plan["probes"]] == [*PROBES]
    assert all(probe["version"] for probe in plan["probes"])
    sizes = []
    for shard in ("1/4", "2/4", "3/4", "4/4"):
        name = f"shard-{shard[0]}.ndjson"
        done = place.stream("matrix", "--plan", "plan.json", "--shard", shard, "-o", name)
        assert done.code == 0, done.err
        assert place.stream("validate", name).code == 0
        sizes.append(len((place.workspace / name).read_bytes().splitlines()))
    assert sorted(sizes) == [4, 4, 5, 5]
    files, merged = sorted(place.workspace.glob("shard-*")), place.workspace / "merged.ndjson"
    done = place.stream("merge", "--plan", "plan.json", *files, "-o", merged)
    assert (done.code, done.err) == (0, "merge: 18 of 18 cells\n")
    assert place.stream("matrix", *words, "-o", "whole.ndjson", "-q").code == 0
    keys = [
        [(one["run"]["mode"], one["probe"]["id"], one["control"]["state"]) for one in some]
        for some in map(read_records, (merged, place.workspace / "whole.ndjson"))
    ]
    assert keys[0] == keys[1]
    locks = [place.stream("lock", name).out for name in ("merged.ndjson", "whole.ndjson")]
    assert locks[0] == locks[1] != b""
    done = place.stream("merge", "--plan", "plan.json", *files[:3])
    assert (done.code, done.err.count("merge: missing: ")) == (1, sizes[3])


def test_a_plan_that_is_not_split(place: Place) -> None:
    words = ("--mode", "bwrap-ro", "--probe", "fs_sentinel_delete", "--host", "ci")
    plan = place.root / "plan.json"
    plan.write_bytes(place.stream("matrix", *words, "--make-plan").out)
    done = place.stream("matrix", "--plan", plan)
    assert (done.code, {one["host"] for one in done.records}) == (0, {"ci"})
    whole = place.stream("merge", "--plan", plan, "-", data=done.out)
    assert (whole.code, len(whole.records)) == (0, 2)


def test_what_does_not_go_with_a_plan(place: Place) -> None:
    plan = place.root / "plan.json"
    words = ("--mode", "bwrap-ro", "--probe", "fs_sentinel_delete")
    plan.write_bytes(place.stream("matrix", *words, "--make-plan").out)
    for more, message in (
        (["--plan", plan, "--probe", "fs_tmp_write"], "--plan says what is run"),
        (["--plan", plan, "--mode", "bwrap-ro"], "--plan says what is run"),
        (["--plan", plan, "--repeat", "2"], "--plan says what is run"),
        (["--plan", plan, "--raw"], "--plan says what is run"),
        (["--plan", plan, "--shard", "3/2"], "--shard 3/2: expected I/N"),
        (["--plan", plan, "--shard", "1/9"], "the plan has fewer cells than shards"),
        (["--plan", plan, "--host", "other"], "--host other: the plan has "),
        (["--plan", "nosuch.json"], "nosuch.json: no such file"),
        (["--shard", "1/2"], "--shard is a part of a --plan"),
        (["--make-plan"], "a plan is of modes: --mode names them"),
        (["--make-plan", "--mode", "baseline"], "a plan is of modes: --mode names them"),
    ):
        done = place.stream("matrix", *more)
        assert (done.code, done.out) == (2, b""), more
        assert message in done.err


def test_a_plan_of_a_mode_that_cannot_be_run_here(place: Place) -> None:
    done = place.stream("matrix", "--mode", "bwrap-ro", "sandbox-exec", "--make-plan")
    assert (done.code, done.out) == (40, b"")
    assert "--make-plan: cannot be run here: sandbox-exec" in done.err
    plan = json.loads(place.stream("matrix", "--mode", "bwrap-ro", "--make-plan").out)
    path = place.root / "plan.json"
    path.write_text(json.dumps({**plan, "modes": ["baseline", "sandbox-exec"]}))
    done = place.stream("matrix", "--plan", path, "--shard", "1/2", "-o", "shard.ndjson")
    assert (done.code, done.out) == (40, b"")
    assert "--plan: cannot be run here: sandbox-exec" in done.err
    assert not [*place.workspace.iterdir()]
