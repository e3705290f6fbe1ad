"""`stream observe --kernel`: layers, artifacts, and what they state where nothing could be seen."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Place
from tests.feeds import needs_ebpf, needs_strace
from tests.recorder.runs import Run, observe, read_records
from tests.sweeping import every

EBPF = ("--kernel", "ebpf", "--require", "kernel")
STRACE = ("--kernel", "strace", "--require", "kernel")
ARTIFACTS = ("observation-health.json", "capability-surface.json", "correlation-report.json")
DECISION = {"type": "assay.tool.decision", "source": "test"}

PROGRAMS = Path(__file__).parents[1] / "kernel" / "programs"
SEQUENCE, NAMELESS = PROGRAMS / "sequence.c", PROGRAMS / "nameless.c"


def compile_source(source: Path, folder: Path) -> Path:
    program = folder / source.stem
    subprocess.run(["gcc", "-O1", "-w", "-o", program, source], check=True)
    return program


@pytest.fixture(scope="module")
def sequence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Work in a fixed order."""
    return compile_source(SEQUENCE, tmp_path_factory.mktemp("programs"))


def read_artifact(run: Run, name: str) -> Any:
    return json.loads((run.folder / name).read_bytes())


def read_health(run: Run) -> Any:
    return read_artifact(run, "observation-health.json")


def read_kernel_layer(run: Run) -> list[Any]:
    return read_records(run.folder / "layers/kernel.ndjson")


def engine_command(place: Place, program: Path, log: Path) -> tuple[str | Path, ...]:
    """The words of a run in which an engine decides about each call of the sequence. The log has
    the decisions of every run of it."""
    decisions = place.root / "decisions.ndjson"
    calls = (("call_write", "write_file"), ("call_read", "read_file"), ("call_reach", "http_get"))
    decisions.write_text("".join(format_decision(id_, tool) for id_, tool in calls))
    script = f"cat {decisions} >>{log}; exec {program}"
    return "--policy", log, "--workspace", "empty", "--", "sh", "-c", script


def format_decision(call: str, tool: str) -> str:
    data = {"tool": tool, "tool_call_id": call, "decision": "allow"}
    return json.dumps({**DECISION, "data": data}) + "\n"


def record_sequence(place: Place, sequence: Path, feed: tuple[str, ...], name: str) -> Path:
    """Recorded under one name, and moved out of the way: so that its paths are the same."""
    words = engine_command(place, sequence, place.root / "policy.ndjson")
    run = observe(place, *feed, "--run-id", "sequence", *words)
    assert run.done.code == 0, run.done.err
    kept = place.root / name
    shutil.move(run.folder, kept)
    return kept


@needs_ebpf
def test_three_runs_are_the_same_evidence(place: Place, sequence: Path) -> None:
    runs = [record_sequence(place, sequence, EBPF, f"ebpf-{number}") for number in range(3)]
    for name in ARTIFACTS:
        assert len({(run / name).read_bytes() for run in runs}) == 1, name
    for run in runs[1:]:
        done = place.stream("diff", "--canonical", runs[0], run)
        assert done.code == 0, done.err
    report = json.loads((runs[0] / "correlation-report.json").read_bytes())
    assert report["status"] == "clean"
    counts = {one["tool_call_id"]: one["kernel_event_count"] for one in report["bindings"]}
    assert list(counts) == ["call_write", "call_read", "call_reach"]
    assert counts["call_write"] == 8
    assert counts["call_reach"] == 2


@needs_strace
def test_three_runs_with_strace_are_the_same_evidence(place: Place, sequence: Path) -> None:
    runs = [record_sequence(place, sequence, STRACE, f"strace-{number}") for number in range(3)]
    for name in ARTIFACTS:
        assert len({(run / name).read_bytes() for run in runs}) == 1, name
    for run in runs[1:]:
        done = place.stream("diff", "--canonical", runs[0], run)
        assert done.code == 0, done.err
    markers = read_records(runs[0] / "layers/markers.ndjson")
    assert [marker["clock"] for marker in markers] == ["kernel"] * 8


@needs_ebpf
@needs_strace
def test_the_feeds_agree(place: Place, sequence: Path) -> None:
    """But for the control group, and the files behind the names of programs."""
    ebpf = record_sequence(place, sequence, EBPF, "ebpf")
    strace = record_sequence(place, sequence, STRACE, "strace")
    for name in ("capability-surface.json", "correlation-report.json"):
        assert (ebpf / name).read_bytes() == (strace / name).read_bytes(), name
    assert read_markers(ebpf) == read_markers(strace)
    assert read_kernel_calls(ebpf) == read_kernel_calls(strace)
    assert read_details(ebpf, "resolved") == read_details(strace)


@needs_ebpf
@needs_strace
def test_the_feeds_agree_about_files_without_a_name(place: Place) -> None:
    """Programs that are started by a descriptor, and files that are in memory only. What they do
    not agree about is declared: see schema/kernel-layer.md."""
    program = compile_source(NAMELESS, place.root)
    layers, details = [], []
    for feed in (EBPF, STRACE):
        run = observe(place, *feed, "--run-id", "nameless", "--", program, "x")
        assert run.done.code == 0
        layers.append(read_kernel_calls(run.folder))
        details.append(read_details(run.folder, "resolved", "argv"))
        shutil.rmtree(run.folder)
    assert layers[0] == layers[1]
    values = [line["value"] for line in layers[0] if line["kind"] == "exec"]
    file = str(place.workspace / "runs/nameless/workspace/file")
    assert values == [str(program), None, None, *4 * [file], str(program), file]
    (ours, theirs) = details
    views = [one for one in ours if one["call"] == "truncate"]
    assert [one["marks"] for one in views] == [["unreachable"]]
    assert [one for one in ours if one not in views] == [
        one for one in theirs if one["call"] != "truncate"
    ]


def read_markers(folder: Path) -> list[Any]:
    return [
        {**one, "pid": bool(one.get("pid"))}
        for one in read_records(folder / "layers/markers.ndjson")
    ]


def read_kernel_calls(folder: Path) -> list[Any]:
    """Everything but who: the two feeds see the same calls in the same order."""
    lines = read_records(folder / "layers/kernel.ndjson")
    return [{**line, "pid": 0} for line in lines]


def read_details(folder: Path, *left_out: str) -> list[Any]:
    """Without lines that stand there only because of who the process was found by."""
    lines = read_records(folder / "layers/kernel-ext.ndjson")
    dull = {"pid", "child", "scope", *left_out}
    plain = {"schema", "run_id", "seq", "call"}
    details = [{name: line[name] for name in line if name not in dull} for line in lines]
    return [line for line in details if set(line) > plain]


BUSY = r"""
emit() { printf '{"type":"%s","session_id":"s",%s}\n' "$1" "$2"; }
block='"type":"tool_use","id":"a","name":"Bash","input":{}'
emit assistant "\"message\":{\"content\":[{$block}]}"
i=0; while [ $i -lt 3000 ]; do : </etc/hostname; i=$((i+1)); done
block='"type":"tool_result","tool_use_id":"a"'
meta='[{"id":"a","permission_decision":{"decision":"accept"}}]'
emit user "\"message\":{\"content\":[{$block}]},\"tool_result_meta\":$meta"
"""


@needs_ebpf
def test_what_is_not_lost_is_clean(place: Place) -> None:
    """Or the test below would show nothing of correlation."""
    run = observe(place, *EBPF, "--workspace", "empty", "--", "sh", "-c", BUSY)
    report = read_artifact(run, "correlation-report.json")
    assert (read_health(run)["ringbuf_drops"], report["status"]) == (0, "clean")
    assert report["bindings"][0]["kernel_event_count"] == 3000


@needs_ebpf
def test_what_is_done_under_a_borrowed_name_is_a_difference(place: Place) -> None:
    """Another file by the same name, and a folder that only looks like the run's own."""
    runs = []
    for name, program in (("ga", "true"), ("gb", "false")):
        outside = place.root / "out" / name / "workspace"
        outside.mkdir(parents=True)
        script = f"ln -s /usr/bin/{program} tool; ./tool; echo >f1"
        if name == "gb":
            script += f"; echo >{outside}/f1"
        words = ("--no-wrap", "--workspace", "empty", "--run-id", name)
        done = place.stream("observe", *EBPF, *words, "--", "sh", "-c", script)
        assert done.code == 0, done.err
        runs.append(place.workspace / "runs" / name)
        assert place.stream("verify", runs[-1]).code == 0
    assert place.stream("diff", *runs, "--fail-on", "added-execs").code == 1
    assert place.stream("diff", *runs, "--fail-on", "added-paths").code == 1
    found = json.loads(place.stream("diff", *runs).out)["surface"]
    assert found["process_execs"]["added"] == ["(run)/workspace/tool"]
    assert "(run)/workspace/f1" in found["filesystem_paths"]["unchanged"]
    assert found["filesystem_paths"]["added"] == [f"{outside}/f1"]


DEEP = """
import os, sys
for number in range(25):
    os.mkdir('q' * 200)
    os.chdir('q' * 200)
open('x', 'w').close()
os.rename('x', sys.argv[1])
"""


@needs_ebpf
def test_what_comes_from_too_deep_is_claimed_where_it_goes(place: Place) -> None:
    target = place.root / "cron"
    words = ("--no-wrap", "--workspace", "empty", "--", sys.executable, "-S", "-c", DEEP, target)
    run = observe(place, *EBPF, *words)
    assert target.exists()
    assert str(target) in read_artifact(run, "capability-surface.json")["filesystem_paths"]
    companion = read_artifact(run, "companion.json")
    assert companion["paths"][str(target)] == ["rename_to"]
    assert companion["unnamed"]["event_1002"] == 1
    count = sum(companion["unnamed"].values())
    assert f"stream_kernel_unnamed: events={count}" in read_health(run)["notes"]
    assert place.stream("verify", run.folder).code == 0
    found = json.loads(place.stream("diff", run.folder, run.folder).out)
    assert found["status"] == "partial:health"


@needs_ebpf
@every(20)
def test_what_is_lost_is_counted_and_never_looks_clean(place: Place, step: int) -> None:
    """A ring of a page, and far more than it holds, all of it for one call."""
    losses, runs = 0, 100 // step
    for number in range(runs):
        words = (*EBPF, "--kernel-ring", "4", "--run-id", f"run{number}", "--workspace", "empty")
        run = observe(place, *words, "--", "sh", "-c", BUSY, check=False)
        found = read_health(run)
        capture = read_artifact(run, "companion.json")["capture"]
        assert capture["got"] + capture["dropped"] == capture["seen"]
        assert capture["dropped"] == found["ringbuf_drops"]
        if found["ringbuf_drops"]:
            losses += 1
            assert found["kernel_layer"] == "partial_ringbuf_drops"
            assert found["network_protocol_coverage"] == "unknown"
            report = read_artifact(run, "correlation-report.json")
            assert report["status"] == "partial"
            assert "kernel_events_lost_in_window:a" in report["ambiguities"]
            gaps = [
                one
                for one in read_records(run.folder / "layers/kernel-ext.ndjson")
                if "lost" in one
            ]
            assert sum(gap["lost"] for gap in gaps) == capture["dropped"]
        else:
            assert Counter(one["value"] for one in read_kernel_layer(run))["/etc/hostname"] == 3000
        shutil.rmtree(run.folder)
    assert losses > runs // 2


def test_absent_is_reported_with_its_reason(place: Place) -> None:
    """No strace on PATH is the one way to have none that root cannot mend."""
    env = {"PATH": str(place.root / "bin")}
    programs = place.root / "bin"
    programs.mkdir()
    for name in ("sh", "git", "bash"):
        found = shutil.which(name)
        assert found
        (programs / name).symlink_to(found)
    run = observe(place, "--kernel", "strace", "--", "sh", "-c", "echo hello", env=env)
    assert run.done.code == 0
    found = read_health(run)
    assert found["kernel_layer"] == "absent"
    assert found["cgroup_correlation"] == "failed"
    assert found["network_protocol_coverage"] == "unknown"
    assert any("strace" in note for note in found["notes"])
    assert "strace" in run.done.err
    assert read_artifact(run, "correlation-report.json")["status"] == "failed"
    assert (run.folder / "layers/kernel.ndjson").read_bytes() == b""
    required = place.stream("observe", *STRACE, "--run-id", "no", "--", "sh", "-c", ":", env=env)
    assert required.code == 40
    assert "--require kernel: " in required.err
    assert not (place.workspace / "runs/no").exists()


@needs_ebpf
def test_nothing_that_reaches_further_hides_as_noise(place: Place) -> None:
    target = place.root / "secret"
    target.write_text("secret")
    link = Path("/usr/lib") / f"stream-test-{os.getpid()}.so"
    link.symlink_to(target)
    made = Path("/dev/shm") / f"stream-test-{os.getpid()}"
    try:
        agent = f": <{link}; : </lib/../..{target}; : </proc/self/root{target}; echo x >{made}"
        run = observe(place, *EBPF, "--", "sh", "-c", agent)
    finally:
        link.unlink()
        made.unlink(missing_ok=True)
    values = Counter(one["value"] for one in read_kernel_layer(run))
    assert values[str(target)] == 3
    assert values[str(made)] == 1
    filtered = read_artifact(run, "companion.json")["filtered"]
    assert filtered["loader"] > 0
