"""How much of a run was observed, in the contract's words, and whether such words hold together.

Health never looks better than the feed's books: what was lost is never zeroed, a loss that nobody
can count is a loss, and what was not observed is absent. Notes say only what is degraded, besides
the contract's own three, and nothing that depends on the time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import UNSET

from stream.errors import visible
from stream.records.kernel import RawCapture
from stream.records.runner import ClaimScope, Coverage, ObservationHealth

LINUX = "linux"
_NOTE = re.compile(r"([a-z][a-z0-9_]*): (.+)\Z")
_FORMS = {
    "s2_kernel_capture": re.compile(
        r"monitor_events=(?P<events>[0-9]+) ringbuf_drops=(?P<drops>[0-9]+)"
        r"(?: network_protocol_coverage=(?P<coverage>[a-z_]+)"
        r" network_endpoint_claim_scope=(?P<scope>[a-z_]+))?\Z"
    ),
    "s4_policy_capture": re.compile(r"policy_events=(?P<events>[0-9]+)\Z"),
    "s5_sdk_capture": re.compile(
        r"sdk_events=(?P<events>[0-9]+) sdk_tool_calls=(?P<calls>[0-9]+)\Z"
    ),
}
#: Notes that say why a kernel layer is not complete.
_LOSS_NOTES = {
    *("stream_kernel_misses", "stream_kernel_lost_forks", "stream_kernel_unparsed"),
    *("stream_kernel_unknown_loss", "stream_kernel_books"),
}
ABSENT_NOTE, URING_NOTE = "stream_kernel_absent", "stream_uring_hole"
UNNAMED_NOTE = "stream_kernel_unnamed"


def make_health(
    run_id: str,
    capture: RawCapture | None,
    *,
    monitor_events: int,
    has_connect: bool,
    has_datagram: bool,
    policy_events: int,
    sdk_events: int,
    sdk_tool_calls: int,
    unnamed: int = 0,
    platform: str = LINUX,
) -> ObservationHealth:
    """`monitor_events` are the lines of the kernel layer; `has_connect` and `has_datagram` say
    whether there is a connect, or a datagram's peer, among them, and `unnamed` how many of them
    reached what has no name. `sdk_tool_calls` have started."""
    is_absent = capture is None or capture.feed == "absent" or platform != LINUX
    losses = [] if is_absent or capture is None else list(losses_of(capture))
    drops = 0 if is_absent or capture is None else capture.dropped
    is_blind = is_absent or bool(losses) or drops > 0
    has_hole = capture is not None and capture.uring == "hole"
    coverage = coverage_of(has_connect, has_datagram, is_known=not is_blind and not has_hole)
    scope = scope_of(coverage)
    notes = []
    if not is_absent:
        notes.append(
            f"s2_kernel_capture: monitor_events={monitor_events} ringbuf_drops={drops}"
            f" network_protocol_coverage={coverage} network_endpoint_claim_scope={scope}"
        )
    if policy_events:
        notes.append(f"s4_policy_capture: policy_events={policy_events}")
    if sdk_events:
        notes.append(f"s5_sdk_capture: sdk_events={sdk_events} sdk_tool_calls={sdk_tool_calls}")
    return ObservationHealth(
        run_id=run_id,
        platform=platform,
        kernel_layer=(
            "absent" if is_absent else "partial_ringbuf_drops" if is_blind else "complete"
        ),
        ringbuf_drops=drops,
        policy_layer="present" if policy_events else "absent",
        sdk_layer="self_reported" if sdk_events else "absent",
        cgroup_correlation="failed" if is_absent or capture is None else capture.cgroup,
        network_protocol_coverage=coverage,
        network_endpoint_claim_scope=scope,
        notes=[*notes, *losses, *_shortcomings(capture, platform, unnamed)],
    )


def coverage_of(has_connect: bool, has_datagram: bool, *, is_known: bool) -> Coverage:
    if not is_known:
        return "unknown"
    if has_connect and has_datagram:
        return "connect_and_datagram_peer_observed"
    if has_datagram:
        return "datagram_peer_observed"
    return "connect_only" if has_connect else "absent"


def scope_of(coverage: Coverage) -> ClaimScope:
    if coverage == "unknown":
        return "unknown"
    return "not_applicable" if coverage == "absent" else "diagnostic_only"


def is_passing(health: ObservationHealth) -> bool:
    """What the contract asks of a run that is to pass."""
    return (
        health.kernel_layer == "complete"
        and not health.ringbuf_drops
        and health.cgroup_correlation == "clean"
    )


def degraded(health: ObservationHealth) -> list[str]:
    """Its fields that do not hold, as they stand there, and what else was not seen."""
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
    *,
    monitor_events: int,
    has_connect: bool,
    has_datagram: bool,
    policy_events: int,
    sdk_events: int,
    sdk_tool_calls: int,
    lost: int = 0,
    is_reference: bool = False,
) -> Iterator[str]:
    """What does not hold: by itself, and by what the layers count.

    `lost` is what the gaps of the kernel layer add up to. The reference's archives may be from
    before there was a network coverage, and know no notes of ours.
    """
    yield from contradictions(health, is_reference=is_reference)
    kernel, coverage = health.kernel_layer, health.network_protocol_coverage
    if monitor_events and kernel == "absent":
        yield f"kernel_layer: absent, and there are {monitor_events} events"
    if lost and kernel == "complete":
        yield f"kernel_layer: complete, and gaps say that {lost} events were lost"
    for layer, state, events in (
        ("policy", health.policy_layer, policy_events),
        ("sdk", health.sdk_layer, sdk_events),
    ):
        if (state == "absent") != (events == 0):
            yield f"{layer}_layer: {state}, and there are {events} events"
    yield from _count_faults(
        _notes(health)[0],
        {
            ("s2_kernel_capture", "events"): (monitor_events, "events"),
            ("s4_policy_capture", "events"): (policy_events, "events"),
            ("s5_sdk_capture", "events"): (sdk_events, "events"),
            ("s5_sdk_capture", "calls"): (sdk_tool_calls, "tool calls"),
        },
    )
    follows = coverage_of(has_connect, has_datagram, is_known=True)
    if _is_known(health) and coverage not in (UNSET, "unknown", follows):
        yield f"network_protocol_coverage: {coverage}, and {follows} follows from what was observed"
    elif is_reference and not _is_known(health):  # what was lost may have been of another kind
        yield from _observed_faults(health, has_connect, has_datagram)


def contradictions(health: ObservationHealth, *, is_reference: bool = False) -> Iterator[str]:
    """What cannot be so, whatever there was: by the contract's rules, and by the notes."""
    yield from _rule_faults(health, is_reference=is_reference)
    notes, faults = _notes(health)
    yield from faults
    yield from _kernel_note_faults(health, notes, is_reference=is_reference)
    for code, state in (
        ("s4_policy_capture", health.policy_layer),
        ("s5_sdk_capture", health.sdk_layer),
    ):
        if (code in notes) != (state != "absent"):
            yield f"notes: {code} {'belongs to no layer' if code in notes else 'is missing'}"
        elif code in notes and not _FORMS[code].match(notes[code]):
            yield f"notes: {code} does not have its form"
    if not is_reference:
        yield from _own_faults(health, notes)


def _notes(health: ObservationHealth) -> tuple[dict[str, str], list[str]]:
    """By code, and what is wrong with them."""
    notes: dict[str, str] = {}
    faults = []
    for note in health.notes:
        parts = _NOTE.match(note)
        if parts is None:
            faults.append(f"notes: {visible(note)[:80]!r} does not begin with a code")
        elif parts[1] in notes:
            faults.append(f"notes: {parts[1]} stands twice")
        else:
            notes[parts[1]] = parts[2]
    return notes, faults


def losses_of(capture: RawCapture) -> Iterator[str]:
    """What is missing beyond the events that were counted as dropped."""
    if capture.misses:
        yield f"stream_kernel_misses: misses={capture.misses}"
    if capture.lost_forks:
        yield f"stream_kernel_lost_forks: lost_forks={capture.lost_forks}"
    if capture.unparsed:
        yield f"stream_kernel_unparsed: unparsed={capture.unparsed}"
    if capture.unknown_loss:
        yield f"stream_kernel_unknown_loss: {visible(capture.unknown_loss)}"
    if capture.feed == "ebpf" and capture.got + capture.dropped != capture.seen:
        books = f"got={capture.got} dropped={capture.dropped} seen={capture.seen}"
        yield f"stream_kernel_books: {books}"


def _shortcomings(capture: RawCapture | None, platform: str, unnamed: int) -> Iterator[str]:
    """What else a reader has to know."""
    if platform != LINUX:
        yield f"{ABSENT_NOTE}: {visible(platform)} has no kernel feed"
    elif capture is None:
        yield f"{ABSENT_NOTE}: there was no kernel feed"
    elif capture.feed == "absent":
        yield f"{ABSENT_NOTE}: {visible(capture.reason) or 'for a reason that was not given'}"
    else:
        if unnamed:
            yield f"{UNNAMED_NOTE}: events={unnamed}"
        if capture.uring == "hole":
            yield f"{URING_NOTE}: what went by way of io_uring was not seen"
        elif capture.uring == "unknown":
            yield "stream_uring_unknown: whether io_uring was used was not seen"
        if capture.cgroup != "clean":
            reasons = "; ".join(map(visible, capture.cgroup_reasons)) or "no reason was given"
            yield f"stream_cgroup_{capture.cgroup}: {reasons}"


def _rule_faults(health: ObservationHealth, *, is_reference: bool) -> Iterator[str]:
    kernel, drops = health.kernel_layer, health.ringbuf_drops
    coverage, scope = health.network_protocol_coverage, health.network_endpoint_claim_scope
    if drops and kernel != "partial_ringbuf_drops":
        yield f"ringbuf_drops: {drops} were lost, and kernel_layer is {kernel}"
    if health.platform != LINUX and kernel != "absent":
        yield f"kernel_layer: {kernel} on a platform that is not linux"
    if (coverage is UNSET) != (scope is UNSET):
        yield "network_protocol_coverage: stands without network_endpoint_claim_scope, or it alone"
    if coverage is UNSET or scope is UNSET:
        if not is_reference:
            yield "network_protocol_coverage: is missing"
        return
    if coverage == "unknown" and _is_known(health):
        yield "network_protocol_coverage: unknown, and nothing is said to be missing"
    if scope != scope_of(coverage):
        yield f"network_endpoint_claim_scope: {scope} does not follow from {coverage}"
    if kernel == "absent" and health.cgroup_correlation != "failed" and not is_reference:
        yield f"cgroup_correlation: {health.cgroup_correlation}, and nothing was captured"


def _kernel_note_faults(
    health: ObservationHealth, notes: dict[str, str], *, is_reference: bool
) -> Iterator[str]:
    code = "s2_kernel_capture"
    if code not in notes:
        if health.kernel_layer != "absent":
            yield f"notes: {code} is missing"
        return
    if health.kernel_layer == "absent" and not is_reference:
        yield f"notes: {code} stands there, and kernel_layer is absent"
    found = _FORMS[code].match(notes[code])
    if found is None:
        yield f"notes: {code} does not have its form"
        return
    if found["drops"] != str(health.ringbuf_drops):
        yield f"notes: {code}: ringbuf_drops is not {found['drops']}"
    fields = (health.network_protocol_coverage, health.network_endpoint_claim_scope)
    if (found["coverage"] or UNSET, found["scope"] or UNSET) != fields:
        yield f"notes: {code}: coverage and scope are not those of the fields"


def _count_faults(
    notes: dict[str, str], counted: dict[tuple[str, str], tuple[int, str]]
) -> Iterator[str]:
    for (code, word), (count, what) in counted.items():
        found = _FORMS[code].match(notes.get(code, ""))
        if found is not None and found[word] != str(count):
            yield f"notes: {code}: {count} {what}, and it says {found[word]}"


def _own_faults(health: ObservationHealth, notes: dict[str, str]) -> Iterator[str]:
    """Where our own notes and the fields say different things."""
    kernel = health.kernel_layer
    lossy = sorted(_LOSS_NOTES & notes.keys())
    if lossy and kernel != "partial_ringbuf_drops":
        yield f"kernel_layer: {kernel}, and {lossy[0]} is noted"
    if kernel == "partial_ringbuf_drops" and not lossy and not health.ringbuf_drops:
        yield "kernel_layer: partial, and nothing is said to be lost"
    if not _is_known(health) and health.network_protocol_coverage not in (UNSET, "unknown"):
        coverage = health.network_protocol_coverage
        yield f"network_protocol_coverage: {coverage}, and not everything was seen"
    if (ABSENT_NOTE in notes) != (kernel == "absent"):
        yield f"kernel_layer: {kernel}, and {ABSENT_NOTE} says otherwise"
    for state in ("partial", "failed"):
        is_noted = f"stream_cgroup_{state}" in notes
        if is_noted != (kernel != "absent" and health.cgroup_correlation == state):
            yield f"cgroup_correlation: {health.cgroup_correlation}, and the notes say otherwise"


def _observed_faults(
    health: ObservationHealth, has_connect: bool, has_datagram: bool
) -> Iterator[str]:
    """Nothing was observed that is not in the layer."""
    found = str(health.network_protocol_coverage)
    for word, is_there in (("connect", has_connect), ("datagram", has_datagram)):
        if word in found and not is_there:
            yield f"network_protocol_coverage: {found}, and there is no {word} in the layer"


def _is_known(health: ObservationHealth) -> bool:
    """Whether what was observed of the network is all that there was."""
    is_told = any(note.startswith(f"{URING_NOTE}:") for note in health.notes)
    return health.kernel_layer == "complete" and not is_told
