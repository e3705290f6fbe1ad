"""The policy layer: which tool calls were allowed and which refused, by whom who decides says so.

Decisions come as CloudEvents of type `assay.tool.decision`, or as the permissions and refusals
that Claude Code and its kin tell of themselves, on stdout or by OpenTelemetry. A decision without
a call's id is never given one. What nobody decided is no decision: where all permissions are
bypassed, that a call was let through is none.
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
    NOBODY,
    LogExport,
    Speaker,
    StreamRecord,
    decoded,
    log_records,
    permissions_in,
    speaker_in,
)
from stream.records.artifacts import PolicyEvent
from stream.records.control import TITLE, is_told

DENIAL = "claude.permission_denial"
PERMISSION = "claude.permission_decision"  #: beside the result of a call
EXPORTED = "claude_code.tool_decision"  #: by OpenTelemetry
_EXPORTED_KIND = EXPORTED.partition(".")[2]
BYPASS = "bypassPermissions"  #: the mode in which nobody is asked
_OF_USE = (b'"permission', b'"tool_use"', b'"init"')  #: in each line that says anything here
_DECISIONS = {"accept": "allow", "reject": "deny"}
_KNOWN = 15_000  #: refused calls that are told apart

Problem = Literal["not_a_record", "overlong", "torn", "no_decision", "unnamed_tool", "left_out"]


class _CloudEvent(Struct):
    type: str
    source: Any = None
    data: Any = None


_Told = Annotated[str, Meta(pattern=TITLE)]


class _Decision(Struct):
    tool: _Told
    decision: _Told
    tool_call_id: str | None = None


class _RefusalRecord(StreamRecord, kw_only=True):
    permission_denials: Any = None
    tool_name: Any = None
    tool_use_id: Any = None


_decode_event = msgspec.json.Decoder(_CloudEvent).decode
_decode_record = msgspec.json.Decoder(_RefusalRecord).decode


class PolicyLayer:
    """Each `feed…` takes bytes as they come, cut anywhere, and gives what they complete."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._seq = 0
        self._log, self._stdout = LineSplitter("policy log"), LineSplitter("stdout")
        self._otel = LineSplitter("otel")
        self._late: list[tuple[Speaker, Any, Any, str, Any]] = []  # call, tool, decision, why
        self._speaker, self._mode = NOBODY, ""  # of the session
        self._told: dict[str, tuple[str, str]] = {}  # by call, what was told of which tool
        self._tools: dict[str, str] = {}  # by call: a permission does not name its tool
        self.problems: Counter[Problem] = Counter()
        self.ignored = 0  #: events of other types

    def feed(self, chunk: bytes) -> list[PolicyEvent]:
        """A log of CloudEvents."""
        return [event for line in self._whole(self._log, chunk) for event in self._decided(line)]

    def feed_stdout(self, chunk: bytes) -> list[PolicyEvent]:
        """What an agent prints, where that is stream-json."""
        lines = self._stdout.feed(chunk) or ()
        return [
            event
            for line in lines
            if any(one in line for one in _OF_USE)
            for event in self._permitted(line)
        ]

    def feed_otel(self, chunk: bytes) -> None:
        """Bodies of OTLP/HTTP in JSON, one a line. They come at no certain time: what they decide
        is told in the end, so that every run tells it in the same place."""
        for line in self._otel.feed(chunk) or ():
            if b"tool_decision" not in line:
                continue
            for one in self._exported(line):
                if len(self._late) < _KNOWN:
                    self._late.append(one)
                else:
                    self.problems["left_out"] += 1

    def finish(self) -> list[PolicyEvent]:
        """What stands after the last newline of the log was never finished."""
        for line in self._log.finish() or ():
            if isinstance(line, OverlongLine) or line.strip():
                self.problems["torn"] += 1
        late, self._late = self._late, []
        return [
            event
            for speaker, call, tool, decision, why in late
            if not (why == "config" and decision == "allow" and self._mode == BYPASS)
            for event in self._tell(EXPORTED, speaker, call, tool, decision)
        ]

    def _whole(self, splitter: LineSplitter, chunk: bytes) -> Iterator[bytes]:
        for line in splitter.feed(chunk) or ():
            if isinstance(line, OverlongLine):
                self.problems["overlong"] += 1
            elif line.strip():
                yield line

    def _decided(self, line: bytes) -> Iterator[PolicyEvent]:
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

    def _permitted(self, line: bytes) -> Iterator[PolicyEvent]:
        """A result repeats what was told when it happened; a run that was killed has no result."""
        try:
            record = _decode_record(line)
        except DECODE_ERRORS:
            return  # the SDK layer counts it
        if record.type not in KINDS:
            return
        self._speaker = speaker_in(record) or self._speaker
        if record.type == "system" and isinstance(record.permission_mode, str):
            self._mode = record.permission_mode
        if record.type == "assistant":
            self._learn(record.message)
        meta = record.tool_result_meta if record.type == "user" else ()
        for call, found, reason in permissions_in(meta):
            if found == "accept" and reason == "mode" and self._mode == BYPASS:
                continue
            decision = _DECISIONS.get(found)
            if decision is None:
                self.problems["no_decision"] += 1
                continue
            tool = None if call is None else self._tools.get(call)
            yield from self._tell(PERMISSION, self._speaker, call, tool, decision)
        denials = record.permission_denials if record.type == "result" else None
        told_early = record.type == "system" and record.subtype == "permission_denied"
        if told_early and record.tool_use_id:  # without an id, the result's list has to do
            call, tool = record.tool_use_id, record.tool_name
            yield from self._tell(DENIAL, self._speaker, call, tool, "deny")
        for denial in denials if isinstance(denials, list) else ():
            fields = denial if isinstance(denial, dict) else {}
            call, tool = fields.get("tool_use_id"), fields.get("tool_name")
            yield from self._tell(DENIAL, self._speaker, call, tool, "deny")

    def _learn(self, message: Any) -> None:
        for block in _dicts(message.get("content") if isinstance(message, dict) else None):
            call, tool = block.get("id"), block.get("name")
            is_call = block.get("type") == "tool_use" and len(self._tools) < _KNOWN
            if is_call and isinstance(call, str) and isinstance(tool, str):
                self._tools[call] = tool

    def _exported(self, line: bytes) -> Iterator[tuple[Speaker, Any, Any, str, Any]]:
        try:
            export = decoded(line, LogExport)
        except DECODE_ERRORS:
            return  # the SDK layer counts it
        for speaker, fields in log_records(export.resource_logs):
            if fields.get("event.name") == "tool_decision":
                decision = _DECISIONS.get(str(fields.get("decision")))
                if decision is None:
                    self.problems["no_decision"] += 1
                else:
                    call, tool = fields.get("tool_use_id"), fields.get("tool_name")
                    yield speaker, call, tool, decision, fields.get("source")

    def _tell(
        self, kind: str, speaker: Speaker, call: Any, tool: Any, decision: str
    ) -> Iterator[PolicyEvent]:
        """What was told of a call already is not told again, unless it is something else."""
        call = call if isinstance(call, str) and is_told(call) else None
        if not isinstance(tool, str) or not is_told(tool):
            self.problems["unnamed_tool"] += 1
        elif call is None or self._told.get(call) != (tool, decision):
            if call is not None and len(self._told) < _KNOWN:
                self._told[call] = tool, decision
            if speaker.name != CLAUDE:
                kind = f"{speaker.name}.{kind.partition('.')[2]}"
            source = speaker.name + ("-otel" if kind.endswith(_EXPORTED_KIND) else "")
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


def _dicts(items: Any) -> Iterator[dict[str, Any]]:
    return (
        (item for item in items if isinstance(item, dict)) if isinstance(items, list) else iter(())
    )
