"""What `stream verify` holds an archive or a run to: one table of rules by class.

The events of a run are held to the rules of `stream check` as well; those stand here with
`contract.check.` before them.

What is known of an archive or a run while it is read, and what was found wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import UNSET, Struct, field

from stream.archive.chain import Tally
from stream.archive.manifest import is_recorded
from stream.archive.reader import Limits
from stream.archive.tar import BrokenArchive
from stream.errors import visible
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
    "contract.kernel_event": "What is said twice about a kernel event is the same.",
    "contract.detail": "Every detail is of a line of the kernel layer, and says the same of it.",
    "contract.marker": "Every marker stands at a place that there is, and for what was said.",
    "contract.sdk_event": "Only events of tool calls name a tool or its call.",
    "contract.runner_event": "A run starts once, and then finishes once, and how is said once.",
    "contract.frame": "The start and the end of the run are recorded.",
    "contract.surface": "The capability surface is what the layers imply.",
    "contract.health": "The health is what the capture implies.",
    "contract.age": "The health says what was seen of the network, as it has to by now.",
    "contract.correlation": "The bindings are what the windows imply.",
    "contract.unbound": "A correlation that is called clean has bound something.",
    "contract.companion": "The companion is what the layers imply.",
    "contract.books": "The feed's books account for every event, once.",
    "contract.evidence": "The run has kernel evidence.",
    "contract.agent": "The agent is the one that the run's profile asks for.",
    "contract.record": "Every record beside the layers keeps its contract.",
    "contract.artifacts": "What the events of the run name is in the archive.",
    "contract.losses": "The recorder says of nothing that it lost it.",
    "contract.accord": "What two documents of a run say of the same thing is the same.",
    "contract.listed": "What the run itself lists is there as it is listed.",
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
_LONGEST = 500  #: characters of a message: it quotes what it judges


class VerifyReport(Struct):
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

    def add_faults(self, faults: Iterable[Fault], name: str = "", line: int = 0) -> None:
        """Report faults that name their rules."""
        for fault in faults:
            self.find(fault.rule, fault.reason, name, line, fault.path)

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

    def check_run_id(self, run_id: str, path: str = "$.run_id") -> list[Fault]:
        """Compare a run id with the first one that was read, which all others must equal."""
        if self.run_id is None:
            self.run_id = run_id
        if run_id == self.run_id:
            return []
        return [Fault(f"{run_id!r}, but the run is {self.run_id!r}", path, "contract.run_id")]

    def take_lines(self, count: int) -> None:
        """Raises BrokenArchive where there are too many."""
        self.lines += count
        if self.lines > self.limits.lines:
            raise BrokenArchive("limit.lines", f"more than {self.limits.lines} lines")
