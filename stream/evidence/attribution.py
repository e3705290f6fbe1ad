"""Attribute each kernel event to a tool call: one pass in order, holding only the living processes.

A call is reported by the process that wrote that it starts, or that started the hook that wrote
it. To the call belongs what that process does meanwhile, and what was started by it meanwhile.
What others do belongs to no call, also if they descend from it: an agent whose output goes through
another program, next to it or above it, reported nothing itself. Not attributed is the work of the
recorder inside of a run, its hooks and the wrappers on the PATH: they are known by the file that
was executed, never by what a process calls itself.
"""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Literal, NamedTuple, TypeAlias

from msgspec import UNSET, Struct

from stream.evidence.command_lines import (
    command_category_of,
    command_digest_of,
    commands_asked_of_shell,
)
from stream.evidence.markers import Call, EventCounts, calls_in_marker_order, uncertainty_code
from stream.evidence.process_tree import CandidateCalls, ProcessTree, TracedProcess
from stream.evidence.surface import RECORDER_FOLDER, FileUse, ways_of_open
from stream.records.artifacts import HOME
from stream.records.kernel import (
    ACCOUNT,
    EXEC,
    EXIT,
    FORK,
    LINK,
    MKNOD,
    OPEN,
    RENAME,
    SOCKET_FILE,
    SYMLINK,
    UNLINK,
    KernelDetail,
    KernelEvent,
    Mark,
    path_bytes,
)

OTHERS = "kernel_events_of_other_processes"
OVERLAP = "kernel_events_in_overlapping_windows"
_MOST_NAMED = 16  #: calls in one name; `\+` stands for more
_MORE = r"\+"

Edge = Literal["opens", "closes", "passes"]
_ENDS: dict[Edge, tuple[int, ...]] = {"opens": (0,), "closes": (1,), "passes": (0, 1)}


class EventDetails(Struct, omit_defaults=True):
    """What an event is, beyond who did what kind of thing."""

    child: int = 0
    path: str | None = None
    to_path: str | None = None  #: of a symlink its text
    asked: list[str] = []  #: what a shell was asked to run
    words: list[bytes] = []  #: of a program, without its name
    ways: int = 0  #: of an open: how the surface states it, and
    is_reading: bool = False  #: whether it could change nothing
    result: int | None = None
    is_plain: bool = True  #: the path means there what it means everywhere
    is_whole: bool = True  #: and all of it is known


#: pid, event_type; details, of what decides whose others are; and how many there are of it. Only
#: what has no details and is no exit may stand for several, and in any order among others of that
#: kind; none stands for events before and after a marker.
AttributionEvent: TypeAlias = tuple[int, int, EventDetails | None, int]


class LogWrite(NamedTuple):
    """A write to a log of the recorder's, after so many events."""

    at: int
    line: int | None  #: of the command log; None: somebody opened the policy log, or wrote there
    pid: int


class Attribution:
    """Counts the events of each call; `unbound` and `undecided` hold the others."""

    def __init__(
        self,
        calls: Iterable[Call],
        recorder: RecorderActivity,
        writes: Iterable[LogWrite] = (),
        *,
        hook_writes_unseen: bool = False,
    ) -> None:
        """`hook_writes_unseen`: nobody was seen to write some of what came from the hooks."""
        self.total = 0
        self.unbound: EventCounts = defaultdict(int)
        self.undecided: EventCounts = defaultdict(int)
        self.recorder_file_uses: set[FileUse] = set()  #: by others than the recorder
        self.verified_commands: set[int] = set()  #: lines of the command log that a wrapper wrote
        self.is_policy_forged = False  #: who is decided about may have written decisions
        self._calls = list(calls)
        self._writes = list(writes)
        self._hook_writes_unseen = hook_writes_unseen
        self._recorder = recorder
        self._tree = ProcessTree({pid for call in self._calls for pid in call.pids if pid})
        self._names: set[str] = set()  # of what is not certain
        #: Something was done for one of them after they had ended.
        self._late: dict[tuple[Call, ...], None] = {}
        #: Reporters that had reported nothing yet, while another process worked outside of every
        #: window: should all of them be hooks, that process was the agent.
        self._silent_reporters: set[TracedProcess] = set()
        self._reporters: dict[Call, TracedProcess | None] = {}  # of the open calls
        self._open: dict[TracedProcess | None, _OpenCalls] = {}  # by reporter; None: unknown
        self._edges = 0  # so many have been crossed
        # While the same calls are open:
        self._rows: dict[int, EventCounts] = {}  # by pid
        self._candidates: dict[tuple[int, ...], CandidateCalls] = {}  # by groups of open calls
        self._doubts: dict[tuple[str | int, ...], _DoubtedCounts] = {}

    def attribute_events(self, events: Iterable[AttributionEvent]) -> None:
        """Attribute all kernel events of a run to its tool calls."""
        steps: list[tuple[int, Callable[[], None]]] = [
            (at, partial(self._cross_window_edge, edge, call))
            for at, edge, call in _window_edges(self._calls)
        ]
        steps += [(write.at, partial(self._check_log_writer, write)) for write in self._writes]
        remaining = iter(events)
        for at, step in sorted(steps, key=lambda one: one[0]):  # stable: edges come first
            if not self._count_events(remaining, at - self.total):
                return
            step()
        self._count_events(remaining, None)

    def uncertainty_codes(self) -> Iterator[str]:
        """Yield a code for each thing about the calls that is not certain, after the run."""
        if not all(one.is_hook for one in self._silent_reporters):
            self._names.add(OTHERS)
        for group in self._open.values():
            for call in group.calls:
                _mark_doubted(group, call)
        yield from self._names
        yield from (
            uncertainty_code("told_and_not_used", c, "replaced") for c in self._recorder.replaced
        )
        for calls in self._late:
            yield _doubt_code("kernel_events_after_call", calls)

    # --- the edges of windows, and writes to logs ------------------------------------------------

    def _cross_window_edge(self, edge: Edge, call: Call) -> None:
        """Open or close the window of a tool call, and check who reported that edge."""
        if any(self._is_forged_end(call, end) for end in _ENDS[edge]):
            self._names.add(uncertainty_code("sdk_tool_call_not_told_by_hook", call.id))
            call.is_forged = True
        if edge == "passes" or (call.is_forged and call not in self._reporters):
            return
        self._edges += 1
        self._candidates.clear()
        reporter = self._open_window(call) if edge == "opens" else self._close_window(call)
        if reporter is None or (call.end is not None and call.pids[1] is None):
            self._names.add(uncertainty_code("sdk_tool_call_told_by_unknown_process", call.id))

    def _open_window(self, call: Call) -> TracedProcess | None:
        """Open the window of a tool call for the process that reports it, which is returned."""
        start = call.pids[0]
        reporter = self._reporters[call] = None if start is None else self._reporter_of(start)
        self._open.setdefault(reporter, _OpenCalls()).calls[call] = self._edges
        self._tree.expect_command(call)
        return reporter

    def _close_window(self, call: Call) -> TracedProcess | None:
        """Close the window of a tool call; withdraw it if another process reported its end."""
        reporter, end = self._reporters.pop(call), call.pids[1]
        group = self._open[reporter]
        _mark_doubted(group, call)
        del group.calls[call]
        if not group.calls:
            del self._open[reporter]
        self._tree.forget_command(call)
        if reporter is not None and end is not None and self._reporter_of(end) is not reporter:
            self._names.add(uncertainty_code("sdk_tool_call_told_by_several_processes", call.id))
            self._withdraw_counts(call)
        if call.is_forged:
            self._withdraw_counts(call)
        return reporter

    def _withdraw_counts(self, call: Call) -> None:
        call.is_doubted |= bool(call.counts)
        _add_event_counts(call.counts, self.undecided)
        call.counts.clear()

    def _is_forged_end(self, call: Call, end: int) -> bool:
        """Return whether somebody else wrote where the recorder's hook reports that end."""
        pid = call.pids[end]
        if pid is None:
            return call.hooked[end] and self._hook_writes_unseen
        return call.hooked[end] and not self._recorder.is_running(pid, "hook")

    def _reporter_of(self, pid: int) -> TracedProcess:
        """Return the process that reports; of a hook, the program that started it."""
        process = self._tree.process(pid)
        if self._recorder.is_hook(pid):
            while process.parent is not None and (process.is_hook or not process.has_executed):
                process = process.parent
        self._tree.add_report(process)
        return process

    def _check_log_writer(self, write: LogWrite) -> None:
        """Check which process wrote to the policy log, or a line of the command log."""
        if write.line is None:
            self.is_policy_forged |= self._is_decided_about(write.pid)
        elif self._recorder.is_running(write.pid, "wrapper"):
            self.verified_commands.add(write.line)

    def _is_decided_about(self, pid: int) -> bool:
        """Return whether a process reports calls itself, or was started after the first one, by a
        reporter or for a call."""
        process = self._tree.process(pid)
        has_reported = any(one.has_reported for one in self._tree.reporters_running(process))
        return has_reported or process.is_late or process.candidates is not None

    # --- the events between two edges ------------------------------------------------------------

    def _count_events(self, events: Iterator[AttributionEvent], count: int | None) -> bool:
        """Count events while the same calls are open; return whether there were that many."""
        if count is not None and count <= 0:
            return True
        rows = self._rows
        rows.clear()
        number = 0
        for pid, kind, details, times in events:
            if details is not None or kind == EXIT:
                row = self._follow_event(pid, kind, details)
            else:
                known = rows.get(pid)
                row = self._counts_of_process(pid) if known is None else known
                rows[pid] = row
            row[kind] += times
            number += times
            if number == count:
                break
        self.total += number
        self._settle_doubted_counts()
        return number == count

    def _follow_event(self, pid: int, kind: int, details: EventDetails | None) -> EventCounts:
        """Take in an event that decides whose others are, and return where it counts."""
        is_recorder = self._recorder.follow_event(pid, kind, details)
        if kind == EXEC and details is not None:
            is_recorder = self._follow_exec(pid, details, is_recorder=is_recorder)
        if not is_recorder and details is not None and RECORDER_FOLDER in (details.path or ""):
            self._add_recorder_file_use(kind, details)
        row = self.unbound if is_recorder else self._rows.get(pid) or self._counts_of_process(pid)
        if kind == FORK and details is not None:
            self._tree.fork_process(pid, details.child, self._calls_started_for(pid))
            self._forget_counts_row(details.child)
        elif kind == EXIT:
            self._forget_counts_row(pid)
            self._tree.exit_process(pid)
        return row

    def _follow_exec(self, pid: int, details: EventDetails, *, is_recorder: bool) -> bool:
        """Note the program that a process executes; return whether the event is the recorder's."""
        calls = [group.calls for group in self._open_calls_of(pid)]  # as what it was until now
        process = self._tree.execute_program(pid)
        if process.is_of_call and self._recorder.is_hook(pid):
            self._recorder.forget_hook(pid)
            is_recorder = False
        process.is_hook = self._recorder.is_hook(pid)
        if process.is_hook:
            process.candidates = None
        else:
            self._tree.match_command(
                process, details.asked, lambda call: any(call in one for one in calls)
            )
        self._rows.pop(pid, None)
        return is_recorder

    def _forget_counts_row(self, pid: int) -> None:
        """Forget to which counts the events of a process go: its place in the tree has changed."""
        if self._tree.process(pid).is_reporter:
            self._rows.clear()  # who is foreign depends on which reporters live
        else:
            self._rows.pop(pid, None)

    def _add_recorder_file_use(self, kind: int, details: EventDetails) -> None:
        if kind in (EXEC, OPEN) and details.path is not None:
            self.recorder_file_uses.add((kind, details.path, details.ways, details.result))

    # --- where an event counts -------------------------------------------------------------------

    def _open_calls_of(self, pid: int) -> Iterator[_OpenCalls]:
        """Yield the open calls that a process may be working for by itself."""
        if not self._open:
            return
        if None in self._open:
            yield self._open[None]
        for reporter in self._tree.reporters_running(self._tree.process(pid)):
            if reporter in self._open:
                yield self._open[reporter]

    def _calls_started_for(self, pid: int) -> CandidateCalls | None:
        """Return the calls for one of which a process starts what it starts now."""
        groups = list(self._open_calls_of(pid))
        if not groups:
            return None
        key = tuple(map(id, groups))
        known = self._candidates.get(key)
        if known is None:
            calls = tuple(islice(_calls_in_groups(groups), _MOST_NAMED + 1))
            known = self._candidates[key] = CandidateCalls(calls, len(calls) <= _MOST_NAMED)
        return known

    def _counts_of_process(self, pid: int) -> EventCounts:
        """Return the counts of the tool call that a process works for, or of those in doubt."""
        candidates = self._tree.candidates_of(pid)
        if candidates is not None:
            return self._counts_of_started_process(candidates)
        groups = list(self._open_calls_of(pid))
        some = list(islice(_calls_in_groups(groups), 2))
        if len(some) == 1:
            return some[0].counts
        if some:
            return self._doubted_counts(OVERLAP, groups)
        if self._open:
            return self._doubted_counts(OTHERS, self._open.values())
        return self._counts_outside_windows(pid)

    def _counts_of_started_process(self, candidates: CandidateCalls) -> EventCounts:
        """Return the counts for a process that was started for one of these tool calls."""
        owner = candidates.owner
        if owner is not None and owner in self._reporters:
            return owner.counts
        if owner is None and any(call in self._reporters for call in candidates.calls):
            return self._doubted_counts(OVERLAP, [candidates])
        self._late[candidates.calls] = None
        for call in candidates.calls:
            call.is_doubted = True
        return self.undecided if self._open else self.unbound

    def _counts_outside_windows(self, pid: int) -> EventCounts:
        """Outside of every window, a process that no living reporter runs is a foreign one."""
        living = self._tree.living_reporters
        if living and not any(self._tree.reporters_above(self._tree.process(pid))):
            if any(one.has_reported for one in living):
                self._names.add(OTHERS)
            else:
                self._silent_reporters |= living
        return self.unbound

    def _doubted_counts(
        self, why: str, groups: Iterable[_OpenCalls | CandidateCalls]
    ) -> EventCounts:
        key: tuple[str | int, ...] = (why, *map(id, groups))
        return self._doubts.setdefault(key, _DoubtedCounts(why, [*groups], defaultdict(int))).counts

    def _settle_doubted_counts(self) -> None:
        """Count events as undecided that were of no one tool call, and mark the calls in doubt."""
        for doubt in self._doubts.values():
            if doubt.counts:
                _add_event_counts(doubt.counts, self.undecided)
                self._names.add(_doubt_code(doubt.why, _calls_in_groups(doubt.groups)))
                for group in doubt.groups:
                    if isinstance(group, _OpenCalls):
                        group.doubted = self._edges
                    else:
                        for call in group.calls:
                            call.is_doubted = True
        self._doubts.clear()


class _OpenCalls(Struct, eq=False):
    """The open calls of one reporter."""

    calls: dict[Call, int] = {}  #: and since which edge
    doubted: int = 0  #: the last edge after which something may have been for any of them


class _DoubtedCounts(Struct):
    """Events that may belong to any of several calls."""

    why: str
    groups: list[_OpenCalls | CandidateCalls]
    counts: EventCounts


def _calls_in_groups(groups: Iterable[_OpenCalls | CandidateCalls]) -> Iterator[Call]:
    return chain.from_iterable(group.calls for group in groups)


def _doubt_code(why: str, calls: Iterable[Call]) -> str:
    ids = [call.id for call in islice(calls, _MOST_NAMED + 1)]
    name = uncertainty_code(why, *sorted(ids[:_MOST_NAMED]))
    return f"{name},{_MORE}" if len(ids) > _MOST_NAMED else name


def _mark_doubted(group: _OpenCalls, call: Call) -> None:
    call.is_doubted |= group.doubted >= group.calls[call]


def _add_event_counts(some: EventCounts, to: EventCounts) -> None:
    for kind, count in some.items():
        to[kind] += count


def _window_edges(calls: Iterable[Call]) -> list[tuple[int, Edge, Call]]:
    """Return the edges of all windows in order; between edges at one number lies no event."""
    edges: list[tuple[int, Edge, Call]] = []
    for call in calls_in_marker_order(calls):
        begin = call.end if call.begin is None else call.begin
        if begin is None:
            continue
        if call.end is not None and call.end <= begin:
            edges.append((begin, "passes", call))
            continue
        edges.append((begin, "opens", call))
        if call.end is not None:
            edges.append((call.end, "closes", call))
    return sorted(edges, key=lambda edge: edge[0])


# --- the recorder's own work ---------------------------------------------------------------------

_EVENT_LOG = "sdk-events.ndjson"  #: whoever opens it reports something, or reads what was reported
_SETTINGS = "hooks.json"  #: the agent is asked to read it
_CHANNELS = {_EVENT_LOG: "log", "hooks.ndjson": "hooks"}
_LOGS = ("commands", "hooks.missed", *_CHANNELS)  #: which others may write to
_REPLACES = {UNLINK, RENAME, LINK, SYMLINK, MKNOD}  #: a name may mean another file after it
_SHELLS = ("/bin/sh", "/bin/bash", "/usr/bin/sh", "/usr/bin/bash")
_CHANGES = {OPEN, *range(UNLINK, MKNOD + 1), ACCOUNT, SOCKET_FILE}
_MOST_PROGRAMS = 10_000  #: whose names are counted
_Role = Literal["shell", "hook", "helper", "wrapper"]
#: What each of them opens, and whether it writes.
_OPENED: dict[_Role, set[tuple[str, bool]]] = {
    "shell": set(),
    "hook": {("hook", False), ("hooks.ndjson", True), ("hooks.missed", True)},
    "helper": set(),
    "wrapper": {("wrapper", False), ("commands", True)},
}


class RecorderActivity:
    """Tells the recorder's own work from the agent's. Feed it with a run's events in their order.

    Nothing hides behind the recorder's programs: of a process that runs one, only the calls that
    it cannot do without are the recorder's, each by its own path, and a wrapper's only until the
    next program. After the first call that could have changed one of these files, and without a
    home, nothing is the recorder's.
    """

    def __init__(self, home: str | None, helpers: Sequence[str]) -> None:
        self.replaced: set[str] = set()  #: channels that may lead to other files than at first
        self.wrappers = 0  #: that ran
        self.programs: Counter[str] = Counter()  #: by name: those that no wrapper became
        self.tests: Counter[str] = Counter()  #: by name: runs of tests among those
        self._home = home
        self._first_home = home or ""
        #: A link may be on the way to a run: it is known by its own name.
        self._tail = f"/{'/'.join(self._first_home.split('/')[-2:])}"
        self._helpers = frozenset(helpers)
        used = {"log", "hooks"} if helpers else {"log"}
        self._channels = {name: one for name, one in _CHANNELS.items() if one in used}
        hook = shlex.quote(f"{home}/hook")
        self._hook_commands = {hook, command_digest_of(hook)}
        self._roles: dict[int, _Role] = {}  # by pid
        self._is_after_first = False  # the run's own command has been executed

    def is_hook(self, pid: int) -> bool:
        """Return whether a process is the recorder's hook, its shell or its helper."""
        return self._roles.get(pid, "wrapper") != "wrapper"

    def is_running(self, pid: int, program: Literal["hook", "wrapper"]) -> bool:
        """Return whether a process runs that program itself: it is neither its parent nor child."""
        return self._roles.get(pid) == program

    def forget_hook(self, pid: int) -> None:
        """Forget a hook: what a tool call starts is none of the recorder's, whatever it is."""
        del self._roles[pid]

    def follow_event(self, pid: int, kind: int, details: EventDetails | None) -> bool:
        """Take in the next event, and return whether it is the recorder's."""
        if details is not None and kind in _REPLACES:
            self._find_replaced_channels(kind, details)
        if self._home is None:
            if kind == EXEC and details is not None:
                self._count_program(details, None, None)
            return False
        if kind == EXIT:
            return self._roles.pop(pid, "wrapper") != "wrapper"
        if details is None:
            return False
        if kind == FORK:
            return self._follow_hook_fork(pid, details.child)
        if kind == EXEC:
            return self._follow_recorder_exec(pid, details)
        if kind == OPEN and self._is_recorder_file_open(pid, details):
            return True
        if kind in _CHANGES and not details.is_reading and self._may_change_files(kind, details):
            self._home = None
            self._roles.clear()
        return False

    def _follow_hook_fork(self, pid: int, child: int) -> bool:
        """Note that a hook of the recorder started a process, which has the hook's role."""
        self._roles.pop(child, None)
        if not self.is_hook(pid):
            return False
        self._roles[child] = self._roles[pid]
        return True

    def _follow_recorder_exec(self, pid: int, details: EventDetails) -> bool:
        """Note which of the recorder's programs a process executes; return whether it is one."""
        before = self._roles.pop(pid, None)
        role = self._role_of_program(details, before) if details.is_plain else None
        if role is not None:
            self._roles[pid] = role
        self._count_program(details, before, role)
        return role is not None

    def _role_of_program(self, details: EventDetails, before: _Role | None) -> _Role | None:
        """Return which of the recorder's programs this is: hook, its shell, helper or wrapper."""
        path = details.path or ""
        if path == f"{self._home}/hook":
            return "hook"
        folder, _, name = path.rpartition("/")
        if name and folder == f"{self._home}/bin":
            return "wrapper"
        if before == "hook" and path in self._helpers:
            return "helper"
        if path in _SHELLS and details.asked and details.asked[0] in self._hook_commands:
            return "shell"
        return None

    def _count_program(
        self, details: EventDetails, before: _Role | None, role: _Role | None
    ) -> None:
        """Count the programs and the test runs that no wrapper of the recorder reported."""
        if role == "wrapper":
            self.wrappers += 1
        elif before != "wrapper":
            name = (details.path or "").rpartition("/")[2]
            if command_category_of(name, details.words) == "test":
                _count_name(self.tests, name)
            # The command itself has no wrapper; after the first change nobody knows who has one.
            if self._is_after_first and self._home is not None:
                _count_name(self.programs, name)
        self._is_after_first = True

    def _is_recorder_file_open(self, pid: int, details: EventDetails) -> bool:
        """Return whether a recorder's program opens one of the recorder's own files."""
        role = self._roles.get(pid)
        folder, _, name = (details.path or "").rpartition("/")
        if folder != self._home:
            return False
        is_expected = role is not None and (name, not details.is_reading) in _OPENED[role]
        return is_expected or name == _EVENT_LOG or (name == _SETTINGS and details.is_reading)

    def _find_replaced_channels(self, kind: int, details: EventDetails) -> None:
        """Note the channels of tool calls that a rename or removal may lead to other files."""
        for path in filter(None, (details.path, details.to_path)):
            folder, _, name = path.rpartition("/")
            is_sure = details.is_plain and details.is_whole and _is_straight_path(path)
            if name in self._channels and folder.endswith(self._tail if is_sure else f"/{HOME}"):
                self.replaced.add(self._channels[name])
            elif kind == RENAME and self._is_above_home(path, is_sure=is_sure):
                self.replaced |= {*self._channels.values()}

    def _is_above_home(self, path: str, *, is_sure: bool) -> bool:
        """Return whether a path may be a folder above the recorder's own files."""
        if not is_sure:
            return path.rpartition("/")[2] in self._first_home.split("/")[1:]
        is_run = f"{path}/{HOME}".endswith(self._tail) or path.endswith(self._tail)
        return is_run or self._first_home.startswith(f"{path}/")

    def _may_change_files(self, kind: int, details: EventDetails) -> bool:
        """Return whether a path may lead to the recorder's files, or to a folder above them.

        Where it goes through links, its text does not tell: so only the names are compared.
        """
        folders = (self._home or "").split("/")
        for path in (details.path, details.to_path):
            folder, _, name = (path or "").rpartition("/")
            if kind == RENAME and name in folders:
                return True
            if HOME in (path or "") and not (folder == self._home and name in _LOGS):
                return True
        return False


def _count_name(names: Counter[str], name: str) -> None:
    if name in names or len(names) < _MOST_PROGRAMS:
        names[name] += 1


def _is_straight_path(path: str) -> bool:
    """Return whether a path leads where its text says, as far as no link is on the way."""
    return path.startswith("/") and not path.startswith("/proc/") and "/../" not in f"{path}/"


# --- the details of an event, and lost events -----------------------------------------------------

#: A rename may move a folder that is not named in it; both paths of a link count.
_DECISIVE = {EXEC, FORK, RENAME, LINK}
#: With one of these, a path is not all of what was named.
_PARTIAL: set[Mark] = {"truncated", "walk_cut", "fault", "unreachable", "other_root"}


def event_details_of(event: KernelEvent, detail: KernelDetail | None) -> EventDetails | None:
    """Return the details of an event; None if nothing else depends on it."""
    kind, path = event.event_type, event.value
    to_path = None
    if detail is not None:
        to_path = detail.path if kind == SYMLINK else detail.to_path
    if kind not in _DECISIVE and HOME not in f"{path or ''}{to_path or ''}":
        return None
    if kind == OPEN:
        ways = ways_of_open(event.access_mode, event.operation_flags)
        result = None if event.return_value is UNSET else event.return_value
        is_reading = event.access_mode == "read" and event.operation_flags is UNSET
        return EventDetails(path=path, ways=ways, is_reading=is_reading, result=result)
    if detail is None:
        return EventDetails(path=path) if kind != FORK else None
    asked = detail.asked if detail.asked is not None else commands_asked_of_shell(detail.argv)
    return EventDetails(
        child=detail.child,
        path=path,
        to_path=to_path,
        asked=asked,
        words=[path_bytes(word) for word in (detail.argv or ())[1:]],
        is_plain="other_mounts" not in detail.marks,
        is_whole=_PARTIAL.isdisjoint(detail.marks),
    )


class KernelLosses:
    """Finds where events were lost: after the first number of events, before the second.

    A gap has no number of its own. It stands between two details that have one, and it may have
    begun between two that came before them.
    """

    def __init__(self) -> None:
        self._found: list[tuple[int, int]] = []
        self._after = 0  # so many events came before what is next
        self._gap_start: int | None = None
        self._first: int | None = None  # of gaps behind which no detail was met yet

    def add_kernel_gap(self, *, begins: bool) -> None:
        """Add a gap of the kernel layer, or the begin of one, to the losses."""
        if self._gap_start is None:
            self._gap_start = self._after
        if not begins:
            self._first = (
                self._gap_start if self._first is None else min(self._first, self._gap_start)
            )
            self._gap_start = None

    def add_kernel_detail(self, seq: int) -> None:
        """Add the detail of an event, which ends the gap before it."""
        if self._first is not None:
            self._found.append((self._first, seq))
        self._after, self._first = seq + 1, None

    def loss_intervals(self, total: int) -> list[tuple[int, int]]:
        """Return the losses of events; one without an end goes on to the end of all events."""
        starts = [at for at in (self._first, self._gap_start) if at is not None]
        return [*self._found, *((min(starts), max(self._after, total)) for _ in starts[:1])]
