"""Find what sandboxes leave behind outside of their folders: mounts and control groups."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

_CGROUPS = "/sys/fs/cgroup"
_MOST_CGROUPS = 20_000


class Surroundings(Struct, frozen=True):
    """The mounts that a namespace has, and the control groups of the machine."""

    mounts: frozenset[str]
    cgroups: frozenset[str]


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
    return Surroundings(frozenset(mounts), frozenset(cgroups))


def remove_new_mounts(before: Surroundings, now: Surroundings, enter: list[str]) -> list[str]:
    """Unmount what was mounted since. Return a sentence for each mount and each control group that
    was not there before; the latter stay, because they may be another program's."""
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
    new = sorted(now.cgroups - before.cgroups)
    return found + [
        f"a control group {name}, which stays"
        for name in new
        if "/stream-" not in name and _is_empty(name)
    ]


def _is_empty(cgroup: str) -> bool:
    try:
        return not Path(cgroup, "cgroup.procs").read_bytes()
    except OSError:
        return False
