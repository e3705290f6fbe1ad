"""The artifacts of a run against their contracts, and against what follows from its layers.

An artifact that the recorder wrote must be, byte for byte, what is derived from the layers again;
its counters must account for every event, once. The contract's own files alone, as the reference
writes them or as they are left of an archive of ours, may claim what either recorder may.

The long artifacts follow from layers that are read after them. They wait, undecoded, until they
can be compared: one that is what follows needs no other check, and is never held as a whole.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from stream.codec import DECODE_ERRORS, decode_fault
from stream.contracts import DOCUMENTS, decoder_of
from stream.evidence.consistency import (
    clean_report_faults,
    empty_report_faults,
    manifest_faults,
    report_faults,
    surface_faults,
    unbound_call_faults,
)
from stream.evidence.derive import derive_artifacts, layer_counts_of, unsettled_calls
from stream.evidence.health import health_claim_faults, health_faults, older_contract_faults
from stream.evidence.markers import TOOL_EVENTS
from stream.evidence.surface import StreamedRecord
from stream.records.artifacts import (
    COMPANION_FILE,
    CORRELATION_FILE,
    DETAIL_FILE,
    HEALTH_FILE,
    KERNEL_FILE,
    MARKERS_FILE,
    SURFACE_FILE,
    SURFACE_SETS,
    ArchiveManifest,
    CapabilitySurface,
    CorrelationReport,
    Marker,
    ObservationHealth,
    SdkEvent,
)
from stream.records.control import Fault
from stream.records.kernel import Count, RawCapture, RunId, Scope
from stream.records.run import MANIFEST_FILE, METADATA_FILE, SUMMARY_FILE
from stream.transformers.normalize import NO_EVENTS, RULES
from stream.verify.replay import LayerReplay
from stream.verify.report import VerifyReport

_FOR_PEOPLE = (METADATA_FILE, SUMMARY_FILE, MANIFEST_FILE)  #: on several lines
_LONG = (SURFACE_FILE, COMPANION_FILE)
_DEEPEST = 3  #: nothing that follows from layers is nested deeper
_IN_MEMORY = 1 << 20  #: bytes
_HEAD = 64 << 10  #: bytes

T = TypeVar("T")
_FILTER_RULES = {rule.name for rule in RULES}


ArtifactFault = tuple[str, str, str]  #: the file, the rule that it breaks, and the reason


def artifact_faults(
    replay: LayerReplay,
    documents: Documents,
    *,
    is_reference: bool,
    is_streamed: bool = False,
) -> Iterator[ArtifactFault]:
    """Compare the artifacts with what follows from the layers, and yield what is wrong.

    `is_reference`: there are the contract's own files alone. `is_streamed`: the archive was made
    from a stream.
    """
    if not replay.is_whole:  # the line that is none has its own finding, and nothing follows
        return
    replay.surface.is_reference = is_reference
    replay.finish()
    if is_reference:
        yield from _reference_artifact_faults(replay, documents)
    else:
        yield from _derived_faults(replay, documents, is_streamed=is_streamed)


def _derived_faults(
    replay: LayerReplay, documents: Documents, *, is_streamed: bool
) -> Iterator[ArtifactFault]:
    """Derive the artifacts from the layers and the companion's counters, and yield differences."""
    stated = documents.decode_head_of(COMPANION_FILE, CompanionCounters, "paths")
    if stated is None:
        yield COMPANION_FILE, "contract.companion", "it is missing, or none"
        return
    try:
        capture = msgspec.convert(stated.capture, RawCapture)
    except msgspec.ValidationError as error:
        yield COMPANION_FILE, "contract.companion", f"$.capture: {error}"
        return
    capture = replace(capture, filtered=UNSET, aside=UNSET)  # which the companion says itself
    derived = derive_artifacts(
        stated.run_id, replay.layer_content(), capture, filtered=stated.filtered, aside=stated.aside
    )
    replay.verified_commands = derived.correlation.verified_commands
    is_same = documents.has_same_bytes(COMPANION_FILE, derived.companion)
    if not is_same and documents.record_of(COMPANION_FILE) is None:
        yield COMPANION_FILE, "contract.companion", "it is missing, or none"
        return
    counted = capture.dropped + capture.unparsed
    # Of a feed that was cut off, or a full disk, the last gaps may be missing.
    if replay.lost > counted or (replay.lost < counted and not capture.unknown_loss):
        message = f"the feed lost {counted} events, and the gaps say {replay.lost}"
        yield DETAIL_FILE, "contract.health", message
    for reason in capture_counter_faults(capture, stated, replay, is_streamed=is_streamed):
        yield COMPANION_FILE, "contract.books", reason
    if replay.missing_details and not capture.unknown_loss:
        message = f"{replay.missing_details} events lack theirs, {replay.first_missing} and others"
        yield DETAIL_FILE, "contract.detail", message
    for reason in replay.unusual_events:
        yield KERNEL_FILE, "contract.kernel_event", reason
    for reason in replay.mismatched_details:
        yield DETAIL_FILE, "contract.detail", reason
    for marker in replay.markers:
        if reason := _marker_mismatch(marker, replay.sdk):
            yield MARKERS_FILE, "contract.marker", f"{marker.seq}: {reason}"
    if reason := _frame_mismatch(replay.markers, replay.events):
        yield MARKERS_FILE, "contract.marker", reason
    yield from _artifact_differences(documents, derived.documents())


def _marker_mismatch(marker: Marker, sdk: Sequence[SdkEvent]) -> str:
    """Say why a marker does not stand for its line of the SDK layer; empty where it does."""
    number = marker.sdk_seq
    if marker.name not in TOOL_EVENTS:
        is_plain = number is None and marker.tool_call_id is None and marker.command is None
        if marker.name == "run_started" and marker.at:
            return f"the run starts after {marker.at} events"
        return "" if is_plain else f"{marker.name} is of no tool call"
    if number is None or not 0 <= number < len(sdk):
        return "it is of no line of the SDK layer"
    event = sdk[number]
    if (event.event_type, event.tool_call_id) != (marker.name, marker.tool_call_id):
        return f"line {number} of the SDK layer says something else"
    return ""


def _frame_mismatch(markers: Sequence[Marker], total: int) -> str:
    """Say why markers do not reach from the start of a run to its end, after so many events."""
    names = [marker.name for marker in markers]
    if not names:
        return ""  # of a stream that had none
    if names[0] != "run_started" or names[-1] != "run_finished":
        return "they do not reach from the start of the run to its end"
    if {"run_started", "run_finished"} & {*names[1:-1]}:
        return "the run starts or ends in the middle"
    at = markers[-1].at
    return "" if at == total else f"the run ends after {at} events, and there are {total}"


def _artifact_differences(
    documents: Documents, made: Mapping[str, StreamedRecord[Any]]
) -> Iterator[ArtifactFault]:
    """Yield each field of a stated artifact that differs from the one derived from the layers."""
    rules = {
        SURFACE_FILE: "contract.surface",
        CORRELATION_FILE: "contract.correlation",
        HEALTH_FILE: "contract.health",
        COMPANION_FILE: "contract.companion",
    }
    for name, long in made.items():
        if documents.has_same_bytes(name, long):
            continue
        stated = documents.record_of(name)
        if stated is None:
            continue  # that it is missing, or none, is a finding of its own
        implied = long.whole_record()
        for field in implied.__struct_fields__:
            here, there = getattr(stated, field), getattr(implied, field)
            if here != there:
                yield name, rules[name], f"$.{field}: {_value_difference(here, there)}"


def _value_difference(stated: Any, implied: Any) -> str:
    """Describe how a field of an artifact differs from the value that the layers imply."""
    if isinstance(stated, list) and isinstance(implied, list):
        for one in implied:
            if one not in stated:
                return f"{_quoted_value(one)} is missing"
        for one in stated:
            if one not in implied:
                return f"{_quoted_value(one)} follows from nothing"
        return "it is in another order, or repeats itself"
    return f"{_quoted_value(stated)}, but {_quoted_value(implied)} follows from the layers"


def _quoted_value(value: Any) -> str:
    """Return a value of an artifact as findings quote it."""
    text = "nothing" if value is UNSET else msgspec.json.encode(value).decode()
    return text if len(text) <= 160 else f"{text[:159]}…"


class CompanionCounters(Struct):
    """Holds what a companion states that does not follow from the layers."""

    run_id: RunId
    capture: dict[str, Any]
    filtered: dict[str, Count] | None
    aside: dict[str, Count] | None


# ------------------------------------------------------------ the counters of the capture


def capture_counter_faults(
    capture: RawCapture, companion: CompanionCounters, replay: LayerReplay, *, is_streamed: bool
) -> Iterator[str]:
    """Say what does not add up in the counters of a capture.

    `is_streamed`: the archive was made from a stream, which need not say what was left out of it.
    """
    if capture.feed == "absent":
        yield from _absent_feed_faults(capture, companion)
        return
    yield from _left_out_faults(companion, may_lack=is_streamed and bool(capture.unknown_loss))
    yield from _capture_cgroup_faults(capture, replay)
    if not capture.unknown_loss:  # else nobody knows what is missing, here as there
        yield from _event_count_faults(capture, companion, replay)
        yield from _capture_scope_faults(capture, replay)
        yield from _capture_feed_faults(capture, replay)


def _absent_feed_faults(capture: RawCapture, companion: CompanionCounters) -> Iterator[str]:
    """Find counters and left-out events in the companion of a run that had no kernel feed."""
    nothing = RawCapture(feed="absent", reason=capture.reason, unknown_loss=capture.unknown_loss)
    if capture != nothing:
        yield "$.capture: there was no feed, and it has books"
    if companion.filtered or companion.aside:
        yield "$.filtered: there was no feed, and something of it was left out"


def _left_out_faults(companion: CompanionCounters, *, may_lack: bool) -> Iterator[str]:
    """Find counts of left-out events in the companion that are unknown, zero or by no rule."""
    for name, counts, known in (
        ("filtered", companion.filtered, _FILTER_RULES),
        ("aside", companion.aside, {*NO_EVENTS}),
    ):
        if counts is None:
            if not may_lack:
                yield f"$.{name}: it is not known, and nothing is said to be missing"
            continue
        for rule, count in counts.items():
            if rule not in known or not count:
                yield f"$.{name}: {rule!r}, {count} times, is by no rule"


def _event_count_faults(
    capture: RawCapture, companion: CompanionCounters, replay: LayerReplay
) -> Iterator[str]:
    """Find where the capture's counts of events and the lines of the layer do not add up."""
    scoped = sum(capture.scopes.values())
    counted = scoped + capture.before_exec
    if capture.got + capture.dropped != capture.seen:
        yield f"$.capture.seen: {capture.got} + {capture.dropped} events, not {capture.seen}"
    # An operation of io_uring is reported twice: when it is asked for, and when it is done.
    if counted > capture.got or (counted < capture.got and capture.uring == "unused"):
        yield f"$.capture.got: {counted} events are accounted for, not {capture.got}"
    left_out = _total_count(companion.filtered) + _total_count(companion.aside)
    if replay.events + left_out != scoped:
        yield (
            f"$.capture.scopes: {scoped} events, and {replay.events} lines and"
            f" {left_out} that were left out"
        )


def _total_count(counts: Mapping[str, int] | None) -> int:
    return sum((counts or {}).values())


def _capture_scope_faults(capture: RawCapture, replay: LayerReplay) -> Iterator[str]:
    """Find scopes in the capture's counters that do not exist or count less than the lines."""
    for scope, count in capture.scopes.items():
        if scope not in get_args(Scope) or count <= 0:
            yield f"$.capture.scopes: {scope!r}, {count} times, is no scope of events"
    for scope, lines in replay.count_scopes().items():
        if lines > capture.scopes.get(scope, 0):
            yield f"$.capture.scopes: {lines} lines are of the scope {scope!r}"


def _capture_cgroup_faults(capture: RawCapture, replay: LayerReplay) -> Iterator[str]:
    """Find where the cgroup status of the capture contradicts its counters and its reasons."""
    is_clean = capture.cgroup == "clean"
    others = [scope for scope in (*capture.scopes, *replay.count_scopes()) if scope != "both"]
    if is_clean and capture.feed == "strace":
        yield "$.capture.cgroup: clean, and strace sees the process tree only"
    is_lossy = capture.dropped or capture.unknown_loss
    if is_clean and (others or capture.lost_forks or capture.misses or is_lossy):
        what = f"events of the scope {others[0]!r}" if others else "processes not followed"
        what = "events lost" if is_lossy else what
        yield f"$.capture.cgroup: clean, and there are {what}"
    if is_clean and capture.cgroup_reasons:
        yield "$.capture.cgroup_reasons: clean, and there are reasons why not"
    if not is_clean and not capture.cgroup_reasons and not capture.unknown_loss:
        yield f"$.capture.cgroup_reasons: {capture.cgroup}, and no reason why"


def _capture_feed_faults(capture: RawCapture, replay: LayerReplay) -> Iterator[str]:
    """Find where reason, ring size or io_uring state of the capture contradict its feed."""
    if capture.reason:
        yield f"$.capture.reason: there was a feed, {capture.feed}"
    size = capture.ring_bytes
    if capture.feed == "ebpf" and (size <= 0 or size & (size - 1)):
        yield f"$.capture.ring_bytes: no ring of eBPF has {size} bytes"
    if capture.feed == "strace" and size:
        yield "$.capture.ring_bytes: strace has no ring"
    # Whoever inherits one may use it unseen without having set it up.
    if capture.uring != "hole" and bool(replay.urings) != (capture.uring == "seen"):
        yield f"$.capture.uring: {capture.uring!r}, and {replay.urings} were set up"
    if capture.uring == "unknown" and not capture.dropped:
        yield "$.capture.uring: it is not known, and nothing was lost"


# ------------------------------------------------------------ the reference's archives


def _reference_artifact_faults(
    replay: LayerReplay, documents: Documents
) -> Iterator[ArtifactFault]:
    """Check surface, health and correlation report of another recorder against the layers."""
    yield from _surface_differences(replay, documents)
    health = documents.record_of(HEALTH_FILE)
    report = documents.record_of(CORRELATION_FILE)
    if isinstance(health, ObservationHealth):
        for reason in _health_differences(health, replay):
            yield HEALTH_FILE, "contract.health", reason
        if isinstance(report, CorrelationReport):
            for reason in clean_report_faults(report, health):
                yield CORRELATION_FILE, "contract.correlation", reason
    if isinstance(report, CorrelationReport):
        reported = [one.tool_call_id for one in replay.sdk if one.event_type in TOOL_EVENTS]
        calls = unbound_call_faults(report, reported, [one.tool_call_id for one in replay.policy])
        unsettled = unsettled_calls(replay.sdk, replay.policy)
        doubts = (f"$.status: clean, and {code}" for code in unsettled if report.status == "clean")
        for reason in (*calls, *doubts, *_binding_faults(report, replay)):
            yield CORRELATION_FILE, "contract.correlation", reason


def _surface_differences(replay: LayerReplay, documents: Documents) -> Iterator[ArtifactFault]:
    """Compare surfaces by the reference's rules, or by ours, as far as these files alone can show
    it."""
    surface = replay.surface
    by_the_reference = surface.streamed_surface(documents.run_id)
    if documents.has_same_bytes(SURFACE_FILE, by_the_reference):
        return
    stated = documents.record_of(SURFACE_FILE)
    if stated is None:
        return
    made = by_the_reference.whole_record()
    for name in SURFACE_SETS:
        here, there = getattr(stated, name), getattr(made, name)
        if here != there and not surface.may_claim(name, here):
            yield SURFACE_FILE, "contract.surface", f"$.{name}: {_value_difference(here, there)}"


def _health_differences(health: ObservationHealth, replay: LayerReplay) -> list[str]:
    """Compare health by the reference's rules, or by ours, with what the layers show."""
    surface = replay.surface
    known = {f"{one.path.removeprefix('$.')}: {one.reason}" for one in health_claim_faults(health)}
    found: list[str] = []
    for is_reference in (False, True):
        surface.is_reference = is_reference
        counts = layer_counts_of(surface, replay.events, replay.policy, replay.sdk)
        faults = health_faults(health, counts, is_reference=True)
        found = [reason for reason in faults if reason not in known]
        if not found:
            break
    surface.is_reference = True
    return found


def _binding_faults(report: CorrelationReport, replay: LayerReplay) -> Iterator[str]:
    """Compare bindings with the calls and decisions of the layers. A window of the whole run holds
    all events."""
    decided: dict[str | None, set[str]] = {}
    for one in replay.policy:
        decided.setdefault(one.tool_call_id, set()).add(one.decision)
    reported = {said.tool_call_id for said in replay.sdk}
    for binding in report.bindings:
        name, count = binding.tool_call_id, binding.kernel_event_count
        decisions = decided.get(name, set())
        is_whole = binding.window.start == "run_started" and binding.window.end == "run_finished"
        if binding.policy_decision is None and len(decisions) == 1:
            yield f"{_quoted_value(name)}: the decision about it is missing"
        elif binding.policy_decision not in (None, *decisions):
            yield f"{_quoted_value(name)}: no such decision is in the policy layer"
        elif not decisions and name not in reported:
            yield f"{_quoted_value(name)}: nobody told of such a call"
        elif count > replay.events or (is_whole and count != replay.events):
            yield f"{_quoted_value(name)}: {count} events, not {replay.events}"
    bound = {one.tool_call_id for one in report.bindings}
    for name in sorted(filter(None, decided.keys() - bound)) if report.status == "clean" else ():
        yield f"{_quoted_value(name)}: the decision is bound to nothing"


# ------------------------------------------------------------ one artifact by itself


class Documents:
    """Keeps the artifacts and documents of a run by file. Asking for one that waits decodes it."""

    def __init__(self, report: VerifyReport) -> None:
        self._report = report
        self._read: dict[str, Any] = {}
        self._waiting: dict[str, Document] = {}
        self._all: list[Document] = []

    def checker_of(self, name: str) -> Document:
        """Return what takes the bytes of an artifact or document of a run, to check it."""
        self.record_of(name)  # a second one of that name
        document = Document(self._report, name, self)
        self._all.append(document)
        return document

    @property
    def run_id(self) -> str:
        """Return the run that everything has to be of."""
        return self._report.run_id or ""

    def add_document(self, document: Document) -> None:
        """Check a document that was read to its end, or let it wait."""
        # Whose run it is of must be known: the first one to say so is the one that counts.
        can_wait = self._report.run_id is not None and self._report.limits.depth >= _DEEPEST
        if document.name in _LONG and can_wait:
            self._waiting[document.name] = document
        else:
            self._check_document(document)

    def record_of(self, name: str) -> Any:
        """Return a document as a record; None where it is not there, or none."""
        if name in self._waiting:
            self._check_document(self._waiting.pop(name))
        return self._read.get(name)

    def decode_head_of(self, name: str, kind: type[T], long_field: str) -> T | None:
        """Decode the fields before a long one, which stays undecoded where the artifact is written
        as the recorder writes it. None: the artifact is not there, or none."""
        if name in self._waiting:
            data = self._waiting[name].read(_HEAD)
            beginning, found, _ = data.partition(b',"%b":' % long_field.encode())
            try:
                return msgspec.json.decode(beginning + b"}" * bool(found), type=kind)
            except DECODE_ERRORS:
                pass  # what is wrong with it is reported where the whole is decoded
        record = self.record_of(name)
        return None if record is None else msgspec.convert(record, kind, from_attributes=True)

    def has_same_bytes(self, name: str, made: StreamedRecord[Any]) -> bool:
        """Tell whether an artifact that waits has these bytes: then it needs no other check."""
        if name not in self._waiting or made.outline.run_id != self._report.run_id:
            return False
        if not self._waiting[name].has_bytes(made.encoded_record()):
            return False
        self._waiting.pop(name).close()
        return True

    def check_waiting_artifacts(self) -> None:
        """Decode and check the artifacts that still wait."""
        for name in list(self._waiting):
            self.record_of(name)

    def close(self) -> None:
        """Remove the temporary files of the documents."""
        for document in self._all:
            document.close()

    def _check_document(self, document: Document) -> None:
        """Decode and check a document that was read to its end, and keep its record."""
        try:
            record = _checked_document(self._report, document.name, document.read())
        finally:
            document.close()
        if record is not None:
            self._read[document.name] = record


class Document:
    """Checks one artifact, or holds it until its layers were read."""

    def __init__(self, report: VerifyReport, name: str, documents: Documents) -> None:
        self.name = name
        self._report = report
        self._documents = documents
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115
        self._length = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes of an artifact or document of a run."""
        self._length += len(data)
        if self._length <= self._report.limits.document:
            self._file.write(data)

    def finish(self) -> None:
        """Check an artifact or document that was read to its end, unless it is too large."""
        limit = self._report.limits.document
        if self._length > limit:
            self._report.report_fault("limit.document", f"more than {limit} bytes", self.name)
            self.close()
        else:
            self._documents.add_document(self)

    def read(self, most: int = -1) -> bytes:
        """Return the beginning of the document, or all of it."""
        self._file.seek(0)
        return self._file.read(most)

    def has_bytes(self, pieces: Iterable[bytes]) -> bool:
        """Tell whether the document has just these bytes."""
        self._file.seek(0)
        is_same = all(self._file.read(len(piece)) == piece for piece in pieces)
        return is_same and self._file.read(2) in (b"\n", b"")

    def close(self) -> None:
        """Remove the temporary file of the document."""
        self._file.close()


def _checked_document(report: VerifyReport, name: str, data: bytes) -> Any:
    """Decode an artifact or document of a run, and report what is wrong with its record."""
    record = _decoded_document(report, name, data)
    if record is None:
        return None
    report.add_faults(report.check_run_id(record.run_id), name)
    report.add_faults(record_faults(record), name)
    return record


def _decoded_document(report: VerifyReport, name: str, data: bytes) -> Any:
    """Decode an artifact or document of a run, and report a form that no recorder writes."""
    if report.is_too_deep(data, name):
        return None
    try:
        record = decoder_of(DOCUMENTS[name])(data)
    except DECODE_ERRORS as error:
        report.add_faults([decode_fault(error)._replace(rule="contract.document")], name)
        return None
    text = msgspec.json.encode(record)
    if name in _FOR_PEOPLE:
        is_as_ours = data == msgspec.json.format(text) + b"\n"
    else:
        is_as_ours = data in (text + b"\n", text)  # it had no newline before
    if not is_as_ours:
        report.add_form_faults(data, "contract.document", name)
    return record


def record_faults(record: object) -> Iterator[Fault]:
    """Yield what an artifact breaks by itself, under the rules of `verify`."""
    for rule, faults in _RULES.get(type(record), {}).items():
        yield from (fault._replace(rule=rule) for fault in faults(record))


#: What a document can break by itself. Two of them the reference's own archives break as well.
_RULES: dict[type, dict[str, Callable[[Any], Iterator[Fault]]]] = {
    ArchiveManifest: {"contract.manifest": manifest_faults},
    CapabilitySurface: {"contract.surface": surface_faults},
    CorrelationReport: {
        "contract.correlation": report_faults,
        "contract.unbound": empty_report_faults,
    },
    ObservationHealth: {
        "contract.health": health_claim_faults,
        "contract.age": older_contract_faults,
    },
}
