"""judge: boundary objects pass as they are; at the end, what contradicts a policy follows."""

from __future__ import annotations

from typing import Any

from stream.boundary.contradictions import PromiseCheck
from stream.boundary.descriptors import Descriptor
from stream.pipeline import Batch, batches_by_kind
from stream.records.control import BOUNDARY, FINDINGS, Control, kind_of_item
from stream.records.policies import Policy
from stream.transformers.boundary_lines import BoundaryReader


class Judge:
    """Judges the records of a matrix by a policy."""

    name = "judge"
    kinds = (BOUNDARY,)

    def __init__(self, policy: Policy, descriptor: Descriptor) -> None:
        self.check = PromiseCheck(policy)
        self._reader = BoundaryReader(self.name, descriptor)
        self.counts = self._reader.counts

    def feed(self, batch: Batch[bytes], /) -> list[Batch[Any]]:
        """Judge the records of a batch, and pass it on."""
        bad: list[Control] = []
        for record, _ in self._reader.read_records(batch.items, bad):
            self.check.judge(record)
        return [batch, *batches_by_kind(bad, kind_of_item)]

    def finish(self) -> list[Batch[Any]]:
        """Give the findings."""
        findings = self.check.findings()
        return [Batch(FINDINGS, findings)] if findings else []
