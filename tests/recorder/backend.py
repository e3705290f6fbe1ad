"""`python -m tests.recorder.backend BACKEND RUNS CMD…`: a run under another event loop."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio

from stream.evidence.command_lines import DEFAULT_NAMES
from stream.observe.agents import identify_agent
from stream.observe.run import Observed, run_observe
from stream.observe.scenario import Scenario
from stream.observe.settings import RunSettings, find_program, make_run_folder
from stream.process.guard import Interrupts, fork_guard
from stream.redaction.policy import CapturePolicy


def main(backend: str, runs: Path, command: list[str]) -> int:
    guard = fork_guard()
    folder = make_run_folder(runs, "one")
    workspace = folder / "workspace"
    recording = RunSettings(
        run_id=folder.name,
        folder=folder,
        argv=[os.fsencode(word) for word in command],
        executable=find_program(command[0], Path.cwd()),
        agent=identify_agent(command),
        scenario=Scenario(),
        capture_policy=CapturePolicy("full", None),
        environment="unknown",
        workspace_mode="copy",
        workspace=workspace,
        source=Path.cwd(),
        leave_out=[runs],
        wrap=DEFAULT_NAMES,
        grace=5.0,
        timeout=None,
    )
    guard.send_request(recording.prepare_request())

    async def work() -> Observed:
        return await run_observe(recording, guard, Interrupts(), passes_on=(False, False))

    observed = anyio.run(work, backend=backend)
    assert not observed.findings
    assert not observed.troubles
    assert not observed.summary.incomplete
    return observed.summary.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
