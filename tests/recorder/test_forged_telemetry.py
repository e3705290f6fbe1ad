"""A hostile agent that forges reports of its run, or switches off their sources: nothing of
that turns a check to the better, and nothing is stated that nobody saw."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Place, write_script
from tests.feeds import FEEDS, in_turn, needs_ebpf
from tests.kernel.test_strace import HERE as KERNEL
from tests.kernel.test_strace import compile_program
from tests.recorder.runs import Run, observe, only_run
from tests.recorder.test_agent_attribution import read_report, record_and_verify, write_agent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="wrappers need a fifo of Linux")

CODE = "echo 'x = 1' >code.py"
#: What a hostile agent can do, by its first word.
HOSTILE = """
home=$(dirname "$(dirname "$(command -v git)")")
log_call() {  # as a wrapper would: a process, and what it was called with
  line="$1 1 "; shift
  for word; do line=$(printf '%s%s\\037' "$line" "$word"); done
  printf '%s\\n' "$line" >"$home/commands"
}
case $1 in
forge) git --version; log_call $$ pytest 1 "$PWD" -q ;;
forge-only) log_call $$ pytest 1 "$PWD" -q ;;
forge-as-git) sh -c 'echo $$ >pid; exec git --version'; log_call "$(cat pid)" pytest 1 "$PWD" -q ;;
junk) git --version; printf 'junk\\n' >"$home/commands" ;;
remove) rm -rf "$home" ;;
remove-after) git --version; until [ -s ../artifacts/command_logs.jsonl ]; do :; done
  rm -rf "$home/bin" ;;
hide-a-while) mv "$home/bin" "$home/away"; git --version; mv "$home/away" "$home/bin" ;;
replace) rm "$home/wrapper"; ln -s /bin/true "$home/wrapper"; git --version ;;
shut) chmod 0 "$home/commands" ;;
own-bin) mkdir bin; printf '#!/bin/sh\\n' >bin/git; chmod +x bin/git; PATH=$PWD/bin:$PATH; git ;;
tests-past) git --version; PATH=${PATH#*:}; python3 -m unittest -h ;;
tests-changed) git --version; : >>"$home/wrapper"; PATH=${PATH#*:}; python3 -m unittest -h ;;
tests-of-own) git --version; printf '#!/bin/sh\n' >pytest; chmod +x pytest; ./pytest -q ;;
full-path) PATH=${PATH#*:}; git --version ;;
nobody) unshare --setgid 65534 --setuid 65534 git --version ;;
honest) python3 -m unittest -h; git --version ;;
nothing) : ;;
esac
exit 3
"""


@pytest.fixture
def hostile(place: Place) -> Path:
    return write_script(place.root / "hostile.sh", f"#!/bin/sh\n{CODE}\n{HOSTILE}")


def record_attack(place: Place, hostile: Path, how: str, *words: str) -> Run:
    options = ("--workspace", "empty", "--constraint", "quality.tests_required", *words)
    run = only_run(place, place.stream("observe", *options, "--", hostile, how))
    assert run.done.code == 3, run.done.err
    verified = place.stream("verify", run.folder)
    assert verified.code == 0, verified.out
    return run


def read_check(run: Run) -> Any:
    (check,) = run.event("evaluation_performed")["evaluation"]["quality"]["checks"]
    return check


@pytest.mark.parametrize("how", ["forge", "forge-as-git", "junk"])
def test_a_forged_line_turns_nothing_to_the_better(place: Place, hostile: Path, how: str) -> None:
    run = record_attack(place, hostile, how)
    check = read_check(run)
    assert check["status"] == "fail"
    assert "no run of tests among 1 commands" in check["evidence"]
    facts = run.facts_of("commands_observed", "command_log")
    assert facts["vouched_count"] == 0


def test_a_log_of_nothing_but_a_forged_line(place: Place, hostile: Path) -> None:
    """It is no run of tests, and without it nothing would have been seen."""
    check = read_check(record_attack(place, hostile, "forge-only"))
    assert check["status"] == "warn"
    assert "1 unverified" in check["evidence"]


@pytest.mark.parametrize("how", ["remove", "hide-a-while", "replace", "shut"])
def test_wrappers_that_were_taken_away_are_not_called_unused(
    place: Place, hostile: Path, how: str
) -> None:
    run = record_attack(place, hostile, how)
    event = run.summary_of("commands_observation_unavailable")
    assert "unknown: the wrappers were taken away or changed" in event
    assert run.summary["commands"] is None
    assert run.summary["incomplete"] == [
        "calls of wrapped programs: the wrappers were taken away or changed"
    ]
    assert read_check(run)["status"] == "warn"


def test_wrappers_that_were_taken_away_later(place: Place, hostile: Path) -> None:
    run = record_attack(place, hostile, "remove-after")
    assert run.facts_of("commands_observed", "command_log")["observed_count"] == 1
    assert "taken away" in run.summary["incomplete"][0]
    check = read_check(run)
    assert check["status"] == "warn"
    assert "the wrappers were taken away or changed" in check["evidence"]


@pytest.mark.parametrize("how", ["own-bin", "full-path"])
def test_without_a_feed_nobody_states_that_nothing_was_called(
    place: Place, hostile: Path, how: str
) -> None:
    run = record_attack(place, hostile, how)
    event = run.summary_of("commands_observation_unavailable")
    assert (
        "unknown: no wrapper was called, and without a kernel feed that is complete nobody saw"
        in event
    )


# --- where the kernel shows who wrote what ------------------------------------------------------


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize("how", ["forge", "forge-as-git"])
def test_a_feed_shows_which_line_no_wrapper_wrote(
    place: Place, hostile: Path, feed: str, how: str
) -> None:
    run = record_attack(place, hostile, how, "--kernel", feed)
    assert read_check(run)["status"] == "fail"
    facts = run.facts_of("commands_observed", "command_log")
    assert (facts["observed_count"], facts["vouched_count"]) == (2, 1)
    message = "1 line of artifacts/command_logs.jsonl: no wrapper was seen to write that"
    assert message in run.summary["incomplete"]


@pytest.mark.parametrize("feed", FEEDS)
def test_a_feed_vouches_for_an_honest_run(place: Place, hostile: Path, feed: str) -> None:
    run = record_attack(place, hostile, "honest", "--kernel", feed)
    assert run.summary["incomplete"] == []
    facts = run.facts_of("commands_observed", "command_log")
    assert (facts["observed_count"], facts["vouched_count"]) == (2, 2)
    check = read_check(run)
    assert check["status"] == "warn"
    assert "command_logs.jsonl: python3 at " in check["evidence"]


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize(
    ("how", "event"),
    [
        ("nothing", "] no wrapped binaries invoked"),
        ("own-bin", "] unknown: wrapped programs ran past the wrappers: git"),
        ("full-path", "] unknown: wrapped programs ran past the wrappers: git"),
        ("shut", "] unknown: the wrappers were taken away or changed"),
    ],
)
def test_with_a_feed_it_is_known_whether_nothing_was_called(
    place: Place, hostile: Path, feed: str, how: str, event: str
) -> None:
    run = record_attack(place, hostile, how, "--kernel", feed)
    assert run.summary_of("commands_observation_unavailable").endswith(event.removeprefix("] "))


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize(("how", "name"), [("tests-past", "python3"), ("tests-of-own", "pytest")])
def test_tests_that_ran_past_the_wrappers_are_not_missing(
    place: Place, hostile: Path, feed: str, how: str, name: str
) -> None:
    run = record_attack(place, hostile, how, "--kernel", feed)
    check = read_check(run)
    assert check["status"] == "warn"
    assert f"; the kernel feed saw, past the wrappers: {name}" in check["evidence"]
    assert run.facts_of("commands_observed", "command_log")["observed_count"] == 1


@pytest.mark.parametrize("feed", FEEDS)
def test_after_a_wrapper_was_changed_nobody_states_who_ran_past_them(
    place: Place, hostile: Path, feed: str
) -> None:
    run = record_attack(place, hostile, "tests-changed", "--kernel", feed)
    assert "past the wrappers: python3" in read_check(run)["evidence"]
    assert run.summary_of("commands_observed").endswith("through PATH are seen.")


@pytest.mark.parametrize("feed", FEEDS)
def test_what_ran_past_the_wrappers_is_reported_with_what_was_called(
    place: Place, hostile: Path, feed: str
) -> None:
    event = record_attack(place, hostile, "tests-past", "--kernel", feed).summary_of(
        "commands_observed"
    )
    assert event.endswith(" The kernel saw programs that have a wrapper run without it: python3.")


@needs_ebpf
@pytest.mark.skipif(os.getuid() != 0, reason="takes another user's place")
def test_another_user_who_cannot_reach_the_wrappers(place: Place, hostile: Path) -> None:
    run = record_attack(place, hostile, "nobody", "--kernel", "ebpf")
    event = run.summary_of("commands_observation_unavailable")
    assert "unknown: wrapped programs ran past the wrappers: git" in event


@needs_ebpf
def test_verify_counts_the_lines_that_are_vouched_for(place: Place, hostile: Path) -> None:
    run = record_attack(place, hostile, "forge", "--kernel", "ebpf")
    events = run.folder / "events.jsonl"
    events.write_bytes(events.read_bytes().replace(b'"vouched_count":1', b'"vouched_count":2'))
    found = [one["message"] for one in place.stream("verify", run.folder).records]
    assert "vouched_count: 2, but 1 by the evidence" in found


# --- the log of the hooks -----------------------------------------------------------------------

_SEND = """
send() {
  event='{"session_id":"s","hook_event_name":"%s","tool_name":"Write","tool_use_id":"%s"}\\n'
  printf "$event" "$1" "$2"
}
log=$(dirname "$STREAM_HOOK")/hooks.ndjson
send PreToolUse mine | "$STREAM_HOOK"
: >of-mine
send PostToolUse mine | "$STREAM_HOOK"
"""
_DIRECTLY = {
    "appended": "send PreToolUse x >>$log; : >of-x; send PostToolUse x >>$log",
    "by another name": "ln $log l; send PreToolUse x >>l; : >of-x; send PostToolUse x >>l",
    "both ends at once": "{ send PreToolUse x; send PostToolUse x; } >>$log",
    "an end alone": "send PostToolUse x >>$log",
    "its end": 'send PreToolUse x | "$STREAM_HOOK"; : >of-x; send PostToolUse x >>$log',
    "its start": 'send PreToolUse x >>$log; : >of-x; send PostToolUse x | "$STREAM_HOOK"',
    "in a shell of the hook's": (
        'send PreToolUse x >p; send PostToolUse x >q; echo "cat $PWD/p >>$log; : >of-x" >env;'
        ' BASH_ENV=$PWD/env bash -c "$STREAM_HOOK" </dev/null; cat q >>$log'
    ),
}
_MOUNTED = (
    "send PreToolUse x >p; send PostToolUse x >q; mkdir m; unshare -m sh -c"
    ' "mount --bind $(dirname $log) m; cat p >>m/hooks.ndjson; : >of-x; cat q >>m/hooks.ndjson"'
)


@in_turn(
    *_DIRECTLY,
    pytest.param(_MOUNTED, marks=pytest.mark.skipif(os.getuid() != 0, reason="mounts")),
)
def test_what_the_hook_did_not_write_binds_nothing(place: Place, feed: str, row: str) -> None:
    words = ("--kernel", feed, "--sdk", "hooks", "--workspace", "empty", "--no-wrap", "--")
    run = only_run(
        place, place.stream("observe", *words, "sh", "-c", _SEND + _DIRECTLY.get(row, row))
    )
    report = json.loads((run.folder / "correlation-report.json").read_bytes())
    assert report["status"] == "partial"
    verified = place.stream("verify", run.folder)
    assert verified.code == 0, verified.out
    if feed == "strace" and row in ("by another name", _MOUNTED):  # it knows it by its name
        assert "told_and_not_used:hooks,unseen" in report["ambiguities"]
        assert report["bindings"] == []
        return
    assert "sdk_tool_call_not_told_by_hook:x" in report["ambiguities"]
    assert "sdk_tool_call_not_told_by_hook:mine" not in report["ambiguities"]
    assert [one["tool_call_id"] for one in report["bindings"]] == ["mine"]


# --- the policy log -----------------------------------------------------------------------------

_DECIDED = """
import mmap
ABOVE = os.path.dirname(sys.argv[1])
log = open(sys.argv[1], 'a')
def put(line):
    with open(ABOVE + '/other', 'r+b') as file:
        file.truncate(len(line))
        mmap.mmap(file.fileno(), len(line))[:] = line.encode()
def ask(call):
    emit(type='assistant', message=dict(content=[dict(type='tool_use', id=call, name='Bash')]))
def answer(call):
    content = [dict(type='tool_result', tool_use_id=call)]
    emit(type='user', message=dict(content=content))
def decide(*words):
    subprocess.run(['sh', '-c', f'cat {sys.argv[2]} >>{sys.argv[1]}', *words])
"""
#: After it has asked for a call, and done it. First in ways that a name shows.
_BY_WHOM = {
    "a call's program": "decide(); answer('a')",
    "the agent": "answer('a'); open(sys.argv[1], 'a').write(LINE)",
    "by another name": "answer('a'); os.link(sys.argv[1], 'g'); open('g', 'a').write(LINE)",
    "below another folder": "answer('a'); os.rename(ABOVE, 'p')"
    "; open('p/policy.ndjson', 'a').write(LINE); os.rename('p', ABOVE)",
    "in its place": "answer('a'); open('g', 'w').write(LINE); os.rename('g', sys.argv[1])",
    "by what was open before": "answer('a'); log.write(LINE)",
    "a program next to the call": "answer('a'); decide()",
}
_BY_FILE = {
    "by a name from before": "answer('a'); open(ABOVE + '/other', 'a').write(LINE)",
    "through a link": "answer('a'); os.symlink(os.path.dirname(ABOVE), 'l')"
    "; os.rename('l/policy', 'l/p'); open('l/p/policy.ndjson', 'a').write(LINE)"
    "; os.rename('l/p', 'l/policy')",
    "below a mount": "answer('a'); os.mkdir('m'); subprocess.run(['unshare', '-m', 'sh', '-c',"
    " f'mount --bind {ABOVE} m; cat {sys.argv[2]} >>m/policy.ndjson'], check=True)",
    "in memory": "answer('a'); put(LINE)",
}


def record_decision(place: Place, feed: str, body: str, *engine: str) -> tuple[bool, Any]:
    """Whether the report names that the agent may have written decisions, and what it binds."""
    log, line = place.root / "policy/policy.ndjson", place.root / "decision"
    data = {"tool": "Bash", "tool_call_id": "a", "decision": "allow"}
    line.write_text(json.dumps({"type": "assay.tool.decision", "source": "s", "data": data}) + "\n")
    log.parent.mkdir(exist_ok=True)
    log.touch()
    log.with_name("other").hardlink_to(log)
    body = f"LINE = {line.read_text()!r}\n{_DECIDED}ask('a'); touch('f'); {body}\n"
    words = [*engine, *map(str, write_agent(place, body)), str(log), str(line)]
    is_whole = "os.rename('g'" not in body
    run = record_and_verify(place, feed, "--policy", log, "--no-wrap", "--", *words, check=is_whole)
    found = read_report(run)
    (binding,) = found["bindings"]
    return "policy_log_opened_by_the_agent" in found["ambiguities"], binding["policy_decision"]


@in_turn(*_BY_WHOM)
def test_decisions_that_the_agent_may_have_written(place: Place, feed: str, row: str) -> None:
    assert record_decision(place, feed, _BY_WHOM[row]) == (True, None)


@needs_ebpf
@pytest.mark.usefixtures("needs_root")
@pytest.mark.parametrize("who", [*_BY_FILE])
def test_a_log_is_known_whatever_it_is_called(place: Place, who: str) -> None:
    assert record_decision(place, "ebpf", _BY_FILE[who]) == (True, None)


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.usefixtures("needs_root")
def test_what_no_call_names_may_have_been_the_log(place: Place, tmp_path: Path, feed: str) -> None:
    """With io_uring neither the file nor what is written to it is known."""
    program = compile_program(KERNEL / "programs/calls.c", tmp_path)
    (tmp_path / "other").touch()
    tried = subprocess.run([program, "uring_append"], cwd=tmp_path, input=b"x")
    if tried.returncode == 77:
        pytest.skip("io_uring is switched off here")
    assert (tmp_path / "other").read_bytes() == b"x"
    options = f"['{program}', 'uring_append'], cwd=ABOVE, input=LINE.encode(), check=True"
    assert record_decision(place, feed, f"answer('a'); subprocess.run({options})") == (True, None)


@needs_ebpf
@pytest.mark.usefixtures("needs_root")
def test_a_log_on_an_overlay_is_known(place: Place) -> None:
    """For which stat gives another device than the kernel has."""
    log, disk = place.root / "policy", place.root / "disk"
    for folder in (log, disk, place.root / "below"):
        folder.mkdir()
    layers = f"lowerdir={place.root}/below,upperdir={disk}/upper,workdir={disk}/work"
    subprocess.run(["mount", "-t", "tmpfs", "none", disk], check=True)
    try:
        (disk / "upper").mkdir()
        (disk / "work").mkdir()
        words: list[str | Path] = ["mount", "-t", "overlay", "none", "-o", layers, log]
        if subprocess.run(words, capture_output=True).returncode:
            pytest.skip("this kernel has no overlayfs here")
        try:
            assert record_decision(place, "ebpf", _BY_FILE["by a name from before"]) == (True, None)
        finally:
            subprocess.run(["umount", log], check=True)
    finally:
        subprocess.run(["umount", disk], check=True)


_IN_VAIN = """answer('a')
for tried in (lambda: os.open(ABOVE, os.O_RDWR), lambda: os.rename('no', sys.argv[1])):
    try:
        tried()
    except OSError:
        continue
    raise AssertionError"""


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize("body", ["answer('a')", _IN_VAIN])
def test_decisions_of_an_engine(place: Place, feed: str, body: str) -> None:
    line, log = place.root / "decision", place.root / "policy/policy.ndjson"
    engine = ("sh", "-c", f'cat {line} >>{log}; exec "$@"', "sh")
    assert record_decision(place, feed, body, *engine) == (False, "allow")


def test_an_honest_run(place: Place, hostile: Path) -> None:
    """So that the others can fail."""
    run = observe(place, "--workspace", "empty", "--", "sh", "-c", f"{CODE}; git --version")
    assert run.summary["incomplete"] == []
    assert run.summary["commands"] == 1
