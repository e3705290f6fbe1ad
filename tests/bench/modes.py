"""`stream matrix` with modes against the same command lines under xargs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import anyio

from stream.boundary.modes import find_modes
from stream.matrix.plan import MatrixRequest, make_plan, start_plan
from stream.targets.measuring import open_targets
from tests.bench.measuring import STREAM, Row, Run, run

JOBS = 3 * (os.cpu_count() or 1)


def bench_modes(scratch: Path) -> list[Row]:
    """Every probe in every mode that can be run here, once."""
    names = [mode.name for mode in find_modes() if mode.reason_unavailable is None]
    names.remove("baseline")
    ours = run([STREAM, "matrix", "--mode", *names, "-o", str(scratch / "out"), "--force"])
    same = anyio.run(_run_by_xargs, scratch, names)
    cells = len((scratch / "out").read_bytes().splitlines())
    return [
        Row(
            f"`stream matrix`, every probe in {len(names)} modes and without, {cells} cells",
            f"{ours.seconds:.1f} s",
            f"`xargs -P{JOBS}`, the same command lines: {same.seconds:.1f} s",
            ours.seconds / same.seconds,
            "≤ 1.3×",
            ours.seconds / same.seconds <= 1.3,
        )
    ]


async def _run_by_xargs(scratch: Path, names: Sequence[str]) -> Run:
    """Run the cells of a matrix under xargs, with the targets that it would have."""
    listing = scratch / "cells"
    plan = make_plan(MatrixRequest(modes=names))
    assert plan.measured is not None
    with start_plan(plan, JOBS) as started:
        async with open_targets(plan.measured, started.staging, JOBS) as targets:
            with listing.open("w") as file:
                for cell in plan.planned_cells():
                    slot = cell.index % JOBS
                    await targets.make_state(cell, slot)
                    words, env = targets.command_line(cell, slot, f"{cell.index:012x}")
                    own = {
                        name: value for name, value in env.items() if os.environ.get(name) != value
                    }
                    assignments = [f"{name}={value}" for name, value in own.items()]
                    file.write(shlex.join([*assignments, *words]) + "\n")
            xargs = ["xargs", "-P", str(JOBS), "-L", "1", "env"]
            return await anyio.to_thread.run_sync(lambda: run(xargs, stdin=listing))
