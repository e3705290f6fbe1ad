"""Clients inside of the stand-in Internet, as a program that any user may run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import anyio

from stream.targets.internet import StandInInternet, open_internet

NONCES = (f"{serial:012x}" for serial in range(0xABCDEF000000, 1 << 48))
CLIENTS = """
import os, socket, struct, subprocess, sys
def said(host, port, *sent, half=False):
    with socket.create_connection((host, port), 5) as client:
        for text in sent[:-1]:
            client.sendall(text)
            client.recv(4096)
        client.sendall(sent[-1])
        if half:
            client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(4096), b""))
def echoed(host, data, port=7):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as client:
        client.settimeout(5)
        client.connect((host, port))
        client.send(data)
        return client.recv(65535)
def socks(kind, raw, port):
    return b"\\5\\1\\0", b"\\5\\1\\0" + bytes([kind]) + raw + port.to_bytes(2, "big")
def query(name, kind=1):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">6H", 7, 0x100, 1, 0, 0, 0) + labels + struct.pack(">BHH", 0, kind, 1)
def got(*argv):
    return subprocess.run(argv, capture_output=True, text=True).stdout
def show(value):
    print(value.decode("latin-1") if isinstance(value, bytes) else value, end="")
nonce = sys.argv[1]
word = nonce.encode()
"""
Seen = list[tuple[str, list[tuple[str, str, int]]]]


async def run_inside(
    internet: StandInInternet, script: str, nonce: str = "-", workdir: str = "/"
) -> str:
    """Run a script of clients inside, and return what it prints."""
    argv = [*internet.prefix(workdir), sys.executable, "-I", "-c", CLIENTS + script, nonce]
    done = await anyio.run_process(argv, stderr=subprocess.STDOUT, check=False)
    return done.stdout.decode()


async def visit(scripts: list[str], workdir: str) -> Seen:
    """Run scripts inside, each with a nonce; return what they print, and what arrived."""
    began = time.monotonic()
    async with open_internet() as internet:
        print(f"ready after {(time.monotonic() - began) * 1000:.0f} ms", file=sys.stderr)
        seen = []
        for script in scripts:
            nonce = next(NONCES)
            printed = await run_inside(internet, script, nonce, workdir)
            await internet.sync()
            arrived = [(a.kind, a.address, a.port) for a in internet.arrivals(nonce)]
            seen.append((printed.replace(nonce, "NONCE"), arrived))
    return seen


if __name__ == "__main__":
    print(json.dumps(anyio.run(visit, json.load(sys.stdin), str(Path.cwd()))))
