"""The composition behind `stream observe`: an agent run, and the probe matrix beside it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from typing import TYPE_CHECKING, Any, Protocol

from anyio import CancelScope, Event, create_task_group
from msgspec import Struct, field

from stream.codec import join_lines
from stream.errors import OutputError, StreamError, number
from stream.files.append import AppendFile, RecordedFile
from stream.files.targets import STDOUT, named
from stream.observe.recorder import AgentSource, RunWatcher
from stream.observe.settings import RunSettings, write_document
from stream.pipeline import Batch, Out, Pipeline, Sink, Source, Write
from stream.process.guard import Guard, Interrupts
from stream.process.tree import Reaper
from stream.records.control import BOUNDARY, EVENTS, FINDINGS, Finding
from stream.records.decision import Evaluation
from stream.records.run import BOUNDARY_FILE, DESCRIPTOR_FILE, RunSummary
from stream.sources.agent import Relay
from stream.transformers.invariants import Invariants
from stream.workspace.capture import WorkspaceCapture

if TYPE_CHECKING:
    from stream.matrix.plan import StartedPlan

MOST_FINDINGS = 20


class RunningWatcher(RunWatcher, Protocol):
    async def run(self) -> None:
        """As long as it has something to do."""


class Observed(Struct):
    """What a run came to."""

    summary: RunSummary
    findings: list[Finding] = field(default_factory=list)  #: rules that the run itself broke
    troubles: list[str] = field(default_factory=list)  #: what could not be passed on
    evaluation: Evaluation | None = None
    matrix: Any = None  #: an Outcome, where there were probes


async def run_observe(
    recording: RunSettings,
    guard: Guard,
    interrupts: Interrupts,
    *,
    relays: Sequence[Relay | None],
    events: bool = False,
    probes: StartedPlan | None = None,
    witness: RunningWatcher | None = None,
    timeout: float = 30.0,
    on_progress: Callable[[int], None] = lambda size: None,
    on_warning: Callable[[str], None] = lambda sentence: None,
) -> Observed:
    """Everything ends in the run folder; with `events`, the events go to stdout as well."""
    troubles: list[str] = []
    findings: list[Finding] = []
    beside: list[str] = []  # the same, of what belongs to the record
    has_place, is_alone = Event(), Event()
    with closing(
        WorkspaceCapture(
            recording.workspace,
            recording.folder,
            mode=recording.workspace_mode,
            source=recording.source,
            leave_out=recording.leave_out,
            redactor=recording.disclosure.contents,
            is_interrupted=lambda: bool(interrupts.numbers),
            on_progress=on_progress,
            on_warning=on_warning,
        )
    ) as workplace:
        descriptor = None if probes is None else _carry(probes, recording, beside)
        boundary = _Growing(AppendFile(recording.folder / BOUNDARY_FILE), recording.disclosure.line)
        agent = AgentSource(
            recording,
            workplace,
            guard,
            interrupts,
            relays=relays,
            has_place=has_place.set,
            is_alone=is_alone.wait,
            beside=beside,
            boundary=lambda: boundary.kept if probes is not None else None,
            descriptor=lambda: descriptor,
            witness=witness,
        )
        sources: list[Source] = [agent]
        sinks: list[Sink] = [_FindingSink(findings)]
        matrix = None
        if probes is None:
            is_alone.set()
        else:
            from stream.boundary.cells import Stop
            from stream.matrix.run import Matrix

            stop = Stop()
            interrupts.listen(lambda number: stop.ask())
            matrix = Matrix(probes, timeout=timeout, stop=stop)
            sources.append(_ProbesBeside(matrix.source, has_place, beside))
            sinks.append(_Part(boundary, BOUNDARY_FILE, beside, is_alone.set))
        if events:
            from stream.sinks.ndjson import Ndjson

            sinks.append(_Part(Ndjson(STDOUT, (EVENTS,)), "events to stdout", troubles))
        pipeline = Pipeline(tuple(sources))
        if matrix is not None:
            pipeline = pipeline.through(matrix.emit)
        check = Invariants(profile=recording.agent.profile, is_alone=False)
        async with create_task_group() as tasks:
            if witness is not None:
                tasks.start_soon(witness.run)
            await pipeline.through(check).into(*sinks)
            tasks.cancel_scope.cancel()  # of a run that ended before it began
    for relay, name in zip(relays, ("stdout", "stderr"), strict=True):
        if relay is not None and relay.lost:
            troubles.append(f"{name}: {relay.lost} bytes of the command's output")
    outcome = None
    if matrix is not None:
        outcome = matrix.outcome(sum(matrix.emit.results.values()), Reaper.get().end_strays())
    return Observed(agent.summary, findings, troubles, agent.evaluation, outcome)


def _carry(probes: StartedPlan, recording: RunSettings, troubles: list[str]) -> RecordedFile | None:
    """The descriptor goes with the records, where nobody would know it by its name."""
    descriptor = probes.plan.descriptor
    if descriptor.is_bundled:
        return None
    try:
        return write_document(recording.folder / DESCRIPTOR_FILE, descriptor.whole())
    except OutputError as error:
        troubles.append(str(error))
        return None


_MARK = "mark"  #: a kind: comes after the last probe, and through the pipeline as they did


class _ProbesBeside(Struct):
    """The probes of the same workspace. That they cannot run must not cost the agent's run."""

    source: Source
    has_place: Event
    troubles: list[str]

    async def run(self, out: Out, /) -> None:
        try:
            await self.has_place.wait()
            await self.source.run(out)
        except StreamError as error:
            self.troubles.append(f"the probes: {error}")
        await out.send(Batch(_MARK, [None]))


class _Growing(Struct):
    """A file of the run folder: whole lines, and the run says whether it is all of them."""

    kinds = (BOUNDARY,)

    file: AppendFile
    see: Callable[[bytes], bytes]  #: what of a line may be written down
    lines: int = 0  #: that are in it

    @property
    def kept(self) -> tuple[int, RecordedFile | None]:
        """How many lines it has, and what it is."""
        return self.lines, self.file.recorded() if self.file.is_made else None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Write]:
        from aiofiles.os import wrap

        with named(str(self.file.path)):
            self.file.open()
        append = wrap(self.file.append)

        async def write(batch: Batch[bytes]) -> None:
            data = join_lines([self.see(line) for line in batch.items])
            with CancelScope(shield=True):
                await append(data, "all")
            if self.file.trouble:
                raise OutputError(f"{self.file.path}: {self.file.trouble}")
            self.lines += len(batch.items)

        try:
            yield write
        finally:
            self.file.close()


class _Part(Struct):
    """Some of the items, as long as they can be written. Nobody who reads a copy of the record
    may end the recording."""

    sink: Sink
    name: str
    troubles: list[str]
    on_mark: Callable[[], object] = lambda: None

    @property
    def kinds(self) -> Collection[str]:
        return (*self.sink.kinds, _MARK)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Write]:
        lost = 0
        reason = ""

        async def write(batch: Batch[Any]) -> None:
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

        def report() -> None:
            nonlocal lost
            if lost:
                self.troubles.append(f"{self.name}: {reason}: {number(lost, 'record')} lost")
                lost = 0

        async def write_and_mark(batch: Batch[Any]) -> None:
            if batch.kind != _MARK:
                await write(batch)
                return
            report()
            self.on_mark()

        stack = AsyncExitStack()
        try:
            inner = await stack.enter_async_context(self.sink.open())
        except OutputError as error:
            reason = str(error)
        try:
            yield write_and_mark
        finally:
            # What is not whole does not get the name of what is.
            failure = OutputError(reason) if reason else sys.exception()
            with suppress(OutputError):
                await stack.__aexit__(type(failure) if failure else None, failure, None)
            report()


class _FindingSink(Struct):
    """What the run itself broke, the first of it."""

    kinds = (FINDINGS,)

    found: list[Finding]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Write]:
        async def write(batch: Batch[Finding]) -> None:
            self.found.extend(batch.items[: MOST_FINDINGS - len(self.found)])

        yield write
