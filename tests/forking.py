"""`stream` in forks of an interpreter that has loaded all of it: to load it is most of what a short
command costs.

`serve` runs in that interpreter. Each message on its stdin, a socket, brings the standard streams
of a command and a file with its words, environment and folder; the answer is its exit code.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from typing import NoReturn

from stream.cli import main

ROOT = Path(__file__).parents[1]
_LARGEST = 64  #: bytes of a message


def run_forked(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    data: bytes | None,
    patience: float,
    module: str = "stream",
) -> tuple[int, bytes, bytes]:
    """Run a module as a command to its end, and return its exit code, its stdout and its stderr."""
    server = _Server.of_this_process()
    (stdin, feed), (out, stdout), (err, stderr) = os.pipe(), os.pipe(), os.pipe()
    if data is None:
        os.close(stdin)
        stdin = os.open(os.devnull, os.O_RDONLY)
    with server.turn, ThreadPoolExecutor(3) as threads:
        with TemporaryFile("w+") as order:
            json.dump([module, list(argv), dict(env), str(cwd)], order)
            order.flush()
            socket.send_fds(server.socket, [b"."], [stdin, stdout, stderr, order.fileno()])
        for fd in (stdin, stdout, stderr):
            os.close(fd)
        threads.submit(_write, feed, data or b"")
        out_data, err_data = threads.submit(_read, out), threads.submit(_read, err)
        return server.answer(patience), out_data.result(), err_data.result()


def end_forking() -> None:
    """End the interpreter, if there is one."""
    if _Server.of_this_process.cache_info().currsize:
        _Server.of_this_process().end()
        _Server.of_this_process.cache_clear()


def _write(fd: int, data: bytes) -> None:
    with suppress(BrokenPipeError), os.fdopen(fd, "wb") as file:
        file.write(data)


def _read(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as file:
        return file.read()


class _Server:
    """The interpreter as its user sees it. It ends with the user."""

    def __init__(self) -> None:
        self.turn = Lock()  #: whoever has it runs a command
        self.socket, theirs = socket.socketpair()
        command = [sys.executable, "-c", "from tests.forking import serve; serve()"]
        with theirs:  # its stdout as well: Python makes another object of a file
            fd = theirs.fileno()
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=fd, stdout=fd, start_new_session=True
            )

    @staticmethod
    @cache
    def of_this_process() -> _Server:
        return _Server()

    def end(self) -> None:
        self.socket.close()
        self._process.wait()

    def answer(self, patience: float) -> int:
        self.socket.settimeout(patience)
        try:
            return int(self.socket.recv(_LARGEST))
        except TimeoutError:
            os.killpg(self._process.pid, signal.SIGKILL)  # and what it runs
            raise


def serve() -> NoReturn:
    """Answer each message until there is nobody who could send one."""
    import stream

    for module in pkgutil.walk_packages(stream.__path__, "stream."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    importlib.import_module("anyio._backends._asyncio")
    gc.collect()
    gc.freeze()
    user = socket.socket(fileno=os.dup(0))
    while True:
        message, files, *_ = socket.recv_fds(user, _LARGEST, 4)
        if not message:
            os._exit(0)
        if not (pid := os.fork()):
            user.close()
            _run(*files)
        for fd in files:
            os.close(fd)
        user.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def _run(stdin: int, stdout: int, stderr: int, order: int) -> NoReturn:
    module, argv, env, cwd = json.loads(os.pread(order, os.fstat(order).st_size, 0))
    for number, fd in enumerate((stdin, stdout, stderr)):
        os.dup2(fd, number)
    for fd in (stdin, stdout, stderr, order):
        os.close(fd)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [module, *argv]
    code = 0
    try:
        if module == "stream":
            main()
        else:
            runpy.run_module(module, run_name="__main__")
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)
