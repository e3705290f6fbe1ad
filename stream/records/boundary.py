"""The boundary object, pattern boundary_event_v1, and the decision whether a line is one.

Fields stand in alphabetical order because that is the order in which they are written.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, ValidationError

from stream.records.forms import KEY, WORDS

PATTERN_VERSION: Literal["boundary_event_v1"] = "boundary_event_v1"

Key = Annotated[str, Meta(pattern=KEY)]
Status = Literal["success", "denied", "partial", "error"]
SandboxMode = Literal["read-only", "workspace-write", "danger-full-access"]
# JSON Schema counts 1.0 as an integer.
Integral = int | Annotated[float, Meta(multiple_of=1)]

#: what a reader writes in place of an id, a category or a layer that nobody told it
UNKNOWN = "unknown"
SNIPPET = 400  #: characters; a snippet that was cut has CUT behind them
CUT = "…"
PAYLOAD = 4096  #: bytes of an encoded payload

Name = Annotated[str, Meta(min_length=1)]
Snippet = Annotated[str, Meta(max_length=SNIPPET + len(CUT))]

STATUSES: tuple[Status, ...] = ("success", "denied", "partial", "error")
SANDBOX_MODES: tuple[SandboxMode, ...] = ("read-only", "workspace-write", "danger-full-access")


class Snapshot(Struct, forbid_unknown_fields=True, gc=False):
    category: Name
    id: Name
    layer: Name


class CapabilityContext(Struct, forbid_unknown_fields=True, gc=False):
    primary: Snapshot
    secondary: list[Snapshot] | UnsetType = UNSET


class Operation(Struct, forbid_unknown_fields=True, gc=False):
    args: dict[str, Any]
    category: Name
    target: Name
    verb: Name


class Payload(Struct, forbid_unknown_fields=True, gc=False):
    raw: dict[str, Any]
    stderr_snippet: Snippet | None
    stdout_snippet: Snippet | None


class Probe(Struct, forbid_unknown_fields=True, gc=False):
    id: Name
    primary_capability_id: Name
    secondary_capability_ids: list[Name]
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


class Boundary(Struct, forbid_unknown_fields=True, gc=False):
    capabilities_schema_version: str  #: a Key: looked at once for each that comes, not each time
    capability_context: CapabilityContext
    operation: Operation
    payload: Payload
    probe: Probe
    result: Result
    run: Run
    schema_key: str
    schema_version: Literal["boundary_event_v1"]
    stack: Stack


class AlikeSnapshot(Struct):
    category: str
    id: str
    layer: str


class AlikeContext(Struct):
    primary: AlikeSnapshot
    secondary: list[AlikeSnapshot] | UnsetType = UNSET


class AlikeProbe(Struct):
    primary_capability_id: str
    secondary_capability_ids: list[str]


class AlikePayload(Struct):
    raw: dict[str, Any]
    stderr_snippet: str | None
    stdout_snippet: str | None


class Alike(Struct):
    """A record under a pattern of the user's own, as far as that left it as it was."""

    capabilities_schema_version: str
    capability_context: AlikeContext
    payload: AlikePayload
    probe: AlikeProbe


_decode = msgspec.json.Decoder(Boundary).decode
decode_alike = msgspec.json.Decoder(Alike).decode
_encode = msgspec.json.Encoder(order="sorted").encode
encode_as_read = msgspec.json.Encoder().encode
_is_key = re.compile(r"[A-Za-z0-9_.-]+").fullmatch
_MOST_KEYS = 1000
_keys: set[str] = set()  #: that have been looked at


def encode_boundary(record: Boundary) -> bytes:
    """Compact, keys in alphabetical order at every level."""
    return _encode(record)


def decode_boundary(line: bytes) -> Boundary:
    """The record, or a msgspec.ValidationError with its JSON path: what a JSON Schema can say."""
    record = _decode(line)
    if record.schema_key not in _keys:
        _learn(record.schema_key, "schema_key")
    if record.capabilities_schema_version not in _keys:
        _learn(record.capabilities_schema_version, "capabilities_schema_version")
    ids = record.probe.secondary_capability_ids
    if ids and len(set(ids)) != len(ids):
        raise ValidationError("expected unique ids - at `$.probe.secondary_capability_ids`")
    secondary = record.capability_context.secondary
    if secondary and len({(s.id, s.category, s.layer) for s in secondary}) != len(secondary):
        raise ValidationError("expected unique capabilities - at `$.capability_context.secondary`")
    payload = record.payload
    for name, text in (("stdout", payload.stdout_snippet), ("stderr", payload.stderr_snippet)):
        if text is not None and len(text) > SNIPPET and not text.endswith(CUT):
            said = f"expected no more than {SNIPPET} characters, and {CUT} where more was cut off"
            raise ValidationError(f"{said} - at `$.payload.{name}_snippet`")
    return record


def hold_together(record: Boundary | Alike, size: int) -> None:
    """Refuse a record whose parts contradict each other, or whose payload is too large.

    `size` is that of its line: a payload is no larger than that.
    Raises msgspec.ValidationError with the JSON path.
    """
    probe, context = record.probe, record.capability_context
    if context.primary.id != probe.primary_capability_id:
        said = f"expected the probe's {probe.primary_capability_id!r}, got {context.primary.id!r}"
        raise ValidationError(f"{said} - at `$.capability_context.primary.id`")
    ids, secondary = probe.secondary_capability_ids, context.secondary
    if secondary is not UNSET and sorted(ids) != sorted([one.id for one in secondary]):
        said = "expected one capability for each of the probe's secondary_capability_ids"
        raise ValidationError(f"{said} - at `$.capability_context.secondary`")
    if size > PAYLOAD and (needed := len(encode_as_read(record.payload))) > PAYLOAD:
        raise ValidationError(f"has {needed} bytes, more than {PAYLOAD} - at `$.payload`")


def _learn(key: str, name: str) -> None:
    if not _is_key(key):
        raise ValidationError(f"expected {WORDS[KEY]} - at `$.{name}`")
    if len(_keys) < _MOST_KEYS:
        _keys.add(key)
