"""An agent's output, to a file and on to whoever reads ours, as it comes and byte for byte.

A thread for each pipe reads, writes, digests and hands on, without a switch to another one.
Only a reader that may keep us waiting has a thread of its own, that can be left behind.
"""

from __future__ import annotations

import fcntl
import os
import select
import stat
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Condition, Thread

from anyio import to_thread

from stream.recorder.outputs import Output
from stream.system import kernel_now, write_all

BLOCK = 1 << 18
PIPE = 1 << 20  #: bytes that a pipe may hold, where a user may have that
AHEAD = 4  #: blocks that are kept before the reader of our output has them
_REST = 256  #: reads at most of a pipe that somebody beyond the tree still holds
_F_SETPIPE_SZ = 1031


class Relay:
    """On to one of our own outputs. Whoever reads it sets the pace; that nobody reads it any more
    is no reason to stop recording."""

    def __init__(self, fd: int) -> None:
        self.lost = 0
        self._fd = fd
        self._given_up = False
        self._blocks: deque[bytes] = deque()
        self._changed = Condition()
        self._thread: Thread | None = None
        self._may_wait = not stat.S_ISREG(os.fstat(fd).st_mode)

    def put(self, block: bytes) -> None:
        if not self._may_wait:
            self._put_now(block)
            return
        with self._changed:
            if self._thread is None:
                self._thread = Thread(target=self._hand_on, daemon=True)
                self._thread.start()
            while len(self._blocks) >= AHEAD and not self._given_up:
                self._changed.wait()
            if self._given_up:
                self.lost += len(block)
            else:
                self._blocks.append(block)
                self._changed.notify_all()

    def finish(self) -> None:
        """Waits until everything is handed on, or given up."""
        with self._changed:
            while self._blocks and not self._given_up:
                self._changed.wait()

    def give_up(self) -> None:
        """On a reader that does not read: the thread that waits for it is left behind."""
        with self._changed:
            self._given_up = True
            self.lost += sum(map(len, self._blocks))
            self._blocks.clear()
            self._changed.notify_all()

    def _put_now(self, block: bytes) -> None:
        if not self._given_up:
            try:
                write_all(self._fd, block)
                return
            except OSError:  # its disk is full
                self._given_up = True
        self.lost += len(block)

    def _hand_on(self) -> None:
        while True:
            with self._changed:
                while not self._blocks and not self._given_up:
                    self._changed.wait()
                if self._given_up:
                    return
                block = self._blocks[0]
            try:
                write_all(self._fd, block)
            except OSError:  # the reader is gone, or its disk is full
                self.give_up()
                return
            with self._changed:
                if self._blocks:
                    self._blocks.popleft()
                self._changed.notify_all()


class Tee:
    def __init__(
        self,
        pipe: int,
        output: Output,
        relay: Relay | None,
        hear: Callable[[bytes, int], None] | None = None,
    ) -> None:
        self._pipe = pipe
        self._output = output
        self._relay = relay
        self._hear = hear  # told what came, and when: monotonic ns
        self._wake, self._waker = os.pipe()
        self._has_ended = False
        os.set_blocking(pipe, False)
        if sys.platform == "linux":
            with suppress(OSError):  # above what a user may have
                fcntl.fcntl(pipe, _F_SETPIPE_SZ, PIPE)

    async def run(self) -> None:
        """Until nobody can write any more, or `end` was called and the pipe is empty."""
        try:
            await to_thread.run_sync(self._pump)
        finally:
            self._has_ended = True
            os.close(self._wake)
            os.close(self._waker)

    def end(self) -> None:
        """The tree is over: what is in the pipe is all there will be."""
        if not self._has_ended:
            os.write(self._waker, b".")

    def _pump(self) -> None:
        rest = _REST
        is_over = False
        while rest:
            try:
                block = os.read(self._pipe, BLOCK)
            except BlockingIOError:
                if is_over:
                    break
                ready, _, _ = select.select([self._pipe, self._wake], [], [])
                is_over = self._wake in ready
                continue
            if not block:
                break
            rest -= is_over
            if self._hear is not None:
                self._hear(block, kernel_now())
            self._output.write(block)
            if self._relay is not None:
                self._relay.put(block)
        if self._relay is not None:
            self._relay.finish()
