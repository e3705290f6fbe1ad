"""Verify an archive or a run folder: everything is read once, and nothing is trusted.

`verify` reads all files, VerifySession orders the steps, and ManifestChecker compares an archive
with its manifest: every listed file is there once, in order, as it is listed.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import msgspec

from stream.archive.chain import Tally
from stream.archive.manifest import (
    archive_order_key,
    archived_names_of,
    has_evidence,
    is_archive_file,
    is_reference,
    look_alikes,
    missing_files_of,
    required_files,
)
from stream.archive.reader import EntryStart, Limits, Part, parts_of, read_parts_ahead
from stream.archive.tar import BrokenArchive, Checkpoint, NoArchive, no_checkpoint
from stream.codec import DECODE_ERRORS, decode_fault
from stream.contracts import DOCUMENTS, decoder_of
from stream.errors import InputError, os_reason
from stream.records.artifacts import (
    ARCHIVE_MANIFEST,
    CHAIN_FILE,
    CORRELATION_FILE,
    HEALTH_FILE,
    KERNEL_FILE,
    RUNNER_FILE,
    SDK_FILE,
    V0_FILES,
    ArchiveManifest,
)
from stream.records.control import Fault
from stream.records.run import (
    DESCRIPTOR_FILE,
    EVENTS_FILE,
    MANIFEST_FILE,
    METADATA_FILE,
    SUMMARY_FILE,
)
from stream.verify.artifacts import Documents, artifact_faults, record_faults
from stream.verify.layers import (
    ChainChecker,
    FileChecker,
    LayerChecker,
    contract_of_layer,
    describe_verified,
)
from stream.verify.replay import LayerReplay
from stream.verify.report import VerifyReport
from stream.verify.run_documents import (
    DescriptorChecker,
    EventsChecker,
    RecordsChecker,
    RunDocuments,
    command_log_faults,
    document_disagreements,
    document_faults,
)
from stream.verify.run_folder import RECORDS, EventStatements, RunFolder, is_run_folder

_MOST_OF_FILE = 1 << 10  #: bytes of what a manifest says of one file, whose name it says twice
_PATH = re.compile(rb'"path"\s*:\s*"')
_decode = decoder_of(ArchiveManifest)


def verify(
    target: Path,
    limits: Limits | None = None,
    boundary: str | None = None,
    checkpoint: Checkpoint = no_checkpoint,
) -> VerifyReport:
    """Verify an archive or a run folder, and return what was found.

    `boundary` is a descriptor that records may name; `checkpoint` is called between parts, and may
    raise.
    Raise InputError where there is nothing to verify.
    """
    source = os.fsencode(target).decode(errors="replace")
    try:
        is_folder = is_run_folder(target, "neither an archive nor a run folder")
        report = VerifyReport(source, limits or Limits(), is_folder)
        with closing(VerifySession(report, boundary)) as session:
            if is_folder:
                folder = RunFolder(target)
                folder.require_run_folder()
                report.names = _folder_names(target, report)
                parts = folder.archive_parts(reading_order(report.names))
                session.check(_checkpointed(parts, checkpoint), missing_files_of(report.names))
            else:
                with target.open("rb", buffering=0) as file:
                    session.check(_checkpointed(parts_of(file, report.limits), checkpoint))
    except NoArchive as error:
        raise InputError(f"{source}: {error}") from None
    except OSError as error:
        raise InputError(f"{source}: {os_reason(error)}") from None
    except ValueError as error:  # a NUL in the path
        raise InputError(f"{source}: {error}") from None
    return report


class VerifySession:
    """Checks all files of an archive or a run folder, in the order in which they are trusted.

    Every file is read once, and checked by itself while it is read. What only several files show
    together is checked after that, step by step: the manifest says which bytes belong to the
    archive, the layers are what was recorded, the artifacts follow from the layers, and the run's
    own documents must agree with all of these.
    """

    def __init__(self, report: VerifyReport, boundary: str | None = None) -> None:
        self.documents = Documents(report)
        self.replay = LayerReplay()
        self._report = report
        self._boundary = boundary  #: a descriptor that was named
        self._layers: dict[str, LayerChecker] = {}
        self._chain: ChainChecker | None = None
        self._events: EventsChecker | None = None
        self._descriptor: DescriptorChecker | None = None
        self._validated: dict[str, RecordsChecker] = {}
        self._checker: FileChecker | None = None
        self._tally = Tally("")

    def check(self, parts: Iterator[Part], missing: Sequence[str] = ()) -> None:
        """Read all files of a run, and check them. `missing`: files that a whole run has."""
        try:
            if self._report.is_folder:
                self._read_folder(parts)
            else:
                read_archive(parts, self._report, self)
            self.conclude(missing)
        except BrokenArchive as broken:  # what is missing is behind this place
            self._report.report_fault(broken.rule, str(broken))
        self.documents.check_waiting_artifacts()

    def conclude(self, missing: Sequence[str] = ()) -> None:
        """Check what several files show together, once all of them were read."""
        is_whole = self.check_layers(missing)
        if is_whole:
            self.check_artifacts()
        self.check_run_documents(is_whole=is_whole)

    def begin(self, name: str) -> None:
        """Begin a file of the archive or run folder."""
        if not is_archive_file(name):
            self._report.report_fault("security.place", "no recorder writes such a file", name)
        self._checker = self._file_checker(name)
        self._tally = Tally(name)

    def feed(self, data: bytes) -> None:
        """Check the next bytes of the file that was begun."""
        self._tally.feed(data)
        if self._checker:
            self._checker.feed(data)

    def end(self) -> Tally:
        """End the file that was begun, and return its digest."""
        if self._checker:
            self._checker.finish()
        self._report.tallies[self._tally.layer] = self._tally
        return self._tally

    def close(self) -> None:
        """Remove the temporary files."""
        self.documents.close()
        self.replay.close()

    def check_layers(self, missing: Sequence[str] = ()) -> bool:
        """Check where the layers end, and their chain. Return whether the run is whole."""
        report = self._report
        is_whole = not missing and not self._is_cut_off
        for name, line, fault in self._layer_end_faults(is_whole=is_whole):
            report.report_fault(fault.rule, fault.reason, name, line)
        if not is_whole:
            self._report_incomplete(missing)
        elif report.is_folder and not has_evidence(report.names):
            report.report_fault("contract.evidence", "it was recorded without kernel evidence")
        if is_whole and RUNNER_FILE in self._layers:
            count = self._line_count(RUNNER_FILE)
            if not count:
                message = "neither start nor end is recorded"
                report.report_fault("contract.frame", message, RUNNER_FILE)
            elif count != 2:
                message = f"{count} events, not a start and an end"
                report.report_fault("contract.runner_event", message, RUNNER_FILE)
        return is_whole

    def check_artifacts(self) -> None:
        """Derive the artifacts from the layers again, and compare."""
        report = self._report
        if report.is_folder and not has_evidence(report.names):
            return
        for name, rule, reason in artifact_faults(
            self.replay,
            self.documents,
            is_reference=not report.is_folder and is_reference(report.names),
            is_streamed=not report.is_recorded,
        ):
            report.report_fault(rule, reason, name)

    def check_run_documents(self, *, is_whole: bool) -> None:
        """Check the run's own documents against each other, and against layers and artifacts."""
        run = self._run_documents()
        for name, line, fault in document_faults(run):
            self._report.add_faults([fault], name, line)
        if is_whole and self._events and self._report.is_recorded:
            for reason in document_disagreements(run):
                self._report.report_fault("contract.accord", reason)
            if self.replay.is_whole:
                for reason in command_log_faults(run, self.replay.verified_commands):
                    self._report.report_fault("contract.accord", reason)

    def _read_folder(self, parts: Iterator[Part]) -> None:
        """Read the files of a run folder as the parts of an archive, each by its checker."""
        for part in parts:
            if isinstance(part, EntryStart):
                self.begin(part.name)
            elif isinstance(part, bytes):
                self.feed(part)
            elif isinstance(part, Fault):
                self._report.add_faults([part])
                self.replay.mark_unreadable()  # and nothing follows from the others alone
            else:
                self.end()

    @property
    def _is_cut_off(self) -> bool:
        """Return whether this is a run whose recorder did not come to its end."""
        return self._report.is_folder and not (
            self._events and self._events.event_statements.is_finished
        )

    def _layer_end_faults(self, *, is_whole: bool) -> Iterator[tuple[str, int, Fault]]:
        """Yield the faults of the ends of the layers, and of the chain. That the layers of a run
        that was cut off end anywhere is no fault of its own."""
        faults = [
            (name, line, Fault(f"{size} bytes follow the last line", rule="integrity.torn"))
            for name, (line, size) in self._report.torn.items()
        ]
        if self._chain:
            compared = self._chain.compare_links(self._report.tallies, is_whole=is_whole)
            faults += [(CHAIN_FILE, line, fault) for line, fault in compared]
        for name, line, fault in faults:
            if not self._is_cut_off or fault.rule not in ("integrity.torn", "integrity.unlinked"):
                yield name, line, fault

    def _report_incomplete(self, missing: Sequence[str]) -> None:
        """Report that a run was cut off or lacks files, and which part of it is verified."""
        found = []
        if self._is_cut_off:
            missing = [name for name in missing if name in (METADATA_FILE, EVENTS_FILE)]
            if self._events:
                last = self._events.event_statements.last
                found.append(f"its last event is {last}" if last else "it has no event")
        if missing:
            found.append(f"there is no {', no '.join(missing)}")
        if self._is_cut_off:
            verified = self._chain.verified if self._chain else {}
            torn = self._report.torn.keys() - {CHAIN_FILE}
            found.append(describe_verified(self._report.tallies, verified, torn))
        what = "the run was not recorded to its end" if self._is_cut_off else "it is not whole"
        self._report.report_fault("integrity.incomplete", f"{what}: {'; '.join(found)}")

    def _line_count(self, name: str) -> int:
        """Return how many lines of a layer hold records."""
        layer = self._layers.get(name)
        return layer.lines - layer.blank if layer else 0

    def _kernel_lines(self) -> int:
        """Return how many lines others may refer to: of a run that was cut off, any may be lost."""
        is_cut_off = self._report.is_folder and HEALTH_FILE not in self._report.names
        return sys.maxsize if is_cut_off else self._line_count(KERNEL_FILE)

    def _file_checker(self, name: str) -> FileChecker | None:
        """Return what checks a file by itself; None if it may hold any bytes."""
        contract = contract_of_layer(name, self._kernel_lines, lambda: self._line_count(SDK_FILE))
        if contract:
            self._layers[name] = LayerChecker(self._report, name, contract, self.replay)
            return self._layers[name]
        if name in DOCUMENTS:
            return self.documents.checker_of(name)
        if name == CHAIN_FILE:
            self._chain = ChainChecker(self._report)
            return self._chain
        if name == EVENTS_FILE:
            listed = self.documents.record_of(MANIFEST_FILE)
            self._events = EventsChecker(self._report, listed.events if listed else None)
            return self._events
        if name == DESCRIPTOR_FILE:
            self._descriptor = DescriptorChecker(self._report)
            return self._descriptor
        if name in RECORDS:
            carried = self._descriptor.descriptors if self._descriptor else ()
            self._validated[name] = RecordsChecker(self._report, name, self._boundary, carried)
            return self._validated[name]
        return None

    def _run_documents(self) -> RunDocuments:
        """Collect the run's documents, layers and tallies that are compared with each other."""
        return RunDocuments(
            metadata=self.documents.record_of(METADATA_FILE),
            summary=self.documents.record_of(SUMMARY_FILE),
            manifest=self.documents.record_of(MANIFEST_FILE),
            health=self.documents.record_of(HEALTH_FILE),
            report=self.documents.record_of(CORRELATION_FILE),
            kernel_events=self._line_count(KERNEL_FILE),
            has_layers=has_evidence(self._report.names),
            runner=self.replay.runner,
            event_statements=self._events.event_statements if self._events else EventStatements(),
            counted={name: checker.count for name, checker in self._validated.items()},
            tallies=self._report.tallies,
        )


def reading_order(names: set[str]) -> list[str]:
    """Order the files of a run: first what says which run it is, then as in an archive."""
    first = [name for name in (METADATA_FILE, *V0_FILES) if name in names]
    return first + sorted(names - {*first}, key=os.fsencode)


def _folder_names(root: Path, report: VerifyReport) -> set[str]:
    """Name the files of a run folder; report a file that is not regular, and name none."""
    try:
        return {*archived_names_of(root, is_strict=False)}
    except InputError as error:
        report.report_fault("security.type", str(error))
        return set()


def _checkpointed(parts: Iterator[Part], checkpoint: Checkpoint) -> Iterator[Part]:
    """Yield the parts of an archive, read ahead, and call the checkpoint before each."""
    for part in read_parts_ahead(parts):
        checkpoint()
        yield part


# ---------------------------------------------------------------- an archive and its manifest


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
            contents.compare_file(reader.end())
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
            self._report.report_fault("integrity.duplicate", "it is there twice", name)
        elif not self._seen and name != ARCHIVE_MANIFEST:
            self._report.report_fault(
                "integrity.order", f"begins with {name}, not with the manifest"
            )
        self._seen[name] = None

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the manifest itself."""
        self._is_too_long |= len(self._data) + len(data) > self._most
        if not self._is_too_long:
            self._data += data

    def finish(self) -> None:
        """Check the manifest itself."""
        report = self._report
        if self._is_too_long:
            report.report_fault("limit.document", "the manifest is too long", ARCHIVE_MANIFEST)
            return
        data, most = bytes(self._data), report.limits.entries
        if len(_PATH.findall(data)) > most:
            message = f"it lists more than {most} files"
            report.report_fault("limit.entries", message, ARCHIVE_MANIFEST)
            return
        try:
            self._manifest = manifest = _decode(data)
        except DECODE_ERRORS as error:
            fault = decode_fault(error)._replace(rule="contract.manifest")
            report.add_faults([fault], ARCHIVE_MANIFEST)
            return
        self._data = bytearray()
        report.add_faults(report.check_run_id(manifest.run_id), ARCHIVE_MANIFEST)
        report.names = {*manifest.files}
        ordered = dict(sorted(manifest.files.items(), key=lambda item: item[0].encode()))
        if msgspec.json.encode(ArchiveManifest(run_id=manifest.run_id, files=ordered)) != data:
            self._check_form(data)
        report.add_faults(record_faults(manifest), ARCHIVE_MANIFEST)

    def _check_form(self, data: bytes) -> None:
        """Report a form that the contract does not ask for: another tar may have rewritten it."""
        rule = "contract.manifest" if self._is_sealed else "packing.manifest"
        message = "not in its one form: sorted, compact, no key twice"
        self._report.report_fault(rule, message, ARCHIVE_MANIFEST)
        self._report.add_form_faults(data, "contract.manifest", ARCHIVE_MANIFEST, is_ours=False)

    def compare_file(self, tally: Tally) -> None:
        """Compare a file that was read with what the manifest lists."""
        if self._manifest is None:
            return
        name = tally.layer
        listed = self._manifest.files.get(name)
        if listed is None:
            self._report.report_fault("integrity.extra", "the manifest does not list it", name)
            return
        if tally.bytes != listed.bytes:
            message = f"it has {tally.bytes} bytes, and is listed with {listed.bytes}"
            self._report.report_fault("integrity.length", message, name)
        if f"sha256:{tally.sha256}" != listed.sha256:
            message = f"its digest is sha256:{tally.sha256}, and is listed as {listed.sha256}"
            self._report.report_fault("integrity.digest", message, name)

    def conclude(self) -> None:
        """Check which files there are, and in which order."""
        seen = {*self._seen}
        listed = {*self._manifest.files} if self._manifest else set()
        wanted = {ARCHIVE_MANIFEST, *listed, *required_files(listed | seen - {ARCHIVE_MANIFEST})}
        for name in sorted(wanted - seen, key=os.fsencode):
            self._report.report_fault("integrity.missing", "it is not there", name)
        for one, other in pairwise(self._seen):
            if other != ARCHIVE_MANIFEST and archive_order_key(one) > archive_order_key(other):
                self._report.report_fault("integrity.order", f"it stands after {one}", other)
        for name in sorted(seen, key=os.fsencode):
            if any(part in seen for part in _parent_folders(name)):
                self._report.report_fault("security.conflict", "its parent path is a file", name)
        for name, other in look_alikes(self._seen):
            message = f"it is the same name as {other} if case is ignored"
            self._report.report_fault("security.conflict", message, name)


def _parent_folders(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]
