"""The composition behind `stream emit FLAGS…`: what emit-record does on its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from stream.catalog import find_catalogs
from stream.matrix import declared_sandbox_mode, system_name
from stream.pattern import find_descriptor
from stream.records.emission import Word
from stream.stages.flags import FILES, parse_words
from stream.stages.record import Recorder, Surroundings


def emit_words(words: Sequence[str]) -> bytes:
    """The record. Raises StreamError with the sentence that goes to stderr."""
    said = parse_words(list(_with_files(words)))
    catalogs = find_catalogs(said.text("--catalog"))
    descriptor = find_descriptor(said.text("--boundary"))
    around = Surroundings(system_name(), _workspace_root(), declared_sandbox_mode())
    return Recorder(catalogs, descriptor).from_spoken(said, around)


def _with_files(words: Sequence[str]) -> Iterator[Word]:
    """The words, with the contents of the files that some of them name."""
    flag = ""
    for word in words:
        text = os.fsencode(word)
        yield Word(text, _read(word)) if flag in FILES else Word(text)
        flag = "" if flag in FILES else word


def _read(path: str) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except OSError:
        return None


def _workspace_root() -> str:
    declared = os.environ.get("FENCE_WORKSPACE_ROOT")
    if declared:
        return declared
    try:
        git = subprocess.run(
            ["git", "rev-parse", "--show-toplevel"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=5,
        )
        return os.fsdecode(git.stdout.rstrip(b"\n"))
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("PWD") or str(Path.cwd())
