"""Compare what two runs could do (`assay.runner.capability_diff.v0`), and check it for the words of
`stream diff --fail-on`.

Values are compared as sets, calls by their ids; calls with different ids are never matched. If both
sides know which files ran by the name of a program and these differ, the name is removed and added.
If there are several reasons why a comparison is not clean, the status is the first of these:

- failed: a side is missing, damaged, of another form, or of several runs. Nothing is compared.
- partial:health: the capture of a side is incomplete, lost events, could not name what was reached,
  or its control group or network coverage is partial: more may have happened than its surface has.
- partial:correlation: the correlation of a side is not clean.
- partial:unbound: a side has values in its surface but no call that they could belong to. They are
  listed as unbound.

Parts of names that change in every run are replaced before names are compared. What the user
ignores, and what varies among runs of the same kind, is not compared. Notes count all of that.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal

from stream.compare.evidence import ENDPOINTS, EXECS, PATHS, Evidence, compare_names, knows_programs
from stream.compare.names import RUN_FOLDER
from stream.errors import number, visible
from stream.evidence.health import degraded
from stream.records.artifacts import HEALTH_FILE, SURFACE_SETS, CapabilityDiff, Changes

Side = Literal["base", "head"]
_SIDES: tuple[Side, ...] = ("base", "head")

#: Ambiguities by which the ids of calls are not unique.
_UNSTABLE = (
    "sdk_event_without_tool_call_id",
    "policy_event_without_tool_call_id",
    "sdk_tool_call_duplicate",
)
#: Ambiguities by which something was done outside of every known call.
_UNBOUND = {
    "kernel_events_outside_every_window",
    "kernel_events_of_other_processes",
    "kernel_events_in_overlapping_windows",
    "kernel_events_after_call",
}
#: By the beginning of a degraded field: the sets that are then incomplete. A feed without a control
#: group to compare with followed every process of the tree, so its sets are complete.
_BLIND = {
    **dict.fromkeys(("kernel_layer=", "ringbuf_drops="), (PATHS, ENDPOINTS, EXECS)),
    **dict.fromkeys(("cgroup_correlation=partial", "unnamed_"), (PATHS, ENDPOINTS, EXECS)),
    "io_uring=": (PATHS, ENDPOINTS),
    "network_protocol_coverage=": (ENDPOINTS,),
}
_SCOPE = {
    "projection": "surface_set",
    "uses_raw_telemetry": False,
    "uses_proof_pack": False,
    "per_binding_capability_values": False,
}


def diff(
    base: Evidence,
    head: Evidence,
    *,
    baseline: Sequence[Evidence] = (),
    ignore: Sequence[str] = (),
) -> CapabilityDiff:
    """Compare two runs. `baseline`: other runs of the same kind as `base`. `ignore`: patterns of
    paths and programs."""
    sides: dict[Side, Evidence] = dict(zip(_SIDES, (base, head), strict=True))
    broken = any(evidence.problems for evidence in (base, head, *baseline))
    compare_names([base, head, *baseline])
    compared = {} if broken else sides  # the rest of broken evidence proves nothing
    excluded = _Excluded([*compared.values()], [base, *baseline] if compared else [], ignore)
    found = CapabilityDiff(
        base_run_id=base.run_id,
        head_run_id=head.run_id,
        status="clean",
        preconditions=_preconditions(sides),
        scope=dict(_SCOPE),
        surface={name: _changes(compared, partial(excluded.rest, name)) for name in SURFACE_SETS},
        binding_ids=_changes(compared, _ids),
        policy_outcomes={"changed": [] if broken else list(_outcomes(base, head))},
        unbound={
            name: _united(compared, partial(_unbound, excluded, name)) for name in SURFACE_SETS
        },
        ambiguities=sorted(_ambiguities(sides)),
        notes=[],
    )
    replaced = {} if broken else _replaced(base, head, baseline, excluded)
    found.surface[EXECS] = _with_replaced(found.surface[EXECS], replaced)
    found.status = "failed" if broken else _status(sides, found)
    found.notes = [
        *_reason_notes(sides, baseline),
        *_replaced_notes(replaced),
        *([] if broken else [*_renamed(sides), *excluded.notes()]),
        *_remark_notes(sides, found, is_whole=not excluded.is_any),
    ]
    return found


def is_same(found: CapabilityDiff) -> bool:
    """Return whether nothing was added, removed or decided differently."""
    changes = (*found.surface.values(), found.binding_ids)
    return not any(c.added or c.removed for c in changes) and not found.policy_outcomes["changed"]


def is_anything_unbound(found: CapabilityDiff) -> bool:
    """Return whether a side did something that belongs to no call, or may not."""
    named = (ambiguity.partition(": ")[2].partition(":")[0] for ambiguity in found.ambiguities)
    codes = {note.partition(":")[0] for note in found.notes}
    is_outside = any(_outside(side) in codes for side in _SIDES)
    return is_outside or any(found.unbound.values()) or not _UNBOUND.isdisjoint(named)


def _outside(side: Side) -> str:
    return f"capability_diff_{side}_outside"


def blindness(found: CapabilityDiff, side: Side, name: str) -> list[str]:
    """Return the degraded fields by which a side may have reached more than a set has."""
    code = f"capability_diff_{side}_health: "
    fields = (field for note in found.notes if note.startswith(code) for field in note.split())
    return _blinding(fields, name)


def _blinding(fields: Iterable[str], name: str) -> list[str]:
    blinding = tuple(beginning for beginning, names in _BLIND.items() if name in names)
    return [field for field in fields if field.startswith(blinding)]


# --- what is compared ---------------------------------------------------------------------------


class _Excluded:
    """Values that are not compared: they match a pattern, or vary among runs of a kind."""

    def __init__(
        self, sides: Sequence[Evidence], kind: Sequence[Evidence], ignore: Sequence[str]
    ) -> None:
        self._runs = len(kind)
        self._ignored: dict[str, set[tuple[str, str]]] = {pattern: set() for pattern in ignore}
        self._flapping: dict[str, set[str]] = {}
        self._left: dict[str, set[str]] = {}
        for name in SURFACE_SETS:
            compared = {value for one in sides for value in one.values.get(name, ())}
            matching: set[str] = set()
            for pattern in ignore if name in (PATHS, EXECS) else ():
                found = {value for value in compared if fnmatchcase(value, pattern)}
                self._ignored[pattern] |= {(name, value) for value in found}
                matching |= found
            self._flapping[name] = (_flapping(kind, name) & compared) - matching
            self._left[name] = matching | self._flapping[name]

    @property
    def is_any(self) -> bool:
        """Return whether any value is excluded."""
        return any(self._left.values())

    def has(self, name: str, value: str) -> bool:
        """Return whether a value of a set is excluded."""
        return value in self._left[name]

    def rest(self, name: str, evidence: Evidence) -> list[str]:
        """Return the values of a set that are compared."""
        return [v for v in evidence.values.get(name, ()) if not self.has(name, v)]

    def notes(self) -> Iterator[str]:
        """Yield notes that count what is excluded."""
        for pattern, found in self._ignored.items():
            yield f"capability_diff_ignored: {len(found)} values match {visible(pattern)}"
        counts = [f"{name}={len(found)}" for name, found in self._flapping.items() if found]
        if counts:
            text = f"in some of {self._runs} runs of a kind, not in all: {' '.join(counts)}"
            yield f"capability_diff_flapping: {text}"


def _flapping(kind: Sequence[Evidence], name: str) -> set[str]:
    """Return the values that only some runs have. An incomplete run does not prove that a value is
    missing."""
    if len(kind) < 2:
        return set()
    seen = [set(run.values.get(name, ())) for run in kind if not _blinding(_degraded(run), name)]
    some = {value for run in kind for value in run.values.get(name, ())}
    return some - set[str].intersection(*seen) if seen else set()


def _renamed(sides: Mapping[Side, Evidence]) -> Iterator[str]:
    """Yield a note on the rules that replaced names, and in how many values."""
    counts = [
        f"{side} {' '.join(f'{rule}={count}' for rule, count in evidence.renamed.items())}"
        for side, evidence in sides.items()
        if evidence.renamed
    ]
    if counts:
        text = "parts of names that change in every run are not compared"
        yield f"capability_diff_names: {text}: {', '.join(counts)}"


def _changes(sides: Mapping[Side, Evidence], read: Callable[[Evidence], Iterable[str]]) -> Changes:
    before, after = (set(read(sides[side])) if side in sides else set() for side in _SIDES)
    return Changes(
        added=sorted(after - before),
        removed=sorted(before - after),
        unchanged=sorted(before & after),
    )


def _united(sides: Mapping[Side, Evidence], read: Callable[[Evidence], Iterable[str]]) -> list[str]:
    return sorted({value for evidence in sides.values() for value in read(evidence)})


def _replaced(
    base: Evidence, head: Evidence, baseline: Sequence[Evidence], excluded: _Excluded
) -> dict[str, tuple[list[str], list[str]]]:
    """Return, by the name of a program that both ran, the files that ran, where these differ."""
    before, after, *others = (run.programs for run in (base, head, *baseline))
    return {
        name: (before[name], after[name])
        for name in sorted(before.keys() & after.keys(), key=os.fsencode)
        if after[name] not in (before[name], *(one.get(name) for one in others))
        and not excluded.has(EXECS, name)
    }


def _with_replaced(changes: Changes, replaced: Mapping[str, object]) -> Changes:
    """List replaced programs as removed and added."""
    return Changes(
        added=sorted({*changes.added, *replaced}),
        removed=sorted({*changes.removed, *replaced}),
        unchanged=[name for name in changes.unchanged if name not in replaced],
    )


def _replaced_notes(replaced: Mapping[str, tuple[list[str], list[str]]]) -> Iterator[str]:
    for name, (before, after) in replaced.items():
        text = f"{name}: {', '.join(before)} in base, {', '.join(after)} in head"
        yield f"capability_diff_program_replaced: {visible(text)}"


def _bindings(evidence: Evidence) -> list[Any]:
    return [] if evidence.correlation is None else list(evidence.correlation.bindings)


def _ids(evidence: Evidence) -> list[str]:
    return [binding.tool_call_id for binding in _bindings(evidence)]


def _outcomes(base: Evidence, head: Evidence) -> Iterator[dict[str, Any]]:
    """Yield calls with different decisions, if their id is unique on both sides."""
    before, after = _decisions(base), _decisions(head)
    for call in sorted(before.keys() & after.keys()):
        if before[call] != after[call]:
            yield {"tool_call_id": call, "base": before[call], "head": after[call]}


def _decisions(evidence: Evidence) -> dict[str, str | None]:
    times = Counter(_ids(evidence))
    bindings = _bindings(evidence)
    return {b.tool_call_id: b.policy_decision for b in bindings if times[b.tool_call_id] == 1}


def _unbound(excluded: _Excluded, name: str, evidence: Evidence) -> list[str]:
    return [] if _bindings(evidence) else excluded.rest(name, evidence)


# --- how far it can be trusted ------------------------------------------------------------------


def _preconditions(sides: Mapping[Side, Evidence]) -> dict[str, bool]:
    both = sides.values()
    return {
        **{f"{side}_health_clean": _is_healthy(sides[side]) for side in sides},
        **{f"{side}_correlation_clean": _is_correlated(sides[side]) for side in sides},
        "stable_tool_call_ids_required": True,
        "stable_tool_call_ids_present": all(_ids(one) and _has_stable_ids(one) for one in both),
    }


def _degraded(evidence: Evidence) -> list[str]:
    return ["it is missing"] if evidence.health is None else degraded(evidence.health)


def _is_healthy(evidence: Evidence) -> bool:
    is_broken = any(problem.startswith(HEALTH_FILE) for problem in evidence.problems)
    return not is_broken and not _degraded(evidence)


def _is_correlated(evidence: Evidence) -> bool:
    is_clean = evidence.correlation is not None and evidence.correlation.status == "clean"
    return is_clean and not evidence.doubt


def _has_stable_ids(evidence: Evidence) -> bool:
    """Return whether the ids of all calls are present and unique."""
    ids = _ids(evidence)
    codes = [] if evidence.correlation is None else evidence.correlation.ambiguities
    unstable = any(code.partition(":")[0] in _UNSTABLE for code in codes)
    unstable |= evidence.has_nameless_calls
    return (
        evidence.correlation is not None and all(ids) and len(set(ids)) == len(ids) and not unstable
    )


def _status(
    sides: Mapping[Side, Evidence], found: CapabilityDiff
) -> Literal["clean", "partial:health", "partial:correlation", "partial:unbound", "failed"]:
    if any(map(_degraded, sides.values())):
        return "partial:health"
    holds = found.preconditions
    if not (holds["base_correlation_clean"] and holds["head_correlation_clean"]):
        return "partial:correlation"
    if not all(map(_has_stable_ids, sides.values())):
        return "partial:correlation"
    return "partial:unbound" if any(found.unbound.values()) else "clean"


def _ambiguities(sides: Mapping[Side, Evidence]) -> Iterator[str]:
    for side, evidence in sides.items():
        if evidence.correlation is not None:
            yield from {f"{side}: {code}" for code in evidence.correlation.ambiguities}


def _without_programs(sides: Mapping[Side, Evidence]) -> Iterator[str]:
    """Yield the sides that do not know which files ran. Two archives with only the contract's own
    files cannot know, and are compared as they are."""
    if any(evidence.companion is not None for evidence in sides.values()):
        yield from (side for side, evidence in sides.items() if not knows_programs(evidence))


def _all_of(changes: Changes) -> Iterator[str]:
    yield from (*changes.added, *changes.removed, *changes.unchanged)


def _reason_notes(sides: Mapping[Side, Evidence], baseline: Sequence[Evidence]) -> Iterator[str]:
    """Yield a note for every reason why the comparison is not clean."""
    for problem in (problem for evidence in baseline for problem in evidence.problems):
        yield f"capability_diff_baseline_unusable: {visible(problem)}"
    for side, evidence in sides.items():
        for problem in evidence.problems:
            yield f"capability_diff_{side}_unusable: {visible(problem)}"
        if evidence.problems:
            continue
        if degraded := _degraded(evidence):
            yield f"capability_diff_{side}_health: {' '.join(degraded)}"
        if evidence.correlation is not None and not _is_correlated(evidence):
            doubt = f" {visible(evidence.doubt)}" if evidence.doubt else ""
            yield f"capability_diff_{side}_correlation: status={evidence.correlation.status}{doubt}"
        if not _has_stable_ids(evidence):
            yield f"capability_diff_{side}_tool_call_ids: they are not unique"
        if not _bindings(evidence) and any(evidence.values.values()):
            yield f"capability_diff_{side}_unbound: its values belong to no known call"


def _remark_notes(
    sides: Mapping[Side, Evidence], found: CapabilityDiff, *, is_whole: bool
) -> Iterator[str]:
    if found.status == "failed":
        return
    base, head = sides.values()
    calls = found.binding_ids
    if any(RUN_FOLDER in value for one in found.surface.values() for value in _all_of(one)):
        yield f"capability_diff_run_folder: each run's own folder is called {RUN_FOLDER}"
    unknown = [*_without_programs(sides)]
    layers = [side.health.kernel_layer for side in (base, head) if side.health is not None]
    if "absent" in layers:
        yield "capability_diff_unobserved: without a kernel layer it is unknown what a run reached"
    elif is_same(found) and not unknown and is_whole:
        yield "capability_diff_idempotent: base and head evidence sets are identical"
    elif calls.added and calls.removed and not calls.unchanged:
        yield "capability_diff_no_common_call: no tool call id is in both, calls are not compared"
    platforms = [side.health.platform for side in (base, head) if side.health is not None]
    if len({*platforms}) > 1:
        text = visible(f"base is {platforms[0]}, head is {platforms[-1]}")
        yield f"capability_diff_platforms_differ: {text}"
    for side, evidence in sides.items():
        if evidence.companion is not None and any(evidence.companion.unbound.values()):
            yield f"{_outside(side)}: some of its events happened between its calls"
    if unknown:
        text = f"it is unknown in {' and '.join(unknown)} which files ran by the names of programs"
        yield f"capability_diff_programs_unknown: {text}: a replaced file would not show"
    if (base.companion is None) != (head.companion is None):
        yield (
            "capability_diff_rules_differ: only one side was recorded by rules that filter failed"
            " opens and connects to port 0"
        )


#: By word: a set of the surface, and the noun for one value of it.
_SETS = {
    "paths": ("filesystem_paths", "path"),
    "endpoints": ("network_endpoints", "endpoint"),
    "execs": ("process_execs", "program"),
    "tools": ("mcp_tools", "tool"),
    "decisions": ("policy_decisions", "decision"),
}
WORDS = (
    *(f"{how}-{what}" for what in _SETS for how in ("added", "removed")),
    *("changed-policy", "partial", "unbound", "any"),
)
_NO_KERNEL = "kernel_layer=absent"


def reason(word: str, found: CapabilityDiff) -> str:
    """Return why a word of --fail-on applies, or an empty string."""
    if word == "any":
        return ", ".join(_all_reasons(found))
    if word == "partial":
        return "" if found.status == "clean" else f"the status is {found.status}: {found.notes[0]}"
    if word == "unbound":
        return "something belongs to no call" if is_anything_unbound(found) else ""
    if word == "changed-policy":
        count = len(found.policy_outcomes["changed"])
        return f"{number(count, 'call')} decided differently" if count else ""
    how, _, what = word.partition("-")
    name, one = _SETS[what]
    count = len(getattr(found.surface[name], how))
    # What was added cannot be known where the capture is incomplete.
    blind = _blind(found, "head" if how == "added" else "base", name)
    return "; ".join(filter(None, (number(count, one) if count else "", blind)))


def _all_reasons(found: CapabilityDiff) -> Iterator[str]:
    words = [word for word in WORDS if word != "any" and reason(word, found)]
    yield from words
    if not words and not is_same(found):
        yield "a call is on one side only"


def _blind(found: CapabilityDiff, side: Side, name: str) -> str:
    fields = blindness(found, side, name)
    if not fields:
        return ""
    who = "A" if side == "base" else "B"
    if _NO_KERNEL in fields:
        return f"{who} has no kernel layer, so it cannot be known"
    return f"the capture of {who} is incomplete ({' '.join(fields)}), so it cannot be known"
