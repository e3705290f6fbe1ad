"""The bundled probes in real sandboxes: what they say is what the sandbox does."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROBES = Path(__file__).parents[1] / "probes"
HELPERS = PROBES.parent / "stream" / "helpers"
STREAM = Path(sys.executable).with_name("stream")
LANDLOCK = (sys.executable, str(Path(__file__).parent / "landlock_run.py"))
Results = dict[str, dict[str, object]]


def matrix(
    workspace: Path, *prefix: str, env: dict[str, str] | None = None, probes: Path = PROBES
) -> Results:
    """The result of each probe. Fails where one did not write its own valid record."""
    command = [STREAM, "matrix", "--probes", probes, "--workspace", workspace, "--timeout", "30"]
    done = subprocess.run(
        [*prefix, *map(str, command)],
        capture_output=True,
        env={**os.environ, **(env or {})},
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr.decode()
    records = [json.loads(line) for line in done.stdout.splitlines()]
    return {record["probe"]["id"]: record["result"] for record in records}


def repository(path: Path) -> Path:
    path.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", path], check=True)
    (path / "README.md").write_text("a workspace\n")
    return path


def traces() -> set[str]:
    """What probes leave where anybody may write."""
    places = [Path(p) for p in ("/tmp", "/var/tmp", "/dev/shm", "/etc", "/usr", Path.home())]
    return {
        str(path)
        for place in places
        if place.is_dir()
        for path in place.iterdir()
        if "stream-" in path.name and "pytest" not in path.name
    }


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True)
    (folder / ".ssh" / "id_test").write_text("not a key\n")
    (folder / ".bashrc").write_text("# nothing\n")
    yield folder
    assert (folder / ".bashrc").read_text() == "# nothing\n"


def test_unconfined(tmp_path: Path, home: Path) -> None:
    workspace = repository(tmp_path / "ws")
    before, seen = traces(), sorted(workspace.rglob("*"))
    results = matrix(workspace, env={"HOME": str(home)})
    assert len(results) == len(list(PROBES.glob("*.sh")))
    assert sorted(workspace.rglob("*")) == seen
    assert traces() == before
    for probe in (
        "fs_workspace_write_create",
        "fs_read_workspace_tree",
        "fs_git_metadata_read_config",
        "fs_git_metadata_write_guard",
        "fs_home_dotfile_write",
        "fs_ssh_dir_metadata_read",
        "fs_tmp_write",
        "proc_fork_child_spawn",
        "net_localhost_loopback",
        "net_localhost_udp_echo",
        "net_unix_socket_connect",
        "ipc_sysv_shared_memory",
    ):
        assert results[probe]["observed_result"] == "success", (probe, results[probe])


def test_landlock(tmp_path: Path, home: Path) -> None:
    """Writes only where the harness keeps its own scratch files; no TCP."""
    workspace = repository(tmp_path / "ws")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    env = {"HOME": str(home), "TMPDIR": str(scratch)}
    results = matrix(workspace, *LANDLOCK, "--rw", str(scratch), "--no-tcp", "--", env=env)
    for probe in (
        "fs_workspace_write_create",
        "fs_git_metadata_write_guard",
        "fs_git_hooks_write_guard",
        "fs_home_dotfile_write",
        "fs_home_shell_rc_append_guard",
        "fs_outside_workspace",
        "fs_system_roots_write_guard",
        "fs_tmp_write",
        "net_localhost_loopback",
        "net_tcp_connect_loopback",
        "net_bind_listen_any",
        "net_outbound_ipv4_literal_denied",
        "ipc_posix_shm_file",
    ):
        assert results[probe]["observed_result"] == "denied", (probe, results[probe])
        assert results[probe]["errno"] == "EACCES"
    for probe in ("fs_read_workspace_tree", "fs_tmpdir_write", "net_localhost_udp_echo"):
        assert results[probe]["observed_result"] == "success", (probe, results[probe])
    assert not list(scratch.iterdir())


def test_bubblewrap_read_only(tmp_path: Path, home: Path) -> None:
    if not shutil.which("bwrap"):
        pytest.skip("needs bubblewrap")
    workspace = repository(tmp_path / "ws")
    sandbox = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    sandbox += ["--unshare-all", "--die-with-parent", "--new-session"]
    results = matrix(workspace, *sandbox, env={"HOME": str(home)})
    for probe in ("fs_workspace_write_create", "fs_home_dotfile_write", "fs_outside_workspace"):
        assert results[probe]["observed_result"] == "denied", (probe, results[probe])
        assert results[probe]["errno"] == "EROFS"
    assert results["net_outbound_udp_route"]["errno"] == "ENETUNREACH"


def test_nothing_writable_at_all(tmp_path: Path) -> None:
    """No place for scratch files anywhere: a tree with its helpers, as installed, runs in place."""
    workspace = repository(tmp_path / "ws")
    tree = tmp_path / "tree"
    shutil.copytree(PROBES, tree / "probes")
    (tree / "bin").symlink_to(HELPERS)
    results = matrix(workspace, *LANDLOCK, "--", probes=tree / "probes")
    assert results["fs_workspace_write_create"]["observed_result"] == "denied"
    assert results["fs_read_workspace_tree"]["observed_result"] == "success"


def test_an_older_bash(tmp_path: Path) -> None:
    """What bash 5 can take back of its newer behaviour, it does."""
    workspace = repository(tmp_path / "ws")
    results = matrix(workspace, env={"BASH_COMPAT": "3.2"})
    assert results["fs_workspace_write_create"]["observed_result"] == "success"


#: what bash 3.2 does not have
NEWER = re.compile(
    r"""\b(mapfile|readarray|coproc)\b | \b(declare|local|typeset)\s+-[a-zA-Z]*[AngluU]
    | \bwait\s+-n | \$\{[^}]*(,,|\^\^|@[A-Za-z])\} | \{[a-z_]+\}[<>] | &>> | \|&
    | %\([^)]*\)T | ;;& | ;& | \bread\s+(-\w+\s+)*-[a-zA-Z]*[Ni]\b | \[\[\s+-v\s
    | \bEPOCH(SECONDS|REALTIME)\b | \bBASHPID\b | \bSRANDOM\b | \$'[^']*\\u | \[-[0-9]+\]
    | \bshopt\s+-s\s+(globstar|lastpipe)
    """,
    re.VERBOSE,
)


@pytest.mark.parametrize("path", sorted(PROBES.glob("*.sh")), ids=lambda path: path.stem)
def test_bash_3_2_is_enough(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert not [line for line in lines if not line.startswith("#") and NEWER.search(line)]


def test_newer_constructs_are_found() -> None:
    for line in (
        "mapfile -t x", "declare -A map", "wait -n", 'echo "${x,,}"', "exec {fd}>x", "a &>> b",
        "a |& b", "printf '%(%s)T'", "[[ -v x ]]", "read -N 3 x", 'echo "${a[-1]}"', "local -n r=x",
    ):  # fmt: skip
        assert NEWER.search(line), line
