"""`stream apply`: all of a run's changes, or none."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given

from stream.files.trees import remove_tree
from stream.workspace.apply import apply_plan
from tests.cli.command import Place
from tests.cli.conftest import check_place, make_place
from tests.sweeping import thorough
from tests.workspace.runs import make_plan, make_run
from tests.workspace.test_copy import run_as_user
from tests.workspace.trees import (
    FOLDER,
    GIT_NAMES,
    NAMES,
    Node,
    Tree,
    changed_trees,
    link,
    read_tree,
    text,
    write_tree,
)

BEFORE: Tree = {
    b"a": text(b"one\n"),
    b"gone": text(b"x"),
    b"folder": FOLDER,
    b"folder/b": text(b"two\n", 0o755),
    b"link": link(b"a"),
}
AFTER: Tree = {
    b"a": text(b"one\nmore\n"),
    b"folder": FOLDER,
    b"folder/b": text(b"two\n", 0o644),
    b"link": link(b"folder"),
    b"new": Node("dir", 0o750),
    b"new/c": text(b"\0"),
    b"new/empty": FOLDER,
}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = make_place(tmp_path)
    write_tree(place.root / "source", BEFORE)
    yield place
    check_place(place)


@thorough(150, suppress_health_check=[HealthCheck.too_slow])
@given(changed_trees(NAMES | GIT_NAMES))
def test_applying_makes_the_after_state(trees: tuple[Tree, Tree]) -> None:
    before, after = trees
    with tempfile.TemporaryDirectory(prefix="stream-test-") as name:
        source = Path(name) / "source"
        write_tree(source, before)
        plan = make_plan(make_run(Path(name) / "run", source, after))
        assert plan
        if plan.conflicts:  # only where something with a name of git's is in the way
            assert plan.inside_git
            return
        apply_plan(plan)
        if not plan.inside_git:
            assert read_tree(source) == after
        again = make_plan(Path(name) / "run")
        assert again
        assert not again.todo + again.conflicts
        assert again.done == len(plan.todo) + plan.done


def test_the_command(place: Place) -> None:
    source = place.root / "source"
    run = make_run(place.root / "run", source, AFTER)
    done = place.stream("apply", run, "--dry-run")
    assert (done.code, done.out, read_tree(source)) == (0, b"", BEFORE)
    assert "changed  a\n" in done.err
    assert f"apply: 7 changes would be applied to {source}\n" in done.err
    done = place.stream("apply", run)
    assert (done.code, done.err) == (0, f"apply: 7 changes applied to {source}\n")
    assert read_tree(source) == AFTER
    done = place.stream("apply", run)
    assert done.err == f"apply: 0 changes applied to {source}, 7 there already\n"


def test_a_name_makes_no_line_of_its_own(place: Place) -> None:
    """Who reads the preview must be able to believe it."""
    forged = b"a\nadded    evil"
    run = make_run(place.root / "run", place.root / "source", AFTER | {forged: text(b"!")})
    lines = place.stream("apply", run, "--dry-run").err.splitlines()
    assert "added    a\\nadded    evil" in lines
    write_tree(place.root / "source", BEFORE | {forged: text(b"mine")})
    lines = place.stream("apply", run).err.splitlines()
    assert (
        f"stream: {place.root}/source/a\\nadded    evil: is not as it was when the run began"
        in lines
    )


def test_another_target(place: Place) -> None:
    run = make_run(place.root / "run", place.root / "source", AFTER)
    other = place.root / "other"
    write_tree(other, BEFORE | {b"more": text(b"!")})
    assert place.stream("apply", run, "--to", other).code == 0
    assert read_tree(other) == AFTER | {b"more": text(b"!")}
    assert read_tree(place.root / "source") == BEFORE


@pytest.mark.parametrize(
    ("deed", "sentence"),
    [
        ({b"a": text(b"ONE\n")}, "/a: is not as it was when the run began"),
        ({b"gone": text(b"x", 0o600)}, "/gone: is not as it was when the run began"),
        ({b"new": text(b"mine")}, "/new: is not as it was when the run began"),
        ({b"link": link(b"b")}, "/link: is not as it was when the run began"),
    ],
)
def test_conflicts_change_nothing(place: Place, deed: Tree, sentence: str) -> None:
    source = place.root / "source"
    run = make_run(place.root / "run", source, AFTER)
    write_tree(source, BEFORE | deed)
    done = place.stream("apply", run)
    assert done.code == 1
    assert sentence in done.err
    assert done.err.endswith(", nothing was changed\n")
    assert read_tree(source) == BEFORE | deed


def test_a_workspace_that_was_changed_since(place: Place) -> None:
    run = make_run(place.root / "run", place.root / "source", AFTER)
    (run / "workspace" / "a").write_text("later\n")
    done = place.stream("apply", run)
    assert done.code == 1
    assert "/a: is not in the workspace as the run left it" in done.err
    assert read_tree(place.root / "source") == BEFORE


def test_a_link_out_of_the_target_is_not_followed(place: Place) -> None:
    source, outside = place.root / "source", place.root / "outside"
    run = make_run(place.root / "run", source, BEFORE | {b"folder/new": text(b"n")})
    (source / "folder" / "b").unlink()
    (source / "folder").rmdir()
    outside.mkdir()
    (source / "folder").symlink_to(outside)
    done = place.stream("apply", run)
    assert done.code == 1
    assert "/folder/new: cannot be looked at" in done.err
    assert not list(outside.iterdir())


def test_a_listing_that_leads_out(place: Place) -> None:
    run = make_run(place.root / "run", place.root / "source", AFTER)
    listing = run / "artifacts" / "fs_changes.jsonl"
    listing.write_text(listing.read_text().replace('"path":"a"', '"path":"../a"'))
    done = place.stream("apply", run)
    assert done.code == 2
    assert "fs_changes.jsonl:1: `$.path`: leads out of the workspace" in done.err


def test_what_a_removed_folder_still_holds(place: Place) -> None:
    source = place.root / "source"
    run = make_run(place.root / "run", source, {b"a": text(b"one\n")})
    write_tree(source, BEFORE | {b"folder/mine": text(b"!")})
    done = place.stream("apply", run)
    assert done.code == 1
    assert "/folder: is to be removed, and holds mine" in done.err
    assert b"folder/mine" in read_tree(source)


def test_changes_inside_git_stay(place: Place) -> None:
    source = place.root / "source"
    hook = {b".git": FOLDER, b".git/hook": text(b"evil", 0o755), b"GIT~1": text(b"evil")}
    run = make_run(place.root / "run", source, BEFORE | hook | {b"b": text(b"b")})
    done = place.stream("apply", run)
    assert done.code == 0
    assert f"3 changes inside .git left out; for commits: git fetch {run}/workspace" in done.err
    assert read_tree(source) == BEFORE | {b"b": text(b"b")}


def test_a_read_only_folder() -> None:
    """The agent opened it, wrote, and shut it again; we are no more root than it was."""
    shut: Tree = {b"f": Node("dir", 0o555), b"f/old": text(b"o")}
    after: Tree = {b"f": Node("dir", 0o555), b"f/new": text(b"n", 0o444)}

    def work() -> None:
        with tempfile.TemporaryDirectory(prefix="stream-test-", dir="/tmp") as name:
            source, run = Path(name) / "source", Path(name) / "run"
            write_tree(source, shut)
            plan = make_plan(make_run(run, source, after))
            assert plan
            apply_plan(plan)
            assert read_tree(source) == after
            for place in (source, run):
                remove_tree(place)

    run_as_user(work)


@pytest.mark.parametrize(
    ("more", "code", "sentence"),
    [
        ({"workspace_mode": "here"}, 0, "nothing to do: the agent worked in the folder itself"),
        ({"capture_mode": "redacted"}, 2, "was captured redacted"),
        ({"source": None}, 2, "--to says where to"),
        ({"source": "/nonexistent"}, 2, "/nonexistent: no such file or directory"),
    ],
)
def test_runs_that_are_not_applied(
    place: Place, more: dict[str, str], code: int, sentence: str
) -> None:
    run = make_run(place.root / "run", place.root / "source", AFTER, **more)
    done = place.stream("apply", run)
    assert (done.code, done.out) == (code, b"")
    assert sentence in done.err


def test_a_run_without_an_end(place: Place) -> None:
    run = make_run(place.root / "run", place.root / "source", AFTER)
    events = run / "events.jsonl"
    events.write_text(events.read_text().splitlines(keepends=True)[0] + '{"event_type":"run_fin')
    done = place.stream("apply", run)
    assert (done.code, "did not come to its end" in done.err) == (2, True)
    done = place.stream("apply", place.root / "none")
    assert (done.code, "none/events.jsonl: no such file" in done.err) == (2, True)
    assert list(place.tmp.iterdir()) == []
