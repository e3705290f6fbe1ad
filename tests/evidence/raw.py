"""Raw events to build tests from: as feeds give them, and as Hypothesis likes them."""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import strategies as st

from stream.records.kernel import EVENT_TYPES, Mark, RawCapture, RawEvent, Scope

O_WRONLY, O_RDWR, O_CREAT, O_EXCL, O_TRUNC, O_APPEND = 1, 2, 0o100, 0o200, 0o1000, 0o2000
O_PATH, O_TMPFILE, O_CLOEXEC = 0o10000000, 0o20200000, 0o2000000


def raw(call: str = "openat", **fields: Any) -> RawEvent:
    return RawEvent(**{"ts": 1, "pid": 7, "tid": 7, "call": call, **fields})


def raw_open(path: str, flags: int = 0, **fields: Any) -> RawEvent:
    """An open that reached what it named."""
    return raw(**{"ret": 3, "path": path, "resolved": path, "flags": flags, **fields})


def raw_error(path: str, number: int = 2, **fields: Any) -> RawEvent:
    return raw(**{"ret": -number, "path": path, **fields})


NAMES = st.sampled_from(
    (
        *("a", "b.txt", "lib", "usr", "etc", "proc", "self", "root", "node_modules", "..", "."),
        *("shadow", "ld.so.cache", "dev", "shm", "libc.so.6", "target", "debug", "pyvenv.cfg"),
        *("é", "\\\\xff", 'q"', "\n", ""),
    )
)
RELATIVE = st.lists(NAMES, max_size=5).map("/".join)
ABSOLUTE = RELATIVE.map(lambda path: f"/{path}")
VIEWS = st.tuples(
    st.sampled_from(("/proc/self/fd/3", "/dev/fd/14", "/proc/7/cwd", "/proc/thread-self/root")),
    st.just("") | ABSOLUTE,
).map("".join)
CANONICAL = st.lists(
    NAMES.filter(lambda name: name not in ("", ".", "..")), min_size=1, max_size=5
).map(lambda names: "/" + "/".join(names))
PEERS = st.sampled_from(
    (
        *("1.2.3.4:443", "127.0.0.1:0", "[2001:db8::1]:443", "[::1]:0"),
        *("unix:/run/x", "unix:@abstract", "unix:", "netlink", "unspec", "af16:00ff"),
    )
)
RESULTS = st.sampled_from((None, 0, 3, -1, -2, -13, -20, -115, -512, -516, -999))
FLAGS = st.sampled_from(
    (0, O_WRONLY, O_RDWR, 3, O_CREAT, O_TRUNC, O_APPEND, O_PATH, O_TMPFILE | O_RDWR, O_CLOEXEC)
) | st.integers(0, 0o77777777)

RAW_EVENTS = st.builds(
    RawEvent,
    ts=st.integers(0, 2**63 - 1),
    pid=st.integers(0, 2**22),
    tid=st.integers(0, 2**22),
    call=st.sampled_from((*EVENT_TYPES, "wrote")) | st.sampled_from(("openat", "open", "creat")),
    ret=RESULTS,
    path=st.none() | RELATIVE | ABSOLUTE | VIEWS,
    resolved=st.none() | CANONICAL,
    base=st.none() | CANONICAL,
    to_path=st.none() | RELATIVE | ABSOLUTE | VIEWS,
    to_base=st.none() | CANONICAL,
    flags=FLAGS,
    mode=st.integers(0, 0o7777),
    resolve=st.sampled_from((0, 0, 0x10, 0x04)),
    uid=st.none() | st.integers(-1, 2**32),
    gid=st.none() | st.integers(-1, 2**32),
    size=st.none() | st.integers(0, 2**40),
    peer=st.none() | PEERS,
    argv=st.none() | st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=3),
    child=st.integers(0, 9),
    name=st.none() | RELATIVE,
    target=st.integers(0, 9),
    status=st.integers(0, 2**16),
    stream=st.sampled_from(("stdout", "stderr")),
    scope=st.sampled_from(get_args(Scope)),
    marks=st.just([]) | st.lists(st.sampled_from(get_args(Mark)), max_size=2, unique=True),
)

CAPTURE = RawCapture(
    feed="ebpf", got=10, seen=10, scopes={"both": 10}, cgroup="clean", uring="unused"
)
