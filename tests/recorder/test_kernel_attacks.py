"""An agent that works against what records it, and a recorder that is ended in the middle."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from stream.process.cgroup import current_cgroup
from tests.cli.command import PATIENCE, Place, processes_naming
from tests.feeds import FEEDS, NO_EBPF, in_turn, needs_ebpf
from tests.recorder.runs import Run, only_run, read_records

KERNEL, DETAIL = "layers/kernel.ndjson", "layers/kernel-ext.ndjson"
NOT_OURS = "was removed, replaced or written to by somebody else"
BEGUN = f"until [ -s ../{KERNEL} ]; do :; done"


def record_attack(place: Place, feed: str, script: str, *words: str) -> Run:
    """Whatever its agent does, the run ends, and no link out of it was followed."""
    victim = place.root / "victim"
    victim.write_text("mine\n")
    how = ("--kernel", feed, "--run-id", "run", "--workspace", "empty", *words)
    done = place.stream("observe", *how, "--", "bash", "-c", f"{script}\nexit 3")
    assert done.code == 3, done.err
    assert victim.read_text() == "mine\n"
    return only_run(place, done)


def read_document(run: Run, name: str) -> Any:
    return json.loads((run.folder / name).read_bytes())


def find_error_rules(place: Place, run: Run) -> set[str]:
    """The rules of errors. That something was lost, where the run reports it, is none."""
    done = place.stream("verify", "--json", run.folder)
    errors = {record["rule"] for record in done.records if record["severity"] == "error"}
    assert done.code == (1 if errors else 0), done.err
    warned = "contract.losses" in {record["rule"] for record in done.records}
    assert warned == bool(run.summary["incomplete"])
    return errors


@in_turn(
    f": >../{KERNEL}",
    f"printf x | dd of=../{KERNEL} conv=notrunc",  # no JSON any more, of the same length
    f"at=$(grep -obm1 run_id ../{KERNEL}); printf x | dd of=../{KERNEL} conv=notrunc bs=1"
    " seek=$((${at%%:*} + 9))",  # another run's, of the same length
    f"rm ../{KERNEL}",
    f"rm ../{KERNEL}; mkfifo ../{KERNEL}",
    f"rm ../{KERNEL}; mkdir ../{KERNEL}",
    f"ln -sf ../../../../victim ../{KERNEL}",
    f"cp ../{KERNEL} copy; mv copy ../{KERNEL}",
    "mv ../layers layers",
    "rm -r ../layers",
)
def test_the_layer_is_taken_away(place: Place, feed: str, row: str) -> None:
    run = record_attack(place, feed, f"{BEGUN}; {row}; /bin/true")
    assert f"stream: the record is incomplete: {KERNEL} {NOT_OURS}" in run.done.err
    assert read_document(run, "observation-health.json")["kernel_layer"] != "complete"
    assert read_document(run, "correlation-report.json")["status"] != "clean"
    assert run.names[-1] == "run_finished"
    assert place.stream("check", run.folder).code == 1
    assert any(
        rule.startswith(("integrity.", "security.")) for rule in find_error_rules(place, run)
    )


@in_turn(
    *product(
        ("chain.ndjson", "companion.json", "layers/sdk.ndjson"),
        ("mkfifo", "mkdir", "ln -s ../../../victim"),
    )
)
def test_a_name_is_taken_beforehand(place: Place, feed: str, row: tuple[str, str]) -> None:
    name, made = row
    run = record_attack(place, feed, f"{BEGUN}; {made} ../{name}")
    assert f"{name}: file exists" in run.done.err
    assert run.names[-1] == "run_finished"
    assert place.stream("check", run.folder).code == 1
    assert find_error_rules(place, run)


@needs_ebpf
@pytest.mark.parametrize("made", ["mkfifo", "mkdir", "ln -s ../../../victim", "touch", ":"])
def test_the_event_log_is_replaced(place: Place, made: str) -> None:
    """It is the agent's own word: whoever takes it away has reported nothing."""
    log = '"$ASSAY_RUNNER_SDK_EVENT_LOG"'
    run = record_attack(place, "ebpf", f"rm {log}; {made} {log}")
    health = read_document(run, "observation-health.json")
    assert (health["kernel_layer"], health["sdk_layer"]) == ("complete", "absent")
    assert not find_error_rules(place, run)
    assert not (run.folder / ".wrappers").exists()


@needs_ebpf
def test_the_event_log_never_ends(place: Place) -> None:
    """A line without an end, and then one that is cut off by cutting the file."""
    log = '"$ASSAY_RUNNER_SDK_EVENT_LOG"'
    script = f"head -c 100000000 /dev/zero | tr '\\0' x >{log}; : >{log}; echo >{log}"
    run = record_attack(place, "ebpf", script)
    assert "the log: what was told there was made shorter" in run.done.err
    assert not (run.folder / ".wrappers").exists()
    assert not find_error_rules(place, run)


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize("way", ["", "unshare -m"])
def test_what_is_mounted_over_a_folder_of_libraries_is_seen(
    place: Place, feed: str, way: str
) -> None:
    if os.geteuid():
        pytest.skip("mounting takes root")
    secret = place.root / "secret"
    secret.mkdir()
    (secret / "key").write_text("key")
    cover = Path("/usr/lib") / f"stream-test-{os.getpid()}"
    cover.mkdir()
    steps = f"mount --bind {secret} {cover}; cat {cover}/key; umount {cover}"
    try:
        run = record_attack(place, feed, f"{way} bash -c '{steps}'")
    finally:
        cover.rmdir()
    (seen,) = [
        line
        for line in read_records(run.folder / KERNEL)
        if line["value"] == f"{cover}/key" and line["return_value"] >= 0
    ]
    details = {line["seq"]: line for line in read_records(run.folder / "layers/kernel-ext.ndjson")}
    assert "other_mounts" in details[seen["seq"]]["marks"]
    assert read_document(run, "companion.json")["filtered"]["loader"] > 0, "what came before it"
    assert not find_error_rules(place, run)


@needs_ebpf
def test_forged_words_of_an_agent(place: Place) -> None:
    """Ids that are doubled, huge, of another run, with newlines in them; ends before beginnings."""
    common = {
        "schema": "assay.runner.sdk_event.v0",
        "run_id": "run",
        "seq": 0,
        "source": "x",
        "sdk_name": "x",
        "sdk_version": None,
    }
    lines = [
        {**common, "event_type": kind, "tool_call_id": id_, "tool": tool, **others}
        for kind, id_, tool, others in (
            ("tool_call_completed", "a", "Bash", {}),
            ("tool_call_started", "a", "Bash", {}),
            ("tool_call_started", "a", "Read\nWrite\u202e\u0000", {}),
            ("tool_call_started", "x" * 1_000_000, "Bash", {}),
            ("tool_call_started", "other", "Bash", {"run_id": "another"}),
            ("tool_call_started", "", "", {}),
            ("run_finished", None, None, {}),
            ("run_started", None, None, {}),
        )
    ]
    log = place.root / "forged"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"torn')
    block = {"type": "tool_use", "id": "b\n{}", "name": "c\n\u2028", "input": {"command": "\x00"}}
    stdout = place.root / "stdout"
    stdout.write_text(
        json.dumps({"type": "assistant", "message": {"content": [block, block, 7, None]}}) + "\n"
    )
    run = record_attack(place, "ebpf", f'cat {log} >"$ASSAY_RUNNER_SDK_EVENT_LOG"; cat {stdout}')
    assert run.names[-1] == "run_finished"
    assert read_document(run, "correlation-report.json")["status"] == "partial"
    assert not find_error_rules(place, run)


def find_all_rules(place: Place, folder: Path) -> list[str]:
    done = place.stream("verify", "--json", folder)
    assert done.code == 1, done.err
    return [record["rule"] for record in done.records]


CUT_OFF = ["integrity.incomplete"]


@pytest.mark.parametrize("feed", FEEDS)
def test_the_recorder_is_killed(place: Place, feed: str) -> None:
    folder = place.workspace / "runs/run"
    agent = f"i=0; while :; do i=$((i+1)); : >f$((i % 9)); done # {place.root}"
    how = ("--kernel", feed, "--run-id", "run", "--workspace", "empty")
    process = place.start("observe", *how, "--", "sh", "-c", agent)
    chain = folder / "chain.ndjson"
    while not (chain.exists() and chain.read_bytes().count(b"\n")):
        assert process.poll() is None
    groups = find_groups(process.pid)
    process.kill()
    place.finish(process)
    deadline = time.monotonic() + PATIENCE
    while left_over := processes_naming(str(place.root)):
        assert time.monotonic() < deadline, left_over
    assert groups or feed == "strace"
    while left := [group for group in groups if group.exists()]:
        assert time.monotonic() < deadline, left
    assert not list(folder.glob("*.fifo"))
    assert find_all_rules(place, folder) == CUT_OFF
    refused = place.stream("archive", folder, "-o", place.root / "run.tar.gz")
    assert refused.code == 2
    assert "it was not recorded to its end" in refused.err
    assert not (place.root / "run.tar.gz").exists()
    layer = folder / KERNEL
    whole = layer.read_bytes()
    first = json.loads(chain.read_bytes().split(b"\n")[0])
    cut = first["bytes"] if first["layer"] == KERNEL else 0
    layer.write_bytes(whole[: max(cut, whole.rfind(b"\n", 0, -1) + 1)])
    assert find_all_rules(place, folder) == CUT_OFF, "a detail was written before its line"
    if cut:
        layer.write_bytes(whole[:cut].replace(b'"pid":', b'"Pid":', 1) + whole[cut:])
        assert "integrity.chain" in find_all_rules(place, folder)


def find_groups(recorder: int) -> list[Path]:
    """Where what it has started is: the groups that were made for the run."""
    found: list[Path] = []
    children = Path(f"/proc/{recorder}/task/{recorder}/children").read_text().split()
    for child in children:
        for line in Path(f"/proc/{child}/cgroup").read_text().splitlines():
            name = line.rpartition("/")[2]
            if line.startswith("0::") and name.startswith("stream-"):
                found += Path("/sys/fs/cgroup").glob(f"**/{name}")
    return found


@needs_ebpf
def test_there_is_no_room_for_the_layers(place: Place, small_disk: Callable[[str], Path]) -> None:
    """The command does not notice, and what could not be written is counted."""
    disk = small_disk("600k")
    agent = "i=0; while [ $i -lt 5000 ]; do : </etc/hostname; i=$((i+1)); done; read -r x <$0"
    words = ("sh", "-c", f"{agent}; echo done; exit 5", place.make_fifo("full"))
    how = ("--kernel", "ebpf", "--run-id", "run", "--workspace", "empty", "--runs")
    process = place.start("observe", *how, disk, "--", *words)
    deadline = time.monotonic() + PATIENCE
    while os.statvfs(disk).f_bavail:
        assert process.poll() is None
        assert time.monotonic() < deadline
    (place.root / "full").write_text("now\n")
    done = place.finish(process)
    assert (done.code, done.out) == (5, b"done\n")
    run = Run(disk / "run", done)
    health = read_document(run, "observation-health.json")
    assert health["kernel_layer"] == "partial_ringbuf_drops"
    assert health["network_protocol_coverage"] == "unknown"
    capture = read_document(run, "companion.json")["capture"]
    lost = re.match("([0-9]+) lines could not be written", capture["unknown_loss"])
    assert lost
    process = place.start("observe", *how, place.root, "--", *words)
    (place.root / "full").write_text("now\n")
    with_room = place.finish(process)
    assert count_lines(run) + int(lost[1]) == count_lines(Run(place.root / "run", with_room)) > 5000
    assert place.stream("check", run.folder).code == 1
    # There was room for what the run came to: it names what is missing, and nothing else is wrong.
    # A line of a layer that was cut off again may have left room for the output.
    is_whole = (run.folder / "artifacts/claude_stdout.txt").read_bytes() == b"done\n"
    incomplete = set() if is_whole else {"contract.check.run.incomplete"}
    assert find_error_rules(place, run) == incomplete
    target = place.root / "run.tar.gz"
    again = place.stream("archive", run.folder, "-o", target)
    assert (again.code, "no space left on device" in again.err.lower()) == (0, True)
    again = place.stream("verify", "--json", target)
    assert {record["rule"] for record in again.records} == {*incomplete, "contract.losses"}


def count_lines(run: Run) -> int:
    return sum(len(read_records(run.folder / layer)) for layer in (KERNEL, DETAIL))


@pytest.mark.parametrize("mode", ["redacted", "hashed"])
@pytest.mark.parametrize("feed", FEEDS)
def test_no_secret_is_written_down(place: Place, feed: str, mode: str) -> None:
    token, password, typed = "ghp_" + "aB3dE5gH7jK9" * 3, "hunter2correcthorse", "Zq8vR2mXw7Lk"
    event = {
        "schema": "assay.runner.sdk_event.v0",
        "run_id": "run",
        "seq": 0,
        "event_type": "tool_call_started",
        "source": "x",
        "sdk_name": "x",
        "sdk_version": None,
        "tool_call_id": token,
        "tool": password,
    }
    command = f"echo {token} --password {typed}"
    use = {"type": "tool_use", "id": "x", "name": "Bash", "input": {"command": command}}
    line = {"type": "assistant", "session_id": "s", "message": {"content": [use]}}
    reach = f"import socket; socket.socket(socket.AF_UNIX).connect_ex('/tmp/{token}')"
    script = place.root / "agent.sh"
    script.write_text(
        f"""
        cat /nonexistent/{token}; : >{token}; : >x-"$MY_PASSWORD"; ln -s /tmp/{token} link
        mv {token} y-{token}; rm y-{token} x-"$MY_PASSWORD" link
        : >$'\\377{token}'; : >'\\0{token}'; : >"$RAW_PASSWORD"; mkdir "$RAW_PASSWORD.d"
        rm $'\\377{token}' '\\0{token}'; true $'\\377{token}' '\\0{token}' "$RAW_PASSWORD" 'a\\b'
        env --argv0=x true --token={token} "$MY_PASSWORD" --password {typed}
        {sys.executable} -c "{reach}"
        echo '{json.dumps(event)}' >>"$ASSAY_RUNNER_SDK_EVENT_LOG"
        echo '{json.dumps(line)}'
        bash -c 'eval "{command}" < /dev/null'
        """
    )
    raw = place.root / "raw.ndjson"
    words = ("--capture", mode, "--raw-kernel", str(raw), "--run-id", "run", "--workspace", "empty")
    secret = os.fsdecode(b"correct\xffhorse\\battery")  # no UTF-8, and what is doubled in a name
    env = {"MY_PASSWORD": password, "RAW_PASSWORD": secret}
    done = place.stream("observe", "--kernel", feed, *words, "--", "bash", script, env=env)
    assert done.code == 0, done.err
    run = only_run(place, done)
    for path in (raw, *(path for path in run.folder.rglob("*") if path.is_file())):
        text = path.read_bytes()
        for known in (token, password, typed, "horse", "battery"):
            assert known.encode() not in text, (path.name, known)
    assert not find_error_rules(place, run)
    execs = [
        line for line in read_records(run.folder / "layers/kernel-ext.ndjson") if "argv" in line
    ]
    assert execs
    is_hashed = all(line["argv"][0].startswith("sha256:") for line in execs)
    assert is_hashed is (mode == "hashed")


@needs_ebpf
def test_an_agent_that_reports_too_much(place: Place) -> None:
    line = (
        '{"schema":"assay.runner.sdk_event.v0","run_id":"run","seq":0,"source":"x","sdk_name":"x",'
        '"sdk_version":null,"event_type":"tool_call_started","tool":"t","tool_call_id":"%.0f"}'
    )
    run = record_attack(place, "ebpf", f"seq -f '{line}' 0 15006 >$ASSAY_RUNNER_SDK_EVENT_LOG")
    assert "incomplete: 7 events of the SDK layer, which keeps 15000" in run.done.err
    assert not find_error_rules(place, run)


@pytest.mark.parametrize("feed", ["off", "ebpf"])
def test_who_leaves_the_group_does_not_outlive_the_guard(place: Place, feed: str) -> None:
    """A descendant that is in no group of the run and hangs on nobody when the guard is killed."""
    group = current_cgroup()
    if os.geteuid() or group is None:
        pytest.skip("leaving a control group takes root and version 2")
    if feed == "ebpf" and NO_EBPF:
        pytest.skip(NO_EBPF)
    leaves = place.root / "leaves"
    leaves.write_text(f"echo $$ >{group}/cgroup.procs\n: >left\nsleep 1000\n:\n")
    agent = (
        f"(setsid bash {leaves} &) </dev/null >leaves.out 2>&1\n"
        "until [ -e left ]; do :; done; kill -9 $PPID; wait"
    )
    how = ("--kernel", feed, "--run-id", "run", "--workspace", "empty", "--no-wrap")
    done = place.stream("observe", *how, "--", "bash", "-c", agent)
    assert done.code == 137, done.err
    assert not processes_naming(str(place.root))
    if feed == "ebpf":
        details = read_records(only_run(place, done).folder / "layers/kernel-ext.ndjson")
        pids = {
            call: {one["pid"] for one in details if one["call"] == call}
            for call in ("exec", "exit")
        }
        assert pids["exec"] <= pids["exit"]
