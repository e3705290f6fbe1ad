"""The command `stream lock`: the measured boundary as a file, and what drifted from it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from stream.cli.measurement import (
    MeasureCommand,
    MeasureOptions,
    measured_records,
    modes_to_lock,
    plan_modes,
)
from stream.cli.options import Force, make_command, split_words
from stream.cli.runner import number, print_note, run_to_exit

if TYPE_CHECKING:
    from stream.boundary.modes import Mode
    from stream.compare.lockfile import MeasuredBoundary, ParsedLock
    from stream.records.lock import BoundaryDrift
    from stream.records.modes import ModeBoundary

_LOCKFILE = "boundary.lock"
_SHOWN = 20


def register(app: typer.Typer) -> None:
    """Add `stream lock` to the command line."""
    app.command(cls=MeasureCommand)(make_command(LockOptions, lock))


class LockOptions(MeasureOptions):
    """Holds the options of `stream lock`."""

    words: list[str] = typer.Argument(
        None,
        metavar="[FILE…]",
        help="Records of `stream matrix --mode`, or `-`: stdin. Without any, it measures. With"
        f" --check, the lockfile comes before them. Default: {_LOCKFILE}.",
    )
    check: bool = typer.Option(
        False, "--check", help="Compare the lockfile with a measurement, and write what drifted."
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
      stream lock --mode bwrap-ro bwrap-offline --repeat 3 -o boundary.lock
      stream lock -o boundary.lock
      stream lock --check
      stream lock --check boundary.lock --format sarif -o drift.sarif
      stream matrix --mode bwrap-ro -o boundary.ndjson && stream lock boundary.ndjson

    It measures as `stream matrix --mode` does, or reads the records of one. --mode, --probe and
    --cap take several words: FILE comes before them. With --check, only what is locked is
    measured, unless they name more, and cells that they leave out are not compared.

    --check says what opened, first, then what closed, what can no longer be measured, and what
    is measured and not locked. In JUnit, a drift is a failure, and what was not measured is
    skipped with its reason. SARIF points at the line of the lockfile. A cell that came to the
    same for another reason, a kernel or a sandbox of another version are reported, and are no
    drift.

    Exit 0 if the boundary is as locked, 1 if it drifted, 2 if the lockfile cannot be used: it
    has conflict markers, was edited by hand or comes from a newer version. stderr names each
    such line. --policy also reports every cell that contradicts what a file promises, with exit
    1 if something got through that it denies. 40 if a mode that is to be locked cannot be run here.
    """
    if options.format and not options.check:
        raise typer.BadParameter("--format goes with --check")
    if options.records and (options.mode or options.probe or options.cap):
        raise typer.BadParameter("--mode, --probe and --cap measure: they do not go with records")
    run_to_exit(lambda: _check_lock(options) if options.check else _write_lock(options))


def _read_records(options: LockOptions) -> Iterator[ModeBoundary]:
    """Yield the records of files. Raise InputError for a line that is none."""
    from stream.codec import read_records

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


async def _write_lock(options: LockOptions) -> int:
    """Write the lockfile of what is measured, and return the exit code."""
    from stream.compare.lockfile import (
        UNTOLD,
        lock_lines,
        measured_boundary,
        outcomes_of,
        unmeasured_modes,
    )
    from stream.errors import InputError, RequiredError

    _check_output(options, options.records)
    promises = options.promises  # what is wrong with them is told before anything is measured
    if options.records:
        found = await _boundary_of_files(options)
    else:
        names = split_words(options.mode, "--mode") or _modes_of_lockfile(options.output)
        plan = plan_modes(options, names or modes_to_lock())
        for name, reason in plan.measured.unavailable if plan.measured else ():
            raise RequiredError(f"mode {name} cannot be run here: {reason}")
        found = measured_boundary(promises.judged(await measured_records(options, plan)))
    cells, modes = found.lock.cells, found.lock.modes
    if not cells:
        raise InputError("there is nothing to lock: no record of a mode besides baseline")
    for name, reason in unmeasured_modes(found).items():
        raise RequiredError(f"mode {name}: nothing could be measured in it: {reason}")
    await _write(options.output, "\n".join(lock_lines(found.lock)).encode())
    outcomes = [outcomes_of(cell.state) for cell in cells]
    counts = {
        "flaky": sum(len(one) > 1 for one in outcomes),
        "not measured": sum(one <= UNTOLD for one in outcomes),
        "broken": len(found.broken),
    }
    what = f"{number(len(cells), 'cell')} in {number(len(modes), 'mode')}"
    print_note(f"lock: {what}" + "".join(f", {n} {word}" for word, n in counts.items() if n))
    return options.report_promises()


async def _check_lock(options: LockOptions) -> int:
    """Compare the lockfile with a measurement, write what drifted, and return the exit code."""
    from stream.compare.drift import drift_of_lock, drift_summary, has_drift

    _check_output(options, [options.lockfile, *options.records])
    locked = read_lockfile(options.lockfile)
    for fault in locked.faults[:_SHOWN]:
        print_note(f"stream: {fault}")
    if len(locked.faults) > _SHOWN:
        print_note(f"… and {len(locked.faults) - _SHOWN} more")
    if locked.faults:
        return 2
    if options.records:
        drift = drift_of_lock(locked, await _boundary_of_files(options), options.lockfile)
    else:
        locked, drift = await _measured_drift(options, locked)
    await _write(options.output, _formatted_drift(options, drift, locked))
    if options.output != "-" or options.format not in (None, "text"):
        print_note(f"lock: {drift_summary(drift)}")
    is_broken = options.report_promises()
    return 1 if has_drift(drift) else is_broken


async def _boundary_of_files(options: LockOptions) -> MeasuredBoundary:
    """Return the boundary that the records of files came to. A pipe may keep us waiting."""
    from anyio import to_thread

    from stream.compare.lockfile import measured_boundary
    from stream.errors import InputError

    found = await to_thread.run_sync(
        lambda: measured_boundary(options.promises.judged(_read_records(options))),
        abandon_on_cancel=True,
    )
    if not found.lock.cells:
        names = ", ".join(options.records)
        raise InputError(f"{names}: no record of a mode besides baseline")
    return found


async def _measured_drift(
    options: LockOptions, locked: ParsedLock
) -> tuple[ParsedLock, BoundaryDrift]:
    """Measure the modes of a lockfile, and compare. Return what was compared, and the drift."""
    from stream.boundary.modes import find_modes
    from stream.compare.drift import drift_of_lock
    from stream.compare.lockfile import measured_boundary, part_of_lock
    from stream.errors import UsageError

    promises = options.promises
    names, absent = split_words(options.mode, "--mode"), dict[str, str]()
    if not names:
        known = {mode.name for mode in find_modes()}
        names = [mode.name for mode in locked.lock.modes if mode.name in known]
        unknown = {mode.name for mode in locked.lock.modes} - known
        absent = dict.fromkeys(unknown, "there is no such mode: --mode names its file")
    plan = plan_modes(options, names, (cell.probe for cell in locked.lock.cells))
    assert plan.measured is not None
    absent |= dict(plan.measured.unavailable)
    _check_names({mode.name for mode in locked.lock.modes}, plan.measured.modes, options.lockfile)
    modes = {*absent, *(mode.name for mode in plan.measured.modes)}
    probes = {script.id for script in plan.scripts} if options.probe or options.cap else None
    part = part_of_lock(
        locked, lambda cell: cell.mode in modes and (probes is None or cell.probe in probes)
    )
    found = measured_boundary(promises.judged(await measured_records(options, plan)))
    if not part.lock.cells and not found.lock.cells:
        raise UsageError("there is nothing to compare: no cell of the lockfile, and no mode")
    drift = drift_of_lock(part, found, options.lockfile, absent)
    if left_out := len(locked.lock.cells) - len(part.lock.cells):
        cells = number(left_out, "cell")
        drift.notes.append(f"{cells} not compared: --mode, --probe and --cap leave them out")
    return part, drift


def _check_names(locked: set[str], modes: Iterable[Mode], lockfile: str) -> None:
    """Raise UsageError for modes of which nothing is locked: there is nothing to compare."""
    from stream.errors import UsageError
    from stream.records.modes import BASELINE

    names = {mode.name for mode in modes} - {BASELINE}
    if names and locked and not names & locked:
        name, one = min(names), min(locked)
        raise UsageError(
            f"{lockfile}: mode {name} is not locked. To compare a changed copy of a mode, keep the"
            f" name of its file: --mode changed/{one}.toml"
        )


def read_lockfile(name: str) -> ParsedLock:
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

    is_update = not options.check and is_lockfile(options.output)
    check_outputs([options.output], [*inputs, *options.policy], force=options.force or is_update)


def is_lockfile(name: str) -> bool:
    """Tell whether a file begins as lockfiles do, of any version."""
    try:
        with Path(name).open("rb") as file:
            return file.read(5) == b"lock "
    except (OSError, ValueError):
        return False


def _modes_of_lockfile(name: str) -> list[str]:
    """Return the modes of a lockfile that is replaced, also of one with conflicts."""
    if not is_lockfile(name):
        return []
    text = Path(name).read_text("ascii", "replace")
    return [*dict.fromkeys(re.findall(r"^mode  ([a-z0-9][a-z0-9._-]*)  ", text, re.MULTILINE))]


async def _write(output: str, data: bytes) -> None:
    """Write a text and a newline to stdout or to a file, which has its name when it is whole."""
    from stream.pipeline import Batch
    from stream.records.control import LINES
    from stream.sinks.ndjson import Ndjson

    async with Ndjson(output).open() as write:
        await write(Batch(LINES, [data]))
