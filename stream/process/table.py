"""The kernel's table of processes: which there are, whose children they are, and signals that
never hit another one. Everything is read from /proc when it is asked for."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import get_native_id

from msgspec import Struct

ON_LINUX = sys.platform == "linux"
_PF_EXITING = 4


class Process(Struct, frozen=True):
    """A process, as it was when it was read."""

    pid: int
    parent: int
    group: int
    session: int
    start: int
    ended: bool  # a zombie: its number is taken, and that is all
    leaving: bool  # ended, or on the way
    name: str

    @property
    def key(self) -> tuple[int, int]:
        """Return what no other process has as long as the system runs."""
        return self.pid, self.start

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


def become_subreaper() -> bool:
    """Let orphans of our descendants come to us. Return whether the system does that."""
    return _prctl(36, 1)


def continue_when_orphaned() -> bool:
    """Ask for SIGCONT when our parent ends: a stopped process would not notice that it is gone."""
    return ON_LINUX and _prctl(1, signal.SIGCONT)


def _prctl(option: int, value: int) -> bool:
    """Set an option of this process with prctl. Return whether the system took it."""
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def signal_name(number: int) -> str:
    """Return the name of a signal, also of one that has none in this Python."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def ticks_now() -> int:
    """Return the present in the unit of Process.start."""
    if not ON_LINUX:
        return 0
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def reap_child(pid: int) -> bool:
    """Reap a child. Return False where it has not ended, or where its tracer still holds it."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False


def open_pidfd(pid: int) -> int | None:
    """Open a descriptor of a process, where the system has such ones."""
    try:
        return os.pidfd_open(pid) if ON_LINUX else None
    except OSError:  # an old kernel, or a sandbox that refuses it
        return None


def read_process_file(pid: int, name: str) -> bytes:
    """Read a file that /proc has of a process; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def proc_shows_us() -> bool:
    """Tell whether /proc may be read, and is of our own pid namespace: another one's has other
    numbers."""
    try:
        is_ours = Path("/proc/self").readlink().name == str(os.getpid())
    except OSError:
        return False
    return is_ours and bool(read_process_file(os.getpid(), "stat"))


def read_process(pid: int) -> Process | None:
    """Read the state of a process. Return None where there is none with this number."""
    head, _, rest = read_process_file(pid, "stat").rpartition(b")")
    if not head:
        return None
    # proc(5), from the third field on
    words = rest.split()
    # Where the first thread is over and others run, it is no zombie whatever the state says.
    alone = int(words[17]) <= 1
    return Process(
        pid=pid,
        parent=int(words[1]),
        group=int(words[2]),
        session=int(words[3]),
        start=int(words[19]),
        ended=alone and words[0] in (b"Z", b"X"),
        leaving=alone and bool(int(words[6]) & _PF_EXITING),
        name=head.partition(b"(")[2].decode(errors="replace"),
    )


def is_stopped(pid: int) -> bool:
    """Tell whether a signal has stopped a process, or is about to. The first of its threads to stop
    does not wait for the others, so each is looked at."""
    sets = (
        int(one.get(name, b"0"), 16)
        for one in _thread_states(pid)
        for name in (b"ShdPnd", b"SigPnd")
    )
    if any(one >> signal.SIGSTOP - 1 & 1 for one in sets):
        return True
    # Afterwards: the thread that takes the signal stops in the same moment.
    return any(one.get(b"State", b"").startswith(b"T") for one in _thread_states(pid))


def _thread_states(pid: int) -> list[dict[bytes, bytes]]:
    """Return the state of each thread, as the kernel words it."""
    try:
        names = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return []
    files = [read_process_file(pid, f"task/{name}/status") for name in names]
    return [dict(line.split(b":\t", 1) for line in file.splitlines()) for file in files]


def list_children() -> list[int]:
    """List our children: those that our first thread started or adopted (orphans come to the first
    thread that lives), and those of the calling thread. No other one starts any."""
    if not ON_LINUX:
        return []
    found: list[int] = []
    try:
        for thread in {os.getpid(), get_native_id()}:
            with open(f"/proc/self/task/{thread}/children", "rb") as file:  # noqa: PTH123
                found += map(int, file.read().split())
    except OSError:  # a kernel without this file
        return [process.pid for process in _all_processes() if process.parent == os.getpid()]
    return found


def _all_processes() -> Iterator[Process]:
    """Yield every process that /proc lists."""
    try:
        names = os.listdir("/proc")  # noqa: PTH208
    except OSError:
        return
    for name in names:
        if name.isdigit() and (process := read_process(int(name))) is not None:
            yield process


def list_descendants(roots: Sequence[Process]) -> Iterator[Process]:
    """Yield the roots and all below them, without those that are ending by themselves."""
    below: dict[int, list[Process]] = {}
    found = {process.pid: process for process in _all_processes()}
    for process in found.values():
        below.setdefault(process.parent, []).append(process)
    todo, seen = [found[root.pid] for root in roots if root.pid in found], set()
    while todo:
        process = todo.pop()
        if process.pid not in seen:
            seen.add(process.pid)
            if not process.leaving:
                yield process
            todo += below.get(process.pid, ())


def open_file_names(pid: int | str, *numbers: int) -> Iterator[str]:
    """Yield what the descriptors of a process lead to: all of them, or those of these numbers."""
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in numbers or os.listdir(folder):  # noqa: PTH208
            with contextlib.suppress(OSError):
                yield os.readlink(f"{folder}/{name}")  # noqa: PTH115


def send_signal(process: Process, number: signal.Signals) -> None:
    """Send a signal to this process, and never to another one that was given its number."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if process.parent == os.getpid():  # the number is taken until we reap it
            os.kill(process.pid, number)
            return
        pidfd = open_pidfd(process.pid)
        try:
            now = read_process(process.pid)
            if now is None or now.key != process.key:
                return
            if pidfd is None:
                os.kill(process.pid, number)
            else:
                signal.pidfd_send_signal(pidfd, number)
        finally:
            if pidfd is not None:
                os.close(pidfd)
