"""stream verify and stream archive, as they are called."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stream.archive.reader import Limits
from stream.records.artifacts import KERNEL_FILE
from stream.verify.report import RULES
from tests.archive.samples import (
    ARCHIVES,
    make_small_files,
    write_files_as_archive,
    write_run_folder,
)
from tests.cli.command import Place
from tests.cli.conftest import place

__all__ = ["place"]


def test_yes_no_and_unusable(place: Place) -> None:
    files = make_small_files(place.root / "run")
    good = write_files_as_archive(place.root / "good.tar.gz", files)
    done = place.stream("verify", good)
    assert (done.code, done.out) == (0, b"")
    assert done.err == (
        f"verify: verified: {len(files)} files, 30 lines,"
        f" {sum(map(len, files.values()))} bytes; 0 findings\n"
    )
    bad = write_files_as_archive(place.root / "bad.tar.gz", {**files, KERNEL_FILE: b"{}\n"})
    done = place.stream("verify", bad)
    assert done.code == 1
    findings = [json.loads(line) for line in done.out.splitlines()]
    assert {"contract.line"} <= {item["rule"] for item in findings}
    assert {item["schema"] for item in findings} == {"stream.finding.v1"}
    assert f"{bad}/{KERNEL_FILE}:1: " in done.err
    assert done.err.endswith(f"{len(findings)} findings\n")
    (place.root / "folder" / "x").mkdir(parents=True)
    (place.root / "file").write_text("x")
    for name in ("none", "folder", "file"):
        done = place.stream("verify", place.root / name)
        assert (done.code, done.out) == (2, b"")
        assert done.err.startswith(f"stream: {place.root / name}: ")


@pytest.mark.parametrize("path", ARCHIVES, ids=lambda path: path.stem)
def test_the_references_own(place: Place, path: Path) -> None:
    done = place.stream("verify", path)
    assert done.code == 0
    assert [json.loads(line)["severity"] for line in done.out.splitlines()] == ["warning"] * 2
    assert "verify: verified: 7 files" in done.err


def test_a_run_there_and_back(place: Place) -> None:
    folder = write_run_folder(place.root / "run")
    target = place.root / "a.tar.gz"
    done = place.stream("archive", folder, "-o", target)
    assert (done.code, done.out) == (0, b"")
    assert done.err.startswith(f"archive: {target}: ")
    assert place.stream("verify", target).code == 0
    assert place.stream("verify", folder).code == 0
    done = place.stream("archive", folder, "-o", target)
    assert done.code == 2
    assert done.err == f"stream: {target}: it is there already; --force replaces it\n"
    assert place.stream("archive", folder, "-o", target, "--force").code == 0


@pytest.mark.parametrize("spoil", ["events.jsonl", "artifacts/manifest.json", KERNEL_FILE])
def test_a_run_that_was_not_recorded_to_its_end(place: Place, spoil: str) -> None:
    """A full disk leaves what a killed recorder does: no archive of it could be verified."""
    folder = write_run_folder(place.root / "run")
    if spoil == "events.jsonl":
        whole = (folder / spoil).read_bytes().splitlines(keepends=True)
        (folder / spoil).write_bytes(b"".join(whole[:-1]))
    else:
        (folder / spoil).unlink()
    target = place.root / "a.tar.gz"
    done = place.stream("archive", folder, "-o", target)
    message = f"stream: {folder}: it was not recorded to its end: see `stream verify`\n"
    assert (done.code, done.err) == (2, message)
    assert not target.exists()


def test_nothing_but_a_file_is_replaced(place: Place) -> None:
    folder = write_run_folder(place.root / "run")
    target = place.root / "fifo"
    os.mkfifo(target)
    for force in ((), ("--force",)):
        done = place.stream("archive", folder, "-o", target, *force)
        assert done.code == 2
        assert done.err == f"stream: {target}: it is no regular file, and is not replaced\n"
    assert target.is_fifo()


def test_what_the_recorder_lost_is_reported(place: Place) -> None:
    folder = write_run_folder(place.root / "run")
    summary = json.loads((folder / "artifacts/summary.json").read_bytes())
    lost = "artifacts/x: no space left on device"
    (folder / "artifacts/summary.json").write_text(json.dumps({**summary, "incomplete": [lost]}))
    done = place.stream("archive", folder, "-o", place.root / "a.tar.gz")
    assert done.code == 0
    assert f"archive: the record is incomplete: {lost}\n" in done.err


@pytest.mark.parametrize("where", ["run/artifacts/a.tar.gz", "link/a.tar.gz", "run/a.tar.gz"])
def test_an_archive_does_not_go_into_its_run(place: Place, where: str) -> None:
    folder = write_run_folder(place.root / "run")
    (place.root / "link").symlink_to(folder / "layers")
    done = place.stream("archive", folder, "-o", place.root / where)
    message = "it would lie inside of the run that it is made of"
    assert (done.code, done.err) == (2, f"stream: {place.root / where}: {message}\n")
    assert place.stream("verify", folder).code == 0


@pytest.mark.parametrize("came", [b"", b"\n\n"])
def test_nothing_came(place: Place, came: bytes) -> None:
    words = ("archive", "-", "--run-id", "r", "-o", "a.tar.gz")
    done = place.stream(*words, data=came, cwd=place.root)
    assert (done.code, done.err.splitlines()[-1]) == (
        2,
        "stream: (stdin): nothing came: there is nothing to archive",
    )
    assert not (place.root / "a.tar.gz").exists()


def test_what_was_just_recorded(place: Place) -> None:
    """A real run; what kernel evidence adds is not asked for here."""
    words = ("observe", "-q", "--runs", "runs", "--workspace", "empty", "--", "true")
    assert place.stream(*words, cwd=place.root).code == 0
    (folder,) = [path for path in (place.root / "runs").iterdir() if path.is_dir()]
    done = place.stream("verify", folder)
    assert done.code == 0, done.err
    (folder / "artifacts" / "summary.json").write_text("{}")
    assert place.stream("verify", folder).code == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["verify"], "an archive or the folder of a run is missing"),
        (["verify", "x", "--max-line", "much"], "'much' is not a size such as 500M or 8G"),
        (["verify", "x", "--max-decoded", "0"], "'0' is not a size"),
        (["archive", "x"], "--output"),
        (["archive", "x", "-o", "y", "--run-id", "z"], "--run-id needs `-`"),
        (["archive", "none", "-o", "y"], "stream: none: "),
        (["archive", "workspace", "-o", "no/where/y"], "stream: "),
    ],
)
def test_misuse(place: Place, words: list[str], message: str) -> None:
    done = place.stream(*words, cwd=place.root)
    assert done.code == 2
    assert message in done.err
    assert done.out == b""


def test_the_rules(place: Place) -> None:
    done = place.stream("verify", "--rules")
    assert [line.split()[0] for line in done.out.decode().splitlines()] == [*RULES]


def test_the_limits_that_help_names_are_those_that_hold(place: Place) -> None:
    text = place.stream("verify", "--help").out.decode()
    for flag, value, shown in (
        ("--max-archive", Limits().archive, "2G"),
        ("--max-decoded", Limits().decoded, "8G"),
        ("--max-line", Limits().line, "8M"),
        ("--max-document", Limits().document, "64M"),
    ):
        line = next(line for line in text.splitlines() if line.strip().startswith(f"{flag} "))
        assert f"[default: {shown}]" in line
        size, unit = int(shown[:-1]), {"M": 20, "G": 30}[shown[-1]]
        assert size << unit == value
    for flag, value in (("--max-entries", Limits().entries), ("--max-lines", Limits().lines)):
        line = next(line for line in text.splitlines() if line.strip().startswith(f"{flag} "))
        assert f"[default: {value};" in line
