"""Compare what a probe reports with the system calls that the kernel saw it make. Pure.

A record names an operation, a target and a result. Of the calls that the kernel saw, those count
that reach this target; what an operation means decides which of them carry it out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import ip_address
from posixpath import normpath

from msgspec import Struct

from stream.boundary.emit_flags import clip_text
from stream.boundary.layers import LayerEvidence, closing_layer, refusing_proxy
from stream.records.boundary import Boundary, Operation, Status
from stream.records.modes import Corroboration, KernelView, SeenCall

NOT_OBSERVED = Corroboration(None, None, "not-observed")
OF_HARNESS = "the record is the harness's own"
NO_ATTEMPT = "the probe reports no attempt"
#: exit codes of what was never carried out: wrong use, and a program that could not be run
NOT_RUN = (None, 2, 126, 127)

_OPENS = frozenset(("open", "creat", "openat", "openat2", "open_by_handle_at"))
_REMOVES = frozenset(("unlink", "unlinkat", "rmdir", "rename", "renameat", "renameat2"))
_MAKES = frozenset(
    (
        *("mkdir", "mkdirat", "mknod", "mknodat", "link", "linkat", "symlink", "symlinkat"),
        *("rename", "renameat", "renameat2", "mq_open", "bind"),
    )
)
_CHANGES = frozenset(
    (
        *("truncate", "ftruncate", "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown"),
        *("lchown", "fchownat", "setxattr", "lsetxattr", "fsetxattr", "utime", "utimes"),
        *("futimesat", "utimensat", "write"),
    )
)
_LOOKS = frozenset(
    (
        *("stat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2"),
        *("readlink", "readlinkat", "read", "getdents64"),
    )
)
_EXECS = frozenset(("exec", "execve", "execveat"))
_SENDS = frozenset(("connect", "sendto", "sendmsg", "sendmmsg"))
_ON_DESCRIPTORS = frozenset(("read", "recvfrom", "getdents64", "write"))  #: where they fail
_WRITES, _READS = _OPENS | _MAKES | _CHANGES, _OPENS | _LOOKS

#: The calls by which something is done to a path, by the verb of the operation.
_BY_PATH: dict[str, frozenset[str]] = {
    **dict.fromkeys(("write", "create", "append", "modify", "mknod", "mkdir"), _WRITES),
    **dict.fromkeys(("delete", "remove", "unlink"), _REMOVES),
    **dict.fromkeys(("read", "list", "inspect"), _READS),
    "chroot": frozenset(("chroot",)),
}
_BY_PEER: dict[str, frozenset[str]] = {
    **dict.fromkeys(("connect", "fetch", "send", "resolve"), _SENDS),
    **dict.fromkeys(("bind", "listen"), frozenset(("bind",))),
}
#: The calls that do one thing, whatever they are about.
_BY_CALL: dict[str, frozenset[str]] = {
    "fork": frozenset(("fork",)),
    "signal": frozenset(("kill", "tkill", "tgkill")),
    "trace": frozenset(("ptrace", "process_vm_readv", "process_vm_writev")),
    "mount": frozenset(("mount",)),
    "unshare": frozenset(("unshare",)),
    "setuid": frozenset(("setuid", "setreuid", "setresuid")),
    "perf": frozenset(("perf_event_open",)),
    "bpf": frozenset(("bpf",)),
    "add_key": frozenset(("add_key",)),
}
_MESSAGE_QUEUE, _SHARED_MEMORY = frozenset(("msgget",)), frozenset(("shmget",))
_FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16, "AF_PACKET": 17}
_INTERNET = (2, 10)
_WRITING = 0o1 | 0o2 | 0o100 | 0o1000  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC
_URL = re.compile(r"[a-z]+:/{2}(?:[^/@]*@)?(\[[^]]*\]|[^:/]+)")
_PEER = re.compile(r"(\[[^]]*\]|[^:\[\]]+):(\d+)")
_PROCESS = re.compile(r"pid (\d+)")


class Attempt(Struct, frozen=True):
    """The calls of an operation."""

    on_target: Callable[[SeenCall], bool]  #: whether a call reaches the target
    calls: frozenset[str]  #: by which the operation is carried out

    def carries_out(self, call: SeenCall) -> bool:
        """Tell whether a call that reaches the target is one by which the operation is done: to
        open a file only to read it is not to write it."""
        is_meant = self.calls is not _WRITES or call.call not in _OPENS or call.flags & _WRITING
        return call.call in self.calls and bool(is_meant)


class Claim(Struct, frozen=True):
    """The report of a probe, and what it is compared with."""

    record: Boundary
    status: Status
    view: KernelView
    evidence: LayerEvidence

    @property
    def was_tried(self) -> bool:
        """Tell whether the probe reports that it carried its attempt out."""
        if self.status in ("success", "denied"):
            return True
        return self.record.result.raw_exit_code not in NOT_RUN

    @property
    def target(self) -> str:
        """Return what the operation was done to, as a short text."""
        return clip_text(self.record.operation.target, 200)


def corroborate(
    record: Boundary, status: Status, view: KernelView | None, evidence: LayerEvidence
) -> Corroboration:
    """Compare a record with what the kernel saw of its cell. `status` is the probe's own."""
    if view is None:
        return NOT_OBSERVED
    if "harness" in record.payload.raw:
        return _not_observed(OF_HARNESS)
    if view.reason is not None:
        return _not_observed(view.reason)
    claim = Claim(record, status, view, evidence)
    attempt = _attempt_of(record.operation)
    if attempt is None:
        verb = record.operation.verb
        return _not_observed(f"no call is known that would {verb} {claim.target}")
    reached = [call for call in view.calls if attempt.on_target(call)]
    meant = [call for call in reached if attempt.carries_out(call)]
    if status == "success":
        return _judge_success(claim, meant)
    if reached:
        return _judge_failure(claim, reached, meant)
    return _unseen(claim) if claim.was_tried else _not_observed(NO_ATTEMPT)


def _judge_success(claim: Claim, meant: list[SeenCall]) -> Corroboration:
    """Judge a report that the operation was carried out."""
    if not meant:
        return _unseen(claim)
    done = [call for call in meant if call.errno in (None, "EINPROGRESS")]
    if done:
        return Corroboration(None, describe_call(done[0]), "corroborated")
    layer = closing_layer(meant[-1], claim.evidence)
    return Corroboration(layer, f"it failed: {describe_call(meant[-1])}", "contradicted")


def _judge_failure(claim: Claim, reached: list[SeenCall], meant: list[SeenCall]) -> Corroboration:
    """Judge a report that the operation failed, or that only a part of it was carried out."""
    errno = claim.record.result.errno
    tried = [call for call in meant if call.call not in _LOOKS]  # to look at a file changes nothing
    done = [call for call in tried if call.errno is None and call.has_ended]
    failed = [call for call in reached if call.errno not in (None, "EINPROGRESS")]
    same = [call for call in failed if call.errno == errno]
    # A file may be opened, and what is written to it be refused.
    is_later = any(call.call in _ON_DESCRIPTORS for call in same)
    if claim.status == "denied" and done and not is_later:
        return Corroboration(None, f"it succeeded: {describe_call(done[0])}", "contradicted")
    if same or errno is None:
        return _corroborated_failure(claim, same or failed or reached)
    others = [call for call in failed if call in tried]
    if others:
        return Corroboration(None, f"another error: {describe_call(others[-1])}", "contradicted")
    return _not_observed(f"no call is recorded that gave {errno}")


def _corroborated_failure(claim: Claim, calls: list[SeenCall]) -> Corroboration:
    """Confirm a failure, and say which layer it is due to: of several calls, the first one of
    which that can be told."""
    proxy = refusing_proxy(claim.record, list(claim.view.calls))
    if proxy is not None:
        return Corroboration("proxy", f"refused by {proxy}", "corroborated")
    failed = [call for call in calls if call.errno is not None]
    told = [(closing_layer(call, claim.evidence), call) for call in failed]
    told.sort(key=lambda one: one[0] == "unknown")
    is_refused = claim.status == "denied" or (
        claim.status == "error" and claim.evidence.has_control
    )
    if not told or not is_refused:
        return Corroboration(None, describe_call(calls[0]), "corroborated")
    layer, call = told[0]
    return Corroboration(layer, describe_call(call), "corroborated")


def _unseen(claim: Claim) -> Corroboration:
    if claim.record.operation.verb.lower() == "resolve":
        return _not_observed("a name may be resolved without asking anyone")
    return Corroboration(None, f"no call reached {claim.target}", "unseen")


def _not_observed(reason: str) -> Corroboration:
    return Corroboration(None, reason, "not-observed")


def describe_call(call: SeenCall) -> str:
    """Name a call, what it reached, and how it ended."""
    what = call.peer or call.to_path or call.path or call.resolved
    ended = call.errno or ("0" if call.has_ended else "?")
    return clip_text(" ".join(filter(None, (call.call, what))), 300) + f" = {ended}"


def _attempt_of(operation: Operation) -> Attempt | None:
    """Return by which calls an operation is attempted; None where that is not known."""
    verb, target = operation.verb.lower(), operation.target
    if verb in ("exec", "run"):
        return Attempt(_executes(target), _EXECS)
    if verb in _BY_CALL:
        return Attempt(_is_one_of(_BY_CALL[verb], target), _BY_CALL[verb])
    if target.startswith(tuple(_FAMILIES)):
        return Attempt(_makes_socket(target), frozenset(("socket",)))
    if operation.category == "ipc" and target.startswith("System V"):
        calls = _MESSAGE_QUEUE if "message queue" in target else _SHARED_MEMORY
        return Attempt(_is_one_of(calls, target), calls)
    if verb in _BY_PEER:
        return Attempt(_reaches_peer(target), _BY_PEER[verb])
    if verb in _BY_PATH and target.startswith("/"):
        return Attempt(_reaches_path(target), _BY_PATH[verb])
    return None


def _is_one_of(calls: frozenset[str], target: str) -> Callable[[SeenCall], bool]:
    """Return what tells whether a call is of a kind and, where the target is a process, about
    that; or looks at the target."""
    found = _PROCESS.fullmatch(target)
    process = int(found[1]) if found else None
    is_on_path = _reaches_path(target)
    return lambda call: process in (None, call.target) if call.call in calls else is_on_path(call)


def _makes_socket(target: str) -> Callable[[SeenCall], bool]:
    """Return what tells whether a call makes a socket of a family."""
    family = _FAMILIES[target.split()[0]]
    return lambda call: call.call == "socket" and call.flags == family


def _reaches_path(target: str) -> Callable[[SeenCall], bool]:
    """Return what tells whether a call reaches a path. A message queue is named without the slash
    that its name begins with."""
    paths, queue = {normpath(target)}, target[1:]
    return lambda call: (
        not paths.isdisjoint((call.path, call.resolved, call.to_path))
        or (call.call == "mq_open" and call.path == queue)
    )


def _executes(target: str) -> Callable[[SeenCall], bool]:
    """Return what tells whether a call executes a program, or one of several that are named."""
    names = {target, *target.split()}

    def executes(call: SeenCall) -> bool:
        """Tell whether a call executes it."""
        paths = [path for path in (call.path, call.resolved) if path is not None]
        found = {*paths, *(path.rpartition("/")[2] for path in paths)}
        return call.call in _EXECS and not found.isdisjoint(names)

    return executes


def _reaches_peer(target: str) -> Callable[[SeenCall], bool]:
    """Return what tells whether a call reaches an address, or was to: a socket that cannot be made
    reaches nobody. Whose address a name is, or which proxy stands between, is not known: then any
    address on a network counts."""
    is_local = target.startswith(("/", "@"))
    address = None if is_local else _address_of(target)

    def reaches(call: SeenCall) -> bool:
        """Tell whether a call reaches it."""
        if call.call == "socket":
            return call.errno is not None and (call.flags == 1) == is_local
        if call.call in _ON_DESCRIPTORS:
            return call.errno is not None and call.path is None and call.resolved is None
        if is_local:
            return call.peer == f"unix:{target}" or target in (call.path, call.resolved)
        found = _PEER.fullmatch(call.peer or "")
        # To port 0: the C library asks for a route this way.
        if found is None or (found[2] == "0" and call.call != "bind"):
            return False
        return address is None or _address_of(call.peer or "") == address

    return reaches


def _address_of(target: str) -> str | None:
    """Return the IP address that a target names; None where it names none, or a URL, which may be
    fetched through a proxy."""
    if _URL.match(target):
        return None
    found = _PEER.fullmatch(target)
    host = (found[1] if found else target).strip("[]").partition("%")[0]
    try:
        return str(ip_address(host))
    except ValueError:
        return None
