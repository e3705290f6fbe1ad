"""Which agent a command line starts: by the name of its program, or as somebody declares it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from stream.errors import UsageError
from stream.recorder.disclosure import readable
from stream.recorder.launchers import Launch, launches
from stream.recorder.versions import ask_version, read_version, whole_version
from stream.records.decision import CLAUDE_CODE
from stream.records.run import AgentKnownBy, Profile, VersionKnownBy

UNKNOWN = "unknown"
_LONGEST = 120  #: characters of a name


class Agent(Struct, frozen=True):
    id: str
    provider: str = UNKNOWN
    known_by: AgentKnownBy = "command"
    package: str = ""  #: by which npm or PyPI has it; empty: nobody knows this agent
    version: str = UNKNOWN  #: as far as words tell it
    program: str = ""  #: what can be looked at for its version: a name on PATH, or a path

    @property
    def profile(self) -> Profile:
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
    text: str = UNKNOWN
    known_by: VersionKnownBy = "unknown"


def identify(words: Sequence[str], declared: str | None = None) -> Agent:
    """By the one known agent that the words start, directly or behind usual launchers; else by the
    name of the command. What is declared, as NAME or NAME@VERSION, goes before that.

    Raises UsageError.
    """
    found = _found(words)
    if declared is None:
        return found
    name, version = _split(declared)
    is_scope = name.startswith("@") and "/" not in name  # of packages, and no name of one
    if (
        not name
        or is_scope
        or name != name.strip()
        or not name.isprintable()
        or len(name) > _LONGEST
    ):
        raise UsageError(f"--agent {declared!r}: expected NAME or NAME@VERSION")
    if not version and "@" in declared[1:]:
        raise UsageError(f"--agent {declared!r}: there is no version behind the @")
    agent = replace(_BY_NAME.get(name) or Agent(readable(name)), known_by="declared")
    if version:
        return replace(agent, version=readable(version))
    # Where the words start the same agent, its program can be looked at.
    return replace(agent, program=found.program) if agent.id == found.id else agent


async def find_version(agent: Agent, program: Path | None) -> Version:
    """What the words say, else the program's files, else the program itself."""
    if agent.version != UNKNOWN:
        return Version(agent.version, agent.known_by)
    if program is None or not agent.package:
        return Version()
    if told := read_version(program, agent.package):
        return Version(told, "files")
    if told := await ask_version(program):
        return Version(told, "answer")
    return Version()


def _found(words: Sequence[str]) -> Agent:
    agents = {agent.id: agent for launch in launches(words) if (agent := _known(launch))}
    if len(agents) == 1:
        return next(iter(agents.values()))
    name = Path(words[0]).name
    return _known(Launch(words[:1])) or Agent(readable(name) or UNKNOWN)


def _known(launch: Launch) -> Agent | None:
    word = launch.words[0]
    if launch.is_package:
        name, version = _split(word)
        agent = _BY_NAME.get(name)
        # A range, or a tag, is one of many versions.
        return agent and replace(agent, version=whole_version(version) or UNKNOWN)
    *_, inside = word.rpartition("node_modules/")
    scope, _, rest = inside.partition("/")
    package = f"{scope}/{rest.partition('/')[0]}" if scope.startswith("@") else scope
    agent = _KNOWN.get(Path(word).name) or (_BY_NAME.get(package) if inside != word else None)
    return agent and replace(agent, program=word if launch.is_plain else "")


def _split(text: str) -> tuple[str, str]:
    """Name and version; an @ at the beginning is part of the name."""
    name, _, version = text[1:].partition("@")
    return text[:1] + name, version
