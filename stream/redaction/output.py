"""What an agent writes, recorded as it comes: in full, redacted, or as a digest alone."""

from __future__ import annotations

from pathlib import Path

from stream.files.append import AppendFile, RecordedFile, Sha256
from stream.redaction.policy import CapturePolicy


class OutputFile:
    """A file of one output. A full disk ends it at a whole beginning; the agent does not notice.
    One thread at a time may use it."""

    def __init__(self, path: Path, policy: CapturePolicy) -> None:
        self._file = AppendFile(path).open()
        self._raw = Sha256() if policy.mode == "hashed" else None
        self._filter = None
        if policy.redactor is not None and self._raw is None:
            self._filter = policy.redactor.stream()
        self._total = 0

    def write(self, chunk: bytes) -> None:
        """Record a piece of the output."""
        self._total += len(chunk)
        if self._raw is not None:
            self._raw.update(chunk)
        elif self._filter is not None:
            self._file.append(self._filter.feed(chunk), "bytes")
        else:
            self._file.append(chunk, "bytes")

    def finish(self) -> RecordedFile:
        """Write what is left, close the file, and return what became of it."""
        file = self._file
        try:
            if self._filter is not None:
                file.append(self._filter.finish(), "bytes")
            if self._raw is not None:
                line = f"sha256:{self._raw.hexdigest()} bytes:{self._total}\n"
                file.append(line.encode(), "bytes")
            is_ours = file.is_as_written()
        finally:
            file.close()
        return RecordedFile(file.sha256, file.size, self._total, file.lost, file.trouble, is_ours)
