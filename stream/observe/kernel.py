"""The composition behind `--kernel`: a feed, its layers, and the artifacts that follow from them.

It has a pipeline of its own beside the run's. Whatever happens to it, the run goes on; what it
could not see is said in observation-health.json, and nothing of it ever looks complete.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from anyio import Event, create_task_group, to_thread
from msgspec import Struct

from stream.archive.chain import LayerFiles
from stream.errors import FeedError, RequiredError, number, os_reason
from stream.evidence.claude_formats import Sdk
from stream.evidence.markers import COMMANDS, DroppedInput
from stream.files.append import RecordedFile, Reserve
from stream.observe.evidence import CaptureResult, CommandResult, record_evidence
from stream.observe.settings import RunSettings
from stream.pipeline import Batch, Pipeline, Sink, Write
from stream.process.cgroup import Cgroup
from stream.process.guard import Guard
from stream.process.messages import Start
from stream.records.artifacts import DETAIL_FILE, KERNEL_FILE
from stream.records.control import DETAILS, GAPS, KERNEL, TIMES, Gap
from stream.records.kernel import RawCapture, path_text, taint
from stream.records.run import RunSummary
from stream.sinks.raw import RawCopy
from stream.sources.agent import CommandEnding
from stream.sources.kernel.decode import WatchedFile
from stream.sources.kernel.ebpf import RING
from stream.sources.kernel.feed import Choice, Feed, open_feed
from stream.sources.kernel.strace import SILENT
from stream.sources.tool_calls import Channels, DecisionLog
from stream.sources.wrappers import CommandLog, ObservedCommands, WrapperOutput
from stream.transformers.normalize import NO_EVENTS, Normalize
from stream.transformers.redact import CopyRaw, Redact
from stream.transformers.tool_events import EventTimeIndex, ToolCallCollector

NOTHING = "the command ran, and the feed saw nothing of it"
UNFINISHED = "the feed ended before its books were closed"
_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines


class KernelOptions(Struct, frozen=True, kw_only=True):
    """What evidence was asked for."""

    kernel: Choice
    is_required: bool = False
    ring_bytes: int = RING
    raw: Path | None = None  #: where the raw telemetry goes, as well
    policy_log: Path | None = None
    sdk: Sdk = "stream-json"


class KernelRecorder:
    def __init__(
        self,
        recording: RunSettings,
        wish: KernelOptions,
        warn: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._recording = recording
        self._wish = wish
        self._warn = warn
        self._files = LayerFiles(recording.folder)
        self._testimony = ToolCallCollector(recording.run_id, recording.disclosure, wish.sdk)
        self._home = recording.wrappers_folder  # which the guard removes
        self._channels = Channels(
            self._home,
            wish.sdk,
            {
                "log": self._testimony.hear_log,
                "hooks": self._testimony.hear_hooks,
                "otel": self._testimony.hear_otel,
            },
        )
        self._decisions = DecisionLog(wish.policy_log) if wish.policy_log else None
        self._normalize = Normalize(recording.run_id, keeps_writes=True)
        self._times = EventTimeIndex(recording.folder)
        self._reserve = Reserve(recording.folder)
        self._feed: Feed | None = None
        self._capture = RawCapture(feed="absent", reason="it was never begun")
        self._begun, self._is_done = Event(), Event()
        self._given: list[bytes] = []  # names in the environment
        self._troubles: list[str] = []
        self._log: CommandLog | None = None
        self.kept: Mapping[str, RecordedFile] = {}
        self.commands: ObservedCommands | None = None

    async def begin(
        self, guard: Guard, cgroup: Cgroup | None, order: Start, log: CommandLog | None
    ) -> Start:
        self._log = log
        given = self._channels.open() | self._testimony.environment(self._channels.log)
        self._given = list(given)
        order.env = {**order.env, **given}
        watched = {"stdout": guard.stdout, **self._channels.files()}
        if log is not None:
            watched[COMMANDS] = log.fd
        if self._decisions is not None:
            watched |= self._decisions.files()
        watch = [WatchedFile.of(name, fd) for name, fd in watched.items()]
        try:
            # In a thread: the kernel checks programs for a while, and probes run meanwhile.
            feed = await to_thread.run_sync(self._open_feed, guard.pid, cgroup, watch)
        except FeedError as error:
            if self._wish.is_required:
                raise RequiredError(f"--require kernel: {error}") from None
            self._capture.reason = str(error)
            reason = str(error).removeprefix("the kernel feed: ")
            self._warn(f"the kernel is not watched: {reason}")
        else:
            self._feed = feed
            order = feed.wrap(order)
            if feed.burden and self._wish.kernel == "auto":
                self._warn(feed.burden)
        self._begun.set()
        return order

    def hear(self, block: bytes, arrived: int) -> None:
        self._testimony.hear(block, arrived)

    async def run(self) -> None:
        try:
            await self._begun.wait()
            async with create_task_group() as tasks:
                tasks.start_soon(self._listen)
                if self._feed is not None:
                    await self._watch_kernel(self._feed)
        except BaseException:  # of a run that ended before it began
            self._channels.close()
            raise
        finally:
            self._is_done.set()

    async def finish(self, ending: CommandEnding, summary: RunSummary) -> list[str]:
        if self._feed is not None:
            self._feed.end()
        self._channels.end()
        await self._is_done.wait()
        try:
            await to_thread.run_sync(self._conclude, ending, summary)
        except Exception as error:  # nothing of this may cost the record of the run
            self._troubles.append(f"the evidence: {_reason(error)}")
            self.kept = self._files.kept()
        return self._troubles

    def _open_feed(self, guard: int, cgroup: Cgroup | None, watch: list[WatchedFile]) -> Feed:
        return open_feed(
            self._wish.kernel,
            guard=guard,
            cgroup=None if cgroup is None else cgroup.path,
            watch=watch,
            ring_bytes=self._wish.ring_bytes,
            folder=self._recording.folder,
        )

    async def _watch_kernel(self, feed: Feed) -> None:
        policy, raw = self._recording.disclosure, self._wish.raw
        pipeline = Pipeline((feed,))
        sinks: list[Sink] = [_LayerSink(self._files, self._times)]
        if policy.redactor is not None:
            pipeline = pipeline.through(Redact(policy))
        if raw is not None:
            pipeline = pipeline.through(CopyRaw())
            sinks.append(RawCopy(raw, self._troubles))
        try:
            await pipeline.through(self._normalize).into(*sinks)
        except* Exception as group:  # whatever it was, the agent's run goes on, and this is said
            self._troubles.append(f"the kernel layer: {_reasons(group)}")
            if self._normalize.capture is None:  # whoever had begun something has not all of it
                gap = Gap(source=feed.name, lost=0, reason=UNFINISHED)
                self._files.append(DETAIL_FILE, _encode(gap) + b"\n", 1)
        finally:
            feed.close()

    async def _listen(self) -> None:
        try:
            await self._channels.run()
        except* Exception as group:
            self._miss("sdk", f"the SDK layer: {_reasons(group)}")

    def _conclude(self, ending: CommandEnding, summary: RunSummary) -> None:
        self._reserve.release()
        self._hear_the_rest()
        self._read_policy()
        left_out = self._normalize.dropped
        policy_log = self._wish.policy_log
        account = CaptureResult(
            capture=self._capture_of_all(ending),
            filtered={r: n for r, n in left_out.items() if r not in NO_EVENTS},
            aside={r: n for r, n in left_out.items() if r in NO_EVENTS},
            written=self._normalize.written,
            times=self._times,
            home=self._seen_as(self._home),
            helpers=[path_text(os.fsencode(path)) for path in self._channels.helpers],
            wrapper_output=WrapperOutput() if self._log is None else self._log.heard,
            policy_log=None if policy_log is None else self._seen_as(policy_log),
        )
        course = CommandResult.of(self._recording, ending, self._given)
        folder = self._recording.folder
        concluded = record_evidence(folder, self._files, self._testimony, account, course)
        self._troubles += concluded.troubles
        self.kept, self.commands = concluded.kept, concluded.commands
        summary.kernel_layer = concluded.health.kernel_layer
        summary.kernel_events = self._files.lines(KERNEL_FILE)
        summary.kernel_lost = concluded.health.ringbuf_drops
        summary.cgroup_correlation = concluded.health.cgroup_correlation
        summary.tool_calls = len(concluded.correlation.bindings)
        summary.correlation = concluded.correlation.status
        if self._wish.sdk != "otel":
            summary.unknown_form = self._testimony.unknown_form

    def _seen_as(self, path: Path) -> str:
        """As the kernel layer has it."""
        real = os.fsencode(os.path.realpath(path))
        return str(self._recording.disclosure.value(path_text(real)))

    def _hear_the_rest(self) -> None:
        try:
            for unused in self._channels.finish():
                self._testimony.miss(unused)
        except OSError as error:
            self._miss("sdk", f"the SDK layer: {os_reason(error)}")
        finally:
            self._channels.close()
        asked = self._wish.sdk
        if asked != "stream-json" and not self._testimony.received.get(asked):
            hint = ': was claude started with --settings "$STREAM_HOOK_SETTINGS"?'
            self._warn(f"--sdk {asked}: nothing was told{hint if asked == 'hooks' else ''}")

    def _read_policy(self) -> None:
        log = self._decisions
        if log is None:
            return
        for block in log.read():
            self._testimony.decide(block)
        log.close()
        for unused in log.unused:
            self._testimony.miss(unused)
        for sentence in log.warnings:
            self._warn(sentence)

    def _miss(self, channel: str, sentence: str) -> None:
        self._testimony.miss(DroppedInput(channel, "unread", 1, sentence))

    def _capture_of_all(self, ending: CommandEnding) -> RawCapture:
        """The feed's books; where it never got to them, or they were not kept, that is a loss."""
        if self._feed is None:
            return self._capture
        capture = self._normalize.capture or RawCapture(
            feed=self._feed.name, cgroup_reasons=["the feed's books were never closed"]
        )
        if ending.not_started and capture.unknown_loss == SILENT:
            capture.unknown_loss, capture.uring = "", "unused"  # strace had nothing to follow
        lost = sum(self._files.lost.values())
        reasons = [capture.unknown_loss] if capture.unknown_loss else []
        if self._normalize.capture is None:
            reasons.append(UNFINISHED)
        if lost:
            reasons.append(f"{number(lost, 'line')} could not be written")
        if not (capture.scopes or capture.dropped or reasons or ending.not_started):
            reasons.append(NOTHING)
        capture.unknown_loss = "; ".join(reasons)
        taint(capture)
        return capture


def _reasons(group: BaseExceptionGroup[BaseException]) -> str:
    return "; ".join(sorted(map(_reason, group.exceptions)))


def _reason(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return _reasons(error)
    return os_reason(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"


class _LayerSink(Struct):
    """Write the records of the kernel layer, each batch with one write."""

    kinds = (KERNEL, DETAILS, GAPS, TIMES)

    files: LayerFiles
    times: EventTimeIndex

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Write]:
        async def write(batch: Batch[Any]) -> None:
            if batch.kind == TIMES:
                self.times.add(batch.items)
                return
            name = KERNEL_FILE if batch.kind == KERNEL else DETAIL_FILE
            self.files.append(name, _encode_lines(batch.items), len(batch.items))

        yield write
