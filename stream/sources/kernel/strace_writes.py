"""Which of the writes that strace tells of went into a file or pipe that is watched.

The data of a write is never looked at: before it stands the descriptor, after it how many bytes
it was. strace is asked not to read it at all, where it lets itself be asked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from stream.sources.kernel.watch import Watch

FIRST = re.compile(rb"\d+<([^<>]*)>(?!\()").match
SECOND = re.compile(rb"[^,]*, \d+<([^<>]*)>(?!\()").match
THIRD = re.compile(rb"[^,]*, [^,]*, \d+<([^<>]*)>(?!\()").match
#: By call: what finds the path of the descriptor that it writes to. A file that is deleted has
#: none: another one may have got its name.
WRITES = {
    **dict.fromkeys((b"write", b"writev", b"pwrite64", b"pwritev", b"pwritev2"), FIRST),
    **dict.fromkeys((b"vmsplice", b"sendfile", b"sendfile64"), FIRST),
    b"tee": SECOND,
    b"splice": THIRD,
    b"copy_file_range": THIRD,
}
TRACED_WRITES = tuple(call.decode() for call in WRITES)
#: Of these, strace prints an address in the place of the data.
UNREAD = "--verbose=!?writev,?pwritev,?pwritev2,?vmsplice"
END = 256  #: so many bytes of a line are enough to hold a call's result


def path_of(call: bytes, args: bytes) -> bytes:
    """Of the file or pipe that it writes to, as strace prints it. Empty: it has none."""
    found = WRITES[call](args)
    return found[1] if found else b""


def streams_of(watch: Sequence[Watch]) -> dict[bytes, str]:
    """What is watched, by its path as `path_of` gives it."""
    return {_quoted(one.path): one.name for one in watch if one.path}


def _quoted(path: bytes) -> bytes:
    return b"".join(b"\\x%02x" % byte for byte in path)
