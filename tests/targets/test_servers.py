"""Each server of the stand-in Internet, reached by real clients inside of it, as root and as an
ordinary user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import Place
from tests.cli.test_ordinary_user import open_place, ordinary_user_words

__all__ = ["open_place"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces need Linux")

ROOT = Path(__file__).parents[2]
TCP_LINE = "show(said('{}', 7, word + b'\\n'))"
UDP = "show(echoed('{}', b'<' + word + b'>'))"
GET = "show(said('{}', 80, b'GET /' + word + b' HTTP/1.1\\r\\n\\r\\n').splitlines()[-1])"
BY_HOST = "b'GET / HTTP/1.1\\r\\nHost: n' + word + b'.denied.example.test\\r\\n\\r\\n'"
CONNECT = "'CONNECT n%s.denied.example.test:7 HTTP/1.1\\r\\n\\r\\n' % nonce"
ABSOLUTE = (
    "'GET http://other.example.test/%s HTTP/1.1\\r\\nHost: other.example.test\\r\\n\\r\\n' % nonce"
)
NAME = "(n := f'n{nonce}.denied.example.test')"
SOCKS_NAME = f"bytes([len({NAME})]) + n.encode()"
OK = "ok NONCE"

ROWS = {
    "a line": (TCP_LINE.format("192.0.2.80"), f"{OK}\n", [("tcp", "192.0.2.80", 7)]),
    "any address": (TCP_LINE.format("203.0.113.254"), f"{OK}\n", [("tcp", "203.0.113.254", 7)]),
    "IPv6": (TCP_LINE.format("2001:db8::80"), f"{OK}\n", [("tcp", "2001:db8::80", 7)]),
    "the other IPv6": (TCP_LINE.format("2001:db8::7"), f"{OK}\n", [("tcp", "2001:db8::7", 7)]),
    "a line without its end": (
        "show(said('192.0.2.1', 7, word, half=True))",
        f"{OK}\n",
        [("tcp", "192.0.2.1", 7)],
    ),
    "a datagram": (UDP.format("198.51.100.7"), "<NONCE>", [("udp", "198.51.100.7", 7)]),
    "a datagram by IPv6": (UDP.format("2001:db8::7"), "<NONCE>", [("udp", "2001:db8::7", 7)]),
    "HTTP": (GET.format("192.0.2.80"), OK, [("http", "192.0.2.80", 80)]),
    "HTTP by IPv6": (GET.format("2001:db8::80"), OK, [("http", "2001:db8::80", 80)]),
    "the metadata service": (
        GET.format("169.254.169.254"),
        OK,
        [("http", "169.254.169.254", 80)],
    ),
    "the nonce in Host": (
        f"show(said('192.0.2.80', 80, {BY_HOST}).splitlines()[-1])",
        OK,
        [("http", "192.0.2.80", 80)],
    ),
    "CONNECT": (
        f"show(said('192.0.2.31', 3128, ({CONNECT}).encode(), word + b'\\n'))",
        f"{OK}\n",
        [("connect", "192.0.2.31", 3128), ("tcp", "198.51.100.80", 7)],
    ),
    "CONNECT, and at once what is to be passed on": (
        f"show(said('192.0.2.31', 3128, ({CONNECT}).encode() + word + b'\\n', half=True))",
        f"HTTP/1.1 200 Connection established\r\n\r\n{OK}\n",
        [("connect", "192.0.2.31", 3128), ("tcp", "198.51.100.80", 7)],
    ),
    "CONNECT to IPv6": (
        (
            "show(said('192.0.2.31', 3128, b'CONNECT [2001:db8::7]:7 HTTP/1.0\\r\\n\\r\\n', "
            "word + b'\\n'))"
        ),
        f"{OK}\n",
        [("tcp", "2001:db8::7", 7)],
    ),
    "a proxy's GET": (
        (f"show(said('192.0.2.31', 3128, ({ABSOLUTE}).encode()).splitlines()[-1])"),
        OK,
        [("connect", "192.0.2.31", 3128), ("http", "203.0.113.80", 80)],
    ),
    "SOCKS by name": (
        f"show(said('192.0.2.32', 1080, *socks(3, {SOCKS_NAME}, 7), word + b'\\n'))",
        f"{OK}\n",
        [("socks", "192.0.2.32", 1080), ("tcp", "198.51.100.80", 7)],
    ),
    "SOCKS by IPv4": (
        "show(said('192.0.2.32', 1080, *socks(1, bytes([192, 0, 2, 9]), 7), word + b'\\n'))",
        f"{OK}\n",
        [("tcp", "192.0.2.9", 7)],
    ),
    "SOCKS by IPv6": (
        (
            "raw = socket.inet_pton(socket.AF_INET6, '2001:db8::7')\n"
            "show(said('192.0.2.32', 1080, *socks(4, raw, 7), word + b'\\n'))"
        ),
        f"{OK}\n",
        [("tcp", "2001:db8::7", 7)],
    ),
    "DNS by TCP": (
        (
            f"asked = query({NAME})\n"
            "show(said('192.0.2.53', 53, len(asked).to_bytes(2) + asked, half=True)[-4:].hex('.'))"
        ),
        "c6.33.64.50",
        [("dns", "192.0.2.53", 53)],
    ),
    "the system's look-up of a name": (
        f"show(got('getent', 'ahostsv4', {NAME}).split()[0])",
        "198.51.100.80",
        [("dns", "192.0.2.53", 53)],
    ),
    "the system's look-up of IPv6": (
        "show(got('getent', 'ahostsv6', f'n{nonce}.allowed.example.test').split()[0])",
        "2001:db8::80",
        [("dns", "192.0.2.53", 53)],
    ),
    "a name that is not": (
        "show(got('getent', 'ahostsv4', f'n{nonce}.elsewhere.test'))",
        "",
        [("dns", "192.0.2.53", 53)],
    ),
}


def see_all(words: tuple[str, ...], scripts: list[str], workdir: Path) -> list[tuple[str, object]]:
    """Run the scripts of clients inside, as somebody."""
    done = subprocess.run(
        [*words, sys.executable, "-m", "tests.targets.visiting"],
        input=json.dumps(scripts),
        capture_output=True,
        text=True,
        check=False,
        cwd=workdir,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    print(done.stderr)
    return [
        (printed, [tuple(one) for one in arrived]) for printed, arrived in json.loads(done.stdout)
    ]


@pytest.mark.parametrize("who", ["us", "an ordinary user"])
def test_every_row(open_place: Place, who: str) -> None:
    words = () if who == "us" else ordinary_user_words(open_place)
    scripts = [script for script, _, _ in ROWS.values()]
    seen = see_all(words, scripts, open_place.workspace)
    assert dict(zip(ROWS, seen, strict=True)) == {row: (*rest,) for row, (_, *rest) in ROWS.items()}
