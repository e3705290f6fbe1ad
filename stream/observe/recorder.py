"""One agent run as a source of nine events, one for each phase.

The agent is a black box: nothing is asked of it, nothing is changed for it but its PATH and how
far up git looks for a repository, and what it says about itself is kept apart from what was
seen. Each event is on the disk before it is sent, and before the next phase begins.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from anyio import Event, create_task_group, to_thread
from msgspec import Struct, field

from stream.errors import OutputError, StreamError, number, reporting
from stream.files.append import NOT_OURS, AppendFile, RecordedFile, is_still
from stream.files.targets import STDOUT
from stream.observe.agents import find_version
from stream.observe.constraints import reach_verdict
from stream.observe.settings import (
    RunSettings,
    file_artifact,
    foreign_files,
    order_of,
    value_artifact,
    write_document,
    write_manifest,
)
from stream.pipeline import Batch, Deferred, LenientSink, Out, Pipeline, Sink, Write
from stream.process.guard import Guard, Interrupts
from stream.process.machine import Clock
from stream.process.table import ON_LINUX
from stream.records.artifacts import EVIDENCE_FILES, HOME
from stream.records.control import EVENTS, FINDINGS, Finding
from stream.records.decision import ActionType, Artifact, Evaluation, EventName
from stream.records.run import (
    CHANGES_FILE,
    COMMANDS_FILE,
    DIFF_FILE,
    EVENTS_FILE,
    MANIFEST_FILE,
    METADATA_FILE,
    STDERR_FILE,
    STDOUT_FILE,
    SUMMARY_FILE,
    WORKSPACE,
    Beginning,
    RunSummary,
)
from stream.redaction.policy import OutputFile
from stream.sources.agent import AgentCommand, CommandEnding, Relay, prepare_guard
from stream.sources.wrappers import MOST_VOUCHED, PASSED_BY, CommandLog, ObservedCommands
from stream.transformers.invariants import Invariants
from stream.workspace.capture import WorkspaceCapture, WorkspaceChanges

if TYPE_CHECKING:  # a run without a feed does without it
    from stream.matrix.plan import StartedPlan
    from stream.observe.kernel import KernelRecorder
    from stream.observe.probes import ProbeRecorder

#: Where one of these could not be written, that was said.
_WRITTEN_LAST = (DIFF_FILE, CHANGES_FILE, SUMMARY_FILE, MANIFEST_FILE)
UNWATCHED = (
    "and without a kernel feed that is complete nobody saw whether wrapped programs ran past the"
    " wrappers"
)
_MOST_FOREIGN = 1000  #: files that the summary names, and
_NAMED = 5  #: those of them that a sentence does


class PhaseEvent(Struct, kw_only=True):
    """What a phase has to say: it becomes an event of the run."""

    name: EventName
    action: ActionType = "other"
    summary: str
    artifacts: Sequence[Artifact] = ()
    output_raw: Literal["captured_as_artifact"] | None = None
    evaluation: Evaluation | None = None


class RunPhases:
    """Take a run through its phases and send the event of each. When it ends, so has the tree of
    the agent, and everything that recorded it."""

    def __init__(
        self,
        settings: RunSettings,
        workspace: WorkspaceCapture,
        guard: Guard,
        interrupts: Interrupts,
        *,
        relays: Sequence[Relay | None],
        kernel: KernelRecorder | None = None,
        probes: ProbeRecorder | None = None,
    ) -> None:
        self.summary = RunSummary(run_id=settings.run_id)
        self.evaluation: Evaluation | None = None
        self._settings = settings
        self._workspace = workspace
        self._guard = guard
        self._interrupts = interrupts
        self._relays = relays
        self._kernel = kernel
        self._probes = probes
        self._log: CommandLog | None = None
        self.files: dict[str, RecordedFile] = {}  #: that were written, as they were written
        self._no_commands = ""  # why none were observed
        self._seen: ObservedCommands | None = None  # by the kernel, of calls of wrapped programs
        self._is_invoked, self._is_captured = Event(), Event()

    async def run(self, out: Out, /) -> None:
        """Run all phases; whatever happens, close the journal and end the guard."""
        with reporting(self._settings.folder, OutputError, is_folder=True):
            self._journal = AppendFile(self._settings.folder / EVENTS_FILE).open()
        try:
            await self._run_phases(out)
        finally:
            if waiting := len(self._journal.waiting):
                self._record_loss(f"{number(waiting, 'event')}: {self._journal.trouble}")
            self._journal.close()
            if self._log is not None:
                self._log.close()
            if self._kernel is not None:
                self._kernel.close()
            self._guard.close()
            # a killed guard's
            shutil.rmtree(self._settings.wrappers_folder, ignore_errors=True)

    async def _run_phases(self, out: Out) -> None:
        """Run all phases, in their order. Until the command has ended, a failure ends the run;
        after that it costs what is left of the record, and never the exit code."""
        settings = self._settings
        self._clock = Clock.start()
        self._version = await find_version(settings.agent, settings.program_place)
        self._trace = settings.trace(self._version, self._clock, self._journal.append_lines)
        async with create_task_group() as tasks:
            with reporting(settings.folder, OutputError, is_folder=True):
                await self._send(await self._started(), out)
                await self._send(await self._workspace_prepared(), out)
                tasks.start_soon(self._capture)
                await self._send(await self._invoked(), out)
                self._is_invoked.set()
                await self._send(await self._completed(), out)
                await self._is_captured.wait()
            try:
                for phase in (
                    self._captured,
                    self._diffed,
                    self._commands,
                    self._evaluated,
                    self._finished,
                ):
                    await self._send(await phase(), out)
            except (StreamError, OSError) as error:
                self._record_loss(str(error))

    async def _send(self, event: PhaseEvent, out: Out) -> None:
        line = self._trace.add(
            event.name,
            event.action,
            event.summary,
            event.artifacts,
            output_raw=event.output_raw,
            evaluation=event.evaluation,
        )
        if event.name == "agent_completed" and not self._journal.waiting:
            # by the clock of files, which is coarser than ours
            self._agent.ending.ended_wall = self._journal.changed_at
        await out.send(Batch(EVENTS, [line]))

    def _record_loss(self, what: str) -> None:
        self.summary.incomplete.append(self._settings.capture_policy.value(what))

    async def _started(self) -> PhaseEvent:
        settings = self._settings
        document = settings.metadata(self._version, self._clock)
        metadata = write_document(settings.folder / METADATA_FILE, document)
        self.files[METADATA_FILE] = metadata
        what = "What the run was told to be."
        return PhaseEvent(
            name="run_started",
            summary=f"run_id={settings.run_id} scenario_id={settings.scenario.id}",
            artifacts=[file_artifact("metadata", METADATA_FILE, metadata, what)],
        )

    async def _workspace_prepared(self) -> PhaseEvent:
        prepared = await self._workspace.prepare()
        return PhaseEvent(
            name="workspace_prepared",
            summary=prepared.summary,
            artifacts=[value_artifact("workspace", prepared.summary, prepared.facts)],
        )

    async def _invoked(self) -> PhaseEvent:
        """Get everything ready that records the command, which starts with the next phase."""
        settings = self._settings
        wrappers, cgroup = await prepare_guard(self._guard, settings.wrappers_folder)
        if wrappers is not None:
            self._log = CommandLog(
                settings.folder / COMMANDS_FILE, wrappers, settings.capture_policy, self._clock
            )
        self._outputs = [
            OutputFile(settings.folder / name, settings.capture_policy)
            for name in (STDOUT_FILE, STDERR_FILE)
        ]
        order = order_of(settings, wrappers)
        if self._kernel is not None:
            watched = self._kernel.calls.prepare(self._guard, order, self._log)
            group = None if cgroup is None else cgroup.path
            order = await self._kernel.prepare(order, self._guard.pid, group, watched)
        self._agent = AgentCommand(
            self._guard,
            self._interrupts,
            cgroup,
            order,
            outputs=self._outputs,
            relays=self._relays,
            log=self._log,
            tells_calls=self._kernel is not None,
            on_end=() if self._kernel is None else (self._kernel.end,),
        )
        summary = f"verbose={'yes' if settings.is_verbose else 'no'} cwd={settings.workspace}"
        facts = settings.process_facts(self._version, self._trace.now())
        artifact = value_artifact("process", summary, facts)
        return PhaseEvent(name="agent_invoked", summary=summary, artifacts=[artifact])

    async def _capture(self) -> None:
        """Run the one pipeline of everything that records while the agent runs, to its end. Probes
        run from the start; the agent does once everything that watches it is there."""
        parts = [part for part in (self._kernel, self._probes) if part is not None]
        agent = Deferred(self._is_invoked, lambda: self._agent)
        sources = (agent, *(source for part in parts for source in part.sources()))
        transformers = [one for part in parts for one in part.transformers()]
        sinks = [sink for part in parts for sink in part.sinks()]
        await Pipeline(sources).through(*transformers).into(*sinks)
        self._is_captured.set()

    async def _completed(self) -> PhaseEvent:
        """The command has ended; its tree may live on."""
        await self._agent.exited.wait()
        summary = self._agent.ending.sentence()
        artifact = value_artifact("process", summary, self._agent.ending.facts())
        return PhaseEvent(name="agent_completed", summary=summary, artifacts=[artifact])

    async def _captured(self) -> PhaseEvent:
        """Nobody of the tree is left, and all that was seen of it is in the run folder."""
        self.summary = self._agent.ending.into(self.summary)
        kept = await to_thread.run_sync(lambda: [output.finish() for output in self._outputs])
        self.files |= zip((STDOUT_FILE, STDERR_FILE), kept, strict=True)
        event = self._describe_outputs(self._agent.ending, kept)
        if self._kernel is not None:
            for trouble in await self._kernel.conclude(self._agent.ending, self.summary):
                self._record_loss(trouble)
            self.files |= self._kernel.kept
            if self._kernel.artifacts is not None:
                self._seen = self._kernel.artifacts.commands
        if self._probes is not None:
            for trouble in self._probes.troubles:
                self._record_loss(trouble)
            self.summary.boundary_objects = self._probes.boundary.lines
            self.files |= self._probes.kept
        return event

    def _describe_outputs(self, ending: CommandEnding, kept: list[RecordedFile]) -> PhaseEvent:
        artifacts = []
        files = (("stdout_log", STDOUT_FILE), ("stderr_log", STDERR_FILE))
        for (kind, name), one in zip(files, kept, strict=True):
            what = "Declared by the agent: nothing in it was observed."
            if self._settings.capture_policy.mode == "hashed":
                what += " Only its digest was kept."
            artifact = file_artifact(kind, name, one, what, non_normative=True, total=one.total)
            artifacts.append(artifact)
            if one.lost:
                self._record_loss(f"{one.lost} bytes of {name}: {one.why}")
            if not one.is_ours:
                self._record_loss(f"{name} {NOT_OURS}")
        if not self._journal.is_as_written():
            self._record_loss(f"{EVENTS_FILE} {NOT_OURS}")
        if not is_still(self._settings.folder / METADATA_FILE, self.files[METADATA_FILE]):
            self._record_loss(f"{METADATA_FILE} {NOT_OURS}")
        after = ending.aftermath()
        if ending.is_blind and ON_LINUX:  # elsewhere that is all there can be
            self._record_loss("processes that left the command's group: /proc does not show them")
        if ending.stops:
            times, seconds = number(len(ending.stops), "time"), sum(ending.stops) / 1e9
            self._record_loss(
                f"the recorder was stopped {times}, for {seconds:.1f} s in all, until it was woken:"
                " what happened meanwhile was heard of late"
            )
        if ending.lost_guard:
            self._record_loss(
                "the process that watched the agent was killed: what it saw is not known"
            )
        self.summary.stdout_bytes, self.summary.stderr_bytes = (one.total for one in kept)
        summary = f"stdout={kept[0].total} bytes stderr={kept[1].total} bytes; {after}"
        artifacts.append(value_artifact("process", after, ending.facts()))
        return PhaseEvent(
            name="artifacts_captured",
            summary=summary,
            artifacts=artifacts,
            output_raw="captured_as_artifact",
        )

    async def _diffed(self) -> PhaseEvent:
        changes = await self._workspace.compare(self._agent.ending.outlived_since)
        self._changes = changes
        if changes.trouble:
            self._record_loss(changes.trouble)
        if changes.found is not None:
            self.summary.changed_paths = changes.found.total
            self.summary.changed_after_exit = changes.found.has_after_exit
            self.summary.changed_inside_git = changes.found.inside_git
        self.files |= changes.kept
        return PhaseEvent(
            name="fs_diff_captured",
            action="edit",
            summary=changes.summary,
            artifacts=_change_artifacts(changes),
        )

    async def _commands(self) -> PhaseEvent:
        log = self._log
        if log is not None and log.lost:
            why = log.trouble or "they were cut short, or are no calls"
            self._record_loss(f"{number(log.lost, 'call')} of {COMMANDS_FILE}: {why}")
        if log is not None and not log.is_ours:
            self._record_loss(f"{COMMANDS_FILE} {NOT_OURS}")
        if log is not None and log.is_passed_by:
            self._record_loss(f"calls of wrapped programs: {PASSED_BY}")
        if log is not None and log.is_made:
            self.files[COMMANDS_FILE] = log.kept()
        vouched = self._count_verified()
        if log is None or not log.count or not log.is_ours:
            self._no_commands = self._why_no_commands()
            return PhaseEvent(name="commands_observation_unavailable", summary=self._no_commands)
        self.summary.commands = log.count
        categories = sorted(log.categories)
        note = "Only wrapped programs called by name through PATH are seen."
        artifact = file_artifact(
            "command_log",
            COMMANDS_FILE,
            log.kept(),
            note,
            observed_count=log.count,
            vouched_count=vouched,
            categories_seen=categories,
            lost_calls=log.lost,
        )
        seen = f"observed_count={log.count} vouched_count={vouched}"
        summary = f"{seen} categories_seen={','.join(categories)}. {note}"
        if past := self._ran_past():
            summary += f" The kernel saw programs that have a wrapper run without it: {past}."
        action: ActionType = "run_tests" if "test" in categories else "command"
        return PhaseEvent(
            name="commands_observed", action=action, summary=summary, artifacts=[artifact]
        )

    def _why_no_commands(self) -> str:
        log = self._log
        if not self._settings.wrap:
            return "wrappers disabled"
        if log is None:
            return "unknown: the wrappers need bash, and there is none"
        if not log.is_ours:
            return f"unknown: the log {NOT_OURS}"
        if log.is_passed_by:
            return f"unknown: {PASSED_BY}"
        if log.unwritten:
            return f"permission issue or full disk: {log.unwritten} calls could not be written"
        if log.lost:
            return f"unknown: {log.lost} calls were cut short, or are no calls"
        if self._seen is not None and self._seen.wrappers:
            return f"unknown: {number(self._seen.wrappers, 'wrapper')} ran and told nothing"
        if past := self._ran_past():
            return f"unknown: wrapped programs ran past the wrappers: {past}"
        self.summary.commands = 0
        if self._seen is None or not self._seen.is_complete:
            return f"unknown: no wrapper was called, {UNWATCHED}"
        return "no wrapped binaries invoked"

    def _count_verified(self) -> int:
        """Count the lines of the command log that the kernel feed confirms. Where the kernel feed
        saw everything, it is said what it did not see."""
        log, seen = self._log, self._seen
        if log is None or seen is None:
            return 0
        vouched = len(seen.vouched)
        if not seen.is_complete or log.count > MOST_VOUCHED:
            return vouched
        if log.count > vouched:
            count = number(log.count - vouched, "line")
            self._record_loss(f"{count} of {COMMANDS_FILE}: no wrapper was seen to write that")
        if log.count and seen.wrappers > vouched:
            self._record_loss(f"{number(seen.wrappers - vouched, 'wrapper')} ran and told nothing")
        return vouched

    def _ran_past(self) -> str:
        """Programs that have a wrapper, and that the kernel saw without it."""
        if self._seen is None or self._log is None:
            return ""
        past = sorted(self._seen.programs.keys() & self._log.names)
        more = f" and {len(past) - _NAMED} more" if len(past) > _NAMED else ""
        return f"{', '.join(past[:_NAMED])}{more}"

    async def _evaluated(self) -> PhaseEvent:
        self._verdict = verdict = await to_thread.run_sync(
            reach_verdict,
            self._settings,
            self.files[STDOUT_FILE],
            self._changes,
            self._log,
            self._seen,
            self._no_commands,
        )
        self.evaluation = verdict.evaluation
        if verdict.declared is not None:
            self.summary.declared_denials = verdict.declared.denials
            self.summary.declared_denied_tools = verdict.declared.denied_tools
            self.summary.declared_error = verdict.declared.is_error
        self.summary.alignment = verdict.evaluation.alignment.status
        self.summary.quality = verdict.evaluation.quality.status
        self.summary.policy = verdict.evaluation.policy.status
        return PhaseEvent(
            name="evaluation_performed", summary=verdict.sentence, evaluation=verdict.evaluation
        )

    async def _finished(self) -> PhaseEvent:
        folder = self._settings.folder
        artifacts = []
        self._record_foreign_files()
        try:
            events = Beginning(self._journal.size, self._journal.sha256)
            see = self._settings.capture_policy.value
            self.summary.redacted = self._settings.capture_policy.replaced()
            summary = write_document(folder / SUMMARY_FILE, see(msgspec.to_builtins(self.summary)))
            self.files[SUMMARY_FILE] = summary
            artifacts.append(file_artifact("summary", SUMMARY_FILE, summary, "How the run went."))
            manifest = write_manifest(folder, self._settings.run_id, events, self.files)
            artifacts.append(
                file_artifact("manifest", MANIFEST_FILE, manifest, "Every file, with its hash.")
            )
        except OutputError as error:
            self._record_loss(str(error))
        lost = len(self.summary.incomplete)
        state = f"; incomplete: {lost}" if lost else ""
        return PhaseEvent(
            name="run_finished",
            summary=f"{self._verdict.sentence}{state}",
            artifacts=artifacts,
            evaluation=self._verdict.evaluation,
        )

    def _record_foreign_files(self) -> None:
        """What the recorder did not write is no evidence, wherever it lies."""
        settings = self._settings
        own = {*self.files, *_WRITTEN_LAST, HOME}
        if self._kernel is not None:
            own |= {*EVIDENCE_FILES}
        if settings.workspace_mode != "here":
            own.add(WORKSPACE)
        if found := foreign_files(settings.folder, own):
            self.summary.foreign_files = found[:_MOST_FOREIGN]
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            names = ", ".join(found[:_NAMED])
            self._record_loss(f"not the recorder's, and no part of the record: {names}{more}")


def _change_artifacts(changes: WorkspaceChanges) -> list[Artifact]:
    """Describe the files that hold the changes of the workspace, where they could be written."""
    found = changes.found
    if found is None:
        return []
    return [
        file_artifact(
            "diff",
            DIFF_FILE,
            changes.kept[DIFF_FILE],
            "What git can carry of the changes, for `git apply`.",
            method="git_diff",
            changed_paths=found.paths,
            changed_count=found.total,
            inside_git=found.inside_git,
            not_in_patch=found.not_in_patch,
            has_after_exit=found.has_after_exit,
            unknown=changes.first_unknown,
            unknown_count=changes.unknown,
            complete=not changes.trouble,
        ),
        file_artifact(
            "changes",
            CHANGES_FILE,
            changes.kept[CHANGES_FILE],
            "Every changed path, with its hashes.",
        ),
    ]


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
    relays: Sequence[Relay | None],
    events: bool = False,
    probes: StartedPlan | None = None,
    kernel: KernelRecorder | None = None,
    timeout: float = 30.0,
    on_progress: Callable[[int], None] = lambda size: None,
    on_warning: Callable[[str], None] = lambda sentence: None,
) -> Observed:
    """Record a run into its folder; with `events`, send its events to stdout as well."""
    troubles: list[str] = []
    findings: list[Finding] = []
    measured = None
    if probes is not None:
        from stream.observe.probes import ProbeRecorder

        measured = ProbeRecorder(settings, probes, interrupts, timeout)
    sinks: list[Sink] = [_FindingSink(findings)]
    if events:
        from stream.sinks.ndjson import Ndjson

        sinks.append(LenientSink(Ndjson(STDOUT, (EVENTS,)), "events to stdout", troubles))
    with closing(
        WorkspaceCapture(
            settings.workspace,
            settings.folder,
            mode=settings.workspace_mode,
            source=settings.source,
            leave_out=settings.leave_out,
            redactor=settings.capture_policy.contents,
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
    matrix = None if measured is None else measured.result()
    return Observed(phases.summary, findings, troubles, phases.evaluation, matrix, phases.files)


class _FindingSink(Struct):
    """What the run itself broke, the first of it."""

    kinds = (FINDINGS,)

    found: list[Finding]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Write]:
        """Give a writer that keeps the first findings."""

        async def write(batch: Batch[Finding]) -> None:
            """Keep findings, as long as there is room for them."""
            self.found.extend(batch.items[: MOST_FINDINGS - len(self.found)])

        yield write
