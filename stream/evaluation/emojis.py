"""Where the first emoji of a text is, by the Unicode tables of the package `regex`."""

from __future__ import annotations

from functools import cache
from typing import Any

from msgspec import Struct

TAIL = 3  #: characters that the next piece of a text has to begin with: none is cut through

# A character that is shown as a picture by itself, unless U+FE0E follows; one that U+FE0F makes a
# picture; a keycap; a flag. Neither digits nor ©, ®, ™ and arrows as text.
_EMOJI = (
    r"\p{Regional_Indicator}{2}"
    r"|(?!\p{Regional_Indicator})\p{Emoji_Presentation}(?!\uFE0E)"
    r"|(?![0-9#*])\p{Emoji}\uFE0F"
    r"|[0-9#*]\uFE0F?\u20E3"
)


class Emoji(Struct, frozen=True):
    place: int  #: characters before it
    code_points: str  #: such as U+1F600

    def __str__(self) -> str:
        return self.code_points


def find_emoji(text: str) -> Emoji | None:
    if text.isascii():
        return None
    found = _pattern().search(text)
    if not found:
        return None
    return Emoji(found.start(), " ".join(f"U+{ord(character):04X}" for character in found[0]))


@cache
def _pattern() -> Any:
    import regex  # its tables are large, and most texts are plain

    return regex.compile(_EMOJI)
