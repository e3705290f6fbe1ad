"""The capability surface: what a run reached, by the lines of its layers.

It claims what was done: opens and changes that succeeded, programs that ran, peers that were
addressed. What was only tried, and what is no peer, is kept apart for the companion. Everything
is a set: order and repetition change nothing. Only what has no name is counted, for want of one.

The reference's archives claim more: failed opens and port-0 connects as well. `is_reference`
gives that projection of the same lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TypeAlias, get_args

from msgspec import UNSET, UnsetType

from stream.evidence.failures import failure
from stream.evidence.paths import Paths, Piece
from stream.evidence.peers import ADDRESSING, Peers, is_address, is_attempt
from stream.evidence.pieces import Long
from stream.records.kernel import (
    ACCEPT,
    ACCOUNT,
    ATTRIBUTES,
    BIND,
    CHMOD,
    CHOWN,
    CONNECT,
    CONNECT_BLOCKED,
    EXEC,
    EXEC_FAILED,
    FILE_BLOCKED,
    LINK,
    LOCAL_ACCEPT,
    LOCAL_BIND,
    LOCAL_CONNECT,
    LOCAL_SEND,
    MKDIR,
    MKNOD,
    NO_QUEUE,
    NO_XATTR,
    OPEN,
    OPEN_TREE,
    QUEUE,
    REACH,
    RENAME,
    RMDIR,
    SENDMSG,
    SENDTO,
    SOCKET_FILE,
    SYMLINK,
    TIMES,
    TRUNCATE,
    UNLINK,
    XATTR,
    AccessMode,
    KernelDetail,
    KernelEvent,
    Mark,
    OperationFlag,
    kind_of,
)
from stream.records.runner import HOME, CapabilitySurface, PolicyEvent, SdkEvent

OPENED = "openat"  #: what an open is called, whichever call it was
#: The calls that change the file system, and how each of their two paths was reached.
_CHANGES = {
    UNLINK: ("unlink", ""),
    RENAME: ("rename", "rename_to"),
    MKDIR: ("mkdir", ""),
    RMDIR: ("rmdir", ""),
    LINK: ("link", "link_to"),
    SYMLINK: ("symlink", "symlink"),
    CHMOD: ("chmod", ""),
    CHOWN: ("chown", ""),
    TRUNCATE: ("truncate", ""),
    MKNOD: ("mknod", ""),
    XATTR: ("setxattr", ""),
    NO_XATTR: ("removexattr", ""),
    TIMES: ("utime", ""),
    ATTRIBUTES: ("setattr", ""),
    ACCOUNT: ("acct", ""),
    OPEN_TREE: ("open_tree", ""),
    SOCKET_FILE: ("bind", ""),
}
_LOCAL = {LOCAL_CONNECT, LOCAL_SEND, LOCAL_BIND, LOCAL_ACCEPT, QUEUE, NO_QUEUE}
#: What another process had open: how it was reached is its own business.
_TAKEN = "taken"
_BLOCKED = "blocked"
_EFAULT = 14
_CUT: set[Mark] = {"walk_cut", "fault", "truncated"}  #: what there is was not seen to its end
_TWO_PATHS = {RENAME, LINK}  #: of a symlink the second is the value
_WAYS = tuple(
    dict.fromkeys(
        (
            *get_args(AccessMode),
            *get_args(OperationFlag),
            *(way for ways in _CHANGES.values() for way in ways if way),
            _BLOCKED,
            _TAKEN,
        )
    )
)
_BITS = {way: 1 << number for number, way in enumerate(_WAYS)}
_OPEN_BITS = sum(_BITS[way] for way in (*get_args(AccessMode), *get_args(OperationFlag)))
#: A program that was started, or an open: event_type, path, of an open how, and its result.
Claim: TypeAlias = tuple[int, str, int, int | None]
NEAR = f"/{HOME}"  #: in the path of all that may be the recorder's own


def ways_of(
    access_mode: AccessMode | UnsetType, operation_flags: Sequence[OperationFlag] | UnsetType
) -> int:
    """How an open reached its path, as `Surface.reach` takes it."""
    ways = _BITS["unknown" if access_mode is UNSET else access_mode]
    for flag in () if operation_flags is UNSET else operation_flags:
        ways |= _BITS[flag]
    return ways


class Surface:
    """Grows with the different things that a run touches, not with how often."""

    def __init__(self, *, is_reference: bool = False) -> None:
        self.is_reference = is_reference  #: asked only when it is read
        self.unnamed: Counter[str] = Counter()  #: by kind: events that have no path or endpoint
        self._reached: Paths[int] = Paths()
        self._missed: Paths[str] = Paths()
        self._peers = Peers()
        self._sockets: set[str] = set()
        self._programs: dict[str, set[str]] = {}  # and the files that ran by that name
        self._agent_tools: set[str] = set()
        self._policy_tools: set[str] = set()
        self._decisions: set[str] = set()

    def admit(self, near: Iterable[Claim]) -> None:
        """Of all opens and programs in the recorder's own folder, these alone are the run's. In
        the end, when all the rest has been told."""
        programs = self._programs
        self._programs = {path: ran for path, ran in programs.items() if NEAR not in path}
        self._reached.remove(NEAR, lambda ways: bool(ways & _OPEN_BITS))
        self._missed.remove(NEAR, lambda why: why.startswith(f"{OPENED}:"))
        for kind, path, ways, result in near:
            if kind == EXEC:
                self._programs[path] = programs.get(path, set())
            elif result is not None and result >= 0:
                self.reach(path, ways)
            else:
                self.miss(path, OPENED, result)

    def reach(self, path: str, ways: int) -> None:
        """An open that succeeded. The same as its line, without the cost of making one."""
        self._reached.add(path, ways)

    def reach_all(self, paths: Iterable[str], ways: int) -> None:
        """The same of many opens at once."""
        self._reached.add_all(paths, ways)

    def reached_in(self, folder: str, ways: int) -> set[bytes]:
        """The names in a folder, which is given with a slash behind it, that opens reached in
        these ways: for who comes back to it often, and adds to it. In UTF-8."""
        return self._reached.names(folder, ways)

    def miss(self, path: str, call: str, result: int | None) -> None:
        """An attempt that failed, or whose end nobody saw."""
        self._missed.add(path, f"{call}:{failure(result)}")

    def miss_all(self, paths: Iterable[str], call: str, result: int | None) -> None:
        self._missed.add_all(paths, f"{call}:{failure(result)}")

    def missed_in(self, folder: str, result: int) -> set[bytes]:
        """As `reached_in`, of opens that failed."""
        return self._missed.names(folder, f"{OPENED}:{failure(result)}")

    @property
    def has_connect(self) -> bool:
        """Of any kind that goes to a network, or comes from there; one that was blocked is one."""
        kinds = (CONNECT, CONNECT_BLOCKED, ACCEPT, REACH)
        return self._peers.has(*kinds, is_reference=self.is_reference)

    @property
    def has_datagram(self) -> bool:
        return self._peers.has(SENDTO, SENDMSG, is_reference=self.is_reference)

    def add_kernel(self, event: KernelEvent, detail: KernelDetail | None) -> None:
        kind, value = event.event_type, event.value
        if _is_unnamed(event, detail):
            self.unnamed[kind_of(kind)] += 1
        if kind in _CHANGES:
            self._add_change(_CHANGES[kind], value, detail)
        elif kind in ADDRESSING:
            self._peers.add(event, detail)
        elif kind == CONNECT_BLOCKED:
            self._peers.block(value)
        elif value is None:
            return
        elif kind == OPEN:
            self._add_open(event, value)
        elif kind == FILE_BLOCKED:
            self.reach(value, _BITS[_BLOCKED])
        elif kind == EXEC:
            ran = None if detail is None else detail.resolved
            self._programs.setdefault(value, set()).add(ran or value)
        elif kind == EXEC_FAILED:
            self.miss(value, "exec", None if detail is None else detail.return_value)
        elif kind in _LOCAL:
            self._sockets.add(value)
        elif kind == REACH:
            self._add_taken(event, value, detail)

    def add_sdk(self, event: SdkEvent) -> None:
        if event.tool is not None:
            self._agent_tools.add(event.tool)

    def add_policy(self, event: PolicyEvent) -> None:
        self._policy_tools.add(event.tool)
        self._decisions.add(f"{event.decision}:{event.tool}")

    def may_claim(self, name: str, stated: Sequence[str]) -> bool:
        """Whether a recorder of ours may claim this of the same lines: it leaves out attempts and
        its own work, and knows by details, which are not here, where a rename or a link led."""
        claimed = {*stated}
        if name == "network_endpoints":
            return self._peers.may_be(claimed)
        if name == "process_execs":
            must = may = {*self._programs}
        elif name == "filesystem_paths":
            changed = dict(self._changes_that_were_told())
            must = {*self._reached}
            may = claimed if {"rename", "link"} & {*changed.values()} else must | changed.keys()
        else:
            known = getattr(self.surface(""), name)
            must = may = {*known} | (self._agent_tools if name == "mcp_tools" else set())
        return {path for path in must if NEAR not in path} <= claimed <= may

    def surface(self, run_id: str) -> CapabilitySurface:
        return self.long_surface(run_id).whole()

    def long_surface(self, run_id: str) -> Long[CapabilitySurface]:
        outline = CapabilitySurface(
            run_id=run_id,
            filesystem_paths=[],
            network_endpoints=_sorted(self._peers.endpoints(is_reference=self.is_reference)),
            process_execs=_sorted(self._programs),
            mcp_tools=_sorted(
                self._policy_tools | (set() if self.is_reference else self._agent_tools)
            ),
            policy_decisions=_sorted(self._decisions),
        )
        return Long(outline, {"filesystem_paths": self._claims})

    def paths(self) -> dict[str, list[str]]:
        """How each path was reached."""
        return {path: how for piece in self.reached() for path, how in piece.items()}

    def failed_paths(self) -> dict[str, list[str]]:
        return {path: why for piece in self.missed() for path, why in piece.items()}

    def reached(self) -> Iterator[dict[str, list[str]]]:
        """`paths`, in pieces."""
        return _by_path(self._reached.pieces(_words))

    def folders_with(self, name: str) -> Iterator[str]:
        """Where something of that name was reached."""
        return self._reached.folders_with(name)

    def missed(self) -> Iterator[dict[str, list[str]]]:
        """`failed_paths`, in pieces."""
        return _by_path(self._missed.pieces(sorted))

    def programs(self) -> dict[str, list[str]]:
        """By the name of a program: the files that ran, where that is not the file of this name."""
        ran = self._programs.items()
        return {name: sorted(files) for name, files in sorted(ran) if files != {name}}

    def address_probes(self) -> list[str]:
        return _sorted(self._peers.probes())

    def failed_endpoints(self) -> dict[str, list[str]]:
        return self._peers.failed()

    def local_sockets(self) -> list[str]:
        return _sorted(self._sockets)

    def self_reported_tools(self) -> list[str]:
        return _sorted(self._agent_tools - self._policy_tools)

    def _add_open(self, event: KernelEvent, path: str) -> None:
        if event.status == "success":
            self.reach(path, ways_of(event.access_mode, event.operation_flags))
        else:
            result = event.return_value
            self.miss(path, OPENED, None if result is UNSET else result)

    def _add_change(
        self, ways: tuple[str, str], path: str | None, detail: KernelDetail | None
    ) -> None:
        touched = [(path, ways[0])]
        to_path = None if detail is None else detail.to_path
        if to_path is not None and to_path.startswith("/") and ways[1]:
            touched.append((to_path, ways[1]))
        for name, way in touched:
            if name is None:
                continue
            if detail is not None and detail.status == "success":
                self.reach(name, _BITS[way])
            else:
                self.miss(name, way, None if detail is None else detail.return_value)

    def _add_taken(self, event: KernelEvent, value: str, detail: KernelDetail | None) -> None:
        if is_address(value):
            self._peers.add(event, detail)
        elif value.startswith("/"):
            self.reach(value, _BITS[_TAKEN])
        else:
            self._sockets.add(value)

    def _claims(self) -> Iterator[list[str]]:
        if self.is_reference:
            yield _sorted({*self._reached, *self._opens_that_failed()})
        else:
            yield from (paths for paths, _ in self._reached.pieces(len))

    def _changes_that_were_told(self) -> Iterator[tuple[str, str]]:
        """Without its detail nobody knows what came of a change. And how it was called."""
        for paths, told in self._missed.pieces(sorted):
            for path, reasons in zip(paths, told, strict=True):
                for reason in reasons:
                    if not reason.startswith((f"{OPENED}:", "exec:")):
                        yield path, reason.partition(":")[0]

    def _opens_that_failed(self) -> Iterator[str]:
        for paths, told in self._missed.pieces(sorted):
            for path, reasons in zip(paths, told, strict=True):
                if any(reason.startswith(f"{OPENED}:") for reason in reasons):
                    yield path


def _by_path(pieces: Iterator[Piece[list[str]]]) -> Iterator[dict[str, list[str]]]:
    return (dict(zip(paths, told, strict=True)) for paths, told in pieces)


@lru_cache(1000)
def _words(ways: tuple[int, ...]) -> list[str]:
    return sorted(way for way, bit in _BITS.items() if any(bit & one for one in ways))


def _is_unnamed(event: KernelEvent, detail: KernelDetail | None) -> bool:
    """Whether something was reached, or asked for, that nobody can name. What could not be read
    by the kernel itself is nothing that was asked for."""
    kind, value = event.event_type, event.value
    if kind in ADDRESSING and value is not None and not is_address(value):
        return is_attempt(event, detail)  # a frame for the wire, or another kind of network
    if kind == BIND and value is not None and not is_address(value):
        return detail is None or detail.status == "success"
    if detail is None:
        return False
    if kind == ACCEPT and value is None:
        return True
    result = event.return_value if kind == OPEN else detail.return_value
    is_named = value is not None
    if kind in _TWO_PATHS:
        is_named &= detail.to_path is not None and detail.to_path.startswith("/")
    if is_named:
        return False
    if not _CUT.isdisjoint(detail.marks):
        return result != -_EFAULT
    is_done = result is not UNSET and result is not None and result >= 0
    return is_done and bool(detail.path or detail.to_path or detail.call == "pidfd_getfd")


def _sorted(texts: Iterable[str]) -> list[str]:
    """By UTF-8 bytes, which is the order of code points."""
    return sorted(texts)
