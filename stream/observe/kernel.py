"""The composition behind `--kernel`: a feed, its layers, and the artifacts that follow from them.

Its parts belong to the one pipeline of a run. Whatever happens to them, the run goes on; what the
feed could not see is said in observation-health.json, and nothing of it ever looks complete.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
from anyio import Event, to_thread
from msgspec import Struct

from stream.archive.chain import LayerFiles
from stream.errors import FeedError, RequiredError, number, os_reason
from stream.evidence.claude_formats import Sdk
from stream.evidence.markers import COMMANDS, POLICY, DroppedInput
from stream.files.append import RecordedFile, Reserve
from stream.observe.artifacts import record_artifacts
from stream.observe.layers import CaptureResult, CommandResult
from stream.observe.settings import RunSettings
from stream.pipeline import Batch, Counts, Deferred, Out, Sink, Source, Transformer
from stream.process.cgroup import Cgroup
from stream.process.guard import Guard
from stream.process.messages import Start
from stream.records.artifacts import DETAIL_FILE, KERNEL_FILE
from stream.records.control import Gap
from stream.records.kernel import RawCapture, path_text, taint
from stream.records.run import RunSummary
from stream.sinks.run_folder import EventTimeIndex, LayerSink, RawCopy
from stream.sources.agent import CommandEnding
from stream.sources.kernel import Choice, Feed, open_feed
from stream.sources.kernel.decode import WatchedFile
from stream.sources.kernel.ebpf import RING
from stream.sources.kernel.strace import SILENT
from stream.sources.tool_calls import Channels, DecisionLog
from stream.sources.wrappers import CommandLog, ObservedCommands, WrapperOutput
from stream.transformers.normalize import NO_EVENTS, Normalize
from stream.transformers.redact import CopyRaw, Redact
from stream.transformers.tool_events import ToolCallCollector

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
    """Records the kernel evidence of one run: its feed, its layers, its artifacts."""

    def __init__(
        self,
        settings: RunSettings,
        options: KernelOptions,
        warn: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._settings = settings
        self._options = options
        self._warn = warn
        self._files = LayerFiles(settings.folder)
        self._collector = ToolCallCollector(settings.run_id, settings.capture_policy, options.sdk)
        self._home = settings.wrappers_folder  # which the guard removes
        self._channels = Channels(self._home, options.sdk)
        self._decisions = DecisionLog(options.policy_log) if options.policy_log else None
        self._normalize = Normalize(settings.run_id, keeps_writes=True)
        self._times = EventTimeIndex(settings.folder)
        self._reserve = Reserve(settings.folder)
        self._feed: Feed | None = None
        self._is_prepared, self._is_closed = Event(), False
        self._capture = RawCapture(feed="absent", reason="it was never begun")
        self._given: list[bytes] = []  # names in the environment
        self._troubles: list[str] = []
        self._log: CommandLog | None = None
        self.kept: Mapping[str, RecordedFile] = {}
        self.commands: ObservedCommands | None = None

    async def prepare(
        self, guard: Guard, cgroup: Cgroup | None, order: Start, log: CommandLog | None
    ) -> Start:
        """Open the channels and the feed; return the order with what they need of it."""
        self._log = log
        given = self._channels.open() | self._collector.environment(self._channels.log)
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
            if self._options.is_required:
                raise RequiredError(f"--require kernel: {error}") from None
            self._capture.reason = str(error)
            reason = str(error).removeprefix("the kernel feed: ")
            self._warn(f"the kernel is not watched: {reason}")
        else:
            self._feed = feed
            order = feed.wrap(order)
            if feed.burden and self._options.kernel == "auto":
                self._warn(feed.burden)
        self._is_prepared.set()
        return order

    def sources(self) -> list[Source]:
        """The feed, where there is one, and the channels that tell of tool calls."""
        return [
            _Contained(Deferred(self._is_prepared, lambda: self._channels), self._lose_channels),
            _Contained(Deferred(self._is_prepared, lambda: self._decisions), self._lose_decisions),
            _Contained(
                Deferred(self._is_prepared, lambda: self._feed), self._lose_feed, self._close_feed
            ),
        ]

    def transformers(self) -> list[Transformer]:
        """What is made of what is told; and of raw telemetry: redacted, copied where that was asked
        for, normalized."""
        made: list[Transformer] = []
        if self._settings.capture_policy.redactor is not None:
            made.append(Redact(self._settings.capture_policy))
        if self._options.raw is not None:
            made.append(CopyRaw())
        return [
            _Guarded(self._collector, self._lose_channels),
            *(_Guarded(one, self._lose_feed) for one in (*made, self._normalize)),
        ]

    def sinks(self) -> list[Sink]:
        """The sink of the layers, and that of the raw copy where one was asked for."""
        sinks: list[Sink] = [LayerSink(self._files, self._times)]
        if self._options.raw is not None:
            sinks.append(RawCopy(self._options.raw, self._troubles))
        return sinks

    def end(self) -> None:
        """Nobody of the agent's tree is left: what the sources have is all that there will be."""
        if self._feed is not None:
            self._feed.end()
        self._channels.end()
        if self._decisions is not None:
            self._decisions.end()

    def close(self) -> None:
        """Let go of the feed and the channels, however the run ended."""
        self._close_feed()
        self._channels.close()
        if self._decisions is not None:
            self._decisions.close()

    def _close_feed(self) -> None:
        if self._feed is not None and not self._is_closed:
            self._is_closed = True
            self._feed.close()

    async def conclude(self, ending: CommandEnding, summary: RunSummary) -> list[str]:
        """Write what follows from the layers, and say what is missing. The pipeline has ended."""
        try:
            await to_thread.run_sync(self._write_evidence, ending, summary)
        except Exception as error:  # nothing of this may cost the record of the run
            self._troubles.append(f"the evidence: {_reason(error)}")
            self.kept = self._files.kept()
        return self._troubles

    def _open_feed(self, guard: int, cgroup: Cgroup | None, watch: list[WatchedFile]) -> Feed:
        return open_feed(
            self._options.kernel,
            guard=guard,
            cgroup=None if cgroup is None else cgroup.path,
            watch=watch,
            ring_bytes=self._options.ring_bytes,
            folder=self._settings.folder,
        )

    def _lose_feed(self, why: str) -> None:
        """Whatever it was, the agent's run goes on, and this is said."""
        self._troubles.append(f"the kernel layer: {why}")

    def _lose_channels(self, why: str) -> None:
        self._record_drop("sdk", f"the SDK layer: {why}")

    def _lose_decisions(self, why: str) -> None:
        self._record_drop(POLICY, f"--policy {self._options.policy_log}: {why}")

    def _write_evidence(self, ending: CommandEnding, summary: RunSummary) -> None:
        self._reserve.release()
        if self._feed is not None and self._normalize.capture is None:
            gap = Gap(source=self._feed.name, lost=0, reason=UNFINISHED)
            self._files.append(DETAIL_FILE, _encode(gap) + b"\n", 1)
        self._warn_of_silence()
        left_out = self._normalize.dropped
        policy_log = self._options.policy_log
        result = CaptureResult(
            capture=self._whole_capture(ending),
            filtered={r: n for r, n in left_out.items() if r not in NO_EVENTS},
            aside={r: n for r, n in left_out.items() if r in NO_EVENTS},
            written=self._normalize.written,
            times=self._times,
            home=self._path_in_layers(self._home),
            helpers=[path_text(os.fsencode(path)) for path in self._channels.helpers],
            wrapper_output=WrapperOutput() if self._log is None else self._log.heard,
            policy_log=None if policy_log is None else self._path_in_layers(policy_log),
        )
        command = CommandResult.of(self._settings, ending, self._given)
        folder = self._settings.folder
        evidence = record_artifacts(folder, self._files, self._collector, result, command)
        self._troubles += evidence.troubles
        self.kept, self.commands = evidence.kept, evidence.commands
        summary.kernel_layer = evidence.health.kernel_layer
        summary.kernel_events = self._files.lines(KERNEL_FILE)
        summary.kernel_lost = evidence.health.ringbuf_drops
        summary.cgroup_correlation = evidence.health.cgroup_correlation
        summary.tool_calls = len(evidence.correlation.bindings)
        summary.correlation = evidence.correlation.status
        if self._options.sdk != "otel":
            summary.unknown_form = self._collector.unknown_form

    def _path_in_layers(self, path: Path) -> str:
        """Return a path as the kernel layer has it."""
        real = os.fsencode(os.path.realpath(path))
        return str(self._settings.capture_policy.value(path_text(real)))

    def _warn_of_silence(self) -> None:
        asked = self._options.sdk
        if asked != "stream-json" and not self._collector.received.get(asked):
            hint = ': was claude started with --settings "$STREAM_HOOK_SETTINGS"?'
            self._warn(f"--sdk {asked}: nothing was told{hint if asked == 'hooks' else ''}")
        for sentence in self._decisions.warnings if self._decisions is not None else ():
            self._warn(sentence)

    def _record_drop(self, channel: str, sentence: str) -> None:
        self._collector.record_drop(DroppedInput(channel, "unread", 1, sentence))

    def _whole_capture(self, ending: CommandEnding) -> RawCapture:
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


class _Contained(Struct):
    """A source whose failure is noted, and costs no other part of the run."""

    source: Source
    on_failure: Callable[[str], None]
    on_end: Callable[[], None] = lambda: None

    async def run(self, out: Out, /) -> None:
        """Run the feed, and keep a failure of it from the rest of the run."""
        try:
            await self.source.run(out)
        except* Exception as group:
            self.on_failure(_reasons(group))
        finally:
            self.on_end()


class _Guarded:
    """A transformer whose failure is noted: from then on it rejects what comes."""

    def __init__(self, inner: Transformer, on_failure: Callable[[str], None]) -> None:
        self.name = inner.name
        self.counts = Counts()
        self._inner = inner
        self._on_failure = on_failure
        self._has_failed = False

    @property
    def kinds(self) -> Collection[str]:
        """The kinds of the transformer that is guarded."""
        return self._inner.kinds

    def feed(self, batch: Batch[Any], /) -> list[Batch[Any]]:
        """Feed the transformer, until it fails for the first time."""
        self.counts.received += len(batch.items)
        if not self._has_failed:
            try:
                made = [*self._inner.feed(batch)]
            except Exception as error:
                self._has_failed = True
                self._on_failure(_reason(error))
            else:
                self.counts.passed += len(batch.items)
                return made
        self.counts.rejected += len(batch.items)
        return []

    def finish(self) -> list[Batch[Any]]:
        """Finish the transformer, unless it has failed."""
        if self._has_failed:
            return []
        rest, counts = [*self._inner.finish()], self._inner.counts
        if counts.received != self.counts.received or not counts.balanced:
            self._on_failure(f"{self.name}: given {self.counts.received}, accounts for {counts}")
        return rest
