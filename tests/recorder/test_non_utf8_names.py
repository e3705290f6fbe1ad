"""Names of the system need not be text: a record carries them all the same. And what is hashed
is what is written."""

from __future__ import annotations

import hashlib
import json
import os
import sys

import msgspec
import pytest

from tests.cli.command import Place, write_script
from tests.recorder.runs import Run, observe

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="names are bytes on Linux")

ODD = os.fsdecode(b"odd\xff")
SHOWN = "odd\\xff"
SECRET = "sk-ant-api03-" + "aB3" * 30


@pytest.mark.parametrize("mode", ["full", "redacted", "hashed"])
def test_a_request(place: Place, mode: str) -> None:
    words = ("--capture", mode, "--workspace", "empty", "--request", ODD)
    raw = observe(place, *words, "--", "true").events[1]["request"]["user_request_raw"]
    assert raw == ("hash" if mode == "hashed" else SHOWN)


def test_a_folder(place: Place) -> None:
    source = place.root / ODD
    source.mkdir()
    (source / "a.txt").write_text("a")
    run = observe(place, "--source", source, "--", "cat", "a.txt")
    assert run.done.out == b"a"
    assert run.facts_of("workspace_prepared", "workspace")["source"].endswith(SHOWN)


def test_a_folder_of_runs(place: Place) -> None:
    runs = place.root / ODD
    done = place.stream("observe", "--runs", runs, "--run-id", "one", "--", "git", "--version")
    assert done.code == 0
    assert place.stream("check", runs / "one").code == 0


def test_a_folder_of_runs_that_is_too_deep(place: Place) -> None:
    """There is room for a folder in it, and for no file in that."""
    runs = place.root
    while len(str(runs)) < 3800:
        runs /= "d" * 200
    runs /= "e" * (4070 - len(str(runs)))
    done = place.stream("observe", "--runs", runs, "--run-id", "one", "--", "true")
    assert done.code == 2
    assert "file name too long" in done.err


def test_a_scenario(place: Place) -> None:
    task = place.root / ODD
    task.mkdir()
    (task / "scenario.md").write_text("# Request\n\nx\n")
    run = observe(place, "--scenario", task, "--", "true")
    assert run.events[0]["session"]["session_id"] == SHOWN


def test_a_program_and_its_path(place: Place) -> None:
    tools = place.root / ODD
    tools.mkdir()
    write_script(tools / "deploy", "#!/bin/sh\necho deployed\n")
    agent = write_script(place.root / f"{ODD}.sh", "#!/bin/sh\ndeploy\n")
    path = f"{place.env['PATH']}:{tools}"
    run = observe(place, "--wrap", "deploy", "--", agent, env={"PATH": path})
    assert run.done.out == b"deployed\n"
    assert run.events[0]["session"]["agent_id"] == f"{SHOWN}.sh"
    assert [call["program"] for call in run.commands] == [f"{place.root}/{SHOWN}/deploy"]


def test_a_wrapped_name_that_is_no_text_is_refused(place: Place) -> None:
    done = place.stream("observe", "--wrap", ODD, "--", "true")
    assert done.code == 2
    assert "not a program name that can be recorded" in done.err


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"temperature":"hot"}', "$.temperature: expected a number"),
        ('{"max_tokens":true}', "$.max_tokens: expected a number"),
        ('{"language":"\\ud800"}', "half of a surrogate pair is no text"),
    ],
)
def test_parameters_that_no_event_may_carry(place: Place, text: str, sentence: str) -> None:
    file = place.root / "parameters.json"
    file.write_text(text)
    done = place.stream("observe", "--parameters", file, "--", "true")
    assert done.code == 2
    assert sentence in done.err
    assert not (place.workspace / "runs").exists()


def select_facts(run: Run) -> list[tuple[str, bytes]]:
    return [
        (artifact["hash"], msgspec.json.encode(artifact["metadata"]))
        for event in run.events
        for artifact in event["agent_action"]["artifacts"]
        if artifact["content_ref"] is None
    ]


@pytest.mark.parametrize("mode", ["full", "redacted"])
def test_facts_are_hashed_as_they_are_written(place: Place, mode: str) -> None:
    """A digest of a secret could be guessed at."""
    source = place.root / f"in-{SECRET}"
    source.mkdir()
    run = observe(place, "--source", source, "--capture", mode, "--", "true")
    found = select_facts(run)
    assert len(found) == 4
    for digest, written in found:
        assert digest == f"sha256:{hashlib.sha256(written).hexdigest()}"
    assert (SECRET in (run.folder / "events.jsonl").read_text()) == (mode == "full")


def test_records_of_probes_are_redacted_too(place: Place) -> None:
    folder = place.write_probes(a="", emit=f"emit --command 'echo {SECRET}'\n")
    words = ("--matrix", "--probes", folder, "--capture", "redacted")
    run = observe(place, *words, "--", "true")
    boundary = (run.folder / "boundary.ndjson").read_text()
    assert SECRET not in boundary
    assert "[redacted:anthropic:" in boundary
    assert place.stream("validate", run.folder / "boundary.ndjson").code == 0
    assert all(json.loads(line) for line in boundary.splitlines())
