"""The shape of a DecisionEvent, which is that of its types in `records.decision`.

From those types follow the rules that every field has, and what a value breaks that does not have
its type. What cannot be used then is None in the event, or UNSET where null means something: both
are false.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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

from stream.errors import shorten_text
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
)

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
_OF_ONE_RULE = (ModelParameters, ModelUsage)  #: all fields have that of the field that holds them


def read_event_shape(value: dict[str, Any]) -> tuple[DecisionEvent, list[Fault]]:
    """Make an event of a JSON object as far as its values have their types, and find what has
    not."""
    faults: list[Fault] = []
    return cast("DecisionEvent", _read_event_value(_event_type(), value, "", "$", faults)), faults


def shape_rules() -> Iterator[tuple[str, str]]:
    """Yield the rule of each field of an event, and the words for what it has to be."""
    return _field_rules_below(_event_type(), "")


def quoted(value: Any) -> str:
    """Write a value as a message quotes it."""
    return shorten_text(msgspec.json.encode(value).decode(), 60)


def _field_rules_below(kind: Type, rule: str) -> Iterator[tuple[str, str]]:
    """Yield the rule of each field below a type of a DecisionEvent, and what it expects."""
    only, _ = _parted_from_null(kind)
    if isinstance(only, ListType):
        only, _ = _parted_from_null(only.item_type)
    if isinstance(only, StructType) and only.cls not in _OF_ONE_RULE:
        for field in only.fields:
            field_rule = _rule_of_field(only, rule, field.name)
            yield field_rule, _expected_words(field.type)
            yield from _field_rules_below(field.type, field_rule)


def _rule_of_field(kind: StructType, rule: str, name: str) -> str:
    """Return the rule of a field of a struct, where `rule` is that of the struct itself."""
    if kind.cls in _OF_ONE_RULE:
        return rule
    return _RULES.get(name, _STEMS.get(kind.cls, f"{rule}.") + name)


@cache
def _event_type() -> Type:
    return type_info(DecisionEvent)


def _read_event_value(kind: Type, value: Any, rule: str, path: str, faults: list[Fault]) -> Any:
    """Give what of a value is of its type, and find what is not."""
    only, is_nullable = _parted_from_null(kind)
    if value is None and is_nullable:
        return None
    if value is None:
        message = f"null does not say that something is unknown; expected {_expected_words(kind)}"
        faults.append(Fault(message, path, "unknown.null"))
    elif not _type_accepts(only, value):
        faults.append(Fault(f"expected {_expected_words(kind)}, got {quoted(value)}", path, rule))
    elif value == "" and isinstance(only, StrType) and only.min_length:
        message = 'is empty; what is not known is "unknown"'
        faults.append(Fault(message, path, "unknown.empty"))
    elif isinstance(only, StructType):
        return _read_event_members(only, value, rule, path, faults)
    elif isinstance(only, ListType):
        return [
            _read_event_value(only.item_type, item, rule, f"{path}[{index}]", faults)
            for index, item in enumerate(value)
        ]
    else:
        return value
    return _empty_event_value(kind)


def _read_event_members(
    kind: StructType, value: dict[str, Any], rule: str, path: str, faults: list[Fault]
) -> Any:
    """Make a struct of a DecisionEvent from a JSON object, and find what its fields break."""
    found = {}
    for field in kind.fields:
        name = field.name
        field_rule = _rule_of_field(kind, rule, name)
        if name in value:
            found[name] = _read_event_value(
                field.type, value[name], field_rule, f"{path}.{name}", faults
            )
        elif field.required:
            faults.append(
                Fault(
                    f"is missing; expected {_expected_words(field.type)}",
                    f"{path}.{name}",
                    field_rule,
                )
            )
            found[name] = _empty_event_value(field.type)
    return kind.cls(**found)


def _parted_from_null(kind: Type) -> tuple[Type, bool]:
    """Part a type from the null that may stand in its place."""
    options = kind.types if isinstance(kind, UnionType) else (kind,)
    return options[0], isinstance(options[-1], NoneType)


def _type_accepts(kind: Type, value: Any) -> bool:
    """Return whether a JSON value has the type of a field of a DecisionEvent."""
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


def _expected_words(kind: Type) -> str:
    """Say what is expected where a type stands."""
    only, is_nullable = _parted_from_null(kind)
    match only:
        case NoneType():
            return "null"
        case StructType() | DictType():
            text = "an object"
        case ListType(max_length=most):
            text = "an array of objects" if most is None else "[]"
        case LiteralType(values=words):
            text = f"one of {', '.join(map(str, words))}" if len(words) > 1 else f'"{words[0]}"'
        case StrType(pattern=form):
            text = "a time" if form == TIME else "a string"
        case _:
            text = "a number"
    return f"{text} or null" if is_nullable else text


def _empty_event_value(kind: Type) -> Any:
    """Give what stands in an event where a value cannot be used: it is false, or holds nothing."""
    only, is_nullable = _parted_from_null(kind)
    match only:
        case StructType(fields=fields):
            return only.cls(
                **{one.name: _empty_event_value(one.type) for one in fields if one.required}
            )
        case ListType():
            return []
        case DictType():
            return {}
    return UNSET if is_nullable else None
