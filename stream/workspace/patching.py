"""A patch in git's own format, made by git in a repository of its own beside the workspace."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from stream.errors import InputError, OutputError
from stream.files import create
from stream.workspace.copying import remove_tree
from stream.workspace.store import Cancelled, IsCancelled, never

if TYPE_CHECKING:
    from subprocess import Popen

_BEFORE, _AFTER = "refs/heads/before", "refs/heads/after"
# HEAD has no commit: some versions of git read attributes from there.
_HEAD = "ref: refs/heads/none\n"
_CONFIG = """[core]
\trepositoryformatversion = 0
\tbare = true
\tfsync = none
[pack]
\tcompression = 0
[fastimport]
\tunpackLimit = 0
"""
_DIFF = ("diff-tree", "-r", "-p", "--binary", "--full-index", "--no-renames", "--no-color")
_PLAIN = ("--no-ext-diff", "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/")
_PATIENCE = 0.05  #: seconds between two looks at whether to stop


def find_git() -> str:
    """To be asked before a run. Raises InputError where there is none."""
    found = shutil.which("git")
    if not found:
        raise InputError("git: not found on PATH, and the patch of the changes needs it")
    return found


class Shadow:
    """Two commits that no repository of the user knows: before and after."""

    def __init__(self, git: str, patch: Path, is_cancelled: IsCancelled = never) -> None:
        self._git = git
        self._patch = patch
        self._is_cancelled = is_cancelled
        self._marks = 0
        self._trees: tuple[list[bytes], list[bytes]] = ([], [])
        self._folder: Path | None = None
        self._said: IO[bytes] | None = None
        self._importer: Popen[bytes] | None = None

    def add(self, path: bytes, before: str | None, after: str | None) -> None:
        """The last contents that were put: before, after, or both; by their modes."""
        mark = self._marks - (1 if before and after else 0)
        for mode, tree in zip((before, after), self._trees, strict=True):
            if mode:
                tree.append(b"M %s :%d %s\n" % (mode.encode(), mark, _quoted(path)))
                mark += 1

    def put(self, size: int, chunks: Iterable[bytes]) -> None:
        """A content, for the `add` that follows."""
        self._marks += 1
        self._send(b"blob\nmark :%d\ndata %d\n" % (self._marks, size))
        for chunk in chunks:
            self._send(chunk)
        self._send(b"\n")

    def write(self) -> None:
        """The patch: empty, and without any git, where nothing was added."""
        if not self._marks:
            create(self._patch).close()
            return
        for reference, tree in zip((_BEFORE, _AFTER), self._trees, strict=True):
            self._send(
                b"commit %s\ncommitter stream <stream> 0 +0000\ndata 0\n" % reference.encode()
            )
            for line in tree:
                self._send(line)
            self._send(b"\n")
        self._send(b"done\n")
        assert self._importer
        assert self._importer.stdin
        with suppress(BrokenPipeError):  # it says why
            self._importer.stdin.close()
        self._wait(self._importer)
        with create(self._patch) as patch:
            self._wait(self._start([*_DIFF, *_PLAIN, _BEFORE, _AFTER], None, patch))
        if not self._patch.stat().st_size:
            raise OutputError(f"{self._patch}: git: it wrote nothing")

    def close(self) -> None:
        if self._importer:
            self._end(self._importer)
        if self._said:
            self._said.close()
        if self._folder:
            remove_tree(self._folder)

    def _send(self, data: bytes) -> None:
        if self._is_cancelled():
            raise Cancelled
        if not self._importer:
            self._prepare()
            from subprocess import PIPE

            words = ["fast-import", "--quiet", "--done", "--depth=0", "--date-format=raw"]
            self._importer = self._start(words, PIPE, None)
        assert self._importer.stdin
        try:
            self._importer.stdin.write(data)
        except BrokenPipeError:
            self._wait(self._importer)
            raise

    def _prepare(self) -> None:
        import tempfile  # a run that changes nothing never comes here

        self._folder = Path(tempfile.mkdtemp(prefix=".patch-", dir=self._patch.parent.absolute()))
        (self._folder / "objects").mkdir()
        (self._folder / "refs").mkdir()
        (self._folder / "HEAD").write_text(_HEAD)
        (self._folder / "config").write_text(_CONFIG)
        self._said = (self._folder / "said").open("w+b")

    def _start(
        self, words: Sequence[str], stdin: int | None, stdout: IO[bytes] | None
    ) -> Popen[bytes]:
        from subprocess import DEVNULL, Popen

        assert self._folder
        return Popen(
            [self._git, *words],
            cwd=self._folder,
            env=_environment(self._folder),
            stdin=DEVNULL if stdin is None else stdin,
            stdout=DEVNULL if stdout is None else stdout,
            stderr=self._said,
            # What an interrupt in a terminal means is decided here, not by git.
            start_new_session=True,
        )

    def _wait(self, process: Popen[bytes]) -> None:
        from subprocess import TimeoutExpired

        while True:
            try:
                code = process.wait(_PATIENCE)
                break
            except TimeoutExpired:
                if self._is_cancelled():
                    self._end(process)
                    raise Cancelled from None
        if code:
            raise OutputError(f"{self._patch}: git: {self._last_words() or f'exit code {code}'}")

    def _end(self, process: Popen[bytes]) -> None:
        if process.poll() is None:
            process.kill()
        with suppress(OSError):
            if process.stdin:
                process.stdin.close()
        process.wait()

    def _last_words(self) -> str:
        assert self._said
        self._said.seek(0)
        lines = self._said.read(1 << 16).decode(errors="replace").split("\n")
        fatal = [line for line in lines if line.startswith(("fatal: ", "error: "))]
        return (fatal or [line for line in lines if line] or [""])[0]


def _environment(folder: Path) -> dict[str, str]:
    """Nothing of what a user, or a repository around, has said about git."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {
        **kept,
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
        "LC_ALL": "C",
        "GIT_DIR": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
    }


def _quoted(path: bytes) -> bytes:
    """As git quotes: every byte that could mean something else in octal."""
    plain = all(0x20 <= byte < 0x7F and byte not in b'"\\' for byte in path)
    if plain:
        return b'"%s"' % path
    quoted = (
        b"%c" % byte if 0x20 <= byte < 0x7F and byte not in b'"\\' else b"\\%03o" % byte
        for byte in path
    )
    return b'"%s"' % b"".join(quoted)
