"""What an archive is made of: which files it may have, and which of them it must.

There are three kinds: the reference's, of the contract's own files alone; those that were put
together of a stream; and recorded runs, with their black box and their chain. What is there of
the richer kind decides which it is: no file is missing by having been taken away.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Iterator

from stream.records.run import (
    ARTIFACTS,
    BOUNDARY_FILE,
    DESCRIPTOR_FILE,
    EVENTS_FILE,
    MANIFEST_FILE,
    METADATA_FILE,
    STDERR_FILE,
    STDOUT_FILE,
    SUMMARY_FILE,
)
from stream.records.runner import (
    ARCHIVE_MANIFEST,
    CHAIN_FILE,
    COMPANION_FILE,
    DETAIL_FILE,
    MARKERS_FILE,
    V0_FILES,
)

_PLACES = {name: place for place, name in enumerate(V0_FILES)}
_BESIDE = (COMPANION_FILE, DETAIL_FILE, MARKERS_FILE)
_BLACK_BOX = (METADATA_FILE, EVENTS_FILE, STDERR_FILE, STDOUT_FILE, SUMMARY_FILE, MANIFEST_FILE)
_SINGLE = {
    *(*V0_FILES, *_BESIDE, CHAIN_FILE, ARCHIVE_MANIFEST),
    *(METADATA_FILE, EVENTS_FILE, BOUNDARY_FILE, DESCRIPTOR_FILE),
}
_BELOW_ARTIFACTS = f"{ARTIFACTS}/"


def is_reference(names: Collection[str]) -> bool:
    return {*V0_FILES}.issuperset(names)


def is_recorded(names: Iterable[str]) -> bool:
    """Of a run that a recorder wrote. No stream has a chain, or files that an event names."""
    return any(
        name in (METADATA_FILE, CHAIN_FILE) or name.startswith(_BELOW_ARTIFACTS) for name in names
    )


def needed(names: Collection[str]) -> Iterator[str]:
    """What an archive of these has to have."""
    yield from V0_FILES
    if not is_reference(names):
        yield from _BESIDE
    if is_recorded(names):
        yield from (CHAIN_FILE, *_BLACK_BOX)


def has_evidence(names: Iterable[str]) -> bool:
    """Or the beginning of it."""
    return any(name in V0_FILES or name.startswith("layers/") for name in names)


def missing_from(names: Collection[str]) -> list[str]:
    """What the folder of a run that was recorded to its end would have."""
    wanted = [*_BLACK_BOX, *V0_FILES, *_BESIDE, CHAIN_FILE] if has_evidence(names) else _BLACK_BOX
    return [name for name in wanted if name not in names]


def has_place(name: str) -> bool:
    if name.startswith(_BELOW_ARTIFACTS):
        return not any(part.startswith(".") for part in name.split("/"))
    return name in _SINGLE


def place_of(name: str) -> tuple[int, int, bytes]:
    """By which files stand in their order."""
    if name == ARCHIVE_MANIFEST:
        return (0, 0, b"")
    if name in _PLACES:
        return (1, _PLACES[name], b"")
    return (2, 0, name.encode())


def look_alikes(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Names that are the same one where case, or how a letter is put together, does not count."""
    first: dict[str, str] = {}
    for name in names:
        folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
        if first.setdefault(folded, name) != name:
            yield name, first[folded]
