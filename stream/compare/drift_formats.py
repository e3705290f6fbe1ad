"""The drift of a boundary as text, Markdown, JUnit XML and SARIF 2.1.0. Pure.

What opened always comes first. A cell that was not measured passes in none of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from html import escape
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

import msgspec

from stream.compare.drift import DRIFTS, Change, describe_drift, drift_summary, has_drift
from stream.errors import number, printable
from stream.records.lock import BoundaryDrift, BoundaryLock, CellDrift, CellKey

_LISTED: tuple[Change, ...] = (*DRIFTS, "changed")
#: what each change is, what it means, and how much SARIF makes of it
_MEANINGS: dict[Change, tuple[str, str, str]] = {
    "opened": ("The boundary opened", "more gets through than is locked", "error"),
    "closed": ("The boundary closed", "less gets through than is locked", "warning"),
    "unmeasured": (
        "The boundary can no longer be measured",
        "what is locked can no longer be measured",
        "warning",
    ),
    "measured": (
        "The boundary is not locked",
        "what is measured now is not locked",
        "warning",
    ),
    "changed": (
        "The boundary is the same for another reason",
        "the outcome is the same for another reason, which is no drift",
        "note",
    ),
}
_ACCEPT = "to accept this, lock what was measured, and have the difference reviewed"
_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_ROOT = "%SRCROOT%"
_MEASURED_CLASS, _MEASURED_NAME = "lockfile", "every cell that is locked can be measured"


def drift_text(drift: BoundaryDrift) -> Iterator[str]:
    """Yield a drift as lines for people."""
    for change in _LISTED:
        cells = getattr(drift, change)
        if cells:
            count = number(len(cells), "cell")
            yield f"{_heading(change)}: {count}: {_MEANINGS[change][1]}"
        for cell in cells:
            yield f"  {_place(drift, cell)}: {_cell_sentence(change, cell)}"
    yield from (f"note: {note}" for note in drift.notes)
    yield drift_summary(drift)
    if has_drift(drift):
        yield _ACCEPT


def drift_markdown(drift: BoundaryDrift) -> Iterator[str]:
    """Yield a drift as lines of Markdown, for the summary of a CI job."""
    yield f"### {_cell_of_table(drift_summary(drift))}"
    yield ""
    listed = [(change, cell) for change in _LISTED for cell in getattr(drift, change)]
    if listed:
        yield "| | probe | mode | capability | what |"
        yield "| --- | --- | --- | --- | --- |"
    for change, cell in listed:
        sentence = describe_drift(change, cell)
        words = (cell.probe, cell.mode, cell.capability, sentence)
        yield f"| **{_heading(change)}** | {' | '.join(map(_cell_of_table, words))} |"
    if listed:
        yield ""
    yield from (f"- {_cell_of_table(note)}" for note in drift.notes)
    if has_drift(drift):
        yield f"- {_ACCEPT}"


def drift_junit(drift: BoundaryDrift, lock: BoundaryLock) -> bytes:
    """Return a drift as JUnit XML: a suite for each mode, a case for each cell.

    A cell that drifted is a failure, a probe that broke an error, and what was not measured is
    skipped. That something locked is no longer measured is the failure of a case of its own.
    """
    changes: dict[CellKey, tuple[Change, CellDrift]] = {
        (cell.mode, cell.capability, cell.probe): (change, cell)
        for change in (*_LISTED, "untold")
        for cell in getattr(drift, change)
    }
    keys = sorted({*changes, *(cell.key for cell in lock.cells)})
    root = ET.Element("testsuites", name=printable(drift.lock))
    for mode in sorted({key[0] for key in keys}):
        suite = ET.SubElement(root, "testsuite", name=printable(mode))
        for key in keys:
            if key[0] == mode:
                _add_case(suite, key, changes.get(key))
        lost = [cell for cell in drift.unmeasured if cell.mode == mode]
        _add_measured_case(suite, lost)
        _count_cases(suite)
    _count_cases(root)
    for note in drift.notes:
        ET.SubElement(root, "system-out").text = printable(note)
    ET.indent(root)
    text: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def drift_sarif(drift: BoundaryDrift, version: str) -> bytes:
    """Return a drift as SARIF 2.1.0: a result for each cell, at its line of the lockfile."""
    rules = [
        {
            "id": _rule_id(change),
            "shortDescription": {"text": f"{title}."},
            "fullDescription": {"text": f"{title}: {meaning}."},
            "help": {"text": f"Look at what changed around the sandbox. {_ACCEPT.capitalize()}."},
            "defaultConfiguration": {"level": level},
        }
        for change, (title, meaning, level) in _MEANINGS.items()
    ]
    driver = {"name": "stream", "semanticVersion": version, "rules": rules}
    results = [
        _sarif_result(drift, change, index, cell)
        for index, change in enumerate(_LISTED)
        for cell in getattr(drift, change)
    ]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    log = {"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
    return msgspec.json.format(msgspec.json.encode(log), indent=2) + b"\n"


def _heading(change: Change) -> str:
    """Return the word of a change; what opened is louder than the rest."""
    return change.upper() if change == "opened" else change


def _place(drift: BoundaryDrift, cell: CellDrift) -> str:
    return f"{drift.lock}:{cell.line}" if cell.line else drift.lock


def _cell_sentence(change: Change, cell: CellDrift) -> str:
    return f"{cell.probe} ({cell.mode}): {describe_drift(change, cell)}"


def _cell_of_table(text: str) -> str:
    """Escape what Markdown or a table in it would interpret."""
    escaped = escape(printable(text))
    return "".join(f"&#{ord(c)};" if c in "|`*[]\\#!~" else c for c in escaped)


def _add_case(suite: ET.Element, key: CellKey, changed: tuple[Change, CellDrift] | None) -> None:
    """Add the case of a cell to the suite of its mode."""
    _, capability, probe = map(printable, key)
    case = ET.SubElement(suite, "testcase", classname=capability, name=probe)
    if changed is None:
        return
    change, cell = changed
    sentence = printable(describe_drift(change, cell))
    if change == "unmeasured" and cell.is_broken:
        ET.SubElement(case, "error", type="broken-probe", message=sentence)
    elif change in ("unmeasured", "untold"):
        ET.SubElement(case, "skipped", message=sentence)
    elif change in DRIFTS:
        ET.SubElement(case, "failure", type=change, message=sentence)
    else:
        ET.SubElement(case, "system-out").text = sentence


def _add_measured_case(suite: ET.Element, lost: list[CellDrift]) -> None:
    """Add the case that fails where locked cells can no longer be measured."""
    case = ET.SubElement(suite, "testcase", classname=_MEASURED_CLASS, name=_MEASURED_NAME)
    if lost:
        message = f"{number(len(lost), 'cell')}: {_MEANINGS['unmeasured'][1]}"
        ET.SubElement(case, "failure", type="unmeasured", message=message)


def _count_cases(element: ET.Element) -> None:
    """Write how many cases an element has, and how they ended."""
    cases = [*element.iter("testcase")]
    element.set("tests", str(len(cases)))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(name, str(sum(case.find(tag) is not None for case in cases)))


def _rule_id(change: Change) -> str:
    return f"boundary-{change}"


def _sarif_result(
    drift: BoundaryDrift, change: Change, index: int, cell: CellDrift
) -> dict[str, Any]:
    """Return the result of a cell. A cell without a line is at the first one."""
    rule = _rule_id(change)
    # Of the rule and the cell alone: another line, or another reason, is the same alert.
    parts = "\0".join((rule, cell.mode, cell.capability, cell.probe))
    fingerprint = hashlib.sha256(parts.encode()).hexdigest()
    place = {"artifactLocation": _artifact(drift.lock), "region": {"startLine": cell.line or 1}}
    return {
        "ruleId": rule,
        "ruleIndex": index,
        "level": _MEANINGS[change][2],
        "message": {"text": f"{printable(_cell_sentence(change, cell))}."},
        "locations": [{"physicalLocation": place}],
        # The second is the only one that code scanning of GitHub reads. Without it, it would be
        # made of the line, where several cells that have none share the first.
        "partialFingerprints": {
            "boundaryCell/v1": fingerprint,
            "primaryLocationLineHash": f"{fingerprint[:16]}:1",
        },
    }


def _artifact(path: str) -> dict[str, str]:
    """Return where the lockfile is: relative to the root of the sources, if its path is."""
    uri = quote(path)
    return {"uri": f"file://{uri}"} if path.startswith("/") else {"uri": uri, "uriBaseId": _ROOT}
