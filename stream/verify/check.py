"""The compositions behind `stream check`, `stream validate` and `stream verify`.

Each joins its sources with the transformer that checks. What reads a run folder or an archive is
imported where one is given: a filter starts without.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from anyio import to_thread
from msgspec import Struct, field

from stream.boundary.descriptors import Boundaries
from stream.codec import (
    DECODE_ERRORS,
    LARGEST,
    BrokenDocument,
    Lines,
    parse_document,
    split_json_path,
)
from stream.errors import InputError, os_reason, reporting
from stream.pipeline import Batch, Chain, Counts, Out, Pipeline, Sink, Source
from stream.records.control import FINDINGS, LINES, Finding
from stream.records.run import EVENTS_FILE, Profile
from stream.sources.ndjson import STDIN, NdjsonSource, check_readable
from stream.transformers.invariants import Invariants
from stream.transformers.validate import Validate

if TYPE_CHECKING:
    from stream.archive.reader import Limits
    from stream.contracts import Contracts
    from stream.verify.report import VerifyReport


class CheckResult(Struct):
    """Counts the lines of a check, and what was found."""

    counts: Counts
    events: int
    runs: int
    findings: int
    errors: int  #: findings that make the answer no
    unknown: int  #: lines of contracts that stream does not know


class FindingsSource(Struct):
    """Sends the findings about an archive or a run folder, all at once."""

    find: Callable[[], list[Finding]]
    found: list[Finding] = field(default_factory=list)

    async def run(self, out: Out, /) -> None:
        """Collect the findings of a check in a thread, then send them."""
        # In a thread that an interrupt leaves behind: there may be gigabytes to read.
        self.found = await to_thread.run_sync(self.find, abandon_on_cancel=True)
        if self.found:
            await out.send(Batch(FINDINGS, self.found))


async def run_check(
    name: str, profile: Profile | None, boundary: str | None, *sinks: Sink
) -> CheckResult:
    """Check the events of one run in a file, a whole run in a folder, or, for `-`, stdin.

    Raise InputError where there is nothing to check.
    """

    target = Path(name)

    @cache
    def contracts() -> Contracts:
        """Load the contracts that the records are held to."""
        from stream.boundary.descriptors import carried_descriptors_in, find_boundaries
        from stream.contracts import Contracts

        return Contracts(find_boundaries(boundary, carried_descriptors_in(target)))

    if boundary:
        contracts()  # what cannot be used is said before anything is read
    sources: list[Source] = []
    examined = FindingsSource(list)
    if name != STDIN and _is_run_folder_to_check(target):
        from stream.verify.run_folder import RunFolder, run_folder_findings

        run = RunFolder(target)
        run.require_run_folder()
        profile = profile or run.profile
        name = str(target / EVENTS_FILE)
        examined = FindingsSource(lambda: [*run_folder_findings(run, contracts().boundaries)])
        sources = [examined]
    if not sources or Path(name).exists():
        check_readable([name])
        sources = [NdjsonSource(name), *sources]
    source = os.fsencode(name).decode(errors="replace")
    stage = Invariants(profile or "poc", is_alone=name != STDIN, source=source, contracts=contracts)
    await Pipeline((Chain(sources),)).through(stage).into(*sinks)
    return _check_result(stage, examined.found)


def _is_run_folder_to_check(path: Path) -> bool:
    """Tell whether `stream check` got a run folder. Raise InputError for what it cannot read."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        reason = os_reason(error) if isinstance(error, OSError) else str(error)
        raise InputError(f"{path}: {reason}") from None
    if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode):
        raise InputError(f"{path}: neither a run folder nor a file of events")
    return stat.S_ISDIR(mode)


def _check_result(stage: Invariants, found: list[Finding]) -> CheckResult:
    """Sum up the findings about the events and the run folder as the result of a check."""
    errors = sum(finding.severity == "error" for finding in found)
    findings = stage.findings + len(found)
    return CheckResult(
        stage.counts, stage.events, stage.runs, findings, stage.errors + errors, stage.unknown
    )


async def run_verify(
    target: Path, limits: Limits, boundary: str | None, *sinks: Sink
) -> VerifyReport:
    """Verify an archive or a run folder, and send what was found to the sinks.

    Raise InputError where there is nothing to verify.
    """
    from stream.verify.session import verify

    reports: list[VerifyReport] = []

    def find() -> list[Finding]:
        """Verify, and keep the report."""
        reports.append(verify(target, limits, boundary))
        return reports[0].findings

    await Pipeline((FindingsSource(find),)).into(*sinks)
    return reports[0]


class DocumentSource(Struct):
    """Sends one JSON value that spans lines as the one line that it would be."""

    name: str

    async def run(self, out: Out, /) -> None:
        """Send the whole document as one line."""
        with reporting(self.name):
            data = Path(self.name).read_bytes()
        try:
            parse_document(data)
            # Only white space is taken out: numbers stay as they are written.
            line = msgspec.json.format(data, indent=-1)
        except (*DECODE_ERRORS, ValueError) as error:
            if any(map(_is_record_line, data.splitlines()[1:])):  # a stream whose first line is bad
                await NdjsonSource(self.name).run(out)
                return
            line = BrokenDocument.of(data, split_json_path(str(error)))
        await out.send(Batch(LINES, Lines([line], self.name, 1, 0)))


def _is_record_line(line: bytes) -> bool:
    """Return whether a line is a whole object, not indented: no document is written like that."""
    if not line.startswith(b"{"):
        return False
    try:
        return isinstance(msgspec.json.decode(line), dict)
    except (*DECODE_ERRORS, ValueError):
        return False


async def run_validate(
    names: Sequence[str], boundaries: Boundaries, *sinks: Sink, as_filter: bool
) -> Validate:
    """Validate one input after the other, in the order given. The transformer that it returns has
    the counts."""
    stage = Validate(boundaries, is_last=not as_filter)
    sources = [DocumentSource(name) if is_document(name) else NdjsonSource(name) for name in names]
    await Pipeline((Chain(sources),)).through(stage).into(*sinks)
    return stage


def is_document(name: str) -> bool:
    """Return whether a file is one JSON value over several lines, not a stream of lines.

    Only the first line is looked at: nothing but an opening bracket, or the beginning of
    a value in a file that is called .json.
    """
    path = Path(name)
    with reporting(name):
        if name == STDIN or not path.is_file():
            return False
        with path.open("rb") as file:
            first = file.readline(LARGEST).strip()
            small = path.stat().st_size <= LARGEST
    if first in (b"{", b"["):
        return small
    if path.suffix != ".json" or not small:
        return False
    try:
        msgspec.json.decode(first)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True
    return False
