"""The page of `stream report`: it holds the records as they came, and whatever they say is text."""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Sequence
from html.parser import HTMLParser

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.boundary.descriptors import mode_descriptor
from stream.boundary.measured import Outcome
from stream.boundary.outcomes import LOUDEST, OutcomeSide, OutcomeTable
from stream.codec import Lines, TornLine
from stream.sinks.report import render_report
from stream.transformers import kept_records
from stream.transformers.kept_records import KeptRecords
from tests.core.properties import cut_into_batches
from tests.transformers.modes import mode_lines, mode_record
from tests.transformers.samples import line, lines, record, run_transformer


def side_of(*items: bytes, name: str = "in.ndjson") -> OutcomeSide:
    stage = KeptRecords(name, mode_descriptor())
    run_transformer(stage, [lines(*items)])
    return stage.side()


def render(*sides: Sequence[bytes]) -> str:
    names = ("before.ndjson", "after.ndjson")
    return render_report(
        [side_of(*items, name=name) for items, name in zip(sides, names, strict=False)]
    ).decode()


class Outline(HTMLParser):
    """The elements of a page with the names of their attributes, and its texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.values: list[tuple[str, str, str]] = []
        self.texts: dict[str, list[str]] = {}
        self._inside: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(name for name, _ in attrs)))
        self.values += [(tag, name, value or "") for name, value in attrs]
        if tag not in ("meta", "br", "wbr"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._inside.pop() == tag

    def handle_data(self, data: str) -> None:
        inside = self._inside[-1] if self._inside else ""
        self.texts.setdefault(inside, []).append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")


def kept_lines(page: str) -> list[list[bytes]]:
    """The records that are packed into a page, by side."""
    packed = re.findall(r'<script type="text/plain"[^>]*>([^<]*)</script>', page)
    return [zlib.decompress(base64.b64decode(one)).split(b"\n") for one in packed]


CELLS: list[tuple[Outcome, str, str, str]] = [
    ("open", "baseline", "cap_a", "one"),
    ("closed", "m", "cap_a", "one"),
    ("untold", "m", "cap_a", "two"),
    ("diverted", "m", "cap_b", "three"),
]


def test_the_records_are_in_it_as_they_came() -> None:
    items = [*mode_lines(CELLS), line(record()), b"{", b'{"schema":"other"}']
    (packed,) = kept_lines(render(items))
    assert [one.split(b" ", 3)[3] for one in packed] == items[:5]
    rows = [one.split(b" ", 3)[:3] for one in packed]
    # Rows and modes by number, and what it came to.
    assert rows == [
        [b"0", b"0", b"open"],
        [b"0", b"1", b"closed"],
        [b"1", b"1", b"untold"],
        [b"2", b"1", b"diverted"],
        [b"3", b"0", b"closed"],
    ]


def test_the_same_records_give_the_same_page() -> None:
    items = [*mode_lines(CELLS)]
    assert render(items, items[:2]) == render(items, items[:2])


def test_the_policy_names_what_is_in_the_page_and_nothing_else() -> None:
    page = render([*mode_lines(CELLS)])
    (policy,) = [v for tag, name, v in Outline(page).values if name == "content" and "src" in v]
    assert policy.startswith("default-src 'none'; ")
    assert policy.endswith("; base-uri 'none'; form-action 'none'")
    for tag in ("script", "style"):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"; {tag}-src 'sha256-{digest}'" in policy
    assert policy.count("-src") == 3


def test_it_refers_to_nothing_outside_of_it() -> None:
    outline = Outline(render([*mode_lines(CELLS)], [*mode_lines(CELLS[:1])]))
    loading = {"src", "href", "srcset", "action", "style", "data", "poster", "background"}
    names = {name for _, names in outline.elements for name in names}
    assert not names & loading
    assert not [name for name in names if name.startswith("on")]
    for text in (*outline.texts["style"], *outline.texts["script"]):
        assert not re.search(r"https?:|url\(|@import|fetch|XMLHttp|WebSocket|innerHTML", text)


HOSTILE = st.one_of(
    st.text(min_size=1),
    st.sampled_from(
        [
            "<script>window.got=1</script>",
            "</script><script>window.got=1</script>",
            '"><img src=x onerror=window.got=1>',
            "' onclick=window.got=1 x='",
            "{{ 7 * 7 }}{% include 'report' %}",
            "<!--<script>",
            "]]>&lt;b&gt;\x00\u202e",
        ]
    ),
)


@settings(max_examples=60)
@given(*[HOSTILE] * 6)
def test_nothing_that_a_record_says_is_an_element(
    capability: str, category: str, probe: str, name: str, version: str, message: str
) -> None:
    """The page has the same elements with the same attributes, whatever stands in a record."""

    def page_of(*texts: str) -> str:
        capability, category, probe, name, version, message = texts
        value = mode_record(
            "open",
            "m",
            probe,
            capability,
            category,
            sandbox={"name": name, "version": version},
            result={"message": message},
            payload={"stdout_snippet": message[:400], "raw": {message: message}},
            run={"user": name},
            stack={"os": version},
        )
        return render_report([side_of(line(value), name=message)]).decode()

    hostile = Outline(page_of(capability, category, probe, name, version, message))
    plain = Outline(page_of("cap", "net", "probe", "bwrap", "1", "m"))

    def without_breaks(outline: Outline) -> list[tuple[str, tuple[str, ...]]]:
        return [element for element in outline.elements if element[0] != "wbr"]

    assert without_breaks(hostile) == without_breaks(plain)
    assert hostile.texts["style"] == plain.texts["style"]
    scripts = [text for text in hostile.texts["script"] if not re.fullmatch(r"[\w+/=]+", text)]
    assert scripts == [
        text for text in plain.texts["script"] if not re.fullmatch(r"[\w+/=]+", text)
    ]


def test_a_page_of_many_records_is_small() -> None:
    items = [*many_lines(10_000)]
    assert sum(map(len, items)) > 10 << 20
    page = render(items)
    assert len(page) < 5_000_000
    assert len(kept_lines(page)[0]) == 10_000


def many_lines(count: int) -> list[bytes]:
    """Records of a hundred probes in many modes, each with texts of its own."""
    made = []
    for number in range(count):
        nonce = hashlib.sha256(b"%d" % number).hexdigest()
        probe, mode = number % 100, number // 100
        value = mode_record(
            LOUDEST[number % 3] if number % 3 < 2 else "closed",  # type: ignore[arg-type]
            f"mode-{mode}" if mode else "baseline",
            f"probe_{probe}",
            f"cap_{probe // 2}",
            payload={"stderr_snippet": f"/srv/{nonce}: Read-only file system " * 4},
            run={"command": f"printf %s {nonce}"},
        )
        made.append(msgspec.json.encode(value))
    return made


def changes_of(before: Sequence[bytes], after: Sequence[bytes]) -> dict[str, int]:
    found = re.findall(r"<li[^>]*><b>(\d+)</b> ([a-z ]+)</li>", render(before, after))
    return {word: int(count) for count, word in found}


def test_changes_are_counted_and_what_opened_comes_first() -> None:
    cells: list[tuple[Outcome, Outcome]] = [
        ("closed", "open"),
        ("partial", "open"),
        ("open", "closed"),
        ("closed", "diverted"),
        ("open", "untold"),
        ("no-control", "open"),
        ("untold", "no-control"),
        ("open", "open"),
    ]
    before = mode_lines([(b, "m", "cap_a", f"p{n}") for n, (b, _) in enumerate(cells)])
    after = mode_lines([(a, "m", "cap_a", f"p{n}") for n, (_, a) in enumerate(cells)])
    found = changes_of([*before], [*after])
    assert found == {
        "opened": 3,
        "no longer measured": 1,
        "measured now": 1,
        "closed": 1,
    }
    assert next(iter(found)) == "opened"


def test_cells_that_flap_change_only_by_an_outcome_that_is_new() -> None:
    flapping = [*mode_lines([("open", "m", "cap_a", "p"), ("closed", "m", "cap_a", "p")])]
    assert set(changes_of(flapping, flapping[:1]).values()) == {0}
    assert changes_of(flapping[1:], flapping)["opened"] == 1


def test_a_mode_of_one_side_is_named_and_not_compared() -> None:
    both = [*mode_lines(CELLS)]
    page = render(both, both[:1])
    assert "Only in <code>before.ndjson</code>, and not compared: m</p>" in page
    assert set(changes_of(both, both[:1]).values()) == {0}


def test_what_else_came_is_named() -> None:
    items = [line(record()), b"{", b'{"schema":"other"}', b'{"schema":"<other>"}']
    page = render(items)
    assert "<p>1 other not shown</p>" in page
    assert "<p>1 &lt;other&gt; not shown</p>" in page
    assert "<p>1 bad line</p>" in page
    assert hashlib.sha256(b"".join(one + b"\n" for one in items)).hexdigest() in page


def test_a_torn_line_is_digested_as_it_is() -> None:
    data = line(record()) + b"\n" + line(record())
    whole, torn = data.split(b"\n")
    stage = KeptRecords("x", mode_descriptor())
    run_transformer(stage, [Lines([whole, TornLine(torn)], "x", 1, 0)])
    assert stage.side().sha256 == hashlib.sha256(data).hexdigest()
    assert len(stage.side().records) == 2


def test_memory_does_not_grow_with_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_records, "MOST_RECORDS", 2)
    side = side_of(*[line(record())] * 5)
    assert (side.table.records, len(side.records)) == (5, 2)
    assert side.remarks == ["3 records found no room in the page"]


POOL = [*mode_lines(CELLS), line(record()), b"{", b"", b'{"schema":"other"}']


@settings(max_examples=40)
@given(st.lists(st.sampled_from(POOL), max_size=12), st.lists(st.integers(0, 50), max_size=5))
def test_a_side_does_not_depend_on_batches(items: list[bytes], cuts: list[int]) -> None:
    whole, parts = (KeptRecords("x", mode_descriptor()) for _ in range(2))
    assert run_transformer(whole, [lines(*items)]) == run_transformer(
        parts, cut_into_batches(lines(*items), cuts)
    )
    one, other = whole.side(), parts.side()
    assert (one.records, one.setups, one.sha256, one.remarks) == (
        (other.records, other.setups, other.sha256, other.remarks)
    )


def test_a_side_may_have_outcomes_and_no_records() -> None:
    """As expected outcomes have none."""
    table = OutcomeTable()
    assert table.add_outcome("cap_a", "net", "one", "m", "closed")
    after = side_of(*mode_lines([("open", "m", "cap_a", "one")]))
    page = render_report([OutcomeSide("expected", table), after]).decode()
    assert "<b>1</b> opened" in page
    assert kept_lines(page)[0] == [b""]
