"""What is particular to each layer: its records, and what a record says twice.

Each law is said two ways: one record at a time, with reasons, and of many records at once.

What each record of a run's evidence breaks by itself, whatever the others say.

Every line of a layer against its schema, its number and its run, and the law of its layer.

Good lines are decoded by the block and cost nothing else than to be written again: what comes
out as it went in has no second key, no white space and no other order.

The chain against the layers: which beginnings are what they were when they were written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import msgspec
from msgspec import UNSET, Struct

from stream.archive.chain import LAYERS, STEP, Tally
from stream.archive.reader import Limits
from stream.archive.tar import READ, EntryFault
from stream.codec import (
    DECODE_ERRORS,
    Lines,
    LineSplitter,
    OverlongLine,
    TornLine,
    contract_of,
    explain,
    is_blank,
    join_lines,
)
from stream.contracts import ARTIFACTS, LINES, RunnerDecoder, decoder_of
from stream.documents import repeated_key
from stream.errors import InputError, os_reason, visible
from stream.evidence.consistency import faults_of, form_faults, mode_faults
from stream.files.inside import open_beneath
from stream.records.artifacts import (
    CHAIN_FILE,
    COMPANION_FILE,
    CONTRACTS,
    DETAIL_FILE,
    EVIDENCE_FILES,
    KERNEL_FILE,
    MARKERS_FILE,
    POLICY_FILE,
    RUNNER_FILE,
    SDK_FILE,
    ChainLink,
    Marker,
    PolicyEvent,
    SdkEvent,
)
from stream.records.control import Fault, Finding, Gap
from stream.records.kernel import OPEN, KernelDetail
from stream.verify.documents import is_too_deep, oddities
from stream.verify.replay import Columns, Form, KernelDecoder, LayerReplay, columns_of
from stream.verify.report import VerifyReport

Problem = tuple[str, str, str]  #: rule, message, JSON path
Count = Callable[[], int]  #: lines of a layer that was read before


class LineDecoder(Protocol):
    def decode(self, line: bytes, /) -> Any: ...
    def decode_lines(self, block: bytes, /) -> list[Any]: ...


class ManyRecords(Protocol):
    """Records of one layer. There is one or more of them."""

    @property
    def records(self) -> Sequence[Any]: ...
    @property
    def run_ids(self) -> set[str]: ...
    @property
    def seqs(self) -> tuple[int, ...]: ...


class LayerRules(Struct):
    decoder: LineDecoder
    problems: Callable[[Any], Iterator[Problem]]
    are_good: Callable[[Any], bool]  #: of what `together` gives
    together: Callable[[list[Any]], ManyRecords]
    is_numbered: bool = True


def rules_of(name: str, kernel: Count, sdk: Count) -> LayerRules | None:
    """None: the file is no layer."""
    if name == KERNEL_FILE:
        rule = _by_itself("contract.kernel_event")
        return LayerRules(KernelDecoder(), rule, Agreement(), columns_of)
    if name == DETAIL_FILE:
        order = _Ascending(kernel)
        kinds: Any = KernelDetail | Gap
        return LayerRules(Decoding(kinds), order.problems, order.are_good, RecordBatch, False)
    if name == MARKERS_FILE:
        return LayerRules(Decoding(Marker), _Places(kernel, sdk).problems, _never, RecordBatch)
    if name == RUNNER_FILE:
        return LayerRules(RunnerDecoder(), _by_itself("contract.runner_event"), _never, RecordBatch)
    if name == SDK_FILE:
        return LayerRules(
            Decoding(SdkEvent), _by_itself("contract.sdk_event"), _are_consistent, RecordBatch
        )
    if name == POLICY_FILE:
        return LayerRules(
            Decoding(PolicyEvent), _by_itself("contract.line"), _are_consistent, RecordBatch
        )
    return None


class Decoding:
    """Of one kind of record."""

    def __init__(self, kind: Any) -> None:
        self.decode = decoder_of(kind)
        self.decode_lines = msgspec.json.Decoder(kind).decode_lines


class RecordBatch(Struct):
    records: list[Any]

    @property
    def run_ids(self) -> set[str]:
        return {record.run_id for record in self.records if not isinstance(record, Gap)}

    @property
    def seqs(self) -> tuple[int, ...]:
        return tuple(record.seq for record in self.records)


# ---------------------------------------------------------------- the kernel's own layer


class Agreement:
    """Whether many events say the same twice: what was seen once is not looked at again."""

    def __init__(self) -> None:
        self._known: set[tuple[Any, ...]] = set()

    def __call__(self, columns: Columns) -> bool:
        new = columns.different_forms - self._known
        if any(_is_faulty(form_faults(Form(*form))) for form in new):
            return False
        if any(form[0] != OPEN for form in columns.different_forms) and any(
            _is_faulty(mode_faults(event)) for event in columns.records
        ):
            return False
        if len(self._known) < _MOST_KNOWN:
            self._known |= new
        return True


_MOST_KNOWN = 10_000


# ---------------------------------------------------------------- the others


def _by_itself(rule: str) -> Callable[[Any], Iterator[Problem]]:
    return lambda record: ((rule, reason, path) for reason, path in faults_of(record))


def _is_faulty(faults: Iterator[object]) -> bool:
    return any(True for _ in faults)


def _are_consistent(many: ManyRecords) -> bool:
    return not any(_is_faulty(faults_of(record)) for record in many.records)


def _never(many: ManyRecords) -> bool:
    """Of layers that are short: one record at a time is quick enough."""
    return False


class _Ascending:
    """Details come in the order of the lines that they are of; gaps stand anywhere."""

    def __init__(self, kernel: Callable[[], int]) -> None:
        self._last = -1
        self._kernel = kernel

    def problems(self, record: KernelDetail | Gap) -> Iterator[Problem]:
        if isinstance(record, Gap):
            return
        if record.seq <= self._last:
            yield "contract.detail", f"{record.seq} after {self._last}", "$.seq"
        if record.seq >= self._kernel():
            yield "contract.detail", f"the kernel layer has no line {record.seq}", "$.seq"
        self._last = record.seq

    def are_good(self, many: ManyRecords) -> bool:
        numbers = [record.seq for record in many.records if isinstance(record, KernelDetail)]
        if not numbers:
            return True
        steps = zip([self._last, *numbers], numbers, strict=False)
        if numbers[-1] >= self._kernel() or any(one >= other for one, other in steps):
            return False
        self._last = numbers[-1]
        return True


class _Places:
    """Markers stand in order, at places that there are."""

    def __init__(self, kernel: Callable[[], int], sdk: Callable[[], int]) -> None:
        self._last = 0
        self._lines: set[int] = set()  # of the command log
        self._kernel = kernel
        self._sdk = sdk

    def problems(self, marker: Marker) -> Iterator[Problem]:
        if marker.at < self._last:
            yield "contract.marker", f"{marker.at} after {self._last}", "$.at"
        if marker.at > self._kernel():
            message = f"the kernel layer has only {self._kernel()} lines"
            yield "contract.marker", message, "$.at"
        if marker.sdk_seq is not None and not 0 <= marker.sdk_seq < self._sdk():
            message = f"the SDK layer has no line {marker.sdk_seq}"
            yield "contract.marker", message, "$.sdk_seq"
        self._last = max(self._last, marker.at)
        number = marker.command_seq
        if number is not None and number in self._lines:
            message = f"line {number} of the command log has one already"
            yield "contract.marker", message, "$.command_seq"
        self._lines |= set() if number is None else {number}
        for reason, path in faults_of(marker):
            yield "contract.marker", reason, path


RULE = "folder.evidence"
_encode_lines = msgspec.json.Encoder().encode_lines


def evidence_findings(root: Path) -> Iterator[Finding]:
    """Of the files that are there. That one is missing, or no file, the run's manifest shows; and
    what is in a companion follows from the layers, which `verify` looks at."""
    for name in EVIDENCE_FILES:
        if name not in CONTRACTS or name == COMPANION_FILE or not (root / name).is_file():
            continue
        where = visible(str(root / name))
        try:
            with open_beneath(root, name) as file:
                faults = _line_faults if CONTRACTS[name] in LINES else _artifact_faults
                for number, fault in faults(file, name):
                    yield Finding(
                        rule=RULE,
                        severity="error",
                        message=fault.reason,
                        source=where,
                        line=number or UNSET,
                        path=fault.path or UNSET,
                    )
        except InputError:
            continue
        except OSError as error:
            yield Finding(rule=RULE, severity="error", message=os_reason(error), source=where)


def fault_of(line: bytes, contract: str) -> Fault | None:
    """The first that there is."""
    try:
        if contract_of(line) != contract:
            return Fault(f"it is no {contract}", "$.schema")
        {**LINES, **ARTIFACTS}[contract](line)
    except DECODE_ERRORS as error:
        return explain(error)
    return repeated_key(line)


def _artifact_faults(file: IO[bytes], name: str) -> Iterator[tuple[int, Fault]]:
    most = Limits().document
    data = file.read(most + 1)
    if len(data) > most:
        yield 0, Fault(f"it was not looked at: it has more than {most} bytes")
    elif fault := fault_of(data, CONTRACTS[name]):
        yield 0, fault


def _line_faults(file: IO[bytes], name: str) -> Iterator[tuple[int, Fault]]:
    """A last line that has no end is none: the chain shows what is missing."""
    decoder, agreement = KernelDecoder(), Agreement()
    splitter = LineSplitter(name)
    while chunk := file.read(READ):
        lines = splitter.feed(chunk)
        if lines is None or (name == KERNEL_FILE and _are_good(lines, decoder, agreement)):
            continue
        for index, line in enumerate(lines):
            if isinstance(line, OverlongLine):
                yield lines.number + index, Fault("it was not looked at: the line is too long")
            elif fault := fault_of(line, CONTRACTS[name]):
                yield lines.number + index, fault


def _are_good(lines: Lines, decoder: KernelDecoder, agreement: Agreement) -> bool:
    block = join_lines(lines)
    try:
        records = decoder.decode_lines(block)
    except DECODE_ERRORS:
        return False
    if not records or _encode_lines(records) != block:
        return False
    columns = columns_of(records)
    return len(columns.run_ids) == 1 and agreement(columns)


#: decoded at a time: the thread that inflates needs the interpreter now and then
_PIECE = 64 << 10
_HELD = (POLICY_FILE, SDK_FILE, MARKERS_FILE)


class LineChecker(Protocol):
    """Of the contents of one file."""

    def feed(self, data: bytes, /) -> None: ...
    def finish(self) -> None: ...


class LayerChecker:
    """The judge of one layer."""

    def __init__(
        self, book: VerifyReport, name: str, law: LayerRules, gathering: LayerReplay
    ) -> None:
        self.lines = 0
        self.blank = 0  #: of them: the contract takes none of these for a record
        self._book = book
        self._name = name
        self._law = law
        self._gathering = gathering
        self._held: list[bytes] = []
        self._held_length = 0
        self._is_overlong = False
        self._seq = 0

    def feed(self, data: bytes) -> None:
        start = 0
        while start < len(data):
            end = data.rfind(b"\n", start, start + _PIECE) + 1
            if end:
                self._end_lines(data[start:end])
            else:
                end = start + _PIECE
                self._hold(data[start:end])
            start = end

    def _end_lines(self, block: bytes) -> None:
        if self._held:
            block = b"".join((*self._held, block))
        self._held, self._held_length = [], 0
        if self._is_overlong:
            self._is_overlong = False
            block = block[block.find(b"\n") + 1 :]
            self.lines += 1
        self._judge(block)

    def finish(self) -> None:
        rest = b"".join(self._held)
        if rest and not self._is_overlong and not self._book.is_recorded:
            self._judge(rest + b"\n")  # as others may end a file
        elif rest or self._is_overlong:
            self._book.torn[self._name] = self.lines + 1, len(rest)

    def _hold(self, rest: bytes) -> None:
        self._held_length += len(rest)
        if rest and not self._is_overlong:
            self._held.append(rest)
        if self._held_length > self._book.limits.line and not self._is_overlong:
            self._is_overlong = True
            self._held = []
            self._find_overlong(self.lines + 1)

    def _judge(self, block: bytes) -> None:
        if not block:
            return
        count = self._good(block)
        if not count:
            count = block.count(b"\n")
            self._look_closely(block)
        self._book.take_lines(count)
        self.lines += count
        limit = self._book.limits.held
        if self._name in _HELD and self.lines - count <= limit < self.lines:
            self._gathering.miss()
            message = f"more than {limit} lines of a layer that is held as a whole"
            self._book.find("limit.lines", message, self._name)

    def _good(self, block: bytes) -> int:
        """How many lines, where nothing at all is wrong with any of them; else 0."""
        limit = self._book.limits.line
        if len(block) > limit and max(map(len, block.split(b"\n"))) > limit:
            return 0
        try:
            records = self._law.decoder.decode_lines(block)
        except DECODE_ERRORS:
            return 0
        if not records or _encode_lines(records) != block:
            return 0
        many, count = self._law.together(records), len(records)
        if not many.run_ids <= {self._book.run_id}:
            return 0
        if self._law.is_numbered and many.seqs != (*range(self._seq, self._seq + count),):
            return 0
        if not self._law.are_good(many):
            return 0
        self._seq += count
        if isinstance(many, Columns):
            self._gathering.take_columns(many)
        else:
            self._gathering.take(self._name, many.records)
        return count

    def _look_closely(self, block: bytes) -> None:
        for number, line in enumerate(block[:-1].split(b"\n"), self.lines + 1):
            if is_blank(line) and not self._book.is_recorded:
                self.blank += 1
                continue
            if len(line) > self._book.limits.line:
                self._find_overlong(number)
                continue
            try:
                record = self._law.decoder.decode(line)
            except DECODE_ERRORS as error:
                fault = explain(error)
                self._book.find("contract.line", fault.reason, self._name, number, fault.path)
                self._seq += 1
                self._gathering.miss()
                continue
            self._gathering.take(self._name, (record,))
            self._look(line, record, number)

    def _look(self, line: bytes, record: Any, number: int) -> None:
        for rule, message, path in self._problems(line, record):
            self._book.find(rule, message, self._name, number, path)
        if hasattr(record, "run_id"):
            self._book.hold_run_id(record.run_id, self._name, number)

    def _problems(self, line: bytes, record: Any) -> Iterator[Problem]:
        if msgspec.json.encode(record) != line:
            yield from oddities(line, "contract.line", is_ours=self._book.is_recorded)
        if is_too_deep(line, self._book.limits.depth):
            yield "limit.depth", f"nested deeper than {self._book.limits.depth}", ""
        if self._law.is_numbered:
            if record.seq != self._seq:
                yield "contract.seq", f"expected {self._seq}, got {record.seq}", "$.seq"
            self._seq = record.seq + 1
        yield from self._law.problems(record)

    def _find_overlong(self, number: int) -> None:
        self._gathering.miss()
        message = f"the line has more than {self._book.limits.line} bytes"
        self._book.find("limit.line", message, self._name, number)


_CHAINED = (*LAYERS, RUNNER_FILE)  #: the last is written when all else is over
_decode = msgspec.json.Decoder(ChainLink).decode


class Links:
    """The judge of chain.ndjson. It holds a link for each quarter of a megabyte that there may be
    of layers, and no more."""

    def __init__(self, book: VerifyReport) -> None:
        self._book = book
        self._splitter = LineSplitter(book.source(CHAIN_FILE), book.limits.line)
        self._links: list[tuple[int, ChainLink]] = []  #: and the line of each
        self._most = book.limits.decoded // STEP + 2 * len(LAYERS)
        self.vouched: dict[str, ChainLink] = {}  #: by layer: its last link before any that is wrong

    def feed(self, data: bytes) -> None:
        self._judge(self._splitter.feed(data))

    def finish(self) -> None:
        self._judge(self._splitter.finish())

    def _judge(self, lines: Lines | None) -> None:
        for part in lines.parts() if lines else ():
            self._book.take_lines(len(part))
            for number, line in enumerate(part, part.number):
                if isinstance(line, TornLine):
                    self._book.torn[CHAIN_FILE] = number, len(line)
                elif isinstance(line, OverlongLine):
                    message = f"the line has more than {self._book.limits.line} bytes"
                    self._book.find("limit.line", message, CHAIN_FILE, number)
                else:
                    self._read(line, number)

    def _read(self, line: bytes, number: int) -> None:
        try:
            link = _decode(line)
        except DECODE_ERRORS as error:
            self._book.find("contract.line", explain(error).reason, CHAIN_FILE, number)
            return
        if msgspec.json.encode(link) != line:
            message = "it is not written as links are"
            self._book.find("contract.line", message, CHAIN_FILE, number)
        if len(self._links) < self._most:
            self._links.append((number, link))
        else:
            message = "more links than there can be layers"
            self._book.find("integrity.chain", message, CHAIN_FILE, number)

    def against(
        self, tallies: Mapping[str, Tally], *, is_whole: bool
    ) -> Iterator[tuple[int, EntryFault]]:
        """Every fault, with its line in the chain (0: in none)."""
        due = {name: _due(tallies[name]) for name in _CHAINED if name in tallies}
        reached: dict[str, int] = {}
        wrong: set[str] = set()
        for line, link in self._links:
            if link.layer not in due:
                yield line, EntryFault("integrity.chain", f"{link.layer} is not there, or no layer")
                continue
            before = reached.get(link.layer, -1)
            reached[link.layer] = link.bytes
            if reason := _unfit(link, due[link.layer], tallies[link.layer].bytes, before):
                wrong.add(link.layer)
                yield line, EntryFault("integrity.chain", reason)
            elif link.layer not in wrong:
                self.vouched[link.layer] = link
        for name in sorted(due.keys() & {*LAYERS, *reached}):
            yield from _unlinked(tallies[name], reached.get(name), is_whole)


def trusted(
    tallies: Mapping[str, Tally], vouched: Mapping[str, ChainLink], torn: Collection[str]
) -> str:
    """What of a run that was cut off is as it was written, by the last link of each layer."""
    links = {name: link for name, link in sorted(vouched.items()) if link.lines}
    if links:
        firsts = (f"the first {link.lines} lines of {name}" for name, link in links.items())
        text = f"{' and '.join(firsts)} are as they were written"
        later = sum(tallies[name].lines - link.lines for name, link in links.items())
        others = [name for name in LAYERS if name not in links and name in tallies]
        unknown = [f"the {later} after them"] if later else []
        unknown += [name for name in others if tallies[name].bytes]
        if unknown:
            text += f"; nothing vouches for {' and for '.join(unknown)}"
    else:
        why = "its chain has no link that fits" if CHAIN_FILE in tallies else "there is no chain"
        text = f"nothing vouches for what was recorded until then: {why}"
    if torn:
        text += f"; the last line of {' and of '.join(sorted(torn))} has no end"
    return text


def _due(tally: Tally) -> dict[int, ChainLink]:
    """The links that a layer must have, by how far they reach."""
    return {link.bytes: link for link in (*tally.links, tally.link())}


def _unfit(link: ChainLink, due: Mapping[int, ChainLink], size: int, before: int) -> str:
    if link.bytes <= before:
        return f"{link.layer}: {link.bytes} bytes after {before}"
    if link.bytes > size:
        return f"{link.layer} has only {size} bytes, and had {link.bytes}"
    known = due.get(link.bytes)
    if known is None:
        return f"{link.layer}: no link is due after {link.bytes} bytes"
    if known != link:
        return f"the first {link.bytes} bytes of {link.layer} are not what they were"
    return ""


def _unlinked(
    tally: Tally, reached: int | None, is_whole: bool
) -> Iterator[tuple[int, EntryFault]]:
    """A whole run has every link; one that was cut off may have bytes after the last."""
    more = tally.bytes - (reached or 0)
    if not more and (reached is not None or not is_whole):
        return
    message = f"{tally.layer}: no link vouches for its last {more} bytes"
    yield 0, EntryFault("integrity.chain" if is_whole else "integrity.unlinked", message)
