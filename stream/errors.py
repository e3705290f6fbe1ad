"""Every failure that a user can act on.

StreamError             carries one sentence: the place, then what is wrong
├── UsageError          the words on the command line, or in the environment
├── InputError          a file or document that cannot be used at all
│   └── UnfinishedError  a run that was not recorded to its end
├── OutputError         something could not be written; nothing that looks whole is left
├── EmitError           the words that a probe gave to emit-record
├── SpawnError          a program could not be started
├── FeedError           a kernel feed cannot be had here
└── RequiredError       what the user required cannot be had

A line of a stream that is bad is not an exception: it becomes a reject record and the
stream goes on. Anything that is not a StreamError is a bug and keeps its traceback.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager


class StreamError(Exception):
    exit_code = 2


class UsageError(StreamError):
    pass


class InputError(StreamError):
    pass


class UnfinishedError(InputError):
    """Nothing that comes later can mend it."""


class OutputError(StreamError):
    pass


class EmitError(StreamError):
    exit_code = 1


class FeedError(StreamError):
    """A kernel feed cannot be had here: one sentence, why."""


class RequiredError(StreamError):
    exit_code = 40


class SpawnError(StreamError):
    """A program could not be started."""

    def __init__(self, reason: str, number: int = 0) -> None:
        super().__init__(reason)
        self.number = number  #: errno, where there is one


@contextmanager
def blaming(variable: str, is_to_blame: bool) -> Iterator[None]:
    """An error says which environment variable led to it, where one did."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{variable}: {error}" if is_to_blame else str(error)) from None


def os_reason(error: OSError) -> str:
    """What the system said, without the errno number and the repeated path."""
    return (error.strerror or str(error)).lower()


_SCARCE = {
    errno.EMFILE: "too many open files: raise the limit (ulimit -n)",
    errno.ENFILE: "too many open files on this machine",
    errno.ENOMEM: "not enough memory",
    errno.ENOSPC: "no space left on device",
    errno.EDQUOT: "the disk quota is used up",
}
#: how the interpreter words it where it has neither an errno nor a MemoryError
_SCARCE_WORDS = {
    "can't start new thread": "no further thread can be started: memory or processes are limited",
    "failed to map segment": "not enough memory",
    "annot allocate memory": "not enough memory",
    "too many open files": _SCARCE[errno.EMFILE],
}


def shortage(error: BaseException) -> str | None:
    """Say which resource of the machine ran out, where that is what the error means.

    No part can know every place that may lack memory, descriptors or room, so the command line
    asks this of what it catches. It is None for every other error, which is a bug.
    """
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(shortage, error.exceptions)), None)
    if isinstance(error, MemoryError):
        return _SCARCE[errno.ENOMEM]
    if isinstance(error, OSError) and error.errno in _SCARCE:
        place = f"{error.filename}: " if isinstance(error.filename, str) else ""
        return visible(place + _SCARCE[error.errno])
    if isinstance(error, ImportError | RuntimeError | OSError):
        said = str(error).lower()
        return next((why for words, why in _SCARCE_WORDS.items() if words in said), None)
    return None


def number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def visible(text: str) -> str:
    """Without anything that a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


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
