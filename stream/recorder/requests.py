"""Requests of HTTP/1.1 with their bodies, of bytes as they come: as much as exporters of
OpenTelemetry speak of it.

Nothing here reads or writes. A request that cannot be understood, or is too long, is refused,
and ends its connection; a body never takes more than its limit, packed or not.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator
from typing import TypeAlias

from msgspec import Struct

MOST_HEAD = 64 << 10
MOST_BODY = 8 << 20  #: bytes, packed and unpacked
_END = b"\r\n"
_SIZE_DIGITS = 15


class Request(Struct, frozen=True):
    method: bytes
    target: bytes
    body: bytes
    is_last: bool  #: of its connection


class Refusal(Struct, frozen=True):
    status: bytes  #: as an answer has it


class Expectation(Struct, frozen=True):
    """The head is there, and its body comes once it is asked for."""


Found: TypeAlias = Request | Refusal | Expectation
_Steps: TypeAlias = Generator[Found | None, None, None]
_Fields: TypeAlias = dict[bytes, bytes]


class _RefusedError(Exception):
    pass


class RequestReader:
    """Of one connection."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._is_refused = self._is_reading = False
        self._steps = self._read()

    @property
    def is_within(self) -> bool:
        """A request has begun that has not ended."""
        return bool(self._held) or self._is_reading

    def feed(self, data: bytes) -> Iterator[Found]:
        """What these bytes complete. After a refusal, nothing."""
        if self._is_refused:
            return
        self._held += data
        try:
            while (found := next(self._steps)) is not None:
                yield found
        except _RefusedError as refused:
            self._is_refused, self._is_reading = True, False
            self._held.clear()
            yield Refusal(refused.args[0])

    # --- None: more bytes are needed ------------------------------------------------------------

    def _read(self) -> _Steps:
        while True:
            head = yield from self._until(_END + _END, MOST_HEAD)
            self._is_reading = True
            method, target, version, fields = _parsed(head)
            if fields.get(b"expect", b"").lower() == b"100-continue":
                yield Expectation()
            body = yield from self._body(fields)
            self._is_reading = False
            is_last = version == b"HTTP/1.0" or b"close" in fields.get(b"connection", b"").lower()
            yield Request(method, target, _unpacked(body, fields), is_last)

    def _body(self, fields: _Fields) -> Generator[None, None, bytes]:
        coding = fields.get(b"transfer-encoding")
        if coding is None:
            length = _number(fields.get(b"content-length", b"0"), 10)
            return (yield from self._exactly(length, MOST_BODY))
        if coding.lower() != b"chunked" or b"content-length" in fields:
            raise _RefusedError(b"400 Bad Request")
        body = bytearray()
        while True:
            line = yield from self._until(_END, 1024)
            size = _number(line.partition(b";")[0].strip(), 16)
            if not size:
                break
            body += yield from self._exactly(size, MOST_BODY - len(body))
            if (yield from self._exactly(2, 2)) != _END:
                raise _RefusedError(b"400 Bad Request")
        while (yield from self._until(_END, MOST_HEAD)):
            pass  # trailers
        return bytes(body)

    def _until(self, end: bytes, most: int) -> Generator[None, None, bytes]:
        looked = 0
        while (at := self._held.find(end, looked)) < 0:
            if len(self._held) > most:
                raise _RefusedError(b"431 Request Header Fields Too Large")
            looked = max(0, len(self._held) - len(end))
            yield None
        found = bytes(self._held[:at])
        del self._held[: at + len(end)]
        return found

    def _exactly(self, size: int, most: int) -> Generator[None, None, bytes]:
        if size > most:
            raise _RefusedError(b"413 Content Too Large")
        while len(self._held) < size:
            yield None
        found = bytes(self._held[:size])
        del self._held[:size]
        return found


def _parsed(head: bytes) -> tuple[bytes, bytes, bytes, _Fields]:
    first, *lines = head.lstrip(_END).split(_END)
    words = first.split(b" ")
    if len(words) != 3 or words[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise _RefusedError(b"400 Bad Request")
    fields: _Fields = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        name = name.lower()
        if not colon or not name or name != name.strip():
            raise _RefusedError(b"400 Bad Request")
        fields.setdefault(name, value.strip())
    return words[0], words[1], words[2], fields


def _number(text: bytes, base: int) -> int:
    digits = b"0123456789abcdefABCDEF" if base == 16 else b"0123456789"
    if not text or len(text) > _SIZE_DIGITS or text.strip(digits):
        raise _RefusedError(b"400 Bad Request")
    return int(text, base)


def _unpacked(body: bytes, fields: _Fields) -> bytes:
    coding = fields.get(b"content-encoding", b"identity").lower()
    if coding == b"identity":
        return body
    if coding != b"gzip":
        raise _RefusedError(b"415 Unsupported Media Type")
    unpacking = zlib.decompressobj(wbits=31)
    try:
        data = unpacking.decompress(body, MOST_BODY + 1)
    except zlib.error:
        raise _RefusedError(b"400 Bad Request") from None
    if len(data) > MOST_BODY:
        raise _RefusedError(b"413 Content Too Large")
    if not unpacking.eof or unpacking.unused_data:
        raise _RefusedError(b"400 Bad Request")
    return data
