"""A file that only grows: what is in it, what is lost, and who else wrote into it."""

from __future__ import annotations

import errno
import os
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.files.append import AppendFile, Unit


class Disk:
    """Takes so many bytes, one write at a time, and is full then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = 0
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, fd: int, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = self._write(fd, data[: self.room])
        self.room -= done
        return done


def test_it_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    file = AppendFile(path).open()
    assert file.append_lines(b"one")
    assert path.read_bytes() == b"one\n"
    assert file.append_lines(b"two", b"three")
    assert path.read_bytes() == b"one\ntwo\nthree\n"
    assert (file.size, file.sha256) == (14, sha256(path.read_bytes()).hexdigest())
    assert file.read().read() == path.read_bytes()
    file.close()
    with pytest.raises(FileExistsError):  # nobody else's
        AppendFile(path).open()


def test_it_is_made_by_its_first_line(tmp_path: Path) -> None:
    file = AppendFile(tmp_path / "lines")
    assert not file.is_made
    assert file.is_as_written()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "lines").touch()
    assert not file.append_lines(b"one")
    assert (file.trouble, file.waiting) == ("file exists", [b"one"])
    (tmp_path / "lines").unlink()
    assert file.append_lines(b"two")
    assert (tmp_path / "lines").read_bytes() == b"one\ntwo\n"
    file.close()


def test_lines_wait_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that stops in the middle leaves no half of a line, and the order is kept."""
    file = AppendFile(tmp_path / "lines").open()
    file.append_lines(b"one")
    disk = Disk(monkeypatch)
    disk.room = 2
    assert not file.append_lines(b"two")
    assert not file.append_lines(b"three")
    assert (tmp_path / "lines").read_bytes() == b"one\n"
    assert (file.trouble, file.waiting) == ("no space left on device", [b"two", b"three"])
    disk.room = 1000
    assert file.append_lines(b"four")
    assert (tmp_path / "lines").read_bytes() == b"one\ntwo\nthree\nfour\n"
    assert (file.trouble, file.waiting) == ("", [])
    assert file.is_as_written()
    file.close()


@pytest.mark.parametrize(
    ("whole", "kept"), [("bytes", b"one\ntw"), ("lines", b"one\n"), ("all", b"")]
)
def test_what_is_left_where_the_disk_is_full(
    whole: Unit, kept: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = AppendFile(tmp_path / "lines").open()
    disk = Disk(monkeypatch)
    disk.room = 6
    assert file.append(b"one\ntwo\n", whole) == len(kept)
    assert (tmp_path / "lines").read_bytes() == kept
    assert (file.size, file.sha256) == (len(kept), sha256(kept).hexdigest())
    assert file.lost == 8 - len(kept)
    disk.room = 1000
    assert file.append(b"three\n", whole) == 0  # nothing is missing in the middle
    assert file.lost == 14 - len(kept)
    assert file.retry_append()
    assert file.append(b"three\n", whole) == 6
    assert (tmp_path / "lines").read_bytes() == kept + b"three\n"
    assert file.is_as_written()
    file.close()


def test_a_torn_line_that_cannot_be_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written behind it until it can be."""
    real = os.ftruncate

    def refused(fd: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    file = AppendFile(tmp_path / "lines").open()
    disk = Disk(monkeypatch)
    disk.room = 2
    monkeypatch.setattr(os, "ftruncate", refused)
    assert not file.append_lines(b"one")
    assert file.trouble == "no space left on device; input/output error"
    disk.room = 1000
    assert not file.append_lines(b"two")
    assert file.trouble == "no space left on device; input/output error"
    assert (tmp_path / "lines").read_bytes() == b"on"
    assert not file.is_as_written()
    monkeypatch.setattr(os, "ftruncate", real)
    assert file.append_lines(b"three")
    assert (tmp_path / "lines").read_bytes() == b"one\ntwo\nthree\n"
    file.close()


@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=12),
    st.sampled_from([(10**6, 10**6), (10**6, 16), (8, 16), (8, 10**6)]),
    st.integers(min_value=0),
)
def test_a_change_is_found_in_whichever_part_it_is(
    blocks: list[bytes], sizes: tuple[int, int], at: int
) -> None:
    """However large the blocks are that a thread hashes, and the parts that are compared."""
    large, part = sizes
    data = b"".join(blocks)
    with (
        TemporaryDirectory() as folder,
        patch.multiple("stream.files.append", LARGE=large, PART=part),
    ):
        path = Path(folder) / "file"
        file = AppendFile(path).open()
        for block in blocks:
            file.append(block, "bytes")
        assert file.sha256 == sha256(data).hexdigest()
        assert file.is_as_written()
        if data:
            with path.open("r+b") as other:
                other.seek(at % len(data))
                other.write(bytes([data[at % len(data)] ^ 1]))
            assert not file.is_as_written()
        file.close()


@pytest.mark.parametrize("what", ["appended", "changed", "replaced", "removed"])
def test_somebody_else_was_there(what: str, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    file = AppendFile(path).open()
    file.append_lines(b"one")
    assert file.is_as_written()
    if what == "appended":
        with path.open("ab") as other:
            other.write(b"two\n")
    elif what == "changed":
        with path.open("r+b") as other:
            other.write(b"won\n")
    else:
        path.unlink()
        if what == "replaced":
            path.write_bytes(b"one\n")
    assert not file.is_as_written()
    assert file.holds_what_was_written(file.sha256) == (what in ("replaced", "removed"))
    file.close()
