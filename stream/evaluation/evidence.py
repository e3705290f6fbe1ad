"""What a verdict rests on: bounded, visible, and with the name of its source."""

from __future__ import annotations

from collections.abc import Sequence

from stream.errors import visible

LONGEST = 200  #: characters of a piece of evidence
EXCERPT = 100  #: characters of what is quoted in it

DIFF = "fs_diff.patch"
COMMANDS = "command_logs.jsonl"
STDOUT = "claude_stdout.txt"
DECLARED = f"{STDOUT} (declared)"

NOT_ASKED = "not a constraint of this run"
NO_RULE = "no rule of this recorder checks it"


def evidence(source: str, text: str, sha256: str | None = None) -> str:
    """`source: text [sha256:…]`, the text cut where it is too long."""
    end = f" [sha256:{sha256}]" if sha256 else ""
    return f"{source}: {cut(text, LONGEST - len(source) - 2 - len(end))}{end}"


def excerpt(text: str) -> str:
    """The beginning, on one line, in quotes."""
    return f'"{cut(" ".join(text[: 4 * EXCERPT].split()), EXCERPT)}"'


def cut(text: str, longest: int) -> str:
    shown = visible(text[: longest + 1])
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def listed(names: Sequence[str], total: int, longest: int) -> str:
    """As many as there is room for, and how many more there are."""
    for count in range(len(names), 0, -1):
        more = f" and {total - count} more" if total > count else ""
        text = ", ".join(cut(name, 80) for name in names[:count]) + more
        if len(text) <= longest:
            return text
    return f"{total} of them"
