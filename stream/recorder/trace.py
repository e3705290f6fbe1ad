"""The events of one run, in their order, each written down before what it announces goes on.

Time comes from one clock that never steps back; the wall is looked at once, for the offset.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from stream.recorder.disclosure import digest
from stream.recorder.outputs import Kept
from stream.records.decision import (
    SCHEMA_VERSION,
    ActionType,
    AgentAction,
    Alignment,
    Artifact,
    Checked,
    DecisionEvent,
    Evaluation,
    EventName,
    ModelOutput,
    PromptProvenance,
    Request,
    Session,
    encode_event,
)

#: whose span an event is in; None is the root
_PARENT: dict[EventName, EventName | None] = {
    "run_started": None,
    "workspace_prepared": "run_started",
    "agent_invoked": "run_started",
    "agent_completed": "agent_invoked",
    "artifacts_captured": "agent_completed",
    "fs_diff_captured": "agent_completed",
    "commands_observed": "fs_diff_captured",
    "commands_observation_unavailable": "fs_diff_captured",
    "evaluation_performed": "commands_observed",
    "run_finished": "run_started",
}
_CENSORED = ("request", "agent_action", "evaluation")


class Clock(Struct, frozen=True):
    wall: int
    monotonic: int

    @classmethod
    def start(cls) -> Clock:
        return cls(time.time_ns(), time.monotonic_ns())

    def text(self, monotonic: int) -> str:
        """RFC 3339, in UTC, of a moment of the monotonic clock."""
        return utc(self.wall + monotonic - self.monotonic)


def utc(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds // 1000, 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:06}Z"


def not_evaluated() -> Evaluation:
    return Evaluation(
        Alignment("unknown", None, []), Checked("unknown", []), Checked("unknown", [])
    )


class Trace:
    def __init__(
        self,
        session: Session,
        request: Request,
        provenance: PromptProvenance,
        *,
        clock: Clock,
        write: Callable[[bytes], object],
        censor: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        self.session = session
        self.clock = clock
        self._request = request
        self._provenance = provenance
        self._write = write
        self._censor = censor
        self._trace_id = os.urandom(16).hex()
        self._spans: dict[EventName, str] = {}

    def now(self) -> str:
        return self.clock.text(time.monotonic_ns())

    def add(
        self,
        name: EventName,
        action: ActionType,
        summary: str,
        artifacts: Sequence[Artifact] = (),
        *,
        output_raw: str | None = None,
        evaluation: Evaluation | None = None,
    ) -> bytes:
        """The line, which has been written."""
        parent = _PARENT[name]
        if parent is not None and parent not in self._spans:  # the seventh has two forms
            parent = "commands_observation_unavailable"
        span = self._spans[name] = os.urandom(8).hex()
        event = DecisionEvent(
            schema_version=SCHEMA_VERSION,
            event_type=name,
            event_id=os.urandom(16).hex(),
            timestamp=self.now(),
            trace_id=self._trace_id,
            span_id=span,
            parent_span_id=None if parent is None else self._spans[parent],
            observability_mode="black_box",
            session=self.session,
            request=self._request,
            prompt_provenance=self._provenance,
            model_output=ModelOutput(None, output_raw, None, [], {}),
            agent_action=AgentAction(action, f"[{name}] {summary}", list(artifacts), []),
            evaluation=evaluation or not_evaluated(),
        )
        line = self._encode(event)
        self._write(line)
        return line

    def _encode(self, event: DecisionEvent) -> bytes:
        value = msgspec.to_builtins(event)
        for key in _CENSORED:
            value[key] = self._censor(value[key])
        for artifact in value["agent_action"]["artifacts"]:
            if artifact["content_ref"] is None:  # of what is written, without its secrets
                artifact["hash"] = digest(encode_event(artifact["metadata"]))
        return encode_event(value)


def file_artifact(kind: str, path: str, kept: Kept, summary: str, **metadata: Any) -> Artifact:
    """Of a file of the run folder."""
    metadata["bytes"] = kept.bytes
    if kept.lost:
        metadata |= {"lost_bytes": kept.lost, "lost_because": kept.why}
    return Artifact(kind, path.rpartition("/")[2], summary, path, kept.hash, metadata)


def value_artifact(kind: str, summary: str, facts: dict[str, Any]) -> Artifact:
    """Facts that are in the event itself, which gives them their digest."""
    return Artifact(kind, kind, summary, None, "", facts)
