"""The real Claude Code under `stream observe`, its model a script on loopback.

In a network namespace of its own, where one can be made, no packet can leave. The environment
has nothing of ours in it: no key but a made-up one, and a home that is empty.
"""

from __future__ import annotations

import importlib.util
import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any

import pytest

from tests.cli.command import HELPERS, PATIENCE, STREAM, Done, Place

STUB = HELPERS / "scripted-model"
KEY = "sk-ant-api03-made-up-for-a-test-0123456789abcdefghijklmnop"
LIMIT = "40"  #: seconds of an agent that only a bug lets run on
REQUEST = "Add a function and a test for it."
ALLOWED = "--dangerously-skip-permissions"
JSON = ("--output-format", "json")
STREAM_JSON = ("--output-format", "stream-json", "--verbose")

Turn = dict[str, Any]


def bundled_claude() -> Path | None:
    """The native program that a Python package carries. Nothing of the package is loaded."""
    found = importlib.util.find_spec("claude_agent_sdk")
    if found is None or found.origin is None:
        return None
    claude = Path(found.origin).with_name("_bundled") / "claude"
    return claude if claude.exists() else None


def text_turn(words: str) -> Turn:
    return {"content": [{"text": words}]}


def write_turn(path: str, content: str) -> Turn:
    return {"content": [{"tool": "Write", "input": {"file_path": path, "content": content}}]}


def bash_turn(command: str, **more: Any) -> Turn:
    given = {"command": command, "description": "Run it", **more}
    return {"content": [{"tool": "Bash", "input": given}]}


@dataclass
class Recorded:
    """A run that is over, and was found to be whole."""

    folder: Path
    done: Done
    requests: list[Any]  #: what the stub got

    def lines(self, name: str) -> list[Any]:
        return [json.loads(line) for line in (self.folder / name).read_bytes().splitlines()]

    @property
    def events(self) -> list[Any]:
        return self.lines("events.jsonl")

    @property
    def summary(self) -> Any:
        return json.loads((self.folder / "artifacts/summary.json").read_bytes())

    @property
    def metadata(self) -> Any:
        return json.loads((self.folder / "metadata.json").read_bytes())

    @property
    def stdout(self) -> str:
        return (self.folder / "artifacts/claude_stdout.txt").read_text()

    @property
    def patch(self) -> str:
        return (self.folder / "artifacts/fs_diff.patch").read_text()

    @property
    def commands(self) -> list[Any]:
        path = "artifacts/command_logs.jsonl"
        return self.lines(path) if (self.folder / path).exists() else []

    @property
    def changes(self) -> dict[str, Any]:
        return {change["path"]: change for change in self.lines("artifacts/fs_changes.jsonl")}

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    @property
    def results(self) -> list[Any]:
        """The `result` lines of stream-json."""
        lines = map(json.loads, self.stdout.splitlines())
        return [line for line in lines if line["type"] == "result"]

    def summary_of(self, number: int) -> str:
        """The summary of an event, by its number from 1 on."""
        summary: str = self.events[number - 1]["agent_action"]["action_summary"]
        return summary


@dataclass
class Session:
    """A run that goes on."""

    rig: Rig
    folder: Path
    stub: subprocess.Popen[bytes]
    process: subprocess.Popen[bytes]
    agent: str  #: that it was found to be

    def finish(self, data: bytes | None = None, *, is_whole: bool = True) -> Recorded:
        """Every run that a test looks at is whole, where it asks for nothing else, and its record
        holds."""
        done = self.rig.place.finish(self.process, data)
        end_stub(self.stub)
        assert ("incomplete" not in done.err) == is_whole, done.err
        assert "breaks its own contract" not in done.err
        checked = self.rig.place.stream("check", self.folder)
        assert (checked.code, bool(checked.out)) == ((0, False) if is_whole else (1, True)), (
            done.err + checked.err
        )
        recorded = Recorded(self.folder, done, self.rig.requests(self.folder.name))
        assert len(recorded.events) == 9
        assert recorded.summary["exit_code"] == done.code
        assert f"exit_code={done.code} " in recorded.summary_of(4)
        assert recorded.metadata["agent_id"] == self.agent
        return recorded

    def read_until(self, words: bytes) -> None:
        """What of its stdout stands before, and the line itself."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if words in line:
                return
        pytest.fail(f"{words!r} never came")


@dataclass
class Rig:
    place: Place
    scenario: Path
    stubs: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def record(
        self,
        name: str,
        script: Sequence[Turn],
        *words: str,
        is_whole: bool = True,
        **how: Any,
    ) -> Recorded:
        return self.start(name, script, *words, **how).finish(is_whole=is_whole)

    def start(
        self,
        name: str,
        script: Sequence[Turn],
        *words: str,
        options: Sequence[str | Path] = (),
        command: Sequence[str] = ("claude", "-p"),
        agent: str = "claude-code",
        prompt: Sequence[str] = (REQUEST,),
        env: Mapping[str, str] | None = None,
        port: int | None = None,
        stdin: IO[Any] | int = subprocess.DEVNULL,
    ) -> Session:
        stub, own_port = self._serve(name, script)
        given = ("--run-id", name, "--scenario", self.scenario, "--timeout", LIMIT, *options)
        inside = ("nsenter", f"--net=/proc/{stub.pid}/ns/net") if is_alone() else ()
        process = self.place.start(
            "observe",
            *given,
            *("--", *command, *prompt, *words),
            argv0=(*inside, STREAM),
            env={"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port or own_port}", **(env or {})},
            stdin=stdin,
        )
        return Session(self, self.place.workspace / "runs" / name, stub, process, agent)

    def request_log(self, name: str) -> Path:
        return self.place.root / f"{name}.requests.jsonl"

    def requests(self, name: str) -> list[Any]:
        log = self.request_log(name)
        return [json.loads(line) for line in log.read_bytes().splitlines()] if log.exists() else []

    def _serve(self, name: str, script: Sequence[Turn]) -> tuple[subprocess.Popen[bytes], int]:
        path = self.place.root / f"{name}.script.json"
        path.write_text(json.dumps(list(script)))
        argv = [sys.executable, str(STUB), str(path), "--log", str(self.request_log(name))]
        if is_alone():
            argv = ["unshare", "-n", *argv]
        stub = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.stubs.append(stub)
        assert stub.stdout is not None
        return stub, int(stub.stdout.readline())


def check_summary(recorded: Recorded, **expected: Any) -> None:
    """What the evaluation of a run comes to, as its summary has it."""
    found = recorded.summary
    assert {name: found[name] for name in expected} == expected


def end_stub(stub: subprocess.Popen[bytes]) -> None:
    stub.communicate(timeout=PATIENCE)


def read_fifo(fifo: Path) -> str:
    """Waits until somebody writes there."""
    fd = os.open(fifo, os.O_RDWR)
    try:
        ready, _, _ = select.select([fd], [], [], PATIENCE)
        assert ready, f"nobody wrote to {fifo}"
        return os.read(fd, 4096).decode()
    finally:
        os.close(fd)


@cache
def is_alone() -> bool:
    """Whether there are network namespaces for us."""
    if not (shutil.which("unshare") and shutil.which("nsenter")):
        return False
    tried = subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False)
    return tried.returncode == 0
