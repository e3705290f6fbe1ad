"""What follows from the layers of a run: its surface, its correlation, its health, its companion.

`correlate_layers` joins kernel events with tool calls, and names everything about that which is not
certain. The recorder derives these artifacts when a run ends; `stream verify` derives them again
from the files alone. Both call `derive_artifacts`, which depends on nothing but what it is given.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from stream.evidence.attribution import Attribution, AttributionEvent, LogWrite, RecorderActivity
from stream.evidence.claude_formats import DECISION
from stream.evidence.health import LayerCounts, make_health
from stream.evidence.markers import (
    TOOL_EVENTS,
    Call,
    EventCounts,
    calls_in_marker_order,
    calls_of_run,
    uncertainty_code,
)
from stream.evidence.surface import FileUse, StreamedRecord, Surface, make_companion
from stream.records.artifacts import (
    COMPANION_FILE,
    CORRELATION_FILE,
    HEALTH_FILE,
    SURFACE_FILE,
    Binding,
    CapabilitySurface,
    Companion,
    CorrelationReport,
    Marker,
    ObservationHealth,
    PolicyEvent,
    SdkEvent,
    Window,
)
from stream.records.channels import HOOKS, UNSEEN
from stream.records.kernel import RawCapture, kind_of_event

OUTSIDE = "kernel_events_outside_every_window"  #: and there is no call that had one
_UNSETTLED = {"sdk_tool_call_duplicate", "tool_name_mismatch", "policy_decision_conflict"}
DECISIONS = {"allow", "deny"}  #: that the contract knows


class Correlation(Struct, frozen=True):
    """Every kernel event is counted once: for a call, as unbound, or as undecided."""

    report: CorrelationReport
    calls: dict[str, dict[str, int]]  #: by call: events of each kind
    unbound: dict[str, int]  #: outside of every window
    undecided: dict[str, int]  #: inside of windows, and it cannot be known whose
    recorder_file_uses: set[FileUse]  #: by others than the recorder
    verified_commands: frozenset[int]  #: lines of the command log that a wrapper was seen to write
    wrappers: int  #: that ran
    programs: dict[str, int]  #: by name: those that ran and were no wrapper's
    tests: dict[str, int]  #: by name: runs of tests among those


def correlate_layers(
    run_id: str,
    *,
    markers: Sequence[Marker],
    sdk: Sequence[SdkEvent],
    policy: Sequence[PolicyEvent],
    events: Iterable[AttributionEvent],
    gaps: Sequence[tuple[int, int]],
    has_kernel: bool,
    capture: RawCapture | None = None,
) -> Correlation:
    """Correlate the layers of a run. `events` is read once.

    A gap is the numbers between which the lost events would stand. `capture` holds the counters of
    the feed, which know of losses that have no place.
    """
    calls = calls_of_run(sdk, policy, markers)
    home, helpers = (markers[0].home, markers[0].helpers) if markers else (None, [])
    recorder = RecorderActivity(home, helpers)
    unseen = any(f"{HOOKS}:{UNSEEN}" in marker.unused for marker in markers)
    attribution = Attribution(
        calls.values(), recorder, _log_writes(markers), hook_writes_unseen=unseen
    )
    attribution.attribute_events(events)
    is_forged = attribution.is_policy_forged or (bool(policy) and _has_unseen_writes(capture))
    if is_forged:
        for call in calls.values():
            call.decisions = [one for one in call.decisions if one.source_event_type != DECISION]
    total = attribution.total
    named = {
        *_uncertainties_of_calls(calls, policy),
        *_uncertainties_of_layers(total, sdk, policy, markers),
        *_uncertainties_of_kernel(calls, attribution, gaps, capture, has_kernel=has_kernel),
    }
    if is_forged:
        named.add("policy_log_opened_by_the_agent")
    ordered = calls_in_marker_order(calls.values())
    bindings = [_bind_call_to_window(call, total) for call in ordered if not call.is_forged]
    return Correlation(
        report=CorrelationReport(
            run_id=run_id,
            status="failed" if not has_kernel else "clean" if bindings and not named else "partial",
            bindings=bindings,
            ambiguities=sorted(named),
        ),
        calls={call.id: _counts_by_kind(call.counts) for call in ordered},
        unbound=_counts_by_kind(attribution.unbound),
        undecided=_counts_by_kind(attribution.undecided),
        recorder_file_uses=attribution.recorder_file_uses,
        verified_commands=frozenset(attribution.verified_commands),
        wrappers=recorder.wrappers,
        programs=dict(recorder.programs),
        tests=dict(recorder.tests),
    )


def unsettled_calls(sdk: Sequence[SdkEvent], policy: Sequence[PolicyEvent]) -> list[str]:
    """Return why an id does not stand for one call of one tool that was decided one way."""
    named = _uncertainties_of_calls(calls_of_run(sdk, policy, ()), policy)
    return sorted({code for code in named if code.partition(":")[0] in _UNSETTLED})


def _log_writes(markers: Sequence[Marker]) -> Iterator[LogWrite]:
    """Yield the writes to the policy log and the command log that the markers of a run show."""
    for marker in markers:
        is_policy = marker.name == "policy_opened"
        if marker.pid is not None and (is_policy or marker.command_seq is not None):
            yield LogWrite(marker.at, None if is_policy else marker.command_seq, marker.pid)


def _has_unseen_writes(capture: RawCapture | None) -> bool:
    """Return whether any file may have been written to through an io_uring, unseen.

    eBPF knows the file of the policy log by itself.
    """
    return capture is not None and capture.feed == "strace" and capture.uring == "hole"


def _bind_call_to_window(call: Call, total: int) -> Binding:
    """Bind a call to its window; where an end is not known, the run's own stands for it."""
    decisions = {event.decision for event in call.decisions}
    return Binding(
        tool_call_id=call.id,
        policy_decision=decisions.pop() if len(decisions) == 1 else None,
        kernel_event_count=_count_events_of_call(call, total),
        window=Window(
            start="run_started" if call.begin is None else f"tool_call_started:{call.id}",
            end="run_finished" if call.end is None else f"tool_call_completed:{call.id}",
        ),
    )


def _count_events_of_call(call: Call, total: int) -> int:
    """Count the events of a call; without a start, all that its window holds."""
    if call.begin is not None:
        return call.event_count
    return total if call.end is None else min(call.end, total)


def _counts_by_kind(counts: EventCounts) -> dict[str, int]:
    return {kind_of_event(number): counts[number] for number in sorted(counts)}


# --- what is not certain ------------------------------------------------------------------------


def _uncertainties_of_calls(calls: dict[str, Call], policy: Sequence[PolicyEvent]) -> Iterator[str]:
    """Compare what the agent and the decisions state."""
    if any(event.tool_call_id is None for event in policy):
        yield "policy_event_without_tool_call_id"
    for call in calls.values():
        if call.started > 1 or call.completed > 1:
            yield uncertainty_code("sdk_tool_call_duplicate", call.id)
        if call.started and (not call.completed or call.never_ends):
            yield uncertainty_code("sdk_tool_call_started_without_completed", call.id)
        if call.completed and not call.started:
            yield uncertainty_code("sdk_tool_call_completed_without_started", call.id)
        if len(call.tools) > 1:
            yield uncertainty_code("tool_name_mismatch", call.id)
        yield from _uncertainties_of_decisions(call)
        if not call.is_reported:
            yield uncertainty_code("policy_decision_without_sdk_tool_call", call.id)
        elif policy and not call.decisions:  # without any decision there is no policy layer
            yield uncertainty_code("sdk_tool_call_without_policy_binding", call.id)


def _uncertainties_of_decisions(call: Call) -> Iterator[str]:
    """Yield what the decisions about one tool call contradict of each other."""
    decisions = [event.decision for event in call.decisions]
    if len(set(decisions)) > 1:
        yield uncertainty_code("policy_decision_conflict", call.id)
    if not DECISIONS.issuperset(decisions):
        yield uncertainty_code("policy_decision_unknown", call.id)
    reports = {(event.source_event_type, event.source, event.decision) for event in call.decisions}
    if len(reports) < len(decisions):
        yield uncertainty_code("policy_decision_duplicate", call.id)


def _uncertainties_of_layers(
    total: int,
    sdk: Sequence[SdkEvent],
    policy: Sequence[PolicyEvent],
    markers: Sequence[Marker],
) -> Iterator[str]:
    """Name what is missing in the layers, or was reported and not used."""
    if any(e.event_type in TOOL_EVENTS and e.tool_call_id is None for e in sdk):
        yield "sdk_event_without_tool_call_id"
    for marker in markers:
        for key in marker.unused:
            yield uncertainty_code("told_and_not_used", *key.split(":", 1))
    if policy and not total:
        yield "policy_events_without_kernel_events"
    if not (total or sdk or policy):
        yield "nothing_observed"


def _uncertainties_of_kernel(
    calls: dict[str, Call],
    attribution: Attribution,
    gaps: Sequence[tuple[int, int]],
    capture: RawCapture | None,
    *,
    has_kernel: bool,
) -> Iterator[str]:
    """Name what is not certain about the kernel layer and the windows in it."""
    yield from (
        uncertainty_code("kernel_events_lost_in_window", c.id)
        for c in _calls_with_losses(calls.values(), gaps)
    )
    uncertainties = list(attribution.uncertainty_codes())  # it marks the calls that are doubted
    if not has_kernel:
        yield "kernel_layer_absent"
        return
    yield from uncertainties
    yield from (
        uncertainty_code("kernel_layer_incomplete", why)
        for why in _missing_kernel_parts(capture, gaps)
    )
    if attribution.unbound and not calls:
        yield OUTSIDE
    for call in calls.values():
        if call.is_reported and call.begin is None:
            yield uncertainty_code("sdk_tool_call_without_window", call.id)
        elif call.is_reported and not call.event_count and not call.is_doubted:
            yield uncertainty_code("sdk_tool_call_without_kernel_events", call.id)


def _missing_kernel_parts(
    capture: RawCapture | None, gaps: Sequence[tuple[int, int]]
) -> Iterator[str]:
    """Yield what was lost. An event that is missing may be of any window, and it is unknown for
    which call a process works that was forked unseen."""
    if gaps if capture is None else capture.dropped:
        yield "events"
    if capture is None:
        return
    for name in ("unparsed", "misses", "lost_forks", "unknown_loss"):
        if getattr(capture, name):
            yield name
    if capture.feed == "ebpf" and capture.got + capture.dropped != capture.seen:
        yield "books"
    if capture.uring in ("hole", "unknown"):
        yield "io_uring"
    if capture.cgroup == "partial":
        yield "cgroup"


def _calls_with_losses(calls: Iterable[Call], gaps: Sequence[tuple[int, int]]) -> Iterator[Call]:
    """Yield the calls in whose windows events may be missing: a loss at the edge may be inside."""
    firsts: list[int] = []
    lasts: list[int] = []
    for first, last in sorted(gaps):
        firsts.append(first)
        lasts.append(max(last, lasts[-1] if lasts else last))
    for call in calls:
        if call.begin is None:
            continue
        before_end = len(firsts) if call.end is None else bisect_right(firsts, call.end)
        if before_end and lasts[before_end - 1] >= call.begin:
            yield call


class LayerContent(Struct, kw_only=True):
    """What the layers of a run say."""

    surface: Surface  #: what the kernel, SDK and policy layers reached
    kernel_events: int  #: lines of the kernel layer
    events: Iterable[AttributionEvent]  #: of the kernel layer, to be read once
    gaps: Sequence[tuple[int, int]]  #: between which numbers events were lost
    sdk: Sequence[SdkEvent]
    policy: Sequence[PolicyEvent]
    markers: Sequence[Marker]
    #: False: somebody else wrote into the kernel layer, so that no event can be attributed.
    has_kernel: bool = True


class DerivedArtifacts(Struct):
    """The artifacts of a run. The long ones can be written without ever being held whole."""

    surface: StreamedRecord[CapabilitySurface]
    correlation: Correlation
    health: ObservationHealth
    companion: StreamedRecord[Companion]

    def documents(self) -> dict[str, StreamedRecord[Any]]:
        """Return each artifact by the name of its file."""
        return {
            SURFACE_FILE: self.surface,
            CORRELATION_FILE: StreamedRecord(self.correlation.report, {}),
            HEALTH_FILE: StreamedRecord(self.health, {}),
            COMPANION_FILE: self.companion,
        }


def layer_counts_of(
    surface: Surface, events: int, policy: Sequence[PolicyEvent], sdk: Sequence[SdkEvent]
) -> LayerCounts:
    """Count what the health of a run states of its layers, `events` of which are the kernel's."""
    return LayerCounts(
        monitor_events=events,
        has_connect=surface.has_connect,
        has_datagram=surface.has_datagram,
        policy_events=len(policy),
        sdk_events=len(sdk),
        sdk_tool_calls=sum(event.event_type == "tool_call_started" for event in sdk),
    )


def derive_artifacts(
    run_id: str,
    layers: LayerContent,
    capture: RawCapture,
    *,
    filtered: Mapping[str, int] | None,
    aside: Mapping[str, int] | None,
) -> DerivedArtifacts:
    """Derive the artifacts of a run from its layers and from the counters of its capture.

    `filtered` and `aside` count by rule what was left out of the layers; None where that is not
    known. The layers' surface is changed: what correlation finds to be the recorder's own work
    is taken out of it.
    """
    surface = layers.surface
    correlation = correlate_layers(
        run_id,
        markers=layers.markers,
        sdk=layers.sdk,
        policy=layers.policy,
        events=layers.events,
        gaps=layers.gaps,
        has_kernel=layers.has_kernel and capture.feed != "absent",
        capture=capture,
    )
    surface.exclude_recorder_files(correlation.recorder_file_uses)
    counts = layer_counts_of(surface, layers.kernel_events, layers.policy, layers.sdk)
    health = make_health(run_id, capture, counts, unnamed=surface.unnamed.total())
    companion = make_companion(
        run_id,
        surface,
        capture=capture,
        filtered=filtered,
        aside=aside,
        calls=correlation.calls,
        unbound=correlation.unbound,
    )
    return DerivedArtifacts(surface.streamed_surface(run_id), correlation, health, companion)
