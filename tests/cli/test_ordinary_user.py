"""An ordinary user in a sandbox: what root cannot be denied."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.command import STREAM, Done, Place, probe_text, write_script
from tests.cli.conftest import check_place, make_place

MISBEHAVING = Path(__file__).parent / "misbehaving"
NOBODY = ("runuser", "-u", "nobody", "--")
# Python may lie in root's own folder, which is closed to others: in a mount namespace of its
# own, a folder that is open takes its place, with nothing in it but that Python.
OPENED = """python="$0" closed="$1" kept="$2"
mount --bind "$python" "$kept" && mount -t tmpfs -o mode=755 none "$closed" &&
mkdir -p "$python" && mount --bind "$kept" "$python" && shift 2 && exec "$@"
"""
Run = Callable[..., Done]


@pytest.fixture
def open_place() -> Iterator[Place]:
    """A place that other users can reach; pytest's own folders are closed."""
    root = Path(tempfile.mkdtemp(prefix="stream-test-", dir="/tmp"))
    root.chmod(0o755)
    place = make_place(root)
    place.tmp.chmod(0o1777)
    yield place
    check_place(place)
    shutil.rmtree(root)


def ordinary_user_words(place: Place) -> tuple[str, ...]:
    """What makes a command somebody's who is not root."""
    if os.geteuid() != 0:
        return ()
    words: tuple[str, ...] = NOBODY
    if subprocess.run([*words, STREAM, "--version"], capture_output=True, check=False).returncode:
        kept = place.root / "python"
        kept.mkdir()
        python = Path(sys.base_prefix)
        closed = Path(*python.parts[:2])
        words = ("unshare", "-m", "bash", "-c", OPENED, str(python), str(closed), str(kept))
        words += NOBODY
    tried = subprocess.run([*words, STREAM, "--version"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip(f"cannot become an ordinary user here: {tried.stderr!r}")
    return words


@pytest.fixture
def run(open_place: Place) -> Run:
    """stream, run by somebody who is not root."""
    place, argv0 = open_place, (*ordinary_user_words(open_place), STREAM)
    return lambda *args, **how: place.stream(*args, argv0=argv0, **how)


def test_denials_in_a_read_only_workspace(open_place: Place, run: Run) -> None:
    """Probes with scratch files still get to report what they saw."""
    open_place.workspace.chmod(0o555)
    for name in ("fs_workspace_write_create", "fs_workspace_unicode_filename_write_ok"):
        done = run("matrix", "--probe", name)
        (record,) = done.records
        assert (done.code, record["result"]["observed_result"]) == (0, "denied"), done.err
        assert record["result"]["errno"] == "EACCES"
        assert "harness" not in record["payload"]["raw"]
    scratch = 'x="$(mktemp)"\necho >"$x"\n: >here 2>/dev/null || status=denied\n'
    folder = open_place.write_probes(mk=f'{scratch}emit --status "$status"\n', emit="")
    open_place.link_helpers()
    done = run("matrix", "--probes", folder)
    assert (done.code, done.records[0]["result"]["observed_result"]) == (0, "denied")


def test_the_bundled_probes(open_place: Place, run: Run) -> None:
    done = run("matrix")
    assert done.code == 0, done.err
    assert {record["result"]["observed_result"] for record in done.records} >= {"denied"}
    done = run("gate")
    assert (done.code, done.out) == (0, b""), done.err


def test_a_tmpdir_that_the_probe_has_locked(open_place: Place, run: Run) -> None:
    folder = open_place.write_probes()
    shutil.copy(MISBEHAVING / "locks_its_tmpdir.sh", folder)
    open_place.link_helpers()
    done = run("matrix", "--probes", folder)
    assert (done.code, done.ids) == (0, ["locks_its_tmpdir"])
    assert not open_place.find_left()


def test_a_tree_of_somebody_elses(open_place: Place, run: Run) -> None:
    """No bin can be lent to it: it needs one of its own."""
    folder = open_place.write_probes(a="")
    done = run("matrix", "--probes", folder)
    assert (done.code, done.out) == (2, b"")
    assert f"stream: {folder.parent}/bin: permission denied: probes find their helpers" in done.err
    open_place.link_helpers()
    assert run("matrix", "--probes", folder).ids == ["a"]


def test_what_may_not_be_read(open_place: Place, run: Run) -> None:
    place = open_place
    folder = place.write_probes(a="")
    place.link_helpers()
    write_script(folder / "secret.sh", probe_text("secret", "emit\n"), 0o700)
    if os.geteuid() != 0:
        (folder / "secret.sh").chmod(0o100)
    done = run("matrix", "--probes", folder)
    assert (done.code, done.ids) == (1, ["a", "secret"])
    assert done.records[1]["payload"]["raw"]["harness"]["reason"] in ("spawn-failed", "exit-status")
    done = run("gate", "--static", "--probes", folder, "secret")
    assert [finding["rule"] for finding in done.records] == ["gate.readable"]
    secret = place.root / "secret.json"
    write_script(secret, "{}", 0o000)
    catalog = ["matrix", "--catalog", secret]
    for words in (["validate", secret], ["listen", secret], ["verify", secret], catalog):
        done = run(*words)
        assert (done.code, done.out) == (2, b"")
        assert "secret.json: permission denied" in done.err
    folder.chmod(0o000)
    done = run("matrix", "--probes", folder)
    folder.chmod(0o755)
    assert (done.code, done.out) == (2, b"")
    assert f"'{folder}' is not readable" in done.err


def test_a_place_that_may_not_be_written(open_place: Place, run: Run) -> None:
    place = open_place
    folder = place.write_probes(a="")
    place.link_helpers()
    place.workspace.chmod(0o555)
    done = run("matrix", "--probes", folder, "-o", place.workspace / "out")
    assert (done.code, done.out) == (2, b"")
    assert done.err == f"stream: {place.workspace}/out: permission denied\n"
    done = run("validate", "-", "--findings", "found", data=b"")
    assert (done.code, done.err) == (2, "stream: found: permission denied\n")


@pytest.mark.skipif(sys.platform != "linux", reason="containment needs Linux")
def test_a_folder_of_runs_with_somebody_elses(open_place: Place, run: Run) -> None:
    """Closed to us: no run of ours, and no reason to fail."""
    theirs = open_place.workspace / "runs" / "theirs"
    theirs.mkdir(parents=True)
    for folder, mode in ((theirs, 0), (theirs.parent, 0o777), (open_place.workspace, 0o777)):
        folder.chmod(mode)
    done = run("observe", "--", "true")
    theirs.chmod(0o700)
    assert done.code == 0, done.err
