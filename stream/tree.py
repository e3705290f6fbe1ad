"""A program that was started as the leader of a tree, and what there is to know the tree by.

Nothing here waits, and nothing heavy is imported: a program may be started before there is a loop
to watch it (`process` does).
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from itertools import count
from threading import Thread

from msgspec import Struct

from stream.errors import SpawnError, os_reason
from stream.proctable import open_files, open_pidfd, ticks_now

ROOM = 12  #: descriptors that are free when a program is started; it takes five for good

_MARK = b"STREAM_TREE"  # in the environment of every process of a tree
_serial = count(1)


class Files(Struct, frozen=True):
    """What a program reads and writes, where that is given."""

    stdin: int = subprocess.DEVNULL
    stdout: int = subprocess.PIPE
    stderr: int = subprocess.PIPE


PIPES = Files()


def launch(
    argv: Sequence[str | bytes],
    *,
    env: Mapping[str, str] | Mapping[bytes, bytes],  # the system's words need not be text
    cwd: str | bytes,
    executable: str | bytes | None,
    files: Files,
    alone: bool,
) -> Tree:
    """In a session of its own. Raises SpawnError."""
    mark = f"{os.getpid()}.{next(_serial)}"
    moment = ticks_now()
    own_env = {os.fsencode(key): os.fsencode(value) for key, value in env.items()}
    own_env[_MARK] = mark.encode()  # also where a tree is inside of another one
    try:
        _check_room()
        leader = subprocess.Popen(  # it waits for the exec, half a millisecond
            argv,
            executable=executable,
            env=own_env,
            cwd=cwd,
            stdin=files.stdin,
            stdout=files.stdout,
            stderr=files.stderr,
            bufsize=0,
            start_new_session=True,
        )
    except OSError as error:
        raise spawn_error(error, cwd) from None
    return Tree(leader, mark, alone, moment)


def spawn_error(error: OSError, cwd: str | bytes) -> SpawnError:
    """What could not be started is known: only what else is in the way is named."""
    place = f"{os.fsdecode(error.filename)}: " if error.filename in (cwd, os.devnull) else ""
    return SpawnError(f"{place}{os_reason(error)}", error.errno or 0)


def _check_room() -> None:
    """To look at processes takes descriptors: who starts one leaves enough to find its children."""
    opened: list[int] = []
    try:
        for _ in range(ROOM):
            opened += [os.dup(2)]
    finally:
        for fd in opened:
            os.close(fd)


class Tree:
    """A leader and what descends from it."""

    def __init__(self, leader: subprocess.Popen[bytes], mark: str, alone: bool, start: int) -> None:
        self.leader = leader
        self.mark = _MARK + b"=" + mark.encode()
        self.alone = alone  # nobody else's orphan can come to us at any time of its life
        self._outputs = [pipe for pipe in (leader.stdout, leader.stderr) if pipe is not None]
        self.pipes = tuple(pipe.fileno() for pipe in self._outputs)
        for pipe in self.pipes:
            os.set_blocking(pipe, False)
        self._began = time.monotonic()
        self.claimed: set[tuple[int, int]] = set()  # (pid, start time) of known members
        self.start = start
        self.exit_fd = _exit_fd(leader)  #: readable once the leader has ended
        self.tracer: tuple[int, int] | None = None  # follows the tree, and is not of it
        self.is_clean = False  # it was looked, and nobody is left

    @property
    def age(self) -> float:
        return time.monotonic() - self._began

    @property
    def is_over(self) -> bool:
        """The leader has ended, and is reaped."""
        return self.leader.poll() is not None

    def pipe_names(self) -> set[str]:
        return {name for fd in self.pipes for name in open_files("self", fd)}

    def close(self) -> None:
        for pipe in self._outputs:
            pipe.close()
        os.close(self.exit_fd)


def _exit_fd(leader: subprocess.Popen[bytes]) -> int:
    pidfd = open_pidfd(leader.pid)
    if pidfd is not None:
        return pidfd
    # Where there are none, a thread waits, and lets go of a pipe.
    read, write = os.pipe()

    def wait() -> None:
        leader.wait()
        os.close(write)

    Thread(target=wait, daemon=True).start()
    return read


def send_group(tree: Tree, number: int) -> bool:
    """To the leader's process group, as a terminal would. Whether anyone is in it."""
    try:
        os.killpg(tree.leader.pid, number)
    except (ProcessLookupError, PermissionError):  # macOS: permission, where all are zombies
        return False
    return True
