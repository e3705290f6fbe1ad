"""Compare a lockfile with a new measurement: what opened, what closed, what can no longer be
measured. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, cast

from msgspec.structs import replace

from stream.boundary.descriptors import known_catalogs
from stream.boundary.measured import Outcome
from stream.boundary.outcomes import (
    LETS_THROUGH,
    ModeSetup,
    OutcomeSide,
    OutcomeTable,
    outcome_change,
)
from stream.compare.lockfile import (
    NONE,
    UNTOLD,
    MeasuredBoundary,
    ParsedLock,
    other_effects_of,
    outcomes_of,
)
from stream.errors import number
from stream.records.boundary import UNKNOWN
from stream.records.lock import BoundaryDrift, CellDrift, CellKey, CellState, LockMode

Change = Literal["opened", "closed", "unmeasured", "measured", "changed", "untold", "unchanged"]
_HEAD = (
    ("sandbox", "sandbox"),
    ("version", "version of the sandbox"),
    ("kernel", "kernel"),
    ("user", "user that the probes run as"),
    ("settings_sha256", "digest of the settings"),
)
DRIFTS: tuple[Change, ...] = ("opened", "closed", "unmeasured", "measured")


def drift_of_lock(
    locked: ParsedLock, found: MeasuredBoundary, name: str, absent: Mapping[str, str] | None = None
) -> BoundaryDrift:
    """Compare a lock with a measurement. `absent`: why modes were not measured, by their names."""
    drift = BoundaryDrift(name, [], [], [], [], [], [], 0, [])
    before = {cell.key: cell.state for cell in locked.lock.cells}
    after = {cell.key: cell.state for cell in found.lock.cells}
    unmeasured_modes = dict(absent or {})
    modes = {mode.name for mode in found.lock.modes}
    for mode in locked.lock.modes:
        if mode.name not in modes:
            unmeasured_modes.setdefault(mode.name, "there is no record of its mode")
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        change = _cell_change(old, new)
        if change == "unchanged":
            drift.unchanged += 1
            continue
        reason = "" if new else unmeasured_modes.get(key[0], "there is no record of it")
        if change in ("unmeasured", "untold"):
            reason = found.reasons.get(key, reason)
        broken = key in found.broken
        getattr(drift, change).append(
            CellDrift(*key, locked.lines.get(key), old, new, reason, broken)
        )
    drift.notes = [
        *(f"{mode}: not measured: {why}" for mode, why in sorted(unmeasured_modes.items())),
        *_mode_notes(locked.lock.modes, found.lock.modes),
        *_version_notes(before, after),
    ]
    return drift


def has_drift(drift: BoundaryDrift) -> bool:
    """Return whether the boundary is another one than is locked."""
    return any(getattr(drift, change) for change in DRIFTS)


def drift_summary(drift: BoundaryDrift) -> str:
    """Return how many cells drifted, in one line."""
    counts = [(change, len(getattr(drift, change))) for change in (*DRIFTS, "changed")]
    words = [f"{count} {change}" for change, count in counts if count]
    what = ", ".join(words) or "no difference"
    rest = f"{number(drift.unchanged, 'cell')} as locked"
    untold = f", {len(drift.untold)} not measured" if drift.untold else ""
    return f"{drift.lock}: {what}; {rest}{untold}"


def describe_drift(change: Change, cell: CellDrift) -> str:
    """Say what became of a cell, in one sentence without its name."""
    before, after = (
        _state_words(one, other)
        for one, other in ((cell.locked, cell.measured), (cell.measured, cell.locked))
    )
    was = f"locked as {before}" if cell.locked else "not in the lockfile"
    if change not in ("unmeasured", "untold"):
        return f"{was}; now {after}"
    is_flaky = cell.measured is not None and len(outcomes_of(cell.measured)) > 1
    return f"{was}; {f'now {after}' if is_flaky else 'not measured now'}: {cell.reason}"


def _state_words(state: CellState | None, other: CellState | None) -> str:
    """Return the outcome of a state and why; where the other one has the same, also what else
    differs."""
    if state is None:
        return ""
    details = [word for word in state.errno.split(",") if word != NONE]
    if other is not None and other.outcome == state.outcome:
        sides = [(one.effect.partition("+")[0], one.control) for one in (state, other)]
        named = zip(("effect", "control"), *sides, strict=True)
        details += [f"{name} {mine}" for name, mine, theirs in named if mine != theirs]
    details += [f"also {effect}" for effect in sorted(other_effects_of(state))]
    return f"{state.outcome} ({', '.join(details)})" if details else state.outcome


def _cell_change(old: CellState | None, new: CellState | None) -> Change:
    """Return how the state of a cell changed. An effect that nobody locked counts as opened, even
    where the operation itself is as closed as it was."""
    if old and new and other_effects_of(new) - other_effects_of(old):
        return "opened"
    before, after = (outcomes_of(state) if state else frozenset[str]() for state in (old, new))
    if change := outcome_change(before, after, LETS_THROUGH):
        return change
    if new is None:
        return "untold" if before <= UNTOLD else "unmeasured"
    if old is None or (before | after) <= UNTOLD:
        return "untold"
    # Of a cell that flaps, the rest is what the last runs happened to be.
    is_same = len(before) > 1 or replace(old, version=new.version) == new
    return "unchanged" if is_same else "changed"


def _mode_notes(locked: Iterable[LockMode], found: Iterable[LockMode]) -> Iterator[str]:
    """Yield what differs in the heads of a lock and of a measurement."""
    before = {mode.name: mode for mode in locked}
    for mode in found:
        old = before.get(mode.name)
        if old is None:
            yield f"{mode.name}: the mode is not in the lockfile"
            continue
        for name, what in _HEAD:
            one, other = getattr(old, name), getattr(mode, name)
            if one != other:
                yield f"{mode.name}: {what}: locked {one or 'none'}, now {other or 'none'}"


def _version_notes(
    locked: Mapping[CellKey, CellState], found: Mapping[CellKey, CellState]
) -> Iterator[str]:
    """Yield the probes that have another version than the lock."""
    versions = {
        (key[2], locked[key].version, found[key].version) for key in locked.keys() & found.keys()
    }
    for probe, one, other in sorted(versions):
        if one != other and UNKNOWN not in (one, other):
            yield f"{probe}: version of the probe: locked {one}, now {other}"


def side_of_lock(locked: ParsedLock, name: str) -> OutcomeSide:
    """Return the outcomes of a lockfile as the side of a report. It has no records."""
    side = OutcomeSide(
        name, OutcomeTable(), remarks=["a lockfile: it has outcomes, and no records"]
    )
    categories = {
        capability: found.category
        for catalog in known_catalogs()
        for capability, found in catalog.capabilities.items()
    }
    for cell in locked.lock.cells:
        category = categories.get(cell.capability, UNKNOWN)
        for outcome in sorted(outcomes_of(cell.state)):
            side.table.add_outcome(
                cell.capability, category, cell.probe, cell.mode, cast("Outcome", outcome)
            )
    for mode in locked.lock.modes:
        setup = ModeSetup(mode.sandbox, mode.version, mode.settings_sha256, None, mode.kernel)
        side.setups[mode.name] = [setup]
    return side
