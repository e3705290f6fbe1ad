"""The workflows of examples/ci, run step by step."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

WORKFLOWS = Path(__file__).parents[1] / "examples" / "ci"
STREAM = Path(sys.executable).with_name("stream")
#: steps that change the machine: what they install is there where the tests run
PREPARING = ("Install", "Allow user namespaces, which sandboxes are made of")
PROBES = ("fs_outside_workspace", "fs_workspace_write_create", "egress_tcp_address")


def read_jobs(name: str) -> dict[str, Any]:
    jobs: dict[str, Any] = yaml.safe_load((WORKFLOWS / name).read_text())["jobs"]
    return jobs


def iter_steps(jobs: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each step with the values of its job's matrix. Jobs stand after those that they need."""
    done: set[str] = set()
    for name, job in jobs.items():
        assert {job.get("needs")} - {None} <= done, name
        matrix = job.get("strategy", {}).get("matrix", {"": [None]})
        for key, values in matrix.items():
            for value in values:
                for step in job["steps"]:
                    yield step, {f"matrix.{key}": value}
        done.add(name)


def run_steps(name: str, folder: Path, path: str = "") -> list[tuple[str, int, str]]:
    """Run what the steps of a workflow run: name, exit code and what they said."""
    env = {**os.environ, "GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    env["PATH"] = f"{path}:{STREAM.parent}:{os.environ['PATH']}".lstrip(":")
    ran: list[tuple[str, int, str]] = []
    has_failed = False
    for step, values in iter_steps(read_jobs(name)):
        when = step.get("if", "success()")
        is_wanted = {"success()": not has_failed, "failure()": has_failed, "always()": True}[when]
        if "run" not in step or step["name"] in PREPARING or not is_wanted:
            continue
        command = step["run"]
        for key, value in values.items():
            command = command.replace(f"${{{{ {key} }}}}", str(value))
        assert "${{" not in command
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", command],
            cwd=folder,
            env=env,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
        )
        ran.append((step["name"], done.returncode, done.stdout + done.stderr))
        has_failed |= done.returncode != 0
    return ran


def run_stream(folder: Path, *words: str) -> None:
    done = subprocess.run([STREAM, *words], cwd=folder, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_what_prepares_the_machine_is_known() -> None:
    for path in WORKFLOWS.glob("*.yml"):
        for step, _ in iter_steps(read_jobs(path.name)):
            changes = re.search(r"sudo|pip install|npm install", step.get("run", ""))
            assert bool(changes) == (step.get("name") in PREPARING), step


@pytest.mark.writes_tmp
@pytest.mark.skipif(shutil.which("codex") is None, reason="needs codex")
def test_a_sandbox_is_locked_and_drifts(tmp_path: Path) -> None:
    locking = ("lock", "--mode", "codex-workspace-write", "--probe", *PROBES)
    run_stream(tmp_path, *locking, "-o", "boundary.lock")
    ran = run_steps("sandbox.yml", tmp_path)
    assert [code for _, code, _ in ran] == [0, 0], ran
    assert json.loads((tmp_path / "drift.sarif").read_text())["runs"][0]["results"] == []
    # Another program of that name, which only runs what it is given.
    (tmp_path / "drift.sarif").unlink()
    tools = tmp_path / "tools"
    tools.mkdir()
    inert = tools / "codex"
    inert.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n')
    inert.chmod(0o755)
    ran = run_steps("sandbox.yml", tmp_path, str(tools))
    assert [(name, code) for name, code, _ in ran] == [
        ("Is it on?", 1),
        ("Does it let through what is locked?", 1),
        ("Say it in the summary of the job", 1),
    ]
    assert "GOT THROUGH: a file was written outside the workspace" in ran[0][2]
    (drift,) = json.loads((tmp_path / "drift.sarif").read_text())["runs"]
    assert len(drift["results"]) >= 2
    summary = (tmp_path / "summary.md").read_text()
    assert "fs_outside_workspace" in summary
    assert "egress_tcp_address" in summary


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bwrap")
def test_a_matrix_in_parts_is_what_is_locked(tmp_path: Path) -> None:
    words = ("lock", "--mode", "bwrap-offline", "landlock-workspace", "-o", "boundary.lock")
    run_stream(tmp_path, *words)
    ran = run_steps("shards.yml", tmp_path)
    assert [code for _, code, _ in ran] == [0] * 7, ran
    assert [name for name, _, _ in ran].count("Measure a part") == 3
    assert (tmp_path / "report.html").stat().st_size > 10_000
