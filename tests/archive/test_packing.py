"""The same evidence, packed again by others: a warning, and all of it is verified."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from stream.archive.gzip import SEALED
from stream.records.artifacts import ARCHIVE_MANIFEST, HEALTH_FILE, KERNEL_FILE, V0_FILES
from stream.verify.session import verify
from tests.archive.samples import (
    ARCHIVES,
    Files,
    build_tar,
    compress_tar,
    find_error_rules,
    make_run_files,
    make_stream_files,
    read_tar,
    read_tar_items,
    write_files,
    write_files_as_archive,
)
from tests.cli.command import Place
from tests.cli.conftest import place

__all__ = ["place"]
LONG = f"artifacts/{'n' * 60}/{'m' * 60}.txt"


def read_entries(archive: Path) -> Files:
    return dict(read_tar_items(read_tar(archive)))


def unpack_archive(archive: Path, root: Path) -> Path:
    return write_files(root / "unpacked", read_entries(archive))


def run_command(*command: str | Path, cwd: Path) -> None:
    subprocess.run(command, cwd=cwd, check=True, timeout=180)


def pack_with_tar(*options: str) -> Callable[[Path, Path], None]:
    def pack(archive: Path, target: Path) -> None:
        folder = unpack_archive(archive, target.parent)
        run_command("tar", *options, "-czf", target, ".", cwd=folder)

    return pack


def pack_reversed(archive: Path, target: Path) -> None:
    """By their names, from the last to the first."""
    folder = unpack_archive(archive, target.parent)
    run_command("tar", "-czf", target, *reversed(read_entries(archive)), cwd=folder)


def pack_in_a_folder(archive: Path, target: Path) -> None:
    """With all of it in one folder, as people do."""
    folder = unpack_archive(archive, target.parent)
    run_command("tar", "-czf", target, folder.name, cwd=folder.parent)


def pack_with_whole_path(archive: Path, target: Path) -> None:
    """With the whole way to it, and no entry for a folder."""
    folder = unpack_archive(archive, target.parent)
    way = str(folder.absolute())[1:]
    run_command(
        "tar",
        "-czf",
        target,
        "-C",
        "/",
        *(f"{way}/{name}" for name in read_entries(archive)),
        cwd=folder,
    )


def rewrite_manifest(archive: Path, target: Path) -> None:
    """Its manifest, by a program that indents and does not sort."""
    files = read_entries(archive)
    manifest = json.loads(files[ARCHIVE_MANIFEST])
    manifest["files"] = dict(reversed(manifest["files"].items()))
    files[ARCHIVE_MANIFEST] = json.dumps(manifest, indent=2).encode()
    target.write_bytes(gzip.compress(build_tar(*files.items())))


def pack_with_tarfile(form: int) -> Callable[[Path, Path], None]:
    def pack(archive: Path, target: Path) -> None:
        folder = unpack_archive(archive, target.parent)
        with tarfile.open(target, "w:gz", format=form) as tar:
            for path in sorted(folder.rglob("*")):
                tar.add(path, path.relative_to(folder), recursive=False)

    return pack


def pack_with_gzip(*options: str) -> Callable[[Path, Path], None]:
    def pack(archive: Path, target: Path) -> None:
        plain = target.parent / "plain.tar"
        plain.write_bytes(read_tar(archive))
        run_command("gzip", "-k", *options, plain, cwd=target.parent)
        plain.with_suffix(".tar.gz").rename(target)

    return pack


def pack_with_python_gzip(archive: Path, target: Path) -> None:
    with gzip.open(target, "wb") as file:
        file.write(read_tar(archive))


PACKERS: dict[str, Callable[[Path, Path], None]] = {
    "gzip": pack_with_gzip(),
    "gzip -9": pack_with_gzip("-9"),
    "gzip -1": pack_with_gzip("-1"),
    "gzip.open": pack_with_python_gzip,
    "tar -C FOLDER .": pack_with_tar(),
    "tar --format=pax": pack_with_tar("--format=pax"),
    "tar --format=ustar": pack_with_tar("--format=ustar"),
    "tar --format=v7": pack_with_tar("--format=v7"),
    "tar FILES": pack_reversed,
    "tar FOLDER": pack_in_a_folder,
    "tar WAY": pack_with_whole_path,
    "jq manifest.json": rewrite_manifest,
    "tarfile, pax": pack_with_tarfile(tarfile.PAX_FORMAT),
    "tarfile, gnu": pack_with_tarfile(tarfile.GNU_FORMAT),
    "tarfile, ustar": pack_with_tarfile(tarfile.USTAR_FORMAT),
}


def make_samples(folder: Path) -> list[Path]:
    return [
        ARCHIVES[0],
        write_files_as_archive(folder / "streamed.tar.gz", make_stream_files()),
        write_files_as_archive(folder / "recorded.tar.gz", make_run_files()),
    ]


@pytest.mark.parametrize("packer", PACKERS)
def test_the_same_evidence_packed_again(packer: str, tmp_path: Path) -> None:
    for number, archive in enumerate(make_samples(tmp_path)):
        target = tmp_path / str(number) / "again.tgz"
        target.parent.mkdir()
        PACKERS[packer](archive, target)
        before, after = verify(archive), verify(target)
        findings = {one.rule for one in after.findings if one.rule.startswith("packing.")}
        assert findings
        assert find_error_rules(target) - findings == find_error_rules(archive)
        assert (after.errors, after.lines) == (0, before.lines)
        assert sum(one.rule == "packing.tar" for one in after.findings) <= 1


@pytest.mark.parametrize("packer", ["gzip", "tar -C FOLDER .", "tar FOLDER", "tarfile, pax"])
def test_what_is_changed_is_found_however_it_is_packed(packer: str, tmp_path: Path) -> None:
    files = read_entries(write_files_as_archive(tmp_path / "good.tar.gz", make_stream_files()))
    for number, name in enumerate(V0_FILES):
        spoiled = tmp_path / "spoiled.tar.gz"
        data = files[name]
        other = data[:-1] + bytes((data[-1] ^ 1,))
        spoiled.write_bytes(gzip.compress(build_tar(*{**files, name: other}.items())))
        target = tmp_path / str(number) / "again.tgz"
        target.parent.mkdir()
        PACKERS[packer](spoiled, target)
        assert "integrity.digest" in find_error_rules(target), name


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_a_long_name_in_any_form(form: int, tmp_path: Path) -> None:
    files = {**make_run_files()}
    files[LONG] = b"x"
    archive = write_files_as_archive(tmp_path / "long.tar.gz", files)
    known = find_error_rules(archive)
    plain = read_tar(archive)
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        items = [(one.name, (tar.extractfile(one) or io.BytesIO()).read()) for one in tar]
    target = tmp_path / "again.tar.gz"
    with tarfile.open(target, "w:gz", format=form) as tar:
        for name, data in items:
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), 1.5
            tar.addfile(member, io.BytesIO(data))
    assert find_error_rules(target) - {"packing.gzip", "packing.tar"} == known


HEADERS: dict[str, dict[str, str]] = {
    "another name": {"path": "manifest.json"},
    "a size": {"size": "5"},
    "a link": {"linkpath": "/etc/passwd"},
    "anything else": {"GNU.sparse.name": "x"},
}


@pytest.mark.parametrize("what", HEADERS)
def test_no_header_changes_an_entry(what: str, tmp_path: Path) -> None:
    """Python itself reads some of them otherwise: what is meant by them is not known."""
    target = tmp_path / "again.tar.gz"
    with tarfile.open(target, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        for name, data in read_tar_items(read_tar(ARCHIVES[0])):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.pax_headers = HEADERS[what] if name == HEALTH_FILE else {}
            tar.addfile(member, io.BytesIO(data))
    assert "security.renaming" in find_error_rules(target)


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE]
)
def test_what_is_no_file_is_refused_from_anybody(kind: bytes, tmp_path: Path) -> None:
    target = tmp_path / "again.tar.gz"
    with tarfile.open(target, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo(ARCHIVE_MANIFEST))
        member = tarfile.TarInfo("elsewhere")
        member.type, member.linkname = kind, "/etc/passwd" if kind != tarfile.DIRTYPE else ""
        tar.addfile(member)
    assert verify(target).errors
    assert find_error_rules(target) & {"security.link", "security.fifo", "security.type"}


def test_a_comment_that_was_ours_is_none_of_another(tmp_path: Path) -> None:
    """A digest with a changed letter, or one of another program's header, vouches for nothing."""
    archive = write_files_as_archive(tmp_path / "good.tar.gz", make_stream_files())
    data = archive.read_bytes()
    target = tmp_path / "x.tar.gz"
    for at in range(4, 82):
        changed = bytearray(data)
        changed[at] ^= 2
        target.write_bytes(changed)
        assert verify(target).errors, at
    end = data.index(b"\0", len(SEALED)) + 1
    target.write_bytes(SEALED + b"packed by hand\0" + data[end:])
    assert [one.rule for one in verify(target).findings] == ["packing.gzip"]


def test_a_manifest_of_ours_has_one_form(tmp_path: Path) -> None:
    """And a key that stands twice is found in any."""
    files = read_entries(write_files_as_archive(tmp_path / "good.tar.gz", make_stream_files()))
    manifest = files[ARCHIVE_MANIFEST]
    target = tmp_path / "x.tar.gz"
    for changed, broken in (
        (manifest + b"\n", {"packing.gzip", "packing.manifest"}),
        (
            manifest.replace(b'"run_id"', b'"run_id":"x","run_id"'),
            {"packing.gzip", "packing.manifest", "contract.duplicate_key"},
        ),
    ):
        tar = build_tar(*{**files, ARCHIVE_MANIFEST: changed}.items())
        target.write_bytes(gzip.compress(tar))
        assert {one.rule for one in verify(target).findings} == broken
        target.write_bytes(compress_tar(tar))
        assert "contract.manifest" in {one.rule for one in verify(target).findings}


def test_only_one_folder_is_left(tmp_path: Path) -> None:
    files = read_entries(write_files_as_archive(tmp_path / "good.tar.gz", make_stream_files()))
    inside = {f"run/{name}": data for name, data in files.items()}
    target = tmp_path / "x.tar.gz"
    for more, broken in (
        ("other/events.ndjson", "security.place"),
        (KERNEL_FILE, "integrity.duplicate"),
        ("run/run/events.ndjson", "security.place"),
        ("run/../events.ndjson", "security.traversal"),
    ):
        target.write_bytes(gzip.compress(build_tar(*inside.items(), (more, b""))))
        assert broken in find_error_rules(target), more
    away = {f"../{name}": data for name, data in files.items()}
    target.write_bytes(gzip.compress(build_tar(*away.items())))
    assert "security.traversal" in find_error_rules(target)


def test_a_run_that_tar_packed_is_no_archive(place: Place) -> None:
    """One finding reports it, and how to pack one."""
    write_files(place.root / "runs" / "RUN", make_run_files())
    run_command("tar", "-czf", "run.tgz", "-C", "runs", "RUN", cwd=place.root)
    done = place.stream("verify", place.root / "run.tgz")
    findings = [json.loads(line) for line in done.out.splitlines()]
    assert [one["message"] for one in findings if one["severity"] == "error"] == [
        "there is no manifest.json: `stream archive RUN -o F` packs a run"
    ]
    run_command("rm", "-r", "runs", cwd=place.root)


def test_on_the_command_line(place: Place) -> None:
    target = place.root / "again.tgz"
    PACKERS["tar -C FOLDER ."](ARCHIVES[1], target)
    done = place.stream("verify", target)
    assert done.code == 0
    findings = [json.loads(line) for line in done.out.splitlines()]
    assert {one["severity"] for one in findings} == {"warning"}
    assert "made by another tar" in done.err
    compared = json.loads(place.stream("diff", target, ARCHIVES[1]).out)
    assert "capability_diff_idempotent" in "".join(compared["notes"])
    run_command("rm", "-r", "unpacked", cwd=place.root)
