"""What a single document can break by itself: `validate`, `check` and `verify` agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from stream.archive.reader import Limits
from stream.boundary.descriptors import Boundaries, known_catalogs
from stream.codec import BUNDLE
from stream.contracts import Contracts
from stream.records.control import Finding
from stream.records.run import BOUNDARY_FILE
from stream.transformers.invariants import Invariants
from stream.transformers.validate import Validate
from stream.verify.session import verify
from tests.archive.samples import make_run_files, update_digests, write_files_as_archive
from tests.core.properties import feed
from tests.transformers.handmade import make_document, read_rows
from tests.transformers.runs import encode_run, good_run
from tests.transformers.samples import lines, make_builder, record, run_transformer

OBJECTS = read_rows("boundary-objects.ndjson")
IN_FORCE = Boundaries([make_builder().descriptor], known_catalogs())
SCHEMA = jsonschema_rs.validator_for(
    json.loads((BUNDLE / "schema" / "boundary_object_schema.json").read_text())
)
EVENT = jsonschema_rs.validator_for(
    json.loads((BUNDLE / "schema" / "decision_event.schema.json").read_text())
)


def select_findings(items: list[Any]) -> list[tuple[Any, ...]]:
    return [(f.severity, f.message, f.path) for f in items if isinstance(f, Finding)]


def test_what_was_good_before_makes_nothing_good() -> None:
    """Each as its recorder would write it, behind all the others."""
    transformer = Validate(IN_FORCE, is_last=True)
    written_so = [
        msgspec.json.encode(json.loads(make_document(row, record())), order="sorted")
        for row in OBJECTS
    ]
    whole = [row for row in OBJECTS if "text" not in row]
    for _ in range(2):
        for row, line in zip(OBJECTS, written_so, strict=True):
            bad = select_findings(list(feed(transformer, lines(line))))
            assert bool(bad) == (row["path"] is not None) or row not in whole, row["what"]


@pytest.mark.parametrize("row", OBJECTS, ids=lambda row: row["what"].replace(" ", "_"))
def test_a_boundary_object(row: dict[str, Any]) -> None:
    line = make_document(row, record())
    _, control = run_transformer(Validate(IN_FORCE, is_last=True), [lines(line)])
    transformer = Invariants(is_alone=False, contracts=lambda: Contracts(IN_FORCE))
    out, other_control = run_transformer(transformer, [lines(line)])
    assert out == [line]  # evidence passes, whatever it breaks
    assert select_findings(control) == select_findings(other_control)
    if row["path"] is None:
        assert select_findings(control) == []
        assert SCHEMA.is_valid(json.loads(line))
    else:
        ((_, _, path),) = select_findings(control)
        assert path == row["path"]


EVENTS = read_rows("decision-events.ndjson")


@pytest.mark.parametrize("row", EVENTS, ids=lambda row: row["what"].replace(" ", "_"))
def test_an_event(row: dict[str, Any]) -> None:
    run = good_run()
    at = row["event"] - 1
    line = make_document(row, run[at])
    _, control = run_transformer(Validate(IN_FORCE, is_last=True), [lines(line)])
    batch = [*encode_run(run[:at]), line, *encode_run(run[at + 1 :])]
    _, other_control = run_transformer(
        Invariants("agents", is_alone=True, source="in"), [lines(*batch)]
    )
    of_line = [
        f for f in other_control
        if isinstance(f, Finding) and (f.line, f.severity) == (row["event"], "error")
    ]  # fmt: skip
    own = [f for f in of_line if not f.rule.startswith("run.")]  # those of several are not here
    if row["rule"] is None:
        assert select_findings(control) == select_findings(own) == []
    else:
        assert {f.rule for f in own} == {row["rule"]}
        assert select_findings(control) == select_findings(own)[:1]
    if row["rule"] not in ("line.duplicate_key", "evaluation.told", "timestamp"):
        assert EVENT.is_valid(json.loads(line)) == (row["rule"] is None)


def test_in_an_archive(tmp_path: Path) -> None:
    """All at once, so that there is one archive."""
    data = b"".join(make_document(row, record()) + b"\n" for row in OBJECTS)
    archive = write_files_as_archive(
        tmp_path / "a.tar.gz", update_digests({**make_run_files(), BOUNDARY_FILE: data})
    )
    findings = [f for f in verify(archive, Limits()).findings if f.rule == "contract.record"]
    expected = {n: row["path"] for n, row in enumerate(OBJECTS, 1) if row["path"] is not None}
    # Of many of one rule the report keeps the first.
    assert {f.line: f.path for f in findings} == dict(list(expected.items())[: len(findings)])
    assert len(findings) >= 20
