"""What an agent says about itself on its standard output. Declared: it proves nothing.

Plain text, and the `json` and `stream-json` of Claude Code and its kin. The file is read in pieces;
of what it says only the answer is kept, and of that no more than a bounded piece.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from stream.codec import MAX_LINE, LineSplitter, OverlongLine
from stream.errors import os_reason, visible
from stream.evidence.claude_formats import KINDS, StreamRecord, speaker_in

Mode = Literal["text", "json", "stream-json", "empty", "unreadable"]

ANSWER = 1 << 20  #: bytes of an answer that are kept
TOOLS = 20  #: names of refused tools that are kept
NAME = 80  #: characters of a name
_FIRST = 20  #: a record comes among so many lines, or the output is text
_BLOCK = 1 << 16
_CALLS = 10_000  #: refused calls that are told apart


class AgentAnswer(Struct, frozen=True):
    text: str  #: its beginning, where it is longer than ANSWER
    bytes: int  #: of the whole
    sha256: str  #: of the whole
    is_cut: bool


class Declared(Struct, kw_only=True):
    mode: Mode
    answer: AgentAnswer | None = None  #: the last one. None: there is none, or it cannot be read
    results: int = 0  #: more than one where work went on in the background
    is_error: bool | None = None  #: of any result. None: nothing is said about it
    denials: int | None = None  #: refused calls of tools. None: nothing is said about them
    denied_tools: list[str] = []  #: their names, each once, the first ones
    turns: int | None = None
    input_tokens: int | None = None  #: of all results together
    output_tokens: int | None = None
    duration_ms: int | None = None
    model: str = "unknown"
    agent_version: str = "unknown"
    problems: int = 0  #: lines that are no records where there should be records
    reason: str = ""  #: why it is unreadable


def read_declared(path: Path, sha256: str = "") -> Declared:
    """`sha256`: of the file, where it is known: to hash a gigabyte again takes its time."""
    try:
        with path.open("rb") as file:
            block = file.read(_BLOCK).removeprefix(b"\xef\xbb\xbf")
        head = b"".join(block.split(None, 2)[:2])[:2]
        if not head:
            return _text(path, sha256)
        if head != b"[{" and not re.search(rb"(?m)^[ \t]*\{", block):
            return _text(path, sha256)  # a gigabyte without a line need not be looked through
        if head == b"[{":
            declared = _of_records(_items(path), "json")
        else:
            declared = _of_records(_lines(path), "stream-json")
        return declared or _text(path, sha256)
    except OSError as error:
        return Declared(mode="unreadable", reason=os_reason(error))


def _text(path: Path, sha256: str) -> Declared:
    with path.open("rb") as file:
        start = file.read(ANSWER)
        is_cut = bool(file.read(1))
        size, digest = file.seek(0, os.SEEK_END), sha256
        if is_cut and not digest:
            digest = _digest(path)
    if not is_cut and not start.strip():
        return Declared(mode="empty")
    answer = AgentAnswer(_decoded(start), size, digest or _sha256(start), is_cut)
    return Declared(mode="text", answer=answer)


def _digest(path: Path) -> str:
    from hashlib import file_digest

    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _sha256(data: bytes) -> str:
    from hashlib import sha256

    return sha256(data).hexdigest()


def _decoded(data: bytes) -> str:
    """A character that the cut went through is left out; other bytes that are none are shown."""
    return data.decode("utf-8", "replace").rstrip("\ufffd") if data else ""


# --- records ------------------------------------------------------------------------------------


class _DeclaredRecord(StreamRecord, kw_only=True):
    """The fields of all records that say something here; another program may mean others."""

    result: Any = None
    num_turns: Any = None
    duration_ms: Any = None
    usage: Any = None
    permission_denials: Any = None
    tool_name: Any = None
    tool_use_id: Any = None
    model: Any = None
    model_usage: Any = msgspec.field(default=None, name="modelUsage")


_decode = msgspec.json.Decoder(_DeclaredRecord).decode


def _record(line: bytes) -> _DeclaredRecord | None:
    """None: it is none."""
    try:
        return _decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _of_records(lines: Iterator[bytes], mode: Mode) -> Declared | None:
    """None: what is there is text."""
    reading = _Reading()
    for number, line in enumerate(lines):
        reading.add(line)
        if number >= _FIRST and not reading.records:
            return None
    if not reading.records:
        return None
    if reading.records == 1 and reading.results == 1:
        mode = "json"  # a result alone; a stream has its beginning before it
    return reading.declared(mode)


class _Reading:
    def __init__(self) -> None:
        self.records = 0
        self.results = 0
        self._problems = 0
        self._answer: AgentAnswer | None = None
        self._is_error: bool | None = None
        self._denials: dict[str, str] = {}  # by call: a result repeats what was told before
        self._more_denials = 0
        self._sums: dict[str, int] = {}
        self._model = self._version = "unknown"

    def add(self, line: bytes) -> None:
        if not line.strip() and not isinstance(line, OverlongLine):
            return
        record = _record(line)
        if record is None:
            self._problems += 1
            return
        if record.type not in KINDS:  # of the same session, or of an agent with another form
            return
        self.records += 1
        if record.type == "result":
            self._result(record)
        elif record.type == "system" and record.subtype == "init":
            self._model = _name(record.model) or self._model
            speaker = speaker_in(record)
            self._version = _name(speaker and speaker.version) or self._version
        elif record.type == "system" and record.subtype == "permission_denied":
            self._deny(record.tool_use_id, record.tool_name)

    def _result(self, record: _DeclaredRecord) -> None:
        self.results += 1
        self._answer = _answer(record.result)
        if isinstance(record.is_error, bool):
            self._is_error = bool(self._is_error) or record.is_error
        usage = record.usage if isinstance(record.usage, dict) else {}
        self._count("turns", record.num_turns)
        self._count("duration_ms", record.duration_ms)
        self._count("input_tokens", usage.get("input_tokens"))
        self._count("output_tokens", usage.get("output_tokens"))
        denials = record.permission_denials
        for denial in denials if isinstance(denials, list) else []:
            fields = denial if isinstance(denial, dict) else {}
            self._deny(fields.get("tool_use_id"), fields.get("tool_name"))
        if self._model == "unknown" and isinstance(record.model_usage, dict):
            names = list(record.model_usage)
            self._model = _name(names[0]) if len(names) == 1 else self._model

    def _count(self, name: str, value: Any) -> None:
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
            self._sums[name] = self._sums.get(name, 0) + int(value)

    def _deny(self, call: Any, tool: Any) -> None:
        name = _name(tool) or "unknown"
        if not isinstance(call, str) or not call:
            call = f"\0{len(self._denials)}"
        if len(self._denials) < _CALLS:
            self._denials.setdefault(call[:200], name)
        elif call[:200] not in self._denials:
            self._more_denials += 1

    def declared(self, mode: Mode) -> Declared:
        denials = len(self._denials) + self._more_denials
        return Declared(
            mode=mode,
            answer=self._answer,
            results=self.results,
            is_error=self._is_error,
            denials=denials if denials or self.results else None,
            denied_tools=list(dict.fromkeys(self._denials.values()))[:TOOLS],
            turns=self._sums.get("turns"),
            input_tokens=self._sums.get("input_tokens"),
            output_tokens=self._sums.get("output_tokens"),
            duration_ms=self._sums.get("duration_ms"),
            model=self._model,
            agent_version=self._version,
            problems=self._problems,
        )


def _answer(text: Any) -> AgentAnswer | None:
    if not isinstance(text, str):
        return None
    data = text.encode("utf-8", "surrogatepass")
    is_cut = len(data) > ANSWER
    kept = _decoded(data[:ANSWER]) if is_cut else text
    return AgentAnswer(kept, len(data), _sha256(data), is_cut)


def _name(value: Any) -> str:
    return visible(value[:NAME]) if isinstance(value, str) else ""


# --- the file in pieces -------------------------------------------------------------------------


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            yield block


def _lines(path: Path) -> Iterator[bytes]:
    splitter = LineSplitter(str(path))
    for block in _blocks(path):
        yield from splitter.feed(block) or ()
    yield from splitter.finish() or ()


def _items(path: Path) -> Iterator[bytes]:
    """The objects of an array, as `--verbose` prints it: all of it in one line."""
    items = _Items()
    for block in _blocks(path):
        yield from items.feed(block)
    if not items.is_whole:
        yield b"["  # a problem: it was cut, or it is no array of objects


class _Items:
    """Cuts an array into its objects. Holds at most one of them."""

    def __init__(self) -> None:
        import re

        self._outside = re.compile(rb'["{}\[\]]')
        self._inside = re.compile(rb'["\\]')
        self._depth = 0
        self._is_string = self._is_escape = self._is_over = False
        self._held = bytearray()
        self._length = 0  # of the object, also where it is too long to be held
        self.is_whole = False

    def feed(self, block: bytes) -> Iterator[bytes]:
        place = start = 0
        while place < len(block):
            if self._is_over:
                self.is_whole = self.is_whole and not block[place:].strip()
                return
            if self._is_escape:
                self._is_escape = False
                place += 1
                continue
            found = (self._inside if self._is_string else self._outside).search(block, place)
            if not found:
                break
            place = found.end()
            if self._meet(found[0]):
                if self._depth == 2 and found[0] == b"{":
                    start = found.start()
                elif self._depth == 1:
                    self._hold(block[start:place])
                    yield self._release()
        if self._depth > 1:
            self._hold(block[start:])

    def _meet(self, byte: bytes) -> bool:
        """Whether an object of the array begins or ends with this."""
        if byte == b'"':
            self._is_string = not self._is_string
        elif byte == b"\\":
            self._is_escape = True
        elif byte in b"{[":
            self._depth += 1
            return self._depth == 2 and byte == b"{"
        else:
            self._depth -= 1
            self._is_over = self.is_whole = self._depth == 0
            return self._depth == 1 and byte == b"}"
        return False

    def _hold(self, part: bytes) -> None:
        self._length += len(part)
        if self._length <= MAX_LINE:
            self._held += part

    def _release(self) -> bytes:
        whole = bytes(self._held) if self._length <= MAX_LINE else b"{"
        self._held.clear()
        self._length = 0
        return whole
