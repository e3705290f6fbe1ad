"""Find the agent that a command line starts, and its version: declared, or read from its files.

The command is looked for behind the usual launchers: shells, `env`, `timeout`, `npx`. Only words
are read for that; a script of the user's own stays what it is. A version is what the words, or the
program's files, or else the program itself state.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from stream.errors import InputError, UsageError, encodable
from stream.records.decision import CLAUDE_CODE
from stream.records.run import AgentKnownBy, Profile, VersionKnownBy

UNKNOWN = "unknown"
_LONGEST = 120  #: characters of a name


class Agent(Struct, frozen=True):
    """An agent, and how it was recognised."""

    id: str
    provider: str = UNKNOWN
    known_by: AgentKnownBy = "command"
    package: str = ""  #: its name on npm or PyPI; empty: this agent is not known
    version: str = UNKNOWN  #: as far as the words state it
    program: str = ""  #: what can be looked at for its version: a name on PATH, or a path

    @property
    def profile(self) -> Profile:
        """The profile of the run's events."""
        return "poc" if self.id == CLAUDE_CODE else "agents"


_KNOWN = {
    "claude": Agent(CLAUDE_CODE, "anthropic", package="@anthropic-ai/claude-code"),
    "codex": Agent("codex", "openai", package="@openai/codex"),
    "gemini": Agent("gemini-cli", "google", package="@google/gemini-cli"),
    "qwen": Agent("qwen-code", package="@qwen-code/qwen-code"),
    "opencode": Agent("opencode", package="opencode-ai"),
    "copilot": Agent("copilot", "github", package="@github/copilot"),
    "aider": Agent("aider", package="aider-chat"),
}
_BY_NAME = {
    **{agent.package: agent for agent in _KNOWN.values()},
    **{agent.id: agent for agent in _KNOWN.values()},
    **_KNOWN,
}


class Version(Struct, frozen=True):
    """A version, and how it became known."""

    text: str = UNKNOWN
    known_by: VersionKnownBy = "unknown"


def identify_agent(words: Sequence[str], declared: str | None = None) -> Agent:
    """Return the agent that was declared, as NAME or NAME@VERSION, else the one that words start.

    Without a known agent in the words it is the name of the command. Raise UsageError where the
    declaration is malformed.
    """
    found = _started_agent(words)
    if declared is None:
        return found
    name, version = _split_name_and_version(declared)
    is_scope = name.startswith("@") and "/" not in name  # of packages, and no name of one
    is_clean = name == name.strip() and name.isprintable() and len(name) <= _LONGEST
    if not name or is_scope or not is_clean:
        raise UsageError(f"--agent {declared!r}: expected NAME or NAME@VERSION")
    if not version and "@" in declared[1:]:
        raise UsageError(f"--agent {declared!r}: there is no version behind the @")
    agent = replace(_BY_NAME.get(name) or Agent(encodable(name)), known_by="declared")
    if version:
        return replace(agent, version=encodable(version))
    # Where the words start the same agent, its program can be looked at.
    return replace(agent, program=found.program) if agent.id == found.id else agent


async def find_agent_version(agent: Agent, program: Path | None) -> Version:
    """Return the version that the words, the program's files, or the program itself states."""
    if agent.version != UNKNOWN:
        return Version(agent.version, agent.known_by)
    if program is None or not agent.package:
        return Version()
    if version := read_program_version(program, agent.package):
        return Version(version, "files")
    if version := await ask_program_version(program):
        return Version(version, "answer")
    return Version()


def _started_agent(words: Sequence[str]) -> Agent:
    """Return the one known agent that a command line starts, else the name of its command."""
    agents = {
        agent.id: agent for launch in launched_commands(words) if (agent := _known_agent(launch))
    }
    if len(agents) == 1:
        return next(iter(agents.values()))
    name = Path(words[0]).name
    return _known_agent(Launch(words[:1])) or Agent(encodable(name) or UNKNOWN)


def _known_agent(launch: Launch) -> Agent | None:
    """Return the known agent that a started command is, by its package or program."""
    word = launch.words[0]
    if launch.is_package:
        name, version = _split_name_and_version(word)
        agent = _BY_NAME.get(name)
        # A range, or a tag, is one of many versions.
        return agent and replace(agent, version=exact_version(version) or UNKNOWN)
    *_, inside = word.rpartition("node_modules/")
    scope, _, rest = inside.partition("/")
    package = f"{scope}/{rest.partition('/')[0]}" if scope.startswith("@") else scope
    agent = _KNOWN.get(Path(word).name) or (_BY_NAME.get(package) if inside != word else None)
    return agent and replace(agent, program=word if launch.is_plain else "")


def _split_name_and_version(text: str) -> tuple[str, str]:
    """Return name and version; an @ at the beginning is part of the name."""
    name, _, version = text[1:].partition("@")
    return text[:1] + name, version


# --- the commands behind launchers ----------------------------------------------------------------

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
    """A command that a command line starts in the end."""

    words: Sequence[str]
    is_plain: bool = True  #: found by the same PATH, and from the same folder
    is_package: bool = False  #: its first word is the name of a package, perhaps with a version


def launched_commands(words: Sequence[str], depth: int = 0) -> Iterator[Launch]:
    """Yield the commands that are started in the end, as far as the words state them."""
    found = list(_launches_behind_launcher(words, depth + 1)) if words and depth < _DEEPEST else []
    if found:
        yield from found
    elif words:
        yield Launch(words)


def _launches_behind_launcher(words: Sequence[str], depth: int) -> Iterator[Launch]:
    """Yield the commands that a launcher on a command line (`env`, `npx`, a shell) starts."""
    name = re.sub(r"^python[\d.]+$", "python", Path(words[0]).name)
    if name in _SHELLS:
        yield from _launches_behind_shell(words, depth)
        return
    for length in (3, 2, 1):
        if launcher := _LAUNCHERS.get(" ".join((name, *words[1:length]))):
            yield from _skip_launcher(words[length:], launcher, depth)
            return


def _skip_launcher(words: Sequence[str], launcher: Launcher, depth: int) -> Iterator[Launch]:
    """Yield the commands behind the options and assignments of a launcher."""
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
    for launch in launched_commands(words[at:], depth):
        is_package = launch.is_package or launcher.is_fetcher
        yield Launch(launch.words, is_plain and launch.is_plain, is_package)


def _launches_behind_shell(words: Sequence[str], depth: int) -> Iterator[Launch]:
    """Yield each command of a script that is in the words; not of one in a file."""
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
    for command in _script_commands(words[at]):
        while command and (command[0] in _KEYWORDS or re.match(_ASSIGNMENT, command[0])):
            is_plain &= not command[0].startswith("PATH")
            command = command[1:]
        if "$@" in command:
            position = command.index("$@")
            command[position : position + 1] = words[at + 2 :]
        for launch in launched_commands(command, depth):
            is_here = not moved or "/" not in launch.words[0] or launch.words[0].startswith("/")
            yield Launch(launch.words, is_plain and is_here and launch.is_plain, launch.is_package)
        moved |= command[:1] == ["cd"]
        is_plain &= not command or command[0] in _HARMLESS


def _script_commands(script: str) -> Iterator[list[str]]:
    """Yield the simple commands of a script, up to what is no plain list of words."""
    import shlex  # which most runs need not load

    lexer = shlex.shlex(script, posix=True, punctuation_chars=";&|()<>\n")
    lexer.whitespace = " \t\r"
    command: list[str] = []
    is_file = False  # the next word is a file that is read from or written to
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


# --- versions -------------------------------------------------------------------------------------

PATIENCE = 5.0  #: seconds for an answer
_LEVELS = 6  #: of folders above a program, in which its package.json may lie
_LONGEST_VERSION = 64
_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?[0-9A-Za-z.+-]*")
#: ELF, and the forms of Mach-O
_NATIVE = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xfe\xed\xfa\xcf", b"\xca\xfe\xba\xbe")


def exact_version(text: object) -> str | None:
    """Return the text, where it is one version and nothing else."""
    is_one = isinstance(text, str) and len(text) <= _LONGEST_VERSION and _VERSION.fullmatch(text)
    return is_one[0] if is_one else None


def read_program_version(program: Path, package: str) -> str | None:
    """Return the version that the files of a program state; nothing is started.

    An installer names the program by its version, or puts a `.version` file next to it; npm has a
    package.json above it, pip the metadata of the package next to its `bin`.
    """
    file = Path(os.path.realpath(program))
    version_file = file.with_name(f"{file.name}.version")
    if version := exact_version(file.name):
        return version
    try:
        if version_file.is_file() and version_file.stat().st_size < 1000:
            found = _VERSION.match(version_file.read_text().strip())
            return found and exact_version(found[0])
    except (OSError, UnicodeDecodeError):
        return None
    stated = {*_version_from_npm(file, package), *_version_from_pip(file, package)}
    return stated.pop() if len(stated) == 1 else None


def _version_from_npm(program: Path, package: str) -> Iterator[str]:
    """Yield an agent's version from the package.json of the npm package around its program."""
    from stream.codec import read_document

    for folder in list(program.parents)[:_LEVELS]:
        file = folder / "package.json"
        try:
            document: Any = read_document(file) if file.is_file() else None
        except (InputError, OSError):
            continue
        if not isinstance(document, dict):
            continue
        name = document.get("name")
        # A program for one platform comes in a package of its own.
        is_its = isinstance(name, str) and (name == package or name.startswith(f"{package}-"))
        if is_its and (version := exact_version(document.get("version"))):
            yield version
            return


def _version_from_pip(program: Path, package: str) -> Iterator[str]:
    """Yield an agent's version from the dist-info of the Python package that has its program."""
    if program.parent.name != "bin":
        return
    name = package.replace("-", "_")
    for folder in program.parent.parent.glob(f"lib/python*/site-packages/{name}-*.dist-info"):
        if version := exact_version(folder.name.removesuffix(".dist-info").rpartition("-")[2]):
            yield version


async def ask_program_version(program: Path) -> str | None:
    """Return what a native program answers to `--version`.

    It runs in an empty folder that is removed again, with nothing of the user's environment but
    PATH. A script is never asked: it could take the question for an order.
    """
    if not _is_native_program(program):
        return None
    from tempfile import TemporaryDirectory  # most runs need not load them

    from stream.process.capture import capture

    try:
        with TemporaryDirectory(prefix="stream-", ignore_cleanup_errors=True) as folder:
            env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": folder, "TMPDIR": folder}
            answer = await capture(
                [str(program), "--version"],
                env=env,
                cwd=folder,
                timeout=PATIENCE,
                stdout_limit=4096,
                stderr_limit=0,
            )
    except OSError:
        return None
    found = _VERSION.search(answer.stdout.head.decode(errors="replace"))
    return exact_version(found[0]) if answer.exit_code == 0 and found else None


def _is_native_program(program: Path) -> bool:
    try:
        if not program.is_file():  # reading a fifo would wait
            return False
        with program.open("rb") as file:
            return file.read(4) in _NATIVE
    except OSError:
        return False
