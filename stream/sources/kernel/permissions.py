"""Tell whether owner and mode explain that a file was refused to a user."""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from stat import S_IMODE

from stream.records.modes import SeenCall

_READ, _WRITE, _EXECUTE = 4, 2, 1
_OPENS = ("open", "creat", "openat", "openat2")
_EXECS = ("execve", "execveat")
#: They change the folder that a name is in.
_ON_NAMES = (
    *("unlink", "unlinkat", "rmdir", "rename", "renameat", "renameat2", "link", "linkat"),
    *("mkdir", "mkdirat", "mknod", "mknodat", "symlink", "symlinkat", "bind"),
)


def is_refused_by_mode(call: SeenCall, user: int) -> bool:
    """Tell whether owner and mode of the file that a call was about, or of a folder above it, as
    they are now, refuse the call to a user who is not root. Which groups the user is in is not
    asked: what both the group and others are refused is refused."""
    for path in filter(None, (call.path, call.to_path)):
        if path.startswith("/") and _is_path_refused(call, PurePosixPath(path), user):
            return True
    return False


def _is_path_refused(call: SeenCall, path: PurePosixPath, user: int) -> bool:
    folders = list(path.parents)[::-1]
    if any(_refuses(str(folder), user, _EXECUTE) for folder in folders):
        return True
    if call.call in _EXECS:
        return _refuses(str(path), user, _EXECUTE)
    if call.call in _ON_NAMES:
        return _refuses(str(folders[-1]), user, _WRITE)
    if call.call not in _OPENS:
        return False
    access = call.flags & os.O_ACCMODE
    wanted = _WRITE if access or call.call == "creat" or call.flags & os.O_TRUNC else 0
    wanted |= _READ if access in (os.O_RDONLY, os.O_RDWR) else 0
    if os.path.lexists(path):
        return _refuses(str(path), user, wanted)
    return bool(call.flags & os.O_CREAT) and _refuses(str(folders[-1]), user, _WRITE)


def _refuses(path: str, user: int, wanted: int) -> bool:
    """Tell whether a file refuses a part of the access for sure."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return False
    mode = S_IMODE(status.st_mode)
    if status.st_uid == user:
        return bool(wanted & ~(mode >> 6))
    return bool(wanted & ~(mode >> 3) and wanted & ~mode)
