"""The layers of two runs, line by line, without what is another number in every run.

Canonical labels: a process number in `pid` or `child` becomes `p1`, `p2`, … in the order in which
the numbers are first met, in layers/kernel.ndjson and then in layers/kernel-ext.ndjson; `run_id`
becomes `run`. Everything else stays as it is, descriptor numbers in `return_value` as well. A line
that is no JSON object is compared as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest

import msgspec
from msgspec import Struct

from stream.codec import DECODE_ERRORS
from stream.errors import InputError
from stream.evidence.artifacts import has_any, read_lines
from stream.records.runner import DETAIL_FILE, KERNEL_FILE, MARKERS_FILE, POLICY_FILE, SDK_FILE

LAYERS = (KERNEL_FILE, DETAIL_FILE, SDK_FILE, POLICY_FILE, MARKERS_FILE)
_PROCESSES = ("pid", "child")


class Parting(Struct, frozen=True):
    """The first line in which two layers differ. None: the layer is over."""

    line: int
    base: bytes | None
    head: bytes | None


class Compared(Struct, frozen=True):
    layer: str
    lines: int  #: of the longer one
    parting: Parting | None


class Labels:
    """One for all layers of a run: the same process has one label in all of them."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def of(self, number: int) -> str:
        label = self._known.get(number)
        if label is None:
            label = self._known[number] = f"p{len(self._known) + 1}"
        return label


def canonical_lines(lines: Iterable[bytes], labels: Labels | None = None) -> Iterator[bytes]:
    labels = labels or Labels()
    for line in lines:
        yield _canonical(line, labels)


def _canonical(line: bytes, labels: Labels) -> bytes:
    try:
        fields = msgspec.json.decode(line)
    except DECODE_ERRORS:
        return line
    if not isinstance(fields, dict):
        return line
    if "run_id" in fields:
        fields["run_id"] = "run"
    for name in _PROCESSES:
        number = fields.get(name)
        if isinstance(number, int) and not isinstance(number, bool):
            fields[name] = labels.of(number)
    return msgspec.json.encode(fields)


def compare(base: str, head: str) -> Iterator[Compared]:
    """Layer by layer, and to the end of each: the labels of the next ones depend on it."""
    for path in (base, head):
        if not has_any(path, LAYERS):
            raise InputError(f"{path}: there are no layers to compare")
    labels = Labels(), Labels()
    for layer in LAYERS:
        ours, theirs = (
            canonical_lines(read_lines(path, layer), own)
            for path, own in zip((base, head), labels, strict=True)
        )
        number, parting = 0, None
        for number, (one, other) in enumerate(zip_longest(ours, theirs), 1):
            if parting is None and one != other:
                parting = Parting(number, one, other)
        yield Compared(layer, number, parting)
