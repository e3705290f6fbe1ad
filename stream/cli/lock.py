"""The commands `stream lock` and `stream merge`: the boundary as a file, and a matrix in parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from stream.cli.options import CarefulCommand, Force, Options, make_command
from stream.cli.runner import number, print_note, run_to_exit

if TYPE_CHECKING:
    from stream.compare.lockfile import MeasuredBoundary, ParsedLock
    from stream.matrix.shards import MergedMatrix
    from stream.records.lock import BoundaryDrift, Envelope
    from stream.records.modes import ModeBoundary

_LOCKFILE = "boundary.lock"
_SHOWN = 20


def register(app: typer.Typer) -> None:
    """Add `stream lock` and `stream merge` to the command line."""
    app.command(cls=CarefulCommand)(make_command(LockOptions, lock))
    app.command(cls=CarefulCommand)(merge)


class LockOptions(Options):
    """Holds the options of `stream lock`."""

    words: list[str] = typer.Argument(
        None,
        metavar="[FILE…]",
        help="Records of `stream matrix --mode`, or `-`: stdin. With --check, the lockfile comes"
        f" before them. Default: {_LOCKFILE}.",
    )
    check: bool = typer.Option(
        False, "--check", help="Compare the lockfile with the records, and write what drifted."
    )
    format: Literal["text", "json", "junit", "sarif", "markdown"] | None = typer.Option(
        None, help="How --check writes it. Default: text."
    )
    output: str = typer.Option(
        "-", "-o", "--output", metavar="FILE", help="Write to FILE. A lockfile is replaced."
    )
    force: Force = False

    @property
    def lockfile(self) -> str:
        """Return the lockfile that --check reads."""
        return self.words[0] if self.words else _LOCKFILE

    @property
    def records(self) -> list[str]:
        """Return the files of records."""
        return (self.words or [])[1 if self.check else 0 :]


def lock(options: LockOptions) -> None:
    """Lock the measured boundary in a file, or check it.

    The lockfile has a line for each cell (a probe in a mode): what it came to (open, partial,
    diverted, closed; or not measured: no-control, untold), the class of its error, the effect
    seen on the host, and its control. Nothing in it changes from run to run: put it into the
    repository, and review its differences. A cell that came to several outcomes when it was
    repeated is locked as flaky, with its rates.

    \b
      stream matrix --mode bwrap-ro --repeat 3 -o boundary.ndjson
      stream lock boundary.ndjson -o boundary.lock
      stream lock --check boundary.lock boundary.ndjson
      stream lock --check boundary.lock boundary.ndjson --format sarif -o drift.sarif

    --check says what opened, first, then what closed, what can no longer be measured, and what
    is measured and not locked. In JUnit, a drift is a failure, and what was not measured is
    skipped with its reason. SARIF points at the line of the lockfile. A cell that came to the
    same for another reason, a kernel or a sandbox of another version are reported, and are no
    drift.

    Exit 0 if the boundary is as locked, 1 if it drifted, 2 if the lockfile cannot be used: it
    has conflict markers, was edited by hand or comes from a newer version. stderr names each
    such line.
    """
    if options.format and not options.check:
        raise typer.BadParameter("--format goes with --check")
    run_to_exit(lambda: _check_lock(options) if options.check else _write_lock(options))


def measured_records(options: LockOptions) -> Iterator[ModeBoundary]:
    """Yield the records to lock or to compare. Raise InputError for a line that is none."""
    from stream.codec import read_records
    from stream.errors import UsageError

    if not options.records:
        raise UsageError("records are missing: `stream matrix --mode M -o FILE` makes them")
    for path in options.records:
        for _, record in read_records(path, _decode_record, "a record of a mode"):
            yield record


def _decode_record(line: bytes) -> ModeBoundary:
    """Decode a record that was measured from outside. Raise one of codec's DECODE_ERRORS."""
    from msgspec import ValidationError

    from stream.codec import contract_of
    from stream.records.control import PATTERN_VERSION
    from stream.records.modes import decode_mode_boundary

    if contract_of(line) == PATTERN_VERSION:
        reason = "it has no control, so that it proves nothing: measure with `--mode`"
        raise ValidationError(f"{reason} - at `$.schema_version`")
    return decode_mode_boundary(line)


async def _measure(options: LockOptions) -> MeasuredBoundary:
    """Return the boundary that the records came to. A pipe may keep us waiting."""
    from anyio import to_thread

    from stream.compare.lockfile import measured_boundary

    return await to_thread.run_sync(
        lambda: measured_boundary(measured_records(options)), abandon_on_cancel=True
    )


async def _write_lock(options: LockOptions) -> int:
    """Write the lockfile of the records, and return the exit code."""
    from stream.compare.lockfile import UNTOLD, lock_lines, outcomes_of

    _check_output(options, options.records)
    found = await _measure(options)
    cells, modes = found.lock.cells, found.lock.modes
    await _write(options.output, "\n".join(lock_lines(found.lock)).encode())
    outcomes = [outcomes_of(cell.state) for cell in cells]
    flaky = sum(len(one) > 1 for one in outcomes)
    untold = sum(one <= UNTOLD for one in outcomes)
    what = f"{number(len(cells), 'cell')} in {number(len(modes), 'mode')}"
    print_note(f"lock: {what}, {flaky} flaky, {untold} not measured")
    return 0


async def _check_lock(options: LockOptions) -> int:
    """Compare the lockfile with the records, write what drifted, and return the exit code."""
    from stream.compare.drift import drift_of_lock, drift_summary, has_drift

    _check_output(options, [options.lockfile, *options.records])
    locked = _read_lockfile(options.lockfile)
    for fault in locked.faults[:_SHOWN]:
        print_note(f"stream: {fault}")
    if len(locked.faults) > _SHOWN:
        print_note(f"… and {len(locked.faults) - _SHOWN} more")
    if locked.faults:
        return 2
    drift = drift_of_lock(locked, await _measure(options), options.lockfile)
    await _write(options.output, _formatted_drift(options, drift, locked))
    if options.output != "-" or options.format not in (None, "text"):
        print_note(f"lock: {drift_summary(drift)}")
    return 1 if has_drift(drift) else 0


def _read_lockfile(name: str) -> ParsedLock:
    """Read a lockfile. Raise InputError where there is none."""
    from stream.codec import LARGEST
    from stream.compare.lockfile import parse_lock
    from stream.errors import InputError, reporting

    with reporting(name), Path(name).open("rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise InputError(f"{name}: larger than {LARGEST} bytes")
    return parse_lock(data, name)


def _formatted_drift(options: LockOptions, drift: BoundaryDrift, locked: ParsedLock) -> bytes:
    """Return a drift in the format that --format names, without a newline at the end."""
    from stream.compare.drift_formats import drift_junit, drift_markdown, drift_sarif, drift_text
    from stream.errors import printable

    match options.format:
        case "json":
            import msgspec

            return msgspec.json.encode(drift)
        case "junit":
            return drift_junit(drift, locked.lock)
        case "sarif":
            from stream import __version__

            return drift_sarif(drift, __version__)
        case "markdown":
            return "\n".join(drift_markdown(drift)).encode()
        case _:
            return "\n".join(map(printable, drift_text(drift))).encode()


def _check_output(options: LockOptions, inputs: list[str]) -> None:
    """Raise StreamError where the output has no place. A lockfile may take that of one."""
    from stream.files.targets import check_outputs

    is_update = not options.check and _is_lockfile(options.output)
    check_outputs([options.output], inputs, force=options.force or is_update)


def _is_lockfile(name: str) -> bool:
    """Tell whether a file begins as lockfiles do, of any version."""
    try:
        with Path(name).open("rb") as file:
            return file.read(5) == b"lock "
    except (OSError, ValueError):
        return False


async def _write(output: str, data: bytes) -> None:
    """Write a text and a newline to stdout or to a file, which has its name when it is whole."""
    from stream.pipeline import Batch
    from stream.records.control import LINES
    from stream.sinks.ndjson import Ndjson

    async with Ndjson(output).open() as write:
        await write(Batch(LINES, [data]))


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
