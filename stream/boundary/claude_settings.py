"""The settings of Claude Code (settings.json): what its permissions and its sandbox promise.

A rule that denies goes before one that asks, and that before one that allows. The sandbox is for
the commands that Claude runs; what it promises by itself counts only where it is enabled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from stream.boundary.policy_rules import (
    ALL,
    ALLOWED,
    ANY,
    ASKED,
    DENIED,
    INCLUDED,
    PolicyRule,
    ProbePlaces,
    Verb,
)
from stream.boundary.sandbox_settings import SandboxBlocks
from stream.boundary.settings_files import SettingsFile
from stream.records.mode_files import Promise

_RULE = re.compile(r"([^()]+)(?:\((.*)\))?", re.DOTALL)
_VERBS: dict[str, Verb] = {
    "Read": "read",
    "Edit": "write",
    "Write": "write",
    "MultiEdit": "write",
    "NotebookEdit": "write",
    "WebFetch": "connect",
}
_RANKS: dict[Promise, int] = {"deny": DENIED, "ask": ASKED, "allow": ALLOWED}


def claude_rules(file: SettingsFile, places: ProbePlaces) -> Iterator[PolicyRule]:
    """Yield the rules of a settings file of Claude Code."""
    for promise in _RANKS:
        for text, place in file.texts("permissions", promise):
            yield _permission_rule(file, places, promise, text, *place)
    for text, place in file.texts("permissions", "additionalDirectories"):
        setting, name = file.setting(*place), f"additionalDirectories: {text}"
        yield PolicyRule("write", "allow", places.path(text), setting, ALLOWED, name)
    enabled = file.value_of(bool, "sandbox", "enabled")
    if enabled is False:
        return
    blocks = SandboxBlocks(file, places, "sandbox")
    is_strict = blocks.flag("network", "strictAllowlist")
    may_leave = blocks.flag("allowUnsandboxedCommands") is not False
    for rule in (*blocks.file_rules(), *blocks.network_rules("deny" if is_strict else "ask")):
        if rule.name:
            yield rule
        elif enabled:  # a command that may leave the sandbox has to ask for it
            is_asked = may_leave and rule.promise == "deny"
            yield replace(rule, promise="ask") if is_asked else rule
    if enabled:
        setting = file.setting("sandbox", "enabled")
        yield PolicyRule("write", "allow", places.workspace, setting, INCLUDED)


def _permission_rule(
    file: SettingsFile, places: ProbePlaces, promise: Promise, text: str, *place: str | int
) -> PolicyRule:
    """Return the rule of a permission, as `Edit(./docs/**)` or `WebFetch(domain:example.com)`."""
    found = _RULE.fullmatch(text)
    if found is None:
        raise file.error("expected a rule as Read(./docs/**)", *place)
    verb, inside = _VERBS.get(found[1]), found[2]
    pattern = text
    if verb == "connect":
        pattern = ANY if inside is None else inside.removeprefix("domain:")
    elif verb and inside is not None:
        pattern = places.path(inside, root=places.workspace)
    elif verb:
        # The folders that Claude works in are all that it edits without asking.
        is_all = verb == "read" or promise != "allow"
        pattern = ALL if is_all else f"{places.workspace}/**"
    name = f"permissions.{promise}: {text}"
    return PolicyRule(verb, promise, pattern, file.setting(*place), _RANKS[promise], name)
