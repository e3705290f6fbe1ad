"""stream observe"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from stream.cli.running import ListsCommand, run_prepared, say, seconds, split_words

if TYPE_CHECKING:
    from stream.plan import Begun
    from stream.recorder.guard import Guard
    from stream.recorder.recording import Recording

GRACE = 5.0


class _ObserveCommand(ListsCommand):
    lists = ("--constraint", "--wrap", "--cap")


def register(app: typer.Typer) -> None:
    app.command(
        cls=_ObserveCommand,
        context_settings={"allow_interspersed_args": False},
        options_metavar="[OPTIONS] --",
    )(observe)


def _grace(value: float) -> float:
    if not value >= 0:
        raise typer.BadParameter(f"{value:g} is not in the range x>=0")
    return value


def observe(
    command: list[str] = typer.Argument(..., metavar="CMD…", help="The agent's command line."),
    scenario: Path | None = typer.Option(
        None, metavar="FILE|DIR", help="What the agent was asked: scenario.md, or its folder."
    ),
    parameters: Path | None = typer.Option(
        None, metavar="FILE", help="parameters.json. Default: the one beside the scenario."
    ),
    request: str | None = typer.Option(
        None, metavar="TEXT|@FILE", help="What the agent was asked, where no scenario says it."
    ),
    constraint: list[str] = typer.Option(
        [], metavar="ID…", help="Check these constraints (too): see above."
    ),
    workspace: Literal["copy", "empty", "here"] | None = typer.Option(
        None, help="Where the agent works: in a copy (default), in an empty folder, or in place."
    ),
    source: Path = typer.Option(
        Path(), metavar="DIR", help="The folder to copy, or to work in. Default: this one."
    ),
    capture: Literal["full", "redacted", "hashed"] | None = typer.Option(
        None, help="What is written down: everything (default), no secrets, or digests."
    ),
    environment: Literal["local", "ci", "staging", "prod", "unknown"] = typer.Option(
        "unknown", help="Declared, and only recorded."
    ),
    runs: Path = typer.Option(Path("runs"), metavar="DIR", help="Where run folders go."),
    run_id: str | None = typer.Option(None, metavar="ID", help="Default: made from the time."),
    wrap: list[str] = typer.Option(
        [], metavar="NAME…", help="Log calls of these programs, too. Usual ones are logged anyway."
    ),
    no_wrap: bool = typer.Option(False, "--no-wrap", help="Leave PATH alone: log no calls."),
    timeout: float | None = typer.Option(
        None, metavar="S", help="End the run after so many seconds, and keep what there is."
    ),
    grace: float = typer.Option(
        GRACE,
        metavar="S",
        callback=_grace,
        help="What processes that outlive the agent have, before they are ended.",
    ),
    matrix: bool = typer.Option(
        False, "--matrix", help="Run the probes in the same workspace meanwhile."
    ),
    cap: list[str] = typer.Option(
        [], metavar="ID…", help="With --matrix: the probes of these capabilities only."
    ),
    probes: Path | None = typer.Option(
        None, metavar="DIR", help="With --matrix: a folder of probe scripts, instead of ours."
    ),
    events: str | None = typer.Option(
        None, metavar="-", help="Write the events to stdout, instead of the agent's output."
    ),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Say only what went wrong."),
) -> None:
    """Record an agent's command line as a black box.

    Everything after `--` is the agent's. Its output is passed on byte for byte, and its exit
    code is that of this command. What happened lies in RUNS/RUN_ID: nine events
    (events.jsonl), the output, the diff that it made, the commands that it called, hashes of
    all of it.

    \b
      stream observe -- claude -p "add a test for parse()" --dangerously-skip-permissions
      stream observe --scenario tasks/json-report --capture redacted -- claude -p "$(cat prompt)"
      stream observe --workspace here --constraint scope.no_ci_changes -- ./agent.sh
      stream observe --events - -- ./agent.sh | stream check - --profile agents

    Its stdin is ours, and empty on a terminal: an agent that asks a person is not for this.

    The agent works in a copy of this folder, so that nothing here changes: `stream apply RUN`
    takes its changes over. When it has ended, what it started has --grace seconds more; what
    changes until then is recorded. SIGINT, SIGTERM and SIGHUP reach the agent, and the run is
    recorded to its end; a second one a second time, the third ends everything.

    \b
    Constraints, each checked by a written rule, with evidence:
      output.json_only        the answer is JSON and nothing else
      style.no_emojis         no emoji in the answer or in an added line
      scope.no_ci_changes     no file of a CI configuration is changed
      quality.tests_required  a change of code comes with a change of tests

    Exit code: the command's own (128 + signal; 127 if there is no such command, 126 if it
    cannot be run), or 2 for wrong use, before anything was started.
    """
    if events not in (None, "-"):
        raise typer.BadParameter("--events knows one place: -")
    if no_wrap and wrap:
        raise typer.BadParameter("--wrap and --no-wrap do not go together")
    for flag, value in (("--cap", cap), ("--probes", probes)):
        if value and not matrix:
            raise typer.BadParameter(f"{flag} is for --matrix")
    if timeout is not None:
        seconds(timeout)
    from stream.recorder.interrupts import Interrupts

    interrupts = Interrupts()

    def pass_on(signal: int) -> None:
        interrupts.pass_on(signal)
        if not quiet:
            count = len(interrupts.numbers)
            more = {1: "; two more end everything", 2: "; one more ends everything"}.get(count, "")
            say(f"stream: signal {signal} is passed on{more}")

    @contextmanager
    def prepare() -> Iterator[tuple[Recording, Guard, Begun | None]]:
        from stream.recorder.guard import post_guard

        with ExitStack() as stack:
            # First: it gets ready while the rest is loaded, and must not be taken for an orphan.
            guard = post_guard()
            stack.callback(guard.close)
            recording = _recording(
                command,
                request=request,
                scenario=scenario,
                parameters=parameters,
                constraints=split_words(constraint, "--constraint"),
                mode=workspace,
                source=source,
                capture=capture,
                environment=environment,
                runs=runs,
                run_id=run_id,
                names=None if no_wrap else split_words(wrap, "--wrap"),
                grace=grace,
                timeout=timeout,
            )
            try:
                begun = None
                if matrix:
                    words = split_words(cap, "--cap")
                    begun = stack.enter_context(_probes(recording, words, probes))
            except BaseException:
                shutil.rmtree(recording.folder, ignore_errors=True)
                raise
            guard.tell(recording.outfit())
            if not quiet:
                from stream.cli.closing import announce

                announce(recording)
            yield recording, guard, begun

    async def work(prepared: tuple[Recording, Guard, Begun | None]) -> int:
        from stream.cli.closing import conclude
        from stream.cli.progress import Copying
        from stream.observe import run_observe
        from stream.recorder.tee import Relay

        recording, guard, begun = prepared
        progress = Copying()
        try:
            observed = await run_observe(
                recording,
                guard,
                interrupts,
                relays=(None if events else Relay(1), Relay(2)),
                events=events is not None,
                probes=begun,
                on_progress=progress,
                on_warning=lambda sentence: say(f"stream: {sentence}"),
            )
        finally:
            progress.clear()
        conclude(observed, recording, quiet=quiet)
        return observed.summary.exit_code

    run_prepared(prepare, work, pass_on=pass_on)


def _recording(
    command: list[str],
    *,
    request: str | None,
    scenario: Path | None,
    parameters: Path | None,
    constraints: list[str],
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
        from stream.recorder.wrappers import DEFAULT_NAMES

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
        agent=identify(command[0]),
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


def _probes(
    recording: Recording, capabilities: list[str], folder: Path | None
) -> AbstractContextManager[Begun]:
    from stream.cli.matrix import affordable_jobs, default_jobs
    from stream.plan import Request, begin, make_plan

    is_new = recording.workspace_mode != "here"
    if is_new:
        recording.workspace.mkdir()  # a plan is for a folder that is there
    request = Request(capabilities=capabilities, folder=folder, workspace=recording.workspace)
    plan = make_plan(request)
    if is_new:
        recording.workspace.rmdir()
    return begin(plan, min(default_jobs(), affordable_jobs()))
