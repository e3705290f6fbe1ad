"""Archives of unknown origin: what they would lead to, and what they may cost."""

from __future__ import annotations

import io
import os
import struct
import tarfile
import zlib
from pathlib import Path

import pytest

from stream.archive.reader import Limits
from stream.archive.tar import BLOCK, encode_header
from stream.errors import InputError
from stream.records.artifacts import HEALTH_FILE, KERNEL_FILE
from stream.verify.session import verify
from tests.archive.samples import (
    Files,
    build_tar,
    compress_tar,
    find_error_rules,
    make_open_event,
    make_small_files,
    ndjson,
    read_tar,
    read_tar_items,
    write_files_as_archive,
)
from tests.cli.command import Place
from tests.cli.conftest import check_place, make_place

__all__ = ["check_place"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return make_small_files(tmp_path_factory.mktemp("small"))


@pytest.fixture
def tar(files: Files, tmp_path: Path) -> bytes:
    return read_tar(write_files_as_archive(tmp_path / "good.tar.gz", files))


def find_rules(tmp_path: Path, tar: bytes, limits: Limits | None = None) -> set[str]:
    target = tmp_path / "x.tar.gz"
    target.write_bytes(compress_tar(tar))
    return {item.rule for item in verify(target, limits).findings}


# ---------------------------------------------------------------- entries


def update_checksum(block: bytearray) -> bytes:
    block[148:156] = b" " * 8
    block[148:156] = b"%07o\0" % sum(block)
    return bytes(block)


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (b"0", "security.header"),
        (b"1", "security.link"),
        (b"2", "security.link"),
        (b"3", "security.device"),
        (b"4", "security.device"),
        (b"5", "security.type"),
        (b"6", "security.fifo"),
        (b"7", "security.type"),
        (b"K", "security.link"),
        (b"S", "security.type"),
        (b"g", "security.renaming"),
        (b"x", "security.renaming"),
        (b"\xff", "security.type"),
    ],
)
def test_only_regular_files(tmp_path: Path, tar: bytes, kind: bytes, rule: str) -> None:
    block = bytearray(encode_header(b"artifacts/x", 0))
    block[156:157] = kind
    spoiled = tar[: -2 * BLOCK] + update_checksum(block) + bytes(2 * BLOCK)
    assert rule in find_rules(tmp_path, spoiled)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("/etc/passwd", "security.absolute"),
        ("../x", "security.traversal"),
        ("a/../../x", "security.traversal"),
        ("..", "security.traversal"),
        ("a//b", "security.name"),
        ("./a", "security.name"),
        ("a/.", "security.name"),
        ("a/", "security.name"),
        ("a\\b", "security.name"),
        ("a\nb", "security.name"),
        ("a\x1b[31m", "security.name"),
        ("artifacts/claude_stdout.txt/x", "security.conflict"),
        ("n" * 257, "limit.path"),
        ("n" * 1000, "limit.path"),
    ],
)
def test_names(tmp_path: Path, tar: bytes, name: str, rule: str) -> None:
    items = [*read_tar_items(tar), (name, b"")]
    assert rule in find_rules(tmp_path, build_tar(*items))


def test_a_name_that_is_not_utf8(tmp_path: Path, tar: bytes) -> None:
    spoiled = tar[: -2 * BLOCK] + encode_header(b"a\xff", 0) + bytes(2 * BLOCK)
    assert "security.name" in find_rules(tmp_path, spoiled)


@pytest.mark.parametrize(
    ("start", "data", "rule"),
    [
        (100, b"0000755\0", "security.header"),
        (108, b"0001750\0", "security.header"),
        (116, b"0001750\0", "security.header"),
        (136, b"14657652315\0", "security.header"),
        (257, b"ustar\x0000", "security.header"),
        (265, b"root\0", "security.header"),
        (297, b"root\0", "security.header"),
        (60, b"hidden", "security.hidden_bytes"),
        (157, b"target", "security.hidden_bytes"),
        (329, b"0000001\0", "security.hidden_bytes"),
        (345, b"prefix", "security.hidden_bytes"),
        (500, b"tail", "security.hidden_bytes"),
    ],
)
def test_every_field_of_a_header(
    tmp_path: Path, tar: bytes, start: int, data: bytes, rule: str
) -> None:
    """With a checksum that is right: that one alone would be caught as well."""
    block = bytearray(tar[:BLOCK])
    block[start : start + len(data)] = data
    assert find_rules(tmp_path, update_checksum(block) + tar[BLOCK:]) == {rule}
    block = bytearray(tar[:BLOCK])
    block[start] ^= 1
    assert find_rules(tmp_path, bytes(block) + tar[BLOCK:]) == {"integrity.header"}


def test_padding_is_empty(tmp_path: Path, files: Files) -> None:
    items = sorted(files.items())
    tar = build_tar(*items)
    name, data = items[-1]
    end = tar.index(data) + len(data)
    assert len(data) % BLOCK, name
    spoiled = tar[:end] + b"x" + tar[end + 1 :]
    assert "security.hidden_bytes" in find_rules(tmp_path, spoiled)


def test_a_long_name_is_for_a_long_name(tmp_path: Path, tar: bytes) -> None:
    name = b"artifacts/" + b"n" * 120
    good = encode_header(name, 0)
    rest = tar[: -2 * BLOCK]
    end = bytes(2 * BLOCK)
    assert find_rules(tmp_path, rest + good + end) == {
        *("contract.listed", "integrity.extra", "integrity.order"),
    }
    other = good[: 2 * BLOCK] + encode_header(b"short", 0)
    assert "security.renaming" in find_rules(tmp_path, rest + other + end)
    twice = good[: 2 * BLOCK] + good
    assert "security.renaming" in find_rules(tmp_path, rest + twice + end)
    tail = good[: BLOCK + 131] + b"more" + good[BLOCK + 135 :]
    assert "security.hidden_bytes" in find_rules(tmp_path, rest + tail + end)


def test_what_another_tar_writes(tmp_path: Path, files: Files) -> None:
    """The same files: but with times, owners and modes that show where it was made."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.pax_headers = len(data), 1.5, {"path": "other"}
            tar.addfile(member, io.BytesIO(data))
    assert {"security.renaming", "security.header"} <= find_rules(tmp_path, made.getvalue())


def test_an_ordinary_tar_is_reported_as_one(tmp_path: Path) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as tar:
        member = tarfile.TarInfo("raw.ndjson")
        member.uname = "dev"
        tar.addfile(member)
    target = tmp_path / "x.tar.gz"
    target.write_bytes(compress_tar(made.getvalue()))
    messages = {item.message for item in verify(target).findings}
    assert {
        "made by another tar, or changed: the type of a regular file is '0', not NUL",
        "made by another tar, or changed: the header's uname is 'dev', not 'assay'",
        "begins with raw.ndjson, not with the manifest",
    } <= messages


# ---------------------------------------------------------------- gzip


def compress_with_header(tar: bytes, header: bytes) -> bytes:
    engine = zlib.compressobj(6, zlib.DEFLATED, -15)
    body = engine.compress(tar) + engine.flush()
    return header + body + struct.pack("<II", zlib.crc32(tar), len(tar))


HEADERS = [
    (b"\x1f\x8b\x08\x08\0\0\0\0\0\x03name\0", "has a file name ('name')"),
    (b"\x1f\x8b\x08\x04\0\0\0\0\0\x03\x04\0more", "has extra fields"),
    (b"\x1f\x8b\x08\x10\0\0\0\0\0\x03comment\0", "has a comment ('comment')"),
    (b"\x1f\x8b\x08\x02\0\0\0\0\0\x03\1\2", "has a checksum of its own"),
    (b"\x1f\x8b\x08\0\0\x2f\x0d\x5c\0\x03", "has a time (2018-12-09 15:04:32 UTC)"),
    (b"\x1f\x8b\x08\x08\0\x2f\x0d\x5c\0\x03x\0", ") and a file name ('x')"),
    (b"\x1f\x8b\x08\0\0\0\0\0\x02\x03", "has marks of another compressor (2, 3)"),
]
UNREADABLE = [
    b"\x1f\x8b\x07\0\0\0\0\0\0\x03",
    b"\x1f\x8b\x08\x80\0\0\0\0\0\x03",
    b"\x1f\x8b\x08\x08\0\0\0\0\0\x03" + b"n" * (1 << 19),
]


@pytest.mark.parametrize(("header", "what"), HEADERS)
def test_a_gzip_header_with_more_in_it(
    tmp_path: Path, tar: bytes, header: bytes, what: str
) -> None:
    target = tmp_path / "x.tar.gz"
    target.write_bytes(compress_with_header(tar, header))
    (findings,) = verify(target).findings
    assert (findings.rule, findings.severity) == ("packing.gzip", "warning")
    assert what in findings.message


@pytest.mark.parametrize("header", UNREADABLE, ids=len)
def test_a_gzip_header_that_cannot_be_read(tmp_path: Path, tar: bytes, header: bytes) -> None:
    target = tmp_path / "x.tar.gz"
    target.write_bytes(compress_with_header(tar, header))
    assert find_error_rules(target) == {"security.gzip_header"}


@pytest.mark.parametrize("header", [b"\x1f\x8b\x08\0\0\0\0\0\0\x03", HEADERS[0][0]])
@pytest.mark.parametrize("data", [b"{}\n", b"", b"text\n" * 1000])
def test_what_was_compressed_is_no_archive(tmp_path: Path, header: bytes, data: bytes) -> None:
    target = tmp_path / "x.gz"
    target.write_bytes(compress_with_header(data, header))
    with pytest.raises(InputError, match="what is compressed in it is no tar"):
        verify(target)


def test_a_second_member(tmp_path: Path, tar: bytes) -> None:
    target = tmp_path / "x.tar.gz"
    for more in (compress_tar(b""), compress_tar(tar), compress_tar(b"hidden")):
        target.write_bytes(compress_tar(tar) + more)
        assert find_error_rules(target) == {"security.hidden_bytes"}


@pytest.mark.parametrize("data", [b"", b"x", b"PK\x03\x04", b"\x1f", b"{}\n"])
def test_no_archive_at_all(tmp_path: Path, data: bytes) -> None:
    target = tmp_path / "x.tar.gz"
    target.write_bytes(data)
    with pytest.raises(InputError, match="not an archive"):
        verify(target)


def test_not_there_and_not_readable(tmp_path: Path) -> None:
    for path in (tmp_path / "none", Path("a\0b")):
        with pytest.raises(InputError):
            verify(path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InputError, match="fifo: a fifo: neither an archive nor a run folder"):
        verify(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x").touch()
    with pytest.raises(InputError, match="no run folder"):
        verify(tmp_path / "folder")


# ---------------------------------------------------------------- limits


def write_bomb(target: Path, name: str, size: int, piece: bytes = bytes(1 << 20)) -> None:
    """One huge file in an archive, never held as a whole."""
    engine = zlib.compressobj(9, zlib.DEFLATED, -15)

    def packed_piece(data: bytes) -> bytes:
        """It refers to nothing before it: where the same follows, it is packed the same."""
        return engine.compress(data) + engine.flush(zlib.Z_FULL_FLUSH)

    with target.open("wb") as file:
        file.write(b"\x1f\x8b\x08\0\0\0\0\0\0\x03")
        file.write(packed_piece(encode_header(name.encode(), size)))
        file.write(packed_piece(piece) * (size // len(piece)))
        file.write(engine.flush())


@pytest.mark.parametrize("name", ["artifacts/x", "manifest.json", HEALTH_FILE, KERNEL_FILE])
def test_a_bomb_stops_at_the_limit(tmp_path: Path, name: str) -> None:
    place = make_place(tmp_path)
    target = tmp_path / "bomb.tar.gz"
    write_bomb(target, name, 300 << 20)
    assert target.stat().st_size < 1 << 20
    done = place.run_measured("verify", "--max-decoded", "256M", target)
    assert done.code == 1
    assert "more than 268435456 bytes decoded" in done.err
    assert done.peak < 160 << 20
    check_memory(place)


def test_a_bomb_of_lines(tmp_path: Path) -> None:
    place = make_place(tmp_path)
    target = tmp_path / "bomb.tar.gz"
    write_bomb(target, KERNEL_FILE, 200 << 20, b"\n" * (1 << 20))
    done = place.run_measured("verify", "--max-lines", "1000000", target)
    assert done.code == 1
    assert b"more than 1000000 lines" in done.out
    assert done.peak < 120 << 20
    check_memory(place)


def check_memory(place: Place) -> None:
    (place.root / "peak").unlink()
    check_place(place)


@pytest.mark.parametrize(
    ("limits", "rule"),
    [
        (Limits(archive=500), "limit.archive"),
        (Limits(decoded=5000), "limit.decoded"),
        (Limits(entries=5), "limit.entries"),
        (Limits(lines=5), "limit.lines"),
        (Limits(line=100), "limit.line"),
        (Limits(document=100), "limit.document"),
        (Limits(depth=1), "limit.depth"),
    ],
)
def test_every_limit(tmp_path: Path, tar: bytes, limits: Limits, rule: str) -> None:
    assert rule in find_rules(tmp_path, tar, limits)
    assert find_rules(tmp_path, tar) == set()


def test_a_ratio(tmp_path: Path) -> None:
    target = tmp_path / "bomb.tar.gz"
    write_bomb(target, "artifacts/x", 50 << 20)
    assert "limit.ratio" in {item.rule for item in verify(target, Limits(ratio=100)).findings}
    assert "limit.ratio" not in {item.rule for item in verify(target).findings}


@pytest.mark.parametrize("length", [99, 100, 101, 3000, 3 << 20])
def test_a_long_line_is_named_by_its_number(tmp_path: Path, files: Files, length: int) -> None:
    """Wherever it stands, and however it is cut; the lines after it are checked as ever."""
    lines = [ndjson(make_open_event(seq, "/a")) for seq in (0, 1, 2)]
    limits = Limits(line=max(map(len, lines)))
    long = b"x" * (limits.line + length) + b"\n"
    for place in range(3):
        spoiled = b"".join((*lines[:place], long, *lines[place:]))
        target = write_files_as_archive(tmp_path / "x.tar.gz", {**files, KERNEL_FILE: spoiled})
        findings = [(item.rule, item.line) for item in verify(target, limits).findings]
        assert ("limit.line", place + 1) in findings
        assert [rule for rule, _ in findings if rule == "contract.seq"] == []


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_nested_without_end(tmp_path: Path, files: Files, opening: bytes) -> None:
    deep = opening * 200_000
    for name in files:
        target = write_files_as_archive(tmp_path / "x.tar.gz", {**files, name: deep + b"\n"})
        if not name.startswith("artifacts/"):
            assert find_error_rules(target), name


def test_findings_do_not_pile_up(tmp_path: Path, files: Files) -> None:
    target = write_files_as_archive(
        tmp_path / "x.tar.gz", {**files, KERNEL_FILE: b"{}\n" * 300_000}
    )
    report = verify(target)
    assert len(report.findings) < 200
    assert report.total > 300_000
