"""Sources, transformers and sinks, joined by bounded streams of batches.

A pipeline promises backpressure (the slowest sink sets the pace), conservation (what each
transformer took in and gave out is counted and checked), and structured concurrency (nothing
that it started outlives it). It knows no record type: a batch says of which kind its items are,
and transformers and sinks say which kinds they take.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from anyio import Event, create_memory_object_stream, create_task_group
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from msgspec import Struct, field

from stream.errors import OutputError, StreamError, number, os_reason

T = TypeVar("T")
DEPTH = 8  #: batches in flight per hop


class Batch(Struct, Generic[T], frozen=True):
    """Items of one kind, in order. Nobody changes them once they are sent."""

    kind: str
    items: Sequence[T]


Out: TypeAlias = ObjectSendStream[Batch[Any]]
Write: TypeAlias = Callable[[Batch[Any]], Awaitable[None]]


def batches_by_kind(items: Sequence[Any], kind_of: Callable[[Any], str]) -> list[Batch[Any]]:
    """Cut items of several kinds into batches of one kind each. Their order stays."""
    return [Batch(kind, list(some)) for kind, some in groupby(items, kind_of)]


class Counts(Struct):
    """What became of the items that one transformer received. They must balance."""

    received: int = 0
    passed: int = 0  #: input items that went on, as they were or turned into something else
    rejected: int = 0
    filtered: int = 0  #: left out on purpose: blank lines, for one

    @property
    def balanced(self) -> bool:
        """Return whether every item that was received is accounted for."""
        return self.received == self.passed + self.rejected + self.filtered

    def __str__(self) -> str:
        return (
            f"{self.received} in = {self.passed} out"
            f" + {self.rejected} rejected + {self.filtered} filtered"
        )


class Source(Protocol):
    """A source owns its processes and descriptors. It returns at the end of input and raises on
    failure."""

    async def run(self, out: Out, /) -> None:
        """Send batches until the end of input."""


class Transformer(Protocol):
    """A transformer is pure: no waiting, clock, randomness or I/O. One instance serves one run,
    and what it came to is read off it when the pipeline has returned. Batches of kinds that it
    does not take go past it, in their order."""

    name: str
    counts: Counts

    @property
    def kinds(self) -> Collection[str]:
        """The kinds of batches that it takes."""

    def feed(self, batch: Batch[Any], /) -> Iterable[Batch[Any]]:
        """Take a batch and return the batches that are made of it."""

    def finish(self) -> Iterable[Batch[Any]]:
        """Return the batches that are left at the end of input: none, where it held none back."""
        return ()


class Sink(Protocol):
    """Entering acquires; leaving cleanly commits; leaving by exception leaves what was written
    readable and marked incomplete. A sink is given batches of the kinds that it takes alone."""

    @property
    def kinds(self) -> Collection[str]:
        """The kinds of batches that it takes."""

    def open(self) -> AbstractAsyncContextManager[Write]:
        """Acquire what it writes to; the context gives the function that takes batches."""


class Report(Struct):
    """What went through: the counts of every transformer, in order."""

    transformers: list[tuple[str, Counts]] = field(default_factory=list)


class UnbalancedError(AssertionError):
    """A transformer lost or invented records: a bug in it, never in its input."""


class Pipeline(Struct, frozen=True):
    """A description: to make one opens nothing."""

    sources: tuple[Source, ...]
    transformers: tuple[Transformer, ...] = ()

    def through(self, *transformers: Transformer) -> Pipeline:
        """Add transformers behind those that there are."""
        return Pipeline(self.sources, (*self.transformers, *transformers))

    async def into(self, *sinks: Sink) -> Report:
        """Run to the end of all sources, and commit every sink."""
        async with AsyncExitStack() as outputs:  # outlives every task: its exit commits
            writes = [await outputs.enter_async_context(sink.open()) for sink in sinks]
            # Tasks own the sending ends. The receiving ends stay open until no task is left,
            # so that who waits for one that failed is cancelled instead of failing as well.
            async with create_task_group() as tasks:
                inlet, merged = create_memory_object_stream[Batch[Any]](DEPTH)
                outputs.callback(merged.close)
                outlets: list[tuple[Collection[str], Out]] = []
                for sink, write in zip(sinks, writes, strict=True):
                    outlet, queue = create_memory_object_stream[Batch[Any]](DEPTH)
                    outputs.callback(queue.close)
                    outlets.append((sink.kinds, outlet))
                    tasks.start_soon(_write_to_sink, queue, write)
                tasks.start_soon(_run_transformers, merged, self.transformers, outlets)
                async with inlet:
                    for source in self.sources:
                        tasks.start_soon(_run_source, source, inlet.clone())
        return Report([(one.name, one.counts) for one in self.transformers])


class Chain(Struct, frozen=True):
    """Sources one after the other, as one."""

    sources: Sequence[Source]

    async def run(self, out: Out, /) -> None:
        """Run the sources, one after the other."""
        for source in self.sources:
            await source.run(out)


class Deferred(Struct, frozen=True):
    """A source that is known once something else is ready; None: there is none after all."""

    ready: Event
    find: Callable[[], Source | None]

    async def run(self, out: Out, /) -> None:
        """Wait until the source can be found, and run it."""
        await self.ready.wait()
        if (source := self.find()) is not None:
            await source.run(out)


class LenientSource(Struct, frozen=True):
    """A source whose failure is reported, and costs no other part of the pipeline."""

    source: Source
    on_failure: Callable[[str], None]
    on_end: Callable[[], None] = lambda: None

    async def run(self, out: Out, /) -> None:
        """Run the source, and report its failure."""
        try:
            await self.source.run(out)
        except* Exception as group:
            self.on_failure(describe_failure(group))
        finally:
            self.on_end()


class LenientTransformer:
    """A transformer whose failure is reported: from then on it rejects what comes."""

    def __init__(self, inner: Transformer, on_failure: Callable[[str], None]) -> None:
        self.name = inner.name
        self.counts = Counts()
        self._inner = inner
        self._on_failure = on_failure
        self._has_failed = False

    @property
    def kinds(self) -> Collection[str]:
        """The kinds of the transformer that is not to fail."""
        return self._inner.kinds

    def feed(self, batch: Batch[Any], /) -> list[Batch[Any]]:
        """Feed the transformer, until it fails for the first time."""
        self.counts.received += len(batch.items)
        if not self._has_failed:
            try:
                made = [*self._inner.feed(batch)]
            except Exception as error:
                self._has_failed = True
                self._on_failure(describe_failure(error))
            else:
                self.counts.passed += len(batch.items)
                return made
        self.counts.rejected += len(batch.items)
        return []

    def finish(self) -> list[Batch[Any]]:
        """Finish the transformer, unless it has failed."""
        if self._has_failed:
            return []
        rest, counts = [*self._inner.finish()], self._inner.counts
        if counts.received != self.counts.received or not counts.balanced:
            self._on_failure(f"{self.name}: given {self.counts.received}, accounts for {counts}")
        return rest


class CollectingSink(Struct):
    """Keeps the first items of some kinds for who made it."""

    kinds: Collection[str]
    most: int = sys.maxsize
    items: list[Any] = field(default_factory=list)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Write]:
        """Nothing is acquired: items are kept in memory."""

        async def write(batch: Batch[Any]) -> None:
            """Keep items, as long as there is room for them."""
            self.items.extend(batch.items[: self.most - len(self.items)])

        yield write


class LenientSink(Struct):
    """Write to a sink as long as that works. What could not be written is counted in `troubles`:
    nobody who reads a copy of the record may end the recording."""

    sink: Sink
    name: str
    troubles: list[str]

    @property
    def kinds(self) -> Collection[str]:
        """The kinds of the sink that is not to fail."""
        return self.sink.kinds

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Write]:
        """Give a writer that counts what the sink cannot take."""
        lost = 0
        reason = ""

        async def write(batch: Batch[Any]) -> None:
            """Write a batch, or count it after the first failure."""
            nonlocal lost, reason
            if not reason:
                try:
                    await inner(batch)
                    return
                except BrokenPipeError:
                    reason = "the reader went away"
                except OutputError as error:
                    reason = str(error)
            lost += len(batch.items)

        stack = AsyncExitStack()
        try:
            inner = await stack.enter_async_context(self.sink.open())
        except OutputError as error:
            reason = str(error)
        try:
            yield write
        finally:
            # What is not whole does not get the name of what is.
            failure = OutputError(reason) if reason else sys.exception()
            with suppress(OutputError):
                await stack.__aexit__(type(failure) if failure else None, failure, None)
            if lost:
                self.troubles.append(f"{self.name}: {reason}: {number(lost, 'record')} lost")


def describe_failure(error: BaseException) -> str:
    """Say why a part failed, in one line."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(sorted(map(describe_failure, error.exceptions)))
    if isinstance(error, StreamError):
        return str(error)
    return os_reason(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"


async def _run_source(source: Source, out: Out) -> None:
    async with out:
        await source.run(out)


async def _write_to_sink(queue: ObjectReceiveStream[Batch[Any]], write: Write) -> None:
    async for batch in queue:
        await write(batch)


async def _run_transformers(
    merged: ObjectReceiveStream[Batch[Any]],
    transformers: Sequence[Transformer],
    outlets: Sequence[tuple[Collection[str], Out]],
) -> None:
    """Pass batches through the transformers to the sinks; raise where one lost a record."""
    fed = [0] * len(transformers)

    def feed(batch: Batch[Any], first: int, out: list[Batch[Any]]) -> None:
        """Pass a batch through the transformers from a position on."""
        for index in range(first, len(transformers)):
            if batch.kind in transformers[index].kinds:
                fed[index] += len(batch.items)
                for made in transformers[index].feed(batch):
                    feed(made, index + 1, out)
                return
        if batch.items:
            out.append(batch)

    async with AsyncExitStack() as streams:
        for _, outlet in outlets:
            await streams.enter_async_context(outlet)
        async for batch in merged:
            out: list[Batch[Any]] = []
            feed(batch, 0, out)
            await _send_to_sinks(out, outlets)
        for index, transformer in enumerate(transformers):
            rest = transformer.finish()
            counts = transformer.counts
            if counts.received != fed[index] or not counts.balanced:
                given = f"given {fed[index]}, accounts for {counts}"
                raise UnbalancedError(f"{transformer.name}: {given}")
            for made in rest:
                out = []
                feed(made, index + 1, out)
                await _send_to_sinks(out, outlets)


async def _send_to_sinks(
    batches: Sequence[Batch[Any]], outlets: Sequence[tuple[Collection[str], Out]]
) -> None:
    """Send to each sink what it takes, in its order. Where each line became a finding and a
    reject, that is one batch for each sink again, not one for each line."""
    for kinds, outlet in outlets:
        taken = [batch for batch in batches if batch.kind in kinds]
        for kind, parts in groupby(taken, attrgetter("kind")):
            first, *more = parts
            items = [*first.items, *chain.from_iterable(one.items for one in more)]
            await outlet.send(Batch(kind, items) if more else first)
