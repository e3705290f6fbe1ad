"""normalize: what a kernel feed saw, as the numbered lines of the kernel layer.

Out come lines of layers/kernel.ndjson (plain bytes) and, right behind the line that they belong
to, lines of layers/kernel-ext.ndjson (`DetailLine`). Gaps stay where they stood, and so do the
feed's books. What is left out is left out by a rule, and counted by it: reads of a loader and a
runtime, by the table in `noise`; writes to the watched streams, which only place the agent's own
words among the events.

Lines of other contracts pass, but for `is_alone`, the file of one feed, where they are rejected.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from stream.codec import DECODE_ERRORS, contract_of, explain, is_blank, reject
from stream.documents import repeated_key
from stream.evidence.markers import Writes
from stream.evidence.surface import OPENED, Surface
from stream.pipeline import Batch, Counts, by_kind
from stream.records.control import (
    CAPTURES,
    DETAILS,
    GAP,
    GAPS,
    KERNEL,
    LINES,
    REJECTS,
    TELEMETRY,
    Control,
    Fault,
    Gap,
    Reject,
)
from stream.records.kernel import (
    EVENT_TYPES,
    INODE_RESOLVED,
    OPEN,
    RAW_CAPTURE,
    RAW_KERNEL,
    KernelEvent,
    RawCapture,
    RawEvent,
    RingBatch,
    kind_of,
    unknown_type,
)
from stream.transformers.filters import FolderFilter, filter_rule_for, is_straight
from stream.transformers.kernel_lines import (
    ENOENT,
    ENOTDIR,
    ROOTS_RULES,
    UNSURE,
    OpenForm,
    QuickOpens,
    detail_of,
    has_detail,
    named,
    open_form,
    value_of,
    with_peer,
)

DEFAULT_RUN_ID = "run"
WROTE = "wrote"  #: counted beside the rules of `noise`
RESOLVED = "inode_resolved"  #: how a monitor itself follows a name: counted with it
NO_EVENTS = (WROTE, RESOLVED)  #: nothing that the run did
_MOST_KNOWN = 50_000  #: folders, and forms of opens: a stream of many forgets and learns again

_DOTS = ("", ".", "..")

Given: TypeAlias = bytes | RawEvent | RawCapture | Control
_decode = msgspec.json.Decoder(RawEvent | RawCapture | Gap).decode
_encode = msgspec.json.Encoder().encode


def _forget(ts: int) -> None:
    """Nobody asked when."""


class DetailLine(bytes):
    """A line of layers/kernel-ext.ndjson."""


class OtherLine(bytes):
    """A line of another contract, which passes."""


Normalized: TypeAlias = bytes | DetailLine | OtherLine | RawCapture | Control
_KINDS = {
    DetailLine: DETAILS,
    OtherLine: LINES,
    RawCapture: CAPTURES,
    Gap: GAPS,
    Reject: REJECTS,
}


def _kind_of(item: Normalized) -> str:
    return _KINDS.get(type(item), KERNEL)


class Normalize:
    """Raw events, or lines of them, in; lines of the two layers out."""

    name = "normalize"
    kinds = (LINES, TELEMETRY)

    def __init__(
        self,
        run_id: str | None = None,
        *,
        is_alone: bool = False,
        surface: Surface | None = None,
        keeps_times: bool = False,
    ) -> None:
        self.counts = Counts()
        self.dropped: dict[str, int] = {}  #: events left out, by rule
        self.events = 0  #: lines of the kernel layer: the next one's number
        self._details = 0
        self._sent_along: Counter[str] = Counter()  #: of what was left out, with other books
        self.lost = 0  #: by the gaps
        self.capture: RawCapture | None = None  #: the feed's books, once they have come
        self.written: dict[str, Writes] = {}  #: to each watched stream, where times are kept
        self._run_id = run_id or DEFAULT_RUN_ID
        self._is_alone = is_alone
        self._surface = surface
        self._times: list[int] | None = [] if keeps_times else None
        self._forms: dict[tuple[int, int, int, bool], OpenForm] = {}
        self._judges: dict[str, FolderFilter] = {}
        self._failed_judges: dict[str, FolderFilter] = {}
        #: It keeps what it knows in the surface: without one, every event goes the long way.
        self._quick = (
            None if surface is None else QuickOpens(self._run_id, surface, DetailLine, self._drop)
        )

    def feed(self, given: Batch[Given], /) -> list[Batch[Any]]:
        batch = given.items
        self.counts.received += len(batch)
        out: list[Normalized] = []
        before = self.events
        if isinstance(batch, RingBatch) and self._quick is not None:
            self._feed_ring(batch, self._quick, out)
        else:
            self._feed(batch, out)
        is_plain = len(out) == self.events - before
        return [Batch(KERNEL, out)] if is_plain and out else by_kind(out, _kind_of)

    def _feed_ring(self, batch: RingBatch, quick: QuickOpens, out: list[Normalized]) -> None:
        items, times = batch.items, self._times
        mark = _forget if times is None else times.append
        done = 0
        while True:
            done, seq = quick.feed(batch, done, self.events, out, mark)
            self.counts.passed += seq - self.events
            self.events = seq
            if done == len(items):
                break
            self._feed((batch[done],), out)
            done += 1

    def _feed(self, batch: Sequence[Given], out: list[Normalized]) -> None:
        for index, item in enumerate(batch):
            if isinstance(item, bytes):
                try:
                    event: object = _decode(item)
                except DECODE_ERRORS as error:
                    self._add_other(batch, index, error, out)
                    continue
                # What comes out as it went in has no key twice.
                if _encode(event) != item and (repeated := repeated_key(item)):
                    self._reject(batch, index, out, repeated)
                    continue
            else:
                event = item
            if type(event) is not RawEvent:
                self._add_aside(event, out)
                continue
            event_type = EVENT_TYPES.get(event.call)
            if event_type == OPEN:
                self._add_open(event, out)
            elif event_type is not None:
                self._add_call(event, event_type, out)
            elif event.call == WROTE:
                self._add_written(event)
            elif (number := unknown_type(event.call)) == INODE_RESOLVED:
                self._drop(RESOLVED)
            elif number is not None:
                self._add_call(event, number, out)
            else:
                fault = Fault(f"{event.call!r} is no call of a feed", "$.call")
                self._reject(batch, index, out, fault)

    def finish(self) -> tuple[()]:
        return ()

    @property
    def details(self) -> int:
        return self._details + (self._quick.details if self._quick else 0)

    def take_times(self) -> array[int]:
        """When the events since the last time happened, in the order of their numbers."""
        assert self._times is not None, "made without keeps_times"
        taken, self._times = array("Q", self._times), []
        return taken

    def _add_open(self, event: RawEvent, out: list[Normalized]) -> None:
        is_creat = event.call == "creat"
        key = (event.flags, event.mode, event.resolve, is_creat)
        form = self._forms.get(key) or self._new_form(key, event)
        ret, value = event.ret, event.resolved
        if ret is not None and ret >= 0 and value is not None and not event.marks:
            rule = self._noise(value) if form.is_read else None
        else:
            value, rule = self._judge_unsure(event, form)
        if rule is not None:
            self._drop(rule)
            return
        line = form.line
        line.seq, line.pid, line.value = self.events, event.pid, value
        if ret is None:
            line.return_value = line.status = msgspec.UNSET
        else:
            line.return_value = ret
            line.status = "success" if ret >= 0 else "error"
        out.append(_encode(line))
        if value is None or event.path != value or event.marks or event.scope != "both":
            self._add_detail(event, OPEN, value, out)
        if self._surface is None:
            pass
        elif value is None:
            detail = detail_of(self._run_id, self.events, event, OPEN, value)
            self._surface.add_kernel(line, detail)
        else:
            self._show_open(self._surface, value, ret, form)
        self._count(event)

    def _judge_unsure(self, event: RawEvent, form: OpenForm) -> tuple[str | None, str | None]:
        """The value, and the rule, of an open that failed or of which not all is known."""
        is_done = event.ret is not None and event.ret >= 0
        value = event.resolved if is_done else None
        if value is None and not (is_done and "uring" in event.marks):  # which nobody followed
            value = named(event)
        if form.is_read and value is not None and event.marks == ["shared_files"]:
            return value, self._judge_both(value, event.path)
        if not form.is_read or value is None or not UNSURE.isdisjoint(event.marks):
            return value, None
        if is_done:
            return value, self._noise(value) if event.resolved else None
        if event.ret not in (-ENOENT, -ENOTDIR):
            return value, None
        is_plain = is_straight(f"/{event.path}", value)
        return value, self._noise(value, is_reached=False) if is_plain else None

    def _judge_both(self, reached: str, given: str | None) -> str | None:
        """The rule, if what was named and what was found behind the descriptor later fall under
        it, and nobody but root could have put a link there."""
        if given is None or not given.startswith("/") or not is_straight(given, given):
            return None
        rule = self._noise(reached)
        return rule if rule in ROOTS_RULES and rule == self._noise(given) else None

    def _add_call(self, event: RawEvent, event_type: int, out: list[Normalized]) -> None:
        event_type = with_peer(event, event_type)
        value = value_of(event, event_type)
        line = KernelEvent(
            run_id=self._run_id,
            seq=self.events,
            pid=event.pid,
            event_type=event_type,
            kind=kind_of(event_type),
            value=value,
        )
        out.append(_encode(line))
        self._add_detail(event, event_type, value, out)
        if self._surface is not None:
            detail = detail_of(self._run_id, self.events, event, event_type, value)
            self._surface.add_kernel(line, detail)
        self._count(event)

    def _add_detail(
        self, event: RawEvent, event_type: int, value: str | None, out: list[Normalized]
    ) -> None:
        if has_detail(event, event_type, value):
            detail = detail_of(self._run_id, self.events, event, event_type, value)
            out.append(DetailLine(_encode(detail)))
            self._details += 1

    def _count(self, event: RawEvent) -> None:
        self.events += 1
        self.counts.passed += 1
        if self._times is not None:
            self._times.append(event.ts)

    def _show_open(self, surface: Surface, path: str, ret: int | None, form: OpenForm) -> None:
        if ret is not None and ret >= 0:
            surface.reach(path, form.ways)
        else:
            surface.miss(path, OPENED, ret)

    def _add_written(self, event: RawEvent) -> None:
        self._drop(WROTE)
        if self._times is not None:
            writes = self.written.setdefault(event.stream, Writes())
            writes.add(event.size or 0, event.ts, event.pid)

    def _add_aside(self, item: object, out: list[Normalized]) -> None:
        self.counts.passed += 1
        if isinstance(item, RawCapture):
            self.capture = item
            item = self._with_left_out(item)
        elif isinstance(item, Gap):
            self.lost += int(item.lost)
        out.append(item)  # type: ignore[arg-type]

    def _with_left_out(self, capture: RawCapture) -> RawCapture:
        """For whoever gets the lines and does not know what was left out of them."""
        filtered, aside = Counter(capture.filtered or {}), Counter(capture.aside or {})
        for rule, count in (Counter(self.dropped) - self._sent_along).items():
            (aside if rule in NO_EVENTS else filtered)[rule] += count
        self._sent_along = Counter(self.dropped)
        return msgspec.structs.replace(capture, filtered=dict(filtered), aside=dict(aside))

    def _add_other(
        self, batch: Sequence[Given], index: int, error: Exception, out: list[Normalized]
    ) -> None:
        """A line that is no record of a feed."""
        line = batch[index]
        assert isinstance(line, bytes)
        if is_blank(line):
            self.counts.filtered += 1
            return
        try:
            contract = contract_of(line)
        except DECODE_ERRORS as broken:
            self._reject(batch, index, out, explain(broken))
            return
        if contract in (RAW_KERNEL, RAW_CAPTURE, GAP):
            self._reject(batch, index, out, explain(error))
        elif self._is_alone:
            self._reject(batch, index, out, Fault("is no record of a kernel feed"))
        else:
            self.counts.passed += 1
            out.append(OtherLine(line))

    def _reject(
        self,
        batch: Sequence[Given],
        index: int,
        out: list[Normalized],
        fault: Fault,
    ) -> None:
        self.counts.rejected += 1
        out.append(reject(self.name, batch, index, fault))

    def _drop(self, rule: str) -> None:
        self.counts.filtered += 1
        self.dropped[rule] = self.dropped.get(rule, 0) + 1

    def _noise(self, path: str, *, is_reached: bool = True) -> str | None:
        folder, _, name = path.rpartition("/")
        if name in _DOTS or not path.startswith("/"):
            return None
        judges = self._judges if is_reached else self._failed_judges
        judge = judges.get(folder)
        if judge is None:
            if len(judges) >= _MOST_KNOWN:
                judges.clear()
            judge = judges[folder] = filter_rule_for(folder, is_reached=is_reached)
        return judge(name)

    def _new_form(self, key: tuple[int, int, int, bool], event: RawEvent) -> OpenForm:
        if len(self._forms) >= _MOST_KNOWN:
            self._forms.clear()
        form = self._forms[key] = open_form(self._run_id, event)
        return form
