"""The words of `stream diff --fail-on`: whether one holds of a comparison, and why."""

from __future__ import annotations

from collections.abc import Iterator

from stream.comparison.difference import Side, blindness, is_anything_unbound, is_same
from stream.records.runner import CapabilityDiff

#: By the word for it: a set of the surface, and what one of it is called.
_SETS = {
    "paths": ("filesystem_paths", "path"),
    "endpoints": ("network_endpoints", "endpoint"),
    "execs": ("process_execs", "program"),
    "tools": ("mcp_tools", "tool"),
    "decisions": ("policy_decisions", "decision"),
}
WORDS = (
    *(f"{how}-{what}" for what in _SETS for how in ("added", "removed")),
    *("changed-policy", "partial", "unbound", "any"),
)
_NO_KERNEL = "kernel_layer=absent"


def reason(word: str, found: CapabilityDiff) -> str:
    """Why the word holds. Empty: it does not."""
    if word == "any":
        return ", ".join(_all_reasons(found))
    if word == "partial":
        return "" if found.status == "clean" else f"the status is {found.status}: {found.notes[0]}"
    if word == "unbound":
        return "something belongs to no call" if is_anything_unbound(found) else ""
    if word == "changed-policy":
        count = len(found.policy_outcomes["changed"])
        return f"{_number(count, 'call')} decided otherwise" if count else ""
    how, _, what = word.partition("-")
    name, one = _SETS[what]
    count = len(getattr(found.surface[name], how))
    # Nobody knows what was added where nobody looked.
    blind = _blind(found, "head" if how == "added" else "base", name)
    return "; ".join(filter(None, (_number(count, one) if count else "", blind)))


def _all_reasons(found: CapabilityDiff) -> Iterator[str]:
    words = [word for word in WORDS if word != "any" and reason(word, found)]
    yield from words
    if not words and not is_same(found):
        yield "a call is on one side only"


def _blind(found: CapabilityDiff, side: Side, name: str) -> str:
    fields = blindness(found, side, name)
    if not fields:
        return ""
    who = "A" if side == "base" else "B"
    if _NO_KERNEL in fields:
        return f"{who} has no kernel layer, so nobody knows"
    return f"{who} was not seen completely ({' '.join(fields)}), so nobody knows"


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
