"""Recognize what a path holds, by its beginning, so that a command can name the right one."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct

from stream.codec import DECODE_ERRORS
from stream.errors import UsageError

Kind = Literal["run", "archive", "boundary", "events", "telemetry", "record"]

#: what it is called, and the command that reads it
_KINDS: dict[Kind, tuple[str, str]] = {
    "run": ("the folder of a run", "check"),
    "archive": ("an archive", "verify"),
    "boundary": ("a file of boundary objects", "validate"),
    "events": ("a file of DecisionEvents", "check"),
    "telemetry": ("the raw telemetry of a kernel feed", "normalize"),
    "record": ("a file of other records", "validate"),
}
_GZIP = b"\x1f\x8b"
_BEGINNING = 1 << 18  #: bytes: enough for a first line


class _KindHead(Struct):
    """The fields that identify a contract."""

    schema: Any = UNSET
    capability_context: Any = UNSET
    observability_mode: Any = UNSET


_decode_head = msgspec.json.Decoder(_KindHead).decode


def expect_input(path: str | os.PathLike[str], *wanted: Kind) -> None:
    """Raise UsageError if a path clearly holds something that another command reads."""
    kind = kind_of_input(path)
    if kind is None or kind in wanted:
        return
    what, command = _KINDS[kind]
    raise UsageError(f"{path}: this is {what}: `stream {command} {path}` reads it")


def kind_of_input(path: str | os.PathLike[str]) -> Kind | None:
    """Return what a path holds, or None if that is not certain."""
    from stream.records.run import EVENTS_FILE, METADATA_FILE

    target = Path(path)
    try:
        mode = target.stat().st_mode
        if stat.S_ISDIR(mode):
            is_run = any((target / name).is_file() for name in (METADATA_FILE, EVENTS_FILE))
            return "run" if is_run else None
        if not stat.S_ISREG(mode):
            return None  # reading from a pipe would consume its data
        with target.open("rb") as file:
            beginning = file.read(_BEGINNING)
    except (OSError, ValueError):
        return None
    if beginning.startswith(_GZIP):
        return "archive"
    line = beginning.lstrip().partition(b"\n")[0]
    return _kind_of_line(line) or _kind_of_line(beginning)  # a document may have many lines


def _kind_of_line(line: bytes) -> Kind | None:
    """Return which kind of stream has such a first line, or None if that is not certain."""
    try:
        head = _decode_head(line)
    except DECODE_ERRORS:
        return None
    if head.capability_context is not UNSET:
        return "boundary"
    if head.observability_mode is not UNSET:
        return "events"
    from stream.records.kernel import RAW_CAPTURE, RAW_KERNEL  # most commands need no contracts

    if head.schema in (RAW_KERNEL, RAW_CAPTURE):
        return "telemetry"
    if not isinstance(head.schema, str):
        return None
    from stream.contracts import LONE
    from stream.records.control import CONTROL_SCHEMAS

    # A control record does not identify a file: it travels with any stream.
    return "record" if head.schema in LONE and head.schema not in CONTROL_SCHEMAS else None
