"""The JSON Schemas of control records, changes, drifts and plans are those of the structs."""

from __future__ import annotations

import inspect
import json
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stream.records.control import Finding, Gap, Reject
from stream.records.emission import RawEmission
from stream.records.lock import (
    BoundaryDrift,
    CellDrift,
    CellState,
    Envelope,
    MatrixPlanDocument,
    PlannedProbe,
)
from stream.records.modes import CallContext, KernelView, OutsideView, Sandbox, SeenCall
from stream.records.run import FileState, FsChange

SCHEMA = Path(__file__).resolve().parents[2] / "schema"
Kind = type[msgspec.Struct]
#: by file: the structs that are records of it, and those that are parts of these
KINDS: dict[str, tuple[tuple[Kind, ...], tuple[Kind, ...]]] = {
    "control_records.schema.json": (
        (Finding, Reject, Gap, RawEmission),
        (OutsideView, Sandbox, KernelView, SeenCall, CallContext),
    ),
    "fs_change.schema.json": ((FsChange,), (FileState,)),
    "boundary_drift.schema.json": ((BoundaryDrift,), (CellDrift, CellState)),
    "matrix_plan.schema.json": ((MatrixPlanDocument, Envelope), (PlannedProbe,)),
}
HEADS = {
    "control_records.schema.json": {
        "title": "Control records",
        "description": "The records that the tool writes about a stream: findings, rejected lines,"
        " losses, and the raw telemetry between the probe source and the emit stage.",
    },
    "fs_change.schema.json": {"title": "Changes of a workspace"},
    "boundary_drift.schema.json": {"title": "A lockfile compared with a measurement"},
    "matrix_plan.schema.json": {
        "title": "A matrix in parts",
        "description": "The plan of a matrix that several machines share, and the envelope of the"
        " record of one cell.",
    },
}


def sentences_of(kind: Kind) -> dict[str, str]:
    """The comments `#:` before a field, or behind it, by the name of the field."""
    found = {"schema": "Names this kind of record."}
    sentence: list[str] = []
    for line in inspect.getsource(kind).splitlines():
        code, mark, words = line.partition("#: ")
        sentence += [words] if mark else []
        field = re.match(r"    (\w+): ", code)
        if field and sentence:
            found[field[1]] = " ".join(sentence)
        if code.strip():
            sentence = []
    return found


def definition_of(kind: Kind, definitions: dict[str, Any]) -> dict[str, Any]:
    definition: dict[str, Any] = definitions[kind.__name__]
    definition["description"] = " ".join(definition["description"].split())
    sentences = sentences_of(kind)
    assert sentences.keys() >= {*kind.__struct_fields__}, kind
    for name, form in definition["properties"].items():
        form["description"] = sentences[name]
    return definition


def schema_of_the_structs(name: str) -> dict[str, Any]:
    kinds, parts = KINDS[name]
    refs, components = msgspec.json.schema_components(kinds, ref_template="#/definitions/{name}")
    definitions = {kind.__name__: definition_of(kind, components) for kind in (*kinds, *parts)}
    head = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": f"urn:stream:{name.partition('.')[0]}",
        **HEADS[name],
    }
    if len(kinds) == 1:
        whole = {**head, **definitions.pop(kinds[0].__name__), **head, "definitions": definitions}
    else:
        whole = {**head, "oneOf": list(refs), "definitions": definitions}
    # JSON Schema's `$` is Python's `\Z`.
    value: dict[str, Any] = json.loads(json.dumps(whole).replace("\\\\Z", "$"))
    return value


@pytest.mark.parametrize("name", HEADS)
def test_the_schema_is_that_of_the_structs(name: str) -> None:
    found = schema_of_the_structs(name)
    if os.environ.get("STREAM_UPDATE_GOLDENS"):
        (SCHEMA / name).write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    assert json.loads((SCHEMA / name).read_text()) == found
