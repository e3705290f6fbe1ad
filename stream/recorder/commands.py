"""The command log of a run: what the wrappers tell, written down as it comes."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec
from anyio import CancelScope, wait_readable
from msgspec import UNSET, Struct, UnsetType, field

from stream.errors import os_reason
from stream.recorder.disclosure import Disclosure, readable
from stream.recorder.journal import Journal
from stream.recorder.outputs import Kept
from stream.recorder.trace import Clock
from stream.recorder.wrappers import Called, CallReader, Wrappers
from stream.records.command import CommandRecord

PASSED_BY = "the wrappers were taken away or changed"
MOST_VOUCHED = 50_000  #: lines of which it is looked up who wrote them
_BLOCK = 1 << 12
_encode = msgspec.json.Encoder().encode


class Heard(Struct):
    """What came from the wrappers, for who knows who wrote it."""

    received: int = 0  #: bytes
    #: of each line of the log: how many bytes had come with each of its pieces
    lines: list[tuple[int, ...]] = field(default_factory=list)


class Commands(Struct):
    """What the kernel says of the calls of wrapped programs."""

    is_complete: bool  #: nothing of it is missing
    vouched: Collection[int] = ()  #: lines of the command log that a wrapper was seen to write
    wrappers: int = 0  #: that ran
    programs: Mapping[str, int] = {}  #: by name: those that ran and were no wrapper's
    tests: Mapping[str, int] = {}  #: by name: runs of tests among those


class CommandLog:
    def __init__(
        self, path: Path, wrappers: Wrappers, disclosure: Disclosure, clock: Clock
    ) -> None:
        self.count = 0
        self.heard = Heard()
        self.categories: Counter[str] = Counter()
        self._path = path
        self._wrappers = wrappers
        self._disclosure = disclosure
        self._clock = clock
        self._reader = CallReader()
        self._journal: Journal | None = None
        self._lost = 0
        self._trouble = ""  #: why there is no journal
        self._wait: CancelScope | None = None
        self._is_after = self._is_over = False
        self.is_passed_by = False  #: somebody took the wrappers away, or changed them
        # Open for both ends: it never ends, and no writer waits for us to open it.
        self._fd = os.open(wrappers.fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def names(self) -> set[str]:
        """Programs that have a wrapper."""
        return {*self._wrappers.programs}

    @property
    def fd(self) -> int:
        """What the wrappers write to."""
        return self._fd

    @property
    def lost(self) -> int:
        """Calls of which there was too little, or for which there was no room."""
        return self._reader.lost + self.unwritten

    @property
    def unwritten(self) -> int:
        """Those for which there was no room. Of the others nobody knows whether they were any."""
        return self._lost + (len(self._journal.waiting) if self._journal else 0)

    @property
    def trouble(self) -> str:
        if self._journal is None:
            return self._trouble
        return self._journal.trouble if self._journal.waiting else ""

    def kept(self) -> Kept:
        """What was written, whatever the file holds by now."""
        assert self._journal is not None
        return Kept(self._journal.sha256, self._journal.size, self._journal.size, 0)

    @property
    def is_made(self) -> bool:
        return self._journal is not None

    @property
    def is_ours(self) -> bool:
        return self._journal is None or self._journal.is_ours

    async def run(self) -> None:
        while True:
            if not self._is_over:
                with CancelScope() as self._wait:
                    await wait_readable(self._fd)
            self._read()
            if self._is_over:
                self._reader.finish()
                return

    def agent_is_over(self) -> None:
        """What has come until now was called before; what comes now, afterwards."""
        self._read()
        self._is_after = True

    def end(self) -> None:
        """Nobody is left to call."""
        self._is_over = True
        if self._wait is not None:
            self._wait.cancel()

    def close(self) -> None:
        os.close(self._fd)
        if self._journal is not None:
            self._journal.close()

    def _read(self) -> None:
        """What there is: a fifo holds sixteen blocks at most, and who floods it may wait."""
        for _ in range(16):
            try:
                data = os.read(self._fd, _BLOCK)
            except BlockingIOError:
                return
            self.heard.received += len(data)
            now = time.monotonic_ns()
            for called in self._reader.feed(data):
                self._write(called, now)

    def _write(self, called: Called, now: int) -> None:
        if self._journal is None:  # a log that nobody wrote to is not there
            try:
                self._journal = Journal(self._path)
            except OSError as error:  # which must not end what is recorded
                self._trouble = os_reason(error)
                self._lost += 1
                return
        self.count += 1
        if len(self.heard.lines) < MOST_VOUCHED:
            self.heard.lines.append(called.ends)
        self.categories[called.category] += 1
        words = [os.fsencode(called.name), *called.words]
        record = CommandRecord(
            time=self._clock.text(now),
            monotonic_ns=now,
            pid=called.pid,
            parent=called.parent,
            name=readable(called.name),
            program=readable(self._wrappers.programs.get(called.name, "unknown")),
            cwd=self._disclosure.name(called.cwd),
            argv=self._disclosure.words(words),
            argv_base64=self._exact(words),
            category=called.category,
            after_exit=self._is_after,
        )
        self._journal.append(_encode(record))

    def _exact(self, words: list[bytes]) -> list[str] | UnsetType:
        """Only where nothing is held back: in base64 a secret would not be found."""
        if self._disclosure.mode != "full":
            return UNSET
        try:
            b"".join(words).decode()
        except UnicodeDecodeError:
            from base64 import b64encode

            return [b64encode(word).decode() for word in words]
        return UNSET
