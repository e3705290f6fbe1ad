"""The words of emit-record's command line, parsed and checked. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

from stream.boundary.limits import too_deep
from stream.codec import DECODE_ERRORS, explain
from stream.documents import repeated_key
from stream.errors import EmitError
from stream.records.boundary import FILE_MOST, STATUSES, Word

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


class WholePayload(Struct, forbid_unknown_fields=True):
    """What a probe has in a file: a payload as a record has it, of any size."""

    raw: dict[str, Any]
    stderr_snippet: str | None
    stdout_snippet: str | None


class EmitFlags(Struct):
    """What a probe asked emit-record for, checked as far as its words go; `emit` checks the ids."""

    texts: dict[str, str] = field(default_factory=dict)
    secondary: list[str] = field(default_factory=list)
    exit_code: int | None = None
    snippets: dict[str, str] = field(default_factory=dict)
    objects: dict[str, dict[str, Any]] = field(default_factory=lambda: {"raw": {}, "args": {}})
    payload: WholePayload | None = None
    given: Counter[str] = field(default_factory=Counter)

    def text(self, flag: str) -> str | None:
        """Give the text of a flag; empty means null."""
        return self.texts.get(flag) or None


def parse_words(words: Sequence[Word]) -> EmitFlags:
    """Parse the command line. Raises EmitError with the sentence that emit-record prints."""
    flags = EmitFlags()
    rest = iter(words)
    for word in rest:
        flag = _text(word.text)
        flag = _ALIASES.get(flag, flag)
        flags.given[flag] += 1
        _take(flags, flag, rest)
    _check(flags)
    return flags


def _take(flags: EmitFlags, flag: str, rest: Iterator[Word]) -> None:
    if flag in _TEXTS:
        flags.texts[flag] = _text(_value(flag, rest).text)
    elif flag == "--secondary-capability-id":
        flags.secondary.append(_text(_value(flag, rest).text).strip())
    elif flag == "--raw-exit-code":
        flags.exit_code = _integer(_text(_value(flag, rest).text))
    elif flag in _SNIPPETS:
        flags.snippets[_SNIPPETS[flag]] = _text(_content(flag, _value(flag, rest)))
    elif flag == "--payload-file":
        content = _content(flag, _value(flag, rest))
        flags.payload = (
            WholePayload(_CUT, None, None) if _is_cut(content) else _whole(flag, content)
        )
    elif flag in _MERGES:
        content = _content(flag, _value(flag, rest))
        cut = _is_cut(content)
        flags.objects[_MERGES[flag]].update(_CUT if cut else _decode(flag, content, dict[str, Any]))
    elif flag in _MEMBERS:
        target, kind = _MEMBERS[flag]
        key = _text(_value(flag, rest).text)
        flags.objects[target][key] = None if kind == "null" else _member(flag, kind, rest)
    else:
        raise EmitError(f"Unknown flag: {flag}")


def _check(flags: EmitFlags) -> None:
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


def _value(flag: str, rest: Iterator[Word]) -> Word:
    word = next(rest, None)
    if word is None:
        raise EmitError(f"Missing value for {flag}")
    return word


def _content(flag: str, word: Word) -> bytes:
    if flag not in FILES:
        return word.text
    if word.content is None:
        raise EmitError(f"{flag}: cannot read {_text(word.text)}")
    return word.content


#: stands for a file that is far too large for a record: cut, visibly, and not refused
_CUT: dict[str, Any] = {"file_cut": {"bytes_at_least": FILE_MOST}}


def _is_cut(content: bytes) -> bool:
    return len(content) >= FILE_MOST


def _whole(flag: str, content: bytes) -> WholePayload:
    payload: WholePayload = _decode(flag, content, WholePayload)
    return payload


def _text(data: bytes) -> str:
    """Invalid UTF-8 is shown, never fatal; a NUL cannot stand in a C string."""
    return data.decode(errors="replace").replace("\0", "")


def _integer(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,30}", text):
        raise EmitError(f"--raw-exit-code: expected an integer, got {text!r}")
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise EmitError(f"--raw-exit-code: {text} is out of range")
    return number


def _member(flag: str, kind: str, rest: Iterator[Word]) -> Any:
    data = _value(flag, rest).text
    if kind == "json":
        return _decode(flag, data, object)
    if kind == "list":
        return [part for part in re.split("[, ]", _text(data)) if part]
    return _text(data)


def _decode(flag: str, data: bytes, kind: Any) -> Any:
    try:
        value = msgspec.json.decode(data, type=kind)
        if too_deep(value.raw if isinstance(value, WholePayload) else value):
            raise RecursionError
        fault = repeated_key(data)
    except DECODE_ERRORS as error:
        fault = explain(error)
    if fault:
        raise EmitError(f"{flag}: {fault}")
    return value
