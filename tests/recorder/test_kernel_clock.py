"""Whatever clocks a program is given, what it did lies in the window in which it did it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from stream.records.kernel import MKDIR, RMDIR
from tests.cli.command import STREAM, Place
from tests.feeds import FEEDS
from tests.recorder.runs import Run, observe, read_records
from tests.recorder.test_kernel import read_artifact, read_health, read_kernel_layer, sequence
from tests.recorder.test_kernel_attacks import find_error_rules

__all__ = ["sequence"]
AHEAD = ("unshare", "--time", "--fork", "--monotonic", "100000", "--boottime", "100000")
BEHIND = ("unshare", "--time", "--fork", "--monotonic", "-10")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs namespaces"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.parametrize("feed", FEEDS),
]


def count_bound(run: Run) -> dict[str, int]:
    report = read_artifact(run, "correlation-report.json")
    return {one["tool_call_id"]: one["kernel_event_count"] for one in report["bindings"]}


def test_the_command_has_another_clock(place: Place, sequence: Path, feed: str) -> None:
    """Which nobody asks."""
    run = observe(place, "--kernel", feed, "--workspace", "empty", "--", *BEHIND, sequence)
    assert run.done.code == 0, run.done.err
    assert read_health(run)["kernel_layer"] == "complete"
    assert count_bound(run) == {"call_write": 8, "call_read": 6, "call_reach": 2}
    assert not find_error_rules(place, run)


# What was written cannot be derived from the kernel layer, where some of it was written by no call.
# So it has the time at which the recorder read it: a read is over when the reader sleeps again.
ARRIVES = """
import json, os
log = os.open(os.environ['ASSAY_RUNNER_SDK_EVENT_LOG'], os.O_RDWR | os.O_APPEND)
os.ftruncate(log, 1)
recorder = open(f'/proc/{os.getppid()}/stat').read().rpartition(')')[2].split()[1]
inode = os.fstat(log).st_ino
(fd,) = (fd for fd in os.listdir(f'/proc/{recorder}/fd')
         if os.path.exists(f'/proc/{recorder}/fd/{fd}')
         and os.stat(f'/proc/{recorder}/fd/{fd}').st_ino == inode)
def sleeps():
    status = open(f'/proc/{recorder}/status').read()
    return int(status.split('voluntary_ctxt_switches:')[1].split()[0])
def declare(event, call):
    line = {'schema': os.environ['ASSAY_RUNNER_SDK_EVENT_SCHEMA'], 'source': 'test', 'seq': 0,
            'run_id': os.environ['ASSAY_RUNNER_RUN_ID'], 'tool': 'write_file',
            'event_type': 'tool_call_' + event, 'tool_call_id': call}
    os.write(log, b'\\n' + json.dumps(line).encode() + b'\\n')
    size = os.fstat(log).st_size
    while f'pos:\\t{size}\\n' not in open(f'/proc/{recorder}/fdinfo/{fd}').read(): pass
    before = sleeps()
    while sleeps() == before: pass
def change(name):
    os.mkdir(name)
    os.rmdir(name)
for call in ('one', 'two'):
    declare('started', call)
    change(call)
    declare('completed', call)
    change('between')
"""


def test_the_recorder_has_another_clock(place: Place, feed: str) -> None:
    """Than the kernel, which records when an event happened."""
    words = ("--kernel", feed, "--workspace", "empty", "--", "/usr/bin/python3", "-ISc", ARRIVES)
    run = observe(place, *words, argv0=(*AHEAD, STREAM), check=False)
    assert run.done.code == 0, run.done.err
    markers = read_records(run.folder / "layers/markers.ndjson")[1:-1]
    assert [one["clock"] for one in markers] == ["arrival"] * 4
    changes = [
        line["seq"] for line in read_kernel_layer(run) if line["event_type"] in (MKDIR, RMDIR)
    ]
    assert [one["at"] for one in markers] == changes[::2]
