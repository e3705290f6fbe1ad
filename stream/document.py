"""Whole JSON documents: catalogs, descriptors, schemas, defaults. Read with suspicion.

A stream of records is read by `codec`; a document decides how records are understood, so
a key that stands twice in it is an error.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from stream.codec import explain
from stream.errors import InputError, os_reason

T = TypeVar("T")
LARGEST = 16 << 20  #: bytes

_here = Path(__file__).resolve().parent
#: probes/, catalogs/ and schema/: inside an installed package, beside it in a checkout
BUNDLE = _here / "data" if (_here / "data").is_dir() else _here.parent


def read_document(path: Path) -> Any:
    """The JSON value in a file. Raises InputError with the place."""
    try:
        if path.stat().st_size > LARGEST:
            raise InputError(f"{path}: larger than {LARGEST} bytes")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {os_reason(error)}") from None
    try:
        return parse_document(data)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None


def parse_document(data: bytes) -> Any:
    """The JSON value. Raises ValueError with the reason."""
    try:
        return json.loads(
            data.decode(), object_pairs_hook=_without_duplicates, parse_constant=_refuse
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"invalid UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise ValueError(f"malformed JSON at {place}: {error.msg.lower()}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def convert(value: Any, kind: type[T], source: object) -> T:
    """The value as a struct. Raises InputError with the JSON path."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason, path = explain(error)
        raise InputError(f"{source}: {path + ': ' if path else ''}{reason}") from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"duplicate key {key!r}")
            seen.add(key)
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"malformed JSON: {name} is no JSON number")
