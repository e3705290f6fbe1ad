"""What a scenario asks for is recorded, whether it can be checked or not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.errors import InputError
from stream.observe.scenario import read_constraints, read_scenario
from stream.records.decision import CONSTRAINTS, Constraint
from tests.cli.command import Place
from tests.recorder.runs import observe

#: In the words of the contract's own runner, with one constraint that nobody here can check.
SCENARIO = """# Scenario: a report

## User Request (Raw)

Write the report.

## Explicit Constraints

The answer is parsed.

### Format
- `output.json_only`: somebody parses it

### Style
- style.no_emojis
- `safety.no_secrets` (safety): No credential is printed,
  not even a made-up one.

## Notes
- made.up
"""


@pytest.mark.parametrize("end", ["", ":"])
def test_a_fifth_constraint_is_recorded_and_unknown(place: Place, end: str) -> None:
    task = place.root / "scenario.md"
    task.write_text(SCENARIO.replace("(Raw)", f"(Raw){end}").replace("nts\n\n", f"nts{end}\n\n"))
    run = observe(place, "--scenario", task, "--", "echo", "{}")
    request = run.events[1]["request"]
    assert request["user_request_raw"] == "Write the report."
    assert [one["id"] for one in request["constraints"]] == [
        *("output.json_only", "style.no_emojis", "safety.no_secrets")
    ]
    assert request["constraints"][2] == {
        "id": "safety.no_secrets",
        "type": "safety",
        "rule": "No credential is printed, not even a made-up one.",
    }
    evaluation = run.event("evaluation_performed")["evaluation"]
    assert evaluation["policy"]["checks"][-2] == {
        "id": "safety.no_secrets",
        "status": "unknown",
        "evidence": "no rule of this recorder checks it",
    }
    statuses = {name: part["status"] for name, part in evaluation.items()}
    assert statuses == {"alignment": "pass", "quality": "unknown", "policy": "unknown"}
    assert "stay unknown: safety.no_secrets" in run.done.err


def test_secrets_in_a_rule_are_taken_out(place: Place) -> None:
    secret = "ghp_0Aa1Bb2Cc30Aa1Bb2Cc30Aa1Bb2Cc30Aa1Bb2"
    task = place.root / "scenario.md"
    task.write_text(f"# Request\nx\n# Constraints\n- my.rule: never {secret}\n- {secret}\n")
    run = observe(place, "--scenario", task, "--capture", "redacted", "--", "true")
    for name in ("events.jsonl", "metadata.json"):
        assert secret not in (run.folder / name).read_text(), name
    rules = [one["rule"] for one in run.events[1]["request"]["constraints"]]
    assert rules == ["never [redacted:github:1]", "[redacted:github:1]"]


@pytest.mark.parametrize(
    ("text", "is_reported"),
    [
        ("No secrets, please.", True),
        ("| id | rule |\n| --- | --- |\n| safety.x | None. |", True),
        ("For people:\n\n- safety.x: None.", False),
        ("", False),
    ],
)
def test_constraints_that_are_no_list_are_not_passed_over_in_silence(
    place: Place, text: str, is_reported: bool
) -> None:
    task = place.root / "scenario.md"
    task.write_text(f"# Request\n\nx\n\n# Explicit Constraints\n\n{text}\n")
    done = place.stream("observe", "--scenario", task, "--", "true")
    message = f"stream: {task}: no constraint was read: they stand in a list, and there is none\n"
    assert (message in done.err) == is_reported


def parse_constraints(text: str) -> list[Constraint]:
    return read_constraints(text.splitlines(), Path("s.md"))


@pytest.mark.parametrize(
    ("text", "constraint"),
    [
        ("- `my.rule` (quality): It holds.", Constraint("my.rule", "quality", "It holds.")),
        ("- **my.rule** [other] — It holds.", Constraint("my.rule", "other", "It holds.")),
        ("* my.rule: It holds.", Constraint("my.rule", "other", "It holds.")),
        ("1. `rule` It holds.", Constraint("rule", "other", "It holds.")),
        ("+ style.short - It holds.", Constraint("style.short", "style", "It holds.")),
        ("- safety.x", Constraint("safety.x", "safety", "unknown")),
        ("- `my.rule` (soft): x", Constraint("my.rule", "other", "(soft): x")),
        ("- Must hold: always.", Constraint("scenario.1", "other", "Must hold: always.")),
        ("- must hold", Constraint("scenario.1", "other", "must hold")),
        (
            "- No change of a.b is made",
            Constraint("scenario.1", "other", "No change of a.b is made"),
        ),
        ("- a.b:\n  - one\n  - two", Constraint("a.b", "other", "- one - two")),
        (
            "- id: `my.rule`\n  type: scope\n  rule: It\n    holds.",
            Constraint("my.rule", "scope", "It holds."),
        ),
        (
            "- **id:** my.rule\n  - **type**: scope\n  - **rule**: It holds.",
            Constraint("my.rule", "scope", "It holds."),
        ),
        ("- output.json_only (format): JSON", CONSTRAINTS["output.json_only"]),
    ],
)
def test_forms_of_a_constraint(text: str, constraint: Constraint) -> None:
    assert parse_constraints(f"for people\n\n{text}\n") == [constraint]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a.b: one\n- a.b: two", "s.md: the constraint a.b stands twice, and differs"),
        ("- id: a.b\n  type: soft", "s.md: a.b: the type is none of style, safety"),
        ("- id: a b", "s.md: 'a b' is no id of a constraint"),
        ("- output.json_only (style)", "s.md: output.json_only: its type is format, not style"),
    ],
)
def test_a_constraint_that_contradicts_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match="^" + message.replace("(", r"\(")):
        parse_constraints(text)


def test_what_stands_twice_and_is_the_same_is_one() -> None:
    assert len(parse_constraints("- a.b: one\n- a.b: one")) == 1


@given(st.lists(st.from_regex(r"[A-Za-z`*:()\[\]. -]{1,30}", fullmatch=True), max_size=6))
def test_no_item_of_the_list_is_lost(texts: list[str]) -> None:
    texts = [text for text in texts if text.strip()]
    try:
        constraints = parse_constraints("".join(f"- {text.strip()}\n" for text in texts))
    except InputError:
        return
    ids = {one.id for one in constraints}
    assert len(constraints) == len(ids) <= len(texts)
    assert bool(ids) == bool(texts)


@pytest.mark.parametrize("heading", ["Request", "User Request", "USER REQUEST (RAW) ##"])
def test_headings_of_a_request(tmp_path: Path, heading: str) -> None:
    path = tmp_path / "s.md"
    path.write_text(f"### {heading}\nDo it.\n")
    assert read_scenario(path, None, None, []).request == "Do it."
