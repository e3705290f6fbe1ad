"""What of a run may be written down, by its capture mode.

`full`: everything. `redacted`: everything without its secrets. `hashed`: of the request, the
command lines and the outputs only digests, of the rest what `redacted` leaves.

Which values of an environment are secret, and the forms in which they may turn up.

A variable is secret by its name; its value is looked for unless that is obviously plain, since a
plain word that is replaced wherever it stands would spoil the evidence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from stream.errors import readable, shown
from stream.records.decision import CaptureMode


class StreamRedactor(Protocol):
    def feed(self, chunk: bytes, /) -> bytes: ...
    def finish(self) -> bytes: ...


class TextRedactor(Protocol):
    def bytes(self, data: bytes, /) -> bytes: ...
    def text(self, text: str, /) -> str: ...
    def stream(self) -> StreamRedactor: ...
    def replaced(self) -> dict[str, int]: ...


Show = Callable[[bytes], str]


def digest(data: bytes) -> str:
    import hashlib

    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class CapturePolicy(Struct, frozen=True):
    mode: CaptureMode
    censor: TextRedactor | None  #: none where everything may be seen

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


LONGEST = 2048  #: bytes of one form; a longer one is looked for in pieces
LINE = 24  #: bytes without a blank that are a secret for themselves, in one of several lines
SHORTEST = 6  #: characters of a value

_SECRET = re.compile(
    r"KEYS?|PASS|PWD|PAT|AUTH|COOKIES?|PRIVATE|DSN|JWT|CREDS?|BEARER"
    r"|\w*(?:PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN|APIKEY|ACCESSKEY|PRIVATEKEY|CREDENTIAL)S?\d*"
)
#: what such a name says *about* a secret, where it ends so
_ABOUT = """
NAME TYPE METHOD FILE PATH DIR SOCK SOCKET HOST PORT USER USERNAME TTL TIMEOUT LENGTH SIZE COUNT
ALGORITHM ENABLED DISABLED REGION VERSION PROVIDER HELPER ASKPASS
"""
_WORDS = """
true false none null undefined enabled disabled default example password passwd secret changeme
required optional unknown
"""
_PATH = re.compile(r"(?:~|\.{0,2})/(?:[a-z0-9_.-]++|[A-Z][a-z]++|/)*+|[A-Za-z]:[\\/][\w\\/ .-]*")
_USERINFO = re.compile(r"://[^\s/@:]*:([^\s/@]+)@")
_NUMBER = re.compile(r"[+-]?\d{1,9}(?:\.\d+)?")
_ONE_WORD = re.compile(r"[a-z]{1,9}|[A-Z]{1,9}|[A-Z][a-z]{1,8}")


def secret_values(environment: Mapping[str, str]) -> list[str]:
    """The password in a URL is one whatever the variable is called."""
    found = {value.strip() for name, value in environment.items() if names_secret(name)}
    found.update(url[1] for value in environment.values() if (url := _USERINFO.search(value)))
    return sorted((value for value in found if not is_plain(value)), key=lambda v: (-len(v), v))


def names_secret(name: str) -> bool:
    parts = [part for part in re.split(r"[^A-Z0-9]+", name.upper()) if part]
    return bool(parts) and parts[-1] not in _ABOUT.split() and any(map(_SECRET.fullmatch, parts))


def is_plain(value: str) -> bool:
    """Too short, a word, a small number or a path: says nothing, and stands everywhere."""
    return (
        len(value) < SHORTEST
        or value.lower() in _WORDS.split()
        or any(form.fullmatch(value) for form in (_PATH, _NUMBER, _ONE_WORD))
    )


def forms(value: str) -> Iterator[bytes]:
    """The value as it is, in JSON, in a URL and in base64, in pieces no longer than LONGEST; and
    its long lines, each for itself."""
    raw = value.encode("utf-8", "surrogateescape")
    seen = set()
    for form in (raw, *_json(value), *_url(raw), *_base64(raw), *_lines(raw)):
        for start in range(0, len(form), LONGEST):
            piece = form[start : start + LONGEST]
            if len(piece) >= SHORTEST and piece not in seen:
                seen.add(piece)
                yield piece


def _json(value: str) -> Iterator[bytes]:
    """In a string of JSON, and in a document that is itself such a string."""
    for ascii_only in (True, False):
        once = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        yield once.encode("utf-8", "surrogateescape")
        yield once.replace("/", "\\/").encode("utf-8", "surrogateescape")
        yield json.dumps(once, ensure_ascii=ascii_only)[1:-1].encode("utf-8", "surrogateescape")


def _lines(raw: bytes) -> Iterator[bytes]:
    lines = raw.split()
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= LINE)


def _url(raw: bytes) -> Iterator[bytes]:
    for kept in (b"-._~", b"-._~/"):
        upper = b"".join(
            bytes((byte,)) if chr(byte).isascii() and (chr(byte).isalnum() or byte in kept)
            else b"%%%02X" % byte
            for byte in raw
        )  # fmt: skip
        yield upper
        yield re.sub(rb"%[0-9A-F]{2}", lambda escape: escape[0].lower(), upper)
        yield upper.replace(b"%20", b"+")


def _base64(raw: bytes) -> Iterator[bytes]:
    """At each of the three places that it can have in a longer text, without what its neighbours
    have a share in."""
    from binascii import b2a_base64

    for before in range(3):
        whole = b2a_base64(bytes(before) + raw, newline=False).rstrip(b"=")
        first = (0, 2, 3)[before]
        last = len(whole) - bool((before + len(raw)) % 3)
        if last - first >= 8:
            yield whole[first:last]
            yield whole[first:last].translate(bytes.maketrans(b"+/", b"-_"))
