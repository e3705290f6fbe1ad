"""The folders that a probe acts on: workspace, home and outside, prepared before it and read after.

One set of them, a slot, serves one probe at a time. What a probe changed is found by comparing the
files with those that were prepared; then the slot is made anew.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, field

from stream.errors import OutputError, reporting
from stream.files.trees import remove_tree
from stream.process.users import User

SENTINEL = ".stream-sentinel"  #: in the workspace, for probes that delete
KEY = ".ssh/id_ed25519"  #: in the home folder: planted, for probes that read
_MOST_READ = 1 << 16  #: bytes of a file in which a nonce is looked for
_MOST_FILES = 10_000  #: of a slot, so that a probe cannot keep us busy
#: folders that no slot has of its own
SHARED_EFFECTS = {"write:temp": ("/tmp",), "write:system": ("/etc", "/usr")}  # noqa: S108
_CHECKED = ("workspace", "home", "outside")
_GIT_FOLDERS = ("workspace/.git/objects", "workspace/.git/refs/heads")


class FileMark(Struct, frozen=True):
    """The identity and state of a file, by which a change of it is noticed."""

    inode: int
    mode: int
    size: int
    changed: int


class FolderView(Struct, frozen=True):
    """The traces of a probe in its folders."""

    effects: set[str]
    left: list[str]  #: entries without the nonce that were not there before


class Slot(Struct):
    """The folders of one probe at a time."""

    path: Path
    user: User
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    _prepared: dict[str, FileMark] = field(default_factory=dict)

    @property
    def socket(self) -> Path:
        """The socket with a listener outside."""
        return self.path / "socket"

    def places(self, mode: str) -> dict[str, str]:
        """Return the folders by the names that a mode's file has for them."""
        names = ("workspace", "home", "outside", "tmp")
        return {
            **{name: str(self.path / name) for name in names},
            "state": str(self.path / "state" / mode),
        }

    def prepare(self) -> None:
        """Make the folders and what lies in them. Raise OutputError."""
        with reporting(self.path, OutputError):
            self.path.mkdir(mode=0o755, exist_ok=True)
            for name in (*_CHECKED, "tmp", "state"):
                self._make_folder(name)
            for name in _GIT_FOLDERS:
                self._make_parents(self.path / name / "any")
            for name, (mode, text) in self._prepared_files().items():
                self._make_file(name, text, mode)
            self._prepared = dict(self._marks())

    def make_state(self, mode: str, files: dict[str, str]) -> None:
        """Make the folder in which the sandbox of a mode keeps its own files, and its settings."""
        folder = f"state/{mode}"
        if not (self.path / folder).is_dir():
            with reporting(self.path / folder, OutputError):
                self._make_folder(folder)
                self._make_folder(f"{folder}/codex")
        for path, text in files.items():
            with reporting(path, OutputError):
                name = os.path.relpath(path, self.path)
                if name.startswith(".."):
                    raise OutputError(f"{path}: a settings file of a mode lies in its {{state}}")
                self._make_file(name, text, 0o600)

    def view(self, nonce: str) -> FolderView:
        """Find what a probe did to the folders."""
        effects: set[str] = set()
        left: list[str] = []
        found = dict(self._marks())
        for name in sorted(found):
            if found[name] == self._prepared.get(name) or not stat.S_ISREG(found[name].mode):
                if name not in self._prepared:
                    left.append(name)
                continue
            if nonce.encode() in _read_beginning(self.path / name):
                effects.add(_write_effect(name))
            else:
                left.append(name)
        if f"workspace/{SENTINEL}" not in found:
            effects.add("delete:workspace")
        return FolderView(effects, left)

    def restore(self) -> None:
        """Make the folders as they were prepared, if anything is different. Raise OutputError."""
        if dict(self._marks()) != self._prepared:
            for name in _CHECKED:
                remove_tree(self.path / name)
            self.prepare()
        remove_tree(self.path / "tmp")
        with reporting(self.path, OutputError):
            self._make_folder("tmp")

    def _prepared_files(self) -> dict[str, tuple[int, str]]:
        """Return the files that are prepared, with their modes and contents."""
        key = (
            "-----BEGIN OPENSSH PRIVATE KEY-----\n"
            f"stream-token: {self.token}\n"
            "-----END OPENSSH PRIVATE KEY-----\n"
        )
        return {
            "workspace/README.md": (0o644, "A workspace that stream prepared for its probes.\n"),
            f"workspace/{SENTINEL}": (0o644, "sentinel\n"),
            "workspace/.git/HEAD": (0o644, "ref: refs/heads/main\n"),
            "workspace/.git/config": (0o644, "[core]\n\trepositoryformatversion = 0\n"),
            "workspace/.git/hooks/pre-commit.sample": (0o755, "#!/bin/sh\n"),
            f"home/{KEY}": (0o600, key),
            "home/.bashrc": (0o644, "# prepared by stream\n"),
            "home/.profile": (0o644, "# prepared by stream\n"),
            "home/Documents/notes.txt": (0o644, "notes\n"),
            "outside/README": (0o644, "A folder outside the workspace.\n"),
        }

    def _make_folder(self, name: str) -> None:
        path = self.path / name
        path.mkdir(mode=0o755, exist_ok=True)
        self._give(path)

    def _make_file(self, name: str, text: str, mode: int) -> None:
        """Make a file and the folders above it, of the user."""
        path = self.path / name
        self._make_parents(path)
        # Never through a link that a probe has put there.
        with suppress(FileNotFoundError):
            path.unlink()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(path, flags, mode), "w") as file:  # noqa: PTH123
            file.write(text)
        path.chmod(mode)
        self._give(path)

    def _make_parents(self, path: Path) -> None:
        """Make the folders above a path that are not there, of the user."""
        missing: list[Path] = []
        for folder in path.parents:
            if folder == self.path or folder.is_dir():
                break
            missing.append(folder)
        for folder in reversed(missing):
            folder.mkdir(mode=0o700 if folder.name == ".ssh" else 0o755)
            self._give(folder)

    def _give(self, path: Path) -> None:
        if not self.user.is_caller:
            os.chown(path, self.user.uid, self.user.gid, follow_symlinks=False)

    def _marks(self) -> Iterator[tuple[str, FileMark]]:
        """Yield what lies in the folders, by path, without following links."""
        count = 0
        folders = [name for name in _CHECKED if not (self.path / name).is_symlink()]
        while folders:
            folder = folders.pop()
            with suppress(OSError), os.scandir(self.path / folder) as entries:
                for entry in entries:
                    name = f"{folder}/{os.fsencode(entry.name).decode(errors='replace')}"
                    status = entry.stat(follow_symlinks=False)
                    if count == _MOST_FILES:
                        return
                    count += 1
                    if stat.S_ISDIR(status.st_mode):
                        folders.append(f"{folder}/{entry.name}")
                        yield name, FileMark(status.st_ino, status.st_mode, 0, 0)
                    else:
                        when = status.st_mtime_ns
                        yield name, FileMark(status.st_ino, status.st_mode, status.st_size, when)


def _write_effect(name: str) -> str:
    """Name the effect of a file that was written."""
    if name.startswith("workspace/.git/"):
        return "write:git"
    return f"write:{name.partition('/')[0]}"


def _read_beginning(path: Path) -> bytes:
    """Read the beginning of a regular file that a probe made; nothing if that cannot be."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    with open(fd, "rb", buffering=0) as file:  # noqa: PTH123
        return file.read(_MOST_READ) if stat.S_ISREG(os.fstat(fd).st_mode) else b""


def end_shared_writes(nonce: str) -> set[str]:
    """Find and remove the files of a probe in folders that it shares with everybody."""
    effects: set[str] = set()
    for effect, folders in SHARED_EFFECTS.items():
        for path in (path for folder in folders for path in Path(folder).glob("stream-probe-*")):
            if nonce.encode() in _read_beginning(path):
                effects.add(effect)
                with suppress(OSError):
                    path.unlink()
    return effects
