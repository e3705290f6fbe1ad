"""What strace writes, line by line, becomes the events of a kernel feed.

It promises that nothing in the text makes it fail, that it does not matter how the text was
cut, and that every line is accounted for: as an event, as a half of one, as nothing that is
evidence, or as unreadable.

The time is strace's own: each line says how long after the one before it was written, by the
clock that nobody sets. What the first line says of the wall clock places all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from msgspec import Struct

from stream.records.control import Gap
from stream.records.kernel import RawEvent
from stream.sources.kernel.doubts import ANSWERED, DOUBTED, Doubts
from stream.sources.kernel.strace_calls import (
    ACCEPTS,
    ATTACH,
    BY_NUMBER,
    CLONE_NEWNS,
    COMPAT,
    EXECS,
    FORKS,
    MOUNTS,
    NEW_LISTENER,
    REACHING,
    SEIZE,
    SENDS,
    TRACED,
    TREES,
    Told,
    clone_flags,
    may_mount,
    tell,
)
from stream.sources.kernel.strace_events import (
    Result,
    add_mark,
    enclose,
    make_event,
    move,
    read_result,
    sent_events,
)
from stream.sources.kernel.strace_tasks import Ask, Task, Tasks, ask_proc
from stream.sources.kernel.strace_values import exit_status
from stream.sources.kernel.strace_writes import END, WRITES, path_of, streams_of
from stream.sources.kernel.watch import Watch

Item = RawEvent | Gap
_SECOND = 1_000_000_000
_KNOWN = frozenset(call.encode() for call in {*TRACED, *BY_NUMBER, *TREES} - ({*MOUNTS} - {*TREES}))
_MOUNTS = frozenset(call.encode() for call in MOUNTS)
_EXECS = frozenset(call.encode() for call in EXECS)
_FORKS = frozenset(call.encode() for call in FORKS)
_ENDING = _KNOWN - _FORKS  #: that are events also where a process ends in the middle of one
_LINE = re.compile(
    rb"(\d+) +(\d+\.\d{9}) \(\+ +(\d+)\.(\d{9})\) "
    rb"(?:([\w?]+)\(|<\.\.\. ([\w?]+) resumed>|(---|\+\+\+) )(.*)",
    re.DOTALL,
).fullmatch
_CHANGED = re.compile(rb" <pid changed to \d+ \.\.\.>$").search
_SUPERSEDED = re.compile(rb"superseded by execve in pid (\d+) \+\+\+").fullmatch
_UNFINISHED, _DETACHED = b" <unfinished ...>", b" <detached ...>"
UNREADABLE = "a line of strace could not be read"
LOST_CALL = "strace misread the first call after an exec by a thread"


class Books(Struct):
    """Every line stands in one of the first four."""

    events: int = 0  #: lines that became an event
    halves: int = 0  #: lines that wait for another one, or for nothing any more
    besides: int = 0  #: lines of what is no evidence: a signal, a folder changed, a thread's end
    unparsed: int = 0
    told_twice: int = 0  #: events beyond one a line: of a fork that its child's line announced
    lost: int = 0  #: calls


class Lines:
    def __init__(
        self,
        monotonic_of: Callable[[int], int],
        cwd: str,
        ask: Ask = ask_proc,
        watch: Sequence[Watch] = (),
    ) -> None:
        """`monotonic_of`: of the first line's wall clock, ns."""
        self.books = Books()
        self.has_uring = False
        self._has_mounted = False  # or has mounts of its own: from then on
        self.tasks = Tasks(cwd, ask)
        self.doubts = Doubts()
        self._bound: dict[bytes, str] = {}  # sockets: the name of a local one, else nothing
        self._monotonic_of = monotonic_of
        self._streams = streams_of(watch)
        self._now: int | None = None
        self._parts: list[bytes] = []  # of a line that is not whole yet
        # By thread: the call and its arguments; of a write, the path of what it writes to.
        self._halves: dict[int, tuple[bytes, bytes]] = {}
        self._superseded: set[int] = set()
        self._out: list[Item] = []

    @property
    def has_begun(self) -> bool:
        return self._now is not None

    def feed(self, data: bytes) -> list[Item]:
        head, newline, rest = data.partition(b"\n")
        self._parts.append(head)
        if newline:
            whole = b"".join(self._parts)
            *lines, last = rest.split(b"\n")
            self._parts = [last]
            self._read(whole)
            for line in lines:
                self._read(line)
        return self._take()

    def finish(self) -> list[Item]:
        """There is no more."""
        last = b"".join(self._parts)
        self._parts = []
        if last:
            self._read(last)
        return self._take()

    def _take(self) -> list[Item]:
        out, self._out = self._out, []
        return out

    def _read(self, line: bytes) -> None:
        found = _LINE(line)
        if found is None:
            self._give_up()
            return
        pid, wall, seconds, fraction, call, resumed, sign, rest = found.groups()
        if self._now is None:
            self._now = self._monotonic_of(int(wall.replace(b".", b"")))
        else:
            self._now += int(seconds) * _SECOND + int(fraction)
        tid = int(pid)
        if sign == b"---":
            self.books.besides += 1
        elif sign:
            self._heed(tid, rest)
        elif call:
            self._begin(tid, call, rest)
        else:
            self._resume(tid, resumed, rest)

    def _begin(self, tid: int, call: bytes, rest: bytes) -> None:
        self._superseded.discard(tid)
        task = self._task(tid)
        if call in WRITES:
            self._begin_write(tid, task, call, rest)
            return
        args = _cut(rest)
        if call in _FORKS:
            flags = clone_flags(call.decode(), rest)
            self.tasks.fork_begins(tid, task, flags or 0)
            self._has_mounted |= bool((flags or 0) & CLONE_NEWNS)
        elif call in _MOUNTS:
            self._mount_begins(call.decode(), rest)
        if args is None:
            self._complete(tid, task, call, rest)
        else:
            self.books.halves += 1
            self._halves[tid] = (call, args)

    def _mount_begins(self, call: str, rest: bytes) -> None:
        """Others may see what it does before strace says that it is done."""
        result = read_result(rest)
        is_refused = result is not None and result.ret is not None and result.ret < 0
        end = len(rest) if result is None else result.start
        self._has_mounted |= not is_refused and may_mount(call, rest[:end])

    def _begin_write(self, tid: int, task: Task, call: bytes, rest: bytes) -> None:
        """Its data may be long: nothing looks at it, and it is not kept."""
        path, end = path_of(call, rest), rest[-END:]
        if _cut(end) is None:
            self._wrote(tid, task, path, end)
        else:
            self.books.halves += 1
            self._halves[tid] = (call, path)

    def _resume(self, tid: int, call: bytes, rest: bytes) -> None:
        if tid in self._superseded and call in _EXECS:
            self._superseded.discard(tid)
            return self._after_exec(rest)
        began = self._halves.pop(tid, None)
        if began is None or began[0] != call:
            self._give_up()
            return None
        if call in WRITES:
            return self._wrote(tid, self._task(tid), began[1], rest)
        return self._complete(tid, self._task(tid), call, began[1] + rest)

    def _complete(self, tid: int, task: Task, call: bytes, text: bytes) -> None:
        result = self._end_in(text)
        if result is None:
            return
        if call in _FORKS:
            self._forked(tid, task, result)
        elif call not in _KNOWN:
            self.books.besides += 1
        else:
            self._known(tid, task, call.decode(), text[: result.start], result)

    def _end_in(self, text: bytes) -> Result | None:
        """None: it has none, which is in the books."""
        result = read_result(text)
        if result is None:
            self._give_up()
        return result

    def _known(self, tid: int, task: Task, call: str, args: bytes, result: Result) -> None:
        name = COMPAT.get(call, call)
        told = tell(name, args.removesuffix(_UNFINISHED))
        if told is None:
            self._give_up()
            return
        if name != call:
            told.mark("compat")
        self._called(tid, task, name, told, result)

    def _called(self, tid: int, task: Task, call: str, told: Told, result: Result) -> None:
        if call in ("chdir", "fchdir", "chroot"):
            if call == "chroot":
                enclose(task.folder, result)
            else:
                move(task.folder, told, result)
            self.books.besides += 1
            return
        if call == "seccomp":
            if (result.ret or 0) >= 0 and told.flags & NEW_LISTENER:
                self.doubts.add(ANSWERED)
            self.books.besides += 1
            return
        if call in SENDS:
            events = sent_events(self._time, task, tid, call, told, result)
            for event in events:
                self._send(event)
            self.books.besides += not events
            more = max(len(events) - 1, 0)
            self.books.events -= more
            self.books.told_twice += more
            return
        call = BY_NUMBER.get(call, call)
        if self._is_nothing(call, told, result):
            self.books.besides += 1
            return
        if call == "io_uring_setup" and (result.ret or 0) >= 0:
            self.has_uring = True
        if call in EXECS and result.ret == 0:
            call = "exec"
        event = make_event(self._time, task, tid, call, told, result)
        if call == "bind" and result.ret == 0:
            self._bound[told.socket] = _bound_as(event)
        elif call in ACCEPTS and event.peer in (None, "unix:"):
            event.peer = self._bound.get(told.socket) or event.peer
        elif call in REACHING:
            is_own = told.target is not None and told.target in self.tasks.living
            if (result.ret or 0) >= 0 and not is_own:
                add_mark(event, "outside")
        if call in DOUBTED:
            self.doubts.take(event)
        self._send(event)

    def _is_nothing(self, call: str, told: Told, result: Result) -> bool:
        """A request to a process that is traced already; nobody who came."""
        if call == "ptrace":
            return told.flags not in (ATTACH, SEIZE)
        return call in ACCEPTS and (result.ret is None or result.ret < 0)

    def _wrote(self, tid: int, task: Task, path: bytes, end: bytes) -> None:
        result = self._end_in(end)
        if result is None:
            return
        if path not in self._streams or not result.ret or result.ret < 0:
            self.books.besides += 1
        else:
            event = RawEvent(self._time, task.group, tid, "wrote", size=result.ret, scope="tree")
            event.stream = self._streams[path]
            self._send(event)

    def _forked(self, tid: int, task: Task, result: Result) -> None:
        fork = self.tasks.fork_ends(tid, result.child)
        if fork is None:
            self.books.besides += 1
            return
        self._send(self._fork(fork, tid, result.child))

    def _heed(self, tid: int, text: bytes) -> None:
        if by := _SUPERSEDED(text):
            self._supersede(tid, int(by[1]))
            return
        status = exit_status(text)
        if status is None:
            self._give_up()
            return
        task = self._task(tid)
        self._cut_short(tid, task)
        self.tasks.end(tid)
        if task.group != tid:
            self.books.besides += 1
        else:
            self._send(RawEvent(self._time, tid, tid, "exit", status=status, scope="tree"))

    def _cut_short(self, tid: int, task: Task) -> None:
        """In the middle of a call, which may have reached somebody nevertheless."""
        call, args = self._halves.pop(tid, (b"", b""))
        if call in _ENDING:
            self.books.halves -= 1
            self._known(tid, task, call.decode(), args, Result(0, None))

    def _supersede(self, tid: int, by: int) -> None:
        """A thread has executed a program, and goes on as its process's first one."""
        task = self._task(tid)
        call, args = self._halves.pop(by, (b"", b""))
        self._cut_short(tid, task)
        self.tasks.end(by)
        told = tell(call.decode(), args) if call in _EXECS else None
        self._superseded.add(tid)
        if told is None:
            self._give_up()
            return
        told.mark("thread_exec")
        self._send(make_event(self._time, task, tid, "exec", told, Result(0, 0)))

    def _after_exec(self, rest: bytes) -> None:
        """What strace says of it after that. With seccomp, it takes the program's first call for
        the end of the exec."""
        result = read_result(rest)
        self.books.halves += 1
        if result is None or result.is_misread:
            self.books.lost += 1
            self._out.append(Gap(source="strace", lost=1, reason=LOST_CALL))

    def _task(self, tid: int) -> Task:
        task, parent = self.tasks.find(tid)
        if parent is not None:
            self.books.told_twice += 1
            self._out.append(self._fork(parent, parent.group, tid))
        return task

    def _fork(self, parent: Task, tid: int, child: int) -> RawEvent:
        return RawEvent(self._time, parent.group, tid, "fork", child=child, scope="tree")

    def _give_up(self) -> None:
        self.books.unparsed += 1
        self._out.append(Gap(source="strace", lost=1, reason=UNREADABLE))

    def _send(self, event: RawEvent) -> None:
        self.books.events += 1
        if self._has_mounted and (event.path or event.resolved or event.to_path) is not None:
            add_mark(event, "other_mounts")
        self._out.append(event)

    @property
    def _time(self) -> int:
        assert self._now is not None
        return self._now


def _bound_as(event: RawEvent) -> str:
    """The name of a local socket; else nothing."""
    if event.path is None:
        return event.peer if event.peer is not None and event.peer.startswith("unix:") else ""
    is_whole = event.path.startswith("/") or event.base is None
    return f"unix:{event.path if is_whole else f'{event.base}/{event.path}'}"


def _cut(rest: bytes) -> bytes | None:
    """The arguments of a call that has not returned yet."""
    if rest.endswith(_UNFINISHED):
        return rest[: -len(_UNFINISHED)]
    if rest.endswith(_DETACHED):
        return rest[: -len(_DETACHED)]
    changed = _CHANGED(rest)
    return rest[: changed.start()] if changed else None
