"""Find what sandboxes leave outside of their folders: mounts, control groups, placeholders."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from stream.boundary.scripts import TEMPORARY
from stream.errors import OutputError
from stream.files.trees import remove_tree

_CGROUPS = "/sys/fs/cgroup"
_MOST_CGROUPS = 20_000


#: What sandboxes of agents put into a shared folder that is writable in them, to mount over it
_PLACEHOLDERS = (".git", ".agents", ".codex", ".claude")


class Surroundings(Struct, frozen=True):
    """The mounts that a namespace has, the control groups of the machine, and the placeholders in
    the folders that everybody shares."""

    mounts: frozenset[str]
    cgroups: frozenset[str]
    placeholders: frozenset[str]


def surroundings(pid: int | str = "self") -> Surroundings:
    """Read the surroundings of a process. What cannot be read is empty."""
    mounts: set[str] = set()
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/mountinfo").read_text(errors="replace").splitlines():
            mounts.add(line.split(" ")[4].encode().decode("unicode_escape"))
    cgroups: set[str] = set()
    for folder, names, _ in os.walk(_CGROUPS):
        cgroups.update(f"{folder}/{name}" for name in names)
        if len(cgroups) > _MOST_CGROUPS:
            break
    paths = [f"{folder}/{name}" for folder in TEMPORARY for name in _PLACEHOLDERS]
    placeholders = frozenset(path for path in paths if os.path.lexists(path))
    return Surroundings(frozenset(mounts), frozenset(cgroups), placeholders)


def remove_new_leftovers(before: Surroundings, now: Surroundings, enter: list[str]) -> list[str]:
    """Unmount what was mounted since, and remove placeholders. Return a sentence for each of them
    and for each control group that was not there before; the latter stay, because they may be
    another program's."""
    found: list[str] = []
    for mount in sorted(now.mounts - before.mounts, reverse=True):
        done = subprocess.run(
            [*enter, "umount", "--lazy", "--", mount],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        state = "removed" if done.returncode == 0 else "could not be removed"
        found.append(f"a mount on {mount}, {state}")
    for path in sorted(now.placeholders - before.placeholders):
        if _is_hollow(path):
            with suppress(OutputError):
                remove_tree(Path(path))
                found.append(f"{path}, removed")
    new = sorted(now.cgroups - before.cgroups)
    return found + [
        f"a control group {name}, which stays"
        for name in new
        if "/stream-" not in name and _is_empty(name)
    ]


def _is_hollow(path: str) -> bool:
    """Tell whether nothing but empty files and folders is below a path."""
    if Path(path).is_symlink():
        return False
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                if os.lstat(f"{folder}/{name}").st_size:
                    return False
    return True


def _is_empty(cgroup: str) -> bool:
    try:
        return not Path(cgroup, "cgroup.procs").read_bytes()
    except OSError:
        return False
