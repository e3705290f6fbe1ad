"""What strace writes, line by line, becomes the events of a kernel feed.

Nothing in the text makes it fail, it does not matter how the text was cut, and every line is
counted: as an event, as a half of one, as nothing that is evidence, or as unreadable. strace names
threads, and records name processes and their folders: a child often speaks before the call that
made it returns, and is then known by the calls that are still under way. The data of a write is
never looked at: before it stands the descriptor, after it how many bytes it was.

The time is strace's own: each line says how long after the one before it was written, by the
clock that nobody sets. What the first line says of the wall clock places all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct, field

from stream.records.control import Gap
from stream.records.kernel import RawEvent, leaves_base_folder
from stream.sources.kernel import strace_syntax as syntax
from stream.sources.kernel.calls import (
    ACCEPTS,
    ANSWERED,
    DOUBTED,
    REACHING,
    SENDS,
    LossReasons,
    WatchedFile,
)
from stream.sources.kernel.strace_syntax import (
    CallArguments,
    CallResult,
    add_mark,
    clone_flags,
    may_mount,
    parse_call_arguments,
    read_call_result,
    strace_exit_status,
)


class TaskFolder(Struct):
    """The folder that paths start from. Threads share one."""

    path: str | None  #: None: not known
    is_from_text: bool = False  #: by the text of a chdir, which may go through links
    is_rooted: bool = False  #: its process has another root than the run began with


class Descriptors(Struct):
    """The descriptors of one process, or of several threads."""

    users: int = 1


class Task(Struct):
    """A thread of the run."""

    group: int
    folder: TaskFolder
    descriptors: Descriptors = field(default_factory=Descriptors)


class Fork(Struct):
    """A call under way that makes a process or a thread."""

    caller: Task
    flags: int
    child: int = 0  #: who is taken to be its child already

    @property
    def makes_thread(self) -> bool:
        """Tell whether the child is a thread of its caller."""
        return bool(self.flags & syntax.CLONE_THREAD)

    def child_task(self, child: int) -> Task:
        """Return the task of the child that the call made."""
        folder = self.caller.folder
        group = self.caller.group if self.makes_thread else child
        task = Task(
            group, folder if self.flags & syntax.CLONE_FS else msgspec.structs.replace(folder)
        )
        if self.flags & syntax.CLONE_FILES:
            task.descriptors = self.caller.descriptors
            task.descriptors.users += 1
        return task


AskThread = Callable[[int], tuple[int, int] | None]  #: of a thread: process, and its parent


def ask_proc_for_thread(tid: int) -> tuple[int, int] | None:
    """Ask /proc for the process and the parent of a thread; None: it is over."""
    from pathlib import Path

    try:
        lines = Path(f"/proc/{tid}/status").read_text(errors="replace").splitlines()
        found = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        return int(found["Tgid"]), int(found["PPid"])
    except (OSError, KeyError, ValueError):
        return None


class Tasks:
    """The threads of a run, and whose each is."""

    def __init__(self, cwd: str, ask: AskThread = ask_proc_for_thread) -> None:
        self.living: dict[int, Task] = {}
        #: came from nowhere that is known: whoever made them has not returned from it, or never did
        self.uncertain: set[int] = set()
        self.untraced = 0  #: made so that no tracer can follow
        self._cwd = cwd
        self._ask = ask
        self._forks: dict[int, Fork] = {}  # by who calls
        self._early: set[int] = set()  # announced before the call that made them was over
        self._has_begun = False

    @property
    def unannounced(self) -> int:
        """Return how many processes nobody was seen to make."""
        return self.untraced + len(self.uncertain)

    def find_task(self, tid: int) -> tuple[Task, Task | None]:
        """Return the task of a thread, and its parent where it is a process that has not been
        announced yet."""
        task = self.living.get(tid)
        if task is not None:
            return task, None
        return self._add_unannounced(tid)

    def begin_fork(self, tid: int, caller: Task, flags: int) -> None:
        """Note a call that makes a process or a thread."""
        self._forks[tid] = Fork(caller, flags)

    def end_fork(self, tid: int, child: int | None) -> Task | None:
        """Note the end of a call that makes a process or a thread; return the parent where the
        child is a process that has not been announced yet."""
        fork = self._forks.pop(tid)
        if not child:
            return None
        if child in self._early:
            self._early.discard(child)
            return None
        if child in self.uncertain:
            self.uncertain.discard(child)
            if child in self.living and fork.makes_thread:
                self.living[child].group = fork.caller.group
                self.living[child].descriptors = fork.caller.descriptors
                fork.caller.descriptors.users += 1
        elif fork.flags & syntax.CLONE_UNTRACED:
            self.untraced += 1
        else:
            self.living[child] = fork.child_task(child)
        return None if fork.makes_thread else fork.caller

    def forget_thread(self, tid: int) -> None:
        """Forget a thread that ended."""
        if task := self.living.pop(tid, None):
            task.descriptors.users -= 1
        self._forks.pop(tid, None)

    def _add_unannounced(self, tid: int) -> tuple[Task, Task | None]:
        """Add a thread that strace shows before the call that made it has returned."""
        fork = self._find_fork(tid)
        if fork is None:
            if self._has_begun:
                self.uncertain.add(tid)
            self._has_begun = True
            task = self.living[tid] = Task(tid, TaskFolder(self._cwd))
            return task, None
        fork.child = tid
        self._early.add(tid)
        task = self.living[tid] = fork.child_task(tid)
        return task, None if fork.makes_thread else fork.caller

    def _find_fork(self, tid: int) -> Fork | None:
        """Find the call, not yet over, that made a thread which strace shows for the first time."""
        forks = [fork for fork in self._forks.values() if not fork.child]
        if len({(fork.caller.group, fork.makes_thread) for fork in forks}) > 1:
            answer = self._ask(tid)
            if answer is None:
                return None
            group, parent = answer
            forks = [
                fork
                for fork in forks
                if fork.makes_thread == (group != tid)
                and fork.caller.group == (group if fork.makes_thread else parent)
            ]
        return forks[0] if forks else None


#: Calls that give a descriptor of what they reached.
_GIVING = (
    *("open", "creat", "openat", "openat2", "open_by_handle_at", "pidfd_getfd"),
    *syntax.TREES,
)
_DELETED = " (deleted)"
_LINKS = {"root", "cwd", "exe", "fd", "map_files"}  #: of a process in /proc


def change_folder(folder: TaskFolder, parsed: CallArguments, result: CallResult) -> None:
    """Follow a chdir or fchdir."""
    """Take over the folder that a call has changed to."""
    if result.ret != 0:
        return
    path = parsed.event.path
    if path is None:
        folder.path, folder.is_from_text = parsed.fd, False
    elif path.startswith("/"):
        folder.path, folder.is_from_text = None if folder.is_rooted else path, True
    elif folder.path is not None:
        folder.path, folder.is_from_text = f"{folder.path.rstrip('/')}/{path}", True


def make_strace_event(
    ts: int, task: Task, tid: int, call: str, parsed: CallArguments, result: CallResult
) -> RawEvent:
    """Complete the event of a call by when and by whom it was made, where, and what came of it."""
    event = parsed.event
    event.ts, event.pid, event.tid, event.call, event.ret = ts, task.group, tid, call, result.ret
    if call == "unlinkat" and event.flags & syntax.AT_REMOVEDIR:
        event.call = "rmdir"
    _set_base_folders(event, task.folder, parsed)
    if call == "exec":
        _name_executed_program(event, parsed)
    if call in _GIVING:
        if result.has_succeeded:
            _set_given_descriptor(event, result)
    elif parsed.fd is not None or "fd" in parsed.gone:
        _reach(event, parsed.fd, "fd" in parsed.gone)
    elif event.path == "" and parsed.dir not in (None, syntax.OWN):
        _reach(event, parsed.dir, "dir" in parsed.gone)
    if task.descriptors.users > 1 and event.resolved not in (None, event.path):
        add_mark(event, "shared_files")
    if _is_path_of_other_process(event.path, event.base) or _is_path_of_other_process(
        event.to_path, event.to_base
    ):
        add_mark(event, "other_mounts")
    return event


def strace_send_events(
    ts: int, task: Task, tid: int, call: str, parsed: CallArguments, result: CallResult
) -> list[RawEvent]:
    """Make an event for each message that names somebody. How one failed, behind others that were
    sent, is not to be seen; those behind it nobody tried."""
    sent = max(result.ret or 0, 0)
    events = []
    for index, message in enumerate([parsed, *parsed.others][: sent + 1]):
        is_unseen = call == "sendmmsg" and index == sent > 0
        if message.has_peer:
            one = CallResult(result.start, None) if is_unseen else result
            events.append(make_strace_event(ts, task, tid, call, message, one))
    return events


def _name_executed_program(event: RawEvent, parsed: CallArguments) -> None:
    """Name a program as the kernel calls what it runs, where a descriptor was named."""
    event.flags = 0
    if parsed.number is not None and event.path is not None and not event.path.startswith("/"):
        event.path = f"/dev/fd/{parsed.number}" + (event.path and f"/{event.path}")


def _set_given_descriptor(event: RawEvent, result: CallResult) -> None:
    """Set what is behind the descriptor that a call has given."""
    if event.call in syntax.TREES and event.flags & syntax.CLONES_TREE:
        add_mark(event, "unreachable")  # it lies among no mounts, and strace calls it `/`
    elif event.call == "open_by_handle_at" and result.path is None:
        add_mark(event, "fault")  # of which some versions do not tell it
    else:
        _reach(event, result.path, result.is_deleted)


def _reach(event: RawEvent, path: str | None, is_deleted: bool) -> None:
    event.resolved = path
    if event.resolved is None or is_deleted:
        add_mark(event, "unreachable")


def _set_base_folders(event: RawEvent, folder: TaskFolder, parsed: CallArguments) -> None:
    """Set the folders that relative paths start from."""
    is_gone = _correct_folder(folder, parsed.here)
    if folder.is_rooted:
        event.marks.append("other_root")
    if parsed.is_socket_file and folder.path is not None and event.peer is not None:
        event.peer = f"unix:{folder.path.rstrip('/')}/{event.peer.removeprefix('unix:')}"
    named = None if event.call.startswith("symlink") else event.path  # of a symlink it is a text
    for path, start, name, base in (
        (named, parsed.dir, "dir", "base"),
        (event.to_path, parsed.todir, "todir", "to_base"),
    ):
        if path is None or path.startswith("/"):
            continue
        is_own = start == syntax.OWN
        if is_gone if is_own else name in parsed.gone:
            add_mark(event, "unreachable")
        if is_own:
            start = None if folder.is_from_text and leaves_base_folder(path) else folder.path
        setattr(event, base, start)


def _correct_folder(folder: TaskFolder, here: str | None) -> bool:
    """Correct the folder by what strace has read. Return whether the folder has no name any
    more."""
    if here is None or here == folder.path:
        folder.is_from_text &= here is None
        return False
    folder.is_from_text = False
    is_gone = here.endswith(_DELETED)
    folder.path = here.removesuffix(_DELETED)
    return is_gone


def _is_path_of_other_process(path: str | None, base: str | None) -> bool:
    """Return whether a path goes through what another process has, whose mounts may be others:
    strace then says where the file lies among those."""
    if path is None:
        return False
    whole = path if path.startswith("/") else f"{base or ''}/{path}"
    if "/proc/" not in whole:
        return False
    parts = [part for part in whole.split("/") if part not in ("", ".")]
    rest = parts[parts.index("proc") + 1 :]
    is_own = rest[:1] in (["self"], ["thread-self"]) and ".." not in rest
    return not is_own and not _LINKS.isdisjoint(rest)


Item = RawEvent | Gap
_SECOND = 1_000_000_000
_KNOWN = {*syntax.TRACED, *syntax.BY_NUMBER, *syntax.TREES} - ({*syntax.MOUNTS} - {*syntax.TREES})
_ENDING = _KNOWN - {
    *syntax.FORKS
}  #: that are events also where a process ends in the middle of one
_LINE = re.compile(
    rb"(\d+) +(\d+\.\d{9}) \(\+ +(\d+)\.(\d{9})\) "
    rb"(?:([\w?]+)\(|<\.\.\. ([\w?]+) resumed>|(---|\+\+\+) )(.*)",
    re.DOTALL,
).fullmatch
_SUPERSEDED = re.compile(rb"superseded by execve in pid (\d+) \+\+\+").fullmatch
UNREADABLE = "a line of strace could not be read"
LOST_CALL = "strace misread the first call after an exec by a thread"


class LineCounts(Struct):
    """What became of each line: it stands in one of the first four."""

    events: int = 0  #: lines that became an event
    halves: int = 0  #: lines that wait for another one, or for nothing any more
    others: int = 0  #: lines of what is no evidence: a signal, a folder changed, a thread's end
    unparsed: int = 0
    extra_events: int = 0  #: events beyond one a line: of a fork that its child's line announced
    lost: int = 0  #: calls


class StraceParser:
    """Parses what strace writes about one run."""

    def __init__(
        self,
        monotonic_of: Callable[[int], int],
        cwd: str,
        ask: AskThread = ask_proc_for_thread,
        watch: Sequence[WatchedFile] = (),
    ) -> None:
        """`monotonic_of` converts the wall clock of the first line, in ns."""
        self.counts = LineCounts()
        self.has_uring = False
        self._has_mounted = False  # or has mounts of its own: from then on
        self.tasks = Tasks(cwd, ask)
        self.doubts = LossReasons()
        self._bound: dict[bytes, str] = {}  # sockets: the name of a local one, else nothing
        self._monotonic_of = monotonic_of
        self._streams = syntax.streams_by_path(watch)
        self._now: int | None = None
        self._parts: list[bytes] = []  # of a line that is not whole yet
        # By thread: the call and its arguments; of a write, the path of what it writes to.
        self._halves: dict[int, tuple[str, bytes]] = {}
        self._superseded: set[int] = set()
        self._out: list[Item] = []

    @property
    def has_begun(self) -> bool:
        """Tell whether strace has written anything."""
        return self._now is not None

    def feed(self, data: bytes) -> list[Item]:
        """Return the events of the strace lines that these bytes complete."""
        head, newline, rest = data.partition(b"\n")
        self._parts.append(head)
        if newline:
            whole = b"".join(self._parts)
            *lines, last = rest.split(b"\n")
            self._parts = [last]
            self._read_line(whole)
            for line in lines:
                self._read_line(line)
        return self._take_items()

    def finish(self) -> list[Item]:
        """Return the events of what is left of strace's lines: there is no more."""
        last = b"".join(self._parts)
        self._parts = []
        if last:
            self._read_line(last)
        return self._take_items()

    def _take_items(self) -> list[Item]:
        out, self._out = self._out, []
        return out

    def _read_line(self, line: bytes) -> None:
        """Read a strace line: a signal, the end of a thread, the begin or the rest of a call."""
        found = _LINE(line)
        if found is None:
            self._count_unparsed()
            return
        pid, wall, seconds, fraction, call, resumed, sign, rest = found.groups()
        if self._now is None:
            self._now = self._monotonic_of(int(wall.replace(b".", b"")))
        else:
            self._now += int(seconds) * _SECOND + int(fraction)
        tid = int(pid)
        if sign == b"---":
            self.counts.others += 1
        elif sign:
            self._end_thread(tid, rest)
        elif call:
            self._begin_call(tid, call.decode(), rest)
        else:
            self._resume_call(tid, resumed.decode(), rest)

    def _begin_call(self, tid: int, call: str, rest: bytes) -> None:
        """Begin the call of a strace line, and complete it where the line holds its end as well."""
        self._superseded.discard(tid)
        task = self._task_of_thread(tid)
        if call in syntax.WRITES:
            self._begin_write(tid, task, call, rest)
            return
        args = syntax.unfinished_arguments(rest)
        if call in syntax.FORKS:
            flags = clone_flags(call, rest)
            self.tasks.begin_fork(tid, task, flags or 0)
            self._has_mounted |= bool((flags or 0) & syntax.CLONE_NEWNS)
        elif call in syntax.MOUNTS:
            self._begin_mount(call, rest)
        if args is None:
            self._complete_call(tid, task, call, rest)
        else:
            self.counts.halves += 1
            self._halves[tid] = (call, args)

    def _begin_mount(self, call: str, rest: bytes) -> None:
        """Note a call that may mount: others may see what it does before strace says that it is
        done."""
        result = read_call_result(rest)
        end = len(rest) if result is None else result.start
        if result is None or not result.has_failed:
            self._has_mounted |= may_mount(call, rest[:end])

    def _begin_write(self, tid: int, task: Task, call: str, rest: bytes) -> None:
        """Begin a write. Its data may be long: nothing looks at it, and it is not kept."""
        path, end = syntax.path_of_write(call, rest), rest[-syntax.END :]
        if syntax.unfinished_arguments(end) is None:
            self._add_watched_write(tid, task, path, end)
        else:
            self.counts.halves += 1
            self._halves[tid] = (call, path)

    def _resume_call(self, tid: int, call: str, rest: bytes) -> None:
        """Complete a call whose begin stood on an earlier strace line."""
        if tid in self._superseded and call in syntax.EXECS:
            self._superseded.discard(tid)
            return self._read_line_after_exec(rest)
        began = self._halves.pop(tid, None)
        if began is None or began[0] != call:
            self._count_unparsed()
            return None
        if call in syntax.WRITES:
            return self._add_watched_write(tid, self._task_of_thread(tid), began[1], rest)
        return self._complete_call(tid, self._task_of_thread(tid), call, began[1] + rest)

    def _complete_call(self, tid: int, task: Task, call: str, text: bytes) -> None:
        """Read how a call of strace ended, and add it."""
        result = self._read_call_end(text)
        if result is None:
            return
        if call in syntax.FORKS:
            self._add_fork(tid, task, result)
        elif call not in _KNOWN:
            self.counts.others += 1
        else:
            self._parse_call(tid, task, call, text[: result.start], result)

    def _read_call_end(self, text: bytes) -> CallResult | None:
        """Return how a call ended; None: that cannot be read, which is counted."""
        result = read_call_result(text)
        if result is None:
            self._count_unparsed()
        return result

    def _parse_call(self, tid: int, task: Task, call: str, args: bytes, result: CallResult) -> None:
        """Parse the arguments of a call that strace has shown whole, and add its event."""
        name = syntax.COMPAT.get(call, call)
        parsed = parse_call_arguments(name, args.removesuffix(syntax.UNFINISHED))
        if parsed is None:
            self._count_unparsed()
            return
        if name != call:
            add_mark(parsed.event, "compat")
        self._add_call(tid, task, name, parsed, result)

    def _add_call(
        self, tid: int, task: Task, call: str, parsed: CallArguments, result: CallResult
    ) -> None:
        """Add the events of a call that strace shows, and follow what it changes for later ones."""
        if call in ("chdir", "fchdir", "chroot"):
            if call == "chroot":
                task.folder.is_rooted |= result.ret == 0
            else:
                change_folder(task.folder, parsed, result)
            self.counts.others += 1
            return
        if call == "seccomp":
            if not result.has_failed and parsed.event.flags & syntax.NEW_LISTENER:
                self.doubts.add_reason(ANSWERED)
            self.counts.others += 1
            return
        if call in SENDS:
            events = strace_send_events(self._line_time, task, tid, call, parsed, result)
            for index, event in enumerate(events):
                self._add_kernel_event(event, is_extra=index > 0)
            self.counts.others += not events
            return
        call = syntax.BY_NUMBER.get(call, call)
        if self._is_call_without_effect(call, parsed, result):
            self.counts.others += 1
            return
        if call == "io_uring_setup" and not result.has_failed:
            self.has_uring = True
        if call in syntax.EXECS and result.ret == 0:
            call = "exec"
        event = make_strace_event(self._line_time, task, tid, call, parsed, result)
        if call == "bind" and result.ret == 0:
            self._bound[parsed.socket] = _bound_socket_name(event)
        elif call in ACCEPTS and event.peer in (None, "unix:"):
            event.peer = self._bound.get(parsed.socket) or event.peer
        elif call in REACHING and not result.has_failed and event.target not in self.tasks.living:
            add_mark(event, "outside")
        if call in DOUBTED:
            self.doubts.note_kernel_event(event)
        self._add_kernel_event(event)

    def _is_call_without_effect(self, call: str, parsed: CallArguments, result: CallResult) -> bool:
        """Return whether a call did nothing: a request to a process that is traced already, or an
        accept to which nobody came."""
        if call == "ptrace":
            return parsed.event.flags not in (syntax.ATTACH, syntax.SEIZE)
        return call in ACCEPTS and not result.has_succeeded

    def _add_watched_write(self, tid: int, task: Task, path: bytes, end: bytes) -> None:
        """Add the write of a process that strace shows, if it went to a watched stream."""
        result = self._read_call_end(end)
        if result is None:
            return
        if path not in self._streams or not result.ret or result.ret < 0:
            self.counts.others += 1
        else:
            event = RawEvent(
                self._line_time, task.group, tid, "wrote", size=result.ret, scope="tree"
            )
            event.stream = self._streams[path]
            self._add_kernel_event(event)

    def _add_fork(self, tid: int, task: Task, result: CallResult) -> None:
        """Add the event of a new process, once the call that made it has returned in strace."""
        fork = self.tasks.end_fork(tid, result.child)
        if fork is None:
            self.counts.others += 1
            return
        self._add_kernel_event(self._fork_event(fork, tid, result.child))

    def _end_thread(self, tid: int, text: bytes) -> None:
        """End a thread that strace says is over; the last thread's end is its process's exit."""
        if by := _SUPERSEDED(text):
            self._supersede_thread(tid, int(by[1]))
            return
        status = strace_exit_status(text)
        if status is None:
            self._count_unparsed()
            return
        task = self._task_of_thread(tid)
        self._end_call_unseen(tid, task)
        self.tasks.forget_thread(tid)
        if task.group != tid:
            self.counts.others += 1
        else:
            self._add_kernel_event(
                RawEvent(self._line_time, tid, tid, "exit", status=status, scope="tree")
            )

    def _end_call_unseen(self, tid: int, task: Task) -> None:
        """Record the call in whose middle a thread ended: it may have reached somebody
        nevertheless."""
        call, args = self._halves.pop(tid, ("", b""))
        if call in _ENDING:
            self.counts.halves -= 1
            self._parse_call(tid, task, call, args, CallResult(0, None))

    def _supersede_thread(self, tid: int, by: int) -> None:
        """Follow a thread that has executed a program, and goes on as its process's first one."""
        task = self._task_of_thread(tid)
        call, args = self._halves.pop(by, ("", b""))
        self._end_call_unseen(tid, task)
        self.tasks.forget_thread(by)
        parsed = parse_call_arguments(call, args) if call in syntax.EXECS else None
        self._superseded.add(tid)
        if parsed is None:
            self._count_unparsed()
            return
        add_mark(parsed.event, "thread_exec")
        self._add_kernel_event(
            make_strace_event(self._line_time, task, tid, "exec", parsed, CallResult(0, 0))
        )

    def _read_line_after_exec(self, rest: bytes) -> None:
        """Read what strace says of an exec by a thread after that. With seccomp, it takes the
        program's first call for the end of the exec."""
        result = read_call_result(rest)
        self.counts.halves += 1
        if result is None or result.is_misread:
            self.counts.lost += 1
            self._out.append(Gap(source="strace", lost=1, reason=LOST_CALL))

    def _task_of_thread(self, tid: int) -> Task:
        """Return the task of a thread; add the fork of a process that strace had not announced."""
        task, parent = self.tasks.find_task(tid)
        if parent is not None:
            self.counts.extra_events += 1
            self._out.append(self._fork_event(parent, parent.group, tid))
        return task

    def _fork_event(self, parent: Task, tid: int, child: int) -> RawEvent:
        return RawEvent(self._line_time, parent.group, tid, "fork", child=child, scope="tree")

    def _count_unparsed(self) -> None:
        self.counts.unparsed += 1
        self._out.append(Gap(source="strace", lost=1, reason=UNREADABLE))

    def _add_kernel_event(self, event: RawEvent, *, is_extra: bool = False) -> None:
        """Add an event to what the strace feed delivers next, and count it."""
        self.counts.extra_events += is_extra
        self.counts.events += not is_extra
        if self._has_mounted and (event.path or event.resolved or event.to_path) is not None:
            add_mark(event, "other_mounts")
        self._out.append(event)

    @property
    def _line_time(self) -> int:
        assert self._now is not None
        return self._now


def _bound_socket_name(event: RawEvent) -> str:
    """Return the name that a local socket was bound to; else nothing."""
    if event.path is None:
        return event.peer if event.peer is not None and event.peer.startswith("unix:") else ""
    is_whole = event.path.startswith("/") or event.base is None
    return f"unix:{event.path if is_whole else f'{event.base}/{event.path}'}"
