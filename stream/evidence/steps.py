"""The kernel layer as correlation reads it: who did what kind of thing, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec
from msgspec import UNSET, Struct

from stream.evidence.commands import asked_in
from stream.evidence.own import Told
from stream.evidence.surface import ways_of
from stream.records.control import GAP
from stream.records.kernel import (
    EXEC,
    FORK,
    LINK,
    OPEN,
    RENAME,
    SYMLINK,
    KernelDetail,
    KernelEvent,
    Mark,
    path_bytes,
)
from stream.records.runner import HOME

#: pid, event_type; more, of what decides whose others are; and how many there are of it. Only what
#: has no more and is no exit may stand for several, and in any order among others of that kind;
#: none stands for events before and after a marker.
KernelStep: TypeAlias = tuple[int, int, Told | None, int]
#: A rename may move a folder that is not named in it; both paths of a link count.
_TELLING = {EXEC, FORK, RENAME, LINK}
_HOME = HOME.encode()
#: With one of these, a path is not all of what was named.
_PARTIAL: set[Mark] = {"truncated", "walk_cut", "fault", "unreachable", "other_root"}


class _Line(Struct):
    pid: int
    event_type: int


class _Beside(Struct):
    schema: str
    seq: int = -1
    begins: bool = False


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_beside = msgspec.json.Decoder(_Beside).decode
_decode_event = msgspec.json.Decoder(KernelEvent).decode
_decode_detail = msgspec.json.Decoder(KernelDetail).decode


def kernel_steps(kernel: Iterable[bytes], details: Iterable[bytes]) -> Iterator[KernelStep]:
    """From the lines of both files. They are taken to be what they should be: another part
    verifies that."""
    besides = _besides(details)
    seq, beside = next(besides)
    for number, line in enumerate(kernel):
        step = _decode_line(line)
        while 0 <= seq < number:
            seq, beside = next(besides)
        told = None
        if step.event_type in _TELLING or _HOME in line or (seq == number and _HOME in beside):
            detail = _decode_detail(beside) if seq == number else None
            told = told_of(_decode_event(line), detail)
        yield step.pid, step.event_type, told, 1


def told_of(event: KernelEvent, detail: KernelDetail | None) -> Told | None:
    """None: nothing else depends on it."""
    kind, path = event.event_type, event.value
    to_path = None
    if detail is not None:
        to_path = detail.path if kind == SYMLINK else detail.to_path
    if kind not in _TELLING and HOME not in f"{path or ''}{to_path or ''}":
        return None
    if kind == OPEN:
        ways = ways_of(event.access_mode, event.operation_flags)
        result = None if event.return_value is UNSET else event.return_value
        is_reading = event.access_mode == "read" and event.operation_flags is UNSET
        return Told(path=path, ways=ways, is_reading=is_reading, result=result)
    if detail is None:
        return Told(path=path) if kind != FORK else None
    asked = detail.asked if detail.asked is not None else asked_in(detail.argv)
    return Told(
        child=detail.child,
        path=path,
        to_path=to_path,
        asked=asked,
        words=[path_bytes(word) for word in (detail.argv or ())[1:]],
        is_plain="other_mounts" not in detail.marks,
        is_whole=_PARTIAL.isdisjoint(detail.marks),
    )


def _besides(details: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    for line in details:
        one = _decode_beside(line)
        if one.schema != GAP:
            yield one.seq, line
    yield -1, b""


def lost_between(details: Iterable[bytes], total: int) -> list[tuple[int, int]]:
    losses = Losses()
    for line in details:
        one = _decode_beside(line)
        if one.schema == GAP:
            losses.add_gap(begins=one.begins)
        else:
            losses.add_detail(one.seq)
    return losses.between(total)


class Losses:
    """Where events were lost: after the first number of events, before the second.

    A gap has no number of its own. It stands between two details that have one, and it may have
    begun between two that came before them.
    """

    def __init__(self) -> None:
        self._found: list[tuple[int, int]] = []
        self._after = 0  # so many events came before what is next
        self._begun: int | None = None
        self._first: int | None = None  # of gaps behind which no detail was met yet

    def add_gap(self, *, begins: bool) -> None:
        if self._begun is None:
            self._begun = self._after
        if not begins:
            self._first = self._begun if self._first is None else min(self._first, self._begun)
            self._begun = None

    def add_detail(self, seq: int) -> None:
        if self._first is not None:
            self._found.append((self._first, seq))
        self._after, self._first = seq + 1, None

    def between(self, total: int) -> list[tuple[int, int]]:
        """Of so many events. What began and has no end goes on to theirs."""
        starts = [at for at in (self._first, self._begun) if at is not None]
        return [*self._found, *((min(starts), max(self._after, total)) for _ in starts[:1])]
