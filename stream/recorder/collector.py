"""Where an agent that speaks OpenTelemetry is told to send its logs: a port of loopback.

OTLP over HTTP in JSON, and of HTTP what its exporters need. What cannot be understood is
answered and counted, and never holds the agent up.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable

from anyio import (
    BrokenResourceError,
    ClosedResourceError,
    DelimiterNotFound,
    EndOfStream,
    IncompleteRead,
    create_tcp_listener,
)
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.buffered import BufferedByteReceiveStream

MOST = 16 << 20  #: bytes of a request
_HEAD = 64 << 10
_GONE = (EndOfStream, IncompleteRead, BrokenResourceError, ClosedResourceError)


class Collector:
    def __init__(self, hear: Callable[[bytes, int], None]) -> None:
        self._hear = hear  # told the body of each request, and when it came: monotonic ns
        self.problems = 0

    async def open(self) -> dict[bytes, bytes]:
        """What the agent's environment must say."""
        self._listener = await create_tcp_listener(local_host="127.0.0.1")
        port = self._listener.extra(SocketAttribute.local_port)  # noqa: S610  # of no database
        return {
            b"CLAUDE_CODE_ENABLE_TELEMETRY": b"1",
            b"OTEL_LOGS_EXPORTER": b"otlp",
            b"OTEL_METRICS_EXPORTER": b"none",
            b"OTEL_EXPORTER_OTLP_PROTOCOL": b"http/json",
            b"OTEL_EXPORTER_OTLP_ENDPOINT": b"http://127.0.0.1:%d" % port,
            b"OTEL_LOGS_EXPORT_INTERVAL": b"100",
            b"OTEL_LOG_TOOL_DETAILS": b"1",
        }

    async def run(self) -> None:
        """Until it is cancelled."""
        await self._listener.serve(self._serve)

    async def _serve(self, stream: ByteStream) -> None:
        async with stream:
            reader = BufferedByteReceiveStream(stream)
            while True:
                try:
                    head = await reader.receive_until(b"\r\n\r\n", _HEAD)
                    body = await self._body(reader, _fields(head))
                except _GONE:
                    return
                except (DelimiterNotFound, ValueError, zlib.error):
                    self.problems += 1
                    await _answer(stream, b"400 Bad Request")
                    return
                if b"/v1/logs" in head.split(b"\r\n", 1)[0]:
                    self._hear(body, time.monotonic_ns())
                await _answer(stream, b"200 OK")

    async def _body(self, reader: BufferedByteReceiveStream, fields: dict[bytes, bytes]) -> bytes:
        if fields.get(b"transfer-encoding", b"").lower() == b"chunked":
            body = await _chunks(reader)
        else:
            body = await _exactly(reader, int(fields.get(b"content-length", b"0")))
        if fields.get(b"content-encoding", b"").lower() == b"gzip":
            unpacking = zlib.decompressobj(wbits=31)
            body = unpacking.decompress(body, MOST)
        return body


def _fields(head: bytes) -> dict[bytes, bytes]:
    lines = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    return {name.strip().lower(): value.strip() for name, _, value in lines}


async def _exactly(reader: BufferedByteReceiveStream, size: int) -> bytes:
    if not 0 <= size <= MOST:
        raise ValueError("longer than anything that a tool call says")
    return await reader.receive_exactly(size) if size else b""


async def _chunks(reader: BufferedByteReceiveStream) -> bytes:
    body = b""
    while size := int((await reader.receive_until(b"\r\n", 64)).split(b";")[0], 16):
        body += await _exactly(reader, min(size, MOST + 1 - len(body)))
        await reader.receive_until(b"\r\n", 2)
    await reader.receive_until(b"\r\n", _HEAD)
    return body


async def _answer(stream: ByteStream, status: bytes) -> None:
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    try:
        await stream.send(head % status)
    except _GONE:
        return
