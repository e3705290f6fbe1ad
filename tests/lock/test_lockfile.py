"""The lockfile: what is in it, that it is stable, and that each edit by hand is named by its
line."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.boundary.descriptors import MODE_SCHEMA
from stream.boundary.measured import OUTCOMES, outcome_of
from stream.codec import read_document
from stream.compare.lockfile import (
    CONTROL_WORDS,
    EFFECT_WORDS,
    ERRNO_CLASSES,
    ERRNO_WORDS,
    errno_class,
    lock_lines,
    measured_boundary,
    other_effects_of,
    outcomes_of,
    parse_lock,
)
from stream.errors import InputError
from stream.records.lock import BoundaryLock, CellState, LockCell, LockMode
from stream.records.modes import EFFECTS
from tests.lock.records import (
    baseline_record,
    decode,
    lock_text,
    locked,
    measure,
    mode_record,
    write_records,
)
from tests.transformers.samples import DATA

GOLDEN = DATA / "lock" / "boundary.lock"
RECORDS = (
    mode_record("fs_outside_workspace", "closed"),
    mode_record("fs_workspace_write", "open", capability="cap_fs_write_workspace_tree"),
    mode_record("fs_home_write", "diverted", errno="EROFS"),
    mode_record("net_dns", "closed", capability="cap_net", errno="ENETUNREACH", version="2"),
    mode_record("net_tcp", "closed", capability="cap_net", seen=("arrive:dns", "arrive:udp")),
    mode_record("proc_trace", "no-control"),
    mode_record("proc_race", "open"),
    mode_record("proc_race", "closed"),
    mode_record("proc_race", "open"),
    mode_record("a probe", "untold", mode="codex", harness="timed-out", version="unknown"),
    mode_record("fs_home_write", "partial", mode="codex", kernel="Linux 4.4.0 x86_64"),
    baseline_record(),
)
TEXT = lock_text(measure(*RECORDS))


# --- what is in it ----------------------------------------------------------------------------


def test_the_lockfile_is_the_golden_one() -> None:
    """STREAM_UPDATE_GOLDENS=1 writes it anew: a change of its bytes needs another version."""
    if os.environ.get("STREAM_UPDATE_GOLDENS"):
        GOLDEN.write_text(TEXT)
    assert GOLDEN.read_text() == TEXT


def test_the_records_of_these_tests_are_valid_and_come_to_what_they_should() -> None:
    schema = jsonschema_rs.Draft7Validator(read_document(MODE_SCHEMA))
    for outcome in OUTCOMES:
        value = mode_record(outcome=outcome)
        schema.validate(value)
        assert [outcome_of(record) for record in decode(value)] == [outcome]
    for value in RECORDS:
        schema.validate(value)


def test_a_hundred_orders_give_the_same_bytes() -> None:
    mixed = decode(*RECORDS)
    for seed in range(100):
        random.Random(seed).shuffle(mixed)
        assert lock_text(measured_boundary(mixed)) == TEXT


def test_what_changes_from_run_to_run_is_not_in_it() -> None:
    """Snippets, targets, commands, messages and how often a cell was repeated."""
    value = mode_record()
    other = {
        **value,
        "payload": {"stdout_snippet": "x", "stderr_snippet": "bash: 4711", "raw": {"pid": 7}},
        "operation": {**value["operation"], "target": "/var/tmp/other"},
        "result": {**value["result"], "message": "Permission denied", "raw_exit_code": 7},
        "run": {**value["run"], "command": "other", "workspace_root": "/other", "user": "me"},
        "corroboration": {"state": "corroborated", "closed_by": "landlock", "detail": "x"},
    }
    assert lock_text(measure(value)) == lock_text(measure(other, other, value))


@pytest.mark.parametrize(
    ("records", "outcome"),
    [
        (["closed"] * 3, "closed"),
        (["closed", "open", "closed", "closed", "open"], "flaky(open:2/5,closed:3/5)"),
        (["untold", "no-control"], "flaky(no-control:1/2,untold:1/2)"),
        ([*OUTCOMES], f"flaky({','.join(f'{one}:1/6' for one in OUTCOMES)})"),
    ],
)
def test_a_cell_that_flaps_is_locked_with_its_rates(records: list[str], outcome: str) -> None:
    found = measure(*(mode_record(outcome=one) for one in records))
    (cell,) = found.lock.cells
    assert cell.state.outcome == outcome
    assert outcomes_of(cell.state) == {*records}
    assert locked(*(mode_record(outcome=one) for one in records)).lock == found.lock


def test_errors_and_effects_of_repeated_runs_are_joined() -> None:
    found = measure(
        mode_record(errno="EROFS"),
        mode_record(errno="EPERM", seen=("arrive:udp",)),
        mode_record(errno="EACCES", seen=("arrive:dns",)),
    )
    (cell,) = found.lock.cells
    assert (cell.state.errno, cell.state.effect) == (
        "permission,read-only",
        "not-seen+arrive:dns+arrive:udp",
    )
    assert other_effects_of(cell.state) == {"arrive:dns", "arrive:udp"}


@pytest.mark.parametrize(
    ("errno", "word"),
    [
        (None, "-"),
        *((errno, word) for word, names in ERRNO_CLASSES.items() for errno in names.split()),
        ("EMFILE", "other"),
        ("", "other"),
    ],
)
def test_errors_of_one_class_are_one_word(errno: str | None, word: str) -> None:
    assert errno_class(errno) == word
    assert word in ERRNO_WORDS


def test_which_error_is_of_which_class() -> None:
    """Written out: the table must not be its own test."""
    expected = {
        "EACCES": "permission",
        "EPERM": "permission",
        "EROFS": "read-only",
        "ECONNREFUSED": "unreachable",
        "ENETUNREACH": "unreachable",
        "EHOSTUNREACH": "unreachable",
        "ETIMEDOUT": "unreachable",
        "ENOENT": "absent",
        "ESRCH": "absent",
        "ENOSYS": "unsupported",
        "EIO": "other",
    }
    assert {errno: errno_class(errno) for errno in expected} == expected


# --- what records cannot be locked ------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (
            [mode_record(), mode_record("other", kernel="Linux 6.13.0 x86_64")],
            "bwrap-ro: records of two kernels: lock what one machine measured",
        ),
        (
            [mode_record(), mode_record("other", sandbox={"version": "bubblewrap 0.9.0"})],
            "bwrap-ro: records of two sandboxes, or of two settings or versions of one",
        ),
        (
            [mode_record(), mode_record("other", sandbox={"settings_sha256": "aa" * 32})],
            "bwrap-ro: records of two sandboxes",
        ),
        (
            [mode_record(), mode_record(version="2")],
            "fs_outside_workspace: records of two versions of the probe",
        ),
        ([mode_record(seen=("arrive:pigeon",))], "unknown effect 'arrive:pigeon'"),
    ],
)
def test_records_that_do_not_belong_together(records: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        measure(*records)


def test_what_the_harness_writes_says_nothing_of_kernel_and_version() -> None:
    """It stands outside: the kernel that it sees is not that of a sandbox which has its own."""
    broken: dict[str, Any] = {
        "harness": "timed-out",
        "version": "unknown",
        "kernel": (outside := "Linux 6.12.0 x86_64"),
    }
    inside = mode_record(kernel="Linux 4.4.0 x86_64")
    found = measure(mode_record(outcome="untold", **broken), inside)
    assert [mode.kernel for mode in found.lock.modes] == ["Linux 4.4.0 x86_64"]
    assert [cell.state.version for cell in found.lock.cells] == ["1"]
    assert found.broken == {found.lock.cells[0].key}
    alone = measure(mode_record(outcome="untold", **broken))
    assert [mode.kernel for mode in alone.lock.modes] == [outside]
    assert [cell.state.version for cell in alone.lock.cells] == ["unknown"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (mode_record(outcome="no-control"), "without the sandbox it fails as well (EACCES)"),
        (
            mode_record(outcome="untold", message="no perl\n"),
            "the probe could not try: no perl\\n",
        ),
        (mode_record(outcome="untold"), "the probe could not try: it does not say why"),
        (
            mode_record(outcome="untold", harness="killed", message="by SIGSEGV"),
            "the probe failed, and the harness wrote its record: by SIGSEGV",
        ),
    ],
)
def test_why_a_cell_is_not_measured(value: dict[str, Any], reason: str) -> None:
    assert [*measure(value).reasons.values()] == [reason]
    assert measure(mode_record()).reasons == {}


# --- reading what was written -----------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=8)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)


def joined(words: tuple[str, ...]) -> st.SearchStrategy[str]:
    chosen = st.lists(st.sampled_from(words), min_size=1, max_size=3, unique=True)
    return chosen.map(lambda some: ",".join(sorted(some)))


@st.composite
def outcome_words(draw: st.DrawFn) -> str:
    chosen = draw(st.lists(st.sampled_from(OUTCOMES), min_size=1, unique=True))
    if len(chosen) == 1:
        return chosen[0]
    counts = {one: draw(st.integers(1, 99)) for one in sorted(chosen, key=OUTCOMES.index)}
    rates = (f"{one}:{count}/{sum(counts.values())}" for one, count in counts.items())
    return f"flaky({','.join(rates)})"


@st.composite
def states(draw: st.DrawFn) -> CellState:
    others = draw(st.lists(st.sampled_from(EFFECTS), max_size=2, unique=True))
    effect = "+".join((draw(joined(EFFECT_WORDS)), *sorted(others)))
    return CellState(
        draw(outcome_words()),
        draw(joined(ERRNO_WORDS)),
        effect,
        draw(joined(CONTROL_WORDS)),
        draw(texts),
    )


mode_names = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,3}\Z", fullmatch=True).filter(str.isascii)
users: st.SearchStrategy[Any] = st.sampled_from(["root", "ordinary"])
settings = st.none() | st.sampled_from(["0" * 64, "ab" * 32])


@st.composite
def locks(draw: st.DrawFn) -> BoundaryLock:
    modes = sorted(draw(st.lists(mode_names, min_size=1, max_size=3, unique=True)))
    nullable = st.none() | texts
    keys = st.tuples(st.sampled_from(modes), names, names)
    cells = sorted(draw(st.lists(keys, max_size=5, unique=True)))
    return BoundaryLock(
        tuple(
            LockMode(mode, draw(nullable), draw(nullable), draw(texts), draw(users), draw(settings))
            for mode in modes
        ),
        tuple(LockCell(*key, draw(states())) for key in cells),
    )


@given(locks())
def test_what_is_written_is_what_is_read(lock: BoundaryLock) -> None:
    lines = lock_lines(lock)
    data = "\n".join((*lines, "")).encode("ascii")
    parsed = parse_lock(data, "boundary.lock")
    assert parsed.faults == []
    assert parsed.lock == lock
    assert all(line.isprintable() for line in lines)
    for key, number in parsed.lines.items():
        cells = [cell for cell in lock.cells if cell.key == key]
        assert lines[number - 1] == lock_lines(BoundaryLock((), tuple(cells)))[-2]


def test_every_character_can_be_written() -> None:
    """None that a terminal or an editor would interpret, or hide, gets into the file."""
    name = "".join(map(chr, (*range(1, 0x250), 0x202E, 0x2028, 0xFEFF, 0x1F600)))
    found = measure(mode_record(name, version=name), mode_record("-"), mode_record('"'))
    text = lock_text(found)
    assert text.isascii()
    assert all(line.isprintable() for line in text.splitlines())
    parsed = parse_lock(text.encode(), "b")
    assert (parsed.lock, parsed.faults) == (found.lock, [])


LINES = TEXT.splitlines()
SEALED = [n for n, line in enumerate(LINES, 1) if line[0] != "#" and n not in (1, len(LINES))]


@given(
    st.sampled_from(SEALED),
    st.integers(0, 200),
    st.sampled_from(["", *'a0-: \t"\\@+,(é\x7f\r', "open", "  "]),
    st.booleans(),
)
def test_an_edit_is_named_by_its_line(number: int, place: int, text: str, is_instead: bool) -> None:
    before = LINES[number - 1]
    place %= len(before) + 1
    after = before[:place] + text + before[place + is_instead :]
    if after in (before, "") or after.startswith("#"):
        return
    edited = [*LINES[: number - 1], after, *LINES[number:], ""]
    faults = parse_lock("\n".join(edited).encode(), "boundary.lock").faults
    assert [fault for fault in faults if fault.startswith(f"boundary.lock:{number}: ")]


def edit(old: str, new: str) -> bytes:
    assert old in TEXT
    return TEXT.replace(old, new, 1).encode()


def line_of(text: str) -> int:
    return TEXT[: TEXT.index(text)].count("\n") + 1


def without_line(number: int) -> bytes:
    return "\n".join((*LINES[: number - 1], *LINES[number:], "")).encode()


NET, CODEX = line_of("net_dns@2"), line_of("mode  codex")
NO_WORD = "not a word as `stream lock` writes it"
HAND_EDITS = [
    ("diverted ", "opne     ", 'outcome: unknown word "opne" (expected open, '),
    ("diverted ", "open     ", "edited by hand: its checksum"),
    ("open:2/3", "open:1/3", 'outcome: "flaky(open:1/3,closed:1/3)": expected rates'),
    ("open:2/3,closed:1/3", "open:3/3", "expected rates such as closed:3/5"),
    ("open:2/3,closed:1/3", "closed:1/3,open:2/3", "expected rates such as closed:3/5"),
    ("open:2/3,closed:1/3", "open:2/3,open:1/3", "expected rates such as closed:3/5"),
    ("open:2/3,closed:1/3", "open:2/3,ajar:1/3", "expected rates such as closed:3/5"),
    ("open:2/3,closed:1/3", "open", "expected rates such as closed:3/5"),
    ("unreachable", "unreachabel", 'errno: unknown word "unreachabel" (expected -, permission'),
    ("-,permission", "permission,-", "its words are not sorted"),
    ("not-seen+arrive:dns", "not-sene+arrive:dns", 'effect: unknown word "not-sene"'),
    ("+arrive:dns", "+arrive:pigeon", 'effect: unknown word "arrive:pigeon"'),
    ("+arrive:dns+arrive:udp", "+arrive:udp+arrive:dns", "its words are not sorted"),
    ("+arrive:udp", "", "edited by hand"),
    ("no-control  bwrap", "control     bwrap", 'control: unknown word "control"'),
    ("net_dns@2", "net_dns", 'probe: expected ID@VERSION, got "net_dns"'),
    ("net_dns@2", "net_dns@-", "version: a cell has one"),
    ("net_dns@2", "net_dns@3", "edited by hand"),
    ('"a probe"', "a probe", "expected 8 columns, got 9: OUTCOME ERRNO"),
    ('"a probe"', '"a\\qprobe"', NO_WORD),
    ('"a probe"', '"\\ud800"', NO_WORD),
    ('"a probe"', '"aprobe"', NO_WORD),
    ("mode  codex", "mode  Codex", 'mode: "Codex" is no name of a mode'),
    ("mode  codex", "mode  codec", "edited by hand"),
    ("bubblewrap 0.8.0", "bubblewrap 0.9.0", "edited by hand"),
    ('"Linux 4.4.0 x86_64"', "-", "kernel: a mode has one"),
    ("5f5f5f5f5f", "5F5F5F5F5F", "is no SHA-256"),
    ("mode  codex", "\nmode  codex", "expected 8 columns, got 0"),
]


@pytest.mark.parametrize(("old", "new", "message"), HAND_EDITS)
def test_hand_edits(old: str, new: str, message: str) -> None:
    faults = parse_lock(edit(old, new), "boundary.lock").faults
    assert faults[0].startswith(f"boundary.lock:{line_of(old)}: ")
    assert message in faults[0]
    # Nothing but the edit is wrong; of a mode, the first of its cells as well.
    rest = ["no line above describes" in fault for fault in faults[1:]]
    assert rest == ([True] if LINES[line_of(old) - 1].startswith("mode") and len(rest) else [])


def test_each_edit_is_named() -> None:
    text = TEXT.replace("diverted ", "opne     ").replace("net_dns@2", "net_dns@3")
    faults = parse_lock(text.encode(), "boundary.lock").faults
    lines = sorted(int(fault.split(":")[1]) for fault in faults)
    assert lines == sorted([line_of("diverted "), NET])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", 'boundary.lock:1: not a lockfile: its first line is not `lock 1`, but ""'),
        (b"{}\n", 'not a lockfile: its first line is not `lock 1`, but "{}"'),
        (b"\x1f\x8b\x00\xff\n", "not a lockfile"),
        (b"lock 2\nwhatever\n", "boundary.lock:1: lock 2: made by a newer stream, and this one"),
        (b"lock 0\n", "not a lockfile"),
        (b"lock \n", "not a lockfile"),
        (b"lock 02\n", "not a lockfile"),
        (b"lock 99999999999999999999\n", "not a lockfile"),
        (b"lock 1", "boundary.lock:1: cut off: the line has no end"),
        (b"lock 1\n", "boundary.lock:1: cut off: the last line is not `end`"),
        (TEXT.encode()[:-1], f"boundary.lock:{len(LINES)}: cut off: the line has no end"),
        (without_line(len(LINES)), f"boundary.lock:{len(LINES) - 1}: cut off: the last line is"),
        (TEXT.encode() + b"end\n", f"boundary.lock:{len(LINES)}: expected 8 columns, got 1"),
        (TEXT.encode().replace(b"\n", b"\r\n"), "boundary.lock:1: its lines end in CR LF"),
    ],
)
def test_what_is_no_lockfile(data: bytes, message: str) -> None:
    faults = parse_lock(data, "boundary.lock").faults
    assert len(faults) == 1
    assert message in faults[0]


def test_places_of_lines() -> None:
    one, other = LINES[NET - 1], LINES[NET]
    doubled = edit(f"{one}\n", f"{one}\n{one}\n")
    assert parse_lock(doubled, "b").faults == [
        f"b:{NET + 1}: doubled: line {NET} is about the same: measure again with `stream lock`"
    ]
    swapped = edit(f"{one}\n{other}\n", f"{other}\n{one}\n")
    assert parse_lock(swapped, "b").faults == [
        f"b:{NET + 1}: out of order: it belongs above line {NET}: measure again with `stream lock`"
    ]
    head = LINES[CODEX - 1]
    below = edit(f"{head}\n", "").replace(f"\n{one}".encode(), f"\n{one}\n{head}".encode())
    assert "out of order" in parse_lock(below, "b").faults[0]
    assert "no line above describes codex" in parse_lock(without_line(CODEX), "b").faults[0]


def test_comments_are_read_over() -> None:
    """Their words may change without another version of the format; lines keep their numbers."""
    parsed = parse_lock(edit("lock 1\n", "lock 1\n# mine\n"), "b")
    assert parsed.faults == []
    assert parsed.lines[parsed.lock.cells[0].key] == line_of("fs_home_write@1") + 1


# --- merging ----------------------------------------------------------------------------------


def merge_lockfiles(folder: Path, *variants: tuple[dict[str, Any], ...]) -> bytes:
    """What git makes of three lockfiles: mine, the common one, theirs."""
    files = []
    for name, records in zip(("mine", "base", "theirs"), variants, strict=True):
        (folder / name).write_text(lock_text(measure(*records)))
        files.append(name)
    done = subprocess.run(["git", "merge-file", "-p", *files], cwd=folder, capture_output=True)
    assert done.returncode in (0, 1)
    return done.stdout


def test_branches_that_change_different_cells_merge(tmp_path: Path) -> None:
    probes = [mode_record(f"probe_{name}") for name in "abcdefgh"]
    mine = (mode_record("probe_a", "open"), *probes[1:], mode_record("probe_i"))
    theirs = (*probes[:4], mode_record("probe_e", "open"), *probes[5:])
    merged = merge_lockfiles(tmp_path, mine, tuple(probes), theirs)
    parsed = parse_lock(merged, "b")
    assert parsed.faults == []
    opened = [cell.probe for cell in parsed.lock.cells if cell.state.outcome == "open"]
    assert (opened, len(parsed.lock.cells)) == (["probe_a", "probe_e"], 9)


def test_a_conflict_is_named_by_its_markers(tmp_path: Path) -> None:
    variants = [(mode_record(outcome=outcome),) for outcome in ("open", "closed", "partial")]
    faults = parse_lock(merge_lockfiles(tmp_path, *variants), "b").faults
    assert [fault.partition(" marker ")[2][:7] for fault in faults] == ["<" * 7, "=" * 7, ">" * 7]
    assert all("conflict marker" in fault for fault in faults)


def test_a_whole_file_in_conflict() -> None:
    data = b"<<<<<<< HEAD\n" + TEXT.encode() + b"=======\n>>>>>>> other\n"
    assert "boundary.lock:1: conflict marker" in parse_lock(data, "boundary.lock").faults[0]


def test_the_records_can_be_written(tmp_path: Path) -> None:
    assert write_records(tmp_path / "r", *RECORDS).read_bytes().count(b"\n") == len(RECORDS)
