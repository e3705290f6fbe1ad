"""How much a foreign archive may ask of who verifies it.

What it costs is what it decodes to: memory is flat, and time goes with the decoded bytes. So
these are far above an honest run (five million kernel events are 1.3 GB of lines and a fifth of
that in a companion layer), and far below what a bomb of the size of the file could hold.
"""

from __future__ import annotations

from msgspec import Struct

from stream.codec import MAX_LINE


class Limits(Struct, frozen=True, kw_only=True):
    archive: int = 2 << 30  #: bytes of the file
    decoded: int = 8 << 30
    entries: int = 10_000
    lines: int = 50_000_000  #: of all layers
    #: of each layer that is held as a whole, which tell of an agent's calls: a recorder keeps no
    #: more, and a marker more at the start and at the end of a run
    held: int = 100_002
    line: int = MAX_LINE  #: bytes: no part of the recorder writes a longer one
    document: int = 64 << 20  #: bytes of a JSON artifact, which is held as a whole
    depth: int = 64
    #: 0: none. A gigabyte of one byte is an honest output of an agent, and packs 1000 to 1.
    ratio: int = 0
