"""A patch in git's own format, made and read by git. It is asked without anything that a user or a
workspace has configured: no repository but one of our own, no hook, no filter, no attributes; the
workspace was written by the very program that the run is evidence of."""

from __future__ import annotations

import codecs
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, TYPE_CHECKING

from msgspec import Struct

from stream.errors import InputError, OutputError, StreamError, os_reason, printable
from stream.files.append import create_private_file
from stream.files.trees import remove_tree

if TYPE_CHECKING:
    from subprocess import Popen

PATIENCE = 120.0  #: seconds
#: stands above every .gitattributes of the workspace: no byte is converted, no filter started
ATTRIBUTES = "* -text !eol !crlf !ident !filter !working-tree-encoding -whitespace\n"
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

# `git apply` refuses a whole patch for one path that means `.git` on some file system. What it
# refuses on a Mac only is in here as well.
_REFUSED = rb"(?i)(?:^|[/\\])(?:\.git|git~1)[ .]*(?:[/\\:]|\Z)"
_NOT_PLAIN = re.compile(rb"[^ -~]|[\"\\]")
_IGNORED_ON_MACS = rb"\xe2\x80[\x8c-\x8f\xaa-\xae]|\xe2\x81[\xaa-\xaf]|\xef\xbb\xbf"


class GitError(StreamError):
    """Git could not be asked."""


def find_git() -> str:
    """Find git before a run. Raise InputError where there is none."""
    found = shutil.which("git")
    if not found:
        raise InputError("git: not found on PATH, and the patch of the changes needs it")
    return found


def why_patch_unreadable(patch: Path) -> str:
    """Return why git cannot read a patch; empty where it can. Raise GitError."""
    return _run_git_apply(["--numstat", "-z"], patch, None)


def why_patch_inapplicable(patch: Path, workspace: Path) -> str:
    """Return why a patch cannot be taken back from a workspace; empty where it can. Raise
    GitError."""
    return _run_git_apply(["--check", "--reverse", "--whitespace=nowarn"], patch, workspace)


def _run_git_apply(words: list[str], patch: Path, workspace: Path | None) -> str:
    """Run `git apply` on a patch with a repository of its own; return its objection, or nothing."""
    if not patch.stat().st_size:
        return ""
    import subprocess

    with tempfile.TemporaryDirectory(prefix="stream-check-") as scratch:
        repository = Path(scratch) / "git"
        _make_repository(repository)
        (repository / "info" / "attributes").write_text(ATTRIBUTES)
        folder = workspace or repository
        try:
            done = subprocess.run(
                ["git", "apply", *words, os.path.abspath(patch)],  # noqa: PTH100
                cwd=folder,
                env=_git_environment(repository, folder),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise GitError(f"git took more than {PATIENCE:g} seconds") from None
        except OSError as error:
            raise GitError(f"git cannot be started: {os_reason(error)}") from None
    if not done.returncode:
        return ""
    return f"git says: {printable(_first_error(done.stderr))[:240] or f'exit {done.returncode}'}"


def _make_repository(folder: Path) -> None:
    """Make a git repository that is as empty as one can be."""
    for name in ("objects", "refs", "info"):
        (folder / name).mkdir(parents=True)
    (folder / "HEAD").write_text(_HEAD)


def _git_environment(repository: Path, work_tree: Path | None = None) -> dict[str, str]:
    """Return an environment in which git finds nothing that a user, or a repository around, has
    configured."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    if work_tree is not None:
        kept |= {"GIT_WORK_TREE": str(work_tree), "GIT_CEILING_DIRECTORIES": str(work_tree.parent)}
    return {
        **kept,
        "LC_ALL": "C",
        "HOME": str(repository),
        "XDG_CONFIG_HOME": str(repository),
        "GIT_DIR": str(repository),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
    }


def _first_error(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    return next((line for line in lines if line.startswith(("error:", "fatal:"))), "")


class PatchMaker:
    """Makes a patch from two commits, before and after, in a repository that nobody else knows."""

    def __init__(self, git: str, patch: Path) -> None:
        self._git = git
        self._patch = patch
        self._marks = 0
        self._trees: tuple[list[bytes], list[bytes]] = ([], [])
        self._folder: Path | None = None
        self._stderr: IO[bytes] | None = None
        self._importer: Popen[bytes] | None = None

    def add_path(self, path: bytes, before: str | None, after: str | None) -> None:
        """Add a path with the contents that were put last: before, after, or both, by their
        modes."""
        mark = self._marks - (1 if before and after else 0)
        for mode, tree in zip((before, after), self._trees, strict=True):
            if mode:
                tree.append(b"M %s :%d %s\n" % (mode.encode(), mark, _quoted_git_path(path)))
                mark += 1

    def put_content(self, size: int, chunks: Iterable[bytes]) -> None:
        """Put a content, for the `add_path` that follows."""
        self._marks += 1
        self._send_to_importer(b"blob\nmark :%d\ndata %d\n" % (self._marks, size))
        for chunk in chunks:
            self._send_to_importer(chunk)
        self._send_to_importer(b"\n")

    def write_patch(self) -> None:
        """Write the patch: empty, and without any git, where nothing was added."""
        if not self._marks:
            create_private_file(self._patch).close()
            return
        for reference, tree in zip((_BEFORE, _AFTER), self._trees, strict=True):
            self._send_to_importer(
                b"commit %s\ncommitter stream <stream> 0 +0000\ndata 0\n" % reference.encode()
            )
            for line in tree:
                self._send_to_importer(line)
            self._send_to_importer(b"\n")
        self._send_to_importer(b"done\n")
        assert self._importer
        assert self._importer.stdin
        with suppress(BrokenPipeError):  # it says why
            self._importer.stdin.close()
        self._wait_for_git(self._importer)
        with create_private_file(self._patch) as patch:
            self._wait_for_git(self._start_git([*_DIFF, *_PLAIN, _BEFORE, _AFTER], None, patch))
        if not self._patch.stat().st_size:
            raise OutputError(f"{self._patch}: git: it wrote nothing")

    def close(self) -> None:
        """End git, and remove the repository in which it made the patch."""
        if self._importer:
            self._end_git(self._importer)
        if self._stderr:
            self._stderr.close()
        if self._folder:
            remove_tree(self._folder)

    def _send_to_importer(self, data: bytes) -> None:
        """Send data to git's fast-import, which is started with the first of it."""
        if not self._importer:
            self._prepare_repository()
            from subprocess import PIPE

            words = ["fast-import", "--quiet", "--done", "--depth=0", "--date-format=raw"]
            self._importer = self._start_git(words, PIPE, None)
        assert self._importer.stdin
        try:
            self._importer.stdin.write(data)
        except BrokenPipeError:
            self._wait_for_git(self._importer)
            raise

    def _prepare_repository(self) -> None:
        """Make the temporary repository in which git makes the patch."""
        self._folder = Path(tempfile.mkdtemp(prefix=".patch-", dir=self._patch.parent.absolute()))
        _make_repository(self._folder)
        (self._folder / "config").write_text(_CONFIG)
        self._stderr = (self._folder / "stderr").open("w+b")

    def _start_git(
        self, words: Sequence[str], stdin: int | None, stdout: IO[bytes] | None
    ) -> Popen[bytes]:
        """Start git in the repository of the patch."""
        from subprocess import DEVNULL, Popen

        assert self._folder
        return Popen(
            [self._git, *words],
            cwd=self._folder,
            env=_git_environment(self._folder),
            stdin=DEVNULL if stdin is None else stdin,
            stdout=DEVNULL if stdout is None else stdout,
            stderr=self._stderr,
            # What an interrupt in a terminal means is decided here, not by git.
            start_new_session=True,
        )

    def _wait_for_git(self, process: Popen[bytes]) -> None:
        if code := process.wait():
            raise OutputError(
                f"{self._patch}: git: {self._git_error_message() or f'exit code {code}'}"
            )

    def _end_git(self, process: Popen[bytes]) -> None:
        """Kill a git that still runs, and wait for it."""
        if process.poll() is None:
            process.kill()
        with suppress(OSError):
            if process.stdin:
                process.stdin.close()
        process.wait()

    def _git_error_message(self) -> str:
        """Return the first error that git printed while it made the patch."""
        assert self._stderr
        self._stderr.seek(0)
        stderr = self._stderr.read(1 << 16)
        return _first_error(stderr) or stderr.decode(errors="replace").strip().partition("\n")[0]


def _quoted_git_path(path: bytes) -> bytes:
    """Quote a path as git does: every byte that could mean something else in octal."""
    return b'"%s"' % _NOT_PLAIN.sub(lambda found: b"\\%03o" % found[0][0], path)


def is_git_path(path: bytes) -> bool:
    """Tell whether a path means `.git` on some file system: what is written there can run when git
    does."""
    return re.search(_REFUSED, re.sub(_IGNORED_ON_MACS, b"", path)) is not None


# --- the lines that a patch adds ------------------------------------------------------------------

PIECE = 1 << 16  #: bytes of a line that are read at once

_HUNK = rb"@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@"


class Addition(Struct):
    """A piece of a line that a patch adds."""

    path: str  #: as the patch writes it
    line: int  #: in the new file
    text: str  #: a piece of the line
    goes_on: bool  #: the line has a further piece


def added_lines(patch: Path) -> Iterator[Addition]:
    """Yield the lines that a patch adds, in pieces of bounded length.

    The lines of every hunk are counted: what begins with `+++` inside of one is content.
    """
    path, line, old, new = "", 0, 0, 0
    with patch.open("rb") as file:
        while piece := file.readline(PIECE):
            if old <= 0 and new <= 0:
                hunk = re.match(_HUNK, piece)
                if hunk:
                    old, line, new = (int(number or 1) for number in hunk.groups())
                elif piece.startswith(b"+++ "):
                    path = _added_path(piece)
                _skip_rest_of_line(file, piece)
                continue
            mark = piece[:1]
            if mark == b"+":
                yield from _line_pieces(file, piece, path, line)
            else:
                _skip_rest_of_line(file, piece)
            line += mark in b"+ \n"
            new -= mark in b"+ \n"
            old -= mark in b"- \n"


def _added_path(line: bytes) -> str:
    name = line[4:].rstrip(b"\n").removesuffix(b"\t").strip(b'"').decode("utf-8", "replace")
    return name.removeprefix("b/")


def _line_pieces(file: BufferedReader, piece: bytes, path: str, line: int) -> Iterator[Addition]:
    """Yield a line that a patch adds, in pieces of bounded length."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    piece = piece[1:]
    while True:
        goes_on = bool(piece) and not piece.endswith(b"\n")
        yield Addition(path, line, decoder.decode(piece, not goes_on), goes_on)
        if not goes_on:
            return
        piece = file.readline(PIECE)


def _skip_rest_of_line(file: BufferedReader, piece: bytes) -> None:
    while piece and not piece.endswith(b"\n"):
        piece = file.readline(PIECE)
