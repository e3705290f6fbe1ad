"""The object: built from its source, gone when it is closed, or refused in a sentence."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from stream.errors import FeedError
from stream.sources.kernel import decode, loader
from stream.sources.kernel.bpf import build
from stream.sources.kernel.calls import WatchedFile
from stream.sources.kernel.ebpf import PAGE, EbpfFeed, probe_ebpf
from stream.sources.kernel.strace import probe_strace
from tests.kernel.rig import ROOT, run_program

CALLS = (build.HERE / "calls.h").read_text()
BLOBS = [build.blob_name(machine, name) for machine in build.MACHINES for name in build.OBJECTS]


def read_header(blob: Path) -> dict[str, object]:
    raw = blob.read_bytes()
    head: dict[str, object] = json.loads(raw[4 : 4 + int.from_bytes(raw[:4], "little")])
    return head


def test_the_blobs_are_what_the_source_gives(tmp_path: Path) -> None:
    for tool in ("clang", "llvm-strip", "bpftool"):
        if subprocess.run(["sh", "-c", f"command -v {tool}"], capture_output=True).returncode:
            pytest.skip(f"needs {tool}")
    made = build.build_bpf_objects(tmp_path)
    assert sorted(blob.name for blob in made) == sorted(BLOBS)
    ours = {read_header(build.HERE / name)["built_with"] for name in BLOBS}
    if ours != {build.build_tool_versions()}:
        # Another compiler gives other bytes: then only the parts can be compared.
        for blob in made:
            mine, here = read_header(blob), read_header(build.HERE / blob.name)
            assert (mine["maps"], mine["programs"]) == (here["maps"], here["programs"])
        return
    for blob in made:
        assert blob.read_bytes() == (build.HERE / blob.name).read_bytes(), blob.name


@pytest.mark.parametrize("name", BLOBS)
def test_a_blob_names_no_folder_of_whoever_built_it(name: str) -> None:
    data = (build.HERE / name).read_bytes()
    for word in (b"/tmp/", b"/home/", b"/root/", os.fsencode(ROOT)):
        assert word not in data


def test_both_sides_number_the_calls_alike() -> None:
    enum = re.search(r"enum call \{(.*?)\};", CALLS, re.DOTALL)
    assert enum
    names = re.findall(r"\b[A-Z][A-Z0-9_]+\b", re.sub(r"//.*", "", enum[1]))
    assert names[0] == "NO_CALL"
    assert tuple(name.lower() for name in names[1 : len(decode.CALLS)]) == decode.CALLS[1:]


def read_own_descriptors() -> dict[int, str]:
    """What each descriptor of this process is."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one by which they are listed
            found[int(entry.name)] = str(entry.readlink())
    return found


@pytest.mark.usefixtures("kernel_feed")
def test_closing_leaves_nothing_behind(calls: Path, place: Path) -> None:
    before = read_own_descriptors()
    feed = EbpfFeed.open(guard=os.getpid(), cgroup=None)
    opened = set(read_own_descriptors().values()) - set(before.values())
    assert {"anon_inode:bpf-map", "anon_inode:bpf-prog", "anon_inode:bpf_link"} <= opened
    feed.end()
    feed.close()
    feed.close()
    assert read_own_descriptors() == before
    run_program(place, calls, "nothing")
    assert read_own_descriptors() == before


@pytest.mark.usefixtures("kernel_feed")
def test_nobody_else_changes_its_maps() -> None:
    """Nor do we: what is in them is the programs' own."""
    feed = EbpfFeed.open(guard=os.getpid(), cgroup=None, ring_bytes=PAGE)
    try:
        maps = feed._loaded.maps
        for name in maps.keys() - {"ring"}:
            with pytest.raises(PermissionError):
                loader._write_map(maps[name], b"\0" * 65536)
    finally:
        feed.close()


@pytest.mark.usefixtures("kernel_feed")
def test_programs_are_gone_once_it_is_closed() -> None:
    """By number: others may have programs of the same names."""
    feed = EbpfFeed.open(guard=os.getpid(), cgroup=None, ring_bytes=PAGE)
    numbers = []
    for fd, what in read_own_descriptors().items():
        if what == "anon_inode:bpf-prog":
            found = re.search(r"prog_id:\s*(\d+)", Path(f"/proc/self/fdinfo/{fd}").read_text())
            assert found
            numbers.append(int(found[1]))
    assert len(numbers) >= 4
    assert all(is_loaded(number) for number in numbers)
    feed.close()
    deadline = time.monotonic() + 10
    while any(is_loaded(number) for number in numbers):  # freed when the kernel gets to it
        assert time.monotonic() < deadline
        os.sched_yield()


def is_loaded(program: int) -> bool:
    try:
        os.close(loader._bpf(13, struct.pack("<I", program)))  # BPF_PROG_GET_FD_BY_ID
    except FileNotFoundError:
        return False
    return True


def test_without_privilege_it_names_what_it_takes() -> None:
    code = "import os; os.geteuid() or os.setuid(65534)\n"
    code += "from stream.sources.kernel.ebpf import probe_ebpf; print(probe_ebpf())"
    imports = "import stream.sources.kernel.ebpf, stream.sources.kernel.loader\n"
    done = subprocess.run(
        [sys.executable, "-c", imports + code], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stderr == ""
    assert done.stdout == (
        "the kernel feed: not permitted: it takes root, or CAP_BPF and CAP_PERFMON\n"
    )


def test_a_kernel_that_does_not_describe_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_BTF", Path("/sys/kernel/btf/none"))
    assert probe_ebpf() == (
        "/sys/kernel/btf/none: missing: this kernel does not describe itself (BTF)"
    )


def test_a_machine_that_there_is_no_object_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert probe_ebpf() == "the kernel feed: there is none for riscv64"


def test_a_blob_that_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(loader, "_BLOBS", tmp_path)
    assert re.fullmatch(rf"{tmp_path}/stream.*\.lskel: this file .* is missing", probe_ebpf())


@pytest.mark.usefixtures("kernel_feed")
def test_what_is_no_control_group(tmp_path: Path) -> None:
    before = read_own_descriptors()
    for path, reason in (
        (tmp_path, "not a control group of version 2"),
        (tmp_path / "none", "no such file or directory"),
    ):
        with pytest.raises(FeedError) as caught:
            EbpfFeed.open(guard=1, cgroup=path)
        assert str(caught.value) == f"{path}: {reason}"
    assert read_own_descriptors() == before


@pytest.mark.usefixtures("kernel_feed")
def test_a_kernel_that_refuses_an_object_gets_the_next_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert sorted(loader.OBJECTS) == sorted(build.OBJECTS)
    machine = os.uname().machine
    blobs = {name: tmp_path / build.blob_name(machine, name) for name in loader.OBJECTS}
    for blob in blobs.values():
        blob.symlink_to(build.HERE / blob.name)
    monkeypatch.setattr(loader, "_BLOBS", tmp_path)
    taken = [name for name in loader.OBJECTS if is_chosen(name)]
    assert taken
    for name in taken:
        assert load_object() == name
        broken = blobs[name].read_bytes()
        blobs[name].unlink()
        blobs[name].write_bytes(broken[:-64] + b"\xff" * 64)
    assert re.fullmatch(r"the kernel feed: kernel \S+ refuses it: .+", probe_ebpf())


def is_chosen(name: str) -> bool:
    with pytest.MonkeyPatch.context() as patch, suppress(FeedError):
        patch.setattr(loader, "OBJECTS", (name,))
        return load_object() == name
    return False


def load_object() -> str:
    attachment = loader.attach_feed_programs(os.getpid(), None, (), PAGE, 100)
    attachment.loaded.close()
    assert attachment.sees_uring == (attachment.name != "stream")
    return attachment.name


PROBE = """
import signal
from stream.sources.kernel.ebpf import probe_ebpf
alarms = []
signal.signal(signal.SIGALRM, lambda *_: alarms.append(1))
signal.setitimer(signal.ITIMER_REAL, {0}, {0})
refusal = probe_ebpf()
before = len(alarms)
while {0} and len(alarms) == before:
    pass  # they come again
signal.setitimer(signal.ITIMER_REAL, 0)
print(refusal or "loaded")
"""


def run_probe(*before: str, alarms: float = 0) -> str:
    """By a program of its own, that gets an alarm every so many seconds."""
    command = [*before, sys.executable, "-c", PROBE.format(alarms)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, check=True, timeout=180
    )
    return done.stdout.rstrip("\n")


@pytest.mark.usefixtures("kernel_feed")
def test_signals_without_end_do_not_keep_it_from_being_loaded() -> None:
    assert run_probe(alarms=1e-4) == "loaded"


INJECTED = [
    *("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=bpf", "-e", "signal=none"),
    *("-e", "inject=bpf:error={}:when={}"),
]


@pytest.mark.usefixtures("kernel_feed")
@pytest.mark.skipif(bool(probe_strace()), reason=f"strace: {probe_strace()}")
@pytest.mark.parametrize("error", ["EAGAIN", "EINTR"])
def test_a_kernel_that_was_disturbed_is_asked_again(error: str) -> None:
    """In whichever call of the first attempts; but not for ever, and not where it means no."""

    def probe_with_errors(error: str, when: str) -> str:
        return run_probe(*(word.format(error, when) for word in INJECTED))

    assert probe_with_errors(error, "1..9") == probe_with_errors(error, "4..9") == "loaded"
    assert re.fullmatch(
        r"the kernel feed: kernel \S+ refuses it: .+", probe_with_errors(error, "1+")
    )
    assert probe_with_errors("EPERM", f"1..{len(loader.OBJECTS)}").startswith(
        "the kernel feed: not permitted: "
    )


def test_no_more_watches_than_there_is_room_for() -> None:
    watch = [WatchedFile(str(n), 0, n) for n in range(loader.WATCHES + 1)]
    with pytest.raises(AssertionError):
        EbpfFeed.open(guard=1, cgroup=None, watch=watch)


def test_an_end_after_the_end_writes_into_nobodys_file(tmp_path: Path) -> None:
    feed = EbpfFeed.open(guard=os.getpid(), cgroup=None, ring_bytes=PAGE)
    feed.close()
    with (tmp_path / "file").open("wb") as file:  # has the number of what was closed
        feed.end()
        assert os.fstat(file.fileno()).st_size == 0
