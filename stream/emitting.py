"""The composition behind `stream emit FLAGS…`: what emit-record does on its own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from stream.catalog import find_catalogs
from stream.errors import EmitError, StreamError
from stream.pattern import find_descriptor
from stream.plan import declared_sandbox_mode, workspace_root
from stream.probes import utf8
from stream.records.emission import FILE_MOST, Word
from stream.stages.flags import FILES, PAIRS, parse_words
from stream.stages.record import Recorder, Surroundings
from stream.system import system_name


def emit_words(words: Sequence[str]) -> bytes:
    """The record. Raises EmitError with the sentence that goes to stderr."""
    try:
        said = parse_words(list(_with_files(words)))
        catalogs = find_catalogs(said.text("--catalog"))
        descriptor = find_descriptor(said.text("--boundary"))
        around = Surroundings(system_name(), utf8(workspace_root()), declared_sandbox_mode())
        return Recorder(catalogs, descriptor).from_spoken(said, around)
    except StreamError as error:  # emit-record knows one exit code for all that is wrong
        raise EmitError(str(error)) from None


def _with_files(words: Sequence[str]) -> Iterator[Word]:
    """The words, with the contents of the files that some of them name."""
    flag, values = "", 0
    for word in words:
        text = os.fsencode(word)
        yield Word(text, _read(word)) if values and flag in FILES else Word(text)
        if values:
            values -= 1
        else:
            flag, values = word, 2 if word in PAIRS else 1


def _read(path: str) -> bytes | None:
    """As much as helpers/emit-record sends along, and like it without NULs."""
    try:
        with Path(path).open("rb") as file:
            return file.read(FILE_MOST).replace(b"\0", b"")
    except (OSError, ValueError):
        return None
