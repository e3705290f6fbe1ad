"""Entries to a tar.gz: the same bytes of tar for the same entries, whoever writes them when.

It is written as a stream, beside its place, and has its name only when it is whole. The gzip
around it depends on the library that compresses: the promise is about the tar. A seal in its header
says which bytes they were.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from stream.archive.entries import Entry, Look, contents, measured
from stream.archive.gzip import NO_SEAL, SEALED, seal
from stream.archive.header import ZEROS, encode_header
from stream.errors import InputError
from stream.records.runner import ARCHIVE_MANIFEST, V0_FILES, ArchiveFile, ArchiveManifest
from stream.sinks.places import check_free, named, open_alone, partial
from stream.system import write_all

LEVEL = 6
_IN_FLIGHT = 4  #: blocks between who reads and who compresses
_SMALL = 1 << 16


class Written(Struct):
    entries: int
    bytes: int  #: of the file
    decoded: int  #: of the tar


def unwatched() -> None:
    pass


def unjudged(_: Path) -> None:
    pass


def write_archive(
    target: Path,
    entries: Sequence[Entry],
    run_id: str,
    *,
    force: bool = False,
    look: Look = unwatched,
    judge: Callable[[Path], None] = unjudged,
) -> Written:
    """`judge` is called with the whole archive before it has its name. Raises what that raises,
    InputError where an entry cannot be read, and OutputError where the archive cannot be written,
    or an entry is changed meanwhile. Then nothing has its name."""
    check_free(str(target), force=force)
    growing = partial(str(target))
    with named(str(target)):
        fd = open_alone(growing, 0o600)
    try:
        with named(str(target)):
            measures = [measured(entry, look) for entry in in_order(entries)]
            written = _write(fd, measures, run_id, look)
            os.fsync(fd)
        judge(growing)
        with named(str(target)):
            check_free(str(target), force=force)
            growing.replace(growing.with_suffix(""))
            _sync_folder(growing.parent)
    except BaseException:
        with suppress(OSError):
            growing.unlink()
        raise
    finally:
        os.close(fd)
    return written


def in_order(entries: Sequence[Entry]) -> list[Entry]:
    """The contract's own files first, then the others by the bytes of their names."""
    by_name = {entry.name: entry for entry in entries}
    assert len(by_name) == len(entries), "an entry stands twice"
    missing = [name for name in V0_FILES if name not in by_name]
    if missing:
        raise InputError(f"{missing[0]}: it is not there, and every archive has it")
    others = sorted(by_name.keys() - {*V0_FILES}, key=os.fsencode)
    return [by_name[name] for name in (*V0_FILES, *others)]


def encode_manifest(entries: Sequence[Entry], run_id: str) -> bytes:
    files = {}
    for entry in sorted(entries, key=lambda entry: os.fsencode(entry.name)):
        assert entry.measure is not None
        digest = f"sha256:{entry.measure.sha256}"
        files[entry.name] = ArchiveFile(path=entry.name, sha256=digest, bytes=entry.measure.size)
    return msgspec.json.encode(ArchiveManifest(run_id=run_id, files=files))


def _sync_folder(folder: Path) -> None:
    """That the name outlives a power cut. Not every file system can promise it."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _write(fd: int, entries: Sequence[Entry], run_id: str, look: Look) -> Written:
    squeezed = _Gzip(fd)
    pending: deque[Future[None]] = deque()
    with ThreadPoolExecutor(1) as other:  # zlib lets go of the interpreter
        try:
            for block in _gathered(_tar(entries, run_id, look)):
                if len(pending) == _IN_FLIGHT:
                    pending.popleft().result()
                pending.append(other.submit(squeezed.add, block))
            for future in pending:
                future.result()
        except BaseException:
            other.shutdown(cancel_futures=True)
            raise
    squeezed.finish()
    return Written(len(entries), os.lseek(fd, 0, os.SEEK_CUR), squeezed.taken)


def _tar(entries: Sequence[Entry], run_id: str, look: Look) -> Iterator[bytes]:
    manifest = Entry.of_bytes(ARCHIVE_MANIFEST, encode_manifest(entries, run_id))
    for entry in (manifest, *entries):
        assert entry.measure is not None
        size = entry.measure.size
        yield encode_header(os.fsencode(entry.name), size)
        yield from contents(entry, look)
        yield bytes(-size % len(ZEROS))
    yield ZEROS * 2


def _gathered(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Small ones together: each costs a hand-over."""
    held: list[bytes] = []
    length = 0
    for block in blocks:
        held.append(block)
        length += len(block)
        if length >= _SMALL:
            yield b"".join(held)
            held, length = [], 0
    yield b"".join(held)


class _Gzip:
    def __init__(self, fd: int) -> None:
        self.taken = 0
        self._fd = fd
        self._sum = 0
        self._digest = hashlib.sha256()
        self._engine = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        write_all(fd, SEALED + NO_SEAL)

    def add(self, data: bytes) -> None:
        self._sum = zlib.crc32(data, self._sum)
        self.taken += len(data)
        self._write(self._engine.compress(data))

    def finish(self) -> None:
        end = struct.pack("<II", self._sum, self.taken & 0xFFFFFFFF)
        self._write(self._engine.flush() + end)
        os.lseek(self._fd, len(SEALED), os.SEEK_SET)
        write_all(self._fd, seal(self._digest.hexdigest()))
        os.lseek(self._fd, 0, os.SEEK_END)

    def _write(self, data: bytes) -> None:
        self._digest.update(data)
        write_all(self._fd, data)
