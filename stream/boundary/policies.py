"""Policies: what settings promise of capabilities, read from a policy file or from the settings of
a sandbox or an agent. What a file is, is seen from what it contains."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import get_args

from stream.boundary.claude_settings import claude_rules
from stream.boundary.codex_settings import codex_rules
from stream.boundary.policy_rules import (
    NOT_MEASURED,
    PolicyRule,
    ProbePlaces,
    opposites_error,
    policy_of_rules,
)
from stream.boundary.sandbox_settings import sandbox_runtime_rules
from stream.boundary.settings_files import SettingsFile, read_settings
from stream.errors import InputError, printable
from stream.records.mode_files import ModeDocument, Promise
from stream.records.policies import Policy, PolicyPromise, UnmeasuredSetting

#: What reads a file, by whether it is JSON and what it contains; the first that fits.
_READERS: tuple[tuple[bool, set[str], Callable[..., Iterator[PolicyRule]]], ...] = (
    (True, {"permissions", "sandbox"}, claude_rules),
    (True, {"network", "filesystem"}, sandbox_runtime_rules),
    (
        False,
        {"sandbox_mode", "sandbox_workspace_write", "approval_policy", "default_permissions"},
        codex_rules,
    ),
)
_PROMISES: tuple[Promise, ...] = get_args(Promise)
_STRICTEST = ("deny", "ask", "allow")


def read_policies(
    paths: Sequence[str], places: ProbePlaces, capabilities: Collection[str]
) -> Policy:
    """Read files as one policy. Of two promises the stricter one holds. Raise InputError with file
    and line for what cannot be used, and where one denies what another allows."""
    promises: dict[str, PolicyPromise] = {}
    unmeasured: list[UnmeasuredSetting] = []
    for path in paths:
        policy = _read_policy(path, places)
        unmeasured += policy.unmeasured
        for promise in policy.promises:
            other = promises.setdefault(promise.capability, promise)
            strict, lax = sorted((promise, other), key=lambda one: _STRICTEST.index(one.promise))
            if (strict.promise, lax.promise) == ("deny", "allow"):
                raise opposites_error(strict.setting, lax.setting, promise.capability)
            promises[promise.capability] = strict
    check_capabilities(promises.values(), capabilities)
    return Policy(tuple(promises.values()), tuple(unmeasured))


def _read_policy(path: str, places: ProbePlaces) -> Policy:
    """Read one file as a policy. Raise InputError with file and line."""
    file = read_settings(path)
    keys = file.value.keys()
    if "promises" in keys:
        policy = Policy(promises_in(file))
        for name in ModeDocument.__struct_fields__:  # a mode's file is a policy as well
            file.take(name)
    else:
        rules = (one for is_json, some, one in _READERS if is_json is file.is_json and some & keys)
        import_rules = next(rules, None)
        if import_rules is None:
            raise InputError(
                f"{path}:1: not a policy: it has neither promises nor settings of Claude Code,"
                " srt or Codex"
            )
        policy = policy_of_rules(import_rules(file, places), places)
    left = (
        UnmeasuredSetting(file.setting(*keys), ".".join(map(str, keys)), NOT_MEASURED)
        for keys in file.left_over()
    )
    return Policy(policy.promises, (*policy.unmeasured, *left))


def promises_in(file: SettingsFile) -> tuple[PolicyPromise, ...]:
    """Return the promises of a policy file, or of a mode's file. Raise InputError with file and
    line."""
    promises = []
    for capability in file.value_of(dict, "promises") or ():
        promise = file.value_of(str, "promises", capability)
        if promise not in _PROMISES:
            raise file.error(f"expected one of {', '.join(_PROMISES)}", "promises", capability)
        setting = file.setting("promises", capability)
        promises.append(PolicyPromise(capability, promise, setting))
    return tuple(promises)


def check_capabilities(promises: Iterable[PolicyPromise], capabilities: Collection[str]) -> None:
    """Raise InputError, with the place and a close name, for a capability that no catalog has."""
    for promise in promises:
        if promise.capability not in capabilities:
            close = get_close_matches(promise.capability, capabilities, n=1)
            hint = f"did you mean {close[0]}?" if close else "see `stream matrix --list`"
            name = printable(promise.capability)
            raise InputError(f"{promise.setting.place}: unknown capability: {name} ({hint})")
