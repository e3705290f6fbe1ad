"""Small scripts put first on an agent's PATH: each tells what it was called with, then becomes
the program that it stands for.

They write to a fifo, in pieces that the kernel keeps whole, so that nothing of a command line
touches the disk before its secrets are taken out. One that cannot write still becomes its
program. What is not called by name, or not through this PATH, is not seen.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from stream.records.command import category_of

PIECE = 3800 if sys.platform == "linux" else 400  #: below what a pipe takes as a whole
MOST_HELD = 4 << 20  #: bytes of one unfinished command: more than a command line can have
MOST_PIECES = 2 * MOST_HELD // PIECE  #: of one command: more than it can have
MOST_BEGUN = 1000  #: unfinished commands, and
MOST_IN_ALL = 64 << 20  #: bytes of them
_SEPARATOR = b"\x1f"

# `-p`: what the agent put into BASH_ENV is not run a second time. A line is one write, so no
# newline may be in it. Nothing of this stays in the environment of the program.
_SCRIPT = """#!{bash} -p
stream_tell() {{
  local LC_ALL=C word text= from=0 piece last=0
  for word in "${{0##*/}}" "$PPID" "$PWD" "$@"; do
    word=${{word//%/%25}}
    word=${{word//$'\\n'/%0A}}
    text+=${{word//$'\\x1f'/%1F}}$'\\x1f'
  done
  while ((!last)); do
    piece=${{text:from:{piece}}}
    ((from += {piece}, last = from >= ${{#text}}))
    printf '%s %s %s\\n' $$ $last "$piece"
  done
}}
{{ stream_tell "$@" 1<>{fifo}; }} 2>/dev/null
unset -f stream_tell
case ${{0##*/}} in
{cases}
esac
"""


class Wrappers(Struct):
    """Where they are, and what they stand for."""

    home: str
    programs: dict[str, str]  #: name -> path

    @property
    def folder(self) -> str:
        return f"{self.home}/bin"

    @property
    def fifo(self) -> str:
        return f"{self.home}/commands"

    def path(self, path: str) -> str:
        return f"{self.folder}{os.pathsep}{path}" if path else self.folder


def state_of(home: str) -> tuple[object, ...]:
    """What changes when somebody takes the wrappers away, or puts something in the place of one:
    the clock of files cannot be set back. A fifo that is written to changes as well."""
    files = (home, f"{home}/bin", f"{home}/wrapper")
    return (*map(_status_of, files), _status_of(f"{home}/commands")[:-1])


def _status_of(path: str) -> tuple[int, ...]:
    try:
        found = os.lstat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_mode, found.st_uid, found.st_ctime_ns


def make_wrappers(home: str, names: Iterable[str], path: str) -> Wrappers | None:
    """For those of the names that are on the PATH; None where there is no bash to run them.
    Who makes them removes `home`. Raises OSError."""
    bash = shutil.which("bash")
    if bash is None:
        return None
    wrappers = Wrappers(home, _programs(set(names), path))
    Path(wrappers.folder).mkdir(mode=0o700, parents=True)
    os.mkfifo(wrappers.fifo, 0o600)
    script = _SCRIPT.format(
        bash=bash,
        fifo=shlex.quote(wrappers.fifo),
        cases="\n".join(
            f'{shlex.quote(name)}) exec {shlex.quote(program)} "$@" ;;'
            for name, program in sorted(wrappers.programs.items())
        ),
        piece=PIECE,
    )
    place = f"{home}/wrapper"
    fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700)
    try:
        os.write(fd, os.fsencode(script))
    finally:
        os.close(fd)
    for name in wrappers.programs:
        os.symlink(place, f"{wrappers.folder}/{name}")  # noqa: PTH211  # there are many
    return wrappers


def _programs(wanted: set[str], path: str) -> dict[str, str]:
    """As the shell would find them, with one look into each folder."""
    found: dict[str, str] = {}
    seen: set[tuple[int, int]] = set()
    for folder in path.split(os.pathsep):
        try:
            status = os.stat(folder or ".")  # noqa: PTH116
            if (status.st_dev, status.st_ino) in seen:  # /bin is often /usr/bin
                continue
            seen.add((status.st_dev, status.st_ino))
            here = wanted.intersection(os.listdir(folder or "."))  # noqa: PTH208
        except OSError:
            continue
        for name in here - found.keys():
            program = os.path.abspath(f"{folder or '.'}/{name}")  # noqa: PTH100
            if os.access(program, os.X_OK) and os.path.isfile(program):  # noqa: PTH113
                found[name] = program
    return found


class Called(Struct):
    """One wrapper was called."""

    pid: int
    parent: int
    name: str
    cwd: bytes
    words: list[bytes]  #: without the program's name
    ends: tuple[int, ...] = ()  #: how many bytes had come with each piece; empty: too many pieces

    @property
    def category(self) -> str:
        return category_of(self.name, self.words)


class CallReader:
    """What came through the fifo, as calls. What is no call is counted."""

    def __init__(self) -> None:
        self.lost = 0
        self._rest = b""
        self._at = 0  # bytes up to the rest
        self._begun: dict[int, bytearray] = {}
        self._ends: dict[int, list[int]] = {}  # of the pieces of each

    def feed(self, data: bytes) -> Iterator[Called]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._at += len(line) + 1
            called = self._read(line)
            if called is not None:
                yield called
        if len(self._rest) > MOST_HELD:
            self._at += len(self._rest)
            self._rest = b""
            self.lost += 1

    def finish(self) -> None:
        """Those that were ended while they told are lost."""
        self.lost += len(self._begun) + bool(self._rest)

    def _read(self, line: bytes) -> Called | None:
        pid, _, rest = line.partition(b" ")
        last, space, piece = rest.partition(b" ")
        if not _is_pid(pid) or last not in (b"0", b"1") or not space:
            self.lost += 1
            return None
        text = self._begun.pop(int(pid), bytearray())
        ends = self._ends.pop(int(pid), [])
        text += piece
        ends.append(self._at)
        if last == b"0":
            self._hold(int(pid), text, ends)
            return None
        words = bytes(text).split(_SEPARATOR)
        if len(words) < 4 or words.pop() or not _is_pid(words[1]):
            self.lost += 1
            return None
        name, parent, cwd, *arguments = map(_plain, words)
        told = (*ends,) if len(ends) <= MOST_PIECES else ()
        return Called(int(pid), int(parent), os.fsdecode(name), cwd, arguments, told)

    def _hold(self, pid: int, text: bytearray, ends: list[int]) -> None:
        """Whoever writes what is no command must not fill our memory."""
        if len(text) > MOST_HELD:
            self.lost += 1
            return
        self._begun[pid], self._ends[pid] = text, ends[: MOST_PIECES + 1]
        held = sum(map(len, self._begun.values()))
        while len(self._begun) > MOST_BEGUN or held > MOST_IN_ALL:
            oldest = next(iter(self._begun))  # who was silent for longest
            held -= len(self._begun.pop(oldest))
            del self._ends[oldest]
            self.lost += 1


def _is_pid(word: bytes) -> bool:
    return word.isdigit() and len(word) <= 10


def _plain(word: bytes) -> bytes:
    if b"%" not in word:
        return word
    return word.replace(b"%1F", b"\x1f").replace(b"%0A", b"\n").replace(b"%25", b"%")
