"""A machine that has too little of something: one sentence names it, and never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import stream
from tests.archive.samples import make_artifacts, make_layers
from tests.cli.command import STREAM, Done, Place


def run_limited(place: Place, limit: str, *words: str) -> Done:
    """Run stream under a limit of the shell's."""
    return place.stream(*words, argv0=("bash", "-c", f'{limit}; exec "$@"', "limited", STREAM))


@pytest.mark.parametrize("words", ["observe -- true", "validate -", "matrix", "check -"])
def test_a_few_descriptors(place: Place, words: str) -> None:
    """Enough for the interpreter, and for little else."""
    for count in (5, 6, 7, 8, *range(9, 22, 3)):
        done = run_limited(place, f"ulimit -n {count}", *words.split())
        assert "Traceback" not in done.err, (count, done.err)
        assert done.code in (0, 1, 2, 126), (count, done.err)  # 126: it could not start `true`
        assert done.err or done.code == 0, count


def test_doctor_with_a_few_descriptors(place: Place) -> None:
    """A feed that cannot be tried is one line of its answer."""
    for count in (12, 20, 26, 32):
        done = run_limited(place, f"ulimit -n {count}", "doctor")
        assert "Traceback" not in done.err, done.err
        assert b"eBPF feed" in done.out, done.err
        assert b"privileges" in done.out, done.err


def test_doctor_without_proc(place: Place, needs_root: None) -> None:
    hidden = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "hidden")
    done = place.stream("doctor", argv0=(*hidden, STREAM))
    assert "Traceback" not in done.err, done.err
    assert b"eBPF feed" in done.out, done.err


def test_little_memory(place: Place) -> None:
    """Whatever is the first to find none: an import, a thread, a buffer."""
    for megabytes in (40, 50, 60, 70, 120):
        limit = f"ulimit -v {megabytes * 1024}"
        for words in (("check", "-"), ("archive", "-", "-o", "a.tar.gz"), ("matrix", "--list")):
            done = run_limited(place, limit, *words)
            assert "Traceback" not in done.err, (megabytes, words, done.err)
            assert done.err or done.code == 0, (megabytes, words)


@pytest.mark.parametrize("pages", [1, 2, 3, 5, 8, 12])
def test_an_archive_from_a_pipe_on_a_full_disk(
    place: Place, small_disk: Callable[[str], Path], pages: int
) -> None:
    disk = small_disk(f"{4 * pages}k")
    files = [*make_layers().values(), *make_artifacts().values()]
    data = b"\n".join(line for file in files for line in file.splitlines())
    done = place.stream("archive", "-", "-o", disk / "a.tar.gz", data=data + b"\n")
    assert "Traceback" not in done.err, done.err
    if done.code == 0:
        assert (disk / "a.tar.gz").exists()
    else:
        assert (done.code, [*disk.iterdir()]) == (2, [])
        assert "a.tar.gz: no space left on device" in done.err


def test_half_of_a_surrogate_pair_in_a_document(place: Place) -> None:
    document = place.workspace / "half.json"
    document.write_text('{"\\ud800":1}')
    for words in ("validate --boundary", "listen --boundary", "matrix --list --catalog"):
        done = place.stream(*words.split(), document, *(["-"] if "matrix" not in words else []))
        assert done.code == 2
        assert done.err.startswith(f"stream: {document}: "), done.err
        assert "surrogate" in done.err


#: Interrupts itself when a module is asked for that takes long to import.
_AT_AN_IMPORT = """
import os, sys

class AtOnce:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), 2)

sys.meta_path.insert(0, AtOnce())
from stream.cli import main
main()
"""


@pytest.mark.parametrize("module", ["enum", "signal", "typer", "stream.cli.app"])
def test_an_interrupt_while_modules_are_imported(module: str) -> None:
    paths = [str(Path(stream.__file__).parents[1]), *filter(None, sys.path)]
    done = subprocess.run(
        [sys.executable, "-S", "-c", _AT_AN_IMPORT, module],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert (done.returncode, done.stderr) == (-2, "")
