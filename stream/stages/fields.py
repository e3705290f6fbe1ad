"""The fields of an event: one table of what is there, of which type, in which words.

It says what a JSON Schema can say, and says it with the rule that is broken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct

from stream.errors import visible
from stream.records import decision
from stream.stages.course import Fault
from stream.stages.rules import TIME


class Field(Struct, frozen=True):
    """What may stand in a field. `rule` is the rule that it breaks where it does not."""

    rule: str
    what: str
    accepts: Callable[[Any], bool]
    is_nullable: bool = False
    is_optional: bool = False
    is_name: bool = False
    members: Mapping[str, Field] = {}
    items: Field | None = None


Fields = dict[str, Field]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_like_time(value: Any) -> bool:
    return isinstance(value, str) and bool(re.search(TIME, value))


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_array(value: Any) -> bool:
    return isinstance(value, list)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(rule: str, **how: Any) -> Field:
    return Field(rule, "a string", _is_text, **how)


def _name(rule: str, **how: Any) -> Field:
    return _text(rule, is_name=True, **how)


def _object(rule: str, members: Fields | None = None, **how: Any) -> Field:
    return Field(rule, "an object", _is_object, members=members or {}, **how)


def _array(rule: str, items: Fields, **how: Any) -> Field:
    return Field(rule, "an array", _is_array, items=_object(rule, items), **how)


def _number(rule: str, *, is_optional: bool = True) -> Field:
    return Field(rule, "a number or null", _is_number, is_nullable=True, is_optional=is_optional)


def _one_of(rule: str, kind: object, **how: Any) -> Field:
    words = get_args(kind)
    what = f"one of {', '.join(words)}" if len(words) > 1 else f'"{words[0]}"'
    return Field(rule, what, lambda value: isinstance(value, str) and value in words, **how)


def _empty(rule: str) -> Field:
    return Field(rule, "[]", lambda value: value == [])


_VIOLATION = {
    "id": _name("violation.id"),
    "severity": _one_of("violation.severity", Literal["warn", "fail"]),
    "message": _text("violation.message"),
    "evidence": _text("violation.evidence"),
}
_CHECK = {
    "id": _name("check.id"),
    "status": _one_of("check.status", decision.Status),
    "evidence": _text("check.evidence"),
}


def _part(rule: str, needed: str) -> Field:
    """alignment, quality or policy: each may have what another needs, in the same shape."""
    is_alignment = needed == "violations"
    return _object(
        rule,
        {
            "status": _one_of("evaluation.status", decision.Status),
            "score": _number("evaluation.score", is_optional=not is_alignment),
            "violations": _array("evaluation.violations", _VIOLATION, is_optional=not is_alignment),
            "checks": _array("evaluation.checks", _CHECK, is_optional=is_alignment),
        },
    )


def _numbers(rule: str, *names: str) -> Field:
    return _object(rule, {name: _number(rule) for name in names})


EVENT: Fields = {
    "schema_version": _text("schema_version"),
    "event_type": _text("event.name", is_optional=True),
    "event_id": _name("event_id"),
    "timestamp": Field("timestamp", "a time", is_like_time),
    "trace_id": _name("trace_id"),
    "span_id": _name("span_id"),
    "parent_span_id": _name("parent_span_id", is_nullable=True),
    "observability_mode": _one_of("observability_mode", Literal["black_box"]),
    "session": _object(
        "session",
        {
            "session_id": _name("session.session_id"),
            "run_id": _name("session.run_id"),
            "agent_id": _name("session.agent_id"),
            "agent_version": _name("session.agent_version"),
            "environment": _one_of("session.environment", decision.Environment),
        },
    ),
    "request": _object(
        "request",
        {
            "request_id": _name("request.request_id"),
            "user_request_raw": _text("request.user_request_raw"),
            "constraints": _array(
                "request.constraints",
                {
                    "id": _name("constraint.id"),
                    "type": _one_of("constraint.type", decision.ConstraintType),
                    "rule": _text("constraint.rule"),
                },
            ),
            "context": _object("request.context"),
        },
    ),
    "prompt_provenance": _object(
        "prompt_provenance",
        {
            "provider": _name("prompt_provenance.provider"),
            "model": _name("prompt_provenance.model"),
            "capture_mode": _one_of("prompt_provenance.capture_mode", decision.CaptureMode),
            "prompt_bundle": Field(
                "prompt_provenance.prompt_bundle", "null", lambda _: False, is_nullable=True
            ),
            "prompt_bundle_hash": _one_of(
                "prompt_provenance.prompt_bundle_hash", Literal["unknown"]
            ),
            "parameters": _numbers(
                "prompt_provenance.parameters", "temperature", "top_p", "max_tokens"
            ),
        },
    ),
    "model_output": _object(
        "model_output",
        {
            "completion_id": _text("model_output.completion_id", is_nullable=True),
            "output_raw": _one_of(
                "model_output.output_raw", Literal["captured_as_artifact"], is_nullable=True
            ),
            "output_structured": _object("model_output.output_structured", is_nullable=True),
            "tool_calls": _empty("model_output.tool_calls"),
            "usage": _numbers("model_output.usage", "input_tokens", "output_tokens", "latency_ms"),
        },
    ),
    "agent_action": _object(
        "agent_action",
        {
            "action_type": _one_of("agent_action.action_type", decision.ActionType),
            "action_summary": _text("agent_action.action_summary"),
            "artifacts": _array(
                "agent_action.artifacts",
                {
                    "type": _name("artifact.type"),
                    "id": _name("artifact.id"),
                    "summary": _text("artifact.summary"),
                    "content_ref": _text("artifact.content_ref", is_nullable=True),
                    "hash": _name("artifact.hash"),
                    "metadata": _object("artifact.metadata"),
                },
            ),
            "tool_results": _empty("agent_action.tool_results"),
        },
    ),
    "evaluation": _object(
        "evaluation",
        {
            "alignment": _part("evaluation.alignment", "violations"),
            "quality": _part("evaluation.quality", "checks"),
            "policy": _part("evaluation.policy", "checks"),
        },
    ),
}


def shape_faults(event: dict[str, Any]) -> Iterator[Fault]:
    """Fields that are not there, or have the wrong type or word. What a JSON Schema can say."""
    return _members(EVENT, event, "$")


def shown(value: Any) -> str:
    """A value as a message quotes it."""
    text = visible(msgspec.json.encode(value).decode())
    return text if len(text) <= 60 else f"{text[:59]}…"


def _members(fields: Mapping[str, Field], value: dict[str, Any], path: str) -> Iterator[Fault]:
    for name, field in fields.items():
        if name in value:
            yield from _value(field, value[name], f"{path}.{name}")
        elif not field.is_optional:
            yield Fault(field.rule, f"is missing; expected {field.what}", f"{path}.{name}")


def _value(field: Field, value: Any, path: str) -> Iterator[Fault]:
    if value is None:
        if not field.is_nullable:
            message = f"null does not say that something is unknown; expected {field.what}"
            yield Fault("unknown.null", message, path)
    elif not field.accepts(value):
        yield Fault(field.rule, f"expected {field.what}, got {shown(value)}", path)
    elif field.is_name and not value:
        yield Fault("unknown.empty", 'is empty; what is not known is "unknown"', path)
    else:
        if field.members:
            yield from _members(field.members, value, path)
        if field.items:
            for index, item in enumerate(value):
                yield from _value(field.items, item, f"{path}[{index}]")
