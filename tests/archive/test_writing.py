"""The same evidence gives the same tar, and nothing looks whole that is not."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.archive.tar import encode_header, padded_to_blocks
from stream.archive.writer import (
    ENTRIES,
    FILE_PARTS,
    Entry,
    FilePart,
    entries_of_run,
    write_archive,
)
from stream.errors import InputError, OutputError
from stream.evidence.consistency import LONGEST_NAME
from stream.files.append import RecordedFile
from stream.pipeline import Batch
from stream.records.artifacts import ARCHIVE_MANIFEST, KERNEL_FILE, V0_FILES
from stream.sinks.archive import Archive
from stream.verify.session import verify
from tests.archive.samples import (
    ARCHIVES,
    RUN,
    Files,
    find_error_rules,
    make_entries,
    make_run_files,
    make_small_files,
    pack_run,
    read_tar,
    read_tar_items,
    update_digests,
    write_files,
    write_files_as_archive,
    write_run_folder,
)
from tests.cli.command import STREAM


@pytest.mark.parametrize("path", ARCHIVES, ids=lambda path: path.stem)
def test_the_reference_is_written_again_byte_for_byte(path: Path, tmp_path: Path) -> None:
    files = dict(read_tar_items(read_tar(path)))
    run_id = json.loads(files.pop(ARCHIVE_MANIFEST))["run_id"]
    assert read_tar(write_files_as_archive(tmp_path / "a.tar.gz", files, run_id)) == read_tar(path)


def test_the_order_is_the_contracts(tmp_path: Path) -> None:
    files = make_small_files(tmp_path / "run")
    target = tmp_path / "a.tar.gz"
    write_archive(target, list(reversed(make_entries(files))), RUN)
    names = [name for name, _ in read_tar_items(read_tar(target))]
    others = sorted({*files} - {*V0_FILES}, key=str.encode)
    assert names == [ARCHIVE_MANIFEST, *V0_FILES, *others]


def test_other_programs_read_it(tmp_path: Path) -> None:
    files = make_small_files(tmp_path / "run")
    long_name = "artifacts/" + "n" * (LONGEST_NAME - len("artifacts/"))
    files[long_name] = b"long"
    files["artifacts/é.txt"] = b"accent"
    files = update_digests(files)
    target = write_files_as_archive(tmp_path / "a.tar.gz", files)
    with tarfile.open(target) as tar:
        assert {*tar.getnames()} == {*files, ARCHIVE_MANIFEST}
        for member in tar:
            assert (member.mtime, member.mode, member.uid, member.gid) == (0, 0o644, 0, 0)
            assert member.isreg()
            if member.name != ARCHIVE_MANIFEST:
                content = tar.extractfile(member)
                assert content
                assert content.read() == files[member.name]
    listed = subprocess.run(["tar", "tzf", target], capture_output=True, check=True)
    assert long_name.encode() in listed.stdout.splitlines()
    subprocess.run(["gzip", "-t", target], check=True)
    assert find_error_rules(target) == set()


@given(st.integers(0, 8**12))
def test_a_header_states_its_size(size: int) -> None:
    member = tarfile.TarInfo.frombuf(encode_header(b"a/b", size), "utf-8", "strict")
    assert (member.name, member.size) == ("a/b", size)


@given(st.binary(max_size=2000))
def test_padding(data: bytes) -> None:
    assert len(padded_to_blocks(data)) % 512 == 0
    assert padded_to_blocks(data).startswith(data)


# ---------------------------------------------------------------- determinism

_ARCHIVE = """
import os, sys
os.umask(int(sys.argv[3], 8))
from pathlib import Path
from tests.archive.samples import pack_run
pack_run(Path(sys.argv[1]), Path(sys.argv[2]))
"""
ROUND = [
    ("UTC", "022", "0", "C"),
    ("Asia/Kathmandu", "077", "1", "C.UTF-8"),
    ("America/St_Johns", "000", "random", "tr_TR.UTF-8"),
]


def test_the_same_evidence_gives_the_same_tar(tmp_path: Path) -> None:
    folder = write_run_folder(tmp_path / "run")
    made = []
    for number, (zone, mask, seed, locale) in enumerate(ROUND):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(folder, copy)
        for path in sorted(copy.rglob("*"), reverse=bool(number % 2)):
            os.utime(path, (number * 1e8, number * 1e8))
            path.chmod(0o700 if number else 0o755)
        target = tmp_path / f"{number}.tar.gz"
        env = {**os.environ, "TZ": zone, "PYTHONHASHSEED": seed, "LC_ALL": locale}
        argv = [sys.executable, "-c", _ARCHIVE, str(copy), str(target), mask]
        subprocess.run(argv, env=env, check=True)
        made.append(read_tar(target))
    assert made[0] == made[1] == made[2]
    assert len(made[0]) > 10_000


@pytest.mark.usefixtures("needs_root")
def test_whose_files_they_are_does_not_matter(tmp_path: Path) -> None:
    folder = write_run_folder(tmp_path / "run")
    pack_run(folder, tmp_path / "a.tar.gz")
    for path in folder.rglob("*"):
        os.chown(path, 12345, 23456)
    pack_run(folder, tmp_path / "b.tar.gz")
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()


def test_a_gzip_header_without_name_and_time(tmp_path: Path) -> None:
    target = write_files_as_archive(tmp_path / "a.tar.gz", make_small_files(tmp_path / "run"))
    data = target.read_bytes()
    assert data[:10] == b"\x1f\x8b\x08\x10\0\0\0\0\0\x03"
    assert data[10:82] == b"sha256:" + sha256(data[82:]).hexdigest().encode() + b"\0"


# ---------------------------------------------------------------- what goes in


def test_what_an_agent_left_in_the_run_folder_stays_out(tmp_path: Path) -> None:
    folder = write_run_folder(tmp_path / "run")
    pack_run(folder, tmp_path / "a.tar.gz")
    (folder / "workspace").mkdir()
    (folder / "workspace" / "secret").write_text("mine")
    (folder / "workspace" / "link").symlink_to("/etc/passwd")
    (folder / ".hidden").write_text("x")
    (folder / "artifacts" / ".hidden").write_text("x")
    (folder / "notes.txt").write_text("x")
    pack_run(folder, tmp_path / "b.tar.gz")
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()


def _make_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def _make_fifo(path: Path) -> None:
    os.mkfifo(path)


def _make_folder_link(path: Path) -> None:
    path.symlink_to("/etc")


@pytest.mark.parametrize("plant", [_make_link, _make_fifo, _make_folder_link])
@pytest.mark.parametrize("place", ["artifacts/x", "layers/x", "boundary.ndjson"])
def test_a_planted_link_is_refused(tmp_path: Path, plant: object, place: str) -> None:
    folder = write_run_folder(tmp_path / "run")
    assert callable(plant)
    plant(folder / place)
    with pytest.raises(InputError, match=f"{place}: a (link|fifo), not a regular file"):
        pack_run(folder, tmp_path / "a.tar.gz")
    assert not [*tmp_path.glob("a.tar.gz*")]
    assert verify(folder).errors


@pytest.mark.parametrize("name", ["artifacts", "layers"])
def test_a_folder_that_is_a_link_is_refused(tmp_path: Path, name: str) -> None:
    folder = write_run_folder(tmp_path / "run")
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=f"{name}: a link"):
        pack_run(folder, tmp_path / "a.tar.gz")


@pytest.mark.parametrize("run_id", ["a.b", "../x", "", "é", 5, None])
def test_a_run_id_that_the_contract_would_not_have(tmp_path: Path, run_id: object) -> None:
    folder = write_run_folder(tmp_path / "run")
    (folder / "metadata.json").write_text(json.dumps({"run_id": run_id}))
    with pytest.raises(InputError, match=r"metadata\.json"):
        pack_run(folder, tmp_path / "a.tar.gz")


def test_missing_files_are_given_or_missed(tmp_path: Path) -> None:
    folder = write_run_folder(tmp_path / "run")
    data = (folder / "capability-surface.json").read_bytes()
    (folder / "capability-surface.json").unlink()
    target = tmp_path / "a.tar.gz"
    with pytest.raises(InputError, match=r"capability-surface\.json: it is not there"):
        pack_run(folder, target)
    missing = {"capability-surface.json": data, KERNEL_FILE: b"no"}
    write_into_sink(target, Batch(ENTRIES, entries_of_run(folder, {})), missing=missing)
    assert find_error_rules(target) == set()


# ---------------------------------------------------------------- the sink


def write_into_sink(target: Path, *batches: Batch[Any], missing: Files | None = None) -> None:
    """Write batches into the sink, and leave it."""

    async def pack() -> None:
        async with Archive(target, lambda _: (RUN, missing or {})).open() as write:
            for batch in batches:
                await write(batch)

    anyio.run(pack)


def test_parts_and_entries_make_the_archive_that_entries_make(tmp_path: Path) -> None:
    files = make_small_files(tmp_path / "run")
    data = files.pop(KERNEL_FILE)
    parts = [FilePart(KERNEL_FILE, data[at : at + 1000]) for at in range(0, len(data), 1000)]
    batches = (Batch(FILE_PARTS, parts[:1]), Batch(ENTRIES, make_entries(files)))
    write_into_sink(tmp_path / "a.tar.gz", *batches, Batch(FILE_PARTS, parts[1:]))
    whole = write_files_as_archive(tmp_path / "b.tar.gz", {**files, KERNEL_FILE: data})
    assert (tmp_path / "a.tar.gz").read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("times", [1, 2])
def test_a_file_is_read_once_where_its_writer_reports_what_it_wrote(
    tmp_path: Path, times: int
) -> None:
    data = b"as it was\n"
    known = RecordedFile(sha256(data).hexdigest(), len(data), len(data)) if times == 1 else None
    file = _Changing(*[data] * times)  # it can be opened so many times
    batch = Batch(
        ENTRIES,
        [*make_entries(make_small_files(tmp_path / "run")), Entry("artifacts/x", file.open, known)],
    )
    write_into_sink(tmp_path / "a.tar.gz", batch)
    assert dict(read_tar_items(read_tar(tmp_path / "a.tar.gz")))["artifacts/x"] == data


def test_a_sink_that_is_left_by_a_failure_leaves_nothing(tmp_path: Path) -> None:
    async def fail() -> None:
        async with Archive(tmp_path / "a.tar.gz", lambda _: (RUN, {})).open() as write:
            await write(Batch(FILE_PARTS, [FilePart(KERNEL_FILE, b"{}\n")]))
            raise OutputError("no room")

    with pytest.raises(OutputError, match="no room"):
        anyio.run(fail)
    assert not [*tmp_path.iterdir()]


# ---------------------------------------------------------------- a place of its own


def test_what_is_there_is_replaced_only_by_force(tmp_path: Path) -> None:
    files = make_small_files(tmp_path / "run")
    target = tmp_path / "a.tar.gz"
    target.write_text("mine")
    with pytest.raises(OutputError, match="--force replaces it"):
        write_archive(target, make_entries(files), RUN)
    assert target.read_text() == "mine"
    write_archive(target, make_entries(files), RUN, force=True)
    assert find_error_rules(target) == set()


class _Changing:
    """A file that has other bytes each time that it is opened."""

    def __init__(self, *contents: bytes) -> None:
        self._contents = [*contents]

    def open(self) -> io.BytesIO:
        return io.BytesIO(self._contents.pop(0))


@pytest.mark.parametrize("later", [b"as it waS\n", b"as it was\nand more", b"", b"as it"])
def test_a_file_that_changes_meanwhile(tmp_path: Path, later: bytes) -> None:
    files = make_small_files(tmp_path / "run")
    changing = Entry("artifacts/x", _Changing(b"as it was\n", later).open)
    with pytest.raises(OutputError, match="artifacts/x: it was changed"):
        write_archive(tmp_path / "a.tar.gz", [*make_entries(files), changing], RUN)
    assert not [*tmp_path.glob("a.tar.gz*")]


def test_a_file_that_grows_meanwhile(tmp_path: Path) -> None:
    folder = write_run_folder(tmp_path / "run")
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 65:  # in the second pass
            with (folder / "artifacts" / "out.txt").open("ab") as file:
                file.write(b"more\n")

    (folder / "artifacts" / "out.txt").write_bytes(bytes(30 << 20))
    with pytest.raises(OutputError, match=r"out\.txt: it was changed"):
        pack_run(folder, tmp_path / "a.tar.gz", checkpoint=look)
    assert not [*tmp_path.glob("a.tar.gz*")]


def test_no_room(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk."""
    folder = write_run_folder(tmp_path / "run")
    (folder / "artifacts" / "noise").write_bytes(os.urandom(1 << 20))
    script = 'ulimit -f 200; exec "$@"'
    words = (STREAM, "archive", str(folder), "-o", str(tmp_path / "a.tar.gz"))
    argv = ["bash", "-c", script, "bash", *words]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"stream: {tmp_path}/a.tar.gz: file too large\n"
    assert not [*tmp_path.glob("a.tar.gz*")]


_SLOW = """
import sys
from pathlib import Path
from tests.archive.samples import pack_run
looks = 0
def look():
    global looks
    looks += 1
    if looks == 85:
        print("now", flush=True)
        sys.stdin.read()
pack_run(Path(sys.argv[1]), Path(sys.argv[2]), checkpoint=look)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_killed_while_writing(tmp_path: Path, number: int) -> None:
    folder = write_files(
        tmp_path / "run",
        update_digests({**make_run_files(), "artifacts/noise": os.urandom(32 << 20)}),
    )
    target = tmp_path / "a.tar.gz"
    child = subprocess.Popen(
        [sys.executable, "-c", _SLOW, folder, target],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout
        assert child.stdout.readline() == b"now\n"
        assert (tmp_path / "a.tar.gz.partial").stat().st_size > 1 << 20
        child.send_signal(number)
    assert not target.exists()
    partial = tmp_path / "a.tar.gz.partial"
    assert find_error_rules(partial) <= {"integrity.truncated"}
    assert verify(partial).errors
    pack_run(folder, target)  # what is left over is in nobody's way
    assert find_error_rules(target) == set()
    assert not partial.exists()


def test_interrupted_by_hand(tmp_path: Path) -> None:
    folder = write_run_folder(tmp_path / "run")
    with (folder / "artifacts" / "noise").open("wb") as file:
        file.truncate(64 << 30)  # of nothing: it would take minutes
    target = tmp_path / "a.tar.gz"
    child = subprocess.Popen([STREAM, "archive", folder, "-o", target], stderr=subprocess.PIPE)
    with child:
        while not (tmp_path / "a.tar.gz.partial").exists():
            assert child.poll() is None
        child.send_signal(signal.SIGINT)
        assert child.stderr
        assert child.stderr.read() == b"stream: interrupted\n"
    assert child.returncode == 130
    assert not [*tmp_path.glob("a.tar.gz*")]


def test_the_promise_is_about_the_tar(tmp_path: Path) -> None:
    """Another library that compresses is no reason to doubt."""
    target = write_files_as_archive(tmp_path / "a.tar.gz", make_small_files(tmp_path / "run"))
    again = subprocess.run(["gzip", "-n", "-6"], input=read_tar(target), capture_output=True)
    (tmp_path / "b.tar.gz").write_bytes(again.stdout)
    assert gzip.decompress(again.stdout) == read_tar(target)
    assert find_error_rules(tmp_path / "b.tar.gz") == set()
