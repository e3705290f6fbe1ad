"""SDK and policy events of a run: what the agent and its decision log say, as lines of two layers.

A line is kept with the time at which it came until the run is over; only then is it known between
which events of the kernel layer it stands.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from stream.errors import number
from stream.evidence.claude_formats import (
    CLAUDE,
    DECISION,
    UNKNOWN_PRODUCER,
    AgentRecord,
    AgentRecords,
    CloudEvent,
    LogExport,
    Producer,
    Sdk,
    StreamRecord,
    content_blocks_of,
    denials_in,
    is_usable_id,
    otlp_log_records,
    permissions_in,
    producer_in_record,
)
from stream.evidence.command_lines import command_digest_of
from stream.evidence.markers import CallBoundary
from stream.pipeline import Batch, Counts
from stream.records.artifacts import PolicyEvent, SdkEvent
from stream.records.channels import HOOKS, OTEL, POLICY, STDOUT, ChannelBlock, DroppedInput
from stream.records.control import CHANNELS, TITLE, has_text
from stream.redaction.policy import CapturePolicy
from stream.transformers.sdk_events import SdkLayer, SdkObservation, log_environment

DENIAL = "claude.permission_denial"
PERMISSION = "claude.permission_decision"  #: reported with the result of a call
EXPORTED = "claude_code.tool_decision"  #: by OpenTelemetry
_EXPORTED_KIND = EXPORTED.partition(".")[2]
BYPASS = "bypassPermissions"  #: the mode in which nobody is asked
_DECISIONS = {"accept": "allow", "reject": "deny"}
_MOST_CALLS = 15_000  #: calls that are told apart

Problem = Literal["no_decision", "unnamed_tool", "left_out"]


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


class PolicyLayer:
    """Turns the records of each channel into the policy events that they tell of."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._seq = 0
        self._exported: list[_ExportedDecision] = []
        self._producer, self._mode = UNKNOWN_PRODUCER, ""  # of the session
        self._decided: dict[str, tuple[str, str]] = {}  # by call: its tool and the decision
        self._tools: dict[str, str] = {}  # by call: a permission does not name its tool
        self.problems: Counter[Problem] = Counter()

    def decisions_in_record(self, record: AgentRecord) -> Iterator[PolicyEvent]:
        """Yield the decisions that a record tells of; those of OpenTelemetry arrive at no certain
        time, so `finish` yields them: in the same place for every run."""
        if isinstance(record, CloudEvent):
            yield from self._read_cloud_event(record)
        elif isinstance(record, StreamRecord):
            yield from self._read_stream_record(record)
        elif isinstance(record, LogExport):
            for one in self._read_exported_decisions(record):
                if len(self._exported) < _MOST_CALLS:
                    self._exported.append(one)
                else:
                    self.problems["left_out"] += 1

    def finish(self) -> Iterator[PolicyEvent]:
        """Yield the decisions of OpenTelemetry."""
        for one in self._exported:
            if (one.reason, one.decision, self._mode) != ("config", "allow", BYPASS):
                yield from self._report_decision(
                    EXPORTED, one.producer, one.call, one.tool, one.decision
                )

    def _read_cloud_event(self, event: CloudEvent) -> Iterator[PolicyEvent]:
        """Yield the policy event of a line of the decision log, if it is about a decision."""
        if event.type != DECISION:
            return
        try:
            found = msgspec.convert(event.data, _Decision)
            source = msgspec.convert(event.source, str)
        except msgspec.ValidationError:
            self.problems["no_decision"] += 1
            return
        call = found.tool_call_id if has_text(found.tool_call_id or "") else None
        yield self._make_policy_event(DECISION, source, call, found.tool, found.decision)

    def _read_stream_record(self, record: StreamRecord) -> Iterator[PolicyEvent]:
        """Yield the permissions and denials of tool calls that a record of stream-json reports."""
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
        for block in content_blocks_of(message):
            call, tool = block.get("id"), block.get("name")
            is_call = block.get("type") == "tool_use" and len(self._tools) < _MOST_CALLS
            if is_call and isinstance(call, str) and isinstance(tool, str):
                self._tools[call] = tool

    def _read_exported_decisions(self, export: LogExport) -> Iterator[_ExportedDecision]:
        """Yield the decisions about tool calls in a body of OpenTelemetry logs."""
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
        call = call if is_usable_id(call) and has_text(call) else None
        if not is_usable_id(tool) or not has_text(tool):
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
    """Redact a command that a shell is asked to run: the same wherever the same is reported."""
    if capture_policy.mode == "hashed":
        return command_digest_of(command)
    seen: str = capture_policy.redact_value(command)
    return seen


class ToolCallCollector:
    """Make the SDK and policy events of a run of what its agent, and who decides for it, tell.

    It gives nothing on: only when the run is over can its events be placed among those of the
    kernel layer. Until then they wait in `sdk`, `boundaries` and `policy`.
    """

    name = "tool_events"
    kinds = (CHANNELS,)

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
        self._records = AgentRecords()
        self._layer = SdkLayer(run_id)
        self._policy = PolicyLayer(run_id)

    @property
    def received(self) -> Mapping[str, int]:
        """Return how many bytes came on each channel."""
        received = self._records.received.items()
        return {channel: n for channel, n in received if self._reads_stdout or channel != STDOUT}

    def event_log_environment(self, log: Path) -> dict[bytes, bytes]:
        """Return the variables that tell an agent where the event log is."""
        given = log_environment(self.run_id, str(log))
        return {name.encode(): os.fsencode(value) for name, value in given.items()}

    def feed(self, batch: Batch[ChannelBlock | DroppedInput], /) -> tuple[()]:
        """Take what came on the channels, and what of it is known to be lost."""
        self.counts.received += len(batch.items)
        self.counts.passed += len(batch.items)
        for item in batch.items:
            if isinstance(item, DroppedInput):
                self.dropped.append(item)
            else:
                self._read_block(item)
        return ()

    def _read_block(self, block: ChannelBlock) -> None:
        """Read what came on a channel into the SDK and the policy layer, without its secrets."""
        for received in self._records.read_block(block):
            if received.channel != STDOUT or self._reads_stdout:
                is_from_hooks = received.channel == STDOUT and self._sdk == HOOKS
                self._keep_sdk_observations(
                    self._layer.observe_record(received, only_refusals=is_from_hooks)
                )
            self.policy += map(
                self._redact_record, self._policy.decisions_in_record(received.record)
            )

    def finish(self) -> tuple[()]:
        """Count what of everything that came on the channels could not be used."""
        self._records.finish()
        self.repeats = self._layer.repeats
        self.unknown_form = self._redacted_types()
        self.policy += map(self._redact_record, self._policy.finish())
        if self._left_out:
            sentence = (
                f"{self._left_out} events of the SDK layer, which keeps {MOST_KEPT}"
                f" and {MOST_TEXT >> 20} MB of commands"
            )
            self.dropped.append(DroppedInput("sdk", "left_out", self._left_out, sentence))
        problems = self._records.problems + self._layer.problems
        problems.update({(POLICY, why): n for why, n in self._policy.problems.items()})
        for (channel, why), count in sorted(problems.items()):
            if channel != STDOUT or self._reads_stdout:
                self._drop_lines(channel, why, count)
        return ()

    @property
    def _reads_stdout(self) -> bool:
        """Tell whether stdout is a channel of tool calls; it is one of decisions anyway."""
        return self._sdk != OTEL

    def _redacted_types(self) -> dict[str, int]:
        """Return how many lines of stdout had no known form, by their type, without secrets."""
        found = Counter[str]()
        if self._reads_stdout:
            found += self._records.foreign_types
        if self._reads_stdout and not self._layer.has_producer:  # else they are its program's own
            found += self._records.session_types
        kept = Counter(
            {
                self._capture_policy.redact_value(kind): n
                for kind, n in found.most_common(_MOST_TYPES)
            }
        )
        if rest := found.total() - kept.total():
            kept["…"] += rest
        return dict(kept)

    def _drop_lines(self, channel: str, why: str, count: int) -> None:
        """Record lines of a channel as unusable."""
        where = "policy layer" if channel == POLICY else channel
        sentence = f"{number(count, 'line')} of the {where} could not be used: {_MEANING[why]}"
        self.dropped.append(DroppedInput(channel, why, count, f"{sentence} ({why})"))

    def _keep_sdk_observations(self, said: Iterable[SdkObservation]) -> None:
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
            self._capture_policy.redact_value(msgspec.to_builtins(record)), type(record)
        )
