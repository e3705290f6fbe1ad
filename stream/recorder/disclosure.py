"""What of a run may be written down, by its capture mode.

`full`: everything. `redacted`: everything without its secrets. `hashed`: of the request, the
command lines and the outputs only digests, of the rest what `redacted` leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from stream.records.decision import CaptureMode


class Filter(Protocol):
    def feed(self, chunk: bytes, /) -> bytes: ...
    def finish(self) -> bytes: ...


class Censor(Protocol):
    def bytes(self, data: bytes, /) -> bytes: ...
    def text(self, text: str, /) -> str: ...
    def stream(self) -> Filter: ...
    def replaced(self) -> dict[str, int]: ...


Show = Callable[[bytes], str]


def digest(data: bytes) -> str:
    import hashlib

    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def readable(text: str) -> str:
    """What the system says need not be text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return shown(text.encode(errors="surrogateescape"))
    return text


def shown(word: bytes) -> str:
    """As text; bytes that are none are shown as \\xNN, as a backslash before them is doubled."""
    try:
        return word.decode()
    except UnicodeDecodeError:
        return word.replace(b"\\", b"\\\\").decode(errors="backslashreplace")


class Disclosure(Struct, frozen=True):
    mode: CaptureMode
    censor: Censor | None  #: none where everything may be seen

    def value(self, value: Any) -> Any:
        """A JSON value, its text censored, and such as a record can carry. Keys are ours."""
        if isinstance(value, str):
            return readable(value if self.censor is None else self.censor.text(value))
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {key: self.value(item) for key, item in value.items()}
        return value

    def line(self, line: bytes) -> bytes:
        """A record in JSON, censored as a value is."""
        if self.censor is None:
            return line
        import msgspec

        return msgspec.json.encode(self.value(msgspec.json.decode(line)))

    def replaced(self) -> dict[str, int] | None:
        """How many secrets of each kind were taken out so far; None where everything is kept."""
        return None if self.censor is None else self.censor.replaced()

    def contents(self) -> Callable[[bytes], bytes] | None:
        return None if self.censor is None else self.censor.bytes

    def words(self, words: Sequence[bytes], show: Show = shown) -> list[str]:
        """A command line. What follows a word may make it a secret: `--password X`."""
        if self.mode == "hashed":
            return [digest(b"\0".join(words))]
        if self.censor is None:
            return [show(word) for word in words]
        whole = self.censor.bytes(b"\0".join(words)).split(b"\0")
        return [self.name(word, show) for word in whole]

    def name(self, name: bytes, show: Show = shown) -> str:
        """One of a file. Its bytes are censored, not its text, whose escapes may hide a secret."""
        return show(name if self.censor is None else self.censor.bytes(name))

    def request(self, text: str) -> str:
        """`hash` stands for a request of which there is a digest only."""
        if self.mode == "hashed" and text != "unknown":
            return "hash"
        return text if self.censor is None else self.censor.text(text)
