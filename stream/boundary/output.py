"""The stdout of one cell, and the judgement whether the record in it is the probe's own.

It is if the probe kept its whole contract: one emission, nothing else on stdout, exit 0, in
time, no process left behind, and words that make a valid record of this cell. Pure.
"""

from __future__ import annotations

import os
import re
from operator import attrgetter
from pathlib import PurePosixPath
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from stream.boundary.builder import BoundaryBuilder, BuiltRecord, Host, within_limits
from stream.boundary.descriptors import Catalogs
from stream.boundary.emit_flags import EmitFlags, clip_text, is_too_deep, parse_emit_words
from stream.boundary.measured import Measured, complete_object
from stream.codec import DECODE_ERRORS, decode_fault, parse_document
from stream.errors import EmitError
from stream.records.boundary import SharedRecord, SharedSnapshot, decode_shared
from stream.records.emission import Frame, FrameError, RawEmission, split_frames
from stream.records.modes import BASELINE

_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


FLOOD = 4 << 20  #: bytes on stderr that are no debugging any more
#: of a record that is refused, what the harness quotes
_SHOWN = ("--probe-name", "--primary-capability-id", "--status", "--errno", "--message")
#: the fields that every record has to have, whatever its pattern is
_NAMING = (
    *("schema_key", "capabilities_schema_version", "probe.id", "probe.primary_capability_id"),
    *("run.mode", "result.observed_result"),
)
#: what a capability is called that is about the workspace, and not about what lies outside of it
_OF_THE_WORKSPACE = re.compile(r"(?<!outside_)workspace|_git_")


class Refused(Exception):  # noqa: N818 - not a failure of ours
    """The probe did not keep its contract: its record is refused."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(reason, sentence)
        self.reason, self.sentence = reason, sentence


class ProbeOutput:
    """The stdout of one cell, and the judgement whether a record of its own is in it."""

    def __init__(self, cell: RawEmission) -> None:
        self.cell = cell
        self.host = Host(cell.os, cell.workspace_root, cell.sandbox_mode)
        self.emitted: dict[str, Any] | None = None
        self.noise = b""
        self._flags: EmitFlags | None = None
        self._plain: bytes | None = None
        # Not the exception: its frames would keep us, and what the cell wrote, in a cycle.
        self._refused: tuple[str, str] | None = None
        try:
            self._read_stdout()
        except Refused as refused:
            self._refused = refused.reason, refused.sentence

    def read_record(
        self, recorder: BoundaryBuilder, measured: Measured | None = None
    ) -> BuiltRecord:
        """Return the probe's own record. Raise Refused."""
        _check_probe_end(self.cell)
        if self._refused:
            raise Refused(*self._refused)
        if self.cell.stderr_bytes > FLOOD:
            raise Refused("flooded", f"the probe wrote {self.cell.stderr_bytes} bytes to stderr")
        if self.cell.stragglers:
            left = ", ".join(self.cell.stragglers[:5])
            raise Refused("left-processes", f"the probe left processes behind, now ended: {left}")
        if self._plain is not None:
            return self._from_plain_record(self._plain, recorder, measured)
        assert self._flags is not None
        texts, result = self._flags.texts, self._flags.texts["--status"]
        capability = texts["--primary-capability-id"].strip()
        self._check_same_cell(texts["--probe-name"], texts["--run-mode"], capability)
        try:
            built = recorder.record_from_flags(self._flags, self.host, measured, self.noise)
        except EmitError as error:
            raise Refused("bad-emission", f"emit-record: {error}") from None
        self._check_target(texts["--target"], result, [capability, *self._flags.secondary])
        return built

    def _read_stdout(self) -> None:
        """Find the one record in a probe's stdout. Raise Refused for none, several or noise."""
        cell = self.cell
        if cell.stdout_bytes > len(cell.stdout):
            self.noise = cell.stdout[:4096]
            raise Refused("flooded", f"the probe wrote {cell.stdout_bytes} bytes to stdout")
        try:
            frames, rest = split_frames(cell.stdout)
        except FrameError as error:
            self.noise = cell.stdout
            raise Refused("bad-emission", f"emit-record: {error}") from None
        self.noise = rest.strip()
        objects = _json_objects(self.noise) if self.noise else []
        if frames:
            self._read_frame(frames[0])
        elif objects:
            self._plain = objects[0]
            value = _decode_object(self._plain)
            self.emitted = None if is_too_deep(value) else value
        if (many := len(frames) + len(objects)) > 1:
            raise Refused("several-records", f"the probe wrote {many} records instead of one")
        # In a mode the sandbox wrote what is around the frame: the control shows that no probe did.
        is_banner = cell.outside is not UNSET and cell.mode != BASELINE and bool(frames)
        if self.noise and not objects and not is_banner:
            raise Refused("noise", "the probe wrote something other than its record to stdout")
        if not many:
            raise Refused("no-record", "the probe wrote no record")

    def _read_frame(self, frame: Frame) -> None:
        """Read the flags of emit-record from the frame that a probe wrote."""
        if frame.os:
            self.host = replace(self.host, os=frame.os)
        try:
            self._flags = parse_emit_words(frame.words)
        except EmitError as error:
            words = [word.text.decode(errors="replace") for word in frame.words[:60]]
            self.emitted = {"words": words}
            raise Refused("bad-emission", f"emit-record: {error}") from None
        texts = self._flags.texts
        self.emitted = {name.strip("-"): texts[name] for name in _SHOWN if name in texts}

    def _from_plain_record(
        self, line: bytes, recorder: BoundaryBuilder, measured: Measured | None
    ) -> BuiltRecord:
        """Take a record that the probe, or a helper of its own, wrote as JSON."""
        try:
            value = parse_document(line)  # which of two equal keys counts is nobody's to guess
        except ValueError as error:
            raise Refused("invalid-record", f"the record is not valid: {error}") from None
        if self.emitted is None:
            raise Refused("invalid-record", "the record is not valid: nested too deeply")
        value = within_limits(value)
        if measured is not None:
            try:
                value = complete_object(value, measured, recorder.descriptor.key)
            except DECODE_ERRORS as error:
                broken = decode_fault(error)
                raise Refused("invalid-record", f"the record is not valid: {broken}") from None
        line = _encode_sorted(value)
        if fault := recorder.descriptor.check(line):
            what = f"{fault.path or '$'}: {fault.reason}"
            raise Refused("invalid-record", f"the record is not valid: {what}")
        record = _decode_named_record(line)
        self._check_same_cell(record.probe.id, record.run.mode, record.probe.primary_capability_id)
        if record.schema_key != recorder.descriptor.key:
            raise Refused("wrong-cell", f"the record names another boundary: {record.schema_key}")
        mode = record.stack.sandbox_mode
        if mode not in (None, self.cell.sandbox_mode):
            raise Refused("wrong-cell", f"the record names sandbox mode {mode}: none such declared")
        workspace, expected = record.run.workspace_root, self.cell.workspace_root
        if None not in (workspace, expected) and workspace != clip_text(expected or ""):
            raise Refused("wrong-cell", f"the record names another workspace: {workspace}")
        _check_same_capabilities(record, recorder.catalogs)
        secondary = record.probe.secondary_capability_ids or ()
        named = [record.probe.primary_capability_id, *secondary]
        self._check_target(record.operation.target, record.result.observed_result, named)
        return BuiltRecord(line, value if measured is not None else record)

    def _check_target(self, target: str, result: str, capabilities: list[str]) -> None:
        """Refuse a target in a folder of the harness: it shows nothing of the workspace."""
        if result == "error" or not any(map(_OF_THE_WORKSPACE.search, capabilities)):
            return
        path = PurePosixPath(os.path.normpath(target))
        if any(path.is_relative_to(folder) for folder in self.cell.harness):
            raise Refused(
                "wrong-place",
                f"the target {target} lies in a folder of the harness, not in the workspace",
            )

    def _check_same_cell(self, probe: str, mode: str, capability: str) -> None:
        """Refuse a record that names another probe, mode or capability than its cell."""
        cell = self.cell
        for what, expected, got in (
            ("probe", cell.probe, probe),
            ("mode", cell.mode, mode),
            ("capability", cell.capability or capability, capability),
        ):
            if got != expected:
                raise Refused("wrong-cell", f"the record names {what} {got}, not {expected}")


def _decode_named_record(line: bytes) -> SharedRecord:
    """Decode a record, which has to name its cell whatever its pattern is."""
    try:
        record = decode_shared(line)
    except DECODE_ERRORS as error:
        raise Refused("invalid-record", f"the record is not valid: {decode_fault(error)}") from None
    for path in _NAMING:
        if not attrgetter(path)(record):
            raise Refused("invalid-record", f"the record is not valid: $.{path}: is missing")
    return record


def _check_same_capabilities(record: SharedRecord, catalogs: Catalogs) -> None:
    """Refuse capabilities that the catalog in force does not have so."""
    primary = record.probe.primary_capability_id
    secondary = record.probe.secondary_capability_ids or ()
    catalog = catalogs.find_catalog(primary)
    for name in (primary, *secondary):
        if (
            catalog is None
            or catalog.key != record.capabilities_schema_version
            or name not in catalog.capabilities
        ):
            raise Refused(
                "wrong-cell",
                f"the record names capability {name} of catalog"
                f" {record.capabilities_schema_version}, which is not in force",
            )
    assert catalog is not None
    context = record.capability_context
    stated = [context.primary, *(context.secondary or ())]
    expected = [primary, *(secondary if context.secondary is not None else ())]
    if not context.primary.id:  # a pattern of the user's own may do without
        stated, expected = stated[1:], expected[1:]
    snapshots = map(catalog.snapshot, expected)
    if stated != [SharedSnapshot(one.category, one.id, one.layer) for one in snapshots]:
        raise Refused("wrong-cell", f"capability_context is not what catalog {catalog.key} says")


def _json_objects(data: bytes) -> list[bytes]:
    """Return one JSON object, or one of each line; none where anything else is there."""
    for texts in ([data], [line for line in data.splitlines() if line.strip()]):
        try:
            for text in texts:
                _decode_object(text)
        except DECODE_ERRORS:
            continue
        return texts
    return []


def _check_probe_end(cell: RawEmission) -> None:
    """Refuse the record of a probe that did not start, was killed, timed out or failed."""
    if cell.spawn_error is not None:
        raise Refused("spawn-failed", f"the probe could not be started: {cell.spawn_error}")
    if cell.timed_out is not None:
        raise Refused("timed-out", f"the probe was still running after {cell.timed_out:g} s")
    if cell.signal is not None:
        raise Refused("killed", f"the probe was killed by {cell.signal}")
    if cell.exit_code is None:
        raise Refused("exit-status", "how the probe ended is not known")
    if cell.exit_code:
        raise Refused("exit-status", f"the probe exited with status {cell.exit_code}")
