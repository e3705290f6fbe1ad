"""Every document of one table, good or bad, is validated alike by every command that reads it."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from stream.archive.reader import Limits
from stream.codec import DECODE_ERRORS, decode_fault
from stream.contracts import ARTIFACTS, CONTRACTS, LINES
from stream.records.artifacts import ARCHIVE_MANIFEST, V0_FILES
from stream.records.control import Finding
from stream.verify.report import VerifyReport
from stream.verify.run_folder import RunFolder, evidence_findings
from stream.verify.session import VerifySession, verify
from tests.archive.samples import (
    ARCHIVES,
    build_tar,
    compress_tar,
    read_tar,
    read_tar_items,
    write_run_folder,
)
from tests.cli.command import Place
from tests.cli.conftest import place
from tests.sweeping import thorough

__all__ = ["place"]
ROOT = Path(__file__).resolve().parents[2]


class Case(Struct):
    """A document, in which file it stands, and what is wrong with it: nothing, if that is empty."""

    file: str
    breaks: str
    path: str
    document: msgspec.Raw

    @property
    def data(self) -> bytes:
        return bytes(self.document) + (b"\n" if self.file.endswith(".ndjson") else b"")

    def is_reported_by(self, message: str, path: str | None) -> bool:
        return self.breaks in message and self.path == (path or "")


CASES = msgspec.json.Decoder(Case).decode_lines(
    (ROOT / "tests" / "data" / "contracts" / "runner.ndjson").read_bytes()
)
BAD = [case for case in CASES if case.breaks]
GOOD = [case for case in CASES if not case.breaks]
SCHEMAS = {
    contract: jsonschema_rs.validator_for(
        json.loads((ROOT / "schema" / f"evidence_{kind}.schema.json").read_bytes())
    )
    for kind, contracts in (("lines", LINES), ("artifacts", ARTIFACTS))
    for contract in contracts
}
#: What no JSON Schema can express: an order, a sum, or that two texts are the same.
BEYOND = re.compile(
    "not sorted by its bytes|is bound twice|is listed as|is of another call|it ends where it starts"
    "|bytes, more than 256|is not the type of event_|is no marker of a phase|the flags say"
    "|the name (is no plain name|begins with a drive|leads out)|ringbuf_drops is not"
    "|stands twice|counts more calls|duplicate key|it is no folder of the recorder's own"
)


def name_case(case: Case) -> str:
    return f"{case.file}: {case.breaks}"


def test_there_are_many_of_each() -> None:
    assert len(BAD) > 110
    assert len(GOOD) > 60
    assert {case.file for case in BAD} == {case.file for case in GOOD} >= {*V0_FILES}


def test_validate(place: Place) -> None:
    found = place.root / "found.ndjson"
    data = b"".join(bytes(case.document) + b"\n" for case in CASES)
    done = place.stream("validate", "-", "--findings", found, data=data)
    assert done.code == 1
    assert done.out == b"".join(bytes(case.document) + b"\n" for case in GOOD)
    findings = msgspec.json.Decoder(Finding).decode_lines(found.read_bytes())
    assert [one.line for one in findings] == [n for n, case in enumerate(CASES, 1) if case.breaks]
    for case, one in zip(BAD, findings, strict=True):
        path = one.path if isinstance(one.path, str) else ""
        assert case.is_reported_by(one.message, path), (case, one)
    found.unlink()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run_folder(tmp_path_factory.mktemp("runs") / "run_1")


def test_check(folder: Path) -> None:
    for case in CASES:
        if case.file == ARCHIVE_MANIFEST:  # which no run has
            continue
        good = (folder / case.file).read_bytes()
        (folder / case.file).write_bytes(case.data)
        findings = [*evidence_findings(RunFolder(folder))]
        (folder / case.file).write_bytes(good)
        assert len(findings) == bool(case.breaks), (case, findings)
        for one in findings:
            assert one.source == str(folder / case.file)
            assert case.is_reported_by(one.message, one.path or ""), (case, one)


def test_check_reports_it_on_the_command_line(place: Place) -> None:
    run = write_run_folder(place.root / "run_1")
    sound = place.stream("check", run)
    assert b"folder.evidence" not in sound.out
    for case in (BAD[0], next(case for case in BAD if case.file == "observation-health.json")):
        (run / case.file).write_bytes(case.data)
    done = place.stream("check", run)
    findings = [json.loads(line) for line in done.out.splitlines()]
    assert [one["path"] for one in findings if one["rule"] == "folder.evidence"] == [
        *("$.pid", "$.kernel_layer")
    ]
    assert done.code == 1


@pytest.mark.parametrize("case", BAD, ids=name_case)
def test_verify_finds_what_is_bad(tmp_path: Path, case: Case) -> None:
    items = [
        (name, case.data if name == case.file else data)
        for name, data in read_tar_items(read_tar(ARCHIVES[0]))
    ]
    target = tmp_path / "a.tar.gz"
    target.write_bytes(compress_tar(build_tar(*items)))
    findings = [one for one in verify(target).findings if one.source == f"{target}/{case.file}"]
    assert any(case.is_reported_by(one.message, one.path or "") for one in findings), findings


@pytest.mark.parametrize(
    "case", [case for case in GOOD if case.file != ARCHIVE_MANIFEST], ids=name_case
)
def test_verify_finds_nothing_in_what_is_good(case: Case) -> None:
    report = VerifyReport("x", Limits(), is_folder=False)
    examination = VerifySession(report)
    examination.begin(case.file)
    examination.feed(case.data)
    examination.end()
    examination.documents.check_waiting_artifacts()
    examination.close()
    # That it is not the first of its layer is not its own fault.
    assert [one for one in report.findings if one.rule != "contract.seq"] == []


def find_reason(document: bytes) -> str:
    try:
        {**LINES, **ARTIFACTS}[json.loads(document)["schema"]](document)
    except DECODE_ERRORS as error:
        return decode_fault(error).reason
    return ""


def test_the_shipped_schemas_say_the_same() -> None:
    for case in CASES:
        value = json.loads(bytes(case.document))
        assert value["schema"] == CONTRACTS[case.file], name_case(case)
        is_valid = SCHEMAS[value["schema"]].is_valid(value)
        assert is_valid == (not case.breaks) or BEYOND.search(case.breaks), name_case(case)


MEMBERS: dict[str, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
for _case in CASES:
    for _name, _value in json.loads(bytes(_case.document)).items():
        if _value not in MEMBERS[CONTRACTS[_case.file]][_name]:
            MEMBERS[CONTRACTS[_case.file]][_name].append(_value)


@st.composite
def mixed_documents(draw: st.DrawFn) -> dict[str, Any]:
    """A document of the table with some of its members from others."""
    case = draw(st.sampled_from(CASES))
    value: dict[str, Any] = json.loads(bytes(case.document))
    members = MEMBERS[CONTRACTS[case.file]]
    for name in draw(st.sets(st.sampled_from(sorted(members.keys() - {"schema"})), max_size=3)):
        value[name] = draw(st.sampled_from(members[name]))
    for name in draw(st.sets(st.sampled_from(sorted(value.keys() - {"schema"})), max_size=1)):
        if draw(st.integers(0, 4)) == 0:
            del value[name]
    return value


@thorough(1500, deadline=None)
@given(mixed_documents())
def test_schema_and_model_hold_together(value: dict[str, Any]) -> None:
    """What the model takes the schema takes; what it alone refuses, no schema could."""
    reason = find_reason(json.dumps(value).encode())
    is_valid = SCHEMAS[value["schema"]].is_valid(value)
    assert is_valid or reason
    assert not is_valid or not reason or BEYOND.search(reason), reason
