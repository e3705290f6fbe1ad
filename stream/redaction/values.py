"""The form of secrets: what a rule finds, where a value ends, and whether it is a secret.

A rule is asked about a position and finds what is secret around it. It sees a bounded piece before
and after the position, so that its answer cannot depend on how a stream was cut. A placeholder, a
lookup, a piece of code, a word of prose is no secret; what only begins like one of them is: a
password may begin with any character. The secret values of an environment are known by the names of
their variables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct

BEHIND = 2048  #: bytes before the position that a rule may look at
AHEAD = 2560  #: bytes after it
LOOK = 128  #: the longest end of a secret, with what has to follow it

Pattern = re.Pattern[bytes]


class Secret(Struct, frozen=True):
    """A secret that a rule has found."""

    kind: str
    start: int
    end: int  #: of what is known to belong to it
    until: Pattern | None = None  #: it goes on from `end` to where this begins


class AskLater(Struct, frozen=True):
    """A later position that a rule waits for: the next row of a table."""

    position: int
    rule: SecretRule


SecretRule = Callable[[bytes, int], Iterable[Secret | AskLater]]


class Anchor(Struct, frozen=True):
    """A word that no secret of the rule goes without. The rule is asked about its first byte."""

    word: bytes
    rule: SecretRule
    any_case: bool = False
    then: bytes = b""  #: what the word is followed by, as a pattern


#: what a terminal obeys, as it is and written as an escape
COLOUR = rb"(?:(?:\x1b|\\{1,7}(?:u001[bB]|x1[bB]|0?33|e))\[[0-9;]{0,16}[A-Za-z])"

# --- where a word begins ------------------------------------------------------------------------

_COLOUR_CODES = [rb"\[[0-9;]{%d}[A-Za-z]" % length for length in range(9)]
#: what ends as a word does, and is none: escapes of shells, source, JSON and URLs, and what a
#: terminal obeys, as it is and written as an escape
_ESCAPES = (
    *(rb"\\[0-7abefnrtv]", rb"\\[0-7]{2}", rb"\\[0-7]{3}"),
    *(rb"\\x[0-9A-Fa-f]{2}", rb"\\u[0-9A-Fa-f]{4}", rb"%[0-9A-Fa-f]{2}"),
    *(escape + colour for escape in (rb"\x1b", rb"(?:1[bB]|33|\\e)") for colour in _COLOUR_CODES),
)
_ESCAPED = b"|".join(rb"(?<=%s)" % escape for escape in _ESCAPES)
EDGE = re.compile(rb"(?<![A-Za-z0-9])|" + _ESCAPED)  #: not in the middle of a word
AFTER_NO_LETTER = rb"(?:(?<![A-Za-z])|" + _ESCAPED + b")"
START = re.compile(AFTER_NO_LETTER)  #: the same, where a figure is no part of a word

#: how much the word before it says alone: `password`, `secret`, `token`
SURE, LIKELY, MAYBE = range(3)
_SEEN = 256  #: bytes of a value that decide

# --- where it ends ------------------------------------------------------------------------------

_ESCAPED_END = (
    rb"\\+(?:(?:0?33|e)\[|[\"'`]|[nrtbf0](?![A-Za-z0-9])|[nrt]|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|\Z)"
)
_CLOSING = rb"[;,)\]}&|]{1,16}(?=[\s\"'`\\\0]|\Z)|</|&quot;|&#3[49];|&lt;"
_QUERY_CLOSING = rb"[&#]|" + _CLOSING
_QUOTES = (b"", b'"', b"'", b"`", b"\"'", b'"`', b"'`", b"\"'`")


def _unquoted_end(quotes: bytes, closing: bytes) -> Pattern:
    """Only a quote that is open before the value can end it."""
    stops = rb"[\s\0\x1b%s]" % quotes
    return re.compile(stops + rb"|" + _ESCAPED_END + rb"|" + closing)


_UNQUOTED_ENDS = {quotes: _unquoted_end(quotes, _CLOSING) for quotes in _QUOTES}
_QUERY_ENDS = {quotes: _unquoted_end(quotes, _QUERY_CLOSING) for quotes in _QUOTES}
_CODE_END = re.compile(rb"[\s\x1b\"'`\\\0<>,;(){}\[\]|&]")
ELEMENT_END = re.compile(rb"</|[\r\n\0]|\\+[nr]|\\u003[cC]")
LINE_END = re.compile(rb"[\r\n\"'`\\\0]")

_QUOTED = {
    (depth, quote): re.compile(
        rb"(?<!\\)(?:\\{%d}){0,6}\\{%d}%s|[\r\n\0]|\\{64}" % (2 * depth + 2, depth, quote)
        if depth
        else rb"(?<!\\)(?:\\\\){0,12}%s|[\r\n\0]|\\{64}" % quote
    )
    for depth in (0, 1, 3, 7)
    for quote in (b'"', b"'", b"`")
}
_ENTITIES = {
    entity: re.compile(re.escape(entity) + rb"|[\r\n\0\"]")
    for entity in (b"&quot;", b"&#34;", b"&#39;", b"&apos;")
}
_OPEN_QUOTE = re.compile(rb"([bBfFrRuU@$]{0,2})(\\{0,7})([\"'`]|&quot;|&#3[49];|&apos;)")
_COLOURS = re.compile(COLOUR + rb"{0,3}")


class OpeningQuote:
    """The quote that opens a value at a position, behind colours, if there is one."""

    def __init__(self, text: bytes, position: int) -> None:
        if colours := _COLOURS.match(text, position):
            position = colours.end()
        found = _OPEN_QUOTE.match(text, position)
        key = (len(found[2]), found[3]) if found else (0, b"")
        self.until = _QUOTED.get(key) or _ENTITIES.get(key[1])
        self.start = found.end() if found and self.until else position
        self.is_template = bool(found and b"f" in found[1].lower())

    def __bool__(self) -> bool:
        return self.until is not None


def unquoted_end(text: bytes, position: int, in_query: bool = False) -> Pattern:
    """Return where a value without quotes ends, by the quotes that are open in its line."""
    lowest = max(position - BEHIND // 2, 0)
    breaks = max(text.rfind(b"\n", lowest, position), text.rfind(b"\0", lowest, position))
    before = text[max(breaks + 1, lowest) : position]
    is_cut = breaks < lowest and lowest > 0  # a line so long is a document in one line
    quotes = b"".join(
        quote
        for quote in (b'"', b"'", b"`")
        if before.count(quote) % 2 or (is_cut and quote != b"'")
    )
    return (_QUERY_ENDS if in_query else _UNQUOTED_ENDS)[quotes]


def value_piece(text: bytes, start: int, until: Pattern) -> bytes:
    """Return as much of a value as decides whether it is a secret."""
    end = until.search(text, start, start + _SEEN + LOOK)
    return text[start : min(end.start() if end else start + _SEEN, start + _SEEN)]


# --- what is none -------------------------------------------------------------------------------

_PLACEHOLDER = re.compile(
    rb"\[redacted:[a-z0-9-]+:(?:\d+|more)\]"
    rb"|\*{3}|\.{3}|\xe2\x80\xa6|x{4}|X{4}"
    rb"|(?i:your[_ -]|process\.env|os\.environ|env\.|secrets\.)"
    rb"|\$\{[\w\[\]@*#!.:-]|\$\([A-Za-z<./(]|\$\{\{|\$[\d@*#?!$-]?(?:[\"'\s]|\Z)|\$\$(?:\W|\Z)"
    rb"|\{\{|\{%|\{[A-Za-z_][\w.]*(?:[!:\[(][^{}]{0,80})?\}|\{(?:[\s\"'\\}]|\Z)|\{[A-Za-z_]\w*:"
    rb"|%[-+ #0]?\d{0,3}(?:\.\d{1,3})?l{0,2}[sdrvqxfiuc](?![\w])|%\(\w+\)|%[{@]|%[A-Za-z_]+%\Z"
    rb"|\[(?:[\]\s\"'\\]|\Z|[-\d:]{0,8}\])"
    rb"|<%|<\?|<=?(?:[\s\"'<]|\Z)|</?[a-z]{1,12}(?:[\s/>])"
    rb"|[,;)](?:[\s\"'\\,;)}\]]|\Z|[A-Za-z_]*(?:[=:(]|\Z))"
    rb"|-{1,2}>?\Z|--?[A-Za-z]\Z|--[a-z]|-\d{1,9}\Z"
    rb"|[a-z][a-z0-9+]{1,7}://"
    rb"|[\"'`][,.;:)}\]](?:[\s\"'`]|\Z)"  # the end of a quotation
    rb"|[a-z:]{2,24}:`"  # a role of reStructuredText
    rb"|[^\s\[]{0,64}\[[^\]]{0,64}(?:a-z|A-Z|0-9)"  # a regular expression
)
_WRAPPED = re.compile(rb"[<\[({%$]{1,2}([A-Za-z0-9][A-Za-z0-9 _.:/|-]{0,60})[>\])}%]{0,2}[.,;:]?\Z")
_LOOKUP = re.compile(rb"\$([A-Za-z_]\w{0,60})(?:[-.:/,;)\]\[>\"'\\].*)?\Z", re.DOTALL)
_VERSION = re.compile(rb"[\^~<>=v]{0,3}\d{1,5}(?:\.[\dx*]{1,5}){1,3}(?:[-+][\w.-]{0,40})?\Z")
_BASE64 = re.compile(rb"[A-Za-z0-9+/]{16,512}={0,2}\Z")
_NUMBER = re.compile(rb"0[xX][0-9a-fA-F]{1,16}\Z")
_NO_SECRET = re.compile(
    rb"(?i:true|false|null|none|undefined|nil|yes|no|string|str|bytes|int|bool|object|any|optional"
    rb"|required|hidden|secret|password|passwd|token|value|empty)\Z"
)
_PROMPT = re.compile(rb"(?i:passw|passphrase|enter|must|requir|invalid|your|please|incorrect)")
_WORDS = re.compile(rb"(?:[A-Za-z]{1,24}+[ _./:@-]{0,2}+){1,20}+\Z")
_PLAIN_PATH = re.compile(rb"(?:~|\.{0,2})/(?:[a-z0-9_.-]++|[A-Z][a-z]++|/)*+\Z")
_CHAIN = re.compile(rb"[!&*]?[A-Za-z_]\w*(?:(?:\??\.|->|::)[A-Za-z_]\w*)+[,;)\]}]*\Z")
_CALL = re.compile(rb"[!&*(\[-]{0,3}([A-Za-z_][\w.:]*)[(\[{]")
_SHORT_MIX = re.compile(rb"[a-z][A-Z]|[A-Z]{2}[a-z]|[0-9][A-Za-z]")
_NO_WORD = re.compile(
    rb"(?i)[bcdfghjklmnpqrstvwxz]{6}|(?<![a-z])[bcdfghjklmnpqrstvwxz]{5}(?=[a-z]{4})"
)
_HYPHENS = re.compile(rb"[a-z]{3,9}(?:-[a-z]{3,9}){2,8}\Z")
_PARTS = re.compile(rb"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_CODE = re.compile(rb"[!&*(\[{~+-]{0,3}([A-Za-z_]\w*)((?:\??\.|->|::)\w+)*"
                   rb"(?:[(\[{<].*|[,;:)\]}?!]*)\Z",
                   re.DOTALL)  # fmt: skip
_SPECIAL = re.compile(rb"[^\w\s]")
_METAVAR = re.compile(rb"[A-Z][A-Z_-]*\Z")
PROSE = frozenset(
    b"""
a about above access after all allows also always an and any are argument arguments array as at
auth authentication based be been before below but by can cannot command credentials default
disabled does doesn either empty enabled expired failed field file for from generated given has
have header if in incorrect input instead invalid is isn it its key like line login may method
missing mode must name need needed needs not of off on only option optional options or override
parameter parsing password passwords path policy prefix prompt provided read required requires
reset same secret see set shall should since so specified specify stdin string such syntax takes
text than that the then there this to token tokens too type unset unless until update use used user
username uses using valid validation value values var variable via was when where which while will
with without would you your true false none null string stringarray int bool interactive flag flags
""".split()
)


def is_mixed(value: bytes) -> bool:
    """Return whether a value has letters and digits."""
    return bool(re.search(rb"[0-9]", value) and re.search(rb"[A-Za-z]", value))


def is_name(value: bytes) -> bool:
    """Return whether a value is made of words, as the names in a program are.

    A random text falls into short pieces.
    """
    parts: list[bytes] = _PARTS.findall(value)
    digits = sum(part.isdigit() for part in parts)
    letters = sum(len(part) for part in parts if not part.isdigit())
    words = len(parts) - digits
    if len(value) <= 3:
        return value.isalnum() and not _SHORT_MIX.search(value)
    if len(value) >= 8 and _NO_WORD.search(value):
        return False
    least = 3 if len(value) >= 12 else 2.5
    return digits <= 1 and letters >= least * words


def is_no_secret(value: bytes) -> bool:
    """Return whether a value is a placeholder, a lookup, a version or a path."""
    if any(form.match(value) for form in (_PLACEHOLDER, _VERSION, _NO_SECRET, _PLAIN_PATH)):
        return True
    wrapped = _WRAPPED.match(value) or _LOOKUP.match(value)
    return bool(wrapped and all(map(is_name, re.findall(rb"\w+", wrapped[1]))))


def is_code(value: bytes) -> bool:
    """Return whether a value is a name, an attribute, a call or an element of a program."""
    found = _CODE.match(value)
    return bool(
        found and is_name(found[1]) and not value[found.end(1) :].strip(b",;:)]}?!").isdigit()
    )


def is_special_value(value: bytes) -> bool:
    """Return whether a value has characters of several classes, in no order that code has."""
    if len(value) < 6 or is_code(value) or not _SPECIAL.search(value.strip(b",;:)]}\"'([{.")):
        return False
    classes = sum(
        bool(re.search(one, value))
        for one in (rb"[a-z]", rb"[A-Z]", rb"[0-9]", rb"[!#$%&*+?@^~=,<>|;-]")
    )
    marks = {byte for byte in value if byte in b"!#$%&*+?@^~=<>|;"}
    return classes >= 3 and (bool(re.search(rb"[0-9]", value)) or len(marks) >= 3)


def is_random(value: bytes) -> bool:
    """Return whether a value is letters, or letters and digits, that no name is made of."""
    return len(value) >= 8 and value.isalnum() and not is_name(value) and not value.isdigit()


def is_base64(value: bytes) -> bool:
    """Return whether a value is long, and no path: between its signs are no words."""
    return bool(_BASE64.match(value)) and is_random(re.sub(rb"[+/=]", b"", value))


def decoded_base64(value: bytes) -> bytes | None:
    """Return what a value means in base64, or None where it means nothing."""
    from binascii import Error, a2b_base64

    bare = value.rstrip(b"=")
    try:
        return a2b_base64(bare + b"=" * (-len(bare) % 4))
    except Error:
        return None


def is_quoted_secret(value: bytes, level: int) -> bool:
    """Return whether a value in quotes is a secret."""
    if is_no_secret(value):
        return False
    if level == SURE:
        return len(value) >= 4 and not (b" " in value and _PROMPT.search(value))
    if len(value) < 8 or re.search(rb"\s", value) or _NUMBER.match(value):
        return False
    return (
        is_random(value)
        or (is_mixed(value) and not is_chain(value))
        or (len(value) >= 16 and not _WORDS.match(value))
    )


def is_secret_argument(value: bytes, level: int, after: bytes) -> bool:
    """Return whether an argument of an option is a secret, and no word of a help text."""
    if is_no_secret(value) or _METAVAR.match(value) or _CALL.match(value):
        return False
    plain = value.rstrip(b".,;:)]}!?").lower()
    if plain in PROSE or _NO_SECRET.match(plain) or after.startswith((b"  ", b"\t")):
        return False
    if level == SURE:
        return len(value) >= 4 and not (plain.isalpha() and len(plain) < 5)
    return len(value) >= 8 and (is_mixed(value) or is_random(value) or len(value) >= 16)


def is_strict_secret(value: bytes, level: int, is_upper: bool) -> bool:
    """Return whether a value is a secret in a query, an environment file or a header."""
    if is_no_secret(value) or (_CALL.match(value) and is_code(value)):
        return False
    if len(value) < (4 if level == SURE else 6):
        return False
    return not (is_upper and value.isupper() and _WORDS.match(value))


def is_unquoted_secret(value: bytes, code: bytes, level: int, *, equals: bool) -> bool:
    """Return whether a value without quotes is a secret. `code`: the value, if it is code."""
    if is_no_secret(value) or _NUMBER.match(value):
        return False
    if is_special_value(value) and (level != MAYBE or len(value) >= 12):
        return True
    core = value.strip(b"!#$%&*+,-.:;<=>?@[]^{|}~()")
    if is_base64(value) or (is_random(core) and not _CALL.match(value)):
        return level == SURE or is_mixed(core) or len(core) >= 12
    digits = level == SURE and code.isdigit() and len(code) >= (8 if equals else 6)
    shaped = len(code) >= (6 if level == SURE else 8) and is_mixed(code)
    return (digits or shaped) and not is_chain(code) and not is_call(value, 0)


def is_word_secret(value: bytes) -> bool:
    """Return whether plain letters may be a secret, alone in a line with their name."""
    return (
        len(value) >= 8
        and bool((value.isalpha() and value.islower()) or _HYPHENS.match(value))
        and value not in PROSE
        and not _PROMPT.search(value)
    )


def code_piece(text: bytes, start: int) -> bytes:
    """Return the value that begins there, if it is code."""
    return value_piece(text, start, _CODE_END)


def is_chain(value: bytes) -> bool:
    """Return whether a value is names with dots between them, the last of which is not random."""
    last = value.rpartition(b".")[2]
    is_key = len(last) >= 20 and is_mixed(last) and is_random(last)
    return bool(_CHAIN.match(value)) and not is_key


def is_call(text: bytes, start: int) -> bool:
    """Return whether a function call begins there."""
    found = _CALL.match(text, start)
    return bool(found and is_name(found[1]))


def secret_at(text: bytes, position: int, level: int) -> Secret | None:
    """Find a secret where only a secret can follow, in quotes or without."""
    quote = OpeningQuote(text, position)
    until = quote.until or unquoted_end(text, quote.start)
    value = value_piece(text, quote.start, until)
    after = text[quote.start + len(value) : quote.start + len(value) + 2] if not quote else b""
    good = is_quoted_secret(value, level) if quote else is_secret_argument(value, level, after)
    return Secret("password", quote.start, quote.start, until) if good else None


assert AHEAD > _SEEN + LOOK


LONGEST = 2048  #: bytes of one form; a longer one is looked for in pieces
LINE = 24  #: bytes without a blank that are a secret for themselves, in one of several lines
SHORTEST = 6  #: characters of a value

_SECRET = re.compile(
    r"KEYS?|PASS|PWD|PAT|AUTH|COOKIES?|PRIVATE|DSN|JWT|CREDS?|BEARER"
    r"|\w*(?:PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN|APIKEY|ACCESSKEY|PRIVATEKEY|CREDENTIAL)S?\d*"
)
#: a name with one of these at its end is *about* a secret
_ABOUT = """
NAME TYPE METHOD FILE PATH DIR SOCK SOCKET HOST PORT USER USERNAME TTL TIMEOUT LENGTH SIZE COUNT
ALGORITHM ENABLED DISABLED REGION VERSION PROVIDER HELPER ASKPASS
"""
_PLAIN_WORDS = """
true false none null undefined enabled disabled default example password passwd secret changeme
required optional unknown
"""
_A_PATH = re.compile(r"(?:~|\.{0,2})/(?:[a-z0-9_.-]++|[A-Z][a-z]++|/)*+|[A-Za-z]:[\\/][\w\\/ .-]*")
_USERINFO = re.compile(r"://[^\s/@:]*:([^\s/@]+)@")
_SMALL_NUMBER = re.compile(r"[+-]?\d{1,9}(?:\.\d+)?")
_ONE_WORD = re.compile(r"[a-z]{1,9}|[A-Z]{1,9}|[A-Z][a-z]{1,8}")


def secret_values(environment: Mapping[str, str]) -> list[str]:
    """Return the secret values of an environment, the longest first.

    A variable is secret by its name, but an obviously plain value is none: a plain word that is
    replaced wherever it stands would spoil the evidence. The password in a URL is a secret whatever
    the variable is called.
    """
    found = {value.strip() for name, value in environment.items() if names_secret(name)}
    found.update(url[1] for value in environment.values() if (url := _USERINFO.search(value)))
    return sorted(
        (value for value in found if not is_plain_value(value)), key=lambda v: (-len(v), v)
    )


def names_secret(name: str) -> bool:
    """Return whether a variable of that name holds a secret."""
    parts = [part for part in re.split(r"[^A-Z0-9]+", name.upper()) if part]
    return bool(parts) and parts[-1] not in _ABOUT.split() and any(map(_SECRET.fullmatch, parts))


def is_plain_value(value: str) -> bool:
    """Return whether a value is too short, a word, a small number or a path."""
    return (
        len(value) < SHORTEST
        or value.lower() in _PLAIN_WORDS.split()
        or any(form.fullmatch(value) for form in (_A_PATH, _SMALL_NUMBER, _ONE_WORD))
    )


def forms_of_secret(value: str) -> Iterator[bytes]:
    """Yield the forms in which a value may turn up, in pieces no longer than LONGEST.

    They are the value as it is, in JSON, in a URL and in base64, and each of its long lines.
    """
    raw = value.encode("utf-8", "surrogateescape")
    seen = set()
    for form in (
        raw,
        *_json_forms(value),
        *_url_forms(raw),
        *_base64_forms(raw),
        *_line_forms(raw),
    ):
        for start in range(0, len(form), LONGEST):
            part = form[start : start + LONGEST]
            if len(part) >= SHORTEST and part not in seen:
                seen.add(part)
                yield part


def _json_forms(value: str) -> Iterator[bytes]:
    """Yield the value in a string of JSON, and in a document that is itself such a string."""
    for ascii_only in (True, False):
        once = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        yield once.encode("utf-8", "surrogateescape")
        yield once.replace("/", "\\/").encode("utf-8", "surrogateescape")
        yield json.dumps(once, ensure_ascii=ascii_only)[1:-1].encode("utf-8", "surrogateescape")


def _line_forms(raw: bytes) -> Iterator[bytes]:
    lines = raw.split()
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= LINE)


def _url_forms(raw: bytes) -> Iterator[bytes]:
    """Yield a secret's value in the ways to write it in a URL."""
    from urllib.parse import quote_from_bytes

    for kept in ("", "/"):
        upper = quote_from_bytes(raw, kept).encode()
        yield upper
        yield re.sub(rb"%[0-9A-F]{2}", lambda escape: escape[0].lower(), upper)
        yield upper.replace(b"%20", b"+")


def _base64_forms(raw: bytes) -> Iterator[bytes]:
    """Yield the value in base64 at each of the three positions that it can have in a longer text.

    The characters that depend on its neighbours are left out.
    """
    from binascii import b2a_base64

    for before in range(3):
        whole = b2a_base64(bytes(before) + raw, newline=False).rstrip(b"=")
        first = (0, 2, 3)[before]
        last = len(whole) - bool((before + len(raw)) % 3)
        if last - first >= 8:
            yield whole[first:last]
            yield whole[first:last].translate(bytes.maketrans(b"+/", b"-_"))
