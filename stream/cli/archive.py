"""stream archive"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from stream.cli.running import BOUNDARY, FORCE, CarefulCommand, number, run, say

if TYPE_CHECKING:
    from stream.archiving import Archived
    from stream.sinks.ndjson import People, Records


def register(app: typer.Typer) -> None:
    app.command(cls=CarefulCommand)(archive)


def archive(
    source: str = typer.Argument(
        ..., metavar="RUN|-", help="The folder of a run, or `-`: records from stdin."
    ),
    target: Path = typer.Option(..., "-o", "--output", metavar="F", help="The archive: F.tar.gz."),
    run_id: str | None = typer.Option(
        None, metavar="ID", help="With `-`: the run. Default: the one that all records name."
    ),
    boundary: str | None = BOUNDARY,
    force: bool = FORCE,
    reject: str | None = typer.Option(
        None, metavar="FILE", help="With `-`: where a record of each rejected line goes."
    ),
) -> None:
    """Put the evidence of a run into one file.

    The same evidence gives the same tar, on any machine and at any time. The workspace stays
    out of it. It has its name only when it is whole.

    \b
      stream archive runs/20260304T050607Z-add_tests -o run.tar.gz
      stream verify run.tar.gz

    Given `-`, each line goes to where its contract belongs: events of the kernel, of the agent,
    of a policy, DecisionEvents, boundary objects, artifacts. Lines keep their bytes. A line
    that belongs nowhere, or breaks its contract, is rejected. Where that, or anything else that
    the feed's books count, is missing, nothing is called complete. What would not verify is not
    written: stderr says why, and the exit code is 2.

    \b
      stream normalize - --detail - < raw.ndjson | stream archive - -o run.tar.gz

    Exit 1 if a line was rejected.
    """

    if str(target) == "-":
        raise typer.BadParameter("-o -: an archive goes to a file")

    async def work() -> int:
        from stream.archiving import archive_folder, archive_stream
        from stream.errors import UsageError
        from stream.recognition import expect
        from stream.sinks.places import check_outputs

        if source == "-":
            check_outputs([str(target), reject], force=force)
            sink = _rejects(reject)
            done = await archive_stream(target, sink, run_id=run_id, boundary=boundary, force=force)
        else:
            for flag, value in (("--run-id", run_id), ("--reject", reject)):
                if value is not None:
                    raise UsageError(f"{flag}: it goes with `-` only")
            expect(source, "run")
            done = await archive_folder(Path(source), target, force=force)
        for what in done.losses:
            say(f"archive: the record is incomplete: {what}")
        say(_closing(done, target))
        return 1 if done.counts and done.counts.rejected else 0

    run(work)


def _rejects(target: str | None) -> Records | People:
    from stream.records.control import Reject
    from stream.sinks.ndjson import People, Records

    return Records(target, Reject) if target else People((Reject,))


def _closing(done: Archived, target: Path) -> str:
    written = done.written
    what = f"{number(written.entries, 'file')}, {written.decoded} bytes in {written.bytes}"
    lines = f"; {done.counts}" if done.counts else ""
    return f"archive: {target}: {what}{lines}"
