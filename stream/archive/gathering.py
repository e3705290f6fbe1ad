"""What the artifacts of a run follow from, gathered while its layers are read once.

It holds what a run reached, which grows with the different things that it touched, and its tool
calls. What grows with the events themselves waits in files that nobody else can see.
"""

from __future__ import annotations

import tempfile
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import msgspec
from msgspec import UNSET

from stream.archive.agreement import event_strangeness, line_strangeness
from stream.evidence.steps import KernelStep
from stream.evidence.surface import Surface, ways_of
from stream.records.control import Gap
from stream.records.kernel import (
    EXEC,
    FORK,
    OPEN,
    KernelDetail,
    KernelEvent,
)
from stream.records.runner import (
    DETAIL_FILE,
    KERNEL_FILE,
    MARKERS_FILE,
    POLICY_FILE,
    SDK_FILE,
    Marker,
    PolicyEvent,
    SdkEvent,
)

_IN_MEMORY = 2 << 20  #: bytes of each file
_WORD = (1 << 64) - 1
_READ = ways_of("read", UNSET)

_MOST_STRANGERS = 20
_URING_CALL = "io_uring_setup"

Told = tuple[int, int | list[str] | None]  #: of a fork or an exec: its number, and what it says


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
        self.events = 0  #: of the kernel layer
        self.lost = 0  #: by the gaps
        self.has_gaps = False
        self.urings = 0  #: that were set up
        self.strangers: list[str] = []  #: details that are of another event than their line
        self._scopes: Counter[str] = Counter()  # of events that are not of both
        self._looked_at: tuple[int, array[int], array[int]] = (0, array("Q"), array("Q"))
        self._read_lines: Iterator[tuple[array[int], array[int]]] | None = None
        self._gaps: list[tuple[int, int]] = []
        self._after, self._is_waiting = 0, False
        self._steps, self._others, self._told = _file(), _file(), _file()
        self._waiting: Iterator[KernelEvent] | None = None
        self._next: KernelEvent | None = None

    def take(self, name: str, records: Sequence[Any]) -> None:
        if name == KERNEL_FILE:
            self._take_events(records)
        elif name == DETAIL_FILE:
            for record in records:
                self._take_beside(record)
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

    def miss(self) -> None:
        """A line that is none."""
        self.is_whole = False

    def gaps(self) -> list[tuple[int, int]]:
        """Where events were lost, as `lost_between` tells it."""
        rest = [(self._after, max(self._after, self.events))] if self._is_waiting else []
        return [*self._gaps, *rest]

    def close(self) -> None:
        for file in (self._steps, self._others, self._told):
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
        told = self._read_told()
        seq, said = next(told)
        number = 0
        for pids, kinds in self._read_steps():
            for pid, kind in zip(pids, kinds, strict=True):
                if number == seq:
                    yield pid, kind, said
                    seq, said = next(told)
                else:
                    yield pid, kind, None
                number += 1

    def _take_events(self, events: Sequence[KernelEvent]) -> None:
        self.events += len(events)
        plain: list[str] = []
        others: list[KernelEvent] = []
        for event in events:
            if event.event_type != OPEN or event.value is None:
                others.append(event)
            elif (
                event.status == "success"
                and event.access_mode == "read"
                and event.operation_flags is UNSET
            ):
                plain.append(event.value)
            else:
                self.surface.add_kernel(event, None)
        self.surface.reach_all(plain, _READ)
        if others:
            self._others.write(msgspec.json.Encoder().encode_lines(others))
        pids = array("Q", [event.pid & _WORD for event in events])
        kinds = array("Q", [event.event_type & _WORD for event in events])
        self._steps.write(len(events).to_bytes(8, "little") + pids.tobytes() + kinds.tobytes())

    def _take_beside(self, record: KernelDetail | Gap) -> None:
        if isinstance(record, Gap):
            self.lost += int(record.lost)
            self.has_gaps = True
            self._is_waiting = True
            return
        self._hold(record)
        if self._is_waiting:
            self._gaps.append((self._after, record.seq))
        self._after, self._is_waiting = record.seq + 1, False
        other = self._other()
        while other is not None and other.seq < record.seq:
            self._enter(None)
            other = self._other()
        if other is not None and other.seq == record.seq:
            self._tell(other, record)
            self._enter(record)

    def _hold(self, detail: KernelDetail) -> None:
        """What it says of its event as well."""
        if detail.scope != "both":
            self._scopes[detail.scope] += 1
        if detail.call == _URING_CALL and detail.status != "error":
            self.urings += 1
        said = self._said_of(detail.seq)
        if said is not None and (reason := line_strangeness(detail, *said)):
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

    def _tell(self, event: KernelEvent, detail: KernelDetail) -> None:
        said: Told | None = None
        if event.event_type == FORK:
            said = (event.seq, detail.child)
        elif event.event_type == EXEC:
            said = (event.seq, detail.argv)
        if said is not None:
            self._told.write(msgspec.json.encode(said) + b"\n")

    def _enter(self, detail: KernelDetail | None) -> None:
        """What waits first into the surface."""
        assert self._next is not None
        if self._next.event_type != OPEN:
            for reason in event_strangeness(self._next, detail):
                self._find_stranger(self._next.seq, reason)
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

    def _read_told(self) -> Iterator[Told]:
        self._told.seek(0)
        yield from map(msgspec.json.Decoder(Told).decode, self._told)
        while True:
            yield -1, None

    def _read_steps(self) -> Iterator[tuple[array[int], array[int]]]:
        self._steps.seek(0)
        while head := self._steps.read(8):
            size = 8 * int.from_bytes(head, "little")
            pids, kinds = array("Q"), array("Q")
            pids.frombytes(self._steps.read(size))
            kinds.frombytes(self._steps.read(size))
            yield pids, kinds


def _file() -> IO[bytes]:
    return tempfile.SpooledTemporaryFile(_IN_MEMORY)  # it has no name to leave behind


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
