"""`stream diff` of two matrices: every cell of either side is in one list, or unchanged."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema_rs
from hypothesis import given
from hypothesis import strategies as st

from stream.codec import BUNDLE
from stream.compare.diff import CELL_WORDS, diff_matrices
from tests.cli.command import Place
from tests.transformers.cells import PLAIN

SCHEMA = jsonschema_rs.validator_for(
    json.loads((BUNDLE / "schema" / "boundary_diff.schema.json").read_bytes())
)
OUTCOMES = ("success", "denied", "partial", "error")


def make_record(probe: str, outcome: str, *, mode: str = "baseline", version: str = "1") -> bytes:
    one: Any = json.loads(PLAIN)
    one["probe"] |= {"id": probe, "version": version}
    one["run"]["mode"] = mode
    one["result"] |= {"observed_result": outcome, "errno": "EPERM" if outcome == "denied" else None}
    return json.dumps(one).encode() + b"\n"


def write_lines(path: Path, *lines: bytes) -> str:
    path.write_bytes(b"".join(lines))
    return str(path)


def list_probes(changes: list[Any]) -> list[str]:
    return [one["probe"] for one in changes]


def test_what_opened_closed_and_can_no_longer_be_measured(place: Place) -> None:
    base = [("a", "denied"), ("b", "success"), ("c", "denied"), ("d", "error"), ("e", "success")]
    head = [("a", "success"), ("b", "partial"), ("c", "error"), ("d", "denied"), ("e", "success")]
    one = write_lines(
        place.root / "a.ndjson", *(make_record(*cell) for cell in (*base, ("f", "denied")))
    )
    other = write_lines(place.root / "b.ndjson", *(make_record(*cell) for cell in head))
    done = place.stream("diff", one, other)
    (found,) = done.records
    assert done.code == 0
    assert [
        list_probes(found[name]) for name in ("opened", "closed", "unmeasured", "measured")
    ] == [
        ["a"],
        ["b"],
        ["c", "f"],
        ["d"],
    ]
    assert found["unchanged"] == 1
    assert found["opened"][0]["base"] == {"outcome": "denied", "errno": "EPERM", "message": None}
    assert found["unmeasured"][1]["head"]["outcome"] == "absent"
    SCHEMA.validate(found)
    assert place.stream("validate", "-", data=done.out).code == 0


def test_a_cell_that_was_repeated_and_a_probe_of_another_version(place: Place) -> None:
    repeated = [
        make_record("a", "success"),
        make_record("a", "denied"),
        make_record("a", "success"),
    ]
    one = write_lines(place.root / "a.ndjson", *repeated, make_record("b", "denied"))
    other = write_lines(
        place.root / "b.ndjson",
        make_record("a", "success"),
        make_record("b", "denied", version="2"),
    )
    (found,) = place.stream("diff", one, other).records
    assert list_probes(found["measured"]) == ["a"]
    assert found["measured"][0]["base"]["outcome"] == "mixed"
    assert found["notes"] == ["b (baseline): versions 1 and 2 of the probe"]


def test_what_is_to_fail(place: Place) -> None:
    one = write_lines(place.root / "a.ndjson", make_record("a", "denied"))
    other = write_lines(place.root / "b.ndjson", make_record("a", "success"))
    for words, code in (("opened", 1), ("closed", 0), ("closed,any", 1), ("unmeasured", 0)):
        assert place.stream("diff", one, other, "--fail-on", words).code == code, words
    done = place.stream("diff", one, other, "--fail-on", "added-paths")
    assert done.code == 2
    assert "for matrices, use one of opened, closed" in done.err
    assert (
        "--fail-on opened: 1 cell opened"
        in place.stream("diff", one, other, "--fail-on", "opened").err
    )


def test_the_help_names_what_may_fail(place: Place) -> None:
    """Of two matrices as well."""
    text = " ".join(place.stream("diff", "--help").out.decode().split())
    assert all(word in text.partition("--fail-on WORDS")[2] for word in CELL_WORDS)


def test_what_cannot_be_compared(place: Place) -> None:
    one = write_lines(place.root / "a.ndjson", make_record("a", "denied"))
    for text, message in (
        (b"", "b.ndjson: it has no boundary objects"),
        (b"words\n", "b.ndjson:1: "),
        (b"\x1f\x8b", "b.ndjson: not a file of boundary objects, but the other side is"),
        (make_record("a", "denied") + b"{}\n", "b.ndjson:2: "),
        (make_record("a", "denied") + b"\xff\n", "b.ndjson:2: "),
    ):
        done = place.stream("diff", one, write_lines(place.root / "b.ndjson", text))
        assert (done.code, done.out) == (2, b"")
        assert message in done.err
    for sides in ((one, "nosuch"), ("nosuch", one)):
        assert "nosuch: no such file or directory" in place.stream("diff", *sides).err
    assert place.stream("diff", one, one, "--canonical").code == 2


def test_the_other_side_from_a_pipe(place: Place) -> None:
    one = write_lines(place.root / "a.ndjson", make_record("a", "denied"))
    fifo = place.make_fifo("pipe")
    writer = subprocess.Popen(["cp", one, fifo])
    done = place.stream("diff", one, fifo)
    assert writer.wait() == 0
    assert [found["unchanged"] for found in done.records] == [1]


cells = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(OUTCOMES), st.sampled_from(["m", "n"]))
)


@given(base=cells, head=cells)
def test_no_cell_is_lost_and_the_other_way_round_is_the_reverse(
    tmp_path_factory: Any, base: list[tuple[str, str, str]], head: list[tuple[str, str, str]]
) -> None:
    folder = tmp_path_factory.mktemp("cells")
    sides = [
        write_lines(
            folder / name,
            make_record("z", "error"),
            *(make_record(p, o, mode=m) for p, o, m in side),
        )
        for name, side in (("a", base), ("b", head))
    ]
    found, back = diff_matrices(*sides), diff_matrices(*reversed(sides))
    everything = {(p, m) for p, _, m in (*base, *head)} | {("z", "baseline")}
    changes = [*found.opened, *found.closed, *found.unmeasured, *found.measured]
    listed = Counter((one.probe, one.mode) for one in changes)
    assert max(listed.values(), default=1) == 1
    assert len(listed) + found.unchanged == len(everything)
    assert [one.probe for one in found.opened] == [one.probe for one in back.closed]
    assert [one.probe for one in found.unmeasured] == [one.probe for one in back.measured]
    assert found.unchanged == back.unchanged
