"""Keeping a record small and honest: snippets, cut payloads, inferred errnos. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from stream.records.boundary import CUT, PAYLOAD, SNIPPET

LIMIT = PAYLOAD  #: bytes, of operation.args as well
TEXT = 4096  #: characters of any other text

DEPTH = 64  #: levels of nested JSON

encode_size = msgspec.json.Encoder().encode
_SURROGATES = re.compile("[\ud800-\udfff]")


def clip(text: str, limit: int = TEXT) -> str:
    """Cut visibly, and fit for UTF-8: a path of the system need not be."""
    if not text.isascii():
        text = _SURROGATES.sub("\ufffd", text)
    return text if len(text) <= limit else text[:limit] + CUT


def snippet(text: str | None) -> str | None:
    """Cut a text to what a record holds of it as a snippet."""
    # Control characters cost six bytes each in JSON: 400 of them would leave no room.
    return None if text is None else within(clip(text.replace("\0", ""), SNIPPET), 1700)


def within(text: str, limit: int) -> str:
    """The text, cut until it needs at most that many bytes in JSON."""
    kept = text
    while kept and len(encode_size(text)) > limit:
        kept = kept[: len(kept) * 3 // 4]
        text = kept + CUT
    return text


def too_deep(value: Any) -> bool:
    """Return whether JSON is nested deeper than a record may be. Where recursion would end depends
    on the caller; this does not."""
    level = [value]
    for _ in range(DEPTH + 1):
        level = [
            member
            for item in level
            for member in (
                item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
            )
        ]
        if not level:
            return False
    return True


def fit(value: dict[str, Any], reserved: int, mark: str) -> dict[str, Any]:
    """The object, cut until it needs at most LIMIT - reserved bytes.

    What was cut says so where it stood, and `mark` says how large the whole was.
    Long texts are shortened first; then whole members go, the largest first.
    """
    size = len(encode_size(value))
    room = LIMIT - reserved
    if size <= room:
        return value
    room -= len(encode_size({mark: {"bytes": size}}))
    cut: dict[str, Any] = value
    for length in (1000, SNIPPET, 100):
        cut = {clip(key, 100): _shorten(member, length) for key, member in value.items()}
        if len(encode_size(cut)) <= room:
            break
    by_size = sorted(cut, key=lambda key: (len(encode_size(cut[key])), key))
    while by_size and len(encode_size(cut)) > room:
        key = by_size.pop()
        whole = len(encode_size(cut[key]))
        shorter = f"… ({whole} bytes cut)"
        if len(shorter.encode()) + 2 < whole:
            cut[key] = shorter
        else:
            del cut[key]
    while cut and len(encode_size(cut)) > room:
        cut.popitem()
    return {**cut, mark: {"bytes": size}}


def _shorten(value: Any, length: int) -> Any:
    if isinstance(value, str):
        return clip(value, length)
    if isinstance(value, list):
        return [_shorten(item, length) for item in value]
    if isinstance(value, dict):
        return {key: _shorten(item, length) for key, item in value.items()}
    return value


_TEXTS = {
    "Permission denied": "EACCES",
    "Operation not permitted": "EPERM",
    "Read-only file system": "EROFS",
    "No such file or directory": "ENOENT",
    "Not a directory": "ENOTDIR",
    "Is a directory": "EISDIR",
    "File exists": "EEXIST",
    "No such device or address": "ENXIO",
    "Connection refused": "ECONNREFUSED",
    "Connection timed out": "ETIMEDOUT",
    "Network is unreachable": "ENETUNREACH",
    "No route to host": "EHOSTUNREACH",
    "Address already in use": "EADDRINUSE",
    "Cannot assign requested address": "EADDRNOTAVAIL",
    "Address family not supported by protocol": "EAFNOSUPPORT",
    "Protocol not supported": "EPROTONOSUPPORT",
    "Function not implemented": "ENOSYS",
    "Operation not supported": "EOPNOTSUPP",
    "Invalid argument": "EINVAL",
    "Invalid cross-device link": "EXDEV",
    "No space left on device": "ENOSPC",
    "Disk quota exceeded": "EDQUOT",
    "Too many open files": "EMFILE",
    "Resource temporarily unavailable": "EAGAIN",
    "Device or resource busy": "EBUSY",
    "No such process": "ESRCH",
    "Text file busy": "ETXTBSY",
    "Exec format error": "ENOEXEC",
    "Too many levels of symbolic links": "ELOOP",
    "File name too long": "ENAMETOOLONG",
    "No child processes": "ECHILD",
    "Cannot allocate memory": "ENOMEM",
    "Broken pipe": "EPIPE",
    "Bad file descriptor": "EBADF",
    "Input/output error": "EIO",
}
_NAMES = frozenset(_TEXTS.values())
# A message of the system ends its line, or is followed by punctuation.
_EVIDENCE = re.compile(
    rf"\b({'|'.join(sorted(_NAMES))})\b|({'|'.join(map(re.escape, _TEXTS))})(?![\w])"
)


def infer_errno(
    evidence: Mapping[str, str | None], shown: Mapping[str, str | None]
) -> tuple[str, str] | None:
    """(errno, the field that shows it), where all the evidence names exactly one.

    `shown` is the evidence as the record carries it: an errno that a reader of the record
    cannot see in it is not inferred from it.
    """
    named = set().union(*map(_errnos, evidence.values()))
    if len(named) == 1:  # of two, which one was the operation's is unknown
        for name, text in shown.items():
            if _errnos(text):
                return named.pop(), name
    return None


def _errnos(text: str | None) -> set[str]:
    return {known or _TEXTS[words] for known, words in _EVIDENCE.findall(text or "")}
