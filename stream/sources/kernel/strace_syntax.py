"""The arguments and the results of calls, and the ends of processes, as strace prints them with
-xx -y -X raw.

Every string is hexadecimal, so that nothing a program puts into a name looks like anything else.
What does not have the form that is known gives None, and never a guess.
"""

from __future__ import annotations

import re
import signal
import sys
from binascii import unhexlify
from collections.abc import Callable, Sequence
from functools import lru_cache

from msgspec import Struct, field

from stream.records.kernel import ERRNOS, Mark, RawEvent, path_text
from stream.sources.kernel.calls import SENDS, SHAPES, WITHOUT_PATH, WatchedFile, peer_text

NUMBER = rb"(0x[0-9a-f]+|-?\d+)"
_MEMORY = "/memfd:"
_FAMILY = re.compile(rb"\{sa_family=(0x[0-9a-f]+|\d+)")
_IN4 = re.compile(rb'sin_port="((?:\\x..){2})", sin_addr="((?:\\x..){4})"')
_IN6 = re.compile(
    rb'sin6_port="((?:\\x..){2})".*?sin6_addr="((?:\\x..){16})"'
    rb"(?:, sin6_scope_id=" + NUMBER + rb")?"
)
_LOCAL = re.compile(rb'sun_path=(@?)"([^"]*)"')
_DATA = re.compile(rb'sa_data="([^"]*)"')
_EXITED = re.compile(rb"exited with (\d+) \+\+\+").fullmatch
_KILLED = re.compile(rb"killed by (\w+)( \(core dumped\))? \+\+\+").fullmatch


def strace_number(text: bytes) -> int:
    """Read a figure, which is decimal, octal or hexadecimal."""
    if text.startswith(b"0") and len(text) > 1:
        return int(text, 16 if text[1:2] == b"x" else 8)
    return int(text)


def unquote_strace_bytes(text: bytes) -> bytes:
    """Return the bytes of a string. Raises ValueError."""
    if text.count(b"\\x") * 4 != len(text):
        raise ValueError(text)
    return unhexlify(text.replace(b"\\x", b""))


@lru_cache(4096)  # the same few folders and libraries, again and again
def unquote_strace_text(text: bytes) -> str:
    """Return a string as text by `path_text`. Raises ValueError."""
    return path_text(unquote_strace_bytes(text))


def descriptor_path(text: bytes, is_deleted: bool) -> str | None:
    """Return the path of a descriptor, or None: it is no file, or one in memory, whose name leads
    nowhere. Raises ValueError."""
    name = unquote_strace_text(text)
    is_known = name.startswith("/") and not (is_deleted and name.startswith(_MEMORY))
    return name if is_known else None


def peer_of_address(address: bytes, *, is_send: bool = False) -> str | None:
    """Return whom an address names by `peer_text`, or None if it says nothing that can be read."""
    family = _FAMILY.match(address)
    if family is None:
        return None
    if found := _IN4.search(address):
        rest = unquote_strace_bytes(found[1]) + unquote_strace_bytes(found[2])
    elif found := _IN6.search(address):
        scope = strace_number(found[3] or b"0").to_bytes(4, sys.byteorder)
        rest = unquote_strace_bytes(found[1]) + bytes(4) + unquote_strace_bytes(found[2]) + scope
    elif found := _LOCAL.search(address):
        rest = (b"\0" if found[1] else b"") + unquote_strace_bytes(found[2])
    else:
        data = _DATA.search(address)
        rest = unquote_strace_bytes(data[1]) if data else b""
    return peer_text(strace_number(family[1]).to_bytes(2, sys.byteorder) + rest, is_send=is_send)


def names_socket_file(address: bytes) -> bool:
    """Tell whether an address is a local one that has a name from where the process stands."""
    found = _LOCAL.search(address)
    return found is not None and not found[1] and found[2][:4] not in (b"", b"\\x2f")


def strace_exit_status(text: bytes) -> int | None:
    """Return the status of a process that ended, as wait gives it."""
    if found := _EXITED(text):
        return (int(found[1]) & 0xFF) << 8
    if found := _KILLED(text):
        figure = _signal_number(found[1].decode())
        return None if figure is None else figure | (0x80 if found[2] else 0)
    return None


def _signal_number(name: str) -> int | None:
    """Return the number of a signal by the name that strace prints."""
    if name.startswith("SIGRT_") and name[6:].isdigit():
        return 32 + int(name[6:])
    if name == "SIGRTMIN":
        return 32
    try:
        return int(signal.Signals[name])
    except KeyError:
        return int(name) if name.isdigit() else None


AT_REMOVEDIR = 0x200
CREAT_FLAGS = 0o1101  #: O_CREAT | O_WRONLY | O_TRUNC
CLONES_TREE = 1  #: OPEN_TREE_CLONE
ATTACH, SEIZE = 16, 0x4206  #: requests of ptrace
#: What strace calls them before it knew them: paths are addresses only.
BY_NUMBER = {
    "syscall_0x1c4": "fchmodat2",
    "syscall_0x1cf": "setxattrat",
    "syscall_0x1d2": "removexattrat",
    "syscall_0x1d3": "open_tree_attr",
    "syscall_0x1d5": "file_setattr",
}

#: What a 32-bit program calls them.
COMPAT = {"chown32": "chown", "lchown32": "lchown", "fchown32": "fchown"} | {
    "truncate64": "truncate",
    "utimensat_time64": "utimensat",
    "ftruncate64": "ftruncate",
}
FORKS = ("clone", "clone3", "fork", "vfork")
EXECS = ("execve", "execveat")
TREES = ("open_tree", "open_tree_attr")
#: After one of these, any file may have any name.
MOUNTS = (
    *("mount", "umount", "umount2", "move_mount", "pivot_root", "unshare", "setns"),
    *(*TREES, "fsmount"),  # which may lie nowhere
)
TRACED = (*SHAPES, *COMPAT, *FORKS, *MOUNTS)

NEW_LISTENER = 8  #: of seccomp: a program answers calls in the place of the kernel
CLONE_FS, CLONE_FILES, CLONE_THREAD, CLONE_UNTRACED = 0x200, 0x400, 0x10000, 0x800000
CLONE_NEWNS = 0x20000  #: a namespace of mounts


OWN = "."  #: the folder that the process is in


class CallArguments(Struct):
    """What the arguments of a call say. A folder or file is known by the path that strace read."""

    event: RawEvent  #: what is recorded of them; when and by whom the call was made is open
    dir: str | None = OWN  #: None: a descriptor that is no folder's
    todir: str | None = OWN
    fd: str | None = None
    number: int | None = None  #: of the descriptor that is `dir`, of a program only
    here: str | None = None  #: what strace says that the process's own folder is
    gone: list[str] = field(default_factory=list)  #: which of dir, todir and fd has no name
    is_socket_file: bool = False  #: the peer is the name of one, from where the process stands
    has_peer: bool = False  #: whether somebody was named, in whatever way
    others: list[CallArguments] = field(default_factory=list)  #: the messages behind a first one
    socket: bytes = b""  #: that it is about, as strace calls it


def add_mark(event: RawEvent, mark: Mark) -> None:
    """Add a mark to an event, once."""
    if mark not in event.marks:
        event.marks.append(mark)


def _arguments(call: str) -> CallArguments:
    return CallArguments(RawEvent(0, 0, 0, call, scope="tree"))


def _number_pattern(name: str) -> bytes:
    return b"(?P<%b>0x[0-9a-f]+|-?\\d+)" % name.encode()


def _file_pattern(name: str) -> bytes:
    return rb"(?P<%b>-?\d+)(?:<(?P<%b_path>[^<>]*)>(?P<%b_gone>\(deleted\))?)?" % (
        (name.encode(),) * 3
    )


def _text_pattern(name: str) -> bytes:
    return rb'(?:"(?P<%b>[^"]*)"(?P<%b_cut>\.\.\.)?|(?:NULL|0x[0-9a-f]+))' % ((name.encode(),) * 2)


_ADDRESS = rb"(?:NULL|0x[0-9a-f]+|\{sa_family=[^{}]*\})"
_NO_STRUCT = rb"(?:NULL|0x[0-9a-f]+)"
_FORMS = {
    **{name: _file_pattern(name) for name in ("dir", "todir", "fd")},
    **{name: _text_pattern(name) for name in ("path", "to", "text", "name")},
    "target": _number_pattern("target") + rb"(?: /\* (?P<target_here>\d+) in strace's PID NS \*/)?",
    "argv": rb"(?P<argv>\[.*?\](?=, )|NULL|0x[0-9a-f]+)",
    "how": rb"(?:\{flags=%b(?:, mode=%b)?, resolve=%b(?:, .*)?\}|%b|\{.*\})"
    % (*map(_number_pattern, ("flags", "mode", "resolve")), _NO_STRUCT),
    "handle": rb"(?:\{.*\}|%b)" % _NO_STRUCT,
    "socket": rb"-?\d+(?:<(?P<socket>[^<>]*)>(?:\(deleted\))?)?",
    "address": rb"(?P<address>%b)" % _ADDRESS,
    "message": rb"(?:\{msg_name=(?P<address>%b)|%b), .*" % (_ADDRESS, _NO_STRUCT),
    "messages": rb"(?P<messages>\[\{msg_hdr=\{msg_name=%b, .*|\[\], .*|%b, .*)"
    % (_ADDRESS, _NO_STRUCT),
    "length": rb"\d+",
    "null": b"NULL",
    "rest": b".*",
}
_MESSAGE = re.compile(rb"\{msg_hdr=\{msg_name=(%b)" % _ADDRESS)
_WORDS = re.compile(rb'\[(?:"[^"]*"(?:\.\.\.)?(?:, )?)*(?:\.\.\.)?\]')
_WORD = re.compile(rb'"([^"]*)"(\.\.\.)?')
_LAST_NUMBER = re.compile(b"(?:^|, )" + NUMBER + rb"(?:\)|$)")
_FLAGS = re.compile(rb"[({ ]flags=" + NUMBER)


def parse_call_arguments(call: str, args: bytes) -> CallArguments | None:
    """Return what the arguments of a call say, or None if they do not have the form that is
    known."""
    try:
        return (
            _arguments_by_number(call, args) if call in BY_NUMBER else _parse_by_pattern(call, args)
        )
    except ValueError:  # what should be hexadecimal is not
        return None


def clone_flags(call: str, args: bytes) -> int | None:
    """Return the flags of a call that makes a process, or None where they are not to be seen."""
    if call in ("fork", "vfork"):
        return 0
    found = _FLAGS.search(b" " + args)
    return None if found is None else strace_number(found[1])


def may_mount(call: str, args: bytes) -> bool:
    """Tell whether a call may change what is mounted where, for whoever calls it."""
    if call not in ("unshare", "setns"):
        return True
    found = _LAST_NUMBER.search(args)
    flags = CLONE_NEWNS if found is None else strace_number(found[1])
    return bool(flags & CLONE_NEWNS) or (call == "setns" and not flags)


def _parse_by_pattern(call: str, args: bytes) -> CallArguments | None:
    """Parse the arguments of a call in a strace line by the pattern of that call."""
    found = (call in _LACKING and _LACKING[call].fullmatch(args)) or _PATTERNS[call].fullmatch(args)
    if not found:
        return None
    parsed = _arguments(call)
    for name in found.re.groupindex:
        if read := _READERS.get(name):
            read(parsed, name, found)
    finish = _FINISHERS.get(call)
    return parsed if finish is None or finish(parsed, found) else None


def _read_number(parsed: CallArguments, name: str, found: re.Match[bytes]) -> None:
    if (value := found[name]) is not None:
        figure = strace_number(value)
        setattr(parsed.event, name, None if figure == -1 and name in ("uid", "gid") else figure)


def _read_target(parsed: CallArguments, name: str, found: re.Match[bytes]) -> None:
    parsed.event.target = max(strace_number(found["target_here"] or found["target"]), 0)


def _read_text_argument(parsed: CallArguments, name: str, found: re.Match[bytes]) -> None:
    """Read a path or another text that strace prints as an argument."""
    if found[name] is None:
        add_mark(parsed.event, "fault")
        return
    setattr(parsed.event, _FIELDS.get(name, name), unquote_strace_text(found[name]))
    if found[f"{name}_cut"]:
        add_mark(parsed.event, "truncated")


def _read_descriptor_argument(parsed: CallArguments, name: str, found: re.Match[bytes]) -> None:
    """Read a descriptor that strace prints as an argument, with the path of its file."""
    figure, path, is_deleted = (found[group] for group in (name, f"{name}_path", f"{name}_gone"))
    if figure == b"-100":  # AT_FDCWD
        parsed.here = None if path is None else unquote_strace_text(path)
        return
    if name == "dir":
        parsed.number = strace_number(figure)
    setattr(parsed, name, None if path is None else descriptor_path(path, bool(is_deleted)))
    if is_deleted:
        parsed.gone.append(name)


def _read_argv(parsed: CallArguments, name: str, found: re.Match[bytes]) -> None:
    """Read the words of an exec that strace prints."""
    words = found[name]
    if words != b"NULL" and not _WORDS.fullmatch(words):
        add_mark(parsed.event, "fault")
    parsed.event.argv = [unquote_strace_text(text) for text, _ in _WORD.findall(words)]
    if words.endswith(b"...]") or any(is_cut for _, is_cut in _WORD.findall(words)):
        add_mark(parsed.event, "truncated")


def _read_socket(parsed: CallArguments, name: str, found: re.Match[bytes]) -> None:
    parsed.socket = found[name] or b""


_FIELDS = {"text": "path", "to": "to_path"}  #: where an argument has another name in an event
_READERS: dict[str, Callable[[CallArguments, str, re.Match[bytes]], None]] = {
    **dict.fromkeys(("flags", "mode", "resolve", "uid", "gid", "size"), _read_number),
    **dict.fromkeys(("path", "to", "text", "name"), _read_text_argument),
    **dict.fromkeys(("dir", "todir", "fd"), _read_descriptor_argument),
    "target": _read_target,
    "argv": _read_argv,
    "socket": _read_socket,
}


def _finish_creat(parsed: CallArguments, found: re.Match[bytes]) -> bool:
    parsed.event.flags = CREAT_FLAGS
    return True


def _finish_queue(parsed: CallArguments, found: re.Match[bytes]) -> bool:
    parsed.dir = None  # its name is in no folder
    return True


def _finish_openat2(parsed: CallArguments, found: re.Match[bytes]) -> bool:
    if found["flags"] is None:
        add_mark(parsed.event, "fault")
    return True


def _finish_bind(parsed: CallArguments, found: re.Match[bytes]) -> bool:
    """Take the name of a local socket for a path, unless it is an abstract one: it makes a file."""
    _read_peer_address(parsed, found["address"])
    event = parsed.event
    peer = event.peer or ""
    if peer.startswith("unix:") and peer[5:6] not in ("", "@"):
        event.path, event.peer, parsed.is_socket_file = peer[5:], None, False
    return found["socket"] is not None


def _finish_accept(parsed: CallArguments, found: re.Match[bytes]) -> bool:
    """Read who has come, which is seen where the program has asked. Who comes to a local socket
    seldom has a name: that of the socket itself stands for it."""
    if found["address"].startswith(b"{"):
        peer = peer_of_address(found["address"])
        parsed.event.peer = "unix:" if peer is not None and peer.startswith("unix:") else peer
    return True


def _finish_peer(parsed: CallArguments, found: re.Match[bytes]) -> bool:
    _read_peer_address(parsed, found["address"])
    return True


def _finish_sends(parsed: CallArguments, found: re.Match[bytes]) -> bool:
    """Read whom each message of a sendmmsg in a strace line names."""
    for index, address in enumerate(_MESSAGE.findall(found["messages"])):
        one = _arguments("sendmmsg") if index else parsed
        _read_peer_address(one, address)
        parsed.others += [one] if index else []
    return True


_FINISHERS: dict[str, Callable[[CallArguments, re.Match[bytes]], bool]] = {
    "creat": _finish_creat,
    "mq_open": _finish_queue,
    "mq_unlink": _finish_queue,
    "openat2": _finish_openat2,
    "connect": _finish_peer,
    "bind": _finish_bind,
    "accept": _finish_accept,
    "accept4": _finish_accept,
    "sendto": _finish_peer,
    "sendmsg": _finish_peer,
    "sendmmsg": _finish_sends,
}


def _read_peer_address(parsed: CallArguments, address: bytes | None) -> None:
    """Read whom a socket address that strace prints names."""
    if address is None or address == b"NULL":
        return
    parsed.has_peer = True
    if not address.startswith(b"{"):
        add_mark(parsed.event, "fault")
        return
    parsed.event.peer = peer_of_address(address, is_send=parsed.event.call in SENDS)
    parsed.is_socket_file = names_socket_file(address)


def _arguments_by_number(call: str, args: bytes) -> CallArguments | None:
    """Read the arguments of a call that strace has no name for, and prints by its number."""
    words = args.split(b", ")
    if len(words) != 6:
        return None
    parsed = _arguments(call)
    parsed.dir = None
    add_mark(parsed.event, "fault")
    if BY_NUMBER[call] == "fchmodat2":
        parsed.event.mode, parsed.event.flags = strace_number(words[2]), strace_number(words[3])
    return parsed


def _arguments_pattern(shape: str) -> re.Pattern[bytes]:
    """Compile the pattern by which the arguments of a call in a strace line are read."""
    pattern = b""
    for word in shape.split():
        name = word.rstrip("?")
        part = (b", " if pattern else b"") + _FORMS.get(name, _number_pattern(name))
        pattern += b"(?:" + part + b")?" if word.endswith("?") else part
    return re.compile(pattern)


_PATTERNS = {call: _arguments_pattern(shape) for call, shape in SHAPES.items()}
_LACKING = {call: _arguments_pattern(shape) for call, shape in WITHOUT_PATH.items()}


# --- how a line ends ------------------------------------------------------------------------------

_ERRNOS = ERRNOS | {"EWOULDBLOCK": 11, "EDEADLOCK": 35, "ENOTSUPP": 524}  #: and other names
_RESULT = re.compile(
    rb"\)\s+= (-?\d+|0x[0-9a-f]+|\?)(?:<([^<>]*)>(\(deleted\))?)?"
    rb"(?: /\* (\d+) in strace's PID NS \*/)?"
    rb"(?: (E[A-Z0-9]+)(?: \(.*\))?| \(errno (\d+)\)| <unavailable>)?$"
).search


class CallResult(Struct):
    """How a call ended."""

    start: int  #: where the arguments end
    ret: int | None
    path: str | None = None
    is_deleted: bool = False
    child: int = 0
    is_misread: bool = False

    @property
    def has_succeeded(self) -> bool:
        """Tell whether the call was seen to succeed."""
        return self.ret is not None and self.ret >= 0

    @property
    def has_failed(self) -> bool:
        """Tell whether the call was seen to fail."""
        return self.ret is not None and self.ret < 0


def read_call_result(text: bytes) -> CallResult | None:
    """Read how a call ended from the end of its line; None where the line does not end as calls
    do."""
    found = _RESULT(text)
    if found is None:
        return None
    value, file, deleted, child, name, errno = found.groups()
    if value == b"?":
        return CallResult(found.start(), None)  # interrupted, or ended in the middle
    ret: int | None = strace_number(value)
    if name is not None:
        known = _ERRNOS.get(name.decode())
        ret = None if known is None else -known
    elif errno is not None:
        ret = -int(errno)
    try:
        path = None if file is None else descriptor_path(file, bool(deleted))
    except ValueError:
        return None
    return CallResult(
        found.start(),
        ret,
        path,
        bool(deleted),
        child=int(child) if child else max(ret or 0, 0),
        is_misread=errno is not None and len(errno) > 9,
    )


_CHANGED = re.compile(rb" <pid changed to \d+ \.\.\.>$").search
UNFINISHED, _DETACHED = b" <unfinished ...>", b" <detached ...>"


def unfinished_arguments(rest: bytes) -> bytes | None:
    """Return the arguments of a call that has not returned yet; None: it has."""
    if rest.endswith(UNFINISHED):
        return rest[: -len(UNFINISHED)]
    if rest.endswith(_DETACHED):
        return rest[: -len(_DETACHED)]
    changed = _CHANGED(rest)
    return rest[: changed.start()] if changed else None


# --- writes, whose data nobody looks at ---------------------------------------------------------

FIRST = re.compile(rb"\d+<([^<>]*)>(?!\()").match
SECOND = re.compile(rb"[^,]*, \d+<([^<>]*)>(?!\()").match
THIRD = re.compile(rb"[^,]*, [^,]*, \d+<([^<>]*)>(?!\()").match
#: By call: what finds the path of the descriptor that it writes to. A file that is deleted has
#: none: another one may have got its name.
WRITES = {
    **dict.fromkeys(("write", "writev", "pwrite64", "pwritev", "pwritev2"), FIRST),
    **dict.fromkeys(("vmsplice", "sendfile", "sendfile64"), FIRST),
    "tee": SECOND,
    "splice": THIRD,
    "copy_file_range": THIRD,
}
TRACED_WRITES = tuple(WRITES)
#: Of these, strace prints an address in the place of the data.
UNREAD = "--verbose=!?writev,?pwritev,?pwritev2,?vmsplice"
END = 256  #: so many bytes of a line are enough to hold a call's result


def path_of_write(call: str, args: bytes) -> bytes:
    """Return the path of the file or pipe that a call writes to, as strace prints it; nothing if it
    has none."""
    found = WRITES[call](args)
    return found[1] if found else b""


def streams_by_path(watch: Sequence[WatchedFile]) -> dict[bytes, str]:
    """Return the names of watched files by their paths, as `path_of_write` gives them."""
    return {_quoted(one.path): one.name for one in watch if one.path}


def _quoted(path: bytes) -> bytes:
    return b"".join(b"\\x%02x" % byte for byte in path)
