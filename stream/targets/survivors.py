"""Find processes that a probe left running: what lives on after the sandbox has ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from anyio import move_on_after, wait_readable

from stream.process.table import Process, open_pidfd, read_process, read_process_file, send_signal

SOON = 0.1  #: seconds in which a process ends that was already told to
LATER = 5.0  #: seconds for the end of a process namespace, which takes its processes along


async def end_survivors(nonce: str) -> bool:
    """End the processes that are called by a nonce. Return whether one would have lived on."""
    lived_on = False
    for process in list(_processes_named(nonce)):
        fd = open_pidfd(process.pid)
        if fd is None:
            continue
        try:
            with move_on_after(LATER if _is_in_namespace(process) else SOON):
                await wait_readable(fd)
                continue
            lived_on = True
            send_signal(process, signal.SIGKILL)
        finally:
            os.close(fd)
    return lived_on


def _processes_named(nonce: str) -> Iterator[Process]:
    """Find the living processes whose name contains a word."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                if nonce in Path(entry.path, "comm").read_text(errors="replace"):
                    process = read_process(int(entry.name))
                    if process is not None and not process.leaving:
                        yield process


def _is_in_namespace(process: Process) -> bool:
    """Tell whether a process has a number in a process namespace below ours."""
    status = read_process_file(process.pid, "status") or b""
    for line in status.splitlines():
        if line.startswith(b"NSpid:"):
            return len(line.split()) > 2
    return False
