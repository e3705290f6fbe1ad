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
    CorrelationReport,
    ObservationHealth,
)
from stream.records.control import Fault
from stream.records.kernel import Count, RawCapture, RunId, Scope
from stream.transformers.filters import RULES
from stream.transformers.normalize import NO_EVENTS
from stream.verify.documents import Documents
from stream.verify.replay import LayerReplay, frame_mismatch, marker_mismatch


class Counted(Struct):
    """How a companion begins: what it says that does not follow from the layers."""

    run_id: RunId
    capture: dict[str, Any]
    filtered: dict[str, Count] | None
    aside: dict[str, Count] | None


_RULES = {rule.name for rule in RULES}


def account_faults(
    capture: RawCapture, companion: Counted, replay: LayerReplay, *, is_streamed: bool
) -> Iterator[str]:
    """What does not add up. `is_streamed`: it was put together of a stream, in which nobody may
    have said what was left out before."""
    if capture.feed == "absent":
        yield from _absent_faults(capture, companion)
        return
    may_lack = is_streamed and bool(capture.unknown_loss)
    yield from _counted_faults(companion, may_lack=may_lack)
    yield from _cgroup_faults(capture, replay)
    if not capture.unknown_loss:  # else nobody knows what is missing, here as there
        yield from _balance_faults(capture, companion, replay)
        yield from _scope_faults(capture, replay)
        yield from _feed_faults(capture, replay)


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


def _balance_faults(capture: RawCapture, companion: Counted, replay: LayerReplay) -> Iterator[str]:
    scoped = sum(capture.scopes.values())
    told = scoped + capture.before_exec
    if capture.got + capture.dropped != capture.seen:
        yield f"$.capture.seen: {capture.got} + {capture.dropped} events, not {capture.seen}"
    # An operation of io_uring is told twice: when it is asked for, and when it is done.
    if told > capture.got or (told < capture.got and capture.uring == "unused"):
        yield f"$.capture.got: {told} events are accounted for, not {capture.got}"
    left_out = _total(companion.filtered) + _total(companion.aside)
    if replay.events + left_out != scoped:
        yield (
            f"$.capture.scopes: {scoped} events, and {replay.events} lines and"
            f" {left_out} that were left out"
        )


def _total(counts: Mapping[str, int] | None) -> int:
    return sum((counts or {}).values())


def _scope_faults(capture: RawCapture, replay: LayerReplay) -> Iterator[str]:
    for scope, count in capture.scopes.items():
        if scope not in get_args(Scope) or count <= 0:
            yield f"$.capture.scopes: {scope!r}, {count} times, is no scope of events"
    for scope, lines in replay.scopes().items():
        if lines > capture.scopes.get(scope, 0):
            yield f"$.capture.scopes: {lines} lines are of the scope {scope!r}"


def _cgroup_faults(capture: RawCapture, replay: LayerReplay) -> Iterator[str]:
    is_clean = capture.cgroup == "clean"
    others = [scope for scope in (*capture.scopes, *replay.scopes()) if scope != "both"]
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


def _feed_faults(capture: RawCapture, replay: LayerReplay) -> Iterator[str]:
    if capture.reason:
        yield f"$.capture.reason: there was a feed, {capture.feed}"
    size = capture.ring_bytes
    if capture.feed == "ebpf" and (size <= 0 or size & (size - 1)):
        yield f"$.capture.ring_bytes: no ring of eBPF has {size} bytes"
    if capture.feed == "strace" and size:
        yield "$.capture.ring_bytes: strace has no ring"
    # Whoever inherits one may use it unseen without having set it up.
    if capture.uring != "hole" and bool(replay.urings) != (capture.uring == "seen"):
        yield f"$.capture.uring: {capture.uring!r}, and {replay.urings} were set up"
    if capture.uring == "unknown" and not capture.dropped:
        yield "$.capture.uring: it is not known, and nothing was lost"


def implied_faults(
    replay: LayerReplay,
    documents: Documents,
    *,
    is_reference: bool,
    is_streamed: bool = False,
) -> Iterator[tuple[str, Fault]]:
    """(file, what is wrong with it)."""
    if not replay.is_whole:  # the line that is none has its own finding, and nothing follows
        return
    replay.surface.is_reference = is_reference
    replay.finish()
    if is_reference:
        yield from _reference_faults(replay, documents)
    else:
        yield from _faults(replay, documents, is_streamed=is_streamed)


def _faults(
    replay: LayerReplay, documents: Documents, *, is_streamed: bool
) -> Iterator[tuple[str, Fault]]:
    stated = documents.fields(COMPANION_FILE, Counted)
    if stated is None:
        yield COMPANION_FILE, Fault("it is missing, or none", rule="contract.companion")
        return
    try:
        capture = msgspec.convert(stated.capture, RawCapture)
    except msgspec.ValidationError as error:
        yield COMPANION_FILE, Fault(f"$.capture: {error}", rule="contract.companion")
        return
    capture = replace(capture, filtered=UNSET, aside=UNSET)  # which the companion says itself
    derived = derive(
        stated.run_id, replay.content(), capture, filtered=stated.filtered, aside=stated.aside
    )
    replay.verified_commands = derived.correlation.verified_commands
    is_same = documents.confirm(COMPANION_FILE, derived.companion)
    if not is_same and documents.get(COMPANION_FILE) is None:
        yield COMPANION_FILE, Fault("it is missing, or none", rule="contract.companion")
        return
    counted = capture.dropped + capture.unparsed
    # Of a feed that was cut off, or a full disk, the last gaps may be missing.
    if replay.lost > counted or (replay.lost < counted and not capture.unknown_loss):
        message = f"the feed lost {counted} events, and the gaps say {replay.lost}"
        yield DETAIL_FILE, Fault(message, rule="contract.health")
    for reason in account_faults(capture, stated, replay, is_streamed=is_streamed):
        yield COMPANION_FILE, Fault(reason, rule="contract.books")
    if replay.missing_details and not capture.unknown_loss:
        message = f"{replay.missing_details} events lack theirs, {replay.first_missing} and others"
        yield DETAIL_FILE, Fault(message, rule="contract.detail")
    for reason in replay.unusual_events:
        yield KERNEL_FILE, Fault(reason, rule="contract.kernel_event")
    for reason in replay.mismatched_details:
        yield DETAIL_FILE, Fault(reason, rule="contract.detail")
    for marker in replay.markers:
        if reason := marker_mismatch(marker, replay.sdk):
            yield MARKERS_FILE, Fault(f"{marker.seq}: {reason}", rule="contract.marker")
    if reason := frame_mismatch(replay.markers, replay.events):
        yield MARKERS_FILE, Fault(reason, rule="contract.marker")
    yield from _differences(documents, derived.documents())


def _differences(
    documents: Documents, made: Mapping[str, StreamedRecord[Any]]
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
                yield name, Fault(f"$.{field}: {_difference(here, there)}", rule=rules[name])


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


def _reference_faults(replay: LayerReplay, documents: Documents) -> Iterator[tuple[str, Fault]]:
    yield from _surface_differences(replay, documents)
    health = documents.get(HEALTH_FILE)
    report = documents.get(CORRELATION_FILE)
    if isinstance(health, ObservationHealth):
        for reason in _health_differences(health, replay):
            yield HEALTH_FILE, Fault(reason, rule="contract.health")
        if isinstance(report, CorrelationReport):
            for reason in clean_faults(report, health):
                yield CORRELATION_FILE, Fault(reason, rule="contract.correlation")
    if isinstance(report, CorrelationReport):
        told = [one.tool_call_id for one in replay.sdk if one.event_type in TOOL_EVENTS]
        decided = [one.tool_call_id for one in replay.policy]
        calls = unbound_faults(report, told, decided)
        unsettled = unsettled_calls(replay.sdk, replay.policy)
        doubts = (f"$.status: clean, and {code}" for code in unsettled if report.status == "clean")
        for reason in (*calls, *doubts, *_binding_faults(report, replay)):
            yield CORRELATION_FILE, Fault(reason, rule="contract.correlation")


def _surface_differences(replay: LayerReplay, documents: Documents) -> Iterator[tuple[str, Fault]]:
    """By the reference's rules, or by ours, as far as these files alone can show it."""
    surface = replay.surface
    by_the_reference = surface.long_surface(documents.run_id)
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
                Fault(f"$.{name}: {_difference(here, there)}", rule="contract.surface"),
            )


def _health_differences(health: ObservationHealth, replay: LayerReplay) -> list[str]:
    """The same of what the layers show of the network."""
    surface = replay.surface
    known = {f"{one.path.removeprefix('$.')}: {one.reason}" for one in claim_faults(health)}
    found: list[str] = []
    for is_reference in (False, True):
        surface.is_reference = is_reference
        faults = health_faults(
            health,
            monitor_events=replay.events,
            has_connect=surface.has_connect,
            has_datagram=surface.has_datagram,
            policy_events=len(replay.policy),
            sdk_events=len(replay.sdk),
            sdk_tool_calls=calls_started(replay.sdk),
            is_reference=True,
        )
        found = [reason for reason in faults if reason not in known]
        if not found:
            break
    surface.is_reference = True
    return found


def _binding_faults(report: CorrelationReport, replay: LayerReplay) -> Iterator[str]:
    """One for each decision. A window of the whole run holds all that there was."""
    decided: dict[str | None, set[str]] = {}
    for one in replay.policy:
        decided.setdefault(one.tool_call_id, set()).add(one.decision)
    told = {said.tool_call_id for said in replay.sdk}
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
        elif count > replay.events or (is_whole and count != replay.events):
            yield f"{_shown(name)}: {count} events, not {replay.events}"
    bound = {one.tool_call_id for one in report.bindings}
    for name in sorted(filter(None, decided.keys() - bound)) if report.status == "clean" else ():
        yield f"{_shown(name)}: the decision is bound to nothing"
