"""Whatever is changed in an archive, verify reports it, and never crashes."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import pytest

from stream.errors import InputError
from stream.verify.session import verify
from tests.archive.samples import (
    ARCHIVES,
    Rewritten,
    build_tar,
    compress_tar,
    find_error_rules,
    make_small_files,
    make_stream_files,
    read_tar,
    read_tar_items,
    write_files_as_archive,
)
from tests.sweeping import every


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    return write_files_as_archive(folder / "a.tar.gz", make_small_files(folder / "run"))


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With less in it: each of its bytes costs an archive."""
    return write_files_as_archive(
        tmp_path_factory.mktemp("short") / "a.tar.gz", make_stream_files()
    )


def is_caught(target: Path) -> bool:
    try:
        return verify(target).errors > 0
    except InputError:
        return True


def test_the_small_one_is_good(archive: Path) -> None:
    report = verify(archive)
    assert [find_rules.rule for find_rules in report.findings] == []


@pytest.mark.parametrize("path", ARCHIVES, ids=lambda path: path.stem)
def test_the_references_own_are_good(path: Path) -> None:
    report = verify(path)
    assert report.errors == 0
    assert [find_rules.rule for find_rules in report.findings] == [
        "contract.unbound",
        "contract.age",
    ]


def has_the_same_tar(tar: bytes, data: bytes) -> bool:
    try:
        return gzip.decompress(data) == tar
    except (OSError, EOFError, zlib.error):
        return False


@every(37)
def test_every_bit_of_the_file(short: Path, tmp_path: Path, step: int) -> None:
    """Deflate can encode the same in several ways: also where the tar is as it was."""
    tar = read_tar(short)
    data = bytearray(short.read_bytes())
    missed, same = [], 0
    with Rewritten(tmp_path / "x.tar.gz") as target:
        for number in range(0, 8 * len(data), step):
            place, bit = divmod(number, 8)
            data[place] ^= 1 << bit
            if not is_caught(target.put(bytes(data))):
                missed.append((place, bit))
            same += has_the_same_tar(tar, bytes(data))
            data[place] ^= 1 << bit
    assert missed == []
    assert same > 640 // step  # those of the seal itself, and more


@every(17)
def test_every_byte_of_the_tar(short: Path, tmp_path: Path, step: int) -> None:
    tar = bytearray(read_tar(short))
    missed = []
    with Rewritten(tmp_path / "x.tar.gz") as target:
        for place in range(0, len(tar), step):
            bit = place % 8
            tar[place] ^= 1 << bit
            if not is_caught(target.put(compress_tar(bytes(tar)))):
                missed.append((place, bit))
            tar[place] ^= 1 << bit
    assert missed == []


@every(11)
def test_every_length(short: Path, tmp_path: Path, step: int) -> None:
    data = short.read_bytes()
    with Rewritten(tmp_path / "x.tar.gz") as target:
        for length in range(0, len(data), step):
            assert is_caught(target.put(data[:length])), length
    other = tmp_path / "y.tar.gz"
    for more in (b"\0", b"\n", data, bytes(512)):
        other.write_bytes(data + more)
        assert find_error_rules(other) == {"security.hidden_bytes"}


@every(7)
def test_every_length_of_the_tar(archive: Path, tmp_path: Path, step: int) -> None:
    tar = read_tar(archive)
    target = tmp_path / "x.tar.gz"
    for length in range(64, len(tar), 64 * step):
        target.write_bytes(compress_tar(tar[:length]))
        assert "integrity.truncated" in find_error_rules(target), length
    for more in (b"\0", bytes(512), bytes(10240), tar):
        target.write_bytes(compress_tar(tar + more))
        assert "security.hidden_bytes" in find_error_rules(target)


@every(6)
def test_every_entry_dropped_doubled_moved_renamed(
    archive: Path, tmp_path: Path, step: int
) -> None:
    items = read_tar_items(read_tar(archive))
    assert build_tar(*items) == read_tar(archive)
    target = tmp_path / "x.tar.gz"

    def find_rules(*spoiled: tuple[str, bytes]) -> set[str]:
        target.write_bytes(compress_tar(build_tar(*spoiled)))
        return find_error_rules(target)

    for place, (name, data) in enumerate(items):
        rest = items[:place] + items[place + 1 :]
        dropped = find_rules(*rest)
        assert "integrity.missing" in dropped, name
        assert "integrity.duplicate" in find_rules(*items[: place + 1], *items[place:]), name
        assert "integrity.duplicate" in find_rules(*items, items[place]), name
        renamed = find_rules(*items[:place], (f"{name}x", data), *items[place + 1 :])
        assert {"integrity.missing"} <= renamed, name
        other = find_rules(*items[:place], (name, data + b"x"), *items[place + 1 :])
        assert other, name
        for goal in range(place % step, len(rest), step):
            if goal != place:
                moved = find_rules(*rest[:goal], items[place], *rest[goal:])
                assert "integrity.order" in moved, (name, goal)
    assert "integrity.extra" in find_rules(*items, ("zzz", b""))
    assert find_rules(*items) == set()
