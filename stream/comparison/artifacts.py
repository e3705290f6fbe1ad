"""What a run left as evidence, wherever it lies: an archive, a run folder, or loose files.

An archive is read to its end, in its one form, and held against its manifest, and the evidence in
a run folder against the run's; what the files say is not verified here. Nothing is unpacked, and
no more is held than the artifacts may be large.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import msgspec
from msgspec import Struct

from stream.archive.book import Book
from stream.archive.chain import Tally
from stream.archive.entries import open_beneath
from stream.archive.header import BrokenArchive
from stream.archive.inflating import NoArchive
from stream.archive.limits import Limits
from stream.archive.manifest import read_archive
from stream.archive.reading import Part, Start, ahead, contents_of, parts_of
from stream.codec import DECODE_ERRORS, LineSplitter, OverlongLine, contract_of, explain
from stream.comparison.names import BEHIND, Asked, Proven
from stream.enclosure import Digests, Unfit, kind_of
from stream.errors import InputError, os_reason
from stream.records.kernel import ACCEPT, BIND, MKDIR, OPEN
from stream.records.kernel import kind_of as name_of_kind
from stream.records.run import EVENTS_FILE, MANIFEST_FILE, Manifest
from stream.records.runner import (
    COMPANION_FILE,
    CORRELATION,
    CORRELATION_FILE,
    DETAIL_FILE,
    EVIDENCE_FILES,
    HEALTH,
    HEALTH_FILE,
    KERNEL_FILE,
    POLICY_FILE,
    SDK_FILE,
    SURFACE,
    SURFACE_FILE,
)

TOLD = (SDK_FILE, POLICY_FILE)  #: calls of tools, by who told of them
BESIDE = (COMPANION_FILE, EVENTS_FILE, *TOLD)  #: what may be there as well
ARTIFACTS = {SURFACE_FILE: SURFACE, CORRELATION_FILE: CORRELATION, HEALTH_FILE: HEALTH}
MOST_ARTIFACT = 256 << 20  #: bytes of one artifact
MOST_EVENTS = 1 << 20  #: how much of the run's events: what it began with
MOST_ARCHIVE = 64 << 30  #: decoded bytes that are looked through
_BLOCK = 1 << 18
_AT_ONCE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  #: nobody waits for who writes to a fifo
_NEITHER = "neither a run folder nor an archive"
_DAMAGED = "the archive is damaged"
_FOREIGN = "it is damaged, or no archive of a run"
_TOO_LARGE = f"an artifact above the limit of {MOST_ARTIFACT} bytes"


_PID = re.compile(rb'"pid":\s*([0-9]{1,10})[,}]')
_CAME, _OPEN = name_of_kind(ACCEPT).encode(), name_of_kind(OPEN)
_PEER = re.compile(
    rb'"kind":\s*"(connect|connect_blocked|sendto|sendmsg|%b)",\s*"value":\s*"([^"]*)"' % _CAME
)
_FREE_PORT = re.compile(rb'"kind":\s*"%b",\s*"value":\s*"[^"]*:0"' % name_of_kind(BIND).encode())
_EXCLUSIVE, _MKDIR = b'"exclusive"', f'"{name_of_kind(MKDIR)}"'.encode()
_PREPARED, _FIRST_EVENTS = "workspace_prepared", 2


class _Item(Struct):
    metadata: dict[str, Any] = {}


class _Action(Struct):
    artifacts: list[_Item] = []


class _Begun(Struct):
    event_type: str
    agent_action: _Action


class _Made(Struct):
    """Of a line of the kernel layer, or of its detail."""

    seq: int
    pid: int = 0
    kind: str = ""
    value: str | None = None
    to_path: str | None = None
    mode: int | None = None
    return_value: int = -1
    operation_flags: list[str] = []


_decode_made = msgspec.json.Decoder(_Made).decode
_decode_begun = msgspec.json.Decoder(_Begun).decode


class DamagedError(InputError):
    """Evidence that is there and cannot be read to its end."""


def read_artifacts(path: str) -> dict[str, bytes]:
    """The JSON artifacts by their names, as far as there are any, and how the events begin.

    Raises InputError where there is nothing to read, its DamagedError where that is damaged.
    """
    place = Path(path)
    return _of_folder(place) if place.is_dir() else _of_archive(place)


def read_lines(path: str, name: str) -> Iterator[bytes]:
    """The lines of a layer, without their newlines. None where there is no such layer."""
    place = Path(path)
    if place.is_dir():
        layer = place / name
        if layer.is_file():
            try:
                with layer.open("rb") as loose:
                    yield from _lines(_blocks(loose), name)
            except OSError as error:
                raise InputError(f"{layer}: {os_reason(error)}") from None
        return
    with _parts(place) as parts:
        yield from _lines(contents_of(parts, name), name)


def has_any(path: str, names: Collection[str]) -> bool:
    place = Path(path)
    if place.is_dir():
        return any((place / name).is_file() for name in names)
    with _parts(place) as parts:
        return any(isinstance(part, Start) and part.name in names for part in parts)


def proofs_of(path: str, asked: Asked) -> Proven:
    """What the kernel layer of a run says of it. A caller is one to whom the run never went."""
    processes, private = set[int](), set[str]()
    came, went = set[str](), set[str]()
    free_ports = 0
    folders = set(_private_folders(path)) if asked.made else set()
    behind = _Behind(asked.behind, dict(_targets(path, asked.behind)) if asked.behind else {})
    for line in read_lines(path, KERNEL_FILE):
        told = _PID.search(line)
        if told is not None and (number := int(told[1])) in asked.numbers:
            processes.add(number)
        peer = _PEER.search(line) if asked.endpoints else None
        if peer is not None and (endpoint := peer[2].decode(errors="replace")) in asked.endpoints:
            (came if peer[1] == _CAME else went).add(endpoint)
        free_ports += _FREE_PORT.search(line) is not None
        if asked.made and (_EXCLUSIVE in line or _MKDIR in line):
            private |= _privately_made(line, folders).intersection(asked.made)
        if asked.behind:
            behind.look(line)
    return Proven(processes, came - went, private, free_ports, behind.places)


class _Behind:
    """Where paths lay that begin with the number of an open folder."""

    def __init__(self, paths: Collection[str], targets: Mapping[int, str]) -> None:
        """`targets`: second paths, by the numbers of the lines."""
        self.places: dict[str, set[str]] = {path: set() for path in paths}
        self._targets = targets
        self._opened: dict[tuple[int, int], str] = {}  #: by process and number

    def look(self, line: bytes) -> None:
        with suppress(*DECODE_ERRORS):
            made = _decode_made(line)
            if made.kind == _OPEN and made.return_value >= 0 and made.value is not None:
                self._opened[made.pid, made.return_value] = made.value
            for path in (made.value or "", self._targets.get(made.seq, "")):
                parts = BEHIND.fullmatch(path) if path in self.places else None
                folder = self._opened.get((made.pid, int(parts[1]))) if parts else None
                if parts and folder is not None:
                    self.places[path].add(f"{folder.rstrip('/')}/{parts[2]}")


def _targets(path: str, asked: Container[str]) -> Iterator[tuple[int, str]]:
    """The kernel layer itself has no room for them, either."""
    for line in read_lines(path, DETAIL_FILE):
        if b'"to_path"' in line:
            with suppress(*DECODE_ERRORS):
                made = _decode_made(line)
                if made.to_path is not None and made.to_path in asked:
                    yield made.seq, made.to_path


def _private_folders(path: str) -> Iterator[int]:
    """The numbers of the lines that make them: the kernel layer itself has no room for a mode."""
    for line in read_lines(path, DETAIL_FILE):
        if b'"mkdir' in line:
            with suppress(*DECODE_ERRORS):
                made = _decode_made(line)
                if _is_private(made.mode) and made.return_value == 0:
                    yield made.seq


def _privately_made(line: bytes, folders: Container[int]) -> set[str]:
    with suppress(*DECODE_ERRORS):
        made = _decode_made(line)
        is_file = "exclusive" in made.operation_flags and made.return_value >= 0
        if made.value is not None:
            is_private = (is_file and _is_private(made.mode)) or made.seq in folders
            return {made.value} if is_private else set()
    return set()


def _is_private(mode: int | None) -> bool:
    return mode is not None and mode & 0o077 == 0


def folders_of(events: bytes) -> tuple[str, str]:
    """Where a run lay, and where its agent worked, by the event that tells of its workspace. Empty:
    it is not told."""
    for line in events.splitlines()[:_FIRST_EVENTS]:
        try:
            event = _decode_begun(line)
        except DECODE_ERRORS:
            continue
        for item in event.agent_action.artifacts if event.event_type == _PREPARED else ():
            told = (item.metadata.get(name) for name in ("run_folder", "root"))
            folder, root = (
                one if isinstance(one, str) and one.startswith("/") else "" for one in told
            )
            if folder:
                return folder, root
    return "", ""


# --- folders ------------------------------------------------------------------------------------


def _of_folder(folder: Path) -> dict[str, bytes]:
    found = {}
    try:
        _hold_to_manifest(folder)
        for name in (*ARTIFACTS, COMPANION_FILE, *TOLD):
            if (folder / name).is_file():
                found[name] = _bounded(folder / name)
        if (folder / EVENTS_FILE).is_file():
            with (folder / EVENTS_FILE).open("rb") as events:
                found[EVENTS_FILE] = events.read(MOST_EVENTS)
        return {**_loose(folder), **found} if not found.keys() & ARTIFACTS.keys() else found
    except OSError as error:
        raise InputError(f"{folder}: {os_reason(error)}") from None


def _hold_to_manifest(folder: Path) -> None:
    """Where a run lists its files. Raises OSError, or DamagedError."""
    where = folder / MANIFEST_FILE
    try:
        where.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        with open_beneath(folder, MANIFEST_FILE) as file:
            manifest = msgspec.json.decode(file.read(MOST_ARTIFACT), type=Manifest)
    except InputError as error:
        raise DamagedError(str(error)) from None
    except DECODE_ERRORS as error:
        raise DamagedError(f"{where}: {explain(error)[0]}") from None
    listed = {file.path: file.sha256.removeprefix("sha256:") for file in manifest.files}
    digests = Digests(folder)
    for name in EVIDENCE_FILES:
        if name not in listed:
            if os.path.lexists(folder / name):
                raise DamagedError(f"{folder / name}: the run's manifest does not list it")
            continue
        try:
            _, digest = digests.of(name, "manifest")
        except Unfit as fault:
            raise DamagedError(f"{where}: lists {fault}") from None
        if digest != listed[name]:
            raise DamagedError(f"{folder / name}: it is not what the run recorded")
    try:
        digest = digests.of_beginning(EVENTS_FILE, manifest.events.bytes)
    except Unfit as fault:
        raise DamagedError(f"{folder / EVENTS_FILE}: {fault}") from None
    if digest != manifest.events.sha256:
        raise DamagedError(f"{folder / EVENTS_FILE}: it does not begin as the run recorded it")


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


class _Kept:
    """Of the files that go by, the wanted ones."""

    def __init__(self) -> None:
        self.found: dict[str, bytes] = {}
        self._tally = Tally("")
        self._held: bytearray | None = None

    def begin(self, name: str) -> None:
        self._tally = Tally(name)
        self._held = bytearray() if name in (*ARTIFACTS, *BESIDE) else None

    def feed(self, data: bytes) -> None:
        self._tally.feed(data)
        if self._held is None:
            return
        if self._tally.layer == EVENTS_FILE:
            data = data[: MOST_EVENTS - len(self._held)]
        elif self._tally.bytes > MOST_ARTIFACT:
            raise BrokenArchive("limit.document", f"{self._tally.layer}: {_TOO_LARGE}")
        self._held += data

    def end(self) -> Tally:
        if self._held is not None:
            self.found[self._tally.layer] = bytes(self._held)
        return self._tally


def _of_archive(path: Path) -> dict[str, bytes]:
    """All of it is read: what is missing, or is not what the manifest says, is only known then."""
    kept = _Kept()
    with _parts(path) as parts:
        book = Book(os.fsencode(path).decode(errors="replace"), limits(), is_folder=False)
        try:
            read_archive(ahead(parts), book, kept)
        except BrokenArchive as broken:
            book.find(broken.rule, str(broken))
    for fault in book.findings:
        if fault.severity == "error" and book.run_id is None:  # without its manifest, who knows
            raise DamagedError(f"{book.place}: {_FOREIGN}: {fault.message}")
        if fault.severity == "error":
            raise DamagedError(f"{fault.source}: {_DAMAGED}: {fault.message}")
    return kept.found


@contextmanager
def _parts(path: Path) -> Iterator[Iterator[Part]]:
    try:
        with os.fdopen(os.open(path, _AT_ONCE), "rb", buffering=0) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise InputError(f"{path}: {kind_of(mode)}: {_NEITHER}")
            yield parts_of(cast("BinaryIO", file), limits())
    except NoArchive:
        raise InputError(f"{path}: {_NEITHER}") from None
    except BrokenArchive as broken:
        raise DamagedError(f"{path}: {_DAMAGED}: {broken}") from None
    except OSError as error:
        raise InputError(f"{path}: {os_reason(error)}") from None
    except ValueError as error:  # a NUL in the path
        raise InputError(f"{path}: {error}") from None


def limits() -> Limits:
    return Limits(archive=MOST_ARCHIVE, decoded=MOST_ARCHIVE, document=MOST_ARTIFACT)


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    while block := file.read(_BLOCK):
        yield block


def _lines(blocks: Iterable[bytes], name: str) -> Iterator[bytes]:
    splitter = LineSplitter(name)
    for block in blocks:
        yield from _held(splitter.feed(block) or ())
    yield from _held(splitter.finish() or ())


def _held(lines: Iterable[bytes]) -> Iterator[bytes]:
    """A line that is too long to be held is compared by its digest."""
    for line in lines:
        if isinstance(line, OverlongLine):
            yield f"({line.length} bytes: {line.digest})".encode()
        else:
            yield line
