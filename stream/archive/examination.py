"""Each file of an archive or a run to its judge, and what only several files together show."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from stream.archive.accord import Run, disagreements, vouched_faults
from stream.archive.book import Book
from stream.archive.chain import Tally
from stream.archive.documents import DOCUMENTS, Documents
from stream.archive.events import VALIDATED, Carried, Events, Validated
from stream.archive.gathering import Gathering
from stream.archive.header import Fault
from stream.archive.laws import law_of
from stream.archive.layers import Judge, Layer
from stream.archive.links import Links, trusted
from stream.archive.places import has_evidence, has_place
from stream.evidence.claims import ABSENT_NOTE
from stream.pattern import find_boundaries
from stream.records.decision import CLAUDE_CODE
from stream.records.run import (
    ARTIFACTS,
    COMMANDS_FILE,
    DESCRIPTOR_FILE,
    EVENTS_FILE,
    MANIFEST_FILE,
    METADATA_FILE,
    SUMMARY_FILE,
    Manifest,
    RunMetadata,
    RunSummary,
)
from stream.records.runner import (
    CHAIN_FILE,
    CORRELATION_FILE,
    EVIDENCE_FILES,
    HEALTH_FILE,
    KERNEL_FILE,
    NOT_ASKED,
    RUNNER_FILE,
    SDK_FILE,
)


class Examination:
    def __init__(self, book: Book, boundary: str | None = None) -> None:
        self._boundary = boundary  #: a descriptor that was named
        self._carried: Carried | None = None
        self.documents = Documents(book)
        self.layers: dict[str, Layer] = {}
        self._book = book
        self.gathering = Gathering()
        self._links: Links | None = None
        self._events: Events | None = None
        self._validated: dict[str, Validated] = {}
        self._judge: Judge | None = None
        self._tally = Tally("")

    def begin(self, name: str) -> None:
        if not has_place(name):
            self._book.find("security.place", "no recorder writes such a file", name)
        self._judge = self._judge_of(name)
        self._tally = Tally(name)

    def feed(self, data: bytes) -> None:
        self._tally.feed(data)
        if self._judge:
            self._judge.feed(data)

    def end(self) -> Tally:
        """What went by."""
        if self._judge:
            self._judge.finish()
        self._book.tallies[self._tally.layer] = self._tally
        return self._tally

    def conclude(self, missing: Sequence[str] = ()) -> bool:
        """Whether everything is there. `missing`: what a whole run would have."""
        is_whole = not missing and not self._is_cut_off
        for name, line, fault in self._endings(is_whole=is_whole):
            self._book.find(fault.rule, fault.message, name, line)
        if not is_whole:
            self._tell_incomplete(missing)
        elif self._book.is_folder and not has_evidence(self._book.names):
            self._book.find("contract.evidence", "it was recorded without kernel evidence")
        told = self.count(RUNNER_FILE)
        if is_whole and RUNNER_FILE in self.layers and not told:
            self._book.find("contract.frame", "neither start nor end is recorded", RUNNER_FILE)
        elif is_whole and RUNNER_FILE in self.layers and told != 2:
            message = f"{told} events, not a start and an end"
            self._book.find("contract.runner_event", message, RUNNER_FILE)
        if self._events:
            self._check_agent(self._events)
            self._check_mentions(self._events)
        listed = self.documents.get(MANIFEST_FILE)
        if isinstance(listed, Manifest):
            self._check_listed(listed)
        summary = self.documents.get(SUMMARY_FILE)
        for what in summary.incomplete if isinstance(summary, RunSummary) else ():
            self._book.find("contract.losses", f"the recorder itself lost: {what}", SUMMARY_FILE)
        if is_whole and self._events and self._book.is_recorded:
            self._check_accord(self._events)
        return is_whole

    def check_vouched(self) -> None:
        """What of the command log the layers vouch for, once they were read to their end."""
        judge = self._validated.get(COMMANDS_FILE)
        if not self._events or not self._book.is_recorded or not self.gathering.is_whole:
            return
        lines = {*range(judge.count if judge else 0)}
        for reason in vouched_faults(self._events.named, self.gathering.vouched, lines):
            self._book.find("contract.accord", reason)

    def close(self) -> None:
        self.documents.close()
        self.gathering.close()

    @property
    def _is_cut_off(self) -> bool:
        """A run whose recorder did not come to its end."""
        return self._book.is_folder and not (self._events and self._events.is_finished)

    @property
    def _has_own_evidence(self) -> bool:
        health = self.documents.get(HEALTH_FILE)
        is_made = health is not None and f"{ABSENT_NOTE}: {NOT_ASKED}" in health.notes
        return has_evidence(self._book.names) and not is_made

    def _endings(self, *, is_whole: bool) -> Iterator[tuple[str, int, Fault]]:
        """Where the layers end, and whether the chain does. Of a run that was cut off, that they
        end anywhere is no fault of its own."""
        faults = [
            (name, line, Fault("integrity.torn", f"{size} bytes follow the last line"))
            for name, (line, size) in self._book.torn.items()
        ]
        if self._links:
            against = self._links.against(self._book.tallies, is_whole=is_whole)
            faults += [(CHAIN_FILE, line, fault) for line, fault in against]
        for name, line, fault in faults:
            if not self._is_cut_off or fault.rule not in ("integrity.torn", "integrity.unlinked"):
                yield name, line, fault

    def _tell_incomplete(self, missing: Sequence[str]) -> None:
        told = []
        if self._is_cut_off:
            missing = [name for name in missing if name in (METADATA_FILE, EVENTS_FILE)]
            if self._events:
                last = self._events.last
                told.append(f"its last event is {last}" if last else "it has no event")
        if missing:
            told.append(f"there is no {', no '.join(missing)}")
        if self._is_cut_off:
            vouched = self._links.vouched if self._links else {}
            torn = self._book.torn.keys() - {CHAIN_FILE}
            told.append(trusted(self._book.tallies, vouched, torn))
        what = "the run was not recorded to its end" if self._is_cut_off else "it is not whole"
        message = f"{what}: {'; '.join(told)}"
        self._book.find("integrity.incomplete", message)

    def count(self, name: str) -> int:
        layer = self.layers.get(name)
        return layer.lines - layer.blank if layer else 0

    def _kernel_lines(self) -> int:
        """Behind its last link, a layer of a run that was cut off may lack anything."""
        is_cut_off = self._book.is_folder and HEALTH_FILE not in self._book.names
        return sys.maxsize if is_cut_off else self.count(KERNEL_FILE)

    def _judge_of(self, name: str) -> Judge | None:
        """None: any bytes will do."""
        law = law_of(name, self._kernel_lines, lambda: self.count(SDK_FILE))
        if law:
            self.layers[name] = Layer(self._book, name, law, self.gathering)
            return self.layers[name]
        if name in DOCUMENTS:
            return self.documents.judge_of(name)
        if name == CHAIN_FILE:
            self._links = Links(self._book)
            return self._links
        if name == EVENTS_FILE:
            listed = self.documents.get(MANIFEST_FILE)
            self._events = Events(self._book, listed.events if listed else None)
            return self._events
        if name == DESCRIPTOR_FILE:
            self._carried = Carried(self._book)
            return self._carried
        if name in VALIDATED:
            carried = self._carried.descriptors if self._carried else ()
            boundaries = find_boundaries(self._boundary, carried)
            self._validated[name] = Validated(self._book, name, boundaries)
            return self._validated[name]
        return None

    def _check_accord(self, events: Events) -> None:
        run = Run(
            metadata=self.documents.get(METADATA_FILE),
            summary=self.documents.get(SUMMARY_FILE),
            health=self.documents.get(HEALTH_FILE),
            report=self.documents.get(CORRELATION_FILE),
            kernel_events=self.count(KERNEL_FILE),
            has_evidence=self._has_own_evidence,
            runner=self.gathering.runner,
            events=events.named,
            counted={name: judge.count for name, judge in self._validated.items()},
        )
        for reason in disagreements(run):
            self._book.find("contract.accord", reason)

    def _check_agent(self, events: Events) -> None:
        metadata = self.documents.get(METADATA_FILE)
        if not isinstance(metadata, RunMetadata) or metadata.profile != "poc":
            return
        for agent, line in events.agents.items():
            if agent != CLAUDE_CODE:
                message = f"expected {CLAUDE_CODE!r}, got {agent!r}: the run's profile is poc"
                self._book.find("contract.agent", message, EVENTS_FILE, line)

    def _check_mentions(self, events: Events) -> None:
        """An archive that was made from a stream has records, and no other files."""
        if not any(name.startswith(f"{ARTIFACTS}/") for name in self._book.tallies):
            if events.mentions:
                message = f"of {len(events.mentions)} files that the events name, none is here"
                self._book.find("contract.artifacts", message, EVENTS_FILE)
            return
        for mention in events.mentions:
            if reason := self._differs(mention.file, mention.sha256):
                line, path = mention.line, mention.path
                self._book.find("contract.listed", reason, EVENTS_FILE, line, path)

    def _check_listed(self, listed: Manifest) -> None:
        for index, file in enumerate(listed.files):
            digest = file.sha256.removeprefix("sha256:")
            if reason := self._differs(file.path, digest, file.bytes):
                self._book.find("contract.listed", reason, MANIFEST_FILE, path=f"$.files[{index}]")
        names = {file.path for file in listed.files}
        for name in sorted(self._unlisted(names)):
            self._book.find("contract.listed", f"{name} is not listed", MANIFEST_FILE)

    def _unlisted(self, names: set[str]) -> Iterator[str]:
        """What stands for evidence that nobody asked for was made when the archive was."""
        others = {EVENTS_FILE, MANIFEST_FILE}
        if not self._has_own_evidence:
            others |= {*EVIDENCE_FILES}
        yield from self._book.tallies.keys() - names - others

    def _differs(self, name: str, sha256: str, size: int | None = None) -> str:
        """Why a file is not as somebody says that it was; empty where it is."""
        tally = self._book.tallies.get(name)
        if tally is None:
            return f"{name} is not there"
        if size is not None and tally.bytes != size:
            return f"{name} has {tally.bytes} bytes, not {size}"
        return "" if tally.sha256 == sha256 else f"{name} is not what was hashed"
