"""The kernel's own account of a run: each call of its processes, in order; every loss is counted.

It is attached before the program starts, and records nothing of the process that starts it.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from anyio import move_on_after, sleep, wait_readable
from anyio.abc import ObjectSendStream
from anyio.lowlevel import checkpoint

from stream.errors import FeedError, os_reason
from stream.pipeline import Batch
from stream.recorder.cgroup import own_group
from stream.recorder.messages import Order
from stream.records.control import Gap
from stream.records.sightings import Sightings, Telemetry
from stream.sources.kernel.attach import Attachment, attach, wake_at
from stream.sources.kernel.books import Bookkeeper, Books, capture_of
from stream.sources.kernel.decode import Decoder
from stream.sources.kernel.ring import Ring
from stream.sources.kernel.urgency import urgent
from stream.sources.kernel.watch import Watch

RING = 16 << 20  #: bytes that may wait for us, where nothing else is asked for
TICK = 0.05  #: seconds: nothing lies in the ring for longer
STEP = 384 << 10  #: bytes that are taken out at a time: others wait for the loop, too
FULL = "the ring was full"
SETTLE = 200  #: milliseconds that the last programs have to finish


class EbpfFeed:
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
        self._ring, self._ring_bytes = Ring(self._loaded.maps["ring"], ring_bytes), ring_bytes
        self._wake = wake_at(ring_bytes)
        self._decoder = Decoder(names)
        self._books = Bookkeeper(self._loaded)
        self._is_ended = self._is_closed = False
        self._noticed = 0  # of the lost events, those that have a gap
        self._whole = 0  # so far in the ring, nothing was lost but what was noticed
        self._gaps: deque[tuple[int, Gap]] = deque()  # and where in the ring they belong
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Edge-triggered: that something is in the ring is no reason to wake up; enough of it is.
        self._alarm = select.epoll()
        for fd in (self._bell, self._loaded.maps["ring"]):
            self._alarm.register(fd, select.EPOLLIN | select.EPOLLET)

    @classmethod
    def open(
        cls,
        *,
        guard: int,
        cgroup: Path | None,
        watch: Sequence[Watch] = (),
        ring_bytes: int = RING,
        tree_size: int = 65536,
    ) -> EbpfFeed:
        """Of all that the process `guard` will start, and of the control group that it is in.

        Raises FeedError. `ring_bytes` is a power of two, and whole pages.
        """
        names = [one.name for one in watch]
        attachment = None
        try:
            attachment = attach(guard, cgroup, watch, ring_bytes, tree_size)
            return cls(attachment, guard=guard, cgroup=cgroup, names=names, ring_bytes=ring_bytes)
        except OSError as error:  # no /proc, no further descriptor, no memory for the ring
            if attachment is not None:
                attachment.loaded.close()
            place = f"{error.filename}: " if error.filename else ""
            raise FeedError(f"the kernel feed: {place}{os_reason(error)}") from None

    def wrap(self, order: Order) -> Order:
        return order

    def end(self) -> None:
        """The tree is over: what is in the ring is all that there will be."""
        self._is_ended = True
        if not self._is_closed:  # else its number may be somebody else's by now
            os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._alarm.close()
            os.close(self._bell)
            self._ring.close()
            self._loaded.close()

    async def run(self, out: ObjectSendStream[Batch[Telemetry]], /) -> None:
        with urgent():
            while not self._is_ended:
                await self._drain(out, self._wake)
                with move_on_after(TICK):
                    await wait_readable(self._alarm.fileno())
                self._alarm.poll(0)
        self._loaded.detach()
        books = await self._settle(out)
        capture = capture_of(
            books,
            self._decoder,
            misses=self._loaded.misses(),
            living=self._loaded.count("tree"),
            ring_bytes=self._ring_bytes,
            sees_uring=self._sees_uring,
            cgroup=self._cgroup,
            guard=self._guard,
        )
        await out.send([*self._decoder.rest(), *self._gaps_to(None), capture])

    async def _drain(self, out: ObjectSendStream[Batch[Telemetry]], least: int = 1) -> None:
        """While there are so many bytes to take: for less, it waits until there are more. But for
        a gap: where that stands, nothing more is taken at a time."""
        taken = least
        while taken >= least or self._gaps:
            before = self._ring.read
            if batch := self._look():
                await out.send(batch)
            await checkpoint()  # a send to a queue with room does not let the others run
            taken = self._ring.read - before

    def _look(self) -> Sightings:
        """The next events, at most up to the next gap."""
        until = self._notice()
        if self._gaps:
            until = min(until, self._gaps[0][0])
        batch, length = self._decoder.decode(self._ring.peek(min(STEP, until - self._ring.read)))
        self._ring.take(length)
        batch.items += self._gaps_to(self._ring.read)
        return batch

    def _notice(self) -> int:
        """Whether something was lost since the last look: it lies between where the ring was
        before that one, and where it is after this one. How far it is known from now on."""
        before = self._ring.written
        lost = self._books.lost()
        if lost > self._noticed:
            begins = Gap(source=self.name, lost=0, reason=FULL, unit="events", begins=True)
            ends = Gap(source=self.name, lost=lost - self._noticed, reason=FULL, unit="events")
            # Where the gap before it ends later than this one begins, the two are one.
            begun = max(self._whole, self._gaps[-1][0]) if self._gaps else self._whole
            self._gaps += (begun, begins), (self._ring.written, ends)
            self._noticed = lost
        self._whole = before
        return before

    def _gaps_to(self, position: int | None) -> list[Telemetry]:
        gaps: list[Telemetry] = []
        while self._gaps and (position is None or self._gaps[0][0] <= position):
            gaps.append(self._gaps.popleft()[1])
        return gaps

    async def _settle(self, out: ObjectSendStream[Batch[Telemetry]]) -> Books:
        """A program may still have been at work when it was detached: until the books balance."""
        for _ in range(SETTLE):
            await self._drain(out)
            books = self._books.read()
            if self._decoder.got + books.lost == sum(books.seen) and books.lost == self._noticed:
                break
            await sleep(0.001)
        return books


def probe_ebpf(ring_bytes: int = RING) -> str:
    """Why there can be no such feed here; empty: there can.

    It is opened with all that a run asks for: a smaller one might be had where that cannot.
    """
    output, ours = os.pipe()
    try:
        feed = EbpfFeed.open(
            guard=os.getpid(),
            cgroup=own_group(),  # a run has one of its own beneath it, where it may make one
            watch=[Watch.of("stdout", output)],
            ring_bytes=ring_bytes,
        )
    except FeedError as error:
        return str(error)
    finally:
        os.close(output)
        os.close(ours)
    feed.close()
    return ""
