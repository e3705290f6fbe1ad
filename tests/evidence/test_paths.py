"""Paths come out as they went in, sorted, whatever they are like; and a record in pieces is the
record."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.evidence import surface
from stream.evidence.surface import PathsByKey, StreamedRecord
from stream.records.artifacts import CapabilitySurface, Companion

# What sorts before, as and behind a slash, and names that begin as others do.
PATHS = st.text("/-.0aé", max_size=8)
ADDED = st.lists(st.tuples(PATHS, st.integers(0, 3)), max_size=40)


def make_table(added: list[tuple[str, int]]) -> PathsByKey[int]:
    table: PathsByKey[int] = PathsByKey()
    for path, key in added:
        table.add_paths([path], key)
    return table


@given(ADDED, st.integers(1, 5))
def test_every_path_with_its_keys_in_order(added: list[tuple[str, int]], size: int) -> None:
    expected: dict[str, set[int]] = {}
    for path, key in added:
        expected.setdefault(path, set()).add(key)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(surface, "_PIECE", size)
        pieces = list(make_table(added).path_pieces(tuple))
    found = [item for piece in pieces for item in zip(*piece, strict=True)]
    assert [path for path, _ in found] == sorted(expected)
    assert [path for path, _ in found] == sorted(expected, key=str.encode)
    assert {path: set(keys) for path, keys in found} == expected
    assert all(len(set(keys)) == len(keys) for _, keys in found)
    assert all(0 < len(some) <= size for some, _ in pieces)
    assert list(make_table(added)) == sorted(expected)


def test_many_at_once_are_the_same_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surface, "_MOST_SHARED", 3)
    given_paths = [f"/d{number % 7}/f{number % 11}" for number in range(200)]
    table: PathsByKey[int] = PathsByKey()
    table.add_paths(given_paths[:50], 1)
    table.add_paths(given_paths[50:], 1)
    assert list(table.path_pieces(tuple)) == list(
        make_table([(path, 1) for path in given_paths]).path_pieces(tuple)
    )


def test_a_deep_path_is_nothing_special() -> None:
    deep = ["/" * number for number in range(0, 5000, 50)] + ["/".join("ab" * 5000)]
    assert list(make_table([(path, 0) for path in deep])) == sorted(deep)


RECORDS = st.one_of(
    st.builds(
        CapabilitySurface,
        run_id=st.from_regex(r"[A-Za-z0-9_-]+", fullmatch=True),
        filesystem_paths=st.lists(st.text()),
    ),
    st.builds(
        Companion,
        run_id=st.from_regex(r"[A-Za-z0-9_-]+", fullmatch=True),
        capture=st.just({"x": [1, None]}),
        filtered=st.dictionaries(st.text(), st.integers(0)),
        paths=st.dictionaries(st.text(), st.lists(st.text())),
        failed_paths=st.dictionaries(st.text(), st.lists(st.text())),
    ),
)


@given(RECORDS, st.integers(1, 3))
def test_in_pieces_it_is_the_same_record(record: Any, size: int) -> None:
    names = [name for name in record.__struct_fields__ if "paths" in name]
    outline = msgspec.structs.replace(
        record, **{name: type(getattr(record, name))() for name in names}
    )

    def pieces(name: str) -> Any:
        value = getattr(record, name)
        items = list(value.items()) if isinstance(value, dict) else value
        kind = type(value)
        yield kind()
        for start in range(0, len(items), size):
            yield kind(items[start : start + size])

    made = StreamedRecord(outline, {name: partial(pieces, name) for name in names})
    assert b"".join(made.encoded_record()) == msgspec.json.encode(record)
    assert made.whole_record() == record
    assert b"".join(StreamedRecord(record, {}).encoded_record()) == msgspec.json.encode(record)
