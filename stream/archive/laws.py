"""What is particular to each layer: its records, and what a record says twice.

Each law is said two ways: one record at a time, with reasons, and of many records at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Struct

from stream.archive.columns import Columns, Form, KernelDecoder, columns_of
from stream.evidence.calls import TOOL_EVENTS
from stream.records.control import Gap
from stream.records.kernel import KernelDetail, KernelEvent, kind_of
from stream.records.runner import (
    DETAIL_FILE,
    HOME,
    KERNEL_FILE,
    MARKERS_FILE,
    POLICY_FILE,
    RUNNER_FILE,
    SDK_FILE,
    Marker,
    PolicyEvent,
    RunnerFinished,
    RunnerStarted,
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
        return Law(KernelDecoder(), _kernel_problems, _Agreement(), columns_of)
    if name == DETAIL_FILE:
        order = _Ascending(kernel)
        kinds: Any = KernelDetail | Gap
        return Law(msgspec.json.Decoder(kinds), order.problems, order.are_good, Records, False)
    if name == MARKERS_FILE:
        return Law(msgspec.json.Decoder(Marker), _Places(kernel, sdk).problems, _never, Records)
    if name == RUNNER_FILE:
        return Law(RunnerDecoder(), _runner_problems, _never, Records)
    kind = {SDK_FILE: SdkEvent, POLICY_FILE: PolicyEvent}.get(name)
    return Law(msgspec.json.Decoder(kind), _nothing, _always, Records) if kind else None


class Records(Struct):
    records: list[Any]

    @property
    def run_ids(self) -> set[str]:
        return {record.run_id for record in self.records if not isinstance(record, Gap)}

    @property
    def seqs(self) -> tuple[int, ...]:
        return tuple(record.seq for record in self.records)


# ---------------------------------------------------------------- the kernel's own layer

_ACCESS = ("read", "write", "read_write", "unknown")
_OPERATIONS = ((0o100, "create"), (0o1000, "truncate"), (0o2000, "append"), (0o200, "exclusive"))


def _kernel_problems(event: KernelEvent) -> Iterator[Problem]:
    rule = "contract.kernel_event"
    if event.kind != kind_of(event.event_type):
        wanted = kind_of(event.event_type)
        yield rule, f"{event.kind!r}, but {event.event_type} is {wanted!r}", "$.kind"
    if event.return_value is not UNSET and event.status is not UNSET:
        wanted = "error" if event.return_value < 0 else "success"
        if event.status != wanted:
            yield rule, f"{event.status!r}, but {event.return_value} was returned", "$.status"
    if (event.return_value is UNSET) != (event.status is UNSET):
        yield rule, "a status and what was returned stand together", "$.status"
    if (event.flags is UNSET) != (event.access_mode is UNSET):
        yield rule, "flags and the mode of access stand together", "$.access_mode"
    if event.flags is UNSET:
        return
    if event.access_mode is not UNSET and event.access_mode != _ACCESS[event.flags & 3]:
        message = f"{event.access_mode!r}, but the flags say {_ACCESS[event.flags & 3]!r}"
        yield rule, message, "$.access_mode"
    if event.access_mode is not UNSET and event.operation_flags != _operations(event.flags):
        message = f"the flags say {_operations(event.flags) or 'nothing'}"
        yield rule, message, "$.operation_flags"


def _operations(flags: int) -> Any:
    return [name for bit, name in _OPERATIONS if flags & bit] or UNSET


class _Agreement:
    """Whether many events say the same twice: what was seen once is not looked at again."""

    def __init__(self) -> None:
        self._known: set[tuple[Any, ...]] = set()

    def __call__(self, columns: Columns) -> bool:
        new = columns.different_forms - self._known
        if not all(_is_consistent(Form(*form)) for form in new):
            return False
        if len(self._known) < _MOST_KNOWN:
            self._known |= new
        return True


_MOST_KNOWN = 10_000


def _is_consistent(form: Form) -> bool:
    if form.kind != kind_of(form.event_type):
        return False
    if (form.return_value is UNSET) != (form.status is UNSET):
        return False
    if (form.flags is UNSET) != (form.access_mode is UNSET):
        return False
    if form.return_value is not UNSET:
        wanted = "error" if form.return_value < 0 else "success"
        if form.status != wanted:
            return False
    if form.flags is UNSET:
        return True
    said, wanted = form.operation_flags, _operations(form.flags)
    does_agree: bool = said is wanted if UNSET in (said, wanted) else [*said] == wanted
    return does_agree and bool(form.access_mode == _ACCESS[form.flags & 3])


# ---------------------------------------------------------------- the others


def _nothing(record: object) -> Iterator[Problem]:
    return iter(())


def _always(many: Many) -> bool:
    return True


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
        yield from _tellers(marker)


def _tellers(marker: Marker) -> Iterator[Problem]:
    """Who wrote a marker is known just where the kernel saw it written."""
    is_written = marker.name in TOOL_EVENTS and marker.clock == "kernel"
    if is_written != (marker.pid is not None):
        yield "contract.marker", "its clock and its process do not go together", "$.pid"
    is_start = marker.name == "run_started"
    if marker.helpers and not (is_start and marker.home):
        yield "contract.marker", "only a start with a home has helpers", "$.helpers"
    if marker.unused and marker.name != "run_finished":
        yield "contract.marker", "only the end says what could not be used", "$.unused"
    if marker.home is None:
        return
    if not is_start or not marker.home.endswith(f"/{marker.run_id}/{HOME}"):
        yield "contract.marker", "it is no folder of the recorder's own", "$.home"


class RunnerDecoder:
    """The two events have one tag: `type` tells them apart."""

    def decode(self, line: bytes) -> RunnerStarted | RunnerFinished:
        head = msgspec.json.decode(line, type=_Typed)
        if head.type == "run_finished":
            return msgspec.json.decode(line, type=RunnerFinished)
        return msgspec.json.decode(line, type=RunnerStarted)

    def decode_lines(self, block: bytes) -> list[Any]:
        return [self.decode(line) for line in block.splitlines()]


class _Typed(Struct):
    type: str


def _runner_problems(event: RunnerStarted | RunnerFinished) -> Iterator[Problem]:
    wanted = "run_finished" if event.seq else "run_started"
    if event.type != wanted or event.seq > 1:
        message = f"{event.type!r} is number {event.seq}"
        yield "contract.runner_event", message, "$.type"
    if isinstance(event, RunnerFinished):
        yield from _end_problems(event)


def _end_problems(event: RunnerFinished) -> Iterator[Problem]:
    """A number, a signal, or neither: then it was never started."""
    rule = "contract.runner_event"
    if event.exit_code is not None and event.signal is not None:
        yield rule, "it ended by itself, and by a signal", "$.signal"
    if event.success != (event.exit_code == 0):
        yield rule, f"{event.success}, and it ended with {event.exit_code}", "$.success"
