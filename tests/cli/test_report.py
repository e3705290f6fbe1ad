"""stream report as a command: where the page goes, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream.boundary.measured import Outcome
from tests.cli.command import Place
from tests.cli.test_terminal import Terminal
from tests.transformers.modes import mode_lines, mode_record
from tests.transformers.samples import line, record

RECORDS = b"".join(one + b"\n" for one in mode_lines([("open", "m", "cap_a", "one")]))


CLOSED: tuple[Outcome, str, str, str] = ("closed", "m", "cap_fs_write_temp", "one")


@pytest.fixture
def records(place: Place) -> Path:
    path = place.workspace / "boundary.ndjson"
    path.write_bytes(RECORDS)
    return path


def test_the_page_is_the_same_in_a_file_and_in_a_pipe(place: Place, records: Path) -> None:
    done = place.stream("report", records.name, "-o", "page.html")
    assert (done.code, done.out) == (0, b"")
    page = (place.workspace / "page.html").read_bytes()
    assert page.startswith(b"<!doctype html>\n")
    assert page.endswith(b"</html>\n")
    assert place.stream("report", records.name).out == page
    named = page.replace(records.name.encode(), b"-")
    assert place.stream("report", "-", data=RECORDS).out == named


def test_it_is_not_written_over_anything(place: Place, records: Path) -> None:
    page = place.workspace / "page.html"
    page.write_text("mine")
    done = place.stream("report", records, "-o", page)
    assert (done.code, "--force replaces it" in done.err) == (2, True)
    assert page.read_text() == "mine"
    done = place.stream("report", records, "-o", records, "--force")
    assert (done.code, "the same file as" in done.err) == (2, True)
    assert records.read_bytes() == RECORDS
    assert place.stream("report", records, "-o", page, "--force").code == 0
    assert page.read_text().startswith("<!doctype")


def test_bad_lines_do_not_stop_it_and_are_counted(place: Place, records: Path) -> None:
    bad = line(mode_record(effect={"state": "perhaps"}))
    records.write_bytes(RECORDS + b"{\n" + bad + b'\n{"schema":"other"}\n' + line(record()))
    done = place.stream("report", records)
    assert done.code == 1
    page = done.out.decode()
    assert "<p>2 bad lines</p>" in page
    assert "<p>1 other not shown</p>" in page
    assert f"{records}:2: malformed JSON" in done.err
    assert f"{records}:3: $.effect.state: " in done.err
    assert "5 in = 2 out + 2 rejected + 1 filtered" in done.err


def test_two_sides(place: Place, records: Path) -> None:
    done = place.stream("report", records, "-", data=RECORDS.replace(b"cap_a", b"cap_b"))
    assert done.code == 0
    assert b"What changed" in done.out
    assert b"cap_<wbr>b" in done.out
    assert b"What changed" not in place.stream("report", records).out


@pytest.mark.parametrize("nothing", [b"", b"\n", b'{"schema":"other"}\n'])
def test_nothing_to_show_is_refused(place: Place, records: Path, nothing: bytes) -> None:
    (place.workspace / "empty").write_bytes(nothing)
    for words in (["empty"], [records, "empty"]):
        done = place.stream("report", *words, "-o", "page.html")
        assert (done.code, done.out) == (2, b"")
        assert "stream: empty: it has no boundary objects" in done.err
    assert not list(place.workspace.glob("page*"))


def test_wrong_words(place: Place, records: Path) -> None:
    for words, sentence in (
        ([records, records, records], "one file, or two"),
        (["absent"], "absent: no such file"),
        ([records, "-o", "absent/page.html"], "absent/page.html"),
        (["", "-o", "x"], "an empty word"),
    ):
        done = place.stream("report", *words)
        assert (done.code, done.out) == (2, b""), words
        assert sentence in done.err
    code, shown = Terminal(place, "report", records).finish()
    assert code == 2
    assert "a page does not go to a terminal" in shown.replace("\r\n", " ")


def test_a_lockfile_is_a_side_of_its_own(place: Place, records: Path) -> None:
    """What is locked as closed, and open now, opened."""
    before, lock = place.workspace / "before.ndjson", place.workspace / "boundary.lock"
    before.write_bytes(b"".join(one + b"\n" for one in mode_lines([CLOSED])))
    records.write_bytes(RECORDS.replace(b"cap_a", b"cap_fs_write_temp"))
    assert place.stream("lock", before, "-o", lock).code == 0
    done = place.stream("report", lock, records)
    assert done.code == 0, done.err
    page = done.out.decode()
    assert "a lockfile: it has outcomes, and no records" in page
    assert "<summary>1 opened</summary>" in page
    lock.write_text(lock.read_text().replace("closed", "open  "))
    refused = place.stream("report", lock, records)
    assert (refused.code, refused.out) == (2, b"")
    assert "boundary.lock:" in refused.err
