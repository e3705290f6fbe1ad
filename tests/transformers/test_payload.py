"""Records stay small, what was cut is marked, and an errno is inferred only where it is sure."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.boundary.emit_flags import (
    DEPTH,
    LIMIT,
    clip_encoded,
    clip_text,
    fit_object,
    infer_errno,
    is_too_deep,
    make_snippet,
)
from stream.records.boundary import SNIPPET
from tests.sweeping import thorough
from tests.transformers.samples import record_of_flags

TEXT = st.text(max_size=30) | st.integers(0, 6000).map("x".__mul__) | st.just("\x01" * 900)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXT, inner, max_size=6),
    max_leaves=25,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=40)


def encoded_size(value: object) -> int:
    return len(msgspec.json.encode(value))


@thorough(250)
@given(OBJECTS, st.integers(0, 3500))
def test_fit(value: dict[str, Any], reserved: int) -> None:
    before = json.dumps(value)
    result = fit_object(value, reserved, "cut")
    assert json.dumps(value) == before
    assert encoded_size(result) <= LIMIT - reserved
    if encoded_size(value) <= LIMIT - reserved:
        assert result == value
    else:
        assert result["cut"] == {"bytes": encoded_size(value)}
    assert fit_object(value, reserved, "cut") == result


def test_what_was_cut_is_marked_where_it_stood() -> None:
    result = fit_object({"long": "x" * 9000, "short": "kept", "list": list(range(5000))}, 0, "cut")
    assert result["short"] == "kept"
    assert result["long"].endswith("…")
    assert result["list"].startswith("… (")


@thorough(150)
@given(OBJECTS, st.none() | TEXT, st.none() | TEXT, OBJECTS)
def test_a_payload_is_at_most_4_kb(
    raw: dict[str, Any], stdout: str | None, stderr: str | None, args: dict[str, Any]
) -> None:
    words = ["--payload-raw", json.dumps(raw), "--operation-args", json.dumps(args)]
    words += ["--payload-stdout", stdout] if stdout is not None else []
    words += ["--payload-stderr", stderr] if stderr is not None else []
    record = record_of_flags(*words)
    assert encoded_size(record["payload"]) <= LIMIT
    assert encoded_size(record["operation"]["args"]) <= LIMIT


def test_snippet() -> None:
    assert make_snippet(None) is None
    assert make_snippet("") == ""
    assert make_snippet("a\0b") == "ab"
    assert make_snippet("é" * SNIPPET) == "é" * SNIPPET
    assert make_snippet("é" * (SNIPPET + 1)) == "é" * SNIPPET + "…"
    assert make_snippet("\0" * 5000 + "x") == "x"


@given(st.text(max_size=1000) | st.integers(0, 900).map("\x01".__mul__))
def test_a_snippet_is_small_whatever_is_in_it(text: str) -> None:
    result = make_snippet(text)
    assert result is not None
    assert len(result) <= SNIPPET + 1
    assert encoded_size(result) <= 1700
    assert make_snippet(result) == result


@given(st.text(), st.integers(8, 60))
def test_within(text: str, limit: int) -> None:
    result = clip_encoded(text, limit)
    assert encoded_size(result) <= limit
    assert result == text or result.endswith("…")


@given(st.text(st.characters(categories=["Cs", "L"])), st.integers(0, 20))
def test_a_clipped_text_can_be_written(text: str, limit: int) -> None:
    result = clip_text(text, limit)
    result.encode()
    assert len(result) <= limit + 1


def make_nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"k": value}
    return value


def test_too_deep() -> None:
    assert not is_too_deep(make_nested(DEPTH))
    assert is_too_deep(make_nested(DEPTH + 1))
    assert is_too_deep(make_nested(5000))
    assert not is_too_deep({"a": [], "b": {}})


SENTENCES = {
    "bash: /x: Permission denied": "EACCES",
    "mkdir: cannot create directory '/x': Read-only file system": "EROFS",
    "kill: (1) - Operation not permitted": "EPERM",
    "cat: /x: No such file or directory": "ENOENT",
    "connect: Connection refused.": "ECONNREFUSED",
    "[Errno 13] Permission denied: '/x'": "EACCES",
    "socket failed with EAFNOSUPPORT": "EAFNOSUPPORT",
    "errno=EPERM (Operation not permitted)": "EPERM",
    "Permission denied\nPermission denied": "EACCES",
    "all is well": None,
    "": None,
    "XEPERM EPERMX": None,
    "Permission deniedly": None,
    "permission denied": None,
    "Permission denied, then Operation not permitted": None,
}


@pytest.mark.parametrize(("text", "errno"), SENTENCES.items(), ids=repr)
def test_what_an_errno_is_inferred_from(text: str, errno: str | None) -> None:
    expected = None if errno is None else (errno, "stderr_snippet")
    evidence = {"stderr_snippet": text, "message": None}
    assert infer_errno(evidence, evidence) == expected


def test_an_errno_is_inferred_only_where_all_evidence_names_one() -> None:
    assert infer_errno({"a": "EPERM", "b": "EACCES"}, {"a": "EPERM", "b": "EACCES"}) is None
    assert infer_errno({"a": "x", "b": "EACCES"}, {"a": "x", "b": "EACCES"}) == ("EACCES", "b")
    assert infer_errno({"a": "EPERM", "b": "EPERM"}, {"b": "EPERM"}) == ("EPERM", "b")
    assert infer_errno({"a": "EPERM"}, {"a": "…"}) is None  # cut away: nobody could check it


DENIAL = "x: Permission denied"


def errno_of(*words: str) -> tuple[str | None, Any]:
    record = record_of_flags(*words)
    return record["result"]["errno"], record["payload"]["raw"].get("errno_inferred_from")


def test_where_an_errno_is_inferred() -> None:
    assert errno_of() == (None, None)
    assert errno_of("--payload-stderr", DENIAL) == ("EACCES", "stderr_snippet")
    assert errno_of("--message", DENIAL) == ("EACCES", "message")
    assert errno_of("--error-detail", DENIAL) == ("EACCES", "error_detail")
    assert errno_of("--payload-stdout", DENIAL) == ("EACCES", "stdout_snippet")
    assert errno_of("--payload-stderr", "\x01" * 300 + DENIAL) == (None, None)
    assert errno_of("--payload-stderr", "x" * 400 + DENIAL) == (None, None)
    assert errno_of("--message", DENIAL, "--payload-stderr", "EPERM") == (None, None)
    hidden = DENIAL + "\n" * 400 + "Operation not permitted"
    assert errno_of("--payload-stderr", hidden) == (None, None)


def test_an_errno_that_was_given_wins() -> None:
    assert errno_of("--errno", "EPERM", "--payload-stderr", DENIAL) == ("EPERM", None)


@pytest.mark.parametrize(
    ("status", "errno"), [("success", None), ("partial", "EACCES"), ("error", "EACCES")]
)
def test_a_success_has_no_inferred_errno(status: str, errno: str | None) -> None:
    assert errno_of("--status", status, "--message", DENIAL)[0] == errno


def test_that_an_errno_was_inferred_is_never_cut_away() -> None:
    raw = json.dumps({f"k{n}": "v" * 90 for n in range(400)})
    payload = record_of_flags("--payload-raw", raw, "--payload-stderr", DENIAL)["payload"]
    assert payload["raw"]["errno_inferred_from"] == "stderr_snippet"
    assert payload["raw"]["payload_cut"]["bytes"] == encoded_size(json.loads(raw))
