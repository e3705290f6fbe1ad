"""Writes into what is watched: each of them, in its place, and nothing of what was written."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from stream.process.messages import Start
from stream.sources.kernel.calls import WatchedFile
from stream.sources.kernel.strace import StraceFeed
from stream.sources.kernel.strace_lines import UNREADABLE
from stream.sources.kernel.strace_syntax import UNREAD
from tests.feeds import needs_strace
from tests.kernel.straced import Run, run
from tests.kernel.test_loss_counters import WRITES
from tests.kernel.test_strace_lines import (
    fd_of,
    new_parser,
    quote,
    short_event,
    short_events,
    write_lines,
)

__all__ = ["run"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="strace needs Linux")

WATCHED = [
    WatchedFile("stdout", 0, 7, b"pipe:[7]"),
    WatchedFile("log", 0, 8, b"/runs/log"),
    WatchedFile("no", 0, 9),
]
STDOUT, LOG, OTHER = fd_of("pipe:[7]", 1), fd_of("/runs/log", 5), fd_of("pipe:[77]", 6)
DATA = quote("secret")


def parse_lines(*lines: str) -> list[Any]:
    return short_events(new_parser(watch=WATCHED).feed(write_lines(*lines)))


def short_write(stream: str, size: int, pid: int = 1) -> Any:
    return short_event(pid, "wrote", stream=stream, size=size)


@pytest.mark.parametrize(
    ("line", "stream"),
    [
        (f"write({STDOUT}, {DATA}, 9) = 6", "stdout"),
        (f"write({LOG}, {DATA}..., 99) = 6", "log"),
        (f"pwrite64({LOG}, {DATA}, 6, 0) = 6", "log"),
        (f"writev({STDOUT}, 0x7f0000000000, 2) = 6", "stdout"),
        (f"writev({STDOUT}, [{{iov_base={DATA}, iov_len=6}}], 1) = 6", "stdout"),
        (f"pwritev2({STDOUT}, 0x7f0000000000, 1, -1, 0) = 6", "stdout"),
        (f"sendfile({STDOUT}, {OTHER}, [0] => [6], 9) = 6", "stdout"),
        (f"vmsplice({STDOUT}, 0x7f0000000000, 1, 0) = 6", "stdout"),
        (f"tee({OTHER}, {STDOUT}, 9, 0) = 6", "stdout"),
        (f"splice({OTHER}, NULL, {STDOUT}, NULL, 9, 0) = 6", "stdout"),
        (f"splice({LOG}, [3] => [9], {STDOUT}, NULL, 9, 0) = 6", "stdout"),
        (f"copy_file_range({OTHER}, [0], {LOG}, NULL, 9, 0) = 6", "log"),
    ],
)
def test_each_way_to_write(line: str, stream: str) -> None:
    assert parse_lines(f"1 {line}") == [short_write(stream, 6)]


@pytest.mark.parametrize(
    "line",
    [
        f"write({OTHER}, {DATA}, 6) = 6",
        f"write({fd_of('/runs/log', 5)}(deleted), {DATA}, 6) = 6",  # another's name by now
        f"write({fd_of('', 5)}, {DATA}, 6) = 6",  # one that is watched has no path
        f"write(77, {DATA}, 6) = -1 EBADF (Bad file descriptor)",
        f"write({STDOUT}, {DATA}, 6) = -1 EAGAIN (Resource temporarily unavailable)",
        f"write({STDOUT}, {DATA}, 6) = ? ERESTARTSYS (To be restarted if SA_RESTART is set)",
        f'write({STDOUT}, "", 0) = 0',
        f"tee({STDOUT}, {OTHER}, 9, 0) = 6",
        f"splice({STDOUT}, NULL, {OTHER}, NULL, 9, 0) = 6",
    ],
)
def test_what_is_no_write_into_them(line: str) -> None:
    lines = new_parser(watch=WATCHED)
    assert lines.feed(write_lines(f"1 {line}")) == []
    assert (lines.counts.others, lines.counts.events, lines.counts.unparsed) == (1, 0, 0)


def test_halves() -> None:
    """It is over when it is resumed; and what came before that, came before it."""
    rmdir, done = "rmdir(NULL) = 0", short_event(2, "rmdir", ret=0, marks=["fault"])
    lines = (
        f"1 write({STDOUT}, {DATA}, 6 <unfinished ...>",
        f"3 write({OTHER}, {DATA}, 6 <unfinished ...>",
        f"2 {rmdir}",
        "1 <... write resumed>) = 6",
        "3 <... write resumed>) = 6",
        f"1 splice({OTHER}, NULL, {STDOUT}, NULL, 9, 0 <unfinished ...>",
        f"3 sendfile({STDOUT}, {OTHER}, [0] <unfinished ...>",
        f"2 {rmdir}",
        "3 <... sendfile resumed> => [5], 9) = 5",
        "1 <... splice resumed>) = 4",
    )
    first, *others = short_write("stdout", 6), short_write("stdout", 5, 3), short_write("stdout", 4)
    assert parse_lines(*lines) == [done, first, done, *others]


def test_a_process_that_ends_in_the_middle_of_one() -> None:
    lines = new_parser(watch=WATCHED)
    text = write_lines(
        f"1 write({STDOUT}, {DATA}, 6 <unfinished ...>",
        "1 +++ killed by SIGKILL +++",
        f"2 write({STDOUT}, {DATA}, 6 <unfinished ...>) = ?",
        f"3 write({STDOUT}, {DATA}, 6 <detached ...>",
    )
    assert short_events(lines.feed(text)) == [short_event(1, "exit", status=9)]
    assert (lines.counts.halves, lines.counts.others, lines.counts.unparsed) == (2, 1, 0)


def test_a_write_whose_end_is_missing_is_counted() -> None:
    for target in (STDOUT, OTHER):
        (gap,) = new_parser(watch=WATCHED).feed(write_lines(f"1 write({target}, {DATA}"))
        assert getattr(gap, "reason", None) == UNREADABLE


def test_a_new_process_may_write_first() -> None:
    lines = ("1 vfork( <unfinished ...>", f"2 write({STDOUT}, {DATA}, 6) = 6")
    assert parse_lines(*lines) == [short_event(1, "fork", child=2), short_write("stdout", 6, 2)]


def test_no_data_is_kept() -> None:
    """A thousand threads write a lot, and none of them is done."""
    data = quote("x" * 4096)
    texts = [
        write_lines(f"{n} write({OTHER}, {data}, 8192 <unfinished ...>") for n in range(1, 1001)
    ]
    lines = new_parser(watch=WATCHED)
    tracemalloc.start()
    try:
        for text in texts:
            lines.feed(text)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 1_000_000 < sum(map(len, texts)) / 16


@needs_strace
def test_the_ways_that_there_are(run: Run, programs: Path, tmp_path: Path) -> None:
    """As the other feed sees them."""
    (tmp_path / "given").write_text("0123456789")
    traced = run(programs / "calls", "writes", watch=str(tmp_path / "log")).check()
    found = [(event["stream"], event["size"]) for event in traced.events_of("wrote")]
    assert found == [*WRITES, ("stdout", 4)]
    assert sum(size for _, size in found) == len(traced.seen["out"])
    assert "two words" not in json.dumps(traced.seen["records"])


@needs_strace
def test_nobody_watches(run: Run, programs: Path, tmp_path: Path) -> None:
    (tmp_path / "given").write_text("0123456789")
    traced = run(programs / "calls", "writes").check()
    assert traced.events_of("wrote") == []


@needs_strace
def test_writes_are_stops_only_where_somebody_watches(tmp_path: Path) -> None:
    for watch in ([], WATCHED):
        feed = StraceFeed.open(folder=tmp_path, watch=watch)
        order = Start(argv=[b"x"], executable=b"/x", env={}, cwd=b"/", grace=1, timeout=None)
        try:
            words = feed.wrap(order).tracer
        finally:
            feed.close()
        (trace,) = (word for word in words if word.startswith(b"--trace="))
        assert (b"?write," in trace, UNREAD.encode() in words) == (bool(watch), bool(watch))


@needs_strace
@pytest.mark.parametrize("name", ["log", "l\udcffg>, 1<", "log (deleted)", "a\\x62c\n"])
def test_writes_stand_among_what_was_done(run: Run, tmp_path: Path, name: str) -> None:
    """What was written before is before, and what was written after is after, whoever else
    writes."""
    script = (
        "import os, sys\n"
        "log = os.open(os.fsencode(sys.argv[1]), os.O_WRONLY | os.O_APPEND)\n"
        "other = os.open('other', os.O_WRONLY | os.O_CREAT)\n"
        "pid = os.fork()\n"
        "for n in range(20):\n"
        "    if pid:\n"
        "        os.mkdir(f'{n}')\n"
        "        os.write(1 if n % 2 else log, b'x' * (n + 1))\n"
        "    os.write(other, b'y' * 70_000)\n"
        "if pid: os.wait()\n"
    )
    log = tmp_path / name
    traced = run("/usr/bin/python3", "-ISc", script, log, watch=str(log)).check()
    leader = traced.events[0]["pid"]
    found = [
        event.get("path", event.get("size"))
        for event in traced.events_of("mkdir", "wrote")
        if event["pid"] == leader
    ]
    assert found == [word for n in range(20) for word in (str(n), n + 1)]
    wrote = traced.events_of("wrote")
    assert [event["stream"] for event in wrote] == ["log", "stdout"] * 10
    assert log.stat().st_size == sum(event["size"] for event in wrote[::2])


@needs_strace
def test_a_reader_that_is_slow(run: Run, tmp_path: Path) -> None:
    """Who waits for room in the pipe writes all of it in one call, or in several: the sum is
    exact."""
    script = "import os\nfor n in range(40): os.write(1, b'x' * 100_000)\n"
    traced = run("/usr/bin/python3", "-ISc", script, watch=str(tmp_path / "log")).check()
    assert (
        sum(event["size"] for event in traced.events_of("wrote"))
        == len(traced.seen["out"])
        == 4_000_000
    )


@needs_strace
def test_what_cannot_be_watched(run: Run, tmp_path: Path) -> None:
    """The file is reached by another name: its writes are not seen, and none is made up."""
    log, link = tmp_path / "log", tmp_path / "hard"
    log.touch()
    os.link(log, link)
    sh = shutil.which("sh")
    traced = run(sh or "", "-c", f"echo one >>{log}; echo three >>{link}", watch=str(log)).check()
    assert [(event["stream"], event["size"]) for event in traced.events_of("wrote")] == [("log", 4)]


def test_what_proc_calls_it(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    log = os.open(tmp_path / "lög", os.O_RDWR | os.O_CREAT)
    try:
        pipe, file = (
            WatchedFile.of_descriptor("stdout", reader),
            WatchedFile.of_descriptor("log", log),
        )
        assert pipe == WatchedFile.of_descriptor("stdout", writer)
        assert pipe.path == b"pipe:[%d]" % pipe.inode
        assert file == WatchedFile("log", file.device, file.inode, os.fsencode(tmp_path / "lög"))
    finally:
        for fd in (reader, writer, log):
            os.close(fd)
