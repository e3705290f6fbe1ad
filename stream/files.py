"""Files of a run's record: made anew, and for nobody else to read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def open_new(path: Path, more: int = 0) -> int:
    """Make a file that only its owner may read and write, whatever the umask allows, and never
    through a name that is there. Raises OSError."""
    return os.open(path, _NEW | more, 0o600)


def create(path: Path) -> IO[bytes]:
    """Make such a file, to be written. Raises OSError."""
    return os.fdopen(open_new(path), "wb")
