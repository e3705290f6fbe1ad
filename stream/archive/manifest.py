"""The files that an archive may have and must have, and those of a run folder that go into one.

There are three kinds of archives: the reference's, of the contract's own files alone; those that
were made from a stream; and recorded runs, with their documents and their chain. The files of the
richest kind that are there decide which it is, so that no file is missing by being taken away.
Of a run folder, only what the recorder wrote goes in: no workspace, no name that begins with a
dot, and nothing that an agent planted. A link, a fifo or a device in such a place is an error.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec import UNSET

from stream.archive.chain import LAYERS as LAYER_FILES
from stream.codec import DECODE_ERRORS, LARGEST, decode_fault
from stream.errors import InputError, encodable, reporting
from stream.files.inside import describe_kind, open_beneath
from stream.records.artifacts import (
    ARCHIVE_MANIFEST,
    CHAIN_FILE,
    COMPANION_FILE,
    CORRELATION_FILE,
    DETAIL_FILE,
    HEALTH_FILE,
    MARKERS_FILE,
    RUNNER_FILE,
    SURFACE_FILE,
    V0_FILES,
)
from stream.records.run import (
    ARTIFACTS,
    BOUNDARY_FILE,
    DESCRIPTOR_FILE,
    EVENTS_FILE,
    LAYERS,
    MANIFEST_FILE,
    METADATA_FILE,
    STDERR_FILE,
    STDOUT_FILE,
    SUMMARY_FILE,
    RunSummary,
    check_run_id,
)

_V0_ORDER = {name: number for number, name in enumerate(V0_FILES)}
_BESIDE = (COMPANION_FILE, DETAIL_FILE, MARKERS_FILE)
_BLACK_BOX = (METADATA_FILE, EVENTS_FILE, STDERR_FILE, STDOUT_FILE, SUMMARY_FILE, MANIFEST_FILE)
_SINGLE = {
    *(*V0_FILES, *_BESIDE, CHAIN_FILE, ARCHIVE_MANIFEST),
    *(METADATA_FILE, EVENTS_FILE, BOUNDARY_FILE, DESCRIPTOR_FILE),
}
_BELOW_ARTIFACTS = f"{ARTIFACTS}/"


def is_reference(names: Collection[str]) -> bool:
    """Tell whether these are files of the reference's own form alone."""
    return {*V0_FILES}.issuperset(names)


def is_recorded(names: Iterable[str]) -> bool:
    """Tell whether a recorder wrote these files: no stream has a chain, or files of events."""
    return any(
        name in (METADATA_FILE, CHAIN_FILE) or name.startswith(_BELOW_ARTIFACTS) for name in names
    )


def required_files(names: Collection[str]) -> Iterator[str]:
    """Name the files that an archive with files of these names has to have."""
    yield from V0_FILES
    if not is_reference(names):
        yield from _BESIDE
    if is_recorded(names):
        yield from (CHAIN_FILE, *_BLACK_BOX)


def has_evidence(names: Iterable[str]) -> bool:
    """Tell whether a file of kernel evidence, or of its beginning, is among these."""
    return any(name in V0_FILES or name.startswith("layers/") for name in names)


def missing_files_of(names: Collection[str]) -> list[str]:
    """Name the files that are missing from the folder of a run that was recorded to its end."""
    wanted = [*_BLACK_BOX, *V0_FILES, *_BESIDE, CHAIN_FILE] if has_evidence(names) else _BLACK_BOX
    return [name for name in wanted if name not in names]


def is_archive_file(name: str) -> bool:
    """Tell whether an archive has a place for a file of that name."""
    if name.startswith(_BELOW_ARTIFACTS):
        return not any(part.startswith(".") for part in name.split("/"))
    return name in _SINGLE


def archive_order_key(name: str) -> tuple[int, int, bytes]:
    """Return the key by which the files of an archive are ordered."""
    if name == ARCHIVE_MANIFEST:
        return (0, 0, b"")
    if name in _V0_ORDER:
        return (1, _V0_ORDER[name], b"")
    return (2, 0, os.fsencode(name))


def look_alikes(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each name that equals an earlier one but for case, or for how a letter is composed, and
    that one."""
    first: dict[str, str] = {}
    for name in names:
        folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
        if first.setdefault(folded, name) != name:
            yield name, first[folded]


_RUN_FILES = (
    *(CHAIN_FILE, COMPANION_FILE, CORRELATION_FILE, HEALTH_FILE, RUNNER_FILE, SURFACE_FILE),
    *(METADATA_FILE, EVENTS_FILE, BOUNDARY_FILE, DESCRIPTOR_FILE),
)


def archived_names_of(folder: Path, *, is_strict: bool = True) -> Iterator[str]:
    """Name the files of a run that belong to the evidence, not those that it calls foreign.

    Raise InputError where one is no regular file. If not strict, name such a file as well, and
    those that somebody added: who opens it finds out.
    """
    foreign = _foreign_files(folder) if is_strict else set()
    with reporting(folder, is_folder=True):
        for name in _RUN_FILES:
            if name not in foreign and os.path.lexists(folder / name):
                yield name
        for inner in (ARTIFACTS, LAYERS):
            if inner in foreign or not os.path.lexists(folder / inner):
                continue
            for name in _files_below(folder, inner, is_strict, foreign):
                if inner == ARTIFACTS or name in LAYER_FILES or not is_strict:
                    yield name


def _foreign_files(folder: Path) -> set[str]:
    """Name the files of which the recorder says that it did not write them."""
    try:
        with open_beneath(folder, SUMMARY_FILE) as file:
            summary = msgspec.json.decode(file.read(LARGEST), type=RunSummary)
    except (OSError, InputError, *DECODE_ERRORS):
        return set()
    return set() if summary.foreign_files is UNSET else {*summary.foreign_files}


def _files_below(root: Path, name: str, is_strict: bool, foreign: Collection[str]) -> Iterator[str]:
    """Yield the files below a folder of a run, in order, but for hidden and foreign ones."""
    path = root / name
    mode = path.lstat().st_mode
    if not stat.S_ISDIR(mode):
        if is_strict:
            raise InputError(f"{path}: {describe_kind(mode)}, not a folder")
        yield name
        return
    with os.scandir(path) as found:
        items = sorted(found, key=lambda item: os.fsencode(item.name))
    for item in items:
        inner = f"{name}/{item.name}"
        if item.name.startswith(".") or encodable(inner) in foreign:
            continue
        if item.is_dir(follow_symlinks=False):
            yield from _files_below(root, inner, is_strict, foreign)
        elif item.is_file(follow_symlinks=False) or not is_strict:
            yield inner
        else:
            kind = describe_kind(item.stat(follow_symlinks=False).st_mode)
            raise InputError(f"{root / inner}: {kind}, not a regular file")


def run_id_of(folder: Path) -> str:
    """Return the id of the run in a folder. Raise InputError."""
    where = folder / METADATA_FILE
    try:
        with reporting(where), open_beneath(folder, METADATA_FILE) as file:
            value = msgspec.json.decode(file.read(LARGEST))
    except DECODE_ERRORS as error:
        raise InputError(f"{where}: {decode_fault(error).reason}") from None
    run_id = value.get("run_id") if isinstance(value, dict) else None
    if not isinstance(run_id, str):
        raise InputError(f"{where}: it names no run")
    return check_run_id(run_id, f"{where}: $.run_id")
