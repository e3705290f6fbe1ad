"""What a shell was asked to run, by its arguments: to be held against what tool calls ask for.

Claude Code runs a command as `bash -c "… eval 'the command' < /dev/null && …"`: quoted as a shell
would want it. Others hand it over as it is. The text is taken out before anything is censored,
and censored as the call's own is: what was one command stays one, whatever may be written down.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MOST = 1024  #: characters that a command is known by: of a long one a feed keeps no more
_EVAL = re.compile(r"(?:\A|[\s;&|({])eval ")
_DIGEST = "sha256:"


def known_by(command: str) -> str:
    """What two texts of one command have in common. Empty: nothing can be known by it."""
    return command[:MOST] if command.strip() else ""


def digest_of(command: str) -> str:
    import hashlib

    text = known_by(command).encode("utf-8", "surrogatepass")
    return f"{_DIGEST}{hashlib.sha256(text).hexdigest()}"


def asked_in(argv: Sequence[str] | None) -> list[str]:
    """The word behind `-c`, and what is evaluated in it: what stands last first."""
    for number, word in enumerate(argv or ()):
        if number and _takes_a_command(word):
            given = [_untold(one) for one in (argv or ())[number + 1 : number + 2]]
            return [*given, *(text for one in given for text in _evaluated(one))]
    return []


def _takes_a_command(word: str) -> bool:
    return word[:1] == "-" and word[1:2] != "-" and word[-1:] == "c"


def _evaluated(text: str) -> list[str]:
    """The last one is the command; those before it belong to what prepares it. What stands in
    one of them is not asked for by itself."""
    words: list[str] = []
    at = 0
    while place := _EVAL.search(text, at):
        word, at = _first_word(text, place.end())
        if word is not None:
            words.insert(0, word)
    return words


def _first_word(text: str, at: int) -> tuple[str | None, int]:
    """As a shell would read it, and where it ends. One that was cut off has to be long enough."""
    word = ""
    while found := _PIECE.match(text, at):
        at = found.end()
        piece, is_whole = _plain(found)
        word += piece
        if not is_whole:
            return (word if len(word) >= MOST else None), len(text)
    return word, at


_PIECE = re.compile(
    r"""'(?P<single>[^']*)(?P<end>'?)"""
    r"""|"(?P<double>(?:[^"\\]|\\.)*)(?P<shut>"?)"""
    r"""|\\(?P<escaped>.)"""
    r"""|(?P<plain>[^\s'"\\;&|()<>]+)""",
    re.DOTALL,
)


def _plain(piece: re.Match[str]) -> tuple[str, bool]:
    """Without its quotes, and whether the last of these is there."""
    if piece["single"] is not None:
        return piece["single"], bool(piece["end"])
    if piece["double"] is not None:
        return re.sub(r"\\([\"\\$`!])", r"\1", piece["double"]), bool(piece["shut"])
    return piece["escaped"] or piece["plain"], True


def _untold(word: str) -> str:
    """A kernel feed doubles every backslash."""
    return word.replace("\\\\", "\\")
