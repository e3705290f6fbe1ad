"""The headers of an archive, of tar and of gzip: how they are written, and what others write.

Each name and size has one header, the one that the contract's own writer uses; a name of more than
100 bytes has an entry before it, as in GNU tar. What other tars write differently is known here,
so that the reader can tell it from a fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from msgspec import Struct

from stream.errors import visible
from stream.evidence.consistency import place_fault
from stream.records.artifacts import ARCHIVE_MANIFEST
from stream.records.control import Fault

BLOCK = 512
ZEROS = bytes(BLOCK)
_SHORT = 100
_REGULAR, _LONG_NAME = b"\0", b"L"
_LONG_LINK = b"././@LongLink"
_OCTAL_END = 8**11
_OWNER = b"assay"
_POSIX = b"ustar\x0000"
_NO_DEVICE = (b"0000000\0" * 2, b"000000 \0" * 2)
PACKING = "packing.tar"  #: what only says who packed it

#: name, first byte, end
_FIELDS = (
    *(("name", 0, 100), ("mode", 100, 108), ("uid", 108, 116), ("gid", 116, 124)),
    *(("size", 124, 136), ("mtime", 136, 148), ("checksum", 148, 156), ("type", 156, 157)),
    *(("link name", 157, 257), ("magic", 257, 265), ("uname", 265, 297)),
    *(("gname", 297, 329), ("device", 329, 345), ("rest", 345, 512)),
)
_PLACES = {
    "long": "limit.path",
    "absolute": "security.absolute",
    "traversal": "security.traversal",
    "name": "security.name",
}
_OTHER = "made by another tar, or changed"
_KINDS = {
    b"1": ("security.link", "a hard link"),
    b"2": ("security.link", "a symbolic link"),
    b"3": ("security.device", "a character device"),
    b"4": ("security.device", "a block device"),
    b"5": ("security.type", "a folder"),
    b"6": ("security.fifo", "a fifo"),
    b"x": ("security.renaming", "a header that changes the entry after it"),
    b"g": ("security.renaming", "a header that changes all entries after it"),
    b"K": ("security.link", "a long name of a link"),
    b"N": ("security.renaming", "a list of other names"),
    b"S": ("security.type", "a sparse file"),
    b"M": ("security.type", "a file that goes on elsewhere"),
    b"V": ("security.type", "a volume's name"),
    b"D": ("security.type", "a list of a folder"),
}


class Header(Struct):
    """A header of an entry, and what is wrong with it."""

    name: bytes
    size: int
    kind: bytes
    faults: list[Fault]

    @property
    def is_long_name(self) -> bool:
        """Tell whether the content is the name of the next entry."""
        return self.kind == _LONG_NAME


class BrokenArchive(Exception):  # noqa: N818  # it is no failure: it becomes a finding
    """Nothing after this place of an archive can be read."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


def encode_header(name: bytes, size: int) -> bytes:
    """Return the header blocks of a regular file."""
    if len(name) <= _SHORT:
        return _block(name, size, _REGULAR)
    before = _block(_LONG_LINK, len(name) + 1, _LONG_NAME)
    return before + padded(name + b"\0") + _block(name[:_SHORT], size, _REGULAR)


def padded(data: bytes) -> bytes:
    """Return data filled up with zeros to whole blocks."""
    return data + bytes(-len(data) % BLOCK)


def decode_header(block: bytes, long_name: bytes | None = None) -> Header:
    """Read a header. Raise BrokenArchive where nobody can know where the next one stands."""
    if _number(block[148:156]) != _sum(block):
        raise BrokenArchive("integrity.header", "the header's checksum is wrong")
    kind = block[156:157]
    name, size = block[:_SHORT].partition(b"\0")[0], _size(block[124:136])
    wanted = _block(name, size, kind)
    faults: list[Fault] = []
    prefix = _prefix(block)
    if block != wanted:
        faults += _field_faults(block, wanted, prefix)
    if long_name is not None:
        if name != long_name[:_SHORT] or len(long_name) <= _SHORT:
            faults.append(Fault("the long name is of another entry", rule="security.renaming"))
        name = long_name
    elif prefix:
        name = prefix + b"/" + name
    if kind == _LONG_NAME and name != _LONG_LINK:
        faults.append(Fault("a long name has a name of its own", rule="security.hidden_bytes"))
    return Header(name, size, kind, faults)


def may_begin_tar(block: bytes) -> bool:
    """Tell whether a block may be the first of a tar, or what is left of one of ours."""
    is_ours = block.startswith(ARCHIVE_MANIFEST.encode() + b"\0")
    is_header = len(block) == BLOCK and _number(block[148:156]) == _sum(block)
    is_end = bool(block) and not block.strip(b"\0")
    return is_ours or is_header or is_end or block[257:262] == b"ustar"


def decode_long_name(data: bytes) -> bytes:
    """Raises BrokenArchive."""
    name, end, rest = data.partition(b"\0")
    if not end or rest.strip(b"\0"):
        raise BrokenArchive("security.hidden_bytes", "a long name does not end where it should")
    return name


def name_fault(name: bytes) -> Fault | None:
    """Return why a name is dangerous for who unpacks it, or only reads it; None if it is not."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return Fault("the name is not UTF-8", rule="security.name")
    found = place_fault(text)
    return None if found is None else Fault(found[1], rule=_PLACES[found[0]])


def _block(name: bytes, size: int, kind: bytes) -> bytes:
    block = bytearray(BLOCK)
    block[0 : len(name)] = name
    block[100:124] = b"0000644\x000000000\x000000000\0"
    block[124:136] = b"%011o\0" % size if size < _OCTAL_END else _large(size)
    block[136:148] = b"00000000000\0"
    block[156:157] = kind
    block[257:265] = b"ustar  \0"
    block[265 : 265 + len(_OWNER)] = _OWNER
    block[297 : 297 + len(_OWNER)] = _OWNER
    block[148:156] = _checksum(block)
    return bytes(block)


def _checksum(block: bytes | bytearray) -> bytes:
    return b"%07o\0" % _sum(block)


def _sum(block: bytes | bytearray) -> int:
    return sum(block[:148]) + 8 * 0x20 + sum(block[156:])


def _number(field: bytes) -> int:
    """Read octal digits in any of the forms that tars have; -1 where there are none."""
    digits = field.strip(b" \0")
    return int(digits, 8) if digits and not digits.strip(b"01234567") else -1


def _large(size: int) -> bytes:
    return b"\x80" + size.to_bytes(11, "big")


def _size(field: bytes) -> int:
    size = int.from_bytes(field[1:], "big") if field[0] == 0x80 else _number(field)
    if size < 0:
        raise BrokenArchive("integrity.header", "the header's size is no number")
    return size


def is_of_another_tar(block: bytes) -> bool:
    """Tell whether another program made the first header."""
    try:
        header = decode_header(block)
    except BrokenArchive:
        return False
    is_odd = any(fault.rule == PACKING for fault in header.faults)
    return is_odd or header.kind not in (_REGULAR, _LONG_NAME)


def kind_fault(kind: bytes) -> Fault | None:
    """Find what is wrong with the kind of an entry."""
    if kind == _REGULAR:
        return None
    if kind == b"0":  # as most tars say it
        return Fault(f"{_OTHER}: the type of a regular file is '0', not NUL", rule=PACKING)
    unknown = ("security.type", f"an entry of the unknown type {_shown(kind)}")
    rule, what = _KINDS.get(kind, unknown)
    return Fault(f"{what}, not a regular file", rule=rule)


def _field_faults(block: bytes, wanted: bytes, prefix: bytes) -> Iterator[Fault]:
    for field, start, end in _FIELDS:
        found = block[start:end]
        if field in ("checksum", "type") or found == wanted[start:end]:
            continue
        is_usual = (field == "device" and found in _NO_DEVICE) or (
            field == "rest" and prefix and found == prefix.ljust(end - start, b"\0")
        )
        if field in ("name", "rest", "device", "link name") and not is_usual:
            message = f"the header's {field} holds what should not be there"
            yield Fault(message, rule="security.hidden_bytes")
        else:
            what = f"the header's {field} is {_shown(found)}, not {_shown(wanted[start:end])}"
            yield Fault(f"{_OTHER}: {what}", rule=PACKING)
    if block[148:156] != _checksum(block):
        message = f"{_OTHER}: the header's checksum is right, but written in another form"
        yield Fault(message, rule=PACKING)


def _prefix(block: bytes) -> bytes:
    """Return what a POSIX header has before the name."""
    return block[345:500].rstrip(b"\0") if block[257:265] == _POSIX else b""


def _shown(field: bytes) -> str:
    return repr(visible(field.rstrip(b"\0").decode("utf-8", "backslashreplace")))


READ = 1 << 20
Checkpoint = Callable[[], None]  #: called between blocks: raises where the work was cancelled


def no_checkpoint() -> None:
    """Do nothing: the work cannot be cancelled."""


MAGIC = b"\x1f\x8b"
LENGTH = 10  #: bytes, of a header that has no more than it must
SEALED = MAGIC + b"\x08\x10\0\0\0\0\0\x03"  #: the header's beginning, where a seal follows
#: of who says no more than it must: `gzip -n`, and the reference
KNOWN = (b"\x08\0\0\0\0\0\0\x03", b"\x08\0\0\0\0\0\x02\xff")
_DEFLATE = 8
_CHECKSUM, _EXTRA, _NAME, _COMMENT, _RESERVED = 0x02, 0x04, 0x08, 0x10, 0xE0


def seal(digest: str) -> bytes:
    """Return the comment in the gzip header that names what follows it."""
    return b"sha256:%s\0" % digest.encode()


NO_SEAL = seal("0" * 64)  #: as long as any
_SEAL_WORD, _FEW, _DIGITS = len("sha256:"), 8, frozenset(b"0123456789abcdef")
is_seal = re.compile(rb"sha256:[0-9a-f]{64}\0").fullmatch


class GzipHeader(Struct):
    """What a gzip header has that is not written here, and where the deflated data begins after
    it: -1 where nobody can read the header."""

    found: list[str]
    start: int = -1
    is_seal_changed: bool = False


def examine_gzip_header(head: bytes, rest: bytes) -> GzipHeader:
    """Find what a gzip header holds that our own does not."""
    method, flags = head[2], head[3]
    if method != _DEFLATE or flags & _RESERVED:
        return GzipHeader([])
    header = GzipHeader([], 0)
    if time := int.from_bytes(head[4:8], "little"):
        when = f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S}"
        header.found.append(f"a time ({when} UTC)")
    if flags & _EXTRA:
        header.found.append("extra fields")
        header.start = 2 + int.from_bytes(rest[:2], "little")
    for flag, what in ((_NAME, "a file name"), (_COMMENT, "a comment")):
        if flags & flag:
            end = rest.find(b"\0", header.start)
            if end < 0:
                return GzipHeader([])
            text = rest[header.start : end]
            header.is_seal_changed |= _was_seal(rest[header.start :])
            shown = visible(text[:100].decode("utf-8", "backslashreplace"))
            header.found.append(f"{what} ({shown!r})")
            header.start = end + 1
    if flags & _CHECKSUM:
        header.found.append("a checksum of its own")
        header.start += 2
    if not header.found:
        header.found.append(f"marks of another compressor ({head[8]}, {head[9]})")
    return header


def _was_seal(text: bytes) -> bool:
    """Tell whether a seal is one of ours but for a few characters: nobody else writes such."""
    near = zip(text, NO_SEAL[:_SEAL_WORD], strict=False)
    digits = text[_SEAL_WORD : len(NO_SEAL) - 1]
    right = sum(one == other for one, other in near) + sum(map(_DIGITS.__contains__, digits))
    return right > len(NO_SEAL) - _FEW


def describe_gzip_header(found: list[str]) -> str:
    """Say in a sentence what was found in a gzip header."""
    if not found:
        return "the gzip header is none that can be read"
    return f"the gzip header has {' and '.join(found)}: another program compressed it"
