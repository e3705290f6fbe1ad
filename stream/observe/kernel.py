"""The composition behind `--kernel`: a feed, its layers, and the artifacts that follow from them.

Its parts belong to the one pipeline of a run. Whatever happens to them, the run goes on; what the
feed could not see is said in observation-health.json, and nothing of it ever looks complete.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from anyio import Event, to_thread
from msgspec import Struct

from stream.archive.chain import LayerFiles
from stream.errors import FeedError, RequiredError, UsageError, number
from stream.files.append import DiskReserve, RecordedFile
from stream.observe.artifacts import RecordedArtifacts, record_artifacts
from stream.observe.layers import CaptureResult, runner_events
from stream.observe.settings import RunSettings
from stream.observe.tool_calls import Sdk, ToolCallRecorder, missing_hook_programs
from stream.pipeline import (
    Deferred,
    LenientSource,
    LenientTransformer,
    Sink,
    Source,
    Transformer,
    describe_failure,
)
from stream.process.messages import Start
from stream.records.kernel import RawCapture, mark_cgroup_partial, path_text
from stream.records.run import RunSummary
from stream.sinks.run_folder import EventTimeIndex, LayerSink, RawCopy
from stream.sources.agent import CommandResult
from stream.sources.kernel import SILENT, Choice, Feed, open_feed, probe_feeds
from stream.transformers.normalize import NO_EVENTS, Normalize
from stream.transformers.redact import CopyRaw, Redact

NOTHING = "the command ran, and the feed saw nothing of it"
UNFINISHED = "the feed ended before its counters were read"


class KernelOptions(Struct, frozen=True, kw_only=True):
    """How a kernel feed was asked for."""

    kernel: Choice
    is_required: bool
    ring_bytes: int
    raw: Path | None  #: where the raw telemetry goes, as well
    policy_log: Path | None
    sdk: Sdk


def check_hooks() -> None:
    """Raise UsageError where a program that hooks need is not installed."""
    if lacking := missing_hook_programs():
        raise UsageError(f"--sdk hooks: there is no {' and no '.join(lacking)} on PATH")


def require_feed(options: KernelOptions, folder: Path) -> None:
    """Raise RequiredError where no kernel feed can record a run into this folder."""
    if reason := probe_feeds(options.kernel, ring_bytes=options.ring_bytes, folder=folder):
        raise RequiredError(f"--require kernel: {reason}")


class KernelRecorder:
    """Records the kernel evidence of one run: its feed, its layers, its artifacts."""

    def __init__(
        self,
        settings: RunSettings,
        options: KernelOptions,
        warn: Callable[[str], None],
    ) -> None:
        self.calls = ToolCallRecorder(settings, options.sdk, options.policy_log, warn)
        self.artifacts: RecordedArtifacts | None = None
        self.kept: Mapping[str, RecordedFile] = {}
        self._settings = settings
        self._options = options
        self._warn = warn
        self._files = LayerFiles(settings.folder)
        self._normalize = Normalize(settings.run_id, keeps_writes=True)
        self._times = EventTimeIndex(settings.folder)
        self._reserve = DiskReserve(settings.folder)
        self._feed: Feed | None = None
        self._is_prepared, self._is_closed = Event(), False
        self._capture = RawCapture(feed="absent", reason="it was never begun")
        self._troubles: list[str] = []

    async def prepare(
        self, order: Start, guard: int, cgroup: Path | None, watched: Mapping[str, int]
    ) -> Start:
        """Open the feed for the tree of the guard, and return the order with what it needs."""
        try:
            # In a thread: the kernel checks programs for a while, and probes run meanwhile.
            feed = await to_thread.run_sync(self._open_feed, guard, cgroup, watched)
        except FeedError as error:
            if self._options.is_required:
                raise RequiredError(f"--require kernel: {error}") from None
            self._capture.reason = str(error)
            self._warn(f"the kernel is not watched: {str(error).removeprefix('the kernel feed: ')}")
        else:
            self._feed = feed
            order = feed.wrap(order)
            if feed.burden and self._options.kernel == "auto":
                self._warn(feed.burden)
        self._is_prepared.set()
        return order

    def sources(self) -> list[Source]:
        """Return the feed, where there is one, and the channels that tell of tool calls."""
        feed = Deferred(self._is_prepared, lambda: self._feed)
        return [
            *self.calls.sources(),
            LenientSource(feed, self._record_lost_feed, self._close_feed),
        ]

    def transformers(self) -> list[Transformer]:
        """Return what makes events of what is told; and what redacts raw telemetry, copies it where
        that was asked for, and normalizes it."""
        made: list[Transformer] = []
        if self._settings.capture_policy.redactor is not None:
            made.append(Redact(self._settings.capture_policy))
        if self._options.raw is not None:
            made.append(CopyRaw())
        made.append(self._normalize)
        of_feed = (LenientTransformer(one, self._record_lost_feed) for one in made)
        return [*self.calls.transformers(), *of_feed]

    def sinks(self) -> list[Sink]:
        """Return the sink of the layers, and that of the raw copy where one was asked for."""
        sinks: list[Sink] = [LayerSink(self._files, self._times)]
        if self._options.raw is not None:
            sinks.append(RawCopy(self._options.raw, self._troubles))
        return sinks

    def end(self) -> None:
        """Say that nobody of the agent's tree is left: what the kernel feed and the channels have
        is all."""
        if self._feed is not None:
            self._feed.end()
        self.calls.end()

    def close(self) -> None:
        """Close the kernel feed and the channels, however the run ended."""
        self._close_feed()
        self.calls.close()

    def _close_feed(self) -> None:
        if self._feed is not None and not self._is_closed:
            self._is_closed = True
            self._feed.close()

    async def conclude(self, ending: CommandResult, summary: RunSummary) -> list[str]:
        """Write what follows from the layers, and say what is missing. The pipeline has ended."""
        try:
            await to_thread.run_sync(self._write_artifacts, ending, summary)
        except Exception as error:  # nothing of this may cost the record of the run
            self._troubles.append(f"the evidence: {describe_failure(error)}")
            self.kept = self._files.kept()
        return self._troubles

    def _open_feed(self, guard: int, cgroup: Path | None, watched: Mapping[str, int]) -> Feed:
        """Open the kernel feed that was asked for, for the process tree of the guard."""
        return open_feed(
            self._options.kernel,
            guard=guard,
            cgroup=cgroup,
            watched=watched,
            ring_bytes=self._options.ring_bytes,
            folder=self._settings.folder,
        )

    def _record_lost_feed(self, why: str) -> None:
        self._troubles.append(f"the kernel layer: {why}")

    def _write_artifacts(self, ending: CommandResult, summary: RunSummary) -> None:
        """Write the last layers and the artifacts of the run, and state them in its summary."""
        self._reserve.release()
        if self._feed is not None and self._normalize.capture is None:
            self._files.append_gap(self._feed.name, UNFINISHED)
        self.calls.warn_of_silence()
        left_out, calls = self._normalize.dropped, self.calls
        result = CaptureResult(
            capture=self._whole_capture(ending),
            filtered={r: n for r, n in left_out.items() if r not in NO_EVENTS},
            aside={r: n for r, n in left_out.items() if r in NO_EVENTS},
            written=self._normalize.written,
            times=self._times,
            home=self._path_in_layers(calls.home),
            helpers=[path_text(os.fsencode(path)) for path in calls.helpers],
            wrapper_output=calls.wrapper_output,
            policy_log=None if calls.policy_log is None else self._path_in_layers(calls.policy_log),
        )
        folder, policy = self._settings.folder, self._settings.capture_policy
        agent = policy.redact_value(self._settings.agent.id)
        command = policy.redact_words(self._settings.argv)
        runner = runner_events(summary, agent, command, calls.env_names)
        self.artifacts = record_artifacts(folder, self._files, calls.collector, result, runner)
        self._troubles += self.artifacts.troubles
        self.kept = self.artifacts.kept
        self.artifacts.state_in_summary(summary)
        if calls.sdk != "otel":
            summary.unknown_form = calls.collector.unknown_form

    def _path_in_layers(self, path: Path) -> str:
        """Return a path as the kernel layer has it."""
        real = os.fsencode(os.path.realpath(path))
        return str(self._settings.capture_policy.redact_value(path_text(real)))

    def _whole_capture(self, ending: CommandResult) -> RawCapture:
        """Return the counters of the feed. Where it never read them, or what it saw could not be
        written, that is a loss."""
        if self._feed is None:
            return self._capture
        capture = self._normalize.capture or RawCapture(
            feed=self._feed.name, cgroup_reasons=["the feed's counters were never read"]
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
        mark_cgroup_partial(capture)
        return capture
