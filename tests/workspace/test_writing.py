"""What is written about the changes, and what has no influence on it."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import time
from pathlib import Path

import jsonschema_rs
import pytest

from stream.codec import BUNDLE
from stream.errors import InputError, OutputError
from stream.workspace import changes as changes_module
from stream.workspace import snapshot as snapshot_module
from stream.workspace.changes import find_changes
from stream.workspace.listing import write_changes
from stream.workspace.patch import find_git
from stream.workspace.snapshot import Store, empty_snapshot
from tests.workspace.test_copy import list_status, make_deep, run_in_child
from tests.workspace.test_patch import Written
from tests.workspace.trees import FOLDER, Node, Tree, git, link, text, write_tree

SCHEMA = jsonschema_rs.validator_for(
    json.loads((BUNDLE / "schema" / "fs_change.schema.json").read_bytes())
)
BEFORE: Tree = {
    b"a": text(b"one\ntwo\n"),
    b"f": FOLDER,
    b"f/b": text(b"b"),
    b"l": link(b"a"),
    b"m": text(b"m"),
}
AFTER: Tree = {
    b"a": text(b"one\nTWO\n"),
    b"l": link(b"\xffb"),
    b"m": text(b"m", 0o640),
    b"new": FOLDER,
    b"new/empty": FOLDER,
    b"new/\xfe": text(b"\0", 0o755),
    b".git": FOLDER,
    b".git/config": text(b"[core]\n"),
    b"GIT~1": text(b"x"),
    b"z": Node("fifo"),
}


def test_every_line_names_what_it_is_about(tmp_path: Path) -> None:
    written = Written(tmp_path, BEFORE, AFTER)
    for line in written.listing.read_bytes().splitlines():
        SCHEMA.validate(json.loads(line))
    reasons = {path: record.not_in_patch for path, record in written.by_path.items()}
    assert reasons == {
        b".git": "inside-git",
        b".git/config": "inside-git",
        b"GIT~1": "refused-name",
        b"a": None,
        b"f": None,
        b"f/b": None,
        b"l": None,
        b"m": "mode-bits",
        b"new": None,
        b"new/empty": "folder",
        b"new/\xfe": None,
        b"z": "special-file",
    }
    summary = written.summary
    assert (summary.total, summary.added, summary.removed, summary.changed) == (10, 6, 1, 3)
    assert (summary.in_patch, summary.inside_git, summary.is_incomplete) == (4, 2, False)
    assert summary.paths[:4] == [".git", ".git/config", "GIT~1", "a"]
    patch = written.patch.read_bytes()
    assert summary.patch.sha256 == hashlib.sha256(patch).hexdigest()
    assert summary.patch.bytes == len(patch)
    assert b"-two\n+TWO\n" in patch
    assert written.by_path[b"new/\xfe"].path == "new/\ufffd"


def test_the_same_changes_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = (Written(tmp_path / name, BEFORE, AFTER) for name in ("one", "two"))
    assert one.patch.read_bytes() == two.patch.read_bytes()
    assert one.listing.read_bytes() == two.listing.read_bytes()


def test_no_change_needs_no_git(tmp_path: Path) -> None:
    written = Written(tmp_path, BEFORE, BEFORE | {b"m": text(b"m", 0o600)}, git="/nonexistent")
    assert written.patch.read_bytes() == b""
    assert [record.not_in_patch for record in written.records] == ["mode-bits"]


def test_what_happened_after_the_agent_had_ended(tmp_path: Path) -> None:
    now = time.time_ns()
    for exited, is_after in ((now - 10**10, True), (now + 10**10, False)):
        (tmp_path / str(is_after)).mkdir()
        written = Written(tmp_path / str(is_after), BEFORE, {b"a": text(b"A")}, exited=exited)
        states = {path: record.after_exit for path, record in written.by_path.items()}
        assert states == {b"a": is_after, b"f": None, b"f/b": None, b"l": None, b"m": None}
        assert written.summary.has_after_exit == is_after


def test_nothing_that_a_user_has_configured_in_git_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("plain", "hostile", "home/git"):
        (tmp_path / name).mkdir(parents=True)
    plain = Written(tmp_path / "plain", BEFORE, AFTER).patch.read_bytes()
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    config = tmp_path / "home" / ".gitconfig"
    config.write_text(
        f"[core]\nautocrlf = true\nquotePath = false\npager = {trap}\nfsmonitor = {trap}\n"
        f"attributesFile = {tmp_path}/attr\n[diff]\nexternal = {trap}\nnoprefix = true\n"
        f'context = 0\nrenames = copies\n[diff "x"]\ntextconv = {trap}\ncommand = {trap}\n'
        "[color]\nui = always\n"
    )
    (tmp_path / "attr").write_text("* -diff diff=x text eol=crlf\n")
    (tmp_path / "home" / "git" / "attributes").write_text("* -diff diff=x\n")
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    before = list_status(other)
    for name, value in {
        "HOME": tmp_path / "home",
        "XDG_CONFIG_HOME": tmp_path / "home",
        "GIT_CONFIG_GLOBAL": config,
        "GIT_DIR": other / ".git",
        "GIT_WORK_TREE": other,
        "GIT_INDEX_FILE": other / "index",
        "GIT_OBJECT_DIRECTORY": other / ".git" / "objects",
        "GIT_EXTERNAL_DIFF": trap,
        "GIT_PAGER": trap,
        "GIT_DIFF_OPTS": "-u0",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "diff.external",
        "GIT_CONFIG_VALUE_0": trap,
        "GIT_TRACE": tmp_path / "trace",
        "GIT_LITERAL_PATHSPECS": "1",
    }.items():
        monkeypatch.setenv(name, str(value))
    hostile = Written(tmp_path / "hostile", BEFORE, AFTER).patch.read_bytes()
    assert hostile == plain
    assert list_status(other) == before
    assert not (tmp_path / "sprung").exists()
    assert not (tmp_path / "trace").exists()


def test_a_workspace_that_is_a_repository(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_tree(
        source, {b".gitignore": text(b"ignored\n"), b"a": text(b"a\n"), b"ignored": text(b"i\n")}
    )
    git(source, "init", "-q")
    write_tree(source / "sub", {b"s": text(b"s\n")})
    git(source / "sub", "init", "-q")
    before = list_status(source)
    with Store(tmp_path) as store:
        snapshot = snapshot_module.copy_folder(source, tmp_path / "workspace", store)
        workspace = tmp_path / "workspace"
        for name in ("a", "ignored", "sub/s"):
            (workspace / name).write_text("more\n")
        git(workspace, "add", "a")
        repository = list_status(workspace / ".git")
        changes = find_changes(snapshot, workspace, store)
        patch = tmp_path / "p"
        summary = write_changes(changes, store, patch, tmp_path / "l", git=find_git(), exited=0)
    assert list_status(source) == before
    assert list_status(workspace / ".git") == repository
    assert summary.in_patch == 3
    assert summary.inside_git == len(changes.items) - 3 >= 2
    git(tmp_path / "source", "apply", patch)
    for name in ("a", "ignored", "sub/s"):
        assert (source / name).read_text() == "more\n"


def redact_secret(data: bytes) -> bytes:
    return data.replace(b"secret", b"[x]")


def test_nothing_leaves_that_is_redacted(tmp_path: Path) -> None:
    before = {b"a": text(b"secret\n"), b"b": text(b"one secret\n"), b"secret": text(b"1\n")}
    after = {
        b"a": text(b"secretsecret\n"),
        b"b": text(b"one [x]\n"),
        b"secret": text(b"2\n"),
        b"[x]": text(b"clash"),
        b"l": link(b"/secret"),
    }
    written = Written(tmp_path, before, after, redact=redact_secret)
    whole = written.patch.read_bytes() + written.listing.read_bytes()
    assert b"secret" not in whole
    assert b"-[x]\n+[x][x]\n" in whole
    assert hashlib.sha256(b"secret\n").hexdigest().encode() not in whole
    assert hashlib.sha256(b"[x]\n").hexdigest().encode() in whole
    assert "secret" not in str(written.summary)
    assert {record.path: record.not_in_patch for record in written.records} == {
        "a": None,
        "b": "redacted",
        "l": None,
        "[x]": "redacted",
    }
    assert {record.after.target for record in written.records if record.after} >= {"/[x]"}


def test_a_path_as_long_as_git_takes(tmp_path: Path) -> None:
    deep = b"/".join([b"d" * 99] * 39)
    after = {deep[: 100 * depth - 1]: FOLDER for depth in range(1, 40)}
    after[deep + b"/" + b"f" * 100] = text(b"f")
    after[deep + b"/" + b"f" * 101] = text(b"f")
    written = Written(tmp_path, {}, after)
    assert [record.not_in_patch for record in written.records[-2:]] == [None, "long-path"]
    (tmp_path / "t").mkdir()
    git(tmp_path / "t", "apply", written.patch)
    assert len(list((tmp_path / "t").rglob("f*"))) == 1


def test_paths_longer_than_any_system_takes(tmp_path: Path) -> None:
    make_deep(tmp_path / "deep")
    with Store(tmp_path) as store:
        changes = find_changes(empty_snapshot(), tmp_path / "deep", store)
        patch, lines = tmp_path / "p", tmp_path / "l"
        summary = write_changes(changes, store, patch, lines, git=find_git(), exited=0)
    assert summary.not_in_patch["long-path"] > 100
    assert len(lines.read_bytes().splitlines()) == 480
    (tmp_path / "t").mkdir()
    git(tmp_path / "t", "apply", patch)


def test_too_large_for_the_patch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (snapshot_module, changes_module):
        monkeypatch.setattr(module, "LARGEST", 100)
    data = b"x" * 200
    written = Written(tmp_path, {b"a": text(b"a")}, {b"a": text(data), b"b": text(b"b")})
    (tmp_path / "redacted").mkdir()
    hidden = (
        Written(tmp_path / "redacted", {}, {b"a": text(data)}, redact=redact_secret)
        .records[0]
        .after
    )
    assert hidden
    assert (hidden.bytes, hidden.sha256) == (None, None)
    record = written.by_path[b"a"]
    assert record.not_in_patch == "too-large"
    assert record.after
    assert record.after.sha256 == hashlib.sha256(data).hexdigest()
    assert written.by_path[b"b"].in_patch


def test_without_git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Path(find_git()).is_absolute()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="git: not found on PATH"):
        find_git()


def make_changes(tmp_path: Path, store: Store, size: int) -> changes_module.ChangeSet:
    write_tree(tmp_path / "w", {b"a": text(os.urandom(size))})
    return find_changes(empty_snapshot(), tmp_path / "w", store)


def test_a_full_disk(tmp_path: Path) -> None:
    """A limit on the size of a file stands in for a disk that is full."""

    def work() -> None:
        with Store(tmp_path) as store:
            changes = make_changes(tmp_path, store, 1 << 20)
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            for limit in (1 << 17, 1):
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, 1 << 30))
                with pytest.raises(OutputError, match=r"^/.*/(p|l): .+"):
                    write_changes(
                        changes, store, tmp_path / "p", tmp_path / "l", git=find_git(), exited=0
                    )

    run_in_child(work)
    assert [path.name for path in tmp_path.iterdir()] == ["w"]


def test_a_git_that_fails(tmp_path: Path) -> None:
    fake = tmp_path / "git"
    for body in ("echo 'fatal: no luck' >&2; exit 128", "kill -9 $$", "exec cat"):
        fake.write_text(f"#!/bin/sh\n{body}\n")
        fake.chmod(0o755)
        with Store(tmp_path) as store:
            changes = make_changes(tmp_path, store, 1 << 21)
            with pytest.raises(OutputError, match=r"/p: git: "):
                write_changes(
                    changes, store, tmp_path / "p", tmp_path / "l", git=str(fake), exited=0
                )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["git", "w"]
