"""Secrets by the heading of their column, and all that a Secret of Kubernetes holds.

A rule sees a bounded piece, and a table has no bound: each row asks for the next one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial

from msgspec import Struct

from stream.redaction import values
from stream.redaction.rules import AHEAD, BEHIND, LOOK, START, Found, Next

LevelOf = Callable[[bytes], "int | None"]

_ROW = AHEAD - 2 * LOOK  #: bytes of the longest row
_BREAK = re.compile(rb"\r?\n|\\{1,7}r\\{1,7}n|\\{1,7}n")
_SEPARATOR = re.compile(rb"[ ]?\\{0,7}[\"']?[ ]{0,40}([,;|\t]|\\{1,7}t)")
_BEFORE = re.compile(rb"[ ]?[\"']?\\{0,7}[ ]{0,40}([,;|\t]|t\\)")  # read backwards
_BLANKS = re.compile(rb"[ ]{2,256}(?=\S)|(?=[ ]{0,8}(?:\r?\n|\\{1,7}n))")
_HEADING = re.compile(rb"[A-Za-z_][\w .#/()-]{0,47}\Z")
_NO_HEADINGS = re.compile(rb"[^\w .#/()\\\",;|\t-]")
_BORDER = re.compile(rb"[-+=|: \t]{3,}\Z")
_OPENS = re.compile(rb".*[:\[{(=,][ \t]?(?:\\{0,7}[\"'`]){1,3}(?=[A-Za-z_|])", re.DOTALL)
_STRING_END = re.compile(rb"(?<!\\)(?:\\\\){0,3}\"(?=[\s,}\])]|\Z)")
MOST_COLUMNS = 64
_QUOTED = rb"[ ]{0,8}\\{0,7}\"(?:[^\"\\]|\"\"|\\{1,7}[^\"n\\]){0,512}+\\{0,7}\"[ ]{0,8}"
_FIELDS = {
    separator: re.compile(
        rb"(%s(?=%s|\Z)|(?:(?!%s).)*+)(?:%s|\Z)" % (_QUOTED, *(between,) * 3), re.DOTALL
    )
    for separator, between in (
        (b",", rb","),
        (b";", rb";"),
        (b"|", rb"\|"),
        (b"\t", rb"(?:\t|\\{1,7}t)"),
        (b" ", rb"(?:[ ]{2,}|\t)"),
    )
}
_WORD = re.compile(rb"\S+")
_FIELD_LEFT = re.compile(rb"[ ]*(?:\\{0,7}\")?")
_FIELD_RIGHT = re.compile(rb"(?:\\{0,7}\")?[ ]*\Z")


class _Table(Struct, frozen=True):
    separator: bytes
    count: int
    columns: tuple[tuple[int, int], ...]  #: (which, what its heading says)
    starts: tuple[int, ...]  #: where in its line each heading begins


def header(text: bytes, start: int, end: int, level_of: LevelOf) -> Iterator[Next]:
    """The first row of a table, where a name stands as a heading."""
    separator = _separator(text, start, end)
    if not separator:
        return
    lowest = max(start - 512, 0)
    newline, written = (text.rfind(mark, lowest, start) for mark in (b"\n", b"\\n"))
    begin = max(newline, written + (written >= 0)) + 1
    if lowest and not begin:
        return
    line_end = _BREAK.search(text, end, end + 512)
    if not line_end:
        return
    line = text[begin : line_end.start()]
    opened = _OPENS.match(line[: start - begin])
    if opened:
        line = line[opened.end() :]
    if _NO_HEADINGS.search(line):
        return
    indent = len(line) - len(line.lstrip(b" "))
    spans = _places(line.strip(b" "), separator)
    fields = [line[indent + left : indent + right] for left, right in spans]
    inner = fields[1:-1] if separator == b"|" and not (fields[0] or fields[-1]) else fields
    if not 2 <= len(inner) <= MOST_COLUMNS or not all(map(_HEADING.match, inner)):
        return
    named = [(number, level_of(field)) for number, field in enumerate(fields)]
    columns = tuple((number, level) for number, level in named if level is not None)
    if not columns:
        return
    starts = tuple(indent + left for left, _ in spans)
    yield Next(line_end.end(), partial(_row, _Table(separator, len(fields), columns, starts)))


def _separator(text: bytes, start: int, end: int) -> bytes:
    found = _SEPARATOR.match(text, end) or _BEFORE.match(text[max(start - 48, 0) : start][::-1])
    if found:
        return b"\t" if b"t" in found[1] else found[1]
    return b" " if _BLANKS.match(text, end) else b""


def _places(line: bytes, separator: bytes) -> list[tuple[int, int]]:
    """Where the fields of a row are, without their quotes and blanks."""
    places: list[tuple[int, int]] = []
    place = 0
    while len(places) <= MOST_COLUMNS:
        found = _FIELDS[separator].match(line, place)
        assert found
        start, end = found.span(1)
        left = _FIELD_LEFT.match(line, start, end)
        begin = left.end() if left else start
        right = _FIELD_RIGHT.search(line, begin, end)
        places.append((begin, right.start() if right else end))
        if found.end() == found.end(1):
            break
        place = found.end()
    return places


def _row(table: _Table, text: bytes, place: int) -> Iterator[Found | Next]:
    ending = _BREAK.search(text, place, place + _ROW)
    end = ending.start() if ending else len(text)
    if end - place > _ROW:
        return
    line = text[place:end]
    if not _BORDER.match(line):
        cut = None if line.lstrip().startswith(b'"') else _STRING_END.search(line)
        places = _cells(line[: cut.start()] if cut else line, table)
        if not places:
            return
        for column, level in table.columns:
            start, stop = places[column]
            value = line[start:stop]
            if value and _is_cell(value, level):
                yield Found("password", place + start, place + stop)
        if cut:
            return
    if ending:
        yield Next(ending.end(), partial(_row, table))


def _cells(line: bytes, table: _Table) -> list[tuple[int, int]]:
    """Where the cells of a row are: none, if it is no row. Between blanks a cell may be empty or
    fill its column, and begins where its heading does, or behind that after one that was too long.
    What stands below the first heading alone is any line."""
    places = _places(line, table.separator)
    if len(places) == table.count:
        return places
    if table.separator != b" ":
        return []
    words = {found.start(): found.end() for found in _WORD.finditer(line)}
    if len(words) == table.count and all(map(int.__ge__, words, table.starts)):
        return [*words.items()]
    begun = {left for left, right in places if left < right}
    if not begun <= set(table.starts) or begun <= {table.starts[0]}:
        return []
    return [(start, words.get(start, start)) for start in table.starts]


def _is_cell(value: bytes, level: int) -> bool:
    if values.is_none(value) or b" " in value.strip():
        return False
    if level == values.SURE:
        is_identifier = b"_" in value and values.is_code(value)
        return len(value) >= 4 and not is_identifier and value.lower() not in values.PROSE
    return values.is_quoted_secret(value, level)


# --- a Secret of Kubernetes ---------------------------------------------------------------------

_KIND = re.compile(rb"[\"']?kind\\{0,7}[\"']?[ \t]{0,4}:[ \t]{0,4}\\{0,7}[\"']?(\w+)")
_YAML_DATA = re.compile(rb"(?:stringData|data):[ \t]{0,4}(?:\r?\n|\\{1,7}n)")
_YAML_PAIR = re.compile(
    rb"([ \t+>|-]{1,40}?)\\{0,7}[\"']?[\w.-]{1,128}\\{0,7}[\"']?:[ \t]{1,4}\\{0,7}[\"']?"
    rb"(?P<value>[^\s\"'\\#|>][^\s\"'\\]*)"
)
_JSON_DATA = re.compile(rb"(?:stringData|data)\\{0,7}\"[ \t]{0,4}:[ \t]{0,4}\{")
_JSON_PAIR = re.compile(
    rb"(?:[\s,]|\\{1,7}[nrt]){0,80}\\{0,7}\"[\w.-]{1,128}\\{0,7}\"[ \t]{0,4}:[ \t]{0,4}\\{0,7}\""
    rb"(?P<value>[^\"\\]*)"
)
_PAIR_REST = re.compile(rb"\\{0,7}[\"']?[ \t]*(?:#.*)?")
_PAIR_END = re.compile(rb"[\s\"'\\]")
_CLOSING = re.compile(rb"\\{0,7}\"")
_INDENT = re.compile(rb"(?:^|\n|\\{1,7}n)([ \t+>|-]{0,40})\Z")
_BASE64 = re.compile(rb"[A-Za-z0-9+/]{16,}={0,2}\Z")


def kubernetes(text: bytes, place: int) -> Iterator[Found | Next]:
    """What stands below `data:` and `stringData:`, whatever its keys are called."""
    data = START.match(text, place) and _YAML_DATA.match(text, place)
    pair = _YAML_PAIR if data else _JSON_PAIR
    data = data or (START.match(text, place) and _JSON_DATA.match(text, place))
    if not data:
        return
    kinds = _kinds(text, place)
    if b"Secret" in kinds or (not kinds and pair is _YAML_PAIR):
        before = _INDENT.search(text, max(place - 48, 0), place)
        indent = len(before[1]) if before else 0
        yield from _pair(pair, indent, b"Secret" in kinds, text, data.end())


def _kinds(text: bytes, place: int) -> set[bytes]:
    """Of the document around, as far as one sees."""
    before = text[max(place - BEHIND, 0) : place].rpartition(b"\n---")[2]
    after = text[place : place + AHEAD].partition(b"\n---")[0]
    return {found[1] for piece in (before, after) for found in _KIND.finditer(piece)}


def _pair(
    pair: re.Pattern[bytes], indent: int, is_secret: bool, text: bytes, place: int
) -> Iterator[Found | Next]:
    found = pair.match(text, place, place + _ROW)
    if not found or (pair is _YAML_PAIR and len(found[1]) <= indent):
        return
    value = found["value"]
    start, end = found.span("value")
    if value and (is_secret or _is_readable(value)) and not values.is_none(value):
        yield Found("kubernetes", start, end, None if end < place + _ROW else _PAIR_END)
    if pair is _YAML_PAIR:
        ending = _BREAK.search(text, end, place + _ROW)
        if ending and _PAIR_REST.fullmatch(text, end, ending.start()):
            yield Next(ending.end(), partial(_pair, pair, indent, is_secret))
    else:
        closing = _CLOSING.match(text, end)
        if closing:
            yield Next(closing.end(), partial(_pair, pair, indent, is_secret))


def _is_readable(value: bytes) -> bool:
    from binascii import Error, a2b_base64

    if not _BASE64.match(value) or len(value) % 4:
        return False
    try:
        return all(32 <= byte < 127 or byte in b"\r\n\t" for byte in a2b_base64(value))
    except Error:
        return False
