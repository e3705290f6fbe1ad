"""What the layers of a run imply, against what its artifacts say.

An artifact of ours is made once more from the layers, and must come out as it is. The contract's
own files alone, as the reference writes them or as they are left of an archive of ours, are held to
what either may claim of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from stream.archive.accounts import Counted, account_faults
from stream.archive.agreement import frame_strangeness, marker_strangeness
from stream.archive.documents import Documents
from stream.archive.gathering import Gathering
from stream.archive.header import Fault
from stream.evidence.calls import TOOL_EVENTS, calls_started
from stream.evidence.claims import claim_faults
from stream.evidence.companion import make_companion
from stream.evidence.consistency import told_faults, witness_faults
from stream.evidence.correlation import correlate, unsettled_calls
from stream.evidence.health import health_faults, make_health
from stream.evidence.pieces import Long
from stream.records.kernel import RawCapture, RunId
from stream.records.runner import (
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


def implied_faults(
    gathered: Gathering,
    documents: Documents,
    *,
    is_reference: bool,
    is_streamed: bool = False,
) -> Iterator[tuple[str, Fault]]:
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


class _Found(Struct):
    """What a companion states, and what follows from that and from the layers."""

    stated: Counted
    capture: RawCapture
    made: dict[str, Long[Any]]


def _faults(
    gathered: Gathering, documents: Documents, *, is_streamed: bool
) -> Iterator[tuple[str, Fault]]:
    try:
        found = _confirmed(gathered, documents) or _judged(gathered, documents)
    except msgspec.ValidationError as error:
        yield COMPANION_FILE, Fault("contract.companion", f"$.capture: {error}")
        return
    if found is None:
        yield COMPANION_FILE, Fault("contract.companion", "it is missing, or none")
        return
    capture = found.capture
    counted = capture.dropped + capture.unparsed
    # Of a feed that was cut off, or a full disk, the last gaps may be missing.
    if gathered.lost > counted or (gathered.lost < counted and not capture.unknown_loss):
        message = f"the feed lost {counted} events, and the gaps say {gathered.lost}"
        yield DETAIL_FILE, Fault("contract.health", message)
    for reason in account_faults(capture, found.stated, gathered, is_streamed=is_streamed):
        yield COMPANION_FILE, Fault("contract.books", reason)
    if gathered.bare and not capture.unknown_loss:
        message = f"{gathered.bare} events lack theirs, {gathered.first_bare} and others"
        yield DETAIL_FILE, Fault("contract.detail", message)
    for reason in gathered.oddities:
        yield KERNEL_FILE, Fault("contract.kernel_event", reason)
    for stranger in gathered.strangers:
        yield DETAIL_FILE, Fault("contract.detail", stranger)
    for marker in gathered.markers:
        if reason := marker_strangeness(marker, gathered.sdk):
            yield MARKERS_FILE, Fault("contract.marker", f"{marker.seq}: {reason}")
    if reason := frame_strangeness(gathered.markers, gathered.events):
        yield MARKERS_FILE, Fault("contract.marker", reason)
    yield from _differences(documents, found.made)


def _confirmed(gathered: Gathering, documents: Documents) -> _Found | None:
    """None: the companion is not just what follows from its beginning and the layers."""
    begun = documents.beginning(COMPANION_FILE, "paths", Counted)
    if begun is None:
        return None
    found = _following(gathered, begun)
    return found if documents.confirm(COMPANION_FILE, found.made[COMPANION_FILE]) else None


def _judged(gathered: Gathering, documents: Documents) -> _Found | None:
    """None: there is no companion that could be read."""
    read: Companion | None = documents.get(COMPANION_FILE)
    if read is None:
        return None
    stated = Counted(read.run_id, read.capture, read.filtered, read.aside)
    return _following(gathered, stated)


def _following(gathered: Gathering, stated: Counted) -> _Found:
    capture = msgspec.convert(stated.capture, RawCapture)
    capture = replace(capture, filtered=UNSET, aside=UNSET)  # which the companion says itself
    made = imply(stated.run_id, gathered, capture, filtered=stated.filtered, aside=stated.aside)
    return _Found(stated, capture, made)


def imply(
    run_id: str,
    gathered: Gathering,
    capture: RawCapture,
    *,
    filtered: Mapping[str, int] | None = None,
    aside: Mapping[str, int] | None = None,
) -> dict[str, Long[Any]]:
    """By file: the artifacts that follow from the layers. What was left out of them, only who
    did it knows."""
    surface = gathered.surface
    correlation = correlate(
        run_id,
        markers=gathered.markers,
        sdk=gathered.sdk,
        policy=gathered.policy,
        events=gathered.steps(),
        gaps=gathered.gaps(),
        has_kernel=capture.feed != "absent",
        capture=capture,
    )
    surface.admit(correlation.near)
    gathered.vouched = correlation.vouched
    health = make_health(
        run_id,
        capture,
        monitor_events=gathered.events,
        has_connect=surface.has_connect,
        has_datagram=surface.has_datagram,
        policy_events=len(gathered.policy),
        sdk_events=len(gathered.sdk),
        sdk_tool_calls=calls_started(gathered.sdk),
        unnamed=surface.unnamed.total(),
    )
    return {
        SURFACE_FILE: surface.long_surface(run_id),
        CORRELATION_FILE: Long(correlation.report, {}),
        HEALTH_FILE: Long(health, {}),
        COMPANION_FILE: make_companion(
            run_id,
            surface,
            capture=capture,
            filtered=filtered,
            aside=aside,
            calls=correlation.calls,
            unbound=correlation.unbound,
        ),
    }


def _differences(
    documents: Documents, made: Mapping[str, Long[Any]]
) -> Iterator[tuple[str, Fault]]:
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
                yield name, Fault(rules[name], f"$.{field}: {_difference(here, there)}")


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


def _reference_faults(gathered: Gathering, documents: Documents) -> Iterator[tuple[str, Fault]]:
    begun = documents.beginning(SURFACE_FILE, "filesystem_paths", _Named)
    stated = begun or documents.get(SURFACE_FILE)
    if stated is not None:
        yield from _surface_differences(gathered, documents, stated.run_id)
    health = documents.get(HEALTH_FILE)
    report = documents.get(CORRELATION_FILE)
    if isinstance(health, ObservationHealth):
        for reason in _health_differences(health, gathered):
            yield HEALTH_FILE, Fault("contract.health", reason)
        if isinstance(report, CorrelationReport):
            for reason in witness_faults(report, health):
                yield CORRELATION_FILE, Fault("contract.correlation", reason)
    if isinstance(report, CorrelationReport):
        told = [one.tool_call_id for one in gathered.sdk if one.event_type in TOOL_EVENTS]
        decided = [one.tool_call_id for one in gathered.policy]
        calls = told_faults(report, told, decided)
        unsettled = unsettled_calls(gathered.sdk, gathered.policy)
        doubts = (f"$.status: clean, and {code}" for code in unsettled if report.status == "clean")
        for reason in (*calls, *doubts, *_binding_faults(report, gathered)):
            yield CORRELATION_FILE, Fault("contract.correlation", reason)


def _surface_differences(
    gathered: Gathering, documents: Documents, run_id: str
) -> Iterator[tuple[str, Fault]]:
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
            yield SURFACE_FILE, Fault("contract.surface", f"$.{name}: {_difference(here, there)}")


def _health_differences(health: ObservationHealth, gathered: Gathering) -> list[str]:
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


def _binding_faults(report: CorrelationReport, gathered: Gathering) -> Iterator[str]:
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
