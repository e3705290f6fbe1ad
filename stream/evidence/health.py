"""How much of a run was observed: the health that follows from a capture, and what it may claim.

Health never looks better than the counters of the feed: what was lost is never zeroed, a loss that
nobody can count is a loss, and what was not observed is absent. Its notes state only what is
degraded, besides the contract's own three, and nothing that depends on the time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import UNSET, Struct

from stream.errors import printable
from stream.records.artifacts import ClaimScope, Coverage, ObservationHealth
from stream.records.control import Fault
from stream.records.kernel import RawCapture

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


def claim_scope_of(coverage: Coverage) -> ClaimScope:
    """Return the claim scope that follows from a coverage."""
    if coverage == "unknown":
        return "unknown"
    return "not_applicable" if coverage == "absent" else "diagnostic_only"


def health_claim_faults(health: ObservationHealth) -> Iterator[Fault]:
    """Yield the claims of a health that contradict each other, whatever was observed."""
    notes, faults = notes_of_health(health)
    yield from _kernel_layer_faults(health, notes)
    yield from _network_claim_faults(health)
    yield from faults
    for code in FORMS.keys() & notes.keys():
        if not FORMS[code].match(notes[code]):
            yield Fault(f"{code} does not have its form", "$.notes")
    yield from _health_note_faults(health, notes)


def older_contract_faults(health: ObservationHealth) -> Iterator[Fault]:
    """Yield what a health lacks that was written before the contract asked for it."""
    if health.network_protocol_coverage is UNSET and health.network_endpoint_claim_scope is UNSET:
        reason = "is missing, with network_endpoint_claim_scope: it is from before there was one"
        yield Fault(reason, "$.network_protocol_coverage")


def notes_of_health(health: ObservationHealth) -> tuple[dict[str, str], list[Fault]]:
    """Return the notes by their code, and what is wrong with them."""
    notes: dict[str, str] = {}
    faults = []
    for index, note in enumerate(health.notes):
        parts = _NOTE.match(note)
        if parts is None:
            reason = f"{printable(note)[:80]!r} does not begin with a code"
            faults.append(Fault(reason, f"$.notes[{index}]"))
        elif parts[1] in notes:
            faults.append(Fault(f"{parts[1]} stands twice", f"$.notes[{index}]"))
        else:
            notes[parts[1]] = parts[2]
    return notes, faults


def _kernel_layer_faults(health: ObservationHealth, notes: dict[str, str]) -> Iterator[Fault]:
    """Yield what a health claims of its kernel layer and its control group that cannot be."""
    kernel, drops, cgroup = health.kernel_layer, health.ringbuf_drops, health.cgroup_correlation
    if drops and kernel != "partial_ringbuf_drops":
        yield Fault(f"{kernel}, and {drops} events were dropped", "$.kernel_layer")
    if kernel == "partial_ringbuf_drops" and not drops and not LOSS_NOTES & notes.keys():
        yield Fault("partial, and nothing is said to be lost", "$.kernel_layer")
    if health.platform != LINUX and kernel != "absent":
        yield Fault(f"{kernel} on a platform that is not linux", "$.kernel_layer")
    if kernel == "absent" and cgroup == "clean":
        yield Fault("clean, and nothing was captured", "$.cgroup_correlation")
    if kernel == "complete" and cgroup == "failed" and CGROUP_NOTES["failed"] not in notes:
        reason = "failed, the kernel layer is complete, and no note says why"
        yield Fault(reason, "$.cgroup_correlation")


def _network_claim_faults(health: ObservationHealth) -> Iterator[Fault]:
    """Yield what a health claims of the network's coverage and its scope that cannot be."""
    coverage, scope = health.network_protocol_coverage, health.network_endpoint_claim_scope
    if coverage is UNSET or scope is UNSET:
        if coverage is not scope:
            missing = "protocol_coverage" if coverage is UNSET else "endpoint_claim_scope"
            yield Fault("is missing, and the other one is there", f"$.network_{missing}")
        return
    if scope != claim_scope_of(coverage):
        yield Fault(f"{scope} does not follow from {coverage}", "$.network_endpoint_claim_scope")
    if health.kernel_layer == "absent" and coverage in _OBSERVED:
        yield Fault(f"{coverage}, and nothing was captured", "$.network_protocol_coverage")


def _health_note_faults(health: ObservationHealth, notes: dict[str, str]) -> Iterator[Fault]:
    """Yield where a note and a field contradict each other."""
    kernel = health.kernel_layer
    found = FORMS[KERNEL_NOTE].match(notes.get(KERNEL_NOTE, ""))
    if found is not None:
        if kernel == "absent" and found["events"].strip("0"):
            yield Fault(f"{KERNEL_NOTE} counts events, and kernel_layer is absent", "$.notes")
        if found["drops"] != str(health.ringbuf_drops):
            yield Fault(f"{KERNEL_NOTE}: ringbuf_drops is not {found['drops'][:80]}", "$.notes")
        fields = (health.network_protocol_coverage, health.network_endpoint_claim_scope)
        if (found["coverage"] or UNSET, found["scope"] or UNSET) != fields:
            yield Fault(f"{KERNEL_NOTE}: coverage and scope are not those of the fields", "$.notes")
    for code, state in ((POLICY_NOTE, health.policy_layer), (SDK_NOTE, health.sdk_layer)):
        if code in notes and state == "absent":
            yield Fault(f"{code} belongs to no layer", "$.notes")
        counted = FORMS[code].match(notes.get(code, ""))
        if counted is not None and state != "absent" and not counted["events"].strip("0"):
            yield Fault(f"{code} counts no events, and the layer is {state}", "$.notes")
    counted = FORMS[SDK_NOTE].match(notes.get(SDK_NOTE, ""))
    if counted is not None and _is_larger_number(counted["calls"], counted["events"]):
        yield Fault(f"{SDK_NOTE} counts more calls than events", "$.notes")
    for code in sorted(LOSS_NOTES & notes.keys()) if kernel != "partial_ringbuf_drops" else ():
        yield Fault(f"{kernel}, and {code} is noted", "$.kernel_layer")
    if ABSENT_NOTE in notes and kernel != "absent":
        yield Fault(f"{kernel}, and {ABSENT_NOTE} says otherwise", "$.kernel_layer")
    for cgroup, code in CGROUP_NOTES.items():
        if code in notes and (kernel == "absent" or health.cgroup_correlation != cgroup):
            yield Fault(f"{health.cgroup_correlation}, and {code} is noted", "$.cgroup_correlation")


def _is_larger_number(one: str, other: str) -> bool:
    """Compare two numbers that are given in any count of digits."""
    one, other = one.lstrip("0"), other.lstrip("0")
    return (len(one), one) > (len(other), other)


UNNAMED_NOTE = "stream_kernel_unnamed"
UNWATCHED_NOTE = "stream_kernel_unwatched"


class LayerCounts(Struct, frozen=True, kw_only=True):
    """What the layers of a run hold, as far as its health states it."""

    monitor_events: int  #: lines of the kernel layer
    has_connect: bool  #: there is a connect among them
    has_datagram: bool  #: there is the peer of a datagram among them
    policy_events: int
    sdk_events: int
    sdk_tool_calls: int  #: that started


def make_health(
    run_id: str, capture: RawCapture, counts: LayerCounts, *, unnamed: int = 0
) -> ObservationHealth:
    """Make the health of a run. `unnamed` counts the kernel events that reached what has no
    name."""
    is_absent = capture.feed == "absent"
    losses = [] if is_absent else list(loss_notes_of(capture))
    drops = 0 if is_absent else capture.dropped
    is_blind = is_absent or bool(losses) or drops > 0
    is_known = not is_blind and capture.uring != "hole"
    coverage = network_coverage_of(counts.has_connect, counts.has_datagram, is_known=is_known)
    scope = claim_scope_of(coverage)
    notes = []
    if not is_absent:
        notes.append(
            f"{KERNEL_NOTE}: monitor_events={counts.monitor_events} ringbuf_drops={drops}"
            f" network_protocol_coverage={coverage} network_endpoint_claim_scope={scope}"
        )
    if counts.policy_events:
        notes.append(f"{POLICY_NOTE}: policy_events={counts.policy_events}")
    if counts.sdk_events:
        calls = counts.sdk_tool_calls
        notes.append(f"{SDK_NOTE}: sdk_events={counts.sdk_events} sdk_tool_calls={calls}")
    return ObservationHealth(
        run_id=run_id,
        platform=LINUX,
        kernel_layer=(
            "absent" if is_absent else "partial_ringbuf_drops" if is_blind else "complete"
        ),
        ringbuf_drops=drops,
        policy_layer="present" if counts.policy_events else "absent",
        sdk_layer="self_reported" if counts.sdk_events else "absent",
        cgroup_correlation="failed" if is_absent else capture.cgroup,
        network_protocol_coverage=coverage,
        network_endpoint_claim_scope=scope,
        notes=[*notes, *losses, *_notes_of_unobserved(capture, unnamed)],
    )


def network_coverage_of(has_connect: bool, has_datagram: bool, *, is_known: bool) -> Coverage:
    """Return the network coverage that follows from what was observed."""
    if not is_known:
        return "unknown"
    if has_connect and has_datagram:
        return "connect_and_datagram_peer_observed"
    if has_datagram:
        return "datagram_peer_observed"
    return "connect_only" if has_connect else "absent"


def degraded_fields(health: ObservationHealth) -> list[str]:
    """Name the fields of a health that are degraded, and what else was not seen."""
    coverage = health.network_protocol_coverage
    held = {
        f"kernel_layer={health.kernel_layer}": health.kernel_layer == "complete",
        f"ringbuf_drops={health.ringbuf_drops}": health.ringbuf_drops == 0,
        f"cgroup_correlation={health.cgroup_correlation}": health.cgroup_correlation == "clean",
        f"network_protocol_coverage={coverage}": coverage is UNSET or coverage != "unknown",
    }
    codes = {note.partition(":")[0]: note.rpartition(" ")[2] for note in health.notes}
    return [
        *(field for field, holds in held.items() if not holds),
        *(["io_uring=hole"] if URING_NOTE in codes else []),
        *([f"unnamed_{codes[UNNAMED_NOTE]}"] if UNNAMED_NOTE in codes else []),
    ]


def health_faults(
    health: ObservationHealth,
    counts: LayerCounts,
    *,
    lost: int = 0,
    is_reference: bool = False,
) -> Iterator[str]:
    """Yield the claims of a health that are wrong, by themselves or by what the layers count.

    `lost` is what the gaps of the kernel layer add up to. The reference's archives may be from
    before there was a network coverage, and know no notes of ours.
    """
    yield from health_contradictions(health, is_reference=is_reference)
    kernel, coverage = health.kernel_layer, health.network_protocol_coverage
    if counts.monitor_events and kernel == "absent":
        yield f"kernel_layer: absent, and there are {counts.monitor_events} events"
    if lost and kernel == "complete":
        yield f"kernel_layer: complete, and gaps say that {lost} events were lost"
    for layer, state, events in (
        ("policy", health.policy_layer, counts.policy_events),
        ("sdk", health.sdk_layer, counts.sdk_events),
    ):
        if (state == "absent") != (events == 0):
            yield f"{layer}_layer: {state}, and there are {events} events"
    notes = notes_of_health(health)[0]
    for code, word, count, what in (
        (KERNEL_NOTE, "events", counts.monitor_events, "events"),
        (POLICY_NOTE, "events", counts.policy_events, "events"),
        (SDK_NOTE, "events", counts.sdk_events, "events"),
        (SDK_NOTE, "calls", counts.sdk_tool_calls, "tool calls"),
    ):
        found = FORMS[code].match(notes.get(code, ""))
        if found is not None and found[word] != str(count):
            yield f"notes: {code}: {count} {what}, and it says {found[word]}"
    follows = network_coverage_of(counts.has_connect, counts.has_datagram, is_known=True)
    if _is_network_known(health) and coverage not in (UNSET, "unknown", follows):
        yield f"network_protocol_coverage: {coverage}, and {follows} follows from what was observed"
    elif is_reference and not _is_network_known(health):  # what was lost may be of another kind
        for word, is_there in (("connect", counts.has_connect), ("datagram", counts.has_datagram)):
            if word in str(coverage) and not is_there:
                yield f"network_protocol_coverage: {coverage}, and no {word} is in the layer"


def health_contradictions(
    health: ObservationHealth, *, is_reference: bool = False
) -> Iterator[str]:
    """Yield what a health contradicts of itself, and lacks if the recorder wrote it."""
    for fault in health_claim_faults(health):
        yield f"{fault.path.removeprefix('$.')}: {fault.reason}"
    if not is_reference:
        yield from _own_health_faults(health, notes_of_health(health)[0])


def loss_notes_of(capture: RawCapture) -> Iterator[str]:
    """Yield the notes of losses beyond the events that were counted as dropped."""
    if capture.misses:
        yield f"stream_kernel_misses: misses={capture.misses}"
    if capture.lost_forks:
        yield f"stream_kernel_lost_forks: lost_forks={capture.lost_forks}"
    if capture.unparsed:
        yield f"stream_kernel_unparsed: unparsed={capture.unparsed}"
    if capture.unknown_loss:
        yield f"stream_kernel_unknown_loss: {printable(capture.unknown_loss)}"
    if capture.feed == "ebpf" and capture.got + capture.dropped != capture.seen:
        books = f"got={capture.got} dropped={capture.dropped} seen={capture.seen}"
        yield f"stream_kernel_books: {books}"


def _notes_of_unobserved(capture: RawCapture, unnamed: int) -> Iterator[str]:
    """Yield the notes of what else was not observed."""
    if capture.feed == "absent":
        yield f"{ABSENT_NOTE}: {printable(capture.reason) or 'for a reason that was not given'}"
    else:
        if unnamed:
            yield f"{UNNAMED_NOTE}: events={unnamed}"
        if capture.unwatched:
            yield f"{UNWATCHED_NOTE}: {', '.join(map(printable, capture.unwatched))}"
        if capture.uring == "hole":
            yield f"{URING_NOTE}: what went by way of io_uring was not seen"
        elif capture.uring == "unknown":
            yield "stream_uring_unknown: whether io_uring was used was not seen"
        if capture.cgroup != "clean":
            reasons = "; ".join(map(printable, capture.cgroup_reasons)) or "no reason was given"
            yield f"stream_cgroup_{capture.cgroup}: {reasons}"


def _own_health_faults(health: ObservationHealth, notes: dict[str, str]) -> Iterator[str]:
    """Yield what the health of our recorder must have, and another may lack."""
    kernel, cgroup = health.kernel_layer, health.cgroup_correlation
    for fault in older_contract_faults(health):
        yield f"{fault.path.removeprefix('$.')}: {fault.reason}"
    for code, is_there in (
        (KERNEL_NOTE, kernel != "absent"),
        (POLICY_NOTE, health.policy_layer != "absent"),
        (SDK_NOTE, health.sdk_layer != "absent"),
    ):
        if is_there and code not in notes:
            yield f"notes: {code} is missing"
    if health.network_protocol_coverage == "unknown" and _is_network_known(health):
        yield "network_protocol_coverage: unknown, and nothing is said to be missing"
    if kernel == "absent":
        if KERNEL_NOTE in notes:
            yield f"notes: {KERNEL_NOTE} stands there, and kernel_layer is absent"
        if ABSENT_NOTE not in notes:
            yield f"kernel_layer: absent, and {ABSENT_NOTE} is missing"
        if cgroup != "failed":
            yield f"cgroup_correlation: {cgroup}, and nothing was captured"
    elif cgroup != "clean" and CGROUP_NOTES[cgroup] not in notes:
        yield f"cgroup_correlation: {cgroup}, and {CGROUP_NOTES[cgroup]} is missing"
    if not _is_network_known(health) and health.network_protocol_coverage not in (UNSET, "unknown"):
        coverage = health.network_protocol_coverage
        yield f"network_protocol_coverage: {coverage}, and not everything was seen"


def _is_network_known(health: ObservationHealth) -> bool:
    """Tell whether everything of the network was observed."""
    is_noted = any(note.startswith(f"{URING_NOTE}:") for note in health.notes)
    return health.kernel_layer == "complete" and not is_noted
