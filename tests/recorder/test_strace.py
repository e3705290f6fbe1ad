"""`observe --kernel strace`: for an ordinary user, and where strace cannot be had or kept."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.cli.command import STREAM, Place
from tests.cli.test_ordinary_user import Run as Stream
from tests.cli.test_ordinary_user import open_place, run
from tests.feeds import needs_strace
from tests.kernel.test_strace import NO_PTRACE, TRACER, write_program
from tests.recorder.runs import Run, observe, read_records
from tests.recorder.test_kernel import (
    ARTIFACTS,
    SEQUENCE,
    engine_command,
    read_artifact,
    read_health,
)

__all__ = ["open_place", "run"]
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="strace needs Linux"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc"),
    needs_strace,
]
STRACE = ("--kernel", "strace")
REQUIRED = (*STRACE, "--require", "kernel")


def test_an_ordinary_user(open_place: Place, run: Stream) -> None:
    """All of it but the control group, and the same each time."""
    runs = open_place.root / "runs"
    runs.mkdir()
    runs.chmod(0o1777)
    sequence = write_program(SEQUENCE.read_text(), open_place.root)
    decided = engine_command(open_place, sequence, runs / "policy.ndjson")
    words = ["--runs", runs, "--run-id", "sequence", *decided]
    kept = []
    for number in range(2):
        done = run("observe", *REQUIRED, *words)
        assert done.code == 0, done.err
        for check in ("check", "verify"):
            checked = run(check, runs / "sequence")
            assert checked.code == 0, checked.out
        kept.append(Path(shutil.move(runs / "sequence", runs / f"kept-{number}")))
    first = Run(kept[0], done)
    found = read_health(first)
    assert (found["kernel_layer"], found["ringbuf_drops"]) == ("complete", 0)
    assert found["cgroup_correlation"] == "failed"
    assert first.summary["containment"] == "subreaper"
    report = read_artifact(first, "correlation-report.json")
    counts = {one["tool_call_id"]: one["kernel_event_count"] for one in report["bindings"]}
    assert counts == {"call_write": 8, "call_read": 6, "call_reach": 2}
    assert read_clocks(first) == {"kernel"}
    for name in ARTIFACTS:
        assert (kept[0] / name).read_bytes() == (kept[1] / name).read_bytes(), name
    same = run("diff", "--canonical", *kept)
    assert same.code == 0, same.err


def read_clocks(run: Run) -> set[str]:
    return {marker["clock"] for marker in read_records(run.folder / "layers/markers.ndjson")}


KILLER = f"""
import json, os, sys
log = os.open(os.environ['ASSAY_RUNNER_SDK_EVENT_LOG'], os.O_WRONLY | os.O_APPEND)
names = {{'schema': os.environ['ASSAY_RUNNER_SDK_EVENT_SCHEMA'], 'source': 'test',
          'run_id': os.environ['ASSAY_RUNNER_RUN_ID'], 'tool': 'write_file'}}
def declare(seq, event, call):
    line = {{**names, 'seq': seq, 'event_type': 'tool_call_' + event, 'tool_call_id': call}}
    os.write(log, json.dumps(line).encode() + b'\\n')
declare(0, 'started', 'before')
os.mkdir('seen')
declare(1, 'completed', 'before')
declare(2, 'started', 'during')
status = os.open('/proc/self/status', os.O_RDONLY)
os.write(1, b'text\\n')
os.kill({TRACER}, 9)
while b'TracerPid:\\t0\\n' not in os.pread(status, 4096, 0): pass
os._exit(7)
"""


def test_strace_killed_in_the_middle(place: Place) -> None:
    """What was seen is kept, what is missing is named, and the rest of the run does not suffer."""
    (place.workspace / "old").write_text("old")
    run = observe(place, *REQUIRED, "--", "/usr/bin/python3", "-ISc", KILLER)
    assert run.done.code == 7, run.done.err
    assert (run.stdout, sorted(run.changes)) == (b"text\n", ["seen"])
    found = read_health(run)
    assert found["kernel_layer"] == "partial_ringbuf_drops"
    assert found["ringbuf_drops"] == 0
    assert found["network_protocol_coverage"] == "unknown"
    reason = "strace ended before the processes that it followed"
    assert any(reason in note for note in found["notes"])
    report = read_artifact(run, "correlation-report.json")
    assert report["status"] == "partial"
    values = [one["value"] for one in read_records(run.folder / "layers/kernel.ndjson")]
    assert str(run.folder / "workspace/seen") in values
    last = read_records(run.folder / "layers/kernel-ext.ndjson")[-1]
    assert (last["schema"], last["reason"]) == ("stream.gap.v1", reason)
    verified = place.stream("verify", run.folder)
    assert verified.code == 0, verified.out


def test_ptrace_forbidden(place: Place) -> None:
    """The run is what it would have been; unless there must be evidence."""
    forbid = str(write_program(NO_PTRACE, place.root))
    script = "echo text; echo new >new; exit 3"
    run = observe(place, *STRACE, "--", "sh", "-c", script, argv0=(forbid, STREAM))
    assert run.done.code == 3
    assert (run.stdout, sorted(run.changes)) == (b"text\n", ["new"])
    assert "the kernel is not watched: ptrace is forbidden here: " in run.done.err
    found = read_health(run)
    assert found["kernel_layer"] == "absent"
    assert any("ptrace is forbidden here" in note for note in found["notes"])
    assert read_artifact(run, "correlation-report.json")["status"] == "failed"
    assert place.stream("verify", run.folder).code == 0
    words = ("--run-id", "no", "--", "sh", "-c", script)
    required = place.stream("observe", *REQUIRED, *words, argv0=(forbid, STREAM))
    assert required.code == 40
    assert "--require kernel: ptrace is forbidden here: " in required.err
    assert not (place.workspace / "runs/no").exists()


def test_who_writes_by_another_name(place: Place) -> None:
    """Not all writes into the log were seen: none of them places anything."""
    script = KILLER.partition("os.kill(")[0].replace("os.mkdir('seen')", "cut()")
    cut = "def cut():\n    os.link(os.environ['ASSAY_RUNNER_SDK_EVENT_LOG'], 'hard')\n"
    cut += "    other = os.open('hard', os.O_WRONLY | os.O_APPEND)\n"
    cut += "    os.write(other, b'\\n')\n    os.unlink('hard')\n"
    run = observe(place, *REQUIRED, "--", "/usr/bin/python3", "-ISc", cut + script)
    assert run.done.code == 0, run.done.err
    markers = read_records(run.folder / "layers/markers.ndjson")
    assert [one["clock"] for one in markers if "tool_call_id" in one] == ["arrival"] * 3
    assert read_health(run)["kernel_layer"] == "complete"


def test_the_feed_does_not_record_what_the_agent_writes(place: Place) -> None:
    """That it writes something, and how much."""
    raw = place.root / "raw"
    script = "import os\nos.write(1, b'terces'[::-1])\nos.write(os.open('x', 65), b'yek'[::-1])"
    words = ("--raw-kernel", raw, "--", "/usr/bin/python3", "-ISc", script)
    run = observe(place, *REQUIRED, *words)
    assert run.stdout == b"secret"
    text = raw.read_bytes()
    assert b"secret" not in text
    assert b"key" not in text
    wrote = [one for one in read_records(raw) if one.get("call") == "wrote"]
    assert [(one["stream"], one["size"]) for one in wrote] == [("stdout", 6)]
