"""The calls of cells, from one feed: whose they are, what is around them, and what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import anyio
import pytest
from anyio import create_task_group

from stream.boundary.scripts import HELPERS
from stream.pipeline import Batch
from stream.process.capture import follow_program
from stream.process.tree import start_tree
from stream.records.control import TELEMETRY
from stream.records.kernel import RawEvent
from stream.records.modes import KernelView, SeenCall
from stream.sources.kernel import cells, loader
from stream.sources.kernel.cells import CellFeed, watch_cells
from stream.sources.kernel.ebpf import PAGE, EbpfFeed
from stream.sources.kernel.permissions import is_refused_by_mode
from stream.sources.kernel.security import domain_places
from tests.kernel.test_calls import TAKEN

NOBODY = 65534


def write_probe(folder: Path, text: str, name: str = "probe") -> str:
    path = folder / "probes" / f"{name}.sh"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return str(path)


async def run_cell(feed: CellFeed, words: Sequence[str], script: str) -> KernelView:
    trace = feed.expect(script)
    tree = start_tree(words, env=dict(os.environ), cwd="/")
    feed.begin(trace, tree.leader.pid)
    await follow_program(tree, timeout=30, stdout_limit=1000, stderr_limit=1000)
    return await feed.end(trace)


def view_of(*words: str) -> KernelView:
    async def run() -> KernelView:
        async with watch_cells() as feed:
            return await run_cell(feed, words, words[-1])

    return anyio.run(run)


def calls_on(view: KernelView, path: Path | str) -> list[SeenCall]:
    assert view.reason is None
    return [call for call in view.calls if str(path) in (call.path, call.resolved, call.to_path)]


pytestmark = pytest.mark.usefixtures("kernel_feed")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that every user can enter; pytest's own are closed."""
    with tempfile.TemporaryDirectory(prefix="stream-test-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_only_the_probe_itself_counts(tmp_path: Path) -> None:
    """Not who starts it, and not the helper that reports what it found."""
    helper = tmp_path / "bin" / "emit-record"
    helper.parent.mkdir()
    helper.write_text(f"#!/bin/sh\n: <{tmp_path}/reported\n")
    helper.chmod(0o755)
    for name in ("around", "probed", "child", "reported"):
        (tmp_path / name).touch()
    text = f": <{tmp_path}/probed; (: <{tmp_path}/child); {tmp_path}/probes/../bin/emit-record"
    script = write_probe(tmp_path, text)
    view = view_of("/bin/bash", "-c", f': <{tmp_path}/around; bash "$0"', script)
    assert calls_on(view, tmp_path / "probed")
    assert calls_on(view, tmp_path / "child")
    assert not calls_on(view, tmp_path / "around")
    assert not calls_on(view, tmp_path / "reported")


def test_cells_at_the_same_time_are_told_apart(tmp_path: Path) -> None:
    """Also where an orphan goes on after the process that it began with."""
    views: dict[int, KernelView] = {}

    async def run() -> None:
        async with watch_cells() as feed, create_task_group() as tasks:
            for number in range(6):
                tasks.start_soon(one, feed, number)

    async def one(feed: CellFeed, number: int) -> None:
        text = f"for i in 1 2 3 4 5; do (: >{tmp_path}/{number}.$i & setsid true) ; done"
        script = write_probe(tmp_path, text, f"probe{number}")
        views[number] = await run_cell(feed, [script], script)

    anyio.run(run)
    for number, view in views.items():
        assert view.reason is None
        made = {call.path for call in view.calls if call.flags & os.O_CREAT}
        assert made == {f"{tmp_path}/{number}.{i}" for i in range(1, 6)}


def test_a_probe_that_is_not_executed_here_is_not_observed(tmp_path: Path) -> None:
    script = write_probe(tmp_path, ":")
    assert view_of("/bin/bash", "-c", ":", script) == KernelView(
        reason=cells.NEVER_RAN, modules=view_of(script).modules
    )


def test_what_a_daemon_does_is_not_observed(tmp_path: Path) -> None:
    """It was there before, and is no process of the cell."""
    asked, done = tmp_path / "asked", tmp_path / "done"
    os.mkfifo(asked)
    os.mkfifo(done)
    script = write_probe(tmp_path, f": >{tmp_path}/made")
    daemon = subprocess.Popen(["/bin/sh", "-c", f'read it <{asked}; "$it"; echo >{done}'])
    ask = f'echo "$0" >{asked}; read it <{done}'
    view = view_of("/bin/sh", "-c", ask, script)
    daemon.wait()
    assert (tmp_path / "made").exists()
    assert (view.calls, view.reason) == ((), cells.NEVER_RAN)


def test_what_is_lost_makes_the_cells_of_that_time_doubtful(tmp_path: Path) -> None:
    """Those before and after are whole: nobody reads the ring meanwhile, which is too small."""
    script = write_probe(tmp_path, "for i in {1..2000}; do : </dev/null; done")
    quiet = write_probe(tmp_path, ":", "quiet")

    async def run() -> list[str | None]:
        feed = EbpfFeed.open(guard=os.getpid(), cgroup=None, ring_bytes=8 * PAGE, looks_closer=True)
        async with CellFeed(feed) as watch:
            before = await run_cell(watch, [quiet], quiet)
            during = await run_cell(watch, [script], script)
            after = await run_cell(watch, [quiet], quiet)
            return [before.reason, during.reason, after.reason]

    assert anyio.run(run) == [None, cells.LOST, None]


def event(pid: int, call: str, **more: object) -> RawEvent:
    return RawEvent(1, pid, pid, call, **more)  # type: ignore[arg-type]


async def mixed_up(watch: CellFeed) -> list[str | None]:
    first, second = watch.expect("/probes/a.sh"), watch.expect("/probes/b.sh")
    watch.begin(first, 100)
    watch.begin(second, 200)
    await watch.send(Batch(TELEMETRY, [event(100, "fork", child=200)]))
    return [first.doubt, second.doubt]


def test_a_number_that_two_cells_have_makes_both_doubtful() -> None:
    async def run() -> None:
        async with CellFeed(EbpfFeed.open(guard=os.getpid(), cgroup=None)) as watch:
            assert await mixed_up(watch) == [cells.MIXED_UP, cells.MIXED_UP]

    anyio.run(run)


def test_a_number_is_free_again_after_the_end_of_its_process() -> None:
    async def run() -> None:
        async with CellFeed(EbpfFeed.open(guard=os.getpid(), cgroup=None)) as watch:
            first, second = watch.expect("/probes/a.sh"), watch.expect("/probes/b.sh")
            watch.begin(first, 100)
            events = [event(100, "fork", child=200), event(200, "exit")]
            await watch.send(Batch(TELEMETRY, events))
            watch.begin(second, 200)
            later = [event(200, "exec", path="/probes/b.sh"), event(100, "connect", peer="a")]
            await watch.send(Batch(TELEMETRY, later))
            assert [first.doubt, second.doubt] == [None, None]
            assert [call.call for call, _ in second.calls] == ["exec"]
            assert not first.calls

    anyio.run(run)


def test_a_cell_that_makes_too_many_calls_is_doubtful(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "MOST_CALLS", 20)
    script = write_probe(tmp_path, "for i in {1..30}; do : 2>/dev/null <nothing$i; done")
    assert view_of(script).reason == cells.TOO_MANY


def test_a_feed_that_fails_leaves_cells_unobserved(tmp_path: Path) -> None:
    script = write_probe(tmp_path, ":")

    async def run() -> KernelView:
        async with CellFeed(EbpfFeed.open(guard=os.getpid(), cgroup=None)) as watch:
            watch._feed._poller.close()
            await watch.run()
            return await run_cell(watch, [script], script)

    reason = anyio.run(run).reason
    assert reason is not None
    assert reason.startswith("the kernel feed failed: ")


def test_what_is_around_a_refused_call(open_folder: Path) -> None:
    """A filter, a namespace, a Landlock domain, a user: each is seen where it is."""
    perl = "perl -e 'open F, q(>), q(/etc/x); mkdir q(/usr/x)'"
    plain, walled = write_probe(open_folder, perl), write_probe(open_folder, perl, "walled")
    user = ("setpriv", f"--reuid={NOBODY}", "--clear-groups", "--no-new-privs", "--")
    views = {
        "user": view_of(*user, plain),
        "landlock": view_of(str(HELPERS / "landlock-run"), "--", walled),
        "namespace": view_of("unshare", "--net", "--", *user, plain),
    }
    around = {name: calls_on(view, "/usr/x")[0].around for name, view in views.items()}
    refused = {name: calls_on(view, "/usr/x")[0] for name, view in views.items()}
    assert all(call.errno == "EACCES" for call in refused.values())
    user_, landlock, namespace = (around[name] for name in ("user", "landlock", "namespace"))
    assert user_ is not None
    assert landlock is not None
    assert namespace is not None
    assert (user_.user, user_.capabilities, user_.landlock) == (NOBODY, 0, False)
    assert refused["user"].is_refused_by_mode
    assert (landlock.user, landlock.landlock) == (0, True)
    assert not refused["landlock"].is_refused_by_mode
    assert namespace.network != user_.network
    assert namespace.mounts == user_.mounts
    assert not any(one.is_filtered for one in (user_, landlock, namespace))


FILTERED = """
import ctypes, os, socket, struct
libc = ctypes.CDLL(None)
# mkdir, mkdirat: EPERM; everything else goes on
code = [(0x20, 0, 0, 0), (0x15, 2, 0, 83), (0x15, 1, 0, 258), (6, 0, 0, 0x7FFF0000),
        (6, 0, 0, 0x50001)]
program = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *one) for one in code))
libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, struct.pack("<HxxxxxxQ", len(code), ctypes.addressof(program))) == 0
for path in ("/usr/filtered", "/nowhere/else"):
    try:
        os.mkdir(path)
    except OSError:
        pass
try:
    os.rmdir("/usr")
except OSError:
    pass
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of its calls are x86-64's")
@pytest.mark.parametrize("name", TAKEN)
def test_a_call_that_a_filter_refuses_is_told_from_one_that_the_kernel_refuses(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "OBJECTS", (name,))
    program = tmp_path / "filtered.py"
    program.write_text(FILTERED)
    script = write_probe(tmp_path, f"exec {sys.executable} {program}")
    view = view_of(script)
    filtered, refused = calls_on(view, "/usr/filtered")[0], calls_on(view, "/usr")[0]
    assert (filtered.call, filtered.errno) == ("mkdir", "EPERM")
    assert (refused.call, refused.errno) == ("rmdir", "ENOTEMPTY")
    assert filtered.around is not None
    assert refused.around is not None
    assert (filtered.around.is_filtered, refused.around.is_filtered) == (True, False)


def test_a_domain_is_found_in_what_stays_after_noise() -> None:
    pointer = 0xFFFF888000000000
    assert domain_places((0, 5, pointer, 0), (pointer, 5, pointer, 7)) == {0}
    assert domain_places((pointer, 0), (pointer, 0)) == set()
    assert domain_places((0, 0), (pointer, pointer)) == {0, 1}


def try_open(path: Path, flags: int) -> str | None:
    """As an ordinary user: the name of the error."""
    code = "import errno, os, sys\n"
    code += "try: os.open(sys.argv[1], int(sys.argv[2]), 0o600)\n"
    code += "except OSError as error: print(errno.errorcode[error.errno])"
    words = [shutil.which("setpriv") or "", f"--reuid={NOBODY}", f"--regid={NOBODY}"]
    done = subprocess.run(
        [*words, "--clear-groups", "/usr/bin/python3", "-c", code, path, str(flags)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip() or None


@pytest.mark.parametrize("owner", [0, NOBODY])
@pytest.mark.parametrize("mode", [0o000, 0o444, 0o222, 0o200, 0o400, 0o664, 0o606, 0o070, 0o007])
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR])
def test_what_the_mode_of_a_file_explains_is_refused(
    open_folder: Path, owner: int, mode: int, flags: int
) -> None:
    path = open_folder / f"{owner}-{mode:o}-{flags}"
    path.touch()
    os.chown(path, owner, owner)
    path.chmod(mode)
    is_explained = is_refused_by_mode(SeenCall("openat", path=str(path), flags=flags), NOBODY)
    is_refused = try_open(path, flags) == "EACCES"
    assert is_refused or not is_explained
    # Whether it is the group's or the others' bits that count, nobody asks.
    if owner == NOBODY or mode >> 3 & 7 == mode & 7:
        assert is_explained == is_refused


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o700, 0o666])
def test_what_the_mode_of_a_folder_explains_is_refused(open_folder: Path, mode: int) -> None:
    folder = open_folder / f"folder-{mode:o}"
    folder.mkdir()
    folder.chmod(mode)
    path, flags = folder / "new", os.O_WRONLY | os.O_CREAT
    is_explained = is_refused_by_mode(SeenCall("openat", path=str(path), flags=flags), NOBODY)
    assert is_explained == (try_open(path, flags) == "EACCES") == (mode != 0o777)
