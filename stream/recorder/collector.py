"""Where an agent that speaks OpenTelemetry is told to send its logs: a port of loopback.

What comes is answered at once and used after that; what cannot be understood is answered and
counted. Nothing of it holds the agent up, or raises into the run. The place has a name that only
the agent is told, so that nobody else who can reach the port adds to the record.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator

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

from stream.evidence.unused import Unused
from stream.recorder.requests import Expectation, Found, Request, RequestReader
from stream.system import kernel_now

MOST = 32  #: connections at a time
LAST = 2.0  #: seconds for what has been sent and not been read when the run is over
_LINGER = 1.0  #: seconds for whoever is still sending what was refused
_PAUSE = 0.05
_BLOCK = 1 << 18


class Collector:
    """`hear`: told each body, and when it came: monotonic ns. In a thread."""

    def __init__(self, hear: Callable[[bytes, int], None]) -> None:
        self.received = 0  #: bodies
        self._hear = hear
        self._target = b"/%b/v1/logs" % os.urandom(16).hex().encode()
        self._socket: socket.socket | None = None
        self._accepting = CancelScope()
        self._count = 0
        self._refused = self._torn = self._turned_away = 0

    def open(self) -> dict[bytes, bytes]:
        """What the agent's environment must say. Raises OSError."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setblocking(False)
            listener.bind(("127.0.0.1", 0))
            listener.listen()
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
                            await sleep(_PAUSE)  # there are no descriptors, or so
                self._accept(self._socket, connections)
                connections.cancel_scope.deadline = current_time() + LAST
        finally:
            self.close()

    def end(self) -> None:
        self._accepting.cancel()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def unused(self) -> Iterator[Unused]:
        for why, count, what in (
            ("refused", self._refused, "could not be understood"),
            ("torn", self._torn, "broke off"),
            ("turned_away", self._turned_away, "came while too many others were open"),
        ):
            if count:
                yield Unused("otel", why, count, f"{count} requests of OpenTelemetry {what}")

    def _accept(self, listener: socket.socket, connections: TaskGroup) -> bool:
        """All who wait. False: it failed."""
        while True:
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return True
            except ConnectionError:
                continue  # it went away while it waited
            except OSError:
                return False
            if self._count >= MOST:
                self._turned_away += 1
                connection.close()
                continue
            connection.setblocking(False)
            self._count += 1
            connections.start_soon(self._serve, connection)

    async def _serve(self, connection: socket.socket) -> None:
        reader = RequestReader()
        try:
            with connection:
                await self._converse(connection, reader)
        except OSError:
            pass  # it went away
        finally:
            self._count -= 1
            self._torn += reader.is_within

    async def _converse(self, connection: socket.socket, reader: RequestReader) -> None:
        while data := await _receive(connection):
            arrived = kernel_now()
            for found in reader.feed(data):
                if not await self._answer(connection, found, arrived):
                    await _see_off(connection)
                    return

    async def _answer(self, connection: socket.socket, found: Found, arrived: int) -> bool:
        """Whether the conversation goes on."""
        if isinstance(found, Expectation):
            await _send(connection, b"HTTP/1.1 100 Continue\r\n\r\n")
            return True
        if not isinstance(found, Request):
            self._refused += 1
            await _send(connection, _response(found.status, is_last=True))
            return False
        is_ours = (found.method, found.target) == (b"POST", self._target)
        status = b"200 OK" if is_ours else b"404 Not Found"
        try:
            await _send(connection, _response(status, is_last=found.is_last))
        finally:
            if is_ours:
                with CancelScope(shield=True):
                    await self._use(found.body, arrived)
        return not found.is_last

    async def _use(self, body: bytes, arrived: int) -> None:
        self.received += 1
        # A newline can only stand between the words of a JSON text.
        await to_thread.run_sync(self._hear, body.replace(b"\n", b" ") + b"\n", arrived)


def _response(status: bytes, *, is_last: bool) -> bytes:
    lines = [
        b"HTTP/1.1 " + status,
        b"content-type: application/json",
        b"content-length: 2",
        *([b"connection: close"] if is_last else []),
    ]
    return b"\r\n".join([*lines, b"", b"{}"])


async def _receive(connection: socket.socket) -> bytes:
    """Whoever sends without a pause does not keep the loop from others."""
    while True:
        await wait_readable(connection)
        try:
            return connection.recv(_BLOCK)
        except BlockingIOError:
            continue


async def _send(connection: socket.socket, data: bytes) -> None:
    while data:
        try:
            data = data[connection.send(data) :]
        except BlockingIOError:
            await wait_writable(connection)


async def _see_off(connection: socket.socket) -> None:
    """Closed at once, what it still sends would cost it our answer."""
    connection.shutdown(socket.SHUT_WR)
    with move_on_after(_LINGER):
        while await _receive(connection):
            pass
