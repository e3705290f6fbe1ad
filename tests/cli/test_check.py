"""stream check: a run folder, a file, a filter; what it prints where, and how it exits."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from stream.transformers.event_rules import event_rules
from tests.cli.command import Place
from tests.folders import Folder
from tests.transformers.runs import as_published, encode_run, good_run

GOOD = b"".join(b"%s\n" % line for line in encode_run(good_run()))
WRONG = GOOD.replace(b'"environment":"local"', b'"environment":"lab"', 1)
PLAIN = b'{"schema": "somebody.else.v1",  "x": [1, 2.50]}\n'


def test_a_good_file_prints_nothing_on_stdout(place: Place) -> None:
    for name, data in (("events.jsonl", GOOD), ("p", _published_lines())):
        (place.workspace / name).write_bytes(data)
        done = place.stream("check", name)
        assert (done.code, done.out) == (0, b"")
        assert "9 events of 1 run; 0 findings" in done.err


def _published_lines() -> bytes:
    return b"".join(b"%s\n" % line for line in encode_run(as_published(good_run())))


def test_findings_of_a_file_are_records_and_sentences(place: Place) -> None:
    (place.workspace / "events.jsonl").write_bytes(WRONG)
    done = place.stream("check", "events.jsonl")
    (finding,) = done.records
    assert done.code == 1
    assert (finding["rule"], finding["line"]) == ("session.environment", 1)
    assert finding["event_id"] == good_run()[0]["event_id"]
    assert "events.jsonl:1: $.session.environment: expected one of ci, local" in done.err


def test_as_a_filter_every_object_goes_on(place: Place) -> None:
    data = PLAIN + WRONG
    done = place.stream("check", "-", data=data + b"junk\n", env={"PYTHONUTF8": "1"})
    assert (done.code, done.out) == (1, data)
    assert "(stdin):2: $.session.environment: " in done.err
    assert "(stdin):11: malformed JSON" in done.err
    done = place.stream(
        "check", "-", "--findings", "found", "--reject", "bad", data=data + b"junk\n"
    )
    assert (done.code, done.out) == (1, data)
    assert "environment" not in done.err
    lines = (place.workspace / "found").read_bytes().splitlines()
    assert [json.loads(line)["rule"] for line in lines] == [
        "session.environment",
        "line.json_object",
    ]
    assert (place.workspace / "bad").read_bytes().count(b"\n") == 1


def test_warnings_alone_are_a_yes(place: Place) -> None:
    data = GOOD.replace(b'.123456Z"', b'.123456+01:00"')
    done = place.stream("check", "-", data=data)
    assert done.code == 0
    assert "warning: " in done.err


def test_a_run_folder(place: Place) -> None:
    folder = Folder(place.root / "run")
    folder.write()
    done = place.stream("check", folder.root)
    assert (done.code, done.out) == (0, b"")
    (folder.artifacts / "claude_stdout.txt").write_text("All is well.\n")
    done = place.stream("check", folder.root)
    assert done.code == 1
    assert [one["rule"] for one in done.records] == [
        *("artifact.digest", "manifest.digest"),
    ]
    assert "2 findings" in done.err
    (place.root / "run" / "events.jsonl").write_bytes(GOOD[:5000])
    done = place.stream("check", folder.root)
    assert [one["rule"] for one in done.records] == ["run.incomplete"]
    assert done.code == 1


def test_lines_that_nobody_knows_are_no_yes(place: Place) -> None:
    foreign = b'{"a":1}\n{"schema":"their.v1"}\n'
    message = "check: not checked: 2 lines of unknown contracts"
    for data, code in ((foreign, 1), (foreign + GOOD, 0)):
        done = place.stream("check", "-", data=data)
        assert (done.code, done.out) == (code, data)
        assert message in done.err


def test_the_profile(place: Place) -> None:
    data = GOOD.replace(b'"agent_id":"claude-code"', b'"agent_id":"codex"')
    done = place.stream("check", "-", data=data)
    assert done.code == 1
    assert "--profile agents" in done.err
    assert place.stream("check", "--profile", "agents", "-", data=data).code == 0


def test_rules(place: Place) -> None:
    done = place.stream("check", "--rules")
    rows = done.out.decode().splitlines()
    assert done.code == 0
    assert [row.split()[0] for row in rows] == list(event_rules())
    for row, rule in zip(rows, event_rules().values(), strict=True):
        assert rule.sentence in row


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "a run folder, a file or `-` is missing"),
        (["absent"], "absent: no such file or directory"),
        ([""], "an empty word"),
        (["/dev/zero"], "/dev/zero: neither a run folder nor a file of events"),
        (["."], ".: no run folder"),
        (["good", "--profile", "strict"], "'strict' is not one of"),
        (["good", "--findings", "good"], "the same file as"),
        (["good", "more"], "unexpected extra argument"),
        (["good", "--findings", "x", "--reject", "x"], "x: the same file as x"),
        (["x" * 5000], "file name too long"),
    ],
)
def test_wrong_use(place: Place, words: list[str], sentence: str) -> None:
    (place.workspace / "good").write_bytes(GOOD)
    done = place.stream("check", *words)
    assert (done.code, done.out) == (2, b"")
    assert sentence in done.err


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b"", "run.incomplete"),
        (GOOD[:-300], "run.incomplete"),
        (b"\x00" * 100 + b"\n" + GOOD, "line.json_object"),
        (GOOD + b'{"a":' * 10_000 + b"\n", "line.json_object"),
        (GOOD + b'{"a":"' + b"x" * (9 << 20) + b'"}\n', "line.length"),
        (GOOD + b'{"a":"\xff\xfe"}\n', "line.utf8"),
        (GOOD + b"\n", "line.json_object"),
        (GOOD.replace(b'"artifacts":[]', b'"artifacts":{"a":[]}', 1), "agent_action.artifacts"),
    ],
    ids=range(8),
)
def test_bad_input_is_one_sentence(place: Place, data: bytes, rule: str) -> None:
    (place.workspace / "events.jsonl").write_bytes(data)
    done = place.stream("check", "events.jsonl")
    assert done.code == 1
    assert [one["rule"] for one in done.records] == [rule]
    assert len(done.err.splitlines()) == 2
    assert all(len(line) < 600 for line in done.err.splitlines())


def test_a_folder_with_odd_bytes_in_its_name(place: Place) -> None:
    name = os.fsdecode(b"r\xff\n\x1b[31m")
    folder = Folder(Path(place.root, name))
    folder.write()
    (folder.artifacts / os.fsdecode(b"odd\xfe")).write_bytes(b"")
    done = place.stream("check", folder.root)
    (finding,) = done.records
    assert (done.code, finding["rule"]) == (1, "manifest.unlisted")
    assert "\x1b" not in done.err
    (folder.root / "events.jsonl").unlink()
    assert [one["rule"] for one in place.stream("check", folder.root).records] == ["run.incomplete"]


def test_events_full_of_junk_are_findings(place: Place) -> None:
    run: list[Any] = good_run()
    for number, part in enumerate(("session", "request", "model_output", "agent_action")):
        run[number][part] = [None, {"a": [1.5]}, "x" * 5000][number % 3]
    done = place.stream("check", "-", data=b"\n".join(encode_run(run)))
    assert done.code == 1
    assert len(done.out.splitlines()) == 9
    assert all(len(line) < 600 for line in done.err.splitlines())
