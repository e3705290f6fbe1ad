"""Small scripts put first on an agent's PATH: each tells what it was called with, then becomes
the program that it stands for.

They write to a fifo, in pieces that the kernel keeps whole, so that nothing of a command line
touches the disk before its secrets are taken out. One that cannot write still becomes its
program. What is not called by name, or not through this PATH, is not seen.

The command log of a run: what the wrappers tell, written down as it comes."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import msgspec
from anyio import CancelScope, wait_readable
from msgspec import UNSET, Struct, UnsetType, field

from stream.errors import encodable, os_reason
from stream.evidence.command_lines import command_category_of
from stream.files.append import AppendFile, RecordedFile
from stream.process.machine import Clock
from stream.process.wrapper_scripts import PIECE, Wrappers
from stream.records.run import CommandRecord
from stream.redaction.policy import CapturePolicy

MOST_HELD = 4 << 20  #: bytes of one unfinished command: more than a command line can have
MOST_PIECES = 2 * MOST_HELD // PIECE  #: of one command: more than it can have
MOST_BEGUN = 1000  #: unfinished commands, and
MOST_IN_ALL = 64 << 20  #: bytes of them
_SEPARATOR = b"\x1f"


class WrapperCall(Struct):
    """One wrapper was called."""

    pid: int
    parent: int
    name: str
    cwd: bytes
    words: list[bytes]  #: without the program's name
    ends: tuple[int, ...] = ()  #: how many bytes had come with each piece; empty: too many pieces

    @property
    def category(self) -> str:
        """The category of the program that was called."""
        return command_category_of(self.name, self.words)


class WrapperCallReader:
    """Reads calls from what the wrappers wrote to the fifo. What is no call is counted."""

    def __init__(self) -> None:
        self.lost = 0
        self._rest = b""
        self._at = 0  # bytes up to the rest
        self._begun: dict[int, bytearray] = {}
        self._ends: dict[int, list[int]] = {}  # of the pieces of each

    def feed(self, data: bytes) -> Iterator[WrapperCall]:
        """Yield the wrapper calls that are complete with these bytes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._at += len(line) + 1
            called = self._read_call_line(line)
            if called is not None:
                yield called
        if len(self._rest) > MOST_HELD:
            self._at += len(self._rest)
            self._rest = b""
            self.lost += 1

    def finish(self) -> None:
        """Count the wrappers that were ended in the middle of a call as lost."""
        self.lost += len(self._begun) + bool(self._rest)

    def _read_call_line(self, line: bytes) -> WrapperCall | None:
        """Return the call that a line from a wrapper completes; keep a piece of a longer one."""
        pid, _, rest = line.partition(b" ")
        last, space, piece = rest.partition(b" ")
        if not _is_pid(pid) or last not in (b"0", b"1") or not space:
            self.lost += 1
            return None
        text = self._begun.pop(int(pid), bytearray())
        ends = self._ends.pop(int(pid), [])
        text += piece
        ends.append(self._at)
        if last == b"0":
            self._hold_unfinished_call(int(pid), text, ends)
            return None
        words = bytes(text).split(_SEPARATOR)
        if len(words) < 4 or words.pop() or not _is_pid(words[1]):
            self.lost += 1
            return None
        name, parent, cwd, *arguments = map(_unescaped_word, words)
        ends_told = (*ends,) if len(ends) <= MOST_PIECES else ()
        return WrapperCall(int(pid), int(parent), os.fsdecode(name), cwd, arguments, ends_told)

    def _hold_unfinished_call(self, pid: int, text: bytearray, ends: list[int]) -> None:
        """Hold an unfinished call, up to a limit: what is no command must not fill our memory."""
        if len(text) > MOST_HELD:
            self.lost += 1
            return
        self._begun[pid], self._ends[pid] = text, ends[: MOST_PIECES + 1]
        held = sum(map(len, self._begun.values()))
        while len(self._begun) > MOST_BEGUN or held > MOST_IN_ALL:
            oldest = next(iter(self._begun))  # who was silent for longest
            held -= len(self._begun.pop(oldest))
            del self._ends[oldest]
            self.lost += 1


def _is_pid(word: bytes) -> bool:
    return word.isdigit() and len(word) <= 10


def _unescaped_word(word: bytes) -> bytes:
    if b"%" not in word:
        return word
    return word.replace(b"%1F", b"\x1f").replace(b"%0A", b"\n").replace(b"%25", b"%")


PASSED_BY = "the wrappers were taken away or changed"
MOST_VERIFIED = 50_000  #: lines of which it is looked up who wrote them
_BLOCK = 1 << 12
_encode = msgspec.json.Encoder().encode


class WrapperOutput(Struct):
    """What came from the wrappers, for the feed, which saw who wrote it."""

    received: int = 0  #: bytes
    #: of each line of the log: how many bytes had come with each of its pieces
    lines: list[tuple[int, ...]] = field(default_factory=list)


class ObservedCommands(Struct):
    """What the kernel says of the calls of wrapped programs."""

    is_complete: bool  #: nothing of it is missing
    verified: Collection[int] = ()  #: lines of the command log that a wrapper was seen to write
    wrappers: int = 0  #: that ran
    programs: Mapping[str, int] = {}  #: by name: those that ran and were no wrapper's
    tests: Mapping[str, int] = {}  #: by name: runs of tests among those


class CommandLog:
    """Writes the command log of a run from what the wrappers report."""

    def __init__(
        self, path: Path, wrappers: Wrappers, capture_policy: CapturePolicy, clock: Clock
    ) -> None:
        self.count = 0
        self.wrapper_output = WrapperOutput()
        self.categories: Counter[str] = Counter()
        self._path = path
        self._wrappers = wrappers
        self._policy = capture_policy
        self._clock = clock
        self._reader = WrapperCallReader()
        self._journal: AppendFile | None = None
        self._lost = 0
        self._trouble = ""  #: why there is no journal
        self._wait: CancelScope | None = None
        self._is_after = self._is_over = False
        self.is_passed_by = False  #: somebody took the wrappers away, or changed them
        # Open for both ends: it never ends, and no writer waits for us to open it.
        self.fd = os.open(wrappers.fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def names(self) -> set[str]:
        """Programs that have a wrapper."""
        return {*self._wrappers.programs}

    @property
    def lost(self) -> int:
        """Calls of wrappers of which too little came, or for which there was no room."""
        return self._reader.lost + self.unwritten

    @property
    def unwritten(self) -> int:
        """Calls for which there was no room. Of the others nobody knows whether they were any."""
        return self._lost + (len(self._journal.waiting) if self._journal else 0)

    @property
    def trouble(self) -> str:
        """Say why calls could not be written; empty where they could."""
        if self._journal is None:
            return self._trouble
        return self._journal.trouble if self._journal.waiting else ""

    def recorded_file(self) -> RecordedFile:
        """Return the command log as it was written, whatever the file holds by now."""
        assert self._journal is not None
        return self._journal.recorded()

    @property
    def has_records(self) -> bool:
        """Return whether a wrapper reported a call, so that there is a log."""
        return self._journal is not None

    @property
    def is_unchanged(self) -> bool:
        """Return whether nobody else removed, replaced or wrote into the log."""
        return self._journal is None or self._journal.is_as_written()

    async def run(self) -> None:
        """Read wrapper calls until nobody is left to make one."""
        while True:
            if not self._is_over:
                with CancelScope() as self._wait:
                    await wait_readable(self.fd)
            self._read_fifo()
            if self._is_over:
                self._reader.finish()
                return

    def mark_agent_end(self) -> None:
        """Note that the agent has ended: calls that come from now on are not its own."""
        self._read_fifo()
        self._is_after = True

    def end(self) -> None:
        """Say that nobody is left to call a wrapper."""
        self._is_over = True
        if self._wait is not None:
            self._wait.cancel()

    def close(self) -> None:
        """Close the fifo and the log."""
        os.close(self.fd)
        if self._journal is not None:
            self._journal.close()

    def _read_fifo(self) -> None:
        """Read what the fifo holds: sixteen blocks at most, and who floods it may wait."""
        for _ in range(16):
            try:
                data = os.read(self.fd, _BLOCK)
            except BlockingIOError:
                return
            self.wrapper_output.received += len(data)
            now = time.monotonic_ns()
            for called in self._reader.feed(data):
                self._write_command(called, now)

    def _write_command(self, called: WrapperCall, now: int) -> None:
        """Write a call that a wrapper reported to the command log, without its secrets."""
        if self._journal is None:  # a log that nobody wrote to is not there
            try:
                self._journal = AppendFile(self._path).open()
            except OSError as error:  # which must not end what is recorded
                self._trouble = os_reason(error)
                self._lost += 1
                return
        self.count += 1
        if len(self.wrapper_output.lines) < MOST_VERIFIED:
            self.wrapper_output.lines.append(called.ends)
        self.categories[called.category] += 1
        words = [os.fsencode(called.name), *called.words]
        record = CommandRecord(
            time=self._clock.timestamp(now),
            monotonic_ns=now,
            pid=called.pid,
            parent=called.parent,
            name=encodable(called.name),
            program=encodable(self._wrappers.programs.get(called.name, "unknown")),
            cwd=self._policy.redact_name(called.cwd),
            argv=self._policy.redact_words(words),
            argv_base64=self._exact_argv(words),
            category=called.category,
            after_exit=self._is_after,
        )
        self._journal.append_lines(_encode(record))

    def _exact_argv(self, words: list[bytes]) -> list[str] | UnsetType:
        """Only where nothing is held back: in base64 a secret would not be found."""
        if self._policy.mode != "full":
            return UNSET
        try:
            b"".join(words).decode()
        except UnicodeDecodeError:
            from base64 import b64encode

            return [b64encode(word).decode() for word in words]
        return UNSET
