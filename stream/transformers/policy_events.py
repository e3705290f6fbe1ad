"""The policy layer: which tool calls were allowed and which were refused, as the decider reports.

Decisions come as CloudEvents of type `assay.tool.decision`, or as the permissions and denials that
Claude Code and its kin report about themselves, on stdout or by OpenTelemetry. A decision without
a call's id is never given one. Where all permissions are bypassed, nobody decided: that a call was
let through is no decision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from stream.codec import DECODE_ERRORS, LineSplitter, OverlongLine
from stream.evidence.claude_formats import (
    CLAUDE,
    DECISION,
    KINDS,
    UNKNOWN_PRODUCER,
    LogExport,
    Producer,
    blocks_of,
    decoded,
    denials_in,
    log_records,
    permissions_in,
    producer_in,
    read_record,
)
from stream.records.artifacts import PolicyEvent
from stream.records.control import TITLE, is_told

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
            for one in self._read_export(line):
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
            for event in self._report(EXPORTED, one.producer, one.call, one.tool, one.decision)
        ]

    def _read_cloud_event(self, line: bytes) -> Iterator[PolicyEvent]:
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
        yield self._event(DECISION, source, call, found.tool, found.decision)

    def _read_stream_record(self, line: bytes) -> Iterator[PolicyEvent]:
        record = read_record(line)
        if record is None or record.type not in KINDS:
            return  # the SDK layer counts it
        self._producer = producer_in(record) or self._producer
        if record.type == "system" and isinstance(record.permission_mode, str):
            self._mode = record.permission_mode
        if record.type == "assistant":
            self._remember_tools(record.message)
        for call, found, reason in permissions_in(
            record.tool_result_meta if record.type == "user" else ()
        ):
            if (found, reason, self._mode) != ("accept", "mode", BYPASS) and (
                decision := self._decision(found)
            ):
                tool = None if call is None else self._tools.get(call)
                yield from self._report(PERMISSION, self._producer, call, tool, decision)
        for call, tool in denials_in(record):
            if call or record.type == "result":  # without an id, the result's list has to do
                yield from self._report(DENIAL, self._producer, call, tool, "deny")

    def _remember_tools(self, message: Any) -> None:
        for block in blocks_of(message):
            call, tool = block.get("id"), block.get("name")
            is_call = block.get("type") == "tool_use" and len(self._tools) < _MOST_CALLS
            if is_call and isinstance(call, str) and isinstance(tool, str):
                self._tools[call] = tool

    def _read_export(self, line: bytes) -> Iterator[_ExportedDecision]:
        try:
            export = decoded(line, LogExport)
        except DECODE_ERRORS:
            return  # the SDK layer counts it
        for producer, fields in log_records(export.resource_logs):
            if fields.get("event.name") == "tool_decision" and (
                decision := self._decision(str(fields.get("decision")))
            ):
                call, tool = fields.get("tool_use_id"), fields.get("tool_name")
                yield _ExportedDecision(producer, call, tool, decision, fields.get("source"))

    def _decision(self, text: str) -> str | None:
        decision = _DECISIONS.get(text)
        if decision is None:
            self.problems["no_decision"] += 1
        return decision

    def _report(
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
            yield self._event(kind, source, call, tool, decision)

    def _event(
        self, kind: str, source: str, call: str | None, tool: str, decision: str
    ) -> PolicyEvent:
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
