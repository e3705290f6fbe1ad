"""What a run may do other than opens, sends and execs: it is on record, or its hole is named.

A record that has nothing of it, and is complete, would be worse than none.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Place
from tests.feeds import FEEDS, needs_ebpf
from tests.recorder.runs import Run, observe, read_records
from tests.recorder.test_kernel import read_artifact, read_health, read_kernel_layer

PROGRAM = Path(__file__).with_name("evasions.py")
pytestmark = pytest.mark.usefixtures("needs_root")


def record_evasion(place: Place, feed: str, *words: Any) -> tuple[Run, Any]:
    """Record the program, and return the results that it prints."""
    (place.workspace / "given").write_text("x")
    run = observe(place, "--kernel", feed, "--", sys.executable, "-S", PROGRAM, *map(str, words))
    assert run.done.code == 0, run.done.err
    assert place.stream("verify", run.folder).code == 0
    return run, json.loads(run.stdout)


def read_calls(run: Run, *calls: str) -> list[Any]:
    """The lines of these calls, each with its detail in it."""
    lines = read_kernel_layer(run)
    details = read_records(run.folder / "layers/kernel-ext.ndjson")
    return [{**detail, **lines[detail["seq"]]} for detail in details if detail.get("call") in calls]


def read_note(run: Run, code: str) -> str:
    """The text of a note of the health; empty: there is none."""
    notes: dict[str, str] = dict(note.split(": ", 1) for note in read_health(run)["notes"])
    return notes.get(code, "")


@contextmanager
def outside_process() -> Iterator[int]:
    """A process outside of the run, which does nothing."""
    process = subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("feed", FEEDS)
def test_what_no_open_shows(place: Place, feed: str) -> None:
    """Attributes and times, sockets that are files, queues, accounting, trees; a program in memory,
    and a file that is opened by a handle."""
    run, results = record_evasion(place, feed, "quiet")
    companion, here = read_artifact(run, "companion.json"), f"{run.folder}/workspace"
    how, given = companion["paths"], f"{here}/given"
    found = read_calls(run, "setxattr", "fsetxattr", "removexattr", "fremovexattr", "utimensat")
    assert {one["value"] for one in found} == {given}
    assert [one["kind"] for one in found if one["call"] == "utimensat"] == ["event_1019"] * 2
    if results["attributes"] == [0, 0]:
        assert {"setxattr", "removexattr", "utime"} <= {*how[given]}
        named = [one for one in found if one.get("name") == "user.note"]
        assert [(one["kind"], one.get("size")) for one in named] == [
            *[("event_1017", 6), ("event_1018", None)] * 2
        ]

    _, _, tree, acct, _ = results["names"]
    found = read_calls(run, "bind", "mq_open", "mq_unlink", "open_tree", "acct")
    assert [one["kind"] for one in found] == [
        *("event_1027", "event_1026", "event_1023", "event_1024"),
        *("event_1022", "event_1021", "event_1021"),
    ]
    assert how[f"{here}/door"] == ["bind"]
    assert f"{here}/door" in read_artifact(run, "capability-surface.json")["filesystem_paths"]
    assert companion["local_sockets"] == ["mqueue:/stream-test", "unix:@back-door"]
    assert ("open_tree" in how[given]) == (tree >= 0)
    assert ("acct" in how[given]) == (acct == 0)

    assert results["memory"] == [0]
    executed = read_artifact(run, "capability-surface.json")["process_execs"]
    assert [name for name in executed if name.startswith("/dev/fd")] == []
    known, opened = results["handle"]
    is_named = feed == "ebpf" or known < 0 or opened < 0
    assert companion["unnamed"] == {"exec": 1} | ({} if is_named else {"openat": 1})
    assert read_note(run, "stream_kernel_unnamed") == f"events={1 if is_named else 2}"
    assert read_health(run)["kernel_layer"] == "complete"


@pytest.mark.parametrize("feed", FEEDS)
def test_who_comes_is_a_peer(place: Place, feed: str) -> None:
    port = place.root / "port"
    received: list[bytes] = []
    ours: list[int] = []

    def connect() -> None:
        deadline = time.monotonic() + 60
        while not port.exists() and time.monotonic() < deadline:
            os.sched_yield()
        with socket.create_connection(("127.0.0.1", int(port.read_text()))) as one:
            ours.append(one.getsockname()[1])
            received.append(one.recv(64))

    guest = threading.Thread(target=connect)
    guest.start()
    run, _ = record_evasion(place, feed, "serve", port)
    guest.join()
    assert received == [b"SECRET"]
    peer = f"127.0.0.1:{ours[0]}"
    assert read_artifact(run, "capability-surface.json")["network_endpoints"] == [peer]
    found = read_health(run)
    assert found["network_protocol_coverage"] == "connect_only"
    assert found["network_endpoint_claim_scope"] == "diagnostic_only"
    (accepted,) = read_calls(run, "accept", "accept4")
    assert (accepted["kind"], accepted["value"], accepted["peer"]) == ("event_1028", peer, peer)


@pytest.mark.parametrize("feed", FEEDS)
def test_what_goes_on_where_no_call_shows_it(place: Place, feed: str) -> None:
    """In a process outside, with what was taken from one, and in the kernel."""
    with outside_process() as pid:
        run, results = record_evasion(place, feed, "loud", pid)
    attached, taken, used = read_calls(run, "ptrace", "pidfd_getfd", "bpf")
    assert (attached["kind"], attached["target"]) == ("event_1030", pid)
    assert (taken["kind"], used["kind"]) == ("event_1030", "event_1031")
    why = read_note(run, "stream_kernel_unknown_loss")
    for one, result, reason in (
        (attached, results["attach"], "by ptrace into a process"),
        (taken, results["take"], "by pidfd_getfd into a process"),
        (used, results["power"], "used bpf(2)"),
    ):
        assert (reason in why) == (result[0] >= 0)
        assert ("outside" in one.get("marks", ())) == (one is not used and result[0] >= 0)
    if results["take"][0] >= 0:
        assert taken["value"] == "/dev/null"
        assert read_artifact(run, "companion.json")["paths"]["/dev/null"] == ["taken"]
    is_complete = read_health(run)["kernel_layer"] == "complete"
    assert is_complete == all(result[0] < 0 for result in results.values())


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize("is_own", [False, True])
def test_the_memory_of_a_process(place: Place, feed: str, is_own: bool) -> None:
    """That of one outside is opened without a call which reaches into it."""
    with outside_process() as pid:
        run, _ = record_evasion(place, feed, "look", 0 if is_own else pid)
    (opened,) = (e for e in read_kernel_layer(run) if str(e["value"]).endswith("/mem"))
    assert opened["value"] == f"/proc/{opened['pid'] if is_own else pid}/mem"
    assert (read_health(run)["kernel_layer"] == "complete") == is_own
    why = read_note(run, "stream_kernel_unknown_loss")
    assert ("memory of a process that is none of its own" in why) != is_own


@pytest.mark.parametrize("feed", FEEDS)
def test_calls_that_another_thread_lets_go_on(place: Place, feed: str) -> None:
    """A seccomp listener comes before a tracer, and a call that it lets go on is not recorded."""
    run, (listener, *results) = record_evasion(place, feed, "answer")
    if listener < 0:
        pytest.skip("a seccomp listener is forbidden here")
    assert results == [0]
    assert (run.folder / "workspace/given").read_bytes() == b""
    is_recorded = bool(read_calls(run, "truncate"))
    assert is_recorded == (feed == "ebpf")
    assert (read_health(run)["kernel_layer"] == "complete") == is_recorded
    assert ("(seccomp)" in read_note(run, "stream_kernel_unknown_loss")) != is_recorded


@needs_ebpf
def test_nobody_takes_itself_out_of_the_feed(place: Place) -> None:
    """It leaves its control group, and would delete its number from the maps."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    points = [fields[4] for fields in mounts if "cgroup2" in fields]
    if not points:
        pytest.skip("needs a control group of version 2")
    run, deleted = record_evasion(place, "ebpf", "vanish", f"{points[0]}/cgroup.procs")
    assert deleted
    assert set(deleted) == {-1}
    unseen = f"{run.folder}/workspace/unseen"
    assert read_artifact(run, "companion.json")["paths"][unseen] == ["create", "truncate", "write"]
    found = read_health(run)
    assert (found["kernel_layer"], found["cgroup_correlation"]) == (
        "partial_ringbuf_drops",
        "partial",
    )
    assert "used bpf(2)" in read_note(run, "stream_kernel_unknown_loss")
    assert "that had left it" in read_note(run, "stream_cgroup_partial")
