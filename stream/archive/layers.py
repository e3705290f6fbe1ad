"""Every line of a layer against its schema, its number and its run, and the law of its layer.

Good lines are decoded by the block and cost nothing else than to be written again: what comes
out as it went in has no second key, no white space and no other order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from stream.archive.book import Book
from stream.archive.columns import Columns
from stream.archive.documents import is_too_deep, oddities
from stream.archive.gathering import Gathering
from stream.archive.laws import Law, Problem
from stream.codec import DECODE_ERRORS, explain, is_blank
from stream.records.runner import MARKERS_FILE, POLICY_FILE, SDK_FILE

#: decoded at a time: the thread that inflates needs the interpreter now and then
_PIECE = 64 << 10
_HELD = (POLICY_FILE, SDK_FILE, MARKERS_FILE)
_encode_lines = msgspec.json.Encoder().encode_lines


class Judge(Protocol):
    """Of the contents of one file."""

    def feed(self, data: bytes, /) -> None: ...
    def finish(self) -> None: ...


class Layer:
    """The judge of one layer."""

    def __init__(self, book: Book, name: str, law: Law, gathering: Gathering) -> None:
        self.lines = 0
        self.blank = 0  #: of them: the contract takes none of these for a record
        self._book = book
        self._name = name
        self._law = law
        self._gathering = gathering
        self._held: list[bytes] = []
        self._held_length = 0
        self._is_overlong = False
        self._seq = 0

    def feed(self, data: bytes) -> None:
        start = 0
        while start < len(data):
            end = data.rfind(b"\n", start, start + _PIECE) + 1
            if end:
                self._end_lines(data[start:end])
            else:
                end = start + _PIECE
                self._hold(data[start:end])
            start = end

    def _end_lines(self, block: bytes) -> None:
        if self._held:
            block = b"".join((*self._held, block))
        self._held, self._held_length = [], 0
        if self._is_overlong:
            self._is_overlong = False
            block = block[block.find(b"\n") + 1 :]
            self.lines += 1
        self._judge(block)

    def finish(self) -> None:
        rest = b"".join(self._held)
        if rest and not self._is_overlong and not self._book.is_recorded:
            self._judge(rest + b"\n")  # as others may end a file
        elif rest or self._is_overlong:
            self._book.torn[self._name] = self.lines + 1, len(rest)

    def _hold(self, rest: bytes) -> None:
        self._held_length += len(rest)
        if rest and not self._is_overlong:
            self._held.append(rest)
        if self._held_length > self._book.limits.line and not self._is_overlong:
            self._is_overlong = True
            self._held = []
            self._find_overlong(self.lines + 1)

    def _judge(self, block: bytes) -> None:
        if not block:
            return
        count = self._good(block)
        if not count:
            count = block.count(b"\n")
            self._look_closely(block)
        self._book.take_lines(count)
        self.lines += count
        limit = self._book.limits.held
        if self._name in _HELD and self.lines - count <= limit < self.lines:
            self._gathering.miss()
            message = f"more than {limit} lines of a layer that is held as a whole"
            self._book.find("limit.lines", message, self._name)

    def _good(self, block: bytes) -> int:
        """How many lines, where nothing at all is wrong with any of them; else 0."""
        limit = self._book.limits.line
        if len(block) > limit and max(map(len, block.split(b"\n"))) > limit:
            return 0
        try:
            records = self._law.decoder.decode_lines(block)
        except DECODE_ERRORS:
            return 0
        if not records or _encode_lines(records) != block:
            return 0
        many, count = self._law.together(records), len(records)
        if not many.run_ids <= {self._book.run_id}:
            return 0
        if self._law.is_numbered and many.seqs != (*range(self._seq, self._seq + count),):
            return 0
        if not self._law.are_good(many):
            return 0
        self._seq += count
        if isinstance(many, Columns):
            self._gathering.take_columns(many)
        else:
            self._gathering.take(self._name, many.records)
        return count

    def _look_closely(self, block: bytes) -> None:
        for number, line in enumerate(block[:-1].split(b"\n"), self.lines + 1):
            if is_blank(line) and not self._book.is_recorded:
                self.blank += 1
                continue
            if len(line) > self._book.limits.line:
                self._find_overlong(number)
                continue
            try:
                record = self._law.decoder.decode(line)
            except DECODE_ERRORS as error:
                reason, path = explain(error)
                self._book.find("contract.line", reason, self._name, number, path)
                self._seq += 1
                self._gathering.miss()
                continue
            self._gathering.take(self._name, (record,))
            self._look(line, record, number)

    def _look(self, line: bytes, record: Any, number: int) -> None:
        for rule, message, path in self._problems(line, record):
            self._book.find(rule, message, self._name, number, path)
        if hasattr(record, "run_id"):
            self._book.hold_run_id(record.run_id, self._name, number)

    def _problems(self, line: bytes, record: Any) -> Iterator[Problem]:
        if msgspec.json.encode(record) != line:
            yield from oddities(line, "contract.line", is_ours=self._book.is_recorded)
        if is_too_deep(line, self._book.limits.depth):
            yield "limit.depth", f"nested deeper than {self._book.limits.depth}", ""
        if self._law.is_numbered:
            if record.seq != self._seq:
                yield "contract.seq", f"expected {self._seq}, got {record.seq}", "$.seq"
            self._seq = record.seq + 1
        yield from self._law.problems(record)

    def _find_overlong(self, number: int) -> None:
        self._gathering.miss()
        message = f"the line has more than {self._book.limits.line} bytes"
        self._book.find("limit.line", message, self._name, number)
