"""A command that is given what another one reads is refused with a sentence that names that one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.cli.command import Place
from tests.cli.conftest import make_place
from tests.evidence.raw import raw_open
from tests.recorder.runs import only_run
from tests.transformers.cells import PLAIN

#: what is given -> the command that reads it
READ_BY = {
    "run": "check",
    "run.tar.gz": "verify",
    "boundary.ndjson": "validate",
    "events.jsonl": "check",
    "raw.ndjson": "normalize",
    "metadata.json": "validate",
    "kernel.ndjson": "validate",
}
RECORDS = ("metadata.json", "kernel.ndjson")
#: command -> what it does not read
WRONG = {
    "check": ["run.tar.gz", "boundary.ndjson", "raw.ndjson", *RECORDS],
    "validate": ["run", "run.tar.gz"],
    "listen": ["run", "run.tar.gz", "events.jsonl", "raw.ndjson", *RECORDS],
    "report": ["run", "run.tar.gz", "events.jsonl", "raw.ndjson", *RECORDS],
    "verify": ["boundary.ndjson", "events.jsonl", "raw.ndjson", *RECORDS],
    "apply": ["run.tar.gz", "boundary.ndjson", "events.jsonl", *RECORDS],
    "normalize": ["run", "run.tar.gz", "boundary.ndjson", "events.jsonl", *RECORDS],
    "archive": ["run.tar.gz", "boundary.ndjson", "events.jsonl", *RECORDS],
}

KERNEL_LINE = (
    b'{"schema":"assay.runner.kernel_event.v0","run_id":"r","seq":0,"pid":7,"event_type":1001,'
    b'"kind":"event_1001","value":"/a"}'
)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Place = make_place(tmp_path_factory.mktemp("made"))
    done = place.stream("observe", "-q", "--archive", place.root / "run.tar.gz", "--", "true")
    assert done.code == 0, done.err
    run = only_run(place, done).folder
    for name in ("events.jsonl", "metadata.json"):
        (place.root / name).write_bytes((run / name).read_bytes())
    (place.root / "kernel.ndjson").write_bytes(KERNEL_LINE + b"\n")
    (place.root / "boundary.ndjson").write_bytes(PLAIN + b"\n")
    (place.root / "raw.ndjson").write_bytes(msgspec.json.encode(raw_open("/a")))
    run.rename(place.root / "run")
    return place.root


@pytest.mark.parametrize("command", WRONG)
def test_the_command_that_fits_is_named(place: Place, samples: Path, command: str) -> None:
    for name in WRONG[command]:
        given = samples / name
        words = ("-o", place.root / "new.tar.gz") if command == "archive" else ()
        done = place.stream(command, given, *words)
        assert (done.code, done.out) == (2, b""), (command, name, done.err)
        (sentence,) = done.err.splitlines()
        assert sentence.startswith(f"stream: {given}: this is "), sentence
        assert sentence.endswith(f": `stream {READ_BY[name]} {given}` reads it"), sentence


def test_the_command_that_is_named_reads_it(place: Place, samples: Path) -> None:
    for name, command in READ_BY.items():
        words = ("--profile", "agents") if name == "events.jsonl" else ()
        done = place.stream(command, samples / name, *words)
        assert done.code == 0, (name, done.err)
