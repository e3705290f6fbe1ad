"""Secrets in an encoded text: percent-encoded, or in base64 as a whole."""

from __future__ import annotations

import re
from binascii import Error, a2b_base64, b2a_base64
from collections.abc import Callable, Iterable, Iterator

from stream.redaction.rules import AHEAD, EDGE, LOOK, Anchor, Found, Next

Spans = Callable[[bytes], "list[Found]"]  #: of a whole text, closed

_FAR = AHEAD - 2 * LOOK
_BACK = 512
_STRIDE = 1024
_SHORTEST = 12  #: bytes of a word that may have a secret in it
_TOKEN = re.compile(rb"[\w%.~+*!(),;:-]+")
_TOKEN_END = re.compile(rb"[^\w%.~+*!(),;:-]")
_BACKWARDS = re.compile(rb"[\w%.~+*!(),;-]*")
_ESCAPE = re.compile(rb"%[0-9A-Fa-f]{2}|\+")
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{12,}={0,2}")
_BASE64_END = re.compile(rb"[^A-Za-z0-9+/_=-]")


def encoded_anchors(words: Iterable[bytes], spans: Spans) -> list[Anchor]:
    """`words`: those of the keys, as base64 of a text that begins with one shows them."""

    def percent(text: bytes, place: int) -> Iterator[Found | Next]:
        start = _start(text, place)
        if not _ESCAPE.search(text, start, place):  # the first of its word
            yield from view(text, start, place)

    def view(text: bytes, start: int, place: int) -> Iterator[Found | Next]:
        found = _TOKEN.match(text, start, place + _FAR)
        if not found or found.end() <= place:
            return
        is_cut = found.end() == place + _FAR
        plain, places = _decoded(found[0])
        if len(plain) < _SHORTEST:
            return
        for span in spans(plain):
            end = start + places[span.end]
            is_open = is_cut and span.end == len(plain)
            yield Found(span.kind, start + places[span.start], end, _TOKEN_END if is_open else None)
        if is_cut:
            yield Next(place + _STRIDE, again)

    def again(text: bytes, place: int) -> Iterator[Found | Next]:
        return view(text, _start(text, place), place)

    def base64(text: bytes, place: int) -> Iterator[Found]:
        found = EDGE.match(text, place) and _BASE64.match(text, place, place + _FAR)
        if not found:
            return
        inner = spans(_plain(found[0]))
        if inner:
            yield Found(inner[0].kind, place, found.end(), _BASE64_END)

    forms = {_beginning(word) for word in words}
    return [
        Anchor(b"%", percent, then=rb"(?=[0-9A-Fa-f]{2})"),
        *(Anchor(form, base64) for form in sorted(forms) if len(form) >= 4),
    ]


def _start(text: bytes, place: int) -> int:
    """Of the word around a place."""
    found = _BACKWARDS.match(text[max(place - _BACK, 0) : place][::-1])
    return place - (found.end() if found else 0)


def _decoded(token: bytes) -> tuple[bytes, list[int]]:
    """The plain text, and where in the token each of its bytes begins, and the last one ends."""
    plain, place = bytearray(), 0
    places: list[int] = []
    for found in _ESCAPE.finditer(token):
        plain += token[place : found.start()]
        places += range(place, found.start())
        plain.append(32 if found[0] == b"+" else int(found[0][1:], 16))
        places.append(found.start())
        place = found.end()
    plain += token[place:]
    places += [*range(place, len(token)), len(token)]
    return bytes(plain), places


def _beginning(word: bytes) -> bytes:
    """The characters of base64 that a word at the beginning decides alone."""
    return b2a_base64(word, newline=False)[: len(word) * 8 // 6]


def _plain(text: bytes) -> bytes:
    text = text.rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
    try:
        return a2b_base64(text[: len(text) // 4 * 4] + _rest(text))
    except Error:
        return b""


def _rest(text: bytes) -> bytes:
    rest = text[len(text) // 4 * 4 :]
    return rest + b"=" * (4 - len(rest)) if len(rest) > 1 else b""
