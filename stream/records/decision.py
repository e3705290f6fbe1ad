"""DecisionEvents: what a recorder saw of an agent run from outside, as the contract has it.

The contract is open: a reader takes further fields. `event_type` is ours; the name of an event
also stands, in brackets, at the beginning of `agent_action.action_summary`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

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
#: the nine, in their order; the seventh has two forms
ORDER: tuple[tuple[EventName, ...], ...] = (
    ("run_started",),
    ("workspace_prepared",),
    ("agent_invoked",),
    ("agent_completed",),
    ("artifacts_captured",),
    ("fs_diff_captured",),
    ("commands_observed", "commands_observation_unavailable"),
    ("evaluation_performed",),
    ("run_finished",),
)

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


class Session(Struct):
    session_id: str
    run_id: str
    agent_id: str
    agent_version: str
    environment: Environment


class Constraint(Struct):
    id: str
    type: ConstraintType
    rule: str


class Request(Struct):
    request_id: str
    user_request_raw: str
    constraints: list[Constraint]
    context: dict[str, Any]


class PromptProvenance(Struct):
    provider: str
    model: str
    capture_mode: CaptureMode
    prompt_bundle: None
    prompt_bundle_hash: Literal["unknown"]
    parameters: dict[str, Any]


class ModelOutput(Struct):
    completion_id: str | None
    output_raw: str | None
    output_structured: dict[str, Any] | None
    tool_calls: list[Any]
    usage: dict[str, Any]


class Artifact(Struct):
    type: str
    id: str
    summary: str
    content_ref: str | None
    hash: str
    metadata: dict[str, Any]


class AgentAction(Struct):
    action_type: ActionType
    action_summary: str
    artifacts: list[Artifact]
    tool_results: list[Any]


class Violation(Struct):
    id: str
    severity: Literal["warn", "fail"]
    message: str
    evidence: str


class Check(Struct):
    id: str
    status: Status
    evidence: str


class Alignment(Struct):
    status: Status
    score: int | float | None
    violations: list[Violation]
    checks: list[Check] = []  #: beyond the contract: what a pass rests on


class Checked(Struct):
    """The quality and the policy of a run."""

    status: Status
    checks: list[Check]
    score: int | float | None = None


class Evaluation(Struct):
    alignment: Alignment
    quality: Checked
    policy: Checked


class DecisionEvent(Struct, kw_only=True):
    schema_version: str
    event_type: EventName
    event_id: str
    timestamp: str
    trace_id: str
    span_id: str
    parent_span_id: str | None
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
