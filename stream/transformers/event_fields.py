"""The fields of an event: one table of what is there, of which type, in which words.

It says what a JSON Schema can say, and says it with the rule that is broken.

The slow way: every rule about one event, and what breaks it where.

What the table of fields cannot say is a function here. It is asked only about events that
are not faultless."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

import msgspec
from msgspec import UNSET, Struct

from stream.errors import visible
from stream.records import decision
from stream.records.decision import CLAUDE_CODE, CONSTRAINTS, SLOTS
from stream.records.run import Profile
from stream.transformers.event_rules import (
    CONSTANT,
    JUDGED,
    MOST_EVIDENCE,
    PARTS,
    SOURCES,
    TELLING,
    TIME,
    EventKey,
    Reference,
    RuleFault,
    contradiction,
    find_prompt,
    find_source,
    find_told,
    lost_of,
    prefix_of,
)
from stream.transformers.reasoning import find_reasoning


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


def shape_faults(event: dict[str, Any]) -> Iterator[RuleFault]:
    """Fields that are not there, or have the wrong type or word. What a JSON Schema can say."""
    return _members(EVENT, event, "$")


def shown(value: Any) -> str:
    """A value as a message quotes it."""
    text = visible(msgspec.json.encode(value).decode())
    return text if len(text) <= 60 else f"{text[:59]}…"


def _members(fields: Mapping[str, Field], value: dict[str, Any], path: str) -> Iterator[RuleFault]:
    for name, field in fields.items():
        if name in value:
            yield from _value(field, value[name], f"{path}.{name}")
        elif not field.is_optional:
            yield RuleFault(field.rule, f"is missing; expected {field.what}", f"{path}.{name}")


def _value(field: Field, value: Any, path: str) -> Iterator[RuleFault]:
    if value is None:
        if not field.is_nullable:
            message = f"null does not say that something is unknown; expected {field.what}"
            yield RuleFault("unknown.null", message, path)
    elif not field.accepts(value):
        yield RuleFault(field.rule, f"expected {field.what}, got {shown(value)}", path)
    elif field.is_name and not value:
        yield RuleFault("unknown.empty", 'is empty; what is not known is "unknown"', path)
    else:
        if field.members:
            yield from _members(field.members, value, path)
        if field.items:
            for index, item in enumerate(value):
                yield from _value(field.items, item, f"{path}[{index}]")


def faults_of(event: dict[str, Any], profile: Profile) -> list[RuleFault]:
    """Every rule that the event breaks by itself."""
    faults = list(shape_faults(event))
    for judge in (
        *(_name_faults, _time_faults, _constraint_faults, _evaluation_faults),
        *(_told_faults, _prompt_faults),
    ):
        faults += judge(event)
    agent = _at(event, "session", "agent_id")
    if profile == "poc" and isinstance(agent, str) and agent and agent != CLAUDE_CODE:
        message = f'expected "{CLAUDE_CODE}", got {shown(agent)}: --profile agents takes others'
        faults.append(RuleFault("session.agent_id", message, "$.session.agent_id"))
    if isinstance(completion := _at(event, "model_output", "completion_id"), str):
        message = f"expected null, got {shown(completion)}: it is not visible from outside"
        faults.append(
            RuleFault("model_output.completion_id.null", message, "$.model_output.completion_id")
        )
    return faults


def facts_of(event: dict[str, Any]) -> EventKey:
    """What there is to hold against the other events of the run."""
    parent = event.get("parent_span_id", UNSET)
    return EventKey(
        name_of(event),
        _usable(event.get("event_id")),
        time_of(event.get("timestamp"))[0],
        _usable(event.get("trace_id")),
        _usable(event.get("span_id")),
        parent if parent is None or _usable(parent) else UNSET,
        _usable(_at(event, "session", "run_id")),
        tuple(_usable(_at(event, *path), _WORDS.get(path[-1])) for path in CONSTANT),
        tuple(_usable(_at(event, "evaluation", part, "status")) for part in PARTS),
        references_of(event),
    )


def name_of(event: dict[str, Any]) -> str | None:
    """The name of the event, by whatever of the two says it."""
    kind = event.get("event_type")
    summary = _at(event, "agent_action", "action_summary")
    prefix = prefix_of(summary) if isinstance(summary, str) else None
    for name in (kind, prefix):
        if isinstance(name, str) and name in SLOTS:
            return name
    return None


def references_of(event: dict[str, Any]) -> list[Reference]:
    found = []
    for item in _objects(_at(event, "agent_action", "artifacts")):
        kind, name, ref = item.get("type"), item.get("id"), item.get("content_ref")
        if isinstance(kind, str) and isinstance(name, str):
            lost = _at(item, "metadata", "lost_bytes")
            known = lost_of(lost)
            place = ref if isinstance(ref, str) else None
            found.append(Reference(kind, name, place, known))
    return found


def _told_faults(event: dict[str, Any]) -> Iterator[RuleFault]:
    """What the summary says of the evaluation, for people, against the evaluation."""
    summary = _at(event, "agent_action", "action_summary")
    if name_of(event) not in TELLING or not isinstance(summary, str):
        return
    for part, told in find_told(summary):
        status = _at(event, "evaluation", part, "status")
        if isinstance(status, str) and told != status:
            message = f"tells {part} {told}, but its status is {shown(status)}"
            yield RuleFault("evaluation.told", message, "$.agent_action.action_summary")


def _prompt_faults(event: dict[str, Any]) -> Iterator[RuleFault]:
    if (path := find_prompt(event)) and path not in _BUNDLES:
        yield RuleFault("prompt.visible", "claims to see what nobody can see from outside", path)


def time_of(value: Any) -> tuple[datetime | None, str]:
    """(the time, what is not as recommended): anything that Python takes for a time has one."""
    if not is_like_time(value):
        return None, ""
    try:
        at = msgspec.convert(value, datetime)
        reason = "" if at.tzinfo else "has no time zone"
    except msgspec.ValidationError:
        reason = "is not RFC 3339"
        try:
            at = datetime.fromisoformat(value)
        except ValueError:
            return None, ""
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    elif at.utcoffset() != timedelta(0):
        reason = reason or "is not in UTC"
    return at, reason


def _name_faults(event: dict[str, Any]) -> Iterator[RuleFault]:
    kind = event.get("event_type")
    summary = _at(event, "agent_action", "action_summary")
    prefix = prefix_of(summary) if isinstance(summary, str) else None
    at = "$.agent_action.action_summary"
    if isinstance(kind, str) and kind not in SLOTS:
        yield RuleFault("event.name", f"{shown(kind)} is none of the events", "$.event_type")
    elif isinstance(kind, str) and prefix is not None and prefix != kind:
        message = f"begins with [{visible(prefix)[:60]}], but event_type is {shown(kind)}"
        yield RuleFault("event.names_agree", message, at)
    elif "event_type" not in event and isinstance(summary, str) and prefix not in SLOTS:
        message = "no event_type, and action_summary does not begin with the [name] of an event"
        yield RuleFault("event.name", message, at)
    name = _usable(_at(event, "session", "agent_id")) or ""
    if isinstance(summary, str) and (found := find_reasoning(summary, name)):
        message = f"{shown(found)} tells what nobody can see from outside"
        yield RuleFault("action_summary.reasoning", message, at)


def _time_faults(event: dict[str, Any]) -> Iterator[RuleFault]:
    value = event.get("timestamp")
    at, reason = time_of(value)
    if at is None and is_like_time(value):
        yield RuleFault("timestamp", f"{shown(value)} is no time", "$.timestamp")
    elif at is not None and reason:
        yield RuleFault("timestamp.rfc3339", f"{shown(value)} {reason}", "$.timestamp")


def _constraint_faults(event: dict[str, Any]) -> Iterator[RuleFault]:
    constraints = _at(event, "request", "constraints")
    for index, item in enumerate(constraints if isinstance(constraints, list) else ()):
        name = item.get("id") if isinstance(item, dict) else None
        known = CONSTRAINTS.get(name) if isinstance(name, str) else None
        if known and item.get("type") in _TYPES and item["type"] != known.type:
            message = f"expected {known.type!r} for {name}, got {shown(item['type'])}"
            path = f"$.request.constraints[{index}].type"
            yield RuleFault("constraint.canonical", message, path)


_STATUSES = list(get_args(decision.Status))
_TYPES = list(get_args(decision.ConstraintType))  # a list: what stands there may not be hashable


def _evaluation_faults(event: dict[str, Any]) -> Iterator[RuleFault]:
    for name in PARTS:
        part = _at(event, "evaluation", name)
        if not isinstance(part, dict):
            continue
        path = f"$.evaluation.{name}"
        for kind in ("violations", "checks"):
            items = part.get(kind)
            for index, item in enumerate(items if isinstance(items, list) else ()):
                if isinstance(item, dict):
                    judged = kind == "violations" or _is_judged(item)
                    yield from _evidence_faults(item, judged, f"{path}.{kind}[{index}].evidence")
        severities = [item.get("severity") for item in _objects(part.get("violations"))]
        below = [one for one in severities if one in ("warn", "fail")]
        below += [item.get("status") for item in _objects(part.get("checks"))]
        status: Any = part.get("status")
        if status in _STATUSES and (worst := contradiction(status, below)):
            message = f"{status!r}, but the worst of its checks and violations is {worst!r}"
            yield RuleFault("evaluation.contradiction", message, f"{path}.status")
        if _is_judged(part) and not _is_founded(part, event):
            message = f"{part['status']!r} without evidence of what it rests on"
            yield RuleFault("evaluation.outcome", message, f"{path}.status")


def _evidence_faults(item: dict[str, Any], judged: bool, path: str) -> Iterator[RuleFault]:
    evidence = item.get("evidence")
    if not isinstance(evidence, str):
        return
    if len(evidence) > MOST_EVIDENCE:
        message = f"has {len(evidence)} characters, more than {MOST_EVIDENCE}: give its hash"
        yield RuleFault("evidence.bounded", message, path)
    if judged and not evidence.strip():
        yield RuleFault("evidence.given", "is empty, but something was judged by it", path)
    elif judged and not find_source(evidence):
        message = f"{shown(evidence)} does not name its source: stdout, stderr, diff, …"
        yield RuleFault("evidence.source", message, path)


def _is_judged(value: dict[str, Any]) -> bool:
    status = value.get("status")
    return isinstance(status, str) and status in JUDGED


def _is_founded(part: dict[str, Any], event: dict[str, Any]) -> bool:
    """What is wrong with an evidence that is there has been said already."""
    checks = _objects(part.get("checks"))
    if _objects(part.get("violations")) or any(item.get("status") != "unknown" for item in checks):
        return True
    return any(reference.type in SOURCES for reference in references_of(event))


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _at(value: Any, *path: str) -> Any:
    """What stands there, or None."""
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _usable(value: Any, words: tuple[str, ...] | None = None) -> str | None:
    is_usable = isinstance(value, str) and value and (words is None or value in words)
    return value if is_usable else None


#: have rules of their own
_BUNDLES = ("$.prompt_provenance.prompt_bundle", "$.prompt_provenance.prompt_bundle_hash")
_WORDS = {
    "environment": get_args(decision.Environment),
    "capture_mode": get_args(decision.CaptureMode),
}
