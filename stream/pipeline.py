"""Sources, stages and sinks, joined by bounded streams of batches.

It promises backpressure (the slowest sink sets the pace), conservation (what each part
took in and gave out is counted and checked), and structured concurrency (nothing that a
pipeline started outlives it). It knows no record type.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from anyio import create_memory_object_stream, create_task_group
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from msgspec import Struct, field

T = TypeVar("T")
U = TypeVar("U")
T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)

Batch: TypeAlias = Sequence[T]  #: not changed once sent
Write: TypeAlias = Callable[[Batch[T]], Awaitable[None]]
DEPTH = 8  #: batches in flight per hop


class Counts(Struct):
    """The books of one stage. `balanced` is its law."""

    received: int = 0
    passed: int = 0  #: input items that went on, as they were or turned into something else
    rejected: int = 0
    filtered: int = 0  #: left out on purpose: blank lines, for one

    @property
    def balanced(self) -> bool:
        return self.received == self.passed + self.rejected + self.filtered

    def __str__(self) -> str:
        return (
            f"{self.received} in = {self.passed} out"
            f" + {self.rejected} rejected + {self.filtered} filtered"
        )


class Source(Protocol[T_co]):
    """Owns its processes and descriptors. Returns at the end of input; raises on failure."""

    async def run(self, out: ObjectSendStream[Batch[T_co]], /) -> None: ...


class Stage(Protocol[T_contra, T_co]):
    """Pure: no waiting, clock, randomness or I/O. One instance a run."""

    name: str
    counts: Counts

    def feed(self, batch: Batch[T_contra], /) -> Batch[T_co]: ...
    def finish(self) -> Batch[T_co]: ...


class Sink(Protocol[T_contra]):
    """Entering acquires; leaving cleanly commits; leaving by exception leaves what was
    written readable and marked incomplete."""

    def open(self) -> AbstractAsyncContextManager[Write[T_contra]]: ...


class Report(Struct):
    """What went through: the books of every stage, in order."""

    stages: list[tuple[str, Counts]] = field(default_factory=list)


class UnbalancedError(AssertionError):
    """A stage lost or invented records: a bug in that stage, never in its input."""


class Pipeline(Struct, Generic[T], frozen=True):
    """A description: making one opens nothing, and it may run twice."""

    sources: tuple[Source[Any], ...]
    stages: tuple[Callable[[], Stage[Any, Any]], ...] = ()

    def through(self: Pipeline[T], stage: Callable[[], Stage[T, U]], /) -> Pipeline[U]:
        return Pipeline(self.sources, (*self.stages, stage))

    async def into(self, *sinks: Sink[T]) -> Report:
        stages = [new() for new in self.stages]
        async with AsyncExitStack() as outputs:  # outlives every task: its exit commits
            writes = [await outputs.enter_async_context(sink.open()) for sink in sinks]
            # Tasks own the sending ends. The receiving ends stay open until no task is left,
            # so that who waits for one that failed is cancelled instead of failing as well.
            async with create_task_group() as tasks:
                inlet, merged = create_memory_object_stream[Batch[Any]](DEPTH)
                outputs.callback(merged.close)
                outlets: list[ObjectSendStream[Batch[T]]] = []
                for write in writes:
                    outlet, queue = create_memory_object_stream[Batch[T]](DEPTH)
                    outputs.callback(queue.close)
                    outlets.append(outlet)
                    tasks.start_soon(_drain, queue, write)
                tasks.start_soon(_fold, merged, stages, outlets)
                async with inlet:
                    for source in self.sources:
                        tasks.start_soon(_pump, source, inlet.clone())
        return Report([(stage.name, stage.counts) for stage in stages])


def merge(*sources: Source[T]) -> Pipeline[T]:
    return Pipeline(sources)


class Chain(Struct, Generic[T], frozen=True):
    """Sources one after the other, as one."""

    sources: Sequence[Source[T]]

    async def run(self, out: ObjectSendStream[Batch[T]], /) -> None:
        for source in self.sources:
            await source.run(out)


async def _pump(source: Source[T], out: ObjectSendStream[Batch[T]]) -> None:
    async with out:
        await source.run(out)


async def _drain(queue: ObjectReceiveStream[Batch[T]], write: Write[T]) -> None:
    async for batch in queue:
        await write(batch)


async def _fold(
    merged: ObjectReceiveStream[Batch[Any]],
    stages: Sequence[Stage[Any, Any]],
    outlets: Sequence[ObjectSendStream[Batch[Any]]],
) -> None:
    fed = [0] * len(stages)

    async def push(batch: Batch[Any], first: int) -> None:
        for index in range(first, len(stages)):
            fed[index] += len(batch)
            batch = stages[index].feed(batch)
        if batch:
            for outlet in outlets:
                await outlet.send(batch)

    async with AsyncExitStack() as streams:
        for outlet in outlets:
            await streams.enter_async_context(outlet)
        async for batch in merged:
            await push(batch, 0)
        for index, stage in enumerate(stages):
            rest = stage.finish()
            counts = stage.counts
            if counts.received != fed[index] or not counts.balanced:
                raise UnbalancedError(f"{stage.name}: given {fed[index]}, accounts for {counts}")
            await push(rest, index + 1)
