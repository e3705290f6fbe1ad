"""The composition behind `stream observe`: the phases of an agent run, and who gets its events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from stream.files.append import RecordedFile
from stream.files.targets import STDOUT_TARGET
from stream.observe.recorder import RunPhases
from stream.observe.settings import RunSettings
from stream.pipeline import CollectingSink, LenientSink, Pipeline, Sink
from stream.process.guard import Guard, Interrupts
from stream.records.control import EVENTS, FINDINGS, Finding
from stream.records.decision import Evaluation
from stream.records.run import RunSummary
from stream.sources.agent import Relay
from stream.transformers.invariants import Invariants
from stream.workspace.capture import WorkspaceCapture

if TYPE_CHECKING:  # half of what a run without probes and without a feed would load
    from stream.matrix.plan import StartedPlan
    from stream.observe.kernel import KernelRecorder

MOST_FINDINGS = 20


class Observed(Struct):
    """What a run came to."""

    summary: RunSummary
    findings: list[Finding] = field(default_factory=list)  #: rules that the run itself broke
    troubles: list[str] = field(default_factory=list)  #: what could not be passed on
    evaluation: Evaluation | None = None
    matrix: Any = None  #: a MatrixResult, where there were probes
    files: Mapping[str, RecordedFile] = field(default_factory=dict)  #: as they were written


async def run_observe(
    settings: RunSettings,
    guard: Guard,
    interrupts: Interrupts,
    *,
    passes_on: tuple[bool, bool],
    events: bool = False,
    probes: StartedPlan | None = None,
    kernel: KernelRecorder | None = None,
    on_progress: Callable[[int], None] = lambda size: None,
    on_warning: Callable[[str], None] = lambda sentence: None,
) -> Observed:
    """Record a run into its folder; with `events`, send its events to stdout as well. `passes_on`:
    whether the agent's stdout and stderr go on to ours."""
    relays = [Relay(fd) if is_passed else None for fd, is_passed in enumerate(passes_on, 1)]
    troubles: list[str] = []
    findings: list[Finding] = []
    measured = None
    if probes is not None:
        from stream.observe.probes import ProbeRecorder

        measured = ProbeRecorder(settings, probes, interrupts)
    sinks: list[Sink] = [CollectingSink((FINDINGS,), MOST_FINDINGS, findings)]
    if events:
        from stream.sinks.ndjson import Ndjson

        sinks.append(LenientSink(Ndjson(STDOUT_TARGET, (EVENTS,)), "events to stdout", troubles))
    with closing(
        WorkspaceCapture(
            settings.workspace,
            settings.folder,
            mode=settings.workspace_mode,
            source=settings.source,
            leave_out=settings.leave_out,
            redactor=settings.capture_policy.content_redactor,
            is_interrupted=lambda: bool(interrupts.numbers),
            on_progress=on_progress,
            on_warning=on_warning,
        )
    ) as workspace:
        phases = RunPhases(
            settings, workspace, guard, interrupts, relays=relays, kernel=kernel, probes=measured
        )
        check = Invariants(profile=settings.agent.profile, is_alone=False)
        await Pipeline((phases,)).through(check).into(*sinks)
    for relay, name in zip(relays, ("stdout", "stderr"), strict=True):
        if relay is not None and relay.lost:
            troubles.append(f"{name}: {relay.lost} bytes of the command's output")
    matrix = None if measured is None else measured.matrix_result()
    return Observed(phases.summary, findings, troubles, phases.evaluation, matrix, phases.files)
