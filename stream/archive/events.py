"""What a run says beside its layers: its events by the rules of `stream check`, and the records
of boundaries, of changed paths and of commands by `stream validate`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, get_args

import msgspec

from stream.archive.book import Book
from stream.archive.documents import is_too_deep
from stream.codec import DECODE_ERRORS, Lines, LineSplitter, OverlongLine
from stream.document import LARGEST, parse_document, parted
from stream.errors import InputError
from stream.pattern import Boundaries, Descriptor, make_carried
from stream.records.change import decode_change
from stream.records.control import Finding
from stream.records.decision import EventName
from stream.records.run import (
    BOUNDARY_FILE,
    CHANGES_FILE,
    COMMANDS_FILE,
    DESCRIPTOR_FILE,
    EVENTS_FILE,
    Beginning,
)
from stream.stages.invariants import Invariants, event_in
from stream.stages.validate import Validate

_MOST_AGENTS = 20  #: of a run, which has one
CUT_OFF = "run.incomplete"
VALIDATED = (BOUNDARY_FILE, CHANGES_FILE, COMMANDS_FILE)


class Mention(msgspec.Struct):
    """A file, as an event says that it was."""

    line: int
    path: str
    file: str
    sha256: str


class Events:
    """The judge of events.jsonl."""

    def __init__(self, book: Book, beginning: Beginning | None) -> None:
        self.mentions: list[Mention] = []
        self.agents: dict[str, int] = {}  #: and the line of the first event of each
        self.named: dict[str, dict[str, Any]] = {}  #: the first event of each name
        self.is_finished = False
        self.last = ""  #: event
        self._book = book
        # Which profile the run is to be held to, its metadata says, which come after its events.
        self._stage = Invariants("agents", is_alone=True, source=book.source(EVENTS_FILE))
        self._splitter = LineSplitter(book.source(EVENTS_FILE), book.limits.line)
        self._beginning = beginning
        self._digest = hashlib.sha256()
        self._left = beginning.bytes if beginning else 0

    def feed(self, data: bytes) -> None:
        if self._left:
            self._digest.update(data[: self._left])
            self._left -= min(self._left, len(data))
        self._judge(self._splitter.feed(data))

    def finish(self) -> None:
        self._judge(self._splitter.finish())
        self._add(self._stage.finish())
        if self._beginning and (self._left or self._digest.hexdigest() != self._beginning.sha256):
            message = f"the first {self._beginning.bytes} bytes are not what the run lists"
            self._book.find("contract.listed", message, EVENTS_FILE)

    @property
    def _is_cut_off(self) -> bool:
        """A folder of such a run has one finding that says so, and what of it can be trusted."""
        return self._book.is_folder and not self.is_finished

    def _judge(self, lines: Lines | None) -> None:
        for part in lines.parts() if lines else ():
            self._book.take_lines(len(part))
            for index, line in enumerate(part):
                self._read(line, part.number + index)
            self._add(self._stage.feed(part))  # after it is known whether the run ends here

    def _add(self, items: Any) -> None:
        for item in items:
            if isinstance(item, Finding) and not (item.rule == CUT_OFF and self._is_cut_off):
                rule = f"contract.check.{item.rule}"
                named = msgspec.structs.replace(item, rule=rule)
                self._book.add(named, EVENTS_FILE)

    def _read(self, line: bytes, number: int) -> None:
        """What the rules of one run alone cannot know. Bad lines were found before."""
        if isinstance(line, OverlongLine):
            return
        depth = self._book.limits.depth
        if is_too_deep(line, depth):
            self._book.find("limit.depth", f"nested deeper than {depth}", EVENTS_FILE, number)
            return
        event = event_in(line)
        if event is None:
            return
        kind = event.get("event_type")
        self.last = kind if isinstance(kind, str) else self.last
        if self.last in get_args(EventName):
            self.named.setdefault(self.last, event)
        if kind == "run_finished":
            self.is_finished = True
        session = event.get("session")
        session = session if isinstance(session, dict) else {}
        if isinstance(session.get("run_id"), str):
            path = "$.session.run_id"
            self._book.hold_run_id(session["run_id"], EVENTS_FILE, number, path)
        if isinstance(session.get("agent_id"), str) and len(self.agents) < _MOST_AGENTS:
            self.agents.setdefault(session["agent_id"], number)
        action = event.get("agent_action")
        items = action.get("artifacts") if isinstance(action, dict) else None
        for index, item in enumerate(items if isinstance(items, list) else ()):
            self._mention(item, number, f"$.agent_action.artifacts[{index}]")

    def _mention(self, item: Any, line: int, path: str) -> None:
        if not isinstance(item, dict):
            return
        file, digest, more = item.get("content_ref"), item.get("hash"), item.get("metadata")
        is_lossy = isinstance(more, dict) and bool(more.get("lost_bytes"))
        if isinstance(file, str) and isinstance(digest, str) and not is_lossy:
            kind, _, digits = digest.partition(":")
            if kind == "sha256" and len(self.mentions) <= self._book.limits.entries:
                self.mentions.append(Mention(line, path, file, digits))


class Carried:
    """The judge of the descriptor that came with the boundary objects."""

    def __init__(self, book: Book) -> None:
        self.descriptors: list[Descriptor] = []
        self._book = book
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        if len(self._data) <= LARGEST:
            self._data += data

    def finish(self) -> None:
        path, depth = Path(DESCRIPTOR_FILE), self._book.limits.depth
        data = bytes(self._data)
        if len(data) > min(LARGEST, self._book.limits.document):
            self._book.find("limit.document", "it is too large", DESCRIPTOR_FILE)
        elif is_too_deep(data, depth):
            self._book.find("limit.depth", f"nested deeper than {depth}", DESCRIPTOR_FILE)
        else:
            try:
                self.descriptors.append(make_carried(parse_document(data), path))
            except (InputError, ValueError) as error:
                reason, where = parted(str(error).removeprefix(f"{path}: "))
                self._book.find("contract.document", reason, DESCRIPTOR_FILE, path=where)


class Validated:
    """The judge of lines that `stream validate` knows."""

    def __init__(self, book: Book, name: str, boundaries: Boundaries) -> None:
        self._book = book
        self.count = 0  #: of its records, those that count as one thing more
        self._name = name
        self._stage = Validate(boundaries, is_last=True)
        self._splitter = LineSplitter(book.source(name), book.limits.line)

    def feed(self, data: bytes) -> None:
        self._judge(self._splitter.feed(data))

    def finish(self) -> None:
        self._judge(self._splitter.finish())

    def _judge(self, lines: Lines | None) -> None:
        for part in lines.parts() if lines else ():
            self._book.take_lines(len(part))
            self.count += sum(map(_counts if self._name == CHANGES_FILE else bool, part))
            for item in self._stage.feed(part):
                if isinstance(item, Finding):
                    named = msgspec.structs.replace(item, rule="contract.record")
                    self._book.add(named, self._name)


def _counts(line: bytes) -> bool:
    """A folder that came with its files is not one changed path more."""
    try:
        change = decode_change(line)
    except DECODE_ERRORS:
        return False
    states = (change.before, change.after)
    return bool(change.not_in_patch) or any(state and state.kind != "dir" for state in states)
