"""Where an agent that speaks OpenTelemetry is told to send its logs: a port of loopback.

What comes is answered at once and used after that; what cannot be understood is answered and
counted. Nothing of it holds the agent up, or raises into the run. The place has a name that only
the agent is told, so that nobody else who can reach the port adds to the record.
"""

from __future__ import annotations

import os
import socket
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus

import h11
from anyio import (
    CancelScope,
    create_task_group,
    current_time,
    move_on_after,
    sleep,
    to_thread,
    wait_readable,
    wait_writable,
)
from anyio.abc import TaskGroup

from stream.errors import number
from stream.evidence.markers import DroppedInput
from stream.process.machine import kernel_now

MOST = 16  #: connections at a time that have named our place
MOST_UNKNOWN = 128  #: and of those that have not: they have little time for it; others wait
MOST_HEAD = 64 << 10  #: bytes of a request's head
MOST_BODY = 1 << 20  #: bytes of a request's body, packed and unpacked
LAST = 2.0  #: seconds for what has been sent and not been read when the run is over
_LINGER = 1.0  #: seconds for whoever is still sending what was refused
_PATIENCE = 2.0  #: seconds that somebody who has not named our place may take to name it
_PAUSE = 0.05
_BLOCK = 1 << 16


class Collector:
    """`hear`: told each body, and when it came: monotonic ns. In a thread."""

    def __init__(self, hear: Callable[[bytes, int], None]) -> None:
        self.received = 0  #: bodies
        self._hear = hear
        self._target = b"/%b/v1/logs" % os.urandom(16).hex().encode()
        self._socket: socket.socket | None = None
        self._accepting = CancelScope()
        self._count = self._unknown = 0
        self._refused = self._torn = self._turned_away = 0

    def open(self) -> dict[bytes, bytes]:
        """What the agent's environment must say. Raises OSError."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setblocking(False)
            listener.bind(("127.0.0.1", 0))
            listener.listen(socket.SOMAXCONN)
        except OSError:
            listener.close()
            raise
        self._socket = listener
        port = listener.getsockname()[1]
        return {
            b"CLAUDE_CODE_ENABLE_TELEMETRY": b"1",
            b"OTEL_LOGS_EXPORTER": b"otlp",
            # Of logs only: where the agent's user sends anything else is none of our business.
            b"OTEL_EXPORTER_OTLP_LOGS_PROTOCOL": b"http/json",
            b"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": b"http://127.0.0.1:%d%b" % (port, self._target),
            b"OTEL_LOGS_EXPORT_INTERVAL": b"100",
            b"OTEL_LOG_TOOL_DETAILS": b"1",
        }

    async def run(self) -> None:
        """Until `end`, and to the last of what has been sent by then."""
        assert self._socket is not None
        try:
            async with create_task_group() as connections:
                with self._accepting:
                    while True:
                        await wait_readable(self._socket)
                        if not self._accept(self._socket, connections):
                            await sleep(_PAUSE)  # too many are open, or there are no descriptors
                self._accept(self._socket, connections, is_last=True)
                connections.cancel_scope.deadline = current_time() + LAST
        finally:
            self.close()

    def end(self) -> None:
        """Take no further request."""
        self._accepting.cancel()

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()

    def unused(self) -> Iterator[DroppedInput]:
        """Give what came and could not be used."""
        for why, count, what in (
            ("refused", self._refused, "could not be understood"),
            ("torn", self._torn, "broke off"),
            ("turned_away", self._turned_away, "came while too many others were open"),
        ):
            if count:
                sentence = f"{number(count, 'request')} of OpenTelemetry {what}"
                yield DroppedInput("otel", why, count, sentence)

    def _accept(
        self, listener: socket.socket, connections: TaskGroup, *, is_last: bool = False
    ) -> bool:
        """All who wait. False: not all of them could be."""
        while True:
            if self._unknown >= MOST_UNKNOWN and not is_last:
                return False
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return True
            except ConnectionError:
                continue  # it went away while it waited
            except OSError:
                return False
            if self._unknown >= MOST_UNKNOWN:
                self._turned_away += 1  # it may have been the agent
                connection.close()
                continue
            connection.setblocking(False)
            self._unknown += 1
            connections.start_soon(self._serve, connection)

    async def _serve(self, connection: socket.socket) -> None:
        # What is read and not used yet is this much at most, however it was sent.
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD)
        with suppress(OSError, h11.ProtocolError), connection:  # it went away, or does so now
            request = None
            try:
                with move_on_after(_PATIENCE):
                    request = await self._asked(connection, http)
            finally:
                self._unknown -= 1
            if request is None:
                return
            if self._count >= MOST:
                self._turned_away += 1
                await _refuse(connection, http, 503)
                return
            self._count += 1
            try:
                while request is not None:
                    await self._take(connection, http, request)
                    http.start_next_cycle()
                    request = await self._asked(connection, http)
            finally:
                self._count -= 1

    async def _asked(self, connection: socket.socket, http: h11.Connection) -> h11.Request | None:
        """The head of a request for our place. Whoever asks for anything else is answered before
        the rest is read, and costs the run nothing: it is nobody of whom the record speaks."""
        try:
            request = await _next(connection, http)
        except h11.RemoteProtocolError as error:
            await _refuse(connection, http, error.error_status_hint)
            return None
        if not isinstance(request, h11.Request):
            return None
        if (request.method, request.target) != (b"POST", self._target):
            await _refuse(connection, http, 404)
            return None
        return request

    async def _take(
        self, connection: socket.socket, http: h11.Connection, request: h11.Request
    ) -> None:
        try:
            body = await _body(connection, http, request)
        except _RefusedError as refused:
            self._refused += 1
            await _refuse(connection, http, refused.status)
            raise
        except BaseException:
            self._torn += 1
            raise
        try:
            await _answer(connection, http, 200)
        finally:
            with CancelScope(shield=True):
                self.received += 1
                # A newline can only stand between the words of a JSON text.
                line = body.replace(b"\n", b" ") + b"\n"
                await to_thread.run_sync(self._hear, line, kernel_now())


class _RefusedError(h11.ProtocolError):
    """A request for our place that cannot be used."""

    def __init__(self, status: int) -> None:
        super().__init__("refused", status)
        self.status = status


async def _next(connection: socket.socket, http: h11.Connection) -> h11.Event:
    """Return what comes next. Raise h11.RemoteProtocolError where that is no HTTP."""
    while (event := http.next_event()) is h11.NEED_DATA:
        if http.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            await _send(connection, http.send(go_on))
        http.receive_data(await _receive(connection))
    return event  # type: ignore[return-value]


async def _body(connection: socket.socket, http: h11.Connection, request: h11.Request) -> bytes:
    """Raise _RefusedError where there is too much of it, or it cannot be read."""
    fields = dict(request.headers)
    if len(length := fields.get(b"content-length", b"0")) > 10 or int(length) > MOST_BODY:
        raise _RefusedError(413)
    body = bytearray()
    try:
        while isinstance(event := await _next(connection, http), h11.Data):
            body += event.data
            if len(body) > MOST_BODY:
                raise _RefusedError(413)
    except h11.RemoteProtocolError as error:
        if http.trailing_data[1]:
            raise  # it broke off
        raise _RefusedError(error.error_status_hint) from None
    return _unpacked(bytes(body), fields.get(b"content-encoding", b"identity").lower())


def _unpacked(body: bytes, coding: bytes) -> bytes:
    if coding == b"identity":
        return body
    if coding != b"gzip":
        raise _RefusedError(415)
    unpacking = zlib.decompressobj(wbits=31)
    try:
        data = unpacking.decompress(body, MOST_BODY + 1)
    except zlib.error:
        raise _RefusedError(400) from None
    if len(data) > MOST_BODY:
        raise _RefusedError(413)
    if not unpacking.eof or unpacking.unused_data:
        raise _RefusedError(400)
    return data


async def _refuse(connection: socket.socket, http: h11.Connection, status: int) -> None:
    if http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
        await _answer(connection, http, status, (b"connection", b"close"))
    # Closed at once, what it still sends would cost it our answer.
    connection.shutdown(socket.SHUT_WR)
    with move_on_after(_LINGER):
        while await _receive(connection):
            pass


async def _answer(
    connection: socket.socket, http: h11.Connection, status: int, *fields: tuple[bytes, bytes]
) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"2"), *fields]
    reason = HTTPStatus(status).phrase.encode()
    parts = (
        h11.Response(status_code=status, headers=headers, reason=reason),
        h11.Data(data=b"{}"),
        h11.EndOfMessage(),
    )
    await _send(connection, b"".join(http.send(part) or b"" for part in parts))


async def _receive(connection: socket.socket) -> bytes:
    """Whoever sends without a pause does not keep the loop from others."""
    while True:
        await wait_readable(connection)
        try:
            return connection.recv(_BLOCK)
        except BlockingIOError:
            continue


async def _send(connection: socket.socket, data: bytes | None) -> None:
    while data:
        try:
            data = data[connection.send(data) :]
        except BlockingIOError:
            await wait_writable(connection)
