"""Probes in modes: real sandboxes, measured from outside, and modes that misbehave."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stream.boundary.modes import FOLDER, PLACES
from stream.codec import BUNDLE
from stream.records.mode_files import ModeDocument
from tests.cli.command import STREAM, Done, Place, processes_naming

#: where a write must be looked for outside of the slot
SHARED = ("fs_tmp_write", "fs_usr_write_guard", "fs_system_roots_write_guard")
EFFECTS = ("fs_outside_workspace", "fs_workspace_write_create", "fs_sentinel_delete")
HOME = Path(pwd.getpwuid(os.geteuid()).pw_dir)
Cells = dict[tuple[str, str], Any]


def write_mode(place: Place, name: str, command: list[str], **more: Any) -> Path:
    lines = [f"title = {json.dumps(name)}", f"command = {json.dumps(command)}"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in more.items()]
    path = place.root / f"{name}.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def cells_of(done: Done) -> Cells:
    return {(one["run"]["mode"], one["probe"]["id"]): one for one in done.records}


def measure(place: Place, *words: str | Path, code: int = 0) -> Cells:
    done = place.stream("matrix", *words)
    assert done.code == code, done.err
    valid = place.stream("validate", "-", data=done.out)
    assert valid.code == 0, valid.err
    return cells_of(done)


def test_a_mode_is_measured_beside_its_control(place: Place) -> None:
    cells = measure(place, "--mode", "bwrap-ro", "bwrap-workspace", "--probe", *EFFECTS)
    assert [mode for mode, _ in cells] == [
        mode for mode in ("baseline", "bwrap-ro", "bwrap-workspace") for _ in EFFECTS
    ]
    for (mode, probe), record in cells.items():
        assert record["schema_version"] == "boundary_event_v2"
        expected = "is-control" if mode == "baseline" else "succeeded"
        assert record["control"]["state"] == expected, (mode, probe)
    deleted = {mode: cells[mode, "fs_sentinel_delete"] for mode, _ in cells}
    assert [deleted[mode]["effect"]["state"] for mode in deleted] == ["seen", "not-seen", "seen"]
    assert deleted["bwrap-ro"]["result"]["errno"] == "EROFS"
    assert deleted["bwrap-ro"]["sandbox"]["name"] == "bubblewrap"
    assert deleted["bwrap-ro"]["sandbox"]["version"].startswith("bubblewrap ")
    assert deleted["bwrap-ro"]["stack"]["sandbox_mode"] == "read-only"
    digests = {deleted[mode]["sandbox"]["settings_sha256"] for mode in deleted}
    assert len(digests) == 3


def test_baseline_alone_keeps_the_first_pattern(place: Place) -> None:
    done = place.stream("matrix", "--mode", "baseline", "--probe", "fs_workspace_write_create")
    assert done.code == 0, done.err
    assert [one["schema_version"] for one in done.records] == ["boundary_event_v1"]


def test_a_write_that_is_thrown_away_did_not_happen(place: Place) -> None:
    """gVisor lets it succeed on an overlay."""
    cells = measure(place, "--mode", "gvisor", "--probe", "fs_sentinel_delete")
    record = cells["gvisor", "fs_sentinel_delete"]
    assert record["result"]["observed_result"] == "partial"
    assert record["effect"] == {
        "claimed": "success",
        "expected": "delete:workspace",
        "seen": [],
        "state": "not-seen",
    }


def test_a_write_to_a_shared_folder_is_found_and_removed(place: Place, needs_root: None) -> None:
    cells = measure(place, "--mode", "bwrap-ro", "gvisor", "--probe", *SHARED)
    for probe in SHARED:
        states = [cells[mode, probe]["effect"]["state"] for mode in ("baseline", "bwrap-ro")]
        assert states == ["seen", "not-seen"]
        assert cells["gvisor", probe]["effect"]["claimed"] == "success"
        assert cells["gvisor", probe]["effect"]["state"] == "not-seen"
        assert not Path(cells["baseline", probe]["operation"]["target"]).exists()


def test_nothing_of_a_run_stays(place: Place) -> None:
    process = place.start("matrix", "--mode", "bwrap-workspace", "--probe", *EFFECTS)
    assert place.finish(process).code == 0
    assert not list(HOME.glob(f".stream-{process.pid}-*"))


def test_a_raw_matrix_becomes_the_same_records(place: Place) -> None:
    words = ("--mode", "bwrap-ro", "--probe", "fs_sentinel_delete")
    raw = place.stream("matrix", "--raw", *words)
    assert raw.code == 0, raw.err
    made = place.stream("emit", "-", data=raw.out)
    assert made.code == 0, made.err
    states = [(one["run"]["mode"], one["effect"]["state"]) for one in made.records]
    assert states == [("baseline", "seen"), ("bwrap-ro", "not-seen")]
    assert made.records[1]["control"]["state"] == "succeeded"


def test_probes_run_as_another_user(place: Place, needs_root: None) -> None:
    words = ("--as", "nobody", "--mode", "bwrap-workspace", "--probe", "fs_sentinel_delete")
    cells = measure(place, *words)
    assert {one["run"]["user"] for one in cells.values()} == {"nobody"}
    assert cells["bwrap-workspace", "fs_sentinel_delete"]["effect"]["state"] == "seen"


def test_under_sudo_probes_run_as_who_called_it(place: Place, needs_root: None) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    words = ("matrix", "--mode", "bwrap-workspace", "--probe", "fs_sentinel_delete")
    done = place.stream(*words, env={"SUDO_UID": str(nobody)})
    assert done.code == 0, done.err
    assert {one["run"]["user"] for one in done.records} == {"nobody"}


def test_a_proxy_of_the_caller_is_not_in_the_stand_in(place: Place) -> None:
    """A probe that went to it would reach nothing without the sandbox either."""
    env = dict.fromkeys(("http_proxy", "HTTP_PROXY", "https_proxy"), "http://127.0.0.1:9")
    words = ("--mode", "bwrap-ro", "--probe", "egress_http_denied", "egress_connect_denied")
    done = place.stream("matrix", *words, env=env)
    assert done.code == 0, done.err
    assert {one["effect"]["state"] for one in done.records} == {"seen"}, done.records


def test_a_probe_that_fails_without_the_sandbox_proves_nothing(
    place: Place, needs_root: None
) -> None:
    """An ordinary user cannot write to /usr with or without it."""
    cells = measure(place, "--as", "nobody", "--mode", "bwrap-ro", "--probe", "fs_usr_write_guard")
    control = cells["bwrap-ro", "fs_usr_write_guard"]["control"]
    assert control == {"errno": "EACCES", "observed_result": "denied", "state": "no-control"}


READ_ONLY = 'mount -o remount,bind,ro / && exec "$@"'
OWN_MODES = {
    "unshare-ro": (
        ["unshare", "--mount", "bash", "-c", READ_ONLY, "-", "{probe}"],
        {"fs_workspace_write_create": "EROFS", "fs_outside_workspace": "EROFS"},
    ),
    "landlock-no-tcp": (
        ["{helpers}/landlock-run", "--rw", "{workspace}", "--no-tcp", "--", "{probe}"],
        {"fs_outside_workspace": "EACCES", "egress_tcp_address": "EACCES"},
    ),
}


@pytest.mark.parametrize("name", OWN_MODES)
def test_a_mode_of_ones_own_is_a_file(place: Place, needs_root: None, name: str) -> None:
    command, closed = OWN_MODES[name]
    mode = write_mode(place, name, command, sandbox=name)
    cells = measure(place, "--mode", mode, "--probe", *closed)
    for probe, errno in closed.items():
        record = cells[name, probe]
        assert record["result"]["errno"] == errno, record["result"]
        assert (record["effect"]["state"], record["control"]["state"]) == ("not-seen", "succeeded")


def test_a_wrapper_that_only_execs_lets_everything_through(place: Place) -> None:
    mode = write_mode(place, "inert", ["env", "{probe}"], sandbox="inert")
    cells = measure(place, "--mode", mode, "--probe", *EFFECTS)
    for probe in EFFECTS:
        here, there = cells["inert", probe], cells["baseline", probe]
        assert here["result"]["observed_result"] == there["result"]["observed_result"] == "success"


MISBEHAVING = {
    "silent": (["sh", "-c", '"$@" >/dev/null', "-", "{probe}"], "no-record"),
    "killer": (["sh", "-c", "kill -9 $$", "-", "{probe}"], "killed"),
    "refuses": (["sh", "-c", "exit 3", "-", "{probe}"], "exit-status"),
    "absent": (["/nonexistent/sandbox", "{probe}"], ""),
    "leaves": (["sh", "-c", '"$@"; setsid sleep 60 >/dev/null 2>&1 &', "-", "{probe}"], ""),
}


def test_a_banner_of_a_sandbox_hides_no_record(place: Place) -> None:
    mode = write_mode(place, "banner", ["sh", "-c", 'echo a banner; exec "$@"', "-", "{probe}"])
    cells = measure(place, "--mode", mode, "--probe", "fs_sentinel_delete")
    record = cells["banner", "fs_sentinel_delete"]
    assert record["effect"]["state"] == "seen"
    assert record["payload"]["raw"]["sandbox_stdout"] == "a banner"


@pytest.mark.parametrize("name", MISBEHAVING)
def test_a_sandbox_that_misbehaves_gives_an_error_record(place: Place, name: str) -> None:
    command, reason = MISBEHAVING[name]
    mode = write_mode(place, name, command)
    cells = measure(place, "--mode", mode, "--probe", "fs_sentinel_delete", code=1)
    record = cells[name, "fs_sentinel_delete"]
    assert record["effect"]["claimed"] == "error"
    if reason:
        assert record["payload"]["raw"]["harness"]["reason"] == reason
    assert cells["baseline", "fs_sentinel_delete"]["result"]["observed_result"] == "success"


def test_a_mode_may_have_time_of_its_own_to_start(place: Place) -> None:
    mode = write_mode(place, "slow", ["sh", "-c", "sleep 60", "{probe}"], start_seconds=0.5)
    words = ("--mode", mode, "--probe", "fs_sentinel_delete", "--timeout", "1")
    cells = measure(place, *words, code=1)
    said = cells["slow", "fs_sentinel_delete"]["result"]["message"]
    assert said == "the probe was still running after 1.5 s"


def test_what_a_sandbox_leaves_is_named_and_removed(place: Place) -> None:
    command = ["sh", "-c", 'echo x >.mess; echo y >"$HOME/.mess2"; exec "$@"', "-", "{probe}"]
    mode = write_mode(place, "messy", command)
    done = place.stream("matrix", "--mode", mode, "--probe", *EFFECTS[:2], "--jobs", "1")
    assert done.code == 0, done.err
    assert "left behind in mode messy, and removed: home/.mess2, workspace/.mess" in done.err


def test_a_mount_that_a_sandbox_leaves_is_named_and_removed(place: Place, needs_root: None) -> None:
    point = place.root / "point"
    point.mkdir()
    command = ["sh", "-c", f'mount -t tmpfs none {point}; exec "$@"', "-", "{probe}"]
    mode = write_mode(place, "mounts", command)
    done = place.stream("matrix", "--mode", mode, "--probe", EFFECTS[0])
    assert done.code == 0, done.err
    assert f"a sandbox left behind a mount on {point}, removed" in done.err
    assert str(point) not in Path("/proc/self/mountinfo").read_text()


def test_a_missing_tool_is_said_once_and_its_cells_are_not_run(place: Place) -> None:
    mode = write_mode(
        place, "gone", ["gone-sandbox", "{probe}"], needs=["gone-sandbox"], install="apt install it"
    )
    words = ("matrix", "--mode", mode, "--probe", *EFFECTS)
    done = place.stream(*words)
    assert done.code == 0, done.err
    assert done.err.count("gone-sandbox missing; install: apt install it") == 1
    assert {one["run"]["mode"] for one in done.records} == {"baseline"}
    required = place.stream(*words, "--require-mode")
    assert (required.code, required.out) == (40, b"")


BAD_FILES = {
    'title = "t"\ncommand = ["a", "{prob}"]\n': ":2: $.command: expected the word {probe} once",
    'title = "t"\ncommand = ["{probe}"]\ncolour = 3\n': ":3: Object contains unknown field",
    'title = "t"\ncommand = ["{probe}",\n': ":3: invalid value",
    'title = "t"\ncommand = ["{nest}", "{probe}"]\n': ":2: $.command: unknown place {nest}",
    'title = "t"\ncommand = ["{probe}"]\nneeds = ["x"]\n': ":3: $.install: missing",
    'title = "t"\n\ncommand = "x"\n': ":3: Expected `array`, got `str`",
    'title = "t"\ncommand = ["{probe}"]\n[files]\n"/etc/x" = ""\n': ":3: $.files: /etc/x",
    "\xff": ":1: ",
}


@pytest.mark.parametrize("text", BAD_FILES)
def test_an_error_in_a_mode_file_is_named_with_its_line(place: Place, text: str) -> None:
    path = place.root / "bad.toml"
    path.write_bytes(text.encode("latin-1"))
    done = place.stream("matrix", "--mode", path)
    assert (done.code, done.out) == (2, b"")
    assert f"bad.toml{BAD_FILES[text]}" in done.err, done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--mode", "bwrp-ro"), "did you mean bwrap-ro?"),
        (("--as", "no-such-user", "--mode", "bwrap-ro"), "there is no such user"),
        (("--mode", "bwrap-ro", "--workspace", "."), "a workspace that is made for them"),
        (("--mode", "./none.toml"), "none.toml"),
    ],
)
def test_wrong_use_is_refused(place: Place, words: tuple[str, ...], said: str) -> None:
    done = place.stream("matrix", *words)
    assert (done.code, done.out) == (2, b"")
    assert said in done.err, done.err


def test_modes_are_listed_with_what_is_missing(place: Place) -> None:
    tools = place.root / "bin"
    tools.mkdir()
    for name in ("env", "bash"):
        (tools / name).symlink_to(str(shutil.which(name)))
    done = place.stream("modes", "--json", env={"PATH": str(tools)})
    assert done.code == 0, done.err
    found = {one["mode"]: one for one in done.records}
    assert found["baseline"]["state"] == "ok"
    assert found["bwrap-ro"]["reason"] == "bwrap missing; install: apt install bubblewrap"
    assert found["sandbox-exec"]["untested"]
    text = place.stream("modes").out.decode()
    assert all(name in text for name in found)


def test_the_page_of_modes_names_every_key_place_and_mode() -> None:
    page = (BUNDLE / "schema" / "modes.md").read_text()
    named = set(re.findall(r"^\| `([^`]*)` \|", page, re.MULTILINE))
    modes = {path.stem for path in FOLDER.glob("*.toml")}
    places = {f"{{{place}}}" for place in PLACES}
    assert named == {*ModeDocument.__struct_fields__, *modes, *places}


def test_canaries_that_get_through_are_named(place: Place) -> None:
    done = place.stream("canary", "--mode", "baseline")
    assert done.code == 1, done.err
    assert done.err.count("GOT THROUGH") == 5
    assert "0 of 5 canaries stopped" in done.err


@pytest.mark.parametrize("mode", ["bwrap-offline", "landlock-ro", "unshare-net", "gvisor"])
def test_a_sandbox_that_is_on_stops_its_canaries(place: Place, mode: str) -> None:
    done = place.stream("canary", "--mode", mode)
    assert done.code == 0, done.err
    assert "GOT THROUGH" not in done.err


WITH_A_USER = """
mount --bind "$1" /etc/passwd && mount -t tmpfs none /home && mkdir /home/tester &&
chown 4321:4321 /home/tester && shift && exec "$@"
"""


def test_firejail_confines_a_user_to_the_workspace_in_the_home(
    place: Place, needs_root: None
) -> None:
    """It gives the home a mount of its own, and refuses users of the system."""
    passwd = place.root / "passwd"
    users = Path("/etc/passwd").read_text()
    passwd.write_text(f"{users}tester:x:4321:4321::/home/tester:/bin/bash\n")
    inside = ("unshare", "--mount", "sh", "-c", WITH_A_USER, "-", str(passwd), STREAM)
    words = ("canary", "--mode", "firejail-workspace", "--as")
    done = place.stream(*words, "tester", argv0=inside)
    assert done.code == 0, done.err
    assert "3 of 3 canaries stopped" in done.err
    done = place.stream(*words, "nobody", argv0=inside)
    assert done.code == 40, done.err
    assert "status 1: Error: the user is not allowed to use Firejail." in done.err


def test_a_canary_in_a_sandbox_that_does_nothing_is_alarmed(place: Place) -> None:
    mode = write_mode(place, "inert", ["env", "{probe}"], sandbox="inert")
    done = place.stream("canary", "--mode", mode)
    assert done.code == 1, done.err
    assert done.err.count("GOT THROUGH") == 5


def test_a_canary_that_cannot_tell_says_so(place: Place) -> None:
    mode = write_mode(place, "refuses", ["sh", "-c", "exit 3", "-", "{probe}"])
    done = place.stream("canary", "--mode", mode)
    assert done.code == 40, done.err
    assert done.err.count("it could not be told whether") == 5
    assert place.stream("canary", "--mode", "sandbox-exec").code == 40


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_matrix_leaves_nothing(place: Place, number: signal.Signals) -> None:
    """Killed, it leaves its folder to the next run, and no process."""
    command = ["sh", "-c", 'echo >&2; sleep 60; exec "$@"', "-", "{probe}"]
    mode = write_mode(place, "slow", command)
    process = place.start("matrix", "--mode", mode, "--probe", *EFFECTS, "-o", place.root / "out")
    while not any("sleep 60" in line for line in descendants(process.pid)):
        assert process.poll() is None
    process.send_signal(number)
    done = place.finish(process)
    assert done.code in (130, 143, -9), done.err
    folders = list(HOME.glob(f".stream-{process.pid}-*"))
    assert bool(folders) == (number == signal.SIGKILL)
    if number == signal.SIGKILL:
        for pid in processes_in(folders[0]):
            os.kill(pid, signal.SIGKILL)  # probes that ran: nobody was left to end them
        assert place.stream("canary", "--mode", "unshare-net").code == 0
        assert not folders[0].exists()
        for folder in place.tmp.iterdir():  # of the scripts, as after any matrix that was killed
            shutil.rmtree(folder)


def descendants(pid: int) -> list[str]:
    """The command lines of the processes below one."""
    done = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, check=True)
    rows = [line.split(None, 2) for line in done.stdout.decode().splitlines()]
    below = {str(pid)}
    for _ in rows:
        more = {row[0] for row in rows if row[1] in below} - below
        if not more:
            break
        below |= more
    return [row[2] for row in rows if row[0] in below]


def processes_in(folder: Path) -> list[int]:
    return [int(line.split(":")[0]) for line in processes_naming(str(folder))]


def test_without_a_network_namespace_the_rest_is_measured(place: Place) -> None:
    """As where nsenter is missing."""
    tools = place.root / "bin"
    tools.mkdir()
    for name in ("bash", "perl", "bwrap", "env", "rm", "sh", "head", "tr", "setpriv"):
        (tools / name).symlink_to(str(shutil.which(name)))
    env = {"PATH": str(tools)}
    words = ("--mode", "bwrap-ro", "--probe", "fs_sentinel_delete", "egress_tcp_address")
    done = place.stream("matrix", *words, env=env)
    assert done.code == 0, done.err
    assert done.err.count("the network was not measured: ") == 1
    cells = cells_of(done)
    assert cells["bwrap-ro", "fs_sentinel_delete"]["effect"]["state"] == "not-seen"
    for mode in ("baseline", "bwrap-ro"):
        record = cells[mode, "egress_tcp_address"]
        assert record["result"]["observed_result"] == "error"
        assert record["effect"]["state"] == "not-checked"
        assert "not attempted" in record["result"]["message"]
    canary = place.stream("canary", "--mode", "bwrap-offline", env=env)
    assert canary.code == 40, canary.err
    assert "it could not be told whether a connection to an address outside was made" in canary.err
