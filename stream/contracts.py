"""The contracts by name: what decodes a record, and what it may break by itself.

`validate`, `check` and `verify` ask here, so that they say the same, and the JSON Schemas of
SCHEMAS are made from the structs. What is decoded has the shape of its contract and does not
contradict itself; whether several records agree is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct, ValidationError

from stream.boundary.descriptors import Boundaries, make_catalog, make_defaults, make_descriptor
from stream.codec import DECODE_ERRORS, decode_fault, parse_document, repeated_key, split_json_path
from stream.errors import InputError
from stream.evidence.consistency import contract_faults_of
from stream.records import artifacts, run
from stream.records.boundary import BOUNDARY_DIFF, CATALOG, DESCRIPTOR, BoundaryDiff
from stream.records.control import CONTROL_SCHEMAS, Control, Fault, Gap
from stream.records.emission import RAW_EMISSION, decode_raw
from stream.records.kernel import KernelDetail, KernelEvent, RawCapture, RawEvent
from stream.records.lock import (
    BOUNDARY_DRIFT,
    ENVELOPE,
    MATRIX_PLAN,
    BoundaryDrift,
    decode_envelope,
    decode_plan,
)

RecordT = TypeVar("RecordT")
Decode = Callable[[bytes], object]

_LINE_KINDS = (
    *(RawEvent, RawCapture, KernelEvent, KernelDetail),
    *(artifacts.SdkEvent, artifacts.PolicyEvent, artifacts.RunnerStarted),
    *(artifacts.RunnerFinished, artifacts.Marker, artifacts.ChainLink),
)
_ARTIFACT_KINDS = (
    *(artifacts.ObservationHealth, artifacts.CapabilitySurface, artifacts.CorrelationReport),
    *(artifacts.ArchiveManifest, artifacts.Companion, artifacts.CapabilityDiff),
)
_RUN_KINDS = (run.RunMetadata, run.RunSummary, run.Manifest, run.CommandRecord)
#: file under schema/ -> its title, and the structs that it is made from
SCHEMAS: dict[str, tuple[str, tuple[type[Struct], ...]]] = {
    "evidence_lines.schema.json": ("The lines of kernel evidence", _LINE_KINDS),
    "evidence_artifacts.schema.json": ("The artifacts of kernel evidence", _ARTIFACT_KINDS),
    "run_folder.schema.json": ("The documents of a run folder", _RUN_KINDS),
}


class Contracts:
    """Knows every contract; boundary objects are held to the pattern that is in force."""

    def __init__(self, boundaries: Boundaries) -> None:
        self.boundaries = boundaries

    def contract_of_document(self, source: str) -> str | None:
        """Name the contract of a document that does not name one itself."""
        return DEFAULTS if Path(source).name == DEFAULTS else None

    def knows_contract(self, contract: str) -> bool:
        """Say whether a record of that contract can be checked."""
        return (
            contract in _DECODED or contract in _MAKERS or self.boundaries.knows_pattern(contract)
        )

    def check_record(self, contract: str, line: bytes, source: str) -> Fault | None:
        """Find what a record breaks of a contract. A line that cannot be decoded is a fault."""
        if self.boundaries.knows_pattern(contract):
            return self.boundaries.check_boundary(line, contract)
        if contract in _MAKERS:
            return _document_fault(contract, line, source)
        return contract_fault_of(contract, line)


def contract_fault_of(contract: str, line: bytes) -> Fault | None:
    """Find what a record breaks of a contract that is the same for all users."""
    try:
        record = _DECODED[contract](line)
    except DECODE_ERRORS as error:
        return decode_fault(error)
    # What comes out as it went in has no key twice.
    return None if _encode(record) == line else repeated_key(line)


def _document_fault(contract: str, line: bytes, source: str) -> Fault | None:
    """Return what a catalog or descriptor breaks of its contract; None if nothing."""
    path = Path(source)
    try:
        _MAKERS[contract](parse_document(line), path)
    except (InputError, ValueError) as error:
        return split_json_path(str(error).removeprefix(f"{path}: "))
    return None


def contract_name(kind: type[Struct]) -> str:
    """Return the schema string of a record."""
    return str(kind.__struct_config__.tag)


def decoder_of(kind: type[RecordT]) -> Callable[[bytes], RecordT]:
    """Make a decoder of a record by its shape alone. It raises one of codec's DECODE_ERRORS."""
    decode = msgspec.json.Decoder(kind).decode

    def decode_any(line: bytes) -> RecordT:
        """Decode a line, with 7.0 where an integer is wanted as well."""
        try:
            return decode(line)
        except ValidationError:
            return msgspec.convert(_with_whole_numbers(msgspec.json.decode(line)), kind)

    return decode_any


def _with_whole_numbers(value: Any) -> Any:
    """Write 7 for 7.0, which is an integer for JSON Schema as well."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _with_whole_numbers(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(member) for member in value]
    return value


class _RunnerHead(Struct):
    type: Any = UNSET


_decode_runner_head = msgspec.json.Decoder(_RunnerHead).decode
_decode_started = decoder_of(artifacts.RunnerStarted)
_decode_finished = decoder_of(artifacts.RunnerFinished)


def decode_runner_event(line: bytes) -> artifacts.RunnerStarted | artifacts.RunnerFinished:
    """Decode a line of events.ndjson by its shape. Raises one of codec's DECODE_ERRORS."""
    kind = _decode_runner_head(line).type
    if kind is UNSET:
        raise ValidationError("Object missing required field `type`")
    return _decode_finished(line) if kind == "run_finished" else _decode_started(line)


class LineDecoder(Struct):
    """Decodes the lines of a layer. Both ways raise one of codec's DECODE_ERRORS."""

    decode: Callable[[bytes], Any]  #: one line, by its shape alone
    decode_lines: Callable[[bytes], list[Any]]  #: the whole lines of a block, canonical ones only


def _line_decoder(kind: Any) -> LineDecoder:
    return LineDecoder(decoder_of(kind), msgspec.json.Decoder(kind).decode_lines)


def _decode_runner_lines(block: bytes) -> list[Any]:
    return [decode_runner_event(line) for line in block.splitlines()]


def _consistent_decoder(decode: Decode) -> Decode:
    """Refuse what contradicts itself with a ValidationError as well."""

    def decode_consistent(line: bytes) -> object:
        """Decode a line. Raise ValidationError where the record contradicts itself."""
        record = decode(line)
        for fault in contract_faults_of(record):
            raise ValidationError(f"{fault.reason} - at `{fault.path}`")
        return record

    return decode_consistent


def _decoders_of(kinds: tuple[type[Struct], ...]) -> dict[str, Decode]:
    """Make the decoders of structs by their contracts."""
    return {contract_name(kind): _consistent_decoder(decoder_of(kind)) for kind in kinds}


#: By file of a run: what a document of it, or a line of it, may be.
FILES: dict[str, tuple[type[Struct], ...]] = {
    artifacts.KERNEL_FILE: (KernelEvent,),
    artifacts.DETAIL_FILE: (KernelDetail, Gap),
    artifacts.SDK_FILE: (artifacts.SdkEvent,),
    artifacts.POLICY_FILE: (artifacts.PolicyEvent,),
    artifacts.MARKERS_FILE: (artifacts.Marker,),
    artifacts.RUNNER_FILE: (artifacts.RunnerStarted, artifacts.RunnerFinished),
    artifacts.CHAIN_FILE: (artifacts.ChainLink,),
    artifacts.SURFACE_FILE: (artifacts.CapabilitySurface,),
    artifacts.CORRELATION_FILE: (artifacts.CorrelationReport,),
    artifacts.HEALTH_FILE: (artifacts.ObservationHealth,),
    artifacts.COMPANION_FILE: (artifacts.Companion,),
    artifacts.ARCHIVE_MANIFEST: (artifacts.ArchiveManifest,),
    run.METADATA_FILE: (run.RunMetadata,),
    run.SUMMARY_FILE: (run.RunSummary,),
    run.MANIFEST_FILE: (run.Manifest,),
}
CONTRACTS = {name: contract_name(kinds[0]) for name, kinds in FILES.items()}
DOCUMENTS = {name: kinds[0] for name, kinds in FILES.items() if name.endswith(".json")}
#: By file of a run: what decodes the lines of a layer.
LAYER_DECODERS = {
    name: _line_decoder(reduce(or_, kinds))
    for name, kinds in FILES.items()
    if name not in (*DOCUMENTS, artifacts.CHAIN_FILE, artifacts.RUNNER_FILE)
}
LAYER_DECODERS[artifacts.RUNNER_FILE] = LineDecoder(decode_runner_event, _decode_runner_lines)
LINES = {
    **_decoders_of(_LINE_KINDS),
    artifacts.RUNNER_EVENT: _consistent_decoder(decode_runner_event),
}
ARTIFACTS = _decoders_of(_ARTIFACT_KINDS)
DEFAULTS = "defaults.json"  #: names no contract: it is known by its file name

_MAKERS: dict[str, Callable[[Any, Path], object]] = {
    CATALOG: make_catalog,
    DESCRIPTOR: make_descriptor,
    DEFAULTS: make_defaults,
}
_encode = msgspec.json.Encoder().encode
# Of unions, which demand the tag: a line may name its contract in `schema_version` alone.
_decode_control = msgspec.json.Decoder(Control).decode
_decode_run = msgspec.json.Decoder(reduce(or_, _RUN_KINDS)).decode
_DECODED: dict[str, Decode] = {
    RAW_EMISSION: decode_raw,
    run.FS_CHANGE: run.decode_change,
    BOUNDARY_DIFF: msgspec.json.Decoder(BoundaryDiff).decode,
    BOUNDARY_DRIFT: msgspec.json.Decoder(BoundaryDrift).decode,
    ENVELOPE: decode_envelope,
    MATRIX_PLAN: decode_plan,
    **dict.fromkeys(CONTROL_SCHEMAS, _decode_control),
    **{contract_name(kind): _decode_run for kind in _RUN_KINDS},
    **LINES,
    **ARTIFACTS,
}
LONE = {*_DECODED, *_MAKERS} - {DEFAULTS}  #: contracts that a record names by itself
