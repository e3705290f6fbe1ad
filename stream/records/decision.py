"""DecisionEvents: what a recorder saw of an agent run from outside, as the contract has it.

The contract is open: a reader takes further fields. `event_type` is ours; the name of an event
also stands, in brackets, at the beginning of `agent_action.action_summary`. The recorder writes
these structs, and `check` reads them: their types are the shape of an event.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from stream.records.control import PATTERN_VERSION

SCHEMA_VERSION = "0.2"
CLAUDE_CODE = "claude-code"

EventName = Literal[
    "run_started",
    "workspace_prepared",
    "agent_invoked",
    "agent_completed",
    "artifacts_captured",
    "fs_diff_captured",
    "commands_observed",
    "commands_observation_unavailable",
    "evaluation_performed",
    "run_finished",
]
_NAMES: tuple[EventName, ...] = get_args(EventName)
#: the nine, in their order; the seventh has two forms
ORDER = (*((name,) for name in _NAMES[:6]), _NAMES[6:8], *((name,) for name in _NAMES[8:]))

Environment = Literal["local", "ci", "staging", "prod", "unknown"]
CaptureMode = Literal["full", "redacted", "hashed"]
ConstraintType = Literal["style", "safety", "format", "scope", "quality", "other"]
ActionType = Literal[
    "plan",
    "edit",
    "run_tests",
    "command",
    "open_pr",
    "merge",
    "deploy",
    "api_call",
    "message",
    "no_op",
    "other",
]
Status = Literal["pass", "warn", "fail", "unknown"]


Name = Annotated[str, Meta(min_length=1)]  #: what is not known is "unknown"
Number = int | float | None
Nothing = Annotated[list[Any], Meta(max_length=0)]
OutputRaw = Literal["captured_as_artifact"]
#: what stands where a time does: whether it is one, the calendar says
TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"


class Session(Struct, gc=False):
    """The agent that ran, where, and in which run."""

    session_id: Name
    run_id: Name
    agent_id: Name
    agent_version: Name
    environment: Environment


class Constraint(Struct, gc=False):
    """A constraint that the agent was given."""

    id: Name
    type: ConstraintType
    rule: str


class Request(Struct, gc=False):
    """The request that the agent was given."""

    request_id: Name
    user_request_raw: str
    constraints: list[Constraint]
    context: dict[str, Any]


class ModelParameters(Struct, gc=False):
    """The parameters of the model, as far as they were declared."""

    temperature: Number | UnsetType = UNSET
    top_p: Number | UnsetType = UNSET
    max_tokens: Number | UnsetType = UNSET


class PromptProvenance(Struct, gc=False):
    """The known facts about the model and its prompt, which nobody sees from outside."""

    provider: Name
    model: Name
    capture_mode: CaptureMode
    prompt_bundle: None
    prompt_bundle_hash: Literal["unknown"]
    parameters: ModelParameters


class ModelUsage(Struct, gc=False):
    """The tokens that the model used, as far as they were declared."""

    input_tokens: Number | UnsetType = UNSET
    output_tokens: Number | UnsetType = UNSET
    latency_ms: Number | UnsetType = UNSET


class ModelOutput(Struct, gc=False):
    """The output of the model, as far as it is visible from outside."""

    completion_id: str | None
    output_raw: OutputRaw | None
    output_structured: dict[str, Any] | None
    tool_calls: Nothing
    usage: ModelUsage


class Artifact(Struct, gc=False):
    """A file of the run, or facts that stand in the event itself."""

    type: Name
    id: Name
    summary: str
    content_ref: str | None
    hash: Name
    metadata: dict[str, Any]


class AgentAction(Struct, gc=False):
    """An action of the agent, and the artifacts that show it."""

    action_type: ActionType
    action_summary: str
    artifacts: list[Artifact]
    tool_results: Nothing


class Violation(Struct, gc=False):
    """A constraint that was broken."""

    id: Name
    severity: Literal["warn", "fail"]
    message: str
    evidence: str


class Check(Struct, gc=False):
    """The result of one check."""

    id: Name
    status: Status
    evidence: str


class Alignment(Struct, gc=False):
    """The alignment says whether the run kept what it was asked for."""

    status: Status
    score: Number
    violations: list[Violation]
    checks: list[Check] | UnsetType = UNSET  #: beyond the contract: what a pass rests on


class Checked(Struct, gc=False):
    """The quality or the policy of a run."""

    status: Status
    checks: list[Check]
    score: Number | UnsetType = UNSET
    violations: list[Violation] | UnsetType = UNSET


class Evaluation(Struct, gc=False):
    """The evaluation of a run: alignment, quality and policy."""

    alignment: Alignment
    quality: Checked
    policy: Checked


class DecisionEvent(Struct, kw_only=True, gc=False):
    """One event of an agent run; the published form does without `event_type`."""

    schema_version: str
    event_type: EventName | UnsetType = UNSET
    event_id: Name
    timestamp: Annotated[str, Meta(pattern=TIME)]
    trace_id: Name
    span_id: Name
    parent_span_id: Name | None
    observability_mode: Literal["black_box"]
    session: Session
    request: Request
    prompt_provenance: PromptProvenance
    model_output: ModelOutput
    agent_action: AgentAction
    evaluation: Evaluation


CONSTRAINTS: dict[str, Constraint] = {
    constraint.id: constraint
    for constraint in (
        Constraint(
            "output.json_only", "format", "What the agent answers is JSON and nothing else."
        ),
        Constraint(
            "style.no_emojis", "style", "Neither the answer nor an added line has an emoji."
        ),
        Constraint("scope.no_ci_changes", "scope", "No file of a CI configuration is changed."),
        Constraint(
            "quality.tests_required", "quality", "A change of code comes with a change of tests."
        ),
    )
}

encode_event = msgspec.json.Encoder().encode

#: the name of an event -> its place among the nine
SLOTS: dict[str, int] = {name: slot for slot, names in enumerate(ORDER) for name in names}


PARTS = ("alignment", "quality", "policy")  #: of an evaluation


def is_event(value: dict[str, Any]) -> bool:
    """Tell whether an object is taken for a DecisionEvent, however broken it is."""
    if isinstance(value.get("schema"), str) or value.get("schema_version") == PATTERN_VERSION:
        return False
    if "observability_mode" in value:
        return True
    kind = value.get("event_type")
    if isinstance(kind, str) and kind in SLOTS:
        return True
    return "trace_id" in value and "span_id" in value and not value.keys().isdisjoint(_SECTIONS)


_SECTIONS = (
    *("session", "request", "prompt_provenance", "model_output", "agent_action", "evaluation"),
)
