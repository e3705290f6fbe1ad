"""The machine that something was observed on, and what it does in a certain way only."""

from __future__ import annotations

import os
import select
import time
from functools import cache
from pathlib import Path


@cache
def system_name() -> str:
    """uname -srm, as the harness sees it."""
    name = os.uname()
    return f"{name.sysname} {name.release} {name.machine}"


def kernel_now() -> int:
    """CLOCK_MONOTONIC, ns, as the kernel itself has it: in a time namespace, ours is another."""
    return time.monotonic_ns() - _ahead()


@cache
def _ahead() -> int:
    try:
        lines = Path("/proc/self/timens_offsets").read_text().splitlines()
    except OSError:  # this kernel has no such namespaces
        return 0
    for name, seconds, rest in map(str.split, lines):
        if name == "monotonic":
            return int(seconds) * 1_000_000_000 + int(rest)
    return 0


def write_all(fd: int, data: bytes) -> None:
    """However much of it is taken at a time."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # whoever shares the pipe with us has made it so
            select.select((), (fd,), ())
