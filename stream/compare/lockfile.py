r"""The lockfile: the measured boundary of several modes as lines of text that can be reviewed.

    lock 1
    # comments
    mode  bwrap-ro  bubblewrap  "bubblewrap 0.8.0"  "Linux 6.12.0 x86_64"  5f2c…  0a1b2c3d
    closed      read-only    not-seen     succeeded   bwrap-ro  cap_fs_write_temp  tmp@1  4e5f6a7b
    end

Nothing in it depends on anything else in it: not the width of a column, and no digest of the whole.
So two branches that change different cells merge, and a change of one cell is a change of one line.
Each line ends in the CRC-32 of itself, which finds an edit by hand and says where it is; who means
to deceive can compute it as well, and has to get past the review of that line. Pure.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar, cast

from msgspec import Struct, field
from msgspec.structs import replace

from stream.boundary.measured import OUTCOMES, outcome_of, untold_reason
from stream.errors import InputError, shorten_text
from stream.records.boundary import UNKNOWN
from stream.records.control import DIGEST, MODE_NAME
from stream.records.lock import BoundaryLock, CellKey, CellState, LockCell, LockMode
from stream.records.modes import BASELINE, EFFECTS, ModeBoundary, Sandbox

T = TypeVar("T")
VERSION = 1
NONE = "-"
UNTOLD = frozenset(("no-control", "untold"))  #: the outcomes of a cell that was not measured
ERRNO_CLASSES = {
    "permission": "EACCES EPERM",
    "read-only": "EROFS",
    "unreachable": "ECONNREFUSED ENETUNREACH EHOSTUNREACH ETIMEDOUT ENETDOWN EHOSTDOWN ECONNRESET"
    " EADDRNOTAVAIL",
    "absent": "ENOENT ESRCH ENOTDIR ENODEV ENXIO",
    "unsupported": "ENOSYS EOPNOTSUPP ENOTSUP EAFNOSUPPORT EPROTONOSUPPORT ESOCKTNOSUPPORT",
}
_CLASS_OF = {name: word for word, names in ERRNO_CLASSES.items() for name in names.split()}
ERRNO_WORDS = (NONE, *ERRNO_CLASSES, "other")
EFFECT_WORDS = ("not-checked", "not-seen", "seen")
CONTROL_WORDS = ("is-control", "no-control", "succeeded")

_FIRST, _LAST = f"lock {VERSION}", "end"
_COMMENTS = (
    "# The measured boundary: what each probe comes to in each sandbox. `stream lock` writes it,",
    "# `stream lock --check` compares it with a new measurement. Each line ends in a checksum of",
    "# itself: do not edit it, and after a merge conflict measure again.",
    "# mode  NAME  SANDBOX  VERSION  KERNEL  USER  SETTINGS  CHECKSUM",
    "# OUTCOME   ERRNO        EFFECT       CONTROL     MODE  CAPABILITY  PROBE@VERSION  CHECKSUM",
)
_WIDTHS = (10, 11, 11, 10)
_CONFLICT = ("<<<<<<<", "|||||||", "=======", ">>>>>>>")
_PLAIN = re.compile(r"(?!-\Z)[A-Za-z0-9_.+:/~=-]+")
_WORD = re.compile(r'(?:"(?:[^"\\]|\\.)*"|[^\s"])+')
_PROBE = re.compile(r'("(?:[^"\\]|\\.)*"|[^@"]+)@("(?:[^"\\]|\\.)*"|[^@"]+)')
_FLAKY = re.compile(r"flaky\((.+)\)")
_RATE = re.compile(r"([a-z-]+):([1-9][0-9]{0,8})/([1-9][0-9]{0,8})")
_MODES, _CELLS = "0", "1"  #: modes stand above cells
_SHOWN = 60  #: characters of a word in a message
_REMEDY = "measure again with `stream lock`"


# --- what a lock is made of -------------------------------------------------------------------


class MeasuredBoundary(Struct):
    """The boundary that records came to, as it would be locked, and what the lock leaves out."""

    lock: BoundaryLock
    reasons: dict[CellKey, str]  #: why a cell was not measured
    broken: set[CellKey]  #: cells with a record that the harness wrote


class _Repeats(Struct):
    """What the records of one cell came to."""

    outcomes: Counter[str] = field(default_factory=Counter)
    errno: set[str] = field(default_factory=set)
    effect: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)
    control: set[str] = field(default_factory=set)
    versions: set[str] = field(default_factory=set)

    def state_of_cell(self, name: str) -> CellState:
        """Return what the cell came to. Raise InputError for records of two probes."""
        effects = ",".join(sorted(self.effect))
        return CellState(
            outcome=_outcome_word(self.outcomes),
            errno=",".join(sorted(self.errno)),
            effect="+".join((effects, *sorted(self.others))),
            control=",".join(sorted(self.control)),
            version=_only(
                # The harness does not know it.
                self.versions - {UNKNOWN} or self.versions,
                f"{name}: records of two versions of the probe",
            ),
        )


class _ModeRecords(Struct):
    """What the records of one mode say about it."""

    sandboxes: set[Sandbox] = field(default_factory=set)
    kernels: set[str] = field(default_factory=set)
    #: as the harness sees it, which a sandbox with a kernel of its own does not
    outer_kernels: set[str] = field(default_factory=set)
    are_root: set[bool] = field(default_factory=set)  #: the users of the probes

    def head_of_mode(self, name: str) -> LockMode:
        """Return the mode's line. Raise InputError for records that were not taken together."""
        sandboxes = f"{name}: records of two sandboxes, or of two settings or versions of one"
        sandbox = _only(self.sandboxes, sandboxes)
        kernels = self.kernels or self.outer_kernels
        kernel = _only(kernels, f"{name}: records of two kernels")
        is_root = _only(self.are_root, f"{name}: records of root and of an ordinary user")
        return LockMode(
            name,
            sandbox.name,
            sandbox.version,
            kernel,
            "root" if is_root else "ordinary",
            sandbox.settings_sha256,
        )


def measured_boundary(records: Iterable[ModeBoundary]) -> MeasuredBoundary:
    """Put records together to a boundary, or raise InputError where they belong to two.

    The records of the baseline are left out: each cell has what it takes of them as its control.
    """
    modes: dict[str, _ModeRecords] = {}
    cells: dict[CellKey, _Repeats] = {}
    found = MeasuredBoundary(BoundaryLock((), ()), {}, set())
    for record in records:
        if record.run.mode == BASELINE:
            continue
        mode, probe, effect = record.run.mode, record.probe, record.effect
        key = (mode, probe.primary_capability_id, probe.id)
        cell = cells.setdefault(key, _Repeats())
        outcome = outcome_of(record)
        cell.outcomes[outcome] += 1
        cell.errno.add(errno_class(record.result.errno))
        cell.effect.add(effect.state)
        cell.others |= _known_effects(record) - {effect.expected}
        cell.control.add(record.control.state)
        cell.versions.add(probe.version)
        around = modes.setdefault(mode, _ModeRecords())
        around.sandboxes.add(record.sandbox)
        around.are_root.add(record.run.user == "root")
        failure = harness_reason(record)
        (around.outer_kernels if failure else around.kernels).add(record.stack.os)
        if failure:
            found.broken.add(key)
        if outcome in UNTOLD:
            found.reasons[key] = failure or untold_reason(record, outcome)
    found.lock = BoundaryLock(
        tuple(modes[name].head_of_mode(name) for name in sorted(modes)),
        tuple(LockCell(*key, cells[key].state_of_cell(key[2])) for key in sorted(cells)),
    )
    return found


def unmeasured_modes(found: MeasuredBoundary) -> dict[str, str]:
    """Find the modes of which no cell was measured, with the reason of the first."""
    measured = {cell.mode for cell in found.lock.cells if outcomes_of(cell.state) != {"untold"}}
    reasons: dict[str, str] = {}
    for cell in found.lock.cells:
        if cell.mode not in measured:
            reasons.setdefault(cell.mode, found.reasons.get(cell.key, "no reason is known"))
    return reasons


def errno_class(errno: str | None) -> str:
    """Return the class of an error: those of one class mean the same for a boundary."""
    return NONE if errno is None else _CLASS_OF.get(errno, "other")


def harness_reason(record: ModeBoundary) -> str:
    """Return why the harness wrote a record in the probe's place; empty if it did not."""
    harness = record.payload.raw.get("harness")
    if not isinstance(harness, dict):
        return ""
    why = record.result.message or str(harness.get("reason"))
    return f"the probe failed, and the harness wrote its record: {shorten_text(why, 200)}"


def _known_effects(record: ModeBoundary) -> set[str]:
    """Return the effects that were seen. Raise InputError for one that the lockfile cannot name."""
    seen = set(record.effect.seen)
    if unknown := sorted(seen - {*EFFECTS}):
        raise InputError(f"{record.probe.id} ({record.run.mode}): unknown effect {unknown[0]!r}")
    return seen


def _outcome_word(outcomes: Counter[str]) -> str:
    """Return the outcome of all runs, or the rates where they came to several."""
    if len(outcomes) == 1:
        return next(iter(outcomes))
    rates = (f"{name}:{outcomes[name]}/{outcomes.total()}" for name in OUTCOMES if outcomes[name])
    return f"flaky({','.join(rates)})"


def _only(values: Collection[T], problem: str) -> T:
    """Return the only value of a set. Raise InputError if there are several."""
    if len(values) > 1:
        raise InputError(f"{problem}: lock what one machine measured in one go")
    return next(iter(values))


# --- what a state says ------------------------------------------------------------------------


def outcomes_of(state: CellState) -> frozenset[str]:
    """Return every outcome that a cell has had."""
    flaky = _FLAKY.fullmatch(state.outcome)
    if flaky is None:
        return frozenset((state.outcome,))
    return frozenset(rate.partition(":")[0] for rate in flaky[1].split(","))


def other_effects_of(state: CellState) -> frozenset[str]:
    """Return the effects that were seen and that the probe does not declare."""
    return frozenset(state.effect.split("+")[1:])


# --- writing ----------------------------------------------------------------------------------


def lock_lines(lock: BoundaryLock) -> list[str]:
    """Return the lines of a lockfile."""
    modes, cells = map(_mode_line, lock.modes), map(_cell_line, lock.cells)
    return [_FIRST, *_COMMENTS[:-1], *modes, _COMMENTS[-1], *cells, _LAST]


def _mode_line(mode: LockMode) -> str:
    words = (mode.sandbox, mode.version, mode.kernel, mode.user, mode.settings_sha256)
    return _sealed("  ".join(("mode", _word(mode.name), *map(_word, words))))


def _cell_line(cell: LockCell) -> str:
    state = cell.state
    words = (state.outcome, state.errno, state.effect, state.control)
    columns = [f"{word:{width}}" for word, width in zip(words, _WIDTHS, strict=True)]
    probe = f"{_word(cell.probe)}@{_word(state.version)}"
    return _sealed("  ".join((*columns, _word(cell.mode), _word(cell.capability), probe)))


def _sealed(line: str) -> str:
    """Put the checksum of a line behind it."""
    return f"{line}  {_checksum(line)}"


def _checksum(line: str) -> str:
    return f"{zlib.crc32(line.encode()):08x}"


def _word(text: str | None) -> str:
    """Return a text as one word of ASCII, in quotes where it has anything special in it."""
    if text is None:
        return NONE
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


# --- reading ----------------------------------------------------------------------------------


class ParsedLock(Struct):
    """A lockfile that was read: what it says, where, and everything that is wrong with it."""

    lock: BoundaryLock
    lines: dict[CellKey, int]  #: the line of each cell, counted from 1
    faults: list[str]  #: each begins with its place


def parse_lock(data: bytes, name: str) -> ParsedLock:
    """Read a lockfile. What is wrong with it is in its faults, line by line."""
    lines = data.decode("ascii", "surrogateescape").split("\n")
    reader = _LockReader(name)
    markers = [number for number, line in enumerate(lines, 1) if line.startswith(_CONFLICT)]
    if markers:
        for number in markers:
            reader.report(number, f"conflict marker {lines[number - 1][:7]}: {_REMEDY}")
    elif fault := _head_fault(lines[0]):
        reader.report(1, fault)
    else:
        if lines.pop():
            reader.report(len(lines) + 1, f"cut off: the line has no end: {_REMEDY}")
        elif lines[-1] != _LAST:
            reader.report(len(lines), f"cut off: the last line is not `{_LAST}`: {_REMEDY}")
        for number, line in enumerate(lines[1:], 2):
            if not line.startswith("#") and (line != _LAST or number < len(lines)):
                reader.read_line(number, line)
    lock = BoundaryLock(tuple(reader.modes.values()), tuple(reader.cells.values()))
    return ParsedLock(lock, reader.lines, reader.faults)


def part_of_lock(parsed: ParsedLock, is_compared: Callable[[LockCell], bool]) -> ParsedLock:
    """Return a lock with some of its cells, and with the modes of these."""
    cells = tuple(cell for cell in parsed.lock.cells if is_compared(cell))
    names = {cell.mode for cell in cells}
    modes = tuple(mode for mode in parsed.lock.modes if mode.name in names)
    return replace(parsed, lock=BoundaryLock(modes, cells))


def _head_fault(line: str) -> str:
    """Return what is wrong with the first line of a lockfile, or an empty string."""
    if line == _FIRST:
        return ""
    if line.endswith("\r"):
        return "its lines end in CR LF: `boundary.lock -text` in .gitattributes keeps Git from that"
    version = re.fullmatch(r"lock ([1-9][0-9]{0,8})", line)
    if version and int(version[1]) > VERSION:
        return f"{line}: made by a newer stream, and this one reads `{_FIRST}`: update stream"
    return f"not a lockfile: its first line is not `{_FIRST}`, but {_quoted(line)}"


class _LockReader:
    """Reads the lines of a lockfile, and reports each that `stream lock` did not write."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._places: dict[tuple[str, ...], int] = {}
        self._undescribed: set[str] = set()  #: modes that were reported
        self.modes: dict[str, LockMode] = {}
        self.cells: dict[CellKey, LockCell] = {}
        self.lines: dict[CellKey, int] = {}
        self.faults: list[str] = []

    def report(self, number: int, fault: str) -> None:
        """Report a fault of a line."""
        self.faults.append(f"{self._name}:{number}: {fault}")

    def read_line(self, number: int, line: str) -> None:
        """Read a line that is neither the first nor the last, nor a comment."""
        words = _WORD.findall(line)
        try:
            if words[:1] == ["mode"]:
                mode = _mode_of(words)
                self._place_line(number, line, _mode_line(mode), (_MODES, mode.name))
                self.modes[mode.name] = mode
            else:
                cell = _cell_of(words)
                self._place_line(number, line, _cell_line(cell), (_CELLS, *cell.key))
                if cell.mode not in {*self.modes, *self._undescribed}:
                    self._undescribed.add(cell.mode)
                    raise ValueError(f"mode: no line above describes {cell.mode}")
                self.cells[cell.key] = cell
                self.lines[cell.key] = number
        except ValueError as error:
            self.report(number, str(error))

    def _place_line(self, number: int, line: str, expected: str, key: tuple[str, ...]) -> None:
        """Raise ValueError for a line that `stream lock` would not write, or not in this place."""
        if line != expected:
            raise ValueError(f"edited by hand: its checksum is not that of its words: {_REMEDY}")
        if key in self._places:
            raise ValueError(f"doubled: line {self._places[key]} is about the same: {_REMEDY}")
        last = next(reversed(self._places), key)
        if key < last:
            raise ValueError(f"out of order: it belongs above line {self._places[last]}: {_REMEDY}")
        self._places[key] = number


def _mode_of(words: Sequence[str]) -> LockMode:
    """Return the mode of a line's words. Raise ValueError for a word that cannot be there."""
    _check_count(words, 8, "mode NAME SANDBOX VERSION KERNEL USER SETTINGS CHECKSUM")
    name, sandbox, version, kernel, user, settings = map(_text_of_word, words[1:7])
    if name is None or not re.match(MODE_NAME, name):
        raise ValueError(f"mode: {_quoted(words[1])} is no name of a mode")
    if kernel is None:
        raise ValueError("kernel: a mode has one")
    if settings is not None and not re.match(DIGEST, settings):
        raise ValueError(f"settings: {_quoted(words[6])} is no SHA-256")
    if user not in ("root", "ordinary"):
        raise ValueError(f"user: unknown word {_quoted(words[5])} (expected root|ordinary)")
    return LockMode(name, sandbox, version, kernel, cast("Any", user), settings)


def _cell_of(words: Sequence[str]) -> LockCell:
    """Return the cell of a line's words. Raise ValueError for a word that cannot be there."""
    columns = "OUTCOME ERRNO EFFECT CONTROL MODE CAPABILITY PROBE@VERSION CHECKSUM"
    _check_count(words, 8, columns)
    outcome, errno, effect, control = words[:4]
    _check_outcome(outcome)
    _check_words("errno", errno.split(","), ERRNO_WORDS)
    states, *others = effect.split("+")
    _check_words("effect", states.split(","), EFFECT_WORDS)
    _check_words("effect", others, EFFECTS)
    _check_words("control", control.split(","), CONTROL_WORDS)
    probe = _PROBE.fullmatch(words[6])
    if probe is None:
        raise ValueError(f"probe: expected ID@VERSION, got {_quoted(words[6])}")
    texts = [*map(_text_of_word, (words[4], words[5], *probe.groups()))]
    for column, text in zip(("mode", "capability", "probe", "version"), texts, strict=True):
        if text is None:
            raise ValueError(f"{column}: a cell has one")
    mode, capability, name, version = map(str, texts)
    return LockCell(mode, capability, name, CellState(outcome, errno, effect, control, version))


def _check_count(words: Sequence[str], count: int, columns: str) -> None:
    if len(words) != count:
        raise ValueError(f"expected {count} columns, got {len(words)}: {columns}")


def _check_words(column: str, words: Sequence[str], known: Sequence[str]) -> None:
    """Raise ValueError for words that a column does not have, or not in this order."""
    for word in words:
        if word not in known:
            raise ValueError(
                f"{column}: unknown word {_quoted(word)} (expected {', '.join(known)})"
            )
    if [*words] != sorted({*words}):
        raise ValueError(f"{column}: {_quoted(','.join(words))}: its words are not sorted")


def _check_outcome(word: str) -> None:
    """Raise ValueError for a word that is neither an outcome nor rates of some."""
    flaky = _FLAKY.fullmatch(word)
    if flaky is None:
        if word not in OUTCOMES:
            known = f"{', '.join(OUTCOMES)} or flaky(…)"
            raise ValueError(f"outcome: unknown word {_quoted(word)} (expected {known})")
        return
    rates = [_RATE.fullmatch(rate) for rate in flaky[1].split(",")]
    parts = [rate.groups() for rate in rates if rate]
    names = [name for name, _, _ in parts]
    totals = {int(total) for _, _, total in parts}
    is_whole = len(parts) == len(rates) > 1 and names == [n for n in OUTCOMES if n in names]
    if not is_whole or totals != {sum(int(count) for _, count, _ in parts)}:
        raise ValueError(f"outcome: {_quoted(word)}: expected rates such as closed:3/5 of a whole")


def _text_of_word(word: str) -> str | None:
    """Return the text of a word. Raise ValueError for one that stands for none."""
    if word == NONE:
        return None
    try:
        text = json.loads(word) if word.startswith('"') else word
        str(text).encode()
    except ValueError:
        text = None
    if not isinstance(text, str) or _word(text) != word:
        raise ValueError(f"not a word as `stream lock` writes it: {_quoted(word)}")
    return text


def _quoted(word: str) -> str:
    return f'"{shorten_text(word, _SHOWN)}"'
