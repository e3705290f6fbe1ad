"""What the artifacts of one run say, as far as they can be held against another's.

Broken evidence is a problem that is named, never an exception.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import islice
from typing import TypeVar

import msgspec
from msgspec import Struct

from stream.codec import DECODE_ERRORS, explain
from stream.comparison.artifacts import ARTIFACTS, DamagedError, read_artifacts, run_folder_of
from stream.errors import InputError
from stream.evidence.health import contradictions
from stream.records.run import EVENTS_FILE, WORKSPACE
from stream.records.runner import (
    COMPANION_FILE,
    CORRELATION_FILE,
    HEALTH_FILE,
    HOME,
    SURFACE_FILE,
    CapabilitySurface,
    Companion,
    CorrelationReport,
    ObservationHealth,
)

RUN_FOLDER = "(run)"
EXECS = "process_execs"
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
    problems: list[str] = []

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
        raise InputError(f"{path}: there is no evidence: no {', no '.join(ARTIFACTS)}")
    return evidence_of(found)


def evidence_of(artifacts: Mapping[str, bytes]) -> Evidence:
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
        folder=run_folder_of(artifacts.get(EVENTS_FILE, b"")),
    )
    parts = (evidence.surface, evidence.correlation, evidence.health, evidence.companion)
    if len({part.run_id for part in parts if part is not None}) > 1:
        problems.append("its artifacts are of several runs")
    if evidence.health is not None:
        faults = contradictions(evidence.health, is_reference=COMPANION_FILE not in artifacts)
        problems += [f"{HEALTH_FILE}: {fault}" for fault in islice(faults, _MOST_FAULTS)]
    evidence.problems = problems
    return evidence


def values_of(name: str, evidence: Evidence) -> list[str]:
    """What lies in the run's own folder is told without the way there, which names the run."""
    values: list[str] = getattr(evidence.surface, name, [])
    if name not in ("filesystem_paths", EXECS):
        return values
    return sorted({_placed(value, evidence.folder) for value in values}, key=os.fsencode)


def _placed(path: str, run_folder: str) -> str:
    for place in _OF_A_RUN if run_folder else ():
        folder = f"{run_folder.rstrip('/')}/{place}"
        if path == folder or path.startswith(f"{folder}/"):
            return f"{RUN_FOLDER}/{place}{path[len(folder) :]}"
    return path


def programs_of(evidence: Evidence) -> dict[str, list[str]]:
    """By name: the files that ran. Nothing where the feed does not know them."""
    if not knows_programs(evidence) or evidence.surface is None or evidence.companion is None:
        return {}
    ran = evidence.companion.programs
    return {
        _placed(name, evidence.folder): sorted(
            {_placed(file, evidence.folder) for file in ran.get(name, [name])}
        )
        for name in evidence.surface.process_execs
    }


def knows_programs(evidence: Evidence) -> bool:
    return evidence.companion is not None and evidence.companion.capture.get("feed") == "ebpf"
