"""Compare the layers of two runs line by line, without numbers that change in every run.

Canonical labels: a process number in `pid`, `child` or `target` becomes `p1`, `p2`, … in order of
first appearance, in layers/kernel.ndjson and then in layers/kernel-ext.ndjson; `run_id` becomes
`run`; the path of the run's folder becomes `(run)`, if its events name that folder. Everything else
stays as it is, also descriptor numbers in `return_value`. A line that is not a JSON object is
compared as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import zip_longest

import msgspec
from msgspec import Struct

from stream.codec import DECODE_ERRORS
from stream.compare.evidence import (
    DamagedError,
    Evidence,
    evidence_of,
    has_any,
    read_artifacts,
    read_lines,
)
from stream.compare.names import RUN_FOLDER
from stream.errors import InputError
from stream.evidence.health import degraded
from stream.records.artifacts import (
    DETAIL_FILE,
    HEALTH_FILE,
    KERNEL_FILE,
    MARKERS_FILE,
    POLICY_FILE,
    SDK_FILE,
)

LAYERS = (KERNEL_FILE, DETAIL_FILE, SDK_FILE, POLICY_FILE, MARKERS_FILE)
_PROCESSES = ("pid", "child", "target")
_TREE_ONLY = "cgroup_correlation=failed"  #: as with strace, which follows every process


class LineDifference(Struct, frozen=True):
    """The first line in which two layers differ. None: the layer has ended."""

    line: int
    base: bytes | None
    head: bytes | None


class LayerComparison(Struct, frozen=True):
    """The result for one layer."""

    layer: str
    lines: int  #: of the longer one
    difference: LineDifference | None


class Labels:
    """The labels of one run: a process has the same label in all layers."""

    def __init__(self, run_folder: str = "") -> None:
        self._known: dict[int, str] = {}
        way = re.escape(msgspec.json.encode(run_folder)[1:-1])
        letter = rb"[\w.\x80-\xff-]"  # of a longer name; but for one that JSON escapes
        bounded = rb"(?:(?<!%b)|(?<=\\[bfnrt]))%b(?!%b)" % (letter, way, letter)
        self._way = re.compile(bounded) if run_folder else None

    def label_of(self, number: int) -> str:
        """Return the label of a process number."""
        label = self._known.get(number)
        if label is None:
            label = self._known[number] = f"p{len(self._known) + 1}"
        return label

    def without_folder(self, line: bytes) -> bytes:
        """Replace the path of the run's folder."""
        return line if self._way is None else self._way.sub(RUN_FOLDER.encode(), line)


def canonical_lines(lines: Iterable[bytes], labels: Labels | None = None) -> Iterator[bytes]:
    """Yield the lines with labels in place of what changes in every run."""
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
            fields[name] = labels.label_of(number)
    return labels.without_folder(msgspec.json.encode(fields))


class CanonicalLayers:
    """The layers of one run, and whether they are complete."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.damage = ""  #: why they cannot be compared
        evidence = Evidence()
        try:
            evidence = evidence_of(read_artifacts(path))
        except DamagedError as error:
            self.damage = str(error)
        if not self.damage and not has_any(path, LAYERS):
            raise InputError(f"{path}: there are no layers to compare")
        self._labels = Labels(evidence.folder)
        self.doubts = [*_doubts(evidence)]  #: why they may be incomplete

    def lines(self, layer: str) -> Iterator[bytes]:
        """Yield the canonical lines of a layer."""
        return canonical_lines(read_lines(self._path, layer), self._labels)


def _doubts(evidence: Evidence) -> Iterator[str]:
    yield from (problem for problem in evidence.problems if problem.startswith(HEALTH_FILE))
    fields = [] if evidence.health is None else degraded(evidence.health)
    if seen := [field for field in fields if field != _TREE_ONLY]:
        yield f"{HEALTH_FILE}: {' '.join(seen)}"


def compare(base: CanonicalLayers, head: CanonicalLayers) -> Iterator[LayerComparison]:
    """Compare layer by layer, each to its end: the labels of later layers depend on it."""
    for layer in LAYERS:
        number, difference = 0, None
        both = zip_longest(base.lines(layer), head.lines(layer))
        for number, (one, other) in enumerate(both, 1):
            if difference is None and one != other:
                difference = LineDifference(number, one, other)
        yield LayerComparison(layer, number, difference)
