"""What JSON Schema can express of evidence beyond the shape of its structs.

By the name of a struct: more properties of its properties, and conditions among them. Each is
checked by `stream.evidence.consistency` as well, and a property test holds the two together.
"""

from __future__ import annotations

from typing import Any, get_args

from stream.evidence.health import CGROUP_NOTES, LOSS_NOTES
from stream.records.artifacts import SURFACE_SETS, ClaimScope, Coverage
from stream.records.control import TITLE
from stream.records.kernel import INODE_RESOLVED, KINDS, OPEN

Schema = dict[str, Any]


def if_then(condition: Schema, **then: Any) -> Schema:
    return {"if": {"properties": condition}, "then": {"properties": then}}


def const(value: Any) -> Schema:
    return {"const": value}


def contains_note(pattern: str) -> Schema:
    return {"contains": {"type": "string", "pattern": pattern}}


KERNEL = [
    *(if_then({"kind": const(kind)}, event_type=const(number)) for number, kind in KINDS.items()),
    *(if_then({"event_type": const(number)}, kind=const(kind)) for number, kind in KINDS.items()),
    {"properties": {"event_type": {"not": const(INODE_RESOLVED)}}},
    if_then(
        {"event_type": {"not": const(OPEN)}},
        **dict.fromkeys(("flags", "mode", "resolve", "return_value"), False),
        **dict.fromkeys(("access_mode", "operation_flags", "status"), False),
    ),
    {
        "dependencies": {
            "status": ["return_value"],
            "access_mode": ["flags"],
            "operation_flags": ["flags"],
        }
    },
    {
        "if": {"properties": {"status": const("success")}, "required": ["status"]},
        "then": {"properties": {"return_value": {"minimum": 0}}},
    },
    {
        "if": {"properties": {"status": const("error")}, "required": ["status"]},
        "then": {"properties": {"return_value": {"maximum": -1}}},
    },
    *(
        {
            "if": {"properties": {"access_mode": const(mode)}, "required": ["access_mode"]},
            "then": {"properties": {"flags": flags}},
        }
        for mode, flags in {
            "read": {"multipleOf": 4},
            "write": {"not": {"multipleOf": 2}},
            "read_write": {"multipleOf": 2, "not": {"multipleOf": 4}},
            "unknown": {"not": {"multipleOf": 2}},
        }.items()
    ),
]

_NUMBER, _SOME = "(0|[1-9][0-9]*)", "0*[1-9][0-9]*"
_KERNEL_NOTE = (
    rf"^s2_kernel_capture: monitor_events=[0-9]+ ringbuf_drops={_NUMBER}"
    r" network_protocol_coverage=[a-z_]+ network_endpoint_claim_scope=[a-z_]+$"
)
NOTE = {
    "type": "string",
    "pattern": r"^[a-z][a-z0-9_]*: [^\n]+$",
    "allOf": [
        {"if": {"pattern": f"^{code}: "}, "then": {"pattern": form}}
        for code, form in {
            "s2_kernel_capture": _KERNEL_NOTE,
            "s4_policy_capture": f"^s4_policy_capture: policy_events={_SOME}$",
            "s5_sdk_capture": f"^s5_sdk_capture: sdk_events={_SOME} sdk_tool_calls=[0-9]+$",
        }.items()
    ],
}
_LOSS = f"^({'|'.join(sorted(LOSS_NOTES))}): "
_CAPTURED = ["complete", "partial_ringbuf_drops"]
HEALTH = [
    if_then({"ringbuf_drops": {"minimum": 1}}, kernel_layer=const("partial_ringbuf_drops")),
    if_then({"platform": {"not": const("linux")}}, kernel_layer=const("absent")),
    if_then(
        {"kernel_layer": const("partial_ringbuf_drops"), "ringbuf_drops": const(0)},
        notes=contains_note(_LOSS),
    ),
    if_then(
        {"kernel_layer": const("absent")},
        cgroup_correlation={"not": const("clean")},
        network_protocol_coverage={"enum": ["absent", "unknown"]},
        notes={"not": contains_note(f"^s2_kernel_capture: monitor_events={_SOME} ")},
    ),
    if_then(
        {"kernel_layer": const("complete"), "cgroup_correlation": const("failed")},
        notes=contains_note(f"^{CGROUP_NOTES['failed']}: "),
    ),
    {
        "oneOf": [
            {
                "properties": {
                    "network_protocol_coverage": {"enum": coverages},
                    "network_endpoint_claim_scope": const(scope),
                }
            }
            for coverages, scope in (
                (["absent"], "not_applicable"),
                (["unknown"], "unknown"),
                (
                    [c for c in get_args(Coverage) if "observed" in c or "only" in c],
                    "diagnostic_only",
                ),
            )
        ]
    },
    *(
        if_then(
            {
                "notes": contains_note(
                    f"^s2_kernel_capture: .* network_protocol_coverage={coverage} "
                )
            },
            network_protocol_coverage=const(coverage),
        )
        for coverage in get_args(Coverage)
    ),
    *(
        if_then(
            {
                "notes": contains_note(
                    f"^s2_kernel_capture: .* network_endpoint_claim_scope={scope}$"
                )
            },
            network_endpoint_claim_scope=const(scope),
        )
        for scope in get_args(ClaimScope)
    ),
    if_then(
        {"notes": contains_note("^s2_kernel_capture: .* ringbuf_drops=0 ")}, ringbuf_drops=const(0)
    ),
    if_then(
        {"notes": contains_note(f"^s2_kernel_capture: .* ringbuf_drops={_SOME} ")},
        ringbuf_drops={"minimum": 1},
    ),
    if_then({"notes": contains_note("^s4_policy_capture: ")}, policy_layer=const("present")),
    if_then({"notes": contains_note("^s5_sdk_capture: ")}, sdk_layer={"not": const("absent")}),
    if_then({"notes": contains_note(_LOSS)}, kernel_layer=const("partial_ringbuf_drops")),
    if_then({"notes": contains_note("^stream_kernel_absent: ")}, kernel_layer=const("absent")),
    *(
        if_then(
            {"notes": contains_note(f"^{code}: ")},
            cgroup_correlation=const(state),
            kernel_layer={"enum": _CAPTURED},
        )
        for state, code in CGROUP_NOTES.items()
    ),
]
CORRELATION = [
    if_then({"status": const("clean")}, bindings={"minItems": 1}, ambiguities={"maxItems": 0})
]
_TOLD = {"pattern": TITLE}
_SUMMARY = {"pattern": rf"^[^:]*[^: \t\n\r\f\v][^:]*:[\s\S]*{TITLE}"}
_CLOCK = {"pattern": "^[^:0-9]*([0-9][^:0-9]*){8}"}
_PHASE = r"^[a-z][a-z0-9_]*(:[\s\S]+)?$"
_NO_PLACE = r"(^|/)\.{0,2}(/|$)|^[^/]*:|[\\\x00-\x1f\x7f]"
PLACE = {"maxLength": 256, "not": {"anyOf": [{"pattern": _NO_PLACE}, const("manifest.json")]}}
NOTHING = {"type": "null"}
STARTED, FINISHED = "tool_call_started", "tool_call_completed"


def phase_without(without: str) -> Schema:
    return {"pattern": _PHASE, "not": {"anyOf": [_CLOCK, {"pattern": f"^({without})(:|$)"}]}}


#: More of a property, by struct and property.
PROPERTIES: dict[str, dict[str, Schema]] = {
    "KernelEvent": {"operation_flags": {"uniqueItems": True}},
    "ObservationHealth": {"notes": {"items": NOTE, "uniqueItems": True}},
    "CapabilitySurface": {
        **{name: {"uniqueItems": True} for name in SURFACE_SETS},
        "mcp_tools": {"uniqueItems": True, "items": {"type": "string", **_TOLD}},
        "policy_decisions": {"uniqueItems": True, "items": {"type": "string", **_SUMMARY}},
    },
    "CorrelationReport": {
        "bindings": {"uniqueItems": True},
        "ambiguities": {"uniqueItems": True, "items": {"type": "string", **_TOLD}},
    },
    "Binding": {"tool_call_id": _TOLD, "policy_decision": _TOLD},
    "SdkEvent": {"tool_call_id": _TOLD, "tool": _TOLD},
    "PolicyEvent": {"tool_call_id": _TOLD, "tool": _TOLD, "decision": _TOLD},
    "Window": {
        "start": phase_without(f"run_finished|{FINISHED}"),
        "end": phase_without(f"run_started|{STARTED}"),
    },
    "ArchiveManifest": {"files": {"propertyNames": PLACE}},
    "ArchiveFile": {"path": PLACE},
    "RunnerStarted": {"seq": const(0)},
    "RunnerFinished": {"seq": const(1)},
}
REQUIRED = {
    "ObservationHealth": ["network_protocol_coverage", "network_endpoint_claim_scope"],
    "RunnerStarted": ["type"],
    "RunnerFinished": ["type"],
}
CONDITIONS: dict[str, list[Schema]] = {
    "KernelEvent": KERNEL,
    "ObservationHealth": HEALTH,
    "CorrelationReport": CORRELATION,
    "SdkEvent": [
        if_then(
            {"event_type": {"enum": ["run_finished", "run_failed"]}},
            tool_call_id=NOTHING,
            tool=NOTHING,
        )
    ],
    "RunnerFinished": [
        {"anyOf": [{"properties": {"exit_code": NOTHING}}, {"properties": {"signal": NOTHING}}]},
        if_then({"success": const(True)}, exit_code=const(0)),
        if_then({"success": const(False)}, exit_code={"not": const(0)}),
    ],
    "Marker": [
        {
            "if": {
                "properties": {
                    "name": {"enum": [STARTED, FINISHED, "wrapper_told", "policy_opened"]},
                    "clock": const("kernel"),
                },
            },
            "then": {"required": ["pid"], "properties": {"pid": {"type": "integer"}}},
            "else": {"properties": {"pid": NOTHING}},
        },
        {
            "if": {"properties": {"name": const("wrapper_told")}},
            "then": {
                "required": ["command_seq"],
                "properties": {"command_seq": {"type": "integer"}, "clock": const("kernel")},
            },
            "else": {"properties": {"command_seq": NOTHING}},
        },
        if_then({"name": const("policy_opened")}, clock=const("kernel")),
        {
            "if": {"properties": {"name": {"not": const("run_started")}}},
            "then": {"properties": {"home": NOTHING, "helpers": {"maxItems": 0}}},
        },
        {
            "if": {"properties": {"helpers": {"minItems": 1}}, "required": ["helpers"]},
            "then": {"required": ["home"], "properties": {"home": {"type": "string"}}},
        },
        if_then({"name": {"not": const("run_finished")}}, unused={"maxProperties": 0}),
    ],
}


def with_conditions(name: str, schema: Schema) -> Schema:
    """The schema of a struct, and all else that is known of it."""
    properties = {key: dict(value) for key, value in schema.get("properties", {}).items()}
    for key, more in PROPERTIES.get(name, {}).items():
        properties[key] |= more
    found = {**schema, "properties": properties} if properties else dict(schema)
    if name in REQUIRED:
        found["required"] = [*schema["required"], *REQUIRED[name]]
    if name in CONDITIONS:
        found["allOf"] = CONDITIONS[name]
    return found
