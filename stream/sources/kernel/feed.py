"""Which feed a run gets: the one that was asked for, or the best that this machine allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Protocol

from stream.errors import FeedError
from stream.pipeline import Out
from stream.process.messages import Start
from stream.sources.kernel.decode import WatchedFile
from stream.sources.kernel.ebpf import EbpfFeed, probe_ebpf
from stream.sources.kernel.strace import StraceFeed, probe_strace

Name = Literal["ebpf", "strace"]
Choice = Literal["auto", "ebpf", "strace"]


class Feed(Protocol):
    """A source whose last record is its RawCapture. It runs until `end`, and to its last event."""

    @property
    def name(self) -> Name: ...
    @property
    def burden(self) -> str:
        """What it does to the command, in a sentence; empty: nothing to speak of."""

    def wrap(self, order: Start) -> Start:
        """The order, with what the feed needs of it."""

    async def run(self, out: Out, /) -> None: ...
    def end(self) -> None: ...
    def close(self) -> None: ...


def open_feed(
    choice: Choice,
    *,
    guard: int,
    cgroup: Path | None,
    watch: Sequence[WatchedFile],
    ring_bytes: int,
    folder: Path,
) -> Feed:
    """Takes a while: programs are loaded and tried. Raises FeedError with the reasons of all that
    were tried."""
    ways: dict[Name, Callable[[], Feed]] = {
        "ebpf": lambda: EbpfFeed.open(
            guard=guard, cgroup=cgroup, watch=watch, ring_bytes=ring_bytes
        ),
        "strace": lambda: StraceFeed.open(folder=folder, watch=watch),
    }
    reasons = []
    for name, way in ways.items():
        if choice in (name, "auto"):
            try:
                return way()
            except FeedError as error:
                reasons.append(str(error))
    raise FeedError("; ".join(reasons))


def probe_feeds(choice: Choice, *, ring_bytes: int, folder: Path) -> str:
    """Why `open_feed` could give none; empty, where it could."""
    ways: dict[Name, Callable[[], str]] = {
        "ebpf": lambda: probe_ebpf(ring_bytes),
        "strace": lambda: probe_strace(folder),
    }
    reasons = []
    for name, probe in ways.items():
        if choice in (name, "auto"):
            reason = probe()
            if not reason:
                return ""
            reasons.append(reason)
    return "; ".join(reasons)
