"""What must not be written down is nowhere in a run folder but in the agent's own files."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.rig import ALLOWED, KEY, STREAM_JSON, Recorded, Rig, bash_turn, text_turn, write_turn

TOKEN = "ghp_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5"
PASSWORD = 'correct "horse" \\ battery+Zq8vX1pL'
REQUEST_TEXT = f"Deploy with {TOKEN}, the password is {PASSWORD}"
SCRIPT = [
    write_turn("config.py", f"TOKEN = {TOKEN!r}\n"),
    bash_turn('echo "$DB_PASSWORD" >password.txt; cat password.txt; echo "$ANTHROPIC_API_KEY"'),
    bash_turn(f'git --version; git {TOKEN} "$DB_PASSWORD" || echo {shlex.quote(PASSWORD)} >&2'),
    text_turn(f"It is {TOKEN} and {PASSWORD}."),
]


def record_with(rig: Rig, capture: str) -> Recorded:
    return rig.record(
        capture,
        SCRIPT,
        *(ALLOWED, *STREAM_JSON),
        prompt=(REQUEST_TEXT,),
        env={"DB_PASSWORD": PASSWORD},
        options=("--capture", capture, "--request", REQUEST_TEXT),
    )


@pytest.fixture(scope="module")
def full(rig: Rig) -> Recorded:
    return record_with(rig, "full")


@pytest.fixture(scope="module", params=["redacted", "hashed"])
def closed(request: pytest.FixtureRequest, rig: Rig) -> Recorded:
    return record_with(rig, request.param)


def written_down(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_relative_to(folder / "workspace"):
            yield str(path.relative_to(folder)), path.read_bytes()


def as_written(secret: str) -> set[bytes]:
    """Plain, as in JSON, and as in JSON in JSON."""
    once = json.dumps(secret)[1:-1]
    return {form.encode() for form in (secret, once, json.dumps(once)[1:-1])}


def places_of(secret: str, folder: Path) -> set[str]:
    forms = as_written(secret)
    return {name for name, data in written_down(folder) if any(form in data for form in forms)}


def test_everything_is_there_where_it_may_be(full: Recorded) -> None:
    """So that the next test means something."""
    files = {
        "events.jsonl",
        "metadata.json",
        "artifacts/claude_stdout.txt",
        "artifacts/command_logs.jsonl",
        "artifacts/fs_diff.patch",
    }
    assert places_of(TOKEN, full.folder) == files
    assert places_of(PASSWORD, full.folder) == files
    assert places_of(KEY, full.folder) == {"artifacts/claude_stdout.txt"}


@pytest.mark.parametrize("secret", [TOKEN, PASSWORD, KEY], ids=["token", "password", "key"])
def test_no_secret_is_written_down(closed: Recorded, secret: str) -> None:
    assert places_of(secret, closed.folder) == set()


def test_the_agents_own_files_are_as_it_wrote_them(closed: Recorded) -> None:
    assert (closed.workspace / "config.py").read_text() == f"TOKEN = {TOKEN!r}\n"
    assert (closed.workspace / "password.txt").read_text() == f"{PASSWORD}\n"
    assert set(closed.changes) == {"config.py", "password.txt"}


def test_who_reads_the_output_gets_it_whole(closed: Recorded) -> None:
    assert TOKEN.encode() in closed.done.out
    assert TOKEN not in closed.stdout


def test_what_a_digest_is_of(closed: Recorded) -> None:
    request = closed.events[1]["request"]
    if closed.folder.name == "redacted":
        assert request["user_request_raw"].startswith("Deploy with [redacted:")
        return
    assert request["user_request_raw"] == "hash"
    digest = hashlib.sha256(REQUEST_TEXT.encode()).hexdigest()
    assert request["context"]["user_request_hash"] == f"sha256:{digest}"
    own = hashlib.sha256(closed.done.out).hexdigest()
    assert closed.stdout == f"sha256:{own} bytes:{len(closed.done.out)}\n"
