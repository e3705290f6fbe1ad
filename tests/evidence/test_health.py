"""Health never looks better than the feed's counters, and what contradicts itself is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from stream.evidence.health import LayerCounts, health_faults, make_health
from stream.records.artifacts import ClaimScope, Coverage, ObservationHealth
from stream.records.kernel import RawCapture
from tests.evidence.raw import CAPTURE
from tests.evidence.test_contracts import iter_archived

ASSAY = Path(__file__).resolve().parents[1] / "data" / "assay"
GOLDEN = ASSAY / "golden" / "observation-health-openai-agents-kernel-policy-v0.json"
SEEN: dict[str, Any] = {
    "monitor_events": 4,
    "has_connect": True,
    "has_datagram": False,
    "policy_events": 1,
    "sdk_events": 3,
    "sdk_tool_calls": 1,
}
COUNTS = ("monitor_events", "policy_events", "sdk_events", "sdk_tool_calls")


def build_health(capture: RawCapture = CAPTURE, **changes: Any) -> ObservationHealth:
    unnamed = changes.pop("unnamed", 0)
    return make_health("run", capture, LayerCounts(**{**SEEN, **changes}), unnamed=unnamed)


def find_faults(found: ObservationHealth, **changes: Any) -> list[str]:
    how = {name: changes.pop(name) for name in ("lost", "is_reference") if name in changes}
    return list(health_faults(found, LayerCounts(**{**SEEN, **changes}), **how))


def is_passing(found: ObservationHealth) -> bool:
    """By the contract."""
    states = (found.kernel_layer, found.ringbuf_drops, found.cgroup_correlation)
    return states == ("complete", 0, "clean")


def note_codes(found: ObservationHealth) -> list[str]:
    return [note.partition(":")[0] for note in found.notes]


def test_a_good_run_is_reported_as_the_contract_shows_it() -> None:
    golden = msgspec.json.decode(GOLDEN.read_bytes(), type=ObservationHealth)
    assert make_health(golden.run_id, CAPTURE, LayerCounts(**SEEN)) == golden
    assert is_passing(golden)
    assert find_faults(golden) == []


def test_the_real_archives_hold_together() -> None:
    seen = 0
    files = dict(iter_archived())
    for name, data in files.items():
        if name.endswith("observation-health.json"):
            kernel = files[name.replace("observation-health.json", "layers/kernel.ndjson")]
            found = msgspec.json.decode(data, type=ObservationHealth)
            counts: dict[str, Any] = {
                "monitor_events": kernel.count(b"\n"),
                "policy_events": 0,
                "sdk_events": 5,
                "sdk_tool_calls": 2,
                "is_reference": True,
            }
            assert find_faults(found, **counts) == []
            assert find_faults(found, **{**counts, "monitor_events": 1})
            seen += 1
    assert seen == 2


@pytest.mark.parametrize(
    ("connect", "datagram", "coverage", "scope"),
    [
        (False, False, "absent", "not_applicable"),
        (True, False, "connect_only", "diagnostic_only"),
        (False, True, "datagram_peer_observed", "diagnostic_only"),
        (True, True, "connect_and_datagram_peer_observed", "diagnostic_only"),
    ],
)
def test_coverage_is_what_was_observed(
    connect: bool, datagram: bool, coverage: str, scope: str
) -> None:
    found = build_health(has_connect=connect, has_datagram=datagram)
    assert (found.network_protocol_coverage, found.network_endpoint_claim_scope) == (
        coverage,
        scope,
    )
    assert found.notes[0] == (
        "s2_kernel_capture: monitor_events=4 ringbuf_drops=0"
        f" network_protocol_coverage={coverage} network_endpoint_claim_scope={scope}"
    )


LOSSES: dict[str, dict[str, Any]] = {
    "": {"dropped": 3, "seen": 13},
    "stream_kernel_misses": {"misses": 1},
    "stream_kernel_lost_forks": {"lost_forks": 1},
    "stream_kernel_unparsed": {"unparsed": 1},
    "stream_kernel_unknown_loss": {"unknown_loss": "the feed was killed"},
    "stream_kernel_books": {"seen": 11},
}


@pytest.mark.parametrize("code", LOSSES)
def test_any_loss_is_one(code: str) -> None:
    capture = replace(CAPTURE, **LOSSES[code])
    found = build_health(capture)
    assert found.kernel_layer == "partial_ringbuf_drops"
    assert found.ringbuf_drops == capture.dropped
    assert (found.network_protocol_coverage, found.network_endpoint_claim_scope) == (
        "unknown",
        "unknown",
    )
    assert note_codes(found)[3:] == ([code] if code else [])
    assert not is_passing(found)
    assert find_faults(found) == []


@pytest.mark.parametrize(
    ("capture", "why"),
    [
        (RawCapture(feed="absent", reason="no BTF"), "no BTF"),
        (RawCapture(feed="absent"), "for a reason that was not given"),
    ],
)
def test_what_was_not_observed_is_absent(capture: RawCapture, why: str) -> None:
    found = build_health(capture, monitor_events=0, has_connect=False)
    assert found.kernel_layer == "absent"
    assert found.cgroup_correlation == "failed"
    assert found.network_protocol_coverage == found.network_endpoint_claim_scope == "unknown"
    assert note_codes(found) == ["s4_policy_capture", "s5_sdk_capture", "stream_kernel_absent"]
    assert found.notes[-1] == f"stream_kernel_absent: {why}"
    assert find_faults(found, monitor_events=0, has_connect=False) == []
    assert find_faults(found, monitor_events=1)


def test_what_went_by_way_of_io_uring_makes_the_network_unknown() -> None:
    found = build_health(replace(CAPTURE, uring="hole"))
    assert found.kernel_layer == "complete"
    assert found.network_protocol_coverage == "unknown"
    assert note_codes(found)[3:] == ["stream_uring_hole"]
    for uring in ("seen", "unused"):
        assert build_health(replace(CAPTURE, uring=uring)).notes == build_health().notes[:3]


def test_what_could_not_be_named_is_a_note() -> None:
    found = build_health(unnamed=3)
    assert found.notes[-1] == "stream_kernel_unnamed: events=3"
    assert found.kernel_layer == "complete"
    assert find_faults(found) == []
    assert (
        build_health(RawCapture(feed="absent"), unnamed=3)
        .notes[-1]
        .startswith("stream_kernel_absent")
    )


def test_the_control_groups_reasons_are_notes() -> None:
    reasons = ["2 left it", "it has\nstill processes"]
    found = build_health(replace(CAPTURE, cgroup="partial", cgroup_reasons=reasons))
    assert found.cgroup_correlation == "partial"
    assert found.notes[-1] == "stream_cgroup_partial: 2 left it; it has\\nstill processes"
    assert find_faults(found) == []
    assert not is_passing(found)


def test_layers_without_events_are_absent() -> None:
    none: dict[str, Any] = {"policy_events": 0, "sdk_events": 0, "sdk_tool_calls": 0}
    found = build_health(**none)
    assert (found.policy_layer, found.sdk_layer) == ("absent", "absent")
    assert note_codes(found) == ["s2_kernel_capture"]
    assert find_faults(found, **none) == []


CAPTURES = st.builds(
    RawCapture,
    feed=st.sampled_from(("ebpf", "strace", "absent")),
    reason=st.sampled_from(("", "no BTF")),
    got=st.integers(0, 3),
    dropped=st.integers(0, 2),
    seen=st.integers(0, 5),
    unparsed=st.integers(0, 1),
    misses=st.integers(0, 1),
    lost_forks=st.integers(0, 1),
    unknown_loss=st.sampled_from(("", "killed")),
    cgroup=st.sampled_from(("clean", "partial", "failed")),
    cgroup_reasons=st.lists(st.sampled_from(("it left",)), max_size=1),
    uring=st.sampled_from(("seen", "unused", "hole", "unknown")),
)
RUNS = st.fixed_dictionaries(
    {
        "monitor_events": st.integers(0, 3),
        "has_connect": st.booleans(),
        "has_datagram": st.booleans(),
        "policy_events": st.integers(0, 2),
        "sdk_events": st.integers(0, 2),
        "sdk_tool_calls": st.integers(0, 2),
    }
)


@given(CAPTURES, RUNS)
def test_what_is_made_holds_together_and_is_honest(
    capture: RawCapture, run: dict[str, Any]
) -> None:
    is_absent = capture.feed == "absent"
    if is_absent:
        run["monitor_events"] = 0
    run["sdk_tool_calls"] = min(run["sdk_tool_calls"], run["sdk_events"])  # an event is of one
    counts = LayerCounts(**run)
    found = make_health("run", capture, counts)
    assert list(health_faults(found, counts)) == []
    assert msgspec.json.decode(msgspec.json.encode(found), type=ObservationHealth) == found
    if found.kernel_layer == "complete":
        losses = (capture.dropped, capture.misses, capture.lost_forks, capture.unparsed)
        assert not any(losses)
        assert not capture.unknown_loss
        assert not is_absent
    if not is_absent:
        assert found.ringbuf_drops == capture.dropped
        assert found.cgroup_correlation == capture.cgroup


VALUES: dict[str, tuple[Any, ...]] = {
    "platform": ("darwin",),
    "kernel_layer": ("complete", "partial_ringbuf_drops", "absent"),
    "ringbuf_drops": (0, 1, 5),
    "policy_layer": ("present", "absent"),
    "sdk_layer": ("self_reported", "absent"),
    "cgroup_correlation": ("clean", "partial", "failed"),
    "network_protocol_coverage": (*get_args(Coverage), UNSET),
    "network_endpoint_claim_scope": (*get_args(ClaimScope), UNSET),
}
STATES = {
    "good": (CAPTURE, {}),
    "lossy": (replace(CAPTURE, dropped=1, seen=11), {}),
    "missed": (replace(CAPTURE, misses=1), {}),
    "partial": (replace(CAPTURE, cgroup="partial"), {}),
    "hole": (replace(CAPTURE, uring="hole"), {}),
    "absent": (RawCapture(feed="absent"), {"monitor_events": 0, "has_connect": False}),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", VALUES)
def test_any_field_that_is_changed_alone_is_found(state: str, name: str) -> None:
    capture, changes = STATES[state]
    good = build_health(capture, **changes)
    assert find_faults(good, **changes) == []
    for value in VALUES[name]:
        if value == getattr(good, name) or (state, name) == ("absent", "platform"):
            continue
        changed = replace(good, **{name: value})
        assert find_faults(changed, **changes), (state, name, value)


@pytest.mark.parametrize("state", STATES)
def test_any_note_that_is_changed_is_found(state: str) -> None:
    capture, changes = STATES[state]
    good = build_health(capture, **changes)
    for index, note in enumerate(good.notes):
        rest = [*good.notes[:index], *good.notes[index + 1 :]]
        others = [rest, [*good.notes, note], [*rest, note.replace(":", " ")]]
        if not note.startswith("stream_"):  # how much of it: the feed's counters show
            digits = sorted(set("0134") & set(note[10:]))
            others += [[*rest, note.replace(old, "9", 1)] for old in digits]
            others += [[*rest, note.replace("=", f"={digit}", 1)] for digit in ("0", "9" * 5000)]
        for notes in others:
            assert find_faults(replace(good, notes=notes), **changes), notes


def test_gaps_and_counts_are_held_against_it() -> None:
    assert find_faults(build_health(), lost=1)
    assert not find_faults(build_health(replace(CAPTURE, dropped=1, seen=11)), lost=1)
    for name in COUNTS:
        assert find_faults(build_health(), **{name: 9})
        assert find_faults(build_health(), **{name: 0})
    assert find_faults(build_health(), has_connect=False)
    assert find_faults(build_health(), has_datagram=True)


def coverage_note(coverage: str, scope: str, drops: int = 0) -> str:
    return (
        f"s2_kernel_capture: monitor_events=4 ringbuf_drops={drops}"
        f" network_protocol_coverage={coverage} network_endpoint_claim_scope={scope}"
    )


@pytest.mark.parametrize("drops", [0, 1])
@pytest.mark.parametrize(
    ("coverage", "connect", "datagram"),
    [
        ("connect_and_datagram_peer_observed", False, False),
        ("connect_and_datagram_peer_observed", True, False),
        ("connect_only", False, False),
        ("datagram_peer_observed", True, False),
        ("absent", True, False),
    ],
)
def test_the_references_coverage_is_what_its_layer_shows(
    coverage: Any, connect: bool, datagram: bool, drops: int
) -> None:
    """Consistent in its field, its scope and its note."""
    scope: Any = "not_applicable" if coverage == "absent" else "diagnostic_only"
    changed = replace(
        build_health(),
        kernel_layer="partial_ringbuf_drops" if drops else "complete",
        ringbuf_drops=drops,
        network_protocol_coverage=coverage,
        network_endpoint_claim_scope=scope,
        notes=[coverage_note(coverage, scope, drops), *build_health().notes[1:]],
    )
    found = find_faults(changed, has_connect=connect, has_datagram=datagram, is_reference=True)
    may_be = bool(drops) and coverage == "absent"
    assert bool(found) is not may_be, found
    seen = {"has_connect": "connect" in coverage, "has_datagram": "datagram" in coverage}
    assert find_faults(changed, **seen, is_reference=True) == []


def test_a_note_of_the_old_form_is_known_where_the_fields_are_unset() -> None:
    old = replace(
        build_health(),
        network_protocol_coverage=UNSET,
        network_endpoint_claim_scope=UNSET,
        notes=["s2_kernel_capture: monitor_events=4 ringbuf_drops=0", *build_health().notes[1:]],
    )
    assert "network_protocol_coverage" not in json.loads(msgspec.json.encode(old))
    assert find_faults(old, is_reference=True) == []
    (fault,) = find_faults(old)
    assert fault.startswith("network_protocol_coverage: is missing, with network_endpoint_claim")
