"""What an agent declares on its standard output: its answer, denials, usage. It proves nothing.

The output is plain text, or the `json` or `stream-json` of Claude Code and its kin. The file is
read in pieces, and of an answer no more than a bounded piece is kept.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from stream.codec import DECODE_ERRORS, MAX_LINE, OverlongLine, lines_of
from stream.errors import os_reason, printable
from stream.evidence.claude_formats import KINDS, StreamRecord, denials_in, producer_in_record

Mode = Literal["text", "json", "stream-json", "empty", "unreadable"]

ANSWER = 1 << 20  #: bytes of an answer that are kept
TOOLS = 20  #: names of refused tools that are kept
NAME = 80  #: characters of a name
_FIRST = 20  #: a record comes among so many lines, or the output is text
_BLOCK = 1 << 16
_MOST_CALLS = 10_000  #: refused calls that are told apart


_decode_record = msgspec.json.Decoder(StreamRecord).decode  # an answer has to be Unicode


class AgentAnswer(Struct, frozen=True):
    """The agent's final answer, or the beginning of it."""

    text: str  #: its beginning, where it is longer than ANSWER
    bytes: int  #: of the whole
    sha256: str  #: of the whole
    is_cut: bool


class DeclaredOutput(Struct, kw_only=True):
    """What an agent's output declares."""

    mode: Mode
    answer: AgentAnswer | None = None  #: the last one. None: there is none, or it cannot be read
    results: int = 0  #: more than one where work went on in the background
    is_error: bool | None = None  #: of any result. None: none states it
    denials: int | None = None  #: refused tool calls. None: the output reports none of them
    denied_tools: list[str] = []  #: their names, each once, the first ones
    turns: int | None = None
    input_tokens: int | None = None  #: of all results together
    output_tokens: int | None = None
    duration_ms: int | None = None
    model: str = "unknown"
    agent_version: str = "unknown"
    problems: int = 0  #: lines that are no records where there should be records
    reason: str = ""  #: why it is unreadable


def read_declared(path: Path, sha256: str = "") -> DeclaredOutput:
    """Read an agent's output. `sha256` is the file's digest, where it is known already."""
    try:
        with path.open("rb") as file:
            block = file.read(_BLOCK).removeprefix(b"\xef\xbb\xbf")
        head = b"".join(block.split(None, 2)[:2])[:2]
        declared = None
        if head == b"[{":
            declared = _read_records(_objects_of_output_array(path), "json")
        elif re.search(rb"(?m)^[ \t]*\{", block):  # else a gigabyte need not be looked through
            declared = _read_records(_output_lines(path), "stream-json")
        return declared or _read_plain_answer(path, sha256)
    except OSError as error:
        return DeclaredOutput(mode="unreadable", reason=os_reason(error))


def _read_plain_answer(path: Path, sha256: str) -> DeclaredOutput:
    """Take an agent's output that is plain text as its answer, of which the beginning is kept."""
    with path.open("rb") as file:
        start = file.read(ANSWER)
        is_cut = bool(file.read(1))
        size, digest = file.seek(0, os.SEEK_END), sha256
        if is_cut and not digest:
            digest = _file_sha256(path)
    if not is_cut and not start.strip():
        return DeclaredOutput(mode="empty")
    answer = AgentAnswer(_decode_answer_start(start), size, digest or _sha256(start), is_cut)
    return DeclaredOutput(mode="text", answer=answer)


def _file_sha256(path: Path) -> str:
    from hashlib import file_digest

    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _sha256(data: bytes) -> str:
    from hashlib import sha256

    return sha256(data).hexdigest()


def _decode_answer_start(data: bytes) -> str:
    """Leave out a character that the cut went through; show other bytes that are no text."""
    return data.decode("utf-8", "replace").rstrip("\ufffd") if data else ""


# --- records ------------------------------------------------------------------------------------


def _read_records(lines: Iterator[bytes], mode: Mode) -> DeclaredOutput | None:
    """Read what the records of an agent's output declare; return None if the output is text."""
    reading = _OutputReader()
    for number, line in enumerate(lines):
        reading.add_line(line)
        if number >= _FIRST and not reading.records:
            return None
    if not reading.records:
        return None
    if reading.records == 1 and reading.declared.results == 1:
        mode = "json"  # a result alone; a stream has its beginning before it
    return reading.finish(mode)


class _OutputReader:
    """Gathers what the records of an output declare."""

    def __init__(self) -> None:
        self.records = 0
        self.declared = DeclaredOutput(mode="stream-json")
        self._denials: dict[str, str] = {}  # by call: a result repeats what was reported before
        self._more_denials = 0

    def add_line(self, line: bytes) -> None:
        """Take in the next line of an agent's output."""
        if not line.strip() and not isinstance(line, OverlongLine):
            return
        try:
            record = _decode_record(line)
        except DECODE_ERRORS:
            self.declared.problems += 1
            return
        if record.type not in KINDS:  # of the same session, or of an agent with another form
            return
        self.records += 1
        if record.type == "result":
            self._add_result_record(record)
        elif producer := producer_in_record(record):
            self.declared.model = _short_name(record.model) or self.declared.model
            self.declared.agent_version = (
                _short_name(producer.version) or self.declared.agent_version
            )
        for call, tool in denials_in(record):
            self._add_denial(call, tool)

    def finish(self, mode: Mode) -> DeclaredOutput:
        """Return what the agent's output declared."""
        declared = self.declared
        declared.mode = mode
        denials = len(self._denials) + self._more_denials
        declared.denials = denials if denials or declared.results else None
        declared.denied_tools = list(dict.fromkeys(self._denials.values()))[:TOOLS]
        return declared

    def _add_result_record(self, record: StreamRecord) -> None:
        """Take the answer, usage and error of an agent's result record."""
        declared = self.declared
        declared.results += 1
        declared.answer = _kept_answer(record.result)
        if isinstance(record.is_error, bool):
            declared.is_error = bool(declared.is_error) or record.is_error
        usage = record.usage if isinstance(record.usage, dict) else {}
        declared.turns = _add_usage_number(declared.turns, record.num_turns)
        declared.duration_ms = _add_usage_number(declared.duration_ms, record.duration_ms)
        declared.input_tokens = _add_usage_number(declared.input_tokens, usage.get("input_tokens"))
        declared.output_tokens = _add_usage_number(
            declared.output_tokens, usage.get("output_tokens")
        )
        if declared.model == "unknown" and isinstance(record.model_usage, dict):
            names = list(record.model_usage)
            declared.model = _short_name(names[0]) if len(names) == 1 else declared.model

    def _add_denial(self, call: Any, tool: Any) -> None:
        """Note a tool call that was refused to the agent, once for each call."""
        if not isinstance(call, str) or not call:
            call = f"\0{len(self._denials)}"
        if len(self._denials) < _MOST_CALLS:
            self._denials.setdefault(call[:200], _short_name(tool) or "unknown")
        elif call[:200] not in self._denials:
            self._more_denials += 1


def _add_usage_number(so_far: int | None, value: Any) -> int | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return (so_far or 0) + int(value)
    return so_far


def _kept_answer(text: Any) -> AgentAnswer | None:
    """Return the part of an agent's answer that is kept, with the digest of the whole."""
    if not isinstance(text, str):
        return None
    data = text.encode("utf-8", "surrogatepass")
    is_cut = len(data) > ANSWER
    start = _decode_answer_start(data[:ANSWER]) if is_cut else text
    return AgentAnswer(start, len(data), _sha256(data), is_cut)


def _short_name(value: Any) -> str:
    return printable(value[:NAME]) if isinstance(value, str) else ""


# --- the file in pieces -------------------------------------------------------------------------


def _output_blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            yield block


def _output_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of an agent's output, of which no longer one is held."""
    for lines in lines_of(_output_blocks(path), str(path)):
        yield from lines


def _objects_of_output_array(path: Path) -> Iterator[bytes]:
    """Yield the objects of an array, as `--verbose` prints it: all of it in one line."""
    items = _ArraySplitter()
    for block in _output_blocks(path):
        yield from items.feed(block)
    if not items.is_whole:
        yield b"["  # a problem: it was cut, or it is no array of objects


_STRUCTURE = re.compile(rb'["{}\[\]]')
_IN_STRING = re.compile(rb'["\\]')


class _ArraySplitter:
    """Cuts an array into its objects and holds at most one of them."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_string = self._is_escape = self._is_over = False
        self._object = bytearray()
        self._length = 0  # of the object, also where it is too long to be held
        self.is_whole = False

    def feed(self, block: bytes) -> Iterator[bytes]:
        """Yield the objects of the agent's array that a block of its output completes."""
        position = start = 0
        while position < len(block):
            if self._is_over:
                self.is_whole = self.is_whole and not block[position:].strip()
                return
            if self._is_escape:
                self._is_escape = False
                position += 1
                continue
            found = (_IN_STRING if self._is_string else _STRUCTURE).search(block, position)
            if not found:
                break
            position = found.end()
            if self._enter_or_leave_object(found[0]):
                if self._depth == 2 and found[0] == b"{":
                    start = found.start()
                elif self._depth == 1:
                    self._hold_object_part(block[start:position])
                    yield self._pop_held_object()
        if self._depth > 1:
            self._hold_object_part(block[start:])

    def _enter_or_leave_object(self, byte: bytes) -> bool:
        """Return whether an object of the array begins or ends with this."""
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

    def _hold_object_part(self, part: bytes) -> None:
        self._length += len(part)
        if self._length <= MAX_LINE:
            self._object += part

    def _pop_held_object(self) -> bytes:
        """Give away the object of the array that is held, or a broken one in place of an overlong
        one."""
        whole = bytes(self._object) if self._length <= MAX_LINE else b"{"
        self._object.clear()
        self._length = 0
        return whole
