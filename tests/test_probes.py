"""The bundled probes in real sandboxes: what they report is what the sandbox does."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream.boundary.scripts import find_scripts
from tests.cli.command import LANDLOCK
from tests.sweeping import every

PROBES = Path(__file__).parents[1] / "probes"
HELPERS = PROBES.parent / "stream" / "helpers"
STREAM = Path(sys.executable).with_name("stream")
#: those that a matrix runs without targets
PLAIN = {script.id for script in find_scripts(PROBES) if script.needs is None}
Results = dict[str, dict[str, object]]


def run_matrix(
    workspace: Path, *prefix: str, env: dict[str, str] | None = None, probes: Path = PROBES
) -> Results:
    """The result of each probe. Fails where one did not write its own valid record."""
    command = [STREAM, "matrix", "--probes", probes, "--workspace", workspace, "--timeout", "30"]
    done = subprocess.run(
        [*prefix, *map(str, command)],
        capture_output=True,
        env={**os.environ, **(env or {})},
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr.decode()
    records = [json.loads(line) for line in done.stdout.splitlines()]
    return {record["probe"]["id"]: record["result"] for record in records}


def probes_of(*capabilities: str) -> list[str]:
    """The probes that measure one of these capabilities without targets."""
    declared = {f'\nprimary_capability_id="{capability}"\n' for capability in capabilities}
    texts = {probe: (PROBES / f"{probe}.sh").read_text() for probe in sorted(PLAIN)}
    for line in declared:
        assert any(line in text for text in texts.values()), line
    return [probe for probe, text in texts.items() if any(line in text for line in declared)]


def make_repository(path: Path) -> Path:
    path.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", path], check=True)
    (path / "README.md").write_text("a workspace\n")
    return path


def list_traces(*places: Path) -> set[Path]:
    """What probes have made in these places, or where others may write as well."""
    places += tuple(map(Path, ("/tmp", "/var/tmp", "/dev/shm", "/etc", "/usr", "/dev/mqueue")))
    return {path for place in places if place.is_dir() for path in place.glob("*stream-probe*")}


def find_left_behind(before: set[Path], *places: Path) -> set[Path]:
    """What stays. Another run on this machine has files there too: of probes that still run, as
    the number in the name shows, or that have removed them by now."""
    new = {path for path in list_traces(*places) - before if not is_running(path)}
    return {path for path in new if path.exists()}


def is_running(path: Path) -> bool:
    return any(Path("/proc", number).exists() for number in re.findall(r"-(\d+)-", path.name))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True)
    (folder / ".ssh" / "id_test").write_text("not a key\n")
    (folder / ".bashrc").write_text("# nothing\n")
    yield folder
    assert (folder / ".bashrc").read_text() == "# nothing\n"


def test_unconfined(tmp_path: Path, home: Path) -> None:
    workspace = make_repository(tmp_path / "ws")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    before, seen = list_traces(), sorted(workspace.rglob("*"))
    results = run_matrix(workspace, env={"HOME": str(home), "TMPDIR": str(scratch)})
    assert len(results) == 90
    assert results.keys() == PLAIN
    assert sorted(workspace.rglob("*")) == seen
    assert not find_left_behind(before, home)
    assert not list(scratch.iterdir())
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
        "fs_outside_workspace",
        "fs_symlink_bounce_write",
        "fs_workspace_relative_escape_read_guard",
        "net_bind_listen_any",
        "net_unix_abstract_socket",
    ):
        assert results[probe]["observed_result"] == "success", (probe, results[probe])
    # Read off a flag, asked of /etc/hosts, or nothing was sent.
    for probe in (
        "net_dns_local_name",
        "net_disabled_env_tag",
        "proc_no_new_privs_setuid_exec",
        "sandbox_seccomp_status",
    ):
        assert results[probe]["observed_result"] == "partial", (probe, results[probe])
    for probe in (
        *probes_of("cap_net_dns", "cap_net_outbound_any"),
        *probes_of("cap_proc_unsandboxed_escalation"),
    ):
        assert results[probe]["observed_result"] != "success", (probe, results[probe])


def test_landlock(tmp_path: Path, home: Path) -> None:
    """Writes only where the harness keeps its own scratch files; no TCP."""
    workspace = make_repository(tmp_path / "ws")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    env = {"HOME": str(home), "TMPDIR": str(scratch)}
    results = run_matrix(workspace, *LANDLOCK, "--rw", str(scratch), "--no-tcp", "--", env=env)
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
    for probe in ("fs_read_workspace_tree", "net_localhost_udp_echo"):
        assert results[probe]["observed_result"] == "success", (probe, results[probe])
    for probe in ("proc_no_new_privs_setuid_exec", "sandbox_seccomp_status"):
        assert results[probe]["observed_result"] == "partial", (probe, results[probe])
    assert "NoNewPrivs is set" in str(results["proc_no_new_privs_setuid_exec"]["message"])
    assert not list(scratch.iterdir())


def test_a_listener_that_is_refused_is_no_denied_connection(tmp_path: Path) -> None:
    workspace = make_repository(tmp_path / "ws")
    results = run_matrix(workspace, *LANDLOCK, "--rw", "/tmp", "--no-bind", "--", env={})
    for probe in ("net_localhost_loopback", "net_tcp_connect_loopback"):
        assert results[probe]["observed_result"] == "error", (probe, results[probe])
        assert "listener" in str(results[probe]["message"])
    unready = results["net_localhost_loopback"]
    assert "not attempted" in str(unready["message"])
    assert unready["raw_exit_code"] is None, "what was not attempted did not exit"
    assert results["net_bind_listen_any"]["observed_result"] == "denied"


def test_without_proc(tmp_path: Path) -> None:
    """Hidden, so that the harness is blind: every probe has its own record all the same."""
    workspace = make_repository(tmp_path / "ws")
    results = run_matrix(workspace, *LANDLOCK, "--rw", "/tmp", "--hide", "/proc", "--")
    assert results.keys() == PLAIN
    assert results["fs_proc_other_list"]["observed_result"] == "denied"


def test_a_message_queue_that_was_only_made_is_removed(tmp_path: Path) -> None:
    """Landlock refuses to open what it has let the probe make."""
    private = ["unshare", "--ipc", "--mount", "sh", "-c"]
    queues = tmp_path / "queues"
    queues.mkdir()
    mount = f"mount -t mqueue none {queues}"
    if subprocess.run([*private, mount], check=False).returncode:
        pytest.skip("needs root")
    script = f'{mount} && "$@" && ls {queues} >&2'
    words: list[str | Path] = [*LANDLOCK, "--rw", "/tmp", "--"]
    words += [STREAM, "matrix", "--probes", PROBES, "--probe", "ipc_posix_message_queue"]
    done = subprocess.run(
        [*private, script, "sh", *map(str, words)], cwd=tmp_path, capture_output=True, check=True
    )
    result = json.loads(done.stdout)["result"]
    assert (result["observed_result"], result["errno"]) == ("denied", "EACCES")
    assert result["message"] == "mq_open failed, but only after it had made the queue; removed"
    assert done.stderr == b"1 cell = 1 record: 1 denied\n"


def run_one(probe: str, workspace: Path, **env: str) -> dict[str, object]:
    done = subprocess.run(
        [STREAM, "probe", PROBES / f"{probe}.sh", "--workspace", workspace],
        env={**os.environ, **env},
        capture_output=True,
        check=True,
    )
    result: dict[str, object] = json.loads(done.stdout)["result"]
    return result


@pytest.mark.parametrize("target", ["383.0.0.1:{}", "127.0.0.1:{}", "0.0.0.0:{}", "127.0.0.1:8{}"])
def test_an_outbound_target_that_is_none(target: str, tmp_path: Path) -> None:
    """Numbers that wrap would reach a machine that nobody named; this one's own is not outside."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        named = target.format(listener.getsockname()[1])
        got = run_one("net_outbound_ipv4_literal_denied", tmp_path, FENCE_OUTBOUND_TARGET=named)
    is_own = target in ("127.0.0.1:{}", "0.0.0.0:{}")
    assert got["observed_result"] == ("partial" if is_own else "error"), got


@pytest.mark.parametrize("workspace", ["/var/tmp", "/var", "/"])
def test_what_lies_in_the_workspace_is_not_outside(workspace: str) -> None:
    for probe in ("fs_outside_workspace", "fs_symlink_bounce_write"):
        got = run_one(probe, Path(workspace))
        assert got["observed_result"] == "error", (probe, got)
        assert got["message"] == "not attempted: /var/tmp is part of the workspace"
        assert got["raw_exit_code"] is None


@pytest.mark.parametrize("value", ["0", "no", "NONE", "false"])
def test_a_marker_with_a_negative_value(value: str, tmp_path: Path) -> None:
    got = run_one("agent_sandbox_env_marker", tmp_path, IS_SANDBOX=value)
    assert got["observed_result"] != "success", got


def test_bubblewrap_read_only(tmp_path: Path, home: Path) -> None:
    if not shutil.which("bwrap"):
        pytest.skip("needs bubblewrap")
    workspace = make_repository(tmp_path / "ws")
    sandbox = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    sandbox += ["--unshare-all", "--die-with-parent", "--new-session"]
    results = run_matrix(workspace, *sandbox, env={"HOME": str(home)})
    for probe in ("fs_workspace_write_create", "fs_home_dotfile_write", "fs_outside_workspace"):
        assert results[probe]["observed_result"] == "denied", (probe, results[probe])
        assert results[probe]["errno"] == "EROFS"
    assert results["net_outbound_udp_route"]["errno"] == "ENETUNREACH"
    foreign = probes_of(
        "cap_net_outbound_any",
        "cap_net_dns",
        "cap_proc_signal_foreign",
        "cap_fs_proc_other_processes",
    )
    for probe in foreign:
        assert results[probe]["observed_result"] in ("partial", "error"), (probe, results[probe])
    for probe in ("proc_signal_foreign", "fs_proc_other_environ_read"):
        message = str(results[probe]["message"])
        assert message == "not attempted: no process outside this pid namespace is visible"


#: processes of any name other than the harness
OTHERS = """
import ctypes, os, subprocess, sys
names = [b"x) R 1 (", b"a\\nb) S 1", b"two words", b")"]
for name in names + [b"one of many"] * (int(sys.argv[1]) - len(names)):
    if not os.fork():
        ctypes.CDLL(None).prctl(15, name, 0, 0, 0)
        os.read(0, 1)
        os._exit(0)
subprocess.run(sys.argv[2:], stdin=subprocess.DEVNULL)
"""


@pytest.mark.parametrize("jobs", [1, 2, 9])
@pytest.mark.parametrize("others", [0, 4, 300])
def test_only_processes_other_than_the_harness_count(
    others: int, jobs: int, tmp_path: Path
) -> None:
    if not shutil.which("bwrap"):
        pytest.skip("needs bubblewrap")
    command = [STREAM, "matrix", "--probes", PROBES, "--workspace", tmp_path, "--repeat", 3]
    command += ["-j", jobs, "--probe", "fs_proc_other_list", "net_tcp_connect_loopback"]
    sandbox = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    sandbox += ["--bind", "/tmp", "/tmp", "--unshare-all", "--die-with-parent"]
    if others:
        sandbox += [sys.executable, "-c", OTHERS, str(others)]
    done = subprocess.run(
        [*sandbox, *map(str, command)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        check=True,
        timeout=180,
    )
    records = [json.loads(line) for line in done.stdout.splitlines()]
    lists = [record for record in records if record["probe"]["id"] == "fs_proc_other_list"]
    assert len(lists) == 3
    for record in lists:
        result = "success" if others else "partial"
        assert record["result"]["observed_result"] == result, record
        assert record["payload"]["raw"]["others"] == others


def test_a_process_that_is_just_gone_is_not_counted(tmp_path: Path) -> None:
    """As the kernel shows a process that is being forgotten: without a parent or a group."""
    proc, folder = tmp_path / "proc", tmp_path / "probes"
    folder.mkdir()
    stats = {
        "self": "200 (bash) R 100 200 200",
        "1": "1 (init) S 0 1 1",
        "100": "100 (stream) S 1 100 100",
        "200": "200 (bash) R 100 200 200",
        "300": "300 (other) S 1 300 300",
        "400": "400 (bash) X 0 -1 -1",
    }
    for name, stat in stats.items():
        (proc / name).mkdir(parents=True)
        (proc / name / "stat").write_text(f"{stat} 0 -1 4194304\n")
    probe = folder / "fs_proc_other_list.sh"
    text = (PROBES / probe.name).read_text()
    probe.write_text(
        text.replace('"/proc', f'"{proc}')
        .replace(" /proc/[", f" {proc}/[")
        .replace("</proc/self", f"<{proc}/self")
        .replace("#/proc/", f"#{proc}/")
    )
    probe.chmod(0o755)
    command: list[str | Path] = [STREAM, "matrix", "--probes", folder, "--workspace", tmp_path]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    (record,) = map(json.loads, done.stdout.splitlines())
    assert record["payload"]["raw"] == {"processes": 5, "others": 1}


@every(3)
def test_an_interrupted_matrix_leaves_nothing(tmp_path: Path, home: Path, step: int) -> None:
    workspace = make_repository(tmp_path / "ws")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    env = {**os.environ, "HOME": str(home), "TMPDIR": str(scratch)}
    places = (home, workspace, workspace / ".git", workspace / ".git" / "hooks")
    before = list_traces()
    command = [STREAM, "matrix", "--as-completed", "--probes", PROBES, "--workspace", workspace]
    counts = (0, 1, 3, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35, 38, 41, 50, 66, 80)
    for records in counts[::step]:
        run = subprocess.Popen(
            list(map(str, command)),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
        )
        with run:
            assert run.stdout
            seen = [run.stdout.readline() for _ in range(records)]
            assert all(seen)
            run.send_signal(signal.SIGTERM)
            run.stdout.read()
        assert run.returncode != 0
        assert not find_left_behind(before, *places), records
        assert not list(scratch.iterdir()), records


def test_nothing_writable_at_all(tmp_path: Path) -> None:
    """No place for scratch files anywhere: a tree with its helpers, as installed, runs in place."""
    workspace = make_repository(tmp_path / "ws")
    tree = tmp_path / "tree"
    shutil.copytree(PROBES, tree / "probes")
    (tree / "bin").symlink_to(HELPERS)
    results = run_matrix(workspace, *LANDLOCK, "--", probes=tree / "probes")
    assert results["fs_workspace_write_create"]["observed_result"] == "denied"
    assert results["fs_read_workspace_tree"]["observed_result"] == "success"
    for probe, result in results.items():
        if "not attempted" in str(result["message"]):
            assert result["raw_exit_code"] is None, (probe, result)


def test_an_older_bash(tmp_path: Path) -> None:
    """What bash 5 can take back of its newer behaviour, it does."""
    workspace = make_repository(tmp_path / "ws")
    results = run_matrix(workspace, env={"BASH_COMPAT": "3.2"})
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


def test_bash_3_2_is_enough() -> None:
    paths = sorted(PROBES.glob("*.sh"))
    assert len(paths) > 80
    for path in paths:
        lines = path.read_text().splitlines()
        newer = [line for line in lines if not line.startswith("#") and NEWER.search(line)]
        assert not newer, path


def test_newer_constructs_are_found() -> None:
    for line in (
        "mapfile -t x", "declare -A map", "wait -n", 'echo "${x,,}"', "exec {fd}>x", "a &>> b",
        "a |& b", "printf '%(%s)T'", "[[ -v x ]]", "read -N 3 x", 'echo "${a[-1]}"', "local -n r=x",
    ):  # fmt: skip
        assert NEWER.search(line), line


def test_the_example_of_the_contract_is_a_probe() -> None:
    text = (PROBES / "AGENTS.md").read_text()
    example = text.partition("```bash\n")[2].partition("```")[0]
    assert example == (PROBES / "fs_workspace_write_create.sh").read_text()


NEEDY = sorted(script.id for script in find_scripts(PROBES) if script.needs is not None)


@pytest.mark.parametrize("probe", NEEDY)
def test_without_targets_nothing_is_attempted(probe: str, tmp_path: Path) -> None:
    got = run_one(probe, make_repository(tmp_path / "ws"))
    assert (got["observed_result"], got["raw_exit_code"]) == ("error", None), got
    assert str(got["message"]).startswith("not attempted: it needs "), got
