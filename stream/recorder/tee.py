"""An agent's output, to a file and on to whoever reads ours, as it comes and byte for byte."""

from __future__ import annotations

import fcntl
import os
import select
import sys
from contextlib import suppress

from anyio import CancelScope, to_thread, wait_readable

from stream.recorder.outputs import Output

BLOCK = 1 << 20
_REST = 64  #: reads at most of a pipe that somebody beyond the tree still holds
_F_SETPIPE_SZ = 1031


class Relay:
    """On to one of our own outputs. Whoever reads it sets the pace; that nobody reads it any more
    is no reason to stop recording."""

    def __init__(self, fd: int) -> None:
        self.lost = 0
        self._fd: int | None = fd
        self._scope: CancelScope | None = None

    async def write(self, chunk: bytes) -> None:
        if self._fd is None:
            self.lost += len(chunk)
            return
        with CancelScope() as self._scope:
            try:
                await to_thread.run_sync(_write_all, self._fd, chunk, abandon_on_cancel=True)
            except OSError:  # the reader is gone, or the file is full
                self._fd = None
        if self._scope.cancelled_caught:
            self._fd = None
        if self._fd is None:
            self.lost += len(chunk)

    def give_up(self) -> None:
        """On a reader that does not read: its thread is left behind."""
        self._fd = None
        if self._scope is not None:
            self._scope.cancel()


class Tee:
    def __init__(self, pipe: int, output: Output, relay: Relay | None) -> None:
        self._pipe = pipe
        self._output = output
        self._relay = relay
        self._wait: CancelScope | None = None
        self._is_over = False
        os.set_blocking(pipe, False)
        if sys.platform == "linux":
            with suppress(OSError):  # above what a user may have
                fcntl.fcntl(pipe, _F_SETPIPE_SZ, BLOCK)

    async def run(self) -> None:
        """Until nobody can write any more, or `end` was called and the pipe is empty."""
        rest = _REST
        while rest:
            if self._is_over:
                rest -= 1
            else:
                with CancelScope() as self._wait:
                    await wait_readable(self._pipe)
            try:
                chunk = os.read(self._pipe, BLOCK)
            except BlockingIOError:
                if self._is_over:
                    return
                continue
            if not chunk:
                return
            await to_thread.run_sync(self._output.write, chunk)
            if self._relay is not None:
                await self._relay.write(chunk)

    def end(self) -> None:
        """The tree is over: what is in the pipe is all there will be."""
        self._is_over = True
        if self._wait is not None:
            self._wait.cancel()


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # whoever shares the pipe with us has made it so
            select.select((), (fd,), ())
