"""The contract's own files alone: of the reference, of somebody else, or left of one of ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stream.compare.diff import diff_runs, has_unbound_activity
from stream.compare.sides import read_evidence
from stream.records.artifacts import (
    COMPANION_FILE,
    CORRELATION_FILE,
    DETAIL_FILE,
    HEALTH_FILE,
    KERNEL_FILE,
    MARKERS_FILE,
    POLICY_FILE,
    RUNNER_FILE,
    SDK_FILE,
    SURFACE_FILE,
    V0_FILES,
)
from stream.records.kernel import KernelDetail, KernelEvent, RawCapture
from stream.transformers.normalize import Normalize
from stream.verify.session import verify
from tests.archive.samples import (
    RUN,
    Files,
    derive_artifacts,
    encode,
    find_error_rules,
    make_layers,
    make_open_event,
    make_run_files,
    make_runner_layer,
    make_stream_files,
    ndjson,
    write_files_as_archive,
)
from tests.archive.test_rewritten_evidence import make_rich_files
from tests.cli.command import Place
from tests.cli.conftest import place
from tests.core.properties import feed
from tests.evidence.raw import raw

__all__ = ["place"]
TRACED = RawCapture(
    feed="strace",
    got=3,
    seen=3,
    scopes={"tree": 3},
    cgroup="failed",
    cgroup_reasons=["strace sees the process tree only"],
    uring="unused",
)
CAPTURED = RawCapture(
    feed="ebpf",
    got=4,
    seen=4,
    scopes={"both": 4},
    cgroup="clean",
    uring="unused",
    ring_bytes=16 << 20,
)


def keep_contract_files(files: Files) -> Files:
    return {name: files[name] for name in V0_FILES}


def make_traced_files() -> Files:
    return {
        **make_layers(),
        **derive_artifacts(make_layers(), TRACED),
        RUNNER_FILE: make_runner_layer(),
    }


OURS: dict[str, Callable[[], Files]] = {
    "recorded": make_run_files,
    "streamed": make_stream_files,
    "rich": make_rich_files,
    "lossy": lambda: make_rich_files(lost=3),
    "traced": make_traced_files,
}


@pytest.mark.parametrize("which", OURS)
def test_what_is_left_of_an_archive_of_ours(which: str, tmp_path: Path) -> None:
    """Nobody has changed it: there is less of it, and what it states still holds."""
    assert (
        find_error_rules(
            write_files_as_archive(tmp_path / "a.tar.gz", keep_contract_files(OURS[which]()))
        )
        == set()
    )


def test_work_between_calls_is_no_ambiguity_in_any_form(tmp_path: Path) -> None:
    """It is counted outside of the report, which is clean."""
    files = make_layers()
    files[KERNEL_FILE] += ndjson(make_open_event(3, "/work/later"))
    *markers, end = files[MARKERS_FILE].splitlines(keepends=True)
    files[MARKERS_FILE] = b"".join((*markers, end.replace(b'"at":3', b'"at":4')))
    whole = {**files, **derive_artifacts(files, CAPTURED), RUNNER_FILE: make_runner_layer()}
    findings = json.loads(whole[CORRELATION_FILE])
    assert (findings["status"], findings["ambiguities"]) == ("clean", [])
    assert json.loads(whole[COMPANION_FILE])["unbound"] == {"openat": 1}
    assert find_error_rules(write_files_as_archive(tmp_path / "a.tar.gz", whole)) == set()
    assert (
        find_error_rules(write_files_as_archive(tmp_path / "b.tar.gz", keep_contract_files(whole)))
        == set()
    )
    found = diff_runs(*(read_evidence(str(tmp_path / f"{name}.tar.gz")) for name in "ab"))
    assert (found.status, has_unbound_activity(found)) == ("clean", True)


# ---------------------------------------------------------------- what the contract forbids

CALL = {"run_id": RUN, "source": "x", "tool": "Read"}


def make_reference_files() -> Files:
    """As the reference would write it: one decision, one binding over the whole run."""
    kernel = [make_open_event(0, "/work/a")]
    sdk = [
        {"schema": "assay.runner.sdk_event.v0", **CALL, "seq": seq, "event_type": name}
        for seq, name in enumerate(("tool_call_started", "tool_call_completed"))
    ]
    decision = {
        "schema": "assay.runner.policy_event.v0",
        **CALL,
        "seq": 0,
        "tool_call_id": "c1",
        "source_event_type": "assay.tool.decision",
        "decision": "allow",
    }
    note = (
        "s2_kernel_capture: monitor_events=1 ringbuf_drops=0 network_protocol_coverage=absent"
        " network_endpoint_claim_scope=not_applicable"
    )
    health = {
        "schema": "assay.runner.observation_health.v0",
        "run_id": RUN,
        "platform": "linux",
        "kernel_layer": "complete",
        "ringbuf_drops": 0,
        "policy_layer": "present",
        "sdk_layer": "self_reported",
        "cgroup_correlation": "clean",
        "network_protocol_coverage": "absent",
        "network_endpoint_claim_scope": "not_applicable",
        "notes": [
            *(note, "s4_policy_capture: policy_events=1"),
            "s5_sdk_capture: sdk_events=2 sdk_tool_calls=1",
        ],
    }
    surface = {
        "schema": "assay.runner.capability_surface.v0",
        "run_id": RUN,
        "filesystem_paths": ["/work/a"],
        "network_endpoints": [],
        "process_execs": [],
        "mcp_tools": ["Read"],
        "policy_decisions": ["allow:Read"],
    }
    return {
        SURFACE_FILE: encode(surface),
        CORRELATION_FILE: encode(make_report(make_binding("c1"))),
        RUNNER_FILE: make_runner_layer(),
        KERNEL_FILE: ndjson(*kernel),
        POLICY_FILE: ndjson(decision),
        SDK_FILE: ndjson(*({**one, "tool_call_id": "c1"} for one in sdk)),
        HEALTH_FILE: encode(health),
    }


def make_binding(
    call: str, start: str = "run_started", end: str = "run_finished"
) -> dict[str, Any]:
    window = {"start": start, "end": end}
    decision = "allow" if call == "c1" else None
    more = {"policy_decision": decision, "kernel_event_count": 1, "window": window}
    return {"tool_call_id": call, **more}


def make_report(*bindings: dict[str, Any], status: str = "clean") -> dict[str, Any]:
    schema = {"schema": "assay.runner.correlation_report.v0", "run_id": RUN}
    return {**schema, "status": status, "bindings": [*bindings], "ambiguities": []}


def replace_bytes(name: str, old: bytes, new: bytes) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        assert old in files[name]
        files[name] = files[name].replace(old, new)

    return change


def replace_report(*bindings: dict[str, Any]) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        files[CORRELATION_FILE] = encode(make_report(*bindings))

    return change


def drop_observation(files: Files) -> None:
    health = json.loads(files[HEALTH_FILE])
    health |= {"kernel_layer": "absent", "cgroup_correlation": "failed"}
    health["notes"] = health["notes"][1:]
    surface = json.loads(files[SURFACE_FILE])
    files[HEALTH_FILE] = encode(health)
    files[KERNEL_FILE] = b""
    files[SURFACE_FILE] = encode({**surface, "filesystem_paths": []})
    files[CORRELATION_FILE] = encode(make_report({**make_binding("c1"), "kernel_event_count": 0}))


def lose_events(files: Files) -> None:
    for old, new in (
        (b'"kernel_layer":"complete"', b'"kernel_layer":"partial_ringbuf_drops"'),
        (b'"ringbuf_drops":0', b'"ringbuf_drops":3'),
        (b"ringbuf_drops=0", b"ringbuf_drops=3"),
        (b'"absent"', b'"unknown"'),
        (b'"not_applicable"', b'"unknown"'),
        (b"coverage=absent", b"coverage=unknown"),
        (b"scope=not_applicable", b"scope=unknown"),
    ):
        replace_bytes(HEALTH_FILE, old, new)(files)


def repeat_call(files: Files) -> None:
    first, last = files[SDK_FILE].splitlines(keepends=True)
    middle = first.replace(b'"seq":0', b'"seq":1'), last.replace(b'"seq":1', b'"seq":2')
    files[SDK_FILE] = b"".join((first, *middle))
    replace_bytes(HEALTH_FILE, b"sdk_events=2 sdk_tool_calls=1", b"sdk_events=3 sdk_tool_calls=2")(
        files
    )


def add_conflicting_decision(files: Files) -> None:
    one = files[POLICY_FILE]
    files[POLICY_FILE] += one.replace(b'"seq":0', b'"seq":1').replace(b'"allow"', b'"deny"')
    replace_bytes(HEALTH_FILE, b"policy_events=1", b"policy_events=2")(files)
    replace_bytes(SURFACE_FILE, b'["allow:Read"]', b'["allow:Read","deny:Read"]')(files)


def add_resolved_event(files: Files) -> None:
    event = {**json.loads(files[KERNEL_FILE]), "seq": 1, "event_type": 112, "kind": "event_112"}
    event = {key: event[key] for key in ("schema", "run_id", "seq", "pid", "event_type", "kind")}
    files[KERNEL_FILE] += ndjson({**event, "value": None})
    files[HEALTH_FILE] = files[HEALTH_FILE].replace(b"monitor_events=1", b"monitor_events=2")
    files[CORRELATION_FILE] = encode(make_report({**make_binding("c1"), "kernel_event_count": 2}))


TIMES = ("2026-03-04T05:06:07Z", "2026-03-04T05:06:08Z")
OTHER = b'"seq":1,"event_type":"tool_call_completed","tool_call_id":"c1"'
FORBIDDEN: dict[str, tuple[Callable[[Files], None], str]] = {
    "tool events without ids": (
        replace_bytes(SDK_FILE, b',"tool_call_id":"c1"', b""),
        "clean, and there are events of calls without an id",
    ),
    "a decision without an id": (
        replace_bytes(POLICY_FILE, b',"tool_call_id":"c1"', b""),
        "clean, and there are events of calls without an id",
    ),
    "windows by the clock": (replace_report(make_binding("c1", *TIMES)), "is no marker of a phase"),
    "the same binding twice": (
        replace_report(make_binding("c1"), make_binding("c1")),
        "'c1' is bound twice",
    ),
    "clean without a layer": (drop_observation, "clean, and there is no kernel layer"),
    "clean over a layer with losses": (
        lose_events,
        "clean, and the kernel layer is partial_ringbuf_drops",
    ),
    "clean over a partial control group": (
        replace_bytes(
            HEALTH_FILE, b'"cgroup_correlation":"clean"', b'"cgroup_correlation":"partial"'
        ),
        "clean, and whose events these are is known in part only",
    ),
    "a call without a binding": (
        replace_bytes(SDK_FILE, OTHER, OTHER.replace(b'"c1"', b'"c2"')),
        "'c2' is bound to nothing",
    ),
    "two calls of one id": (repeat_call, "clean, and sdk_tool_call_duplicate:c1"),
    "a call of two tools": (
        replace_bytes(SDK_FILE, b'"tool":"Read","seq":1', b'"tool":"Write","seq":1'),
        "clean, and tool_name_mismatch:c1",
    ),
    "a call that was decided two ways": (
        add_conflicting_decision,
        "clean, and policy_decision_conflict:c1",
    ),
    "a binding of nothing": (
        replace_report(make_binding("c1"), make_binding("c9")),
        "nobody told of such a call",
    ),
    "a decision left out": (
        replace_report({**make_binding("c1"), "policy_decision": None}),
        "the decision about it is missing",
    ),
    "a resolved inode": (
        add_resolved_event,
        "how the kernel itself resolves a name is no evidence",
    ),
    "a path left out": (
        replace_bytes(SURFACE_FILE, b'["/work/a"]', b"[]"),
        '"/work/a" is missing',
    ),
    "a path too many": (
        replace_bytes(SURFACE_FILE, b'["/work/a"]', b'["/etc/shadow","/work/a"]'),
        '"/etc/shadow" follows from nothing',
    ),
    "an endpoint too many": (
        replace_bytes(
            SURFACE_FILE, b'"network_endpoints":[]', b'"network_endpoints":["1.2.3.4:5"]'
        ),
        '"1.2.3.4:5" follows from nothing',
    ),
}

#: by more than its report
BROKEN = {"a resolved inode", "a path left out", "a path too many", "an endpoint too many"}


def write_reference_archive(tmp_path: Path, change: Callable[[Files], None] | None = None) -> Path:
    files = make_reference_files()
    if change is not None:
        change(files)
    return write_files_as_archive(tmp_path / "a.tar.gz", files)


def test_the_foreign_one_is_good(tmp_path: Path) -> None:
    assert find_error_rules(write_reference_archive(tmp_path)) == set()


@pytest.mark.parametrize("what", FORBIDDEN)
def test_what_the_contract_forbids(what: str, tmp_path: Path, place: Place) -> None:
    change, message = FORBIDDEN[what]
    done = place.stream("verify", write_reference_archive(tmp_path, change))
    assert done.code == 1
    findings = [json.loads(line) for line in done.out.splitlines()]
    assert message in " | ".join(one["message"] for one in findings if one["severity"] == "error")


@pytest.mark.parametrize("what", FORBIDDEN)
def test_diff_does_not_assert_it(what: str, tmp_path: Path) -> None:
    good = read_evidence(str(write_reference_archive(tmp_path)))
    spoiled = read_evidence(str(write_reference_archive(tmp_path, FORBIDDEN[what][0])))
    found = diff_runs(good, spoiled)
    holds = found.preconditions
    assert holds["base_correlation_clean"]
    if found.status != "failed":
        assert found.status.startswith("partial")
        assert not (holds["head_correlation_clean"] and holds["stable_tool_call_ids_present"])
    else:  # and then nothing is compared
        assert what in BROKEN
        assert not any(changes.unchanged for changes in found.surface.values())


# ---------------------------------------------------------------- what it allows


def fail_correlation(files: Files) -> None:
    files[CORRELATION_FILE] = encode({**make_report(status="failed"), "ambiguities": ["not_bound"]})


def indent_file(name: str) -> Callable[[Files], None]:
    return lambda files: files.update(
        {name: json.dumps(json.loads(files[name]), indent=2).encode()}
    )


def respell_lines(change: Callable[[bytes], bytes]) -> Callable[[Files], None]:
    """All of its layers."""

    def respell(files: Files) -> None:
        for name in (RUNNER_FILE, KERNEL_FILE, POLICY_FILE, SDK_FILE):
            files[name] = change(files[name])

    return respell


ALLOWED: dict[str, Callable[[Files], None]] = {
    "blank lines": respell_lines(lambda data: b"\n" + data.replace(b"\n", b"\n\n")),
    "no newline at the end": respell_lines(lambda data: data[:-1]),
    "lines of Windows": respell_lines(lambda data: data.replace(b"\n", b"\r\n")),
    "spaces in lines": respell_lines(lambda data: data.replace(b'":', b'" : ')),
    "an indented health": indent_file(HEALTH_FILE),
    "an indented report": indent_file(CORRELATION_FILE),
    "an indented surface": indent_file(SURFACE_FILE),
    "a failed correlation that binds nothing": fail_correlation,
    "phases of the runner's own": replace_report(make_binding("c1", "setup", "teardown_2")),
}


@pytest.mark.parametrize("what", ALLOWED)
def test_what_the_contract_allows(what: str, tmp_path: Path) -> None:
    assert verify(write_reference_archive(tmp_path, ALLOWED[what])).findings == []


def test_a_line_that_is_cut_off_is_none(tmp_path: Path) -> None:
    files = make_reference_files()
    files[SDK_FILE] = files[SDK_FILE][:-3]
    assert "contract.line" in find_error_rules(write_files_as_archive(tmp_path / "a.tar.gz", files))


# ---------------------------------------------------------------- an event that nobody knows


def test_an_event_of_an_unknown_number_in_every_form(tmp_path: Path) -> None:
    """It is kept, with what is known of it in its detail, and reported as unnamed."""
    files = make_layers()
    details = []
    for record in feed(Normalize(RUN), [raw("event_999", ret=0, path="/x", pid=100)]):
        if isinstance(record, KernelDetail):
            details.append(ndjson(replace(record, seq=3)))
        elif isinstance(record, KernelEvent):
            files[KERNEL_FILE] += ndjson(replace(record, seq=3))
    files[DETAIL_FILE] += b"".join(details)
    *markers, end = files[MARKERS_FILE].splitlines(keepends=True)
    files[MARKERS_FILE] = b"".join((*markers, end.replace(b'"at":3', b'"at":4')))
    whole = {**files, **derive_artifacts(files, CAPTURED), RUNNER_FILE: make_runner_layer()}
    assert json.loads(whole[COMPANION_FILE])["unnamed"] == {"event_999": 1}
    assert find_error_rules(write_files_as_archive(tmp_path / "a.tar.gz", whole)) == set()
    assert (
        find_error_rules(write_files_as_archive(tmp_path / "b.tar.gz", keep_contract_files(whole)))
        == set()
    )


# ---------------------------------------------------------------- a peer that was refused


def test_a_blocked_connect_alone_is_coverage(tmp_path: Path) -> None:
    """Its endpoint is claimed: so there is a scope that it is claimed in."""
    files = make_layers()
    files[KERNEL_FILE] += ndjson(
        {
            "schema": "assay.runner.kernel_event.v0",
            "run_id": RUN,
            "seq": 3,
            "pid": 100,
            "event_type": 20,
            "kind": "connect_blocked",
            "value": "5.6.7.8:9",
        }
    )
    detail = Normalize(RUN)
    details = [
        replace(record, seq=3)
        for record in feed(detail, [raw("connect_blocked", peer="5.6.7.8:9", pid=100)])
        if isinstance(record, KernelDetail)
    ]
    files[DETAIL_FILE] += ndjson(*details)
    more = derive_artifacts(files, CAPTURED)
    health = json.loads(more[HEALTH_FILE])
    assert json.loads(more[SURFACE_FILE])["network_endpoints"] == ["5.6.7.8:9"]
    assert health["network_protocol_coverage"] == "connect_only"
    assert health["network_endpoint_claim_scope"] == "diagnostic_only"
    whole = {**files, **more, RUNNER_FILE: make_runner_layer()}
    assert (
        find_error_rules(write_files_as_archive(tmp_path / "a.tar.gz", keep_contract_files(whole)))
        == set()
    )
    blind = {
        "network_protocol_coverage": "absent",
        "network_endpoint_claim_scope": "not_applicable",
    }
    note = health["notes"][0].replace("connect_only", "absent")
    note = note.replace("diagnostic_only", "not_applicable")
    spoiled = {**health, **blind, "notes": [note, *health["notes"][1:]]}
    target = write_files_as_archive(
        tmp_path / "b.tar.gz", {**keep_contract_files(whole), HEALTH_FILE: encode(spoiled)}
    )
    assert find_error_rules(target) == {"contract.health"}
