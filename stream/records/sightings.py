"""What comes off a kernel's ring, before anybody needs it as events.

Nearly all of a busy run is opens. They stay as they lie in the ring, each by its
place, until somebody asks for an event: who only wants a line of the kernel layer reads the few
fields that the line has.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, overload

from stream.records.control import Gap
from stream.records.kernel import RawCapture, RawEvent

Telemetry: TypeAlias = RawEvent | Gap | RawCapture
#: By the number that they have in the ring. creat, whose flags are no argument, is not of them.
OPENS = ("", "open", "openat", "openat2")
#: An open: call and flags of the record, pid, result, time, flags and mode, bytes of its path, its
#: walk, its base and the walk's first name, resolve.
OPEN_FIELDS = struct.Struct("<8xI4xIiQQ8xHHH4xHI")
NO_RESULT = range(-516, -511)  #: what the kernel says to itself where a signal interrupts a call
NAMES = 64  #: behind the fields: the path as it was given, the walk from leaf to root, the base


class Sightings(Sequence[Telemetry]):
    """A batch in the order of the ring; a number is the place of an open."""

    __slots__ = ("chunk", "event_at", "items")

    def __init__(
        self,
        items: list[int | Telemetry],
        chunk: bytes,
        event_at: Callable[[bytes, int], RawEvent],
    ) -> None:
        self.items = items
        self.chunk = chunk
        self.event_at = event_at

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Telemetry]:
        return map(self._event, self.items)

    @overload
    def __getitem__(self, index: int) -> Telemetry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Telemetry]: ...
    def __getitem__(self, index: int | slice) -> Telemetry | Sequence[Telemetry]:
        if isinstance(index, slice):
            return [self._event(item) for item in self.items[index]]
        return self._event(self.items[index])

    def _event(self, item: int | Telemetry) -> Telemetry:
        return self.event_at(self.chunk, item) if isinstance(item, int) else item
