"""One line as a DecisionEvent, and every rule that it breaks by itself.

The shape of an event is that of its types in `records.decision`. A line is decoded with them;
where that fails, it is read once more, member by member, to say which rule it breaks where. What
cannot be used then is None in the event, or UNSET where null means something: both are false.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, cast

import msgspec
from msgspec import UNSET
from msgspec.inspect import (
    DictType,
    IntType,
    ListType,
    LiteralType,
    NoneType,
    StrType,
    StructType,
    Type,
    UnionType,
    type_info,
)

from stream.codec import DECODE_ERRORS, repeated_key
from stream.records.control import Fault
from stream.records.decision import (
    TIME,
    Alignment,
    Artifact,
    Check,
    Checked,
    Constraint,
    DecisionEvent,
    ModelParameters,
    ModelUsage,
    Violation,
    is_event,
)
from stream.records.run import Profile
from stream.transformers.event_rules import check_event, quote


def read_event(line: bytes, profile: Profile) -> tuple[DecisionEvent, list[Fault]] | None:
    """Read an event and find what it breaks by itself; give None for a line of something else.

    Raises one of DECODE_ERRORS where the line is no JSON object.
    """
    event: DecisionEvent | None
    try:
        event = _decode(line)
        _encode_into(event, _again)
    except DECODE_ERRORS:
        event = None
    # What comes out as it went in has no key twice, and no other field.
    if event is not None and _again == line:
        return event, check_event(event, profile)
    line.decode()  # msgspec does not look into the strings that it skips
    value = _decode_object(line)
    if not is_event(value):
        return None
    repeated = repeated_key(line)
    faults = [repeated._replace(rule="line.duplicate_key")] if repeated else []
    if event is None:
        event = cast("DecisionEvent", _read(_event_type(), value, "", "$", faults))
    return event, faults + check_event(event, profile, value)


def event_in(line: bytes) -> dict[str, Any] | None:
    """Give the JSON object of an event, whatever is wrong with it; None for anything else."""
    try:
        value = _decode_object(line)
    except DECODE_ERRORS:
        return None
    return value if is_event(value) else None


_decode = msgspec.json.Decoder(DecisionEvent).decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_encode_into = msgspec.json.Encoder().encode_into
_again = bytearray()

# --- what is wrong with the shape of an event ----------------------------------------------------

_RULES = {"event_type": "event.name"}
#: how the rules of a struct begin, where that is not the rule of the field that holds it
_STEMS = {
    DecisionEvent: "",
    Constraint: "constraint.",
    Artifact: "artifact.",
    Alignment: "evaluation.",
    Checked: "evaluation.",
    Violation: "violation.",
    Check: "check.",
}


@cache
def _event_type() -> Type:
    return type_info(DecisionEvent)


def _read(kind: Type, value: Any, rule: str, path: str, faults: list[Fault]) -> Any:
    """Give what of a value is of its type, and find what is not."""
    only, is_nullable = _parted(kind)
    if value is None and is_nullable:
        return None
    if value is None:
        message = f"null does not say that something is unknown; expected {_words(kind)}"
        faults.append(Fault(message, path, "unknown.null"))
    elif not _accepts(only, value):
        faults.append(Fault(f"expected {_words(kind)}, got {quote(value)}", path, rule))
    elif value == "" and isinstance(only, StrType) and only.min_length:
        message = 'is empty; what is not known is "unknown"'
        faults.append(Fault(message, path, "unknown.empty"))
    elif isinstance(only, StructType):
        return _read_members(only, value, rule, path, faults)
    elif isinstance(only, ListType):
        return [
            _read(only.item_type, item, rule, f"{path}[{index}]", faults)
            for index, item in enumerate(value)
        ]
    else:
        return value
    return _nothing(kind)


def _read_members(
    kind: StructType, value: dict[str, Any], rule: str, path: str, faults: list[Fault]
) -> Any:
    found = {}
    for field in kind.fields:
        name = field.name
        own = _RULES.get(name, _STEMS.get(kind.cls, f"{rule}.") + name)
        if kind.cls in (ModelParameters, ModelUsage):
            own = rule
        if name in value:
            found[name] = _read(field.type, value[name], own, f"{path}.{name}", faults)
        elif field.required:
            faults.append(
                Fault(f"is missing; expected {_words(field.type)}", f"{path}.{name}", own)
            )
            found[name] = _nothing(field.type)
    return kind.cls(**found)


def _parted(kind: Type) -> tuple[Type, bool]:
    """Part a type from the null that may stand in its place."""
    options = kind.types if isinstance(kind, UnionType) else (kind,)
    return options[0], isinstance(options[-1], NoneType)


def _accepts(kind: Type, value: Any) -> bool:
    match kind:
        case StructType() | DictType():
            return isinstance(value, dict)
        case ListType(max_length=most):
            return isinstance(value, list) and (most is None or len(value) <= most)
        case LiteralType(values=words):
            return isinstance(value, str) and value in words
        case StrType(pattern=form):
            return isinstance(value, str) and bool(re.search(form or "", value))
        case IntType():  # and, in an event, whatever is a number
            return isinstance(value, int | float) and not isinstance(value, bool)
    return False


def _words(kind: Type) -> str:
    """Say what is expected where a type stands."""
    only, is_nullable = _parted(kind)
    match only:
        case NoneType():
            return "null"
        case StructType() | DictType():
            text = "an object"
        case ListType(max_length=most):
            text = "an array" if most is None else "[]"
        case LiteralType(values=words):
            text = f"one of {', '.join(map(str, words))}" if len(words) > 1 else f'"{words[0]}"'
        case StrType(pattern=form):
            text = "a time" if form == TIME else "a string"
        case _:
            text = "a number"
    return f"{text} or null" if is_nullable else text


def _nothing(kind: Type) -> Any:
    """Give what stands in an event where a value cannot be used: it is false, or holds nothing."""
    only, is_nullable = _parted(kind)
    match only:
        case StructType(fields=fields):
            return only.cls(**{one.name: _nothing(one.type) for one in fields if one.required})
        case ListType():
            return []
        case DictType():
            return {}
    return UNSET if is_nullable else None
