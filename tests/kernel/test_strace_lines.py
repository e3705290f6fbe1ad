"""What strace writes, read: halves, times, losses, and text that nobody wrote."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stream.records.control import Gap
from stream.records.kernel import RawEvent, path_text
from stream.sources.kernel.calls import WatchedFile
from stream.sources.kernel.strace_lines import LOST_CALL, UNREADABLE, Item, StraceParser
from stream.sources.kernel.strace_syntax import CLONE_FS, CLONE_THREAD, TRACED, TRACED_WRITES

SECOND = 1_000_000_000
THREAD, SHARED = hex(CLONE_THREAD), hex(CLONE_FS)


def quote(text: str | bytes) -> str:
    data = text.encode() if isinstance(text, str) else text
    return '"' + "".join(f"\\x{byte:02x}" for byte in data) + '"'


def fd_of(path: str | bytes, figure: int = -100) -> str:
    return f"{figure}<{quote(path)[1:-1]}>"


def write_lines(*lines: str, wall: int = 1_700_000_000 * SECOND, step: int = 1000) -> bytes:
    """A millionth of a second after one another."""
    text = ""
    for number, line in enumerate(lines):
        pid, _, rest = line.partition(" ")
        stamp, later = divmod(wall + number * step, SECOND), divmod(step if number else 0, SECOND)
        text += f"{pid}  {stamp[0]}.{stamp[1]:09} (+     {later[0]}.{later[1]:09}) {rest}\n"
    return text.encode()


def no_answer(tid: int) -> None:
    return None


def new_parser(
    cwd: str = "/here", ask: Any = no_answer, watch: Sequence[WatchedFile] = ()
) -> StraceParser:
    return StraceParser(lambda wall: 5_000, cwd, ask, watch)


def parse_lines(*lines: str, **how: Any) -> list[Item]:
    return new_parser(**how).feed(write_lines(*lines))


def short_events(items: Sequence[Item]) -> list[Any]:
    """The events, in short."""
    found = []
    for item in items:
        assert isinstance(item, RawEvent), item
        facts = msgspec.to_builtins(item)
        assert facts.pop("scope") == "tree"
        for name in ("schema", "ts"):
            del facts[name]
        found.append(facts)
    return found


def short_event(pid: int, call: str, **facts: Any) -> Any:
    return {"pid": pid, "tid": pid, "call": call, **facts}


OPENED = f"openat({fd_of('/here')}, {quote('a')}, 0x80000) = 3{fd_of('/here/a', 3)[1:]}"


def test_halves_are_joined() -> None:
    first = f"1 openat({fd_of('/here')}, {quote('slow')}, 0x80000 <unfinished ...>"
    items = parse_lines(
        first,
        f"2 unlink({quote('x')}) = -1 EACCES (Permission denied)",
        f"1 <... openat resumed>) = 3{fd_of('/there/slow', 3)[1:]}",
    )
    assert short_events(items) == [
        short_event(2, "unlink", ret=-errno.EACCES, path="x", base="/here"),
        short_event(
            1, "openat", ret=3, path="slow", resolved="/there/slow", base="/here", flags=0x80000
        ),
    ]


def test_a_half_that_never_resumes_has_no_result() -> None:
    lines = new_parser()
    items = lines.feed(
        write_lines(
            f"1 openat({fd_of('/here')}, {quote('slow')}, 0 <unfinished ...>",
            "1 +++ killed by SIGKILL +++",
            f"2 unlink({quote('x')} <unfinished ...>) = ?",
            "2 +++ exited with 0 +++",
            "3 ???() = ?",
        )
    )
    assert short_events(items) == [
        short_event(1, "openat", path="slow", base="/here"),
        short_event(1, "exit", status=9),
        short_event(2, "unlink", path="x", base="/here"),
        short_event(2, "exit"),
    ]
    counts = lines.counts
    assert (counts.events, counts.halves, counts.others, counts.unparsed) == (4, 0, 1, 0)


@pytest.mark.parametrize(
    "end",
    [
        ") = ? ERESTARTSYS (To be restarted if SA_RESTART is set)",
        ") = ? <unavailable>",
        " <unfinished ...>) = ? <unavailable>",
    ],
)
def test_a_result_that_was_not_seen(end: str) -> None:
    """It starts again, or the process was killed when it was about to return."""
    items = parse_lines(f"1 openat({fd_of('/here')}, {quote('fifo')}, 0{end}")
    assert short_events(items) == [short_event(1, "openat", path="fifo", base="/here")]


@pytest.mark.parametrize("step", [-3600 * SECOND, 3600 * SECOND, 7])
def test_time_is_monotonic(step: int) -> None:
    """Whatever becomes of the wall clock after the first line."""
    walls: list[int] = []

    def to_monotonic(wall: int) -> int:
        walls.append(wall)
        return 77

    lines = StraceParser(to_monotonic, "/")
    first = b"1  1700000000.123456789 (+     0.000000000) rmdir(NULL) = -1 EFAULT (x)\n"
    base = 1_700_000_000 * SECOND + step
    later = "".join(
        f"1  {(base + n) // SECOND}.{(base + n) % SECOND:09} (+     {n % 2}.000000{n:03}) "
        "--- SIGUSR1 {si_signo=10} ---\n1  1.000000000 (+ 0.000000001) rmdir(NULL) = 0\n"
        for n in range(1, 4)
    )
    stamps = [item.ts for item in lines.feed(first + later.encode()) if isinstance(item, RawEvent)]
    one, two, three = (n % 2 * SECOND + n + 1 for n in range(1, 4))
    assert stamps == [77, 77 + one, 77 + one + two, 77 + one + two + three]
    assert walls == [1_700_000_000_123_456_789]


def test_a_child_that_speaks_first() -> None:
    """Its fork stands before what it does, once."""
    spawn = "1 clone3({flags=0x4100, exit_signal=17, stack=0x7f, stack_size=0x9000}, 88"
    items = parse_lines(
        f"1 chdir({quote('sub')}) = 0",
        f"{spawn} <unfinished ...>",
        f"2 execve({quote('./x')}, [{quote('x')}, {quote('')}], 0x7f /* 3 vars */) = 0",
        "2 +++ exited with 1 +++",
        "1 <... clone3 resumed>) = 2",
        f"1 unlink({quote('y')}) = 0",
    )
    assert short_events(items) == [
        short_event(1, "fork", child=2),
        short_event(2, "exec", ret=0, path="./x", base="/here/sub", argv=["x", ""]),
        short_event(2, "exit", status=256),
        short_event(1, "unlink", ret=0, path="y", base="/here/sub"),
    ]


def test_a_thread_that_speaks_first() -> None:
    items = parse_lines(
        f"1 clone3({{flags={THREAD}, stack=0x7f}} <unfinished ...>",
        f"2 chdir({quote('/else')}) = 0",
        f"2 rmdir({quote('y')}) = 0",
        "2 +++ exited with 0 +++",
        "1 <... clone3 resumed> => {parent_tid=[2]}, 88) = 2",
        "1 +++ exited with 0 +++",
    )
    rmdir = short_event(1, "rmdir", ret=0, path="y", base="/else") | {"tid": 2}
    assert short_events(items) == [rmdir, short_event(1, "exit")]


BOTH = (
    f"1 clone(child_stack=NULL, flags={SHARED}|17) = 2",
    f"1 clone(child_stack=0x7f, flags={THREAD} <unfinished ...>",
    "2 clone(child_stack=NULL, flags=17 <unfinished ...>",
)
AFTER = ("1 <... clone resumed>) = 3", "2 <... clone resumed>) = 4")


@pytest.mark.parametrize(
    ("ask", "first"),
    [
        ({3: (1, 0), 4: (4, 2)}.get, [("fork", 1, 2), ("rmdir", 1, 0), ("fork", 2, 4)]),
        # Nobody can be asked any more: it is found out once the calls are over.
        (no_answer, [("fork", 1, 2), ("rmdir", 3, 0)]),
    ],
)
def test_who_is_whose_child(ask: Any, first: list[Any]) -> None:
    lines = ("3 rmdir(NULL) = 0", "4 rmdir(NULL) = 0")
    items = parse_lines(*BOTH, *lines, *AFTER, "3 rmdir(NULL) = 0", ask=ask)
    found = [(one["call"], one["pid"], one.get("child", 0)) for one in short_events(items)]
    assert found[: len(first)] == first
    assert sorted(one for one in found if one[0] == "fork") == [("fork", 1, 2), ("fork", 2, 4)]
    assert found[-1] == ("rmdir", 1, 0)


def test_who_was_killed_when_it_had_forked() -> None:
    """Two were about to, and nobody knows whose the child is: that one is not known."""
    fork = "clone(child_stack=NULL, flags=0x11 <unfinished ...>"
    lines = new_parser()
    lines.feed(write_lines(f"1 {fork}", "1 <... clone resumed>) = 2", f"1 {fork}", f"2 {fork}"))
    assert lines.tasks.unannounced == 0
    lines.feed(write_lines(*(f"{pid} +++ killed by SIGKILL +++" for pid in (1, 2, 3))))
    assert lines.tasks.unannounced == 1
    assert not lines.tasks.living


def test_folders_are_shared_or_not() -> None:
    items = parse_lines(
        f"1 clone(child_stack=NULL, flags={SHARED}|17) = 2",
        "1 clone(child_stack=NULL, flags=17) = 3",
        f"1 chdir({quote('/new')}) = 0",
        f"1 chdir({quote('/no')}) = -1 ENOENT (No such file or directory)",
        *(f"{pid} rmdir({quote('x')}) = 0" for pid in (1, 2, 3)),
        f"2 fchdir({fd_of('/other', 3)}) = 0",
        *(f"{pid} rmdir({quote('x')}) = 0" for pid in (1, 2, 3)),
    )
    bases = [one.get("base") for one in short_events(items)[2:]]
    assert bases == ["/new", "/new", "/here", "/other", "/other", "/here"]


def test_where_a_chdir_really_led_is_not_in_its_text() -> None:
    """What goes up from there is not known, until strace has read where that is."""
    items = parse_lines(
        f"1 chdir({quote('link')}) = 0",
        f"1 rmdir({quote('../x')}) = 0",
        f"1 rename({quote('x')}, {quote('.//../y')}) = 0",
        f"1 rename({quote('a/../x')}, {quote('y')}) = 0",
        f"1 unlinkat({fd_of('/real')}, {quote('../x')}, 0) = 0",
        f"1 rmdir({quote('../x')}) = 0",
        f"1 chdir({quote('/link')}) = 0",
        f"1 fchdir({fd_of('/other', 3)}) = 0",
        f"1 rmdir({quote('../x')}) = 0",
    )
    found = [(one.get("base"), one.get("to_base")) for one in short_events(items)]
    assert found == [
        (None, None),
        ("/here/link", None),
        ("/here/link", "/here/link"),
        ("/real", None),
        ("/real", None),
        ("/other", None),
    ]


def test_strace_knows_the_folder_better() -> None:
    """A symlink on the way, or one that is gone; a name that only looks so."""
    items = parse_lines(
        f"1 chdir({quote('/link')}) = 0",
        f"1 mkdirat({fd_of('/real')}, {quote('x')}, 0777) = 0",
        f"1 unlink({quote('x')}) = 0",
        f"1 unlinkat({fd_of('/real (deleted)')}, {quote('x')}, 0) = -1 ENOENT (x)",
        f"1 unlinkat({fd_of('/real (deleted)')}, {quote('/x')}, 0) = -1 ENOENT (x)",
        f"1 chdir({quote('/odd (deleted)')}) = 0",
        f"1 unlinkat({fd_of('/odd (deleted)')}, {quote('x')}, 0) = 0",
        f"1 unlinkat({fd_of('/odd', 5)}(deleted), {quote('x')}, 0x200) = -1 ENOENT (x)",
    )
    found = [(one["call"], one.get("base"), one.get("marks")) for one in short_events(items)]
    assert found == [
        ("mkdirat", "/real", None),
        ("unlink", "/real", None),
        ("unlinkat", "/real", ["unreachable"]),
        ("unlinkat", None, None),
        ("unlinkat", "/odd (deleted)", None),
        ("rmdir", "/odd", ["unreachable"]),
    ]


def test_an_open_file_that_is_no_path() -> None:
    items = parse_lines(
        f"1 openat({fd_of('/here')}, {quote('/proc/self/fd/0')}, 0) = 3{fd_of('pipe:[5]', 3)[1:]}",
        f"1 fchmod({fd_of('/gone', 3)}(deleted), 0600) = 0",
        f"1 fchmod({fd_of('socket:[5]', 3)}, 0600) = 0",
        "1 fchmod(9, 0600) = -1 EBADF (Bad file descriptor)",
    )
    assert short_events(items) == [
        short_event(1, "openat", ret=3, path="/proc/self/fd/0", marks=["unreachable"]),
        short_event(1, "fchmod", ret=0, resolved="/gone", mode=0o600, marks=["unreachable"]),
        short_event(1, "fchmod", ret=0, mode=0o600),
        short_event(1, "fchmod", ret=-errno.EBADF, mode=0o600),
    ]


@pytest.mark.parametrize("head", ["> <unfinished ...>", " <pid changed to 1 ...>"])
@pytest.mark.parametrize(("end", "lost"), [("= 0", 0), ("= -1 (errno 18446744073709551359)", 1)])
def test_a_thread_that_executes(head: str, end: str, lost: int) -> None:
    lines = new_parser()
    execve = f"execve({quote('/bin/x')}, [{quote('x')}], 0x7f /* 3 vars */"
    items = lines.feed(
        write_lines(
            f"1 clone(child_stack=0x7f, flags={THREAD}) = 2",
            f"2 {execve}{head.removeprefix('>')}",
            "1 +++ superseded by execve in pid 2 +++",
            f"1 <... execve resumed>) {end}",
            "1 +++ exited with 0 +++",
        )
    )
    gaps = [item for item in items if isinstance(item, Gap)]
    assert gaps == [Gap(source="strace", lost=1, reason=LOST_CALL)] * lost
    assert short_events([item for item in items if item not in gaps]) == [
        short_event(1, "exec", ret=0, path="/bin/x", argv=["x"], marks=["thread_exec"]),
        short_event(1, "exit"),
    ]
    assert lines.counts.lost == lost
    assert not lines.counts.unparsed
    assert not lines.tasks.living


def test_calls_by_another_name() -> None:
    items = parse_lines(
        f"1 chown32({quote('/x')}, 5, -1) = 0",
        f"1 truncate64({quote('/x')}, 9) = 0",
        "1 syscall_0x1c4(0x4, 0x556cdcce5049, 0x1ed, 0x100, 0, 0) = 0",
        "1 syscall_0x1c5(0x4, 0x556cdcce5049, 0x1ed, 0x100, 0, 0) = 0",
    )
    assert short_events(items) == [
        short_event(1, "chown", ret=0, path="/x", uid=5, marks=["compat"]),
        short_event(1, "truncate", ret=0, path="/x", size=9, marks=["compat"]),
        short_event(1, "fchmodat2", ret=0, mode=0o755, flags=0x100, marks=["fault"]),
    ]


def test_attributes() -> None:
    name, value, given = quote("user.a"), quote(b'v", 9, 0) = 0\n'), fd_of("/here/given", 3)
    items = parse_lines(
        f"1 setxattr({quote('x')}, {name}, {value}, 13, 0x1) = 0",
        f"1 fsetxattr({given}, {name}, NULL, 0, 0) = -1 EPERM (Operation not permitted)",
        f"1 lremovexattr({quote('/x')}, {name}) = 0",
        f"1 setxattrat({fd_of('/there', 4)}, {quote('x')}, 0x100, {name},"
        f" {{value={value}, size=13}}, 16) = 0",
        "1 syscall_0x1d2(0x4, 0x556cdcce5049, 0, 0x7ffe, 0, 0) = 0",
        f"1 utimensat({given}, NULL, [{{tv_sec=1, tv_nsec=0}} /* 1970 */, UTIME_OMIT], 0) = 0",
        f"1 utimensat({fd_of('/there', 4)}, {quote('x')}, NULL, 0x100) = 0",
        f"1 acct({quote('x')}) = 0",
        "1 acct(NULL) = 0",
        f"1 mq_open({quote('q')}, 0x42, 0600, NULL) = 3{fd_of('/q', 3)[1:]}",
        f"1 open_tree({fd_of('/there')}, {quote('x')}, 0x1) = 5{fd_of('/', 5)[1:]}",
    )
    here = {"base": "/here"}
    assert short_events(items) == [
        short_event(1, "setxattr", ret=0, path="x", name="user.a", size=13, flags=1, **here),
        short_event(1, "fsetxattr", ret=-1, resolved="/here/given", name="user.a", size=0),
        short_event(1, "lremovexattr", ret=0, path="/x", name="user.a"),
        short_event(1, "setxattrat", ret=0, path="x", base="/there", name="user.a", flags=0x100),
        short_event(1, "removexattrat", ret=0, marks=["fault"]),
        short_event(1, "utimensat", ret=0, resolved="/here/given"),
        short_event(1, "utimensat", ret=0, path="x", base="/there", flags=0x100),
        short_event(1, "acct", ret=0, path="x", **here),
        short_event(1, "acct", ret=0),
        short_event(1, "mq_open", ret=3, path="q", flags=0x42, mode=0o600),
        short_event(1, "open_tree", ret=5, path="x", base="/there", flags=1)
        | {"marks": ["unreachable", "other_mounts"]},
    ]


def test_who_comes() -> None:
    """Where the program does not ask, the name that a local socket was bound to shows it."""
    four = 'sin_port="\\x00\\x50", sin_addr="\\x0a\\x00\\x00\\x01"'
    items = parse_lines(
        f"1 bind({fd_of('socket:[7]', 3)}, {{sa_family=0x1, sun_path={quote('door')}}}, 7) = 0",
        f"1 bind({fd_of('socket:[8]', 4)}, {{sa_family=0x2, {four}}}, 16) = 0",
        f"1 accept4({fd_of('socket:[7]', 3)}, NULL, NULL, 0x800) = 5{fd_of('socket:[9]', 5)[1:]}",
        f"1 accept({fd_of('socket:[7]', 3)}, {{sa_family=0x1}}, [110 => 2]) = 5",
        f"1 accept({fd_of('socket:[8]', 4)}, {{sa_family=0x2, {four}}}, [16]) = 6",
        f"1 accept({fd_of('socket:[8]', 4)}, NULL, NULL) = 7",
        f"1 accept({fd_of('socket:[8]', 4)}, NULL, NULL) = -1 EAGAIN (Resource unavailable)",
    )
    assert short_events(items) == [
        short_event(1, "bind", ret=0, path="door", base="/here"),
        short_event(1, "bind", ret=0, peer="10.0.0.1:80"),
        short_event(1, "accept4", ret=5, peer="unix:/here/door"),
        short_event(1, "accept", ret=5, peer="unix:/here/door"),
        short_event(1, "accept", ret=6, peer="10.0.0.1:80"),
        short_event(1, "accept", ret=7),
    ]


def test_processes_that_are_reached_into() -> None:
    lines = new_parser()
    items = lines.feed(
        write_lines(
            "1 clone(child_stack=0x7f, flags=0) = 2",
            "1 ptrace(0x4206, 2, NULL, 0) = 0",
            "1 ptrace(0x18, 2) = 0",
            "1 ptrace(0x10, 7 /* 2 in strace's PID NS */) = 0",
            "1 process_vm_writev(3, [{iov_base=0x7f, iov_len=8}], 1, [], 1, 0) = 8",
            f"1 pidfd_getfd({fd_of('anon_inode:[pidfd]', 5)}, 0, 0) = 6{fd_of('/etc/x', 6)[1:]}",
            "1 bpf(0, {map_type=0x2, key_size=4}, 128) = 7",
        )
    )
    outside = {"marks": ["outside"]}
    assert short_events(items)[1:] == [
        short_event(1, "ptrace", ret=0, flags=0x4206, target=2),
        short_event(1, "ptrace", ret=0, flags=0x10, target=2),
        short_event(1, "process_vm_writev", ret=8, target=3, **outside),
        short_event(1, "pidfd_getfd", ret=6, resolved="/etc/x", **outside),
        short_event(1, "bpf", ret=7),
    ]
    assert [reason.split()[:4] for reason in lines.doubts.reasons] == [
        *[["the", "run", "reached", "by"]] * 2,
        ["the", "run", "used", "bpf(2),"],
    ]


@pytest.mark.parametrize(
    ("result", "ret"),
    [
        ("-1 ENOENT (No such file or directory)", -2),
        ("-1 EAGAIN (Die Ressource ist zur Zeit (noch) nicht verf\xfcgbar)", -errno.EAGAIN),
        ("-1 EWOULDBLOCK (x)", -errno.EAGAIN),
        ("-1 (errno 524)", -524),
        ("-1 EUNKNOWN (x)", None),
        ("0", 0),
    ],
)
def test_results(result: str, ret: int | None) -> None:
    (found,) = short_events(parse_lines(f"1 rmdir({quote('/x')}) = {result}"))
    assert found.get("ret") == ret


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("exited with 255", 255 << 8),
        ("killed by SIGKILL", 9),
        ("killed by SIGSEGV (core dumped)", 11 | 0x80),
        ("killed by SIGRT_5", 37),
        ("killed by SIGRTMIN", 32),
        ("killed by 70", 70),
    ],
)
def test_ends(words: str, status: int) -> None:
    assert short_events(parse_lines(f"1 +++ {words} +++")) == [
        short_event(1, "exit", status=status)
    ]


@pytest.mark.parametrize(
    "line",
    [
        "1 unlink(x) = 0",
        f"1 unlink({quote('x')}, 5) = 0",
        f"1 unlink({quote('x')}) = 0 or so",
        '1 unlink("plain") = 0',
        '1 unlink("\\x4") = 0',
        f"1 <... unlink resumed>{quote('x')}) = 0",
        "1 +++ exited with honour +++",
        "1 +++ killed by SIGNOTHING +++",
        "1 connect(3, {sa_data=1}, 16) = 0",
        "1 openat2(-100, NULL) = 0",
        "1 execve() = 0",
        "strace: Process 3 attached",
        "",
    ],
)
def test_what_cannot_be_read_is_counted(line: str) -> None:
    lines = new_parser()
    items = lines.feed(write_lines(line) if line[:1] == "1" else f"{line}\n".encode())
    assert items == [Gap(source="strace", lost=1, reason=UNREADABLE)]
    assert (lines.counts.unparsed, lines.counts.events) == (1, 0)
    assert short_events(lines.feed(write_lines("7 rmdir(NULL) = 0"))) == [
        short_event(7, "rmdir", ret=0, marks=["fault"])
    ]


def test_a_line_that_is_cut_off() -> None:
    lines = new_parser()
    assert lines.feed(write_lines(f"1 {OPENED}")[:-9]) == []
    assert lines.finish() == [Gap(source="strace", lost=1, reason=UNREADABLE)]
    assert lines.finish() == []


NAMES = st.binary(max_size=20).filter(lambda name: b"\0" not in name)
CALLS = st.sampled_from(sorted({*TRACED, *TRACED_WRITES, "read", "syscall_0x1c4"}))
ARGUMENTS = st.lists(
    st.one_of(
        NAMES.map(quote),
        NAMES.map(fd_of),
        NAMES.map(lambda name: fd_of(name, 3) + "(deleted)"),
        st.just(fd_of("x", 1)),
        st.integers(-2, 1 << 40).map(str),
        st.integers(0, 1 << 40).map(hex),
        st.sampled_from(
            ["NULL", "[]", "{flags=0x100, resolve=0}", "{flags=0x10000}", "0777", "09"]
        ),
        st.sampled_from(
            ['{sa_family=0x2, sin_port="\\x00\\x01", sin_addr="\\x7f\\x00\\x00\\x01"}']
        ),
        st.sampled_from(["[{msg_hdr={msg_name=NULL, msg_namelen=0}}]", "{msg_name={sa_family=0}"]),
        st.text(max_size=8),
    ),
    max_size=5,
).map(", ".join)
ENDS = st.sampled_from(
    [
        *(
            ") = 0",
            ") = 3",
            ") = 3</x>",
            ") = ?",
            ") = ? <unavailable>",
            ") = -1 ENOENT (x)",
            " <unfinished ...>",
        ),
        *(
            " <pid changed to 2 ...>",
            ") = -1 (errno 99999999999)",
            ") = 0x7f",
            "",
            " <detached ...>",
        ),
    ]
)
TIDS = st.integers(1, 4)
LINES = st.one_of(
    st.builds("{} {}({}{}".format, TIDS, CALLS, ARGUMENTS, ENDS),
    st.builds("{} <... {} resumed>{}{}".format, TIDS, CALLS, ARGUMENTS, ENDS),
    st.builds("{} +++ superseded by execve in pid {} +++".format, TIDS, TIDS),
    st.builds("{} +++ exited with {} +++".format, TIDS, st.integers(0, 300)),
    st.builds("{} --- SIGUSR1 {{}} ---".format, TIDS),
    st.text(max_size=20).map("1 {}".format),
)
TEXTS = st.lists(
    st.one_of(LINES.map(lambda line: write_lines(line)), st.binary(max_size=30)), max_size=12
).map(b"".join)


def feed_in_pieces(text: bytes, cuts: Sequence[int]) -> tuple[list[Item], Any]:
    lines = new_parser(watch=[WatchedFile("x", 0, 0, b"x")])
    items, start = [], 0
    for end in (*sorted(cut % (len(text) + 1) for cut in cuts), len(text)):
        items += lines.feed(text[start:end])
        start = end
    items += lines.finish()
    return items, (lines.counts, lines.tasks.living, lines.has_uring)


@given(TEXTS, st.lists(st.integers(0, 2000), max_size=6))
@example(write_lines("1 +++ superseded by execve in pid 1 +++"), [])
def test_any_text_however_it_is_cut(text: bytes, cuts: list[int]) -> None:
    """It is read, each line stands in the counts, and the cuts make no difference."""
    items, (counts, *rest) = feed_in_pieces(text, cuts)
    assert (items, (counts, *rest)) == feed_in_pieces(text, [])
    lines = text.count(b"\n") + (not text.endswith(b"\n") and bool(text))
    assert counts.events + counts.halves + counts.others + counts.unparsed == lines
    events = [item for item in items if isinstance(item, RawEvent)]
    assert len(events) == counts.events + counts.extra_events
    assert sum(int(item.lost) for item in items if isinstance(item, Gap)) == (
        counts.lost + counts.unparsed
    )
    msgspec.json.encode(items)


@given(NAMES, NAMES)
def test_every_name_comes_back(name: bytes, folder: bytes) -> None:
    """And none of them looks like anything else."""
    source = f"{fd_of(b'/' + folder, 4)}, {quote(name)}"
    line = f"renameat2({source}, {fd_of(b'/' + folder)}, {quote(name)}"
    (found,) = short_events(parse_lines(f"1 {line}, 0x1) = 0"))
    base = {} if name.startswith(b"/") else {"base": path_text(b"/" + folder)}
    here = path_text(b"/" + folder)
    to_base = {"to_base": here.removesuffix(" (deleted)")} if base else {}
    assert found == {
        **short_event(
            1, "renameat2", ret=0, path=path_text(name), to_path=path_text(name), flags=1
        ),
        **base,
        **to_base,
        **({"resolved": here} if name == b"" else {}),
    }
