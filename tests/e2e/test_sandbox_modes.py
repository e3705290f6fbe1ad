"""Probes in the real Claude Code's own sandbox, as its settings turn it on, off and up."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import HELPERS, PATIENCE, Done, Place
from tests.cli.conftest import check_place
from tests.e2e.conftest import clean_environment, find_living
from tests.e2e.rig import is_alone

WRITES = ("fs_outside_workspace", "fs_sentinel_delete")
EGRESS = ("egress_http_allowed", "egress_http_denied")
#: what Claude Code's sandbox needs, and silently does without
NEEDED = ("bwrap", "socat")


@pytest.fixture(scope="module")
def sandboxed(claude: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    root = tmp_path_factory.mktemp("modes")
    place = Place(root, clean_environment(root, claude))
    for folder in (place.workspace, place.tmp, root / "home"):
        folder.mkdir()
    yield place
    assert not find_living(root)
    check_place(place)


@pytest.fixture(scope="module")
def locked(sandboxed: Place) -> Path:
    """What it lets through where it is on."""
    lock = sandboxed.root / "boundary.lock"
    words = ("--mode", "claude-sandbox", "--probe", *WRITES, *EGRESS)
    done = sandboxed.stream("lock", "-o", lock, *words)
    assert done.code == 0, done.err
    return lock


def path_without(place: Place, name: str) -> str:
    """Where everything is found but one program."""
    folder = place.root / f"without-{name}"
    if not folder.exists():
        folder.mkdir()
        for place_of_programs in ("/usr/bin", "/usr/sbin"):
            for program in Path(place_of_programs).iterdir():
                if program.name != name and not (folder / program.name).is_symlink():
                    (folder / program.name).symlink_to(program)
    first = place.env["PATH"].split(os.pathsep)[:2]
    assert shutil.which(name, path=os.pathsep.join(first)) is None
    return os.pathsep.join([*first, str(folder)])


def states(done: Done, mode: str) -> dict[str, str]:
    """Of the effects that were looked for on the host, by probe."""
    found: dict[str, str] = {}
    for record in done.records:
        if record["run"]["mode"] == mode:
            assert record["control"]["state"] == "succeeded", record["control"]
            found[record["probe"]["id"]] = record["effect"]["state"]
    return found


def run_in_claude(place: Place, *words: str, settings: Path) -> subprocess.CompletedProcess[bytes]:
    alone = ("unshare", "-n") if is_alone() else ()
    state = {"CLAUDE_CONFIG_DIR": str(place.root / "state"), "CLAUDE_CODE_TMPDIR": str(place.tmp)}
    done = subprocess.run(
        [*alone, HELPERS / "claude-run", settings, "--", *words],
        env={**place.env, **state},
        cwd=place.workspace,
        capture_output=True,
        check=False,
        timeout=PATIENCE,
    )
    shutil.rmtree(place.tmp)
    place.tmp.mkdir()
    return done


def test_what_a_command_writes_comes_through_as_it_is(sandboxed: Place) -> None:
    """Bytes that are no text, and words that a shell would read otherwise."""
    settings = sandboxed.root / "settings.json"
    settings.write_text('{"permissions": {"allow": ["Bash"]}, "sandbox": {"enabled": true}}')
    script = 'printf "\\036 %s \\377\\0\\037\\n" "$1"; echo "to stderr" >&2; exit 7'
    words = ("bash", "-c", script, "-", 'it\'s $HOME `a` "b"\n * \\')
    done = run_in_claude(sandboxed, *words, settings=settings)
    assert done.stdout == b'\x1e it\'s $HOME `a` "b"\n * \\ \xff\0\x1f\n', done.stderr
    assert (done.returncode, b"to stderr" in done.stderr) == (7, True)
    # More than a tool result holds is no result.
    done = run_in_claude(sandboxed, "head", "-c", "100000", "/dev/zero", settings=settings)
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"claude-run: the Bash tool told nothing of the command: <pers" in done.stderr
    settings.write_text('{"permissions": {"deny": ["Bash"]}}')
    done = run_in_claude(sandboxed, "touch", "ran", settings=settings)
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"claude-run: " in done.stderr
    assert not (sandboxed.workspace / "ran").exists()


@pytest.mark.parametrize("words", [(), ("--as", "nobody")], ids=["own user", "nobody"])
def test_a_sandbox_that_is_on_holds(sandboxed: Place, words: tuple[str, ...]) -> None:
    if words and os.geteuid() != 0:
        pytest.skip("needs root")
    mode = "claude-sandbox"
    done = sandboxed.stream("canary", "--mode", mode, *words)
    assert done.code == 0, done.err
    assert "4 of 4 canaries stopped" in done.err
    done = sandboxed.stream("matrix", "--mode", mode, *words, "--probe", *WRITES, *EGRESS)
    assert done.code == 0, done.err
    assert states(done, mode) == {
        "fs_outside_workspace": "not-seen",
        "fs_sentinel_delete": "seen",
        "egress_http_allowed": "seen",
        "egress_http_denied": "not-seen",
    }
    [version] = {one["sandbox"]["version"] for one in done.records if one["run"]["mode"] == mode}
    assert version.endswith(" (Claude Code)")


@pytest.mark.parametrize("name", NEEDED)
def test_it_fails_open_silently_without_what_it_needs(
    sandboxed: Place, locked: Path, name: str
) -> None:
    env = {"PATH": path_without(sandboxed, name)}
    done = sandboxed.stream("canary", "--mode", "claude-sandbox", env=env)
    assert done.code == 1, done.err
    assert done.err.count("GOT THROUGH") == 4
    assert "0 of 4 canaries stopped" in done.err
    done = sandboxed.stream("lock", "--check", locked, "--format", "json", env=env)
    assert done.code == 1, done.err
    opened = {one["probe"] for one in json.loads(done.out)["opened"]}
    assert opened == {"fs_outside_workspace", "egress_http_denied"}


def test_settings_promise_what_holds_only_with_what_they_need(sandboxed: Place) -> None:
    """Each fail-open names the line of the settings that promises otherwise."""
    settings = sandboxed.root / "policy.json"
    network = '"network": {"allowedDomains": ["allowed.example.test", "*.allowed.example.test"]}'
    settings.write_text(f'{{"sandbox": {{\n"enabled": true,\n{network}}}}}')
    words = (
        "matrix",
        "--mode",
        "claude-sandbox",
        "--policy",
        settings,
        "--probe",
        *WRITES,
        *EGRESS,
    )
    done = sandboxed.stream(*words)
    assert done.code == 0, done.err
    assert "policy: 0 fail-open, 0 fail-closed, " in done.err
    assert "; 4 as promised" in done.err
    done = sandboxed.stream(*words, env={"PATH": path_without(sandboxed, "socat")})
    assert done.code == 1, done.err
    opened = [line for line in done.err.splitlines() if ": fail-open: " in line]
    said = [(f"{settings}:2", "fs_outside_workspace"), (f"{settings}:3", "egress_http_denied")]
    assert {(line.split(": ")[0], line.split(": ")[2].split()[0]) for line in opened} == {*said}
    assert len(opened) == 2


def test_a_sandbox_that_is_required_runs_nothing_without_what_it_needs(sandboxed: Place) -> None:
    env = {"PATH": path_without(sandboxed, "socat")}
    done = sandboxed.stream("canary", "--mode", "claude-sandbox-strict", env=env)
    assert done.code == 40, done.err
    assert "GOT THROUGH" not in done.err
    assert "0 of 5 canaries stopped" in done.err
    assert done.err.count("status 125: Error: sandbox required but unavailable") == 5
    words = ("matrix", "--mode", "claude-sandbox-strict", "--probe", *WRITES)
    done = sandboxed.stream(*words, env=env)
    assert done.code == 1, done.err
    assert set(states(done, "claude-sandbox-strict").values()) == {"not-seen"}
    assert {harness_exit_code(one) for one in done.records} == {None, 125}


def harness_exit_code(record: Any) -> int | None:
    raw = record["payload"]["raw"]
    return raw["harness"]["exit_code"] if raw and "harness" in raw else None


def test_a_model_that_asks_to_leave_the_sandbox(sandboxed: Place) -> None:
    """Where nobody is asked for a permission it may, and reaches each host besides; where nothing
    may run unsandboxed, it does not."""
    held = sandboxed.stream("canary", "--mode", "claude-sandbox-strict")
    assert held.code == 0, held.err
    assert "5 of 5 canaries stopped" in held.err
    left = sandboxed.stream("canary", "--mode", "claude-sandbox-bypass")
    assert left.code == 1, left.err
    assert "0 of 4 canaries stopped" in left.err
