"""The published data of the reference, and what is bundled, keep both sets of contracts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from stream.boundary.descriptors import (
    Boundaries,
    Catalog,
    known_catalogs,
    load_catalog,
    load_descriptor,
)
from stream.boundary.scripts import Script, find_scripts
from stream.codec import BUNDLE, read_document
from stream.errors import InputError
from stream.records.boundary import Defaults, decode_boundary, encode_boundary
from stream.transformers.validate import Validate
from tests.transformers.samples import DATA, lines, make_builder, run_transformer

THEIRS = DATA / "fencerunner"
BUNDLED = [BUNDLE / "catalogs" / f"{name}.json" for name in ("linux_agent_v1", "macos_codex_v1")]
RECORDS = [
    pytest.param(line, id=f"{path.name}:{number}")
    for path in sorted(THEIRS.glob("*.ndjson"))
    for number, line in enumerate(path.read_bytes().splitlines(), 1)
]


def load_validator(path: Path) -> jsonschema_rs.Draft7Validator:
    return jsonschema_rs.Draft7Validator(json.loads(path.read_text()))


def test_there_are_as_many_records_as_there_were() -> None:
    assert len(RECORDS) >= 60
    names = {line.name for line in THEIRS.iterdir()}
    assert "LICENSE" in names


@pytest.mark.parametrize("line", RECORDS)
def test_a_published_record_is_valid_here_and_there(line: bytes) -> None:
    record = decode_boundary(line)
    for folder in (BUNDLE / "schema", THEIRS):
        load_validator(folder / "boundary_object_schema.json").validate(json.loads(line))
    assert json.loads(encode_boundary(record)) == json.loads(line)


def test_the_published_records_pass_validate_unchanged() -> None:
    items = [line.values[0] for line in RECORDS]
    transformer = Validate(Boundaries([make_builder().descriptor], known_catalogs()), is_last=True)
    out, control = run_transformer(transformer, [lines(*items)])  # type: ignore[arg-type]
    assert out == items
    assert control == []


def test_the_records_of_the_55_published_probes_speak_for_55_probes() -> None:
    path = THEIRS / "history55-records.ndjson"
    ids = [decode_boundary(line).probe.id for line in path.read_bytes().splitlines()]
    assert len(set(ids)) == len(ids) == 55


def test_their_catalog_loads() -> None:
    catalog = load_catalog(THEIRS / "macos_codex_v1.json")
    assert catalog.key == "macOS_codex_v1"
    assert len(catalog.capabilities) == 22


def test_their_descriptor_loads(tmp_path: Path) -> None:
    for folder, name in (
        ("catalogs", "cfbo-v1.json"),
        ("catalogs", "defaults.json"),
        ("schema", "boundary_object_schema.json"),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_bytes((THEIRS / name).read_bytes())
    descriptor = load_descriptor(tmp_path / "catalogs" / "cfbo-v1.json")
    assert (descriptor.key, descriptor.modes) == ("cfbo-v1", ("baseline",))
    for line in RECORDS:
        assert descriptor.check(line.values[0]) is None  # type: ignore[arg-type]
    assert descriptor.check(b"{}") is not None
    with pytest.raises(InputError, match="schema not found"):
        load_descriptor(THEIRS / "cfbo-v1.json")


@pytest.mark.parametrize("path", [*BUNDLED, THEIRS / "macos_codex_v1.json"], ids=str)
def test_a_catalog_is_valid_here_and_there(path: Path) -> None:
    for folder in (BUNDLE / "schema", THEIRS):
        load_validator(folder / "capability_catalog.schema.json").validate(read_document(path))


def test_the_macos_ids_are_the_published_ones() -> None:
    ours, theirs = load_catalog(BUNDLED[1]), load_catalog(THEIRS / "macos_codex_v1.json")
    assert ours.key == theirs.key

    def facts(catalog: Catalog) -> dict[str, tuple[str, str]]:
        return {name: (c.category, c.layer) for name, c in catalog.capabilities.items()}

    assert facts(ours) == facts(theirs)


@pytest.mark.parametrize("path", BUNDLED, ids=str)
def test_everything_that_a_catalog_declares_is_used(path: Path) -> None:
    """Loading it has shown that everything that is used is declared."""
    load_catalog(path)
    value: dict[str, Any] = read_document(path)
    capabilities = value["capabilities"]
    assert {c["category"] for c in capabilities} == set(value["scope"]["categories"])
    assert {c["layer"] for c in capabilities} == {p["id"] for p in value["scope"]["policy_layers"]}
    assert {s["doc"] for c in capabilities for s in c.get("sources", ())} == set(value["docs"])


def find_bundled_probes() -> list[Script]:
    return find_scripts(BUNDLE / "probes")


def test_every_linux_capability_has_a_bundled_probe() -> None:
    linux = load_catalog(BUNDLED[0])
    probed = Counter(script.capability for script in find_bundled_probes())
    assert [name for name in linux.capabilities if not probed[name]] == []


def test_every_bundled_probe_has_a_known_capability() -> None:
    known = {name for path in BUNDLED for name in load_catalog(path).capabilities}
    found = find_bundled_probes()
    assert [script.id for script in found if script.capability not in known] == []
    assert [script.id for script in found if script.name != script.id] == []
    assert len(found) >= 45


def test_the_bundled_descriptor_is_the_canonical_one() -> None:
    descriptor = load_descriptor(BUNDLE / "catalogs" / "cfbo-v1.json")
    assert descriptor.canonical
    assert (descriptor.key, descriptor.pattern_version) == ("cfbo-v1", "boundary_event_v1")


def test_the_bundled_defaults_name_what_is_there() -> None:
    defaults = Defaults(**read_document(BUNDLE / "catalogs" / "defaults.json"))
    assert isinstance(defaults.catalog, dict)
    assert isinstance(defaults.boundary, str)
    for path in (*defaults.catalog.values(), defaults.boundary):
        assert (BUNDLE / path).is_file()


def test_our_pattern_asks_for_theirs_for_the_declared_mode_and_for_the_contracts_bounds() -> None:
    ours = read_document(BUNDLE / "schema" / "boundary_object_schema.json")
    theirs = read_document(THEIRS / "boundary_object_schema.json")
    assert ours["properties"]["stack"].pop("required") == ["os", "sandbox_mode"]
    assert theirs["properties"]["stack"].pop("required") == ["os"]
    assert strip_annotations(ours) == strip_annotations(theirs)


def strip_annotations(value: Any) -> Any:
    """Without what is for people, and without the bounds of texts, which theirs does not have."""
    if isinstance(value, dict):
        left_out = ("description", "title", "$id", "minLength", "anyOf")
        return {k: strip_annotations(v) for k, v in value.items() if k not in left_out}
    return [strip_annotations(member) for member in value] if isinstance(value, list) else value
