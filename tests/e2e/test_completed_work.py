"""Work that is done: files are written, tests are run, and the record shows it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from stream.records.decision import ORDER
from tests.e2e.rig import (
    ALLOWED,
    REQUEST,
    STREAM_JSON,
    Recorded,
    Rig,
    bash_turn,
    bundled_claude,
    check_summary,
    text_turn,
    write_turn,
)

CODE = "def add(a, b):\n    return a + b\n"
TEST = "from calc import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n"
WORK = [
    {"content": [{"text": "I write both."}, *write_turn("calc.py", CODE)["content"]]},
    write_turn("tests/test_calc.py", TEST),
    bash_turn("python3 -m pytest -q -p no:cacheprovider && pytest --version"),
    bash_turn(
        "printf 'new\\n' >README.txt; rm gone.bin; ln -s README.txt link; chmod +x tool; exit 3"
    ),
    text_turn("All tests pass."),
]


@pytest.fixture(scope="module")
def project(rig: Rig) -> Path:
    folder = rig.place.root / "project"
    folder.mkdir()
    (folder / "README.txt").write_bytes(b"old\r\n")
    (folder / "gone.bin").write_bytes(bytes(range(256)))
    (folder / "tool").write_text("#!/bin/sh\n")
    return folder


@pytest.fixture(scope="module")
def worked(rig: Rig, project: Path) -> Recorded:
    return rig.record("worked", WORK, ALLOWED, *STREAM_JSON, options=("--source", project))


def test_the_files_are_there(worked: Recorded) -> None:
    assert (worked.workspace / "calc.py").read_text() == CODE
    assert (worked.workspace / "tests/test_calc.py").read_text() == TEST
    assert worked.summary["changed_paths"] == 6
    whole = {path: change["change"] for path, change in worked.changes.items()}
    assert whole == {
        "README.txt": "changed",
        "calc.py": "added",
        "gone.bin": "removed",
        "link": "added",
        "tests": "added",
        "tests/test_calc.py": "added",
        "tool": "changed",
    }


def test_the_diff_makes_of_the_source_what_the_agent_made(
    worked: Recorded, project: Path, tmp_path: Path
) -> None:
    rebuilt = tmp_path / "rebuilt"
    shutil.copytree(project, rebuilt)
    patch = worked.folder / "artifacts/fs_diff.patch"
    subprocess.run(["git", "apply", str(patch)], cwd=rebuilt, check=True)
    assert read_folder(rebuilt) == read_folder(worked.workspace)


def read_folder(folder: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = path.readlink()
        elif path.is_file():
            found[name] = (path.stat().st_mode & 0o111, path.read_bytes())
    return found


def test_the_source_is_as_it_was(worked: Recorded, project: Path) -> None:
    assert worked.metadata["source"] == str(project)
    assert {path.name for path in project.iterdir()} == {"README.txt", "gone.bin", "tool"}
    assert (project / "README.txt").read_bytes() == b"old\r\n"


def test_the_calls_are_logged(worked: Recorded) -> None:
    calls = {(call["name"], call["category"]) for call in worked.commands}
    assert {("python3", "test"), ("pytest", "test")} <= calls
    [call] = [call for call in worked.commands if call["name"] == "pytest"]
    assert call["argv"] == ["pytest", "--version"]
    assert call["cwd"] == str(worked.workspace)
    assert not call["after_exit"]
    assert worked.summary["commands"] == len(worked.commands)


def test_the_seventh_event_reports_tests(worked: Recorded) -> None:
    event = worked.events[6]
    assert event["event_type"] == "commands_observed"
    assert event["agent_action"]["action_type"] == "run_tests"
    [artifact] = event["agent_action"]["artifacts"]
    assert artifact["metadata"]["observed_count"] == len(worked.commands)
    assert "test" in artifact["metadata"]["categories_seen"]


def test_the_agent_is_named(worked: Recorded) -> None:
    claude = bundled_claude()
    assert claude is not None
    version = claude.with_name("claude.version").read_text().split()[0]
    assert worked.metadata["agent_version"] == version
    assert worked.metadata["profile"] == "poc"
    for event in worked.events:
        assert event["session"]["agent_id"] == "claude-code"
        assert event["session"]["agent_version"] == version
        assert event["session"]["session_id"] == "add_function"
        assert event["prompt_provenance"]["provider"] == "anthropic"


def test_the_nine_events_carry_the_request(worked: Recorded) -> None:
    for event, names in zip(worked.events, ORDER, strict=True):
        assert event["event_type"] in names
        assert event["request"]["user_request_raw"] == REQUEST
        ids = [constraint["id"] for constraint in event["request"]["constraints"]]
        assert ids == ["style.no_emojis", "scope.no_ci_changes", "quality.tests_required"]
        assert event["model_output"]["tool_calls"] == []


def test_the_output_is_kept_as_it_came(worked: Recorded) -> None:
    assert worked.done.code == 0
    assert worked.done.out.decode() == worked.stdout
    assert (worked.folder / "artifacts/claude_stderr.txt").read_bytes() == b""
    [result] = worked.results
    assert result["result"] == "All tests pass."
    assert "verbose=yes" in worked.summary_of(3)
    assert not worked.summary["outlived"]


def test_the_script_was_played_to_its_end(worked: Recorded) -> None:
    """What the tools answered, as the model saw it."""
    last = worked.requests[-1]
    assert last["step"] == len(WORK) - 1
    assert [bool(result["is_error"]) for result in last["results"]] == [False, False, False, True]
    assert "1 passed" in last["results"][2]["content"]


def test_it_is_evaluated(worked: Recorded) -> None:
    check_summary(worked, quality="pass", policy="pass", declared_denials=0, declared_error=False)


def test_two_turns_of_one_conversation(rig: Rig) -> None:
    """The second message is given when the first is answered."""
    script = [
        write_turn("a.txt", "a\n"),
        text_turn("one"),
        bash_turn("cat a.txt >b.txt"),
        text_turn("two"),
    ]
    session = rig.start(
        "two-turns",
        script,
        *(ALLOWED, *STREAM_JSON, "--input-format", "stream-json"),
        prompt=(),
        stdin=subprocess.PIPE,
    )
    assert session.process.stdin is not None
    session.process.stdin.write(encode_message("one"))
    session.process.stdin.flush()
    session.read_until(b'"type":"result"')
    recorded = session.finish(encode_message("two"))
    assert [result["result"] for result in recorded.results] == ["one", "two"]
    assert set(recorded.changes) == {"a.txt", "b.txt"}
    [artifact] = recorded.events[2]["agent_action"]["artifacts"]
    assert artifact["metadata"]["stdin"] == "inherited"


def encode_message(words: str) -> bytes:
    content = {"role": "user", "content": [{"type": "text", "text": words}]}
    return json.dumps({"type": "user", "message": content}).encode() + b"\n"
