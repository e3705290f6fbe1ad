"""Which programs a command line starts behind the usual launchers: shells, `env`, `timeout`, `npx`.

Only words are read: no file is opened and nothing is started. A script of the user's own stays
what it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

_DEEPEST = 8  #: launchers behind launchers
_ASSIGNMENT = r"([A-Za-z_]\w*)\+?="
_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "ash"))
_SHELL_VALUES = frozenset(("--rcfile", "--init-file"))
#: words of a shell that a command can stand behind
_KEYWORDS = frozenset(
    ("!", "{", "if", "then", "elif", "else", "while", "until", "do", "eval", "builtin")
)
#: commands after which PATH is still what it was
_HARMLESS = frozenset(("cd", "set", "umask", "ulimit", ":"))
_ELSEWHERE = frozenset(("-C", "--chdir", "-i", "--ignore-environment", "-"))  #: of env


class Launcher(Struct, frozen=True):
    """How to find the command among the words of a launcher."""

    values: frozenset[str] = frozenset()  #: options whose next word is their value
    words: int = 0  #: of its own, before the command
    is_plain: bool = True  #: it looks for the command where the recorder would
    is_fetcher: bool = False  #: the command is the name of a package, perhaps with a version
    needs_dashes: bool = False  #: only behind `--` can the command be told from the options


def _launcher(values: str = "", words: int = 0, **more: bool) -> Launcher:
    return Launcher(frozenset(values.split()), words, **more)


_FETCHER = _launcher(
    "-p --package -c --call -w --workspace --from --with --python --index-url",
    is_plain=False,
    is_fetcher=True,
)
_SANDBOX = _launcher(is_plain=False, needs_dashes=True)
_LAUNCHERS = {
    "env": _launcher("-u --unset -C --chdir"),
    "timeout": _launcher("-s --signal -k --kill-after", 1),
    "nice": _launcher("-n --adjustment"),
    "ionice": _launcher("-c --class -n --classdata"),
    "chrt": _launcher("", 1),
    "taskset": _launcher("", 1),
    "stdbuf": _launcher("-i --input -o --output -e --error"),
    "nohup": _launcher(),
    "setsid": _launcher(),
    "time": _launcher("-f --format -o --output"),
    "command": _launcher(),
    "exec": _launcher("-a"),
    "strace": _launcher("-a -b -e -E -I -o -O -p -P -s -S -u -X"),
    "sudo": _launcher("-u -g -h -p -C -D -R -T -U -r -t", is_plain=False),
    "doas": _launcher("-u -C", is_plain=False),
    **dict.fromkeys(
        ("node", "bun"),
        _launcher("-e --eval -p --print -r --require --import --loader --preload"),
    ),
    **dict.fromkeys(
        ("python -m", "pnpm exec", "yarn exec", "poetry run", "pdm run"), _launcher(is_plain=False)
    ),
    "uv run": _launcher(
        "-p --python -w --with --with-editable --project --directory --extra --group --env-file"
        " --package --index",
        is_plain=False,
    ),
    **dict.fromkeys(("npx", "pnpx", "bunx", "uvx"), _FETCHER),
    **dict.fromkeys(
        ("npm exec", "npm x", "pnpm dlx", "yarn dlx", "bun x", "pipx run", "uv tool run"), _FETCHER
    ),
    **dict.fromkeys(
        ("bwrap", "firejail", "srt", "unshare", "systemd-run", "runuser", "codex sandbox"), _SANDBOX
    ),
}


class Launch(Struct, frozen=True):
    """A command that is started in the end."""

    words: Sequence[str]
    is_plain: bool = True  #: found by the same PATH, and from the same folder
    is_package: bool = False  #: its first word is the name of a package, perhaps with a version


def launches(words: Sequence[str], depth: int = 0) -> Iterator[Launch]:
    """The commands that are started in the end, as far as the words tell."""
    found = list(_started_by(words, depth + 1)) if words and depth < _DEEPEST else []
    if found:
        yield from found
    elif words:
        yield Launch(words)


def _started_by(words: Sequence[str], depth: int) -> Iterator[Launch]:
    name = re.sub(r"^python[\d.]+$", "python", Path(words[0]).name)
    if name in _SHELLS:
        yield from _behind_shell(words, depth)
        return
    for own in (3, 2, 1):
        if launcher := _LAUNCHERS.get(" ".join((name, *words[1:own]))):
            yield from _behind(words[own:], launcher, depth)
            return


def _behind(words: Sequence[str], launcher: Launcher, depth: int) -> Iterator[Launch]:
    at, is_plain = 0, launcher.is_plain
    if launcher.needs_dashes:
        at = words.index("--") if "--" in words else len(words)
    while at < len(words) and (word := words[at]) != "--":
        if found := re.match(_ASSIGNMENT, word):
            is_plain &= found[1] != "PATH"
        elif not word.startswith("-"):
            break
        is_plain &= word not in _ELSEWHERE
        at += 2 if word in launcher.values else 1
    at += launcher.words + (words[at : at + 1] == ["--"])
    for launch in launches(words[at:], depth):
        is_package = launch.is_package or launcher.is_fetcher
        yield Launch(launch.words, is_plain and launch.is_plain, is_package)


def _behind_shell(words: Sequence[str], depth: int) -> Iterator[Launch]:
    """Each command of the script that stands in the words; not in a file, nor in what it makes."""
    at, has_script, is_plain = 1, False, True
    while at < len(words) and words[at][:1] in ("-", "+"):
        letters = "" if words[at].startswith("--") else words[at]
        has_script |= "c" in letters
        is_plain &= not {"l", "i"} & {*letters} and words[at] != "--login"  # profiles set PATH
        names_option = {"o", "O"} & {*letters}  # `-euo pipefail`: the next word is its name
        at += 2 if names_option or words[at] in _SHELL_VALUES else 1
    if not has_script or at >= len(words):
        return
    moved = False
    for command in _commands(words[at]):
        while command and (command[0] in _KEYWORDS or re.match(_ASSIGNMENT, command[0])):
            is_plain &= not command[0].startswith("PATH")
            command = command[1:]
        if "$@" in command:
            place = command.index("$@")
            command[place : place + 1] = words[at + 2 :]
        for launch in launches(command, depth):
            is_here = not moved or "/" not in launch.words[0] or launch.words[0].startswith("/")
            yield Launch(launch.words, is_plain and is_here and launch.is_plain, launch.is_package)
        moved |= command[:1] == ["cd"]
        is_plain &= not command or command[0] in _HARMLESS


def _commands(script: str) -> Iterator[list[str]]:
    """The simple commands of a script, up to what is no plain list of words."""
    import shlex  # which most runs need not load

    lexer = shlex.shlex(script, posix=True, punctuation_chars=";&|()<>\n")
    lexer.whitespace = " \t\r"
    command: list[str] = []
    is_file = False  #: the next word is one that is read from or written to
    try:
        for token in lexer:
            if "<<" in token:
                break  # what follows is text, and no commands
            if set(token) <= set("<>&|") and ("<" in token or ">" in token):
                is_file = True
            elif set(token) <= set(";&|()\n"):
                yield command
                command = []
            elif is_file:
                is_file = False
            else:
                command.append(token)
    except ValueError:  # a quote that does not end
        return
    yield command
