"""The probe matrix beside an agent run: its parts of the run's pipeline, and what they came to."""

from __future__ import annotations

from collections.abc import Sequence

from stream.boundary.scripts import Stop
from stream.errors import OutputError
from stream.files.append import AppendFile, RecordedFile
from stream.matrix.plan import StartedPlan
from stream.matrix.run import Matrix, MatrixResult
from stream.observe.settings import RunSettings, write_document
from stream.pipeline import LenientSink, LenientSource, Sink, Source, Transformer
from stream.process.guard import Interrupts
from stream.process.tree import Reaper
from stream.records.run import BOUNDARY_FILE, DESCRIPTOR_FILE
from stream.sinks.run_folder import BoundaryFile


class ProbeRecorder:
    """Measure the workspace while the agent works in it."""

    def __init__(self, settings: RunSettings, started: StartedPlan, interrupts: Interrupts) -> None:
        self.troubles: list[str] = []  #: what is lost of what belongs to the record
        self.boundary = BoundaryFile(
            AppendFile(settings.folder / BOUNDARY_FILE), settings.capture_policy.redact_line
        )
        stop = Stop()
        interrupts.listen_for_signals(lambda number: stop.ask_to_stop())
        self._matrix = Matrix(started, timeout=30.0, stop=stop)
        self._descriptor = self._write_descriptor(started, settings)

    @property
    def recorded_files(self) -> dict[str, RecordedFile]:
        """The files that were written, once the pipeline has ended."""
        files = {BOUNDARY_FILE: self.boundary.recorded, DESCRIPTOR_FILE: self._descriptor}
        return {name: file for name, file in files.items() if file is not None}

    def sources(self) -> Sequence[Source]:
        """The sources that the run's pipeline gets."""
        return [LenientSource(self._matrix.source, self._record_loss)]

    def transformers(self) -> Sequence[Transformer]:
        """The transformers that the run's pipeline gets."""
        return [self._matrix.emit]

    def sinks(self) -> Sequence[Sink]:
        """The sinks that the run's pipeline gets."""
        return [LenientSink(self.boundary, BOUNDARY_FILE, self.troubles)]

    def matrix_result(self) -> MatrixResult:
        """Say what the probes came to, once the run is over."""
        recorded = sum(self._matrix.emit.results.values())
        return self._matrix.matrix_result(recorded, Reaper.get().end_strays())

    def _record_loss(self, why: str) -> None:
        self.troubles.append(f"the probes: {why}")

    def _write_descriptor(self, started: StartedPlan, settings: RunSettings) -> RecordedFile | None:
        """Write the probes' descriptor into the run folder, where nobody would know it by its
        name."""
        descriptor = started.plan.descriptor
        if descriptor.is_bundled:
            return None
        try:
            return write_document(settings.folder / DESCRIPTOR_FILE, descriptor.whole_descriptor())
        except OutputError as error:
            self.troubles.append(str(error))
            return None
