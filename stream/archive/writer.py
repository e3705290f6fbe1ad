"""Write an archive as a stream next to its place: it has its name only when it is whole.

The same entries give the same bytes of tar, whoever writes them and when.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from stream.archive.gzip import GzipWriter
from stream.archive.manifest import archive_order_key, archived_names_of
from stream.archive.tar import (
    READ,
    ZEROS,
    Checkpoint,
    encode_header,
    entry_name_fault,
    no_checkpoint,
)
from stream.errors import InputError, OutputError, reporting
from stream.files.append import RecordedFile
from stream.files.inside import open_beneath
from stream.files.targets import check_target_free, open_locked, partial_path
from stream.records.artifacts import ARCHIVE_MANIFEST, V0_FILES, ArchiveFile, ArchiveManifest

FILE_PARTS, ENTRIES = "file parts", "entries"  #: kinds of batches that an archive is made of
_IN_FLIGHT = 4  #: blocks between who reads and who compresses
_SMALL = 1 << 16


class Entry(Struct):
    """A file as it will be in the archive: its name, how to open it, and what was written to it."""

    name: str
    open: Callable[[], BinaryIO]  #: raises OSError or InputError
    recorded: RecordedFile | None = None  #: where it is known: the file is held to it

    @classmethod
    def of_bytes(cls, name: str, data: bytes) -> Entry:
        """Make an entry of bytes that are in memory."""
        size, digest = len(data), hashlib.sha256(data).hexdigest()
        return cls(name, lambda: io.BytesIO(data), RecordedFile(digest, size, size))

    @classmethod
    def beneath(cls, root: Path, name: str, recorded: RecordedFile | None = None) -> Entry:
        """Name a file of a folder that nobody has to trust. Where it is not known what was written
        to it, it is read once more for its size and digest."""
        return cls(name, lambda: open_beneath(root, name), recorded)


class FilePart(Struct):
    """Bytes that go to the end of a file of an archive."""

    name: str
    data: bytes


class ArchiveSize(Struct):
    """The size of a written archive: its entries, its bytes, and those of the tar in it."""

    entries: int
    bytes: int  #: of the file
    decoded: int  #: of the tar


def accept_archive(_: Path) -> None:
    """Accept an archive without reading it."""


def write_archive(
    target: Path,
    entries: Sequence[Entry],
    run_id: str,
    *,
    force: bool = False,
    checkpoint: Checkpoint = no_checkpoint,
    check: Callable[[Path], None] = accept_archive,
) -> ArchiveSize:
    """Write an archive. `check` is called with the whole file before it has its name.

    Raise what `check` raises, InputError where an entry cannot be read, and OutputError where the
    archive cannot be written or an entry changes meanwhile: no file has its name then.
    """
    check_target_free(str(target), force=force)
    growing = partial_path(str(target))
    with reporting(target, OutputError):
        fd = open_locked(growing, 0o600)
    try:
        with reporting(target, OutputError):
            digested = [_digested_entry(entry, checkpoint) for entry in _entries_in_order(entries)]
            written = _write_compressed(fd, digested, run_id, checkpoint)
            os.fsync(fd)
        check(growing)
        with reporting(target, OutputError):
            check_target_free(str(target), force=force)
            growing.replace(growing.with_suffix(""))
            _sync_folder(growing.parent)
    except BaseException:
        with suppress(OSError):
            growing.unlink()
        raise
    finally:
        os.close(fd)
    return written


def entries_of_run(folder: Path, recorded: Mapping[str, RecordedFile]) -> list[Entry]:
    """Return an entry for each file of a run that belongs into its archive. `recorded` says what
    was written to a file, where that is known. Raise InputError where one is no regular file."""
    return [Entry.beneath(folder, name, recorded.get(name)) for name in archived_names_of(folder)]


def _entries_in_order(entries: Sequence[Entry]) -> list[Entry]:
    """Order entries: the contract's own files, then the others by the bytes of their names."""
    names = {entry.name for entry in entries}
    assert len(names) == len(entries), "an entry stands twice"
    if missing := [name for name in V0_FILES if name not in names]:
        raise InputError(f"{missing[0]}: it is not there, and every archive has it")
    return sorted(entries, key=lambda entry: archive_order_key(entry.name))


def encode_manifest(entries: Sequence[Entry], run_id: str) -> bytes:
    """Encode the manifest of an archive with these entries, whose digests are known."""
    files = {}
    for entry in sorted(entries, key=lambda entry: os.fsencode(entry.name)):
        assert entry.recorded is not None
        files[entry.name] = ArchiveFile(entry.name, entry.recorded.hash, entry.recorded.bytes)
    return msgspec.json.encode(ArchiveManifest(run_id=run_id, files=files))


def _sync_folder(folder: Path) -> None:
    """Make the archive's name survive a power cut, where the file system can promise that."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _digested_entry(entry: Entry, checkpoint: Checkpoint) -> Entry:
    """Give an entry its size and digest. Raise InputError where the file cannot be read."""
    if fault := entry_name_fault(os.fsencode(entry.name)):
        raise InputError(f"{entry.name}: {fault.reason}")
    if entry.recorded is not None:
        return entry
    digest, size = hashlib.sha256(), 0
    for block in _entry_blocks(entry, checkpoint):
        digest.update(block)
        size += len(block)
    return Entry(entry.name, entry.open, RecordedFile(digest.hexdigest(), size, size))


def _recorded_contents(
    entry: Entry, recorded: RecordedFile, checkpoint: Checkpoint
) -> Iterator[bytes]:
    """Yield the bytes that were recorded. Raise OutputError where they are others by now."""
    digest, left = hashlib.sha256(), recorded.bytes
    for block in _entry_blocks(entry, checkpoint):
        left -= len(block)
        if left < 0:
            break
        digest.update(block)
        yield block
    if left or digest.hexdigest() != recorded.sha256:
        raise OutputError(f"{entry.name}: it was changed while the archive was written")


def _entry_blocks(entry: Entry, checkpoint: Checkpoint) -> Iterator[bytes]:
    """Read the file of an archive entry in blocks. Raise InputError where it cannot be read."""
    with reporting(entry.name), entry.open() as file:
        while block := file.read(READ):
            checkpoint()
            yield block


def _write_compressed(
    fd: int, entries: Sequence[Entry], run_id: str, checkpoint: Checkpoint
) -> ArchiveSize:
    """Write manifest and entries of an archive as gzip, compressed in another thread."""
    gzip = GzipWriter(fd)
    pending: deque[Future[None]] = deque()
    with ThreadPoolExecutor(1) as other:  # zlib lets go of the interpreter
        try:
            for block in _join_blocks(_tar_blocks(entries, run_id, checkpoint)):
                if len(pending) == _IN_FLIGHT:
                    pending.popleft().result()
                pending.append(other.submit(gzip.compress, block))
            for future in pending:
                future.result()
        except BaseException:
            other.shutdown(cancel_futures=True)
            raise
    gzip.finish()
    return ArchiveSize(len(entries), os.lseek(fd, 0, os.SEEK_CUR), gzip.taken)


def _tar_blocks(entries: Sequence[Entry], run_id: str, checkpoint: Checkpoint) -> Iterator[bytes]:
    """Yield the bytes of the archive's tar: the manifest, then each entry with its header."""
    manifest = Entry.of_bytes(ARCHIVE_MANIFEST, encode_manifest(entries, run_id))
    for entry in (manifest, *entries):
        assert entry.recorded is not None
        size = entry.recorded.bytes
        yield encode_header(os.fsencode(entry.name), size)
        yield from _recorded_contents(entry, entry.recorded, checkpoint)
        yield bytes(-size % len(ZEROS))
    yield ZEROS * 2


def _join_blocks(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Join small blocks: each costs a hand-over to a thread."""
    held: list[bytes] = []
    length = 0
    for block in blocks:
        held.append(block)
        length += len(block)
        if length >= _SMALL:
            yield b"".join(held)
            held, length = [], 0
    yield b"".join(held)
