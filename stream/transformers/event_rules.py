"""The rules of an agent run: every MUST of the contract that can be checked after the fact.

One table: an id, the section of the contract, one sentence, and what it weighs. The words
by which a rule decides (phrases, sources, bounds) stand here as well, and nowhere else.

The rules between events: every run that a stream carries, followed by its run id.

A run whose nine events have come is judged and let go; of it stays its name. What is open at
the end is judged then, so that an event that only comes late is not called missing."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from typing import Any, Literal, NamedTuple, get_args

from msgspec import UNSET, Struct, UnsetType, field

from stream.codec import MAX_LINE
from stream.errors import visible
from stream.records import decision
from stream.records.decision import CLAUDE_CODE, CONSTRAINTS, ORDER, SLOTS
from stream.transformers.reasoning import BASES, SUBJECTS

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


class EventRule(Struct, frozen=True):
    section: str  #: of the contract; `folder`: what only a whole run folder can show
    sentence: str
    severity: Literal["error", "warning"] = "error"


def _one_of(kind: object) -> str:
    return f"one of {', '.join(get_args(kind))}"


_NUMBERS = "where they are there, numbers or null"
RULES: dict[str, EventRule] = {
    # 1: the file
    "line.utf8": EventRule("1.1", "A line is UTF-8."),
    "line.json_object": EventRule(
        "1.1", "A line is a JSON object, nested no deeper than can be read."
    ),
    "line.duplicate_key": EventRule("1.1", "No key stands twice in an object of a line."),
    "line.length": EventRule(
        "1.1", f"A line is no longer than {MAX_LINE} bytes: it could not be held."
    ),
    "line.decision_event": EventRule("1.1", "Every line of a run's own file is a DecisionEvent."),
    "timestamp.order": EventRule("1.1", "No event of a run is earlier than the event before it."),
    "run.one": EventRule("1.2", "A run's own file has the events of one run."),
    "run.incomplete": EventRule(
        "1.2", "A run goes on to run_finished, and nothing of it was lost."
    ),
    "run.missing": EventRule("1.2", "None of the nine events is missing before one that is there."),
    "run.twice": EventRule("1.2", "Each of the nine events is there once."),
    "run.order": EventRule(
        "3.2", "The nine events are in their order, and nothing comes after them."
    ),
    "event.name": EventRule(
        "1.2",
        "An event is named, by event_type or by the [name] that action_summary begins with, as"
        f" one of {', '.join(SLOTS)}.",
    ),
    "event.names_agree": EventRule(
        "1.2", "Where both are there, event_type is the [name] that action_summary begins with."
    ),
    # 2: the fields of every event
    "schema_version": EventRule("2", "schema_version is a string."),
    "event_id": EventRule("2", "event_id is a string."),
    "event_id.unique": EventRule("2", "No two events have the same event_id."),
    "timestamp": EventRule(
        "2", "timestamp is a string, and a time, by which events can be ordered."
    ),
    "timestamp.rfc3339": EventRule(
        "2",
        "timestamp is an RFC 3339 time in UTC: recommended, and what orders it; a date alone is the"
        " beginning of its day.",
        "warning",
    ),
    "trace_id": EventRule("2", "trace_id is a string."),
    "span_id": EventRule("2", "span_id is a string."),
    "parent_span_id": EventRule("2", "parent_span_id is there, a string or null."),
    "observability_mode": EventRule("3.3", 'observability_mode is "black_box".'),
    "prompt.visible": EventRule(
        "3.3",
        "No field claims to see the prompt: but in request, none whose name has `prompt` in it"
        " holds true, a text other than unknown, an array or an object.",
    ),
    "session": EventRule("2", "session is an object."),
    "request": EventRule("2", "request is an object."),
    "prompt_provenance": EventRule("2", "prompt_provenance is an object."),
    "model_output": EventRule("2", "model_output is an object."),
    "agent_action": EventRule("2", "agent_action is an object."),
    "evaluation": EventRule("2", "evaluation is an object."),
    # 3: across events
    "trace_id.constant": EventRule("3.1", "All events of a run have the same trace_id."),
    "run.constant": EventRule(
        "3.1",
        "All events of a run have the same schema_version, session_id, agent_id, agent_version,"
        " environment and capture_mode.",
    ),
    "span_id.unique": EventRule("3.1", "No two events of a run have the same span_id."),
    "parent_span_id.earlier": EventRule(
        "3.1", "A parent is the span of an earlier event of the run."
    ),
    "parent_span_id.root": EventRule(
        "3.1", "Only the first event of a run, its root, has no parent."
    ),
    # 4.1
    "session.session_id": EventRule("4.1", "session.session_id is a string."),
    "session.run_id": EventRule("4.1", "session.run_id is a string."),
    "session.agent_id": EventRule(
        "4.1", f'session.agent_id is "{CLAUDE_CODE}"; under --profile agents, any name.'
    ),
    "session.agent_version": EventRule("4.1", "session.agent_version is a string."),
    "session.environment": EventRule(
        "4.1", f"session.environment is {_one_of(decision.Environment)}."
    ),
    # 4.2
    "request.request_id": EventRule("4.2", "request.request_id is a string."),
    "request.user_request_raw": EventRule("4.2", "request.user_request_raw is a string."),
    "request.constraints": EventRule("4.2", "request.constraints is an array of objects."),
    "request.context": EventRule("4.2", "request.context is an object."),
    "constraint.id": EventRule("4.2.1", "The id of a constraint is a string."),
    "constraint.type": EventRule(
        "4.2.1", f"The type of a constraint is {_one_of(decision.ConstraintType)}."
    ),
    "constraint.rule": EventRule("4.2.1", "The rule of a constraint is a string."),
    "constraint.canonical": EventRule(
        "4.2.2",
        "A constraint that the contract knows has its type: "
        + ", ".join(f"{known.id} {known.type}" for known in CONSTRAINTS.values())
        + ".",
    ),
    # 4.3
    "prompt_provenance.provider": EventRule("4.3", "prompt_provenance.provider is a string."),
    "prompt_provenance.model": EventRule("4.3", "prompt_provenance.model is a string."),
    "prompt_provenance.capture_mode": EventRule(
        "4.3", f"prompt_provenance.capture_mode is {_one_of(decision.CaptureMode)}."
    ),
    "prompt_provenance.prompt_bundle": EventRule(
        "4.3.1", "prompt_provenance.prompt_bundle is null."
    ),
    "prompt_provenance.prompt_bundle_hash": EventRule(
        "4.3.1", 'prompt_provenance.prompt_bundle_hash is "unknown".'
    ),
    "prompt_provenance.parameters": EventRule(
        "4.3",
        "prompt_provenance.parameters is an object; temperature, top_p and max_tokens are,"
        f" {_NUMBERS}.",
    ),
    # 4.4
    "model_output.completion_id": EventRule(
        "4.4", "model_output.completion_id is a string or null."
    ),
    "model_output.completion_id.null": EventRule(
        "4.4", "model_output.completion_id is null: who looks from outside sees none.", "warning"
    ),
    "model_output.output_raw": EventRule(
        "4.4", 'model_output.output_raw is "captured_as_artifact" or null.'
    ),
    "model_output.output_structured": EventRule(
        "4.4", "model_output.output_structured is an object or null."
    ),
    "model_output.tool_calls": EventRule("4.4.1", "model_output.tool_calls is []."),
    "model_output.usage": EventRule(
        "4.4",
        "model_output.usage is an object; input_tokens, output_tokens and latency_ms are,"
        f" {_NUMBERS}.",
    ),
    # 4.5
    "agent_action.action_type": EventRule(
        "4.5", f"agent_action.action_type is {_one_of(decision.ActionType)}."
    ),
    "agent_action.action_summary": EventRule("4.5", "agent_action.action_summary is a string."),
    "agent_action.artifacts": EventRule("4.5", "agent_action.artifacts is an array of objects."),
    "agent_action.tool_results": EventRule(
        "4.5", "agent_action.tool_results is []: a recorder uses no tools."
    ),
    "artifact.type": EventRule("4.5.1", "The type of an artifact is a string."),
    "artifact.id": EventRule("4.5.1", "The id of an artifact is a string."),
    "artifact.summary": EventRule("4.5.1", "The summary of an artifact is a string."),
    "artifact.content_ref": EventRule(
        "4.5.1", "The content_ref of an artifact is a string or null."
    ),
    "artifact.hash": EventRule("4.5.1", "The hash of an artifact is a string."),
    "artifact.metadata": EventRule("4.5.1", "The metadata of an artifact is an object."),
    "run.stdout_log": EventRule("4.5.2", "A run references a stdout_log, claude_stdout.txt."),
    "run.stderr_log": EventRule("4.5.2", "A run references a stderr_log, claude_stderr.txt."),
    "run.diff": EventRule("4.5.2", "A run references a diff, fs_diff.patch."),
    "run.command_log": EventRule(
        "4.5.2", "A run with commands_observed references a command_log, command_logs.jsonl."
    ),
    # 4.6
    "evaluation.alignment": EventRule("4.6", "evaluation.alignment is an object."),
    "evaluation.quality": EventRule("4.6", "evaluation.quality is an object."),
    "evaluation.policy": EventRule("4.6", "evaluation.policy is an object."),
    "evaluation.status": EventRule(
        "4.6", f"The status of alignment, quality and policy is {_one_of(decision.Status)}."
    ),
    "evaluation.contradiction": EventRule(
        "4.6",
        "The status of alignment, quality or policy is the worst of its judged checks and its"
        " violations, where it has any; unknown does not contradict that the worst is a pass.",
    ),
    "evaluation.told": EventRule(
        "4.6",
        "A status that the action_summary of evaluation_performed or run_finished tells is that of"
        " the evaluation.",
    ),
    "run.evaluation": EventRule("4.6", "run_finished has the statuses of evaluation_performed."),
    "evaluation.score": EventRule(
        "4.6", "A score is a number or null; quality and policy may leave it out."
    ),
    "evaluation.violations": EventRule("4.6.1", "alignment has violations, an array of objects."),
    "evaluation.checks": EventRule("4.6.2", "quality and policy have checks, an array of objects."),
    "violation.id": EventRule("4.6.4", "The id of a violation is a string."),
    "violation.severity": EventRule("4.6.4", "The severity of a violation is one of warn, fail."),
    "violation.message": EventRule("4.6.4", "The message of a violation is a string."),
    "violation.evidence": EventRule("4.6.4", "The evidence of a violation is a string."),
    "check.id": EventRule("4.6.5", "The id of a check is a string."),
    "check.status": EventRule("4.6.5", f"The status of a check is {_one_of(decision.Status)}."),
    "check.evidence": EventRule("4.6.5", "The evidence of a check is a string."),
    # 5
    "unknown.null": EventRule("5.1", "null stands only where the contract allows it."),
    "unknown.empty": EventRule(
        "5.2", 'An id or a name is not empty: what is not known is "unknown".'
    ),
    # 6
    "action_summary.reasoning": EventRule(
        "6",
        "action_summary tells no reasoning or intent: nobody who stands for the agent (its name,"
        f" {', '.join(SUBJECTS)}, it, they) is the subject of a verb of mind"
        f" ({', '.join(BASES)}) in any tense, mood or voice, nor has a belief, an intention or the"
        " like. What an option is given in quotes is a quotation.",
    ),
    "evaluation.outcome": EventRule(
        "6",
        "A status of pass, warn or fail rests on something: a violation or a judged check with"
        f" evidence, or an artifact of the same event ({', '.join(sorted(SOURCES))}).",
    ),
    "evidence.source": EventRule(
        "6",
        "An evidence names its source: stdout, stderr, diff, patch, command log, or a sha256:"
        " digest of at least 8 digits.",
    ),
    # 7
    "evidence.given": EventRule(
        "7", "A violation, and a check of pass, warn or fail, has evidence."
    ),
    "evidence.bounded": EventRule("7", f"An evidence has no more than {MOST_EVIDENCE} characters."),
    # the run folder
    "folder.metadata": EventRule("folder", "metadata.json is there, a stream.run.v1 document."),
    "folder.contract": EventRule(
        "folder", "metadata.json names its contract: those of other recorders say less.", "warning"
    ),
    "folder.run_id": EventRule("folder", "metadata, events and manifest are of the same run."),
    "folder.evidence": EventRule(
        "folder", "Every record of the kernel evidence keeps its contract."
    ),
    "folder.constraints": EventRule("4.2.2", "Every constraint of the scenario is in an event."),
    "folder.record": EventRule(
        "folder",
        "The lines of boundary.ndjson and of the files of records under artifacts/ keep their"
        " contracts, as `stream validate` has them.",
    ),
    "artifact.inside": EventRule("folder", "A content_ref leads to a place inside the run folder."),
    "artifact.present": EventRule("folder", "What a content_ref names is there, a regular file."),
    "artifact.digest": EventRule("folder", "The hash of an artifact is that of its file."),
    "artifact.checkable": EventRule(
        "folder", "The hash of an artifact with a file is sha256: and 64 digits.", "warning"
    ),
    "manifest.document": EventRule("folder", "artifacts/manifest.json is a stream.manifest.v1."),
    "manifest.inside": EventRule("folder", "What the manifest lists is inside the run folder."),
    "manifest.present": EventRule("folder", "What the manifest lists is there, a regular file."),
    "manifest.digest": EventRule("folder", "What the manifest lists has its size and its digest."),
    "manifest.events": EventRule(
        "folder", "The events before the last one are those that the manifest has the digest of."
    ),
    "manifest.unlisted": EventRule("folder", "The manifest lists every file under artifacts/."),
    "diff.checkable": EventRule(
        "folder", "git is there, and can be asked about the diff.", "warning"
    ),
    "diff.parses": EventRule("folder", "git can read fs_diff.patch."),
    "diff.applies": EventRule(
        "folder",
        "fs_diff.patch can be taken back from the workspace, unless that was changed since.",
        "warning",
    ),
}

_FINISHED = len(ORDER)


class RuleFault(NamedTuple):
    """A rule that something breaks, and where in the event."""

    rule: str
    message: str
    path: str = ""


class Reference(Struct, gc=False):
    """An artifact, as far as the whole run is concerned."""

    type: str
    id: str
    content_ref: str | None
    lost: int = 0  #: bytes that there was no room for


#: what all events of a run have alike, by the path
CONSTANT = (
    ("schema_version",),
    ("prompt_provenance", "capture_mode"),
    ("session", "session_id"),
    ("session", "agent_id"),
    ("session", "agent_version"),
    ("session", "environment"),
)
PARTS = ("alignment", "quality", "policy")  #: of an evaluation


def lost_of(value: Any) -> int:
    """How many bytes an artifact says that there was no room for; 7.0 are seven as well."""
    is_whole = type(value) is int or (type(value) is float and value.is_integer())
    return int(value) if is_whole and value > 0 else 0


class EventKey(Struct):
    """What an event says that other events of its run have to agree with. None: unusable."""

    name: str | None
    event_id: str | None
    at: datetime | None
    trace_id: str | None
    span_id: str | None
    parent: str | UnsetType | None  #: UNSET: unusable
    run_id: str | None
    constant: tuple[str | None, ...]
    statuses: tuple[str | None, ...]
    references: list[Reference]


class Location(Struct, gc=False):
    """Where an event stands."""

    source: str | UnsetType = UNSET
    line: float | UnsetType = UNSET
    event_id: str | None = None


class TrackedRun(Struct):
    """What is known of a run that is not over."""

    run_id: str
    last: Location
    next: int = 0  #: the place among the nine of the event that is to come
    skipped: dict[int, Location] = {}  #: those that did not come in time, and what came instead
    nameless: int = 0  #: events that may be one of the skipped
    trace_id: str | None = None
    at: datetime | None = None
    spans: set[str] = field(default_factory=set)
    is_blurred: bool = False  #: a span id was unusable: a parent may be that one
    names: set[str] = field(default_factory=set)  #: of files that are referenced as what they are
    has_commands: bool = False
    lost: dict[str, int] = {}
    constant: tuple[str | None, ...] | None = None
    statuses: tuple[str | None, ...] | None = None  #: of evaluation_performed
    is_torn: bool = False


class RunTracker:
    """All runs of a stream."""

    def __init__(self, *, is_alone: bool) -> None:
        self.seen = 0  #: runs
        self._is_alone = is_alone  #: there should be one
        self._open: dict[str, TrackedRun] = {}
        self._over: set[str] = set()
        self._event_ids: set[str] = set()
        self._of_trace: dict[str, str] = {}
        self._last: TrackedRun | None = None  #: the run of the event before

    def add(self, facts: EventKey, place: Location) -> list[RuleFault]:
        """What the event breaks, together with those before it."""
        faults: list[RuleFault] = []
        if facts.event_id is not None:
            if facts.event_id in self._event_ids:
                faults.append(RuleFault("event_id.unique", "was there before", "$.event_id"))
            self._event_ids.add(facts.event_id)
        run_id = facts.run_id if facts.run_id is not None else self._guess(facts)
        if run_id in self._over:
            message = f"comes after {ORDER[-1][0]}, and all events of the run are there"
            return [*faults, RuleFault("run.order", message)]
        run = self._open.get(run_id)
        if run is None:
            run = self._begin(run_id, facts, place)
            if self._is_alone and self.seen > 1:
                faults.append(
                    RuleFault("run.one", "another run than in the lines before", "$.session.run_id")
                )
        self._last = run
        run.last = place
        self._follow(run, facts, faults)
        if facts.constant != run.constant:
            run.constant = _constant(run.constant, facts.constant, faults)
        if facts.name == "evaluation_performed":
            run.statuses = facts.statuses
        elif facts.name == "run_finished" and run.statuses is not None:
            _compare(run.statuses, facts.statuses, faults)
        if facts.name is None:
            run.nameless += 1
        elif SLOTS[facts.name] == run.next:
            run.next += 1
        else:
            _reorder(run, facts.name, place, faults)
        if facts.name == "commands_observed":
            run.has_commands = True
        for reference in facts.references:
            _refer(run, reference)
        if run.next == _FINISHED and not run.skipped:
            faults += _finished(run)
            self._close(run)
        return faults

    def tear(self) -> bool:
        """A torn line came: whether it is the end of a run that was cut off."""
        if self._last is None:
            return False
        self._last.is_torn = True
        return True

    def finish(self) -> Iterator[tuple[RuleFault, Location]]:
        """What is missing in the runs that are open."""
        for run in self._open.values():
            yield from _ended(run)

    def _begin(self, run_id: str, facts: EventKey, place: Location) -> TrackedRun:
        if self._of_trace.get(facts.trace_id or "") == "":  # its first events did not say it
            run = self._open.pop("")
            run.run_id = run_id
        else:
            self.seen += 1
            run = TrackedRun(run_id, place)
        self._open[run_id] = run
        if facts.trace_id is not None:
            self._of_trace[facts.trace_id] = run_id
        return run

    def _close(self, run: TrackedRun) -> None:
        self._over.add(run.run_id)
        del self._open[run.run_id]
        self._of_trace.pop(run.trace_id or "", None)
        self._last = None

    def _guess(self, facts: EventKey) -> str:
        """The run of an event that does not say it: that of its trace, or of the event before."""
        known = self._of_trace.get(facts.trace_id or "")
        if known is None and self._last:
            known = self._last.run_id
        return known or ""

    def _follow(self, run: TrackedRun, facts: EventKey, faults: list[RuleFault]) -> None:
        """Trace, spans and time."""
        if run.trace_id is None:
            run.trace_id = facts.trace_id
        elif facts.trace_id is not None and facts.trace_id != run.trace_id:
            faults.append(
                RuleFault("trace_id.constant", "is not that of the events before", "$.trace_id")
            )
        spans, parent = run.spans, facts.parent
        if parent is None:
            if spans or run.is_blurred:
                message = "null, but this is not the first event of the run"
                faults.append(RuleFault("parent_span_id.root", message, "$.parent_span_id"))
        elif parent is not UNSET and parent not in spans and not run.is_blurred:
            message = "is not the span_id of an earlier event of the run"
            faults.append(RuleFault("parent_span_id.earlier", message, "$.parent_span_id"))
        if facts.span_id is None:
            run.is_blurred = True
        elif facts.span_id in spans:
            faults.append(
                RuleFault("span_id.unique", "is that of an earlier event of the run", "$.span_id")
            )
        else:
            spans.add(facts.span_id)
        if facts.at is not None:
            if run.at is not None and facts.at < run.at:
                message = f"is earlier than the event before it, of {run.at.isoformat()}"
                faults.append(RuleFault("timestamp.order", message, "$.timestamp"))
            run.at = facts.at


def _constant(
    before: tuple[str | None, ...] | None, now: tuple[str | None, ...], faults: list[RuleFault]
) -> tuple[str | None, ...]:
    """What is known by now of what never changes."""
    if before is None:
        return now
    for path, old, new in zip(CONSTANT, before, now, strict=True):
        if old is not None and new is not None and old != new:
            message = visible(f"is {new[:60]!r}, but {old[:60]!r} in the events before")
            faults.append(RuleFault("run.constant", message, f"$.{'.'.join(path)}"))
    return tuple(new if old is None else old for old, new in zip(before, now, strict=True))


def _compare(
    performed: tuple[str | None, ...], finished: tuple[str | None, ...], faults: list[RuleFault]
) -> None:
    for part, old, new in zip(PARTS, performed, finished, strict=True):
        if old is not None and new is not None and old != new:
            message = f"is {new}, but evaluation_performed has {old}"
            faults.append(RuleFault("run.evaluation", message, f"$.evaluation.{part}.status"))


def _reorder(run: TrackedRun, name: str, place: Location, faults: list[RuleFault]) -> None:
    """An event that is not the one that was to come."""
    slot = SLOTS[name]
    if slot > run.next:
        gap = range(run.next, slot)
        forgiven = min(run.nameless, len(gap))
        run.nameless -= forgiven
        run.skipped.update(dict.fromkeys(gap[forgiven:], place))
        run.next = slot + 1
    elif slot in run.skipped:
        del run.skipped[slot]
        message = f"{name} comes too late: later ones of the nine were before it"
        faults.append(RuleFault("run.order", message))
    else:
        what = name if len(ORDER[slot]) == 1 else f"{name}, or its other form,"
        faults.append(RuleFault("run.twice", f"{what} was there before"))


def _refer(run: TrackedRun, reference: Reference) -> None:
    """Which file is referenced as what: by its last name, in content_ref or in the id."""
    for name in (reference.content_ref, reference.id):
        if name is not None:
            run.names.add(f"{reference.type} {name.rpartition('/')[2]}")
    if reference.lost:
        run.lost[reference.content_ref or reference.id] = reference.lost


def _finished(run: TrackedRun) -> Iterator[RuleFault]:
    """What a run that went on to its end has to have."""
    needed = dict(REQUIRED)
    if run.has_commands:
        needed[COMMAND_LOG] = COMMAND_LOG_FILE
    for kind, name in needed.items():
        if f"{kind} {name}" not in run.names:
            yield RuleFault(f"run.{kind}", f"no event of the run references a {kind}, {name}")
    if run.lost:
        lost = ", ".join(f"{count} bytes of {name}" for name, count in run.lost.items())
        yield RuleFault("run.incomplete", f"the run is incomplete: {lost} were lost")


def _ended(run: TrackedRun) -> Iterator[tuple[RuleFault, Location]]:
    """What can be said of a run when no more events come."""
    if run.skipped:
        first = min(run.skipped)
        message = f"missing: {_names(run.skipped)}"
        yield RuleFault("run.missing", message), run.skipped[first]
    if run.next + run.nameless >= _FINISHED:
        for fault in _finished(run):
            yield fault, run.last
    else:
        yield incomplete(run.next, run.is_torn), run.last


def incomplete(reached: int, is_torn: bool) -> RuleFault:
    """The one thing to say of a run that was cut off."""
    message = f"the run is incomplete: it ends before {_names(range(reached, _FINISHED))}"
    if is_torn:
        message += "; its last line is torn, it has no newline"
    return RuleFault("run.incomplete", message)


def _names(slots: Iterable[int]) -> str:
    return ", ".join(" or ".join(ORDER[slot]) for slot in slots)
