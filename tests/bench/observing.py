"""Folders and outputs that a recorder is measured with."""

from __future__ import annotations

import random
from pathlib import Path


def fill_folder(root: Path, count: int, size: int) -> None:
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
