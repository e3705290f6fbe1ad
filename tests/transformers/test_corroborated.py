"""What a probe reports, compared with what the kernel saw: by cases, and by properties."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stream.boundary.corroborated import corroborate
from stream.boundary.layers import LayerEvidence
from stream.records.boundary import Status
from stream.records.modes import (
    CallContext,
    Corroboration,
    KernelView,
    Layer,
    ModeBoundary,
    SeenCall,
    decode_mode_boundary,
)
from tests.transformers.modes import mode_record

PATH = "/srv/w/file"
CREATES = 0o101
FREE = CallContext(
    user=1000, capabilities=0, mounts=1, network=2, users=3, landlock=False, is_filtered=False
)
NO_EVIDENCE = LayerEvidence(None, False, ())


def record_of(
    status: Status = "denied", errno: str | None = "EACCES", code: int | None = 1, **sections: Any
) -> ModeBoundary:
    value = mode_record(
        "closed",
        result={"observed_result": status, "errno": errno, "raw_exit_code": code},
        operation={"category": "fs", "verb": "write", "target": PATH, **sections},
    )
    return decode_mode_boundary(msgspec.json.encode(value))


def opened(errno: str | None = None, flags: int = CREATES, **more: Any) -> SeenCall:
    return SeenCall("openat", errno, path=PATH, flags=flags, **more)


def judge(
    record: ModeBoundary, *calls: SeenCall, evidence: LayerEvidence = NO_EVIDENCE
) -> Corroboration:
    return corroborate(record, record.result.observed_result, KernelView(calls), evidence)


CASES: dict[str, tuple[tuple[Status, str | None], list[SeenCall], str]] = {
    "it was refused": (("denied", "EACCES"), [opened("EACCES")], "corroborated"),
    "it succeeded, and is denied": (("denied", "EACCES"), [opened()], "contradicted"),
    "it was refused first, and then done": (
        ("denied", "EACCES"),
        [opened("EACCES"), opened()],
        "contradicted",
    ),
    "it was opened, and what was written refused": (
        ("denied", "EPERM"),
        [opened(), SeenCall("write", "EPERM", resolved=PATH)],
        "corroborated",
    ),
    "it failed in another way": (("denied", "EACCES"), [opened("EROFS")], "contradicted"),
    "nobody tried": (("denied", "EACCES"), [], "unseen"),
    "another file was tried": (
        ("denied", "EACCES"),
        [SeenCall("openat", "EACCES", path="/srv/w/file2", flags=CREATES)],
        "unseen",
    ),
    "it was done": (("success", None), [opened()], "corroborated"),
    "it was done by another name": (
        ("success", None),
        [SeenCall("rename", path="/srv/w/x", to_path=PATH)],
        "corroborated",
    ),
    "it was refused, and is reported as done": (
        ("success", None),
        [opened("EROFS")],
        "contradicted",
    ),
    "it is reported as done, and was only read": (("success", None), [opened(flags=0)], "unseen"),
    "nobody tried, and it is reported as done": (("success", None), [], "unseen"),
    "a part of it": (("partial", None), [opened()], "corroborated"),
    "an error that no recorded call gave": (("error", "ENOSPC"), [opened()], "not-observed"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_write(case: str) -> None:
    (status, errno), calls, state = CASES[case]
    code = None if status == "success" else 1
    assert judge(record_of(status, errno, code), *calls).state == state


def test_without_a_feed_nothing_is_said() -> None:
    assert corroborate(record_of(), "denied", None, NO_EVIDENCE) == Corroboration(
        None, None, "not-observed"
    )


def test_what_may_be_missing_proves_nothing() -> None:
    view = KernelView((opened(),), "events were lost")
    found = corroborate(record_of(), "denied", view, NO_EVIDENCE)
    assert found == Corroboration(None, "events were lost", "not-observed")


def test_a_record_of_the_harness_is_nobodys_report() -> None:
    record = record_of("error", None)
    record.payload.raw["harness"] = {"author": "stream", "reason": "timed-out"}
    assert judge(record, opened()).state == "not-observed"


def test_no_attempt_is_not_missed() -> None:
    assert judge(record_of("error", None, None)).state == "not-observed"


OTHERS = {
    "an address": ("net", "connect", "192.0.2.7:7", SeenCall("connect", peer="192.0.2.7:7")),
    "an address of version 6": ("net", "connect", "::1", SeenCall("connect", peer="[::1]:80")),
    "a name": ("net", "fetch", "http://a.example.test/x", SeenCall("connect", peer="192.0.2.8:80")),
    "a socket file": ("net", "connect", "/run/s", SeenCall("connect", peer="unix:/run/s")),
    "an abstract socket": ("net", "connect", "@s", SeenCall("connect", peer="unix:@s")),
    "a port of its own": ("net", "listen", "127.0.0.1:0", SeenCall("bind", peer="127.0.0.1:0")),
    "a family of sockets": ("net", "open", "AF_PACKET SOCK_RAW", SeenCall("socket", flags=17)),
    "a program": ("proc", "exec", "cc", SeenCall("exec", path="/usr/bin/cc")),
    "a process": ("proc", "signal", "pid 7", SeenCall("kill", target=7)),
    "a queue": ("ipc", "create", "/queue", SeenCall("mq_open", path="queue")),
    "memory": ("ipc", "create", "System V shared memory", SeenCall("shmget")),
    "a look": ("fs", "read", PATH, SeenCall("newfstatat", path=PATH)),
    "a detour": ("fs", "read", "/srv/w/../w/file", SeenCall("openat", path=PATH)),
    "a link": ("fs", "read", PATH, SeenCall("openat", path="/srv/w/link", resolved=PATH)),
    "a folder": ("fs", "delete", PATH, SeenCall("rmdir", path=PATH)),
    "a root": ("proc", "chroot", PATH, SeenCall("chroot", path=PATH)),
}
MISSED = {
    "another address": ("net", "connect", "192.0.2.7:7", SeenCall("connect", peer="192.0.2.8:7")),
    "a question for the route": (
        *("net", "connect", "192.0.2.7:7"),
        SeenCall("connect", peer="192.0.2.7:0"),
    ),
    "a local socket": ("net", "fetch", "http://a.test/", SeenCall("connect", peer="unix:/run/s")),
    "another process": ("proc", "signal", "pid 7", SeenCall("kill", target=8)),
    "another family": ("net", "open", "AF_PACKET SOCK_RAW", SeenCall("socket", flags=2)),
    "a write": ("fs", "delete", PATH, opened()),
}


@pytest.mark.parametrize("case", [*OTHERS, *MISSED])
def test_an_operation_and_its_call(case: str) -> None:
    category, verb, target, call = (OTHERS | MISSED)[case]
    record = record_of("success", None, 0, category=category, verb=verb, target=target)
    found = judge(record, call)
    assert found.state == ("corroborated" if case in OTHERS else "unseen")
    if case in OTHERS and verb != "read":
        failed = judge(record, replace(call, errno="EPERM"))
        assert failed.state == "contradicted"


def test_what_is_tried_in_an_unknown_way_is_not_observed() -> None:
    record = record_of("success", None, 0, category="proc", verb="ponder", target="life")
    assert judge(record).state == "not-observed"


def test_a_socket_that_cannot_be_made_reaches_nobody() -> None:
    record = record_of("denied", "EPERM", category="net", verb="connect", target="192.0.2.7:7")
    call = SeenCall("socket", "EPERM", flags=2, around=replace(FREE, is_filtered=True))
    assert judge(record, call) == Corroboration("seccomp", "socket = EPERM", "corroborated")
    assert judge(record, replace(call, flags=1)).state == "unseen"


def layer_of(call: SeenCall, evidence: LayerEvidence) -> Layer | None:
    record = record_of("denied", call.errno, 1)
    if call.peer is not None:
        record.operation.category, record.operation.verb = "net", "connect"
        record.operation.target = call.peer
    found = judge(record, call, evidence=evidence)
    assert found.state == "corroborated"
    return found.closed_by


CONTROL = LayerEvidence(FREE, True, ())
BY_MODE = opened("EACCES", around=FREE, is_refused_by_mode=True)
BY_LANDLOCK = opened("EACCES", around=replace(FREE, landlock=True))
NO_WAY = SeenCall("connect", "ENETUNREACH", peer="192.0.2.7:7", around=replace(FREE, network=9))


@pytest.mark.parametrize(
    ("call", "evidence", "layer"),
    [
        (opened("EACCES"), CONTROL, "unknown"),
        (opened("EROFS", around=FREE), NO_EVIDENCE, "read-only-mount"),
        (opened("EROFS", around=replace(FREE, is_filtered=True)), CONTROL, "seccomp"),
        (BY_MODE, LayerEvidence(FREE, False, ()), "file-permissions"),
        (BY_MODE, NO_EVIDENCE, "unknown"),
        (replace(BY_MODE, errno="EPERM"), CONTROL, "unknown"),
        (replace(BY_MODE, around=replace(FREE, capabilities=2)), CONTROL, "unknown"),
        (replace(BY_MODE, around=replace(FREE, mounts=8)), CONTROL, "unknown"),
        (replace(BY_MODE, around=replace(FREE, landlock=None)), CONTROL, "unknown"),
        (BY_LANDLOCK, CONTROL, "landlock"),
        (BY_LANDLOCK, LayerEvidence(FREE, True, ("apparmor",)), "unknown"),
        (BY_LANDLOCK, LayerEvidence(FREE, False, ()), "unknown"),
        (BY_LANDLOCK, LayerEvidence(replace(FREE, user=0), True, ()), "unknown"),
        (BY_LANDLOCK, LayerEvidence(replace(FREE, capabilities=4), True, ()), "unknown"),
        (BY_LANDLOCK, LayerEvidence(replace(FREE, landlock=True), True, ()), "unknown"),
        (replace(BY_LANDLOCK, errno="EPERM"), CONTROL, "unknown"),
        (NO_WAY, CONTROL, "network-namespace"),
        (NO_WAY, LayerEvidence(FREE, False, ()), "unknown"),
        (replace(NO_WAY, around=FREE), CONTROL, "unknown"),
        (replace(NO_WAY, errno="EACCES"), CONTROL, "unknown"),
    ],
)
def test_a_layer_is_named_where_it_is_proved(
    call: SeenCall, evidence: LayerEvidence, layer: str
) -> None:
    assert layer_of(call, evidence) == layer


def refused_record(by: str, target: str = "http://n.denied.example.test/x") -> ModeBoundary:
    record = record_of("error", None, 1, category="net", verb="fetch", target=target)
    record.payload.raw["reach"] = "refused"
    record.payload.stdout_snippet = f"refused 403 by {by}"
    return record


def test_a_proxy_refuses() -> None:
    call = SeenCall("connect", peer="127.0.0.1:3128")
    found = judge(refused_record("localhost:3128"), call)
    assert found == Corroboration("proxy", "refused by localhost:3128", "corroborated")


def test_a_proxy_that_nobody_was_connected_to_does_not() -> None:
    call = SeenCall("connect", peer="127.0.0.1:3129")
    assert judge(refused_record("localhost:3128"), call).closed_by is None


def test_a_server_that_refuses_is_no_proxy() -> None:
    record = refused_record("192.0.2.7:80", "http://192.0.2.7:80/x")
    assert judge(record, SeenCall("connect", peer="192.0.2.7:80")).closed_by is None


ERRNOS = st.sampled_from([None, "EACCES", "EPERM", "EROFS", "ENOENT"])
CONTEXTS = st.none() | st.builds(
    CallContext,
    user=st.sampled_from([0, 1000]),
    capabilities=st.sampled_from([0, 2, 6]),
    mounts=st.sampled_from([1, 8]),
    network=st.sampled_from([2, 9]),
    users=st.sampled_from([3, 4]),
    landlock=st.sampled_from([None, False, True]),
    is_filtered=st.booleans(),
)
CALLS = st.builds(
    SeenCall,
    call=st.sampled_from(["openat", "unlink", "mkdir", "write", "newfstatat", "connect", "exec"]),
    errno=ERRNOS,
    has_ended=st.booleans(),
    path=st.sampled_from([None, PATH, "/other"]),
    peer=st.sampled_from([None, "192.0.2.7:7"]),
    flags=st.sampled_from([0, 1, CREATES]),
    around=CONTEXTS,
    is_refused_by_mode=st.booleans(),
)
VIEWS = st.lists(CALLS, max_size=6)
EVIDENCE = st.builds(
    LayerEvidence,
    control=CONTEXTS,
    has_control=st.booleans(),
    modules=st.sampled_from([(), ("selinux",)]),
)
STATUSES: st.SearchStrategy[Status] = st.sampled_from(["success", "denied", "partial", "error"])
RECORDS = st.builds(record_of, STATUSES, ERRNOS, st.sampled_from([None, 0, 1, 127]))


@given(RECORDS, VIEWS, EVIDENCE)
def test_what_is_said_of_any_cell_follows_from_its_calls(
    record: ModeBoundary, calls: list[SeenCall], evidence: LayerEvidence
) -> None:
    found = judge(record, *calls, evidence=evidence)
    reached = [call for call in calls if call.path == PATH]
    errnos = {call.errno for call in reached}
    status = record.result.observed_result
    if found.state == "unseen":
        assert status == "success" or not reached
    if found.state in ("corroborated", "contradicted"):
        assert reached
        assert found.detail
    if found.state == "corroborated" and status == "success":
        assert None in errnos
    if found.state == "corroborated" and record.result.errno and status != "success":
        assert record.result.errno in errnos
    if found.state == "contradicted" and status == "success":
        assert errnos - {None}
    assert found.state != "contradicted" or status != "partial" or record.result.errno
    assert found.closed_by is None or found.state in ("corroborated", "contradicted")


@given(RECORDS, VIEWS, EVIDENCE)
def test_a_layer_is_never_guessed(
    record: ModeBoundary, calls: list[SeenCall], evidence: LayerEvidence
) -> None:
    layer = judge(record, *calls, evidence=evidence).closed_by
    failed = [call for call in calls if call.path == PATH and call.errno]
    around = [call.around for call in failed if call.around]
    if layer is not None:
        assert failed
    if layer == "seccomp":
        assert any(one.is_filtered for one in around)
    if layer == "read-only-mount":
        assert any(call.errno == "EROFS" for call in failed)
    if layer == "landlock":
        assert any(one.landlock for one in around)
        assert evidence.has_control
        assert evidence.control is not None
        assert evidence.control.landlock is False
        assert not evidence.modules
    if layer == "file-permissions":
        assert any(call.is_refused_by_mode and call.errno == "EACCES" for call in failed)


@given(RECORDS, VIEWS, VIEWS, EVIDENCE)
def test_calls_on_other_files_change_nothing(
    record: ModeBoundary, calls: list[SeenCall], others: list[SeenCall], evidence: LayerEvidence
) -> None:
    more = [call for call in others if call.path != PATH]
    alone = judge(record, *calls, evidence=evidence)
    assert judge(record, *more, *calls, evidence=evidence) == alone
    assert judge(record, *calls, *more, evidence=evidence) == alone


@given(RECORDS, VIEWS, EVIDENCE)
def test_a_doubt_makes_every_cell_not_observed(
    record: ModeBoundary, calls: list[SeenCall], evidence: LayerEvidence
) -> None:
    view = KernelView(tuple(calls), "events were lost")
    found = corroborate(record, record.result.observed_result, view, evidence)
    assert found == Corroboration(None, "events were lost", "not-observed")
