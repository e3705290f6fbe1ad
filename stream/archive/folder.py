"""A run folder as the same stream of entries that an archive is, as far as it goes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from stream.archive.book import Book
from stream.archive.entries import READ, open_beneath
from stream.archive.header import Fault
from stream.archive.packing import names_of
from stream.archive.reading import End, Part, Start
from stream.errors import InputError, os_reason
from stream.records.run import METADATA_FILE
from stream.records.runner import V0_FILES


def folder_parts(root: Path, names: list[str]) -> Iterator[Part]:
    for name in names:
        try:
            with open_beneath(root, name) as file:
                yield Start(name, os.fstat(file.fileno()).st_size, [])
                while block := file.read(READ):
                    yield block
                yield End()
        except InputError as error:
            yield Fault("security.type", str(error))
        except OSError as error:
            yield Fault("integrity.missing", f"{name}: {os_reason(error)}")


def reading_order(names: set[str]) -> list[str]:
    """What says whose run it is comes first, then as in an archive."""
    first = [name for name in (METADATA_FILE, *V0_FILES) if name in names]
    return first + sorted(names - {*first}, key=os.fsencode)


def folder_names(root: Path, book: Book) -> set[str]:
    try:
        return {*names_of(root, is_strict=False)}
    except InputError as error:
        book.find("security.type", str(error))
        return set()
