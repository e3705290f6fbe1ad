"""listen --matrix: one table, in which every outcome can be told from every other."""

from __future__ import annotations

import os
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.boundary import outcomes
from stream.boundary.descriptors import find_descriptor
from stream.boundary.measured import OUTCOMES, Outcome, outcome_of
from stream.boundary.outcomes import LOUDEST, OutcomeTable, Tally, Verdict, loudest
from stream.records.modes import decode_mode_boundary
from stream.transformers.outcome_text import WIDTH, OutcomeText
from tests.core.properties import cut_into_batches
from tests.transformers.modes import mode_lines, mode_record
from tests.transformers.samples import DATA, line, lines, record, run_transformer

DESCRIPTOR = find_descriptor(None)
MODES = ("baseline", "bwrap-ro", "codex-read-only", "codex-workspace-write", "gvisor", "landlock")
#: Outcomes of each mode, by capability and probe. None: there is no record.
CELLS: dict[tuple[str, str], tuple[Outcome | None, ...]] = {
    ("cap_net_dns", "net_dns"): ("open", "closed", "partial", "no-control", "diverted", "untold"),
    ("cap_fs_write_temp", "tmp_one"): ("open", "closed", "closed", "closed", "closed", "closed"),
    ("cap_fs_write_temp", "tmp_two"): ("open", "open", "untold", "no-control", None, "diverted"),
    ("cap_proc_exec_toolchain_outside_workspace", "toolchain"): (
        None,
        "open",
        "open",
        "open",
        "open",
        "open",
    ),
}


def all_lines() -> list[bytes]:
    cells = [
        (outcome, mode, capability, probe)
        for (capability, probe), outcomes_of_probe in CELLS.items()
        for mode, outcome in zip(MODES, outcomes_of_probe, strict=True)
        if outcome is not None
    ]
    return [*mode_lines(cells)]


def show(*items: bytes, **options: Any) -> str:
    out, _ = run_transformer(OutcomeText(DESCRIPTOR, **options), [lines(*items)])
    return b"\n".join(out).decode()


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_the_samples_come_to_what_they_are_called(outcome: Outcome) -> None:
    assert outcome_of(decode_mode_boundary(line(mode_record(outcome)))) == outcome


def test_golden_table() -> None:
    """STREAM_UPDATE_GOLDENS=1 writes it anew: look at the difference before you commit it."""
    items = [*all_lines(), line(record()), b"{", b'{"schema":"other"}']
    text = show(*items) + "\n"
    path = DATA / "outcomes" / "table.txt"
    if os.environ.get("STREAM_UPDATE_GOLDENS"):
        path.write_text(text)
    assert path.read_text() == text


def test_every_outcome_has_a_word_of_its_own() -> None:
    assert set(LOUDEST) == {*OUTCOMES, "not-measured"}
    cells = [(outcome, f"mode-{outcome}", "cap_x", "x") for outcome in OUTCOMES]
    text = show(*mode_lines(cells), *mode_lines([("open", "other", "cap_y", "y")]), width=200)
    (row,) = [one for one in text.splitlines() if one.startswith("cap_x")]
    words = row.split()[1:]
    assert len(set(words)) == len(words) == len(LOUDEST)


@pytest.mark.parametrize("some", [*permutations(LOUDEST, 2)])
def test_the_loudest_decides(some: tuple[Verdict, Verdict]) -> None:
    tally: Tally = Tally(some)
    assert loudest(tally) == min(some, key=LOUDEST.index)
    assert loudest(Tally()) == "not-measured"


def test_what_is_unknown_never_looks_closed() -> None:
    unknown = set(LOUDEST) - {"open", "partial", "diverted", "closed"}
    assert max(map(LOUDEST.index, unknown)) < min(map(LOUDEST.index, ("diverted", "closed")))


def test_a_record_without_an_outside_view_counts_as_it_reports() -> None:
    for status, outcome in (
        ("success", "open"),
        ("partial", "partial"),
        ("denied", "closed"),
        ("error", "untold"),
    ):
        transformer = OutcomeText(DESCRIPTOR)
        item = line(record(result={"observed_result": status}))
        run_transformer(transformer, [lines(item)])
        (row,) = transformer.table.capabilities
        assert transformer.table.tally(row, "baseline") == {outcome: 1}


def test_repeated_cells_are_counted() -> None:
    cells = [
        ("closed", "m", "cap_x", "x"),
        ("open", "m", "cap_x", "x"),
        ("open", "m", "cap_x", "x"),
    ]
    assert "cap_x open 2\n" in show(*mode_lines(cells))  # type: ignore[arg-type]


def test_no_line_is_too_wide_and_no_mode_is_lost() -> None:
    items = all_lines()
    for width in (WIDTH, 60, 44):
        text = show(*items, width=width)
        table = text.partition("\nopen ")[0]
        assert max(map(len, table.splitlines())) <= width
        for mode in MODES:
            assert text.count(f" {mode} |") == 1
    # Six modes in one block of 80 columns.
    assert show(*items).count("baseline |") == 1
    assert "\n\n" not in show(*items).partition("\nopen ")[0].rstrip()


def test_nothing_to_show() -> None:
    assert show() == "0 records of 0 probes in 0 modes"
    assert show(b"{") == "0 records of 0 probes in 0 modes; 1 bad line"


def test_the_control_comes_first() -> None:
    table = OutcomeTable()
    for mode in ("z", "baseline", "a"):
        table.add(decode_mode_boundary(line(mode_record(mode=mode))))
    assert table.modes == ["baseline", "z", "a"]


def test_memory_does_not_grow_with_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "MOST_CELLS", 2)
    cells: list[tuple[Outcome, str, str, str]] = [("open", "m", "cap_x", str(n)) for n in range(5)]
    text = show(*mode_lines([*cells, cells[0]]))
    assert "3 records of 2 probes in 1 mode; 3 records found no room" in text


@given(st.text(min_size=1), st.text(min_size=1))
def test_no_record_can_move_the_terminal(probe: str, capability: str) -> None:
    shown = show(*[line(mode_record("open", mode, probe, capability)) for mode in ("a", "b")])
    assert all(c == "\n" or c.isprintable() for c in shown)


def test_colours_add_nothing_but_colour() -> None:
    coloured = show(*all_lines(), colour=True)
    plain = show(*all_lines())
    for code in (31, 32, 33, 35, 36):
        assert f"\x1b[{code}m" in coloured
        coloured = coloured.replace(f"\x1b[{code}m", "")
    stripped = [one.rstrip() for one in coloured.replace("\x1b[0m", "").splitlines()]
    assert stripped == plain.splitlines()


POOL = [*all_lines()[:8], line(record()), b"{", b"", b'{"schema":"other"}']


@settings(max_examples=60)
@given(st.lists(st.sampled_from(POOL), max_size=12), st.lists(st.integers(0, 50), max_size=5))
def test_the_table_does_not_depend_on_batches(items: list[bytes], cuts: list[int]) -> None:
    whole, parts = OutcomeText(DESCRIPTOR), OutcomeText(DESCRIPTOR)
    assert run_transformer(whole, [lines(*items)]) == run_transformer(
        parts, cut_into_batches(lines(*items), cuts)
    )
