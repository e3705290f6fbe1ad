"""The messages of `stream observe`: where it records, how the run ended, and its archive."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from stream.cli.runner import number, print_note

if TYPE_CHECKING:
    from stream.observe.run import Observed
    from stream.observe.settings import RunSettings
    from stream.process.guard import Interrupts
    from stream.records.decision import CaptureMode
    from stream.records.run import RunSummary

_SHOWN = 5  #: processes, or types of lines


def report_run_start(recording: RunSettings) -> None:
    """Report, before the agent starts, where it works and what is recorded."""
    from stream.observe.settings import leads_out_of_folder
    from stream.records.decision import CONSTRAINTS

    where = {
        "copy": f"a copy of {recording.source}",
        "empty": "an empty folder",
        "here": f"{recording.workspace} itself",
    }[recording.workspace_mode]
    print_note(f"stream: recording into {recording.folder}; the agent works in {where}")
    if recording.scenario.remark:
        print_note(f"stream: {recording.scenario.remark}")
    if unchecked := [one.id for one in recording.scenario.constraints if one.id not in CONSTRAINTS]:
        names = ", ".join(unchecked)
        print_note(f"stream: no rule checks these constraints, they stay unknown: {names}")
    if recording.agent.known_by == "declared":
        named = f"{recording.agent.id} {recording.agent.version}".removesuffix(" unknown")
        print_note(f"stream: the agent is declared as {named}")
    for word in map(os.fsdecode, recording.argv[1:]):
        leads_out = recording.workspace_mode != "here" and leads_out_of_folder(word)
        if leads_out and os.path.lexists(word):
            print_note(
                f"stream: {word}: this path is relative to the workspace, and leads out of it"
            )
    if recording.capture_policy.mode != "full":
        print_note("stream: secrets are removed from the record, not from the workspace")


def report_run_end(observed: Observed, recording: RunSettings, *, quiet: bool) -> None:
    """Report how the run ended: what went wrong and, unless `quiet`, what it did."""
    summary = observed.summary
    for trouble in summary.incomplete:
        print_note(f"stream: the record is incomplete: {trouble}")
    for trouble in observed.troubles:
        print_note(f"stream: not passed on: {trouble}")
    for finding in observed.findings:
        print_note(f"stream: the run breaks its own contract: {finding.rule}: {finding.message}")
    if observed.matrix is not None and (observed.matrix.failed or observed.matrix.strays):
        print_note(f"stream: {number(observed.matrix.failed, 'probe')} failed")
    if summary.not_started:
        name = os.fsdecode(recording.argv[0])
        print_note(
            f"stream: {name}: not started: {summary.not_started}{_command_hint(summary, recording)}"
        )
    if quiet:
        return
    for line in (
        *_closing_lines(summary, recording.capture_policy.mode),
        *_broken_constraints(observed),
    ):
        print_note(f"stream: {line}")
    if observed.matrix is not None:
        print_note(f"stream: {number(observed.matrix.recorded, 'probe record')} in boundary.ndjson")
    folder = _short_path(recording.folder)
    if summary.changed_paths and recording.workspace_mode != "here":
        # What was not captured in full cannot be compared with what is there.
        if recording.workspace_mode == "copy" and recording.capture_policy.mode == "full":
            print_note(f"stream: to apply the changes: stream apply {folder}")
        else:
            print_note(f"stream: its changes are in {_short_path(recording.workspace)}")
    print_note(f"stream: to check the record: stream check {folder}")
    if summary.kernel_layer not in (None, "absent"):
        print_note(f"stream: and its kernel evidence: stream verify {folder}")


def _command_hint(summary: RunSummary, recording: RunSettings) -> str:
    """Return where a command that was not found was searched."""
    name = os.fsdecode(recording.argv[0])
    if recording.executable is None and summary.exit_code in (126, 127):
        if (recording.workspace / name).is_file() or Path(name).is_file():
            return f"; commands are searched on PATH: to start the file that is here, use ./{name}"
        return "; there is no such program on PATH"
    if recording.executable is None or summary.exit_code != 127:
        return ""
    if os.access(recording.workspace / recording.executable, os.X_OK):
        return "; the file exists, but its interpreter or loader does not"
    if "/" in name and not name.startswith("/"):
        return f"; neither in the workspace nor in {Path.cwd()}"
    return ""


def _closing_lines(summary: RunSummary, mode: CaptureMode) -> Iterator[str]:
    """Yield the closing lines of `stream observe`: how the agent ended and what it changed."""
    if not summary.not_started:
        ended = f"by {summary.signal}" if summary.signal else f"with exit code {summary.exit_code}"
        late = ", at its time limit" if summary.timed_out else ""
        yield f"the agent ended {ended} after {summary.duration_ms / 1000:.1f} s{late}"
    if summary.stopped:
        from stream.records.run import count_processes

        names = ", ".join(summary.stopped[:_SHOWN])
        more = count_processes(summary.stopped) - _SHOWN
        rest = f" and {more} more" if more > 0 else ""
        yield f"processes that outlived it were ended: {names}{rest}"
    if summary.declared_denials:
        tools = ", ".join(summary.declared_denied_tools)
        times = number(summary.declared_denials, "time")
        yield f"it declares that it was refused permission {times}: {tools}"
    if summary.declared_error:
        yield "it declares an error"
    changed = summary.changed_paths
    if changed is not None:
        yield f"{number(changed, 'path')} changed" if changed else "nothing was changed"
    if summary.changed_inside_git:
        yield f"{number(summary.changed_inside_git, 'path')} inside .git changed, in no patch"
    if summary.kernel_layer is not None:
        yield _kernel_layer_line(summary)
    if summary.commands:
        yield f"{number(summary.commands, 'call')} of wrapped programs"
    elif summary.commands is None:
        yield "calls of wrapped programs were not observed: see events.jsonl"
    else:
        yield "no calls of wrapped programs were seen"
    if summary.redacted or (summary.redacted is not None and mode == "redacted"):
        kinds = ", ".join(f"{count} {kind}" for kind, count in summary.redacted.items())
        total = sum(summary.redacted.values())
        yield f"{number(total, 'secret')} replaced in the record" + (f": {kinds}" if kinds else "")
    statuses = (summary.alignment, summary.quality, summary.policy)
    # Otherwise nothing was asked for and nothing stands out, or nothing ran.
    if statuses != ("unknown",) * 3 and not summary.not_started:
        yield "alignment {}, quality {}, policy {}".format(*statuses)


def _kernel_layer_line(summary: RunSummary) -> str:
    """Return how complete the kernel layer is."""
    if summary.kernel_layer == "absent":
        return "the kernel was not watched: see observation-health.json"
    seen = number(summary.kernel_events or 0, "kernel event")
    if summary.kernel_layer != "complete":
        lost = f", {summary.kernel_lost} lost" if summary.kernel_lost else ""
        return f"{seen}{lost}: not all of them, see observation-health.json"
    if not summary.tool_calls:
        return f"{seen}, none lost; {_no_calls_line(summary)}"
    calls = number(summary.tool_calls, "tool call")
    why = "" if summary.correlation == "clean" else ": see correlation-report.json"
    return f"{seen}, none lost; {calls}, bound to them: {summary.correlation}{why}"


def _no_calls_line(summary: RunSummary) -> str:
    """Say that no tool call is known, and how many lines may report some in an unknown form."""
    unknown = summary.unknown_form
    if not unknown:
        return "no tool calls were reported"
    types = ", ".join(f"{count} {kind}" for kind, count in [*unknown.items()][:_SHOWN])
    more = ", …" if len(unknown) > _SHOWN else ""
    lines = number(sum(unknown.values()), "line")
    return (
        f"no tool calls were reported in a known format: {lines} of its stdout"
        f" ({types}{more}) may report some in an unknown one"
    )


async def archive_recorded(
    recording: RunSettings,
    observed: Observed,
    target: Path,
    interrupts: Interrupts,
    *,
    quiet: bool,
    force: bool,
) -> bool:
    """Archive a finished run and return whether that worked. A signal ends only the archiving."""
    from anyio import CancelScope

    from stream.errors import StreamError, UnfinishedError
    from stream.observe.archive import archive_run

    later = f"stream archive {_short_path(recording.folder)} -o {target}"
    with CancelScope() as scope:
        interrupts.take_over_signals(lambda signal: scope.cancel())
        try:
            # What somebody else wrote into is not what was recorded: it is archived as it is.
            recorded = {} if observed.summary.incomplete else observed.files
            done = await archive_run(recording.folder, target, recorded=recorded, force=force)
        except StreamError as error:
            print_note(f"stream: not archived: {error}")
            if not isinstance(error, UnfinishedError):
                print_note(f"stream: to try again: {later}")
            return False
        if not quiet:
            print_note(f"stream: archived in {target}: {number(done.written.entries, 'file')}")
        return True
    print_note("stream: not archived: interrupted")
    print_note(f"stream: to do it now: {later}")
    return False


def _broken_constraints(observed: Observed) -> Iterator[str]:
    """Yield each constraint that does not hold, with its evidence."""
    from stream.records.decision import CONSTRAINTS

    found = observed.evaluation
    if found is None:
        return
    for check in (*(found.alignment.checks or ()), *found.quality.checks, *found.policy.checks):
        if check.status in ("warn", "fail") and check.id in CONSTRAINTS:
            yield f"{check.id}: {check.status}: {check.evidence}"


def _short_path(folder: Path) -> str:
    """Return the path relative to the current folder, where that is shorter."""
    try:
        here = Path.cwd()
    except FileNotFoundError:  # the agent has removed it
        return str(folder)
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)
