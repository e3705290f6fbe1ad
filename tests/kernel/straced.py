"""A command that was run by `traced`, and what was seen of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import PATIENCE
from tests.forking import run_forked

HOME = Path(__file__).parent.parent.parent


@dataclass
class Traced:
    seen: Any

    @property
    def events(self) -> list[Any]:
        return [r for r in self.seen["records"] if r["schema"] == "stream.raw_kernel.v1"]

    @property
    def gaps(self) -> list[Any]:
        return [r for r in self.seen["records"] if r["schema"] == "stream.gap.v1"]

    @property
    def capture(self) -> Any:
        last = self.seen["records"][-1]
        assert last["schema"] == "stream.raw_capture.v1"
        return last

    @property
    def kinds(self) -> list[str]:
        return [report["type"] for report in self.seen["reports"]]

    def report(self, kind: str) -> Any:
        return next(report for report in self.seen["reports"] if report["type"] == kind)

    @property
    def code(self) -> int:
        code: int = self.report("Exited")["code"]
        return code

    def events_of(self, *calls: str) -> list[Any]:
        return [event for event in self.events if event["call"] in calls]

    def check(self) -> Traced:
        """Nothing was lost, and the counters balance."""
        capture, events = self.capture, self.events
        assert capture["got"] == capture["seen"] == len(events)
        assert capture["scopes"] == {"tree": len(events)}
        assert not capture["dropped"] + capture["unparsed"] + capture["lost_forks"]
        assert (capture["unknown_loss"], self.gaps) == ("", [])
        assert (capture["feed"], capture["cgroup"]) == ("strace", "failed")
        stamps = [event["ts"] for event in events]
        assert stamps == sorted(stamps)
        assert self.seen["left"] == []
        return self


Run = Callable[..., Traced]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(*argv: str | Path, runner: tuple[str, ...] = (), **job: Any) -> Traced:
        job = {"argv": [str(word) for word in argv], "cwd": str(job.pop("cwd", tmp_path)), **job}
        module, words = "tests.kernel.traced", json.dumps(job)
        if not runner:
            code, out, err = run_forked([words], os.environ, HOME, None, PATIENCE, module)
            assert code == 0, err.decode()
            return Traced(json.loads(out))
        done = subprocess.run(
            [*runner, sys.executable, "-m", module, words],
            cwd=HOME,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return Traced(json.loads(done.stdout))

    return run
