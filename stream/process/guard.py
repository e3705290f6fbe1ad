"""The recorder's side of the guard: a process between the recorder and the program that it records.

Everything that descends from the program comes back to the guard, so it knows when the whole tree
is over, and can end what is left; where the recorder dies, however that happens, nothing of the
tree lives on. The guard is forked before there is an event loop, and shares nothing with the
recorder but four pipes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress

import msgspec

from stream.files.append import write_all
from stream.process.cgroup import current_cgroup, move_out_of_frozen_cgroup, remove_cgroups_of
from stream.process.messages import Prepare, Start
from stream.process.supervisor import serve_recorder


class Guard:
    """The guard, as the recorder knows it."""

    def __init__(self, pid: int, control: int, status: int, stdout: int, stderr: int) -> None:
        self.pid = pid
        self.status = status  #: reports, a line each; its end is the guard's end
        self.stdout = stdout
        self.stderr = stderr
        self._control = control
        self._is_dismissed = self._is_reaped = False

    def send_request(self, message: Prepare | Start) -> None:
        """Send the guard a request. A Start is the last one."""
        data = msgspec.msgpack.encode(message)
        self._write(len(data).to_bytes(4, "big") + data)

    def send_signal(self, number: int) -> None:
        """Pass a signal on to the program's process group. END_NOW ends the tree."""
        self.continue_guard()
        self._write(bytes([number]))

    def continue_guard(self) -> None:
        """Continue the guard, should the program have stopped it or frozen its control group."""
        if not self._is_reaped:
            home = current_cgroup()
            if home is not None:
                move_out_of_frozen_cgroup(self.pid, home)
            os.kill(self.pid, signal.SIGCONT)

    def dismiss_guard(self) -> None:
        """Let the guard end what is left of the tree, and itself; `wait_for_end` waits for that."""
        if not self._is_dismissed:
            self._is_dismissed = True
            for fd in (self._control, self.status, self.stdout, self.stderr):
                os.close(fd)

    def close(self) -> None:
        """Dismiss the guard, and wait for its end."""
        self.dismiss_guard()
        self.wait_for_end()

    def wait_for_end(self) -> None:
        """Wait for the guard's end, which was asked for or has been seen."""
        if not self._is_reaped:
            self.continue_guard()
            _, status = os.waitpid(self.pid, 0)
            self._is_reaped = True
            if status:  # it was killed, perhaps before it could report its control group
                remove_cgroups_of(self.pid)

    def _write(self, message: bytes) -> None:
        with suppress(BrokenPipeError):  # it is gone: its reports have ended
            write_all(self._control, message)


def fork_guard() -> Guard:
    """Fork the guard. This process must have one thread only."""
    pipes = [os.pipe() for _ in range(4)]
    (control_read, control), (status, status_write), (stdout, out), (stderr, err) = pipes
    pid = os.fork()
    if pid:
        for fd in (control_read, status_write, out, err):
            os.close(fd)
        return Guard(pid, control, status, stdout, stderr)
    for fd in (control, status, stdout, stderr):
        os.close(fd)
    return serve_recorder(control_read, status_write, out, err)


class Interrupts:
    """The signals that come to a recorder. They are meant for what it records, as long as that
    lives."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.is_taken_over = False  #: what it recorded is over
        self._listeners: list[Callable[[int], None]] = []

    def listen_for_signals(self, listener: Callable[[int], None]) -> None:
        """Call a listener for each signal, also for those that have come already."""
        self._listeners.append(listener)
        for number in self.numbers:
            listener(number)

    def take_over_signals(self, listener: Callable[[int], None]) -> None:
        """Pass signals to this listener alone from now on: the recorded program is over. Those that
        have come already are not repeated."""
        self.is_taken_over = True
        self._listeners = [listener]

    def pass_signal_on(self, number: int) -> None:
        """Note a signal to the recorder, and pass it to the listeners."""
        self.numbers.append(number)
        for listener in self._listeners:
            listener(number)
