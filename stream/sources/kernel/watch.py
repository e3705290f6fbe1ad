"""A file or pipe of which a feed tells whenever somebody opens it to write, or writes into it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from msgspec import Struct


class Watch(Struct, frozen=True):
    name: str
    device: int
    inode: int
    #: What /proc calls a descriptor of it: all that a tracer sees. Empty: it cannot know it.
    path: bytes = b""

    @classmethod
    def of(cls, name: str, fd: int) -> Watch:
        status = os.fstat(fd)
        path = b""
        with suppress(OSError):
            path = os.fsencode(Path(f"/proc/self/fd/{fd}").readlink())
        return cls(name, _device_of(fd) or status.st_dev, status.st_ino, path)


def _device_of(fd: int) -> int | None:
    """As the kernel has it: stat tells another one of a part of btrfs, or a layer of overlayfs."""
    with suppress(OSError):
        info = Path(f"/proc/self/fdinfo/{fd}").read_bytes()
        mount = info.partition(b"\nmnt_id:")[2].split(maxsplit=1)[0]
        for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
            number, _, device, _ = line.split(b" ", 3)
            if number == mount:
                return os.makedev(*map(int, device.split(b":")))
    return None
