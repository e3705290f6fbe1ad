"""Whose the kernel's events are, of real agents: of one behind a relay, of one that takes the
recorder's names, and the same whatever may be written down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Place, write_script
from tests.feeds import FEEDS, in_turn, needs_ebpf
from tests.recorder.runs import Run, observe, read_records
from tests.recorder.test_kernel import read_artifact, read_kernel_layer

PYTHON = ("/usr/bin/python3", "-IS")
#: It prints what Claude Code prints, in its form.
AGENT = """
import json, os, subprocess, sys
def emit(**fields):
    os.write(1, json.dumps(dict(session_id='s', **fields)).encode() + b'\\n')
def start(call, tool='Write', **given):
    block = dict(type='tool_use', id=call, name=tool, input=given)
    emit(type='assistant', message=dict(content=[block]))
def end(call, decision='accept'):
    block = dict(type='tool_result', tool_use_id=call)
    meta = [dict(id=call, permission_decision=dict(decision=decision))]
    emit(type='user', message=dict(content=[block]), tool_result_meta=meta)
def touch(name):
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
"""


def write_agent(place: Place, body: str) -> list[str | Path]:
    path = place.root / "agent.py"
    write_script(path, AGENT + body)
    return [*PYTHON, path]


def record_and_verify(place: Place, feed: str, *words: str | Path, check: bool = True) -> Run:
    run = observe(place, "--kernel", feed, "--require", "kernel", *words, check=check)
    assert run.done.code == 0, run.done.err
    verified = place.stream("verify", run.folder)
    assert verified.code == 0, verified.out
    return run


def read_report(run: Run) -> Any:
    return read_artifact(run, "correlation-report.json")


def count_bound(run: Run) -> dict[str, int]:
    return {one["tool_call_id"]: one["kernel_event_count"] for one in read_report(run)["bindings"]}


# --- relays -------------------------------------------------------------------------------------

THREE = """
for call in 'abc':
    start(call)
    touch(f'file-of-{call}')
    end(call)
"""


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize(
    "relay",
    [
        "cat",
        # Each line is some lines late, so that each file was made before its window, or in another.
        'while IFS= read -r line; do printf "%s\\n" "$line"; /bin/true; done',
    ],
)
def test_behind_a_relay_nothing_is_bound_and_nothing_is_clean(
    place: Place, feed: str, relay: str
) -> None:
    command = " ".join(map(str, write_agent(place, THREE)))
    run = record_and_verify(place, feed, "--no-wrap", "--", "sh", "-c", f"{command} | {relay}")
    found = read_report(run)
    assert found["status"] == "partial"
    assert any(one.startswith("kernel_events_of_other_processes") for one in found["ambiguities"])
    calls = read_artifact(run, "companion.json")["calls"]
    assert [calls[call].get("openat", 0) for call in "abc"] == [0, 0, 0]
    names = {Path(str(one["value"])).name for one in read_kernel_layer(run)}
    assert {"file-of-a", "file-of-b", "file-of-c"} <= names


#: Each line comes two lines late, and the agent waits for that: its work lies in other windows.
ABOVE = """
agent = subprocess.Popen([*sys.argv[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
held = [b'', b'']
for line in agent.stdout:
    held.append(line)
    os.write(1, held.pop(0))
    agent.stdin.write(b'.')
os.write(1, b''.join(held))
"""
BELOW = THREE.replace("touch", "os.read(0, 1); touch").replace(
    "end(call)", "end(call); os.read(0, 1)"
)


@pytest.mark.parametrize("feed", FEEDS)
def test_behind_a_relay_above_it_nothing_is_bound_either(place: Place, feed: str) -> None:
    write_script(place.root / "below.py", AGENT + BELOW)
    words = [*write_agent(place, ABOVE), *PYTHON, place.root / "below.py"]
    run = record_and_verify(place, feed, "--no-wrap", "--", *words)
    assert {one["clock"] for one in read_records(run.folder / "layers/markers.ndjson")} == {
        "kernel"
    }
    assert count_bound(run) == {"a": 0, "b": 0, "c": 0}
    assert read_report(run)["status"] == "partial"
    assert {f"kernel_events_of_other_processes:{call}" for call in "ab"} <= set(
        read_report(run)["ambiguities"]
    )


@pytest.mark.parametrize("feed", FEEDS)
def test_without_one_each_file_is_its_calls(place: Place, feed: str) -> None:
    """Also where a shell started the agent: or the test above would show nothing."""
    command = " ".join(map(str, write_agent(place, THREE)))
    run = record_and_verify(place, feed, "--no-wrap", "--", "sh", "-c", f"{command}; : >tidied")
    assert read_report(run)["status"] == "clean"
    assert count_bound(run) == {"a": 1, "b": 1, "c": 1}
    pids = {one.get("pid") for one in read_records(run.folder / "layers/markers.ndjson")[1:-1]}
    assert len(pids) == 1
    assert pids <= {one["pid"] for one in read_kernel_layer(run)}


@pytest.mark.parametrize("feed", FEEDS)
def test_the_event_log_has_reporters_too(place: Place, feed: str) -> None:
    """Two processes report the same call: whose it is, nobody knows."""
    body = """
log = os.open(os.environ['ASSAY_RUNNER_SDK_EVENT_LOG'], os.O_WRONLY | os.O_APPEND)
names = dict(schema=os.environ['ASSAY_RUNNER_SDK_EVENT_SCHEMA'], source='test', seq=0,
             run_id=os.environ['ASSAY_RUNNER_RUN_ID'], tool='Write')
def declare(event, call):
    line = dict(names, event_type='tool_call_' + event, tool_call_id=call)
    os.write(log, json.dumps(line).encode() + b'\\n')
declare('started', 'a'); touch('mine'); declare('completed', 'a')
declare('started', 'b'); touch('whose')
if not os.fork():
    declare('completed', 'b')
    os._exit(0)
os.wait()
"""
    run = record_and_verify(place, feed, "--no-wrap", "--", *write_agent(place, body))
    assert count_bound(run) == {"a": 1, "b": 0}
    names = read_report(run)["ambiguities"]
    assert "sdk_tool_call_told_by_several_processes:b" in names
    assert not any(name.endswith(":a") for name in names if "told_by" in name)


# --- what was reported and could not be used ---

#: It can write the same into the event log, and something long; its first call is clean.
REPORTER = """
log = os.environ['ASSAY_RUNNER_SDK_EVENT_LOG']
names = dict(schema=os.environ['ASSAY_RUNNER_SDK_EVENT_SCHEMA'], source='test', seq=0,
             run_id=os.environ['ASSAY_RUNNER_RUN_ID'])
def declare(event, call, tool='Write'):
    line = dict(names, event_type='tool_call_' + event, tool_call_id=call, tool=tool)
    with open(log, 'ab', buffering=0) as file:
        file.write(json.dumps(line).encode() + b'\\n')
def both(call):
    declare('started', call); start(call); touch(call); declare('completed', call); end(call)
def start_with(content):
    block = dict(type='tool_use', id='long', name='Write', input=dict(content=content))
    event = dict(session_id='s', type='assistant', message=dict(content=[block]))
    line = json.dumps(event).encode() + b'\\n'
    while line:
        line = line[os.write(1, line):]
start('a'); touch('a'); end('a')
"""
#: What it does in addition, and what is named then.
NOT_USED = {
    "start_with('x' * (9 << 20)); touch('long')": "told_and_not_used:stdout,overlong",
    "os.write(1, b'50%'); start('b'); touch('b'); os.write(1, b'99%'); end('b')": (
        "told_and_not_used:stdout,not_a_record"
    ),
    "os.write(1, json.dumps(dict(type='user', session_id='s')).encode())": (
        "told_and_not_used:stdout,torn"
    ),
    "declare('started', 'b'); os.truncate(log, 0); declare('completed', 'b')": None,
    "os.rename(log, log + '.old'); declare('started', 'b'); declare('completed', 'b')": (
        "told_and_not_used:log,replaced"
    ),
    "os.unlink(log); declare('started', 'b')": "told_and_not_used:log,replaced",
    "start('b'); declare('started', 'b', 'Bash'); touch('b'); end('b')": "tool_name_mismatch:b",
    "start('b'); touch('b'); end('b'); both('b')": "AGAIN:b",
    "start('c'); touch('c'); end('c'); declare('started', 'c'); touch('d')": "AGAIN:c",
    "both('b'); both('c')": "",
    # Called like a folder above the run, and another run's log.
    "os.mkdir('x'); os.rename('x', log.split('/')[-4])": "",
    "os.mkdir('.wrappers'); other = '.wrappers/' + log.split('/')[-1]; touch(other); "
    "os.unlink(other)": "",
}


@in_turn(*NOT_USED)
def test_what_was_reported_and_could_not_be_used_is_named(
    place: Place, feed: str, row: str
) -> None:
    run = record_and_verify(
        place, feed, "--no-wrap", "--", *write_agent(place, f"{REPORTER}{row}\n"), check=False
    )
    name, names = NOT_USED[row], set(read_report(run)["ambiguities"])
    if name is None:  # how much of it was received before that is a question of time
        assert names & {f"told_and_not_used:log,{why}" for why in ("unread", "shortened")}
    elif name.startswith("AGAIN"):  # which of the two is received first, too
        again = {f"told_and_not_used:{channel},told_again" for channel in ("stdout", "log")}
        assert names & {*again, name.replace("AGAIN", "sdk_tool_call_duplicate")}
    elif name:
        assert name in names
    else:
        assert not names
    assert read_report(run)["status"] == ("clean" if name == "" else "partial")


# --- the recorder's own -------------------------------------------------------------------------


@pytest.mark.parametrize("feed", FEEDS)
def test_no_program_hides_by_what_it_calls_itself(place: Place, feed: str) -> None:
    body = """
hook = f"/{os.environ['ASSAY_RUNNER_RUN_ID']}/.wrappers/hook"
start('a')
subprocess.run([hook], executable='/bin/bash', input=b'cat /etc/shadow >stolen; rm -f victim')
end('a')
"""
    (place.workspace / "victim").write_text("")
    run = record_and_verify(place, feed, "--no-wrap", "--", *write_agent(place, body))
    calls = read_artifact(run, "companion.json")["calls"]["a"]
    assert calls["exec"] == 3
    assert calls["event_1001"] == 1
    assert calls["event_1013"] == 3


REPLACED = """
home = os.path.dirname(os.environ['ASSAY_RUNNER_SDK_EVENT_LOG'])
start('a')
os.unlink(home + '/bin/git')
with open(home + '/bin/git', 'w') as file:
    file.write('#!/bin/sh\\n: >evil\\n')
os.chmod(home + '/bin/git', 0o700)
subprocess.run([home + '/bin/git'])
end('a')
"""


@pytest.mark.parametrize("feed", FEEDS)
def test_wrappers_are_not_the_agents(place: Place, feed: str) -> None:
    body = """
start('a', 'Bash', command='git --version')
subprocess.run(['bash', '-c', 'git --version'], stdout=subprocess.DEVNULL)
end('a')
"""
    run = record_and_verify(place, feed, "--", *write_agent(place, body))
    assert [one["program"] for one in run.commands] != []
    surface = read_artifact(run, "capability-surface.json")
    claimed = [*surface["filesystem_paths"], *surface["process_execs"]]
    assert not [path for path in claimed if "/.wrappers" in path]
    paths = read_artifact(run, "companion.json")["paths"]
    assert not [path for path in paths if "/.wrappers" in path]
    assert read_artifact(run, "companion.json")["calls"]["a"]["exec"] == 2, "bash and git itself"
    assert any(path.endswith("/git") for path in surface["process_execs"])


@needs_ebpf
def test_what_takes_a_wrappers_place_is_the_agents(place: Place) -> None:
    run = record_and_verify(place, "ebpf", "--", *write_agent(place, REPLACED), check=False)
    assert "the wrappers were taken away or changed" in run.done.err
    surface = read_artifact(run, "capability-surface.json")
    git = f"{run.folder}/.wrappers/bin/git"
    assert git in surface["process_execs"]
    assert git in surface["filesystem_paths"]
    assert f"{run.folder}/workspace/evil" in surface["filesystem_paths"]
    assert read_artifact(run, "companion.json")["calls"]["a"]["exec"] == 1


# --- what may be written down -------------------------------------------------------------------

KEY = "ghp_" + "Zq8vR2mXw7" * 4
TOGETHER = f"""
commands = ['true --password {KEY[:30]}x; : >a', 'curl -H "X-Key: {KEY}" -s x; : >b']
for call, command in zip('ab', commands):
    start(call, 'Bash', command=command)
shell = "shopt -u extglob 2>/dev/null || true && eval %s < /dev/null && pwd -P >| %s-cwd"
import shlex
runs = [subprocess.Popen(['bash', '-c', shell % (shlex.quote(command), call)])
        for call, command in zip('ba', reversed(commands))]
for call, run in zip('ba', runs):
    run.wait()
    end(call)
"""


@needs_ebpf
def test_calls_are_the_same_whatever_may_be_written_down(place: Place) -> None:
    found = {}
    for mode in ("full", "redacted", "hashed"):
        words = ("--no-wrap", "--run-id", "same", "--runs", place.root / mode, "--capture", mode)
        done = place.stream(
            "observe",
            "--kernel",
            "ebpf",
            "--require",
            "kernel",
            *words,
            "--",
            *write_agent(place, TOGETHER),
        )
        assert done.code == 0, done.err
        run = Run(place.root / mode / "same", done)
        calls = read_artifact(run, "companion.json")["calls"]
        found[mode] = {call: kinds["openat"] for call, kinds in calls.items()}
        assert place.stream("verify", run.folder).code == 0
        assert min(found[mode].values()) >= 2, "what it makes, and its folder"
        if mode != "full":
            layers = [path.read_bytes() for path in run.folder.glob("layers/*")]
            assert not any(KEY.encode() in data for data in layers)
        if mode == "hashed":
            for marker in iter_markers(run):
                assert marker.get("command", "sha256:").startswith("sha256:")
            assert not any(b"password" in data or b"X-Key" in data for data in layers)
    assert found["full"] == found["redacted"] == found["hashed"]


def iter_markers(run: Run) -> Iterator[Any]:
    yield from map(json.loads, (run.folder / "layers/markers.ndjson").read_bytes().splitlines())


# --- what never began ---------------------------------------------------------------------------


@pytest.mark.parametrize("feed", FEEDS)
def test_a_command_that_cannot_be_started_did_nothing(place: Place, feed: str) -> None:
    run = observe(place, "--kernel", feed, "--", "/nonexistent/program")
    assert run.done.code == 127
    assert (run.folder / "layers/kernel.ndjson").read_bytes() == b""
    assert read_report(run)["ambiguities"] == ["nothing_observed"]
    assert place.stream("verify", run.folder).code == 0
