"""The gzip header: one form is written here; what another one has that is not in it.

Deflate can say the same in several ways, so that a file can be damaged where what it decodes to is
not. The header's comment is the SHA-256 of all that follows it: with it, each byte counts.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from msgspec import Struct

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
_SEAL_WORD, _FEW, _DIGITS = len("sha256:"), 8, frozenset(b"0123456789abcdef")
is_seal = re.compile(rb"sha256:[0-9a-f]{64}\0").fullmatch


class Packing(Struct):
    """What a header has that is not written here, and where the deflated data begins in what was
    read behind it. Of one that can be read by nobody, that is nowhere."""

    found: list[str]
    start: int = -1
    is_seal_changed: bool = False


def what_is_in(head: bytes, rest: bytes) -> Packing:
    method, flags = head[2], head[3]
    if method != _DEFLATE or flags & _RESERVED:
        return Packing([])
    packing = Packing([], 0)
    if time := int.from_bytes(head[4:8], "little"):
        when = f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S}"
        packing.found.append(f"a time ({when} UTC)")
    if flags & _EXTRA:
        packing.found.append("extra fields")
        packing.start = 2 + int.from_bytes(rest[:2], "little")
    for flag, what in ((_NAME, "a file name"), (_COMMENT, "a comment")):
        if flags & flag:
            end = rest.find(b"\0", packing.start)
            if end < 0:
                return Packing([])
            text = rest[packing.start : end]
            packing.is_seal_changed |= _was_seal(rest[packing.start :])
            shown = visible(text[:100].decode("utf-8", "backslashreplace"))
            packing.found.append(f"{what} ({shown!r})")
            packing.start = end + 1
    if flags & _CHECKSUM:
        packing.found.append("a checksum of its own")
        packing.start += 2
    if not packing.found:
        packing.found.append(f"marks of another compressor ({head[8]}, {head[9]})")
    return packing


def _was_seal(text: bytes) -> bool:
    """Whether it is one of ours, but for a few of its characters: nobody else writes such."""
    near = zip(text, NO_SEAL[:_SEAL_WORD], strict=False)
    digits = text[_SEAL_WORD : len(NO_SEAL) - 1]
    right = sum(one == other for one, other in near) + sum(map(_DIGITS.__contains__, digits))
    return right > len(NO_SEAL) - _FEW


def told(found: list[str]) -> str:
    if not found:
        return "the gzip header is none that can be read"
    return f"the gzip header has {' and '.join(found)}: another program compressed it"
