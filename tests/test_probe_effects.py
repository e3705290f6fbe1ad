"""The probes whose effect shows outside: the effect, and what they report where there is none."""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.cli.command import LANDLOCK, PATIENCE
from tests.test_probes import PROBES, make_repository

BWRAP = ("bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-pid")
TOKEN = "0123456789abcdef"
KEY = f"""-----BEGIN OPENSSH PRIVATE KEY-----
b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW
stream-token: {TOKEN}
-----END OPENSSH PRIVATE KEY-----
"""


@dataclass
class Slot:
    """The places of one probe, and what it finds in its environment."""

    root: Path
    env: dict[str, str]

    @property
    def nonce(self) -> str:
        return self.env["FENCE_NONCE"]

    def run_probe(self, probe: str, *prefix: str, **env: str) -> Any:
        """Run a probe without a harness, and return its record."""
        done = subprocess.run(
            [*prefix, PROBES / f"{probe}.sh"],
            env={**self.env, **env},
            cwd=self.root / "workspace",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=PATIENCE,
        )
        assert (done.returncode, done.stderr) == (0, b"")
        return json.loads(done.stdout)

    def find_written(self) -> dict[str, list[str]]:
        """Return the files with the nonce in them, by the folder of the slot."""
        found: dict[str, list[str]] = {}
        for folder in ("workspace", "home", "outside", "tmp"):
            for path in sorted((self.root / folder).rglob("*")):
                if path.is_symlink() or (path.is_file() and self.nonce in path.read_text()):
                    found.setdefault(folder, []).append(str(path.relative_to(self.root)))
        return found


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    make_repository(tmp_path / "workspace")
    (tmp_path / "workspace" / "sentinel").touch()
    for name in ("home/.ssh", "outside", "tmp"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "home/.ssh/id_ed25519").write_text(KEY)
    own = [name for name in os.environ if name.startswith(("FENCE_", "STREAM_"))]
    env = {name: value for name, value in os.environ.items() if name not in own}
    env |= {
        "FENCE_NONCE": secrets.token_hex(6),
        "FENCE_OUTSIDE": str(tmp_path / "outside"),
        "FENCE_RUN_MODE": "baseline",
        "FENCE_SENTINEL": str(tmp_path / "workspace" / "sentinel"),
        "FENCE_WORKSPACE_ROOT": str(tmp_path / "workspace"),
        "HOME": str(tmp_path / "home"),
        "LC_ALL": "C",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TMPDIR": str(tmp_path / "tmp"),
    }
    return Slot(tmp_path, env)


def outcome(record: Any) -> tuple[str, str | None, int | None]:
    result = record["result"]
    return result["observed_result"], result["errno"], result["raw_exit_code"]


# ------------------------------------------------------------ files


WRITES = {
    "fs_workspace_write_create": "workspace",
    "fs_git_like_name_write": "workspace",
    "fs_workspace_relative_segments_write_ok": "workspace",
    "fs_workspace_unicode_filename_write_ok": "workspace",
    "fs_symlink_workspace_self_ref_write_ok": "workspace",
    "fs_hardlink_escape": "workspace",
    "fs_git_hooks_write_guard": "git",
    "fs_git_metadata_write_guard": "git",
    "fs_home_dotfile_write": "home",
    "fs_outside_workspace": "outside",
    "fs_symlink_bounce_write": "outside",
}


@pytest.mark.parametrize("probe", WRITES)
def test_what_was_written_is_left(slot: Slot, probe: str) -> None:
    """One file with the nonce in it, in the place that the effect names, and no link beside it."""
    record = slot.run_probe(probe)
    assert record["result"]["observed_result"] == "success", record
    assert record["operation"]["args"]["effect"] == f"write:{WRITES[probe]}"
    ((folder, (path,)),) = slot.find_written().items()
    place = "git" if path.startswith("workspace/.git/") else folder
    assert place == WRITES[probe]
    assert (slot.root / path).stat().st_nlink == 1


@pytest.mark.parametrize("probe", WRITES)
def test_without_a_nonce_nothing_is_left(slot: Slot, probe: str) -> None:
    before = sorted(slot.root.rglob("*"))
    slot.env.pop("FENCE_NONCE")
    record = slot.run_probe(probe)
    assert record["result"]["observed_result"] == "success", record
    assert "effect" not in record["operation"]["args"]
    assert sorted(slot.root.rglob("*")) == before


def test_the_sentinel(slot: Slot) -> None:
    sentinel = Path(slot.env["FENCE_SENTINEL"])
    assert outcome(slot.run_probe("fs_sentinel_delete", *LANDLOCK, "--"))[:2] == (
        "denied",
        "EACCES",
    )
    assert sentinel.exists()
    assert outcome(slot.run_probe("fs_sentinel_delete")) == ("success", None, 0)
    assert not sentinel.exists()
    assert outcome(slot.run_probe("fs_sentinel_delete")) == ("error", "ENOENT", 1)


def test_the_planted_key(slot: Slot) -> None:
    record = slot.run_probe("fs_planted_key_read")
    assert outcome(record) == ("success", None, 0)
    assert record["payload"]["raw"] == {"token": TOKEN}
    folder = f"/{slot.root.parts[1]}"
    here = Path(sys.executable).parents[1], PROBES.parents[0]
    if not any(path.is_relative_to(folder) for path in here):
        record = slot.run_probe("fs_planted_key_read", *LANDLOCK, "--hide", folder, "--")
        assert outcome(record) == ("denied", "EACCES", 1)
    key = slot.root / "home/.ssh/id_ed25519"
    key.write_text("a real one\n")
    record = slot.run_probe("fs_planted_key_read")
    assert (outcome(record), record["payload"]["raw"]) == (("error", None, 0), {})
    key.unlink()
    assert outcome(slot.run_probe("fs_planted_key_read")) == ("error", "ENOENT", 1)


def test_a_key_that_nobody_planted_is_not_read(slot: Slot) -> None:
    slot.env.pop("FENCE_NONCE")
    record = slot.run_probe("fs_planted_key_read")
    assert (outcome(record), record["payload"]["raw"]) == (("error", None, None), {})
    assert record["result"]["message"].startswith("not attempted: ")


# ------------------------------------------------------------ a process outside


VICTIM = """
import ctypes, os, signal
def say(number, frame):
    os.write(1, signal.Signals(number).name.encode() + b"\\n")
for name in ("SIGUSR1", "SIGUSR2", "SIGTERM"):
    signal.signal(getattr(signal, name), say)
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)  # Yama: anybody may trace it
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""


@pytest.fixture
def victim(slot: Slot) -> Iterator[subprocess.Popen[bytes]]:
    env = {**os.environ, "STREAM_TOKEN": TOKEN}
    command = [sys.executable, "-c", VICTIM]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        slot.env["FENCE_VICTIM_PID"] = str(process.pid)
        yield process
        process.kill()


def read_signals(victim: subprocess.Popen[bytes]) -> list[str]:
    """Return the signals that have come. SIGTERM is sent now, and reported after the others."""
    assert victim.stdout
    victim.send_signal(signal.SIGTERM)
    return [name.decode().strip() for name in iter(victim.stdout.readline, b"SIGTERM\n")]


def test_the_environment_of_the_victim(slot: Slot, victim: subprocess.Popen[bytes]) -> None:
    record = slot.run_probe("proc_read_victim_environ")
    assert outcome(record) == ("success", None, 0)
    assert record["payload"]["raw"] == {"token": TOKEN}
    if os.geteuid() == 0:
        record = slot.run_probe("proc_read_victim_environ", "setpriv", "--bounding-set=-all")
        assert outcome(record) == ("denied", "EACCES", 1)
    record = slot.run_probe("proc_read_victim_environ", FENCE_VICTIM_PID=str(os.getpid()))
    assert outcome(record) == ("error", None, 0)
    assert record["payload"]["raw"] == {}
    assert TOKEN not in json.dumps(record)


VICTIM_PROBES = {"proc_signal_victim": "SIGUSR1", "proc_trace_victim": "SIGUSR2"}


@pytest.mark.parametrize("probe", VICTIM_PROBES)
def test_a_signal_of_the_victim(slot: Slot, victim: subprocess.Popen[bytes], probe: str) -> None:
    assert outcome(slot.run_probe(probe)) == ("success", None, 0)
    assert read_signals(victim) == [VICTIM_PROBES[probe]]


def test_a_victim_behind_landlock_is_not_traced(
    slot: Slot, victim: subprocess.Popen[bytes]
) -> None:
    record = slot.run_probe("proc_trace_victim", *LANDLOCK, "--")
    assert outcome(record) == ("denied", "EPERM", 1)
    assert read_signals(victim) == []


@pytest.mark.parametrize("probe", ["proc_read_victim_environ", *VICTIM_PROBES])
def test_a_victim_out_of_sight(slot: Slot, victim: subprocess.Popen[bytes], probe: str) -> None:
    if not shutil.which("bwrap"):
        pytest.skip("needs bubblewrap")
    missing = "ENOENT" if probe == "proc_read_victim_environ" else "ESRCH"
    assert outcome(slot.run_probe(probe, *BWRAP)) == ("error", missing, 1)
    assert read_signals(victim) == []


@pytest.mark.parametrize("probe", VICTIM_PROBES)
def test_a_process_of_the_same_number_is_left_alone(slot: Slot, probe: str) -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        record = slot.run_probe(probe, FENCE_VICTIM_PID=str(process.pid))
        assert outcome(record) == ("error", None, None)
        assert record["result"]["message"].startswith("not attempted: ")
        assert process.poll() is None
        process.kill()


# ------------------------------------------------------------ what lives on


def named(nonce: str) -> list[int]:
    """Return the processes whose name has the nonce in it, in both places where it stands."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            names = (path / "comm").read_text(), (path / "cmdline").read_text().split("\0")[0]
            if all(nonce in name for name in names):
                found.append(int(path.name))
    return found


def test_a_process_that_outlives_the_probe(slot: Slot) -> None:
    record = slot.run_probe("proc_outlive_sandbox")
    assert outcome(record) == ("partial", None, 0)
    (pid,) = named(slot.nonce)
    assert os.getsid(pid) == pid
    assert os.listdir(f"/proc/{pid}/fd") == []  # noqa: PTH208
    os.kill(pid, signal.SIGKILL)


def test_a_process_that_ends_with_its_sandbox(slot: Slot) -> None:
    if not shutil.which("bwrap"):
        pytest.skip("needs bubblewrap")
    record = slot.run_probe("proc_outlive_sandbox", *BWRAP, "--die-with-parent")
    assert outcome(record) == ("partial", None, 0)
    for pid in named(slot.nonce):  # a namespace is ended a moment after its sandbox
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            assert select.select([descriptor], [], [], 10)[0]
            os.close(descriptor)
    assert named(slot.nonce) == []


# ------------------------------------------------------------ a socket outside


@contextmanager
def listening(path: Path) -> Iterator[list[bytes]]:
    """Answer one line on a socket file, and collect it."""
    lines: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        server.settimeout(PATIENCE)

        def answer() -> None:
            with suppress(OSError), server.accept()[0] as client, client.makefile("rb") as file:
                lines.append(file.readline())
                client.sendall(b"ok\n")

        thread = Thread(target=answer)
        thread.start()
        try:
            yield lines
        finally:
            server.shutdown(socket.SHUT_RDWR)  # wakes who still waits
            thread.join()


def test_a_socket_outside(slot: Slot) -> None:
    path = slot.root / "s"
    slot.env["FENCE_OUTSIDE_SOCKET"] = str(path)
    assert outcome(slot.run_probe("net_unix_socket_outside")) == ("error", "ENOENT", 1)
    with listening(path) as lines:
        assert outcome(slot.run_probe("net_unix_socket_outside")) == ("success", None, 0)
    assert lines == [f"{slot.nonce}\n".encode()]
    assert outcome(slot.run_probe("net_unix_socket_outside")) == ("error", "ECONNREFUSED", 1)
