"""What the object counted, and what that says about a capture."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from stream.records.kernel import RawCapture, taint

if TYPE_CHECKING:
    from stream.sources.kernel.decode import Decoder
    from stream.sources.kernel.loader import Loaded

_ONE_CPU = struct.Struct("36Q")
_URING = 11  # where the object counts the io_urings that were set up


class Books(Struct, frozen=True):
    lost: int
    lost_forks: int
    foreign: int  #: calls made in a way that is not followed
    unseen_uring: int  #: operations of io_uring that are not followed
    seen: tuple[int, ...]  #: by kind of event
    dropped: tuple[int, ...]


class Bookkeeper:
    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._size = _ONE_CPU.size * _possible_cpus()

    def lost(self) -> int:
        """Alone, because it is asked for at each look."""
        numbers = memoryview(self._loaded.read("books", self._size)).cast("Q")
        return sum(numbers[:: _ONE_CPU.size // 8])

    def read(self) -> Books:
        rows = _ONE_CPU.iter_unpack(self._loaded.read("books", self._size))
        sums = [sum(column) for column in zip(*rows, strict=True)]
        lost, lost_forks, foreign, unseen, *kinds = sums
        return Books(lost, lost_forks, foreign, unseen, tuple(kinds[:16]), tuple(kinds[16:]))


def capture_of(
    books: Books,
    decoder: Decoder,
    *,
    misses: int,
    living: int,
    ring_bytes: int,
    sees_uring: bool,
    cgroup: Path | None,
    guard: int,
) -> RawCapture:
    capture = RawCapture(
        feed="ebpf",
        got=decoder.got,
        dropped=books.lost,
        seen=sum(books.seen),
        misses=misses,
        lost_forks=books.lost_forks,
        unknown_loss=_unknown_loss(books, decoder, living, has_group=cgroup is not None),
        before_exec=decoder.before_exec,
        scopes=decoder.scopes,
        uring=_uring(books, decoder, sees_uring),
        ring_bytes=ring_bytes,
    )
    _judge_cgroup(capture, cgroup, guard)
    return capture


def _unknown_loss(books: Books, decoder: Decoder, living: int, *, has_group: bool) -> str:
    """`living`: processes of the run, which nobody watches any more."""
    if decoder.got + books.lost != sum(books.seen):
        return "the kernel's books do not balance"
    reasons = decoder.doubts.reasons
    if books.foreign:
        calls = f"{books.foreign} calls were made in a way that is not followed on this machine"
        reasons.append(calls)
    if living:
        reasons.append(f"processes that lived on, unwatched: {living}")
    if has_group and decoder.scopes.get("both") and decoder.scopes.get("tree"):
        # It is on record by its parents, but who leaves may have taken others along unseen.
        reasons.append("a process of the run left its control group")
    unseen = decoder.unended - living
    if unseen > 0 and not (books.lost or books.lost_forks):  # which explain it
        reasons.append(f"processes that were over, and whose end was not seen: {unseen}")
    return "; ".join(reasons)


def _uring(
    books: Books, decoder: Decoder, sees_uring: bool
) -> Literal["seen", "unused", "hole", "unknown"]:
    if books.unseen_uring or (decoder.asks_ring and not decoder.urings):
        return "hole"  # also where others have set it up: what they know of it is not known here
    if not decoder.urings:
        return "unknown" if books.dropped[_URING] else "unused"
    return "seen" if sees_uring else "hole"


def _judge_cgroup(capture: RawCapture, cgroup: Path | None, guard: int) -> None:
    scopes = capture.scopes
    if cgroup is None or not scopes.get("both"):
        none = "no control group of version 2" if cgroup is None else "no event was in it"
        capture.cgroup, capture.cgroup_reasons = "failed", [none]
        return
    told = {
        f"{scopes.get('tree')} events of descendants that had left it": scopes.get("tree"),
        f"{scopes.get('cgroup')} events of others that were in it": scopes.get("cgroup"),
        f"{scopes.get('unknown')} events that nothing ties to it": scopes.get("unknown"),
        "processes that could not be followed": capture.lost_forks or capture.misses,
        "processes were still in it at the end": _has_others(cgroup, guard),
    }
    capture.cgroup_reasons = [reason for reason, is_true in told.items() if is_true]
    capture.cgroup = "partial" if capture.cgroup_reasons else "clean"
    taint(capture)


def _has_others(cgroup: Path, guard: int) -> bool:
    for folder, _, _ in os.walk(cgroup):
        try:
            members = Path(folder, "cgroup.procs").read_text().split()
        except OSError:  # it is gone: nobody is in it
            continue
        if any(int(pid) != guard for pid in members):
            return True
    return False


def _possible_cpus() -> int:
    """What the kernel has of each per-CPU value: the highest number counts, and holes do."""
    text = Path("/sys/devices/system/cpu/possible").read_text().strip()
    return int(text.replace(",", "-").rpartition("-")[2]) + 1
