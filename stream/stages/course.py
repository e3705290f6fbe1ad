"""The rules between events: every run that a stream carries, followed by its run id.

A run whose nine events have come is judged and let go; of it stays its name. What is open at
the end is judged then, so that an event that only comes late is not called missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

from msgspec import UNSET, Struct, UnsetType, field

from stream.errors import visible
from stream.records.decision import ORDER
from stream.stages.rules import COMMAND_LOG, COMMAND_LOG_FILE, REQUIRED, SLOTS

_FINISHED = len(ORDER)


class Fault(NamedTuple):
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


class Facts(Struct):
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


class Place(Struct, gc=False):
    """Where an event stands."""

    source: str | UnsetType = UNSET
    line: float | UnsetType = UNSET
    event_id: str | None = None


class Run(Struct):
    """What is known of a run that is not over."""

    run_id: str
    last: Place
    next: int = 0  #: the place among the nine of the event that is to come
    skipped: dict[int, Place] = {}  #: those that did not come in time, and what came instead
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


class Course:
    """All runs of a stream."""

    def __init__(self, *, is_alone: bool) -> None:
        self.seen = 0  #: runs
        self._is_alone = is_alone  #: there should be one
        self._open: dict[str, Run] = {}
        self._over: set[str] = set()
        self._event_ids: set[str] = set()
        self._of_trace: dict[str, str] = {}
        self._last: Run | None = None  #: the run of the event before

    def add(self, facts: Facts, place: Place) -> list[Fault]:
        """What the event breaks, together with those before it."""
        faults: list[Fault] = []
        if facts.event_id is not None:
            if facts.event_id in self._event_ids:
                faults.append(Fault("event_id.unique", "was there before", "$.event_id"))
            self._event_ids.add(facts.event_id)
        run_id = facts.run_id if facts.run_id is not None else self._guess(facts)
        if run_id in self._over:
            message = f"comes after {ORDER[-1][0]}, and all events of the run are there"
            return [*faults, Fault("run.order", message)]
        run = self._open.get(run_id)
        if run is None:
            run = self._begin(run_id, facts, place)
            if self._is_alone and self.seen > 1:
                faults.append(
                    Fault("run.one", "another run than in the lines before", "$.session.run_id")
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

    def finish(self) -> Iterator[tuple[Fault, Place]]:
        """What is missing in the runs that are open."""
        for run in self._open.values():
            yield from _ended(run)

    def _begin(self, run_id: str, facts: Facts, place: Place) -> Run:
        if self._of_trace.get(facts.trace_id or "") == "":  # its first events did not say it
            run = self._open.pop("")
            run.run_id = run_id
        else:
            self.seen += 1
            run = Run(run_id, place)
        self._open[run_id] = run
        if facts.trace_id is not None:
            self._of_trace[facts.trace_id] = run_id
        return run

    def _close(self, run: Run) -> None:
        self._over.add(run.run_id)
        del self._open[run.run_id]
        self._of_trace.pop(run.trace_id or "", None)
        self._last = None

    def _guess(self, facts: Facts) -> str:
        """The run of an event that does not say it: that of its trace, or of the event before."""
        known = self._of_trace.get(facts.trace_id or "")
        if known is None and self._last:
            known = self._last.run_id
        return known or ""

    def _follow(self, run: Run, facts: Facts, faults: list[Fault]) -> None:
        """Trace, spans and time."""
        if run.trace_id is None:
            run.trace_id = facts.trace_id
        elif facts.trace_id is not None and facts.trace_id != run.trace_id:
            faults.append(
                Fault("trace_id.constant", "is not that of the events before", "$.trace_id")
            )
        spans, parent = run.spans, facts.parent
        if parent is None:
            if spans or run.is_blurred:
                message = "null, but this is not the first event of the run"
                faults.append(Fault("parent_span_id.root", message, "$.parent_span_id"))
        elif parent is not UNSET and parent not in spans and not run.is_blurred:
            message = "is not the span_id of an earlier event of the run"
            faults.append(Fault("parent_span_id.earlier", message, "$.parent_span_id"))
        if facts.span_id is None:
            run.is_blurred = True
        elif facts.span_id in spans:
            faults.append(
                Fault("span_id.unique", "is that of an earlier event of the run", "$.span_id")
            )
        else:
            spans.add(facts.span_id)
        if facts.at is not None:
            if run.at is not None and facts.at < run.at:
                message = f"is earlier than the event before it, of {run.at.isoformat()}"
                faults.append(Fault("timestamp.order", message, "$.timestamp"))
            run.at = facts.at


def _constant(
    before: tuple[str | None, ...] | None, now: tuple[str | None, ...], faults: list[Fault]
) -> tuple[str | None, ...]:
    """What is known by now of what never changes."""
    if before is None:
        return now
    for path, old, new in zip(CONSTANT, before, now, strict=True):
        if old is not None and new is not None and old != new:
            message = visible(f"is {new[:60]!r}, but {old[:60]!r} in the events before")
            faults.append(Fault("run.constant", message, f"$.{'.'.join(path)}"))
    return tuple(new if old is None else old for old, new in zip(before, now, strict=True))


def _compare(
    performed: tuple[str | None, ...], finished: tuple[str | None, ...], faults: list[Fault]
) -> None:
    for part, old, new in zip(PARTS, performed, finished, strict=True):
        if old is not None and new is not None and old != new:
            message = f"is {new}, but evaluation_performed has {old}"
            faults.append(Fault("run.evaluation", message, f"$.evaluation.{part}.status"))


def _reorder(run: Run, name: str, place: Place, faults: list[Fault]) -> None:
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
        faults.append(Fault("run.order", message))
    else:
        what = name if len(ORDER[slot]) == 1 else f"{name}, or its other form,"
        faults.append(Fault("run.twice", f"{what} was there before"))


def _refer(run: Run, reference: Reference) -> None:
    """Which file is referenced as what: by its last name, in content_ref or in the id."""
    for name in (reference.content_ref, reference.id):
        if name is not None:
            run.names.add(f"{reference.type} {name.rpartition('/')[2]}")
    if reference.lost:
        run.lost[reference.content_ref or reference.id] = reference.lost


def _finished(run: Run) -> Iterator[Fault]:
    """What a run that went on to its end has to have."""
    needed = dict(REQUIRED)
    if run.has_commands:
        needed[COMMAND_LOG] = COMMAND_LOG_FILE
    for kind, name in needed.items():
        if f"{kind} {name}" not in run.names:
            yield Fault(f"run.{kind}", f"no event of the run references a {kind}, {name}")
    if run.lost:
        lost = ", ".join(f"{count} bytes of {name}" for name, count in run.lost.items())
        yield Fault("run.incomplete", f"the run is incomplete: {lost} were lost")


def _ended(run: Run) -> Iterator[tuple[Fault, Place]]:
    """What can be said of a run when no more events come."""
    if run.skipped:
        first = min(run.skipped)
        message = f"missing: {_names(run.skipped)}"
        yield Fault("run.missing", message), run.skipped[first]
    if run.next + run.nameless >= _FINISHED:
        for fault in _finished(run):
            yield fault, run.last
    else:
        yield incomplete(run.next, run.is_torn), run.last


def incomplete(reached: int, is_torn: bool) -> Fault:
    """The one thing to say of a run that was cut off."""
    message = f"the run is incomplete: it ends before {_names(range(reached, _FINISHED))}"
    if is_torn:
        message += "; its last line is torn, it has no newline"
    return Fault("run.incomplete", message)


def _names(slots: Iterable[int]) -> str:
    return ", ".join(" or ".join(ORDER[slot]) for slot in slots)
