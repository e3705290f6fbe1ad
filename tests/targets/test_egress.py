"""The probes of the network, inside the stand-in Internet: what each reports, and what arrived."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from msgspec import Struct

from stream.boundary.scripts import BUNDLED, find_scripts
from stream.records.emission import split_frames
from stream.targets.internet import Arrival, StandInInternet, open_internet
from tests.cli.command import LANDLOCK
from tests.targets.visiting import NONCES

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="namespaces need Linux"),
    pytest.mark.anyio,
]
EFFECTS = {s.id: s.effect or "" for s in find_scripts(BUNDLED) if s.needs == "stand-in"}
HAS_IPV6 = Path("/proc/net/if_inet6").exists()
BY_UDP = {"egress_udp_address", "egress_dns_lookup", "egress_dns_direct"}
RELAY = "http://192.0.2.31:3128"

#: Passes on to the relay what is asked of names below allowed.example.test, and refuses the rest.
POLICY = """
import socket, threading
def copy(source, target):
    while data := source.recv(4096):
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)
def serve(client):
    head = b""
    while b"\\r\\n\\r\\n" not in head:
        head += client.recv(4096)
    host = head.split()[1].removeprefix(b"http://").split(b"/")[0].split(b":")[0]
    if not host.endswith(b".allowed.example.test"):
        client.sendall(b"HTTP/1.1 403 Forbidden\\r\\nContent-Length: 0\\r\\n\\r\\n")
        return client.close()
    relay = socket.create_connection(("192.0.2.31", 3128))
    relay.sendall(head)
    threading.Thread(target=copy, args=(client, relay), daemon=True).start()
    copy(relay, client)
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    while True:
        threading.Thread(target=serve, args=server.accept()[:1], daemon=True).start()
"""


class Seen(Struct):
    """What a probe reported, and how its nonce arrived."""

    status: str
    errno: str
    message: str
    kinds: list[str]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def run_probes(
    internet: StandInInternet, sandbox: Sequence[str] = (), **env: str
) -> dict[str, Seen]:
    """Run each probe of the network once inside."""
    seen = {}
    for probe in EFFECTS:
        if probe == "egress_ipv6_address" and not HAS_IPV6:
            continue
        nonce = next(NONCES)
        inside = {"FENCE_NONCE": nonce, "FENCE_STAND_IN": "1", "FENCE_RUN_MODE": "baseline"}
        done = await anyio.run_process(
            [*internet.prefix("/"), *sandbox, str(BUNDLED / f"{probe}.sh")],
            env={"PATH": os.environ["PATH"], "STREAM_FRAME": "1", "LC_ALL": "C", **inside, **env},
        )
        ((frame,), rest) = split_frames(done.stdout)
        assert (rest, done.stderr) == (b"\n", b"")
        words = [word.text.decode() for word in frame.words]
        status, errno, message = (
            words[words.index(flag) + 1] for flag in ("--status", "--errno", "--message")
        )
        await internet.sync()
        arrivals: list[Arrival] = internet.arrivals(nonce)
        seen[probe] = Seen(status, errno, message, [arrival.kind for arrival in arrivals])
    return seen


@asynccontextmanager
async def policy_proxy(internet: StandInInternet) -> AsyncIterator[str]:
    """Run the proxy of POLICY inside, and yield its address."""
    command = [*internet.prefix("/"), sys.executable, "-I", "-c", POLICY]
    async with await anyio.open_process(command) as proxy:
        assert proxy.stdout
        port = (await proxy.stdout.receive()).decode().strip()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            proxy.kill()


async def test_without_a_sandbox_everything_arrives() -> None:
    async with open_internet() as internet:
        seen = await run_probes(internet)
    assert len(seen) == 13 + HAS_IPV6
    for probe, got in seen.items():
        assert (got.status, got.errno) == ("success", ""), (probe, got)
        assert EFFECTS[probe].removeprefix("arrive:") in got.kinds, (probe, got)


async def test_without_a_network_nothing_arrives() -> None:
    unshare = ("unshare", "-n") if os.geteuid() == 0 else ("unshare", "-rn")
    async with open_internet() as internet:
        seen = await run_probes(internet, unshare)
    for probe, got in seen.items():
        assert (got.status, got.kinds) == ("error", []), (probe, got)
        is_unresolved = got.message.startswith("unresolved ")
        assert is_unresolved or got.errno in ("ENETUNREACH", "EADDRNOTAVAIL"), (probe, got)


async def test_without_tcp_only_datagrams_arrive() -> None:
    async with open_internet() as internet:
        seen = await run_probes(internet, (*LANDLOCK, "--no-tcp", "--"))
    for probe, got in seen.items():
        if probe in BY_UDP:
            assert (got.status, len(got.kinds)) == ("success", 1), (probe, got)
        else:
            assert (got.status, got.errno) == ("denied", "EACCES"), (probe, got)
            assert not set(got.kinds) - {"dns"}, (probe, got)


async def test_the_proxy_of_the_environment() -> None:
    """It alone is gone through, by those that say so."""
    async with open_internet() as internet:
        seen = await run_probes(internet, http_proxy=RELAY, https_proxy=RELAY)
        excepted = await run_probes(internet, http_proxy=RELAY, NO_PROXY=".example.test")
    through = "the expected answer came through 192.0.2.31:3128"
    for probe in ("egress_http_allowed", "egress_http_denied", "egress_http_address"):
        assert (seen[probe].message, seen[probe].kinds) == (through, ["connect", "http"]), probe
        is_excepted = probe != "egress_http_address"
        assert (excepted[probe].kinds[-1:], excepted[probe].message == through) == (
            ["http"],
            not is_excepted,
        )
    assert seen["egress_connect_denied"].kinds == ["connect", "http"]
    assert seen["egress_connect_relay"].message == through
    assert "connect" not in seen["egress_http_past_proxy"].kinds
    assert "connect" not in seen["egress_metadata_address"].kinds


async def test_a_proxy_with_a_policy() -> None:
    """What it refuses does not arrive; an allowed host that is a relay defeats it."""
    async with open_internet() as internet, policy_proxy(internet) as proxy:
        seen = await run_probes(internet, HTTP_PROXY=proxy, ALL_PROXY=proxy)
    at = proxy.removeprefix("http://")
    for probe in ("egress_http_denied", "egress_http_address", "egress_connect_denied"):
        assert (seen[probe].status, seen[probe].errno) == ("error", ""), (probe, seen[probe])
        assert (seen[probe].message, seen[probe].kinds) == (f"refused 403 by {at}", []), probe
    for probe in ("egress_http_allowed", "egress_connect_relay"):
        assert seen[probe].message == f"the expected answer came through {at}", (probe, seen[probe])
    assert {"connect", "http"} <= set(seen["egress_connect_relay"].kinds)
    assert seen["egress_http_past_proxy"].status == "success"
