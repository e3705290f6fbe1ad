"""What it costs a command that the kernel reports its calls: by eBPF, and by strace next to it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

import stream
from stream.archive.chain import LayerFiles
from stream.pipeline import Batch
from stream.records.artifacts import KERNEL_FILE
from stream.records.control import KERNEL, TELEMETRY
from stream.sources.kernel.decode import RingDecoder
from stream.transformers.normalize import Normalize
from tests.bench.measuring import STREAM, Row
from tests.kernel.test_decode import encode_record

encode_lines = msgspec.json.Encoder().encode_lines
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests/kernel/programs/many.c"
OPENS = 200_000
ROUNDS = 10
FOLDER, WALK = b"/srv/project/src/part", b"part\0src\0project\0srv\0"
IN_A_LOOK = 1000  #: events that are taken out of the ring together


@dataclass(frozen=True)
class Watched:
    seconds: float  #: that the command took
    written: float  #: from its start until the last line of the kernel layer was written
    events: int
    lost: int


def bench_kernel(scratch: Path) -> list[Row]:
    if os.geteuid() != 0:
        print("the kernel feed needs root: not measured", file=sys.stderr)
        return []
    with _memory_folder(scratch) as folder:
        rows = _bench_opens(scratch, folder)
    return [*rows, _recorder_alone(scratch), *_bench_realistic(scratch)]


@contextmanager
def _memory_folder(scratch: Path) -> Iterator[Path]:
    """Where an open costs as little as it can; not below /dev, whose reads are left out."""
    folder = scratch / "memory"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True)
    try:
        for number in range(2):
            (folder / str(number)).mkdir()
            for file in range(OPENS // 2):
                (folder / str(number) / f"f{file:07}").touch()
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def _bench_opens(scratch: Path, folder: Path) -> list[Row]:
    program = scratch / "many-opens"
    subprocess.run(["gcc", "-O1", "-w", "-o", program, PROGRAM], check=True)
    once = [str(program), str(folder), str(OPENS), "2"]
    often = [*once, str(ROUNDS)]
    alone, traced = _time_command(once), _watch_command(scratch, "ebpf", once)
    for _ in range(4):
        alone = min(alone, _time_command(once))
        traced = min(traced, _watch_command(scratch, "ebpf", once), key=lambda one: one.written)
    assert traced.events >= OPENS
    sustained = _watch_command(scratch, "ebpf", often)
    rate = sustained.events / sustained.written
    plain = _time_command(often)
    return [
        Row(
            f"`observe --kernel ebpf`, {OPENS:,} opens by two processes, all lines written",
            f"{traced.written:.2f} s, {traced.lost} lost",
            f"untraced: {alone:.2f} s",
            traced.written / alone,
            "≤ 4.3×, 0 lost",
            traced.written / alone <= 4.3 and not traced.lost,
        ),
        Row(
            f"the same {ROUNDS} times without a pause, 16 MiB ring",
            f"{rate:,.0f} events/s, {sustained.lost} lost",
            f"untraced: {plain:.2f} s",
            sustained.written / plain,
            "≥ 400,000/s, 0 lost",
            rate >= 400_000 and not sustained.lost,
        ),
    ]


def _recorder_alone(scratch: Path) -> Row:
    """From what lies in the ring to the written line: how much one core of the recorder takes."""
    chunks = [
        b"".join(
            encode_record(
                "openat", b"%b/f%07d" % (FOLDER, n), b"f%07d\0%b" % (n, WALK), opened=0, resolve=0
            )
            for n in range(first, first + IN_A_LOOK)
        )
        for first in range(0, OPENS, IN_A_LOOK)
    ]
    pace = floor = float("inf")
    for number in range(5):
        folder = scratch / f"alone-{number}"
        folder.mkdir()
        files, decoder, normalize = LayerFiles(folder), RingDecoder(), Normalize("one")
        start = time.perf_counter()
        for chunk in chunks:
            for made in normalize.feed(Batch(TELEMETRY, decoder.decode_ring_records(chunk)[0])):
                if made.kind == KERNEL:
                    files.append(KERNEL_FILE, encode_lines(made.items), len(made.items))
        pace = min(pace, time.perf_counter() - start)
        files.close()
        start = time.perf_counter()
        (folder / "copy").write_bytes((folder / KERNEL_FILE).read_bytes())
        floor = min(floor, time.perf_counter() - start)
        assert files.lines(KERNEL_FILE) == OPENS
    return Row(
        "the recorder alone, from the ring to the written line, one core",
        f"{OPENS / pace:,.0f} events/s",
        f"reading and writing those lines at once: {OPENS / floor:,.0f}/s",
        pace / floor,
        "≥ 400,000/s",
        OPENS / pace >= 400_000,
    )


def _bench_realistic(scratch: Path) -> list[Row]:
    repository = _make_repository(scratch / "repository")
    library = scratch / "library"
    library.mkdir()
    for name in ("asyncio", "email", "http", "json", "unittest", "xml", "logging", "ctypes"):
        source = Path(os.__file__).parent / name
        shutil.copytree(source, library / name, ignore=shutil.ignore_patterns("__pycache__"))
    rows = []
    for what, command, target in (
        (
            "compileall of 8 packages",
            [sys.executable, "-m", "compileall", "-q", "-f", str(library)],
            1.10,
        ),
        ("10 times npm --version", _repeat_command(10, "npm --version"), 1.05),
        ("20 times git status", _repeat_command(20, f"git -C {repository} status"), 1.3),
    ):
        plain = ebpf = strace = float("inf")
        for _ in range(9):
            plain = min(plain, _time_command(command))
            ebpf = min(ebpf, _watch_command(scratch, "ebpf", command).seconds)
            strace = min(strace, _watch_command(scratch, "strace", command).seconds)
        ratio = ebpf / plain
        slow = strace / plain
        rows.append(
            Row(
                f"`observe --kernel ebpf`, {what}",
                f"{ebpf:.2f} s; with strace {strace:.2f} s, {slow:.2f}×",
                f"untraced: {plain:.2f} s",
                ratio,
                f"≤ {target}×",
                ratio <= target,
            )
        )
    return rows


def _make_repository(folder: Path) -> Path:
    """Make a git repository with one commit of what is measured and what measures it."""
    skipped = shutil.ignore_patterns("__pycache__")
    for source in (Path(stream.__file__).parent, ROOT / "tests"):
        shutil.copytree(source, folder / source.name, ignore=skipped)
    git = ["git", "-C", str(folder), "-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    for words in (["init", "-q"], ["add", "--all"], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], check=True)
    return folder


def _repeat_command(times: int, command: str) -> list[str]:
    return ["sh", "-c", f"for i in $(seq {times}); do {command}; done"]


def _time_command(argv: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def _watch_command(scratch: Path, feed: str, argv: list[str]) -> Watched:
    runs = Path(tempfile.mkdtemp(dir=scratch, prefix="runs-"))
    words = ["--kernel", feed, "--require", "kernel", "--workspace", "empty", "--no-wrap"]
    command = [STREAM, "observe", "-q", "--runs", str(runs), "--run-id", "one", *words, "--", *argv]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run = runs / "one"
    summary = json.loads((run / "artifacts/summary.json").read_bytes())
    capture = json.loads((run / "companion.json").read_bytes())["capture"]
    seconds = summary["duration_ms"] / 1000
    late = (run / "layers/kernel.ndjson").stat().st_mtime - _find_end(run)
    shutil.rmtree(runs)
    lost = capture["dropped"] + capture["misses"] + capture["unparsed"]
    return Watched(seconds, seconds + max(0.0, late), summary["kernel_events"], lost)


def _find_end(run: Path) -> float:
    for event in map(json.loads, (run / "events.jsonl").read_bytes().splitlines()):
        if event["event_type"] == "agent_completed":
            return datetime.fromisoformat(event["timestamp"]).timestamp()
    raise AssertionError("it did not end")
