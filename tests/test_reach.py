"""The helper reach: what it says of each answer, and what it sends."""

from __future__ import annotations

import base64
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from tests.cli.command import HELPERS, PATIENCE

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok w\n"
CONNECTED = b"HTTP/1.1 200 Connection established\r\n\r\n"
SOCKS = b"\5\0"


def reach(*words: str, **env: str) -> str:
    """Run reach, and return its line. It says on stdout how it exits."""
    done = subprocess.run(
        ["perl", HELPERS / "reach", *words],
        env={"PATH": "/usr/bin:/bin", **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.stderr == ""
    assert done.returncode == (not done.stdout.startswith("seen"))
    return done.stdout.removesuffix("\n")


@contextmanager
def answering(*answers: bytes | None) -> Iterator[tuple[str, list[bytes]]]:
    """Give the answers to what one client sends, the next to each part, and close. None: give no
    answer, and wait until the client has gone."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            client, _ = server.accept()
            with client:
                for answer in answers:
                    received.append(client.recv(65536))
                    if answer is None:
                        client.recv(1)
                    else:
                        client.sendall(answer)

        thread = Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}", received
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"ok w\n", "seen"),
        (b"ok v\n", "unexpected answer ok v"),
        (b"ok w", "unexpected answer ok w"),
        (b"\x1b[2J\n", "unexpected answer "),
        (b"", "unexpected answer "),
        (None, "silent for 1.5 s"),
    ],
)
def test_a_line(answer: bytes | None, said: str) -> None:
    with answering(answer) as (at, received):
        assert reach("tcp", at, "w") == said
    assert received == [b"w\n"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (OK, "seen"),
        (OK.replace(b"w\n", b"v\n"), "unexpected answer HTTP/1.1 200 OK"),
        (OK.replace(b"200", b"403"), "refused 403 by {}"),
        (b"hello\n", "unexpected answer hello"),
        (b"", "unexpected answer "),
    ],
)
def test_a_url(answer: bytes, said: str) -> None:
    with answering(answer) as (at, received):
        assert reach("http", f"http://{at}/a/w") == said.format(at)
    assert received == [f"GET /a/w HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n".encode()]


def test_the_port_of_a_url_is_80() -> None:
    with answering(CONNECTED, OK) as (at, received):
        assert reach("http", "http://a.test/w", f"connect://{at}") == f"seen through {at}"
    assert received[0] == b"CONNECT a.test:80 HTTP/1.1\r\nHost: a.test:80\r\n\r\n"
    assert received[1].startswith(b"GET /w HTTP/1.1\r\nHost: a.test\r\n")


def test_a_proxy_that_fetches() -> None:
    with answering(OK) as (at, received):
        assert reach("http", "http://a.test/w", f"http://{at}") == f"seen through {at}"
    assert received[0].startswith(b"GET http://a.test/w HTTP/1.1\r\nHost: a.test\r\n")


def test_one_proxy_behind_the_other() -> None:
    words = "http", "http://a.test/w", "https_proxy", "socks5://b.test:1"
    named = b"\5\0\0\3\6b.test\0\1"
    with answering(CONNECTED, SOCKS, named, OK) as (at, received):
        assert reach(*words, https_proxy=f"http://{at}/") == f"seen through {at}"
    assert received[0].startswith(b"CONNECT b.test:1 ")
    assert received[1:3] == [b"\5\1\0", b"\5\1\0\3\6a.test\0P"]
    words = "http", "http://a.test/w", "http_proxy", f"connect://{at}"
    with answering(SOCKS, b"\5\0\0\1\0\0\0\0\0\0", CONNECTED, OK) as (first, received):
        assert reach(*words, all_proxy=f"socks5h://{first}") == f"seen through {first}"
    host, _, port = at.partition(":")
    name = bytes([len(host)]) + host.encode() + int(port).to_bytes(2, "big")
    assert received[1] == b"\5\1\0\3" + name


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([b"\5\xff"], "refused authentication by {}"),
        ([b"HT"], "unexpected answer HT"),
        ([SOCKS, b"\5\2\0\1\0\0\0\0\0\0"], "refused 2 by {}"),
        ([SOCKS, b""], "unexpected answer "),
    ],
)
def test_a_socks_proxy_that_does_not(answers: list[bytes], said: str) -> None:
    with answering(*answers) as (at, _):
        assert reach("http", "http://a.test/w", f"socks5://{at}") == said.format(at)


@pytest.mark.parametrize("length", [1, 2, 3, 44, 45, 46, 100])
def test_the_password_of_a_proxy(length: int) -> None:
    """It is sent, and not printed."""
    secret = ("~>?@:/ +" * 13)[:length]
    quoted = "".join(f"%{ord(letter):02x}" for letter in secret)
    with answering(OK.replace(b"200", b"407")) as (at, received):
        said = reach("http", "http://a.test/w", "http_proxy", HTTP_PROXY=f"http://u:{quoted}@{at}")
    assert said == f"refused 407 by {at}"
    (line,) = (line for line in received[0].split(b"\r\n") if line.startswith(b"Proxy-Auth"))
    assert line == b"Proxy-Authorization: Basic " + base64.b64encode(f"u:{secret}".encode())


@pytest.mark.parametrize(
    ("excepted", "host", "is_excepted"),
    [
        ("", "a.invalid", False),
        ("*", "a.invalid", True),
        ("x.test, invalid", "a.invalid", True),
        (".invalid", "a.invalid", True),
        ("*.invalid", "a.invalid", True),
        ("valid", "a.invalid", False),
        ("A.Invalid", "a.invalid", True),
        ("127.0.0.0/8", "127.255.0.1", True),
        ("127.0.0.1/32", "127.0.0.2", False),
        ("126.0.0.0/7", "127.0.0.1", True),
        ("0.0.0.0/0", "a.invalid", False),
        ("127.0.0.1", "127.0.0.1", True),
    ],
)
def test_what_goes_past_the_proxy(excepted: str, host: str, is_excepted: bool) -> None:
    """Port 1 has no listener: neither of the host, nor of the proxy."""
    words = "http", f"http://{host}:1/w", "http_proxy"
    said = reach(*words, http_proxy="http://localhost:1", no_proxy=excepted)
    direct = "unresolved a.invalid" if "a" in host else f"failed connect to {host}:1 ECONNREFUSED"
    assert said == (direct if is_excepted else "failed connect to localhost:1 ECONNREFUSED")


@pytest.mark.parametrize(
    ("change", "said"),
    [("", "seen"), ("id", "unexpected answer "), ("flags", "unexpected answer ")],
)
def test_a_name_server(change: str, said: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(PATIENCE)
        queries = []

        def serve() -> None:
            query, client = server.recvfrom(512)
            queries.append(query)
            number = bytes([query[0] ^ 1]) if change == "id" else query[:1]
            flags = b"\1\0" if change == "flags" else b"\x81\x83"
            server.sendto(number + query[1:2] + flags + query[4:], client)

        thread = Thread(target=serve)
        thread.start()
        at = f"127.0.0.1:{server.getsockname()[1]}"
        assert reach("dns", "a.example.test", at).startswith(said)
        thread.join()
    name = b"\1a\7example\4test\0"
    assert [query[2:] for query in queries] == [b"\1\0\0\1\0\0\0\0\0\0" + name + b"\0\1\0\1"]


def test_datagrams() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{server.getsockname()[1]}"
        assert reach("udp", at, "w") == "silent for 1.5 s"
        assert server.recv(9) == b"w"
    assert reach("udp", at, "w") == "failed read ECONNREFUSED"


def test_IPv6() -> None:  # noqa: N802
    for at in ("[::1]:1", "[0:0:0:0:0:0:0:1]:1"):
        assert reach("tcp", at, "w") in (
            f"failed connect to {at} ECONNREFUSED",
            f"failed connect to {at} EADDRNOTAVAIL",
        )


def test_an_attempt_that_a_signal_ends() -> None:
    if not shutil.which("strace"):
        pytest.skip("needs strace")
    inject = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "inject=socket:signal=SIGSYS"]
    done = subprocess.run(
        [*inject, HELPERS / "reach", "tcp", "127.0.0.1:1", "w"], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, b"killed by signal 31\n", b"")


@pytest.mark.parametrize(
    "words",
    [
        "", "tcp", "tcp 127.0.0.1 w", "tcp 127.0.0.1:1", "udp x w", "unix x", "dns a 127.0.0.1",
        "http", "http ftp://x/w", "http http://x", "http http://x/w ftp://y:1", "nonsense x",
        "http http://x/w http_proxy",
    ],
)  # fmt: skip
def test_wrong_words(words: str) -> None:
    env = {"PATH": "/usr/bin:/bin", "http_proxy": "quic://u:secret@x:1"}
    done = subprocess.run(
        [HELPERS / "reach", *words.split()], env=env, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.endswith(b": see reach --help\n")
    assert b"secret" not in done.stderr
