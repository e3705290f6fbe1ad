"""stream matrix"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from stream.cli.runner import (
    FORCE,
    ListsCommand,
    number,
    run_now,
    run_prepared,
    say,
    seconds,
    split_words,
    tell,
)

if TYPE_CHECKING:
    from stream.boundary.cells import MatrixPlan
    from stream.matrix.plan import MatrixRequest, StartedPlan
    from stream.matrix.run import MatrixResult


class _MatrixCommand(ListsCommand):
    lists = ("--probe", "--cap", "--mode")


def register(app: typer.Typer) -> None:
    app.command(cls=_MatrixCommand)(matrix)


def matrix(
    probe: list[str] = typer.Option(
        [], metavar="ID…", help="Run these probes, in this order. Default: all, sorted by id."
    ),
    cap: list[str] = typer.Option(
        [], metavar="ID…", help="Run the probes of these primary capabilities (too)."
    ),
    mode: list[str] = typer.Option(
        [], metavar="M…", help="Run modes, each over all probes. Default: the pattern's first."
    ),
    probes: Path | None = typer.Option(
        None, metavar="DIR", help="A folder of probe scripts. Default: the bundled ones."
    ),
    catalog: str | None = typer.Option(
        None, metavar="P", help="Capability catalog. Default: CATALOG_PATH, then defaults.json."
    ),
    boundary: str | None = typer.Option(
        None, metavar="P", help="Boundary descriptor. Default: BOUNDARY_PATH, then defaults.json."
    ),
    workspace: Path | None = typer.Option(
        None,
        metavar="DIR",
        help="Where probes run. Default: FENCE_WORKSPACE_ROOT, the git repository, the folder.",
    ),
    jobs: int | None = typer.Option(
        None, "--jobs", "-j", metavar="N", min=1, help="Probes at a time. Default: 3 a core."
    ),
    timeout: float = typer.Option(
        30.0, metavar="S", callback=seconds, help="Seconds that a probe may take."
    ),
    repeat: int = typer.Option(
        1, metavar="N", min=1, max=1_000_000, help="Run every cell N times."
    ),
    list_: bool = typer.Option(
        False, "--list", help="Print the probes and their capabilities only."
    ),
    as_completed: bool = typer.Option(
        False, "--as-completed", help="Write records as cells finish, not in cell order."
    ),
    raw: bool = typer.Option(False, "--raw", help="Write raw emissions, for `stream emit -`."),
    output: str = typer.Option(
        "-",
        "-o",
        "--output",
        metavar="FILE",
        help="Where records go. FILE appears when it is whole; until then it is FILE.partial.",
    ),
    reject: str | None = typer.Option(
        None, metavar="FILE", help="Where reject records go. Default: sentences on stderr."
    ),
    force: bool = FORCE,
    quiet: bool = typer.Option(
        False, "--quiet", "-q", help="Say only what went wrong, and show no progress."
    ),
) -> None:
    """Measure a sandbox: one record for every probe.

    Run it inside the sandbox that you want to know. Every cell (a probe in a mode) ends in
    exactly one boundary object; a probe that crashes, hangs or breaks its contract gets an
    `error` record that the harness writes. An observed `denied` is not a failure.

    \b
      stream matrix | stream listen -
      stream matrix --probe fs_tmp_write fs_usr_write_guard --repeat 3
      stream matrix --cap cap_fs_write_workspace_tree -o boundary.ndjson
      stream matrix --probes ./probes --workspace ./project --timeout 5

    Probes run where they lie: a tree without bin/ is lent one meanwhile, where it can be written.

    --probe, --cap and --mode take several words, or commas, or are repeated.
    FENCE_SANDBOX_MODE (read-only, workspace-write or danger-full-access) declares the
    sandbox mode; it is only recorded. Exit 0 if every probe wrote its own valid record, 1 if
    one did not.
    """
    from stream.boundary.cells import Stop
    from stream.files.targets import STDOUT, check_outputs, is_fifo
    from stream.matrix.plan import MatrixRequest, make_plan, start_plan

    request = MatrixRequest(
        probes=split_words(probe, "--probe"),
        capabilities=split_words(cap, "--cap"),
        modes=split_words(mode, "--mode"),
        folder=probes,
        catalog=catalog,
        boundary=boundary,
        workspace=workspace,
        repeat=repeat,
    )
    if list_:
        run_now(lambda: _list(request))

    stop = Stop()

    @contextmanager
    def prepare() -> Iterator[StartedPlan]:
        plan = make_plan(request)
        mention(plan)
        with start_plan(plan, min(jobs or default_jobs(), affordable_jobs())) as begun:
            outputs = [name for name in (output, reject) if name is not None]
            check_outputs(outputs, force=force)
            if not any(map(is_fifo, outputs)):  # whose reader may keep us waiting
                begun.head_start(stop)
            yield begun

    async def work(begun: StartedPlan) -> int:
        from stream.cli.runner import Progress
        from stream.matrix.run import run_matrix
        from stream.records.control import Finding, Gap, Reject
        from stream.sinks.ndjson import Ndjson, Text

        control = (Finding, Gap, Reject)
        others = Ndjson(reject, control, is_whole) if reject else Text(control)
        progress = Progress(
            len(begun.plan.cells),
            is_shown=not quiet and (output != STDOUT or not sys.stdout.isatty()),
        )
        try:
            outcome = await run_matrix(
                begun,
                Ndjson(output, bytes, is_whole),
                others,
                timeout=timeout,
                as_completed=as_completed,
                raw=raw,
                stop=stop,
                on_done=progress,
            )
        except BaseException:
            progress.clear()
            _point_to(output)
            raise
        progress.clear()
        code = _conclude(outcome, raw=raw, quiet=quiet)
        if stop.asked:
            _point_to(output)
        elif output == STDOUT and sys.stdout.isatty() and not quiet:
            say("These are records. To read them: stream matrix | stream listen -")
        return code

    def is_whole() -> bool:
        return not stop.asked

    run_prepared(prepare, work, stop.ask)


def _point_to(output: str) -> None:
    """To what there is of an output that did not become whole."""
    from stream.files.targets import STDOUT, partial

    if output != STDOUT and partial(output).exists():
        say(f"stream: what was recorded until then is in {partial(output)}")


def default_jobs() -> int:
    """Probes mostly wait for the kernel: three a core keep the cores busy."""
    import os

    return 3 * len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 6


def affordable_jobs() -> int:
    """As many as there are descriptors for: our limit must not look like a probe's failure."""
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
        tell(visible(f"{script.id:{width}}  {capability}"))
    mention(plan)
    return 0


def mention(plan: MatrixPlan) -> None:
    """What lies among the probes and is not run."""
    from stream.boundary.scripts import utf8

    for script in plan.no_probes[:20]:
        say(
            f"stream: {utf8(script.path)}: not run: it neither calls emit-record nor declares a"
            " capability"
        )
    if len(plan.no_probes) > 20:
        say(f"… and {len(plan.no_probes) - 20} more")
    if plan.left_out:
        say(
            f"stream: {len(plan.left_out)} bundled probes are left out: their capabilities are"
            f" not in {plan.catalogs.first.path}"
        )


def _conclude(outcome: MatrixResult, *, raw: bool, quiet: bool) -> int:
    for failure in outcome.failures[:20]:
        say(f"stream: {failure.probe} ({failure.mode}): {failure.sentence}")
    if outcome.failed > 20:
        say(f"… and {outcome.failed - 20} more")
    if outcome.without_tmpdir:
        say("stream: nothing is writable here: the probes had no TMPDIR of their own")
    for stray in outcome.strays:
        say(f"stream: a process that left its probe's tree was ended: {stray}")
    cells = number(outcome.cells, "cell")
    if outcome.recorded != outcome.cells:
        cells = f"stopped: {outcome.recorded} of {outcome.cells} cells"
    bad = outcome.failed or outcome.strays or outcome.recorded != outcome.cells
    if quiet and not bad:
        return 0
    if raw:
        say(f"{cells} = {number(outcome.recorded, 'raw emission')}")
    else:
        results = ", ".join(f"{count} {name}" for name, count in sorted(outcome.results.items()))
        say(f"{cells} = {number(outcome.recorded, 'record')}" + (results and f": {results}"))
    if outcome.failed:
        say(f"{number(outcome.failed, 'probe')} failed")
    return 1 if bad else 0
