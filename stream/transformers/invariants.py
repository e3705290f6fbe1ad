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

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from stream.codec import (
    DECODE_ERRORS,
    TOO_EARLY,
    Lines,
    OverlongLine,
    TornLine,
    contract_of,
    explain,
    is_blank,
    reject,
)
from stream.contracts import is_event
from stream.documents import repeated_key
from stream.pipeline import Batch, Counts, by_kind
from stream.records.control import EVENTS, FINDINGS, LINES, Control, Finding, Reject, kind_of
from stream.records.run import Profile
from stream.transformers.event_decoder import decode_good
from stream.transformers.event_fields import facts_of, faults_of
from stream.transformers.event_rules import (
    RULES,
    EventKey,
    Location,
    RuleFault,
    RunTracker,
    incomplete,
)

if TYPE_CHECKING:
    from stream.contracts import Contracts


class Invariants:
    """Lines in; the same lines, findings beside them, and rejects out."""

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
        self._course = RunTracker(is_alone=is_alone)
        self._profile = profile
        self._contracts = contracts  #: asked for where a line of another contract comes
        self._is_alone = is_alone  #: the file of one run, not a pipe of many things
        self._source = source or UNSET  #: said where not even one line is there
        self._is_torn = False

    @property
    def runs(self) -> int:
        return self._course.seen

    def feed(self, given: Batch[bytes], /) -> list[Batch[Any]]:
        batch = given.items
        self.counts.received += len(batch)
        out: list[bytes | Control] = []
        untouched = 0  #: from here on nothing was found
        source: str | UnsetType = UNSET
        number: int | UnsetType = UNSET
        if isinstance(batch, Lines):
            source, number = batch.source, batch.number
        for index, line in enumerate(batch):
            place = Location(source, UNSET if number is UNSET else number + index)
            facts = decode_good(line, self._profile)
            if facts is not None:
                passes, found = True, self._add(facts, place)
            else:
                passes, found = self._look(batch, index, place)
            self.counts.passed += passes
            if found or not passes:
                out += batch[untouched : index + passes]
                out += found
                untouched = index + 1
        if not untouched:
            return [given]
        out += batch[untouched:]
        return by_kind(out, lambda item: given.kind if isinstance(item, bytes) else kind_of(item))

    def finish(self) -> list[Batch[Finding]]:
        if not self._course.seen and self._is_alone:
            place = Location(self._source)
            return [Batch(FINDINGS, [self._finding(incomplete(0, self._is_torn), place)])]
        found = [self._finding(fault, place) for fault, place in self._course.finish()]
        return [Batch(FINDINGS, found)] if found else []

    def _look(
        self, batch: Sequence[bytes], index: int, place: Location
    ) -> tuple[bool, list[Control]]:
        """Whether an item that is no faultless event goes on, and what is to be said of it."""
        line = batch[index]
        if is_blank(line) and not self._is_alone:
            self.counts.filtered += 1
            return False, []
        try:
            value = _decode_object(line)
        except DECODE_ERRORS as error:
            return False, self._reject(batch, index, error)
        if is_event(value):
            place.event_id = facts_of(value).event_id
            faults = [*repeated_faults(line), *faults_of(value, self._profile)]
            found = [self._finding(fault, place) for fault in faults]
            return True, [*found, *self._add(facts_of(value), place)]
        if self._is_alone:
            fault = RuleFault("line.decision_event", "is no DecisionEvent")
            return True, [self._finding(fault, place)]
        return True, self._look_elsewhere(line, place)

    def _look_elsewhere(self, line: bytes, place: Location) -> list[Control]:
        """What is to be said of a line of another contract."""
        contract = contract_of(line)
        contracts = self._contracts() if self._contracts and contract else None
        if contracts is None or contract is None or not contracts.know(contract):
            self.unknown += 1
            return []
        fault = contracts.check(contract, line, "" if place.source is UNSET else place.source)
        if fault is None:
            return []
        self.findings += 1
        self.errors += 1
        found = Finding(
            rule=contract,
            severity="error",
            message=fault.reason,
            source=place.source,
            line=place.line,
            path=fault.path or UNSET,
        )
        return [found]

    def _add(self, facts: EventKey, place: Location) -> list[Control]:
        self.events += 1
        place.event_id = facts.event_id
        faults = self._course.add(facts, place)
        return [self._finding(fault, place) for fault in faults] if faults else []

    def _reject(self, batch: Sequence[bytes], index: int, error: Exception) -> list[Control]:
        """A line that cannot be read. A torn end is not said twice: the run is incomplete."""
        self.counts.rejected += 1
        bad = reject(self.name, batch, index, explain(error))
        line = batch[index]
        if isinstance(line, TornLine) and line.lstrip().startswith(b"{") and self._is_end(bad):
            return [bad]
        rule = "line.utf8" if isinstance(error, UnicodeDecodeError) else "line.json_object"
        if isinstance(line, OverlongLine):
            rule = "line.length"
        reason = bad.reason if line else bad.reason.replace(TOO_EARLY, "it is empty")
        place = Location(*((bad.source, bad.line) if isinstance(batch, Lines) else ()))
        return [self._finding(RuleFault(rule, reason, bad.path or ""), place), bad]

    def _is_end(self, bad: Reject) -> bool:
        """Whether a torn line is the end of a run that was cut off."""
        if self._is_alone and not self._course.seen:
            self._is_torn, self._source = True, bad.source
            return True
        return self._course.tear()

    def _finding(self, fault: RuleFault, place: Location) -> Finding:
        severity = RULES[fault.rule].severity
        self.findings += 1
        self.errors += severity == "error"
        return Finding(
            rule=fault.rule,
            severity=severity,
            message=fault.message,
            source=place.source,
            line=place.line,
            path=fault.path or UNSET,
            event_id=place.event_id or UNSET,
        )


def repeated_faults(line: bytes) -> list[RuleFault]:
    """What nobody can see any more in an event that was decoded."""
    repeated = repeated_key(line)
    return [RuleFault("line.duplicate_key", repeated.reason, repeated.path)] if repeated else []


def event_in(line: bytes) -> dict[str, Any] | None:
    """Whatever is wrong with the line itself, its findings say."""
    try:
        value = _decode(line)
    except DECODE_ERRORS:
        return None
    return value if is_event(value) else None


_decode = msgspec.json.Decoder(dict[str, Any]).decode


def _decode_object(line: bytes) -> dict[str, Any]:
    """Raises one of DECODE_ERRORS."""
    line.decode()  # before anything else is said about it
    return _decode(line)
