"""The SDK layer: what an agent says about its own tool calls. Self-reported, all of it.

It comes from stream-json as Claude Code and its kin print it, from the event log that the
environment names, from hooks, or from OpenTelemetry. What two of them tell of the same call is
recorded once; what one of them tells twice is recorded twice. A call without an id is never given
one, and a stream that does not say whose it is has no name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct

from stream.codec import DECODE_ERRORS, LineSplitter, OverlongLine
from stream.errors import visible
from stream.evidence.claude_formats import (
    CLAUDE,
    KINDS,
    NOBODY,
    HookInput,
    LogExport,
    LoggedLine,
    Speaker,
    StreamRecord,
    T,
    TypedLine,
    blocks_of,
    command_in,
    decoded,
    is_record,
    is_usable,
    log_records,
    refused_in,
    speaker_in,
)
from stream.evidence.markers import CallBoundary, MarkerName
from stream.records.artifacts import SDK_EVENT, SdkEvent, SdkEventType
from stream.records.control import is_told

#: What the child is given, by the reference's names.
LOG_VARIABLE = "ASSAY_RUNNER_SDK_EVENT_LOG"
RUN_VARIABLE = "ASSAY_RUNNER_RUN_ID"
SCHEMA_VARIABLE = "ASSAY_RUNNER_SDK_EVENT_SCHEMA"

_KNOWN = 15_000  #: calls whose names and tellers are remembered
_SOURCES = {"stdout": "", "hooks": "-hooks", "otel": "-otel"}  #: behind the speaker's name
_NAME = 80  #: characters of a type
_TYPES = 1000  #: types of lines of an unknown form that are told apart

Channel = Literal["stdout", "log", "hooks", "otel"]
_CHANNELS: tuple[Channel, ...] = ("stdout", "log", "hooks", "otel")
Problem = Literal["not_a_record", "overlong", "torn", "foreign_run", "unusable_name", "left_out"]


#: A line of stdout without any of these is another program's, which says nothing wrong; so is a
#: whole object that is no record.
_OF_A_RECORD = (b'{"type":', b'"session_id"', b'"tool_use')


class SdkObservation(Struct, frozen=True):
    event: SdkEvent
    moment: CallBoundary | None  #: None: no end of a call, or nobody knows when


def log_environment(run_id: str, path: str) -> dict[str, str]:
    """What a child needs to append to the event log."""
    return {LOG_VARIABLE: path, RUN_VARIABLE: run_id, SCHEMA_VARIABLE: SDK_EVENT}


_HOOKS: dict[str, MarkerName] = {
    "PreToolUse": "tool_call_started",
    "PostToolUse": "tool_call_completed",
    "PostToolUseFailure": "tool_call_completed",
}
_OTEL: dict[str, MarkerName] = {
    "tool_decision": "tool_call_started",
    "tool_result": "tool_call_completed",
}


class _Where(Struct, frozen=True):
    channel: Channel
    arrived_ns: int
    offset_end: int


class SdkLayer:
    """Every `feed…` takes bytes as they come, cut anywhere, and gives what they complete."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._seq = 0
        self._speaker = NOBODY  # on stdout, or of the telemetry
        self._tools: dict[str, str | None] = {}  # by call
        self._tellers: dict[tuple[str, str], Channel] = {}  # by kind of event and call
        self._lines = {channel: LineSplitter(channel) for channel in _CHANNELS}
        self.problems: Counter[tuple[Channel, Problem]] = Counter()
        self.again: list[CallBoundary] = []  #: of what another channel had told already
        self._has_records = False  # on stdout
        self._others: Counter[str] = Counter()  # objects by type: no stream-json
        self._beside: Counter[str] = Counter()  # of a session: its own, if it has a name
        self.received = Counter[Channel]()  #: bytes

    @property
    def unknown_form(self) -> Counter[str]:
        """Lines of stdout that say their type, and are of no form that is known: by type."""
        return self._others + self._beside if self._speaker == NOBODY else self._others

    def feed(self, chunk: bytes, arrived_ns: int) -> list[SdkObservation]:
        """The standard output of an agent, where that is stream-json."""
        return list(self._read("stdout", chunk, arrived_ns, StreamRecord, self._streamed))

    def feed_refusals(self, chunk: bytes, arrived_ns: int) -> list[SdkObservation]:
        """The same, where hooks tell of the calls: of one that is refused, they never tell the
        end."""
        return list(self._read("stdout", chunk, arrived_ns, StreamRecord, self._refused))

    def feed_log(self, chunk: bytes, arrived_ns: int) -> list[SdkObservation]:
        """The event log that the environment named."""
        return list(self._read("log", chunk, arrived_ns, LoggedLine, self._logged))

    def feed_hooks(self, chunk: bytes, arrived_ns: int) -> list[SdkObservation]:
        """What Claude Code gave its hooks on stdin, one object a line."""
        return list(self._read("hooks", chunk, arrived_ns, HookInput, self._hooked))

    def feed_otel(self, chunk: bytes, arrived_ns: int) -> list[SdkObservation]:
        """Bodies of OTLP/HTTP in JSON, one a line. They come in batches, long after: no moments."""
        return list(self._read("otel", chunk, arrived_ns, LogExport, self._exported))

    def finish(self) -> None:
        """What stands after the last newline was never finished: it counts, and says nothing."""
        for channel, splitter in self._lines.items():
            for line in splitter.finish() or ():
                if isinstance(line, OverlongLine) or _is_meant(channel, line):
                    self._blame(channel, "torn")
        if not self._has_records:
            for channel, problem in [*self.problems]:
                if channel == "stdout":
                    del self.problems[channel, problem]

    def _read(
        self,
        channel: Channel,
        chunk: bytes,
        arrived_ns: int,
        form: type[T],
        use: Callable[[T, _Where], Iterator[SdkObservation]],
    ) -> Iterator[SdkObservation]:
        self.received[channel] += len(chunk)
        batch = self._lines[channel].feed(chunk)
        for index, line in enumerate(batch or ()):
            if isinstance(line, OverlongLine):
                self._blame(channel, "overlong")
                continue
            if not line.strip():
                continue
            try:
                record = decoded(line, form)
            except DECODE_ERRORS:
                if _is_meant(channel, line):
                    self._blame(channel, "not_a_record")
                elif channel == "stdout":
                    self._pass_by(line)
                continue
            assert batch is not None
            end = batch.offset_of(index) + len(line) + 1
            yield from use(record, _Where(channel, arrived_ns, end))

    def _blame(self, channel: Channel, problem: Problem) -> None:
        self.problems[channel, problem] += 1

    # --- the channels ---------------------------------------------------------------------------

    def _streamed(self, record: StreamRecord, where: _Where) -> Iterator[SdkObservation]:
        if not self._begins(record):
            return
        if record.type == "result":
            yield self._say(where, "run_failed" if record.is_error is True else "run_finished")
        elif record.type in ("assistant", "user"):
            for block in blocks_of(record.message):
                yield from self._block(record.type, block, where)

    def _refused(self, record: StreamRecord, where: _Where) -> Iterator[SdkObservation]:
        if self._begins(record) and record.type == "user":
            refused = refused_in(record.tool_result_meta)
            for block in blocks_of(record.message):
                if block.get("tool_use_id") in refused:
                    yield from self._block(record.type, block, where)

    def _begins(self, record: StreamRecord) -> bool:
        """Whether it is a record; who speaks is what the last session's beginning says."""
        if record.type not in KINDS:
            _count(self._beside, record.type)
            return False
        self._has_records = True
        self._speaker = speaker_in(record) or self._speaker
        return True

    def _pass_by(self, line: bytes) -> None:
        if not line.lstrip().startswith(b"{"):
            return
        try:
            _count(self._others, decoded(line, TypedLine).type)
        except DECODE_ERRORS:
            return  # a text, or an object that does not say what it is

    def _block(
        self, teller: str, block: Mapping[str, Any], where: _Where
    ) -> Iterator[SdkObservation]:
        """A call is asked for by the assistant, and its result comes as if by the user."""
        if teller == "assistant" and block.get("type") == "tool_use":
            call, tool = block.get("id"), block.get("name")
            yield from self._tell(
                where, "tool_call_started", call, tool, command_in(tool, block.get("input"))
            )
        elif teller == "user" and block.get("type") == "tool_result":
            yield from self._tell(where, "tool_call_completed", block.get("tool_use_id"), None)

    def _logged(self, line: LoggedLine, where: _Where) -> Iterator[SdkObservation]:
        if line.run_id != self._run_id:
            self._blame(where.channel, "foreign_run")
        elif line.event_type in ("tool_call_started", "tool_call_completed"):
            call = line.tool_call_id
            yield from self._tell(where, line.event_type, call, line.tool, None, line)
        else:
            yield self._say(where, line.event_type, line)

    def _hooked(self, hook: HookInput, where: _Where) -> Iterator[SdkObservation]:
        name = _HOOKS.get(hook.hook_event_name)
        if name is not None:
            command = command_in(hook.tool_name, hook.tool_input)
            if name == "tool_call_completed":
                command = None
            yield from self._tell(where, name, hook.tool_use_id, hook.tool_name, command)

    def _exported(self, export: LogExport, where: _Where) -> Iterator[SdkObservation]:
        for speaker, fields in log_records(export.resource_logs):
            name = _OTEL.get(str(fields.get("event.name")))
            if name is not None:
                if self._speaker == NOBODY:
                    self._speaker = speaker
                call, tool = fields.get("tool_use_id"), fields.get("tool_name")
                yield from self._tell(where, name, call, tool)

    # --- what they have in common ---------------------------------------------------------------

    def _tell(
        self,
        where: _Where,
        name: MarkerName,
        call: Any,
        tool: Any,
        command: str | None = None,
        line: LoggedLine | None = None,
    ) -> Iterator[SdkObservation]:
        call, tool = self._usable(call, where.channel), self._usable(tool, where.channel)
        teller, known = where.channel, tool
        if call is not None:
            teller = self._tellers.setdefault((name, call), where.channel)
            known = self._tools[call] = self._tools.get(call) or tool
            _forget(self._tools)
            _forget(self._tellers)
        if teller != where.channel and tool in (None, known):
            self._repeat(where, name, call)
            return
        event = self._event(where.channel, name, line, call, tool or known)
        is_placed = where.channel != "otel" and teller == where.channel
        moment = _moment(where, name, call, command, event.seq) if is_placed else None
        yield SdkObservation(event, moment)

    def _repeat(self, where: _Where, name: MarkerName, call: str | None) -> None:
        if where.channel == "otel":
            return
        if len(self.again) < _KNOWN:
            self.again.append(_moment(where, name, call, None, -1))
        else:
            self._blame(where.channel, "left_out")

    def _say(
        self, where: _Where, name: SdkEventType, line: LoggedLine | None = None
    ) -> SdkObservation:
        return SdkObservation(self._event(where.channel, name, line), None)

    def _event(
        self,
        channel: Channel,
        name: SdkEventType,
        line: LoggedLine | None,
        call: str | None = None,
        tool: str | None = None,
    ) -> SdkEvent:
        seq, self._seq = self._seq, self._seq + 1
        speaker = self._speaker
        if channel == "hooks" and speaker == NOBODY:
            speaker = Speaker(CLAUDE)  # whose hooks the recorder's are
        return SdkEvent(
            run_id=self._run_id,
            seq=seq,
            event_type=name,
            source=line.source if line else speaker.name + _SOURCES[channel],
            sdk_name=line.sdk_name if line else None if speaker == NOBODY else speaker.name,
            sdk_version=line.sdk_version if line else speaker.version,
            tool_call_id=call,
            tool=tool,
        )

    def _usable(self, text: Any, channel: Channel) -> str | None:
        """A blank name is none. One that no layer can hold is none either, and a problem."""
        if text is None or (isinstance(text, str) and not is_told(text)):
            return None
        if is_usable(text):
            return str(text)
        self._blame(channel, "unusable_name")
        return None


def _moment(
    where: _Where, name: MarkerName, call: str | None, command: str | None, sdk_seq: int
) -> CallBoundary:
    return CallBoundary(
        sdk_seq=sdk_seq,
        name=name,
        tool_call_id=call,
        channel=where.channel,
        offset_end=where.offset_end,
        arrived_ns=where.arrived_ns,
        command=command,
    )


def _is_meant(channel: Channel, line: bytes) -> bool:
    """Whether it may be a record, or a piece of one, that could not be used."""
    if channel != "stdout":
        return bool(line.strip())
    if not any(one in line for one in _OF_A_RECORD):
        return False
    try:
        said = decoded(line, object)
    except DECODE_ERRORS:
        return True
    return is_record(said)


def _count(found: Counter[str], kind: str) -> None:
    """An agent that makes up types without end must not fill the memory."""
    kind = visible(kind[:_NAME])
    found[kind if kind in found or len(found) < _TYPES else "…"] += 1


def _forget(known: dict[Any, Any]) -> None:
    """An agent that makes up calls without end must not fill the memory."""
    if len(known) > _KNOWN:
        del known[next(iter(known))]
