"""Wrappers report exactly what they were called with, and are then the program itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.evidence.command_lines import command_category_of
from stream.process.wrapper_scripts import PIECE, Wrappers, make_wrappers
from stream.sources.wrappers import MOST_HELD, WrapperCall, WrapperCallReader

SHOW = '#!/bin/sh\nprintf \'%s\\0\' "$0" "$@"\n'


@pytest.fixture
def wrappers(tmp_path: Path) -> Iterator[Wrappers]:
    """In a folder whose name needs quoting; the program shows its words."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("git", "it's a tool"):
        (folder / name).write_text(SHOW)
        (folder / name).chmod(0o755)
    (folder / "pytest").write_text("not executable")
    (folder / "make").mkdir()
    wrappers = make_wrappers(
        str(tmp_path / "a b'c\"$d"),
        ["git", "it's a tool", "pytest", "make", "none", "git"],
        f"{tmp_path}/none:{folder}:{folder}",
    )
    assert wrappers is not None
    yield wrappers
    shutil.rmtree(wrappers.home)


@pytest.fixture
def fifo(wrappers: Wrappers) -> Iterator[int]:
    fd = os.open(wrappers.fifo, os.O_RDWR | os.O_NONBLOCK)
    yield fd
    os.close(fd)


def call_wrapper(wrappers: Wrappers, name: str, *words: str | bytes) -> bytes:
    return subprocess.run(
        [f"{wrappers.folder}/{name}", *words], stdout=subprocess.PIPE, check=True
    ).stdout


def read_calls(fifo: int, reader: WrapperCallReader | None = None) -> list[WrapperCall]:
    reader = reader or WrapperCallReader()
    found: list[WrapperCall] = []
    while True:
        try:
            found += reader.feed(os.read(fifo, 100))
        except BlockingIOError:
            reader.finish()
            assert reader.lost == 0
            return found


def test_what_is_wrapped(wrappers: Wrappers) -> None:
    assert sorted(wrappers.programs) == ["git", "it's a tool"]
    assert wrappers.path_with_wrappers("/bin") == f"{wrappers.folder}:/bin"


@pytest.mark.parametrize("name", ["git", "it's a tool"])
def test_the_words_arrive_twice(wrappers: Wrappers, fifo: int, name: str) -> None:
    words = [b"", b"a b", b"'", b'"', b"\n", b"a\nb\n", b"%0A", b"%", b"\x1f", b"\xff\xfe", b"$(x)"]
    words += ["ü".encode(), b"-n", b"--", b"\\", b"\t", b"*", b"~"]
    shown = call_wrapper(wrappers, name, *words).split(b"\0")
    assert shown[1:-1] == words
    assert shown[0] == os.fsencode(wrappers.programs[name])
    (called,) = read_calls(fifo)
    assert (called.name, called.words) == (name, words)
    assert called.cwd == os.fsencode(Path.cwd())
    assert called.parent == os.getpid()


def test_a_long_command_line(wrappers: Wrappers, fifo: int) -> None:
    """Longer than a pipe takes as a whole, and shorter than what it holds."""
    words = [b"x" * 3 * PIECE, b"\n" * PIECE, b"y" * 100]
    call_wrapper(wrappers, "git", *words)
    (called,) = read_calls(fifo)
    assert called.words == words


def test_many_at_the_same_time(wrappers: Wrappers, fifo: int) -> None:
    reader = WrapperCallReader()
    found: list[WrapperCall] = []
    with ThreadPoolExecutor(8) as workers:
        todo = [
            workers.submit(call_wrapper, wrappers, "git", str(n), "z" * PIECE, "\n" * n)
            for n in range(60)
        ]
        while not all(one.done() for one in todo) or len(found) < len(todo):
            try:
                found += reader.feed(os.read(fifo, 1 << 16))
            except BlockingIOError:
                continue
    assert {int(one.words[0]) for one in found} == set(range(60))
    assert all(one.words[2] == b"\n" * int(one.words[0]) for one in found)
    assert reader.lost == 0


def test_the_environment_is_untouched(wrappers: Wrappers, fifo: int, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "git"
    program.write_text(f"#!{sys.executable}\nimport os\nprint(sorted(os.environb.items()))\n")
    env = {"LC_ALL": "C.UTF-8", "BASH_ENV": "/nowhere", "A": "b", "PATH": os.environ["PATH"]}
    env |= {"BASH_FUNC_f%%": "() {  echo f\n}", "PWD": str(tmp_path), "SHLVL": "3"}
    plain, wrapped = (
        subprocess.run([path], env=env, cwd=tmp_path, stdout=subprocess.PIPE, check=True).stdout
        for path in (program, f"{wrappers.folder}/git")
    )
    assert wrapped == plain


def test_without_a_fifo_it_is_the_program(wrappers: Wrappers) -> None:
    Path(wrappers.fifo).unlink()
    done = subprocess.run([f"{wrappers.folder}/git", "x"], capture_output=True, check=True)
    assert (done.stdout.split(b"\0")[1], done.stderr) == (b"x", b"")


def test_a_program_that_went_away(wrappers: Wrappers) -> None:
    Path(wrappers.programs["git"]).unlink()
    done = subprocess.run([f"{wrappers.folder}/git"], capture_output=True, check=False)
    assert done.returncode in (126, 127)


def test_no_bash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert make_wrappers(str(tmp_path / "home"), ["git"], os.environ["PATH"]) is None
    assert not (tmp_path / "home").exists()


GOOD = b"7 1 git\x1f1\x1f/\x1fx\x1f\n"


@pytest.mark.parametrize(
    "junk",
    [
        b"\n",
        b"junk\n",
        b"7\n",
        b"x 1 git\x1f1\x1f/\x1f\n",
        b"7 2 git\x1f1\x1f/\x1f\n",
        b"7 1 git\n",
        b"7 1 git\x1fx\x1f/\x1f\n",
        b"12345678901 1 git\x1f1\x1f/\x1f\n",
        b"8 0 " + b"x" * (MOST_HELD + 1) + b"\n",
        b"\xff" * (MOST_HELD + 2) + b"\n",
    ],
)
def test_junk_is_counted_and_spoils_nothing(junk: bytes) -> None:
    reader = WrapperCallReader()
    assert [one.words for one in reader.feed(junk + GOOD)] == [[b"x"]]
    reader.finish()
    assert reader.lost == 1


def test_one_that_was_cut_short_is_counted() -> None:
    reader = WrapperCallReader()
    assert not list(reader.feed(b"9 0 git\x1f1"))
    assert not list(reader.feed(b"\n8 0 a\n"))
    reader.finish()
    assert reader.lost == 2


@given(st.lists(st.integers(1, 40), max_size=20))
def test_however_it_is_cut(cuts: list[int]) -> None:
    data = b"7 0 gi\n8 1 ls\x1f1\x1f/\x1f\njunk\n7 1 t\x1f1\x1f/\x1fa%0Ab\x1f\n"
    reader, start = WrapperCallReader(), 0
    found: list[WrapperCall] = []
    for cut in [*cuts, len(data)]:
        found += reader.feed(data[start : start + cut])
        start += cut
    found += reader.feed(data[start:])
    assert [(one.name, one.words) for one in found] == [("ls", []), ("git", [b"a\nb"])]
    assert reader.lost == 1


@pytest.mark.parametrize(
    ("line", "category"),
    [
        ("git status", "vcs"),
        ("pytest -q", "test"),
        ("python3 -m pytest", "test"),
        ("python -I -m unittest discover", "test"),
        ("python -m http.server", "interpreter"),
        ("python pytest", "interpreter"),
        ("npm test", "test"),
        ("npm run test:unit", "test"),
        ("npm run -s test", "test"),
        ("npm install test", "package"),
        ("npx jest", "test"),
        ("npx create-app", "package"),
        ("uv run pytest", "test"),
        ("poetry run python -m pytest", "test"),
        ("go test ./...", "test"),
        ("go build", "build"),
        ("cargo nextest run", "test"),
        ("make -j4 check", "test"),
        ("make all", "build"),
        ("node --test", "test"),
        ("node app.js", "interpreter"),
        ("curl x", "network"),
        ("docker ps", "container"),
        ("deploy it", "other"),
    ],
)
def test_categories(line: str, category: str) -> None:
    name, *words = line.split()
    assert command_category_of(name, [word.encode() for word in words]) == category
