"""What the recorder itself does inside of a run: its hooks, and the wrappers on the PATH.

They are known by the file that was executed, never by what a process calls itself. Nothing else
hides behind them: of a process that runs one, only the calls that it cannot do without are the
recorder's, each by its own path, and a wrapper's only until the next program. From the first
call that could have changed one of these files on, nothing is the recorder's any more.

The kernel layer as correlation reads it: who did what kind of thing, in order.

Whose each kernel event is: read once, in order, with nothing held but the living processes.

A call is told of by the process that wrote that it starts, or that started the hook that wrote
it. Its own are what that process does meanwhile, and what was started by it meanwhile. What others
do is nobody's, also if they descend from it: an agent whose words go through another program,
beside it or above it, told nothing itself."""

from __future__ import annotations

import shlex
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct

from stream.evidence.markers import Call, EventCounts, code, in_order
from stream.evidence.process_tree import (
    Lineage,
    Ownership,
    Suspects,
    TracedProcess,
    asked_in,
    digest_of,
)
from stream.evidence.surface import NEAR, Claim, ways_of
from stream.records.artifacts import HOME
from stream.records.control import GAP
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
from stream.records.run import category_of

_EVENT_LOG = "sdk-events.ndjson"  #: whoever opens it tells something, or reads what was told
_SETTINGS = "hooks.json"  #: the agent reads it, as it is told to
_CHANNELS = {_EVENT_LOG: "log", "hooks.ndjson": "hooks"}
_LOGS = ("commands", "hooks.missed", *_CHANNELS)  #: which others may write to
_REPLACES = {UNLINK, RENAME, LINK, SYMLINK, MKNOD}  #: a name may mean another file after it
_SHELLS = ("/bin/sh", "/bin/bash", "/usr/bin/sh", "/usr/bin/bash")
_CHANGES = {OPEN, *range(UNLINK, MKNOD + 1), ACCOUNT, SOCKET_FILE}
_MOST_PROGRAMS = 10_000  #: whose names are kept
_Doing = Literal["shell", "hook", "helper", "wrapper"]
#: What each of them opens, and whether it writes.
_OPENED: dict[_Doing, set[tuple[str, bool]]] = {
    "shell": set(),
    "hook": {("hook", False), ("hooks.ndjson", True), ("hooks.missed", True)},
    "helper": set(),
    "wrapper": {("wrapper", False), ("commands", True)},
}


class StepDetails(Struct, omit_defaults=True):
    """What a step is, beyond who did what kind of thing."""

    child: int = 0
    path: str | None = None
    to_path: str | None = None  #: of a symlink its text
    asked: list[str] = []  #: what a shell was asked to run
    words: list[bytes] = []  #: of a program, without its name
    ways: int = 0  #: of an open: how the surface says it, and
    is_reading: bool = False  #: whether it could change nothing
    result: int | None = None
    is_plain: bool = True  #: the path means there what it means everywhere
    is_whole: bool = True  #: and all of it is known


class RecorderActivity:
    """Fed with a run's steps in their order. Without a home there is nothing of the recorder's."""

    def __init__(self, home: str | None, helpers: Sequence[str]) -> None:
        self._home = home
        self.replaced: set[str] = set()  #: channels that may lead to other files than at first
        self._helpers = frozenset(helpers)
        used = {"log", "hooks"} if helpers else {"log"}
        self._channels = {name: one for name, one in _CHANNELS.items() if one in used}
        self._place = home or ""
        #: A link may be on the way to a run: it is known by its own name.
        self._tail = f"/{'/'.join(self._place.split('/')[-2:])}"
        self._doing: dict[int, _Doing] = {}
        self.wrappers = 0  #: that ran
        self.programs: Counter[str] = Counter()  #: by name: those that no wrapper became
        self.tests: Counter[str] = Counter()  #: by name: runs of tests among those
        self._has_begun = False
        hook = f"{home}/hook"
        self._calls_of_hook = {shlex.quote(hook), digest_of(shlex.quote(hook))}

    def is_hook(self, pid: int) -> bool:
        return self._doing.get(pid, "wrapper") != "wrapper"

    def is_telling(self, pid: int, program: Literal["hook", "wrapper"]) -> bool:
        """Whether it is the program itself: not who starts it, and not what it starts."""
        return self._doing.get(pid) == program

    def has(self, pid: int, kind: int, told: StepDetails | None) -> bool:
        """Whether the step is the recorder's."""
        if told is not None and kind in _REPLACES:
            self._replaces(kind, told)
        if self._home is None:
            if kind == EXEC and told is not None:
                self._count(told, None, None)
            return False
        if kind == EXIT:
            return self._doing.pop(pid, "wrapper") != "wrapper"
        if told is None:
            return False
        if kind == FORK:
            return self._forks(pid, told.child)
        if kind == EXEC:
            return self._executes(pid, told)
        if kind == OPEN and self._opens(pid, told):
            return True
        if kind in _CHANGES and not told.is_reading and self._is_touched(kind, told):
            self._home = None
            self._doing.clear()
        return False

    def a_call_runs(self, pid: int) -> None:
        """What a tool call starts is no hook of the recorder's, whatever it is."""
        if self.is_hook(pid):
            del self._doing[pid]

    def _forks(self, pid: int, child: int) -> bool:
        self._doing.pop(child, None)
        if not self.is_hook(pid):
            return False
        self._doing[child] = self._doing[pid]
        return True

    def _executes(self, pid: int, told: StepDetails) -> bool:
        before = self._doing.pop(pid, None)
        doing = self._doing_of(told, before) if told.is_plain else None
        if doing is not None:
            self._doing[pid] = doing
        self._count(told, before, doing)
        return doing is not None

    def _count(self, told: StepDetails, before: _Doing | None, doing: _Doing | None) -> None:
        if doing == "wrapper":
            self.wrappers += 1
        elif before != "wrapper":
            name = (told.path or "").rpartition("/")[2]
            if category_of(name, told.words) == "test":
                _add_name(self.tests, name)
            # The command itself has no wrapper; after the first change nobody knows who has one.
            if self._has_begun and self._home is not None:
                _add_name(self.programs, name)
        self._has_begun = True

    def _doing_of(self, told: StepDetails, before: _Doing | None) -> _Doing | None:
        path = told.path or ""
        if path == f"{self._home}/hook":
            return "hook"
        folder, _, name = path.rpartition("/")
        if name and folder == f"{self._home}/bin":
            return "wrapper"
        if before == "hook" and path in self._helpers:
            return "helper"
        if path in _SHELLS and told.asked and told.asked[0] in self._calls_of_hook:
            return "shell"
        return None

    def _opens(self, pid: int, told: StepDetails) -> bool:
        doing = self._doing.get(pid)
        folder, _, name = (told.path or "").rpartition("/")
        if folder != self._home:
            return False
        is_known = doing is not None and (name, not told.is_reading) in _OPENED[doing]
        return is_known or name == _EVENT_LOG or (name == _SETTINGS and told.is_reading)

    def _replaces(self, kind: int, told: StepDetails) -> None:
        for path in filter(None, (told.path, told.to_path)):
            folder, _, name = path.rpartition("/")
            is_sure = told.is_plain and told.is_whole and _is_straight(path)
            if name in self._channels and folder.endswith(self._tail if is_sure else f"/{HOME}"):
                self.replaced.add(self._channels[name])
            elif kind == RENAME and self._is_above(path, is_sure=is_sure):
                self.replaced |= {*self._channels.values()}

    def _is_above(self, path: str, *, is_sure: bool) -> bool:
        if not is_sure:
            return path.rpartition("/")[2] in self._place.split("/")[1:]
        is_run = f"{path}/{HOME}".endswith(self._tail) or path.endswith(self._tail)
        return is_run or self._place.startswith(f"{path}/")

    def _is_touched(self, kind: int, told: StepDetails) -> bool:
        """Where a path goes through links, its text does not say what it leads to: whatever is
        called as these files are, or as a folder above them, is taken for it."""
        folders = (self._home or "").split("/")
        for path in (told.path, told.to_path):
            folder, _, name = (path or "").rpartition("/")
            if kind == RENAME and name in folders:
                return True
            if HOME in (path or "") and not (folder == self._home and name in _LOGS):
                return True
        return False


def _add_name(names: Counter[str], name: str) -> None:
    if name in names or len(names) < _MOST_PROGRAMS:
        names[name] += 1


def _is_straight(path: str) -> bool:
    """Whether a path leads where its text says, as far as no link is on the way."""
    return path.startswith("/") and not path.startswith("/proc/") and "/../" not in f"{path}/"


#: pid, event_type; more, of what decides whose others are; and how many there are of it. Only what
#: has no more and is no exit may stand for several, and in any order among others of that kind;
#: none stands for events before and after a marker.
AttributionEvent: TypeAlias = tuple[int, int, StepDetails | None, int]
#: A rename may move a folder that is not named in it; both paths of a link count.
_TELLING = {EXEC, FORK, RENAME, LINK}
_HOME = HOME.encode()
#: With one of these, a path is not all of what was named.
_PARTIAL: set[Mark] = {"truncated", "walk_cut", "fault", "unreachable", "other_root"}


class _EventHead(Struct):
    pid: int
    event_type: int


class _DetailHead(Struct):
    schema: str
    seq: int = -1
    begins: bool = False


_decode_line = msgspec.json.Decoder(_EventHead).decode
_decode_beside = msgspec.json.Decoder(_DetailHead).decode
_decode_event = msgspec.json.Decoder(KernelEvent).decode
_decode_detail = msgspec.json.Decoder(KernelDetail).decode


def attribution_events(
    kernel: Iterable[bytes], details: Iterable[bytes]
) -> Iterator[AttributionEvent]:
    """From the lines of both files. They are taken to be what they should be: another part
    verifies that."""
    besides = _besides(details)
    seq, beside = next(besides)
    for number, line in enumerate(kernel):
        step = _decode_line(line)
        while 0 <= seq < number:
            seq, beside = next(besides)
        told = None
        if step.event_type in _TELLING or _HOME in line or (seq == number and _HOME in beside):
            detail = _decode_detail(beside) if seq == number else None
            told = told_of(_decode_event(line), detail)
        yield step.pid, step.event_type, told, 1


def told_of(event: KernelEvent, detail: KernelDetail | None) -> StepDetails | None:
    """None: nothing else depends on it."""
    kind, path = event.event_type, event.value
    to_path = None
    if detail is not None:
        to_path = detail.path if kind == SYMLINK else detail.to_path
    if kind not in _TELLING and HOME not in f"{path or ''}{to_path or ''}":
        return None
    if kind == OPEN:
        ways = ways_of(event.access_mode, event.operation_flags)
        result = None if event.return_value is UNSET else event.return_value
        is_reading = event.access_mode == "read" and event.operation_flags is UNSET
        return StepDetails(path=path, ways=ways, is_reading=is_reading, result=result)
    if detail is None:
        return StepDetails(path=path) if kind != FORK else None
    asked = detail.asked if detail.asked is not None else asked_in(detail.argv)
    return StepDetails(
        child=detail.child,
        path=path,
        to_path=to_path,
        asked=asked,
        words=[path_bytes(word) for word in (detail.argv or ())[1:]],
        is_plain="other_mounts" not in detail.marks,
        is_whole=_PARTIAL.isdisjoint(detail.marks),
    )


def _besides(details: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    for line in details:
        one = _decode_beside(line)
        if one.schema != GAP:
            yield one.seq, line
    yield -1, b""


def lost_between(details: Iterable[bytes], total: int) -> list[tuple[int, int]]:
    losses = Losses()
    for line in details:
        one = _decode_beside(line)
        if one.schema == GAP:
            losses.add_gap(begins=one.begins)
        else:
            losses.add_detail(one.seq)
    return losses.between(total)


class Losses:
    """Where events were lost: after the first number of events, before the second.

    A gap has no number of its own. It stands between two details that have one, and it may have
    begun between two that came before them.
    """

    def __init__(self) -> None:
        self._found: list[tuple[int, int]] = []
        self._after = 0  # so many events came before what is next
        self._begun: int | None = None
        self._first: int | None = None  # of gaps behind which no detail was met yet

    def add_gap(self, *, begins: bool) -> None:
        if self._begun is None:
            self._begun = self._after
        if not begins:
            self._first = self._begun if self._first is None else min(self._first, self._begun)
            self._begun = None

    def add_detail(self, seq: int) -> None:
        if self._first is not None:
            self._found.append((self._first, seq))
        self._after, self._first = seq + 1, None

    def between(self, total: int) -> list[tuple[int, int]]:
        """Of so many events. What began and has no end goes on to theirs."""
        starts = [at for at in (self._first, self._begun) if at is not None]
        return [*self._found, *((min(starts), max(self._after, total)) for _ in starts[:1])]


OTHERS = "kernel_events_of_other_processes"
OVERLAP = "kernel_events_in_overlapping_windows"
POLICY = -1
_Edge = Literal["opens", "closes", "passes"]
_ENDS: dict[_Edge, tuple[int, ...]] = {"opens": (0,), "closes": (1,), "passes": (0, 1)}
_NAMED = 16  #: calls in one name; `\+` stands for more
_MORE = r"\+"


class _Open(Struct, eq=False):
    """Calls that are open, of one who tells of them."""

    calls: dict[Call, int] = {}  #: and since which turn
    doubted: int = 0  #: the last turn in which something may have been for any of them


class _Doubt(Struct):
    """Events of which it cannot be said whose they are."""

    why: str
    groups: list[_Open | Suspects[Call]]  #: of those that they may belong to
    tally: EventCounts

    @property
    def calls(self) -> Iterator[Call]:
        return chain.from_iterable(group.calls for group in self.groups)


class Attribution:
    def __init__(
        self,
        calls: Iterable[Call],
        own: RecorderActivity,
        told: Iterable[tuple[int, int, int]] = (),
        *,
        unseen: bool = False,
    ) -> None:
        """`told`: of lines of the command log, after how many events each was written, its number
        and by whom; and with POLICY for a number, who opened the policy log to write, or wrote
        there. `unseen`: some of what hooks told, nobody was seen to write."""
        self.vouched: set[int] = set()  #: lines that a wrapper wrote
        self.is_policy_forged = False  #: who is decided about may have written decisions
        self._told = sorted(told)
        self._unseen = unseen
        self.unbound: EventCounts = defaultdict(int)
        self.undecided: EventCounts = defaultdict(int)
        self.total = 0
        self.near: set[Claim] = set()  #: what others did with the recorder's own files
        self._calls = list(calls)
        self._names: set[str] = set()
        #: Something was done for one of them after they had ended.
        self._late: dict[tuple[Call, ...], None] = {}
        #: Who was there to tell, and had not yet, while somebody else was at work outside of every
        #: window: should all of them be hooks, it was the agent.
        self._awaited: set[TracedProcess] = set()
        self._own = own
        self._tree: Ownership[Call] = Ownership()
        self._lineage = Lineage({pid for call in self._calls for pid in call.pids if pid})
        self._tellers: dict[Call, TracedProcess | None] = {}
        #: By who told of them. Of some, nobody knows.
        self._open: dict[TracedProcess | None, _Open] = {}
        self._turns = 0
        self._doubts: dict[tuple[str | int, ...], _Doubt] = {}
        #: While the same calls are open:
        self._rows: dict[int, EventCounts] = {}  # by pid
        self._suspected: dict[tuple[int, ...], Suspects[Call]] = {}  # by who tells of them

    def run(self, events: Iterable[AttributionEvent]) -> None:
        steps = iter(events)
        lines = iter([*self._told, (sys.maxsize, 0, 0)])
        line = next(lines)
        for at, what, call in _edges(self._calls):
            while line[0] < at:
                if not self._vouch(steps, *line):
                    return
                line = next(lines)
            if not self._advance(steps, at - self.total):
                return
            self._turn(what, call)
        while line[0] < sys.maxsize:
            if not self._vouch(steps, *line):
                return
            line = next(lines)
        self._advance(steps, None)

    def _vouch(self, steps: Iterator[AttributionEvent], at: int, number: int, pid: int) -> bool:
        if not self._advance(steps, at - self.total):
            return False
        if number == POLICY:
            self.is_policy_forged |= self._is_decided_about(pid)
        elif self._own.is_telling(pid, "wrapper"):
            self.vouched.add(number)
        return True

    def _is_decided_about(self, pid: int) -> bool:
        """Whether it tells of calls itself, or was started after the first one, by who tells or for
        a call."""
        one = self._lineage.of(pid)
        has_told = any(teller.has_told for teller in self._lineage.acting(one))
        return has_told or one.is_late or pid in self._tree.owners

    def finish(self) -> Iterator[str]:
        """What is not certain."""
        if not all(one.is_hook for one in self._awaited):
            self._names.add(OTHERS)
        for group in self._open.values():
            for call in group.calls:
                _look_back(group, call)
        yield from self._names
        yield from (code("told_and_not_used", one, "replaced") for one in self._own.replaced)
        for calls in self._late:
            yield _code_of("kernel_events_after_call", calls)

    def _turn(self, what: _Edge, call: Call) -> None:
        start, end = call.pids
        if any(self._is_forged(call, told) for told in _ENDS[what]):
            self._names.add(code("sdk_tool_call_not_told_by_hook", call.id))
            call.is_forged = True
        if what == "passes" or (call.is_forged and call not in self._tellers):
            return
        self._turns += 1
        self._suspected.clear()
        if what == "opens":
            teller = self._tellers[call] = None if start is None else self._teller(start)
            self._open.setdefault(teller, _Open()).calls[call] = self._turns
            if call.command is not None:
                self._tree.expect(call, call.command)
        else:
            teller = self._tellers.pop(call)
            group = self._open[teller]
            _look_back(group, call)
            del group.calls[call]
            if not group.calls:
                del self._open[teller]
            if call.command is not None:
                self._tree.forget(call, call.command)
            if teller is not None and end is not None and self._teller(end) is not teller:
                self._names.add(code("sdk_tool_call_told_by_several_processes", call.id))
                call.is_doubted |= bool(call.tally)
                _add(call.tally, self.undecided)
                call.tally.clear()
            if call.is_forged:
                call.is_doubted |= bool(call.tally)
                _add(call.tally, self.undecided)
                call.tally.clear()
        if teller is None or (call.end is not None and end is None):
            self._names.add(code("sdk_tool_call_told_by_unknown_process", call.id))

    def _is_forged(self, call: Call, end: int) -> bool:
        """Whether somebody else wrote where the recorder's hook writes what it was told."""
        pid = call.pids[end]
        is_known = self._unseen if pid is None else not self._own.is_telling(pid, "hook")
        return call.hooked[end] and is_known

    def _teller(self, pid: int) -> TracedProcess:
        """Of a hook, the program that started it."""
        one = self._lineage.of(pid)
        if self._own.is_hook(pid):
            while one.parent is not None and (one.is_hook or not one.has_executed):
                one = one.parent
        self._lineage.tells(one)
        return one

    def _advance(self, steps: Iterator[AttributionEvent], count: int | None) -> bool:
        """With the same calls open. Whether there were that many."""
        if count is not None and count <= 0:
            return True
        rows = self._rows
        rows.clear()
        number = 0
        for pid, kind, told, times in steps:
            if told is not None or kind == EXIT:
                row = self._learn(pid, kind, told)
            else:
                known = rows.get(pid)
                row = self._row_of(pid) if known is None else known
                rows[pid] = row
            row[kind] += times
            number += times
            if number == count:
                break
        self.total += number
        self._settle()
        return number == count

    def _learn(self, pid: int, kind: int, told: StepDetails | None) -> EventCounts:
        is_own = self._own.has(pid, kind, told)
        if kind == EXEC and told is not None:
            is_own = self._executes(pid, told, is_own=is_own)
        if not is_own and told is not None and NEAR in (told.path or ""):
            self._claim(kind, told)
        row = self.unbound if is_own else self._rows.get(pid) or self._row_of(pid)
        if kind == FORK and told is not None:
            self._forks(pid, told.child)
        elif kind == EXIT:
            self._forget(pid)
            self._lineage.gone(pid)
            self._tree.gone(pid)
        return row

    def _forks(self, pid: int, child: int) -> None:
        self._lineage.forked(pid, child)
        self._tree.forked(pid, child, self._suspects(pid))
        self._forget(child)

    def _forget(self, pid: int) -> None:
        if self._lineage.of(pid).is_teller:
            self._rows.clear()  # who is a stranger depends on who is there to tell
        else:
            self._rows.pop(pid, None)

    def _executes(self, pid: int, told: StepDetails, *, is_own: bool) -> bool:
        calls = [group.calls for group in self._candidates(pid)]  # as what it was until now
        process = self._lineage.executed(pid)
        if self._tree.is_sure(pid) and self._own.is_hook(pid):
            self._own.a_call_runs(pid)
            is_own = False
        process.is_hook = self._own.is_hook(pid)
        if process.is_hook:
            self._tree.gone(pid)
        else:
            self._tree.executed(pid, told.asked, lambda call: any(call in one for one in calls))
        self._rows.pop(pid, None)
        return is_own

    def _claim(self, kind: int, told: StepDetails) -> None:
        if kind in (EXEC, OPEN) and told.path is not None:
            self.near.add((kind, told.path, told.ways, told.result))

    # --- where an event goes --------------------------------------------------------------------

    def _candidates(self, pid: int) -> Iterator[_Open]:
        """Of calls that are open, and that the process can be at work for by itself."""
        if not self._open:
            return
        if None in self._open:
            yield self._open[None]
        for teller in self._lineage.acting(self._lineage.of(pid)):
            if teller in self._open:
                yield self._open[teller]

    def _suspects(self, pid: int) -> Suspects[Call] | None:
        """What it starts now is started for one of these."""
        groups = list(self._candidates(pid))
        if not groups:
            return None
        key = tuple(map(id, groups))
        known = self._suspected.get(key)
        if known is None:
            calls = tuple(islice(chain.from_iterable(one.calls for one in groups), _NAMED + 1))
            known = self._suspected[key] = Suspects(calls, len(calls) <= _NAMED)
        return known

    def _row_of(self, pid: int) -> EventCounts:
        suspects = self._tree.owners.get(pid)
        if suspects is not None:
            return self._row_of_started(suspects)
        groups = list(self._candidates(pid))
        some = list(islice(chain.from_iterable(one.calls for one in groups), 2))
        if len(some) == 1:
            return some[0].tally
        if some:
            return self._doubt(OVERLAP, groups)
        if self._open:
            return self._doubt(OTHERS, self._open.values())
        return self._row_of_nobody(pid)

    def _row_of_started(self, suspects: Suspects[Call]) -> EventCounts:
        owner = suspects.owner
        if owner is not None and owner in self._tellers:
            return owner.tally
        if owner is None and any(call in self._tellers for call in suspects.calls):
            return self._doubt(OVERLAP, [suspects])
        self._late[suspects.calls] = None
        for call in suspects.calls:
            call.is_doubted = True
        return self.undecided if self._open else self.unbound

    def _row_of_nobody(self, pid: int) -> EventCounts:
        """While there is somebody to tell what is done, and it is none of them who does it, it
        is a stranger."""
        telling = self._lineage.telling
        if telling and not any(self._lineage.tellers_of(self._lineage.of(pid))):
            if any(one.has_told for one in telling):
                self._names.add(OTHERS)
            else:
                self._awaited |= telling
        return self.unbound

    def _doubt(self, why: str, groups: Iterable[_Open | Suspects[Call]]) -> EventCounts:
        key: tuple[str | int, ...] = (why, *map(id, groups))
        return self._doubts.setdefault(key, _Doubt(why, [*groups], defaultdict(int))).tally

    def _settle(self) -> None:
        for doubt in self._doubts.values():
            if doubt.tally:
                _add(doubt.tally, self.undecided)
                self._names.add(_code_of(doubt.why, doubt.calls))
                for group in doubt.groups:
                    if isinstance(group, _Open):
                        group.doubted = self._turns
                    else:
                        for call in group.calls:
                            call.is_doubted = True
        self._doubts.clear()


def _code_of(why: str, calls: Iterable[Call]) -> str:
    ids = [call.id for call in islice(calls, _NAMED + 1)]
    name = code(why, *sorted(ids[:_NAMED]))
    return f"{name},{_MORE}" if len(ids) > _NAMED else name


def _look_back(group: _Open, call: Call) -> None:
    call.is_doubted |= group.doubted >= group.calls[call]


def _add(some: EventCounts, to: EventCounts) -> None:
    for kind, count in some.items():
        to[kind] += count


def _edges(calls: Iterable[Call]) -> list[tuple[int, _Edge, Call]]:
    """In order. At the same number, no event lies between: which comes first is all one."""
    edges: list[tuple[int, _Edge, Call]] = []
    for call in in_order(calls):
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
