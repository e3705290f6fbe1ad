"""Which kernel events belong to which tool call, and everything about that which is not certain.

An event belongs to a call if it lies in that call's window and in no other's, or if the process
that did it was started for that call. It depends on nothing but the layers, and holds nothing of
the kernel layer but the living processes: who has the layers comes to the same report.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from stream.evidence.attribution import POLICY, Attribution, AttributionEvent, RecorderActivity
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
    undecided: dict[str, int]  #: inside of windows, and it cannot be said whose
    near: set[Claim]  #: of what was done in the recorder's own folder, what was not its own work
    vouched: frozenset[int]  #: lines of the command log that a wrapper was seen to write
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
    """`events` is read once. A gap is the numbers between which the lost events would stand.
    `capture`: the books of the feed, which know of losses that have no place."""
    calls = calls_of(sdk, policy, markers)
    own = _own(markers)
    unseen = any(f"{HOOKS}:{UNSEEN}" in marker.unused for marker in markers)
    attribution = Attribution(calls.values(), own, _told(markers), unseen=unseen)
    attribution.run(events)
    is_forged = attribution.is_policy_forged or (bool(policy) and _writes_unseen(capture))
    if is_forged:
        for call in calls.values():
            call.decisions = [one for one in call.decisions if one.source_event_type != DECISION]
    named = set(_named_of_calls(calls, policy))
    total = attribution.total
    doubts = set(attribution.finish())
    named |= doubts if has_kernel else set()
    if is_forged:
        named.add("policy_log_opened_by_the_agent")
    if has_kernel and attribution.unbound and not calls:
        named.add(OUTSIDE)
    named |= set(_named_of_evidence(calls, total, policy, has_kernel=has_kernel))
    named |= {code("kernel_events_lost_in_window", c.id) for c in _tainted(calls.values(), gaps)}
    if has_kernel:
        named |= {code("kernel_layer_incomplete", why) for why in _missing(capture, gaps)}
    if any(e.event_type in TOOL_EVENTS and e.tool_call_id is None for e in sdk):
        named.add("sdk_event_without_tool_call_id")
    for marker in markers:
        named |= {code("told_and_not_used", *key.split(":", 1)) for key in marker.unused}
    if not (total or sdk or policy):
        named.add("nothing_observed")
    told = [call for call in in_order(calls.values()) if not call.is_forged]
    bindings = [_binding(call, total) for call in told]
    report = CorrelationReport(
        run_id=run_id,
        status=_status(bindings, named, has_kernel=has_kernel),
        bindings=bindings,
        ambiguities=sorted(named),
    )
    return Correlation(
        report=report,
        calls={call.id: _by_kind(call.tally) for call in in_order(calls.values())},
        unbound=_by_kind(attribution.unbound),
        undecided=_by_kind(attribution.undecided),
        near=attribution.near,
        vouched=frozenset(attribution.vouched),
        wrappers=own.wrappers,
        programs=dict(own.programs),
        tests=dict(own.tests),
    )


def unsettled_calls(sdk: Sequence[SdkEvent], policy: Sequence[PolicyEvent]) -> list[str]:
    """Why an id does not stand for one call of one tool, that was decided one way."""
    named = _named_of_calls(calls_of(sdk, policy, ()), policy)
    return sorted(code for code in named if code.partition(":")[0] in _UNSETTLED)


def _writes_unseen(capture: RawCapture | None) -> bool:
    """Say whether any file may have been written to by way of an io_uring. eBPF knows the file of
    the policy log by itself."""
    return capture is not None and capture.feed == "strace" and capture.uring == "hole"


def _own(markers: Sequence[Marker]) -> RecorderActivity:
    first = markers[0] if markers else None
    return (
        RecorderActivity(None, ()) if first is None else RecorderActivity(first.home, first.helpers)
    )


def _told(markers: Sequence[Marker]) -> Iterator[tuple[int, int, int]]:
    """Of lines of the command log, and of who opened the policy log: where, which, and by whom."""
    for marker in markers:
        if marker.name == "policy_opened" and marker.pid is not None:
            yield marker.at, POLICY, marker.pid
        elif marker.command_seq is not None and marker.pid is not None:
            yield marker.at, marker.command_seq, marker.pid


def _status(bindings: Sequence[Binding], named: set[str], *, has_kernel: bool) -> State:
    if not has_kernel:
        return "failed"
    return "clean" if bindings and not named else "partial"


def _binding(call: Call, total: int) -> Binding:
    """Where an end is not known, nothing narrower than the run's own can be named."""
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
    """Of one whose start nobody told, all that its window holds: none of it is its alone."""
    if call.begin is not None:
        return call.count
    return total if call.end is None else min(call.end, total)


def _by_kind(tally: EventCounts) -> dict[str, int]:
    return {kind_of(number): tally[number] for number in sorted(tally)}


# --- what is not certain ------------------------------------------------------------------------


def _named_of_calls(calls: dict[str, Call], policy: Sequence[PolicyEvent]) -> Iterator[str]:
    """What the agent and the decisions say, held against each other."""
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
        yield from _named_of_decisions(call)
        if not call.is_told:
            yield code("policy_decision_without_sdk_tool_call", call.id)
        elif policy and not call.decisions:  # without any decision there is no policy layer
            yield code("sdk_tool_call_without_policy_binding", call.id)


def _named_of_decisions(call: Call) -> Iterator[str]:
    decided = [event.decision for event in call.decisions]
    if len(set(decided)) > 1:
        yield code("policy_decision_conflict", call.id)
    if not DECISIONS.issuperset(decided):
        yield code("policy_decision_unknown", call.id)
    told = {(event.source_event_type, event.source, event.decision) for event in call.decisions}
    if len(told) < len(decided):
        yield code("policy_decision_duplicate", call.id)


def _named_of_evidence(
    calls: dict[str, Call],
    total: int,
    policy: Sequence[PolicyEvent],
    *,
    has_kernel: bool,
) -> Iterator[str]:
    if not has_kernel:
        yield "kernel_layer_absent"
    if policy and not total:
        yield "policy_events_without_kernel_events"
    for call in calls.values():
        if has_kernel and call.is_told and call.begin is None:
            yield code("sdk_tool_call_without_window", call.id)
        elif has_kernel and call.is_told and not call.count and not call.is_doubted:
            yield code("sdk_tool_call_without_kernel_events", call.id)


def _missing(capture: RawCapture | None, gaps: Sequence[tuple[int, int]]) -> Iterator[str]:
    """What was lost, whatever windows there are: an event that is missing may be of any of them,
    and who forked unseen is at work for nobody knows whom."""
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
    """Those in whose windows something may be missing. A loss at a window's edge may be in it."""
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
