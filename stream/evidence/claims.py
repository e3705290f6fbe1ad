"""What a health claims of itself: its fields among themselves, and its notes about its fields.

Nothing else is needed to find what is wrong here. Whether the layers bear it out, `health` says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import UNSET

from stream.errors import visible
from stream.records.runner import ClaimScope, Coverage, ObservationHealth

Fault = tuple[str, str]  #: (what is wrong, JSON path)

LINUX = "linux"
ABSENT_NOTE, URING_NOTE = "stream_kernel_absent", "stream_uring_hole"
#: Notes that say why a kernel layer is not complete.
LOSS_NOTES = {
    *("stream_kernel_misses", "stream_kernel_lost_forks", "stream_kernel_unparsed"),
    *("stream_kernel_unknown_loss", "stream_kernel_books"),
}
CGROUP_NOTES = {"partial": "stream_cgroup_partial", "failed": "stream_cgroup_failed"}
KERNEL_NOTE, POLICY_NOTE, SDK_NOTE = "s2_kernel_capture", "s4_policy_capture", "s5_sdk_capture"
#: How the contract's own notes go on behind their code.
FORMS = {
    KERNEL_NOTE: re.compile(
        r"monitor_events=(?P<events>[0-9]+) ringbuf_drops=(?P<drops>[0-9]+)"
        r"(?: network_protocol_coverage=(?P<coverage>[a-z_]+)"
        r" network_endpoint_claim_scope=(?P<scope>[a-z_]+))?\Z"
    ),
    POLICY_NOTE: re.compile(r"policy_events=(?P<events>[0-9]+)\Z"),
    SDK_NOTE: re.compile(r"sdk_events=(?P<events>[0-9]+) sdk_tool_calls=(?P<calls>[0-9]+)\Z"),
}
_NOTE = re.compile(r"([a-z][a-z0-9_]*): (.+)\Z")
_OBSERVED = ("connect_only", "datagram_peer_observed", "connect_and_datagram_peer_observed")


def scope_of(coverage: Coverage) -> ClaimScope:
    if coverage == "unknown":
        return "unknown"
    return "not_applicable" if coverage == "absent" else "diagnostic_only"


def claim_faults(health: ObservationHealth) -> Iterator[Fault]:
    """What cannot be so, whatever there was."""
    notes, faults = notes_of(health)
    yield from _layer_faults(health, notes)
    yield from _network_faults(health)
    yield from faults
    for code in FORMS.keys() & notes.keys():
        if not FORMS[code].match(notes[code]):
            yield f"{code} does not have its form", "$.notes"
    yield from _note_faults(health, notes)


def age_faults(health: ObservationHealth) -> Iterator[Fault]:
    """What the contract asks for, and a health from before it did does not have."""
    if health.network_protocol_coverage is UNSET and health.network_endpoint_claim_scope is UNSET:
        path = "$.network_protocol_coverage"
        yield "is missing, with network_endpoint_claim_scope: it is from before there was one", path


def notes_of(health: ObservationHealth) -> tuple[dict[str, str], list[Fault]]:
    """By code, and what is wrong with them."""
    notes: dict[str, str] = {}
    faults = []
    for index, note in enumerate(health.notes):
        parts = _NOTE.match(note)
        if parts is None:
            reason = f"{visible(note)[:80]!r} does not begin with a code"
            faults.append((reason, f"$.notes[{index}]"))
        elif parts[1] in notes:
            faults.append((f"{parts[1]} stands twice", f"$.notes[{index}]"))
        else:
            notes[parts[1]] = parts[2]
    return notes, faults


def _layer_faults(health: ObservationHealth, notes: dict[str, str]) -> Iterator[Fault]:
    kernel, drops, cgroup = health.kernel_layer, health.ringbuf_drops, health.cgroup_correlation
    if drops and kernel != "partial_ringbuf_drops":
        yield f"{kernel}, and {drops} events were dropped", "$.kernel_layer"
    if kernel == "partial_ringbuf_drops" and not drops and not LOSS_NOTES & notes.keys():
        yield "partial, and nothing is said to be lost", "$.kernel_layer"
    if health.platform != LINUX and kernel != "absent":
        yield f"{kernel} on a platform that is not linux", "$.kernel_layer"
    if kernel == "absent" and cgroup == "clean":
        yield "clean, and nothing was captured", "$.cgroup_correlation"
    if kernel == "complete" and cgroup == "failed" and CGROUP_NOTES["failed"] not in notes:
        yield "failed, the kernel layer is complete, and no note says why", "$.cgroup_correlation"


def _network_faults(health: ObservationHealth) -> Iterator[Fault]:
    coverage, scope = health.network_protocol_coverage, health.network_endpoint_claim_scope
    if coverage is UNSET or scope is UNSET:
        if coverage is not scope:
            missing = "protocol_coverage" if coverage is UNSET else "endpoint_claim_scope"
            yield "is missing, and the other one is there", f"$.network_{missing}"
        return
    if scope != scope_of(coverage):
        yield f"{scope} does not follow from {coverage}", "$.network_endpoint_claim_scope"
    if health.kernel_layer == "absent" and coverage in _OBSERVED:
        yield f"{coverage}, and nothing was captured", "$.network_protocol_coverage"


def _note_faults(health: ObservationHealth, notes: dict[str, str]) -> Iterator[Fault]:
    """Where a note says of a field what that does not say."""
    kernel = health.kernel_layer
    found = FORMS[KERNEL_NOTE].match(notes.get(KERNEL_NOTE, ""))
    if found is not None:
        if kernel == "absent" and found["events"].strip("0"):
            yield f"{KERNEL_NOTE} counts events, and kernel_layer is absent", "$.notes"
        if found["drops"] != str(health.ringbuf_drops):
            yield f"{KERNEL_NOTE}: ringbuf_drops is not {found['drops'][:80]}", "$.notes"
        fields = (health.network_protocol_coverage, health.network_endpoint_claim_scope)
        if (found["coverage"] or UNSET, found["scope"] or UNSET) != fields:
            yield f"{KERNEL_NOTE}: coverage and scope are not those of the fields", "$.notes"
    for code, state in ((POLICY_NOTE, health.policy_layer), (SDK_NOTE, health.sdk_layer)):
        if code in notes and state == "absent":
            yield f"{code} belongs to no layer", "$.notes"
        counted = FORMS[code].match(notes.get(code, ""))
        if counted is not None and state != "absent" and not counted["events"].strip("0"):
            yield f"{code} counts no events, and the layer is {state}", "$.notes"
    counted = FORMS[SDK_NOTE].match(notes.get(SDK_NOTE, ""))
    if counted is not None and _is_more(counted["calls"], counted["events"]):
        yield f"{SDK_NOTE} counts more calls than events", "$.notes"
    for code in sorted(LOSS_NOTES & notes.keys()) if kernel != "partial_ringbuf_drops" else ():
        yield f"{kernel}, and {code} is noted", "$.kernel_layer"
    if ABSENT_NOTE in notes and kernel != "absent":
        yield f"{kernel}, and {ABSENT_NOTE} says otherwise", "$.kernel_layer"
    for cgroup, code in CGROUP_NOTES.items():
        if code in notes and (kernel == "absent" or health.cgroup_correlation != cgroup):
            yield f"{health.cgroup_correlation}, and {code} is noted", "$.cgroup_correlation"


def _is_more(one: str, other: str) -> bool:
    """Of two numbers in digits, however many these are."""
    one, other = one.lstrip("0"), other.lstrip("0")
    return (len(one), one) > (len(other), other)
