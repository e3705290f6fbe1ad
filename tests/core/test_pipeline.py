"""Order, backpressure, the counts, and how failures travel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from anyio import create_task_group, fail_after, get_cancelled_exc_class
from hypothesis import given
from hypothesis import strategies as st

from stream.codec import Lines
from stream.pipeline import (
    DEPTH,
    Batch,
    Chain,
    Counts,
    Out,
    Pipeline,
    Report,
    Source,
    UnbalancedError,
    Write,
)
from stream.records.control import Reject
from tests.core.properties import check_batch_independence, cut_into_batches

pytestmark = pytest.mark.anyio
LIMIT = 60  # seconds, for what would otherwise hang


@dataclass
class Items:
    """A source of batches that fails after them, if it has an error to raise."""

    batches: Sequence[Sequence[Any]]
    error: Exception | None = None
    sent: int = 0
    ended_by: type[BaseException] | None = None

    async def run(self, out: Out, /) -> None:
        try:
            for batch in self.batches:
                await out.send(Batch("items", batch))
                self.sent += 1
            if self.error:
                raise self.error
        except BaseException as error:
            self.ended_by = type(error)
            raise


@dataclass
class Endless:
    """Sends until it is stopped."""

    sent: int = 0
    ended_by: type[BaseException] | None = None

    async def run(self, out: Out, /) -> None:
        try:
            while True:
                await out.send(Batch("items", [self.sent]))
                self.sent += 1
        except BaseException as error:
            self.ended_by = type(error)
            raise


@dataclass
class Into:
    """A sink that keeps what it got and how it ended. It fails where it has an error to raise."""

    kinds: Sequence[str] = ("items",)
    fail_open: Exception | None = None
    fail_write: Exception | None = None
    fail_commit: Exception | None = None
    block: bool = False
    items: list[Any] = field(default_factory=list)
    batches: int = 0
    opened: int = 0
    ended_by: list[type[BaseException] | None] = field(default_factory=list)
    got_one: anyio.Event | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Write]:
        if self.fail_open:
            raise self.fail_open
        self.opened += 1
        self.got_one = anyio.Event()
        try:
            yield self._write
        except BaseException as error:
            self.ended_by.append(type(error))
            raise
        if self.fail_commit:
            raise self.fail_commit
        self.ended_by.append(None)

    async def _write(self, batch: Batch[Any]) -> None:
        assert batch.items, "a sink gets no empty batch"
        self.items += batch.items
        self.batches += 1
        assert self.got_one is not None
        self.got_one.set()
        if self.fail_write:
            raise self.fail_write
        if self.block:
            await anyio.sleep_forever()


class Adding:
    """Adds one to what is even, rejects what is negative, leaves out zero, ends with a sum."""

    name = "adding"
    kinds = ("items",)

    def __init__(self) -> None:
        self.counts = Counts()
        self.total = 0

    def feed(self, batch: Batch[int], /) -> list[Batch[int]]:
        out: list[int] = []
        for item in batch.items:
            self.counts.received += 1
            if item < 0:
                self.counts.rejected += 1
            elif item == 0:
                self.counts.filtered += 1
            else:
                self.counts.passed += 1
                self.total += item
                out += [item, item] if item % 2 else [item + 1]
        return [Batch("items", out)]

    def finish(self) -> list[Batch[int]]:
        return [Batch("items", [self.total])]


class Losing(Adding):
    name = "losing"

    def feed(self, batch: Batch[int], /) -> list[Batch[int]]:
        return super().feed(Batch("items", batch.items[1:]))


class Inventing(Adding):
    name = "inventing"

    def feed(self, batch: Batch[int], /) -> list[Batch[int]]:
        return super().feed(Batch("items", [*batch.items, 1]))


class Forgetful(Adding):
    """Receives everything and does not count where one item went."""

    name = "forgetful"

    def feed(self, batch: Batch[int], /) -> list[Batch[int]]:
        self.counts.received += len(batch.items)
        self.counts.passed += len(batch.items) - 1
        return [Batch("items", batch.items[1:])]


class Failing(Adding):
    name = "failing"

    def feed(self, batch: Batch[int], /) -> list[Batch[int]]:
        raise ZeroDivisionError


class FailingLate(Adding):
    name = "failing-late"

    def finish(self) -> list[Batch[int]]:
        raise ZeroDivisionError


def single_error(group: BaseException) -> BaseException:
    """The one error in nested groups: nothing else may come along with it."""
    while isinstance(group, BaseExceptionGroup):
        assert len(group.exceptions) == 1, group.exceptions
        group = group.exceptions[0]
    return group


def pipeline_of(*sources: Source) -> Pipeline:
    return Pipeline(sources)


async def failure_of(pipeline: Pipeline, *sinks: Into) -> BaseException:
    with fail_after(LIMIT):
        try:
            await pipeline.into(*sinks)
        except Exception as error:
            return single_error(error)
    raise AssertionError("it did not fail")


async def test_order_and_content() -> None:
    sink = Into()
    report = await pipeline_of(Items([[1, 2], [], [3]])).into(sink)
    assert sink.items == [1, 2, 3]
    assert sink.ended_by == [None]
    assert report == Report([])


async def test_several_sources_into_several_sinks() -> None:
    sources = [Items([[(name, n)] for n in range(50)]) for name in "abc"]
    sinks = [Into(), Into()]
    await pipeline_of(*sources).into(*sinks)
    for sink in sinks:
        assert len(sink.items) == 150
        for name in "abc":
            assert [item for item in sink.items if item[0] == name] == [
                (name, n) for n in range(50)
            ]
    assert sinks[0].items == sinks[1].items


async def test_without_sources_transformers_still_finish() -> None:
    sink = Into()
    report = await Pipeline(()).through(Adding()).into(sink)
    assert sink.items == [0]
    assert report.transformers == [("adding", Counts())]


async def test_without_sinks_everything_is_read() -> None:
    source = Items([[n] for n in range(100)])
    report = await Pipeline((source,)).through(Adding()).into()
    assert source.sent == 100
    assert report.transformers[0][1].received == 100


async def test_the_counts() -> None:
    sink = Into()
    report = (
        await pipeline_of(Items([[1, -1, 0], [2, 0]]))
        .through(Adding())
        .through(Adding())
        .into(sink)
    )
    first, second = (counts for _, counts in report.transformers)
    assert first == Counts(received=5, passed=2, rejected=1, filtered=2)
    assert str(first) == "5 in = 2 out + 1 rejected + 2 filtered"
    # 1 1 3, and the sum that the first transformer ended with; then the second one's own sum
    assert second == Counts(received=4, passed=4)
    assert sink.items == [1, 1, 1, 1, 3, 3, 3, 3, 8]


@pytest.mark.parametrize("transformer", [Losing, Inventing, Forgetful])
async def test_unbalanced_counts_are_a_bug(transformer: type[Adding]) -> None:
    sink = Into()
    error = await failure_of(pipeline_of(Items([[1, 3]])).through(transformer()), sink)
    assert isinstance(error, UnbalancedError)
    assert str(error).startswith(f"{transformer.name}: given 2, accounts for ")
    assert sink.ended_by
    assert sink.ended_by != [None]


@pytest.mark.parametrize("transformer", [Failing, FailingLate])
async def test_a_failing_transformer_aborts_the_sinks(transformer: type[Adding]) -> None:
    source, sink = Endless(), Into()
    feed: Any = source if transformer is Failing else Items([[1]])
    assert isinstance(
        await failure_of(pipeline_of(feed).through(transformer()), sink), ZeroDivisionError
    )
    assert sink.ended_by
    assert sink.ended_by != [None]
    if transformer is Failing:
        assert source.ended_by is get_cancelled_exc_class()


async def test_a_failing_source_aborts_the_sinks_and_the_other_sources() -> None:
    error = OSError("gone")
    other = Endless()
    sinks = [Into(), Into(block=True)]
    assert await failure_of(pipeline_of(Items([[1], [2]], error), other), *sinks) is error
    assert other.ended_by is get_cancelled_exc_class()
    for sink in sinks:
        assert sink.ended_by
        assert sink.ended_by != [None]


async def test_a_failing_sink_cancels_the_sources_and_aborts_the_other_sinks() -> None:
    error = OSError("full")
    source, good = Endless(), Into()
    assert await failure_of(pipeline_of(source), good, Into(fail_write=error)) is error
    assert source.ended_by is get_cancelled_exc_class()
    assert good.ended_by
    assert good.ended_by != [None]


@pytest.mark.parametrize("most", [1, DEPTH, DEPTH * 2 + 1, DEPTH * 4])
async def test_a_sink_that_fails_while_everything_waits_for_it_fails_alone(most: int) -> None:
    """No broken stream of ours travels along with the error."""
    error = OSError("full")
    source = Endless()

    @dataclass
    class Full(Into):
        async def _write(self, batch: Batch[Any]) -> None:
            with anyio.CancelScope(shield=True):
                while source.sent < most:  # until the hops behind are as full as they get
                    before = source.sent
                    for _ in range(20):
                        await anyio.lowlevel.checkpoint()
                    if source.sent == before:
                        break
            raise error

    assert await failure_of(pipeline_of(source, Endless()).through(Adding()), Full()) is error


async def test_a_sink_that_cannot_open_starts_nothing() -> None:
    error = OSError("no such folder")
    source, first = Items([[1]]), Into()
    assert await failure_of(pipeline_of(source), first, Into(fail_open=error)) is error
    assert source.sent == 0
    assert source.ended_by is None
    assert first.ended_by == [OSError]


async def test_a_sink_that_cannot_commit_aborts_those_before_it() -> None:
    error = OSError("disk full")
    first = Into()
    assert await failure_of(pipeline_of(Items([[1]])), first, Into(fail_commit=error)) is error
    assert first.ended_by == [OSError]


async def test_sinks_commit_after_everything_was_written() -> None:
    sinks = [Into(), Into()]
    await pipeline_of(Items([[n] for n in range(DEPTH * 3)])).into(*sinks)
    assert [sink.ended_by for sink in sinks] == [[None], [None]]
    assert [len(sink.items) for sink in sinks] == [DEPTH * 3] * 2


async def test_a_blocked_sink_stops_the_source() -> None:
    source, sink = Endless(), Into(block=True)
    free = Into()
    async with create_task_group() as tasks:
        tasks.start_soon(pipeline_of(source).through(Adding()).into, sink, free)
        with fail_after(LIMIT):
            sent = -1
            while sent != source.sent:  # until nothing moves any more
                sent = source.sent
                for _ in range(100):
                    await anyio.lowlevel.checkpoint()
        # in the sink's hands, in its queue, in the fold's hands, in the queue before it
        assert sink.batches == 1
        assert DEPTH < source.sent <= 2 * DEPTH + 4
        tasks.cancel_scope.cancel()
    assert source.ended_by is get_cancelled_exc_class()
    assert sink.ended_by == [get_cancelled_exc_class()]


async def test_the_slowest_sink_sets_the_pace_of_the_others() -> None:
    source, blocked, free = Endless(), Into(block=True), Into()
    async with create_task_group() as tasks:
        tasks.start_soon(pipeline_of(source).into, free, blocked)
        sent = -1
        while sent != source.sent:
            sent = source.sent
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
        assert free.batches <= DEPTH + 2
        tasks.cancel_scope.cancel()


async def test_cancellation_reaches_every_part() -> None:
    source, sink = Endless(), Into()
    async with create_task_group() as tasks:
        tasks.start_soon(pipeline_of(source, Chain([Endless()])).through(Adding()).into, sink)
        while not sink.items:
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert source.ended_by is get_cancelled_exc_class()
    assert sink.ended_by == [get_cancelled_exc_class()]


async def test_a_chain_is_one_source_after_the_other() -> None:
    sink = Into()
    await pipeline_of(Chain([Items([[1], [2]]), Items([]), Items([[3]])])).into(sink)
    assert sink.items == [1, 2, 3]


async def test_a_chain_stops_at_the_first_failure() -> None:
    error, after = OSError("gone"), Items([[3]])
    assert await failure_of(pipeline_of(Chain([Items([[1]], error), after])), Into()) is error
    assert after.sent == 0


async def test_batches_go_where_their_kind_is_taken() -> None:
    """And past a transformer that does not take it, in their order."""

    @dataclass
    class Mixed:
        async def run(self, out: Out, /) -> None:
            for number in (1, 2):
                await out.send(Batch("items", [number]))
                await out.send(Batch("others", [-number]))

    @dataclass
    class All(Into):
        kinds: Sequence[str] = ("items", "others")

    @dataclass
    class Others(Into):
        kinds: Sequence[str] = ("others",)

    numbers, others, both = Into(), Others(), All()
    report = await pipeline_of(Mixed()).through(Adding()).into(numbers, others, both)
    assert numbers.items == [1, 1, 3, 3]
    assert others.items == [-1, -2]
    assert both.items == [1, 1, -1, 3, -2, 3]
    assert report.transformers[0][1] == Counts(received=2, passed=2)


async def test_several_pipelines_at_once() -> None:
    sinks = [Into() for _ in range(5)]
    async with create_task_group() as tasks:
        for sink in sinks:
            pipeline = pipeline_of(Items([[n] for n in range(40)])).through(Adding())
            tasks.start_soon(pipeline.into, sink)
    assert all(sink.items == sinks[0].items for sink in sinks)


# The properties of transformers, and the helper that checks them

numbers = st.lists(st.integers(min_value=-3, max_value=9), max_size=30)
cuts = st.lists(st.integers(min_value=0, max_value=100), max_size=10)


@given(numbers, cuts)
def test_a_pure_transformer_does_not_see_batches(items: list[int], cuts: list[int]) -> None:
    out, counts = check_batch_independence(Adding, items, cuts)
    assert counts.received == len(items)
    assert out[-1] == sum(item for item in items if item > 0)


@given(numbers, cuts)
def test_pipelines_do_not_see_batches(items: list[int], cuts: list[int]) -> None:
    async def run() -> None:
        whole, parts = Into(), Into()
        one = await pipeline_of(Items([items])).through(Adding()).through(Adding()).into(whole)
        two = (
            await pipeline_of(Items(cut_into_batches(items, cuts)))
            .through(Adding())
            .through(Adding())
            .into(parts)
        )
        assert whole.items == parts.items
        assert one == two

    anyio.run(run)


class PerBatch(Adding):
    """Breaks the property: it gives out something for every batch."""

    def feed(self, batch: Batch[int], /) -> list[Batch[int]]:
        return [*super().feed(batch), Batch("items", [len(batch.items)])]


@pytest.mark.parametrize("transformer", [PerBatch, Losing, Inventing, Forgetful])
def test_the_helper_sees_a_broken_property(transformer: type[Adding]) -> None:
    with pytest.raises(AssertionError):
        check_batch_independence(transformer, [1, 2, 3, 4], [2])


def test_the_helper_wants_new_transformers() -> None:
    transformer = Adding()
    with pytest.raises(AssertionError, match="a new transformer"):
        check_batch_independence(lambda: transformer, [1], [0])


@given(st.lists(st.binary(max_size=4).map(lambda b: b.replace(b"\n", b"")), max_size=9), cuts)
def test_cut_lines_keep_their_places(items: list[bytes], cuts: list[int]) -> None:
    whole = Lines(items, "f", 7, 100)
    parts = cut_into_batches(whole, cuts)
    assert [line for part in parts for line in part] == items
    number, offset = 7, 100
    for part in parts:
        assert isinstance(part, Lines)
        assert (part.source, part.number, part.offset) == ("f", number, offset)
        number += len(part)
        offset += sum(len(line) + 1 for line in part)


def test_a_reject_is_no_exception() -> None:
    """What a transformer rejects travels with the rest; the pipeline knows nothing of it."""
    record = Reject(stage="s", source="f", line=1, offset=0, sha256="0" * 64, reason="r")

    async def run() -> None:
        sink = Into()
        await pipeline_of(Items([[record]])).into(sink)
        assert sink.items == [record]

    anyio.run(run)
