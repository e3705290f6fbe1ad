"""Room on the disk that is kept for what is written last."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

SIZE = 128 << 10  #: bytes: the documents of a run, unless it reached very much


class Reserve:
    """Whoever fills the disk does not keep a run from saying what it came to. The file has no
    name: a recorder that is killed leaves none."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        with suppress(OSError):  # there is no room for it, or nobody can keep any here
            os.posix_fallocate(self._file.fileno(), 0, SIZE)

    def release(self) -> None:
        self._file.close()
