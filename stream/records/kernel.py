"""The records of a kernel feed: raw telemetry, the normalised layer, and what goes beside it.

`RawEvent` is what a feed gives, `KernelEvent` is a line of layers/kernel.ndjson (its form is not
ours to change), `KernelDetail` is the line of layers/kernel-ext.ndjson with the same number."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from stream.records.control import KERNEL_KIND, RUN_ID, Gap, Record

RAW_KERNEL = "stream.raw_kernel.v1"
RAW_CAPTURE = "stream.raw_capture.v1"
KERNEL_EVENT = "assay.runner.kernel_event.v0"
KERNEL_DETAIL = "stream.kernel_detail.v1"

RunId = Annotated[str, Meta(pattern=RUN_ID)]
Count = Annotated[int, Meta(ge=0)]
Nanoseconds = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]

#: Which evidence puts a process into the run: its control group, its parents, or both.
Scope = Literal["both", "cgroup", "tree", "unknown"]

Mark = Literal[
    "truncated",  # a string was longer than what is kept of it
    "fault",  # memory could not be read: what should stand here is missing
    "walk_cut",  # the path was deeper than what is followed, or did not keep still
    "unreachable",  # the file had no name any more, or lies in a detached mount
    "compat",  # a 32-bit system call
    "uring",  # by way of io_uring
    # others have the same descriptors, and may have put another file in the place of this one
    "shared_files",
    "thread_exec",  # executed by a thread that was not the first
    "other_root",  # its process has another root (chroot) than the run began with
    "outside",  # what it reached into is no process of the run, or nobody knows whose it is
    "other_mounts",  # mounts are not those that the run began with: any file may have any name
]


# Without gc: there are millions, and none leads back to itself.
class RawEvent(Record, tag=RAW_KERNEL, omit_defaults=True, gc=False):
    """One completed call. Paths are text by `path_text`: every byte of a name comes back."""

    ts: Nanoseconds  #: of CLOCK_MONOTONIC
    pid: Count  #: thread group, as the kernel's first pid namespace counts
    tid: Count
    call: str  #: the system call's name; or exec, fork, exit, wrote
    ret: int | None = None  #: None: not seen
    path: str | None = None  #: as the program gave it: a claim
    resolved: str | None = None  #: of the file that was really reached, from the root of all mounts
    #: the folder that a relative `path` starts from; of an absolute one, where its first words
    #: lead, which only its process could tell: see `beyond_view`. With RESOLVE_IN_ROOT, and of
    #: an absolute one with the mark other_root: the root
    base: str | None = None
    to_path: str | None = None  #: the same of the second path: rename, link; a symlink's place
    to_base: str | None = None
    flags: Count = 0
    mode: Count = 0
    resolve: Count = 0
    uid: int | None = None
    gid: int | None = None
    size: int | None = None  #: truncate; of `wrote`: how many bytes; 0: it was opened to be written
    peer: str | None = None
    argv: list[str] | None = None
    child: int = 0  #: fork: the new process
    status: int = 0  #: exit: as wait gives it
    name: str | None = None  #: of an extended attribute
    target: Count = 0  #: the process that was reached into, by ptrace and its like
    stream: str = ""  #: wrote: which of the watched ones
    scope: Scope = "both"
    marks: list[Mark] = []
    asked: list[str] | None = None  #: what a shell was asked to run, where argv was censored


#: What of an event is text by `path_text`, beside the arguments of a program.
NAMES = ("path", "resolved", "base", "to_path", "to_base", "peer", "name")


class RawCapture(Record, tag=RAW_CAPTURE, kw_only=True):
    """The counters of a feed: its last record. `got + dropped == seen`, where it can be known."""

    feed: Literal["ebpf", "strace", "absent"]
    reason: str = ""  #: absent: why
    got: Count = 0
    dropped: Count = 0  #: events that were lost: exactly, for ebpf
    seen: Count = 0
    unparsed: Count = 0  #: strace: lines that could not be read
    misses: Count = 0  #: ebpf: runs of a program that the kernel skipped
    #: processes that could not be entered into the tree, or that nobody was seen to make
    lost_forks: Count = 0
    unknown_loss: str = ""  #: why nobody knows how much is missing; empty: it is known
    before_exec: Count = 0  #: of the wrapper between fork and the command itself: not its own
    scopes: dict[str, Count] = {}
    cgroup: Literal["clean", "partial", "failed"] = "failed"
    cgroup_reasons: list[str] = []
    uring: Literal["seen", "unused", "hole", "unknown"] = "unknown"
    ring_bytes: Count = 0
    unwatched: list[str] = []  #: calls that this kernel has, and that the feed may not see
    #: What a normalizer left out of the lines that it sends along with these, by rule; and
    #: what was no event of the run. A companion says it by itself.
    filtered: dict[str, Count] | UnsetType = UNSET
    aside: dict[str, Count] | UnsetType = UNSET


def mark_cgroup_partial(capture: RawCapture) -> None:
    """Lower a capture's control group to partial where events were lost: they may be anybody's."""
    lost = f"{capture.dropped} events were lost, and whose they were" if capture.dropped else ""
    reasons = [reason for reason in (lost, capture.unknown_loss) if reason]
    if reasons and capture.cgroup != "failed":
        capture.cgroup = "partial"
        capture.cgroup_reasons = [*dict.fromkeys((*capture.cgroup_reasons, *reasons))]


Kind = Annotated[str, Meta(pattern=KERNEL_KIND)]
AccessMode = Literal["read", "write", "read_write", "unknown"]
OperationFlag = Literal["create", "truncate", "append", "exclusive"]
Status = Literal["success", "error"]


class KernelEvent(Record, tag=KERNEL_EVENT, kw_only=True, gc=False):
    """One line of layers/kernel.ndjson: what one call of the run did."""

    run_id: RunId
    seq: Count
    pid: Count
    event_type: Count
    kind: Kind
    value: str | None
    flags: Count | UnsetType = UNSET
    mode: Count | UnsetType = UNSET
    resolve: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    return_value: int | UnsetType = UNSET
    access_mode: AccessMode | UnsetType = UNSET
    operation_flags: tuple[OperationFlag, ...] | UnsetType = UNSET
    status: Status | UnsetType = UNSET


#: event_type of each call. Below 1000 they are the contract's; the others travel as event_<id>.
OPEN, CONNECT, SENDTO, SENDMSG, EXEC, FILE_BLOCKED, CONNECT_BLOCKED = 1, 2, 6, 7, 4, 10, 20
INODE_RESOLVED = 112  #: how a monitor follows a name: the contract keeps it out of the layer
UNLINK, RENAME, MKDIR, RMDIR, LINK, SYMLINK, CHMOD, CHOWN, TRUNCATE = range(1001, 1010)
MKNOD, EXEC_FAILED, FORK, EXIT, URING_SETUP, LOCAL_CONNECT, LOCAL_SEND = range(1010, 1017)
XATTR, NO_XATTR, TIMES, ATTRIBUTES, ACCOUNT, OPEN_TREE, QUEUE, NO_QUEUE = range(1017, 1025)
BIND, LOCAL_BIND, SOCKET_FILE, ACCEPT, LOCAL_ACCEPT, REACH, POWER = range(1025, 1032)

EVENT_TYPES: dict[str, int] = {
    **dict.fromkeys(("open", "creat", "openat", "openat2", "open_by_handle_at"), OPEN),
    "connect": CONNECT,
    "sendto": SENDTO,
    "sendmsg": SENDMSG,
    "sendmmsg": SENDMSG,
    "exec": EXEC,
    **dict.fromkeys(("execve", "execveat"), EXEC_FAILED),  # one that succeeds is `exec`
    "file_blocked": FILE_BLOCKED,
    "connect_blocked": CONNECT_BLOCKED,
    **dict.fromkeys(("unlink", "unlinkat"), UNLINK),
    **dict.fromkeys(("rename", "renameat", "renameat2"), RENAME),
    **dict.fromkeys(("mkdir", "mkdirat"), MKDIR),
    "rmdir": RMDIR,  # and unlinkat with AT_REMOVEDIR, which a feed gives this name
    **dict.fromkeys(("link", "linkat"), LINK),
    **dict.fromkeys(("symlink", "symlinkat"), SYMLINK),
    **dict.fromkeys(("chmod", "fchmod", "fchmodat", "fchmodat2"), CHMOD),
    **dict.fromkeys(("chown", "fchown", "lchown", "fchownat"), CHOWN),
    **dict.fromkeys(("truncate", "ftruncate"), TRUNCATE),
    **dict.fromkeys(("mknod", "mknodat"), MKNOD),
    "fork": FORK,
    "exit": EXIT,
    "io_uring_setup": URING_SETUP,
    **dict.fromkeys(("setxattr", "lsetxattr", "fsetxattr", "setxattrat"), XATTR),
    **dict.fromkeys(("removexattr", "lremovexattr", "fremovexattr", "removexattrat"), NO_XATTR),
    **dict.fromkeys(("utime", "utimes", "futimesat", "utimensat"), TIMES),
    "file_setattr": ATTRIBUTES,
    "acct": ACCOUNT,
    **dict.fromkeys(("open_tree", "open_tree_attr"), OPEN_TREE),
    "mq_open": QUEUE,
    "mq_unlink": NO_QUEUE,
    "bind": BIND,
    **dict.fromkeys(("accept", "accept4"), ACCEPT),
    **dict.fromkeys(("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd"), REACH),
    **dict.fromkeys(("bpf", "init_module", "finit_module", "fanotify_init"), POWER),
}
#: Calls whose event has another type where whom it names is on the same machine, or is a file.
BY_PEER = {
    CONNECT: (LOCAL_CONNECT,),
    SENDTO: (LOCAL_SEND,),
    SENDMSG: (LOCAL_SEND,),
    BIND: (LOCAL_BIND, SOCKET_FILE),
    ACCEPT: (LOCAL_ACCEPT,),
}
WITH_PEER = {*BY_PEER, LOCAL_CONNECT, LOCAL_SEND, LOCAL_BIND, LOCAL_ACCEPT, CONNECT_BLOCKED}
KINDS = {
    OPEN: "openat",
    CONNECT: "connect",
    EXEC: "exec",
    FILE_BLOCKED: "file_blocked",
    CONNECT_BLOCKED: "connect_blocked",
}


def kind_of_event(event_type: int) -> str:
    """Return the kind of an event by its type."""
    return KINDS.get(event_type) or f"event_{event_type}"


_UNKNOWN = re.compile(r"event_(0|[1-9][0-9]{0,17})\Z")
_KNOWN = {*KINDS, *EVENT_TYPES.values(), *WITH_PEER, SOCKET_FILE}


def unknown_event_type(call: str) -> int | None:
    """Return the number of a call that is known by nothing but its monitor's number for it."""
    found = _UNKNOWN.match(call)
    number = None if found is None else int(found[1])
    return None if number in _KNOWN else number


class KernelDetail(Record, tag=KERNEL_DETAIL, omit_defaults=True, kw_only=True):
    """A detail holds what the line of layers/kernel.ndjson with the same `seq` has no room for."""

    run_id: RunId
    seq: Count
    pid: Count
    call: str
    path: str | None = None  #: as the program gave it, where that is not the value
    base: str | None = None  #: where the path of an open starts that has no value
    to_path: str | None = None  #: where a rename, link or symlink puts it; absolute if known
    resolved: str | None = None  #: of an exec: the file that runs
    return_value: int | None = None
    status: Status | UnsetType = UNSET
    flags: int = 0
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    size: int | None = None
    peer: str | None = None
    argv: list[str] | None = None
    child: int = 0
    name: str | None = None  #: of an extended attribute
    target: Count = 0  #: the process that was reached into
    exit_status: int | None = None
    scope: Scope = "both"
    marks: list[Mark] = []
    asked: list[str] | None = None  #: what a shell was asked to run, where argv does not tell


_NUMBER = "(?:0|[1-9][0-9]*)"
_VIEW = re.compile(
    rf"/(?:dev/fd/{_NUMBER}|proc/(?:self|thread-self|{_NUMBER})/(?:fd/{_NUMBER}|cwd|root))(?=/|\Z)"
)


def beyond_view(path: str) -> str | None:
    """Return what follows /proc/self/fd/N and its like, where a path begins so: it starts at the
    file or folder that its process has as N. If nothing follows, that is meant itself."""
    found = _VIEW.match(path)
    return None if found is None else path[found.end() :]


def leaves_base_folder(path: str) -> bool:
    """Tell whether a relative path first of all leaves the folder that it starts from."""
    return next((part for part in path.split("/") if part not in ("", ".")), "") == ".."


BACKSLASH = ord("\\")  #: as a number: to look for one of several bytes takes seven times as long


def path_text(data: bytes) -> str:
    """Make text of a path so that every byte comes back: a backslash doubles, and what is no UTF-8
    becomes \\xNN."""
    try:
        return data.decode() if BACKSLASH not in data else data.decode().replace("\\", "\\\\")
    except UnicodeDecodeError:
        return data.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")


_ESCAPED = re.compile(rb"\\(?:\\|x[0-9a-f]{2})")


def path_bytes(text: str) -> bytes:
    """Return what `path_text` was given."""
    data = text.encode()
    return data if BACKSLASH not in data else _ESCAPED.sub(_unescaped_byte, data)


def _unescaped_byte(escape: re.Match[bytes]) -> bytes:
    return bytes.fromhex(escape[0][2:].decode()) or b"\\"


Telemetry: TypeAlias = RawEvent | Gap | RawCapture


# Linux's names of errors by number, from 1, whatever machine reads them. They are the same on
# x86-64 and arm64; `-` is a number that is not used.
_ERRNOS = """
EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT ENOTBLK
EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE
EROFS EMLINK EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP - ENOMSG EIDRM
ECHRNG EL2NSYNC EL3HLT EL3RST ELNRNG EUNATCH ENOCSI EL2HLT EBADE EBADR EXFULL ENOANO EBADRQC
EBADSLT - EBFONT ENOSTR ENODATA ETIME ENOSR ENONET ENOPKG EREMOTE ENOLINK EADV ESRMNT ECOMM
EPROTO EMULTIHOP EDOTDOT EBADMSG EOVERFLOW ENOTUNIQ EBADFD EREMCHG ELIBACC ELIBBAD ELIBSCN
ELIBMAX ELIBEXEC EILSEQ ERESTART ESTRPIPE EUSERS ENOTSOCK EDESTADDRREQ EMSGSIZE EPROTOTYPE
ENOPROTOOPT EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE
EADDRNOTAVAIL ENETDOWN ENETUNREACH ENETRESET ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN
ESHUTDOWN ETOOMANYREFS ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY EINPROGRESS ESTALE
EUCLEAN ENOTNAM ENAVAIL EISNAM EREMOTEIO EDQUOT ENOMEDIUM EMEDIUMTYPE ECANCELED ENOKEY
EKEYEXPIRED EKEYREVOKED EKEYREJECTED EOWNERDEAD ENOTRECOVERABLE ERFKILL EHWPOISON
"""
_ERRNO_NAMES = _ERRNOS.split()
ERRNOS = {name: number for number, name in enumerate(_ERRNO_NAMES, 1)}


def errno_name(number: int) -> str:
    """Return the name of an error, or `errno N` where Linux has no name for it."""
    known = _ERRNO_NAMES[number - 1] if 0 < number <= len(_ERRNO_NAMES) else "-"
    return f"errno {number}" if known == "-" else known
