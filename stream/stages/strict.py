"""The fast way: an event that keeps every rule about itself, in one decode and a few looks.

It accepts exactly what `shape` finds no fault with, and knows nothing to say about the rest.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from stream.codec import DECODE_ERRORS
from stream.records.decision import (
    CLAUDE_CODE,
    CONSTRAINTS,
    ActionType,
    CaptureMode,
    ConstraintType,
    Environment,
    EventName,
    Status,
)
from stream.records.run import Profile
from stream.stages.course import Facts, Reference
from stream.stages.reasoning import find_reasoning
from stream.stages.rules import MOST_EVIDENCE, SLOTS, SOURCE, SOURCES, prefix_of

Name: TypeAlias = Annotated[str, Meta(min_length=1)]
Evidence: TypeAlias = Annotated[str, Meta(max_length=MOST_EVIDENCE, pattern=SOURCE)]
Number: TypeAlias = int | float | None
Nothing: TypeAlias = Annotated[list[Any], Meta(max_length=0)]


class _Open(Struct, gc=False):
    """An object of which nothing is asked."""


class _Session(Struct, gc=False):
    session_id: Name
    run_id: Name
    agent_id: Name
    agent_version: Name
    environment: Environment


class _Constraint(Struct, gc=False):
    id: Name
    type: ConstraintType
    rule: str


class _Request(Struct, gc=False):
    request_id: Name
    user_request_raw: str
    constraints: list[_Constraint]
    context: _Open


class _Parameters(Struct, gc=False):
    temperature: Number = None
    top_p: Number = None
    max_tokens: Number = None


class _Provenance(Struct, gc=False):
    provider: Name
    model: Name
    capture_mode: CaptureMode
    prompt_bundle: None
    prompt_bundle_hash: Literal["unknown"]
    parameters: _Parameters


class _Usage(Struct, gc=False):
    input_tokens: Number = None
    output_tokens: Number = None
    latency_ms: Number = None


class _Output(Struct, gc=False):
    completion_id: None
    output_raw: str | None
    output_structured: _Open | None
    tool_calls: Nothing
    usage: _Usage


class _Metadata(Struct, gc=False):
    lost_bytes: Any = 0


class _Artifact(Struct, gc=False):
    type: Name
    id: Name
    summary: str
    content_ref: str | None
    hash: Name
    metadata: _Metadata


class _Action(Struct, gc=False):
    action_type: ActionType
    action_summary: str
    artifacts: list[_Artifact]
    tool_results: Nothing


class _Violation(Struct, gc=False):
    id: Name
    severity: Literal["warn", "fail"]
    message: str
    evidence: Evidence


# One for each status: what an evidence must be depends on it, and a tag costs no second look.
class _Unjudged(Struct, gc=False, tag_field="status", tag="unknown"):
    id: Name
    evidence: Annotated[str, Meta(max_length=MOST_EVIDENCE)]


class _Passed(Struct, gc=False, tag_field="status", tag="pass"):
    id: Name
    evidence: Evidence


class _Warned(Struct, gc=False, tag_field="status", tag="warn"):
    id: Name
    evidence: Evidence


class _Failed(Struct, gc=False, tag_field="status", tag="fail"):
    id: Name
    evidence: Evidence


_Check: TypeAlias = _Unjudged | _Passed | _Warned | _Failed


class _Alignment(Struct, gc=False):
    status: Status
    score: Number
    violations: list[_Violation]
    checks: list[_Check] = []


class _Checked(Struct, gc=False):
    status: Status
    checks: list[_Check]
    violations: list[_Violation] = []
    score: Number = None


class _Evaluation(Struct, gc=False):
    alignment: _Alignment
    quality: _Checked
    policy: _Checked


class _Event(Struct, gc=False):
    schema_version: str
    event_id: Name
    timestamp: Annotated[datetime, Meta(tz=True)]
    trace_id: Name
    span_id: Name
    parent_span_id: Name | None
    observability_mode: Literal["black_box"]
    session: _Session
    request: _Request
    prompt_provenance: _Provenance
    model_output: _Output
    agent_action: _Action
    evaluation: _Evaluation
    event_type: EventName | UnsetType = UNSET


_decode = msgspec.json.Decoder(_Event).decode
_CANONICAL = {constraint.id: constraint.type for constraint in CONSTRAINTS.values()}


def decode_good(line: bytes, profile: Profile) -> Facts | None:
    """What a faultless event says; None where the line is anything else."""
    try:
        event = _decode(line)
        if not line.isascii():
            line.decode()  # msgspec does not look into the strings that it skips
    except DECODE_ERRORS:
        return None
    session, action, at = event.session, event.agent_action, event.timestamp
    if at.tzinfo is not UTC or (profile == "poc" and session.agent_id != CLAUDE_CODE):
        return None
    summary = action.action_summary
    name = prefix_of(summary)
    if event.event_type is not UNSET:
        if name is not None and name != event.event_type:
            return None
        name = event.event_type
    if name not in SLOTS or find_reasoning(summary, session.agent_id):
        return None
    for constraint in event.request.constraints:
        if _CANONICAL.get(constraint.id, constraint.type) != constraint.type:
            return None
    references = []
    for item in action.artifacts:
        lost = item.metadata.lost_bytes
        known = lost if type(lost) is int and lost > 0 else 0
        references.append(Reference(item.type, item.id, item.content_ref, known))
    evaluation = event.evaluation
    for part in (evaluation.alignment, evaluation.quality, evaluation.policy):
        if part.status != "unknown" and not _is_founded(part, references):
            return None
    return Facts(
        name,
        event.event_id,
        at,
        event.trace_id,
        event.span_id,
        event.parent_span_id,
        session.run_id,
        references,
    )


def _is_founded(part: _Alignment | _Checked, references: list[Reference]) -> bool:
    if part.violations or any(type(check) is not _Unjudged for check in part.checks):
        return True
    return any(reference.type in SOURCES for reference in references)
