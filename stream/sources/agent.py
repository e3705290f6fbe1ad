"""The agent's command as a source, from its start until nothing of its tree is left.

Its output goes to a file and on to whoever reads ours, as it comes and byte for byte: a thread for
each pipe reads, writes and hands on, and only large blocks are hashed in another one: a gigabyte
through the pipeline of a run takes half as much processor time again. A reader of our own output
sets the pace; it has a thread of its own, that can be left behind. What stdout tells of tool calls
goes into the pipeline as well. Where that stands still, the agent goes on, and what is left out is
counted.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import stat
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Condition, Thread
from typing import Any

import msgspec
from anyio import Event, create_task_group, sleep, to_thread, wait_readable
from msgspec import Struct, field

from stream.errors import OutputError
from stream.files.append import write_all
from stream.pipeline import Batch, Out
from stream.process.cgroup import Cgroup
from stream.process.guard import Guard, Interrupts
from stream.process.machine import kernel_now
from stream.process.messages import (
    END_NOW,
    Exited,
    Failed,
    GuardReport,
    Ready,
    Start,
    Started,
    Stopped,
    TimedOut,
    TreeEnded,
    decode_report,
)
from stream.process.table import read_process, signal_name
from stream.process.tree import Containment, Reaper
from stream.process.wrapper_scripts import Wrappers
from stream.records.channels import STDOUT, ChannelBlock, DroppedInput
from stream.records.control import CHANNELS
from stream.records.run import STDERR_FILE, STDOUT_FILE, RunSummary, count_processes
from stream.redaction.policy import CapturePolicy, OutputFile
from stream.sources.wrappers import CommandLog

BLOCK = 1 << 18
PIPE = 1 << 20  #: bytes that a pipe may hold, where a user may have that
AHEAD = 4  #: blocks that are kept before the reader of our output has them
MOST_WAITING = 4 << 20  #: bytes of stdout that wait to be looked through for tool calls
STUCK_PIPELINE = 5.0  #: seconds that the agent may wait for a pipeline which takes none of them
_REST = 256  #: reads at most of a pipe that somebody beyond the tree still holds


class Relay:
    """Passes the agent's output on to one of ours, at the pace of its reader. Where nobody reads it
    any more, the recording goes on."""

    def __init__(self, fd: int) -> None:
        self.lost = 0
        self._fd = fd
        self._given_up = False
        self._blocks: deque[bytes] = deque()
        self._changed = Condition()
        self._thread: Thread | None = None
        self._may_wait = not stat.S_ISREG(os.fstat(fd).st_mode)

    def relay_block(self, block: bytes) -> None:
        """Hand a block on; wait where its reader is far behind."""
        if not self._may_wait:
            self._write_block(block)
            return
        with self._changed:
            if self._thread is None:
                self._thread = Thread(target=self._hand_on_blocks, daemon=True)
                self._thread.start()
            while len(self._blocks) >= AHEAD and not self._given_up:
                self._changed.wait()
            if self._given_up:
                self.lost += len(block)
            else:
                self._blocks.append(block)
                self._changed.notify_all()

    def finish(self) -> None:
        """Wait until all output is handed on to its reader, or the reader is given up."""
        with self._changed:
            while self._blocks and not self._given_up:
                self._changed.wait()

    def give_up_reader(self) -> None:
        """Stop waiting for a reader that does not read: its thread is left behind."""
        with self._changed:
            self._given_up = True
            self.lost += sum(map(len, self._blocks))
            self._blocks.clear()
            self._changed.notify_all()

    def _write_block(self, block: bytes) -> None:
        """Write a block of the agent's output at once; count what cannot be written."""
        if not self._given_up:
            try:
                write_all(self._fd, block)
                return
            except OSError:  # its disk is full
                self._given_up = True
        self.lost += len(block)

    def _hand_on_blocks(self) -> None:
        """Write the agent's output to our own, block by block, until its reader is gone."""
        while True:
            with self._changed:
                while not self._blocks and not self._given_up:
                    self._changed.wait()
                if self._given_up:
                    return
                block = self._blocks[0]
            try:
                write_all(self._fd, block)
            except OSError:  # the reader is gone, or its disk is full
                self.give_up_reader()
                return
            with self._changed:
                if self._blocks:
                    self._blocks.popleft()
                self._changed.notify_all()


class StdoutBlocks:
    """Blocks of stdout on their way from the thread that reads them into the pipeline."""

    def __init__(self) -> None:
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._taken = Condition()
        self._waiting: list[ChannelBlock] = []
        self._room = MOST_WAITING
        self._dropped = 0
        self._is_over = False

    def put_stdout_block(self, block: bytes) -> None:
        """Add a block that has just come. Called from a thread, which waits here for the pipeline
        to keep up, but not for one that does not move."""
        arrived = kernel_now()
        with self._taken:
            while len(block) > self._room and not self._dropped:
                if not self._taken.wait(STUCK_PIPELINE):
                    break
            if self._dropped or len(block) > self._room:
                self._dropped += len(block)  # and what follows: its place would not be known
                return
            self._room -= len(block)
            self._waiting.append(ChannelBlock(STDOUT, block, arrived))
        with suppress(BlockingIOError):
            os.write(self._waker, b".")

    def end(self) -> None:
        """Say that no further block of stdout will come."""
        self._is_over = True
        with suppress(BlockingIOError):
            os.write(self._waker, b".")

    async def run(self, out: Out, /) -> None:
        """Send the blocks until `end`, and say at last what there was no room for."""
        while not self._is_over or self._waiting:
            await wait_readable(self._wake)
            os.read(self._wake, 1 << 16)
            with self._taken:
                blocks, self._waiting, self._room = self._waiting, [], MOST_WAITING
                self._taken.notify_all()
            await out.send(Batch(CHANNELS, blocks))
        if self._dropped:
            sentence = f"stdout: {self._dropped} bytes were not looked through for tool calls"
            dropped = DroppedInput(STDOUT, "unread", self._dropped, sentence)
            await out.send(Batch(CHANNELS, [dropped]))

    def close(self) -> None:
        """Close the pipe that wakes the sender of stdout blocks."""
        os.close(self._wake)
        os.close(self._waker)


class Tee:
    """Read a pipe of the agent's output in a thread: into a file, to the relay, to the blocks."""

    def __init__(
        self,
        pipe: int,
        output: OutputFile,
        relay: Relay | None,
        blocks: StdoutBlocks | None = None,
    ) -> None:
        self._pipe = pipe
        self._output = output
        self._relay = relay
        self._blocks = blocks
        self._wake, self._waker = os.pipe()
        self._has_ended = False
        os.set_blocking(pipe, False)
        if sys.platform == "linux":
            with suppress(OSError):  # above what a user may have
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE)

    async def run(self) -> None:
        """Read the agent's output until nobody can write any more, or `end` was called and the pipe
        is empty."""
        try:
            await to_thread.run_sync(self._pump_output)
        finally:
            self._has_ended = True
            os.close(self._wake)
            os.close(self._waker)

    def end(self) -> None:
        """Say that the agent's tree is over: what is in the pipe is all there will be."""
        if not self._has_ended:
            os.write(self._waker, b".")

    def _pump_output(self) -> None:
        """Read the agent's output to its end, into its file, our output and the tool calls."""
        rest = _REST
        is_over = False
        while rest:
            try:
                block = os.read(self._pipe, BLOCK)
            except BlockingIOError:
                if is_over:
                    break
                ready, _, _ = select.select([self._pipe, self._wake], [], [])
                is_over = self._wake in ready
                continue
            if not block:
                break
            rest -= is_over
            if self._blocks is not None:
                self._blocks.put_stdout_block(block)
            self._output.write(block)
            if self._relay is not None:
                self._relay.relay_block(block)
        if self._relay is not None:
            self._relay.finish()


STUCK_READER = 4.0  #: seconds that an interrupted run waits for whoever reads its output
KEEP_GOING = 1.0  #: seconds that a guard may stand still: an agent can stop it
CEILINGS = b"GIT_CEILING_DIRECTORIES"
CANNOT_RUN = 126
NOT_FOUND = 127


class CommandResult(Struct):
    """How the agent's command ended, and what became of its process tree."""

    exit_code: int = NOT_FOUND  #: as a shell would give it
    signal: str | None = None
    not_started: str = ""  #: why
    started: int = 0  #: monotonic ns
    ended: int = 0  #: monotonic ns, of the command itself
    ended_wall: int = 0
    pid: int | None = None
    containment: str = "unknown"
    timed_out: bool = False
    passed_on: list[str] = field(default_factory=list)  #: signals
    outlived: list[str] = field(default_factory=list)  #: processes that were there after it
    stopped: list[str] = field(default_factory=list)  #: processes that had to be ended
    stops: list[int] = field(default_factory=list)  #: of the recorder by a signal: ns, each
    lost_guard: bool = False  #: it was killed, and what it would have told is not known

    @property
    def duration_ms(self) -> int:
        """Return how long the command itself ran."""
        return (self.ended - self.started) // 1_000_000

    @property
    def has_unseen_processes(self) -> bool:
        """Tell whether processes that left the command's process group could not be seen."""
        return self.containment == "process group"

    @property
    def outlived_since(self) -> int | None:
        """Wall-clock ns from which on only processes that outlived the command acted."""
        may_go_on = self.outlived or self.lost_guard or self.has_unseen_processes
        return self.ended_wall if may_go_on else None

    def ending_sentence(self) -> str:
        """Say how the command ended."""
        text = f"exit_code={self.exit_code} duration_ms={self.duration_ms}"
        if self.not_started:
            return f"{text} not started: {self.not_started}"
        if self.signal:
            text += f" signal={self.signal}"
        return f"{text} timed out" if self.timed_out else text

    def aftermath_sentence(self) -> str:
        """Say what became of the processes that outlived the command."""
        if self.not_started:
            return "no process was started"
        if not self.outlived:
            if self.has_unseen_processes:
                return "outside of its process group nothing could be seen of its processes"
            return "no process outlived the command"
        outlived, ended = count_processes(self.outlived), count_processes(self.stopped)
        return f"outlived the command: {outlived}, ended: {ended}"

    def ending_facts(self) -> dict[str, Any]:
        """Give the facts that events state of the ending: the same for everybody who asks."""
        return {
            "pid": self.pid,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "not_started": self.not_started,
            "duration_ms": self.duration_ms,
            "containment": self.containment,
            "timed_out": self.timed_out,
            "signals_passed_on": list(self.passed_on),
            "outlived": list(self.outlived),
            "stopped": list(self.stopped),
        }

    def add_to_summary(self, summary: RunSummary) -> RunSummary:
        """Return the summary with what is known of the ending."""
        facts = self.ending_facts()
        del facts["pid"]
        return msgspec.structs.replace(summary, **facts)


def open_outputs(folder: Path, policy: CapturePolicy) -> list[OutputFile]:
    """Make the files of the command's output in a run folder. Raises OSError."""
    return [OutputFile(folder / name, policy) for name in (STDOUT_FILE, STDERR_FILE)]


async def prepare_guard(guard: Guard, home: Path) -> tuple[Wrappers | None, Cgroup | None]:
    """Return what the guard has prepared: wrappers and cgroup. Raise OutputError."""
    line = b""
    while not line.endswith(b"\n"):
        await wait_readable(guard.status)
        data = os.read(guard.status, 1 << 16)
        if not data:
            raise OutputError("the process that guards the agent was killed before it began")
        line += data
    report = decode_report(line)
    assert isinstance(report, Ready)
    if report.trouble:
        raise OutputError(f"the wrappers: {report.trouble}")
    cgroup = None if report.cgroup is None else Cgroup(Path(report.cgroup))
    if report.programs is None:
        return None, cgroup
    programs = {name: os.fsdecode(program) for name, program in report.programs.items()}
    return Wrappers(str(home), programs), cgroup


class AgentCommand:
    """The agent's command as a source: it runs until nothing of its tree is left. Its output goes
    into files in threads of its own, a gigabyte of it without a switch to another task."""

    def __init__(
        self,
        guard: Guard,
        interrupts: Interrupts,
        cgroup: Cgroup | None,
        order: Start,
        *,
        outputs: Sequence[OutputFile],
        relays: Sequence[Relay | None],
        log: CommandLog | None,
        tells_calls: bool = False,
        on_end: Sequence[Callable[[], None]] = (),
    ) -> None:
        self.ending = CommandResult()
        self._order = order
        self._on_end = on_end  # called when nobody of the tree is left
        self._guard = guard
        self._interrupts = interrupts
        self._blocks = StdoutBlocks() if tells_calls else None
        self._readers: list[Tee | CommandLog] = [
            Tee(guard.stdout, outputs[0], relays[0], self._blocks),
            Tee(guard.stderr, outputs[1], relays[1]),
        ]
        self._log = log
        if log is not None:
            self._readers.append(log)
        self._relays = [relay for relay in relays if relay is not None]
        self.exited = Event()  #: the command has ended; its tree may live on
        self._has_exited = self._is_over = False
        self._cgroup = cgroup

    async def run(self, out: Out, /) -> None:
        """Run the command until nothing of its tree is left."""
        try:
            async with create_task_group() as tasks:
                if self._blocks is not None:
                    tasks.start_soon(self._blocks.run, out)
                await self._run_command(self._order)
                if self._blocks is not None:
                    self._blocks.end()
        finally:
            if self._blocks is not None:
                self._blocks.close()
            for call in self._on_end:
                call()

    async def _run_command(self, order: Start) -> None:
        """Let the guard start the agent's command, and follow it and its output to their end."""
        if self._interrupts.numbers:  # before there was anything to pass them on to
            self._guard.dismiss_guard()
            number = self._interrupts.numbers[0]
            self._note_not_started(
                128 + number, f"{signal_name(number)} came before it was started"
            )
            return
        Reaper.get()  # should the guard be killed, its orphans come to us
        self.ending.started = time.monotonic_ns()
        self._guard.send_request(order)
        self._interrupts.listen_for_signals(self._pass_on_signal)
        try:
            async with create_task_group() as patience:
                patience.start_soon(self._keep_guard_going)
                async with create_task_group() as tasks:
                    for reader in self._readers:
                        tasks.start_soon(reader.run)
                    await self._follow_guard()
                    for reader in self._readers:
                        reader.end()
                    if self._interrupts.numbers:
                        patience.start_soon(self._release_readers)
                patience.cancel_scope.cancel()
        finally:
            self._guard.dismiss_guard()

    def _pass_on_signal(self, number: int) -> None:
        """Pass an interrupt on to the command's tree; a third one ends the tree at once."""
        self.ending.passed_on.append(signal_name(number))
        if self._is_over:  # what still holds us is whoever reads our output
            self._give_up_readers()
        elif len(self.ending.passed_on) > 2:
            self._guard.send_signal(END_NOW)
        else:
            self._guard.send_signal(number)

    async def _keep_guard_going(self) -> None:
        while True:
            await sleep(KEEP_GOING)
            self._guard.continue_guard()

    async def _release_readers(self) -> None:
        await sleep(STUCK_READER)
        self._give_up_readers()

    def _give_up_readers(self) -> None:
        for relay in self._relays:
            relay.give_up_reader()

    async def _follow_guard(self) -> None:
        """The guard's reports, to the last one: it has things to put away after that."""
        rest = b""
        while not self._is_over:
            await wait_readable(self._guard.status)
            data = os.read(self._guard.status, 1 << 16)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                await self._handle_guard_report(decode_report(line))
        if not self._is_over:
            self._is_over = self.ending.lost_guard = True
            self._guard.wait_for_end()
            self.ending.stopped += self._end_orphaned_tree()
            if not self._has_exited:
                self._note_command_exit(-signal.SIGKILL, time.time_ns())

    def _end_orphaned_tree(self) -> list[str]:
        """End what a killed guard has left: it is in its control group, or has come to us."""
        names: list[str] = []
        if self._cgroup is not None:
            members = map(read_process, self._cgroup.list_members())
            names = [str(process) for process in members if process]
            Containment(cgroup=self._cgroup).end()
            self._cgroup.remove_group()
        return names + Reaper.get().end_strays()

    async def _handle_guard_report(self, report: GuardReport) -> None:
        """Note what the guard reports of the agent's command and of its process tree."""
        if isinstance(report, Started):
            self.ending.pid, self.ending.containment = report.pid, report.containment
        elif isinstance(report, Failed):
            missing = report.number in (errno.ENOENT, errno.ENOTDIR)
            self._is_over = True
            self._note_not_started(NOT_FOUND if missing else CANNOT_RUN, report.reason)
        elif isinstance(report, TimedOut):
            self.ending.timed_out = True
        elif isinstance(report, Stopped):
            self.ending.stops.append(report.ns)
        elif isinstance(report, Exited):
            self._note_command_exit(report.code, report.wall)
        elif isinstance(report, TreeEnded):
            self._is_over = True
            self.ending.outlived = report.outlived
            self.ending.stopped = report.ended
            if self._log is not None:
                self._log.is_passed_by = report.took_wrappers

    def _note_command_exit(self, code: int, wall: int) -> None:
        """Note when and how the agent's command ended; processes of its tree may live on."""
        self._has_exited = True
        if self._log is not None:
            self._log.mark_agent_end()
        self.ending.ended, self.ending.ended_wall = time.monotonic_ns(), wall
        self.ending.exit_code = code if code >= 0 else 128 - code
        self.ending.signal = signal_name(-code) if code < 0 else None
        self.exited.set()

    def _note_not_started(self, code: int, reason: str) -> None:
        """Note why the agent's command was never started, and its exit code."""
        now = time.monotonic_ns()
        self.ending.started = self.ending.started or now
        self.ending.ended, self.ending.ended_wall = now, time.time_ns()
        self.ending.exit_code, self.ending.not_started = code, reason
        self.exited.set()
