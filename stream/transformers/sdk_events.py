"""The SDK layer: what an agent reports about its own tool calls. All of it is self-reported.

It comes from stream-json as Claude Code and its kin print it, from the event log that the
environment names, from hooks, or from OpenTelemetry. What two of them report about the same call
is recorded once; what one of them reports twice is recorded twice. A call without an id is never
given one, and a stream that does not name its program has no name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from stream.evidence.claude_formats import (
    CLAUDE,
    UNKNOWN_PRODUCER,
    HookInput,
    LogExport,
    LoggedLine,
    Producer,
    ReceivedRecord,
    StreamRecord,
    command_in_call,
    content_blocks_of,
    is_usable_id,
    otlp_log_records,
    producer_in_record,
    refused_calls_in,
)
from stream.evidence.markers import CallBoundary, MarkerName
from stream.records.artifacts import SDK_EVENT, SdkEvent, SdkEventType
from stream.records.channels import HOOKS, OTEL, STDOUT
from stream.records.control import has_text

#: What the child is given, by the reference's names.
LOG_VARIABLE = "ASSAY_RUNNER_SDK_EVENT_LOG"
RUN_VARIABLE = "ASSAY_RUNNER_RUN_ID"
SCHEMA_VARIABLE = "ASSAY_RUNNER_SDK_EVENT_SCHEMA"

_MOST_CALLS = 15_000  #: calls whose tools and reporting channels are remembered
_SOURCES = {STDOUT: "", HOOKS: "-hooks", OTEL: "-otel"}  #: appended to the producer's name

_HOOKS: dict[str, MarkerName] = {
    "PreToolUse": "tool_call_started",
    "PostToolUse": "tool_call_completed",
    "PostToolUseFailure": "tool_call_completed",
}
_OTEL: dict[str, MarkerName] = {
    "tool_decision": "tool_call_started",
    "tool_result": "tool_call_completed",
}


class SdkObservation(Struct, frozen=True):
    """An event of the SDK layer, and the boundary of a call that it marks."""

    event: SdkEvent
    boundary: CallBoundary | None  #: None: it marks none, or nobody knows when


def log_environment(run_id: str, path: str) -> dict[str, str]:
    """Return the variables that a child needs to append to the event log."""
    return {LOG_VARIABLE: path, RUN_VARIABLE: run_id, SCHEMA_VARIABLE: SDK_EVENT}


class SdkLayer:
    """Turns the records of each channel into the SDK events that they tell of."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._seq = 0
        self._producer = UNKNOWN_PRODUCER  # on stdout, or of the telemetry
        self._tools: dict[str, str | None] = {}  # by call
        self._reporters: dict[tuple[str, str], str] = {}  # by kind of event and call
        self.problems = Counter[tuple[str, str]]()  #: by channel and reason
        self.repeats: list[CallBoundary] = []  #: that another channel had reported already

    @property
    def has_producer(self) -> bool:
        """Tell whether the stream has named its program."""
        return self._producer != UNKNOWN_PRODUCER

    def observe_record(
        self, received: ReceivedRecord, *, only_refusals: bool = False
    ) -> Iterator[SdkObservation]:
        """Yield what a record tells of tool calls. `only_refusals`: of stdout no more than the
        ends of refused calls, because hooks report the others."""
        record = received.record
        if isinstance(record, StreamRecord):
            self._producer = producer_in_record(record) or self._producer
            if only_refusals:
                yield from self._read_refusals(record, received)
            else:
                yield from self._read_stream_record(record, received)
        elif isinstance(record, HookInput):
            yield from self._read_hook(record, received)
        elif isinstance(record, LogExport):
            yield from self._read_log_export(record, received)
        elif isinstance(record, LoggedLine):
            yield from self._read_logged_line(record, received)

    # --- the channels ---------------------------------------------------------------------------

    def _read_stream_record(
        self, record: StreamRecord, origin: ReceivedRecord
    ) -> Iterator[SdkObservation]:
        """Yield what a record of stream-json on the agent's stdout tells of tool calls."""
        if record.type == "result":
            name: SdkEventType = "run_failed" if record.is_error is True else "run_finished"
            yield self._other_event(origin, name)
        for block in content_blocks_of(record.message):
            yield from self._read_tool_block(record.type, block, origin)

    def _read_refusals(
        self, record: StreamRecord, origin: ReceivedRecord
    ) -> Iterator[SdkObservation]:
        """Yield the ends of the tool calls that were refused: no hook reports those."""
        if record.type == "user":
            refused = refused_calls_in(record.tool_result_meta)
            for block in content_blocks_of(record.message):
                if block.get("tool_use_id") in refused:
                    yield from self._read_tool_block(record.type, block, origin)

    def _read_tool_block(
        self, role: str, block: Mapping[str, Any], origin: ReceivedRecord
    ) -> Iterator[SdkObservation]:
        """The assistant asks for a call, and its result comes as if from the user."""
        if role == "assistant" and block.get("type") == "tool_use":
            call, tool = block.get("id"), block.get("name")
            command = command_in_call(tool, block.get("input"))
            yield from self._report_call_boundary(origin, "tool_call_started", call, tool, command)
        elif role == "user" and block.get("type") == "tool_result":
            yield from self._report_call_boundary(
                origin, "tool_call_completed", block.get("tool_use_id"), None
            )

    def _read_logged_line(
        self, line: LoggedLine, origin: ReceivedRecord
    ) -> Iterator[SdkObservation]:
        """Yield the SDK event of a line that an agent wrote to the SDK's event log."""
        if line.run_id != self._run_id:
            self.problems[origin.channel, "foreign_run"] += 1
        elif line.event_type in ("tool_call_started", "tool_call_completed"):
            yield from self._report_call_boundary(
                origin, line.event_type, line.tool_call_id, line.tool, None, line
            )
        else:
            yield self._other_event(origin, line.event_type, line)

    def _read_hook(self, hook: HookInput, origin: ReceivedRecord) -> Iterator[SdkObservation]:
        """Yield the start or the end of a tool call that one of the agent's hooks reports."""
        name = _HOOKS.get(hook.hook_event_name)
        if name is not None:
            command = command_in_call(hook.tool_name, hook.tool_input)
            if name == "tool_call_completed":
                command = None
            yield from self._report_call_boundary(
                origin, name, hook.tool_use_id, hook.tool_name, command
            )

    def _read_log_export(
        self, export: LogExport, origin: ReceivedRecord
    ) -> Iterator[SdkObservation]:
        """Yield the starts and ends of tool calls in a body of OpenTelemetry logs."""
        for producer, fields in otlp_log_records(export.resource_logs):
            name = _OTEL.get(str(fields.get("event.name")))
            if name is not None:
                if self._producer == UNKNOWN_PRODUCER:
                    self._producer = producer
                call, tool = fields.get("tool_use_id"), fields.get("tool_name")
                yield from self._report_call_boundary(origin, name, call, tool)

    # --- what they have in common ---------------------------------------------------------------

    def _report_call_boundary(
        self,
        origin: ReceivedRecord,
        name: MarkerName,
        call: Any,
        tool: Any,
        command: str | None = None,
        line: LoggedLine | None = None,
    ) -> Iterator[SdkObservation]:
        """Yield one boundary of a call, unless another channel reported it already."""
        channel = origin.channel
        call, tool = self._usable_id(call, channel), self._usable_id(tool, channel)
        reporter, known_tool = channel, tool
        if call is not None:
            reporter = self._reporters.setdefault((name, call), channel)
            known_tool = self._tools[call] = self._tools.get(call) or tool
            _forget_oldest(self._tools)
            _forget_oldest(self._reporters)
        if reporter != channel and tool in (None, known_tool):
            if channel != OTEL:
                self._note_repeated_boundary(origin, name, call)
            return
        event = self._make_sdk_event(channel, name, line, call, tool or known_tool)
        has_time = channel != OTEL and reporter == channel
        boundary = _make_call_boundary(origin, name, call, command, event.seq) if has_time else None
        yield SdkObservation(event, boundary)

    def _note_repeated_boundary(
        self, origin: ReceivedRecord, name: MarkerName, call: str | None
    ) -> None:
        """Keep the start or end of a tool call that another channel had reported already."""
        if len(self.repeats) < _MOST_CALLS:
            self.repeats.append(_make_call_boundary(origin, name, call, None, -1))
        else:
            self.problems[origin.channel, "left_out"] += 1

    def _other_event(
        self, origin: ReceivedRecord, name: SdkEventType, line: LoggedLine | None = None
    ) -> SdkObservation:
        return SdkObservation(self._make_sdk_event(origin.channel, name, line), None)

    def _make_sdk_event(
        self,
        channel: str,
        name: SdkEventType,
        line: LoggedLine | None,
        call: str | None = None,
        tool: str | None = None,
    ) -> SdkEvent:
        """Make the next record of the SDK layer from what a channel told."""
        seq, self._seq = self._seq, self._seq + 1
        producer = self._producer
        if channel == HOOKS and producer == UNKNOWN_PRODUCER:
            producer = Producer(CLAUDE)  # whose hooks the recorder's are
        known_name = None if producer == UNKNOWN_PRODUCER else producer.name
        return SdkEvent(
            run_id=self._run_id,
            seq=seq,
            event_type=name,
            source=line.source if line else producer.name + _SOURCES[channel],
            sdk_name=line.sdk_name if line else known_name,
            sdk_version=line.sdk_version if line else producer.version,
            tool_call_id=call,
            tool=tool,
        )

    def _usable_id(self, text: Any, channel: str) -> str | None:
        """Return an id or name, None where it is blank; one that no layer can hold is a problem."""
        if text is None or (isinstance(text, str) and not has_text(text)):
            return None
        if is_usable_id(text):
            return str(text)
        self.problems[channel, "unusable_name"] += 1
        return None


def _make_call_boundary(
    origin: ReceivedRecord, name: MarkerName, call: str | None, command: str | None, sdk_seq: int
) -> CallBoundary:
    """Make the boundary of a tool call: its start or end, and where it was told in its channel."""
    return CallBoundary(
        sdk_seq=sdk_seq,
        name=name,
        tool_call_id=call,
        channel=origin.channel,
        offset_end=origin.offset_end,
        arrived_ns=origin.arrived_ns,
        command=command,
    )


def _forget_oldest(known: dict[Any, Any]) -> None:
    """Forget the oldest: an agent that makes up calls without end must not fill the memory."""
    if len(known) > _MOST_CALLS:
        del known[next(iter(known))]
