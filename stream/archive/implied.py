"""What the layers of a run imply, against what its artifacts say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from stream.archive.header import Fault


class Evidence(Struct):
    """All that an artifact can be held against."""

    documents: Mapping[str, Any]  #: by file: the records that could be read
    names: set[str]  #: of all files
    lines: Mapping[str, int]  #: of each layer
    read: Callable[[str], Iterator[bytes]]  #: the contents of a file, once more, in blocks


def implied_faults(evidence: Evidence) -> Iterator[tuple[str, Fault]]:
    """(file, what is wrong with it)."""
    return iter(())
