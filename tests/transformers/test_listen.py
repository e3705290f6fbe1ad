"""listen: records as text for people; nothing in them reaches the terminal raw."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stream.boundary.descriptors import find_descriptor
from stream.codec import TornLine
from stream.records.control import Control, Finding, Gap, Reject, sentence_for_people
from stream.transformers import listen
from stream.transformers.listen import Listen
from tests.core.properties import cut_into_batches
from tests.transformers.modes import mode_record
from tests.transformers.samples import DATA, line, lines, record, run_transformer

DESCRIPTOR = find_descriptor(None)
ESCAPES = "\x1b[2J\x1b]0;title\x07\x9b31m\r\x08\u202e\x00\x7f"


def listen_to(*items: bytes, **options: bool) -> tuple[str, list[Control]]:
    out, control = run_transformer(Listen(DESCRIPTOR, **options), [lines(*items)])
    return b"\n".join(out).decode(), control


def find_control_characters(text: str) -> str:
    """The characters that a terminal would act on, other than line ends."""
    return "".join(c for c in text if c != "\n" and not c.isprintable())


def test_a_record_is_shown_in_lines() -> None:
    value = record(
        payload={
            "stderr_snippet": "one\ntwo\nthree\nfour",
            "stdout_snippet": "x" * 200 + "y" * 200,
        },
        result={"message": "no way"},
    )
    text, _ = listen_to(line(value))
    shown = text.splitlines()
    assert shown[0] == "denied   fs_outside_workspace (baseline)  write /var/tmp/x"
    assert shown[1] == (
        "         cap_fs_write_outside_workspace (filesystem, os_sandbox)  EACCES  no way"
    )
    assert shown[2:5] == ["         | one", "         | two", "         | three"]
    assert shown[5:7] == ["         | …", "         | " + "x" * 80 + "…" + "y" * 79]
    assert shown[-1] == "1 record of 1 probe; modes: baseline 1"


def test_what_was_seen_from_outside_has_a_line_each() -> None:
    diverted = mode_record(
        "diverted",
        effect={"seen": ["arrive:dns"]},
        corroboration={
            "state": "contradicted",
            "closed_by": "landlock",
            "detail": "no \x1b[2J write",
        },
    )
    no_control = mode_record("no-control", effect={"expected": None, "state": "not-checked"})
    text, _ = listen_to(line(diverted), line(no_control))
    unseen = "write:outside not to be seen on the host"
    shown = text.splitlines()
    assert shown[:5] == [
        "partial  fs_outside_workspace (bwrap-ro)  write /var/tmp/x",
        "         cap_fs_write_outside_workspace (filesystem, os_sandbox)",
        "         control  without the sandbox it gets through",
        f"         effect   {unseen}; the probe reports success; seen: arrive:dns",
        r"         kernel   contradicted, closed by landlock: no \x1b[2J write",
    ]
    assert shown[5:8] == [
        "denied   fs_outside_workspace (bwrap-ro)  write /var/tmp/x",
        "         cap_fs_write_outside_workspace (filesystem, os_sandbox)  EACCES",
        "         control  without the sandbox not either: denied EACCES",
    ]
    assert shown[-1] == "2 records of 1 probe; modes: bwrap-ro 2"


def test_what_says_nothing_has_no_line() -> None:
    plain = mode_record("open", "baseline", effect={"expected": None, "state": "not-checked"})
    plain["effect"]["seen"] = []
    text, _ = listen_to(line(plain))
    assert [one[:8] for one in text.splitlines()][:3] == ["success ", " " * 8, ""]


def test_both_patterns_in_one_stream() -> None:
    bad = line(mode_record(effect={"state": "perhaps"}))
    text, (reject,) = listen_to(line(record()), line(mode_record()), bad)
    assert isinstance(reject, Reject)
    assert (reject.line, reject.path) == (3, "$.effect.state")
    assert text.splitlines()[-1] == (
        "2 records of 1 probe; modes: baseline 1, bwrap-ro 1; 1 bad line"
    )


def test_a_success_has_no_snippets() -> None:
    value = record(
        result={"observed_result": "success", "errno": None}, payload={"stderr_snippet": "noise"}
    )
    assert "noise" not in listen_to(line(value))[0]


def test_the_numbers() -> None:
    items = [
        line(record()),
        line(record(probe={"id": "b"}, result={"observed_result": "success"})),
        line(
            record(
                probe={"id": "b"},
                result={"observed_result": "error"},
                capability_context={"primary": {"id": "x", "category": "network", "layer": "l"}},
            )
        ),
        b"{",
        b"",
        b'{"schema":"other"}',
        b"{}",
    ]
    text, control = listen_to(*items, as_json=True)
    assert json.loads(text) == {
        "records": 3,
        "probes": 2,
        "results": {"success": 1, "denied": 1, "partial": 0, "error": 1},
        "modes": {"baseline": 3},
        "categories": {"filesystem": {"denied": 1, "success": 1}, "network": {"error": 1}},
        "other_records": {"other": 1, "(none)": 1},
        "lost": 0,
        "rejected": 1,
    }
    assert len(control) == 1
    text, _ = listen_to(*items)
    assert text.splitlines()[-1] == (
        "3 records of 2 probes; modes: baseline 3; 1 (none) not shown; 1 other not shown"
        "; 1 bad line"
    )
    rows = [row.split() for row in text.splitlines()[-5:-1]]
    assert rows == [
        ["success", "denied", "partial", "error"],
        ["filesystem", "1", "1", "0", "0"],
        ["network", "0", "0", "0", "1"],
        ["all", "1", "1", "0", "1"],
    ]


def test_nothing_is_something_to_say() -> None:
    assert listen_to() == ("0 records of 0 probes", [])


def test_the_published_records_are_shown() -> None:
    items = (DATA / "fencerunner" / "history55-records.ndjson").read_bytes().splitlines()
    text, control = listen_to(*items)
    assert control == []
    assert "55 records of 55 probes" in text
    assert find_control_characters(text) == ""


def test_escapes_do_not_reach_the_terminal() -> None:
    value = record(
        probe={"id": ESCAPES},
        operation={"verb": ESCAPES, "target": ESCAPES},
        result={"message": ESCAPES, "errno": ESCAPES},
        payload={"stderr_snippet": ESCAPES, "stdout_snippet": f"{ESCAPES}\n{ESCAPES}"},
        capability_context={"primary": {"id": ESCAPES, "category": ESCAPES, "layer": ESCAPES}},
    )
    text, _ = listen_to(line(value))
    assert find_control_characters(text) == ""
    assert r"\x1b[2J" in text
    coloured = listen_to(line(value), colour=True)[0]
    assert find_control_characters(coloured.replace("\x1b[33m", "").replace("\x1b[0m", "")) == ""


@given(st.dictionaries(st.sampled_from(["id", "version"]), st.text()), st.text(), st.text())
def test_no_record_can_move_the_terminal(probe: dict[str, Any], message: str, out: str) -> None:
    value = record(probe=probe, result={"message": message}, payload={"stdout_snippet": out})
    assert find_control_characters(listen_to(line(value))[0]) == ""


def test_escapes_of_a_bad_line_do_not_reach_the_terminal() -> None:
    bad = json.dumps(record() | {"\x9b2J\u202e": 1}, ensure_ascii=False).encode()
    _, (reject,) = listen_to(bad)
    assert isinstance(reject, Reject)
    assert r"\x9b2J" in reject.reason
    for control in (
        reject,
        Finding(rule="r", severity="warning", message=ESCAPES, source=ESCAPES, path=ESCAPES),
        Gap(source=ESCAPES, lost=1, reason=ESCAPES),
    ):
        assert sentence_for_people(control).isprintable()


def test_bad_lines_have_their_places() -> None:
    good = line(record())
    bad = line(record(run={"mode": "x"}))
    _, (first, second, third) = listen_to(good, bad, b"", b"[]", TornLine(good[:-1]))
    assert isinstance(first, Reject)
    assert isinstance(second, Reject)
    assert isinstance(third, Reject)
    assert (first.line, first.offset, first.path) == (2, len(good) + 1, "$.run.mode")
    assert second.line == 4
    assert (third.line, third.reason[:21]) == (5, "the last line is torn")


def test_control_records_pass() -> None:
    gap = Gap(source="s", lost=1, reason="r")
    transformer = Listen(DESCRIPTOR, as_json=True)
    assert run_transformer(transformer, [[gap]])[1] == [gap]
    assert transformer.counts.received == 0


POOL = [
    line(record()),
    line(record(probe={"id": "b"}, result={"observed_result": "success"})),
    line(record(capability_context={"primary": {"id": "x", "category": "net", "layer": "l"}})),
    b'{"schema":"other"}',
    b"",
    b"{",
    line(record(run={"mode": "x"})),
    line(mode_record()),
    line(mode_record(effect={"state": "x"})),
]


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(POOL), max_size=10),
    st.lists(st.integers(0, 50), max_size=5),
    st.booleans(),
)
def test_listen_does_not_depend_on_batches(
    items: list[bytes], cuts: list[int], as_json: bool
) -> None:
    whole, parts = Listen(DESCRIPTOR, as_json=as_json), Listen(DESCRIPTOR, as_json=as_json)
    text, control = run_transformer(whole, [lines(*items)])
    other_text, other_control = run_transformer(parts, cut_into_batches(lines(*items), cuts))
    assert b"\n".join(other_text) == b"\n".join(text)
    assert other_control == control
    assert parts.counts == whole.counts


def test_memory_does_not_grow_with_what_records_say(monkeypatch: Any) -> None:
    monkeypatch.setattr(listen, "MOST_CATEGORIES", 2)
    monkeypatch.setattr(listen, "MOST_PROBES", 2)

    def record_named(name: str) -> bytes:
        context = {"primary": {"id": "x", "category": name, "layer": "l"}}
        return line(record(probe={"id": name}, capability_context=context))

    transformer = Listen(DESCRIPTOR)
    run_transformer(
        transformer,
        [
            lines(record_named("a"), record_named("b")),
            lines(record_named("c"), record_named("d"), record_named("a")),
        ],
    )
    assert {name: counts["denied"] for name, counts in transformer.categories.items()} == {
        "a": 2,
        "b": 1,
        "(others)": 2,
    }
    assert transformer.probes == {"a", "b"}
    assert transformer.counts.passed == 5
