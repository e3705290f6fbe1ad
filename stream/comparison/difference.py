"""What one run could do and another could not: `assay.runner.capability_diff.v0`.

It compares sets of values, and calls by their ids; it never guesses that two calls with other ids
are the same. A program by whose name another file ran went and came, where both sides know the
files. Of several reasons why it is not clean, the status names the first of these:

- failed: a side is missing, damaged, of another form, or of several runs. Nothing is compared.
- partial:health: a side's capture is not complete, or lost something, or could not name what was
  reached, or its control group or network coverage does not hold: what is not in its surface may
  have happened nevertheless.
- partial:correlation: a side's correlation is not clean.
- partial:unbound: a side has values in its surface, and no call at all that they could belong to.
  These are listed as unbound.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Literal

from stream.comparison.side import (
    EXECS,
    RUN_FOLDER,
    Evidence,
    knows_programs,
    programs_of,
    values_of,
)
from stream.errors import visible
from stream.evidence.health import degraded
from stream.records.runner import HEALTH_FILE, SURFACE_SETS, CapabilityDiff, Changes

Side = Literal["base", "head"]
_SIDES: tuple[Side, ...] = ("base", "head")

#: Ambiguities that say that a call cannot be told by its id.
_UNSTABLE = (
    "sdk_event_without_tool_call_id",
    "policy_event_without_tool_call_id",
    "sdk_tool_call_duplicate",
)
#: And those that say that something was done for no call that is known.
_UNBOUND = {
    "kernel_events_outside_every_window",
    "kernel_events_of_other_processes",
    "kernel_events_in_overlapping_windows",
    "kernel_events_after_call",
}
_PATHS, _ENDPOINTS = "filesystem_paths", "network_endpoints"
#: By how such a field begins: of which sets nobody knows all then. A feed that had no control group
#: to compare with followed every process of the tree, and is not blind.
_BLIND = {
    **dict.fromkeys(("kernel_layer=", "ringbuf_drops="), (_PATHS, _ENDPOINTS, EXECS)),
    **dict.fromkeys(("cgroup_correlation=partial", "unnamed_"), (_PATHS, _ENDPOINTS, EXECS)),
    "io_uring=": (_PATHS, _ENDPOINTS),
    "network_protocol_coverage=": (_ENDPOINTS,),
}
_SCOPE = {
    "projection": "surface_set",
    "uses_raw_telemetry": False,
    "uses_proof_pack": False,
    "per_binding_capability_values": False,
}


def diff(base: Evidence, head: Evidence) -> CapabilityDiff:
    sides: dict[Side, Evidence] = dict(zip(_SIDES, (base, head), strict=True))
    broken = any(evidence.problems for evidence in sides.values())
    compared = {} if broken else sides  # what is left of evidence proves nothing
    found = CapabilityDiff(
        base_run_id=base.run_id,
        head_run_id=head.run_id,
        status="clean",
        preconditions=_preconditions(sides),
        scope=dict(_SCOPE),
        surface={name: _changes(compared, partial(values_of, name)) for name in SURFACE_SETS},
        binding_ids=_changes(compared, _ids),
        policy_outcomes={"changed": [] if broken else list(_outcomes(base, head))},
        unbound={name: _united(compared, partial(_unbound, name)) for name in SURFACE_SETS},
        ambiguities=sorted(_ambiguities(sides)),
        notes=[],
    )
    replaced = {} if broken else _replaced(sides)
    found.surface[EXECS] = _with_replaced(found.surface[EXECS], replaced)
    found.status = _status(sides, found)
    found.notes = [*_reasons(sides), *_named(replaced), *_remarks(sides, found)]
    return found


def is_same(found: CapabilityDiff) -> bool:
    """Nothing came, went or was decided otherwise, as far as it could be compared."""
    changes = (*found.surface.values(), found.binding_ids)
    return not any(c.added or c.removed for c in changes) and not found.policy_outcomes["changed"]


def is_anything_unbound(found: CapabilityDiff) -> bool:
    """A side did something that belongs to none of its calls, or may not."""
    named = (ambiguity.partition(": ")[2].partition(":")[0] for ambiguity in found.ambiguities)
    told = {note.partition(":")[0] for note in found.notes}
    is_told = any(_outside(side) in told for side in _SIDES)
    return is_told or any(found.unbound.values()) or not _UNBOUND.isdisjoint(named)


def _outside(side: Side) -> str:
    return f"capability_diff_{side}_outside"


def blindness(found: CapabilityDiff, side: Side, name: str) -> list[str]:
    """Why a side may have reached more than it says: the fields that do not hold."""
    code = f"capability_diff_{side}_health: "
    blinding = tuple(beginning for beginning, names in _BLIND.items() if name in names)
    fields = (field for note in found.notes if note.startswith(code) for field in note.split())
    return [field for field in fields if field.startswith(blinding)]


# --- what is compared ---------------------------------------------------------------------------


def _changes(sides: Mapping[Side, Evidence], read: Callable[[Evidence], Iterable[str]]) -> Changes:
    before, after = (set(read(sides[side])) if side in sides else set() for side in _SIDES)
    return Changes(
        added=sorted(after - before),
        removed=sorted(before - after),
        unchanged=sorted(before & after),
    )


def _united(sides: Mapping[Side, Evidence], read: Callable[[Evidence], Iterable[str]]) -> list[str]:
    return sorted({value for evidence in sides.values() for value in read(evidence)})


def _replaced(sides: Mapping[Side, Evidence]) -> dict[str, tuple[list[str], list[str]]]:
    """By the name of a program that both ran: the files that ran, where those are others."""
    base, head = (programs_of(sides[side]) for side in _SIDES)
    return {
        name: (base[name], head[name])
        for name in sorted(base.keys() & head.keys(), key=os.fsencode)
        if base[name] != head[name]
    }


def _with_replaced(changes: Changes, replaced: Mapping[str, object]) -> Changes:
    """What has the same name, and is not the same, went and came."""
    return Changes(
        added=sorted({*changes.added, *replaced}),
        removed=sorted({*changes.removed, *replaced}),
        unchanged=[name for name in changes.unchanged if name not in replaced],
    )


def _named(replaced: Mapping[str, tuple[list[str], list[str]]]) -> Iterator[str]:
    for name, (before, after) in replaced.items():
        told = f"{name}: {', '.join(before)} in base, {', '.join(after)} in head"
        yield f"capability_diff_program_replaced: {visible(told)}"


def _bindings(evidence: Evidence) -> list[Any]:
    return [] if evidence.correlation is None else list(evidence.correlation.bindings)


def _ids(evidence: Evidence) -> list[str]:
    return [binding.tool_call_id for binding in _bindings(evidence)]


def _outcomes(base: Evidence, head: Evidence) -> Iterator[dict[str, Any]]:
    """Of calls that both sides name once: an id that is there twice names none of them."""
    before, after = _decisions(base), _decisions(head)
    for call in sorted(before.keys() & after.keys()):
        if before[call] != after[call]:
            yield {"tool_call_id": call, "base": before[call], "head": after[call]}


def _decisions(evidence: Evidence) -> dict[str, str | None]:
    times = Counter(_ids(evidence))
    bindings = _bindings(evidence)
    return {b.tool_call_id: b.policy_decision for b in bindings if times[b.tool_call_id] == 1}


def _unbound(name: str, evidence: Evidence) -> list[str]:
    return [] if _bindings(evidence) else values_of(name, evidence)


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
    return evidence.correlation is not None and evidence.correlation.status == "clean"


def _has_stable_ids(evidence: Evidence) -> bool:
    """Whether each call can be told by its id, as far as there are any calls."""
    ids = _ids(evidence)
    codes = [] if evidence.correlation is None else evidence.correlation.ambiguities
    unstable = any(code.partition(":")[0] in _UNSTABLE for code in codes)
    return (
        evidence.correlation is not None and all(ids) and len(set(ids)) == len(ids) and not unstable
    )


def _status(
    sides: Mapping[Side, Evidence], found: CapabilityDiff
) -> Literal["clean", "partial:health", "partial:correlation", "partial:unbound", "failed"]:
    if any(evidence.problems for evidence in sides.values()):
        return "failed"
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
    """The contract's own files alone have no room for it, and two of these are as it says."""
    if any(evidence.companion is not None for evidence in sides.values()):
        yield from (side for side, evidence in sides.items() if not knows_programs(evidence))


def _all_of(changes: Changes) -> Iterator[str]:
    yield from (*changes.added, *changes.removed, *changes.unchanged)


def _reasons(sides: Mapping[Side, Evidence]) -> Iterator[str]:
    """Why it is not clean: all reasons, not only the one that the status names."""
    for side, evidence in sides.items():
        for problem in evidence.problems:
            yield f"capability_diff_{side}_unusable: {visible(problem)}"
        if evidence.problems:
            continue
        if degraded := _degraded(evidence):
            yield f"capability_diff_{side}_health: {' '.join(degraded)}"
        if evidence.correlation is not None and evidence.correlation.status != "clean":
            yield f"capability_diff_{side}_correlation: status={evidence.correlation.status}"
        if not _has_stable_ids(evidence):
            yield f"capability_diff_{side}_tool_call_ids: they do not tell its calls apart"
        if any(_unbound(name, evidence) for name in SURFACE_SETS):
            yield f"capability_diff_{side}_unbound: no call is known that its values belong to"


def _remarks(sides: Mapping[Side, Evidence], found: CapabilityDiff) -> Iterator[str]:
    if found.status == "failed":
        return
    base, head = sides.values()
    calls = found.binding_ids
    if any(RUN_FOLDER in value for one in found.surface.values() for value in _all_of(one)):
        yield f"capability_diff_run_folder: each run's own folder is called {RUN_FOLDER}"
    unknown = [*_without_programs(sides)]
    layers = [side.health.kernel_layer for side in (base, head) if side.health is not None]
    if "absent" in layers:
        yield "capability_diff_unobserved: without a kernel layer nobody knows what a run reached"
    elif is_same(found) and not unknown:
        yield "capability_diff_idempotent: base and head evidence sets are identical"
    elif calls.added and calls.removed and not calls.unchanged:
        yield "capability_diff_no_common_call: no tool call id is in both, calls are not compared"
    platforms = [side.health.platform for side in (base, head) if side.health is not None]
    if len({*platforms}) > 1:
        told = visible(f"base is {platforms[0]}, head is {platforms[-1]}")
        yield f"capability_diff_platforms_differ: {told}"
    for side, evidence in sides.items():
        if evidence.companion is not None and any(evidence.companion.unbound.values()):
            yield f"{_outside(side)}: some of it was done between its calls"
    if unknown:
        told = f"which files ran by the names of programs is not known of {' and '.join(unknown)}"
        yield f"capability_diff_programs_unknown: {told}: another by the same name would not show"
    if (base.companion is None) != (head.companion is None):
        yield (
            "capability_diff_rules_differ: only one of them was recorded by rules that leave out"
            " failed opens and connects to port 0"
        )
