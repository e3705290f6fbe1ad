"""What `stream matrix` is going to run: which cells there are, and how each is started.

Nothing here waits, and nothing heavy is imported: the first probes run while what watches
them is still being loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from stream.boundary.catalogs import Catalogs, find_catalogs
from stream.boundary.cells import Cell, Cells, MatrixPlan, Stop, launch
from stream.boundary.descriptors import Descriptor, find_descriptor
from stream.boundary.scripts import (
    BUNDLED,
    Script,
    Staging,
    choose_scripts,
    find_scripts,
    staged,
    tree_of,
)
from stream.errors import InputError, SpawnError, UsageError, os_reason
from stream.process.tree import Reaper, Tree
from stream.records.boundary import SANDBOX_MODES

HEAD_START = 16  #: probes at most that run while we still load: enough to keep the cores busy


class MatrixRequest(Struct, frozen=True):
    """What the user asked for, as it was said."""

    probes: Sequence[str] = ()
    capabilities: Sequence[str] = ()
    modes: Sequence[str] = ()
    folder: Path | None = None
    catalog: str | None = None
    boundary: str | None = None
    workspace: Path | None = None
    repeat: int = 1


def make_plan(request: MatrixRequest) -> MatrixPlan:
    """Raises StreamError with the place of what cannot be used."""
    folder = request.folder or BUNDLED
    tree = None if request.folder is None else tree_of(folder)
    catalogs = find_catalogs(request.catalog, tree)
    descriptor = find_descriptor(request.boundary, tree)
    workspace = workspace_root(request.workspace)
    if not workspace.is_dir():
        raise InputError(f"{workspace}: the workspace is not a folder")
    sandbox_mode = declared_sandbox_mode()
    modes = tuple(dict.fromkeys(request.modes)) or descriptor.modes[:1]
    for mode in modes:
        if mode not in descriptor.modes:
            raise UsageError(f"unknown mode: {mode} (expected {'|'.join(descriptor.modes)})")
    found = find_scripts(folder)
    picked, left_out = _select(request, found, folder, catalogs)
    is_whole = not request.probes and not request.capabilities
    no_probes = [script for script in found if is_whole and not script.is_probe]
    env = _environment(workspace, sandbox_mode, descriptor)
    cells = Cells(
        [_cell(script, mode, env, catalogs) for mode in modes for script in picked], request.repeat
    )
    return MatrixPlan(
        folder,
        catalogs,
        descriptor,
        workspace,
        sandbox_mode,
        cells,
        tuple(left_out),
        tuple(no_probes),
    )


def _select(
    request: MatrixRequest, found: list[Script], folder: Path, catalogs: Catalogs
) -> tuple[list[Script], list[Script]]:
    """(the probes to run, the bundled ones that belong to another catalog). What is no probe
    runs only where it is named."""
    known = set(catalogs.ids())
    for capability in request.capabilities:
        if capability not in known:
            raise UsageError(f"unknown capability: {capability} (see `stream matrix --list`)")
    picked = choose_scripts(found, folder, request.probes)
    if request.capabilities:
        wanted = set(request.capabilities)
        picked += [s for s in found if s.capability in wanted and s not in picked]
        if not picked:
            names = ", ".join(request.capabilities)
            raise UsageError(f"{folder}: no probe has the primary capability {names}")
    if picked:
        return picked, []
    found = [script for script in found if script.is_probe]
    if not found:
        raise InputError(
            f"{folder}: none of its scripts calls emit-record or declares a capability"
        )
    if catalogs.named and request.folder is None:
        # The bundled probes cover several catalogs; the user chose one of them.
        left_out = [s for s in found if s.capability not in known]
        picked = [s for s in found if s.capability in known]
        if not picked:
            raise UsageError(f"{catalogs.first.path}: no bundled probe has a capability of it")
        return picked, left_out
    return found, []


def workspace_root(given: Path | None = None) -> Path:
    """Where a measurement belongs, every link resolved: the folder that was named, or declared in
    FENCE_WORKSPACE_ROOT, or the repository around the current folder, or that folder itself."""
    declared = os.environ.get("FENCE_WORKSPACE_ROOT")
    try:
        if given is not None or declared:
            return Path(given or declared or "").resolve()
        here = Path.cwd().resolve()
        return _repository(here) or here
    except FileNotFoundError:
        raise InputError("the current folder is gone") from None
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a NUL
        reason = os_reason(error) if isinstance(error, OSError) else str(error)
        raise InputError(f"{given or declared}: {reason}") from None


def _repository(folder: Path) -> Path | None:
    """What `git rev-parse --show-toplevel` says, with git or without it: the closest folder upwards
    on the same file system that has a .git, below GIT_CEILING_DIRECTORIES."""
    device = folder.stat().st_dev
    named = os.environ.get("GIT_CEILING_DIRECTORIES", "").split(os.pathsep)
    ceilings = {os.path.realpath(name) for name in named if name.startswith("/")}
    for parent in (folder, *folder.parents):
        try:
            if parent.stat().st_dev != device or (parent != folder and str(parent) in ceilings):
                break
        except OSError:
            break
        mark = parent / ".git"
        if os.path.isfile(mark) or os.path.isfile(mark / "HEAD"):  # noqa: PTH113 - they never raise
            return parent
    return None


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


class StartedPlan:
    """A plan for which there is a place, and whose first probes may run already."""

    def __init__(self, plan: MatrixPlan, jobs: int, staging: Staging) -> None:
        self.plan = plan
        self.jobs = jobs
        self.staging = staging
        self.started: dict[int, Tree] = {}  #: by slot: its first cell runs, and nobody watches

    def head_start(self, stop: Stop) -> None:
        for slot, cell in enumerate(self.plan.cells[: min(self.jobs, HEAD_START)]):
            if stop.is_asked:
                break
            # What fails is met again by whoever runs the cell, and reported there.
            with suppress(OSError, SpawnError):
                tmpdir = self.staging.tmpdir(slot)
                if tmpdir is not None:
                    tmpdir.mkdir(mode=0o700)
                self.started[slot] = launch(cell, self.plan, self.staging, slot)


@contextmanager
def start_plan(plan: MatrixPlan, jobs: int) -> Iterator[StartedPlan]:
    """Raises StreamError where there is no place for it. Probes that nobody came to watch end
    with it, and nothing stays on the disk."""
    with staged(plan.folder, plan.workspace) as staging:
        begun = StartedPlan(plan, jobs, staging)
        try:
            yield begun
        finally:
            Reaper.get().end_all(list(begun.started.values()))
