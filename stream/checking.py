"""The composition behind `stream check`: a stream of events, a file of them, or a run folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyio import to_thread
from anyio.abc import ObjectSendStream
from msgspec import Struct, field

from stream.errors import InputError, os_reason
from stream.pipeline import Batch, Chain, Counts, Pipeline, Sink, Source
from stream.records.control import Finding
from stream.records.run import EVENTS_FILE, Profile
from stream.sources.ndjson import STDIN, NdjsonSource, check_readable
from stream.stages.invariants import Invariants

if TYPE_CHECKING:  # a stream of nothing but events needs none of it: it is half of the start
    from stream.stages.contracts import Contracts


class Answer(Struct):
    """The books of a check: of its lines, and of what was found."""

    counts: Counts
    events: int
    runs: int
    findings: int
    errors: int  #: findings that make the answer no
    unknown: int  #: lines of contracts that stream does not know


class FolderSource(Struct):
    """What a run folder shows beside its events, and what its evidence is, as findings."""

    root: Path
    contracts: Callable[[], Contracts]
    found: list[Finding] = field(default_factory=list)

    async def run(self, out: ObjectSendStream[Batch[Any]], /) -> None:
        # In a thread that an interrupt leaves behind: there may be gigabytes to hash.
        self.found = await to_thread.run_sync(self._examine, abandon_on_cancel=True)
        if self.found:
            await out.send(self.found)

    def _examine(self) -> list[Finding]:
        """Of a run that was cut off the last records may be torn: its events say that it was."""
        from stream.archive.alone import evidence_findings
        from stream.runfolder import examine, is_finished

        if not is_finished(self.root):
            return []
        boundaries = self.contracts().boundaries
        return [*examine(self.root, boundaries), *evidence_findings(self.root)]


async def run_check(
    name: str, profile: Profile | None, boundary: str | None, *sinks: Sink[Any]
) -> Answer:
    """`-`: whatever comes from stdin; a file: the events of one run; a folder: a whole run.

    Raises InputError where there is nothing to check.
    """

    target = Path(name)

    @cache
    def contracts() -> Contracts:
        from stream.pattern import carried_in, find_boundaries
        from stream.stages.contracts import Contracts

        return Contracts(find_boundaries(boundary, carried_in(target)))

    if boundary:
        contracts()  # what cannot be used is said before anything is read
    sources: list[Source[Any]] = []
    folder = FolderSource(target, contracts)
    if name != STDIN and _is_folder(folder.root):
        from stream.runfolder import check_folder, profile_of

        check_folder(folder.root)
        profile = profile or profile_of(folder.root)
        name = str(folder.root / EVENTS_FILE)
        sources = [folder]
    if not sources or Path(name).exists():
        check_readable([name])
        sources = [NdjsonSource(name), *sources]
    place = os.fsencode(name).decode(errors="replace")
    stage = Invariants(profile or "poc", is_alone=name != STDIN, source=place, contracts=contracts)
    await Pipeline[Any]((Chain(sources),)).through(lambda: stage).into(*sinks)
    return _answer(stage, folder.found)


def _is_folder(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        reason = os_reason(error) if isinstance(error, OSError) else str(error)
        raise InputError(f"{path}: {reason}") from None
    if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode):
        raise InputError(f"{path}: neither a run folder nor a file of events")
    return stat.S_ISDIR(mode)


def _answer(stage: Invariants, found: list[Finding]) -> Answer:
    lines = stage.counts
    lines.received -= len(found)
    lines.passed -= len(found)
    errors = sum(finding.severity == "error" for finding in found)
    findings = stage.findings + len(found)
    return Answer(lines, stage.events, stage.runs, findings, stage.errors + errors, stage.unknown)
