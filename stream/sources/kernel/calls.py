"""What both feeds follow: system calls and their arguments, whom an address names, the files that
are watched, and what a run does that no feed can follow."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from stream.records.kernel import RawEvent, path_text

#: What each call's arguments are, in order. `dir` is where the next path starts from; `?`: it may
#: be missing; `rest` is what nobody needs of them.
SHAPES = {
    "open": "path flags mode?",
    "creat": "path mode",
    "openat": "dir path flags mode?",
    "openat2": "dir path how length",
    "open_by_handle_at": "socket handle flags",
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
    "execve": "path argv rest",
    "execveat": "dir path argv rest flags",
    "connect": "socket address length",
    "bind": "socket address length",
    "accept": "socket address rest",
    "accept4": "socket address rest",
    "sendto": "rest address length",
    "sendmsg": "socket message",
    "sendmmsg": "socket messages",
    "io_uring_setup": "rest",
}
#: Where no path is given, and none is needed: the descriptor itself is meant, or nothing.
WITHOUT_PATH = {"futimesat": "fd null rest", "utimensat": "fd null rest flags", "acct": "null"}
SENDS = ("sendto", "sendmsg", "sendmmsg")
ACCEPTS = ("accept", "accept4")
REACHING = ("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd")


def calls_with(argument: str) -> set[str]:
    """Return the calls that have an argument of this name."""
    return {call for call, shape in SHAPES.items() if argument in shape.replace("?", "").split()}


class WatchedFile(Struct, frozen=True):
    """A file or pipe of which a feed reports who opens it to write, or writes into it."""

    name: str
    device: int
    inode: int
    #: What /proc calls a descriptor of it: all that a tracer sees. Empty: it cannot know it.
    path: bytes = b""

    @classmethod
    def of_descriptor(cls, name: str, fd: int) -> WatchedFile:
        """Describe the file behind a descriptor."""
        status = os.fstat(fd)
        path = b""
        with suppress(OSError):
            path = os.fsencode(Path(f"/proc/self/fd/{fd}").readlink())
        return cls(name, _kernel_device_of(fd) or status.st_dev, status.st_ino, path)


def _kernel_device_of(fd: int) -> int | None:
    """Return the device as the kernel has it: stat gives another one for a part of btrfs, or for a
    layer of overlayfs."""
    with suppress(OSError):
        info = Path(f"/proc/self/fdinfo/{fd}").read_bytes()
        mount = info.partition(b"\nmnt_id:")[2].split(maxsplit=1)[0]
        for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
            number, _, device, _ = line.split(b" ", 3)
            if number == mount:
                return os.makedev(*map(int, device.split(b":")))
    return None


_NETLINK, _PACKET = 16, 17


def peer_text(address: bytes, *, is_send: bool = False, family: int = 0) -> str | None:
    """Return whom a socket address names: `1.2.3.4:443`, `[2001:db8::1]:443`, `unix:/run/x` or
    `unix:@abstract`; None if it is none, or one that nobody can read. `family` is the socket's,
    where that is known."""
    if len(address) < 2:
        return None
    of_socket, family = family, int.from_bytes(address[:2], sys.byteorder)
    if is_send and of_socket == _PACKET:  # which does not look at the address's own
        family = _PACKET
    elif is_send and family == socket.AF_UNSPEC:  # IPv4 takes it for its own, others for no name
        if of_socket not in (socket.AF_UNSPEC, socket.AF_INET) or len(address) < 8:
            return None
        family = socket.AF_INET
    port = int.from_bytes(address[2:4], "big")
    if family == socket.AF_INET and len(address) >= 8:
        return f"{socket.inet_ntop(family, address[4:8])}:{port}"
    if family == socket.AF_INET6 and len(address) >= 24:
        scope = int.from_bytes(address[24:28], sys.byteorder)
        zone = f"%{scope}" if scope else ""
        return f"[{socket.inet_ntop(family, address[8:24])}{zone}]:{port}"
    if family == socket.AF_UNIX:
        name = address[2:]
        if name[:1] == b"\0":
            return f"unix:@{path_text(name[1:])}"
        return "unix:" + path_text(name.split(b"\0", 1)[0])
    if family == socket.AF_UNSPEC:
        return "unspec"
    return "netlink" if family == _NETLINK else f"af{family}:{address[2:].hex()}"


_POWERS = {
    "bpf": "the run used bpf(2), by which a program in the kernel can do what no call shows",
    "init_module": "the run loaded a kernel module",
    "finit_module": "the run loaded a kernel module",
    "fanotify_init": "the run used fanotify, which opens files that no call names",
}
#: A call that its listener lets go on is seen by no tracer.
ANSWERED = (
    "a program of the run answered system calls of others (seccomp), which strace is not told"
)
DOUBTED = frozenset((*_POWERS, *REACHING))


class LossReasons:
    """What a run did that its feed cannot follow, so that its record is never complete.

    Each is an event as well. But what comes of it is done by others, or by the kernel itself, and
    no call of the run shows it.
    """

    def __init__(self) -> None:
        self._found: dict[str, None] = {}

    def note_kernel_event(self, event: RawEvent) -> None:
        """Look at an event of one of the calls in DOUBTED."""
        if event.ret is None or event.ret < 0:
            return
        if event.call in _POWERS:
            self.add_reason(_POWERS[event.call])
        elif "outside" in event.marks:
            self.add_reason(
                f"the run reached by {event.call} into a process that is none of its own"
            )

    def add_reason(self, reason: str) -> None:
        """Add a reason why the record cannot be complete, once."""
        self._found[reason] = None

    @property
    def reasons(self) -> list[str]:
        """Return the reasons that were found, each once."""
        return [*self._found]


def split_by_sizes(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Return the parts of what is written as several texts of these sizes, one after the other."""
    parts, at = [], 0
    for size in sizes:
        parts.append(data[at : at + size])
        at += size
    return parts
