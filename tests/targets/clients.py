"""Clients that run inside of the stand-in Internet, good ones and others, with the standard library
only: `python -I clients.py SCRIPT NONCE` runs a script that has all of this, `nonce` and `word`."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from itertools import count

PORTS = (7, 53, 80, 1080, 3128)


def said(host: str, port: int, *sent: bytes, half: bool = False) -> bytes:
    """Send, each after an answer to the one before, and return what comes after the last."""
    with socket.create_connection((host, port), 5) as client:
        for text in sent[:-1]:
            client.sendall(text)
            client.recv(4096)
        client.sendall(sent[-1])
        if half:
            client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(4096), b""))


def echoed(host: str, data: bytes, port: int = 7) -> bytes:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as client:
        client.settimeout(5)
        client.connect((host, port))
        client.send(data)
        return client.recv(65535)


def proxied(target: str) -> str:
    """Return how the answer to a CONNECT begins."""
    head = f"CONNECT {target} HTTP/1.1\r\n\r\n"
    return said("192.0.2.31", 3128, head.encode())[:12].decode()


def socks(kind: int, raw: bytes, port: int) -> tuple[bytes, bytes]:
    return b"\5\1\0", b"\5\1\0" + bytes([kind]) + raw + port.to_bytes(2, "big")


def query(name: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">6H", 7, 0x100, 1, 0, 0, 0) + labels + struct.pack(">BHH", 0, kind, 1)


def framed(asked: bytes) -> bytes:
    return len(asked).to_bytes(2, "big") + asked


def got(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


def show(value: object) -> None:
    print(value.decode("latin-1") if isinstance(value, bytes) else value, end="", flush=True)


def ways_out() -> list[object]:
    """List the networks that are not local, and the interfaces that are up."""
    with open("/proc/net/route") as file:  # noqa: PTH123
        networks = file.read().splitlines()[1:]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        flags = {
            name: fcntl.ioctl(asked, 0x8913, name.encode().ljust(40, b"\0"))[16]
            for _, name in socket.if_nameindex()
        }
    return [*networks, *(name for name in flags if flags[name] & 1)]


def who_we_are() -> list[object]:
    with open("/proc/self/status") as file:  # noqa: PTH123
        status = file.read().split()
    return [os.getuid(), os.getgid(), status[status.index("CapEff:") + 1]]


held: list[socket.socket] = []


def send_garbage() -> None:
    for port in PORTS:
        for text in (bytes(range(256)) * 64, b"\r\n" * 9, b"\5" * 300, b"GET " + b"x" * 9999):
            with socket.create_connection(("192.0.2.1", port), 5) as client:
                client.sendall(text)
    for port in (7, 53):
        for size in (0, 1, 11, 12, 13, 60_000):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
                datagrams.sendto(b"\3" * size, ("192.0.2.1", port))


def leave_half_open() -> None:
    for serial in range(900):
        held.append(socket.create_connection(("192.0.2.1", PORTS[serial % 5]), 5))
        held[-1].send(b"\5")


def fill(client: socket.socket, piece: bytes) -> None:
    """Send until nothing is taken any more, 16 MB at most."""
    client.settimeout(0.05)
    held.append(client)
    with suppress(OSError):
        for _ in range((16 << 20) // len(piece)):
            client.sendall(piece)


def never_read() -> None:
    """Fill all that is between us and ourselves, and ask for answers without end."""
    held.append(socket.create_server(("127.0.0.1", 9999)))
    for _ in range(12):
        client = socket.create_connection(("192.0.2.31", 3128), 5)
        client.sendall(b"CONNECT 127.0.0.1:9999 HTTP/1.1\r\n\r\n")
        fill(client, bytes(1 << 16))
    fill(socket.create_connection(("192.0.2.53", 53), 5), framed(query("example.test")) * 1000)


def send_and_end(nonce: str) -> None:
    """Send what takes servers several steps, and wait for nothing."""
    request = f"CONNECT 192.0.2.1:7 HTTP/1.1\r\nHost: {nonce}\r\n\r\n{nonce}\n"
    held.append(socket.create_connection(("192.0.2.31", 3128)))
    held[-1].sendall(request.encode())
    held.append(socket.create_connection(("192.0.2.1", 80)))
    held[-1].sendall(f"GET /{nonce}\n\n".encode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        for _ in range(80):
            client.sendto(nonce.encode(), ("192.0.2.1", 7))


def reset() -> None:
    for serial in range(600):
        client = socket.create_connection(("192.0.2.1", PORTS[serial % 5]), 5)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.send(b"CONNECT 192.0.2.1:7 HTTP/1.1\r\n\r\n")
        client.close()


def send_from_port(port: int, data: bytes) -> None:
    """Send a datagram as if it came from a port that is another's."""
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP) as raw:
        raw.bind(("192.0.2.1", 0))
        raw.sendto(struct.pack(">4H", port, 7, 8 + len(data), 0) + data, ("192.0.2.2", 7))


def flood() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(("192.0.2.1", 7))
        for serial in count():
            client.send(b"%012x" % serial)


if __name__ == "__main__":
    nonce = sys.argv[2]
    word = nonce.encode()
    exec(sys.argv[1])
