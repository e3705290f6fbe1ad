"""What the artifacts of a run follow from, gathered while its layers are read once.

It holds what a run reached, which grows with the different things that it touched, and its tool
calls. What grows with the events themselves waits in files that nobody else can see.
"""

from __future__ import annotations

import sys
import tempfile
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from typing import IO, Any

import msgspec
from msgspec import UNSET

from stream.archive.agreement import (
    event_strangeness,
    is_place,
    line_strangeness,
    must_have_detail,
    open_strangeness,
    value_strangeness,
)
from stream.archive.columns import Columns, End, Form, columns_of, end_of, words
from stream.evidence.own import Told
from stream.evidence.steps import KernelStep, Losses, told_of
from stream.evidence.surface import OPENED, Surface
from stream.records.control import Gap
from stream.records.kernel import EXIT, OPEN, KernelDetail, KernelEvent
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

_IN_MEMORY = 2 << 20  #: bytes of each file

#: The number of an event that decides whose others are, and what it says.
_Line = tuple[int, Told | None]
_NO_MORE: _Line = (sys.maxsize, None)
_MOST_STRANGERS = 20
_FRAME = 2  #: a start and an end
_URING_CALL = "io_uring_setup"


#: In the order in which they have to be taken.
DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    KERNEL_FILE: msgspec.json.Decoder(KernelEvent),
    DETAIL_FILE: msgspec.json.Decoder(KernelDetail | Gap),
    SDK_FILE: msgspec.json.Decoder(SdkEvent),
    POLICY_FILE: msgspec.json.Decoder(PolicyEvent),
    MARKERS_FILE: msgspec.json.Decoder(Marker),
}


class Gathering:
    """Fed with the records of each layer in their order, the kernel's own before its details."""

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
        self.vouched: frozenset[int] = frozenset()  #: lines of the command log, once it is known
        self.strangers: list[str] = []  #: details that are of another event than their line
        self.bare, self.first_bare = 0, -1  #: events that have details, and lack them
        self.oddities: list[str] = []  #: events that no feed of ours tells so
        self._scopes: Counter[str] = Counter()  # of events that are not of both
        self._looked_at: tuple[int, array[int], array[int]] = (0, array("Q"), array("Q"))
        self._read_lines: Iterator[tuple[array[int], array[int]]] | None = None
        self._losses = Losses()
        self._steps, self._others = _file(), _file()
        self._told, self._told_early = _file(), _file()
        self._waiting: Iterator[KernelEvent] | None = None
        self._next: KernelEvent | None = None

    def take(self, name: str, records: Sequence[Any]) -> None:
        if name == KERNEL_FILE and records:
            self.take_columns(columns_of(records))
        elif name == DETAIL_FILE:
            for record in records:
                self._take_beside(record)
        elif not self.is_whole:  # and there may be any number of them
            return
        elif name == SDK_FILE:
            self.sdk += records
            for event in records:
                self.surface.add_sdk(event)
        elif name == POLICY_FILE:
            self.policy += records
            for decision in records:
                self.surface.add_policy(decision)
        elif name == MARKERS_FILE:
            self.markers += records
        elif name == RUNNER_FILE and len(self.runner) < _FRAME:
            self.runner += records[: _FRAME - len(self.runner)]

    def miss(self) -> None:
        """A line that is none: nothing follows from the others alone."""
        self.is_whole = False
        self.sdk, self.policy, self.markers = [], [], []

    def gaps(self) -> list[tuple[int, int]]:
        """Where events were lost."""
        return self._losses.between(self.events)

    def close(self) -> None:
        for file in (self._steps, self._others, self._told, self._told_early):
            file.close()

    def finish(self) -> None:
        """All layers were read."""
        while self._other() is not None:
            self._enter(None)

    def scopes(self) -> Counter[str]:
        """How many events of the kernel layer are of each."""
        both = self.events - self._scopes.total()
        return +Counter({"both": both, **self._scopes})

    def steps(self) -> Iterator[KernelStep]:
        cuts = iter(sorted({marker.at for marker in self.markers}))
        lines = (_read_told(file) for file in (self._told, self._told_early))
        told = merge(*lines, key=lambda line: line[0])
        seq, said = next(told, _NO_MORE)
        cut = at = 0
        for pids, kinds in self._read_steps():
            start, end = at, at + len(pids)
            while at < end:
                while cut <= at:
                    cut = next(cuts, sys.maxsize)
                while seq < at:
                    seq, said = next(told, _NO_MORE)
                if seq == at:
                    yield pids[at - start], kinds[at - start], said, 1
                    at += 1
                    continue
                some = slice(at - start, min(seq, cut, end) - start)
                alike = Counter(zip(pids[some], kinds[some], strict=True))
                for (pid, kind), times in alike.items():
                    yield pid, kind, None, times
                at = start + some.stop

    def take_columns(self, columns: Columns) -> None:
        """Of the kernel layer."""
        self.events += len(columns.records)
        self._take_opens(columns)
        self._tell_early(columns)
        if set(columns.types) != {OPEN} or None in columns.values:
            others = [
                event
                for event in columns.records
                if event.event_type != OPEN or event.value is None
            ]
            self._others.write(msgspec.json.Encoder().encode_lines(others))
        blocks = (words(columns.pids), words(columns.types))
        self._steps.write(b"".join((len(columns.records).to_bytes(8, "little"), *blocks)))

    def _take_opens(self, columns: Columns) -> None:
        ends = {form: end_of(form) for form in columns.different_forms}
        if any(_is_bare(Form(*form)) for form, end in ends.items() if end is not None):
            reason = "an open that does not say its flags, or what follows from what it says"
            self._find_odd(f"{columns.seqs[0]}, or soon after it: {reason}")
        found = list(dict.fromkeys(ends.values()))
        if len(found) == 1:
            self._take_paths(found[0], columns.values)
            return
        paths: dict[End | None, list[str | None]] = {end: [] for end in found}
        for form, path in zip(columns.forms, columns.values, strict=True):
            paths[ends[form]].append(path)
        for end, some in paths.items():
            self._take_paths(end, some)

    def _take_paths(self, end: End | None, paths: Sequence[str | None]) -> None:
        known: Any = paths
        if None in paths:
            known = [path for path in paths if path is not None]
        if end is not None and end.ways is not None:
            self.surface.reach_all(known, end.ways)
        elif end is not None:
            self.surface.miss_all(known, OPENED, end.result)

    def _take_beside(self, record: KernelDetail | Gap) -> None:
        if isinstance(record, Gap):
            self.lost += int(record.lost)
            self.has_gaps = True
            self._losses.add_gap(begins=record.begins)
            return
        self._hold(record)
        self._losses.add_detail(record.seq)
        other = self._other()
        while other is not None and other.seq < record.seq:
            self._enter(None)
            other = self._other()
        if other is not None and other.seq == record.seq:
            self._enter(record)

    def _hold(self, detail: KernelDetail) -> None:
        """What it says of its event as well."""
        if detail.scope != "both":
            self._scopes[detail.scope] += 1
        if detail.call == _URING_CALL and detail.status != "error":
            self.urings += 1
        said = self._said_of(detail.seq)
        if said is None:
            return
        reason = line_strangeness(detail, *said)
        if not reason and said[1] == OPEN:
            reason = open_strangeness(detail)
        if reason:
            self._find_stranger(detail.seq, reason)

    def _find_stranger(self, number: int, reason: str) -> None:
        if len(self.strangers) < _MOST_STRANGERS:
            self.strangers.append(f"{number}: {reason}")

    def _said_of(self, number: int) -> tuple[int, int] | None:
        """Process and type of an event. They are asked for in order."""
        if self._read_lines is None:
            self._read_lines = self._read_steps()
        first, pids, kinds = self._looked_at
        while number >= first + len(pids):
            first += len(pids)
            block = next(self._read_lines, None)
            if block is None:
                return None
            pids, kinds = block
            self._looked_at = first, pids, kinds
        at = number - first
        return (pids[at], kinds[at]) if at >= 0 else None

    def _tell(self, event: KernelEvent, detail: KernelDetail | None) -> None:
        """What must not be told together with others: it changes whose those are."""
        told = told_of(event, detail)
        if told is not None or event.event_type == EXIT:
            self._told.write(msgspec.json.encode((event.seq, told)) + b"\n")

    def _tell_early(self, columns: Columns) -> None:
        """Of opens, which wait for no detail."""
        values: Any = columns.values
        if None in values:
            values = [value for value in values if value is not None]
        text = "\0".join(values)
        between = len(values) - 1
        is_odd = text[:1] != "/" or not text.count("\0/") == text.count("\0") == between
        if values and (is_odd or "\\" in text):
            self._find_odd_opens(columns)
        if HOME not in text:
            return
        for event in columns.records:
            told = told_of(event, None) if event.event_type == OPEN else None
            if told is not None:
                self._told_early.write(msgspec.json.encode((event.seq, told)) + b"\n")

    def _find_odd_opens(self, columns: Columns) -> None:
        for seq, kind, value in zip(columns.seqs, columns.types, columns.values, strict=True):
            if kind == OPEN and value is not None and not is_place(value):
                self._find_odd(f"{seq}: {value!r} is the path of no file")

    def _find_odd(self, reason: str) -> None:
        if len(self.oddities) < _MOST_STRANGERS:
            self.oddities.append(reason)

    def _enter(self, detail: KernelDetail | None) -> None:
        """What waits first into the surface."""
        assert self._next is not None
        self._tell(self._next, detail)
        if detail is None and must_have_detail(self._next):
            self.first_bare = self._next.seq if not self.bare else self.first_bare
            self.bare += 1
        if self._next.event_type != OPEN:
            for reason in event_strangeness(self._next, detail):
                self._find_stranger(self._next.seq, reason)
            if reason := value_strangeness(self._next):
                self._find_odd(f"{self._next.seq}: {reason}")
        self.surface.add_kernel(self._next, detail)
        self._next = None

    def _other(self) -> KernelEvent | None:
        """The first event, but for opens, whose detail was not met yet."""
        if self._waiting is None:
            self._waiting = self._read_others()
        if self._next is None:
            self._next = next(self._waiting, None)
        return self._next

    def _read_others(self) -> Iterator[KernelEvent]:
        decode = msgspec.json.Decoder(KernelEvent).decode
        self._others.seek(0)
        yield from map(decode, self._others)

    def _read_steps(self) -> Iterator[tuple[array[int], array[int]]]:
        self._steps.seek(0)
        while head := self._steps.read(8):
            size = 8 * int.from_bytes(head, "little")
            pids, kinds = array("Q"), array("Q")
            pids.frombytes(self._steps.read(size))
            kinds.frombytes(self._steps.read(size))
            yield pids, kinds


def _is_bare(form: Form) -> bool:
    """An open as others may tell it: not all of it is there, which ours always is."""
    has_result, has_status = form.return_value is not UNSET, form.status is not UNSET
    return UNSET in (form.flags, form.access_mode) or has_result != has_status


def _file() -> IO[bytes]:
    return tempfile.SpooledTemporaryFile(_IN_MEMORY)  # it has no name to leave behind


def _read_told(file: IO[bytes]) -> Iterator[_Line]:
    file.seek(0)
    return map(msgspec.json.Decoder(_Line).decode, file)


def whole_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, cut behind ends of lines; what stands after the last one is left out."""
    rest = b""
    for block in blocks:
        end = block.rfind(b"\n") + 1
        if end:
            yield rest + block[:end]
            rest = block[end:]
        else:
            rest += block
