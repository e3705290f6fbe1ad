"""Secrets by the name that they are given to: `password = "…"`, in all the ways to write that.

A name may be the heading of a column, too, and all that a Secret of Kubernetes holds is one. A rule
sees a bounded piece, and a table has no bound: each row asks for the next one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache, partial

from msgspec import Struct

from stream.redaction import values
from stream.redaction.values import (
    AFTER_NO_LETTER,
    AHEAD,
    BEHIND,
    COLOUR,
    LIKELY,
    LOOK,
    MAYBE,
    START,
    SURE,
    AskLater,
    OpeningQuote,
    Secret,
    unquoted_end,
    value_piece,
)

_ROW = AHEAD - 2 * LOOK  #: bytes of the longest row
_BREAK = re.compile(rb"\r?\n|\\{1,7}r\\{1,7}n|\\{1,7}n")

#: The words that a name ends in, by how sure it is that the value of such a name is a secret.
_SURE = (
    rb"password|passwd|passwort|passphrase|passcode|" + AFTER_NO_LETTER + rb"(?:pwd|psk)|(?<=_)pass"
    rb"|(?:db|user|admin|root|smtp|ftp|mail|redis|sql|store|key|require)pass|masterauth|mnemonic"
)
_LIKELY = (
    rb"secret|secret[_-]?key[_-]?base|client[_-]key[_-]data|connection[_-]?string|kennwort"
    rb"|(?:api|access|secret|private|auth|account|encryption|signing|master|session|license|service"
    rb"|shared|client|deploy|webhook|subscription|consumer|app|application|admin|root|ssh|hmac|jwt"
    rb"|crypt|cipher|aes|storage|ingest|integration|write|registration|recovery)[_-]?key"
)
_MAYBE = (
    rb"token|credentials?|" + AFTER_NO_LETTER + rb"(?:sig(?:nature)?|jwt|pw|auth|pass)"
    rb"|(?<=_)(?:jwt|pw|auth)|(?:git(?:hub|lab)|azure|devops|jira|access)_pat"
)
_NAME = re.compile(
    rb"(?i)[\w.$-]{0,48}?(?:(?P<sure>%s)|(?P<likely>%s)|(?P<maybe>%s))\d{0,2}(?![\w-])"
    % (_SURE, _LIKELY, _MAYBE)
)
_TWO_WORDS = re.compile(
    rb"(?i)key(?:%s)\d{0,2}(?![\w-])"
    % b"|".join(
        rb"(?<=[^A-Za-z]%s[ ]key)" % word
        for word in (
            *(b"api", b"app", b"auth", b"access", b"secret", b"private", b"account", b"master"),
            *(b"storage", b"license", b"service", b"encryption", b"signing", b"webhook"),
        )
    )
)
_WHOLE = re.compile(_NAME.pattern + rb"\Z")
_NAME_BACKWARDS = re.compile(rb"[\w.$-]*")
_RUN = re.compile(rb"[\w.$-]{0,128}")
_MAY_ESCAPE = re.compile(rb"[\\%[;\x1b\w.$-]\Z")
_TYPE = (
    rb":[ \t]{0,4}[A-Za-z][\w.| ?]{0,32}(?:\[[\w.| ,]{0,32}\])?[ \t]{1,4}=[ \t]{1,4}(?=[^\s=])"
    rb"|:[ \t]{0,4}&?(?:str|string|String|bytes|SecretStr)\??=(?=[\"'`\w])"
)
_COLUMN = (
    rb"\\{0,7}[\"']?[ \t]{0,4}(?:,|/?>)?"
    rb"(?:\\{0,7}[nrt]|\s){0,40}\\{0,7}[\"']?value\\{0,7}[\"']?[ \t]{0,4}[:=]"
)
_COLOURS = re.compile(COLOUR)
_COLOUR_BEFORE = re.compile(COLOUR + rb"\Z")
_COLOUR_REST = re.compile(rb"(?<=[\[;])[0-9]{0,4}[A-Za-z]")
_GAP = re.compile(
    COLOUR + rb"{0,3}\\{0,7}(?:[\"'`]|&quot;|&#3[49];)?\]?(?:[ \t]|" + COLOUR + rb"){0,8}"
    rb"(?P<mark>" + _TYPE + rb"|:=|=>|={1,3}|!={1,2}|:(?!:))(?:[ \t]|" + COLOUR + rb"){0,8}"
    rb"|(?P<pair>" + _COLUMN + rb")[ \t]{0,8}"
)
_OPTION_GAP = re.compile(rb"=|[ \t]{1,8}|\\{0,7}[\"'],(?:[ \t]|\s|\\+n){0,40}(?=\\{0,7}[\"'])|\0")
_CELL = re.compile(
    rb"\\{0,7}[\"']?>|</(?:td|th|dt|key|b|strong|label|span)>\s{0,40}<(?:td|dd|string|span|code)>"
)
_IS = re.compile(
    rb"[ \t]{1,2}(?:is|was|to|are)(?:[ \t]{1,2}|:[ \t]{1,2})" + COLOUR + rb"{0,3}(?=\S)"
)
_SETS = re.compile(
    rb"(?:^|[\s\0\"'])(?:setenv|setx|ENV|ARG"
    rb"|set[ \t]+-[gxU]{1,3}|configure[ \t]+set|config[ \t]+set)[ \t]+\Z"
)
_LOGIN = re.compile(rb"login[ \t]{1,4}[^\s-]\S{0,63}\s{1,8}\Z")
_COMPARISONS = frozenset((b"==", b"===", b"!=", b"!=="))
_LINE = re.compile(rb"(?:^|[\n\0]|\\n)[ \t>|+-]{0,40}(?:- |export |set )?" + COLOUR + rb"{0,3}\Z")
_LINE_REST = re.compile(COLOUR + rb"{0,3}[ \t]{0,8}(?:\r?\n|\\+[rn]|\0|\Z|[\"'](?=[,}\]]|\Z)|#)")
_TIGHT_REST = re.compile(COLOUR + rb"|[ \t\r\n]|\Z")
_PHRASE = re.compile(
    rb"[\"']?((?:[a-z]{3,9}[ -]){3,24}[a-z]{3,9})[\"']?[ \t]{0,4}(?:\r?\n|\\+[rn]|\Z)"
)
_TWO = re.compile(rb"[A-Za-z][_-][A-Za-z]|[a-z][A-Z]")
_SIGNS = re.compile(rb"[_-]")
_BASIC = re.compile(rb"[A-Za-z0-9+/_-]{8,512}={0,2}\Z")
_ATTRIBUTE = re.compile(rb"(?i)(?:name|key|id)[ \t]{0,2}=[ \t]{0,2}\\{0,7}[\"'][^\"'\s]{0,64}\Z")


def assigned_secret(text: bytes, position: int) -> Iterator[Secret | AskLater]:
    """Find the value that is given to the name around a position."""
    before = _NAME_BACKWARDS.match(text[max(position - 64, 0) : position][::-1])
    start = position - (before.end() if before else 0)
    rest = _COLOUR_REST.match(text, start, position)
    if rest and _COLOUR_BEFORE.search(text, max(start - 24, 0), rest.end()):
        start = rest.end()
    name = _name_at(text, start)
    if name and start + name[0] > position:
        end, level = start + name[0], name[1]
    elif two := _TWO_WORDS.match(text, position):
        end, level = two.end(), LIKELY
    else:
        return
    found = _find_assigned_secret(text, start, end, level)
    if not found:
        yield from _find_table_header(text, start, end)
    elif level == SURE or not _repeats_name(text[start:end], found, text):
        yield found


def _repeats_name(name: bytes, found: Secret, text: bytes) -> bool:
    """Return whether the value repeats the words of the name: `private_key: Ed25519PrivateKey`."""
    if found.until is None or not _TWO.search(name):
        return False
    value = value_piece(text, found.start, found.until)
    return _SIGNS.sub(b"", name).lower() in _SIGNS.sub(b"", value).lower()


def _level_of(name: bytes) -> int | None:
    """Return how sure it is that the value of such a name is a secret; None if it is none."""
    found = _WHOLE.match(name.strip().replace(b" ", b"_"))
    return None if found is None else _level_of_match(found)


def _level_of_match(name: re.Match[bytes]) -> int:
    return SURE if name["sure"] else LIKELY if name["likely"] else MAYBE


def _name_at(text: bytes, start: int) -> tuple[int, int] | None:
    """Return how long the name is and its level.

    Few different names stand in a text, so that each is looked at once, with the bytes before it
    where they may be an escape.
    """
    before = text[max(start - 16, 0) : start]
    if not _MAY_ESCAPE.search(before):
        before = b""
    run = _RUN.match(text, start)
    return _known_name(before, text[start : run.end() if run else start])


@lru_cache(maxsize=4096)
def _known_name(before: bytes, run: bytes) -> tuple[int, int] | None:
    found = _NAME.match(before + run, len(before))
    return (found.end() - len(before), _level_of_match(found)) if found else None


def _find_assigned_secret(text: bytes, start: int, end: int, level: int) -> Secret | None:
    """Find the secret behind a name that promises one: quoted, behind an option, or bare."""
    name = text[start:end]
    is_option = name.startswith(b"-") and len(name) > 4
    gap = (is_option and _OPTION_GAP.match(text, end)) or _GAP.match(text, end)
    if not gap:
        return _find_stated_secret(text, start, end, level)
    if is_option and gap[0].isspace():
        return values.secret_at(text, gap.end(), level)
    tight = _COLOURS.sub(b"", gap[0]).endswith(b"=")
    mark = gap["mark"] or b":" if "mark" in gap.re.groupindex else gap[0]
    phrase = _PHRASE.match(text, gap.end()) if mark == b":" and level == SURE else None
    if phrase and not _is_prose(phrase[1]):
        return Secret("password", phrase.start(1), phrase.end(1))
    quote = OpeningQuote(text, gap.end())
    if quote.until:
        value = value_piece(text, quote.start, quote.until)
        is_template = quote.is_template and b"{" in value
        if name.lower().endswith(b"auth"):
            good = _is_basic_auth(value)
        else:
            good = values.is_quoted_secret(value, level if not is_option else SURE)
        if name.isupper() and tight and not name.endswith(b"AUTH"):  # of a shell
            good = good or values.is_strict_secret(value, level, is_upper=True)
        if good and not is_template:
            return Secret("password", quote.start, quote.start, quote.until)
        return None
    return _find_unquoted_secret(
        text, start, quote.start, mark, name, level, is_option=is_option, tight=tight
    )


def _is_prose(phrase: bytes) -> bool:
    return any(word in values.PROSE for word in re.split(rb"[ -]", phrase))


def _is_basic_auth(value: bytes) -> bool:
    """Return whether it is `user:password` in base64: the name `auth` alone is not enough."""
    whole = values.decoded_base64(value) if _BASIC.match(value) else None
    if whole is None:
        return False
    return (b":" in whole and whole.isascii()) or (values.is_mixed(value) and len(value) >= 20)


def _find_stated_secret(text: bytes, start: int, end: int, level: int) -> Secret | None:
    """Find a value in an element of XML or HTML, in a netrc, after `setenv`, or in a sentence."""
    cell = _CELL.match(text, end)
    in_element = (
        text[start - 1 : start] == b"<"
        and text[start - 3 : start - 1] != b"?P"
        and text[end : end + 1] == b">"
    )
    if cell and (in_element or cell[0] != b">"):
        if cell[0].endswith(b'">') and not _ATTRIBUTE.search(text, max(start - 80, 0), end):
            return None
        value = value_piece(text, cell.end(), values.ELEMENT_END)
        good = values.is_quoted_secret(value, SURE if level == SURE else LIKELY)
        return Secret("password", cell.end(), cell.end(), values.ELEMENT_END) if good else None
    if level == SURE and _LOGIN.search(text, max(start - 160, 0), start):
        return values.secret_at(text, end + 1, SURE)
    if text[end : end + 1] in (b" ", b"\t") and _SETS.search(text, max(start - 80, 0), start):
        return values.secret_at(text, end + 1, level)
    if sentence := _IS.match(text, end):
        until = unquoted_end(text, sentence.end())
        value = value_piece(text, sentence.end(), until).rstrip(b".,;:!?)")
        good = not values.is_no_secret(value) and len(value) >= (6 if level == SURE else 12)
        good = good and (values.is_special_value(value) or values.is_random(value))
        good = good or (value.count(b"-") > 2 and values.is_mixed(value) and len(value) >= 16)
        good = good or values.is_base64(value)
        good = good or (level == SURE and value.isalnum() and bool(re.search(rb"[0-9]", value)))
        return Secret("password", sentence.end(), sentence.end(), until) if good else None
    return None


def _find_unquoted_secret(
    text: bytes,
    start: int,
    position: int,
    mark: bytes,
    name: bytes,
    level: int,
    *,
    is_option: bool,
    tight: bool,
) -> Secret | None:
    """Find a value without quotes: in code that is a name more often than a secret."""
    before = text[start - 1 : start]
    in_query = before in (b"?", b"&") and mark == b"="
    shell = (mark == b"=" and tight and (name.isupper() or is_option)) or mark == b"\0"
    header_line = mark == b":" and name.lower().startswith((b"x-", b"private-"))
    until = unquoted_end(text, position, in_query)
    value = value_piece(text, position, until)
    if mark in _COMPARISONS:
        return None
    if name.lower().endswith(b"auth"):
        return Secret("password", position, position, until) if _is_basic_auth(value) else None
    if in_query or shell or header_line:
        good = values.is_strict_secret(value, level, name.isupper())
    else:
        code = values.code_piece(text, position)
        good = values.is_unquoted_secret(value, code, level, equals=mark == b"=")
        if not good and level == SURE and values.is_word_secret(value):
            line = _LINE.search(text, max(start - 48, 0), start)
            good = bool(line and _LINE_REST.match(text, position + len(value)))
            alone = mark == b"=" and tight and before in (b" ", b"")
            good = good or (alone and _TIGHT_REST.match(text, position + len(value)) is not None)
    return Secret("password", position, position, until) if good else None


# --- tables -------------------------------------------------------------------------------------

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


class _SecretTable(Struct, frozen=True):
    """A table, as its first row describes it."""

    separator: bytes
    count: int
    columns: tuple[tuple[int, int], ...]  #: (which, the level of its heading)
    starts: tuple[int, ...]  #: where in its line each heading begins


def _find_table_header(text: bytes, start: int, end: int) -> Iterator[AskLater]:
    """Ask for the rows of a table, where the name is a heading in its first row."""
    separator = _column_separator(text, start, end)
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
    if opened := _OPENS.match(line[: start - begin]):
        line = line[opened.end() :]
    if _NO_HEADINGS.search(line):
        return
    indent = len(line) - len(line.lstrip(b" "))
    spans = _row_fields(line.strip(b" "), separator)
    fields = [line[indent + left : indent + right] for left, right in spans]
    inner = fields[1:-1] if separator == b"|" and not (fields[0] or fields[-1]) else fields
    if not 2 <= len(inner) <= MOST_COLUMNS or not all(map(_HEADING.match, inner)):
        return
    named = [(number, _level_of(field)) for number, field in enumerate(fields)]
    columns = tuple((number, level) for number, level in named if level is not None)
    if not columns:
        return
    starts = tuple(indent + left for left, _ in spans)
    table = _SecretTable(separator, len(fields), columns, starts)
    yield AskLater(line_end.end(), partial(_find_row_secrets, table))


def _column_separator(text: bytes, start: int, end: int) -> bytes:
    """Return what separates the columns of the table whose heading is a secret's name."""
    found = _SEPARATOR.match(text, end) or _BEFORE.match(text[max(start - 48, 0) : start][::-1])
    if found:
        return b"\t" if b"t" in found[1] else found[1]
    return b" " if _BLANKS.match(text, end) else b""


def _row_fields(line: bytes, separator: bytes) -> list[tuple[int, int]]:
    """Return where the fields of a row are, without their quotes and blanks."""
    positions: list[tuple[int, int]] = []
    position = 0
    while len(positions) <= MOST_COLUMNS:
        found = _FIELDS[separator].match(line, position)
        assert found
        start, end = found.span(1)
        left = _FIELD_LEFT.match(line, start, end)
        begin = left.end() if left else start
        right = _FIELD_RIGHT.search(line, begin, end)
        positions.append((begin, right.start() if right else end))
        if found.end() == found.end(1):
            break
        position = found.end()
    return positions


def _find_row_secrets(
    table: _SecretTable, text: bytes, position: int
) -> Iterator[Secret | AskLater]:
    """Find the secrets in a row of a table, and ask for the next row."""
    ending = _BREAK.search(text, position, position + _ROW)
    end = ending.start() if ending else len(text)
    if end - position > _ROW:
        return
    line = text[position:end]
    if not _BORDER.match(line):
        cut = None if line.lstrip().startswith(b'"') else _STRING_END.search(line)
        positions = _row_cells(line[: cut.start()] if cut else line, table)
        if not positions:
            return
        for column, level in table.columns:
            start, stop = positions[column]
            value = line[start:stop]
            if value and _is_secret_cell(value, level):
                yield Secret("password", position + start, position + stop)
        if cut:
            return
    if ending:
        yield AskLater(ending.end(), partial(_find_row_secrets, table))


def _row_cells(line: bytes, table: _SecretTable) -> list[tuple[int, int]]:
    """Return where the cells of a row are; none if it is no row.

    Between blanks a cell may be empty or fill its column, and begins where its heading does, or
    behind that after one that was too long. What stands below the first heading alone is any line.
    """
    positions = _row_fields(line, table.separator)
    if len(positions) == table.count:
        return positions
    if table.separator != b" ":
        return []
    words = {found.start(): found.end() for found in _WORD.finditer(line)}
    if len(words) == table.count and all(map(int.__ge__, words, table.starts)):
        return [*words.items()]
    starts = {left for left, right in positions if left < right}
    if not starts <= set(table.starts) or starts <= {table.starts[0]}:
        return []
    return [(start, words.get(start, start)) for start in table.starts]


def _is_secret_cell(value: bytes, level: int) -> bool:
    """Tell whether the cell of a table below a secret's name is a secret."""
    if values.is_no_secret(value) or b" " in value.strip():
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


def kubernetes_secrets(text: bytes, position: int) -> Iterator[Secret | AskLater]:
    """Find what stands below `data:` and `stringData:`, whatever its keys are called."""
    data = START.match(text, position) and _YAML_DATA.match(text, position)
    pair = _YAML_PAIR if data else _JSON_PAIR
    data = data or (START.match(text, position) and _JSON_DATA.match(text, position))
    if not data:
        return
    kinds = _kubernetes_kinds(text, position)
    if b"Secret" in kinds or (not kinds and pair is _YAML_PAIR):
        before = _INDENT.search(text, max(position - 48, 0), position)
        indent = len(before[1]) if before else 0
        yield from _find_pair_secret(pair, indent, b"Secret" in kinds, text, data.end())


def _kubernetes_kinds(text: bytes, position: int) -> set[bytes]:
    """Return the kinds of the document around, as far as the rule sees."""
    before = text[max(position - BEHIND, 0) : position].rpartition(b"\n---")[2]
    after = text[position : position + AHEAD].partition(b"\n---")[0]
    return {found[1] for piece in (before, after) for found in _KIND.finditer(piece)}


def _find_pair_secret(
    pair: re.Pattern[bytes], indent: int, is_secret: bool, text: bytes, position: int
) -> Iterator[Secret | AskLater]:
    """Find the secret of one pair below `data:` in Kubernetes, and ask for the next pair."""
    found = pair.match(text, position, position + _ROW)
    if not found or (pair is _YAML_PAIR and len(found[1]) <= indent):
        return
    value = found["value"]
    start, end = found.span("value")
    if value and (is_secret or _is_readable(value)) and not values.is_no_secret(value):
        yield Secret("kubernetes", start, end, None if end < position + _ROW else _PAIR_END)
    if pair is _YAML_PAIR:
        ending = _BREAK.search(text, end, position + _ROW)
        if ending and _PAIR_REST.fullmatch(text, end, ending.start()):
            yield AskLater(ending.end(), partial(_find_pair_secret, pair, indent, is_secret))
    elif closing := _CLOSING.match(text, end):
        yield AskLater(closing.end(), partial(_find_pair_secret, pair, indent, is_secret))


def _is_readable(value: bytes) -> bool:
    whole = values.decoded_base64(value) if _BASE64.match(value) and not len(value) % 4 else None
    return whole is not None and all(32 <= byte < 127 or byte in b"\r\n\t" for byte in whole)
