"""A control group of one's own, where the system has version 2 and lets us make one.

It holds what a program starts, whatever the program does to its sessions and parents, and it
ends all of it at once. Where there can be none, `enter_cgroup` says so with None.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from stream.process.table import ON_LINUX


class Cgroup(Struct):
    path: Path

    def leave(self) -> None:
        """To where this process came from."""
        (self.path.parent / "cgroup.procs").write_text("0")

    def members(self) -> list[int]:
        try:
            return [int(pid) for pid in (self.path / "cgroup.procs").read_text().split()]
        except OSError:
            return []

    def holds_others(self, but: int | None = None) -> bool:
        """Beside this process, and that one."""
        return any(pid not in (os.getpid(), but) for pid in self.members())

    def kill(self) -> None:
        """Everyone in it: this process must have left."""
        with suppress(OSError):  # before Linux 5.14 there is no such file
            (self.path / "cgroup.kill").write_text("1")

    def remove(self) -> None:
        with suppress(OSError):  # what is still in it holds it
            if os.getpid() in self.members():
                self.leave()
            self.path.rmdir()


def enter_cgroup() -> Cgroup | None:
    """A new one beneath our own: what this process starts from now on is in it, as it is itself.
    To change groups takes the kernel milliseconds, so it is done when nobody waits for it."""
    home = own_group() if ON_LINUX else None
    if home is None:
        return None
    path = home / f"{_prefix(os.getpid())}{os.urandom(4).hex()}"
    try:
        path.mkdir()
    except OSError:
        return None
    made = Cgroup(path)
    try:
        (path / "cgroup.procs").write_text("0")
    except OSError:
        made.remove()
        return None
    return made


def remove_groups_of(pid: int) -> None:
    """Remove the empty groups that a child of ours has made beneath our own, and left."""
    home = own_group() if ON_LINUX else None
    if home is not None:
        for path in home.glob(f"{_prefix(pid)}*"):
            Cgroup(path).remove()


def take_out_of_frozen(pid: int, home: Path) -> bool:
    """Move a process that stands still in a frozen group, or is about to, to `home`, where it
    goes on. Say whether it had to be moved."""
    group = group_of(pid)
    if group is None or group == home or not _is_frozen(group):
        return False
    with suppress(OSError):  # it is gone
        (home / "cgroup.procs").write_text(str(pid))
    return True


def _is_frozen(group: Path) -> bool:
    """Say whether it is frozen, or one above it. A request counts: to freeze takes a moment."""
    with suppress(OSError):  # the topmost one cannot be frozen, and has no such file
        for folder in (group, *group.parents):
            if (folder / "cgroup.freeze").read_text() == "1\n":
                return True
    return False


def _prefix(pid: int) -> str:
    return f"stream-{pid}-"


def own_group() -> Path | None:
    """The folder of the group that this process is in."""
    return group_of("self")


def group_of(pid: int | str) -> Path | None:
    """The folder of the group that a process is in."""
    try:
        own = next(
            line[3:]
            for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()
            if line.startswith("0::")
        )
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except (OSError, StopIteration):
        return None
    for mount in mounts:
        fields, _, kind = mount.partition(" - ")
        if kind.startswith("cgroup2 "):
            root, point = fields.split()[3:5]
            if root == "/" or own == root or own.startswith(f"{root}/"):
                return Path(point) / own.removeprefix(root if root != "/" else "").lstrip("/")
    return None
