"""The gzip header: one form is written here; what another one has that it should not have.

Deflate can say the same in several ways, so that a file can be damaged where what it decodes to is
not. The header's comment is the SHA-256 of all that follows it: with it, each byte counts.
"""

from __future__ import annotations

import re
import zlib
from datetime import UTC, datetime

from stream.errors import visible

MAGIC = b"\x1f\x8b"
LENGTH = 10  #: bytes, of a header that has no more than it must
SEALED = MAGIC + b"\x08\x10\0\0\0\0\0\x03"  #: the header's beginning, where a seal follows
#: of who says no more than it must: `gzip -n`, and the reference
KNOWN = (b"\x08\0\0\0\0\0\0\x03", b"\x08\0\0\0\0\0\x02\xff")
_DEFLATE = 8
_CHECKSUM, _EXTRA, _NAME, _COMMENT, _RESERVED = 0x02, 0x04, 0x08, 0x10, 0xE0


def seal(digest: str) -> bytes:
    """The comment in the header, for what follows it."""
    return b"sha256:%s\0" % digest.encode()


NO_SEAL = seal("0" * 64)  #: as long as any
is_seal = re.compile(rb"sha256:[0-9a-f]{64}\0").fullmatch


def what_is_in(head: bytes, rest: bytes) -> tuple[list[str], bytes]:
    """What the header has that is not written here, and the deflated data behind it; of none that
    can be read, nothing."""
    method, flags = head[2], head[3]
    if method != _DEFLATE or flags & _RESERVED:
        return [], b""
    found = []
    if time := int.from_bytes(head[4:8], "little"):
        found.append(f"a time ({datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S} UTC)")
    if flags & _EXTRA:
        found.append("extra fields")
        rest = rest[2 + int.from_bytes(rest[:2], "little") :]
    for flag, what in ((_NAME, "a file name"), (_COMMENT, "a comment")):
        if flags & flag:
            text, _, rest = rest.partition(b"\0")
            found.append(f"{what} ({visible(text.decode('utf-8', 'backslashreplace'))!r})")
    if flags & _CHECKSUM:
        found.append("a checksum of its own")
        rest = rest[2:]
    if not found:
        found.append(f"marks of another compressor ({head[8]}, {head[9]})")
    return found, rest


def beginning(deflated: bytes, length: int) -> bytes | None:
    """Of what was deflated; None where that cannot be told."""
    engine = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        found = engine.decompress(deflated, length)
    except zlib.error:
        return None
    return found if engine.eof or len(found) == length else None


def told(found: list[str]) -> str:
    if not found:
        return "the gzip header is none that is written here"
    return f"the gzip header has {' and '.join(found)}: it was compressed again, by another program"
