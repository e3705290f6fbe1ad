"""The constraints of a scenario, as its list of them says: an id, a type, a rule."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args

from msgspec import Struct, field

from stream.errors import InputError
from stream.records.decision import CONSTRAINTS, Constraint, ConstraintType

UNKNOWN = "unknown"
_TYPES: tuple[ConstraintType, ...] = get_args(ConstraintType)
_ITEM = re.compile(r"^( {0,3})(?:[-*+]|\d{1,9}[.)])\s+(\S.*)$")
_NAME = r"[A-Za-z0-9_.-]{1,120}"
#: an id in backticks or bold, or one that has a dot; then perhaps a type, and a rule
_NAMED = re.compile(
    rf"(?:(?P<mark>`|\*\*|__)(?P<marked>{_NAME})(?P=mark)|(?P<bare>\w[\w-]*(?:\.[\w-]+)+))"
    rf"(?:\s*[(\[](?P<type>{'|'.join(_TYPES)})[)\]])?"
    r"(?:\s*(?::|[-–—]\s)|\s|$)\s*(?P<rule>.*)$",  # as people write it
    re.ASCII,
)
_KEY = re.compile(
    r"^\s*(?:[-*+]\s+)?[`*_]{0,2}(id|type|rule)[`*_]{0,2}:[`*_]{0,2}\s*(.*)$", re.IGNORECASE
)


class _Item(Struct):
    id: str = ""
    type: str = ""
    rule: list[str] = field(default_factory=list)


def read_constraints(lines: Iterable[str], place: Path) -> list[Constraint]:
    """Raises InputError. What is no item of the list, nor goes on with one, is for people."""
    found: dict[str, Constraint] = {}
    for number, item in enumerate(_items(lines), 1):
        one = _constraint(item, number, place)
        if found.setdefault(one.id, one) != one:
            raise InputError(f"{place}: the constraint {one.id} stands twice, and differs")
    return list(found.values())


def _items(lines: Iterable[str]) -> Iterator[_Item]:
    item: _Item | None = None
    for line in lines:
        start = _ITEM.match(line)
        is_inside = item is not None and line[:2].isspace()
        if start and not (is_inside and start[1] >= "  "):
            if item is not None:
                yield item
            item = _begun(start[2])
        elif item is not None and is_inside:
            _go_on(item, line)
    if item is not None:
        yield item


def _begun(text: str) -> _Item:
    item = _Item()
    if _KEY.match(text):
        _go_on(item, text)
    elif named := _NAMED.match(text):
        item = _Item(named["marked"] or named["bare"], named["type"] or "", [named["rule"]])
    else:
        item.rule.append(text)
    return item


def _go_on(item: _Item, line: str) -> None:
    key = _KEY.match(line)
    if key is None:
        item.rule.append(line)
    elif key[1].lower() == "rule":
        item.rule.append(key[2])
    else:
        setattr(item, key[1].lower(), key[2].strip("`*_\"' "))


def _constraint(item: _Item, number: int, place: Path) -> Constraint:
    """A constraint that the contract knows is recorded with the rule by which it is checked."""
    name = item.id or f"scenario.{number}"
    if not re.fullmatch(_NAME, name):
        raise InputError(f"{place}: {name!r} is no id of a constraint: letters, digits, . _ -")
    if item.type and item.type not in _TYPES:
        raise InputError(f"{place}: {name}: the type is none of {', '.join(_TYPES)}")
    if known := CONSTRAINTS.get(name):
        if item.type not in ("", known.type):
            raise InputError(f"{place}: {name}: its type is {known.type}, not {item.type}")
        return known
    first = name.partition(".")[0]
    kind: ConstraintType = next((kind for kind in _TYPES if kind in (item.type, first)), "other")
    rule = " ".join(" ".join(item.rule).split())
    return Constraint(name, kind, rule or UNKNOWN)
