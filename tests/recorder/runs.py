"""A run folder, read back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.cli.command import Done, Place

LOG = "artifacts/command_logs.jsonl"
#: What an agent does that waits until its call is written: that is, when it has been read.
LOGGED = f"git --version; until [ -s ../{LOG} ]; do :; done"


def read_records(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@dataclass
class Run:
    folder: Path
    done: Done

    @cached_property
    def events(self) -> list[Any]:
        return read_records(self.folder / "events.jsonl")

    @property
    def names(self) -> list[str]:
        return [event["event_type"] for event in self.events]

    @cached_property
    def summary(self) -> Any:
        return json.loads((self.folder / "artifacts/summary.json").read_bytes())

    @property
    def changes(self) -> dict[str, Any]:
        found = read_records(self.folder / "artifacts/fs_changes.jsonl")
        return {change["path"]: change for change in found}

    @property
    def commands(self) -> list[Any]:
        log = self.folder / "artifacts/command_logs.jsonl"
        return read_records(log) if log.exists() else []

    @property
    def stdout(self) -> bytes:
        return (self.folder / "artifacts/claude_stdout.txt").read_bytes()

    @property
    def stderr(self) -> bytes:
        return (self.folder / "artifacts/claude_stderr.txt").read_bytes()

    def event(self, name: str) -> Any:
        return next(event for event in self.events if event["event_type"] == name)

    def summary_of(self, name: str) -> str:
        text: str = self.event(name)["agent_action"]["action_summary"]
        return text

    def facts_of(self, name: str, kind: str = "process") -> Any:
        artifacts = self.event(name)["agent_action"]["artifacts"]
        return next(one["metadata"] for one in artifacts if one["type"] == kind)


def only_run(place: Place, done: Done) -> Run:
    (folder,) = (path for path in (place.workspace / "runs").iterdir() if path.is_dir())
    return Run(folder, done)


def observe(place: Place, *words: str | Path, check: bool = True, **how: Any) -> Run:
    """Recorded, and found to be in order."""
    run = only_run(place, place.stream("observe", *words, **how))
    if check:
        checked = place.stream("check", run.folder)
        assert (checked.code, checked.out) == (0, b""), checked.err
    return run
