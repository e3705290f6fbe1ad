"""SDK and policy events of a run: what the agent and its decision log say, as lines of two layers.

A line is kept with the time at which it came until the run is over; only then is it known between
which events of the kernel layer it stands.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from stream.codec import DECODE_ERRORS, LineSplitter, OverlongLine
from stream.errors import number
from stream.evidence.claude_formats import (
    CLAUDE,
    DECISION,
    KINDS,
    UNKNOWN_PRODUCER,
    LogExport,
    Producer,
    Sdk,
    blocks_of,
    decode_agent_line,
    denials_in,
    otlp_log_records,
    permissions_in,
    producer_in_record,
    read_stream_record,
)
from stream.evidence.command_lines import command_digest_of
from stream.evidence.markers import (
    HOOKS,
    OTEL,
    POLICY,
    STDOUT,
    CallBoundary,
    DroppedInput,
    ToldBlock,
)
from stream.pipeline import Batch, Counts
from stream.records.artifacts import PolicyEvent, SdkEvent
from stream.records.control import TITLE, TOLD, is_told
from stream.redaction.policy import CapturePolicy
from stream.transformers.sdk_events import SdkLayer, log_environment

DENIAL = "claude.permission_denial"
PERMISSION = "claude.permission_decision"  #: reported with the result of a call
EXPORTED = "claude_code.tool_decision"  #: by OpenTelemetry
_EXPORTED_KIND = EXPORTED.partition(".")[2]
BYPASS = "bypassPermissions"  #: the mode in which nobody is asked
_NEEDLES = (b'"permission', b'"tool_use"', b'"init"')  #: a line without one of these is skipped
_DECISIONS = {"accept": "allow", "reject": "deny"}
_MOST_CALLS = 15_000  #: calls that are told apart

Problem = Literal["not_a_record", "overlong", "torn", "no_decision", "unnamed_tool", "left_out"]


class _CloudEvent(Struct):
    type: str
    source: Any = None
    data: Any = None


_Text = Annotated[str, Meta(pattern=TITLE)]


class _Decision(Struct):
    tool: _Text
    decision: _Text
    tool_call_id: str | None = None


class _ExportedDecision(Struct, frozen=True):
    producer: Producer
    call: Any
    tool: Any
    decision: str
    reason: Any


_decode_event = msgspec.json.Decoder(_CloudEvent).decode


class PolicyLayer:
    """Turns the bytes of each channel, cut anywhere, into the policy events that they complete."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._seq = 0
        self._log, self._stdout = LineSplitter("policy log"), LineSplitter("stdout")
        self._otel = LineSplitter("otel")
        self._exported: list[_ExportedDecision] = []
        self._producer, self._mode = UNKNOWN_PRODUCER, ""  # of the session
        self._decided: dict[str, tuple[str, str]] = {}  # by call: its tool and the decision
        self._tools: dict[str, str] = {}  # by call: a permission does not name its tool
        self.problems: Counter[Problem] = Counter()
        self.ignored = 0  #: events of other types

    def feed(self, chunk: bytes) -> list[PolicyEvent]:
        """Read bytes of a log of CloudEvents."""
        found: list[PolicyEvent] = []
        for line in self._log.feed(chunk) or ():
            if isinstance(line, OverlongLine):
                self.problems["overlong"] += 1
            elif line.strip():
                found += self._read_cloud_event(line)
        return found

    def feed_stdout(self, chunk: bytes) -> list[PolicyEvent]:
        """Read bytes of an agent's stdout, which may be stream-json."""
        found: list[PolicyEvent] = []
        for line in self._stdout.feed(chunk) or ():
            if any(needle in line for needle in _NEEDLES):
                found += self._read_stream_record(line)
        return found

    def feed_otel(self, chunk: bytes) -> None:
        """Read OTLP/HTTP bodies in JSON, one a line.

        They arrive at no certain time, so `finish` yields their decisions: in the same place for
        every run.
        """
        for line in self._otel.feed(chunk) or ():
            if b"tool_decision" not in line:
                continue
            for one in self._read_exported_decisions(line):
                if len(self._exported) < _MOST_CALLS:
                    self._exported.append(one)
                else:
                    self.problems["left_out"] += 1

    def finish(self) -> list[PolicyEvent]:
        """Count an unfinished last line of the log, and return the decisions of OpenTelemetry."""
        for line in self._log.finish() or ():
            if isinstance(line, OverlongLine) or line.strip():
                self.problems["torn"] += 1
        exported, self._exported = self._exported, []
        return [
            event
            for one in exported
            if (one.reason, one.decision, self._mode) != ("config", "allow", BYPASS)
            for event in self._report_decision(
                EXPORTED, one.producer, one.call, one.tool, one.decision
            )
        ]

    def _read_cloud_event(self, line: bytes) -> Iterator[PolicyEvent]:
        """Yield the policy event of a line of the decision log, if it holds a decision."""
        try:
            event = _decode_event(line)
        except DECODE_ERRORS:
            self.problems["not_a_record"] += 1
            return
        if event.type != DECISION:
            self.ignored += 1
            return
        try:
            found = msgspec.convert(event.data, _Decision)
            source = msgspec.convert(event.source, str)
        except msgspec.ValidationError:
            self.problems["no_decision"] += 1
            return
        call = found.tool_call_id if is_told(found.tool_call_id or "") else None
        yield self._make_policy_event(DECISION, source, call, found.tool, found.decision)

    def _read_stream_record(self, line: bytes) -> Iterator[PolicyEvent]:
        """Yield the permissions and denials of tool calls that a record of stream-json reports."""
        record = read_stream_record(line)
        if record is None or record.type not in KINDS:
            return  # the SDK layer counts it
        self._producer = producer_in_record(record) or self._producer
        if record.type == "system" and isinstance(record.permission_mode, str):
            self._mode = record.permission_mode
        if record.type == "assistant":
            self._remember_tools(record.message)
        for call, found, reason in permissions_in(
            record.tool_result_meta if record.type == "user" else ()
        ):
            if (found, reason, self._mode) != ("accept", "mode", BYPASS) and (
                decision := self._known_decision(found)
            ):
                tool = None if call is None else self._tools.get(call)
                yield from self._report_decision(PERMISSION, self._producer, call, tool, decision)
        for call, tool in denials_in(record):
            if call or record.type == "result":  # without an id, the result's list has to do
                yield from self._report_decision(DENIAL, self._producer, call, tool, "deny")

    def _remember_tools(self, message: Any) -> None:
        """Remember which tool each call of a message asks for."""
        for block in blocks_of(message):
            call, tool = block.get("id"), block.get("name")
            is_call = block.get("type") == "tool_use" and len(self._tools) < _MOST_CALLS
            if is_call and isinstance(call, str) and isinstance(tool, str):
                self._tools[call] = tool

    def _read_exported_decisions(self, line: bytes) -> Iterator[_ExportedDecision]:
        """Yield the decisions about tool calls in a body of OpenTelemetry logs."""
        try:
            export = decode_agent_line(line, LogExport)
        except DECODE_ERRORS:
            return  # the SDK layer counts it
        for producer, fields in otlp_log_records(export.resource_logs):
            if fields.get("event.name") == "tool_decision" and (
                decision := self._known_decision(str(fields.get("decision")))
            ):
                call, tool = fields.get("tool_use_id"), fields.get("tool_name")
                yield _ExportedDecision(producer, call, tool, decision, fields.get("source"))

    def _known_decision(self, text: str) -> str | None:
        """Return the policy layer's word for a decision; count one that it has no word for."""
        decision = _DECISIONS.get(text)
        if decision is None:
            self.problems["no_decision"] += 1
        return decision

    def _report_decision(
        self, kind: str, producer: Producer, call: Any, tool: Any, decision: str
    ) -> Iterator[PolicyEvent]:
        """Yield an event, unless the same was reported of this call already."""
        call = call if isinstance(call, str) and is_told(call) else None
        if not isinstance(tool, str) or not is_told(tool):
            self.problems["unnamed_tool"] += 1
        elif call is None or self._decided.get(call) != (tool, decision):
            if call is not None and len(self._decided) < _MOST_CALLS:
                self._decided[call] = tool, decision
            if producer.name != CLAUDE:
                kind = f"{producer.name}.{kind.partition('.')[2]}"
            source = producer.name + ("-otel" if kind.endswith(_EXPORTED_KIND) else "")
            yield self._make_policy_event(kind, source, call, tool, decision)

    def _make_policy_event(
        self, kind: str, source: str, call: str | None, tool: str, decision: str
    ) -> PolicyEvent:
        """Make the next record of the policy layer."""
        seq, self._seq = self._seq, self._seq + 1
        return PolicyEvent(
            run_id=self._run_id,
            seq=seq,
            source_event_type=kind,
            source=source,
            tool_call_id=call,
            tool=tool,
            decision=decision,
        )


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
_MOST_TYPES = 20  #: types of lines that are named
#: Events of the SDK layer, and characters of the commands in them: an agent may say what it wants,
#: and without end.
MOST_KEPT = 15_000
MOST_TEXT = 16 << 20


def redact_shell_command(capture_policy: CapturePolicy, command: str) -> str:
    """What a shell is asked to run, wherever it is told: the same of the same."""
    if capture_policy.mode == "hashed":
        return command_digest_of(command)
    seen: str = capture_policy.value(command)
    return seen


class ToolCallCollector:
    """Make the SDK and policy events of a run of what its agent, and who decides for it, tell.

    It gives nothing on: only when the run is over can its events be placed among those of the
    kernel layer. Until then they wait in `sdk`, `boundaries` and `policy`.
    """

    name = "tool_events"
    kinds = (TOLD,)

    def __init__(
        self, run_id: str, capture_policy: CapturePolicy, sdk: Sdk = "stream-json"
    ) -> None:
        self.counts = Counts()
        self.run_id = run_id
        self.sdk: list[SdkEvent] = []
        self.boundaries: list[CallBoundary] = []
        self.policy: list[PolicyEvent] = []
        self.repeats: list[CallBoundary] = []  #: of what another channel had told already
        self.dropped: list[DroppedInput] = []
        self.unknown_form: dict[str, int] = {}  #: lines of stdout, by the type that they say
        self._capture_policy = capture_policy
        self._sdk = sdk
        self._left_out = 0
        self._room = MOST_TEXT
        self._layer = SdkLayer(run_id)
        self._policy = PolicyLayer(run_id)

    @property
    def received(self) -> Mapping[str, int]:
        """How many bytes came on each channel."""
        return {str(channel): size for channel, size in self._layer.received.items()}

    def environment(self, log: Path) -> dict[bytes, bytes]:
        """The variables that tell an agent where the event log is."""
        given = log_environment(self.run_id, str(log))
        return {name.encode(): os.fsencode(value) for name, value in given.items()}

    def feed(self, batch: Batch[ToldBlock | DroppedInput], /) -> tuple[()]:
        """Take what came on the channels, and what of it is known to be lost."""
        self.counts.received += len(batch.items)
        self.counts.passed += len(batch.items)
        for item in batch.items:
            if isinstance(item, DroppedInput):
                self.record_drop(item)
            else:
                self._read_channel(item.channel, item.data, item.arrived_ns)
        return ()

    def _read_channel(self, channel: str, data: bytes, arrived: int) -> None:
        """Read what came on a channel into the SDK and the policy layer, without its secrets."""
        if channel == POLICY:
            self.policy += map(self._redact_record, self._policy.feed(data))
        elif channel == STDOUT:  # of whose calls another channel may be asked to tell
            if self._sdk == "stream-json":
                self._keep_sdk_observations(self._layer.feed(data, arrived))
            elif self._sdk == "hooks":
                self._keep_sdk_observations(self._layer.feed_refusals(data, arrived))
            self.policy += map(self._redact_record, self._policy.feed_stdout(data))
        elif channel == HOOKS:
            self._keep_sdk_observations(self._layer.feed_hooks(data, arrived))
        elif channel == OTEL:
            self._keep_sdk_observations(self._layer.feed_otel(data, arrived))
            self._policy.feed_otel(data)
        else:
            self._keep_sdk_observations(self._layer.feed_log(data, arrived))

    def record_drop(self, dropped: DroppedInput) -> None:
        """Note input that could not be used."""
        self.dropped.append(dropped)

    def finish(self) -> tuple[()]:
        """Count what of everything that was told could not be used."""
        self._layer.finish()
        self.repeats = self._layer.repeats
        self.unknown_form = self._redacted_types()
        self.policy += map(self._redact_record, self._policy.finish())
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
        return ()

    def _redacted_types(self) -> dict[str, int]:
        """Return how many lines of stdout had no known form, by their type, without secrets."""
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

    def _keep_sdk_observations(self, said: Sequence[Any]) -> None:
        """Keep the SDK events and the boundaries of calls, redacted, while there is room."""
        for one in said:
            size = len(one.boundary.command or "") if one.boundary is not None else 0
            if len(self.sdk) == MOST_KEPT or size > self._room:
                self._left_out += 1
                continue
            self._room -= size
            self.sdk.append(self._redact_record(one.event))
            if one.boundary is not None:
                self.boundaries.append(self._redact_boundary(one.boundary))

    def _redact_boundary(self, boundary: CallBoundary) -> CallBoundary:
        """Return the boundary of a tool call without the secrets in it and in its command."""
        seen: CallBoundary = self._redact_record(msgspec.structs.replace(boundary, command=None))
        if boundary.command is None:
            return seen
        return msgspec.structs.replace(
            seen, command=redact_shell_command(self._capture_policy, boundary.command)
        )

    def _redact_record(self, record: Any) -> Any:
        """Redact a record as the capture policy of the run says."""
        return msgspec.convert(
            self._capture_policy.value(msgspec.to_builtins(record)), type(record)
        )
