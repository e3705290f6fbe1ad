"""Print the ids of the probes that were denied: the pipeline as a library.

stream matrix | python examples/denials.py
"""

from __future__ import annotations

import sys

import anyio
import msgspec

from stream.pipeline import Batch, Counts, Pipeline
from stream.records.boundary import decode_boundary
from stream.records.control import LINES
from stream.sinks.ndjson import Ndjson
from stream.sources.ndjson import NdjsonSource


class Denied:
    """A transformer is pure: batches in, batches out, and counts that balance."""

    name = "denied"
    kinds = (LINES,)

    def __init__(self) -> None:
        self.counts = Counts()

    def feed(self, batch: Batch[bytes], /) -> list[Batch[bytes]]:
        out = []
        for line in batch.items:
            self.counts.received += 1
            try:
                record = decode_boundary(line)
            except msgspec.DecodeError:
                self.counts.rejected += 1
                continue
            if record.result.observed_result == "denied":
                self.counts.passed += 1
                out.append(record.probe.id.encode())
            else:
                self.counts.filtered += 1
        return [Batch(LINES, out)]

    def finish(self) -> tuple[()]:
        return ()


async def main() -> None:
    report = await Pipeline((NdjsonSource("-"),)).through(Denied()).into(Ndjson("-"))
    for name, counts in report.transformers:
        if counts.rejected:
            sys.exit(f"{name}: {counts}")


anyio.run(main)
