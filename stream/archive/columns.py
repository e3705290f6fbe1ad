"""Many kernel events at once: what each of them says, by column.

There are millions of events, and few forms of them. What is asked of one column or of one form
is asked once for many events.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import astuple

from stream.evidence.contracts import decoder_of
from stream.evidence.surface import ways_of
from stream.records.kernel import KERNEL_EVENT, OPEN, KernelEvent, OperationFlag, RunId

_WORD = (1 << 64) - 1
_PLAIN: dict[str, Any] = {
    "run_id": str,
    "kind": str,
    "operation_flags": tuple[OperationFlag, ...] | msgspec.UnsetType,
}
#: The same but for the two patterns, which cost as much as all else. Who decodes by it sees to the
#: kinds, and one look at a run_id is enough for all that are the same.
_PlainEvent: Any = msgspec.defstruct(
    "_PlainEvent",
    [
        (field.name, _PLAIN.get(field.name, field.type), field.default)
        if field.default is not msgspec.NODEFAULT
        else (field.name, _PLAIN.get(field.name, field.type))
        for field in msgspec.structs.fields(KernelEvent)
    ],
    tag_field="schema",
    tag=KERNEL_EVENT,
    forbid_unknown_fields=True,
    kw_only=True,
    gc=False,
)


class KernelDecoder:
    def __init__(self) -> None:
        self.decode = decoder_of(KernelEvent)
        self._decode_lines = msgspec.json.Decoder(_PlainEvent).decode_lines

    def decode_lines(self, block: bytes) -> list[Any]:
        events = self._decode_lines(block)
        if events:
            msgspec.convert(events[0].run_id, RunId)
        return events


class Form(NamedTuple):
    """What an event has in common with many others."""

    event_type: int
    kind: str
    flags: Any
    return_value: Any
    access_mode: Any
    operation_flags: Any  #: UNSET or a tuple
    status: Any


class Columns(Struct):
    records: Sequence[Any]
    named: Sequence[str]  #: the run that each is of
    seqs: tuple[int, ...]
    pids: Sequence[int]
    types: Sequence[int]
    values: Sequence[str | None]
    forms: Sequence[tuple[Any, ...]]  #: what `Form` has
    different_forms: set[tuple[Any, ...]]

    @property
    def run_ids(self) -> set[str]:
        return set(self.named)


def columns_of(events: Sequence[Any]) -> Columns:
    """Of one event or more."""
    columns = zip(*map(astuple, events), strict=True)
    run_ids, seqs, pids, types, kinds, values, flags, _, _, *ends = columns
    returned, accesses, operations, statuses = ends
    try:
        hash(operations)
    except TypeError:  # lists, in a `KernelEvent`
        operations = tuple(said if said is UNSET else tuple(said) for said in operations)
    forms = [*zip(types, kinds, flags, returned, accesses, operations, statuses, strict=True)]
    return Columns(events, run_ids, seqs, pids, types, values, forms, {*forms})


class End(NamedTuple):
    """Of an open."""

    ways: int | None  #: of one that succeeded
    result: int | None = None


@lru_cache(10_000)
def end_of(values: tuple[Any, ...]) -> End | None:
    form = Form(*values)
    if form.event_type != OPEN:
        return None
    if form.status == "success":
        return End(ways_of(form.access_mode, form.operation_flags))
    return End(None, None if form.return_value is UNSET else form.return_value)


def words(numbers: Sequence[int]) -> bytes:
    try:
        return array("Q", numbers).tobytes()
    except OverflowError:
        return array("Q", [number & _WORD for number in numbers]).tobytes()
