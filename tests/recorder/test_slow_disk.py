"""A disk that makes a write wait holds up the kernel layer, and nothing else of the recorder."""

from __future__ import annotations

import threading
from pathlib import Path
from time import monotonic

import pytest
from anyio import create_task_group
from anyio.lowlevel import checkpoint

from stream.archive.chain import LayerFiles
from stream.pipeline import Batch
from stream.records.artifacts import KERNEL_FILE
from stream.records.control import KERNEL
from stream.sinks.run_folder import SLOW, EventTimeIndex, LayerSink

pytestmark = pytest.mark.anyio
LIMIT = 60  # seconds, for what would otherwise hang


class SlowFiles(LayerFiles):
    """Its first write takes too long, its second until somebody lets it go on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.writes = 0
        self.goes_on = threading.Event()

    def append(self, name: str, data: bytes, lines: int) -> None:
        self.writes += 1
        start = monotonic()
        while self.writes == 1 and monotonic() - start <= SLOW:
            pass
        assert self.writes != 2 or self.goes_on.wait(LIMIT)
        super().append(name, data, lines)


async def test_after_a_slow_write_the_others_hold_up_nothing(tmp_path: Path) -> None:
    files, times = SlowFiles(tmp_path), EventTimeIndex(tmp_path)
    async with LayerSink(files, times).open() as write, create_task_group() as tasks:

        async def write_again() -> None:
            await write(Batch(KERNEL, [2, 3]))

        await write(Batch(KERNEL, [1]))
        tasks.start_soon(write_again)
        while files.writes < 2:
            await checkpoint()
        files.goes_on.set()
    assert (tmp_path / KERNEL_FILE).read_bytes() == b"1\n2\n3\n"
    files.close()
    times.close()
