"""stream matrix: which cells run, in which order, and what they see."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.command import CAPABILITY, STREAM, Place, probe_text, write_script

OTHER = "cap_fs_read_home_keys"
MODES = """{"schema_version": "boundary_schema_v1", "key": "two_modes", "pattern_version": "v",
"schema": {"type": "object", "properties": {"schema_version": {"const": "v"},
"run": {"type": "object", "properties": {"mode": {"enum": ["loose", "tight"]}}}}}}"""


@pytest.fixture
def four_probes(place: Place) -> Path:
    folder = place.write_probes(b="", a="", c="")
    write_script(folder / "d.sh", probe_text("d", "emit\n", OTHER))
    return folder


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "a b c d"),
        (["--probe", "c", "a"], "c a"),
        (["--probe", "c,a", "--jobs", "1"], "c a"),
        (["--probe=c", "a", "-j1", "--probe", "b"], "c a b"),
        (["--probe", "c.sh", "c", "b"], "c b"),
        (["--cap", OTHER], "d"),
        (["--cap", OTHER, CAPABILITY], "a b c d"),
        (["--cap", OTHER, "--probe", "b"], "b d"),
        (["--probe", "b", "a", "--repeat", "2"], "b b a a"),
        (["--mode", "baseline", "baseline", "--probe", "a"], "a"),
    ],
)
def test_selection(place: Place, four_probes: Path, words: list[str], expected: str) -> None:
    done = place.stream("matrix", "--probes", four_probes, *words)
    assert (done.code, done.ids) == (0, expected.split())
    assert done.err.endswith(f": {len(done.ids)} success\n")


def test_modes_are_the_outer_order(place: Place, four_probes: Path) -> None:
    descriptor = place.root / "two.json"
    descriptor.write_text(MODES)
    done = place.stream(
        "matrix", "--probes", four_probes, "--boundary", descriptor, "--mode", "tight", "loose",
        "--probe", "b", "a",
    )  # fmt: skip
    cells = [(record["run"]["mode"], record["probe"]["id"]) for record in done.records]
    assert cells == [("tight", "b"), ("tight", "a"), ("loose", "b"), ("loose", "a")]
    assert {record["schema_key"] for record in done.records} == {"two_modes"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--probe", "aa"], "unknown probe: aa (did you mean a?)"),
        (["--probe", ""], "an empty word after --probe: is a variable unset?"),
        (["--catalog", ""], "an empty word after --catalog"),
        (["--workspace", ""], "an empty word after --workspace"),
        (["--repeat", "9223372036854775808"], "--repeat"),
        (["--cap", ","], "--cap names nothing"),
        (["--mode", ""], "an empty word after --mode"),
        (["--cap", "cap_nope"], "unknown capability: cap_nope"),
        (["--cap", "cap_fs_write_sysfs"], "no probe has the primary capability"),
        (["--mode", "other"], "unknown mode: other (see `stream modes`)"),
        (["--workspace", "absent"], "absent: the workspace is not a folder"),
        (["--catalog", "absent.json"], "absent.json: no such file or directory"),
        (["--boundary", "absent.json"], "absent.json: no such file or directory"),
        (["--probe", "../other/a.sh"], "outside the probe folder"),
        (["-o", "x", "--reject", "x"], "x: the same file as x"),
        (["-o", "absent/out"], "absent/out: no such file or directory"),
        (["-o", "."], ".: is a directory"),
        (["-o", ""], "an empty word after -o"),
        (["--jobs", "0"], "--jobs"),
        (["--timeout", "-1"], "--timeout"),
        (["--timeout", "0"], "--timeout"),
        (["--timeout", "nan"], "--timeout"),
        (["--repeat", "0"], "--repeat"),
        (["--probe"], "--probe"),
    ],
)
def test_wrong_use(place: Place, four_probes: Path, words: list[str], sentence: str) -> None:
    done = place.stream("matrix", "--probes", four_probes, *words)
    assert (done.code, done.out) == (2, b"")
    assert sentence in done.err
    assert not list(place.workspace.iterdir())


def test_a_current_folder_that_is_gone(place: Place, four_probes: Path) -> None:
    gone = ("bash", "-c", 'mkdir gone; cd gone; rmdir ../gone; exec "$@"', "gone", STREAM)
    for words in ([], ["--workspace", "."]):
        done = place.stream("matrix", "--probes", four_probes, *words, argv0=gone)
        assert (done.code, done.out) == (2, b"")
        assert done.err == "stream: the current folder is gone\n"
    done = place.stream(
        "matrix", "--probes", four_probes, "--workspace", place.workspace, argv0=gone
    )
    assert (done.code, done.ids) == (0, ["a", "b", "c", "d"])


def test_many_cells_share_their_environment(place: Place, four_probes: Path) -> None:
    done = place.run_measured("matrix", "--probes", four_probes, "--repeat", "20000", "--list")
    assert (done.code, done.peak < 80 << 20) == (0, True)


def test_list_and_what_is_left_out(place: Place, four_probes: Path) -> None:
    done = place.stream("matrix", "--probes", four_probes, "--list")
    assert done.code == 0
    assert done.out.decode().splitlines()[-1].split() == ["d", OTHER]
    macos = Path(__file__).parents[2] / "catalogs" / "macos_codex_v1.json"
    done = place.stream("matrix", "--list", "--catalog", macos)
    assert "bundled probes are left out" in done.err
    assert 0 < len(done.out.splitlines()) < 90


def test_what_needs_targets_runs_only_if_it_is_named(place: Place, four_probes: Path) -> None:
    for name, needs in (("b", "targets"), ("c", "stand-in"), ("d", "a word of its own")):
        path = four_probes / f"{name}.sh"
        path.write_text(f'{path.read_text()}needs="{needs}"\n')
    done = place.stream("matrix", "--probes", four_probes)
    assert (done.code, done.ids) == (0, ["a", "d"])
    done = place.stream("matrix", "--probes", four_probes, "--cap", CAPABILITY)
    assert (done.code, done.ids) == (0, ["a"])
    done = place.stream("matrix", "--probes", four_probes, "--probe", "c", "b")
    assert (done.code, done.ids) == (0, ["c", "b"])
    for name in ("a", "d"):
        (four_probes / f"{name}.sh").unlink()
    done = place.stream("matrix", "--probes", four_probes)
    assert (done.code, done.out) == (2, b"")
    assert "no script that needs no targets calls emit-record" in done.err


def test_what_is_no_probe_is_not_run(place: Place, four_probes: Path) -> None:
    """It lies among them, and states neither what it measures nor that it reports: it is named."""
    ran = place.root / "ran"
    text = f'#!/usr/bin/env bash\n  # not emit-record\n: >"{ran}"\n'
    mention = 'echo "see emit-record"\nprintf "%s\\n" emit-record\n: # emit-record\n'
    for name in ("build", "deploy"):
        write_script(four_probes / f"{name}.sh", text + mention)
    piped = 'echo {} | "${0%/*}/../bin/emit-record" --nope; : "${1#x}"\n'
    write_script(four_probes / "piped.sh", f"#!/bin/sh\n{piped}")
    kept = 'echo "$("${0%/*}/../bin/emit-record" --nope)"\n'
    write_script(four_probes / "kept.sh", f"#!/bin/sh\n{kept}")
    write_script(four_probes / "bare.sh", '#!/bin/sh\n"${0%/*}/../bin/emit-record" --nope\n')
    why = "not run: it neither calls emit-record nor declares a capability"
    lines = [f"stream: {four_probes}/{name}.sh: {why}" for name in ("build", "deploy")]
    for folder in (".", four_probes):
        done = place.stream("matrix", "--probes", folder, cwd=four_probes)
        assert (done.code, done.ids) == (1, ["a", "b", "bare", "c", "d", "kept", "piped"])
        assert [line.replace(f"{four_probes}/", "") for line in done.err.splitlines()[:2]] == [
            line.replace(f"{four_probes}/", "") for line in lines
        ]
    listed = place.stream("matrix", "--probes", four_probes, "--list")
    assert b"deploy" not in listed.out
    assert listed.err.splitlines() == lines
    observed = place.stream("observe", "-q", "--matrix", "--probes", four_probes, "--", "true")
    assert lines[0] in observed.err
    assert not ran.exists()
    done = place.stream("matrix", "--probes", four_probes, "--probe", "build")
    assert done.ids == ["build"]
    assert ran.exists()  # who names it means it
    assert "not run" not in done.err  # nobody asked for the others
    for path in four_probes.iterdir():
        if path.stem not in ("build", "deploy"):
            path.unlink()
    done = place.stream("matrix", "--probes", four_probes)
    assert (done.code, done.out) == (2, b"")
    assert "no script calls emit-record or declares a capability" in done.err


def test_as_completed_is_the_order_of_completion(place: Place) -> None:
    """`a` can only end when `b` has ended: it waits for a word of it."""
    fifo = place.make_fifo("word")
    folder = place.write_probes(a=f'read -r _ <"{fifo}"\n', b="")
    write_script(folder / "b.sh", probe_text("b", f'emit\necho done >"{fifo}"\n'))
    in_order = place.stream("matrix", "--probes", folder, "--jobs", "2")
    assert in_order.ids == ["a", "b"]
    write_script(folder / "b.sh", probe_text("b", "emit\n"))
    process = place.start("matrix", "--probes", folder, "--jobs", "2", "--as-completed")
    assert process.stdout is not None
    first = process.stdout.readline()
    fifo.write_text("go\n")
    assert json.loads(first)["probe"]["id"] == "b"
    assert place.finish(process).ids == ["a"]


SHOW = """
for name in FENCE_RUN_MODE FENCE_SANDBOX_MODE FENCE_WORKSPACE_ROOT CATALOG_PATH BOUNDARY_PATH \\
  TMPDIR PWD LC_ALL BASH_ENV CDPATH SHELLOPTS_EXPORTED; do
  show="${show-} --payload-raw-field $name ${!name-unset}"
done
IFS= read -r line && line="something" || line="nothing"
[[ -w $TMPDIR && -z $(ls -A "$TMPDIR") ]] && tmp="empty and writable" || tmp="unusable"
: >"$TMPDIR/scratch"
emit $show --payload-raw-field stdin "$line" --payload-raw-field tmp "$tmp"
"""


@pytest.mark.parametrize(
    ("declared", "seen"), [(None, "unset"), ("", "unset"), ("read-only", "read-only")]
)
def test_the_environment_of_a_probe(place: Place, declared: str | None, seen: str) -> None:
    folder = place.write_probes(show=SHOW, emit="")
    env = {"BASH_ENV": "/nonexistent", "CDPATH": "/", "TMPDIR": str(place.tmp)}
    if declared is not None:
        env["FENCE_SANDBOX_MODE"] = declared
    done = place.stream("matrix", "--probes", folder, env=env)
    (record,) = done.records
    raw = record["payload"]["raw"]
    tmpdir = raw.pop("TMPDIR")
    assert tmpdir.startswith(str(place.tmp))
    assert Path(raw.pop("CATALOG_PATH")).is_absolute()
    assert Path(raw.pop("BOUNDARY_PATH")).is_absolute()
    assert raw == {
        "FENCE_RUN_MODE": "baseline",
        "FENCE_SANDBOX_MODE": seen,
        "FENCE_WORKSPACE_ROOT": str(place.workspace),
        "PWD": str(place.workspace),
        "LC_ALL": "C",
        "BASH_ENV": "unset",
        "CDPATH": "unset",
        "SHELLOPTS_EXPORTED": "unset",
        "stdin": "nothing",
        "tmp": "empty and writable",
    }
    assert record["stack"]["sandbox_mode"] == (None if seen == "unset" else seen)
    assert record["run"]["workspace_root"] == str(place.workspace)


def test_a_sandbox_mode_that_does_not_exist(place: Place, four_probes: Path) -> None:
    done = place.stream("matrix", "--probes", four_probes, env={"FENCE_SANDBOX_MODE": "strict"})
    assert done.code == 2
    assert "FENCE_SANDBOX_MODE: unknown mode 'strict' (expected read-only|" in done.err


def test_tmpdir_is_outside_the_workspace(place: Place) -> None:
    """Even where the folder for temporary files lies in it."""
    folder = place.write_probes(a='emit --payload-raw-field tmpdir "$TMPDIR"\n', emit="")
    for workspace in (place.tmp, place.root, Path("/tmp")):
        done = place.stream("matrix", "--probes", folder, "--workspace", workspace)
        tmpdir = Path(done.records[0]["payload"]["raw"]["tmpdir"])
        assert not tmpdir.is_relative_to(workspace)
        assert not tmpdir.exists()
        assert not tmpdir.parent.exists()


def test_a_clean_run_is_silent_about_failures(place: Place) -> None:
    folder = place.write_probes(tree="denying", no="emit --status denied --errno EPERM\n", emit="")
    done = place.stream("matrix", "--probes", folder)
    assert done.code == 0
    assert done.err == "1 cell = 1 record: 1 denied\n"


def test_raw_and_emit_equal_the_direct_run(place: Place, four_probes: Path) -> None:
    write_script(four_probes / "e.sh", probe_text("e", "exit 3\n"))
    place.write_probes(f="echo oops >&2\n", g='emit --target "ü\\"$(printf %300s)"\n')
    direct = place.stream("matrix", "--probes", four_probes)
    assert direct.code == 1
    raw = place.stream("matrix", "--probes", four_probes, "--raw")
    assert raw.code == 0
    emitted = place.stream("emit", "-", data=raw.out)
    assert (emitted.code, emitted.out) == (1, direct.out)
    valid = place.stream("validate", "-", data=emitted.out)
    assert (valid.code, valid.out) == (0, direct.out)
    listened = place.stream("listen", "-", data=valid.out)
    assert listened.code == 0
    assert "7 records of 7 probes" in listened.out.decode()


def test_the_bundled_probes(place: Place) -> None:
    """Clean on this machine, from an empty folder, and nothing is left in it."""
    done = place.stream("matrix", "-o", place.root / "out.ndjson")
    assert done.code == 0, done.err
    assert not list(place.workspace.iterdir())
    assert len((place.root / "out.ndjson").read_bytes().splitlines()) >= 80


@pytest.mark.parametrize("variable", ["CATALOG_PATH", "BOUNDARY_PATH"])
def test_an_error_names_the_variable_that_led_to_it(place: Place, variable: str) -> None:
    folder = place.write_probes(a="")
    done = place.stream("matrix", "--probes", folder, env={variable: "/none"})
    message = f"stream: {variable}: /none: no such file or directory\n"
    assert (done.code, done.err) == (2, message)
    flag = {"CATALOG_PATH": "--catalog", "BOUNDARY_PATH": "--boundary"}[variable]
    done = place.stream("matrix", "--probes", folder, flag, "/none", env={variable: "/none"})
    assert (done.code, done.err) == (2, "stream: /none: no such file or directory\n")


def collect_roots(place: Place, folder: Path, cwd: Path, **env: str) -> set[str]:
    """run.workspace_root as each command records it, and what the probe saw."""
    emit = place.stream("emit", *EMIT_WORDS, cwd=cwd, env=env).records
    matrix = place.stream("matrix", "--probes", folder, cwd=cwd, env=env).records
    seen = {record["operation"]["target"] for record in matrix}
    return seen | {record["run"]["workspace_root"] for record in emit + matrix}


EMIT_WORDS = (
    "--run-mode", "baseline", "--probe-name", "p", "--probe-version", "1", "--command", "c",
    "--primary-capability-id", CAPABILITY, "--category", "fs", "--verb", "v", "--target", "t",
    "--status", "success",
)  # fmt: skip


def test_the_workspace_root_is_the_same_everywhere(place: Place) -> None:
    """Declared, else the repository, else the folder; and never by way of a link."""
    sees = 'emit --target "$(test "$PWD" = "$FENCE_WORKSPACE_ROOT" && pwd -P)"\n'
    folder = place.write_probes(emit=sees, sees="")
    top = place.root / "repository"
    below = top / "a" / "b"
    below.mkdir(parents=True)
    link = place.root / "link"
    link.symlink_to("repository")
    assert collect_roots(place, folder, link / "a" / "b") == {str(below)}
    (top / ".git").mkdir()  # no repository yet
    assert collect_roots(place, folder, below) == {str(below)}
    subprocess.run(["git", "init", "-q", top], check=True)
    assert collect_roots(place, folder, link / "a" / "b") == {str(top)}
    assert collect_roots(place, folder, below, FENCE_WORKSPACE_ROOT="") == {str(top)}
    assert collect_roots(place, folder, below, FENCE_WORKSPACE_ROOT=str(link / "a")) == {
        str(top / "a")
    }
    assert collect_roots(place, folder, below, FENCE_WORKSPACE_ROOT="../../../link") == {str(top)}
    ceiling = f"relative:{link / 'a'}"  # git goes up to none of them
    assert collect_roots(place, folder, below, GIT_CEILING_DIRECTORIES=ceiling) == {str(below)}
    assert collect_roots(place, folder, top / "a", GIT_CEILING_DIRECTORIES=ceiling) == {str(top)}
    named = place.stream("matrix", "--probes", folder, "--workspace", link / "a", cwd=below)
    assert named.records[0]["run"]["workspace_root"] == str(top / "a")
    (below / ".git").write_text("gitdir: elsewhere\n")  # as of a work tree or a submodule
    assert collect_roots(place, folder, below) == {str(below)}
    done = place.stream("matrix", "--probes", folder, env={"FENCE_WORKSPACE_ROOT": "/nowhere"})
    assert (done.code, done.err) == (2, "stream: /nowhere: the workspace is not a folder\n")
