"""The command `stream archive`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from stream.cli.options import Force, KnownBoundary, Reject
from stream.cli.runner import number, print_note, run_to_exit

if TYPE_CHECKING:
    from stream.observe.archive import Archived
    from stream.sinks.ndjson import Ndjson, Text


def archive(
    source: str = typer.Argument(
        ..., metavar="RUN|-", help="The folder of a run, or `-`: records from stdin."
    ),
    target: Path = typer.Option(..., "-o", "--output", metavar="F", help="The archive: F.tar.gz."),
    run_id: str | None = typer.Option(
        None, metavar="ID", help="With `-`: the run. Default: the one that all records name."
    ),
    boundary: KnownBoundary = None,
    force: Force = False,
    reject: Reject = None,
) -> None:
    """Pack the evidence of a run into one file.

    The same evidence gives the same tar, on any machine and at any time. The workspace is left
    out. The file has its name only when it is complete.

    \b
      stream archive runs/20260304T050607Z-add_tests -o run.tar.gz
      stream verify run.tar.gz

    Given `-`, each line goes to the layer of its contract: events of the kernel, of the agent,
    of a policy, DecisionEvents, boundary objects, artifacts. Lines are stored byte for byte. A
    line that fits no layer, or breaks its contract, is rejected. If a line was rejected, or the
    feed counted a loss, no layer is marked complete. If the archive would not verify, it is not
    written; stderr gives the reason, and the exit code is 2.

    \b
      stream normalize - --detail - < raw.ndjson | stream archive - -o run.tar.gz

    Exit 1 if a line was rejected.
    """
    if str(target) == "-":
        raise typer.BadParameter("-o -: an archive must go to a file")

    async def work() -> int:
        """Write the archive and return the exit code."""
        from stream.cli.inputs import expect_input
        from stream.errors import UsageError
        from stream.files.targets import check_outputs
        from stream.observe.archive import archive_run, archive_stream

        if source == "-":
            from stream.records.control import REJECTS
            from stream.sinks.ndjson import Ndjson, Text

            check_outputs([str(target), reject], force=force)
            sink: Ndjson | Text = Ndjson(reject, (REJECTS,)) if reject else Text((REJECTS,))
            done = await archive_stream(target, sink, run_id=run_id, boundary=boundary, force=force)
        else:
            for flag, value in (("--run-id", run_id), ("--reject", reject)):
                if value is not None:
                    raise UsageError(f"{flag} needs `-`")
            expect_input(source, "run")
            done = await archive_run(Path(source), target, force=force)
        for loss in done.losses:
            print_note(f"archive: the record is incomplete: {loss}")
        print_note(_archive_summary(done, target))
        return 1 if done.counts and done.counts.rejected else 0

    run_to_exit(work)


def _archive_summary(done: Archived, target: Path) -> str:
    """Return the closing line of `stream archive`: what was packed, and how large it is."""
    written = done.written
    what = f"{number(written.entries, 'file')}, {written.decoded} bytes in {written.bytes}"
    lines = f"; {done.counts}" if done.counts else ""
    return f"archive: {target}: {what}{lines}"
