"""What an earlier version wrote is read as it was then."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.cli.command import STREAM

OLDER = Path(__file__).parents[1] / "data" / "older_versions"
RUNS = ("ebpf", "strace", "hashed", "plain")


def run_stream(*words: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([STREAM, *map(str, words)], capture_output=True, check=False)


def unpack_run(name: str, folder: Path) -> Path:
    with tarfile.open(OLDER / f"run-{name}.tgz") as tar:
        tar.extractall(folder, filter="fully_trusted")
    return folder / name


@pytest.mark.parametrize("name", RUNS)
def test_an_archive_is_verified(name: str) -> None:
    done = run_stream("verify", OLDER / f"{name}.tar.gz")
    assert (done.returncode, done.stdout) == (0, b""), done.stderr


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_checked_verified_and_archived_to_the_same_bytes(
    name: str, tmp_path: Path
) -> None:
    run = unpack_run(name, tmp_path)
    checked = run_stream("check", run)
    assert (checked.returncode, checked.stdout) == (0, b""), checked.stderr
    assert run_stream("verify", run).returncode == 0
    made = tmp_path / "made.tar.gz"
    assert run_stream("archive", run, "-o", made).returncode == 0
    assert made.read_bytes() == (OLDER / f"{name}.tar.gz").read_bytes()


def test_two_archives_differ_as_they_did() -> None:
    done = run_stream("diff", OLDER / "ebpf.tar.gz", OLDER / "strace.tar.gz")
    assert done.returncode == 0
    now, then = map(json.loads, (done.stdout, (OLDER / "diff.ebpf-strace.json").read_bytes()))
    for document in (now, then):  # a note is known by its code; its words are for people
        document["notes"] = [note.partition(":")[0] for note in document["notes"]]
    assert now == then


def test_raw_telemetry_is_normalized_as_it_was() -> None:
    done = run_stream("normalize", OLDER / "raw.ndjson")
    assert done.stdout == (OLDER / "raw.normalized.ndjson").read_bytes()


def test_records_are_valid() -> None:
    done = run_stream("validate", OLDER / "boundary.ndjson")
    assert (done.returncode, done.stdout) == (0, b"")


def test_changes_are_applied(tmp_path: Path) -> None:
    run = unpack_run("ebpf", tmp_path)
    target = tmp_path / "target"
    shutil.copytree(run / "workspace", target, symlinks=True)
    (target / "key.env").unlink()
    done = run_stream("apply", run, "--to", target)
    assert done.returncode == 0, done.stderr
    assert (target / "key.env").read_bytes() == (run / "workspace" / "key.env").read_bytes()
