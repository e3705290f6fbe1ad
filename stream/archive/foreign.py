"""What another tar says in its own ways: names of files, folders, and headers before headers.

The contract says nothing about tar: the same files are the same evidence, in whatever order.
"""

from __future__ import annotations

from collections.abc import Iterator

from stream.archive.header import PACKING, BrokenArchive, Fault
from stream.archive.places import has_place
from stream.evidence.consistency import place_fault
from stream.records.run import ARTIFACTS, LAYERS

EXTENSIONS = (b"x", b"g")  #: a header that says more about the entry, or all entries, after it
FOLDER = b"5"
MOST = 64 << 10  #: bytes of such a header
#: What such a header may say: nothing that changes which files there are, but for a long name.
_SILENT = {b"mtime", b"atime", b"ctime", b"uid", b"gid", b"uname", b"gname", b"comment"}
_SHORT = 100


def extended(data: bytes, kind: bytes) -> tuple[bytes | None, list[Fault]]:
    """The name in an extended header, if it has one, and what else should not be in it. Raises
    BrokenArchive."""
    name, faults = None, [Fault(PACKING, "made by another tar: it has extended headers")]
    for key, value in _records(data):
        if key == b"path" and kind == b"x":
            name = value
        elif key not in _SILENT:
            what = key[:40].decode("utf-8", "backslashreplace")
            message = f"a header that changes the entry after it: its {what!r}"
            faults.append(Fault("security.renaming", message))
    return name, faults


def _records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """LENGTH KEY=VALUE, one after the other."""
    while data.strip(b"\0"):
        digits, _, _ = data.partition(b" ")
        size = int(digits) if digits.isdigit() and len(digits) < 7 else 0
        record, data = data[len(digits) + 1 : size], data[size:]
        key, equals, value = record.partition(b"=")
        if not equals or not value.endswith(b"\n"):
            raise BrokenArchive("security.hidden_bytes", "an extended header cannot be read")
        yield key, value[:-1]


def renamed(short: bytes, name: bytes) -> list[Fault]:
    """What is wrong with a name that stands before the header of its entry."""
    is_needed = len(name) > _SHORT or not name.isascii()
    if is_needed and ((short.isascii() and short[:1] == name[:1]) or not name[:1].isascii()):
        return []
    return [Fault("security.renaming", "a header that changes the entry after it: its name")]


def leading_folder(name: bytes, kind: bytes) -> bytes:
    """The folder in which everything lies, by the name of the first entry. Empty: none."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return b""
    if kind == FOLDER:
        folder = "" if is_folder(name) else text.rstrip("/")
    else:
        steps = text.split("/")
        rests = ("/".join(steps[at:]) for at in range(len(steps)))
        folder = next((text[: -len(rest) - 1] for rest in rests if rest and has_place(rest)), "")
    return f"{folder}/".encode() if folder and place_fault(folder) is None else b""


def is_folder(name: bytes) -> bool:
    """Whether it is one in which files of a run lie."""
    path = name.rstrip(b"/")
    return path in (b"", b".", LAYERS.encode(), ARTIFACTS.encode()) or path.startswith(
        f"{ARTIFACTS}/".encode()
    )
