"""What an exporter of OpenTelemetry may send is used; what anybody may is answered and counted."""

from __future__ import annotations

import gzip
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from anyio import create_task_group, fail_after, run, to_thread
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from stream.sources import tool_calls
from stream.sources.tool_calls import MOST, MOST_BODY, MOST_HEAD, MOST_UNKNOWN, TelemetryCollector

LIMIT = 120.0
SMALL = b'{"a":1}'

bodies = st.binary(max_size=300)


def encode_post(body: bytes, *fields: bytes, target: bytes = b"/x", sized: bool = True) -> bytes:
    length = [b"Content-Length: %d" % len(body)] if sized else []
    head = [b"POST %b HTTP/1.1" % target, b"Host: here", *length, *fields]
    return b"\r\n".join([*head, b"", body])


def encode_chunked(*pieces: bytes, target: bytes = b"/x") -> bytes:
    text = b"".join(b"%x;name=value\r\n%b\r\n" % (len(one), one) for one in pieces if one)
    body = text + b"0\r\nTrailer: yes\r\n\r\n"
    return encode_post(body, b"Transfer-Encoding: Chunked", target=target, sized=False)


def encode_gzip(body: bytes, target: bytes = b"/x") -> bytes:
    return encode_post(gzip.compress(body), b"Content-Encoding: gzip", target=target)


class RunningCollector:
    def __init__(self) -> None:
        self._taken: list[bytes] = []
        self.collector = TelemetryCollector()
        environment = self.collector.open()
        url = environment[b"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"].decode()
        address, self.target = url.removeprefix("http://").partition("/")[::2]
        host, port = address.split(":")
        self.address = (host, int(port))

    @property
    def bodies(self) -> list[bytes]:
        self._taken += [block.data for block in self.collector.take_blocks()]
        return self._taken

    @property
    def place(self) -> bytes:
        return f"/{self.target}".encode()

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, LIMIT)

    def send_all(self, *data: bytes) -> bytes:
        """Over one connection, each when the one before it was answered; all that came back."""
        with self.connect() as connection:
            for one in data[:-1]:
                connection.sendall(one)
                assert connection.recv(1 << 16).endswith(b"{}")
            connection.sendall(data[-1])
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(1 << 16), b""))


@asynccontextmanager
async def run_collector() -> AsyncIterator[RunningCollector]:
    running = RunningCollector()
    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            tasks.start_soon(running.collector.run)
            yield running
            running.collector.end()


@pytest.mark.anyio
async def test_what_exporters_send_is_received_as_lines() -> None:
    async with run_collector() as running:
        place = running.place
        request = (
            encode_post(SMALL, target=place),
            encode_chunked(b'{\n"b"', b":2}\n", target=place),
            encode_gzip(b'{"c":3}', target=place),
        )
        answer = await to_thread.run_sync(running.send_all, *request)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert running.bodies == [b'{"a":1}\n', b'{ "b":2} \n', b'{"c":3}\n']
    assert list(running.collector.unused_telemetry()) == []


@pytest.mark.anyio
async def test_pipelined_requests_are_answered_in_order() -> None:
    async with run_collector() as running:
        many = [encode_post(b'{"n":%d}' % n, target=running.place) for n in range(50)]
        answers = await to_thread.run_sync(running.send_all, b"".join(many))
    assert answers.count(b"HTTP/1.1 200 OK\r\n") == 50
    assert running.bodies == [b'{"n":%d}\n' % n for n in range(50)]


@pytest.mark.anyio
async def test_other_targets_are_not_received() -> None:
    async with run_collector() as running:
        for data in (
            encode_post(SMALL, target=b"/v1/logs"),
            encode_post(SMALL, target=running.place[:-1]),
            encode_post(b"", target=running.place).replace(b"POST", b"GET"),
        ):
            answer = await to_thread.run_sync(running.send_all, data)
            assert answer.startswith(b"HTTP/1.1 404 ")
    assert running.bodies == []
    assert list(running.collector.unused_telemetry()) == []


def content_length(length: bytes) -> bytes:
    return b"Content-Length: " + length


_CHUNKED = b"Transfer-Encoding: chunked"
_GZIP = b"Content-Encoding: gzip"
#: fields, what follows them, and the status of the answer: where the head is one, and names us
REFUSED: list[tuple[tuple[bytes, ...], bytes, int]] = [
    ((content_length(b"%d" % (MOST_BODY + 1)),), b"", 413),
    ((_CHUNKED,), b"x\r\n", 400),
    ((_CHUNKED,), b"1\r\nab\r\n", 400),
    ((_CHUNKED,), b"%x\r\n" % (MOST_BODY + 1) + bytes(MOST_BODY + 1), 413),
    ((_GZIP, content_length(b"7")), b"no gzip", 400),
    ((_GZIP, content_length(b"20")), gzip.compress(b"cut")[:20], 400),
    ((b"Content-Encoding: br", content_length(b"0")), b"", 415),
]
#: the same of what is no head: it names nobody's place
NO_HEADS: list[tuple[tuple[bytes, ...], bytes, int]] = [
    ((b"no colon",), b"", 400),
    ((content_length(b"-1"),), b"", 400),
    ((content_length(b"9" * 5000),), b"", 400),
    ((b"x: " + bytes(b"x" * (MOST_HEAD + (1 << 17))),), b"", 431),
]


@pytest.mark.anyio
async def test_what_is_refused_is_answered_and_counted() -> None:
    """Also to somebody who goes on sending: the answer is not lost by that."""
    async with run_collector() as running:
        for fields, rest, status in (*REFUSED, *NO_HEADS):
            request = encode_post(b"", *fields, target=running.place, sized=False) + rest
            answer = await to_thread.run_sync(running.send_all, request)
            assert answer.startswith(b"HTTP/1.1 %d " % status), (fields, answer)
        bomb = encode_gzip(bytes(MOST_BODY + 1), running.place)
        assert (await to_thread.run_sync(running.send_all, bomb)).startswith(b"HTTP/1.1 413 ")
        assert (
            await to_thread.run_sync(running.send_all, encode_post(SMALL, target=running.place))
        ).startswith(b"HTTP/1.1 200 ")
    assert running.bodies == [SMALL + b"\n"]
    (trouble,) = running.collector.unused_telemetry()
    count = len(REFUSED) + 1
    sentence = f"{count} requests of OpenTelemetry could not be understood"
    assert (trouble.count, trouble.sentence) == (count, sentence)


@pytest.mark.anyio
async def test_an_unknown_sender_is_answered_before_the_rest_is_read_and_costs_nothing() -> None:
    async with run_collector() as running:
        head = encode_post(b"", content_length(b"%d" % (8 << 20)), target=b"/v1/logs", sized=False)
        with running.connect() as unknown:
            unknown.sendall(head)
            answer = await to_thread.run_sync(unknown.recv, 1 << 16)
            assert answer.startswith(b"HTTP/1.1 404 ")
        for data in (b"\x16\x03\x01\x02\x00 hello\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\n"):
            answer = await to_thread.run_sync(running.send_all, data)
            assert answer.startswith(b"HTTP/1.1 4")
    assert running.bodies == []
    assert list(running.collector.unused_telemetry()) == []


@pytest.mark.anyio
@pytest.mark.parametrize("count", [3 * MOST, MOST_UNKNOWN + MOST])
async def test_idle_connections_turn_nobody_away(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Where there are more of them than may be open at a time, others wait until one is not."""
    monkeypatch.setattr(tool_calls, "_PATIENCE", 0.5)
    async with run_collector() as running:
        idle = await to_thread.run_sync(lambda: [running.connect() for _ in range(count)])
        answer = await to_thread.run_sync(
            running.send_all, encode_post(SMALL, target=running.place)
        )
        assert answer.startswith(b"HTTP/1.1 200 ")
        for connection in idle:
            connection.close()
    assert running.bodies == [SMALL + b"\n"]
    assert list(running.collector.unused_telemetry()) == []


@pytest.mark.anyio
async def test_who_names_no_place_loses_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_calls, "_PATIENCE", 0.1)
    async with run_collector() as running:
        with running.connect() as idle:
            assert await to_thread.run_sync(idle.recv, 1) == b""
        with running.connect() as known:  # who has named it once may take its time
            known.sendall(encode_post(SMALL, target=running.place))
            assert (await to_thread.run_sync(known.recv, 1 << 16)).startswith(b"HTTP/1.1 200 ")
            with running.connect() as idle:
                assert await to_thread.run_sync(idle.recv, 1) == b""
            known.sendall(encode_post(SMALL, target=running.place))
            assert (await to_thread.run_sync(known.recv, 1 << 16)).startswith(b"HTTP/1.1 200 ")
    assert list(running.collector.unused_telemetry()) == []


@pytest.mark.anyio
async def test_who_waits_to_be_asked_for_the_body() -> None:
    async with run_collector() as running:
        request = encode_post(SMALL, b"Expect: 100-continue", target=running.place)
        with running.connect() as connection:
            connection.sendall(request[: -len(SMALL)])
            answer = await to_thread.run_sync(connection.recv, 1 << 16)
            assert answer.startswith(b"HTTP/1.1 100 ")
            connection.sendall(SMALL)
            answer = await to_thread.run_sync(connection.recv, 1 << 16)
            assert answer.startswith(b"HTTP/1.1 200 ")
    assert running.bodies == [SMALL + b"\n"]


@given(
    requests=st.lists(
        st.tuples(st.sampled_from([encode_post, encode_chunked, encode_gzip]), bodies), max_size=4
    ),
    cuts=st.lists(st.integers(0, 1500), max_size=6),
)
def test_requests_are_read_however_they_are_cut(
    requests: list[tuple[Callable[..., bytes], bytes]], cuts: list[int]
) -> None:
    async def send_in_pieces() -> list[bytes]:
        async with run_collector() as running:
            data = b"".join(form(body, target=running.place) for form, body in requests)
            edges = sorted(min(cut, len(data)) for cut in cuts)
            with running.connect() as connection:
                for start, end in zip([0, *edges], [*edges, len(data)], strict=True):
                    connection.sendall(data[start:end])
                    await checkpoint()
                connection.shutdown(socket.SHUT_WR)
                await to_thread.run_sync(lambda: [*iter(lambda: connection.recv(1 << 16), b"")])
        assert not list(running.collector.unused_telemetry())
        return running.bodies

    assert run(send_in_pieces) == [body.replace(b"\n", b" ") + b"\n" for _, body in requests]


@pytest.mark.anyio
async def test_who_is_slow_holds_up_nobody_else() -> None:
    async with run_collector() as running:
        data = encode_post(SMALL, target=running.place)
        with running.connect() as slow:
            for at in range(len(data) - 1):
                slow.sendall(data[at : at + 1])
                if at % 20 == 0:
                    await to_thread.run_sync(
                        running.send_all, encode_post(b"{}", target=running.place)
                    )
            slow.sendall(data[-1:])
            assert (await to_thread.run_sync(slow.recv, 1 << 16)).startswith(b"HTTP/1.1 200 ")
    assert running.bodies.count(SMALL + b"\n") == 1
    assert running.bodies.count(b"{}\n") == len(range(0, len(data) - 1, 20))


@pytest.mark.anyio
async def test_what_was_sent_before_the_end_is_received() -> None:
    """Whoever sent it is gone, and nobody had accepted the connection."""
    running = RunningCollector()
    with running.connect() as gone:
        gone.sendall(encode_post(SMALL, target=running.place))
    running.collector.end()
    with fail_after(LIMIT):
        await running.collector.run()
    assert running.bodies == [SMALL + b"\n"]


@pytest.mark.anyio
async def test_who_never_ends_does_not_keep_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_calls, "LAST", 0.1)
    async with run_collector() as running:
        idle, begun = running.connect(), running.connect()
        begun.sendall(encode_post(SMALL, target=running.place)[:-1])
    with idle, begun:
        (unused,) = running.collector.unused_telemetry()
        assert (unused.why, unused.sentence) == ("torn", "1 request of OpenTelemetry broke off")
        with pytest.raises(ConnectionError):
            running.connect()


@pytest.mark.anyio
async def test_more_than_so_many_are_turned_away() -> None:
    async with run_collector() as running:
        held = []
        for _ in range(MOST):
            connection = running.connect()
            held.append(connection)
            connection.sendall(encode_post(b"{}", target=running.place))
            await to_thread.run_sync(connection.recv, 1 << 16)
        answer = await to_thread.run_sync(
            running.send_all, encode_post(b"{}", target=running.place)
        )
        assert answer.startswith(b"HTTP/1.1 503 ")
        for connection in held:
            connection.close()
    (trouble,) = (one.sentence for one in running.collector.unused_telemetry())
    assert trouble.startswith("1 request of OpenTelemetry came while too many")


@pytest.mark.anyio
async def test_an_agent_that_is_gone_before_its_answer() -> None:
    async with run_collector() as running:
        for _ in range(MOST // 2):
            connection = running.connect()
            option = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)  # a reset
            connection.sendall(encode_post(SMALL, target=running.place))
            connection.close()
        await to_thread.run_sync(running.send_all, encode_post(b"{}", target=running.place))
    assert b"{}\n" in running.bodies


@pytest.mark.anyio
async def test_it_is_there_for_this_machine_only() -> None:
    running = RunningCollector()
    assert running.address[0] == "127.0.0.1"
    with running.connect() as connection:
        assert connection.getpeername() == running.address
    running.collector.close()
    running.collector.close()
    with pytest.raises(ConnectionError):
        running.connect()


@pytest.mark.anyio
async def test_what_is_not_taken_is_kept_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sends without end does not fill our memory, and what was turned away is counted."""
    monkeypatch.setattr(tool_calls, "MOST_WAITING", len(SMALL))
    async with run_collector() as running:
        for status in (b"200", b"503"):
            answer = await to_thread.run_sync(
                running.send_all, encode_post(SMALL, target=running.place)
            )
            assert answer.startswith(b"HTTP/1.1 %b " % status)
        assert running.bodies == [SMALL + b"\n"]
        await to_thread.run_sync(running.send_all, encode_post(b"{}", target=running.place))
    assert running.bodies == [SMALL + b"\n", b"{}\n"]
    (unused,) = running.collector.unused_telemetry()
    assert (unused.why, unused.count) == ("turned_away", 1)
