"""The strace feed, on real programs under their guard."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stream.records.kernel import RawEvent
from stream.sources.kernel.decode import CALLS, CLOSER_CALLS
from stream.sources.kernel.strace import StraceFeed
from stream.sources.kernel.strace_syntax import TRACED
from stream.transformers.kernel_lines import named_path
from tests.cli.command import Place
from tests.cli.test_ordinary_user import open_place, ordinary_user_words
from tests.feeds import needs_strace
from tests.kernel.straced import HOME, Run, Traced, run

__all__ = ["open_place", "run"]
HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="strace needs Linux"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc"),
]
TRACER = "int(open('/proc/self/status').read().split('TracerPid:')[1].split()[0])"


def compile_program(source: Path, folder: Path) -> Path:
    program = folder / source.stem
    subprocess.run(["gcc", "-w", "-o", program, source, "-lpthread"], check=True)
    return program


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(HERE / "calls.c", tmp_path_factory.mktemp("calls"))


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(HERE / "programs/calls.c", tmp_path_factory.mktemp("cases"))


def write_program(code: str, folder: Path) -> Path:
    """A C program of one function."""
    source = folder / "program.c"
    names = ("fcntl", "pthread", "sched", "signal", "spawn", "stdio", "stdlib", "string", "unistd")
    more = ("sys/syscall", "sys/wait", "sys/prctl", "sys/stat", "sys/socket", "netinet/in")
    includes = "".join(f"#include <{name}.h>\n" for name in (*names, *more))
    source.write_text(f"#define _GNU_SOURCE\n{includes}{code}")
    return compile_program(source, folder)


def select_facts(event: Any, *leave_out: str) -> dict[str, Any]:
    dull = {"schema", "ts", "pid", "tid", "scope", "flags", *leave_out}
    return {name: value for name, value in event.items() if name not in dull}


def own_events(traced: Traced) -> list[Any]:
    """Without what the loader opens."""
    return [
        event for event in traced.events if not str(event.get("path")).startswith(("/lib", "/etc"))
    ]


@needs_strace
def test_opens(run: Run, calls: Path, tmp_path: Path) -> None:
    here = str(tmp_path)
    found = [select_facts(event, "argv") for event in own_events(run(calls, "0").check())]
    base = {"base": here}
    assert found == [
        {"call": "exec", "ret": 0, "path": str(calls)},
        {"call": "open", "ret": 3, "path": "legacy", "resolved": f"{here}/legacy", "mode": 0o640}
        | base,
        {"call": "creat", "ret": 4, "path": "created", "resolved": f"{here}/created", "mode": 0o644}
        | base,
        {"call": "openat", "ret": -errno.ENOENT, "path": "missing"} | base,
        {"call": "openat", "ret": 5, "path": ".", "resolved": here} | base,
        {"call": "openat", "ret": 6, "path": "./legacy", "resolved": f"{here}/legacy"} | base,
        {"call": "openat2", "ret": 7, "path": "second", "resolved": f"{here}/second"}
        | base
        | {"mode": 0o600, "resolve": 8},
        {"call": "openat", "ret": -errno.EBADF, "path": "nowhere"},
        {"call": "openat", "ret": -errno.EFAULT, "marks": ["fault"]},
        {"call": "openat", "ret": 8, "path": "gone", "resolved": f"{here}/gone", "mode": 0o600}
        | base,
        {"call": "unlink", "ret": 0, "path": "gone"} | base,
        {"call": "ftruncate", "ret": 0, "resolved": f"{here}/gone", "size": 3}
        | {"marks": ["unreachable"]},
        {"call": "exit"},
    ]
    flags = {event["path"]: event["flags"] for event in run(calls, "0").events_of("open", "creat")}
    assert flags == {
        "legacy": os.O_WRONLY | os.O_CREAT,
        "created": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    }


@needs_strace
def test_files(run: Run, calls: Path, tmp_path: Path) -> None:
    (tmp_path / "created").touch()
    here, base, to_base = str(tmp_path), {"base": str(tmp_path)}, {"to_base": str(tmp_path)}
    uid, gid = os.getuid(), os.getgid()
    traced = run(calls, "1").check()
    found = [
        select_facts(event, "ret")
        for event in traced.events
        if not event["call"].startswith("open")
    ]
    created = {"path": "created"} | base
    assert found[1:-1] == [
        {"call": "mkdir", "path": "one", "mode": 0o700} | base,
        {"call": "mkdirat", "path": "two", "mode": 0o750} | base,
        {"call": "rmdir", "path": "one"} | base,
        {"call": "rmdir", "path": "two"} | base,
        {"call": "symlink", "path": "to where", "to_path": "soft"} | to_base,
        {"call": "symlinkat", "path": "/to where", "to_path": "softer"} | to_base,
        {"call": "link", "to_path": "hard"} | created | to_base,
        {"call": "linkat", "to_path": "harder"} | created | to_base,
        {"call": "rename", "path": "hard", "to_path": "harm"} | base | to_base,
        {"call": "renameat", "path": "harm", "to_path": "hard"} | base | to_base,
        {"call": "renameat2", "path": "hard", "to_path": "harm"} | base | to_base,
        {"call": "unlink", "path": "soft"} | base,
        {"call": "unlinkat", "path": "softer"} | base,
        {"call": "chmod", "mode": 0o611} | created,
        {"call": "fchmod", "mode": 0o622, "resolved": f"{here}/created"},
        {"call": "fchmodat", "mode": 0o633} | created,
        {"call": "chown"} | created,
        {"call": "lchown", "uid": uid} | created,
        {"call": "fchown", "gid": gid, "resolved": f"{here}/created"},
        {"call": "fchownat"} | created,
        {"call": "fchownat", "path": "", "base": f"{here}/created", "resolved": f"{here}/created"},
        {"call": "truncate", "size": 5_000_000_000} | created,
        {"call": "ftruncate", "size": 7, "resolved": f"{here}/created"},
        {"call": "mknod", "path": "pipe", "mode": 0o10600} | base,
        {"call": "mknodat", "path": "pipes", "mode": 0o10640} | base,
        {"call": "unlink", "path": "not/here", "base": "/"},
        {"call": "unlink", "path": "not/here"} | base,
    ]
    assert [event["ret"] for event in traced.events_of("unlink")] == [
        0,
        -errno.ENOENT,
        -errno.ENOENT,
    ]


@needs_strace
def test_peers(run: Run, calls: Path, tmp_path: Path) -> None:
    traced = run(calls, "2").check()
    found = traced.events_of("sendto", "sendmsg", "sendmmsg", "connect")
    assert [select_facts(event, "ret") for event in found] == [
        {"call": "sendto", "peer": "127.0.0.1:9"},
        {"call": "sendmsg", "peer": "127.0.0.1:9"},
        {"call": "sendmmsg", "peer": "127.0.0.1:9"},
        {"call": "sendmmsg", "peer": "127.0.0.1:9"},
        {"call": "connect", "peer": "[::1]:9"},
        {"call": "connect", "peer": f'unix:{tmp_path}/no\n"socket'},
        {"call": "connect", "peer": "unix:@no\n"},
        {"call": "connect", "peer": "127.0.0.1:9"},
        {"call": "connect", "peer": "unspec"},
    ]
    assert "secret" not in json.dumps(traced.seen)


@needs_strace
def test_peers_that_are_read_otherwise_than_they_look(
    run: Run, cases: Path, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    found = run(cases, "peers_oddly").check().events_of("sendto", "sendmmsg", "connect")
    one, two, local = "127.0.0.2:40077", "127.0.0.3:78", f"unix:{tmp_path}/sub/nobody.sock"
    assert [(event["call"], event.get("ret"), event.get("peer")) for event in found] == [
        ("sendto", 1, "127.0.0.4:79"),
        ("sendto", -errno.EINVAL, None),
        ("connect", 0, one),
        ("sendmmsg", 40, two),
        ("sendmmsg", 40, two),
        ("sendmmsg", -errno.EINVAL, "127.0.0.3:0"),
        ("sendmmsg", 1, one),
        ("sendmmsg", None, "127.0.0.3:0"),
        ("connect", 0, one),
        ("connect", 0, "0.0.0.0:40077"),  # as it was given
        ("connect", -errno.ENOENT, local),
        ("sendto", -errno.ENOENT, local),
        ("connect", 0, "unspec"),
    ]


@needs_strace
def test_a_call_that_a_signal_interrupts_has_no_result(run: Run, cases: Path) -> None:
    found = run(cases, "interrupted").check()
    assert [event.get("ret") for event in found.events_of("connect")][2:] == [None, None]
    opened = [event for event in found.events_of("openat") if event.get("path") == "fifo"]
    assert [event.get("ret") for event in opened] == [None, None]


def test_both_feeds_follow_the_same_calls() -> None:
    reported_otherwise = {"", "exec", "fork", "exit", "wrote", "uring_result"}
    assert {*CALLS} - CLOSER_CALLS - reported_otherwise <= {*TRACED}


@needs_strace
def test_by_a_handle(run: Run, cases: Path, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    traced = run(cases, "handles")
    if traced.seen["reports"][-1].get("code") == 77:
        pytest.skip("handles cannot be had here")
    opened, failed = traced.events_of("open_by_handle_at")
    assert select_facts(failed, "ret") == {"call": "open_by_handle_at"}
    assert opened["flags"] == os.O_DIRECTORY
    if opened["ret"] >= 0:  # some versions show what it is
        assert opened.get("resolved", opened.get("marks")) in (str(tmp_path / "sub"), ["fault"])


@needs_strace
def test_what_another_process_has_may_lie_elsewhere(run: Run, tmp_path: Path) -> None:
    parent = f"/proc/{os.getpid()}"
    paths = [f"{parent}/root/etc/passwd", f"/proc/.//{os.getpid()}/./cwd/x", f"{parent}/status"]
    paths += ["/proc/self/cwd/x", f"/proc/self/../{os.getpid()}/root/etc/passwd"]
    code = (
        "import os, sys\n"
        "for path in sys.argv[1:]:\n"
        "    try: os.open(path, os.O_RDONLY)\n"
        "    except OSError: pass\n"
    )
    traced = run("/usr/bin/python3", "-ISc", code, *paths)
    marks = {event.get("path"): event.get("marks") for event in traced.events_of("openat")}
    mark = ["other_mounts"]
    assert [marks[path] for path in paths] == [mark, mark, None, None, mark]


@needs_strace
def test_programs(run: Run, calls: Path) -> None:
    traced = run(calls, "3").check()
    (leader,) = {event["pid"] for event in traced.events_of("io_uring_setup")}
    failed = traced.events_of("execve", "execveat")
    words = ["name", 'a "b"\n']
    path = {"ret": -errno.ENOENT, "argv": words}
    assert [select_facts(event) for event in failed] == [
        {"call": "execve", "path": "/no/program"} | path,
        {"call": "execveat", "path": "no/program", "base": "/"} | path,
    ]
    first, *execs = traced.events_of("exec")
    assert (first["path"], first["argv"]) == (str(calls), [str(calls), "3"])
    assert [select_facts(event, "ret") for event in execs] == [
        {"call": "exec", "path": "/bin/true", "argv": words},
        {"call": "exec", "path": "/dev/fd/3/bin/true", "base": "/", "argv": words},
    ]
    forks = traced.events_of("fork")
    assert {event["pid"] for event in forks} == {leader}
    ends = {event["pid"]: event.get("status", 0) for event in traced.events_of("exit")}
    children = [event["child"] for event in forks]
    assert [ends[child] for child in children] == [0, 0, 3 << 8, signal.SIGKILL]
    assert set(ends) == {leader, *children}
    assert traced.capture["uring"] == "unused"


@needs_strace
def test_the_clock_is_the_monotonic_one(run: Run) -> None:
    code = "import os, time\nprint(time.monotonic_ns()); os.mkdir('x'); print(time.monotonic_ns())"
    traced = run("/usr/bin/python3", "-ISc", code).check()
    before, after = map(int, traced.seen["out"].split())
    (made,) = traced.events_of("mkdir")
    slack = 20_000_000  # what strace takes between the call and its clock, on a busy machine
    assert before - slack <= made["ts"] <= after + slack


@needs_strace
def test_a_ring(run: Run, tmp_path: Path) -> None:
    ring = write_program(
        "int main(void) { char p[200] = {0}; return syscall(SYS_io_uring_setup, 1, p) < 0; }",
        tmp_path,
    )
    traced = run(ring).check()
    (made,) = traced.events_of("io_uring_setup")
    if made["ret"] < 0:
        pytest.skip("io_uring is switched off here")
    assert traced.capture["uring"] == "hole"


@needs_strace
@pytest.mark.parametrize(
    "name",
    [
        "two\nlines",
        '"quoted", 0) = 3',
        "x <unfinished ...>",
        '\n1 1.000000000 (+     0.000000001) unlink("\\x41") = 0\n',
        "\n2 1.000000000 (+ 0.000000001) +++ exited with 0 +++",
        ") = 3</etc/shadow>",
        "back\\slash \\x41",
        "b\udcff\udcfed",
        "gone (deleted)",
        "ü",
    ],
)
def test_names_forge_nothing(run: Run, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name.replace("/", "_")
    folder.mkdir()
    code = (
        "import os\nos.close(os.open('f', os.O_CREAT))\nos.unlink('f')\nos.mkdir(os.fsencode({!r}))"
    )
    traced = run("/usr/bin/python3", "-ISc", code.format(folder.name), cwd=folder).check()
    text = os.fsencode(folder).replace(b"\\", b"\\\\").decode(errors="backslashreplace")
    (unlinked,), (made,) = traced.events_of("unlink"), traced.events_of("mkdir")
    assert select_facts(unlinked, "ret") == {"call": "unlink", "path": "f", "base": text}
    assert f"{text}/f" in [event.get("resolved") for event in traced.events]
    assert made["path"] == text.rpartition("/")[2]
    assert len(traced.events_of("exit")) == 1


@needs_strace
def test_long_names(run: Run, tmp_path: Path) -> None:
    script = (
        "import os\n"
        "for length in (4095, 4096, 5000):\n"
        "    try: os.open('./' * 2000 + 'n' * (length - 4000), os.O_RDONLY)\n"
        "    except OSError: pass\n"
        "os.spawnv(os.P_WAIT, '/bin/true', ['true', 'w' * 4096, 'w' * 4097])\n"
    )
    traced = run("/usr/bin/python3", "-ISc", script).check()
    opened = [event for event in traced.events_of("openat") if event["path"].startswith("././")]
    assert [(len(event["path"]), event["ret"], event.get("marks")) for event in opened] == [
        (4095, -errno.ENOENT, None),
        (4095, -errno.ENAMETOOLONG, ["truncated"]),
        (4095, -errno.ENAMETOOLONG, ["truncated"]),
    ]
    spawned = traced.events_of("exec")[-1]
    assert [len(word) for word in spawned["argv"]] == [4, 4096, 4096]
    assert spawned["marks"] == ["truncated"]


THREADS = """
void *work(void *name) { close(open(name, O_RDONLY)); return 0; }
int main(void) {
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], 0, work, "/etc/hostname");
    for (int i = 0; i < 8; i++) pthread_join(threads[i], 0);
}
"""
THREAD_EXEC = """
void *work(void *name) { execl("/bin/true", "true", "by a thread", NULL); return 0; }
int main(void) { pthread_t t; pthread_create(&t, 0, work, 0); pause(); }
"""
SPAWNED = """
int main(void) {
    char *words[] = {"true", 0}, *none[] = {0};
    int pid;
    chdir("/usr");
    posix_spawn(&pid, "bin/true", 0, 0, words, none);
    waitpid(pid, 0, 0);
    if (!vfork()) { chdir("/"); execve("bin/true", words, none); }
    wait(0);
    unlink("not here");
    syscall(SYS_clone, CLONE_FS | SIGCHLD, 0) || (chdir("/var"), _exit(0), 0);
    wait(0);
    unlink("not here");
}
"""


@needs_strace
def test_threads_are_of_their_process(run: Run, tmp_path: Path) -> None:
    traced = run(write_program(THREADS, tmp_path)).check()
    assert len({event["pid"] for event in traced.events}) == 1
    opened = [event for event in traced.events if event.get("path") == "/etc/hostname"]
    assert len(opened) == len({event["tid"] for event in opened}) == 8
    assert len(traced.events_of("exit")) == 1
    assert not traced.events_of("fork")


@needs_strace
def test_threads_that_share_their_descriptors(run: Run, tmp_path: Path) -> None:
    """Another one may have put another file there; by its own name nothing is gained."""
    (tmp_path / "given").touch()
    (tmp_path / "link").symlink_to("given")
    body = 'open("link", 0); open(name, 0); unlink("x"); return 0;'
    threaded = (
        f"void *work(void *name) {{ {body} }}"
        "int main(int n, char **w) { pthread_t t; work(w[1]);"
        " pthread_create(&t, 0, work, w[1]); pthread_join(t, 0); work(w[1]); }"
    )
    traced = run(write_program(threaded, tmp_path), tmp_path / "given").check()
    opened = [event for event in traced.events_of("openat") if event["ret"] > 0]
    marks = [event.get("marks") for event in opened if event["path"].endswith(("link", "/given"))]
    assert marks == [None, None, ["shared_files"], None, None, None]


@needs_strace
def test_a_thread_that_executes(run: Run, tmp_path: Path) -> None:
    """It becomes the process. With a filter, strace misses one call, and that is recorded."""
    traced = run(write_program(THREAD_EXEC, tmp_path))
    first, second = traced.events_of("exec")
    assert first["pid"] == second["pid"] == second["tid"]
    assert (second["argv"], second["marks"]) == (["true", "by a thread"], ["thread_exec"])
    assert (second["path"], second["ret"]) == ("/bin/true", 0)
    opened = [event["path"] for event in traced.events_of("openat")]
    lost = 2 - opened.count("/etc/ld.so.cache")  # what each of the two begins with
    assert [gap["lost"] for gap in traced.gaps] == [1] * lost
    capture = traced.capture
    assert capture["dropped"] == lost
    assert capture["got"] + lost == capture["seen"]
    assert (capture["unparsed"], capture["unknown_loss"]) == (0, "")
    assert len(traced.events_of("exit")) == 1


@needs_strace
def test_spawned_programs_and_their_folders(run: Run, tmp_path: Path) -> None:
    traced = run(write_program(SPAWNED, tmp_path)).check()
    execs = [(event["path"], event.get("base")) for event in traced.events_of("exec")[1:]]
    assert execs == [("bin/true", "/usr"), ("bin/true", "/")]
    unlinked = [event["base"] for event in traced.events_of("unlink")]
    assert unlinked == ["/usr", "/var"]  # vfork has a folder of its own, CLONE_FS shares it
    order = [(event["call"], event.get("child", event["pid"])) for event in traced.events]
    for fork in traced.events_of("fork"):  # before anything that the child does
        assert order.index(("fork", fork["child"])) < order.index(("exit", fork["child"]))
        first = next(event for event in traced.events if event["pid"] == fork["child"])
        assert traced.events.index(fork) < traced.events.index(first)


@needs_strace
def test_a_process_that_no_tracer_can_follow(run: Run, tmp_path: Path) -> None:
    code = "int main(void) { syscall(SYS_clone, 0x800000 | SIGCHLD, 0) || (_exit(0), 0); wait(0); }"
    capture = run(write_program(code, tmp_path)).capture
    assert (capture["lost_forks"], capture["unknown_loss"]) == (1, "")


@needs_strace
def test_another_pid_namespace(run: Run, needs_root: None) -> None:
    script = "true & wait; /bin/true; exit 3"
    traced = run(shutil.which("unshare") or "", "-fp", "/bin/sh", "-c", script).check()
    forks, ends = traced.events_of("fork"), traced.events_of("exit")
    assert len(ends) == len(forks) + 1
    assert {fork["child"] for fork in forks} < {end["pid"] for end in ends}


@needs_strace
def test_another_root(run: Run, cases: Path, tmp_path: Path, needs_root: None) -> None:
    """Which one it is, strace does not show: neither does the record."""
    (tmp_path / "sub").mkdir()
    seen = own_events(run(cases, "roots").check())[1:-1]
    assert len(seen) == 7  # and a link to /etc
    for event in seen:
        assert event["marks"] == ["other_root"]
        is_relative = not event["path"].startswith("/")
        assert event.get("base") == (f"{tmp_path}/sub" if is_relative else None)
    values = [named_path(msgspec.convert(event, RawEvent)) for event in seen]
    assert values == [None, f"{tmp_path}/sub/in", *[None] * 5]


@needs_strace
@pytest.mark.parametrize("case", ["mounts", "nowhere"])
def test_mounts_of_its_own(
    run: Run, cases: Path, tmp_path: Path, needs_root: None, case: str
) -> None:
    (tmp_path / "sub/lib").mkdir(parents=True)
    (tmp_path / "sub/lib/secret").touch()
    seen = own_events(run(cases, case).check())[1:-1]
    assert len(seen) == (3 if case == "mounts" else 2)
    if case == "nowhere":  # a copy of a tree lies among no mounts
        assert (seen[0]["call"], seen[0]["marks"]) == ("open_tree", ["unreachable", "other_mounts"])
        del seen[0]
    assert {*map(str, (event["marks"] for event in seen))} == {"['other_mounts']"}


@needs_strace
def test_daemons_and_killed_processes(run: Run) -> None:
    script = (
        "import os, signal, time\n"
        "for n in range(20):\n"
        "    pid = os.fork()\n"
        "    if not pid:\n"
        "        while True: os.close(os.open('/etc/hostname', os.O_RDONLY))\n"
        "    time.sleep(0.002)\n"
        "    os.kill(pid, signal.SIGKILL)\n"
        "    os.waitpid(pid, 0)\n"
        "if not os.fork():\n"
        "    os.setsid()\n"
        "    if os.fork(): os._exit(0)\n"
        "    time.sleep(0.2)\n"
        "    os.mkdir('late')\n"
        "    os._exit(5)\n"
        "os._exit(4)\n"
    )
    traced = run("/usr/bin/python3", "-ISc", script).check()
    assert traced.code == 4
    assert [event["path"] for event in traced.events_of("mkdir")] == ["late"]
    statuses = [event.get("status", 0) for event in traced.events_of("exit")]
    assert statuses.count(signal.SIGKILL) == 20
    assert statuses[-1] == 5 << 8
    (outlived,) = traced.report("TreeEnded")["outlived"]
    assert outlived.startswith("python3")
    assert traced.report("TreeEnded")["ended"] == []


@needs_strace
def test_a_tree_that_is_ended(run: Run) -> None:
    """strace reports how, and is not counted among them."""
    script = "sleep 1000 & setsid sleep 1001 & trap '' TERM; echo ready; sleep 1002; sleep 1003"
    traced = run("/bin/sh", "-c", script, signal=signal.SIGTERM, grace=0.2).check()
    assert traced.kinds == ["Started", "Exited", "TreeEnded"]
    assert traced.code == -signal.SIGKILL
    statuses = [event.get("status", 0) for event in traced.events_of("exit")]
    assert statuses.count(signal.SIGTERM) == 2  # the two that do not ignore it
    assert statuses.count(signal.SIGKILL) == len(statuses) - 2 > 0
    assert traced.report("TreeEnded")["ended"]
    assert "strace" not in str(traced.seen["reports"])


@needs_strace
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_signal_comes_once(run: Run, backend: str) -> None:
    script = "trap 'echo got' TERM; echo ready; sleep 0.2; sleep 0.2; sleep 0.2; exit 6"
    traced = run("/bin/sh", "-c", script, signal=signal.SIGTERM, backend=backend, grace=5).check()
    assert (traced.seen["out"], traced.code) == ("ready\ngot\n", 6)


@needs_strace
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGRTMIN + 3])
def test_who_dies_of_a_signal(run: Run, number: int) -> None:
    traced = run("/bin/sh", "-c", f"ulimit -c 0; kill -{int(number)} $$").check()
    assert traced.code == -number
    assert traced.events_of("exit")[-1]["status"] == number


@needs_strace
def test_strace_killed(run: Run) -> None:
    """The command lives on and has its own end; what is missing is recorded."""
    script = f"import os, sys\nos.mkdir('seen')\nos.kill({TRACER}, 9)\n"
    script += "while True:\n    try: os.mkdir('x')\n    except FileExistsError: continue\n"
    script += "    except OSError: break\n    else: break\nos.write(1, b'alive'); os._exit(7)\n"
    traced = run("/usr/bin/python3", "-ISc", script)
    assert (traced.seen["out"], traced.code) == ("alive", 7)
    over = traced.report("TreeEnded")
    assert (over["outlived"], over["ended"]) == ([], [])
    assert [event["path"] for event in traced.events_of("mkdir")][:1] == ["seen"]
    reason = "strace ended before the processes that it followed"
    assert traced.capture["unknown_loss"] == reason
    assert traced.gaps == [
        {"schema": "stream.gap.v1", "source": "strace", "lost": 0, "reason": reason}
    ]
    assert traced.seen["records"][-2] == traced.gaps[0]
    assert not traced.events_of("exit")


@needs_strace
@pytest.mark.parametrize("is_ordinary", [False, True])
def test_strace_stopped(run: Run, open_place: Place, is_ordinary: bool) -> None:
    """It holds all that it follows: they are ended, and so is it. With a control group, and as
    somebody who can have none."""
    runner = ordinary_user_words(open_place) if is_ordinary else ()
    script = f"import os\nos.write(1, b'%d' % {TRACER})\nos.kill({TRACER}, 19)\nos.mkdir('x')\n"
    job = {"timeout": 0.5, "grace": 0.1, "cwd": open_place.tmp, "runner": runner}
    traced = run("/usr/bin/python3", "-ISc", script, **job)
    assert traced.kinds == ["Started", "TimedOut", "Exited", "TreeEnded"]
    assert traced.capture["unknown_loss"]
    assert traced.report("TreeEnded")["outlived"] == []
    assert not Path(f"/proc/{traced.seen['out']}").exists()


@needs_strace
def test_nobody_takes_the_records(run: Run) -> None:
    """The command does not notice."""
    script = "i=0; while [ $i -lt 3000 ]; do : </etc/hostname; i=$((i+1)); done; echo done; exit 3"
    traced = run("/bin/sh", "-c", script, deaf=True)
    assert (traced.seen["out"], traced.seen["err"], traced.code) == ("done\n", "", 3)


@needs_strace
def test_a_command_that_cannot_be_started(run: Run, tmp_path: Path) -> None:
    """It fails as without strace."""
    (tmp_path / "plain").write_text("x")
    (tmp_path / "odd").write_text("x")
    (tmp_path / "odd").chmod(0o755)
    (tmp_path / "script").write_text("#!/no/interpreter\n")
    (tmp_path / "script").chmod(0o755)
    for argv in (["/no/such"], ["nosuch"], ["./plain"], ["./odd"], ["./script"], ["/etc"]):
        traced, alone = run(*argv), run(*argv, traced=False)
        assert traced.seen["reports"] == alone.seen["reports"]
        assert traced.kinds == ["Failed"]
        assert traced.capture["unknown_loss"] == "strace wrote nothing"
    traced, alone = (run("/bin/true", cwd="/no/folder", traced=which) for which in (True, False))
    assert traced.seen["reports"] == alone.seen["reports"]


@needs_strace
def test_what_a_command_sees_of_it(run: Run, tmp_path: Path) -> None:
    """Its name, words, environment, folder, descriptors, groups and signals are what they were."""
    code = (
        "import os, signal\n"
        "print(open('/proc/self/cmdline', 'rb').read(), os.getcwd(), os.listdir('/proc/self/fd'))\n"
        "print(os.readlink('/proc/self/exe'), os.getpgrp() == os.getsid(0) == os.getpid())\n"
        "drop = ('STREAM_TREE', 'PYTEST_CURRENT_TEST')\n"
        "print(sorted(set(os.environb.items()) - {(k.encode(), os.environb.get(k.encode())) "
        "for k in drop}))\n"
        "status = open('/proc/self/status').read().splitlines()\n"
        "print([line for line in status if line.startswith(('SigBlk', 'SigIgn', 'SigCgt'))])\n"
    )
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python3").symlink_to("/usr/bin/python3")
    for executable in ("/usr/bin/python3", str(folder / "python3"), "bin/python3"):
        job = {"executable": executable, "cwd": tmp_path}
        traced = run("python3", "-Sc", code, **job).check()
        alone = run("python3", "-Sc", code, traced=False, **job)
        assert (traced.seen["out"], traced.seen["err"]) == (alone.seen["out"], alone.seen["err"])
        assert traced.events_of("exec")[0]["path"] == executable
        assert traced.events_of("exec")[0]["argv"][0] == "python3"


@needs_strace
def test_an_ordinary_user(run: Run, open_place: Place) -> None:
    runner = ordinary_user_words(open_place)
    open_place.workspace.chmod(0o777)
    script = "[ $(id -u) != 0 ] && echo somebody; mkdir made\n"
    script += "(setsid sh -c 'sleep 0.1; mkdir late' &); exit 3"
    traced = run("/bin/sh", "-c", script, cwd=open_place.workspace, runner=runner).check()
    assert (traced.seen["out"], traced.code) == ("somebody\n", 3)
    assert [event["path"] for event in traced.events_of("mkdir")] == ["made", "late"]
    assert traced.report("Started")["containment"] == "subreaper"


NO_PTRACE = """
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
int main(int count, char **words) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ptrace, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog all = {4, code};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all);
    execvp(words[1], words + 1);
    return 99;
}
"""


def run_probe(*runner: str | Path, path: str | None = None) -> str:
    code = "from stream.sources.kernel.strace import probe_strace; print(probe_strace())"
    env = {**os.environ, "PATH": path} if path is not None else None
    done = subprocess.run(
        [*runner, sys.executable, "-c", code],
        cwd=HOME,
        env=env,
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.strip()


@needs_strace
def test_ptrace_forbidden(run: Run, tmp_path: Path) -> None:
    forbid = write_program(NO_PTRACE, tmp_path)
    sentence = run_probe(forbid)
    assert sentence.startswith("ptrace is forbidden here: ")
    assert "Operation not permitted" in sentence
    assert run("/bin/true", runner=(str(forbid),)).seen == {"refused": sentence}


@needs_strace
def test_strace_does_not_wait_for_a_reader_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no memory for a thread that would throw away what it writes."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    feed = StraceFeed.open(folder=tmp_path)
    (fifo,) = tmp_path.iterdir()
    monkeypatch.setattr(threading.Thread, "start", start)
    feed.close()
    with pytest.raises(OSError, match="No such device or address"):
        os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)


def test_no_strace(tmp_path: Path) -> None:
    assert run_probe(path=str(tmp_path)) == "strace is not installed"


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (
            "echo \"strace: unrecognized option '--quiet=attach'\" >&2; exit 1",
            "this strace is too old: strace: unrecognized option '--quiet=attach'",
        ),
        ("exit 1", "strace does not work here: it said nothing"),
        ("exit 0", "strace does not work here: it said nothing"),
        (
            'while [ "$1" != -o ]; do shift; done; echo "1 execve(nonsense) = 0" >"$2"',
            "this strace writes in a way that cannot be read",
        ),
    ],
)
def test_another_strace(tmp_path: Path, script: str, sentence: str) -> None:
    strace = tmp_path / "strace"
    strace.write_text(f"#!/bin/sh\n{script}\n")
    strace.chmod(0o755)
    assert run_probe(path=str(tmp_path)) == sentence


@needs_strace
def test_without_a_filter(tmp_path: Path) -> None:
    """A strace that cannot have one is slow, and works."""
    strace = tmp_path / "strace"
    strace.write_text(
        f"#!/bin/sh\nfor word do [ \"$word\" = --seccomp-bpf ] && echo 'strace: no seccomp' >&2; "
        f'done\nexec {shutil.which("strace")} "$@"\n'
    )
    strace.chmod(0o755)
    assert run_probe(path=f"{tmp_path}:{os.environ['PATH']}") == ""
