"""Hooks for Claude Code that put down what they are told, and nothing else.

A hook first reads all of it, and then appends it to a log as one line, under a lock. Whatever
happens to it, the agent's call goes on; one that is ended in the midst of its line costs that
line and no other. One that does not come to its line leaves a mark that it was there.

The ways in which an agent tells of its tool calls, beside its stdout, while a run lasts.

Always: the event log that the environment names. Where it was asked for: Claude Code's hooks, or
its OpenTelemetry. What is written there is in the clear: only this user can read it, and the
guard of the run removes it, whatever becomes of the recorder.

A log in which somebody else writes down decisions while a run lasts.

What was in it before belongs to other runs: where the log ended when the run began parts them.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path

from anyio import create_task_group, sleep
from msgspec import Struct

from stream.errors import number, os_reason
from stream.evidence.claude_formats import Sdk
from stream.evidence.markers import POLICY, DroppedInput
from stream.files.append import open_new
from stream.pipeline import Out
from stream.process.machine import kernel_now
from stream.sources.collector import Collector

EVENTS = ("PreToolUse", "PostToolUse", "PostToolUseFailure")
LIMIT = 10  #: seconds of a hook, after which the agent goes on without it
_NEEDS = ("tr", "flock")

# No bash: it looks for a terminal, a user and a locale, all of which a kernel feed would tell of
# the agent. Of a line before that has no end, the newline that comes first is the end.
_SCRIPT = """#!/bin/sh
{{
  said=$({tr} '\\n' ' ')
  {{ {flock} -w 5 9 && printf '\\n%s\\n' "$said" >&9; }} 9>>{log} || echo >>{missed}
}} >/dev/null 2>&1
exit 0
"""


class Hooks(Struct, frozen=True):
    log: Path
    missed: Path  #: a byte of each that did not write its line
    program: Path
    settings: Path
    helpers: tuple[str, ...]

    @property
    def environment(self) -> dict[bytes, bytes]:
        """The variables that tell an agent where the hook and its settings are."""
        return {
            b"STREAM_HOOK": os.fsencode(self.program),
            b"STREAM_HOOK_SETTINGS": os.fsencode(self.settings),
        }


def missing_programs() -> list[str]:
    """Programs that they need, and that are not here."""
    return [name for name in _NEEDS if shutil.which(name) is None]


def make_hooks(home: Path) -> Hooks:
    """In a folder that is there. Who makes them removes it. Raises OSError."""
    programs = {name: shutil.which(name) or name for name in _NEEDS}
    hooks = Hooks(
        home / "hooks.ndjson",
        home / "hooks.missed",
        home / "hook",
        home / "hooks.json",
        tuple(programs.values()),
    )
    names = {**programs, "log": str(hooks.log), "missed": str(hooks.missed)}
    script = _SCRIPT.format(**{name: shlex.quote(path) for name, path in names.items()})
    command = {"type": "command", "command": shlex.quote(str(hooks.program)), "timeout": LIMIT}
    every = [{"matcher": "*", "hooks": [command]}]
    settings = {"hooks": dict.fromkeys(EVENTS, every)}
    for path, text, mode in (
        (hooks.log, "", 0o600),
        (hooks.missed, "", 0o600),
        (hooks.program, script, 0o700),
        (hooks.settings, json.dumps(settings), 0o600),
    ):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(fd, "wb") as file:
            file.write(os.fsencode(text))
    return hooks


OnBlock = Callable[[bytes, int], None]
_TURN = 1 << 20  #: bytes of a file that are read at a look
_BLOCK = 1 << 16
LOOK = 0.02  #: seconds between two looks at a file
SDK_LOG = "sdk-events.ndjson"


class Channels:
    """Read the channels on which an agent tells of its tool calls.

    They lie in `home`, which the guard removes. `on_block` names, by channel, who is given what
    came there and when it was read (monotonic ns)."""

    def __init__(self, home: Path, sdk: Sdk, on_block: Mapping[str, OnBlock]) -> None:
        self.log = home / SDK_LOG
        self._home = home
        self._sdk = sdk
        self._on_block = on_block
        self._followed: list[_Followed] = []
        self._collector = Collector(on_block["otel"]) if sdk == "otel" else None
        self._is_over = False
        self._missed = -1
        self.helpers: tuple[str, ...] = ()  #: programs that the hooks run

    def open(self) -> dict[bytes, bytes]:
        """What the agent's environment must say of what was asked for. Raises OSError."""
        self._home.mkdir(mode=0o700, exist_ok=True)
        fd = open_new(self.log)
        self._followed.append(_Followed("log", fd, self._on_block["log"]))
        if self._collector is not None:
            return self._collector.open()
        if self._sdk == "hooks":
            hooks = make_hooks(self._home)
            self.helpers = hooks.helpers
            fd = os.open(hooks.log, os.O_RDONLY | os.O_CLOEXEC)
            self._followed.append(_Followed("hooks", fd, self._on_block["hooks"]))
            self._missed = os.open(hooks.missed, os.O_RDONLY | os.O_CLOEXEC)
            return hooks.environment
        return {}

    def files(self) -> dict[str, int]:
        """Descriptors, by channel."""
        return {one.channel: one.fd for one in self._followed}

    async def run(self, out: Out, /) -> None:
        """Read the channels until `end`. What comes goes to `on_block` at once: when it came
        counts, and a queue would make it late."""
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

    def finish(self) -> Iterator[DroppedInput]:
        """Reads the rest of it, and says what was lost."""
        for one in self._followed:
            one.look(os.fstat(one.fd).st_size - one.received)
            yield from one.unused()
        if self._missed >= 0 and (count := os.fstat(self._missed).st_size):
            whose = "its" if count == 1 else "their"
            sentence = f"{number(count, 'hook invocation')} did not record {whose} input"
            yield DroppedInput("hooks", "missed", count, sentence)
        if self._collector is not None:
            yield from self._collector.unused()

    def close(self) -> None:
        """Close what is open."""
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

    def __init__(self, channel: str, fd: int, on_block: OnBlock) -> None:
        self.channel = channel
        self.fd = fd
        self.received = 0
        self._on_block = on_block

    def look(self, most: int) -> None:
        """Who writes without end gets no more than its turn."""
        while most > 0 and (block := os.read(self.fd, min(most, _BLOCK))):
            most -= len(block)
            self.received += len(block)
            self._on_block(block, kernel_now())

    def unused(self) -> Iterator[DroppedInput]:
        """What was taken back before it was heard."""
        if os.fstat(self.fd).st_size < self.received:
            sentence = f"the {self.channel}: what was told there was made shorter"
            yield DroppedInput(self.channel, "shortened", 1, sentence)


_DECISION_BLOCK = 1 << 20
_MOST = 64 << 20  #: bytes: whoever writes without end does not keep a run from its end
_SILENCE = 2.0  #: seconds that a pipe may say nothing while it has a writer
_TAIL = 1 << 12  #: bytes before the end by which it is known again


class DecisionLog:
    """Made when the run begins, and read when it is over."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1  # held, so that no other file can get its number
        self._size = 0
        self._tail = b""
        self.unused: list[DroppedInput] = []
        self.warnings: list[str] = []
        try:
            # A pipe is not opened before it is read: that would take its writer's reader away.
            if stat.S_ISREG(path.stat().st_mode):
                self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                self._size = os.fstat(self._fd).st_size
                self._tail = self._tail_in(self._fd)
        except FileNotFoundError:
            pass  # the first decision makes it
        except OSError as error:
            self._record_drop("unread", os_reason(error))
        except ValueError as error:  # a NUL in the path
            self._record_drop("unread", str(error))

    def files(self) -> dict[str, int]:
        """Its descriptor, by channel, where a file was there when the run began."""
        return {POLICY: self._fd} if self._fd >= 0 else {}

    def read(self) -> Iterator[bytes]:
        """Give what was written there since, in blocks."""
        if self.unused:
            return
        try:
            # Whatever lies there by now, nothing of it can keep the run from its end.
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(fd, "rb", buffering=0) as file:
                beginning = self._beginning(fd)
                yield from self._since(file, beginning)
        except OSError as error:
            self._record_drop("unread", os_reason(error))

    def _since(self, file: FileIO, beginning: int) -> Iterator[bytes]:
        """Give what a file holds behind `beginning` at this moment, or what comes out of a pipe."""
        found = os.fstat(file.fileno())
        is_file = stat.S_ISREG(found.st_mode)
        rest, is_more = _MOST, True  # what is no file may have no end
        if is_file:
            file.seek(beginning)
            written = found.st_size - beginning
            rest, is_more = min(written, _MOST), written > _MOST
            if beginning and not written:
                what = f"--policy {self._path}: no decisions were written during the run"
                self.warnings.append(f"{what} (earlier lines are ignored)")
        while rest > 0:
            if not is_file and not select.select([file], [], [], _SILENCE)[0]:
                break  # nobody writes
            block = file.read(min(rest, _DECISION_BLOCK))
            if not block:
                break
            rest -= len(block)
            yield block
        if not rest and is_more:
            self._record_drop("unread", f"more than {_MOST >> 20} MB came out")

    def close(self) -> None:
        """Close what is open."""
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def _beginning(self, fd: int) -> int:
        """Return where what was written since begins: 0 where that cannot be told."""
        if self._fd < 0:
            return 0
        whole = "all of it is taken for decisions of this run"
        if not os.path.samestat(os.fstat(fd), os.fstat(self._fd)):
            self._record_drop("replaced", f"another file took its place meanwhile, and {whole}")
            return 0
        if os.fstat(fd).st_size < self._size or self._tail_in(fd) != self._tail:
            self._record_drop("shortened", f"what was in it before was taken away, and {whole}")
            return 0
        return self._size

    def _tail_in(self, fd: int) -> bytes:
        start = max(0, self._size - _TAIL)
        return os.pread(fd, self._size - start, start)

    def _record_drop(self, why: str, sentence: str) -> None:
        self.unused.append(DroppedInput(POLICY, why, 1, f"--policy {self._path}: {sentence}"))
