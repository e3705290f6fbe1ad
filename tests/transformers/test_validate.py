"""validate: good lines pass, bad ones are findings and rejects with their places."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.json import encode

from stream.boundary.descriptors import Boundaries, Descriptor, known_catalogs
from stream.codec import BUNDLE, Lines, LineSplitter, TornLine
from stream.errors import InputError
from stream.records.control import Control, Finding, Gap, Reject
from stream.records.emission import encode_raw
from stream.sinks.ndjson import Ndjson
from stream.transformers.validate import Validate
from stream.verify.check import is_document, run_validate
from tests.collecting import Collected
from tests.core.properties import check_batch_independence
from tests.transformers.cells import OWN, PLAIN
from tests.transformers.samples import (
    cell,
    line,
    lines,
    make_builder,
    make_own_builder,
    record,
    run_transformer,
    split_lines,
)
from tests.transformers.test_catalogs import CATALOG, DESCRIPTOR, change_value

BUNDLED = BUNDLE / "catalogs"
GOOD = [
    PLAIN,
    json.dumps(record(), indent=1).replace("\n", " ").encode(),
    line(CATALOG),
    line(DESCRIPTOR),
    encode_raw(cell(OWN)),
    encode(Finding(rule="r", severity="error", message="m", line=3)),
    encode(Gap(source="s", lost=0, reason="r")),
    encode(Reject(stage="s", source="s", line=1, offset=0, sha256="0" * 64, reason="r")),
]
UNKNOWN = [b'{"schema":"assay.runner.other.v0"}', b'{"a":1}', b"{}"]
#: (line, rule, reason, JSON path)
BAD = [
    (b"{", "json", "malformed JSON: it ends too early", ""),
    (b"nonsense", "json", "malformed JSON: ", ""),
    (b"null", "json", "expected `object`, got `null`", ""),
    (b"[1]", "json", "expected `object`, got `array`", ""),
    (b'{"schema":5}', "contract", "names no contract", ""),
    (b'{"a":"\x00"}', "json", "malformed JSON: ", ""),
    (b'{"schema":"\xff"}', "json", "invalid UTF-8: ", ""),
    (b'{"a":' + b"[" * 10_000, "json", "nested too deeply", ""),
    (b'{"a":1e400}', "json", "number out of range", "$[...]"),
    (b'{"schema":"assay.runner.other.v0","a":1e400}', "json", "number out of range", "$[...]"),
    (line(record(run={"mode": "x"})), "boundary_event_v1", "invalid enum value 'x'", "$.run.mode"),
    (PLAIN.replace(b'"true"', b'"\xff"'), "json", "invalid UTF-8: ", ""),
    (PLAIN[:-1] + b',"x":1}', "boundary_event_v1", "object contains unknown field `x`", ""),
    (
        line(record(probe={"secondary_capability_ids": ["a", "a"]})),
        "boundary_event_v1",
        "expected unique ids",
        "$.probe.secondary_capability_ids",
    ),
    (
        line(change_value(CATALOG, "capabilities.0.layer", "x")),
        "sandbox_catalog_v1",
        "capability cap_a references unknown layer x",
        "",
    ),
    (
        line(change_value(CATALOG, "catalog.title", " ")),
        "sandbox_catalog_v1",
        "expected a text that is not blank",
        "$.catalog.title",
    ),
    (
        line(CATALOG).replace(b'"key": "mine_v1"', b'"key": "a", "key": "mine_v1"'),
        "sandbox_catalog_v1",
        "duplicate key 'key'",
        "$.catalog",
    ),
    (
        line(DESCRIPTOR)[:-1] + b',"key":"x"}',
        "boundary_schema_v1",
        "duplicate key 'key'",
        "$",
    ),
    (
        line(change_value(DESCRIPTOR, "pattern_version", "p2")),
        "boundary_schema_v1",
        "is 'p2' but",
        "$.pattern_version",
    ),
    (
        b'{"schema":"stream.gap.v1","source":"s","lost":-1,"reason":"r"}',
        "stream.gap.v1",
        "expected ",
        "$.lost",
    ),
    (
        encode_raw(cell(OWN)).replace(b'"timed_out":null', b'"timed_out":-1'),
        "stream.raw_emission.v1",
        "expected ",
        "$.timed_out",
    ),
]


def make_boundaries(descriptor: Descriptor | None = None) -> Boundaries:
    return Boundaries([descriptor or make_builder().descriptor], known_catalogs())


def make_validate(*, is_last: bool = True, descriptor: Descriptor | None = None) -> Validate:
    return Validate(make_boundaries(descriptor), is_last=is_last)


def validate_lines(
    *items: bytes, is_last: bool = True, source: str = "in.ndjson"
) -> tuple[list[bytes], list[Control]]:
    return run_transformer(make_validate(is_last=is_last), [lines(*items, source=source)])


@pytest.mark.parametrize("good", GOOD, ids=range(len(GOOD)))
@pytest.mark.parametrize("is_last", [True, False])
def test_good_lines_pass_unchanged(good: bytes, is_last: bool) -> None:
    assert validate_lines(good, PLAIN, is_last=is_last) == ([good, PLAIN], [])


@pytest.mark.parametrize(("bad", "rule", "reason", "path"), BAD, ids=range(len(BAD)))
def test_a_bad_line_is_a_finding_and_a_reject(
    bad: bytes, rule: str, reason: str, path: str
) -> None:
    out, (finding, reject) = validate_lines(PLAIN, b"", bad, PLAIN)
    assert out == [PLAIN, PLAIN]
    assert isinstance(finding, Finding)
    assert isinstance(reject, Reject)
    assert (finding.rule, finding.severity, finding.line) == (rule, "error", 3)
    assert finding.message.startswith(reason)
    assert (reject.line, reject.offset, reject.path) == (3, len(PLAIN) + 2, finding.path)
    assert (reject.reason, reject.source) == (finding.message, "in.ndjson")
    assert reject.sha256 == sha256(bad).hexdigest()
    assert finding.path == (path or UNSET)


@pytest.mark.parametrize("unknown", UNKNOWN, ids=range(3))
def test_an_unknown_contract_is_a_finding_only_at_the_end(unknown: bytes) -> None:
    assert validate_lines(unknown, is_last=False) == ([unknown], [])
    out, (finding, _) = validate_lines(unknown, is_last=True)
    assert out == []
    assert isinstance(finding, Finding)
    assert finding.rule == "contract"
    transformer = make_validate(is_last=False)
    run_transformer(transformer, [lines(*UNKNOWN, PLAIN)])
    assert transformer.contracts == {"(unknown)": 3, "boundary_event_v1": 1}


def test_a_torn_tail_is_reported() -> None:
    out, (finding, _) = run_transformer(
        make_validate(), split_lines(PLAIN + b"\n" + PLAIN[:40], [])
    )
    assert out == [PLAIN]
    assert isinstance(finding, Finding)
    assert finding.message.startswith("the last line is torn, it has no newline: ")
    assert finding.line == 2
    assert run_transformer(make_validate(), [lines(TornLine(PLAIN))]) == ([PLAIN], [])


def test_an_overlong_line_is_rejected_by_its_hash() -> None:
    splitter = LineSplitter("in.ndjson", limit=2000)
    long = b"x" * 5000
    batch = splitter.feed(PLAIN + b"\n" + long + b"\n" + PLAIN + b"\n")
    assert batch is not None
    out, (_, reject) = run_transformer(make_validate(), [batch])
    assert out == [PLAIN, PLAIN]
    assert isinstance(reject, Reject)
    assert (reject.line, reject.sha256) == (2, sha256(long).hexdigest())
    assert "5000 bytes" in reject.reason


def test_blank_lines_are_neither_good_nor_bad() -> None:
    transformer = make_validate()
    assert run_transformer(transformer, [lines(b"", b" \t\r", PLAIN)]) == ([PLAIN], [])
    assert transformer.counts.filtered == 2


def test_control_records_in_memory_pass() -> None:
    finding = Finding(rule="r", severity="error", message="m")
    gap = Gap(source="s", lost=1, reason="r")
    transformer = make_validate()
    assert run_transformer(transformer, [[finding, gap, PLAIN]]) == ([PLAIN], [finding, gap])
    assert transformer.findings == 0


POOL = [*GOOD[:3], *(bad for bad, *_ in BAD[:9]), *UNKNOWN[:1], b"", b" "]


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(POOL), max_size=10),
    st.lists(st.integers(0, 50), max_size=5),
    st.booleans(),
)
def test_validate_does_not_depend_on_batches(
    items: list[bytes], cuts: list[int], is_last: bool
) -> None:
    out, counts = check_batch_independence(
        lambda: make_validate(is_last=is_last), lines(*items), cuts
    )
    rejects = [item for item in out if isinstance(item, Reject)]
    assert len(rejects) == counts.rejected
    assert len(out) == counts.passed + 2 * counts.rejected


@settings(max_examples=60)
@given(st.lists(st.sampled_from(POOL), max_size=6), st.lists(st.integers(0, 9000), max_size=8))
def test_places_do_not_depend_on_reads(items: list[bytes], cuts: list[int]) -> None:
    data = b"\n".join([*items, PLAIN[:-1]])
    whole = run_transformer(make_validate(), split_lines(data, []))
    assert run_transformer(make_validate(), split_lines(data, cuts)) == whole
    for reject in whole[1]:
        if isinstance(reject, Reject):
            assert isinstance(reject.offset, int)
            bad = data[reject.offset :].split(b"\n")[0]
            assert sha256(bad).hexdigest() == reject.sha256
            assert data.count(b"\n", 0, reject.offset) == reject.line - 1


def test_a_pattern_of_the_users_own_validates_its_own_records() -> None:
    own = make_own_builder().descriptor
    named = {"schema_key": "mine-v2"}
    changed = {**named, "schema_version": "boundary_event_v9"}
    theirs = line(record(run={"mode": "caged"}) | changed)
    bad = line(record(run={"mode": "x"}) | changed)
    plain = line(record() | named)  # as the harness writes it where the pattern has no room
    transformer = make_validate(descriptor=own)
    out, control = run_transformer(transformer, [lines(theirs, plain, bad, PLAIN)])
    assert out == [theirs, plain]
    found = [(one.rule, one.path) for one in control if isinstance(one, Finding)]
    assert found == [
        ("boundary_event_v9", "$.run.mode"),
        ("boundary_event_v1", "$.schema_key"),  # another descriptor is in force
    ]
    assert transformer.contracts == {"boundary_event_v9": 1, "boundary_event_v1": 1}


@pytest.mark.parametrize("key", ["cfbo-v1", None, 5, [], {}])
def test_a_key_goes_with_its_own_pattern(key: object) -> None:
    own = make_own_builder(required='["schema_version"]', properties=_ANY_KEY).descriptor
    both = Boundaries([own, make_builder().descriptor], known_catalogs())
    value = line({"schema_version": "boundary_event_v9", "schema_key": key})
    assert both.check_boundary(value, "boundary_event_v9") is not None
    good = line({"schema_version": "boundary_event_v9", "schema_key": "mine-v2"})
    assert both.check_boundary(good, "boundary_event_v9") is None


_ANY_KEY = '{"schema_version": {"const": "boundary_event_v9"}, "schema_key": {}}'


DEFAULTS = b'{"catalog":{"linux":"catalogs/x.json"},"boundary":"catalogs/y.json"}'


def test_defaults_are_known_by_their_file_name() -> None:
    assert validate_lines(DEFAULTS, source="catalogs/defaults.json") == ([DEFAULTS], [])
    assert validate_lines(DEFAULTS, source="catalogs/other.json")[0] == []
    _, (finding, _) = validate_lines(b'{"catalog":5}', source="/x/defaults.json")
    assert isinstance(finding, Finding)
    assert (finding.rule, finding.path) == ("defaults.json", "$.catalog")
    assert validate_lines(PLAIN, source="defaults.json") == ([PLAIN], [])


def validate_files(*paths: Path | str, as_filter: bool = False) -> tuple[Validate, list[Any]]:
    collected = Collected()

    async def validate_all() -> Validate:
        names = [str(path) for path in paths]
        return await run_validate(names, make_boundaries(), collected, as_filter=as_filter)

    return anyio.run(validate_all), collected.items


def test_everything_that_is_bundled_validates() -> None:
    transformer, items = validate_files(*sorted(BUNDLED.glob("*.json")))
    assert [item for item in items if not isinstance(item, bytes)] == []
    assert transformer.contracts == {
        "sandbox_catalog_v1": 2,
        "boundary_schema_v1": 2,
        "defaults.json": 1,
    }


def test_a_record_over_several_lines_is_one_record(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_text(json.dumps(record(result={"raw_exit_code": 1.0}), indent=2))
    transformer, (item,) = validate_files(path)
    assert transformer.findings == 0
    assert b'"raw_exit_code":1.0' in item


@pytest.mark.parametrize(
    ("text", "reason", "path"),
    [
        ('{\n"a": 1,\n"a": 2}', "duplicate key 'a'", "$"),
        ('{\n"x": {"a": 1,\n"a": 2}}', "duplicate key 'a'", "$.x"),
        ('{\n"a" 1}', "malformed JSON at line 2 column 5", None),
        ('{\n"a": NaN}', "malformed JSON: NaN", None),
        ("{\n" + '"a":[' * 100_000, "malformed JSON", None),
        ("{\n" + '"a":' + "[" * 100_000, "nested too deeply", None),
        ("", "malformed JSON at line 1 column 1", None),
    ],
    ids=range(7),
)
def test_a_document_that_is_no_json_is_a_finding_and_a_reject(
    text: str, reason: str, path: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    transformer, (finding, reject) = validate_files(file)
    assert finding.message.startswith(reason)
    assert (finding.source, finding.rule) == (str(file), "json")
    assert path is None or finding.path == path
    assert reject.sha256 == sha256(text.encode()).hexdigest()
    assert transformer.findings == 1


@pytest.mark.parametrize("prefix", ["./", "", ".//"])
def test_the_place_is_reported_once(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.json").write_text(json.dumps(change_value(CATALOG, "catalog.title", ""), indent=1))
    _, (finding, _) = validate_files(f"{prefix}c.json")
    assert (finding.source, finding.path) == (f"{prefix}c.json", "$.catalog.title")
    assert finding.message.startswith("expected a text that is not blank")


@pytest.mark.parametrize(
    ("name", "text", "document"),
    [
        ("a.json", '{"a":1}\n', False),
        ("a.json", '{"a":1}\n{"b":2}\n', False),
        ("a.json", '{"a":\n1}', True),
        ("a.json", "\n{}", True),
        ("a.ndjson", '{"a":\n1}', False),
        ("a.ndjson", "{\n}", True),
        ("a", "[\n]", True),
        ("a", "\n", False),
    ],
)
def test_which_files_are_one_document(name: str, text: str, document: bool, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert is_document(str(tmp_path / name)) is document


def test_what_is_no_file_is_no_document(tmp_path: Path) -> None:
    assert not is_document("-")
    assert not is_document(str(tmp_path))
    assert not is_document(str(tmp_path / "none"))
    with pytest.raises(InputError, match="file name too long"):
        is_document("x" * 5000)


def test_files_come_in_the_order_given(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(line(record(probe={"id": name})) + b"\nbad\n")
    transformer, items = validate_files(tmp_path / "b", tmp_path / "a")
    assert [str(item.source)[-1] for item in items if isinstance(item, Finding)] == ["b", "a"]
    assert str(transformer.counts) == "4 in = 2 out + 2 rejected + 0 filtered"
    assert Ndjson("-").target == "-"
    assert isinstance(lines(), Lines)
