"""The secret values of an environment, known by the names of their variables; and the forms in
which a value may turn up in a text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

LONGEST = 2048  #: bytes of one form; a longer one is looked for in pieces
LINE = 24  #: bytes without a blank that are a secret for themselves, in one of several lines
SHORTEST = 6  #: characters of a value

_SECRET = re.compile(
    r"KEYS?|PASS|PWD|PAT|AUTH|COOKIES?|PRIVATE|DSN|JWT|CREDS?|BEARER"
    r"|\w*(?:PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN|APIKEY|ACCESSKEY|PRIVATEKEY|CREDENTIAL)S?\d*"
)
#: a name with one of these at its end is *about* a secret
_ABOUT = """
NAME TYPE METHOD FILE PATH DIR SOCK SOCKET HOST PORT USER USERNAME TTL TIMEOUT LENGTH SIZE COUNT
ALGORITHM ENABLED DISABLED REGION VERSION PROVIDER HELPER ASKPASS
"""
_PLAIN_WORDS = """
true false none null undefined enabled disabled default example password passwd secret changeme
required optional unknown
"""
_A_PATH = re.compile(r"(?:~|\.{0,2})/(?:[a-z0-9_.-]++|[A-Z][a-z]++|/)*+|[A-Za-z]:[\\/][\w\\/ .-]*")
_USERINFO = re.compile(r"://[^\s/@:]*:([^\s/@]+)@")
_SMALL_NUMBER = re.compile(r"[+-]?\d{1,9}(?:\.\d+)?")
_ONE_WORD = re.compile(r"[a-z]{1,9}|[A-Z]{1,9}|[A-Z][a-z]{1,8}")


def secret_values(environment: Mapping[str, str]) -> list[str]:
    """Return the secret values of an environment, the longest first.

    A variable is secret by its name, but an obviously plain value is none: a plain word that is
    replaced wherever it stands would spoil the evidence. The password in a URL is a secret whatever
    the variable is called.
    """
    found = {value.strip() for name, value in environment.items() if names_secret(name)}
    found.update(url[1] for value in environment.values() if (url := _USERINFO.search(value)))
    return sorted((value for value in found if not is_plain(value)), key=lambda v: (-len(v), v))


def names_secret(name: str) -> bool:
    """Return whether a variable of that name holds a secret."""
    parts = [part for part in re.split(r"[^A-Z0-9]+", name.upper()) if part]
    return bool(parts) and parts[-1] not in _ABOUT.split() and any(map(_SECRET.fullmatch, parts))


def is_plain(value: str) -> bool:
    """Return whether a value is too short, a word, a small number or a path."""
    return (
        len(value) < SHORTEST
        or value.lower() in _PLAIN_WORDS.split()
        or any(form.fullmatch(value) for form in (_A_PATH, _SMALL_NUMBER, _ONE_WORD))
    )


def forms(value: str) -> Iterator[bytes]:
    """Yield the forms in which a value may turn up, in pieces no longer than LONGEST.

    They are the value as it is, in JSON, in a URL and in base64, and each of its long lines.
    """
    raw = value.encode("utf-8", "surrogateescape")
    seen = set()
    for form in (raw, *_json(value), *_url(raw), *_base64(raw), *_lines(raw)):
        for start in range(0, len(form), LONGEST):
            part = form[start : start + LONGEST]
            if len(part) >= SHORTEST and part not in seen:
                seen.add(part)
                yield part


def _json(value: str) -> Iterator[bytes]:
    """Yield the value in a string of JSON, and in a document that is itself such a string."""
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
    from urllib.parse import quote_from_bytes

    for kept in ("", "/"):
        upper = quote_from_bytes(raw, kept).encode()
        yield upper
        yield re.sub(rb"%[0-9A-F]{2}", lambda escape: escape[0].lower(), upper)
        yield upper.replace(b"%20", b"+")


def _base64(raw: bytes) -> Iterator[bytes]:
    """Yield the value in base64 at each of the three places that it can have in a longer text.

    The characters that depend on its neighbours are left out.
    """
    from binascii import b2a_base64

    for before in range(3):
        whole = b2a_base64(bytes(before) + raw, newline=False).rstrip(b"=")
        first = (0, 2, 3)[before]
        last = len(whole) - bool((before + len(raw)) % 3)
        if last - first >= 8:
            yield whole[first:last]
            yield whole[first:last].translate(bytes.maketrans(b"+/", b"-_"))
