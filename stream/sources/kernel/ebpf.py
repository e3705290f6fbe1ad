"""The kernel feed by eBPF: each call of a run's processes, in order, with every loss counted.

It is attached before the program starts, and records nothing of the process that starts it. A ring
that is full loses what comes next: so whoever reads it goes before others, and what was lost is
counted by the kernel and becomes a gap in its place.
"""

from __future__ import annotations

import mmap
import os
import select
import struct
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from anyio import move_on_after, sleep, wait_readable
from anyio.lowlevel import checkpoint
from msgspec import Struct

from stream.errors import FeedError, os_reason
from stream.pipeline import Batch, Out
from stream.process.cgroup import current_cgroup
from stream.process.messages import Start
from stream.records.control import TELEMETRY, Gap
from stream.records.kernel import RawCapture, Telemetry, mark_cgroup_partial
from stream.sources.kernel.calls import WatchedFile
from stream.sources.kernel.decode import RingDecoder
from stream.sources.kernel.loader import Attachment, attach_feed_programs, wake_threshold

if TYPE_CHECKING:
    from stream.sources.kernel.loader import LoadedPrograms

_ONE_CPU = struct.Struct("36Q")
_URING = 11  # where the object counts the io_urings that were set up


class RingCounters(Struct, frozen=True):
    """What the programs in the kernel counted, on all CPUs together."""

    lost: int
    lost_forks: int
    foreign: int  #: calls made in a way that is not followed
    unseen_uring: int  #: operations of io_uring that are not followed
    seen: tuple[int, ...]  #: by kind of event
    dropped: tuple[int, ...]


class CounterReader:
    """Reads what the programs in the kernel counted."""

    def __init__(self, loaded: LoadedPrograms) -> None:
        self._loaded = loaded
        self._size = _ONE_CPU.size * _possible_cpus()

    def lost_events(self) -> int:
        """Return how many events were lost: each look into the ring asks for this alone."""
        numbers = memoryview(self._loaded.read_map_value("books", self._size)).cast("Q")
        return sum(numbers[:: _ONE_CPU.size // 8])

    def read_counters(self) -> RingCounters:
        """Return what was counted on all CPUs."""
        rows = _ONE_CPU.iter_unpack(self._loaded.read_map_value("books", self._size))
        sums = [sum(column) for column in zip(*rows, strict=True)]
        lost, lost_forks, foreign, unseen, *kinds = sums
        return RingCounters(lost, lost_forks, foreign, unseen, tuple(kinds[:16]), tuple(kinds[16:]))


def ebpf_capture_of(
    counters: RingCounters,
    decoder: RingDecoder,
    *,
    misses: int,
    living: int,
    ring_bytes: int,
    sees_uring: bool,
    cgroup: Path | None,
    guard: int,
) -> RawCapture:
    """Make the feed's last record of its counters."""
    capture = RawCapture(
        feed="ebpf",
        got=decoder.got,
        dropped=counters.lost,
        seen=sum(counters.seen),
        misses=misses,
        lost_forks=counters.lost_forks,
        unknown_loss=_unknown_ring_loss(counters, decoder, living, has_group=cgroup is not None),
        before_exec=decoder.before_exec,
        scopes=decoder.scopes,
        uring=_uring_state(counters, decoder, sees_uring),
        ring_bytes=ring_bytes,
    )
    _describe_cgroup(capture, cgroup, guard)
    return capture


def _unknown_ring_loss(
    counters: RingCounters, decoder: RingDecoder, living: int, *, has_group: bool
) -> str:
    """Say why nobody knows how much was lost; nothing if it is known. `living` counts processes of
    the run that nobody watches any more."""
    if decoder.got + counters.lost != sum(counters.seen):
        return "the kernel's counters do not balance"
    reasons = decoder.doubts.reasons
    if counters.foreign:
        calls = f"{counters.foreign} calls were made in a way that is not followed on this machine"
        reasons.append(calls)
    if living:
        reasons.append(f"processes that lived on, unwatched: {living}")
    if has_group and decoder.scopes.get("both") and decoder.scopes.get("tree"):
        # It is on record by its parents, but who leaves may have taken others along unseen.
        reasons.append("a process of the run left its control group")
    unseen = decoder.unended_processes - living
    if unseen > 0 and not (counters.lost or counters.lost_forks):  # which explain it
        reasons.append(f"processes that were over, and whose end was not seen: {unseen}")
    return "; ".join(reasons)


def _uring_state(
    counters: RingCounters, decoder: RingDecoder, sees_uring: bool
) -> Literal["seen", "unused", "hole", "unknown"]:
    """Return whether the eBPF feed saw what the run did by io_uring."""
    if counters.unseen_uring or (decoder.asks_ring and not decoder.urings):
        return "hole"  # also where others have set it up: what they know of it is not known here
    if not decoder.urings:
        return "unknown" if counters.dropped[_URING] else "unused"
    return "seen" if sees_uring else "hole"


def _describe_cgroup(capture: RawCapture, cgroup: Path | None, guard: int) -> None:
    """Say how far the kernel events and the run's control group agree, and what differs."""
    scopes = capture.scopes
    if cgroup is None or not scopes.get("both"):
        none = "no control group of version 2" if cgroup is None else "no event was in it"
        capture.cgroup, capture.cgroup_reasons = "failed", [none]
        return
    reasons = {
        f"{scopes.get('tree')} events of descendants that had left it": scopes.get("tree"),
        f"{scopes.get('cgroup')} events of others that were in it": scopes.get("cgroup"),
        f"{scopes.get('unknown')} events that nothing ties to it": scopes.get("unknown"),
        "processes that could not be followed": capture.lost_forks or capture.misses,
        "processes were still in it at the end": _has_other_members(cgroup, guard),
    }
    capture.cgroup_reasons = [reason for reason, is_true in reasons.items() if is_true]
    capture.cgroup = "partial" if capture.cgroup_reasons else "clean"
    mark_cgroup_partial(capture)


def _has_other_members(cgroup: Path, guard: int) -> bool:
    """Return whether processes other than the guard are in the control group or below it."""
    for folder, _, _ in os.walk(cgroup):
        try:
            members = Path(folder, "cgroup.procs").read_text().split()
        except OSError:  # it is gone: nobody is in it
            continue
        if any(int(pid) != guard for pid in members):
            return True
    return False


def _possible_cpus() -> int:
    """Return how many values the kernel has for all CPUs: one up to the highest number, also for
    numbers that no CPU has."""
    text = Path("/sys/devices/system/cpu/possible").read_text().strip()
    return int(text.replace(",", "-").rpartition("-")[2]) + 1


PAGE = mmap.PAGESIZE


class RingBuffer:
    """The ring buffer that the kernel writes, mapped: whole records, never a torn one."""

    def __init__(self, fd: int, size: int) -> None:
        self._mask = size - 1
        self._ours = mmap.mmap(fd, PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        # The data lies there twice, one after the other: a record never has to be put together.
        self._theirs = mmap.mmap(fd, PAGE + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=PAGE)
        self._read = memoryview(self._ours).cast("Q")
        self._written = memoryview(self._theirs)[:8].cast("Q")
        self._data = memoryview(self._theirs)[PAGE:]
        self._barrier = threading.Lock()

    @property
    def bytes_read(self) -> int:
        """Return how many bytes have been taken out of the ring since the beginning."""
        return self._read[0]

    @property
    def bytes_written(self) -> int:
        """Return how many bytes have been put into the ring; what comes after this call is read no
        earlier than this number."""
        position = self._written[0]
        with self._barrier:  # the one acquire that Python can spell
            return position

    def read_records(self, most: int) -> bytes:
        """Return the next bytes of the ring, at most so many. Records that are still being written
        are marked so in their length."""
        start = self._read[0]
        length = min(self.bytes_written - start, most)
        if length <= 0:
            return b""
        offset = start & self._mask
        view = self._data[offset : offset + length]
        # A length may be copied after what it belongs to: only in the second of two equal copies
        # everything is at least as new as the lengths of the first.
        first = bytes(view)
        while True:
            with self._barrier:
                second = bytes(view)
            if first == second:
                return second
            first = second

    def release_bytes(self, length: int) -> None:
        """Give bytes of the ring that were read back to the kernel."""
        self._read[0] += length

    def close(self) -> None:
        """Unmap the ring."""
        for view in (self._read, self._written, self._data):
            view.release()
        self._ours.close()
        self._theirs.close()


URGENT = -10  #: nice: of two cores, one whenever it is needed


@contextmanager
def urgent_thread() -> Iterator[None]:
    """Let the calling thread go before others, but not what it starts meanwhile. Nothing changes
    where that is not permitted, or where somebody has chosen a priority for us."""
    if os.getpriority(os.PRIO_PROCESS, 0) or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield
        return
    try:
        os.setpriority(os.PRIO_PROCESS, 0, URGENT)
    except PermissionError:
        yield
        return
    _set_inherited_policy(os.SCHED_OTHER | os.SCHED_RESET_ON_FORK)
    try:
        yield
    finally:
        _set_inherited_policy(os.SCHED_OTHER)
        os.setpriority(os.PRIO_PROCESS, 0, 0)


def _set_inherited_policy(policy: int) -> None:
    os.sched_setscheduler(0, policy, os.sched_param(0))


RING = 16 << 20  #: bytes that may wait for us, where nothing else is asked for
TICK = 0.05  #: seconds: nothing lies in the ring for longer
STEP = 384 << 10  #: bytes that are taken out at a time: others wait for the loop, too
FULL = "the ring was full"
SETTLE = 200  #: milliseconds that the last programs have to finish


class EbpfFeed:
    """The source of a run's calls, as programs in the kernel see them."""

    name: Literal["ebpf"] = "ebpf"
    burden = ""

    def __init__(
        self,
        attachment: Attachment,
        *,
        guard: int,
        cgroup: Path | None,
        names: Sequence[str],
        ring_bytes: int,
    ) -> None:
        self._loaded = attachment.loaded
        self._sees_uring = attachment.sees_uring
        self._guard, self._cgroup = guard, cgroup
        self._ring, self._ring_bytes = RingBuffer(self._loaded.maps["ring"], ring_bytes), ring_bytes
        self._wake = wake_threshold(ring_bytes)
        self._decoder = RingDecoder(names)
        self._counters = CounterReader(self._loaded)
        self._is_ended = self._is_closed = False
        self._lost_in_gaps = 0  # of the lost events, those that have a gap
        self._known_until = 0  # so far in the ring, nothing was lost but what was noticed
        self._gaps: deque[tuple[int, Gap]] = deque()  # and where in the ring they belong
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Edge-triggered: that something is in the ring is no reason to wake up; enough of it is.
        self._poller = select.epoll()
        for fd in (self._wakeup, self._loaded.maps["ring"]):
            self._poller.register(fd, select.EPOLLIN | select.EPOLLET)

    @classmethod
    def open(
        cls,
        *,
        guard: int,
        cgroup: Path | None,
        watch: Sequence[WatchedFile] = (),
        ring_bytes: int = RING,
        tree_size: int = 65536,
        looks_closer: bool = False,
    ) -> EbpfFeed:
        """Attach to all that the process `guard` will start, and to the control group that it is
        in. To look closer is to see more calls, and what was around those that failed.

        Raises FeedError. `ring_bytes` is a power of two, and whole pages.
        """
        names = [one.name for one in watch]
        attachment = None
        try:
            attachment = attach_feed_programs(
                guard, cgroup, watch, ring_bytes, tree_size, looks_closer=looks_closer
            )
            return cls(attachment, guard=guard, cgroup=cgroup, names=names, ring_bytes=ring_bytes)
        except OSError as error:  # no /proc, no further descriptor, no memory for the ring
            if attachment is not None:
                attachment.loaded.close()
            prefix = f"{error.filename}: " if error.filename else ""
            raise FeedError(f"the kernel feed: {prefix}{os_reason(error)}") from None

    def wrap(self, order: Start) -> Start:
        """Return the order as it is: nothing is put before the command."""
        return order

    def end(self) -> None:
        """Say that the tree is over: what is in the ring is all that there will be."""
        self._is_ended = True
        if not self._is_closed:  # else its number may be somebody else's by now
            os.eventfd_write(self._wakeup, 1)

    def close(self) -> None:
        """Detach the programs, and close the ring; it can be closed again."""
        if not self._is_closed:
            self._is_closed = True
            self._poller.close()
            os.close(self._wakeup)
            self._ring.close()
            self._loaded.close()

    async def catch_up(self, out: Out) -> None:
        """Deliver all events that are in the ring by now. `out` is the one that `run` was given,
        and must not wait: else events could overtake each other."""
        until = self._ring.bytes_written
        while self._ring.bytes_read < until:
            await self._drain_ring(out)

    def count_losses(self) -> int:
        """Return a number that grows with everything that goes unseen: events and processes that
        found no room, and calls that the programs could not follow."""
        counted = self._counters.read_counters()
        of_calls = counted.lost + counted.foreign + counted.unseen_uring
        return of_calls + counted.lost_forks + self._loaded.skipped_program_runs()

    async def run(self, out: Out, /) -> None:
        """Deliver events until the process tree has ended."""
        with urgent_thread():
            while not self._is_ended:
                await self._drain_ring(out, self._wake)
                with move_on_after(TICK):
                    await wait_readable(self._poller.fileno())
                self._poller.poll(0)
        self._loaded.detach()
        counters = await self._wait_for_counters(out)
        capture = ebpf_capture_of(
            counters,
            self._decoder,
            misses=self._loaded.skipped_program_runs(),
            living=self._loaded.count_map_keys("tree"),
            ring_bytes=self._ring_bytes,
            sees_uring=self._sees_uring,
            cgroup=self._cgroup,
            guard=self._guard,
        )
        rest = [*self._decoder.unanswered_requests(), *self._gaps_up_to(None), capture]
        await out.send(Batch(TELEMETRY, rest))

    async def _drain_ring(self, out: Out, least: int = 1) -> None:
        """Take events out while there are so many bytes to take; for less, wait until there are
        more. Nothing is taken across a gap at a time."""
        taken = least
        while taken >= least or self._gaps:
            before = self._ring.bytes_read
            if batch := self._take_ring_events():
                await out.send(Batch(TELEMETRY, batch))
            await checkpoint()  # a send to a queue with room does not let the others run
            taken = self._ring.bytes_read - before

    def _take_ring_events(self) -> list[Telemetry]:
        """Return the next events, at most up to the next gap."""
        until = self._note_ring_losses()
        if self._gaps:
            until = min(until, self._gaps[0][0])
        events, length = self._decoder.decode_ring_records(
            self._ring.read_records(min(STEP, until - self._ring.bytes_read))
        )
        self._ring.release_bytes(length)
        return [*events, *self._gaps_up_to(self._ring.bytes_read)]

    def _note_ring_losses(self) -> int:
        """Note what was lost since the last look: it lies between where the ring was before that
        one, and where it is after this one. Return up to where all losses are known."""
        before = self._ring.bytes_written
        lost = self._counters.lost_events()
        if lost > self._lost_in_gaps:
            begins = Gap(source=self.name, lost=0, reason=FULL, unit="events", begins=True)
            ends = Gap(source=self.name, lost=lost - self._lost_in_gaps, reason=FULL, unit="events")
            # Where the gap before it ends later than this one begins, the two are one.
            begun = max(self._known_until, self._gaps[-1][0]) if self._gaps else self._known_until
            self._gaps += (begun, begins), (self._ring.bytes_written, ends)
            self._lost_in_gaps = lost
        self._known_until = before
        return before

    def _gaps_up_to(self, position: int | None) -> list[Telemetry]:
        """Return the gaps up to a place in the ring, or all, and forget them."""
        gaps: list[Telemetry] = []
        while self._gaps and (position is None or self._gaps[0][0] <= position):
            gaps.append(self._gaps.popleft()[1])
        return gaps

    async def _wait_for_counters(self, out: Out) -> RingCounters:
        """Wait until the counters balance: a program may still have been at work when it was
        detached."""
        for _ in range(SETTLE):
            await self._drain_ring(out)
            counters = self._counters.read_counters()
            is_balanced = self._decoder.got + counters.lost == sum(counters.seen)
            if is_balanced and counters.lost == self._lost_in_gaps:
                break
            await sleep(0.001)
        return counters


def probe_ebpf(ring_bytes: int = RING) -> str:
    """Return why eBPF cannot be a feed here; nothing if it can.

    It is opened with all that a run asks for: a smaller one might be had where that cannot.
    """
    output, ours = os.pipe()
    try:
        feed = EbpfFeed.open(
            guard=os.getpid(),
            cgroup=current_cgroup(),  # a run has one of its own beneath it, where it may make one
            watch=[WatchedFile.of_descriptor("stdout", output)],
            ring_bytes=ring_bytes,
        )
    except FeedError as error:
        return str(error)
    finally:
        os.close(output)
        os.close(ours)
    feed.close()
    return ""
