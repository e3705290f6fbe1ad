"""The settings of sandbox-runtime (srt), and the same blocks in those of Claude Code, as rules.

Files may be read unless they are denied, and written only where it is allowed. Hosts are reached
only where they are allowed.
"""

from __future__ import annotations

from collections.abc import Iterator

from stream.boundary.policy_rules import (
    AGAIN,
    ALL,
    ALLOWED,
    ANY,
    DENIED,
    INCLUDED,
    OTHERWISE,
    PROTECTED,
    PolicyRule,
    ProbePlaces,
    Verb,
)
from stream.boundary.settings_files import SettingsFile
from stream.records.mode_files import Promise


class SandboxBlocks:
    """The blocks `filesystem`, `network` and `credentials` of settings, as rules."""

    def __init__(self, file: SettingsFile, places: ProbePlaces, *around: str) -> None:
        self._file = file
        self._places = places
        self._around = around

    def flag(self, *keys: str) -> bool | None:
        """Take a flag; None where it is not set."""
        return self._file.value_of(bool, *self._around, *keys)

    def file_rules(self) -> Iterator[PolicyRule]:
        """Yield the rules about files."""
        if self.flag("filesystem", "disabled"):
            yield self._flag_rule("read", "allow", ALL, AGAIN, "filesystem", "disabled")
            yield self._flag_rule("write", "allow", ALL, AGAIN, "filesystem", "disabled")
        yield from self._listed("read", "allow", AGAIN, "filesystem", "allowRead")
        yield from self._listed("read", "deny", DENIED, "filesystem", "denyRead")
        yield from self._listed("read", "deny", DENIED, "credentials", "files")
        yield self._rule("read", "allow", ALL, OTHERWISE, "filesystem", "denyRead")
        yield from self._listed("write", "deny", DENIED, "filesystem", "denyWrite")
        yield from self._listed("write", "allow", ALLOWED, "filesystem", "allowWrite")
        where, places = ("filesystem", "allowWrite"), self._places
        for path in (f"{places.workspace}/.git/hooks", f"{places.home}/.bashrc"):
            yield self._rule("write", "deny", path, PROTECTED, *where)
        yield self._rule("write", "allow", places.tmp, INCLUDED, *where)
        yield self._rule("write", "deny", ALL, OTHERWISE, *where)

    def network_rules(self, otherwise: Promise) -> Iterator[PolicyRule]:
        """Yield the rules about hosts and sockets. `otherwise`: of hosts that no rule names."""
        yield from self._listed("connect", "deny", DENIED, "network", "deniedDomains")
        yield from self._listed("connect", "allow", ALLOWED, "network", "allowedDomains")
        yield self._rule("connect", otherwise, ANY, OTHERWISE, "network", "allowedDomains")
        if self.flag("network", "allowAllUnixSockets"):
            yield self._flag_rule("socket", "allow", ANY, AGAIN, "network", "allowAllUnixSockets")
        yield from self._listed("socket", "allow", ALLOWED, "network", "allowUnixSockets")
        yield self._rule("socket", "deny", ANY, OTHERWISE, "network", "allowUnixSockets")
        nested = self.flag("allowNestedUserNamespaces")
        if nested is not None:
            promise: Promise = "allow" if nested else "deny"
            yield self._flag_rule("namespace", promise, ANY, AGAIN, "allowNestedUserNamespaces")

    def _rule(
        self, verb: Verb, promise: Promise, pattern: str, rank: int, *keys: str
    ) -> PolicyRule:
        """Return a rule that holds where no setting says otherwise, at the line of the setting that
        could: else at that of `enabled`, or of the block."""
        whole = (*self._around, *keys)
        if not self._file.has(*whole) and self._file.has(*self._around, "enabled"):
            whole = (*self._around, "enabled")
        return PolicyRule(verb, promise, pattern, self._file.setting(*whole), rank)

    def _flag_rule(
        self, verb: Verb, promise: Promise, pattern: str, rank: int, *keys: str
    ) -> PolicyRule:
        """Return the rule of a flag that is set."""
        setting = self._file.setting(*self._around, *keys)
        return PolicyRule(verb, promise, pattern, setting, rank, ".".join(keys))

    def _listed(self, verb: Verb, promise: Promise, rank: int, *keys: str) -> Iterator[PolicyRule]:
        """Yield the rules of a list of paths or hosts."""
        for text, place in self._file.texts(*self._around, *keys):
            pattern = text if verb == "connect" else self._places.path(text)
            setting, name = self._file.setting(*place), ".".join((*self._around, *keys))
            yield PolicyRule(verb, promise, pattern, setting, rank, f"{name}: {text}")


def sandbox_runtime_rules(file: SettingsFile, places: ProbePlaces) -> Iterator[PolicyRule]:
    """Yield the rules of a settings file of srt."""
    blocks = SandboxBlocks(file, places)
    if file.value_of(dict, "filesystem") is not None:
        yield from blocks.file_rules()
    if file.value_of(dict, "network") is not None:
        yield from blocks.network_rules("deny")
