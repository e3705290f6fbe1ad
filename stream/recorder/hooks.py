"""Hooks for Claude Code that put down what they are told, and nothing else.

A hook first reads all of it, and then appends it to a log as one line, under a lock. Whatever
happens to it, the agent's call goes on; one that is ended in the midst of its line costs that
line and no other. One that does not come to its line leaves a mark that it was there.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path

from msgspec import Struct

EVENTS = ("PreToolUse", "PostToolUse", "PostToolUseFailure")
LIMIT = 10  #: seconds of a hook, after which the agent goes on without it
_NEEDS = ("tr", "flock")

# No bash: it looks for a terminal, a user and a locale, all of which a kernel feed would tell of
# the agent. Of a line before that has no end, the newline that comes first is the end.
_SCRIPT = """#!/bin/sh
{{
  said=$({tr} '\\n' ' ')
  {{ {flock} -w 5 9 && printf '\\n%s\\n' "$said" >&9; }} 9>>{log} || echo >>{missed}
}} >/dev/null 2>&1
exit 0
"""


class Hooks(Struct, frozen=True):
    log: Path
    missed: Path  #: a byte of each that did not write its line
    program: Path
    settings: Path
    helpers: tuple[str, ...]

    @property
    def environment(self) -> dict[bytes, bytes]:
        return {
            b"STREAM_HOOK": os.fsencode(self.program),
            b"STREAM_HOOK_SETTINGS": os.fsencode(self.settings),
        }


def lacking_for_hooks() -> list[str]:
    """Programs that they need, and that are not here."""
    return [name for name in _NEEDS if shutil.which(name) is None]


def make_hooks(home: Path) -> Hooks:
    """In a folder that is there. Who makes them removes it. Raises OSError."""
    programs = {name: shutil.which(name) or name for name in _NEEDS}
    hooks = Hooks(
        home / "hooks.ndjson",
        home / "hooks.missed",
        home / "hook",
        home / "hooks.json",
        tuple(programs.values()),
    )
    names = {**programs, "log": str(hooks.log), "missed": str(hooks.missed)}
    script = _SCRIPT.format(**{name: shlex.quote(path) for name, path in names.items()})
    command = {"type": "command", "command": shlex.quote(str(hooks.program)), "timeout": LIMIT}
    every = [{"matcher": "*", "hooks": [command]}]
    settings = {"hooks": dict.fromkeys(EVENTS, every)}
    for path, text, mode in (
        (hooks.log, "", 0o600),
        (hooks.missed, "", 0o600),
        (hooks.program, script, 0o700),
        (hooks.settings, json.dumps(settings), 0o600),
    ):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(fd, "wb") as file:
            file.write(os.fsencode(text))
    return hooks
