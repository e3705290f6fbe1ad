"""The JSON Schema of an event, and the page that explains it, agree with `check`."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given

from stream.codec import BUNDLE
from stream.records.decision import ORDER, TIME
from stream.transformers.event_rules import event_rules, read_event
from tests.sweeping import thorough
from tests.transformers.runs import Event, as_published, changed_events, good_run

SCHEMA: dict[str, Any] = json.loads((BUNDLE / "schema" / "decision_event.schema.json").read_text())
VALIDATOR = jsonschema_rs.validator_for(SCHEMA)
#: what no schema can express, and what only warns
BEYOND = {
    *("action_summary.reasoning", "evaluation.told"),
    *("timestamp.rfc3339", "model_output.completion_id.null"),
}
PAGE = (BUNDLE / "schema" / "decision-events.md").read_text()


@pytest.mark.parametrize("one", [*good_run(), *as_published(good_run())], ids=range(18))
def test_good_events_keep_the_schema(one: Event) -> None:
    VALIDATOR.validate(one)


@thorough(1000)
@given(changed_events())
def test_schema_and_check_agree_on_one_event(one: Event) -> None:
    errors = [error.message for error in VALIDATOR.iter_errors(one)]
    read = read_event(json.dumps(one).encode(), "agents")
    assert read is not None
    found = {fault.rule for fault in read[1]} - BEYOND
    if "timestamp" in found and re.match(TIME, str(one.get("timestamp"))):
        found.remove("timestamp")
    assert bool(errors) == bool(found), (errors, found)


def test_the_schema_is_open() -> None:
    assert '"additionalProperties": false' not in json.dumps(SCHEMA)


def test_the_page_has_every_rule() -> None:
    rows = re.findall(
        r"^\| `([a-z0-9_.]+)` \| ([\d.]+|folder) \| (error|warning) \|", PAGE, re.MULTILINE
    )
    assert rows == [(name, rule.section, rule.severity) for name, rule in event_rules().items()]
    for name, rule in event_rules().items():
        assert (
            f"| `{name}` | {rule.section} | {rule.severity} | {escape_cell(rule.sentence)} |"
            in PAGE
        )


def escape_cell(sentence: str) -> str:
    return sentence.replace("|", r"\|")


def test_the_page_names_every_event() -> None:
    for name in (name for names in ORDER for name in names):
        assert f"`{name}`" in PAGE
