"""A descriptor and a pattern of the user's own, in every command that has to do with records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stream.codec import BUNDLE
from tests.cli.command import CAPABILITY, Place

NAMED = "boundary-descriptor.json"


def make_pattern(version: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(
        (BUNDLE / "schema" / "boundary_object_schema.json").read_text()
    )
    schema["properties"]["schema_version"]["const"] = version
    schema["properties"]["run"]["properties"]["mode"]["enum"] = ["baseline", "caged"]
    return schema


@pytest.fixture
def descriptor(place: Place) -> Path:
    (place.root / "pattern.json").write_text(json.dumps(make_pattern("boundary_event_v9")))
    path = place.root / "mine.json"
    path.write_text(
        json.dumps(
            {
                "schema_version": "boundary_schema_v1",
                "key": "mine-v2",
                "pattern_version": "boundary_event_v9",
                "schema_path": "pattern.json",
            }
        )
    )
    return path


@pytest.mark.parametrize("is_flag", [True, False])
def test_a_run_carries_what_its_records_need(
    place: Place, descriptor: Path, *, is_flag: bool
) -> None:
    words = ["--boundary", str(descriptor)] if is_flag else []
    if not is_flag:
        place.env["BOUNDARY_PATH"] = str(descriptor)
    runs, archive = place.root / "runs", place.root / "a.tar.gz"
    done = place.stream(
        "observe", "-q", "--runs", runs, "--run-id", "r1", "--workspace", "empty", "--matrix",
        "--cap", CAPABILITY, *words, "--archive", archive, "--", "true",
    )  # fmt: skip
    assert done.code == 0, done.err
    # Whoever reads it has neither the flag nor the files.
    place.env.pop("BOUNDARY_PATH", None)
    descriptor.unlink()
    run = runs / "r1"
    assert (run / "boundary.ndjson").read_bytes()
    for words in (["verify", str(archive)], ["verify", str(run)], ["check", str(run)]):
        done = place.stream(*words)
        assert done.code == 0, done.err
    again = place.root / "b.tar.gz"
    assert place.stream("archive", run, "-o", again).code == 0
    records = run / "boundary.ndjson"
    assert place.stream("validate", records, "--boundary", run / NAMED).code == 0
    assert place.stream("listen", records, "--boundary", run / NAMED).code == 0
    done = place.stream("validate", records)
    assert (done.code, "; --boundary names a pattern of your own" in done.err) == (1, True)
    # Without it nobody knows what they are.
    (run / NAMED).unlink()
    assert place.stream("verify", run).code == 1
    assert place.stream("check", run).code == 1


def test_a_stream_of_them_becomes_an_archive(place: Place, descriptor: Path) -> None:
    named = ["--boundary", str(descriptor)]
    data = place.stream("matrix", "--cap", CAPABILITY, *named).out
    assert data
    refused, good = place.root / "no.tar.gz", place.root / "yes.tar.gz"
    done = place.stream("archive", "-", "--run-id", "r1", "-o", refused, data=data)
    assert (done.code, "boundary_event_v9" in done.err) == (1, True)
    done = place.stream("archive", "-", "--run-id", "r1", "-o", good, *named, data=data)
    assert done.code == 0, done.err
    assert place.stream("verify", good).code == 0
    assert place.stream("check", "-", *named, data=data).code == 0
    bad = data.replace(b'"mode":"baseline"', b'"mode":"free"')
    assert place.stream("check", "-", *named, data=bad).code == 1


@pytest.mark.parametrize("version", ["boundary_event_v1", "boundary_event_v2"])
@pytest.mark.parametrize("command", ["matrix --list", "validate x", "listen x", "check x"])
def test_a_pattern_that_keeps_the_name_is_refused(place: Place, command: str, version: str) -> None:
    (place.workspace / "x").write_bytes(b"")
    document = {
        "schema_version": "boundary_schema_v1",
        "key": "mine-v1",
        "pattern_version": version,
        "schema": make_pattern(version),
    }
    (place.workspace / "same.json").write_text(json.dumps(document))
    done = place.stream(*command.split(), "--boundary", "same.json")
    assert done.code == 2
    assert "a change of it needs a version of its own" in done.err


def test_what_came_with_the_records_reads_no_other_file(place: Place, descriptor: Path) -> None:
    named = ["--boundary", str(descriptor)]
    data = place.stream("matrix", "--cap", CAPABILITY, *named).out
    folder = place.root / "run"
    folder.mkdir()
    (folder / "events.jsonl").write_bytes(b"")
    (folder / "boundary.ndjson").write_bytes(data)
    (folder / NAMED).write_bytes(descriptor.read_bytes())  # which names a file next to it
    (folder / "pattern.json").write_text(json.dumps(make_pattern("boundary_event_v9")))
    done = place.stream("verify", folder)
    assert done.code == 1
    assert "$.schema_path: it came without its pattern" in done.err


@pytest.mark.parametrize("is_flag", [True, False])
def test_the_gate_holds_a_record_to_the_pattern_that_is_named(
    place: Place, descriptor: Path, *, is_flag: bool
) -> None:
    schema = make_pattern("boundary_event_v9")
    schema["properties"]["operation"]["properties"]["verb"] = {"enum": ["fly"]}
    (descriptor.parent / "pattern.json").write_text(json.dumps(schema))
    words = ["--boundary", str(descriptor)] if is_flag else []
    if not is_flag:
        place.env["BOUNDARY_PATH"] = str(descriptor)
    done = place.stream("gate", "net_localhost_loopback", *words)
    assert done.code == 1
    assert "the record breaks mine-v2: $.operation.verb" in done.err
