"""What strace prints of values, with -xx and -X raw: strings, figures, addresses and ends.

The arguments of one call, as strace prints them with -xx -y -X raw, and what they say.

Every string is hexadecimal, so that nothing a program puts into a name looks like anything else.
What does not have the form that is known gives None, and never a guess."""

from __future__ import annotations

import re
import signal
import socket
from binascii import unhexlify
from collections.abc import Callable
from functools import lru_cache

from msgspec import Struct, field

from stream.records.kernel import Mark, path_text

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


def number(text: bytes) -> int:
    if text.startswith(b"0") and len(text) > 1:
        return int(text, 16 if text[1:2] == b"x" else 8)
    return int(text)


def unquoted(text: bytes) -> bytes:
    """Raises ValueError."""
    if text.count(b"\\x") * 4 != len(text):
        raise ValueError(text)
    return unhexlify(text.replace(b"\\x", b""))


@lru_cache(4096)  # the same few folders and libraries, again and again
def plain(text: bytes) -> str:
    """Raises ValueError."""
    return path_text(unquoted(text))


def file_name(text: bytes, is_deleted: bool) -> str | None:
    """None: it is no file, or one in memory, whose name leads nowhere. Raises ValueError."""
    name = plain(text)
    is_known = name.startswith("/") and not (is_deleted and name.startswith(_MEMORY))
    return name if is_known else None


def peer_of(address: bytes, *, is_send: bool = False) -> str | None:
    """None: it says nothing that can be read. As IPv4 does, a send without a family is read as
    one of IPv4."""
    if found := _IN4.search(address):
        port, host = unquoted(found[1]), unquoted(found[2])
        return f"{socket.inet_ntoa(host)}:{int.from_bytes(port, 'big')}"
    if found := _IN6.search(address):
        port, host = unquoted(found[1]), unquoted(found[2])
        scope = number(found[3] or b"0")
        name = socket.inet_ntop(socket.AF_INET6, host) + (f"%{scope}" if scope else "")
        return f"[{name}]:{int.from_bytes(port, 'big')}"
    if found := _LOCAL.search(address):
        return f"unix:{found[1].decode()}{plain(found[2])}"
    if (known := _FAMILY.match(address)) is None:
        return None
    family = number(known[1])
    data = _DATA.search(address)
    if family == 0 and is_send:
        raw = unquoted(data[1]) if data else b""
        figure = int.from_bytes(raw[:2], "big")
        return f"{socket.inet_ntoa(raw[2:6])}:{figure}" if len(raw) >= 6 else None
    if family == 0:
        return "unspec"
    if family == socket.AF_NETLINK:
        return "netlink"
    return f"af{family}:{unquoted(data[1]).hex() if data else ''}"


def names_file(address: bytes) -> bool:
    """Whether it is a local one that has a name from where the process stands."""
    found = _LOCAL.search(address)
    return found is not None and not found[1] and found[2][:4] not in (b"", b"\\x2f")


def exit_status(text: bytes) -> int | None:
    """As wait gives it."""
    if found := _EXITED(text):
        return (int(found[1]) & 0xFF) << 8
    if found := _KILLED(text):
        figure = _signal(found[1].decode())
        return None if figure is None else figure | (0x80 if found[2] else 0)
    return None


def _signal(name: str) -> int | None:
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

#: What each call's arguments are, in order. `dir` is where the next path starts from; `rest` is
#: what nobody needs of them.
SHAPES = {
    "open": "path flags mode?",
    "creat": "path mode",
    "openat": "dir path flags mode?",
    "unlink": "path",
    "unlinkat": "dir path flags",
    "rename": "path to",
    "renameat": "dir path todir to",
    "renameat2": "dir path todir to flags",
    "mkdir": "path mode",
    "mkdirat": "dir path mode",
    "rmdir": "path",
    "link": "path to",
    "linkat": "dir path todir to flags",
    "symlink": "text to",
    "symlinkat": "text todir to",
    "chmod": "path mode",
    "fchmod": "fd mode",
    "fchmodat": "dir path mode",
    "fchmodat2": "dir path mode flags",
    "chown": "path uid gid",
    "lchown": "path uid gid",
    "fchown": "fd uid gid",
    "fchownat": "dir path uid gid flags",
    "truncate": "path size",
    "ftruncate": "fd size",
    "mknod": "path mode rest?",
    "mknodat": "dir path mode rest?",
    "setxattr": "path name rest size flags",
    "lsetxattr": "path name rest size flags",
    "fsetxattr": "fd name rest size flags",
    "setxattrat": "dir path flags name rest",
    "removexattr": "path name",
    "lremovexattr": "path name",
    "fremovexattr": "fd name",
    "removexattrat": "dir path flags name",
    "file_setattr": "dir path rest flags",
    "utime": "path rest",
    "utimes": "path rest",
    "futimesat": "dir path rest",
    "utimensat": "dir path rest flags",
    "acct": "path",
    "open_tree": "dir path flags",
    "open_tree_attr": "dir path flags rest",
    "mq_open": "path flags mode? rest?",
    "mq_unlink": "path",
    "bpf": "flags rest",
    "init_module": "rest",
    "finit_module": "fd rest",
    "fanotify_init": "flags rest",
    "process_vm_readv": "target rest",
    "process_vm_writev": "target rest",
    "ptrace": "flags target rest?",
    "pidfd_getfd": "rest",
    "chdir": "path",
    "fchdir": "fd",
    "chroot": "path",
    "seccomp": "mode flags rest",
}
#: Where no path is given, and none is needed: the descriptor itself is meant, or nothing.
WITHOUT_PATH = {"futimesat": "fd null rest", "utimensat": "fd null rest flags", "acct": "null"}
#: What a 32-bit program calls them.
COMPAT = {"chown32": "chown", "lchown32": "lchown", "fchown32": "fchown"} | {
    "truncate64": "truncate",
    "utimensat_time64": "utimensat",
    "ftruncate64": "ftruncate",
}
SENDS = ("sendto", "sendmsg", "sendmmsg")
FORKS = ("clone", "clone3", "fork", "vfork")
EXECS = ("execve", "execveat")
ACCEPTS = ("accept", "accept4")
REACHING = ("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd")
OTHERS = ("openat2", "open_by_handle_at", "connect", "bind", *ACCEPTS, "io_uring_setup")
TREES = ("open_tree", "open_tree_attr")
#: After one of these, any file may have any name.
MOUNTS = (
    *("mount", "umount", "umount2", "move_mount", "pivot_root", "unshare", "setns"),
    *(*TREES, "fsmount"),  # which may lie nowhere
)
TRACED = (*SHAPES, *COMPAT, *SENDS, *FORKS, *EXECS, *OTHERS, *MOUNTS)

NEW_LISTENER = 8  #: of seccomp: a program answers calls in the place of the kernel
CLONE_FS, CLONE_FILES, CLONE_THREAD, CLONE_UNTRACED = 0x200, 0x400, 0x10000, 0x800000
CLONE_NEWNS = 0x20000  #: a namespace of mounts


OWN = "."  #: the folder that the process is in


class CallArguments(Struct):
    """What the arguments say. A folder or file is known by the path that strace read."""

    path: str | None = None
    to: str | None = None
    dir: str | None = OWN  #: None: a descriptor that is no folder's
    todir: str | None = OWN
    fd: str | None = None
    number: int | None = None  #: of the descriptor that is `dir`, of a program only
    here: str | None = None  #: what strace says that the process's own folder is
    gone: list[str] = field(default_factory=list)  #: which of dir, todir and fd has no name
    flags: int = 0
    mode: int = 0
    resolve: int = 0
    uid: int | None = None
    gid: int | None = None
    size: int | None = None
    peer: str | None = None
    is_socket_file: bool = False  #: `peer` is the name of one, from where the process stands
    has_peer: bool = False  #: whether somebody was named, in whatever way
    others: list[CallArguments] = field(default_factory=list)  #: the messages behind a first one
    argv: list[str] | None = None
    name: str | None = None
    target: int | None = None
    socket: bytes = b""  #: that it is about, as strace calls it
    marks: list[Mark] = field(default_factory=list)

    def mark(self, mark: Mark) -> None:
        if mark not in self.marks:
            self.marks.append(mark)


_FILE = rb"(-?\d+)(?:<([^<>]*)>(\(deleted\))?)?"
_TEXT = rb'(?:"([^"]*)"(\.\.\.)?|(?:NULL|0x[0-9a-f]+))'
_SOCKADDR = rb"(NULL|0x[0-9a-f]+|\{sa_family=[^{}]*\})"
_PID = NUMBER + rb"(?: /\* (\d+) in strace's PID NS \*/)?"
_FORMS = {
    **dict.fromkeys(("dir", "todir", "fd"), _FILE),
    **dict.fromkeys(("path", "to", "text", "name"), _TEXT),
    "target": _PID,
    "null": b"NULL",
    "rest": b".*",
}
_GROUPS = {
    **dict.fromkeys(("dir", "todir", "fd"), 3),
    **dict.fromkeys(("path", "to", "text", "name", "target"), 2),
    "null": 0,
    "rest": 0,
}


def _pattern(shape: str) -> re.Pattern[bytes]:
    text = b""
    for word in shape.split():
        name = word.rstrip("?")
        form = _FORMS.get(name, NUMBER)
        part = (b", " if text else b"") + form
        text += b"(?:" + part + b")?" if word.endswith("?") else part
    return re.compile(text)


def _plan(shape: str) -> tuple[tuple[str, int], ...]:
    """Which groups of the pattern hold what."""
    plan, group = [], 0
    for word in shape.split():
        name = word.rstrip("?")
        if groups := _GROUPS.get(name, 1):
            plan.append((name, group))
            group += groups
    return tuple(plan)


_PATTERNS, _LACKING = (
    {call: (_pattern(shape).fullmatch, _plan(shape)) for call, shape in shapes.items()}
    for shapes in (SHAPES, WITHOUT_PATH)
)
_HOW = re.compile(
    _FILE + b", " + _TEXT + rb", \{flags=" + NUMBER + rb"(?:, mode=" + NUMBER + rb")?"
    rb", resolve=" + NUMBER + rb"(?:, .*)?\}, \d+"
)
_NO_HOW = re.compile(_FILE + b", " + _TEXT + rb", (?:NULL|0x[0-9a-f]+|\{.*\}), \d+")
_EXEC = re.compile(_TEXT + rb", (\[.*?\](?=, )|NULL|0x[0-9a-f]+), .*")
_EXECAT = re.compile(_FILE + b", " + _TEXT + rb", (\[.*?\](?=, )|NULL|0x[0-9a-f]+), .*, " + NUMBER)
_WORDS = re.compile(rb'\[(?:"[^"]*"(?:\.\.\.)?(?:, )?)*(?:\.\.\.)?\]')
_WORD = re.compile(rb'"([^"]*)"(\.\.\.)?')
_CONNECT = re.compile(rb"-?\d+(?:<[^<>]*>(?:\(deleted\))?)?, " + _SOCKADDR + rb", \d+")
_SOCKET = re.compile(rb"-?\d+<([^<>]*)>")
_ACCEPT = re.compile(rb"-?\d+(?:<([^<>]*)>(?:\(deleted\))?)?, " + _SOCKADDR + b", .*")
_LOCAL_FAMILY = (b"{sa_family=0x1}", b"{sa_family=0x1,", b"{sa_family=1}", b"{sa_family=1,")
_SENDTO = re.compile(rb".*, " + _SOCKADDR + rb", \d+")
_SENDMSG = re.compile(
    rb"-?\d+(?:<[^<>]*>(?:\(deleted\))?)?, "
    rb"(?:\{msg_name=" + _SOCKADDR + rb", .*|NULL, .*|0x[0-9a-f]+, .*)"
)
_SENDMMSG = re.compile(
    rb"-?\d+(?:<[^<>]*>(?:\(deleted\))?)?, "
    rb"(?:\[\{msg_hdr=\{msg_name=" + _SOCKADDR + rb", .*|\[\], .*|NULL, .*|0x[0-9a-f]+, .*)"
)
_MESSAGE = re.compile(rb"\{msg_hdr=\{msg_name=" + _SOCKADDR)
_HANDLE = re.compile(_FILE + rb", (?:\{.*\}|NULL|0x[0-9a-f]+), " + NUMBER)
_LAST_NUMBER = re.compile(b"(?:^|, )" + NUMBER + rb"(?:\)|$)")
_FLAGS = re.compile(rb"[({ ]flags=" + NUMBER)


def tell(call: str, args: bytes) -> CallArguments | None:
    """None: they do not have the form that is known."""
    try:
        if call in BY_NUMBER:
            return _by_number(BY_NUMBER[call], args)
        special = _SPECIAL.get(call)
        return _simple(call, args) if special is None else special(args)
    except ValueError:  # what should be hexadecimal is not
        return None


def clone_flags(call: str, args: bytes) -> int | None:
    """None: not to be seen. fork and vfork have none."""
    if call in ("fork", "vfork"):
        return 0
    found = _FLAGS.search(b" " + args)
    return None if found is None else number(found[1])


def may_mount(call: str, args: bytes) -> bool:
    """Whether it may change what is mounted where, for whoever calls it."""
    if call not in ("unshare", "setns"):
        return True
    found = _LAST_NUMBER.search(args)
    flags = CLONE_NEWNS if found is None else number(found[1])
    return bool(flags & CLONE_NEWNS) or (call == "setns" and not flags)


def _simple(call: str, args: bytes) -> CallArguments | None:
    match, plan = _PATTERNS[call]
    found = match(args)
    if call in _LACKING and (lacks := _LACKING[call][0](args)):
        found, plan = lacks, _LACKING[call][1]
    if found is None:
        return None
    groups = found.groups()
    told = CallArguments()
    for name, at in plan:
        if name in ("path", "to", "text", "name"):
            _read_text(told, "path" if name == "text" else name, groups[at], groups[at + 1])
        elif name == "target":
            told.target = number(groups[at + 1] or groups[at])
        elif name in ("dir", "todir", "fd"):
            _read_file(told, name, groups[at], groups[at + 1], groups[at + 2])
        elif (value := groups[at]) is not None:
            figure = number(value)
            setattr(told, name, None if figure == -1 and name in ("uid", "gid") else figure)
    if call == "creat":
        told.flags = CREAT_FLAGS
    if call in ("mq_open", "mq_unlink"):
        told.dir = None  # its name is in no folder
    return told


def _read_text(told: CallArguments, name: str, text: bytes | None, is_cut: bytes | None) -> None:
    if text is None:
        told.mark("fault")
    else:
        setattr(told, name, plain(text))
        if is_cut:
            told.mark("truncated")


def _read_file(
    told: CallArguments, name: str, figure: bytes, path: bytes | None, is_deleted: bytes | None
) -> None:
    if figure == b"-100":  # AT_FDCWD
        told.here = None if path is None else plain(path)
        return
    setattr(told, name, None if path is None else file_name(path, bool(is_deleted)))
    if is_deleted:
        told.gone.append(name)


def _openat2(args: bytes) -> CallArguments | None:
    found = _HOW.fullmatch(args)
    told = CallArguments()
    if found is not None:
        told.flags, told.resolve = number(found[6]), number(found[8])
        told.mode = number(found[7] or b"0")
    else:
        found = _NO_HOW.fullmatch(args)
        if found is None:
            return None
        told.mark("fault")
    _read_file(told, "dir", found[1], found[2], found[3])
    _read_text(told, "path", found[4], found[5])
    return told


def _execve(args: bytes) -> CallArguments | None:
    found = _EXEC.fullmatch(args)
    if found is None:
        return None
    told = CallArguments()
    _read_text(told, "path", found[1], found[2])
    _read_words(told, found[3])
    return told


def _execveat(args: bytes) -> CallArguments | None:
    found = _EXECAT.fullmatch(args)
    if found is None:
        return None
    told = CallArguments(flags=number(found[7]))
    _read_file(told, "dir", found[1], found[2], found[3])
    told.number = None if told.dir == OWN else number(found[1])
    _read_text(told, "path", found[4], found[5])
    _read_words(told, found[6])
    return told


def _read_words(told: CallArguments, words: bytes) -> None:
    if words != b"NULL" and not _WORDS.fullmatch(words):
        told.mark("fault")
    told.argv = []
    for text, is_cut in _WORD.findall(words):
        told.argv.append(plain(text))
        if is_cut:
            told.mark("truncated")
    if words.endswith(b"...]"):
        told.mark("truncated")


def _connect(args: bytes) -> CallArguments | None:
    found = _CONNECT.fullmatch(args)
    return None if found is None else _to(found[1], is_send=False)


def _bind(args: bytes) -> CallArguments | None:
    """A local socket with a name that is no abstract one makes a file."""
    told, found = _connect(args), _SOCKET.match(args)
    if told is None or found is None:
        return None
    told.socket = found[1]
    if told.peer is not None and told.peer.startswith("unix:") and told.peer[5:6] not in ("", "@"):
        told.path, told.peer, told.is_socket_file = told.peer.removeprefix("unix:"), None, False
    return told


def _accept(args: bytes) -> CallArguments | None:
    """Who has come is seen where the program has asked."""
    found = _ACCEPT.fullmatch(args)
    if found is None:
        return None
    told = CallArguments(socket=found[1] or b"")
    address = found[2]
    if address.startswith(_LOCAL_FAMILY):
        told.peer = "unix:"
    elif address.startswith(b"{"):
        told.peer = peer_of(address)
    return told


def _sendto(args: bytes) -> CallArguments | None:
    found = _SENDTO.fullmatch(args)
    return None if found is None else _to(found[1])


def _sendmsg(args: bytes) -> CallArguments | None:
    found = _SENDMSG.fullmatch(args)
    return None if found is None else _to(found[1] or b"NULL")


def _sendmmsg(args: bytes) -> CallArguments | None:
    found = _SENDMMSG.fullmatch(args)
    if found is None:
        return None
    told, *others = (_to(name) for name in _MESSAGE.findall(args) or [b"NULL"])
    told.others = others
    return told


def _to(address: bytes, *, is_send: bool = True) -> CallArguments:
    if address == b"NULL":
        return CallArguments()
    if not address.startswith(b"{"):
        return CallArguments(marks=["fault"], has_peer=True)
    peer = peer_of(address, is_send=is_send)
    return CallArguments(peer=peer, has_peer=True, is_socket_file=names_file(address))


def _by_handle(args: bytes) -> CallArguments | None:
    found = _HANDLE.fullmatch(args)
    return None if found is None else CallArguments(flags=number(found[4]))


def _io_uring_setup(args: bytes) -> CallArguments | None:
    return CallArguments()


def _by_number(call: str, args: bytes) -> CallArguments | None:
    words = args.split(b", ")
    if len(words) != 6:
        return None
    told = CallArguments(dir=None, marks=["fault"])
    if call == "fchmodat2":
        told.mode, told.flags = number(words[2]), number(words[3])
    return told


_SPECIAL: dict[str, Callable[[bytes], CallArguments | None]] = {
    "openat2": _openat2,
    "open_by_handle_at": _by_handle,
    "execve": _execve,
    "execveat": _execveat,
    "connect": _connect,
    "sendto": _sendto,
    "sendmsg": _sendmsg,
    "sendmmsg": _sendmmsg,
    "io_uring_setup": _io_uring_setup,
    "bind": _bind,
    "accept": _accept,
    "accept4": _accept,
}
