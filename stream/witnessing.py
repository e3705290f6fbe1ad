"""The composition behind `--kernel`: a feed, its layers, and the artifacts that follow from them.

It has a pipeline of its own beside the run's. Whatever happens to it, the run goes on; what it
could not see is said in observation-health.json, and nothing of it ever looks complete.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
from anyio import Event, create_task_group, sleep, to_thread
from anyio.abc import ObjectSendStream
from msgspec import Struct

from stream.archive.chain import LayerFiles
from stream.codec import join_lines
from stream.errors import FeedError, RequiredError, os_reason
from stream.evidence.surface import Surface
from stream.pipeline import Batch, Pipeline, Write
from stream.recorder.cgroup import Cgroup
from stream.recorder.disclosure import Disclosure
from stream.recorder.guard import Guard
from stream.recorder.invocation import Ending
from stream.recorder.journal import is_whole
from stream.recorder.messages import Order
from stream.recorder.outputs import NOT_OURS
from stream.recorder.recording import Recording
from stream.records.control import Gap
from stream.records.kernel import RawCapture, RawEvent
from stream.records.run import RunSummary
from stream.records.runner import DETAIL_FILE, KERNEL_FILE
from stream.records.sightings import Telemetry
from stream.sources.kernel.ebpf import EbpfFeed
from stream.sources.kernel.feeds import Choice, open_feed
from stream.sources.kernel.strace import StraceFeed
from stream.sources.kernel.watch import Watch
from stream.stages.normalize import RESTARTED, WROTE, DetailLine, Normalize
from stream.testimony import Account, Course, Testimony, Times, conclude

RING = 16 << 20
LOOK = 0.02  #: seconds between two looks at the agent's own event log
TURN = 1 << 20  #: bytes of it that are read at a look
BLOCK = 1 << 16
SDK_LOG = ".sdk-events.ndjson"
_encode = msgspec.json.Encoder().encode


class Wish(Struct, frozen=True, kw_only=True):
    """What evidence was asked for."""

    kernel: Choice
    is_required: bool = False
    ring_bytes: int = RING
    raw: Path | None = None  #: where the raw telemetry goes, as well
    policy_log: Path | None = None


class KernelWitness:
    def __init__(
        self, recording: Recording, wish: Wish, warn: Callable[[str], None] = lambda sentence: None
    ) -> None:
        self._recording = recording
        self._wish = wish
        self._warn = warn
        self._files = LayerFiles(recording.folder)
        self._testimony = Testimony(recording.run_id, recording.disclosure)
        self._surface = Surface()
        self._normalize = Normalize(recording.run_id, surface=self._surface, keeps_times=True)
        self._times = Times(recording.folder)
        self._feed: EbpfFeed | StraceFeed | None = None
        self._capture = RawCapture(feed="absent", reason="it was never begun")
        self._begun, self._over, self._is_done = Event(), Event(), Event()
        self._log = -1
        self._heard = 0  #: bytes of it
        self._given: list[bytes] = []  # names in the environment
        self._troubles: list[str] = []

    async def begin(self, guard: Guard, cgroup: Cgroup | None, order: Order) -> Order:
        log = self._recording.folder / SDK_LOG
        self._log = os.open(log, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        given = self._testimony.environment(log)
        self._given = list(given)
        order.env = {**order.env, **given}
        try:
            feed = open_feed(
                self._wish.kernel,
                guard=guard.pid,
                cgroup=None if cgroup is None else cgroup.path,
                watch=[Watch.of("stdout", guard.stdout), Watch.of("log", self._log)],
                ring_bytes=self._wish.ring_bytes,
                folder=self._recording.folder,
            )
        except FeedError as error:
            if self._wish.is_required:
                raise RequiredError(f"--require kernel: {error}") from None
            self._capture.reason = str(error)
            self._warn(f"the kernel is not watched: {error}")
        else:
            self._feed = feed
            if isinstance(feed, StraceFeed):
                order = feed.wrap(order)
        self._begun.set()
        return order

    def hear(self, block: bytes, arrived: int) -> None:
        self._testimony.hear(block, arrived)

    async def run(self) -> None:
        await self._begun.wait()
        try:
            async with create_task_group() as tasks:
                tasks.start_soon(self._read_log)
                if self._feed is not None:
                    await self._watch_kernel(self._feed)
        finally:
            self._is_done.set()

    async def finish(self, ending: Ending, summary: RunSummary) -> list[str]:
        if self._feed is not None:
            self._feed.end()
        self._over.set()
        await self._is_done.wait()
        try:
            await to_thread.run_sync(self._conclude, ending, summary)
        except Exception as error:  # the rest of the record is made all the same
            self._troubles.append(f"the kernel evidence: {_reason(error)}")
        return self._troubles

    async def _watch_kernel(self, feed: EbpfFeed | StraceFeed) -> None:
        source: Any = _Censored(feed, self._recording.disclosure)
        if self._recording.disclosure.censor is None:
            source = feed
        if self._wish.raw is not None:
            source = _Spilled(source, self._wish.raw)
        sink = _Layers(self._files, self._normalize, self._times)
        try:
            await Pipeline[Any]((source,)).through(lambda: self._normalize).into(sink)
        except* Exception as group:  # whatever it was, the agent's run goes on, and this is said
            reason = "; ".join(sorted(map(_reason, group.exceptions)))
            self._troubles.append(f"the kernel layer: {reason}")
        finally:
            feed.close()

    async def _read_log(self) -> None:
        while not self._over.is_set():
            self._hear_log(TURN)
            await sleep(LOOK)

    def _hear_log(self, most: int) -> None:
        """An agent that writes without end gets no more than its turn."""
        while most > 0 and (block := os.read(self._log, min(most, BLOCK))):
            most -= len(block)
            self._heard += len(block)
            self._testimony.hear_log(block, time.monotonic_ns())

    def _close_log(self) -> None:
        path = self._recording.folder / SDK_LOG
        self._hear_log(os.fstat(self._log).st_size - self._heard)
        is_ours = is_whole(path, self._log, self._heard)
        os.close(self._log)
        if not is_ours:
            self._troubles.append(f"{SDK_LOG} {NOT_OURS}")
        with suppress(OSError):  # gone already, or a folder: then it was not ours, which is said
            path.unlink()

    def _conclude(self, ending: Ending, summary: RunSummary) -> None:
        self._close_log()
        self._read_policy()
        account = Account(
            capture=self._capture_of_all(),
            filtered={
                rule: count
                for rule, count in self._normalize.dropped.items()
                if rule not in (WROTE, RESTARTED)  # which are no events of the run
            },
            surface=self._surface,
            written=self._normalize.written,
            times=self._times,
        )
        course = Course.of(self._recording, ending, self._given)
        folder = self._recording.folder
        concluded = conclude(folder, self._files, self._testimony, account, course)
        self._troubles += concluded.troubles
        summary.kernel_layer = concluded.health.kernel_layer
        summary.kernel_events = self._files.lines(KERNEL_FILE)
        summary.kernel_lost = concluded.health.ringbuf_drops
        summary.cgroup_correlation = concluded.health.cgroup_correlation
        summary.correlation = concluded.correlation.status

    def _read_policy(self) -> None:
        path = self._wish.policy_log
        if path is None:
            return
        try:
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    self._testimony.decide(block)
        except OSError as error:
            self._troubles.append(f"--policy {path}: {os_reason(error)}")

    def _capture_of_all(self) -> RawCapture:
        """The feed's books; where it never got to them, or they were not kept, that is a loss."""
        if self._feed is None:
            return self._capture
        feed: Literal["ebpf", "strace"] = "strace" if isinstance(self._feed, StraceFeed) else "ebpf"
        capture = self._normalize.capture or RawCapture(feed=feed)
        lost = sum(self._files.lost.values())
        reasons = [capture.unknown_loss] if capture.unknown_loss else []
        if self._normalize.capture is None:
            reasons.append("the feed ended before its books were closed")
        if lost:
            reasons.append(f"{lost} lines could not be written")
        capture.unknown_loss = "; ".join(reasons)
        return capture


def _reason(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(_reason, error.exceptions))
    return os_reason(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"


class _Layers(Struct):
    """Lines of the kernel layer, each batch with one write a file."""

    files: LayerFiles
    normalize: Normalize
    times: Times

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Write[Any]]:
        async def write(batch: Batch[Any]) -> None:
            kernel: list[bytes] = []
            beside: list[bytes] = []
            for item in batch:
                if type(item) is bytes:
                    kernel.append(item)
                elif type(item) is DetailLine:
                    beside.append(item)
                elif isinstance(item, Gap):
                    beside.append(_encode(item))
            # First what stands beside: a line that needs it never stands without.
            if beside:
                self.files.append(DETAIL_FILE, join_lines(beside), len(beside))
            if kernel:
                self.files.append(KERNEL_FILE, join_lines(kernel), len(kernel))
            self.times.add(self.normalize.take_times())

        yield write


class _Handed(Struct):
    """The receiving end that a source is given, with something done to each batch before."""

    out: ObjectSendStream[Batch[Telemetry]]
    use: Callable[[Batch[Telemetry]], Batch[Telemetry]]

    async def send(self, batch: Batch[Telemetry]) -> None:
        await self.out.send(self.use(batch))


class _Censored(Struct):
    """A feed whose text is censored before anybody else sees it."""

    feed: Any
    disclosure: Disclosure

    async def run(self, out: Any, /) -> None:
        await self.feed.run(_Handed(out, lambda batch: [self._seen(item) for item in batch]))

    def _seen(self, item: Telemetry) -> Telemetry:
        seen: Any = msgspec.convert(self.disclosure.value(msgspec.to_builtins(item)), type(item))
        if isinstance(item, RawEvent) and item.argv:  # as a whole: `--password X`
            seen.argv = self.disclosure.words([word.encode() for word in item.argv])
        return seen  # type: ignore[no-any-return]


class _Spilled(Struct):
    """A feed whose raw telemetry goes to a file as well."""

    feed: Any
    path: Path

    async def run(self, out: Any, /) -> None:
        with self.path.open("xb") as file:

            def spill(batch: Batch[Telemetry]) -> Batch[Telemetry]:
                file.write(join_lines(map(_encode, batch)))
                return batch

            await self.feed.run(_Handed(out, spill))
