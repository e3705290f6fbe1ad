"""Run a command under Landlock: everything may be read, only what is named may be written.

landlock_run.py [--rw DIR]… [--hide /DIR] [--no-tcp | --no-bind] -- CMD…
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from pathlib import Path

CREATE, ADD, RESTRICT = 444, 445, 446
READ_AND_EXECUTE = 0b1101
ON_FILES = 0b111
NO_NEW_PRIVILEGES = 38
libc = ctypes.CDLL(None, use_errno=True)


def call(number: int, *words: object) -> int:
    result = int(libc.syscall(number, *words))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def main() -> None:
    words = sys.argv[1:]
    writable, tcp = ["/dev/null", "/dev/zero", "/dev/tty"], 0
    readable = ["/"]
    while words[0] != "--":
        if words[0] == "--rw":
            writable.append(words[1])
            words = words[2:]
        elif words[0] == "--hide":
            readable = [str(path) for path in Path("/").iterdir() if str(path) != words[1]]
            words = words[2:]
        else:
            tcp, words = {"--no-tcp": 0b11, "--no-bind": 0b01}[words[0]], words[1:]
    version = call(CREATE, None, ctypes.c_size_t(0), 1)
    newer = [bit for since, bit in ((2, 13), (3, 14), (5, 15)) if version >= since]
    everything = (1 << 13) - 1 | sum(1 << bit for bit in newer)
    on_files = ON_FILES | sum(1 << bit for bit in newer if bit != 13)
    attributes = struct.pack("QQQ", everything, tcp if version >= 4 else 0, 0)
    attributes = attributes[: 24 if version >= 6 else 16 if version >= 4 else 8]
    rules = call(CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    rights = [(path, READ_AND_EXECUTE) for path in readable]
    for path, access in [*rights, *((path, everything) for path in writable)]:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        allowed = access if Path(path).is_dir() else access & on_files
        call(ADD, rules, 1, struct.pack("=Qi", allowed, fd), 0)
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    call(RESTRICT, rules, 0)
    os.execvp(words[1], words[1:])


main()
