"""What the words of a command line say: which text a shell runs, and of what category a command is.

Claude Code runs a command as `bash -c "… eval 'the command' < /dev/null && …"`, quoted as a shell
would want it; others pass it as it is. The text is taken out before anything is redacted, and
redacted as the call's own is, so that one command stays one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

MOST = 1024  #: characters that a command is known by: of a long one a feed keeps no more
_EVAL = re.compile(r"(?:\A|[\s;&|({])eval ")
_PIECE = re.compile(
    r"""'(?P<single>[^']*)(?P<end>'?)"""
    r"""|"(?P<double>(?:[^"\\]|\\.)*)(?P<shut>"?)"""
    r"""|\\(?P<escaped>.)"""
    r"""|(?P<plain>[^\s'"\\;&|()<>]+)""",
    re.DOTALL,
)
_DIGEST = "sha256:"


def comparable_command(command: str) -> str:
    """Return what two texts of one command have in common; empty if nothing can be known by it."""
    return command[:MOST] if command.strip() else ""


def command_digest_of(command: str) -> str:
    """Return the digest of a command, as `comparable_command` has it."""
    import hashlib

    text = comparable_command(command).encode("utf-8", "surrogatepass")
    return f"{_DIGEST}{hashlib.sha256(text).hexdigest()}"


def commands_asked_of_shell(argv: Sequence[str] | None) -> list[str]:
    """Return the word behind `-c`, and what is evaluated in it: what stands last first."""
    words = argv or ()
    for number, word in enumerate(words):
        takes_command = word[:1] == "-" and word[1:2] != "-" and word[-1:] == "c"
        if number and takes_command:
            scripts = [one.replace("\\\\", "\\") for one in words[number + 1 : number + 2]]
            return [
                *scripts,
                *(text for one in scripts for text in _evaluated_in_script(one)),
            ]
    return []


def _evaluated_in_script(script: str) -> list[str]:
    """Return what a script evaluates. The last is the command; those before it prepare it.

    What stands inside one of them is not asked for by itself.
    """
    words: list[str] = []
    at = 0
    while place := _EVAL.search(script, at):
        word, at = _first_shell_word(script, place.end())
        if word is not None:
            words.insert(0, word)
    return words


def _first_shell_word(text: str, at: int) -> tuple[str | None, int]:
    """Return the word that a shell would read there, and where it ends.

    A word that was cut off has to be long enough to be known by.
    """
    word = ""
    while found := _PIECE.match(text, at):
        at = found.end()
        piece, is_whole = _unquote_shell_word(found)
        word += piece
        if not is_whole:
            return (word if len(word) >= MOST else None), len(text)
    return word, at


def _unquote_shell_word(piece: re.Match[str]) -> tuple[str, bool]:
    """Return the piece without its quotes, and whether the closing one is there."""
    if piece["single"] is not None:
        return piece["single"], bool(piece["end"])
    if piece["double"] is not None:
        return re.sub(r"\\([\"\\$`!])", r"\1", piece["double"]), bool(piece["shut"])
    return piece["escaped"] or piece["plain"], True


# --- the category of a command ------------------------------------------------------------------

#: what an auditor asks about: tests, builds, packages, version control, the network, containers
_NAMES = {
    "test": "pytest py.test tox nox jest vitest mocha ava playwright rspec phpunit ctest bats"
    " cypress",
    "build": "make cmake ninja gradle mvn bazel cargo go dotnet tsc webpack vite rake just meson",
    "package": "pip pip3 pipx uv poetry pdm conda npm npx pnpm yarn bun gem bundle composer apt"
    " apt-get dnf apk brew",
    "vcs": "git gh glab hg svn jj",
    "network": "curl wget ssh scp sftp rsync nc ncat telnet ftp aws gcloud az",
    "container": "docker podman kubectl helm terraform ansible-playbook",
    "interpreter": "python python3 node deno ruby perl php Rscript java",
}
_CATEGORY_OF = {name: kind for kind, names in _NAMES.items() for name in names.split()}
DEFAULT_NAMES = tuple(_CATEGORY_OF)
_TEST_WORDS = {"test", "tests", "check", "t", "tst", "it"}
_MODULES = {"pytest", "unittest", "tox", "nox", "doctest"}
_RUNNERS = {"npx", "pnpm", "yarn", "bun", "bunx", "uv", "uvx", "poetry", "pdm", "bundle", "pipx"}


def command_category_of(name: str, words: Sequence[bytes]) -> str:
    """Return the category of a command, by its name and by words that make a test run of it."""
    category = _CATEGORY_OF.get(name, "other")
    plain = [os.fsdecode(word) for word in words]
    return "test" if category == "test" or _runs_tests(name, plain) else category


def _runs_tests(name: str, words: list[str]) -> bool:
    """Return whether a command runs tests, by its name and its words."""
    first = next((word for word in words if not word.startswith("-")), "")
    if name.rstrip("0123456789.") == "python":
        module = words[words.index("-m") + 1 :][:1] if "-m" in words else []
        return bool(module) and module[0] in _MODULES
    if name == "node":
        return "--test" in words
    if name in ("npm", "pnpm", "yarn", "bun"):
        after = words[words.index("run") + 1 :] if "run" in words else words
        script = next((word for word in after if not word.startswith("-")), "")
        if script in _TEST_WORDS or script.startswith("test:"):
            return True
    if name in _RUNNERS:
        return any(_CATEGORY_OF.get(word) == "test" or word in _MODULES for word in words)
    if name in ("go", "cargo", "dotnet", "make", "mvn", "gradle", "rake", "bazel", "just", "deno"):
        return any(word in _TEST_WORDS for word in words) or first == "nextest"
    return False
