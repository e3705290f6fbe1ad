"""Secrets by the name that they are given to: `password = "…"`, in all the ways to write that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from stream.redaction import values
from stream.redaction.rows import header
from stream.redaction.rules import AFTER_NO_LETTER, COLOUR, Found, Next
from stream.redaction.values import LIKELY, MAYBE, SURE, Quote, bare_end, piece

#: The words that a name ends in, by how much they say alone.
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
_SAYS = re.compile(
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


def level_of(name: bytes) -> int | None:
    """What a name says of what it is given; None: nothing."""
    found = _WHOLE.match(name.strip().replace(b" ", b"_"))
    return None if found is None else _level(found)


def _level(name: re.Match[bytes]) -> int:
    return SURE if name["sure"] else LIKELY if name["likely"] else MAYBE


def assignment(text: bytes, place: int) -> Iterator[Found | Next]:
    before = _NAME_BACKWARDS.match(text[max(place - 64, 0) : place][::-1])
    start = place - (before.end() if before else 0)
    rest = _COLOUR_REST.match(text, start, place)
    if rest and _COLOUR_BEFORE.search(text, max(start - 24, 0), rest.end()):
        start = rest.end()
    name = _name_at(text, start)
    if name and start + name[0] > place:
        end, level = start + name[0], name[1]
    elif two := _TWO_WORDS.match(text, place):
        end, level = two.end(), LIKELY
    else:
        return
    found = _assigned(text, start, end, level)
    if found and level != SURE and _repeats(text[start:end], found, text):
        return
    if found:
        yield found
    else:
        yield from header(text, start, end, level_of)


def _repeats(name: bytes, found: Found, text: bytes) -> bool:
    """Say whether the value has the words of the name in it: a type or a function, as in
    `private_key: Ed25519PrivateKey`."""
    if found.until is None or not _TWO.search(name):
        return False
    value = piece(text, found.start, found.until)
    return _SIGNS.sub(b"", name).lower() in _SIGNS.sub(b"", value).lower()


def _name_at(text: bytes, start: int) -> tuple[int, int] | None:
    """How long the name is and what it says. Few different ones stand in a text, so that each is
    looked at once, with the bytes before it where they may be an escape."""
    before = text[max(start - 16, 0) : start]
    if not _MAY_ESCAPE.search(before):
        before = b""
    run = _RUN.match(text, start)
    return _known_name(before, text[start : run.end() if run else start])


@lru_cache(maxsize=4096)
def _known_name(before: bytes, run: bytes) -> tuple[int, int] | None:
    found = _NAME.match(before + run, len(before))
    return (found.end() - len(before), _level(found)) if found else None


def _assigned(text: bytes, start: int, end: int, level: int) -> Found | None:
    name = text[start:end]
    is_option = name.startswith(b"-") and len(name) > 4
    gap = (is_option and _OPTION_GAP.match(text, end)) or _GAP.match(text, end)
    if not gap:
        return _beside(text, start, end, level)
    if is_option and gap[0].isspace():
        return values.secret_at(text, gap.end(), level)
    tight = _COLOURS.sub(b"", gap[0]).endswith(b"=")
    mark = gap["mark"] or b":" if "mark" in gap.re.groupindex else gap[0]
    phrase = _PHRASE.match(text, gap.end()) if mark == b":" and level == SURE else None
    if phrase and not _is_prose(phrase[1]):
        return Found("password", phrase.start(1), phrase.end(1))
    quote = Quote(text, gap.end())
    if quote.until:
        value = piece(text, quote.start, quote.until)
        is_template = quote.is_template and b"{" in value
        if name.lower().endswith(b"auth"):
            good = _is_basic(value)
        else:
            good = values.is_quoted_secret(value, level if not is_option else SURE)
        if name.isupper() and tight and not name.endswith(b"AUTH"):  # of a shell
            good = good or values.is_strict_secret(value, level, is_upper=True)
        if good and not is_template:
            return Found("password", quote.start, quote.start, quote.until)
        return None
    return _bare(text, start, quote.start, mark, name, level, is_option=is_option, tight=tight)


def _is_prose(phrase: bytes) -> bool:
    return any(word in values.PROSE for word in re.split(rb"[ -]", phrase))


def _is_basic(value: bytes) -> bool:
    """`user:password` in base64: `auth` alone says little."""
    from binascii import Error, a2b_base64

    if not _BASIC.match(value):
        return False
    try:
        whole = a2b_base64(value.rstrip(b"=") + b"=" * (-len(value.rstrip(b"=")) % 4))
    except Error:
        return False
    return (b":" in whole and whole.isascii()) or (values.is_mixed(value) and len(value) >= 20)


def _beside(text: bytes, start: int, end: int, level: int) -> Found | None:
    """In an element of XML or HTML, in a netrc, after `setenv`, and as a sentence says it."""
    cell = _CELL.match(text, end)
    in_element = (
        text[start - 1 : start] == b"<"
        and text[start - 3 : start - 1] != b"?P"
        and text[end : end + 1] == b">"
    )
    if cell and (in_element or cell[0] != b">"):
        if cell[0].endswith(b'">') and not _ATTRIBUTE.search(text, max(start - 80, 0), end):
            return None
        value = piece(text, cell.end(), values.ELEMENT_END)
        good = values.is_quoted_secret(value, SURE if level == SURE else LIKELY)
        return Found("password", cell.end(), cell.end(), values.ELEMENT_END) if good else None
    if level == SURE and _LOGIN.search(text, max(start - 160, 0), start):
        return values.secret_at(text, end + 1, SURE)
    if text[end : end + 1] in (b" ", b"\t") and _SETS.search(text, max(start - 80, 0), start):
        return values.secret_at(text, end + 1, level)
    says = _SAYS.match(text, end)
    if says:
        until = bare_end(text, says.end())
        value = piece(text, says.end(), until).rstrip(b".,;:!?)")
        good = not values.is_none(value) and len(value) >= (6 if level == SURE else 12)
        good = good and (values.is_special(value) or values.is_random(value))
        good = good or (value.count(b"-") > 2 and values.is_mixed(value) and len(value) >= 16)
        good = good or values.is_base64(value)
        good = good or (level == SURE and value.isalnum() and bool(re.search(rb"[0-9]", value)))
        return Found("password", says.end(), says.end(), until) if good else None
    return None


def _bare(
    text: bytes,
    start: int,
    place: int,
    mark: bytes,
    name: bytes,
    level: int,
    *,
    is_option: bool,
    tight: bool,
) -> Found | None:
    """A value without quotes: in code that is a name more often than a secret."""
    before = text[start - 1 : start]
    in_query = before in (b"?", b"&") and mark == b"="
    shell = (mark == b"=" and tight and (name.isupper() or is_option)) or mark == b"\0"
    header_line = mark == b":" and name.lower().startswith((b"x-", b"private-"))
    until = bare_end(text, place, in_query)
    value = piece(text, place, until)
    if mark in _COMPARISONS:
        return None
    if name.lower().endswith(b"auth"):
        return Found("password", place, place, until) if _is_basic(value) else None
    if in_query or shell or header_line:
        good = values.is_strict_secret(value, level, name.isupper())
    else:
        code = values.code_piece(text, place)
        good = values.is_bare_secret(value, code, level, equals=mark == b"=")
        if not good and level == SURE and values.is_word_secret(value):
            line = _LINE.search(text, max(start - 48, 0), start)
            good = bool(line and _LINE_REST.match(text, place + len(value)))
            alone = mark == b"=" and tight and before in (b" ", b"")
            good = good or (alone and _TIGHT_REST.match(text, place + len(value)) is not None)
    return Found("password", place, place, until) if good else None
