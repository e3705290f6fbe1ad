"""What the documents of a recorded run say of the same thing: its metadata, its events, its
summary, the runner's own events, and what was counted.

Each is a sentence about what does not agree. A number that the recorder never knew is null, and
agrees with nothing but null.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from stream.records.run import BOUNDARY_FILE, CHANGES_FILE, COMMANDS_FILE, RunMetadata, RunSummary
from stream.records.runner import (
    RUNNER_FILE,
    CorrelationReport,
    ObservationHealth,
    RunnerFinished,
    RunnerStarted,
)

Event = Mapping[str, Any]
_ENDING = (
    *("exit_code", "signal", "not_started", "duration_ms", "containment", "timed_out"),
    *("signals_passed_on", "outlived", "stopped"),
)
_AT_EXIT = ("exit_code", "signal", "not_started", "duration_ms")
_SESSION = ("session_id", "agent_id", "agent_version", "environment")
_EVIDENCE = (
    *("kernel_layer", "kernel_events", "kernel_lost"),
    *("cgroup_correlation", "tool_calls", "correlation"),
)
_DENIALS = re.compile(r"; declared_permission_denials=([0-9]+) ")
_INCOMPLETE = re.compile(r"; incomplete: ([0-9]+)\Z")


class Run(Struct):
    """What its documents say. None: it is not there, or none."""

    metadata: RunMetadata | None
    summary: RunSummary | None
    health: ObservationHealth | None
    report: CorrelationReport | None
    kernel_events: int
    #: Whether its recorder was asked for kernel evidence: what stands for it otherwise is made
    #: when the run is archived.
    has_evidence: bool
    runner: list[RunnerStarted | RunnerFinished]
    events: Mapping[str, Event]  #: by their names
    counted: dict[str, int] = field(default_factory=dict)  #: records of a file


def disagreements(run: Run) -> Iterator[str]:
    if run.metadata is not None:
        yield from _of_metadata(run.metadata, run)
    if run.summary is not None:
        yield from _of_summary(run.summary, run)
        yield from _of_ending(run.summary, run)
        yield from _of_evidence(run.summary, run)


def _of_metadata(metadata: RunMetadata, run: Run) -> Iterator[str]:
    for name, event in run.events.items():
        for key in _SESSION:
            said = _within(event, "session", key)
            yield from _differing(f"metadata {key}", getattr(metadata, key), name, said)
        mode = _within(event, "prompt_provenance", "capture_mode")
        yield from _differing("metadata capture_mode", metadata.capture_mode, name, mode)
        ids = [_within(one, "id") for one in _listed(event, "request", "constraints")]
        yield from _differing("metadata constraints", metadata.constraints, name, ids)
    prepared = _facts(run, "workspace_prepared", "workspace")
    for key, stated in (("mode", metadata.workspace_mode), ("source", metadata.source)):
        yield from _differing(f"metadata {key}", stated, "workspace_prepared", prepared.get(key))
    invoked = _facts(run, "agent_invoked", "process")
    yield from _differing("metadata argv", metadata.argv, "agent_invoked", invoked.get("argv"))
    for key in ("agent_known_by", "version_known_by"):
        if key in invoked:  # a run of before does not say it
            stated = getattr(metadata, key)
            yield from _differing(f"metadata {key}", stated, "agent_invoked", invoked[key])
    for start in run.runner:
        if isinstance(start, RunnerStarted):
            yield from _differing("metadata argv", metadata.argv, RUNNER_FILE, start.command)
            yield from _differing("window_elapsed_ms", 0, RUNNER_FILE, start.window_elapsed_ms)
            told = start.agent_shim
            yield from _differing("metadata agent_id", metadata.agent_id, RUNNER_FILE, told)


def _of_summary(summary: RunSummary, run: Run) -> Iterator[str]:
    """What is counted in it."""
    for kind in ("stdout", "stderr"):
        kept = _facts(run, "artifacts_captured", f"{kind}_log")
        stated = getattr(summary, f"{kind}_bytes")
        yield from _differing(f"{kind}_bytes", stated, "artifacts_captured", kept.get("total"))
        is_full = run.metadata is not None and run.metadata.capture_mode == "full"
        if is_full and not kept.get("lost_bytes"):
            yield from _differing(f"{kind}_bytes", stated, "its file", kept.get("bytes"))
    if run.metadata is not None and run.metadata.capture_mode == "full":
        yield from _differing("redacted", summary.redacted, "metadata capture_mode", None)
    diff = _facts(run, "fs_diff_captured", "diff")
    for key, said in (
        ("changed_paths", "changed_count"),
        ("changed_inside_git", "inside_git"),
        ("changed_after_exit", "has_after_exit"),
    ):
        yield from _differing(key, getattr(summary, key), "fs_diff_captured", diff.get(said))
    if diff:
        listed = run.counted.get(CHANGES_FILE)
        yield from _differing("changed_paths", summary.changed_paths, CHANGES_FILE, listed)
    objects = run.counted.get(BOUNDARY_FILE)
    yield from _differing("boundary_objects", summary.boundary_objects, BOUNDARY_FILE, objects)
    yield from _of_commands(summary, run)
    finished = run.events.get("run_finished")
    for part in ("alignment", "quality", "policy"):
        said = _within(finished, "evaluation", part, "status")
        yield from _differing(part, getattr(summary, part), "run_finished", said)
    sentence = str(_within(finished, "agent_action", "action_summary"))
    denials = _DENIALS.search(sentence)
    yield from _differing(
        "declared_denials",
        str(summary.declared_denials or 0),  # as text: whoever forges may write any number
        "run_finished",
        denials[1] if denials else "0",
    )
    is_error = "; declared_error=yes" in sentence
    yield from _differing("declared_error", bool(summary.declared_error), "run_finished", is_error)
    lost = _INCOMPLETE.search(sentence)
    number = lost[1] if lost else "0"
    yield from _differing("incomplete", str(len(summary.incomplete)), "run_finished", number)


def _of_commands(summary: RunSummary, run: Run) -> Iterator[str]:
    log = _facts(run, "commands_observed", "command_log")
    if not log:
        if summary.commands:
            yield f"commands: {summary.commands}, and no event names their log"
        return
    yield from _differing(
        "commands", summary.commands, "commands_observed", log.get("observed_count")
    )
    listed = run.counted.get(COMMANDS_FILE)
    yield from _differing("commands", summary.commands, COMMANDS_FILE, listed)


def vouched_faults(
    events: Mapping[str, Event], vouched: Collection[int], lines: Collection[int]
) -> Iterator[str]:
    """What the events say of the command log, against the lines of it that its layers vouch for.
    Before there was such a count, nothing was said."""
    for number in sorted({*vouched} - {*lines}):
        yield f"line {number} of {COMMANDS_FILE}: a wrapper wrote it, and it is not there"
    log = _facts_of(events.get("commands_observed"), "command_log")
    if "vouched_count" in log:
        stated = log["vouched_count"]
        yield from _differing("vouched_count", stated, "the evidence", len(vouched))


def _of_ending(summary: RunSummary, run: Run) -> Iterator[str]:
    for name, keys in (("agent_completed", _AT_EXIT), ("artifacts_captured", _ENDING)):
        facts = _facts(run, name, "process")
        for key in keys:
            yield from _differing(key, getattr(summary, key), name, facts.get(key))
    is_signal = summary.signal is not None
    for end in run.runner:
        if isinstance(end, RunnerFinished):
            for key, follows in (
                ("exit_code", None if is_signal or summary.not_started else summary.exit_code),
                ("signal", summary.exit_code - 128 if is_signal else None),
                ("success", not summary.exit_code and not summary.not_started),
                ("window_elapsed_ms", summary.duration_ms),
            ):
                yield from _differing(key, follows, RUNNER_FILE, getattr(end, key))


def _of_evidence(summary: RunSummary, run: Run) -> Iterator[str]:
    stated = {key: getattr(summary, key) for key in _EVIDENCE}
    follows: dict[str, Any] = dict.fromkeys(_EVIDENCE)
    # One whose witness failed says so, and what there is was never summed up.
    if run.has_evidence and not (summary.incomplete and summary.kernel_layer is None):
        if run.health is not None:
            follows["kernel_layer"] = run.health.kernel_layer
            follows["kernel_lost"] = run.health.ringbuf_drops
            follows["cgroup_correlation"] = run.health.cgroup_correlation
        if run.report is not None:
            follows["tool_calls"] = len(run.report.bindings)
            follows["correlation"] = run.report.status
        follows["kernel_events"] = run.kernel_events
    for key in _EVIDENCE:
        yield from _differing(key, stated[key], "the evidence", follows[key])


def _differing(what: str, stated: Any, where: str, said: Any) -> Iterator[str]:
    if stated != said or type(stated) is not type(said):
        yield f"{what}: {_shown(stated)}, but {_shown(said)} by {where}"


def _shown(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 100 else f"{text[:99]}…"


def _facts(run: Run, event: str, kind: str) -> Mapping[str, Any]:
    """What an event has beside its sentence. Empty: it has no such artifact."""
    return _facts_of(run.events.get(event), kind)


def _facts_of(event: Any, kind: str) -> Mapping[str, Any]:
    for item in _listed(event, "agent_action", "artifacts"):
        if _within(item, "type") == kind:
            metadata = _within(item, "metadata")
            return metadata if isinstance(metadata, dict) else {}
    return {}


def _listed(event: Any, *keys: str) -> list[Any]:
    found = _within(event, *keys)
    return found if isinstance(found, list) else []


def _within(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
