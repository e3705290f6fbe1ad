"""The composition behind `stream verify`: what was found, to wherever it is wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anyio import to_thread
from anyio.abc import ObjectSendStream
from msgspec import Struct

from stream.archive.book import Book
from stream.archive.limits import Limits
from stream.archive.verifying import verify
from stream.pipeline import Batch, Pipeline, Sink


class VerifySource(Struct):
    """The findings about an archive or a run folder."""

    target: Path
    limits: Limits
    boundary: str | None = None
    book: Book | None = None

    async def run(self, out: ObjectSendStream[Batch[Any]], /) -> None:
        # In a thread that an interrupt leaves behind: there may be gigabytes to read.
        self.book = await to_thread.run_sync(
            lambda: verify(self.target, self.limits, self.boundary), abandon_on_cancel=True
        )
        if self.book.findings:
            await out.send(self.book.findings)


async def run_verify(target: Path, limits: Limits, boundary: str | None, *sinks: Sink[Any]) -> Book:
    """Raises InputError where there is nothing to verify."""
    source = VerifySource(target, limits, boundary)
    await Pipeline[Any]((source,)).into(*sinks)
    assert source.book is not None
    return source.book
