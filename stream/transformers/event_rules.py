"""The rules of an agent run: every MUST of the contract that can be checked after the fact.

`event_rules` is one table: an id, the section of the contract, one sentence, and its weight. What
only says the type of a field follows from the types of `records.decision`. `read_event` reads a
line as a DecisionEvent, and finds every rule that the event breaks by itself. The words by which a
rule decides (phrases, sources, bounds) stand here as well.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from stream.codec import DECODE_ERRORS, MAX_LINE, repeated_key
from stream.errors import printable
from stream.records.control import Fault
from stream.records.decision import (
    CLAUDE_CODE,
    CONSTRAINTS,
    PARTS,
    SLOTS,
    Alignment,
    Checked,
    DecisionEvent,
    Evaluation,
    is_event,
)
from stream.records.run import Profile
from stream.transformers.event_shape import quoted, read_event_shape, shape_rules
from stream.transformers.reasoning import BASES, SUBJECTS, find_reasoning

#: characters of an evidence: an excerpt is short, what is longer is referenced by its hash
MOST_EVIDENCE = 512
#: how an evidence says where it comes from
SOURCE = (
    r"(^|[^A-Za-z])"
    r"([Ss][Tt][Dd]([Oo][Uu][Tt]|[Ee][Rr][Rr])|[Dd][Ii][Ff][Ff]|[Pp][Aa][Tt][Cc][Hh]"
    r"|[Cc][Oo][Mm][Mm][Aa][Nn][Dd][ _-]?[Ll][Oo][Gg][Ss]?|[Ss][Hh][Aa]256:[0-9A-Fa-f]{8,64})"
    r"($|[^A-Za-z])"
)
#: a name of a field that says it holds a prompt; how many tokens there were is no prompt
PROMPT = r"^(?!prompt_provenance$)(?!.*[Tt]okens?$).*([Pp]rompt|PROMPT)"
#: a status that an action_summary states
STATED = r"\b(alignment|quality|policy)[ =:]+(pass|warn|fail|unknown)\b"
#: the events whose action_summary states one
STATING = ("evaluation_performed", "run_finished")

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


Severity = Literal["error", "warning"]


class EventRule(Struct, frozen=True):
    """One rule: where the contract has it, its sentence, and what it weighs."""

    section: str  #: of the contract; `folder`: what only a whole run folder can show
    sentence: str
    severity: Severity = "error"


_NUMBERS = "where they are there, numbers or null"
#: By the section of the contract; `folder`: what only a whole run folder can show.
_WRITTEN: dict[str, dict[str, str]] = {
    "1.1": {
        "line.utf8": "A line is UTF-8.",
        "line.json_object": "A line is a JSON object, nested no deeper than can be read.",
        "line.duplicate_key": "No key stands twice in an object of a line.",
        "line.length": f"A line is no longer than {MAX_LINE} bytes: it could not be held.",
        "line.decision_event": "Every line of a run's own file is a DecisionEvent.",
        "timestamp.order": "No event of a run is earlier than the event before it.",
    },
    "1.2": {
        "run.one": "A run's own file has the events of one run.",
        "run.incomplete": "A run goes on to run_finished, and nothing of it was lost.",
        "run.missing": "None of the nine events is missing before one that is there.",
        "run.twice": "Each of the nine events is there once.",
        "event.name": (
            "An event is named, by event_type or by the [name] that action_summary begins with, as"
            f" one of {', '.join(SLOTS)}."
        ),
        "event.names_agree": (
            "Where both are there, event_type is the [name] that action_summary begins with."
        ),
    },
    "2": {
        "event_id.unique": "No two events have the same event_id.",
        "timestamp": "timestamp is a string, and a time, by which events can be ordered.",
        "timestamp.rfc3339": (
            "timestamp is an RFC 3339 time in UTC: recommended, and what orders it; a date alone is"
            " the beginning of its day."
        ),
    },
    "3.1": {
        "trace_id.constant": "All events of a run have the same trace_id.",
        "run.constant": (
            "All events of a run have the same schema_version, session_id, agent_id, agent_version,"
            " environment and capture_mode."
        ),
        "span_id.unique": "No two events of a run have the same span_id.",
        "parent_span_id.earlier": "A parent is the span of an earlier event of the run.",
        "parent_span_id.root": "Only the first event of a run, its root, has no parent.",
    },
    "3.2": {
        "run.order": "The nine events are in their order, and nothing comes after them.",
    },
    "3.3": {
        "prompt.visible": (
            "No field claims to see the prompt: but in request, none whose name has `prompt` in it"
            " holds true, a text other than unknown, an array or an object."
        ),
    },
    "4.1": {
        "session.agent_id": (
            f'session.agent_id is "{CLAUDE_CODE}"; under --profile agents, any name.'
        ),
    },
    "4.2.2": {
        "constraint.canonical": (
            "A constraint that the contract knows has its type: "
            + ", ".join(f"{known.id} {known.type}" for known in CONSTRAINTS.values())
            + "."
        ),
        "folder.constraints": "Every constraint of the scenario is in an event.",
    },
    "4.3": {
        "prompt_provenance.parameters": (
            "prompt_provenance.parameters is an object; temperature, top_p and max_tokens are,"
            f" {_NUMBERS}."
        ),
    },
    "4.4": {
        "model_output.completion_id.null": (
            "model_output.completion_id is null: who looks from outside sees none."
        ),
        "model_output.usage": (
            "model_output.usage is an object; input_tokens, output_tokens and latency_ms are,"
            f" {_NUMBERS}."
        ),
    },
    "4.5.2": {
        "run.stdout_log": "A run references a stdout_log, claude_stdout.txt.",
        "run.stderr_log": "A run references a stderr_log, claude_stderr.txt.",
        "run.diff": "A run references a diff, fs_diff.patch.",
        "run.command_log": (
            "A run with commands_observed references a command_log, command_logs.jsonl."
        ),
    },
    "4.6": {
        "evaluation.contradiction": (
            "The status of alignment, quality or policy is the worst of its judged checks and its"
            " violations, where it has any; unknown does not contradict that the worst is a pass."
        ),
        "evaluation.told": (
            "A status that the action_summary of evaluation_performed or run_finished tells is that"
            " of the evaluation."
        ),
        "run.evaluation": "run_finished has the statuses of evaluation_performed.",
        "evaluation.score": "A score is a number or null; quality and policy may leave it out.",
    },
    "4.6.1": {
        "evaluation.violations": "alignment has violations, an array of objects.",
    },
    "4.6.2": {
        "evaluation.checks": "quality and policy have checks, an array of objects.",
    },
    "5.1": {
        "unknown.null": "null stands only where the contract allows it.",
    },
    "5.2": {
        "unknown.empty": 'An id or a name is not empty: what is not known is "unknown".',
    },
    "6": {
        "action_summary.reasoning": (
            "action_summary tells no reasoning or intent: nobody who stands for the agent (its"
            f" name, {', '.join(SUBJECTS)}, it, they) is the subject of a verb of mind"
            f" ({', '.join(BASES)}) in any tense, mood or voice, nor has a belief, an intention or"
            " the like. What an option is given in quotes is a quotation."
        ),
        "evaluation.outcome": (
            "A status of pass, warn or fail rests on something: a violation or a judged check with"
            f" evidence, or an artifact of the same event ({', '.join(sorted(SOURCES))})."
        ),
        "evidence.source": (
            "An evidence names its source: stdout, stderr, diff, patch, command log, or a sha256:"
            " digest of at least 8 digits."
        ),
    },
    "7": {
        "evidence.given": "A violation, and a check of pass, warn or fail, has evidence.",
        "evidence.bounded": f"An evidence has no more than {MOST_EVIDENCE} characters.",
    },
    "folder": {
        "folder.metadata": "metadata.json is there, a stream.run.v1 document.",
        "folder.contract": "metadata.json names its contract: those of other recorders say less.",
        "folder.run_id": "metadata, events and manifest are of the same run.",
        "folder.evidence": "Every record of the kernel evidence keeps its contract.",
        "folder.record": (
            "The lines of boundary.ndjson and of the files of records under artifacts/ keep their"
            " contracts, as `stream validate` has them."
        ),
        "artifact.inside": "A content_ref leads to a place inside the run folder.",
        "artifact.present": "What a content_ref names is there, a regular file.",
        "artifact.digest": "The hash of an artifact is that of its file.",
        "artifact.checkable": "The hash of an artifact with a file is sha256: and 64 digits.",
        "manifest.document": "artifacts/manifest.json is a stream.manifest.v1.",
        "manifest.inside": "What the manifest lists is inside the run folder.",
        "manifest.present": "What the manifest lists is there, a regular file.",
        "manifest.digest": "What the manifest lists has its size and its digest.",
        "manifest.events": (
            "The events before the last one are those that the manifest has the digest of."
        ),
        "manifest.unlisted": "The manifest lists every file under artifacts/.",
        "diff.checkable": "git is there, and can be asked about the diff.",
        "diff.parses": "git can read fs_diff.patch.",
        "diff.applies": (
            "fs_diff.patch can be taken back from the workspace, unless that was changed since."
        ),
    },
}
_WARNINGS = {
    "timestamp.rfc3339",
    "model_output.completion_id.null",
    "folder.contract",
    "artifact.checkable",
    "diff.checkable",
    "diff.applies",
}
#: The sections of the contract that say what a field has to be: of all below it, or of itself.
_SECTIONS = {
    "session.": "4.1",
    "request.": "4.2",
    "constraint.": "4.2.1",
    "prompt_provenance.": "4.3",
    "model_output.": "4.4",
    "agent_action.": "4.5",
    "artifact.": "4.5.1",
    "evaluation.": "4.6",
    "violation.": "4.6.4",
    "check.": "4.6.5",
    "observability_mode": "3.3",
    "prompt_provenance.prompt_bundle": "4.3.1",
    "prompt_provenance.prompt_bundle_hash": "4.3.1",
    "model_output.tool_calls": "4.4.1",
}


def _all_event_rules() -> Iterator[tuple[str, EventRule]]:
    """Yield what the types of an event say, and what is written here, which says more."""
    for rule, words in shape_rules():
        above, dot, _ = rule.partition(".")
        section = _SECTIONS.get(rule) or _SECTIONS.get(above + dot, "2")
        yield rule, EventRule(section, f"{rule} is {words}.")
    for section, sentences in _WRITTEN.items():
        for rule, sentence in sentences.items():
            severity: Severity = "warning" if rule in _WARNINGS else "error"
            yield rule, EventRule(section, sentence, severity)


@cache
def event_rules() -> dict[str, EventRule]:
    """Return the rules of decision events by their ids, in the order of the contract's sections.
    They take a while: a run that breaks none needs none."""
    return dict(sorted(dict(_all_event_rules()).items(), key=lambda one: one[1].section))


def read_event(line: bytes, profile: Profile) -> tuple[DecisionEvent, list[Fault]] | None:
    """Read an event and find what it breaks by itself; give None for a line of something else.

    Raises one of DECODE_ERRORS where the line is no JSON object.
    """
    event: DecisionEvent | None
    try:
        event = _decode(line)
        _encode_into(event, _again)
    except DECODE_ERRORS:
        event = None
    # What comes out as it went in has no key twice, and no other field.
    if event is not None and _again == line:
        return event, _check_event(event, profile)
    line.decode()  # msgspec does not look into the strings that it skips
    value = _decode_object(line)
    if not is_event(value):
        return None
    repeated = repeated_key(line)
    faults = [repeated._replace(rule="line.duplicate_key")] if repeated else []
    if event is None:
        event, found = read_event_shape(value)
        faults += found
    return event, faults + _check_event(event, profile, value)


def event_object_in(line: bytes) -> dict[str, Any] | None:
    """Give the JSON object of an event, whatever is wrong with it; None for anything else."""
    try:
        value = _decode_object(line)
    except DECODE_ERRORS:
        return None
    return value if is_event(value) else None


_decode = msgspec.json.Decoder(DecisionEvent).decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_encode_into = msgspec.json.Encoder().encode_into
_again = bytearray()


def _check_event(event: DecisionEvent, profile: Profile, value: Any = None) -> list[Fault]:
    """Check whatever an event can break by itself, beyond its shape.

    A field whose value is not of its shape is false here, and no rule looks at it again.
    `value` is the whole JSON object, where it has more in it than the fields of the contract.
    """
    faults: list[Fault] = []
    kind, agent = event.event_type, event.session.agent_id
    summary = event.agent_action.action_summary
    _check_action_summary(kind, summary, agent or "", faults)
    at, reason = parse_event_time(event.timestamp)
    if at is None and event.timestamp:
        faults.append(Fault(f"{quoted(event.timestamp)} is no time", "$.timestamp", "timestamp"))
    elif reason:
        message = f"{quoted(event.timestamp)} {reason}"
        faults.append(Fault(message, "$.timestamp", "timestamp.rfc3339"))
    if event.request.constraints:
        _check_constraints(event, faults)
    _check_evaluation(event, faults)
    if summary and (kind or event_name(kind, summary)) in STATING:
        _check_stated_status(event, summary, faults)
    path = _find_prompt_in(event) if value is None else find_prompt_field(value)
    if path and path not in _BUNDLES:
        message = "claims to see what nobody can see from outside"
        faults.append(Fault(message, path, "prompt.visible"))
    if profile == "poc" and agent and agent != CLAUDE_CODE:
        message = f'expected "{CLAUDE_CODE}", got {quoted(agent)}: --profile agents takes others'
        faults.append(Fault(message, "$.session.agent_id", "session.agent_id"))
    completion = event.model_output.completion_id
    if isinstance(completion, str):
        message = f"expected null, got {quoted(completion)}: it is not visible from outside"
        path = "$.model_output.completion_id"
        faults.append(Fault(message, path, "model_output.completion_id.null"))
    return faults


def event_name(event_type: Any, summary: Any) -> str | None:
    """Name an event, by whichever of the two has one of the ten names."""
    if isinstance(event_type, str) and event_type in SLOTS:
        return event_type
    name = _event_name_in_summary(summary) if isinstance(summary, str) else None
    return name if name in SLOTS else None


@lru_cache(maxsize=16)  # of one event it is asked twice
def parse_event_time(text: str | None) -> tuple[datetime | None, str]:
    """Give the time, and what in it is not as recommended.

    Anything that Python takes for a time is one.
    """
    if not text:
        return None, ""
    try:
        at = msgspec.convert(text, datetime)
        reason = "" if at.tzinfo else "has no time zone"
    except msgspec.ValidationError:
        reason = "is not RFC 3339"
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            return None, ""
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    elif at.utcoffset() != timedelta(0):
        reason = reason or "is not in UTC"
    return at, reason


def lost_bytes_of(value: Any) -> int:
    """Count the bytes that an artifact says there was no room for; 7.0 are seven as well."""
    is_whole = type(value) is int or (type(value) is float and value.is_integer())
    return int(value) if is_whole and value > 0 else 0


def find_prompt_field(value: Any, path: str = "$") -> str | None:
    """Find the path of a field that claims to see the prompt.

    A number, and what says that nothing is known, claim nothing; what the user asked for was
    seen by everybody.
    """
    if isinstance(value, dict):
        names = " ".join(value)  # nearly no object has such a name: one look at all of them
        is_suspect = "rompt" in names or "ROMPT" in names
        for key, member in value.items():
            if is_suspect and _is_prompt(key) and _holds_anything(member):
                return f"{path}.{key}"
            if type(member) not in _HOLDERS or (path == "$" and key == "request"):
                continue
            if found := find_prompt_field(member, f"{path}.{key}"):
                return found
    elif isinstance(value, list) and not _HOLDERS.isdisjoint(map(type, value)):
        for index, member in enumerate(value):
            if found := find_prompt_field(member, f"{path}[{index}]"):
                return found
    return None


def _holds_anything(value: Any) -> bool:
    is_known = value is None or (isinstance(value, int | float) and value is not True)
    return not is_known and value not in ("", "unknown", [], {})


def _find_prompt_in(event: DecisionEvent) -> str | None:
    """Look where an event with the fields of the contract alone may have others in it."""
    structured = event.model_output.output_structured
    if structured and (found := find_prompt_field(structured, "$.model_output.output_structured")):
        return found
    for index, artifact in enumerate(event.agent_action.artifacts):
        if artifact.metadata and (found := find_prompt_field(artifact.metadata, "")):
            return f"$.agent_action.artifacts[{index}].metadata{found}"
    return None


def _check_action_summary(
    kind: str | UnsetType | None, summary: str | None, agent: str, faults: list[Fault]
) -> None:
    """Check that a summary begins with the name of its event, and tells what can be seen from
    outside."""
    if summary is None:
        return
    if not (kind and summary.startswith(f"[{kind}]")):
        _check_event_name(kind, summary, faults)
    if found := find_reasoning(summary, agent):
        message = f"{quoted(found)} tells what nobody can see from outside"
        faults.append(Fault(message, "$.agent_action.action_summary", "action_summary.reasoning"))


def _check_event_name(kind: str | UnsetType | None, summary: str, faults: list[Fault]) -> None:
    """Check that an agent event's event_type and action_summary name the same event."""
    prefix = _event_name_in_summary(summary)
    at = "$.agent_action.action_summary"
    if kind is UNSET:
        if prefix not in SLOTS:
            message = "no event_type, and action_summary does not begin with the [name] of an event"
            faults.append(Fault(message, at, "event.name"))
    elif kind and prefix is not None and prefix != kind:
        message = f"begins with [{printable(prefix)[:60]}], but event_type is {quoted(kind)}"
        faults.append(Fault(message, at, "event.names_agree"))


def _event_name_in_summary(summary: str) -> str | None:
    """Give the name in the brackets that a summary begins with."""
    if not summary.startswith("["):
        return None
    name, bracket, _ = summary[1:].partition("]")
    return name if bracket else None


def _check_constraints(event: DecisionEvent, faults: list[Fault]) -> None:
    """Check that a constraint of a known id in an agent's request has that id's type."""
    for index, constraint in enumerate(event.request.constraints):
        known = CONSTRAINTS.get(constraint.id)
        if known and constraint.type not in (known.type, None):
            message = f"expected {known.type!r} for {known.id}, got {quoted(constraint.type)}"
            path = f"$.request.constraints[{index}].type"
            faults.append(Fault(message, path, "constraint.canonical"))


def _check_evaluation(event: DecisionEvent, faults: list[Fault]) -> None:
    """Check that each status follows from the checks and the violations below it, and rests on
    something."""
    evaluation, known = event.evaluation, len(faults)
    if evaluation in _sound:
        return
    is_founded = True
    for name in PARTS:
        part = getattr(evaluation, name)
        if _check_below_status(part, f"$.evaluation.{name}", faults) or part.status not in JUDGED:
            continue
        is_founded = False
        if not any(artifact.type in SOURCES for artifact in event.agent_action.artifacts):
            message = f"{part.status!r} without evidence of what it rests on"
            faults.append(Fault(message, f"$.evaluation.{name}.status", "evaluation.outcome"))
    if is_founded and len(faults) == known:
        _sound.append(evaluation)


def _check_below_status(part: Alignment | Checked, path: str, faults: list[Fault]) -> bool:
    """Check what is below a status, and say whether any of it can be what that rests on."""
    judged: list[str] = []
    is_founded = False
    for index, violation in enumerate(part.violations or ()):
        judged.append(violation.severity)
        is_founded = True
        for fault in _evidence_faults(violation.evidence, is_judged=True):
            faults += (fault._replace(path=f"{path}.violations[{index}].evidence"),)
    for index, check in enumerate(part.checks or ()):
        judged.append(check.status)
        is_founded |= check.status != "unknown"
        for fault in _evidence_faults(check.evidence, is_judged=check.status in JUDGED):
            faults += (fault._replace(path=f"{path}.checks[{index}].evidence"),)
    status = part.status
    worst = _find_status_contradiction(status, judged)
    if worst:
        message = f"{status!r}, but the worst of its checks and violations is {worst!r}"
        faults.append(Fault(message, f"{path}.status", "evaluation.contradiction"))
    return is_founded


def _evidence_faults(evidence: str | None, *, is_judged: bool) -> list[Fault]:
    """Find what is wrong with the text of evidence below a status of an evaluation."""
    found: list[Fault] = []
    if evidence is None:
        return found
    if len(evidence) > MOST_EVIDENCE:
        message = f"has {len(evidence)} characters, more than {MOST_EVIDENCE}: give its hash"
        found.append(Fault(message, rule="evidence.bounded"))
    if is_judged and not _find_source(evidence):
        if evidence.strip():
            message = f"{quoted(evidence)} does not name its source: stdout, stderr, diff, …"
            found.append(Fault(message, rule="evidence.source"))
        else:
            message = "is empty, but something was judged by it"
            found.append(Fault(message, rule="evidence.given"))
    return found


def _check_stated_status(event: DecisionEvent, summary: str, faults: list[Fault]) -> None:
    """Check that a status that a summary states for people is that of the evaluation."""
    for name, stated in _find_stated(summary):
        status = getattr(event.evaluation, name).status
        if status and stated != status:
            message = f"states {name} {stated}, but its status is {quoted(status)}"
            faults.append(Fault(message, "$.agent_action.action_summary", "evaluation.told"))


def _find_status_contradiction(status: str | None, below: Collection[str]) -> str | None:
    """Find what contradicts a status among the judged checks and the violations below it.

    That some of these are unknown contradicts nothing.
    """
    worst = next((one for one in ("fail", "warn", "pass") if one in below), None)
    if worst is None or status in (worst, None) or (status == "unknown" and worst == "pass"):
        return None
    return worst


#: evaluations without fault: most events have the one of the event before them
_sound: deque[Evaluation] = deque(maxlen=4)
_HOLDERS = frozenset((dict, list))
_is_prompt = re.compile(PROMPT).search
_find_source = re.compile(SOURCE).search
_find_stated = re.compile(STATED).findall
#: have rules of their own
_BUNDLES = ("$.prompt_provenance.prompt_bundle", "$.prompt_provenance.prompt_bundle_hash")
