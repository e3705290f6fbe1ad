"""emit: a raw emission becomes exactly one boundary object.

The record is the probe's own if the probe kept its whole contract: one emission, nothing
else on stdout, exit 0, in time, no process left behind, and words that make a valid record
of this cell. Otherwise the harness writes an `error` record which says what happened.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from msgspec import Struct

from stream.codec import DECODE_ERRORS, contract_of, explain, is_blank, reject
from stream.errors import EmitError
from stream.pipeline import Batch, Counts
from stream.records.control import Control
from stream.records.emission import (
    RAW_EMISSION,
    Frame,
    FrameError,
    RawEmission,
    decode_raw,
    encode_raw,
    split_frames,
)
from stream.stages.flags import Spoken, parse_words
from stream.stages.record import Recorder, Surroundings


@dataclass(frozen=True)
class Failure:
    """A cell whose record the harness had to write."""

    probe: str
    mode: str
    reason: str
    sentence: str


class Breach(Exception):  # noqa: N818 - not a failure of ours
    """The probe did not keep its contract."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class Emit:
    """Raw emissions in, boundary objects out; every other record passes through."""

    name = "emit"

    def __init__(self, recorder: Recorder) -> None:
        self.counts = Counts()
        self.failures: list[Failure] = []
        self.results: Counter[str] = Counter()
        self._recorder = recorder

    def feed(self, batch: Batch[RawEmission | bytes | Control], /) -> Batch[bytes | Control]:
        out: list[bytes | Control] = []
        for index, item in enumerate(batch):
            self.counts.received += 1
            if isinstance(item, RawEmission):
                cell = item
            elif not isinstance(item, bytes):
                self._pass(out, item)
                continue
            elif is_blank(item):
                self.counts.filtered += 1
                continue
            else:
                try:
                    if contract_of(item) != RAW_EMISSION:
                        self._pass(out, item)
                        continue
                    cell = decode_raw(item)
                except DECODE_ERRORS as error:
                    self.counts.rejected += 1
                    out.append(reject(self.name, batch, index, *explain(error)))
                    continue
            self._pass(out, self._record(cell))
        return out

    def finish(self) -> Batch[bytes | Control]:
        return ()

    def _pass(self, out: list[bytes | Control], item: bytes | Control) -> None:
        self.counts.passed += 1
        out.append(item)

    def _record(self, cell: RawEmission) -> bytes:
        heard = _Heard(cell)
        try:
            line, result = heard.record(self._recorder)
        except Breach as breach:
            failure = Failure(cell.probe, cell.mode, breach.reason, str(breach))
            self.failures.append(failure)
            result = "error"
            line = self._recorder.from_harness(
                cell, heard.around, failure.reason, failure.sentence, heard.emitted, heard.noise
            )
        self.results[result] += 1
        return line


class EncodeRaw:
    """Raw emissions as lines, for an `emit` in another process."""

    name = "raw"

    def __init__(self) -> None:
        self.counts = Counts()

    def feed(self, batch: Batch[RawEmission], /) -> Batch[bytes]:
        self.counts.received += len(batch)
        self.counts.passed += len(batch)
        return [encode_raw(cell) for cell in batch]

    def finish(self) -> Batch[bytes]:
        return ()


class _Heard:
    """What one cell's stdout carries, and the judgement on it."""

    def __init__(self, cell: RawEmission) -> None:
        self.cell = cell
        self.around = Surroundings(cell.os, cell.workspace_root, cell.sandbox_mode)
        self.emitted: dict[str, Any] | None = None
        self.noise = b""
        self._said: Spoken | None = None
        self._plain: bytes | None = None
        self._breach: Breach | None = None
        try:
            self._listen()
        except Breach as breach:
            self._breach = breach

    def record(self, recorder: Recorder) -> tuple[bytes, str]:
        """(the probe's own record, its result). Raises Breach."""
        _judge_end(self.cell)
        if self._breach:
            raise self._breach
        if self.cell.stragglers:
            left = ", ".join(self.cell.stragglers[:5])
            raise Breach("left-processes", f"the probe left processes behind, now ended: {left}")
        if self._plain is not None:
            return self._from_plain(self._plain, recorder)
        assert self._said is not None
        self._same_cell(
            self._said.texts["--probe-name"],
            self._said.texts["--run-mode"],
            self._said.texts["--primary-capability-id"].strip(),
        )
        try:
            line = recorder.from_spoken(self._said, self.around)
        except EmitError as error:
            raise Breach("bad-emission", f"emit-record: {error}") from None
        return line, self._said.texts["--status"]

    def _listen(self) -> None:
        cell = self.cell
        if cell.stdout_bytes > len(cell.stdout):
            self.noise = cell.stdout[:4096]
            raise Breach("flooded", f"the probe wrote {cell.stdout_bytes} bytes to stdout")
        try:
            frames, rest = split_frames(cell.stdout)
        except FrameError as error:
            self.noise = cell.stdout
            raise Breach("bad-emission", f"emit-record: {error}") from None
        self.noise = rest.strip()
        objects = _json_objects(self.noise) if self.noise else []
        if frames:
            self._hear(frames[0])
        elif objects:
            self._plain = msgspec.json.format(objects[0], indent=-1)
            self.emitted = msgspec.json.decode(self._plain)
        many = len(frames) + len(objects)
        if many > 1:
            raise Breach("several-records", f"the probe wrote {many} records instead of one")
        if self.noise and not objects:
            raise Breach("noise", "the probe wrote something other than its record to stdout")
        if not frames and not objects:
            raise Breach("no-record", "the probe wrote no record")

    def _hear(self, frame: Frame) -> None:
        if frame.os:
            self.around = replace(self.around, os=frame.os)
        try:
            self._said = parse_words(frame.words)
        except EmitError as error:
            words = [word.text.decode(errors="replace") for word in frame.words[:60]]
            self.emitted = {"words": words}
            raise Breach("bad-emission", f"emit-record: {error}") from None
        kept = ("--probe-name", "--primary-capability-id", "--status", "--errno", "--message")
        texts = self._said.texts
        self.emitted = {name.strip("-"): texts[name] for name in kept if name in texts}

    def _from_plain(self, line: bytes, recorder: Recorder) -> tuple[bytes, str]:
        """A record that the probe, or a helper of its own, wrote as JSON."""
        fault = recorder.descriptor.check(line)
        if fault:
            reason, path = fault
            raise Breach("invalid-record", f"the record is not valid: {path or '$'}: {reason}")
        record = _decode_naming(line)
        probe = record.probe
        catalog = recorder.catalogs.knowing(probe.primary_capability_id)
        if catalog is None or catalog.key != record.capabilities_schema_version:
            raise Breach(
                "wrong-cell",
                f"the record names capability {probe.primary_capability_id} of catalog"
                f" {record.capabilities_schema_version}, which is not in force",
            )
        if record.schema_key != recorder.descriptor.key:
            raise Breach("wrong-cell", f"the record names another boundary: {record.schema_key}")
        self._same_cell(probe.id, record.run.mode, probe.primary_capability_id)
        return line, record.result.observed_result

    def _same_cell(self, probe: str, mode: str, capability: str) -> None:
        cell = self.cell
        for what, expected, got in (
            ("probe", cell.probe, probe),
            ("mode", cell.mode, mode),
            ("capability", cell.capability or capability, capability),
        ):
            if got != expected:
                raise Breach("wrong-cell", f"the record names {what} {got}, not {expected}")


class _NamingProbe(Struct):
    id: str
    primary_capability_id: str


class _NamingRun(Struct):
    mode: str


class _NamingResult(Struct):
    observed_result: str


class _Naming(Struct):
    """The parts of a record that must be the cell's, under any pattern."""

    schema_key: str
    capabilities_schema_version: str
    probe: _NamingProbe
    run: _NamingRun
    result: _NamingResult


def _decode_naming(line: bytes) -> _Naming:
    try:
        return msgspec.json.decode(line, type=_Naming)
    except DECODE_ERRORS as error:  # a pattern of the user's own need not have these
        reason, path = explain(error)
        raise Breach("invalid-record", f"the record is not valid: {path}: {reason}") from None


def _json_objects(data: bytes) -> list[bytes]:
    """One JSON object, or one on each line; none where anything else is there."""
    for texts in ([data], [line for line in data.splitlines() if line.strip()]):
        try:
            for text in texts:
                contract_of(text)
        except DECODE_ERRORS:
            continue
        return texts
    return []


def _judge_end(cell: RawEmission) -> None:
    if cell.spawn_error is not None:
        raise Breach("spawn-failed", f"the probe could not be started: {cell.spawn_error}")
    if cell.timed_out is not None:
        raise Breach("timed-out", f"the probe was still running after {cell.timed_out:g} s")
    if cell.signal is not None:
        raise Breach("killed", f"the probe was killed by {cell.signal}")
    if cell.exit_code:
        raise Breach("exit-status", f"the probe exited with status {cell.exit_code}")
