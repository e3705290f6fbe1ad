"""Settings files in TOML or JSON: their values, and the line that each stands in.

Who reads a setting takes it. What nobody took is left over, so that nothing is ignored silently.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

from stream.errors import InputError, printable, reporting, shorten_text
from stream.records.policies import Setting

T = TypeVar("T")
Keys = tuple[str | int, ...]
_MOST = 1 << 20  #: bytes of a file
_SHOWN = 160  #: characters of a line in a message
_TYPES: dict[type, str] = {bool: "true or false", str: "a text", list: "a list", dict: "a table"}
# Only what is in them may look like a key: comments and texts of several lines.
_HIDDEN = re.compile(
    r"""(?P<hidden>\#[^\n]*|\"{3}(?:\\.|[^\\])*?\"{3}|'{3}.*?'{3})"""
    r"""|"(?:\\.|[^"\\\n])*"|'[^'\n]*'""",
    re.DOTALL,
)
_NAME = r"""(?:[\w-]+|"(?:\\.|[^"\\\n])*"|'[^'\n]*')"""
_KEY = re.compile(rf"\s*({_NAME}(?:\s*\.\s*{_NAME})*)\s*=")
_TABLE = re.compile(rf"\s*\[\[?\s*({_NAME}(?:\s*\.\s*{_NAME})*)\s*\]\]?\s*$")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


class SettingsFile:
    """A file of settings that was read."""

    def __init__(self, source: str, text: str) -> None:
        self.source = source
        self.text = text
        self.is_json = text.lstrip()[:1] == "{"
        self._taken: set[Keys] = set()
        self._lines: dict[Keys, int] = {}
        again: dict[int, Keys] = {}  # keys that may stand twice, by the second line
        for keys, line in (_json_lines if self.is_json else _toml_lines)(text):
            if keys in self._lines:
                again.setdefault(line, keys)
            self._lines.setdefault(keys, line)
        line, fault, self.value = self._parse()
        if self.is_json and again and not fault:
            line = next(iter(again))
        if line in again:
            first = self._lines[again[line]]
            fault = f"{_path(again[line])}: it stands in line {first} as well"
        if fault:
            raise InputError(f"{source}:{line}: {fault}")

    def _parse(self) -> tuple[int, str, dict[str, Any]]:
        """Parse the text. Return the line of a fault, the fault, and the value."""
        try:
            return 0, "", json.loads(self.text) if self.is_json else tomllib.loads(self.text)
        except json.JSONDecodeError as error:
            return error.lineno, _lowered(error.msg), {}
        except tomllib.TOMLDecodeError as error:
            found = re.search(r"line (\d+)", str(error))
            line = int(found[1]) if found else self.text.count("\n") + 1
            return line, _lowered(re.sub(r" \(at .*\)$", "", str(error))), {}
        except (RecursionError, ValueError) as error:  # an integer of too many digits
            return 1, _lowered(str(error)), {}

    def line(self, *keys: str | int) -> int:
        """Return the line of a key: of a table without a line of its own, that of what is in it,
        and of what is not there, that of the closest table around it."""
        while keys and keys not in self._lines:
            inner = (line for key, line in self._lines.items() if key[: len(keys)] == keys)
            if (line := next(inner, None)) is not None:
                return line
            keys = keys[:-1]
        return self._lines.get(keys, 1)

    def has(self, *keys: str | int) -> bool:
        """Tell whether there is a setting of these keys."""
        return keys in self._lines

    def setting(self, *keys: str | int) -> Setting:
        """Return the line of a key, or of the closest table around it, as it is written."""
        line = self.line(*keys)
        text = self.text.split("\n")[line - 1]
        return Setting(self.source, line, shorten_text(text.strip().rstrip(","), _SHOWN))

    def error(self, reason: str, *keys: str | int) -> InputError:
        """Return the error that a setting is not what it can be."""
        path = _path(keys)
        return InputError(f"{self.source}:{self.line(*keys)}: {path}{': ' if path else ''}{reason}")

    def value_of(self, kind: type[T], *keys: str | int) -> T | None:
        """Take a value of a type; None where there is none. Raise InputError for another type."""
        value: Any = self.value
        for index, key in enumerate(keys):
            if isinstance(value, dict):
                if key not in value:
                    return None
                value = value[key]
            elif isinstance(value, list) and isinstance(key, int):
                value = value[key]
            else:
                raise self.error(f"expected {_TYPES[dict]}", *keys[:index])
        if not isinstance(value, kind):
            raise self.error(f"expected {_TYPES[kind]}", *keys)
        if kind is not dict:
            self.take(*keys)
        return value

    def texts(self, *keys: str | int) -> Iterator[tuple[str, Keys]]:
        """Take the texts of a list, each with its keys. An entry may also be a table with a
        `path`."""
        for index, entry in enumerate(self.value_of(list, *keys) or ()):
            inner = (*keys, index, "path") if isinstance(entry, dict) else (*keys, index)
            if (text := self.value_of(str, *inner)) is None:
                raise self.error("expected a text, or a table with a path", *keys, index)
            yield text, (*keys, index)

    def take(self, *keys: str | int) -> None:
        """Take a key: it is understood."""
        self._taken.add(keys)

    def left_over(self) -> Iterator[Keys]:
        """Yield the keys of the settings that nobody took, of each the outermost."""
        around = {(), *(keys[:end] for keys in self._taken for end in range(len(keys)))}
        waiting: list[tuple[Keys, Any]] = [((), self.value)]
        while waiting:
            keys, value = waiting.pop()
            if keys in self._taken:
                continue
            if keys in around and isinstance(value, dict):
                waiting += [((*keys, key), value[key]) for key in reversed(value)]
            elif keys:
                yield keys


def read_settings(path: str) -> SettingsFile:
    """Read a settings file. Raise InputError with file and line."""
    with reporting(path), Path(path).open("rb") as file:
        data = file.read(_MOST + 1)
    if len(data) > _MOST:
        raise InputError(f"{path}: larger than {_MOST} bytes")
    try:
        return SettingsFile(path, data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}:{data[: error.start].count(10) + 1}: not UTF-8") from None


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def _path(keys: Keys) -> str:
    """Write keys as people do."""
    return printable(".".join(key for key in keys if isinstance(key, str)))


def _toml_lines(text: str) -> Iterator[tuple[Keys, int]]:
    """Yield the keys of a TOML text, each with its line. They need not make sense."""
    shown = _HIDDEN.sub(
        lambda found: "\n" * found[0].count("\n") if found["hidden"] else found[0], text
    )
    table: Keys = ()
    for line, words in enumerate(shown.split("\n"), 1):
        if found := _TABLE.match(words):
            table = _toml_keys(found[1])
            if not words.lstrip().startswith("[["):
                yield table, line
        elif found := _KEY.match(words):
            yield (*table, *_toml_keys(found[1])), line


def _toml_keys(dotted: str) -> Keys:
    """Return the parts of a dotted key."""
    try:
        value: Any = tomllib.loads(f"{dotted} = 0")
    except tomllib.TOMLDecodeError:
        return (dotted,)
    keys: list[str | int] = []
    while isinstance(value, dict):
        keys += value
        value = value[keys[-1]]
    return (*keys,)


def _json_lines(text: str) -> Iterator[tuple[Keys, int]]:
    """Yield the keys of a JSON text and the places of its lists, each with its line. The text need
    not be whole."""
    starts = list(accumulate((len(line) for line in text.split("\n")), lambda a, b: a + b + 1))
    line = 0
    keys: list[str | int] = []  # of what is open
    lists: list[bool] = []
    before = ""
    for found in _TOKEN.finditer(text):
        while found.start() > starts[line]:
            line += 1
        word = found[0]
        if word not in "}],:" and before in ("[", ",") and lists and lists[-1]:
            yield (*keys,), line + 1
        if word in "{[":
            lists.append(word == "[")
            keys.append(0 if word == "[" else "")
        elif word in "}]" and lists:
            lists.pop()
            keys.pop()
        elif word == "," and lists and lists[-1]:
            keys[-1] = int(keys[-1]) + 1
        elif word[0] == '"' and before in ("{", ",") and lists and not lists[-1]:
            try:
                keys[-1] = json.loads(word)
            except json.JSONDecodeError:
                return
            yield (*keys,), line + 1
        before = word
