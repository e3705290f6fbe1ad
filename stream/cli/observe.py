"""stream observe: check what the user asked for, make everything ready, then run the recorder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Literal, NamedTuple

import typer

from stream.cli.options import (
    Force,
    ListsCommand,
    Options,
    check_seconds,
    make_command,
    split_words,
)
from stream.cli.runner import print_note, run_prepared

if TYPE_CHECKING:
    from stream.matrix.plan import StartedPlan
    from stream.observe.kernel import KernelOptions, KernelRecorder
    from stream.observe.settings import RunSettings
    from stream.process.guard import Guard, Interrupts


class _ObserveCommand(ListsCommand):
    lists = ("--constraint", "--wrap", "--cap")


def register(app: typer.Typer) -> None:
    """Add `stream observe` to the command line."""
    app.command(
        cls=_ObserveCommand,
        context_settings={"allow_interspersed_args": False},
        options_metavar="[OPTIONS] --",
    )(make_command(ObserveOptions, observe))


def _check_ring(value: int) -> int:
    if not 4 <= value <= 1 << 20 or value & value - 1:
        raise typer.BadParameter(f"{value} is not a power of two from 4 to {1 << 20}")
    return value


def _check_grace(value: float) -> float:
    if not value >= 0:  # nan as well
        raise typer.BadParameter(f"{value:g} is not in the range x>=0")
    return value


class ObserveOptions(Options):
    """Holds the options of `stream observe`."""

    command: list[str] = typer.Argument(..., metavar="CMD…", help="The agent's command line.")
    scenario: Path | None = typer.Option(
        None, metavar="FILE|DIR", help="The agent's task: scenario.md, or the folder that holds it."
    )
    parameters: Path | None = typer.Option(
        None, metavar="FILE", help="parameters.json. Default: the one of the scenario."
    )
    request: str | None = typer.Option(
        None, metavar="TEXT|@FILE", help="The agent's task, where there is no scenario."
    )
    constraint: list[str] = typer.Option(
        [], metavar="ID…", help="Check these constraints as well: see above."
    )
    agent: str | None = typer.Option(
        None,
        metavar="NAME[@VERSION]",
        help="Name the agent, where the command does not show it. Recorded as declared.",
    )
    workspace: Literal["copy", "empty", "here"] | None = typer.Option(
        None, help="Let the agent work in a copy (default), an empty folder, or in place."
    )
    source: Path = typer.Option(
        Path(), metavar="DIR", help="The folder to copy, or to work in. Default: this one."
    )
    capture: Literal["full", "redacted", "hashed"] | None = typer.Option(
        None, help="Record everything (default), no secrets, or digests only."
    )
    environment: Literal["local", "ci", "staging", "prod", "unknown"] = typer.Option(
        "unknown", help="Declare where the run takes place. It is only recorded."
    )
    runs: Path = typer.Option(Path("runs"), metavar="DIR", help="Create the run folder in DIR.")
    run_id: str | None = typer.Option(None, metavar="ID", help="Default: made from the time.")
    wrap: list[str] = typer.Option(
        [], metavar="NAME…", help="Log calls of these programs besides the usual ones."
    )
    no_wrap: bool = typer.Option(False, "--no-wrap", help="Do not change PATH and log no calls.")
    timeout: float | None = typer.Option(
        None, metavar="S", help="End the agent after S seconds and record what it did."
    )
    grace: float = typer.Option(
        5.0,
        metavar="S",
        callback=_check_grace,
        help="Give processes that outlive the agent S seconds before they are ended.",
    )
    matrix: bool = typer.Option(
        False, "--matrix", help="Run the probes in the same workspace meanwhile."
    )
    cap: list[str] = typer.Option(
        [], metavar="ID…", help="With --matrix: only probes of these capabilities."
    )
    probes: Path | None = typer.Option(
        None,
        metavar="DIR",
        help="With --matrix: a folder of probe scripts instead of the bundled ones.",
    )
    boundary: str | None = typer.Option(
        None,
        metavar="P",
        help="With --matrix: the boundary descriptor. Default: BOUNDARY_PATH, then defaults.json.",
    )
    kernel: Literal["off", "auto", "ebpf", "strace"] | None = typer.Option(
        None, help="Record what the kernel saw: see above. Default: off; with --require: auto."
    )
    require: Literal["kernel"] | None = typer.Option(
        None, help="Where no kernel feed is available, start nothing and exit 40."
    )
    archive: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="Also pack the whole record into FILE, a tar.gz, with or without --kernel.",
    )
    force: Force = False
    policy: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="With --kernel: CloudEvents that a policy engine writes during the run, one a"
        " line. Earlier lines are ignored.",
    )
    sdk: Literal["stream-json", "hooks", "otel"] | None = typer.Option(
        None, help="With --kernel: the channel that reports tool calls. Default: stream-json."
    )
    raw_kernel: Path | None = typer.Option(
        None, metavar="FILE", help="With --kernel: write the feed's raw telemetry to FILE."
    )
    kernel_ring: int = typer.Option(
        16384, metavar="KIB", callback=_check_ring, help="With eBPF: the size of its ring."
    )
    events: str | None = typer.Option(
        None, metavar="-", help="Write the events to stdout, not the agent's output."
    )
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Report only what went wrong.")

    @property
    def wanted_feed(self) -> Literal["auto", "ebpf", "strace"] | None:
        """The kernel feed that is wanted, if any."""
        if self.kernel is None:
            return "auto" if self.require else None
        return None if self.kernel == "off" else self.kernel


class _PreparedRun(NamedTuple):
    settings: RunSettings
    guard: Guard
    probes: StartedPlan | None


def observe(options: ObserveOptions) -> None:
    """Record an agent's command line as a black box.

    Everything after `--` is the agent's command line. Its output is passed on byte for byte,
    and its exit code becomes the exit code of this command. The record is in RUNS/RUN_ID: nine
    events (events.jsonl), the output, a diff of the changes, the commands that were called, and
    hashes of all of it.

    \b
      stream observe -- claude -p "add a test for parse()" --dangerously-skip-permissions
      stream observe --scenario tasks/json-report --capture redacted -- claude -p "$(cat prompt)"
      stream observe --workspace here --constraint scope.no_ci_changes -- ./agent.sh
      stream observe --events - -- ./agent.sh | stream check - --profile agents
      stream observe --kernel auto --archive run.tar.gz -- ./agent.sh; stream verify run.tar.gz

    The agent gets the stdin of this command, and an empty one where that is a terminal: an
    agent that asks questions cannot be recorded.

    The agent works in a copy of this folder, so that nothing here changes; `stream apply RUN`
    applies its changes. When it has ended, the processes that it started get --grace seconds
    more, and what they change is recorded. SIGINT, SIGTERM and SIGHUP are passed to the agent,
    and the run is recorded to its end; so is the second signal, and the third ends everything.
    After the run, a signal stops only the archive; the record stays.

    \b
    --kernel: record what really happened, in layers/ and three artifacts of the run folder
      ebpf     files opened and changed, connects, programs run; every loss is counted.
               Costs little; needs root, or CAP_BPF and CAP_PERFMON
      strace   the same without privileges, but slow; sudo and ping do not work under it
      auto     the better one of those that are available; none is recorded as none

    \b
    --sdk: the channel that reports when a tool call began and ended. What the kernel saw
    between the two belongs to that call.
      stream-json  the agent's stdout, if it is the stream-json of Claude Code or qwen-code
      hooks        Claude Code's hooks:
                   -- sh -c 'claude --settings "$STREAM_HOOK_SETTINGS" -p "add a test"'
      otel         Claude Code's OpenTelemetry, which arrives too late to give times

    \b
    Constraints, each checked by a written rule, with evidence:
      output.json_only        the answer is JSON and nothing else
      style.no_emojis         no emoji in the answer or in an added line
      scope.no_ci_changes     no file of a CI configuration is changed
      quality.tests_required  a change of code comes with a change of tests
    Other constraints of a scenario (id, type, rule) are recorded and stay unknown.

    Exit code: that of the agent's command (128 + signal; 127 if there is no such command, 126
    if it cannot be run); 2 for wrong use, before anything is started; 40 if what was required
    is not available; 1 instead of 0 if only the archive failed.
    """
    _check_options(options)
    from stream.process.guard import Interrupts

    interrupts = Interrupts()

    def pass_on(number: int) -> None:
        """Pass a signal on to the agent, and say so."""
        interrupts.pass_signal_on(number)
        if not options.quiet and not interrupts.is_taken_over:
            count = len(interrupts.numbers)
            more = {1: "; two more end everything", 2: "; one more ends everything"}.get(count, "")
            print_note(f"stream: {Signals(number).name} is passed on{more}")

    run_prepared(
        lambda: _prepare_run(options),
        lambda prepared: _record_run(options, prepared, interrupts),
        pass_on=pass_on,
    )


def _check_options(options: ObserveOptions) -> None:
    """Raise BadParameter for options that do not go together."""
    if options.events not in (None, "-"):
        raise typer.BadParameter("--events takes only one value: -")
    if options.no_wrap and options.wrap:
        raise typer.BadParameter("--wrap and --no-wrap do not go together")
    for_matrix = {
        "--cap": options.cap,
        "--probes": options.probes,
        "--boundary": options.boundary,
    }
    for flag, value in for_matrix.items():
        if value and not options.matrix:
            raise typer.BadParameter(f"{flag} needs --matrix")
    check_seconds(options.timeout)
    if options.require and options.kernel == "off":
        raise typer.BadParameter("--require kernel and --kernel off do not go together")
    for_kernel = {
        "--policy": options.policy,
        "--raw-kernel": options.raw_kernel,
        "--sdk": options.sdk,
    }
    for flag, value in for_kernel.items():
        if value is not None and options.wanted_feed is None:
            raise typer.BadParameter(f"{flag} needs --kernel")


@contextmanager
def _prepare_run(options: ObserveOptions) -> Iterator[_PreparedRun]:
    """Check everything, create the run folder and start the guard; nothing of it stays where
    something is wrong."""
    from stream.process.guard import fork_guard

    with ExitStack() as stack:
        # First: it gets ready while the rest is loaded, and must not be taken for an orphan.
        guard = fork_guard()
        stack.callback(guard.close)
        if options.sdk == "hooks":
            from stream.observe.kernel import check_hooks

            check_hooks()
        _check_new_outputs(options.archive, options.raw_kernel, force=options.force)
        settings = _make_settings(options)
        probes = None
        try:
            if options.require:
                from stream.observe.kernel import require_feed

                require_feed(_kernel_options(options), settings.folder)
            if options.matrix:
                from stream.cli.matrix import start_probes

                is_new = settings.workspace_mode != "here"
                probes = stack.enter_context(
                    start_probes(options, settings.workspace, is_new=is_new)
                )
        except BaseException:
            shutil.rmtree(settings.folder, ignore_errors=True)
            raise
        if options.raw_kernel is not None and options.raw_kernel.is_file():  # --force was given
            options.raw_kernel.unlink()
        guard.send_request(settings.prepare_request())
        if not options.quiet:
            from stream.cli.report import report_run_start

            report_run_start(settings)
        yield _PreparedRun(settings, guard, probes)


async def _record_run(
    options: ObserveOptions, prepared: _PreparedRun, interrupts: Interrupts
) -> int:
    """Record the agent's run, archive it if asked for, and return the exit code."""
    from stream.cli.report import archive_recorded, report_run_end
    from stream.cli.runner import CopyProgress
    from stream.observe.run import run_observe

    settings = prepared.settings
    progress = CopyProgress()
    try:
        observed = await run_observe(
            settings,
            prepared.guard,
            interrupts,
            passes_on=(not options.events, True),
            events=options.events is not None,
            probes=prepared.probes,
            kernel=_kernel_recorder(options, settings),
            on_progress=progress,
            on_warning=_print_warning,
        )
    finally:
        progress.clear_line()
    report_run_end(observed, settings, quiet=options.quiet)
    code = observed.summary.exit_code
    if options.archive is not None:
        is_archived = await archive_recorded(
            settings,
            observed,
            options.archive,
            interrupts,
            quiet=options.quiet,
            force=options.force,
        )
        return code if is_archived else code or 1
    return code


def _kernel_recorder(options: ObserveOptions, settings: RunSettings) -> KernelRecorder | None:
    """Make the recorder of kernel evidence; None if the options want no kernel feed."""
    if options.wanted_feed is None:
        return None
    from stream.observe.kernel import KernelRecorder

    return KernelRecorder(settings, _kernel_options(options), _print_warning)


def _kernel_options(options: ObserveOptions) -> KernelOptions:
    """Collect the options of `stream observe` about kernel feed, policy log and SDK."""
    from stream.observe.kernel import KernelOptions

    return KernelOptions(
        kernel=options.wanted_feed or "auto",
        is_required=options.require is not None,
        ring_bytes=options.kernel_ring << 10,
        raw=options.raw_kernel,
        policy_log=options.policy,
        sdk=options.sdk or "stream-json",
    )


def _print_warning(sentence: str) -> None:
    print_note(f"stream: {sentence}")


def _check_new_outputs(archive: Path | None, raw: Path | None, *, force: bool) -> None:
    """Raise StreamError, before the run, where its archive or raw telemetry cannot be written."""
    from stream.errors import UsageError
    from stream.files.targets import (
        STDOUT_TARGET,
        check_outputs,
        descriptor_by_name,
        is_fifo,
        is_regular_target,
    )

    named = {"--archive": archive, "--raw-kernel": raw}
    targets = {flag: str(target) for flag, target in named.items() if target is not None}
    for flag, target in targets.items():
        if target != STDOUT_TARGET and is_regular_target(target):
            continue
        if target == STDOUT_TARGET or descriptor_by_name(target) == 1:
            raise UsageError(f"{flag} {target}: stdout carries the agent's output: name a file")
        if flag == "--archive" or not is_fifo(target):
            places = "a file" if flag == "--archive" else "a file or a fifo"
            raise UsageError(f"{flag} {target}: it must be {places}")
    check_outputs([*targets.values()], force=force)


def _make_settings(options: ObserveOptions) -> RunSettings:
    """Check everything that the user named, then create the run folder."""
    from stream.observe.agents import identify_agent
    from stream.observe.scenario import read_scenario
    from stream.observe.settings import (
        RunSettings,
        capture_policy,
        check_source_folder,
        find_program,
        make_run_folder,
        new_run_id,
        runs_beside,
    )
    from stream.records.run import WORKSPACE
    from stream.workspace.patch import find_git

    agent = identify_agent(options.command, options.agent)
    constraints = split_words(options.constraint, "--constraint")
    scenario = read_scenario(options.scenario, options.parameters, options.request, constraints)
    mode = options.workspace or scenario.workspace_mode or "copy"
    level = options.capture or scenario.capture_mode or "full"
    source = None if mode == "empty" else check_source_folder(options.source)
    find_git()
    wrap = _wrapped_names(options)
    folder = make_run_folder(options.runs, options.run_id or new_run_id())
    workspace = source if mode == "here" and source is not None else folder / WORKSPACE
    return RunSettings(
        run_id=folder.name,
        folder=folder,
        argv=[os.fsencode(word) for word in options.command],
        executable=find_program(options.command[0], source),
        agent=agent,
        agent_program=find_program(agent.program, source) if agent.program else None,
        scenario=scenario,
        capture_policy=capture_policy(level),
        environment=options.environment,
        workspace_mode=mode,
        workspace=workspace,
        source=source if mode == "copy" else None,
        leave_out=runs_beside(folder),
        wrap=wrap,
        grace=options.grace,
        timeout=options.timeout,
    )


def _wrapped_names(options: ObserveOptions) -> list[str]:
    """Return the programs whose calls are logged."""
    if options.no_wrap:
        return []
    from stream.errors import UsageError
    from stream.evidence.command_lines import DEFAULT_NAMES

    names = split_words(options.wrap, "--wrap")
    for name in names:
        if not name.isprintable():
            raise UsageError(f"--wrap {name!r}: not a program name that can be recorded")
    return [*DEFAULT_NAMES, *names]
