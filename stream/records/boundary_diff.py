"""What two matrices say of the same cells: the record that `stream diff` writes of them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

BOUNDARY_DIFF = "stream.boundary_diff.v1"

#: `mixed`: repeated runs of one cell that ended differently. `absent`: there is no record of it.
Outcome = Literal["success", "denied", "partial", "error", "mixed", "absent"]


class CellSide(Struct, forbid_unknown_fields=True, frozen=True):
    """How one cell ended on one side, by its last record."""

    outcome: Outcome
    errno: str | None = None
    message: str | None = None


class CellChange(Struct, forbid_unknown_fields=True, frozen=True):
    """A cell that ended otherwise on the two sides."""

    probe: str
    mode: str
    capability: str
    base: CellSide
    head: CellSide


class BoundaryDiff(Struct, tag_field="schema", tag=BOUNDARY_DIFF, forbid_unknown_fields=True):
    """Every cell of either side stands in one of the lists, or is counted as unchanged."""

    base: str
    head: str
    opened: list[CellChange]  #: more is possible than was
    closed: list[CellChange]  #: less is possible than was
    unmeasured: list[CellChange]  #: it was measured, and no longer is
    measured: list[CellChange]  #: it is measured now, and was not
    unchanged: int
    notes: list[str]
