"""The rules of `stream verify`, by class, and the report of what breaks them.

The events of a run must keep the rules of `stream check` as well: those are reported with
`contract.check.` before them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from msgspec import UNSET, Struct, field

from stream.archive.chain import Tally
from stream.archive.manifest import is_recorded
from stream.archive.reader import Limits
from stream.archive.tar import BrokenArchive
from stream.codec import contract_of, repeated_key
from stream.errors import printable
from stream.records.control import Fault, Finding

RULES = {
    "integrity.gzip": "The gzip data is whole, and its digest, checksum and length are right.",
    "integrity.header": "Every header of an entry can be read.",
    "integrity.truncated": "The archive goes on to its end.",
    "integrity.digest": "Every file has the digest that the manifest lists.",
    "integrity.length": "Every file has the length that the manifest lists.",
    "integrity.missing": "Every file that is listed is there, and the contract's own files are.",
    "integrity.extra": "Every file that is there is listed.",
    "integrity.duplicate": "No file is there twice.",
    "integrity.order": "The manifest comes first, then the files in their order.",
    "integrity.chain": "Every link of the chain is what its layer begins with.",
    "integrity.unlinked": "The chain reaches to the end of every layer.",
    "integrity.torn": "The last line of a layer is whole.",
    "integrity.incomplete": "The run was recorded to its end.",
    "contract.manifest": "The manifest is one; of an archive of ours, in the one form that it has.",
    "contract.document": "Every JSON artifact keeps its schema.",
    "contract.line": "Every line of every layer keeps its schema.",
    "contract.duplicate_key": "No key stands twice in an object.",
    "contract.run_id": "Everything is of the same run.",
    "contract.seq": "The lines of a layer are numbered without a gap.",
    "contract.kernel_event": "The fields of a kernel event agree with each other.",
    "contract.detail": "Every detail belongs to a line of the kernel layer, and agrees with it.",
    "contract.marker": "Every marker stands at an existing place, for an event that was reported.",
    "contract.sdk_event": "Only events of tool calls name a tool or its call.",
    "contract.runner_event": "A run starts once, then finishes once, in one way.",
    "contract.frame": "The start and the end of the run are recorded.",
    "contract.surface": "The capability surface is what the layers imply.",
    "contract.health": "The health is what the capture implies.",
    "contract.age": "The health states the network coverage, as the contract now demands.",
    "contract.correlation": "The bindings are what the windows imply.",
    "contract.unbound": "A correlation that is called clean has bound something.",
    "contract.companion": "The companion is what the layers imply.",
    "contract.books": "The counters of the feed account for every event, once.",
    "contract.evidence": "The run has kernel evidence.",
    "contract.agent": "The agent is the one that the run's profile asks for.",
    "contract.record": "Every other record keeps its contract.",
    "contract.artifacts": "The archive holds the files that the events of the run name.",
    "contract.losses": "The recorder reports no losses.",
    "contract.accord": "The documents of a run agree.",
    "contract.listed": "Every file that the run itself lists is there as it is listed.",
    "limit.archive": "The file is not too large.",
    "limit.decoded": "What it decodes to is not too large.",
    "limit.ratio": "It does not decode to too many times its size.",
    "limit.entries": "There are not too many files.",
    "limit.path": "No name is too long.",
    "limit.lines": "There are not too many lines.",
    "limit.line": "No line is too long.",
    "limit.document": "No JSON artifact is too large.",
    "limit.depth": "Nothing is nested too deeply.",
    "security.gzip_header": "The gzip header can be read.",
    "security.hidden_bytes": "There is no byte that no reader shows.",
    "security.renaming": "No header gives a file another name.",
    "security.header": "No header of an archive of ours says anything but a name and a length.",
    "security.name": "Every name is a plain one.",
    "security.absolute": "No name is absolute.",
    "security.traversal": "No name leads out of the folder.",
    "security.conflict": "No name is that of a file and of a folder, or of two files but for case.",
    "security.place": "Every file is one that a recorder writes.",
    "security.link": "There is no link.",
    "security.device": "There is no device.",
    "security.fifo": "There is no fifo.",
    "security.type": "There are only regular files.",
    "packing.gzip": "The archive was compressed as it is here: no name, no time.",
    "packing.tar": "Its entries were packed as they are here: no times, no owners, no folders.",
    "packing.manifest": "Its manifest was written as it is here: sorted, compact.",
}
#: what leaves the answer a yes
WARNINGS = {
    *("contract.age", "contract.artifacts", "contract.evidence", "contract.frame"),
    *("contract.losses", "contract.unbound", "integrity.unlinked"),
    *("packing.gzip", "packing.tar", "packing.manifest"),
}

MOST = 20  #: findings of one rule in one file: the others are counted
MOST_OF_RULE = 200  #: and in all files together
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))
_LONGEST = 500  #: characters of a message: it quotes what is wrong


class VerifyReport(Struct):
    """Holds what is known of an archive or a run while it is read, and what was found wrong."""

    target: str  #: of the archive or the folder
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
        """Tell whether a recorder wrote the files; lines of a stream keep what form they had."""
        return self.is_folder or is_recorded(self.names)

    def report_fault(
        self, rule: str, message: str, name: str = "", line: int = 0, path: str = ""
    ) -> None:
        """Report that an archive or run folder breaks a rule of `stream verify`."""
        assert rule in RULES, rule
        found = Finding(
            rule=rule,
            severity="warning" if rule in WARNINGS else "error",
            message=printable(message[:_LONGEST]),
            source=self.source_name_of(name),
            line=line or UNSET,
            path=path or UNSET,
        )
        self.add_finding(found, name)

    def add_faults(self, faults: Iterable[Fault], name: str = "", line: int = 0) -> None:
        """Report faults that name their rules."""
        for fault in faults:
            self.report_fault(fault.rule, fault.reason, name, line, fault.path)

    def add_form_faults(
        self, data: bytes, rule: str, name: str, line: int = 0, *, is_ours: bool | None = None
    ) -> None:
        """Report what is wrong with a record that is not written as the recorder writes it.

        `is_ours`: the recorder did write it; where that is not given, as this report has it.
        """
        if self.is_recorded if is_ours is None else is_ours:
            self.report_fault(rule, "it is not written as the recorder writes it", name, line)
        if contract_of(data) is None:  # a decoder takes a record without its schema
            self.report_fault(rule, "it names no schema", name, line, "$.schema")
        if repeated := repeated_key(data):
            self.add_faults([repeated._replace(rule="contract.duplicate_key")], name, line)

    def is_too_deep(self, data: bytes, name: str, line: int = 0) -> bool:
        """Tell whether a record is nested too deeply, which is reported."""
        if not _is_nested_deeper(data, self.limits.depth):
            return False
        self.report_fault("limit.depth", f"nested deeper than {self.limits.depth}", name, line)
        return True

    def add_finding(self, finding: Finding, name: str) -> None:
        """Add a finding about a file, unless there are too many of its kind: these are counted."""
        self.total += 1
        self.errors += finding.severity == "error"
        self._of_rule[finding.rule] += 1
        if self._of_rule[finding.rule] > MOST_OF_RULE:
            return
        self._of_file[finding.rule, name] += 1
        if self._of_file[finding.rule, name] <= MOST:
            self.findings.append(finding)

    def source_name_of(self, name: str) -> str:
        """Name a file of the archive or the folder as findings do."""
        return printable(f"{self.target}/{name}" if name else self.target)

    def check_run_id(self, run_id: str, path: str = "$.run_id") -> list[Fault]:
        """Compare a run id with the first one that was read, which all others must equal."""
        if self.run_id is None:
            self.run_id = run_id
        if run_id == self.run_id:
            return []
        return [Fault(f"{run_id!r}, but the run is {self.run_id!r}", path, "contract.run_id")]

    def count_lines(self, count: int) -> None:
        """Count lines. Raise BrokenArchive where there are too many."""
        self.lines += count
        if self.lines > self.limits.lines:
            raise BrokenArchive("limit.lines", f"more than {self.limits.lines} lines")


def _is_nested_deeper(data: bytes, limit: int) -> bool:
    """Tell whether brackets of JSON text, outside of strings, nest deeper than the limit."""
    if data.count(b"{") + data.count(b"[") <= limit:
        return False
    depth = 0
    for byte in _STRINGS.sub(b"", data).translate(None, _NO_BRACKETS):
        if byte in b"{[":
            depth += 1
            if depth > limit:
                return True
        else:
            depth -= 1
    return False
