"""The kernel feeds that this machine can run, found out once for all tests."""

from __future__ import annotations

from typing import Any

import pytest

from stream.sources.kernel.ebpf import probe_ebpf
from stream.sources.kernel.strace import probe_strace

NO_EBPF, NO_STRACE = probe_ebpf(), probe_strace()  #: why not; empty where they work
needs_ebpf = pytest.mark.skipif(bool(NO_EBPF), reason=NO_EBPF or "it loads")
needs_strace = pytest.mark.skipif(bool(NO_STRACE), reason=f"strace: {NO_STRACE or 'it traces'}")
FEEDS = [pytest.param("ebpf", marks=needs_ebpf), pytest.param("strace", marks=needs_strace)]


def in_turn(*rows: Any) -> pytest.MarkDecorator:
    """Parametrise a test over rows and feeds: in every run each row has one of the feeds, in turn;
    in a sweep it has the others."""
    both = [
        pytest.param(
            *getattr(row, "values", [row]),
            *feed.values,
            marks=[
                *getattr(row, "marks", ()),
                *feed.marks,
                *([pytest.mark.sweep] if (number + turn) % len(FEEDS) else ()),
            ],
        )
        for number, row in enumerate(rows)
        for turn, feed in enumerate(FEEDS)
    ]
    return pytest.mark.parametrize(("row", "feed"), both)
