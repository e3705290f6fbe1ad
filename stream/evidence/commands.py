"""Whether a process was started to run what a tool call was asked to run.

Claude Code runs a command as `bash -c "… eval 'the command' < /dev/null && …"`: quoted as a shell
would want it. Others hand it over as it is. Where the commands of several calls are found in one
process, the place that says most counts, and there the longest; where that leaves two, neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from stream.records.kernel import path_text

_CUT = 32  #: so many characters are enough to know a command whose end was cut off
_KEPT = 4096  #: characters: no feed keeps more of all arguments together
_BEFORE = frozenset(" \t\n'\"`;|&({")
_AFTER = frozenset(" \t\n'\"`;|&)}<>")


class Command(Struct, frozen=True):
    """What one call was asked to run, in the ways in which it may stand in an argument."""

    text: str
    forms: tuple[str, ...]


def command_of(text: str) -> Command | None:
    """None: nothing can be known by it."""
    if not text.strip():
        return None
    text = text[:_KEPT]
    ways = (form for way in _quoted(text) for form in (way, _told(way)))
    return Command(text, tuple(dict.fromkeys(ways)))


def _quoted(text: str) -> Iterable[str]:
    yield text
    yield "'" + text.replace("'", "'\"'\"'") + "'"
    yield "'" + text.replace("'", "'\\''") + "'"
    yield '"' + re.sub(r'(["\\$`!])', r"\\\1", text) + '"'
    yield re.sub(r"([^\w@%+=:,./-])", r"\\\1", text)


def _told(text: str) -> str:
    """As a kernel feed tells it: every backslash doubled."""
    return path_text(text.encode())


def asked_for(argv: Sequence[str], commands: Iterable[Command]) -> Command | None:
    """Which one of them this process runs."""
    candidates = list(commands)
    for stands in (_is_evaluated, _is_an_argument, _is_anywhere):
        found = [one for one in candidates if any(stands(one, word) for word in argv)]
        if found:
            return _longest(found)
    return None


def _is_evaluated(command: Command, word: str) -> bool:
    if any(_stands(f"eval {form}", word) for form in command.forms):
        return True
    _, is_there, rest = word.rpartition("eval ")  # the last one: it may be cut
    return bool(is_there) and len(rest) >= _CUT and any(f.startswith(rest) for f in command.forms)


def _is_an_argument(command: Command, word: str) -> bool:
    return word in (command.text, _told(command.text))


def _is_anywhere(command: Command, word: str) -> bool:
    return any(_stands(form, word) for form in command.forms)


def _stands(form: str, word: str) -> bool:
    """As words of their own: `ls` is not in `else`."""
    start = word.find(form)
    while start >= 0:
        end = start + len(form)
        opens = start == 0 or word[start - 1] in _BEFORE
        if opens and (end == len(word) or word[end] in _AFTER):
            return True
        start = word.find(form, start + 1)
    return False


def _longest(found: list[Command]) -> Command | None:
    size = max(len(one.text) for one in found)
    longest = [one for one in found if len(one.text) == size]
    return longest[0] if len(longest) == 1 else None
