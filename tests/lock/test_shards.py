"""A matrix in parts: every cell is in one shard, and the merge is the whole, or says why not."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.codec import BUNDLE
from stream.errors import InputError, UsageError
from stream.matrix.shards import (
    MergedMatrix,
    PlannedCell,
    envelope_of,
    make_shard,
    merge_envelopes,
    parse_shard,
    planned_cells,
    read_plan,
    shard_of_plan,
)
from stream.records.lock import Envelope, MatrixPlanDocument, PlannedProbe, decode_envelope
from tests.lock.records import as_line, mode_record

SCHEMA = jsonschema_rs.validator_for(
    json.loads((BUNDLE / "schema" / "matrix_plan.schema.json").read_bytes())
)
names = st.text("abcdefgh", min_size=1, max_size=3)
plans = st.builds(
    MatrixPlanDocument,
    hosts=st.lists(names, min_size=1, max_size=2, unique=True),
    modes=st.lists(names, min_size=1, max_size=3, unique=True),
    probes=st.lists(
        st.builds(PlannedProbe, id=names, version=st.sampled_from(["1", "2", None])),
        min_size=1,
        max_size=6,
        unique_by=lambda probe: probe.id,
    ),
    repeat=st.integers(1, 3),
)
PLAN = MatrixPlanDocument(
    hosts=["ci"],
    modes=["baseline", "bwrap-ro"],
    probes=[PlannedProbe("a", "1"), PlannedProbe("b", "2")],
    repeat=2,
)


def seal(cell: PlannedCell, **changes: Any) -> Envelope:
    version = cell.probe.version or "7"
    value = mode_record(cell.probe.id, mode=cell.mode, version=version, **changes)
    return envelope_of(cell, as_line(value).strip())


def place(*envelopes: Envelope) -> list[tuple[str, Envelope]]:
    return [(f"shard.ndjson:{line}", envelope) for line, envelope in enumerate(envelopes, 1)]


def merge(plan: MatrixPlanDocument, *envelopes: Envelope) -> MergedMatrix:
    return merge_envelopes(plan, place(*envelopes))


# --- the plan and its shards ------------------------------------------------------------------


def test_the_cells_of_a_plan() -> None:
    cells = planned_cells(PLAN)
    assert [(cell.mode, cell.probe.id, cell.repetition) for cell in cells] == [
        ("baseline", "a", 0),
        ("baseline", "a", 1),
        ("baseline", "b", 0),
        ("baseline", "b", 1),
        ("bwrap-ro", "a", 0),
        ("bwrap-ro", "a", 1),
        ("bwrap-ro", "b", 0),
        ("bwrap-ro", "b", 1),
    ]
    assert str(cells[0]) == "a (baseline) on ci"
    assert str(cells[-1]) == "b (bwrap-ro) on ci, repetition 2"
    # Written out, because other machines have to come to the same.
    assert cells[-1].digest == hashlib.sha256(b'["ci","bwrap-ro","b",1]').hexdigest()


@given(plans, st.integers(1, 9))
def test_shards_are_a_partition_and_even(plan: MatrixPlanDocument, shards: int) -> None:
    cells = planned_cells(plan)
    assert len({cell.digest for cell in cells}) == len(cells)
    parts = [shard_of_plan(plan, shard, shards) for shard in range(1, shards + 1)]
    assert sorted(c.digest for part in parts for c in part) == sorted(c.digest for c in cells)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    for part in parts:
        assert part == [cell for cell in cells if cell in part]


def test_a_probe_stays_with_its_control() -> None:
    """Only at the edges of shards is a probe in two of them."""
    probes = [PlannedProbe(f"probe_{number:02}", "1") for number in range(40)]
    plan = MatrixPlanDocument(hosts=["ci"], modes=["baseline", "x", "y", "z"], probes=probes)
    parts = [{cell.probe.id for cell in shard_of_plan(plan, one, 7)} for one in range(1, 8)]
    assert sum(map(len, parts)) <= len(probes) + 6
    # What is alike by name is spread: no shard has a run of ten neighbours.
    for part in parts:
        numbers = sorted(int(name[-2:]) for name in part)
        assert numbers[-1] - numbers[0] >= 10


def test_the_shard_of_a_host() -> None:
    plan = msgspec.structs.replace(PLAN, hosts=["x", "y"])
    parts = [make_shard(plan, f"{number}/2", "y") for number in (1, 2)]
    cells = [cell for part in parts for cell in part.cells]
    assert {cell.digest for cell in cells} == {
        cell.digest for cell in planned_cells(plan) if cell.host == "y"
    }
    for part in parts:
        assert part.plan.hosts == ["y"]
        assert {probe.id for probe in part.plan.probes} == {cell.probe.id for cell in part.cells}
    assert make_shard(PLAN, "1/1", None).cells == planned_cells(PLAN)


@pytest.mark.parametrize(
    ("hosts", "shard", "host", "message"),
    [
        (["x", "y"], "1/1", None, "the plan has several hosts: --host names this one of x, y"),
        (["x"], "1/1", "z", "--host z: the plan has x"),
        (["x"], "1/9", None, "--shard 1/9: the plan has fewer cells than shards"),
        (["x"], "9", None, "--shard 9: expected I/N"),
    ],
)
def test_no_shard(hosts: list[str], shard: str, host: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_shard(msgspec.structs.replace(PLAN, hosts=hosts), shard, host)


@pytest.mark.parametrize(("text", "shard"), [("1/1", (1, 1)), ("2/3", (2, 3)), ("12/12", (12, 12))])
def test_shard_words(text: str, shard: tuple[int, int]) -> None:
    assert parse_shard(text) == shard


@pytest.mark.parametrize(
    "text", ["", "0/3", "4/3", "1", "1/", "a/b", "1/3/5", "01/3", "-1/3", "1/0"]
)
def test_no_shard_words(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected I/N, from 1/N to N/N"):
        parse_shard(text)


@given(plans)
def test_a_plan_is_read_as_it_was_written(tmp_path_factory: Any, plan: MatrixPlanDocument) -> None:
    path: Path = tmp_path_factory.mktemp("plan") / "plan.json"
    path.write_bytes(msgspec.json.encode(plan))
    assert read_plan(path) == plan
    SCHEMA.validate(json.loads(path.read_bytes()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "stream.matrix_plan.v2"}, "$.schema: invalid value 'stream.matrix_plan.v2'"),
        ({"schema": "stream.envelope.v1"}, "unknown field `hosts`"),
        ({"schema": None}, "$.schema: expected `str`"),
        ({"hosts": []}, "$.hosts: expected `array` of length >= 1"),
        ({"hosts": ["a", "a"]}, "$.hosts: expected different names"),
        ({"modes": ["Bwrap"]}, "$.modes[0]: expected lower-case letters"),
        ({"modes": ["x", "x"]}, "$.modes: expected different names"),
        ({"probes": [{"id": "a"}]}, "$.probes[0]: object missing required field `version`"),
        (
            {"probes": [{"id": "a", "version": "1"}, {"id": "a", "version": "2"}]},
            "$.probes: expected different names",
        ),
        ({"repeat": 0}, "$.repeat: expected `int` >= 1"),
        ({"more": 1}, "unknown field `more`"),
    ],
)
def test_what_is_no_plan(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "plan.json"
    value = {**json.loads(msgspec.json.encode(PLAN)), **change}
    path.write_text(json.dumps({name: one for name, one in value.items() if one is not None}))
    if change == {"schema": None}:
        message = "missing required field `schema`"
    with pytest.raises(InputError) as caught:
        read_plan(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert str(caught.value).endswith("not a plan of a matrix")


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"schema":"\\ud800"}', '{"a":1,"a":2}'])
def test_what_is_no_document(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"plan\.json"):
        read_plan(path)


# --- merging ----------------------------------------------------------------------------------


@given(plans, st.integers(1, 5), st.randoms(use_true_random=False))
def test_any_split_of_the_plan_is_merged_to_the_whole(
    plan: MatrixPlanDocument, shards: int, random: Any
) -> None:
    """In whatever order the shards, and their cells, come."""
    whole = [bytes(seal(cell).record) for cell in planned_cells(plan)]
    parts = [shard_of_plan(plan, shard, shards) for shard in range(1, shards + 1)]
    random.shuffle(parts)
    for part in parts:
        random.shuffle(part)
    merged = merge(plan, *(seal(cell) for part in parts for cell in part))
    assert merged.is_whole
    assert merged.records == whole
    assert (merged.missing, merged.doubled, merged.foreign) == ([], [], [])


@given(plans, st.data())
def test_what_is_missing_doubled_and_foreign_is_found(
    plan: MatrixPlanDocument, data: st.DataObject
) -> None:
    cells = planned_cells(plan)
    some = st.lists(st.sampled_from(cells), unique=True)
    left_out, twice = data.draw(some), data.draw(some)
    strange = data.draw(st.integers(0, 2))
    stranger = PlannedCell("elsewhere", cells[0].mode, cells[0].probe, 0)
    envelopes = [
        *(seal(cell) for cell in cells if cell not in left_out),
        *(seal(cell, errno="EROFS") for cell in twice if cell not in left_out),
        *[seal(stranger)] * strange,
    ]
    merged = merge(plan, *envelopes)
    assert merged.missing == [cell for cell in cells if cell in left_out]
    assert len(merged.doubled) == len([cell for cell in twice if cell not in left_out])
    assert len(merged.foreign) == strange
    # The first record of a cell counts.
    assert merged.records == [bytes(seal(cell).record) for cell in cells if cell not in left_out]
    assert merged.is_whole == (not left_out and not merged.doubled and not strange)
    assert len(envelopes) == len(merged.records) + len(merged.doubled) + len(merged.foreign)


CELLS = planned_cells(PLAN)


@pytest.mark.parametrize(
    ("envelope", "reason"),
    [
        (
            msgspec.structs.replace(seal(CELLS[0]), cell="0" * 64),
            "shard.ndjson:1: no cell of the plan has this name",
        ),
        (
            msgspec.structs.replace(seal(CELLS[0]), host="other"),
            "shard.ndjson:1: a (baseline) on ci: it comes from other",
        ),
        (
            msgspec.structs.replace(seal(CELLS[0]), record=seal(CELLS[2]).record),
            "shard.ndjson:1: a (baseline) on ci: its record is of b (baseline)",
        ),
        (
            msgspec.structs.replace(seal(CELLS[0]), record=seal(CELLS[4]).record),
            "shard.ndjson:1: a (baseline) on ci: its record is of a (bwrap-ro)",
        ),
        (
            envelope_of(CELLS[0], as_line(mode_record("a", mode="baseline", version="9")).strip()),
            "shard.ndjson:1: a (baseline) on ci: its record is of version 9",
        ),
    ],
)
def test_why_a_record_is_foreign(envelope: Envelope, reason: str) -> None:
    merged = merge(PLAN, envelope)
    assert merged.foreign == [reason]
    assert merged.missing == CELLS
    assert not merged.is_whole


def test_which_record_is_doubled() -> None:
    merged = merge(PLAN, *(seal(cell) for cell in (*CELLS, CELLS[1])))
    assert merged.doubled == [
        "shard.ndjson:9: a (baseline) on ci, repetition 2: shard.ndjson:2 has it already"
    ]


def test_a_record_that_the_harness_wrote_knows_no_version() -> None:
    broken = mode_record("a", "untold", mode="baseline", version="unknown", harness="killed")
    merged = merge(PLAN, envelope_of(CELLS[0], as_line(broken).strip()))
    assert len(merged.records) == 1


def test_a_record_comes_out_byte_for_byte() -> None:
    line = json.dumps(mode_record("a", mode="baseline"), indent=None, separators=(" , ", " : "))
    envelope = decode_envelope(msgspec.json.encode(envelope_of(CELLS[0], line.encode())))
    assert merge(PLAN, envelope).records == [line.encode()]
    SCHEMA.validate(json.loads(msgspec.json.encode(envelope)))
