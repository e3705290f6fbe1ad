"""The rules of an agent run: every MUST of the contract that can be checked after the fact.

One table: an id, the section of the contract, one sentence, and what it weighs. The words
by which a rule decides (phrases, sources, bounds) stand here as well, and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Literal, get_args

from msgspec import Struct

from stream.codec import MAX_LINE
from stream.records import decision
from stream.records.decision import CLAUDE_CODE, CONSTRAINTS, ORDER
from stream.stages.reasoning import BASES, SUBJECTS

#: the name of an event -> its place among the nine
SLOTS: dict[str, int] = {name: slot for slot, names in enumerate(ORDER) for name in names}

#: characters of an evidence: an excerpt is short, what is longer is referenced by its hash
MOST_EVIDENCE = 512
#: how an evidence says where it comes from
SOURCE = (
    r"(^|[^A-Za-z])"
    r"([Ss][Tt][Dd]([Oo][Uu][Tt]|[Ee][Rr][Rr])|[Dd][Ii][Ff][Ff]|[Pp][Aa][Tt][Cc][Hh]"
    r"|[Cc][Oo][Mm][Mm][Aa][Nn][Dd][ _-]?[Ll][Oo][Gg][Ss]?|[Ss][Hh][Aa]256:[0-9A-Fa-f]{8,64})"
    r"($|[^A-Za-z])"
)
#: what stands where a time does: whether it is one, the calendar says
TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"
#: a name of a field that says it holds a prompt; how many tokens there were is no prompt
PROMPT = r"^(?!prompt_provenance$)(?!.*[Tt]okens?$).*([Pp]rompt|PROMPT)"
#: a status that an action_summary tells
TOLD = r"\b(alignment|quality|policy)[ =:]+(pass|warn|fail|unknown)\b"
#: the events that tell one
TELLING = ("evaluation_performed", "run_finished")

#: what a run must reference: artifact type -> file name
REQUIRED = {
    "stdout_log": "claude_stdout.txt",
    "stderr_log": "claude_stderr.txt",
    "diff": "fs_diff.patch",
}
COMMAND_LOG = "command_log"
COMMAND_LOG_FILE = "command_logs.jsonl"
#: the artifact types that an outcome can rest on
SOURCES = frozenset((*REQUIRED, COMMAND_LOG))
JUDGED = frozenset(("pass", "warn", "fail"))


_HOLDERS = (dict, list)
_is_prompt = re.compile(PROMPT).search
find_source = re.compile(SOURCE).search
find_told = re.compile(TOLD).findall


def find_prompt(value: Any, path: str = "$") -> str | None:
    """The path of a field that claims to see the prompt. A number, and what says that nothing is
    known, claim nothing; what the user asked for was seen by everybody."""
    if isinstance(value, dict):
        for key, member in value.items():
            if "rompt" in key or "ROMPT" in key:
                known = member is None or (isinstance(member, int | float) and member is not True)
                if not known and member not in ("", "unknown", [], {}) and _is_prompt(key):
                    return f"{path}.{key}"
            if type(member) not in _HOLDERS or (path == "$" and key == "request"):
                continue
            if found := find_prompt(member, f"{path}.{key}"):
                return found
    elif isinstance(value, list):
        for index, member in enumerate(value):
            if type(member) in _HOLDERS and (found := find_prompt(member, f"{path}[{index}]")):
                return found
    return None


def contradiction(status: str, judged: Collection[str]) -> str | None:
    """What a status is contradicted by, of the judged checks and the violations below it. That
    some of these are unknown contradicts nothing."""
    worst = next((one for one in ("fail", "warn", "pass") if one in judged), None)
    if worst is None or worst == status or (status == "unknown" and worst == "pass"):
        return None
    return worst


def prefix_of(summary: str) -> str | None:
    """The name in the brackets that a summary begins with."""
    if not summary.startswith("["):
        return None
    name, bracket, _ = summary[1:].partition("]")
    return name if bracket else None


class Rule(Struct, frozen=True):
    section: str  #: of the contract; `folder`: what only a whole run folder can show
    sentence: str
    severity: Literal["error", "warning"] = "error"


def _one_of(kind: object) -> str:
    return f"one of {', '.join(get_args(kind))}"


_NUMBERS = "where they are there, numbers or null"
RULES: dict[str, Rule] = {
    # 1: the file
    "line.utf8": Rule("1.1", "A line is UTF-8."),
    "line.json_object": Rule("1.1", "A line is a JSON object, nested no deeper than can be read."),
    "line.duplicate_key": Rule("1.1", "No key stands twice in an object of a line."),
    "line.length": Rule("1.1", f"A line is no longer than {MAX_LINE} bytes: it could not be held."),
    "line.decision_event": Rule("1.1", "Every line of a run's own file is a DecisionEvent."),
    "timestamp.order": Rule("1.1", "No event of a run is earlier than the event before it."),
    "run.one": Rule("1.2", "A run's own file has the events of one run."),
    "run.incomplete": Rule("1.2", "A run goes on to run_finished, and nothing of it was lost."),
    "run.missing": Rule("1.2", "None of the nine events is missing before one that is there."),
    "run.twice": Rule("1.2", "Each of the nine events is there once."),
    "run.order": Rule("3.2", "The nine events are in their order, and nothing comes after them."),
    "event.name": Rule(
        "1.2",
        "An event is named, by event_type or by the [name] that action_summary begins with, as"
        f" one of {', '.join(SLOTS)}.",
    ),
    "event.names_agree": Rule(
        "1.2", "Where both are there, event_type is the [name] that action_summary begins with."
    ),
    # 2: the fields of every event
    "schema_version": Rule("2", "schema_version is a string."),
    "event_id": Rule("2", "event_id is a string."),
    "event_id.unique": Rule("2", "No two events have the same event_id."),
    "timestamp": Rule("2", "timestamp is a string, and a time, by which events can be ordered."),
    "timestamp.rfc3339": Rule(
        "2",
        "timestamp is an RFC 3339 time in UTC: recommended, and what orders it; a date alone is the"
        " beginning of its day.",
        "warning",
    ),
    "trace_id": Rule("2", "trace_id is a string."),
    "span_id": Rule("2", "span_id is a string."),
    "parent_span_id": Rule("2", "parent_span_id is there, a string or null."),
    "observability_mode": Rule("3.3", 'observability_mode is "black_box".'),
    "prompt.visible": Rule(
        "3.3",
        "No field claims to see the prompt: but in request, none whose name has `prompt` in it"
        " holds true, a text other than unknown, an array or an object.",
    ),
    "session": Rule("2", "session is an object."),
    "request": Rule("2", "request is an object."),
    "prompt_provenance": Rule("2", "prompt_provenance is an object."),
    "model_output": Rule("2", "model_output is an object."),
    "agent_action": Rule("2", "agent_action is an object."),
    "evaluation": Rule("2", "evaluation is an object."),
    # 3: across events
    "trace_id.constant": Rule("3.1", "All events of a run have the same trace_id."),
    "run.constant": Rule(
        "3.1",
        "All events of a run have the same schema_version, session_id, agent_id, agent_version,"
        " environment and capture_mode.",
    ),
    "span_id.unique": Rule("3.1", "No two events of a run have the same span_id."),
    "parent_span_id.earlier": Rule("3.1", "A parent is the span of an earlier event of the run."),
    "parent_span_id.root": Rule("3.1", "Only the first event of a run, its root, has no parent."),
    # 4.1
    "session.session_id": Rule("4.1", "session.session_id is a string."),
    "session.run_id": Rule("4.1", "session.run_id is a string."),
    "session.agent_id": Rule(
        "4.1", f'session.agent_id is "{CLAUDE_CODE}"; under --profile agents, any name.'
    ),
    "session.agent_version": Rule("4.1", "session.agent_version is a string."),
    "session.environment": Rule("4.1", f"session.environment is {_one_of(decision.Environment)}."),
    # 4.2
    "request.request_id": Rule("4.2", "request.request_id is a string."),
    "request.user_request_raw": Rule("4.2", "request.user_request_raw is a string."),
    "request.constraints": Rule("4.2", "request.constraints is an array of objects."),
    "request.context": Rule("4.2", "request.context is an object."),
    "constraint.id": Rule("4.2.1", "The id of a constraint is a string."),
    "constraint.type": Rule(
        "4.2.1", f"The type of a constraint is {_one_of(decision.ConstraintType)}."
    ),
    "constraint.rule": Rule("4.2.1", "The rule of a constraint is a string."),
    "constraint.canonical": Rule(
        "4.2.2",
        "A constraint that the contract knows has its type: "
        + ", ".join(f"{known.id} {known.type}" for known in CONSTRAINTS.values())
        + ".",
    ),
    # 4.3
    "prompt_provenance.provider": Rule("4.3", "prompt_provenance.provider is a string."),
    "prompt_provenance.model": Rule("4.3", "prompt_provenance.model is a string."),
    "prompt_provenance.capture_mode": Rule(
        "4.3", f"prompt_provenance.capture_mode is {_one_of(decision.CaptureMode)}."
    ),
    "prompt_provenance.prompt_bundle": Rule("4.3.1", "prompt_provenance.prompt_bundle is null."),
    "prompt_provenance.prompt_bundle_hash": Rule(
        "4.3.1", 'prompt_provenance.prompt_bundle_hash is "unknown".'
    ),
    "prompt_provenance.parameters": Rule(
        "4.3",
        "prompt_provenance.parameters is an object; temperature, top_p and max_tokens are,"
        f" {_NUMBERS}.",
    ),
    # 4.4
    "model_output.completion_id": Rule("4.4", "model_output.completion_id is a string or null."),
    "model_output.completion_id.null": Rule(
        "4.4", "model_output.completion_id is null: who looks from outside sees none.", "warning"
    ),
    "model_output.output_raw": Rule(
        "4.4", 'model_output.output_raw is "captured_as_artifact" or null.'
    ),
    "model_output.output_structured": Rule(
        "4.4", "model_output.output_structured is an object or null."
    ),
    "model_output.tool_calls": Rule("4.4.1", "model_output.tool_calls is []."),
    "model_output.usage": Rule(
        "4.4",
        "model_output.usage is an object; input_tokens, output_tokens and latency_ms are,"
        f" {_NUMBERS}.",
    ),
    # 4.5
    "agent_action.action_type": Rule(
        "4.5", f"agent_action.action_type is {_one_of(decision.ActionType)}."
    ),
    "agent_action.action_summary": Rule("4.5", "agent_action.action_summary is a string."),
    "agent_action.artifacts": Rule("4.5", "agent_action.artifacts is an array of objects."),
    "agent_action.tool_results": Rule(
        "4.5", "agent_action.tool_results is []: a recorder uses no tools."
    ),
    "artifact.type": Rule("4.5.1", "The type of an artifact is a string."),
    "artifact.id": Rule("4.5.1", "The id of an artifact is a string."),
    "artifact.summary": Rule("4.5.1", "The summary of an artifact is a string."),
    "artifact.content_ref": Rule("4.5.1", "The content_ref of an artifact is a string or null."),
    "artifact.hash": Rule("4.5.1", "The hash of an artifact is a string."),
    "artifact.metadata": Rule("4.5.1", "The metadata of an artifact is an object."),
    "run.stdout_log": Rule("4.5.2", "A run references a stdout_log, claude_stdout.txt."),
    "run.stderr_log": Rule("4.5.2", "A run references a stderr_log, claude_stderr.txt."),
    "run.diff": Rule("4.5.2", "A run references a diff, fs_diff.patch."),
    "run.command_log": Rule(
        "4.5.2", "A run with commands_observed references a command_log, command_logs.jsonl."
    ),
    # 4.6
    "evaluation.alignment": Rule("4.6", "evaluation.alignment is an object."),
    "evaluation.quality": Rule("4.6", "evaluation.quality is an object."),
    "evaluation.policy": Rule("4.6", "evaluation.policy is an object."),
    "evaluation.status": Rule(
        "4.6", f"The status of alignment, quality and policy is {_one_of(decision.Status)}."
    ),
    "evaluation.contradiction": Rule(
        "4.6",
        "The status of alignment, quality or policy is the worst of its judged checks and its"
        " violations, where it has any; unknown does not contradict that the worst is a pass.",
    ),
    "evaluation.told": Rule(
        "4.6",
        "A status that the action_summary of evaluation_performed or run_finished tells is that of"
        " the evaluation.",
    ),
    "run.evaluation": Rule("4.6", "run_finished has the statuses of evaluation_performed."),
    "evaluation.score": Rule(
        "4.6", "A score is a number or null; quality and policy may leave it out."
    ),
    "evaluation.violations": Rule("4.6.1", "alignment has violations, an array of objects."),
    "evaluation.checks": Rule("4.6.2", "quality and policy have checks, an array of objects."),
    "violation.id": Rule("4.6.4", "The id of a violation is a string."),
    "violation.severity": Rule("4.6.4", "The severity of a violation is one of warn, fail."),
    "violation.message": Rule("4.6.4", "The message of a violation is a string."),
    "violation.evidence": Rule("4.6.4", "The evidence of a violation is a string."),
    "check.id": Rule("4.6.5", "The id of a check is a string."),
    "check.status": Rule("4.6.5", f"The status of a check is {_one_of(decision.Status)}."),
    "check.evidence": Rule("4.6.5", "The evidence of a check is a string."),
    # 5
    "unknown.null": Rule("5.1", "null stands only where the contract allows it."),
    "unknown.empty": Rule("5.2", 'An id or a name is not empty: what is not known is "unknown".'),
    # 6
    "action_summary.reasoning": Rule(
        "6",
        "action_summary tells no reasoning or intent: nobody who stands for the agent (its name,"
        f" {', '.join(SUBJECTS)}, it, they) is the subject of a verb of mind"
        f" ({', '.join(BASES)}) in any tense, mood or voice, nor has a belief, an intention or the"
        " like. What an option is given in quotes is a quotation.",
    ),
    "evaluation.outcome": Rule(
        "6",
        "A status of pass, warn or fail rests on something: a violation or a judged check with"
        f" evidence, or an artifact of the same event ({', '.join(sorted(SOURCES))}).",
    ),
    "evidence.source": Rule(
        "6",
        "An evidence names its source: stdout, stderr, diff, patch, command log, or a sha256:"
        " digest of at least 8 digits.",
    ),
    # 7
    "evidence.given": Rule("7", "A violation, and a check of pass, warn or fail, has evidence."),
    "evidence.bounded": Rule("7", f"An evidence has no more than {MOST_EVIDENCE} characters."),
    # the run folder
    "folder.metadata": Rule("folder", "metadata.json is there, a stream.run.v1 document."),
    "folder.contract": Rule(
        "folder", "metadata.json names its contract: those of other recorders say less.", "warning"
    ),
    "folder.run_id": Rule("folder", "metadata, events and manifest are of the same run."),
    "folder.evidence": Rule("folder", "Every record of the kernel evidence keeps its contract."),
    "folder.constraints": Rule("4.2.2", "Every constraint of the scenario is in an event."),
    "folder.record": Rule(
        "folder",
        "The lines of boundary.ndjson and of the files of records under artifacts/ keep their"
        " contracts, as `stream validate` has them.",
    ),
    "artifact.inside": Rule("folder", "A content_ref leads to a place inside the run folder."),
    "artifact.present": Rule("folder", "What a content_ref names is there, a regular file."),
    "artifact.digest": Rule("folder", "The hash of an artifact is that of its file."),
    "artifact.checkable": Rule(
        "folder", "The hash of an artifact with a file is sha256: and 64 digits.", "warning"
    ),
    "manifest.document": Rule("folder", "artifacts/manifest.json is a stream.manifest.v1."),
    "manifest.inside": Rule("folder", "What the manifest lists is inside the run folder."),
    "manifest.present": Rule("folder", "What the manifest lists is there, a regular file."),
    "manifest.digest": Rule("folder", "What the manifest lists has its size and its digest."),
    "manifest.events": Rule(
        "folder", "The events before the last one are those that the manifest has the digest of."
    ),
    "manifest.unlisted": Rule("folder", "The manifest lists every file under artifacts/."),
    "diff.checkable": Rule("folder", "git is there, and can be asked about the diff.", "warning"),
    "diff.parses": Rule("folder", "git can read fs_diff.patch."),
    "diff.applies": Rule(
        "folder",
        "fs_diff.patch can be taken back from the workspace, unless that was changed since.",
        "warning",
    ),
}
