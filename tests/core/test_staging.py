"""The folder that a run has for itself: made where there is a place, and gone afterwards."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from stream.boundary import scripts
from stream.errors import OutputError
from stream.files.trees import remove_tree


def make_nested(root: Path) -> Path:
    deep = root / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (deep / "file").touch()
    (root / "link").symlink_to("/etc")
    (root / "locked").mkdir(mode=0o000)
    return root


def test_a_tree_is_removed(tmp_path: Path) -> None:
    remove_tree(make_nested(tmp_path / "root"))
    assert list(tmp_path.iterdir()) == []
    assert Path("/etc/passwd").exists()


def test_a_path_longer_than_the_system_takes(tmp_path: Path) -> None:
    """A probe can make one, folder by folder."""
    root, here = tmp_path / "root", os.open(".", os.O_RDONLY)
    root.mkdir()
    try:
        os.chdir(root)
        for _ in range(50):
            Path("x" * 200).mkdir()
            os.chdir("x" * 200)
    finally:
        os.fchdir(here)
        os.close(here)
    remove_tree(root)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_too_small_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing of it stays, in the tree neither."""
    (tmp_path / "probes").mkdir()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))

    def refused(self: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", refused)
    with (
        pytest.raises(OutputError, match=rf"^{scratch}/stream-\w+: no space left on device$"),
        scripts.stage_probes(tmp_path / "probes", tmp_path / "probes"),
    ):
        pass
    assert list(scratch.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["probes", "scratch"]


def test_what_can_be_removed_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first failure is reported, and the rest of the tree is gone all the same."""
    real = os.unlink

    def refused(name: bytes | Path, *, dir_fd: int | None = None) -> None:
        if os.fsencode(name).endswith(b"held"):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        real(name, dir_fd=dir_fd)

    root = make_nested(tmp_path / "root")
    (root / "a" / "held").touch()
    monkeypatch.setattr(os, "unlink", refused)
    with pytest.raises(OutputError, match=rf"^{root}: operation not permitted$"):
        remove_tree(root)
    assert sorted(path.name for path in root.rglob("*")) == ["a", "held"]


def test_a_tree_is_removed_with_one_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    root = make_nested(tmp_path / "root")
    (root / "locked").chmod(0o700)
    monkeypatch.setattr(os, "open", refused)
    remove_tree(root)
    assert list(tmp_path.iterdir()) == []
    assert Path("/etc/passwd").exists()
