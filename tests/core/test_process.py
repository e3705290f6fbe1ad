"""Real process trees that try to escape, hang, flood and end badly."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import create_task_group, fail_after

from stream.process import capture as capture_module
from stream.process import table, tree
from stream.process.capture import Captured, StreamHead, capture
from stream.process.tree import Reaper
from tests.cli.command import LANDLOCK
from tests.forking import end_forking

ON_LINUX = sys.platform == "linux"
LIMIT = 30  # seconds, for what would otherwise hang
contained = pytest.mark.skipif(not ON_LINUX, reason="containment needs Linux")

pytestmark = pytest.mark.anyio

# The first lines of every test program. `name` is what the kernel calls a process;
# `ready` in a descendant lets the leader, which waits in `wait_ready`, go on.
PRELUDE = """
import os, signal, sys
r, w = os.pipe()
def name(text):
    with open('/proc/self/comm', 'w') as file: file.write(text)
def close_all():
    os.closerange(0, 3)
def ready():
    os.write(w, b'.')
    os.close(w)
def wait_ready():
    os.close(w)
    os.read(r, 1)
def rest():
    while True: signal.pause()
"""
PYTHON = [sys.executable, "-I", "-S", "-c"]


def python_command(code: str, *args: str) -> list[str]:
    return [*PYTHON, PRELUDE + code, *args]


async def capture_command(*argv: str, timeout: float = LIMIT, **options: Any) -> Captured:
    given: dict[str, Any] = {
        "env": {"PATH": os.environ["PATH"]},
        "cwd": "/",
        "stdout_limit": 1000,
        "stderr_limit": 1000,
    }
    with fail_after(LIMIT * 2):
        return await capture(argv, timeout=timeout, **given | options)


async def run_python(code: str, *args: str, **options: Any) -> Captured:
    got = await capture_command(*python_command(code, *args), **options)
    assert not got.stderr.head, got.stderr.head.decode()
    return got


def list_descendants(pid: int) -> dict[int, str]:
    """Every descendant of a process, zombies among them: pid to state and name."""
    if not ON_LINUX:
        return {}
    found: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = entry.joinpath("stat").read_text(errors="replace")
            except OSError:
                continue
            head, _, rest = text.rpartition(")")
            words = rest.split()
            found[int(entry.name)] = int(words[1]), f"{words[0]} {head.partition('(')[2]}"
    inside = {pid}
    while True:
        more = {p for p, (parent, _) in found.items() if parent in inside} - inside
        if not more:
            return {p: found[p][1] for p in inside if p != pid}
        inside |= more


def list_descriptors() -> list[str]:
    return sorted(os.listdir("/dev/fd"), key=int)  # noqa: PTH208


@pytest.fixture(autouse=True, scope="module")
def no_other_children() -> None:
    """The interpreter that other tests fork commands from is a child of ours as well."""
    end_forking()


@pytest.fixture(autouse=True)
def leaves_nothing() -> Iterator[None]:
    """After every test: no process of it is left, no descriptor is open, no tree is known."""
    before = list_descendants(os.getpid())
    opened = list_descriptors()
    yield
    assert Reaper.get().end_strays() == []
    assert Reaper.get().trees == []
    left = {p: name for p, name in list_descendants(os.getpid()).items() if p not in before}
    assert left == {}
    assert list_descriptors() == opened


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little time to settle, where what is left behind never ends by itself."""
    monkeypatch.setattr(capture_module, "SETTLE", 0.02)


def straggler_names(got: Captured) -> list[str]:
    return sorted(entry.partition(" ")[0] for entry in got.stragglers)


# How a program ends


async def test_what_it_wrote_and_how_it_ended() -> None:
    got = await capture_command("sh", "-c", "echo out; echo err >&2; exit 7")
    assert got == Captured(
        StreamHead(1000, bytearray(b"out\n"), 4),
        StreamHead(1000, bytearray(b"err\n"), 4),
        exit_code=7,
    )


@pytest.mark.parametrize("code", [0, 1, 126, 127, 128, 255])
async def test_exit_codes(code: int) -> None:
    got = await capture_command("sh", "-c", f"exit {code}")
    assert (got.exit_code, got.signal) == (code, None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGPIPE])
async def test_signals(number: signal.Signals) -> None:
    got = await capture_command("sh", "-c", f"kill -{number.value} $$")
    assert (got.exit_code, got.signal, got.timed_out) == (None, number.name, False)


@contained
async def test_a_signal_without_a_name() -> None:
    got = await run_python("os.kill(os.getpid(), signal.SIGRTMIN + 3)")
    assert got.signal == f"SIG{signal.SIGRTMIN + 3}"


async def test_stdin_is_empty_and_the_session_is_its_own() -> None:
    got = await run_python("print(sys.stdin.read() == '', os.getsid(0) == os.getpid())")
    assert got.stdout.head == b"True True\n"


async def test_environment_and_folder_are_what_was_given(tmp_path: Path) -> None:
    got = await capture_command("sh", "-c", "pwd; env", env={"ONLY": "this"}, cwd=str(tmp_path))
    lines = set(got.stdout.head.decode().splitlines())
    assert {str(tmp_path), "ONLY=this"} <= lines
    assert not any(line.startswith(("HOME=", "PATH=/")) and "sh" in line for line in lines)


@contained
async def test_no_descriptor_is_inherited(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        got = await run_python(
            "os.close(r); os.close(w); print(sorted(map(int, os.listdir('/proc/self/fd'))))"
        )
    assert got.stdout.head == b"[0, 1, 2, 3]\n"  # the last one reads the folder


def test_sigchld_ignored_by_our_parent_falsifies_no_exit_code() -> None:
    """An ignored SIGCHLD is inherited, and makes the kernel forget how children ended."""
    script = """
import signal, sys
if len(sys.argv) == 1:
    import os
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.execv(sys.executable, [sys.executable, __file__, "again"])
import anyio
from stream.process.capture import capture
async def main():
    got = await capture(["sh", "-c", "exit 3"], env={}, cwd="/",
                        timeout=9, stdout_limit=9, stderr_limit=9)
    print(got.exit_code)
anyio.run(main)
"""
    assert run_script(script) == "3\n"


def run_script(text: str, *args: str, runs: list[str] | None = None) -> str:
    """What a program of ours prints that runs alone, outside of this process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "script.py")
        path.write_text(text)
        done = subprocess.run(
            [*(runs or []), sys.executable, str(path), *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Programs that cannot be started


def write_script(path: Path, text: str, mode: int = 0o755) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


async def test_spawn_failures(tmp_path: Path) -> None:
    opened = list_descriptors()
    missing = "no such file or directory"
    no_shebang = write_script(tmp_path / "plain", "echo hello\n")
    no_mode = write_script(tmp_path / "mode", "#!/bin/sh\n", 0o644)
    no_interpreter = write_script(tmp_path / "interpreter", "#!/nonexistent/sh\n")
    for argv, expected in (
        ("/nonexistent/program", missing),
        (no_shebang, "exec format error"),
        (no_mode, "permission denied"),
        (no_interpreter, missing),
        (str(tmp_path), "permission denied"),
        (f"{no_mode}/x", "not a directory"),
    ):
        got = await capture_command(argv)
        assert got == capture_module.not_started(expected), argv
    assert list_descriptors() == opened


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    got = await capture_command("true", cwd=gone)
    assert got.spawn_error == f"{gone}: no such file or directory"
    assert got.exit_code is None


async def test_a_missing_null_device_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a sandbox without a /dev of its own: the program is not what is refused."""
    monkeypatch.setattr(os, "devnull", str(tmp_path / "null"))
    got = await capture_command("true")
    assert got.spawn_error == f"{tmp_path}/null: no such file or directory"


@contained
def test_the_fork_limit() -> None:
    script = """
import ctypes, os, resource, anyio  # ctypes: nothing can be imported later
from stream.process.capture import capture
async def main():
    if os.geteuid() == 0:
        os.setgid(54321); os.setuid(54321)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    opened = os.listdir("/proc/self/fd")
    got = await capture(["/bin/true"], env={}, cwd="/", timeout=9, stdout_limit=9, stderr_limit=9)
    assert os.listdir("/proc/self/fd") == opened
    print(got.exit_code, got.spawn_error)
anyio.run(main)
"""
    assert run_script(script) == "None resource temporarily unavailable\n"


@contained
def test_out_of_descriptors() -> None:
    """Some cannot start, and report it; the others are contained; nothing leaks."""
    script = f"""
import os, resource, sys, anyio
from stream.process.capture import capture
from stream.process.tree import Reaper
ESCAPE = {PRELUDE!r} + '''
if os.fork() == 0:
    os.setsid()
    ready()
    rest()
wait_ready()
'''
async def one(results):
    results.append(await capture(
        [sys.executable, "-ISc", ESCAPE], env={{}}, cwd="/", timeout=20, stdout_limit=9,
        stderr_limit=999))
async def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    opened = os.listdir("/proc/self/fd")
    results = []
    async with anyio.create_task_group() as tasks:
        for _ in range(30):
            tasks.start_soon(one, results)
    assert os.listdir("/proc/self/fd") == opened
    failed = [got for got in results if got.spawn_error]
    ended = [got for got in results if not got.spawn_error]
    assert failed and ended
    assert {{got.spawn_error for got in failed}} == {{"too many open files"}}
    assert all(got.exit_code == 0 and len(got.stragglers) == 1 for got in ended), ended
    assert Reaper.get().end_strays() == []
    print("fine")
for backend in ("asyncio", "trio"):
    anyio.run(main, backend=backend)
"""
    assert run_script(script) == "fine\nfine\n"


# What a program writes


async def test_only_the_head_is_kept() -> None:
    got = await capture_command(
        "sh", "-c", "printf 12345678; printf abc >&2", stdout_limit=3, stderr_limit=0
    )
    assert (bytes(got.stdout.head), got.stdout.total) == (b"123", 8)
    assert (bytes(got.stderr.head), got.stderr.total) == (b"", 3)


async def test_the_limit_itself_is_kept() -> None:
    got = await capture_command("sh", "-c", "printf 123", stdout_limit=3)
    assert (bytes(got.stdout.head), got.stdout.total) == (b"123", 3)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_flood_on_both_is_counted_and_not_held(backend: str) -> None:
    """Outside of the runner, whose asyncio is in debug mode and four times as slow."""
    size = 1 << 30
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    flood = f"head -c {size} /dev/zero & head -c {size} /dev/zero >&2; wait"

    async def run_flood() -> Captured:
        return await capture_command("sh", "-c", flood, stdout_limit=1 << 20, stderr_limit=4096)

    got = anyio.run(run_flood, backend=backend)
    assert (got.exit_code, got.stragglers) == (0, [])
    assert (got.stdout.total, got.stderr.total) == (size, size)
    assert (len(got.stdout.head), len(got.stderr.head)) == (1 << 20, 4096)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held < 64 << 10  # in KiB


async def test_what_stands_in_the_pipe_at_the_end_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no time to settle, as a loop sees it that something else kept busy for so long."""
    monkeypatch.setattr(capture_module, "SETTLE", 0.0)
    monkeypatch.setattr(capture_module, "READ", 1000)
    monkeypatch.setattr(capture_module, "REST", 100)
    size = 60_000
    got = await run_python(f"os.write(1, b'x' * {size}); os.write(2, b'')", stdout_limit=size)
    assert (got.stdout.total, len(got.stdout.head)) == (size, size)


@pytest.mark.parametrize("steal", [1, 1 << 16])
async def test_a_program_that_reads_its_own_pipe(
    monkeypatch: pytest.MonkeyPatch, steal: int
) -> None:
    """`cat /dev/stdout` takes bytes away between our wait and our read: the thief is played
    by the wait itself, since no real one wins that race every time."""
    stolen = 0

    async def wait_readable(watched: Any) -> None:
        nonlocal stolen
        await anyio.wait_readable(watched)
        if not stolen:
            stolen = len(os.read(Reaper.get().trees[0].pipes[0], steal))

    monkeypatch.setattr(capture_module, "wait_readable", wait_readable)
    got = await capture_command(
        "sh", "-c", "printf ab; read x </dev/null; exec sleep 60", timeout=0.3
    )
    assert got.timed_out
    assert stolen
    assert got.stdout.total == 2 - stolen


# Programs that do not end


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("rest()", "SIGTERM"),
        (
            "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); rest()",
            "SIGKILL",
        ),
        ("print('on', flush=True); os.kill(os.getpid(), signal.SIGSTOP)", "SIGKILL"),
        ("os.closerange(0, 3); rest()", "SIGTERM"),
        ("while True: pass", "SIGTERM"),
    ],
    ids=["hangs", "ignores", "stopped", "silent", "busy"],
)
async def test_a_program_that_does_not_end(
    code: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_module, "KILL_AFTER", 0.1)
    got = await run_python(code, timeout=0.2)
    assert (got.timed_out, got.exit_code) == (True, None)
    assert got.signal == expected


async def test_last_output_is_captured() -> None:
    code = """
def last(*_):
    os.write(1, b'bye')
    os._exit(5)
signal.signal(signal.SIGTERM, last)
rest()
"""
    for _ in range(2):
        got = await run_python(code, timeout=0.2)
        assert (got.timed_out, got.exit_code, bytes(got.stdout.head)) == (True, 5, b"bye")


async def test_no_time_at_all() -> None:
    got = await capture_command("sleep", "60", timeout=0)
    assert (got.timed_out, got.signal) == (True, "SIGTERM")


@contained
async def test_time_is_up_for_the_whole_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_module, "KILL_AFTER", 0.1)
    code = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for depth in range(5):
    if os.fork() == 0:
        os.setsid()
        close_all()
rest()
"""
    got = await run_python(code, timeout=0.3)
    assert (got.timed_out, got.signal) == (True, "SIGKILL")


# Programs that leave others behind

KEEPS_PIPE = "name('escapee'); ready(); rest()"
OWN_SESSION = "os.setsid(); name('escapee'); close_all(); ready(); rest()"
DAEMON = """
os.setsid()
if os.fork(): os._exit(0)
name('escapee')
close_all()
ready()
rest()
"""
IGNORES = """
os.setsid()
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
name('escapee')
ready()
rest()
"""
# Nothing is left that would show where it comes from: no session, environment, pipe or parent.
NAMELESS = f"""
os.setsid()
if os.fork(): os._exit(0)
os.set_inheritable(w, True)
code = "import os, signal, sys; open('/proc/self/comm', 'w').write(sys.argv[2]);"
code += "os.closerange(0, 3); os.write(int(sys.argv[1]), b'.'); os.close(int(sys.argv[1]));"
code += "signal.pause()"
comm = sys.argv[1] if len(sys.argv) > 1 else 'escapee'
os.execve({sys.executable!r}, ['x', '-I', '-S', '-c', code, str(w), comm], {{}})
"""
STOPPED = "os.setsid(); name('escapee'); close_all(); ready(); os.kill(os.getpid(), signal.SIGSTOP)"
# The main thread is over, /proc calls the process a zombie, and yet it runs.
HEADLESS = """
import ctypes, threading
os.setsid()
name('escapee')
def go_on():
    while open(f'/proc/self/task/{os.getpid()}/stat').read().rpartition(')')[2].split()[0] != 'Z':
        pass
    close_all()
    ready()
    threading.Event().wait()
threading.Thread(target=go_on).start()
ctypes.CDLL(None).pthread_exit(None)
"""
ESCAPES = {
    "keeps-pipe": KEEPS_PIPE,
    "own-session": OWN_SESSION,
    "daemon": DAEMON,
    "ignores": IGNORES,
    "nameless": NAMELESS,
    "stopped": STOPPED,
    "headless": HEADLESS,
}


def leader_leaving(escape: str, count: int = 1) -> str:
    """A leader that ends when what it leaves behind has made itself at home."""
    child = "\n".join("    " + line for line in escape.splitlines())
    return f"for _ in range({count}):\n  if os.fork() == 0:\n{child}\nwait_ready()\n"


@pytest.mark.usefixtures("quick")
@contained
@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES.keys())
async def test_a_straggler_is_ended_and_named(escape: str) -> None:
    got = await run_python(leader_leaving(escape))
    assert (got.exit_code, got.signal, got.timed_out) == (0, None, False)
    assert straggler_names(got) == ["escapee"]


@pytest.mark.usefixtures("quick")
@contained
@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES.keys())
async def test_a_straggler_is_ended_without_pidfds_and_children_files(
    escape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_kernel_features(monkeypatch)
    got = await run_python(leader_leaving(escape))
    assert (got.exit_code, got.signal) == (0, None)
    assert straggler_names(got) == ["escapee"]


def hide_kernel_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patched, since a kernel or a seccomp filter without them is not at hand: pidfd_open is
    refused, and /proc/…/children is not there (CONFIG_PROC_CHILDREN)."""
    import builtins

    def refused(pid: int, flags: int = 0) -> int:
        raise PermissionError(1, "Operation not permitted")

    plain_open = builtins.open

    def without_children(file: Any, *args: Any, **options: Any) -> Any:
        if str(file).endswith("/children"):
            raise FileNotFoundError(2, "No such file or directory")
        return plain_open(file, *args, **options)

    monkeypatch.setattr(os, "pidfd_open", refused)
    monkeypatch.setattr(builtins, "open", without_children)


@contained
async def test_timeouts_without_pidfds(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_kernel_features(monkeypatch)
    monkeypatch.setattr(capture_module, "KILL_AFTER", 0.1)
    got = await capture_command("sleep", "60", timeout=0.2)
    assert (got.timed_out, got.signal) == (True, "SIGTERM")
    got = await capture_command("sh", "-c", "trap '' TERM; while :; do :; done", timeout=0.2)
    assert (got.timed_out, got.signal) == (True, "SIGKILL")


async def test_many_without_pidfds(monkeypatch: pytest.MonkeyPatch) -> None:
    """More at once than anyio has threads: none waits for another one's end."""
    if ON_LINUX:
        hide_kernel_features(monkeypatch)
    results: list[Captured] = []

    async def one(fifo: str) -> None:
        results.append(await capture_command("sh", "-c", f"read x < {fifo}"))

    with tempfile.TemporaryDirectory() as folder:
        fifo = str(Path(folder, "fifo"))
        os.mkfifo(fifo)
        hold = os.open(fifo, os.O_RDWR)
        try:
            async with create_task_group() as tasks:
                for _ in range(45):
                    tasks.start_soon(one, fifo)
                await anyio.to_thread.run_sync(lambda: None)  # a thread is to be had
                os.write(hold, b"\n" * 45)
        finally:
            os.close(hold)
    assert [got.exit_code for got in results] == [0] * 45


@pytest.mark.usefixtures("quick")
async def test_a_pipe_held_in_the_background_holds_nobody_up() -> None:
    started = time.monotonic()
    got = await capture_command("sh", "-c", "sleep 60 & echo done")
    assert time.monotonic() - started < 20
    assert got.exit_code == 0
    assert got.stdout.head == b"done\n"
    assert len(got.stragglers) == 1


@pytest.mark.usefixtures("quick")
@contained
async def test_several_stragglers_are_all_named() -> None:
    code = """
for n in range(3):
    if os.fork() == 0:
        name(f'escapee{n}')
        if n == 0 and os.fork() == 0:
            os.setsid()
            name('grandchild')
        close_all()
        os.write(w, b'.')
        rest()
for n in range(4): os.read(r, 1)
"""
    got = await run_python(code)
    assert straggler_names(got) == ["escapee0", "escapee1", "escapee2", "grandchild"]


@contained
async def test_who_ends_in_time_is_no_straggler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_module, "SETTLE", LIMIT)
    # It ends when the leader has: its reading end closes then.
    code = """
out, inp = os.pipe()
if os.fork() == 0:
    os.close(inp)
    os.read(out, 1)
    print('last', flush=True)
    os._exit(0)
"""
    got = await run_python(code)
    assert (got.exit_code, got.stragglers) == (0, [])
    assert got.stdout.head == b"last\n"


@contained
async def test_a_zombie_is_no_straggler() -> None:
    # The leader never waits for it; then the zombie comes to us.
    code = "child = os.fork() or os._exit(0); os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)"
    got = await run_python(code)
    assert (got.exit_code, got.stragglers) == (0, [])


CHAIN = """
how = sys.argv[1]
if os.fork(): os._exit(0)
if 'closed' in how: close_all()
for generation in range(1_000_000):
    if os.fork(): os._exit(0)
    if 'session' in how: os.setsid()
    if 'group' in how: os.setpgid(0, 0)
"""


@pytest.mark.usefixtures("quick")
@contained
@pytest.mark.parametrize("how", ["open", "closed", "group", "session", "session-closed"])
async def test_a_chain_of_processes_that_fork_and_end(how: str) -> None:
    """Each is over as soon as its child has started: who looks once sees only zombies."""
    got = await run_python(CHAIN, how)
    assert (got.exit_code, got.signal) == (0, None)
    assert got.stragglers


@pytest.mark.usefixtures("quick")
@contained
async def test_a_chain_and_a_stray() -> None:
    """That somebody else's orphan is in sight does not hide ours."""
    async with create_task_group() as tasks:
        tasks.start_soon(capture_command, "sleep", "60")
        await run_python(leader_leaving(NAMELESS), "stray")
        got = await run_python(CHAIN, "session-closed")
        assert got.stragglers
        tasks.cancel_scope.cancel()
    assert len(Reaper.get().end_strays()) == 1


@contained
async def test_a_chain_that_time_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_module, "KILL_AFTER", 0.1)
    code = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork(): rest()
os.setsid()
for generation in range(1_000_000):
    if os.fork(): os._exit(0)
"""
    got = await run_python(code, timeout=0.2)
    assert (got.timed_out, got.signal) == (True, "SIGKILL")


@pytest.mark.usefixtures("quick")
@contained
async def test_many_processes() -> None:
    code = """
if os.fork(): os._exit(0)
for depth in range(7):
    os.fork()
    os.setpgid(0, 0)
rest()
"""
    got = await run_python(code)
    assert got.stragglers
    assert got.exit_code == 0


@contained
async def test_a_zombie_that_its_tracer_holds_does_not_hold_us(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Our child, dead, and not ours to reap as long as the tracer lives and looks away."""
    monkeypatch.setattr(capture_module, "SETTLE", 0.1)
    code = """
import ctypes
traced = os.fork()
if traced == 0:
    os.setsid()
    rest()
if os.fork() == 0:
    name('tracer')
    os.setsid()
    if ctypes.CDLL(None).ptrace(0x4206, traced, None, None): name('refused')  # PTRACE_SEIZE
    os.kill(traced, signal.SIGKILL)
    os.waitid(os.P_PID, traced, os.WEXITED | os.WNOWAIT)
    close_all()
    ready()
    rest()
wait_ready()
"""
    got = await run_python(code)
    if straggler_names(got) == ["refused"]:
        pytest.skip("needs ptrace")
    assert straggler_names(got) == ["tracer"]


@contained
@pytest.mark.usefixtures("needs_root")
def test_a_process_of_another_user_holds_nobody_up() -> None:
    """A setuid program cannot be ended by the user who started it: it is named as a stray."""
    script = """
import ctypes, os, sys, anyio
from stream.process import tree
from stream.process.capture import capture
from stream.process.tree import Reaper
tree.GIVE_UP = 0.1
async def main():
    os.setgid(54321); os.setuid(54321)
    got = await capture(["/bin/sh", "-c", '"$0" -p -c "exec setpriv --reuid 0 sleep 1000" & '
        'while ! grep -q "^Uid:.0.0.0" /proc/$!/status; do :; done', sys.argv[1]],
        env={"PATH": os.environ["PATH"]}, cwd="/", timeout=9, stdout_limit=9, stderr_limit=9)
    print(got.exit_code, *[name.split()[0] for name in got.stragglers])
    strays = Reaper.get().end_strays()
    print(*[name.split()[0] for name in strays])
    with open("/proc/self/task/%d/children" % os.getpid()) as file:
        assert file.read().strip() in strays[0]
anyio.run(main)
"""
    shared = Path(tempfile.mkdtemp(prefix="stream-test-"))  # tmp_path is for its owner only
    try:
        shared.chmod(0o755)
        shell = shared / "bash"
        shell.write_bytes(Path("/bin/bash").read_bytes())
        shell.chmod(0o4755)
        assert run_script(script, str(shell)) == "0 sleep\nsleep\n"
    finally:
        Reaper.get().end_strays()  # by us, who may end it
        shutil.rmtree(shared)


# Several trees at once


@pytest.mark.usefixtures("quick")
@contained
async def test_stragglers_are_named_by_their_own_tree() -> None:
    results: dict[int, Captured] = {}

    async def one(number: int) -> None:
        escape = (KEEPS_PIPE, OWN_SESSION, DAEMON, IGNORES)[number % 4]
        mine = escape.replace("escapee", f"escapee{number}")
        results[number] = await run_python(leader_leaving(mine))

    async with create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(one, number)
    for number, got in results.items():
        assert got.exit_code == 0
        assert straggler_names(got) == [f"escapee{number}"]


@pytest.mark.usefixtures("quick")
@contained
async def test_an_escapee_without_a_name_keeps_its_pipe() -> None:
    """No session, environment or parent shows whose it is; the pipe that it holds does."""
    escape = NAMELESS.replace("os.closerange(0, 3);", "")
    async with create_task_group() as tasks:
        tasks.start_soon(capture_command, "sleep", "60")
        results = [await run_python(leader_leaving(escape)), await capture_command("true")]
        tasks.cancel_scope.cancel()
    assert [straggler_names(got) for got in results] == [["escapee"], []]


@contained
async def test_what_no_tree_is_known_for_is_a_stray() -> None:
    async with create_task_group() as tasks:
        tasks.start_soon(capture_command, "sleep", "60")  # so that none of the others is alone
        for number in range(3):
            got = await run_python(leader_leaving(NAMELESS), f"stray{number}")
            assert (got.exit_code, got.stragglers) == (0, [])
        tasks.cancel_scope.cancel()
    strays = Reaper.get().end_strays()
    assert sorted(stray.partition(" ")[0] for stray in strays) == ["stray0", "stray1", "stray2"]
    assert list_descendants(os.getpid()) == {}


@contained
async def test_the_children_of_a_stray_are_strays() -> None:
    forks = "[os.fork() for _ in range(3)]; os.write("  # eight of them, each writes a byte
    code = leader_leaving(NAMELESS.replace("os.write(", forks))
    code = code.replace("wait_ready()", "os.close(w)\nfor _ in range(8): os.read(r, 1)")
    async with create_task_group() as tasks:
        tasks.start_soon(capture_command, "sleep", "60")
        got = await run_python(code, "stray")
        assert (got.exit_code, got.stragglers) == (0, [])
        tasks.cancel_scope.cancel()
    assert [stray.partition(" ")[0] for stray in Reaper.get().end_strays()] == ["stray"] * 8
    assert list_descendants(os.getpid()) == {}


@contained
async def test_a_stray_is_not_blamed_on_the_next_tree() -> None:
    """A stray that forks later makes orphans that are younger than the next leader."""
    code = NAMELESS.replace(
        "signal.pause()",
        # when signalled, it ends, and its child goes on
        "open(sys.argv[3]).read(); os._exit(0) if os.fork() else signal.pause()",
    ).replace("str(w), comm]", "str(w), comm, sys.argv[2]]")
    with tempfile.TemporaryDirectory() as folder:
        fifo = str(Path(folder, "fifo"))
        os.mkfifo(fifo)
        async with create_task_group() as tasks:
            tasks.start_soon(capture_command, "sleep", "60")
            await run_python(leader_leaving(code), "stray", fifo)
            tasks.cancel_scope.cancel()
        (stray,) = [
            p for p, name in list_descendants(os.getpid()).items() if name.endswith("stray")
        ]
        # The innocent one opens the fifo, and waits until the stray is gone.
        innocent = f"open({fifo!r}, 'w').close()\nwhile os.path.exists('/proc/{stray}/exe'): pass"
        got = await run_python(innocent)
    assert (got.exit_code, got.stragglers) == (0, [])
    assert len(Reaper.get().end_strays()) == 1


def start_unrelated(argv: list[str]) -> subprocess.Popen[bytes]:
    """As somebody else would, who knows nothing of us."""
    return subprocess.Popen(argv, stdout=subprocess.PIPE)


def make_zombie(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


def status_of(child: subprocess.Popen[bytes]) -> int:
    assert child.stdout is not None
    child.stdout.close()
    return child.wait()


@pytest.mark.usefixtures("quick")
@contained
async def test_who_was_there_before_us_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "os.close(r); os.setsid() if len(sys.argv) > 1 else 0; print(flush=True); rest()"
    before = [start_unrelated(python_command(code, *args)) for args in ((), ("session",))]
    try:
        for child in before:
            assert child.stdout is not None
            child.stdout.read(1)
        monkeypatch.setattr(Reaper, "_instance", None)
        got = await run_python(leader_leaving(DAEMON))
        assert straggler_names(got) == ["escapee"]
        assert Reaper.get().end_strays() == []
        assert [child.poll() for child in before] == [None, None]
    finally:
        for child in before:
            child.kill()
    # nobody else has taken their exit status
    Reaper.get().end_strays()
    assert [status_of(child) for child in before] == [-signal.SIGKILL] * 2


@pytest.mark.usefixtures("quick")
@contained
async def test_what_others_start_in_our_session_is_left_alone() -> None:
    """A process of a tree is never in our session, so who is there belongs to someone else."""
    child = start_unrelated(["sleep", "60"])
    try:
        got = await run_python(leader_leaving(KEEPS_PIPE))
        assert straggler_names(got) == ["escapee"]
        assert child.poll() is None
    finally:
        make_zombie(child)
    assert (await capture_command("true")).stragglers == []
    assert status_of(child) == -signal.SIGKILL


@contained
def test_a_reused_number_is_not_taken_for_the_leader(tmp_path: Path) -> None:
    """In a pid namespace with few numbers, an escapee gets the number of its dead leader."""
    script = f"""
import os, sys, anyio
from stream.process import capture as capture_module
from stream.process.capture import capture
from stream.process.tree import Reaper
LEADER = {PRELUDE!r} + '''
# the child waits until the number of the leader is free, and then forks until it has it
number = os.getpid()
if os.fork() == 0:
    os.setsid()
    close_all()
    while os.path.exists(f'/proc/{{number}}'): pass
    parent = os.getpid()
    for _ in range(100000):
        open('/proc/sys/kernel/ns_last_pid', 'w').write(str(number - 1))
        child = os.fork()
        if child == 0:
            if os.getpid() == number:
                while os.getppid() == parent: pass  # or there would be two that are left
                name('reborn')
                os.write(os.open(sys.argv[1], os.O_WRONLY), b'.')
                rest()
            os._exit(0)
        if child == number: os._exit(0)
        os.waitpid(child, 0)
    os._exit(0)
'''
fifo = sys.argv[1] + '/fifo'
os.mkfifo(fifo)
reborn = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
capture_module.SETTLE = 0
plain = capture_module._end_rest_of_tree
async def settle(watch):
    await anyio.wait_readable(reborn)
    return await plain(watch)
capture_module._end_rest_of_tree = settle
async def main():
    got = await capture([sys.executable, "-ISc", LEADER, fifo], env={{}}, cwd="/", timeout=20,
                        stdout_limit=99, stderr_limit=999)
    print(got.exit_code, [entry.split()[0] for entry in got.stragglers], got.stderr.head.decode())
    print(Reaper.get().end_strays())
anyio.run(main)
"""
    alone = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    probe = subprocess.run(
        [*alone, "sh", "-c", "echo 300 > /proc/sys/kernel/ns_last_pid"],
        capture_output=True,
        text=True,
        check=False,
    )
    if probe.returncode:
        pytest.skip(f"needs a pid namespace: {probe.stderr.strip()}")
    assert run_script(script, str(tmp_path), runs=alone) == "0 ['reborn'] \n[]\n"


# Cancellation


@contained
@pytest.mark.parametrize("escape", ["rest()", *ESCAPES.values()], ids=["none", *ESCAPES])
async def test_cancellation_leaves_nothing(escape: str, tmp_path: Path) -> None:
    """In the middle: the escapees are there, the leader still runs."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    hold = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    code = leader_leaving(escape).replace(
        "wait_ready()", "os.close(w)\nos.read(r, 1)" if escape != "rest()" else ""
    )
    code += f"\nos.write(os.open({str(fifo)!r}, os.O_WRONLY), b'.')\nrest()\n"
    opened = list_descriptors()
    try:
        async with create_task_group() as tasks:
            tasks.start_soon(capture_command, *python_command(code))
            await anyio.wait_readable(hold)
            tasks.cancel_scope.cancel()
        assert list_descendants(os.getpid()) == {}
        assert list_descriptors() == opened
    finally:
        os.close(hold)


@contained
async def test_cancellation_after_the_leader_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_module, "SETTLE", LIMIT)
    settling = anyio.Event()
    plain = capture_module._end_rest_of_tree

    async def settle(watch: Any) -> list[str]:
        settling.set()
        return await plain(watch)

    monkeypatch.setattr(capture_module, "_end_rest_of_tree", settle)
    async with create_task_group() as tasks:
        tasks.start_soon(capture_command, *python_command(leader_leaving(IGNORES)))
        await settling.wait()
        tasks.cancel_scope.cancel()
    assert list_descendants(os.getpid()) == {}


async def test_cancellation_before_the_first_wait() -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await capture_command("sleep", "60")
    assert scope.cancelled_caught
    assert list_descendants(os.getpid()) == {}


async def test_cancellation_of_many() -> None:
    opened = list_descriptors()
    async with create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(capture_command, "sh", "-c", "sleep 60 & sleep 60")
        await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert list_descendants(os.getpid()) == {}
    assert list_descriptors() == opened


@contained
async def test_a_leader_that_is_traced() -> None:
    """It has ended, but cannot be reaped before its tracer lets go: nobody waits for that."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    tracing = """
import ctypes
leader = os.getpid()
if os.fork() == 0:
    seize = ctypes.CDLL(None).ptrace(0x4206, leader, 0, 0)
    signal.alarm(30)  # who waits for the tracer is found out then
    ready()
    rest()
wait_ready()
os._exit(0)
"""
    got = await run_python(tracing, timeout=0.5)
    assert got.timed_out


@contained
@pytest.mark.parametrize("unreadable", [{"environ": 1}, {"environ": 2, "cmdline": 1}])
async def test_an_escapee_in_the_middle_of_an_exec(
    unreadable: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a short time there is neither environment nor command line: simulated here."""
    monkeypatch.setattr(capture_module, "SETTLE", 0.3)
    plain = table.read_process_file

    def read_file(pid: int, name: str) -> bytes:
        if unreadable.get(name, 0) > 0:
            unreadable[name] -= 1
            return b""
        return plain(pid, name)

    monkeypatch.setattr(tree, "read_process_file", read_file)
    monkeypatch.setattr(Reaper.get(), "is_idle", lambda: False)  # else it could be no other's
    got = await run_python(leader_leaving(DAEMON))
    assert straggler_names(got) == ["escapee"]


@contained
async def test_orphans_without_end() -> None:
    """They end faster than they can be counted; a limit holds all the same."""
    started = time.monotonic()
    got = await capture_command("sh", "-c", "while :; do ( : & ); done", timeout=0.5)
    assert got.timed_out
    assert time.monotonic() - started < 10


def test_unwatched_trees_end_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ignore SIGTERM, it takes the patience of one."""
    monkeypatch.setattr(tree, "KILL_AFTER", 0.5)
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN); os.write(1, b'.'); rest()"
    trees = [tree.start_tree(python_command(code), env={}, cwd="/") for _ in range(10)]
    for one in trees:
        os.set_blocking(one.pipes[0], True)
        assert os.read(one.pipes[0], 1) == b"."
    started = time.monotonic()
    Reaper.get().end_all_trees(trees)
    assert 0.5 <= time.monotonic() - started < 3
    assert [one.leader.returncode for one in trees] == [-signal.SIGKILL] * 10


async def test_time_counts_from_the_start() -> None:
    one = tree.start_tree(["sleep", "60"], env={"PATH": os.environ["PATH"]}, cwd="/")
    one._began -= 60
    got = await capture_module.follow_program(one, timeout=59, stdout_limit=9, stderr_limit=9)
    assert got.timed_out
    one = tree.start_tree(["true"], env={"PATH": os.environ["PATH"]}, cwd="/")
    one.leader.wait()
    one._began -= 60
    got = await capture_module.follow_program(one, timeout=59, stdout_limit=9, stderr_limit=9)
    assert (got.timed_out, got.exit_code) == (False, 0)


@contained
def test_a_proc_of_another_pid_namespace_is_not_believed() -> None:
    script = "from stream.process.tree import Reaper; print(Reaper.get().can_contain)"
    alone = ["unshare", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("needs a pid namespace")
    assert run_script(script, runs=alone) == "False\n"


# Where containment is not to be had


@pytest.fixture
def groups_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on macOS: orphans go to init, and the process group is all that there is."""
    blind = Reaper()
    blind.is_subreaper = blind.can_contain = False
    monkeypatch.setattr(Reaper, "_instance", blind)
    monkeypatch.setattr(tree, "ON_LINUX", False)
    monkeypatch.setattr(tree, "GIVE_UP", 0.2)  # init may be slow to reap, and zombies count
    if ON_LINUX:
        ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)
    yield
    if ON_LINUX:
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


@pytest.mark.usefixtures("groups_only")
@pytest.mark.parametrize("escape", [KEEPS_PIPE, "close_all(); ready(); rest()"])
async def test_a_group_is_ended(escape: str) -> None:
    got = await run_python(leader_leaving(escape.replace("name('escapee');", "")))
    assert (got.exit_code, got.timed_out) == (0, False)
    assert len(got.stragglers) == 1
    assert got.stragglers[0].startswith("process group ")
    assert not any(state[0] != "Z" for state in list_descendants(os.getpid()).values())


@pytest.mark.usefixtures("groups_only")
async def test_a_group_that_ends_in_time_is_no_straggler() -> None:
    got = await capture_command("sh", "-c", "echo fine")
    assert (got.exit_code, got.stragglers) == (0, [])


@pytest.mark.usefixtures("groups_only")
async def test_time_is_up_for_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_module, "KILL_AFTER", 0.1)
    got = await capture_command(
        "sh", "-c", "trap '' TERM; sleep 60 & while :; do :; done", timeout=0.2
    )
    assert (got.timed_out, got.signal) == (True, "SIGKILL")
    assert not any(state[0] != "Z" for state in list_descendants(os.getpid()).values())


def test_it_is_imported_where_there_is_no_pidfd() -> None:
    script = """
import os, signal, sys
sys.platform = "darwin"
del os.pidfd_open, signal.pidfd_send_signal
import anyio
from stream.process.capture import capture
from stream.process.tree import Reaper
async def main():
    got = await capture(["sh", "-c", "exit 3"], env={}, cwd="/",
                        timeout=9, stdout_limit=9, stderr_limit=9)
    print(got.exit_code, got.stragglers, Reaper.get().can_contain)
anyio.run(main)
"""
    assert run_script(script) == "3 [] False\n"


def test_without_proc_it_does_not_claim_to_contain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chroot without /proc: the reaper would be blind, so it falls back to the group."""
    monkeypatch.setattr(tree, "proc_shows_us", lambda: False)
    assert not Reaper().can_contain


#: runs a command as one that adopts the orphans of what it runs, and never asks how they end
NEVER_REAPS = """
import ctypes, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
sys.exit(subprocess.run(sys.argv[1:]).returncode)
"""


@contained
def test_a_zombie_is_no_straggler_where_nobody_can_be_seen() -> None:
    """Without /proc there is the process group alone, and zombies count in it: the first process of
    a container, whose orphans they would be, may never ask how they ended."""
    leader = """
import os, signal, sys
end, held = os.pipe()
left, leaving = os.pipe()
if os.fork() == 0:
    os.closerange(0, 3)
    os.close(held)
    if sys.argv[1] == 'escapes':
        os.setsid()
    os.close(leaving)
    if sys.argv[1] == 'stays':
        signal.pause()
    os.read(end, 1)
    os._exit(0)
os.close(leaving)
os.read(left, 1)
"""
    script = """
import os, sys
from contextlib import suppress
import anyio
from stream.process import capture as capture_module
from stream.process.capture import capture
from stream.process.table import proc_shows_us

async def main():
    assert not proc_shows_us()
    for how, capture_module.SETTLE in ("escapes", 10), ("ends", 10), ("stays", 0.05):
        got = await capture([sys.executable, "-I", "-S", "-c", sys.argv[1], how], env={}, cwd="/",
                            timeout=20, stdout_limit=9, stderr_limit=999)
        print(got.exit_code, got.stderr.head, [name.rpartition(" ")[0] for name in got.stragglers])
        if how == "escapes":
            with suppress(ChildProcessError):  # until it has ended
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    try:
        print(os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT))
    except ChildProcessError:
        print("no child")

anyio.run(main)
"""
    runs = [*PYTHON, NEVER_REAPS, *LANDLOCK, "--hide", "/proc", "--"]
    started = time.monotonic()
    assert run_script(script, leader, runs=runs).splitlines() == [
        "0 bytearray(b'') []",
        "0 bytearray(b'') []",
        "0 bytearray(b'') ['process group']",
        "no child",
    ]
    assert time.monotonic() - started < 10


@contained
def test_a_process_is_stopped_when_one_of_its_threads_is(tmp_path: Path) -> None:
    """Its first thread starts a program, and is not stopped before that has opened its files."""
    os.mkfifo(tmp_path / "fifo")
    code = """
import threading
signal.signal(signal.SIGUSR1, lambda *_: None)
def rest():
    print(threading.get_native_id(), flush=True)
    os.read(0, 1)
other = threading.Thread(target=rest)
other.start()
os.posix_spawn("/bin/sh", ["sh", "-c", ":"], {}, file_actions=[
    (os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])
other.join()
os.wait()
"""
    words = python_command(code, str(tmp_path / "fifo"))

    def state_of(thread: int) -> bytes:
        return table.read_process_file(started.pid, f"task/{thread}/stat").rpartition(b") ")[2][:1]

    def wait_until(thread: int, state: bytes) -> None:
        deadline = time.monotonic() + LIMIT
        while state_of(thread) != state:
            assert time.monotonic() < deadline

    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdin
        assert started.stdout
        try:
            other = int(started.stdout.readline())
            while not table.read_process_file(started.pid, f"task/{started.pid}/children"):
                assert started.poll() is None
            wait_until(started.pid, b"D")
            assert not table.is_stopped(started.pid)
            started.send_signal(signal.SIGSTOP)
            assert table.is_stopped(started.pid)
            started.send_signal(signal.SIGUSR1)  # which the first thread does not take now
            wait_until(other, b"T")
            assert state_of(started.pid) == b"D"
            assert table.is_stopped(started.pid)
            started.send_signal(signal.SIGCONT)
            (tmp_path / "fifo").write_bytes(b"")
            assert not table.is_stopped(started.pid)
            started.stdin.close()
        finally:
            started.send_signal(signal.SIGCONT)
            if sys.exc_info()[0]:
                started.kill()
    assert started.returncode == 0
