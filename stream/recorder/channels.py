"""The ways in which an agent tells of its tool calls, beside its stdout, while a run lasts.

Always: the event log that the environment names. Where it was asked for: Claude Code's hooks, or
its OpenTelemetry. What is written there is in the clear: only this user can read it, and the
guard of the run removes it, whatever becomes of the recorder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from anyio import create_task_group, sleep

from stream.errors import number
from stream.evidence.unused import Unused
from stream.files import open_new
from stream.recorder.collector import Collector
from stream.recorder.hooks import make_hooks
from stream.system import kernel_now

Sdk = Literal["stream-json", "hooks", "otel"]
Hear = Callable[[bytes, int], None]
_TURN = 1 << 20  #: bytes of a file that are read at a look
_BLOCK = 1 << 16
LOOK = 0.02  #: seconds between two looks at a file
SDK_LOG = "sdk-events.ndjson"


class Channels:
    """`home`: the folder that the guard removes. `hear`: told what came on a channel, and when it
    was read: monotonic ns."""

    def __init__(self, home: Path, sdk: Sdk, hear: Mapping[str, Hear]) -> None:
        self.log = home / SDK_LOG
        self._home = home
        self._sdk = sdk
        self._hear = hear
        self._followed: list[_Followed] = []
        self._collector = Collector(hear["otel"]) if sdk == "otel" else None
        self._is_over = False
        self._missed = -1
        self.helpers: tuple[str, ...] = ()  #: programs that the hooks run

    def open(self) -> dict[bytes, bytes]:
        """What the agent's environment must say of what was asked for. Raises OSError."""
        self._home.mkdir(mode=0o700, exist_ok=True)
        fd = open_new(self.log)
        self._followed.append(_Followed("log", fd, self._hear["log"]))
        if self._collector is not None:
            return self._collector.open()
        if self._sdk == "hooks":
            hooks = make_hooks(self._home)
            self.helpers = hooks.helpers
            fd = os.open(hooks.log, os.O_RDONLY | os.O_CLOEXEC)
            self._followed.append(_Followed("hooks", fd, self._hear["hooks"]))
            self._missed = os.open(hooks.missed, os.O_RDONLY | os.O_CLOEXEC)
            return hooks.environment
        return {}

    def files(self) -> dict[str, int]:
        """Descriptors, by channel."""
        return {one.channel: one.fd for one in self._followed}

    async def run(self) -> None:
        """Until `end`."""
        async with create_task_group() as tasks:
            if self._collector is not None:
                tasks.start_soon(self._collector.run)
            while not self._is_over:
                self._look()
                await sleep(LOOK)

    def end(self) -> None:
        """Nobody is left who could write."""
        self._is_over = True
        if self._collector is not None:
            self._collector.end()

    def finish(self) -> Iterator[Unused]:
        """Reads the rest of it, and says what was lost."""
        for one in self._followed:
            one.look(os.fstat(one.fd).st_size - one.received)
            yield from one.unused()
        if self._missed >= 0 and (count := os.fstat(self._missed).st_size):
            sentence = f"{number(count, 'hook')} did not come to tell what had been heard"
            yield Unused("hooks", "missed", count, sentence)
        if self._collector is not None:
            yield from self._collector.unused()

    def close(self) -> None:
        while self._followed:
            os.close(self._followed.pop().fd)
        if self._missed >= 0:
            os.close(self._missed)
            self._missed = -1
        if self._collector is not None:
            self._collector.close()

    def _look(self) -> None:
        for one in self._followed:
            one.look(_TURN)


class _Followed:
    """A file that others append to."""

    def __init__(self, channel: str, fd: int, hear: Hear) -> None:
        self.channel = channel
        self.fd = fd
        self.received = 0
        self._hear = hear

    def look(self, most: int) -> None:
        """Who writes without end gets no more than its turn."""
        while most > 0 and (block := os.read(self.fd, min(most, _BLOCK))):
            most -= len(block)
            self.received += len(block)
            self._hear(block, kernel_now())

    def unused(self) -> Iterator[Unused]:
        """What was taken back before it was heard."""
        if os.fstat(self.fd).st_size < self.received:
            sentence = f"the {self.channel}: what was told there was made shorter"
            yield Unused(self.channel, "shortened", 1, sentence)
