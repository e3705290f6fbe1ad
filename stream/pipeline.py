"""Sources, transformers and sinks, joined by bounded streams of batches.

A pipeline promises backpressure (the slowest sink sets the pace), conservation (what each
transformer took in and gave out is counted and checked), and structured concurrency (nothing
that it started outlives it). It knows no record type: a batch says of which kind its items are,
and transformers and sinks say which kinds they take.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from anyio import Event, create_memory_object_stream, create_task_group
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from msgspec import Struct, field

T = TypeVar("T")
DEPTH = 8  #: batches in flight per hop


class Batch(Struct, Generic[T], frozen=True):
    """Items of one kind, in order. Nobody changes them once they are sent."""

    kind: str
    items: Sequence[T]


Out: TypeAlias = ObjectSendStream[Batch[Any]]
Write: TypeAlias = Callable[[Batch[Any]], Awaitable[None]]


def by_kind(items: Sequence[Any], kind_of: Callable[[Any], str]) -> list[Batch[Any]]:
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
        """Return the batches that are left at the end of input."""


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
                    tasks.start_soon(_drain, queue, write)
                tasks.start_soon(_fold, merged, self.transformers, outlets)
                async with inlet:
                    for source in self.sources:
                        tasks.start_soon(_pump, source, inlet.clone())
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


async def _pump(source: Source, out: Out) -> None:
    async with out:
        await source.run(out)


async def _drain(queue: ObjectReceiveStream[Batch[Any]], write: Write) -> None:
    async for batch in queue:
        await write(batch)


async def _fold(
    merged: ObjectReceiveStream[Batch[Any]],
    transformers: Sequence[Transformer],
    outlets: Sequence[tuple[Collection[str], Out]],
) -> None:
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
            await _send(out, outlets)
        for index, transformer in enumerate(transformers):
            rest = transformer.finish()
            counts = transformer.counts
            if counts.received != fed[index] or not counts.balanced:
                given = f"given {fed[index]}, accounts for {counts}"
                raise UnbalancedError(f"{transformer.name}: {given}")
            for made in rest:
                out = []
                feed(made, index + 1, out)
                await _send(out, outlets)


async def _send(
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
