"""Catalogs, descriptors and defaults: what is wrong is named, and which one is in force."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from stream.boundary.descriptors import (
    find_catalogs,
    find_descriptor,
    load_catalog,
    load_descriptor,
    make_catalog,
    make_descriptor,
)
from stream.codec import BUNDLE, LARGEST, read_document
from stream.errors import InputError
from stream.records.control import Fault
from tests.transformers.samples import HERE, line, record

CATALOG: dict[str, Any] = {
    "schema_version": "sandbox_catalog_v1",
    "catalog": {"key": "mine_v1", "title": "Mine"},
    "scope": {
        "description": "d",
        "categories": {"filesystem": "files"},
        "policy_layers": [{"id": "os_sandbox", "description": "the kernel"}],
    },
    "docs": {"man": {"title": "The manual"}},
    "capabilities": [
        {
            "id": "cap_a",
            "category": "filesystem",
            "layer": "os_sandbox",
            "description": "d",
            "operations": {},
            "sources": [{"doc": "man"}],
        }
    ],
}
PATTERN: dict[str, Any] = {"properties": {"schema_version": {"const": "p1"}}}
DESCRIPTOR: dict[str, Any] = {
    "schema_version": "boundary_schema_v1",
    "key": "mine-v1",
    "pattern_version": "p1",
    "schema": PATTERN,
}


def change_value(value: dict[str, Any], path: str, new: Any) -> dict[str, Any]:
    value = copy.deepcopy(value)
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    inner: Any = value
    for step in steps:
        inner = inner[step]
    if new is ...:
        del inner[last]
    else:
        inner[last] = new
    return value


@pytest.mark.parametrize(
    ("path", "new", "message"),
    [
        ("capabilities", CATALOG["capabilities"] * 2, "duplicate capability id cap_a"),
        ("scope.categories", {}, "capability cap_a references unknown category filesystem"),
        ("scope.policy_layers", [], "capability cap_a references unknown layer os_sandbox"),
        ("scope.policy_layers", ..., "capability cap_a references unknown layer os_sandbox"),
        ("docs", {}, "capability cap_a references unknown doc 'man'"),
        ("capabilities", [], "$.capabilities: expected `array` of length >= 1"),
        ("capabilities.0.id", " ", "a capability has a blank id"),
        ("capabilities.0.extra", 1, "$.capabilities[0]: object contains unknown field `extra`"),
        ("capabilities.0.labels", ["a", "a"], "$.capabilities[0]: expected unique labels"),
        ("catalog.title", " \t", "$.catalog.title: expected a text that is not blank"),
        ("catalog.key", "a b", "$.catalog.key: expected letters, digits, `_`, `.` and `-`"),
        ("catalog.key", "a\n", "$.catalog.key: expected letters, digits"),
        ("catalog.labels", ["a", "a"], "$.catalog: expected unique labels"),
        ("docs.man.title", "", "$.docs[...].title: expected a text that is not blank"),
        ("catalog", ..., "object missing required field `catalog`"),
        ("schema_version", "v2", "$.schema_version: invalid enum value 'v2'"),
    ],
)
def test_what_is_wrong_with_a_catalog_is_named(path: str, new: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        make_catalog(change_value(CATALOG, path, new), HERE)
    assert str(caught.value).startswith(f"{HERE}: {message}")


def test_a_catalog_gives_snapshots() -> None:
    snapshot = make_catalog(CATALOG, HERE).snapshot("cap_a")
    assert (snapshot.id, snapshot.category, snapshot.layer) == (
        "cap_a",
        "filesystem",
        "os_sandbox",
    )


@pytest.mark.parametrize(
    ("path", "new", "message"),
    [
        ("key", ..., "object missing required field `key`"),
        ("schema_version", ..., "object missing required field `schema_version`"),
        ("pattern_version", ..., "object missing required field `pattern_version`"),
        ("schema", ..., "missing schema_path"),
        ("schema_path", "x.json", "both schema and schema_path are given"),
        ("schema_version", "boundary_schema_v2", "$.schema_version: invalid enum value"),
        ("key", "a b", "$.key: expected letters, digits"),
        ("key", "", "$.key: expected letters, digits"),
        ("pattern_version", "", "$.pattern_version: expected `str` of length >= 1"),
        ("pattern_version", "p2", "$.pattern_version: is 'p2' but the pattern version that"),
        ("schema", {}, "$.pattern_version: is 'p1' but the pattern version that"),
        ("schema", {**PATTERN, "type": 5}, "not a usable JSON Schema"),
        ("schema", {**PATTERN, "$ref": "https://example.org/x"}, "not a usable JSON Schema"),
        ("schema", [], "$.schema: expected `object`, got `array`"),
    ],
)
def test_what_is_wrong_with_a_descriptor_is_named(path: str, new: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        make_descriptor(change_value(DESCRIPTOR, path, new), HERE)
    assert str(caught.value).startswith(f"{HERE}: {message}")


@pytest.mark.parametrize(
    ("schema_path", "message"),
    [
        ("nowhere.json", "$.schema_path: schema not found: "),
        (".", "$.schema_path: schema not found: "),
        ("nul\0.json", "$.schema_path: schema not found: "),
        ("x" * 5000, "file name too long"),
        ("list.json", "expected a JSON Schema object"),
        ("broken.json", "malformed JSON at line 1 column 2"),
    ],
)
def test_a_schema_that_cannot_be_used_is_named(
    schema_path: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "broken.json").write_text("{")
    document = change_value(change_value(DESCRIPTOR, "schema", ...), "schema_path", schema_path)
    with pytest.raises(InputError) as caught:
        make_descriptor(document, tmp_path / "d.json")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "modes"),
    [
        ({"enum": ["caged", "baseline"]}, ("caged", "baseline")),
        ({"const": "caged"}, ("caged",)),
        ({"enum": ["caged", None, 5]}, ("caged",)),
        ({"enum": []}, ("baseline",)),
        ({"type": "string"}, ("baseline",)),
        (True, ("baseline",)),
    ],
)
def test_the_modes_are_those_that_the_pattern_lists(mode: Any, modes: tuple[str, ...]) -> None:
    pattern = copy.deepcopy(PATTERN)
    pattern["properties"]["run"] = {"properties": {"mode": mode}}
    assert make_descriptor({**DESCRIPTOR, "schema": pattern}, HERE).modes == modes


def test_a_pattern_names_what_is_wrong_and_where() -> None:
    pattern = {**PATTERN, "properties": {**PATTERN["properties"], "a": {"items": {"type": "null"}}}}
    check = make_descriptor({**DESCRIPTOR, "schema": pattern}, HERE).check
    assert check(b'{"a":[null]}') is None
    assert check(b'{"a":[null,5]}') == Fault('5 is not of type "null"', "$.a[1]")
    assert check(b"{") == Fault("malformed JSON: it ends too early")
    long = check(line({"a": ["x" * 10_000]}))
    assert long is not None
    assert len(long[0]) < 400
    for hostile in (b'{"a":"\xff"}', b"[" * 10_000, b'{"a":' + b"9" * 5000 + b"}"):
        assert check(hostile) is not None


def test_a_copy_of_the_pattern_is_as_good_as_the_pattern(tmp_path: Path) -> None:
    schema = (BUNDLE / "schema" / "boundary_object_schema.json").read_bytes()
    (tmp_path / "s.json").write_bytes(schema)
    document = {**DESCRIPTOR, "pattern_version": "boundary_event_v1", "schema_path": "s.json"}
    del document["schema"]
    descriptor = make_descriptor(document, tmp_path / "d.json")
    assert descriptor.canonical
    assert descriptor.check(line(record())) is None
    assert descriptor.check(line(record(run={"mode": "caged"}))) is not None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "malformed JSON at line 1 column 1"),
        (b'{"a": 1,\n "a": 2}', "$: duplicate key 'a'"),
        (b'{"x": [{}, {"a": 1, "a": 1}]}', "$.x[1]: duplicate key 'a'"),
        (b'{"x": {"b": {"c": 1, "c": 2}, "b": 0}, "y": 0}', "$.x: duplicate key 'b'"),
        (b'{"a": NaN}', "malformed JSON: NaN is no JSON number"),
        (b'{"a": "\xff"}', "invalid UTF-8 at byte 7"),
        (b"[" * 100_000, "nested too deeply"),
        (b"9" * 10_000, "Exceeds the limit"),
        (b" " * (LARGEST + 1), "larger than"),
    ],
    ids=lambda value: value[:20].decode(errors="replace") if isinstance(value, bytes) else None,
)
def test_a_document_that_cannot_be_used_is_named(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        read_document(path)
    assert str(caught.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize("name", ["absent", ".", "x" * 5000, "nul\0", "/dev/zero"])
def test_a_path_that_cannot_be_read_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_document(tmp_path / name)


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CATALOG_PATH", raising=False)
    monkeypatch.delenv("BOUNDARY_PATH", raising=False)


def write_tree(root: Path, name: str, defaults: Any = None) -> Path:
    """A probe tree with a catalog and a descriptor of its own."""
    folder = root / name / "catalogs"
    folder.mkdir(parents=True)
    catalog = change_value(CATALOG, "catalog.key", f"{name}_catalog")
    (folder / "c.json").write_text(json.dumps(catalog))
    (folder / "d.json").write_text(json.dumps({**DESCRIPTOR, "key": f"{name}-boundary"}))
    if defaults is None:
        defaults = {"catalog": "catalogs/c.json", "boundary": "catalogs/d.json"}
    (folder / "defaults.json").write_text(json.dumps(defaults))
    return root / name


@pytest.mark.usefixtures("no_environment")
def test_the_order_of_selection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag, env, tree = (write_tree(tmp_path, name) / "catalogs" for name in ("flag", "env", "tree"))

    def chosen_keys(flag: Path | None, tree: Path | None) -> tuple[str, bool, str]:
        catalogs = find_catalogs(str(flag / "c.json") if flag else None, tree)
        descriptor = find_descriptor(str(flag / "d.json") if flag else None, tree)
        return catalogs.first.key, catalogs.named, descriptor.key

    bundled = "linux_agent_v1" if sys.platform != "darwin" else "macOS_codex_v1"
    assert chosen_keys(None, None) == (bundled, False, "cfbo-v1")
    assert chosen_keys(None, tree.parent) == ("tree_catalog", False, "tree-boundary")
    monkeypatch.setenv("CATALOG_PATH", "")
    monkeypatch.setenv("BOUNDARY_PATH", "")
    assert chosen_keys(None, tree.parent) == ("tree_catalog", False, "tree-boundary")
    monkeypatch.setenv("CATALOG_PATH", str(env / "c.json"))
    monkeypatch.setenv("BOUNDARY_PATH", str(env / "d.json"))
    assert chosen_keys(None, tree.parent) == ("env_catalog", True, "env-boundary")
    assert chosen_keys(flag, tree.parent) == ("flag_catalog", True, "flag-boundary")


@pytest.mark.usefixtures("no_environment")
@pytest.mark.parametrize(
    ("defaults", "catalog", "boundary"),
    [
        ({}, "linux_agent_v1", "cfbo-v1"),
        ({"catalog": {"plan9": "catalogs/c.json"}}, "linux_agent_v1", "cfbo-v1"),
        ({"catalog": {"linux": "catalogs/c.json"}}, "t_catalog", "cfbo-v1"),
        ({"boundary": "catalogs/d.json"}, "linux_agent_v1", "t-boundary"),
    ],
)
def test_what_a_trees_defaults_do_not_say_is_bundled(
    defaults: Any, catalog: str, boundary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    tree = write_tree(tmp_path, "t", defaults)
    assert find_catalogs(None, tree).first.key == catalog
    assert find_descriptor(None, tree).key == boundary


@pytest.mark.usefixtures("no_environment")
@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ([], "expected `object`, got `array`"),
        ({"catalogue": "x"}, "object contains unknown field `catalogue`"),
        ({"catalog": ""}, "$.catalog: expected `str` of length >= 1"),
        ({"catalog": "catalogs/none.json"}, "none.json: no such file or directory"),
        ({"catalog": "a\0b"}, "embedded null byte"),
    ],
)
def test_defaults_that_cannot_be_used_are_named(
    defaults: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        find_catalogs(None, write_tree(tmp_path, "t", defaults))
    assert message in str(caught.value)


@pytest.mark.usefixtures("no_environment")
def test_one_key_is_one_catalog(tmp_path: Path) -> None:
    """A tree's own macOS catalog is not completed from the bundled one of the same key."""
    tree = write_tree(tmp_path, "t")
    own = change_value(CATALOG, "catalog.key", "macOS_codex_v1")
    (tree / "catalogs" / "c.json").write_text(json.dumps(own))
    catalogs = find_catalogs(None, tree)
    assert [catalog.key for catalog in catalogs.known] == ["macOS_codex_v1", "linux_agent_v1"]
    assert catalogs.find_catalog("cap_mach_lookup_system_logger") is None


@pytest.mark.usefixtures("no_environment")
def test_without_a_named_catalog_the_other_bundled_one_helps() -> None:
    catalogs = find_catalogs(None)
    other = catalogs.find_catalog("cap_mach_lookup_system_logger")
    assert other is not None
    assert other.key == "macOS_codex_v1"
    assert "cap_mach_lookup_system_logger" in catalogs.capability_ids()
    named = find_catalogs(str(BUNDLE / "catalogs" / "linux_agent_v1.json"))
    assert named.find_catalog("cap_mach_lookup_system_logger") is None


def test_loading_names_the_file(tmp_path: Path) -> None:
    for load in (load_catalog, load_descriptor):
        with pytest.raises(InputError, match="no such file or directory"):
            load(tmp_path / "none.json")
