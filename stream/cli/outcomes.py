"""The commands that show boundary objects to people: listen and report."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import typer

from stream.cli.lock import is_lockfile
from stream.cli.options import Boundary, Force, Reject
from stream.cli.runner import print_note, problem_sink, run_filter

if TYPE_CHECKING:
    from stream.transformers.listen import Listen
    from stream.transformers.outcome_text import OutcomeText


def listen(
    files: list[str] = typer.Argument(
        ..., metavar="FILE…|-", help="NDJSON files, or `-` for stdin."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as one JSON object."),
    as_matrix: bool = typer.Option(
        False, "--matrix", help="Print one table instead: modes by capabilities."
    ),
    boundary: Boundary = None,
    reject: Reject = None,
    force: Force = False,
) -> None:
    """Show boundary objects as text, with a summary.

    Each record is shown when it arrives, the summary at the end. A bad line is reported with
    its place, and reading goes on. Exit 1 if there was one.

    \b
      stream matrix | stream listen -
      stream listen monday.ndjson tuesday.ndjson --json
      stream listen --matrix boundary.ndjson

    A cell of the --matrix is what a mode lets through of a capability. Of several records, the
    one that got furthest decides, and what is not known comes before what is closed. Where
    the probes of a capability differ, each has a line below it. Records without a control
    (boundary_event_v1) count as they report.
    """
    if as_json and as_matrix:
        raise typer.BadParameter("--matrix does not go with --json")

    async def work() -> int:
        """Print what the records show and return the exit code."""
        from stream.boundary.descriptors import find_descriptor
        from stream.cli.inputs import expect_input
        from stream.files.targets import check_outputs
        from stream.pipeline import Chain, Pipeline
        from stream.sinks.ndjson import Ndjson
        from stream.sources.ndjson import NdjsonSource, check_readable
        from stream.transformers.listen import Listen

        check_readable(files)
        for name in files:
            expect_input(name, "boundary")
        check_outputs([reject], files, force=force)
        descriptor, colour = find_descriptor(boundary), sys.stdout.isatty()
        stage: Listen | OutcomeText = Listen(descriptor, as_json=as_json, colour=colour)
        if as_matrix:
            from stream.transformers.outcome_text import WIDTH, OutcomeText

            width = shutil.get_terminal_size().columns if colour else WIDTH
            stage = OutcomeText(descriptor, width=width, colour=colour)
        sources = Chain([NdjsonSource(name) for name in files])
        await Pipeline((sources,)).through(stage).into(Ndjson("-"), problem_sink(reject))
        if stage.counts.rejected:
            print_note(f"listen: {stage.counts}")
        return 1 if stage.counts.rejected else 0

    run_filter(files, work)


def report(
    files: list[str] = typer.Argument(
        ..., metavar="FILE [AFTER]", help="One NDJSON file, or two: before and after. `-`: stdin."
    ),
    output: str | None = typer.Option(
        None, "-o", "--output", metavar="F", help="The page: F.html. Default: stdout, in a pipe."
    ),
    force: Force = False,
) -> None:
    """Write one HTML page of what each mode lets through.

    The page is one file that needs no network: a map of modes and capabilities, each cell of
    which opens its records, with control, effect, the kernel's view and the evidence. With two
    files it shows what opened, what closed, and what is no longer measured.

    \b
      stream report boundary.ndjson -o report.html
      stream report monday.ndjson tuesday.ndjson -o changes.html
      stream report boundary.lock boundary.ndjson -o drift.html

    It reads boundary objects of both patterns, boundary_event_v1 and boundary_event_v2. A file
    may also be a lockfile, which has outcomes and no records. Other records and bad lines are
    counted in the page. Exit 1 if there was a bad line.
    """
    if len(files) > 2:
        raise typer.BadParameter("one file, or two: before and after")
    if output is None and sys.stdout.isatty():
        raise typer.BadParameter("-o is missing: a page does not go to a terminal")

    async def work() -> int:
        """Write the page and return the exit code."""
        from stream.cli.inputs import expect_input
        from stream.cli.sides import read_side
        from stream.files.targets import STDOUT_TARGET, check_outputs
        from stream.pipeline import Batch
        from stream.records.control import LINES
        from stream.sinks.ndjson import Ndjson
        from stream.sinks.report import render_report
        from stream.sources.ndjson import check_readable

        check_readable(files)
        for name in files:
            if not is_lockfile(name):
                expect_input(name, "boundary")
        target = STDOUT_TARGET if output is None else output
        check_outputs([target], files, force=force)
        sides = [await read_side(name) for name in files]
        async with Ndjson(target).open() as write:
            await write(Batch(LINES, [render_report([side for side, _ in sides])]))
        rejected = sum(counts.rejected for _, counts in sides)
        for side, counts in sides:
            print_note(f"report: {side.name}: {counts}")
        return 1 if rejected else 0

    run_filter(files, work)
