"""What strace prints of values, with -xx and -X raw: strings, figures, addresses and ends."""

from __future__ import annotations

import re
import signal
import socket
from binascii import unhexlify
from functools import lru_cache

from stream.records.kernel import path_text

NUMBER = rb"(0x[0-9a-f]+|-?\d+)"
_MEMORY = "/memfd:"
_FAMILY = re.compile(rb"\{sa_family=(0x[0-9a-f]+|\d+)")
_IN4 = re.compile(rb'sin_port="((?:\\x..){2})", sin_addr="((?:\\x..){4})"')
_IN6 = re.compile(
    rb'sin6_port="((?:\\x..){2})".*?sin6_addr="((?:\\x..){16})"'
    rb"(?:, sin6_scope_id=" + NUMBER + rb")?"
)
_LOCAL = re.compile(rb'sun_path=(@?)"([^"]*)"')
_DATA = re.compile(rb'sa_data="([^"]*)"')
_EXITED = re.compile(rb"exited with (\d+) \+\+\+").fullmatch
_KILLED = re.compile(rb"killed by (\w+)( \(core dumped\))? \+\+\+").fullmatch


def number(text: bytes) -> int:
    if text.startswith(b"0") and len(text) > 1:
        return int(text, 16 if text[1:2] == b"x" else 8)
    return int(text)


def unquoted(text: bytes) -> bytes:
    """Raises ValueError."""
    if text.count(b"\\x") * 4 != len(text):
        raise ValueError(text)
    return unhexlify(text.replace(b"\\x", b""))


@lru_cache(4096)  # the same few folders and libraries, again and again
def plain(text: bytes) -> str:
    """Raises ValueError."""
    return path_text(unquoted(text))


def file_name(text: bytes, is_deleted: bool) -> str | None:
    """None: it is no file, or one in memory, whose name leads nowhere. Raises ValueError."""
    name = plain(text)
    is_known = name.startswith("/") and not (is_deleted and name.startswith(_MEMORY))
    return name if is_known else None


def peer_of(address: bytes, *, is_send: bool = False) -> str | None:
    """None: it says nothing that can be read. As IPv4 does, a send without a family is read as
    one of IPv4."""
    if found := _IN4.search(address):
        port, host = unquoted(found[1]), unquoted(found[2])
        return f"{socket.inet_ntoa(host)}:{int.from_bytes(port, 'big')}"
    if found := _IN6.search(address):
        port, host = unquoted(found[1]), unquoted(found[2])
        scope = number(found[3] or b"0")
        name = socket.inet_ntop(socket.AF_INET6, host) + (f"%{scope}" if scope else "")
        return f"[{name}]:{int.from_bytes(port, 'big')}"
    if found := _LOCAL.search(address):
        return f"unix:{found[1].decode()}{plain(found[2])}"
    if (known := _FAMILY.match(address)) is None:
        return None
    family = number(known[1])
    data = _DATA.search(address)
    if family == 0 and is_send:
        raw = unquoted(data[1]) if data else b""
        figure = int.from_bytes(raw[:2], "big")
        return f"{socket.inet_ntoa(raw[2:6])}:{figure}" if len(raw) >= 6 else None
    if family == 0:
        return "unspec"
    if family == socket.AF_NETLINK:
        return "netlink"
    return f"af{family}:{unquoted(data[1]).hex() if data else ''}"


def names_file(address: bytes) -> bool:
    """Whether it is a local one that has a name from where the process stands."""
    found = _LOCAL.search(address)
    return found is not None and not found[1] and found[2][:4] not in (b"", b"\\x2f")


def exit_status(text: bytes) -> int | None:
    """As wait gives it."""
    if found := _EXITED(text):
        return (int(found[1]) & 0xFF) << 8
    if found := _KILLED(text):
        figure = _signal(found[1].decode())
        return None if figure is None else figure | (0x80 if found[2] else 0)
    return None


def _signal(name: str) -> int | None:
    if name.startswith("SIGRT_") and name[6:].isdigit():
        return 32 + int(name[6:])
    if name == "SIGRTMIN":
        return 32
    try:
        return int(signal.Signals[name])
    except KeyError:
        return int(name) if name.isdigit() else None
