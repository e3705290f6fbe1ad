"""The steps of attribution, line by line: the plain form of what `verify` reads in columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from stream.evidence.attribution import AttributionEvent, KernelLosses, event_details_of
from stream.records.control import Gap
from stream.records.kernel import KernelDetail, KernelEvent

_decode_event = msgspec.json.Decoder(KernelEvent).decode
_decode_detail = msgspec.json.Decoder(KernelDetail | Gap).decode


def attribution_events(
    kernel: Iterable[bytes], details: Iterable[bytes]
) -> Iterator[AttributionEvent]:
    """Yield the events of the lines of both files."""
    found = {one.seq: one for one in map(_decode_detail, details) if isinstance(one, KernelDetail)}
    for number, event in enumerate(map(_decode_event, kernel)):
        yield event.pid, event.event_type, event_details_of(event, found.get(number)), 1


def lost_between(details: Iterable[bytes], total: int) -> list[tuple[int, int]]:
    """Return where events were lost, by the lines of the details file."""
    losses = KernelLosses()
    for one in map(_decode_detail, details):
        if isinstance(one, Gap):
            losses.add_kernel_gap(begins=one.begins)
        else:
            losses.add_kernel_detail(one.seq)
    return losses.loss_intervals(total)
