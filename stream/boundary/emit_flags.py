"""The words of emit-record's command line, parsed and checked; and what a record keeps of them:
snippets, cut payloads, inferred errnos. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

from stream.codec import DECODE_ERRORS, decode_fault, repeated_key
from stream.errors import EmitError
from stream.records.boundary import CUT, PAYLOAD, SNIPPET, STATUSES
from stream.records.emission import FILE_MOST, Word

LIMIT = PAYLOAD  #: bytes, of operation.args as well
TEXT = 4096  #: characters of any other text

DEPTH = 64  #: levels of nested JSON

encode_size = msgspec.json.Encoder().encode
_SURROGATES = re.compile("[\ud800-\udfff]")


def clip_text(text: str, limit: int = TEXT) -> str:
    """Cut a text, with a mark that shows it, and make it fit for UTF-8: a path need not be."""
    if not text.isascii():
        text = _SURROGATES.sub("\ufffd", text)
    return text if len(text) <= limit else text[:limit] + CUT


def make_snippet(text: str | None) -> str | None:
    """Cut a text to what a record holds of it as a snippet."""
    # Control characters cost six bytes each in JSON: 400 of them would leave no room.
    return None if text is None else clip_encoded(clip_text(text.replace("\0", ""), SNIPPET), 1700)


def clip_encoded(text: str, limit: int) -> str:
    """Cut a text until it needs at most that many bytes in JSON."""
    kept = text
    while kept and len(encode_size(text)) > limit:
        kept = kept[: len(kept) * 3 // 4]
        text = kept + CUT
    return text


def is_too_deep(value: Any) -> bool:
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


def fit_object(value: dict[str, Any], reserved: int, mark: str) -> dict[str, Any]:
    """Cut an object until it needs at most LIMIT - reserved bytes.

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
        cut = {clip_text(key, 100): _shorten_texts(member, length) for key, member in value.items()}
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


def _shorten_texts(value: Any, length: int) -> Any:
    """Clip all texts inside of a JSON value to a length."""
    if isinstance(value, str):
        return clip_text(value, length)
    if isinstance(value, list):
        return [_shorten_texts(item, length) for item in value]
    if isinstance(value, dict):
        return {key: _shorten_texts(item, length) for key, item in value.items()}
    return value


_ERRNO_TEXTS = {
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
_NAMES = frozenset(_ERRNO_TEXTS.values())
# A message of the system ends its line, or is followed by punctuation.
_EVIDENCE = re.compile(
    rf"\b({'|'.join(sorted(_NAMES))})\b|({'|'.join(map(re.escape, _ERRNO_TEXTS))})(?![\w])"
)


def infer_errno(
    evidence: Mapping[str, str | None], recorded: Mapping[str, str | None]
) -> tuple[str, str] | None:
    """Return (errno, the field that shows it) where all the evidence names exactly one.

    `shown` is the evidence as the record carries it: an errno that a reader of the record
    cannot see in it is not inferred from it.
    """
    named = set().union(*map(_errnos_in, evidence.values()))
    if len(named) == 1:  # of two, which one was the operation's is unknown
        for name, text in recorded.items():
            if _errnos_in(text):
                return named.pop(), name
    return None


def _errnos_in(text: str | None) -> set[str]:
    return {known or _ERRNO_TEXTS[words] for known, words in _EVIDENCE.findall(text or "")}


#: flags that must be there, in the order in which a missing one is named
REQUIRED = (
    "--run-mode",
    "--probe-name",
    "--probe-version",
    "--category",
    "--verb",
    "--target",
    "--status",
    "--primary-capability-id",
    "--command",
)
_ALIASES = {"--probe-id": "--probe-name"}
_TEXTS = {*REQUIRED, "--errno", "--message", "--error-detail", "--catalog", "--boundary"}
_SNIPPETS = {
    "--payload-stdout": "stdout",
    "--payload-stdout-file": "stdout",
    "--payload-stderr": "stderr",
    "--payload-stderr-file": "stderr",
}
_MERGES = {
    "--payload-raw": "raw",
    "--payload-raw-file": "raw",
    "--operation-args": "args",
    "--operation-args-file": "args",
}
_MEMBERS = {
    "--payload-raw-field": ("raw", "text"),
    "--payload-raw-field-json": ("raw", "json"),
    "--payload-raw-list": ("raw", "list"),
    "--payload-raw-null": ("raw", "null"),
    "--operation-arg": ("args", "text"),
    "--operation-arg-json": ("args", "json"),
    "--operation-arg-list": ("args", "list"),
    "--operation-arg-null": ("args", "null"),
}
#: flags whose value names a file, the contents of which the helper sends along
FILES = frozenset(
    flag for flag in (*_SNIPPETS, *_MERGES, "--payload-file") if flag.endswith("-file")
)
#: flags that take two words, a key and a value; every other one takes one
PAIRS = frozenset(flag for flag, (_, kind) in _MEMBERS.items() if kind != "null")
REPEATABLE = frozenset({"--secondary-capability-id", *_MERGES, *_MEMBERS})
_KNOWN = {*_TEXTS, *_SNIPPETS, *REPEATABLE, "--raw-exit-code", "--payload-file"}


class WholePayload(Struct, forbid_unknown_fields=True):
    """A payload that a probe has in a file: it is as in a record, but of any size."""

    raw: dict[str, Any]
    stderr_snippet: str | None
    stdout_snippet: str | None


class EmitFlags(Struct):
    """The words that a probe gave to emit-record, parsed and checked; `emit` checks the ids."""

    texts: dict[str, str] = field(default_factory=dict)
    secondary: list[str] = field(default_factory=list)
    exit_code: int | None = None
    snippets: dict[str, str] = field(default_factory=dict)
    objects: dict[str, dict[str, Any]] = field(default_factory=lambda: {"raw": {}, "args": {}})
    payload: WholePayload | None = None
    given: Counter[str] = field(default_factory=Counter)

    def text_of_flag(self, flag: str) -> str | None:
        """Give the text of a flag of emit-record; empty means null."""
        return self.texts.get(flag) or None


def parse_emit_words(words: Sequence[Word]) -> EmitFlags:
    """Parse the command line. Raises EmitError with the sentence that emit-record prints."""
    flags = EmitFlags()
    rest = iter(words)
    for word in rest:
        flag = _decode_word(word.text)
        flag = _ALIASES.get(flag, flag)
        flags.given[flag] += 1
        _read_flag(flags, flag, rest)
    _check_flags(flags)
    return flags


def _read_flag(flags: EmitFlags, flag: str, rest: Iterator[Word]) -> None:
    """Read one flag of emit-record and its value from the words of a probe."""
    if flag not in _KNOWN:
        raise EmitError(f"Unknown flag: {flag}")
    word = _flag_value(flag, rest)
    text = _decode_word(word.text)
    if flag in _TEXTS:
        flags.texts[flag] = text
    elif flag == "--secondary-capability-id":
        flags.secondary.append(text.strip())
    elif flag == "--raw-exit-code":
        flags.exit_code = _parse_exit_code(text)
    elif flag in _MEMBERS:
        target, kind = _MEMBERS[flag]
        flags.objects[target][text] = None if kind == "null" else _payload_member(flag, kind, rest)
    else:
        _keep_flag_content(flags, flag, _flag_content(flag, word))


def _keep_flag_content(flags: EmitFlags, flag: str, content: bytes) -> None:
    """Keep the content that a flag of emit-record gives, itself or by a file."""
    is_cut = len(content) >= FILE_MOST
    if flag in _SNIPPETS:
        flags.snippets[_SNIPPETS[flag]] = _decode_word(content)
    elif flag == "--payload-file":
        whole = WholePayload(_CUT, None, None)
        flags.payload = whole if is_cut else _decode_flag_json(flag, content, WholePayload)
    else:
        part = _CUT if is_cut else _decode_flag_json(flag, content, dict[str, Any])
        flags.objects[_MERGES[flag]].update(part)


def _check_flags(flags: EmitFlags) -> None:
    """Raise EmitError for flags of emit-record that are missing or do not go together."""
    for flag in REQUIRED:
        if not flags.texts.get(flag, "").strip():
            raise EmitError(f"Missing required flag: {flag}")
    status = flags.texts["--status"]
    if status not in STATUSES:
        raise EmitError(f"Unknown status: {status} (expected {'|'.join(STATUSES)})")
    inline = [flag for flag in flags.given if flag.startswith("--payload-")]
    if flags.payload is not None and len(inline) > 1:
        other = next(flag for flag in inline if flag != "--payload-file")
        raise EmitError(f"--payload-file is a whole payload: it does not go with {other}")


def _flag_value(flag: str, rest: Iterator[Word]) -> Word:
    """Return the word after a flag of emit-record. Raise EmitError if there is none."""
    word = next(rest, None)
    if word is None:
        raise EmitError(f"Missing value for {flag}")
    return word


def _flag_content(flag: str, word: Word) -> bytes:
    """Return the text of a flag of emit-record, or the content of the file that it names."""
    if flag not in FILES:
        return word.text
    if word.content is None:
        raise EmitError(f"{flag}: cannot read {_decode_word(word.text)}")
    return word.content


#: stands for a file that is far too large for a record: cut, visibly, and not refused
_CUT: dict[str, Any] = {"file_cut": {"bytes_at_least": FILE_MOST}}


def _decode_word(data: bytes) -> str:
    """Decode a word: invalid UTF-8 is replaced, and a NUL, which no C string has, is left out."""
    return data.decode(errors="replace").replace("\0", "")


def _parse_exit_code(text: str) -> int:
    """Parse the value of --raw-exit-code as a 64-bit integer. Raise EmitError if it is none."""
    if not re.fullmatch(r"[+-]?[0-9]{1,30}", text):
        raise EmitError(f"--raw-exit-code: expected an integer, got {text!r}")
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise EmitError(f"--raw-exit-code: {text} is out of range")
    return number


def _payload_member(flag: str, kind: str, rest: Iterator[Word]) -> Any:
    """Read the value that a flag of emit-record adds to an object: text, list or JSON."""
    data = _flag_value(flag, rest).text
    if kind == "json":
        return _decode_flag_json(flag, data, object)
    if kind == "list":
        return [part for part in re.split("[, ]", _decode_word(data)) if part]
    return _decode_word(data)


def _decode_flag_json(flag: str, data: bytes, kind: Any) -> Any:
    """Decode the JSON that a flag of emit-record gives. Raise EmitError naming the flag."""
    try:
        value = msgspec.json.decode(data, type=kind)
        if is_too_deep(value.raw if isinstance(value, WholePayload) else value):
            raise RecursionError
        fault = repeated_key(data)
    except DECODE_ERRORS as error:
        fault = decode_fault(error)
    if fault:
        raise EmitError(f"{flag}: {fault}")
    return value
