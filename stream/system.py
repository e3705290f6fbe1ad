"""The machine that something was observed on, and what it does in a certain way only."""

from __future__ import annotations

import os
import select
from functools import cache


@cache
def system_name() -> str:
    """uname -srm, as the harness sees it."""
    name = os.uname()
    return f"{name.sysname} {name.release} {name.machine}"


def write_all(fd: int, data: bytes) -> None:
    """However much of it is taken at a time."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # whoever shares the pipe with us has made it so
            select.select((), (fd,), ())
