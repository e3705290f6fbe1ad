"""A program that is started by its tracer: it must fail as it would alone, and the tracer, which
comes to the guard like any orphan, must be told from what the program leaves behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress

from stream.proctable import own_children, read_process, reap
from stream.reaper import Reaper
from stream.recorder.messages import Order
from stream.tree import Tree, spawn_error

PATIENCE = 2.0  #: seconds that a tracer has to let the program begin
_TRACE_ME = 0


def rehearse(order: Order) -> None:
    """Raises SpawnError where the program cannot be started: when a tracer says so, it looks like
    the program's own end. Here it is loaded, stops before its first instruction as whatever is
    traced does, and is killed."""
    import ctypes

    libc = ctypes.CDLL(None)

    def wait_for_us() -> None:
        if libc.ptrace(_TRACE_ME, 0, 0, 0):
            os._exit(0)  # not to be tried here

    try:
        loaded = subprocess.Popen(
            order.argv,
            executable=order.executable,
            env=order.env,
            cwd=order.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=wait_for_us,
        )
    except OSError as error:
        raise spawn_error(error, order.cwd) from None
    os.kill(loaded.pid, signal.SIGKILL)
    while os.WIFSTOPPED(status := os.waitpid(loaded.pid, 0)[1]):
        pass
    loaded.returncode = os.waitstatus_to_exitcode(status)


def find_tracer(tree: Tree) -> None:
    """The first orphan that comes to us: it lets go of its parents before the program begins, and
    the program's own orphans come after that."""
    deadline = time.monotonic() + PATIENCE
    while Reaper.get().contained and time.monotonic() < deadline:
        is_over = tree.is_over
        orphans = [pid for pid in own_children() if pid != tree.leader.pid]
        if orphans:
            process = read_process(orphans[0])
            if process is not None and not process.ended:
                tree.tracer = process.key
            return
        if is_over:
            return
        time.sleep(0.0005)


def has_tracer(tree: Tree) -> bool:
    if tree.tracer is None:
        return False
    process = read_process(tree.tracer[0])
    if process is None or process.key != tree.tracer:
        return False
    return not process.ended or not reap(process.pid)


def end_tracer(tree: Tree) -> None:
    if tree.tracer is not None and has_tracer(tree):
        with suppress(ProcessLookupError):
            os.kill(tree.tracer[0], signal.SIGKILL)  # our own child: nobody else has its number
