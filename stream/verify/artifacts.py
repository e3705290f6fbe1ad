"""The books of a feed against what became of it: every event is accounted for, once.

What the layers of a run imply, against what its artifacts say.

An artifact of ours is made once more from the layers, and must come out as it is. The contract's
own files alone, as the reference writes them or as they are left of an archive of ours, are held to
what either may claim of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from stream.archive.tar import EntryFault
from stream.evidence.consistency import clean_faults, unbound_faults
from stream.evidence.correlation import unsettled_calls
from stream.evidence.derive import derive
from stream.evidence.health import claim_faults, health_faults
from stream.evidence.markers import TOOL_EVENTS, calls_started
from stream.evidence.surface import StreamedRecord
from stream.records.artifacts import (
    COMPANION_FILE,
    CORRELATION_FILE,
    DETAIL_FILE,
    HEALTH_FILE,
    KERNEL_FILE,
    MARKERS_FILE,
    SURFACE_FILE,
    SURFACE_SETS,
    Companion,
    CorrelationReport,
    ObservationHealth,
)
from stream.records.kernel import Count, RawCapture, RunId, Scope
from stream.transformers.filters import RULES
from stream.transformers.normalize import NO_EVENTS
from stream.verify.documents import Documents
from stream.verify.replay import LayerReplay, frame_strangeness, marker_strangeness


class Counted(Struct):
    """How a companion begins: what it says that does not follow from the layers."""

    run_id: RunId
    capture: dict[str, Any]
    filtered: dict[str, Count] | None
    aside: dict[str, Count] | None


_RULES = {rule.name for rule in RULES}


def account_faults(
    capture: RawCapture, companion: Counted, gathered: LayerReplay, *, is_streamed: bool
) -> Iterator[str]:
    """What does not add up. `is_streamed`: it was put together of a stream, in which nobody may
    have said what was left out before."""
    if capture.feed == "absent":
        yield from _absent_faults(capture, companion)
        return
    may_lack = is_streamed and bool(capture.unknown_loss)
    yield from _counted_faults(companion, may_lack=may_lack)
    yield from _cgroup_faults(capture, gathered)
    if not capture.unknown_loss:  # else nobody knows what is missing, here as there
        yield from _balance_faults(capture, companion, gathered)
        yield from _scope_faults(capture, gathered)
        yield from _feed_faults(capture, gathered)


def _absent_faults(capture: RawCapture, companion: Counted) -> Iterator[str]:
    nothing = RawCapture(feed="absent", reason=capture.reason, unknown_loss=capture.unknown_loss)
    if capture != nothing:
        yield "$.capture: there was no feed, and it has books"
    if companion.filtered or companion.aside:
        yield "$.filtered: there was no feed, and something of it was left out"


def _counted_faults(companion: Counted, *, may_lack: bool) -> Iterator[str]:
    for name, counts, known in (
        ("filtered", companion.filtered, _RULES),
        ("aside", companion.aside, {*NO_EVENTS}),
    ):
        if counts is None:
            if not may_lack:
                yield f"$.{name}: it is not known, and nothing is said to be missing"
            continue
        for rule, count in counts.items():
            if rule not in known or not count:
                yield f"$.{name}: {rule!r}, {count} times, is by no rule"


def _balance_faults(
    capture: RawCapture, companion: Counted, gathered: LayerReplay
) -> Iterator[str]:
    scoped = sum(capture.scopes.values())
    told = scoped + capture.before_exec
    if capture.got + capture.dropped != capture.seen:
        yield f"$.capture.seen: {capture.got} + {capture.dropped} events, not {capture.seen}"
    # An operation of io_uring is told twice: when it is asked for, and when it is done.
    if told > capture.got or (told < capture.got and capture.uring == "unused"):
        yield f"$.capture.got: {told} events are accounted for, not {capture.got}"
    left_out = _total(companion.filtered) + _total(companion.aside)
    if gathered.events + left_out != scoped:
        yield (
            f"$.capture.scopes: {scoped} events, and {gathered.events} lines and"
            f" {left_out} that were left out"
        )


def _total(counts: Mapping[str, int] | None) -> int:
    return sum((counts or {}).values())


def _scope_faults(capture: RawCapture, gathered: LayerReplay) -> Iterator[str]:
    for scope, count in capture.scopes.items():
        if scope not in get_args(Scope) or count <= 0:
            yield f"$.capture.scopes: {scope!r}, {count} times, is no scope of events"
    for scope, lines in gathered.scopes().items():
        if lines > capture.scopes.get(scope, 0):
            yield f"$.capture.scopes: {lines} lines are of the scope {scope!r}"


def _cgroup_faults(capture: RawCapture, gathered: LayerReplay) -> Iterator[str]:
    is_clean = capture.cgroup == "clean"
    others = [scope for scope in (*capture.scopes, *gathered.scopes()) if scope != "both"]
    if is_clean and capture.feed == "strace":
        yield "$.capture.cgroup: clean, and strace sees the process tree only"
    is_lossy = capture.dropped or capture.unknown_loss
    if is_clean and (others or capture.lost_forks or capture.misses or is_lossy):
        what = f"events of the scope {others[0]!r}" if others else "processes not followed"
        what = "events lost" if is_lossy else what
        yield f"$.capture.cgroup: clean, and there are {what}"
    if is_clean and capture.cgroup_reasons:
        yield "$.capture.cgroup_reasons: clean, and there are reasons why not"
    if not is_clean and not capture.cgroup_reasons and not capture.unknown_loss:
        yield f"$.capture.cgroup_reasons: {capture.cgroup}, and no reason why"


def _feed_faults(capture: RawCapture, gathered: LayerReplay) -> Iterator[str]:
    if capture.reason:
        yield f"$.capture.reason: there was a feed, {capture.feed}"
    size = capture.ring_bytes
    if capture.feed == "ebpf" and (size <= 0 or size & (size - 1)):
        yield f"$.capture.ring_bytes: no ring of eBPF has {size} bytes"
    if capture.feed == "strace" and size:
        yield "$.capture.ring_bytes: strace has no ring"
    # Whoever inherits one may use it unseen without having set it up.
    if capture.uring != "hole" and bool(gathered.urings) != (capture.uring == "seen"):
        yield f"$.capture.uring: {capture.uring!r}, and {gathered.urings} were set up"
    if capture.uring == "unknown" and not capture.dropped:
        yield "$.capture.uring: it is not known, and nothing was lost"


def implied_faults(
    gathered: LayerReplay,
    documents: Documents,
    *,
    is_reference: bool,
    is_streamed: bool = False,
) -> Iterator[tuple[str, EntryFault]]:
    """(file, what is wrong with it)."""
    if not gathered.is_whole:  # the line that is none has its own finding, and nothing follows
        return
    gathered.surface.is_reference = is_reference
    gathered.finish()
    if is_reference:
        yield from _reference_faults(gathered, documents)
    else:
        yield from _faults(gathered, documents, is_streamed=is_streamed)


class _Named(Struct):
    """How a surface begins."""

    run_id: RunId


class _Stated(Struct):
    """What a companion states, and what follows from that and from the layers."""

    stated: Counted
    capture: RawCapture
    made: dict[str, StreamedRecord[Any]]


def _faults(
    gathered: LayerReplay, documents: Documents, *, is_streamed: bool
) -> Iterator[tuple[str, EntryFault]]:
    try:
        found = _confirmed(gathered, documents) or _judged(gathered, documents)
    except msgspec.ValidationError as error:
        yield COMPANION_FILE, EntryFault("contract.companion", f"$.capture: {error}")
        return
    if found is None:
        yield COMPANION_FILE, EntryFault("contract.companion", "it is missing, or none")
        return
    capture = found.capture
    counted = capture.dropped + capture.unparsed
    # Of a feed that was cut off, or a full disk, the last gaps may be missing.
    if gathered.lost > counted or (gathered.lost < counted and not capture.unknown_loss):
        message = f"the feed lost {counted} events, and the gaps say {gathered.lost}"
        yield DETAIL_FILE, EntryFault("contract.health", message)
    for reason in account_faults(capture, found.stated, gathered, is_streamed=is_streamed):
        yield COMPANION_FILE, EntryFault("contract.books", reason)
    if gathered.bare and not capture.unknown_loss:
        message = f"{gathered.bare} events lack theirs, {gathered.first_bare} and others"
        yield DETAIL_FILE, EntryFault("contract.detail", message)
    for reason in gathered.oddities:
        yield KERNEL_FILE, EntryFault("contract.kernel_event", reason)
    for stranger in gathered.strangers:
        yield DETAIL_FILE, EntryFault("contract.detail", stranger)
    for marker in gathered.markers:
        if reason := marker_strangeness(marker, gathered.sdk):
            yield MARKERS_FILE, EntryFault("contract.marker", f"{marker.seq}: {reason}")
    if reason := frame_strangeness(gathered.markers, gathered.events):
        yield MARKERS_FILE, EntryFault("contract.marker", reason)
    yield from _differences(documents, found.made)


def _confirmed(gathered: LayerReplay, documents: Documents) -> _Stated | None:
    """None: the companion is not just what follows from its beginning and the layers."""
    begun = documents.beginning(COMPANION_FILE, "paths", Counted)
    if begun is None:
        return None
    found = _following(gathered, begun)
    return found if documents.confirm(COMPANION_FILE, found.made[COMPANION_FILE]) else None


def _judged(gathered: LayerReplay, documents: Documents) -> _Stated | None:
    """None: there is no companion that could be read."""
    read: Companion | None = documents.get(COMPANION_FILE)
    if read is None:
        return None
    stated = Counted(read.run_id, read.capture, read.filtered, read.aside)
    return _following(gathered, stated)


def _following(gathered: LayerReplay, stated: Counted) -> _Stated:
    capture = msgspec.convert(stated.capture, RawCapture)
    capture = replace(capture, filtered=UNSET, aside=UNSET)  # which the companion says itself
    derived = derive(
        stated.run_id, gathered.content(), capture, filtered=stated.filtered, aside=stated.aside
    )
    gathered.vouched = derived.correlation.verified_commands
    return _Stated(stated, capture, derived.documents())


def _differences(
    documents: Documents, made: Mapping[str, StreamedRecord[Any]]
) -> Iterator[tuple[str, EntryFault]]:
    rules = {
        SURFACE_FILE: "contract.surface",
        CORRELATION_FILE: "contract.correlation",
        HEALTH_FILE: "contract.health",
        COMPANION_FILE: "contract.companion",
    }
    for name, long in made.items():
        if documents.confirm(name, long):
            continue
        stated = documents.get(name)
        if stated is None:
            continue  # that it is missing, or none, is a finding of its own
        implied = long.whole()
        for field in implied.__struct_fields__:
            here, there = getattr(stated, field), getattr(implied, field)
            if here != there:
                yield name, EntryFault(rules[name], f"$.{field}: {_difference(here, there)}")


def _difference(stated: Any, implied: Any) -> str:
    if isinstance(stated, list) and isinstance(implied, list):
        for one in implied:
            if one not in stated:
                return f"{_shown(one)} is missing"
        for one in stated:
            if one not in implied:
                return f"{_shown(one)} follows from nothing"
        return "it is in another order, or repeats itself"
    return f"{_shown(stated)}, but {_shown(implied)} follows from the layers"


def _shown(value: Any) -> str:
    text = "nothing" if value is UNSET else msgspec.json.encode(value).decode()
    return text if len(text) <= 160 else f"{text[:159]}…"


# ------------------------------------------------------------ the reference's archives


def _reference_faults(
    gathered: LayerReplay, documents: Documents
) -> Iterator[tuple[str, EntryFault]]:
    begun = documents.beginning(SURFACE_FILE, "filesystem_paths", _Named)
    stated = begun or documents.get(SURFACE_FILE)
    if stated is not None:
        yield from _surface_differences(gathered, documents, stated.run_id)
    health = documents.get(HEALTH_FILE)
    report = documents.get(CORRELATION_FILE)
    if isinstance(health, ObservationHealth):
        for reason in _health_differences(health, gathered):
            yield HEALTH_FILE, EntryFault("contract.health", reason)
        if isinstance(report, CorrelationReport):
            for reason in clean_faults(report, health):
                yield CORRELATION_FILE, EntryFault("contract.correlation", reason)
    if isinstance(report, CorrelationReport):
        told = [one.tool_call_id for one in gathered.sdk if one.event_type in TOOL_EVENTS]
        decided = [one.tool_call_id for one in gathered.policy]
        calls = unbound_faults(report, told, decided)
        unsettled = unsettled_calls(gathered.sdk, gathered.policy)
        doubts = (f"$.status: clean, and {code}" for code in unsettled if report.status == "clean")
        for reason in (*calls, *doubts, *_binding_faults(report, gathered)):
            yield CORRELATION_FILE, EntryFault("contract.correlation", reason)


def _surface_differences(
    gathered: LayerReplay, documents: Documents, run_id: str
) -> Iterator[tuple[str, EntryFault]]:
    """By the reference's rules, or by ours, as far as these files alone can show it."""
    surface = gathered.surface
    by_the_reference = surface.long_surface(run_id)
    if documents.confirm(SURFACE_FILE, by_the_reference):
        return
    stated = documents.get(SURFACE_FILE)
    if stated is None:
        return
    made = by_the_reference.whole()
    for name in SURFACE_SETS:
        here, there = getattr(stated, name), getattr(made, name)
        if here != there and not surface.may_claim(name, here):
            yield (
                SURFACE_FILE,
                EntryFault("contract.surface", f"$.{name}: {_difference(here, there)}"),
            )


def _health_differences(health: ObservationHealth, gathered: LayerReplay) -> list[str]:
    """The same of what the layers show of the network."""
    surface = gathered.surface
    known = {f"{path.removeprefix('$.')}: {reason}" for reason, path in claim_faults(health)}
    found: list[str] = []
    for is_reference in (False, True):
        surface.is_reference = is_reference
        faults = health_faults(
            health,
            monitor_events=gathered.events,
            has_connect=surface.has_connect,
            has_datagram=surface.has_datagram,
            policy_events=len(gathered.policy),
            sdk_events=len(gathered.sdk),
            sdk_tool_calls=calls_started(gathered.sdk),
            is_reference=True,
        )
        found = [reason for reason in faults if reason not in known]
        if not found:
            break
    surface.is_reference = True
    return found


def _binding_faults(report: CorrelationReport, gathered: LayerReplay) -> Iterator[str]:
    """One for each decision. A window of the whole run holds all that there was."""
    decided: dict[str | None, set[str]] = {}
    for one in gathered.policy:
        decided.setdefault(one.tool_call_id, set()).add(one.decision)
    told = {said.tool_call_id for said in gathered.sdk}
    for binding in report.bindings:
        name, count = binding.tool_call_id, binding.kernel_event_count
        decisions = decided.get(name, set())
        is_whole = binding.window.start == "run_started" and binding.window.end == "run_finished"
        if binding.policy_decision is None and len(decisions) == 1:
            yield f"{_shown(name)}: the decision about it is missing"
        elif binding.policy_decision not in (None, *decisions):
            yield f"{_shown(name)}: no such decision is in the policy layer"
        elif not decisions and name not in told:
            yield f"{_shown(name)}: nobody told of such a call"
        elif count > gathered.events or (is_whole and count != gathered.events):
            yield f"{_shown(name)}: {count} events, not {gathered.events}"
    bound = {one.tool_call_id for one in report.bindings}
    for name in sorted(filter(None, decided.keys() - bound)) if report.status == "clean" else ():
        yield f"{_shown(name)}: the decision is bound to nothing"
