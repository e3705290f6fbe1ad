"""The settings of Codex (config.toml): what its sandbox modes promise.

`read-only` lets commands read everything and change nothing, `workspace-write` lets them write to
the workspace and to temporary folders, but not to .git. Both keep commands from the network.
"""

from __future__ import annotations

from collections.abc import Iterator

from stream.boundary.policy_rules import (
    ALL,
    ALLOWED,
    ANY,
    INCLUDED,
    OTHERWISE,
    PROTECTED,
    PolicyRule,
    ProbePlaces,
    Verb,
)
from stream.boundary.settings_files import Keys, SettingsFile
from stream.records.boundary import SANDBOX_MODES
from stream.records.mode_files import Promise

_TABLE = "sandbox_workspace_write"
#: the profiles that are built in, by the sandbox modes that they are
_PROFILES = {
    ":read-only": "read-only",
    ":workspace": "workspace-write",
    ":danger-full-access": "danger-full-access",
}


def codex_rules(file: SettingsFile, places: ProbePlaces) -> Iterator[PolicyRule]:
    """Yield the rules of a settings file of Codex."""
    where, mode = _sandbox_mode(file)
    if mode is None:
        return
    setting = file.setting(*where)
    table = _TABLE if where[-1] == "sandbox_mode" else ""

    def rule(verb: Verb, promise: Promise, pattern: str, rank: int, key: str = "") -> PolicyRule:
        """Return a rule that holds at the line of a setting, else at that of the mode."""
        line = file.setting(table, key) if key and file.has(table, key) else setting
        return PolicyRule(verb, promise, pattern, line, rank)

    has_network = is_open = mode == "danger-full-access"
    if mode == "workspace-write":
        for text, place in file.texts(table, "writable_roots"):
            name = f"{_TABLE}.writable_roots: {text}"
            path = places.path(text)
            yield PolicyRule("write", "allow", path, file.setting(*place), ALLOWED, name)
        yield rule("write", "deny", f"{places.workspace}/.git", PROTECTED)
        yield rule("write", "allow", places.workspace, INCLUDED)
        temporary = {"exclude_slash_tmp": "/tmp", "exclude_tmpdir_env_var": places.tmp}  # noqa: S108
        for key, path in temporary.items():
            is_excluded = file.value_of(bool, table, key)
            yield rule("write", "deny" if is_excluded else "allow", path, INCLUDED, key)
        has_network = file.value_of(bool, table, "network_access") or False
    yield rule("read", "allow", ALL, OTHERWISE)
    yield rule("write", "allow" if is_open else "deny", ALL, OTHERWISE)
    network: Promise = "allow" if has_network else "deny"
    yield rule("connect", network, ANY, OTHERWISE, "network_access")
    yield rule("resolve", network, ANY, OTHERWISE, "network_access")


def _sandbox_mode(file: SettingsFile) -> tuple[Keys, str | None]:
    """Return the keys of the setting that chooses the sandbox mode, and the mode; None: it is
    chosen elsewhere. That of the profile that is chosen goes before the rest."""
    places: list[Keys] = [("sandbox_mode",)]
    profile = file.value.get("profile")
    if isinstance(profile, str) and file.has("profiles", profile, "sandbox_mode"):
        file.take("profile")
        places.insert(0, ("profiles", profile, "sandbox_mode"))
    for keys in places:
        mode = file.value_of(str, *keys)
        if mode is not None:
            if mode not in SANDBOX_MODES:
                raise file.error(f"expected one of {', '.join(SANDBOX_MODES)}", *keys)
            return keys, mode
    name = file.value.get("default_permissions")
    if not isinstance(name, str) or name not in _PROFILES:
        return (), None
    file.take("default_permissions")
    return ("default_permissions",), _PROFILES[name]
