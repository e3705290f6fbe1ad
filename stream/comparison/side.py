"""What the artifacts of one run say, as far as they can be held against another's.

Broken evidence is a problem that is named, never an exception.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from stream.archive.verifying import verify
from stream.codec import DECODE_ERRORS, explain
from stream.comparison.artifacts import (
    ARTIFACTS,
    TOLD,
    DamagedError,
    folders_of,
    limits,
    proofs_of,
    read_artifacts,
)
from stream.comparison.endings import agree
from stream.comparison.names import Names, Proofs, Proven
from stream.errors import InputError
from stream.evidence.calls import TOOL_EVENTS
from stream.evidence.consistency import report_faults, told_faults, witness_faults
from stream.evidence.health import contradictions
from stream.records.run import EVENTS_FILE, WORKSPACE
from stream.records.runner import (
    COMPANION_FILE,
    CORRELATION_FILE,
    HEALTH_FILE,
    HOME,
    POLICY_FILE,
    SDK_FILE,
    SURFACE_FILE,
    SURFACE_SETS,
    CapabilitySurface,
    Companion,
    CorrelationReport,
    ObservationHealth,
)

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
            reason, where = explain(error)
            problems.append(f"{name}: {where + ': ' if where else ''}{reason}")
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
        for reason, path in report_faults(evidence.correlation):
            yield f"{path}: {reason}"
        if evidence.health is not None:
            yield from witness_faults(evidence.correlation, evidence.health)
        yield from told_faults(evidence.correlation, told[SDK_FILE], told[POLICY_FILE])


class _Told(Struct):
    event_type: str = ""
    tool_call_id: str | None = None
    decision: str | None = None


_decode_told = msgspec.json.Decoder(_Told).decode


def _told(lines: bytes) -> Iterator[str | None]:
    """The ids of calls that are told of, or decided about; of one without, None."""
    for line in lines.splitlines():
        with suppress(*DECODE_ERRORS):  # `verify` has a finding for it
            told = _decode_told(line)
            if told.event_type in TOOL_EVENTS or told.decision is not None:
                yield told.tool_call_id or None


def knows_programs(evidence: Evidence) -> bool:
    return evidence.companion is not None and evidence.companion.capture.get("feed") == "ebpf"
