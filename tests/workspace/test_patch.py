"""What every patch does: it makes the after-state of the before-state, byte for byte; and what
it cannot take is in the listing."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given

from stream.records.run import FileState, FsChange, decode_change
from stream.workspace.changes import find_changes
from stream.workspace.listing import Summary, exact_path, write_changes
from stream.workspace.patch import find_git
from stream.workspace.snapshot import Store, copy_folder
from tests.sweeping import thorough
from tests.workspace.trees import (
    FOLDER,
    GIT_NAMES,
    NAMES,
    Node,
    Tree,
    changed_trees,
    git,
    link,
    read_tree,
    text,
    write_tree,
)

MANY = thorough(150, suppress_health_check=[HealthCheck.too_slow])


class Written:
    """A copy of a tree, changed, and what was written about it."""

    def __init__(self, scratch: Path, before: Tree, after: Tree, **how: Any) -> None:
        self.source = scratch / "source"
        self.workspace = scratch / "workspace"
        self.patch = scratch / "fs_diff.patch"
        self.listing = scratch / "fs_changes.jsonl"
        write_tree(self.source, before)
        with Store(scratch) as store:
            snapshot = copy_folder(self.source, self.workspace, store)
            self.skipped = snapshot.skipped
            assert read_tree(self.workspace) == {
                path: node for path, node in before.items() if node.kind != "fifo"
            }
            write_tree(self.workspace, after)
            self.changes = find_changes(snapshot, self.workspace, store)
            self.summary: Summary = write_changes(
                self.changes,
                store,
                self.patch,
                self.listing,
                **{"git": find_git(), "exited": 0, **how},
            )
        self.records = [decode_change(line) for line in self.listing.read_bytes().splitlines()]

    @property
    def by_path(self) -> dict[bytes, FsChange]:
        return {exact_path(record.path, record.path_base64): record for record in self.records}


def git_tree(tree: Tree) -> Tree:
    """As much of it as git can carry."""
    return {
        path: node._replace(mode=node.mode & 0o100 if node.kind == "file" else 0)
        for path, node in tree.items()
        if node.kind != "dir"
    }


def check_patch(before: Tree, after: Tree, *, is_repository: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="stream-test-") as name:
        scratch = Path(name)
        written = Written(scratch, before, after)
        check_listing(written, before, after)
        target = scratch / "target"
        write_tree(target, before)
        if is_repository:
            git(target, "init", "-q")
            # The attributes of the user's own files would convert line ends.
            (target / ".git" / "info" / "attributes").write_text("* -text -filter -ident\n")
        if written.patch.stat().st_size:
            # What is called .git in a generated tree is no repository.
            elsewhere = {} if is_repository else {"GIT_DIR": str(scratch / "none")}
            git(target, "apply", written.patch, **elsewhere)
        expected = git_tree(before)
        for path, record in written.by_path.items():
            if record.in_patch:
                expected.pop(path, None)
                if path in git_tree(after):
                    expected[path] = git_tree(after)[path]
        found = git_tree(read_tree(target))
        if is_repository:
            found = {path: node for path, node in found.items() if not path.startswith(b".git/")}
        assert found == expected


def check_listing(written: Written, before: Tree, after: Tree) -> None:
    """Every difference, recomputed here, is in it, and nothing else is."""
    different = {
        path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
    }
    assert written.by_path.keys() == different
    assert [exact_path(r.path, r.path_base64) for r in written.records] == sorted(different)
    for path, record in written.by_path.items():
        check_state(record.before, before.get(path))
        check_state(record.after, after.get(path))
        assert record.in_patch == (record.not_in_patch is None)


def check_state(state: FileState | None, node: Node | None) -> None:
    from hashlib import sha256

    assert (node is None) == (state is None)
    if node is None or state is None:
        return
    assert (state.kind, int(state.mode, 8)) == (node.kind, node.mode)
    if node.kind in ("file", "symlink"):
        assert (state.bytes, state.sha256) == (len(node.data), sha256(node.data).hexdigest())
    if node.kind == "symlink":
        assert isinstance(state.target, str)
        assert exact_path(state.target, state.target_base64) == node.data


LOOP = {b"a": link(b"b"), b"b": link(b"./a")}
FULL = {b"a": FOLDER, b"a/f": text(b"f"), b"a/g": FOLDER}


@pytest.mark.parametrize("is_repository", [False, True])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({b"a": link(b"a")}, FULL),
        ({b"a": link(b"a")}, {b"a": FOLDER, b"a/a": link(b"a")}),
        (LOOP, FULL | {b"b": link(b"./a")}),
        (LOOP, FULL),
        (
            {b"x": FOLDER, b"x/a": link(b"../x/a/y")},
            {b"x": FOLDER, b"x/a": FOLDER, b"x/a/f": text(b"")},
        ),
        (LOOP, {b"a": text(b"f")}),
        (FULL, LOOP),
    ],
)
def test_links_that_lead_to_themselves(before: Tree, after: Tree, is_repository: bool) -> None:
    """One of them would have git refuse all of a patch."""
    other = {b"other": text(b"in any case")}
    check_patch(before, after | other, is_repository=is_repository)


def test_a_link_that_moves_into_a_folder_of_its_name() -> None:
    """As a rename, even an exact one, git refuses it."""
    before = {b"a": text(b"a"), b"b": link(b"a")}
    after = {b"a": text(b"a"), b"b": FOLDER, b"b/a": link(b"a")}
    check_patch(before, after, is_repository=False)


@pytest.mark.parametrize("target", [b"none", b"x", b"d", b"../out", b"/a", b"d/../x"])
def test_other_links_are_no_obstacle(tmp_path: Path, target: bytes) -> None:
    around = {b"d": FOLDER, b"d/f": text(b"d"), b"x": text(b"x")}
    before, after = around | {b"a": link(target)}, around | FULL
    check_patch(before, after, is_repository=False)
    assert Written(tmp_path, before, after).by_path[b"a/f"].in_patch


@MANY
@given(changed_trees())
def test_the_patch_outside_a_repository(trees: tuple[Tree, Tree]) -> None:
    check_patch(*trees, is_repository=False)


@MANY
@given(changed_trees())
def test_the_patch_in_a_repository(trees: tuple[Tree, Tree]) -> None:
    check_patch(*trees, is_repository=True)


@MANY
@given(changed_trees(NAMES | GIT_NAMES))
def test_the_patch_with_names_that_git_refuses(trees: tuple[Tree, Tree]) -> None:
    check_patch(*trees, is_repository=False)
