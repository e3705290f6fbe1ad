"""A run folder as an archive: what is named here goes in, and nothing that an agent planted.

The workspace, names that begin with a dot, and whatever the recorder did not write stay out.
A link, a fifo or a device in a place that goes in ends it with a sentence.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import UNSET

from stream.archive.chain import LAYERS as LAYER_FILES
from stream.archive.entries import Entry, Look, open_beneath
from stream.archive.writing import Written, unwatched, write_archive
from stream.codec import DECODE_ERRORS, explain
from stream.document import LARGEST
from stream.enclosure import kind_of
from stream.errors import InputError, os_reason
from stream.recorder.disclosure import readable
from stream.records.run import (
    ARTIFACTS,
    BOUNDARY_FILE,
    DESCRIPTOR_FILE,
    EVENTS_FILE,
    LAYERS,
    METADATA_FILE,
    SUMMARY_FILE,
    RunSummary,
    check_run_id,
)
from stream.records.runner import (
    CHAIN_FILE,
    COMPANION_FILE,
    CORRELATION_FILE,
    HEALTH_FILE,
    RUNNER_FILE,
    SURFACE_FILE,
)

_SINGLE = (
    *(CHAIN_FILE, COMPANION_FILE, CORRELATION_FILE, HEALTH_FILE, RUNNER_FILE, SURFACE_FILE),
    *(METADATA_FILE, EVENTS_FILE, BOUNDARY_FILE, DESCRIPTOR_FILE),
)


def archive_run(
    folder: Path,
    target: Path,
    *,
    missing: Mapping[str, bytes] | None = None,
    force: bool = False,
    look: Look = unwatched,
) -> Written:
    """`missing`: what stands for files that the run does not have. Raises StreamError."""
    names = list(names_of(folder))
    entries = [Entry.beneath(folder, name) for name in names]
    there = {*names}
    for name, data in sorted((missing or {}).items()):
        if name not in there:
            entries.append(Entry.of_bytes(name, data))
    return write_archive(target, entries, run_id_of(folder), force=force, look=look)


def names_of(folder: Path, *, is_strict: bool = True) -> Iterator[str]:
    """Of the files that belong to the evidence: not those that the run itself calls foreign.
    Raises InputError, also where one is no regular file; where that is not strict, such a one, and
    what somebody put beside the others, is named as well: who opens it finds out."""
    foreign = _foreign(folder) if is_strict else set()
    try:
        for name in _SINGLE:
            if name not in foreign and os.path.lexists(folder / name):
                yield name
        for place in (ARTIFACTS, LAYERS):
            if place in foreign or not os.path.lexists(folder / place):
                continue
            for name in _below(folder, place, is_strict, foreign):
                if place == ARTIFACTS or name in LAYER_FILES or not is_strict:
                    yield name
    except OSError as error:
        raise InputError(f"{error.filename or folder}: {os_reason(error)}") from None


def _foreign(folder: Path) -> set[str]:
    """What the recorder says that it did not write."""
    try:
        with open_beneath(folder, SUMMARY_FILE) as file:
            summary = msgspec.json.decode(file.read(LARGEST), type=RunSummary)
    except (OSError, InputError, *DECODE_ERRORS):
        return set()
    return set() if summary.foreign_files is UNSET else {*summary.foreign_files}


def _below(root: Path, name: str, is_strict: bool, foreign: Collection[str]) -> Iterator[str]:
    place = root / name
    mode = place.lstat().st_mode
    if not stat.S_ISDIR(mode):
        if is_strict:
            raise InputError(f"{place}: {kind_of(mode)}, not a folder")
        yield name
        return
    with os.scandir(place) as found:
        items = sorted(found, key=lambda item: os.fsencode(item.name))
    for item in items:
        inner = f"{name}/{item.name}"
        if item.name.startswith(".") or readable(inner) in foreign:
            continue
        if item.is_dir(follow_symlinks=False):
            yield from _below(root, inner, is_strict, foreign)
        elif item.is_file(follow_symlinks=False) or not is_strict:
            yield inner
        else:
            kind = kind_of(item.stat(follow_symlinks=False).st_mode)
            raise InputError(f"{root / inner}: {kind}, not a regular file")


def run_id_of(folder: Path) -> str:
    """Raises InputError."""
    where = folder / METADATA_FILE
    try:
        with open_beneath(folder, METADATA_FILE) as file:
            value = msgspec.json.decode(file.read(LARGEST))
    except OSError as error:
        raise InputError(f"{where}: {os_reason(error)}") from None
    except DECODE_ERRORS as error:
        raise InputError(f"{where}: {explain(error)[0]}") from None
    run_id = value.get("run_id") if isinstance(value, dict) else None
    if not isinstance(run_id, str):
        raise InputError(f"{where}: it names no run")
    return check_run_id(run_id, f"{where}: $.run_id")
