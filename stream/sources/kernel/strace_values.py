"""What strace prints of values, with -xx and -X raw: strings, figures and addresses."""

from __future__ import annotations

import re
import socket
from binascii import unhexlify
from functools import lru_cache

from stream.records.kernel import path_text

NUMBER = rb"(0x[0-9a-f]+|-?\d+)"
_FAMILY = re.compile(rb"\{sa_family=(0x[0-9a-f]+|\d+)")
_IN4 = re.compile(rb'sin_port="((?:\\x..){2})", sin_addr="((?:\\x..){4})"')
_IN6 = re.compile(
    rb'sin6_port="((?:\\x..){2})".*?sin6_addr="((?:\\x..){16})"'
    rb"(?:, sin6_scope_id=" + NUMBER + rb")?"
)
_LOCAL = re.compile(rb'sun_path=(@?)"([^"]*)"')
_DATA = re.compile(rb'sa_data="([^"]*)"')


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


def peer_of(address: bytes) -> str | None:
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
    if family == 0:
        return "unspec"
    if family == socket.AF_NETLINK:
        return "netlink"
    data = _DATA.search(address)
    return f"af{family}:{unquoted(data[1]).hex() if data else ''}"
