"""The composition behind `stream matrix`: which cells there are, and how they are run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload

from stream.catalog import Catalogs, find_catalogs
from stream.errors import InputError, UsageError
from stream.pattern import Descriptor, find_descriptor
from stream.pipeline import Pipeline, Sink
from stream.probes import BUNDLED, Script, Staging, chosen, scripts, staged, tree_of
from stream.process import Reaper
from stream.records.boundary import SANDBOX_MODES
from stream.sources.probe import Cell, ProbeSource
from stream.stages.emit import Emit, EncodeRaw, Failure
from stream.stages.record import Recorder


@dataclass(frozen=True)
class Request:
    """What the user asked for, as it was said."""

    probes: Sequence[str] = ()
    capabilities: Sequence[str] = ()
    modes: Sequence[str] = ()
    folder: Path | None = None
    catalog: str | None = None
    boundary: str | None = None
    workspace: Path | None = None
    repeat: int = 1


@dataclass(frozen=True)
class Plan:
    """A request that was found good: every cell is known, nothing has started."""

    folder: Path
    catalogs: Catalogs
    descriptor: Descriptor
    workspace: Path
    sandbox_mode: str | None
    cells: Sequence[Cell]
    left_out: tuple[Script, ...] = ()

    @property
    def scripts(self) -> list[Script]:
        cells = self.cells.kinds if isinstance(self.cells, Cells) else self.cells
        return list({cell.script.id: cell.script for cell in cells}.values())


@dataclass(frozen=True)
class Cells(Sequence[Cell]):
    """A few kinds of cells, each repeated; none is made before its turn."""

    kinds: Sequence[Cell]
    repeat: int

    def __len__(self) -> int:
        return len(self.kinds) * self.repeat

    @overload
    def __getitem__(self, index: int) -> Cell: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Cell]: ...
    def __getitem__(self, index: int | slice) -> Cell | Sequence[Cell]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        if index >= len(self):
            raise IndexError(index)
        return replace(self.kinds[index // self.repeat], index=index)


@dataclass
class Outcome:
    """What a run came to."""

    cells: int
    results: dict[str, int]
    failed: int
    failures: list[Failure]  #: the first of them
    strays: list[str] = field(default_factory=list)
    without_tmpdir: bool = False  #: nothing could be written anywhere


def make_plan(request: Request) -> Plan:
    """Raises StreamError with the place of what cannot be used."""
    folder = request.folder or BUNDLED
    tree = None if request.folder is None else tree_of(folder)
    catalogs = find_catalogs(request.catalog, tree)
    descriptor = find_descriptor(request.boundary, tree)
    workspace = _workspace(request.workspace)
    sandbox_mode = declared_sandbox_mode()
    modes = tuple(dict.fromkeys(request.modes)) or descriptor.modes[:1]
    for mode in modes:
        if mode not in descriptor.modes:
            raise UsageError(f"unknown mode: {mode} (expected {'|'.join(descriptor.modes)})")
    picked, left_out = _select(request, folder, catalogs)
    env = _environment(workspace, sandbox_mode, descriptor)
    cells = Cells(
        [_cell(script, mode, env, catalogs) for mode in modes for script in picked], request.repeat
    )
    return Plan(folder, catalogs, descriptor, workspace, sandbox_mode, cells, tuple(left_out))


def _select(
    request: Request, folder: Path, catalogs: Catalogs
) -> tuple[list[Script], list[Script]]:
    """(the probes to run, the bundled ones that belong to another catalog)."""
    found = scripts(folder)
    known = set(catalogs.ids())
    for capability in request.capabilities:
        if capability not in known:
            raise UsageError(f"unknown capability: {capability} (see `stream matrix --list`)")
    picked = chosen(found, folder, request.probes)
    if request.capabilities:
        wanted = set(request.capabilities)
        picked += [s for s in found if s.capability in wanted and s not in picked]
        if not picked:
            names = ", ".join(request.capabilities)
            raise UsageError(f"{folder}: no probe has the primary capability {names}")
    if picked:
        return picked, []
    if catalogs.named and request.folder is None:
        # The bundled probes cover several catalogs; the user chose one of them.
        left_out = [s for s in found if s.capability not in known]
        picked = [s for s in found if s.capability in known]
        if not picked:
            raise UsageError(f"{catalogs.first.path}: no bundled probe has a capability of it")
        return picked, left_out
    return found, []


def _workspace(given: Path | None) -> Path:
    try:
        path = (given or Path.cwd()).absolute()
    except OSError:
        raise InputError("the current folder is gone") from None
    if not path.is_dir():
        raise InputError(f"{path}: the workspace is not a folder")
    return path


def declared_sandbox_mode() -> str | None:
    declared = os.environ.get("FENCE_SANDBOX_MODE") or None
    if declared is not None and declared not in SANDBOX_MODES:
        raise UsageError(
            f"FENCE_SANDBOX_MODE: unknown mode {declared!r} (expected {'|'.join(SANDBOX_MODES)})"
        )
    return declared


def _environment(
    workspace: Path, sandbox_mode: str | None, descriptor: Descriptor
) -> dict[str, str]:
    """What every probe sees: ours, the contract's variables, and nothing that is declared empty."""
    env = dict(os.environ)
    for name in ("FENCE_SANDBOX_MODE", "STREAM_EMIT_LOG", *_SHELL_STATE):
        env.pop(name, None)
    env |= {
        "LC_ALL": "C",
        "PWD": str(workspace),
        "STREAM_FRAME": "1",
        "FENCE_WORKSPACE_ROOT": str(workspace),
        "BOUNDARY_PATH": str(descriptor.path),
    }
    if sandbox_mode:
        env["FENCE_SANDBOX_MODE"] = sandbox_mode
    return env


#: what would make bash behave otherwise than the script's author saw it
_SHELL_STATE = ("BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "CDPATH", "POSIXLY_CORRECT")


def _cell(script: Script, mode: str, env: dict[str, str], catalogs: Catalogs) -> Cell:
    catalog = catalogs.for_capability(script.capability)
    variables = {"FENCE_RUN_MODE": mode, "CATALOG_PATH": str(catalog.path)}
    return Cell(0, script, mode, catalog.key, {**env, **variables})


def system_name() -> str:
    """uname -srm, as the harness sees it."""
    name = os.uname()
    return f"{name.sysname} {name.release} {name.machine}"


async def run_matrix(
    plan: Plan,
    *sinks: Sink[Any],
    jobs: int,
    timeout: float,
    as_completed: bool = False,
    raw: bool = False,
    on_done: Callable[[int, Cell | None], None] = lambda done, cell: None,
) -> Outcome:
    """Every cell of the plan ends in exactly one record, in each sink."""
    emit = Emit(Recorder(plan.catalogs, plan.descriptor))
    with staged(plan.scripts, plan.folder, plan.workspace) as staging:
        source = probe_source(
            plan, staging, jobs=jobs, timeout=timeout, as_completed=as_completed, on_done=on_done
        )
        pipeline = Pipeline[Any]((source,)).through(EncodeRaw if raw else lambda: emit)
        try:
            await pipeline.into(*sinks)
        finally:
            strays = Reaper.get().strays()
    return Outcome(
        cells=len(plan.cells),
        results=dict(emit.results),
        failed=emit.failed,
        failures=emit.failures,
        strays=strays,
        without_tmpdir=staging.root is None,
    )


def probe_source(
    plan: Plan,
    staging: Staging,
    *,
    jobs: int,
    timeout: float,
    as_completed: bool = False,
    on_done: Callable[[int, Cell | None], None] = lambda done, cell: None,
) -> ProbeSource:
    return ProbeSource(
        cells=plan.cells,
        staging=staging,
        workspace=plan.workspace,
        sandbox_mode=plan.sandbox_mode,
        boundary=plan.descriptor.key,
        os=system_name(),
        jobs=jobs,
        timeout=timeout,
        as_completed=as_completed,
        on_done=on_done,
    )
