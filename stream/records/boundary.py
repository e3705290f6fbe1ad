"""The boundary object, pattern boundary_event_v1, and the decision whether a line is one.

Fields stand in alphabetical order because that is the order in which they are written.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

PATTERN_VERSION: Literal["boundary_event_v1"] = "boundary_event_v1"

# `\Z`, not `$`: the latter lets a trailing newline through.
Key = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]+\Z")]
Status = Literal["success", "denied", "partial", "error"]
SandboxMode = Literal["read-only", "workspace-write", "danger-full-access"]
# JSON Schema counts 1.0 as an integer.
Integral = int | Annotated[float, Meta(multiple_of=1)]

STATUSES: tuple[Status, ...] = ("success", "denied", "partial", "error")
SANDBOX_MODES: tuple[SandboxMode, ...] = ("read-only", "workspace-write", "danger-full-access")


class Snapshot(Struct, forbid_unknown_fields=True, gc=False):
    category: str
    id: str
    layer: str


class CapabilityContext(Struct, forbid_unknown_fields=True):
    primary: Snapshot
    secondary: list[Snapshot] = []


class Operation(Struct, forbid_unknown_fields=True):
    args: dict[str, Any]
    category: str
    target: str
    verb: str


class Payload(Struct, forbid_unknown_fields=True):
    raw: dict[str, Any]
    stderr_snippet: str | None
    stdout_snippet: str | None


class Probe(Struct, forbid_unknown_fields=True):
    id: str
    primary_capability_id: str
    secondary_capability_ids: list[str]
    version: str


class Result(Struct, forbid_unknown_fields=True, gc=False):
    errno: str | None
    error_detail: str | None
    message: str | None
    observed_result: Status
    raw_exit_code: Integral | None


class Run(Struct, forbid_unknown_fields=True, gc=False):
    command: str
    mode: Literal["baseline"]
    workspace_root: str | None


class Stack(Struct, forbid_unknown_fields=True, gc=False):
    os: str
    sandbox_mode: SandboxMode | None


class Boundary(Struct, forbid_unknown_fields=True):
    capabilities_schema_version: Key
    capability_context: CapabilityContext
    operation: Operation
    payload: Payload
    probe: Probe
    result: Result
    run: Run
    schema_key: Key
    schema_version: Literal["boundary_event_v1"]
    stack: Stack


_decode = msgspec.json.Decoder(Boundary).decode
_encode = msgspec.json.Encoder(order="sorted").encode


def encode_boundary(record: Boundary) -> bytes:
    """Compact, keys in alphabetical order at every level."""
    return _encode(record)


def decode_boundary(line: bytes) -> Boundary:
    """The record, or a msgspec.ValidationError with its JSON path."""
    record = _decode(line)
    ids = record.probe.secondary_capability_ids
    if ids and len(set(ids)) != len(ids):
        raise msgspec.ValidationError("expected unique ids - at `$.probe.secondary_capability_ids`")
    secondary = record.capability_context.secondary
    if secondary and len({(s.id, s.category, s.layer) for s in secondary}) != len(secondary):
        raise msgspec.ValidationError(
            "expected unique capabilities - at `$.capability_context.secondary`"
        )
    return record
