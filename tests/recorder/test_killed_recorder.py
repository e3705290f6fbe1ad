"""The recorder may be killed at any time: what was recorded stands, and nothing lives on."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stream.records.decision import ORDER
from tests.cli.command import STREAM, Place, processes_naming
from tests.sweeping import every

KILLS = 200
START = 0.12  #: seconds that a start takes, about
STEP = 0.004  #: seconds from an event to the next one, about
PATIENCE = 180.0

# Everything that is hard to end: a child, one in a session of its own, one whose parent is gone.
STUBBORN = """
echo begun
printf '%s' "$1" > note
git --version
sh -c 'sleep 1000; :' "$1" &
setsid sh -c 'sleep 1000; :' "$1" &
(setsid sh -c 'trap "" TERM HUP; sleep 1000; :' "$1" &)
"""
QUICK = "echo begun; printf note > note; git --version"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="containment needs Linux")


def record_and_kill(place: Place, number: int, after: int, seconds: float) -> Path:
    """A run that is killed so many seconds after so many events."""
    folder = place.workspace / "runs" / f"run-{number}"
    agent = STUBBORN if number % 2 else QUICK
    words = ["--run-id", folder.name, "--grace", "0", "--workspace", "empty"]
    process = subprocess.Popen(
        [STREAM, "observe", *words, "--", "sh", "-c", agent, "agent", folder],
        env=place.env,
        cwd=place.workspace,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while count_events(folder) < after and not has_ended(process, 0.0005):
        pass
    if not has_ended(process, seconds):
        process.kill()
        process.wait()
    return folder


def has_ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def find_survivors(folder: Path) -> list[str]:
    """The guard may need some time to end them."""
    deadline = time.monotonic() + PATIENCE
    while found := processes_naming(str(folder)):
        if time.monotonic() > deadline:
            break
    return found


def count_events(folder: Path) -> int:
    return len(read_whole_lines(folder))


def read_whole_lines(folder: Path) -> list[bytes]:
    """The kernel may cut a write at the end of a page when it kills: what has no end is no line."""
    journal = folder / "events.jsonl"
    return journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []


def find_fault(place: Place, folder: Path) -> str:
    """What is wrong with what is left of the run."""
    if found := find_survivors(folder):
        return f"{folder.name}: still alive: {found}"
    if not folder.exists():
        return ""
    names = [json.loads(line)["event_type"] for line in read_whole_lines(folder)]
    if any(name not in forms for name, forms in zip(names, ORDER, strict=False)):
        return f"{folder.name}: {names}"
    checked = place.stream("check", folder)
    rules = [record["rule"] for record in checked.records]
    whole = len(names) == len(ORDER)
    if (checked.code, rules) != ((0, []) if whole else (1, ["run.incomplete"])):
        return f"{folder.name}: {names}: {rules} {checked.err}"
    return ""


@every(8)
def test_at_any_time(place: Place, step: int) -> None:
    draws = random.Random(7)
    afters = [draws.randrange(len(ORDER)) for _ in range(KILLS)]
    delays = [draws.uniform(0, STEP if after else START) for after in afters]

    def record_and_check(number: int) -> str:
        return find_fault(place, record_and_kill(place, number, afters[number], delays[number]))

    with ThreadPoolExecutor(4) as workers:
        wrong = [text for text in workers.map(record_and_check, range(KILLS // step)) if text]
    assert not wrong
    counts = Counter(
        count_events(place.workspace / "runs" / f"run-{number}") for number in range(KILLS // step)
    )
    assert len(counts) > (7 if step == 1 else 4), (
        f"they were all killed at the same place: {counts}"
    )
