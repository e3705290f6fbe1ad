"""An agent's output goes two ways, and neither holds the other up."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from anyio import (
    create_memory_object_stream,
    create_task_group,
    fail_after,
    to_thread,
    wait_readable,
)
from anyio.lowlevel import checkpoint

from stream.pipeline import Batch
from stream.redaction.policy import CapturePolicy, OutputFile, Redactor
from stream.sources import agent
from stream.sources.agent import AHEAD, BLOCK, Relay, StdoutBlocks, Tee

pytestmark = pytest.mark.anyio
FULL = CapturePolicy("full", None)
LIMIT = 120


def write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


async def test_both_have_every_byte(tmp_path: Path) -> None:
    data = os.urandom(3 * BLOCK + 7)
    read, write = os.pipe()
    copy_read, copy_write = os.pipe()
    output, relay = OutputFile(tmp_path / "out", FULL), Relay(copy_write)
    tee = Tee(read, output, relay)
    got = bytearray()

    def read_copy() -> None:
        while len(got) < len(data):
            got.extend(os.read(copy_read, 1 << 16))

    def write_output() -> None:
        write_all(write, data)
        os.close(write)

    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            tasks.start_soon(tee.run)
            tasks.start_soon(to_thread.run_sync, read_copy)
            tasks.start_soon(to_thread.run_sync, write_output)
    kept = output.finish()
    assert (tmp_path / "out").read_bytes() == data == got
    assert kept.sha256 == hashlib.sha256(data).hexdigest()
    assert (kept.bytes, kept.total, kept.lost, relay.lost) == (len(data), len(data), 0, 0)
    for fd in (read, copy_read, copy_write):
        os.close(fd)


async def test_a_reader_that_does_not_read_slows_and_can_be_left(tmp_path: Path) -> None:
    """The pipe to it is full, then what we keep ahead, then the agent waits. Given up, the rest
    of the output is kept all the same."""
    data = os.urandom((AHEAD + 16) * BLOCK)
    read, write = os.pipe()
    copy_read, copy_write = os.pipe()
    output, relay = OutputFile(tmp_path / "out", FULL), Relay(copy_write)
    tee = Tee(read, output, relay)

    def write_output() -> None:
        write_all(write, data)
        os.close(write)

    producer = Thread(target=write_output)
    producer.start()
    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            tasks.start_soon(tee.run)
            await wait_readable(copy_read)
            assert producer.is_alive()
            relay.give_up_reader()
    producer.join()
    output.finish()
    assert (tmp_path / "out").read_bytes() == data
    assert 0 < relay.lost <= len(data)
    for fd in (read, copy_read, copy_write):
        os.close(fd)


async def test_a_pipe_that_somebody_else_still_holds(tmp_path: Path) -> None:
    """What is in it when the tree is over is kept."""
    read, write = os.pipe()
    output = OutputFile(tmp_path / "out", FULL)
    tee = Tee(read, output, None)
    os.write(write, b"text")
    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            tasks.start_soon(tee.run)
            await checkpoint()
            tee.end()
    assert output.finish().bytes == 4
    os.close(read)
    os.close(write)


async def test_an_end_after_the_end(tmp_path: Path) -> None:
    read, write = os.pipe()
    output = OutputFile(tmp_path / "out", FULL)
    tee = Tee(read, output, None)
    os.close(write)
    await tee.run()
    tee.end()
    assert output.finish().bytes == 0
    os.close(read)


async def test_what_nobody_takes_is_counted_and_nobody_waits_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The place of what follows a loss would not be known: it is left out as well."""
    monkeypatch.setattr(agent, "MOST_WAITING", 4)
    monkeypatch.setattr(agent, "STUCK_PIPELINE", 0.0)
    blocks = StdoutBlocks()
    for block in (b"abc", b"de", b"f"):
        blocks.put_stdout_block(block)
    blocks.end()
    out, received = create_memory_object_stream[Batch[Any]](8)
    with fail_after(LIMIT), received:
        async with out:
            await blocks.run(out)
        items = [item async for batch in received for item in batch.items]
    blocks.close()
    assert [item.data for item in items[:-1]] == [b"abc"]
    assert (items[-1].why, items[-1].count) == ("unread", 3)


def test_a_redacted_output(tmp_path: Path) -> None:
    secret = "ghp_" + "a1B2c3D4" * 5
    output = OutputFile(tmp_path / "out", CapturePolicy("redacted", Redactor({})))
    for byte in f"before {secret} after\n".encode():
        output.write(bytes([byte]))
    kept = output.finish()
    found = (tmp_path / "out").read_bytes()
    assert secret.encode() not in found
    assert found.startswith(b"before [redacted:")
    assert found.endswith(b"] after\n")
    assert kept.sha256 == hashlib.sha256(found).hexdigest()
    assert kept.bytes == len(found)


def test_a_hashed_output(tmp_path: Path) -> None:
    output = OutputFile(tmp_path / "out", CapturePolicy("hashed", Redactor({})))
    output.write(b"text ")
    output.write(b"this")
    kept = output.finish()
    digest = hashlib.sha256(b"text this").hexdigest()
    assert (tmp_path / "out").read_text() == f"sha256:{digest} bytes:9\n"
    assert kept.total == 9
