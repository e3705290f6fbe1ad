"""emit: one raw emission in, one honest boundary object out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.boundary.emit_flags import LIMIT
from stream.codec import OverlongLine, TornLine
from stream.records.boundary import decode_boundary
from stream.records.control import EMISSIONS, Gap, Reject
from stream.records.emission import RawEmission, decode_raw, encode_raw
from stream.transformers.emit import Emit, EncodeRaw
from tests.core.properties import check_batch_independence, feed
from tests.sweeping import thorough
from tests.transformers.cells import BAD, FULL, GOOD, OWN, PLAIN
from tests.transformers.samples import (
    CAPABILITY,
    DATA,
    SECONDARY,
    WORDS,
    cell,
    decode_object,
    frame,
    line,
    lines,
    make_builder,
    make_own_builder,
    record,
    run_transformer,
)

CASES = [
    pytest.param(reason, emission, id=f"{reason}-{number}")
    for reason, emissions in BAD.items()
    for number, emission in enumerate(emissions)
]
#: the reasons that schema/boundary.md documents
REASONS = (
    *("spawn-failed", "timed-out", "killed", "exit-status", "no-record", "noise"),
    *("several-records", "flooded", "left-processes", "bad-emission", "invalid-record"),
    "wrong-cell",
)


def emit(emission: RawEmission, own: Any = None) -> tuple[dict[str, Any], Emit]:
    maker = own or make_builder()
    transformer = Emit(maker)
    (item,) = feed(
        transformer, (msgspec.structs.replace(emission, boundary=maker.descriptor.key),), EMISSIONS
    )
    assert isinstance(item, bytes)
    assert transformer.counts.balanced
    return decode_object(item), transformer


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"catalog": "house_rules"}, "$.catalog"),
        ({"boundary": "mine-v2"}, "$.boundary"),
        ({"catalog": "macOS_codex_v1"}, "$.catalog"),
    ],
)
def test_a_cell_of_another_catalog_is_no_record(changes: dict[str, str], path: str) -> None:
    """In another process other catalogs may be in force: nothing is silently reinterpreted."""
    transformer = Emit(make_builder())
    (item,) = feed(transformer, (cell(OWN, **changes),), EMISSIONS)
    assert isinstance(item, Reject)
    assert item.path == path
    assert next(iter(changes.values())) in item.reason
    assert (transformer.counts.rejected, transformer.failed) == (1, 0)


def encoded_size(value: object) -> int:
    return len(msgspec.json.encode(value))


def test_every_reason_has_cases_and_is_documented() -> None:
    from stream.codec import BUNDLE

    assert set(BAD) == set(REASONS)
    page = (BUNDLE / "schema" / "boundary.md").read_text()
    assert [reason for reason in REASONS if f"| `{reason}` |" not in page] == []


@pytest.mark.parametrize("emission", GOOD.values(), ids=GOOD)
def test_a_good_cell_gives_the_probes_own_record(emission: RawEmission) -> None:
    got, transformer = emit(emission)
    assert transformer.failures == []
    assert transformer.results == {"denied": 1}
    assert "harness" not in got["payload"]["raw"]
    assert encoded_size(got["payload"]) <= LIMIT


@pytest.mark.parametrize(("reason", "emission"), CASES)
def test_a_breach_gives_the_harness_own_record(reason: str, emission: RawEmission) -> None:
    got, transformer = emit(emission)
    decode_boundary(msgspec.json.encode(got))
    harness = got["payload"]["raw"]["harness"]
    assert (harness["author"], harness["reason"]) == ("stream", reason)
    assert got["result"]["observed_result"] == "error"
    assert got["result"]["errno"] is None
    assert got["result"]["message"]
    assert got["probe"]["id"] == emission.probe
    assert got["probe"]["primary_capability_id"] == (emission.capability or "unknown")
    assert got["probe"]["secondary_capability_ids"] == []
    assert encoded_size(got["payload"]) <= LIMIT
    (failure,) = transformer.failures
    assert (failure.probe, failure.mode, failure.reason) == (emission.probe, "baseline", reason)
    assert failure.sentence.isprintable()
    assert transformer.results == {"error": 1}


def test_where_no_capability_is_declared_it_is_unknown() -> None:
    got, _ = emit(cell(capability=None))
    unknown = {"category": "unknown", "id": "unknown", "layer": "unknown"}
    assert got["capability_context"] == {"primary": unknown, "secondary": []}
    got, _ = emit(cell(capability="cap_nobody_knows"))
    assert got["capability_context"]["primary"] == {**unknown, "id": "cap_nobody_knows"}


def test_what_the_probe_reported_is_kept() -> None:
    got, _ = emit(cell(FULL, exit_code=1, stderr=b"why", stderr_bytes=3))
    assert got["payload"]["raw"]["emitted"] == {
        "probe-name": "fs_outside_workspace",
        "primary-capability-id": CAPABILITY,
        "status": "denied",
        "message": "Permission denied",
    }
    assert got["payload"]["stderr_snippet"] == "why"
    got, _ = emit(cell(PLAIN, timed_out=1.0))
    assert got["payload"]["raw"]["emitted"] == record()
    got, _ = emit(cell(frame("--nope", "x")))
    assert got["payload"]["raw"]["emitted"] == {"words": ["--nope", "x"]}
    got, _ = emit(cell(b"noise"))
    assert got["payload"]["stdout_snippet"] == "noise"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"spawn_error": "x", "timed_out": 1.0, "signal": "SIGKILL"}, "spawn-failed"),
        ({"timed_out": 1.0, "signal": "SIGKILL", "exit_code": None}, "timed-out"),
        ({"signal": "SIGKILL", "exit_code": None, "stdout": b"noise"}, "killed"),
        ({"exit_code": 1, "stdout": b"noise", "stragglers": ["x"]}, "exit-status"),
        ({"stdout": b"noise", "stdout_bytes": 9, "stragglers": ["x"]}, "flooded"),
        ({"stdout": frame("--nope") + b"noise", "stragglers": ["x"]}, "bad-emission"),
        ({"stdout": OWN + OWN + b"{}", "stragglers": ["x"]}, "several-records"),
        ({"stdout": OWN + b"noise", "stragglers": ["x"]}, "noise"),
        ({"stdout": b"", "stragglers": ["x"]}, "no-record"),
        ({"stdout": frame(*WORDS, "--probe-name", "y"), "stragglers": ["x"]}, "left-processes"),
        ({"stdout": frame(*WORDS, "--probe-id", "y", "--run-mode", "z")}, "wrong-cell"),
    ],
)
def test_the_first_of_several_reasons_counts(changes: dict[str, Any], reason: str) -> None:
    stdout = changes.get("stdout", b"")
    _, transformer = emit(cell(**{"stdout_bytes": len(stdout), **changes}))
    assert transformer.failures[0].reason == reason


def test_a_frame_brings_the_system_that_the_probe_saw() -> None:
    assert emit(cell(OWN))[0]["stack"]["os"] == "Linux 6.12.0-inside x86_64"
    assert emit(cell(frame(*WORDS, os="")))[0]["stack"]["os"] == "Linux 6.12.0 x86_64"
    assert emit(cell(OWN, exit_code=9))[0]["stack"]["os"] == "Linux 6.12.0-inside x86_64"


def test_a_plain_record_is_written_as_all_are() -> None:
    transformer = Emit(make_builder())
    spaced = msgspec.json.format(PLAIN, indent=4)
    (item,) = feed(transformer, (cell(b"\n" + spaced + b"\n"),), EMISSIONS)
    assert item == msgspec.json.encode(record(), order="sorted")


def test_a_plain_record_is_as_small_as_all_are() -> None:
    big = record(
        payload={"raw": {"a": "x" * 100_000}, "stderr_snippet": "y" * 5000},
        operation={"args": {"b": ["z"] * 5000}},
        result={"message": "m" * 100_000},
    )
    got, transformer = emit(cell(line(big)))
    assert transformer.failures == []
    assert got["payload"]["stderr_snippet"] == "y" * 400 + "…"
    assert got["payload"]["raw"]["payload_cut"]["bytes"] > 100_000
    assert got["operation"]["args"]["args_cut"]["bytes"] > 5000
    assert encoded_size(got) < 15_000
    lacking = record()
    del lacking["payload"]["stderr_snippet"]
    assert emit(cell(line(lacking)))[1].failures[0].reason == "invalid-record"


def test_a_plain_record_may_say_less_than_the_harness_knows() -> None:
    """A foreign helper does not know of the declared mode, and need not write `secondary`."""
    value = record()
    del value["capability_context"]["secondary"]
    got, transformer = emit(cell(line(value), sandbox_mode="read-only"))
    assert transformer.failures == []
    assert got["stack"]["sandbox_mode"] is None


def test_names_that_are_not_utf_8_do_not_stop_the_stream() -> None:
    for name in ("workspace_root", "probe", "os"):
        got, _ = emit(cell(b"", **{name: "\udcff"}))
        assert "\ufffd" in msgspec.json.encode(got).decode()
    got, _ = emit(cell(spawn_error="\udcff", stragglers=["\udcff"], signal="\udcff"))
    assert got["result"]["error_detail"] == "\ufffd"


def test_a_terminal_obeys_nothing_that_a_probe_prints() -> None:
    _, transformer = emit(cell(frame(*WORDS, "--\x1b[2J\n\u009b31m")))
    assert transformer.failures[0].sentence.endswith(r"Unknown flag: --\x1b[2J\n\x9b31m")


FOREIGN = [
    b'{"schema":"assay.runner.event.v0","x":1}',
    b' { "no" : "contract" } ',
    PLAIN,
    b'{"schema":"stream.finding.v1","rule":"r","severity":"error","message":"m"}',
    TornLine(b'{"a":1}'),
]
MALFORMED = [
    b"{",
    b"[]",
    b"null",
    b'{"schema":"stream.raw_emission.v1"}',
    encode_raw(cell(OWN)).replace(b'"mode":"baseline"', b'"mode":5'),
    encode_raw(cell(OWN)).replace(b'"mode":"baseline"', b'"mode":"caged"'),
    encode_raw(cell(OWN)).replace(b'"sandbox_mode":null', b'"sandbox_mode":"yolo"'),
    encode_raw(cell(OWN)).replace(b'"stdout":"', b'"stdout":"!'),
    encode_raw(cell(OWN))[:-1] + b',"more":1}',
    TornLine(encode_raw(cell(OWN))[:-9]),
    OverlongLine.of(9 << 20, "0" * 64, 8 << 20),
    b'{"schema":' + b"[" * 10_000,
    b'{"schema":"\xff"}',
    encode_raw(cell(OWN)).replace(b'"mode":', b'"mode":"other","mode":'),
]


def test_foreign_records_pass_byte_for_byte() -> None:
    transformer = Emit(make_builder())
    out, control = run_transformer(transformer, [lines(*FOREIGN)])
    assert out == FOREIGN
    assert control == []
    gap = Gap(source="s", lost=1, reason="r")
    assert run_transformer(Emit(make_builder()), [[gap, *FOREIGN]]) == (FOREIGN, [gap])


@pytest.mark.parametrize("bad", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_raw_emission_is_rejected(bad: bytes) -> None:
    transformer = Emit(make_builder())
    out, control = run_transformer(transformer, [lines(FOREIGN[0], bad, b"", b"  ", FOREIGN[1])])
    assert out == FOREIGN[:2]
    (reject,) = control
    assert isinstance(reject, Reject)
    assert (reject.stage, reject.source, reject.line) == ("emit", "in.ndjson", 2)
    assert reject.offset == len(FOREIGN[0]) + 1
    assert (transformer.counts.rejected, transformer.counts.filtered) == (1, 2)


def test_a_cell_of_another_patterns_mode_is_no_record_of_this_one() -> None:
    caged = cell(OWN, mode="caged")
    for item in (caged, encode_raw(caged)):
        _, control = run_transformer(Emit(make_builder()), [[item]])
        (reject,) = control
        assert isinstance(reject, Reject)
        assert (reject.reason, reject.path) == (
            "unknown run mode 'caged' (expected baseline)",
            "$.mode",
        )


ITEMS = [
    *(encode_raw(emission) for emission in GOOD.values()),
    *(encode_raw(emissions[0]) for emissions in BAD.values()),
    *FOREIGN[:-1],
    *MALFORMED[:6],
    b"",
]


@settings(max_examples=40)
@given(st.lists(st.sampled_from(ITEMS), max_size=12), st.lists(st.integers(0, 100), max_size=5))
def test_emit_does_not_depend_on_batches(items: list[bytes], cuts: list[int]) -> None:
    out, counts = check_batch_independence(lambda: Emit(make_builder()), lines(*items), cuts)
    assert len(out) == counts.passed + counts.rejected


def test_cells_in_memory_and_cells_on_a_pipe_are_the_same() -> None:
    cells = [*GOOD.values(), *(emission for many in BAD.values() for emission in many)]
    raw = run_transformer(EncodeRaw(), [cells])[0]
    assert [decode_raw(item) for item in raw] == cells
    assert run_transformer(Emit(make_builder()), [cells]) == run_transformer(
        Emit(make_builder()), [raw]
    )


def test_a_pattern_of_the_users_own() -> None:
    own = make_own_builder()
    got, transformer = emit(cell(frame(*WORDS, "--run-mode", "caged"), mode="caged"), own)
    assert transformer.failures == []
    assert (got["schema_version"], got["schema_key"]) == ("boundary_event_v9", "mine-v2")
    assert got["run"]["mode"] == "caged"
    got, transformer = emit(cell(mode="caged"), own)
    assert transformer.failures[0].reason == "no-record"
    assert (got["schema_version"], got["run"]["mode"]) == ("boundary_event_v9", "caged")
    plain = record(run={"mode": "caged"}) | {"schema_version": "boundary_event_v9"}
    plain["schema_key"] = "mine-v2"
    assert emit(cell(line(plain), mode="caged"), own)[1].failures == []
    plain["probe"]["id"] = "other"
    assert emit(cell(line(plain), mode="caged"), own)[1].failures[0].reason == "wrong-cell"


def test_a_pattern_that_leaves_the_harness_no_room() -> None:
    """Every probe breaks it, and the harness cannot keep it: the record has v1, and error."""
    own = make_own_builder(required='["mood"]')
    got, transformer = emit(cell(OWN), own)
    assert transformer.failures[0].reason == "bad-emission"
    assert '"mood" is a required property' in transformer.failures[0].sentence
    assert (got["schema_version"], got["schema_key"]) == ("boundary_event_v1", "mine-v2")
    decode_boundary(msgspec.json.encode(got))


def test_a_pattern_without_what_names_a_cell() -> None:
    own = make_own_builder(
        required="[]", properties='{"schema_version":{"const":"boundary_event_v9"}}'
    )
    loose = make_own_builder(
        required="[]",
        properties='{"schema_version":{"const":"boundary_event_v9"}}',
        additionalProperties="true",
    )
    bare = b'{"schema_version":"boundary_event_v9"}'
    for pattern in (own, loose):
        assert emit(cell(bare), pattern)[1].failures[0].reason == "invalid-record"
    value = record(result={"observed_result": "skipped"})
    value |= {"schema_version": "boundary_event_v9", "schema_key": "mine-v2"}
    value["capability_context"]["primary"]["since"] = "6.12"
    assert emit(cell(line(value)), loose)[1].results == {"skipped": 1}
    value["capability_context"]["primary"]["layer"] = "other"
    assert emit(cell(line(value)), loose)[1].failures[0].reason == "wrong-cell"
    del value["capability_context"]
    assert emit(cell(line(value)), loose)[1].results == {"skipped": 1}


@thorough(300)
@given(
    st.builds(
        cell,
        st.binary(max_size=60)
        | st.sampled_from([OWN, PLAIN, FULL, b"{}", b"\n"]).flatmap(
            lambda one: st.binary(max_size=4).map(one.__add__)
        ),
        exit_code=st.sampled_from([0, 0, 0, None, 1, 2**70]),
        stragglers=st.lists(st.text(max_size=90), max_size=8),
        stderr=st.binary(max_size=500),
        signal=st.none() | st.text(max_size=60),
        spawn_error=st.none() | st.text(max_size=60),
        capability=st.sampled_from([None, CAPABILITY, SECONDARY, "x"]),
    )
)
def test_every_cell_ends_in_one_valid_record(emission: RawEmission) -> None:
    got, transformer = emit(emission)
    decode_boundary(msgspec.json.encode(got))
    assert encoded_size(got["payload"]) <= LIMIT
    assert ("harness" in got["payload"]["raw"]) == bool(transformer.failures)


GOLDEN = DATA / "golden"
GOLDEN_CELLS = {
    "emitted": list(GOOD.values()),
    **{reason: [emissions[0]] for reason, emissions in BAD.items()},
}


@pytest.mark.parametrize("name", GOLDEN_CELLS)
def test_golden_records(name: str) -> None:
    """STREAM_UPDATE_GOLDENS=1 writes them anew: look at the difference before you commit it."""
    out, control = run_transformer(Emit(make_builder()), [[*map(encode_raw, GOLDEN_CELLS[name])]])
    assert control == []
    got = b"".join(item + b"\n" for item in out)
    path = GOLDEN / f"{name}.ndjson"
    if os.environ.get("STREAM_UPDATE_GOLDENS"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(got)
    assert path.read_bytes() == got


def test_there_are_no_other_goldens() -> None:
    assert {path.stem for path in Path(GOLDEN).glob("*")} == set(GOLDEN_CELLS)
