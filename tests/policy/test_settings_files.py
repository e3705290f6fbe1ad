"""Settings files: each value has the line that it stands in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.boundary.settings_files import Keys, SettingsFile
from stream.errors import InputError

_LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=6)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=20,
)


def keys_of(value: Any, keys: Keys = ()) -> Iterator[Keys]:
    members: Any = ()
    if isinstance(value, dict):
        members = value.items()
    elif isinstance(value, list):
        members = enumerate(value)
    for key, member in members:
        yield (*keys, key)
        yield from keys_of(member, (*keys, key))


@given(st.dictionaries(st.text(max_size=4), _VALUES), st.booleans())
def test_every_key_of_json_has_its_line(value: dict[str, Any], is_ascii: bool) -> None:
    """With an indent, each key and each entry of a list stands in a line of its own."""
    text = json.dumps(value, indent=1, ensure_ascii=is_ascii)
    file = SettingsFile("x.json", text)
    lines = text.split("\n")
    seen = set()
    for keys in keys_of(value):
        line = file.line(*keys)
        assert line not in seen
        seen.add(line)
        if isinstance(keys[-1], str):
            assert lines[line - 1].lstrip().startswith(json.dumps(keys[-1], ensure_ascii=is_ascii))


TOML = """\
# comment = 1
title = "a # text" # key = 2
a.b = 1
"quoted.key" = 3
text = '''
table = 1
[not.a.table]
'''
list = [
  "x = 1",
  [1, 2],
]

[one.two]
key = 1

[[many]]
key = 1
[[many]]
key = 2
"""


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (("title",), 2),
        (("a", "b"), 3),
        (("a",), 3),
        (("quoted.key",), 4),
        (("text",), 5),
        (("list",), 9),
        (("list", 0), 9),
        (("one",), 14),
        (("one", "two"), 14),
        (("one", "two", "key"), 15),
        (("one", "two", "none"), 14),
        (("many",), 18),
        (("none",), 1),
    ],
)
def test_every_key_of_toml_has_its_line(keys: Keys, line: int) -> None:
    assert SettingsFile("x.toml", TOML).line(*keys) == line


def test_what_nobody_takes_is_left_over() -> None:
    file = SettingsFile("x.json", '{"a": {"b": 1, "c": {"d": [1]}}, "e": [2], "f": true}')
    assert [*file.left_over()] == [("a",), ("e",), ("f",)]
    assert file.value_of(bool, "f") is True
    assert file.value_of(int, "a", "b") == 1
    assert [*file.left_over()] == [("a", "c"), ("e",)]
    assert file.value_of(str, "a", "x", "y") is None
    assert [*file.left_over()] == [("a", "c"), ("e",)]


def test_a_line_is_quoted_so_that_it_cannot_be_anything_else() -> None:
    file = SettingsFile("x.json", '{"a": "\x7f\u202e' + "x" * 1000 + '",\n"\\nb": 1, "c": [3]}')
    assert "\x7f" not in file.setting("a").text
    assert len(file.setting("a").text) <= 160
    with pytest.raises(InputError) as caught:
        file.value_of(str, "\nb")
    assert str(caught.value) == r"x.json:2: \nb: expected a text"


@given(st.text(alphabet="{}[],:\"\\ \n0a=.#'", max_size=40))
def test_garbage_is_an_error_with_a_line(text: str) -> None:
    try:
        file = SettingsFile("x", text)
    except InputError as error:
        place, _, _ = str(error).partition(": ")
        assert place.startswith("x:")
        assert 1 <= int(place[2:]) <= text.count("\n") + 1
        return
    for keys in file.left_over():
        assert 1 <= file.line(*keys) <= text.count("\n") + 1
