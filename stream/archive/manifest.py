"""The manifest of an archive against what the archive holds."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Protocol

import msgspec

from stream.archive.book import Book
from stream.archive.chain import Tally
from stream.archive.documents import oddities
from stream.archive.header import Fault
from stream.archive.places import look_alikes, needed, place_of
from stream.archive.reading import Part, Start
from stream.codec import DECODE_ERRORS, explain
from stream.evidence.consistency import faults_of
from stream.evidence.contracts import decoder_of
from stream.records.runner import ARCHIVE_MANIFEST, ArchiveManifest

_LONGEST = 1 << 10  #: bytes of what a manifest says of one file, whose name it says twice
_PATH = re.compile(rb'"path"\s*:\s*"')
_decode = decoder_of(ArchiveManifest)


class Reader(Protocol):
    """Who gets the files of an archive, one after the other, but for its manifest."""

    def begin(self, name: str) -> None: ...

    def feed(self, data: bytes) -> None: ...

    def end(self) -> Tally: ...


def read_archive(parts: Iterator[Part], book: Book, reader: Reader) -> None:
    """To its end, all of it held against its manifest. Raises BrokenArchive where nothing after
    some place can be read."""
    contents = Contents(book)
    name = ""
    for part in parts:
        if isinstance(part, Fault):
            book.faults([part], name)
        elif isinstance(part, Start):
            name = part.name
            book.faults(part.faults, name)
            contents.begin(name, is_sealed=part.is_sealed)
            if name != ARCHIVE_MANIFEST:
                reader.begin(name)
        elif name == ARCHIVE_MANIFEST:
            if isinstance(part, bytes):
                contents.feed(part)
            else:
                contents.finish()
        elif isinstance(part, bytes):
            reader.feed(part)
        else:
            contents.compare(reader.end())
    contents.conclude()


class Contents:
    """The judge of the manifest, and what it says of every other file."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._most = min(book.limits.document, _LONGEST * (book.limits.entries + 1))
        self._manifest: ArchiveManifest | None = None
        self._seen: dict[str, None] = {}  # in their order
        self._held = bytearray()
        self._is_too_long = False
        self._is_sealed = False

    def begin(self, name: str, *, is_sealed: bool) -> None:
        self._is_sealed = is_sealed
        if name in self._seen:
            self._book.find("integrity.duplicate", "it is there twice", name)
        elif not self._seen and name != ARCHIVE_MANIFEST:
            self._book.find("integrity.order", f"begins with {name}, not with the manifest")
        self._seen[name] = None

    def feed(self, data: bytes) -> None:
        self._is_too_long |= len(self._held) + len(data) > self._most
        if not self._is_too_long:
            self._held += data

    def finish(self) -> None:
        """Of the manifest itself."""
        if self._is_too_long:
            self._book.find("limit.document", "the manifest is too long", ARCHIVE_MANIFEST)
            return
        data, most = bytes(self._held), self._book.limits.entries
        if len(_PATH.findall(data)) > most:
            self._book.find("limit.entries", f"it lists more than {most} files", ARCHIVE_MANIFEST)
            return
        try:
            self._manifest = manifest = _decode(data)
        except DECODE_ERRORS as error:
            reason, path = explain(error)
            self._book.find("contract.manifest", reason, ARCHIVE_MANIFEST, path=path)
            return
        self._held = bytearray()
        self._book.hold_run_id(manifest.run_id, ARCHIVE_MANIFEST)
        self._book.names = {*manifest.files}
        ordered = dict(sorted(manifest.files.items(), key=lambda item: item[0].encode()))
        if msgspec.json.encode(ArchiveManifest(run_id=manifest.run_id, files=ordered)) != data:
            self._check_form(data)
        for reason, path in faults_of(manifest):
            self._book.find("contract.manifest", reason, ARCHIVE_MANIFEST, path=path)

    def _check_form(self, data: bytes) -> None:
        """The contract says nothing of it: who packed it again may have written it anew."""
        rule = "contract.manifest" if self._is_sealed else "packing.manifest"
        message = "not in its one form: sorted, compact, no key twice"
        self._book.find(rule, message, ARCHIVE_MANIFEST)
        for found, reason, path in oddities(data, "contract.manifest", is_ours=False):
            self._book.find(found, reason, ARCHIVE_MANIFEST, path=path)

    def compare(self, tally: Tally) -> None:
        if self._manifest is None:
            return
        name = tally.layer
        listed = self._manifest.files.get(name)
        if listed is None:
            self._book.find("integrity.extra", "the manifest does not list it", name)
            return
        if tally.bytes != listed.bytes:
            message = f"it has {tally.bytes} bytes, and is listed with {listed.bytes}"
            self._book.find("integrity.length", message, name)
        if f"sha256:{tally.sha256}" != listed.sha256:
            message = f"its digest is sha256:{tally.sha256}, and is listed as {listed.sha256}"
            self._book.find("integrity.digest", message, name)

    def conclude(self) -> None:
        seen = {*self._seen}
        listed = {*self._manifest.files} if self._manifest else set()
        wanted = {ARCHIVE_MANIFEST, *listed, *needed(listed | seen - {ARCHIVE_MANIFEST})}
        for name in sorted(wanted - seen, key=os.fsencode):
            self._book.find("integrity.missing", "it is not there", name)
        for one, other in pairwise(self._seen):
            if other != ARCHIVE_MANIFEST and place_of(one) > place_of(other):
                self._book.find("integrity.order", f"it stands after {one}", other)
        for name in sorted(seen, key=os.fsencode):
            if any(part in seen for part in _folders(name)):
                self._book.find("security.conflict", "it lies in something that is a file", name)
        for name, other in look_alikes(self._seen):
            message = f"it is the same name as {other} where case does not count"
            self._book.find("security.conflict", message, name)


def _folders(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]
