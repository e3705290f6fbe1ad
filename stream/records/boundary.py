"""The contracts of the matrix: boundary objects, their descriptors and catalogs.

The fields of a boundary object (pattern boundary_event_v1) stand in alphabetical order because that
is the order in which they are written. Two matrices differ by `BoundaryDiff`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, ValidationError, field

from stream.records.control import KEY, TITLE, WORDS, Record

Key = Annotated[str, Meta(pattern=KEY)]
Status = Literal["success", "denied", "partial", "error"]
SandboxMode = Literal["read-only", "workspace-write", "danger-full-access"]
# JSON Schema counts 1.0 as an integer.
Integral = int | Annotated[float, Meta(multiple_of=1)]

#: what a reader writes in place of an id, a category or a layer that it was not given
UNKNOWN = "unknown"
SNIPPET = 400  #: characters; a snippet that was cut has CUT behind them
CUT = "…"
PAYLOAD = 4096  #: bytes of an encoded payload

Name = Annotated[str, Meta(min_length=1)]
Snippet = Annotated[str, Meta(max_length=SNIPPET + len(CUT))]

STATUSES: tuple[Status, ...] = ("success", "denied", "partial", "error")
SANDBOX_MODES: tuple[SandboxMode, ...] = ("read-only", "workspace-write", "danger-full-access")


class CapabilitySnapshot(Struct, forbid_unknown_fields=True, gc=False):
    """A capability as its catalog describes it."""

    category: Name
    id: Name
    layer: Name


class CapabilityContext(Struct, forbid_unknown_fields=True, gc=False):
    """The capabilities that a probe is about."""

    primary: CapabilitySnapshot
    secondary: list[CapabilitySnapshot] | UnsetType = UNSET


class Operation(Struct, forbid_unknown_fields=True, gc=False):
    """The operation that a probe tried."""

    args: dict[str, Any]
    category: Name
    target: Name
    verb: Name


class Payload(Struct, forbid_unknown_fields=True, gc=False):
    """The evidence of a probe: snippets of its output, and whatever it recorded."""

    raw: dict[str, Any]
    stderr_snippet: Snippet | None
    stdout_snippet: Snippet | None


class Probe(Struct, forbid_unknown_fields=True, gc=False):
    """The probe, and the capabilities that it declares."""

    id: Name
    primary_capability_id: Name
    secondary_capability_ids: list[Name]
    version: str


class Result(Struct, forbid_unknown_fields=True, gc=False):
    """The result of the operation."""

    errno: str | None
    error_detail: str | None
    message: str | None
    observed_result: Status
    raw_exit_code: Integral | None


class Run(Struct, forbid_unknown_fields=True, gc=False):
    """The mode that a probe ran in, its command and its workspace."""

    command: str
    mode: Literal["baseline"]
    workspace_root: str | None


class Stack(Struct, forbid_unknown_fields=True, gc=False):
    """The system and the sandbox that a probe ran in."""

    os: str
    sandbox_mode: SandboxMode | None


class Boundary(Struct, forbid_unknown_fields=True, gc=False):
    """One execution of a probe in one mode: a boundary object of the canonical pattern."""

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


class SharedSnapshot(Struct):
    """A capability in a record under any pattern."""

    category: str = ""
    id: str = ""
    layer: str = ""


class SharedContext(Struct):
    """The capabilities of a record under any pattern."""

    primary: SharedSnapshot = field(default_factory=SharedSnapshot)
    secondary: list[SharedSnapshot] | None = None


class SharedOperation(Struct):
    """The operation of a record under any pattern."""

    target: str = ""
    verb: str = ""


class SharedPayload(Struct):
    """The evidence of a record under any pattern."""

    raw: dict[str, Any] = {}
    stderr_snippet: str | None = None
    stdout_snippet: str | None = None


class SharedProbe(Struct):
    """The probe of a record under any pattern."""

    id: str = ""
    primary_capability_id: str = ""
    secondary_capability_ids: list[str] | None = None


class SharedResult(Struct):
    """The result of a record under any pattern."""

    errno: str | None = None
    message: str | None = None
    observed_result: str = ""


class SharedRun(Struct):
    """The mode and workspace of a record under any pattern."""

    mode: str = ""
    workspace_root: str | None = None


class SharedStack(Struct):
    """The sandbox of a record under any pattern."""

    sandbox_mode: str | None = None


class SharedRecord(Struct):
    """The parts that a user's own pattern may share with the canonical one; empty: not there."""

    capabilities_schema_version: str = ""
    capability_context: SharedContext = field(default_factory=SharedContext)
    operation: SharedOperation = field(default_factory=SharedOperation)
    payload: SharedPayload = field(default_factory=SharedPayload)
    probe: SharedProbe = field(default_factory=SharedProbe)
    result: SharedResult = field(default_factory=SharedResult)
    run: SharedRun = field(default_factory=SharedRun)
    schema_key: str = ""
    stack: SharedStack = field(default_factory=SharedStack)


_decode = msgspec.json.Decoder(Boundary).decode
decode_shared = msgspec.json.Decoder(SharedRecord).decode
_encode = msgspec.json.Encoder(order="sorted").encode
_is_key = re.compile(r"[A-Za-z0-9_.-]+").fullmatch
_MOST_KEYS = 1000
_keys: set[str] = set()  #: that have been looked at


def encode_boundary(record: Boundary) -> bytes:
    """Compact, keys in alphabetical order at every level."""
    return _encode(record)


def decode_boundary(line: bytes) -> Boundary:
    """Decode a boundary record, or raise a msgspec.ValidationError with its JSON path: what a JSON
    Schema can say."""
    record = _decode(line)
    check_shared_rules(record)
    return record


def check_shared_rules(record: Boundary) -> None:
    """Check what a JSON Schema can say and the types of a record cannot. Raise ValidationError."""
    if record.schema_key not in _keys:
        _remember_key(record.schema_key, "schema_key")
    if record.capabilities_schema_version not in _keys:
        _remember_key(record.capabilities_schema_version, "capabilities_schema_version")
    ids = record.probe.secondary_capability_ids
    if ids and len(set(ids)) != len(ids):
        raise ValidationError("expected unique ids - at `$.probe.secondary_capability_ids`")
    secondary = record.capability_context.secondary
    if secondary and len({(s.id, s.category, s.layer) for s in secondary}) != len(secondary):
        raise ValidationError("expected unique capabilities - at `$.capability_context.secondary`")
    payload = record.payload
    for name, text in (("stdout", payload.stdout_snippet), ("stderr", payload.stderr_snippet)):
        if text is not None and len(text) > SNIPPET and not text.endswith(CUT):
            reason = f"expected no more than {SNIPPET} characters, and {CUT} where more was cut off"
            raise ValidationError(f"{reason} - at `$.payload.{name}_snippet`")


def _remember_key(key: str, name: str) -> None:
    """Check a capability's key once, and remember the ones that are valid."""
    if not _is_key(key):
        raise ValidationError(f"expected {WORDS[KEY]} - at `$.{name}`")
    if len(_keys) < _MOST_KEYS:
        _keys.add(key)


BOUNDARY_DIFF = "stream.boundary_diff.v1"

#: `mixed`: repeated runs of one cell that ended differently. `absent`: there is no record of it.
CellOutcome = Literal["success", "denied", "partial", "error", "mixed", "absent"]


class CellSide(Struct, forbid_unknown_fields=True, frozen=True):
    """The end of one cell on one side, by its last record."""

    outcome: CellOutcome
    errno: str | None = None
    message: str | None = None


class CellChange(Struct, forbid_unknown_fields=True, frozen=True):
    """A cell that ended otherwise on the two sides."""

    probe: str
    mode: str
    capability: str
    base: CellSide
    head: CellSide


class BoundaryDiff(Record, tag=BOUNDARY_DIFF):
    """Every cell of either side stands in one of the lists, or is counted as unchanged."""

    base: str
    head: str
    opened: list[CellChange]  #: more is possible than was
    closed: list[CellChange]  #: less is possible than was
    unmeasured: list[CellChange]  #: it was measured, and no longer is
    measured: list[CellChange]  #: it is measured now, and was not
    unchanged: int
    notes: list[str]


CATALOG = "sandbox_catalog_v1"
DESCRIPTOR = "boundary_schema_v1"

Text = Annotated[str, Meta(min_length=1)]
Title = Annotated[str, Meta(pattern=TITLE)]


class CatalogHead(Struct, forbid_unknown_fields=True):
    """The key and title of a catalog."""

    key: Key
    title: Title
    description: str = ""
    labels: list[str] = []
    notes: str = ""

    def __post_init__(self) -> None:
        _refuse_repeated_labels(self.labels)


class Layer(Struct, forbid_unknown_fields=True):
    """A layer of policy that capabilities belong to."""

    id: str
    description: str


class Scope(Struct, forbid_unknown_fields=True):
    """The scope of a catalog: what it is about."""

    description: str
    categories: dict[str, str]
    notes: str = ""
    policy_layers: list[Layer] = []
    limitations: str = ""


class Doc(Struct, forbid_unknown_fields=True):
    """A document that capabilities refer to."""

    title: Title
    url: str = ""
    url_hint: str = ""


class Operations(Struct, forbid_unknown_fields=True):
    """The operations that a capability allows and denies."""

    allow: list[str] = []
    deny: list[str] = []


class DocReference(Struct, forbid_unknown_fields=True):
    """The place in a document where a capability is described."""

    doc: str
    section: str = ""
    url_hint: str = ""


class Capability(Struct, forbid_unknown_fields=True):
    """One thing that a sandbox may allow or deny."""

    id: str
    category: str
    layer: str
    description: str
    operations: Operations
    status: str = ""
    labels: list[str] = []
    meta_ops: list[str] = []
    agent_controls: list[str] = []
    notes: str = ""
    sources: list[DocReference] = []

    def __post_init__(self) -> None:
        _refuse_repeated_labels(self.labels)


class CatalogDocument(Struct, forbid_unknown_fields=True):
    """A capability catalog as its file has it."""

    schema_version: Literal["sandbox_catalog_v1"]
    catalog: CatalogHead
    scope: Scope
    docs: dict[str, Doc]
    capabilities: Annotated[list[Capability], Meta(min_length=1)]


class DescriptorDocument(Struct, forbid_unknown_fields=True):
    """A boundary descriptor as its file has it."""

    schema_version: Literal["boundary_schema_v1"]
    key: Key
    pattern_version: Text
    title: str = ""
    description: str = ""
    schema_path: Text | UnsetType = UNSET
    schema: dict[str, Any] | UnsetType = UNSET


class Defaults(Struct, forbid_unknown_fields=True):
    """catalogs/defaults.json. The catalog may depend on the platform."""

    catalog: Text | dict[str, Text] | UnsetType = UNSET
    boundary: Text | UnsetType = UNSET


def _refuse_repeated_labels(labels: list[str]) -> None:
    """msgspec turns a ValueError into its own, with the JSON path."""
    if len(set(labels)) < len(labels):
        raise ValueError("expected unique labels")
