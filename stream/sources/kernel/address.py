"""Socket addresses as the kernel has them, to text that says whom one talks to."""

from __future__ import annotations

import socket
import sys

from stream.records.kernel import path_text

_NETLINK, _PACKET = 16, 17


def peer_text(address: bytes, *, is_send: bool = False, family: int = 0) -> str | None:
    """`1.2.3.4:443`, `[2001:db8::1]:443`, `unix:/run/x`, `unix:@abstract`; None: no address, or
    one that nobody can read. `family`: what the socket is of, where that is known."""
    if len(address) < 2:
        return None
    of_socket, family = family, int.from_bytes(address[:2], sys.byteorder)
    if is_send and of_socket == _PACKET:  # which does not look at the address's own
        family = _PACKET
    elif is_send and family == socket.AF_UNSPEC:  # IPv4 takes it for its own, others for no name
        if of_socket not in (socket.AF_UNSPEC, socket.AF_INET) or len(address) < 8:
            return None
        family = socket.AF_INET
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
