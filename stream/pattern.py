"""Boundary descriptors, and the check that a record keeps the pattern that one names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from stream.catalog import default_path
from stream.codec import DECODE_ERRORS, explain
from stream.document import BUNDLE, convert, is_file, read_document
from stream.errors import InputError, blaming
from stream.records.boundary import PATTERN_VERSION, decode_boundary
from stream.records.catalog import DescriptorDocument

CANONICAL = BUNDLE / "schema" / "boundary_object_schema.json"
Fault = tuple[str, str]  #: (reason, JSON path)
Check = Callable[[bytes], Fault | None]


class Descriptor(Struct, frozen=True):
    """Which boundary objects are in force: key, pattern, modes, and their check."""

    key: str
    path: Path
    pattern_version: str
    modes: tuple[str, ...]
    check: Check
    canonical: bool


def check_canonical(line: bytes) -> Fault | None:
    try:
        decode_boundary(line)
    except DECODE_ERRORS as error:
        return explain(error)
    return None


def find_descriptor(flag: str | None, tree: Path | None = None) -> Descriptor:
    """Command line, BOUNDARY_PATH, defaults.json, built-in."""
    named = flag or os.environ.get("BOUNDARY_PATH")
    with blaming("BOUNDARY_PATH", bool(named) and not flag):
        return load_descriptor(Path(named).absolute() if named else default_path("boundary", tree))


def load_descriptor(path: Path) -> Descriptor:
    return make_descriptor(read_document(path), path)


def make_descriptor(value: Any, path: Path) -> Descriptor:
    """Raises InputError naming what is missing or does not fit."""
    document = convert(value, DescriptorDocument, path)
    schema, place = _schema(document, path)
    canonical = schema is None
    if canonical:
        reported: tuple[str, ...] = (PATTERN_VERSION,)
        modes: tuple[str, ...] = ("baseline",)
        check: Check = check_canonical
    else:
        assert schema is not None
        reported = _words(schema, "schema_version")
        modes = _words(schema, "run", "mode") or ("baseline",)
        check = _compiled(schema, place)
    if document.pattern_version not in reported:
        said = " or ".join(map(repr, reported)) or "none"
        raise InputError(
            f"{path}: $.pattern_version: is {document.pattern_version!r}"
            f" but the pattern version that the schema {place} reports is {said}"
        )
    return Descriptor(document.key, path, document.pattern_version, modes, check, canonical)


def _schema(document: DescriptorDocument, path: Path) -> tuple[dict[str, Any] | None, Path]:
    """The schema that a descriptor names; None for the canonical one."""
    if document.schema is not UNSET and document.schema_path is not UNSET:
        raise InputError(f"{path}: both schema and schema_path are given")
    if document.schema is not UNSET:
        return document.schema, path
    if document.schema_path is UNSET:
        raise InputError(f"{path}: missing schema_path")
    place = path.parent / document.schema_path
    if not is_file(place):
        raise InputError(f"{path}: $.schema_path: schema not found: {place}")
    if place.resolve() == CANONICAL.resolve():
        return None, place
    schema = read_document(place)
    if not isinstance(schema, dict):
        raise InputError(f"{place}: expected a JSON Schema object")
    return schema, place


def _words(schema: Any, *keys: str) -> tuple[str, ...]:
    """The texts that a property may be, where the schema lists them."""
    for key in keys:
        for step in ("properties", key):
            schema = schema.get(step) if isinstance(schema, dict) else None
    if not isinstance(schema, dict):
        return ()
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    return tuple(w for w in listed if isinstance(w, str)) if isinstance(listed, list) else ()


def _short(text: str) -> str:
    return text if len(text) <= 300 else text[:300] + "…"


def _compiled(schema: dict[str, Any], place: Path) -> Check:
    import jsonschema_rs  # a fifth of the start-up, for those who bring a pattern of their own

    try:
        validator = jsonschema_rs.validator_for(schema, offline=True)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{place}: not a usable JSON Schema: {reason}") from None

    def check(line: bytes) -> Fault | None:
        try:
            value = msgspec.json.decode(line)
            error = next(validator.iter_errors(value), None)
        except (*DECODE_ERRORS, ValueError) as problem:
            return explain(problem)
        if error is None:
            return None
        steps = "".join(
            f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path
        )
        # The message quotes the value, however long that is.
        return _short(error.message), f"${steps}"

    return check
