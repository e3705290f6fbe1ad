"""Every failure that a user can act on.

StreamError              one sentence: the place, then what is wrong
├── UsageError           wrong words on the command line, or in the environment
├── InputError           a file or document that cannot be used at all
│   └── UnfinishedError  a run that was not recorded to its end
├── OutputError          something could not be written; no output looks complete
├── EmitError            wrong words that a probe gave to emit-record
├── SpawnError           a program could not be started
├── FeedError            a kernel feed is not available here
├── InternetError        a stand-in Internet is not available here, or not any more
└── RequiredError        what the user required is not available

A bad line of a stream is not an exception: it becomes a reject record and the stream goes
on. An error that is not a StreamError is a bug and keeps its traceback.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager


class StreamError(Exception):
    """A failure that a user can act on: its text is shown as it is."""

    exit_code = 2


class UsageError(StreamError):
    """The words on the command line, or in the environment, cannot be used."""


class InputError(StreamError):
    """A file or document cannot be used at all."""


class UnfinishedError(InputError):
    """A run was not recorded to its end; nothing can repair it."""


class OutputError(StreamError):
    """Something could not be written."""


class EmitError(StreamError):
    """The words that a probe gave to emit-record break their contract."""

    exit_code = 1


class FeedError(StreamError):
    """A kernel feed is not available here."""


class InternetError(StreamError):
    """A stand-in Internet is not available here, or not any more."""


class RequiredError(StreamError):
    """What the user required is not available."""

    exit_code = 40


class SpawnError(StreamError):
    """A program could not be started."""

    def __init__(self, reason: str, number: int = 0) -> None:
        super().__init__(reason)
        self.number = number  #: errno, where there is one


@contextmanager
def reporting(
    place: object, error_type: type[StreamError] = InputError, *, is_folder: bool = False
) -> Iterator[None]:
    """Raise an OSError of the block as a StreamError that names the place or, for a folder, the
    file in it that failed. A reader that closes the pipe of an output is not a failure."""
    try:
        yield
    except OSError as error:
        if isinstance(error, BrokenPipeError) and not is_folder:
            raise
        where = (is_folder and error.filename) or place
        raise error_type(f"{where}: {os_reason(error)}") from None


@contextmanager
def naming_variable(variable: str, is_used: bool) -> Iterator[None]:
    """Put the name of an environment variable before an InputError, if the variable was used."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{variable}: {error}" if is_used else str(error)) from None


def os_reason(error: OSError) -> str:
    """Return what the system reported, without the errno number and the repeated path."""
    return (error.strerror or str(error)).lower()


_SCARCE = {
    errno.EMFILE: "too many open files: raise the limit (ulimit -n)",
    errno.ENFILE: "too many open files on this machine",
    errno.ENOMEM: "not enough memory",
    errno.ENOSPC: "no space left on device",
    errno.EDQUOT: "the disk quota is used up",
}
#: the interpreter's words where there is neither an errno nor a MemoryError
_SCARCE_WORDS = {
    "can't start new thread": "no further thread can be started: memory or processes are limited",
    "failed to map segment": "not enough memory",
    "annot allocate memory": "not enough memory",
    "too many open files": _SCARCE[errno.EMFILE],
}


def resource_shortage(error: BaseException) -> str | None:
    """Return which resource of the machine ran out, or None for any other error, which is a bug.

    Memory, descriptors or disk space may run out anywhere: the command line calls this for every
    error that it catches.
    """
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(resource_shortage, error.exceptions)), None)
    if isinstance(error, MemoryError):
        return _SCARCE[errno.ENOMEM]
    if isinstance(error, OSError) and error.errno in _SCARCE:
        prefix = f"{error.filename}: " if isinstance(error.filename, str) else ""
        return printable(prefix + _SCARCE[error.errno])
    if isinstance(error, ImportError | RuntimeError | OSError):
        text = str(error).lower()
        return next((why for words, why in _SCARCE_WORDS.items() if words in text), None)
    return None


def number(count: int, noun: str) -> str:
    """Return the count with its noun in singular or plural."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def printable(text: str) -> str:
    """Escape every character that a terminal would interpret."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shorten_text(text: str, longest: int) -> str:
    """Return a printable text of so many characters at most; what is left out ends in `…`."""
    escaped = printable(text[: longest + 1])
    return escaped if len(escaped) <= longest else escaped[: longest - 1] + "…"


def encodable(text: str) -> str:
    """Make text from the system encodable: names need not be UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return decode_escaped(text.encode(errors="surrogateescape"))
    return text


def decode_escaped(word: bytes) -> str:
    """Decode bytes; if they are not UTF-8, show these as \\xNN and double each backslash."""
    try:
        return word.decode()
    except UnicodeDecodeError:
        return word.replace(b"\\", b"\\\\").decode(errors="backslashreplace")
