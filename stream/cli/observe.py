"""stream observe

What `stream observe` makes ready before anything is started, from its command line."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from stream.cli.runner import FORCE, ListsCommand, run_prepared, say, seconds, split_words

if TYPE_CHECKING:
    from stream.matrix.plan import StartedPlan
    from stream.observe.settings import RunSettings
    from stream.process.guard import Guard
    from stream.sources.kernel.feed import Choice

GRACE = 5.0


class _ObserveCommand(ListsCommand):
    lists = ("--constraint", "--wrap", "--cap")


def register(app: typer.Typer) -> None:
    app.command(
        cls=_ObserveCommand,
        context_settings={"allow_interspersed_args": False},
        options_metavar="[OPTIONS] --",
    )(observe)


def _power(value: int) -> int:
    if not 4 <= value <= 1 << 20 or value & value - 1:
        raise typer.BadParameter(f"{value} is no power of two from 4 to {1 << 20}")
    return value


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
    agent: str | None = typer.Option(
        None,
        metavar="NAME[@VERSION]",
        help="Which agent it is, where the command does not tell: declared, and marked as such.",
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
    boundary: str | None = typer.Option(
        None,
        metavar="P",
        help="With --matrix: the boundary descriptor. Default: BOUNDARY_PATH, then defaults.json.",
    ),
    kernel: Literal["off", "auto", "ebpf", "strace"] | None = typer.Option(
        None,
        help="What the kernel says that its processes did: see above. Default: off; auto with"
        " --require.",
    ),
    require: Literal["kernel"] | None = typer.Option(
        None, help="Start nothing, and exit 40, where there can be no kernel feed."
    ),
    archive: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="Put the whole record into FILE, a tar.gz, as well, with or without --kernel.",
    ),
    force: bool = FORCE,
    policy: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="With --kernel: CloudEvents that a policy engine writes during the run, one a line."
        " What was there before does not count.",
    ),
    sdk: Literal["stream-json", "hooks", "otel"] | None = typer.Option(
        None, help="With --kernel: who tells of the agent's tool calls. Default: stream-json."
    ),
    raw_kernel: Path | None = typer.Option(
        None, metavar="FILE", help="With --kernel: the feed's raw telemetry, before normalizing."
    ),
    kernel_ring: int = typer.Option(
        16384, metavar="KIB", callback=_power, help="With eBPF: how much may wait for us."
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
      stream observe --kernel auto --archive run.tar.gz -- ./agent.sh; stream verify run.tar.gz

    Its stdin is ours, and empty on a terminal: an agent that asks a person is not for this.

    The agent works in a copy of this folder, so that nothing here changes: `stream apply RUN`
    takes its changes over. When it has ended, what it started has --grace seconds more; what
    changes until then is recorded. SIGINT, SIGTERM and SIGHUP reach the agent, and the run is
    recorded to its end; a second one a second time, the third ends everything. Once the run is
    over, one ends the writing of the archive; the record stays.

    \b
    --kernel: what really happened, in layers/ and three artifacts of the run folder
      ebpf     files opened and changed, connects, programs run: everything, or the loss is
               counted. Costs little; needs root, or CAP_BPF and CAP_PERFMON
      strace   the same for everyone, but slow; no sudo and ping beneath it
      auto     the better one of those that there are; none is recorded as none

    \b
    --sdk: who tells when a tool call began and ended; what the kernel saw in between is its
      stream-json  the agent's stdout, where that is stream-json: Claude Code's or qwen-code's
      hooks        Claude Code's hooks:
                   -- sh -c 'claude --settings "$STREAM_HOOK_SETTINGS" -p "add a test"'
      otel         its OpenTelemetry, which comes too late to tell when

    \b
    Constraints, each checked by a written rule, with evidence:
      output.json_only        the answer is JSON and nothing else
      style.no_emojis         no emoji in the answer or in an added line
      scope.no_ci_changes     no file of a CI configuration is changed
      quality.tests_required  a change of code comes with a change of tests
    Others of a scenario (id, type, rule) are recorded as well, and stay unknown.

    Exit code: the command's own (128 + signal; 127 if there is no such command, 126 if it
    cannot be run), or 2 for wrong use, before anything was started, and 40 where what was
    required cannot be had. Where only the archive failed, 1 in the place of 0.
    """
    if events not in (None, "-"):
        raise typer.BadParameter("--events knows one place: -")
    if no_wrap and wrap:
        raise typer.BadParameter("--wrap and --no-wrap do not go together")
    for flag, value in (("--cap", cap), ("--probes", probes), ("--boundary", boundary)):
        if value and not matrix:
            raise typer.BadParameter(f"{flag} is for --matrix")
    if timeout is not None:
        seconds(timeout)
    if require:
        if kernel == "off":
            raise typer.BadParameter("--require kernel and --kernel off do not go together")
        kernel = kernel or "auto"
    choice = None if kernel == "off" else kernel
    if choice is None:
        given = {"--policy": policy, "--raw-kernel": raw_kernel, "--sdk": sdk}
        for name, what in given.items():
            if what is not None:
                raise typer.BadParameter(f"{name} is for --kernel")
    from stream.process.guard import Interrupts

    interrupts = Interrupts()

    def pass_on(signal: int) -> None:
        interrupts.pass_on(signal)
        if not quiet and not interrupts.are_ours:
            count = len(interrupts.numbers)
            more = {1: "; two more end everything", 2: "; one more ends everything"}.get(count, "")
            say(f"stream: signal {signal} is passed on{more}")

    @contextmanager
    def prepare() -> Iterator[tuple[RunSettings, Guard, StartedPlan | None]]:
        from stream.process.guard import post_guard

        with ExitStack() as stack:
            # First: it gets ready while the rest is loaded, and must not be taken for an orphan.
            guard = post_guard()
            stack.callback(guard.close)
            if sdk == "hooks":
                check_hooks()
            check_new_files(archive, raw_kernel, force=force)
            recording = make_recording(
                command,
                request=request,
                scenario=scenario,
                parameters=parameters,
                declared=agent,
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
                if require:
                    check_feeds(choice or "auto", recording, kernel_ring << 10)
                begun = None
                if matrix:
                    words = split_words(cap, "--cap")
                    begun = stack.enter_context(begin_probes(recording, words, probes, boundary))
            except BaseException:
                shutil.rmtree(recording.folder, ignore_errors=True)
                raise
            if raw_kernel is not None and raw_kernel.is_file():  # --force said so
                raw_kernel.unlink()
            guard.tell(recording.outfit())
            if not quiet:
                from stream.cli.report import announce

                announce(recording)
            yield recording, guard, begun

    async def work(prepared: tuple[RunSettings, Guard, StartedPlan | None]) -> int:
        from stream.cli.report import conclude
        from stream.cli.runner import Copying
        from stream.observe.run import run_observe
        from stream.sources.agent import Relay

        recording, guard, begun = prepared
        witness = None
        if choice is not None:
            from stream.observe.kernel import KernelOptions, KernelRecorder

            witness = KernelRecorder(
                recording,
                KernelOptions(
                    kernel=choice,
                    is_required=require is not None,
                    ring_bytes=kernel_ring << 10,
                    raw=raw_kernel,
                    policy_log=policy,
                    sdk=sdk or "stream-json",
                ),
                lambda sentence: say(f"stream: {sentence}"),
            )
        progress = Copying()
        try:
            observed = await run_observe(
                recording,
                guard,
                interrupts,
                relays=(None if events else Relay(1), Relay(2)),
                events=events is not None,
                probes=begun,
                witness=witness,
                on_progress=progress,
                on_warning=lambda sentence: say(f"stream: {sentence}"),
            )
        finally:
            progress.clear()
        conclude(observed, recording, quiet=quiet)
        if archive is not None:
            from stream.cli.report import put_away

            if not await put_away(recording, archive, interrupts, quiet=quiet, force=force):
                return observed.summary.exit_code or 1
        return observed.summary.exit_code

    run_prepared(prepare, work, pass_on=pass_on)


def check_feeds(choice: Choice, recording: RunSettings, ring_bytes: int) -> None:
    """Raises RequiredError where there can be no feed of this run."""
    from stream.errors import RequiredError
    from stream.sources.kernel.feed import probe_feeds

    if reason := probe_feeds(choice, ring_bytes=ring_bytes, folder=recording.folder):
        raise RequiredError(f"--require kernel: {reason}")


def check_hooks() -> None:
    """Raises UsageError where there can be none."""
    from stream.errors import UsageError
    from stream.sources.tool_calls import lacking_for_hooks

    if lacking := lacking_for_hooks():
        raise UsageError(f"--sdk hooks: there is no {' and no '.join(lacking)} on PATH")


def check_new_files(archive: Path | None, raw: Path | None, *, force: bool) -> None:
    """Raise StreamError, before a run whose archive or raw telemetry would have no place to go."""
    from stream.errors import UsageError
    from stream.files.targets import STDOUT, check_outputs, descriptor, is_fifo, is_regular

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
) -> RunSettings:
    """Everything is checked before there is a run folder."""
    from stream.errors import UsageError
    from stream.observe.agents import identify
    from stream.observe.scenario import read_scenario
    from stream.observe.settings import (
        RunSettings,
        check_source,
        find_program,
        make_folder,
        new_run_id,
        runs_beside,
    )
    from stream.records.run import WORKSPACE
    from stream.redaction.policy import CapturePolicy
    from stream.workspace.patch import find_git

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
        from stream.records.run import DEFAULT_NAMES

        for name in names:
            if not name.isprintable():
                raise UsageError(f"--wrap {name!r}: no name of a program that can be recorded")
        wrap = [*DEFAULT_NAMES, *names]
    folder = make_folder(runs, run_id or new_run_id())
    workspace = work if place == "here" and work is not None else folder / WORKSPACE
    return RunSettings(
        run_id=folder.name,
        folder=folder,
        argv=[os.fsencode(word) for word in command],
        executable=find_program(command[0], work),
        agent=agent,
        agent_program=find_program(agent.program, work) if agent.program else None,
        scenario=asked,
        disclosure=CapturePolicy(level, censor),
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
    recording: RunSettings, capabilities: list[str], folder: Path | None, boundary: str | None
) -> AbstractContextManager[StartedPlan]:
    from stream.cli.matrix import affordable_jobs, default_jobs, mention
    from stream.matrix.plan import MatrixRequest, make_plan, start_plan

    is_new = recording.workspace_mode != "here"
    if is_new:
        recording.workspace.mkdir()  # a plan is for a folder that is there
    request = MatrixRequest(
        capabilities=capabilities,
        folder=folder,
        boundary=boundary,
        workspace=recording.workspace,
    )
    plan = make_plan(request)
    mention(plan)
    if is_new:
        recording.workspace.rmdir()
    return start_plan(plan, min(default_jobs(), affordable_jobs()))
