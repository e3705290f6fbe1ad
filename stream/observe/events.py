"""The events of a run's phases: what each says, from what was recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from stream.errors import number
from stream.files.append import NOT_OURS, RecordedFile
from stream.observe.settings import file_artifact, value_artifact
from stream.process.table import ON_LINUX
from stream.records.decision import ActionType, Artifact, Evaluation, EventName
from stream.records.run import (
    CHANGES_FILE,
    COMMANDS_FILE,
    DIFF_FILE,
    STDERR_FILE,
    STDOUT_FILE,
    RunSummary,
)
from stream.sources.agent import CommandResult
from stream.sources.wrappers import MOST_VERIFIED, PASSED_BY, CommandLog, ObservedCommands
from stream.workspace.capture import WorkspaceChanges

UNWATCHED = (
    "and without a kernel feed that is complete nobody saw whether wrapped programs ran past the"
    " wrappers"
)
_NAMED = 5  #: things that a sentence names


class PhaseEvent(Struct, kw_only=True):
    """What a phase has to say: it becomes an event of the run."""

    name: EventName
    action: ActionType = "other"
    summary: str
    artifacts: Sequence[Artifact] = ()
    output_raw: Literal["captured_as_artifact"] | None = None
    evaluation: Evaluation | None = None


def list_first_names(names: Sequence[str]) -> str:
    """Name the first of several files or programs, and count the rest."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def outputs_event(
    ending: CommandResult,
    kept: Sequence[RecordedFile],
    record_loss: Callable[[str], None],
    *,
    is_hashed: bool,
) -> PhaseEvent:
    """Describe the agent's output and what became of its processes, and record what is missing."""
    artifacts = []
    files = (("stdout_log", STDOUT_FILE), ("stderr_log", STDERR_FILE))
    for (kind, name), one in zip(files, kept, strict=True):
        what = "Declared by the agent: nothing in it was observed."
        if is_hashed:
            what += " Only its digest was kept."
        artifact = file_artifact(kind, name, one, what, non_normative=True, total=one.total)
        artifacts.append(artifact)
        if one.lost:
            record_loss(f"{one.lost} bytes of {name}: {one.why}")
        if not one.is_ours:
            record_loss(f"{name} {NOT_OURS}")
    after = ending.aftermath_sentence()
    if ending.has_unseen_processes and ON_LINUX:  # elsewhere that is all there can be
        record_loss("processes that left the command's group: /proc does not show them")
    if ending.stops:
        times, seconds = number(len(ending.stops), "time"), sum(ending.stops) / 1e9
        record_loss(
            f"the recorder was stopped {times}, for {seconds:.1f} s in all, until it was woken:"
            " what happened meanwhile was heard of late"
        )
    if ending.lost_guard:
        record_loss("the process that watched the agent was killed: what it saw is not known")
    summary = f"stdout={kept[0].total} bytes stderr={kept[1].total} bytes; {after}"
    artifacts.append(value_artifact("process", after, ending.ending_facts()))
    return PhaseEvent(
        name="artifacts_captured",
        summary=summary,
        artifacts=artifacts,
        output_raw="captured_as_artifact",
    )


def changes_event(changes: WorkspaceChanges) -> PhaseEvent:
    """Describe the changes of the workspace."""
    return PhaseEvent(
        name="fs_diff_captured",
        action="edit",
        summary=changes.summary,
        artifacts=_change_artifacts(changes),
    )


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


class CommandReport(Struct):
    """What is said of the command log: an event, the losses, or why there are no commands."""

    log: CommandLog | None
    seen: ObservedCommands | None  #: by the kernel, of calls of wrapped programs
    summary: RunSummary
    record_loss: Callable[[str], None]
    is_wrapped: bool
    no_commands: str = ""  #: why none were observed

    def commands_event(self) -> PhaseEvent:
        """Give the event about the command log, and record what is missing from it."""
        log = self.log
        if log is not None and log.lost:
            why = log.trouble or "they were cut short, or are no calls"
            self.record_loss(f"{number(log.lost, 'call')} of {COMMANDS_FILE}: {why}")
        if log is not None and not log.is_unchanged:
            self.record_loss(f"{COMMANDS_FILE} {NOT_OURS}")
        if log is not None and log.is_passed_by:
            self.record_loss(f"calls of wrapped programs: {PASSED_BY}")
        verified = self._count_verified()
        if log is None or not log.count or not log.is_unchanged:
            self.no_commands = self._why_no_commands()
            return PhaseEvent(name="commands_observation_unavailable", summary=self.no_commands)
        self.summary.commands = log.count
        categories = sorted(log.categories)
        note = "Only wrapped programs called by name through PATH are seen."
        artifact = file_artifact(
            "command_log",
            COMMANDS_FILE,
            log.recorded_file(),
            note,
            observed_count=log.count,
            vouched_count=verified,
            categories_seen=categories,
            lost_calls=log.lost,
        )
        seen = f"observed_count={log.count} vouched_count={verified}"
        summary = f"{seen} categories_seen={','.join(categories)}. {note}"
        if past := self._programs_past_wrappers():
            summary += f" The kernel saw programs that have a wrapper run without it: {past}."
        action: ActionType = "run_tests" if "test" in categories else "command"
        return PhaseEvent(
            name="commands_observed", action=action, summary=summary, artifacts=[artifact]
        )

    def _why_no_commands(self) -> str:
        """Say why the command log of the run has no line."""
        log = self.log
        if not self.is_wrapped:
            return "wrappers disabled"
        if log is None:
            return "unknown: the wrappers need bash, and there is none"
        if not log.is_unchanged:
            return f"unknown: the log {NOT_OURS}"
        if log.is_passed_by:
            return f"unknown: {PASSED_BY}"
        if log.unwritten:
            return f"permission issue or full disk: {log.unwritten} calls could not be written"
        if log.lost:
            return f"unknown: {log.lost} calls were cut short, or are no calls"
        if self.seen is not None and self.seen.wrappers:
            return f"unknown: {number(self.seen.wrappers, 'wrapper')} ran and told nothing"
        if past := self._programs_past_wrappers():
            return f"unknown: wrapped programs ran past the wrappers: {past}"
        self.summary.commands = 0
        if self.seen is None or not self.seen.is_complete:
            return f"unknown: no wrapper was called, {UNWATCHED}"
        return "no wrapped binaries invoked"

    def _count_verified(self) -> int:
        """Count the lines of the command log that the kernel feed confirms. Where it saw all
        there was, the others are a loss."""
        log, seen = self.log, self.seen
        if log is None or seen is None:
            return 0
        verified = len(seen.verified)
        if not seen.is_complete or log.count > MOST_VERIFIED:
            return verified
        if log.count > verified:
            count = number(log.count - verified, "line")
            self.record_loss(f"{count} of {COMMANDS_FILE}: no wrapper was seen to write that")
        if log.count and seen.wrappers > verified:
            self.record_loss(f"{number(seen.wrappers - verified, 'wrapper')} ran and told nothing")
        return verified

    def _programs_past_wrappers(self) -> str:
        """Name programs that have a wrapper and that the kernel saw run without it."""
        if self.seen is None or self.log is None:
            return ""
        return list_first_names(sorted(self.seen.programs.keys() & self.log.names))
