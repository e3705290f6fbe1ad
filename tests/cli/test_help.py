"""What a user sees who asks, or mistypes; and what they wait for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer.main

from stream.cli.app import app
from tests.cli.command import STREAM, Place

GROUP: Any = typer.main.get_command(app)
COMMANDS: dict[str, Any] = {n: c for n, c in GROUP.commands.items() if not c.hidden}


def test_every_command_and_option_is_documented() -> None:
    for name, command in COMMANDS.items():
        assert command.help, name
        first = command.help.splitlines()[0]
        assert len(first) <= 68, f"{name}: cut in the list of commands"
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.name}"
    for parameter in GROUP.params:
        assert parameter.help


def test_the_readme_lists_every_command() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text()
    table = text.partition("## The commands")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    listed = [name.strip(" `") for row in rows for name in row.split(",")]
    assert sorted(listed) == sorted(COMMANDS)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(place: Place, command: str) -> None:
    done = place.stream(*command.split(), "--help")
    text = done.out.decode()
    assert (done.code, done.err) == (0, "")
    assert text.startswith(f"Usage: stream {command}".rstrip())
    assert "\b" not in text
    assert "..." not in text.replace("[ARGS]...", "")
    assert all(len(line) <= 100 for line in text.splitlines())
    documented = COMMANDS[command].params if command else GROUP.params
    for parameter in documented:
        for flag in parameter.opts:
            if flag.startswith("--"):
                assert flag in text


def test_the_examples_stand_on_lines_of_their_own(place: Place) -> None:
    lines = place.stream("--help").out.decode().splitlines()
    assert "    stream matrix | stream listen -" in lines
    pipe = "    stream matrix --raw | stream emit - | stream validate - > boundary.ndjson"
    assert pipe in lines


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["matrx"], "Did you mean 'matrix'?"),
        (["matrix", "--prob", "x"], "--probe"),
        (["matrix", "--jbos", "1"], "--jobs"),
        (["validate", "--finding", "x", "y"], "--findings"),
        (["gate", "--statc"], "--static"),
        (["check", "--rule"], "--rules"),
        (["matrix", "stray"], "unexpected extra argument"),
        (["matrix", "--jobs", "many"], "not a valid int"),
        (["matrix", "--jobs", "0"], "x>=1"),
        (["probe", "x", "--timeout", "nan"], "x>=0.01"),
        (["gate", "--timeout", "-1"], "x>=0.01"),
        (["doctor", "--jsn"], "--json"),
        (["helpers", "x"], "unexpected extra argument"),
    ],
)
def test_mistakes(place: Place, words: list[str], sentence: str) -> None:
    done = place.stream(*words)
    assert (done.code, done.out) == (2, b"")
    assert sentence in done.err


def test_no_arguments(place: Place) -> None:
    done = place.stream()
    assert done.code == 2
    assert "Usage: stream" in done.out.decode() + done.err


def test_version(place: Place) -> None:
    done = place.stream("--version")
    assert (done.code, done.out.split()[0]) == (0, b"stream")


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["matrix", "--help"]])
def test_help_loads_nothing_heavy(place: Place, words: list[str]) -> None:
    python = str(Path(STREAM).with_name("python"))
    done = place.stream(*words, argv0=(python, "-X", "importtime", "-m", "stream"))
    loaded = {line.rpartition("|")[2].strip() for line in done.err.splitlines()}
    assert "stream.cli" in loaded
    assert not loaded & {"anyio", "msgspec", "asyncio", "aiofiles", "jsonschema_rs", "rich"}


def test_helpers(place: Place) -> None:
    folder = Path(place.stream("helpers").out.decode().strip())
    assert {"emit-record", "detect-stack", "json-extract"} <= {p.name for p in folder.iterdir()}


def test_doctor(place: Place) -> None:
    text = place.stream("doctor")
    checks = place.stream("doctor", "--json").records
    assert text.code == 0
    assert len(text.out.splitlines()) == len(checks)
    by_name = {check["name"]: check for check in checks}
    assert by_name["bash"]["state"] == "ok"
    assert by_name["boundary"]["state"] == "ok"
    assert all(check["detail"] for check in checks)
    assert {check["state"] for check in checks} <= {"ok", "missing", "limited"}


def test_doctor_without_bash_or_catalog(place: Place) -> None:
    done = place.stream("doctor", "--json", env={"PATH": "/nonexistent"}, argv0=(STREAM,))
    assert done.code == 1
    assert {"bash", "perl"} <= {c["name"] for c in done.records if c["state"] == "missing"}
    done = place.stream("doctor", env={"CATALOG_PATH": "/nonexistent.json"})
    assert done.code == 1
    assert "/nonexistent.json: no such file" in done.out.decode()


def test_output_that_cannot_show_every_character(place: Place) -> None:
    done = place.stream("matrix", "--help", env={"PYTHONIOENCODING": "ascii"})
    assert (done.code, json.dumps(done.err)) == (0, '""')
