"""Correlate kernel events with tool calls, and name everything about that which is not certain.

An event belongs to a call if it lies in that call's window and in no other's, or if the process
that did it was started for that call. The report depends on nothing but the layers: who has the
layers comes to the same report.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from stream.evidence.attribution import (
    Attribution,
    AttributionEvent,
    LogWrite,
    RecorderActivity,
)
from stream.evidence.claude_formats import DECISION
from stream.evidence.markers import (
    HOOKS,
    TOOL_EVENTS,
    UNSEEN,
    Call,
    EventCounts,
    calls_of,
    code,
    in_order,
)
from stream.evidence.surface import Claim
from stream.records.artifacts import (
    Binding,
    CorrelationReport,
    Marker,
    PolicyEvent,
    SdkEvent,
    State,
    Window,
)
from stream.records.kernel import RawCapture, kind_of

OUTSIDE = "kernel_events_outside_every_window"  #: and there is no call that had one
_UNSETTLED = {"sdk_tool_call_duplicate", "tool_name_mismatch", "policy_decision_conflict"}
DECISIONS = {"allow", "deny"}  #: that the contract knows


class Correlation(Struct, frozen=True):
    """Every kernel event is counted once: for a call, as unbound, or as undecided."""

    report: CorrelationReport
    calls: dict[str, dict[str, int]]  #: by call: events of each kind
    unbound: dict[str, int]  #: outside of every window
    undecided: dict[str, int]  #: inside of windows, and it cannot be known whose
    recorder_file_uses: set[Claim]  #: by others than the recorder
    verified_commands: frozenset[int]  #: lines of the command log that a wrapper was seen to write
    wrappers: int  #: that ran
    programs: dict[str, int]  #: by name: those that ran and were no wrapper's
    tests: dict[str, int]  #: by name: runs of tests among those


def correlate(
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
    calls = calls_of(sdk, policy, markers)
    recorder = _recorder_activity(markers)
    unseen = any(f"{HOOKS}:{UNSEEN}" in marker.unused for marker in markers)
    attribution = Attribution(
        calls.values(), recorder, _log_writes(markers), hook_writes_unseen=unseen
    )
    attribution.run(events)
    is_forged = attribution.is_policy_forged or (bool(policy) and _has_unseen_writes(capture))
    if is_forged:
        for call in calls.values():
            call.decisions = [one for one in call.decisions if one.source_event_type != DECISION]
    total = attribution.total
    named = {
        *_of_calls(calls, policy),
        *_of_layers(total, sdk, policy, markers),
        *_of_kernel(calls, attribution, gaps, capture, has_kernel=has_kernel),
    }
    if is_forged:
        named.add("policy_log_opened_by_the_agent")
    ordered = in_order(calls.values())
    bindings = [_binding(call, total) for call in ordered if not call.is_forged]
    report = CorrelationReport(
        run_id=run_id,
        status=_status(bindings, named, has_kernel=has_kernel),
        bindings=bindings,
        ambiguities=sorted(named),
    )
    return Correlation(
        report=report,
        calls={call.id: _by_kind(call.counts) for call in ordered},
        unbound=_by_kind(attribution.unbound),
        undecided=_by_kind(attribution.undecided),
        recorder_file_uses=attribution.recorder_file_uses,
        verified_commands=frozenset(attribution.verified_commands),
        wrappers=recorder.wrappers,
        programs=dict(recorder.programs),
        tests=dict(recorder.tests),
    )


def unsettled_calls(sdk: Sequence[SdkEvent], policy: Sequence[PolicyEvent]) -> list[str]:
    """Return why an id does not stand for one call of one tool that was decided one way."""
    named = _of_calls(calls_of(sdk, policy, ()), policy)
    return sorted({code for code in named if code.partition(":")[0] in _UNSETTLED})


def _recorder_activity(markers: Sequence[Marker]) -> RecorderActivity:
    if not markers:
        return RecorderActivity(None, ())
    return RecorderActivity(markers[0].home, markers[0].helpers)


def _log_writes(markers: Sequence[Marker]) -> Iterator[LogWrite]:
    for marker in markers:
        is_policy = marker.name == "policy_opened"
        if marker.pid is not None and (is_policy or marker.command_seq is not None):
            yield LogWrite(marker.at, None if is_policy else marker.command_seq, marker.pid)


def _has_unseen_writes(capture: RawCapture | None) -> bool:
    """Return whether any file may have been written to through an io_uring, unseen.

    eBPF knows the file of the policy log by itself.
    """
    return capture is not None and capture.feed == "strace" and capture.uring == "hole"


def _status(bindings: Sequence[Binding], named: set[str], *, has_kernel: bool) -> State:
    if not has_kernel:
        return "failed"
    return "clean" if bindings and not named else "partial"


def _binding(call: Call, total: int) -> Binding:
    """Bind a call to its window; where an end is not known, the run's own stands for it."""
    decisions = {event.decision for event in call.decisions}
    return Binding(
        tool_call_id=call.id,
        policy_decision=decisions.pop() if len(decisions) == 1 else None,
        kernel_event_count=_events_of(call, total),
        window=Window(
            start="run_started" if call.begin is None else f"tool_call_started:{call.id}",
            end="run_finished" if call.end is None else f"tool_call_completed:{call.id}",
        ),
    )


def _events_of(call: Call, total: int) -> int:
    """Count the events of a call; without a start, all that its window holds."""
    if call.begin is not None:
        return call.event_count
    return total if call.end is None else min(call.end, total)


def _by_kind(counts: EventCounts) -> dict[str, int]:
    return {kind_of(number): counts[number] for number in sorted(counts)}


# --- what is not certain ------------------------------------------------------------------------


def _of_calls(calls: dict[str, Call], policy: Sequence[PolicyEvent]) -> Iterator[str]:
    """Compare what the agent and the decisions state."""
    if any(event.tool_call_id is None for event in policy):
        yield "policy_event_without_tool_call_id"
    for call in calls.values():
        if call.started > 1 or call.completed > 1:
            yield code("sdk_tool_call_duplicate", call.id)
        if call.started and (not call.completed or call.never_ends):
            yield code("sdk_tool_call_started_without_completed", call.id)
        if call.completed and not call.started:
            yield code("sdk_tool_call_completed_without_started", call.id)
        if len(call.tools) > 1:
            yield code("tool_name_mismatch", call.id)
        yield from _of_decisions(call)
        if not call.is_reported:
            yield code("policy_decision_without_sdk_tool_call", call.id)
        elif policy and not call.decisions:  # without any decision there is no policy layer
            yield code("sdk_tool_call_without_policy_binding", call.id)


def _of_decisions(call: Call) -> Iterator[str]:
    decisions = [event.decision for event in call.decisions]
    if len(set(decisions)) > 1:
        yield code("policy_decision_conflict", call.id)
    if not DECISIONS.issuperset(decisions):
        yield code("policy_decision_unknown", call.id)
    reports = {(event.source_event_type, event.source, event.decision) for event in call.decisions}
    if len(reports) < len(decisions):
        yield code("policy_decision_duplicate", call.id)


def _of_layers(
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
            yield code("told_and_not_used", *key.split(":", 1))
    if policy and not total:
        yield "policy_events_without_kernel_events"
    if not (total or sdk or policy):
        yield "nothing_observed"


def _of_kernel(
    calls: dict[str, Call],
    attribution: Attribution,
    gaps: Sequence[tuple[int, int]],
    capture: RawCapture | None,
    *,
    has_kernel: bool,
) -> Iterator[str]:
    """Name what is not certain about the kernel layer and the windows in it."""
    yield from (code("kernel_events_lost_in_window", c.id) for c in _tainted(calls.values(), gaps))
    uncertainties = list(attribution.uncertainties())  # it marks the calls that are doubted
    if not has_kernel:
        yield "kernel_layer_absent"
        return
    yield from uncertainties
    yield from (code("kernel_layer_incomplete", why) for why in _missing(capture, gaps))
    if attribution.unbound and not calls:
        yield OUTSIDE
    for call in calls.values():
        if call.is_reported and call.begin is None:
            yield code("sdk_tool_call_without_window", call.id)
        elif call.is_reported and not call.event_count and not call.is_doubted:
            yield code("sdk_tool_call_without_kernel_events", call.id)


def _missing(capture: RawCapture | None, gaps: Sequence[tuple[int, int]]) -> Iterator[str]:
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


def _tainted(calls: Iterable[Call], gaps: Sequence[tuple[int, int]]) -> Iterator[Call]:
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
