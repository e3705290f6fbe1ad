"""The contract of a mode's file: how a probe starts in a sandbox, and what that promises."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from stream.records.boundary import SandboxMode

Promise = Literal["allow", "deny", "ask"]


class ModeDocument(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A file of catalogs/modes."""

    title: str
    command: list[str]  #: `{probe}` stands for the words that run the probe
    as_user: list[str] | None = None  #: the command where the probes do not run as root
    sandbox: str | None = None  #: name of the sandbox
    sandbox_mode: SandboxMode | None = None  #: declared, and only recorded
    needs: tuple[str, ...] = ()  #: programs on PATH
    install: str = ""  #: how what it needs is installed
    version: tuple[str, ...] = ()  #: the command that prints its version in its first line
    platforms: tuple[str, ...] = ("linux",)
    untested: bool = False
    start_seconds: float = 0.0  #: that its start may take, beside the time of a probe
    network: bool = True  #: it may be started inside of the stand-in's network namespace
    #: two of them at a time disturb each other, as by files that both make in /tmp
    alone: bool = False
    #: a setuid program, which can do nothing in the user namespace that an ordinary user's
    #: stand-in is in
    setuid: bool = False
    env: dict[str, str] = {}
    files: dict[str, str] = {}  #: settings files, by path
    promises: dict[str, Promise] = {}  #: by capability: what its settings promise


def settings_of(document: ModeDocument) -> dict[str, Any]:
    """Return the parts of a mode that decide what it lets through."""
    return {
        "command": document.command,
        "as_user": document.as_user,
        "env": document.env,
        "files": document.files,
    }
