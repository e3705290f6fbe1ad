"""The kernel's table of processes: who there is, whose child, and signals that hit no one else.

Everything is read from /proc at the moment of asking. On systems without it there is nobody.
"""

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
        return self.pid, self.start

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


def become_subreaper() -> bool:
    return _prctl(36, 1)


def go_on_when_orphaned() -> bool:
    """One that somebody has stopped would not notice that its parent is gone."""
    return ON_LINUX and _prctl(1, signal.SIGCONT)


def _prctl(option: int, value: int) -> bool:
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def ticks_now() -> int:
    """The present in the unit of Process.start."""
    if not ON_LINUX:
        return 0
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def reap(pid: int) -> bool:
    """False also for a zombie whose tracer has not let go of it."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False


def open_pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid) if ON_LINUX else None
    except OSError:  # an old kernel, or a sandbox that refuses it
        return None


def read_file(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def shows_us() -> bool:
    """Whether /proc may be read, and is of our own pid namespace: another one's has other
    numbers."""
    try:
        is_ours = Path("/proc/self").readlink().name == str(os.getpid())
    except OSError:
        return False
    return is_ours and bool(read_file(os.getpid(), "stat"))


def read_process(pid: int) -> Process | None:
    head, _, rest = read_file(pid, "stat").rpartition(b")")
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
    """Whether a signal has made it stand still, or is about to. The first of its threads to stop
    does not wait for the others, so that each is asked."""
    sets = (
        int(one.get(name, b"0"), 16) for one in _threads(pid) for name in (b"ShdPnd", b"SigPnd")
    )
    if any(one >> signal.SIGSTOP - 1 & 1 for one in sets):
        return True
    # Afterwards: the thread that takes the signal stops in the same moment.
    return any(one.get(b"State", b"").startswith(b"T") for one in _threads(pid))


def _threads(pid: int) -> list[dict[bytes, bytes]]:
    """What the kernel says of the state of each."""
    try:
        names = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:
        return []
    files = [read_file(pid, f"task/{name}/status") for name in names]
    return [dict(line.split(b":\t", 1) for line in file.splitlines()) for file in files]


def own_children() -> list[int]:
    """Of this process: those that its first thread started or adopted (orphans come to the
    first thread that lives), and those of the thread that asks. No other one starts any."""
    if not ON_LINUX:
        return []
    found: list[int] = []
    try:
        for thread in {os.getpid(), get_native_id()}:
            with open(f"/proc/self/task/{thread}/children", "rb") as file:  # noqa: PTH123
                found += map(int, file.read().split())
    except OSError:  # a kernel without this file
        own = os.getpid()
        return [process.pid for process in _all_processes() if process.parent == own]
    return found


def _all_processes() -> Iterator[Process]:
    try:
        names = os.listdir("/proc")  # noqa: PTH208
    except OSError:
        return
    for name in names:
        if name.isdigit():
            process = read_process(int(name))
            if process is not None:
                yield process


def descendants(roots: Sequence[Process]) -> Iterator[Process]:
    """The roots and all below them, without those that end by themselves."""
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


def open_files(pid: int | str, *numbers: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in numbers or os.listdir(folder):  # noqa: PTH208
            with contextlib.suppress(OSError):
                yield os.readlink(f"{folder}/{name}")  # noqa: PTH115


def send(process: Process, number: signal.Signals) -> None:
    """To this process and never to another one that was given its number."""
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
