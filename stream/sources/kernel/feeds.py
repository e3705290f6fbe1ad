"""Which feed a run gets: the one that was asked for, or the best that this machine allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Protocol

from anyio.abc import ObjectSendStream

from stream.errors import FeedError
from stream.pipeline import Batch
from stream.records.sightings import Telemetry
from stream.sources.kernel.ebpf import EbpfFeed, probe_ebpf
from stream.sources.kernel.strace import StraceFeed, probe_strace
from stream.sources.kernel.watch import Watch

Choice = Literal["auto", "ebpf", "strace"]


class Feed(Protocol):
    """A source whose last record is its RawCapture. It runs until `end`, and to its last event."""

    name: str

    async def run(self, out: ObjectSendStream[Batch[Telemetry]], /) -> None: ...
    def end(self) -> None: ...
    def close(self) -> None: ...


def probe_feeds(choice: Choice) -> str:
    """Why there can be none of them; empty, where there can."""
    probes: dict[str, Callable[[], str]] = {"ebpf": probe_ebpf, "strace": probe_strace}
    reasons = []
    for name, probe in probes.items():
        if choice in (name, "auto"):
            reason = probe()
            if not reason:
                return ""
            reasons.append(reason)
    return "; ".join(reasons)


def open_feed(
    choice: Choice,
    *,
    guard: int,
    cgroup: Path | None,
    watch: Sequence[Watch],
    ring_bytes: int,
    folder: Path,
) -> EbpfFeed | StraceFeed:
    """Raises FeedError with the reasons of all that were tried."""
    reasons = []
    if choice != "strace":
        try:
            return EbpfFeed.open(guard=guard, cgroup=cgroup, watch=watch, ring_bytes=ring_bytes)
        except FeedError as error:
            reasons.append(str(error))
    if choice != "ebpf":
        try:
            return StraceFeed.open(folder=folder, watch=watch)
        except FeedError as error:
            reasons.append(str(error))
    raise FeedError("; ".join(reasons))
