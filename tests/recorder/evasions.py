"""`python evasions.py WAY [WORD…]`: something that a run does other than opens, sends and execs.

Each way prints what it came to, so that a machine which forbids it differs from one that does not.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import platform
import queue
import socket
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
IS_X86 = platform.machine() == "x86_64"
MQ_OPEN, MQ_UNLINK, BPF = (240, 241, 321) if IS_X86 else (180, 181, 280)
OPEN_TREE, GETFD = 428, 438
SECCOMP, TRUNCATE = (317, 76) if IS_X86 else (277, 45)
RECEIVE, ANSWER = 0xC0502100, 0xC0182101  # ioctls of a seccomp listener
SEIZE, DETACH = 0x4206, 17


def change_attributes() -> list[int]:
    fd = os.open("given", os.O_RDWR)
    results = []
    for target in ("given", fd):
        try:
            os.setxattr(target, "user.note", b"secret")
            os.removexattr(target, "user.note")
            results.append(0)
        except OSError as error:
            results.append(-(error.errno or 0))
        os.utime(target, (1, 2))
    return results


def make_names() -> list[int]:
    local = socket.socket(socket.AF_UNIX)
    local.bind("door")
    socket.socket(socket.AF_UNIX).bind("\0back-door")
    made = LIBC.syscall(MQ_OPEN, b"stream-test", os.O_CREAT | os.O_WRONLY, 0o600, None)
    return [
        made,
        LIBC.syscall(MQ_UNLINK, b"stream-test"),
        LIBC.syscall(OPEN_TREE, -100, b"given", 0),
        LIBC.acct(b"given"),
        LIBC.acct(None),
    ]


def run_from_memory() -> list[int]:
    held = os.memfd_create("tool", 0)
    os.write(held, Path("/bin/true").read_bytes())
    child = os.fork()
    if not child:
        os.execve(held, ["tool"], {})
    return [os.waitpid(child, 0)[1]]


def open_handle() -> list[int]:
    made, mount = ctypes.create_string_buffer(struct.pack("Ii", 128, 0), 136), ctypes.c_int()
    known = LIBC.name_to_handle_at(-100, b"given", made, ctypes.byref(mount), 0)
    folder = os.open(".", os.O_RDONLY)
    return [known, LIBC.open_by_handle_at(folder, made, os.O_RDWR)]


def attach_tracer(pid: str) -> list[int]:
    return [LIBC.ptrace(SEIZE, int(pid), None, None), LIBC.ptrace(DETACH, int(pid), None, None)]


def take_descriptor(pid: str, number: str) -> list[int]:
    return [LIBC.syscall(GETFD, os.pidfd_open(int(pid)), int(number), 0)]


def open_memory(pid: str) -> list[int]:
    """Into the memory of a process; 0: into our own."""
    os.open(f"/proc/{pid if int(pid) else 'self'}/mem", os.O_RDONLY)
    return [0]


def create_map() -> list[int]:
    made = LIBC.syscall(BPF, 0, struct.pack("IIIII", 2, 4, 4, 1, 0).ljust(72, b"\0"), 72)
    return [made]


def serve_secret(port_file: str) -> list[int]:
    """Wait until somebody connects, and send a secret."""
    listener = socket.create_server(("127.0.0.1", 0))
    part = Path(f"{port_file}.part")
    part.write_text(str(listener.getsockname()[1]))
    part.rename(port_file)
    peer, _ = listener.accept()
    return [peer.send(b"SECRET")]


def leave_group_and_maps(procs: str) -> list[int]:
    """Out of the control group, and out of every map that holds our number as a key."""
    Path(procs).write_text("0")
    deleted, number, found = [], 0, ctypes.create_string_buffer(4)
    while True:
        truncate_under_listener = ctypes.create_string_buffer(struct.pack("III", number, 0, 0), 12)
        if LIBC.syscall(BPF, 12, truncate_under_listener, 12) < 0:  # BPF_MAP_GET_NEXT_ID
            break
        (number,) = struct.unpack_from("I", truncate_under_listener.raw, 4)
        fd = LIBC.syscall(BPF, 14, struct.pack("III", number, 0, 0), 12)  # BPF_MAP_GET_FD_BY_ID
        info = ctypes.create_string_buffer(256)
        at = struct.pack("IIQ", fd, 256, ctypes.addressof(info))
        if fd < 0 or LIBC.syscall(BPF, 15, at, 16) < 0:  # BPF_OBJ_GET_INFO_BY_FD
            continue
        kind, _, key, _ = struct.unpack_from("IIII", info.raw)
        if (kind, key) != (1, 4):
            continue
        found.raw = struct.pack("I", os.getpid())
        words = struct.pack("IIQ", fd, 0, ctypes.addressof(found))
        deleted.append(LIBC.syscall(BPF, 3, words, 16))  # BPF_MAP_DELETE_ELEM
    Path("unseen").write_text("x")
    return deleted


def answer_for_kernel() -> list[int]:
    """Truncate a file in one thread, and let the call go on in the other, as a seccomp listener."""
    ways = [(0x20, 0, 0, 0), (0x15, 0, 1, TRUNCATE), (6, 0, 0, 0x7FC00000), (6, 0, 0, 0x7FFF0000)]
    code = b"".join(struct.pack("HBBI", *way) for way in ways)
    held = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxP", len(ways), ctypes.addressof(held))
    listeners: queue.Queue[int] = queue.Queue()
    results = []

    def truncate_under_listener() -> None:
        os.close(os.open("given", os.O_RDONLY))  # until its first one, a tracer stops at each call
        LIBC.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
        listeners.put(LIBC.syscall(SECCOMP, 1, 8, program))
        results.append(LIBC.syscall(TRUNCATE, b"given", ctypes.c_long(0)))

    asking = threading.Thread(target=truncate_under_listener)
    asking.start()
    listener = listeners.get()
    if listener >= 0:
        request = bytearray(80)
        fcntl.ioctl(listener, RECEIVE, request)
        fcntl.ioctl(listener, ANSWER, bytes(request[:8]) + struct.pack("qiI", 0, 0, 1))
    asking.join()
    return [listener, *results]


def do_recorded_calls() -> dict[str, list[int]]:
    """Do what is recorded in full, or counted as having no name."""
    return {
        "attributes": change_attributes(),
        "names": make_names(),
        "memory": run_from_memory(),
        "handle": open_handle(),
    }


def do_unrecorded_calls(pid: str) -> dict[str, list[int]]:
    """Do what has effects that no call shows."""
    return {"attach": attach_tracer(pid), "take": take_descriptor(pid, "0"), "power": create_map()}


if __name__ == "__main__":
    way, *words = sys.argv[1:]
    ways: dict[str, Callable[..., object]] = {
        "quiet": do_recorded_calls,
        "loud": do_unrecorded_calls,
        "look": open_memory,
        "serve": serve_secret,
        "answer": answer_for_kernel,
        "vanish": leave_group_and_maps,
    }
    print(json.dumps(ways[way](*words)))
