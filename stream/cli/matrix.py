"""The commands about probes and their records: matrix, emit, probe, gate and helpers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import typer
from typer.core import TyperCommand
from typer.exceptions import TyperException

from stream.cli.options import (
    Boundary,
    CarefulCommand,
    Catalog,
    Force,
    ListsCommand,
    Options,
    Probes,
    ProbeTimeout,
    Reject,
    Workspace,
    split_words,
)
from stream.cli.runner import (
    number,
    print_answer,
    print_note,
    problem_sink,
    run_now,
    run_prepared,
    run_to_exit,
)
from stream.cli.shards import check_modes, shard_of_options, write_plan

if TYPE_CHECKING:
    from stream.boundary.scripts import MatrixPlan, Stop
    from stream.cli.shards import Shard
    from stream.matrix.plan import MatrixRequest, StartedPlan
    from stream.matrix.run import MatrixResult
    from stream.pipeline import Sink
    from stream.transformers.emit import ProbeFailure


class ProbeChoice(Protocol):
    """The options that choose the probes of a matrix beside a run."""

    cap: list[str]
    probes: Path | None
    boundary: str | None


def start_probes(
    options: ProbeChoice, workspace: Path, *, is_new: bool
) -> AbstractContextManager[StartedPlan]:
    """Plan the matrix beside a run, and start its first probes. `is_new`: the workspace is not
    there yet."""
    from stream.matrix.plan import MatrixRequest, make_plan, start_plan

    if is_new:
        workspace.mkdir()  # a plan needs a folder that exists
    request = MatrixRequest(
        capabilities=split_words(options.cap, "--cap"),
        folder=options.probes,
        boundary=options.boundary,
        workspace=workspace,
    )
    plan = make_plan(request)
    report_skipped(plan)
    if is_new:
        workspace.rmdir()
    return start_plan(plan, min(default_jobs(), affordable_jobs()))


class MatrixCommand(ListsCommand):
    """`stream matrix`, some of whose options take several words."""

    lists = ("--probe", "--cap", "--mode")


class MatrixOptions(Options):
    """Holds the options of `stream matrix`."""

    probe: list[str] = typer.Option(
        [], metavar="ID…", help="Run these probes, in this order. Default: all, sorted by id."
    )
    cap: list[str] = typer.Option(
        [], metavar="ID…", help="Also run the probes of these primary capabilities."
    )
    mode: list[str] = typer.Option(
        [],
        metavar="M…",
        help="Start every probe inside these sandboxes (see `stream modes`), and check from"
        " outside what got through. Default: none, the probes run as they are.",
    )
    require_mode: bool = typer.Option(
        False, "--require-mode", help="Exit with 40 if a mode cannot be run here."
    )
    run_as: str | None = typer.Option(
        None,
        "--as",
        metavar="USER",
        help="Run the probes of modes as this user. Default: under sudo, who called it.",
    )
    kernel: Literal["off", "auto", "ebpf", "strace"] | None = typer.Option(
        None,
        help="With --mode: compare each report with the system calls that the kernel saw. Default:"
        " off; with --require: auto.",
    )
    require: Literal["kernel"] | None = typer.Option(
        None, help="Where no kernel feed is available, start nothing and exit 40."
    )
    probes: Probes = None
    catalog: Catalog = None
    boundary: Boundary = None
    workspace: Workspace = None
    jobs: int | None = typer.Option(
        None, "--jobs", "-j", metavar="N", min=1, help="Probes at a time. Default: 3 a core."
    )
    timeout: ProbeTimeout = 30.0
    repeat: int = typer.Option(1, metavar="N", min=1, max=1_000_000, help="Run every cell N times.")
    make_plan: bool = typer.Option(
        False, "--make-plan", help="Write a plan of the matrix, for --plan; run nothing."
    )
    plan: Path | None = typer.Option(
        None, metavar="P", help="Run the cells of a plan; write envelopes for `stream merge`."
    )
    shard: str | None = typer.Option(None, metavar="I/N", help="Run part I of N of the plan.")
    host: str | None = typer.Option(
        None,
        metavar="NAME",
        help="The host of the plan that this machine is. Default: its only one; with"
        " --make-plan, the system and the machine.",
    )
    list_: bool = typer.Option(
        False, "--list", help="Print the probes and their capabilities; run nothing."
    )
    as_completed: bool = typer.Option(
        False, "--as-completed", help="Write records as cells finish, not in cell order."
    )
    policy: list[str] = typer.Option(
        [],
        metavar="FILE",
        help="Report every cell that contradicts what FILE promises: a policy, or the settings of"
        " Claude Code, srt or Codex. Repeatable.",
    )
    findings: str | None = typer.Option(
        None, metavar="FILE", help="With --policy: also write what contradicts it to FILE."
    )
    raw: bool = typer.Option(False, "--raw", help="Write raw emissions, for `stream emit -`.")
    output: str = typer.Option(
        "-",
        "-o",
        "--output",
        metavar="FILE",
        help="Write records to FILE. It is FILE.partial until it is complete.",
    )
    reject: Reject = None
    force: Force = False
    quiet: bool = typer.Option(
        False, "--quiet", "-q", help="Report only what went wrong, and show no progress."
    )

    @property
    def wants_kernel(self) -> bool:
        """Tell whether a kernel feed is wanted."""
        return self.kernel not in (None, "off") or (self.kernel is None and bool(self.require))


def matrix(options: MatrixOptions) -> None:
    """Measure a sandbox: one record for every probe.

    Run it inside the sandbox that you want to measure. Every cell (a probe in a mode) gives
    exactly one boundary object; for a probe that crashes, hangs or breaks its contract, the
    harness writes an `error` record. An observed `denied` is not a failure.

    \b
      stream matrix | stream listen -
      stream matrix --probe fs_tmp_write fs_usr_write_guard --repeat 3
      stream matrix --cap cap_fs_write_workspace_tree -o boundary.ndjson
      stream matrix --mode codex-read-only --policy ~/.codex/config.toml -o boundary.ndjson
      stream matrix --probes ./probes --workspace ./project --timeout 5

    Probes run from their own folder. If their tree has no bin/, a temporary one is made there,
    where that is writable.

    With --kernel, root's, each report is compared with the system calls that the kernel saw,
    and what closed an operation is named where it can be proved.

    Several machines share a matrix by a plan; each runs a shard:

    \b
      stream matrix --mode bwrap-ro --repeat 3 --make-plan -o plan.json
      stream matrix --plan plan.json --shard 2/5 -o shard-2.ndjson
      stream merge --plan plan.json shard-*.ndjson -o boundary.ndjson

    --probe, --cap and --mode take several words, or commas, or are repeated.
    FENCE_SANDBOX_MODE (read-only, workspace-write or danger-full-access) declares the
    sandbox mode; it is only recorded. Exit 0 if every probe wrote its own valid record, 1 if
    one did not, or if something that --policy denies got through.
    """
    from stream.boundary.scripts import Stop
    from stream.matrix.plan import MatrixRequest

    request = MatrixRequest(
        probes=split_words(options.probe, "--probe"),
        capabilities=split_words(options.cap, "--cap"),
        modes=split_words(options.mode, "--mode"),
        folder=options.probes,
        catalog=options.catalog,
        boundary=options.boundary,
        workspace=options.workspace,
        repeat=options.repeat,
        run_as=options.run_as,
        policies=options.policy,
    )
    if (options.raw or options.make_plan) and options.policy:
        raise typer.BadParameter("--policy judges records, which --raw and --make-plan do not make")
    if options.findings and not options.policy:
        raise typer.BadParameter("--findings goes with --policy")
    if options.list_:
        run_now(lambda: _list_probes(request))
    if options.plan is None and options.shard is not None:
        raise typer.BadParameter("--shard is a part of a --plan")
    if options.make_plan:
        run_to_exit(lambda: write_plan(options, request))
    stop = Stop()
    run_prepared(
        lambda: _started_plan(options, request, stop),
        lambda started: _measure_matrix(options, *started, stop),
        stop.ask_to_stop,
    )


@contextmanager
def _started_plan(
    options: MatrixOptions, request: MatrixRequest, stop: Stop
) -> Iterator[tuple[StartedPlan, Shard | None]]:
    """Plan and stage the probes of `stream matrix`, check its outputs and start the first cells."""
    from stream.files.targets import check_outputs, is_fifo
    from stream.matrix.plan import make_plan, start_plan

    shard = None if options.plan is None else shard_of_options(options, options.plan)
    plan = make_plan(request if shard is None else shard.fill_request(request))
    report_skipped(plan)
    if options.require_mode or shard is not None:
        check_modes(plan, "--require-mode" if shard is None else "--plan")
    if options.wants_kernel or options.require:
        from stream.matrix.run import check_kernel

        check_kernel(plan, options.kernel, is_required=bool(options.require))
    with start_plan(plan, min(options.jobs or default_jobs(), affordable_jobs())) as started:
        named = (options.output, options.reject, options.findings)
        outputs = [name for name in named if name is not None]
        check_outputs(outputs, options.policy, force=options.force)
        if not any(map(is_fifo, outputs)):  # whose reader may keep us waiting
            started.head_start(stop)
        yield started, shard


async def _measure_matrix(
    options: MatrixOptions, started: StartedPlan, shard: Shard | None, stop: Stop
) -> int:
    """Run every cell of a started plan, write the records and return the exit code."""
    from stream.cli.runner import MatrixProgress
    from stream.files.targets import STDOUT_TARGET
    from stream.matrix.run import Matrix
    from stream.records.control import GAPS, REJECTS
    from stream.sinks.ndjson import Ndjson

    def is_whole() -> bool:
        """Tell whether no stop was asked for."""
        return not stop.is_asked

    output = options.output
    is_on_terminal = output == STDOUT_TARGET and sys.stdout.isatty()
    progress = MatrixProgress(
        started.plan.cell_count, is_shown=not options.quiet and not is_on_terminal
    )
    matrix = Matrix(
        started,
        timeout=options.timeout,
        as_completed=options.as_completed,
        stop=stop,
        on_done=progress,
        is_watched=options.wants_kernel,
    )
    records = Ndjson(output, is_whole=is_whole)
    problems = problem_sink(options.reject, is_whole)
    if options.policy:
        problems.kinds = (GAPS, REJECTS)
    sinks: list[Sink] = [records if shard is None else shard.seal_records(records), problems]
    sinks += policy_sinks(options.policy, options.findings)
    try:
        result = await matrix.run(*sinks, raw=options.raw)
    except BaseException:
        progress.clear_line()
        _name_partial_file(output)
        raise
    progress.clear_line()
    code = report_matrix(result, raw=options.raw, quiet=options.quiet)
    if stop.is_asked:
        _name_partial_file(output)
    elif is_on_terminal and not options.quiet:
        print_note("These are records. To read them: stream matrix | stream listen -")
    return code


def policy_sinks(policies: Sequence[str], findings: str | None) -> list[Sink]:
    """Return the sinks of what contradicts a policy."""
    from stream.records.control import FINDINGS
    from stream.sinks.ndjson import Ndjson, Text

    sinks: list[Sink] = [Text((FINDINGS,), most=sys.maxsize)] if policies else []
    return [*sinks, Ndjson(findings, (FINDINGS,))] if findings else sinks


def _name_partial_file(output: str) -> None:
    """Name the partial file of an output that was not completed."""
    from stream.files.targets import STDOUT_TARGET, partial_path

    if output != STDOUT_TARGET and partial_path(output).exists():
        print_note(f"stream: what was recorded until then is in {partial_path(output)}")


def default_jobs() -> int:
    """Return three a core: probes mostly wait for the kernel."""
    return 3 * len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 6


def affordable_jobs() -> int:
    """Return how many probes the limit of open files allows: reaching the limit must not look like
    a failure of a probe."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 16 if limit == resource.RLIM_INFINITY else max(1, (limit - 40) // 7)


def _list_probes(request: MatrixRequest) -> int:
    """Print the probes that `stream matrix` would run, with their capabilities."""
    from stream.errors import printable
    from stream.matrix.plan import make_plan

    plan = make_plan(request)
    found = plan.scripts
    width = max(len(script.id) for script in found)
    for script in found:
        capability = script.capability or "(none declared)"
        print_answer(printable(f"{script.id:{width}}  {capability}"))
    report_skipped(plan)
    return 0


def report_skipped(plan: MatrixPlan) -> None:
    """Name the scripts that are not run: those that are no probes, and those of other catalogs."""
    from stream.boundary.scripts import utf8

    for script in plan.no_probes[:20]:
        print_note(
            f"stream: {utf8(script.path)}: not run: it neither calls emit-record nor declares a"
            " capability"
        )
    if len(plan.no_probes) > 20:
        print_note(f"… and {len(plan.no_probes) - 20} more")
    if plan.measured is not None:
        for name, reason in plan.measured.unavailable:
            print_note(f"stream: mode {name} is not run: {reason}")
    if plan.left_out:
        print_note(
            f"stream: {len(plan.left_out)} bundled probes are left out: their capabilities are"
            f" not in {plan.catalogs.first.path}"
        )


def _report_failures(failures: Sequence[ProbeFailure]) -> None:
    for failure in failures[:20]:
        print_note(f"stream: {failure.probe} ({failure.mode}): {failure.sentence}")


def report_matrix(outcome: MatrixResult, *, raw: bool, quiet: bool) -> int:
    """Report the failures and counts of a matrix on stderr, and return the exit code."""
    _report_failures(outcome.failures)
    if outcome.failed > 20:
        print_note(f"… and {outcome.failed - 20} more")
    if outcome.without_tmpdir:
        print_note("stream: no folder is writable here: the probes had no private TMPDIR")
    _report_measured(outcome)
    for stray in outcome.strays:
        print_note(f"stream: a process that escaped from its probe was ended: {stray}")
    cells = number(outcome.cells, "cell")
    if outcome.recorded != outcome.cells:
        cells = f"stopped: {outcome.recorded} of {outcome.cells} cells"
    bad = outcome.failed or outcome.strays or outcome.recorded != outcome.cells
    bad = bad or any(one.kind == "fail-open" for one in outcome.contradictions)
    if outcome.judged and not (quiet and not bad):
        print_note(f"stream: policy: {outcome.judged}")
    if quiet and not bad:
        return 0
    if raw:
        print_note(f"{cells} = {number(outcome.recorded, 'raw emission')}")
    else:
        results = ", ".join(f"{count} {name}" for name, count in sorted(outcome.results.items()))
        print_note(f"{cells} = {number(outcome.recorded, 'record')}" + (results and f": {results}"))
    if outcome.failed:
        print_note(f"{number(outcome.failed, 'probe')} failed")
    return 1 if bad else 0


def _report_measured(outcome: MatrixResult) -> None:
    """Name what was not measured from outside, and the files that sandboxes left."""
    _report_failures(outcome.disputed)
    if outcome.unwatched:
        print_note(f"stream: the kernel is not watched: {outcome.unwatched}")
    if outcome.no_internet:
        print_note(f"stream: the network was not measured: {outcome.no_internet}")
    modes: dict[str, list[str]] = {}
    for left in outcome.leftovers:
        paths = modes.setdefault(left.mode, [])
        if left.path not in paths:
            paths.append(left.path)
    for mode, paths in modes.items():
        more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
        print_note(f"stream: left behind in mode {mode}, and removed: {', '.join(paths[:5])}{more}")
    for what in outcome.left_outside:
        print_note(f"stream: a sandbox left behind {what}")


#: options of `emit -`, and how many words each takes, itself included
_STREAM_OPTIONS = {"--reject": 2, "--catalog": 2, "--boundary": 2, "--force": 1}


class EmitCommand(TyperCommand):
    """`stream emit`: after `-` come options; otherwise all words are for emit-record, where the
    word after a flag is always its value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse options only in front of `-`, and keep all words otherwise."""
        first = 0
        while args[first : first + 1] and args[first] in _STREAM_OPTIONS:
            first += _STREAM_OPTIONS[args[first]]
        if args[first : first + 1] in (["-"], ["--help"], ["-h"]):
            return super().parse_args(ctx, args)
        nothing = {"reject": None, "catalog": None, "boundary": None, "force": False}
        ctx.params = {"words": args, **nothing}
        return []


class EmitRecordCommand(TyperCommand):
    """`stream emit-record`, for the helper of that name: every word is passed on as it is."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep all words as they are."""
        ctx.params = {"words": args}
        return []


def emit(
    words: list[str] = typer.Argument(
        [], metavar="- | FLAGS…", help="`-`, or emit-record's words."
    ),
    reject: Reject = None,
    catalog: Catalog = None,
    boundary: Boundary = None,
    force: Force = False,
) -> None:
    """Make boundary objects, from a pipe or from flags.

    With `-`, it reads raw emissions (from `stream matrix --raw`) from stdin and writes one
    object for each to stdout; any other record passes unchanged. Exit 1 if a probe failed or a
    line was rejected.

    \b
      stream matrix --raw | stream emit - > boundary.ndjson

    With flags it works as emit-record does: it prints one object, or one sentence and exits 1.

    \b
      stream emit --run-mode baseline --probe-name P --probe-version 1 \\
        --primary-capability-id ID --command C --category fs --verb write \\
        --target T --status success|denied|partial|error

    \b
    Further flags; the next word is always the value, even if it looks like a flag:
      --secondary-capability-id ID   (repeatable)
      --errno E  --message M  --error-detail D  --raw-exit-code N
      --payload-stdout TEXT          --payload-stdout-file F
      --payload-stderr TEXT          --payload-stderr-file F
      --payload-raw JSON             --payload-raw-file F
      --payload-raw-field K V        --payload-raw-field-json K JSON
      --payload-raw-list K "a,b"     --payload-raw-null K
      --payload-file F               (a whole payload object)
      --operation-args JSON          --operation-args-file F
      --operation-arg K V            --operation-arg-json K JSON
      --operation-arg-list K "a,b"   --operation-arg-null K
    """
    if words[:1] == ["-"]:
        if len(words) > 1:
            raise typer.BadParameter(f"`-` reads stdin and does not go with {words[1]}")
        _emit_stream(reject, catalog, boundary, force)
    if not words:
        raise typer.BadParameter("`-` or the flags of emit-record are missing")
    run_now(lambda: _emit_one(words))


def emit_record(words: list[str] = typer.Argument([])) -> None:
    """Make one boundary object as the helper emit-record does outside the harness."""
    run_now(lambda: _emit_one(words))


def _emit_stream(
    reject: str | None, catalog: str | None, boundary: str | None, force: bool
) -> None:
    """Make a boundary object of each raw emission on stdin, for `stream emit -`."""

    async def work() -> int:
        """Make an object of each emission and return the exit code."""
        from stream.boundary.builder import BoundaryBuilder
        from stream.boundary.descriptors import find_catalogs, find_descriptor
        from stream.files.targets import check_outputs
        from stream.pipeline import Pipeline
        from stream.sinks.ndjson import Ndjson
        from stream.sources.ndjson import NdjsonSource
        from stream.transformers.emit import Emit

        check_outputs([reject], force=force)
        stage = Emit(BoundaryBuilder(find_catalogs(catalog), find_descriptor(boundary)))
        await Pipeline((NdjsonSource("-"),)).through(stage).into(Ndjson("-"), problem_sink(reject))
        _report_failures(stage.failures)
        print_note(f"emit: {stage.counts}")
        return 1 if stage.failed or stage.counts.rejected else 0

    run_to_exit(work)


def _emit_one(words: list[str]) -> int:
    """Print the boundary object that the flags of emit-record describe."""
    from stream.matrix.run import emit_words

    print_answer(emit_words(words))
    return 0


class HelperCommand(CarefulCommand):
    """A command that runs as a helper of the same name: its first word is the bin/ folder of the
    helper. Wrong use and unusable input exit with 1."""

    helper_folder: Path | None = None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the folder of the helper off the words."""
        HelperCommand.helper_folder = Path(args[0]) if args else None
        try:
            return super().parse_args(ctx, args[1:])
        except TyperException as error:
            error.exit_code = 1
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command with the helper's exit codes."""
        from stream.errors import InputError, UsageError

        UsageError.exit_code = InputError.exit_code = 1
        return super().invoke(ctx)


def probe(
    name: str = typer.Argument(..., metavar="ID", help="A probe id, or a path to its script."),
    mode: str | None = typer.Option(
        None, metavar="M", help="Run mode. Default: the pattern's first."
    ),
    probes: Probes = None,
    catalog: Catalog = None,
    boundary: Boundary = None,
    workspace: Workspace = None,
    timeout: ProbeTimeout = 30.0,
) -> None:
    """Run one probe in one mode and print its record.

    Exit 0 if the record is the probe's own, 1 if the harness wrote it.

    \b
      stream probe fs_tmp_write
      stream probe ./probes/my_probe.sh --workspace ./project
    """

    async def work() -> int:
        """Run the probe and return the exit code."""
        folder = probes or _probe_folder(name)
        asked = {"catalog": catalog, "boundary": boundary, "workspace": workspace}
        result = await _run_one_probe(name, mode, timeout, folder=folder, **asked)
        return 1 if result.failed or result.strays else 0

    run_to_exit(work)


def probe_exec(
    words: list[str] = typer.Argument(..., metavar="[MODE] PROBE", help="The probe."),
    mode: str | None = typer.Option(
        None, metavar="M", help="Run mode. Default: the pattern's first."
    ),
    probes: Path | None = typer.Option(
        None, metavar="DIR", help="A folder of probe scripts. Default: ../probes, or the bundled."
    ),
    catalog: Catalog = None,
    boundary: Boundary = None,
    workspace: Path | None = typer.Option(
        None,
        "--workspace",
        "--workspace-root",
        metavar="DIR",
        help="Where it runs. Default: FENCE_WORKSPACE_ROOT, the git repository, the folder.",
    ),
    timeout: ProbeTimeout = 30.0,
) -> None:
    """Run one probe in one mode and print its record, as the helper probe-exec does.

    Exit 0 if the record is the probe's own, 1 for wrong use, 3 if it took too long, and 2 if the
    harness wrote the record for another reason.
    """

    async def work() -> int:
        """Run the probe and return the exit code."""
        from stream.errors import UsageError

        if len(words) > 2 or (mode and len(words) == 2):
            raise UsageError("expected one probe, or a mode and a probe")
        name, given = words[-1], words[0] if len(words) == 2 else mode
        folder = probes or _probe_folder(name) or _helper_probes(name)
        asked = {"catalog": catalog, "boundary": boundary, "workspace": workspace}
        result = await _run_one_probe(name, given, timeout, folder=folder, **asked)
        if any(failure.reason == "timed-out" for failure in result.failures):
            return 3
        return 2 if result.failed or result.strays else 0

    run_to_exit(work)


async def _run_one_probe(name: str, mode: str | None, timeout: float, **asked: Any) -> MatrixResult:
    """Run one probe in one mode, print its record and return the result."""
    from stream.matrix.plan import MatrixRequest, make_plan, start_plan
    from stream.matrix.run import Matrix
    from stream.sinks.ndjson import Ndjson

    request = MatrixRequest(probes=[name], modes=[mode] if mode else [], **asked)
    with start_plan(make_plan(request), jobs=1) as started:
        result = await Matrix(started, timeout=timeout).run(Ndjson("-"))
    _report_failures(result.failures)
    return result


def gate(
    names: list[str] = typer.Argument(
        None,
        metavar="[ID|PATH…]",
        help="Probe ids, paths to scripts, or one folder. Default: the whole folder.",
    ),
    static: bool = typer.Option(False, "--static", help="Only read the scripts, run nothing."),
    probes: Probes = None,
    catalog: Catalog = None,
    boundary: Boundary = None,
    workspace: Path | None = typer.Option(
        None,
        metavar="DIR",
        help="Where probes run. Default: a scratch repository, checked for leftovers.",
    ),
    timeout: ProbeTimeout = 10.0,
) -> None:
    """Check probe scripts against the author's contract.

    The contract is probes/AGENTS.md. Each script is read, then run once, and every word that
    it passes to emit-record is checked. Findings go to stdout as records, and to stderr as
    sentences. Exit 1 if there is a finding. A script runs from its own folder; files that it
    creates there are not noticed.

    \b
      stream gate fs_tmp_write
      stream gate ./probes/my_probe.sh
      stream gate --static ./probes
    """

    async def work() -> int:
        """Check the probes and return the exit code."""
        from stream.matrix.gate import run_gate
        from stream.matrix.plan import MatrixRequest
        from stream.records.control import FINDINGS
        from stream.sinks.ndjson import Ndjson, Text

        sinks: list[Any] = [Text((FINDINGS,))]
        if not sys.stdout.isatty():
            sinks.append(Ndjson("-", (FINDINGS,)))
        checked = findings = 0
        for folder, named in _probes_by_folder(names or [], probes).items():
            request = MatrixRequest(
                probes=named, folder=folder, catalog=catalog, boundary=boundary, workspace=workspace
            )
            result = await run_gate(request, *sinks, static=static, timeout=timeout)
            checked += result.probes
            findings += result.findings
        print_note(f"gate: {number(checked, 'probe')}, {number(findings, 'finding')}")
        return 1 if findings else 0

    run_to_exit(work)


def helpers() -> None:
    """Print the folder of the helpers that probes call.

    A probe looks for them in ../bin, relative to its script. `stream` provides them; to run a
    probe without it, link them there:

    \b
      ln -s "$(stream helpers)" bin
    """

    def show() -> int:
        """Print the folder of the helpers and return the exit code."""
        from stream.boundary.scripts import HELPERS

        print_answer(str(HELPERS))
        return 0

    run_now(show)


def _probes_by_folder(names: list[str], probes: Path | None) -> dict[Path | None, list[str]]:
    """Group names of probes by folder. An empty list means all probes of the folder."""
    found: dict[Path | None, list[str]] = {} if names else {probes or _helper_probes(): []}
    for name in names:
        folder = probes or _probe_folder(name) or _helper_probes(name)
        if probes is None and Path(name).is_dir():
            found[folder] = []
        elif found.get(folder, [""]):  # an empty list already means all of them
            found.setdefault(folder, []).append(name)
    return found


def _probe_folder(name: str) -> Path | None:
    """Return the folder of a script that is named by a path."""
    from stream.errors import InputError

    path = Path(name)
    if path.is_dir():
        return path
    if "/" not in name and not (path.suffix == ".sh" and path.exists()):
        return None
    script = path if path.suffix == ".sh" else path.with_name(f"{path.name}.sh")
    if not os.path.lexists(script):
        reason = "its name does not end in .sh" if os.path.lexists(path) else "no such file"
        raise InputError(f"{name}: {reason}")
    return path.parent


def _helper_probes(name: str = "") -> Path | None:
    """Return the probes/ next to the bin/ that a helper was called in, if it has that probe."""
    if HelperCommand.helper_folder is None:
        return None
    # By name alone: bin may be a link.
    folder = Path(os.path.abspath(HelperCommand.helper_folder / os.pardir / "probes"))  # noqa: PTH100
    script = folder / (name if name.endswith(".sh") else f"{name}.sh")
    return folder if (script.is_file() if name else folder.is_dir()) else None
