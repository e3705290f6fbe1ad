"""Visits to the stand-in Internet, as a program that any user may run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import anyio

from stream.targets.internet import StandInInternet, open_internet

NONCES = (f"{serial:012x}" for serial in range(0xABCDEF000000, 1 << 48))
CLIENTS = Path(__file__).parent / "clients.py"
Seen = list[tuple[str, list[tuple[str, str, int]]]]


def client_words(
    internet: StandInInternet, script: str, nonce: str = "-", workdir: str = "/"
) -> list[str]:
    """Return the command that runs a script of clients inside."""
    return [*internet.prefix(workdir), sys.executable, "-I", str(CLIENTS), script, nonce]


async def run_inside(
    internet: StandInInternet, script: str, nonce: str = "-", workdir: str = "/"
) -> str:
    """Run a script of clients inside, and return what it prints."""
    words = client_words(internet, script, nonce, workdir)
    done = await anyio.run_process(words, stderr=subprocess.STDOUT, check=False)
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
            # A look-up asks again, as often as the system likes.
            arrived = list({(a.kind, a.address, a.port): None for a in internet.arrivals(nonce)})
            seen.append((printed.replace(nonce, "NONCE"), arrived))
    return seen


if __name__ == "__main__":
    print(json.dumps(anyio.run(visit, json.load(sys.stdin), str(Path.cwd()))))
