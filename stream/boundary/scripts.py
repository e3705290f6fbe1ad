"""Probe scripts: what each declares, how it is made ready, and the cells of a matrix that run it.

A probe finds its helpers in ../bin, and many take .. for their workspace: every script runs where
it lies. A tree that has no bin gets a link to our helpers for as long as it runs; where none can be
made, nothing of it runs. No other folder could take the place of the tree.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shlex
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from stream.boundary.descriptors import Catalogs, Descriptor
from stream.codec import BUNDLE
from stream.errors import InputError, OutputError, UsageError, os_reason, reporting
from stream.files.trees import remove_tree
from stream.process.tree import Tree, start_tree

if TYPE_CHECKING:
    from stream.boundary.modes import MeasuredModes
    from stream.records.policies import Policy

HELPERS = Path(__file__).resolve().parents[1] / "helpers"
BUNDLED = BUNDLE / "probes"
LINK = f"{HELPERS}/."  #: where a bin that we made leads to; nobody else spells it like this
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108
SHEBANG = b"#!/usr/bin/env bash"

_ASSIGNMENT = r"^{name}=(?P<quote>[\"']?)(?P<value>[A-Za-z0-9_.-]+)(?P=quote)[ \t]*(?:#.*)?$"
_CAPABILITY = re.compile(_ASSIGNMENT.format(name="primary_capability_id").encode(), re.MULTILINE)
_NAME = re.compile(_ASSIGNMENT.format(name="probe_name").encode(), re.MULTILINE)
#: What only a matrix with targets outside the sandbox provides; a stand-in has targets as well.
NEEDS = ("targets", "stand-in")
_WORDS = _ASSIGNMENT.replace("A-Za-z0-9_.-", "A-Za-z0-9_.:-")
_NEEDS = re.compile(_WORDS.format(name="needs").encode(), re.MULTILINE)
_EFFECT = re.compile(_WORDS.format(name="effect").encode(), re.MULTILINE)
_VERSION = re.compile(rb"--probe-version[ =](?P<quote>[\"']?)(?P<value>[A-Za-z0-9_.-]+)(?P=quote)")
#: In no comment, and not only printed. A here-document is not recognised.
_PRINTED = rb"[ \t]*(?:echo|printf)\b(?:(?!\$\()[^|;&<`\n])*$"
_CALL = re.compile(rb"^(?!%b)(?:(?!(?<![^\s])#)[^\n])*?\bemit-record\b" % _PRINTED, re.MULTILINE)


class Script(Struct, frozen=True):
    """A probe script, with what its text declares."""

    id: str  #: the file name without .sh; what is not UTF-8 in it is shown as U+FFFD
    path: Path
    capability: str | None  #: the literal primary_capability_id, where it is one
    name: str | None  #: the literal probe_name
    wants_bash: bool = False  #: its first line is the one that the contract asks for
    is_probe: bool = True  #: it calls emit-record or declares a capability, or cannot be read
    needs: str | None = None  #: the literal needs: one of NEEDS, unless the gate finds it
    effect: str | None = None  #: the literal effect, likewise one of EFFECTS
    version: str | None = None  #: the literal version that it passes to emit-record


def find_scripts(folder: Path) -> list[Script]:
    """Find all probes of a folder, sorted by id. Raise StreamError where one leads out of it."""
    with reporting(folder):
        names = sorted(path.name for path in folder.iterdir() if path.suffix == ".sh")
    if not names:
        hint = f"; did you mean {folder / 'probes'}?" if (folder / "probes").is_dir() else ""
        raise InputError(f"{folder}: no probes in it (*.sh){hint}")
    return [_read_script(folder, name) for name in names]


def tree_of(folder: Path) -> Path:
    """Return what a probe reaches as `..`: the folder's real parent, not that of a link to it."""
    return folder.resolve().parent


def choose_scripts(found: Sequence[Script], folder: Path, names: Sequence[str]) -> list[Script]:
    """Return the named probes, in the order given. A name is an id, or a path into the folder."""
    by_id = {script.id: script for script in found}
    picked: list[Script] = []
    for name in names:
        probe_id = _probe_id(name, folder)
        if probe_id not in by_id:
            raise UsageError(f"unknown probe: {name}{_probe_suggestion(probe_id, by_id)}")
        if by_id[probe_id] not in picked:
            picked.append(by_id[probe_id])
    return picked


def _probe_id(name: str, folder: Path) -> str:
    """Return the probe id in a name or path. Raise UsageError for a path outside the folder."""
    if "/" in name:
        path = Path(name)
        if path.parent.resolve() != folder.resolve():
            raise UsageError(f"{name}: outside the probe folder {folder}")
        name = path.name
    return name.removesuffix(".sh")


def _probe_suggestion(name: str, known: Iterator[str] | dict[str, Script]) -> str:
    """Return a hint with the known probe that is closest to an unknown name."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else " (see `stream matrix --list`)"


def _read_script(folder: Path, name: str) -> Script:
    """Read what a probe script declares about itself, without running it."""
    path = folder / name
    if path.is_symlink() and not _link_target(path).is_relative_to(_link_target(folder)):
        raise UsageError(f"{path}: a link that leads outside the probe folder {folder}")
    text, is_read = b"", False
    # What cannot be read cannot be run either: the attempt to run it says why.
    with suppress(OSError):
        status = path.stat()
        if stat.S_ISREG(status.st_mode):
            with path.open("rb", buffering=0) as file:
                text, is_read = file.read(min(status.st_size, 1 << 20)), True
    capability = _declared_literal(_CAPABILITY, text)
    return Script(
        id=utf8(name.removesuffix(".sh")),
        path=path,
        capability=capability,
        name=_declared_literal(_NAME, text),
        wants_bash=text.partition(b"\n")[0] == SHEBANG,
        is_probe=not is_read or capability is not None or _CALL.search(text) is not None,
        needs=_declared_literal(_NEEDS, text),
        effect=_declared_literal(_EFFECT, text),
        version=_declared_literal(_VERSION, text),
    )


def _link_target(path: Path) -> Path:
    return Path(os.path.realpath(path))  # unlike resolve(), it bears a loop of links


def utf8(name: str | Path) -> str:
    """Return a name as a record can carry it."""
    return os.fsencode(name).decode(errors="replace")


def _declared_literal(pattern: re.Pattern[bytes], text: bytes) -> str | None:
    match = pattern.search(text)
    return match["value"].decode() if match else None


class Staging(Struct, frozen=True):
    """The folder that probes run from, and where each of those that run at a time has its
    TMPDIR."""

    folder: Path  #: of the scripts
    root: Path | None  #: None where nothing can be written anywhere
    counts_calls: bool  #: emit-record is ours, and leaves a line for each call
    ours: tuple[Path, ...]  #: folders in which nothing of the workspace lies

    def script_command(self, script: Script) -> list[str]:
        """Return the command line of a script. `env bash` is looked up here, once, and not in every
        cell."""
        path = str(self.folder / script.path.name)
        bash = _bash()
        if script.wants_bash and bash and os.access(path, os.X_OK):
            return [bash, path]
        return [path]

    def tmpdir(self, slot: int) -> Path | None:
        """Return the TMPDIR of one of the probes that run at a time, where there can be one."""
        return None if self.root is None else self.root / "tmp" / str(slot)


def remove_empty(folder: Path) -> bool:
    """Remove a folder if nothing is in it. Return whether it is gone."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


@cache
def _bash() -> str | None:
    return shutil.which("bash")


@contextmanager
def stage_probes(folder: Path, workspace: Path) -> Iterator[Staging]:
    """Provide the helpers beside the scripts, and a private folder for one run, outside the
    workspace; both are gone afterwards."""
    tree = tree_of(folder)
    # The folder goes last: to remove it takes a descriptor, and the link gives one back.
    with _private_folder(workspace) as root, linked_helpers(tree):
        helpers = tree / "bin"
        ours = [root] if root is not None else []
        if helpers.samefile(HELPERS):
            ours += [helpers, HELPERS]
        counts_calls = (helpers / "emit-record").samefile(HELPERS / "emit-record")
        yield Staging(folder.resolve(), root, counts_calls, tuple(ours))


@contextmanager
def _private_folder(workspace: Path) -> Iterator[Path | None]:
    """Make the folder that probes have their TMPDIR in. Inside a sandbox there may be no place for
    it: the probes can do without."""
    root = None
    with suppress(OutputError):
        root = make_scratch_folder(workspace)
    try:
        if root is not None:
            with reporting(root, OutputError):
                (root / "tmp").mkdir()
        yield root
    finally:
        if root is not None:
            with suppress(OutputError):
                remove_tree(root)


@contextmanager
def linked_helpers(tree: Path) -> Iterator[None]:
    """Make a bin in a tree that has none. Runs that need it at the same time share it, and the last
    of them removes it. Raise InputError where that cannot be done."""
    lock = None
    try:
        try:
            lock = _link_helpers(tree)
        except OSError as error:
            raise _no_helpers_error(tree, os_reason(error)) from None
        if not os.access(tree / "bin" / "emit-record", os.X_OK):
            raise _no_helpers_error(tree, "no emit-record in it that can be run")
        yield
    finally:
        if lock is not None:
            with suppress(OSError):  # another run needs it still
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _lacks_bin(tree):
                    (tree / "bin").unlink()
            os.close(lock)


def _link_helpers(tree: Path) -> int | None:
    """Return a descriptor that keeps the bin we made, or None where the tree has one of its own."""
    if not _lacks_bin(tree):
        return None
    lock = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # another run needs what is there, or nothing can be written
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _target_of_bin_link(tree) not in (None, LINK):  # left by a `stream` that was killed
                (tree / "bin").unlink()
        _lock_shared(lock)
        with suppress(FileExistsError):  # another run was faster
            (tree / "bin").symlink_to(LINK)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _lock_shared(lock: int) -> None:
    """Lock a tree together with other runs, which keep it to themselves for a moment only. Another
    program may for ever."""
    for _ in range(100):
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        time.sleep(0.01)
    raise BlockingIOError(errno.EWOULDBLOCK, "another program has locked its folder")


def _lacks_bin(tree: Path) -> bool:
    """Tell whether a tree has no bin, or only a link that this `stream` or another made."""
    link = _target_of_bin_link(tree)
    if link is None:
        return not os.path.lexists(tree / "bin")
    return link.endswith(f"/{HELPERS.name}/.")


def _target_of_bin_link(tree: Path) -> str | None:
    """Return where the bin of a tree leads to, or None where it is no link."""
    try:
        return os.readlink(tree / "bin")  # noqa: PTH115 (a Path would drop the dot)
    except OSError:
        return None


def _no_helpers_error(tree: Path, reason: str) -> InputError:
    """Return the error that a probe tree has no helpers, with the command that links them."""
    bin_path = str(tree / "bin")
    # What a link leads to may be of another user: a Path would raise there.
    words, these, there = "ln -s", "", bin_path
    if os.path.isdir(bin_path):  # noqa: PTH112
        these, there = "/*", f"{bin_path}/"
    elif os.path.islink(bin_path):  # noqa: PTH114
        words = "ln -sfn"
    return InputError(
        f"{bin_path}: {reason}: probes find their helpers there. Where it can be written, before a"
        f' sandbox closes it: {words} "$(stream helpers)"{these} {shlex.quote(there)}'
    )


def make_scratch_folder(workspace: Path) -> Path:
    """Make a folder in the first place for temporary files that allows it; places outside the
    workspace come before those in it. Raise OutputError."""
    inside = workspace.resolve()
    named = [os.environ[name] for name in ("TMPDIR", "TEMP", "TMP") if os.environ.get(name)]
    candidates = [Path(path) for path in (*named, *TEMPORARY)]
    reason = "there is no folder for them"
    for candidate in sorted(candidates, key=lambda path: path.resolve().is_relative_to(inside)):
        try:
            return Path(tempfile.mkdtemp(prefix="stream-", dir=candidate.resolve()))
        except OSError as error:
            reason = f"{candidate}: {os_reason(error)}"
    raise OutputError(f"no place for temporary files: {reason}")


class Cell(Struct, frozen=True):
    """One run of a probe in one mode."""

    script: Script
    mode: str
    catalog: str
    env: Mapping[str, str]
    index: int = 0  #: among all cells of a matrix


class MatrixPlan(Struct, frozen=True):
    """A valid request: every cell is known, nothing has started."""

    folder: Path
    catalogs: Catalogs
    descriptor: Descriptor
    workspace: Path
    sandbox_mode: str | None
    cells: tuple[Cell, ...]  #: of each probe in each mode, the first run
    repeat: int = 1  #: how often each of them runs
    left_out: tuple[Script, ...] = ()  #: bundled ones that belong to another catalog
    no_probes: tuple[Script, ...] = ()  #: they lie there, but nothing says that they measure
    measured: MeasuredModes | None = None  #: the probes run in modes, measured from outside
    policy: Policy | None = None  #: what the records are judged by

    @property
    def scripts(self) -> list[Script]:
        """Return the scripts that run, each once."""
        return list({cell.script.id: cell.script for cell in self.cells}.values())

    @property
    def cell_count(self) -> int:
        """The number of cells that run."""
        return len(self.cells) * self.repeat

    def planned_cells(self) -> Iterator[Cell]:
        """Yield all cells in their order. None is made before its turn: there may be millions."""
        for index in range(self.cell_count):
            yield replace(self.cells[index // self.repeat], index=index)


class Stop:
    """Asks a run to end early, with what it has. It may be asked before it has begun."""

    def __init__(self) -> None:
        self.is_asked = False
        self.on_ask: Callable[[], None] = lambda: None

    def ask_to_stop(self) -> None:
        """Ask the run of the matrix to end."""
        self.is_asked = True
        self.on_ask()


def launch_cell(cell: Cell, plan: MatrixPlan, staging: Staging, slot: int) -> Tree:
    """Start a cell. Raise SpawnError."""
    # Where there can be none, a probe that needs one must see why.
    tmpdir = staging.tmpdir(slot) or cell.env.get("TMPDIR", TEMPORARY[0])
    return start_tree(
        staging.script_command(cell.script),
        env={**cell.env, "TMPDIR": str(tmpdir)},
        cwd=str(plan.workspace),
    )
