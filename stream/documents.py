"""Whole JSON documents: catalogs, descriptors, schemas, defaults. Read with suspicion.

A stream of records is read by `codec`; a document decides how records are understood, so
a key that stands twice in it is an error.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from stream.codec import explain
from stream.errors import InputError, os_reason
from stream.records.control import Fault

T = TypeVar("T")
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
LARGEST = 16 << 20  #: bytes

_here = Path(__file__).resolve().parent
#: probes/, catalogs/ and schema/: inside an installed package, beside it in a checkout
BUNDLE = _here / "data" if (_here / "data").is_dir() else _here.parent


def read_document(path: Path) -> Any:
    """Read the JSON value in a file. Raises InputError with the place."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)  # a device has no size to ask for first
    except OSError as error:
        raise InputError(f"{path}: {os_reason(error)}") from None
    except ValueError as error:  # a NUL in the path
        raise InputError(f"{path}: {error}") from None
    if len(data) > LARGEST:
        raise InputError(f"{path}: larger than {LARGEST} bytes")
    try:
        return parse_document(data)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None


def is_file(path: Path) -> bool:
    """Say whether a path is a file. Raises InputError where that cannot be known."""
    try:
        return path.is_file()
    except OSError as error:
        raise InputError(f"{path}: {os_reason(error)}") from None


def parse_document(data: bytes) -> Any:
    """Parse a JSON value. Raises ValueError with the reason, after its JSON path if any."""
    repeated: list[_Repeated] = []

    def members(pairs: list[tuple[str, Any]]) -> Any:
        value = dict(pairs)
        if len(value) == len(pairs):
            return value
        repeated.append(_Repeated(value, Counter(key for key, _ in pairs).most_common(1)[0][0]))
        return repeated[-1]

    try:
        value = json.loads(data.decode(), object_pairs_hook=members, parse_constant=_refuse)
        if repeated:
            raise ValueError(_first_repeated(value, "$"))
    except UnicodeDecodeError as error:
        raise ValueError(f"invalid UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise ValueError(f"malformed JSON at {place}: {error.msg.lower()}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def repeated_key(line: bytes) -> Fault | None:
    """Find a key that stands twice in an object of a line that can be decoded.

    Whatever comes out again as it went in, but for white space, has none, and needs no second look.
    """
    again = _encode(_decode(line))
    if again == line or again == msgspec.json.format(line, indent=-1):
        return None
    try:
        parse_document(line)
    except ValueError as error:
        return parted(str(error))
    return None


def parted(reason: str) -> Fault:
    """Part a reason from the JSON path that it may begin with."""
    path, colon, rest = reason.partition(": ")
    return Fault(rest, path) if colon and path.startswith("$") else Fault(reason)


def convert(value: Any, kind: type[T], source: object) -> T:
    """Convert a value to a struct. Raises InputError with the JSON path."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{source}: {explain(error)}") from None
    except UnicodeEncodeError:
        raise InputError(f"{source}: a name in it holds half of a surrogate pair") from None


class _Repeated:
    """Stands for an object in which a key stands twice."""

    def __init__(self, value: dict[str, Any], key: str) -> None:
        self.value = value
        self.key = key


def _first_repeated(value: Any, path: str) -> str:
    """The path of the first such object, and its key; empty where there is none."""
    if isinstance(value, _Repeated):
        return _first_repeated(value.value, path) or f"{path}: duplicate key {value.key!r}"
    members = (
        [(f".{key}", member) for key, member in value.items()]
        if isinstance(value, dict)
        else [(f"[{index}]", member) for index, member in enumerate(value)]
        if isinstance(value, list)
        else []
    )
    found = (_first_repeated(member, path + step) for step, member in members)
    return next(filter(None, found), "")


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"malformed JSON: {name} is no JSON number")
