"""What an exporter of OpenTelemetry may send is used; what anybody may is answered and counted."""

from __future__ import annotations

import gzip
import socket
import threading
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from anyio import create_task_group, fail_after, to_thread
from hypothesis import given
from hypothesis import strategies as st

from stream.recorder import collector
from stream.recorder.collector import MOST, Collector
from stream.recorder.requests import (
    MOST_BODY,
    MOST_HEAD,
    Expectation,
    Refusal,
    Request,
    RequestReader,
)

LIMIT = 30.0
SMALL = b'{"a":1}'

bodies = st.binary(max_size=300)


def post(body: bytes, *fields: bytes, target: bytes = b"/x", sized: bool = True) -> bytes:
    length = [b"Content-Length: %d" % len(body)] if sized else []
    head = [b"POST %b HTTP/1.1" % target, b"Host: here", *length, *fields]
    return b"\r\n".join([*head, b"", body])


def chunked(*pieces: bytes, target: bytes = b"/x") -> bytes:
    text = b"".join(b"%x;name=value\r\n%b\r\n" % (len(one), one) for one in pieces if one)
    body = text + b"0\r\nTrailer: yes\r\n\r\n"
    return post(body, b"Transfer-Encoding: Chunked", target=target, sized=False)


def packed(body: bytes, target: bytes = b"/x") -> bytes:
    return post(gzip.compress(body), b"Content-Encoding: gzip", target=target)


# --- the protocol -------------------------------------------------------------------------------


def read(data: bytes) -> list[Any]:
    return list(RequestReader().feed(data))


def bodies_of(found: list[Any]) -> list[bytes]:
    return [one.body for one in found if isinstance(one, Request)]


@given(
    told=st.lists(st.tuples(st.sampled_from([post, chunked, packed]), bodies), max_size=5),
    cuts=st.lists(st.integers(0, 2000), max_size=12),
)
def test_requests_are_read_however_they_are_cut(
    told: list[tuple[Callable[[bytes], bytes], bytes]], cuts: list[int]
) -> None:
    data = b"".join(form(body) for form, body in told)
    reader = RequestReader()
    found: list[Any] = []
    edges = sorted(min(cut, len(data)) for cut in cuts)
    for start, end in zip([0, *edges], [*edges, len(data)], strict=True):
        found += reader.feed(data[start:end])
        reached = b"".join(form(body) for form, body in told[: len(found)])
        assert reader.is_within == (end > len(reached))
    assert bodies_of(found) == [body for _, body in told]


@given(st.lists(bodies, max_size=6))
def test_chunks_are_one_body(pieces: list[bytes]) -> None:
    assert bodies_of(read(chunked(*pieces))) == [b"".join(pieces)]


@given(st.binary(max_size=500))
def test_whatever_comes_is_found_or_refused(data: bytes) -> None:
    found = read(data)
    assert all(isinstance(one, Request | Refusal | Expectation) for one in found)
    after = b"POST / HTTP/1.1\r\n" + data
    refusals = [one for one in read(after) if isinstance(one, Refusal)]
    assert len(refusals) <= 1


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00 hello\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\n", 400),
        (b"POST /x HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"POST /x HTTP/1.1\r\nspace : x\r\n\r\n", 400),
        (post(b"", b"Content-Length: -1", sized=False), 400),
        (post(b"", b"Content-Length: +1", sized=False), 400),
        (post(b"", b"Content-Length: 1_0", sized=False), 400),
        (post(b"", b"Content-Length: " + b"9" * 5000, sized=False), 400),
        (post(b"", b"Content-Length: %d" % (MOST_BODY + 1), sized=False), 413),
        (post(b"", b"Transfer-Encoding: chunked"), 400),  # a length as well
        (post(b"", b"Transfer-Encoding: gzip", sized=False), 400),
        (post(b"x\r\n", b"Transfer-Encoding: chunked", sized=False), 400),
        (post(b"%x\r\n" % (MOST_BODY + 1), b"Transfer-Encoding: chunked", sized=False), 413),
        (post(b"1\r\nab\r\n", b"Transfer-Encoding: chunked", sized=False), 400),
        (post(b"x" * 1100, b"Transfer-Encoding: chunked", sized=False), 431),
        (post(b"no gzip", b"Content-Encoding: gzip"), 400),
        (post(gzip.compress(b"cut")[:-3], b"Content-Encoding: gzip"), 400),
        (post(gzip.compress(b"a") * 2, b"Content-Encoding: gzip"), 400),
        (post(b"", b"Content-Encoding: br"), 415),
        (packed(bytes(MOST_BODY + 1)), 413),
        (b"x" * (MOST_HEAD + 1), 431),
    ],
)
def test_what_is_refused(data: bytes, status: int) -> None:
    reader = RequestReader()
    (found,) = reader.feed(data)
    assert isinstance(found, Refusal)
    assert int(found.status.split()[0]) == status
    assert list(reader.feed(post(b"more"))) == []
    assert not reader.is_within


def test_pieces_that_are_too_long_together() -> None:
    piece = bytes(MOST_BODY // 2 + 1)
    (found,) = read(chunked(piece, piece))
    assert isinstance(found, Refusal)
    assert found.status.startswith(b"413 ")


def test_a_bomb_takes_no_more_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty times what is allowed, in a few hundred kilobytes."""
    packing = zlib.compressobj(wbits=31)
    zeros = bytes(MOST_BODY)
    bomb = b"".join(packing.compress(zeros) for _ in range(20)) + packing.flush()
    assert len(bomb) < MOST_BODY // 10
    sizes: list[int] = []
    real = zlib.decompressobj

    class Measured:
        eof, unused_data = False, b""

        def __init__(self, **how: Any) -> None:
            self._real = real(**how)

        def decompress(self, data: bytes, most: int) -> bytes:
            sizes.append(most)
            return self._real.decompress(data, most)

    monkeypatch.setattr(zlib, "decompressobj", Measured)
    (found,) = read(post(bomb, b"Content-Encoding: gzip"))
    assert isinstance(found, Refusal)
    assert sizes == [MOST_BODY + 1]


@pytest.mark.parametrize(
    ("fields", "is_last"),
    [((), False), ((b"Connection: keep-alive",), False), ((b"connection: Close",), True)],
)
def test_the_last_of_a_connection(fields: tuple[bytes, ...], is_last: bool) -> None:
    reader = RequestReader()
    found = next(reader.feed(post(SMALL, *fields)))  # whoever goes on reading has no last one
    assert isinstance(found, Request)
    assert found.is_last == is_last
    assert not reader.is_within


def test_who_waits_to_be_asked_for_the_body() -> None:
    reader = RequestReader()
    data = post(SMALL, b"Expect: 100-continue")
    assert list(reader.feed(data[: -len(SMALL)])) == [Expectation()]
    assert bodies_of(list(reader.feed(SMALL))) == [SMALL]


# --- on real sockets ----------------------------------------------------------------------------


class Heard:
    def __init__(self, on_body: Callable[[], object] = lambda: None) -> None:
        self.bodies: list[bytes] = []
        self._on_body = on_body
        self.collector = Collector(self._hear)
        environment = self.collector.open()
        url = environment[b"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"].decode()
        address, self.target = url.removeprefix("http://").partition("/")[::2]
        host, port = address.split(":")
        self.address = (host, int(port))

    def _hear(self, body: bytes, arrived: int) -> None:
        self.bodies.append(body)
        self._on_body()

    @property
    def place(self) -> bytes:
        return f"/{self.target}".encode()

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, LIMIT)

    def tell(self, *data: bytes) -> bytes:
        """Over one connection, each when the one before it was answered; all that came back."""
        with self.connect() as connection:
            for one in data[:-1]:
                connection.sendall(one)
                assert connection.recv(1 << 16).endswith(b"{}")
            connection.sendall(data[-1])
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(1 << 16), b""))


@asynccontextmanager
async def collecting(on_body: Callable[[], object] = lambda: None) -> AsyncIterator[Heard]:
    heard = Heard(on_body)
    with fail_after(LIMIT):
        async with create_task_group() as tasks:
            tasks.start_soon(heard.collector.run)
            yield heard
            heard.collector.end()


@pytest.mark.anyio
async def test_what_exporters_send_is_heard_as_lines() -> None:
    async with collecting() as heard:
        place = heard.place
        asked = (
            post(SMALL, target=place),
            chunked(b'{\n"b"', b":2}\n", target=place),
            packed(b'{"c":3}', target=place),
        )
        answer = await to_thread.run_sync(heard.tell, *asked)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert heard.bodies == [b'{"a":1}\n', b'{ "b":2} \n', b'{"c":3}\n']
    assert list(heard.collector.unused()) == []


@pytest.mark.anyio
async def test_pipelined_requests_are_answered_in_order() -> None:
    async with collecting() as heard:
        many = [post(b'{"n":%d}' % n, target=heard.place) for n in range(50)]
        answers = await to_thread.run_sync(heard.tell, b"".join(many))
    assert answers.count(b"HTTP/1.1 200 OK\r\n") == 50
    assert heard.bodies == [b'{"n":%d}\n' % n for n in range(50)]


@pytest.mark.anyio
async def test_other_places_are_not_heard() -> None:
    async with collecting() as heard:
        for data in (
            post(SMALL, target=b"/v1/logs"),
            post(SMALL, target=heard.place[:-1]),
            post(b"", target=heard.place).replace(b"POST", b"GET"),
        ):
            answer = await to_thread.run_sync(heard.tell, data)
            assert answer.startswith(b"HTTP/1.1 404 ")
    assert heard.bodies == []
    assert list(heard.collector.unused()) == []


@pytest.mark.anyio
async def test_what_is_refused_is_answered_and_counted() -> None:
    """Also to somebody who goes on sending: the answer is not lost by that."""
    async with collecting() as heard:
        too_long = post(bytes(MOST_BODY + 1), target=heard.place)
        assert (await to_thread.run_sync(heard.tell, too_long)).startswith(b"HTTP/1.1 413 ")
        assert (await to_thread.run_sync(heard.tell, b"\0" * 10 + b"\r\n\r\n")).startswith(
            b"HTTP/1.1 400 "
        )
        assert (await to_thread.run_sync(heard.tell, post(SMALL, target=heard.place))).startswith(
            b"HTTP/1.1 200 "
        )
    assert heard.bodies == [SMALL + b"\n"]
    troubles = [one.sentence for one in heard.collector.unused()]
    assert troubles == ["2 requests of OpenTelemetry could not be understood"]


@pytest.mark.anyio
async def test_who_is_slow_holds_up_nobody_else() -> None:
    async with collecting() as heard:
        data = post(SMALL, target=heard.place)
        with heard.connect() as slow:
            for at in range(len(data) - 1):
                slow.sendall(data[at : at + 1])
                if at % 20 == 0:
                    await to_thread.run_sync(heard.tell, post(b"{}", target=heard.place))
            slow.sendall(data[-1:])
            assert (await to_thread.run_sync(slow.recv, 1 << 16)).startswith(b"HTTP/1.1 200 ")
    assert heard.bodies.count(SMALL + b"\n") == 1
    assert heard.bodies.count(b"{}\n") == len(range(0, len(data) - 1, 20))


@pytest.mark.anyio
async def test_what_was_sent_before_the_end_is_heard() -> None:
    """Whoever sent it is gone, and nobody had accepted the connection."""
    heard = Heard()
    with heard.connect() as gone:
        gone.sendall(post(SMALL, target=heard.place))
    heard.collector.end()
    with fail_after(LIMIT):
        await heard.collector.run()
    assert heard.bodies == [SMALL + b"\n"]


@pytest.mark.anyio
async def test_who_never_ends_does_not_keep_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "LAST", 0.1)
    async with collecting() as heard:
        idle, begun = heard.connect(), heard.connect()
        begun.sendall(b"POST ")
    with idle, begun:
        (unused,) = heard.collector.unused()
        assert (unused.why, unused.sentence) == ("torn", "1 requests of OpenTelemetry broke off")
        with pytest.raises(ConnectionError):
            heard.connect()


@pytest.mark.anyio
async def test_more_than_so_many_are_turned_away() -> None:
    async with collecting() as heard:
        held = []
        for _ in range(MOST):
            connection = heard.connect()
            held.append(connection)
            connection.sendall(post(b"{}", target=heard.place))
            await to_thread.run_sync(connection.recv, 1 << 16)
        with heard.connect() as one_more:
            assert await to_thread.run_sync(one_more.recv, 1) == b""
        for connection in held:
            connection.close()
    (trouble,) = (one.sentence for one in heard.collector.unused())
    assert trouble.startswith("1 requests of OpenTelemetry came while too many")


@pytest.mark.anyio
async def test_an_agent_that_is_gone_before_its_answer() -> None:
    async with collecting() as heard:
        for _ in range(20):
            connection = heard.connect()
            option = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)  # a reset
            connection.sendall(post(SMALL, target=heard.place))
            connection.close()
        await to_thread.run_sync(heard.tell, post(b"{}", target=heard.place))
    assert b"{}\n" in heard.bodies


@pytest.mark.anyio
async def test_it_is_there_for_this_machine_only() -> None:
    heard = Heard()
    assert heard.address[0] == "127.0.0.1"
    with heard.connect() as connection:
        assert connection.getpeername() == heard.address
    heard.collector.close()
    heard.collector.close()
    with pytest.raises(ConnectionError):
        heard.connect()


@pytest.mark.anyio
async def test_whoever_hears_is_in_a_thread() -> None:
    """What takes long to use holds up neither the agent nor the feed."""
    waiting, go_on = threading.Event(), threading.Event()

    def use() -> None:
        waiting.set()
        assert go_on.wait(LIMIT)

    async with collecting(use) as heard:
        with heard.connect() as connection:
            connection.sendall(post(SMALL, target=heard.place))
            answer = await to_thread.run_sync(connection.recv, 1 << 16)
            assert answer.startswith(b"HTTP/1.1 200 ")
            await to_thread.run_sync(waiting.wait, LIMIT)
            answer = await to_thread.run_sync(heard.tell, post(SMALL, target=b"/"))
            assert answer.startswith(b"HTTP/1.1 404 ")
            go_on.set()
    assert heard.bodies == [SMALL + b"\n"]
