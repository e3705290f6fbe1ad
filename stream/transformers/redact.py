"""A feed, and what is done to each of its batches before anybody else sees it."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from anyio import to_thread
from anyio.abc import ObjectSendStream
from msgspec import Struct

from stream.codec import join_lines
from stream.errors import os_reason
from stream.evidence.process_tree import asked_in, known_by
from stream.files.append import open_new, write_all
from stream.pipeline import Batch
from stream.records.kernel import NAMES, RawEvent, Telemetry, path_bytes, path_text
from stream.redaction.policy import CapturePolicy
from stream.transformers.tool_events import command_seen

_encode = msgspec.json.Encoder().encode


class _ForwardingStream(Struct):
    """The receiving end that a source is given, with something done to each batch before."""

    out: ObjectSendStream[Batch[Telemetry]]
    use: Callable[[Batch[Telemetry]], Awaitable[Batch[Telemetry]]]

    async def send(self, batch: Batch[Telemetry]) -> None:
        await self.out.send(await self.use(batch))


class RedactedFeed(Struct):
    """A feed whose text is censored before anybody else sees it."""

    feed: Any
    disclosure: CapturePolicy

    async def run(self, out: Any, /) -> None:
        await self.feed.run(_ForwardingStream(out, self._censored))

    async def _censored(self, batch: Batch[Telemetry]) -> Batch[Telemetry]:
        return [self._seen(item) for item in batch]

    def _seen(self, item: Telemetry) -> Telemetry:
        """What is no event tells of the feed alone."""
        if not isinstance(item, RawEvent):
            return item
        seen: dict[str, Any] = {}
        for name in NAMES:
            text = getattr(item, name)
            if text is not None:
                seen[name] = self.disclosure.name(path_bytes(text), path_text)
        if item.argv:
            seen["argv"] = self.disclosure.words([*map(path_bytes, item.argv)], path_text)
            asked = [command_seen(self.disclosure, text) for text in asked_in(item.argv)]
            seen["asked"] = [known_by(text) for text in asked] or None
        return msgspec.structs.replace(item, **seen)


class CopiedFeed(Struct):
    """A feed whose raw telemetry goes to a file as well."""

    feed: Any
    path: Path
    troubles: list[str]  #: a copy that cannot be written costs nothing but itself

    async def run(self, out: Any, /) -> None:
        fd = -1

        async def spill(batch: Batch[Telemetry]) -> Batch[Telemetry]:
            nonlocal fd
            if fd >= 0:
                try:
                    if is_fifo:  # its reader may take its time
                        await to_thread.run_sync(_write, fd, batch, abandon_on_cancel=True)
                    else:
                        _write(fd, batch)
                except OSError as error:
                    os.close(fd)
                    fd = -1
                    self.troubles.append(f"--raw-kernel {self.path}: {os_reason(error)}")
            return batch

        is_fifo = self.path.is_fifo()
        try:
            fd = _open_fifo(self.path) if is_fifo else open_new(self.path)
        except OSError as error:
            why = "nobody reads it" if error.errno == errno.ENXIO else os_reason(error)
            self.troubles.append(f"--raw-kernel {self.path}: {why}")
        try:
            await self.feed.run(_ForwardingStream(out, spill))
        finally:
            if fd >= 0:
                os.close(fd)


def _open_fifo(path: Path) -> int:
    """Open a fifo that somebody reads: to wait for a reader would hold up the feed."""
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(fd, True)
    return fd


def _write(fd: int, batch: Batch[Telemetry]) -> None:
    write_all(fd, join_lines(map(_encode, batch)))
