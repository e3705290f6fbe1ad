"""One run under a feed: a guard, a program that it starts, and what the feed reports of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio import create_memory_object_stream, create_task_group, to_thread
from msgspec import Struct

from stream.pipeline import Batch
from stream.records.control import Gap
from stream.records.kernel import RawCapture, RawEvent
from stream.sources.kernel.calls import WatchedFile
from stream.sources.kernel.ebpf import EbpfFeed

ROOT = Path(__file__).parents[2]
Items = list[Batch[RawEvent | Gap | RawCapture]]


class Guard:
    def __init__(self, stdout: int | None = None, *, prepares: bool = False) -> None:
        env = os.environ | ({"PREPARES": "1"} if prepares else {})
        if stdout is not None:
            env["STDOUT_OF_PROGRAM"] = str(stdout)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.kernel.guard"],
            cwd=ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=() if stdout is None else (stdout,),
            text=True,
        )
        self.pid = self.process.pid
        where = json.loads(self._line())
        self.cgroup = Path(where) if where else None

    def start(self, folder: Path, *argv: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps([str(folder), *argv]) + "\n")
        self.process.stdin.flush()

    def wait(self) -> int:
        return int(self._line())

    def close(self) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def _line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()


@contextmanager
def run_guard(stdout: int | None = None, *, prepares: bool = False) -> Iterator[Guard]:
    guard = Guard(stdout, prepares=prepares)
    try:
        yield guard
    finally:
        guard.close()


class Recorded(Struct):
    events: list[RawEvent]
    gaps: list[Gap]
    capture: RawCapture
    code: int
    places: list[int]  #: of the gaps: so many events came before each

    def events_of(self, *calls: str) -> list[RawEvent]:
        return [event for event in self.events if event.call in calls]

    def events_at(self, path: Any) -> list[RawEvent]:
        """Of the calls that were given this path."""
        return [event for event in self.events if event.path == str(path)]

    def event_at(self, path: Any, call: str | None = None) -> RawEvent:
        [event] = [event for event in self.events_at(path) if call in (None, event.call)]
        return event

    @property
    def is_balanced(self) -> bool:
        capture = self.capture
        return capture.got + capture.dropped == capture.seen


async def collect_batches(feed: EbpfFeed, into: Items) -> None:
    send, receive = create_memory_object_stream[Batch[Any]](8)

    async def run_feed() -> None:
        async with send:
            await feed.run(send)

    async with create_task_group() as tasks, receive:
        tasks.start_soon(run_feed)
        async for batch in receive:
            into.append(batch)


def sort_batches(batches: Items, code: int) -> Recorded:
    items = [item for batch in batches for item in batch.items]
    capture = items.pop()
    assert isinstance(capture, RawCapture)
    events = [item for item in items if isinstance(item, RawEvent)]
    gaps = [item for item in items if isinstance(item, Gap)]
    assert len(events) + len(gaps) == len(items)
    assert sum(gap.lost for gap in gaps) == capture.dropped
    places = [
        n - sum(isinstance(other, Gap) for other in items[:n])
        for n, item in enumerate(items)
        if isinstance(item, Gap)
    ]
    return Recorded(events, gaps, capture, code, places)


async def record_program(
    folder: Path,
    *argv: Any,
    reads_late: bool = False,
    watch: Sequence[WatchedFile] = (),
    stdout: int | None = None,
    prepares: bool = False,
    cgroup: bool = True,
    **options: Any,
) -> Recorded:
    """`reads_late`: nothing is taken out of the ring before the program has ended."""
    words = [str(word) for word in argv]
    batches: Items = []
    with run_guard(stdout, prepares=prepares) as guard:
        where = guard.cgroup if cgroup else None
        feed = EbpfFeed.open(guard=guard.pid, cgroup=where, watch=watch, **options)
        try:
            guard.start(folder, *words)
            if reads_late:
                code = guard.wait()
                feed.end()
                await collect_batches(feed, batches)
            else:
                async with create_task_group() as tasks:
                    tasks.start_soon(collect_batches, feed, batches)
                    code = await to_thread.run_sync(guard.wait)
                    feed.end()
        finally:
            feed.close()
    return sort_batches(batches, code)


def run_program(folder: Path, *argv: Any, backend: str = "asyncio", **options: Any) -> Recorded:
    async def record_it() -> Recorded:
        return await record_program(folder, *argv, **options)

    return anyio.run(record_it, backend=backend)


def describe_event(event: RawEvent) -> dict[str, Any]:
    """The members of an event that are not at their defaults, but for its time and process."""
    facts = msgspec.to_builtins(event)
    return {key: facts[key] for key in facts if key not in ("schema", "ts", "pid", "tid")}


def expected(call: str, ret: int | None = None, path: Any = None, **others: Any) -> dict[str, Any]:
    facts = {"call": call, "ret": ret, "path": None if path is None else str(path), **others}
    return {key: value for key, value in facts.items() if value is not None}
