"""What goes into an archive: a name, and a file that stays as it was when it was measured."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from stream.archive.header import name_fault
from stream.enclosure import kind_of
from stream.errors import InputError, OutputError, os_reason

READ = 1 << 20
Look = Callable[[], None]  #: called between blocks: raises where nobody waits any more


class Measure(Struct, frozen=True):
    size: int
    sha256: str  #: 64 digits


class Entry(Struct):
    """Named as it will be in the archive."""

    name: str
    open: Callable[[], BinaryIO]  #: raises OSError or InputError
    measure: Measure | None = None  #: where it is known already: it is held to it

    @classmethod
    def of_bytes(cls, name: str, data: bytes) -> Entry:
        measure = Measure(len(data), hashlib.sha256(data).hexdigest())
        return cls(name, lambda: io.BytesIO(data), measure)

    @classmethod
    def of_file(cls, name: str, path: Path, measure: Measure | None = None) -> Entry:
        return cls(name, lambda: open_regular(path), measure)

    @classmethod
    def beneath(cls, root: Path, name: str) -> Entry:
        """A file of a folder that nobody has to trust."""
        return cls(name, lambda: open_beneath(root, name))


def measured(entry: Entry, look: Look) -> Entry:
    """Raises InputError where it cannot be read."""
    if fault := name_fault(os.fsencode(entry.name)):
        raise InputError(f"{entry.name}: {fault.message}")
    if entry.measure:
        return entry
    digest, size = hashlib.sha256(), 0
    try:
        with entry.open() as file:
            while block := file.read(READ):
                look()
                digest.update(block)
                size += len(block)
    except OSError as error:
        raise InputError(f"{entry.name}: {os_reason(error)}") from None
    return Entry(entry.name, entry.open, Measure(size, digest.hexdigest()))


def contents(entry: Entry, look: Look) -> Iterator[bytes]:
    """What was measured. Raises OutputError where it is something else by now."""
    assert entry.measure is not None
    digest, left = hashlib.sha256(), entry.measure.size
    try:
        with entry.open() as file:
            while block := file.read(READ):
                look()
                left -= len(block)
                if left < 0:
                    break
                digest.update(block)
                yield block
    except OSError as error:
        raise InputError(f"{entry.name}: {os_reason(error)}") from None
    if left or digest.hexdigest() != entry.measure.sha256:
        raise OutputError(f"{entry.name}: it was changed while the archive was written")


def open_regular(path: str | Path, folder: int | None = None) -> BinaryIO:
    """Raises OSError, or InputError where it is no regular file; a fifo is not waited for."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, dir_fd=folder)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        raise InputError(f"{path}: {kind_of(mode)}, not a regular file")
    return open(fd, "rb", buffering=0)  # noqa: PTH123


def open_beneath(root: Path, name: str) -> BinaryIO:
    """No part of the name is a link. Raises OSError, or InputError with the place."""
    *folders, last = name.split("/")
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    fd = os.open(root, flags)
    try:
        for folder in folders:
            inner = os.open(folder, flags | os.O_NOFOLLOW, dir_fd=fd)
            os.close(fd)
            fd = inner
        return open_regular(last, fd)
    except NotADirectoryError:
        raise InputError(f"{root / name}: it lies behind a link, or not in a folder") from None
    except InputError as error:
        raise InputError(f"{root / name}: {str(error).partition(': ')[2]}") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InputError(f"{root / name}: a link, not a regular file") from None
        raise
    finally:
        os.close(fd)
