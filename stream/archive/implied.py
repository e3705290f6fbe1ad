"""What the layers of a run imply, against what its artifacts say.

An artifact of ours is made once more from the layers, and must come out as it is. The reference
claims other things of the same layers; its artifacts are held to what it does claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct

from stream.archive.header import Fault
from stream.codec import DECODE_ERRORS
from stream.evidence.companion import make_companion
from stream.evidence.correlation import correlate
from stream.evidence.health import health_faults, make_health
from stream.evidence.steps import KernelStep, lost_between
from stream.evidence.surface import Surface
from stream.records.control import Gap
from stream.records.kernel import EXEC, FORK, OPEN, KernelDetail, KernelEvent, RawCapture
from stream.records.runner import (
    COMPANION_FILE,
    CORRELATION_FILE,
    DETAIL_FILE,
    HEALTH_FILE,
    KERNEL_FILE,
    MARKERS_FILE,
    POLICY_FILE,
    SDK_FILE,
    SURFACE_FILE,
    CapabilitySurface,
    Companion,
    CorrelationReport,
    Marker,
    ObservationHealth,
    PolicyEvent,
    SdkEvent,
)

T = TypeVar("T")


class Evidence(Struct):
    """All that an artifact can be held against."""

    documents: Mapping[str, Any]  #: by file: the records that could be read
    names: set[str]  #: of all files
    lines: Mapping[str, int]  #: of each layer
    read: Callable[[str], Iterator[bytes]]  #: the contents of a file, once more, in blocks


def implied_faults(evidence: Evidence) -> Iterator[tuple[str, Fault]]:
    """(file, what is wrong with it). Of layers whose every line keeps its schema."""
    try:
        if DETAIL_FILE in evidence.names:
            yield from _faults(evidence)
        else:
            yield from _reference_faults(evidence)
    except DECODE_ERRORS:  # a line that is none: it has its own finding, and nothing follows
        return


def _faults(evidence: Evidence) -> Iterator[tuple[str, Fault]]:
    """By the artifacts that there should be."""
    stated = evidence.documents.get(COMPANION_FILE)
    if not isinstance(stated, Companion):
        yield COMPANION_FILE, Fault("contract.companion", "it is missing, or none")
        return
    try:
        capture = msgspec.convert(stated.capture, RawCapture)
    except msgspec.ValidationError as error:
        yield COMPANION_FILE, Fault("contract.companion", f"$.capture: {error}")
        return
    lost = sum(int(gap.lost) for gap in _gaps(evidence))
    if lost != capture.dropped + capture.unparsed:
        message = f"the feed lost {capture.dropped + capture.unparsed} events, the gaps say {lost}"
        yield DETAIL_FILE, Fault("contract.health", message)
    yield from _differences(evidence, imply(stated.run_id, evidence, capture, stated.filtered))


def imply(
    run_id: str, evidence: Evidence, capture: RawCapture, filtered: Mapping[str, int]
) -> dict[str, Any]:
    """By file: the artifacts, made from the layers. Raises one of DECODE_ERRORS."""
    sdk = _records(evidence, SDK_FILE, SdkEvent)
    policy = _records(evidence, POLICY_FILE, PolicyEvent)
    total = evidence.lines.get(KERNEL_FILE, 0)
    surface = Surface()
    correlation = correlate(
        run_id,
        markers=_records(evidence, MARKERS_FILE, Marker),
        sdk=sdk,
        policy=policy,
        events=_steps(evidence, surface),
        gaps=lost_between(_lines(evidence, DETAIL_FILE), total),
        has_kernel=capture.feed != "absent",
    )
    for event in sdk:
        surface.add_sdk(event)
    for decision in policy:
        surface.add_policy(decision)
    return {
        SURFACE_FILE: surface.surface(run_id),
        CORRELATION_FILE: correlation.report,
        HEALTH_FILE: make_health(
            run_id,
            capture,
            monitor_events=total,
            has_connect=surface.has_connect,
            has_datagram=surface.has_datagram,
            policy_events=len(policy),
            sdk_events=len(sdk),
            sdk_tool_calls=_started(sdk),
        ),
        COMPANION_FILE: make_companion(
            run_id,
            surface,
            capture=capture,
            filtered=filtered,
            calls=correlation.calls,
            unbound=correlation.unbound,
        ),
    }


def _differences(evidence: Evidence, made: Mapping[str, Any]) -> Iterator[tuple[str, Fault]]:
    rules = {
        SURFACE_FILE: "contract.surface",
        CORRELATION_FILE: "contract.correlation",
        HEALTH_FILE: "contract.health",
        COMPANION_FILE: "contract.companion",
    }
    for name, implied in made.items():
        stated = evidence.documents.get(name)
        if stated is None:
            continue  # that it is missing, or none, is a finding of its own
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


def _reference_faults(evidence: Evidence) -> Iterator[tuple[str, Fault]]:
    sdk = _records(evidence, SDK_FILE, SdkEvent)
    policy = _records(evidence, POLICY_FILE, PolicyEvent)
    surface = Surface(is_reference=True)
    total = sum(1 for _ in _steps(evidence, surface))
    for event in sdk:
        surface.add_sdk(event)
    for decision in policy:
        surface.add_policy(decision)
    stated = evidence.documents.get(SURFACE_FILE)
    if isinstance(stated, CapabilitySurface):
        yield from _differences(evidence, {SURFACE_FILE: surface.surface(stated.run_id)})
    health = evidence.documents.get(HEALTH_FILE)
    if isinstance(health, ObservationHealth):
        for reason in health_faults(
            health,
            monitor_events=total,
            has_connect=surface.has_connect,
            has_datagram=surface.has_datagram,
            policy_events=len(policy),
            sdk_events=len(sdk),
            sdk_tool_calls=_started(sdk),
            is_reference=True,
        ):
            yield HEALTH_FILE, Fault("contract.health", reason)
    report = evidence.documents.get(CORRELATION_FILE)
    if isinstance(report, CorrelationReport):
        yield from _reference_bindings(report, policy, total)


def _reference_bindings(
    report: CorrelationReport, policy: list[PolicyEvent], total: int
) -> Iterator[tuple[str, Fault]]:
    """One for each decision, and each has the whole run for its window."""
    decided = {one.tool_call_id: one.decision for one in policy}
    for binding in report.bindings:
        name = binding.tool_call_id
        if decided.get(name) != binding.policy_decision:
            message = f"{_shown(name)}: no such decision is in the policy layer"
            yield CORRELATION_FILE, Fault("contract.correlation", message)
        elif binding.kernel_event_count != total:
            message = f"{_shown(name)}: {binding.kernel_event_count} events, not {total}"
            yield CORRELATION_FILE, Fault("contract.correlation", message)
    for name in sorted(
        filter(None, decided.keys() - {one.tool_call_id for one in report.bindings})
    ):
        message = f"{_shown(name)}: the decision is bound to nothing"
        yield CORRELATION_FILE, Fault("contract.correlation", message)


# ------------------------------------------------------------ the layers, once more


def _steps(evidence: Evidence, surface: Surface) -> Iterator[KernelStep]:
    """The steps of correlation; what they reach is entered into the surface on the way."""
    details = _details(evidence)
    detail = next(details, None)
    for event in _each(evidence, KERNEL_FILE, KernelEvent):
        while detail is not None and detail.seq < event.seq:
            detail = next(details, None)
        own = detail if detail is not None and detail.seq == event.seq else None
        surface.add_kernel(event, None if event.event_type == OPEN else own)
        more: int | list[str] | None = None
        if own is not None and event.event_type == FORK:
            more = own.child
        elif own is not None and event.event_type == EXEC:
            more = own.argv
        yield event.pid, event.event_type, more


def _details(evidence: Evidence) -> Iterator[KernelDetail]:
    return (
        one
        for one in _each(evidence, DETAIL_FILE, KernelDetail | Gap)
        if isinstance(one, KernelDetail)
    )


def _gaps(evidence: Evidence) -> Iterator[Gap]:
    return (one for one in _each(evidence, DETAIL_FILE, KernelDetail | Gap) if isinstance(one, Gap))


def _started(sdk: list[SdkEvent]) -> int:
    return sum(event.event_type == "tool_call_started" for event in sdk)


def _records(evidence: Evidence, name: str, kind: type[T]) -> list[T]:
    return list(_each(evidence, name, kind))


def _each(evidence: Evidence, name: str, kind: Any) -> Iterator[Any]:
    decoder = msgspec.json.Decoder(kind)
    for block in _blocks(evidence, name):
        yield from decoder.decode_lines(block)


def _lines(evidence: Evidence, name: str) -> Iterator[bytes]:
    for block in _blocks(evidence, name):
        yield from block[:-1].split(b"\n")


def _blocks(evidence: Evidence, name: str) -> Iterator[bytes]:
    """Of whole lines. One that is torn has its own finding."""
    if name not in evidence.names:
        return
    rest = b""
    for block in evidence.read(name):
        end = block.rfind(b"\n") + 1
        if end:
            yield rest + block[:end]
            rest = block[end:]
        else:
            rest += block
