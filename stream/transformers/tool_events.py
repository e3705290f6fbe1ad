"""What is said during a run, and when each event of its kernel layer happened: until the run
is over, and all of it can be put together."""

from __future__ import annotations

import mmap
import os
import tempfile
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec

from stream.errors import number, os_reason
from stream.evidence.claude_formats import Sdk
from stream.evidence.markers import CallBoundary, DroppedInput
from stream.evidence.process_tree import digest_of
from stream.files.append import write_all
from stream.records.artifacts import PolicyEvent, SdkEvent
from stream.redaction.policy import CapturePolicy
from stream.transformers.policy_events import PolicyLayer
from stream.transformers.sdk_events import SdkLayer, log_environment

#: Why a line could not be used, for people.
_MEANING = {
    "not_a_record": "no JSON of the form that is expected there",
    "overlong": "too long to be read",
    "torn": "cut off before its end",
    "foreign_run": "of another run",
    "unusable_name": "a name of a call or tool that is no text, empty or too long",
    "no_decision": "it names no decision",
    "unnamed_tool": "it names no tool",
    "left_out": "more than can be told apart",
}
_PIECE = 250  #: times that are looked through one by one
_MOST_TYPES = 20  #: types of lines that are named
#: Events of the SDK layer, and characters of the commands in them: an agent may say what it wants,
#: and without end.
MOST_KEPT = 15_000
MOST_TEXT = 16 << 20


def command_seen(capture_policy: CapturePolicy, command: str) -> str:
    """What a shell is asked to run, wherever it is told: the same of the same."""
    if capture_policy.mode == "hashed":
        return digest_of(command)
    seen: str = capture_policy.value(command)
    return seen


class EventTimeIndex:
    """When each event of the kernel layer happened, in a file without a name: millions of them
    take no memory."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._count = 0
        self.trouble = ""

    def add(self, times: Sequence[int]) -> None:
        """Append the times of further events."""
        if times and not self.trouble:
            try:
                write_all(self._file.fileno(), array("Q", times).tobytes())
            except OSError as error:
                self.trouble = f"when events happened: {os_reason(error)}"
                return
            self._count += len(times)

    def until(self) -> Callable[[int], int]:
        """How many events had happened by then. Two processors disagree by a little: what stands
        later did not happen before."""
        if not self._count:
            return lambda ts: 0
        size = self._count * 8  # what follows belongs to a batch that was not written to its end
        words = memoryview(mmap.mmap(self._file.fileno(), size, prot=mmap.PROT_READ)).cast("Q")
        pieces = [words[start : start + _PIECE] for start in range(0, len(words), _PIECE)]
        latest = array("Q", accumulate(map(max, pieces), max))

        def count(ts: int) -> int:
            whole = bisect_right(latest, ts)
            later = (place for place, time in enumerate(pieces[whole]) if time > ts)
            return whole * _PIECE + next(later)

        return lambda ts: count(ts) if ts < latest[-1] else len(words)

    def close(self) -> None:
        """Remove the file."""
        self._file.close()


class ToolCallCollector:
    """What the agent, and who decides for it, say. Told from several threads."""

    def __init__(
        self, run_id: str, capture_policy: CapturePolicy, sdk: Sdk = "stream-json"
    ) -> None:
        self.run_id = run_id
        self.sdk: list[SdkEvent] = []
        self.moments: list[CallBoundary] = []
        self.policy: list[PolicyEvent] = []
        self.again: list[CallBoundary] = []  #: of what another channel had told already
        self.unused: list[DroppedInput] = []
        self.unknown_form: dict[str, int] = {}  #: lines of stdout, by the type that they say
        self._capture_policy = capture_policy
        self._sdk = sdk
        self._left_out = 0
        self._room = MOST_TEXT
        self._layer = SdkLayer(run_id)
        self._policy = PolicyLayer(run_id)
        self._lock = Lock()

    @property
    def received(self) -> Mapping[str, int]:
        """How many bytes came on each channel."""
        return {str(channel): size for channel, size in self._layer.received.items()}

    def environment(self, log: Path) -> dict[bytes, bytes]:
        """The variables that tell an agent where the event log is."""
        given = log_environment(self.run_id, str(log))
        return {name.encode(): os.fsencode(value) for name, value in given.items()}

    def feed_stdout(self, block: bytes, arrived: int) -> None:
        """Its stdout, of whose calls another channel may be asked to tell."""
        with self._lock:
            if self._sdk == "stream-json":
                self._take(self._layer.feed(block, arrived))
            elif self._sdk == "hooks":
                self._take(self._layer.feed_refusals(block, arrived))
            self.policy += map(self._seen, self._policy.feed_stdout(block))

    def feed_log(self, block: bytes, arrived: int) -> None:
        """Take a piece of the event log."""
        with self._lock:
            self._take(self._layer.feed_log(block, arrived))

    def feed_hooks(self, block: bytes, arrived: int) -> None:
        """Take a piece of what hooks wrote."""
        with self._lock:
            self._take(self._layer.feed_hooks(block, arrived))

    def feed_otel(self, block: bytes, arrived: int) -> None:
        """Take a body that an OpenTelemetry exporter sent."""
        with self._lock:
            self._take(self._layer.feed_otel(block, arrived))
            self._policy.feed_otel(block)

    def feed_policy(self, block: bytes) -> None:
        """Take a piece of the log of decisions."""
        with self._lock:
            self.policy += map(self._seen, self._policy.feed(block))

    def record_drop(self, unused: DroppedInput) -> None:
        """Note input that could not be used."""
        self.unused.append(unused)

    def finish(self) -> None:
        """Nothing more will be said; what of it could not be used is counted."""
        self._layer.finish()
        self.again = self._layer.repeats
        self.unknown_form = self._seen_types()
        self.policy += map(self._seen, self._policy.finish())
        for (channel, problem), count in sorted(self._layer.problems.items()):
            self._not_used(channel, problem, count)
        if self._left_out:
            sentence = (
                f"{self._left_out} events of the SDK layer, which keeps {MOST_KEPT}"
                f" and {MOST_TEXT >> 20} MB of commands"
            )
            self.record_drop(DroppedInput("sdk", "left_out", self._left_out, sentence))
        for reason, count in sorted(self._policy.problems.items()):
            self._not_used("policy layer", reason, count)

    def _seen_types(self) -> dict[str, int]:
        told = self._layer.unknown_form
        kept = Counter(
            {self._capture_policy.value(kind): n for kind, n in told.most_common(_MOST_TYPES)}
        )
        if rest := told.total() - kept.total():
            kept["…"] += rest
        return dict(kept)

    def _not_used(self, channel: str, why: str, count: int) -> None:
        lines = number(count, "line")
        sentence = f"{lines} of the {channel} could not be used: {_MEANING[why]} ({why})"
        self.record_drop(DroppedInput(channel.partition(" ")[0], why, count, sentence))

    def _take(self, said: Sequence[Any]) -> None:
        for one in said:
            size = len(one.boundary.command or "") if one.boundary is not None else 0
            if len(self.sdk) == MOST_KEPT or size > self._room:
                self._left_out += 1
                continue
            self._room -= size
            self.sdk.append(self._seen(one.event))
            if one.boundary is not None:
                self.moments.append(self._placed(one.boundary))

    def _placed(self, moment: CallBoundary) -> CallBoundary:
        seen: CallBoundary = self._seen(msgspec.structs.replace(moment, command=None))
        if moment.command is None:
            return seen
        return msgspec.structs.replace(
            seen, command=command_seen(self._capture_policy, moment.command)
        )

    def _seen(self, record: Any) -> Any:
        """Redact a record as the capture policy of the run says."""
        return msgspec.convert(
            self._capture_policy.value(msgspec.to_builtins(record)), type(record)
        )
