"""The documents of a run beside its evidence: each by its own rules, then all against each other.

Events must keep the rules of `stream check`; boundary objects, changes and commands those of
`stream validate`. Metadata, summary, events, the runner layer and the evidence must state the same:
a number that the recorder never knew is null, and equals nothing but null.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from stream.archive.chain import Tally
from stream.boundary.descriptors import Descriptor, find_boundaries, make_carried_descriptor
from stream.codec import (
    DECODE_ERRORS,
    LARGEST,
    Lines,
    LineSplitter,
    OverlongLine,
    parse_document,
    split_json_path,
)
from stream.errors import InputError
from stream.evidence.health import ABSENT_NOTE
from stream.pipeline import Batch
from stream.records.artifacts import (
    EVIDENCE_FILES,
    NOT_ASKED,
    RUNNER_FILE,
    CorrelationReport,
    ObservationHealth,
    RunnerFinished,
    RunnerStarted,
)
from stream.records.control import FINDINGS, LINES, Fault
from stream.records.decision import CLAUDE_CODE
from stream.records.run import (
    ARTIFACTS,
    BOUNDARY_FILE,
    CHANGES_FILE,
    COMMANDS_FILE,
    DESCRIPTOR_FILE,
    EVENTS_FILE,
    MANIFEST_FILE,
    SUMMARY_FILE,
    Beginning,
    Manifest,
    RunMetadata,
    RunSummary,
    decode_change,
)
from stream.transformers.invariants import Invariants
from stream.transformers.validate import Validate
from stream.verify.report import VerifyReport
from stream.verify.run_folder import EventStatements, items_within, value_within

Event = Mapping[str, Any]
#: What one document states, and another says: the name, the value, the other's name, its value.
Statement = tuple[str, Any, str, Any]
_ENDING = (
    *("exit_code", "signal", "not_started", "duration_ms", "containment", "timed_out"),
    *("signals_passed_on", "outlived", "stopped"),
)
_AT_EXIT = ("exit_code", "signal", "not_started", "duration_ms")
_SESSION = ("session_id", "agent_id", "agent_version", "environment")
_EVIDENCE = (
    *("kernel_layer", "kernel_events", "kernel_lost"),
    *("cgroup_correlation", "tool_calls", "correlation"),
)
_DENIALS = re.compile(r"; declared_permission_denials=([0-9]+) ")
_INCOMPLETE = re.compile(r"; incomplete: ([0-9]+)\Z")


class RunDocuments(Struct):
    """Holds the documents of a run. None: one is not there, or cannot be read."""

    metadata: RunMetadata | None
    summary: RunSummary | None
    manifest: Manifest | None
    health: ObservationHealth | None
    report: CorrelationReport | None
    kernel_events: int
    has_layers: bool
    runner: list[RunnerStarted | RunnerFinished]
    event_statements: EventStatements
    counted: Mapping[str, int]  #: records of a file
    tallies: Mapping[str, Tally]  #: of all files

    @property
    def events(self) -> Mapping[str, Event]:
        """Return the events by their names."""
        return self.event_statements.named

    @property
    def has_evidence(self) -> bool:
        """Return whether its recorder was asked for kernel evidence: what stands for it otherwise
        is made when the run is archived."""
        is_made = self.health is not None and f"{ABSENT_NOTE}: {NOT_ASKED}" in self.health.notes
        return self.has_layers and not is_made


def document_faults(run: RunDocuments) -> Iterator[tuple[str, int, Fault]]:
    """Compare what a run lists with its files. Yield each fault with its file and line."""
    is_poc = run.metadata is not None and run.metadata.profile == "poc"
    for agent, line in run.event_statements.agents.items() if is_poc else ():
        if agent != CLAUDE_CODE:
            message = f"expected {CLAUDE_CODE!r}, got {agent!r}: the run's profile is poc"
            yield EVENTS_FILE, line, Fault(message, rule="contract.agent")
    yield from _mention_faults(run)
    for fault in _manifest_faults(run.manifest, run) if run.manifest else ():
        yield MANIFEST_FILE, 0, fault._replace(rule="contract.listed")
    for what in run.summary.incomplete if run.summary else ():
        message = f"the recorder itself lost: {what}"
        yield SUMMARY_FILE, 0, Fault(message, rule="contract.losses")


def _mention_faults(run: RunDocuments) -> Iterator[tuple[str, int, Fault]]:
    """Compare the files that events name. An archive that was made from a stream has records, and
    no other files."""
    files = [(mention, *mention.file) for mention in run.event_statements.mentions if mention.file]
    held = [one for one in files if one[2].startswith("sha256:")]
    if any(name.startswith(f"{ARTIFACTS}/") for name in run.tallies):
        for mention, name, digest in held:
            if reason := _listing_difference(run.tallies.get(name), name, digest):
                yield EVENTS_FILE, mention.line, Fault(reason, mention.path, "contract.listed")
    elif held:
        message = f"of {len(held)} files that the events name, none is here"
        yield EVENTS_FILE, 0, Fault(message, rule="contract.artifacts")


def _manifest_faults(manifest: Manifest, run: RunDocuments) -> Iterator[Fault]:
    """Compare the files that the run's manifest lists with the files that were read."""
    for index, file in enumerate(manifest.files):
        tally = run.tallies.get(file.path)
        if reason := _listing_difference(tally, file.path, file.sha256, file.bytes):
            yield Fault(reason, f"$.files[{index}]")
    # What stands for evidence that nobody asked for was made together with the archive.
    made = () if run.has_evidence else EVIDENCE_FILES
    known = {EVENTS_FILE, MANIFEST_FILE, *made, *(file.path for file in manifest.files)}
    for name in sorted(run.tallies.keys() - known):
        yield Fault(f"{name} is not listed")


def _listing_difference(
    tally: Tally | None, name: str, sha256: str, size: int | None = None
) -> str:
    """Say why a file of a run is not as it is listed; empty where it is."""
    if tally is None:
        return f"{name} is not there"
    if size is not None and tally.bytes != size:
        return f"{name} has {tally.bytes} bytes, not {size}"
    is_same = sha256.removeprefix("sha256:") == tally.sha256
    return "" if is_same else f"{name} is not what was hashed"


def document_disagreements(run: RunDocuments) -> Iterator[str]:
    """Say where the documents of a run contradict each other."""
    for what, stated, where, said in _run_statements(run):
        if stated != said or type(stated) is not type(said):
            yield f"{what}: {_quoted(stated)}, but {_quoted(said)} by {where}"
    commands = run.summary.commands if run.summary else 0
    if commands and not _artifact_facts(run, "commands_observed", "command_log"):
        yield f"commands: {commands}, and no event names their log"


def command_log_faults(run: RunDocuments, verified: Collection[int]) -> Iterator[str]:
    """Compare the command log with the lines of it that a wrapper was seen to write.

    Runs of former versions do not count these.
    """
    for number in sorted({*verified} - {*range(run.counted.get(COMMANDS_FILE, 0))}):
        yield f"line {number} of {COMMANDS_FILE}: a wrapper wrote it, and it is not there"
    stated = _artifact_facts(run, "commands_observed", "command_log").get("vouched_count", UNSET)
    if stated is not UNSET and (stated != len(verified) or type(stated) is not int):
        yield f"vouched_count: {_quoted(stated)}, but {_quoted(len(verified))} by the evidence"


def _run_statements(run: RunDocuments) -> Iterator[Statement]:
    """Yield what metadata and summary state, each beside what another document says of it."""
    if run.metadata is not None:
        yield from _metadata_statements(run.metadata, run)
    if run.summary is not None:
        yield from _output_statements(run.summary, run)
        yield from _summary_statements(run.summary, run)
        yield from _ending_statements(run.summary, run)
        yield from _evidence_statements(run.summary, run)


def _metadata_statements(metadata: RunMetadata, run: RunDocuments) -> Iterator[Statement]:
    """Yield what the metadata state, beside what events and runner layer say of it."""
    for name, event in run.events.items():
        for key in _SESSION:
            said = value_within(event, "session", key)
            yield f"metadata {key}", getattr(metadata, key), name, said
        mode = value_within(event, "prompt_provenance", "capture_mode")
        yield "metadata capture_mode", metadata.capture_mode, name, mode
        ids = [value_within(one, "id") for one in items_within(event, "request", "constraints")]
        yield "metadata constraints", metadata.constraints, name, ids
    prepared = _artifact_facts(run, "workspace_prepared", "workspace")
    for key, stated in (("mode", metadata.workspace_mode), ("source", metadata.source)):
        yield f"metadata {key}", stated, "workspace_prepared", prepared.get(key)
    invoked = _artifact_facts(run, "agent_invoked", "process")
    yield "metadata argv", metadata.argv, "agent_invoked", invoked.get("argv")
    for key in ("agent_known_by", "version_known_by"):
        if key in invoked:  # a run of before does not say it
            yield f"metadata {key}", getattr(metadata, key), "agent_invoked", invoked[key]
    for start in run.runner:
        if isinstance(start, RunnerStarted):
            yield "metadata argv", metadata.argv, RUNNER_FILE, start.command
            yield "window_elapsed_ms", 0, RUNNER_FILE, start.window_elapsed_ms
            yield "metadata agent_id", metadata.agent_id, RUNNER_FILE, start.agent_shim


def _output_statements(summary: RunSummary, run: RunDocuments) -> Iterator[Statement]:
    """Yield the bytes of stdout and stderr in the summary, beside what the events say of them."""
    is_full = run.metadata is not None and run.metadata.capture_mode == "full"
    for kind in ("stdout", "stderr"):
        kept = _artifact_facts(run, "artifacts_captured", f"{kind}_log")
        what, stated = f"{kind}_bytes", getattr(summary, f"{kind}_bytes")
        yield what, stated, "artifacts_captured", kept.get("total")
        if is_full and not kept.get("lost_bytes"):
            yield what, stated, "its file", kept.get("bytes")
    if is_full:
        yield "redacted", summary.redacted, "metadata capture_mode", None


def _summary_statements(summary: RunSummary, run: RunDocuments) -> Iterator[Statement]:
    """Yield what the summary counts, and what other documents say of that."""
    diff = _artifact_facts(run, "fs_diff_captured", "diff")
    for what, key in (
        ("changed_paths", "changed_count"),
        ("changed_inside_git", "inside_git"),
        ("changed_after_exit", "has_after_exit"),
    ):
        yield what, getattr(summary, what), "fs_diff_captured", diff.get(key)
    if diff:
        yield "changed_paths", summary.changed_paths, CHANGES_FILE, run.counted.get(CHANGES_FILE)
    objects = run.counted.get(BOUNDARY_FILE)
    yield "boundary_objects", summary.boundary_objects, BOUNDARY_FILE, objects
    if log := _artifact_facts(run, "commands_observed", "command_log"):
        yield "commands", summary.commands, "commands_observed", log.get("observed_count")
        yield "commands", summary.commands, COMMANDS_FILE, run.counted.get(COMMANDS_FILE)
    name = "run_finished"
    finished = run.events.get(name)
    for part in ("alignment", "quality", "policy"):
        said = value_within(finished, "evaluation", part, "status")
        yield part, getattr(summary, part), name, said
    sentence = str(value_within(finished, "agent_action", "action_summary"))
    # As text: whoever forges may write any number.
    denials, lost = _DENIALS.search(sentence), _INCOMPLETE.search(sentence)
    stated = str(summary.declared_denials or 0)
    yield "declared_denials", stated, name, denials[1] if denials else "0"
    yield "declared_error", bool(summary.declared_error), name, "; declared_error=yes" in sentence
    yield "incomplete", str(len(summary.incomplete)), name, lost[1] if lost else "0"


def _ending_statements(summary: RunSummary, run: RunDocuments) -> Iterator[Statement]:
    """Yield how the agent ended by the summary, beside what events and runner layer say."""
    for name, keys in (("agent_completed", _AT_EXIT), ("artifacts_captured", _ENDING)):
        facts = _artifact_facts(run, name, "process")
        for key in keys:
            yield key, getattr(summary, key), name, facts.get(key)
    is_signal = summary.signal is not None
    is_started = not summary.not_started
    code = None if is_signal or not is_started else summary.exit_code
    for end in run.runner:
        if isinstance(end, RunnerFinished):
            yield "exit_code", code, RUNNER_FILE, end.exit_code
            yield "signal", summary.exit_code - 128 if is_signal else None, RUNNER_FILE, end.signal
            yield "success", is_started and not summary.exit_code, RUNNER_FILE, end.success
            yield "window_elapsed_ms", summary.duration_ms, RUNNER_FILE, end.window_elapsed_ms


def _evidence_statements(summary: RunSummary, run: RunDocuments) -> Iterator[Statement]:
    """Yield what the summary says of the kernel evidence, beside what the artifacts say."""
    follows: dict[str, Any] = dict.fromkeys(_EVIDENCE)
    # One whose feed failed says so, and what there is was never summed up.
    if run.has_evidence and not (summary.incomplete and summary.kernel_layer is None):
        if run.health is not None:
            follows["kernel_layer"] = run.health.kernel_layer
            follows["kernel_lost"] = run.health.ringbuf_drops
            follows["cgroup_correlation"] = run.health.cgroup_correlation
        if run.report is not None:
            follows["tool_calls"] = len(run.report.bindings)
            follows["correlation"] = run.report.status
        follows["kernel_events"] = run.kernel_events
    for key, said in follows.items():
        yield key, getattr(summary, key), "the evidence", said


def _quoted(value: Any) -> str:
    """Return a value of a document as findings quote it."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 100 else f"{text[:99]}…"


def _artifact_facts(run: RunDocuments, event: str, kind: str) -> Mapping[str, Any]:
    """Return the facts of an event's artifact of a kind; empty where it has none."""
    for item in items_within(run.events.get(event), "agent_action", "artifacts"):
        if value_within(item, "type") == kind:
            metadata = value_within(item, "metadata")
            return metadata if isinstance(metadata, dict) else {}
    return {}


CUT_OFF = "run.incomplete"


class EventsChecker:
    """Checks events.jsonl, and keeps what other files must agree with."""

    def __init__(self, report: VerifyReport, beginning: Beginning | None) -> None:
        self.event_statements = EventStatements(report.limits.entries)
        self._report = report
        # Which profile the run is to be held to, its metadata says, which come after its events.
        self._stage = Invariants("agents", is_alone=True, source=report.source_name_of(EVENTS_FILE))
        self._splitter = LineSplitter(report.source_name_of(EVENTS_FILE), report.limits.line)
        self._beginning = beginning
        self._digest = hashlib.sha256()
        self._left = beginning.bytes if beginning else 0

    def feed(self, data: bytes) -> None:
        """Check the next bytes of the events file."""
        if self._left:
            self._digest.update(data[: self._left])
            self._left -= min(self._left, len(data))
        self._check_events(self._splitter.feed(data))

    def finish(self) -> None:
        """Check the end of the events file."""
        self._check_events(self._splitter.finish())
        self._add_findings(self._stage.finish())
        if self._beginning and (self._left or self._digest.hexdigest() != self._beginning.sha256):
            message = f"the first {self._beginning.bytes} bytes are not what the run lists"
            self._report.report_fault("contract.listed", message, EVENTS_FILE)

    @property
    def _is_cut_off(self) -> bool:
        """Return whether the run is a folder without an end: one other finding says so."""
        return self._report.is_folder and not self.event_statements.is_finished

    def _check_events(self, lines: Lines | None) -> None:
        """Check lines of the events file by the event rules, and keep what they state."""
        for part in lines.bounded_parts() if lines else ():
            self._report.count_lines(len(part))
            for index, line in enumerate(part):
                self._read_event(line, part.number + index)
            # It is known by now whether the run ends here.
            self._add_findings(self._stage.feed(Batch(LINES, part)))

    def _add_findings(self, made: Iterable[Batch[Any]]) -> None:
        """Add what the event rules found to the report of `stream verify`."""
        for item in chain.from_iterable(one.items for one in made if one.kind == FINDINGS):
            if not (item.rule == CUT_OFF and self._is_cut_off):
                named = msgspec.structs.replace(item, rule=f"contract.check.{item.rule}")
                self._report.add_finding(named, EVENTS_FILE)

    def _read_event(self, line: bytes, number: int) -> None:
        """Keep what the rules of events alone cannot check. Other lines are found bad by these."""
        if isinstance(line, OverlongLine) or self._report.is_too_deep(line, EVENTS_FILE, number):
            return
        event = self.event_statements.add_line(line, number)
        run_id = value_within(event, "session", "run_id")
        if isinstance(run_id, str):
            faults = self._report.check_run_id(run_id, "$.session.run_id")
            self._report.add_faults(faults, EVENTS_FILE, number)


class DescriptorChecker:
    """Checks the descriptor that came with the boundary objects."""

    def __init__(self, report: VerifyReport) -> None:
        self.descriptors: list[Descriptor] = []
        self._report = report
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        """Check the next bytes of the descriptor."""
        if len(self._data) <= LARGEST:
            self._data += data

    def finish(self) -> None:
        """Check the descriptor, which was read to its end."""
        path = Path(DESCRIPTOR_FILE)
        data = bytes(self._data)
        if len(data) > min(LARGEST, self._report.limits.document):
            self._report.report_fault("limit.document", "it is too large", DESCRIPTOR_FILE)
        elif not self._report.is_too_deep(data, DESCRIPTOR_FILE):
            try:
                self.descriptors.append(make_carried_descriptor(parse_document(data), path))
            except (InputError, ValueError) as error:
                fault = split_json_path(str(error).removeprefix(f"{path}: "))
                self._report.add_faults([fault._replace(rule="contract.document")], DESCRIPTOR_FILE)


class RecordsChecker:
    """Checks lines that `stream validate` knows."""

    def __init__(
        self, report: VerifyReport, name: str, boundary: str | None, carried: Sequence[Descriptor]
    ) -> None:
        self._report = report
        self.count = 0  #: of its records, those that count as one thing more
        self._name = name
        self._stage = Validate(find_boundaries(boundary, carried), is_last=True)
        self._splitter = LineSplitter(report.source_name_of(name), report.limits.line)

    def feed(self, data: bytes) -> None:
        """Check the next bytes of the file of records."""
        self._check_records(self._splitter.feed(data))

    def finish(self) -> None:
        """Check the end of the file of records."""
        self._check_records(self._splitter.finish())

    def _check_records(self, lines: Lines | None) -> None:
        """Validate and count the lines of a file of records, and report what is wrong."""
        for part in lines.bounded_parts() if lines else ():
            self._report.count_lines(len(part))
            self.count += sum(map(_is_counted_change if self._name == CHANGES_FILE else bool, part))
            for made in self._stage.feed(Batch(LINES, part)):
                for item in made.items if made.kind == FINDINGS else ():
                    named = msgspec.structs.replace(item, rule="contract.record")
                    self._report.add_finding(named, self._name)


def _is_counted_change(line: bytes) -> bool:
    """Tell whether a change counts: a folder that came with its files is no other changed path."""
    try:
        change = decode_change(line)
    except DECODE_ERRORS:
        return False
    states = (change.before, change.after)
    return bool(change.not_in_patch) or any(state and state.kind != "dir" for state in states)
