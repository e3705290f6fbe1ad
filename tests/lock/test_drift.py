"""What opened, what closed, and what can no longer be measured."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.boundary.measured import OUTCOMES
from stream.boundary.outcomes import outcome_change
from stream.compare.drift import (
    DRIFTS,
    describe_drift,
    drift_of_lock,
    drift_summary,
    has_drift,
)
from stream.records.lock import BoundaryDrift
from tests.lock.records import locked, measure, mode_record

LISTS = (*DRIFTS, "changed", "untold")
KEEP = mode_record("kept")  #: so that there is always something to lock
#: by what is locked and what is measured, each one outcome or absent
EXPECTED = {
    "open": {"partial": "closed", "diverted": "closed", "closed": "closed"},
    "partial": {"open": "opened", "diverted": "closed", "closed": "closed"},
    "diverted": {"open": "opened", "partial": "opened", "closed": "closed"},
    "closed": {"open": "opened", "partial": "opened", "diverted": "opened"},
    "no-control": dict.fromkeys(("open", "partial", "diverted", "closed"), "measured"),
    "untold": dict.fromkeys(("open", "partial", "diverted", "closed"), "measured"),
    "absent": dict.fromkeys(("open", "partial", "diverted", "closed"), "measured"),
}
NOT_MEASURED = ("no-control", "untold", "absent")


def compare(old: list[dict[str, Any]], new: list[dict[str, Any]], **how: Any) -> BoundaryDrift:
    return drift_of_lock(locked(*old), measure(*new), "boundary.lock", **how)


def repeated(*outcomes: str, **how: Any) -> list[dict[str, Any]]:
    return [mode_record("cell", one, **how) for one in outcomes if one != "absent"]


def change_of(drift: BoundaryDrift) -> str:
    """The list that the one cell besides the kept one is in."""
    found = [change for change in LISTS if getattr(drift, change)]
    assert len(found) + drift.unchanged - 1 == 1
    return found[0] if found else "unchanged"


@pytest.mark.parametrize(("old", "new"), [*product([*OUTCOMES, "absent"], repeat=2)])
def test_each_pair_of_outcomes(old: str, new: str) -> None:
    if old == new == "absent":
        return
    drift = compare([KEEP, *repeated(old)], [KEEP, *repeated(new)])
    if old in NOT_MEASURED and new in NOT_MEASURED:
        expected = "untold"
    elif new in NOT_MEASURED:
        expected = "unmeasured"
    else:
        expected = EXPECTED[old].get(new, "unchanged")
    assert change_of(drift) == expected
    assert has_drift(drift) == (expected in DRIFTS)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        # an outcome that was among the rates is no drift, however often it comes
        ("open closed", "open", "unchanged"),
        ("open closed", "closed", "unchanged"),
        ("open closed", "closed closed closed open", "unchanged"),
        ("closed untold", "closed", "unchanged"),
        ("closed untold", "untold", "unchanged"),
        # one that was not is
        ("closed", "closed open", "opened"),
        ("closed diverted", "closed partial", "opened"),
        ("open", "open closed", "closed"),
        ("open closed", "partial", "closed"),
        ("open closed", "open closed diverted", "closed"),
        ("closed", "closed untold", "unmeasured"),
        ("closed open", "no-control", "unmeasured"),
        ("closed untold", "untold open", "opened"),
        ("closed", "absent", "unmeasured"),
        ("closed open", "absent", "unmeasured"),
        ("untold no-control", "absent", "untold"),
        ("untold", "untold no-control", "untold"),
        ("untold", "untold closed", "measured"),
        ("untold no-control", "closed open", "measured"),
        ("absent", "closed untold", "measured"),
        ("absent", "untold no-control", "untold"),
    ],
)
def test_a_cell_that_flaps_drifts_only_by_an_outcome_that_it_never_had(
    old: str, new: str, expected: str
) -> None:
    sides = ([KEEP, *repeated(*side.split())] for side in (old, new))
    assert change_of(compare(*sides)) == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"errno": "EACCES"}, {"errno": "EPERM"}, "unchanged"),
        ({"errno": "EACCES"}, {"errno": "EROFS"}, "changed"),
        ({"version": "1"}, {"version": "2"}, "unchanged"),
        ({}, {"seen": ("arrive:dns",)}, "opened"),
        ({"seen": ("arrive:dns",)}, {}, "changed"),
        ({"seen": ("arrive:dns",)}, {"seen": ("arrive:udp",)}, "opened"),
        ({"outcome": "open"}, {"seen": ("arrive:dns",)}, "opened"),
        ({"outcome": "untold"}, {"outcome": "untold", "seen": ("arrive:dns",)}, "opened"),
        ({"outcome": "open"}, {"outcome": "open", "control": "no-control"}, "changed"),
    ],
)
def test_the_same_outcome_for_another_reason(
    old: dict[str, Any], new: dict[str, Any], expected: str
) -> None:
    """It is reported. An effect that nobody locked is more than that: something got out."""
    sides = ([KEEP, mode_record("cell", **side)] for side in (old, new))
    drift = compare(*sides)
    assert change_of(drift) == expected
    assert has_drift(drift) == (expected == "opened")


def test_what_is_around_the_cells() -> None:
    old = [KEEP, mode_record("x", mode="codex"), mode_record("y", mode="srt")]
    sandbox = {"version": "bubblewrap 0.9.0", "settings_sha256": "aa" * 32}
    around: dict[str, Any] = {"kernel": "Linux 6.13.0 x86_64", "sandbox": sandbox}
    new = [mode_record("kept", version="2", **around), mode_record("z", mode="landlock")]
    drift = compare(old, new, absent={"codex": "codex is not on PATH"})
    assert drift.notes == [
        "codex: not measured: codex is not on PATH",
        "srt: not measured: there is no record of its mode",
        "bwrap-ro: version of the sandbox: locked bubblewrap 0.8.0, now bubblewrap 0.9.0",
        "bwrap-ro: kernel: locked Linux 6.12.0 x86_64, now Linux 6.13.0 x86_64",
        f"bwrap-ro: digest of the settings: locked {'5f' * 32}, now {'aa' * 32}",
        "landlock: the mode is not in the lockfile",
        "kept: version of the probe: locked 1, now 2",
    ]
    assert [(cell.mode, cell.reason) for cell in drift.unmeasured] == [
        ("codex", "codex is not on PATH"),
        ("srt", "there is no record of its mode"),
    ]
    assert [(cell.mode, cell.line) for cell in drift.measured] == [("landlock", None)]
    assert drift.unchanged == 1


def test_notes_alone_are_no_drift() -> None:
    drift = compare([KEEP], [mode_record("kept", kernel="Linux 6.13.0 x86_64")])
    assert drift.notes
    assert not has_drift(drift)
    unknown = mode_record("kept", "untold", version="unknown", harness="timed-out")
    assert compare([mode_record("kept", "untold")], [unknown]).notes == []


def test_a_probe_that_broke_is_marked() -> None:
    broken = mode_record("cell", "untold", harness="timed-out", message="it took too long")
    drift = compare([KEEP, *repeated("closed")], [KEEP, broken])
    (cell,) = drift.unmeasured
    assert cell.is_broken
    assert describe_drift("unmeasured", cell) == (
        "locked as closed (permission); not measured now: the probe failed, and the harness wrote"
        " its record: it took too long"
    )


FLAPS = (
    "locked as closed (permission); now flaky(closed:1/2,untold:1/2) (permission): the probe could"
    " not try: it does not say why"
)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("closed", "open", "locked as closed (permission); now open"),
        ("open", "diverted", "locked as open; now diverted"),
        ("absent", "open", "not in the lockfile; now open"),
        ("open", "absent", "locked as open; not measured now: there is no record of it"),
        ("closed", "closed untold", FLAPS),
    ],
)
def test_the_sentence_of_a_cell(old: str, new: str, sentence: str) -> None:
    sides = ([KEEP, *repeated(*side.split())] for side in (old, new))
    drift = compare(*sides)
    change = change_of(drift)
    (cell,) = getattr(drift, change)
    assert describe_drift(change, cell) == sentence  # type: ignore[arg-type]


def test_the_sentence_names_what_differs() -> None:
    leak = [mode_record("cell", seen=("arrive:dns",), control="succeeded")]
    (cell,) = compare(repeated("closed"), leak).opened
    assert describe_drift("opened", cell) == (
        "locked as closed (permission); now closed (permission, also arrive:dns)"
    )
    other = [mode_record("cell", "open", control="no-control")]
    (cell,) = compare(repeated("open"), other).changed
    assert describe_drift("changed", cell) == (
        "locked as open (control succeeded); now open (control no-control)"
    )


def test_the_summary() -> None:
    same = compare([KEEP, *repeated("untold")], [KEEP, *repeated("untold")])
    assert drift_summary(same) == ("boundary.lock: no difference; 1 cell as locked, 1 not measured")
    opened = compare([KEEP, *repeated("closed")], [KEEP, *repeated("open")])
    assert drift_summary(opened) == "boundary.lock: 1 opened; 1 cell as locked"


# --- laws -------------------------------------------------------------------------------------

probes = st.sampled_from("abcd")
steady_matrices = st.dictionaries(probes, st.sampled_from(OUTCOMES))
matrices = st.lists(st.tuples(probes, st.sampled_from(OUTCOMES), st.sampled_from(["m", "n"])))


def records_of(cells: list[tuple[str, str, str]]) -> list[dict[str, Any]]:
    return [KEEP, *(mode_record(probe, outcome, mode=mode) for probe, outcome, mode in cells)]


@given(matrices)
def test_a_measurement_is_as_it_was_locked(cells: list[tuple[str, str, str]]) -> None:
    drift = compare(records_of(cells), records_of(cells[::-1]))
    assert not has_drift(drift)
    assert (drift.changed, drift.notes) == ([], [])


@given(matrices, matrices)
def test_no_cell_is_lost(old: list[tuple[str, str, str]], new: list[tuple[str, str, str]]) -> None:
    drift = compare(records_of(old), records_of(new))
    listed = Counter((cell.mode, cell.probe) for change in LISTS for cell in getattr(drift, change))
    everything = {(mode, probe) for probe, _, mode in (*old, *new)} | {("bwrap-ro", "kept")}
    assert max(listed.values(), default=1) == 1
    assert len(listed) + drift.unchanged == len(everything)
    for change in LISTS:
        keys = [(cell.mode, cell.probe) for cell in getattr(drift, change)]
        assert keys == sorted(keys)


@given(
    st.dictionaries(probes, st.sampled_from(OUTCOMES)),
    st.dictionaries(probes, st.sampled_from(OUTCOMES)),
)
def test_the_other_way_round_is_the_reverse(old: dict[str, str], new: dict[str, str]) -> None:
    """Of cells that do not flap."""
    sides = [[(probe, outcome, "m") for probe, outcome in side.items()] for side in (old, new)]
    there, back = (compare(records_of(a), records_of(b)) for a, b in (sides, sides[::-1]))
    for change, reverse in (("opened", "closed"), ("measured", "unmeasured")):
        names = [cell.probe for cell in getattr(there, change)]
        assert names == [cell.probe for cell in getattr(back, reverse)]
    assert there.unchanged == back.unchanged


ranks = {"low": 0, "high": 1}
outcome_sets = st.sets(st.sampled_from(["low", "high", "x", "y"]))


@given(outcome_sets, outcome_sets)
def test_only_a_new_outcome_is_a_change(base: set[str], head: set[str]) -> None:
    change = outcome_change(base, head, ranks)
    if head <= base:
        assert change is None
    told = base & ranks.keys()
    if change in ("opened", "closed", "unmeasured"):
        assert told
    if change in ("opened", "closed", "measured"):
        assert (head - base) & ranks.keys()
    if "high" in head - base:
        assert change == ("opened" if told else "measured")
