"""What an agent declares, read from what the real one printed and from what nobody should print."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.observe.agent_output import (
    ANSWER,
    NAME,
    TOOLS,
    DeclaredOutput,
    _ArraySplitter,
    read_declared,
)

DATA = Path(__file__).parent.parent / "data/claude"
_STATUS = "API Error: 529 stub 529. This is a server-side issue"


def answer_text_of(declared: DeclaredOutput) -> str:
    assert declared.answer is not None
    return declared.answer.text


def read_written(folder: Path, data: bytes | str) -> DeclaredOutput:
    path = folder / "stdout.txt"
    path.write_bytes(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data)
    return read_declared(path)


def encode_record(**fields: Any) -> str:
    return json.dumps({"session_id": "s", **fields})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("success", "All tests pass.\n"),
        ("refused", "All tests pass.\n"),
        ("st401", "Failed to authenticate. API Error: 401 stub 401\n"),
        ("background", "k\n\nk\n"),
    ],
)
def test_text_declares_nothing_but_itself(name: str, text: str) -> None:
    declared = read_declared(DATA / f"{name}.text")
    assert declared.mode == "text"
    assert answer_text_of(declared) == text
    assert declared.denials is None
    assert declared.is_error is None
    assert declared.results == 0


@pytest.mark.parametrize("kind", ["json", "verbose.json", "stream.jsonl"])
def test_a_run_that_went_well(kind: str) -> None:
    declared = read_declared(DATA / f"success.{kind}")
    assert declared.mode == ("stream-json" if kind == "stream.jsonl" else "json")
    assert answer_text_of(declared) == "All tests pass."
    assert declared.is_error is False
    assert (declared.denials, declared.denied_tools) == (0, [])
    assert (declared.results, declared.turns) == (1, 4)
    assert (declared.input_tokens, declared.output_tokens) == (303, 33)
    assert declared.duration_ms is not None
    assert 0 < declared.duration_ms < 10_000
    assert declared.model == "claude-opus-5-5"
    assert declared.agent_version == ("unknown" if kind == "json" else "2.1.327")
    assert declared.problems == 0


def test_the_kin_of_claude_code_declares_its_own_version() -> None:
    declared = read_declared(DATA.parent / "agents/qwen.stream.jsonl")
    assert (declared.mode, declared.agent_version) == ("stream-json", "0.15.10")
    assert (declared.is_error, declared.denials, declared.model) == (False, 0, "stub")
    assert answer_text_of(declared).startswith("Done.")


@pytest.mark.parametrize("agent", ["codex", "gemini"])
def test_what_has_another_form_is_text(agent: str) -> None:
    path = DATA.parent / f"agents/{agent}.stream.jsonl"
    declared = read_declared(path)
    assert (declared.mode, declared.results, declared.denials) == ("text", 0, None)
    assert answer_text_of(declared) == path.read_text()


@pytest.mark.parametrize("kind", ["json", "stream.jsonl"])
def test_a_refused_run_names_its_tools_though_it_claims_success(kind: str) -> None:
    declared = read_declared(DATA / f"refused.{kind}")
    assert answer_text_of(declared) == "All tests pass."
    assert declared.is_error is False
    assert declared.denials == 3
    assert declared.denied_tools == ["Write", "Bash"]


@pytest.mark.parametrize("kind", ["json", "stream.jsonl"])
@pytest.mark.parametrize("status", ["st401", "st529"])
def test_an_error_of_the_api_is_one_though_it_is_called_success(status: str, kind: str) -> None:
    declared = read_declared(DATA / f"{status}.{kind}")
    assert declared.is_error is True
    assert answer_text_of(declared).startswith(
        _STATUS if status == "st529" else "Failed to authenticate"
    )


def test_work_in_the_background_has_two_results() -> None:
    declared = read_declared(DATA / "background.stream.jsonl")
    assert declared.results == 2
    assert answer_text_of(declared) == "k"
    assert declared.input_tokens == 201 + 102
    assert declared.turns == 2 + 1
    assert read_declared(DATA / "background.json").results == 1
    assert read_declared(DATA / "background.verbose.json").problems == 0


def test_without_a_result_there_is_no_answer(tmp_path: Path) -> None:
    """As after an interrupt: what was refused until then is known all the same."""
    lines = (DATA / "refused.stream.jsonl").read_bytes().splitlines(keepends=True)
    declared = read_written(tmp_path, b"".join(lines[:-1]))
    assert declared.mode == "stream-json"
    assert declared.answer is None
    assert declared.is_error is None
    assert declared.denials == 3
    assert read_written(tmp_path, lines[0]).denials is None


def test_a_torn_last_line_is_a_problem(tmp_path: Path) -> None:
    data = (DATA / "success.stream.jsonl").read_bytes()
    declared = read_written(tmp_path, data[:-100])
    assert (declared.mode, declared.problems, declared.answer) == ("stream-json", 1, None)
    data = (DATA / "success.verbose.json").read_bytes()
    declared = read_written(tmp_path, data[:-100])
    assert (declared.mode, declared.problems, declared.answer) == ("json", 1, None)


@pytest.mark.parametrize("text", ["", "\n", " \n\t\n", "\n" * 100_000])
def test_blank_is_empty(tmp_path: Path, text: str) -> None:
    assert read_written(tmp_path, text) == DeclaredOutput(mode="empty")


def test_blank_for_long_and_then_text_is_text(tmp_path: Path) -> None:
    assert read_written(tmp_path, "\n" * 100_000 + "x").mode == "text"


def test_what_cannot_be_read_states_why(tmp_path: Path) -> None:
    declared = read_declared(tmp_path / "nowhere")
    assert declared == DeclaredOutput(mode="unreadable", reason="no such file or directory")
    assert read_declared(tmp_path).mode == "unreadable"


@pytest.mark.parametrize(
    "text",
    [
        '{"ok": true}\n',
        '{"type": "result", "result": "mine"}\n',
        '[{"type": "result"}]',
        "[1, 2, 3]",
        "[]",
        "{",
        "[{",
        "[info] started\n[info] ended\n",
        "[{x}] y",
        '"just a string"',
        "null",
        "\0\0\0",
    ],
)
def test_json_of_another_kind_is_text(tmp_path: Path, text: str) -> None:
    declared = read_written(tmp_path, text)
    assert declared.mode == "text"
    assert answer_text_of(declared) == text


def test_text_that_quotes_a_record_late_is_text(tmp_path: Path) -> None:
    text = "line\n" * 30 + encode_record(type="result", result="x") + "\n"
    assert read_written(tmp_path, text).mode == "text"


def test_lines_before_the_first_record_are_problems(tmp_path: Path) -> None:
    text = (
        "warning: something\n\n" + encode_record(type="result", result="x", is_error=False) + "\n"
    )
    declared = read_written(tmp_path, text)
    assert (declared.mode, declared.problems, answer_text_of(declared)) == ("json", 1, "x")


def test_fields_of_other_types_are_not_there(tmp_path: Path) -> None:
    odd = encode_record(
        type="result", subtype=1, result=[1], is_error="no", usage=[], num_turns=True,
        duration_ms=-1, permission_denials=[1, {"tool_name": 3}, {}], modelUsage=[],
    )  # fmt: skip
    declared = read_written(tmp_path, odd)
    assert declared.answer is None
    assert declared.is_error is None
    assert declared.turns is None
    assert declared.duration_ms is None
    assert (declared.denials, declared.denied_tools) == (3, ["unknown"])


def test_one_error_among_the_results_is_an_error(tmp_path: Path) -> None:
    lines = [encode_record(type="result", result=str(n), is_error=n == 0) for n in range(2)]
    declared = read_written(tmp_path, "\n".join(lines))
    assert declared.is_error is True
    assert answer_text_of(declared) == "1"


def test_names_are_bounded_and_visible(tmp_path: Path) -> None:
    denials = [{"tool_name": f"\x1b[{n}" + "x" * 200, "tool_use_id": str(n)} for n in range(50)]
    declared = read_written(tmp_path, encode_record(type="result", permission_denials=denials))
    assert declared.denials == 50
    assert len(declared.denied_tools) == TOOLS
    assert all(name.isprintable() and len(name) < NAME + 10 for name in declared.denied_tools)


def test_an_answer_that_is_too_long_is_cut_and_has_its_digest(tmp_path: Path) -> None:
    text = "é" * ANSWER
    for data in (text, encode_record(type="result", result=text)):
        answer = read_written(tmp_path, data).answer
        assert answer is not None
        assert answer.is_cut
        assert answer.bytes == 2 * ANSWER
        assert answer.text == "é" * (ANSWER // 2)
        assert answer.sha256 == hashlib.sha256(text.encode()).hexdigest()


def test_half_of_a_surrogate_pair_is_a_problem(tmp_path: Path) -> None:
    assert (
        read_written(tmp_path, '{"type":"result","session_id":"s","result":"\\ud800"}').mode
        == "text"
    )


@given(st.integers(1, 400), st.sampled_from(["success", "background"]))
def test_an_array_is_cut_into_its_objects_at_any_block(size: int, name: str) -> None:
    data = (DATA / f"{name}.verbose.json").read_bytes()
    items = _ArraySplitter()
    found = [
        item
        for start in range(0, len(data), size)
        for item in items.feed(data[start : start + size])
    ]
    assert [json.loads(item) for item in found] == json.loads(data)
    assert items.is_whole


def _large(kind: str) -> Iterator[bytes]:
    result = encode_record(type="result", result="the end", is_error=False).encode()
    filler = b"x" * (1 << 20)
    if kind == "one line of text":
        yield from (filler for _ in range(40))
    elif kind == "lines of text":
        yield from ((b"y" * 99 + b"\n") * 10_000 for _ in range(40))
    elif kind == "a long line in a stream":
        yield from (
            encode_record(type="system").encode(),
            b'\n{"session_id":"s","type":"user","x":"',
        )
        yield from (filler for _ in range(40))
        yield from (b'"}\n', result)
    else:
        yield b'[{"session_id":"s","type":"user","x":"'
        yield from (filler for _ in range(40))
        yield from (b'"},', result, b"]")


@pytest.mark.parametrize(
    "kind",
    ["one line of text", "lines of text", "a long line in a stream", "a long item of an array"],
)
def test_memory_is_bounded(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "stdout.txt"
    with path.open("wb") as file:
        file.writelines(_large(kind))
    tracemalloc.start()
    declared = read_declared(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30 << 20
    if "text" in kind:
        assert declared.answer is not None
        assert declared.answer.is_cut
        assert declared.answer.bytes == path.stat().st_size
    else:
        assert (answer_text_of(declared), declared.problems) == ("the end", 1)
