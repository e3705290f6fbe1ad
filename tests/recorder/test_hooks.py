"""A hook writes what it is given, whole and as one line, or nothing; and never prints."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.records.artifacts import HOOK_PROGRAM
from stream.sources.tool_calls import EVENTS, Hooks, make_hooks
from tests.cli.command import PATIENCE, Place

AT_ONCE = 12
LONG = 200 << 10
MORE_THAN_A_PIPE = 1 << 20


@pytest.fixture
def hooks(tmp_path: Path) -> Hooks:
    home = tmp_path / "a place's home"
    home.mkdir()
    return make_hooks(home)


def start_hook(hooks: Hooks, payload: bytes) -> subprocess.Popen[bytes]:
    """As Claude Code does it: a shell is given the command of the settings."""
    settings = json.loads(hooks.settings.read_bytes())
    (entry,) = settings["hooks"]["PreToolUse"]
    process = subprocess.Popen(
        ["/bin/sh", "-c", entry["hooks"][0]["command"]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={},
    )
    assert process.stdin is not None
    process.stdin.write(payload)
    process.stdin.close()
    return process


def finish_hook(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    assert (process.wait(PATIENCE), process.stdout.read()) == (0, b"")
    process.stdout.close()


def read_log_lines(hooks: Hooks) -> list[bytes]:
    return [line for line in hooks.log.read_bytes().split(b"\n") if line]


def test_the_settings_name_it_for_every_call(hooks: Hooks) -> None:
    settings = json.loads(hooks.settings.read_bytes())
    assert tuple(settings["hooks"]) == EVENTS
    assert {one["matcher"] for (one,) in settings["hooks"].values()} == {"*"}
    assert hooks.hook_environment[b"STREAM_HOOK"] == os.fsencode(hooks.program)
    assert hooks.hook_environment[b"STREAM_HOOK_SETTINGS"] == os.fsencode(hooks.settings)


def test_nobody_else_may_read_it(hooks: Hooks) -> None:
    for path in (hooks.log, hooks.settings, hooks.program):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


def test_it_stands_where_correlation_looks_for_it(tmp_path: Path) -> None:
    home = tmp_path / HOOK_PROGRAM.partition("/")[0]
    home.mkdir()
    assert make_hooks(home).program == tmp_path / HOOK_PROGRAM


def test_many_at_once_do_not_mix(hooks: Hooks) -> None:
    payload = [json.dumps({"number": n, "text": str(n % 10) * LONG}) for n in range(AT_ONCE)]
    for process in [start_hook(hooks, text.encode()) for text in payload]:
        finish_hook(process)
    assert sorted(read_log_lines(hooks)) == sorted(text.encode() for text in payload)


def test_it_waits_for_whoever_writes(hooks: Hooks) -> None:
    with hooks.log.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        process = start_hook(hooks, b"{}")
        find_lock_waiter(hooks.log)
        assert read_log_lines(hooks) == []
    finish_hook(process)
    assert read_log_lines(hooks) == [b"{}"]


def test_one_that_does_not_get_its_turn_leaves_a_mark(hooks: Hooks) -> None:
    with hooks.log.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        process = start_hook(hooks, b"{}")
        os.kill(find_lock_waiter(hooks.log), signal.SIGTERM)  # as when its time is over
        finish_hook(process)
    assert read_log_lines(hooks) == []
    assert hooks.missed.stat().st_size == 1


def find_lock_waiter(file: Path) -> int:
    """The process that waits for the lock of a file, as soon as it does."""
    inode = f":{file.stat().st_ino}"
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1] == "->" and words[6].endswith(inode):
                return int(words[5])
    raise AssertionError("it does not wait")


words = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(), below, max_size=4),
    max_leaves=8,
)


@given(payload=st.dictionaries(st.text(), words, max_size=4), indent=st.sampled_from([None, 0, 3]))
def test_whatever_it_is_given_is_one_line(
    tmp_path_factory: pytest.TempPathFactory, payload: dict[str, object], indent: int | None
) -> None:
    home = tmp_path_factory.mktemp("home")
    hooks = make_hooks(home)
    finish_hook(
        start_hook(hooks, json.dumps(payload, indent=indent, ensure_ascii=False).encode() + b"\n")
    )
    (line,) = read_log_lines(hooks)
    assert json.loads(line) == payload
    shutil.rmtree(home)


def test_long_and_of_many_lines_is_quick_enough(hooks: Hooks) -> None:
    payload = {"words": ["x"] * 300_000}
    finish_hook(start_hook(hooks, json.dumps(payload, indent=1).encode()))
    assert json.loads(read_log_lines(hooks)[0]) == payload


def test_a_line_that_broke_off_costs_no_other(hooks: Hooks) -> None:
    hooks.log.write_bytes(b'{"ends in the mid')
    finish_hook(start_hook(hooks, b'{"whole":1}'))
    assert read_log_lines(hooks) == [b'{"ends in the mid', b'{"whole":1}']


def test_one_that_has_no_log_leaves_a_mark(hooks: Hooks) -> None:
    hooks.log.unlink()
    hooks.log.mkdir()
    for _ in range(3):
        finish_hook(start_hook(hooks, b"{}"))
    assert hooks.missed.stat().st_size == 3


@contextmanager
def replace_log_by_folder(hooks: Hooks) -> Iterator[None]:
    hooks.log.unlink()
    hooks.log.mkdir()
    yield


@contextmanager
def remove_hooks(hooks: Hooks) -> Iterator[None]:
    """Gone while it runs: it waits for its stdin first."""
    yield
    shutil.rmtree(hooks.program.parent)


@pytest.mark.parametrize("harm", [replace_log_by_folder, remove_hooks])
def test_it_never_fails(hooks: Hooks, harm: object) -> None:
    assert callable(harm)
    process = subprocess.Popen(
        [hooks.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdin is not None
    process.stdin.write(b"{" + b" " * MORE_THAN_A_PIPE)  # it reads: so it has begun
    process.stdin.flush()
    with harm(hooks):
        pass
    process.stdin.write(b"}")
    process.stdin.close()
    finish_hook(process)


def test_without_flock_there_are_none(place: Place) -> None:
    programs = place.root / "bin"
    programs.mkdir()
    for name in ("sh", "git", "tr"):
        found = shutil.which(name)
        assert found
        (programs / name).symlink_to(found)
    words = ("--kernel", "auto", "--sdk", "hooks", "--", "true")
    done = place.stream("observe", *words, env={"PATH": str(programs)})
    assert (done.code, done.out) == (2, b"")
    assert "--sdk hooks: there is no flock on PATH" in done.err
    assert not (place.workspace / "runs").exists()


def test_who_reports_is_a_question_of_the_kernels_windows(place: Place) -> None:
    done = place.stream("observe", "--sdk", "otel", "--", "true")
    assert done.code == 2
    assert "--sdk needs --kernel" in done.err
