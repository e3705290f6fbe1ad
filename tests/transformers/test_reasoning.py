"""Who is the subject of a verb of mind: a table of phrasings, and the properties behind it."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.transformers.event_rules import read_event
from stream.transformers.reasoning import VERBS, conjugate_verb, find_reasoning
from tests.transformers.runs import encode_run, good_run

TABLE = Path(__file__).parents[1] / "data/reasoning.txt"


def iter_phrasings(sign: str) -> Iterator[tuple[str, str]]:
    """(the agent's name, the summary)."""
    for line in TABLE.read_text().splitlines():
        if line.startswith(f"{sign} "):
            name, bar, text = line[2:].partition("| ")
            yield (name, text) if bar else ("", line[2:])


REASONING, SEEN = list(iter_phrasings("+")), list(iter_phrasings("-"))


def test_reasoning_that_nobody_saw_is_found() -> None:
    for name, text in REASONING:
        assert find_reasoning(f"[agent_completed] {text}", name), text
        assert find_reasoning(f"[agent_completed] exit_code=0; {text}; and more", name), text


def test_what_was_seen_is_no_reasoning() -> None:
    for name, text in SEEN:
        assert find_reasoning(f"[agent_completed] {text}", name) is None, text
        more = f"[agent_completed] exit_code=0; {text}; and more"
        assert find_reasoning(more, name) is None, text


def test_the_table_has_enough_of_both() -> None:
    assert len(REASONING) > 120
    assert len(SEEN) > 80


@pytest.mark.parametrize(
    "forms",
    [
        "believe believes believed believed believing",
        "wish wishes wished wished wishing",
        "guess guesses guessed guessed guessing",
        "worry worries worried worried worrying",
        "doubt doubts doubted doubted doubting",
        "infer infers inferred inferred inferring",
        "think thinks thought thought thinking",
    ],
)
def test_the_forms_of_a_verb(forms: str) -> None:
    base = forms.split()[0]
    assert base in VERBS
    assert [*conjugate_verb(base)] == forms.split()


@pytest.mark.parametrize("verb", VERBS.split())
def test_every_form_of_a_verb(verb: str) -> None:
    base, third, past, participle, gerund = conjugate_verb(verb)
    for text in (
        *(f"The agent {third}", f"it {past} that", f"the agents {base}", f"it would {base}"),
        *(f"Claude has {participle} it", f"the model was {gerund}", f"{participle} by the bot"),
        f"{past.upper()} BY THE AGENT",
    ):
        assert find_reasoning(text), text
    for text in (f"{base}.py {past}.md", f"--model {past}", f"the user {past} it", f"a {base}"):
        assert find_reasoning(text) is None, text


_MARKS = st.sampled_from(["\u200b", "\u00ad", "\u0301", "\u2060"])


@given(st.data(), st.sampled_from(["agent believed", "claude inferred", "the model intended"]))
def test_what_is_not_seen_hides_nothing(data: st.DataObject, text: str) -> None:
    letters = [
        char + data.draw(_MARKS) if char.isalpha() and data.draw(st.booleans()) else char
        for char in text
    ]
    assert find_reasoning("".join(letters))
    wide = "".join(chr(ord(char) + 0xFEE0) if char.isalpha() else char for char in text)
    assert unicodedata.normalize("NFKC", wide) == text
    assert find_reasoning(wide)


@given(st.text(), st.text())
def test_any_text_is_checked(text: str, name: str) -> None:
    find_reasoning(f"{text} agent believed {text}", name)


def test_a_long_summary_is_checked_in_time_that_grows_with_it() -> None:
    """Or a single line would stop the check of a whole file."""
    for text in ("agent , a ", "agent and ", "(agent ", "the agent's ", "believed by "):
        find_reasoning(text * 20_000 + "intended")


def test_the_own_name_of_an_agent_is_that_of_its_event() -> None:
    event = good_run()[3]
    for name, profile_takes_it in (("reviewer", False), ("other", True)):
        event["session"]["agent_id"] = name
        event["agent_action"]["action_summary"] = "[agent_completed] the reviewer believed it"
        (line,) = encode_run([event])
        read = read_event(line, "agents")
        assert read is not None
        assert (read[1] == []) == profile_takes_it
