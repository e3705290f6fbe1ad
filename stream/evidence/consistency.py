"""What one record of the runner's contracts can break by itself, beyond its shape.

`validate`, `check` and `verify` all ask here. What only several records show together is checked
by `verify`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any, NamedTuple, get_args

from msgspec import UNSET

from stream.errors import printable
from stream.evidence.health import health_claim_faults, older_contract_faults
from stream.evidence.markers import TOOL_EVENTS
from stream.records.artifacts import (
    ARCHIVE_MANIFEST,
    HOME,
    SURFACE_SETS,
    ArchiveManifest,
    Binding,
    CapabilitySurface,
    CorrelationReport,
    Marker,
    ObservationHealth,
    PolicyEvent,
    RunnerFinished,
    RunnerStarted,
    SdkEvent,
)
from stream.records.control import Fault, has_text
from stream.records.kernel import (
    INODE_RESOLVED,
    OPEN,
    AccessMode,
    KernelEvent,
    OperationFlag,
    kind_of_event,
)

LONGEST_NAME = 256  #: bytes

ACCESS: tuple[AccessMode, ...] = get_args(AccessMode)  #: by the flags' last two bits
_OPERATIONS: tuple[tuple[int, OperationFlag], ...] = (
    *((0o100, "create"), (0o1000, "truncate")),
    *((0o2000, "append"), (0o200, "exclusive")),
)
_PHASE = re.compile(r"[a-z][a-z0-9_]*(?::(?P<of>.+))?\Z", re.DOTALL)
_STARTS, _ENDS = ("run_started", "tool_call_started"), ("run_finished", "tool_call_completed")
_OF_CALLS = ("tool_call_started:", "tool_call_completed:")
_TIME = re.compile(r"\d{4}-\d\d-\d\d|[\d.,:]{5,}\Z")
#: As many digits as a time in seconds, or a date, has: no phase has such a number.
_CLOCK = re.compile(r"[^:0-9]*(?:[0-9][^:0-9]*){8}")


def contract_faults_of(record: object) -> Iterator[Fault]:
    """Yield everything that is wrong with a record that has the shape of its contract."""
    return chain.from_iterable(find(record) for find in _FAULTS.get(type(record), ()))


# ---------------------------------------------------------------- the kernel layer


class EventForm(NamedTuple):
    """What a kernel event has in common with many others: fields that may contradict each other."""

    event_type: int
    kind: str
    flags: Any
    return_value: Any
    access_mode: Any
    operation_flags: Any
    status: Any


def _kernel_event_faults(event: KernelEvent) -> Iterator[Fault]:
    return event_form_faults(EventForm._make(_form_of(event)))


_form_of = attrgetter(*EventForm._fields)


def open_mode_faults(event: KernelEvent) -> Iterator[Fault]:
    """Yield the fields of an open that another event has, and that are no part of its form."""
    for name in ("mode", "resolve") if event.event_type != OPEN else ():
        if getattr(event, name) is not UNSET:
            yield Fault("only an open has it", f"$.{name}")


def event_form_faults(event: EventForm) -> Iterator[Fault]:
    """Check what many events have in common: all but a mode, and how a path is resolved."""
    if event.kind != kind_of_event(event.event_type):
        yield Fault(f"{event.event_type} is not the type of {event.kind}", "$.event_type")
    if event.event_type == INODE_RESOLVED:
        yield Fault("how the kernel itself resolves a name is no evidence", "$.event_type")
    if event.event_type != OPEN:
        for name in EventForm._fields[2:]:
            if getattr(event, name) is not UNSET:
                yield Fault("only an open has it", f"$.{name}")
        return
    returned, status = event.return_value, event.status
    if status is not UNSET and returned is UNSET:
        yield Fault(f"{status!r}, and what was returned is missing", "$.status")
    elif status is not UNSET and status != ("error" if returned < 0 else "success"):
        yield Fault(f"{status!r}, but {returned} was returned", "$.status")
    if event.flags is UNSET:
        for name in ("access_mode", "operation_flags"):
            if getattr(event, name) is not UNSET:
                yield Fault("there are no flags that it follows from", f"$.{name}")
        return
    access, operations = ACCESS[event.flags & 3], operations_of_open_flags(event.flags)
    if event.access_mode is not UNSET and event.access_mode != access:
        yield Fault(f"{event.access_mode!r}, but the flags say {access!r}", "$.access_mode")
    said = () if event.operation_flags is UNSET else event.operation_flags
    is_stated = event.access_mode is not UNSET or event.operation_flags is not UNSET
    if is_stated and said != operations:
        yield Fault(f"the flags say {[*operations] or 'nothing'}", "$.operation_flags")


def operations_of_open_flags(flags: int) -> tuple[OperationFlag, ...]:
    """Return the operations that follow from the flags of an open."""
    return tuple(name for bit, name in _OPERATIONS if flags & bit)


# ---------------------------------------------------------------- the artifacts


def surface_faults(surface: CapabilitySurface) -> Iterator[Fault]:
    """Yield lists of a surface that are not sorted sets, and names that are empty."""
    for name in SURFACE_SETS:
        items = [item.encode() for item in getattr(surface, name)]
        for index, (one, other) in enumerate(pairwise(items), 1):
            if one >= other:
                reason = "stands twice" if one == other else "not sorted by its bytes"
                yield Fault(f"{_quoted(other.decode())}: {reason}", f"$.{name}[{index}]")
                break
    for index, tool in enumerate(surface.mcp_tools):
        if not has_text(tool):
            yield Fault("names no tool", f"$.mcp_tools[{index}]")
    for index, summary in enumerate(surface.policy_decisions):
        decision, _, tool = summary.partition(":")
        if not has_text(decision) or not has_text(tool):
            reason = f"{_quoted(summary)} is no decision about a tool: expected DECISION:TOOL"
            yield Fault(reason, f"$.policy_decisions[{index}]")


def report_faults(report: CorrelationReport) -> Iterator[Fault]:
    """Yield what a correlation report contradicts of itself."""
    if report.status == "clean" and report.ambiguities:
        reason = f"called clean, and {_quoted(report.ambiguities[0])} is not resolved"
        yield Fault(reason, "$.ambiguities")
    known: set[str] = set()
    for index, text in enumerate(report.ambiguities):
        if not has_text(text):
            yield Fault("says nothing", f"$.ambiguities[{index}]")
        if text in known:
            yield Fault(f"{_quoted(text)}: stands twice", f"$.ambiguities[{index}]")
        known.add(text)
    seen: set[str] = set()
    for index, binding in enumerate(report.bindings):
        name, path = binding.tool_call_id, f"$.bindings[{index}]"
        if not has_text(name):
            yield Fault("a binding is of a call with an id", f"{path}.tool_call_id")
        if binding.policy_decision is not None and not has_text(binding.policy_decision):
            yield Fault(
                "is empty: where nothing was decided, it is null", f"{path}.policy_decision"
            )
        if name in seen:
            yield Fault(f"{_quoted(name)} is bound twice", f"{path}.tool_call_id")
        seen.add(name)
        yield from _window_faults(binding, f"{path}.window")


def empty_report_faults(report: CorrelationReport) -> Iterator[Fault]:
    """Yield a fault if a report is called clean, and binds nothing."""
    if report.status == "clean" and not report.bindings:
        yield Fault("called clean, but nothing is bound: nothing was correlated", "$.bindings")


def clean_report_faults(report: CorrelationReport, health: ObservationHealth) -> Iterator[str]:
    """Say why a clean report contradicts the health of its run."""
    if report.status != "clean":
        return
    if health.kernel_layer == "absent":
        yield "$.status: clean, and there is no kernel layer to bind anything to"
    elif health.kernel_layer != "complete":
        yield f"$.status: clean, and the kernel layer is {health.kernel_layer}"
    elif health.cgroup_correlation == "partial":
        yield "$.status: clean, and whose events these are is known in part only"


def unbound_call_faults(
    report: CorrelationReport, calls: Iterable[str | None], decided: Iterable[str | None]
) -> Iterator[str]:
    """Say which calls a clean report leaves open: without an id, or bound to nothing.

    `calls` and `decided` are the ids in the SDK layer and in the policy layer.
    """
    if report.status != "clean":
        return
    reported = {*calls}
    if None in reported or None in {*decided}:
        yield "$.status: clean, and there are events of calls without an id"
    bound = {binding.tool_call_id for binding in report.bindings}
    unbound = {call for call in reported if call is not None} - bound
    if bound and unbound:  # where nothing is bound at all, that is a finding of its own
        yield f"$.bindings: clean, and {_quoted(min(unbound))} is bound to nothing"


def _window_faults(binding: Binding, path: str) -> Iterator[Fault]:
    """Yield what is wrong with the markers at which a correlation report binds a tool call."""
    start, end = binding.window.start, binding.window.end
    for name, marker in (("start", start), ("end", end)):
        found, of = _PHASE.match(marker), marker.partition(":")[2]
        is_clock = _CLOCK.match(marker) or (of != binding.tool_call_id and _TIME.match(of))
        if found is None or is_clock:
            reason = f"{_quoted(marker)} is no marker of a phase: no time says what a call did"
            yield Fault(reason, f"{path}.{name}")
        elif marker.startswith(_OF_CALLS) and of != binding.tool_call_id:
            yield Fault(f"{_quoted(marker)} is of another call", f"{path}.{name}")
    if start.partition(":")[0] in _ENDS:
        yield Fault(f"{_quoted(start)} is where something ends", f"{path}.start")
    if end.partition(":")[0] in _STARTS:
        yield Fault(f"{_quoted(end)} is where something starts", f"{path}.end")
    elif start == end:
        yield Fault(f"it ends where it starts, at {_quoted(start)}", f"{path}.end")


def manifest_faults(manifest: ArchiveManifest) -> Iterator[Fault]:
    """Yield names in a manifest that contradict each other, or lead elsewhere."""
    for index, (name, file) in enumerate(manifest.files.items()):
        path = f"$.files[{index}].path"  # a name may be anything, and no JSON path
        if file.path != name:
            yield Fault(f"{_quoted(name)} is listed as {_quoted(file.path)}", path)
        if name == ARCHIVE_MANIFEST:
            yield Fault("the manifest does not list itself", path)
        if found := unsafe_name_fault(name):
            yield Fault(f"{_quoted(name)}: {found[1]}", path)


def unsafe_name_fault(name: str) -> tuple[str, str] | None:
    """Return why a name is dangerous for who unpacks or reads it: the kind, and the reason."""
    size = len(name.encode())
    parts = name.split("/")
    if size > LONGEST_NAME:
        return "long", f"the name has {size} bytes, more than {LONGEST_NAME}"
    if name.startswith("/"):
        return "absolute", "the name is absolute"
    if ":" in parts[0]:
        return "absolute", "the name begins with a drive, as some systems have them"
    if ".." in parts:
        return "traversal", "the name leads out of the folder by `..`"
    if "" in parts or "." in parts or printable(name) != name or "\\" in name:
        return "name", "the name is no plain name of a file"
    return None


# ---------------------------------------------------------------- the other layers


def sdk_faults(event: SdkEvent) -> Iterator[Fault]:
    """Yield empty names, and a call that is named by an event of none."""
    yield from _empty_name_faults(event, ("tool_call_id", "tool"))
    if event.event_type in TOOL_EVENTS:
        return
    for name in ("tool_call_id", "tool"):
        if getattr(event, name) is not None:
            yield Fault(f"{event.event_type} is of no tool call", f"$.{name}")


def decision_faults(event: PolicyEvent) -> Iterator[Fault]:
    """Yield the names of a decision that are empty."""
    yield from _empty_name_faults(event, ("tool_call_id", "tool", "decision"))


def _empty_name_faults(event: SdkEvent | PolicyEvent, names: tuple[str, ...]) -> Iterator[Fault]:
    for name in names:
        if (text := getattr(event, name)) is not None and not has_text(text):
            yield Fault("is empty: what is not known is left out", f"$.{name}")


def runner_faults(event: RunnerStarted | RunnerFinished) -> Iterator[Fault]:
    """Yield what an event of the runner contradicts of itself."""
    wanted = "run_finished" if event.seq else "run_started"
    if event.type != wanted or event.seq > 1:
        yield Fault(f"{event.type!r} is number {event.seq}", "$.type")
    if isinstance(event, RunnerStarted):
        return
    if event.exit_code is not None and event.signal is not None:
        yield Fault("it ended by itself, and by a signal", "$.signal")
    if event.success != (event.exit_code == 0):
        said = "a success" if event.success else "no success"
        yield Fault(f"{said}, and it ended with {event.exit_code}", "$.success")


def marker_faults(marker: Marker) -> Iterator[Fault]:
    """Yield what a marker contradicts of itself: its writer is known where the kernel saw it."""
    is_of_wrapper = marker.name == "wrapper_told"
    is_seen = is_of_wrapper or marker.name == "policy_opened"
    is_written = (is_seen or marker.name in TOOL_EVENTS) and marker.clock == "kernel"
    if is_written != (marker.pid is not None):
        yield Fault("its clock and its process do not go together", "$.pid")
    if is_of_wrapper != (marker.command_seq is not None):
        yield Fault("a wrapper and a line of the command log go together", "$.command_seq")
    if is_seen and not is_written:
        yield Fault("who did it is known by the kernel alone", "$.clock")
    is_start = marker.name == "run_started"
    if marker.helpers and not (is_start and marker.home):
        yield Fault("only a start with a home has helpers", "$.helpers")
    if marker.unused and marker.name != "run_finished":
        yield Fault("only the end says what could not be used", "$.unused")
    if marker.home is None:
        return
    if not is_start or not marker.home.endswith(f"/{marker.run_id}/{HOME}"):
        yield Fault("it is no folder of the recorder's own", "$.home")


def _quoted(text: str) -> str:
    return repr(printable(text[:100]))


_FAULTS: dict[type, tuple[Callable[[Any], Iterator[Fault]], ...]] = {
    KernelEvent: (_kernel_event_faults, open_mode_faults),
    ObservationHealth: (health_claim_faults, older_contract_faults),
    CapabilitySurface: (surface_faults,),
    CorrelationReport: (report_faults, empty_report_faults),
    ArchiveManifest: (manifest_faults,),
    SdkEvent: (sdk_faults,),
    PolicyEvent: (decision_faults,),
    RunnerStarted: (runner_faults,),
    RunnerFinished: (runner_faults,),
    Marker: (marker_faults,),
}
