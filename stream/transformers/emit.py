"""emit: a raw emission becomes exactly one boundary object.

The record is the probe's own if the probe kept its contract (see `boundary.output`). Otherwise
the harness writes an `error` record which says what happened.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec import UNSET, Struct

from stream.boundary.builder import BoundaryBuilder
from stream.boundary.descriptors import mode_descriptor
from stream.boundary.emit_flags import clip_text
from stream.boundary.measured import (
    IS_CONTROL,
    NO_CONTROL,
    Measured,
    around_probe,
    control_of,
)
from stream.boundary.output import ProbeOutput, Refused
from stream.codec import (
    DECODE_ERRORS,
    contract_of,
    decode_fault,
    is_blank,
    make_reject,
    repeated_key,
)
from stream.errors import printable
from stream.pipeline import Batch, Counts, Transformer, batches_by_kind
from stream.records.control import BOUNDARY, EMISSIONS, LINES, Control, Fault, kind_of_item
from stream.records.emission import RAW_EMISSION, RawEmission, decode_raw, encode_raw
from stream.records.modes import (
    BASELINE,
    CallContext,
    CellControl,
    Corroboration,
    ModeBoundary,
    OutsideView,
)


class ProbeFailure(Struct, frozen=True):
    """A cell whose record the harness had to write."""

    probe: str
    mode: str
    reason: str
    sentence: str


MOST_FAILURES = 100  #: that are kept: a stream of them may have no end


class Emit(Transformer):
    """Raw emissions in, boundary objects out; every other record passes through."""

    name = "emit"
    kinds = (EMISSIONS, LINES)

    def __init__(self, recorder: BoundaryBuilder) -> None:
        self.counts = Counts()
        self.failed = 0
        self.failures: list[ProbeFailure] = []  #: the first of them
        self.disputed: list[ProbeFailure] = []  #: reports that the kernel contradicts, the first
        self.results: Counter[str] = Counter()
        self._recorder = recorder
        self._for_modes = recorder
        if not recorder.descriptor.measures_modes:
            self._for_modes = BoundaryBuilder(recorder.catalogs, mode_descriptor())
        self._controls: dict[str, CellControl] = {}  #: by probe, of the baseline
        self._around: dict[str, CallContext | None] = {}  #: what was around each control

    def feed(self, batch: Batch[RawEmission | bytes], /) -> list[Batch[Any]]:
        """Turn raw emissions into boundary objects; reject what was run under other contracts."""
        kind = BOUNDARY if batch.kind == EMISSIONS else LINES
        out: list[bytes | Control] = []
        self.counts.received += len(batch.items)
        for index, item in enumerate(batch.items):
            if not isinstance(item, RawEmission) and is_blank(item):
                self.counts.filtered += 1
                continue
            made = item if isinstance(item, RawEmission) else self._read_emission(item)
            if isinstance(made, RawEmission):
                made = self._cell_mismatch(made) or self._make_boundary_record(made)
            if isinstance(made, Fault):
                self.counts.rejected += 1
                out.append(make_reject(self.name, batch.items, index, made))
            else:
                self.counts.passed += 1
                out.append(made)
        return batches_by_kind(
            out, lambda item: kind if isinstance(item, bytes) else kind_of_item(item)
        )

    def _read_emission(self, line: bytes) -> RawEmission | Fault | bytes:
        """Read a raw emission; a line of another contract stays as it is."""
        try:
            if contract_of(line) != RAW_EMISSION:
                return line
            cell = decode_raw(line)
            return repeated_key(line) or cell
        except DECODE_ERRORS as error:
            return decode_fault(error)

    def _cell_mismatch(self, cell: RawEmission) -> Fault | None:
        """Say why a cell is refused: one run under another catalog or boundary would become
        a record of something that was never asked."""
        recorder = self._recorder_for(cell)
        catalogs, descriptor = recorder.catalogs, recorder.descriptor
        if not descriptor.allows_mode(cell.mode):
            modes = "|".join(descriptor.modes)
            return Fault(f"unknown run mode {cell.mode!r} (expected {modes})", "$.mode")
        in_force = catalogs.catalog_for_capability(cell.capability).key
        if cell.catalog != in_force:
            reason = f"was run under catalog {cell.catalog!r}, here it is {in_force!r}"
            return Fault(f"{reason}: name the same one with --catalog", "$.catalog")
        if cell.boundary != descriptor.key:
            reason = f"was run under boundary {cell.boundary!r}, here it is {descriptor.key!r}"
            return Fault(f"{reason}: name the same one with --boundary", "$.boundary")
        return None

    def _recorder_for(self, cell: RawEmission) -> BoundaryBuilder:
        """Return the builder of a cell: a mode's records follow the pattern of modes."""
        return self._recorder if cell.outside is UNSET else self._for_modes

    def _make_boundary_record(self, cell: RawEmission) -> bytes:
        """Make the boundary record of a cell, or one that says why its probe gave none."""
        output, recorder = ProbeOutput(cell), self._recorder_for(cell)
        measured = None if cell.outside is UNSET else self._measured(cell, cell.outside)
        try:
            built = output.read_record(recorder, measured)
        except Refused as refused:
            # It may quote the probe: nothing of it is obeyed by a terminal.
            sentence = printable(clip_text(refused.sentence, 1000))
            self.failed += 1
            if self.failed <= MOST_FAILURES:
                failure = ProbeFailure(printable(cell.probe), cell.mode, refused.reason, sentence)
                self.failures.append(failure)
            built = recorder.record_from_harness(
                cell,
                output.host,
                refused.reason,
                refused.sentence,
                output.emitted,
                output.noise,
                measured,
            )
        if isinstance(built.record, ModeBoundary) and measured and cell.mode == BASELINE:
            self._remember_control(cell.probe, control_of(built.record))
            self._around.setdefault(cell.probe, around_probe(measured.outside.kernel))
        if isinstance(built.record, ModeBoundary):
            self._note_dispute(cell, built.record.corroboration)
        self.results[built.record.result.observed_result] += 1
        return built.line

    def _note_dispute(self, cell: RawEmission, found: Corroboration) -> None:
        """Note a report that the kernel contradicts."""
        if found.state == "contradicted" and len(self.disputed) < MOST_FAILURES:
            sentence = printable(f"the kernel saw something else: {found.detail}")
            probe = printable(cell.probe)
            self.disputed.append(ProbeFailure(probe, cell.mode, found.state, sentence))

    def _measured(self, cell: RawEmission, outside: OutsideView) -> Measured:
        """Return the outside view of a cell, with its control."""
        return Measured(outside, self._control(cell), self._around.get(cell.probe))

    def _control(self, cell: RawEmission) -> CellControl:
        """Return the control of a cell: the record of its probe without a sandbox, which came
        before it."""
        if cell.mode == BASELINE:
            return IS_CONTROL
        return self._controls.get(cell.probe, NO_CONTROL)

    def _remember_control(self, probe: str, control: CellControl) -> None:
        """Keep the control of a probe. Of several runs, one that failed counts."""
        known = self._controls.get(probe)
        if known is None or known.state == "succeeded":
            self._controls[probe] = control


class EncodeRaw(Transformer):
    """Raw emissions as lines, for an `emit` in another process."""

    name = "raw"
    kinds = (EMISSIONS,)

    def __init__(self) -> None:
        self.counts = Counts()

    def feed(self, batch: Batch[RawEmission], /) -> list[Batch[bytes]]:
        """Encode raw emissions, one line each."""
        self.counts.received += len(batch.items)
        self.counts.passed += len(batch.items)
        return [Batch(LINES, [encode_raw(cell) for cell in batch.items])]
