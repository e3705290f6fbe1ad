"""What a process tree is: which process started which, which report tool calls, and which call each
may have been started for.

A process that forks while calls are open belongs to the call whose command it executes, else to
the only open call, else it is ambiguous. Its children inherit that, also after the call has ended.
What is left is the agent itself, and what was there before. A command is known by the text that a
shell was asked to run (`evidence.command_lines`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import count, islice

from msgspec import Struct

from stream.evidence.command_lines import comparable_command
from stream.evidence.markers import Call


class CandidateCalls(Struct, eq=False):
    """The calls that a process may have been started for: one at least."""

    calls: tuple[Call, ...]
    are_all: bool = True  #: else there were more of them than anybody would name

    @property
    def owner(self) -> Call | None:
        """The call that the process belongs to, where there is no other candidate."""
        return self.calls[0] if len(self.calls) == 1 and self.are_all else None


class TracedProcess(Struct, eq=False):
    """A process, with what decides which tool call its work belongs to."""

    parent: TracedProcess | None
    program: int  #: a new number with each exec; until then that of the process that forked it
    is_reporter: bool = False  #: it reports tool calls
    has_reported: bool = False  #: else it is only known that it will
    has_executed: bool = False
    is_hook: bool = False  #: it runs the recorder's hook
    is_over: bool = False
    is_late: bool = False  #: it descends from a process that had reported before it forked
    candidates: CandidateCalls | None = None  #: None: it is the agent's own, or was there before
    is_unsure: bool = False  #: the agent itself forked it, and it has executed nothing yet

    @property
    def is_of_call(self) -> bool:
        """Return whether the process was started for a call, whichever that is."""
        return self.candidates is not None and not self.is_unsure


class ProcessTree:
    """The processes of a run. Feed it with forks, execs and exits in their order.

    It holds the living, and of the dead those that the living descend from and that reported.
    `reporters` are the numbers of the processes that report a call at any time.
    """

    def __init__(self, reporters: Collection[int]) -> None:
        self.living_reporters: set[TracedProcess] = set()
        self._reporters = reporters
        self._living: dict[int, TracedProcess] = {}
        self._programs = count()
        self._commands: defaultdict[str, dict[Call, None]] = defaultdict(dict)

    def process(self, pid: int) -> TracedProcess:
        """Return a living process; where one comes from whose fork was not seen is unknown."""
        return self._living.get(pid) or self._enter_process(pid, None)

    def candidates_of(self, pid: int) -> CandidateCalls | None:
        """Return the calls that a process may have been started for."""
        process = self._living.get(pid)
        return process.candidates if process is not None else None

    def fork_process(
        self, parent_pid: int, child_pid: int, candidates: CandidateCalls | None
    ) -> None:
        """Add a child process. `candidates`: the calls that its parent may be working for."""
        self.exit_process(child_pid)  # its number may have been another's
        parent = self.process(parent_pid)
        child = self._enter_process(child_pid, parent)
        if parent.candidates is not None:
            child.candidates, child.is_unsure = parent.candidates, parent.is_unsure
        elif candidates is not None:
            child.candidates, child.is_unsure = candidates, True

    def execute_program(self, pid: int) -> TracedProcess:
        """Give a process a program of its own."""
        process = self.process(pid)
        process.has_executed, process.program = True, next(self._programs)
        return process

    def exit_process(self, pid: int) -> None:
        """Remove a process that has ended."""
        process = self._living.pop(pid, None)
        if process is not None:
            process.is_over = True
            process.candidates = None
            self.living_reporters.discard(process)

    def add_report(self, process: TracedProcess) -> None:
        """Record that a process has reported a call."""
        process.has_reported = True
        self._add_reporter(process)

    def reporters_above(self, process: TracedProcess) -> Iterator[TracedProcess]:
        """Yield the reporters among a process and its ancestors."""
        at: TracedProcess | None = process
        while at is not None:
            if at.is_reporter:
                yield at
            above = at.parent
            while above is not None and above.is_over and not above.is_reporter:
                above = above.parent
            at.parent = above  # a long row of the dead is walked along once
            at = above

    def reporters_running(self, process: TracedProcess) -> Iterator[TracedProcess]:
        """Yield the reporters whose own program the process runs; a hook acts for its parent."""
        while process.is_hook and process.parent is not None:
            process = process.parent
        program = process.program
        return (one for one in self.reporters_above(process) if one.program == program)

    def expect_command(self, call: Call) -> None:
        """Let the process that runs the call's command belong to it, while the call is open."""
        if known := comparable_command(call.command or ""):
            self._commands[known][call] = None

    def forget_command(self, call: Call) -> None:
        """Stop expecting the command of a call that has ended."""
        known = comparable_command(call.command or "")
        if known in self._commands:
            self._commands[known].pop(call, None)
            if not self._commands[known]:
                del self._commands[known]

    def match_command(
        self, process: TracedProcess, asked: Iterable[str], is_candidate: Callable[[Call], bool]
    ) -> None:
        """Find the call whose command a process executes.

        `is_candidate`: whether the process may be working for an open call.
        """
        candidates = process.candidates
        if candidates is not None and process.is_of_call:
            if candidates.owner is not None:
                return  # what a call's own process runs is the call's, whatever it is called
            if candidates.are_all:
                is_candidate = candidates.calls.__contains__
        process.is_unsure = False
        for text in asked:
            calls = filter(is_candidate, self._commands.get(comparable_command(text), ()))
            if found := tuple(islice(calls, 2)):
                if len(found) == 1:
                    process.candidates = CandidateCalls(found)
                return

    def _enter_process(self, pid: int, parent: TracedProcess | None) -> TracedProcess:
        """Add a living process to the tree, with what it has from its parent."""
        program = next(self._programs) if parent is None else parent.program
        process = self._living[pid] = TracedProcess(parent, program)
        if parent is not None:
            process.is_hook = parent.is_hook
            process.is_late = parent.is_late or parent.has_reported
        if pid in self._reporters:
            self._add_reporter(process)
        return process

    def _add_reporter(self, process: TracedProcess) -> None:
        process.is_reporter = True
        if not process.is_over:
            self.living_reporters.add(process)
