"""What a finished run says that it changed, where that is what it recorded."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct

from stream.errors import InputError, os_reason
from stream.records.change import FsChange, decode_change, exact_name
from stream.records.run import CHANGES_FILE, EVENTS_FILE, METADATA_FILE, RunMetadata


class _Artifact(Struct):
    content_ref: str | None = None
    hash: str = ""


class _Action(Struct, frozen=True):
    artifacts: list[_Artifact] = []


class _Event(Struct):
    event_type: str = ""
    agent_action: _Action = _Action()


def path_of(change: FsChange) -> bytes:
    return exact_name(change.path, change.path_base64)


def read_events(run: Path) -> dict[str, str]:
    """What the events say that the files of the run hold."""
    digests: dict[str, str] = {}
    is_finished = False
    try:
        with (run / EVENTS_FILE).open("rb") as lines:
            for line in lines:
                with suppress(msgspec.MsgspecError):
                    event = msgspec.json.decode(line, type=_Event)
                    is_finished |= event.event_type == "run_finished"
                    for one in event.agent_action.artifacts:
                        digests[one.content_ref or ""] = one.hash
    except OSError as error:
        raise InputError(f"{error.filename}: {os_reason(error)}") from None
    if not is_finished:
        raise InputError(f"{run}: the run did not come to its end: there is no run_finished in it")
    return digests


def _check_digest(run: Path, name: str, found: str, digests: Mapping[str, str]) -> None:
    """Whoever could write to the record must not choose what is taken over, and where to."""
    if digests.get(name, found) != found:
        raise InputError(f"{run / name}: is not what the run recorded: stream check {run}")


def read_metadata(run: Path, digests: Mapping[str, str]) -> RunMetadata:
    path = run / METADATA_FILE
    try:
        data = path.read_bytes()
        _check_digest(run, METADATA_FILE, f"sha256:{sha256(data).hexdigest()}", digests)
        return msgspec.json.decode(data, type=RunMetadata)
    except OSError as error:
        raise InputError(f"{error.filename}: {os_reason(error)}") from None
    except msgspec.MsgspecError as error:
        raise InputError(f"{path}: {error}") from None


def read_changes(run: Path, digests: Mapping[str, str]) -> list[FsChange]:
    path = run / CHANGES_FILE
    changes = []
    hashed = sha256()
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                hashed.update(line)
                try:
                    change = decode_change(line)
                    _check_path(path_of(change))
                except (msgspec.MsgspecError, ValueError) as error:
                    raise InputError(f"{path}:{number}: {error}") from None
                changes.append(change)
    except OSError as error:
        raise InputError(f"{path}: {os_reason(error)}") from None
    _check_digest(run, CHANGES_FILE, f"sha256:{hashed.hexdigest()}", digests)
    return changes


def _check_path(path: bytes) -> None:
    if b"\0" in path or {b"", b".", b".."} & set(path.split(b"/")):
        raise ValueError("`$.path`: leads out of the workspace")
