"""stream matrix: run probes in the sandbox and write one record for each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from stream.cli.options import (
    Boundary,
    Catalog,
    Force,
    ListsCommand,
    Options,
    Probes,
    ProbeTimeout,
    Reject,
    Workspace,
    make_command,
    split_words,
)
from stream.cli.runner import (
    echo,
    note,
    number,
    run_now,
    run_prepared,
)

if TYPE_CHECKING:
    from stream.boundary.cells import MatrixPlan, Stop
    from stream.matrix.plan import MatrixRequest, StartedPlan
    from stream.matrix.run import MatrixResult


class _MatrixCommand(ListsCommand):
    lists = ("--probe", "--cap", "--mode")


def register(app: typer.Typer) -> None:
    """Add `stream matrix` to the command line."""
    app.command(cls=_MatrixCommand)(make_command(MatrixOptions, matrix))


class MatrixOptions(Options):
    """The options of `stream matrix`."""

    probe: list[str] = typer.Option(
        [], metavar="ID…", help="Run these probes, in this order. Default: all, sorted by id."
    )
    cap: list[str] = typer.Option(
        [], metavar="ID…", help="Also run the probes of these primary capabilities."
    )
    mode: list[str] = typer.Option(
        [], metavar="M…", help="Run modes, each over all probes. Default: the pattern's first."
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
    list_: bool = typer.Option(
        False, "--list", help="Print the probes and their capabilities; run nothing."
    )
    as_completed: bool = typer.Option(
        False, "--as-completed", help="Write records as cells finish, not in cell order."
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


def matrix(options: MatrixOptions) -> None:
    """Measure a sandbox: one record for every probe.

    Run it inside the sandbox that you want to measure. Every cell (a probe in a mode) gives
    exactly one boundary object; for a probe that crashes, hangs or breaks its contract, the
    harness writes an `error` record. An observed `denied` is not a failure.

    \b
      stream matrix | stream listen -
      stream matrix --probe fs_tmp_write fs_usr_write_guard --repeat 3
      stream matrix --cap cap_fs_write_workspace_tree -o boundary.ndjson
      stream matrix --probes ./probes --workspace ./project --timeout 5

    Probes run from their own folder. If their tree has no bin/, a temporary one is made there,
    where that is writable.

    --probe, --cap and --mode take several words, or commas, or are repeated.
    FENCE_SANDBOX_MODE (read-only, workspace-write or danger-full-access) declares the
    sandbox mode; it is only recorded. Exit 0 if every probe wrote its own valid record, 1 if
    one did not.
    """
    from stream.boundary.cells import Stop
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
    )
    if options.list_:
        run_now(lambda: _list(request))
    stop = Stop()
    run_prepared(
        lambda: _start(options, request, stop),
        lambda started: _measure(options, started, stop),
        stop.ask,
    )


@contextmanager
def _start(options: MatrixOptions, request: MatrixRequest, stop: Stop) -> Iterator[StartedPlan]:
    from stream.files.targets import check_outputs, is_fifo
    from stream.matrix.plan import make_plan, start_plan

    plan = make_plan(request)
    report_skipped(plan)
    with start_plan(plan, min(options.jobs or default_jobs(), affordable_jobs())) as started:
        outputs = [name for name in (options.output, options.reject) if name is not None]
        check_outputs(outputs, force=options.force)
        if not any(map(is_fifo, outputs)):  # whose reader may keep us waiting
            started.head_start(stop)
        yield started


async def _measure(options: MatrixOptions, started: StartedPlan, stop: Stop) -> int:
    from stream.cli.runner import Progress
    from stream.files.targets import STDOUT
    from stream.matrix.run import run_matrix
    from stream.records.control import FINDINGS, GAPS, REJECTS
    from stream.sinks.ndjson import Ndjson, Text

    def is_whole() -> bool:
        return not stop.is_asked

    control = (FINDINGS, GAPS, REJECTS)
    reject, output = options.reject, options.output
    is_on_terminal = output == STDOUT and sys.stdout.isatty()
    progress = Progress(len(started.plan.cells), is_shown=not options.quiet and not is_on_terminal)
    try:
        result = await run_matrix(
            started,
            Ndjson(output, is_whole=is_whole),
            Ndjson(reject, control, is_whole) if reject else Text(control),
            timeout=options.timeout,
            as_completed=options.as_completed,
            raw=options.raw,
            stop=stop,
            on_done=progress,
        )
    except BaseException:
        progress.clear()
        _point_to(output)
        raise
    progress.clear()
    code = _conclude(result, raw=options.raw, quiet=options.quiet)
    if stop.is_asked:
        _point_to(output)
    elif is_on_terminal and not options.quiet:
        note("These are records. To read them: stream matrix | stream listen -")
    return code


def _point_to(output: str) -> None:
    """Name the partial file of an output that was not completed."""
    from stream.files.targets import STDOUT, partial

    if output != STDOUT and partial(output).exists():
        note(f"stream: what was recorded until then is in {partial(output)}")


def default_jobs() -> int:
    """Return three a core: probes mostly wait for the kernel."""
    import os

    return 3 * len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 6


def affordable_jobs() -> int:
    """Return how many probes the limit of open files allows: reaching the limit must not look like
    a failure of a probe."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 16 if limit == resource.RLIM_INFINITY else max(1, (limit - 40) // 7)


def _list(request: MatrixRequest) -> int:
    from stream.errors import visible
    from stream.matrix.plan import make_plan

    plan = make_plan(request)
    found = plan.scripts
    width = max(len(script.id) for script in found)
    for script in found:
        capability = script.capability or "(none declared)"
        echo(visible(f"{script.id:{width}}  {capability}"))
    report_skipped(plan)
    return 0


def report_skipped(plan: MatrixPlan) -> None:
    """Name the scripts that are not run: those that are no probes, and those of other catalogs."""
    from stream.boundary.scripts import utf8

    for script in plan.no_probes[:20]:
        note(
            f"stream: {utf8(script.path)}: not run: it neither calls emit-record nor declares a"
            " capability"
        )
    if len(plan.no_probes) > 20:
        note(f"… and {len(plan.no_probes) - 20} more")
    if plan.left_out:
        note(
            f"stream: {len(plan.left_out)} bundled probes are left out: their capabilities are"
            f" not in {plan.catalogs.first.path}"
        )


def _conclude(outcome: MatrixResult, *, raw: bool, quiet: bool) -> int:
    for failure in outcome.failures[:20]:
        note(f"stream: {failure.probe} ({failure.mode}): {failure.sentence}")
    if outcome.failed > 20:
        note(f"… and {outcome.failed - 20} more")
    if outcome.without_tmpdir:
        note("stream: no folder is writable here: the probes had no private TMPDIR")
    for stray in outcome.strays:
        note(f"stream: a process that escaped from its probe was ended: {stray}")
    cells = number(outcome.cells, "cell")
    if outcome.recorded != outcome.cells:
        cells = f"stopped: {outcome.recorded} of {outcome.cells} cells"
    bad = outcome.failed or outcome.strays or outcome.recorded != outcome.cells
    if quiet and not bad:
        return 0
    if raw:
        note(f"{cells} = {number(outcome.recorded, 'raw emission')}")
    else:
        results = ", ".join(f"{count} {name}" for name, count in sorted(outcome.results.items()))
        note(f"{cells} = {number(outcome.recorded, 'record')}" + (results and f": {results}"))
    if outcome.failed:
        note(f"{number(outcome.failed, 'probe')} failed")
    return 1 if bad else 0
