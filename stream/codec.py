"""Bytes to batches of lines, and back; line numbers; which contract a line belongs to.

A batch of lines is what one read delivered, cut at newlines. Where a line is bad, its
place is computed from the batch: good lines pay nothing for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import overload

import msgspec
from msgspec import UNSET, Struct, UnsetType

from stream.records.control import Reject

MAX_LINE = 8 << 20  #: a longer line is hashed, counted and rejected, never held


class TornLine(bytes):
    """A last line without its newline: whole, or what a killed writer left."""


class OverlongLine(bytes):
    """Stands, empty, for a line above the limit."""

    length: int
    digest: str

    @classmethod
    def of(cls, length: int, digest: str) -> OverlongLine:
        line = cls()
        line.length, line.digest = length, digest
        return line


class Lines(Sequence[bytes]):
    """Consecutive lines of one source, without their newlines."""

    __slots__ = ("items", "number", "offset", "source")

    def __init__(self, items: list[bytes], source: str, number: int, offset: int) -> None:
        self.items = items
        self.source = source
        self.number = number  #: of the first line, from 1
        self.offset = offset  #: of its first byte

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        return self.items[index]


class LineSplitter:
    """Cuts one source's chunks into lines. Holds at most one unfinished line."""

    def __init__(self, source: str, limit: int = MAX_LINE) -> None:
        self._source = source
        self._limit = limit
        self._number = 1
        self._offset = 0
        self._held: list[bytes] = []
        self._held_length = 0
        self._digest: hashlib._Hash | None = None  # set while inside an overlong line

    def feed(self, chunk: bytes) -> Lines | None:
        """The lines that this chunk completes, or None."""
        last = chunk.rfind(b"\n")
        if last < 0:
            self._hold(chunk)
            return None
        consumed = self._held_length + last + 1
        items = chunk[:last].split(b"\n")
        if self._held_length:
            self._hold(items[0])
            items[0] = self._release()
        if last > self._limit:
            items = [self._checked(item) for item in items]
        batch = Lines(items, self._source, self._number, self._offset)
        self._number += len(items)
        self._offset += consumed
        if last + 1 < len(chunk):
            self._hold(chunk[last + 1 :])
        return batch

    def finish(self) -> Lines | None:
        """What stands after the last newline, as a TornLine."""
        if not self._held_length:
            return None
        line = self._release()
        item = line if isinstance(line, OverlongLine) else TornLine(line)
        return Lines([item], self._source, self._number, self._offset)

    def _hold(self, part: bytes) -> None:
        self._held_length += len(part)
        if self._digest is None and self._held_length > self._limit:
            self._digest = hashlib.sha256(b"".join(self._held))
            self._held.clear()
        if self._digest is None:
            self._held.append(part)
        else:
            self._digest.update(part)

    def _release(self) -> bytes:
        line: bytes
        if self._digest is None:
            line = b"".join(self._held)
        else:
            line = OverlongLine.of(self._held_length, self._digest.hexdigest())
        self._held, self._held_length, self._digest = [], 0, None
        return line

    def _checked(self, item: bytes) -> bytes:
        if len(item) <= self._limit:
            return item
        return OverlongLine.of(len(item), hashlib.sha256(item).hexdigest())


def _length(line: bytes) -> int:
    return line.length if isinstance(line, OverlongLine) else len(line)


def reject(stage: str, batch: Sequence[object], index: int, reason: str, path: str = "") -> Reject:
    """The record of a line that a stage could not use."""
    item = batch[index]
    line = item if isinstance(item, bytes) else msgspec.json.encode(item)
    source, number, offset = "(pipeline)", index + 1, 0
    if isinstance(batch, Lines):
        source, number = batch.source, batch.number + index
        offset = batch.offset + sum(map(_length, batch.items[:index])) + index
    if isinstance(line, OverlongLine):
        digest = line.digest
        reason = f"a line of {line.length} bytes is above the limit of {MAX_LINE}"
    else:
        digest = hashlib.sha256(line).hexdigest()
        if isinstance(line, TornLine):
            reason = f"the last line is torn, it has no newline: {reason}"
    return Reject(
        stage=stage,
        source=source,
        line=number,
        offset=offset,
        sha256=digest,
        reason=reason,
        path=path or UNSET,
    )


def is_blank(line: bytes) -> bool:
    """Nothing but white space: not a record, and not a bad one."""
    return not isinstance(line, OverlongLine) and not line.strip()


class Head(Struct):
    """What names a line's contract."""

    schema: str | UnsetType = UNSET
    schema_version: str | UnsetType = UNSET


_decode_head = msgspec.json.Decoder(Head).decode


def contract_of(line: bytes) -> str | None:
    """The schema string of a JSON object, None where it names none.

    Raises a msgspec error where the line is no JSON object.
    """
    head = _decode_head(line)
    if head.schema is not UNSET:
        return head.schema
    return None if head.schema_version is UNSET else head.schema_version


def explain(error: Exception) -> tuple[str, str]:
    """A decode error as (reason, JSON path); the path may be empty."""
    if isinstance(error, RecursionError):
        return "nested too deeply", ""
    if isinstance(error, UnicodeDecodeError):
        return f"invalid UTF-8: {error.reason}", ""
    text = str(error)
    reason, at, path = text.rpartition(" - at `")
    if not at:
        reason, path = text, ""
    reason = reason.replace("JSON is malformed", "malformed JSON")
    reason = reason.replace("Input data was truncated", "malformed JSON: it ends too early")
    return (reason[:1].lower() + reason[1:]).replace("jSON", "JSON"), path.rstrip("`")


#: what decoding an untrusted line may raise
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def join_lines(lines: Iterable[bytes]) -> bytes:
    """Records as NDJSON bytes."""
    return b"\n".join((*lines, b""))
