"""An event of a call that is over: what its arguments said, how it ended, and where it was made."""

from __future__ import annotations

import re
from errno import errorcode

from msgspec import Struct

from stream.records.kernel import Mark, RawEvent, goes_up
from stream.sources.kernel.strace_calls import AT_REMOVEDIR, CLONES_TREE, OWN, TREES, Told
from stream.sources.kernel.strace_tasks import Folder, Task
from stream.sources.kernel.strace_values import file_name, number

_NUMBERS = {name.encode(): value for value, name in errorcode.items()} | {
    b"EWOULDBLOCK": 11,
    b"EDEADLOCK": 35,
    b"ENOTSUPP": 524,
}
_RESULT = re.compile(
    rb"\)\s+= (-?\d+|0x[0-9a-f]+|\?)(?:<([^<>]*)>(\(deleted\))?)?"
    rb"(?: /\* (\d+) in strace's PID NS \*/)?"
    rb"(?: (E[A-Z0-9]+)(?: \(.*\))?| \(errno (\d+)\)| <unavailable>)?$"
).search
_DELETED = " (deleted)"
_LINKS = {"root", "cwd", "exe", "fd", "map_files"}  #: of a process in /proc


class Result(Struct):
    start: int  #: where the arguments end
    ret: int | None
    path: str | None = None
    is_deleted: bool = False
    child: int = 0
    is_misread: bool = False


def read_result(text: bytes) -> Result | None:
    """None: it does not end as a call ends."""
    found = _RESULT(text)
    if found is None:
        return None
    value, file, deleted, child, name, errno = found.groups()
    if value == b"?":
        return Result(found.start(), None)  # interrupted, or ended in the middle
    ret: int | None = number(value)
    if name is not None:
        known = _NUMBERS.get(name)
        ret = None if known is None else -known
    elif errno is not None:
        ret = -int(errno)
    try:
        path = None if file is None else file_name(file, bool(deleted))
    except ValueError:
        return None
    return Result(
        found.start(),
        ret,
        path,
        bool(deleted),
        child=int(child) if child else max(ret or 0, 0),
        is_misread=errno is not None and len(errno) > 9,
    )


def move(folder: Folder, told: Told, result: Result) -> None:
    if result.ret != 0:
        return
    if told.path is None:
        folder.path, folder.is_told = told.fd, False
    elif told.path.startswith("/"):
        folder.path, folder.is_told = None if folder.is_rooted else told.path, True
    elif folder.path is not None:
        folder.path, folder.is_told = f"{folder.path.rstrip('/')}/{told.path}", True


def enclose(folder: Folder, result: Result) -> None:
    """A chroot. Its path may have gone through links: from now on `/` is a place not known."""
    folder.is_rooted |= result.ret == 0


def make_event(ts: int, task: Task, tid: int, call: str, told: Told, result: Result) -> RawEvent:
    event = RawEvent(
        ts,
        task.group,
        tid,
        call,
        result.ret,
        told.path,
        to_path=told.to,
        flags=told.flags,
        mode=told.mode,
        resolve=told.resolve,
        uid=told.uid,
        gid=told.gid,
        size=told.size,
        peer=told.peer,
        argv=told.argv,
        name=told.name,
        target=max(told.target or 0, 0),
        scope="tree",
        marks=told.marks,
    )
    if call == "unlinkat" and told.flags & AT_REMOVEDIR:
        event.call = "rmdir"
    _place(event, task.folder, told)
    if call == "exec":
        _name_program(event, told)
    if call in TREES and told.flags & CLONES_TREE:
        if (result.ret or 0) >= 0:
            _mark_unreachable(event)  # it lies among no mounts, and strace calls it `/`
    elif call == "pidfd_getfd":
        if (result.ret or 0) >= 0:
            _reach(event, result.path, result.is_deleted)
    elif call in (*TREES, "open", "creat", "openat", "openat2", "open_by_handle_at"):
        if (result.ret or 0) >= 0 and result.ret is not None:
            if result.path is None and call == "open_by_handle_at":
                add_mark(event, "fault")  # of which some versions do not tell it
            else:
                _reach(event, result.path, result.is_deleted)
    elif told.fd is not None or "fd" in told.gone:
        _reach(event, told.fd, "fd" in told.gone)
    elif told.path == "" and told.dir not in (None, OWN):
        _reach(event, told.dir, "dir" in told.gone)
    if task.descriptors.users > 1 and event.resolved not in (None, event.path):
        add_mark(event, "shared_files")
    if _is_foreign(event.path, event.base) or _is_foreign(event.to_path, event.to_base):
        add_mark(event, "other_mounts")
    return event


def sent_events(
    ts: int, task: Task, tid: int, call: str, told: Told, result: Result
) -> list[RawEvent]:
    """One for each message that names somebody. How one failed, behind others that were sent, is
    not to be seen; those behind it nobody tried."""
    sent = max(result.ret or 0, 0)
    events = []
    for place, message in enumerate([told, *told.others][: sent + 1]):
        is_unseen = call == "sendmmsg" and place == sent > 0
        if message.has_peer:
            one = Result(result.start, None) if is_unseen else result
            events.append(make_event(ts, task, tid, call, message, one))
    return events


def _name_program(event: RawEvent, told: Told) -> None:
    """As the kernel calls what it runs, where a descriptor was named."""
    event.flags = 0
    if told.number is not None and told.path is not None and not told.path.startswith("/"):
        event.path = f"/dev/fd/{told.number}" + (told.path and f"/{told.path}")


def _reach(event: RawEvent, path: str | None, is_deleted: bool) -> None:
    event.resolved = path
    if event.resolved is None or is_deleted:
        _mark_unreachable(event)


def _place(event: RawEvent, folder: Folder, told: Told) -> None:
    """Where its relative paths start from."""
    is_gone = _correct(folder, told.here)
    symlink = event.call.startswith("symlink")
    if folder.is_rooted:
        event.marks.append("other_root")
    if told.path is not None and not told.path.startswith("/") and not symlink:
        event.base = _base(folder, told.path) if told.dir == OWN else told.dir
        if is_gone if told.dir == OWN else "dir" in told.gone:
            _mark_unreachable(event)
    if told.is_socket_file and folder.path is not None and told.peer is not None:
        event.peer = f"unix:{folder.path.rstrip('/')}/{told.peer.removeprefix('unix:')}"
    if told.to is not None and not told.to.startswith("/"):
        event.to_base = _base(folder, told.to) if told.todir == OWN else told.todir
        if is_gone if told.todir == OWN else "todir" in told.gone:
            _mark_unreachable(event)


def _base(folder: Folder, path: str) -> str | None:
    return None if folder.is_told and goes_up(path) else folder.path


def _correct(folder: Folder, here: str | None) -> bool:
    """By what strace has read. Whether the folder has no name any more."""
    if here is None or here == folder.path:
        folder.is_told &= here is None
        return False
    folder.is_told = False
    is_gone = here.endswith(_DELETED)
    folder.path = here.removesuffix(_DELETED)
    return is_gone


def _is_foreign(path: str | None, base: str | None) -> bool:
    """Whether it goes through what another process has, whose mounts may be others: strace then
    says where the file lies among those."""
    if path is None:
        return False
    whole = path if path.startswith("/") else f"{base or ''}/{path}"
    if "/proc/" not in whole:
        return False
    parts = [part for part in whole.split("/") if part not in ("", ".")]
    rest = parts[parts.index("proc") + 1 :]
    is_own = rest[:1] in (["self"], ["thread-self"]) and ".." not in rest
    return not is_own and not _LINKS.isdisjoint(rest)


def add_mark(event: RawEvent, mark: Mark) -> None:
    if mark not in event.marks:
        event.marks.append(mark)


def _mark_unreachable(event: RawEvent) -> None:
    add_mark(event, "unreachable")
