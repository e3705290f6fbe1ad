"""normalize: what is left out and what never is, how each call is written, and its properties."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stream.codec import Lines, LineSplitter, TornLine
from stream.evidence.surface import Surface
from stream.pipeline import Counts
from stream.records.control import (
    DETAILS,
    GAPS,
    KERNEL,
    LINES,
    TELEMETRY,
    TIMES,
    Finding,
    Gap,
    Reject,
)
from stream.records.kernel import (
    EVENT_TYPES,
    KernelDetail,
    KernelEvent,
    RawCapture,
    RawEvent,
    kind_of_event,
)
from stream.transformers.normalize import Normalize
from tests.core import properties
from tests.evidence.raw import (
    CAPTURE,
    O_APPEND,
    O_CLOEXEC,
    O_CREAT,
    O_EXCL,
    O_PATH,
    O_RDWR,
    O_TMPFILE,
    O_TRUNC,
    O_WRONLY,
    RAW_EVENTS,
    raw,
    raw_error,
    raw_open,
)
from tests.sweeping import thorough
from tests.transformers.samples import DATA, lines

SCHEMA = json.loads((DATA / "assay" / "schema" / "kernel-event-v0.schema.json").read_bytes())
PUBLISHED = jsonschema_rs.validator_for(SCHEMA)
GAP = Gap(source="ebpf", lost=3, reason="the ring was full")
encode = msgspec.json.encode
decode_event = msgspec.json.Decoder(KernelEvent).decode
decode_detail = msgspec.json.Decoder(KernelDetail).decode


def kernel_lines(*events: RawEvent, transformer: Normalize | None = None) -> list[dict[str, Any]]:
    """The lines of the kernel layer that some events become."""
    out = run_batches(transformer or Normalize(), [events])
    return [json.loads(encode(item)) for item in out if isinstance(item, KernelEvent)]


def detail_lines(*events: RawEvent) -> list[dict[str, Any]]:
    out = run_batches(Normalize(), [events])
    return [json.loads(encode(item)) for item in out if isinstance(item, KernelDetail)]


def run_batches(transformer: Normalize, batches: list[Any]) -> list[Any]:
    """The records that come of some batches, without their times."""
    return [item for batch in batches for item in feed(transformer, batch)]


def feed(transformer: Normalize, items: Any, *, but: tuple[str, ...] = (TIMES,)) -> list[Any]:
    kind = LINES if isinstance(items, Lines) else TELEMETRY
    out = properties.feed(transformer, items, kind, but=but)
    assert transformer.counts.balanced
    return out


def rule_of(event: RawEvent) -> str | None:
    """By which rule an event is left out."""
    transformer = Normalize()
    run_batches(transformer, [[event]])
    return next(iter(transformer.dropped), None)


# ---------------------------------------------------------------- what is left out

NOISE = {
    "/etc/ld.so.cache": "loader",
    "/lib/x86_64-linux-gnu/libc.so.6": "loader",
    "/usr/lib/x86_64-linux-gnu/libc.so.6": "loader",
    "/lib32/libc.so": "loader",
    "/lib64/ld-linux-x86-64.so.2": "loader",
    "/usr/lib64/ld-linux-x86-64.so.2": "loader",
    "/usr/lib32/libc.so": "loader",
    "/lib": "loader",
    "/usr/lib": "loader",
    "/usr/share/locale": "locale",
    "/usr/share/locale/de/LC_MESSAGES/x.mo": "locale",
    "/etc/localtime": "locale",
    "/etc/locale.alias": "locale",
    "/usr/share/zoneinfo/Etc/UTC": "locale",
    "/etc/ssl/openssl.cnf": "runtime_config",
    "/srv/venv/pyvenv.cfg": "python_bootstrap",
    "/pyvenv.cfg": "python_bootstrap",
    "/srv/app/node_modules/left-pad/index.js": "node_modules",
    "/srv/app/node_modules": "node_modules",
    "/node_modules/x": "node_modules",
    "/home/u/.rustup/toolchains/stable/lib/libstd-1.so": "toolchain",
    "/srv/app/target/debug/deps/libx.so.1.2": "toolchain",
    "/srv/app/target/x86_64/release/libx.so": "toolchain",
    "/srv/venv/lib/python3.11/site-packages/x/y.py": "python_packages",
    "/srv/venv/lib/python3.11/site-packages": "python_library",  # a folder in it
    "/opt/lib64/python3/dist-packages/x.so": "python_packages",
    "/opt/lib64/python3/dist-packages": "python_packages",
    "/home/u/.pyenv/versions/3.11.7/lib/python3.11/json/decoder.py": "python_library",
    "/usr/local/lib/python3.13t": "python_library",
    "/usr/local/lib/python3.13t/os.py": "python_library",
    "/opt/pypy/lib/pypy3.10/os.py": "python_library",
    "/usr/local/lib/python311.zip": "python_library",
    "/opt/x/lib/libpython3.11.so.1.0": "python_library",
    "/etc/ssl/certs": "trust_store",
    "/etc/ssl/certs/ca-certificates.crt": "trust_store",
    "/etc/ssl/cert.pem": "trust_store",
    "/usr/share/ca-certificates/mozilla/ISRG_Root_X1.crt": "trust_store",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem": "trust_store",
    "/proc": "proc",
    "/proc/42/status": "proc",
    "/sys/kernel/mm": "sys",
    "/dev": "dev",
    "/dev/urandom": "dev",
}
#: Rules for folders that may lie anywhere, where anybody may have put a link.
ANYWHERE = {"python_bootstrap", "node_modules", "python_packages", "python_library", "toolchain"}
EVIDENCE = (
    *("/", "/etc", "/usr", "/etc/shadow", "/library/x", "/usr/libexec/x", "/procedure", "/lib2"),
    *("/usr/local/lib/x.so", "/srv/lib/x", "/srv/etc/ld.so.cache", "/etc/ld.so.cache/x"),
    *("/srv/node_modules_of_mine/x", "/srv/my_node_modules"),
    *("/etc/ssl/private/site.key", "/etc/pki/tls/private/x.pem", "/etc/ssl/certs/site.key"),
    *("/etc/ssl/certs/privkey.pem", "/etc/ssl", "/etc/pki", "/etc/locale.gen"),
    *("/srv/site-packages.txt", "/srv/my-site-packages/x", "/srv/python3.11/x", "/srv/lib"),
    *("/srv/lib/python/x", "/srv/lib/python3.11.txt", "/srv/lib/python3", "/srv/lib/x.so"),
    *("/srv/target/debug/notes.sorted", "/srv/target/debug/app", "/srv/target/libx.so"),
    *("/home/u/.rustup/toolchains/libx.so", "/srv/debug/libx.so", "/usr/share/localedef"),
)
#: whatever else an open has, these show that it is no read
WRITES = (
    *(O_WRONLY, O_RDWR, 3, O_CREAT, O_TRUNC, O_TMPFILE | O_RDWR, O_TMPFILE),
    *(O_WRONLY | O_CREAT | O_TRUNC, O_RDWR | O_CREAT | O_EXCL, O_PATH | O_WRONLY, 1 | O_APPEND),
)


def test_reads_of_runtimes_are_left_out() -> None:
    for path, name in NOISE.items():
        assert rule_of(raw_open(path)) == name, path
        assert rule_of(raw_open(path, O_PATH | O_CLOEXEC)) == name, path
        missed = None if name in ANYWHERE else name
        assert rule_of(raw_error(path)) == missed, path
        assert rule_of(raw_error(path, 20)) == missed, path


def test_other_reads_stay() -> None:
    for path in EVIDENCE:
        assert rule_of(raw_open(path)) is None, path
        assert rule_of(raw_error(path)) is None, path


@pytest.mark.parametrize("flags", WRITES)
def test_what_writes_never_hides(flags: int) -> None:
    for path in (*NOISE, "/dev/shm/x", "/usr/lib/x", "/srv/node_modules/x"):
        assert rule_of(raw_open(path, flags)) is None, path
        assert rule_of(raw_error(path, flags=flags)) is None, path
        assert rule_of(raw_open(path, call="creat")) is None, path


@pytest.mark.parametrize("number", [1, 5, 13, 24, 30, 40, 36])
def test_what_was_refused_never_hides(number: int) -> None:
    assert [path for path in NOISE if rule_of(raw_error(path, number)) is not None] == []


@pytest.mark.parametrize("mark", ["unreachable", "walk_cut", "fault", "truncated"])
def test_what_nobody_knows_for_sure_never_hides(mark: str) -> None:
    for path, name in NOISE.items():
        assert rule_of(raw_open(path, marks=[mark])) is None, path
        assert rule_of(raw_error(path, marks=[mark])) is None, path
        assert rule_of(raw_open(path, marks=["compat"])) == name, path


def test_without_a_true_path_or_a_result_nothing_hides() -> None:
    for path in NOISE:
        assert rule_of(raw_open(path, resolved=None)) is None, path
        assert rule_of(raw_open(path, ret=None)) is None, path
        assert rule_of(raw_error(path, ret=None)) is None, path


@pytest.mark.parametrize(
    ("path", "true"),
    [
        ("/lib/../etc/shadow", "/etc/shadow"),
        ("/usr/lib/link-to-shadow", "/etc/shadow"),
        ("/proc/self/root/etc/shadow", "/etc/shadow"),
        ("/proc/42/cwd/notes", "/srv/notes"),
        ("/dev/fd/3", "/srv/secret"),
        ("/srv/node_modules/x/../../secret", "/srv/secret"),
    ],
)
def test_what_only_looks_like_noise_stays(path: str, true: str) -> None:
    (line,) = kernel_lines(raw_open(path, resolved=true))
    assert line["value"] == true
    (detail,) = detail_lines(raw_open(path, resolved=true))
    assert detail["path"] == path


@pytest.mark.parametrize(
    "path",
    [
        "/lib/../etc/shadow",
        "/usr/lib/..",
        "/proc/self/root/etc/shadow",
        "/proc/thread-self/root/lib/x",
        "/proc/./42//cwd/x",
        "/proc/42/task/43/root/x",
        "/proc/self/fd/3",
        "/proc/self/map_files/x",
        "/proc/42/task/43/cwd/x",
        "/srv/node_modules/link/x",
        "/dev/shm/link/x",
        "/dev/fd/3",
        "/dev/stdin",
    ],
)
def test_a_failed_path_that_leads_elsewhere_stays(path: str) -> None:
    assert rule_of(raw_error(path)) is None
    assert rule_of(raw_error(path.lstrip("/"), base="/")) is None


@pytest.mark.parametrize(
    "resolved",
    [
        "/usr/lib/../../etc/shadow",
        "/usr/lib/..",
        "/usr/lib/.",
        "/usr/lib/./x",
        "/usr/lib//x",
        "/usr/lib/",
        "//usr/lib/x",
        "/proc/self/root/etc/shadow",
        "/proc/42/task/43/root/usr/lib/x",
        "/proc/self/cwd/x",
        "/proc/self/fd/3/x",
        "/dev/fd/3/x",
        "usr/lib/x",
        "lib",
        "",
    ],
)
def test_a_path_that_no_kernel_reports_never_hides(resolved: str) -> None:
    assert rule_of(raw_open("/srv/x", resolved=resolved)) is None
    if ".." in resolved or resolved.startswith(("/proc", "/dev")):
        assert rule_of(raw_error("x", base=resolved)) is None


@pytest.mark.parametrize("path", ["/proc/42/fd", "/proc/42/fdinfo/3", "/proc/42/task/43/comm"])
def test_what_lies_next_to_a_view_is_noise(path: str) -> None:
    assert rule_of(raw_open(path)) == "proc"


def test_a_failed_relative_path_is_checked_from_where_it_starts() -> None:
    assert rule_of(raw_error("x.so", base="/usr/lib")) == "loader"
    assert rule_of(raw_error("x.so")) is None
    assert rule_of(raw_error("../x.so", base="/usr/lib/y")) is None
    # the whole file system, as the program asked for it, begins at its base
    assert rule_of(raw_error("/usr/lib/x", base="/srv/jail", resolve=0x10)) is None
    assert kernel_lines(raw_error("/usr/lib/x", base="/srv/jail", resolve=0x10))[0]["value"] == (
        "/srv/jail/usr/lib/x"
    )


VIEWS = (
    *("/proc/self/fd/14", "/proc/thread-self/fd/0", "/dev/fd/7", "/proc/4711/fd/2147483647"),
    *("/proc/self/cwd", "/proc/thread-self/root", "/proc/1/cwd"),
)


@pytest.mark.parametrize("view", VIEWS)
def test_a_failed_path_by_a_descriptor_is_checked_from_where_that_leads(view: str) -> None:
    assert rule_of(raw_error(f"{view}/notes", base="/srv")) is None
    assert rule_of(raw_error(f"{view}/x.so", base="/usr/lib")) == "loader"
    assert rule_of(raw_error(f"{view}/../x.so", base="/usr/lib/y")) is None
    assert rule_of(raw_error(f"{view}/x.so")) is None
    assert rule_of(raw_error(f"{view}/3/x", base="/proc/4711/fd")) is None


READS = {"open", "openat", "openat2", "open_by_handle_at"}


def test_only_opens_are_ever_left_out() -> None:
    for call in set(EVENT_TYPES) - READS:
        event = raw(call, ret=0, path="/usr/lib/x", resolved="/usr/lib/x", to_path="/proc/x")
        assert rule_of(event) is None, call
        assert rule_of(replace(event, ret=-2)) is None, call
        assert rule_of(replace(event, ret=None)) is None, call


SHARED = "/usr/lib/x.so"


@pytest.mark.parametrize(
    ("given", "resolved", "expected"),
    [
        (SHARED, "/usr/lib/y.so", "loader"),
        ("/lib/x.so", "/usr/lib/x.so", "loader"),
        ("/proc/self/stat", "/proc/4711/stat", "proc"),
        ("/etc/secret", SHARED, None),  # what was opened, and what lay there afterwards
        ("/usr/lib/../../etc/secret", SHARED, None),
        ("/proc/self/cwd/secret", "/proc/1/stat", None),
        ("usr/lib/x.so", SHARED, None),
        ("/srv/node_modules/x", "/srv/node_modules/y", None),  # a link, for all that is known
        (None, SHARED, None),
    ],
)
def test_what_another_thread_may_have_exchanged(
    given: str | None, resolved: str, expected: str | None
) -> None:
    event = raw(ret=3, path=given, resolved=resolved, marks=["shared_files"])
    assert rule_of(event) == expected
    assert rule_of(replace(event, flags=O_WRONLY)) is None
    assert rule_of(replace(event, marks=["shared_files", "other_mounts"])) is None


def test_what_was_left_out_goes_along_with_its_own_counters() -> None:
    transformer = Normalize()
    noise = raw(ret=3, path="/usr/lib/x.so", resolved="/usr/lib/x.so")
    first, second = RawCapture(feed="ebpf"), RawCapture(feed="strace")
    run_batches(transformer, [[noise, noise, first, noise, second]])
    assert transformer.capture is second
    again = Normalize()
    out = feed(again, [noise, noise, first, noise, second])
    captures = [item for item in out if isinstance(item, RawCapture)]
    assert [one.filtered for one in captures] == [{"loader": 2}, {"loader": 1}]


@given(st.lists(RAW_EVENTS, max_size=20))
def test_each_rule_is_counted(events: list[RawEvent]) -> None:
    transformer = Normalize()
    run_batches(transformer, [events])
    assert sum(transformer.dropped.values()) == transformer.counts.filtered
    assert transformer.counts.passed == transformer.events
    assert 0 not in transformer.dropped.values()


# ---------------------------------------------------------------- how a call is written


def test_an_open_is_written_as_the_contract_shows_it() -> None:
    event = raw(
        pid=1234,
        ret=4,
        path="fixture-output.txt",
        base="/tmp/work",
        resolved="/tmp/work/fixture-output.txt",
        flags=577,
        mode=420,
    )
    (line,) = run_batches(Normalize("run_001"), [[event]])
    assert encode(line) == encode(SCHEMA["examples"][0])


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (raw_open("/a"), {"flags": 0, "return_value": 3, "access_mode": "read"}),
        (raw_open("/a", 3), {"flags": 3, "return_value": 3, "access_mode": "unknown"}),
        (raw_open("/a", 2, mode=420), {"flags": 2, "return_value": 3, "access_mode": "read_write"}),
        (
            raw_open("/a", 0o3301, mode=384),
            {
                "flags": 0o3301,
                "mode": 384,
                "return_value": 3,
                "access_mode": "write",
                "operation_flags": ["create", "truncate", "append", "exclusive"],
            },
        ),
        (
            raw_open("/a", call="creat", mode=0),
            {
                "flags": 0o1101,
                "mode": 0,
                "return_value": 3,
                "access_mode": "write",
                "operation_flags": ["create", "truncate"],
            },
        ),
        (
            raw_open("/a", O_TMPFILE | O_RDWR, mode=384),
            {"flags": O_TMPFILE | 2, "mode": 384, "return_value": 3, "access_mode": "read_write"},
        ),
        (
            raw_open("/a", resolve=8, call="openat2"),
            {"flags": 0, "resolve": 8, "return_value": 3, "access_mode": "read"},
        ),
    ],
)
def test_fields_of_opens(event: RawEvent, expected: dict[str, Any]) -> None:
    (line,) = kernel_lines(event)
    head = {"run_id": "run", "seq": 0, "pid": 7, "event_type": 1, "kind": "openat", "value": "/a"}
    assert line == {"schema": SCHEMA_NAME, **head, **expected, "status": "success"}
    assert list(line)[7:] == [*expected, "status"]


SCHEMA_NAME = "assay.runner.kernel_event.v0"


@pytest.mark.parametrize(
    ("event", "value"),
    [
        (raw_error("x", base="/srv"), "/srv/x"),
        (raw_error("./x//z/.", base="/srv"), "/srv/x/z"),
        (raw_error("./x/../y//z/..", base="/srv"), "/srv/x/../y/z/.."),  # x may be a link
        (raw_error("../../../x", base="/srv"), "/x"),
        (raw_error("//x"), "/x"),
        (raw_error("/"), "/"),
        (raw_error("x"), None),
        (raw_error(""), None),
        (raw_error("x", base="pipe:[1]"), None),
        (raw_error("/../../x", base="/srv/jail", resolve=0x10), "/srv/jail/x"),
        (raw_error("/proc/self/fd/3/x", base="/srv", resolve=0x10), "/srv/proc/self/fd/3/x"),
        (raw_error("../x", base="/srv", resolve=0x10), "/srv/x"),
        (raw_error("/x", resolve=0x10), None),
        (raw_error("/../x", base="/srv/jail", marks=["other_root"]), "/srv/jail/x"),
        (raw_error("/dev/fd/3", base="/srv/jail", marks=["other_root"]), "/srv/jail/dev/fd/3"),
        (raw_error("x", base="/srv/jail", marks=["other_root"]), "/srv/jail/x"),
        (raw_error("../x", base="/srv/jail", marks=["other_root"]), None),
        (raw_error("/x", marks=["other_root"]), None),
        (raw_open("/link", resolved="/file"), "/file"),
        (raw_open("/x", resolved=None), "/x"),
        (raw_open("/x", ret=None, resolved=None), "/x"),
    ],
)
def test_values_of_opens(event: RawEvent, value: str | None) -> None:
    (line,) = kernel_lines(event)
    assert line["value"] == value
    assert ("status" in line) == ("return_value" in line) == (event.ret is not None)


@pytest.mark.parametrize("view", VIEWS)
def test_a_path_by_a_descriptor_starts_where_that_leads(view: str) -> None:
    claim, other = f"{view}/./a", "/proc/self/fd/3//b"
    there = {"base": "/srv/x", "to_base": "/srv/y"}
    assert kernel_lines(raw_error(claim, base="/srv/x"))[0]["value"] == "/srv/x/a"
    assert detail_lines(raw_error(claim, base="/srv/x"))[0]["path"] == claim
    assert kernel_lines(raw_error(f"{view}/../a", base="/srv/x"))[0]["value"] == "/srv/a"
    event = raw("rename", ret=0, path=claim, to_path=other, **there)
    (line,), (detail,) = kernel_lines(event), detail_lines(event)
    assert (line["value"], detail["path"], detail["to_path"]) == ("/srv/x/a", claim, "/srv/y/b")
    alone = raw("truncate", ret=0, path=view, base="/srv/file", size=3)
    assert (kernel_lines(alone)[0]["value"], detail_lines(alone)[0]["path"]) == ("/srv/file", view)
    symlink = raw("symlink", ret=0, path="../x", to_path=claim, to_base="/srv")
    assert kernel_lines(symlink)[0]["value"] == "/srv/a"


@pytest.mark.parametrize(
    "path",
    [
        *("/proc/self/fd/14x/a", "/proc/self/fd/014/a", "/proc/self/fd", "/proc/self/fdinfo/3/a"),
        *("/proc/self/cwdx/a", "/proc/self/exe", "/dev/fd/x/a", "/dev/fdx/3/a", "/x/proc/self/cwd"),
        *("/etc/shadow", "/proc/self/fd/1\n/x"),
    ],
)
def test_a_base_shows_nothing_of_any_other_absolute_path(path: str) -> None:
    assert kernel_lines(raw("unlink", ret=0, path=path, base="/srv"))[0]["value"] == path


def test_a_file_that_was_opened_by_its_handle() -> None:
    event = raw("open_by_handle_at", ret=3, resolved="/srv/file", flags=O_RDWR)
    (line,), (detail,) = kernel_lines(event), detail_lines(event)
    assert (line["event_type"], line["value"], line["status"]) == (1, "/srv/file", "success")
    assert (detail["call"], "path" in detail) == ("open_by_handle_at", False)
    assert kernel_lines(raw("open_by_handle_at", ret=-116))[0]["value"] is None
    assert rule_of(raw("open_by_handle_at", ret=3, resolved="/usr/lib/x.so")) == "loader"


@pytest.mark.parametrize(
    ("event", "type_", "value"),
    [
        (raw("connect", ret=0, peer="1.2.3.4:443"), 2, "1.2.3.4:443"),
        (raw("connect", ret=-115, peer="[2001:db8::1]:443"), 2, "[2001:db8::1]:443"),
        (raw("connect", ret=-14), 2, None),
        (raw("connect", ret=0, peer="unix:/run/x"), 1015, "unix:/run/x"),
        (raw("connect", ret=0, peer="unix:@a"), 1015, "unix:@a"),
        (raw("connect", ret=0, peer="unspec"), 1015, "unspec"),
        (raw("sendto", ret=1, peer="1.2.3.4:53"), 6, "1.2.3.4:53"),
        (raw("sendmsg", ret=1, peer="1.2.3.4:53"), 7, "1.2.3.4:53"),
        (raw("sendmmsg", ret=1, peer="netlink", marks=["compat"]), 1016, "netlink"),
        (raw("sendto", ret=1, peer="unspec"), 1016, "unspec"),
        (raw("sendto", ret=1, peer="af38:00"), 1016, "af38:00"),
        (raw("sendto", ret=1, peer="af17:0800"), 6, "af17:0800"),
        (raw("sendmsg", ret=1, peer="af17:"), 7, "af17:"),
        (raw("connect", ret=0, peer="af40:00"), 2, "af40:00"),
        (raw("connect", ret=None, peer="1.2.3.4:80"), 2, "1.2.3.4:80"),
        (raw("exec", path="bin/x", base="/srv", resolved="/bin/busybox"), 4, "/srv/bin/x"),
        (raw("execve", ret=-2, path="/x"), 1011, "/x"),
        (raw("execveat", ret=-2, path="x", base="/srv"), 1011, "/srv/x"),
        (raw("file_blocked", path="/lib/libc.so.6"), 10, "/lib/libc.so.6"),
        (raw("connect_blocked", peer="1.2.3.4:0"), 20, "1.2.3.4:0"),
        (raw("unlinkat", ret=0, path="x", base="/srv"), 1001, "/srv/x"),
        (raw("renameat2", ret=0, path="/a", to_path="b", to_base="/srv"), 1002, "/a"),
        (raw("mkdir", ret=0, path="/a"), 1003, "/a"),
        (raw("rmdir", ret=0, path="/a"), 1004, "/a"),
        (raw("linkat", ret=0, path="/a", to_path="/b"), 1005, "/a"),
        (raw("symlink", ret=0, path="../t", to_path="b", to_base="/srv"), 1006, "/srv/b"),
        (raw("fchmod", ret=0, resolved="/a", mode=384), 1007, "/a"),
        (raw("lchown", ret=0, path="/a", uid=0, gid=-1), 1008, "/a"),
        (raw("ftruncate", ret=0, resolved="/a", size=0), 1009, "/a"),
        (raw("mknod", ret=0, path="/a"), 1010, "/a"),
        (raw("fork", child=8), 1012, None),
        (raw("exit", status=256), 1013, None),
        (raw("io_uring_setup", ret=5), 1014, None),
    ],
)
def test_types_and_values_of_calls(event: RawEvent, type_: int, value: str | None) -> None:
    (line,) = kernel_lines(event)
    assert (line["event_type"], line["kind"], line["value"]) == (type_, kind_of_event(type_), value)
    assert len(line) == 7


def test_opens_with_the_same_flags_share_nothing_else() -> None:
    events = [
        raw_open("/a"),
        raw_open("/b", ret=None, pid=8),
        raw_error("/c", 13),
        raw_open("/d", ret=0),
    ]
    assert kernel_lines(*events) == [
        {**kernel_lines(event)[0], "seq": number} for number, event in enumerate(events)
    ]


def test_details_say_the_rest() -> None:
    head = {"schema": "stream.kernel_detail.v1", "run_id": "run", "seq": 0, "pid": 7}
    rename = raw("renameat2", ret=-18, path="a", base="/x", to_path="../b", to_base="/y", flags=1)
    assert detail_lines(rename) == [
        {**head, "call": "renameat2", "path": "a", "to_path": "/b", "return_value": -18}
        | {"status": "error", "flags": 1}
    ]
    executed = raw("exec", ret=0, path="x", base="/s", resolved="/bin/x", argv=["x", "-y"])
    assert detail_lines(executed) == [
        {**head, "call": "exec", "path": "x", "resolved": "/bin/x", "return_value": 0}
        | {"status": "success", "argv": ["x", "-y"]}
    ]
    assert detail_lines(raw("symlink", ret=0, path="../t", to_path="/b")) == [
        {**head, "call": "symlink", "path": "../t", "to_path": "/b", "return_value": 0}
        | {"status": "success"}
    ]
    assert detail_lines(raw("lchown", ret=0, path="/a", uid=0, gid=-1, scope="tree")) == [
        {**head, "call": "lchown", "return_value": 0, "status": "success"}
        | {"uid": 0, "gid": -1, "scope": "tree"}
    ]
    assert detail_lines(raw("fchmod", ret=0, resolved="/a", mode=0)) == [
        {**head, "call": "fchmod", "return_value": 0, "status": "success", "mode": 0}
    ]
    assert detail_lines(raw("ftruncate", ret=0, resolved="/a", size=0)) == [
        {**head, "call": "ftruncate", "return_value": 0, "status": "success", "size": 0}
    ]
    assert detail_lines(raw("fork", child=8)) == [{**head, "call": "fork", "child": 8}]
    assert detail_lines(raw("exit", status=0)) == [{**head, "call": "exit", "exit_status": 0}]
    assert detail_lines(raw("connect", ret=-115, peer="1.2.3.4:1")) == [
        {**head, "call": "connect", "return_value": -115, "peer": "1.2.3.4:1"}
    ]


def test_where_nothing_is_left_to_say_there_is_no_detail() -> None:
    assert not detail_lines(
        raw_open("/a"), raw_open("a", base="/s", resolved="/s/a"), raw_error("/a")
    )
    assert not detail_lines(
        raw_open("./a//b", base="/s", resolved="/s/a/b"), raw_error("a", base="/s")
    )
    assert not detail_lines(raw("connect", ret=0, peer="1.2.3.4:1"))


def test_where_an_open_went_through_a_link_the_detail_has_what_it_named() -> None:
    assert detail_lines(raw_open("/a", resolved="/b"))[0]["path"] == "/a"
    assert detail_lines(raw_open("../a", base="/s/t", resolved="/s/a"))[0]["path"] == "../a"
    assert detail_lines(raw_error("../a", base="/s/t"))[0]["path"] == "../a"
    assert detail_lines(raw_error("a"))[0]["path"] == "a"
    assert detail_lines(raw_open("/a", scope="cgroup"))[0]["scope"] == "cgroup"
    assert detail_lines(raw_open("/a", marks=["compat"]))[0]["marks"] == ["compat"]


@pytest.mark.parametrize("call", ["mq_open", "mq_unlink"])
def test_a_queue_is_called_by_its_name_also_where_that_is_empty(call: str) -> None:
    for path, value in (("jobs", "mqueue:/jobs"), ("", "mqueue:/"), (None, None)):
        assert kernel_lines(raw(call, ret=-2, path=path))[0]["value"] == value


# ---------------------------------------------------------------- properties


@thorough(300)
@given(st.lists(RAW_EVENTS, max_size=12))
def test_every_line_keeps_its_contract(events: list[RawEvent]) -> None:
    transformer = Normalize(has_inline_details=True)
    out = run_batches(transformer, [events])
    seqs = []
    for item, before in zip(out, [None, *out], strict=False):
        line = encode(item)
        if isinstance(item, KernelDetail):
            assert isinstance(before, KernelEvent)
            assert (before.seq, before.pid, before.run_id) == (item.seq, item.pid, item.run_id)
            assert decode_detail(line) == item
        else:
            assert decode_event(line) == item
            PUBLISHED.validate(json.loads(line))
            assert item.kind == kind_of_event(item.event_type)
            assert item.value is None or item.value.startswith(("/", *"[0123456789unafm"))
            seqs.append(item.seq)
    assert seqs == list(range(transformer.events))
    followed = {item.seq for item in out if isinstance(item, KernelDetail)}
    for line in out:
        if isinstance(line, KernelEvent) and (
            line.event_type >= 1000 or line.event_type in (4, 6, 7)
        ):
            assert line.seq in followed


@thorough(300)
@given(st.lists(RAW_EVENTS, max_size=12), st.lists(st.integers(0, 99), max_size=4))
def test_output_does_not_depend_on_the_cut(events: list[RawEvent], cuts: list[int]) -> None:
    data = b"".join(encode(item) + b"\n" for item in (*events, GAP, CAPTURE))
    batch = LineSplitter("raw.ndjson").feed(data)
    assert batch is not None

    def with_details() -> Normalize:
        return Normalize(has_inline_details=True)

    check = properties.check_batch_independence
    expected, _ = check(with_details, [*events, GAP, CAPTURE], cuts, TELEMETRY, but=(TIMES,))
    assert check(with_details, batch, cuts, but=(TIMES,))[0] == expected
    for kinds in ((KERNEL, TIMES), (KERNEL, DETAILS), (DETAILS, TIMES)):
        check(Normalize, batch, cuts, but=kinds)


@given(st.lists(RAW_EVENTS, max_size=12), st.lists(st.integers(0, 11), max_size=3))
def test_lines_of_another_form_say_the_same(events: list[RawEvent], odd: list[int]) -> None:
    """All lines of a batch are decoded at once where a feed wrote them, else one by one."""
    forms = [encode(event) for event in events]
    plain = run_batches(Normalize(), [lines(*forms, source="x")])
    for number in odd:
        if number < len(forms):
            forms[number] = b" " + msgspec.json.format(forms[number], indent=0)
    assert run_batches(Normalize(), [lines(*forms, source="x")]) == plain


def test_times_are_those_of_the_kept_events() -> None:
    transformer = Normalize()
    others = (KERNEL, DETAILS, GAPS)
    events = [raw_open("/a", ts=5), raw_open("/usr/lib/x", ts=6), raw("fork", ts=7), GAP]
    assert feed(transformer, events, but=others) == [5, 7]
    assert feed(transformer, [raw_open("/b", ts=2**63 - 1)], but=others) == [2**63 - 1]


def test_writes_to_watched_streams_place_words_and_are_no_events() -> None:
    transformer = Normalize(keeps_writes=True)
    sizes = [("stdout", 3, 10), ("stderr", 5, 11), ("stdout", 4, 12), ("stdout", 0, 13)]
    out = feed(transformer, [raw("wrote", stream=s, size=n, ts=t, ret=n) for s, n, t in sizes])
    assert out == []
    assert transformer.dropped == {"wrote": 4}
    stdout, stderr = transformer.written["stdout"], transformer.written["stderr"]
    assert [[*stdout.sizes], [*stdout.times], [*stdout.pids]] == [
        [3, 7, 7],
        [10, 12, 13],
        [7, 7, 7],
    ]
    assert [[*stderr.sizes], [*stderr.times], [*stderr.pids]] == [[5], [11], [7]]


def test_an_agent_that_writes_without_end_takes_little_memory() -> None:
    transformer = Normalize(keeps_writes=True)
    writes = [raw("wrote", stream="stdout", size=n, ts=n << 40, ret=n) for n in range(1, 1001)]
    tracemalloc.start()
    for _ in range(20):
        feed(transformer, writes)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 20_000 * 40


def test_gaps_and_counters_stay_in_their_place() -> None:
    transformer = Normalize()
    out = run_batches(transformer, [[raw_open("/a"), GAP, raw_open("/b"), CAPTURE]])
    assert [type(item) for item in out] == [KernelEvent, Gap, KernelEvent, RawCapture]
    assert (transformer.lost, transformer.capture) == (3, CAPTURE)


# ---------------------------------------------------------------- lines

FOREIGN = (b'{"schema":"other.v1", "x":1}', b"{}", b'{"schema_version":"x"}', b'{"schema":5}')


def test_foreign_lines_pass_as_they_are() -> None:
    torn = TornLine(b'{"schema":"other.v1"}')
    batch = lines(*FOREIGN, encode(raw_open("/a")), torn, source="(stdin)")
    out = run_batches(Normalize(), [batch])
    assert out[:4] == list(FOREIGN)
    assert out[5] is torn
    found = Finding(rule="r", severity="error", message="m")
    assert run_batches(Normalize(), [[found]]) == [found]


def test_the_file_of_one_feed_has_nothing_else() -> None:
    transformer = Normalize(is_alone=True)
    out = run_batches(transformer, [lines(*FOREIGN, encode(raw_open("/a")), source="raw.ndjson")])
    assert [type(item) for item in out] == [*[Reject] * 4, KernelEvent]
    assert transformer.counts == Counts(5, 1, 4, 0)


GOOD = encode(raw_open("/a"))
BAD = {
    b"nonsense": "malformed JSON",
    b"[]": "expected `object`, got `array`",
    GOOD[:-1]: "malformed JSON",
    GOOD.replace(b'"/a"', b'"\xff"'): "UTF-8",
    GOOD.replace(b'"pid":7', b'"pid":-7'): "`int` >= 0",
    GOOD.replace(b'"ts":1', b'"ts":-1'): "`int` >= 0",
    GOOD.replace(b'"ts":1', b'"ts":9223372036854775808'): "`int` <=",
    GOOD.replace(b'"pid":', b'"pid":1,"pid":'): "duplicate key 'pid'",
    GOOD.replace(b'"call"', b'"called"'): "unknown field `called`",
    GOOD.replace(b'"openat"', b'"event_1"'): "'event_1' is no call of a feed",
    GOOD.replace(b'"openat"', b'"event_1012"'): "'event_1012' is no call of a feed",
    GOOD.replace(b'"openat"', b'"event_0999"'): "'event_0999' is no call of a feed",
    GOOD.replace(b'"openat"', b'"fsync"'): "'fsync' is no call of a feed",
    GOOD.replace(b'"ret":3', b'"ret":"3"'): "expected `int | null`",
    GOOD[:-1] + b',"flags":-1}': "`int` >= 0",
    GOOD[:-1] + b',"marks":["odd"]}': "invalid enum value",
    encode(CAPTURE).replace(b'"ebpf"', b'"magic"'): "invalid enum value",
    encode(GAP).replace(b'"lost":3', b'"lost":-3'): ">= 0",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_lines_are_rejected_with_their_place(line: bytes) -> None:
    transformer = Normalize()
    out = run_batches(transformer, [lines(GOOD, b"  ", line, GOOD, source="raw.ndjson")])
    assert [type(item) for item in out] == [KernelEvent, Reject, KernelEvent]
    assert BAD[line] in out[1].reason
    assert (out[1].source, out[1].line, out[1].stage) == ("raw.ndjson", 3, "normalize")
    assert transformer.counts == Counts(4, 2, 1, 1)
    assert transformer.events == 2


def test_every_field_of_a_raw_event_is_used() -> None:
    """A field that nothing in the output depends on would be evidence that is lost."""
    plain = raw("renameat2", ret=0, path="/a", to_path="b", resolved="/c")
    changes: dict[str, Any] = {
        "pid": 8,
        "ret": -1,
        "path": "/x",
        "to_path": "x",
        "resolved": "/x",
        "flags": 1,
        "to_base": "/x",
        "uid": 1,
        "gid": 1,
        "size": 1,
        "peer": "1.2.3.4:1",
        "argv": ["x"],
        "child": 1,
        "scope": "tree",
        "marks": ["compat"],
        "call": "rename",
        "asked": ["x"],
        "name": "x",
        "target": 1,
    }
    plain_out = run_batches(Normalize(), [[plain]])
    for name, value in changes.items():
        assert run_batches(Normalize(), [[replace(plain, **{name: value})]]) != plain_out, name
    others = {"ts", "tid", "base", "mode", "resolve", "status", "stream"}
    assert {*changes, *others} == set(RawEvent.__struct_fields__)
    pairs = [
        (raw_error("x", base="/a"), raw_error("x", base="/b")),
        (raw_open("/a", O_CREAT, mode=1), raw_open("/a", O_CREAT, mode=2)),
        (raw_open("/a", resolve=1), raw_open("/a", resolve=2)),
        (raw("exit", status=1), raw("exit", status=2)),
    ]
    for one, other in pairs:
        assert run_batches(Normalize(), [[one]]) != run_batches(Normalize(), [[other]])


def test_a_stream_of_many_forms_and_folders_forgets_and_stays_right() -> None:
    """What the transformer remembers is bounded, and only for speed."""
    transformer = Normalize()
    feed(transformer, [raw_open("/x", number << 2 | 1) for number in range(60_000)])
    feed(transformer, [raw_open(f"/d{number}/x") for number in range(60_000)])
    assert len(transformer._forms) <= 50_000
    assert len(transformer._filters) <= 50_000
    assert feed(transformer, [raw_open("/usr/lib/x"), raw_open("/usr/lib/x")]) == []
    assert transformer.dropped == {"loader": 2}
    (line,) = feed(transformer, [raw_open("/d1/x", 4)])
    assert (line.value, line.flags, line.seq) == ("/d1/x", 4, 120_000)
    again = feed(Normalize(), [raw_open("/d1/x", 4)])
    assert again == [replace(line, seq=0)]


def test_a_call_of_an_unknown_number_is_kept() -> None:
    """As the contract shows it: nobody knows what would be its path, which stands next to it."""
    (event,) = kernel_lines(raw("event_999", ret=0, path="/work/x"))
    assert event["kind"] == "event_999"
    assert (event["event_type"], event["value"]) == (999, None)
    assert PUBLISHED.is_valid(event)
    line, detail = feed(Normalize("run"), [raw("event_999", ret=0, path="/work/x")])
    assert detail.path == "/work/x"
    surface = Surface()
    surface.add_kernel_event(line, detail)
    assert surface.unnamed == {"event_999": 1}


def test_how_a_monitor_follows_a_name_is_counted_and_left_out() -> None:
    transformer = Normalize("run")
    assert (
        kernel_lines(raw("event_112", path="/work/x"), raw_open("/work/x"), transformer=transformer)
        != []
    )
    assert transformer.dropped == {"inode_resolved": 1}
    assert transformer.counts.filtered == 1
