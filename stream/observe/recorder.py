"""Somebody else who watches a run: what a kernel feed must be asked and told.

The evaluation of a run, from what was recorded of it.

One agent run, from its first event to its ninth.

The agent is a black box: nothing is asked of it, nothing is changed for it but its PATH and how
far up git looks for a repository, and what it says about itself is kept apart from what was
seen. Each event is on the disk before what it announces goes on."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
from anyio import to_thread
from msgspec import Struct

from stream.errors import OutputError, StreamError, number, reporting
from stream.files.append import NOT_OURS, AppendFile, RecordedFile, is_still
from stream.observe.agent_output import Declared, read_declared
from stream.observe.agents import Version, find_version
from stream.observe.constraints import ChangedPath, Command, Diff, evaluate
from stream.observe.settings import (
    EventTrace,
    RunSettings,
    file_artifact,
    foreign_files,
    order_of,
    value_artifact,
    write_document,
    write_manifest,
)
from stream.pipeline import Batch, Out
from stream.process.cgroup import Cgroup
from stream.process.guard import Guard, Interrupts
from stream.process.machine import Clock
from stream.process.messages import Start
from stream.process.table import ON_LINUX
from stream.records.artifacts import EVIDENCE_FILES, HOME
from stream.records.control import EVENTS
from stream.records.decision import ActionType, Artifact, Evaluation, EventName
from stream.records.run import (
    BOUNDARY_FILE,
    CHANGES_FILE,
    COMMANDS_FILE,
    DESCRIPTOR_FILE,
    DIFF_FILE,
    EVENTS_FILE,
    MANIFEST_FILE,
    METADATA_FILE,
    STDERR_FILE,
    STDOUT_FILE,
    SUMMARY_FILE,
    WORKSPACE,
    Beginning,
    CommandRecord,
    RunSummary,
    decode_change,
)
from stream.redaction.output import OutputFile
from stream.sources.agent import CommandEnding, Invocation, Relay, prepare_guard
from stream.sources.wrappers import MOST_VOUCHED, PASSED_BY, CommandLog, ObservedCommands
from stream.workspace.capture import WorkspaceCapture, WorkspaceChanges


class RunWatcher(Protocol):
    """Nothing that it raises or loses costs the run: it says so in the end."""

    async def begin(
        self, guard: Guard, cgroup: Cgroup | None, order: Start, log: CommandLog | None
    ) -> Start:
        """Before the command's first instruction. The order, with what it needs of it."""

    def hear(self, block: bytes, arrived: int) -> None:
        """What the command wrote to its stdout, and when it came. In a thread."""

    @property
    def kept(self) -> Mapping[str, RecordedFile]:
        """The files that it wrote, when it has finished."""

    @property
    def commands(self) -> ObservedCommands | None:
        """What it saw of the calls of wrapped programs, when it has finished. None: nothing."""

    async def finish(self, ending: CommandEnding, summary: RunSummary) -> list[str]:
        """When nobody of the tree is left: puts down what it saw, and says what is missing."""


_decode_command = msgspec.json.Decoder(CommandRecord).decode


class Verdict(Struct):
    evaluation: Evaluation
    declared: Declared | None  #: None: it was not kept
    changed: int | None

    @property
    def statuses(self) -> str:
        one = self.evaluation
        return (
            f"alignment={one.alignment.status} quality={one.quality.status}"
            f" policy={one.policy.status}"
        )

    @property
    def sentence(self) -> str:
        """What must not be missed, whatever the exit code and the answer say."""
        parts = [self.statuses]
        if self.declared is not None and self.declared.denials:
            tools = ",".join(self.declared.denied_tools)
            parts.append(f"declared_permission_denials={self.declared.denials} ({tools})")
        if self.declared is not None and self.declared.is_error:
            parts.append("declared_error=yes")
        changed = "unknown" if self.changed is None else self.changed
        parts.append(f"changed_paths={changed}" + (": nothing was changed" * (changed == 0)))
        return "; ".join(parts)


def reach_verdict(
    recording: RunSettings,
    stdout: RecordedFile,
    changes: WorkspaceChanges,
    log: CommandLog | None,
    seen: ObservedCommands | None = None,
    why_none: str = "",
) -> Verdict:
    """Reads the artifacts, a line at a time. `seen`: what the kernel says of the command log.
    `why_none`: where it has no line."""
    folder = recording.folder
    declared = None
    if recording.disclosure.mode != "hashed":
        declared = (
            read_declared(folder / STDOUT_FILE, stdout.sha256)
            if stdout.is_ours
            else Declared(mode="unreadable", reason=NOT_OURS)
        )
    seen = seen or ObservedCommands(is_complete=False)
    why_none, commands = _commands(folder / COMMANDS_FILE, log, seen, why_none)
    evaluation = evaluate(
        recording.scenario.constraints,
        Diff(
            _changed(folder / CHANGES_FILE) if changes.found is not None else [],
            folder / DIFF_FILE,
            changes.found.patch.sha256 if changes.found is not None else "unknown",
            changes.is_complete,
        ),
        commands,
        declared,
        recording.disclosure.mode,
        no_commands=why_none,
        unwrapped_tests=sorted(seen.tests),
    )
    return Verdict(evaluation, declared, changes.found.total if changes.found else None)


def _changed(path: Path) -> Iterator[ChangedPath]:
    """Those that count: a folder that came with its files is not one more."""
    with path.open("rb") as lines:
        for line in lines:
            change = decode_change(line)
            yield ChangedPath(change.path, change.change)


def _commands(
    path: Path, log: CommandLog | None, seen: ObservedCommands, why_none: str
) -> tuple[str, Iterator[Command] | None]:
    """(why there is nothing to be said about them, them)."""
    if log is None:
        return "the wrappers were off", None
    if not log.is_ours:
        return f"the log {NOT_OURS}", None
    if not log.count:
        return why_none, None
    tests = (one for one in _called(path, seen) if one.category == "test")
    if not any(one.is_vouched for one in tests):
        if log.is_passed_by:
            return PASSED_BY, None
        if log.unwritten:
            return f"lost: {number(log.unwritten, 'call')}", None
    return "", _called(path, seen)


def _called(path: Path, seen: ObservedCommands) -> Iterator[Command]:
    with path.open("rb") as lines:
        for index, line in enumerate(lines):
            try:
                record = _decode_command(line)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise OutputError(f"{path}: {error}") from None
            yield Command(record.name, record.category, record.time, index in seen.vouched)


#: Where one of these could not be written, that was said.
_WRITTEN_LAST = (DIFF_FILE, CHANGES_FILE, SUMMARY_FILE, MANIFEST_FILE)
UNWATCHED = (
    "and without a kernel feed that is complete nobody saw whether wrapped programs ran past the"
    " wrappers"
)
_MOST_FOREIGN = 1000  #: files that the summary names, and
_NAMED = 5  #: those of them that a sentence does


class AgentSource:
    """Sends the events that it has written. When it ends, so has the agent's tree."""

    def __init__(
        self,
        recording: RunSettings,
        workplace: WorkspaceCapture,
        guard: Guard,
        interrupts: Interrupts,
        *,
        relays: Sequence[Relay | None],
        has_place: Callable[[], None] = lambda: None,
        is_alone: Callable[[], Awaitable[None]] | None = None,
        beside: Sequence[str] = (),
        boundary: Callable[[], tuple[int, RecordedFile | None] | None] = lambda: None,
        descriptor: Callable[[], RecordedFile | None] = lambda: None,
        witness: RunWatcher | None = None,
    ) -> None:
        self.summary = RunSummary(run_id=recording.run_id)
        self._recording = recording
        self._workplace = workplace
        self._guard = guard
        self._interrupts = interrupts
        self._relays = relays
        self._has_place = has_place  # called when the workspace is there
        self._is_alone = is_alone  # waits until nobody else works in it
        self._beside = beside  # what is lost of what they recorded, once that is known
        self._descriptor = descriptor  # that these need, where it is not the bundled one
        self._boundary = boundary  # how many of them they recorded, and where; None: nobody else
        self._witness = witness
        self.evaluation: Evaluation | None = None
        self._log: CommandLog | None = None
        self._kept: dict[str, RecordedFile] = {}  # by file of the record
        self._no_commands = ""  # why none were observed
        self._seen: ObservedCommands | None = None  # by the kernel, of calls of wrapped programs
        self._journal: AppendFile
        self._out: Out
        self._trace: EventTrace
        self._version = Version()

    async def run(self, out: Out, /) -> None:
        recording = self._recording
        self._out = out
        with reporting(recording.folder, OutputError, is_folder=True):
            journal = self._journal = AppendFile(recording.folder / EVENTS_FILE).open()
        try:
            clock = Clock.start()
            self._version = await find_version(recording.agent, recording.program_place)
            self._trace = recording.trace(self._version, clock, journal.append_lines)
            with reporting(recording.folder, OutputError, is_folder=True):
                await self._begin(clock)
                ending, kept = await self._invoke()
            self.summary = ending.into(self.summary)
            try:
                await self._account(ending, kept)
            except (StreamError, OSError) as error:  # the agent's exit code must not be lost by it
                self._lose(str(error))
        finally:
            if journal.waiting:
                self._lose(f"{number(len(journal.waiting), 'event')}: {journal.trouble}")
            journal.close()
            if self._log is not None:
                self._log.close()
            self._guard.close()
            shutil.rmtree(recording.wrappers_folder, ignore_errors=True)  # a killed guard's

    async def _tell(
        self,
        name: EventName,
        action: ActionType,
        summary: str,
        artifacts: Sequence[Artifact] = (),
        **more: Any,
    ) -> None:
        line = self._trace.add(name, action, summary, artifacts, **more)
        await self._out.send(Batch(EVENTS, [line]))

    def _lose(self, what: str) -> None:
        self.summary.incomplete.append(self._recording.disclosure.value(what))

    async def _begin(self, clock: Clock) -> None:
        recording = self._recording
        document = recording.metadata(self._version, clock)
        metadata = write_document(recording.folder / METADATA_FILE, document)
        self._kept[METADATA_FILE] = metadata
        await self._tell(
            "run_started",
            "other",
            f"run_id={recording.run_id} scenario_id={recording.scenario.id}",
            [file_artifact("metadata", METADATA_FILE, metadata, "What the run was told to be.")],
        )
        prepared = await self._workplace.prepare()
        await self._tell(
            "workspace_prepared",
            "other",
            prepared.summary,
            [value_artifact("workspace", prepared.summary, prepared.facts)],
        )
        self._has_place()

    async def _invoke(self) -> tuple[CommandEnding, list[RecordedFile]]:
        """Everything from the agent's start until nobody of its tree is left."""
        recording = self._recording
        wrappers, cgroup = await prepare_guard(self._guard, recording.wrappers_folder)
        if wrappers is not None:
            self._log = CommandLog(
                recording.folder / COMMANDS_FILE,
                wrappers,
                recording.disclosure,
                self._trace.clock,
            )
        outputs = [
            OutputFile(recording.folder / name, recording.disclosure)
            for name in (STDOUT_FILE, STDERR_FILE)
        ]
        invocation = Invocation(
            self._guard,
            self._interrupts,
            cgroup,
            outputs=outputs,
            relays=self._relays,
            log=self._log,
            on_exit=self._tell_exit,
            on_stdout=None if self._witness is None else self._witness.hear,
        )
        order = order_of(recording, wrappers)
        if self._witness is not None:
            order = await self._witness.begin(self._guard, cgroup, order, self._log)
        summary = f"verbose={'yes' if recording.is_verbose else 'no'} cwd={recording.workspace}"
        facts = recording.process_facts(self._version, self._trace.now())
        await self._tell(
            "agent_invoked", "other", summary, [value_artifact("process", summary, facts)]
        )
        await invocation.run(order)
        kept = await to_thread.run_sync(lambda: [output.finish() for output in outputs])
        self._kept |= zip((STDOUT_FILE, STDERR_FILE), kept, strict=True)
        return invocation.ending, kept

    async def _account(self, ending: CommandEnding, kept: list[RecordedFile]) -> None:
        """For everything that the agent did, once nobody of its tree is left."""
        await self._tell_outputs(ending, kept)
        if self._witness is not None:
            for trouble in await self._witness.finish(ending, self.summary):
                self._lose(trouble)
            self._kept |= self._witness.kept
            self._seen = self._witness.commands
        if self._is_alone is not None:
            await self._is_alone()
        for trouble in self._beside:
            self._lose(trouble)
        if (boundary := self._boundary()) is not None:
            self.summary.boundary_objects, kept_objects = boundary
            self._kept |= {} if kept_objects is None else {BOUNDARY_FILE: kept_objects}
        if (kept_descriptor := self._descriptor()) is not None:
            self._kept[DESCRIPTOR_FILE] = kept_descriptor
        changes = await self._tell_changes(ending)
        await self._tell_commands()
        verdict = await self._tell_verdict(kept[0], changes)
        await self._finish(verdict)

    async def _tell_exit(self, ending: CommandEnding) -> None:
        """As soon as the command has ended; its tree may live on."""
        summary = ending.sentence()
        artifact = value_artifact("process", summary, ending.facts())
        await self._tell("agent_completed", "other", summary, [artifact])
        if not self._journal.waiting:  # by the clock of files, which is coarser than ours
            ending.ended_wall = self._journal.changed_at

    async def _tell_outputs(self, ending: CommandEnding, kept: list[RecordedFile]) -> None:
        artifacts = []
        files = (("stdout_log", STDOUT_FILE), ("stderr_log", STDERR_FILE))
        for (kind, name), one in zip(files, kept, strict=True):
            what = "Declared by the agent: nothing in it was observed."
            if self._recording.disclosure.mode == "hashed":
                what += " Only its digest was kept."
            artifact = file_artifact(kind, name, one, what, non_normative=True, total=one.total)
            artifacts.append(artifact)
            if one.lost:
                self._lose(f"{one.lost} bytes of {name}: {one.why}")
            if not one.is_ours:
                self._lose(f"{name} {NOT_OURS}")
        if not self._journal.is_as_written():
            self._lose(f"{EVENTS_FILE} {NOT_OURS}")
        if not is_still(self._recording.folder / METADATA_FILE, self._kept[METADATA_FILE]):
            self._lose(f"{METADATA_FILE} {NOT_OURS}")
        after = ending.aftermath()
        if ending.is_blind and ON_LINUX:  # elsewhere that is all there can be
            self._lose("processes that left the command's group: /proc does not show them")
        if ending.stops:
            times, seconds = number(len(ending.stops), "time"), sum(ending.stops) / 1e9
            self._lose(
                f"the recorder was stopped {times}, for {seconds:.1f} s in all, until it was woken:"
                " what happened meanwhile was heard of late"
            )
        if ending.lost_guard:
            self._lose("the process that watched the agent was killed: what it saw is not known")
        self.summary.stdout_bytes, self.summary.stderr_bytes = (one.total for one in kept)
        summary = f"stdout={kept[0].total} bytes stderr={kept[1].total} bytes; {after}"
        artifacts.append(value_artifact("process", after, ending.facts()))
        await self._tell(
            "artifacts_captured", "other", summary, artifacts, output_raw="captured_as_artifact"
        )

    async def _tell_changes(self, ending: CommandEnding) -> WorkspaceChanges:
        changes = await self._workplace.compare(ending.outlived_since)
        if changes.trouble:
            self._lose(changes.trouble)
        if changes.found is not None:
            self.summary.changed_paths = changes.found.total
            self.summary.changed_after_exit = changes.found.has_after_exit
            self.summary.changed_inside_git = changes.found.inside_git
        self._kept |= changes.kept
        await self._tell("fs_diff_captured", "edit", changes.summary, _change_artifacts(changes))
        return changes

    async def _tell_commands(self) -> None:
        log = self._log
        if log is not None and log.lost:
            why = log.trouble or "they were cut short, or are no calls"
            self._lose(f"{number(log.lost, 'call')} of {COMMANDS_FILE}: {why}")
        if log is not None and not log.is_ours:
            self._lose(f"{COMMANDS_FILE} {NOT_OURS}")
        if log is not None and log.is_passed_by:
            self._lose(f"calls of wrapped programs: {PASSED_BY}")
        if log is not None and log.is_made:
            self._kept[COMMANDS_FILE] = log.kept()
        vouched = self._count_vouched()
        if log is None or not log.count or not log.is_ours:
            self._no_commands = self._why_no_commands()
            await self._tell("commands_observation_unavailable", "other", self._no_commands)
            return
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
        await self._tell("commands_observed", action, summary, [artifact])

    def _why_no_commands(self) -> str:
        log = self._log
        if not self._recording.wrap:
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

    def _count_vouched(self) -> int:
        """Of the lines of the command log. Where the kernel feed saw everything, it is said what it
        did not see."""
        log, seen = self._log, self._seen
        if log is None or seen is None:
            return 0
        vouched = len(seen.vouched)
        if not seen.is_complete or log.count > MOST_VOUCHED:
            return vouched
        if log.count > vouched:
            count = number(log.count - vouched, "line")
            self._lose(f"{count} of {COMMANDS_FILE}: no wrapper was seen to write that")
        if log.count and seen.wrappers > vouched:
            self._lose(f"{number(seen.wrappers - vouched, 'wrapper')} ran and told nothing")
        return vouched

    def _ran_past(self) -> str:
        """Programs that have a wrapper, and that the kernel saw without it."""
        if self._seen is None or self._log is None:
            return ""
        past = sorted(self._seen.programs.keys() & self._log.names)
        more = f" and {len(past) - _NAMED} more" if len(past) > _NAMED else ""
        return f"{', '.join(past[:_NAMED])}{more}"

    async def _tell_verdict(self, stdout: RecordedFile, changes: WorkspaceChanges) -> Verdict:
        verdict = await to_thread.run_sync(
            reach_verdict,
            self._recording,
            stdout,
            changes,
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
        await self._tell(
            "evaluation_performed", "other", verdict.sentence, evaluation=verdict.evaluation
        )
        return verdict

    async def _finish(self, verdict: Verdict) -> None:
        folder = self._recording.folder
        artifacts = []
        self._lose_strangers()
        try:
            events = Beginning(self._journal.size, self._journal.sha256)
            see = self._recording.disclosure.value
            self.summary.redacted = self._recording.disclosure.replaced()
            summary = write_document(folder / SUMMARY_FILE, see(msgspec.to_builtins(self.summary)))
            self._kept[SUMMARY_FILE] = summary
            artifacts.append(file_artifact("summary", SUMMARY_FILE, summary, "How the run went."))
            manifest = write_manifest(folder, self._recording.run_id, events, self._kept)
            artifacts.append(
                file_artifact("manifest", MANIFEST_FILE, manifest, "Every file, with its hash.")
            )
        except OutputError as error:
            self._lose(str(error))
        lost = len(self.summary.incomplete)
        state = f"; incomplete: {lost}" if lost else ""
        await self._tell(
            "run_finished",
            "other",
            f"{verdict.sentence}{state}",
            artifacts,
            evaluation=verdict.evaluation,
        )

    def _lose_strangers(self) -> None:
        """What the recorder did not write is no evidence, wherever it lies."""
        recording = self._recording
        own = {*self._kept, *_WRITTEN_LAST, HOME}
        if self._witness is not None:
            own |= {*EVIDENCE_FILES}
        if recording.workspace_mode != "here":
            own.add(WORKSPACE)
        if found := foreign_files(recording.folder, own):
            self.summary.foreign_files = found[:_MOST_FOREIGN]
            more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
            names = ", ".join(found[:_NAMED])
            self._lose(f"not the recorder's, and no part of the record: {names}{more}")


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
