"""Failures that were reported of real sandboxes, recreated: `stream lock --check` sees each."""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import Done, Place
from tests.cli.test_modes import write_mode
from tests.sandboxes import needs_sandbox

PROBES = ("fs_outside_workspace", "fs_workspace_write_create", "fs_planted_key_read")
OTHER_SRT = os.environ.get("STREAM_TESTS_OTHER_SRT", "")


def lock_modes(place: Place, *modes: str | Path, probes: tuple[str, ...] = PROBES) -> Path:
    lock = place.workspace / "boundary.lock"
    done = place.stream("lock", "--mode", *modes, "--probe", *probes, "-o", lock)
    assert done.code == 0, done.err
    return lock


def drift_in(done: Done) -> dict[str, set[str]]:
    """The probes in each list of a drift."""
    assert done.code == 1, done.err
    found: dict[str, Any] = json.loads(done.out)
    lists = ("opened", "closed", "unmeasured")
    return {name: {one["probe"] for one in found[name]} for name in lists}


@needs_sandbox("srt")
@pytest.mark.skipif(not OTHER_SRT, reason="needs another version of srt: STREAM_TESTS_OTHER_SRT")
def test_another_version_ignores_its_settings(place: Place) -> None:
    """sandbox-runtime 0.0.1 knows no -s: it takes the settings that it finds in the home folder."""
    probes = (*PROBES, "net_unix_socket_outside")
    lock_modes(place, "srt-workspace", probes=probes)
    assert place.stream("lock", "--check").code == 0
    path = f"{OTHER_SRT}:{place.env['PATH']}"
    drift = drift_in(place.stream("lock", "--check", "--format", "json", env={"PATH": path}))
    assert drift["opened"] == {"fs_planted_key_read", "net_unix_socket_outside"}


#: Runs a program in whose sight the kernel has no Landlock: its system call fails.
WITHOUT_LANDLOCK = """
import ctypes, os, struct, sys
CREATE_RULESET, EOPNOTSUPP, ALLOW, ERRNO = 444, 95, 0x7FFF0000, 0x00050000
code = b"".join(struct.pack("HBBI", *row) for row in (
    (0x20, 0, 0, 0), (0x15, 0, 1, CREATE_RULESET), (6, 0, 0, ERRNO | EOPNOTSUPP), (6, 0, 0, ALLOW)))
held = ctypes.create_string_buffer(code, len(code))
program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(held))
libc = ctypes.CDLL(None, use_errno=True)
for call in ((38, 1, 0, 0, 0), (22, 2, program, 0, 0)):
    if libc.prctl(*call) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
os.execvp(sys.argv[1], sys.argv[1:])
"""


def test_a_landlock_that_is_not_active(place: Place) -> None:
    """The launcher of the project refuses to run anything then. One that does what it can runs it
    without a sandbox."""
    launcher = 'folder=$1; shift; "$0" --rw "$folder" -- "$@" 2>/dev/null || exec "$@"'
    words = ["bash", "-c", launcher, "{helpers}/landlock-run", "{workspace}", "{probe}"]
    lenient = write_mode(place, "best-effort", words, sandbox="landlock")
    lock_modes(place, "landlock-workspace", lenient)
    python = (sys.executable, "-c", WITHOUT_LANDLOCK)
    done = place.stream(
        *("lock", "--check", "--format", "json", "--mode", "landlock-workspace", lenient),
        argv0=(*python, sys.executable, "-m", "stream"),
    )
    assert done.code == 1, done.err
    found = json.loads(done.out)
    assert {(one["mode"], one["probe"]) for one in found["opened"]} == {
        ("best-effort", "fs_outside_workspace")
    }
    assert {(one["mode"], one["probe"]) for one in found["unmeasured"]} == {
        ("landlock-workspace", probe) for probe in PROBES
    }
    assert struct.calcsize("P") == 8
