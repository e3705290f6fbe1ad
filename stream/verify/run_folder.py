"""Read a run folder, and check it against its own record.

`check`, `verify`, `diff`, `apply` and `archive` read a run folder with `RunFolder`: it opens,
decodes and digests each file, follows no link out of the folder and waits for no fifo.
`run_folder_findings` is what `check` says of a folder: of the files that its events and its
manifest list, the diff, the logs and the evidence.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from stream.archive.reader import EntryEnd, EntryStart, Limits, Part
from stream.archive.tar import READ
from stream.boundary.descriptors import Boundaries
from stream.codec import (
    DECODE_ERRORS,
    LARGEST,
    Lines,
    OverlongLine,
    TornLine,
    contract_of,
    convert_document,
    decode_fault,
    document_in,
    lines_of,
)
from stream.contracts import CONTRACTS, DOCUMENTS, contract_fault_of
from stream.errors import InputError, os_reason, reporting
from stream.files.inside import Digests, UnusableFileError, describe_kind, files_below, open_beneath
from stream.pipeline import Batch
from stream.records import run
from stream.records.artifacts import COMPANION_FILE, DETAIL_FILE, EVIDENCE_FILES, KERNEL_FILE
from stream.records.control import FINDINGS, LINES, Fault, Finding
from stream.records.run import FsChange, Manifest, Profile, RunMetadata, RunSummary, decode_change
from stream.transformers.event_rules import event_name, event_object_in, event_rules, lost_bytes_of
from stream.transformers.validate import Validate
from stream.workspace.patch import GitError, why_patch_inapplicable, why_patch_unreadable

#: Files that hold what `validate` knows.
RECORDS = (run.BOUNDARY_FILE, run.CHANGES_FILE, run.COMMANDS_FILE)
_DIGITS = frozenset("0123456789abcdef")
T = TypeVar("T")


class ArtifactMention(Struct):
    """Holds an artifact that an event names, and where it stands."""

    artifact: dict[str, Any]
    line: int
    path: str
    event_id: str

    @property
    def file(self) -> tuple[str, str] | None:
        """Return the artifact's file and the digest that it must have; None if the event does not
        say so, or says that something of the file was lost."""
        ref, digest = self.artifact.get("content_ref"), self.artifact.get("hash")
        if not isinstance(ref, str) or not isinstance(digest, str) or self.is_lossy:
            return None
        return ref, digest

    @property
    def is_lossy(self) -> bool:
        """Return whether the event says that there was no room for some of the artifact."""
        return lost_bytes_of(value_within(self.artifact, "metadata", "lost_bytes")) > 0


class EventStatements:
    """Collects what the events of a run say about it. With a limit it keeps `most` of each kind of
    statement, and of the mentions only those with a file."""

    def __init__(self, most: int = sys.maxsize) -> None:
        self.is_finished = False
        self.last = ""  #: event, by its own name for itself
        self.run_ids: dict[str, int] = {}  #: and the line of the first of each
        self.agents: dict[str, int] = {}  #: and the same
        self.constraints: set[str] = set()
        self.mentions: list[ArtifactMention] = []
        self.named: dict[str, dict[str, Any]] = {}  #: the first event of each name
        self._most = most

    @property
    def is_lossy(self) -> bool:
        """Return whether the events name an artifact for some of which there was no room."""
        return any(mention.is_lossy for mention in self.mentions)

    def add_line(self, line: bytes, number: int) -> dict[str, Any] | None:
        """Keep what a line of the events states, and return its event; None if it is no event."""
        event = event_object_in(line)
        if event is None:
            return None
        kind = event.get("event_type")
        name = event_name(kind, value_within(event, "agent_action", "action_summary"))
        self.is_finished |= name == "run_finished"
        self.last = kind if isinstance(kind, str) else self.last
        if name is not None:
            self.named.setdefault(name, event)
        for key, known in (("run_id", self.run_ids), ("agent_id", self.agents)):
            text = value_within(event, "session", key)
            if isinstance(text, str) and len(known) < self._most:
                known.setdefault(text, number)
        for item in items_within(event, "request", "constraints"):
            if isinstance(value_within(item, "id"), str) and len(self.constraints) < self._most:
                self.constraints.add(item["id"])
        event_id = event.get("event_id")
        for index, item in enumerate(items_within(event, "agent_action", "artifacts")):
            if isinstance(item, dict):
                path = f"$.agent_action.artifacts[{index}]"
                self._add_mention(item, number, path, event_id if isinstance(event_id, str) else "")
        return event

    def _add_mention(self, artifact: dict[str, Any], line: int, path: str, event_id: str) -> None:
        """Keep an artifact that an event names, up to the limit of mentions."""
        mention = ArtifactMention(artifact, line, path, event_id)
        is_kept = mention.file is not None and len(self.mentions) <= self._most
        if is_kept or self._most == sys.maxsize:
            self.mentions.append(mention)


def is_run_folder(target: Path, neither: str) -> bool:
    """Return whether a folder is there, not a file. Raise InputError, with these words, where it is
    neither, or OSError."""
    mode = target.stat().st_mode
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise InputError(f"{target}: {describe_kind(mode)}: {neither}")
    return stat.S_ISDIR(mode)


class RunFolder:
    """Reads the files of a run folder. Each is opened, decoded and digested here."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.digests = Digests(root)

    def require_run_folder(self) -> None:
        """Raise InputError if the folder is not that of a run, or cannot be read."""
        with reporting(self.root):
            names = [path.name for path in self.root.iterdir()]
        known = (run.METADATA_FILE, run.EVENTS_FILE, run.ARTIFACTS, run.WORKSPACE)
        if names and not any(name.startswith(known) for name in names):
            missing = f"neither {run.METADATA_FILE} nor {run.EVENTS_FILE}"
            raise InputError(f"{self.root}: no run folder: {missing}")
        events = self.root / run.EVENTS_FILE
        try:
            mode = events.lstat().st_mode
        except FileNotFoundError:
            return
        except OSError as error:
            raise InputError(f"{events}: {os_reason(error)}") from None
        if not stat.S_ISREG(mode):
            raise InputError(f"{events}: {describe_kind(mode)}, not a regular file")

    @cached_property
    def event_statements(self) -> EventStatements:
        """Return what the events say; nothing if there are none. Raise InputError."""
        stated = EventStatements()
        where = self.root / run.EVENTS_FILE
        with reporting(where):
            for lines in self.file_lines(run.EVENTS_FILE) if where.exists() else ():
                for number, line in enumerate(lines, lines.number):
                    stated.add_line(line, number)
        return stated

    @property
    def profile(self) -> Profile:
        """Return the profile that the run itself asks to be checked by."""
        try:
            return self.metadata().profile
        except UnusableFileError:
            return "poc"

    @property
    def recorded_losses(self) -> list[str]:
        """Return what the recorder itself reports as missing. That the summary is the one that it
        wrote is checked elsewhere."""
        try:
            return self.read_document(run.SUMMARY_FILE, RunSummary).incomplete
        except InputError:
            return []

    def metadata(self) -> RunMetadata:
        """Return the metadata of the run. Raise UnusableFileError."""
        where = self.root / run.METADATA_FILE
        try:
            value = self._json_value_of(run.METADATA_FILE)
            if isinstance(value, dict) and "schema" not in value:
                message = f"names no contract: only a {run.RUN} can be held against the events"
                raise UnusableFileError("folder.contract", message)
            return convert_document(value, RunMetadata, where)
        except InputError as error:
            message = _message_without_path(where, error)
            raise UnusableFileError("folder.metadata", message) from None

    def read_document(self, name: str, kind: type[T]) -> T:
        """Return a JSON document of the run. Raise InputError with its place."""
        return convert_document(self._json_value_of(name), kind, self.root / name)

    def file_blocks(self, name: str) -> Iterator[bytes]:
        """Yield a file of the run in blocks. Raise OSError, or InputError if it is not regular."""
        with open_beneath(self.root, name) as file:
            while block := file.read(READ):
                yield block

    def file_lines(self, name: str) -> Iterator[Lines]:
        """Yield the lines of a file. Raise OSError, or InputError where it is no regular file."""
        return lines_of(self.file_blocks(name), _utf8_text(str(self.root / name)))

    def archive_parts(self, names: Iterable[str]) -> Iterator[Part]:
        """Read files as the entries of an archive. One that cannot be read is a fault."""
        for name in names:
            try:
                with open_beneath(self.root, name) as file:
                    yield EntryStart(name, os.fstat(file.fileno()).st_size, [])
                    while block := file.read(READ):
                        yield block
                    yield EntryEnd()
            except InputError as error:
                yield Fault(str(error), rule="security.type")
            except OSError as error:
                yield Fault(f"{name}: {os_reason(error)}", rule="integrity.missing")

    def recorded_metadata(self) -> RunMetadata:
        """Return the metadata as the events list them. Raise InputError where they are another, or
        the run was not recorded to its end."""
        data = b"".join(self._recorded_blocks(run.METADATA_FILE))
        try:
            return msgspec.json.decode(data, type=RunMetadata)
        except msgspec.MsgspecError as error:
            raise InputError(f"{self.root / run.METADATA_FILE}: {error}") from None

    def recorded_changes(self) -> Iterator[FsChange]:
        """Yield what the agent changed, as the events list it. Raise InputError, at the end where
        it is something else."""
        for lines in lines_of(self._recorded_blocks(run.CHANGES_FILE), ""):
            for number, line in enumerate(lines, lines.number):
                try:
                    yield decode_change(line)
                except (msgspec.MsgspecError, ValueError) as error:
                    raise InputError(f"{self.root / run.CHANGES_FILE}:{number}: {error}") from None

    def _recorded_blocks(self, name: str) -> Iterator[bytes]:
        """Yield a file that must have its digest: a program that could write to the record must not
        choose what is taken over, and where to."""
        where, hashed = self.root / name, sha256()
        with reporting(self.root / run.EVENTS_FILE):
            (self.root / run.EVENTS_FILE).stat()
        if not self.event_statements.is_finished:
            message = "the run did not come to its end: there is no run_finished in it"
            raise InputError(f"{self.root}: {message}")
        with reporting(where):
            for block in self.file_blocks(name):
                hashed.update(block)
                yield block
        artifacts = (mention.artifact for mention in self.event_statements.mentions)
        listed = [one.get("hash") for one in artifacts if one.get("content_ref") == name]
        digests = [digest for digest in listed if isinstance(digest, str)]
        if digests and digests[-1] != f"sha256:{hashed.hexdigest()}":
            raise InputError(f"{where}: is not what the run recorded: stream check {self.root}")

    def _json_value_of(self, name: str) -> Any:
        where = self.root / name
        with reporting(where), open_beneath(self.root, name) as file:
            return document_in(file.read(LARGEST + 1), where)


# ---------------------------------------------------------------- what `check` finds


def run_folder_findings(folder: RunFolder, boundaries: Boundaries) -> Iterator[Finding]:
    """Yield a finding for every rule that a finished run breaks. Of one that was cut off, the check
    of its events says so."""
    stated, root = folder.event_statements, folder.root
    if not stated.is_finished:
        return
    metadata: RunMetadata | None = None
    try:
        metadata = folder.metadata()
    except UnusableFileError as fault:
        yield _run_finding(fault.rule, str(fault), root / run.METADATA_FILE)
    for mention in stated.mentions:
        yield from _mention_findings(mention, folder)
    if metadata:
        yield from _metadata_findings(metadata, stated, root)
        if not stated.is_lossy or os.path.lexists(root / run.MANIFEST_FILE):
            yield from manifest_findings(folder, run_id=metadata.run_id)
    yield from _diff_findings(metadata, folder)
    for name in RECORDS:
        yield from _record_file_findings(folder, name, boundaries)
    for what in folder.recorded_losses:
        message = f"the recorder itself lost: {what}"
        yield _run_finding("run.incomplete", message, root / run.SUMMARY_FILE)
    yield from evidence_findings(folder)


def _mention_findings(mention: ArtifactMention, folder: RunFolder) -> Iterator[Finding]:
    """Compare a file that an event references with the digest that the event gives."""
    if mention.file is None:
        return
    ref, digest = mention.file

    def finding(rule: str, message: str, name: str) -> Finding:
        """Make a finding about what the event says of the file."""
        where = folder.root / run.EVENTS_FILE
        at = f"{mention.path}.{name}"
        return _run_finding(rule, message, where, mention.line, at, mention.event_id)

    try:
        known = folder.digests.digest_of_file(ref, "artifact")
    except UnusableFileError as fault:
        yield finding(fault.rule, str(fault), "content_ref")
        return
    kind, _, digits = digest.partition(":")
    if kind != "sha256" or len(digits) != 64 or not _DIGITS.issuperset(digits):
        message = f"not sha256: and 64 digits: whether {ref} was changed cannot be told"
        yield finding("artifact.checkable", message, "hash")
    elif digits != known[1]:
        yield finding("artifact.digest", f"{ref} is not what was hashed: {known[1]}", "hash")


def _metadata_findings(
    metadata: RunMetadata, stated: EventStatements, root: Path
) -> Iterator[Finding]:
    """Yield where run id and constraints of the events differ from the run's metadata."""
    for run_id, line in stated.run_ids.items():
        if run_id != metadata.run_id:
            message = f"{run_id!r}, but {run.METADATA_FILE} is of {metadata.run_id!r}"
            where = root / run.EVENTS_FILE
            yield _run_finding("folder.run_id", message, where, line, "$.session.run_id")
            break
    for name in metadata.constraints:
        if name not in stated.constraints:
            message = f"no event has the constraint {name}, which the run was asked to keep"
            yield _run_finding("folder.constraints", message, root / run.EVENTS_FILE)


def manifest_findings(
    folder: RunFolder, *, run_id: str = "", names: Collection[str] | None = None
) -> Iterator[Finding]:
    """Yield what is not as the manifest of the run lists it: in the whole folder, or only among
    the files with these names. `run_id`: the run that the manifest must name."""
    root, digests = folder.root, folder.digests
    where = root / run.MANIFEST_FILE
    try:
        digests.digest_of_file(run.MANIFEST_FILE, "manifest")
        manifest = folder.read_document(run.MANIFEST_FILE, Manifest)
    except (UnusableFileError, InputError) as error:
        yield _run_finding("manifest.document", _message_without_path(where, error), where)
        return
    if run_id and manifest.run_id != run_id:
        message = f"{manifest.run_id!r}, but {run.METADATA_FILE} is of {run_id!r}"
        yield _run_finding("folder.run_id", message, where, path="$.run_id")
    events = manifest.events
    try:
        if digests.digest_of_beginning(run.EVENTS_FILE, events.bytes) != events.sha256:
            message = f"the first {events.bytes} bytes of {run.EVENTS_FILE} were changed"
            yield _run_finding("manifest.events", message, where, path="$.events.sha256")
    except UnusableFileError as fault:
        yield _run_finding("manifest.events", str(fault), where, path="$.events")
    for index, listed in enumerate(manifest.files):
        if names is not None and listed.path not in names:
            continue
        path = f"$.files[{index}]"
        try:
            size, digest = digests.digest_of_file(listed.path, "manifest")
        except UnusableFileError as fault:
            yield _run_finding(fault.rule, str(fault), where, path=f"{path}.path")
            continue
        if size != listed.bytes:
            message = f"{listed.path} has {size} bytes, not {listed.bytes}"
            yield _run_finding("manifest.digest", message, where, path=f"{path}.bytes")
        elif digest != listed.sha256.removeprefix("sha256:"):
            message = f"{listed.path} is not what was hashed: {digest}"
            yield _run_finding("manifest.digest", message, where, path=f"{path}.sha256")
    listed_names = {str(PurePosixPath(listed.path)) for listed in manifest.files}
    if names is None:
        present: Iterable[str] = (*files_below(root, run.ARTIFACTS), *files_below(root, run.LAYERS))
    else:
        present = (name for name in names if os.path.lexists(root / name))
    for name in present:
        if name not in listed_names and name != run.MANIFEST_FILE:
            yield _run_finding("manifest.unlisted", f"{name} is not listed", where, path="$.files")


def _record_file_findings(
    folder: RunFolder, name: str, boundaries: Boundaries
) -> Iterator[Finding]:
    """Yield what `validate` finds in a file of records, but for the forms that other recorders have
    for their logs and changes."""
    if not (folder.root / name).is_file() or (folder.root / name).is_symlink():
        return
    stage = Validate(boundaries, is_last=name == run.BOUNDARY_FILE)
    for lines in folder.file_lines(name):
        for made in stage.feed(Batch(LINES, lines)):
            if made.kind == FINDINGS:
                yield from (replace(item, rule="folder.record") for item in made.items)


def _diff_findings(metadata: RunMetadata | None, folder: RunFolder) -> Iterator[Finding]:
    """Check that the diff parses and applies which the events reference."""
    diffs = [one for one in folder.event_statements.mentions if one.artifact.get("type") == "diff"]
    refs = (diff.artifact.get("content_ref") for diff in diffs)
    ref = next((ref for ref in refs if isinstance(ref, str)), run.DIFF_FILE)
    try:
        folder.digests.digest_of_file(ref, "artifact")
    except UnusableFileError:
        return
    diff = folder.root / ref
    if any(one.is_lossy for one in diffs):
        return
    try:
        if reason := why_patch_unreadable(diff):
            yield _run_finding("diff.parses", reason, diff)
            return
        workspace = _diffed_workspace(metadata, folder.root)
        if workspace is not None and (reason := why_patch_inapplicable(diff, workspace)):
            message = f"{reason}; perhaps {run.WORKSPACE} was changed since the run"
            yield _run_finding("diff.applies", message, diff)
    except GitError as error:
        yield _run_finding("diff.checkable", str(error), diff)


def _diffed_workspace(metadata: RunMetadata | None, root: Path) -> Path | None:
    """Return the workspace if it is in the folder and the diff is as it was taken."""
    if metadata is None or metadata.capture_mode != "full" or metadata.workspace_mode == "here":
        return None
    path = Path(os.path.realpath(root / metadata.workspace))
    return path if path.is_relative_to(os.path.realpath(root)) and path.is_dir() else None


def evidence_findings(folder: RunFolder) -> Iterator[Finding]:
    """Check each evidence file of a run folder by itself, for `stream check`.

    The run's manifest shows which file is missing or no file; what a companion says follows from
    the layers, which `verify` compares.
    """
    for name in EVIDENCE_FILES:
        where = folder.root / name
        if name in (COMPANION_FILE, DETAIL_FILE) or not where.is_file():
            continue
        faults = _artifact_file_faults if name in DOCUMENTS else _layer_file_faults
        try:
            for number, fault in faults(folder, name):
                yield _run_finding("folder.evidence", fault.reason, where, number, fault.path or "")
        except InputError:
            continue
        except OSError as error:
            yield _run_finding("folder.evidence", os_reason(error), where)


def _contract_fault(line: bytes, name: str) -> Fault | None:
    """Return what a line or document of a file breaks of its contract; None if nothing."""
    contract = CONTRACTS[name]
    try:
        if contract_of(line) != contract:
            return Fault(f"it is no {contract}", "$.schema")
    except DECODE_ERRORS as error:
        return decode_fault(error)
    return contract_fault_of(contract, line)


def _artifact_file_faults(folder: RunFolder, name: str) -> Iterator[tuple[int, Fault]]:
    """Check a JSON artifact of a run folder by its contract, with line 0 for the whole file."""
    most, data = Limits().document, bytearray()
    for block in folder.file_blocks(name):
        data += block
        if len(data) > most:
            yield 0, Fault(f"it was not looked at: it has more than {most} bytes")
            return
    if fault := _contract_fault(bytes(data), name):
        yield 0, fault


def _layer_file_faults(folder: RunFolder, name: str) -> Iterator[tuple[int, Fault]]:
    """Yield the faults of whole lines: of a last one without an end, the chain shows what is
    missing."""
    from stream.verify.layers import are_canonical_events

    for lines in folder.file_lines(name):
        if name == KERNEL_FILE and are_canonical_events(lines):
            continue
        for number, line in enumerate(lines, lines.number):
            if isinstance(line, OverlongLine):
                yield number, Fault("it was not looked at: the line is too long")
            elif not isinstance(line, TornLine) and (fault := _contract_fault(line, name)):
                yield number, fault


def value_within(value: Any, *path: str) -> Any:
    """Return the value at a path of keys in an event; None where it is not there."""
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def items_within(value: Any, *path: str) -> list[Any]:
    """Return the list at a path of keys in an event; an empty one where there is none."""
    found = value_within(value, *path)
    return found if isinstance(found, list) else []


def _message_without_path(where: Path, error: Exception) -> str:
    """Return an error's message without the path of the file that it begins with."""
    return str(error).removeprefix(f"{where}: ")


def _utf8_text(text: str) -> str:
    """Return a text that a record may hold: a name of a file may be any bytes."""
    return os.fsencode(text).decode(errors="replace")


def _run_finding(
    rule: str, message: str, where: Path, line: int = 0, path: str = "", event_id: str = ""
) -> Finding:
    """Make a finding about a file of a run folder, with the severity of its rule."""
    return Finding(
        rule=rule,
        severity=event_rules()[rule].severity,
        message=_utf8_text(message),
        source=_utf8_text(str(where)),
        line=line or UNSET,
        path=path or UNSET,
        event_id=event_id or UNSET,
    )
