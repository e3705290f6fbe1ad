"""The capability surface: what a run reached, by the lines of its layers; and its companion.

The surface claims what was done: opens and changes that succeeded, programs that ran, peers that
were addressed. What was only tried, and what is no peer, is for the companion. Everything is a
set: order and repetition change nothing. Only what has no name is counted, for want of one. The
reference's archives claim more: failed opens and port-0 connects as well. `is_reference` gives
that projection of the same lines.

Both grow with the different things that a run touched, and are written without ever being held
whole: paths lie by folder, as UTF-8, and come out in their order, a piece at a time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, Generic, TypeAlias, TypeVar, get_args

import msgspec
from msgspec import UNSET, Struct, UnsetType, to_builtins

from stream.records import kernel
from stream.records.artifacts import HOME, CapabilitySurface, Companion, PolicyEvent, SdkEvent
from stream.records.kernel import (
    AccessMode,
    KernelDetail,
    KernelEvent,
    Mark,
    OperationFlag,
    RawCapture,
    errno_name,
    kind_of_event,
)


def failure_name(result: int | None) -> str:
    """Name a failure: `ENOENT` for -2; `unseen` where nobody saw how the call ended."""
    return "unseen" if result is None or result >= 0 else errno_name(-result)


KeyT = TypeVar("KeyT")
T = TypeVar("T")
DescribeKeys: TypeAlias = Callable[[tuple[KeyT, ...]], T]
Piece: TypeAlias = tuple[list[str], list[T]]  #: paths, and the description of each
_PIECE = 1000  #: paths
_MOST_SHARED = 10_000
#: Folders stand without the slash behind them. None: names that are all of their path.
_Folders: TypeAlias = dict[str | None, set[bytes]]
_split = str.rpartition


class PathsByKey(Generic[KeyT]):
    """A set of paths, each with one or more keys under which it was added."""

    def __init__(self) -> None:
        self._named: dict[KeyT, _Folders] = {}
        self._shared: dict[bytes, bytes] = {}  #: many folders have the same names in them

    def add_paths(self, paths: Iterable[str], key: KeyT) -> None:
        """Add paths that were reached, or not, under a key."""
        folders = self._named.setdefault(key, {})
        if len(self._shared) > _MOST_SHARED:
            self._shared.clear()
        share = self._shared.setdefault
        folder: str | None
        for folder, slash, name in map(_split, paths, repeat("/")):
            if not slash:
                folder = None
            encoded = name.encode()
            try:
                folders[folder].add(share(encoded, encoded))
            except KeyError:
                folders[folder] = {encoded}

    def remove_paths(self, text: str, is_out: Callable[[KeyT], bool]) -> None:
        """Remove every path that contains a text, which has one slash and begins with it, from the
        keys that are out."""
        start = text[1:].encode()
        for key, folders in self._named.items():
            for folder, names in folders.items() if is_out(key) else ():
                if folder is None:
                    continue
                if text in f"{folder}/":
                    names.clear()
                else:
                    names -= {name for name in names if name.startswith(start)}

    def path_pieces(self, describe: DescribeKeys[KeyT, T]) -> Iterator[Piece[T]]:
        """Yield paths with what `describe` makes of their keys, sorted by code points, which is the
        order of UTF-8 bytes."""
        open_folders: list[_PathGroup[KeyT]] = []
        for prefix, named in sorted(self._names_by_folder().items()):
            # What begins as a folder does stands behind it, among the names that are in it.
            while open_folders and not prefix.startswith(open_folders[-1].prefix):
                yield from open_folders.pop().remaining_pieces(describe)
            if open_folders:
                yield from open_folders[-1].pieces_before(prefix, describe)
            every = sorted(set().union(*(names for _, names in named)))
            open_folders.append(_PathGroup(prefix, named, every))
        while open_folders:
            yield from open_folders.pop().remaining_pieces(describe)

    def folders_with(self, name: str) -> Iterator[str]:
        """Yield the folders that the name is in."""
        encoded = name.encode()
        for folders in self._named.values():
            yield from (folder for folder, names in folders.items() if folder and encoded in names)

    def __iter__(self) -> Iterator[str]:
        for paths, _ in self.path_pieces(len):
            yield from paths

    def _names_by_folder(self) -> dict[str, list[tuple[KeyT, set[bytes]]]]:
        """Group names by the folder that stands before them."""
        found: dict[str, list[tuple[KeyT, set[bytes]]]] = {}
        for key, folders in self._named.items():
            for folder, names in folders.items():
                prefix = "" if folder is None else f"{folder}/"
                found.setdefault(prefix, []).append((key, names))
        return found


class _PathGroup(Struct, Generic[KeyT]):
    prefix: str
    named: list[tuple[KeyT, set[bytes]]]
    names: list[bytes]  #: sorted
    at: int = 0  #: those before it were given

    def pieces_before(self, path: str, describe: DescribeKeys[KeyT, T]) -> Iterator[Piece[T]]:
        """Yield the pieces of all names that sort before a path."""
        name = path[len(self.prefix) :].encode()
        return self._pieces_until(bisect_left(self.names, name, self.at), describe)

    def remaining_pieces(self, describe: DescribeKeys[KeyT, T]) -> Iterator[Piece[T]]:
        """Yield the pieces of all names that are left."""
        return self._pieces_until(len(self.names), describe)

    def _pieces_until(self, end: int, describe: DescribeKeys[KeyT, T]) -> Iterator[Piece[T]]:
        while self.at < end:
            start, self.at = self.at, min(self.at + _PIECE, end)
            yield self._piece_of_paths(self.names[start : self.at], describe)

    def _piece_of_paths(self, names: list[bytes], describe: DescribeKeys[KeyT, T]) -> Piece[T]:
        """Return the paths of these names of a folder, each with its description."""
        prefix = self.prefix
        paths = [prefix + name.decode() for name in names]
        keys = {key for key, _ in self.named}
        if len(keys) == 1:
            return paths, [describe(tuple(keys))] * len(paths)
        return paths, [describe(tuple(self._keys(name))) for name in names]

    def _keys(self, name: bytes) -> dict[KeyT, None]:
        return dict.fromkeys([key for key, some in self.named if name in some])


ADDRESSING = {
    kernel.CONNECT: "connect",
    kernel.SENDTO: "sendto",
    kernel.SENDMSG: "sendmsg",
    kernel.ACCEPT: "accept",
}
_EBADF, _BAD_ADDRESS, _EINVAL, _ENOTSOCK, _EAFNOSUPPORT, _EISCONN = 9, 14, 22, 88, 97, 106
_ETIMEDOUT, _ECONNREFUSED, _EALREADY, _EINPROGRESS = 110, 111, 114, 115
#: Then there was nothing that could have addressed a peer: no socket, no address, none of this
#: family, or a connection to somebody else.
_NO_ATTEMPT = {-_EBADF, -_BAD_ADDRESS, -_ENOTSOCK, -_EAFNOSUPPORT, -_EISCONN}
#: What comes of a connect that did send something; None: it had not come to its end.
_SENT = {None, -_ETIMEDOUT, -_ECONNREFUSED, -_EALREADY, -_EINPROGRESS}


class Peers(Struct):
    """The endpoints that a run addressed: those that something was sent or connected to, or should
    be, and those whose connections it accepted or took from others.

    An attempt counts, whatever came of it. What cannot have been one does not: a call without a
    socket, a message that was refused for its port 0, and a connect to port 0 that sends nothing,
    by which libc asks which of its own addresses it would use. What has no ports, as ICMP, is sent
    to 0.
    """

    _addressed: set[str] = set()
    _named_only: set[str] = set()
    _probes: set[str] = set()
    _blocked: set[str] = set()
    _failed: dict[str, set[str]] = {}
    _kinds: set[tuple[int, bool]] = set()  #: and whether it could have been an attempt

    def add_peer(self, event: KernelEvent, detail: KernelDetail | None) -> None:
        """Add the peer of a call in `ADDRESSING`, or one that was taken from another process."""
        kind, peer = event.event_type, event.value
        result = None if detail is None else detail.return_value
        asks_only = _has_no_port(peer) and (detail is None or result not in _SENT)
        is_probe = kind == kernel.CONNECT and asks_only
        may_address = is_peer_attempt(event, detail) and not is_probe
        self._kinds.add((kind, may_address))
        if peer is None:
            return
        if is_probe:
            self._probes.add(peer)
        else:
            (self._addressed if may_address else self._named_only).add(peer)
        is_failure = detail is not None and (detail.status == "error" or result is None)
        if is_failure and is_address(peer) and kind in ADDRESSING:
            self._failed.setdefault(peer, set()).add(f"{ADDRESSING[kind]}:{failure_name(result)}")

    def add_blocked_peer(self, peer: str | None) -> None:
        """Add the peer of a connect that a monitor refused."""
        is_probe = _has_no_port(peer)
        self._kinds.add((kernel.CONNECT_BLOCKED, not is_probe))
        if peer is not None:
            (self._probes if is_probe else self._blocked).add(peer)

    def has_met_call(self, *kinds: int, is_reference: bool) -> bool:
        """Tell whether a call of one of these kinds was met. The reference counts what addressed
        nobody."""
        found = self._kinds
        return any((k, True) in found or (is_reference and (k, False) in found) for k in kinds)

    def may_be_endpoints(self, endpoints: set[str]) -> bool:
        """Tell whether these may be all endpoints of a run, where what came of a connect to port 0
        is not known."""
        known = self.claimed_endpoints(is_reference=False)
        return known <= endpoints <= known | self.port_zero_probes()

    def claimed_endpoints(self, *, is_reference: bool) -> set[str]:
        """Return the endpoints that a surface claims."""
        if is_reference:
            return self._addressed | self._named_only | self._probes | self._blocked
        return {peer for peer in self._addressed if is_address(peer)} | self._blocked

    def port_zero_probes(self) -> set[str]:
        """Return the addresses that a connect to port 0 asked about."""
        return {peer for peer in self._probes if is_address(peer)}

    def failed_endpoints(self) -> dict[str, list[str]]:
        """Return why calls to each address failed."""
        return {peer: sorted(why) for peer, why in sorted(self._failed.items())}


def is_peer_attempt(event: KernelEvent, detail: KernelDetail | None) -> bool:
    """Tell whether a call of `ADDRESSING` can have reached somebody."""
    result = None if detail is None else detail.return_value
    if event.event_type != kernel.CONNECT and _has_no_port(event.value) and result == -_EINVAL:
        return False
    return result not in _NO_ATTEMPT


def is_address(peer: str) -> bool:
    """Tell whether a peer is named by an IP address."""
    return peer[:1] in tuple("[0123456789")


def _has_no_port(peer: str | None) -> bool:
    return peer is not None and peer.endswith(":0")


RecordT = TypeVar("RecordT", bound=Struct)
#: Of a list or of an object: the next of what is in it.
Pieces = Callable[[], Iterator[list[Any] | dict[str, Any]]]
_encode = msgspec.json.Encoder().encode


class StreamedRecord(Struct, Generic[RecordT]):
    """A record that is as long as what a run touched."""

    outline: RecordT  #: the record, nothing in its long fields
    fields: Mapping[str, Pieces]

    def encoded_record(self) -> Iterator[bytes]:
        """Yield the JSON of the whole record, in pieces."""
        if not self.fields:
            yield _encode(self.outline)
            return
        config = type(self.outline).__struct_config__
        yield b'{"%b":%b' % (str(config.tag_field).encode(), _encode(config.tag))
        outline = self.outline
        names = zip(outline.__struct_fields__, outline.__struct_encode_fields__, strict=True)
        for name, encoded in names:
            value = getattr(outline, name)
            yield b",%b:" % _encode(encoded)
            if name in self.fields:
                yield from _join_json(_encode(value), self.fields[name]())
            else:
                yield _encode(value)
        yield b"}"

    def encoded_line(self) -> bytes:
        """Return the record as a line."""
        return b"".join((*self.encoded_record(), b"\n"))

    def whole_record(self) -> RecordT:
        """Return the whole record of a surface or companion, as one struct."""
        made: dict[str, Any] = {}
        for name, pieces in self.fields.items():
            made[name] = getattr(self.outline, name).copy()
            add = made[name].update if isinstance(made[name], dict) else made[name].extend
            for piece in pieces():
                add(piece)
        return msgspec.structs.replace(self.outline, **made)


def _join_json(empty: bytes, pieces: Iterator[list[Any] | dict[str, Any]]) -> Iterator[bytes]:
    """Join pieces of a JSON list or object. `empty`: its two brackets."""
    yield empty[:1]
    comma = b""
    for piece in filter(None, pieces):
        yield comma + _encode(piece)[1:-1]
        comma = b","
    yield empty[1:]


OPENED = "openat"  #: what an open is called, whichever call it was
#: The calls that change the file system, and how each of their two paths was reached.
_CHANGES = {
    kernel.UNLINK: ("unlink", ""),
    kernel.RENAME: ("rename", "rename_to"),
    kernel.MKDIR: ("mkdir", ""),
    kernel.RMDIR: ("rmdir", ""),
    kernel.LINK: ("link", "link_to"),
    kernel.SYMLINK: ("symlink", "symlink"),
    kernel.CHMOD: ("chmod", ""),
    kernel.CHOWN: ("chown", ""),
    kernel.TRUNCATE: ("truncate", ""),
    kernel.MKNOD: ("mknod", ""),
    kernel.XATTR: ("setxattr", ""),
    kernel.NO_XATTR: ("removexattr", ""),
    kernel.TIMES: ("utime", ""),
    kernel.ATTRIBUTES: ("setattr", ""),
    kernel.ACCOUNT: ("acct", ""),
    kernel.OPEN_TREE: ("open_tree", ""),
    kernel.SOCKET_FILE: ("bind", ""),
}
_LOCAL = {
    *(kernel.LOCAL_CONNECT, kernel.LOCAL_SEND, kernel.LOCAL_BIND, kernel.LOCAL_ACCEPT),
    *(kernel.QUEUE, kernel.NO_QUEUE),
}
#: What another process had open: how it was reached is its own business.
_TAKEN = "taken"
_BLOCKED = "blocked"
_EFAULT = 14
_CUT: set[Mark] = {"walk_cut", "fault", "truncated"}  #: what there is was not seen to its end
_TWO_PATHS = {kernel.RENAME, kernel.LINK}  #: of a symlink the second is the value
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
FileUse: TypeAlias = tuple[int, str, int, int | None]
RECORDER_FOLDER = f"/{HOME}"  #: in the path of all that may be the recorder's own


def ways_of_open(
    access_mode: AccessMode | UnsetType, operation_flags: Sequence[OperationFlag] | UnsetType
) -> int:
    """Return how an open reached its path, as `Surface.add_reached_paths` takes it."""
    ways = _BITS["unknown" if access_mode is UNSET else access_mode]
    for flag in () if operation_flags is UNSET else operation_flags:
        ways |= _BITS[flag]
    return ways


class Surface:
    """What the layers of a run show that it reached."""

    def __init__(self, *, is_reference: bool = False) -> None:
        self.is_reference = is_reference  #: asked only when it is read
        self.unnamed: Counter[str] = Counter()  #: by kind: events that have no path or endpoint
        self._reached: PathsByKey[int] = PathsByKey()
        self._missed: PathsByKey[str] = PathsByKey()
        self._peers = Peers()
        self._sockets: set[str] = set()
        self._programs: dict[str, set[str]] = {}  # and the files that ran by that name
        self._agent_tools: set[str] = set()
        self._policy_tools: set[str] = set()
        self._decisions: set[str] = set()

    def exclude_recorder_files(self, uses_of_run: Iterable[FileUse]) -> None:
        """Remove opens and programs in the recorder's own folder, but for these, which are the
        run's. To be called last."""
        programs = self._programs
        self._programs = {
            path: ran for path, ran in programs.items() if RECORDER_FOLDER not in path
        }
        self._reached.remove_paths(RECORDER_FOLDER, lambda ways: bool(ways & _OPEN_BITS))
        self._missed.remove_paths(RECORDER_FOLDER, lambda why: why.startswith(f"{OPENED}:"))
        for kind, path, ways, result in uses_of_run:
            if kind == kernel.EXEC:
                self._programs[path] = programs.get(path, set())
            elif result is not None and result >= 0:
                self.add_reached_paths((path,), ways)
            else:
                self.add_failed_paths((path,), OPENED, result)

    def add_reached_paths(self, paths: Iterable[str], ways: int) -> None:
        """Add paths that were reached in the same ways."""
        self._reached.add_paths(paths, ways)

    def add_failed_paths(self, paths: Iterable[str], call: str, result: int | None) -> None:
        """Add the paths of attempts that failed in the same way, or whose end nobody saw."""
        self._missed.add_paths(paths, f"{call}:{failure_name(result)}")

    @property
    def has_connect(self) -> bool:
        """Tell whether the run connected, or was blocked from it, accepted, or took a socket."""
        kinds = (kernel.CONNECT, kernel.CONNECT_BLOCKED, kernel.ACCEPT, kernel.REACH)
        return self._peers.has_met_call(*kinds, is_reference=self.is_reference)

    @property
    def has_datagram(self) -> bool:
        """Tell whether the run sent messages."""
        kinds = (kernel.SENDTO, kernel.SENDMSG)
        return self._peers.has_met_call(*kinds, is_reference=self.is_reference)

    def add_kernel_event(self, event: KernelEvent, detail: KernelDetail | None) -> None:
        """Add what an event of the kernel layer reached."""
        kind, value = event.event_type, event.value
        if _is_of_unnamed(event, detail):
            self.unnamed[kind_of_event(kind)] += 1
        if kind in _CHANGES:
            self._add_change(_CHANGES[kind], value, detail)
        elif kind in ADDRESSING:
            self._peers.add_peer(event, detail)
        elif kind == kernel.CONNECT_BLOCKED:
            self._peers.add_blocked_peer(value)
        elif value is None:
            return
        elif kind == kernel.OPEN:
            self._add_open(event, value)
        elif kind == kernel.FILE_BLOCKED:
            self.add_reached_paths((value,), _BITS[_BLOCKED])
        elif kind == kernel.EXEC:
            ran = None if detail is None else detail.resolved
            self._programs.setdefault(value, set()).add(ran or value)
        elif kind == kernel.EXEC_FAILED:
            self.add_failed_paths((value,), "exec", None if detail is None else detail.return_value)
        elif kind in _LOCAL:
            self._sockets.add(value)
        elif kind == kernel.REACH:
            self._add_taken_over(event, value, detail)

    def add_sdk_event(self, event: SdkEvent) -> None:
        """Add the tool that an event of the SDK layer names."""
        if event.tool is not None:
            self._agent_tools.add(event.tool)

    def add_policy_event(self, event: PolicyEvent) -> None:
        """Add the tool and the decision of an event of the policy layer."""
        self._policy_tools.add(event.tool)
        self._decisions.add(f"{event.decision}:{event.tool}")

    def may_claim(self, name: str, stated: Sequence[str]) -> bool:
        """Tell whether a recorder may claim this of the same lines: it leaves out attempts and its
        own work, and knows by details, which are not here, where a rename or a link led."""
        claimed = {*stated}
        if name == "network_endpoints":
            return self._peers.may_be_endpoints(claimed)
        if name == "process_execs":
            must = may = {*self._programs}
        elif name == "filesystem_paths":
            changed = dict(self._failed_changes())
            must = {*self._reached}
            may = claimed if {"rename", "link"} & {*changed.values()} else must | changed.keys()
        else:
            known = getattr(self.surface_artifact(""), name)
            must = may = {*known} | (self._agent_tools if name == "mcp_tools" else set())
        return {path for path in must if RECORDER_FOLDER not in path} <= claimed <= may

    def surface_artifact(self, run_id: str) -> CapabilitySurface:
        """Return the surface as its artifact."""
        return self.streamed_surface(run_id).whole_record()

    def streamed_surface(self, run_id: str) -> StreamedRecord[CapabilitySurface]:
        """Return the surface as an artifact that is written in pieces."""
        outline = CapabilitySurface(
            run_id=run_id,
            filesystem_paths=[],
            network_endpoints=_sorted_by_code_points(
                self._peers.claimed_endpoints(is_reference=self.is_reference)
            ),
            process_execs=_sorted_by_code_points(self._programs),
            mcp_tools=_sorted_by_code_points(
                self._policy_tools | (set() if self.is_reference else self._agent_tools)
            ),
            policy_decisions=_sorted_by_code_points(self._decisions),
        )
        return StreamedRecord(outline, {"filesystem_paths": self._claimed_paths})

    def reached_paths(self) -> dict[str, list[str]]:
        """Return how each path was reached."""
        return {path: how for piece in self.reached_path_pieces() for path, how in piece.items()}

    def failed_paths(self) -> dict[str, list[str]]:
        """Return why attempts on each path failed."""
        return {path: why for piece in self.failed_path_pieces() for path, why in piece.items()}

    def reached_path_pieces(self) -> Iterator[dict[str, list[str]]]:
        """Yield how each path was reached, in pieces."""
        return _descriptions_by_path(self._reached.path_pieces(_words_for_ways))

    def folders_with(self, name: str) -> Iterator[str]:
        """Yield the folders in which something of that name was reached."""
        return self._reached.folders_with(name)

    def failed_path_pieces(self) -> Iterator[dict[str, list[str]]]:
        """Yield why attempts on each path failed, in pieces."""
        return _descriptions_by_path(self._missed.path_pieces(sorted))

    def programs(self) -> dict[str, list[str]]:
        """Return the files that ran by a program's name, where it is not that file alone."""
        ran = self._programs.items()
        return {name: sorted(files) for name, files in sorted(ran) if files != {name}}

    def address_probes(self) -> list[str]:
        """Return the addresses that were only asked about."""
        return _sorted_by_code_points(self._peers.port_zero_probes())

    def failed_endpoints(self) -> dict[str, list[str]]:
        """Return why calls to each endpoint failed."""
        return self._peers.failed_endpoints()

    def local_sockets(self) -> list[str]:
        """Return the sockets and queues of this machine that were reached."""
        return _sorted_by_code_points(self._sockets)

    def self_reported_tools(self) -> list[str]:
        """Return the tools that the agent alone named."""
        return _sorted_by_code_points(self._agent_tools - self._policy_tools)

    def _add_open(self, event: KernelEvent, path: str) -> None:
        """Add the path of an open in the kernel layer to the surface, as reached or as failed."""
        if event.status == "success":
            self.add_reached_paths((path,), ways_of_open(event.access_mode, event.operation_flags))
        else:
            result = event.return_value
            self.add_failed_paths((path,), OPENED, None if result is UNSET else result)

    def _add_change(
        self, ways: tuple[str, str], path: str | None, detail: KernelDetail | None
    ) -> None:
        """Add the one or two paths that a call changed to the surface, as reached or as failed."""
        touched = [(path, ways[0])]
        to_path = None if detail is None else detail.to_path
        if to_path is not None and to_path.startswith("/") and ways[1]:
            touched.append((to_path, ways[1]))
        for name, way in touched:
            if name is None:
                continue
            if detail is not None and detail.status == "success":
                self.add_reached_paths((name,), _BITS[way])
            else:
                self.add_failed_paths((name,), way, None if detail is None else detail.return_value)

    def _add_taken_over(self, event: KernelEvent, value: str, detail: KernelDetail | None) -> None:
        """Add what a process took from another one to the surface: a peer, a file or a socket."""
        if is_address(value):
            self._peers.add_peer(event, detail)
        elif value.startswith("/"):
            self.add_reached_paths((value,), _BITS[_TAKEN])
        else:
            self._sockets.add(value)

    def _claimed_paths(self) -> Iterator[list[str]]:
        """Yield the sorted paths that the surface claims; the reference claims failed opens too."""
        if self.is_reference:
            yield _sorted_by_code_points({*self._reached, *self._failed_opens()})
        else:
            yield from (paths for paths, _ in self._reached.path_pieces(len))

    def _failed_changes(self) -> Iterator[tuple[str, str]]:
        """Yield the paths of changes that did not succeed, or whose detail is not there to say so,
        and how each was called."""
        for paths, described in self._missed.path_pieces(sorted):
            for path, reasons in zip(paths, described, strict=True):
                for reason in reasons:
                    if not reason.startswith((f"{OPENED}:", "exec:")):
                        yield path, reason.partition(":")[0]

    def _failed_opens(self) -> Iterator[str]:
        """Yield the paths that the run opened without success."""
        for paths, described in self._missed.path_pieces(sorted):
            for path, reasons in zip(paths, described, strict=True):
                if any(reason.startswith(f"{OPENED}:") for reason in reasons):
                    yield path


def _descriptions_by_path(pieces: Iterator[Piece[list[str]]]) -> Iterator[dict[str, list[str]]]:
    return (dict(zip(paths, described, strict=True)) for paths, described in pieces)


@lru_cache(1000)
def _words_for_ways(ways: tuple[int, ...]) -> list[str]:
    return sorted(way for way, bit in _BITS.items() if any(bit & one for one in ways))


def _is_of_unnamed(event: KernelEvent, detail: KernelDetail | None) -> bool:
    """Return whether something was reached, or asked for, that nobody can name. What could not be
    read by the kernel itself is nothing that was asked for."""
    kind, value = event.event_type, event.value
    if kind in ADDRESSING and value is not None and not is_address(value):
        return is_peer_attempt(event, detail)  # a frame for the wire, or another kind of network
    if kind == kernel.BIND and value is not None and not is_address(value):
        return detail is None or detail.status == "success"
    if detail is None:
        return False
    if kind == kernel.ACCEPT and value is None:
        return True
    result = event.return_value if kind == kernel.OPEN else detail.return_value
    is_named = value is not None
    if kind in _TWO_PATHS:
        is_named &= detail.to_path is not None and detail.to_path.startswith("/")
    if is_named:
        return False
    if not _CUT.isdisjoint(detail.marks):
        return result != -_EFAULT
    is_done = result is not UNSET and result is not None and result >= 0
    return is_done and bool(detail.path or detail.to_path or detail.call == "pidfd_getfd")


def _sorted_by_code_points(texts: Iterable[str]) -> list[str]:
    """Sort by UTF-8 bytes, which is the order of code points."""
    return sorted(texts)


def make_companion(
    run_id: str,
    surface: Surface,
    *,
    capture: RawCapture | None,
    filtered: Mapping[str, int] | None,
    aside: Mapping[str, int] | None,
    calls: Mapping[str, Mapping[str, int]],
    unbound: Mapping[str, int],
) -> StreamedRecord[Companion]:
    """Make companion.json: what the artifacts have no room for, from the same evidence.

    `filtered` and `aside` count by rule, `calls` and `unbound` by kind of event, in any order.
    """
    outline = Companion(
        run_id=run_id,
        capture={} if capture is None else to_builtins(capture),
        filtered=None if filtered is None else dict(sorted(filtered.items())),
        aside=None if aside is None else dict(sorted(aside.items())),
        unnamed=dict(sorted(surface.unnamed.items())),
        paths={},
        failed_paths={},
        programs=surface.programs(),
        failed_endpoints=surface.failed_endpoints(),
        address_probes=surface.address_probes(),
        local_sockets=surface.local_sockets(),
        self_reported_tools=surface.self_reported_tools(),
        calls={call: dict(sorted(kinds.items())) for call, kinds in sorted(calls.items())},
        unbound=dict(sorted(unbound.items())),
    )
    return StreamedRecord(
        outline, {"paths": surface.reached_path_pieces, "failed_paths": surface.failed_path_pieces}
    )
