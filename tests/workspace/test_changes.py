"""Nothing that changed is missed, nothing that did not is listed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stream.errors import InputError
from stream.workspace import changes as changes_module
from stream.workspace import snapshot as snapshot_module
from stream.workspace.changes import ChangeSet, find_changes
from stream.workspace.snapshot import Store, empty_snapshot, take_snapshot
from tests.workspace.trees import FOLDER, Tree, link, text, write_tree

TREE: Tree = {b"a": text(b"one\n"), b"f": FOLDER, b"f/b": text(b"two\n"), b"l": link(b"a")}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_tree(tmp_path / "root", TREE)
    return tmp_path / "root"


def list_changes(changes: ChangeSet) -> dict[bytes, str]:
    return {change.path: change.what for change in changes.items}


def test_a_rewrite_of_the_same_size_with_its_old_time(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes_module, "TICK", -(10**12))  # nothing is compared for being recent
    with Store(tmp_path) as store:
        before = take_snapshot(root, store)
        status = (root / "a").stat()
        (root / "a").write_bytes(b"ONE\n")
        os.utime(root / "a", ns=(status.st_atime_ns, status.st_mtime_ns))
        while (root / "a").stat().st_ctime_ns == status.st_ctime_ns:
            os.utime(root / "a", ns=(status.st_atime_ns, status.st_mtime_ns))
        assert (root / "a").stat().st_mtime_ns == status.st_mtime_ns
        assert list_changes(find_changes(before, root, store)) == {b"a": "changed"}


def test_a_rewrite_within_one_tick_of_the_clock(root: Path, tmp_path: Path) -> None:
    """The snapshot is given the status of the file as it is now: a clock too coarse to show it."""
    with Store(tmp_path) as store:
        before = take_snapshot(root, store)
        (root / "a").write_bytes(b"ONE\n")
        with Store(tmp_path) as other:
            now = take_snapshot(root, other).root
        before.root.statuses, before.root.latest = now.statuses, now.latest
        assert list_changes(find_changes(before, root, store)) == {b"a": "changed"}
        # A clock of files that is far behind ours, and one that is far ahead.
        for distance in (-(10**12), 10**12):
            before.ended += distance
            assert list_changes(find_changes(before, root, store)) == {b"a": "changed"}
            before.ended -= distance
        # A file from the future shows nothing about the others.
        before.root.folders[b"f"].latest = now.latest + 10**9
        assert list_changes(find_changes(before, root, store)) == {b"a": "changed"}


def test_what_is_touched_or_replaced_by_the_same_has_not_changed(
    root: Path, tmp_path: Path
) -> None:
    with Store(tmp_path) as store:
        before = take_snapshot(root, store)
        end = store.end
        os.utime(root / "a")
        (root / "l").unlink()
        (root / "l").symlink_to("a")
        (root / "f" / "new").write_bytes(b"two\n")
        (root / "f" / "new").rename(root / "f" / "b")
        (root / "f").rename(root / "g")
        (root / "g").rename(root / "f")
        changes = find_changes(before, root, store)
        assert (changes.items, changes.unknown) == ([], [])
        assert store.end == end


def test_every_kind_of_change(root: Path, tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        before = take_snapshot(root, store)
        after: Tree = {
            b"a": FOLDER,
            b"a/x": text(b"x"),
            b"f": text(b"now a file"),
            b"l": link(b"b"),
            b"m": FOLDER,
        }
        write_tree(root, after)
        expected = {
            b"a": "changed",
            b"a/x": "added",
            b"f": "changed",
            b"f/b": "removed",
            b"l": "changed",
            b"m": "added",
        }
        changes = find_changes(before, root, store)
        assert list_changes(changes) == expected
        assert list(list_changes(changes)) == sorted(expected)
        assert list_changes(find_changes(empty_snapshot(), root, store)) == dict.fromkeys(
            after, "added"
        )


def test_an_empty_file_that_grows(root: Path, tmp_path: Path) -> None:
    """It begins in the store where the next content does."""
    (root / "f" / "z").write_bytes(b"")
    with Store(tmp_path) as store:
        before = take_snapshot(root, store)
        (root / "f" / "z").write_bytes(b"z")
        assert list_changes(find_changes(before, root, store)) == {b"f/z": "changed"}
        (root / "f" / "z").write_bytes(b"")
        assert not find_changes(before, root, store).items


def test_files_too_large_to_be_kept(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (snapshot_module, changes_module):
        monkeypatch.setattr(module, "LARGEST", 3)
    with Store(tmp_path) as store:
        before = take_snapshot(root, store)
        assert store.end == 1  # of the link
        os.utime(root / "a")
        (root / "f" / "b").write_bytes(b"TWO\n")
        (change,) = find_changes(before, root, store).items
        assert change.path == b"f/b"
        assert change.before
        assert change.after
        assert not change.before.is_kept
        assert not change.after.is_kept
        assert store.end == 1
        assert change.before.digest != change.after.digest


def test_a_root_that_is_gone(root: Path, tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        before = take_snapshot(root, store)
        with pytest.raises(InputError, match="none: no such file"):
            find_changes(before, tmp_path / "none", store)


def test_a_root_that_leads_elsewhere(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    with Store(tmp_path) as store:
        before = take_snapshot(tmp_path / "link", store)
        assert not find_changes(before, tmp_path / "link", store).items
        root.rename(tmp_path / "moved")
        (tmp_path / "elsewhere").mkdir()
        root.symlink_to(tmp_path / "elsewhere")
        for place in (root, tmp_path / "link"):
            with pytest.raises(InputError, match="has become a link to another folder"):
                find_changes(before, place, store)
