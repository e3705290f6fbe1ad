"""The slow way: every rule about one event, and what breaks it where.

What the table of fields cannot say is a function here. It is asked only about events that
are not faultless.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import msgspec
from msgspec import UNSET

from stream.errors import visible
from stream.records import decision
from stream.records.decision import CLAUDE_CODE, CONSTRAINTS
from stream.records.run import Profile
from stream.stages.course import CONSTANT, PARTS, Facts, Fault, Reference, lost_of
from stream.stages.fields import is_like_time, shape_faults, shown
from stream.stages.reasoning import find_reasoning
from stream.stages.rules import (
    JUDGED,
    MOST_EVIDENCE,
    SLOTS,
    SOURCES,
    TELLING,
    contradiction,
    find_prompt,
    find_source,
    find_told,
    prefix_of,
)


def faults_of(event: dict[str, Any], profile: Profile) -> list[Fault]:
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
        faults.append(Fault("session.agent_id", message, "$.session.agent_id"))
    if isinstance(completion := _at(event, "model_output", "completion_id"), str):
        message = f"expected null, got {shown(completion)}: it is not visible from outside"
        faults.append(
            Fault("model_output.completion_id.null", message, "$.model_output.completion_id")
        )
    return faults


def facts_of(event: dict[str, Any]) -> Facts:
    """What there is to hold against the other events of the run."""
    parent = event.get("parent_span_id", UNSET)
    return Facts(
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


def _told_faults(event: dict[str, Any]) -> Iterator[Fault]:
    """What the summary says of the evaluation, for people, against the evaluation."""
    summary = _at(event, "agent_action", "action_summary")
    if name_of(event) not in TELLING or not isinstance(summary, str):
        return
    for part, told in find_told(summary):
        status = _at(event, "evaluation", part, "status")
        if isinstance(status, str) and told != status:
            message = f"tells {part} {told}, but its status is {shown(status)}"
            yield Fault("evaluation.told", message, "$.agent_action.action_summary")


def _prompt_faults(event: dict[str, Any]) -> Iterator[Fault]:
    if (path := find_prompt(event)) and path not in _BUNDLES:
        yield Fault("prompt.visible", "claims to see what nobody can see from outside", path)


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


def _name_faults(event: dict[str, Any]) -> Iterator[Fault]:
    kind = event.get("event_type")
    summary = _at(event, "agent_action", "action_summary")
    prefix = prefix_of(summary) if isinstance(summary, str) else None
    at = "$.agent_action.action_summary"
    if isinstance(kind, str) and kind not in SLOTS:
        yield Fault("event.name", f"{shown(kind)} is none of the events", "$.event_type")
    elif isinstance(kind, str) and prefix is not None and prefix != kind:
        message = f"begins with [{visible(prefix)[:60]}], but event_type is {shown(kind)}"
        yield Fault("event.names_agree", message, at)
    elif "event_type" not in event and isinstance(summary, str) and prefix not in SLOTS:
        message = "no event_type, and action_summary does not begin with the [name] of an event"
        yield Fault("event.name", message, at)
    name = _usable(_at(event, "session", "agent_id")) or ""
    if isinstance(summary, str) and (found := find_reasoning(summary, name)):
        message = f"{shown(found)} tells what nobody can see from outside"
        yield Fault("action_summary.reasoning", message, at)


def _time_faults(event: dict[str, Any]) -> Iterator[Fault]:
    value = event.get("timestamp")
    at, reason = time_of(value)
    if at is None and is_like_time(value):
        yield Fault("timestamp", f"{shown(value)} is no time", "$.timestamp")
    elif at is not None and reason:
        yield Fault("timestamp.rfc3339", f"{shown(value)} {reason}", "$.timestamp")


def _constraint_faults(event: dict[str, Any]) -> Iterator[Fault]:
    constraints = _at(event, "request", "constraints")
    for index, item in enumerate(constraints if isinstance(constraints, list) else ()):
        name = item.get("id") if isinstance(item, dict) else None
        known = CONSTRAINTS.get(name) if isinstance(name, str) else None
        if known and item.get("type") in _TYPES and item["type"] != known.type:
            message = f"expected {known.type!r} for {name}, got {shown(item['type'])}"
            path = f"$.request.constraints[{index}].type"
            yield Fault("constraint.canonical", message, path)


_STATUSES = list(get_args(decision.Status))
_TYPES = list(get_args(decision.ConstraintType))  # a list: what stands there may not be hashable


def _evaluation_faults(event: dict[str, Any]) -> Iterator[Fault]:
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
            yield Fault("evaluation.contradiction", message, f"{path}.status")
        if _is_judged(part) and not _is_founded(part, event):
            message = f"{part['status']!r} without evidence of what it rests on"
            yield Fault("evaluation.outcome", message, f"{path}.status")


def _evidence_faults(item: dict[str, Any], judged: bool, path: str) -> Iterator[Fault]:
    evidence = item.get("evidence")
    if not isinstance(evidence, str):
        return
    if len(evidence) > MOST_EVIDENCE:
        message = f"has {len(evidence)} characters, more than {MOST_EVIDENCE}: give its hash"
        yield Fault("evidence.bounded", message, path)
    if judged and not evidence.strip():
        yield Fault("evidence.given", "is empty, but something was judged by it", path)
    elif judged and not find_source(evidence):
        message = f"{shown(evidence)} does not name its source: stdout, stderr, diff, …"
        yield Fault("evidence.source", message, path)


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
