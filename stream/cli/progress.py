"""One live line on a terminal's stderr; nothing anywhere else."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stream.plan import Cell


class Progress:
    def __init__(self, total: int, *, is_shown: bool) -> None:
        """Records on the same terminal show progress enough."""
        self._total = total
        self._shown = is_shown and sys.stderr.isatty()
        self._next = 0.0
        self._running = ""

    def __call__(self, done: int, started: Cell | None) -> None:
        if not self._shown:
            return
        if started:
            self._running = started.script.id
        now = time.monotonic()
        if now >= self._next:
            self._next = now + 0.05
            width = shutil.get_terminal_size().columns - 1
            text = f"{done}/{self._total} cells, running {self._running}"
            print(f"\r\x1b[K{text[:width]}", end="", file=sys.stderr, flush=True)  # noqa: T201

    def clear(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)  # noqa: T201


class Copying:
    """While a workspace is copied, and only where that takes long enough to be seen."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._next = time.monotonic() + 0.5
        self._has_written = False

    def __call__(self, size: int) -> None:
        now = time.monotonic()
        if self._shown and now >= self._next:
            self._next = now + 0.1
            self._has_written = True
            print(f"\r\x1b[K{size >> 20} MB copied", end="", file=sys.stderr, flush=True)  # noqa: T201

    def clear(self) -> None:
        if self._has_written:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)  # noqa: T201
