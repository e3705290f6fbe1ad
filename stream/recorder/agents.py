"""Which agent a command starts, as far as its name tells, and which version it says it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from stream.process import capture
from stream.recorder.disclosure import readable
from stream.records.decision import CLAUDE_CODE
from stream.records.run import Profile

UNKNOWN = "unknown"
PATIENCE = 5.0  #: seconds for an answer
_VERSION = re.compile(rb"\d+\.\d+(?:\.\d+)?[0-9A-Za-z.+-]*")


class Agent(Struct, frozen=True):
    id: str
    provider: str = UNKNOWN
    is_known: bool = True  #: it answers --version and does nothing else then

    @property
    def profile(self) -> Profile:
        return "poc" if self.id == CLAUDE_CODE else "agents"


_KNOWN = {
    "claude": Agent(CLAUDE_CODE, "anthropic"),
    "codex": Agent("codex", "openai"),
    "gemini": Agent("gemini-cli", "google"),
    "qwen": Agent("qwen-code"),
    "opencode": Agent("opencode"),
    "copilot": Agent("copilot", "github"),
    "aider": Agent("aider"),
}


def identify(command: str) -> Agent:
    name = Path(command).name
    return _KNOWN.get(name) or Agent(readable(name) or UNKNOWN, is_known=False)


async def ask_version(
    agent: Agent, executable: str | None, cwd: str, env: Mapping[str, str]
) -> str:
    """Of a program that is known to answer. Any other could take the question for an order."""
    if executable is None or not agent.is_known:
        return UNKNOWN
    said = await capture(
        [executable, "--version"],
        env=env,
        cwd=cwd,
        timeout=PATIENCE,
        stdout_limit=4096,
        stderr_limit=0,
    )
    found = _VERSION.search(said.stdout.head)
    return found[0].decode() if said.exit_code == 0 and found else UNKNOWN
