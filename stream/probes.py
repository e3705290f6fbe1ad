"""A folder of probe scripts: what is in it, what each script declares, and staging it.

A probe finds its helpers in ../bin. A tree that has no bin/emit-record of its own is staged:
links to the scripts beside a link to our helpers, in a private folder, so that published
trees run unmodified and nothing is ever written beside them.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from stream.document import BUNDLE
from stream.errors import InputError, OutputError, UsageError, os_reason

HELPERS = Path(__file__).resolve().parent / "helpers"
BUNDLED = BUNDLE / "probes"

_ASSIGNMENT = r"^{name}=(?P<quote>[\"']?)(?P<value>[A-Za-z0-9_.-]+)(?P=quote)[ \t]*(?:#.*)?$"
_CAPABILITY = re.compile(_ASSIGNMENT.format(name="primary_capability_id").encode(), re.MULTILINE)
_NAME = re.compile(_ASSIGNMENT.format(name="probe_name").encode(), re.MULTILINE)


@dataclass(frozen=True)
class Script:
    id: str
    path: Path
    capability: str | None  #: the literal primary_capability_id, where it is one
    name: str | None  #: the literal probe_name


def scripts(folder: Path) -> list[Script]:
    """All probes of a folder, sorted by id. Raises where one leads out of it."""
    try:
        names = sorted(path.name for path in folder.iterdir() if path.suffix == ".sh")
    except OSError as error:
        raise InputError(f"{folder}: {os_reason(error)}") from None
    if not names:
        hint = f"; did you mean {folder / 'probes'}?" if (folder / "probes").is_dir() else ""
        raise InputError(f"{folder}: no probes in it (*.sh){hint}")
    return [_script(folder, name) for name in names]


def chosen(found: Sequence[Script], folder: Path, names: Sequence[str]) -> list[Script]:
    """The named probes, in the order given. A name is an id, or a path into the folder."""
    by_id = {script.id: script for script in found}
    picked: list[Script] = []
    for name in names:
        probe_id = _id_of(name, folder)
        if probe_id not in by_id:
            raise UsageError(f"unknown probe: {name}{_suggestion(probe_id, by_id)}")
        if by_id[probe_id] not in picked:
            picked.append(by_id[probe_id])
    return picked


def _id_of(name: str, folder: Path) -> str:
    if "/" in name:
        path = Path(name)
        if path.parent.resolve() != folder.resolve():
            raise UsageError(f"{name}: outside the probe folder {folder}")
        name = path.name
    return name.removesuffix(".sh")


def _suggestion(name: str, known: Iterator[str] | dict[str, Script]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else " (see `stream matrix --list`)"


def _script(folder: Path, name: str) -> Script:
    path = folder / name
    inside = folder.resolve()
    if path.is_symlink() and not path.resolve().is_relative_to(inside):
        raise UsageError(f"{path}: a link that leads outside the probe folder {folder}")
    try:
        with path.open("rb") as file:
            text = file.read(1 << 20)
    except OSError as error:
        raise InputError(f"{path}: {os_reason(error)}") from None
    return Script(
        name.removesuffix(".sh"), path, _literal(_CAPABILITY, text), _literal(_NAME, text)
    )


def _literal(pattern: re.Pattern[bytes], text: bytes) -> str | None:
    match = pattern.search(text)
    return match["value"].decode() if match else None


@dataclass(frozen=True)
class Staging:
    """Where probes run from, and where each cell has its TMPDIR."""

    root: Path
    in_place: bool

    def path_of(self, script: Script) -> Path:
        return script.path.absolute() if self.in_place else self.root / "probes" / script.path.name

    def make_tmpdir(self, cell: int) -> Path:
        path = self.root / "tmp" / str(cell)
        path.mkdir(mode=0o700)
        return path


@contextmanager
def staged(found: Sequence[Script], folder: Path, workspace: Path) -> Iterator[Staging]:
    """A private folder for one run, outside the workspace; removed afterwards."""
    try:
        root = Path(tempfile.mkdtemp(prefix="stream-", dir=_outside(workspace)))
    except OSError as error:
        raise OutputError(f"no place for temporary files: {os_reason(error)}") from None
    try:
        (root / "tmp").mkdir()
        own_helper = folder.absolute().parent / "bin" / "emit-record"
        staging = Staging(root, in_place=os.access(own_helper, os.X_OK))
        if not staging.in_place:
            (root / "bin").symlink_to(HELPERS)
            (root / "probes").mkdir()
            for script in found:
                staging.path_of(script).symlink_to(script.path.resolve())
        yield staging
    finally:
        remove_tree(root)


def remove_tree(root: Path) -> None:
    """Also what a probe made unreadable."""
    with suppress(OSError):
        root.rmdir()  # nearly always: the probe has cleaned up
        return
    for _ in range(2):
        shutil.rmtree(root, ignore_errors=True)
        if not root.exists():
            return
        for folder, _, _ in os.walk(root):
            with suppress(OSError):
                Path(folder).chmod(0o700)


def _outside(workspace: Path) -> str:
    """A folder for temporary files that is not inside the workspace, where there is one."""
    inside = workspace.resolve()
    candidates = [tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"]  # noqa: S108
    for candidate in candidates:
        path = Path(candidate).resolve()
        if not path.is_relative_to(inside) and os.access(path, os.W_OK | os.X_OK):
            return str(path)
    return tempfile.gettempdir()
