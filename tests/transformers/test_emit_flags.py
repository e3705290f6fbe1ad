"""emit-record's words: every rule, with its exact text."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.boundary.emit_flags import (
    FILES,
    PAIRS,
    REPEATABLE,
    REQUIRED,
    EmitFlags,
    parse_emit_words,
)
from stream.errors import EmitError
from stream.matrix.run import emit_words
from stream.records.emission import FILE_MOST, Word
from tests.sweeping import thorough
from tests.transformers.samples import (
    AROUND,
    CAPABILITY,
    SECONDARY,
    WORDS,
    as_words,
    decode_object,
    make_builder,
    make_own_builder,
    without_flag,
)
from tests.transformers.samples import record_of_flags as emitted


def parse_flags(*more: str | bytes, words: Sequence[str] = WORDS) -> EmitFlags:
    return parse_emit_words(as_words(*words, *more))


def refusal_of(*more: str | bytes, words: Sequence[str] = WORDS) -> str:
    with pytest.raises(EmitError) as caught:
        emitted(*more, words=words)
    return str(caught.value)


def parse_with_file(flag: str, content: bytes | None) -> EmitFlags:
    return parse_emit_words(
        [*as_words(*WORDS, flag), Word(b"/some/file", content, content is None)]
    )


@pytest.mark.parametrize("flag", REQUIRED)
def test_a_missing_flag_is_named(flag: str) -> None:
    assert refusal_of(words=without_flag(flag)) == f"Missing required flag: {flag}"
    assert refusal_of(flag, "") == f"Missing required flag: {flag}"
    assert refusal_of(flag, " \t") == f"Missing required flag: {flag}"


def test_the_first_missing_flag_is_named_in_the_order_of_the_contract() -> None:
    assert refusal_of(words=()) == "Missing required flag: --run-mode"
    assert refusal_of(words=WORDS[:4]) == "Missing required flag: --probe-version"


@pytest.mark.parametrize("flag", ["--nope", "-h", "", "word", "--status=denied", "--Status", "\n"])
def test_an_unknown_flag_is_named(flag: str) -> None:
    assert refusal_of(flag, "x") == f"Unknown flag: {flag}"


def test_there_is_no_form_with_an_equals_sign() -> None:
    assert refusal_of("--errno=EPERM") == "Unknown flag: --errno=EPERM"


@pytest.mark.parametrize("status", ["ok", "Denied", "denied ", "success|denied"])
def test_an_unknown_status_is_named(status: str) -> None:
    expected = f"Unknown status: {status} (expected success|denied|partial|error)"
    assert refusal_of("--status", status) == expected


@pytest.mark.parametrize("status", ["success", "denied", "partial", "error"])
def test_the_statuses(status: str) -> None:
    assert emitted("--status", status)["result"]["observed_result"] == status


def test_an_unknown_mode_is_named() -> None:
    assert refusal_of("--run-mode", "caged") == "Unknown run mode: caged (expected baseline)"
    flags = parse_flags("--run-mode", "caged")
    assert (
        decode_object(make_own_builder().record_from_flags(flags, AROUND).line)["run"]["mode"]
        == "caged"
    )


def test_unknown_capabilities_are_named() -> None:
    tail = "Expected one of the IDs in the loaded capability catalog."
    unknown = refusal_of("--primary-capability-id", "cap_x")
    assert unknown == f"Unknown primary capability id: cap_x. {tail}"
    unknown = refusal_of("--secondary-capability-id", "cap_y")
    assert unknown == f"Unknown secondary capability id: cap_y. {tail}"
    foreign = "cap_mach_lookup_system_logger"  # of the other bundled catalog
    unknown = refusal_of("--secondary-capability-id", foreign)
    assert unknown == f"Unknown secondary capability id: {foreign}. {tail}"


def test_secondary_ids_are_trimmed_sorted_and_deduplicated() -> None:
    flag = "--secondary-capability-id"
    ids = [SECONDARY, "", f" {CAPABILITY}\n", "  ", SECONDARY]
    record = emitted(*(word for name in ids for word in (flag, name)))
    assert record["probe"]["secondary_capability_ids"] == sorted([CAPABILITY, SECONDARY])
    snapshots = record["capability_context"]["secondary"]
    assert [snapshot["id"] for snapshot in snapshots] == sorted([CAPABILITY, SECONDARY])


def test_the_primary_id_is_trimmed() -> None:
    record = emitted("--primary-capability-id", f" {CAPABILITY} ")
    assert record["probe"]["primary_capability_id"] == CAPABILITY
    assert record["capability_context"]["primary"]["id"] == CAPABILITY


def test_the_last_one_wins() -> None:
    record = emitted("--errno", "EPERM", "--target", "/a", "--errno", "EROFS", "--target", "/b")
    assert record["result"]["errno"] == "EROFS"
    assert record["operation"]["target"] == "/b"


def test_probe_id_is_another_name() -> None:
    assert emitted("--probe-id", "other")["probe"]["id"] == "other"
    assert emitted("--probe-id", "x", words=without_flag("--probe-name"))["probe"]["id"] == "x"


@pytest.mark.parametrize("flag", ["--errno", "--message", "--error-detail"])
def test_empty_free_text_is_null(flag: str) -> None:
    field = flag.strip("-").replace("-", "_")
    assert emitted(flag, "text")["result"][field] == "text"
    assert emitted(flag, "text", flag, "")["result"][field] is None
    assert emitted()["result"][field] is None


def test_a_value_may_look_like_a_flag() -> None:
    record = emitted("--message", "--status", "--errno", "--payload-file")
    assert record["result"]["message"] == "--status"
    assert record["result"]["errno"] == "--payload-file"
    assert emitted("--operation-arg", "--errno", "--message")["operation"]["args"] == {
        "--errno": "--message"
    }


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("-1", -1), ("+7", 7), ("007", 7)])
def test_the_exit_code(text: str, number: int) -> None:
    assert emitted("--raw-exit-code", text)["result"]["raw_exit_code"] == number


@pytest.mark.parametrize("text", ["", "x", "1.0", "1_0", " 1", "1\n", "٣", "0x1", "9" * 5000])
def test_an_exit_code_is_an_integer(text: str) -> None:
    expected = f"--raw-exit-code: expected an integer, got {text!r}"
    assert refusal_of("--raw-exit-code", text) == expected


def test_an_exit_code_has_64_bits() -> None:
    assert emitted("--raw-exit-code", str(2**63 - 1))["result"]["raw_exit_code"] == 2**63 - 1
    assert refusal_of("--raw-exit-code", str(2**63)).endswith("is out of range")
    assert emitted()["result"]["raw_exit_code"] is None


@pytest.mark.parametrize("flag", ["--message", "--payload-raw", "--operation-arg"])
def test_a_missing_value_is_named(flag: str) -> None:
    assert refusal_of(flag) == f"Missing value for {flag}"
    if flag in PAIRS:
        assert refusal_of(flag, "key") == f"Missing value for {flag}"


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_snippets(name: str) -> None:
    flag, field = f"--payload-{name}", f"{name}_snippet"

    def payload_snippet(*words: str | bytes) -> Any:
        return emitted(*words)["payload"][field]

    assert payload_snippet() is None
    assert payload_snippet(flag, "") == ""
    assert payload_snippet(flag, "x" * 400) == "x" * 400
    assert payload_snippet(flag, "é" * 401) == "é" * 400 + "…"
    assert payload_snippet(flag, b"a\xff\xfeb") == "a\ufffd\ufffdb"
    assert payload_snippet(flag, b"a\x00b") == "ab"
    assert payload_snippet(flag, "first", flag, "last") == "last"
    assert parse_with_file(f"{flag}-file", b"from \x00a file").snippets == {name: "from a file"}


@pytest.mark.parametrize("flag", sorted(FILES))
def test_a_file_that_cannot_be_read_is_named(flag: str) -> None:
    with pytest.raises(EmitError) as caught:
        parse_with_file(flag, None)
    assert str(caught.value) == f"{flag}: cannot read /some/file"


@pytest.mark.parametrize(
    ("whole", "member", "of"),
    [
        ("--payload-raw", "--payload-raw-field", "raw"),
        ("--operation-args", "--operation-arg", "args"),
    ],
)
def test_objects_are_built_in_the_order_given(whole: str, member: str, of: str) -> None:
    prefix = member.removesuffix("-field")

    def build_value(*words: str) -> Any:
        record = emitted(*words)
        return record["payload"]["raw"] if of == "raw" else record["operation"]["args"]

    assert build_value() == {}
    assert build_value(member, "a", "1", f"{member}-json", "b", '{"c":[1,null]}') == {
        "a": "1",
        "b": {"c": [1, None]},
    }
    assert build_value(f"{prefix}-null", "a") == {"a": None}
    assert build_value(whole, '{"a":{"x":1},"b":1}', whole, '{"a":{"y":2}}') == {
        "a": {"y": 2},
        "b": 1,
    }
    assert build_value(member, "a", "1", whole, '{"a":2}') == {"a": 2}
    assert build_value(whole, '{"a":2}', member, "a", "1") == {"a": "1"}
    assert build_value(whole, '{"a":2}', f"{prefix}-null", "a") == {"a": None}
    for text, expected in (
        ("a,b c", ["a", "b", "c"]),
        ("", []),
        (" , ,", []),
        ("a,,b", ["a", "b"]),
        ("a\tb\nc", ["a\tb\nc"]),  # a comma or a space, nothing else
    ):
        assert build_value(f"{prefix}-list", "k", text) == {"k": expected}
    with_it = parse_with_file(f"{whole}-file", b'{"a":1}')
    assert with_it.objects[of] == {"a": 1}


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("[]", "expected `object`, got `array`"),
        ("5", "expected `object`, got `int`"),
        ("", "malformed JSON: it ends too early"),
        ("{", "malformed JSON: it ends too early"),
        ('{"a":1e999}', "$[...]: number out of range"),
        ('{"a":"\\ud800"}', "malformed JSON: it ends too early"),
        ('{"a":' + "[" * 70 + "]" * 70 + "}", "nested too deeply"),
        ('{"a":' + "[" * 100_000 + "}", "nested too deeply"),
    ],
    ids=lambda value: value[:20],
)
@pytest.mark.parametrize("flag", ["--payload-raw", "--operation-args"])
def test_objects_must_be_objects(flag: str, text: str, flags: str) -> None:
    assert refusal_of(flag, text) == f"{flag}: {flags}"


def test_how_deep_json_may_be_does_not_depend_on_the_caller() -> None:
    deep = '{"a":' + "[" * 63 + "]" * 63 + "}"
    assert emitted("--payload-raw", deep)["payload"]["raw"] != {}

    def deeper(levels: int) -> Any:
        return deeper(levels - 1) if levels else emitted("--payload-raw", deep)

    assert deeper(300) == emitted("--payload-raw", deep)


@pytest.mark.parametrize("flag", ["--payload-raw", "--operation-args"])
def test_a_key_that_stands_twice_is_refused(flag: str) -> None:
    assert refusal_of(flag, '{"a":{"b":1,"b":2}}') == f"{flag}: $.a: duplicate key 'b'"


def test_a_whole_payload() -> None:
    content = b'{"stdout_snippet":null,"stderr_snippet":"' + b"e" * 500 + b'","raw":{"a":1}}'
    flags = parse_with_file("--payload-file", content)
    payload = decode_object(make_builder().record_from_flags(flags, AROUND).line)["payload"]
    assert payload["raw"] == {"a": 1}
    assert payload["stderr_snippet"] == "e" * 400 + "…"
    for bad in (b"{}", b"[]", b"", content[:-1] + b',"more":1}'):
        with pytest.raises(EmitError, match="--payload-file: "):
            parse_with_file("--payload-file", bad)


@pytest.mark.parametrize(
    "other", [["--payload-stdout", "x"], ["--payload-raw", "{}"], ["--payload-raw-null", "k"]]
)
def test_a_whole_payload_goes_with_no_part_of_one(other: list[str]) -> None:
    content = b'{"stdout_snippet":null,"stderr_snippet":null,"raw":{}}'
    words = as_words(*WORDS, *other, "--payload-file")
    with pytest.raises(EmitError) as caught:
        parse_emit_words([*words, Word(b"f", content)])
    expected = f"--payload-file is a whole payload: it does not go with {other[0]}"
    assert str(caught.value) == expected


def test_flags_are_counted_for_the_gate() -> None:
    flags = parse_flags("--probe-id", "x", "--operation-arg", "a", "b", "--operation-arg", "a", "b")
    assert flags.given["--probe-name"] == 2
    assert flags.given["--operation-arg"] == 2
    assert "--operation-arg" in REPEATABLE
    assert "--probe-name" not in REPEATABLE


FLAG_WORDS = st.sampled_from(
    [w.encode() for w in (*WORDS, *FILES, *PAIRS, *REPEATABLE, "--raw-exit-code", "{}", "[1]")]
)
ANY_WORD = st.builds(Word, FLAG_WORDS | st.binary(max_size=12), st.none() | st.binary(max_size=12))


@thorough(800)
@given(st.lists(ANY_WORD, max_size=12), st.booleans())
def test_any_words_are_parsed_or_refused(words: list[Word], complete: bool) -> None:
    words = [*as_words(*WORDS), *words] if complete else words
    with contextlib.suppress(EmitError):
        line = make_builder().record_from_flags(parse_emit_words(words), AROUND).line
        assert make_builder().descriptor.check(line) is None


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As without the harness: no variable of ours, in a folder of its own."""
    for name in list(os.environ):
        if name.startswith(("FENCE_", "CATALOG_PATH", "BOUNDARY_PATH")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("FENCE_WORKSPACE_ROOT", "/srv/work")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_alone_the_words_make_the_record(alone: Path) -> None:
    (alone / "out").write_bytes(b"out\x00put \xff")
    record = decode_object(emit_words([*WORDS, "--payload-stdout-file", "out"]))
    assert record["payload"]["stdout_snippet"] == "output \ufffd"
    assert record["run"]["workspace_root"] == "/srv/work"


def test_alone_files_are_distinguished_from_values(alone: Path) -> None:
    (alone / "raw").write_text('{"a":1}')
    words = [*WORDS, "--message", "--payload-file", "--payload-raw-file", "raw"]
    words += ["--operation-arg", "--payload-raw-file", "raw"]
    words += ["--operation-arg", "k", "--payload-raw-file", "--payload-raw-file", "raw"]
    record = decode_object(emit_words(words))
    assert record["payload"]["raw"] == {"a": 1}
    assert record["result"]["message"] == "--payload-file"
    assert record["operation"]["args"] == {"--payload-raw-file": "raw", "k": "--payload-raw-file"}


@pytest.mark.usefixtures("alone")
def test_alone_no_file_is_read_without_end() -> None:
    record = decode_object(emit_words([*WORDS, "--payload-stdout-file", "/dev/zero"]))
    assert record["payload"]["stdout_snippet"] == ""
    assert FILE_MOST == 1 << 20


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("path", ["none", ".", "x" * 5000, ""])
def test_alone_a_file_that_cannot_be_read_is_named(path: str) -> None:
    with pytest.raises(EmitError, match="--payload-stdout-file: cannot read"):
        emit_words([*WORDS, "--payload-stdout-file", path])


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("words", [["--catalog", "none.json"], ["--boundary", "none.json"]])
def test_alone_every_error_is_exit_code_1(words: list[str]) -> None:
    with pytest.raises(EmitError, match=r"none\.json: no such file") as caught:
        emit_words([*WORDS, *words])
    assert caught.value.exit_code == 1


@pytest.mark.usefixtures("alone")
def test_alone_an_undeclared_sandbox_mode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCE_SANDBOX_MODE", "open")
    with pytest.raises(EmitError, match="FENCE_SANDBOX_MODE"):
        emit_words(WORDS)
    monkeypatch.setenv("FENCE_SANDBOX_MODE", "")
    assert decode_object(emit_words(WORDS))["stack"]["sandbox_mode"] is None
    monkeypatch.setenv("FENCE_SANDBOX_MODE", "read-only")
    assert decode_object(emit_words(WORDS))["stack"]["sandbox_mode"] == "read-only"
