"""What is particular to each layer: its records, and what a record says twice.

Each law is said two ways: one record at a time, with reasons, and of many records at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from stream.archive.columns import Columns, Form, KernelDecoder, columns_of
from stream.evidence.consistency import faults_of, form_faults, mode_faults
from stream.evidence.contracts import decode_runner_event, decoder_of
from stream.records.control import Gap
from stream.records.kernel import OPEN, KernelDetail
from stream.records.runner import (
    DETAIL_FILE,
    KERNEL_FILE,
    MARKERS_FILE,
    POLICY_FILE,
    RUNNER_FILE,
    SDK_FILE,
    Marker,
    PolicyEvent,
    SdkEvent,
)

Problem = tuple[str, str, str]  #: rule, message, JSON path
Count = Callable[[], int]  #: lines of a layer that was read before


class Decoder(Protocol):
    def decode(self, line: bytes, /) -> Any: ...
    def decode_lines(self, block: bytes, /) -> list[Any]: ...


class Many(Protocol):
    """Records of one layer. There is one or more of them."""

    @property
    def records(self) -> Sequence[Any]: ...
    @property
    def run_ids(self) -> set[str]: ...
    @property
    def seqs(self) -> tuple[int, ...]: ...


class Law(Struct):
    decoder: Decoder
    problems: Callable[[Any], Iterator[Problem]]
    are_good: Callable[[Any], bool]  #: of what `together` gives
    together: Callable[[list[Any]], Many]
    is_numbered: bool = True


def law_of(name: str, kernel: Count, sdk: Count) -> Law | None:
    """None: the file is no layer."""
    if name == KERNEL_FILE:
        rule = _by_itself("contract.kernel_event")
        return Law(KernelDecoder(), rule, Agreement(), columns_of)
    if name == DETAIL_FILE:
        order = _Ascending(kernel)
        kinds: Any = KernelDetail | Gap
        return Law(Decoding(kinds), order.problems, order.are_good, Records, False)
    if name == MARKERS_FILE:
        return Law(Decoding(Marker), _Places(kernel, sdk).problems, _never, Records)
    if name == RUNNER_FILE:
        return Law(RunnerDecoder(), _by_itself("contract.runner_event"), _never, Records)
    if name == SDK_FILE:
        return Law(Decoding(SdkEvent), _by_itself("contract.sdk_event"), _are_consistent, Records)
    if name == POLICY_FILE:
        return Law(Decoding(PolicyEvent), _by_itself("contract.line"), _are_consistent, Records)
    return None


class Decoding:
    """Of one kind of record."""

    def __init__(self, kind: Any) -> None:
        self.decode = decoder_of(kind)
        self.decode_lines = msgspec.json.Decoder(kind).decode_lines


class Records(Struct):
    records: list[Any]

    @property
    def run_ids(self) -> set[str]:
        return {record.run_id for record in self.records if not isinstance(record, Gap)}

    @property
    def seqs(self) -> tuple[int, ...]:
        return tuple(record.seq for record in self.records)


# ---------------------------------------------------------------- the kernel's own layer


class Agreement:
    """Whether many events say the same twice: what was seen once is not looked at again."""

    def __init__(self) -> None:
        self._known: set[tuple[Any, ...]] = set()

    def __call__(self, columns: Columns) -> bool:
        new = columns.different_forms - self._known
        if any(_is_faulty(form_faults(Form(*form))) for form in new):
            return False
        if any(form[0] != OPEN for form in columns.different_forms) and any(
            _is_faulty(mode_faults(event)) for event in columns.records
        ):
            return False
        if len(self._known) < _MOST_KNOWN:
            self._known |= new
        return True


_MOST_KNOWN = 10_000


# ---------------------------------------------------------------- the others


def _by_itself(rule: str) -> Callable[[Any], Iterator[Problem]]:
    return lambda record: ((rule, reason, path) for reason, path in faults_of(record))


def _is_faulty(faults: Iterator[object]) -> bool:
    return any(True for _ in faults)


def _are_consistent(many: Many) -> bool:
    return not any(_is_faulty(faults_of(record)) for record in many.records)


def _never(many: Many) -> bool:
    """Of layers that are short: one record at a time is quick enough."""
    return False


class _Ascending:
    """Details come in the order of the lines that they are of; gaps stand anywhere."""

    def __init__(self, kernel: Callable[[], int]) -> None:
        self._last = -1
        self._kernel = kernel

    def problems(self, record: KernelDetail | Gap) -> Iterator[Problem]:
        if isinstance(record, Gap):
            return
        if record.seq <= self._last:
            yield "contract.detail", f"{record.seq} after {self._last}", "$.seq"
        if record.seq >= self._kernel():
            yield "contract.detail", f"the kernel layer has no line {record.seq}", "$.seq"
        self._last = record.seq

    def are_good(self, many: Many) -> bool:
        numbers = [record.seq for record in many.records if isinstance(record, KernelDetail)]
        if not numbers:
            return True
        steps = zip([self._last, *numbers], numbers, strict=False)
        if numbers[-1] >= self._kernel() or any(one >= other for one, other in steps):
            return False
        self._last = numbers[-1]
        return True


class _Places:
    """Markers stand in order, at places that there are."""

    def __init__(self, kernel: Callable[[], int], sdk: Callable[[], int]) -> None:
        self._last = 0
        self._lines: set[int] = set()  # of the command log
        self._kernel = kernel
        self._sdk = sdk

    def problems(self, marker: Marker) -> Iterator[Problem]:
        if marker.at < self._last:
            yield "contract.marker", f"{marker.at} after {self._last}", "$.at"
        if marker.at > self._kernel():
            message = f"the kernel layer has only {self._kernel()} lines"
            yield "contract.marker", message, "$.at"
        if marker.sdk_seq is not None and not 0 <= marker.sdk_seq < self._sdk():
            message = f"the SDK layer has no line {marker.sdk_seq}"
            yield "contract.marker", message, "$.sdk_seq"
        self._last = max(self._last, marker.at)
        number = marker.command_seq
        if number is not None and number in self._lines:
            message = f"line {number} of the command log has one already"
            yield "contract.marker", message, "$.command_seq"
        self._lines |= set() if number is None else {number}
        for reason, path in faults_of(marker):
            yield "contract.marker", reason, path


class RunnerDecoder:
    """The two events have one tag: `type` tells them apart."""

    decode = staticmethod(decode_runner_event)

    def decode_lines(self, block: bytes) -> list[Any]:
        return [self.decode(line) for line in block.splitlines()]
