"""Secrets are replaced by tokens that say nothing about them, however the bytes were cut.

A token is `[redacted:KIND:N]`: N counts the distinct secrets of a run in the order in which they
were first seen, so that the same secret is the same token everywhere. What a stream answers
depends on its bytes alone, never on its chunks, and it holds a bounded piece of them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stream.redaction.scanner import Detector, Scan

Data = bytes  # a method of the Redactor has that name
MOST = 100_000  #: secrets that get a number of their own


class Redactor:
    """One for a run; its streams may be fed by different threads."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._detector: Detector | None = None
        self._numbers: dict[bytes, str] = {}
        self._count = 0
        self._kinds: dict[str, int] = {}
        self._lock = threading.Lock()

    def stream(self) -> RedactedStream:
        from stream.redaction.scanner import Scan, detector_for

        with self._lock:
            if self._detector is None:
                self._detector = detector_for(self._environment)
        return RedactedStream(Scan(self._detector, self._token))

    def bytes(self, data: bytes) -> bytes:
        stream = self.stream()
        return stream.feed(data) + stream.finish()

    def text(self, text: str) -> str:
        try:
            return self.bytes(text.encode("utf-8", "surrogateescape")).decode(
                "utf-8", "surrogateescape"
            )
        except UnicodeEncodeError:  # half of a surrogate pair that stands for no byte
            return self.bytes(text.encode("utf-8", "surrogatepass")).decode(
                "utf-8", "surrogatepass"
            )

    def replaced(self) -> dict[str, int]:
        """How many different secrets were replaced so far, by kind."""
        with self._lock:
            return dict(sorted(self._kinds.items()))

    def _token(self, kind: str, identity: Data) -> Data:
        from hashlib import sha256

        key = sha256(identity).digest()
        with self._lock:
            token = self._numbers.get(key)
            if token is None:
                self._count += 1
                self._kinds[kind] = self._kinds.get(kind, 0) + 1
                if self._count > MOST:
                    return f"[redacted:{kind}:more]".encode()
                token = self._numbers[key] = f"[redacted:{kind}:{self._count}]"
        return token.encode()


class RedactedStream:
    """Bytes in, bytes without secrets out: `feed` until the end, then `finish` once."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan

    def feed(self, chunk: bytes) -> bytes:
        return self._scan.feed(chunk)

    def finish(self) -> bytes:
        return self._scan.finish()
