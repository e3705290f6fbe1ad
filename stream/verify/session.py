"""Each file of an archive or a run to its checker, and what only several files together show.

A run folder as the same stream of entries that an archive is, as far as it goes.

The manifest of an archive against what the archive holds.

Whether an archive or a run folder is what it says: everything is read, and nothing trusted.

The composition behind `stream verify`: what was found, to wherever it is wanted."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import msgspec
from anyio import to_thread
from msgspec import Struct

from stream.archive.chain import Tally
from stream.archive.manifest import (
    has_evidence,
    has_place,
    is_reference,
    look_alikes,
    missing_from,
    names_of,
    needed,
    place_of,
)
from stream.archive.reader import EntryEnd, EntryStart, Limits, NoArchive, Part, ahead, parts_of
from stream.archive.tar import READ, BrokenArchive, Look, unwatched
from stream.boundary.descriptors import find_boundaries
from stream.codec import DECODE_ERRORS, explain
from stream.contracts import decoder_of
from stream.errors import InputError, os_reason
from stream.evidence.consistency import faults_of
from stream.evidence.health import ABSENT_NOTE
from stream.files.inside import describe_kind, open_beneath
from stream.pipeline import Batch, Out, Pipeline, Sink
from stream.records.artifacts import (
    ARCHIVE_MANIFEST,
    CHAIN_FILE,
    CORRELATION_FILE,
    EVIDENCE_FILES,
    HEALTH_FILE,
    KERNEL_FILE,
    NOT_ASKED,
    RUNNER_FILE,
    SDK_FILE,
    V0_FILES,
    ArchiveManifest,
)
from stream.records.control import FINDINGS, Fault
from stream.records.decision import CLAUDE_CODE
from stream.records.run import (
    ARTIFACTS,
    COMMANDS_FILE,
    DESCRIPTOR_FILE,
    EVENTS_FILE,
    MANIFEST_FILE,
    METADATA_FILE,
    SUMMARY_FILE,
    Manifest,
    RunMetadata,
    RunSummary,
)
from stream.verify.artifacts import implied_faults
from stream.verify.documents import DOCUMENTS, Documents, form_faults_of
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
    VALIDATED,
    Carried,
    Events,
    RunDocuments,
    Validated,
    disagreements,
    vouched_faults,
)
from stream.verify.run_folder import check_folder


class VerifySession:
    def __init__(self, report: VerifyReport, boundary: str | None = None) -> None:
        self._boundary = boundary  #: a descriptor that was named
        self._carried: Carried | None = None
        self.documents = Documents(report)
        self.layers: dict[str, LayerChecker] = {}
        self._report = report
        self.replay = LayerReplay()
        self._links: ChainChecker | None = None
        self._events: Events | None = None
        self._validated: dict[str, Validated] = {}
        self._checker: FileChecker | None = None
        self._tally = Tally("")

    def begin(self, name: str) -> None:
        if not has_place(name):
            self._report.find("security.place", "no recorder writes such a file", name)
        self._checker = self._checker_of(name)
        self._tally = Tally(name)

    def feed(self, data: bytes) -> None:
        self._tally.feed(data)
        if self._checker:
            self._checker.feed(data)

    def end(self) -> Tally:
        """What went by."""
        if self._checker:
            self._checker.finish()
        self._report.tallies[self._tally.layer] = self._tally
        return self._tally

    def conclude(self, missing: Sequence[str] = ()) -> bool:
        """Whether everything is there. `missing`: what a whole run would have."""
        is_whole = not missing and not self._is_cut_off
        for name, line, fault in self._endings(is_whole=is_whole):
            self._report.find(fault.rule, fault.reason, name, line)
        if not is_whole:
            self._tell_incomplete(missing)
        elif self._report.is_folder and not has_evidence(self._report.names):
            self._report.find("contract.evidence", "it was recorded without kernel evidence")
        told = self.count(RUNNER_FILE)
        if is_whole and RUNNER_FILE in self.layers and not told:
            self._report.find("contract.frame", "neither start nor end is recorded", RUNNER_FILE)
        elif is_whole and RUNNER_FILE in self.layers and told != 2:
            message = f"{told} events, not a start and an end"
            self._report.find("contract.runner_event", message, RUNNER_FILE)
        if self._events:
            self._check_agent(self._events)
            self._check_mentions(self._events)
        listed = self.documents.get(MANIFEST_FILE)
        if isinstance(listed, Manifest):
            self._check_listed(listed)
        summary = self.documents.get(SUMMARY_FILE)
        for what in summary.incomplete if isinstance(summary, RunSummary) else ():
            self._report.find("contract.losses", f"the recorder itself lost: {what}", SUMMARY_FILE)
        if is_whole and self._events and self._report.is_recorded:
            self._check_accord(self._events)
        return is_whole

    def check_vouched(self) -> None:
        """What of the command log the layers vouch for, once they were read to their end."""
        checker = self._validated.get(COMMANDS_FILE)
        if not self._events or not self._report.is_recorded or not self.replay.is_whole:
            return
        lines = {*range(checker.count if checker else 0)}
        for reason in vouched_faults(self._events.named, self.replay.verified_commands, lines):
            self._report.find("contract.accord", reason)

    def close(self) -> None:
        self.documents.close()
        self.replay.close()

    @property
    def _is_cut_off(self) -> bool:
        """A run whose recorder did not come to its end."""
        return self._report.is_folder and not (self._events and self._events.is_finished)

    @property
    def _has_own_evidence(self) -> bool:
        health = self.documents.get(HEALTH_FILE)
        is_made = health is not None and f"{ABSENT_NOTE}: {NOT_ASKED}" in health.notes
        return has_evidence(self._report.names) and not is_made

    def _endings(self, *, is_whole: bool) -> Iterator[tuple[str, int, Fault]]:
        """Where the layers end, and whether the chain does. Of a run that was cut off, that they
        end anywhere is no fault of its own."""
        faults = [
            (name, line, Fault(f"{size} bytes follow the last line", rule="integrity.torn"))
            for name, (line, size) in self._report.torn.items()
        ]
        if self._links:
            compared = self._links.compare(self._report.tallies, is_whole=is_whole)
            faults += [(CHAIN_FILE, line, fault) for line, fault in compared]
        for name, line, fault in faults:
            if not self._is_cut_off or fault.rule not in ("integrity.torn", "integrity.unlinked"):
                yield name, line, fault

    def _tell_incomplete(self, missing: Sequence[str]) -> None:
        told = []
        if self._is_cut_off:
            missing = [name for name in missing if name in (METADATA_FILE, EVENTS_FILE)]
            if self._events:
                last = self._events.last
                told.append(f"its last event is {last}" if last else "it has no event")
        if missing:
            told.append(f"there is no {', no '.join(missing)}")
        if self._is_cut_off:
            vouched = self._links.verified if self._links else {}
            torn = self._report.torn.keys() - {CHAIN_FILE}
            told.append(describe_verified(self._report.tallies, vouched, torn))
        what = "the run was not recorded to its end" if self._is_cut_off else "it is not whole"
        message = f"{what}: {'; '.join(told)}"
        self._report.find("integrity.incomplete", message)

    def count(self, name: str) -> int:
        layer = self.layers.get(name)
        return layer.lines - layer.blank if layer else 0

    def _kernel_lines(self) -> int:
        """Behind its last link, a layer of a run that was cut off may lack anything."""
        is_cut_off = self._report.is_folder and HEALTH_FILE not in self._report.names
        return sys.maxsize if is_cut_off else self.count(KERNEL_FILE)

    def _checker_of(self, name: str) -> FileChecker | None:
        """None: any bytes will do."""
        law = contract_of_layer(name, self._kernel_lines, lambda: self.count(SDK_FILE))
        if law:
            self.layers[name] = LayerChecker(self._report, name, law, self.replay)
            return self.layers[name]
        if name in DOCUMENTS:
            return self.documents.checker_of(name)
        if name == CHAIN_FILE:
            self._links = ChainChecker(self._report)
            return self._links
        if name == EVENTS_FILE:
            listed = self.documents.get(MANIFEST_FILE)
            self._events = Events(self._report, listed.events if listed else None)
            return self._events
        if name == DESCRIPTOR_FILE:
            self._carried = Carried(self._report)
            return self._carried
        if name in VALIDATED:
            carried = self._carried.descriptors if self._carried else ()
            boundaries = find_boundaries(self._boundary, carried)
            self._validated[name] = Validated(self._report, name, boundaries)
            return self._validated[name]
        return None

    def _check_accord(self, events: Events) -> None:
        run = RunDocuments(
            metadata=self.documents.get(METADATA_FILE),
            summary=self.documents.get(SUMMARY_FILE),
            health=self.documents.get(HEALTH_FILE),
            report=self.documents.get(CORRELATION_FILE),
            kernel_events=self.count(KERNEL_FILE),
            has_evidence=self._has_own_evidence,
            runner=self.replay.runner,
            events=events.named,
            counted={name: checker.count for name, checker in self._validated.items()},
        )
        for reason in disagreements(run):
            self._report.find("contract.accord", reason)

    def _check_agent(self, events: Events) -> None:
        metadata = self.documents.get(METADATA_FILE)
        if not isinstance(metadata, RunMetadata) or metadata.profile != "poc":
            return
        for agent, line in events.agents.items():
            if agent != CLAUDE_CODE:
                message = f"expected {CLAUDE_CODE!r}, got {agent!r}: the run's profile is poc"
                self._report.find("contract.agent", message, EVENTS_FILE, line)

    def _check_mentions(self, events: Events) -> None:
        """An archive that was made from a stream has records, and no other files."""
        if not any(name.startswith(f"{ARTIFACTS}/") for name in self._report.tallies):
            if events.mentions:
                message = f"of {len(events.mentions)} files that the events name, none is here"
                self._report.find("contract.artifacts", message, EVENTS_FILE)
            return
        for mention in events.mentions:
            if reason := self._differs(mention.file, mention.sha256):
                line, path = mention.line, mention.path
                self._report.find("contract.listed", reason, EVENTS_FILE, line, path)

    def _check_listed(self, listed: Manifest) -> None:
        for index, file in enumerate(listed.files):
            digest = file.sha256.removeprefix("sha256:")
            if reason := self._differs(file.path, digest, file.bytes):
                self._report.find(
                    "contract.listed", reason, MANIFEST_FILE, path=f"$.files[{index}]"
                )
        names = {file.path for file in listed.files}
        for name in sorted(self._unlisted(names)):
            self._report.find("contract.listed", f"{name} is not listed", MANIFEST_FILE)

    def _unlisted(self, names: set[str]) -> Iterator[str]:
        """What stands for evidence that nobody asked for was made when the archive was."""
        others = {EVENTS_FILE, MANIFEST_FILE}
        if not self._has_own_evidence:
            others |= {*EVIDENCE_FILES}
        yield from self._report.tallies.keys() - names - others

    def _differs(self, name: str, sha256: str, size: int | None = None) -> str:
        """Why a file is not as somebody says that it was; empty where it is."""
        tally = self._report.tallies.get(name)
        if tally is None:
            return f"{name} is not there"
        if size is not None and tally.bytes != size:
            return f"{name} has {tally.bytes} bytes, not {size}"
        return "" if tally.sha256 == sha256 else f"{name} is not what was hashed"


def folder_parts(root: Path, names: list[str]) -> Iterator[Part]:
    for name in names:
        try:
            with open_beneath(root, name) as file:
                yield EntryStart(name, os.fstat(file.fileno()).st_size, [])
                while block := file.read(READ):
                    yield block
                yield EntryEnd()
        except InputError as error:
            yield Fault(str(error), rule="security.type")
        except OSError as error:
            yield Fault(f"{name}: {os_reason(error)}", rule="integrity.missing")


def reading_order(names: set[str]) -> list[str]:
    """What says whose run it is comes first, then as in an archive."""
    first = [name for name in (METADATA_FILE, *V0_FILES) if name in names]
    return first + sorted(names - {*first}, key=os.fsencode)


def folder_names(root: Path, report: VerifyReport) -> set[str]:
    try:
        return {*names_of(root, is_strict=False)}
    except InputError as error:
        report.find("security.type", str(error))
        return set()


_LONGEST = 1 << 10  #: bytes of what a manifest says of one file, whose name it says twice
_PATH = re.compile(rb'"path"\s*:\s*"')
_decode = decoder_of(ArchiveManifest)


class Reader(Protocol):
    """Who gets the files of an archive, one after the other, but for its manifest."""

    def begin(self, name: str) -> None: ...

    def feed(self, data: bytes) -> None: ...

    def end(self) -> Tally: ...


def read_archive(parts: Iterator[Part], report: VerifyReport, reader: Reader) -> None:
    """To its end, all of it held against its manifest. Raises BrokenArchive where nothing after
    some place can be read."""
    contents = Contents(report)
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


class Contents:
    """The checker of the manifest, and what it says of every other file."""

    def __init__(self, report: VerifyReport) -> None:
        self._report = report
        self._most = min(report.limits.document, _LONGEST * (report.limits.entries + 1))
        self._manifest: ArchiveManifest | None = None
        self._seen: dict[str, None] = {}  # in their order
        self._held = bytearray()
        self._is_too_long = False
        self._is_sealed = False

    def begin(self, name: str, *, is_sealed: bool) -> None:
        self._is_sealed = is_sealed
        if name in self._seen:
            self._report.find("integrity.duplicate", "it is there twice", name)
        elif not self._seen and name != ARCHIVE_MANIFEST:
            self._report.find("integrity.order", f"begins with {name}, not with the manifest")
        self._seen[name] = None

    def feed(self, data: bytes) -> None:
        self._is_too_long |= len(self._held) + len(data) > self._most
        if not self._is_too_long:
            self._held += data

    def finish(self) -> None:
        """Of the manifest itself."""
        if self._is_too_long:
            self._report.find("limit.document", "the manifest is too long", ARCHIVE_MANIFEST)
            return
        data, most = bytes(self._held), self._report.limits.entries
        if len(_PATH.findall(data)) > most:
            self._report.find("limit.entries", f"it lists more than {most} files", ARCHIVE_MANIFEST)
            return
        try:
            self._manifest = manifest = _decode(data)
        except DECODE_ERRORS as error:
            fault = explain(error)
            self._report.find("contract.manifest", fault.reason, ARCHIVE_MANIFEST, path=fault.path)
            return
        self._held = bytearray()
        self._report.add_faults(self._report.check_run_id(manifest.run_id), ARCHIVE_MANIFEST)
        self._report.names = {*manifest.files}
        ordered = dict(sorted(manifest.files.items(), key=lambda item: item[0].encode()))
        if msgspec.json.encode(ArchiveManifest(run_id=manifest.run_id, files=ordered)) != data:
            self._check_form(data)
        faults = [fault._replace(rule="contract.manifest") for fault in faults_of(manifest)]
        self._report.add_faults(faults, ARCHIVE_MANIFEST)

    def _check_form(self, data: bytes) -> None:
        """The contract says nothing of it: who packed it again may have written it anew."""
        rule = "contract.manifest" if self._is_sealed else "packing.manifest"
        message = "not in its one form: sorted, compact, no key twice"
        self._report.find(rule, message, ARCHIVE_MANIFEST)
        faults = form_faults_of(data, "contract.manifest", is_ours=False)
        self._report.add_faults(faults, ARCHIVE_MANIFEST)

    def compare(self, tally: Tally) -> None:
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
                self._report.find("security.conflict", "it lies in something that is a file", name)
        for name, other in look_alikes(self._seen):
            message = f"it is the same name as {other} where case does not count"
            self._report.find("security.conflict", message, name)


def _folders(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def verify(
    target: Path,
    limits: Limits | None = None,
    boundary: str | None = None,
    look: Look = unwatched,
) -> VerifyReport:
    """What was found. `boundary` is a descriptor that records may name. Raises InputError where
    there is nothing to verify."""
    place = os.fsencode(target).decode(errors="replace")
    try:
        is_folder = _is_folder(target)
        report = VerifyReport(place, limits or Limits(), is_folder)
        if is_folder:
            check_folder(target)
            _verify_folder(target, report, boundary)
        else:
            _verify_archive(target, report, boundary, look)
    except NoArchive as error:
        raise InputError(f"{place}: {error}") from None
    except OSError as error:
        raise InputError(f"{place}: {os_reason(error)}") from None
    except ValueError as error:  # a NUL in the path
        raise InputError(f"{place}: {error}") from None
    return report


def _is_folder(target: Path) -> bool:
    mode = target.stat().st_mode
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise InputError(f"{target}: {describe_kind(mode)}: neither an archive nor a run folder")
    return stat.S_ISDIR(mode)


def _verify_archive(target: Path, report: VerifyReport, boundary: str | None, look: Look) -> None:
    session = VerifySession(report, boundary)
    with closing(session), target.open("rb", buffering=0) as file:
        try:
            parts = ahead(parts_of(file, report.limits))
            read_archive(_watched(parts, look), report, session)
        except BrokenArchive as broken:  # what is missing is behind this place
            report.find(broken.rule, str(broken))
        else:
            session.conclude()
            hold_to_implied(report, session)
        session.documents.settle()


def _watched(parts: Iterator[Part], look: Look) -> Iterator[Part]:
    for part in parts:
        look()
        yield part


def _verify_folder(root: Path, report: VerifyReport, boundary: str | None) -> None:
    report.names = folder_names(root, report)
    session = VerifySession(report, boundary)
    with closing(session):
        _examine_folder(root, report, session)
        session.documents.settle()


def _examine_folder(root: Path, report: VerifyReport, session: VerifySession) -> None:
    try:
        for part in ahead(folder_parts(root, reading_order(report.names))):
            if isinstance(part, EntryStart):
                session.begin(part.name)
            elif isinstance(part, bytes):
                session.feed(part)
            elif isinstance(part, Fault):
                report.add_faults([part])
                session.replay.miss()  # and nothing follows from the others alone
            else:
                session.end()
    except BrokenArchive as broken:
        report.find(broken.rule, str(broken))
        return
    if session.conclude(missing_from(report.names)):
        hold_to_implied(report, session)


def hold_to_implied(report: VerifyReport, session: VerifySession) -> None:
    if report.is_folder and not has_evidence(report.names):
        session.check_vouched()
        return
    replay, documents = session.replay, session.documents
    for name, fault in implied_faults(
        replay,
        documents,
        is_reference=not report.is_folder and is_reference(report.names),
        is_streamed=not report.is_recorded,
    ):
        report.find(fault.rule, fault.reason, name)
    session.check_vouched()


class VerifySource(Struct):
    """The findings about an archive or a run folder."""

    target: Path
    limits: Limits
    boundary: str | None = None
    report: VerifyReport | None = None

    async def run(self, out: Out, /) -> None:
        # In a thread that an interrupt leaves behind: there may be gigabytes to read.
        self.report = await to_thread.run_sync(
            lambda: verify(self.target, self.limits, self.boundary), abandon_on_cancel=True
        )
        if self.report.findings:
            await out.send(Batch(FINDINGS, self.report.findings))


async def run_verify(
    target: Path, limits: Limits, boundary: str | None, *sinks: Sink
) -> VerifyReport:
    """Raises InputError where there is nothing to verify."""
    source = VerifySource(target, limits, boundary)
    await Pipeline((source,)).into(*sinks)
    assert source.report is not None
    return source.report
