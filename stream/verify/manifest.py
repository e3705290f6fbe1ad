"""An archive against its manifest: every listed file is there once, in order, as it is listed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Protocol

import msgspec

from stream.archive.chain import Tally
from stream.archive.manifest import look_alikes, needed, place_of
from stream.archive.reader import EntryStart, Part
from stream.codec import DECODE_ERRORS, explain
from stream.contracts import decoder_of
from stream.evidence.consistency import faults_of
from stream.records.artifacts import ARCHIVE_MANIFEST, ArchiveManifest
from stream.records.control import Fault
from stream.verify.report import VerifyReport

_MOST_OF_FILE = 1 << 10  #: bytes of what a manifest says of one file, whose name it says twice
_PATH = re.compile(rb'"path"\s*:\s*"')
_decode = decoder_of(ArchiveManifest)


class Reader(Protocol):
    """Takes the files of an archive one after the other, but for its manifest."""

    def begin(self, name: str) -> None:
        """Begin a file."""

    def feed(self, data: bytes) -> None:
        """Take the next bytes of it."""

    def end(self) -> Tally:
        """End the file, and return its digest."""


def read_archive(parts: Iterator[Part], report: VerifyReport, reader: Reader) -> None:
    """Read an archive to its end, and compare all of it with its manifest.

    Raise BrokenArchive where nothing after some place can be read.
    """
    contents = ManifestChecker(report)
    name = ""
    for part in parts:
        if isinstance(part, Fault):
            report.add_faults([part], name)
        elif isinstance(part, EntryStart):
            name = part.name
            report.add_faults(part.faults, name)
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


class ManifestChecker:
    """Checks the manifest of an archive, and every other file against it."""

    def __init__(self, report: VerifyReport) -> None:
        self._report = report
        self._most = min(report.limits.document, _MOST_OF_FILE * (report.limits.entries + 1))
        self._manifest: ArchiveManifest | None = None
        self._seen: dict[str, None] = {}  # in their order
        self._data = bytearray()
        self._is_too_long = False
        self._is_sealed = False

    def begin(self, name: str, *, is_sealed: bool) -> None:
        """Check the place of a file. `is_sealed`: the archive was written by `stream archive`."""
        self._is_sealed = is_sealed
        if name in self._seen:
            self._report.find("integrity.duplicate", "it is there twice", name)
        elif not self._seen and name != ARCHIVE_MANIFEST:
            self._report.find("integrity.order", f"begins with {name}, not with the manifest")
        self._seen[name] = None

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the manifest itself."""
        self._is_too_long |= len(self._data) + len(data) > self._most
        if not self._is_too_long:
            self._data += data

    def finish(self) -> None:
        """Check the manifest itself."""
        if self._is_too_long:
            self._report.find("limit.document", "the manifest is too long", ARCHIVE_MANIFEST)
            return
        data, most = bytes(self._data), self._report.limits.entries
        if len(_PATH.findall(data)) > most:
            self._report.find("limit.entries", f"it lists more than {most} files", ARCHIVE_MANIFEST)
            return
        try:
            self._manifest = manifest = _decode(data)
        except DECODE_ERRORS as error:
            fault = explain(error)
            self._report.find("contract.manifest", fault.reason, ARCHIVE_MANIFEST, path=fault.path)
            return
        self._data = bytearray()
        self._report.add_faults(self._report.check_run_id(manifest.run_id), ARCHIVE_MANIFEST)
        self._report.names = {*manifest.files}
        ordered = dict(sorted(manifest.files.items(), key=lambda item: item[0].encode()))
        if msgspec.json.encode(ArchiveManifest(run_id=manifest.run_id, files=ordered)) != data:
            self._check_form(data)
        faults = [fault._replace(rule="contract.manifest") for fault in faults_of(manifest)]
        self._report.add_faults(faults, ARCHIVE_MANIFEST)

    def _check_form(self, data: bytes) -> None:
        """Report a form that the contract does not ask for: another tar may have rewritten it."""
        rule = "contract.manifest" if self._is_sealed else "packing.manifest"
        message = "not in its one form: sorted, compact, no key twice"
        self._report.find(rule, message, ARCHIVE_MANIFEST)
        self._report.add_form_faults(data, "contract.manifest", ARCHIVE_MANIFEST, is_ours=False)

    def compare(self, tally: Tally) -> None:
        """Compare a file that was read with what the manifest lists."""
        if self._manifest is None:
            return
        name = tally.layer
        listed = self._manifest.files.get(name)
        if listed is None:
            self._report.find("integrity.extra", "the manifest does not list it", name)
            return
        if tally.bytes != listed.bytes:
            message = f"it has {tally.bytes} bytes, and is listed with {listed.bytes}"
            self._report.find("integrity.length", message, name)
        if f"sha256:{tally.sha256}" != listed.sha256:
            message = f"its digest is sha256:{tally.sha256}, and is listed as {listed.sha256}"
            self._report.find("integrity.digest", message, name)

    def conclude(self) -> None:
        """Check which files there are, and in which order."""
        seen = {*self._seen}
        listed = {*self._manifest.files} if self._manifest else set()
        wanted = {ARCHIVE_MANIFEST, *listed, *needed(listed | seen - {ARCHIVE_MANIFEST})}
        for name in sorted(wanted - seen, key=os.fsencode):
            self._report.find("integrity.missing", "it is not there", name)
        for one, other in pairwise(self._seen):
            if other != ARCHIVE_MANIFEST and place_of(one) > place_of(other):
                self._report.find("integrity.order", f"it stands after {one}", other)
        for name in sorted(seen, key=os.fsencode):
            if any(part in seen for part in _folders(name)):
                self._report.find("security.conflict", "its parent path is a file", name)
        for name, other in look_alikes(self._seen):
            message = f"it is the same name as {other} if case is ignored"
            self._report.find("security.conflict", message, name)


def _folders(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]
