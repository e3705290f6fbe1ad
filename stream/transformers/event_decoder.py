"""The fast way: an event that keeps every rule about itself, in one decode and a few looks.

It accepts exactly what `shape` finds no fault with, and knows nothing to say about the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from stream.codec import DECODE_ERRORS
from stream.documents import repeated_key
from stream.records.decision import (
    CLAUDE_CODE,
    CONSTRAINTS,
    SLOTS,
    ActionType,
    CaptureMode,
    ConstraintType,
    Environment,
    EventName,
    Status,
)
from stream.records.run import Profile
from stream.transformers.event_rules import (
    MOST_EVIDENCE,
    PARTS,
    SOURCE,
    SOURCES,
    TELLING,
    EventKey,
    Reference,
    contradiction,
    find_prompt,
    find_told,
    lost_of,
    prefix_of,
)
from stream.transformers.reasoning import find_reasoning

Name: TypeAlias = Annotated[str, Meta(min_length=1)]
Evidence: TypeAlias = Annotated[str, Meta(max_length=MOST_EVIDENCE, pattern=SOURCE)]
Number: TypeAlias = int | float | None
Nothing: TypeAlias = Annotated[list[Any], Meta(max_length=0)]


class _StrictSession(Struct, gc=False):
    session_id: Name
    run_id: Name
    agent_id: Name
    agent_version: Name
    environment: Environment


class _StrictConstraint(Struct, gc=False):
    id: Name
    type: ConstraintType
    rule: str


class _StrictRequest(Struct, gc=False):
    request_id: Name
    user_request_raw: str
    constraints: list[_StrictConstraint]
    context: dict[str, Any]


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


class _StrictOutput(Struct, gc=False):
    completion_id: None
    output_raw: Literal["captured_as_artifact"] | None
    output_structured: dict[str, Any] | None
    tool_calls: Nothing
    usage: _Usage


class _StrictArtifact(Struct, gc=False):
    type: Name
    id: Name
    summary: str
    content_ref: str | None
    hash: Name
    metadata: dict[str, Any]


class _StrictAction(Struct, gc=False):
    action_type: ActionType
    action_summary: str
    artifacts: list[_StrictArtifact]
    tool_results: Nothing


class _StrictViolation(Struct, gc=False):
    id: Name
    severity: Literal["warn", "fail"]
    message: str
    evidence: Evidence


# One for each status: what an evidence must be depends on it, and a tag costs no second look.
class _StrictUnjudged(Struct, gc=False, tag_field="status", tag="unknown"):
    id: Name
    evidence: Annotated[str, Meta(max_length=MOST_EVIDENCE)]


class _StrictPassed(Struct, gc=False, tag_field="status", tag="pass"):
    id: Name
    evidence: Evidence


class _StrictWarned(Struct, gc=False, tag_field="status", tag="warn"):
    id: Name
    evidence: Evidence


class _StrictFailed(Struct, gc=False, tag_field="status", tag="fail"):
    id: Name
    evidence: Evidence


_Check: TypeAlias = _StrictUnjudged | _StrictPassed | _StrictWarned | _StrictFailed


class _StrictAlignment(Struct, gc=False):
    status: Status
    score: Number
    violations: list[_StrictViolation]
    checks: list[_Check] = []


class _StrictChecked(Struct, gc=False):
    status: Status
    checks: list[_Check]
    violations: list[_StrictViolation] = []
    score: Number = None


class _StrictEvaluation(Struct, gc=False):
    alignment: _StrictAlignment
    quality: _StrictChecked
    policy: _StrictChecked


class _StrictEvent(Struct, gc=False, kw_only=True):
    """In the order of the recorder's own. What many events have alike is looked at once."""

    schema_version: str
    event_type: EventName | UnsetType = UNSET
    event_id: Name
    timestamp: Annotated[datetime, Meta(tz=True)]
    trace_id: Name
    span_id: Name
    parent_span_id: Name | None
    observability_mode: Literal["black_box"]
    session: Raw
    request: Raw
    prompt_provenance: Raw
    model_output: Raw
    agent_action: _StrictAction
    evaluation: Raw


Part = TypeVar("Part")
Meaning = TypeVar("Meaning")


class _Section(Generic[Part, Meaning]):
    """What a section says; None where anything is wrong with it. Most events of a run have the
    same, and README promises a rate that is not reached where each is read anew."""

    def __init__(
        self, kind: type[Part], judge: Callable[[Part], Meaning | None], *, is_asked: bool = False
    ) -> None:
        self._is_asked = is_asked  #: by the user: everybody saw it
        self._decode = msgspec.json.Decoder(kind).decode
        self._judge = judge
        self._known: dict[bytes, Meaning | None] = {}
        #: the one before, and what it says: to compare is quicker than to look up
        self.last: tuple[bytes, Meaning | None] = (b"", None)

    def look_up(self, data: bytes) -> Meaning | None:
        meaning = self._known[data] if data in self._known else self._learn(data)
        self.last = data, meaning
        return meaning

    def _learn(self, data: bytes) -> Meaning | None:
        """Raises one of DECODE_ERRORS."""
        part = self._decode(data)
        meaning = self._judge(part)
        # What comes out as it went in has no key twice, and no other field.
        if _encode(part) != data and (
            repeated_key(data) or not (self._is_asked or find_prompt(_decode_any(data), "") is None)
        ):
            meaning = None
        if len(self._known) == _MOST_KNOWN:
            self._known.clear()
        if len(data) <= _LONGEST_KNOWN:
            self._known[data] = meaning
        return meaning


def _output_of(output: _StrictOutput) -> bool | None:
    """Whether there is nothing wrong with it."""
    return None if find_prompt(output.output_structured, "") else True


def _request_of(request: _StrictRequest) -> bool | None:
    """Whether there is nothing wrong with it."""
    for constraint in request.constraints:
        if _CANONICAL.get(constraint.id, constraint.type) != constraint.type:
            return None
    return True


class _Known(Struct, gc=False):
    """What the events of a run share."""

    run_id: str
    agent_id: str
    constant: tuple[str, ...]


def _session_of(session: _StrictSession) -> _Known:
    one = session
    constant = (one.session_id, one.agent_id, one.agent_version, one.environment)
    return _Known(one.run_id, one.agent_id, constant)


class _Judged(Struct, gc=False):
    statuses: tuple[str, ...]
    needs_artifact: bool  #: that something rests on, as nothing else is there


def _judged_of(evaluation: _StrictEvaluation) -> _Judged | None:
    needs_artifact = False
    parts = (evaluation.alignment, evaluation.quality, evaluation.policy)
    for part in parts:
        below = {_STATUS_OF[type(check)] for check in part.checks} - {"unknown"}
        below |= {violation.severity for violation in part.violations}
        if contradiction(part.status, below):
            return None
        needs_artifact |= part.status != "unknown" and not below
    return _Judged(tuple(part.status for part in parts), needs_artifact)


_STATUS_OF = {
    _StrictUnjudged: "unknown",
    _StrictPassed: "pass",
    _StrictWarned: "warn",
    _StrictFailed: "fail",
}
_CANONICAL = {constraint.id: constraint.type for constraint in CONSTRAINTS.values()}
_MOST_KNOWN, _LONGEST_KNOWN = 1000, 16 << 10
_decode = msgspec.json.Decoder(_StrictEvent).decode
_encode = msgspec.json.Encoder().encode
_encode_into = msgspec.json.Encoder().encode_into
_again = bytearray()
_decode_any = msgspec.json.Decoder().decode
_session = _Section(_StrictSession, _session_of)
_request = _Section(_StrictRequest, _request_of, is_asked=True)
_provenance = _Section(_Provenance, lambda provenance: provenance.capture_mode)
_output = _Section(_StrictOutput, _output_of)
_evaluation = _Section(_StrictEvaluation, _judged_of)


def decode_good(line: bytes, profile: Profile) -> EventKey | None:
    """What a faultless event says; None where the line is anything else."""
    try:
        event = _decode(line)
        if not line.isascii():
            line.decode()  # msgspec does not look into the strings that it skips
        last, session = _session.last
        if (data := bytes(event.session)) != last:
            session = _session.look_up(data)
        last, asked = _request.last
        if (data := bytes(event.request)) != last:
            asked = _request.look_up(data)
        last, capture_mode = _provenance.last
        if (data := bytes(event.prompt_provenance)) != last:
            capture_mode = _provenance.look_up(data)
        last, put_out = _output.last
        if (data := bytes(event.model_output)) != last:
            put_out = _output.look_up(data)
        last, judged = _evaluation.last
        if (data := bytes(event.evaluation)) != last:
            judged = _evaluation.look_up(data)
    except DECODE_ERRORS:
        return None
    if session is None or asked is None or capture_mode is None or put_out is None:
        return None
    if judged is None:
        return None
    action, at = event.agent_action, event.timestamp
    if at.tzinfo is not UTC or (profile == "poc" and session.agent_id != CLAUDE_CODE):
        return None
    # What comes out as it went in has no key twice, and no other field.
    _encode_into(event, _again)
    is_plain = _again == line
    if not is_plain and (repeated_key(line) or find_prompt(_decode_any(line))):
        return None
    summary = action.action_summary
    name = prefix_of(summary)
    if event.event_type is not UNSET:
        if name is not None and name != event.event_type:
            return None
        name = event.event_type
    if name not in SLOTS or find_reasoning(summary, session.agent_id):
        return None
    if name in TELLING:
        told = dict(zip(PARTS, judged.statuses, strict=True))
        if any(told[part] != status for part, status in find_told(summary)):
            return None
    references = []
    for item in action.artifacts:
        metadata = item.metadata
        if is_plain and metadata and find_prompt(metadata, ""):
            return None
        known = lost_of(metadata["lost_bytes"]) if "lost_bytes" in metadata else 0
        references.append(Reference(item.type, item.id, item.content_ref, known))
    if judged.needs_artifact and not any(one.type in SOURCES for one in references):
        return None
    return EventKey(
        name,
        event.event_id,
        at,
        event.trace_id,
        event.span_id,
        event.parent_span_id,
        session.run_id,
        (event.schema_version, capture_mode, *session.constant),
        judged.statuses,
        references,
    )
