"""What is a hole in a file stays one, wherever the file goes, and costs neither room nor time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.files.trees import Piece, end_file, fill_holes, is_sparse, pieces_of, write_piece
from stream.records.run import CHANGES_FILE, decode_change
from stream.workspace import changes, listing
from stream.workspace import snapshot as snapshot_module
from stream.workspace.apply import apply_plan
from stream.workspace.changes import find_changes
from stream.workspace.snapshot import LARGEST, Store, copy_folder, take_snapshot
from tests.cli.command import Place
from tests.cli.conftest import check_place, make_place
from tests.recorder.runs import observe
from tests.workspace.runs import make_plan, make_run
from tests.workspace.trees import read_tree

HUGE = 10 << 30  #: bytes: what nobody waits for
LARGE = LARGEST + (4 << 20)
BLOCK = 1 << 16

PIECES = st.lists(
    st.integers(1, 3 * BLOCK)
    | st.builds(lambda byte, size: bytes([byte]) * size, st.integers(0, 2), st.integers(1, BLOCK)),
    max_size=6,
)


@pytest.fixture
def holes(tmp_path: Path) -> Path:
    sparse = write_pieces(tmp_path / "sparse", [BLOCK])
    if not is_sparse(sparse.stat()):
        pytest.skip("the file system of the temporary folder has no holes")
    sparse.unlink()
    return tmp_path


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = make_place(tmp_path)
    yield place
    check_place(place)


def write_pieces(path: Path, pieces: list[Piece]) -> Path:
    with path.open("wb", buffering=0) as file:
        for piece in pieces:
            write_piece(file.fileno(), piece)
        end_file(file.fileno())
    return path


def disk_bytes(path: Path) -> int:
    """Bytes on the disk."""
    return path.stat().st_blocks * 512


@given(pieces=PIECES, other=PIECES)
def test_holes_change_no_content(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[Piece], other: list[Piece]
) -> None:
    root = tmp_path_factory.mktemp("holes")
    whole, others = b"".join(fill_holes(pieces)), b"".join(fill_holes(other))
    (root / "source").mkdir()
    file = write_pieces(root / "source" / "f", pieces)
    with file.open("rb") as opened:
        found = list(pieces_of(opened.fileno(), os.fstat(opened.fileno())))
    assert b"".join(fill_holes(found)) == file.read_bytes() == whole
    copied = root / "copy" / "f"
    with Store(root) as store:
        store.add_piece(b"so that nothing is where a block begins")
        snapshot = copy_folder(root / "source", root / "copy", store)
        record = snapshot.root.entry_records()[b"f"]
        assert (
            b"".join(store.read_content(record.store_offset, record.size))
            == copied.read_bytes()
            == whole
        )
        assert disk_bytes(copied) <= disk_bytes(file)
        copied.write_bytes(whole)
        assert not find_changes(snapshot, root / "copy", store).items
        write_pieces(copied, other)
        items = find_changes(snapshot, root / "copy", store).items
        assert bool(items) == (whole != others)
        for after in (item.after for item in items):
            assert after
            assert b"".join(store.read_content(after.store_offset, after.size)) == others


def test_a_huge_file_of_holes(holes: Path) -> None:
    source, target = holes / "source", holes / "target"
    source.mkdir()
    write_pieces(source / "one", [b"x", HUGE])
    write_pieces(source / "other", [HUGE, b"x"])
    with Store(holes) as store:
        snapshot = copy_folder(source, target, store)
        for name in ("one", "other"):
            assert (target / name).stat().st_size == HUGE + 1
            assert disk_bytes(target / name) <= disk_bytes(source / name)
        assert not find_changes(snapshot, target, store).items
        here = take_snapshot(source, store)
        os.utime(source / "one")
        assert not find_changes(here, source, store).items


def test_what_is_written_into_a_hole(holes: Path) -> None:
    source, run = holes / "source", holes / "run"
    source.mkdir()
    write_pieces(source / "disk", [b"begin", LARGE])
    run.mkdir()
    make_run(run, source, {b"disk": read_tree(source)[b"disk"]})
    assert not (run / CHANGES_FILE).read_bytes()

    with Store(run) as store:
        snapshot = take_snapshot(run / "workspace", store)
        with (run / "workspace" / "disk").open("r+b") as file:
            file.seek(LARGE // 2)
            file.write(b"new")
        found = find_changes(snapshot, run / "workspace", store)
        for path in (CHANGES_FILE, "artifacts/fs_diff.patch"):
            (run / path).unlink()
        summary = listing.write_changes(
            found, store, run / "artifacts/fs_diff.patch", run / CHANGES_FILE, git="git", exited=0
        )
    assert summary.not_in_patch == {"too-large": 1}
    change = decode_change((run / CHANGES_FILE).read_bytes())
    for state, folder in ((change.before, source), (change.after, run / "workspace")):
        assert state
        assert state.sha256 == sha256(folder / "disk")

    plan = make_plan(run)
    assert plan
    assert [one.path for one in plan.todo] == ["disk"]
    apply_plan(plan)
    assert sha256(source / "disk") == sha256(run / "workspace" / "disk")
    assert disk_bytes(source / "disk") <= disk_bytes(run / "workspace" / "disk") < LARGE // 2


def sha256(path: Path) -> str:
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        ([b"x" * BLOCK, bytes(BLOCK)], [b"x" * BLOCK, BLOCK], True),
        ([b"x", BLOCK], [b"x", bytes(BLOCK)], True),
        ([b"x" * BLOCK, bytes(BLOCK)], [BLOCK, b"x" * BLOCK], False),
        ([b"x", BLOCK], [b"x", b"y" * BLOCK], False),
        ([bytes(BLOCK)], [2 * BLOCK], False),
        ([2 * BLOCK], [bytes(BLOCK)], False),
    ],
)
def test_a_file_that_gains_or_loses_holes(
    holes: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: list[Piece],
    after: list[Piece],
    is_same: bool,
) -> None:
    """Also where it is kept with its content on one side, and by its digest on the other."""
    for module in (snapshot_module, changes, listing):
        monkeypatch.setattr(module, "LARGEST", BLOCK // 2)
    file = write_pieces(holes / "file", before)
    with Store(holes / "..") as store:
        snapshot = take_snapshot(holes, store)
        write_pieces(file, after)
        assert [item.what for item in find_changes(snapshot, holes, store).items] == (
            [] if is_same else ["changed"]
        )


def test_from_one_end_to_the_other(place: Place, holes: Path) -> None:
    disk = write_pieces(place.workspace / "disk", [HUGE])
    image = write_pieces(place.workspace / "image", [b"image", 8 << 20])
    run = observe(
        place, "--run-id", "one", "--", "sh", "-c", "printf new | dd of=image conv=notrunc"
    )
    assert list(run.changes) == ["image"]
    for name in ("disk", "image"):
        assert disk_bytes(run.folder / "workspace" / name) < 1 << 20
    assert disk_bytes(run.folder / "artifacts" / "fs_diff.patch") < 1 << 20
    assert place.stream("apply", run.folder).code == 0
    assert image.read_bytes().startswith(b"newge\0")
    assert disk_bytes(image) < 1 << 20
    assert disk_bytes(disk) < 1 << 20
