"""The kernel layer as correlation reads it: who did what kind of thing, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec
from msgspec import Struct

from stream.records.control import GAP
from stream.records.kernel import EXEC, FORK

#: pid, event_type; of a fork the new process, of an exec its arguments; and how many there are of
#: it. Only what has no such detail and is no exit may stand for several, and in any order among
#: others of that kind; none stands for events before and after a marker.
KernelStep: TypeAlias = tuple[int, int, int | list[str] | None, int]


class _Line(Struct):
    pid: int
    event_type: int


class _Beside(Struct):
    schema: str
    seq: int = -1
    child: int = 0
    argv: list[str] | None = None


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_beside = msgspec.json.Decoder(_Beside).decode


def kernel_steps(kernel: Iterable[bytes], details: Iterable[bytes]) -> Iterator[KernelStep]:
    """From the lines of both files. They are taken to be what they should be: another part
    verifies that."""
    beside = _besides(details)
    seq, one = next(beside)
    for number, line in enumerate(kernel):
        step = _decode_line(line)
        while 0 <= seq < number:
            seq, one = next(beside)
        detail: int | list[str] | None = None
        if seq == number and one is not None:
            if step.event_type == FORK:
                detail = one.child
            elif step.event_type == EXEC:
                detail = one.argv
        yield step.pid, step.event_type, detail, 1


def _besides(details: Iterable[bytes]) -> Iterator[tuple[int, _Beside | None]]:
    for line in details:
        one = _decode_beside(line)
        if one.schema != GAP:
            yield one.seq, one
    yield -1, None


def lost_between(details: Iterable[bytes], total: int) -> list[tuple[int, int]]:
    """Where events were lost: after the first number of events, before the second.

    A gap has no number of its own. It stands between two lines that have one.
    """
    found: list[tuple[int, int]] = []
    first, waiting = 0, False
    for line in details:
        one = _decode_beside(line)
        if one.schema == GAP:
            waiting = True
            continue
        if waiting:
            found.append((first, one.seq))
        first, waiting = one.seq + 1, False
    if waiting:
        found.append((first, max(first, total)))
    return found
