"""`python -m tests.kernel.traced JOB`: a command under its guard and under strace, and all that was
seen of it, as JSON. What the recorder does with a feed, and nothing else."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio import create_memory_object_stream, create_task_group, wait_readable

from stream.errors import FeedError
from stream.process.guard import Guard, fork_guard
from stream.process.messages import Failed, GuardReport, Start, TreeEnded, decode_report
from stream.sources.kernel.calls import WatchedFile
from stream.sources.kernel.strace import Record, StraceFeed


async def read_all(fd: int, into: list[bytes], guard: Guard, signal: int) -> None:
    while True:
        await wait_readable(fd)
        data = os.read(fd, 1 << 16)
        if not data:
            return
        into.append(data)
        if signal and b"ready" in data:
            guard.send_signal(signal)


async def follow_reports(guard: Guard) -> list[GuardReport]:
    reports: list[GuardReport] = []
    rest = b""
    while not reports or not isinstance(reports[-1], TreeEnded | Failed):
        await wait_readable(guard.status)
        *lines, rest = (rest + os.read(guard.status, 1 << 16)).split(b"\n")
        reports += [decode_report(line) for line in lines]
    return reports


async def record_command(guard: Guard, order: Start, feed: StraceFeed | None, job: Any) -> Any:
    out: list[bytes] = []
    err: list[bytes] = []
    records: list[Record] = []
    reports: list[GuardReport] = []
    sender, receiver = create_memory_object_stream[Any](8)

    async def run_feed() -> None:
        async with sender:
            if feed is not None:
                if job.get("deaf"):  # whoever takes the records fails
                    receiver.close()
                try:
                    await feed.run(sender)
                except anyio.BrokenResourceError:
                    assert job["deaf"]

    async def collect_records() -> None:
        async with receiver:
            if not job.get("deaf"):
                async for batch in receiver:
                    records.extend(batch.items)

    async def watch_guard() -> None:
        reports.extend(await follow_reports(guard))
        if feed is not None:
            feed.end()

    if feed is not None:
        order = feed.wrap(order)
    elif "tracer" in job:
        order.tracer = [os.fsencode(word) for word in (*job["tracer"], *job["argv"])]
    guard.send_request(order)
    async with create_task_group() as tasks:
        tasks.start_soon(run_feed)
        tasks.start_soon(collect_records)
        tasks.start_soon(watch_guard)
        tasks.start_soon(read_all, guard.stdout, out, guard, job.get("signal", 0))
        tasks.start_soon(read_all, guard.stderr, err, guard, 0)
    text = {"out": b"".join(out), "err": b"".join(err)}
    return {
        "records": msgspec.to_builtins(records),
        "reports": msgspec.to_builtins(reports),
        **{name: value.decode(errors="surrogateescape") for name, value in text.items()},
    }


def main(job: Any) -> Any:
    guard = fork_guard()
    argv = [os.fsencode(word) for word in job["argv"]]
    order = Start(
        argv=argv,
        executable=os.fsencode(job.get("executable") or job["argv"][0]),
        env=dict(os.environb),
        cwd=os.fsencode(job["cwd"]),
        grace=job.get("grace", 5.0),
        timeout=job.get("timeout"),
    )
    feed = None
    watch_guard = []
    if "watch" in job:
        log = os.open(job["watch"], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        watch_guard = [
            WatchedFile.of_descriptor("stdout", guard.stdout),
            WatchedFile.of_descriptor("log", log),
        ]
    with tempfile.TemporaryDirectory() as folder:
        try:
            if job.get("traced", "tracer" not in job):
                feed = StraceFeed.open(folder=Path(folder), watch=watch_guard)
            done = anyio.run(
                record_command, guard, order, feed, job, backend=job.get("backend", "asyncio")
            )
        except FeedError as error:
            return {"refused": str(error)}
        finally:
            guard.close()
            if feed is not None:
                feed.close()
        return {**done, "left": [path.name for path in Path(folder).iterdir()]}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
