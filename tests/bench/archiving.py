"""Writing and verifying an archive, against `tar | gzip -6` and against bytes a second."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

from stream.records.kernel import KernelEvent
from stream.records.runner import KERNEL_FILE
from tests.archive.samples import RUN, run_folder

EVENTS = 1_000_000
_BATCH = 10_000


def fill_run(folder: Path) -> int:
    """A run with a long kernel layer, as one that opens many files has it; bytes of it all."""
    run_folder(folder)
    for name in ("chain.ndjson", "layers/kernel-ext.ndjson", "layers/markers.ndjson"):
        (folder / name).unlink()
    chance = random.Random(1)
    encode_lines = msgspec.json.Encoder().encode_lines
    with (folder / KERNEL_FILE).open("wb") as file:
        for first in range(0, EVENTS, _BATCH):
            events = [_opened(seq, chance) for seq in range(first, first + _BATCH)]
            file.write(encode_lines(events))
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _opened(seq: int, chance: random.Random) -> KernelEvent:
    place = f"src/module{chance.randrange(3000)}/file{chance.randrange(100)}.py"
    return KernelEvent(
        run_id=RUN,
        seq=seq,
        pid=1000 + seq // 50 % 40,
        event_type=1,
        kind="openat",
        value=f"/home/user/project/{place}",
        flags=0o2000000,
        mode=0,
        return_value=3 + seq % 5,
        access_mode="read",
        status="success",
    )
