"""`stream matrix` with modes against the same command lines under xargs."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec

from stream.boundary.modes import find_modes
from stream.boundary.scripts import BUNDLED, find_scripts
from stream.matrix.plan import MatrixRequest, make_plan, start_plan
from stream.targets.measuring import open_targets
from tests.bench.measuring import STREAM, Row, Run, race, run
from tests.browser import missing_part, open_browser
from tests.transformers.modes import mode_record

STARTS = {
    "bwrap-offline": ["bwrap", "--ro-bind", "/", "/", "--unshare-all", "true"],
    "codex-workspace-write": [
        "codex",
        "sandbox",
        "-c",
        "sandbox_mode=workspace-write",
        "--",
        "true",
    ],
}
JOBS = 3 * (os.cpu_count() or 1)


def bench_modes(scratch: Path) -> list[Row]:
    """Every probe in every mode that can be run here, once."""
    names = [mode.name for mode in find_modes() if mode.reason_unavailable is None]
    names.remove("baseline")
    return [
        *_matrix_row(scratch, names),
        *(row for name in STARTS for row in _canary_row(name)),
        *_lock_row(scratch),
        *_report_row(scratch),
    ]


def _matrix_row(scratch: Path, names: list[str]) -> list[Row]:
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


def _canary_row(name: str) -> list[Row]:
    """Against the start of the sandbox itself."""
    start = STARTS[name]
    if shutil.which(start[0]) is None:
        return []
    command = [STREAM, "canary", "--mode", name]
    ours, alone = race(5, lambda: run(command), lambda: run(start))
    more = ours.seconds - alone.seconds
    return [
        Row(
            f"`stream canary --mode {name}`, more than the sandbox's start",
            f"{more:.2f} s",
            f"`{' '.join(start[:2])} … true`: {alone.seconds:.2f} s",
            ours.seconds / alone.seconds,
            "≤ 1 s",
            more <= 1,
        )
    ]


def _lock_row(scratch: Path) -> list[Row]:
    """50 probes in three modes, and what the plain matrix of as many cells takes."""
    probes = [script.id for script in find_scripts(BUNDLED)][:50]
    modes = ("bwrap-offline", "codex-workspace-write", "landlock-workspace")
    lockfile = scratch / "boundary.lock"
    run([STREAM, "lock", "--mode", *modes, "--probe", *probes, "-o", str(lockfile)])
    check = run([STREAM, "lock", "--check", str(lockfile)])
    plain = run([STREAM, "matrix", "--probe", *probes, "--repeat", "4"])
    return [
        Row(
            "`stream lock --check`, 50 probes in 3 modes",
            f"{check.seconds:.1f} s",
            f"`stream matrix --repeat 4` of them, without modes: {plain.seconds:.1f} s",
            check.seconds / plain.seconds,
            "< 15 s",
            check.seconds < 15,
        )
    ]


def _report_row(scratch: Path) -> list[Row]:
    """The page of 10,000 records, written and opened in Chromium."""
    if missing_part():
        return []
    records, page = scratch / "records.ndjson", scratch / "page.html"
    modes = [f"mode-{number}" for number in range(90)]
    probes = [script.id for script in find_scripts(BUNDLED)]
    lines = [
        msgspec.json.encode(mode_record("closed", mode, probe))
        for mode in modes
        for probe in probes
    ]
    records.write_bytes(b"\n".join(lines) + b"\n")
    command = [STREAM, "report", str(records), "-o", str(page), "--force"]
    ours, dump = race(3, lambda: run(command), lambda: run(["gzip", "-6", "-c", str(records)]))
    (scratch / "browser").mkdir()
    with open_browser(scratch / "browser") as browser:
        browser.open(page)  # the first page that a browser opens is slower
        start = time.perf_counter()
        browser.open(page)
        browser.evaluate("(async () => { await sides; return true; })()")
        opened = time.perf_counter() - start
    size = page.stat().st_size
    return [
        Row(
            f"`stream report` of {len(lines)} records: {size / 1e6:.1f} MB",
            f"{ours.seconds:.2f} s, open in Chromium in {opened:.2f} s",
            f"`gzip -6`: {dump.seconds:.2f} s",
            ours.seconds / dump.seconds,
            "< 5 MB, < 1 s to open",
            size < 5_000_000 and opened < 1,
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
