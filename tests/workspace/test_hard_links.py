"""What is written under one name of a file is recorded for all, and taken over as one file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stream.workspace.apply import apply_plan
from stream.workspace.changes import find_changes
from stream.workspace.snapshot import Store, copy_folder
from tests.workspace.runs import make_plan, make_run
from tests.workspace.trees import FOLDER, Tree, read_tree, text, write_tree

TREE: Tree = {
    b"a": text(b"one\n", 0o755),
    b"alone": text(b"one\n"),
    b"z": FOLDER,
    b"z/far": text(b"far\n"),
}


def make_linked(root: Path) -> Path:
    """`a`, `b` and `z/c` are one file; so are `z/far` and one outside."""
    source = root / "source"
    write_tree(source, TREE)
    for name in ("b", "z/c"):
        (source / name).hardlink_to(source / "a")
    (root / "outside").hardlink_to(source / "z" / "far")
    return source


def inodes(root: Path, *names: str) -> list[int]:
    return [(root / name).stat().st_ino for name in names]


@pytest.mark.parametrize("name", ["a", "b", "z/c"])
def test_what_is_written_is_recorded_for_every_name(tmp_path: Path, name: str) -> None:
    source, target = make_linked(tmp_path), tmp_path / "target"
    with Store(tmp_path) as store:
        snapshot = copy_folder(source, target, store)
        (target / name).write_bytes(b"two\n")
        items = find_changes(snapshot, target, store).items
        assert [(item.path, item.what) for item in items] == [
            (path, "changed") for path in (b"a", b"b", b"z/c")
        ]
        for item in items:
            held = [
                b"".join(store.read_content(state.store_offset, state.size))
                for state in (item.before, item.after)
                if state
            ]
            assert held == [b"one\n", b"two\n"]


def test_a_name_that_is_taken_away_changes_no_other(tmp_path: Path) -> None:
    source, target = make_linked(tmp_path), tmp_path / "target"
    with Store(tmp_path) as store:
        snapshot = copy_folder(source, target, store)
        (target / "b").unlink()
        (target / "z" / "c").unlink()
        (target / "z" / "c").write_bytes(b"other\n")
        (target / "new").hardlink_to(target / "a")
        items = find_changes(snapshot, target, store).items
    assert [(item.path, item.what) for item in items] == [
        (b"b", "removed"),
        (b"new", "added"),
        (b"z/c", "changed"),
    ]


def test_apply_gives_a_file_its_names(tmp_path: Path) -> None:
    source = make_linked(tmp_path)
    after = read_tree(source)
    outside = (tmp_path / "outside").stat()
    for path in (b"a", b"b", b"z/c"):
        after[path] = text(b"two\n", 0o755)
    after[b"z/far"] = text(b"near\n")
    run = make_run(tmp_path / "run", source, after)
    assert len(set(inodes(run / "workspace", "a", "b", "z/c"))) == 1
    plan = make_plan(run)
    assert plan
    assert len(plan.todo) == 4
    apply_plan(plan)
    assert read_tree(source) == after
    assert len(set(inodes(source, "a", "b", "z/c"))) == 1
    # What has a name elsewhere is replaced, and the other name keeps what it had.
    assert (tmp_path / "outside").read_bytes() == b"far\n"
    assert os.path.samestat(outside, (tmp_path / "outside").stat())
    again = make_plan(run)
    assert again
    assert (again.todo, again.done) == ([], 4)
