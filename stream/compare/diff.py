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
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from itertools import zip_longest
from typing import Any, Literal

import msgspec
from msgspec import Struct

from stream.boundary.outcomes import outcome_change
from stream.codec import DECODE_ERRORS, read_records
from stream.compare.names import RUN_FOLDER
from stream.compare.sides import (
    ENDPOINTS,
    EXECS,
    PATHS,
    DamagedError,
    Evidence,
    compare_names,
    evidence_of,
    has_any_file,
    knows_programs,
    read_artifacts,
    read_lines,
)
from stream.errors import InputError, number, printable
from stream.evidence.health import degraded_fields
from stream.records.artifacts import (
    DETAIL_FILE,
    HEALTH_FILE,
    KERNEL_FILE,
    MARKERS_FILE,
    POLICY_FILE,
    SDK_FILE,
    SURFACE_SETS,
    CapabilityDiff,
    Changes,
)
from stream.records.boundary import BoundaryDiff, CellChange, CellSide, Status

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


def diff_runs(
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
    excluded = _ExcludedValues([*compared.values()], [base, *baseline] if compared else [], ignore)
    found = CapabilityDiff(
        base_run_id=base.run_id,
        head_run_id=head.run_id,
        status="clean",
        preconditions=_diff_preconditions(sides),
        scope=dict(_SCOPE),
        surface={
            name: _set_changes(compared, partial(excluded.remaining_values, name))
            for name in SURFACE_SETS
        },
        binding_ids=_set_changes(compared, _call_ids_of),
        policy_outcomes={"changed": [] if broken else list(_outcome_changes(base, head))},
        unbound={name: _unbound_values(compared, excluded, name) for name in SURFACE_SETS},
        ambiguities=sorted(_ambiguities(sides)),
        notes=[],
    )
    replaced = {} if broken else _replaced_programs(base, head, baseline, excluded)
    found.surface[EXECS] = _with_replaced_programs(found.surface[EXECS], replaced)
    found.status = "failed" if broken else _diff_status(sides, found)
    found.notes = [
        *_reason_notes(sides, baseline),
        *_replaced_notes(replaced),
        *([] if broken else [*_rename_notes(sides), *excluded.exclusion_notes()]),
        *_remark_notes(sides, found, is_whole=not excluded.is_any),
    ]
    return found


def has_no_changes(found: CapabilityDiff) -> bool:
    """Return whether a diff has nothing that was added, removed or decided differently."""
    changes = (*found.surface.values(), found.binding_ids)
    return not any(c.added or c.removed for c in changes) and not found.policy_outcomes["changed"]


def has_unbound_activity(found: CapabilityDiff) -> bool:
    """Return whether a side did something that belongs to no call, or may not."""
    named = (ambiguity.partition(": ")[2].partition(":")[0] for ambiguity in found.ambiguities)
    codes = {note.partition(":")[0] for note in found.notes}
    is_outside = any(_outside(side) in codes for side in _SIDES)
    return is_outside or any(found.unbound.values()) or not _UNBOUND.isdisjoint(named)


def _outside(side: Side) -> str:
    return f"capability_diff_{side}_outside"


def degraded_fields_of_set(found: CapabilityDiff, side: Side, name: str) -> list[str]:
    """Return the degraded fields by which a side may have reached more than a set has."""
    code = f"capability_diff_{side}_health: "
    fields = (field for note in found.notes if note.startswith(code) for field in note.split())
    return _fields_that_degrade(fields, name)


def _fields_that_degrade(fields: Iterable[str], name: str) -> list[str]:
    blinding = tuple(beginning for beginning, names in _BLIND.items() if name in names)
    return [field for field in fields if field.startswith(blinding)]


# --- what is compared ---------------------------------------------------------------------------


class _ExcludedValues:
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
            self._flapping[name] = (_flapping_values(kind, name) & compared) - matching
            self._left[name] = matching | self._flapping[name]

    @property
    def is_any(self) -> bool:
        """Return whether any value is excluded."""
        return any(self._left.values())

    def excludes(self, name: str, value: str) -> bool:
        """Return whether a value of a set is excluded."""
        return value in self._left[name]

    def remaining_values(self, name: str, evidence: Evidence) -> list[str]:
        """Return the values of a set that are compared."""
        return [v for v in evidence.values.get(name, ()) if not self.excludes(name, v)]

    def exclusion_notes(self) -> Iterator[str]:
        """Yield notes of a diff that count the values which it excludes."""
        for pattern, found in self._ignored.items():
            yield f"capability_diff_ignored: {len(found)} values match {printable(pattern)}"
        counts = [f"{name}={len(found)}" for name, found in self._flapping.items() if found]
        if counts:
            text = f"in some of {self._runs} runs of a kind, not in all: {' '.join(counts)}"
            yield f"capability_diff_flapping: {text}"


def _flapping_values(kind: Sequence[Evidence], name: str) -> set[str]:
    """Return the values that only some runs have. An incomplete run does not prove that a value is
    missing."""
    if len(kind) < 2:
        return set()
    seen = [
        set(run.values.get(name, ()))
        for run in kind
        if not _fields_that_degrade(_degraded_fields_of(run), name)
    ]
    some = {value for run in kind for value in run.values.get(name, ())}
    return some - set[str].intersection(*seen) if seen else set()


def _rename_notes(sides: Mapping[Side, Evidence]) -> Iterator[str]:
    """Yield a note on the rules that replaced names, and in how many values."""
    counts = [
        f"{side} {' '.join(f'{rule}={count}' for rule, count in evidence.renamed.items())}"
        for side, evidence in sides.items()
        if evidence.renamed
    ]
    if counts:
        text = "parts of names that change in every run are not compared"
        yield f"capability_diff_names: {text}: {', '.join(counts)}"


def _set_changes(
    sides: Mapping[Side, Evidence], read: Callable[[Evidence], Iterable[str]]
) -> Changes:
    """Return which values of one set were added, removed or unchanged between two runs."""
    before, after = (set(read(sides[side])) if side in sides else set() for side in _SIDES)
    return Changes(
        added=sorted(after - before),
        removed=sorted(before - after),
        unchanged=sorted(before & after),
    )


def _replaced_programs(
    base: Evidence, head: Evidence, baseline: Sequence[Evidence], excluded: _ExcludedValues
) -> dict[str, tuple[list[str], list[str]]]:
    """Return, by the name of a program that both ran, the files that ran, where these differ."""
    before, after, *others = (run.programs for run in (base, head, *baseline))
    return {
        name: (before[name], after[name])
        for name in sorted(before.keys() & after.keys(), key=os.fsencode)
        if after[name] not in (before[name], *(one.get(name) for one in others))
        and not excluded.excludes(EXECS, name)
    }


def _with_replaced_programs(changes: Changes, replaced: Mapping[str, object]) -> Changes:
    """List replaced programs as removed and added."""
    return Changes(
        added=sorted({*changes.added, *replaced}),
        removed=sorted({*changes.removed, *replaced}),
        unchanged=[name for name in changes.unchanged if name not in replaced],
    )


def _replaced_notes(replaced: Mapping[str, tuple[list[str], list[str]]]) -> Iterator[str]:
    for name, (before, after) in replaced.items():
        text = f"{name}: {', '.join(before)} in base, {', '.join(after)} in head"
        yield f"capability_diff_program_replaced: {printable(text)}"


def _bindings(evidence: Evidence) -> list[Any]:
    return [] if evidence.correlation is None else list(evidence.correlation.bindings)


def _call_ids_of(evidence: Evidence) -> list[str]:
    return [binding.tool_call_id for binding in _bindings(evidence)]


def _outcome_changes(base: Evidence, head: Evidence) -> Iterator[dict[str, Any]]:
    """Yield calls with different decisions, if their id is unique on both sides."""
    before, after = _decisions(base), _decisions(head)
    for call in sorted(before.keys() & after.keys()):
        if before[call] != after[call]:
            yield {"tool_call_id": call, "base": before[call], "head": after[call]}


def _decisions(evidence: Evidence) -> dict[str, str | None]:
    times = Counter(_call_ids_of(evidence))
    bindings = _bindings(evidence)
    return {b.tool_call_id: b.policy_decision for b in bindings if times[b.tool_call_id] == 1}


def _unbound_values(
    sides: Mapping[Side, Evidence], excluded: _ExcludedValues, name: str
) -> list[str]:
    """Return the compared values of a set on the sides without any call to belong to."""
    unbound = [evidence for evidence in sides.values() if not _bindings(evidence)]
    return sorted({value for one in unbound for value in excluded.remaining_values(name, one)})


# --- how far it can be trusted ------------------------------------------------------------------


def _diff_preconditions(sides: Mapping[Side, Evidence]) -> dict[str, bool]:
    """Return by name which conditions of a clean diff the two runs meet."""
    return {
        **{f"{side}_health_clean": _is_healthy(sides[side]) for side in sides},
        **{f"{side}_correlation_clean": _is_correlated(sides[side]) for side in sides},
        "stable_tool_call_ids_required": True,
        "stable_tool_call_ids_present": all(
            _call_ids_of(one) and _has_stable_ids(one) for one in sides.values()
        ),
    }


def _degraded_fields_of(evidence: Evidence) -> list[str]:
    return ["it is missing"] if evidence.health is None else degraded_fields(evidence.health)


def _is_healthy(evidence: Evidence) -> bool:
    is_broken = any(problem.startswith(HEALTH_FILE) for problem in evidence.problems)
    return not is_broken and not _degraded_fields_of(evidence)


def _is_correlated(evidence: Evidence) -> bool:
    is_clean = evidence.correlation is not None and evidence.correlation.status == "clean"
    return is_clean and not evidence.doubt


def _has_stable_ids(evidence: Evidence) -> bool:
    """Return whether the ids of all calls are present and unique."""
    if evidence.correlation is None or evidence.has_nameless_calls:
        return False
    ids = _call_ids_of(evidence)
    codes = {code.partition(":")[0] for code in evidence.correlation.ambiguities}
    return all(ids) and len(set(ids)) == len(ids) and codes.isdisjoint(_UNSTABLE)


def _diff_status(
    sides: Mapping[Side, Evidence], found: CapabilityDiff
) -> Literal["clean", "partial:health", "partial:correlation", "partial:unbound", "failed"]:
    """Return whether two runs could be compared cleanly, or what made the diff partial."""
    if any(map(_degraded_fields_of, sides.values())):
        return "partial:health"
    if not all(_is_correlated(one) and _has_stable_ids(one) for one in sides.values()):
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


def _all_values_of(changes: Changes) -> Iterator[str]:
    yield from (*changes.added, *changes.removed, *changes.unchanged)


def _reason_notes(sides: Mapping[Side, Evidence], baseline: Sequence[Evidence]) -> Iterator[str]:
    """Yield a note for every reason why the comparison is not clean."""
    for problem in (problem for evidence in baseline for problem in evidence.problems):
        yield f"capability_diff_baseline_unusable: {printable(problem)}"
    for side, evidence in sides.items():
        for problem in evidence.problems:
            yield f"capability_diff_{side}_unusable: {printable(problem)}"
        if evidence.problems:
            continue
        if degraded := _degraded_fields_of(evidence):
            yield f"capability_diff_{side}_health: {' '.join(degraded)}"
        if evidence.correlation is not None and not _is_correlated(evidence):
            doubt = f" {printable(evidence.doubt)}" if evidence.doubt else ""
            yield f"capability_diff_{side}_correlation: status={evidence.correlation.status}{doubt}"
        if not _has_stable_ids(evidence):
            yield f"capability_diff_{side}_tool_call_ids: they are not unique"
        if not _bindings(evidence) and any(evidence.values.values()):
            yield f"capability_diff_{side}_unbound: its values belong to no known call"


def _remark_notes(
    sides: Mapping[Side, Evidence], found: CapabilityDiff, *, is_whole: bool
) -> Iterator[str]:
    """Yield the notes of a diff that do not change its status, such as different platforms."""
    if found.status == "failed":
        return
    base, head = sides.values()
    calls = found.binding_ids
    if any(RUN_FOLDER in value for one in found.surface.values() for value in _all_values_of(one)):
        yield f"capability_diff_run_folder: each run's own folder is called {RUN_FOLDER}"
    unknown = [*_without_programs(sides)]
    layers = [side.health.kernel_layer for side in (base, head) if side.health is not None]
    if "absent" in layers:
        yield "capability_diff_unobserved: without a kernel layer it is unknown what a run reached"
    elif has_no_changes(found) and not unknown and is_whole:
        yield "capability_diff_idempotent: base and head evidence sets are identical"
    elif calls.added and calls.removed and not calls.unchanged:
        yield "capability_diff_no_common_call: no tool call id is in both, calls are not compared"
    platforms = [side.health.platform for side in (base, head) if side.health is not None]
    if len({*platforms}) > 1:
        text = printable(f"base is {platforms[0]}, head is {platforms[-1]}")
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


def fail_on_reason(word: str, found: CapabilityDiff) -> str:
    """Return why a word of --fail-on applies, or an empty string."""
    if word == "any":
        return ", ".join(_failing_words(found))
    if word == "partial":
        return "" if found.status == "clean" else f"the status is {found.status}: {found.notes[0]}"
    if word == "unbound":
        return "something belongs to no call" if has_unbound_activity(found) else ""
    if word == "changed-policy":
        count = len(found.policy_outcomes["changed"])
        return f"{number(count, 'call')} decided differently" if count else ""
    how, _, what = word.partition("-")
    name, one = _SETS[what]
    count = len(getattr(found.surface[name], how))
    # What was added cannot be known where the capture is incomplete.
    blind = _unknown_set_reason(found, "head" if how == "added" else "base", name)
    return "; ".join(filter(None, (number(count, one) if count else "", blind)))


def _failing_words(found: CapabilityDiff) -> Iterator[str]:
    """Yield each word of --fail-on that applies to a diff, or that only a call differs."""
    words = [word for word in WORDS if word != "any" and fail_on_reason(word, found)]
    yield from words
    if not words and not has_no_changes(found):
        yield "a call is on one side only"


def _unknown_set_reason(found: CapabilityDiff, side: Side, name: str) -> str:
    """Say why it is not known what a set of a run lacks; empty if its capture was complete."""
    fields = degraded_fields_of_set(found, side, name)
    if not fields:
        return ""
    who = "A" if side == "base" else "B"
    if _NO_KERNEL in fields:
        return f"{who} has no kernel layer, so it cannot be known"
    return f"the capture of {who} is incomplete ({' '.join(fields)}), so it cannot be known"


LAYERS = (KERNEL_FILE, DETAIL_FILE, SDK_FILE, POLICY_FILE, MARKERS_FILE)
_PROCESSES = ("pid", "child", "target")
_TREE_ONLY = "cgroup_correlation=failed"  #: as with strace, which follows every process


class LineDifference(Struct, frozen=True):
    """Names the first line in which two layers differ. None: the layer has ended."""

    line: int
    base: bytes | None
    head: bytes | None


class LayerComparison(Struct, frozen=True):
    """Says how one layer of two runs compares."""

    layer: str
    lines: int  #: of the longer one
    difference: LineDifference | None


class ProcessLabels:
    """Gives the processes of one run labels, the same in all of its layers."""

    def __init__(self, run_folder: str = "") -> None:
        self._known: dict[int, str] = {}
        way = re.escape(msgspec.json.encode(run_folder)[1:-1])
        letter = rb"[\w.\x80-\xff-]"  # of a longer name; but for one that JSON escapes
        bounded = rb"(?:(?<!%b)|(?<=\\[bfnrt]))%b(?!%b)" % (letter, way, letter)
        self._way = re.compile(bounded) if run_folder else None

    def label_of(self, number: int) -> str:
        """Return the label of a process number."""
        label = self._known.get(number)
        if label is None:
            label = self._known[number] = f"p{len(self._known) + 1}"
        return label

    def without_folder(self, line: bytes) -> bytes:
        """Replace the path of the run's folder."""
        return line if self._way is None else self._way.sub(RUN_FOLDER.encode(), line)


def canonical_lines(lines: Iterable[bytes], labels: ProcessLabels | None = None) -> Iterator[bytes]:
    """Yield the lines with labels in place of what changes in every run."""
    labels = labels or ProcessLabels()
    for line in lines:
        yield _canonical_line(line, labels)


def _canonical_line(line: bytes, labels: ProcessLabels) -> bytes:
    """Rewrite a line of a layer with labels for its run id, process numbers and folder."""
    try:
        fields = msgspec.json.decode(line)
    except DECODE_ERRORS:
        return line
    if not isinstance(fields, dict):
        return line
    if "run_id" in fields:
        fields["run_id"] = "run"
    for name in _PROCESSES:
        number = fields.get(name)
        if isinstance(number, int) and not isinstance(number, bool):
            fields[name] = labels.label_of(number)
    return labels.without_folder(msgspec.json.encode(fields))


class CanonicalLayers:
    """Reads the layers of one run with labels, and knows whether they are complete."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.damage = ""  #: why they cannot be compared
        evidence = Evidence()
        try:
            evidence = evidence_of(read_artifacts(path))
        except DamagedError as error:
            self.damage = str(error)
        if not self.damage and not has_any_file(path, LAYERS):
            raise InputError(f"{path}: there are no layers to compare")
        self._labels = ProcessLabels(evidence.folder)
        self.doubts = [*_capture_doubts(evidence)]  #: why they may be incomplete

    def layer_lines(self, layer: str) -> Iterator[bytes]:
        """Yield the canonical lines of a layer."""
        return canonical_lines(read_lines(self._path, layer), self._labels)


def _capture_doubts(evidence: Evidence) -> Iterator[str]:
    """Yield why the kernel layer of a run may be incomplete, by its observation health."""
    yield from (problem for problem in evidence.problems if problem.startswith(HEALTH_FILE))
    fields = [] if evidence.health is None else degraded_fields(evidence.health)
    if seen := [field for field in fields if field != _TREE_ONLY]:
        yield f"{HEALTH_FILE}: {' '.join(seen)}"


def compare_layers(base: CanonicalLayers, head: CanonicalLayers) -> Iterator[LayerComparison]:
    """Compare layer by layer, each to its end: the labels of later layers depend on it."""
    for layer in LAYERS:
        number, difference = 0, None
        both = zip_longest(base.layer_lines(layer), head.layer_lines(layer))
        for number, (one, other) in enumerate(both, 1):
            if difference is None and one != other:
                difference = LineDifference(number, one, other)
        yield LayerComparison(layer, number, difference)


CELL_WORDS = ("opened", "closed", "unmeasured", "measured", "any")
_LISTS = CELL_WORDS[:-1]
_MORE = {"denied": 0, "partial": 1, "success": 2}  #: how much was possible
_ABSENT = CellSide("absent")
Key = tuple[str, str]  #: probe, mode


class _ComparedProbe(Struct):
    id: str
    version: str
    primary_capability_id: str


class _ComparedRun(Struct):
    mode: str


class _ComparedResult(Struct):
    observed_result: Status
    errno: str | None = None
    message: str | None = None


class _ComparedRecord(Struct):
    """The fields of a boundary object that every pattern has."""

    schema_version: str
    probe: _ComparedProbe
    run: _ComparedRun
    result: _ComparedResult


class _CellRecords(Struct):
    capability: str
    versions: set[str]
    side: CellSide


_decode = msgspec.json.Decoder(_ComparedRecord).decode


def diff_matrices(base: str, head: str) -> BoundaryDiff:
    """Compare the records of two files, or raise InputError for a line that is not one."""
    sides = (_cells_of_matrix(base), _cells_of_matrix(head))
    found = BoundaryDiff(base, head, [], [], [], [], 0, [])
    for key in sorted({*sides[0], *sides[1]}):
        before, after = sides[0].get(key), sides[1].get(key)
        one = after or before
        assert one is not None
        change = CellChange(
            *key,
            one.capability,
            _ABSENT if before is None else before.side,
            _ABSENT if after is None else after.side,
        )
        kind = outcome_change({change.base.outcome}, {change.head.outcome}, _MORE)
        if kind is None:
            found.unchanged += 1
        else:
            getattr(found, kind).append(change)
        if before is not None and after is not None and before.versions != after.versions:
            versions = " and ".join(", ".join(sorted(one.versions)) for one in (before, after))
            found.notes.append(f"{key[0]} ({key[1]}): versions {versions} of the probe")
    return found


def fail_on_cell_reason(word: str, found: BoundaryDiff) -> str:
    """Return why a word of --fail-on applies, or an empty string."""
    words = _LISTS if word == "any" else (word,)
    counts = ((name, len(getattr(found, name))) for name in words)
    return ", ".join(f"{number(count, 'cell')} {name}" for name, count in counts if count)


def _cells_of_matrix(path: str) -> dict[Key, _CellRecords]:
    """Merge a matrix's records into one outcome a cell; cells whose records differ are mixed."""
    cells: dict[Key, _CellRecords] = {}
    for _, record in read_records(path, _decode, "a boundary object"):
        probe, result = record.probe, record.result
        side = CellSide(result.observed_result, result.errno, result.message)
        first = _CellRecords(probe.primary_capability_id, set(), side)
        cell = cells.setdefault((probe.id, record.run.mode), first)
        cell.versions.add(probe.version)
        cell.side = side if cell.side.outcome == side.outcome else CellSide("mixed")
    if not cells:
        raise InputError(f"{path}: it has no boundary objects")
    return cells
