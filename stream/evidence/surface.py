"""The capability surface: what a run reached, by the lines of its layers.

It claims what was done: opens and changes that succeeded, programs that ran, peers that were
addressed. What was only tried, and what is no peer, is kept apart for the companion. Everything
is a set: order and repetition change nothing.

The reference's archives claim more: failed opens and port-0 connects as well. `is_reference`
gives that projection of the same lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias, get_args

from msgspec import UNSET, UnsetType

from stream.evidence.failures import failure
from stream.records.kernel import (
    CHMOD,
    CHOWN,
    CONNECT,
    CONNECT_BLOCKED,
    EXEC,
    EXEC_FAILED,
    FILE_BLOCKED,
    LINK,
    LOCAL_CONNECT,
    LOCAL_SEND,
    MKDIR,
    MKNOD,
    OPEN,
    RENAME,
    RMDIR,
    SENDMSG,
    SENDTO,
    SYMLINK,
    TRUNCATE,
    UNLINK,
    AccessMode,
    KernelDetail,
    KernelEvent,
    OperationFlag,
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
}
_BLOCKED = "blocked"
_WAYS = tuple(
    dict.fromkeys(
        (
            *get_args(AccessMode),
            *get_args(OperationFlag),
            *(way for ways in _CHANGES.values() for way in ways if way),
            _BLOCKED,
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
        self.has_connect = False  #: of any kind that goes to a network
        self.has_datagram = False
        self.is_reference = is_reference  #: asked only when it is read
        self._reached: dict[str, int] = {}
        self._reached_by: dict[int, set[str]] = {}
        self._reached_in: dict[tuple[str, int], set[str]] = {}
        self._missed: dict[str, set[str]] = {}
        self._missed_in: dict[tuple[str, str], set[str]] = {}
        self._peers: set[str] = set()
        self._blocked_peers: set[str] = set()
        self._sockets: set[str] = set()
        self._programs: set[str] = set()
        self._agent_tools: set[str] = set()
        self._policy_tools: set[str] = set()
        self._decisions: set[str] = set()
        self._near: set[Claim] | None = None

    def admit(self, near: Iterable[Claim]) -> None:
        """Of all opens and programs in the recorder's own folder, these alone are the run's."""
        self._near = set(near)

    def reach(self, path: str, ways: int) -> None:
        """An open that succeeded. The same as its line, without the cost of making one."""
        self._reached[path] = self._reached.get(path, 0) | ways

    def reach_all(self, paths: Iterable[str], ways: int) -> None:
        """The same of many opens at once."""
        self._reached_by.setdefault(ways, set()).update(paths)

    def reached_in(self, folder: str, ways: int) -> set[str]:
        """The names in a folder, which is given with a slash behind it, that opens reached in
        these ways: for who comes back to it often, and adds to it."""
        return self._reached_in.setdefault((folder, ways), set())

    def missed_in(self, folder: str, result: int) -> set[str]:
        """The same of opens that failed."""
        return self._missed_in.setdefault((folder, f"{OPENED}:{failure(result)}"), set())

    def miss(self, path: str, call: str, result: int | None) -> None:
        """An attempt that failed, or whose end nobody saw."""
        self._missed.setdefault(path, set()).add(f"{call}:{failure(result)}")

    def add_kernel(self, event: KernelEvent, detail: KernelDetail | None) -> None:
        kind, value = event.event_type, event.value
        if kind in (CONNECT, SENDTO, SENDMSG):
            self.has_connect |= kind == CONNECT
            self.has_datagram |= kind != CONNECT
        if value is None:
            return
        if kind == OPEN:
            self._add_open(event, value)
        elif kind in _CHANGES:
            self._add_change(_CHANGES[kind], value, detail)
        elif kind == FILE_BLOCKED:
            self.reach(value, _BITS[_BLOCKED])
        elif kind == EXEC:
            self._programs.add(value)
        elif kind == EXEC_FAILED:
            self.miss(value, "exec", None if detail is None else detail.return_value)
        elif kind in (CONNECT, SENDTO, SENDMSG):
            self._peers.add(value)
        elif kind == CONNECT_BLOCKED:
            self._blocked_peers.add(value)
        elif kind in (LOCAL_CONNECT, LOCAL_SEND):
            self._sockets.add(value)

    def add_sdk(self, event: SdkEvent) -> None:
        if event.tool is not None:
            self._agent_tools.add(event.tool)

    def add_policy(self, event: PolicyEvent) -> None:
        self._policy_tools.add(event.tool)
        self._decisions.add(f"{event.decision}:{event.tool}")

    def surface(self, run_id: str) -> CapabilitySurface:
        return CapabilitySurface(
            run_id=run_id,
            filesystem_paths=_sorted({*self._all_reached(), *self._claimed_by_attempt()}),
            network_endpoints=_sorted(self._peers - self._no_peers() | self._blocked_peers),
            process_execs=_sorted(self._all_programs()),
            mcp_tools=_sorted(
                self._policy_tools | (set() if self.is_reference else self._agent_tools)
            ),
            policy_decisions=_sorted(self._decisions),
        )

    def paths(self) -> dict[str, list[str]]:
        """How each path was reached."""
        return {
            path: sorted(way for way, bit in _BITS.items() if ways & bit)
            for path, ways in sorted(self._all_reached().items())
        }

    def _all_reached(self) -> dict[str, int]:
        found = dict(self._reached)
        for ways, paths in self._reached_by.items():
            for path in paths:
                found[path] = found.get(path, 0) | ways
        for (folder, ways), names in self._reached_in.items():
            for name in names:
                path = folder + name
                found[path] = found.get(path, 0) | ways
        if self._near is not None:
            for path in [path for path in found if NEAR in path]:
                found[path] &= ~_OPEN_BITS
                if not found[path]:
                    del found[path]
            for kind, path, ways, result in self._near:
                if kind == OPEN and result is not None and result >= 0:
                    found[path] = found.get(path, 0) | ways
        return found

    def _all_programs(self) -> set[str]:
        if self._near is None:
            return self._programs
        others = {path for path in self._programs if NEAR not in path}
        return others | {path for kind, path, *_ in self._near if kind == EXEC}

    def _all_missed(self) -> dict[str, set[str]]:
        found = {path: set(why) for path, why in self._missed.items()}
        for (folder, why), names in self._missed_in.items():
            for name in names:
                found.setdefault(folder + name, set()).add(why)
        if self._near is not None:
            for path in [path for path in found if NEAR in path]:
                found[path] = {why for why in found[path] if not why.startswith(f"{OPENED}:")}
                if not found[path]:
                    del found[path]
            for kind, path, _, result in self._near:
                if kind == OPEN and (result is None or result < 0):
                    found.setdefault(path, set()).add(f"{OPENED}:{failure(result)}")
        return found

    def failed_paths(self) -> dict[str, list[str]]:
        return {path: sorted(why) for path, why in sorted(self._all_missed().items())}

    def address_probes(self) -> list[str]:
        return _sorted(peer for peer in self._peers if _is_address(peer) and _is_probe(peer))

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

    def _add_change(self, ways: tuple[str, str], path: str, detail: KernelDetail | None) -> None:
        touched = [(path, ways[0])]
        to_path = None if detail is None else detail.to_path
        if to_path is not None and to_path.startswith("/") and ways[1]:
            touched.append((to_path, ways[1]))
        for name, way in touched:
            if detail is not None and detail.status == "success":
                self.reach(name, _BITS[way])
            else:
                self.miss(name, way, None if detail is None else detail.return_value)

    def _claimed_by_attempt(self) -> Iterable[str]:
        if not self.is_reference:
            return ()
        return (
            path
            for path, why in self._all_missed().items()
            if any(reason.startswith(f"{OPENED}:") for reason in why)
        )

    def _no_peers(self) -> set[str]:
        if self.is_reference:
            return set()
        return {peer for peer in self._peers if not _is_address(peer) or _is_probe(peer)}


def _is_address(peer: str) -> bool:
    return peer[:1] in tuple("[0123456789")


def _is_probe(peer: str) -> bool:
    """Port 0: libc asks which of its own addresses it would use. Nothing is sent."""
    return peer.endswith(":0")


def _sorted(texts: Iterable[str]) -> list[str]:
    """By UTF-8 bytes, which is the order of code points."""
    return sorted(texts)
