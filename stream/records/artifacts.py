"""The other layers of an archive, its artifacts, and what two archives differ in.

What begins with `assay.runner` has a form that is not ours to change. What begins with `stream`
stands beside it, and says what that form has no room for.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from stream.records.control import DIGEST, NAMED_DIGEST, Record
from stream.records.kernel import Count, RunId

SDK_EVENT = "assay.runner.sdk_event.v0"
POLICY_EVENT = "assay.runner.policy_event.v0"
RUNNER_EVENT = "assay.runner.event.v0"
HEALTH = "assay.runner.observation_health.v0"
SURFACE = "assay.runner.capability_surface.v0"
CORRELATION = "assay.runner.correlation_report.v0"
ARCHIVE = "assay.runner.archive_manifest.v0"
CAPABILITY_DIFF = "assay.runner.capability_diff.v0"
MARKER = "stream.marker.v1"
CHAIN = "stream.chain.v1"
COMPANION = "stream.companion.v1"

KERNEL_FILE = "layers/kernel.ndjson"
DETAIL_FILE = "layers/kernel-ext.ndjson"
SDK_FILE = "layers/sdk.ndjson"
POLICY_FILE = "layers/policy.ndjson"
MARKERS_FILE = "layers/markers.ndjson"
RUNNER_FILE = "events.ndjson"
HEALTH_FILE = "observation-health.json"
SURFACE_FILE = "capability-surface.json"
CORRELATION_FILE = "correlation-report.json"
COMPANION_FILE = "companion.json"
CHAIN_FILE = "chain.ndjson"
ARCHIVE_MANIFEST = "manifest.json"
NOT_ASKED = "the run was recorded without a kernel feed"  #: why there is no evidence of one
HOME = ".wrappers"  #: the recorder's own, in a run folder while the run lasts
HOOK_PROGRAM = f"{HOME}/hook"
#: In the order in which they stand in every archive, after its manifest.
V0_FILES = (
    *(SURFACE_FILE, CORRELATION_FILE, RUNNER_FILE),
    *(KERNEL_FILE, POLICY_FILE, SDK_FILE, HEALTH_FILE),
)

#: What a run folder has of them, in the order of their names.
EVIDENCE_FILES = tuple(sorted((*V0_FILES, CHAIN_FILE, COMPANION_FILE, DETAIL_FILE, MARKERS_FILE)))

Digest = Annotated[str, Meta(pattern=NAMED_DIGEST)]
SdkEventType = Literal["tool_call_started", "tool_call_completed", "run_finished", "run_failed"]


class SdkEvent(Record, tag=SDK_EVENT, kw_only=True):
    """One line of the SDK layer: the agent said it about itself."""

    run_id: RunId
    seq: Count
    event_type: SdkEventType
    source: str
    sdk_name: str | None = None
    sdk_version: str | None = None
    tool_call_id: str | None = None  #: of a tool event: missing where the agent gave none
    tool: str | None = None


class PolicyEvent(Record, tag=POLICY_EVENT, kw_only=True):
    """A decision of the host on whether a tool call may happen."""

    run_id: RunId
    seq: Count
    source_event_type: str
    source: str
    tool_call_id: str | None = None
    tool: str
    decision: str


class RunnerStarted(Record, tag=RUNNER_EVENT, kw_only=True):
    """The first event of the runner: the command is about to start."""

    run_id: RunId
    seq: Count
    type: Literal["run_started"] = "run_started"
    agent_shim: str
    command: list[str]
    env_keys: list[str]
    window_elapsed_ms: Count


class RunnerFinished(Record, tag=RUNNER_EVENT, kw_only=True):
    """The last event of the runner: the command has ended."""

    run_id: RunId
    seq: Count
    type: Literal["run_finished"] = "run_finished"
    exit_code: int | None
    signal: int | None
    success: bool
    window_elapsed_ms: Count


Coverage = Literal[
    "absent",
    "unknown",
    "connect_only",
    "datagram_peer_observed",
    "connect_and_datagram_peer_observed",
]
ClaimScope = Literal["diagnostic_only", "not_applicable", "unknown"]
State = Literal["clean", "partial", "failed"]


class ObservationHealth(Record, tag=HEALTH, kw_only=True):
    """The artifact that says how complete each layer is."""

    run_id: RunId
    platform: str
    kernel_layer: Literal["complete", "partial_ringbuf_drops", "absent"]
    ringbuf_drops: Count
    policy_layer: Literal["present", "absent"]
    sdk_layer: Literal["present", "self_reported", "absent"]
    cgroup_correlation: State
    #: Unset in archives from before there were these two.
    network_protocol_coverage: Coverage | UnsetType = UNSET
    network_endpoint_claim_scope: ClaimScope | UnsetType = UNSET
    notes: list[str]


class CapabilitySurface(Record, tag=SURFACE, kw_only=True):
    """The artifact that lists what the run reached."""

    run_id: RunId
    filesystem_paths: list[str]
    network_endpoints: list[str]
    process_execs: list[str]
    mcp_tools: list[str]
    policy_decisions: list[str]


SURFACE_SETS = (
    *("filesystem_paths", "network_endpoints", "process_execs"),
    *("mcp_tools", "policy_decisions"),
)


class Window(Struct, forbid_unknown_fields=True):
    """The time between the beginning and the end of a tool call."""

    start: str
    end: str


class Binding(Struct, forbid_unknown_fields=True, kw_only=True):
    """A tool call with the kernel events in its window."""

    tool_call_id: str
    policy_decision: str | None
    kernel_event_count: Count
    window: Window


class CorrelationReport(Record, tag=CORRELATION, kw_only=True):
    """The artifact that binds kernel events to tool calls."""

    run_id: RunId
    status: State
    bindings: list[Binding]
    ambiguities: list[str]


class ArchiveFile(Struct, forbid_unknown_fields=True):
    """A file of an archive, with its size and digest."""

    path: str
    sha256: Digest
    bytes: Count


class ArchiveManifest(Record, tag=ARCHIVE, kw_only=True):
    """The artifact that names every other file of an archive."""

    run_id: RunId
    files: dict[str, ArchiveFile]


class Marker(Record, tag=MARKER, omit_defaults=True, kw_only=True):
    """A marker says where in the kernel layer something happened that the kernel did not see."""

    run_id: RunId
    seq: Count  #: of the markers
    name: Literal[
        "run_started",
        "tool_call_started",
        "tool_call_completed",
        "wrapper_told",
        "policy_opened",
        "run_finished",
    ]
    at: Count  #: so many events of the kernel layer came before it
    clock: Literal["kernel", "arrival"]  #: when it was written, or when the recorder read it
    tool_call_id: str | None = None
    sdk_seq: int | None = None  #: the line of the SDK layer that it belongs to
    command_seq: Count | None = None  #: the line of the command log, counted from 0
    command: str | None = None  #: what a tool that runs commands was asked to run
    pid: Count | None = None  #: who wrote it, where the kernel saw that
    home: str | None = None  #: of the run's start: the folder of the recorder's own programs
    helpers: list[str] = []  #: the same: what these run
    #: of the run's end: what was told and could not be used, by `channel:why`
    unused: dict[str, Count] = {}


class ChainLink(Record, tag=CHAIN, kw_only=True):
    """A link of the chain: the first so many lines and bytes of a layer have this digest."""

    layer: str
    lines: Count
    bytes: Count
    sha256: Annotated[str, Meta(pattern=DIGEST)]


class Companion(Record, tag=COMPANION, kw_only=True):
    """The companion of the artifacts: it holds what they have no room for."""

    run_id: RunId
    capture: dict[str, Any]  #: the feed's books: see stream.raw_capture.v1
    filtered: dict[str, Count] | None  #: by the normalizer's rules; None: nobody knows
    aside: dict[str, Count] | None  #: what the feed told that is no event of the run
    unnamed: dict[str, Count]  #: by kind: events whose path or endpoint is not known
    paths: dict[str, list[str]]  #: how each path was reached: read, write, create, unlink, …
    failed_paths: dict[str, list[str]]  #: attempts: which calls, and why not
    programs: dict[str, list[str]]  #: by name: the files that ran, where it is not that one
    failed_endpoints: dict[str, list[str]]  #: which calls, and why not
    address_probes: list[str]  #: connects to port 0 that sent nothing: no peers
    local_sockets: list[str]
    self_reported_tools: list[str]  #: of mcp_tools, those that only the agent itself names
    calls: dict[str, dict[str, Count]]  #: by tool call: events of each kind in its window
    unbound: dict[str, Count]  #: events outside of every window, by kind


class Changes(Struct, forbid_unknown_fields=True):
    """The members of a set in two archives: those that came, went and stayed."""

    added: list[str]
    removed: list[str]
    unchanged: list[str]


class CapabilityDiff(Record, tag=CAPABILITY_DIFF, kw_only=True):
    """The artifact that says what two archives differ in."""

    base_run_id: str
    head_run_id: str
    status: Literal["clean", "partial:health", "partial:correlation", "partial:unbound", "failed"]
    preconditions: dict[str, bool]
    scope: dict[str, Any]
    surface: dict[str, Changes]
    binding_ids: Changes
    policy_outcomes: dict[str, list[dict[str, Any]]]
    unbound: dict[str, list[str]]
    ambiguities: list[str]
    notes: list[str]
