"""A copy holds what could be copied, and lists what could not."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import stat
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stream.errors import InputError, OutputError
from stream.files.trees import CHUNK, remove_tree
from stream.workspace.changes import find_changes
from stream.workspace.snapshot import (
    Snapshot,
    SnapshotCancelled,
    Store,
    copy_folder,
    empty_snapshot,
    take_snapshot,
)
from tests.workspace.trees import FOLDER, Node, Tree, link, read_tree, text, write_tree

TREE: Tree = {
    b"a": text(b"one\n"),
    b"empty": text(b""),
    b"run": text(b"#!/bin/sh\n", 0o755),
    b"secret": text(b"s", 0o600),
    b"open": text(b"o", 0o666),
    b"\xff\n": text(b"name"),
    b"large": text(bytes(range(256)) * 10_000),
    b"link": link(b"\xfe/nowhere"),
    b"folder": Node("dir", 0o555),
    b"folder/inner": Node("dir", 0o1777),
    b"folder/inner/b": text(b"b", 0o444),
}


def skip_reasons(snapshot: Snapshot) -> dict[bytes, str]:
    return {item.path: item.reason for item in snapshot.skipped}


def list_status(folder: Path) -> dict[str, tuple[int, ...]]:
    """Of everything below: what a reader must not have changed."""
    return {
        str(path): (s.st_mode, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino)
        for path in sorted(folder.rglob("*"))
        for s in [path.lstat()]
    }


@pytest.fixture
def place() -> Iterator[Path]:
    """Open to other users, as pytest's own folders are not."""
    root = Path(tempfile.mkdtemp(prefix="stream-test-", dir="/tmp"))
    root.chmod(0o777)
    yield root
    assert not [path for path in root.iterdir() if path.name.startswith((".patch", "tmp"))]
    shutil.rmtree(root)


def run_in_child(work: Callable[[], None], user: int | None = None) -> None:
    """Its limits and its identity are its own."""
    child = os.fork()
    if not child:
        code = 1
        try:
            if user:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def run_as_user(work: Callable[[], None]) -> None:
    """In a process that is not root."""
    run_in_child(work, None if os.geteuid() else 65534)


@pytest.mark.parametrize("who", [lambda work: work(), run_as_user])
def test_a_copy_is_the_same(place: Path, who: Callable[[Callable[[], None]], None]) -> None:
    def work() -> None:
        source, target = place / "source", place / "target"
        write_tree(source, TREE)
        os.utime(source / "a", ns=(1, 1_234_567_890))
        os.utime(source / "folder", ns=(1, 2_000_000_001))
        before = list_status(source)
        with Store(place) as store:
            snapshot = copy_folder(source, target, store)
            assert read_tree(target) == TREE
            for path in source.rglob("*"):
                one, other = path.lstat(), (target / path.relative_to(source)).lstat()
                assert (one.st_mtime_ns, one.st_mode) == (other.st_mtime_ns, other.st_mode)
                assert one.st_ino != other.st_ino
            assert list_status(source) == before
            assert snapshot.count_entries() == len(TREE)
            assert not snapshot.skipped
            changes = find_changes(snapshot, target, store)
            assert (changes.items, changes.unknown) == ([], [])
        remove_tree(target)
        remove_tree(source)
        assert not list(place.iterdir())

    who(work)


def test_the_umask_plays_no_part(place: Path) -> None:
    write_tree(place / "source", {b"a": text(b"a", 0o666), b"b": text(b"", 0o777)})
    old = os.umask(0o077)
    try:
        with Store(place) as store:
            copy_folder(place / "source", place / "target", store)
    finally:
        os.umask(old)
    assert read_tree(place / "target") == read_tree(place / "source")


def test_what_may_not_be_read(place: Path) -> None:
    def work() -> None:
        source = place / "source"
        write_tree(
            source,
            {b"a": text(b"a"), b"no": text(b"n", 0o000), b"shut/x": text(b"x")}
            | {b"shut": FOLDER, b"blind": FOLDER, b"blind/y": text(b"y")},
        )
        (source / "shut").chmod(0o000)
        (source / "blind").chmod(0o444)
        with Store(place) as store:
            snapshot = copy_folder(source, place / "target", store)
            assert skip_reasons(snapshot) == dict.fromkeys([b"blind", b"no", b"shut"], "unreadable")
            assert read_tree(place / "target") == {b"a": text(b"a")}
            here = take_snapshot(source, store)
            assert skip_reasons(here) == skip_reasons(snapshot)
            found = find_changes(here, source, store)
            assert not found.items
        (source / "shut").chmod(0o700)
        (source / "blind").chmod(0o700)
        remove_tree(source)
        remove_tree(place / "target")

    run_as_user(work)


def test_what_an_agent_shuts(place: Path) -> None:
    def work() -> None:
        source = place / "source"
        write_tree(source, {b"a": text(b"a"), b"f": FOLDER, b"f/x": text(b"x")})
        with Store(place) as store:
            snapshot = take_snapshot(source, store)
            (source / "a").chmod(0o000)
            (source / "f").chmod(0o000)
            found = find_changes(snapshot, source, store)
        assert [(c.path, c.what) for c in found.items] == [(b"a", "changed"), (b"f", "changed")]
        assert [(u.path, u.reason) for u in found.unknown] == [
            (b"a", "unreadable"),
            (b"f", "unreadable"),
        ]
        remove_tree(source)

    run_as_user(work)


def test_special_files(place: Path) -> None:
    source = place / "source"
    write_tree(source, {b"a": text(b"a"), b"fifo": Node("fifo")})
    with socket.socket(socket.AF_UNIX) as listener, Store(place) as store:
        listener.bind(str(source / "socket"))
        expected = {b"fifo": "fifo", b"socket": "socket"}
        try:
            os.mknod(source / "null", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
            expected[b"null"] = "device"
        except PermissionError:
            pass
        snapshot = copy_folder(source, place / "target", store)
        assert skip_reasons(snapshot) == expected
        assert read_tree(place / "target") == {b"a": text(b"a")}
        here = take_snapshot(source, store)
        assert not find_changes(here, source, store).items
        (source / "fifo").unlink()
        (source / "a").unlink()
        os.mkfifo(source / "a")
        found = find_changes(here, source, store)
        assert [(c.path, c.what) for c in found.items] == [(b"a", "changed"), (b"fifo", "removed")]


def test_no_privilege_is_handed_on(place: Path, needs_root: None) -> None:
    source = place / "source"
    write_tree(source, {b"theirs": text(b"x", 0o755), b"ours": text(b"x", 0o755)})
    os.chown(source / "theirs", 65534, 65534)
    for name in ("theirs", "ours"):
        (source / name).chmod(0o6755)
    with Store(place) as store:
        copy_folder(source, place / "target", store)
    assert stat.S_IMODE((place / "target" / "theirs").stat().st_mode) == 0o755
    assert stat.S_IMODE((place / "target" / "ours").stat().st_mode) == 0o6755


class Interference:
    """Is asked whether to stop, and does something to the source instead."""

    def __init__(self, action: Callable[[], object], times: int = 1) -> None:
        self.action = action
        self.times = times

    def __call__(self) -> bool:
        if self.times:
            self.times -= 1
            self.action()
        return False


def test_what_vanishes(place: Path) -> None:
    source = place / "source"
    write_tree(source, {b"a": text(b"a"), b"b": text(b"b"), b"f": FOLDER, b"f/x": text(b"x")})

    def action() -> None:
        (source / "b").unlink()
        shutil.rmtree(source / "f")

    with Store(place) as store:
        snapshot = copy_folder(source, place / "target", store, is_cancelled=Interference(action))
    assert skip_reasons(snapshot) == {b"b": "vanished", b"f": "vanished"}
    assert read_tree(place / "target") == {b"a": text(b"a")}


def test_what_becomes_a_link_is_not_followed(place: Path) -> None:
    source = place / "source"
    write_tree(source, {b"a": text(b"a"), b"b": text(b"b"), b"f": FOLDER, b"f/x": text(b"x")})

    def action() -> None:
        (source / "b").unlink()
        (source / "b").symlink_to("/etc/passwd")
        shutil.rmtree(source / "f")
        (source / "f").symlink_to("/etc")

    with Store(place) as store:
        snapshot = copy_folder(source, place / "target", store, is_cancelled=Interference(action))
    assert skip_reasons(snapshot) == {b"b": "vanished", b"f": "vanished"}
    assert read_tree(place / "target") == {b"a": text(b"a")}


@pytest.mark.parametrize(("times", "reason"), [(2, {}), (1000, {b"a": "unsteady"})])
def test_what_changes_while_it_is_read(place: Path, times: int, reason: dict[bytes, str]) -> None:
    """The first call is before the file is opened, the second between two reads."""
    source = place / "source"
    write_tree(source, {b"a": text(b"a" * (2 * CHUNK)), b"b": text(b"b")})

    def action() -> None:
        with (source / "a").open("ab") as file:
            file.write(b"more")

    with Store(place) as store:
        snapshot = copy_folder(
            source, place / "target", store, is_cancelled=Interference(action, times)
        )
        assert skip_reasons(snapshot) == reason
        copied = (place / "target" / "a").read_bytes()
        record = snapshot.root.entry_records()[b"a"]
        assert b"".join(store.read_content(record.store_offset, record.size)) == copied
        assert copied == b"a" * (2 * CHUNK) + b"more" * ((len(copied) - 2 * CHUNK) // 4)
        assert store.end == len(copied) + 1
        if not reason:
            assert copied == (source / "a").read_bytes()
        assert not find_changes(snapshot, place / "target", store).items


def test_what_becomes_shorter_while_it_is_read(place: Path) -> None:
    source = place / "source"
    size = 8 * CHUNK
    write_tree(source, {b"a": text(b"a" * size), b"b": text(b"b")})

    def action() -> None:
        nonlocal size
        size //= 4
        os.truncate(source / "a", size)

    with Store(place) as store:
        snapshot = copy_folder(
            source, place / "target", store, is_cancelled=Interference(action, 4)
        )
        assert skip_reasons(snapshot) == {b"a": "unsteady"}
        record = snapshot.root.entry_records()[b"a"]
        assert record.size == (place / "target" / "a").stat().st_size
        assert not find_changes(snapshot, place / "target", store).items


@pytest.mark.parametrize("in_place", [True, False])
def test_a_runs_folder_inside(place: Path, in_place: bool) -> None:
    source = place / "source"
    runs = source / "runs"
    write_tree(source, {b"a": text(b"a"), b"runs": FOLDER, b"runs/old": text(b"x")})
    with Store(runs) as store:
        if in_place:
            workspace = source
            snapshot = take_snapshot(source, store, [source / "." / "runs"])
        else:
            workspace = runs / "new"
            snapshot = copy_folder(source, workspace, store, [runs])
            assert read_tree(workspace) == {b"a": text(b"a")}
        assert skip_reasons(snapshot) == {b"runs": "left out"}
        (runs / "log").write_text("x")
        (workspace / "b").write_text("b")
        found = find_changes(snapshot, workspace, store)
        assert [change.path for change in found.items] == [b"b"]


def test_a_copy_into_its_own_source_ends(place: Path) -> None:
    write_tree(place / "source", {b"a": text(b"a")})
    with Store(place) as store:
        copy_folder(place / "source", place / "source" / "target", store)
    assert read_tree(place / "source" / "target") == {b"a": text(b"a")}


def make_deep(root: Path, depth: int = 120, name: str = "d" * 50) -> None:
    """With a file next to it and below at every level; a path of 6,000 bytes at the end."""
    root.mkdir()
    fd = os.open(root, os.O_RDONLY)
    for level in range(depth):
        os.mkdir(name, dir_fd=fd)
        os.mkdir("z", dir_fd=fd)
        for place in ("file", "z/file"):
            file = os.open(place, os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=fd)
            os.write(file, b"%d" % level)
            os.close(file)
        inner = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """Fewer than there are levels in what `make_deep` makes, for two trees at once."""
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, old)


def test_paths_longer_than_any_system_takes(place: Path, few_descriptors: None) -> None:
    make_deep(place / "source")
    with Store(place) as store:
        snapshot = copy_folder(place / "source", place / "target", store)
        assert (snapshot.count_entries(), snapshot.skipped) == (120 * 4, [])
        assert not find_changes(snapshot, place / "target", store).items
        other = find_changes(empty_snapshot(), place / "target", store)
        assert len(other.items) == 120 * 4
        assert max(len(change.path) for change in other.items) > 6000
        contents = [
            b"".join(store.read_content(change.after.store_offset, change.after.size))
            for change in other.items
            if change.after and change.after.kind == "file"
        ]
        assert sorted(map(int, contents)) == sorted([*range(120)] * 2)
        remove_tree(place / "target")
        remove_tree(place / "source")
    assert not list(place.iterdir())


def test_a_full_disk_is_reported_with_its_place(place: Path) -> None:
    """A limit on the size of a file stands in for a disk that is full."""
    write_tree(place / "source", {b"f": FOLDER, b"f/large": text(b"x" * (4 << 20))})

    def work() -> None:
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))
        with Store(place) as store, pytest.raises(OutputError) as caught:
            copy_folder(place / "source", place / "target", store)
        assert str(caught.value) in (
            f"{place}/target/f/large: file too large",
            f"{place}: file too large",
        )
        remove_tree(place / "target")

    run_in_child(work)
    assert not (place / "target").exists()


def test_places_that_cannot_be_used(place: Path) -> None:
    with Store(place) as store:
        with pytest.raises(InputError, match="none: no such file or directory"):
            copy_folder(place / "none", place / "target", store)
        (place / "file").write_text("")
        with pytest.raises(OutputError, match="file: file exists"):
            copy_folder(place, place / "file", store)
    with pytest.raises(OutputError, match="none: no such file"), Store(place / "none"):
        pass


def test_an_end_that_was_asked_for(place: Path) -> None:
    write_tree(place / "source", TREE | {b"folder": FOLDER})
    calls = iter([False] * 4)
    with Store(place) as store, pytest.raises(SnapshotCancelled):
        copy_folder(place / "source", place / "target", store, (), lambda: next(calls, True))
    remove_tree(place / "target")
    assert not (place / "target").exists()


def test_the_names_of_one_file_stay_so(place: Path) -> None:
    source, target = place / "source", place / "target"
    write_tree(source, {b"a": text(b"one"), b"f": FOLDER, b"f/x": text(b"two"), b"own": text(b"o")})
    os.link(source / "a", source / "f" / "again")
    os.link(source / "a", source / "z")
    os.link(source / "own", place / "outside")
    with Store(place) as store:
        snapshot = copy_folder(source, target, store)
        assert read_tree(target) == read_tree(source)
        same = {(target / name).stat().st_ino for name in ("a", "f/again", "z")}
        assert len(same) == 1
        assert (target / "a").stat().st_nlink == 3
        assert (target / "a").stat().st_ino != (source / "a").stat().st_ino
        assert (target / "own").stat().st_nlink == 1
        assert store.end == len(b"onetwoo")
        assert find_changes(snapshot, target, store).items == []
        (target / "z").write_text("new")
        changed = [change.path for change in find_changes(snapshot, target, store).items]
        assert changed == [b"a", b"f/again", b"z"]


def test_a_name_that_cannot_be_a_link_is_a_copy(place: Path) -> None:
    """A path that is too long for the system."""
    make_deep(place / "source")
    first = os.open(place / "source", os.O_RDONLY)
    fd = os.dup(first)
    for _ in range(110):
        inner = os.open("d" * 50, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.link("file", "twin", src_dir_fd=fd, dst_dir_fd=fd)
    os.close(fd)
    os.close(first)
    with Store(place) as store:
        snapshot = copy_folder(place / "source", place / "target", store)
        assert (snapshot.count_entries(), snapshot.skipped) == (120 * 4 + 1, [])
        assert not find_changes(snapshot, place / "target", store).items
        remove_tree(place / "target")
        remove_tree(place / "source")
