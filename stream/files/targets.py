"""Outputs by name: they are checked before anything is started, and their files made and locked."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from stream.errors import OutputError, UsageError, reporting

STDOUT_TARGET = "-"
_MOST_LINKS = 40  #: as the kernel follows
_NUMBER = re.compile(r"[0-9]{1,9}\Z")  #: of a descriptor
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def check_outputs(
    outputs: Sequence[str | None], inputs: Sequence[str] = (), *, force: bool = False
) -> None:
    """Raise StreamError where an output has no place, or would take that of an input, of another
    output, or, without `force`, of anything that is there."""
    taken = {os.path.realpath(name): name for name in inputs if name != STDOUT_TARGET}
    for name in outputs:
        if name is None or name == STDOUT_TARGET:
            continue
        with reporting(name or "(a file without a name)", OutputError):
            if not is_regular_target(name):
                if not name or Path(name).is_dir():  # the attempt says why
                    os.close(os.open(name, os.O_WRONLY))
                continue
            path = os.path.realpath(name)
            if path in taken:
                raise UsageError(f"{name}: the same file as {taken[path]}, which it would replace")
            taken[path] = name
            check_target_free(name, force=force)
            _check_output_possible(partial_path(name))


def check_target_free(target: str, *, force: bool) -> None:
    """Raise OutputError where something is there already that nobody said to replace, or that
    nobody can have meant: a device or a fifo that gave its name away is gone for everyone."""
    if not is_regular_target(target) and not Path(target).is_dir():
        raise OutputError(f"{target}: it is no regular file, and is not replaced")
    if os.path.lexists(target) and not force:
        raise OutputError(f"{target}: it is there already; --force replaces it")
    if Path(target).is_dir():
        raise OutputError(f"{target}: it is a folder")


def _check_output_possible(growing: Path) -> None:
    """Raise OSError where an output could not be made. What is there stays as it is."""
    if os.path.lexists(growing):
        _unlock_output(_lock_existing(growing))
    else:
        os.close(os.open(growing, _NEW, 0o600))
        growing.unlink()
    if not os.access(growing.parent, os.W_OK | os.X_OK):  # it could never get its name
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def is_regular_target(target: str) -> bool:
    """Tell whether a target is a regular file, or nothing yet. What somebody has opened for us is
    written to, whatever it is."""
    with reporting(target, OutputError):
        if descriptor_by_name(target) is not None:
            return False
        try:
            return stat.S_ISREG(Path(target).stat().st_mode)
        except FileNotFoundError:
            return True


def descriptor_by_name(target: str) -> int | None:
    """Return the open descriptor that a name means: /dev/stdout, /dev/fd/3 and their like."""
    for _ in range(_MOST_LINKS):
        folder, name = os.path.split(target)
        if os.path.realpath(folder) in ("/dev/fd", f"/proc/{os.getpid()}/fd"):
            return _check_inherited(int(name)) if _NUMBER.match(name) else None
        if not os.path.islink(target):  # noqa: PTH114
            break
        target = os.path.join(folder, os.readlink(target))  # noqa: PTH115, PTH118
    return None


def _check_inherited(fd: int) -> int:
    """Raise OSError for a descriptor that nobody gave us: what we open ourselves, no child
    inherits."""
    if not os.get_inheritable(fd):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return fd


def is_fifo(target: str) -> bool:
    """Tell whether a target is a fifo."""
    return target != STDOUT_TARGET and Path(target).is_fifo()


def partial_path(target: str) -> Path:
    """Return where a file lies until it is whole. It then takes the place of a link, and what that
    leads to stays as it is."""
    return Path(f"{target}.partial")


def open_locked(path: Path, mode: int = 0o666, more: int = 0) -> int:
    """Make a file anew, and lock it until it is closed: two runs into one would both look whole.

    What an interrupted run left under that name goes first; whatever else has the name, as a link
    to somebody's file, is never written through.
    """
    if os.path.lexists(path):
        held = _lock_existing(path)
        path.unlink()
        _unlock_output(held)
    try:
        return _lock_output(path, os.open(path, _NEW | more, mode))
    except FileExistsError:
        raise OutputError(f"{path}: another run is writing it") from None


def _lock_existing(path: Path) -> int | None:
    """Lock the file that has a name, so that nobody else takes it for left over. None: a link."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        if error.errno in (errno.EISDIR, errno.ENXIO):
            raise OutputError(f"{path}: it is no regular file, and is not replaced") from None
        raise
    return _lock_output(path, fd)


def _unlock_output(held: int | None) -> None:
    if held is not None:
        os.close(held)


def _lock_output(path: Path, fd: int) -> int:
    """Lock the open file of an output. Raise OutputError where another run is writing it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(fd), path.lstat()):  # its writer has just finished
            raise BlockingIOError
    except BlockingIOError:
        os.close(fd)
        raise OutputError(f"{path}: another run is writing it") from None
    except OSError:
        os.close(fd)
        raise
    return fd
