"""What is known of an archive or a run while it is read, and what was found wrong."""

from __future__ import annotations

from collections import Counter

from msgspec import UNSET, Struct, field

from stream.archive.chain import Tally
from stream.archive.header import BrokenArchive, Fault
from stream.archive.limits import Limits
from stream.archive.places import is_recorded
from stream.archive.rules import RULES, WARNINGS
from stream.errors import visible
from stream.records.control import Finding

MOST = 20  #: findings of one rule in one file: the others are counted
MOST_OF_RULE = 200  #: and in all files together
_LONGEST = 500  #: characters of a message: it quotes what it judges


class Book(Struct):
    place: str  #: of the archive or the folder
    limits: Limits
    is_folder: bool
    run_id: str | None = None
    names: set[str] = field(default_factory=set)  #: of all files, before any of them is read
    tallies: dict[str, Tally] = field(default_factory=dict)  #: of those that were read
    lines: int = 0
    findings: list[Finding] = field(default_factory=list)
    total: int = 0  #: of the findings, those that are only counted as well
    errors: int = 0  #: findings that make the answer no
    #: Layers whose last line has no end: its number, and how many bytes there are of it. What
    #: that means depends on how the run ended.
    torn: dict[str, tuple[int, int]] = field(default_factory=dict)
    _of_rule: Counter[str] = field(default_factory=Counter)
    _of_file: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def is_recorded(self) -> bool:
        """And put together of no stream, whose lines keep whatever form they had."""
        return self.is_folder or is_recorded(self.names)

    def find(self, rule: str, message: str, name: str = "", line: int = 0, path: str = "") -> None:
        """A rule of this package."""
        assert rule in RULES, rule
        severity = "warning" if rule in WARNINGS else "error"
        found = Finding(
            rule=rule,
            severity=severity,  # type: ignore[arg-type]
            message=visible(message[:_LONGEST]),
            source=self.source(name),
            line=line or UNSET,
            path=path or UNSET,
        )
        self.add(found, name)

    def faults(self, faults: list[Fault], name: str = "") -> None:
        for fault in faults:
            self.find(fault.rule, fault.message, name)

    def add(self, finding: Finding, name: str) -> None:
        self.total += 1
        self.errors += finding.severity == "error"
        self._of_rule[finding.rule] += 1
        if self._of_rule[finding.rule] > MOST_OF_RULE:
            return
        self._of_file[finding.rule, name] += 1
        if self._of_file[finding.rule, name] <= MOST:
            self.findings.append(finding)

    def source(self, name: str) -> str:
        return visible(f"{self.place}/{name}" if name else self.place)

    def hold_run_id(self, run_id: str, name: str, line: int = 0, path: str = "$.run_id") -> None:
        """The first that is read is the one that all others must agree with."""
        if self.run_id is None:
            self.run_id = run_id
        elif run_id != self.run_id:
            message = f"{run_id!r}, but the run is {self.run_id!r}"
            self.find("contract.run_id", message, name, line, path)

    def take_lines(self, count: int) -> None:
        """Raises BrokenArchive where there are too many."""
        self.lines += count
        if self.lines > self.limits.lines:
            raise BrokenArchive("limit.lines", f"more than {self.limits.lines} lines")
