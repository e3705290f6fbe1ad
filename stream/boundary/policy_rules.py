"""From the rules of settings (a pattern of paths or hosts that is allowed or denied) to promises of
capabilities: by the paths and hosts that the probes of a capability try. Pure.

A capability is promised something only where the settings say the same of everything that its
probes try. So a rule for one file in a folder promises nothing of the folder.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

from stream.errors import InputError
from stream.records.mode_files import Promise
from stream.records.policies import Policy, PolicyPromise, Setting, UnmeasuredSetting

Verb = Literal["read", "write", "connect", "resolve", "socket", "namespace"]
ALL = "/"  #: the pattern of all paths
ANY = "*"  #: the pattern of all hosts, and of what has no pattern
NOT_MEASURED = "it says nothing about a capability that is measured"
OVERRULED = "it decides about no measured capability alone"

#: What the probes of a capability try. `{…}` are places of a cell.
TARGETS: Mapping[Verb, Mapping[str, tuple[str, ...]]] = {
    "read": {
        "cap_fs_read_home_keys": ("{home}/.ssh/id_ed25519",),
        "cap_fs_read_workspace_tree": ("{workspace}/README.md",),
        "cap_fs_read_git_metadata": ("{workspace}/.git/config",),
        "cap_fs_read_system_roots": ("/etc/os-release", "/usr/lib/any"),
    },
    "write": {
        "cap_fs_write_workspace_tree": ("{workspace}/any",),
        "cap_fs_write_git_hooks": ("{workspace}/.git/hooks/any",),
        "cap_fs_write_git_metadata": ("{workspace}/.git/any",),
        "cap_fs_write_outside_workspace": ("{outside}/any",),
        "cap_fs_write_home_dotfiles": ("{home}/.any", "{home}/.bashrc"),
        "cap_fs_write_system_roots": ("/etc/any", "/usr/any"),
        "cap_fs_write_temp": ("/tmp/any", "{tmp}/any"),  # noqa: S108
    },
    "connect": {
        "cap_net_outbound_allowed": ("allowed.example.test",),
        "cap_net_outbound_any": ("denied.example.test", "198.51.100.80"),
        "cap_net_metadata": ("169.254.169.254",),
    },
    "resolve": {"cap_net_dns": (ANY,)},
    "socket": {"cap_net_unix_socket": ("{socket}",)},
    "namespace": {"cap_proc_user_namespaces": (ANY,)},
}
_GLOB = re.compile(r"(\*\*/)+|\*+|\?|[^*?]+")


class ProbePlaces(Struct, frozen=True):
    """The places that probes try, as far as they are known before they run."""

    workspace: str
    home: str
    outside: str
    tmp: str
    socket: str

    def path(self, text: str, *, root: str = ALL) -> str:
        """Return the pattern of a path in settings: `~` is the home folder, a relative path lies
        in the workspace, and one that begins with `/` in `root`."""
        if text.startswith("//"):
            text, root = text[1:], ALL
        text = re.sub(r"(?<=.)/+(\*\*?)?/*$", "", text)
        if text == "~" or text.startswith("~/"):
            return self.home + text[1:]
        if text.startswith(ALL):
            return posixpath.normpath(root.rstrip("/") + text)
        return posixpath.normpath(f"{self.workspace}/{text}")


def places_in_slots(home: str | None) -> ProbePlaces:
    """Return the places of probes in modes: they lie in a folder in the home folder of the user."""
    slot = f"{home or ''}/.stream-run/0"
    names = ("workspace", "home", "outside", "tmp", "socket")
    return ProbePlaces(*(f"{slot}/{name}" for name in names))


class PolicyRule(Struct, frozen=True):
    """A rule of settings, or what holds where none applies."""

    verb: Verb | None  #: None: it is about nothing that probes try
    promise: Promise
    pattern: str
    setting: Setting
    rank: int  #: of rules that apply, the one with the smallest decides
    name: str = ""  #: of the setting; empty: it is what holds where no setting says otherwise


# The ranks of rules: what is denied goes before what is allowed, and both before what holds else.
AGAIN, DENIED, PROTECTED, ASKED, ALLOWED, INCLUDED, OTHERWISE = range(7)


def policy_of_rules(rules: Iterable[PolicyRule], places: ProbePlaces) -> Policy:
    """Return what rules promise of capabilities, and which of them promise nothing. Raise
    InputError where one allows what another denies."""
    ordered = sorted(rules, key=lambda rule: rule.rank)
    _check_opposites(ordered)
    promises, used = [], set[PolicyRule]()
    for verb, capabilities in TARGETS.items():
        of_verb = [rule for rule in ordered if rule.verb == verb]
        for capability, targets in capabilities.items():
            deciding = [_deciding(of_verb, one, places) for one in targets]
            first = deciding[0]
            if first and all(one and one.promise == first.promise for one in deciding):
                promises.append(PolicyPromise(capability, first.promise, first.setting))
                used.update(filter(None, deciding))
    return Policy(
        tuple(promises),
        tuple(
            UnmeasuredSetting(rule.setting, rule.name, _reason(rule, places))
            for rule in ordered
            if rule.name and rule not in used
        ),
    )


def covers(verb: Verb | None, pattern: str, target: str) -> bool:
    """Tell whether a pattern includes a target: a folder includes what lies in it."""
    if pattern == ANY:
        return True
    if verb == "connect":
        host = pattern.lower()
        return target == host or (host.startswith("*.") and target.endswith(host[1:]))
    return re.fullmatch(_expression(pattern.rstrip("/")) + "(?:/.*)?", target) is not None


def _expression(pattern: str) -> str:
    """Return a pattern of paths as a regular expression."""
    parts = []
    for found in _GLOB.finditer(pattern):
        word = found[0]
        if word.startswith("**/"):
            parts.append("(?:.*/)?")
        elif word[0] == "*":
            parts.append("[^/]*" if word == "*" else ".*")
        else:
            parts.append("[^/]" if word == "?" else re.escape(word))
    return "".join(parts)


def _placed(target: str, places: ProbePlaces) -> str:
    """Return a target with the places in it."""
    return re.sub(r"\{(\w+)\}", lambda found: getattr(places, found[1]), target)


def _deciding(rules: Iterable[PolicyRule], target: str, places: ProbePlaces) -> PolicyRule | None:
    """Return the rule that decides about a target."""
    path = _placed(target, places)
    return next((rule for rule in rules if covers(rule.verb, rule.pattern, path)), None)


def _reason(rule: PolicyRule, places: ProbePlaces) -> str:
    """Return why a rule promises nothing."""
    if rule.verb is None:
        return NOT_MEASURED
    targets = (one for targets in TARGETS[rule.verb].values() for one in targets)
    applies = any(covers(rule.verb, rule.pattern, _placed(one, places)) for one in targets)
    return OVERRULED if applies else NOT_MEASURED


def _check_opposites(rules: Iterable[PolicyRule]) -> None:
    """Raise InputError where the same is allowed and denied: one pattern, or one rule as it is
    written."""
    seen: dict[tuple[str | None, ...], PolicyRule] = {}
    for rule in rules:
        written = rule.name.partition(": ")[2]
        for what in ((rule.verb, rule.pattern), (written,)) if written else ():
            seen.setdefault((*what, rule.promise), rule)
            denied, allowed = seen.get((*what, "deny")), seen.get((*what, "allow"))
            if denied and allowed:
                name = denied.name.partition(": ")[2]
                raise opposites_error(denied.setting, allowed.setting, name)


def opposites_error(denied: Setting, allowed: Setting, what: str) -> InputError:
    """Return the error of a policy that denies and allows the same."""
    return InputError(
        f"{denied.place}: the policy contradicts itself: {what} is denied here, and allowed in"
        f" {allowed.place}: {allowed.text}"
    )
