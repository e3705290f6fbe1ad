"""The documents of a run folder, their schema and their page agree."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from stream.contracts import SCHEMAS
from tests.cli.command import Place
from tests.recorder.runs import observe, read_records

SCHEMA = Path(__file__).resolve().parents[2] / "schema"
FILE = SCHEMA / "run_folder.schema.json"
TITLE, KINDS = SCHEMAS["run_folder.schema.json"]


def schema_of_the_structs() -> dict[str, Any]:
    refs, definitions = msgspec.json.schema_components(KINDS, ref_template="#/definitions/{name}")
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": TITLE,
        "oneOf": list(refs),
        "definitions": definitions,
    }


def test_the_schema_is_that_of_the_structs() -> None:
    found = schema_of_the_structs()
    if os.environ.get("STREAM_UPDATE_GOLDENS"):
        FILE.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    assert json.loads(FILE.read_text()) == found


@pytest.mark.parametrize("capture", ["full", "redacted", "hashed"])
def test_a_run_keeps_its_schemas(place: Place, capture: str) -> None:
    run = observe(place, "--capture", capture, "--", "sh", "-c", "git --version; echo x >y")
    is_valid = jsonschema_rs.validator_for(json.loads(FILE.read_text())).is_valid
    change = json.loads((SCHEMA / "fs_change.schema.json").read_text())
    event = json.loads((SCHEMA / "decision_event.schema.json").read_text())
    documents = ["metadata.json", "artifacts/summary.json", "artifacts/manifest.json"]
    for name in documents:
        document = json.loads((run.folder / name).read_bytes())
        assert is_valid(document), name
        assert not is_valid({**document, "more": 1}), name
    assert all(map(is_valid, run.commands))
    assert len(run.commands) == 1
    (changed,) = read_records(run.folder / "artifacts/fs_changes.jsonl")
    assert jsonschema_rs.validator_for(change).is_valid(changed)
    assert all(map(jsonschema_rs.validator_for(event).is_valid, run.events))


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_on_the_page(kind: type[msgspec.Struct]) -> None:
    page = (SCHEMA / "run-folder.md").read_text()
    missing = [name for name in kind.__struct_fields__ if f"`{name}`" not in page]
    assert not missing


def test_validate_knows_them_all(place: Place) -> None:
    run = observe(place, "--", "sh", "-c", "git --version; echo x >y")
    names = ["metadata.json", "events.jsonl"]
    names += [f"artifacts/{name}" for name in ("summary.json", "manifest.json")]
    names += [f"artifacts/{name}" for name in ("fs_changes.jsonl", "command_logs.jsonl")]
    done = place.stream("validate", *(run.folder / name for name in names))
    assert (done.code, done.out) == (0, b""), done.err
    lines = [(run.folder / name).read_bytes().splitlines()[-1] for name in names[1:2] + names[4:]]
    broken = [line.replace(b'"name":', b'"names":') for line in lines[2:]]
    broken += [line.replace(b'"black_box"', b'"white_box"') for line in lines[:1]]
    broken += [line.replace(b'"change":"added"', b'"change":"new"') for line in lines[1:2]]
    done = place.stream("validate", "-", data=b"\n".join([*broken, b""]))
    assert (done.code, done.out) == (1, b"")
    assert len(done.err.splitlines()) == 4
