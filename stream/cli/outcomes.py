"""The command that shows boundary objects to people: listen."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import typer

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
