"""What an agent was asked for: the request, the constraints, the parameters. Read, never guessed.

A scenario is a Markdown file with the headings `Request` (or `User Request (Raw)`) and, if there
are any, `Constraints` (or `Explicit Constraints`): a list of items with an id, a type and a rule.
Next to it may lie `parameters.json`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

from msgspec import Struct, field

from stream.errors import InputError, UsageError, encodable, os_reason
from stream.records.decision import CONSTRAINTS, CaptureMode, Constraint, ConstraintType
from stream.records.run import WorkspaceMode

UNKNOWN = "unknown"
LARGEST = 4 << 20  #: bytes of a request
_MODES: dict[str, WorkspaceMode] = {"empty": "empty", "existing": "copy"}
NUMBERS = ("temperature", "top_p", "max_tokens")  #: of the model
_HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$")
_SECTIONS = {
    **dict.fromkeys(("request", "user request", "user request (raw)"), "request"),
    **dict.fromkeys(("constraints", "explicit constraints"), "constraints"),
}


class Scenario(Struct):
    """What an agent was asked for."""

    id: str = UNKNOWN
    request: str = UNKNOWN
    constraints: list[Constraint] = field(default_factory=list)
    remark: str = ""  #: what people should know of how it was read
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def workspace_mode(self) -> WorkspaceMode | None:
        """The workspace mode that the parameters state."""
        return _MODES.get(self.parameters.get("workspace_mode", ""))

    @property
    def capture_mode(self) -> CaptureMode | None:
        """The capture mode that the parameters state."""
        return self.parameters.get("capture_mode")


def read_scenario(
    path: Path | None, parameters: Path | None, request: str | None, constraints: list[str]
) -> Scenario:
    """Read a scenario. What the command line gives goes before what the files state."""
    scenario = Scenario()
    if path is not None:
        file = path / "scenario.md" if path.is_dir() else path
        scenario = _parse_scenario(_read_text_file(file), file)
        scenario.id = encodable(path.resolve().name if path.is_dir() else file.stem)
        if parameters is None and (found := file.with_name("parameters.json")).is_file():
            parameters = found
    if parameters is not None:
        scenario.parameters = _read_parameters(parameters)
        scenario.id = scenario.parameters.get("scenario_id", scenario.id)
    if request is not None:
        scenario.request = _read_request(request)
    given = [_known_constraint(id_) for id_ in constraints]
    scenario.constraints += [one for one in given if one not in scenario.constraints]
    return scenario


def _known_constraint(id_: str) -> Constraint:
    """Return the constraint of a name on the command line. Raise UsageError where it is unknown."""
    if id_ not in CONSTRAINTS:
        raise UsageError(
            f"--constraint: {id_!r} is no constraint that can be checked: {', '.join(CONSTRAINTS)};"
            " others stand in a scenario, with their rule"
        )
    return CONSTRAINTS[id_]


def _read_request(text: str) -> str:
    """Return the request of the command line, or the text of the file that `@FILE` names."""
    if text.startswith("@"):
        text = _read_text_file(Path(text[1:]))
    if not text.strip():
        raise UsageError("--request: it is empty")
    return text


def _parse_scenario(text: str, path: Path) -> Scenario:
    """Read the request and the constraints of a scenario, which stand under headings."""
    parts: dict[str, list[str]] = {}
    lines: list[str] = []
    fenced, level = False, 0
    for line in text.splitlines():
        fenced ^= line.lstrip().startswith(("```", "~~~"))
        heading = None if fenced else _HEADING.match(line)
        section = _SECTIONS.get(heading[2].casefold().rstrip(" :")) if heading else None
        if heading and section:
            if section in parts:
                raise InputError(f"{path}: the heading {heading[2]!r} stands twice")
            lines = parts.setdefault(section, [])
            level = len(heading[1])
        elif heading and "constraints" in parts and len(heading[1]) <= level:
            lines = []  # what follows the constraints is for people
        else:
            lines.append(line)
    request = "\n".join(parts.get("request", [])).strip()
    if not request:
        raise InputError(f"{path}: no request: it stands under a heading `Request`")
    lines = parts.get("constraints", [])
    constraints = read_constraints(lines, path)
    is_prose = not constraints and any(line.strip() for line in lines)
    remark = f"{path}: no constraint was read: they stand in a list, and there is none"
    return Scenario(request=request, constraints=constraints, remark=remark if is_prose else "")


def _read_parameters(path: Path) -> dict[str, Any]:
    """Read the parameters file of a scenario. Raise InputError where one is malformed."""
    import json

    from stream.codec import read_document

    value = read_document(path)
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected an object")
    id_ = value.get("scenario_id", UNKNOWN)
    if not isinstance(id_, str) or not id_:
        raise InputError(f"{path}: $.scenario_id: expected text")
    for key in NUMBERS:
        if not isinstance(value.get(key), int | float | None) or isinstance(value.get(key), bool):
            raise InputError(f"{path}: $.{key}: expected a number")
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InputError(f"{path}: half of a surrogate pair is no text") from None
    for key, known in (("workspace_mode", _MODES), ("capture_mode", get_args(CaptureMode))):
        if key in value and value[key] not in known:
            raise InputError(f"{path}: $.{key}: expected one of {', '.join(known)}")
    return value


def _read_text_file(path: Path) -> str:
    """Read a text file of a scenario of bounded size. Raise InputError."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise InputError(f"{path}: {os_reason(error)}") from None
    if len(data) > LARGEST:
        raise InputError(f"{path}: larger than {LARGEST} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: invalid UTF-8 at byte {error.start}") from None


# --- the list of constraints ----------------------------------------------------------------------

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


class _ConstraintItem(Struct):
    """An item of the list of constraints."""

    id: str = ""
    type: str = ""
    rule: list[str] = field(default_factory=list)


def read_constraints(lines: Iterable[str], path: Path) -> list[Constraint]:
    """Read the list of constraints, or raise InputError.

    What is no item of the list, nor continues one, is for people.
    """
    found: dict[str, Constraint] = {}
    for number, item in enumerate(_constraint_items(lines), 1):
        one = _constraint_of_item(item, number, path)
        if found.setdefault(one.id, one) != one:
            raise InputError(f"{path}: the constraint {one.id} stands twice, and differs")
    return list(found.values())


def _constraint_items(lines: Iterable[str]) -> Iterator[_ConstraintItem]:
    """Yield the list items of a scenario's constraints."""
    item: _ConstraintItem | None = None
    for line in lines:
        start = _ITEM.match(line)
        is_inside = item is not None and line[:2].isspace()
        if start and not (is_inside and start[1] >= "  "):
            if item is not None:
                yield item
            item = _new_constraint_item(start[2])
        elif item is not None and is_inside:
            _continue_constraint_item(item, line)
    if item is not None:
        yield item


def _new_constraint_item(text: str) -> _ConstraintItem:
    """Begin a constraint with the first line of its list item."""
    item = _ConstraintItem()
    if _KEY.match(text):
        _continue_constraint_item(item, text)
    elif named := _NAMED.match(text):
        item = _ConstraintItem(
            named["marked"] or named["bare"], named["type"] or "", [named["rule"]]
        )
    else:
        item.rule.append(text)
    return item


def _continue_constraint_item(item: _ConstraintItem, line: str) -> None:
    """Add a further line of its list item to a constraint."""
    key = _KEY.match(line)
    if key is None:
        item.rule.append(line)
    elif key[1].lower() == "rule":
        item.rule.append(key[2])
    else:
        setattr(item, key[1].lower(), key[2].strip("`*_\"' "))


def _constraint_of_item(item: _ConstraintItem, number: int, path: Path) -> Constraint:
    """Return the constraint; one that the contract knows has the rule by which it is checked."""
    name = item.id or f"scenario.{number}"
    if not re.fullmatch(_NAME, name):
        raise InputError(f"{path}: {name!r} is no id of a constraint: letters, digits, . _ -")
    if item.type and item.type not in _TYPES:
        raise InputError(f"{path}: {name}: the type is none of {', '.join(_TYPES)}")
    if known := CONSTRAINTS.get(name):
        if item.type not in ("", known.type):
            raise InputError(f"{path}: {name}: its type is {known.type}, not {item.type}")
        return known
    first = name.partition(".")[0]
    kind: ConstraintType = next((kind for kind in _TYPES if kind in (item.type, first)), "other")
    return Constraint(name, kind, " ".join(" ".join(item.rule).split()) or UNKNOWN)
