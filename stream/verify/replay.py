"""The layers of a run, replayed: everything that the artifacts follow from, read once.

A replay holds what a run reached, which grows with the different things that it touched, and its
tool calls. What grows with the events themselves waits in files that nobody else can see. Kernel
events are taken by column: there are millions of them, and few different forms.
"""

from __future__ import annotations

import re
import sys
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from heapq import merge
from ipaddress import ip_address
from typing import IO, Any, NamedTuple

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import astuple

from stream.contracts import LAYER_DECODERS
from stream.evidence.attribution import (
    AttributionEvent,
    EventDetails,
    KernelLosses,
    event_details_of,
)
from stream.evidence.consistency import EventForm
from stream.evidence.derive import LayerContent
from stream.evidence.surface import OPENED, Surface, ways_of_open
from stream.records import kernel
from stream.records.artifacts import (
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
from stream.records.control import Gap
from stream.records.kernel import KernelDetail, KernelEvent

#: By call: of which types its event may be.
_TYPES = {call: (kind, *kernel.BY_PEER.get(kind, ())) for call, kind in kernel.EVENT_TYPES.items()}
_WITHOUT_VALUE = {kernel.FORK, kernel.EXIT, kernel.URING_SETUP}
#: They give nothing but 0 where they succeed.
_GIVES_NOTHING = {
    *range(kernel.UNLINK, kernel.MKNOD + 1),  # all that change the tree of files
    *range(kernel.XATTR, kernel.ACCOUNT + 1),  # all that change what is known of a file
    *(kernel.EXEC, kernel.EXEC_FAILED, kernel.CONNECT, kernel.LOCAL_CONNECT),
    *(kernel.BIND, kernel.LOCAL_BIND, kernel.SOCKET_FILE, kernel.NO_QUEUE),
}
_IP_PEER = {kernel.CONNECT, kernel.SENDTO, kernel.SENDMSG, kernel.BIND, kernel.ACCEPT}
_ANY_PEER = {
    *(kernel.LOCAL_CONNECT, kernel.LOCAL_SEND, kernel.LOCAL_BIND, kernel.LOCAL_ACCEPT),
    *(kernel.CONNECT_BLOCKED, kernel.REACH),
}
_KINDS = {*kernel.EVENT_TYPES.values()}
_PORT = re.compile("0|[1-9][0-9]{0,4}")
#: Absolute; or, where it lies in no folder, as `pipe:[5]`.
_FILE_PATH = re.compile(r"(?:/|[a-z_0-9]+:)(?:[^\\\0]|\\\\|\\x[0-9a-f]{2})*", re.DOTALL)
_OTHER_FAMILY = re.compile(r"af[0-9]{1,5}:[0-9a-f]*")  #: of addresses that no text is made of
_ONLY_BEGUN = (-114, -115)  #: of a connect: EALREADY, EINPROGRESS
_IN_MEMORY = 2 << 20  #: bytes of each file

#: The number of an event that decides whose others are, and what attribution has to know of it.
_Line = tuple[int, EventDetails | None]
_Block = tuple["array[int]", "array[int]"]  #: processes and types
_NO_MORE: _Line = (sys.maxsize, None)
_MOST_FOUND = 20
_FRAME = 2  #: a start and an end
_URING_CALL = "io_uring_setup"
#: What the artifacts follow from, in the order in which it has to be taken.
REPLAYED = (KERNEL_FILE, DETAIL_FILE, SDK_FILE, POLICY_FILE, MARKERS_FILE)


class LayerReplay:
    """Collects what the layers of a run say, from the records of each layer in their order.

    The kernel layer comes before its details, and both before the others.
    """

    def __init__(self) -> None:
        self.is_whole = True  #: no line is missing that could not be read
        self.surface = Surface()
        self.sdk: list[SdkEvent] = []
        self.policy: list[PolicyEvent] = []
        self.markers: list[Marker] = []
        self.runner: list[RunnerStarted | RunnerFinished] = []
        self.events = 0  #: of the kernel layer
        self.lost = 0  #: by the gaps
        self.has_gaps = False
        self.urings = 0  #: that were set up
        #: Lines of the command log that a wrapper was seen to write, once that is known.
        self.verified_commands: frozenset[int] = frozenset()
        self.mismatched_details: list[str] = []  #: details of another event than their line
        self.missing_details, self.first_missing = 0, -1  #: events that lack their details
        self.unusual_events: list[str] = []  #: events that no feed of ours writes so
        self._scopes: Counter[str] = Counter()  # of events that are not of both
        self._losses = KernelLosses()
        self._columns = _temporary_file()  # process and type of every event
        self._reading: Iterator[_Block] | None = None  # of those, for the details
        self._block: tuple[int, _Block] = (0, (array("Q"), array("Q")))  # and its first number
        self._without_open = _temporary_file()  # the events whose details may come
        self._waiting: Iterator[KernelEvent] | None = None
        self._next: KernelEvent | None = None
        self._details, self._open_details = _temporary_file(), _temporary_file()  # for attribution

    def add_records(self, name: str, records: Sequence[Any]) -> None:
        """Add the next records of a layer to the replay."""
        if name == KERNEL_FILE and records:
            self.add_event_columns(event_columns_of(records))
        elif name == DETAIL_FILE:
            for record in records:
                self._add_detail_record(record)
        elif not self.is_whole:  # and there may be any number of them
            return
        elif name == SDK_FILE:
            self.sdk += records
            for event in records:
                self.surface.add_sdk_event(event)
        elif name == POLICY_FILE:
            self.policy += records
            for decision in records:
                self.surface.add_policy_event(decision)
        elif name == MARKERS_FILE:
            self.markers += records
        elif name == RUNNER_FILE and len(self.runner) < _FRAME:
            self.runner += records[: _FRAME - len(self.runner)]

    def mark_unreadable(self) -> None:
        """Note that a line of a layer could not be read: nothing follows from the others alone."""
        self.is_whole = False
        self.sdk, self.policy, self.markers = [], [], []

    def loss_intervals(self) -> list[tuple[int, int]]:
        """Return between which numbers events were lost."""
        return self._losses.loss_intervals(self.events)

    def close(self) -> None:
        """Remove the temporary files of the replay."""
        for file in (self._columns, self._without_open, self._details, self._open_details):
            file.close()

    def pids(self) -> set[int]:
        """Return every process that an event of the kernel layer is of."""
        return set().union(*(pids for pids, _ in self._read_event_columns()))

    def layer_content(self) -> LayerContent:
        """Return what the layers of the run say, once all of them were read."""
        return LayerContent(
            surface=self.surface,
            kernel_events=self.events,
            events=self.events_in_order(),
            gaps=self.loss_intervals(),
            sdk=self.sdk,
            policy=self.policy,
            markers=self.markers,
        )

    def finish(self) -> None:
        """Add the events that have no detail to the surface, once all layers were read."""
        while self._first_waiting_event() is not None:
            self._add_waiting_event(None)

    def count_scopes(self) -> Counter[str]:
        """Count the events of the kernel layer by their scope."""
        return +Counter({"both": self.events - self._scopes.total(), **self._scopes})

    def events_in_order(self) -> Iterator[AttributionEvent]:
        """Yield the kernel events for attribution, equal ones between two markers together."""
        cuts = iter(sorted({marker.at for marker in self.markers}))
        lines = (_read_details(file) for file in (self._details, self._open_details))
        details = merge(*lines, key=lambda line: line[0])
        seq, found = next(details, _NO_MORE)
        cut = at = 0
        for pids, kinds in self._read_event_columns():
            start, end = at, at + len(pids)
            while at < end:
                while cut <= at:
                    cut = next(cuts, sys.maxsize)
                while seq < at:
                    seq, found = next(details, _NO_MORE)
                if seq == at:
                    yield pids[at - start], kinds[at - start], found, 1
                    at += 1
                    continue
                some = slice(at - start, min(seq, cut, end) - start)
                alike = Counter(zip(pids[some], kinds[some], strict=True))
                for (pid, kind), times in alike.items():
                    yield pid, kind, None, times
                at = start + some.stop

    def add_event_columns(self, columns: EventColumns) -> None:
        """Add the next events of the kernel layer to the replay."""
        self.events += len(columns.records)
        self._add_opens(columns)
        self._write_attribution_of_opens(columns)
        if set(columns.types) != {kernel.OPEN} or None in columns.values:
            others = [
                event
                for event in columns.records
                if event.event_type != kernel.OPEN or event.value is None
            ]
            self._without_open.write(msgspec.json.Encoder().encode_lines(others))
        blocks = (_packed_numbers(columns.pids), _packed_numbers(columns.types))
        self._columns.write(b"".join((len(columns.records).to_bytes(8, "little"), *blocks)))

    def _add_opens(self, columns: EventColumns) -> None:
        """Add the opens of the kernel layer to the surface, by what came of them."""
        ends = {form: open_result_of(form) for form in columns.different_forms}
        if any(
            _is_partial_open(EventForm._make(form)) for form, end in ends.items() if end is not None
        ):
            reason = "an open that does not say its flags, or what follows from what it says"
            self._add_unusual_event(f"{columns.seqs[0]}, or soon after it: {reason}")
        found = list(dict.fromkeys(ends.values()))
        if len(found) == 1:
            self._add_opened_paths(found[0], columns.values)
            return
        paths: dict[OpenResult | None, list[str | None]] = {end: [] for end in found}
        for form, path in zip(columns.forms, columns.values, strict=True):
            paths[ends[form]].append(path)
        for end, some in paths.items():
            self._add_opened_paths(end, some)

    def _add_opened_paths(self, end: OpenResult | None, paths: Sequence[str | None]) -> None:
        """Add the paths of opens with the same result to the surface."""
        known: Any = paths
        if None in paths:
            known = [path for path in paths if path is not None]
        if end is not None and end.ways is not None:
            self.surface.add_reached_paths(known, end.ways)
        elif end is not None:
            self.surface.add_failed_paths(known, OPENED, end.result)

    def _add_detail_record(self, record: KernelDetail | Gap) -> None:
        """Add the next detail or gap of the kernel layer, and the events that waited for it."""
        if isinstance(record, Gap):
            self.lost += int(record.lost)
            self.has_gaps = True
            self._losses.add_kernel_gap(begins=record.begins)
            return
        self._check_detail(record)
        self._losses.add_kernel_detail(record.seq)
        other = self._first_waiting_event()
        while other is not None and other.seq < record.seq:
            self._add_waiting_event(None)
            other = self._first_waiting_event()
        if other is not None and other.seq == record.seq:
            self._add_waiting_event(record)

    def _check_detail(self, detail: KernelDetail) -> None:
        """Count a detail, and compare it with its event."""
        if detail.scope != "both":
            self._scopes[detail.scope] += 1
        if detail.call == _URING_CALL and detail.status != "error":
            self.urings += 1
        event = self._pid_and_type_at(detail.seq)
        if event is None:
            return
        reason = detail_line_mismatch(detail, *event)
        if not reason and event[1] == kernel.OPEN:
            reason = detail_open_mismatch(detail)
        if reason:
            self._add_detail_mismatch(detail.seq, reason)

    def _add_detail_mismatch(self, number: int, reason: str) -> None:
        if len(self.mismatched_details) < _MOST_FOUND:
            self.mismatched_details.append(f"{number}: {reason}")

    def _pid_and_type_at(self, number: int) -> tuple[int, int] | None:
        """Return process and type of a kernel event. They are asked for in order."""
        if self._reading is None:
            self._reading = self._read_event_columns()
        first, (pids, kinds) = self._block
        while number >= first + len(pids):
            first += len(pids)
            block = next(self._reading, None)
            if block is None:
                return None
            self._block = first, block
            pids, kinds = block
        at = number - first
        return (pids[at], kinds[at]) if at >= 0 else None

    def _write_attribution_details(self, event: KernelEvent, detail: KernelDetail | None) -> None:
        """Keep the details of an event that attribution must not merge with others."""
        known = event_details_of(event, detail)
        if known is not None or event.event_type == kernel.EXIT:
            self._details.write(msgspec.json.encode((event.seq, known)) + b"\n")

    def _write_attribution_of_opens(self, columns: EventColumns) -> None:
        """Keep the details of opens that attribution must not merge; opens wait for no detail."""
        values: Any = columns.values
        if None in values:
            values = [value for value in values if value is not None]
        text = "\0".join(values)
        is_odd = text[:1] != "/" or not text.count("\0/") == text.count("\0") == len(values) - 1
        if values and (is_odd or "\\" in text):
            self._check_open_paths(columns)
        if HOME not in text:
            return
        for event in columns.records:
            known = event_details_of(event, None) if event.event_type == kernel.OPEN else None
            if known is not None:
                self._open_details.write(msgspec.json.encode((event.seq, known)) + b"\n")

    def _check_open_paths(self, columns: EventColumns) -> None:
        for seq, kind, value in zip(columns.seqs, columns.types, columns.values, strict=True):
            if kind == kernel.OPEN and value is not None and not is_file_path(value):
                self._add_unusual_event(f"{seq}: {value!r} is the path of no file")

    def _add_unusual_event(self, reason: str) -> None:
        if len(self.unusual_events) < _MOST_FOUND:
            self.unusual_events.append(reason)

    def _add_waiting_event(self, detail: KernelDetail | None) -> None:
        """Add the event that waits first for its detail to the surface."""
        assert self._next is not None
        self._write_attribution_details(self._next, detail)
        if detail is None and must_have_detail(self._next):
            self.first_missing = self._next.seq if not self.missing_details else self.first_missing
            self.missing_details += 1
        if self._next.event_type != kernel.OPEN:
            for reason in event_mismatches(self._next, detail):
                self._add_detail_mismatch(self._next.seq, reason)
            if reason := event_value_mismatch(self._next):
                self._add_unusual_event(f"{self._next.seq}: {reason}")
        self.surface.add_kernel_event(self._next, detail)
        self._next = None

    def _first_waiting_event(self) -> KernelEvent | None:
        """Return the first event, but for opens, whose detail did not come yet."""
        if self._waiting is None:
            self._without_open.seek(0)
            self._waiting = map(msgspec.json.Decoder(KernelEvent).decode, self._without_open)
        if self._next is None:
            self._next = next(self._waiting, None)
        return self._next

    def _read_event_columns(self) -> Iterator[_Block]:
        """Yield process numbers and event types of the kernel layer from their temporary file."""
        self._columns.seek(0)
        while head := self._columns.read(8):
            size = 8 * int.from_bytes(head, "little")
            pids, kinds = array("Q"), array("Q")
            pids.frombytes(self._columns.read(size))
            kinds.frombytes(self._columns.read(size))
            yield pids, kinds


def replay_layers(read: Callable[[str], Iterable[bytes]]) -> LayerReplay:
    """Replay the layers of a run, whose lines are known to be good. `read` gives the bytes of a
    layer, in blocks of any size; the caller closes the replay."""
    replay = LayerReplay()
    try:
        for name in REPLAYED:
            decode_lines = LAYER_DECODERS[name].decode_lines
            for block in whole_lines(read(name)):
                replay.add_records(name, decode_lines(block))
        replay.finish()
    except BaseException:
        replay.close()
        raise
    return replay


def whole_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Cut the same bytes behind ends of lines; what stands after the last one is left out."""
    rest = b""
    for block in blocks:
        end = block.rfind(b"\n") + 1
        if end:
            yield rest + block[:end]
            rest = block[end:]
        else:
            rest += block


# ------------------------------------------------------------ many kernel events at once

_WORD = (1 << 64) - 1


class EventColumns(Struct):
    """Holds many kernel events by column: what is true of a form is asked once for all of them."""

    records: Sequence[Any]
    run_ids: Sequence[str]
    seqs: tuple[int, ...]
    pids: Sequence[int]
    types: Sequence[int]
    values: Sequence[str | None]
    forms: Sequence[tuple[Any, ...]]  #: what `EventForm` has
    different_forms: set[tuple[Any, ...]]


def event_columns_of(events: Sequence[Any]) -> EventColumns:
    """Turn one event or more into columns."""
    columns = zip(*map(astuple, events), strict=True)
    run_ids, seqs, pids, types, kinds, values, flags, _, _, *ends = columns
    returned, accesses, operations, statuses = ends
    forms = [*zip(types, kinds, flags, returned, accesses, operations, statuses, strict=True)]
    return EventColumns(events, run_ids, seqs, pids, types, values, forms, {*forms})


class OpenResult(NamedTuple):
    """Says how an open reached its path, or why it did not."""

    ways: int | None  #: None: it failed, or its end was not seen
    result: int | None = None


@lru_cache(10_000)
def open_result_of(values: tuple[Any, ...]) -> OpenResult | None:
    """Return what came of an open, by its form; None for other events."""
    form = EventForm._make(values)
    if form.event_type != kernel.OPEN:
        return None
    if form.status == "success":
        return OpenResult(ways_of_open(form.access_mode, form.operation_flags))
    return OpenResult(None, None if form.return_value is UNSET else form.return_value)


def _packed_numbers(numbers: Sequence[int]) -> bytes:
    """Pack unsigned numbers into 64 bits each; larger ones are cut to that."""
    try:
        return array("Q", numbers).tobytes()
    except OverflowError:
        return array("Q", [number & _WORD for number in numbers]).tobytes()


def _is_partial_open(form: EventForm) -> bool:
    """Tell whether an open lacks what our feeds always write."""
    has_result, has_status = form.return_value is not UNSET, form.status is not UNSET
    return UNSET in (form.flags, form.access_mode) or has_result != has_status


def _temporary_file() -> IO[bytes]:
    return tempfile.SpooledTemporaryFile(_IN_MEMORY)  # it has no name to leave behind


def _read_details(file: IO[bytes]) -> Iterator[_Line]:
    file.seek(0)
    return map(msgspec.json.Decoder(_Line).decode, file)


# ------------------------------------------------------------ a detail and its event


def detail_line_mismatch(detail: KernelDetail, pid: int, event_type: int) -> str:
    """Say why a detail is not of the event of its line; empty where it may be."""
    types = _TYPES.get(detail.call) or (kernel.unknown_event_type(detail.call),)
    if event_type not in types:
        return f"{detail.call}, but its line is {kernel.kind_of_event(event_type)}"
    return "" if detail.pid == pid else f"of {detail.pid}, but its line is of {pid}"


def detail_open_mismatch(detail: KernelDetail) -> str:
    """Say why a detail is of no open: it does not repeat what its line says."""
    repeated = (detail.return_value, detail.mode, detail.exit_status)
    if detail.flags or detail.status is not UNSET or repeated != (None, None, None):
        return "an open's flags, mode and result stand in its own line"
    return ""


def must_have_detail(event: KernelEvent) -> bool:
    """Tell whether an event needs a detail: all but opens and connects with a value do."""
    return event.event_type not in (kernel.OPEN, kernel.CONNECT) or event.value is None


def is_file_path(text: str) -> bool:
    """Tell whether a text is the path of a file, as `path_text` writes it."""
    return _FILE_PATH.fullmatch(text) is not None


def event_value_mismatch(event: KernelEvent) -> str:
    """Say why no feed of ours writes such an event, which is no open; empty where one may."""
    kind, value = event.event_type, event.value
    if kind in _IP_PEER:
        return "" if value is None or _is_endpoint(value) else f"{value!r} is no endpoint"
    if value is None or kind in _ANY_PEER or kind not in _KINDS:
        return ""
    return "" if is_file_path(value) else f"{value!r} is the path of no file"


def _is_endpoint(text: str) -> bool:
    """Tell whether an event's text is an endpoint as a kernel feed writes it."""
    if _OTHER_FAMILY.fullmatch(text):
        return True
    host, colon, port = text.rpartition(":")
    if not colon or not _PORT.fullmatch(port) or int(port) > 0xFFFF:
        return False
    is_long = host.startswith("[")
    try:
        address = ip_address(host[1:-1] if is_long and host.endswith("]") else host)
    except ValueError:
        return False
    return is_long == (address.version == 6)


def event_mismatches(event: KernelEvent, detail: KernelDetail | None) -> Iterator[str]:
    """Say where an event, which is no open, and its detail contradict each other."""
    kind = event.event_type
    if kind in _WITHOUT_VALUE and event.value is not None:
        yield f"a value, {event.value!r}, of {event.kind}"
    if detail is None:
        return
    yield from _return_value_mismatches(detail, kind)
    if kind in kernel.WITH_PEER and detail.peer != event.value:
        yield f"to {detail.peer!r}, but its line is to {event.value!r}"
    if kind == kernel.SYMLINK and event.value is not None and detail.to_path != event.value:
        yield f"at {detail.to_path!r}, but its line is of {event.value!r}"


def _return_value_mismatches(detail: KernelDetail, kind: int) -> Iterator[str]:
    """Say where the return value of a kernel detail contradicts its status, call or event."""
    result = detail.return_value
    is_known = result is not None and not (detail.call == "connect" and result in _ONLY_BEGUN)
    follows = UNSET if not is_known else "error" if result is not None and result < 0 else "success"
    if detail.status != follows:
        yield f"status is {detail.status}, and {result} was returned"
    if result is not None and result > 0 and kind in _GIVES_NOTHING:
        yield f"{detail.call} gives nothing, and {result} was returned"
    if (kind == kernel.EXEC and result != 0) or (
        kind == kernel.EXEC_FAILED and detail.status == "success"
    ):
        yield f"{kernel.kind_of_event(kind)}, and {result} was returned"
