"""The command `stream merge`: a matrix that was measured in parts, put together by its plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from stream.cli.options import Force
from stream.cli.runner import number, print_note, run_to_exit

if TYPE_CHECKING:
    from stream.matrix.shards import MergedMatrix
    from stream.records.lock import Envelope

_SHOWN = 20


def merge(
    files: list[str] = typer.Argument(
        ..., metavar="FILE…", help="Envelopes that shards of the plan wrote, or `-`: stdin."
    ),
    plan: Path = typer.Option(..., metavar="P", help="The plan that the shards were cut from."),
    output: str = typer.Option(
        "-",
        "-o",
        "--output",
        metavar="FILE",
        help="Write records to FILE. It stays FILE.partial if they are not all of the plan.",
    ),
    force: Force = False,
) -> None:
    """Merge the shards of a matrix, and check them against its plan.

    Each shard wrote its records in envelopes, which name the cell and the host. The records of
    the plan's cells come out in its order, as if one machine had measured them. A cell that has
    no record, a second record of one, and a record of no cell of the plan are reported. The
    first record of a cell counts.

    \b
      stream merge --plan plan.json shard-*.ndjson -o boundary.ndjson
      stream lock boundary.ndjson -o boundary.lock

    Exit 0 only if there is one record for each cell, and no other; 1 if not.
    """

    async def work() -> int:
        """Merge the envelopes and return the exit code."""
        from anyio import to_thread

        from stream.files.targets import STDOUT_TARGET, check_outputs, partial_path
        from stream.matrix.shards import merge_envelopes, read_plan
        from stream.pipeline import Batch
        from stream.records.control import BOUNDARY
        from stream.sinks.ndjson import Ndjson

        check_outputs([output], [str(plan), *files], force=force)
        wanted = read_plan(plan)
        merged = await to_thread.run_sync(
            lambda: merge_envelopes(wanted, _placed_envelopes(files)), abandon_on_cancel=True
        )
        if merged.records and (merged.is_whole or output != STDOUT_TARGET):
            async with Ndjson(output, is_whole=lambda: merged.is_whole).open() as write:
                await write(Batch(BOUNDARY, merged.records))
        _report_merge(merged)
        if merged.records and not merged.is_whole and output != STDOUT_TARGET:
            print_note(f"merge: what there is of them is in {partial_path(output)}")
        return 0 if merged.is_whole else 1

    run_to_exit(work)


def _placed_envelopes(files: list[str]) -> Iterator[tuple[str, Envelope]]:
    """Yield the envelopes of files, each with its place."""
    from stream.codec import read_records
    from stream.records.lock import decode_envelope

    for path in files:
        for line, envelope in read_records(path, decode_envelope, "an envelope"):
            yield f"{path}:{line}", envelope


def _report_merge(merged: MergedMatrix) -> None:
    """Report what keeps the records from being those of the plan, and how many there are."""
    lists = {
        "missing": [*map(str, merged.missing)],
        "doubled": merged.doubled,
        "foreign": merged.foreign,
    }
    for what, names in lists.items():
        for name in names[:_SHOWN]:
            print_note(f"merge: {what}: {name}")
        if len(names) > _SHOWN:
            print_note(f"merge: {what}: … and {len(names) - _SHOWN} more")
    counts = ", ".join(f"{len(names)} {what}" for what, names in lists.items() if names)
    planned = len(merged.records) + len(merged.missing)
    print_note(
        f"merge: {len(merged.records)} of {number(planned, 'cell')}" + (counts and f": {counts}")
    )
