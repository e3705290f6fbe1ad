"""Plan a matrix: choose probes and modes, make the cells, and start the first of them.

Nothing here waits or imports an event loop: the first probes run while the loop is still loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from stream.boundary.descriptors import (
    Catalogs,
    Descriptor,
    find_catalogs,
    find_descriptor,
    mode_descriptor,
)
from stream.boundary.scripts import (
    BUNDLED,
    NEEDS,
    Cell,
    MatrixPlan,
    Script,
    Staging,
    Stop,
    choose_scripts,
    find_scripts,
    launch_cell,
    stage_probes,
    tree_of,
)
from stream.errors import InputError, SpawnError, UsageError, os_reason
from stream.process.tree import Reaper, Tree
from stream.records.boundary import SANDBOX_MODES

if TYPE_CHECKING:
    from stream.boundary.modes import MeasuredModes
    from stream.records.policies import Policy

HEAD_START = 16  #: how many probes may run before the loop is loaded: enough to keep the cores busy


class MatrixRequest(Struct, frozen=True):
    """The matrix that the user asked for."""

    probes: Sequence[str] = ()
    capabilities: Sequence[str] = ()
    modes: Sequence[str] = ()
    folder: Path | None = None
    catalog: str | None = None
    boundary: str | None = None
    workspace: Path | None = None
    repeat: int = 1
    run_as: str | None = None  #: the user that probes in modes run as
    from_outside: bool = False  #: measure also the baseline alone from outside
    with_needs: bool = False  #: also probes that need targets, which else run only if named
    policies: Sequence[str] = ()  #: files whose promises the records are judged by


def make_plan(request: MatrixRequest) -> MatrixPlan:
    """Make the plan, or raise StreamError with the place of what cannot be used."""
    folder = request.folder or BUNDLED
    tree = None if request.folder is None else tree_of(folder)
    catalogs = find_catalogs(request.catalog, tree)
    descriptor = find_descriptor(request.boundary, tree)
    workspace = workspace_root(request.workspace)
    if not workspace.is_dir():
        raise InputError(f"{workspace}: the workspace is not a folder")
    sandbox_mode = declared_sandbox_mode()
    modes = tuple(dict.fromkeys(request.modes)) or descriptor.modes[:1]
    measured = _find_measured(request, modes, descriptor)
    if measured is not None:
        from stream.boundary.policies import check_capabilities

        for mode in measured.modes:
            check_capabilities(mode.promises, catalogs.capability_ids())
        modes = tuple(mode.name for mode in measured.modes)
        descriptor = descriptor if descriptor.measures_modes else mode_descriptor()
    found = find_scripts(folder)
    picked, left_out = _select_probes(
        request, found, folder, catalogs, request.with_needs or measured is not None
    )
    is_whole = not request.probes and not request.capabilities
    no_probes = [script for script in found if is_whole and not script.is_probe]
    env = _probe_environment(workspace, sandbox_mode, descriptor)
    return MatrixPlan(
        folder,
        catalogs,
        descriptor,
        workspace,
        sandbox_mode,
        tuple(_make_cell(script, mode, env, catalogs) for mode in modes for script in picked),
        request.repeat,
        tuple(left_out),
        tuple(no_probes),
        measured,
        _read_policy(request.policies, catalogs, workspace, measured),
    )


def _read_policy(
    paths: Sequence[str], catalogs: Catalogs, workspace: Path, measured: MeasuredModes | None
) -> Policy | None:
    """Read the policies that records are judged by. Raise InputError."""
    if not paths:
        return None
    from stream.boundary.policies import read_policies
    from stream.boundary.policy_rules import ProbePlaces, places_in_slots

    if measured is not None:
        places = places_in_slots(measured.user.home)
    else:
        tmp = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108
        home = os.environ.get("HOME") or "/"
        places = ProbePlaces(str(workspace), home, "/var/tmp", tmp, f"{tmp}/socket")  # noqa: S108
    return read_policies(paths, places, catalogs.capability_ids())


def _find_measured(
    request: MatrixRequest, modes: Sequence[str], descriptor: Descriptor
) -> MeasuredModes | None:
    """Find the modes in which probes are measured from outside; None where the request names only
    run modes of the descriptor, as `baseline`. Raise StreamError."""
    is_plain = request.run_as is None and not request.from_outside
    if is_plain and all(mode in descriptor.modes for mode in modes):
        return None
    from stream.boundary.modes import measured_modes
    from stream.process.users import find_user

    if not descriptor.measures_modes and not descriptor.canonical:
        version = descriptor.pattern_version
        known = "|".join(descriptor.modes)
        raise UsageError(
            f"{descriptor.path}: its pattern {version} knows the modes {known}; other modes take"
            " boundary_event_v2"
        )
    if request.workspace is not None:
        raise UsageError("--workspace: probes in modes run in a workspace that is made for them")
    return measured_modes(modes, find_user(request.run_as))


def _select_probes(
    request: MatrixRequest,
    found: list[Script],
    folder: Path,
    catalogs: Catalogs,
    has_targets: bool,
) -> tuple[list[Script], list[Script]]:
    """Return (the probes to run, the bundled ones of other catalogs). A script that is no probe
    runs only if it is named, and so does one whose needs nobody provides."""
    known = set(catalogs.capability_ids())
    for capability in request.capabilities:
        if capability not in known:
            raise UsageError(f"unknown capability: {capability} (see `stream matrix --list`)")
    picked = choose_scripts(found, folder, request.probes)
    that = ""
    if not has_targets and any(script.needs in NEEDS for script in found):
        found = [script for script in found if script.needs not in NEEDS]
        that = " that needs no targets"
    if request.capabilities:
        wanted = set(request.capabilities)
        picked += [s for s in found if s.capability in wanted and s not in picked]
        if not picked:
            names = ", ".join(request.capabilities)
            raise UsageError(f"{folder}: no probe{that} has the primary capability {names}")
    if picked:
        return picked, []
    found = [script for script in found if script.is_probe]
    if not found:
        raise InputError(f"{folder}: no script{that} calls emit-record or declares a capability")
    if catalogs.named and request.folder is None:
        # The bundled probes cover several catalogs; the user chose one of them.
        left_out = [s for s in found if s.capability not in known]
        picked = [s for s in found if s.capability in known]
        if not picked:
            raise UsageError(
                f"{catalogs.first.path}: no bundled probe measures a capability of this catalog"
            )
        return picked, left_out
    return found, []


def workspace_root(given: Path | None = None) -> Path:
    """Return the workspace with links resolved: the given folder, else FENCE_WORKSPACE_ROOT, else
    the repository around the current folder, else that folder."""
    declared = os.environ.get("FENCE_WORKSPACE_ROOT")
    try:
        if given is not None or declared:
            return Path(given or declared or "").resolve()
        here = Path.cwd().resolve()
        return _repository_root(here) or here
    except FileNotFoundError:
        raise InputError("the current folder is gone") from None
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a NUL
        reason = os_reason(error) if isinstance(error, OSError) else str(error)
        raise InputError(f"{given or declared}: {reason}") from None


def _repository_root(folder: Path) -> Path | None:
    """Return what `git rev-parse --show-toplevel` would, without git: the closest parent on the
    same file system that has a .git, below GIT_CEILING_DIRECTORIES."""
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
    """Return FENCE_SANDBOX_MODE, or raise UsageError if that is not a known mode."""
    declared = os.environ.get("FENCE_SANDBOX_MODE") or None
    if declared is not None and declared not in SANDBOX_MODES:
        raise UsageError(
            f"FENCE_SANDBOX_MODE: unknown mode {declared!r} (expected {'|'.join(SANDBOX_MODES)})"
        )
    return declared


def _probe_environment(
    workspace: Path, sandbox_mode: str | None, descriptor: Descriptor
) -> dict[str, str]:
    """Return the environment of every probe: the caller's, and the variables of the contract."""
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


#: variables that would make bash behave differently from what the script's author saw
_SHELL_STATE = ("BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "CDPATH", "POSIXLY_CORRECT")


def _make_cell(script: Script, mode: str, env: dict[str, str], catalogs: Catalogs) -> Cell:
    catalog = catalogs.catalog_for_capability(script.capability)
    variables = {"FENCE_RUN_MODE": mode, "CATALOG_PATH": str(catalog.path)}
    return Cell(script, mode, catalog.key, {**env, **variables})


class StartedPlan(Struct):
    """A plan that has its staging folder, and whose first probes may already run."""

    plan: MatrixPlan
    jobs: int
    staging: Staging
    #: by slot: its first cell runs, and nobody follows it yet
    started: dict[int, Tree] = field(default_factory=dict)

    def head_start(self, stop: Stop) -> None:
        """Start the first cell of each slot before there is a loop to follow it."""
        if self.plan.measured is not None:  # their targets are not there yet
            return
        for slot, cell in enumerate(islice(self.plan.planned_cells(), min(self.jobs, HEAD_START))):
            if stop.is_asked:
                break
            # A failure repeats when the source runs the cell, and is reported there.
            with suppress(OSError, SpawnError):
                tmpdir = self.staging.tmpdir(slot)
                if tmpdir is not None:
                    tmpdir.mkdir(mode=0o700)
                self.started[slot] = launch_cell(cell, self.plan, self.staging, slot)


@contextmanager
def start_plan(plan: MatrixPlan, jobs: int) -> Iterator[StartedPlan]:
    """Stage the probes of a plan, or raise StreamError if there is no place for that. On exit,
    end probes that nobody follows, and remove the staging folder."""
    with stage_probes(plan.folder, plan.workspace) as staging:
        started = StartedPlan(plan, jobs, staging)
        try:
            yield started
        finally:
            Reaper.get().end_all_trees(list(started.started.values()))
