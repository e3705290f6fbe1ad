"""A sink that keeps all it is given."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from stream.pipeline import Batch, Write
from stream.records.control import FINDINGS, LINES, REJECTS


class Collected:
    """Lines, findings and rejects, in the order in which they came."""

    kinds = (LINES, FINDINGS, REJECTS)

    def __init__(self) -> None:
        self.items: list[Any] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Write]:
        yield self._write

    async def _write(self, batch: Batch[Any]) -> None:
        self.items += batch.items
