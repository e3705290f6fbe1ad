"""Wall time and memory of commands, one after the other, so that all see the same machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

STREAM = str(Path(sys.executable).with_name("stream"))


@dataclass(frozen=True)
class Row:
    what: str
    ours: str
    against: str
    ratio: float
    target: str
    met: bool


@dataclass(frozen=True)
class Run:
    seconds: float
    peak: int  #: bytes


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: Path | None = None,
) -> Run:
    """Wall time and peak memory of one command, its output thrown away."""
    with Path(stdin or os.devnull).open("rb") as source, Path(os.devnull).open("wb") as null:
        start = time.perf_counter()
        child = subprocess.Popen(argv, env=env, cwd=cwd, stdin=source, stdout=null, stderr=null)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in (0, 1, 123):  # 123: xargs had a probe that exits non-zero
        raise RuntimeError(f"{argv[0]} exited with {child.returncode}")
    return Run(seconds, usage.ru_maxrss * 1024)


def race(times: int, *contestants: Callable[[], Run]) -> list[Run]:
    """The best of several for each, in turns, so that all see the same machine."""
    best: list[Run | None] = [None] * len(contestants)
    for _ in range(times):
        for index, contestant in enumerate(contestants):
            result, old = contestant(), best[index]
            if old is None or result.seconds < old.seconds:
                best[index] = result
    return [result for result in best if result]
