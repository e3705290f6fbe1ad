"""Check a run folder against its own record: the files that its events and its manifest list, the
diff, the logs.

It only reads, follows no link out of the folder, and waits for no fifo. For a run that was cut off
it has no findings: the check of the events reports that.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import UNSET, Struct, field
from msgspec.structs import replace

from stream.boundary.descriptors import Boundaries
from stream.codec import Lines, LineSplitter, convert, read_document
from stream.errors import InputError, os_reason, reporting
from stream.files.inside import Digests, UnusableFileError, describe_kind, files_below
from stream.pipeline import Batch
from stream.records.control import FINDINGS, LINES, Finding
from stream.records.run import (
    ARTIFACTS,
    BOUNDARY_FILE,
    CHANGES_FILE,
    COMMANDS_FILE,
    DIFF_FILE,
    EVENTS_FILE,
    LAYERS,
    MANIFEST_FILE,
    METADATA_FILE,
    RUN,
    SUMMARY_FILE,
    WORKSPACE,
    Manifest,
    Profile,
    RunMetadata,
    RunSummary,
)
from stream.transformers.event_rules import RULES, event_in, event_name, lost_bytes_of
from stream.transformers.validate import Validate
from stream.workspace.patch import GitError, applies, parses

BLOCK = 1 << 20
RECORDS = (BOUNDARY_FILE, CHANGES_FILE, COMMANDS_FILE)
_DIGITS = frozenset("0123456789abcdef")


class ArtifactMention(Struct):
    """An artifact in an event, and where it stands."""

    artifact: dict[str, Any]
    line: int
    path: str
    event_id: str


class FolderClaims(Struct):
    """What the events say about the folder."""

    is_finished: bool = False
    is_lossy: bool = False  #: there was no room for something
    run_ids: dict[str, int] = field(default_factory=dict)  #: and the line of the first of each
    constraints: set[str] = field(default_factory=set)
    mentions: list[ArtifactMention] = field(default_factory=list)


def check_folder(root: Path) -> None:
    """Raise InputError if the folder is not that of a run, or cannot be read."""
    with reporting(root):
        names = [path.name for path in root.iterdir()]
    known = (METADATA_FILE, EVENTS_FILE, ARTIFACTS, WORKSPACE)
    if names and not any(name.startswith(known) for name in names):
        raise InputError(f"{root}: no run folder: neither {METADATA_FILE} nor {EVENTS_FILE}")
    events = root / EVENTS_FILE
    try:
        mode = events.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"{events}: {os_reason(error)}") from None
    if not stat.S_ISREG(mode):
        raise InputError(f"{events}: {describe_kind(mode)}, not a regular file")


def is_finished(root: Path) -> bool:
    """Return whether its last event is there. Raise InputError."""
    return _read_claims(root / EVENTS_FILE).is_finished


def recorded_digests(root: Path) -> dict[str, str]:
    """Return the digests of its files, as the events list them. Raise InputError if the run was
    not recorded to its end."""
    with reporting(root / EVENTS_FILE):
        (root / EVENTS_FILE).stat()
    claims = _read_claims(root / EVENTS_FILE)
    if not claims.is_finished:
        raise InputError(f"{root}: the run did not come to its end: there is no run_finished in it")
    listed = ((m.artifact.get("content_ref"), m.artifact.get("hash")) for m in claims.mentions)
    return {
        ref: digest for ref, digest in listed if isinstance(ref, str) and isinstance(digest, str)
    }


def profile_of(root: Path) -> Profile:
    """Return the profile that the run itself asks to be checked by."""
    try:
        return _read_metadata(root).profile
    except (UnusableFileError, InputError):
        return "poc"


def examine(root: Path, boundaries: Boundaries) -> Iterator[Finding]:
    """Yield a finding for every rule of the folder that the run breaks."""
    claims = _read_claims(root / EVENTS_FILE)
    if not claims.is_finished:
        return
    digests = Digests(root)
    metadata: RunMetadata | None = None
    try:
        metadata = _read_metadata(root)
    except UnusableFileError as fault:
        yield _finding(fault.rule, str(fault), root / METADATA_FILE)
    for mention in claims.mentions:
        yield from _mention_findings(mention, digests, root)
    if metadata:
        yield from _metadata_findings(metadata, claims, root)
        if not claims.is_lossy or os.path.lexists(root / MANIFEST_FILE):
            yield from manifest_findings(root, digests, run_id=metadata.run_id)
    yield from _diff_findings(metadata, claims, digests, root)
    for name in RECORDS:
        yield from _record_findings(root / name, boundaries)
    for what in losses_of(root):
        message = f"the recorder itself lost: {what}"
        yield _finding("run.incomplete", message, root / SUMMARY_FILE)


def losses_of(root: Path) -> list[str]:
    """Return what the recorder itself reports as missing. Whether the summary is the one that it
    wrote is checked with the other artifacts."""
    where = root / SUMMARY_FILE
    try:
        if not stat.S_ISREG(where.lstat().st_mode):
            return []
        return convert(read_document(where), RunSummary, where).incomplete
    except (OSError, InputError):
        return []


def _read_claims(path: Path) -> FolderClaims:
    claims = FolderClaims()
    if not path.exists():
        return claims
    splitter = LineSplitter(str(path))
    with reporting(path), path.open("rb") as file:
        while chunk := file.read(BLOCK):
            batch = splitter.feed(chunk)
            for index, line in enumerate(batch or ()):
                _add_event(claims, line, (batch.number if batch else 0) + index)
    for line in splitter.finish() or ():
        _add_event(claims, line, 0)
    return claims


def _add_event(claims: FolderClaims, line: bytes, number: int) -> None:
    event = event_in(line)
    if event is None:
        return
    summary = _get(event, "agent_action", "action_summary")
    claims.is_finished |= event_name(event.get("event_type"), summary) == "run_finished"
    run_id = _get(event, "session", "run_id")
    if isinstance(run_id, str):
        claims.run_ids.setdefault(run_id, number)
    for item in _list(event, "request", "constraints"):
        if isinstance(item, dict) and isinstance(item.get("id"), str):
            claims.constraints.add(item["id"])
    event_id = event.get("event_id")
    for index, item in enumerate(_list(event, "agent_action", "artifacts")):
        if isinstance(item, dict):
            path = f"$.agent_action.artifacts[{index}]"
            name = event_id if isinstance(event_id, str) else ""
            claims.mentions.append(ArtifactMention(item, number, path, name))
            claims.is_lossy |= _is_lossy(item)


def _is_lossy(artifact: dict[str, Any]) -> bool:
    return lost_bytes_of(_get(artifact, "metadata", "lost_bytes")) > 0


def _mention_findings(mention: ArtifactMention, digests: Digests, root: Path) -> Iterator[Finding]:
    artifact = mention.artifact
    ref, digest = artifact.get("content_ref"), artifact.get("hash")
    if not isinstance(ref, str) or not isinstance(digest, str) or _is_lossy(artifact):
        return

    def finding(rule: str, message: str, name: str) -> Finding:
        """Make a finding about what the event says of the file."""
        where = root / EVENTS_FILE
        at = f"{mention.path}.{name}"
        return _finding(rule, message, where, mention.line, at, mention.event_id)

    try:
        known = digests.of(ref, "artifact")
    except UnusableFileError as fault:
        yield finding(fault.rule, str(fault), "content_ref")
        return
    kind, _, digits = digest.partition(":")
    if kind != "sha256" or len(digits) != 64 or not _DIGITS.issuperset(digits):
        message = f"not sha256: and 64 digits: whether {ref} was changed cannot be claims"
        yield finding("artifact.checkable", message, "hash")
    elif digits != known[1]:
        yield finding("artifact.digest", f"{ref} is not what was hashed: {known[1]}", "hash")


def _metadata_findings(
    metadata: RunMetadata, claims: FolderClaims, root: Path
) -> Iterator[Finding]:
    for run_id, line in claims.run_ids.items():
        if run_id != metadata.run_id:
            message = f"{run_id!r}, but {METADATA_FILE} is of {metadata.run_id!r}"
            where = root / EVENTS_FILE
            yield _finding("folder.run_id", message, where, line, "$.session.run_id")
            break
    for name in metadata.constraints:
        if name not in claims.constraints:
            message = f"no event has the constraint {name}, which the run was asked to keep"
            yield _finding("folder.constraints", message, root / EVENTS_FILE)


def manifest_findings(
    root: Path, digests: Digests, *, run_id: str = "", names: Collection[str] | None = None
) -> Iterator[Finding]:
    """Yield what is not as the manifest of the run lists it: in the whole folder, or only among
    the files with these names. `run_id`: the run that the manifest must name."""
    where = root / MANIFEST_FILE
    try:
        manifest = _read_manifest(root, digests)
    except (UnusableFileError, InputError) as error:
        yield _finding("manifest.document", str(error).removeprefix(f"{where}: "), where)
        return
    if run_id and manifest.run_id != run_id:
        message = f"{manifest.run_id!r}, but {METADATA_FILE} is of {run_id!r}"
        yield _finding("folder.run_id", message, where, path="$.run_id")
    try:
        if digests.of_beginning(EVENTS_FILE, manifest.events.bytes) != manifest.events.sha256:
            message = f"the first {manifest.events.bytes} bytes of {EVENTS_FILE} were changed"
            yield _finding("manifest.events", message, where, path="$.events.sha256")
    except UnusableFileError as fault:
        yield _finding("manifest.events", str(fault), where, path="$.events")
    for index, listed in enumerate(manifest.files):
        if names is not None and listed.path not in names:
            continue
        path = f"$.files[{index}]"
        try:
            size, digest = digests.of(listed.path, "manifest")
        except UnusableFileError as fault:
            yield _finding(fault.rule, str(fault), where, path=f"{path}.path")
            continue
        if size != listed.bytes:
            message = f"{listed.path} has {size} bytes, not {listed.bytes}"
            yield _finding("manifest.digest", message, where, path=f"{path}.bytes")
        elif digest != listed.sha256.removeprefix("sha256:"):
            message = f"{listed.path} is not what was hashed: {digest}"
            yield _finding("manifest.digest", message, where, path=f"{path}.sha256")
    listed_names = {str(PurePosixPath(listed.path)) for listed in manifest.files}
    if names is None:
        present: Iterable[str] = (*files_below(root, ARTIFACTS), *files_below(root, LAYERS))
    else:
        present = (name for name in names if os.path.lexists(root / name))
    for name in present:
        if name not in listed_names and name != MANIFEST_FILE:
            yield _finding("manifest.unlisted", f"{name} is not listed", where, path="$.files")


def _read_manifest(root: Path, digests: Digests) -> Manifest:
    """Raise UnusableFileError or InputError."""
    where = root / MANIFEST_FILE
    digests.of(MANIFEST_FILE, "manifest")
    return convert(read_document(where), Manifest, where)


def _record_findings(path: Path, boundaries: Boundaries) -> Iterator[Finding]:
    """What `validate` finds in a file of records, the forms that other recorders have for their
    logs and changes aside."""
    if not path.is_file() or path.is_symlink():
        return
    stage = Validate(boundaries, is_last=path.name == BOUNDARY_FILE)
    splitter = LineSplitter(_utf8(str(path)))
    with path.open("rb") as file:
        while chunk := file.read(BLOCK):
            yield from _record_faults(stage, splitter.feed(chunk))
    yield from _record_faults(stage, splitter.finish())


def _record_faults(stage: Validate, lines: Lines | None) -> Iterator[Finding]:
    for part in lines.parts() if lines else ():
        for made in stage.feed(Batch(LINES, part)):
            if made.kind == FINDINGS:
                yield from (replace(item, rule="folder.record") for item in made.items)


def _diff_findings(
    metadata: RunMetadata | None, claims: FolderClaims, digests: Digests, root: Path
) -> Iterator[Finding]:
    """The diff that the events reference; without one there is nothing to say here."""
    artifacts = [mention.artifact for mention in claims.mentions]
    diffs = [artifact for artifact in artifacts if artifact.get("type") == "diff"]
    refs = (diff.get("content_ref") for diff in diffs)
    ref = next((ref for ref in refs if isinstance(ref, str)), DIFF_FILE)
    is_lost = any(map(_is_lossy, diffs))
    try:
        digests.of(ref, "artifact")
    except UnusableFileError:
        return
    diff = root / ref
    if is_lost:
        return
    try:
        if reason := parses(diff):
            yield _finding("diff.parses", reason, diff)
            return
        workspace = _workspace(metadata, root)
        if workspace is not None and (reason := applies(diff, workspace)):
            message = f"{reason}; perhaps {WORKSPACE} was changed since the run"
            yield _finding("diff.applies", message, diff)
    except GitError as error:
        yield _finding("diff.checkable", str(error), diff)


def _workspace(metadata: RunMetadata | None, root: Path) -> Path | None:
    """The workspace, where it is in the folder and the diff is as it was taken."""
    if metadata is None or metadata.capture_mode != "full" or metadata.workspace_mode == "here":
        return None
    path = Path(os.path.realpath(root / metadata.workspace))
    is_inside = path.is_relative_to(os.path.realpath(root))
    return path if is_inside and path.is_dir() else None


def _read_metadata(root: Path) -> RunMetadata:
    """Raise UnusableFileError."""
    where = root / METADATA_FILE
    try:
        mode = where.lstat().st_mode
        if not stat.S_ISREG(mode):
            raise UnusableFileError("folder.metadata", f"{describe_kind(mode)}, not a regular file")
        value = read_document(where)
        if isinstance(value, dict) and "schema" not in value:
            message = f"names no contract: only a {RUN} can be held against the events"
            raise UnusableFileError("folder.contract", message)
        return convert(value, RunMetadata, where)
    except OSError as error:
        raise UnusableFileError("folder.metadata", os_reason(error)) from None
    except InputError as error:
        raise UnusableFileError("folder.metadata", str(error).removeprefix(f"{where}: ")) from None


def _get(value: Any, *path: str) -> Any:
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _list(value: Any, *path: str) -> list[Any]:
    found = _get(value, *path)
    return found if isinstance(found, list) else []


def _utf8(text: str) -> str:
    """A name of a file may be any bytes, a record may not."""
    return os.fsencode(text).decode(errors="replace")


def _finding(
    rule: str, message: str, where: Path, line: int = 0, path: str = "", event_id: str = ""
) -> Finding:
    return Finding(
        rule=rule,
        severity=RULES[rule].severity,
        message=_utf8(message),
        source=_utf8(str(where)),
        line=line or UNSET,
        path=path or UNSET,
        event_id=event_id or UNSET,
    )
