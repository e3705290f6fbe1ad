"""The contracts of kernel evidence: their schemas, their page, and what `validate` finds agree."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.contracts import ARTIFACTS, LINES, SCHEMAS, decode_runner_event, decoder_of
from stream.records.artifacts import (
    ArchiveManifest,
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
from stream.records.kernel import (
    EVENT_TYPES,
    AccessMode,
    KernelDetail,
    KernelEvent,
    OperationFlag,
    Status,
)
from tests.cli.command import Place
from tests.evidence.conditions import with_conditions
from tests.evidence.raw import CAPTURE, raw_open
from tests.sweeping import thorough

ROOT = Path(__file__).resolve().parents[2]
ASSAY = ROOT / "tests" / "data" / "assay"
EVIDENCE = ("evidence_lines.schema.json", "evidence_artifacts.schema.json")
LINE_KINDS, ARTIFACT_KINDS = (SCHEMAS[name][1] for name in EVIDENCE)
decode_kernel_event = LINES["assay.runner.kernel_event.v0"]
DRAFT = "http://json-schema.org/draft-07/schema#"
KERNEL_SCHEMA = "kernel-event-v0.schema.json"  #: which the contract names
PUBLISHED = jsonschema_rs.validator_for(
    json.loads((ASSAY / "schema" / "kernel-event-v0.schema.json").read_bytes())
)


def schema_of_the_structs(title: str, kinds: tuple[type[msgspec.Struct], ...]) -> dict[str, Any]:
    refs, definitions = msgspec.json.schema_components(kinds, ref_template="#/definitions/{name}")
    return {
        "$schema": DRAFT,
        "title": title,
        "oneOf": list(refs),
        "definitions": {name: with_conditions(name, one) for name, one in definitions.items()},
    }


def make_schema(name: str) -> dict[str, Any]:
    if name == KERNEL_SCHEMA:
        found = {
            "$schema": DRAFT,
            **schema_of_the_structs("", LINE_KINDS)["definitions"]["KernelEvent"],
        }
        found["title"] = "A line of layers/kernel.ndjson"
    else:
        found = schema_of_the_structs(*SCHEMAS[name])
    # JSON Schema's `$` is Python's `\Z`.
    value: dict[str, Any] = json.loads(json.dumps(found).replace("\\\\Z", "$"))
    return value


@pytest.mark.parametrize("name", [*EVIDENCE, KERNEL_SCHEMA])
def test_the_schemas_are_those_of_the_structs(name: str) -> None:
    file = ROOT / "schema" / name
    found = make_schema(name)
    if os.environ.get("STREAM_UPDATE_GOLDENS"):
        file.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    assert json.loads(file.read_text()) == found


@pytest.mark.parametrize("kind", [*LINE_KINDS, *ARTIFACT_KINDS])
def test_every_field_is_on_the_page(kind: type[msgspec.Struct]) -> None:
    texts = {page.name: page.read_text() for page in (ROOT / "schema").glob("[a-z]*.md")}
    pages = {name for name in texts if f"`{kind.__struct_config__.tag}`" in texts[name]}
    missing = {
        page: [name for name in kind.__struct_fields__ if f"`{name}`" not in texts[page]]
        for page in pages
    }
    assert [] in missing.values(), missing  # one page explains all of them


@pytest.mark.parametrize("event_type", sorted({*EVENT_TYPES.values(), 1015, 1016}))
def test_every_event_type_is_on_the_page(event_type: int) -> None:
    assert f"| {event_type} |" in (ROOT / "schema" / "kernel-layer.md").read_text()


# ---------------------------------------------------------------- the reference's data


KINDS = {kind.__struct_config__.tag: kind for kind in (*LINE_KINDS, *ARTIFACT_KINDS)}


def iter_archived() -> Iterator[tuple[str, bytes]]:
    for archive in sorted((ASSAY / "archives").glob("*.tar.gz")):
        with tarfile.open(archive) as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                yield f"{archive.stem}/{member.name}", file.read()


def test_the_real_archives_keep_the_contracts_byte_for_byte() -> None:
    """What is decoded and encoded again is the same, so that verify may compare bytes."""
    seen = set()
    for name, data in iter_archived():
        for line in data.splitlines() if name.endswith(".ndjson") else [data]:
            contract = json.loads(line)["schema"]
            is_runner = contract == "assay.runner.event.v0"
            decoded = (decode_runner_event if is_runner else decoder_of(KINDS[contract]))(line)
            if not contract.endswith("event.v0") or contract.endswith("kernel_event.v0"):
                assert msgspec.json.encode(decoded) == line, name
            seen.add(contract)
    assert len(seen) == 7


def test_the_goldens_decode() -> None:
    kinds = {kind.__struct_config__.tag: kind for kind in ARTIFACT_KINDS}
    seen = 0
    for path in sorted((ASSAY / "golden").glob("*.json")):
        value = json.loads(path.read_bytes())
        if value["schema"] in kinds:
            decoded = ARTIFACTS[value["schema"]](path.read_bytes())
            assert json.loads(msgspec.json.encode(decoded)) == value
            seen += 1
    assert seen == 4


def test_the_vectors_are_validated_as_by_the_published_schema() -> None:
    lines = (ASSAY / "vectors" / "kernel-event-schema-examples.ndjson").read_bytes().splitlines()
    for line in lines:
        assert can_decode(decode_kernel_event, line) == PUBLISHED.is_valid(json.loads(line))
    assert sum(can_decode(decode_kernel_event, line) for line in lines) == 5


def is_valid_event(event: dict[str, Any]) -> bool:
    return can_decode(decode_kernel_event, json.dumps(event).encode())


def can_decode(decode: Callable[[bytes], object], line: bytes) -> bool:
    try:
        decode(line)
    except msgspec.DecodeError:
        return False
    return True


SHIPPED = jsonschema_rs.validator_for(json.loads((ROOT / "schema" / KERNEL_SCHEMA).read_bytes()))
FIELDS = {
    "run_id": st.sampled_from(("run", "", "a b", "run\n", 5)),
    "seq": st.sampled_from((0, -1, "0", None)),
    "pid": st.sampled_from((7, -1)),
    "event_type": st.sampled_from((1, 2, 4, 10, 20, 6, 999, -1)),
    "kind": st.sampled_from(
        ("openat", "connect", "exec", "file_blocked", "connect_blocked", "event_6", "event_", "x")
    ),
    "value": st.sampled_from(("/a", "", None, 5)),
    "flags": st.sampled_from((0, 577, -1)),
    "mode": st.sampled_from((0, -1)),
    "resolve": st.sampled_from((1, 0)),
    "return_value": st.sampled_from((-2, 3, "3")),
    "access_mode": st.sampled_from((*get_args(AccessMode), "append")),
    "operation_flags": st.lists(st.sampled_from((*get_args(OperationFlag), "x")), max_size=3),
    "status": st.sampled_from((*get_args(Status), "unseen")),
    "more": st.just(1),
}
SOUND = {"run_id": "run", "seq": 0, "pid": 7, "event_type": 1, "kind": "openat", "value": "/a"}


@thorough(1000)
@given(
    st.fixed_dictionaries({}, optional=FIELDS), st.sets(st.sampled_from(sorted(SOUND)), max_size=1)
)
def test_what_is_sound_is_so_by_the_published_schema(
    changes: dict[str, Any], missing: set[str]
) -> None:
    """Which does not hold all of the contract: who is its own, and what only an open has."""
    event = {"schema": "assay.runner.kernel_event.v0", **SOUND, **changes}
    event = {name: value for name, value in event.items() if name not in missing}
    assert PUBLISHED.is_valid(event) or not is_valid_event(event)
    if not PUBLISHED.is_valid(event):
        assert not SHIPPED.is_valid(event)


# ---------------------------------------------------------------- validate

RUN: dict[str, Any] = {"run_id": "run", "seq": 0}
SAMPLES: tuple[msgspec.Struct, ...] = (
    raw_open("/a"),
    CAPTURE,
    KernelEvent(**RUN, pid=7, event_type=1, kind="openat", value="/a"),
    KernelDetail(**RUN, pid=7, call="fork", child=8),
    SdkEvent(**RUN, event_type="run_finished", source="x"),
    PolicyEvent(**RUN, source_event_type="t", source="x", tool="Read", decision="deny"),
    RunnerStarted(**RUN, agent_shim="x", command=["x"], env_keys=[], window_elapsed_ms=0),
    RunnerFinished(
        run_id="run", seq=1, exit_code=0, signal=None, success=True, window_elapsed_ms=1
    ),
    Marker(**RUN, name="run_started", at=0, clock="kernel"),
    ChainLink(layer="layers/sdk.ndjson", lines=0, bytes=0, sha256="0" * 64),
    ObservationHealth(
        run_id="run",
        platform="linux",
        kernel_layer="absent",
        ringbuf_drops=0,
        policy_layer="absent",
        sdk_layer="absent",
        cgroup_correlation="failed",
        network_protocol_coverage="unknown",
        network_endpoint_claim_scope="unknown",
        notes=[],
    ),
    CapabilitySurface(
        run_id="run",
        filesystem_paths=[],
        network_endpoints=[],
        process_execs=[],
        mcp_tools=[],
        policy_decisions=[],
    ),
    CorrelationReport(run_id="run", status="failed", bindings=[], ambiguities=[]),
    ArchiveManifest(run_id="run", files={}),
    Companion(
        run_id="run",
        capture={},
        filtered={},
        aside={},
        unnamed={},
        paths={},
        failed_paths={},
        programs={},
        failed_endpoints={},
        address_probes=[],
        local_sockets=[],
        self_reported_tools=[],
        calls={},
        unbound={},
    ),
)


def test_each_sample_keeps_exactly_one_schema() -> None:
    validators = [
        jsonschema_rs.validator_for(json.loads((ROOT / "schema" / name).read_bytes()))
        for name in EVIDENCE
    ]
    for sample in SAMPLES:
        value = json.loads(msgspec.json.encode(sample))
        assert sum(validator.is_valid(value) for validator in validators) == 1, value
        more = {**value, "more": 1}
        assert not any(validator.is_valid(more) for validator in validators), value


def test_runner_events_are_distinguished() -> None:
    for sample in SAMPLES[6:8]:
        assert decode_runner_event(msgspec.json.encode(sample)) == sample


def test_validate_knows_them_all(place: Place) -> None:
    good = [msgspec.json.encode(sample) for sample in SAMPLES]
    bad = [line[:-1] + b',"more":1}' for line in good]
    done = place.stream("validate", "-", data=b"\n".join([*good, *bad, b""]))
    assert (done.code, done.out) == (1, b"\n".join([*good, b""]))
    assert done.err.count("unknown field `more`") == len(bad)
    for contract in {**LINES, **ARTIFACTS}:
        if contract != "assay.runner.capability_diff.v0":
            assert contract in done.err


def test_validate_takes_a_whole_archive(place: Place, tmp_path: Path) -> None:
    names = []
    for name, data in iter_archived():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        names.append(path)
    done = place.stream("validate", *names)
    findings = [json.loads(line) for line in done.out.splitlines()]
    # They are from before the contract asked for it; and a clean report that binds nothing.
    assert [one["path"] for one in findings] == ["$.bindings", "$.network_protocol_coverage"] * 2
    assert done.code == 1
    kernel = (tmp_path / "openai-1.tar" / "layers" / "kernel.ndjson").read_bytes()
    broken = kernel.replace(b'"event_type":2', b'"event_type":1')
    done = place.stream("validate", "-", data=broken)
    assert done.code == 1
    assert "$.event_type: 1 is not the type of connect" in done.err
