"""check: the events of agent runs, held against every rule of their contract.

A DecisionEvent passes on unchanged, whatever it breaks: it is evidence, and its findings go
beside it. What is no JSON object is a finding and a reject. Lines of other contracts pass, with
what `validate` finds in them beside them.

A line is taken for a DecisionEvent if it names no contract in `schema` and has
`observability_mode`, or an `event_type` of the ten, or `trace_id`, `span_id` and one of the
six sections: the first are ours alone, the others a broken event still has, and a span of
another tool does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Struct, UnsetType, field

from stream.codec import (
    DECODE_ERRORS,
    TOO_EARLY,
    Lines,
    OverlongLine,
    TornLine,
    contract_of,
    decode_fault,
    is_blank,
    make_reject,
)
from stream.errors import printable
from stream.pipeline import Batch, Counts, batches_by_kind
from stream.records.control import (
    EVENTS,
    FINDINGS,
    LINES,
    Control,
    Fault,
    Finding,
    Reject,
    kind_of_item,
)
from stream.records.decision import ORDER, PARTS, SLOTS, Artifact, DecisionEvent
from stream.records.run import Profile
from stream.transformers.event_rules import (
    COMMAND_LOG,
    COMMAND_LOG_FILE,
    REQUIRED,
    SOURCES,
    event_name,
    event_rules,
    lost_bytes_of,
    parse_event_time,
    read_event,
)

if TYPE_CHECKING:
    from stream.contracts import Contracts


class Invariants:
    """Check lines against the contract of an agent run: they pass on, with findings and rejects."""

    name = "check"
    kinds = (LINES, EVENTS)

    def __init__(
        self,
        profile: Profile = "poc",
        *,
        is_alone: bool,
        source: str = "",
        contracts: Callable[[], Contracts] | None = None,
    ) -> None:
        self.counts = Counts()
        self.events = 0
        self.findings = 0
        self.errors = 0  #: findings that make the answer no
        self.unknown = 0  #: lines of contracts that nobody here knows: they went on unchecked
        self._runs = RunTracker(is_alone=is_alone)
        self._profile = profile
        self._contracts = contracts  #: asked for where a line of another contract comes
        self._is_alone = is_alone  #: the file of one run, not a pipe of many things
        self._source = source or UNSET  #: named where not even one line is there
        self._is_torn = False

    @property
    def runs(self) -> int:
        """Count the runs that events came from."""
        return self._runs.seen

    def feed(self, given: Batch[bytes], /) -> list[Batch[Any]]:
        """Check a batch; findings follow the line that they are about."""
        batch = given.items
        self.counts.received += len(batch)
        out: list[bytes | Control] = []
        untouched = 0  #: from here on nothing was found
        source: str | UnsetType = UNSET
        number: int | UnsetType = UNSET
        if isinstance(batch, Lines):
            source, number = batch.source, batch.number
        for index, line in enumerate(batch):
            location = Location(source, UNSET if number is UNSET else number + index)
            passes, found = self._check_line(line, batch, index, location)
            self.counts.passed += passes
            if found or not passes:
                out += batch[untouched : index + passes]
                out += found
                untouched = index + 1
        if not untouched:
            return [given]
        out += batch[untouched:]
        return batches_by_kind(
            out, lambda item: given.kind if isinstance(item, bytes) else kind_of_item(item)
        )

    def finish(self) -> list[Batch[Finding]]:
        """Find what the runs lack that are not over."""
        if not self._runs.seen and self._is_alone:
            fault = _incomplete_run(0, self._is_torn)
            return [Batch(FINDINGS, [self._make_finding(fault, Location(self._source))])]
        found = [self._make_finding(fault, location) for fault, location in self._runs.finish()]
        return [Batch(FINDINGS, found)] if found else []

    def _check_line(
        self, line: bytes, batch: Sequence[bytes], index: int, location: Location
    ) -> tuple[bool, Sequence[Control]]:
        """Say whether a line goes on, and what was found in it."""
        try:
            read = read_event(line, self._profile)
        except DECODE_ERRORS as error:
            if is_blank(line) and not self._is_alone:
                self.counts.filtered += 1
                return False, ()
            return False, self._reject_line(batch, index, error)
        if read is None:
            return True, self._check_other_contract(line, location)
        event, faults = read
        self.events += 1
        location.event_id = event.event_id
        faults += self._runs.add_event(event, location)
        return True, [self._make_finding(fault, location) for fault in faults] if faults else ()

    def _check_other_contract(self, line: bytes, location: Location) -> list[Control]:
        """Find what is wrong with a line of another contract."""
        if self._is_alone:
            fault = Fault("is no DecisionEvent", rule="line.decision_event")
            return [self._make_finding(fault, location)]
        contract = contract_of(line)
        contracts = self._contracts() if self._contracts and contract else None
        if contracts is None or contract is None or not contracts.knows_contract(contract):
            self.unknown += 1
            return []
        source = "" if location.source is UNSET else location.source
        found = contracts.check_record(contract, line, source)
        return [self._make_finding(found._replace(rule=contract), location)] if found else []

    def _reject_line(self, batch: Sequence[bytes], index: int, error: Exception) -> list[Control]:
        """Reject a line that cannot be read. A torn end is said once: the run is incomplete."""
        self.counts.rejected += 1
        bad = make_reject(self.name, batch, index, decode_fault(error))
        line = batch[index]
        is_torn_object = isinstance(line, TornLine) and line.lstrip().startswith(b"{")
        if is_torn_object and self._is_end_of_run(bad):
            return [bad]
        rule = "line.utf8" if isinstance(error, UnicodeDecodeError) else "line.json_object"
        if isinstance(line, OverlongLine):
            rule = "line.length"
        reason = bad.reason if line else bad.reason.replace(TOO_EARLY, "it is empty")
        location = Location(*((bad.source, bad.line) if isinstance(batch, Lines) else ()))
        return [self._make_finding(Fault(reason, bad.path or "", rule), location), bad]

    def _is_end_of_run(self, bad: Reject) -> bool:
        """Return whether a torn line is the end of a run that was cut off."""
        if self._is_alone and not self._runs.seen:
            self._is_torn, self._source = True, bad.source
            return True
        return self._runs.note_torn_line()

    def _make_finding(self, fault: Fault, location: Location) -> Finding:
        """Make the finding of a fault in an event of an agent run, and count it."""
        rule = event_rules().get(fault.rule)
        severity = "error" if rule is None else rule.severity
        self.findings += 1
        self.errors += severity == "error"
        return Finding(
            rule=fault.rule,
            severity=severity,
            message=fault.reason,
            source=location.source,
            line=location.line,
            path=fault.path or UNSET,
            event_id=location.event_id or UNSET,
        )


class Location(Struct, gc=False):
    """The place of an event."""

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
    has_unknown_span: bool = False  #: a span id was unusable: a parent may be that one
    names: set[str] = field(default_factory=set)  #: of files that are referenced as what they are
    has_commands: bool = False
    lost: dict[str, int] = {}
    constants: tuple[str | None, ...] | None = None
    statuses: tuple[str | None, ...] | None = None  #: of evaluation_performed
    is_torn: bool = False


class RunTracker:
    """Follow every run of a stream by its run id, and find what its events break together.

    A run whose nine events have come is checked and dropped; of it stays its name. What is open
    at the end is checked then, so that an event that only comes late is not called missing.
    """

    def __init__(self, *, is_alone: bool) -> None:
        self.seen = 0  #: runs
        self._is_alone = is_alone  #: there should be one
        self._open: dict[str, TrackedRun] = {}
        self._over: set[str] = set()
        self._event_ids: set[str] = set()
        self._of_trace: dict[str, str] = {}
        self._last: TrackedRun | None = None  #: the run of the event before

    def add_event(self, event: DecisionEvent, location: Location) -> list[Fault]:
        """Find what an event breaks together with those before it."""
        faults: list[Fault] = []
        if event.event_id:
            if event.event_id in self._event_ids:
                faults.append(Fault("was there before", "$.event_id", "event_id.unique"))
            self._event_ids.add(event.event_id)
        run_id = event.session.run_id or self._guess_run(event)
        if run_id in self._over:
            message = f"comes after {ORDER[-1][0]}, and all events of the run are there"
            return [*faults, Fault(message, rule="run.order")]
        run = self._open.get(run_id)
        if run is None:
            run = self._begin_run(run_id, event, location)
            if self._is_alone and self.seen > 1:
                message = "another run than in the lines before"
                faults.append(Fault(message, "$.session.run_id", "run.one"))
        self._last = run
        run.last = location
        _check_trace_and_time(run, event, faults)
        constants = _constants_of(event)
        if constants != run.constants:
            run.constants = _merge_constants(run.constants, constants, faults)
        name = event_name(event.event_type, event.agent_action.action_summary)
        if name == "evaluation_performed":
            run.statuses = _statuses_of(event.evaluation)
        elif name == "run_finished" and run.statuses is not None:
            _compare_evaluations(run.statuses, _statuses_of(event.evaluation), faults)
        if name is None:
            run.nameless += 1
        elif SLOTS[name] == run.next:
            run.next += 1
        else:
            _note_event_out_of_order(run, name, location, faults)
        if name == "commands_observed":
            run.has_commands = True
        for artifact in event.agent_action.artifacts:
            _note_artifact_reference(run, artifact)
        if run.next == _FINISHED and not run.skipped:
            faults += _find_missing_of_whole_run(run)
            self._close_run(run)
        return faults

    def note_torn_line(self) -> bool:
        """Note a torn line, and say whether it is the end of a run that was cut off."""
        if self._last is None:
            return False
        self._last.is_torn = True
        return True

    def finish(self) -> Iterator[tuple[Fault, Location]]:
        """Find what the runs lack that are open when no more events come."""
        for run in self._open.values():
            if run.skipped:
                message = f"missing: {_event_names(run.skipped)}"
                yield Fault(message, rule="run.missing"), run.skipped[min(run.skipped)]
            if run.next + run.nameless >= _FINISHED:
                yield from ((fault, run.last) for fault in _find_missing_of_whole_run(run))
            else:
                yield _incomplete_run(run.next, run.is_torn), run.last

    def _begin_run(self, run_id: str, event: DecisionEvent, location: Location) -> TrackedRun:
        """Begin to track a run, or name the run whose first events did not name it."""
        if self._of_trace.get(event.trace_id or "") == "":  # its first events did not name it
            run = self._open.pop("")
            run.run_id = run_id
        else:
            self.seen += 1
            run = TrackedRun(run_id, location)
        self._open[run_id] = run
        if event.trace_id:
            self._of_trace[event.trace_id] = run_id
        return run

    def _close_run(self, run: TrackedRun) -> None:
        """Note that a run is over: no event of it is to come."""
        self._over.add(run.run_id)
        del self._open[run.run_id]
        self._of_trace.pop(run.trace_id or "", None)
        self._last = None

    def _guess_run(self, event: DecisionEvent) -> str:
        """Take an event that names no run for one of its trace's, or of the event's before it."""
        known = self._of_trace.get(event.trace_id or "")
        if known is None and self._last:
            known = self._last.run_id
        return known or ""


#: what all events of a run have alike
_CONSTANTS = (
    "schema_version",
    "prompt_provenance.capture_mode",
    "session.session_id",
    "session.agent_id",
    "session.agent_version",
    "session.environment",
)


_constants_of = attrgetter(*_CONSTANTS)
_statuses_of = attrgetter(*(f"{part}.status" for part in PARTS))
_FINISHED = len(ORDER)


def _check_trace_and_time(run: TrackedRun, event: DecisionEvent, faults: list[Fault]) -> None:
    """Check trace, spans and time."""
    if run.trace_id is None:
        run.trace_id = event.trace_id
    elif event.trace_id and event.trace_id != run.trace_id:
        faults.append(Fault("is not that of the events before", "$.trace_id", "trace_id.constant"))
    spans, parent, path = run.spans, event.parent_span_id, "$.parent_span_id"
    if parent is None:
        if spans or run.has_unknown_span:
            message = "null, but this is not the first event of the run"
            faults.append(Fault(message, path, "parent_span_id.root"))
    elif parent and parent not in spans and not run.has_unknown_span:
        message = "is not the span_id of an earlier event of the run"
        faults.append(Fault(message, path, "parent_span_id.earlier"))
    if not event.span_id:
        run.has_unknown_span = True
    elif event.span_id in spans:
        message = "is that of an earlier event of the run"
        faults.append(Fault(message, "$.span_id", "span_id.unique"))
    else:
        spans.add(event.span_id)
    at, _ = parse_event_time(event.timestamp)
    if at is not None:
        if run.at is not None and at < run.at:
            message = f"is earlier than the event before it, of {run.at.isoformat()}"
            faults.append(Fault(message, "$.timestamp", "timestamp.order"))
        run.at = at


def _merge_constants(
    before: tuple[str | None, ...] | None, now: tuple[str | None, ...], faults: list[Fault]
) -> tuple[str | None, ...]:
    """Find what changed that never does, and give what is known of it by now."""
    if before is None:
        return now
    for path, old, new in zip(_CONSTANTS, before, now, strict=True):
        if old is not None and new is not None and old != new:
            message = printable(f"is {new[:60]!r}, but {old[:60]!r} in the events before")
            faults.append(Fault(message, f"$.{path}", "run.constant"))
    return tuple(new if old is None else old for old, new in zip(before, now, strict=True))


def _compare_evaluations(
    performed: tuple[str | None, ...], finished: tuple[str | None, ...], faults: list[Fault]
) -> None:
    """Find what the last event of a run states of its evaluation otherwise than the one before."""
    for part, old, new in zip(PARTS, performed, finished, strict=True):
        if old is not None and new is not None and old != new:
            message = f"is {new}, but evaluation_performed has {old}"
            faults.append(Fault(message, f"$.evaluation.{part}.status", "run.evaluation"))


def _note_event_out_of_order(
    run: TrackedRun, name: str, location: Location, faults: list[Fault]
) -> None:
    """Take in an event that is not the one that was to come."""
    slot = SLOTS[name]
    if slot > run.next:
        gap = range(run.next, slot)
        excused = min(run.nameless, len(gap))
        run.nameless -= excused
        run.skipped.update(dict.fromkeys(gap[excused:], location))
        run.next = slot + 1
    elif slot in run.skipped:
        del run.skipped[slot]
        message = f"{name} comes too late: later ones of the nine were before it"
        faults.append(Fault(message, rule="run.order"))
    else:
        what = name if len(ORDER[slot]) == 1 else f"{name}, or its other form,"
        faults.append(Fault(f"{what} was there before", rule="run.twice"))


def _note_artifact_reference(run: TrackedRun, artifact: Artifact) -> None:
    """Note which file is referenced as what: by its last name, in content_ref or in the id."""
    if artifact.type in SOURCES:
        for name in (artifact.content_ref, artifact.id):
            if name:
                run.names.add(f"{artifact.type} {name.rpartition('/')[2]}")
    stated = artifact.metadata.get("lost_bytes")
    if stated is not None and (lost := lost_bytes_of(stated)):
        run.lost[artifact.content_ref or artifact.id] = lost


def _find_missing_of_whole_run(run: TrackedRun) -> Iterator[Fault]:
    """Find what a run lacks that went on to its end."""
    needed = dict(REQUIRED)
    if run.has_commands:
        needed[COMMAND_LOG] = COMMAND_LOG_FILE
    for kind, name in needed.items():
        if f"{kind} {name}" not in run.names:
            yield Fault(f"no event of the run references a {kind}, {name}", rule=f"run.{kind}")
    if run.lost:
        lost = ", ".join(f"{count} bytes of {name}" for name, count in run.lost.items())
        yield Fault(f"the run is incomplete: {lost} were lost", rule="run.incomplete")


def _incomplete_run(reached: int, is_torn: bool) -> Fault:
    """Describe a run that was cut off."""
    message = f"the run is incomplete: it ends before {_event_names(range(reached, _FINISHED))}"
    if is_torn:
        message += "; its last line is torn, it has no newline"
    return Fault(message, rule="run.incomplete")


def _event_names(slots: Iterable[int]) -> str:
    return ", ".join(" or ".join(ORDER[slot]) for slot in slots)
