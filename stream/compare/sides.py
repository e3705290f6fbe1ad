"""Read the evidence of a run from an archive, a run folder or loose files, and make it comparable.

An archive is read to its end and checked against its manifest, the evidence in a run folder against
the manifest of the run; whether it is true is not verified here. Nothing is unpacked, and memory is
bounded by the limit of an artifact. Broken evidence is a named problem, never an exception."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from stream.archive.chain import Tally
from stream.archive.reader import EntryStart, Limits, Part, contents_of, parts_of, read_parts_ahead
from stream.archive.tar import BrokenArchive, NoArchive
from stream.codec import DECODE_ERRORS, OverlongLine, contract_of, decode_fault, lines_of
from stream.compare.names import BEHIND, ProofRequest, Proofs, ProvenNames, RunNames, agree_on_names
from stream.errors import InputError, os_reason, reporting
from stream.evidence.consistency import clean_report_faults, report_faults, unbound_call_faults
from stream.evidence.health import health_contradictions
from stream.evidence.markers import TOOL_EVENTS
from stream.files.inside import describe_kind
from stream.records.artifacts import (
    COMPANION_FILE,
    CORRELATION,
    CORRELATION_FILE,
    DETAIL_FILE,
    EVIDENCE_FILES,
    HEALTH,
    HEALTH_FILE,
    HOME,
    KERNEL_FILE,
    POLICY_FILE,
    SDK_FILE,
    SURFACE,
    SURFACE_FILE,
    SURFACE_SETS,
    CapabilitySurface,
    Companion,
    CorrelationReport,
    ObservationHealth,
)
from stream.records.kernel import ACCEPT, BIND, EVENT_TYPES, MKDIR, OPEN, kind_of_event
from stream.records.run import EVENTS_FILE, MANIFEST_FILE, WORKSPACE
from stream.verify.report import VerifyReport
from stream.verify.run_folder import (
    EventStatements,
    RunFolder,
    is_run_folder,
    items_within,
    manifest_findings,
    value_within,
)
from stream.verify.session import read_archive, verify

CALL_LAYERS = (SDK_FILE, POLICY_FILE)  #: the layers that name tool calls
OPTIONAL = (COMPANION_FILE, EVENTS_FILE, *CALL_LAYERS)  #: files that need not be there
ARTIFACTS = {SURFACE_FILE: SURFACE, CORRELATION_FILE: CORRELATION, HEALTH_FILE: HEALTH}
MOST_ARTIFACT = 256 << 20  #: bytes of one artifact
MOST_EVENTS = 1 << 20  #: bytes of the events that are read: their beginning
MOST_ARCHIVE = 64 << 30  #: decoded bytes
_DAMAGED = "the archive is damaged"
_FOREIGN = "it is damaged, or not the archive of a run"
_TOO_LARGE = f"an artifact above the limit of {MOST_ARTIFACT} bytes"


_ACCEPTED, _OPEN, _BIND = map(kind_of_event, (ACCEPT, OPEN, BIND))
_TO_PEER = {"connect", "connect_blocked", "sendto", "sendmsg"}
_FIRST_EVENTS = 2  #: the event that names the run's folder is one of them


class _KernelLine(Struct):
    """The fields of a line of the kernel layer, or of its details, that prove something."""

    seq: int
    pid: int = 0
    kind: str = ""
    call: str = ""
    value: str | None = None
    to_path: str | None = None
    mode: int | None = None
    return_value: int = -1
    operation_flags: list[str] = []


_decode_line = msgspec.json.Decoder(_KernelLine).decode


class DamagedError(InputError):
    """Says that evidence exists and cannot be read to its end."""


def read_artifacts(path: str) -> dict[str, bytes]:
    """Return the JSON artifacts that exist, by name, and the beginning of the events.

    Raise InputError if there is nothing to read, and DamagedError if that is damaged.
    """
    source = Path(path)
    return _folder_artifacts(source) if _is_run_folder_side(source) else _archive_artifacts(source)


def read_lines(path: str, name: str) -> Iterator[bytes]:
    """Yield the lines of a layer, without newlines; nothing if there is no such layer."""
    source = Path(path)
    if _is_run_folder_side(source):
        if (source / name).is_file():
            with reporting(source / name):
                yield from _bounded_lines(RunFolder(source).file_blocks(name), name)
        return
    with _archive_parts(source) as parts:
        yield from _bounded_lines(contents_of(parts, name), name)


def has_any_file(path: str, names: Collection[str]) -> bool:
    """Return whether the files of a run include any of these."""
    source = Path(path)
    if _is_run_folder_side(source):
        return any((source / name).is_file() for name in names)
    with _archive_parts(source) as parts:
        return any(isinstance(part, EntryStart) and part.name in names for part in parts)


def read_proofs(path: str, asked: ProofRequest) -> ProvenNames:
    """Search the kernel layer of a run for proofs about its names. An endpoint is a caller if the
    run never connected to it."""
    processes, private, came, went = set[int](), set[str](), set[str](), set[str]()
    folders, targets = set[int](), dict[int, str]()
    free_ports = 0
    for detail in _kernel_lines(path, DETAIL_FILE) if asked.made or asked.behind else ():
        # Only the details have second paths, and the mode of a folder.
        is_mkdir = EVENT_TYPES.get(detail.call) == MKDIR
        if is_mkdir and _is_owner_only(detail.mode) and not detail.return_value:
            folders.add(detail.seq)
        if detail.to_path is not None and detail.to_path in asked.behind:
            targets[detail.seq] = detail.to_path
    behind = _OpenFolderPaths(asked.behind, targets)
    for event in _kernel_lines(path, KERNEL_FILE):
        value = event.value or ""
        if event.pid in asked.numbers:
            processes.add(event.pid)
        if value in asked.endpoints and (event.kind == _ACCEPTED or event.kind in _TO_PEER):
            (came if event.kind == _ACCEPTED else went).add(value)
        free_ports += event.kind == _BIND and value.endswith(":0")
        if value in asked.made and (event.seq in folders or _is_private_file(event)):
            private.add(value)
        behind.add_event(event)
    return ProvenNames(processes, came - went, private, free_ports, behind.found_paths)


def _kernel_lines(path: str, name: str) -> Iterator[_KernelLine]:
    """Yield the lines of a layer that can be read: for the others, `verify` has findings."""
    for line in read_lines(path, name):
        try:
            yield _decode_line(line)
        except DECODE_ERRORS:
            continue


class _OpenFolderPaths:
    """Find where paths were that begin with the number of an open folder."""

    def __init__(self, paths: Collection[str], targets: Mapping[int, str]) -> None:
        """Look for `paths`; `targets` are second paths, by the numbers of the lines."""
        self.found_paths: dict[str, set[str]] = {path: set() for path in paths}
        self._targets = targets
        self._opened: dict[tuple[int, int], str] = {}  #: by process and number

    def add_event(self, event: _KernelLine) -> None:
        """Add what a line of the kernel layer shows of open folders."""
        if not self.found_paths:
            return
        if event.kind == _OPEN and event.return_value >= 0 and event.value is not None:
            self._opened[event.pid, event.return_value] = event.value
        for path in (event.value or "", self._targets.get(event.seq, "")):
            parts = BEHIND.fullmatch(path) if path in self.found_paths else None
            folder = self._opened.get((event.pid, int(parts[1]))) if parts else None
            if parts and folder is not None:
                self.found_paths[path].add(f"{folder.rstrip('/')}/{parts[2]}")


def _is_private_file(event: _KernelLine) -> bool:
    is_new = "exclusive" in event.operation_flags and event.return_value >= 0
    return is_new and _is_owner_only(event.mode)


def _is_owner_only(mode: int | None) -> bool:
    return mode is not None and mode & 0o077 == 0


def run_folders(events: bytes) -> tuple[str, str]:
    """Return the run's folder and the workspace, as the event workspace_prepared names them, or
    empty strings."""
    stated = EventStatements()
    for number, line in enumerate(events.splitlines()[:_FIRST_EVENTS], 1):
        stated.add_line(line, number)
    for item in items_within(stated.named.get("workspace_prepared"), "agent_action", "artifacts"):
        named = (value_within(item, "metadata", name) for name in ("run_folder", "root"))
        folder, root = (
            one if isinstance(one, str) and one.startswith("/") else "" for one in named
        )
        if folder:
            return folder, root
    return "", ""


# --- folders ------------------------------------------------------------------------------------


def _folder_artifacts(folder: Path) -> dict[str, bytes]:
    """Read the artifacts and the beginning of the events from a run folder, for a diff."""
    found = {}
    with reporting(folder):
        _check_manifest(RunFolder(folder))
        for name in (*ARTIFACTS, COMPANION_FILE, *CALL_LAYERS):
            if (folder / name).is_file():
                found[name] = _read_artifact(folder / name)
        if (folder / EVENTS_FILE).is_file():
            with (folder / EVENTS_FILE).open("rb") as events:
                found[EVENTS_FILE] = events.read(MOST_EVENTS)
        if not found.keys() & ARTIFACTS.keys():
            found = {**_loose_artifacts(folder), **found}
    return found


def _check_manifest(folder: RunFolder) -> None:
    """Raise DamagedError if the run has a manifest and the evidence is not as that lists it."""
    where = folder.root / MANIFEST_FILE
    if os.path.lexists(where):
        if not stat.S_ISREG(mode := where.lstat().st_mode):
            raise DamagedError(f"{where}: {describe_kind(mode)}, not a regular file")
        for finding in manifest_findings(folder, names=EVIDENCE_FILES):
            raise DamagedError(f"{finding.source}: {finding.message}")


def _loose_artifacts(folder: Path) -> dict[str, bytes]:
    """Find loose files by their contracts, one file of each."""
    found: dict[str, bytes] = {}
    by_contract = {schema: name for name, schema in ARTIFACTS.items()}
    for path in sorted(folder.glob("*.json")):
        if not path.is_file() or path.stat().st_size > MOST_ARTIFACT:
            continue
        data = path.read_bytes()
        try:
            name = by_contract.get(contract_of(data) or "")
        except DECODE_ERRORS:
            continue
        if name is None:
            continue
        if name in found:
            raise DamagedError(f"{path}: the folder has two files of this contract")
        found[name] = data
    return found


def _read_artifact(path: Path) -> bytes:
    """Read an artifact file. Raise DamagedError if it is larger than an artifact may be."""
    with path.open("rb") as file:
        data = file.read(MOST_ARTIFACT + 1)
    if len(data) > MOST_ARTIFACT:
        raise DamagedError(f"{path}: {_TOO_LARGE}")
    return data


# --- archives -----------------------------------------------------------------------------------


class _WantedFiles:
    """Keep the wanted files of an archive while all of them are read."""

    def __init__(self) -> None:
        self.found: dict[str, bytes] = {}
        self._tally = Tally("")
        self._comparable_lines: bytearray | None = None

    def begin(self, name: str) -> None:
        """Begin the next file."""
        self._tally = Tally(name)
        self._comparable_lines = bytearray() if name in (*ARTIFACTS, *OPTIONAL) else None

    def feed(self, data: bytes) -> None:
        """Take the next block of the archive's file."""
        self._tally.feed(data)
        if self._comparable_lines is None:
            return
        if self._tally.layer == EVENTS_FILE:
            data = data[: MOST_EVENTS - len(self._comparable_lines)]
        elif self._tally.bytes > MOST_ARTIFACT:
            raise BrokenArchive("limit.document", f"{self._tally.layer}: {_TOO_LARGE}")
        self._comparable_lines += data

    def end(self) -> Tally:
        """End the archive's file and return its size and digest."""
        if self._comparable_lines is not None:
            self.found[self._tally.layer] = bytes(self._comparable_lines)
        return self._tally


def _archive_artifacts(path: Path) -> dict[str, bytes]:
    """Read all of an archive: only then is it known to be as its manifest lists it."""
    wanted = _WantedFiles()
    with _archive_parts(path) as parts:
        report = VerifyReport(
            os.fsencode(path).decode(errors="replace"), diff_limits(), is_folder=False
        )
        try:
            read_archive(read_parts_ahead(parts), report, wanted)
        except BrokenArchive as broken:
            report.report_fault(broken.rule, str(broken))
    for fault in report.findings:
        if fault.severity == "error" and report.run_id is None:  # without its manifest, who knows
            raise DamagedError(f"{report.target}: {_FOREIGN}: {fault.message}")
        if fault.severity == "error":
            raise DamagedError(f"{fault.source}: {_DAMAGED}: {fault.message}")
    return wanted.found


def _is_run_folder_side(path: Path) -> bool:
    """Tell whether a side of a diff is a run folder. Raise InputError if it cannot be read."""
    try:
        return is_run_folder(path, "neither a run folder nor an archive")
    except OSError as error:
        raise InputError(f"{path}: {os_reason(error)}") from None
    except ValueError as error:  # a NUL in the path
        raise InputError(f"{path}: {error}") from None


@contextmanager
def _archive_parts(path: Path) -> Iterator[Iterator[Part]]:
    """Open an archive for a diff and give its parts. Raise InputError if it is none."""
    try:
        with reporting(path), path.open("rb", buffering=0) as file:
            yield parts_of(file, diff_limits())
    except NoArchive:
        raise InputError(f"{path}: neither a run folder nor an archive") from None
    except BrokenArchive as broken:
        raise DamagedError(f"{path}: {_DAMAGED}: {broken}") from None


def diff_limits() -> Limits:
    """Return the limits for reading an archive that is a side of a diff."""
    return Limits(archive=MOST_ARCHIVE, decoded=MOST_ARCHIVE, document=MOST_ARTIFACT)


def _bounded_lines(blocks: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Yield the lines of a layer; for one that is too long to be kept, its length and digest."""
    for line in chain.from_iterable(lines_of(blocks, name)):
        if isinstance(line, OverlongLine):
            line = f"({line.length} bytes: {line.digest})".encode()
        yield line


PATHS, EXECS, ENDPOINTS = "filesystem_paths", "process_execs", "network_endpoints"
_MOST_FAULTS = 10  #: that are named
_OF_A_RUN = (WORKSPACE, HOME)  #: folders of a run that an agent works with
ArtifactT = TypeVar("ArtifactT", ObservationHealth, CapabilitySurface, CorrelationReport, Companion)


class Evidence(Struct, kw_only=True):
    """Holds the artifacts of one run. Evidence with a problem is not compared."""

    health: ObservationHealth | None = None
    surface: CapabilitySurface | None = None
    correlation: CorrelationReport | None = None
    companion: Companion | None = None
    folder: str = ""  #: of the run, if known
    #: The values of its surface by set, without what changes in every run; and how many values
    #: each rule changed for that.
    values: dict[str, list[str]] = {}
    renamed: dict[str, int] = {}
    programs: dict[str, list[str]] = {}  #: by name: the files that ran. Empty: unknown
    has_nameless_calls: bool = False  #: a layer names a call that has no id
    doubt: str = ""  #: why the status of the correlation may be wrong
    problems: list[str] = []
    workspace: str = ""  #: of its agent, if known
    proven: ProvenNames = ProvenNames()  #: what its kernel layer proves about its names

    @property
    def run_id(self) -> str:
        """Return the run that the artifacts name."""
        for artifact in (self.surface, self.correlation, self.health):
            if artifact is not None:
                return artifact.run_id
        return ""


def read_evidence(path: str) -> Evidence:
    """Read the evidence of a run, or raise InputError if there is none."""
    try:
        found = read_artifacts(path)
    except DamagedError as error:
        return Evidence(problems=[str(error)])
    if not found.keys() & ARTIFACTS.keys():
        missing = f"there is no evidence: no {', no '.join(ARTIFACTS)}"
        raise InputError(f"{path}: {missing}: `stream observe --kernel auto` records it")
    evidence = evidence_of(found, partial(read_proofs, path))
    if not evidence.problems and COMPANION_FILE not in found and not Path(path).is_dir():
        _verify_artifact_archive(path, evidence)
    return evidence


def _verify_artifact_archive(path: str, evidence: Evidence) -> None:
    """Verify an archive that has only the files of the contract: nothing else supports it."""
    report = verify(Path(path), diff_limits())
    for finding in report.findings:
        reason = f"{str(finding.source).removeprefix(f'{report.target}/')}: {finding.message}"
        if finding.rule == "contract.correlation":
            evidence.doubt = evidence.doubt or reason
        elif finding.severity == "error" and len(evidence.problems) < _MOST_FAULTS:
            evidence.problems.append(reason)


def evidence_of(
    artifacts: Mapping[str, bytes], proofs: Proofs = lambda asked: ProvenNames()
) -> Evidence:
    """Decode the artifacts of a run. `proofs` searches the kernel layer for proofs about names."""
    problems: list[str] = []

    def artifact(name: str, form: type[ArtifactT]) -> ArtifactT | None:
        """Decode an artifact, or note what is wrong with it."""
        if name not in artifacts:
            problems.append(f"{name} is missing")
            return None
        try:
            return msgspec.json.decode(artifacts[name], type=form)
        except DECODE_ERRORS as error:
            problems.append(f"{name}: {decode_fault(error)}")
            return None

    evidence = Evidence(
        surface=artifact(SURFACE_FILE, CapabilitySurface),
        correlation=artifact(CORRELATION_FILE, CorrelationReport),
        health=artifact(HEALTH_FILE, ObservationHealth),
        companion=(artifact(COMPANION_FILE, Companion) if COMPANION_FILE in artifacts else None),
    )
    evidence.folder, workspace = run_folders(artifacts.get(EVENTS_FILE, b""))
    parts = (evidence.surface, evidence.correlation, evidence.health, evidence.companion)
    if len({part.run_id for part in parts if part is not None}) > 1:
        problems.append("its artifacts belong to several runs")
    if evidence.health is not None:
        faults = health_contradictions(
            evidence.health, is_reference=COMPANION_FILE not in artifacts
        )
        problems += [f"{HEALTH_FILE}: {fault}" for fault in islice(faults, _MOST_FAULTS)]
    evidence.problems = problems
    calls = {name: [*_call_ids(artifacts.get(name, b""))] for name in CALL_LAYERS}
    evidence.has_nameless_calls = any(None in ids for ids in calls.values())
    evidence.doubt = next(_correlation_doubts(evidence, calls), "")
    if evidence.surface is not None and not problems:
        evidence.workspace = workspace
        names = _names_of_run(evidence, evidence.surface)
        paths = [*evidence.surface.filesystem_paths, *evidence.surface.process_execs]
        evidence.proven = names.collect_proofs(paths, proofs)
        compare_names([evidence])
    return evidence


def compare_names(runs: Sequence[Evidence]) -> None:
    """Set the values of each run to names that can be compared with the other runs."""
    known = [(run, run.surface) for run in runs if run.surface is not None and not run.problems]
    names = [_names_of_run(run, surface) for run, surface in known]
    agree_on_names(names)
    for (run, surface), found in zip(known, names, strict=True):
        _name_surface(run, surface, found)


def _names_of_run(evidence: Evidence, surface: CapabilitySurface) -> RunNames:
    """Make the names of a run. If its workspace is unknown, only the run's own names are replaced:
    a file in a workspace is named by the user."""
    known = evidence.companion if evidence.workspace else None
    return RunNames(
        run_id=evidence.run_id,
        folder=evidence.folder,
        subfolders=_OF_A_RUN,
        workspace=evidence.workspace,
        ways=None if known is None else known.paths,
        endpoints=surface.network_endpoints,
        proven=evidence.proven,
    )


def _name_surface(evidence: Evidence, surface: CapabilitySurface, names: RunNames) -> None:
    """Set the values and programs of a run, under names that can be compared with other runs."""
    evidence.values = {name: getattr(surface, name) for name in SURFACE_SETS}
    for name in (PATHS, EXECS):
        evidence.values[name] = sorted(names.path_names(evidence.values[name]), key=os.fsencode)
    evidence.values[ENDPOINTS] = sorted(names.endpoint_names)
    evidence.renamed = dict(sorted(names.used.items()))
    if evidence.companion is not None and knows_programs(evidence):
        ran, found = evidence.companion.programs, dict[str, set[str]]()
        for name in surface.process_execs:
            files = map(names.path_name, ran.get(name, [name]))
            found.setdefault(names.path_name(name), set()).update(files)
        evidence.programs = {name: sorted(files) for name, files in found.items()}


def _correlation_doubts(evidence: Evidence, calls: Mapping[str, list[str | None]]) -> Iterator[str]:
    """Yield where a correlation report contradicts itself, the health or the calls."""
    if evidence.correlation is not None:
        yield from map(str, report_faults(evidence.correlation))
        if evidence.health is not None:
            yield from clean_report_faults(evidence.correlation, evidence.health)
        yield from unbound_call_faults(evidence.correlation, calls[SDK_FILE], calls[POLICY_FILE])


class _LayerLine(Struct):
    event_type: str = ""
    tool_call_id: str | None = None
    decision: str | None = None


_decode_call = msgspec.json.Decoder(_LayerLine).decode


def _call_ids(lines: bytes) -> Iterator[str | None]:
    """Yield the id of each call that a line reports or decides about; None if it has no id."""
    for line in lines.splitlines():
        with suppress(*DECODE_ERRORS):  # `verify` has a finding for it
            call = _decode_call(line)
            if call.event_type in TOOL_EVENTS or call.decision is not None:
                yield call.tool_call_id or None


def knows_programs(evidence: Evidence) -> bool:
    """Return whether it is known which files ran by the names of programs."""
    return evidence.companion is not None and evidence.companion.capture.get("feed") == "ebpf"
