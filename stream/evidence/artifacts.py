"""What a run left as evidence, wherever it lies: an archive, a run folder, or loose files.

It reads, it does not verify. Nothing is unpacked, and no more is held than one artifact may be
large; what is too large or broken is said, never raised.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from stream.codec import DECODE_ERRORS, LineSplitter, OverlongLine, contract_of
from stream.enclosure import kind_of
from stream.errors import InputError, os_reason
from stream.records.run import EVENTS_FILE
from stream.records.runner import (
    ARCHIVE_MANIFEST,
    COMPANION_FILE,
    CORRELATION,
    CORRELATION_FILE,
    HEALTH,
    HEALTH_FILE,
    SURFACE,
    SURFACE_FILE,
)

if TYPE_CHECKING:
    from tarfile import TarFile

BESIDE = (COMPANION_FILE, EVENTS_FILE)  #: what may be there as well
ARTIFACTS = {SURFACE_FILE: SURFACE, CORRELATION_FILE: CORRELATION, HEALTH_FILE: HEALTH}
MOST_ARTIFACT = 256 << 20  #: bytes of one artifact
MOST_EVENTS = 1 << 20  #: how much of the run's events: what it began with
MOST_ARCHIVE = 64 << 30  #: decoded bytes that are looked through
_BLOCK = 1 << 18
_AT_ONCE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  #: nobody waits for who writes to a fifo
_NEITHER = "neither a run folder nor an archive"
_TOO_LARGE = f"an artifact above the limit of {MOST_ARTIFACT} bytes"


_PREPARED, _FIRST_EVENTS = "workspace_prepared", 2


class _Item(Struct):
    metadata: dict[str, Any] = {}


class _Action(Struct):
    artifacts: list[_Item] = []


class _Begun(Struct):
    event_type: str
    agent_action: _Action


_decode_begun = msgspec.json.Decoder(_Begun).decode


class DamagedError(InputError):
    """Evidence that is there and cannot be read to its end."""


def read_artifacts(path: str) -> dict[str, bytes]:
    """The JSON artifacts by their names, as far as there are any, and how the events begin.

    Raises InputError where there is nothing to read, its DamagedError where that is damaged.
    """
    place = Path(path)
    if place.is_dir():
        return _of_folder(place)
    wanted = {*ARTIFACTS, *BESIDE}
    found: dict[str, bytes] = {}
    with _members(place) as members:
        for name, file, size in members:
            if name in wanted:
                if name != EVENTS_FILE and size > MOST_ARTIFACT:
                    raise DamagedError(f"{place}: {name}: {_TOO_LARGE}")
                found[name] = file.read(MOST_EVENTS if name == EVENTS_FILE else -1)
            elif name == ARCHIVE_MANIFEST and size <= MOST_ARTIFACT:
                wanted &= _listed(file.read())
            if wanted <= found.keys():
                break
    return found


def read_lines(path: str, name: str) -> Iterator[bytes]:
    """The lines of a layer, without their newlines. None where there is no such layer."""
    place = Path(path)
    if place.is_dir():
        layer = place / name
        if layer.is_file():
            try:
                with layer.open("rb") as loose:
                    yield from _lines(loose, name)
            except OSError as error:
                raise InputError(f"{layer}: {os_reason(error)}") from None
        return
    with _members(place) as members:
        for member, file, _ in members:
            if member == name:
                yield from _lines(file, name)
                return


def has_any(path: str, names: Collection[str]) -> bool:
    place = Path(path)
    if place.is_dir():
        return any((place / name).is_file() for name in names)
    with _members(place) as members:
        return any(member in names for member, _, _ in members)


def run_folder_of(events: bytes) -> str:
    """Where a run lay, by the event that tells of its workspace. Empty: it is not told."""
    for line in events.splitlines()[:_FIRST_EVENTS]:
        try:
            event = _decode_begun(line)
        except DECODE_ERRORS:
            continue
        for item in event.agent_action.artifacts if event.event_type == _PREPARED else ():
            folder = item.metadata.get("run_folder")
            if isinstance(folder, str) and folder.startswith("/"):
                return folder
    return ""


def _listed(manifest: bytes) -> set[str]:
    """What need not be looked for to the end of the archive."""
    try:
        files = msgspec.json.decode(manifest)["files"]
        return {name for name in files if isinstance(name, str)}
    except (*DECODE_ERRORS, TypeError, KeyError):
        return set(ARTIFACTS)


# --- folders ------------------------------------------------------------------------------------


def _of_folder(folder: Path) -> dict[str, bytes]:
    found = {}
    try:
        for name in (*ARTIFACTS, COMPANION_FILE):
            if (folder / name).is_file():
                found[name] = _bounded(folder / name)
        if (folder / EVENTS_FILE).is_file():
            with (folder / EVENTS_FILE).open("rb") as events:
                found[EVENTS_FILE] = events.read(MOST_EVENTS)
        return {**_loose(folder), **found} if not found.keys() & ARTIFACTS.keys() else found
    except OSError as error:
        raise InputError(f"{folder}: {os_reason(error)}") from None


def _loose(folder: Path) -> dict[str, bytes]:
    """Files with names of their own are known by their contracts, one of each."""
    found: dict[str, bytes] = {}
    by_contract = {schema: name for name, schema in ARTIFACTS.items()}
    for path in sorted(folder.glob("*.json")):
        if not path.is_file() or path.stat().st_size > MOST_ARTIFACT:
            continue
        data = path.read_bytes()
        try:
            name = by_contract.get(contract_of(data) or "")
        except DECODE_ERRORS:
            continue
        if name is None:
            continue
        if name in found:
            raise DamagedError(f"{path}: the folder has another file of this contract as well")
        found[name] = data
    return found


def _bounded(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MOST_ARTIFACT + 1)
    if len(data) > MOST_ARTIFACT:
        raise DamagedError(f"{path}: {_TOO_LARGE}")
    return data


# --- archives -----------------------------------------------------------------------------------


@contextmanager
def _members(path: Path) -> Iterator[Iterator[tuple[str, IO[bytes], int]]]:
    """The regular files of an archive, in order, each to be read before the next."""
    import tarfile

    try:
        with os.fdopen(os.open(path, _AT_ONCE), "rb") as raw:
            mode = os.fstat(raw.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise InputError(f"{path}: {kind_of(mode)}: {_NEITHER}")
            if raw.read(2) != b"\x1f\x8b":
                raise InputError(f"{path}: {_NEITHER}")
            raw.seek(0)
            with tarfile.open(fileobj=raw, mode="r|gz") as archive:
                yield _files(path, archive)
    # TypeError: of a head of gzip that is cut off in the middle.
    except (tarfile.TarError, EOFError, zlib.error, ValueError, OverflowError, TypeError) as error:
        raise _damaged(path, error) from None
    except OSError as error:
        if error.errno is None:  # gzip's own: a wrong magic number or checksum
            raise _damaged(path, error) from None
        raise InputError(f"{path}: {os_reason(error)}") from None


def _damaged(path: Path, error: Exception) -> DamagedError:
    return DamagedError(f"{path}: the archive is damaged: {str(error) or 'it ends too early'}")


def _files(path: Path, archive: TarFile) -> Iterator[tuple[str, IO[bytes], int]]:
    looked_at = 0
    for member in archive:
        looked_at += member.size
        if looked_at > MOST_ARCHIVE:
            raise DamagedError(f"{path}: more than {MOST_ARCHIVE} bytes in the archive")
        file = archive.extractfile(member) if member.isreg() else None
        if file is not None:
            yield member.name, file, member.size


def _lines(file: IO[bytes], name: str) -> Iterator[bytes]:
    splitter = LineSplitter(name)
    while block := file.read(_BLOCK):
        yield from _held(splitter.feed(block) or ())
    yield from _held(splitter.finish() or ())


def _held(lines: Iterable[bytes]) -> Iterator[bytes]:
    """A line that is too long to be held is compared by its digest."""
    for line in lines:
        if isinstance(line, OverlongLine):
            yield f"({line.length} bytes: {line.digest})".encode()
        else:
            yield line
