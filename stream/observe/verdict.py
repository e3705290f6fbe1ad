"""The evaluation of a run, from what was recorded of it: its answer, its changes, its commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from stream.errors import OutputError, number
from stream.files.append import NOT_OURS, RecordedFile
from stream.observe.agent_output import Declared, read_declared
from stream.observe.constraints import ChangedPath, Command, Diff, evaluate
from stream.observe.settings import RunSettings
from stream.records.decision import Evaluation
from stream.records.run import (
    CHANGES_FILE,
    COMMANDS_FILE,
    DIFF_FILE,
    STDOUT_FILE,
    CommandRecord,
    decode_change,
)
from stream.sources.wrappers import PASSED_BY, CommandLog, ObservedCommands
from stream.workspace.capture import WorkspaceChanges

_decode_command = msgspec.json.Decoder(CommandRecord).decode


class Verdict(Struct):
    evaluation: Evaluation
    declared: Declared | None  #: None: it was not kept
    changed: int | None

    @property
    def statuses(self) -> str:
        """The three statuses in one line."""
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
    if recording.capture_policy.mode != "hashed":
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
        recording.capture_policy.mode,
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
