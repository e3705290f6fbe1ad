"""Split a matrix over several machines by a plan, and merge what they recorded.

A cell is named by a digest of host, mode, probe and repetition. Its record travels in an envelope
with that name, because a boundary object names neither host nor repetition.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import replace

from stream.boundary.scripts import MatrixPlan
from stream.codec import DECODE_ERRORS, decode_fault, read_document
from stream.errors import InputError, UsageError
from stream.matrix.plan import MatrixRequest
from stream.pipeline import Batch, Sink, Write
from stream.process.machine import system_name
from stream.records.boundary import UNKNOWN
from stream.records.control import BOUNDARY
from stream.records.lock import Envelope, MatrixPlanDocument, PlannedProbe, decode_plan
from stream.records.modes import decode_mode_boundary


class PlannedCell(Struct, frozen=True):
    """A cell of a plan. It is run once."""

    host: str
    mode: str
    probe: PlannedProbe
    repetition: int  #: counted from 0

    @property
    def digest(self) -> str:
        """Return the name of the cell."""
        parts = (self.host, self.mode, self.probe.id, self.repetition)
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()

    def __str__(self) -> str:
        again = f", repetition {self.repetition + 1}" if self.repetition else ""
        return f"{self.probe.id} ({self.mode}) on {self.host}{again}"


def read_plan(path: Path) -> MatrixPlanDocument:
    """Read a plan, or raise InputError with the place of what is wrong with it."""
    document = read_document(path)
    try:
        return decode_plan(msgspec.json.encode(document))
    except (*DECODE_ERRORS, UnicodeEncodeError) as error:
        raise InputError(f"{path}: {decode_fault(error)}: not a plan of a matrix") from None


def planned_cells(plan: MatrixPlanDocument) -> list[PlannedCell]:
    """Return the cells of a plan in the order of their records."""
    return [
        PlannedCell(host, mode, probe, repetition)
        for host in plan.hosts
        for mode in plan.modes
        for probe in plan.probes
        for repetition in range(plan.repeat)
    ]


def parse_shard(text: str) -> tuple[int, int]:
    """Parse the I/N of --shard, or raise UsageError."""
    found = re.fullmatch(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", text)
    if not found or int(found[1]) > int(found[2]):
        raise UsageError(f"--shard {text}: expected I/N, from 1/N to N/N")
    return int(found[1]), int(found[2])


def shard_of_plan(plan: MatrixPlanDocument, shard: int, shards: int) -> list[PlannedCell]:
    """Return the cells of shard `shard` of `shards`, in the order of the plan.

    Shards differ by one cell at most. They are cut from the cells sorted by probe, so that most
    probes have all their modes, and with them their control, in one shard; and by the digests of
    their names, so that those which are alike, and take as long, are spread.
    """
    cells = planned_cells(plan)
    order = sorted(range(len(cells)), key=lambda index: (_rank(cells[index].probe.id), index))
    first, end = (len(cells) * edge // shards for edge in (shard - 1, shard))
    return [cells[index] for index in sorted(order[first:end])]


def _rank(probe: str) -> bytes:
    return hashlib.sha256(probe.encode()).digest()


class MergedMatrix(Struct):
    """The records of a plan, and what keeps them from being exactly its set."""

    records: list[bytes] = field(default_factory=list)  #: in the order of the plan
    missing: list[PlannedCell] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)  #: the further records of a cell
    foreign: list[str] = field(default_factory=list)  #: records of no cell of the plan

    @property
    def is_whole(self) -> bool:
        """Return whether there is exactly one record for each cell, and no other."""
        return not (self.missing or self.doubled or self.foreign)


def merge_envelopes(
    plan: MatrixPlanDocument, envelopes: Iterable[tuple[str, Envelope]]
) -> MergedMatrix:
    """Merge envelopes, each with its place, to the records of a plan. The first one of a cell
    counts."""
    merged = MergedMatrix()
    cells = {cell.digest: cell for cell in planned_cells(plan)}
    records: dict[str, bytes] = {}
    places: dict[str, str] = {}
    for place, envelope in envelopes:
        cell = cells.get(envelope.cell)
        reason = _foreign_reason(cell, envelope)
        if reason:
            merged.foreign.append(f"{place}: {reason}")
        elif envelope.cell in records:
            merged.doubled.append(f"{place}: {cell}: {places[envelope.cell]} has it already")
        else:
            records[envelope.cell] = bytes(envelope.record)
            places[envelope.cell] = place
    merged.missing = [cell for digest, cell in cells.items() if digest not in records]
    merged.records = [records[digest] for digest in cells if digest in records]
    return merged


def _foreign_reason(cell: PlannedCell | None, envelope: Envelope) -> str:
    """Return why an envelope belongs to no cell of the plan; empty if it does."""
    if cell is None:
        return "no cell of the plan has this name"
    if envelope.host != cell.host:
        return f"{cell}: it comes from {envelope.host}"
    record = decode_mode_boundary(bytes(envelope.record))
    found, planned = record.probe, cell.probe
    if (record.run.mode, found.id) != (cell.mode, planned.id):
        return f"{cell}: its record is of {found.id} ({record.run.mode})"
    # A record that the harness wrote knows no version.
    if planned.version is None or found.version in (planned.version, UNKNOWN):
        return ""
    return f"{cell}: its record is of version {found.version}"


def envelope_of(cell: PlannedCell, record: bytes) -> Envelope:
    """Put the record of a cell into an envelope."""
    return Envelope(cell=cell.digest, host=cell.host, record=Raw(record))


def plan_document(plan: MatrixPlan, host: str | None) -> MatrixPlanDocument:
    """Return the plan of a matrix that machines of one kind are to measure. Raise UsageError if it
    is not one of modes."""
    if plan.measured is None or len(plan.measured.modes) < 2:
        raise UsageError("a plan is of modes: --mode names them")
    name, *_, machine = system_name().lower().split()
    return MatrixPlanDocument(
        hosts=[host or f"{name}-{machine}"],
        modes=[mode.name for mode in plan.measured.modes],
        probes=[PlannedProbe(script.id, script.version) for script in plan.scripts],
        repeat=plan.repeat,
    )


class Shard(Struct):
    """A part of a plan that one machine measures.

    It runs all modes of its probes, because each cell needs its control, but records only its own
    cells.
    """

    plan: MatrixPlanDocument  #: of the one host, and of the probes that have a cell in the shard
    cells: list[PlannedCell]

    def fill_request(self, request: MatrixRequest) -> MatrixRequest:
        """Return a request for what the shard has to run."""
        return replace(
            request,
            probes=[probe.id for probe in self.plan.probes],
            modes=self.plan.modes,
            repeat=self.plan.repeat,
            from_outside=True,
        )

    def seal_records(self, sink: Sink) -> EnvelopeSink:
        """Return a sink that puts the records of the cells into envelopes."""
        return EnvelopeSink(sink, self)


def make_shard(plan: MatrixPlanDocument, shard: str, host: str | None) -> Shard:
    """Return a shard of a plan, by the words of --shard and --host. Raise UsageError."""
    hosts = ", ".join(plan.hosts)
    if host is None and len(plan.hosts) > 1:
        raise UsageError(f"the plan has several hosts: --host names this one of {hosts}")
    if host is not None and host not in plan.hosts:
        raise UsageError(f"--host {host}: the plan has {hosts}")
    part = replace(plan, hosts=[host or plan.hosts[0]])
    cells = shard_of_plan(part, *parse_shard(shard))
    if not cells:
        raise UsageError(f"--shard {shard}: the plan has fewer cells than shards")
    probes = {cell.probe for cell in cells}
    return Shard(replace(part, probes=[one for one in plan.probes if one in probes]), cells)


class EnvelopeSink(Struct):
    """Writes the records of a shard's cells in envelopes, and leaves out the others."""

    sink: Sink
    shard: Shard
    kinds: Collection[str] = (BOUNDARY,)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Write]:
        """Open the sink, and give a writer for the records of the matrix."""
        wanted = {cell.digest for cell in self.shard.cells}
        cells = groupby(planned_cells(self.shard.plan), lambda cell: (cell.mode, cell.probe.id))
        # The runs of one probe in one mode are alike: the first record is of the first.
        left = {key: iter([*repetitions]) for key, repetitions in cells}

        async with self.sink.open() as write:

            async def seal(batch: Batch[bytes]) -> None:
                """Put the records of a batch into envelopes."""
                sealed = []
                for line in batch.items:
                    record = decode_mode_boundary(line)
                    cell = next(left[record.run.mode, record.probe.id])
                    if cell.digest in wanted:
                        sealed.append(msgspec.json.encode(envelope_of(cell, line)))
                if sealed:
                    await write(Batch(BOUNDARY, sealed))

            yield seal
