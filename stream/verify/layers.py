"""The layers of a run: their lines against their contracts and against each other, and their chain.

Lines are checked many at a time. A block whose lines all decode, and come out as they went in when
they are encoded again, has no second key, no white space and no other order: only the rules of its
layer are left to check. Any other block is checked line by line, by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from stream.archive.chain import LAYERS, STEP, Tally
from stream.codec import (
    DECODE_ERRORS,
    Lines,
    LineSplitter,
    OverlongLine,
    TornLine,
    decode_fault,
    is_blank,
    join_lines,
)
from stream.contracts import LAYER_DECODERS, LineDecoder
from stream.evidence.consistency import (
    EventForm,
    contract_faults_of,
    event_form_faults,
    open_mode_faults,
)
from stream.records.artifacts import (
    CHAIN_FILE,
    DETAIL_FILE,
    KERNEL_FILE,
    MARKERS_FILE,
    POLICY_FILE,
    RUNNER_FILE,
    SDK_FILE,
    ChainLink,
    Marker,
)
from stream.records.control import Fault, Gap
from stream.records.kernel import OPEN
from stream.verify.replay import EventColumns, LayerReplay, event_columns_of
from stream.verify.report import VerifyReport

_RULES = {RUNNER_FILE: "contract.runner_event", SDK_FILE: "contract.sdk_event"}
CountLines = Callable[[], int]  #: lines of a layer that was read before
#: What is wrong with which of many records.
RecordFault: TypeAlias = tuple[int, Fault]

_PIECE = 64 << 10  #: bytes decoded at a time: the thread that inflates needs the interpreter too
_HELD = (POLICY_FILE, SDK_FILE, MARKERS_FILE)  #: layers that are held as a whole
_MOST_FORMS = 10_000  #: of kernel events, that are known to be good
_encode_lines = msgspec.json.Encoder().encode_lines


class FileChecker(Protocol):
    """Checks the content of one file."""

    def feed(self, data: bytes, /) -> None:
        """Check the next bytes."""

    def finish(self) -> None:
        """Check the end."""


class LayerContract(Struct):
    """Holds what the records of one layer must keep."""

    decoder: LineDecoder
    faults: Callable[[Any], Iterator[RecordFault]]  #: of what `batch` gives
    batch: Callable[[list[Any]], EventColumns | RecordBatch]
    is_numbered: bool = True


def contract_of_layer(name: str, kernel: CountLines, sdk: CountLines) -> LayerContract | None:
    """Return the contract of a layer by the name of its file; None if it is no layer.

    `kernel` and `sdk` tell how many lines those layers have, once they were read.
    """
    decoder = LAYER_DECODERS.get(name)
    if decoder is None:
        return None
    if name == KERNEL_FILE:
        return LayerContract(decoder, KernelRules().faults, event_columns_of)
    if name == DETAIL_FILE:
        return LayerContract(decoder, _DetailRules(kernel).faults, RecordBatch, is_numbered=False)
    if name == MARKERS_FILE:
        return LayerContract(decoder, _MarkerRules(kernel, sdk).faults, RecordBatch)
    rule = _RULES.get(name, "contract.line")
    return LayerContract(decoder, _check_each_record(rule), RecordBatch)


class LayerChecker:
    """Checks every line of one layer, and replays those that are records."""

    def __init__(
        self, report: VerifyReport, name: str, contract: LayerContract, replay: LayerReplay
    ) -> None:
        self.lines = 0
        self.blank = 0  #: of them: the contract takes none of these for a record
        self._report = report
        self._name = name
        self._contract = contract
        self._replay = replay
        self._rest: list[bytes] = []  #: of a line whose end has not come yet
        self._rest_length = 0
        self._is_overlong = False
        self._seq = 0

    def feed(self, data: bytes) -> None:
        """Check the lines of the layer that end in these bytes."""
        start = 0
        while start < len(data):
            end = data.rfind(b"\n", start, start + _PIECE) + 1
            if end:
                self._check_ended_lines(data[start:end])
            else:
                end = start + _PIECE
                self._hold_unfinished_line(data[start:end])
            start = end

    def finish(self) -> None:
        """Check the last line of the layer, which may have no end."""
        rest = b"".join(self._rest)
        if rest and not self._is_overlong and not self._report.is_recorded:
            self._check_lines(rest + b"\n")  # as others may end a file
        elif rest or self._is_overlong:
            self._report.torn[self._name] = self.lines + 1, len(rest)

    def _check_ended_lines(self, block: bytes) -> None:
        """Check the layer's lines that end in a block, after what was held of their beginning."""
        if self._rest:
            block = b"".join((*self._rest, block))
        self._rest, self._rest_length = [], 0
        if self._is_overlong:
            self._is_overlong = False
            block = block[block.find(b"\n") + 1 :]
            self.lines += 1
        if block:
            self._check_lines(block)

    def _hold_unfinished_line(self, rest: bytes) -> None:
        """Hold the beginning of a layer's line whose end has not come yet, up to the limit."""
        self._rest_length += len(rest)
        if rest and not self._is_overlong:
            self._rest.append(rest)
        if self._rest_length > self._report.limits.line and not self._is_overlong:
            self._is_overlong = True
            self._rest = []
            self._report_overlong_line(self.lines + 1)

    def _check_lines(self, block: bytes) -> None:
        """Check whole lines of a layer, all at once where they are as the recorder writes them."""
        limit, before = self._report.limits.line, self.lines
        is_short = len(block) <= limit or max(map(len, block.split(b"\n"))) <= limit
        records = decode_canonical(self._contract.decoder, block) if is_short else None
        if records:
            count = len(records)
            self._check_records(records, before + 1)
        else:
            count = block.count(b"\n")
            for number, line in enumerate(block[:-1].split(b"\n"), before + 1):
                self._check_line(line, number)
        self._report.count_lines(count)
        self.lines += count
        most = self._report.limits.held
        if self._name in _HELD and before <= most < self.lines:
            self._replay.mark_unreadable()
            message = f"more than {most} lines of a layer that is held as a whole"
            self._report.report_fault("limit.lines", message, self._name)

    def _check_line(self, line: bytes, number: int) -> None:
        """Decode and check one line of a layer, and report a form that no recorder writes."""
        if is_blank(line) and not self._report.is_recorded:
            self.blank += 1
            return
        if len(line) > self._report.limits.line:
            self._report_overlong_line(number)
            return
        try:
            record = self._contract.decoder.decode(line)
        except DECODE_ERRORS as error:
            fault = decode_fault(error)._replace(rule="contract.line")
            self._report.add_faults([fault], self._name, number)
            self._seq += 1
            self._replay.mark_unreadable()
            return
        if msgspec.json.encode(record) != line:
            self._report.add_form_faults(line, "contract.line", self._name, number)
        self._report.is_too_deep(line, self._name, number)
        self._check_records([record], number)

    def _check_records(self, records: list[Any], first: int) -> None:
        """Check records that stand on consecutive lines, of which this is the first."""
        batch = self._contract.batch(records)
        faults = [] if not self._contract.is_numbered else [*self._seq_faults(batch.seqs)]
        faults += self._contract.faults(batch)
        if {*batch.run_ids} - {None, self._report.run_id}:
            for position, run_id in enumerate(batch.run_ids):
                found = [] if run_id is None else self._report.check_run_id(run_id)
                faults += [(position, fault) for fault in found]
        for position, fault in sorted(faults, key=itemgetter(0)):
            self._report.add_faults([fault], self._name, first + position)
        if isinstance(batch, EventColumns):
            self._replay.add_event_columns(batch)
        else:
            self._replay.add_records(self._name, records)

    def _seq_faults(self, seqs: Sequence[int]) -> Iterator[RecordFault]:
        """Find sequence numbers of a layer that do not follow the number before."""
        first, self._seq = self._seq, seqs[-1] + 1
        if seqs == (*range(first, first + len(seqs)),):
            return
        for position, (before, seq) in enumerate(pairwise((first - 1, *seqs))):
            if seq != before + 1:
                yield position, Fault(f"expected {before + 1}, got {seq}", "$.seq", "contract.seq")

    def _report_overlong_line(self, number: int) -> None:
        self._replay.mark_unreadable()
        message = f"the line has more than {self._report.limits.line} bytes"
        self._report.report_fault("limit.line", message, self._name, number)


def decode_canonical(decoder: LineDecoder, block: bytes) -> list[Any] | None:
    """Decode whole lines that are all written as the recorder writes them; else return None."""
    try:
        records = decoder.decode_lines(block)
    except DECODE_ERRORS:
        return None
    return records if _encode_lines(records) == block else None


class RecordBatch(Struct):
    """Holds records that are checked one by one."""

    records: list[Any]

    @property
    def run_ids(self) -> list[str | None]:
        """Return the run of each record; a gap names none."""
        return [getattr(record, "run_id", None) for record in self.records]

    @property
    def seqs(self) -> tuple[int, ...]:
        """Return the number of each record."""
        return tuple(record.seq for record in self.records)


class KernelRules:
    """Finds what kernel events say twice, and differently.

    There are millions of events and few forms of them: a form that is good is not checked again.
    """

    def __init__(self) -> None:
        self._good: set[tuple[Any, ...]] = set()

    def faults(self, columns: EventColumns) -> Iterator[RecordFault]:
        """Check the events of some columns of the kernel layer."""
        found = {
            form: [*event_form_faults(EventForm._make(form))]
            for form in columns.different_forms - self._good
        }
        faulty = {form: faults for form, faults in found.items() if faults}
        if len(self._good) < _MOST_FORMS:
            self._good |= found.keys() - faulty.keys()
        for position, form in enumerate(columns.forms) if faulty else ():
            for fault in faulty.get(form, ()):
                yield position, fault._replace(rule="contract.kernel_event")
        if {*columns.types} == {OPEN}:
            return
        for position, event in enumerate(columns.records):
            for fault in open_mode_faults(event) if event.event_type != OPEN else ():
                yield position, fault._replace(rule="contract.kernel_event")


def _check_each_record(rule: str) -> Callable[[RecordBatch], Iterator[RecordFault]]:
    """Return a check of a layer's records, each by itself, whose faults have that rule."""

    def faults(batch: RecordBatch) -> Iterator[RecordFault]:
        """Find what each record of a batch breaks by itself."""
        for position, record in enumerate(batch.records):
            for fault in contract_faults_of(record):
                yield position, fault._replace(rule=rule)

    return faults


class _DetailRules:
    """Details come in the order of the lines that they are of; gaps stand anywhere."""

    def __init__(self, kernel: CountLines) -> None:
        self._last = -1
        self._kernel = kernel

    def faults(self, batch: RecordBatch) -> Iterator[RecordFault]:
        """Find details that do not fit the events that they belong to."""
        lines = self._kernel()
        for position, record in enumerate(batch.records):
            if isinstance(record, Gap):
                continue
            if record.seq <= self._last:
                yield position, _detail_fault(f"{record.seq} after {self._last}")
            if record.seq >= lines:
                yield position, _detail_fault(f"the kernel layer has no line {record.seq}")
            self._last = record.seq


def _detail_fault(reason: str) -> Fault:
    return Fault(reason, "$.seq", "contract.detail")


class _MarkerRules:
    """Markers stand in order, at places that exist."""

    def __init__(self, kernel: CountLines, sdk: CountLines) -> None:
        self._last = 0
        self._command_lines: set[int] = set()
        self._kernel = kernel
        self._sdk = sdk

    def faults(self, batch: RecordBatch) -> Iterator[RecordFault]:
        """Find markers that do not fit the other layers."""
        for position, marker in enumerate(batch.records):
            for fault in self._marker_faults(marker):
                yield position, fault._replace(rule="contract.marker")

    def _marker_faults(self, marker: Marker) -> Iterator[Fault]:
        """Find where a marker contradicts earlier markers, or the lengths of the other layers."""
        if marker.at < self._last:
            yield Fault(f"{marker.at} after {self._last}", "$.at")
        if marker.at > self._kernel():
            yield Fault(f"the kernel layer has only {self._kernel()} lines", "$.at")
        if marker.sdk_seq is not None and not 0 <= marker.sdk_seq < self._sdk():
            yield Fault(f"the SDK layer has no line {marker.sdk_seq}", "$.sdk_seq")
        self._last = max(self._last, marker.at)
        number = marker.command_seq
        if number is not None and number in self._command_lines:
            yield Fault(f"line {number} of the command log has one already", "$.command_seq")
        self._command_lines |= set() if number is None else {number}
        yield from contract_faults_of(marker)


def are_canonical_events(lines: Sequence[bytes]) -> bool:
    """Return whether kernel events are all as the recorder writes them, and agree with
    themselves."""
    events = decode_canonical(LAYER_DECODERS[KERNEL_FILE], join_lines(lines))
    return events is not None and not any(KernelRules().faults(event_columns_of(events)))


_CHAINED = (*LAYERS, RUNNER_FILE)  #: the last is written when all else is over
_decode = msgspec.json.Decoder(ChainLink).decode


class ChainChecker:
    """Checks chain.ndjson: which beginnings of the layers are what they were when written.

    It holds no more links than the layers can have: one for each quarter of a megabyte.
    """

    def __init__(self, report: VerifyReport) -> None:
        self._report = report
        self._splitter = LineSplitter(report.source_name_of(CHAIN_FILE), report.limits.line)
        self._links: list[tuple[int, ChainLink]] = []  #: and the line of each
        self._most = report.limits.decoded // STEP + 2 * len(LAYERS)
        self.verified: dict[str, ChainLink] = {}  #: by layer: the last link before a wrong one

    def feed(self, data: bytes) -> None:
        """Check the next bytes of the chain file."""
        self._check_links(self._splitter.feed(data))

    def finish(self) -> None:
        """Check the last line of the chain file."""
        self._check_links(self._splitter.finish())

    def _check_links(self, lines: Lines | None) -> None:
        """Check lines of the chain file, and note one that is cut off or too long."""
        for part in lines.bounded_parts() if lines else ():
            self._report.count_lines(len(part))
            for number, line in enumerate(part, part.number):
                if isinstance(line, TornLine):
                    self._report.torn[CHAIN_FILE] = number, len(line)
                elif isinstance(line, OverlongLine):
                    message = f"the line has more than {self._report.limits.line} bytes"
                    self._report.report_fault("limit.line", message, CHAIN_FILE, number)
                else:
                    self._read_link(line, number)

    def _read_link(self, line: bytes, number: int) -> None:
        """Decode one line of the chain file, and keep its link for the comparison."""
        try:
            link = _decode(line)
        except DECODE_ERRORS as error:
            reason = decode_fault(error).reason
            self._report.report_fault("contract.line", reason, CHAIN_FILE, number)
            return
        if msgspec.json.encode(link) != line:
            message = "it is not written as links are"
            self._report.report_fault("contract.line", message, CHAIN_FILE, number)
        if len(self._links) < self._most:
            self._links.append((number, link))
        else:
            message = "more links than there can be layers"
            self._report.report_fault("integrity.chain", message, CHAIN_FILE, number)

    def compare_links(
        self, tallies: Mapping[str, Tally], *, is_whole: bool
    ) -> Iterator[tuple[int, Fault]]:
        """Compare the links with the layers that were read. Yield each fault with its line in the
        chain, or 0 if it is of no line."""
        expected = {name: _expected_links_of(tallies[name]) for name in _CHAINED if name in tallies}
        reached: dict[str, int] = {}
        wrong: set[str] = set()
        for line, link in self._links:
            if link.layer not in expected:
                yield line, _chain_fault(f"{link.layer} is not there, or no layer")
                continue
            before = reached.get(link.layer, -1)
            reached[link.layer] = link.bytes
            if reason := _link_mismatch(
                link, expected[link.layer], tallies[link.layer].bytes, before
            ):
                wrong.add(link.layer)
                yield line, _chain_fault(reason)
            elif link.layer not in wrong:
                self.verified[link.layer] = link
        for name in sorted(expected.keys() & {*LAYERS, *reached}):
            yield from _unlinked_faults(tallies[name], reached.get(name), is_whole)


def describe_verified(
    tallies: Mapping[str, Tally], verified: Mapping[str, ChainLink], torn: Collection[str]
) -> str:
    """Say which part of a run that was cut off is as it was written, by the links of its chain."""
    links = {name: link for name, link in sorted(verified.items()) if link.lines}
    if links:
        firsts = (f"the first {link.lines} lines of {name}" for name, link in links.items())
        text = f"{' and '.join(firsts)} are as they were written"
        later = sum(tallies[name].lines - link.lines for name, link in links.items())
        others = [name for name in LAYERS if name not in links and name in tallies]
        unknown = [f"the {later} lines after them"] if later else []
        unknown += [name for name in others if tallies[name].bytes]
        if unknown:
            text += f"; no link covers {' and '.join(unknown)}"
    else:
        why = "its chain has no link that fits" if CHAIN_FILE in tallies else "there is no chain"
        text = f"nothing shows that what was recorded until then is as it was written: {why}"
    if torn:
        text += f"; the last line of {' and of '.join(sorted(torn))} has no end"
    return text


def _chain_fault(reason: str) -> Fault:
    return Fault(reason, rule="integrity.chain")


def _expected_links_of(tally: Tally) -> dict[int, ChainLink]:
    """Return the links that a layer must have, by how far they reach."""
    return {link.bytes: link for link in (*tally.links, tally.link())}


def _link_mismatch(
    link: ChainLink, expected: Mapping[int, ChainLink], size: int, before: int
) -> str:
    """Say why a link of the chain does not fit its layer; empty where it does."""
    if link.bytes <= before:
        return f"{link.layer}: {link.bytes} bytes after {before}"
    if link.bytes > size:
        return f"{link.layer} has only {size} bytes, and had {link.bytes}"
    known = expected.get(link.bytes)
    if known is None:
        return f"{link.layer}: no link belongs after {link.bytes} bytes"
    if known != link:
        return f"the first {link.bytes} bytes of {link.layer} are not what they were"
    return ""


def _unlinked_faults(
    tally: Tally, reached: int | None, is_whole: bool
) -> Iterator[tuple[int, Fault]]:
    """Yield a fault for bytes that no link covers: a run that was cut off may have some."""
    more = tally.bytes - (reached or 0)
    if not more and (reached is not None or not is_whole):
        return
    rule = "integrity.chain" if is_whole else "integrity.unlinked"
    yield 0, Fault(f"{tally.layer}: no link covers its last {more} bytes", rule=rule)
