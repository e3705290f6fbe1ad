"""The contracts by name, and what a single line or document breaks of its own.

`validate`, `check` and `verify` ask here, so that they say the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from stream.catalog import make_catalog, make_defaults
from stream.codec import DECODE_ERRORS, explain
from stream.document import parse_document, parted, repeated_key
from stream.errors import InputError
from stream.evidence.contracts import ARTIFACTS, LINES
from stream.pattern import Boundaries, Fault, make_descriptor
from stream.records.boundary_diff import BOUNDARY_DIFF, BoundaryDiff
from stream.records.catalog import CATALOG, DESCRIPTOR
from stream.records.change import FS_CHANGE, decode_change
from stream.records.command import COMMAND, CommandRecord
from stream.records.control import CONTROL_SCHEMAS, Control
from stream.records.emission import RAW_EMISSION, decode_raw
from stream.records.run import MANIFEST, RUN, RUN_SUMMARY, Manifest, RunMetadata, RunSummary

DEFAULTS = "defaults.json"  #: names no contract: it is known by its file name

_DOCUMENTS: dict[str, Callable[[Any, Path], object]] = {
    CATALOG: make_catalog,
    DESCRIPTOR: make_descriptor,
    DEFAULTS: make_defaults,
}
_decode_document = msgspec.json.Decoder(RunMetadata | RunSummary | Manifest | CommandRecord).decode
_encode = msgspec.json.Encoder().encode
_decode_control = msgspec.json.Decoder(Control).decode
_DECODED: dict[str, Callable[[bytes], object]] = {
    RAW_EMISSION: decode_raw,
    **dict.fromkeys(CONTROL_SCHEMAS, _decode_control),
    **dict.fromkeys((RUN, RUN_SUMMARY, MANIFEST, COMMAND), _decode_document),
    FS_CHANGE: decode_change,
    BOUNDARY_DIFF: msgspec.json.Decoder(BoundaryDiff).decode,
    **LINES,
    **ARTIFACTS,
}
LONE = {*_DECODED, *_DOCUMENTS} - {DEFAULTS}  #: contracts that a record names by itself


class Contracts:
    """Every contract that stream knows; boundary objects are held to what is in force."""

    def __init__(self, boundaries: Boundaries) -> None:
        self.boundaries = boundaries

    def of_document(self, source: str) -> str | None:
        """The contract of a document that does not name one."""
        return DEFAULTS if Path(source).name == DEFAULTS else None

    def know(self, contract: str) -> bool:
        return contract in _DECODED or contract in _DOCUMENTS or self.boundaries.knows(contract)

    def check(self, contract: str, line: bytes, source: str) -> Fault | None:
        """Raises nothing: a line that cannot be decoded is a fault as well."""
        if self.boundaries.knows(contract):
            return self.boundaries.check(line, contract)
        if contract in _DOCUMENTS:
            return check_document(contract, line, source)
        try:
            record = _DECODED[contract](line)
        except DECODE_ERRORS as error:
            return explain(error)
        # What comes out as it went in has no key twice.
        return None if _encode(record) == line else repeated_key(line)


def check_document(contract: str, line: bytes, source: str) -> Fault | None:
    path = Path(source)
    try:
        _DOCUMENTS[contract](parse_document(line), path)
    except (InputError, ValueError) as error:
        return parted(str(error).removeprefix(f"{path}: "))
    return None
