"""Secrets in every channel of a run; none is in any file of the record."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.command import Place, write_script
from tests.recorder.runs import Run, observe, only_run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="containment needs Linux")

CHANNELS = (
    *("env", "argv", "request", "parameter", "stdout", "halves", "stderr", "content", "removed"),
    *("name", "target", "call", "cwd", "git"),
)
KEYS = {name: f"ghp_{name}{'0Aa1Bb2Cc3' * 4}"[:40] for name in CHANNELS}
AGENT = """
import os, subprocess, sys
keys, own = dict(pair.split("=") for pair in sys.argv[1].split(",")), os.environ["DEPLOY_TOKEN"]
print(keys["stdout"], own, flush=True)
half = keys["halves"][:20]
sys.stdout.write(half); sys.stdout.flush()
sys.stdout.write(keys["halves"][20:] + chr(10)); sys.stdout.flush()
print(keys["stderr"], file=sys.stderr)
open("made.txt", "w").write(f"key = {keys['content']}" + chr(10))
os.remove("old.txt")
open(f"{keys['name']}.txt", "w").close()
os.symlink(keys["target"], "link")
os.mkdir(keys["cwd"])
subprocess.run(["git", "--version", keys["call"]], cwd=keys["cwd"])
os.makedirs(".git/" + keys["git"])
open(f".git/{keys['git']}/config", "w").write(keys["git"])
"""


def record_secrets(place: Place, mode: str) -> Run:
    write_script(place.root / "agent.py", AGENT)
    (place.workspace / "old.txt").write_text(f"{KEYS['removed']}\n")
    parameters = place.root / "parameters.json"
    parameters.write_text(json.dumps({"language": KEYS["parameter"]}))
    words: list[str | Path] = [
        "--capture",
        mode,
        "--parameters",
        parameters,
        "--request",
        f"use {KEYS['request']}",
    ]
    argv = ",".join(f"{name}={key}" for name, key in KEYS.items())
    agent: list[str | Path] = [sys.executable, place.root / "agent.py", argv]
    env = {"DEPLOY_TOKEN": KEYS["env"]}
    return only_run(place, place.stream("observe", *words, "--", *agent, env=env))


def read_record(run: Run) -> dict[str, bytes]:
    """Every file of the record; the workspace is the agent's."""
    there = [path for path in run.folder.rglob("*") if path.is_file()]
    workspace = run.folder / "workspace"
    return {
        str(path.relative_to(run.folder)): path.read_bytes()
        for path in there
        if not path.is_relative_to(workspace)
    }


def find_secrets(run: Run) -> set[tuple[str, str]]:
    files = read_record(run)
    return {
        (channel, name)
        for channel, key in KEYS.items()
        for name, data in files.items()
        if key.encode() in data or key[4:].encode() in data
    }


@pytest.mark.parametrize(
    ("mode", "is_said"), [("full", False), ("redacted", True), ("hashed", False)]
)
def test_that_there_was_none_is_reported_where_secrets_are_looked_for(
    place: Place, mode: str, is_said: bool
) -> None:
    """What is hashed has none, whatever it was."""
    run = observe(place, "--capture", mode, "--workspace", "empty", "--", "true")
    assert ("0 secrets replaced in the record" in run.done.err) == is_said


@pytest.mark.parametrize("mode", ["redacted", "hashed"])
def test_none_is_written_down(place: Place, mode: str) -> None:
    run = record_secrets(place, mode)
    assert run.done.code == 0
    assert find_secrets(run) == set()
    for key in ("stdout", "halves", "env"):
        assert KEYS[key].encode() in run.done.out, "what is passed on is as it came"
    counted = json.loads(read_record(run)["artifacts/summary.json"])["redacted"]
    assert counted["github"] >= 5
    line = ", ".join(f"{number} {kind}" for kind, number in counted.items())
    total = sum(counted.values())
    assert f"stream: {total} secrets replaced in the record: {line}\n" in run.done.err
    checked = place.stream("check", run.folder)
    assert (checked.code, checked.out) == (0, b""), checked.err


def test_where_everything_may_be_seen_all_of_them_are(place: Place) -> None:
    """Or the test above would find nothing whatever happened."""
    run = record_secrets(place, "full")
    assert json.loads(read_record(run)["artifacts/summary.json"])["redacted"] is None
    assert {channel for channel, _ in find_secrets(run)} == set(KEYS)


def test_the_same_secret_is_the_same_token_everywhere(place: Place) -> None:
    run = record_secrets(place, "redacted")
    (argv,) = (word for word in run.facts_of("agent_invoked")["argv"] if "stdout=" in word)
    token = argv.partition("stdout=")[2].partition(",")[0]
    assert token.startswith("[redacted:")
    assert token.encode() in run.stdout


def test_no_file_is_open_to_others(place: Place) -> None:
    run = record_secrets(place, "full")
    for path in [run.folder, *(run.folder / name for name in read_record(run))]:
        if path.parent == run.folder or path == run.folder:
            assert not path.stat().st_mode & 0o077, path


@pytest.mark.parametrize("mode", ["redacted", "hashed"])
def test_a_secret_as_the_name_of_a_parameter(place: Place, mode: str) -> None:
    key = KEYS["parameter"]
    parameters = place.root / "parameters.json"
    parameters.write_text(json.dumps({key: 1, "language": key}))
    words = ("--capture", mode, "--parameters", parameters, "--", "true")
    run = only_run(place, place.stream("observe", *words))
    for path in run.folder.rglob("*"):
        assert not (path.is_file() and key.encode() in Path(path).read_bytes()), path
