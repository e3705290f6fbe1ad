"""The contracts of kernel evidence by name, each with what decodes one line or artifact of it.

What is decoded has the shape of its contract. Whether several of them agree is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct, ValidationError

from stream.records.kernel import (
    KERNEL_DETAIL,
    KERNEL_EVENT,
    KINDS,
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

T = TypeVar("T")
_TYPES = {kind: event_type for event_type, kind in KINDS.items()}


class _RunnerHead(Struct):
    type: Any = UNSET


_decode_event = msgspec.json.Decoder(KernelEvent).decode
_decode_runner_head = msgspec.json.Decoder(_RunnerHead).decode
_decode_started = msgspec.json.Decoder(RunnerStarted).decode
_decode_finished = msgspec.json.Decoder(RunnerFinished).decode


def decode_kernel_event(line: bytes) -> KernelEvent:
    """A line of layers/kernel.ndjson. Raises one of codec's DECODE_ERRORS."""
    event = _decode_event(line)
    known = _TYPES.get(event.kind)
    if known is not None and known != event.event_type:
        reason = f"{event.event_type} is not the type of {event.kind}"
        raise ValidationError(f"{reason} - at `$.event_type`")
    if event.status is not UNSET and event.return_value is UNSET:
        raise ValidationError("Object missing required field `return_value` of a status")
    flags = event.operation_flags
    if flags is not UNSET and len(set(flags)) != len(flags):
        raise ValidationError("Stands twice - at `$.operation_flags`")
    return event


def decode_runner_event(line: bytes) -> RunnerStarted | RunnerFinished:
    """A line of events.ndjson. Raises one of codec's DECODE_ERRORS."""
    is_end = _decode_runner_head(line).type == "run_finished"
    return _decode_finished(line) if is_end else _decode_started(line)


def _decoder(kind: type[T]) -> Callable[[bytes], T]:
    return msgspec.json.Decoder(kind).decode


LINES: dict[str, Callable[[bytes], object]] = {
    RAW_KERNEL: _decoder(RawEvent),
    RAW_CAPTURE: _decoder(RawCapture),
    KERNEL_EVENT: decode_kernel_event,
    KERNEL_DETAIL: _decoder(KernelDetail),
    SDK_EVENT: _decoder(SdkEvent),
    POLICY_EVENT: _decoder(PolicyEvent),
    RUNNER_EVENT: decode_runner_event,
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
