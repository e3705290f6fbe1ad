"""A process between the recorder and the program that it records: the program's parent.

What it promises: everything that descends from the program comes back to it, so it knows when
the whole tree is over and can end what is left; and where the recorder dies, however that
happens, nothing of the tree lives on. It is forked before there is an event loop, and shares
nothing with the recorder but four pipes.

Signals to a recorder: they are meant for what it records, as long as that lives."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress

import msgspec

from stream.files.append import write_all
from stream.process.cgroup import own_group, remove_groups_of, take_out_of_frozen
from stream.process.messages import Prepare, Start
from stream.process.supervisor import serve


class Guard:
    """The recorder's side."""

    def __init__(self, pid: int, control: int, status: int, stdout: int, stderr: int) -> None:
        self.pid = pid
        self.status = status  #: reports, a line each; its end is the guard's end
        self.stdout = stdout
        self.stderr = stderr
        self._control = control
        self._is_dismissed = self._is_reaped = False

    def tell(self, message: Prepare | Start) -> None:
        """An Order is the last one."""
        data = msgspec.msgpack.encode(message)
        self._tell(len(data).to_bytes(4, "big") + data)

    def signal(self, number: int) -> None:
        """Reaches the program's process group. END_NOW ends the tree."""
        self.go_on()
        self._tell(bytes([number]))

    def go_on(self) -> None:
        """Should the program, whose parent it is, have stopped it, or frozen its control group."""
        if not self._is_reaped:
            home = own_group()
            if home is not None:
                take_out_of_frozen(self.pid, home)
            os.kill(self.pid, signal.SIGCONT)

    def dismiss(self) -> None:
        """Ends what is left of the tree, and the guard; `wait` waits for it."""
        if not self._is_dismissed:
            self._is_dismissed = True
            for fd in (self._control, self.status, self.stdout, self.stderr):
                os.close(fd)

    def close(self) -> None:
        self.dismiss()
        self.wait()

    def wait(self) -> None:
        """For its end, which was asked for or has been seen."""
        if not self._is_reaped:
            self.go_on()
            _, status = os.waitpid(self.pid, 0)
            self._is_reaped = True
            if status:  # it was killed, perhaps before it could say that it had a control group
                remove_groups_of(self.pid)

    def _tell(self, message: bytes) -> None:
        with suppress(BrokenPipeError):  # it is gone, and its reports say so by their end
            write_all(self._control, message)


def post_guard() -> Guard:
    """Called while this process has one thread."""
    pipes = [os.pipe() for _ in range(4)]
    (control_read, control), (status, status_write), (stdout, out), (stderr, err) = pipes
    pid = os.fork()
    if pid:
        for fd in (control_read, status_write, out, err):
            os.close(fd)
        return Guard(pid, control, status, stdout, stderr)
    for fd in (control, status, stdout, stderr):
        os.close(fd)
    return serve(control_read, status_write, out, err)


class Interrupts:
    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.are_ours = False  #: what it recorded is over
        self._listeners: list[Callable[[int], None]] = []

    def listen(self, hear: Callable[[int], None]) -> None:
        """From the first one on, also if that has been."""
        self._listeners.append(hear)
        for number in self.numbers:
            hear(number)

    def keep(self, hear: Callable[[int], None]) -> None:
        """From now on they are for who has recorded. Those that have been are not heard again."""
        self.are_ours = True
        self._listeners = [hear]

    def pass_on(self, number: int) -> None:
        self.numbers.append(number)
        for hear in self._listeners:
            hear(number)
