"""The contracts of kernel evidence by name, each with what decodes one line or artifact of it.

What is decoded has the shape of its contract, and does not contradict itself. Whether several of
them agree is not looked at.

The contracts by name, and what a single line or document breaks of its own.

`validate`, `check` and `verify` ask here, so that they say the same.

What a path holds, told by its beginning: whoever cannot use it names the command that can."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Struct, ValidationError

from stream.boundary.catalogs import make_catalog, make_defaults
from stream.boundary.descriptors import Boundaries, make_descriptor
from stream.codec import DECODE_ERRORS, explain
from stream.documents import parse_document, parted, repeated_key
from stream.errors import InputError, UsageError
from stream.evidence.consistency import faults_of
from stream.records.artifacts import (
    ARCHIVE,
    CAPABILITY_DIFF,
    CHAIN,
    COMPANION,
    CORRELATION,
    HEALTH,
    MARKER,
    POLICY_EVENT,
    RUNNER_EVENT,
    SDK_EVENT,
    SURFACE,
    ArchiveManifest,
    CapabilityDiff,
    CapabilitySurface,
    ChainLink,
    Companion,
    CorrelationReport,
    Marker,
    ObservationHealth,
    PolicyEvent,
    RunnerFinished,
    RunnerStarted,
    SdkEvent,
)
from stream.records.boundary import BOUNDARY_DIFF, RAW_EMISSION, BoundaryDiff, decode_raw
from stream.records.catalog import CATALOG, DESCRIPTOR
from stream.records.control import CONTROL_SCHEMAS, Control, Fault
from stream.records.kernel import (
    KERNEL_DETAIL,
    KERNEL_EVENT,
    RAW_CAPTURE,
    RAW_KERNEL,
    KernelDetail,
    KernelEvent,
    RawCapture,
    RawEvent,
)
from stream.records.run import (
    COMMAND,
    EVENTS_FILE,
    FS_CHANGE,
    MANIFEST,
    METADATA_FILE,
    RUN,
    RUN_SUMMARY,
    CommandRecord,
    Manifest,
    RunMetadata,
    RunSummary,
    decode_change,
)

RecordT = TypeVar("RecordT")


class _RunnerHead(Struct):
    type: Any = UNSET


def decoder_of(kind: type[RecordT]) -> Callable[[bytes], RecordT]:
    """What decodes a record by its shape alone. Raises one of codec's DECODE_ERRORS."""
    decode = msgspec.json.Decoder(kind).decode

    def decode_any(line: bytes) -> RecordT:
        try:
            return decode(line)
        except ValidationError:
            return msgspec.convert(_whole(msgspec.json.decode(line)), kind)

    return decode_any


def _whole(value: Any) -> Any:
    """The same with 7 for 7.0, which is an integer for JSON Schema as well."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_whole(member) for member in value]
    return value


_decode_runner_head = msgspec.json.Decoder(_RunnerHead).decode
_decode_started = decoder_of(RunnerStarted)
_decode_finished = decoder_of(RunnerFinished)


def decode_runner_event(line: bytes) -> RunnerStarted | RunnerFinished:
    """A line of events.ndjson, by its shape. Raises one of codec's DECODE_ERRORS."""
    kind = _decode_runner_head(line).type
    if kind is UNSET:
        raise ValidationError("Object missing required field `type`")
    return _decode_finished(line) if kind == "run_finished" else _decode_started(line)


def _consistent(decode: Callable[[bytes], object]) -> Callable[[bytes], object]:
    """Whatever contradicts itself raises a ValidationError as well."""

    def decode_consistent(line: bytes) -> object:
        record = decode(line)
        for fault in faults_of(record):
            raise ValidationError(f"{fault.reason} - at `{fault.path}`")
        return record

    return decode_consistent


def _decoder(kind: type[RecordT]) -> Callable[[bytes], object]:
    return _consistent(decoder_of(kind))


LINES: dict[str, Callable[[bytes], object]] = {
    RAW_KERNEL: _decoder(RawEvent),
    RAW_CAPTURE: _decoder(RawCapture),
    KERNEL_EVENT: _decoder(KernelEvent),
    KERNEL_DETAIL: _decoder(KernelDetail),
    SDK_EVENT: _decoder(SdkEvent),
    POLICY_EVENT: _decoder(PolicyEvent),
    RUNNER_EVENT: _consistent(decode_runner_event),
    MARKER: _decoder(Marker),
    CHAIN: _decoder(ChainLink),
}
ARTIFACTS: dict[str, Callable[[bytes], object]] = {
    HEALTH: _decoder(ObservationHealth),
    SURFACE: _decoder(CapabilitySurface),
    CORRELATION: _decoder(CorrelationReport),
    ARCHIVE: _decoder(ArchiveManifest),
    COMPANION: _decoder(Companion),
    CAPABILITY_DIFF: _decoder(CapabilityDiff),
}


class RunnerDecoder:
    """The two events have one tag: `type` tells them apart."""

    decode = staticmethod(decode_runner_event)

    def decode_lines(self, block: bytes) -> list[Any]:
        return [self.decode(line) for line in block.splitlines()]


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


Kind = Literal["run", "archive", "boundary", "events", "telemetry", "record"]

#: What it is called, and the command that reads it.
_KINDS: dict[Kind, tuple[str, str]] = {
    "run": ("the folder of a run", "check"),
    "archive": ("an archive", "verify"),
    "boundary": ("a file of boundary objects", "validate"),
    "events": ("a file of DecisionEvents", "check"),
    "telemetry": ("the raw telemetry of a kernel feed", "normalize"),
    "record": ("a file of other records", "validate"),
}
_GZIP = b"\x1f\x8b"
_BEGINNING = 1 << 18  #: bytes: enough for a first line


class _KindHead(Struct):
    """What tells a contract by its fields."""

    schema: Any = UNSET
    capability_context: Any = UNSET
    observability_mode: Any = UNSET


_decode = msgspec.json.Decoder(_KindHead).decode


def expect(path: str | os.PathLike[str], *wanted: Kind) -> None:
    """Raise UsageError where a path plainly holds what another command reads."""
    kind = kind_of(path)
    if kind is None or kind in wanted:
        return
    what, command = _KINDS[kind]
    raise UsageError(f"{path}: this is {what}: `stream {command} {path}` reads it")


def kind_of(path: str | os.PathLike[str]) -> Kind | None:
    """None: nothing that is known for sure, or nothing that could be looked into."""
    place = Path(path)
    try:
        mode = place.stat().st_mode
        if stat.S_ISDIR(mode):
            is_run = any((place / name).is_file() for name in (METADATA_FILE, EVENTS_FILE))
            return "run" if is_run else None
        if not stat.S_ISREG(mode):
            return None  # a pipe: to look into it would take something out of it
        with place.open("rb") as file:
            beginning = file.read(_BEGINNING)
    except (OSError, ValueError):
        return None
    if beginning.startswith(_GZIP):
        return "archive"
    line = beginning.lstrip().partition(b"\n")[0]
    return _kind_of_line(line) or _kind_of_line(beginning)  # a document may have many lines


def _kind_of_line(line: bytes) -> Kind | None:
    try:
        head = _decode(line)
    except DECODE_ERRORS:
        return None
    if head.capability_context is not UNSET:
        return "boundary"
    if head.observability_mode is not UNSET:
        return "events"
    from stream.records.kernel import RAW_CAPTURE, RAW_KERNEL  # where nothing else is known of it

    if head.schema in (RAW_KERNEL, RAW_CAPTURE):
        return "telemetry"
    return "record" if isinstance(head.schema, str) and _is_known(head.schema) else None


def _is_known(contract: str) -> bool:
    """A control record says nothing of what else is in a file: it travels with any stream."""
    from stream.records.control import CONTROL_SCHEMAS

    return contract in LONE and contract not in CONTROL_SCHEMAS
