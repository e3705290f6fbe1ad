"""`python -m tests.bench.workspace SOURCE TARGET`: a copy, one change, the patch of it."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from stream.workspace.changes import find_changes
from stream.workspace.patching import find_git
from stream.workspace.store import Store
from stream.workspace.taking import take_copy
from stream.workspace.writing import write_patch


def fill(root: Path, count: int, size: int) -> None:
    """Files of `size` bytes on average, 50 to a folder."""
    chance = random.Random(1)
    data = chance.randbytes(1 << 20)
    for number in range(count):
        folder = root / f"d{number // 1000}" / f"e{number // 50 % 20}"
        if number % 50 == 0:
            folder.mkdir(parents=True)
        length = chance.randrange(2 * size)
        begin = chance.randrange(len(data) - length)
        (folder / f"f{number}.txt").write_bytes(data[begin : begin + length])


def record(source: Path, target: Path) -> None:
    out = target.with_suffix(".out")
    out.mkdir()
    with Store(out) as store:
        snapshot = take_copy(source, target, store)
        (target / "d0" / "e0" / "f7.txt").write_text("changed\n")
        changes = find_changes(snapshot, target, store)
        patch, listing = out / "fs_diff.patch", out / "fs_changes.jsonl"
        exited = time.time_ns()
        summary = write_patch(changes, store, patch, listing, git=find_git(), exited=exited)
    assert (summary.total, summary.in_patch) == (1, 1)


if __name__ == "__main__":
    record(Path(sys.argv[1]), Path(sys.argv[2]))
