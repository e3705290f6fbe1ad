"""What of a run may be written down, whatever the bytes of its names are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.records.decision import CaptureMode
from stream.records.kernel import path_bytes, path_text
from stream.redaction.policy import CapturePolicy, Redactor

TOKEN = "ghp_" + "aB3dE5gH7jK9" * 3
NAMES = st.binary(max_size=12) | st.lists(st.sampled_from([b"\\", b"x", b"f", b"0", b"\xff"])).map(
    b"".join
)


@given(NAMES)
def test_every_byte_of_a_name_comes_back(name: bytes) -> None:
    assert path_bytes(path_text(name)) == name


@given(st.lists(NAMES.filter(lambda name: b"\0" not in name), min_size=1, max_size=4))
def test_what_is_no_secret_is_kept_as_it_is(words: list[bytes]) -> None:
    """The same text as without redaction, so that the two records can be compared."""
    open_, closed = CapturePolicy("full", None), CapturePolicy("redacted", Redactor({}))
    assert closed.redact_words(words, path_text) == open_.redact_words(words, path_text)
    assert [closed.redact_name(word, path_text) for word in words] == [*map(path_text, words)]


@pytest.mark.parametrize("before", [b"\xff", rb"\0", b"\\", b"\x01", b"a/"])
@pytest.mark.parametrize("mode", ["redacted", "hashed"])
def test_a_name_that_holds_a_secret(before: bytes, mode: CaptureMode) -> None:
    capture_policy = CapturePolicy(mode, Redactor({}))
    name = before + TOKEN.encode()
    shown = capture_policy.redact_name(name, path_text)
    assert shown == path_text(before) + "[redacted:github:1]"
