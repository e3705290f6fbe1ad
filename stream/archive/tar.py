"""The headers of the tar in an archive: how they are written, and what other programs write.

Each name and size has one header, the one that the contract's own writer uses; a name of more than
100 bytes has an entry before it, as in GNU tar. What other tars write differently is known here,
so that the reader can tell it from a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from stream.errors import printable
from stream.evidence.consistency import unsafe_name_fault
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


class NoArchive(Exception):  # noqa: N818  # said as the answer that there is none
    """The file is no archive, nor the beginning of one."""


class BrokenArchive(Exception):  # noqa: N818  # it is no failure: it becomes a finding
    """Nothing after this place of an archive can be read."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


def encode_header(name: bytes, size: int) -> bytes:
    """Return the tar header blocks of a regular file."""
    if len(name) <= _SHORT:
        return _header_block(name, size, _REGULAR)
    before = _header_block(_LONG_LINK, len(name) + 1, _LONG_NAME)
    return before + padded_to_blocks(name + b"\0") + _header_block(name[:_SHORT], size, _REGULAR)


def padded_to_blocks(data: bytes) -> bytes:
    """Return data filled up with zeros to whole blocks of a tar."""
    return data + bytes(-len(data) % BLOCK)


def decode_header(block: bytes, long_name: bytes | None = None) -> Header:
    """Read a tar header. Raise BrokenArchive where nobody can know where the next one stands."""
    if _number(block[148:156]) != _sum(block):
        raise BrokenArchive("integrity.header", "the header's checksum is wrong")
    kind = block[156:157]
    name, size = block[:_SHORT].partition(b"\0")[0], _decode_size(block[124:136])
    wanted = _header_block(name, size, kind)
    faults: list[Fault] = []
    # What a POSIX header has before the name.
    prefix = block[345:500].rstrip(b"\0") if block[257:265] == _POSIX else b""
    if block != wanted:
        faults += _header_field_faults(block, wanted, prefix)
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
    """Return the name that a long-name entry holds. Raise BrokenArchive where it has no end."""
    name, end, rest = data.partition(b"\0")
    if not end or rest.strip(b"\0"):
        raise BrokenArchive("security.hidden_bytes", "a long name does not end where it should")
    return name


def entry_name_fault(name: bytes) -> Fault | None:
    """Return why a name is dangerous for who unpacks it, or only reads it; None if it is not."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return Fault("the name is not UTF-8", rule="security.name")
    found = unsafe_name_fault(text)
    return None if found is None else Fault(found[1], rule=_PLACES[found[0]])


def _header_block(name: bytes, size: int, kind: bytes) -> bytes:
    """Return one tar header block as `stream archive` writes it."""
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


def _decode_size(field: bytes) -> int:
    """Decode the size in a tar header. Raise BrokenArchive if it is no number."""
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


def entry_kind_fault(kind: bytes) -> Fault | None:
    """Find what is wrong with the kind of an entry."""
    if kind == _REGULAR:
        return None
    if kind == b"0":  # as most tars say it
        return Fault(f"{_OTHER}: the type of a regular file is '0', not NUL", rule=PACKING)
    unknown = ("security.type", f"an entry of the unknown type {_quoted(kind)}")
    rule, what = _KINDS.get(kind, unknown)
    return Fault(f"{what}, not a regular file", rule=rule)


def _header_field_faults(block: bytes, wanted: bytes, prefix: bytes) -> Iterator[Fault]:
    """Find the fields of a tar header that differ from those that we would have written."""
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
            what = f"the header's {field} is {_quoted(found)}, not {_quoted(wanted[start:end])}"
            yield Fault(f"{_OTHER}: {what}", rule=PACKING)
    if block[148:156] != _checksum(block):
        message = f"{_OTHER}: the header's checksum is right, but written in another form"
        yield Fault(message, rule=PACKING)


def _quoted(field: bytes) -> str:
    return repr(printable(field.rstrip(b"\0").decode("utf-8", "backslashreplace")))


EXTENSIONS = (b"x", b"g")  #: a header that says more about the entry, or all entries, after it
FOLDER = b"5"
MOST_EXTENDED = 64 << 10  #: bytes of such a header
#: What such a header may say: nothing that changes which files there are, but for a long name.
_SILENT = {b"mtime", b"atime", b"ctime", b"uid", b"gid", b"uname", b"gname", b"comment"}


def decode_extended(data: bytes, kind: bytes) -> tuple[bytes | None, list[Fault]]:
    """Return the name in an extended header, if it has one, and what is wrong with the header.

    Raise BrokenArchive where it cannot be read.
    """
    name, faults = None, [Fault("made by another tar: it has extended headers", rule=PACKING)]
    for key, value in _extended_records(data):
        if key == b"path" and kind == b"x":
            name = value
        elif key not in _SILENT:
            what = key[:40].decode("utf-8", "backslashreplace")
            message = f"a header that changes the entry after it: its {what!r}"
            faults.append(Fault(message, rule="security.renaming"))
    return name, faults


def _extended_records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the records of an extended header: LENGTH KEY=VALUE."""
    while data.strip(b"\0"):
        digits, _, _ = data.partition(b" ")
        size = int(digits) if digits.isdigit() and len(digits) < 7 else 0
        record, data = data[len(digits) + 1 : size], data[size:]
        key, equals, value = record.partition(b"=")
        if not equals or not value.endswith(b"\n"):
            raise BrokenArchive("security.hidden_bytes", "an extended header cannot be read")
        yield key, value[:-1]


def extended_name_faults(short: bytes, name: bytes) -> list[Fault]:
    """Return what is wrong with a name that stands before the header of its entry."""
    is_needed = len(name) > _SHORT or not name.isascii()
    if is_needed and ((short.isascii() and short[:1] == name[:1]) or not name[:1].isascii()):
        return []
    return [Fault("a header that changes the entry after it: its name", rule="security.renaming")]


READ = 1 << 20
Checkpoint = Callable[[], None]  #: called between blocks: raises where the work was cancelled


def no_checkpoint() -> None:
    """Do nothing: the work cannot be cancelled."""
