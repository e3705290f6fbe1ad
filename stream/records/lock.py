"""The contracts of a locked boundary, and of a matrix that several machines share.

`stream lock` makes a `BoundaryLock` of records, `stream lock --check` a `BoundaryDrift` of a lock
and a new measurement. A `MatrixPlanDocument` says which cells a matrix has; an `Envelope` carries
the record of one of them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct, ValidationError

from stream.records.boundary import Name, Text
from stream.records.control import FrozenRecord, Record, Sha256
from stream.records.modes import ModeName, decode_mode_boundary

BOUNDARY_DRIFT = "stream.boundary_drift.v1"
MATRIX_PLAN = "stream.matrix_plan.v1"
ENVELOPE = "stream.envelope.v1"

_UNIQUE = Meta(min_length=1, extra_json_schema={"uniqueItems": True})
CellKey = tuple[str, str, str]  #: mode, capability, probe


class CellState(Struct, forbid_unknown_fields=True, frozen=True):
    """What a cell came to, in the words of the lockfile."""

    #: An outcome, or flaky(…) with the rate of each outcome that repeated runs had.
    outcome: str
    #: Class of the error; `-` when there was none.
    errno: str
    #: Whether the expected effect was seen on the host, and `+` before each other one that was.
    effect: str
    control: str  #: Whether the probe got through without the sandbox.
    version: str  #: Version of the probe.


class LockCell(Struct, frozen=True):
    """A line of the lockfile: a cell, and what it came to."""

    mode: str
    capability: str
    probe: str
    state: CellState

    @property
    def key(self) -> CellKey:
        """Return what names the cell, and what the lockfile is sorted by."""
        return self.mode, self.capability, self.probe


class LockMode(Struct, frozen=True):
    """A line in the head of the lockfile: a mode, its sandbox, and the kernel and the user of its
    probes."""

    name: str
    sandbox: str | None
    version: str | None
    kernel: str
    user: Literal["root", "ordinary"]  #: what kind of user the probes ran as
    settings_sha256: str | None


class BoundaryLock(Struct, frozen=True):
    """A lockfile: modes sorted by name, cells sorted by key."""

    modes: tuple[LockMode, ...]
    cells: tuple[LockCell, ...]


class CellDrift(Struct, forbid_unknown_fields=True, frozen=True):
    """A cell, as it is locked and as it was measured."""

    mode: str  #: Name of the mode.
    capability: str  #: The capability that the probe tests.
    probe: str  #: Id of the probe.
    line: int | None  #: Line of the lockfile; null when the cell is not in it.
    locked: CellState | None  #: As it is locked; null when it is not.
    measured: CellState | None  #: As it was measured; null when there is no record of it.
    #: Why the cell is not measured now; empty when it is.
    reason: str
    is_broken: bool  #: Whether the harness wrote a record of it, because the probe failed to.


class BoundaryDrift(Record, tag=BOUNDARY_DRIFT):
    """Every cell of the lock and of the measurement stands in one of the lists, or is counted as
    unchanged. A drift is a cell of the first four."""

    lock: str  #: The lockfile.
    opened: list[CellDrift]  #: More gets through than is locked.
    closed: list[CellDrift]  #: Less gets through than is locked.
    unmeasured: list[CellDrift]  #: What is locked can no longer be measured.
    measured: list[CellDrift]  #: It is measured now, and is not locked.
    #: It came to the same with another errno class, effect or control.
    changed: list[CellDrift]
    untold: list[CellDrift]  #: It is measured neither here nor in the lock.
    unchanged: int  #: How many cells came to what is locked.
    notes: list[str]  #: What differs around the cells: kernels, sandboxes, versions of probes.


class PlannedProbe(Struct, forbid_unknown_fields=True, frozen=True):
    """A probe of a plan."""

    id: Name  #: Id of the probe.
    version: str | None  #: Version that its records must have; null when it is not known.


class MatrixPlanDocument(FrozenRecord, tag=MATRIX_PLAN, frozen=True, kw_only=True):
    """The cells of a matrix: each probe in each mode on each host, as often as it is repeated."""

    hosts: Annotated[list[Text], _UNIQUE]  #: Names of the machines that measure.
    modes: Annotated[list[ModeName], _UNIQUE]  #: Modes, in the order of the records.
    #: Probes, in the order of the records.
    probes: Annotated[list[PlannedProbe], Meta(min_length=1)]
    #: How often each cell is run.
    repeat: Annotated[int, Meta(ge=1, le=1_000_000)] = 1


class Envelope(FrozenRecord, tag=ENVELOPE, frozen=True, kw_only=True):
    """The record of one cell of a plan."""

    cell: Sha256  #: SHA-256 that names the cell.
    host: Text  #: The host that measured it.
    record: Raw  #: The boundary object.


# Of a union, which demands the tag.
_decode = msgspec.json.Decoder(MatrixPlanDocument | Envelope).decode


def decode_plan(line: bytes) -> MatrixPlanDocument:
    """Decode a plan, or raise a msgspec.ValidationError with its JSON path."""
    plan = _decode(line)
    if not isinstance(plan, MatrixPlanDocument):
        raise ValidationError(f"expected `{MATRIX_PLAN}` - at `$.schema`")
    for name, values in (
        ("hosts", plan.hosts),
        ("modes", plan.modes),
        ("probes", [probe.id for probe in plan.probes]),
    ):
        if len({*values}) < len(values):
            raise ValidationError(f"expected different names - at `$.{name}`")
    return plan


def decode_envelope(line: bytes) -> Envelope:
    """Decode an envelope and look at the record in it, or raise a msgspec.ValidationError."""
    envelope = _decode(line)
    if not isinstance(envelope, Envelope):
        raise ValidationError(f"expected `{ENVELOPE}` - at `$.schema`")
    try:
        decode_mode_boundary(bytes(envelope.record))
    except ValidationError as error:
        raise ValidationError(str(error).replace(" - at `$", " - at `$.record")) from None
    return envelope
