"""Whether an archive or a run folder is what it says: everything is read, and nothing trusted."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from stream.archive.book import Book
from stream.archive.entries import Look
from stream.archive.examination import Examination
from stream.archive.folder import folder_names, folder_parts, reading_order
from stream.archive.header import BrokenArchive, Fault
from stream.archive.implied import implied_faults
from stream.archive.inflating import NoArchive
from stream.archive.limits import Limits
from stream.archive.manifest import read_archive
from stream.archive.places import has_evidence, is_reference, missing_from
from stream.archive.reading import Part, Start, ahead, parts_of
from stream.archive.writing import unwatched
from stream.enclosure import kind_of
from stream.errors import InputError, os_reason
from stream.runfolder import check_folder


def verify(
    target: Path,
    limits: Limits | None = None,
    boundary: str | None = None,
    look: Look = unwatched,
) -> Book:
    """What was found. `boundary` is a descriptor that records may name. Raises InputError where
    there is nothing to verify."""
    place = os.fsencode(target).decode(errors="replace")
    try:
        is_folder = _is_folder(target)
        book = Book(place, limits or Limits(), is_folder)
        if is_folder:
            check_folder(target)
            _verify_folder(target, book, boundary)
        else:
            _verify_archive(target, book, boundary, look)
    except NoArchive as error:
        raise InputError(f"{place}: {error}") from None
    except OSError as error:
        raise InputError(f"{place}: {os_reason(error)}") from None
    except ValueError as error:  # a NUL in the path
        raise InputError(f"{place}: {error}") from None
    return book


def _is_folder(target: Path) -> bool:
    mode = target.stat().st_mode
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise InputError(f"{target}: {kind_of(mode)}: neither an archive nor a run folder")
    return stat.S_ISDIR(mode)


def _verify_archive(target: Path, book: Book, boundary: str | None, look: Look) -> None:
    examination = Examination(book, boundary)
    with closing(examination), target.open("rb", buffering=0) as file:
        try:
            parts = ahead(parts_of(file, book.limits))
            read_archive(_watched(parts, look), book, examination)
        except BrokenArchive as broken:  # what is missing is behind this place
            book.find(broken.rule, str(broken))
        else:
            examination.conclude()
            hold_to_implied(book, examination)
        examination.documents.settle()


def _watched(parts: Iterator[Part], look: Look) -> Iterator[Part]:
    for part in parts:
        look()
        yield part


def _verify_folder(root: Path, book: Book, boundary: str | None) -> None:
    book.names = folder_names(root, book)
    examination = Examination(book, boundary)
    with closing(examination):
        _examine_folder(root, book, examination)
        examination.documents.settle()


def _examine_folder(root: Path, book: Book, examination: Examination) -> None:
    try:
        for part in ahead(folder_parts(root, reading_order(book.names))):
            if isinstance(part, Start):
                examination.begin(part.name)
            elif isinstance(part, bytes):
                examination.feed(part)
            elif isinstance(part, Fault):
                book.faults([part])
                examination.gathering.miss()  # and nothing follows from the others alone
            else:
                examination.end()
    except BrokenArchive as broken:
        book.find(broken.rule, str(broken))
        return
    if examination.conclude(missing_from(book.names)):
        hold_to_implied(book, examination)


def hold_to_implied(book: Book, examination: Examination) -> None:
    if book.is_folder and not has_evidence(book.names):
        examination.check_vouched()
        return
    gathered, documents = examination.gathering, examination.documents
    for name, fault in implied_faults(
        gathered,
        documents,
        is_reference=not book.is_folder and is_reference(book.names),
        is_streamed=not book.is_recorded,
    ):
        book.find(fault.rule, fault.message, name)
    examination.check_vouched()
