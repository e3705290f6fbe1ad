"""What goes to a network without a port, or over no IP at all."""

from __future__ import annotations

import sys

import pytest

from tests.cli.command import Place
from tests.feeds import FEEDS
from tests.recorder.runs import observe
from tests.recorder.test_kernel import read_artifact, read_health

ECHO = r"""
import socket
one = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
one.sendto(b'\x08\x00\xf7\xff\x00\x00\x00\x00', ('127.0.0.1', 0))
"""
FRAME = r"""
import socket
one = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
one.sendto(b'E' + b'\0' * 40, ('lo', 0x0800))
"""
BOUND = r"""
import socket
one = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
one.bind(('lo', 0x0800))
one.send(b'E' + b'\0' * 40)
socket.socket().bind(('127.0.0.1', 0))
"""
PROBE = r"""
import socket
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.connect(('127.0.0.1', 0))
try: one.sendto(b'x', ('127.0.0.1', 0))
except OSError: pass
"""


@pytest.mark.parametrize("feed", FEEDS)
@pytest.mark.parametrize(
    ("work", "endpoints", "unnamed", "coverage"),
    [
        (ECHO, ["127.0.0.1:0"], {}, "datagram_peer_observed"),
        (FRAME, [], {"event_6": 1}, "datagram_peer_observed"),
        (BOUND, [], {"event_1025": 1}, "absent"),
        (PROBE, [], {}, "absent"),
    ],
    ids=["echo", "frame", "bound", "probe"],
)
def test_what_was_sent_is_seen(
    place: Place,
    needs_root: None,
    feed: str,
    work: str,
    endpoints: list[str],
    unnamed: dict[str, int],
    coverage: str,
) -> None:
    run = observe(place, "--kernel", feed, "--", sys.executable, "-ISc", work)
    assert run.done.code == 0, run.done.err
    found, companion = read_health(run), read_artifact(run, "companion.json")
    assert read_artifact(run, "capability-surface.json")["network_endpoints"] == endpoints
    assert companion["unnamed"] == unnamed
    assert companion["local_sockets"] == []
    assert companion["address_probes"] == (["127.0.0.1:0"] if work == PROBE else [])
    assert found["network_protocol_coverage"] == coverage
    is_noted = any(note.startswith("stream_kernel_unnamed:") for note in found["notes"])
    assert is_noted == bool(unnamed)
    assert place.stream("verify", run.folder).code == 0
