"""Wrappers on the PATH of an agent: scripts that report a call through a fifo, and then become the
program that was called."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

PIECE = 3800 if sys.platform == "linux" else 400  #: below what a pipe takes as a whole

# `-p`: what the agent put into BASH_ENV is not run a second time. A line is one write, so no
# newline may be in it. Nothing of this stays in the environment of the program.
_SCRIPT = """#!{bash} -p
stream_report() {{
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
{{ stream_report "$@" 1<>{fifo}; }} 2>/dev/null
unset -f stream_report
case ${{0##*/}} in
{cases}
esac
"""


class Wrappers(Struct):
    """The wrappers of one run."""

    home: str  #: the folder that is theirs
    programs: dict[str, str]  #: name -> path of what they become

    @property
    def folder(self) -> str:
        """The folder that goes on the PATH."""
        return f"{self.home}/bin"

    @property
    def fifo(self) -> str:
        """The fifo that calls are reported through."""
        return f"{self.home}/commands"

    def path_with_wrappers(self, path: str) -> str:
        """Return a PATH on which the wrappers come first."""
        return f"{self.folder}{os.pathsep}{path}" if path else self.folder


def wrappers_state(home: str) -> tuple[object, ...]:
    """Return what changes when somebody takes the wrappers away, or replaces one: the clock of
    files cannot be set back. Of the fifo it is left out, because each call changes it."""
    files = (home, f"{home}/bin", f"{home}/wrapper")
    return (*map(_file_status, files), _file_status(f"{home}/commands")[:-1])


def _file_status(path: str) -> tuple[int, ...]:
    """Return the part of a file's status that changes when somebody replaces it."""
    try:
        found = os.lstat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_mode, found.st_uid, found.st_ctime_ns


def make_wrappers(home: str, names: Iterable[str], path: str) -> Wrappers | None:
    """Make wrappers for those of the names that are on the PATH. Return None where there is no bash
    to run them. The caller removes `home`. Raise OSError."""
    bash = shutil.which("bash")
    if bash is None:
        return None
    wrappers = Wrappers(home, _find_programs(set(names), path))
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
    file = f"{home}/wrapper"
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700)
    with os.fdopen(fd, "wb") as wrapper:
        wrapper.write(os.fsencode(script))
    for name in wrappers.programs:
        os.symlink(file, f"{wrappers.folder}/{name}")  # noqa: PTH211  # there are many
    return wrappers


def _find_programs(wanted: set[str], path: str) -> dict[str, str]:
    """Find programs as a shell would, with one look into each folder."""
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
