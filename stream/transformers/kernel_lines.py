"""What one call that a feed saw becomes in the kernel layer: its value, its form, its detail."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET, Struct, UnsetType

from stream.evidence.consistency import ACCESS, operations_of_open_flags
from stream.records import kernel
from stream.records.kernel import (
    KernelDetail,
    KernelEvent,
    RawEvent,
    Status,
    beyond_view,
    leaves_base_folder,
    unknown_event_type,
)

# As Linux has them on x86-64 and arm64, whatever machine reads the line.
CREATE, CUT, TMPFILE = 0o100, 0o1000, 0o20000000
_CREAT_FLAGS = 0o1101  #: what creat(2) stands for
IN_ROOT = 0x10  #: of openat2: an absolute path starts from `base` too
ENOENT, ENOTDIR, EALREADY, EINPROGRESS = 2, 20, 114, 115
#: Others than these go out of the machine, or may: packets, virtual machines, radio.
_LOCAL_PEERS = ("unix:", "netlink", "unspec", "af38:")  # the last one: the kernel's own ciphers
#: With one of these marks nobody knows which file it was, or what has its name elsewhere.
UNSURE = {"unreachable", "walk_cut", "fault", "truncated", "other_mounts", "shared_files"}
#: Rules for places where only root puts anything.
ROOTS_RULES = {"loader", "locale", "proc", "sys", "trust_store"}


class OpenForm(Struct):
    """What opens with the same flags and the same result have in common."""

    copy: Callable[[], KernelEvent]  #: makes the event; who asks for it sets what is its own
    is_read: bool
    is_done: bool


def open_form(run_id: str, event: RawEvent) -> OpenForm:
    """Return the form of an open."""
    flags, ret = event.flags | (_CREAT_FLAGS if event.call == "creat" else 0), event.ret
    is_done = ret is not None and ret >= 0
    line = KernelEvent(
        run_id=run_id,
        seq=0,
        pid=0,
        event_type=kernel.OPEN,
        kind="openat",
        value=None,
        flags=flags,
        mode=event.mode if flags & (CREATE | TMPFILE) else UNSET,
        resolve=event.resolve or UNSET,
        return_value=UNSET if ret is None else ret,
        access_mode=ACCESS[flags & 3],
        operation_flags=operations_of_open_flags(flags) or UNSET,
        status=call_status_of(event),
    )
    is_read = not flags & (3 | CREATE | CUT | TMPFILE)
    return OpenForm(line.__copy__, is_read, is_done)  # type: ignore[attr-defined]


def named_path(event: RawEvent) -> str | None:
    """Return what an event's path names, by the text and by where that starts; None where that is
    not known."""
    return _path_named_by(event, event.path, event.base)


def second_named_path(event: RawEvent) -> str | None:
    """Return what the second path of an event names; None where that is not known."""
    return _path_named_by(event, event.to_path, event.to_base)


def _path_named_by(event: RawEvent, path: str | None, base: str | None) -> str | None:
    """Return the path that an open of the kernel feed named, from the folder that it stood in."""
    if not path:
        return None
    is_absolute, in_other = path[0] == "/", "other_root" in event.marks
    if base is not None and not base.startswith("/"):
        base = None  # a pipe, for one
    if event.resolve & IN_ROOT or (is_absolute and in_other):
        return None if base is None else join_kernel_path(base, path, is_root=True)
    if is_absolute:
        rest = None if base is None else beyond_view(path)
        if base is None or rest is None:
            return join_kernel_path("/", path)
        return join_kernel_path(base, rest)
    if base is None or (in_other and leaves_base_folder(path)):  # how far up, nobody knows
        return None
    return join_kernel_path(base, path)


def join_kernel_path(base: str, path: str, *, is_root: bool = False) -> str:
    """Join `path` to `base`, in which there are no links. Behind a name `..` stays: if that name is
    a link, it leads somewhere else than the text says."""
    parts = [part for part in base.split("/") if part]
    least = len(parts) if is_root else 0
    is_real = True
    for part in path.split("/"):
        if part in ("", "."):
            continue
        if part == ".." and is_real:
            del parts[max(least, len(parts) - 1) :]
        else:
            parts.append(part)
            is_real = False
    return "/" + "/".join(parts)


def is_literal_path(event: RawEvent, value: str) -> bool:
    """Tell whether `value` is nothing but what the program named, from where it stood."""
    path = event.path
    if path is None:
        return False
    if path == value or f"{event.base}/{path}" == value:
        return True
    if event.base is not None and beyond_view(path) is not None:
        return False
    return "/../" not in f"/{path}/" and named_path(event) == value


def event_type_by_peer(event: RawEvent, event_type: int) -> int:
    """Return the type of an event: peers on the same machine that have no IP address have types of
    their own, and so has a socket that becomes a file."""
    if event_type == kernel.BIND and event.path is not None:
        return kernel.SOCKET_FILE
    if event.peer is None or not event.peer.startswith(_LOCAL_PEERS):
        return event_type
    return kernel.BY_PEER.get(event_type, (event_type,))[0]


def kernel_value_of(event: RawEvent, event_type: int) -> str | None:
    """Return the path or endpoint of any call but an open; None for a call that is not known, of
    which nobody knows what either would mean."""
    if unknown_event_type(event.call) is not None:
        return None
    if event_type in kernel.WITH_PEER:
        return event.peer
    if event_type in (kernel.QUEUE, kernel.NO_QUEUE):
        return None if event.path is None else f"mqueue:/{event.path}"
    if event_type == kernel.REACH:
        return event.peer or event.resolved
    if event_type == kernel.SOCKET_FILE or (
        event_type == kernel.EXEC and _is_program_by_number(event)
    ):
        return event.resolved or (named_path(event) if event_type == kernel.SOCKET_FILE else None)
    if event_type in (kernel.FORK, kernel.EXIT):
        return None
    if event_type == kernel.SYMLINK:  # its `path` is a text, and leads nowhere yet
        return second_named_path(event)
    return named_path(event) or event.resolved


def _is_program_by_number(event: RawEvent) -> bool:
    """Return whether a program has no other name than that of a descriptor, which may lead to
    nothing that has one: nobody can tell what it was by then."""
    return event.base is None and event.path is not None and beyond_view(event.path) is not None


def call_status_of(event: RawEvent) -> Status | UnsetType:
    """Return how a call ended; unset where nobody saw it: a connect that only began, for one."""
    if event.ret is None or (event.call == "connect" and event.ret in (-EINPROGRESS, -EALREADY)):
        return UNSET
    return "success" if event.ret >= 0 else "error"


def has_kernel_detail(event: RawEvent, event_type: int, value: str | None) -> bool:
    """Tell whether the event of the kernel layer does not say all that is known of a call."""
    if event.marks or event.scope != "both" or value is None:
        return True
    if event_type == kernel.OPEN:
        return not is_literal_path(event, value)
    return event_type != kernel.CONNECT or event.ret != 0


def kernel_detail_of(
    run_id: str, seq: int, event: RawEvent, event_type: int, value: str | None
) -> KernelDetail:
    """Return what an event of the kernel layer has no room for."""
    is_open = event_type == kernel.OPEN  # whose flags, mode and result stand in its own line
    has_mode = event_type in (kernel.MKDIR, kernel.CHMOD, kernel.MKNOD, kernel.QUEUE)
    is_said = event.path == value
    if is_open and value is not None and event.resolved is None:
        is_said = is_literal_path(event, value)
    return KernelDetail(
        run_id=run_id,
        seq=seq,
        pid=event.pid,
        call=event.call,
        path=None if is_said else event.path,
        base=event.base if is_open and value is None else None,
        to_path=second_named_path(event) or event.to_path,
        resolved=event.resolved if event_type == kernel.EXEC or event.resolved != value else None,
        return_value=None if is_open else event.ret,
        status=UNSET if is_open else call_status_of(event),
        flags=0 if is_open else event.flags,
        mode=event.mode if has_mode else None,
        uid=event.uid,
        gid=event.gid,
        size=event.size,
        peer=event.peer,
        argv=event.argv,
        child=event.child,
        name=event.name,
        target=event.target,
        exit_status=event.status if event_type == kernel.EXIT else None,
        scope=event.scope,
        marks=event.marks,
        asked=event.asked,
    )
