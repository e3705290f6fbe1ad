"""The contracts of kernel evidence by name, each with what decodes one line or artifact of it.

What is decoded has the shape of its contract, and does not contradict itself. Whether several of
them agree is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct, ValidationError

from stream.evidence.consistency import faults_of
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
from stream.records.runner import (
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
        for reason, path in faults_of(record):
            raise ValidationError(f"{reason} - at `{path}`")
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
