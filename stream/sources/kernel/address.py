"""Socket addresses as the kernel has them, to text that says whom one talks to."""

from __future__ import annotations

import socket
import sys

from stream.records.kernel import path_text

_NETLINK = 16


def peer_text(address: bytes) -> str | None:
    """`1.2.3.4:443`, `[2001:db8::1]:443`, `unix:/run/x`, `unix:@abstract`; None: no address."""
    if len(address) < 2:
        return None
    family = int.from_bytes(address[:2], sys.byteorder)
    port = int.from_bytes(address[2:4], "big")
    if family == socket.AF_INET and len(address) >= 8:
        return f"{socket.inet_ntop(family, address[4:8])}:{port}"
    if family == socket.AF_INET6 and len(address) >= 24:
        scope = int.from_bytes(address[24:28], sys.byteorder)
        zone = f"%{scope}" if scope else ""
        return f"[{socket.inet_ntop(family, address[8:24])}{zone}]:{port}"
    if family == socket.AF_UNIX:
        name = address[2:]
        if name[:1] == b"\0":
            return f"unix:@{path_text(name[1:])}"
        return "unix:" + path_text(name.split(b"\0", 1)[0])
    if family == socket.AF_UNSPEC:
        return "unspec"
    return "netlink" if family == _NETLINK else f"af{family}:{address[2:].hex()}"
