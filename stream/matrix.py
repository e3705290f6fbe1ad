"""Runs what was planned: every cell through the pipeline, into the sinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from stream.pipeline import Pipeline, Sink
from stream.plan import Begun, Cell, Stop
from stream.reaper import Reaper
from stream.sources.probe import ProbeSource
from stream.stages.emit import Emit, EncodeRaw, Failure
from stream.stages.record import Recorder


class Outcome(Struct):
    """What a run came to."""

    cells: int
    recorded: int  #: fewer only where it was stopped
    results: dict[str, int]
    failed: int
    failures: list[Failure]  #: the first of them
    strays: list[str] = field(default_factory=list)
    without_tmpdir: bool = False  #: nothing could be written anywhere


class Matrix:
    """The parts of a run, for a pipeline, and what they come to."""

    def __init__(
        self,
        begun: Begun,
        *,
        timeout: float,
        as_completed: bool = False,
        stop: Stop | None = None,
        on_done: Callable[[int, Cell | None], None] = lambda done, cell: None,
    ) -> None:
        self._begun = begun
        self.emit = Emit(Recorder(begun.plan.catalogs, begun.plan.descriptor))
        self.source = ProbeSource(
            plan=begun.plan,
            staging=begun.staging,
            started=begun.started,
            jobs=begun.jobs,
            timeout=timeout,
            as_completed=as_completed,
            stop=stop or Stop(),
            on_done=on_done,
        )

    def outcome(self, recorded: int, strays: list[str]) -> Outcome:
        return Outcome(
            cells=len(self._begun.plan.cells),
            recorded=recorded,
            results=dict(self.emit.results),
            failed=self.emit.failed,
            failures=self.emit.failures,
            strays=strays,
            without_tmpdir=self._begun.staging.root is None,
        )


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
    matrix = Matrix(begun, timeout=timeout, as_completed=as_completed, stop=stop, on_done=on_done)
    stage = EncodeRaw if raw else lambda: matrix.emit
    try:
        report = await Pipeline[Any]((matrix.source,)).through(stage).into(*sinks)
    finally:
        strays = Reaper.get().strays()
    return matrix.outcome(sum(counts.passed for _, counts in report.stages), strays)
