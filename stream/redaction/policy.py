"""The capture modes: what of a run may be written down; and the file of an output, written so.

`full`: everything. `redacted`: everything without its secrets. `hashed`: of the request, the
command lines and the outputs only digests, of the rest what `redacted` leaves. A secret is replaced
by the token `[redacted:KIND:N]`, which says nothing about it: N counts the distinct secrets of a
run in the order in which they were first seen, so that the same secret is the same token
everywhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from stream.errors import decode_escaped, encodable
from stream.files.append import AppendFile, GrowingDigest, RecordedFile
from stream.records.decision import CaptureMode

if TYPE_CHECKING:
    from stream.redaction.scanner import SecretDetector, StreamScan

Show = Callable[[bytes], str]
Data = bytes  # a method of the Redactor has that name
MOST = 100_000  #: secrets that get a number of their own


def sha256_digest(data: bytes) -> str:
    """Return the SHA-256 digest of the data."""
    import hashlib

    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class CapturePolicy(Struct, frozen=True):
    """Decides in which form each part of a run is written down."""

    mode: CaptureMode
    redactor: Redactor | None  #: none where everything may be seen

    def redact_value(self, value: Any) -> Any:
        """Return a JSON value with its text redacted, as a record can carry it; keys stay."""
        if isinstance(value, str):
            return encodable(value if self.redactor is None else self.redactor.redact_text(value))
        if isinstance(value, list):
            return [self.redact_value(item) for item in value]
        if isinstance(value, dict):
            return {key: self.redact_value(item) for key, item in value.items()}
        return value

    def redact_line(self, line: bytes) -> bytes:
        """Return a record in JSON, redacted as a value is."""
        if self.redactor is None:
            return line
        import msgspec

        return msgspec.json.encode(self.redact_value(msgspec.json.decode(line)))

    def count_replaced(self) -> dict[str, int] | None:
        """Return how many secrets of each kind were replaced; None where everything is shown."""
        return None if self.redactor is None else self.redactor.count_replaced()

    def content_redactor(self) -> Callable[[bytes], bytes] | None:
        """Return how the contents of a file are redacted; None where they are shown."""
        return None if self.redactor is None else self.redactor.redact_bytes

    def redact_words(self, words: Sequence[bytes], show: Show = decode_escaped) -> list[str]:
        """Return a command line, redacted. A word may make the next one secret: `--password X`."""
        if self.mode == "hashed":
            return [sha256_digest(b"\0".join(words))]
        if self.redactor is None:
            return [show(word) for word in words]
        whole = self.redactor.redact_bytes(b"\0".join(words)).split(b"\0")
        return [self.redact_name(word, show) for word in whole]

    def redact_name(self, name: bytes, show: Show = decode_escaped) -> str:
        """Return a file name, redacted before it is escaped: an escape may hide a secret."""
        return show(name if self.redactor is None else self.redactor.redact_bytes(name))

    def redact_request(self, text: str) -> str:
        """Return a request, redacted; `hash` stands for one of which there is a digest only."""
        if self.mode == "hashed" and text != "unknown":
            return "hash"
        return text if self.redactor is None else self.redactor.redact_text(text)


class Redactor:
    """Replaces the secrets of a run. Its streams may be fed by different threads."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._detector: SecretDetector | None = None
        self._numbers: dict[bytes, str] = {}
        self._count = 0
        self._kinds: dict[str, int] = {}
        self._lock = threading.Lock()

    def begin_stream(self) -> StreamScan:
        """Begin to redact a stream; its output does not depend on how its bytes are cut."""
        from stream.redaction.scanner import StreamScan, detector_for  # their tables take a while

        with self._lock:
            if self._detector is None:
                self._detector = detector_for(self._environment)
        return StreamScan(self._detector, self._token_for_secret)

    def redact_bytes(self, data: bytes) -> bytes:
        """Return the bytes without their secrets."""
        stream = self.begin_stream()
        return stream.feed(data) + stream.finish()

    def redact_text(self, text: str) -> str:
        """Return the text without its secrets."""
        try:
            return self._redact_encoded(text, "surrogateescape")
        except UnicodeEncodeError:  # half of a surrogate pair that stands for no byte
            return self._redact_encoded(text, "surrogatepass")

    def count_replaced(self) -> dict[str, int]:
        """Return how many different secrets were replaced so far, by kind."""
        with self._lock:
            return dict(sorted(self._kinds.items()))

    def _redact_encoded(self, text: str, errors: str) -> str:
        return self.redact_bytes(text.encode("utf-8", errors)).decode("utf-8", errors)

    def _token_for_secret(self, kind: str, identity: Data) -> Data:
        """Return the token that stands for a secret: the same one for the same secret."""
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


class OutputFile:
    """A file of one output. A full disk ends it at a whole beginning; the agent does not notice.
    One thread at a time may use it."""

    def __init__(self, path: Path, policy: CapturePolicy) -> None:
        self._file = AppendFile(path).open()
        self._raw = GrowingDigest() if policy.mode == "hashed" else None
        self._filter = None
        if policy.redactor is not None and self._raw is None:
            self._filter = policy.redactor.begin_stream()
        self._total = 0

    def write(self, chunk: bytes) -> None:
        """Record a piece of the agent's output, as far as the capture mode allows."""
        self._total += len(chunk)
        if self._raw is not None:
            self._raw.update(chunk)
        else:
            self._file.append(self._filter.feed(chunk) if self._filter else chunk, "bytes")

    def finish(self) -> RecordedFile:
        """Write what is left, close the file, and return what became of it."""
        file = self._file
        try:
            if self._filter is not None:
                file.append(self._filter.finish(), "bytes")
            if self._raw is not None:
                line = f"sha256:{self._raw.hexdigest()} bytes:{self._total}\n"
                file.append(line.encode(), "bytes")
            is_ours = file.is_as_written()
        finally:
            file.close()
        return RecordedFile(file.sha256, file.size, self._total, file.lost, file.trouble, is_ours)
