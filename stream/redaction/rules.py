"""What a secret looks like: where to begin to look, and where it starts and ends.

Every rule sees a bounded piece before and after the place where its word was found, so that its
answer cannot depend on how a stream was cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec import Struct

BEHIND = 2048  #: bytes before the place that a rule may look at
AHEAD = 2560  #: bytes after it
LOOK = 128  #: the longest end of a secret, with what has to follow it

Pattern = re.Pattern[bytes]


class Found(Struct, frozen=True):
    kind: str
    start: int
    end: int  #: of what is known to belong to it
    until: Pattern | None = None  #: it goes on from `end` to where this begins


Rule = Callable[[bytes, int], Found | None]


class Anchor(Struct, frozen=True):
    """A word that no secret of the rule goes without. The rule is asked about its first byte."""

    word: bytes
    rule: Rule
    any_case: bool = False
    then: bytes = b""  #: what the word is followed by, as a pattern


# --- where a word begins ------------------------------------------------------------------------

_COLOURS = [rb"\[[0-9;]{%d}[A-Za-z]" % length for length in range(9)]
#: what ends as a word does, and is none: escapes of shells, source, JSON and URLs, and what a
#: terminal obeys, as it is and written as an escape
_ESCAPES = (
    *(rb"\\[0-7abefnrtv]", rb"\\[0-7]{2}", rb"\\[0-7]{3}"),
    *(rb"\\x[0-9A-Fa-f]{2}", rb"\\u[0-9A-Fa-f]{4}", rb"%[0-9A-Fa-f]{2}"),
    *(escape + colour for escape in (rb"\x1b", rb"(?:1[bB]|33|\\e)") for colour in _COLOURS),
)
_ESCAPED = b"|".join(rb"(?<=%s)" % escape for escape in _ESCAPES)
_EDGE = re.compile(rb"(?<![A-Za-z0-9])|" + _ESCAPED)  #: not in the middle of a word
_AFTER_NO_LETTER = rb"(?:(?<![A-Za-z])|" + _ESCAPED + b")"
_START = re.compile(_AFTER_NO_LETTER)  #: the same, where a figure is no part of a word


# --- keys that show by themselves what they are -------------------------------------------------

_KEY_END = re.compile(rb"[^A-Za-z0-9_-]")
_MIXED = rb"(?=[\w-]{0,200}[0-9])(?=[\w-]{0,200}[A-Z])"


def _key(kind: str, shape: bytes) -> Rule:
    pattern = re.compile(shape)

    def rule(text: bytes, place: int) -> Found | None:
        found = pattern.match(text, place)
        if not found or not _EDGE.match(text, place):
            return None
        long = len(found[0]) >= 512  # as far as the shape goes, and perhaps further
        return Found(kind, place, found.end(), _KEY_END if long else None)

    return rule


_JWT = re.compile(rb"eyJ[A-Za-z0-9_-]{8,1024}\.(?:eyJ[A-Za-z0-9_-]{5}|[A-Za-z0-9_-]{20})")
_JWT_END = re.compile(rb"[^A-Za-z0-9_.=-]|\.(?![A-Za-z0-9_-])")


def _jwt(text: bytes, place: int) -> Found | None:
    found = _JWT.match(text, place)
    if not found or not _EDGE.match(text, place):
        return None
    return Found("jwt", found.start(), found.end(), _JWT_END)


# --- private keys -------------------------------------------------------------------------------

_BREAK = rb"(?:\\+[nrt]|[\s\"'+,>|#*-])"
_PEM = re.compile(
    rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    rb"(?:" + _BREAK + rb"{0,80}[A-Za-z][A-Za-z-]{1,19}: [^\r\n\\\0]{0,160}){0,4}"
    rb"" + _BREAK + rb"{0,80}(?:[A-Za-z0-9+/]{12}|[A-Za-z0-9+/=]{1,11}\Z)"
)
#: its last line, what no key can have in it, or words
_PEM_END = re.compile(
    rb"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    rb"|[^A-Za-z0-9+/=\s\\\"',:>|#*-]"
    rb"|(?<![A-Za-z0-9+/=])[A-Za-z0-9,.]{1,15}[ \t]{1,4}[A-Za-z0-9]{1,15}(?![A-Za-z0-9+/=])"
)


def _pem(text: bytes, place: int) -> Found | None:
    found = _PEM.match(text, place)
    return Found("private-key", found.start(), found.end(), _PEM_END) if found else None


# --- what stands where a secret has to stand ----------------------------------------------------

_PLACEHOLDER = re.compile(
    rb"\[redacted:[a-z0-9-]+:(?:\d+|more)\]"
    rb"|[$<{%]|\*{3}|\.{3}|\xe2\x80\xa6|x{4}|X{4}|\["
    rb"|(?i:your[_ -]|process\.env|os\.environ|env\.|secrets\.)"
)
_VERSION = re.compile(rb"[\^~<>=v]{0,3}\d{1,5}(?:\.[\dx*]{1,5}){1,3}(?:[-+][\w.-]{0,40})?\Z")
_NO_SECRET = re.compile(rb"(?i:true|false|null|none|undefined|nil|yes|no|string|str|bytes)\Z")
_OTHER = re.compile(rb"(?i)[,;)\s]|(?:https?|ftp|file)://")
_PROMPT = re.compile(rb"(?i:passw|passphrase|enter|must|requir|invalid|your|please|incorrect)")
_WORDS = re.compile(rb"(?:[A-Za-z]{1,24}[ _./:@-]{0,2}){1,20}\Z")
_PLAIN_PATH = re.compile(rb"(?:~|\.{0,2})/(?:[a-z0-9_.-]+|[A-Z][a-z]+|/)*\Z")
_CHAIN = re.compile(rb"[A-Za-z_]\w*(?:\??\.[A-Za-z_]\w*)+\Z")
_CALL = re.compile(rb"[A-Za-z_][\w.:]*[(\[{]")

_QUOTED = {
    (depth, quote): re.compile(
        rb"(?<!\\)(?:\\{%d}){0,6}\\{%d}%s|[\r\n\0]|\\{64}" % (2 * depth + 2, depth, quote)
        if depth
        else rb"(?<!\\)(?:\\\\){0,12}%s|[\r\n\0]|\\{64}" % quote
    )
    for depth in (0, 1, 3, 7)
    for quote in (b'"', b"'", b"`")
}
_BARE_END = re.compile(rb"[\s\"'`\\\0<>]|[;,)\]}&|]{1,16}(?=[\s\"'`\\\0]|\Z)")
_QUERY_END = re.compile(rb"[\s\"'`\\\0<>&#]|[;,.)\]}|]{1,16}(?=[\s\"'`\\\0]|\Z)")
_CODE_END = re.compile(rb"[\s\"'`\\\0<>,;(){}\[\]|&]")
_OPEN_QUOTE = re.compile(rb"[bBfFrRuU]{0,2}(\\{0,7})([\"'`])")
_ELEMENT_END = re.compile(rb"[<\r\n\0]")
_VALUE_END = re.compile(rb"[\s\"'`\\\0<>,;]")
_LOGIN = re.compile(rb"login[ \t]{1,4}\S{1,64}\s{1,8}\Z")
_COMPARISONS = frozenset((b"==", b"===", b"!=", b"!=="))
_SEEN = 256  #: bytes of a value that decide


def _mixed(value: bytes) -> bool:
    return bool(re.search(rb"[0-9]", value) and re.search(rb"[A-Za-z]", value))


def _is_none(value: bytes) -> bool:
    """A placeholder, a lookup, a version, a path: what stands there and is no secret."""
    return any(
        form.match(value) for form in (_PLACEHOLDER, _VERSION, _NO_SECRET, _PLAIN_PATH, _OTHER)
    )


def _piece(text: bytes, start: int, until: Pattern) -> bytes:
    end = until.search(text, start, start + _SEEN + LOOK)
    return text[start : min(end.start() if end else start + _SEEN, start + _SEEN)]


# The words after which a secret may stand, by how much they say alone.
_SURE, _LIKELY, _MAYBE = range(3)
_NAME = re.compile(
    rb"(?i)[\w.$-]{0,48}?(?:"
    rb"(?P<sure>password|passwd|passphrase|" + _AFTER_NO_LETTER + rb"pwd|(?<=_)pass)"
    rb"|(?P<likely>secret|(?:api|access|secret|private|auth|account|encryption|signing|master"
    rb"|session|license|service|shared|client|deploy|webhook|subscription|consumer)[_-]?key)"
    rb"|(?P<maybe>token|credentials?|" + _AFTER_NO_LETTER + rb"sig(?:nature)?))\d{0,2}(?![\w-])"
)
_NAME_BACKWARDS = re.compile(rb"[\w.$-]*")
_GAP = re.compile(
    rb"\\{0,7}[\"'`]?\]?[ \t]{0,8}"
    rb"(?P<mark>:[ \t]{0,4}[A-Za-z][\w.| ?]{0,32}(?:\[[\w.| ,]{0,32}\])?[ \t]{0,4}=(?!=)"
    rb"|:=|=>|={1,3}|!={1,2}|:(?!:))[ \t]{0,8}"
)
_OPTION_GAP = re.compile(rb"=|[ \t]{1,8}|\\{0,7}[\"'],[ \t]{0,4}(?=\\{0,7}[\"'])|\0")


def _assignment(text: bytes, place: int) -> Found | None:
    """`password = "…"`, `api_key: …`, `--password …`, `?token=…`, in JSON and escaped JSON too."""
    before = _NAME_BACKWARDS.match(text[max(place - 64, 0) : place][::-1])
    start = place - (before.end() if before else 0)
    name = _NAME.match(text, start)
    if not name or name.end() <= place:
        return None
    level = (_SURE, _LIKELY, _MAYBE)[[*name.groupdict().values()].index(name[name.lastgroup or ""])]
    is_option = name[0].startswith(b"--")
    gap = (is_option and _OPTION_GAP.match(text, name.end())) or _GAP.match(text, name.end())
    if not gap:
        return _beside(text, start, name)
    quote = _OPEN_QUOTE.match(text, gap.end())
    if quote and (len(quote[1]), quote[2]) in _QUOTED:
        until = _QUOTED[len(quote[1]), quote[2]]
        value = _piece(text, quote.end(), until)
        is_template = b"f" in text[gap.end() : quote.start(2)].lower() and b"{" in value
        good = not is_template and _quoted_secret(value, level if not is_option else _SURE)
        return Found("password", quote.end(), quote.end(), until) if good else None
    return _bare(text, gap, level, text[start - 1 : start], name[0], is_option)


def _beside(text: bytes, start: int, name: re.Match[bytes]) -> Found | None:
    """In an element of XML, and in a netrc."""
    in_element = text[start - 1 : start] == b"<" and text[name.end() : name.end() + 1] == b">"
    if in_element:
        place, until = name.end() + 1, _ELEMENT_END
    elif name["sure"] and _LOGIN.search(text, max(start - 160, 0), start):
        place, until = name.end() + 1, _VALUE_END
    else:
        return None
    value = _piece(text, place, until)
    good = _quoted_secret(value, _SURE if name["sure"] else _LIKELY)
    return Found("password", place, place, until) if good else None


def _quoted_secret(value: bytes, level: int) -> bool:
    if _is_none(value):
        return False
    if level == _SURE:
        return len(value) >= 4 and not (b" " in value and _PROMPT.search(value))
    if len(value) < 8 or re.search(rb"\s", value):
        return False
    return (_mixed(value) and not _CHAIN.match(value)) or (
        len(value) >= 16 and not _WORDS.match(value)
    )


def _bare(
    text: bytes, gap: re.Match[bytes], level: int, before: bytes, name: bytes, is_option: bool
) -> Found | None:
    """A value without quotes: in code that is a name more often than a secret."""
    start = gap.end()
    mark = gap["mark"] if "mark" in gap.re.groupindex else gap[0]
    in_query = before in (b"?", b"&") and gap[0] == b"="
    shell = (gap[0] == b"=" and (name.isupper() or is_option)) or gap[0] == b"\0"
    header = mark == b":" and name.lower().startswith((b"x-", b"private-"))
    until = _QUERY_END if in_query else _BARE_END
    value = _piece(text, start, until)
    if mark in _COMPARISONS or _is_none(value) or _CALL.match(value) or value.startswith(b"-"):
        return None
    if in_query or shell or header:
        good = len(value) >= (4 if level == _SURE else 6)
        good = good and not (name.isupper() and value.isupper() and _WORDS.match(value))
        return Found("password", start, start, until) if good else None
    value = _piece(text, start, _CODE_END)
    digits = level == _SURE and len(value) >= 6 and value.isdigit() and mark != b"="
    shaped = len(value) >= (6 if level == _SURE else 8) and _mixed(value)
    if not (digits or shaped) or _CHAIN.match(value) or _CALL.match(text, start):
        return None
    return Found("password", start, start, until)


# --- headers and URLs ---------------------------------------------------------------------------

_AUTHORIZATION = re.compile(
    rb"(?i)authorization\\{0,7}[\"'`]?\]?[ \t]{0,4}[:=,][ \t]{0,4}(?:[bfr]?\\{0,7}[\"'`])?"
    rb"(?P<scheme>(?:bearer|basic|token|apikey|api-key|key)[ \t]{1,4}"
    rb"|(?P<line>digest|negotiate|aws4-hmac-sha256)[ \t]{1,4})?"
)
_BEARER = re.compile(rb"(?i)bearer[ \t]{1,4}")
_COOKIE = re.compile(rb"(?i)cookie\\{0,7}[\"']?:[ \t]{0,4}\\{0,7}[\"']?")
_LINE_END = re.compile(rb"[\r\n\"'`\\\0]")


def _authorization(text: bytes, place: int) -> Found | None:
    found = _AUTHORIZATION.match(text, place)
    if not found:
        return None
    until = _LINE_END if found["line"] else _VALUE_END
    value = _piece(text, found.end(), until)
    good = len(value) >= 6 if found["scheme"] else len(value) >= 8 and _mixed(value)
    if not good or _is_none(value) or _CHAIN.match(value) or _CALL.match(text, found.end()):
        return None
    return Found("authorization", found.end(), found.end(), until)


def _bearer(text: bytes, place: int) -> Found | None:
    found = _START.match(text, place) and _BEARER.match(text, place)
    value = _piece(text, found.end(), _VALUE_END) if found else b""
    if not found or len(value) < 12 or not _mixed(value) or _is_none(value):
        return None
    return Found("authorization", found.end(), found.end(), _VALUE_END)


def _cookie(text: bytes, place: int) -> Found | None:
    found = _START.match(text, place) and _COOKIE.match(text, place)
    value = _piece(text, found.end(), _LINE_END) if found else b""
    if not found or not re.match(rb"[\w.-]{1,64}=[^;\s]{6}", value) or _is_none(value):
        return None
    return Found("cookie", found.end(), found.end(), _LINE_END)


_USERINFO = re.compile(rb":(?:\\{0,7}/){2}(?:[^\s/@:\"'<>\\\0]{0,128}:)?([^\s/\"'<>\\\0]{1,512})\Z")


def _url(text: bytes, place: int) -> Found | None:
    """The password in front of the host of a URL, seen from the @."""
    lowest = max(place - 700, 0)
    slashes = text.rfind(b"//", lowest, place)
    if slashes < 0:
        slashes = text.rfind(b"/\\/", lowest, place)
    colon = text.rfind(b":", lowest, slashes) if slashes >= 0 else -1
    found = _USERINFO.match(text[colon:place]) if colon >= 0 else None
    if not found:
        return None
    has_user = found[0].count(b":") > 1
    if _PLACEHOLDER.match(found[1]) or not (has_user or (len(found[1]) >= 20 and _mixed(found[1]))):
        return None
    return Found("url", colon + found.start(1), place)


# --- all of them --------------------------------------------------------------------------------


def anchors() -> list[Anchor]:
    ends = rb"(?=\d{0,2}[\\\"'`\]\s:=!\0])"
    signed = (b"sig=", b"signature=")
    words = (b"secret", b"token", b"credential", b"credentials", b"key", b"pwd", b"_pass")
    return [
        Anchor(b"passw", _assignment, any_case=True),
        Anchor(b"passphrase", _assignment, any_case=True),
        *(Anchor(word, _assignment, any_case=True, then=ends) for word in words),
        *(Anchor(word, _assignment, any_case=True) for word in signed),
        Anchor(b"authorization", _authorization, any_case=True),
        Anchor(b"bearer", _bearer, any_case=True),
        Anchor(b"cookie", _cookie, any_case=True),
        Anchor(b"@", _url),
        Anchor(b"-----BEGIN ", _pem),
        Anchor(b"eyJ", _jwt),
        *(Anchor(word, _key(kind, shape)) for word, kind, shape in _shapes()),
    ]


def _shapes() -> list[tuple[bytes, str, bytes]]:
    word = rb"[A-Za-z0-9]"
    stripe = (b"sk_live_", b"rk_live_", b"sk_test_", b"rk_test_")
    return [
        (b"sk-ant-", "anthropic", rb"sk-ant-[\w-]{16,512}"),
        (b"sk-", "openai", rb"sk-(?!ant-)" + _MIXED + rb"[\w-]{20,512}"),
        *((b"gh%c_" % letter, "github", rb"gh%c_\w{30,512}" % letter) for letter in b"posur"),
        (b"github_pat_", "github", rb"github_pat_\w{22,512}"),
        (b"glpat-", "gitlab", rb"glpat-[\w-]{20,512}(?:\.[a-z0-9]{2}\.?[a-z0-9]{7})?"),
        (b"xox", "slack", rb"xox[abeoprs]-[\w-]{10,512}"),
        (b"AKIA", "aws", rb"AKIA[A-Z0-9]{16}(?![A-Za-z0-9])"),
        (b"ASIA", "aws", rb"ASIA[A-Z0-9]{16}(?![A-Za-z0-9])"),
        (b"AIza", "google", rb"AIza[\w-]{35,64}"),
        (b"npm_", "npm", rb"npm_" + word + rb"{36,512}"),
        (b"pypi-", "pypi", rb"pypi-" + _MIXED + rb"[\w-]{32,512}"),
        (b"hf_", "huggingface", rb"hf_" + word + rb"{30,512}"),
        (b"SG.", "sendgrid", rb"SG\.[\w-]{16,64}\.[\w-]{16,128}"),
        *((start, "stripe", start + word + rb"{10,512}") for start in stripe),
    ]
