"""The ring buffer that the kernel writes and we read, mapped: whole records, never a torn one."""

from __future__ import annotations

import mmap
import threading

PAGE = mmap.PAGESIZE


class Ring:
    def __init__(self, fd: int, size: int) -> None:
        self._mask = size - 1
        self._ours = mmap.mmap(fd, PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        # The data lies there twice, one after the other: a record never has to be put together.
        self._theirs = mmap.mmap(fd, PAGE + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=PAGE)
        self._read = memoryview(self._ours).cast("Q")
        self._written = memoryview(self._theirs)[:8].cast("Q")
        self._data = memoryview(self._theirs)[PAGE:]
        self._barrier = threading.Lock()

    @property
    def read(self) -> int:
        """So many bytes have been taken out since the beginning."""
        return self._read[0]

    @property
    def written(self) -> int:
        """So many have been put in; what comes after this is read no earlier."""
        position = self._written[0]
        with self._barrier:  # the one acquire that Python can spell
            return position

    def peek(self, most: int) -> bytes:
        """What comes next. Records that are still being written are marked so in their length."""
        start = self._read[0]
        length = min(self.written - start, most)
        if length <= 0:
            return b""
        offset = start & self._mask
        view = self._data[offset : offset + length]
        # A length may be copied after what it belongs to: only in the second of two equal copies
        # everything is at least as new as the lengths of the first.
        first = bytes(view)
        while True:
            with self._barrier:
                second = bytes(view)
            if first == second:
                return second
            first = second

    def take(self, length: int) -> None:
        self._read[0] += length

    def close(self) -> None:
        for view in (self._read, self._written, self._data):
            view.release()
        self._ours.close()
        self._theirs.close()
