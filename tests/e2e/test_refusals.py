"""Runs in which nothing comes of it, whatever the agent claims: refused, cut off, nobody there."""

from __future__ import annotations

import json
import socket

import pytest

from tests.e2e.rig import (
    ALLOWED,
    JSON,
    STREAM_JSON,
    Recorded,
    Rig,
    check_summary,
    text_turn,
    write_turn,
)
from tests.sweeping import first_of

FORMATS = {"text": (), "json": JSON, "stream-json": STREAM_JSON}
ANSWERS = {
    401: "Failed to authenticate",
    429: "Request rejected (429)",
    529: "529",
}


@pytest.fixture(scope="module", params=FORMATS)
def refused(request: pytest.FixtureRequest, rig: Rig) -> Recorded:
    """Nobody allows the agent to write, and it claims success."""
    script = [write_turn("calc.py", "x = 1\n"), text_turn("All tests pass.")]
    return rig.record(f"refused-{request.param}", script, *FORMATS[request.param])


def test_what_was_refused_did_not_happen(refused: Recorded) -> None:
    assert refused.done.code == 0
    assert "All tests pass." in refused.stdout
    assert refused.requests[-1]["results"][0]["is_error"]
    assert refused.patch == ""
    assert refused.changes == {}
    assert refused.summary["changed_paths"] == 0
    assert "changed_paths=0: nothing was changed" in refused.summary_of(6)
    assert not list(refused.workspace.iterdir())
    assert "nothing was changed" in refused.done.err


def test_a_refusal_is_recorded_where_it_is_declared(refused: Recorded) -> None:
    declares = refused.folder.name != "refused-text"
    if declares:
        check_summary(refused, declared_denials=1, declared_denied_tools=["Write"])
    else:
        check_summary(refused, declared_denials=None)


@pytest.mark.parametrize("status", first_of(*ANSWERS))
def test_an_error_of_the_api(rig: Rig, status: int) -> None:
    recorded = rig.record(f"status-{status}", [{"status": status}], ALLOWED, *JSON)
    assert recorded.done.code == 1
    result = json.loads(recorded.stdout)
    assert (result["is_error"], result["subtype"]) == (True, "success")
    assert ANSWERS[status] in result["result"]
    assert [request["step"] for request in recorded.requests] == [0]
    assert recorded.summary["changed_paths"] == 0
    check_summary(recorded, declared_error=True, declared_denials=0)


def test_no_api_at_all(rig: Rig) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens there
        recorded = rig.record("down", [], ALLOWED, port=taken.getsockname()[1])
    assert recorded.done.code == 1
    assert "ECONNREFUSED" in recorded.stdout
    assert (recorded.folder / "artifacts/claude_stderr.txt").read_bytes() == b""
    assert recorded.requests == []
    assert recorded.summary["changed_paths"] == 0


def test_a_stream_that_breaks_off_after_a_whole_call(rig: Rig) -> None:
    """Whether the agent still makes the call depends on who is faster; the record shows which."""
    turn = {**write_turn("calc.py", "x = 1\n" * 50), "cut": "after", "again": True}
    recorded = rig.record("broken-after", [turn], ALLOWED, *STREAM_JSON)
    made = recorded.done.code == 0
    assert set(recorded.changes) == ({"calc.py"} if made else set())
    check_summary(recorded, declared_error=not made)


def test_a_stream_that_breaks_off_for_good(rig: Rig) -> None:
    turn = {**write_turn("calc.py", "x = 1\n" * 50), "cut": "inside", "again": True}
    recorded = rig.record("broken-inside", [turn], ALLOWED, *STREAM_JSON)
    assert recorded.done.code == 1
    [result] = recorded.results
    assert result["is_error"]
    assert [request["step"] for request in recorded.requests] == [0, 0]
    assert recorded.changes == {}
    check_summary(recorded, declared_error=True)


@pytest.mark.parametrize("cut", ["inside", "after"])
def test_a_stream_that_breaks_off_once(rig: Rig, cut: str) -> None:
    """It asks again without a stream, or makes the call that was whole: it is recorded once."""
    turn = {**write_turn("calc.py", "x = 1\n" * 50), "cut": cut}
    recorded = rig.record(f"mended-{cut}", [turn, text_turn("Done.")], ALLOWED, *STREAM_JSON)
    assert recorded.done.code == 0
    steps = [request["step"] for request in recorded.requests]
    assert steps == [0, 0, 1] or (cut == "after" and steps == [0, 1])
    assert set(recorded.changes) == {"calc.py"}
    assert (recorded.workspace / "calc.py").read_text() == "x = 1\n" * 50
    check_summary(recorded, declared_error=False)
