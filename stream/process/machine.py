"""The machine that something is observed on: its name and its clocks."""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path

from msgspec import Struct


@cache
def system_name() -> str:
    """Return what `uname -srm` prints."""
    name = os.uname()
    return f"{name.sysname} {name.release} {name.machine}"


def kernel_now() -> int:
    """Return CLOCK_MONOTONIC in ns as the kernel itself has it: in a time namespace, ours is
    another."""
    return time.monotonic_ns() - _monotonic_offset()


@cache
def _monotonic_offset() -> int:
    """Return by how many nanoseconds a time namespace sets our monotonic clock ahead."""
    try:
        lines = Path("/proc/self/timens_offsets").read_text().splitlines()
    except OSError:  # this kernel has no such namespaces
        return 0
    for name, seconds, rest in map(str.split, lines):
        if name == "monotonic":
            return int(seconds) * 1_000_000_000 + int(rest)
    return 0


class Clock(Struct, frozen=True):
    """One moment by two clocks, to tell the wall-clock time of any other. Both in ns."""

    wall: int
    monotonic: int

    @classmethod
    def now(cls) -> Clock:
        """Return the present moment by both clocks."""
        return cls(time.time_ns(), time.monotonic_ns())

    def timestamp(self, monotonic: int) -> str:
        """Return a moment of the monotonic clock as RFC 3339, in UTC."""
        return utc_timestamp(self.wall + monotonic - self.monotonic)


def utc_timestamp(nanoseconds: int) -> str:
    """Return a wall-clock time as RFC 3339, in UTC."""
    seconds, rest = divmod(nanoseconds // 1000, 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:06}Z"
