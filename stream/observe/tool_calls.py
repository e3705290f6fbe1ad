"""What is told of tool calls during a run: its channels and its decision log, as parts of the
run's pipeline, and the events that are made of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from anyio import Event

from stream.evidence.claude_formats import Sdk as Sdk
from stream.observe.settings import RunSettings
from stream.pipeline import Deferred, LenientSource, LenientTransformer, Source, Transformer
from stream.process.guard import Guard
from stream.process.messages import Start
from stream.records.channels import COMMANDS, POLICY, STDOUT, DroppedInput
from stream.sources.tool_calls import DecisionLog, ToolCallChannels
from stream.sources.tool_calls import missing_hook_programs as missing_hook_programs
from stream.sources.wrappers import CommandLog, WrapperOutput
from stream.transformers.tool_events import ToolCallCollector


class ToolCallRecorder:
    """Records what the agent, and who decides for it, tell. Whatever fails of that is a loss of the
    record, and costs the run nothing else."""

    def __init__(
        self,
        settings: RunSettings,
        sdk: Sdk,
        policy_log: Path | None,
        warn: Callable[[str], None],
    ) -> None:
        self.collector = ToolCallCollector(settings.run_id, settings.capture_policy, sdk)
        self.policy_log = policy_log
        self.home = settings.wrappers_folder  #: which the guard removes
        self.env_names: list[bytes] = []  #: that were added to the command's environment
        self.wrapper_output = WrapperOutput()
        self.sdk = sdk
        self._warn = warn
        self._channels = ToolCallChannels(self.home, sdk)
        self._decisions = DecisionLog(policy_log) if policy_log else None
        self._is_prepared = Event()

    @property
    def helpers(self) -> tuple[str, ...]:
        """The programs that the recorder's own hooks run."""
        return self._channels.helpers

    def prepare(self, guard: Guard, order: Start, log: CommandLog | None) -> dict[str, int]:
        """Open the channels and name them in the order's environment. Return the descriptors of all
        that a kernel feed is to watch, by channel."""
        added = self._channels.open() | self.collector.event_log_environment(self._channels.log)
        self.env_names = list(added)
        order.env = {**order.env, **added}
        watched = {STDOUT: guard.stdout, **self._channels.files()}
        if log is not None:
            watched[COMMANDS] = log.fd
            self.wrapper_output = log.wrapper_output
        if self._decisions is not None:
            watched |= self._decisions.files()
        self._is_prepared.set()
        return watched

    def sources(self) -> list[Source]:
        """Return the channels and, where one was named, the decision log."""
        return [
            LenientSource(
                Deferred(self._is_prepared, lambda: self._channels), self._record_lost_channels
            ),
            LenientSource(
                Deferred(self._is_prepared, lambda: self._decisions), self._record_lost_decisions
            ),
        ]

    def transformers(self) -> list[Transformer]:
        """Return the transformer that makes events of what comes on the channels."""
        return [LenientTransformer(self.collector, self._record_lost_channels)]

    def end(self) -> None:
        """Tell the channels of tool calls that nobody of the agent's tree is left."""
        self._channels.end()
        if self._decisions is not None:
            self._decisions.end()

    def close(self) -> None:
        """Close the channels of tool calls, however the run ended."""
        self._channels.close()
        if self._decisions is not None:
            self._decisions.close()

    def warn_of_silence(self) -> None:
        """Warn where nothing was told on a channel that was asked for."""
        if self.sdk != "stream-json" and not self.collector.received.get(self.sdk):
            hint = ': was claude started with --settings "$STREAM_HOOK_SETTINGS"?'
            self._warn(f"--sdk {self.sdk}: nothing was told{hint if self.sdk == 'hooks' else ''}")
        for sentence in self._decisions.warnings if self._decisions is not None else ():
            self._warn(sentence)

    def _record_lost_channels(self, why: str) -> None:
        self.collector.dropped.append(DroppedInput("sdk", "unread", 1, f"the SDK layer: {why}"))

    def _record_lost_decisions(self, why: str) -> None:
        sentence = f"--policy {self.policy_log}: {why}"
        self.collector.dropped.append(DroppedInput(POLICY, "unread", 1, sentence))
