"""What a rule is: it is asked about a place, and says what is secret around it.

Every rule sees a bounded piece before and after the place where its word was found, so that its
answer cannot depend on how a stream was cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

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


class Next(Struct, frozen=True):
    """A later place that a rule wants to be asked about: the next row of a table."""

    place: int
    rule: Rule


Rule = Callable[[bytes, int], Iterable[Found | Next]]


class Anchor(Struct, frozen=True):
    """A word that no secret of the rule goes without. The rule is asked about its first byte."""

    word: bytes
    rule: Rule
    any_case: bool = False
    then: bytes = b""  #: what the word is followed by, as a pattern


#: what a terminal obeys, as it is and written as an escape
COLOUR = rb"(?:(?:\x1b|\\{1,7}(?:u001[bB]|x1[bB]|0?33|e))\[[0-9;]{0,16}[A-Za-z])"

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
EDGE = re.compile(rb"(?<![A-Za-z0-9])|" + _ESCAPED)  #: not in the middle of a word
AFTER_NO_LETTER = rb"(?:(?<![A-Za-z])|" + _ESCAPED + b")"
START = re.compile(AFTER_NO_LETTER)  #: the same, where a figure is no part of a word
