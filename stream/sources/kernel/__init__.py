"""What the kernel saw of a run, as a source. `open_feed` opens the best feed that works here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, Protocol

from stream.errors import FeedError
from stream.pipeline import Out
from stream.process.messages import Start
from stream.sources.kernel.calls import WatchedFile
from stream.sources.kernel.ebpf import EbpfFeed, probe_ebpf
from stream.sources.kernel.strace import SILENT as SILENT
from stream.sources.kernel.strace import StraceFeed, probe_strace

Name = Literal["ebpf", "strace"]
Choice = Literal["auto", "ebpf", "strace"]


class Feed(Protocol):
    """A source whose last record is its RawCapture. It runs until `end`, and to its last event."""

    @property
    def name(self) -> Name:
        """Return the name of the feed, as a user asks for it."""

    @property
    def burden(self) -> str:
        """Say in a sentence what the feed does to the command; nothing if that is little."""

    def wrap(self, order: Start) -> Start:
        """Return the order to start a command with what the feed needs of it."""

    async def run(self, out: Out, /) -> None:
        """Send what the feed sees, and at last its RawCapture."""

    def end(self) -> None:
        """Say that the command and all that it started are over."""

    def close(self) -> None:
        """Free what the feed holds, whether it ran or not."""


def open_feed(
    choice: Choice,
    *,
    guard: int,
    cgroup: Path | None,
    watched: Mapping[str, int],
    ring_bytes: int,
    folder: Path,
) -> Feed:
    """Open a feed, which takes a while: programs are loaded and tried. Raises FeedError with the
    reasons of all that were tried. `watched`: descriptors of files, by channel, to which writes are
    reported."""
    watch = [WatchedFile.of_descriptor(name, fd) for name, fd in watched.items()]
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
    """Return why `open_feed` would open no feed; nothing if it would open one."""
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
