"""`stream lock` and `stream merge`, from records that are there."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest

from stream.matrix.shards import envelope_of, planned_cells, shard_of_plan
from stream.records.lock import MatrixPlanDocument, PlannedProbe
from tests.cli.command import Place
from tests.cli.conftest import check_place, make_place
from tests.lock.records import (
    as_line,
    baseline_record,
    lock_text,
    measure,
    mode_record,
    write_records,
)

OLD = (
    baseline_record("a"),
    mode_record("a", "closed"),
    mode_record("b", "open"),
    mode_record("c", "closed"),
)
NEW = (mode_record("a", "open"), mode_record("b", "open"), mode_record("c", "no-control"))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = make_place(tmp_path)
    yield place
    check_place(place)


def write_lock(place: Place, *values: dict[str, Any]) -> Path:
    path = place.workspace / "boundary.lock"
    path.write_text(lock_text(measure(*values)))
    return path


def test_from_records_to_a_lockfile_and_back(place: Place) -> None:
    write_records(place.workspace / "old.ndjson", *OLD)
    done = place.stream("lock", "old.ndjson", "-o", "boundary.lock")
    assert (done.code, done.out) == (0, b"")
    assert done.err == "lock: 3 cells in 1 mode\n"
    text = (place.workspace / "boundary.lock").read_text()
    assert text == lock_text(measure(*OLD))
    assert place.stream("lock", "old.ndjson").out.decode() == text
    done = place.stream("lock", "--check", "boundary.lock", "old.ndjson")
    assert (done.code, done.out) == (0, b"boundary.lock: no difference; 3 cells as locked\n")
    assert done.err == ""


def test_a_drift(place: Place) -> None:
    write_lock(place, *OLD)
    write_records(place.workspace / "new.ndjson", *NEW)
    done = place.stream("lock", "--check", "boundary.lock", "new.ndjson")
    assert done.code == 1
    lines = done.out.decode().splitlines()
    assert lines[0] == "OPENED: 1 cell: more gets through than is locked"
    assert lines[1].startswith("  boundary.lock:8: a (bwrap-ro): locked as closed")
    assert lines[-2] == "boundary.lock: 1 opened, 1 unmeasured; 1 cell as locked"


def test_records_from_a_pipe_and_from_several_files(place: Place) -> None:
    write_lock(place, *OLD)
    data = b"".join(map(as_line, NEW[:2]))
    write_records(place.workspace / "rest.ndjson", mode_record("c"))
    done = place.stream("lock", "--check", "boundary.lock", "-", "rest.ndjson", data=data)
    assert done.code == 1
    assert "1 opened; 2 cells as locked" in done.out.decode()
    fifo = place.make_fifo("pipe")
    with subprocess.Popen(["cp", place.workspace / "rest.ndjson", fifo]) as writer:
        assert place.stream("lock", fifo).out.decode() == lock_text(measure(mode_record("c")))
    assert writer.returncode == 0


def test_each_format(place: Place) -> None:
    write_lock(place, *OLD)
    write_records(place.workspace / "new.ndjson", *NEW)
    words = ("lock", "--check", "boundary.lock", "new.ndjson", "--format")
    found = place.stream(*words, "json")
    (record,) = found.records
    assert (found.code, [one["probe"] for one in record["opened"]]) == (1, ["a"])
    assert place.stream("validate", "-", data=found.out).code == 0
    assert found.err == "lock: boundary.lock: 1 opened, 1 unmeasured; 1 cell as locked\n"
    found = place.stream(*words, "junit")
    assert (found.code, ET.fromstring(found.out.decode().split("\n", 1)[1]).tag) == (
        1,
        "testsuites",
    )
    found = place.stream(*words, "sarif")
    (run,) = json.loads(found.out)["runs"]
    assert (found.code, len(run["results"])) == (1, 2)
    found = place.stream(*words, "markdown")
    assert (found.code, found.out.startswith(b"### boundary.lock: 1 opened")) == (1, True)
    text = place.stream(*words, "text")
    assert (text.err, text.out.startswith(b"OPENED")) == ("", True)
    assert all(place.stream(*words, one).out.endswith(b"\n") for one in ("junit", "sarif"))


def test_a_report_in_a_file(place: Place) -> None:
    write_lock(place, *OLD)
    write_records(place.workspace / "new.ndjson", *NEW)
    words = ("lock", "--check", "boundary.lock", "new.ndjson", "-o", "drift.txt")
    done = place.stream(*words)
    assert (done.code, done.out) == (1, b"")
    assert done.err == "lock: boundary.lock: 1 opened, 1 unmeasured; 1 cell as locked\n"
    assert (place.workspace / "drift.txt").read_text().startswith("OPENED")
    done = place.stream(*words)
    assert (done.code, "--force replaces it" in done.err) == (2, True)
    assert place.stream(*words, "--force").code == 1


def test_a_lockfile_is_updated_and_no_other_file(place: Place) -> None:
    path = write_lock(place, *OLD)
    write_records(place.workspace / "new.ndjson", *NEW)
    assert place.stream("lock", "new.ndjson", "-o", "boundary.lock").code == 0
    assert path.read_text() == lock_text(measure(*NEW))
    path.write_text("lock 2\n")
    assert place.stream("lock", "new.ndjson", "-o", "boundary.lock").code == 0
    path.write_text("mine\n")
    done = place.stream("lock", "new.ndjson", "-o", "boundary.lock")
    assert (done.code, "--force replaces it" in done.err) == (2, True)
    assert path.read_text() == "mine\n"
    # A report never takes the place of a lockfile without being asked to.
    write_lock(place, *OLD)
    for words in (["other.lock"], ["other.lock", "--force"]):
        (place.workspace / "other.lock").write_text("lock 1\n")
        done = place.stream("lock", "--check", "boundary.lock", "new.ndjson", "-o", *words)
        assert done.code == (1 if "--force" in words else 2)
    done = place.stream("lock", "new.ndjson", "-o", "new.ndjson", "--force")
    assert (done.code, "which it would replace" in done.err) == (2, True)


def test_the_lockfile_has_a_usual_name(place: Place) -> None:
    (place.workspace / "boundary.lock").write_text("mine\n")
    assert "boundary.lock:1: not a lockfile" in place.stream("lock", "--check").err
    (place.workspace / "boundary.lock").unlink()
    assert "boundary.lock: no such file or directory" in place.stream("lock", "--check").err


def test_bad_lockfiles(place: Place) -> None:
    path = write_lock(place, *OLD)
    write_records(place.workspace / "old.ndjson", *OLD)
    text = path.read_text()
    for old, new, message in (
        ("lock 1", "lock 2", "boundary.lock:1: lock 2: made by a newer stream"),
        ("lock 1", "<<<<<<< HEAD\nlock 1", "boundary.lock:1: conflict marker"),
        ("closed", "opne  ", 'boundary.lock:8: outcome: unknown word "opne"'),
        ("\nend\n", "\n", "cut off"),
        ("", "\x1b[31m", 'not a lockfile: its first line is not `lock 1`, but "\\x1b[31mlock 1"'),
    ):
        path.write_text(text.replace(old, new, 1))
        for more in ([], ["--format", "sarif", "-o", "drift.sarif"]):
            done = place.stream("lock", "--check", "boundary.lock", "old.ndjson", *more)
            assert (done.code, done.out) == (2, b"")
            assert message in done.err
            assert "\x1b" not in done.err
    assert not (place.workspace / "drift.sarif").exists()


def test_each_bad_line_is_named_up_to_a_bound(place: Place) -> None:
    many = [mode_record(f"probe_{number:02}") for number in range(30)]
    path = write_lock(place, *many)
    write_records(place.workspace / "new.ndjson", *many)
    path.write_text(path.read_text().replace("closed ", "opne   "))
    done = place.stream("lock", "--check", "boundary.lock", "new.ndjson")
    lines = done.err.splitlines()
    assert done.code == 2
    assert [line.split(":")[2] for line in lines[:-1]] == [str(8 + number) for number in range(20)]
    assert lines[-1] == "… and 10 more"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "new.ndjson: no record of a mode besides baseline"),
        (as_line(baseline_record()), "new.ndjson: no record of a mode besides baseline"),
        (b"words\n", "new.ndjson:1: malformed JSON"),
        (as_line(NEW[0]) + b"{}\n", "new.ndjson:2: "),
        (as_line(NEW[0]) + b"\n\xff\n", "new.ndjson:3: "),
        (as_line({**NEW[0], "schema_version": "boundary_event_v3"}), "not a record of a mode"),
        (as_line(NEW[0])[:-9], "it ends too early: not a record of a mode"),
    ],
)
def test_bad_records(place: Place, text: bytes, message: str) -> None:
    write_lock(place, *OLD)
    (place.workspace / "new.ndjson").write_bytes(text)
    for words in (["lock", "new.ndjson"], ["lock", "--check", "boundary.lock", "new.ndjson"]):
        done = place.stream(*words)
        assert (done.code, done.out) == (2, b"")
        assert message in done.err


def test_records_without_a_control(place: Place) -> None:
    """Of a matrix that ran inside of a sandbox: pattern boundary_event_v1."""
    done = place.stream("matrix", "--probe", "fs_tmp_write", "-o", "plain.ndjson", "-q")
    assert done.code == 0
    done = place.stream("lock", "plain.ndjson")
    assert (done.code, done.out) == (2, b"")
    assert "plain.ndjson:1: $.schema_version: it has no control" in done.err
    assert "measure with `--mode`" in done.err


def test_wrong_words(place: Place) -> None:
    write_records(place.workspace / "new.ndjson", *NEW)
    done = place.stream("lock", "new.ndjson", "--format", "json")
    assert (done.code, "--format goes with --check" in done.err) == (2, True)
    done = place.stream("lock", "--check", "new.ndjson", "--format", "yaml")
    assert (done.code, "'yaml' is not one of" in done.err) == (2, True)
    done = place.stream("lock", "new.ndjson", "--mode", "bwrap-ro")
    assert (done.code, "they do not go with records" in done.err) == (2, True)
    done = place.stream("lock", "nosuch.ndjson")
    assert (done.code, "nosuch.ndjson: no such file or directory" in done.err) == (2, True)
    # The records alone: the lockfile comes first.
    done = place.stream("lock", "--check", "new.ndjson")
    assert (done.code, "new.ndjson:1: not a lockfile" in done.err) == (2, True)


# --- merge ------------------------------------------------------------------------------------

PLAN = MatrixPlanDocument(
    hosts=["ci"],
    modes=["baseline", "bwrap-ro"],
    probes=[PlannedProbe(name, "1") for name in ("a", "b", "c")],
)
SHARDS = 3


def record_of(probe: str, mode: str) -> dict[str, Any]:
    return baseline_record(probe) if mode == "baseline" else mode_record(probe, mode=mode)


def write_shards(place: Place) -> tuple[Path, list[Path], bytes]:
    """The plan, the shards, and the whole."""
    plan = place.workspace / "plan.json"
    plan.write_bytes(msgspec.json.encode(PLAN))
    lines = {
        cell: as_line(record_of(cell.probe.id, cell.mode)).strip() for cell in planned_cells(PLAN)
    }
    files = []
    for shard in range(1, SHARDS + 1):
        files.append(place.workspace / f"shard-{shard}.ndjson")
        cells = shard_of_plan(PLAN, shard, SHARDS)
        envelopes = (msgspec.json.encode(envelope_of(cell, lines[cell])) for cell in cells)
        files[-1].write_bytes(b"".join(line + b"\n" for line in envelopes))
    return plan, files, b"".join(line + b"\n" for line in lines.values())


def test_shards_are_merged_to_what_one_machine_would_have_written(place: Place) -> None:
    plan, files, whole = write_shards(place)
    done = place.stream("merge", "--plan", plan, *files[::-1], "-o", "boundary.ndjson")
    assert (done.code, done.out, done.err) == (0, b"", "merge: 6 of 6 cells\n")
    assert (place.workspace / "boundary.ndjson").read_bytes() == whole
    done = place.stream(
        "merge", "--plan", plan, files[0], files[1], "-", data=files[2].read_bytes()
    )
    assert (done.code, done.out) == (0, whole)
    assert place.stream("lock", "boundary.ndjson").code == 0
    for file in (plan, *files):
        assert place.stream("validate", file).code == 0


def test_a_shard_that_is_missing(place: Place) -> None:
    plan, files, _ = write_shards(place)
    done = place.stream("merge", "--plan", plan, *files[1:], "-o", "boundary.ndjson")
    assert done.code == 1
    assert not (place.workspace / "boundary.ndjson").exists()
    partial = place.workspace / "boundary.ndjson.partial"
    assert len(partial.read_bytes().splitlines()) == 4
    lines = done.err.splitlines()
    missing = sorted(map(str, shard_of_plan(PLAN, 1, SHARDS)))
    assert sorted(line.removeprefix("merge: missing: ") for line in lines[:2]) == missing
    assert lines[2:] == [
        "merge: 4 of 6 cells: 2 missing",
        "merge: what there is of them is in boundary.ndjson.partial",
    ]
    done = place.stream("merge", "--plan", plan, *files[1:])
    assert (done.code, done.out) == (1, b"")


def test_a_shard_that_comes_twice_and_one_of_another_plan(place: Place) -> None:
    plan, files, whole = write_shards(place)
    done = place.stream("merge", "--plan", plan, *files, files[0], "-o", "boundary.ndjson")
    assert done.code == 1
    assert done.err.count("merge: doubled: ") == 2
    assert f"{files[0]}:1 has it already" in done.err
    assert "merge: 6 of 6 cells: 2 doubled" in done.err
    assert (place.workspace / "boundary.ndjson.partial").read_bytes() == whole
    other = msgspec.structs.replace(PLAN, hosts=["other"])
    plan.write_bytes(msgspec.json.encode(other))
    done = place.stream("merge", "--plan", plan, *files)
    assert (done.code, done.out) == (1, b"")
    assert "merge: 0 of 6 cells: 6 missing, 6 foreign" in done.err


def test_what_cannot_be_merged(place: Place) -> None:
    plan, files, _ = write_shards(place)
    good = files[0].read_bytes()
    broken = json.loads(good.splitlines()[0])
    broken["record"]["run"]["mode"] = 7
    for text, message in (
        (b"words\n", "shard-1.ndjson:1: malformed JSON"),
        (good[:-9], "shard-1.ndjson:2: malformed JSON: it ends too early: not an envelope"),
        (as_line(broken), "shard-1.ndjson:1: $.record.run.mode: expected `str`, got `int`"),
        (as_line(mode_record("a")), "shard-1.ndjson:1: object missing required field `schema`"),
        (plan.read_bytes() + b"\n", "shard-1.ndjson:1: $.schema: expected `stream.envelope.v1`"),
    ):
        files[0].write_bytes(text)
        done = place.stream("merge", "--plan", plan, *files, "-o", "boundary.ndjson")
        assert (done.code, done.out) == (2, b"")
        assert message in done.err
        assert not [*place.workspace.glob("boundary*")]
    done = place.stream("merge", "--plan", "nosuch.json", *files)
    assert (done.code, "nosuch.json: no such file" in done.err) == (2, True)
    done = place.stream("merge", *files)
    assert (done.code, "--plan" in done.err) == (2, True)
    done = place.stream("merge", "--plan", plan, files[1], "-o", files[1], "--force")
    assert (done.code, "which it would replace" in done.err) == (2, True)
