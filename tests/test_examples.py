"""Every example runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.rig import bundled_claude, is_alone

EXAMPLES = Path(__file__).parents[1] / "examples"
STREAM = Path(sys.executable).with_name("stream")
ENV = {**os.environ, "PATH": f"{STREAM.parent}:{os.environ['PATH']}"}


def run_command(*argv: str | Path, stdin: bytes = b"", cwd: Path | None = None) -> bytes:
    done = subprocess.run(
        argv, input=stdin, capture_output=True, env=ENV, cwd=cwd, check=False, timeout=180
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_every_example_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    for path in EXAMPLES.iterdir():
        if path.name != "README.md":
            assert f"`{path.name}" in listed


def test_own_tree(tmp_path: Path) -> None:
    probes = EXAMPLES / "own-tree" / "probes"
    records = run_command(STREAM, "matrix", "--probes", probes, cwd=tmp_path)
    assert b'"capabilities_schema_version":"house_rules"' in records
    assert b'"observed_result":"success"' in records
    run_command(STREAM, "gate", "--probes", probes)
    run_command(STREAM, "validate", EXAMPLES / "own-tree" / "catalogs" / "house_rules.json")


def test_compare_sandboxes(tmp_path: Path) -> None:
    for tool in ("bwrap", "jq"):
        if not shutil.which(tool):
            pytest.skip(f"needs {tool}")
    if os.geteuid() != 0 and not Path("/proc/self/ns/user").exists():
        pytest.skip("needs user namespaces")
    probes = ["--probe", "fs_workspace_write_create", "fs_read_system_version"]
    lines = (
        run_command(EXAMPLES / "compare-sandboxes.sh", *probes, cwd=tmp_path).decode().splitlines()
    )
    assert lines == ["fs_workspace_write_create\tsuccess\tdenied"]


def read_only_run(runs: Path) -> tuple[Path, list[str]]:
    """The one run that is there, and what is called in it."""
    [events] = runs.glob("*/events.jsonl")
    assert len(events.read_bytes().splitlines()) == 9
    log = events.parent / "artifacts" / "command_logs.jsonl"
    return events.parent, [json.loads(line)["category"] for line in log.read_text().splitlines()]


def test_tiny_agent(tmp_path: Path) -> None:
    answer = run_command(EXAMPLES / "tiny-agent" / "run.sh", tmp_path / "runs", cwd=tmp_path)
    assert json.loads(answer) == {"changed": ["slug.py", "test_slug.py"], "tests": "passed"}
    folder, categories = read_only_run(tmp_path / "runs")
    assert {path.name for path in (folder / "workspace").iterdir()} == {"slug.py", "test_slug.py"}
    assert categories == ["test"]


def test_claude_stub(tmp_path: Path) -> None:
    if bundled_claude() is None:
        pytest.skip("needs claude-agent-sdk: pip install -e '.[e2e]'")
    alone = ("unshare", "-n") if is_alone() else ()
    answer = run_command(
        *alone, EXAMPLES / "claude-stub" / "run.sh", tmp_path / "runs", cwd=tmp_path
    )
    assert b'"result":"The test passes."' in answer
    folder, categories = read_only_run(tmp_path / "runs")
    assert {path.name for path in (folder / "workspace").iterdir()} == {"calc.py", "test_calc.py"}
    assert "test" in categories


def test_denials() -> None:
    data = Path(__file__).parent / "data" / "fencerunner" / "cfbo-golden-snippet.ndjson"
    ids = run_command(sys.executable, EXAMPLES / "denials.py", stdin=data.read_bytes()).split()
    assert b"fs_outside_workspace" in ids


def test_denials_of_junk() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "denials.py"], input=b"{}\n", capture_output=True, check=False
    )
    outcome = (done.returncode, done.stdout, done.stderr)
    assert outcome == (1, b"", b"denied: 1 in = 0 out + 1 rejected + 0 filtered\n")
