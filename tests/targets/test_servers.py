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
from tests.targets.visiting import CLIENTS, Seen

__all__ = ["open_place"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces need Linux")

ROOT = Path(__file__).parents[2]
OK = "ok NONCE"
NAME = "f'n{nonce}.denied.example.test'"
BY_HOST = f"'GET / HTTP/1.1\\r\\nHost: ' + {NAME} + '\\r\\n\\r\\n'"
CONNECT = f"'CONNECT ' + {NAME} + ':7 HTTP/1.1\\r\\n\\r\\n'"
ABSOLUTE = "'GET http://other.example.test/' + nonce + ' HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'"
BY_NAME = f"bytes([len({NAME})]) + {NAME}.encode()"
BY_IPV6 = "socket.inet_pton(socket.AF_INET6, '2001:db8::7')"


def line(host: str) -> str:
    return f"show(said('{host}', 7, word + b'\\n'))"


def datagram(host: str) -> str:
    return f"show(echoed('{host}', b'<' + word + b'>'))"


def get(host: str, request: str = "f'GET /{nonce} HTTP/1.1\\r\\n\\r\\n'", port: int = 80) -> str:
    return f"show(said('{host}', {port}, ({request}).encode()).splitlines()[-1])"


def by_socks(kind: int, raw: str) -> str:
    return f"show(said('192.0.2.32', 1080, *socks({kind}, {raw}, 7), word + b'\\n'))"


def by_proxy(request: str, *sent: str, half: bool = False) -> str:
    words = ", ".join([f"({request}).encode()", *sent])
    return f"show(said('192.0.2.31', 3128, {words}, half={half}))"


#: what a client does, what it gets, and what arrives with its nonce
ROWS: dict[str, tuple[str, str, list[tuple[str, str, int]]]] = {
    "a line": (line("192.0.2.80"), f"{OK}\n", [("tcp", "192.0.2.80", 7)]),
    "any address": (line("203.0.113.254"), f"{OK}\n", [("tcp", "203.0.113.254", 7)]),
    "IPv6": (line("2001:db8::80"), f"{OK}\n", [("tcp", "2001:db8::80", 7)]),
    "the other IPv6": (line("2001:db8::7"), f"{OK}\n", [("tcp", "2001:db8::7", 7)]),
    "a line without its end": (
        "show(said('192.0.2.1', 7, word, half=True))",
        f"{OK}\n",
        [("tcp", "192.0.2.1", 7)],
    ),
    "a datagram": (datagram("198.51.100.7"), "<NONCE>", [("udp", "198.51.100.7", 7)]),
    "by IPv6": (datagram("2001:db8::7"), "<NONCE>", [("udp", "2001:db8::7", 7)]),
    "HTTP": (get("192.0.2.80"), OK, [("http", "192.0.2.80", 80)]),
    "HTTP by IPv6": (get("2001:db8::80"), OK, [("http", "2001:db8::80", 80)]),
    "metadata": (get("169.254.169.254"), OK, [("http", "169.254.169.254", 80)]),
    "in Host": (get("192.0.2.80", BY_HOST), OK, [("http", "192.0.2.80", 80)]),
    "CONNECT": (
        by_proxy(CONNECT, "word + b'\\n'"),
        f"{OK}\n",
        [("connect", "192.0.2.31", 3128), ("tcp", "198.51.100.80", 7)],
    ),
    "CONNECT, and at once what is to be passed on": (
        by_proxy(f"{CONNECT} + nonce + '\\n'", half=True),
        f"HTTP/1.1 200 Connection established\r\n\r\n{OK}\n",
        [("connect", "192.0.2.31", 3128), ("tcp", "198.51.100.80", 7)],
    ),
    "CONNECT to IPv6": (
        by_proxy("'CONNECT [2001:db8::7]:7 HTTP/1.0\\r\\n\\r\\n'", "word + b'\\n'"),
        f"{OK}\n",
        [("tcp", "2001:db8::7", 7)],
    ),
    "a proxy's GET": (
        get("192.0.2.31", ABSOLUTE, 3128),
        OK,
        [("connect", "192.0.2.31", 3128), ("http", "203.0.113.80", 80)],
    ),
    "SOCKS by name": (
        by_socks(3, BY_NAME),
        f"{OK}\n",
        [("socks", "192.0.2.32", 1080), ("tcp", "198.51.100.80", 7)],
    ),
    "SOCKS by IPv4": (
        by_socks(1, "bytes([192, 0, 2, 9])"),
        f"{OK}\n",
        [("tcp", "192.0.2.9", 7)],
    ),
    "SOCKS by IPv6": (by_socks(4, BY_IPV6), f"{OK}\n", [("tcp", "2001:db8::7", 7)]),
    "DNS by UDP": (
        f"show(echoed('192.0.2.53', query({NAME}), 53)[-4:].hex('.'))",
        "c6.33.64.50",
        [("dns", "192.0.2.53", 53)],
    ),
    "DNS by TCP": (
        f"show(said('192.0.2.53', 53, framed(query({NAME})), half=True)[-4:].hex('.'))",
        "c6.33.64.50",
        [("dns", "192.0.2.53", 53)],
    ),
    "a look-up": (
        f"show(got('getent', 'ahostsv4', {NAME}).split()[0])",
        "198.51.100.80",
        [("dns", "192.0.2.53", 53)],
    ),
    "a look-up of IPv6": (
        f"show(got('getent', 'ahostsv6', {NAME}).split()[0])",
        "2001:db8::80",
        [("dns", "192.0.2.53", 53)],
    ),
    "a look-up of no name": (
        "show(got('getent', 'ahostsv4', f'n{nonce}.elsewhere.test'))",
        "",
        [("dns", "192.0.2.53", 53)],
    ),
}
#: what else a client does, and what it gets. A server inside refuses: nobody looked outside
OTHERS = {
    "each name": (
        (
            "for n in ('allowed', 'x.Allowed', 'denied', 'relay.allowed', 'x'):\n"
            "    show(got('getent', 'ahostsv4', n + '.example.test').split()[0] + ' ')"
        ),
        "192.0.2.80 192.0.2.80 198.51.100.80 192.0.2.31 203.0.113.80 ",
    ),
    "another type": (
        "show(echoed('192.0.2.53', query('allowed.example.test', 15), 53)[:12].hex('.', 2))",
        "0007.8580.0001.0000.0000.0000",
    ),
    "no name": (
        "show(echoed('192.0.2.53', query('example.org'), 53)[:12].hex('.', 2))",
        "0007.8583.0001.0000.0000.0000",
    ),
    "no query": ("show(said('192.0.2.53', 53, b'\\0\\x11' + b'\\xff' * 17))", ""),
    "CONNECT outside": ("show(proxied('10.1.2.3:80'))", "HTTP/1.1 502"),
    "CONNECT to a name outside": ("show(proxied('localhost:80'))", "HTTP/1.1 502"),
    "CONNECT to a closed port": ("show(proxied('192.0.2.1:9'))", "HTTP/1.1 502"),
    "CONNECT to no port": ("show(proxied('192.0.2.1:99999'))", "HTTP/1.1 502"),
    "no request of a proxy": (
        "show(said('192.0.2.31', 3128, b'GET / HTTP/1.1\\r\\n\\r\\n')[:12])",
        "HTTP/1.1 400",
    ),
    "SOCKS outside": (
        "show(said('192.0.2.32', 1080, *socks(1, bytes([10, 1, 2, 3]), 80))[:2].hex())",
        "0505",
    ),
    "SOCKS to a name outside": (
        "show(said('192.0.2.32', 1080, *socks(3, b'\\x09localhost', 80))[:2].hex())",
        "0505",
    ),
    "SOCKS with a password": ("show(said('192.0.2.32', 1080, b'\\5\\1\\2').hex())", "05ff"),
    "SOCKS that is to listen": (
        "show(said('192.0.2.32', 1080, b'\\5\\1\\0', b'\\5\\2\\0\\1' + bytes(6))[:2].hex())",
        "0507",
    ),
    "an address outside": (
        "show(socket.socket().connect_ex(('10.1.2.3', 80)) == 101)",  # ENETUNREACH
        "True",
    ),
    "the ways out": ("show(ways_out())", "['lo']"),
    "the current folder, and what the shell leaves": (
        "show([os.getcwd(), os.environ['PWD'], os.environ.get('OLDPWD')])",
        "['WORKSPACE', 'WORKSPACE', None]",
    ),
    "who we are": ("show(who_we_are())", "USER"),
}


def see_all(words: tuple[str, ...], scripts: list[str], workdir: Path) -> Seen:
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
        (printed, [(kind, address, port) for kind, address, port in arrived])
        for printed, arrived in json.loads(done.stdout)
    ]


@pytest.mark.parametrize("who", ["us", "an ordinary user"])
def test_every_row(open_place: Place, who: str) -> None:
    """Each way is counted, with its nonce, where it arrived; and there is no way out."""
    words = () if who == "us" else ordinary_user_words(open_place)
    scripts = [script for script, _, _ in ROWS.values()]
    scripts += [script for script, _ in OTHERS.values()]
    seen = see_all(words, scripts, open_place.workspace)
    expected = {row: (printed, arrived) for row, (_, printed, arrived) in ROWS.items()}
    assert dict(zip(ROWS, seen, strict=False)) == expected
    # As whom they run outside, they run inside.
    outside = [*words, sys.executable, "-I", str(CLIENTS), "show(who_we_are())", "-"]
    user = subprocess.run(outside, capture_output=True, text=True, check=True).stdout
    if who != "us":
        assert user.endswith("'0000000000000000']")
        assert not user.startswith("[0,")
    own = {"WORKSPACE": str(open_place.workspace), "USER": user}
    printed = dict(zip(OTHERS, (said for said, _ in seen[len(ROWS) :]), strict=True))
    for row, (_, text) in OTHERS.items():
        for name, value in own.items():
            text = text.replace(name, value)
        assert printed[row] == text, row


# A host where nscd and systemd-resolved answer for the system: who asks is written down.
HOST = """
cp -a /etc "$1/etc" && rm -f "$1/etc/resolv.conf"
ln -s /run/systemd/resolve/stub-resolv.conf "$1/etc/resolv.conf"
printf 'passwd: files\\nhosts: resolve [!UNAVAIL=return] files dns\\n' >"$1/etc/nsswitch.conf"
mkdir -p "$1/run/nscd" "$1/run/systemd/resolve"
echo nameserver 10.1.2.3 >"$1/run/systemd/resolve/stub-resolv.conf"
mount --bind "$1/etc" /etc && mount --bind "$1/run" /run && umask 077 && shift && exec "$@"
"""
ASKED = """
import socket, subprocess, sys, threading
asked = []
with socket.socket(socket.AF_UNIX) as nscd:
    nscd.bind("/run/nscd/socket")
    nscd.listen()
    def answer():
        while True:
            client, _ = nscd.accept()
            asked.append(1)
            client.close()
    threading.Thread(target=answer, daemon=True).start()
    subprocess.run(["getent", "ahostsv4", "localhost"], stdout=subprocess.DEVNULL)
    print(len(asked), flush=True)
    subprocess.run(sys.argv[1:])
    print(len(asked), flush=True)
"""


def test_no_look_up_is_answered_by_the_host(tmp_path: Path, needs_root: None) -> None:
    """Neither by its nscd nor by its systemd-resolved; whoever runs inside may read the files."""
    script = (
        "show(got('getent', 'ahostsv4', 'localhost').split()[0] + ' ')\n"
        f"show(got('getent', 'ahostsv4', {NAME}).split()[0] + '\\n')\n"
        "show(got('runuser', '-u', 'nobody', '--', 'cat', '/etc/resolv.conf', '/etc/hosts',\n"
        "         '/etc/nsswitch.conf'))\n"
        "show(os.listdir('/run/nscd') + os.listdir('/run/systemd/resolve'))"
    )
    inner = [sys.executable, "-m", "tests.targets.visiting"]
    around = ["unshare", "--mount", "sh", "-c", HOST, "sh", str(tmp_path)]
    done = subprocess.run(
        [*around, sys.executable, "-c", ASKED, *inner],
        input=json.dumps([script]),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    before, seen, after = done.stdout.splitlines()
    assert int(before) > 0, "who asks nscd is seen"
    assert after == before
    ((printed, arrived),) = json.loads(seen)
    assert arrived == [["dns", "192.0.2.53", 53]]
    addresses, *lines = printed.splitlines()
    assert addresses == "127.0.0.1 198.51.100.80"
    assert lines[0] == "nameserver 192.0.2.53"
    assert "passwd: files" in lines
    assert [text for text in lines if text.startswith("hosts:")] == ["hosts: files dns"]
    assert lines[-1] == "['stub-resolv.conf']"
