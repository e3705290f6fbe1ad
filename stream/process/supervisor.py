"""The supervisor of a recorded program: a process between the recorder and the program, forked
before there is an event loop. It starts the program, directly or through a tracer, watches all
that descends from it, and ends it; also, and above all, where the recorder is gone."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from stream.errors import SpawnError, encodable, os_reason
from stream.files.append import write_all
from stream.process.cgroup import Cgroup, enter_cgroup, move_out_of_frozen_cgroup
from stream.process.messages import (
    END_NOW,
    Exited,
    Failed,
    GuardReport,
    Prepare,
    Ready,
    Start,
    Started,
    Stopped,
    TimedOut,
    TreeEnded,
    decode_message,
    encode_report,
)
from stream.process.table import continue_when_orphaned, is_stopped, list_children, read_process
from stream.process.tree import (
    GIVE_UP,
    KILL_AFTER,
    Containment,
    Files,
    Names,
    Reaper,
    Tree,
    spawn_error,
    start_tree,
    wait_until_done,
)
from stream.process.wrapper_scripts import make_wrappers, wrappers_state

PATIENCE = 2.0  #: seconds that a tracer has to let the program begin
POLL = 0.25  #: seconds: without a subreaper, not every end in a tree wakes us
_CHECK_RECORDER_AFTER = 100_000_000  #: ns between two looks at whether the recorder is stopped
_MOST_NAMES = 50
_TRACE_ME = 0


def serve_recorder(control: int, status: int, out: int, err: int) -> NoReturn:
    """Do what the recorder asks for on `control`, report on `status`, and exit."""
    code, cgroup, prepare = 1, None, None
    try:
        os.setsid()  # a terminal's signals are the recorder's to pass on
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            # Not SIG_IGN, which a program would inherit; and what we inherited stays.
            if signal.getsignal(number) != signal.SIG_IGN or number == signal.SIGCHLD:
                signal.signal(number, lambda number, frame: None)
        continue_when_orphaned()
        Reaper.get()
        cgroup = enter_cgroup()
        message = _read_message(control)
        if isinstance(message, Prepare):
            prepare = message
            _send_report(status, _prepare_wrappers(prepare, cgroup))
            message = _read_message(control)
        # Whoever reads our stdout waits for the recorder's end of it, not for ours.
        nobody = os.open(os.devnull, os.O_RDWR)
        stdin = nobody if os.isatty(0) else os.dup(0)
        for fd in (0, 1):
            os.dup2(nobody, fd)
        if isinstance(message, Start):
            home = "" if prepare is None else os.fsdecode(prepare.home)
            _Supervisor(control, status, cgroup, home, message).run_program(Files(stdin, out, err))
        code = 0
    except OSError as error:  # our own: a system without /dev/null, for one
        reason = spawn_error(error, "")
        _send_report(status, Failed(f"the process that guards it: {reason}", reason.number))
    finally:
        if cgroup is not None:
            cgroup.remove_group()
        if prepare is not None:
            shutil.rmtree(prepare.home, ignore_errors=True)
        os._exit(code)


def _prepare_wrappers(prepare: Prepare, cgroup: Cgroup | None) -> Ready:
    """Make the wrappers that the recorder asked the guard for, and say what is ready."""
    ready = Ready(None, None if cgroup is None else str(cgroup.path))
    if prepare.wrap:
        home, path = os.fsdecode(prepare.home), os.fsdecode(prepare.path)
        try:
            made = make_wrappers(home, prepare.wrap, path)
        except OSError as error:
            ready.trouble = os_reason(error)
        else:
            if made is not None:
                ready.programs = {name: os.fsencode(at) for name, at in made.programs.items()}
    return ready


class _Supervisor:
    """Follows one program, from its start until nobody of its tree is left."""

    _tree: Tree

    def __init__(
        self, control: int, status: int, cgroup: Cgroup | None, home: str, order: Start
    ) -> None:
        self._control = control
        self._status = status
        self._cgroup = cgroup
        self._home = home  # of the wrappers
        self._order = order
        self._wake, wake = os.pipe()
        for fd in (self._wake, wake, control):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._recorder = os.getppid()
        self._is_orphaned = False  # the recorder is gone
        self._recorder_seen = time.monotonic_ns()  # when it was last seen not to stand still
        self._leader_seen = 0  # wall-clock ns, when it was last found alive
        self._give_up_at: float | None = None  # when a signal should have ended the tree

    def run_program(self, files: Files) -> None:
        """Start the program, follow it, and report what became of it and of its tree."""
        wrappers = wrappers_state(self._home)
        if not self._start_program(files):
            return
        killed = self._follow_leader()
        outlived = self._report_exit()
        killed = self._end_rest_of_tree(killed)
        if self._tree.tracer is not None:
            self._wait_for_tracer()
        self._wake_recorder()  # nobody is left who could stop it
        took_wrappers = wrappers_state(self._home) != wrappers
        self._send_report(TreeEnded(_first_names(outlived), _first_names(killed), took_wrappers))

    def _start_program(self, files: Files) -> bool:
        """Start the program and report that, or why it cannot be started."""
        order = self._order
        try:
            if order.tracer:
                check_program_loads(order)
            self._tree = start_tree(
                order.tracer or order.argv,
                executable=order.tracer[0] if order.tracer else order.executable,
                env=order.env,
                cwd=order.cwd,
                files=files,
            )
        except SpawnError as error:
            self._send_report(Failed(encodable(str(error)), error.number))
            return False
        finally:
            for fd in (files.stdin, files.stdout, files.stderr):
                os.close(fd)
        if order.tracer:
            note_tracer(self._tree)
        kind = "subreaper" if Reaper.get().can_contain else "process group"
        kind = kind if self._cgroup is None else "cgroup"
        self._send_report(Started(self._tree.leader.pid, kind))
        return True

    def _follow_leader(self) -> Names:
        """Wait for the leader's end, or bring it about; name who was killed for that."""
        self._wait_until(self._has_leader_ended, self._order.timeout)
        if self._tree.is_over:
            return {}
        if not self._is_orphaned:
            if self._give_up_at is None:
                self._send_report(TimedOut())
            self._terminate_tree(self._has_leader_ended)
        return {} if self._has_leader_ended() else self._kill_tree()

    def _report_exit(self) -> Names:
        """Report the leader's end, and name who outlived it."""
        tree = self._tree
        code = tree.leader.returncode if tree.is_over else -signal.SIGKILL
        # First: whoever learns of the end may end what is left.
        outlived: Names = {}
        if not self._is_empty():
            outlived = Reaper.get().living_of_tree(tree) or {(0, 0): "one of its control group"}
        self._send_report(Exited(code, self._leader_seen))
        return outlived

    def _end_rest_of_tree(self, killed: Names) -> Names:
        """Give what outlived the leader its time, then end it; name who did not end by itself."""
        if self._is_empty():
            return killed
        self._give_up_at = None
        self._wait_until(self._is_empty, self._order.grace)
        if self._is_empty():
            return killed
        killed |= Reaper.get().living_of_tree(self._tree)
        if not self._is_orphaned:
            self._terminate_tree(self._is_empty)
        return self._kill_tree() | killed

    def _wait_for_tracer(self) -> None:
        """Wait for the tracer, which has nobody left to follow but may be writing still."""

        def has_ended() -> bool:
            """Tell whether the tracer is gone."""
            return not self._tree.has_tracer()

        self._give_up_at = None
        self._wait_until(has_ended, GIVE_UP)
        self._tree.end_tracer()
        # Also when orphaned: the control group cannot go before it has.
        wait_until_done(KILL_AFTER, has_ended)

    def _has_leader_ended(self) -> bool:
        """Tell whether the leader of the process tree has ended, and note when it was last seen."""
        if self._tree.leader.returncode is not None:
            return True
        self._leader_seen = time.time_ns()
        return self._tree.is_over

    def _is_empty(self) -> bool:
        return Containment([self._tree], self._cgroup).is_empty()

    def _terminate_tree(self, is_done: Callable[[], bool]) -> None:
        """Ask the process tree to end itself."""
        Reaper.get().signal_tree(self._tree, signal.SIGTERM)
        self._give_up_at = None
        self._wait_until(is_done, KILL_AFTER)

    def _kill_tree(self) -> Names:
        """Kill the tree, and name it. Bounded: what is stuck in the kernel is not waited for."""
        if self._cgroup is not None:
            self._cgroup.leave_group()
        living = Reaper.get().living_of_tree(self._tree)
        return Containment([self._tree], self._cgroup).end() | living

    def _wait_until(self, is_done: Callable[[], bool], seconds: float | None) -> None:
        """Wait until the condition holds, the time is over, or the recorder is gone. Meanwhile
        signals are passed on, orphans reaped, and the recorder is kept going."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not is_done() and not self._is_orphaned:
            Reaper.get().reap_orphans()
            if time.monotonic_ns() > self._recorder_seen + _CHECK_RECORDER_AFTER:
                self._wake_recorder()
            limits = [at for at in (deadline, self._give_up_at) if at is not None]
            rest = min(limits) - time.monotonic() if limits else POLL
            if rest <= 0:
                return
            ready, _, _ = select.select([self._control, self._wake], [], [], min(rest, POLL))
            if self._wake in ready:
                _read_waiting_signals(self._wake)
            if self._control in ready:
                self._pass_signals_on()

    def _wake_recorder(self) -> None:
        """Continue a recorder that was stopped: the agent runs as a user who may stop it, and
        would then go on unrecorded."""
        now = time.monotonic_ns()
        if os.getppid() == self._recorder:
            is_frozen = self._cgroup is not None and move_out_of_frozen_cgroup(
                self._recorder, self._cgroup.path.parent
            )
            if is_frozen or is_stopped(self._recorder):
                with suppress(OSError):
                    os.kill(self._recorder, signal.SIGCONT)
                    self._send_report(Stopped(now - self._recorder_seen))
        self._recorder_seen = now

    def _pass_signals_on(self) -> None:
        """Pass the recorder's signals on to the process tree, and set the time for its end."""
        numbers = _read_waiting_signals(self._control)
        if not numbers:
            self._is_orphaned = True
        for number in numbers:
            if number != END_NOW:
                self._tree.signal_group(number)
            # Once the leader is over, what is waited for need not be waited for any longer.
            at_once = number == END_NOW or self._tree.leader.returncode is not None
            if self._give_up_at is None or at_once:
                self._give_up_at = time.monotonic() + (0 if at_once else self._order.grace)

    def _send_report(self, report: GuardReport) -> None:
        _send_report(self._status, report)


def check_program_loads(order: Start) -> None:
    """Raise SpawnError where the program cannot be started: when a tracer reports that, it looks
    like the program's own end. Here the program is loaded, stops before its first instruction as
    whatever is traced does, and is killed."""
    import ctypes

    libc = ctypes.CDLL(None)

    def stop_before_main() -> None:
        """End the program where it could not be traced."""
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
            preexec_fn=stop_before_main,
        )
    except OSError as error:
        raise spawn_error(error, order.cwd) from None
    os.kill(loaded.pid, signal.SIGKILL)
    while os.WIFSTOPPED(status := os.waitpid(loaded.pid, 0)[1]):
        pass
    loaded.returncode = os.waitstatus_to_exitcode(status)


def note_tracer(tree: Tree) -> None:
    """Note which process traces the tree: the first orphan that comes to us. It leaves its parents
    before the program begins, and the program's own orphans come after that."""
    deadline = time.monotonic() + PATIENCE
    while Reaper.get().can_contain and time.monotonic() < deadline:
        is_over = tree.is_over
        orphans = [pid for pid in list_children() if pid != tree.leader.pid]
        if orphans:
            process = read_process(orphans[0])
            if process is not None and not process.ended:
                tree.tracer = process.key
            return
        if is_over:
            return
        time.sleep(0.0005)


def _first_names(names: Names) -> list[str]:
    first, more = list(names.values())[:_MOST_NAMES], len(names) - _MOST_NAMES
    return [*first, f"{more} more"] if more > 0 else first


def _send_report(status: int, report: GuardReport) -> None:
    with suppress(BrokenPipeError):  # the recorder is gone: that is noticed elsewhere
        write_all(status, encode_report(report) + b"\n")


def _read_waiting_signals(fd: int) -> bytes:
    """Read the signal numbers that wait in the recorder's pipe, without waiting."""
    try:
        return os.read(fd, 4096)
    except BlockingIOError:
        return b""


def _read_message(fd: int) -> Prepare | Start | None:
    """Read one message of the recorder. None: the recorder is gone, or wants nothing any more."""
    data = b""
    length = 4
    while len(data) < length:
        part = os.read(fd, length - len(data))
        if not part:
            return None
        data += part
        if len(data) == 4:
            length += int.from_bytes(data, "big")
    message: Prepare | Start = decode_message(data[4:])
    return message
