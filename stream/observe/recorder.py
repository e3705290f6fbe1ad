"""One agent run as a source of nine events, one for each phase.

The agent is a black box: nothing is asked of it, nothing is changed for it but its PATH and how
far up git looks for a repository, and what it says about itself is kept apart from what was
seen. Each event is on the disk before it is sent, and before the next phase begins.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from anyio import Event, create_task_group, to_thread

from stream.errors import OutputError, StreamError, number, reporting
from stream.files.append import NOT_OURS, AppendFile, RecordedFile, is_file_unchanged
from stream.observe.constraints import reach_verdict
from stream.observe.events import (
    CommandReport,
    PhaseEvent,
    changes_event,
    list_first_names,
    outputs_event,
)
from stream.observe.settings import (
    RunSettings,
    file_artifact,
    make_start_order,
    value_artifact,
    write_document,
    write_manifest,
)
from stream.pipeline import Batch, Deferred, Out, Pipeline
from stream.process.guard import Guard, Interrupts
from stream.process.machine import Clock
from stream.records.control import EVENTS
from stream.records.decision import Evaluation
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
    Beginning,
    RunSummary,
)
from stream.sources.agent import AgentCommand, Relay, open_outputs, prepare_guard
from stream.sources.wrappers import CommandLog, ObservedCommands
from stream.workspace.capture import WorkspaceCapture

if TYPE_CHECKING:  # a run without a feed does without it
    from stream.observe.kernel import KernelRecorder
    from stream.observe.probes import ProbeRecorder

#: Where one of these could not be written, that was said.
_WRITTEN_LAST = (DIFF_FILE, CHANGES_FILE, SUMMARY_FILE, MANIFEST_FILE)
_MOST_FOREIGN = 1000  #: files that the summary names


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
        self._clock = Clock.now()
        self._version = await settings.find_agent_version()
        self._trace = settings.start_trace(self._version, self._clock, self._journal.append_lines)
        async with create_task_group() as tasks:
            with reporting(settings.folder, OutputError, is_folder=True):
                await self._send_phase_event(await self._run_started(), out)
                await self._send_phase_event(await self._workspace_prepared(), out)
                tasks.start_soon(self._run_capture_pipeline)
                await self._send_phase_event(await self._agent_invoked(), out)
                self._is_invoked.set()
                await self._send_phase_event(await self._agent_completed(), out)
                await self._is_captured.wait()
            try:
                for phase in (
                    self._outputs_captured,
                    self._workspace_compared,
                    self._commands_reported,
                    self._run_evaluated,
                    self._run_finished,
                ):
                    await self._send_phase_event(await phase(), out)
            except (StreamError, OSError) as error:
                self._record_loss(str(error))

    async def _send_phase_event(self, event: PhaseEvent, out: Out) -> None:
        """Write the event of a phase into the run's trace, and send its line on."""
        line = self._trace.add_event(
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
        self.summary.incomplete.append(self._settings.capture_policy.redact_value(what))

    async def _run_started(self) -> PhaseEvent:
        """Write the run's metadata, and announce the run."""
        settings = self._settings
        document = settings.run_metadata(self._version, self._clock)
        metadata = write_document(settings.folder / METADATA_FILE, document)
        self.files[METADATA_FILE] = metadata
        what = "What the run was told to be."
        return PhaseEvent(
            name="run_started",
            summary=f"run_id={settings.run_id} scenario_id={settings.scenario.id}",
            artifacts=[file_artifact("metadata", METADATA_FILE, metadata, what)],
        )

    async def _workspace_prepared(self) -> PhaseEvent:
        """Make the agent's workspace ready, and take its snapshot."""
        prepared = await self._workspace.prepare()
        return PhaseEvent(
            name="workspace_prepared",
            summary=prepared.summary,
            artifacts=[value_artifact("workspace", prepared.summary, prepared.facts)],
        )

    async def _agent_invoked(self) -> PhaseEvent:
        """Get everything ready that records the command, which starts with the next phase."""
        settings = self._settings
        wrappers, cgroup = await prepare_guard(self._guard, settings.wrappers_folder)
        if wrappers is not None:
            self._log = CommandLog(
                settings.folder / COMMANDS_FILE, wrappers, settings.capture_policy, self._clock
            )
        self._outputs = open_outputs(settings.folder, settings.capture_policy)
        order = make_start_order(settings, wrappers)
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

    async def _run_capture_pipeline(self) -> None:
        """Run the one pipeline of everything that records while the agent runs, to its end. Probes
        run from the start; the agent does once everything that watches it is there."""
        parts = [part for part in (self._kernel, self._probes) if part is not None]
        agent = Deferred(self._is_invoked, lambda: self._agent)
        sources = (agent, *(source for part in parts for source in part.sources()))
        transformers = [one for part in parts for one in part.transformers()]
        sinks = [sink for part in parts for sink in part.sinks()]
        await Pipeline(sources).through(*transformers).into(*sinks)
        self._is_captured.set()

    async def _agent_completed(self) -> PhaseEvent:
        """Wait for the end of the agent's command; its process tree may live on."""
        await self._agent.exited.wait()
        summary = self._agent.ending.ending_sentence()
        artifact = value_artifact("process", summary, self._agent.ending.ending_facts())
        return PhaseEvent(name="agent_completed", summary=summary, artifacts=[artifact])

    async def _outputs_captured(self) -> PhaseEvent:
        """Record the agent's outputs, and what the kernel feed and the probes saw, once nobody of
        the agent's process tree is left."""
        self.summary = self._agent.ending.add_to_summary(self.summary)
        kept = await to_thread.run_sync(lambda: [output.finish() for output in self._outputs])
        self.files |= zip((STDOUT_FILE, STDERR_FILE), kept, strict=True)
        event = outputs_event(
            self._agent.ending,
            kept,
            self._record_loss,
            is_hashed=self._settings.capture_policy.mode == "hashed",
        )
        self.summary.stdout_bytes, self.summary.stderr_bytes = (one.total for one in kept)
        if not self._journal.is_as_written():
            self._record_loss(f"{EVENTS_FILE} {NOT_OURS}")
        if not is_file_unchanged(self._settings.folder / METADATA_FILE, self.files[METADATA_FILE]):
            self._record_loss(f"{METADATA_FILE} {NOT_OURS}")
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
            self.files |= self._probes.recorded_files
        return event

    async def _workspace_compared(self) -> PhaseEvent:
        """Record what the agent changed in its workspace."""
        changes = await self._workspace.compare(self._agent.ending.outlived_since)
        self._changes = changes
        if changes.trouble:
            self._record_loss(changes.trouble)
        if changes.found is not None:
            self.summary.changed_paths = changes.found.total
            self.summary.changed_after_exit = changes.found.has_after_exit
            self.summary.changed_inside_git = changes.found.inside_git
        self.files |= changes.kept
        return changes_event(changes)

    async def _commands_reported(self) -> PhaseEvent:
        """Report the commands that the agent called through wrappers."""
        log = self._log
        report = CommandReport(
            log, self._seen, self.summary, self._record_loss, is_wrapped=bool(self._settings.wrap)
        )
        event = report.commands_event()
        self._no_commands = report.no_commands
        if log is not None and log.has_records:
            self.files[COMMANDS_FILE] = log.recorded_file()
        return event

    async def _run_evaluated(self) -> PhaseEvent:
        """Evaluate the run against its constraints, and state the verdict in its summary."""
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
            name="evaluation_performed",
            summary=verdict.verdict_sentence,
            evaluation=verdict.evaluation,
        )

    async def _run_finished(self) -> PhaseEvent:
        """Write the run's summary and its manifest."""
        folder = self._settings.folder
        artifacts = []
        self._record_foreign_files()
        try:
            events = Beginning(self._journal.size, self._journal.sha256)
            see = self._settings.capture_policy.redact_value
            self.summary.redacted = self._settings.capture_policy.count_replaced()
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
            summary=f"{self._verdict.verdict_sentence}{state}",
            artifacts=artifacts,
            evaluation=self._verdict.evaluation,
        )

    def _record_foreign_files(self) -> None:
        """Report files in the run folder that the recorder did not write: they are no evidence."""
        settings = self._settings
        recorded = {*self.files, *_WRITTEN_LAST}
        if found := settings.foreign_files(recorded, has_evidence=self._kernel is not None):
            self.summary.foreign_files = found[:_MOST_FOREIGN]
            self._record_loss(
                f"not the recorder's, and no part of the record: {list_first_names(found)}"
            )
