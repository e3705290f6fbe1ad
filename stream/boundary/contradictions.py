"""Compare what a policy promises with what was measured. Pure.

A promise is about every probe of its capability, in every mode but the one without a sandbox. Of
records that were not measured from outside, what the probe reports counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeVar

from stream.boundary.measured import Outcome, untold_reason
from stream.boundary.outcomes import outcome_of_any
from stream.errors import shorten_text
from stream.records.boundary import Boundary
from stream.records.control import Finding
from stream.records.mode_files import Promise
from stream.records.modes import BASELINE, ModeBoundary
from stream.records.policies import (
    Contradiction,
    ContradictionKind,
    Policy,
    UnmeasuredSetting,
)

R = TypeVar("R", bound=Boundary)
_KINDS: tuple[ContradictionKind, ...] = ("fail-open", "fail-closed", "untold")
_THROUGH: tuple[Outcome, ...] = ("open", "partial")
_SHOWN = 200  #: characters of what a probe says
_STOPPED: tuple[Outcome, ...] = ("closed", "diverted")


class PromiseCheck:
    """Judges records one by one."""

    def __init__(self, policy: Policy) -> None:
        self.kept = 0  #: records that agree with what is promised
        self._policy = policy
        self._promises = {one.capability: one for one in policy.promises}
        self._measured: set[str] = set()  #: capabilities
        self._found: dict[tuple[str, str, str, str], Contradiction] = {}

    def judged(self, records: Iterable[R]) -> Iterator[R]:
        """Judge records, and pass them on."""
        for record in records:
            self.judge(record)
            yield record

    def judge(self, record: Boundary) -> None:
        """Judge a record by the promise about its capability, if there is one."""
        promise = self._promises.get(record.probe.primary_capability_id)
        if promise is None or _is_control(record):
            return
        self._measured.add(promise.capability)
        outcome = outcome_of_any(record)
        kind = contradiction_kind(promise.promise, outcome)
        if kind is None:
            self.kept += 1
            return
        mode, probe = record.run.mode, record.probe.id
        found = Contradiction(kind, promise, mode, probe, _what_became(record, outcome))
        cell = (kind, promise.capability, mode, probe)
        self._found[cell] = min(found, self._found.get(cell, found), key=lambda one: one.what)

    def contradictions(self) -> list[Contradiction]:
        """List what does not agree, what got through first."""
        unmeasured = (
            Contradiction("untold", one, "", "", "no probe of it was run")
            for one in self._policy.promises
            if one.capability not in self._measured
        )
        return sorted([*self._found.values(), *unmeasured], key=_order)

    def findings(self) -> list[Finding]:
        """List the same as findings, and the settings that promise nothing after them."""
        settings = self._policy.unmeasured
        return [*map(_finding_of, self.contradictions()), *map(_setting_finding, settings)]

    @property
    def summary(self) -> str:
        """Return how many cells agree, and how many do not."""
        counts = Counter(one.kind for one in self.contradictions())
        kinds = ", ".join(f"{counts[kind]} {kind}" for kind in _KINDS)
        return f"{kinds}; {self.kept} as promised"


def contradiction_kind(promise: Promise, outcome: Outcome) -> ContradictionKind | None:
    """Return how a cell contradicts a promise; None if it does not. To ask counts as to deny:
    nobody answers a probe."""
    if outcome in _THROUGH:
        return None if promise == "allow" else "fail-open"
    if outcome in _STOPPED:
        return "fail-closed" if promise == "allow" else None
    return "untold"


def _is_control(record: Boundary) -> bool:
    """Tell whether a record shows what the probe does without a sandbox."""
    return isinstance(record, ModeBoundary) and record.run.mode == BASELINE


def _what_became(record: Boundary, outcome: Outcome) -> str:
    """Return what became of a cell, in words."""
    result = record.result
    said = shorten_text(result.message or result.errno or "it does not say more", _SHOWN)
    if outcome == "open" and isinstance(record, ModeBoundary) and record.effect.state == "seen":
        return f"{record.effect.expected} was seen on the host"
    if outcome in _THROUGH:
        part = "some of it, " if outcome == "partial" else ""
        return f"{part}as the probe reports: {said}"
    if outcome == "diverted":
        return "the probe was told yes, and nothing of it reached the host"
    if outcome == "closed":
        return said if result.errno is None else f"{result.errno}: {said}"
    return untold_reason(record, outcome)


_SENTENCES: dict[ContradictionKind, str] = {
    "fail-open": "{cell} got through ({what}), but {promise}",
    "fail-closed": "{cell} did not get through ({what}), but {promise}",
    "untold": "{cell}: {what}; {promise}",
}


def _finding_of(found: Contradiction) -> Finding:
    """Put a contradiction into words, at the line that promises."""
    promise, setting = found.promise, found.promise.setting
    counts = ", which counts as deny" if promise.promise == "ask" else ""
    said = f"{promise.capability} is promised {promise.promise}{counts}: {setting.text}"
    sentence = f"{found.what}: {said}"
    if found.probe:
        cell = f"{found.probe} in {found.mode}"
        sentence = _SENTENCES[found.kind].format(cell=cell, what=found.what, promise=said)
    return Finding(
        rule=f"policy.{found.kind}",
        severity="error" if found.kind == "fail-open" else "warning",
        message=f"{found.kind}: {sentence}",
        source=setting.source,
        line=setting.line,
    )


def _setting_finding(unmeasured: UnmeasuredSetting) -> Finding:
    """Put a setting that promises nothing into words."""
    return Finding(
        rule="policy.unmeasured",
        severity="warning",
        message=f"{unmeasured.name}: {unmeasured.reason}",
        source=unmeasured.setting.source,
        line=unmeasured.setting.line,
    )


def _order(found: Contradiction) -> tuple[int, str, str, str]:
    return _KINDS.index(found.kind), found.mode, found.promise.capability, found.probe
