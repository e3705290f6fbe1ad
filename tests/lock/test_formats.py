"""The formats of a drift: golden files, their schemas, and what none of them may say."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.boundary.measured import OUTCOMES
from stream.codec import BUNDLE
from stream.compare.drift import DRIFTS, drift_of_lock
from stream.compare.drift_formats import drift_junit, drift_markdown, drift_sarif, drift_text
from stream.compare.lockfile import ParsedLock
from stream.records.lock import BoundaryDrift, BoundaryLock
from tests.lock.records import locked, measure, mode_record
from tests.transformers.samples import DATA

DRIFT = jsonschema_rs.validator_for(
    json.loads((BUNDLE / "schema" / "boundary_drift.schema.json").read_bytes())
)
SARIF = jsonschema_rs.validator_for(
    json.loads((DATA / "sarif" / "sarif-2.1.0.json").read_bytes()), validate_formats=True
)
HOSTILE = 'a|b`c`<d>&"e"\n\x1b[31m*f*[g](h)\x00\u202e@i'

OLD = (
    mode_record("fs_outside_workspace"),
    mode_record("fs_home_write", "open"),
    mode_record("fs_git_hooks", "closed", errno="EROFS"),
    mode_record("net_tcp", "closed", capability="cap_net"),
    mode_record("net_udp", "closed", capability="cap_net"),
    mode_record("net_dns", "no-control", capability="cap_net"),
    mode_record("proc_race", "open"),
    mode_record("proc_race", "closed"),
    mode_record("proc_same", "partial"),
    mode_record("fs_outside_workspace", mode="codex"),
)
NEW = (
    mode_record("fs_outside_workspace", "open"),
    mode_record("fs_home_write", "closed"),
    mode_record("fs_git_hooks", "closed"),
    mode_record("net_tcp", "no-control", capability="cap_net"),
    mode_record("net_udp", "untold", capability="cap_net", harness="killed", message="by SIGSEGV"),
    mode_record("net_dns", "no-control", capability="cap_net"),
    mode_record("proc_race", "open"),
    mode_record("proc_same", "partial"),
    mode_record("proc_new", "open"),
)
LOCKED = locked(*OLD)
FOUND = drift_of_lock(LOCKED, measure(*NEW), "boundary.lock", {"codex": "codex is not on PATH"})
SAME = drift_of_lock(LOCKED, measure(*OLD), "boundary.lock")


def render(name: str, drift: BoundaryDrift, lock: BoundaryLock = LOCKED.lock) -> bytes:
    match name:
        case "txt":
            return "\n".join((*drift_text(drift), "")).encode()
        case "md":
            return "\n".join((*drift_markdown(drift), "")).encode()
        case "xml":
            return drift_junit(drift, lock)
        case "sarif":
            return drift_sarif(drift, "0.1.0")
        case _:
            return msgspec.json.format(msgspec.json.encode(drift)) + b"\n"


@pytest.mark.parametrize("name", ["txt", "md", "xml", "sarif", "json"])
@pytest.mark.parametrize(("stem", "drift"), [("drift", FOUND), ("same", SAME)])
def test_each_format_is_the_golden_one(stem: str, drift: BoundaryDrift, name: str) -> None:
    """STREAM_UPDATE_GOLDENS=1 writes them anew: look at the difference before you commit it."""
    file = DATA / "lock" / f"{stem}.{name}"
    found = render(name, drift)
    if os.environ.get("STREAM_UPDATE_GOLDENS"):
        file.write_bytes(found)
    assert file.read_bytes() == found


def test_what_opened_is_first_and_loudest() -> None:
    assert next(iter(drift_text(FOUND))) == "OPENED: 1 cell: more gets through than is locked"
    text = "\n".join(drift_text(FOUND))
    headings = ["OPENED: ", "\nclosed: ", "\nunmeasured: ", "\nmeasured: ", "\nchanged: "]
    places = [text.index(heading) for heading in headings]
    assert places == sorted(places)
    first = next(line for line in drift_markdown(FOUND) if line.startswith("| **"))
    assert first.startswith("| **OPENED** | fs_outside_workspace | bwrap-ro |")
    results = json.loads(drift_sarif(FOUND, "1"))["runs"][0]["results"]
    assert next(one["ruleId"] for one in results) == "boundary-opened"
    assert {one["level"] for one in results if one["ruleId"] == "boundary-opened"} == {"error"}
    assert {one["level"] for one in results[1:]} == {"warning", "note"}


def results_of(drift: BoundaryDrift) -> list[Any]:
    value = json.loads(drift_sarif(drift, "1"))
    SARIF.validate(value)
    results: list[Any] = value["runs"][0]["results"]
    return results


def test_sarif_points_at_the_line_of_the_lockfile(tmp_path: Path) -> None:
    lines = (DATA / "lock" / "drift.lock").read_text().splitlines()
    for one in results_of(FOUND):
        place = one["locations"][0]["physicalLocation"]
        assert place["artifactLocation"] == {"uri": "boundary.lock", "uriBaseId": "%SRCROOT%"}
        probe = one["message"]["text"].partition(" ")[0]
        line = lines[place["region"]["startLine"] - 1]
        assert f"  {probe}@1  " in line or (probe, line) == ("proc_new", "lock 1")


def test_the_lock_of_these_tests_is_there_to_be_read() -> None:
    from stream.compare.lockfile import lock_lines

    file, text = DATA / "lock" / "drift.lock", "\n".join((*lock_lines(LOCKED.lock), ""))
    if os.environ.get("STREAM_UPDATE_GOLDENS"):
        file.write_text(text)
    assert file.read_text() == text


def test_fingerprints_are_of_the_cell_and_of_nothing_else() -> None:
    """A line that moves, or a reason that changes, is the same alert; another cell is not."""
    moved = ParsedLock(LOCKED.lock, {key: n + 7 for key, n in LOCKED.lines.items()}, [])
    other = drift_of_lock(moved, measure(*NEW), "boundary.lock", {"codex": "something else"})
    prints = [one["partialFingerprints"] for one in results_of(FOUND)]
    assert prints == [one["partialFingerprints"] for one in results_of(other)]
    assert results_of(FOUND) != results_of(other)
    for name in ("boundaryCell/v1", "primaryLocationLineHash"):
        assert len({one[name] for one in prints}) == len(prints)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("ci/my lock.lock", {"uri": "ci/my%20lock.lock", "uriBaseId": "%SRCROOT%"}),
        ("/srv/é.lock", {"uri": "file:///srv/%C3%A9.lock"}),
        ("a:b", {"uri": "a%3Ab", "uriBaseId": "%SRCROOT%"}),
    ],
)
def test_the_lockfile_in_sarif(name: str, place: dict[str, str]) -> None:
    drift = drift_of_lock(LOCKED, measure(*NEW), name)
    found = {
        json.dumps(one["locations"][0]["physicalLocation"]["artifactLocation"])
        for one in results_of(drift)
    }
    assert found == {json.dumps(place)}


# --- JUnit ------------------------------------------------------------------------------------


def cases_of(drift: BoundaryDrift, lock: BoundaryLock) -> dict[tuple[str, str], ET.Element]:
    """The cases by mode and name; each stands once."""
    root = ET.fromstring(drift_junit(drift, lock))
    cases = [(suite.get("name"), case) for suite in root for case in suite.iter("testcase")]
    found = {(str(mode), str(case.get("name"))): case for mode, case in cases}
    assert len(found) == len(cases)
    for element in (root, *root.iter("testsuite")):
        inside = [*element.iter("testcase")]
        counted = {"tests": len(inside)}
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            counted[name] = sum(case.find(tag) is not None for case in inside)
        assert {name: int(str(element.get(name))) for name in counted} == counted
    return found


def verdict_of(case: ET.Element) -> str:
    tags = [child.tag for child in case if child.tag != "system-out"]
    assert len(tags) <= 1
    return tags[0] if tags else "passed"


def test_junit_by_case() -> None:
    measured = "every cell that is locked can be measured"
    found = {key: verdict_of(case) for key, case in cases_of(FOUND, LOCKED.lock).items()}
    assert found == {
        ("bwrap-ro", "fs_outside_workspace"): "failure",
        ("bwrap-ro", "fs_home_write"): "failure",
        ("bwrap-ro", "fs_git_hooks"): "passed",
        ("bwrap-ro", "net_tcp"): "skipped",
        ("bwrap-ro", "net_udp"): "error",
        ("bwrap-ro", "net_dns"): "skipped",
        ("bwrap-ro", "proc_race"): "passed",
        ("bwrap-ro", "proc_same"): "passed",
        ("bwrap-ro", "proc_new"): "failure",
        ("bwrap-ro", measured): "failure",
        ("codex", "fs_outside_workspace"): "skipped",
        ("codex", measured): "failure",
    }
    case = cases_of(FOUND, LOCKED.lock)["codex", "fs_outside_workspace"]
    assert case.get("classname") == "cap_fs_write_outside_workspace"
    (skipped,) = case
    assert str(skipped.get("message")).endswith("not measured now: codex is not on PATH")


def test_junit_of_what_is_as_it_was_locked() -> None:
    """What was not measured when it was locked, and is not now, is no failure, and does not
    pass."""
    found = {key: verdict_of(case) for key, case in cases_of(SAME, LOCKED.lock).items()}
    assert {key for key, verdict in found.items() if verdict != "passed"} == {
        ("bwrap-ro", "net_dns")
    }
    assert found["bwrap-ro", "net_dns"] == "skipped"


sides = st.dictionaries(st.sampled_from("abcd"), st.sampled_from((*OUTCOMES, "broken")), min_size=1)


def records_of(side: dict[str, str]) -> list[dict[str, Any]]:
    return [
        mode_record(name, "untold", harness="killed")
        if outcome == "broken"
        else mode_record(name, outcome)
        for name, outcome in side.items()
    ]


@given(sides, sides)
def test_what_was_not_measured_never_passes(old: dict[str, str], new: dict[str, str]) -> None:
    lock = locked(*records_of(old))
    drift = drift_of_lock(lock, measure(*records_of(new)), "boundary.lock")
    told = ("open", "partial", "diverted", "closed")
    cases = cases_of(drift, lock.lock)
    is_failing = any(verdict_of(case) in ("failure", "error") for case in cases.values())
    assert is_failing == any(getattr(drift, change) for change in DRIFTS)
    for name in old.keys() | new.keys():
        verdict = verdict_of(cases["bwrap-ro", name])
        if new.get(name, "absent") not in told:
            assert verdict in ("skipped", "error")
        else:
            assert verdict == ("passed" if old.get(name) == new[name] else "failure")


# --- what names may hold ----------------------------------------------------------------------


def test_names_cannot_forge_anything() -> None:
    lock = locked(mode_record(HOSTILE, capability=HOSTILE), mode_record("z"))
    found = measure(mode_record(HOSTILE, "open", capability=HOSTILE), mode_record("z"))
    drift = drift_of_lock(lock, found, HOSTILE)
    root = ET.fromstring(drift_junit(drift, lock.lock))
    assert next(case.get("name") for case in root.iter("testcase")) != "z"
    assert root.find(".//failure") is not None
    results_of(drift)
    DRIFT.validate(json.loads(render("json", drift)))
    rows = [line for line in drift_markdown(drift) if line.startswith("| **")]
    assert len(rows) == 1
    assert rows[0].count("|") == 6
    assert not set("`<\n\x1b") & set(rows[0])


@pytest.mark.parametrize("drift", [FOUND, SAME])
def test_the_record_keeps_its_schema(drift: BoundaryDrift) -> None:
    value = json.loads(render("json", drift))
    DRIFT.validate(value)
    assert value["schema"] == "stream.boundary_drift.v1"
    assert not DRIFT.is_valid({**value, "more": 1})
    assert msgspec.json.decode(render("json", drift), type=BoundaryDrift) == drift
