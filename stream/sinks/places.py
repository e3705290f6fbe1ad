"""Where outputs go, by name: what can be said about them before anything is started."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stream.errors import OutputError, UsageError, os_reason

STDOUT = "-"


def check_outputs(outputs: Sequence[str | None], inputs: Sequence[str] = ()) -> None:
    """None may take the place of an input, or of another output, or have no place at all."""
    taken = {os.path.realpath(name): name for name in inputs if name != STDOUT}
    for name in outputs:
        if name is None or name == STDOUT:
            continue
        with named(name):
            if not is_regular(name):
                if not name or Path(name).is_dir():  # the attempt says why
                    os.close(os.open(name, os.O_WRONLY))
                continue
            place = os.path.realpath(name)
            if place in taken:
                raise UsageError(f"{name}: the same file as {taken[place]}, which it would replace")
            taken[place] = name
            _check_place(partial(name))


def _check_place(growing: Path) -> None:
    is_new = not os.path.lexists(growing)
    fd = open_alone(growing)
    try:
        if is_new:
            growing.unlink()
        if not os.access(growing.parent, os.W_OK | os.X_OK):  # it could never get its name
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    finally:
        os.close(fd)


def is_regular(target: str) -> bool:
    """Or nothing yet."""
    with named(target):
        try:
            return stat.S_ISREG(Path(target).stat().st_mode)
        except FileNotFoundError:
            return True


def is_fifo(target: str) -> bool:
    return target != STDOUT and Path(target).is_fifo()


def partial(target: str) -> Path:
    """Where a file lies until it is whole: beside it, also where `target` is a link to it."""
    return Path(f"{os.path.realpath(target) if Path(target).is_symlink() else target}.partial")


def open_alone(path: Path) -> int:
    """Locked until it is closed: two runs into one file would both look whole."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(fd), path.stat()):  # its writer has just finished
            raise BlockingIOError
    except BlockingIOError:
        os.close(fd)
        raise OutputError(f"{path}: another run is writing it") from None
    except OSError:
        os.close(fd)
        raise
    return fd


@contextmanager
def named(target: str) -> Iterator[None]:
    """A failure to write is said with its place; a reader that went away is no failure."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        place = "stdout" if target == STDOUT else target or "(a file without a name)"
        raise OutputError(f"{place}: {os_reason(error)}") from None
