"""Every cell ends in exactly one record, whatever its probe does, and nothing of it is left."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import PATIENCE, STREAM, Done, Place

FOLDER = Path(__file__).parent / "misbehaving"

#: probe -> (the reason that the harness gives, what its message must hold)
BREACHES = {
    "a_folder": ("spawn-failed", "could not be started"),
    "bad_flag": ("bad-emission", "Unknown flag: --frobnicate"),
    "bad_interpreter": ("spawn-failed", "could not be started"),
    "bad_json": ("bad-emission", "--operation-args: malformed JSON"),
    "bad_status": ("bad-emission", "Unknown status: ok"),
    "broken_record": ("invalid-record", "$.probe"),
    "exits_3": ("exit-status", "exited with status 3"),
    "floods_stderr": ("flooded", "bytes to stderr"),
    "floods_stdout": ("flooded", "bytes to stdout"),
    "half_a_frame": ("bad-emission", "cut at byte 100"),
    "hangs": ("timed-out", "still running after 2 s"),
    "hangs_ignoring_term": ("timed-out", "still running after 2 s"),
    "leaves_child": ("left-processes", "perl"),
    "leaves_daemon": ("left-processes", "perl"),
    "leaves_session": ("left-processes", "perl"),
    "no_shebang": ("spawn-failed", "exec format error"),
    "noise": ("noise", "something other than its record"),
    "noise_and_record": ("noise", "something other than its record"),
    "not_executable": ("spawn-failed", "permission denied"),
    "segfaults": ("killed", "SIGSEGV"),
    "silent": ("no-record", "wrote no record"),
    "states_another_capability": ("wrong-cell", "cap_fs_read_home_keys"),
    "states_another_mode": ("wrong-cell", "elsewhere"),
    "states_another_probe": ("wrong-cell", "exits_3"),
    "twice": ("several-records", "2 records"),
}
GOOD = {
    "captures_then_prints": "success",
    "denied": "denied",
    "locks_its_tmpdir": "success",
}
ON_STDERR = {
    "exits_3": "going down",
    "floods_stdout": "before the flood",
    "hangs": "going to sleep",
    "hangs_ignoring_term": "deaf",
    "leaves_child": "bye",
    "segfaults": "going down",
    "silent": "nothing to add",
    "twice": "again",
}


@pytest.fixture(scope="module")
def run(shared: Place) -> Done:
    """Those that hang get little time, floods get what they need."""
    patient = [probe for probe in sorted([*BREACHES, *GOOD]) if not probe.startswith("hangs")]
    words = ("matrix", "--probes", FOLDER, "--timeout", str(PATIENCE))
    most = shared.run_measured(*words, "--probe", *patient)
    hanging = shared.stream(
        *("matrix", "--probes", FOLDER, "--timeout", "2"),
        *("--probe", "hangs", "hangs_ignoring_term"),
    )
    assert (most.code, hanging.code) == (1, 1)
    return replace(most, out=most.out + hanging.out, err=most.err + hanging.err)


@pytest.fixture(scope="module")
def by_id(run: Done) -> dict[str, Any]:
    return {record["probe"]["id"]: record for record in run.records}


def test_one_record_for_every_cell(run: Done) -> None:
    assert sorted(run.ids) == sorted([*BREACHES, *GOOD])


@pytest.mark.parametrize("probe", BREACHES)
def test_the_harness_gives_the_reason(probe: str, by_id: dict[str, Any]) -> None:
    record = by_id[probe]
    reason, sentence = BREACHES[probe]
    assert record["result"]["observed_result"] == "error"
    assert record["payload"]["raw"]["harness"]["author"] == "stream"
    assert record["payload"]["raw"]["harness"]["reason"] == reason
    assert sentence in record["result"]["message"]
    assert ON_STDERR.get(probe, "") in (record["payload"]["stderr_snippet"] or "")


@pytest.mark.parametrize("probe", GOOD)
def test_a_record_that_is_the_probes_own(probe: str, by_id: dict[str, Any]) -> None:
    assert by_id[probe]["result"]["observed_result"] == GOOD[probe]
    assert "harness" not in by_id[probe]["payload"]["raw"]


def test_stderr_names_probe_and_reason(run: Done) -> None:
    lines = run.err.splitlines()
    patient = [probe for probe in BREACHES if not probe.startswith("hangs")]
    for probe in [*patient[:20], "hangs", "hangs_ignoring_term"]:
        sentence = BREACHES[probe][1]
        assert any(f"{probe} (baseline)" in line and sentence in line for line in lines)
    assert f"… and {len(patient) - 20} more" in lines
    assert f"{len(patient)} probes failed" in lines


def test_the_records_validate(run: Done, shared: Place) -> None:
    found = shared.stream("validate", "-", data=run.out)
    assert (found.code, found.out) == (0, run.out)


def test_a_flood_is_not_held_in_memory(run: Done) -> None:
    assert run.peak < 100 << 20


def test_nothing_is_left(run: Done, shared: Place) -> None:
    assert run.records
    assert not shared.find_left()


def test_killed_from_outside(place: Place) -> None:
    fifo = place.make_fifo("running")
    folder = place.write_probes(
        victim=f'echo "I am $$" >&2; echo $$ >"{fifo}"; while :; do :; done\n'
    )
    process = place.start("matrix", "--probes", folder)
    os.kill(int(fifo.read_text()), signal.SIGKILL)
    done = place.finish(process)
    (record,) = done.records
    assert done.code == 1
    assert record["payload"]["raw"]["harness"]["reason"] == "killed"
    assert "SIGKILL" in record["result"]["message"]
    assert "I am" in record["payload"]["stderr_snippet"]


def test_a_probe_without_any_trace_of_its_origin(place: Place) -> None:
    """No session, no environment, no descriptor shows whose it was: it is ended all the same."""
    escape = (
        f'env -i setsid /bin/sh -c \'/usr/bin/perl -e "sleep 1000" {place.root} & '
        f'/usr/bin/perl -e "sleep 1000" {place.root}\' </dev/null >/dev/null 2>&1 &\n'
    )
    folder = place.write_probes(escapes=escape, other="")
    one = place.stream("matrix", "--probes", folder, "--jobs", "1")
    assert one.code == 1
    assert one.records[0]["payload"]["raw"]["harness"]["reason"] == "left-processes"
    assert not place.find_left()
    several = place.stream("matrix", "--probes", folder, "--jobs", "4", "--repeat", "3")
    assert several.code == 1
    assert not place.find_left()


def test_a_probe_that_removes_the_staging_folder(place: Place) -> None:
    folder = place.write_probes(a='rm -rf "${TMPDIR%/*/*}"\n', b="", c="")
    done = place.stream("matrix", "--probes", folder, "--jobs", "1")
    assert done.code == 1
    assert done.ids == ["a", "b", "c"]
    assert done.records[1]["payload"]["raw"]["harness"]["reason"] == "spawn-failed"


def test_a_probe_that_digs_a_deep_hole(place: Place) -> None:
    dig = """perl -e 'chdir $ENV{TMPDIR}; for (1..3000) { mkdir "d"; chdir "d" }'\n"""
    done = place.stream("matrix", "--probes", place.write_probes(digs=dig))
    assert (done.code, done.ids) == (0, ["digs"])


def test_more_jobs_than_descriptors(place: Place) -> None:
    folder = place.write_probes(a="")
    limited = ("bash", "-c", 'ulimit -n 64; exec "$@"', "limited", STREAM)
    done = place.stream(
        "matrix", "--probes", folder, "--jobs", "500", "--repeat", "40", argv0=limited
    )
    assert (done.code, len(done.records)) == (0, 40)


def test_a_tmpdir_that_became_a_link_is_not_followed(place: Place) -> None:
    """What it leads to belongs to somebody."""
    treasure = place.root / "treasure"
    (treasure / "inner").mkdir(parents=True)
    (treasure / "gold").write_text("gold\n")
    treasure.chmod(0o750)
    swap = f'rmdir "$TMPDIR"\nln -s "{treasure}" "$TMPDIR"\n'
    done = place.stream(
        "matrix", "--probes", place.write_probes(a=swap, b="", c=swap), "--jobs", "1"
    )
    assert done.code == 0
    assert sorted(path.name for path in treasure.iterdir()) == ["gold", "inner"]
    assert treasure.stat().st_mode & 0o777 == 0o750
    assert not place.find_left()


def test_the_next_probe_finds_an_empty_tmpdir(place: Place) -> None:
    litter = 'mkdir -p "$TMPDIR/a/b"\n: >"$TMPDIR/c"\nchmod 0 "$TMPDIR/a" "$TMPDIR"\n'
    look = '[[ -z "$(ls -A "$TMPDIR")" && -w $TMPDIR ]] || exit 9\n'
    folder = place.write_probes(a=litter, b=look, c=litter, d=look)
    done = place.stream("matrix", "--probes", folder, "--jobs", "1")
    assert done.code == 0, done.err
    assert not place.find_left()
