"""Lines, their places, and what is reported about bad ones."""

from __future__ import annotations

import hashlib
import json
import time
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.codec import (
    DECODE_ERRORS,
    MAX_LINE,
    Lines,
    LineSplitter,
    OverlongLine,
    TornLine,
    contract_of,
    decode_fault,
    is_blank,
    join_lines,
    make_reject,
)
from stream.records.boundary import decode_boundary
from stream.records.control import Control, Fault, Finding
from tests.core.properties import cut_into_batches

LIMIT = 12

# Short lines, lines about the limit, blank ones, CR LF, bytes that are no UTF-8.
texts = st.lists(
    st.one_of(
        st.binary(max_size=6),
        st.binary(min_size=LIMIT - 1, max_size=LIMIT * 4),
        st.sampled_from([b"", b" ", b"\r", b"a\r", b"\xff\xfe", b"x" * LIMIT, b"y" * (LIMIT + 1)]),
    ),
    max_size=12,
).map(b"\n".join)
cuts = st.lists(st.integers(min_value=0, max_value=1 << 16), max_size=8)


def split_chunks(chunks: list[bytes], limit: int = MAX_LINE) -> list[Lines]:
    splitter = LineSplitter("f", limit)
    batches = [splitter.feed(chunk) for chunk in chunks]
    return [batch for batch in (*batches, splitter.finish()) if batch is not None]


def split_slowly(text: bytes, limit: int) -> list[tuple[int, int, Any]]:
    """(number, offset, line) of every line, the slow way."""
    found: list[tuple[int, int, Any]] = []
    offset = 0
    parts = text.split(b"\n")
    for number, part in enumerate(parts, 1):
        last = number == len(parts)
        if not (last and not part):
            line: Any = (bytes, part)
            if len(part) > limit:
                line = (OverlongLine, len(part), hashlib.sha256(part).hexdigest())
            elif last:
                line = (TornLine, part)
            found.append((number, offset, line))
        offset += len(part) + 1
    return found


def list_places(batches: list[Lines]) -> list[tuple[int, int, Any]]:
    found = []
    for batch in batches:
        for index, line in enumerate(batch):
            bad = make_reject("s", batch, index, Fault("reason"))
            what: Any = (type(line), line)
            if isinstance(line, OverlongLine):
                assert line == b""
                what = (OverlongLine, line.length, line.digest)
            assert bad.source == "f"
            found.append((int(bad.line), int(bad.offset), what))
    return found


@given(texts, cuts)
def test_lines_do_not_depend_on_the_chunks(text: bytes, cuts: list[int]) -> None:
    expected = split_slowly(text, LIMIT)
    assert list_places(split_chunks([text], LIMIT)) == expected
    assert (
        list_places(split_chunks([bytes(part) for part in cut_into_batches(text, cuts)], LIMIT))
        == expected
    )
    assert list_places(split_chunks([text[i : i + 1] for i in range(len(text))], LIMIT)) == expected


@given(texts, cuts)
def test_a_batch_knows_where_it_begins(text: bytes, cuts: list[int]) -> None:
    for batch in split_chunks([bytes(part) for part in cut_into_batches(text, cuts)], LIMIT):
        before = text[: batch.offset]
        assert batch.number == before.count(b"\n") + 1
        assert not before or before.endswith(b"\n")


@given(texts, cuts)
def test_lines_joined_are_the_text(text: bytes, cuts: list[int]) -> None:
    lines = [
        line
        for batch in split_chunks([bytes(p) for p in cut_into_batches(text, cuts)])
        for line in batch
    ]
    whole = text if text.endswith(b"\n") or not text else text + b"\n"
    assert join_lines(lines) == whole


@given(texts, st.data())
def test_rejects_in_any_order_have_their_places(text: bytes, data: st.DataObject) -> None:
    for batch in split_chunks([text], LIMIT):
        expected = {n: o for n, o, _ in split_slowly(text, LIMIT)}
        indexes = list(range(len(batch)))
        for index in data.draw(st.permutations(indexes)):
            bad = make_reject("s", batch, index, Fault("r"))
            assert bad.offset == expected[int(bad.line)]


@given(texts)
def test_a_reject_names_the_bytes(text: bytes) -> None:
    for batch in split_chunks([text], LIMIT):
        for index, line in enumerate(batch):
            bad = make_reject("s", batch, index, Fault("r"))
            length = line.length if isinstance(line, OverlongLine) else len(line)
            original = text[int(bad.offset) :][:length]
            assert bad.sha256 == hashlib.sha256(original).hexdigest()


def test_rejecting_every_line_of_a_batch_takes_linear_time() -> None:
    (batch,) = split_chunks([b"x\n" * (1 << 17)])
    started = time.monotonic()
    last = [make_reject("s", batch, index, Fault("r")) for index in range(len(batch))][-1]
    assert (last.line, last.offset) == (1 << 17, (1 << 18) - 2)
    assert time.monotonic() - started < 20  # minutes, if each place is counted from the start


def test_carriage_returns_stay() -> None:
    (batch,) = split_chunks([b'{"a":1}\r\n\r\n'])
    assert list(batch) == [b'{"a":1}\r', b"\r"]
    assert contract_of(batch[0]) is None
    assert is_blank(batch[1])


def test_a_torn_line_is_reported() -> None:
    (batch, torn) = split_chunks([b'{}\n{"a"'])
    assert isinstance(torn[0], TornLine)
    reason = "malformed JSON: it ends too early"
    assert make_reject("s", torn, 0, Fault(reason)).reason == (
        f"the last line is torn, it has no newline: {reason}"
    )
    assert (
        make_reject("s", torn, 0, Fault("no")).reason == "no"
    )  # a whole line that is bad for another reason
    assert not make_reject("s", batch, 0, Fault("no")).reason.startswith("the last line")


def test_an_overlong_line_is_hashed_and_the_next_lines_are_fine() -> None:
    long = b"z" * (LIMIT + 1)
    batches = split_chunks([b"a\nzz", long[2:5], long[5:] + b"\nb\n", b"c"], LIMIT)
    assert [line for batch in batches for line in batch] == [b"a", b"", b"b", b"c"]
    bad = make_reject("s", batches[1], 0, Fault("never seen"))
    assert bad.reason == f"a line of {LIMIT + 1} bytes is above the limit of {LIMIT}"
    assert (bad.line, bad.offset) == (2, 2)
    assert bad.sha256 == hashlib.sha256(long).hexdigest()
    assert not is_blank(batches[1][0])
    after = make_reject("s", batches[1], 1, Fault("x"))
    assert (after.line, after.offset) == (3, 2 + LIMIT + 2)


def test_an_overlong_line_is_not_held() -> None:
    size, chunk = 100 << 20, bytes(1 << 20)
    splitter = LineSplitter("f", limit=1 << 21)
    tracemalloc.start()
    try:
        for _ in range(size // len(chunk)):
            assert splitter.feed(chunk) is None
        batch = splitter.feed(b"\nnext\n")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert batch is not None
    assert isinstance(batch[0], OverlongLine)
    assert batch[0].length == size
    assert batch[1] == b"next"
    assert peak < 8 << 20


def test_small_pieces_cost_no_more_than_their_bytes() -> None:
    splitter = LineSplitter("f")
    tracemalloc.start()
    try:
        for number in range(1 << 17):
            splitter.feed(b"%07d" % number)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * 7 * (1 << 17)


def test_an_empty_chunk_is_nothing() -> None:
    splitter = LineSplitter("f")
    assert splitter.feed(b"") is None
    assert splitter.finish() is None


def test_lines_are_a_sequence() -> None:
    batch = Lines([b"a", b"b", b"c"], "f", 1, 0)
    assert batch[-1] == b"c"
    assert batch[1:] == [b"b", b"c"]
    assert list(reversed(batch)) == [b"c", b"b", b"a"]


def test_what_is_no_line_has_a_place_as_well() -> None:
    item = Finding(rule="r", severity="error", message="m")
    bad = make_reject("s", [item], 0, Fault("odd", "$.x"))
    assert (bad.source, bad.line, bad.offset, bad.path) == ("(pipeline)", 1, 0, "$.x")
    assert bad.sha256 == hashlib.sha256(msgspec.json.encode(item)).hexdigest()


# What is reported about bad lines

MALFORMED = {
    "empty": b"",
    "not json": b"hello",
    "nul": b"\0",
    "nul in a string": b'{"schema":"\0"}',
    "bare newline in a string": b'{"schema":"\r"}',
    "bom": b"\xef\xbb\xbf{}",
    "utf-16": '{"schema":"x"}'.encode("utf-16"),
    "bad utf-8 value": b'{"schema":"\xff"}',
    "bad utf-8 elsewhere": b'{"a":"\xff"}',
    "bad utf-8 key": b'{"\xc3":1}',
    "lone surrogate": b'{"schema":"\\ud800"}',
    "surrogate bytes": b'{"a":"\xed\xa0\x80"}',
    "cut object": b'{"schema":',
    "cut string": b'{"schema":"x',
    "cut escape": b'{"schema":"\\u00',
    "trailing": b"{} x",
    "two": b"{}{}",
    "comma": b'{"a":1,}',
    "single quotes": b"{'a':1}",
    "nan": b'{"a":NaN}',
    "leading zero": b'{"a":01}',
    "deep objects": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "deep arrays": b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "array": b"[]",
    "number": b"17",
    "huge number": b"1e999",
    "string": b'"boundary_event_v1"',
    "null": b"null",
}


@pytest.mark.parametrize("line", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_line_is_explained(line: bytes) -> None:
    with pytest.raises(DECODE_ERRORS) as caught:
        contract_of(line)
    check_sentence(decode_fault(caught.value))


def check_sentence(fault: Fault) -> None:
    reason, path, _ = fault
    assert reason
    assert reason.isprintable()
    assert len(reason) <= 300
    assert path == "" or path.startswith("$")
    assert reason[0].islower() or reason.startswith(("JSON", "UTF"))
    assert " - at " not in reason


def test_the_usual_sentences() -> None:
    reasons = {name: explain_line(line)[0] for name, line in MALFORMED.items()}
    assert reasons["deep objects"] == reasons["deep arrays"] == "nested too deeply"
    assert reasons["cut object"] == reasons["empty"] == "malformed JSON: it ends too early"
    assert reasons["trailing"].startswith("malformed JSON: trailing characters (byte ")
    assert reasons["bad utf-8 value"] == "invalid UTF-8: invalid start byte"
    assert reasons["bad utf-8 elsewhere"] == "invalid UTF-8: invalid start byte"
    assert reasons["array"] == "expected `object`, got `array`"


def explain_line(line: bytes) -> Fault:
    try:
        contract_of(line)
    except DECODE_ERRORS as error:
        return decode_fault(error)
    raise AssertionError(line)


def test_a_path_is_kept_apart() -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(
            b'{"schema":"stream.gap.v1","source":"s","lost":-1,"reason":"r"}', type=Control
        )
    assert decode_fault(caught.value) == Fault("expected `int` >= 0", "$.lost")


@pytest.mark.parametrize("key", ["k" * 100_000, "\x1b[2J\x1b]0;owned\x07", "a\nb", "\u202egnp"])
def test_what_a_line_names_of_itself_stays_short_and_printable(key: str) -> None:
    line = json.dumps({key: 1, "schema_version": "boundary_event_v1"}).encode()
    with pytest.raises(msgspec.ValidationError) as caught:
        decode_boundary(line)
    fault = decode_fault(caught.value)
    check_sentence(fault)
    assert fault.reason.startswith("object contains unknown field `")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.one_of(st.binary(max_size=40), json_values.map(lambda value: json.dumps(value).encode())))
def test_any_line_is_explained(line: bytes) -> None:
    for decode in (contract_of, decode_boundary, msgspec.json.Decoder(Control).decode):
        try:
            decode(line)
        except DECODE_ERRORS as error:
            check_sentence(decode_fault(error))


@pytest.mark.parametrize(
    ("line", "contract"),
    [
        (b"{}", None),
        (b'{"schema":"a"}', "a"),
        (b'{"schema_version":"b"}', "b"),
        (b'{"schema_version":"b","schema":"a"}', "a"),
        (b'{"x":{"schema":"inner"}}', None),
        (b' {"schema":"a"} \r', "a"),
        (b'{"schema":""}', ""),
        # A descriptor carries its JSON Schema under the same name.
        (
            b'{"schema_version":"boundary_schema_v1","schema":{"type":"object"}}',
            "boundary_schema_v1",
        ),
        (b'{"schema":3}', None),
        (b'{"schema":null,"schema_version":4}', None),
        ('{"schema":"é"}'.encode(), "é"),
    ],
)
def test_which_contract(line: bytes, contract: str | None) -> None:
    assert contract_of(line) == contract


def test_blank() -> None:
    assert all(map(is_blank, (b"", b" ", b"\t\r", b"\x0b\x0c")))
    assert not is_blank(b"x")
    assert not is_blank(OverlongLine.of(9, "0" * 64, 8))
