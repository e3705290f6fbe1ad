"""A program that is started by its tracer: it must fail as it would alone, and the tracer, which
comes to the guard like any orphan, must be told from what the program leaves behind.

The guard's own side: it starts the program, watches all that descends from it, and ends it."""

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

from stream.errors import SpawnError, os_reason, readable
from stream.files.append import write_all
from stream.process.cgroup import Cgroup, enter_cgroup, take_out_of_frozen
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
from stream.process.table import go_on_when_orphaned, is_stopped, own_children, read_process, reap
from stream.process.tree import (
    GIVE_UP,
    KILL_AFTER,
    Files,
    Reaper,
    Tree,
    send_group,
    spawn_error,
    start,
)
from stream.process.wrappers import make_wrappers, state_of

PATIENCE = 2.0  #: seconds that a tracer has to let the program begin
_TRACE_ME = 0


def rehearse(order: Start) -> None:
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


LOOK_AGAIN = 0.25  #: seconds: not every end in a tree is told to us where there is no subreaper
_LOOK_AFTER = 100_000_000  #: ns after which it is looked again whether the recorder is at work
_MOST_NAMES = 50


def serve(control: int, status: int, out: int, err: int) -> NoReturn:
    code, cgroup, outfit = 1, None, None
    try:
        os.setsid()  # a terminal's signals are the recorder's to pass on
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            # Not SIG_IGN, which a program would inherit; and what we inherited stays.
            if signal.getsignal(number) != signal.SIG_IGN or number == signal.SIGCHLD:
                signal.signal(number, lambda number, frame: None)
        go_on_when_orphaned()
        Reaper.get()
        cgroup = enter_cgroup()
        message = _read_message(control)
        if isinstance(message, Prepare):
            outfit = message
            _report(status, _get_ready(outfit, cgroup))
            message = _read_message(control)
        # Whoever reads our stdout waits for the recorder's end of it, not for ours.
        nobody = os.open(os.devnull, os.O_RDWR)
        stdin = nobody if os.isatty(0) else os.dup(0)
        for fd in (0, 1):
            os.dup2(nobody, fd)
        if isinstance(message, Start):
            home = "" if outfit is None else os.fsdecode(outfit.home)
            _Supervisor(control, status, cgroup, home).run(message, Files(stdin, out, err))
        code = 0
    except OSError as error:  # our own: a system without /dev/null, for one
        said = spawn_error(error, "")
        _report(status, Failed(f"the process that guards it: {said}", said.number))
    finally:
        if cgroup is not None:
            cgroup.remove()
        if outfit is not None:
            shutil.rmtree(outfit.home, ignore_errors=True)
        os._exit(code)


def _get_ready(outfit: Prepare, cgroup: Cgroup | None) -> Ready:
    ready = Ready(None, None if cgroup is None else str(cgroup.path))
    if outfit.wrap:
        home, path = os.fsdecode(outfit.home), os.fsdecode(outfit.path)
        try:
            made = make_wrappers(home, outfit.wrap, path)
        except OSError as error:
            ready.trouble = os_reason(error)
        else:
            if made is not None:
                ready.programs = {name: os.fsencode(at) for name, at in made.programs.items()}
    return ready


class _Supervisor:
    def __init__(self, control: int, status: int, cgroup: Cgroup | None, home: str) -> None:
        self._home = home  # of the wrappers
        self._control = control
        self._status = status
        self._cgroup = cgroup
        self._wake, wake = os.pipe()
        for fd in (self._wake, wake, control):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._recorder = os.getppid()
        self._is_orphaned = False  # the recorder is gone
        self._at_work = time.monotonic_ns()  # when the recorder was last seen not to stand still
        self._looked = 0  # wall-clock ns, when the leader was last found alive
        self._give_up_at: float | None = None  # when a signal should have ended the leader

    def run(self, order: Start, files: Files) -> None:
        self._wrappers = state_of(self._home)
        tree = self._start(order, files)
        if tree is not None:
            self._watch(tree, order)

    def _start(self, order: Start, files: Files) -> Tree | None:
        try:
            if order.tracer:
                rehearse(order)
            tree = start(
                order.tracer or order.argv,
                executable=order.tracer[0] if order.tracer else order.executable,
                env=order.env,
                cwd=order.cwd,
                files=files,
            )
        except SpawnError as error:
            self._report(Failed(readable(str(error)), error.number))
            return None
        finally:
            for fd in (files.stdin, files.stdout, files.stderr):
                os.close(fd)
        if order.tracer:
            find_tracer(tree)
        kind = "subreaper" if Reaper.get().contained else "process group"
        self._report(Started(tree.leader.pid, "cgroup" if self._cgroup is not None else kind))
        return tree

    def _watch(self, tree: Tree, order: Start) -> None:
        reaper = Reaper.get()

        def is_alone() -> bool:
            return self._is_empty(tree)

        def has_ended() -> bool:
            if tree.leader.returncode is not None:
                return True
            self._looked = time.time_ns()
            return tree.is_over

        self._until(tree, order.grace, has_ended, order.timeout)
        ended: dict[tuple[int, int], str] = {}  # by what they are: an exec gives another name
        if not tree.is_over:
            if not self._is_orphaned:
                if self._give_up_at is None:
                    self._report(TimedOut())
                reaper.signal(tree, signal.SIGTERM)
                self._give_up_at = None
                self._until(tree, order.grace, has_ended, KILL_AFTER)
            if not has_ended():
                ended = self._end(tree)
        code = tree.leader.returncode if tree.is_over else -signal.SIGKILL
        # First: whoever hears of the end may end what is left.
        outlived = {} if is_alone() else reaper.living(tree) or {(0, 0): "one of its control group"}
        self._report(Exited(code, self._looked))
        if not is_alone():
            self._give_up_at = None
            self._until(tree, order.grace, is_alone, order.grace)
            if not is_alone():
                ended |= reaper.living(tree)
                if not self._is_orphaned:
                    reaper.signal(tree, signal.SIGTERM)
                    self._give_up_at = None
                    self._until(tree, order.grace, is_alone, KILL_AFTER)
                ended = self._end(tree) | ended
        if tree.tracer is not None:
            self._see_off(tree, order)
        self._wake_recorder()  # nobody is left who could stop it
        took_wrappers = state_of(self._home) != self._wrappers
        self._report(TreeEnded(_first(outlived), _first(ended), took_wrappers))

    def _see_off(self, tree: Tree, order: Start) -> None:
        """The tracer, which has nobody left to follow. It may be writing still."""

        def has_gone() -> bool:
            return not has_tracer(tree)

        self._give_up_at = None
        self._until(tree, order.grace, has_gone, GIVE_UP)
        end_tracer(tree)
        began = time.monotonic()  # also when orphaned: the control group cannot go before it has
        while not has_gone() and time.monotonic() < began + KILL_AFTER:
            time.sleep(0.001)

    def _is_empty(self, tree: Tree) -> bool:
        if not tree.is_over or Reaper.get().is_left(tree):
            return False
        return self._cgroup is None or not self._cgroup.holds_others(
            tree.tracer[0] if tree.tracer else None
        )

    def _end(self, tree: Tree) -> dict[tuple[int, int], str]:
        """Whom it caught. Bounded: what is stuck in the kernel is not waited for."""
        reaper = Reaper.get()
        if self._cgroup is not None:
            self._cgroup.leave()
        found = reaper.living(tree)
        began = time.monotonic()
        while (now := time.monotonic()) < began + GIVE_UP:
            if self._is_empty(tree):
                break
            # A tracer is to tell how they end; unless it is what holds them.
            if tree.tracer is None or now > began + GIVE_UP / 2:
                end_tracer(tree)
                if self._cgroup is not None:
                    self._cgroup.kill()
            found = reaper.kill(tree) | found
            time.sleep(0.001)
        return found

    def _until(
        self, tree: Tree, grace: float, is_done: Callable[[], bool], seconds: float | None
    ) -> None:
        """Or until the time is over, or the recorder is gone."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not is_done() and not self._is_orphaned:
            Reaper.get().let_go()
            if time.monotonic_ns() > self._at_work + _LOOK_AFTER:
                self._wake_recorder()
            limits = [at for at in (deadline, self._give_up_at) if at is not None]
            rest = min(limits) - time.monotonic() if limits else LOOK_AGAIN
            if rest <= 0:
                return
            ready, _, _ = select.select([self._control, self._wake], [], [], min(rest, LOOK_AGAIN))
            if self._wake in ready:
                _drain(self._wake)
            if self._control in ready:
                self._obey(tree, grace)

    def _wake_recorder(self) -> None:
        """The agent runs as who may stop it, and would then go on unrecorded."""
        now = time.monotonic_ns()
        if os.getppid() == self._recorder:
            is_frozen = self._cgroup is not None and take_out_of_frozen(
                self._recorder, self._cgroup.path.parent
            )
            if is_frozen or is_stopped(self._recorder):
                with suppress(OSError):
                    os.kill(self._recorder, signal.SIGCONT)
                    self._report(Stopped(now - self._at_work))
        self._at_work = now

    def _obey(self, tree: Tree, grace: float) -> None:
        numbers = _drain(self._control)
        if not numbers:
            self._is_orphaned = True
        for number in numbers:
            if number != END_NOW:
                send_group(tree, number)
            # Once the leader is over, what is waited for need not be waited for any longer.
            at_once = number == END_NOW or tree.leader.returncode is not None
            if self._give_up_at is None or at_once:
                self._give_up_at = time.monotonic() + (0 if at_once else grace)

    def _report(self, report: GuardReport) -> None:
        _report(self._status, report)


def _first(names: dict[tuple[int, int], str]) -> list[str]:
    first, more = list(names.values())[:_MOST_NAMES], len(names) - _MOST_NAMES
    return [*first, f"{more} more"] if more > 0 else first


def _report(status: int, report: GuardReport) -> None:
    with suppress(BrokenPipeError):  # the recorder is gone: that is noticed elsewhere
        write_all(status, encode_report(report) + b"\n")


def _drain(fd: int) -> bytes:
    try:
        return os.read(fd, 4096)
    except BlockingIOError:
        return b""


def _read_message(fd: int) -> Prepare | Start | None:
    """None: the recorder is gone, or wants nothing any more."""
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
