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


def number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def visible(text: str) -> str:
    """Without anything that a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
