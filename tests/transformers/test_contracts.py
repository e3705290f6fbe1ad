"""The structs that decode, and the JSON Schemas that are published, mean the same."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from stream.boundary.descriptors import catalog_faults, make_catalog, make_descriptor
from stream.codec import BUNDLE, DECODE_ERRORS, parse_document
from stream.errors import InputError
from stream.records.boundary import (
    SANDBOX_MODES,
    STATUSES,
    CatalogDocument,
    DescriptorDocument,
    decode_boundary,
)
from stream.records.control import Control
from stream.records.emission import decode_raw
from stream.records.modes import decode_mode_boundary
from tests.sweeping import thorough
from tests.transformers.samples import HERE, record

MANY = thorough(1000, suppress_health_check=list(HealthCheck))


def read_schema(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((BUNDLE / "schema" / name).read_text())
    return value


def can_decode(decode: Callable[[bytes], object], data: bytes) -> bool:
    try:
        decode(data)
    except DECODE_ERRORS:
        return False
    return True


TEXT = st.text(max_size=8)
MAYBE = st.none() | TEXT
KEYS = st.from_regex(r"[A-Za-z0-9_.-]{1,8}", fullmatch=True)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=2)
INTEGERS = st.sampled_from([0, 1, 127, -1, 2**63, 2**80, 1.0, -3.0, 1e300])
NAMES = st.text(min_size=1, max_size=8)
SNAPSHOTS = st.fixed_dictionaries({"id": NAMES, "category": NAMES, "layer": NAMES})
SNIPPETS = MAYBE | st.sampled_from(["x" * 400, "é" * 400, "x" * 400 + "…", "x" * 399 + "…"])

BOUNDARIES = st.fixed_dictionaries(
    {
        "schema_version": st.just("boundary_event_v1"),
        "schema_key": KEYS,
        "capabilities_schema_version": KEYS,
        "stack": st.fixed_dictionaries(
            {"os": TEXT, "sandbox_mode": st.sampled_from([None, *SANDBOX_MODES])}
        ),
        "probe": st.fixed_dictionaries(
            {
                "id": NAMES,
                "version": TEXT,
                "primary_capability_id": NAMES,
                "secondary_capability_ids": st.lists(NAMES, unique=True, max_size=3),
            }
        ),
        "run": st.fixed_dictionaries(
            {"mode": st.just("baseline"), "workspace_root": MAYBE, "command": TEXT}
        ),
        "operation": st.fixed_dictionaries(
            {"category": NAMES, "verb": NAMES, "target": NAMES, "args": OBJECTS}
        ),
        "result": st.fixed_dictionaries(
            {
                "observed_result": st.sampled_from(STATUSES),
                "raw_exit_code": st.none() | INTEGERS,
                "errno": MAYBE,
                "message": MAYBE,
                "error_detail": MAYBE,
            }
        ),
        "payload": st.fixed_dictionaries(
            {"stdout_snippet": SNIPPETS, "stderr_snippet": SNIPPETS, "raw": OBJECTS}
        ),
        "capability_context": st.fixed_dictionaries(
            {"primary": SNAPSHOTS},
            optional={
                "secondary": st.lists(SNAPSHOTS, max_size=2, unique_by=lambda s: tuple(s.values()))
            },
        ),
    }
)

LABELS = st.lists(TEXT, unique=True, max_size=2)
CATALOGS = st.fixed_dictionaries(
    {
        "schema_version": st.just("sandbox_catalog_v1"),
        "catalog": st.fixed_dictionaries(
            {
                "key": KEYS,
                "title": st.sampled_from(["t", " t ", "\u00a0", "\ufeff", "\x1c", "\x85"]),
            },
            optional={"description": TEXT, "labels": LABELS, "notes": TEXT},
        ),
        "scope": st.fixed_dictionaries(
            {"description": TEXT, "categories": st.dictionaries(TEXT, TEXT, max_size=2)},
            optional={
                "notes": TEXT,
                "limitations": TEXT,
                "policy_layers": st.lists(
                    st.fixed_dictionaries({"id": TEXT, "description": TEXT}), max_size=2
                ),
            },
        ),
        "docs": st.dictionaries(
            TEXT,
            st.fixed_dictionaries(
                {"title": st.just("d")}, optional={"url": TEXT, "url_hint": TEXT}
            ),
            max_size=2,
        ),
        "capabilities": st.lists(
            st.fixed_dictionaries(
                {
                    "id": TEXT,
                    "category": TEXT,
                    "layer": TEXT,
                    "description": TEXT,
                    "operations": st.fixed_dictionaries(
                        {}, optional={"allow": st.lists(TEXT, max_size=2), "deny": st.just([])}
                    ),
                },
                optional={
                    "status": TEXT,
                    "labels": LABELS,
                    "meta_ops": st.lists(TEXT, max_size=2),
                    "agent_controls": st.lists(TEXT, max_size=2),
                    "notes": TEXT,
                    "sources": st.lists(
                        st.fixed_dictionaries(
                            {"doc": TEXT}, optional={"section": TEXT, "url_hint": TEXT}
                        ),
                        max_size=2,
                    ),
                },
            ),
            min_size=1,
            max_size=2,
        ),
    }
)

DESCRIPTORS = st.fixed_dictionaries(
    {
        "schema_version": st.just("boundary_schema_v1"),
        "key": KEYS,
        "pattern_version": st.just("boundary_event_v1"),
    },
    optional={
        "title": TEXT,
        "description": TEXT,
        "schema_path": st.just("schema/boundary_object_schema.json"),
        "schema": st.just({"properties": {"schema_version": {"const": "boundary_event_v1"}}}),
    },
)

COUNTS = st.sampled_from([0, 1, 5, 2**70, 2.0])
CONTROLS = st.one_of(
    st.fixed_dictionaries(
        {
            "schema": st.just("stream.finding.v1"),
            "rule": TEXT,
            "severity": st.sampled_from(["error", "warning"]),
            "message": TEXT,
        },
        optional={"source": TEXT, "line": COUNTS, "path": TEXT, "event_id": TEXT},
    ),
    st.fixed_dictionaries(
        {
            "schema": st.just("stream.reject.v1"),
            "stage": TEXT,
            "source": TEXT,
            "line": COUNTS,
            "offset": COUNTS,
            "sha256": st.sampled_from(["0" * 64, "abcdef01" * 8, "A" * 64, "0" * 63]),
            "reason": TEXT,
        },
        optional={"path": TEXT},
    ),
    st.fixed_dictionaries(
        {"schema": st.just("stream.gap.v1"), "source": TEXT, "lost": COUNTS, "reason": TEXT},
        optional={"unit": TEXT},
    ),
)
DIGESTS = st.sampled_from([None, "0" * 64, "a1" * 32, "A1" * 32, "0" * 63, "0" * 64 + "\n"])
EFFECT_STATES = st.sampled_from(["seen", "not-seen", "not-checked"])
MODES = st.sampled_from(["baseline", "bwrap-ro", "a", "0.x_y-z", "A", "-a", "a\n", ""])
OF_MODES = st.fixed_dictionaries(
    {
        "schema_version": st.just("boundary_event_v2"),
        "run": st.fixed_dictionaries(
            {"mode": MODES, "workspace_root": MAYBE, "command": TEXT, "user": MAYBE}
        ),
        "sandbox": st.fixed_dictionaries(
            {"name": MAYBE, "version": MAYBE, "settings_sha256": DIGESTS}
        ),
        "control": st.fixed_dictionaries(
            {
                "state": st.sampled_from(["succeeded", "no-control", "is-control"]),
                "observed_result": st.sampled_from([None, *STATUSES]),
                "errno": MAYBE,
            }
        ),
        "effect": st.fixed_dictionaries(
            {
                "expected": MAYBE,
                "claimed": st.sampled_from(STATUSES),
                "seen": st.lists(TEXT, max_size=2),
                "state": EFFECT_STATES,
            }
        ),
        "corroboration": st.fixed_dictionaries(
            {
                "state": st.sampled_from(["corroborated", "contradicted", "unseen", "other"]),
                "closed_by": st.sampled_from([None, "seccomp", "unknown", "somebody"]),
                "detail": MAYBE,
            }
        ),
    }
)
MODE_BOUNDARIES = st.builds(lambda first, second: {**first, **second}, BOUNDARIES, OF_MODES)

BASE64 = st.sampled_from(["", "QUJD", "QQ==", "QR==", "QUI=", "QQ", "Q Q=", "-_8=", "QQ==\n"])
EMISSIONS = st.fixed_dictionaries(
    {
        "schema": st.just("stream.raw_emission.v1"),
        "probe": TEXT,
        "mode": TEXT,
        "capability": MAYBE,
        "workspace_root": MAYBE,
        "sandbox_mode": st.sampled_from([None, *SANDBOX_MODES]),
        "os": TEXT,
        "stdout": BASE64,
        "stdout_bytes": COUNTS,
        "stderr": BASE64,
        "stderr_bytes": COUNTS,
        "exit_code": st.none() | INTEGERS,
        "signal": MAYBE,
        "timed_out": st.sampled_from([None, 0, 1, 0.5, -1, -0.5]),
        "spawn_error": MAYBE,
        "stragglers": st.lists(TEXT, max_size=3),
    }
)

ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, False, 0, 1, -1, 1.0, 1.5, 2**70, "", "x", "x\n", "a b", "baseline\n", [], {}, [0]]
).map(copy.deepcopy)


@st.composite
def mutated_values(draw: st.DrawFn, valid: st.SearchStrategy[Any]) -> Any:
    """A valid value with up to three changes anywhere in it."""
    box = [copy.deepcopy(draw(valid))]
    for _ in range(draw(st.integers(0, 3))):
        places = list(iter_members(box))
        holder, key = draw(st.sampled_from(places))
        change = draw(st.sampled_from(["drop", "add", "rename", "replace", "tail", "twice"]))
        old = holder[key]
        if change == "replace":
            holder[key] = draw(ODD)
        elif change == "tail" and isinstance(old, str):
            holder[key] = old + draw(st.sampled_from(["\n", " ", "é", "\x00", "\r\n", "…"]))
        elif change == "twice" and isinstance(old, list) and old:
            old.append(copy.deepcopy(draw(st.sampled_from(old))))
        elif change == "add" and isinstance(old, dict):
            old[draw(st.sampled_from(["", "extra", "schema", "os "]))] = draw(ODD)
        elif change == "add" and isinstance(old, list):
            old.append(draw(ODD))
        elif change == "rename" and isinstance(holder, dict):
            holder[f"{key}{draw(st.sampled_from([' ', '_', 's']))}"] = holder.pop(key)
        elif change == "drop":
            del holder[key]
        if not box:
            return None
    return box[0]


def iter_members(value: Any) -> Any:
    members = value.items() if isinstance(value, dict) else enumerate(value)
    for key, member in list(members):
        yield value, key
        if isinstance(member, (dict, list)):
            yield from iter_members(member)


def check_agreement(published: Any, decode: Callable[[bytes], object], value: object) -> None:
    assert can_decode(decode, json.dumps(value).encode()) == published.is_valid(value)


BOUNDARY = jsonschema_rs.validator_for(read_schema("boundary_object_schema.json"))
MODE_BOUNDARY = jsonschema_rs.validator_for(read_schema("boundary_event_v2.schema.json"))
CATALOG = jsonschema_rs.validator_for(read_schema("capability_catalog.schema.json"))
DESCRIPTOR = jsonschema_rs.validator_for(read_schema("boundary_descriptor.schema.json"))
CONTROL = jsonschema_rs.validator_for(read_schema("control_records.schema.json"))
decode_catalog = msgspec.json.Decoder(CatalogDocument).decode
decode_descriptor = msgspec.json.Decoder(DescriptorDocument).decode
_decode_control = msgspec.json.Decoder(Control).decode


def decode_control(data: bytes) -> object:
    value = msgspec.json.decode(data)
    is_raw = isinstance(value, dict) and value.get("schema") == "stream.raw_emission.v1"
    return decode_raw(data) if is_raw else _decode_control(data)


@thorough(200)
@given(BOUNDARIES)
def test_generated_boundary_objects_are_valid(value: dict[str, Any]) -> None:
    decode_boundary(json.dumps(value).encode())
    BOUNDARY.validate(value)


@MANY
@given(mutated_values(BOUNDARIES))
def test_boundary_objects(value: Any) -> None:
    check_agreement(BOUNDARY, decode_boundary, value)


@MANY
@given(MODE_BOUNDARIES | mutated_values(MODE_BOUNDARIES))
def test_boundary_objects_of_modes(value: Any) -> None:
    check_agreement(MODE_BOUNDARY, decode_mode_boundary, value)


@MANY
@given(mutated_values(CATALOGS))
def test_catalogs(value: Any) -> None:
    check_agreement(CATALOG, decode_catalog, value)


@MANY
@given(mutated_values(DESCRIPTORS))
def test_descriptors(value: Any) -> None:
    """That one of `schema` and `schema_path` stands there is beyond the struct alone."""
    data = json.dumps(value).encode()
    one = isinstance(value, dict) and ("schema" in value) != ("schema_path" in value)
    assert (can_decode(decode_descriptor, data) and one) == DESCRIPTOR.is_valid(value)


@MANY
@given(mutated_values(CONTROLS))
def test_control_records(value: Any) -> None:
    check_agreement(CONTROL, decode_control, value)


@MANY
@given(mutated_values(EMISSIONS))
def test_raw_emissions(value: Any) -> None:
    check_agreement(CONTROL, decode_control, value)


def with_value(value: Any, path: str, new: Any) -> Any:
    value = copy.deepcopy(value)
    *steps, last = path.split(".")
    inner = value
    for step in steps:
        inner = inner[step]
    if new is ...:
        del inner[last]
    else:
        inner[last] = new
    return value


@pytest.mark.parametrize(
    ("path", "new", "valid"),
    [
        ("stack.sandbox_mode", ..., False),  # required, as the seed's table has it
        ("stack.sandbox_mode", "", False),
        ("stack.os", "", True),
        ("schema_key", "cfbo-v1\n", False),
        ("schema_key", "", False),
        ("capabilities_schema_version", "a b", False),
        ("result.raw_exit_code", 1.0, True),
        ("result.raw_exit_code", 1.5, False),
        ("result.raw_exit_code", True, False),
        ("result.raw_exit_code", 2**80, True),
        ("result.observed_result", "ok", False),
        ("run.mode", "caged", False),
        ("run.started_at", "now", False),
        ("probe.secondary_capability_ids", ["a", "a"], False),
        ("capability_context.secondary", ..., True),
        ("capability_context.secondary", [{"id": "a", "category": "b", "layer": "c"}] * 2, False),
        ("payload.raw", [], False),
        ("payload.stdout_snippet", "x" * 400, True),
        ("payload.stdout_snippet", "x" * 400 + "…", True),
        ("payload.stdout_snippet", "x" * 401, False),
        ("payload.stderr_snippet", "x" * 401 + "…", False),
        ("payload.stderr_snippet", "x" * 400 + "…\n", False),
        ("operation.target", "", False),
        ("probe.id", "", False),
        ("probe.secondary_capability_ids", [""], False),
        ("capability_context.primary.layer", "", False),
        ("operation.args", None, False),
    ],
)
def test_the_known_corners_of_a_boundary_object(path: str, new: Any, valid: bool) -> None:
    value = with_value(record(), path, new)
    assert BOUNDARY.is_valid(value) == valid
    assert can_decode(decode_boundary, json.dumps(value).encode()) == valid


@thorough(300)
@given(mutated_values(CATALOGS))
def test_a_catalog_is_made_or_refused_with_one_sentence(value: Any) -> None:
    try:
        document = msgspec.convert(value, CatalogDocument)
        expected = not list(catalog_faults(document))
    except msgspec.ValidationError:
        expected = False
    try:
        make_catalog(value, HERE)
    except InputError as error:
        made = not str(error).startswith(f"{HERE}: ")
    else:
        made = True
    assert made == expected


@thorough(300, suppress_health_check=list(HealthCheck))
@given(mutated_values(DESCRIPTORS))
def test_a_descriptor_is_made_or_refused_with_one_sentence(value: Any) -> None:
    try:
        make_descriptor(value, BUNDLE / "x.json")
    except InputError:
        return
    assert DESCRIPTOR.is_valid(value)


@thorough(500)
@given(st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()))
def test_parsing_a_document_raises_nothing_but_value_errors(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        parse_document(data)
