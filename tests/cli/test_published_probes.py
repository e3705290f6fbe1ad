"""A published tree, which takes `..` for its workspace: it measures itself and nothing else."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stream.boundary.scripts import HELPERS, LINK
from tests.cli.command import LANDLOCK, SLEEP, STREAM, Place, write_script

#: how published probes find their helpers and their workspace
HEAD = """#!/usr/bin/env bash
set -euo pipefail
repo_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." >/dev/null 2>&1 && pwd)
emit_record_bin="${repo_root}/bin/emit-record"
portable_path_helper="${repo_root}/bin/portable-path"
if [[ ! -x "${portable_path_helper}" ]]; then
  echo "missing: ${portable_path_helper}" >&2
  exit 1
fi
run_mode="${FENCE_RUN_MODE:-baseline}"
probe_name="@ID@"
primary_capability_id="@CAPABILITY@"
status="error" errno="" code=0
report() {
  "${emit_record_bin}" --run-mode "${run_mode}" --probe-name "${probe_name}" --probe-version 1 \\
    --primary-capability-id "${primary_capability_id}" --command "$1" --category fs \\
    --verb "$1" --target "$2" --status "${status}" --errno "${errno}" --raw-exit-code "${code}" \\
    --payload-raw-field seen "${3-}"
}
tried() {
  case "$1" in
    "") status=success ;;
    *"Read-only file system"*) status=denied errno=EROFS ;;
    *"Permission denied"*) status=denied errno=EACCES ;;
    *"No such file"*) errno=ENOENT ;;
  esac
}
"""
WRITE, READ = "cap_fs_write_workspace_tree", "cap_fs_read_workspace_tree"
BODIES = {
    "fs_write_create": r"""
target="${repo_root}/.probe-write.$$"
message=$({ : >"${target}"; } 2>&1) || code=$?
tried "${message}"
rm -f "${target}"
report write "${target}"
""",
    "fs_write_below_tmp": r"""
message=$(mkdir -p "${repo_root}/tmp" 2>&1) || code=$?
tried "${message}"
target=$(mktemp -d "${repo_root}/tmp/relative.XXXXXX" 2>/dev/null || echo none)
canonical=$("${portable_path_helper}" realpath "${target}")
report write "${target#"${repo_root}/"}" "${canonical}"
if [[ -n "${canonical}" ]]; then rm -rf "${repo_root}/tmp"; fi
""",
    "fs_read_readme": r"""
target="${repo_root}/README.md" seen=""
message=$({ head -n 1 "${target}" >/dev/null; } 2>&1) || code=$?
tried "${message}"
[[ -n "${message}" ]] || seen=$(stat -c "%a %N" "${target}")
report read "${target}" "${seen}"
""",
    "fs_list": r"""
status=success
report list "${repo_root}" "$(cd "${repo_root}" && ls -A | tr "\n" " ")"
""",
    "proc_paging": r"""
stress="${repo_root}/bin/paging-stress"
python3 - "${stress}" --megabytes 1 <<'PY' || code=$?
import subprocess, sys
sys.exit(subprocess.run(sys.argv[1:]).returncode)
PY
[[ ${code} -ne 0 ]] || status=success
report exec "${stress}"
""",
}
PROBES = dict(zip(BODIES, (WRITE, WRITE, READ, READ, "cap_proc_fork_and_child_spawn"), strict=True))
RESULTS = dict.fromkeys(PROBES, "success")
BWRAP = ("bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-pid")


@pytest.fixture
def tree(place: Place) -> Path:
    """With a README.md that is a link."""
    root = place.root / "a tree"
    (root / "probes").mkdir(parents=True)
    (root / "docs").mkdir()
    (root / "docs" / "README.md").write_text("A published tree.\n")
    (root / "README.md").symlink_to("docs/README.md")
    for name, body in BODIES.items():
        write_probe(root, name, PROBES[name], body)
    return root


def write_probe(tree: Path, name: str, capability: str, body: str) -> None:
    text = HEAD.replace("@ID@", name).replace("@CAPABILITY@", capability) + body
    write_script(tree / "probes" / f"{name}.sh", text)


def run_matrix(place: Place, tree: Path, *sandbox: str) -> Mapping[str, Any]:
    words = ("matrix", "--probes", tree / "probes", "--workspace", tree, "--jobs", "1")
    done = place.stream(*words, argv0=(*sandbox, STREAM))
    assert done.code == 0, done.err
    return {record["probe"]["id"]: record for record in done.records}


def select_observed(found: Mapping[str, Any]) -> dict[str, str]:
    return {probe: record["result"]["observed_result"] for probe, record in found.items()}


def list_files(tree: Path) -> list[Path]:
    return sorted(tree.rglob("*"))


def test_it_measures_itself(place: Place, tree: Path) -> None:
    before = list_files(tree)
    found = run_matrix(place, tree)
    assert select_observed(found) == RESULTS
    for probe in ("fs_write_create", "fs_read_readme"):
        assert Path(found[probe]["operation"]["target"]).parent == tree
    below = found["fs_write_below_tmp"]
    assert below["operation"]["target"].startswith("tmp/relative.")
    assert below["payload"]["raw"]["seen"] == f"{tree}/{below['operation']['target']}"
    seen = found["fs_read_readme"]["payload"]["raw"]["seen"]
    assert seen == f"777 '{tree}/README.md' -> 'docs/README.md'"
    assert found["fs_list"]["payload"]["raw"]["seen"] == "README.md bin docs probes "
    assert list_files(tree) == before


@pytest.mark.parametrize("sandbox", [BWRAP, (*LANDLOCK, "--")], ids=["bwrap", "landlock"])
def test_in_a_read_only_sandbox_no_write_of_it_succeeds(
    place: Place, tree: Path, sandbox: tuple[str, ...]
) -> None:
    """Nothing of it runs without a bin, and the refusal names how it gets one."""
    if sandbox == BWRAP and not shutil.which("bwrap"):
        pytest.skip("needs bubblewrap")
    words = ("matrix", "--probes", tree / "probes", "--workspace", tree)
    done = place.stream(*words, argv0=(*sandbox, STREAM))
    assert (done.code, done.out) == (2, b"")
    assert f"stream: {tree}/bin: " in done.err
    assert f"""ln -s "$(stream helpers)" '{tree}/bin'\n""" in done.err
    (tree / "bin").symlink_to(place.stream("helpers").out.decode().strip())
    found = run_matrix(place, tree, *sandbox)
    writes = ("fs_write_create", "fs_write_below_tmp")
    assert select_observed(found) == {**RESULTS, **dict.fromkeys(writes, "denied")}
    errno = "EROFS" if sandbox == BWRAP else "EACCES"
    assert {found[probe]["result"]["errno"] for probe in writes} == {errno}
    assert (tree / "bin").is_symlink()


@pytest.mark.skipif(not shutil.which("bwrap"), reason="needs bubblewrap")
def test_a_sandbox_without_devices_is_what_starts_nothing(place: Place, tree: Path) -> None:
    """/dev/null is there, and cannot be opened: it is named, and not the program."""
    sandbox = (*BWRAP[:4], "--bind", str(place.root), str(place.root), STREAM)
    done = place.stream("matrix", "--probes", tree / "probes", argv0=sandbox)
    assert "the probe could not be started: /dev/null: permission denied" in done.err
    done = place.stream("observe", "--", "true", argv0=sandbox)
    assert "true: not started: the process that guards it: /dev/null: permission d" in done.err


def test_a_bin_is_lent_to_all_who_need_it(place: Place, tree: Path) -> None:
    """The last one takes it away, and one that was left by a killed run."""
    waits, goes_on = place.make_fifo("waits"), place.make_fifo("goes-on")
    body = f'echo >"{waits}"; read -r _ <"{goes_on}"; status=success; report wait here\n'
    write_probe(tree, "waits", READ, body)
    folder = tree / "probes"
    first = place.start("matrix", "--probes", folder, "--probe", "waits")
    waits.read_text()
    assert place.stream("matrix", "--probes", folder, "--probe", "fs_list").code == 0
    assert (tree / "bin").is_symlink()
    goes_on.write_text("\n")
    done = place.finish(first)
    assert (done.code, done.ids) == (0, ["waits"]), done.err
    assert not (tree / "bin").is_symlink()
    (tree / "bin").symlink_to(LINK)
    assert place.stream("matrix", "--probes", folder, "--probe", "fs_list").code == 0
    assert not (tree / "bin").is_symlink()


@pytest.mark.parametrize("is_there", [False, True])
def test_a_bin_that_another_stream_left_is_replaced(
    place: Place, tree: Path, is_there: bool
) -> None:
    """A killed run of one that is gone now, or has other helpers."""
    left = place.root / "another" / HELPERS.name
    if is_there:
        shutil.copytree(HELPERS, left)
    (tree / "bin").symlink_to(f"{left}/.")
    body = 'status=success\nreport write "$(readlink "${repo_root}/bin")"\n'
    write_probe(tree, "whose", "cap_fs_write_temp", body)
    done = place.stream("matrix", "--probes", tree / "probes", "--probe", "whose")
    assert done.code == 0, done.err
    assert [record["operation"]["target"] for record in done.records] == [LINK]
    assert not (tree / "bin").is_symlink()


def test_a_tree_that_another_program_has_locked_is_not_waited_for(place: Place, tree: Path) -> None:
    """Nothing can be lent to it then; with a bin of its own it needs no lock."""
    words = ("matrix", "--probes", tree / "probes", "--probe", "fs_read_readme")
    lock = os.open(tree, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = place.stream(*words)
        assert (done.code, done.out) == (2, b"")
        assert f"stream: {tree}/bin: another program has locked its folder: " in done.err
        (tree / "bin").symlink_to(HELPERS)
        assert place.stream(*words).code == 0
    finally:
        os.close(lock)


def test_an_interrupted_run_takes_its_bin_away(place: Place, tree: Path) -> None:
    waits = place.make_fifo("waits")
    write_probe(tree, "waits", READ, f'echo >"{waits}"; exec {SLEEP}')
    run = place.start("matrix", "--probes", tree / "probes", "--probe", "waits")
    waits.read_text()
    assert (tree / "bin").is_symlink()
    run.send_signal(signal.SIGTERM)
    assert place.finish(run).code == 143
    assert not (tree / "bin").is_symlink()


@pytest.mark.parametrize("kind", ["folder", "file", "broken link", "bad link"])
def test_a_bin_without_helpers_is_left_alone(place: Place, tree: Path, kind: str) -> None:
    if kind == "folder":
        (tree / "bin").mkdir()
    elif kind == "file":
        (tree / "bin").touch()
    else:
        (tree / "bin").symlink_to("nowhere" if kind == "broken link" else "x" * 300)
    before = list_files(tree)
    for words in (("matrix", "--probes", tree / "probes"), ("gate", tree / "probes")):
        done = place.stream(*words)
        assert (done.code, done.out) == (2, b"")
        assert "no emit-record in it that can be run: probes find their helpers there" in done.err
    assert list_files(tree) == before
    assert (": ln -sfn " in done.err) == ("link" in kind)
    if kind == "folder":
        assert f"""ln -s "$(stream helpers)"/* '{tree}/bin/'\n""" in done.err
        for helper in HELPERS.iterdir():
            (tree / "bin" / helper.name).symlink_to(helper)
        assert select_observed(run_matrix(place, tree)) == RESULTS


@pytest.mark.parametrize("own_helper", [False, True])
def test_a_target_in_a_folder_of_the_harness_is_none_of_the_workspace(
    place: Place, tree: Path, own_helper: bool
) -> None:
    """A write that flees to TMPDIR shows nothing of the workspace, nor one in a lent bin; of TMPDIR
    it does."""
    for name, capability, target in (
        ("flees", WRITE, "${TMPDIR}/a/../x"),
        ("lent", WRITE, "${repo_root}/bin/x"),
        ("stays", "cap_fs_write_temp", "${TMPDIR}/x"),
    ):
        write_probe(tree, name, capability, f'status=success\nreport write "{target}"\n')
    if own_helper:  # that writes plain JSON, by the stream that is tested
        place.env["PATH"] = f"{Path(STREAM).parent}:{place.env['PATH']}"
        shutil.copytree(HELPERS, tree / "bin")
        helper = tree / "bin" / "emit-record"
        helper.write_text(f'#!/bin/sh\nunset STREAM_FRAME\nexec "{HELPERS}/emit-record" "$@"\n')
    words = ("matrix", "--probes", tree / "probes", "--probe", "flees", "lent", "stays")
    done = place.stream(*words)
    assert done.code == 1
    expected = {"flees": "error", "lent": "success" if own_helper else "error", "stays": "success"}
    found = {record["probe"]["id"]: record for record in done.records}
    assert select_observed(found) == expected
    assert found["flees"]["payload"]["raw"]["harness"]["reason"] == "wrong-place"
    assert "lies in a folder of the harness" in done.err
    emitted = place.stream("emit", "-", data=place.stream(*words, "--raw").out)
    assert (
        select_observed({record["probe"]["id"]: record for record in emitted.records}) == expected
    )
