"""Bytes to batches of lines, and back; and JSON documents, read whole.

A batch of lines is what one read delivered, cut at newlines. Where a line is bad, its place is
computed from the batch: good lines pay nothing for it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

import msgspec
from msgspec import UNSET, Struct

from stream.errors import InputError, os_reason, reporting, shorten_text
from stream.records.control import WORDS, Fault, Reject

if TYPE_CHECKING:
    import hashlib

T = TypeVar("T")

MAX_LINE = 8 << 20  #: a longer line is hashed, counted and rejected, never held
MOST_LINES = 1000  #: in a batch
TOO_EARLY = "it ends too early"
_MOST_LINE = 16 << 20  #: bytes of a line that is read as a whole record
MAX_REASON = 240  #: characters of a reason: a line cannot make its reject as long as itself


def _sha256(data: bytes | bytearray) -> hashlib._Hash:
    import hashlib  # and with it OpenSSL: only bad lines need it

    return hashlib.sha256(data)


class TornLine(bytes):
    """Is a last line without its newline: whole, or what a killed writer left."""


class BrokenDocument(bytes):
    """Is a whole document that cannot be read, with what is wrong where."""

    fault: Fault

    @classmethod
    def of(cls, data: bytes, fault: Fault) -> BrokenDocument:
        """Keep a document together with what is wrong with it."""
        document = cls(data)
        document.fault = fault
        return document


class OverlongLine(bytes):
    """Stands, empty, for a line above the limit."""

    length: int
    digest: str
    limit: int

    @classmethod
    def of(cls, length: int, digest: str, limit: int) -> OverlongLine:
        """Stand for a line of that length and digest."""
        line = cls()
        line.length, line.digest, line.limit = length, digest, limit
        return line


class Lines(Sequence[bytes]):
    """Holds consecutive lines of one source, without their newlines."""

    __slots__ = ("_known", "items", "number", "offset", "source")

    def __init__(self, items: list[bytes], source: str, number: int, offset: int) -> None:
        self.items = items
        self.source = source
        self.number = number  #: of the first line, from 1
        self.offset = offset  #: of its first byte
        self._known = (0, offset)  # the last place that was asked for

    def offset_of(self, index: int) -> int:
        """Return the offset of a line; it counts on from the last one that was asked for."""
        start, offset = self._known if index >= self._known[0] else (0, self.offset)
        offset += sum(map(_line_length, self.items[start:index])) + index - start
        self._known = (index, offset)
        return offset

    def bounded_parts(self) -> Iterator[Lines]:
        """Cut the lines into parts of MOST_LINES: a megabyte may be half a million rejects."""
        if len(self.items) <= MOST_LINES:
            yield self
            return
        for first in range(0, len(self.items), MOST_LINES):
            items = self.items[first : first + MOST_LINES]
            yield Lines(items, self.source, self.number + first, self.offset_of(first))

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.items)

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
        self._held = bytearray()
        self._held_length = 0  # also of what is not held any more
        self._digest: hashlib._Hash | None = None  # set while inside an overlong line

    def feed(self, chunk: bytes) -> Lines | None:
        """Give the lines that this chunk completes, or None."""
        last = chunk.rfind(b"\n")
        if last < 0:
            self._hold_part(chunk)
            return None
        consumed = self._held_length + last + 1
        items = chunk[:last].split(b"\n")
        if self._held_length:
            self._hold_part(items[0])
            items[0] = self._pop_held_line()
        if last > self._limit:
            items = [self._line_within_limit(item) for item in items]
        batch = Lines(items, self._source, self._number, self._offset)
        self._number += len(items)
        self._offset += consumed
        if last + 1 < len(chunk):
            self._hold_part(chunk[last + 1 :])
        return batch

    def finish(self) -> Lines | None:
        """Give what stands after the last newline, as a TornLine."""
        if not self._held_length:
            return None
        line = self._pop_held_line()
        item = line if isinstance(line, OverlongLine) else TornLine(line)
        return Lines([item], self._source, self._number, self._offset)

    def _hold_part(self, part: bytes) -> None:
        """Hold a part of a line that has not ended; of an overlong one, only the digest."""
        self._held_length += len(part)
        if self._digest is None and self._held_length > self._limit:
            self._digest = _sha256(self._held)
            self._held = bytearray()
        if self._digest is None:
            self._held += part
        else:
            self._digest.update(part)

    def _pop_held_line(self) -> bytes:
        """Return the line that was held, or an OverlongLine with its length and digest."""
        line = bytes(self._held)
        if self._digest is not None:
            line = OverlongLine.of(self._held_length, self._digest.hexdigest(), self._limit)
        self._held, self._held_length, self._digest = bytearray(), 0, None
        return line

    def _line_within_limit(self, item: bytes) -> bytes:
        if len(item) <= self._limit:
            return item
        return OverlongLine.of(len(item), _sha256(item).hexdigest(), self._limit)


def lines_of(blocks: Iterable[bytes], source: str) -> Iterator[Lines]:
    """Cut blocks into batches of lines; the last may be a TornLine."""
    splitter = LineSplitter(source)
    for block in blocks:
        if lines := splitter.feed(block):
            yield from lines.bounded_parts()
    if lines := splitter.finish():
        yield lines


def _line_length(line: bytes) -> int:
    return line.length if isinstance(line, OverlongLine) else len(line)


def make_reject(stage: str, batch: Sequence[object], index: int, fault: Fault) -> Reject:
    """Make the record of a line that a stage could not use."""
    item = batch[index]
    line = item if isinstance(item, bytes) else msgspec.json.encode(item)
    source, number, offset, reason = "(pipeline)", index + 1, 0, fault.reason
    if isinstance(batch, Lines):
        source, number, offset = batch.source, batch.number + index, batch.offset_of(index)
    if isinstance(line, OverlongLine):
        digest = line.digest
        reason = f"a line of {line.length} bytes is above the limit of {line.limit}"
    else:
        digest = _sha256(line).hexdigest()
        if isinstance(line, TornLine) and TOO_EARLY in reason:
            reason = f"the last line is torn, it has no newline: {reason}"
    return Reject(
        stage=stage,
        source=source,
        line=number,
        offset=offset,
        sha256=digest,
        reason=reason,
        path=fault.path or UNSET,
    )


def is_blank(line: bytes) -> bool:
    """Say whether a line is white space alone: no record, and no bad one."""
    return not line.strip() and not isinstance(line, OverlongLine | BrokenDocument)


class Head(Struct):
    """Holds the fields that may name a line's contract."""

    # Any: what stands there may be something else, the JSON Schema of a descriptor for one.
    schema: Any = UNSET
    schema_version: Any = UNSET


_decode_head = msgspec.json.Decoder(Head).decode


def contract_of(line: bytes) -> str | None:
    """Give the schema string of a JSON object, None where it names none.

    Raises one of DECODE_ERRORS where the line is no JSON object.
    """
    head = _decode_head(line)
    if not line.isascii():
        line.decode()  # msgspec does not look into the strings that it skips
    for name in (head.schema, head.schema_version):
        if isinstance(name, str):
            return name
    return None


#: as msgspec writes them
_FORMS = {form.replace("\\", "\\\\"): words for form, words in WORDS.items()}


def decode_fault(error: Exception) -> Fault:
    """Say what a decode error found wrong, and where."""
    if isinstance(error, RecursionError):
        return Fault("nested too deeply")
    if isinstance(error, UnicodeDecodeError):
        return Fault(f"invalid UTF-8: {error.reason}")
    text = str(error)
    reason, at, path = text.rpartition(" - at `")
    if not at:
        reason, path = text, ""
    _, regex, form = reason.partition(" matching regex '")
    if regex and (words := _FORMS.get(form.removesuffix("'"))):
        reason = f"expected {words}"
    reason = reason.replace("JSON is malformed", "malformed JSON")
    reason = reason.replace("Input data was truncated", f"malformed JSON: {TOO_EARLY}")
    reason = shorten_text(reason[:1].lower() + reason[1:], MAX_REASON).replace("jSON", "JSON")
    return Fault(reason, path.rstrip("`"))


#: what decoding an untrusted line may raise
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def join_lines(lines: Iterable[bytes]) -> bytes:
    """Join records to NDJSON bytes."""
    return b"\n".join((*lines, b""))


def read_records(path: str, decode: Callable[[bytes], T], what: str) -> Iterator[tuple[int, T]]:
    """Yield the records of a file, or of stdin for `-`, each with its line. Raise InputError for a
    line that is not one; `what` says what it should be."""
    with reporting(path), ExitStack() as stack:
        file = sys.stdin.buffer if path == "-" else stack.enter_context(Path(path).open("rb"))
        for index, line in enumerate(iter(lambda: file.readline(_MOST_LINE), b""), 1):
            if is_blank(line):
                continue
            try:
                yield index, decode(line)
            except DECODE_ERRORS as error:
                raise InputError(f"{path}:{index}: {decode_fault(error)}: not {what}") from None


_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
LARGEST = 16 << 20  #: bytes

_here = Path(__file__).resolve().parent
#: probes/, catalogs/ and schema/: inside an installed package, beside it in a checkout
BUNDLE = _here / "data" if (_here / "data").is_dir() else _here.parent


def read_document(path: Path) -> Any:
    """Read the JSON value in a file. Raises InputError with the place."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)  # a device has no size to ask for first
    except OSError as error:
        raise InputError(f"{path}: {os_reason(error)}") from None
    except ValueError as error:  # a NUL in the path
        raise InputError(f"{path}: {error}") from None
    return document_in(data, path)


def document_in(data: bytes, source: object) -> Any:
    """Parse the JSON value of a file, read to one byte beyond the limit. Raise InputError with the
    place."""
    if len(data) > LARGEST:
        raise InputError(f"{source}: larger than {LARGEST} bytes")
    try:
        return parse_document(data)
    except ValueError as error:
        raise InputError(f"{source}: {error}") from None


def is_file(path: Path) -> bool:
    """Say whether a path is a file. Raises InputError where that cannot be known."""
    try:
        return path.is_file()
    except OSError as error:
        raise InputError(f"{path}: {os_reason(error)}") from None


def parse_document(data: bytes) -> Any:
    """Parse a JSON value. Raises ValueError with the reason, after its JSON path if any."""
    import json  # most commands only read lines

    repeated: list[_RepeatedKeyObject] = []

    def members(pairs: list[tuple[str, Any]]) -> Any:
        """Make an object of its members. Raise where one of them is there twice."""
        value = dict(pairs)
        if len(value) == len(pairs):
            return value
        key = Counter(key for key, _ in pairs).most_common(1)[0][0]
        repeated.append(_RepeatedKeyObject(value, key))
        return repeated[-1]

    try:
        value = json.loads(
            data.decode(), object_pairs_hook=members, parse_constant=_refuse_constant
        )
        if repeated:
            raise ValueError(_first_repeated_key(value, "$"))
    except UnicodeDecodeError as error:
        raise ValueError(f"invalid UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        position = f"line {error.lineno} column {error.colno}"
        raise ValueError(f"malformed JSON at {position}: {error.msg.lower()}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def repeated_key(line: bytes) -> Fault | None:
    """Find a key that stands twice in an object of a line that can be decoded.

    Whatever comes out again as it went in, but for white space, has none, and needs no second look.
    """
    again = _encode(_decode(line))
    if again == line or again == msgspec.json.format(line, indent=-1):
        return None
    try:
        parse_document(line)
    except ValueError as error:
        return split_json_path(str(error))
    return None


def split_json_path(reason: str) -> Fault:
    """Part a reason from the JSON path that it may begin with."""
    path, colon, rest = reason.partition(": ")
    return Fault(rest, path) if colon and path.startswith("$") else Fault(reason)


def convert_document(value: Any, kind: type[T], source: object) -> T:
    """Convert a value to a struct. Raises InputError with the JSON path."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{source}: {decode_fault(error)}") from None
    except UnicodeEncodeError:
        raise InputError(f"{source}: a name in it holds half of a surrogate pair") from None


class _RepeatedKeyObject:
    """Stands for an object in which a key stands twice."""

    def __init__(self, value: dict[str, Any], key: str) -> None:
        self.value = value
        self.key = key


def _first_repeated_key(value: Any, path: str) -> str:
    """Return the path of the first such object, and its key; an empty text if there is none."""
    if isinstance(value, _RepeatedKeyObject):
        return _first_repeated_key(value.value, path) or f"{path}: duplicate key {value.key!r}"
    members: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        members = [(f".{key}", member) for key, member in value.items()]
    elif isinstance(value, list):
        members = [(f"[{index}]", member) for index, member in enumerate(value)]
    found = (_first_repeated_key(member, path + step) for step, member in members)
    return next(filter(None, found), "")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"malformed JSON: {name} is no JSON number")
