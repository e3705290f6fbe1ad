"""The surface claims what was done, and the companion keeps what was only tried."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.contracts import LINES
from stream.evidence.surface import Surface, failure_name, make_companion, ways_of_open
from stream.records.artifacts import (
    KERNEL_FILE,
    POLICY_FILE,
    SDK_FILE,
    SURFACE_FILE,
    PolicyEvent,
    SdkEvent,
)
from stream.records.kernel import EVENT_TYPES, KernelDetail, KernelEvent, RawEvent, kind_of_event
from stream.transformers.normalize import Normalize
from tests.core.properties import feed
from tests.evidence.raw import CAPTURE, O_CREAT, O_WRONLY, RAW_EVENTS, raw, raw_error, raw_open

ASSAY = Path(__file__).resolve().parents[1] / "data" / "assay"
ARCHIVES = sorted((ASSAY / "archives").glob("*.tar.gz"))


def surface_of(*events: RawEvent, is_reference: bool = False) -> Surface:
    """By way of the lines that the events become."""
    surface = Surface(is_reference=is_reference)
    records = feed(Normalize(), events)
    details = {one.seq: one for one in records if isinstance(one, KernelDetail)}
    for one in records:
        if isinstance(one, KernelEvent):
            surface.add_kernel_event(one, details.get(one.seq))
    return surface


def list_paths(*events: RawEvent) -> list[str]:
    return surface_of(*events).surface_artifact("run").filesystem_paths


def list_endpoints(*events: RawEvent) -> list[str]:
    return surface_of(*events).surface_artifact("run").network_endpoints


def sdk_event(tool: str | None, **fields: Any) -> SdkEvent:
    return SdkEvent(
        run_id="run", seq=0, event_type="tool_call_started", source="x", tool=tool, **fields
    )


def policy_event(tool: str, decision: str) -> PolicyEvent:
    return PolicyEvent(
        run_id="run", seq=0, source_event_type="t", source="x", tool=tool, decision=decision
    )


# ---------------------------------------------------------------- the reference's archives


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.stem)
def test_the_real_archives_surfaces_follow_from_their_layers(archive: Path) -> None:
    with tarfile.open(archive) as tar:
        files = {member.name: tar.extractfile(member) for member in tar}
        data = {name: file.read() for name, file in files.items() if file is not None}
    surface, ours = Surface(is_reference=True), Surface()
    for name in (KERNEL_FILE, SDK_FILE, POLICY_FILE):
        for line in data[name].splitlines():
            event = LINES[json.loads(line)["schema"]](line)
            for one in (surface, ours):
                if isinstance(event, KernelEvent):
                    one.add_kernel_event(event, None)
                elif isinstance(event, SdkEvent):
                    one.add_sdk_event(event)
                elif isinstance(event, PolicyEvent):
                    one.add_policy_event(event)
    run_id = json.loads(data[SURFACE_FILE])["run_id"]
    assert msgspec.json.encode(surface.surface_artifact(run_id)) == data[SURFACE_FILE]
    # What the reference claims beyond what was done: failed opens, and probes of addresses.
    less = ours.surface_artifact(run_id)
    claimed = surface.surface_artifact(run_id)
    assert set(claimed.filesystem_paths) - set(less.filesystem_paths) == {
        path for path in ours.failed_paths() if path not in less.filesystem_paths
    }
    assert set(claimed.network_endpoints) - set(less.network_endpoints) == set(
        ours.address_probes()
    )
    assert len(ours.address_probes()) >= 2
    assert ours.self_reported_tools() == less.mcp_tools == ["read_file", "write_file"]


# ---------------------------------------------------------------- what is claimed


def test_only_opens_that_succeeded_are_claimed() -> None:
    surface = surface_of(
        raw_open("/b", O_WRONLY | O_CREAT),
        raw_open("/b"),
        raw_open("/a"),
        raw_error("/c"),
        raw_error("/c", 13),
    )
    assert surface.surface_artifact("run").filesystem_paths == ["/a", "/b"]
    assert surface.reached_paths() == {"/a": ["read"], "/b": ["create", "read", "write"]}
    assert surface.failed_paths() == {"/c": ["openat:EACCES", "openat:ENOENT"]}


def test_an_open_whose_end_nobody_saw_is_not_claimed() -> None:
    surface = surface_of(raw_open("/a", ret=None, resolved=None))
    assert surface.reached_paths() == {}
    assert surface.failed_paths() == {"/a": ["openat:unseen"]}


CHANGES = {
    **dict.fromkeys(("unlink", "unlinkat"), "unlink"),
    **dict.fromkeys(("mkdir", "mkdirat"), "mkdir"),
    "rmdir": "rmdir",
    **dict.fromkeys(("chmod", "fchmod", "fchmodat", "fchmodat2"), "chmod"),
    **dict.fromkeys(("chown", "fchown", "lchown", "fchownat"), "chown"),
    **dict.fromkeys(("truncate", "ftruncate"), "truncate"),
    **dict.fromkeys(("mknod", "mknodat"), "mknod"),
    **dict.fromkeys(("rename", "renameat", "renameat2"), "rename"),
    **dict.fromkeys(("link", "linkat"), "link"),
    **dict.fromkeys(("symlink", "symlinkat"), "symlink"),
    **dict.fromkeys(("setxattr", "lsetxattr", "fsetxattr", "setxattrat"), "setxattr"),
    **dict.fromkeys(
        ("removexattr", "lremovexattr", "fremovexattr", "removexattrat"), "removexattr"
    ),
    **dict.fromkeys(("utime", "utimes", "futimesat", "utimensat"), "utime"),
    **dict.fromkeys(("open_tree", "open_tree_attr"), "open_tree"),
    "file_setattr": "setattr",
    "acct": "acct",
    "bind": "bind",  # of a local socket, by a name that no abstract one has
}


@pytest.mark.parametrize("call", CHANGES)
def test_what_changes_the_file_system_is_claimed(call: str) -> None:
    way = CHANGES[call]
    event = raw(call, ret=0, path="/a")
    if way in ("rename", "link", "symlink"):
        event = raw(call, ret=0, path="/a", to_path="b", to_base="/c")
    expected = {"/a": [way]}
    if way in ("rename", "link"):
        expected["/c/b"] = [f"{way}_to"]
    if way == "symlink":
        expected = {"/c/b": [way]}
    assert surface_of(event).reached_paths() == expected
    assert list_paths(event) == sorted(expected)
    event.ret = -13
    assert list_paths(event) == []
    assert surface_of(event).failed_paths() == {
        path: [f"{ways[0]}:EACCES"] for path, ways in expected.items()
    }


def test_every_call_that_changes_the_file_system_is_known() -> None:
    others = {"open", "creat", "openat", "openat2", "open_by_handle_at", "connect"}
    others |= {"sendto", "sendmsg", "sendmmsg"}
    others |= {"exec", "execve", "execveat", "file_blocked", "connect_blocked", "fork", "exit"}
    others |= {"accept", "accept4", "mq_open", "mq_unlink", "io_uring_setup"}
    others |= {"ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd"}
    others |= {"bpf", "init_module", "finit_module", "fanotify_init"}
    assert {*CHANGES, *others} == set(EVENT_TYPES)


def test_who_comes_is_a_peer() -> None:
    accepted = raw("accept4", ret=5, peer="10.0.0.9:40123")
    surface = surface_of(accepted)
    assert list_endpoints(accepted) == ["10.0.0.9:40123"]
    assert (surface.has_connect, surface.has_datagram) == (True, False)
    nobody_asked = surface_of(raw("accept", ret=5))
    assert (nobody_asked.has_connect, nobody_asked.unnamed) == (True, {"event_1028": 1})
    local = surface_of(raw("accept", ret=5, peer="unix:/run/x"), raw("bind", ret=0, peer="unix:@y"))
    assert (local.local_sockets(), local.has_connect) == (["unix:/run/x", "unix:@y"], False)


def test_what_was_taken_from_another_process_is_claimed() -> None:
    """Its file, or who is at the other end; what has no name is counted."""
    file = raw("pidfd_getfd", ret=5, resolved="/etc/shadow", target=9)
    peer = raw("pidfd_getfd", ret=6, peer="1.2.3.4:443", target=9)
    surface = surface_of(file, peer, raw("ptrace", ret=0, target=9))
    assert surface.reached_paths() == {"/etc/shadow": ["taken"]}
    assert list_endpoints(file, peer) == ["1.2.3.4:443"]
    assert surface.has_connect
    assert not surface.unnamed
    assert surface_of(raw("pidfd_getfd", ret=6, target=9)).unnamed == {"event_1030": 1}
    assert not surface_of(raw("pidfd_getfd", ret=-1, target=9)).unnamed


def test_a_queue_has_a_name_of_its_own() -> None:
    surface = surface_of(raw("mq_open", ret=3, path="orders"), raw("mq_unlink", ret=0, path="jobs"))
    assert surface.local_sockets() == ["mqueue:/jobs", "mqueue:/orders"]
    assert surface.reached_paths() == {}


def test_a_program_in_memory_is_claimed_by_no_name() -> None:
    """A descriptor's number means nothing: another file has it soon after."""
    running = raw("exec", ret=0, path="/dev/fd/3", marks=["unreachable"])
    surface = surface_of(running)
    assert surface.surface_artifact("run").process_execs == []
    assert surface.unnamed == {"exec": 1}
    named = raw("exec", ret=0, path="/proc/self/fd/3", resolved="/srv/tool")
    assert surface_of(named).surface_artifact("run").process_execs == ["/srv/tool"]
    inside = raw("exec", ret=0, path="/dev/fd/3/tool", base="/srv", resolved="/srv/tool")
    assert surface_of(inside).surface_artifact("run").process_execs == ["/srv/tool"]


def test_a_blocked_connect_is_one_whatever_is_known_of_its_peer() -> None:
    """As any other connect. One to port 0 sends nothing, but the reference claims it."""
    assert surface_of(raw("connect_blocked")).has_connect
    assert surface_of(raw("connect_blocked"), is_reference=True).has_connect
    asked = raw("connect_blocked", peer="1.2.3.4:0")
    assert not surface_of(asked).has_connect
    assert surface_of(asked, is_reference=True).has_connect


def test_without_its_detail_a_change_is_not_claimed() -> None:
    surface = Surface()
    fields: dict[str, Any] = {"run_id": "run", "seq": 0, "pid": 7}
    surface.add_kernel_event(
        KernelEvent(**fields, event_type=1001, kind="event_1001", value="/a"), None
    )
    assert surface.surface_artifact("run").filesystem_paths == []
    assert surface.failed_paths() == {"/a": ["unlink:unseen"]}


def test_what_a_policy_blocked_is_claimed() -> None:
    events = (
        raw("file_blocked", path="/lib/libc.so.6"),
        raw("connect_blocked", peer="1.2.3.4:5"),
        raw("connect_blocked", peer="1.2.3.4:0"),
    )
    assert list_paths(*events) == ["/lib/libc.so.6"]
    assert list_endpoints(*events) == ["1.2.3.4:5"]
    assert surface_of(*events).reached_paths() == {"/lib/libc.so.6": ["blocked"]}
    assert surface_of(*events).address_probes() == ["1.2.3.4:0"]
    assert surface_of(*events, is_reference=True).surface_artifact("run").network_endpoints == [
        "1.2.3.4:0",
        "1.2.3.4:5",
    ]


def test_attempts_to_connect_are_claimed_and_probes_of_addresses_are_not() -> None:
    events = (
        raw("connect", ret=-111, peer="1.2.3.4:443"),
        raw("connect", ret=0, peer="1.2.3.4:0"),
        raw("connect", ret=0, peer="[::1]:0"),
        raw("sendto", ret=1, peer="[2001:db8::1]:53"),
        raw("sendmsg", ret=-1, peer="1.2.3.4:10"),
        raw("connect", ret=0, peer="unix:/run/x"),
        raw("sendto", ret=0, peer="unix:@a"),
        raw("connect", ret=0, peer="netlink"),
    )
    surface = surface_of(*events)
    assert list_endpoints(*events) == ["1.2.3.4:10", "1.2.3.4:443", "[2001:db8::1]:53"]
    assert surface.address_probes() == ["1.2.3.4:0", "[::1]:0"]
    assert surface.local_sockets() == ["netlink", "unix:/run/x", "unix:@a"]
    assert (surface.has_connect, surface.has_datagram) == (True, True)
    assert not surface_of(events[5], events[6]).has_connect
    assert not surface_of(events[5], events[6]).has_datagram


def test_probes_of_addresses_are_no_use_of_the_network() -> None:
    probes = surface_of(
        raw("connect", ret=0, peer="1.2.3.4:0"),
        raw("connect", ret=-101, peer="[::1]:0"),
        raw("sendto", ret=-22, peer="1.2.3.4:0"),
    )
    assert probes.surface_artifact("run").network_endpoints == []
    assert probes.address_probes() == ["1.2.3.4:0", "[::1]:0"]
    assert (probes.has_connect, probes.has_datagram) == (False, False)
    probes.is_reference = True  # which counts them
    assert (probes.has_connect, probes.has_datagram) == (True, True)


@pytest.mark.parametrize("call", ["sendto", "sendmsg", "sendmmsg"])
@pytest.mark.parametrize("ret", [8, 0, None, -1, -101])
def test_what_has_no_ports_is_sent_to_port_0(call: str, ret: int | None) -> None:
    surface = surface_of(raw(call, ret=ret, peer="1.2.3.4:0"))
    assert surface.surface_artifact("run").network_endpoints == ["1.2.3.4:0"]
    assert surface.address_probes() == []
    assert surface.has_datagram


@pytest.mark.parametrize("ret", [None, -110, -111, -114, -115])
def test_a_stream_that_asks_for_port_0_asks_somebody(ret: int | None) -> None:
    surface = surface_of(raw("connect", ret=ret, peer="1.2.3.4:0"))
    assert surface.surface_artifact("run").network_endpoints == ["1.2.3.4:0"]
    assert surface.address_probes() == []
    assert surface.has_connect


@pytest.mark.parametrize("peer", ["af17:", "af17:0800", "af40:00", "af31:01"])
def test_a_peer_of_another_kind_of_network_has_no_name(peer: str) -> None:
    sent, tried = raw("sendto", ret=9, peer=peer), raw("sendmsg", ret=-1, peer=peer)
    for event in (sent, tried, raw("connect", ret=0, peer=peer)):
        surface = surface_of(event)
        assert surface.unnamed.total() == 1
        assert surface.surface_artifact("run").network_endpoints == surface.local_sockets() == []
        assert (surface.has_connect, surface.has_datagram) == (
            event.call == "connect",
            event.call != "connect",
        )
    assert not surface_of(raw("sendto", ret=-9, peer=peer)).unnamed
    assert surface_of(raw("bind", ret=0, peer=peer)).unnamed == {"event_1025": 1}
    assert not surface_of(raw("bind", ret=-1, peer=peer)).unnamed
    for name in ("0.0.0.0:80", "[::]:80", "netlink", "unix:@name"):
        assert not surface_of(raw("bind", ret=0, peer=name)).unnamed


def test_an_open_that_nobody_followed_is_claimed_by_nothing() -> None:
    """io_uring has the name that was given, and not where that led."""
    event = raw(ret=5, path="link", base="/srv", marks=["uring"])
    surface = surface_of(event)
    assert surface.reached_paths() == surface.failed_paths() == {}
    assert surface.unnamed == {"openat": 1}
    event.ret = -2
    assert surface_of(event).failed_paths() == {"/srv/link": ["openat:ENOENT"]}
    assert not surface_of(event).unnamed
    assert list_paths(raw_open("/srv/file", marks=["uring"])) == ["/srv/file"]


NO_ATTEMPT = {9: "EBADF", 14: "EFAULT", 88: "ENOTSOCK", 97: "EAFNOSUPPORT", 106: "EISCONN"}


@pytest.mark.parametrize("call", ["connect", "sendto", "sendmsg"])
def test_what_cannot_have_addressed_anybody_is_no_peer(call: str) -> None:
    for number, name in NO_ATTEMPT.items():
        event = raw(call, ret=-number, peer="1.2.3.4:443")
        surface = surface_of(event)
        assert list_endpoints(event) == []
        assert surface.failed_endpoints() == {"1.2.3.4:443": [f"{call}:{name}"]}
        assert (surface.has_connect, surface.has_datagram) == (False, False)
        assert list_endpoints(event, raw(call, ret=0, peer="1.2.3.4:443")) == ["1.2.3.4:443"]


def test_attempts_that_failed_are_peers_and_marked_as_failed() -> None:
    events = (
        raw("connect", ret=-111, peer="1.2.3.4:443"),
        raw("connect", ret=-101, peer="1.2.3.4:443"),
        raw("connect", ret=-115, peer="1.2.3.4:444"),
        raw("connect", ret=None, peer="1.2.3.4:445"),
        raw("sendmmsg", ret=-1, peer="1.2.3.4:446"),
        raw("connect", ret=-2, peer="unix:/run/x"),
    )
    assert len(list_endpoints(*events)) == 4
    assert surface_of(*events).failed_endpoints() == {
        "1.2.3.4:443": ["connect:ECONNREFUSED", "connect:ENETUNREACH"],
        "1.2.3.4:445": ["connect:unseen"],
        "1.2.3.4:446": ["sendmsg:EPERM"],
    }


# ---------------------------------------------------------------- what has no name


def test_a_second_path_is_claimed_where_the_first_is_not_known() -> None:
    for call, way in (("rename", "rename_to"), ("link", "link_to")):
        event = raw(call, ret=0, path="x", to_path="/etc/cron", marks=["walk_cut"])
        surface = surface_of(event)
        assert surface.reached_paths() == {"/etc/cron": [way]}
        assert surface.unnamed == {kind_of_event(EVENT_TYPES[call]): 1}
        event.ret = -13
        assert surface_of(event).failed_paths() == {"/etc/cron": [f"{way}:EACCES"]}


UNNAMED = (
    raw_open("x", resolved=None, marks=["walk_cut"]),
    raw("openat", ret=-2, path="x", marks=["walk_cut"]),
    raw("openat", ret=-2, marks=["fault"]),
    raw("unlink", ret=0, path="x", marks=["walk_cut"]),
    raw("unlink", ret=-36, marks=["truncated"]),
    raw("rename", ret=0, path="/a", to_path="x", marks=["walk_cut"]),
    raw("rename", ret=0, path="/a", marks=["fault"]),
    raw("symlink", ret=0, path="text", to_path="x", marks=["walk_cut"]),
    raw("exec", ret=0, marks=["fault"]),
    raw("connect", ret=0, marks=["fault"]),
    raw("mkdirat", ret=0, path="x", marks=["unreachable"]),
)
NAMED = (
    raw_open("x", resolved="/a/x", marks=["walk_cut"]),
    raw("unlink", ret=0, path="/a", marks=["walk_cut"]),
    raw("unlink", ret=-14, marks=["fault"]),  # the kernel could not read it either
    raw("openat", ret=-14, marks=["fault"]),
    raw("connect", ret=-14, marks=["fault"]),
    raw("openat", ret=-9, path="x"),  # of a descriptor that is none
    raw("unlinkat", ret=-2, path="x", marks=["unreachable"]),
    raw("fchmod", ret=0, marks=["unreachable"]),  # of a file that has no name
    raw("fork", ret=8, child=8),
    raw("exec", ret=0, path="/bin/x", marks=["fault"]),  # its arguments
)


@pytest.mark.parametrize("event", UNNAMED)
def test_what_cannot_be_named_is_counted(event: RawEvent) -> None:
    assert surface_of(event, event).unnamed.total() == 2


@pytest.mark.parametrize("event", NAMED)
def test_what_needs_no_name_is_not_counted(event: RawEvent) -> None:
    assert not surface_of(event).unnamed


def test_the_files_that_ran_by_a_name() -> None:
    surface = surface_of(
        raw("exec", ret=0, path="/w/tool", resolved="/bin/true"),
        raw("exec", ret=0, path="/w/tool", resolved="/bin/id"),
        raw("exec", ret=0, path="/bin/id", resolved="/bin/id"),
        raw("exec", ret=0, path="/w/unknown"),
        raw("exec", ret=0, path="/w/both", resolved="/w/both"),
        raw("exec", ret=0, path="/w/both", resolved="/bin/id"),
    )
    assert surface.programs() == {
        "/w/tool": ["/bin/id", "/bin/true"],
        "/w/both": ["/bin/id", "/w/both"],
    }
    assert surface.surface_artifact("run").process_execs == [
        "/bin/id",
        "/w/both",
        "/w/tool",
        "/w/unknown",
    ]


def test_an_endpoint_that_is_no_address_is_none() -> None:
    """A layer that somebody else wrote may hold anything."""
    surface = Surface()
    for value in ("unix:/run/x", "", "localhost:80"):
        fields: dict[str, Any] = {"run_id": "run", "seq": 0, "pid": 7, "value": value}
        surface.add_kernel_event(KernelEvent(**fields, event_type=2, kind="connect"), None)
    assert surface.surface_artifact("run").network_endpoints == []


def test_programs_that_ran_are_claimed_and_others_are_not() -> None:
    surface = surface_of(
        raw("exec", ret=0, path="bin/x", base="/srv", resolved="/bin/busybox"),
        raw("execve", ret=-2, path="/usr/bin/x"),
    )
    assert surface.surface_artifact("run").process_execs == ["/srv/bin/x"]
    assert surface.failed_paths() == {"/usr/bin/x": ["exec:ENOENT"]}
    assert surface.surface_artifact("run").filesystem_paths == []


def test_tools_and_decisions() -> None:
    surface, reference = Surface(), Surface(is_reference=True)
    for one in (surface, reference):
        one.add_sdk_event(sdk_event("Read"))
        one.add_sdk_event(sdk_event("Bash"))
        one.add_sdk_event(sdk_event(None))
        one.add_policy_event(policy_event("Bash", "deny"))
        one.add_policy_event(policy_event("Write", "allow"))
    found = surface.surface_artifact("run")
    assert found.mcp_tools == ["Bash", "Read", "Write"]
    assert found.policy_decisions == ["allow:Write", "deny:Bash"]
    assert surface.self_reported_tools() == ["Read"]
    assert reference.surface_artifact("run").mcp_tools == ["Bash", "Write"]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), unique=True))
def test_sets_are_sorted_by_their_bytes(names: list[str]) -> None:
    surface = Surface()
    for name in names:
        surface.add_reached_paths([f"/{name}"], ways_of_open("read", []))
    found = surface.surface_artifact("run").filesystem_paths
    assert [path.encode() for path in found] == sorted(f"/{name}".encode() for name in names)


@given(st.lists(RAW_EVENTS, max_size=12), st.randoms(use_true_random=False))
def test_order_and_repetition_change_nothing(events: list[RawEvent], chance: Any) -> None:
    again = [*events, *events]
    chance.shuffle(again)
    one, other = surface_of(*events), surface_of(*again)
    assert one.unnamed + one.unnamed == other.unnamed
    one.unnamed.clear()
    other.unnamed.clear()
    assert one.surface_artifact("run") == other.surface_artifact("run")
    assert encode_own_companion(one) == encode_own_companion(other)


# ---------------------------------------------------------------- the companion


def encode_own_companion(surface: Surface, **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "capture": None,
        "filtered": {},
        "aside": {},
        "calls": {},
        "unbound": {},
    }
    return msgspec.json.encode(
        make_companion("run", surface, **{**fields, **changes}).whole_record()
    )


def test_a_companion_is_the_same_in_whatever_order_it_was_counted() -> None:
    surface = surface_of(raw_open("/b"), raw_error("/a"), raw("connect", ret=0, peer="1.2.3.4:0"))
    one = encode_own_companion(
        surface,
        filtered={"loader": 1, "dev": 2},
        calls={"b": {"openat": 1, "exec": 2}, "a": {}},
        unbound={"openat": 1, "exec": 2},
    )
    other = encode_own_companion(
        surface,
        filtered={"dev": 2, "loader": 1},
        calls={"a": {}, "b": {"exec": 2, "openat": 1}},
        unbound={"exec": 2, "openat": 1},
    )
    assert one == other
    found = json.loads(one)
    assert found["filtered"] == {"dev": 2, "loader": 1}
    assert found["paths"] == {"/b": ["read"]}
    assert found["failed_paths"] == {"/a": ["openat:ENOENT"]}
    assert found["address_probes"] == ["1.2.3.4:0"]


def test_a_companion_has_the_feeds_counters() -> None:
    found = json.loads(encode_own_companion(Surface(), capture=CAPTURE))["capture"]
    assert found == json.loads(msgspec.json.encode(CAPTURE))
    assert json.loads(encode_own_companion(Surface()))["capture"] == {}


@pytest.mark.parametrize(
    ("result", "name"),
    [
        *[(-1, "EPERM"), (-2, "ENOENT"), (-13, "EACCES"), (-40, "ELOOP"), (-41, "errno 41")],
        *[(-95, "EOPNOTSUPP"), (-111, "ECONNREFUSED"), (-133, "EHWPOISON"), (-134, "errno 134")],
        *[(None, "unseen"), (0, "unseen"), (3, "unseen")],
    ],
)
def test_failures_have_the_names_of_linux(result: int | None, name: str) -> None:
    assert failure_name(result) == name
