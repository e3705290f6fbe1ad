"""The frame: what helpers/emit-record writes, run for real, is what `split_frames` reads."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.boundary.scripts import HELPERS
from stream.records.emission import FRAME_END, FRAME_START, Frame, FrameError, Word, split_frames
from tests.sweeping import thorough
from tests.transformers.samples import as_words, frame

HELPER = HELPERS / "emit-record"
SHELLS = {"dash": ["dash"], "bash": ["bash", "--posix"], "busybox": ["busybox", "sh"]}
HOSTILE: list[bytes] = [
    b"",
    b" ",
    b"--message",
    b"line\nline\n\n",
    b"\"double\" 'single' `back` $(dollar) ${x} \\n \\036 %s %",
    b"\xff\xfe invalid \xc3",
    "é ü 漢 🙂".encode(),
    bytes(range(1, 32)) + b"\x7f",
    FRAME_START + b"1:w," + FRAME_END,
    b"*",
    b"-n",
    b"-e",
    b"x" * 100_000,
    "é".encode() * 1000,
]


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> list[str]:
    command = SHELLS[request.param]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    return command


def run_helper(shell: Sequence[str], words: Sequence[bytes], cwd: Path) -> bytes:
    done = subprocess.run(
        [*shell, str(HELPER), *words],
        env={"PATH": os.environ["PATH"], "STREAM_FRAME": "1", "LANG": "C.UTF-8"},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        timeout=180,
    )
    assert done.stderr == b""
    return done.stdout


def single_frame(stdout: bytes) -> Frame:
    frames, rest = split_frames(stdout)
    assert rest == b"\n"
    (only,) = frames
    return only


def test_hostile_words_arrive_as_they_are(shell: list[str], tmp_path: Path) -> None:
    got = single_frame(run_helper(shell, HOSTILE, tmp_path))
    assert got.words == tuple(as_words(*HOSTILE))
    name = os.uname()
    assert got.os == f"{name.sysname} {name.release} {name.machine}"


def test_no_words_are_a_frame_as_well(shell: list[str], tmp_path: Path) -> None:
    assert single_frame(run_helper(shell, [], tmp_path)).words == ()


FILES: dict[str, bytes] = {
    "empty": b"",
    "plain": b"text",
    "newlines": b"\n\ntext\n\n\n",
    "bytes": bytes(range(1, 256)),
    "big": b"0123456789abcdef" * 100_000,
}


def test_files_are_sent_along(shell: list[str], tmp_path: Path) -> None:
    words: list[bytes] = []
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
        words += [b"--payload-stdout-file", name.encode()]
    got = single_frame(run_helper(shell, words, tmp_path)).words
    for word, content in zip(got[1::2], FILES.values(), strict=True):
        assert word.content == content[: 1 << 20]
    assert all(word.content is None for word in got[::2])


def test_nuls_of_a_file_are_left_out(shell: list[str], tmp_path: Path) -> None:
    (tmp_path / "nul").write_bytes(b"a\0b\0")
    got = single_frame(run_helper(shell, [b"--payload-raw-file", b"nul"], tmp_path))
    assert got.words[1] == Word(b"nul", b"ab")


@pytest.mark.parametrize("name", [b"missing", b".", b"", b"-n", b"!", b"("])
def test_what_cannot_be_read_is_reported(shell: list[str], name: bytes, tmp_path: Path) -> None:
    got = single_frame(
        run_helper(shell, [b"--operation-args-file", name, b"--status", b"error"], tmp_path)
    )
    assert got.words[1] == Word(name, None, unreadable=True)
    assert got.words[2:] == tuple(as_words(b"--status", b"error"))


def test_only_values_of_file_flags_are_files(shell: list[str], tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"content")
    words = [b"--message", b"--payload-file", b"--payload-file", b"f"]
    words += [b"--operation-arg", b"--payload-raw-file", b"f", b"--payload-raw-null"]
    words += [b"--payload-raw-file", b"--payload-raw-file", b"f"]
    got = single_frame(run_helper(shell, words, tmp_path)).words
    assert [index for index, word in enumerate(got) if word.content is not None] == [3, 10]


@pytest.mark.parametrize("printed", ["printf '%s\\n' \"$record\"", 'echo "$record"'])
def test_a_captured_frame_may_be_printed_later(printed: str, tmp_path: Path) -> None:
    script = f'record="$("$0" "$@")"; {printed}'
    words = [word for word in HOSTILE if len(word) < 1000]
    stdout = run_helper(["bash", "-c", script], words, tmp_path)
    assert single_frame(stdout).words == tuple(as_words(*words))


def test_without_programs_the_words_arrive(tmp_path: Path) -> None:
    """A sandbox may refuse every exec: a shell's builtins are enough for words."""
    done = subprocess.run(
        ["/bin/sh", str(HELPER), "--status", "denied"],
        env={"PATH": "/nonexistent", "STREAM_FRAME": "1"},
        cwd=tmp_path,
        capture_output=True,
        check=True,
        timeout=180,
    )
    assert single_frame(done.stdout).words == tuple(as_words("--status", "denied"))


def test_without_programs_a_file_is_unread_and_not_empty(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"content")
    done = subprocess.run(
        ["/bin/sh", str(HELPER), "--payload-stdout-file", "f"],
        env={"PATH": "/nonexistent", "STREAM_FRAME": "1"},
        cwd=tmp_path,
        capture_output=True,
        check=True,
        timeout=180,
    )
    assert single_frame(done.stdout).words[1] == Word(b"f", None, unreadable=True)


def test_frames_and_the_rest_are_distinguished() -> None:
    stdout = b"before\n" + frame("a") + b"between\n" + frame("b", "c") + b"after"
    frames, rest = split_frames(stdout)
    assert [f.words for f in frames] == [tuple(as_words("a")), tuple(as_words("b", "c"))]
    assert rest == b"before\n\nbetween\n\nafter"
    assert split_frames(b"") == ([], b"")


def test_every_cut_frame_is_an_error() -> None:
    whole = frame("--message", b"\x1f\x1e, 5:wxxxx,", "x" * 300).rstrip()
    for length in range(len(FRAME_START), len(whole)):
        with pytest.raises(FrameError, match="cut at byte"):
            split_frames(whole[:length])


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b":", b"0:,", b"-1:w,", b"2:wx", b"2:wx;", b"2:zx,", b"2:fx,", b"1:x,", b"x" * 50),
        *(b"99999999999:w,", b"999999999999:w,", b"\xb2:w,", b"2:wx,2:q,"),
    ],
)
def test_a_damaged_frame_is_an_error(body: bytes) -> None:
    with pytest.raises(FrameError):
        split_frames(FRAME_START + body + b"\n")


@thorough(500)
@given(st.lists(st.binary(max_size=8) | st.sampled_from([FRAME_START, FRAME_END, b"2:wx,"])))
def test_no_bytes_raise_anything_else(parts: list[bytes]) -> None:
    with contextlib.suppress(FrameError):
        split_frames(b"".join(parts))


@given(st.lists(st.binary(max_size=20).map(lambda word: word.replace(b"\0", b"")), max_size=8))
def test_words_survive(words: list[bytes]) -> None:
    assert single_frame(frame(*words)).words == tuple(as_words(*words))


@thorough(500)
@given(st.data())
def test_a_damaged_byte_never_raises_anything_else(data: st.DataObject) -> None:
    whole = bytearray(frame("--status", "denied", "--message", "x" * 40))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FrameError):
        split_frames(bytes(whole))
