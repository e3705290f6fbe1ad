"""stream observe"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from stream.cli.running import FORCE, ListsCommand, run_prepared, say, seconds, split_words

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
    from stream.recorder.interrupts import Interrupts

    interrupts = Interrupts()

    def pass_on(signal: int) -> None:
        interrupts.pass_on(signal)
        if not quiet and not interrupts.are_ours:
            count = len(interrupts.numbers)
            more = {1: "; two more end everything", 2: "; one more ends everything"}.get(count, "")
            say(f"stream: signal {signal} is passed on{more}")

    @contextmanager
    def prepare() -> Iterator[tuple[Recording, Guard, Begun | None]]:
        from stream.cli.preparation import (
            begin_probes,
            check_new_files,
            make_recording,
        )
        from stream.recorder.guard import post_guard

        with ExitStack() as stack:
            # First: it gets ready while the rest is loaded, and must not be taken for an orphan.
            guard = post_guard()
            stack.callback(guard.close)
            if sdk == "hooks":
                from stream.cli.preparation import check_hooks

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
                    from stream.cli.preparation import check_feeds

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
                from stream.cli.closing import announce

                announce(recording)
            yield recording, guard, begun

    async def work(prepared: tuple[Recording, Guard, Begun | None]) -> int:
        from stream.cli.closing import conclude
        from stream.cli.progress import Copying
        from stream.observe import run_observe
        from stream.recorder.tee import Relay

        recording, guard, begun = prepared
        witness = None
        if choice is not None:
            from stream.witnessing import KernelWitness, Wish

            witness = KernelWitness(
                recording,
                Wish(
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
            from stream.cli.closing import put_away

            if not await put_away(recording, archive, interrupts, quiet=quiet, force=force):
                return observed.summary.exit_code or 1
        return observed.summary.exit_code

    run_prepared(prepare, work, pass_on=pass_on)
