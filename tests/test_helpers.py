"""The helpers that probes call, run for real."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

HELPERS = Path(__file__).parents[1] / "stream" / "helpers"


def run_helper(
    name: str, *words: str, cwd: Path | None = None, stdin: bytes = b"", **env: str
) -> tuple[int, str, str]:
    done = subprocess.run(
        [HELPERS / name, *words],
        input=stdin,
        capture_output=True,
        cwd=cwd,
        env={**os.environ, **env},
        check=False,
        timeout=180,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_every_helper_is_executable() -> None:
    names = {path.name for path in HELPERS.iterdir()}
    assert names >= {
        "emit-record", "detect-stack", "portable-path", "json-extract", "paging-stress",
        "probe-exec", "probe-contract-gate", "landlock-run", "reach", "claude-run",
        "scripted-model",
    }  # fmt: skip
    assert all(os.access(HELPERS / name, os.X_OK) for name in names)


#: what finds `stream` here
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
NAMES = sorted(path.name for path in HELPERS.iterdir() if path.name != "stream-command")


@pytest.mark.parametrize("name", NAMES)
def test_every_helper_describes_what_it_does(name: str) -> None:
    """And that wrong use is 1."""
    for word in ("--help", "-h"):
        code, out, err = run_helper(name, word, PATH=PATH)
        assert (code, err) == (0, "")
        assert name in out
        assert "1" in out[out.index("Exit") :]
    code, out, err = run_helper(name, "--nonsense", "x", PATH=PATH)
    assert (code, out) == (1, "")
    assert "Traceback" not in err
    assert len(err.splitlines()) in (1, 4)


def test_what_a_helper_cannot_do_is_2() -> None:
    """What it has found goes nowhere."""
    words = {
        ("detect-stack",),
        ("portable-path", "realpath", "/"),
        ("portable-path", "realpath", "/missing"),
        ("portable-path", "relpath", "/a", "/b"),
        ("json-extract", "--stdin"),
        ("emit-record", *EMITTED),
        ("probe-exec", "fs_tmp_write"),
    }
    for name, *args in words:
        with open("/dev/full", "w") as full:  # noqa: PTH123
            done = subprocess.run(
                [HELPERS / name, *args],
                input=b"{}",
                stdout=full,
                stderr=subprocess.PIPE,
                env={**os.environ, "PATH": PATH},
                check=False,
            )
        assert done.returncode == 2, name
        assert b"Traceback" not in done.stderr, name
    framed = subprocess.run(
        f'STREAM_FRAME=1 "{HELPERS}/emit-record" a b >/dev/full',
        shell=True,
        capture_output=True,
        check=False,
    )
    assert framed.returncode == 2


EMITTED = (
    "--run-mode", "baseline", "--probe-name", "p", "--probe-version", "1", "--command", "c",
    "--primary-capability-id", "cap_fs_write_temp", "--category", "fs", "--verb", "v",
    "--target", "t", "--status", "success",
)  # fmt: skip


def test_emit_record_is_no_filter() -> None:
    """Its words are its own, also where `stream emit` would read stdin."""
    assert run_helper("emit-record", "-", PATH=PATH) == (1, "", "stream: Unknown flag: -\n")
    code, out, _ = run_helper("emit-record", *EMITTED[:-2], "--status", "--help", PATH=PATH)
    assert (code, out) == (1, "")


# ------------------------------------------------------------ detect-stack


@pytest.mark.parametrize(
    ("declared", "mode"),
    [("", None), ("read-only", "read-only"), ("workspace-write", "workspace-write"), ("odd", None)],
)
def test_detect_stack(declared: str, mode: str | None) -> None:
    code, out, _ = run_helper("detect-stack", FENCE_SANDBOX_MODE=declared)
    name = os.uname()
    expected = f"{name.sysname} {name.release} {name.machine}"
    assert code == 0
    assert json.loads(out) == {"sandbox_mode": mode, "os": expected}


def test_detect_stack_bears_a_run_mode() -> None:
    """As older published scripts give it; more than that is wrong use."""
    assert run_helper("detect-stack", "baseline") == run_helper("detect-stack")
    for words in (("baseline", "x"), ("",), ("-x",)):
        code, out, err = run_helper("detect-stack", *words)
        assert (code, out) == (1, "")
        assert "takes one run mode at most" in err


# ------------------------------------------------------------ portable-path


def test_realpath_is_the_systems(tmp_path: Path) -> None:
    (tmp_path / "real dir").mkdir()
    (tmp_path / "real dir" / "file").touch()
    (tmp_path / "link").symlink_to("real dir")
    (tmp_path / "real dir" / "up").symlink_to("../link/file")
    for path in ("link", "link/", "link/file", "link/up", "link/..", ".", "real dir/../link/up"):
        code, out, err = run_helper("portable-path", "realpath", path, cwd=tmp_path)
        assert (code, err) == (0, "")
        assert out == os.path.realpath(tmp_path / path) + "\n"


def test_realpath_of_nothing(tmp_path: Path) -> None:
    """An empty line and success: published probes look whether it is empty."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("missing")
    for path in (
        "missing",
        "missing/below",
        "loop",
        "file/",
        "file/..",
        "dangling",
        "missing/..",
        "",
    ):
        assert run_helper("portable-path", "realpath", path, cwd=tmp_path) == (0, "\n", ""), path


@pytest.mark.parametrize("words", [("realpath", "x"), ("relpath", "x", "/"), ("relpath", "/", "x")])
def test_a_way_that_starts_in_a_folder_that_is_gone(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Nobody can know where it leads: it does not start at the root."""
    gone = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    command = ["sh", "-c", gone, "sh", str(HELPERS / "portable-path"), *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "portable-path: the current folder is gone" in done.stderr


_names = st.lists(
    st.sampled_from(["a", "b", "..", ".", "c d", "é", "up", "far", "on\ne"]), min_size=1, max_size=5
)


@settings(max_examples=60)
@given(_names, _names)
def test_relpath_is_pythons(linked: Path, target: list[str], base: list[str]) -> None:
    """Of the places that links lead to, whatever of them is missing."""
    first, second = f"{linked}/" + "/".join(target), "a/" + "/".join(base)
    code, out, err = run_helper("portable-path", "relpath", first, second, cwd=linked)
    assert (code, err) == (0, "")
    real = os.path.realpath(first), os.path.realpath(linked / second)
    assert out.removesuffix("\n") == os.path.relpath(*real)


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders with links up, across and out of here."""
    top = tmp_path_factory.mktemp("linked").resolve()
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "up").symlink_to("..")
    (top / "a" / "b" / "up").symlink_to("../../a")
    (top / "far").symlink_to("/usr/bin")
    (top / "a" / "far").symlink_to("missing/below")
    (top / "on\ne").symlink_to("a/b/")
    return top


@pytest.mark.parametrize("words", [(), ("realpath",), ("relpath", "/a"), ("other", "/a")])
def test_portable_path_usage(words: tuple[str, ...]) -> None:
    code, out, err = run_helper("portable-path", *words)
    assert (code, out) == (1, "")
    assert "see portable-path --help" in err


# ------------------------------------------------------------ json-extract

DOCUMENT = (
    '{"a":{"b":[1,2.50,"x",null,{"~/":true}]},"":"empty","a":{"b":[1,2.50,"x",null,{"~/":1}]}}'
)


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("/a/b/0", "1"),
        ("/a/b/1", "2.50"),
        ("/a/b/2", '"x"'),
        ("/a/b/3", "null"),
        ("/a/b/4/~0~1", "1"),
        ("/", '"empty"'),
        ("/a", '{"b":[1,2.50,"x",null,{"~/":1}]}'),
    ],
)
def test_json_extract_points(pointer: str, value: str) -> None:
    code, out, err = run_helper(
        "json-extract", "--stdin", "--pointer", pointer, stdin=DOCUMENT.encode()
    )
    assert (code, out, err) == (0, value + "\n", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--pointer", "/nope"), "/nope"),
        (("--pointer", "/a/b/9"), "index"),
        (("--pointer", "/a/b/01"), "index"),
        (("--pointer", "bad"), "pointer"),
        (("--pointer", "/a", "--type", "array"), "expected array, found object"),
        (("--type", "odd"), "odd"),
        (("--other", "x"), "--other"),
        (("--pointer",), "--pointer"),
        (("--pointer", "/a", "--default", "{"), "--default"),
        (("--pointer", "/a", "--type", "array", "--default", "1"), "expected array, found number"),
        (("--file", "/dev/null"), "do not go together"),
    ],
)
def test_json_extract_refuses(words: tuple[str, ...], message: str) -> None:
    code, out, err = run_helper("json-extract", "--stdin", *words, stdin=DOCUMENT.encode())
    assert (code, out) == (1, "")
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"a":1} x', b'"\xff"', b"[" * 10_000, b"nan", b"\x00", b"'x'"]
)
def test_json_extract_and_bad_documents(data: bytes) -> None:
    code, out, err = run_helper("json-extract", "--stdin", stdin=data)
    assert (code, out) == (1, "")
    assert err.startswith("json-extract: ")
    assert len(err.splitlines()) == 1


def test_json_extract_default_and_file(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text('{"n": 1e400}')
    assert run_helper("json-extract", "--file", str(file), "--pointer", "/n")[1] == "1e400\n"
    assert run_helper(
        "json-extract", "--file", str(file), "--pointer", "/m", "--default", "[ 1 ]"
    ) == (
        0,
        "[1]\n",
        "",
    )
    words = ("--pointer", "/n", "--type", "boolean", "--default", "false")
    assert run_helper("json-extract", *words, stdin=b'{"n": null}') == (0, "false\n", "")
    code, _, err = run_helper("json-extract", "--file", str(tmp_path / "missing"))
    assert code == 1
    assert "missing" in err


# ------------------------------------------------------------ paging-stress


@pytest.mark.parametrize("pattern", ["sequential", "random"])
def test_paging_stress(pattern: str) -> None:
    words = ("--megabytes", "2", "--passes", "2", "--pattern", pattern)
    assert run_helper("paging-stress", *words) == (0, "", "")


@pytest.mark.parametrize(
    "words",
    [
        ("--megabytes", "x"),
        ("--passes", "0"),
        ("--pattern", "odd"),
        ("--other", "1"),
        ("--passes",),
    ],
)
def test_paging_stress_arguments(words: tuple[str, ...]) -> None:
    code, out, err = run_helper("paging-stress", *words)
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1


def test_paging_stress_times_out() -> None:
    words = ("--megabytes", "64", "--passes", "1000000", "--max-seconds", "1")
    code, out, err = run_helper("paging-stress", *words)
    assert (code, out) == (3, "")
    assert "1 s" in err


# ------------------------------------------------------------ the ones that are `stream`


def test_probe_exec_and_gate_are_stream(tmp_path: Path) -> None:
    code, out, _ = run_helper("probe-exec", "fs_tmp_write", cwd=tmp_path, PATH=PATH)
    assert code == 0
    assert json.loads(out)["probe"]["id"] == "fs_tmp_write"
    assert run_helper("probe-contract-gate", "--static", "fs_tmp_write", PATH=PATH)[0] == 0


def write_script(tree: Path, name: str, body: str) -> None:
    flags = " ".join(EMITTED).replace("baseline", '"$FENCE_RUN_MODE"').replace(" p ", f" {name} ")
    text = f'primary_capability_id="cap_fs_write_temp"\nprobe_name="{name}"\n{body}\n'
    emit = f'"${{BASH_SOURCE[0]%/*}}/../bin/emit-record" {flags}\n'
    path = tree / "probes" / f"{name}.sh"
    path.write_text(f"#!/usr/bin/env bash\nset -euo pipefail\n{text}{emit}")
    path.chmod(0o755)


def test_probe_exec_as_published_scripts_call_it(tmp_path: Path) -> None:
    """By mode and name, of the tree whose bin it lies in; with the exit codes of a helper."""
    tree = tmp_path / "tree"
    (tree / "probes").mkdir(parents=True)
    (tree / "bin").symlink_to(HELPERS)
    write_script(tree, "good", ":")
    write_script(tree, "breaks", "exit 7")
    write_script(tree, "hangs", "exec perl -e 'sleep 1000'")

    def probe_exec(*words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            ["bin/probe-exec", *words],
            capture_output=True,
            cwd=tree,
            env={**os.environ, "PATH": PATH},
            check=False,
            text=True,
            timeout=180,
        )
        return done.returncode, done.stdout, done.stderr

    for words in (("good",), ("baseline", "good"), ("baseline", "probes/good.sh")):
        code, out, err = probe_exec(*words)
        assert (code, err, json.loads(out)["run"]["mode"]) == (0, "", "baseline")
    code, out, _ = probe_exec(f"--workspace-root={tmp_path}", "good")
    assert (code, json.loads(out)["run"]["workspace_root"]) == (0, str(tmp_path))
    for wrong in ("caged good", "nope", "a b c", "--mode baseline a b"):
        code, out, err = probe_exec(*wrong.split())
        assert (code, out) == (1, ""), wrong
        assert len(err.splitlines()) == 1
    assert probe_exec("breaks")[0] == 2
    assert probe_exec("--timeout", "0.5", "hangs")[0] == 3
    gate = subprocess.run(
        [tree / "bin" / "probe-contract-gate", "good"],
        capture_output=True,
        env={**os.environ, "PATH": PATH},
        check=False,
        text=True,
    )
    assert (gate.returncode, gate.stderr) == (0, "gate: 1 probe, 0 findings\n")


def test_helpers_say_when_there_is_no_stream(tmp_path: Path) -> None:
    alone = tmp_path / "bin"
    shutil.copytree(HELPERS, alone)
    done = subprocess.run(
        [alone / "emit-record", "--run-mode", "baseline"],
        capture_output=True,
        env={"PATH": "/usr/bin:/bin"} if not shutil.which("stream", path="/usr/bin:/bin") else {},
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == b""
    assert b"PATH" in done.stderr


# ------------------------------------------------------------ landlock-run


def test_landlock_run(tmp_path: Path) -> None:
    """Reads everything, writes where it may, and exits as the command does."""
    (tmp_path / "in").mkdir()
    script = "cat kept; echo >/dev/null; echo a >in/a && mv in/a in/b; echo b >b; exit 7"
    (tmp_path / "kept").write_text("read\n")
    words = ("--rw", "in", "--", "sh", "-c", script)
    code, out, err = run_helper("landlock-run", *words, cwd=tmp_path)
    assert (code, out, err.count("Permission denied")) == (7, "read\n", 1)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["b", "in", "kept"]
    code, out, _ = run_helper("landlock-run", "--hide", "/etc", "--", "cat", "/etc/passwd")
    assert (code, out) == (1, "")
    assert run_helper("landlock-run", "--", "/nope/nope")[0] == 127
    assert run_helper("landlock-run", "--", "/etc/passwd")[0] == 126
    code, out, _ = run_helper("landlock-run", "--abi")
    assert (code, out.rstrip("0123456789\n")) == (0, "Landlock ABI ")


BINDS = 'use IO::Socket::INET; print IO::Socket::INET->new(Listen => 1) ? "bound " : "";'
CONNECTS = "print IO::Socket::INET->new(PeerAddr => shift) ? q(connected) : q()"


@pytest.mark.parametrize(
    ("word", "expected"), [("--no-tcp", ""), ("--no-bind", "connected"), ("", "bound connected")]
)
def test_landlock_run_and_tcp(word: str, expected: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        words = [word] if word else []
        words += ["--", "perl", "-e", BINDS + CONNECTS, address]
        assert run_helper("landlock-run", *words) == (0, expected, "")


#: what fails -> what is injected into the calls
UNCONFINED = {
    "the kernel has no Landlock": "landlock_create_ruleset:error=ENOSYS",
    "or does not allow it": "landlock_create_ruleset:error=EOPNOTSUPP",
    "refused the ruleset": "landlock_create_ruleset:error=E2BIG:when=2",
    "only from 4 on": "landlock_create_ruleset:retval=3:when=1",
    "refused the rule ": "landlock_add_rule:error=EINVAL:when=2",
    "PR_SET_NO_NEW_PRIVS failed": "prctl:error=EINVAL",
    "refused to restrict": "landlock_restrict_self:error=E2BIG",
    "/dev/null: ": "openat:error=EMFILE",
}


@pytest.mark.parametrize("reason", UNCONFINED)
def test_landlock_run_runs_nothing_unconfined(reason: str, tmp_path: Path) -> None:
    if not shutil.which("strace"):
        pytest.skip("needs strace")
    inject = f"inject={UNCONFINED[reason]}"
    if reason.startswith("/"):
        inject += f" -P {reason.rstrip(': ')}"
    words: list[str | Path] = ["strace", "-qq", "-o", tmp_path / "trace", "-e", *inject.split()]
    words += [HELPERS / "landlock-run", "--no-tcp", "--rw", tmp_path, "--"]
    done = subprocess.run([*words, "touch", tmp_path / "ran"], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (125, b"")
    assert reason.encode() in done.stderr
    assert done.stderr.endswith(b": nothing was run\n")
    assert done.stderr.count(b"\n") == 1
    assert "(INJECTED)" in (tmp_path / "trace").read_text()
    assert not (tmp_path / "ran").exists()


def test_landlock_run_without_its_folder(tmp_path: Path) -> None:
    words = ("--rw", str(tmp_path / "missing"), "--", "touch", str(tmp_path / "ran"))
    code, out, err = run_helper("landlock-run", *words)
    assert (code, out) == (125, "")
    assert err == f"landlock-run: {words[1]}: No such file or directory: nothing was run\n"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("words", ["", "--", "true", "--rw", "--hide /a/b -- x"])
def test_landlock_run_used_wrongly(words: str) -> None:
    code, out, err = run_helper("landlock-run", *words.split())
    assert (code, out) == (1, "")
    assert err.endswith(": see landlock-run --help\n")


# ------------------------------------------------------------ reach


def test_perl_helpers_need_no_more_than_perl_itself() -> None:
    for name in ("landlock-run", "reach"):
        done = subprocess.run(["perl", "-wc", HELPERS / name], capture_output=True, check=True)
        assert done.stderr == f"{HELPERS / name} syntax OK\n".encode()
