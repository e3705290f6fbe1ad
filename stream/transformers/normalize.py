"""normalize: what a kernel feed saw, as the numbered records of the kernel layer.

Out come events of layers/kernel.ndjson, details of layers/kernel-ext.ndjson, when each event
happened, and what stood between them in its place: gaps, and the counters of the feed. What is
left out is left out by a rule, and counted by it: reads of a loader and a runtime, by the table of
filters; writes to the watched streams, which only place the agent's own words among the events.

Lines of other contracts pass, but for `is_alone`, the file of one feed, where they are rejected.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from stream.codec import (
    DECODE_ERRORS,
    contract_of,
    decode_fault,
    is_blank,
    join_lines,
    make_reject,
    repeated_key,
)
from stream.evidence.markers import Writes
from stream.pipeline import Batch, Counts, Transformer
from stream.records.control import (
    CAPTURES,
    DETAILS,
    GAP,
    KERNEL,
    LINES,
    TELEMETRY,
    TIMES,
    Control,
    Fault,
    Gap,
    kind_of_item,
)
from stream.records.kernel import (
    EVENT_TYPES,
    INODE_RESOLVED,
    OPEN,
    RAW_CAPTURE,
    RAW_KERNEL,
    KernelDetail,
    KernelEvent,
    RawCapture,
    RawEvent,
    kind_of_event,
    unknown_event_type,
)
from stream.transformers.kernel_lines import (
    ENOENT,
    ENOTDIR,
    ROOTS_RULES,
    UNSURE,
    OpenForm,
    event_type_by_peer,
    has_kernel_detail,
    kernel_detail_of,
    kernel_value_of,
    named_path,
    open_form,
)

FolderFilter = Callable[[str], str | None]
_DOTS = ("", ".", "..")  #: no names in a folder


class FilterRule(Struct, frozen=True):
    """A rule by which reads are left out, with its reason."""

    name: str
    what: str
    folders: tuple[str, ...] = ()  #: themselves, and everything below
    files: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  #: in whatever folder
    inside: str = ""  #: what a folder's path must show, for all that is in it
    some_inside: str = ""  #: the same, for what is called like `some` only
    some: str = ""
    but: str = ""  #: what is called like this stays, wherever in `folders` it lies


_SHARED_OBJECT = r"\.so(?:\.[0-9]+)*"
_LIB, _PYTHON = "/lib(?:32|64)?", r"(?:python|pypy)[23]\.[0-9]+t?"

# Where /lib is a link to /usr/lib the canonical path says the latter, and a time zone's file is
# what /etc/localtime leads to: both forms of a place are the same place.
RULES = (
    FilterRule(
        "loader",
        "the dynamic loader's cache and libraries",
        folders=(
            *("/lib", "/lib32", "/lib64"),
            *("/usr/lib", "/usr/lib32", "/usr/lib64"),
        ),
        files=("/etc/ld.so.cache",),
    ),
    FilterRule(
        "locale",
        "locales and the time zone",
        folders=("/usr/share/locale", "/usr/share/zoneinfo"),
        files=("/etc/localtime", "/etc/locale.alias"),  # where /usr/share/locale leads
    ),
    # Not what they have in their memory.
    FilterRule("proc", "what the kernel tells of processes", folders=("/proc",), but="mem"),
    FilterRule("sys", "what the kernel tells of devices", folders=("/sys",)),
    FilterRule("dev", "devices", folders=("/dev",)),
    FilterRule(
        "node_modules",
        "installed dependencies of Node programs",
        names=("node_modules",),
        inside=r"/node_modules(?:/|\Z)",
    ),
    FilterRule(
        "python_packages",
        "installed dependencies of Python programs",
        names=("site-packages", "dist-packages"),
        inside=r"/(?:site|dist)-packages(?:/|\Z)",
    ),
    FilterRule(
        "python_library",
        "Python's own library, wherever it is installed",
        inside=rf"{_LIB}/{_PYTHON}(?:/|\Z)",
        some_inside=rf"{_LIB}\Z",
        some=rf"{_PYTHON}|python3[0-9]+t?\.zip|libpython3.*?{_SHARED_OBJECT}",
    ),
    FilterRule(
        "trust_store",
        "certificates of authorities",
        folders=(
            *("/etc/ssl/certs", "/etc/ca-certificates", "/var/lib/ca-certificates"),
            *("/usr/share/ca-certificates", "/usr/local/share/ca-certificates"),
            *("/etc/pki/ca-trust", "/etc/pki/tls/certs", "/usr/share/pki/ca-trust-source"),
        ),
        files=("/etc/ssl/cert.pem", "/etc/pki/tls/cert.pem", "/etc/ca-certificates.conf"),
        but=r"(?i).*key.*",  # of a server, put beside its certificate
    ),
    FilterRule("runtime_config", "settings of OpenSSL", files=("/etc/ssl/openssl.cnf",)),
    FilterRule(
        "python_bootstrap", "how Python finds itself", names=("pyvenv.cfg", "pybuilddir.txt")
    ),
    FilterRule(
        "toolchain",
        "shared objects of Rust's toolchains and builds",
        some_inside=(
            r"/\.rustup/toolchains/[^/]+(?:/|\Z)"
            r"|/target/(?:[^/]+/)*(?:build|debug|release)(?:/|\Z)"
        ),
        some=rf".*{_SHARED_OBJECT}",
    ),
)

_VIEW = r"/proc/[^/]+/(?:task/[^/]+/)?(?:root|cwd|exe|fd|map_files|ns)(?:/|\Z)|/dev/fd(?:/|\Z)"
_ELSEWHERE = re.compile(rf"{_VIEW}|/dev/(?:stdin|stdout|stderr|shm)(?:/|\Z)")
#: No folder of a canonical path: one behind a link of the kernel's, or a text that is no such path.
_CROOKED = re.compile(rf"{_VIEW}|(?!/|\Z)|.*?/\.{{0,2}}(?:/|\Z)", re.DOTALL)


def filter_rule_for(folder: str, *, is_reached: bool = True) -> FolderFilter:
    """Return, for the path of a folder, what tells which rule a name in it falls under.

    The folder of `/x` is the empty text. A rule for the whole folder goes before the others. What
    was not reached falls under the rules for the system's own folders and files alone.
    """
    if _CROOKED.match(folder):
        return _no_rule
    for rule in RULES:
        if any(folder == top or folder.startswith(f"{top}/") for top in rule.folders):
            return _rule_for_all_but(rule.name, rule.but)
        if is_reached and rule.inside and re.search(rule.inside, folder):
            return _rule_for_all_but(rule.name)
    rule_of: FolderFilter = dict(_names_under_filter_rules(folder, is_reached=is_reached)).get
    for rule in RULES:
        if is_reached and rule.some_inside and re.search(rule.some_inside, folder):
            rule_of = _rule_for_some(rule.name, rule.some, rule_of)
    return rule_of


def is_straight_path(path: str, plain: str) -> bool:
    """Tell whether an absolute path leads where its text says: nothing in it goes up, and it does
    not go through another process's view. `plain` is the same path, normalised."""
    return "/../" not in f"{path}/" and _ELSEWHERE.match(plain) is None


def _no_rule(name: str) -> None:
    return None


def _rule_for_all_but(rule: str, but: str = "") -> FolderFilter:
    stays = re.compile(but, re.DOTALL).fullmatch if but else _no_rule
    return lambda name: None if name in _DOTS or stays(name) else rule


def _rule_for_some(rule: str, names: str, others: FolderFilter) -> FolderFilter:
    is_meant = re.compile(names, re.DOTALL).fullmatch
    return lambda name: rule if is_meant(name) else others(name)


def _names_under_filter_rules(folder: str, *, is_reached: bool) -> Iterator[tuple[str, str]]:
    """Yield the names in a folder whose reads a filter rule leaves out, each with the rule."""
    for rule in RULES:
        if is_reached:
            yield from ((name, rule.name) for name in rule.names)
        for path in (*rule.folders, *rule.files):
            parent, _, name = path.rpartition("/")
            if parent == folder:
                yield name, rule.name


WROTE = "wrote"  #: counted beside the rules of `filters`
RESOLVED = "inode_resolved"  #: how a monitor itself follows a name: counted with it
NO_EVENTS = (WROTE, RESOLVED)  #: nothing that the run did
_MOST_KNOWN = 50_000  #: folders, and forms of opens: a stream of many forgets and learns again

FeedItem: TypeAlias = bytes | RawEvent | RawCapture | Control
_decoder = msgspec.json.Decoder(RawEvent | RawCapture | Gap)
_encoder = msgspec.json.Encoder()


class _NormalizedBatch(Struct):
    """What comes of one batch: events first, and their details behind them, up to whatever stands
    between them in the stream."""

    has_inline_details: bool
    events: list[Any] = []
    times: list[int] = []
    details: list[KernelDetail] = []
    batches: list[Batch[Any]] = []

    def add_kernel_detail(self, detail: KernelDetail) -> None:
        """Add the detail of the kernel event that was added last."""
        (self.events if self.has_inline_details else self.details).append(detail)

    def add_other_item(self, item: Any) -> None:
        """Add an item that is a line of neither layer."""
        self.finished_batches()
        kind = CAPTURES if isinstance(item, RawCapture) else kind_of_item(item)
        if not self.batches or self.batches[-1].kind != kind:
            self.batches.append(Batch(kind, []))
        self.batches[-1].items.append(item)  # type: ignore[attr-defined]

    def finished_batches(self) -> list[Batch[Any]]:
        """Return the batches of the two kernel layers, with what was added last."""
        if self.events:
            self.batches.append(Batch(KERNEL, self.events))
            self.batches.append(Batch(TIMES, self.times))
            self.events, self.times = [], []
        if self.details:
            self.batches.append(Batch(DETAILS, self.details))
            self.details = []
        return self.batches


class Normalize(Transformer):
    """Makes the records of the two kernel layers of raw events, or of lines of them.

    `has_inline_details` puts each detail behind its event, among the events; `keeps_writes` keeps
    who wrote how much to the watched streams, and when.
    """

    name = "normalize"
    kinds = (LINES, TELEMETRY)

    def __init__(
        self,
        run_id: str | None = None,
        *,
        is_alone: bool = False,
        has_inline_details: bool = False,
        keeps_writes: bool = False,
    ) -> None:
        self.counts = Counts()
        self.dropped: dict[str, int] = {}  #: events left out, by rule
        self.events = 0  #: of the kernel layer: the next one's number
        self.details = 0
        self.lost = 0  #: by the gaps
        self.capture: RawCapture | None = None  #: the feed's counters, once they have come
        self.written: dict[str, Writes] = {}  #: to each watched stream, where they are kept
        self._run_id = run_id or "run"
        self._is_alone = is_alone
        self._has_inline_details = has_inline_details
        self._keeps_writes = keeps_writes
        self._reported: Counter[str] = Counter()  # of `dropped`, with counters that went before
        self._forms: dict[tuple[Any, ...], OpenForm] = {}
        self._filters: dict[str, FolderFilter] = {}
        self._failed_filters: dict[str, FolderFilter] = {}

    def feed(self, batch: Batch[FeedItem], /) -> list[Batch[Any]]:
        """Return what a batch becomes, each kind of record in batches of its own."""
        given, at = batch.items, 0
        self.counts.received += len(given)
        out = _NormalizedBatch(has_inline_details=self._has_inline_details)
        items = _decode_telemetry_lines(given) if batch.kind == LINES else given
        while (at := self._add_opens(items, at, out)) < len(items):
            self._add_telemetry(given, at, items[at], out)
            at += 1
        return out.finished_batches()

    def _add_opens(self, items: Sequence[Any], first: int, out: _NormalizedBatch) -> int:
        """Add opens, which nearly all events are, up to the first item that is none; return where
        that stands."""
        forms, filters = self._forms, self._filters
        add, mark = out.events.append, out.times.append
        seq = start = self.events
        at = first
        for event in islice(items, first, None):
            if type(event) is not RawEvent:
                break
            ret = event.ret
            key = (event.flags, event.mode, event.resolve, ret, event.call)
            form = forms.get(key) or self._new_open_form(key, event)
            if form is None:
                break
            value, marks = event.resolved, event.marks
            if value is None or marks or not form.is_done:
                value, rule = self._filter_unsure_open(event, form)
            elif form.is_read:
                folder, slash, name = value.rpartition("/")
                rule_of = filters.get(folder) or self._new_folder_filter(folder)
                rule = rule_of(name) if slash else None
            else:
                rule = None
            at += 1
            if rule is not None:
                self._count_left_out(rule)
                continue
            line = form.copy()
            line.seq, line.pid, line.value = seq, event.pid, value
            add(line)
            mark(event.ts)
            if (
                event.path != value or value is None or marks or event.scope != "both"
            ) and has_kernel_detail(event, OPEN, value):
                self.details += 1
                out.add_kernel_detail(kernel_detail_of(self._run_id, seq, event, OPEN, value))
            seq += 1
        self.events = seq
        self.counts.passed += seq - start
        return at

    def _filter_unsure_open(self, event: RawEvent, form: OpenForm) -> tuple[str | None, str | None]:
        """Return the value, and the rule, of an open that failed or of which not all is known."""
        value = event.resolved if form.is_done else None
        if value is None and not (form.is_done and "uring" in event.marks):  # which nobody followed
            value = named_path(event)
        if not form.is_read or value is None:
            return value, None
        if event.marks == ["shared_files"]:
            return value, self._filter_rule_for_both(value, event.path)
        if not UNSURE.isdisjoint(event.marks):
            return value, None
        if form.is_done:
            return value, self._filter_rule_for(value) if event.resolved else None
        if event.ret not in (-ENOENT, -ENOTDIR) or not is_straight_path(f"/{event.path}", value):
            return value, None
        return value, self._filter_rule_for(value, is_reached=False)

    def _filter_rule_for_both(self, reached: str, given: str | None) -> str | None:
        """Return the rule if what was named and what was found behind the descriptor later fall
        under it, and nobody but root could have put a link there."""
        if given is None or not given.startswith("/") or not is_straight_path(given, given):
            return None
        rule = self._filter_rule_for(reached)
        return rule if rule in ROOTS_RULES and rule == self._filter_rule_for(given) else None

    def _filter_rule_for(self, path: str, *, is_reached: bool = True) -> str | None:
        """Return the rule by which a read of this path is left out."""
        folder, slash, name = path.rpartition("/")
        filters = self._filters if is_reached else self._failed_filters
        rule_of = filters.get(folder) or self._new_folder_filter(folder, is_reached=is_reached)
        return rule_of(name) if slash else None

    def _new_folder_filter(self, folder: str, *, is_reached: bool = True) -> FolderFilter:
        """Make, and remember, the filter that gives the rule of each name in a folder."""
        filters = self._filters if is_reached else self._failed_filters
        if len(filters) >= _MOST_KNOWN:
            filters.clear()
        rule_of = filters[folder] = filter_rule_for(folder, is_reached=is_reached)
        return rule_of

    def _new_open_form(self, key: tuple[Any, ...], event: RawEvent) -> OpenForm | None:
        """Return the form of an open, and remember it; None for another call."""
        if EVENT_TYPES.get(event.call) != OPEN:
            return None
        if len(self._forms) >= _MOST_KNOWN:
            self._forms.clear()
        form = self._forms[key] = open_form(self._run_id, event)
        return form

    def _add_telemetry(
        self, batch: Sequence[FeedItem], index: int, item: Any, out: _NormalizedBatch
    ) -> None:
        """Add what is no open, or has not been decoded yet."""
        if isinstance(item, bytes):
            try:
                item = _decoder.decode(item)
            except DECODE_ERRORS as error:
                self._add_foreign_line(batch, index, error, out)
                return
            # What comes out as it went in has no key twice.
            line: Any = batch[index]
            if _encoder.encode(item) != line and (repeated := repeated_key(line)):
                self._reject_line(batch, index, out, repeated)
                return
            if self._add_opens((item,), 0, out):
                return
        if type(item) is not RawEvent:
            self._add_control_record(item, out)
        elif (event_type := EVENT_TYPES.get(item.call)) is not None:
            self._add_kernel_event(item, event_type, out)
        elif item.call == WROTE:
            self._add_watched_write(item)
        elif (number := unknown_event_type(item.call)) == INODE_RESOLVED:
            self._count_left_out(RESOLVED)
        elif number is not None:
            self._add_kernel_event(item, number, out)
        else:
            fault = Fault(f"{item.call!r} is no call of a feed", "$.call")
            self._reject_line(batch, index, out, fault)

    def _add_kernel_event(self, event: RawEvent, event_type: int, out: _NormalizedBatch) -> None:
        """Add a call of the kernel feed as the next record of the kernel layer, with its detail."""
        event_type = event_type_by_peer(event, event_type)
        value = kernel_value_of(event, event_type)
        out.events.append(
            KernelEvent(
                run_id=self._run_id,
                seq=self.events,
                pid=event.pid,
                event_type=event_type,
                kind=kind_of_event(event_type),
                value=value,
            )
        )
        out.times.append(event.ts)
        if has_kernel_detail(event, event_type, value):
            self.details += 1
            out.add_kernel_detail(
                kernel_detail_of(self._run_id, self.events, event, event_type, value)
            )
        self.events += 1
        self.counts.passed += 1

    def _add_watched_write(self, event: RawEvent) -> None:
        """Leave out a write to a watched stream, and keep its size, its time and its process."""
        self._count_left_out(WROTE)
        if self._keeps_writes:
            writes = self.written.setdefault(event.stream, Writes())
            writes.add_write(event.size or 0, event.ts, event.pid)

    def _add_control_record(self, item: Any, out: _NormalizedBatch) -> None:
        """Pass on a record of the kernel feed that is no call: its counters, or a gap."""
        self.counts.passed += 1
        if isinstance(item, RawCapture):
            self.capture = item
            item = self._capture_with_left_out(item)
        elif isinstance(item, Gap):
            self.lost += int(item.lost)
        out.add_other_item(item)

    def _capture_with_left_out(self, capture: RawCapture) -> RawCapture:
        """Add what was left out, for whoever gets the records and does not know that."""
        filtered, aside = Counter(capture.filtered or {}), Counter(capture.aside or {})
        for rule, count in (Counter(self.dropped) - self._reported).items():
            (aside if rule in NO_EVENTS else filtered)[rule] += count
        self._reported = Counter(self.dropped)
        return msgspec.structs.replace(capture, filtered=dict(filtered), aside=dict(aside))

    def _add_foreign_line(
        self, batch: Sequence[FeedItem], index: int, error: Exception, out: _NormalizedBatch
    ) -> None:
        """Pass on, or reject, a line that is no record of a feed."""
        line = batch[index]
        assert isinstance(line, bytes)
        if is_blank(line):
            self.counts.filtered += 1
            return
        try:
            contract = contract_of(line)
        except DECODE_ERRORS as broken:
            self._reject_line(batch, index, out, decode_fault(broken))
            return
        if contract in (RAW_KERNEL, RAW_CAPTURE, GAP):
            self._reject_line(batch, index, out, decode_fault(error))
        elif self._is_alone:
            self._reject_line(batch, index, out, Fault("is no record of a kernel feed"))
        else:
            self.counts.passed += 1
            out.add_other_item(line)

    def _reject_line(
        self, batch: Sequence[FeedItem], index: int, out: _NormalizedBatch, fault: Fault
    ) -> None:
        self.counts.rejected += 1
        out.add_other_item(make_reject(self.name, batch, index, fault))

    def _count_left_out(self, rule: str) -> None:
        self.counts.filtered += 1
        self.dropped[rule] = self.dropped.get(rule, 0) + 1


def _decode_telemetry_lines(lines: Sequence[Any]) -> Sequence[Any]:
    """Decode all lines at once if each has the very form in which a feed writes it: then none is
    torn, blank or foreign, and none has a key twice. Else return them as they are."""
    try:
        data = join_lines(lines)
        events = _decoder.decode_lines(data)
    except (*DECODE_ERRORS, TypeError):  # or they are decoded already
        return lines
    return events if _encoder.encode_lines(events) == data else lines
