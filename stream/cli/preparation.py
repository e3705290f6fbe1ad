"""What `stream observe` makes ready before anything is started, from its command line."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from stream.plan import Begun
    from stream.recorder.recording import Recording
    from stream.sources.kernel.feeds import Choice


def check_feeds(choice: Choice, recording: Recording, ring_bytes: int) -> None:
    """Raises RequiredError where there can be no feed of this run."""
    from stream.errors import RequiredError
    from stream.sources.kernel.feeds import probe_feeds

    if reason := probe_feeds(choice, ring_bytes=ring_bytes, folder=recording.folder):
        raise RequiredError(f"--require kernel: {reason}")


def check_hooks() -> None:
    """Raises UsageError where there can be none."""
    from stream.errors import UsageError
    from stream.recorder.hooks import lacking_for_hooks

    if lacking := lacking_for_hooks():
        raise UsageError(f"--sdk hooks: there is no {' and no '.join(lacking)} on PATH")


def check_new_files(archive: Path | None, raw: Path | None, *, force: bool) -> None:
    """Raise StreamError, before a run whose archive or raw telemetry would have no place to go."""
    from stream.errors import UsageError
    from stream.sinks.places import STDOUT, check_outputs, descriptor, is_fifo, is_regular

    named = {"--archive": archive, "--raw-kernel": raw}
    targets = {flag: str(target) for flag, target in named.items() if target is not None}
    for flag, target in targets.items():
        if target != STDOUT and is_regular(target):
            continue
        if target == STDOUT or descriptor(target) == 1:
            raise UsageError(f"{flag} {target}: stdout is the agent's: name a file")
        if flag == "--archive" or not is_fifo(target):
            places = "a file" if flag == "--archive" else "a file or a fifo"
            raise UsageError(f"{flag} {target}: it goes to {places}")
    check_outputs([*targets.values()], force=force)


def make_recording(
    command: list[str],
    *,
    request: str | None,
    scenario: Path | None,
    parameters: Path | None,
    constraints: list[str],
    declared: str | None,
    mode: Literal["copy", "empty", "here"] | None,
    source: Path,
    capture: Literal["full", "redacted", "hashed"] | None,
    environment: Literal["local", "ci", "staging", "prod", "unknown"],
    runs: Path,
    run_id: str | None,
    names: list[str] | None,
    grace: float,
    timeout: float | None,
) -> Recording:
    """Everything is checked before there is a run folder."""
    from stream.errors import UsageError
    from stream.recorder.agents import identify
    from stream.recorder.disclosure import Disclosure
    from stream.recorder.recording import (
        Recording,
        check_source,
        find_program,
        make_folder,
        new_run_id,
        runs_beside,
    )
    from stream.recorder.scenario import read_scenario
    from stream.records.run import WORKSPACE
    from stream.workspace.patching import find_git

    agent = identify(command, declared)
    asked = read_scenario(scenario, parameters, request, constraints)
    place = mode or asked.workspace_mode or "copy"
    level = capture or asked.capture_mode or "full"
    censor = None
    if level != "full":
        from stream.redaction import Redactor

        censor = Redactor(os.environ)
    work = None if place == "empty" else check_source(source)
    find_git()
    wrap: list[str] = []
    if names is not None:
        from stream.records.command import DEFAULT_NAMES

        for name in names:
            if not name.isprintable():
                raise UsageError(f"--wrap {name!r}: no name of a program that can be recorded")
        wrap = [*DEFAULT_NAMES, *names]
    folder = make_folder(runs, run_id or new_run_id())
    workspace = work if place == "here" and work is not None else folder / WORKSPACE
    return Recording(
        run_id=folder.name,
        folder=folder,
        argv=[os.fsencode(word) for word in command],
        executable=find_program(command[0], work),
        agent=agent,
        agent_program=find_program(agent.program, work) if agent.program else None,
        scenario=asked,
        disclosure=Disclosure(level, censor),
        environment=environment,
        workspace_mode=place,
        workspace=workspace,
        source=work if place == "copy" else None,
        leave_out=runs_beside(folder),
        wrap=wrap,
        grace=grace,
        timeout=timeout,
    )


def begin_probes(
    recording: Recording, capabilities: list[str], folder: Path | None, boundary: str | None
) -> AbstractContextManager[Begun]:
    from stream.cli.matrix import affordable_jobs, default_jobs, mention
    from stream.plan import Request, begin, make_plan

    is_new = recording.workspace_mode != "here"
    if is_new:
        recording.workspace.mkdir()  # a plan is for a folder that is there
    request = Request(
        capabilities=capabilities,
        folder=folder,
        boundary=boundary,
        workspace=recording.workspace,
    )
    plan = make_plan(request)
    mention(plan)
    if is_new:
        recording.workspace.rmdir()
    return begin(plan, min(default_jobs(), affordable_jobs()))
