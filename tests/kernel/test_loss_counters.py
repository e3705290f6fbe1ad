"""What is lost is counted: got + dropped == seen, and a gap stands where the loss was."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from anyio import create_memory_object_stream, create_task_group, fail_after, to_thread

from stream.pipeline import Batch
from stream.records.control import Gap
from stream.records.kernel import RawEvent
from stream.sources.kernel.calls import WatchedFile
from stream.sources.kernel.decode import RingDecoder
from stream.sources.kernel.ebpf import PAGE, STEP, EbpfFeed, RingCounters, ebpf_capture_of
from tests.kernel.rig import describe_event, record_program, run_guard, run_program
from tests.kernel.test_decode import encode_record

pytestmark = pytest.mark.usefixtures("kernel_feed")


async def test_every_open_is_there_once(anyio_backend: object, programs: Path, place: Path) -> None:
    recorded = await record_program(place, programs / "many", place, 20_000, 2)
    assert recorded.capture.dropped == 0
    assert recorded.is_balanced
    assert len(recorded.events) == recorded.capture.got
    seen = Counter(event.path for event in recorded.events_of("openat"))
    wanted = {f"{place}/{n}/f{k:07}" for n in range(2) for k in range(10_000)}
    assert seen == dict.fromkeys(wanted, 1)
    kinds = Counter(event.call for event in recorded.events)
    assert kinds == {"openat": 20_000, "exec": 1, "fork": 2, "exit": 3}


ATTEMPTS = [pytest.param(n, marks=() if n % 16 == 3 else pytest.mark.sweep) for n in range(100)]


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_a_ring_that_is_too_small(programs: Path, place: Path, attempt: int) -> None:
    """Nobody reads before the program has ended: what the ring holds is got, the rest counted."""
    number = 200 + attempt
    size = PAGE << attempt % 3
    recorded = run_program(
        place, programs / "many", place, number, 2, reads_late=True, ring_bytes=size
    )
    capture = recorded.capture
    share = number // 2 * 2
    assert capture.seen == share + 1 + 2 + 3
    assert capture.dropped > 0
    assert capture.got + capture.dropped == capture.seen
    if recorded.capture.scopes.get("both"):
        assert capture.cgroup == "partial"
        lost = f"{capture.dropped} events were lost, and whose they were"
        assert lost in capture.cgroup_reasons
    else:
        assert capture.cgroup == "failed"
    assert len(recorded.events) == capture.got
    assert sum(gap.lost for gap in recorded.gaps) == capture.dropped
    assert {gap.reason for gap in recorded.gaps} == {"the ring was full"}
    assert {gap.unit for gap in recorded.gaps} == {"events"}


def test_a_gap_reaches_behind_what_was_in_the_ring(programs: Path, place: Path) -> None:
    """However much of that has to be taken out first."""
    recorded = run_program(
        place, programs / "many", place, 40_000, 1, reads_late=True, ring_bytes=2 << 20
    )
    assert recorded.is_balanced
    assert recorded.capture.got * 64 > 2 * STEP
    assert [gap.begins for gap in recorded.gaps] == [True, False]
    assert recorded.places == [0, len(recorded.events)], "nobody looked before the end"


async def test_a_gap_stands_where_the_loss_was(
    anyio_backend: object, calls: Path, programs: Path, place: Path
) -> None:
    """Between what was read before it and what there was room for after it."""
    send, receive = create_memory_object_stream[Batch[Any]](0)
    items: list[Any] = []
    with run_guard() as guard:
        feed = EbpfFeed.open(guard=guard.pid, cgroup=guard.cgroup, ring_bytes=PAGE)

        def has_executed(word: str) -> bool:
            return any(isinstance(i, RawEvent) and word in (i.argv or ()) for i in items)

        async def run_feed() -> None:
            async with send:
                await feed.run(send)

        async def read_batches() -> None:
            async for batch in receive:
                items.extend(batch.items)

        async def start_program(*argv: Any) -> None:
            guard.start(place, *map(str, argv))
            await to_thread.run_sync(guard.wait)

        with fail_after(120):
            async with create_task_group() as tasks, receive:
                tasks.start_soon(run_feed)
                await start_program(calls, "before")
                while not has_executed("before"):
                    items.extend((await receive.receive()).items)
                await start_program(programs / "many", place, 1000, 1)  # nobody reads
                async with create_task_group() as readers:
                    readers.start_soon(read_batches)
                    while not has_executed("after"):
                        await start_program(calls, "after")
                    feed.end()
        feed.close()
    gaps = [n for n, item in enumerate(items) if isinstance(item, Gap)]
    before, after = (
        [n for n, item in enumerate(items) if word in (getattr(item, "argv", None) or ())]
        for word in ("before", "after")
    )
    capture = items[-1]
    assert sum(items[n].lost for n in gaps) == capture.dropped > 800
    assert capture.got + capture.dropped == capture.seen
    assert [items[n].begins for n in gaps] == [True, False] * (len(gaps) // 2)
    assert before[0] < gaps[0]
    assert gaps[1] < after[-1]


@pytest.mark.parametrize(
    ("records", "unseen", "sees", "known"),
    [
        (b"", 0, True, "unused"),
        (b"", 2, True, "hole"),
        (b"", 2, False, "hole"),
        (encode_record("io_uring_setup"), 0, True, "seen"),
        (encode_record("io_uring_setup"), 1, True, "hole"),
        (encode_record("io_uring_setup", ret=-38), 0, True, "unused"),
        (encode_record("openat", b"/x", flags=512 | 3), 0, True, "hole"),
    ],
)
def test_what_is_known_of_io_uring(records: bytes, unseen: int, sees: bool, known: str) -> None:
    """A ring that was inherited was set up where nobody looked."""
    decoder = RingDecoder()
    decoder.decode_ring_records(records)
    counters = RingCounters(0, 0, 0, unseen, (decoder.got,), (0,) * 16)
    capture = ebpf_capture_of(
        counters,
        decoder,
        misses=0,
        living=0,
        ring_bytes=PAGE,
        sees_uring=sees,
        cgroup=None,
        guard=1,
    )
    assert capture.uring == known


ENDS = (
    encode_record("exec") + encode_record("fork", extra=12) + encode_record("exit")
)  # of 10, and none of 12


@pytest.mark.parametrize(
    ("records", "living", "lost", "reason"),
    [
        (ENDS, 0, 0, "processes that were over, and whose end was not seen: 1"),
        (ENDS, 1, 0, "processes that lived on, unwatched: 1"),
        (ENDS, 0, 3, ""),  # it may be among what is known to be lost
        (encode_record("exec") + encode_record("exit"), 0, 0, ""),
        (encode_record("exec"), 0, 0, "processes that were over, and whose end was not seen: 1"),
        (encode_record("exec", flags=1) + encode_record("exec", flags=3), 0, 0, "over"),
        (encode_record("exec", flags=1), 0, 0, ""),  # somebody else, in the control group
        (encode_record("bpf", ret=5), 0, 0, "the run used bpf(2)"),
        (encode_record("bpf", ret=-1), 0, 0, ""),
        (encode_record("ptrace", ret=0, flags=3 | 16384), 0, 0, "the run reached by ptrace into"),
        (encode_record("ptrace", ret=-3, flags=3), 0, 0, ""),
    ],
)
def test_what_the_counters_show_that_no_event_does(
    records: bytes, living: int, lost: int, reason: str
) -> None:
    decoder = RingDecoder()
    decoder.decode_ring_records(records)
    counters = RingCounters(lost, 0, 0, 0, (decoder.got + lost,), (0,) * 16)
    capture = ebpf_capture_of(
        counters,
        decoder,
        misses=0,
        living=living,
        ring_bytes=PAGE,
        sees_uring=True,
        cgroup=None,
        guard=1,
    )
    assert (reason in capture.unknown_loss) == bool(reason or not capture.unknown_loss)
    assert bool(capture.unknown_loss) == bool(reason)


WRITES = [("stdout", 3), ("stdout", 9), ("stdout", 9), ("stdout", 5), ("stdout", 8), ("stdout", 6)]


def test_writes_into_what_is_watched(calls: Path, place: Path) -> None:
    reader, writer = os.pipe()
    at = os.fstat(writer)
    try:
        watch = [
            WatchedFile("other", at.st_dev, at.st_ino + 10**9),
            WatchedFile("stdout", at.st_dev, at.st_ino),
        ]
        recorded = run_program(place, calls, "writes", watch=watch, stdout=writer)
        text = os.read(reader, 1 << 16)
    finally:
        os.close(reader)
        os.close(writer)
    wrote = recorded.events_of("wrote")
    assert [(event.stream, event.size) for event in wrote] == [*WRITES, ("stdout", 4)]
    assert sum(event.size or 0 for event in wrote) == len(text)
    assert {event.pid for event in wrote} == {recorded.events[0].pid}
    assert describe_event(wrote[0]) == {"call": "wrote", "size": 3, "stream": "stdout"}
    times = [event.ts for event in recorded.events]
    assert times == sorted(times)


def test_nobody_watches(calls: Path, place: Path) -> None:
    reader, writer = os.pipe()
    recorded = run_program(place, calls, "writes", stdout=writer)
    os.close(reader)
    os.close(writer)
    assert recorded.events_of("wrote") == []
