"""The formats in which Claude Code and its kin report tool calls, permissions and results.

There is one reader of each: the SDK layer, the policy layer and the declared answer all use these.
Another program may mean something else by the same fields, so every value is checked where it is
used, and only a line that is no object of the format is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias, TypeGuard, TypeVar

import msgspec
from msgspec import Struct

from stream.codec import DECODE_ERRORS, MAX_LINE, LineSplitter, OverlongLine
from stream.errors import printable
from stream.records.artifacts import SdkEventType
from stream.records.channels import HOOKS, LOG, OTEL, POLICY, STDOUT, ChannelBlock

Sdk = Literal["stream-json", "hooks", "otel"]  #: the channel that reports the tool calls of a run
DECISION = "assay.tool.decision"  #: the type of a CloudEvent that decides about a tool call
CLAUDE = "claude-code"
KINDS = ("assistant", "user", "result", "system")  #: types of the stream-json records used here
MOST_NAME = 1024  #: characters of an id or name; a longer one cannot be used
T = TypeVar("T")
#: A line of stdout without any of these is another program's, and no problem.
_NEEDLES = (b'{"type":', b'"session_id"', b'"tool_use')
_TYPE = 80  #: characters of a type
_MOST_TYPES = 1000  #: types of lines of an unknown form that are told apart


class StreamRecord(Struct):
    """A line of stream-json: the fields that are used here."""

    type: str
    session_id: str
    subtype: Any = None
    message: Any = None
    result: Any = None
    is_error: Any = None
    tool_name: Any = None
    tool_use_id: Any = None
    tool_result_meta: Any = None
    permission_mode: Any = msgspec.field(default=None, name="permissionMode")
    permission_denials: Any = None
    num_turns: Any = None
    duration_ms: Any = None
    usage: Any = None
    model: Any = None
    model_usage: Any = msgspec.field(default=None, name="modelUsage")
    claude_code_version: Any = None
    qwen_code_version: Any = None


class TypedLine(Struct):
    """An object of any format that states its type."""

    type: str


class HookInput(Struct):
    """What Claude Code passes to a hook."""

    hook_event_name: str
    session_id: str
    tool_name: Any = None
    tool_use_id: Any = None
    tool_input: Any = None


class LogExport(Struct):
    """A body of OTLP; `otlp_log_records` finds the records in it."""

    resource_logs: Any = msgspec.field(name="resourceLogs", default=None)


class LoggedLine(Struct):
    """A line of the SDK event log that the environment names."""

    schema: Literal["assay.runner.sdk_event.v0"]
    run_id: str
    event_type: SdkEventType
    source: str
    sdk_name: str | None = None
    sdk_version: str | None = None
    tool_call_id: str | None = None
    tool: str | None = None


class CloudEvent(Struct):
    """A line of a decision log."""

    type: str
    source: Any = None
    data: Any = None


class Producer(Struct, frozen=True):
    """The program that prints a stream, as the stream itself states."""

    name: str
    version: str | None = None


UNKNOWN_PRODUCER = Producer("unknown")  #: of a stream that does not name its program

AgentRecord: TypeAlias = StreamRecord | HookInput | LogExport | LoggedLine | CloudEvent
_FORMS: dict[str, type[AgentRecord]] = {
    STDOUT: StreamRecord,
    HOOKS: HookInput,
    OTEL: LogExport,
    LOG: LoggedLine,
    POLICY: CloudEvent,  # which no JavaScript writes: half a surrogate pair is an error there
}


class ReceivedRecord(Struct, frozen=True):
    """A record, the channel on which it came, and where and when its line ended there."""

    record: AgentRecord
    channel: str
    offset_end: int
    arrived_ns: int


class AgentRecords:
    """Turns the bytes of each channel, cut anywhere, into the records that they complete, and
    counts the lines that are none."""

    def __init__(self) -> None:
        self.received = Counter[str]()  #: bytes by channel
        self.problems = Counter[tuple[str, str]]()  #: by channel and reason
        self.foreign_types = Counter[str]()  #: of objects on stdout that are no stream-json
        self.session_types = Counter[str]()  #: of records of a session that are not used
        self._lines = {channel: LineSplitter(channel) for channel in _FORMS}
        self._has_stream_records = False

    def read_block(self, block: ChannelBlock) -> Iterator[ReceivedRecord]:
        """Yield the records that these bytes of a channel complete."""
        channel = block.channel
        self.received[channel] += len(block.data)
        lines = self._lines[channel].feed(block.data)
        is_text = channel == STDOUT and _is_text(block.data)
        for index, line in enumerate(lines or ()):
            if index and is_text:  # a command may print millions of lines
                return
            if isinstance(line, OverlongLine):
                self.problems[channel, "overlong"] += 1
                continue
            if not line.strip():
                continue
            try:
                record = _decode_line(channel, line)
            except DECODE_ERRORS:
                self._count_unusable(channel, line)
                continue
            if isinstance(record, StreamRecord) and not self._is_used_record(record):
                continue
            assert lines is not None
            end = lines.offset_of(index) + len(line) + 1
            yield ReceivedRecord(record, channel, end, block.arrived_ns)

    def finish(self) -> None:
        """Count the unfinished last line of each channel as a problem."""
        for channel, splitter in self._lines.items():
            for line in splitter.finish() or ():
                if isinstance(line, OverlongLine) or _may_be_record(channel, line):
                    self.problems[channel, "torn"] += 1
        if not self._has_stream_records:  # all of stdout is another program's
            for channel, problem in [*self.problems]:
                if channel == STDOUT:
                    del self.problems[channel, problem]

    def _is_used_record(self, record: StreamRecord) -> bool:
        """Return whether the record is of a type that is used; else count its type."""
        if record.type not in KINDS:
            _count_type(self.session_types, record.type)
            return False
        self._has_stream_records = True
        return True

    def _count_unusable(self, channel: str, line: bytes) -> None:
        """Count a line that is no record of its channel; of stdout also the type that it states."""
        if _may_be_record(channel, line):
            self.problems[channel, "not_a_record"] += 1
        elif channel == STDOUT and line.lstrip().startswith(b"{"):
            try:
                _count_type(self.foreign_types, decode_agent_line(line, TypedLine).type)
            except DECODE_ERRORS:
                return  # a text, or an object that does not state its type


def _decode_line(channel: str, line: bytes) -> AgentRecord:
    """Decode a line as its channel has it; raise one of DECODE_ERRORS."""
    form = _FORMS[channel]
    if form is CloudEvent:
        return msgspec.json.decode(line, type=CloudEvent)
    return decode_agent_line(line, form)


def _is_text(data: bytes) -> bool:
    """Return whether no line that begins in this piece of stdout can be a record, or a part of one
    that could not be used."""
    return len(data) <= MAX_LINE and not any(sign in data for sign in (b"{", *_NEEDLES))


def _may_be_record(channel: str, line: bytes) -> bool:
    """Return whether a line may be a record, or a piece of one, that could not be used."""
    if channel != STDOUT:
        return bool(line.strip())
    if not any(needle in line for needle in _NEEDLES):
        return False
    try:
        return is_stream_record(decode_agent_line(line, object))
    except DECODE_ERRORS:
        return True


def _count_type(types: Counter[str], kind: str) -> None:
    """Count a type; an agent that makes up types without end must not fill the memory."""
    kind = printable(kind[:_TYPE])
    types[kind if kind in types or len(types) < _MOST_TYPES else "…"] += 1


def decode_agent_line(line: bytes, form: type[T]) -> T:
    """Decode a line that may hold half a surrogate pair; raise one of DECODE_ERRORS.

    JavaScript escapes half a pair although it is no Unicode: a call with one in its input is a
    call nevertheless.
    """
    try:
        return msgspec.json.decode(line, type=form)
    except msgspec.ValidationError:
        raise
    except DECODE_ERRORS:
        if b"\\u" not in line:
            raise
    import json

    try:
        return msgspec.convert(json.loads(line), type=form)
    except (ValueError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None


def is_usable_id(text: Any) -> TypeGuard[str]:
    """Return whether a layer can hold this as an id or name."""
    return isinstance(text, str) and 0 < len(text) <= MOST_NAME and is_unicode(text)


def is_unicode(text: str) -> bool:
    """Return whether a text has no half of a surrogate pair: a layer cannot hold one."""
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


def is_stream_record(value: Any) -> bool:
    """Return whether a JSON value is a record of stream-json: other agents print a `type` too."""
    if not isinstance(value, dict):
        return False
    return value.get("type") in KINDS and isinstance(value.get("session_id"), str)


def producer_in_record(record: StreamRecord) -> Producer | None:
    """Return the program that begins a session with this record; None if it begins none."""
    if record.type != "system" or record.subtype != "init":
        return None
    versions = {CLAUDE: record.claude_code_version, "qwen-code": record.qwen_code_version}
    named = [Producer(name, v if is_usable_id(v) else None) for name, v in versions.items() if v]
    return named[0] if len(named) == 1 else UNKNOWN_PRODUCER


def command_in_call(tool: Any, arguments: Any) -> str | None:
    """Return the command that a call asks a shell to run."""
    command = arguments.get("command") if tool == "Bash" and isinstance(arguments, dict) else None
    if not isinstance(command, str):
        return None
    return command.encode("utf-8", "backslashreplace").decode()


def content_blocks_of(message: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the content blocks of a message."""
    return _dicts(message.get("content") if isinstance(message, dict) else None)


def permissions_in(meta: Any) -> Iterator[tuple[str | None, str, Any]]:
    """Yield the call, the decision and the kind of reason of each permission with a result."""
    for one in _dicts(meta):
        call, permission = one.get("id"), one.get("permission_decision")
        if isinstance(permission, dict) and isinstance(permission.get("decision"), str):
            named = call if isinstance(call, str) else None
            yield named, permission["decision"], permission.get("reason_type")


def refused_calls_in(meta: Any) -> list[str | None]:
    """Return the calls that the permissions with a result refuse."""
    return [call for call, decision, _ in permissions_in(meta) if call and decision == "reject"]


def denials_in(record: StreamRecord) -> Iterator[tuple[Any, Any]]:
    """Yield the call and the tool of each denial that a record reports.

    A denial is reported when it happens; the result at the end lists all of them again.
    """
    if record.type == "system" and record.subtype == "permission_denied":
        yield record.tool_use_id, record.tool_name
    elif record.type == "result" and isinstance(record.permission_denials, list):
        for denial in record.permission_denials:
            fields = denial if isinstance(denial, dict) else {}
            yield fields.get("tool_use_id"), fields.get("tool_name")


def otlp_log_records(resources: Any) -> Iterator[tuple[Producer, dict[str, Any]]]:
    """Yield the attributes of each OTLP record, with the program that sent it."""
    for resource in _dicts(resources):
        about = resource.get("resource")
        sender = _otlp_attributes(about if isinstance(about, dict) else {})
        name, version = sender.get("service.name"), sender.get("service.version")
        producer = Producer(
            name if is_usable_id(name) else UNKNOWN_PRODUCER.name,
            version if is_usable_id(version) else None,
        )
        for scope in _dicts(resource.get("scopeLogs")):
            for record in _dicts(scope.get("logRecords")):
                yield producer, _otlp_attributes(record)


def _otlp_attributes(owner: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of an OpenTelemetry record or resource that are strings."""
    found = {}
    for one in _dicts(owner.get("attributes")):
        value = one.get("value")
        if isinstance(value, dict) and isinstance(one.get("key"), str):
            found[one["key"]] = value.get("stringValue")
    return found


def _dicts(items: Any) -> Iterator[dict[str, Any]]:
    return (item for item in (items if isinstance(items, list) else ()) if isinstance(item, dict))
