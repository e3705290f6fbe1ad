"""A file or pipe of which a feed tells whenever somebody writes into it."""

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
        return cls(name, status.st_dev, status.st_ino, path)
