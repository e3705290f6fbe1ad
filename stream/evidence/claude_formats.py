"""The forms in which agents speak of their tool calls, and what can be taken from them.

Whatever another program means by the same fields, nothing here is an error but a line that is no
object of the form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeGuard, TypeVar

import msgspec
from msgspec import Struct

from stream.codec import DECODE_ERRORS
from stream.records.artifacts import SdkEventType

MOST_NAME = 1024  #: characters of an id or name; a longer one is a problem, and none
T = TypeVar("T")


#: What a line of stream-json is, where it tells anything that is used here.
KINDS = ("assistant", "user", "result", "system")


class StreamRecord(Struct):
    """A line of stream-json: its fields that matter here. Another program may mean others."""

    type: str
    session_id: str
    subtype: Any = None
    message: Any = None
    tool_result_meta: Any = None
    is_error: Any = None
    permission_mode: Any = msgspec.field(default=None, name="permissionMode")
    claude_code_version: Any = None
    qwen_code_version: Any = None


class Speaker(Struct, frozen=True):
    """Who prints a stream, as the stream itself tells."""

    name: str
    version: str | None = None


CLAUDE = "claude-code"
NOBODY = Speaker("unknown")  #: a stream that does not say whose it is


class TypedLine(Struct):
    """An object of whatever form that says which type it is of."""

    type: str


class HookInput(Struct):
    hook_event_name: str
    session_id: str
    tool_name: Any = None
    tool_use_id: Any = None
    tool_input: Any = None


class LogExport(Struct):
    """A body of OTLP: its records are looked for, whatever else is in it."""

    resource_logs: Any = msgspec.field(name="resourceLogs", default=None)


class LoggedLine(Struct):
    schema: Literal["assay.runner.sdk_event.v0"]
    run_id: str
    event_type: SdkEventType
    source: str
    sdk_name: str | None = None
    sdk_version: str | None = None
    tool_call_id: str | None = None
    tool: str | None = None


def is_usable(text: Any) -> TypeGuard[str]:
    if not isinstance(text, str) or not 0 < len(text) <= MOST_NAME:
        return False
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


def decoded(line: bytes, form: type[T]) -> T:
    try:
        return msgspec.json.decode(line, type=form)
    except msgspec.ValidationError:
        raise
    except DECODE_ERRORS:
        if b"\\u" not in line:
            raise
    return _with_half_characters(line, form)


def _with_half_characters(line: bytes, form: type[T]) -> T:
    """JavaScript prints half a character as an escape that is no Unicode: a call with one in its
    input is a call nevertheless."""
    import json

    try:
        return msgspec.convert(json.loads(line), type=form)
    except (ValueError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None


def is_record(said: Any) -> bool:
    """Whether a JSON value has the form of stream-json: other agents print a `type` as well."""
    if not isinstance(said, dict):
        return False
    return said.get("type") in KINDS and isinstance(said.get("session_id"), str)


def speaker_in(record: StreamRecord) -> Speaker | None:
    """Who says so at the beginning of a session. None: this is no such beginning."""
    if record.type != "system" or record.subtype != "init":
        return None
    told = {CLAUDE: record.claude_code_version, "qwen-code": record.qwen_code_version}
    named = [Speaker(name, v if is_usable(v) else None) for name, v in told.items() if v]
    return named[0] if len(named) == 1 else NOBODY


def command_in(tool: Any, given: Any) -> str | None:
    command = given.get("command") if tool == "Bash" and isinstance(given, dict) else None
    if not isinstance(command, str):
        return None
    return command.encode("utf-8", "backslashreplace").decode()


def blocks_of(message: Any) -> Iterator[Mapping[str, Any]]:
    content = message.get("content") if isinstance(message, dict) else None
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict):
            yield block


def refused_in(meta: Any) -> list[str | None]:
    """Of the results beside which this stands: the calls that were not allowed."""
    return [call for call, decision, _ in permissions_in(meta) if call and decision == "reject"]


def permissions_in(meta: Any) -> Iterator[tuple[str | None, str, Any]]:
    """Calls, what was decided about them, and what kind of reason there was."""
    for one in _dicts(meta):
        call, permission = one.get("id"), one.get("permission_decision")
        if isinstance(permission, dict) and isinstance(permission.get("decision"), str):
            named = call if isinstance(call, str) else None
            yield named, permission["decision"], permission.get("reason_type")


def log_records(resources: Any) -> Iterator[tuple[Speaker, dict[str, Any]]]:
    """The attributes of each record, with who sent it."""
    for resource in _dicts(resources):
        about = resource.get("resource")
        sender = _attributes(about if isinstance(about, dict) else {})
        name, version = sender.get("service.name"), sender.get("service.version")
        speaker = Speaker(
            name if is_usable(name) else NOBODY.name, version if is_usable(version) else None
        )
        for scope in _dicts(resource.get("scopeLogs")):
            for record in _dicts(scope.get("logRecords")):
                yield speaker, _attributes(record)


def _attributes(owner: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for one in _dicts(owner.get("attributes")):
        value = one.get("value")
        if isinstance(value, dict) and isinstance(one.get("key"), str):
            found[one["key"]] = value.get("stringValue")
    return found


def _dicts(items: Any) -> Iterator[dict[str, Any]]:
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict):
            yield item


DECISION = "assay.tool.decision"

Sdk = Literal["stream-json", "hooks", "otel"]
