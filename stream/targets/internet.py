"""Start the stand-in Internet, put programs into it, and count what arrives there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path

from anyio import Event, create_task_group, fail_after, wait_readable
from msgspec import Struct

from stream.errors import InternetError, os_reason, printable

SERVER = Path(__file__).parent / "stand_in.py"
PATIENCE = 10.0  #: seconds for the servers to start, or to answer
MOST_NONCES = 10_000  #: whose arrivals are kept; the oldest are forgotten
MOST_OF_ONE = 100  #: arrivals that are kept of one nonce
READ = 1 << 16
# A mount namespace is entered at its root.
_IN_FOLDER = 'cd "$0" && unset OLDPWD && exec "$@"'


class Arrival(Struct, frozen=True):
    """What arrived in the stand-in Internet: how, with which nonce, and where."""

    kind: str  #: tcp, udp, dns, http, connect or socks
    nonce: str
    address: str
    port: int


class StandInInternet:
    """A running stand-in Internet."""

    def __init__(self, servers: subprocess.Popen[bytes], enter: list[str]) -> None:
        self._servers = servers
        self._enter = enter
        self._arrivals: dict[str, list[Arrival]] = {}
        self._serial = count(1)
        self._synced: dict[str, Event] = {}
        self._unread = b""
        self._is_ready = False
        self._has_ended = False

    @property
    def pid(self) -> int:
        """The number of a process that is inside."""
        return self._servers.pid

    @property
    def enter(self) -> list[str]:
        """The words before a command that start it inside, in no certain folder."""
        return list(self._enter)

    def prefix(self, workdir: str) -> list[str]:
        """Return the words before a command that start it inside, in a folder, as the user that
        the caller is. Where it cannot be put inside, it is not started."""
        return [*self._enter, "/bin/sh", "-c", _IN_FOLDER, workdir]

    def arrivals(self, nonce: str) -> list[Arrival]:
        """Return what arrived with a nonce, the first MOST_OF_ONE of it. After `sync`, nothing
        that was sent before is missing."""
        return list(self._arrivals.get(nonce, ()))

    async def sync(self) -> None:
        """Wait until all that was sent before is counted. Raise InternetError if the servers are
        gone."""
        assert self._servers.stdin is not None
        word = f"sync {next(self._serial)}"
        self._synced[word] = synced = Event()
        try:
            with suppress(BrokenPipeError):  # their end is seen below
                self._servers.stdin.write(f"{word}\n".encode())
            with fail_after(PATIENCE):
                if not self._has_ended:
                    await synced.wait()
        except TimeoutError:
            raise InternetError("the stand-in Internet does not answer any more") from None
        finally:
            del self._synced[word]
        if self._has_ended:
            raise InternetError("the stand-in Internet has ended: somebody killed its servers")

    async def become_ready(self) -> None:
        """Wait until the servers listen, in namespaces that are not ours. Raise InternetError."""
        try:
            with fail_after(PATIENCE):
                while not (self._is_ready or self._has_ended):
                    await self._read_reports()
        except TimeoutError:
            raise _unavailable("its servers do not start") from None
        if self._has_ended:
            assert self._servers.stderr is not None
            said = self._servers.stderr.read(READ).decode(errors="replace").strip()
            raise _unavailable(printable(said.rpartition("\n")[2]) or "its servers have ended")
        # Whatever they believe: nothing may be started, nor arrive, anywhere else.
        for kind in ("net", "mnt"):
            if self._shares(kind):
                raise _unavailable(f"its {kind} namespace is the one outside")
        # Not reaped before the end: nobody else has this number.
        self._enter += ["--target", str(self._servers.pid), "--net", "--mount"]
        if not self._shares("user"):
            self._enter += ["--user", "--preserve-credentials"]

    async def follow(self) -> None:
        """Take what the servers report until they end."""
        while not self._has_ended:
            await self._read_reports()
        for synced in self._synced.values():
            synced.set()

    async def _read_reports(self) -> None:
        assert self._servers.stdout is not None
        await wait_readable(self._servers.stdout)
        data = os.read(self._servers.stdout.fileno(), READ)
        self._has_ended = not data
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._take_report(line.decode())

    def _take_report(self, line: str) -> None:
        word, *rest = line.split(" ")
        if word == "arrival":
            kind, nonce, address, port = rest
            if nonce not in self._arrivals and len(self._arrivals) >= MOST_NONCES:
                del self._arrivals[next(iter(self._arrivals))]
            same = self._arrivals.setdefault(nonce, [])
            if len(same) < MOST_OF_ONE:
                same.append(Arrival(kind, nonce, address, int(port)))
        elif line in self._synced:
            self._synced[line].set()
        elif word == "ready":
            self._is_ready = True

    def _shares(self, kind: str) -> bool:
        """Tell whether the servers are in our namespace of a kind. Raise InternetError."""
        try:
            theirs = Path(f"/proc/{self._servers.pid}/ns/{kind}").stat()
            return theirs.st_ino == Path(f"/proc/self/ns/{kind}").stat().st_ino
        except OSError as error:
            raise _unavailable(f"its namespaces cannot be seen: {os_reason(error)}") from None


@asynccontextmanager
async def open_internet() -> AsyncIterator[StandInInternet]:
    """Run the stand-in Internet. Raise InternetError where there can be none."""
    if sys.platform != "linux":
        raise _unavailable("it needs Linux")
    nsenter = shutil.which("nsenter")
    if nsenter is None:
        raise _unavailable("it needs nsenter, of util-linux, on the PATH")
    with _start_servers() as servers:
        try:
            internet = StandInInternet(servers, [nsenter])
            await internet.become_ready()
            async with create_task_group() as tasks:
                tasks.start_soon(internet.follow)
                try:
                    yield internet
                finally:
                    tasks.cancel_scope.cancel()
        finally:
            servers.kill()


def _start_servers() -> subprocess.Popen[bytes]:
    """Start the servers. They end with their stdin, so also where we are killed."""
    try:
        # In our session, where no process of a tree ever is: no reaper takes them for a stray. In
        # a process group of their own: no terminal interrupts them.
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd="/",
            process_group=0,
        )
    except OSError as error:
        raise _unavailable(os_reason(error)) from None


def _unavailable(reason: str) -> InternetError:
    return InternetError(f"no stand-in Internet here: {reason}")
