"""The stand-in Internet: servers that are all there is in a network namespace of their own.

Started as a program (`python -I -S -B stand_in.py`, standard library only), it makes the
namespaces, prints `ready`, then a line for each arrival (`arrival KIND NONCE ADDRESS PORT`, `-`
where there is no nonce) before it answers, and repeats a line `sync N` of its stdin once all that
had arrived is handled. It ends with its stdin.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from fcntl import ioctl
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector

BLOCKS = (("192.0.2.1", 24), ("198.51.100.1", 24), ("203.0.113.1", 24), ("169.254.169.254", 32))
BLOCKS6 = ("2001:db8::80", "2001:db8::7")
NAMES = {  # a name stands for all names below it; the longest that fits counts
    "relay.allowed.example.test": "192.0.2.31",
    "allowed.example.test": "192.0.2.80",
    "denied.example.test": "198.51.100.80",
    "example.test": "203.0.113.80",
}
SYSTEM_FILES = {
    "resolv.conf": "nameserver 192.0.2.53\nsearch .\noptions timeout:1 attempts:1\n",
    "hosts": f"127.0.0.1 localhost {socket.gethostname()}\n::1 localhost {socket.gethostname()}\n",
}
NAME_SERVICES = ("/run/systemd/resolve", "/run/nscd", "/var/run/nscd")  # these ask the host
MOST = 256  #: connections at a time; another one closes the oldest
LIMIT = 8192  #: bytes of a request
ROOM = 1 << 16  #: bytes that wait for a client to take them; until then it is not read from
AT_ONCE = 64  #: datagrams or connections that are taken before others have their turn
ROUNDS = 100  #: of looking for what had arrived before a `sync`; a flood does not end
PATIENCE = 2.0  #: seconds for an address to become usable
NEWNS, NEWUSER, NEWNET = 0x20000, 0x10000000, 0x40000000
BIND, DETACH, RECURSIVE, SLAVE = 0x1000, 2, 0x4000, 0x80000
IP_PKTINFO = 8
SET_FLAGS, SET_ADDRESS, SET_MASK = 0x8914, 0x8916, 0x891C
UP = 0x1
_NONCE = re.compile(rb"(?<![0-9a-f])([0-9a-f]{12})(?![0-9a-f])")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_FORBIDDEN = "forbidden here: this takes root, or user namespaces of ordinary users"
_REASONS = {
    errno.EPERM: _FORBIDDEN,
    errno.EACCES: _FORBIDDEN,  # AppArmor allows to make one, but nothing in it
    errno.ENOSPC: "forbidden here: one of user.max_*_namespaces is too small",
}
_LIBC = ctypes.CDLL(None, use_errno=True)


def make_namespaces() -> None:
    """Move into a network and a mount namespace, and a user namespace where that takes one. Raise
    OSError."""
    outside = [os.stat(f"/proc/self/ns/{kind}") for kind in ("net", "mnt")]
    user, group = os.geteuid(), os.getegid()
    if _LIBC.unshare(NEWNS | NEWNET):
        _check(_LIBC.unshare(NEWUSER | NEWNS | NEWNET), "namespaces")
        maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
        for name, text in maps.items():
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    inside = [os.stat(f"/proc/self/ns/{kind}") for kind in ("net", "mnt")]
    if any(map(os.path.samestat, outside, inside)):  # some sandboxes only pretend
        raise OSError(0, "they are not made, though the system says so", "namespaces")


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, _REASONS.get(number, os.strerror(number)), what)


def _mount(source: str, target: str, kind: str, flags: int = 0) -> None:
    words = (os.fsencode(word) for word in (source, target, kind))
    options = b"mode=755" if kind else None
    _check(_LIBC.mount(*words, ctypes.c_ulong(flags), options), f"mount {target}")


def replace_name_services() -> None:
    """Let every look-up of a name inside end at our own DNS server."""
    os.umask(0o022)  # whoever runs inside is to read these files
    _mount("none", "/", "", RECURSIVE | SLAVE)  # what is mounted outside later is seen inside
    hidden = {os.path.realpath(path) for path in NAME_SERVICES if os.path.isdir(path)}
    for path in hidden:
        _mount("stand-in", path, "tmpfs")
    texts = dict(SYSTEM_FILES)
    with suppress(OSError), open("/etc/nsswitch.conf", errors="surrogateescape") as file:
        rest = [line for line in file if not line.strip().startswith("hosts:")]
        texts["nsswitch.conf"] = "".join(rest) + "\nhosts: files dns\n"
    _mount("stand-in", "/tmp", "tmpfs")  # until they are in their places
    for name, text in texts.items():
        target = os.path.realpath(f"/etc/{name}")
        if os.path.dirname(target) in hidden:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        if os.path.exists(target):
            with open(f"/tmp/{name}", "w", errors="surrogateescape") as file:
                file.write(text)
            _mount(f"/tmp/{name}", target, "", BIND)
    _check(_LIBC.umount2(b"/tmp", DETACH), "umount /tmp")


def make_addresses() -> bool:
    """Make all addresses of the blocks local. Return whether there is IPv6."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        ioctl(control, SET_FLAGS, struct.pack("16sh22x", b"lo", UP))
        for serial, (address, bits) in enumerate(BLOCKS):
            mask = struct.pack(">I", 0xFFFFFFFF << 32 - bits & 0xFFFFFFFF)
            for what, value in ((SET_ADDRESS, socket.inet_aton(address)), (SET_MASK, mask)):
                label = b"lo:%d" % (serial + 1)
                ioctl(control, what, struct.pack("16sHH4s16x", label, socket.AF_INET, 0, value))
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as control:
            for address in BLOCKS6:
                raw = socket.inet_pton(socket.AF_INET6, address)
                index = socket.if_nametoindex("lo")
                ioctl(control, SET_ADDRESS, raw + struct.pack("Ii", 128, index))
        for address in BLOCKS6:
            _wait_for_address(address)
    except OSError:
        return False
    return True


def _wait_for_address(address: str) -> None:
    """Wait until the kernel has made an IPv6 address usable, which it does in the background."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as tried:
                tried.bind((address, 0))
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.0005)


def find_nonce(text: bytes | bytearray) -> str:
    """Find the first nonce in bytes that arrived; `-` is none."""
    match = _NONCE.search(text.lower())
    return match[1].decode() if match else "-"


def find_address(name: str) -> str | None:
    """Find the IPv4 address of a name."""
    labels = name.lower().rstrip(".").split(".")
    fitting = (NAMES.get(".".join(labels[at:])) for at in range(len(labels)))
    return next(filter(None, fitting), None)


def answer_query(query: bytes) -> tuple[str, bytes]:
    """Return the nonce in a DNS query, and the answer, which is empty where it is no query."""
    labels, at = [], 12
    try:
        number, flags, questions = struct.unpack_from(">HHH", query)
        while length := query[at]:
            labels.append(query[at + 1 : at + 1 + length].decode("latin-1"))
            at += 1 + length
            if length > 63 or at > 12 + 255:
                return "-", b""
        kind, _ = struct.unpack_from(">HH", query, at + 1)
    except (IndexError, struct.error):
        return "-", b""
    if flags & 0x8000 or questions != 1:
        return "-", b""
    name = ".".join(labels)
    address = find_address(name)
    raw = b""
    if address and kind == 1:
        raw = socket.inet_aton(address)
    elif address and kind == 28:
        raw = socket.inet_pton(socket.AF_INET6, BLOCKS6[0])
    answer = struct.pack(">HHHIH", 0xC00C, kind, 1, 1, len(raw)) + raw if raw else b""
    # An answer, authoritative; recursion is offered, since some stubs ask for it.
    state = 0x8480 | flags & 0x7900 | (0 if address else 3)
    head = struct.pack(">6H", number, state, 1, bool(raw), 0, 0)
    return find_nonce(name.encode("latin-1")), head + query[12 : at + 5] + answer


class Connection:
    """One TCP connection, of a client or onward to a server, and what is to be done with it."""

    def __init__(self, servers: Servers, sock: socket.socket, serve: Serve) -> None:
        self.servers = servers
        self.sock = sock
        self.serve = serve  # takes what was received
        self.received = bytearray()
        self.unsent = bytearray()
        self.has_ended = False  # nothing more comes
        self.is_last = False  # what is unsent is all that is said
        self.peer: Connection | None = None
        self.outcomes: tuple[bytes, bytes] | None = None  # what it is told once we are connected
        self._is_open = True
        self._is_shut = False
        self._mask = 0
        servers.connections[self] = None

    def report(self, kind: str, nonce: str) -> None:
        """Report an arrival on this connection."""
        self.servers.report(kind, nonce, *self.sock.getsockname()[:2])

    def handle(self, mask: int) -> None:
        """Take what is readable, and send what there is room for."""
        peer = self.peer
        try:
            if self.outcomes and peer:
                failed = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                peer.unsent += self.outcomes[bool(failed)]
                self.outcomes = None
                if failed:
                    raise OSError(failed, "not connected")
            if mask & EVENT_READ:
                data = self.sock.recv(ROOM)
                self.received += data
                self.has_ended = not data
            self.serve(self)
            if self.serve is not pass_on and (self.has_ended or len(self.received) > LIMIT):
                self.finish()
            self.update()
        except OSError:  # also where it was closed while others had their turn
            self.close()
        if peer:
            peer.update()

    def update(self) -> None:
        """Send what is unsent, and wait for what has to come next."""
        if not self._is_open:
            return
        try:
            if self.unsent and not self.outcomes:
                with suppress(BlockingIOError):
                    del self.unsent[: self.sock.send(self.unsent)]
            if self.is_last and not self.unsent and not self._is_shut and not self.outcomes:
                self.sock.shutdown(socket.SHUT_WR)
                self._is_shut = True
        except OSError:
            self.has_ended = self._is_shut = True
        if self.has_ended and self._is_shut:
            self.close()
            return
        is_full = any(one and len(one.unsent) > ROOM for one in (self, self.peer))
        mask = 0 if self.has_ended or is_full else EVENT_READ
        mask |= EVENT_WRITE if self.unsent or self.outcomes else 0
        self.servers.watch(self.sock, mask, self._mask, self.handle)
        self._mask = mask

    def finish(self, last: bytes = b"") -> None:
        """Say the last word. What still comes is thrown away: to close would lose that word."""
        self.unsent += last
        self.is_last = True
        self.serve = discard
        discard(self)

    def close(self) -> None:
        """Close the connection; its peer is told that nothing more comes."""
        if not self._is_open:
            return
        self._is_open = False
        self.servers.watch(self.sock, 0, self._mask, self.handle)
        self.sock.close()
        del self.servers.connections[self]
        if self.peer:
            peer, self.peer = self.peer, None
            peer.peer = None
            peer.finish()
            peer.update()

    def take_head(self) -> bytes:
        """Take the head of an HTTP request; nothing where it is not whole."""
        end = _HEAD_END.search(self.received)
        head = bytes(self.received[: end.end()]) if end else b""
        del self.received[: len(head)]
        return head

    def connect_onward(self, host: str, port: int, accepted: bytes, refused: bytes) -> None:
        """Connect to an address or a name of ours, and pass on what comes from either side."""
        address = find_address(host) or host
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        onward = Connection(self.servers, sock, pass_on)
        try:
            socket.inet_pton(family, address)  # the system is to look up nothing
            sock.connect((address, port))
        except BlockingIOError:
            pass
        except (OSError, ValueError, OverflowError):
            onward.close()
            self.finish(refused)
            return
        onward.outcomes = accepted, refused
        self.peer, onward.peer = onward, self
        self.serve = pass_on
        pass_on(self)
        onward.update()


Serve = Callable[[Connection], None]


def discard(client: Connection) -> None:
    """Throw away what was received."""
    client.received.clear()


def pass_on(client: Connection) -> None:
    """Pass on what was received to the peer."""
    if client.peer:
        client.peer.unsent += client.received
        client.peer.is_last |= client.has_ended
    client.received.clear()


def serve_line(client: Connection) -> None:
    """Answer a line with the nonce in it."""
    line, newline, _ = client.received.partition(b"\n")
    if newline or client.has_ended:
        nonce = find_nonce(line)
        client.report("tcp", nonce)
        client.finish(f"ok {nonce}\n".encode())


def http_answer(status: str, body: str) -> bytes:
    """Return a whole answer of HTTP, after which the connection ends."""
    fields = f"Content-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close"
    return f"HTTP/1.1 {status}\r\n{fields}\r\n\r\n{body}".encode()


def nonce_of_head(head: bytes) -> str:
    """Find the nonce in the first line of a request, or in its Host."""
    first, _, fields = head.partition(b"\n")
    host = re.search(rb"(?im)^host:.*$", fields)
    return find_nonce(first + b"\n" + (host[0] if host else b""))


def serve_http(client: Connection) -> None:
    """Answer a request of HTTP with the nonce in its path or Host."""
    if head := client.take_head():
        nonce = nonce_of_head(head)
        client.report("http", nonce)
        client.finish(http_answer("200 OK", f"ok {nonce}\n"))


def serve_proxy(client: Connection) -> None:
    """Connect onward to where a CONNECT, or the absolute form of a request, leads."""
    head = client.take_head()
    if not head:
        return
    client.report("connect", nonce_of_head(head))
    first, _, fields = head.partition(b"\n")
    method, target, version = (*first.decode("latin-1").split(), "", "", "")[:3]
    accepted = b""
    if method == "CONNECT":
        accepted = b"HTTP/1.1 200 Connection established\r\n\r\n"
    elif target.lower().startswith("http://"):
        target, _, path = target[7:].partition("/")
        client.received[:0] = f"{method} /{path} {version}\r\n".encode("latin-1") + fields
    else:
        client.finish(http_answer("400 Bad Request", ""))
        return
    host, port = re.fullmatch(r"(.*?)(?::(\d{1,5}))?", target).groups()  # type: ignore[union-attr]
    refused = http_answer("502 Bad Gateway", "")
    client.connect_onward(host.strip("[]"), int(port or 80), accepted, refused)


def serve_socks(client: Connection) -> None:
    """Take the greeting of a SOCKS5 client, which needs no authentication."""
    got = client.received
    if len(got) > 1 and len(got) >= 2 + got[1]:
        is_ours = got[0] == 5 and 0 in got[2 : 2 + got[1]]
        del got[: 2 + got[1]]
        client.unsent += b"\5\0" if is_ours else b"\5\xff"
        client.serve = serve_socks_request if is_ours else Connection.finish
        client.serve(client)


def serve_socks_request(client: Connection) -> None:
    """Connect onward to the IPv4 or IPv6 address, or the name, of a SOCKS5 request."""
    got = client.received
    if len(got) < 5:
        return
    kind = got[3]
    start, size = {1: (4, 4), 3: (5, got[4]), 4: (4, 16)}.get(kind, (4, 0))
    if len(got) < start + size + 2:
        return
    raw, port = bytes(got[start : start + size]), int.from_bytes(got[start + size :][:2], "big")
    is_connect = got[:2] == b"\5\1" and size > 0
    del got[: start + size + 2]
    client.report("socks", find_nonce(raw) if kind == 3 else "-")
    accepted, refused, unknown = (b"\5" + bytes([code]) + b"\0\1" + bytes(6) for code in (0, 5, 7))
    if not is_connect:
        client.finish(unknown)
        return
    families = {1: socket.AF_INET, 4: socket.AF_INET6}
    host = raw.decode("latin-1") if kind == 3 else socket.inet_ntop(families[kind], raw)
    client.connect_onward(host, port, accepted, refused)


def serve_queries(client: Connection) -> None:
    """Answer DNS queries, each of which follows its length."""
    got = client.received
    while len(got) > 1 and len(got) >= 2 + (size := int.from_bytes(got[:2], "big")):
        nonce, answer = answer_query(bytes(got[2 : 2 + size]))
        del got[: 2 + size]
        client.report("dns", nonce)
        if not answer:
            client.finish()
            return
        client.unsent += len(answer).to_bytes(2, "big") + answer


TCP: dict[int, Serve] = {
    7: serve_line,
    53: serve_queries,
    80: serve_http,
    1080: serve_socks,
    3128: serve_proxy,
}


class Servers:
    """All servers in one loop."""

    def __init__(self, has_ipv6: bool) -> None:
        self.connections: dict[Connection, None] = {}  # the oldest first
        self._selector = DefaultSelector()
        self._selector.register(0, EVENT_READ, self._read_orders)
        self._orders = b""
        self._asked: list[bytes] = []  # syncs that are not answered
        families = [socket.AF_INET, socket.AF_INET6][: 1 + has_ipv6]
        for family in families:
            for port in TCP:
                self._listen(family, port)
            for port in (7, 53):
                self._bind(family, port)

    def _listen(self, family: socket.AddressFamily, port: int) -> None:
        server = socket.create_server(("", port), family=family, backlog=1024)
        server.setblocking(False)
        self.watch(server, EVENT_READ, 0, lambda mask: self._accept(server, TCP[port]))

    def _bind(self, family: socket.AddressFamily, port: int) -> None:
        """Serve UDP; the address that a datagram was sent to is the one that answers."""
        sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        else:
            sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
        sock.bind(("", port))
        self.watch(sock, EVENT_READ, 0, lambda mask: self._take_datagrams(sock, port))

    def watch(
        self, sock: socket.socket, mask: int, before: int, handle: Callable[[int], None]
    ) -> None:
        """Wait for something else than before on a socket."""
        if mask and before:
            self._selector.modify(sock, mask, handle)
        elif mask:
            self._selector.register(sock, mask, handle)
        elif before:
            self._selector.unregister(sock)

    def report(self, kind: str, nonce: str, address: str, port: int) -> None:
        """Report an arrival. Whoever counts is waited for, so that none is lost."""
        os.write(1, f"arrival {kind} {nonce} {address} {port}\n".encode())

    def run(self) -> None:
        """Serve until stdin ends."""
        rounds = 0
        while True:
            events = self._selector.select(0 if self._asked else None)
            for key, mask in events:
                key.data(mask)
            rounds = rounds + 1 if self._asked else 0
            if self._asked and (not events or rounds > ROUNDS):
                os.write(1, b"".join(self._asked))
                self._asked.clear()

    def _read_orders(self, mask: int) -> None:
        data = os.read(0, ROOM)
        if not data:
            raise SystemExit
        *lines, self._orders = (self._orders + data).split(b"\n")
        self._asked += [line + b"\n" for line in lines]

    def _accept(self, server: socket.socket, serve: Serve) -> None:
        """Take new connections, each instead of the oldest one where there are too many."""
        for _ in range(AT_ONCE):
            while len(self.connections) >= MOST:
                next(iter(self.connections)).close()
            try:
                sock, _ = server.accept()
            except BlockingIOError:
                return
            except OSError:  # too few descriptors, for one
                for oldest in list(self.connections)[:1]:
                    oldest.close()
                return
            sock.setblocking(False)
            Connection(self, sock, serve).update()

    def _take_datagrams(self, sock: socket.socket, port: int) -> None:
        """Echo datagrams, or answer those that are DNS queries."""
        for _ in range(AT_ONCE):
            try:
                data, info, _, sender = sock.recvmsg(ROOM, socket.CMSG_SPACE(20))
            except OSError:
                return
            level, kind, raw = info[0]
            # IPv4 has the interface, the address of ours, and the address in the datagram.
            own = raw[8:12] if level == socket.IPPROTO_IP else raw[:16]
            nonce, answer = answer_query(data) if port == 53 else (find_nonce(data), data)
            family = socket.AF_INET if len(own) == 4 else socket.AF_INET6
            name = "dns" if port == 53 else "udp"
            self.report(name, nonce, socket.inet_ntop(family, own), port)
            if sender[1] in (7, 53) or not answer:  # never from server to server without end
                continue
            source = struct.pack("=I4s4x", 0, own) if len(own) == 4 else own + bytes(4)
            with suppress(OSError):
                sock.sendmsg([answer], [(level, kind, source)], 0, sender)


def main() -> None:
    """Make the namespaces, and serve in them until stdin ends."""
    try:
        make_namespaces()
        replace_name_services()
        servers = Servers(make_addresses())
    except OSError as error:
        what = error.filename or "the network"
        sys.exit(f"{what}: {(error.strerror or str(error)).lower()}")
    with suppress(BrokenPipeError):
        os.write(1, b"ready\n")
        servers.run()


if __name__ == "__main__":
    main()
