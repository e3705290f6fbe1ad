"""Runs what was planned: every cell through the pipeline, into the sinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from stream.pipeline import Pipeline, Sink
from stream.plan import Begun, Cell, Stop
from stream.sources.probe import ProbeSource
from stream.stages.emit import Emit, EncodeRaw, Failure
from stream.stages.record import Recorder
from stream.tree import Reaper


class Outcome(Struct):
    """What a run came to."""

    cells: int
    recorded: int  #: fewer only where it was stopped
    results: dict[str, int]
    failed: int
    failures: list[Failure]  #: the first of them
    strays: list[str] = field(default_factory=list)
    without_tmpdir: bool = False  #: nothing could be written anywhere


async def run_matrix(
    begun: Begun,
    *sinks: Sink[Any],
    timeout: float,
    as_completed: bool = False,
    raw: bool = False,
    stop: Stop | None = None,
    on_done: Callable[[int, Cell | None], None] = lambda done, cell: None,
) -> Outcome:
    """Every cell of the plan ends in exactly one record, in each sink."""
    plan = begun.plan
    emit = Emit(Recorder(plan.catalogs, plan.descriptor))
    source = ProbeSource(
        plan=plan,
        staging=begun.staging,
        started=begun.started,
        jobs=begun.jobs,
        timeout=timeout,
        as_completed=as_completed,
        stop=stop or Stop(),
        on_done=on_done,
    )
    pipeline = Pipeline[Any]((source,)).through(EncodeRaw if raw else lambda: emit)
    try:
        report = await pipeline.into(*sinks)
    finally:
        strays = Reaper.get().strays()
    return Outcome(
        cells=len(plan.cells),
        recorded=sum(counts.passed for _, counts in report.stages),
        results=dict(emit.results),
        failed=emit.failed,
        failures=emit.failures,
        strays=strays,
        without_tmpdir=begun.staging.root is None,
    )
