"""What a run left as evidence, wherever it lies: an archive, a run folder, or loose files.

An archive is read to its end, in its one form, and held against its manifest, and the evidence in
a run folder against the run's; what the files say is not verified here. Nothing is unpacked, and
no more is held than the artifacts may be large.

What the artifacts of one run say, as far as they can be held against another's.

Broken evidence is a problem that is named, never an exception."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar, cast

import msgspec
from msgspec import Struct

from stream.archive.chain import Tally
from stream.archive.reader import EntryStart, Limits, NoArchive, Part, ahead, contents_of, parts_of
from stream.archive.tar import BrokenArchive
from stream.codec import DECODE_ERRORS, LineSplitter, OverlongLine, contract_of, explain
from stream.compare.names import BEHIND, Asked, Names, Proofs, Proven, agree
from stream.errors import InputError, os_reason
from stream.evidence.consistency import clean_faults, report_faults, unbound_faults
from stream.evidence.health import contradictions
from stream.evidence.markers import TOOL_EVENTS
from stream.files.inside import Digests, describe_kind
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
from stream.records.kernel import ACCEPT, BIND, MKDIR, OPEN
from stream.records.kernel import kind_of as name_of_kind
from stream.records.run import EVENTS_FILE, MANIFEST_FILE, WORKSPACE
from stream.verify.manifest import read_archive
from stream.verify.report import VerifyReport
from stream.verify.run_folder import manifest_findings
from stream.verify.session import verify

TOLD = (SDK_FILE, POLICY_FILE)  #: calls of tools, by who told of them
BESIDE = (COMPANION_FILE, EVENTS_FILE, *TOLD)  #: what may be there as well
ARTIFACTS = {SURFACE_FILE: SURFACE, CORRELATION_FILE: CORRELATION, HEALTH_FILE: HEALTH}
MOST_ARTIFACT = 256 << 20  #: bytes of one artifact
MOST_EVENTS = 1 << 20  #: how much of the run's events: what it began with
MOST_ARCHIVE = 64 << 30  #: decoded bytes that are looked through
_BLOCK = 1 << 18
_AT_ONCE = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  #: nobody waits for who writes to a fifo
_NEITHER = "neither a run folder nor an archive"
_DAMAGED = "the archive is damaged"
_FOREIGN = "it is damaged, or no archive of a run"
_TOO_LARGE = f"an artifact above the limit of {MOST_ARTIFACT} bytes"


_PID = re.compile(rb'"pid":\s*([0-9]{1,10})[,}]')
_CAME, _OPEN = name_of_kind(ACCEPT).encode(), name_of_kind(OPEN)
_PEER = re.compile(
    rb'"kind":\s*"(connect|connect_blocked|sendto|sendmsg|%b)",\s*"value":\s*"([^"]*)"' % _CAME
)
_FREE_PORT = re.compile(rb'"kind":\s*"%b",\s*"value":\s*"[^"]*:0"' % name_of_kind(BIND).encode())
_EXCLUSIVE, _MKDIR = b'"exclusive"', f'"{name_of_kind(MKDIR)}"'.encode()
_PREPARED, _FIRST_EVENTS = "workspace_prepared", 2


class _InvokedArtifact(Struct):
    metadata: dict[str, Any] = {}


class _InvokedAction(Struct):
    artifacts: list[_InvokedArtifact] = []


class _AgentInvoked(Struct):
    event_type: str
    agent_action: _InvokedAction


class _Made(Struct):
    """Of a line of the kernel layer, or of its detail."""

    seq: int
    pid: int = 0
    kind: str = ""
    value: str | None = None
    to_path: str | None = None
    mode: int | None = None
    return_value: int = -1
    operation_flags: list[str] = []


_decode_made = msgspec.json.Decoder(_Made).decode
_decode_begun = msgspec.json.Decoder(_AgentInvoked).decode


class DamagedError(InputError):
    """Evidence that is there and cannot be read to its end."""


def read_artifacts(path: str) -> dict[str, bytes]:
    """The JSON artifacts by their names, as far as there are any, and how the events begin.

    Raises InputError where there is nothing to read, its DamagedError where that is damaged.
    """
    place = Path(path)
    return _of_folder(place) if place.is_dir() else _of_archive(place)


def read_lines(path: str, name: str) -> Iterator[bytes]:
    """The lines of a layer, without their newlines. None where there is no such layer."""
    place = Path(path)
    if place.is_dir():
        layer = place / name
        if layer.is_file():
            try:
                with layer.open("rb") as loose:
                    yield from _lines(_blocks(loose), name)
            except OSError as error:
                raise InputError(f"{layer}: {os_reason(error)}") from None
        return
    with _parts(place) as parts:
        yield from _lines(contents_of(parts, name), name)


def has_any(path: str, names: Collection[str]) -> bool:
    place = Path(path)
    if place.is_dir():
        return any((place / name).is_file() for name in names)
    with _parts(place) as parts:
        return any(isinstance(part, EntryStart) and part.name in names for part in parts)


def proofs_of(path: str, asked: Asked) -> Proven:
    """What the kernel layer of a run says of it. A caller is one to whom the run never went."""
    processes, private = set[int](), set[str]()
    came, went = set[str](), set[str]()
    free_ports = 0
    folders = set(_private_folders(path)) if asked.made else set()
    behind = _Behind(asked.behind, dict(_targets(path, asked.behind)) if asked.behind else {})
    for line in read_lines(path, KERNEL_FILE):
        told = _PID.search(line)
        if told is not None and (number := int(told[1])) in asked.numbers:
            processes.add(number)
        peer = _PEER.search(line) if asked.endpoints else None
        if peer is not None and (endpoint := peer[2].decode(errors="replace")) in asked.endpoints:
            (came if peer[1] == _CAME else went).add(endpoint)
        free_ports += _FREE_PORT.search(line) is not None
        if asked.made and (_EXCLUSIVE in line or _MKDIR in line):
            private |= _privately_made(line, folders).intersection(asked.made)
        if asked.behind:
            behind.look(line)
    return Proven(processes, came - went, private, free_ports, behind.places)


class _Behind:
    """Where paths lay that begin with the number of an open folder."""

    def __init__(self, paths: Collection[str], targets: Mapping[int, str]) -> None:
        """`targets`: second paths, by the numbers of the lines."""
        self.places: dict[str, set[str]] = {path: set() for path in paths}
        self._targets = targets
        self._opened: dict[tuple[int, int], str] = {}  #: by process and number

    def look(self, line: bytes) -> None:
        with suppress(*DECODE_ERRORS):
            made = _decode_made(line)
            if made.kind == _OPEN and made.return_value >= 0 and made.value is not None:
                self._opened[made.pid, made.return_value] = made.value
            for path in (made.value or "", self._targets.get(made.seq, "")):
                parts = BEHIND.fullmatch(path) if path in self.places else None
                folder = self._opened.get((made.pid, int(parts[1]))) if parts else None
                if parts and folder is not None:
                    self.places[path].add(f"{folder.rstrip('/')}/{parts[2]}")


def _targets(path: str, asked: Container[str]) -> Iterator[tuple[int, str]]:
    """The kernel layer itself has no room for them, either."""
    for line in read_lines(path, DETAIL_FILE):
        if b'"to_path"' in line:
            with suppress(*DECODE_ERRORS):
                made = _decode_made(line)
                if made.to_path is not None and made.to_path in asked:
                    yield made.seq, made.to_path


def _private_folders(path: str) -> Iterator[int]:
    """The numbers of the lines that make them: the kernel layer itself has no room for a mode."""
    for line in read_lines(path, DETAIL_FILE):
        if b'"mkdir' in line:
            with suppress(*DECODE_ERRORS):
                made = _decode_made(line)
                if _is_private(made.mode) and made.return_value == 0:
                    yield made.seq


def _privately_made(line: bytes, folders: Container[int]) -> set[str]:
    with suppress(*DECODE_ERRORS):
        made = _decode_made(line)
        is_file = "exclusive" in made.operation_flags and made.return_value >= 0
        if made.value is not None:
            is_private = (is_file and _is_private(made.mode)) or made.seq in folders
            return {made.value} if is_private else set()
    return set()


def _is_private(mode: int | None) -> bool:
    return mode is not None and mode & 0o077 == 0


def folders_of(events: bytes) -> tuple[str, str]:
    """Where a run lay, and where its agent worked, by the event that tells of its workspace. Empty:
    it is not told."""
    for line in events.splitlines()[:_FIRST_EVENTS]:
        try:
            event = _decode_begun(line)
        except DECODE_ERRORS:
            continue
        for item in event.agent_action.artifacts if event.event_type == _PREPARED else ():
            told = (item.metadata.get(name) for name in ("run_folder", "root"))
            folder, root = (
                one if isinstance(one, str) and one.startswith("/") else "" for one in told
            )
            if folder:
                return folder, root
    return "", ""


# --- folders ------------------------------------------------------------------------------------


def _of_folder(folder: Path) -> dict[str, bytes]:
    found = {}
    try:
        _check_manifest(folder)
        for name in (*ARTIFACTS, COMPANION_FILE, *TOLD):
            if (folder / name).is_file():
                found[name] = _bounded(folder / name)
        if (folder / EVENTS_FILE).is_file():
            with (folder / EVENTS_FILE).open("rb") as events:
                found[EVENTS_FILE] = events.read(MOST_EVENTS)
        return {**_loose(folder), **found} if not found.keys() & ARTIFACTS.keys() else found
    except OSError as error:
        raise InputError(f"{folder}: {os_reason(error)}") from None


def _check_manifest(folder: Path) -> None:
    """Raise DamagedError if the run has a manifest and the evidence is not as that lists it."""
    where = folder / MANIFEST_FILE
    try:
        mode = where.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if not stat.S_ISREG(mode):
        raise DamagedError(f"{where}: {describe_kind(mode)}, not a regular file")
    for finding in manifest_findings(folder, Digests(folder), names=EVIDENCE_FILES):
        raise DamagedError(f"{finding.source}: {finding.message}")


def _loose(folder: Path) -> dict[str, bytes]:
    """Files with names of their own are known by their contracts, one of each."""
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
            raise DamagedError(f"{path}: the folder has another file of this contract as well")
        found[name] = data
    return found


def _bounded(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MOST_ARTIFACT + 1)
    if len(data) > MOST_ARTIFACT:
        raise DamagedError(f"{path}: {_TOO_LARGE}")
    return data


# --- archives -----------------------------------------------------------------------------------


class _WantedFiles:
    """Of the files that go by, the wanted ones."""

    def __init__(self) -> None:
        self.found: dict[str, bytes] = {}
        self._tally = Tally("")
        self._held: bytearray | None = None

    def begin(self, name: str) -> None:
        self._tally = Tally(name)
        self._held = bytearray() if name in (*ARTIFACTS, *BESIDE) else None

    def feed(self, data: bytes) -> None:
        self._tally.feed(data)
        if self._held is None:
            return
        if self._tally.layer == EVENTS_FILE:
            data = data[: MOST_EVENTS - len(self._held)]
        elif self._tally.bytes > MOST_ARTIFACT:
            raise BrokenArchive("limit.document", f"{self._tally.layer}: {_TOO_LARGE}")
        self._held += data

    def end(self) -> Tally:
        if self._held is not None:
            self.found[self._tally.layer] = bytes(self._held)
        return self._tally


def _of_archive(path: Path) -> dict[str, bytes]:
    """All of it is read: what is missing, or is not what the manifest says, is only known then."""
    kept = _WantedFiles()
    with _parts(path) as parts:
        book = VerifyReport(os.fsencode(path).decode(errors="replace"), limits(), is_folder=False)
        try:
            read_archive(ahead(parts), book, kept)
        except BrokenArchive as broken:
            book.find(broken.rule, str(broken))
    for fault in book.findings:
        if fault.severity == "error" and book.run_id is None:  # without its manifest, who knows
            raise DamagedError(f"{book.place}: {_FOREIGN}: {fault.message}")
        if fault.severity == "error":
            raise DamagedError(f"{fault.source}: {_DAMAGED}: {fault.message}")
    return kept.found


@contextmanager
def _parts(path: Path) -> Iterator[Iterator[Part]]:
    try:
        with os.fdopen(os.open(path, _AT_ONCE), "rb", buffering=0) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise InputError(f"{path}: {describe_kind(mode)}: {_NEITHER}")
            yield parts_of(cast("BinaryIO", file), limits())
    except NoArchive:
        raise InputError(f"{path}: {_NEITHER}") from None
    except BrokenArchive as broken:
        raise DamagedError(f"{path}: {_DAMAGED}: {broken}") from None
    except OSError as error:
        raise InputError(f"{path}: {os_reason(error)}") from None
    except ValueError as error:  # a NUL in the path
        raise InputError(f"{path}: {error}") from None


def limits() -> Limits:
    return Limits(archive=MOST_ARCHIVE, decoded=MOST_ARCHIVE, document=MOST_ARTIFACT)


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    while block := file.read(_BLOCK):
        yield block


def _lines(blocks: Iterable[bytes], name: str) -> Iterator[bytes]:
    splitter = LineSplitter(name)
    for block in blocks:
        yield from _held(splitter.feed(block) or ())
    yield from _held(splitter.finish() or ())


def _held(lines: Iterable[bytes]) -> Iterator[bytes]:
    """A line that is too long to be held is compared by its digest."""
    for line in lines:
        if isinstance(line, OverlongLine):
            yield f"({line.length} bytes: {line.digest})".encode()
        else:
            yield line


PATHS, EXECS, ENDPOINTS = "filesystem_paths", "process_execs", "network_endpoints"
_MOST_FAULTS = 10  #: that are named
_OF_A_RUN = (WORKSPACE, HOME)  #: folders of a run that an agent works with
ArtifactT = TypeVar("ArtifactT", ObservationHealth, CapabilitySurface, CorrelationReport, Companion)


class Evidence(Struct, kw_only=True):
    """The artifacts of one run. With a problem, it is nothing that could be compared."""

    health: ObservationHealth | None = None
    surface: CapabilitySurface | None = None
    correlation: CorrelationReport | None = None
    companion: Companion | None = None
    folder: str = ""  #: of the run, where it is known
    #: Of its surface, by set, without what is another in the names of each run, and how many
    #: values each rule changed for that.
    values: dict[str, list[str]] = {}
    renamed: dict[str, int] = {}
    programs: dict[str, list[str]] = {}  #: by such a name: the files that ran. Empty: not known
    has_nameless_calls: bool = False  #: somebody told of one that has no id
    doubt: str = ""  #: why the correlation is not what its status says
    problems: list[str] = []
    workspace: str = ""  #: of its agent, the same
    proven: Proven = Proven()  #: of its names, by its kernel layer

    @property
    def run_id(self) -> str:
        for artifact in (self.surface, self.correlation, self.health):
            if artifact is not None:
                return artifact.run_id
        return ""


def read_evidence(path: str) -> Evidence:
    """Raises InputError where there is nothing at all; what is there and broken is a problem."""
    try:
        found = read_artifacts(path)
    except DamagedError as error:
        return Evidence(problems=[str(error)])
    if not found.keys() & ARTIFACTS.keys():
        missing = f"there is no evidence: no {', no '.join(ARTIFACTS)}"
        raise InputError(f"{path}: {missing}: `stream observe --kernel auto` records it")
    evidence = evidence_of(found, partial(proofs_of, path))
    if not evidence.problems and COMPANION_FILE not in found and not Path(path).is_dir():
        _verify(path, evidence)
    return evidence


def _verify(path: str, evidence: Evidence) -> None:
    """An archive of the contract's own files alone, of which no recorder of ours says more."""
    book = verify(Path(path), limits())
    for finding in book.findings:
        reason = f"{str(finding.source).removeprefix(f'{book.place}/')}: {finding.message}"
        if finding.rule == "contract.correlation":
            evidence.doubt = evidence.doubt or reason
        elif finding.severity == "error" and len(evidence.problems) < _MOST_FAULTS:
            evidence.problems.append(reason)


def evidence_of(
    artifacts: Mapping[str, bytes], proofs: Proofs = lambda asked: Proven()
) -> Evidence:
    """`proofs`: what the kernel layer says of names that are in the artifacts."""
    problems: list[str] = []

    def artifact(name: str, form: type[ArtifactT]) -> ArtifactT | None:
        if name not in artifacts:
            problems.append(f"{name} is missing")
            return None
        try:
            return msgspec.json.decode(artifacts[name], type=form)
        except DECODE_ERRORS as error:
            problems.append(f"{name}: {explain(error)}")
            return None

    evidence = Evidence(
        surface=artifact(SURFACE_FILE, CapabilitySurface),
        correlation=artifact(CORRELATION_FILE, CorrelationReport),
        health=artifact(HEALTH_FILE, ObservationHealth),
        companion=(artifact(COMPANION_FILE, Companion) if COMPANION_FILE in artifacts else None),
    )
    evidence.folder, workspace = folders_of(artifacts.get(EVENTS_FILE, b""))
    parts = (evidence.surface, evidence.correlation, evidence.health, evidence.companion)
    if len({part.run_id for part in parts if part is not None}) > 1:
        problems.append("its artifacts are of several runs")
    if evidence.health is not None:
        faults = contradictions(evidence.health, is_reference=COMPANION_FILE not in artifacts)
        problems += [f"{HEALTH_FILE}: {fault}" for fault in islice(faults, _MOST_FAULTS)]
    evidence.problems = problems
    told = {name: [*_told(artifacts.get(name, b""))] for name in TOLD}
    evidence.has_nameless_calls = any(None in calls for calls in told.values())
    evidence.doubt = next(_doubts(evidence, told), "")
    if evidence.surface is not None and not problems:
        evidence.workspace = workspace
        names = _names(evidence, evidence.surface)
        paths = [*evidence.surface.filesystem_paths, *evidence.surface.process_execs]
        evidence.proven = names.prove(paths, proofs)
        compare_names([evidence])
    return evidence


def compare_names(runs: Sequence[Evidence]) -> None:
    """Call what each run reached as it is compared with what the others reached."""
    known = [(run, run.surface) for run in runs if run.surface is not None and not run.problems]
    names = [_names(run, surface) for run, surface in known]
    agree(names)
    for (run, surface), found in zip(known, names, strict=True):
        _name(run, surface, found)


def _names(evidence: Evidence, surface: CapabilitySurface) -> Names:
    """Where nobody tells which folder the agent worked in, no name but the run's own is replaced:
    a file there is named by who asked for it."""
    known = evidence.companion if evidence.workspace else None
    return Names(
        run_id=evidence.run_id,
        folder=evidence.folder,
        places=_OF_A_RUN,
        workspace=evidence.workspace,
        ways=None if known is None else known.paths,
        endpoints=surface.network_endpoints,
        proven=evidence.proven,
    )


def _name(evidence: Evidence, surface: CapabilitySurface, names: Names) -> None:
    evidence.values = {name: getattr(surface, name) for name in SURFACE_SETS}
    for name in (PATHS, EXECS):
        evidence.values[name] = sorted(names.values(evidence.values[name]), key=os.fsencode)
    evidence.values[ENDPOINTS] = sorted(names.endpoints)
    evidence.renamed = dict(sorted(names.used.items()))
    if evidence.companion is not None and knows_programs(evidence):
        ran, found = evidence.companion.programs, dict[str, set[str]]()
        for name in surface.process_execs:
            files = map(names.of, ran.get(name, [name]))
            found.setdefault(names.of(name), set()).update(files)
        evidence.programs = {name: sorted(files) for name, files in found.items()}


def _doubts(evidence: Evidence, told: Mapping[str, list[str | None]]) -> Iterator[str]:
    if evidence.correlation is not None:
        yield from map(str, report_faults(evidence.correlation))
        if evidence.health is not None:
            yield from clean_faults(evidence.correlation, evidence.health)
        yield from unbound_faults(evidence.correlation, told[SDK_FILE], told[POLICY_FILE])


class _LayerLine(Struct):
    event_type: str = ""
    tool_call_id: str | None = None
    decision: str | None = None


_decode_told = msgspec.json.Decoder(_LayerLine).decode


def _told(lines: bytes) -> Iterator[str | None]:
    """The ids of calls that are told of, or decided about; of one without, None."""
    for line in lines.splitlines():
        with suppress(*DECODE_ERRORS):  # `verify` has a finding for it
            told = _decode_told(line)
            if told.event_type in TOOL_EVENTS or told.decision is not None:
                yield told.tool_call_id or None


def knows_programs(evidence: Evidence) -> bool:
    return evidence.companion is not None and evidence.companion.capture.get("feed") == "ebpf"
