"""The policy layer: which tool calls were allowed and which refused, by whom who decides says so.

Decisions come as CloudEvents of type `assay.tool.decision`, or as the refusals that Claude Code
tells of itself. A decision without a call's id is never given one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from msgspec import Struct

from stream.codec import DECODE_ERRORS, LineSplitter, OverlongLine
from stream.records.runner import PolicyEvent

DECISION = "assay.tool.decision"
DENIAL = "claude.permission_denial"
_CLAUDE = "claude-code"
_KNOWN = 100_000  #: refused calls that are told apart

Problem = Literal["not_a_record", "overlong", "torn", "no_decision", "unnamed_denial"]


class _CloudEvent(Struct):
    type: str
    source: Any = None
    data: Any = None


class _Decision(Struct):
    tool: str
    decision: str
    tool_call_id: str | None = None


class _Record(Struct):
    """A line of Claude Code's stream-json."""

    type: str
    session_id: str
    subtype: Any = None
    permission_denials: Any = None
    tool_name: Any = None
    tool_use_id: Any = None


_decode_event = msgspec.json.Decoder(_CloudEvent).decode
_decode_record = msgspec.json.Decoder(_Record).decode


class PolicyLayer:
    """Each `feed…` takes bytes as they come, cut anywhere, and gives what they complete."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._seq = 0
        self._log, self._stdout = LineSplitter("policy log"), LineSplitter("stdout")
        self._denied: dict[str, None] = {}
        self.problems: Counter[Problem] = Counter()
        self.ignored = 0  #: events of other types

    def feed(self, chunk: bytes) -> list[PolicyEvent]:
        """A log of CloudEvents."""
        return [event for line in self._whole(self._log, chunk) for event in self._decided(line)]

    def feed_stdout(self, chunk: bytes) -> list[PolicyEvent]:
        """What Claude Code prints in its form stream-json; whether it is that is not judged."""
        lines = self._stdout.feed(chunk) or ()
        return [e for line in lines if b"permission_den" in line for e in self._refused(line)]

    def finish(self) -> None:
        """What stands after the last newline of the log was never finished."""
        for line in self._log.finish() or ():
            if isinstance(line, OverlongLine) or line.strip():
                self.problems["torn"] += 1

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
        call = found.tool_call_id or None
        yield self._event(DECISION, source, call, found.tool, found.decision)

    def _refused(self, line: bytes) -> Iterator[PolicyEvent]:
        """A result repeats what was told when it happened; a run that was killed has no result."""
        try:
            record = _decode_record(line)
        except DECODE_ERRORS:
            return  # the SDK layer counts it
        denials = record.permission_denials if record.type == "result" else None
        told_early = record.type == "system" and record.subtype == "permission_denied"
        if told_early and record.tool_use_id:  # without an id, the result's list has to do
            yield from self._deny(record.tool_use_id, record.tool_name)
        for denial in denials if isinstance(denials, list) else ():
            fields = denial if isinstance(denial, dict) else {}
            yield from self._deny(fields.get("tool_use_id"), fields.get("tool_name"))

    def _deny(self, call: Any, tool: Any) -> Iterator[PolicyEvent]:
        call = call if isinstance(call, str) and call else None
        if not isinstance(tool, str) or not tool:
            self.problems["unnamed_denial"] += 1
        elif call is None or call not in self._denied:
            if call is not None and len(self._denied) < _KNOWN:
                self._denied[call] = None
            yield self._event(DENIAL, _CLAUDE, call, tool, "deny")

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
