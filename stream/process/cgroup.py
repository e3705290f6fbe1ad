"""A control group for one program, where the system has version 2 and lets us make one: it holds
all that the program starts, whatever that does to its sessions and parents, and ends it at once."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from stream.process.table import ON_LINUX


class Cgroup(Struct):
    """A control group that was made for one program."""

    path: Path

    def leave_group(self) -> None:
        """Move this process to the group that it came from."""
        (self.path.parent / "cgroup.procs").write_text("0")

    def list_members(self) -> list[int]:
        """List the processes in the control group."""
        try:
            return [int(pid) for pid in (self.path / "cgroup.procs").read_text().split()]
        except OSError:
            return []

    def holds_others(self, known: Collection[int] = ()) -> bool:
        """Tell whether the control group has others in it than this process and the known ones."""
        return any(pid != os.getpid() and pid not in known for pid in self.list_members())

    def kill_members(self) -> None:
        """Kill everyone in the control group: this process must have left."""
        with suppress(OSError):  # before Linux 5.14 there is no such file
            (self.path / "cgroup.kill").write_text("1")

    def remove_group(self) -> None:
        """Remove the control group if nobody is left in it."""
        with suppress(OSError):  # what is still in it holds it
            if os.getpid() in self.list_members():
                self.leave_group()
            self.path.rmdir()


def enter_cgroup() -> Cgroup | None:
    """Make a group beneath our own, and enter it: what this process starts from now on is in it.
    To change groups takes the kernel milliseconds, so it is done when nobody waits for it. Return
    None where there can be none."""
    home = current_cgroup() if ON_LINUX else None
    if home is None:
        return None
    path = home / f"{_cgroup_name_prefix(os.getpid())}{os.urandom(4).hex()}"
    try:
        path.mkdir()
    except OSError:
        return None
    made = Cgroup(path)
    try:
        (path / "cgroup.procs").write_text("0")
    except OSError:
        made.remove_group()
        return None
    return made


def remove_cgroups_of(pid: int) -> None:
    """Remove the empty groups that a child of ours has made beneath our own, and left."""
    home = current_cgroup() if ON_LINUX else None
    if home is not None:
        for path in home.glob(f"{_cgroup_name_prefix(pid)}*"):
            Cgroup(path).remove_group()


def move_out_of_frozen_cgroup(pid: int, home: Path) -> bool:
    """Move a process that stands still in a frozen group, or is about to, to `home`, where it
    goes on. Return whether it had to be moved."""
    group = cgroup_of_process(pid)
    if group is None or group == home or not _is_frozen_cgroup(group):
        return False
    with suppress(OSError):  # it is gone
        (home / "cgroup.procs").write_text(str(pid))
    return True


def _is_frozen_cgroup(group: Path) -> bool:
    """Tell whether a group is frozen, or one above it. A request counts: to freeze takes a
    moment."""
    with suppress(OSError):  # the topmost one cannot be frozen, and has no such file
        for folder in (group, *group.parents):
            if (folder / "cgroup.freeze").read_text() == "1\n":
                return True
    return False


def _cgroup_name_prefix(pid: int) -> str:
    return f"stream-{pid}-"


def current_cgroup() -> Path | None:
    """Return the folder of the control group that this process is in."""
    return cgroup_of_process("self")


def cgroup_of_process(pid: int | str) -> Path | None:
    """Return the folder of the control group that a process is in."""
    try:
        group = next(
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
            if root == "/" or group == root or group.startswith(f"{root}/"):
                return Path(point) / group.removeprefix(root if root != "/" else "").lstrip("/")
    return None
